//! What a stack may ask of its driver: frames of any content, with notes of any kind, by an honest queue. (Who lies in the queue's
//! own words is `queue`'s.)
//!
//! In the place of the tap stands a pair of sockets that keeps frames apart as a tap does, so that no right is needed.

use crate::Bytes;
use fordway_driver::config::Mac;
use fordway_driver::forward::Forwarder;
use fordway_driver::guard::{Guard, Refusal};
use fordway_driver::wire::Wire;
use fordway_driver::{FRAME_BYTES_MAX, Frame, FrameNotes, Port};
use fordway_platform::frames::FrameFile;
use fordway_platform::queue::{QueueEnd, Role};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

/// Frames of one run, and their bytes: the sockets have room for as many.
const FRAMES_MAX: usize = 32;
const BYTES_MAX: usize = 80_000;
/// Longest frame that is made whole from the fuzzer's bytes.
const RAW_BYTES_MAX: usize = 120;
const MAC: [u8; 6] = [2, 0x46, 10, 70, 0, 5];
const FOUR: [u8; 4] = [10, 70, 0, 5];
const SIX: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0x46, 0, 5];
/// `struct virtio_net_hdr`.
const HEADER_BYTES: usize = 10;

/// What the kernel is given is what may pass, unchanged and in its order; all else is counted.
pub fn driver(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let (tap, kernel) = pair(SocketFlags::NONBLOCK);
    let (ours, theirs) = pair(SocketFlags::empty());
    let mut stack = Port::queue(ours).expect("an end");
    let queue = QueueEnd::new(theirs, Role::Driver).expect("an end");
    stack.woken().expect("the link");
    let addresses = [Ipv4Addr::from(FOUR).into(), Ipv6Addr::from(SIX).into()];
    let wire = Wire::File(FrameFile::of_tap(tap));
    let guard = Guard::new(Mac(MAC), &addresses);
    let mut forwarder = Forwarder::new(wire, queue, guard, |_| {});

    let (mut sent, mut total) = (Vec::new(), 0);
    let made = stack.send(|buffer| {
        if bytes.is_empty() || sent.len() == FRAMES_MAX {
            return None;
        }
        let frame = frame(&mut bytes, FRAME_BYTES_MAX.min(BYTES_MAX - total));
        let notes = notes(&mut bytes);
        buffer[..frame.len()].copy_from_slice(&frame);
        let made = Frame {
            bytes: frame.len(),
            notes,
        };
        total += frame.len();
        sent.push((frame, notes));
        Some(made)
    });
    made.expect("a queue has no port to lose");
    // The driver ends when it has passed on all.
    drop(stack);
    forwarder.run().expect("the port is there");

    let mut passed = sent.iter().filter(|(frame, notes)| may_pass(frame, *notes));
    let mut count = 0;
    let mut packet = vec![0; HEADER_BYTES + BYTES_MAX];
    while let Ok(length) = rustix::io::read(&kernel, &mut packet) {
        if length == 0 {
            break;
        }
        let (frame, notes) = passed.next().expect("a frame that may not pass has passed");
        let (header, rest) = packet[..length].split_at(HEADER_BYTES);
        assert_eq!(header, header_of(*notes), "{notes:?}");
        assert!(rest == frame, "a frame was changed");
        count += 1;
    }
    assert!(passed.next().is_none(), "a good frame was not passed on");
    let refused = forwarder.counters().refused;
    assert_eq!(refused.iter().sum::<u64>() + count, sent.len() as u64);
    assert_eq!(refused[Refusal::Kernel as usize], 0);
    assert_eq!(forwarder.queue_counters().violations, 0);
}

pub fn pair(flags: SocketFlags) -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | flags;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair")
}

