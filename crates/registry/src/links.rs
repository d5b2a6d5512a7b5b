//! Links, their slots, and the channels cut from them.

use crate::alone::Wait;
use crate::counts::Counted;
use crate::{Action, LinkSide, Outgoing, ProcessId, Registry};
use fordway_abi::shm::{GUEST_SLOT_COUNT, SLOT_COUNT};
use fordway_abi::{control, reason::Reason};
use std::collections::{BTreeMap, BTreeSet};

/// Our own handle of a link (its two sides have numbers of their own).
pub(crate) type LinkRef = u64;
/// Our own handle of a channel; equals its number unless it was rejoined.
pub(crate) type ChannelRef = u64;

/// One process's side of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub(crate) process: ProcessId,
    /// The process's number for the link.
    pub(crate) link_id: u64,
    /// Its region has arrived.
    pub(crate) region: bool,
    /// The process is gone.
    pub(crate) gone: bool,
}

/// What two processes share.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) key: [u8; 16],
    /// A side is `None` only until the second side of a rejoined link shows up.
    pub(crate) sides: [Option<Side>; 2],
    /// `Peer` was sent to both (for a rejoined link: both are back).
    pub(crate) ready: bool,
    pub(crate) rejoined: bool,
    /// Until when it waits for its second side.
    pub(crate) alone_until_ns: Option<u64>,
    /// The second side did not come in time.
    pub(crate) overdue: bool,
    slots: Slots,
    /// Channels whose `Pair` waits for both regions.
    pub(crate) waiting: Vec<ChannelRef>,
    pub(crate) channels: BTreeMap<u32, ChannelRef>,
}

impl Link {
    pub(crate) fn dead(&self) -> bool {
        self.sides.iter().flatten().any(|side| side.gone)
    }
}

/// Slots of a link: lowest free first, each with the generation it was last used with.
#[derive(Debug, Default)]
struct Slots {
    generations: Vec<u32>,
    free: BTreeSet<u32>,
}

impl Slots {
    /// One below `limit`.
    fn take(&mut self, limit: usize) -> Option<(u32, u32)> {
        let slot = match self.free.pop_first() {
            Some(slot) => slot,
            None if self.generations.len() < limit => {
                self.generations.push(0);
                self.generations.len() as u32 - 1
            }
            None => return None,
        };
        let generation = &mut self.generations[slot as usize];
        *generation += 1;
        Some((slot, *generation))
    }

    fn give_back(&mut self, slot: u32) {
        // A slot whose generation cannot rise any more is not handed out again.
        match self.generations.get(slot as usize) {
            Some(&generation) if generation < u32::MAX => {
                self.free.insert(slot);
            }
            _ => {}
        }
    }
}

/// One end of a channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) process: ProcessId,
    pub(crate) conn_id: u64,
    /// The process has said that it is done with it, or is gone.
    pub(crate) over: bool,
}

/// A connected pair of sockets, with an endpoint at the same slot of both regions.
#[derive(Debug)]
pub(crate) struct Channel {
    /// The number that both processes know.
    pub(crate) id: u64,
    pub(crate) link: LinkRef,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    /// By side of the link. `None` only while the other end has not rejoined.
    pub(crate) ends: [Option<End>; 2],
    /// Why a downgrade was asked for.
    pub(crate) downgrading: Option<Reason>,
    /// Whose table has joined its ends, if addresses were translated between them.
    pub(crate) table: Option<u64>,
    /// It waits for its other end.
    pub(crate) alone: Option<Wait>,
    /// What it was counted for.
    pub(crate) counted: Counted,
}

impl Registry {
    /// A link between two processes that has a free slot, made if need be, with the
    /// slot taken: the link, the side of `a`, slot and generation. `None`: too many links.
    pub(crate) fn link_with_slot(
        &mut self,
        a: ProcessId,
        b: ProcessId,
        actions: &mut Vec<Action>,
    ) -> Option<(LinkRef, usize, u32, u32)> {
        let of_guests = [a, b].iter().any(|process| self.is_of_guest(*process));
        let limit = if of_guests {
            GUEST_SLOT_COUNT
        } else {
            SLOT_COUNT
        };
        let between = (a.min(b), a.max(b));
        for &link_ref in self.links_between.get(&between).into_iter().flatten() {
            let Some(link) = self.links.get_mut(&link_ref) else {
                continue;
            };
            if link.rejoined || link.dead() {
                continue;
            }
            if let Some((slot, generation)) = link.slots.take(limit) {
                let side_of_a = link
                    .sides
                    .iter()
                    .position(|side| side.is_some_and(|s| s.process == a));
                return Some((link_ref, side_of_a?, slot, generation));
            }
        }
        let link_ref = self.make_link(a, b, actions)?;
        let (slot, generation) = self.links.get_mut(&link_ref)?.slots.take(limit)?;
        Some((link_ref, 0, slot, generation))
    }

