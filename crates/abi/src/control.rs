//! Control messages between a shim and the broker, over a SOCK_SEQPACKET UNIX
//! socket: one packet is one message, a [`Header`] and a fixed body. Descriptors
//! travel beside it (SCM_RIGHTS); each body says how many and in which order.
//! A packet of another length, kind or descriptor count is a protocol error: the
//! receiver closes what came and drops the connection.
//!
//! ```text
//!   shim                      broker
//!   Hello +page         ────►
//!        ◄──── Welcome +mailbox   (or Refuse, with the broker's ABI_VERSION)
//!   Offer               ────►        asks the kernel whether the claim is true
//!        ◄──── Link                  first channel between two processes only
//!   Region +memfd       ────►
//!        ◄──── Peer +memfd +page
//!        ◄──── OwnDoor +epoll, PeerDoor +eventfd     each door of either side
//!        ◄──── Pair                  each channel
//!   Door                ────►        a new waiter
//!        ◄──── OwnDoor +epoll        for each link; its peer gets PeerDoor +eventfd
//!        ◄──── DoorAck
//!   Status              ────►        path changed; Closed when the last descriptor went
//!        ◄──── Downgrade / PeerGone
//!   LetGo               ────►        a link to another guest is not mapped any more
//!   Offer, to all       ────►
//!        ◄──── Everybody             who receives what goes to a broadcast address; again at each change
//! ```
//!
//! # Doorbells
//! No descriptor of a doorbell is shared by two processes that do not trust each other:
//! one could drain it, fill it, or clear its O_NONBLOCK. For each door and each link the
//! broker makes an eventfd and an epoll instance that watches it, edge-triggered. The
//! knocker gets the eventfd and nobody else has it; the sleeper gets the epoll instance,
//! which shows each knock and cannot be written to; the broker keeps neither.
//!
//! After each packet that the broker sends it adds one to the mailbox's
//! word, so that a running shim sees by one load that there is something to read.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First word of `Hello`; says that a Fordway shim is speaking.
pub const HELLO_MAGIC: u32 = 0x4657_4459; // "FWDY"
/// Longest packet.
pub const PACKET_BYTES_MAX: usize = 128;
/// Most receivers of one broadcast by rings.
pub const EVERYBODY_MAX: usize = 24;
/// Most descriptors beside one packet.
pub const PACKET_FDS_MAX: usize = 2;

/// How a program wants its connections carried (`fordway run --path`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PathPolicy {
    /// Rings where they can be had, else the kernel.
    Auto = 0,
    /// Never offer.
    Kernel = 1,
    /// A connection that cannot have rings fails.
    Fast = 2,
}

impl PathPolicy {
    /// The policy with this number.
    pub fn from_u32(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::Auto),
            1 => Some(Self::Kernel),
            2 => Some(Self::Fast),
            _ => None,
        }
    }
}

/// Whose pairs of sockets may have a channel: what [`Claim::protocol`] says, if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Protocol {
    /// See [`protocol::TCP`].
    Tcp = protocol::TCP,
    /// See [`protocol::UDP`].
    Udp = protocol::UDP,
    /// See [`protocol::UNIX`].
    Unix = protocol::UNIX,
}

impl Protocol {
    /// The protocol with this number.
    pub fn from_u32(value: u32) -> Option<Self> {
        match value {
            protocol::TCP => Some(Self::Tcp),
            protocol::UDP => Some(Self::Udp),
            protocol::UNIX => Some(Self::Unix),
            _ => None,
        }
    }

    /// The number in the header of an IP packet; 0 of what is in none.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The word that ss(8) has for it (Netid).
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Unix => "unix",
        }
    }
}

/// Start of each packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// One of [`kind`].
    pub kind: u32,
    /// Whole packet's length in bytes, header included.
    pub length_bytes: u32,
}

