//! What the broker keeps for shims, and how much of it: counted, bounded, and remembered.

use crate::broker::{Broker, CONNECTIONS_MAX};
use crate::shares::{self, Kept, Whose};
use fordway_abi::control::PathPolicy;
use fordway_abi::reason::Reason;
use fordway_registry::ProcessId;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Most connections of programs that are offered, have a channel, or are remembered.
const OFFERS_MAX: usize = 1 << 19;
/// Most connections that have not said `Hello`; the oldest makes way.
const STRANGERS_MAX: usize = 256;
/// Processes whose mischief is remembered, to be logged once.
const CULPRITS_MAX: usize = 1024;

/// Lines about the mischief of programs that are logged in [`GRUMBLE_TIME`].
const GRUMBLES_MAX: u32 = 60;
const GRUMBLE_TIME: Duration = Duration::from_secs(60);

/// Bounds the log, which programs fill: a process is cheap, and so is another one.
#[derive(Debug, Default)]
pub(crate) struct Grumbles {
    since: Option<Instant>,
    count: u32,
}

impl Grumbles {
    pub(crate) fn may_log(&mut self, now: Instant) -> bool {
        let stale = |since| now.saturating_duration_since(since) >= GRUMBLE_TIME;
        if self.since.is_none_or(stale) {
            (self.since, self.count) = (Some(now), 0);
        }
        self.count = self.count.saturating_add(1);
        if self.count == GRUMBLES_MAX + 1 {
            tracing::warn!("more mischief of programs is not logged for a while");
        }
        self.count <= GRUMBLES_MAX
    }
}

/// Whether it is new, among those of late.
fn remember<T: Ord>(known: &mut BTreeSet<T>, one: T) -> bool {
    if known.len() >= CULPRITS_MAX {
        known.clear();
    }
    known.insert(one)
}

impl Broker {
    /// Whether more can be kept for a shim, and for whoever it belongs to.
    pub(crate) fn may_hold_more(&self, whose: Whose) -> bool {
        let others = self.memory.regions_held() + self.reaper.waiting() + self.places.held();
        let limits = Kept {
            connections: CONNECTIONS_MAX,
            descriptors: self.held_max,
            offers: usize::MAX,
        };
        let all = match self.shares.is_administrator(whose) {
            true => self.held_max,
            false => self.held_max - self.held_max / shares::RESERVED,
        };
        self.held + others < all && self.shares.has_room(whose, limits)
    }

    /// Whether another connection may be offered.
    pub(crate) fn may_offer_more(&self, whose: Whose) -> bool {
        let limits = Kept {
            connections: usize::MAX,
            descriptors: usize::MAX,
            offers: OFFERS_MAX,
        };
        self.shares.has_room(whose, limits)
    }

    /// Whose a connection is. The broker's own if it is not there any more.
    pub(crate) fn whose(&self, number: u64) -> Whose {
        let connection = self.connections.get(&number);
        connection.map_or(self.shares.own(), |connection| (&connection.peer).into())
    }

    /// Counts anew what is kept for a connection.
    pub(crate) fn recount(&mut self, number: u64) {
        if let Some(connection) = self.connections.get_mut(&number) {
            let process = connection.member.as_ref().map(|member| member.process);
            let is = Kept {
                connections: 1,
                descriptors: connection.descriptors(),
                offers: process.map_or(0, |process| self.registry.connection_count(process)),
            };
            let was = std::mem::replace(&mut connection.counted, is);
            self.held = self.held + is.descriptors - was.descriptors;
            self.shares.change((&connection.peer).into(), was, is);
        }
    }

    /// Whether to log what this process did: once for each, as far as is remembered.
    pub(crate) fn first_mischief(&mut self, pid: i32) -> bool {
        remember(&mut self.culprits, pid) && self.grumbles.may_log(Instant::now())
    }

    /// As [`Broker::first_mischief`], for what one process says of another.
    pub(crate) fn first_complaint(&mut self, process: i32, of: i32) -> bool {
        remember(&mut self.complaints, (process, of)) && self.grumbles.may_log(Instant::now())
    }

    /// Whether a process requires the fast path.
    pub(crate) fn insists(&self, process: ProcessId) -> bool {
        self.registry.policy(process) == Some(PathPolicy::Fast)
    }

    /// So many processes require the fast path now.
    pub(crate) fn count_insisting(&mut self, count: usize) {
        let was = std::mem::replace(&mut self.insisting, count);
        if (was == 0) != (count == 0)
            && let Err(error) = self.runtime.show_insisted(count != 0)
        {
            tracing::warn!("programs that require the fast path may be refused: {error}");
        }
    }

    /// A program that requires the fast path says that a connection of its gets no rings: its calls
    /// fail, and the log says why.
    pub(crate) fn note_refusal(&mut self, process: ProcessId, reason: u32) {
        if self.insists(process) && self.grumbles.may_log(Instant::now()) {
            let pid = self.pid_of(process).unwrap_or(0);
            let reason = Reason::from_u32(reason).map_or("-", Reason::word);
            tracing::warn!(
                "process {pid} requires the fast path, and a connection of it has none: {reason}"
            );
        }
    }

    /// The same of datagrams, which go by the kernel all the same.
    pub(crate) fn note_refused_datagrams(&mut self, process: ProcessId, reason: u32) {
        if self.insists(process) && self.grumbles.may_log(Instant::now()) {
            let pid = self.pid_of(process).unwrap_or(0);
            let reason = Reason::from_u32(reason).map_or("-", Reason::word);
            tracing::warn!(
                "process {pid} requires the fast path, and datagrams of it go by the kernel: {reason}"
            );
        }
    }

    pub(crate) fn make_room_for_stranger(&mut self) {
        let strangers = self.connections.len() - self.by_process.len();
        if strangers >= STRANGERS_MAX {
            let oldest = self.connections.iter().find(|(_, c)| c.member.is_none());
            if let Some(number) = oldest.map(|(number, _)| *number) {
                self.close_connection(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_so_many_lines_about_mischief() {
        let mut grumbles = Grumbles::default();
        let start = Instant::now();
        for minute in 0..3 {
            let now = start + GRUMBLE_TIME * minute;
            let logged = (0..10_000).filter(|_| grumbles.may_log(now)).count();
            assert_eq!(logged, GRUMBLES_MAX as usize);
        }
    }
}
