//! The packet queue against whoever is at its other end: in one process, where a read beside the pool ends the run, and by a link
//! as between driver and stack.

use crate::Bytes;
use crate::driver::pair;
use crate::whole::{BLOCK_BYTES, BLOCKS, Queue, all_are_free, content};
use fordway_abi::ABI_VERSION;
use fordway_abi::queue::{ENTRY_COUNT, MESSAGE_BLOCKS_MAX, POOL_OFFSET};
use fordway_platform::frames::FrameNotes;
use fordway_platform::ipc;
use fordway_platform::memfd::OwnPage;
use fordway_platform::queue::{Frame, QueueEnd, Received, Role, Sent};
use fordway_ring::Violation;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::SocketFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Steps of one run.
const STEPS_MAX: usize = 300;
/// Messages that a receiver holds at most before it acknowledges one.
const HELD_MAX: usize = 4;
/// Memory of an end by a link.
const END_BYTES: usize = POOL_OFFSET + (256 << 13);

/// The first byte says who lies.
pub fn queue(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    match bytes.byte() % 4 {
        0 => lying_sender(&mut bytes),
        1 => lying_receiver(&mut bytes),
        2 => lying_end(&mut bytes, Role::Driver),
        _ => lying_end(&mut bytes, Role::Stack),
    }
}

fn index(bytes: &mut Bytes<'_>) -> u64 {
    match bytes.byte() {
        near @ 0..200 => u64::from(near % 60),
        200..250 => 250 + u64::from(bytes.byte() % 16),
        _ => bytes.number(8),
    }
}

/// A piece, mostly one that could be.
fn piece(bytes: &mut Bytes<'_>) -> u64 {
    match bytes.byte() {
        kind @ 0..220 => {
            let block = u64::from(bytes.byte()) % (BLOCKS as u64 + 1);
            let length = if kind & 2 != 0 {
                BLOCK_BYTES as u64
            } else {
                bytes.number(1) % (BLOCK_BYTES as u64 + 2)
            };
            block | u64::from(kind & 1) << 16 | length << 32
        }
        _ => bytes.number(8),
    }
}

fn lying_sender(bytes: &mut Bytes<'_>) {
    let mut queue = Queue::new(BLOCKS, 1);
    let mut held = Vec::new();
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        let lane = &queue.sides[0].lane;
        match bytes.byte() % 4 {
            0 => {
                let entry = &lane.entries[usize::from(bytes.byte()) % ENTRY_COUNT];
                entry.piece.store(piece(bytes), Ordering::Relaxed);
                entry.number.store(bytes.number(1), Ordering::Relaxed);
            }
            1 => lane.tail.0.store(index(bytes), Ordering::Relaxed),
            2 => match queue.sides[0].receiver.receive() {
                Ok(Some(message)) => held.push(message),
                Ok(None) => {}
                Err(violation) => {
                    assert!(matches!(violation, Violation::Tail | Violation::Descriptor));
                }
            },
            _ if held.is_empty() => {}
            _ => {
                let message = held.swap_remove(usize::from(bytes.byte()) % held.len());
                queue.sides[0].receiver.acknowledge(message);
            }
        }
        for message in &held {
            // Reads beside the pool end the run.
            assert!(queue.bytes_of(0, message).len() <= MESSAGE_BLOCKS_MAX * BLOCK_BYTES);
        }
        if held.len() > HELD_MAX {
            let message = held.swap_remove(0);
            queue.sides[0].receiver.acknowledge(message);
        }
    }
}

fn lying_receiver(bytes: &mut Bytes<'_>) {
    let mut queue = Queue::new(BLOCKS, 2);
    for number in 1..STEPS_MAX as u64 {
        if bytes.is_empty() {
            break;
        }
        let told = &queue.sides[0].acknowledgements;
        match bytes.byte() % 4 {
            0 => {
                let block = u32::from(bytes.byte()) % (BLOCKS as u32 + 2);
                let at = usize::from(bytes.byte()) % ENTRY_COUNT;
                told.blocks[at].store(block, Ordering::Relaxed);
            }
            1 => told.tail.0.store(index(bytes), Ordering::Relaxed),
            2 => {
                // It may be that there is no room.
                let length = bytes.number(2) as usize % 400;
                let _ = queue.send(
                    number,
                    &content(number, length),
                    u64::from(bytes.byte() & 3),
                );
            }
            _ => {
                let length = bytes.number(2) as usize % 400;
                let _ = queue.make(
                    number,
                    &content(number, length),
                    usize::from(bytes.byte()),
                    0b11,
                );
            }
        }
        if queue.sender.collect(0).is_err() {
            let lane = queue.sides[0].number;
            queue.sender.detach(lane);
            queue.sides[0] = queue.attach();
        }
        // The other one is served as ever.
        while let Some(message) = queue.sides[1].receiver.receive().expect("honest") {
            let number = message.header.number;
            let got = queue.bytes_of(1, &message);
            assert!(got == content(number, got.len()), "message {number}");
            queue.sides[1].receiver.acknowledge(message);
        }
        queue.sender.collect(1).expect("honest");
        assert!(queue.sender.has_room(1, 400));
    }
    (0..2).for_each(|lane| queue.sender.detach(lane));
    all_are_free(&mut queue.sender);
}