/// How a shim shows a socket of its process: by words, without the descriptor. All of them
/// are claims; the broker asks the kernel about each (apps/fordwayd: proof).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Claim {
    /// SO_COOKIE.
    pub cookie: u64,
    /// SO_NETNS_COOKIE.
    pub netns_cookie: u64,
    /// The descriptor's number.
    pub fd: u32,
    /// The thread that has it under this number; looked at if the first thread has not.
    pub thread: u32,
    /// getsockname: IPv6, or IPv4 in IPv6 (RFC 4291, 2.5.5.2). Of UDP, the address to which the
    /// other end sends: the socket may be bound to any.
    pub local_ip: [u8; 16],
    /// getpeername, as `local_ip`. Of UDP, whose datagrams this is about: one socket may have many.
    pub remote_ip: [u8; 16],
    /// In the host's byte order.
    pub local_port: u16,
    /// In the host's byte order.
    pub remote_port: u16,
    /// A [`protocol`].
    pub protocol: u32,
}

impl Claim {
    /// Of no socket.
    pub const NONE: Claim = Claim {
        cookie: 0,
        netns_cookie: 0,
        fd: 0,
        thread: 0,
        local_ip: [0; 16],
        remote_ip: [0; 16],
        local_port: 0,
        remote_port: 0,
        protocol: 0,
    };
}

macro_rules! messages {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:literal, fds $low:literal ..= $high:literal {
        $($(#[doc = $fdoc:literal])+ $field:ident : $type:ty,)*
    })+) => {
        /// Numbers of the messages.
        #[allow(non_upper_case_globals)]
        pub mod kind { $($(#[doc = $doc])+ pub const $name: u32 = $value;)+ }

        $($(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[doc = $fdoc])+ pub $field: $type,)* }

        impl Message for $name {
            const KIND: u32 = $value;
            const FDS: core::ops::RangeInclusive<usize> = $low..=$high;
        }
        const _: () = assert!(core::mem::size_of::<$name>() + 8 <= PACKET_BYTES_MAX);)+

        /// Length of the body and allowed number of descriptors of a kind.
        pub fn shape(kind: u32) -> Option<(usize, core::ops::RangeInclusive<usize>)> {
            match kind {
                $($value => Some((core::mem::size_of::<$name>(), $low..=$high)),)+
                _ => None,
            }
        }
    };
}

/// Why a packet is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than a header.
    Short(usize),
    /// Of a kind that does not exist.
    Kind(u32),
    /// With more or fewer bytes than its kind has.
    Length(u32, usize),
    /// With more or fewer descriptors than its kind has.
    Descriptors(u32, usize),
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Short(bytes) => write!(f, "a packet of {bytes} bytes"),
            Self::Kind(kind) => write!(f, "a message of kind {kind}"),
            Self::Length(kind, bytes) => write!(f, "a message of kind {kind} with {bytes} bytes"),
            Self::Descriptors(kind, count) => {
                write!(f, "a message of kind {kind} with {count} descriptors")
            }
        }
    }
}

/// Kind and body of a packet that came with `fd_count` descriptors. Nothing of it was
/// looked at but its form.
pub fn parse(packet: &[u8], fd_count: usize) -> Result<(u32, &[u8]), Malformed> {
    let Ok((header, body)) = Header::read_from_prefix(packet) else {
        return Err(Malformed::Short(packet.len()));
    };
    let Some((length, fds)) = shape(header.kind) else {
        return Err(Malformed::Kind(header.kind));
    };
    if header.length_bytes as usize != packet.len() || body.len() != length {
        return Err(Malformed::Length(header.kind, packet.len()));
    }
    if !fds.contains(&fd_count) {
        return Err(Malformed::Descriptors(header.kind, fd_count));
    }
    Ok((header.kind, body))
}

/// A message: its number and how many descriptors go with it.
pub trait Message: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// Number in the header.
    const KIND: u32;
    /// Allowed count of descriptors beside it.
    const FDS: core::ops::RangeInclusive<usize>;
}

