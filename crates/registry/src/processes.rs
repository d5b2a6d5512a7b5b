//! Processes: their connections, doorbells, reports and death.

use crate::domains::guest_of_place;
use crate::links::{ChannelRef, LinkRef};
use crate::pairing::Names;
use crate::{Action, Outgoing, ProcessId, Registry, SocketFacts, UNKNOWN_DOMAIN, Violation};
use fordway_abi::control::{self, PathPolicy, Protocol, status};
use fordway_abi::{reason::Reason, shm::DOOR_COUNT};
use std::collections::{BTreeMap, BTreeSet};

/// Most connections that a process can have with the registry (offered or with a channel).
pub const OFFERS_MAX: usize = 65_536;
/// Most links of a process.
pub const LINKS_MAX: usize = 4096;
/// How many connections that went to the kernel path are remembered with their reason
/// for each process; they are shown in listings and matter for nothing else.
pub const KERNEL_REMEMBERED_MAX: usize = 4096;

/// A process and its own number for a connection.
pub(crate) type ConnKey = (ProcessId, u64);

/// A connection as one process holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conn {
    /// As it is paired: of a pair with a stack, perhaps by the connection that is served.
    pub(crate) facts: SocketFacts,
    pub(crate) state: ConnState,
    /// Of a pair with a stack: that connection, once the stack has told of it.
    pub(crate) served: Option<Names>,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnState {
    /// Waits for its mirror image; `told` is the last reason it was given.
    Offered { told: Option<Reason> },
    /// Has a channel.
    Channel { channel: ChannelRef, side: usize },
    /// On the kernel path; kept for listings.
    Kernel(OnKernel),
}

/// What is remembered of a connection on the kernel path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnKernel {
    pub(crate) reason: Reason,
    /// The channel it had; 0 if none.
    pub(crate) channel_id: u64,
    pub(crate) ring_bytes_tx: u64,
    pub(crate) ring_bytes_rx: u64,
    /// Of UDP: the other end of that channel.
    pub(crate) far: Option<ConnKey>,
}

impl OnKernel {
    pub(crate) fn never_had_one(reason: Reason) -> Self {
        Self {
            reason,
            channel_id: 0,
            ring_bytes_tx: 0,
            ring_bytes_rx: 0,
            far: None,
        }
    }
}

/// A process that speaks to the broker.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) netns_cookie: u64,
    pub(crate) policy: PathPolicy,
    pub(crate) conns: BTreeMap<u64, Conn>,
    /// Those of `conns` that are on the kernel path.
    pub(crate) on_kernel: BTreeSet<u64>,
    /// By the process's number: the link and which side of it.
    pub(crate) links: BTreeMap<u64, (LinkRef, usize)>,
    /// Links that ended before the region that was asked for came.
    pub(crate) regions_unwanted: BTreeSet<u64>,
    /// Rejoined links that were closed because the other side did not come.
    pub(crate) links_overdue: BTreeSet<u64>,
    /// Bit i: doorbell i is there.
    pub(crate) doors: u64,
}

impl Process {
    pub(crate) fn has_room_for_link(&self) -> bool {
        self.links.len() + self.regions_unwanted.len() < LINKS_MAX
    }

    pub(crate) fn has_room_for_conn(&self) -> bool {
        self.conns.len() - self.on_kernel.len() < OFFERS_MAX
    }
}

/// How a connection leaves its offer or channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    /// As the two sides agreed through the rings, or by closing.
    Agreed,
    /// Without the other side's knowledge.
    Alone,
    /// Its process is gone.
    Death,
}

impl Registry {
    /// A process has said hello; returns its number and that of its domain.
    pub fn add_process(&mut self, netns_cookie: u64, policy: PathPolicy) -> (ProcessId, u32) {
        let id = ProcessId(self.new_id());
        let process = Process {
            netns_cookie,
            policy,
            conns: BTreeMap::new(),
            on_kernel: BTreeSet::new(),
            links: BTreeMap::new(),
            regions_unwanted: BTreeSet::new(),
            links_overdue: BTreeSet::new(),
            doors: 1,
        };
        self.processes.insert(id, process);
        let domain = self.domain_of_netns(netns_cookie);
        (id, domain.map_or(UNKNOWN_DOMAIN, |domain| domain.id))
    }

    /// Whether a process is another guest's ([`crate::place_of_guest`]).
    pub fn is_of_guest(&self, process: ProcessId) -> bool {
        let process = self.processes.get(&process);
        process.is_some_and(|process| guest_of_place(process.netns_cookie).is_some())
    }

