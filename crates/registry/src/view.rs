//! What listings show, and what an administrator may ask for.

use crate::links::ChannelRef;
use crate::processes::{ConnKey, ConnState};
use crate::{Action, ProcessId, Registry, SocketFacts};
use fordway_abi::control::{PathPolicy, Protocol};
use fordway_abi::reason::Reason;

/// A process's side of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkSide {
    /// The process.
    pub process: ProcessId,
    /// Its number for the link.
    pub link_id: u64,
}

/// A channel, seen from one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelView {
    /// Its number.
    pub id: u64,
    /// Which endpoint of the regions.
    pub slot: u32,
    /// Which use of that endpoint.
    pub generation: u32,
    /// This end's side of the link.
    pub own: LinkSide,
    /// The other's, if it is known.
    pub peer: Option<LinkSide>,
    /// Why it is being moved to the kernel path, if it is.
    pub downgrading: Option<Reason>,
}

impl ChannelView {
    /// The same from the other end.
    pub fn from_peer(&self) -> Option<ChannelView> {
        Some(ChannelView {
            own: self.peer?,
            peer: Some(self.own),
            ..*self
        })
    }
}

/// Where the bytes of a connection go, as far as the registry knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Its channel is being set up or in use.
    Channel(ChannelView),
    /// On the kernel path.
    Kernel {
        /// Why.
        reason: Reason,
        /// The channel it had.
        channel_id: Option<u64>,
        /// Bytes that its process says it sent through that one's ring.
        ring_bytes_tx: u64,
        /// Bytes that its process says it received through that one's ring.
        ring_bytes_rx: u64,
    },
}

/// A socket that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// Whose it is.
    pub process: ProcessId,
    /// What it is.
    pub facts: SocketFacts,
    /// Where it stands.
    pub path: Path,
}

impl Registry {
    /// What is known of a TCP socket.
    pub fn connection(&self, cookie: u64) -> Option<ConnectionView> {
        self.view(*self.by_end.get(&(cookie, None))?)
    }

    /// Whether a process's connection of this number is an end of UDP.
    pub fn is_of_datagrams(&self, process: ProcessId, conn_id: u64) -> bool {
        let conn = self.conn((process, conn_id));
        conn.is_some_and(|conn| conn.facts.protocol == Protocol::Udp)
    }

    /// What is known of what is no TCP, one for each end of a pair.
    pub fn other_ends(&self) -> Vec<ConnectionView> {
        let ends = self.by_end.values().filter_map(|key| self.view(*key));
        let offered = ends.map(|view| ConnectionView {
            facts: view.facts.as_offered(),
            ..view
        });
        offered
            .filter(|view| view.facts.protocol != Protocol::Tcp)
            .collect()
    }

    /// SO_COOKIE of programs' ends of pairs with their stacks whose channels go past these, or went, where the end has left its channel
    /// and was not offered anew.
    pub fn ends_past_stacks(&self) -> impl Iterator<Item = u64> + '_ {
        let ends = self.by_end.values().filter_map(|key| self.conn(*key));
        let past = ends.filter(|conn| {
            let has_or_had_channel = match conn.state {
                ConnState::Channel { .. } => true,
                ConnState::Kernel(past) => past.channel_id != 0,
                ConnState::Offered { .. } => false,
            };
            conn.facts.shown.pair.is_some() && has_or_had_channel
        });
        past.map(|conn| conn.facts.cookie)
    }

    fn view(&self, key: ConnKey) -> Option<ConnectionView> {
        let conn = self.conn(key)?;
        let path = match conn.state {
            ConnState::Offered { told } => Path::Kernel {
                reason: told.unwrap_or(Reason::Waiting),
                channel_id: None,
                ring_bytes_tx: 0,
                ring_bytes_rx: 0,
            },
            ConnState::Kernel(past) => Path::Kernel {
                reason: past.reason,
                channel_id: Some(past.channel_id).filter(|id| *id != 0),
                ring_bytes_tx: past.ring_bytes_tx,
                ring_bytes_rx: past.ring_bytes_rx,
            },
            ConnState::Channel { channel, side } => {
                Path::Channel(self.channel_view(channel, side)?)
            }
        };
        Some(ConnectionView {
            process: key.0,
            facts: conn.facts,
            path,
        })
    }

    /// The socket at the other end of the channel that an end has.
    pub fn peer_of(&self, end: &SocketFacts) -> Option<SocketFacts> {
        let key = *self.by_end.get(&end.end_id())?;
        let ConnState::Channel { channel, side } = self.conn(key)?.state else {
            return None;
        };
        let other = self.channels.get(&channel)?.ends[1 - side]?;
        Some(self.conn((other.process, other.conn_id))?.facts)
    }

    pub(crate) fn channel_view(&self, channel_ref: ChannelRef, side: usize) -> Option<ChannelView> {
        let channel = self.channels.get(&channel_ref)?;
        let link = self.links.get(&channel.link)?;
        let of = |side: usize| {
            link.sides[side].map(|side| LinkSide {
                process: side.process,
                link_id: side.link_id,
            })
        };
        Some(ChannelView {
            id: channel.id,
            slot: channel.slot,
            generation: channel.generation,
            own: of(side)?,
            peer: of(1 - side),
            downgrading: channel.downgrading,
        })
    }

    /// The ends of channels that a process holds and has not reported on.
    pub fn live_channels_of(&self, process: ProcessId) -> Vec<ChannelView> {
        let conns = self.processes.get(&process).map(|process| &process.conns);
        conns
            .into_iter()
            .flat_map(|conns| conns.values())
            .filter_map(|conn| match conn.state {
                ConnState::Channel { channel, side } => self.channel_view(channel, side),
                _ => None,
            })
            .collect()
    }

    /// The channel that a process has for its connection of this number.
    pub fn channel_of(&self, process: ProcessId, conn_id: u64) -> Option<ChannelView> {
        match self.conn((process, conn_id))?.state {
            ConnState::Channel { channel, side } => self.channel_view(channel, side),
            _ => None,
        }
    }

    /// How a process wants its connections carried.
    pub fn policy(&self, process: ProcessId) -> Option<PathPolicy> {
        Some(self.processes.get(&process)?.policy)
    }

    /// Channels that are live.
    pub fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// Processes of a namespace.
    pub fn processes_in(&self, netns_cookie: u64) -> usize {
        let processes = self.processes.values();
        processes
            .filter(|process| process.netns_cookie == netns_cookie)
            .count()
    }

    /// Namespaces that processes live in.
    pub fn namespaces(&self) -> std::collections::BTreeSet<u64> {
        let processes = self.processes.values();
        processes.map(|process| process.netns_cookie).collect()
    }

    /// Asks for the kernel path, for one channel or for all; `None` if there is no such
    /// channel. Asking again sends the request again.
    pub fn downgrade(&mut self, channel_id: Option<u64>, reason: Reason) -> Option<Vec<Action>> {
        let chosen: Vec<ChannelRef> = self
            .channels
            .iter()
            .filter(|(_, channel)| channel_id.is_none_or(|id| channel.id == id))
            .map(|(channel_ref, _)| *channel_ref)
            .collect();
        if chosen.is_empty() && channel_id.is_some() {
            return None;
        }
        let mut actions = Vec::new();
        for channel_ref in chosen {
            self.downgrade_or_note(channel_ref, reason, &mut actions);
        }
        Some(actions)
    }
}
