//! Offers and the rule by which two of them are one connection (see the crate).

use crate::counts::Counted;
use crate::cut_through::Way;
use crate::domains::guest_of_place;
use crate::links::{Channel, End};
use crate::policy::Gate;
use crate::processes::{Conn, ConnKey, ConnState, OnKernel};
use crate::{Action, ProcessId, Registry, SocketFacts, Translator, Witness};
use fordway_abi::control::{PathPolicy, Protocol};
use fordway_abi::reason::Reason;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// What a socket is looked up by: its protocol, its local name, its remote name, its namespace.
pub(crate) type Names = (Protocol, SocketAddr, SocketAddr, u64);

pub(crate) fn names(facts: &SocketFacts) -> Names {
    let SocketFacts { local, remote, .. } = *facts;
    (facts.protocol, local, remote, facts.netns_cookie)
}

/// The kernel takes it for the broadcast address of the loopback network.
const LOOPBACK_BROADCAST: Ipv4Addr = Ipv4Addr::new(127, 255, 255, 255);

impl Registry {
    /// A process offers a connected socket, or one end of a UDP pair, under its own number for it.
    ///
    /// It may do so again at any time: an offer that stands is left alone, one that
    /// went to the kernel path starts anew, another socket under the same number ends
    /// what was there.
    pub fn offer(&mut self, process: ProcessId, conn_id: u64, facts: SocketFacts) -> Vec<Action> {
        let (witness, gate) = (&mut |_, _: &_| Ok(()), &mut |_: &_, _: &_, _| None);
        self.offer_through(process, conn_id, facts, witness, gate, &mut |_| None)
    }

    /// As [`Registry::offer`]; before a channel is made, `witness` is asked about the older
    /// socket and `gate` about both. `translate` is asked where no offered socket mirrors this one.
    pub fn offer_through(
        &mut self,
        process: ProcessId,
        conn_id: u64,
        facts: SocketFacts,
        witness: &mut Witness<'_>,
        gate: &mut Gate<'_>,
        translate: &mut Translator<'_>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let key = (process, conn_id);
        if !self.processes.contains_key(&process) {
            return actions;
        }
        if self.is_to_stay(&facts) {
            self.reject(key, Reason::Asked, false, &mut actions);
            return actions;
        }
        if let Some(conn) = self.conn(key) {
            let stands = !matches!(conn.state, ConnState::Kernel(_));
            let offered = conn.facts.as_offered();
            let is_same = offered.cookie == facts.cookie
                && names(&offered) == names(&facts)
                && offered.shown.serves == facts.shown.serves;
            if stands && is_same {
                return actions;
            }
        }
        let served = self.served_by(&facts);
        self.end_conn(key, &mut actions);
        if !self.free_end(key, &facts, witness, &mut actions) {
            self.reject(key, Reason::Shared, false, &mut actions);
            return actions;
        }
        let Some(owner) = self.processes.get(&process) else {
            return actions;
        };
        if !owner.has_room_for_conn() {
            self.reject(key, Reason::NoMemory, false, &mut actions);
            return actions;
        }
        let facts = self.offered_as(key, &facts, served, witness, gate, &mut actions);
        let conn = Conn {
            facts,
            state: ConnState::Offered { told: None },
            served: None,
        };
        if let Some(owner) = self.processes.get_mut(&process) {
            owner.conns.insert(conn_id, conn);
        }
        self.by_end.insert(facts.end_id(), key);
        self.note_served_again(key, served);
        if let Some(reason) = unpairable(&facts) {
            self.turn_down(key, reason, &mut actions);
            return actions;
        }
        let stale = self.offers.insert(names(&facts), key);
        // Two sockets of one namespace cannot have the same names at the same time (but
        // for sockets bound to devices): the older one is closed and its report under way.
        if let Some(stale) = stale {
            self.turn_down(stale, Reason::NoPeer, &mut actions);
        }
        match self.find_partner(&facts, witness, translate, &mut actions) {
            Some((partner, table)) => {
                let ends = [key, partner];
                let (ends, table) = match facts.protocol {
                    Protocol::Unix => self.past_the_stack(ends, witness, gate, &mut actions),
                    _ => (Some(ends), table),
                };
                if let Some(ends) = ends {
                    self.pair_through(ends, table, gate, &mut actions);
                }
            }
            None => match self.way_to(&facts, gate, &mut actions) {
                Way::Made => {}
                Way::Refused(reason) => self.hold_back(key, reason, &mut actions),
                Way::Nobody => {
                    self.far_end_has_no_channel(&facts, &mut actions);
                    self.tell_alone(key, translate, &mut actions);
                }
            },
        }
        actions
    }

