//! What only one side has rejoined. The other process may never have heard of a channel (the
//! broker died between the two halves of its news), or may have died before it came back; in
//! either case the survivor would wait for it without end.
//!
//! ```text
//!   one end rejoined ──► alone ──the other end rejoins──────────────────────► whole
//!                          │
//!                          ├──the other end's socket is offered: it has no channel──► Downgrade
//!                          └──[`ALONE_NS_MAX`] have passed───────────────────────────► Downgrade
//! ```
//! The reason passes: the end offers its connection anew. A link of which the other side has
//! not come in that time takes no more channels; once it has none it is closed, and its
//! process told that the peer is gone. Who comes later than that finds itself alone, and goes
//! the same way.

use crate::links::{ChannelRef, LinkRef};
use crate::pairing::{Names, names};
use crate::{Action, Registry, SocketFacts};
use fordway_abi::reason::Reason;
use std::collections::{BTreeMap, BTreeSet};

/// How long what one side has rejoined waits for the other. A process comes back with its
/// first call that meets the library, at the latest half a second into a sleep there.
pub const ALONE_NS_MAX: u64 = 5_000_000_000;

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Waiting {
    Channel(ChannelRef),
    Link(LinkRef),
}

/// All that wait.
#[derive(Debug, Default)]
pub(crate) struct Alone {
    due: BTreeSet<(u64, Waiting)>,
    /// Channels by the names of the end that is there.
    by_names: BTreeMap<Names, ChannelRef>,
}

/// Of a channel that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    until_ns: u64,
    names: Names,
}

impl Registry {
    /// When [`Registry::on_time`] is to be called next, on the clock of `rejoin_*` and `insists`.
    pub fn next_ns(&self) -> Option<u64> {
        let alone = self.alone.due.first().map(|(until_ns, _)| *until_ns);
        let both = [alone, self.insisting.next_ns()];
        both.into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn on_time(&mut self, now_ns: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        self.refuse_overdue(now_ns, &mut actions);
        while let Some(&(until_ns, waiting)) = self.alone.due.first()
            && until_ns <= now_ns
        {
            self.alone.due.pop_first();
            match waiting {
                Waiting::Channel(channel) => self.end_alone(channel, &mut actions),
                Waiting::Link(link_ref) => {
                    if let Some(link) = self.links.get_mut(&link_ref) {
                        link.alone_until_ns = None;
                        link.overdue = true;
                    }
                    self.close_link_if_over(link_ref, &mut actions);
                }
            }
        }
        actions
    }

    /// The first end of a channel is back.
    pub(crate) fn channel_waits(
        &mut self,
        channel_ref: ChannelRef,
        facts: &SocketFacts,
        now_ns: u64,
    ) {
        let wait = Wait {
            until_ns: now_ns.saturating_add(ALONE_NS_MAX),
            names: names(facts),
        };
        if let Some(channel) = self.channels.get_mut(&channel_ref) {
            channel.alone = Some(wait);
            let due = (wait.until_ns, Waiting::Channel(channel_ref));
            self.alone.due.insert(due);
            self.alone.by_names.insert(wait.names, channel_ref);
        }
    }

    /// The other end is back, or the channel ends.
    pub(crate) fn channel_waits_no_more(&mut self, channel_ref: ChannelRef) {
        let channel = self.channels.get_mut(&channel_ref);
        let Some(wait) = channel.and_then(|channel| channel.alone.take()) else {
            return;
        };
        let due = (wait.until_ns, Waiting::Channel(channel_ref));
        self.alone.due.remove(&due);
        if self.alone.by_names.get(&wait.names) == Some(&channel_ref) {
            self.alone.by_names.remove(&wait.names);
        }
    }

    /// The first side of a link is back.
    pub(crate) fn link_waits(&mut self, link_ref: LinkRef, now_ns: u64) {
        if let Some(link) = self.links.get_mut(&link_ref) {
            let until_ns = now_ns.saturating_add(ALONE_NS_MAX);
            link.alone_until_ns = Some(until_ns);
            self.alone.due.insert((until_ns, Waiting::Link(link_ref)));
        }
    }

    /// The other side is back, or the link ends.
    pub(crate) fn link_waits_no_more(&mut self, link_ref: LinkRef) {
        let link = self.links.get_mut(&link_ref);
        if let Some(until_ns) = link.and_then(|link| link.alone_until_ns.take()) {
            self.alone.due.remove(&(until_ns, Waiting::Link(link_ref)));
        }
    }

    /// A socket was offered: its process knows of no channel. If the far end waits for one,
    /// it waits in vain.
    pub(crate) fn far_end_has_no_channel(
        &mut self,
        facts: &SocketFacts,
        actions: &mut Vec<Action>,
    ) {
        let waiting = self.mirrors(facts).into_iter().flatten();
        let waiting = waiting.filter_map(|names| self.alone.by_names.get(&names).copied());
        let mirror = waiting.into_iter().find(|channel| {
            let ends = self.channels.get(channel).map(|channel| channel.ends);
            let mut ends = ends.into_iter().flatten().flatten();
            ends.any(|end| {
                let far = self.conn((end.process, end.conn_id));
                far.is_some_and(|far| self.rule_holds(facts, &far.facts))
            })
        });
        if let Some(channel) = mirror {
            self.end_alone(channel, actions);
        }
    }

    pub(crate) fn end_alone(&mut self, channel_ref: ChannelRef, actions: &mut Vec<Action>) {
        self.downgrade_channel(channel_ref, Reason::Waiting, actions);
    }
}

#[cfg(test)]
impl Registry {
    /// Whether those that wait are those that say so.
    pub(crate) fn check_alone(&self) {
        let channels = self.channels.iter().filter_map(|(channel_ref, channel)| {
            let wait = channel.alone?;
            assert_eq!(channel.ends.iter().flatten().count(), 1);
            Some((wait.until_ns, Waiting::Channel(*channel_ref)))
        });
        let links = self.links.iter().filter_map(|(link_ref, link)| {
            assert!(link.sides[1].is_none() || link.alone_until_ns.is_none());
            Some((link.alone_until_ns?, Waiting::Link(*link_ref)))
        });
        let waiting: BTreeSet<_> = channels.chain(links).collect();
        assert_eq!(waiting, self.alone.due);
        for channel in self.alone.by_names.values() {
            assert!(self.channels[channel].alone.is_some());
        }
    }
}
