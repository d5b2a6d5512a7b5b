//! Connections that have ended here last (RFC 9293 section 3.6): what is left of them answers a
//! repeated FIN, keeps old segments out of a new connection, and takes 96 bytes.
//!
//! All wait equally long, so that a queue is in the order of their ends. When it is full the
//! oldest goes early, as on Linux.

use alloc::collections::VecDeque;

use super::Key;
use super::connection::Clock;
use crate::{Micros, SECOND_US};

const WAIT_US: Micros = 60 * SECOND_US;

#[derive(Clone, Copy, Debug)]
pub(super) struct TimeWait {
    pub key: Key,
    /// What we would send next.
    pub seq: u32,
    /// What we would receive next.
    pub ack: u32,
    pub clock: Option<Clock>,
    ends_at: Micros,
    is_over: bool,
}

#[derive(Debug)]
pub(super) struct TimeWaits {
    queue: VecDeque<TimeWait>,
    /// Number of the first in the queue; numbers are what the table holds.
    first: u32,
    max: usize,
}

impl TimeWaits {
    pub(super) fn new(max: usize) -> TimeWaits {
        TimeWaits {
            queue: VecDeque::new(),
            first: 0,
            max,
        }
    }

    /// Gives its number, and whose place it took.
    pub(super) fn push(
        &mut self,
        key: Key,
        (seq, ack): (u32, u32),
        clock: Option<Clock>,
        now: Micros,
    ) -> (u32, Option<Key>) {
        let gone = if self.queue.len() >= self.max.max(1) {
            self.pop()
        } else {
            None
        };
        self.queue.push_back(TimeWait {
            key,
            seq,
            ack,
            clock,
            ends_at: now + WAIT_US,
            is_over: false,
        });
        let number = self.first.wrapping_add(self.queue.len() as u32 - 1);
        (number, gone)
    }

    fn pop(&mut self) -> Option<Key> {
        let gone = self.queue.pop_front()?;
        self.first = self.first.wrapping_add(1);
        (!gone.is_over).then_some(gone.key)
    }

    pub(super) fn get(&self, number: u32) -> Option<TimeWait> {
        self.queue
            .get(number.wrapping_sub(self.first) as usize)
            .copied()
    }

    /// A new connection takes its names.
    pub(super) fn end(&mut self, number: u32) {
        if let Some(wait) = self.queue.get_mut(number.wrapping_sub(self.first) as usize) {
            wait.is_over = true;
        }
    }

    pub(super) fn expire(&mut self, now: Micros, mut gone: impl FnMut(&Key)) {
        while self.queue.front().is_some_and(|wait| wait.ends_at <= now) {
            if let Some(key) = self.pop() {
                gone(&key);
            }
        }
    }

    #[inline]
    pub(super) fn next_at(&self) -> Option<Micros> {
        self.queue.front().map(|wait| wait.ends_at)
    }
}