    /// Doorbells that a process has, as bits.
    pub fn doors_of(&self, process: ProcessId) -> u64 {
        self.processes
            .get(&process)
            .map_or(0, |process| process.doors)
    }

    /// How many connections of a process are known: offered, with a channel, or remembered.
    pub fn connection_count(&self, process: ProcessId) -> usize {
        let process = self.processes.get(&process);
        process.map_or(0, |process| process.conns.len())
    }

    /// A process broke the control protocol and will be dropped. Whoever has a channel with
    /// it is to reset that connection: what such a process says by its ring is not to be
    /// believed any longer, and nobody would tell it to leave.
    pub fn process_broke(&mut self, culprit: ProcessId) -> Vec<Action> {
        let channels: Vec<ChannelRef> = self
            .processes
            .get(&culprit)
            .into_iter()
            .flat_map(|process| process.conns.values())
            .filter_map(|conn| match conn.state {
                ConnState::Channel { channel, .. } => Some(channel),
                _ => None,
            })
            .filter(|channel| self.is_announced(*channel))
            .collect();
        let mut actions = Vec::new();
        for channel in channels {
            self.downgrade_channel(channel, Reason::Protocol, &mut actions);
        }
        actions.retain(|action| !matches!(action, Action::Send { to, .. } if *to == culprit));
        actions
    }

    /// Whether the ends of a channel were told of it.
    pub(crate) fn is_announced(&self, channel: ChannelRef) -> bool {
        let link = self.channels.get(&channel).map(|channel| channel.link);
        let link = link.and_then(|link| self.links.get(&link));
        link.is_some_and(|link| link.ready || link.rejoined)
    }

