//! Links and channels that an earlier broker made. The two processes kept them while
//! no broker was there; each shows its side, and what both show is known again under
//! its old numbers. Nothing is believed for that: a channel's sockets are read anew,
//! and the rule of pairing must still hold.

use crate::counts::Counted;
use crate::links::{Channel, End, LinkRef, Side};
use crate::processes::{Conn, ConnState, OnKernel};
use crate::{
    Action, LINKS_MAX, Outgoing, ProcessId, Registry, SocketFacts, Translator, Violation, Witness,
};
use fordway_abi::control;
use fordway_abi::reason::Reason;
use fordway_abi::shm::{DOOR_COUNT, SLOT_COUNT};

impl Registry {
    /// A process shows its side of a link; its region was checked.
    pub fn rejoin_link(
        &mut self,
        process: ProcessId,
        shown: control::RejoinLink,
        now_ns: u64,
    ) -> Result<Vec<Action>, Violation> {
        let owner = self.processes.get(&process).ok_or(Violation::RejoinLink)?;
        let overdue = &owner.links_overdue;
        if owner.links.contains_key(&shown.link_id) || overdue.contains(&shown.link_id) {
            return Err(Violation::RejoinLink);
        }
        if !owner.has_room_for_link() || overdue.len() >= LINKS_MAX {
            return Err(Violation::TooManyLinks);
        }
        let own = Side {
            process,
            link_id: shown.link_id,
            region: true,
            gone: false,
        };
        // Only the two processes know the key. If the second side is taken already, one
        // of them cheats the other: whoever comes third stays alone, and unharmed.
        let half = self.links_by_key.get(&shown.link_key).copied();
        let half = half.filter(|link_ref| {
            let link = self.links.get(link_ref);
            link.is_some_and(|link| link.sides[1].is_none() && !link.dead())
        });
        let mut actions = Vec::new();
        let (link_ref, side) = match half {
            Some(link_ref) => {
                if let Some(link) = self.links.get_mut(&link_ref) {
                    link.sides[1] = Some(own);
                    link.ready = true;
                    link.overdue = false;
                }
                self.link_waits_no_more(link_ref);
                (link_ref, 1)
            }
            None => {
                let link_ref = self.adopt_link(shown.link_key, own);
                self.link_waits(link_ref, now_ns);
                (link_ref, 0)
            }
        };
        if let Some(owner) = self.processes.get_mut(&process) {
            owner.links.insert(shown.link_id, (link_ref, side));
        }
        self.exchange_doors(link_ref, &mut actions);
        Ok(actions)
    }

    /// Each side gets the doorbells of the other. Over a link that was rejoined they have
    /// most of them, but an earlier broker may have died between the two halves of one.
    pub(crate) fn exchange_doors(&self, link_ref: LinkRef, actions: &mut Vec<Action>) {
        let Some([Some(a), Some(b)]) = self.links.get(&link_ref).map(|link| link.sides) else {
            return;
        };
        for (own, peer) in [(a, b), (b, a)] {
            let doors = self.processes.get(&own.process).map_or(0, |p| p.doors);
            for door in (0..DOOR_COUNT as u64).filter(|door| doors >> door & 1 == 1) {
                actions.push(Action::Doorbell {
                    sleeper: own.process,
                    sleeper_link_id: own.link_id,
                    knocker: peer.process,
                    knocker_link_id: peer.link_id,
                    door,
                });
            }
        }
    }

