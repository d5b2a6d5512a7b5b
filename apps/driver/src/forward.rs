//! The loop of a driver: frames from the kernel into the queue to the stack, and from the queue from the stack to the kernel.
//!
//! A frame that comes is read from the kernel straight into a block of the queue; one that goes is written to the kernel straight
//! from the stack's block, but for the head that was looked at. Each way is one copy, the kernel's own.
//!
//! # Who wakes whom
//! The loop sleeps in one poll(2): for frames of the kernel's, unless the queue is full; for room in the kernel, if a frame
//! found none; for the queue. Neither way waits for the other. While the queue is full, frames wait in the kernel, which drops
//! and counts what it has no room for. While there is no stack, none are taken; when one comes, what has waited is thrown away: it
//! was meant for connections that are gone.

use crate::guard::{self, Guard, HEAD_BYTES, Refusal};
use crate::port::is_of_the_port;
use crate::wire::Wire;
use fordway_platform::frames::{FRAME_BYTES_MAX, FrameNotes};
use fordway_platform::queue::{Foreign, Frame, QueueCounters, QueueEnd, Received, Sent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::AsFd;

/// Frames of one way before the other gets its turn.
const BURST: usize = 32;
/// Frames that are thrown away when a stack comes anew: more than a socket holds.
const STALE_MAX: usize = 65_536;
/// Turns in a row that find something, until descriptors are looked at all the same.
const TURNS_MAX: usize = 32;

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames of the stack's that were not passed on, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
    /// Frames that had come while there was no stack.
    pub stale: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Forwarder {
    wire: Wire,
    queue: QueueEnd,
    guard: Guard,
    counters: Counters,
    /// Writes a line to the log.
    tell: fn(&str),
    /// The stack that is served, by the number of its join.
    joins: u64,
    /// The queue to the stack has no room.
    is_full: bool,
    /// The kernel has no room.
    is_held: bool,
}

impl Forwarder {
    /// Between these two. Of refused frames `tell` is given a line for the first of a kind, the second, the fourth and so on: so
    /// few that a stack which sends nothing else fills no log.
    pub fn new(wire: Wire, queue: QueueEnd, guard: Guard, tell: fn(&str)) -> Forwarder {
        Forwarder {
            wire,
            queue,
            guard,
            counters: Counters::default(),
            tell,
            joins: 0,
            is_full: false,
            is_held: false,
        }
    }

    /// What has happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What has happened at the queue.
    pub fn queue_counters(&self) -> QueueCounters {
        self.queue.counters()
    }

    /// Until nobody has the other end of the link, or the port is gone. The last counts are told then, if they were not.
    pub fn run(&mut self) -> io::Result<()> {
        let ended = self.serve();
        for (refusal, count) in Refusal::ALL.into_iter().zip(self.counters.refused) {
            if count != 0 && !count.is_power_of_two() {
                (self.tell)(&told(&self.guard, refusal, count));
            }
        }
        ended
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut turns = 0;
        while !self.queue.is_alone() {
            turns = match self.turn()? {
                true => (turns + 1) % TURNS_MAX,
                false => 0,
            };
            if turns == 0 {
                self.sleep()?;
            }
        }
        Ok(())
    }

    /// Passes on what there is, up to a burst each way; whether there was anything.
    fn turn(&mut self) -> io::Result<bool> {
        let joins = self.queue.counters().joins;
        if self.queue.is_joined() && self.joins != joins {
            self.joins = joins;
            self.throw_away()?;
        }
        let inwards = self.inwards()?;
        let outwards = self.outwards()?;
        self.wire.flush()?;
        Ok(inwards || outwards)
    }

    fn inwards(&mut self) -> io::Result<bool> {
        let mut error = None;
        for count in 0..BURST {
            let sent = self.queue.send(|buffer| match self.wire.receive(buffer) {
                Ok(frame) => frame.map(|(bytes, notes)| Frame { bytes, notes }),
                Err(why) => {
                    error = Some(why);
                    None
                }
            });
            if let Some(error) = error.take() {
                tolerate(error)?;
            }
            self.is_full = sent == Sent::Full;
            if sent != Sent::Frame {
                return Ok(count != 0);
            }
        }
        Ok(true)
    }

    fn outwards(&mut self) -> io::Result<bool> {
        let mut gone = None;
        for count in 0..BURST {
            let received = self.queue.receive(|frame, notes| {
                let mut head = [0; HEAD_BYTES];
                let refusal = match looked_at(&self.guard, &frame, notes, &mut head) {
                    Ok(length) => {
                        match self
                            .wire
                            .send_behind(&head[..length], &frame, length, notes)
                        {
                            Ok(()) => return true,
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                                return false;
                            }
                            Err(error) if is_of_the_port(&error) => {
                                gone = Some(error);
                                return true;
                            }
                            Err(_) => Refusal::Kernel,
                        }
                    }
                    Err(refusal) => refusal,
                };
                let count = &mut self.counters.refused[refusal as usize];
                *count += 1;
                if count.is_power_of_two() {
                    (self.tell)(&told(&self.guard, refusal, *count));
                }
                true
            });
            if let Some(error) = gone.take() {
                return Err(error);
            }
            self.is_held = received == Received::Held;
            if received != Received::Frame {
                return Ok(count != 0);
            }
        }
        Ok(true)
    }

    fn throw_away(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; FRAME_BYTES_MAX];
        // No more than can have waited: who floods is not to keep the driver here.
        for _ in 0..STALE_MAX {
            match self.wire.receive(&mut buffer) {
                Ok(Some(_)) => self.counters.stale += 1,
                Ok(None) => return Ok(()),
                Err(error) => tolerate(error)?,
            }
        }
        Ok(())
    }

    fn sleep(&mut self) -> io::Result<()> {
        let may_sleep = self.queue.may_sleep(self.is_full);
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, self.queue.is_joined() && !self.is_full);
        interest.set(PollFlags::OUT, self.is_held);
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let queue = PollFd::from_borrowed_fd(self.queue.as_fd(), PollFlags::IN);
        let mut both = [queue, PollFd::new(&self.wire, interest)];
        // An interface that is down would show however little is asked.
        let count = if interest.is_empty() { 1 } else { 2 };
        match poll(&mut both[..count], (!may_sleep).then_some(&at_once)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Most often a frame of the kernel's has ended the sleep.
        match both[0].revents().is_empty() {
            true => self.queue.awake(),
            false => self.queue.woken()?,
        }
        Ok(())
    }
}

/// The head of a frame that may pass, copied, and its length.
fn looked_at(
    guard: &Guard,
    frame: &Foreign<'_>,
    notes: FrameNotes,
    head: &mut [u8; HEAD_BYTES],
) -> Result<usize, Refusal> {
    if frame.bytes() > FRAME_BYTES_MAX {
        return Err(Refusal::Long);
    }
    let length = frame.copy_to(0, head);
    guard.check(&head[..length])?;
    guard::check_notes(&head[..length], notes)?;
    Ok(length)
}

fn told(guard: &Guard, refusal: Refusal, count: u64) -> String {
    let (name, word) = (guard.name(), refusal.word());
    format!("fordway-driver of {name}: frames refused ({word}): {count}\n")
}

/// An interface that is down says so once to each socket.
fn tolerate(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::ENETDOWN) => Ok(()),
        _ => Err(error),
    }
}