    /// Whether the administrator has sent this pair of UDP sockets to the kernel path: a program offers one
    /// again and again, for who has left a ring may have done so for a while only.
    fn is_to_stay(&self, facts: &SocketFacts) -> bool {
        let known = self.by_end.get(&facts.end_id());
        known.and_then(|key| self.conn(*key)).is_some_and(|conn| {
            let ConnState::Kernel(past) = conn.state else {
                return false;
            };
            facts.protocol == Protocol::Udp
                && past.reason == Reason::Asked
                && names(&conn.facts) == names(facts)
        })
    }

    /// A process says why a connected socket of its stays on the kernel path. It is listed, and
    /// nobody is told. `witness` is asked about whoever else has offered the socket.
    pub fn decline(
        &mut self,
        process: ProcessId,
        conn_id: u64,
        facts: SocketFacts,
        reason: Reason,
        witness: &mut Witness<'_>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let key = (process, conn_id);
        let has_channel = |conn: &Conn| matches!(conn.state, ConnState::Channel { .. });
        if self.conn(key).is_some_and(has_channel) {
            return actions;
        }
        self.end_conn(key, &mut actions);
        // Somebody else has it, and offers it.
        if !self.free_end(key, &facts, witness, &mut actions) {
            return actions;
        }
        let Some(owner) = self.processes.get_mut(&process) else {
            return actions;
        };
        let past = OnKernel::never_had_one(reason);
        let state = ConnState::Kernel(past);
        let served = None;
        let conn = Conn {
            facts,
            state,
            served,
        };
        owner.conns.insert(conn_id, conn);
        self.by_end.insert(facts.end_id(), key);
        self.remember_on_kernel(key, past);
        actions
    }

