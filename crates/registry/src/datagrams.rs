//! Channels of UDP. Their sockets may stay while the kernel gives the datagrams to others: to one that is
//! bound more closely since, or to nobody, once the socket is connected elsewhere. No event tells of it.
//! So whoever calls is asked about each channel's ends again and again, some channels at a time, in turn.

use crate::links::ChannelRef;
use crate::{Action, Registry, SocketFacts, Witness};
use fordway_abi::control::Protocol;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Those that are looked at.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    live: BTreeSet<ChannelRef>,
    /// The last one that was looked at.
    last: ChannelRef,
}

impl Datagrams {
    /// A channel between such sockets begins, or goes on.
    pub(crate) fn begin(&mut self, channel: ChannelRef, end: &SocketFacts) {
        if end.protocol == Protocol::Udp {
            self.live.insert(channel);
        }
    }

    pub(crate) fn end(&mut self, channel: ChannelRef) {
        self.live.remove(&channel);
    }

    /// The next ones in turn.
    fn next(&mut self, most: usize) -> Vec<ChannelRef> {
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let (behind, before) = (self.live.range(behind), self.live.range(..=self.last));
        let next: Vec<ChannelRef> = behind.chain(before).take(most).copied().collect();
        self.last = next.last().copied().unwrap_or(0);
        next
    }
}

impl Registry {
    /// Whether there is anything to look at.
    pub fn has_datagrams(&self) -> bool {
        !self.datagrams.live.is_empty()
    }

    /// Has the witness look at both ends of some channels of UDP, `most` of them. Those of which an end is
    /// not what it was are downgraded, and not looked at again.
    pub fn look_at_datagrams(&mut self, most: usize, witness: &mut Witness<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        for channel_ref in self.datagrams.next(most) {
            let Some(channel) = self.channels.get(&channel_ref) else {
                continue;
            };
            if channel.downgrading.is_some() {
                self.datagrams.end(channel_ref);
                continue;
            }
            let ends = channel.ends.into_iter().flatten().filter(|end| !end.over);
            let mut lost = ends.filter_map(|end| {
                let conn = self.conn((end.process, end.conn_id))?;
                witness(end.process, &conn.facts).err()
            });
            let lost = lost.next();
            if let Some(reason) = lost {
                self.downgrade_or_note(channel_ref, reason, &mut actions);
            }
        }
        actions
    }
}