    /// Who is at the other side of a process's link, and its number for it.
    pub fn far_side(&self, process: ProcessId, link_id: u64) -> Option<LinkSide> {
        let &(link, side) = self.processes.get(&process)?.links.get(&link_id)?;
        let far = self.links.get(&link)?.sides[1 - side]?;
        Some(LinkSide {
            process: far.process,
            link_id: far.link_id,
        })
    }

    /// A side of a link that is not ready cannot be had: what waits for the link is turned down, and it is forgotten.
    pub fn link_failed(&mut self, process: ProcessId, link_id: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        let owner = self.processes.get(&process);
        let Some(&(link_ref, _)) = owner.and_then(|owner| owner.links.get(&link_id)) else {
            return actions;
        };
        let Some(link) = self.links.get_mut(&link_ref).filter(|link| !link.ready) else {
            return actions;
        };
        link.overdue = true;
        for channel in std::mem::take(&mut link.waiting) {
            for side in [0, 1] {
                self.cancel_other_end(channel, side, Reason::NoMemory, &mut actions);
            }
        }
        self.close_link_if_over(link_ref, &mut actions);
        actions
    }

    /// The processes at the other sides of a process's links.
    pub fn far_processes_of(&self, process: ProcessId) -> impl Iterator<Item = ProcessId> + '_ {
        let links = self.processes.get(&process).map(|process| &process.links);
        let links = links.into_iter().flat_map(|links| links.values());
        links.filter_map(|(link, side)| Some(self.links.get(link)?.sides[1 - side]?.process))
    }

    /// A new link, `a` on side 0; both sides are asked for their regions.
    fn make_link(
        &mut self,
        a: ProcessId,
        b: ProcessId,
        actions: &mut Vec<Action>,
    ) -> Option<LinkRef> {
        let room = |process| {
            self.processes
                .get(&process)
                .is_some_and(|p| p.has_room_for_link())
        };
        if !room(a) || !room(b) {
            return None;
        }
        let link_ref = self.new_id();
        let key = (self.keys)();
        let mut sides = [None; 2];
        for (side, process) in [a, b].into_iter().enumerate() {
            let link_id = self.new_id();
            sides[side] = Some(Side {
                process,
                link_id,
                region: false,
                gone: false,
            });
            if let Some(owner) = self.processes.get_mut(&process) {
                owner.links.insert(link_id, (link_ref, side));
            }
            let message = Outgoing::Link(control::Link {
                link_id,
                link_key: key,
            });
            actions.push(Action::Send {
                to: process,
                message,
            });
        }
        let link = Link {
            key,
            sides,
            ready: false,
            rejoined: false,
            alone_until_ns: None,
            overdue: false,
            slots: Slots::default(),
            waiting: Vec::new(),
            channels: BTreeMap::new(),
        };
        self.links.insert(link_ref, link);
        let between = (a.min(b), a.max(b));
        self.links_between
            .entry(between)
            .or_default()
            .push(link_ref);
        Some(link_ref)
    }

    /// A link of which one side came back.
    pub(crate) fn adopt_link(&mut self, key: [u8; 16], first: Side) -> LinkRef {
        let link_ref = self.new_id();
        let link = Link {
            key,
            sides: [Some(first), None],
            ready: false,
            rejoined: true,
            alone_until_ns: None,
            overdue: false,
            slots: Slots::default(),
            waiting: Vec::new(),
            channels: BTreeMap::new(),
        };
        self.links.insert(link_ref, link);
        self.links_by_key.insert(key, link_ref);
        link_ref
    }

    /// Sends the `Pair`s of one channel.
    pub(crate) fn announce(&self, channel_ref: ChannelRef, actions: &mut Vec<Action>) {
        let Some(channel) = self.channels.get(&channel_ref) else {
            return;
        };
        let Some(link) = self.links.get(&channel.link) else {
            return;
        };
        for (end, side) in channel.ends.iter().zip(&link.sides) {
            let (Some(end), Some(side)) = (end, side) else {
                continue;
            };
            let conn = self.conn((end.process, end.conn_id));
            let cuts_through = conn.is_some_and(|conn| conn.facts.shown.pair.is_some());
            let message = Outgoing::Pair(control::Pair {
                conn_id: end.conn_id,
                channel_id: channel.id,
                link_id: side.link_id,
                slot: channel.slot,
                generation: channel.generation,
                cuts_through: cuts_through.into(),
                pad: 0,
            });
            actions.push(Action::Send {
                to: end.process,
                message,
            });
            if let Some(reason) = channel.downgrading {
                actions.push(Action::Send {
                    to: end.process,
                    message: Outgoing::Downgrade(control::Downgrade {
                        channel_id: channel.id,
                        reason: reason as u32,
                        pad: 0,
                    }),
                });
            }
        }
    }

    /// Asks both ends of a channel to move it to the kernel path.
    pub(crate) fn downgrade_channel(
        &mut self,
        channel_ref: ChannelRef,
        reason: Reason,
        actions: &mut Vec<Action>,
    ) {
        self.channel_waits_no_more(channel_ref);
        let Some(channel) = self.channels.get_mut(&channel_ref) else {
            return;
        };
        channel.downgrading = Some(reason);
        for end in channel.ends.iter().flatten().filter(|end| !end.over) {
            let message = Outgoing::Downgrade(control::Downgrade {
                channel_id: channel.id,
                reason: reason as u32,
                pad: 0,
            });
            actions.push(Action::Send {
                to: end.process,
                message,
            });
        }
    }

    /// The same, also if its ends were not told of the channel yet: they are asked behind that.
    pub(crate) fn downgrade_or_note(
        &mut self,
        channel_ref: ChannelRef,
        reason: Reason,
        actions: &mut Vec<Action>,
    ) {
        if self.is_announced(channel_ref) {
            self.downgrade_channel(channel_ref, reason, actions);
        } else if let Some(channel) = self.channels.get_mut(&channel_ref) {
            // `announce` sends it.
            channel.downgrading = Some(reason);
        }
    }

    /// Marks one end as over; frees the slot when that was the last one.
    pub(crate) fn end_over(
        &mut self,
        channel_ref: ChannelRef,
        side: usize,
        actions: &mut Vec<Action>,
    ) {
        let Some(channel) = self.channels.get_mut(&channel_ref) else {
            return;
        };
        if let Some(end) = &mut channel.ends[side] {
            end.over = true;
        }
        if channel.ends.iter().flatten().all(|end| end.over) {
            self.free_channel(channel_ref, actions);
        }
    }

    fn free_channel(&mut self, channel_ref: ChannelRef, actions: &mut Vec<Action>) {
        self.channel_waits_no_more(channel_ref);
        let Some(channel) = self.channels.remove(&channel_ref) else {
            return;
        };
        self.datagrams.end(channel_ref);
        if let Some(link) = self.links.get_mut(&channel.link) {
            link.channels.remove(&channel.slot);
            link.waiting.retain(|waiting| *waiting != channel_ref);
            link.slots.give_back(channel.slot);
        }
        self.close_link_if_over(channel.link, actions);
    }

    /// Forgets a link that can serve nobody any more: one side is gone, or has not come
    /// back, and no channel of the other is left.
    pub(crate) fn close_link_if_over(&mut self, link_ref: LinkRef, actions: &mut Vec<Action>) {
        let Some(link) = self.links.get(&link_ref) else {
            return;
        };
        if !(link.dead() || link.overdue) || !link.channels.is_empty() {
            return;
        }
        self.link_waits_no_more(link_ref);
        let Some(link) = self.links.remove(&link_ref) else {
            return;
        };
        if link.rejoined {
            self.links_by_key.remove(&link.key);
        }
        let mut members = Vec::new();
        for side in link.sides.iter().flatten() {
            members.push(side.process);
            if let Some(process) = self.processes.get_mut(&side.process) {
                process.links.remove(&side.link_id);
                // It was asked for a region that it may still send.
                if !side.region {
                    process.regions_unwanted.insert(side.link_id);
                }
                // It may be about to rejoin channels over it.
                if link.overdue {
                    process.links_overdue.insert(side.link_id);
                }
            }
            if link.overdue && !side.gone {
                actions.push(Action::Send {
                    to: side.process,
                    message: Outgoing::PeerGone(control::PeerGone {
                        link_id: side.link_id,
                    }),
                });
            }
            actions.push(Action::LinkClosed {
                process: side.process,
                link_id: side.link_id,
            });
        }
        if let [a, b] = members[..] {
            let between = (a.min(b), a.max(b));
            if let Some(list) = self.links_between.get_mut(&between) {
                list.retain(|other| *other != link_ref);
                if list.is_empty() {
                    self.links_between.remove(&between);
                }
            }
        }
    }
}