    /// A process shows its end of a channel; `facts` are those of its socket. `witness` is
    /// asked about the end that came first, `translate` if the ends' names do not mirror each other.
    pub fn rejoin_channel(
        &mut self,
        process: ProcessId,
        shown: control::RejoinChannel,
        facts: SocketFacts,
        now_ns: u64,
        witness: &mut Witness<'_>,
        translate: &mut Translator<'_>,
    ) -> Result<Vec<Action>, Violation> {
        let broken = Violation::RejoinChannel;
        let key = (process, shown.conn_id);
        let mut actions = Vec::new();
        let owner = self.processes.get(&process).ok_or(broken)?;
        if owner.links_overdue.contains(&shown.link_id) {
            return Ok(vec![not_again(process, &shown, Reason::Waiting)]);
        }
        let &(link_ref, side) = owner.links.get(&shown.link_id).ok_or(broken)?;
        let link = self.links.get(&link_ref).ok_or(broken)?;
        let slot_fits = (shown.slot as usize) < SLOT_COUNT;
        if !link.rejoined || !slot_fits || owner.conns.contains_key(&shown.conn_id) {
            return Err(broken);
        }
        let has_room = owner.has_room_for_conn();
        let existing = link.channels.get(&shown.slot).copied();
        let taken = existing.and_then(|channel| self.channels.get(&channel));
        if taken.is_some_and(|channel| channel.ends[side].is_some()) {
            return Err(broken);
        }
        let refused = match self.free_end(key, &facts, witness, &mut actions) {
            false => Some(Reason::Shared),
            true if !has_room => Some(Reason::NoMemory),
            true => None,
        };
        if let Some(reason) = refused {
            actions.push(not_again(process, &shown, reason));
            return Ok(actions);
        }

        let channel_ref = match existing {
            Some(channel_ref) => channel_ref,
            None => {
                let channel_ref = self.new_id();
                let channel = Channel {
                    id: shown.channel_id,
                    link: link_ref,
                    slot: shown.slot,
                    generation: shown.generation,
                    ends: [None; 2],
                    downgrading: None,
                    alone: None,
                    table: None,
                    // It counted with the broker that paired it.
                    counted: Counted::ELSEWHERE,
                };
                self.channels.insert(channel_ref, channel);
                if let Some(link) = self.links.get_mut(&link_ref) {
                    link.channels.insert(shown.slot, channel_ref);
                }
                channel_ref
            }
        };
        self.by_end.insert(facts.end_id(), key);
        self.datagrams.begin(channel_ref, &facts);
        let state = ConnState::Channel {
            channel: channel_ref,
            side,
        };
        if let Some(owner) = self.processes.get_mut(&process) {
            let served = None;
            let conn = Conn {
                facts,
                state,
                served,
            };
            owner.conns.insert(shown.conn_id, conn);
        }
        let mut asked = None;
        let other = self.channels.get_mut(&channel_ref).and_then(|channel| {
            channel.ends[side] = Some(End {
                process,
                conn_id: shown.conn_id,
                over: false,
            });
            asked = channel.downgrading;
            channel.ends[1 - side]
        });
        let Some(other) = other else {
            // The other process may have been quicker, and know of no channel.
            match self.partner_of(&facts) {
                Some(_) => self.end_alone(channel_ref, &mut actions),
                None => self.channel_waits(channel_ref, &facts, now_ns),
            }
            return Ok(actions);
        };
        self.channel_waits_no_more(channel_ref);
        let table = self.joins(&facts, &other, translate);
        if let Some(channel) = self.channels.get_mut(&channel_ref) {
            channel.table = table;
        }
        if let Some(reason) = self.why_not_again(channel_ref, &shown, &facts, &other, witness) {
            self.downgrade_channel(channel_ref, reason, &mut actions);
            // An end that knows the channel under another number would not listen.
            if reason == Reason::Protocol {
                self.remember_on_kernel(key, OnKernel::never_had_one(reason));
                self.end_over(channel_ref, side, &mut actions);
            }
        } else if let Some(reason) = asked {
            actions.push(not_again(process, &shown, reason));
        }
        Ok(actions)
    }

    /// The table by which two ends are one connection that are not by their names.
    fn joins(
        &self,
        facts: &SocketFacts,
        other: &End,
        translate: &mut Translator<'_>,
    ) -> Option<u64> {
        let other = self.conn((other.process, other.conn_id))?.facts;
        match self.rule_holds(facts, &other) {
            true => None,
            false => self.joined_in(facts, &other, translate),
        }
    }

    /// Why a channel that both ends show is not the one it was.
    fn why_not_again(
        &self,
        channel_ref: u64,
        shown: &control::RejoinChannel,
        facts: &SocketFacts,
        other: &End,
        witness: &mut Witness<'_>,
    ) -> Option<Reason> {
        let channel = self.channels.get(&channel_ref)?;
        if channel.id != shown.channel_id || channel.generation != shown.generation {
            return Some(Reason::Protocol);
        }
        let process = other.process;
        let other = self.conn((process, other.conn_id))?;
        match self.may_be_joined(facts, &other.facts, channel.table) {
            true => witness(process, &other.facts).err(),
            false => Some(Reason::Unassigned),
        }
    }
}

/// An end that shows itself is to leave its channel.
fn not_again(process: ProcessId, shown: &control::RejoinChannel, reason: Reason) -> Action {
    let message = Outgoing::Downgrade(control::Downgrade {
        channel_id: shown.channel_id,
        reason: reason as u32,
        pad: 0,
    });
    Action::Send {
        to: process,
        message,
    }
}