messages! {
    /// Shim → broker, first on each connection. Descriptor: wait page memfd.
    Hello = 1, fds 1..=1 {
        /// [`HELLO_MAGIC`].
        magic: u32,
        /// [`crate::ABI_VERSION`].
        abi_version: u32,
        /// A [`PathPolicy`].
        path_policy: u32,
        /// 1 when channels of an earlier broker will follow as `Rejoin`.
        rejoining: u32,
    }
    /// Broker → shim. Descriptors: mailbox (one page, its first u32 counts packets), read-only;
    /// the domain's [`crate::shm::Purse`].
    Welcome = 2, fds 2..=2 {
        /// [`crate::ABI_VERSION`].
        abi_version: u32,
        /// Id of the domain that the process is in.
        domain_id: u32,
        /// Number of this process with the broker.
        process_id: u64,
    }
    /// Broker → shim, then the broker closes: `Hello` was not accepted.
    Refuse = 3, fds 0..=0 {
        /// The broker's [`crate::ABI_VERSION`].
        abi_version: u32,
        /// A [`crate::reason::Reason`].
        reason: u32,
    }
    /// Shim → broker: a connected stream socket, or one that exchanges datagrams with one other, may
    /// use rings, or why it may not.
    Offer = 4, fds 0..=0 {
        /// The shim's number for the connection, echoed in `Pair` and `Reject`.
        conn_id: u64,
        /// 0, or the [`crate::reason::Reason`] for which this end stays on the kernel path: it is
        /// listed, and not answered.
        declined: u32,
        /// 1: datagrams to a broadcast address, which is the remote name. `Everybody` answers it, each time that
        /// the answer changes, until the offer is withdrawn.
        to_all: u32,
        /// The socket.
        claim: Claim,
    }
    /// Broker → shim: the connection stays on the kernel path for now.
    Reject = 5, fds 0..=0 {
        /// From `Offer`.
        conn_id: u64,
        /// A [`crate::reason::Reason`].
        reason: u32,
        /// 1: `Pair` may still follow (the other end has not offered yet).
        pending: u32,
    }
    /// Broker → shim: make a region for this link and send it as `Region`.
    Link = 6, fds 0..=0 {
        /// Number of the link's side (unique with this broker for ever).
        link_id: u64,
        /// Random name of the link, to be shown when rejoining.
        link_key: [u8; 16],
    }
    /// Shim → broker. Descriptor: region memfd, sealed.
    Region = 7, fds 1..=1 {
        /// From `Link`.
        link_id: u64,
    }
    /// Broker → shim. Descriptors: the peer's region, its wait page.
    Peer = 8, fds 2..=2 {
        /// From `Link`.
        link_id: u64,
    }
    /// Broker → shim: the connection has a channel.
    Pair = 9, fds 0..=0 {
        /// From `Offer`.
        conn_id: u64,
        /// The channel's number (unique with this broker for ever; the same on both sides).
        channel_id: u64,
        /// The link it is cut from.
        link_id: u64,
        /// Which endpoint of the link.
        slot: u32,
        /// Generation to set in the own endpoint and to await in the peer's.
        generation: u32,
        /// 1: the socket is a program's end of a pair with its stack, and the channel's other end is the far end of the
        /// connection that the stack serves by it.
        cuts_through: u32,
        /// Always 0.
        pad: u32,
    }
    /// Shim → broker: a new waiter. Every process has door 0 from the start.
    Door = 10, fds 0..=0 {
        /// Index of the doorbell, 1 to 63.
        door: u64,
    }
    /// Broker → shim: every peer has been sent a doorbell, and so was the process itself.
    DoorAck = 11, fds 0..=0 {
        /// From `Door`.
        door: u64,
    }
    /// Broker → shim: a peer has a new waiter. Descriptor: the eventfd that wakes it; of a guest's process,
    /// /dev/xen/evtchn. The newest for a door takes the place of those before it.
    PeerDoor = 12, fds 1..=1 {
        /// The link over which that peer is reached.
        link_id: u64,
        /// Index of the doorbell.
        door: u64,
        /// 0: the descriptor is an eventfd. Else the event channel that is to be notified by it.
        port: u64,
    }
    /// Shim → broker: a connection changed its path or went away.
    Status = 13, fds 0..=0 {
        /// From `Offer`.
        conn_id: u64,
        /// From `Pair`; 0 if it never had one.
        channel_id: u64,
        /// A [`status`].
        status: u32,
        /// A [`crate::reason::Reason`], for `status::KERNEL`.
        reason: u32,
        /// Bytes sent through the ring.
        ring_bytes_tx: u64,
        /// Bytes received through the ring.
        ring_bytes_rx: u64,
    }
    /// Broker → shim: move the channel to the kernel path. With [`crate::reason::Reason::Protocol`]:
    /// the peer broke the control protocol, reset the connection.
    Downgrade = 14, fds 0..=0 {
        /// From `Pair`.
        channel_id: u64,
        /// A [`crate::reason::Reason`].
        reason: u32,
        /// Always 0.
        pad: u32,
    }
    /// Broker → shim: the process at the other end of the link is gone.
    PeerGone = 15, fds 0..=0 {
        /// The link.
        link_id: u64,
    }
    /// Shim → broker, after a `Hello` with `rejoining`: a link that an earlier broker made.
    /// Descriptor: own region.
    RejoinLink = 16, fds 1..=1 {
        /// The number under the earlier broker.
        link_id: u64,
        /// From `Link`; the two sides of a link have the same.
        link_key: [u8; 16],
    }
    /// Shim → broker: a channel that an earlier broker made.
    RejoinChannel = 17, fds 0..=0 {
        /// The shim's number for the connection.
        conn_id: u64,
        /// The channel's number under the earlier broker.
        channel_id: u64,
        /// The link's number under the earlier broker.
        link_id: u64,
        /// Which endpoint.
        slot: u32,
        /// Its generation.
        generation: u32,
        /// The socket.
        claim: Claim,
    }
    /// Broker → shim: how a waiter of its own sees the peer's rings. Descriptor: an epoll
    /// instance that becomes readable at each; of a guest's process, /dev/xen/evtchn.
    OwnDoor = 18, fds 1..=1 {
        /// The link over which the peer is reached.
        link_id: u64,
        /// Index of the door.
        door: u64,
        /// 0: the descriptor is an epoll instance. Else the event channel that shows by it, and is masked from then
        /// on: it is read, and written to, before the next sleep.
        port: u64,
    }
    /// Broker → shim: who receives what is sent to a broadcast address. While `reason` is 0, that is the one
    /// socket of this port at each of these addresses, which is bound to any, and nobody else.
    Everybody = 19, fds 0..=0 {
        /// From `Offer`.
        conn_id: u64,
        /// 0, or the [`crate::reason::Reason`] for which these datagrams are to go by the kernel.
        reason: u32,
        /// 1: the socket that sends them receives them, too. It is not among the others.
        own: u32,
        /// How many addresses follow.
        count: u32,
        /// Always 0.
        pad: u32,
        /// Addresses of IPv4, as they stand in a packet; 0 behind the last one.
        ips: [[u8; 4]; EVERYBODY_MAX],
    }
    /// Broker → shim: a link to a process of another guest of Xen, with both sides' memory: it stands for `Link` and
    /// `Peer`. No later broker can be shown it. Descriptors: pages that are granted to the peer's guest
    /// (/dev/xen/gntalloc), pages that it has granted to ours (/dev/xen/gntdev). In each file the head of a region
    /// ([`crate::shm::GUEST_HEAD_BYTES`]) comes first and its arena behind it; each is mapped at its place in the region.
    Guest = 20, fds 2..=2 {
        /// Number of the link's side (unique with this broker for ever).
        link_id: u64,
        /// So much of our arena has memory.
        arena_bytes: u64,
        /// So much of the peer's.
        peer_arena_bytes: u64,
    }
    /// Shim → broker: it has nothing mapped of a `Guest` any more, or never had.
    LetGo = 21, fds 0..=0 {
        /// From `Guest`.
        link_id: u64,
    }
}

/// Values of [`Claim::protocol`]: IPPROTO_TCP and IPPROTO_UDP (ip(7)), and one beyond all of them.
pub mod protocol {
    /// A connection: two sockets, each with a name of its own and the other's.
    pub const TCP: u32 = 6;
    /// A pair: two sockets that send each other datagrams under two names. A socket may be in many.
    pub const UDP: u32 = 17;
    /// The pair of AF_UNIX sockets between a program and its own stack ([`crate::stack`]): the kernel says which socket is the
    /// other end. A stack's claim has the names of the connection that it serves by the pair, if there is one; a program's has none.
    pub const UNIX: u32 = 256;
}

/// Values of `Status::status`.
pub mod status {
    /// Both directions are back on the kernel path.
    pub const KERNEL: u32 = 1;
    /// The last descriptor was closed.
    pub const CLOSED: u32 = 2;
    /// The offer is withdrawn (closed or changed before a channel came).
    pub const WITHDRAWN: u32 = 3;
}
