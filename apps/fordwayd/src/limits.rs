//! What the broker keeps for shims, and how much of it: counted, bounded, and remembered.

use crate::broker::{Broker, CONNECTIONS_MAX};
use crate::shares::{Kept, Whose};

/// Most connections of programs that are offered, have a channel, or are remembered.
const OFFERS_MAX: usize = 1 << 19;
/// Most connections that have not said `Hello`; the oldest makes way.
const STRANGERS_MAX: usize = 256;
/// Processes whose mischief is remembered, to be logged once.
const CULPRITS_MAX: usize = 1024;

impl Broker {
    /// Whether more can be kept for a shim, and for whoever it belongs to.
    pub(crate) fn may_hold_more(&self, whose: Whose) -> bool {
        let others = self.memory.regions_held() + self.reaper.waiting();
        let limits = Kept {
            connections: CONNECTIONS_MAX,
            descriptors: self.held_max,
            offers: usize::MAX,
        };
        self.held + others < self.held_max && self.shares.has_room(whose, limits)
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

    /// Whether this process did nothing wrong so far, as far as is remembered.
    pub(crate) fn first_mischief(&mut self, pid: i32) -> bool {
        if self.culprits.len() >= CULPRITS_MAX {
            self.culprits.clear();
        }
        self.culprits.insert(pid)
    }

    /// As [`Broker::first_mischief`], for what one process says of another.
    pub(crate) fn first_complaint(&mut self, process: i32, of: i32) -> bool {
        if self.complaints.len() >= CULPRITS_MAX {
            self.complaints.clear();
        }
        self.complaints.insert((process, of))
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
