//! Who is who: domains and their addresses, processes, offers, links, channels.
//!
//! The registry decides and does nothing else: events come in as calls, what must be
//! done comes back as a list of [`Action`]s, to be carried out in order. It has no clock
//! (where time matters the caller tells it: [`Registry::on_time`]), no descriptors, no
//! randomness of its own (see [`Registry::new`]); the same calls give the same answers. Whatever it is told about a socket or a process was
//! read from the kernel by the broker; the word of a program counts for nothing but
//! the numbers by which it wants to be answered.
//!
//! # The way of a connection
//! ```text
//!   offer ──► Offered ──(the mirrored offer is there and the rule holds)──► Channel ──► Kernel ──► gone
//!                │                                                            │  status KERNEL
//!                └── Reject (waiting, unassigned, no-peer ...)                └── status CLOSED, death ──► gone
//! ```
//! A process reports each of its ends once; a channel's slot is free again when both
//! ends are reported or their processes are gone. Until then neither socket can have
//! another channel.
//!
//! # The rule of pairing
//! Two offered sockets are the two ends of one TCP connection if their names mirror
//! each other and
//! - both lie in one network namespace, and neither local address is another's, or
//! - each local address is assigned, by this registry, to the very namespace that the
//!   socket lies in.
//!
//! Where names do not mirror, because an address was translated on the way, the kernel's entry of
//! that connection stands for the mirror; so it does for the host's own address, which is not assigned
//! to anybody (`translated`).
//!
//! An offer is a promise about a socket that may be gone when its mirror image comes, and its
//! names another's. So before a channel is made, whoever calls is asked to show the older
//! socket anew ([`Witness`]): nothing older than the pairing is proof of anything.
//!
//! The namespace is the socket's own (SO_NETNS_COOKIE). The process's namespace decides only in which domain the process is listed. Mirrored
//! names alone prove nothing: anyone can build the same four numbers in a namespace
//! of his own. Such an offer finds no partner, and it disturbs nobody's: an offer is
//! looked up by names *and* namespace, so a stranger's stands elsewhere.
//!
//! # UDP
//! Two UDP sockets that send each other datagrams are paired as the ends of a connection are, under
//! a name each and by the same rule; TCP and UDP never meet. What differs:
//! - A socket may be in many pairs, with one far end each.
//! - Whoever calls has found that the kernel gives the socket what comes from the far end's name to its own.
//!   The kernel says so of a socket that is bound to any address whatever address it is asked about. So
//!   within a namespace local addresses are loopback or its own.
//! - That may change while both sockets stay: of each pair the caller is asked anew
//!   ([`Registry::look_at_datagrams`]).
//! - Nothing is translated, and no program is refused for the kernel's path: it may send by it at any time. One
//!   that wants rings or nothing is told after a while that it has none.
//!
//! # Pairs of AF_UNIX sockets
//! A socket of a program's own stack is one of a pair, whose other end the stack has. Its names are inodes ([`of_inode`]): its
//! own and its peer's, both as the kernel says. So names mirror each other only in one pair, of one namespace. Where the far end of the
//! connection is a program as well, the two get a channel past the stack (`cut_through`).
//!
//! # Links
//! Two processes share links; a link has a side for each (both sides may be the same
//! process), each side with a number of its own, and hands out slots lowest first. A
//! link that was made under an earlier broker comes back when both sides show its
//! key ([`Registry::rejoin_link`]); it keeps its channels but gets no new ones, because
//! nobody can tell which of its slots are still in use by a channel that has not
//! come back yet. New channels of the pair get a new link. What only one side has rejoined
//! waits for the other within a bound (`alone`).
//!
//! # Limits
//! Everything a process can make grow is bounded: [`OFFERS_MAX`] connections,
//! [`LINKS_MAX`] links, [`KERNEL_REMEMBERED_MAX`] remembered downgrades.
#![forbid(unsafe_code)]

mod alone;
mod counts;
mod cut_through;
mod datagrams;
mod domains;
mod guests;
mod insist;
mod links;
mod pairing;
mod policy;
mod processes;
mod rejoin;
mod translated;
mod view;

#[cfg(test)]
mod tests;