/// Who has the other end of a link, and what it has shown.
struct Liar {
    link: OwnedFd,
    memory: OwnPage,
    memfd: OwnedFd,
    bell: OwnedFd,
    /// The last number that it was told, and the doorbell.
    number: u64,
    theirs: Option<OwnedFd>,
}

impl Liar {
    fn new(link: OwnedFd) -> Liar {
        let (memory, memfd) = OwnPage::create("liar", END_BYTES).expect("memory");
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd");
        Liar {
            link,
            memory,
            memfd,
            bell,
            number: 0,
            theirs: None,
        }
    }

    /// Reads all that it was told.
    fn hear(&mut self) {
        let mut words = [0; 16];
        while let Ok(packet) = ipc::receive(&self.link, &mut words, 2) {
            let number = words[8..].first_chunk().expect("eight bytes");
            self.number = u64::from_ne_bytes(*number);
            self.theirs = packet.fds.into_iter().nth(1).or(self.theirs.take());
        }
    }

    fn tell(&mut self, bytes: &mut Bytes<'_>) {
        let shape = bytes.byte();
        let (version, kind) = match shape % 8 {
            0..7 => (ABI_VERSION, 1 + u32::from(shape % 8) % 3),
            _ => (bytes.number(4) as u32, bytes.number(1) as u32),
        };
        let number = if shape & 8 == 0 {
            self.number
        } else {
            bytes.number(8)
        };
        let mut words = [
            &version.to_ne_bytes()[..],
            &kind.to_ne_bytes(),
            &number.to_ne_bytes(),
        ]
        .concat();
        if shape & 0x80 != 0 {
            // Not to nothing: that is a link's end.
            words.resize(1 + usize::from(bytes.byte()) % 40, 0);
        }
        let other;
        let (memfd, bell) = (self.memfd.as_fd(), self.bell.as_fd());
        let fds: &[BorrowedFd<'_>] = match shape >> 4 & 7 {
            0..4 if kind == 1 => &[],
            0..4 => &[memfd, bell],
            4 => &[bell, memfd],
            5 => &[memfd],
            6 => {
                other = OwnPage::create("liar", END_BYTES / 2).expect("memory").1;
                &[other.as_fd(), bell]
            }
            _ => &[],
        };
        // It may not fit.
        let _ = ipc::send(&self.link, &words, fds);
    }

    fn write(&mut self, bytes: &mut Bytes<'_>) {
        let at = bytes.number(2) as usize % (POOL_OFFSET / 8) * 8;
        let value = match bytes.byte() {
            0..100 => bytes.number(1),
            100..200 => {
                bytes.number(1) | u64::from(bytes.byte() & 1) << 16 | (bytes.number(2) % 8200) << 32
            }
            _ => bytes.number(8),
        };
        self.memory.store_u64(at, value);
    }
}

fn lying_end(bytes: &mut Bytes<'_>, role: Role) {
    let (ours, theirs) = pair(SocketFlags::empty());
    let mut liar = Liar::new(theirs);
    let mut end = QueueEnd::new(ours, role).expect("an end");
    let mut taken = [0; 4096];
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        match bytes.byte() % 16 {
            0..3 => liar.tell(bytes),
            3..9 => liar.write(bytes),
            9 => liar.hear(),
            10 => {
                if let Some(theirs) = &liar.theirs {
                    let _ = rustix::io::write(theirs, &1u64.to_ne_bytes());
                }
            }
            11 | 12 => {
                let is_taken = bytes.byte() & 1 == 0;
                end.receive(|frame, _| {
                    assert!(frame.bytes() <= MESSAGE_BLOCKS_MAX << 13);
                    let count = frame.copy_to(0, &mut taken);
                    assert_eq!(count, frame.bytes().min(taken.len()));
                    is_taken
                });
            }
            13 => {
                let length = bytes.number(2) as usize;
                end.send(|_| Some(frame(length)));
            }
            14 => {
                end.may_sleep(bytes.byte() & 1 == 0);
            }
            _ => end.woken().expect("nothing of ours is wrong"),
        }
        if role == Role::Stack {
            // A driver, which is trusted, reads.
            liar.hear();
        }
    }
    assert!(!end.is_alone());
    // Who comes next is served as if nothing had been.
    drop((liar.memory, liar.memfd, liar.bell, liar.theirs));
    let other = if role == Role::Stack {
        Role::Driver
    } else {
        Role::Stack
    };
    let mut honest = QueueEnd::new(liar.link, other).expect("an end");
    // What the liar has left in the link is answered, too.
    for _ in 0..STEPS_MAX {
        end.woken().expect("the link");
        honest.woken().expect("the link");
        // The liar's words may still be what was joined last.
        while end.receive(|_, _| true) == Received::Frame {}
    }
    assert!(end.is_joined() && honest.is_joined(), "{end:?} {honest:?}");
    for (is_ours, length) in [(true, 60), (false, 65_549)] {
        let (sender, receiver) = match is_ours {
            true => (&mut end, &mut honest),
            false => (&mut honest, &mut end),
        };
        assert_eq!(sender.send(|_| Some(frame(length))), Sent::Frame);
        let received = receiver.receive(|frame, _| {
            assert_eq!(frame.bytes(), length);
            true
        });
        assert_eq!(received, Received::Frame);
    }
}

fn frame(bytes: usize) -> Frame {
    let notes = FrameNotes::default();
    Frame { bytes, notes }
}