/// A good frame of some kind with a few bytes changed, or any bytes, of any length.
fn frame(bytes: &mut Bytes<'_>, most: usize) -> Vec<u8> {
    let mut frame = [[0xff; 6], MAC].concat();
    let kind = bytes.byte();
    match kind % 6 {
        0 | 1 => frame.extend(four()),
        2 => frame.extend(
            [
                &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64][..],
                &SIX,
                &[0; 16],
            ]
            .concat(),
        ),
        3 => frame.extend([&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1][..], &MAC, &FOUR, &[0; 10]].concat()),
        4 => {
            frame.extend([0x81, 0, 0, 7]);
            frame.extend(four());
        }
        _ => {
            let count = usize::from(bytes.byte()) % RAW_BYTES_MAX;
            frame = bytes.take(count).to_vec();
        }
    }
    for _ in 0..kind >> 6 {
        let (at, value) = (usize::from(bytes.byte()), bytes.byte());
        if let Some(byte) = frame.get_mut(at) {
            *byte = value;
        }
    }
    match bytes.byte() {
        0..160 => {}
        160..200 => frame.truncate(usize::from(bytes.byte()) % 64),
        200..250 => frame.resize(frame.len() + bytes.number(2) as usize % 3000, 0x5a),
        _ => frame.resize(frame.len() + bytes.number(2) as usize, 0x5a),
    }
    frame.truncate(most);
    frame
}

/// From Ethernet's kind on.
fn four() -> Vec<u8> {
    let header = [8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    [&header[..], &FOUR, &[10, 70, 0, 6], &[0; 20]].concat()
}

fn notes(bytes: &mut Bytes<'_>) -> FrameNotes {
    let flags = bytes.byte();
    let mut word = |is_small: bool| bytes.number(if is_small { 1 } else { 2 }) as u16;
    let is_small = flags & 16 != 0;
    FrameNotes {
        checksum: (flags & 1 != 0).then(|| (word(is_small), word(is_small))),
        is_checksum_good: flags & 2 != 0,
        gso_bytes: (flags & 4 != 0).then(|| word(is_small)),
        is_ipv6: flags & 8 != 0,
    }
}

/// What docs/stack.md says of a driver, in other words than the guard's.
fn may_pass(frame: &[u8], notes: FrameNotes) -> bool {
    let at = |start: usize, count: usize| frame.get(start..start + count).unwrap_or_default();
    let version = frame.get(14).map(|byte| byte >> 4);
    let (is_own, first_free) = match at(12, 2) {
        [8, 0] => (
            frame.len() >= 34 && version == Some(4) && at(26, 4) == FOUR,
            34,
        ),
        [0x86, 0xdd] => {
            let is_own = [SIX, [0; 16]].iter().any(|own| at(22, 16) == own);
            (frame.len() >= 54 && version == Some(6) && is_own, 54)
        }
        [8, 6] => {
            let speaks_for_us =
                at(22, 6) == MAC && [FOUR, [0; 4]].iter().any(|own| at(28, 4) == own);
            let is_ethernet = at(14, 6) == [0, 1, 8, 0, 6, 4];
            (frame.len() >= 42 && is_ethernet && speaks_for_us, u16::MAX)
        }
        _ => return false,
    };
    let is_arp = first_free == u16::MAX;
    at(6, 6) == MAC
        && is_own
        && notes
            .checksum
            .is_none_or(|(start, _)| !is_arp && start >= first_free)
        && notes.gso_bytes.is_none_or(|bytes| bytes >= 88)
}

fn header_of(notes: FrameNotes) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let (start, offset) = notes.checksum.unwrap_or_default();
    header[6..8].copy_from_slice(&start.to_ne_bytes());
    header[8..].copy_from_slice(&offset.to_ne_bytes());
    header[0] = u8::from(notes.checksum.is_some());
    if let Some(bytes) = notes.gso_bytes {
        header[1] = if notes.is_ipv6 { 4 } else { 1 };
        header[2..4].copy_from_slice(&start.saturating_add(20).to_ne_bytes());
        header[4..6].copy_from_slice(&bytes.to_ne_bytes());
    }
    header
}