pub use alone::ALONE_NS_MAX;
pub use counts::{Counts, ENOUGH_CALLS, Usage};
pub use domains::{
    Assigned, Domain, DomainError, HOST_DOMAIN, Network, Network6, UNKNOWN_DOMAIN, guest_of_place,
    place_of_guest,
};
pub use guests::{GuestAddresses, GuestAddressesError};
pub use insist::INSIST_NS_MAX;
pub use policy::{BothEnds, Gate};
pub use processes::{KERNEL_REMEMBERED_MAX, LINKS_MAX, OFFERS_MAX};
pub use translated::{FarEnd, Question, Translator};
pub use view::{ChannelView, ConnectionView, LinkSide, Path};

use fordway_abi::control::{self, Protocol};
use fordway_abi::reason::Reason;
use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};

/// Number of a process with this broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// Where a process has a socket. The registry keeps it for whoever is asked to witness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The descriptor's number.
    pub fd: u32,
    /// The thread whose number it is, if not every thread's.
    pub thread: u32,
    /// Of a stack's end of a pair: local and remote name of the connection that it serves by it.
    pub serves: Option<(SocketAddr, SocketAddr)>,
    /// It is a program's end of a pair with its stack, and goes by the names of the connection that is served by it.
    pub pair: Option<OfPair>,
}

/// What an end of a pair of AF_UNIX sockets is as such (see the module).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfPair {
    /// Where the pair was made.
    pub netns_cookie: u64,
    /// [`of_inode`].
    pub local: SocketAddr,
    /// [`of_inode`] of the stack's end.
    pub remote: SocketAddr,
}

/// Shows that a process still has this socket, connected under these names; or why not. Of UDP: that
/// it gets what is sent to it under them. Asked of an older offer when its mirror image comes.
pub type Witness<'w> = dyn FnMut(ProcessId, &SocketFacts) -> Result<(), Reason> + 'w;

/// What the kernel says of an offered socket. Names are normalised: IPv4 in IPv6 is
/// IPv4, no scope, no flow label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFacts {
    /// What it speaks.
    pub protocol: Protocol,
    /// SO_COOKIE.
    pub cookie: u64,
    /// SO_NETNS_COOKIE.
    pub netns_cookie: u64,
    /// getsockname. Of UDP, the name to which the far end sends; of AF_UNIX, [`of_inode`].
    pub local: SocketAddr,
    /// getpeername. Of UDP, the far end's name; of AF_UNIX, [`of_inode`] of the peer.
    pub remote: SocketAddr,
    /// Where its process has it.
    pub shown: Shown,
}

/// What a connection's end is known by: its socket's cookie, and of UDP the far end's name.
pub(crate) type EndId = (u64, Option<SocketAddr>);

/// Addresses that are nobody's (RFC 6666).
const NOBODYS: u128 = 0x0100 << 112;

/// The name of an AF_UNIX socket: its inode on sockfs.
pub fn of_inode(inode: u32) -> SocketAddr {
    (Ipv6Addr::from_bits(NOBODYS | u128::from(inode)), 0).into()
}

/// The inode in such a name.
pub fn inode_of(name: SocketAddr) -> u32 {
    match name {
        SocketAddr::V6(six) => six.ip().to_bits() as u32,
        SocketAddr::V4(_) => 0,
    }
}

impl SocketFacts {
    pub(crate) fn end_id(&self) -> EndId {
        let far = (self.protocol == Protocol::Udp).then_some(self.remote);
        (self.cookie, far)
    }
}

/// What the broker is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a packet without descriptors.
    Send {
        /// To whom.
        to: ProcessId,
        /// What.
        message: Outgoing,
    },
    /// Send `control::Peer`: `peer`'s region of `peer_link_id`, and its wait page.
    Peer {
        /// To whom.
        to: ProcessId,
        /// The receiver's number for the link.
        link_id: u64,
        /// Whose memory.
        peer: ProcessId,
        /// The peer's number for the link.
        peer_link_id: u64,
    },
    /// Make a doorbell: send `control::OwnDoor` to who sleeps behind it, and
    /// `control::PeerDoor` to who knocks at it.
    Doorbell {
        /// Who sleeps.
        sleeper: ProcessId,
        /// The sleeper's number for the link.
        sleeper_link_id: u64,
        /// Who rings.
        knocker: ProcessId,
        /// The knocker's number for the link.
        knocker_link_id: u64,
        /// Which door of the sleeper.
        door: u64,
    },
    /// Forget what is kept for this side of a link.
    LinkClosed {
        /// Whose side.
        process: ProcessId,
        /// Its number for the link.
        link_id: u64,
    },
}