    /// Makes way for a new offer of an end, unless another connection of it is live.
    pub(crate) fn free_end(
        &mut self,
        key: ConnKey,
        facts: &SocketFacts,
        witness: &mut Witness<'_>,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(&holder) = self.by_end.get(&facts.end_id()) else {
            return true;
        };
        match self.conn(holder).map(|conn| (conn.state, conn.facts)) {
            Some((ConnState::Channel { .. }, _)) => return false,
            Some((ConnState::Offered { .. }, facts)) if holder.0 != key.0 => {
                match witness(holder.0, &facts) {
                    Ok(()) => return false,
                    // It has passed the socket on.
                    Err(reason) => {
                        self.turn_down(holder, reason, actions);
                        self.end_conn(holder, actions);
                    }
                }
            }
            // The same process under another number, or remembered only.
            _ => self.end_conn(holder, actions),
        }
        true
    }

    /// The offer that is the other end of this socket's connection, whose names mirror its names, or
    /// else the kernel has translated; with the namespace in whose table it was. Its socket is there now.
    pub(crate) fn find_partner(
        &mut self,
        facts: &SocketFacts,
        witness: &mut Witness<'_>,
        translate: &mut Translator<'_>,
        actions: &mut Vec<Action>,
    ) -> Option<(ConnKey, Option<u64>)> {
        if let Some(mirror) = self.live_partner_of(facts, witness, actions) {
            return Some((mirror, None));
        }
        let (partner, table) = self.partner_across(facts, witness, translate, actions)?;
        Some((partner, Some(table)))
    }

    /// The offer whose names mirror this socket's, and whose socket is there
    /// now. One whose socket is gone ends: the names may be another's since.
    pub(crate) fn live_partner_of(
        &mut self,
        facts: &SocketFacts,
        witness: &mut Witness<'_>,
        actions: &mut Vec<Action>,
    ) -> Option<ConnKey> {
        // Each turn has an offer less.
        while let Some(partner) = self.partner_of(facts) {
            let shown = self.conn(partner)?.facts;
            match witness(partner.0, &shown) {
                Ok(()) => return Some(partner),
                Err(reason) => self.turn_down(partner, reason, actions),
            }
        }
        None
    }

    /// The offer that is the other end of this socket's connection, by what it was.
    pub(crate) fn partner_of(&self, facts: &SocketFacts) -> Option<ConnKey> {
        let offers = self.mirrors(facts).into_iter().flatten();
        offers
            .filter_map(|names| self.offers.get(&names))
            .copied()
            .find(|key| {
                let other = self.conn(*key);
                other.is_some_and(|other| self.rule_holds(facts, &other.facts))
            })
    }

    /// What the other end of this socket's connection is looked up by: in its own namespace,
    /// and in that which has the remote address; each only where the rule can hold.
    pub(crate) fn mirrors(&self, facts: &SocketFacts) -> [Option<Names>; 2] {
        let [near, far] = [facts.local, facts.remote].map(|name| self.domains.owner_of(name.ip()));
        let own = Some(facts.netns_cookie);
        let here = own.filter(|_| {
            let mut both = [facts.local, facts.remote].into_iter();
            both.all(|name| self.may_be_of(facts, name))
        });
        let there = far.filter(|_| near == own);
        [here, there].map(|netns| Some((facts.protocol, facts.remote, facts.local, netns?)))
    }

    /// Whether a name can be one of two sockets' in the namespace of this one.
    fn may_be_of(&self, end: &SocketFacts, name: SocketAddr) -> bool {
        match self.domains.owner_of(name.ip()) {
            Some(owner) => owner == end.netns_cookie,
            // The kernel names the receiver of datagrams to any address, were it nobody's.
            None => end.protocol != Protocol::Udp || name.ip().is_loopback(),
        }
    }

    /// Whether two sockets may have a channel: by their names, or if the table of this namespace
    /// has joined them.
    pub fn may_be_joined(&self, a: &SocketFacts, b: &SocketFacts, table: Option<u64>) -> bool {
        match table {
            None => self.rule_holds(a, b),
            Some(table) => self.translation_holds(a, b, table),
        }
    }

    /// Whether two sockets are the two ends of one connection by their names.
    pub(crate) fn rule_holds(&self, a: &SocketFacts, b: &SocketFacts) -> bool {
        let owner = |end: &SocketFacts| self.domains.owner_of(end.local.ip());
        let owns = |end: &SocketFacts| owner(end) == Some(end.netns_cookie);
        let is_named = |end: &SocketFacts| {
            guest_of_place(end.netns_cookie).is_none() || self.is_for_this_guest(end)
        };
        let mirrored = a.protocol == b.protocol
            && a.local == b.remote
            && a.remote == b.local
            && a.cookie != b.cookie
            && is_named(a)
            && is_named(b);
        let together = a.netns_cookie == b.netns_cookie
            && [a, b].iter().all(|end| self.may_be_of(end, end.local));
        mirrored && (together || (owns(a) && owns(b)))
    }

    /// `table`: as in [`Registry::find_partner`].
    pub(crate) fn pair(
        &mut self,
        [a, b]: [ConnKey; 2],
        table: Option<u64>,
        actions: &mut Vec<Action>,
    ) {
        let (Some(conn_a), Some(conn_b)) = (self.conn(a).copied(), self.conn(b).copied()) else {
            return;
        };
        debug_assert!(self.may_be_joined(&conn_a.facts, &conn_b.facts, table));
        self.take_offer_down(a, &conn_a.facts);
        self.take_offer_down(b, &conn_b.facts);
        let Some((link_ref, side_a, slot, generation)) = self.link_with_slot(a.0, b.0, actions)
        else {
            for key in [a, b] {
                self.reject(key, Reason::NoMemory, false, actions);
                self.remember_on_kernel(key, OnKernel::never_had_one(Reason::NoMemory));
            }
            return;
        };
        let channel_ref = self.new_id();
        let mut ends = [None; 2];
        for (key, side) in [(a, side_a), (b, 1 - side_a)] {
            ends[side] = Some(End {
                process: key.0,
                conn_id: key.1,
                over: false,
            });
            if let Some(conn) = self.conn_mut(key) {
                conn.state = ConnState::Channel {
                    channel: channel_ref,
                    side,
                };
            }
        }
        let channel = Channel {
            id: channel_ref,
            link: link_ref,
            slot,
            generation,
            ends,
            downgrading: None,
            alone: None,
            table,
            counted: Counted::default(),
        };
        self.counts.paired += 1;
        self.channels.insert(channel_ref, channel);
        self.datagrams.begin(channel_ref, &conn_a.facts);
        let Some(link) = self.links.get_mut(&link_ref) else {
            return;
        };
        link.channels.insert(slot, channel_ref);
        match link.ready {
            true => self.announce(channel_ref, actions),
            false => link.waiting.push(channel_ref),
        }
    }

    /// What is said of an offer that found no partner yet. Silence means waiting.
    ///
    /// It follows from the socket and from the assigned addresses alone. Anybody can build
    /// mirrored names in a namespace of his own: he must not learn whether a connection of these
    /// names exists, and its ends must not hear of him.
    fn tell_alone(
        &mut self,
        key: ConnKey,
        translate: &mut Translator<'_>,
        actions: &mut Vec<Action>,
    ) {
        let Some(facts) = &self.conn(key).map(|conn| conn.facts) else {
            return;
        };
        let insists = self.insists_on(key);
        let reason = match self.mirrors(facts) {
            [None, None] => Reason::Unassigned,
            _ if insists && !self.far_end_possible(facts) => Reason::NoPeer,
            _ => return,
        };
        if self.is_led_on(facts, translate) {
            return;
        }
        if insists {
            return self.turn_down(key, reason, actions);
        }
        if let Some(conn) = self.conn_mut(key) {
            conn.state = ConnState::Offered { told: Some(reason) };
        }
        self.reject(key, reason, true, actions);
    }

    /// Whether a connection is to have rings or fail. Datagrams may go by the kernel at any time.
    pub(crate) fn insists_on(&self, key: ConnKey) -> bool {
        let is_tcp = |conn: &Conn| conn.facts.protocol == Protocol::Tcp;
        self.policy(key.0) == Some(PathPolicy::Fast) && self.conn(key).is_some_and(is_tcp)
    }

    /// Whether any namespace that the rule allows can hold the far end.
    fn far_end_possible(&self, facts: &SocketFacts) -> bool {
        let [local, remote] = [facts.local.ip(), facts.remote.ip()];
        local == remote || remote.is_loopback() || self.domains.owner_of(remote).is_some()
    }

    /// Ends an offer for good.
    pub(crate) fn turn_down(&mut self, key: ConnKey, reason: Reason, actions: &mut Vec<Action>) {
        if let Some(conn) = self.conn(key).copied() {
            self.take_offer_down(key, &conn.facts);
        }
        self.reject(key, reason, false, actions);
        self.remember_on_kernel(key, OnKernel::never_had_one(reason));
    }

    pub(crate) fn take_offer_down(&mut self, key: ConnKey, facts: &SocketFacts) {
        self.insisting.remove(key);
        if self.offers.get(&names(facts)) == Some(&key) {
            self.offers.remove(&names(facts));
        }
    }

    /// Downgrades the channels for which the rule does not hold any more.
    pub(crate) fn downgrade_unassigned(&mut self) -> Vec<Action> {
        let facts = |end: &End| self.conn((end.process, end.conn_id)).map(|conn| conn.facts);
        let lost: Vec<_> = self
            .channels
            .iter()
            .filter(|(_, channel)| channel.downgrading.is_none())
            .filter(|(_, channel)| match &channel.ends {
                [Some(a), Some(b)] if !a.over && !b.over => match (facts(a), facts(b)) {
                    (Some(a), Some(b)) => !self.may_be_joined(&a, &b, channel.table),
                    _ => false,
                },
                _ => false,
            })
            .map(|(channel, _)| *channel)
            .collect();
        let mut actions = Vec::new();
        for channel in lost {
            self.downgrade_channel(channel, Reason::Unassigned, &mut actions);
        }
        actions
    }
}

/// Why a socket can have no partner whatever comes.
fn unpairable(facts: &SocketFacts) -> Option<Reason> {
    // Connected to itself (RFC 9293, 3.5, simultaneous open with one socket).
    if facts.local == facts.remote {
        return Some(Reason::Unsupported);
    }
    // A datagram to many is no pair's, and both names of one are of one family.
    let to_many = |name: SocketAddr| {
        let ip = name.ip();
        let broadcasts = [Ipv4Addr::BROADCAST, LOOPBACK_BROADCAST].map(IpAddr::V4);
        ip.is_multicast() || ip.is_unspecified() || broadcasts.contains(&ip)
    };
    let (local, remote) = (facts.local, facts.remote);
    let is_of_two = !to_many(local) && !to_many(remote) && local.is_ipv4() == remote.is_ipv4();
    if facts.protocol == Protocol::Udp && !is_of_two {
        return Some(Reason::Unsupported);
    }
    // Link-local addresses are not unique in a namespace: each device has its own.
    let ambiguous = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_unspecified(),
    };
    let unsure = ambiguous(facts.local.ip()) || ambiguous(facts.remote.ip());
    unsure.then_some(Reason::NoPeer)
}
