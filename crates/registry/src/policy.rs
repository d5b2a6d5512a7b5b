//! What a rule from outside (the packet filter) says of connections: asked before a
//! channel is made, and of all live channels again when the rule has changed.
//!
//! ```text
//!   both offers there ──gate: allowed──► channel ──look_again: not any more──► Downgrade to both
//!          │                                ▲
//!          └──gate: reason──► held back ────┘ retry_held_back
//! ```
//! An offer that is held back stands: its process is told the reason, and gets its channel
//! when the rule allows it later. Only who wants rings or nothing is turned down for good.

use crate::links::ChannelRef;
use crate::processes::{ConnKey, ConnState};
use crate::{Action, ChannelView, ProcessId, Registry, SocketFacts, Translator, Witness};
use fordway_abi::reason::Reason;

/// Says why two sockets that are one connection get no channel; `None`: they may. The third is the
/// namespace in whose table their addresses were translated, if they were.
pub type Gate<'g> = dyn FnMut(&SocketFacts, &SocketFacts, Option<u64>) -> Option<Reason> + 'g;

/// A live channel with both its ends.
#[derive(Clone, Copy, Debug)]
pub struct BothEnds {
    /// Each end's socket.
    pub facts: [SocketFacts; 2],
    /// The number that both processes know it by, also to the next broker. Of a channel that an
    /// earlier broker made it is their own word.
    pub id: u64,
    /// The namespace in whose table their addresses were translated, if they were.
    pub table: Option<u64>,
    handle: ChannelRef,
}

impl BothEnds {
    /// What tells this channel from all others of this broker.
    pub fn key(&self) -> u64 {
        self.handle
    }
}

impl Registry {
    pub(crate) fn pair_through(
        &mut self,
        ends @ [a, b]: [ConnKey; 2],
        table: Option<u64>,
        gate: &mut Gate<'_>,
        actions: &mut Vec<Action>,
    ) {
        let (Some(conn_a), Some(conn_b)) = (self.conn(a), self.conn(b)) else {
            return;
        };
        match gate(&conn_a.facts, &conn_b.facts, table) {
            None => self.pair(ends, table, actions),
            Some(reason) => ends
                .into_iter()
                .for_each(|key| self.hold_back(key, reason, actions)),
        }
    }

    pub(crate) fn hold_back(&mut self, key: ConnKey, reason: Reason, actions: &mut Vec<Action>) {
        if self.insists_on(key) {
            return self.turn_down(key, reason, actions);
        }
        let Some(conn) = self.conn_mut(key) else {
            return;
        };
        let told = Some(reason);
        if !matches!(conn.state, ConnState::Offered { told: before } if before == told) {
            conn.state = ConnState::Offered { told };
            self.reject(key, reason, true, actions);
        }
    }

    /// Asks again about the offers that were held back with this reason.
    pub fn retry_held_back(
        &mut self,
        held_for: Reason,
        witness: &mut Witness<'_>,
        gate: &mut Gate<'_>,
        translate: &mut Translator<'_>,
    ) -> Vec<Action> {
        let held = |key: &&ConnKey| {
            let state = self.conn(**key).map(|conn| conn.state);
            matches!(state, Some(ConnState::Offered { told }) if told == Some(held_for))
        };
        let held: Vec<ConnKey> = self.offers.values().filter(held).copied().collect();
        let mut actions = Vec::new();
        for key in held {
            let Some(conn) = self.conn(key).copied() else {
                continue;
            };
            if !matches!(conn.state, ConnState::Offered { .. }) {
                continue;
            }
            // Both are old.
            let found = self.find_partner(&conn.facts, witness, translate, &mut actions);
            let Some((partner, table)) = found else {
                // The far end may have rings with its stack.
                self.way_to(&conn.facts, gate, &mut actions);
                continue;
            };
            match witness(key.0, &conn.facts) {
                Ok(()) => self.pair_through([key, partner], table, gate, &mut actions),
                Err(reason) => self.turn_down(key, reason, &mut actions),
            }
        }
        actions
    }

    /// Every channel of which both ends are known and not over.
    pub fn channels_with_both_ends(&self) -> impl Iterator<Item = BothEnds> + '_ {
        self.channels
            .keys()
            .filter_map(|channel| self.both_ends(*channel))
    }

    /// The channel of a process's connection, if both its ends are known and not over.
    pub fn both_ends_of(&self, process: ProcessId, conn_id: u64) -> Option<BothEnds> {
        match self.conn((process, conn_id))?.state {
            ConnState::Channel { channel, .. } => self.both_ends(channel),
            _ => None,
        }
    }

    /// As [`Registry::channels_with_both_ends`], those that a process has an end of.
    pub fn both_ends_in(&self, process: ProcessId) -> Vec<BothEnds> {
        let conns = self.processes.get(&process).map(|process| &process.conns);
        conns
            .into_iter()
            .flat_map(|conns| conns.keys())
            .filter_map(|conn_id| self.both_ends_of(process, *conn_id))
            .collect()
    }

    fn both_ends(&self, handle: ChannelRef) -> Option<BothEnds> {
        let channel = self.channels.get(&handle)?;
        let [Some(a), Some(b)] = channel.ends else {
            return None;
        };
        if a.over || b.over {
            return None;
        }
        let facts = |process, conn_id| self.conn((process, conn_id)).map(|conn| conn.facts);
        Some(BothEnds {
            facts: [facts(a.process, a.conn_id)?, facts(b.process, b.conn_id)?],
            id: channel.id,
            table: channel.table,
            handle,
        })
    }

    /// The channel as each end sees it. Not part of [`BothEnds`]: when rules change, all channels
    /// are asked about and none is looked at.
    pub fn views_of(&self, channel: &BothEnds) -> Option<[ChannelView; 2]> {
        let view = |side| self.channel_view(channel.handle, side);
        Some([view(0)?, view(1)?])
    }

    /// Asks both ends of these channels to move to the kernel path. Those that are not
    /// announced yet are announced first.
    pub fn downgrade_these(&mut self, channels: &[BothEnds], reason: Reason) -> Vec<Action> {
        let mut actions = Vec::new();
        for channel in channels {
            self.downgrade_or_note(channel.handle, reason, &mut actions);
        }
        actions
    }
}