/// Packets without descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// See [`control::Reject`].
    Reject(control::Reject),
    /// See [`control::Link`].
    Link(control::Link),
    /// See [`control::Pair`].
    Pair(control::Pair),
    /// See [`control::DoorAck`].
    DoorAck(control::DoorAck),
    /// See [`control::Downgrade`].
    Downgrade(control::Downgrade),
    /// See [`control::PeerGone`].
    PeerGone(control::PeerGone),
}

/// A process did what no honest shim does; its connection is to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// `Region` for a link that it has no side of, or twice.
    #[error("a region for a link that was not asked for")]
    Region,
    /// A doorbell's index is out of range.
    #[error("a doorbell of index {0}")]
    Door(u64),
    /// An unknown number in `Status`.
    #[error("a status of {0}")]
    Status(u32),
    /// A link was rejoined twice, or one that this broker made.
    #[error("a link rejoined twice")]
    RejoinLink,
    /// A channel was rejoined over an unknown link, or twice, or with a slot out of range.
    #[error("a channel that cannot be rejoined")]
    RejoinChannel,
    /// More links were rejoined than a process can have.
    #[error("too many links")]
    TooManyLinks,
}

/// Where new link keys come from.
pub type KeySource = Box<dyn FnMut() -> [u8; 16] + Send>;

/// See the module.
pub struct Registry {
    id_next: u64,
    keys: KeySource,
    domains: domains::Domains,
    processes: BTreeMap<ProcessId, processes::Process>,
    links: BTreeMap<links::LinkRef, links::Link>,
    /// Links of two processes (lower first) in the order they were made.
    links_between: BTreeMap<(ProcessId, ProcessId), Vec<links::LinkRef>>,
    /// Rejoined links by their key.
    links_by_key: BTreeMap<[u8; 16], links::LinkRef>,
    channels: BTreeMap<links::ChannelRef, links::Channel>,
    /// The one live connection of an end, or its newest one that went to the kernel.
    by_end: BTreeMap<EndId, processes::ConnKey>,
    /// Offers without a partner, by their names.
    offers: BTreeMap<pairing::Names, processes::ConnKey>,
    /// Programs' ends of pairs with their stacks, by the names of the connections that are served by them.
    served: BTreeMap<pairing::Names, processes::ConnKey>,
    /// What only one side has rejoined.
    alone: alone::Alone,
    /// Offers that may not wait for long.
    insisting: insist::Insisting,
    /// Channels of UDP.
    datagrams: datagrams::Datagrams,
    counts: Counts,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("processes", &self.processes.len())
            .field("links", &self.links.len())
            .field("channels", &self.channels.len())
            .field("offers", &self.offers.len())
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// A registry for the addresses of `network`. `epoch` is a random number of 48 bits:
    /// numbers of processes, links and channels start there, so that those of two
    /// brokers, one after the other, do not meet. `keys` gives unguessable link keys.
    pub fn new(network: Network, epoch: u64, keys: KeySource) -> Self {
        Self {
            // 48 bits of epoch, 15 bits and all that follows for counting; never 0.
            id_next: ((epoch & 0xffff_ffff_ffff) << 15) + 1,
            keys,
            domains: domains::Domains::new(network),
            processes: BTreeMap::new(),
            links: BTreeMap::new(),
            links_between: BTreeMap::new(),
            links_by_key: BTreeMap::new(),
            channels: BTreeMap::new(),
            by_end: BTreeMap::new(),
            offers: BTreeMap::new(),
            served: BTreeMap::new(),
            alone: alone::Alone::default(),
            insisting: insist::Insisting::default(),
            datagrams: datagrams::Datagrams::default(),
            counts: Counts::default(),
        }
    }

    /// A number for something that is no link or channel of this registry's, and is known by a number like theirs.
    pub fn number(&mut self) -> u64 {
        self.new_id()
    }

    fn new_id(&mut self) -> u64 {
        let id = self.id_next;
        self.id_next += 1;
        id
    }
}