    /// A process is gone, or its connection is.
    pub fn process_gone(&mut self, gone: ProcessId) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(process) = self.processes.get(&gone) else {
            return actions;
        };
        let links: Vec<LinkRef> = process.links.values().map(|(link, _)| *link).collect();
        let conns: Vec<u64> = process.conns.keys().copied().collect();
        for link_ref in &links {
            let Some(link) = self.links.get_mut(link_ref) else {
                continue;
            };
            for side in link.sides.iter_mut().flatten() {
                if side.process == gone {
                    side.gone = true;
                } else if !side.gone {
                    let message = Outgoing::PeerGone(control::PeerGone {
                        link_id: side.link_id,
                    });
                    actions.push(Action::Send {
                        to: side.process,
                        message,
                    });
                }
            }
        }
        for conn_id in conns {
            self.forget_conn((gone, conn_id), Leave::Death, Reason::NoPeer, &mut actions);
        }
        for link_ref in links {
            self.close_link_if_over(link_ref, &mut actions);
        }
        self.processes.remove(&gone);
        actions.retain(|action| !matches!(action, Action::Send { to, .. } if *to == gone));
        actions
    }

    /// A region has come for a link. `Ok(true)` in the first place: it is wanted.
    pub fn region(
        &mut self,
        process: ProcessId,
        link_id: u64,
    ) -> Result<(bool, Vec<Action>), Violation> {
        let mut actions = Vec::new();
        let owner = self.processes.get_mut(&process).ok_or(Violation::Region)?;
        let Some(&(link_ref, side)) = owner.links.get(&link_id) else {
            return match owner.regions_unwanted.remove(&link_id) {
                true => Ok((false, actions)),
                false => Err(Violation::Region),
            };
        };
        let link = self.links.get_mut(&link_ref).ok_or(Violation::Region)?;
        match &mut link.sides[side] {
            Some(side) if !side.region => side.region = true,
            _ => return Err(Violation::Region),
        }
        if let [Some(a), Some(b)] = link.sides
            && a.region
            && b.region
        {
            link.ready = true;
            for (own, peer) in [(a, b), (b, a)] {
                actions.push(Action::Peer {
                    to: own.process,
                    link_id: own.link_id,
                    peer: peer.process,
                    peer_link_id: peer.link_id,
                });
            }
            self.exchange_doors(link_ref, &mut actions);
            let Some(link) = self.links.get_mut(&link_ref) else {
                return Ok((true, actions));
            };
            for channel in std::mem::take(&mut link.waiting) {
                self.announce(channel, &mut actions);
            }
        }
        Ok((true, actions))
    }

    /// Whether a door has a possible index.
    pub fn check_door(door: u64) -> Result<(), Violation> {
        match (1..DOOR_COUNT as u64).contains(&door) {
            true => Ok(()),
            false => Err(Violation::Door(door)),
        }
    }

    /// A process has a new doorbell. That it has it already is no offence, and no news
    /// for its peers: their mail is not for others to fill.
    pub fn door(&mut self, process: ProcessId, door: u64) -> Result<Vec<Action>, Violation> {
        Self::check_door(door)?;
        let owner = self
            .processes
            .get_mut(&process)
            .ok_or(Violation::Door(door))?;
        let known = owner.doors >> door & 1 == 1;
        owner.doors |= 1 << door;
        let mut actions = Vec::new();
        for (&link_id, &(link_ref, side)) in owner.links.iter().filter(|_| !known) {
            let Some(link) = self.links.get(&link_ref).filter(|link| link.ready) else {
                continue;
            };
            if let Some(other) = link.sides[1 - side].filter(|other| !other.gone) {
                actions.push(Action::Doorbell {
                    sleeper: process,
                    sleeper_link_id: link_id,
                    knocker: other.process,
                    knocker_link_id: other.link_id,
                    door,
                });
            }
        }
        let message = Outgoing::DoorAck(control::DoorAck { door });
        actions.push(Action::Send {
            to: process,
            message,
        });
        Ok(actions)
    }

    /// A process reports what became of a connection. Reports that come too late (the
    /// connection or the channel is another one by now) are ignored: they cross with
    /// what the broker sends.
    pub fn status(
        &mut self,
        process: ProcessId,
        report: control::Status,
    ) -> Result<Vec<Action>, Violation> {
        let mut actions = Vec::new();
        let key = (process, report.conn_id);
        let reason = Reason::from_u32(report.reason);
        if !matches!(
            report.status,
            status::KERNEL | status::CLOSED | status::WITHDRAWN
        ) {
            return Err(Violation::Status(report.status));
        }
        let Some(conn) = self.conn(key) else {
            return Ok(actions);
        };
        let channel_id = match conn.state {
            ConnState::Offered { .. } => 0,
            ConnState::Channel { channel, .. } => self.channels.get(&channel).map_or(0, |c| c.id),
            ConnState::Kernel(past) => past.channel_id,
        };
        let agreed = match report.channel_id == channel_id {
            true => Leave::Agreed,
            // It gave up before it knew that it has a channel.
            false if report.channel_id == 0 => Leave::Alone,
            false if report.status == status::CLOSED => Leave::Alone,
            false => return Ok(actions),
        };
        let asked = || match conn.state {
            ConnState::Channel { channel, .. } => self.channels.get(&channel)?.downgrading,
            _ => None,
        };
        let stays = match report.status {
            status::KERNEL => Some(reason.or_else(asked).unwrap_or(Reason::Unsupported)),
            status::WITHDRAWN => reason,
            _ => None,
        };
        let told = reason.unwrap_or(Reason::NoPeer);
        let far = self.far_end_of_pair(key);
        // A socket outlives its pairs, as many as there were.
        let stays = stays.filter(|_| far.is_none_or(|far| self.conn(far).is_some()));
        match stays {
            None => self.forget_conn(key, agreed, told, &mut actions),
            Some(reason) => {
                let past = OnKernel {
                    reason,
                    channel_id: report.channel_id,
                    ring_bytes_tx: report.ring_bytes_tx,
                    ring_bytes_rx: report.ring_bytes_rx,
                    far,
                };
                self.leave(key, agreed, told, &mut actions);
                self.remember_on_kernel(key, past);
            }
        }
        Ok(actions)
    }

    pub(crate) fn conn(&self, key: ConnKey) -> Option<&Conn> {
        self.processes.get(&key.0)?.conns.get(&key.1)
    }

    pub(crate) fn conn_mut(&mut self, key: ConnKey) -> Option<&mut Conn> {
        self.processes.get_mut(&key.0)?.conns.get_mut(&key.1)
    }

    /// A connection ends as far as the registry is concerned, without a trace.
    pub(crate) fn end_conn(&mut self, key: ConnKey, actions: &mut Vec<Action>) {
        self.forget_conn(key, Leave::Alone, Reason::NoPeer, actions);
    }

    /// What is remembered of the other end of a UDP pair goes with it.
    fn forget_conn(&mut self, key: ConnKey, how: Leave, reason: Reason, actions: &mut Vec<Action>) {
        let far = self.far_end_of_pair(key);
        self.leave(key, how, reason, actions);
        self.forget_end(key);
        let is_remembered = |conn: &Conn| match conn.state {
            ConnState::Kernel(past) => past.far == Some(key),
            _ => false,
        };
        if let Some(far) = far.filter(|far| self.conn(*far).is_some_and(is_remembered)) {
            self.forget_end(far);
        }
    }

    fn forget_end(&mut self, key: ConnKey) {
        let Some(process) = self.processes.get_mut(&key.0) else {
            return;
        };
        process.on_kernel.remove(&key.1);
        let Some(conn) = process.conns.remove(&key.1) else {
            return;
        };
        if self.by_end.get(&conn.facts.end_id()) == Some(&key) {
            self.by_end.remove(&conn.facts.end_id());
        }
        self.forget_served(key, conn.served);
    }

    /// The other end of the channel that an end of UDP has, or had.
    fn far_end_of_pair(&self, key: ConnKey) -> Option<ConnKey> {
        let conn = self.conn(key)?;
        if conn.facts.protocol != Protocol::Udp {
            return None;
        }
        match conn.state {
            ConnState::Offered { .. } => None,
            ConnState::Channel { channel, side } => {
                let far = self.channels.get(&channel)?.ends[1 - side]?;
                Some((far.process, far.conn_id))
            }
            ConnState::Kernel(past) => past.far,
        }
    }

    /// Takes a connection out of its offer or channel.
    fn leave(&mut self, key: ConnKey, how: Leave, reason: Reason, actions: &mut Vec<Action>) {
        let Some(conn) = self.conn(key).copied() else {
            return;
        };
        match conn.state {
            ConnState::Kernel(_) => {}
            ConnState::Offered { .. } => self.take_offer_down(key, &conn.facts),
            ConnState::Channel { channel, side } => {
                if !self.is_announced(channel) {
                    self.cancel_other_end(channel, side, reason, actions);
                } else if how == Leave::Alone {
                    self.downgrade_other_end(channel, side, reason, actions);
                }
                self.end_over(channel, side, actions);
            }
        }
    }

    /// The other end was not told of the channel yet: its offer is turned down. It is not remembered where its
    /// peer has gone: it ends next, and nobody reports the end of a socket that was turned down.
    pub(crate) fn cancel_other_end(
        &mut self,
        channel: ChannelRef,
        side: usize,
        reason: Reason,
        actions: &mut Vec<Action>,
    ) {
        let Some(other) = self.channels.get(&channel).and_then(|c| c.ends[1 - side]) else {
            return;
        };
        if other.over {
            return;
        }
        let key = (other.process, other.conn_id);
        self.reject(key, reason, false, actions);
        match reason {
            Reason::NoPeer => self.forget_end(key),
            _ => {
                let past = OnKernel {
                    far: self.far_end_of_pair(key),
                    ..OnKernel::never_had_one(reason)
                };
                self.remember_on_kernel(key, past);
            }
        }
        self.end_over(channel, 1 - side, actions);
    }

    fn downgrade_other_end(
        &mut self,
        channel: ChannelRef,
        side: usize,
        reason: Reason,
        actions: &mut Vec<Action>,
    ) {
        let Some(channel) = self.channels.get_mut(&channel) else {
            return;
        };
        channel.downgrading = Some(reason);
        if let Some(other) = channel.ends[1 - side].filter(|other| !other.over) {
            let message = Outgoing::Downgrade(control::Downgrade {
                channel_id: channel.id,
                reason: reason as u32,
                pad: 0,
            });
            actions.push(Action::Send {
                to: other.process,
                message,
            });
        }
    }

    pub(crate) fn remember_on_kernel(&mut self, key: ConnKey, past: OnKernel) {
        let Some(process) = self.processes.get_mut(&key.0) else {
            return;
        };
        let Some(conn) = process.conns.get_mut(&key.1) else {
            return;
        };
        conn.state = ConnState::Kernel(past);
        process.on_kernel.insert(key.1);
        // Of another guest's nobody says when they are closed.
        let most = match guest_of_place(process.netns_cookie) {
            Some(_) => 0,
            None => KERNEL_REMEMBERED_MAX,
        };
        if process.on_kernel.len() > most
            && let Some(lowest) = process.on_kernel.first().copied()
        {
            self.end_conn((key.0, lowest), &mut Vec::new());
        }
    }

    pub(crate) fn reject(
        &self,
        key: ConnKey,
        reason: Reason,
        pending: bool,
        actions: &mut Vec<Action>,
    ) {
        let message = Outgoing::Reject(control::Reject {
            conn_id: key.1,
            reason: reason as u32,
            pending: u32::from(pending),
        });
        actions.push(Action::Send { to: key.0, message });
    }
}
