//! Sockets of a network stack of the program's own (apps/stackd): what the library and the stack's process say to each other.
//!
//! A socket is a pair of AF_UNIX sockets. The program has one end, the stack the other one, whose name says which socket it is
//! ([`name_of`]): whoever gets the descriptor, by fork, exec or a message, knows by getpeername(2). What bytes cannot
//! say goes by a control connection (SOCK_SEQPACKET), one [`Request`] and one [`Answer`] at a time.
//! ```text
//!   library                                      stack
//!   OPEN                        ────►
//!        ◄────  Answer + the program's end       with a plug in it: PLUG_BYTES that nobody wants
//!   BIND, LISTEN, CONNECT, ...  ────►
//!        ◄────  Answer
//! ```
//! # Who may command a socket
//! Whoever has its descriptor. The name does not prove that, as /proc/net/unix shows it; so each socket has a key besides, a random
//! number, which lies where only the descriptor leads: in a property of the program's end that AF_UNIX has no use for
//! ([`KEY_OPTION`]). Requests about the socket have it in them. As the name does, it goes where the descriptor goes.
//!
//! # Readiness is the kernel's
//! The program's end can be written to when the stack has taken what lies in its queue. A plug lies there from the start, and
//! is taken when a connection is made: so the program's poll tells of it, and of a failure, by which the stack closes its end.
//! A listener's end can be read when there are connections: each is an [`Accepted`] with a descriptor beside it.
//!
//! # Bytes
//! Of a stream: as they are. Of UDP: each message has a [`Head`] before it, both ways.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

mod options;
pub use options::{Handling, Row, level, name, option};

/// Before the number in the name of the stack's end, in the abstract namespace (man 7 unix).
const PREFIX: &[u8; 14] = b"fordway.stack.";
/// Bytes of such a name behind the zero that begins it.
pub const NAME_BYTES: usize = PREFIX.len() + 32;
/// Bytes that lie in the stack's queue until a connection is made.
pub const PLUG_BYTES: usize = 2048;
/// Longest value of an option that is set.
pub const SET_BYTES_MAX: usize = 32;
/// Longest value of an option that is asked for.
pub const GOT_BYTES_MAX: usize = 256;
/// Longest payload of a datagram.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Which socket of which stack.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Id {
    /// Of the stack's process: another one has another.
    pub epoch: u64,
    /// The socket's place.
    pub index: u32,
    /// How often the place was used before.
    pub generation: u32,
}

/// The name of the stack's end of this socket, without the zero before it.
pub fn name_of(id: Id) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    name[..PREFIX.len()].copy_from_slice(PREFIX);
    let low = u128::from(id.index) << 32 | u128::from(id.generation);
    let number = u128::from(id.epoch) << 64 | low;
    for (at, digit) in name[PREFIX.len()..].iter_mut().enumerate() {
        let value = (number >> (124 - 4 * at)) as u8 & 0xf;
        *digit = if value < 10 {
            b'0' + value
        } else {
            b'a' + value - 10
        };
    }
    name
}

/// The socket whose stack's end has this name; `None`: it is no stack's.
pub fn id_of(name: &[u8]) -> Option<Id> {
    let digits = name.strip_prefix(PREFIX).filter(|rest| rest.len() == 32)?;
    let mut number = 0u128;
    for digit in digits {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        number = number << 4 | u128::from(value);
    }
    Some(Id {
        epoch: (number >> 64) as u64,
        index: (number >> 32) as u32,
        generation: number as u32,
    })
}

/// Of the program's end, at SOL_SOCKET: SO_MAX_PACING_RATE (asm-generic/socket.h), whose eight bytes are the socket's key.
pub const KEY_OPTION: i32 = 47;

/// Of the stack's end, at this level of setsockopt(2), which no kernel has: a [`Served`] that the library in the stack puts into
/// its claims.
pub const SERVED_LEVEL: i32 = 0x4657;

/// The names of the connection that a stack serves by a pair.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Served {
    /// IPv6, or IPv4 in IPv6 (RFC 4291, 2.5.5.2).
    pub local_ip: [u8; 16],
    /// The far end's, in the same form.
    pub remote_ip: [u8; 16],
    /// In the host's byte order.
    pub local_port: u16,
    /// In the host's byte order. 0: nothing is served yet.
    pub remote_port: u16,
}

/// An address and a port. All zeros: none.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Name {
    /// AF_INET or AF_INET6; 0: there is none.
    pub family: u16,
    /// In the host's byte order.
    pub port: u16,
    /// Of IPv6.
    pub scope: u32,
    /// IPv4 in the first four bytes.
    pub address: [u8; 16],
}

/// AF_INET.
pub const INET: u16 = 2;
/// AF_INET6.
pub const INET6: u16 = 10;
/// SOCK_STREAM.
pub const STREAM: u32 = 1;
/// SOCK_DGRAM.
pub const DATAGRAM: u32 = 2;

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// A new socket of family `first` and type `second`. The program's end comes with the answer. With the id and the key of another one
    /// it takes its place: it has its options.
    Open = 1,
    /// As bind(2), to `name`. With an id and a key in `value`, those that a listener had at a former stack: sockets that show the same ones
    /// share the name, and have that key.
    Bind = 2,
    /// As listen(2), with a backlog of `first`.
    Listen = 3,
    /// As connect(2) of a socket that does not wait, to `name`; without a family: as AF_UNSPEC.
    Connect = 4,
    /// Both names, and the state.
    Names = 5,
    /// Option `second` of level `first` gets `value`.
    SetOption = 6,
    /// The value of option `second` of level `first`.
    GetOption = 7,
    /// SO_ERROR: the error that waits, once, in `value`, and both names. With a `first` of 1 a receive asks, to which the end is told: EPIPE,
    /// of a reset behind the end, stays for others.
    TakeError = 8,
    /// Bytes that the far end has not acknowledged (SIOCOUTQ), and those not sent yet (SIOCOUTQNSD), in `value`.
    Unsent = 9,
    /// Of a connection, three numbers of 64 bits in `value`: bytes that the program has sent, whether or not the stack has taken
    /// them; bytes that the stack has given the program, whether or not these were read; 1: some of them found no room in the pair yet.
    Positions = 10,
    /// The program is about to send urgent bytes (MSG_OOB): from now on the stack looks which byte is one before it takes it.
    Urgent = 11,
}

impl Operation {
    /// The operation with this number.
    pub fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            1 => Self::Open,
            2 => Self::Bind,
            3 => Self::Listen,
            4 => Self::Connect,
            5 => Self::Names,
            6 => Self::SetOption,
            7 => Self::GetOption,
            8 => Self::TakeError,
            9 => Self::Unsent,
            10 => Self::Positions,
            11 => Self::Urgent,
            _ => return None,
        })
    }
}

/// What the library asks.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// [`REQUEST_MAGIC`].
    pub magic: u32,
    /// An [`Operation`].
    pub operation: u32,
    /// Which socket.
    pub id: Id,
    /// The socket's key.
    pub key: u64,
    /// See the operation.
    pub first: i32,
    /// See the operation.
    pub second: i32,
    /// Of `value`.
    pub length: u32,
    /// Zero.
    pub reserved: u32,
    /// See the operation.
    pub name: Name,
    /// See the operation.
    pub value: [u8; SET_BYTES_MAX],
}

/// First word of each request; says which layout it has.
pub const REQUEST_MAGIC: u32 = 0x4657_5302; // "FWS", 2

impl Request {
    /// Without arguments.
    pub fn new(operation: Operation, id: Id, key: u64) -> Self {
        Self {
            magic: REQUEST_MAGIC,
            operation: operation as u32,
            id,
            key,
            first: 0,
            second: 0,
            length: 0,
            reserved: 0,
            name: Name::default(),
            value: [0; SET_BYTES_MAX],
        }
    }
}

/// How a socket stands, as the library has to know it.
pub mod state {
    /// Neither listens nor is connected.
    pub const IDLE: u32 = 0;
    /// A connection is under way.
    pub const CONNECTING: u32 = 1;
    /// Connected, or UDP with a far end.
    pub const CONNECTED: u32 = 2;
    /// Has connections to accept.
    pub const LISTENING: u32 = 3;
    /// A connection was there, or has failed.
    pub const OVER: u32 = 4;
}

/// What the stack answers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Answer {
    /// An errno, or 0.
    pub error: i32,
    /// A [`state`].
    pub state: u32,
    /// AF_INET or AF_INET6.
    pub family: u16,
    /// [`STREAM`] or [`DATAGRAM`].
    pub kind: u16,
    /// Of `value`.
    pub length: u32,
    /// The socket's own name.
    pub local: Name,
    /// The far end's.
    pub remote: Name,
    /// See [`Operation`].
    pub value: [u8; GOT_BYTES_MAX],
}

/// A connection to be accepted, with the program's end of it beside.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Accepted {
    /// Its own name.
    pub local: Name,
    /// The far end's.
    pub remote: Name,
}

/// Before a [`Listener`] in the name of the program's end, in the abstract namespace.
pub const LISTENER_PREFIX: &[u8; 16] = b"fordway.listens.";

/// What the library keeps of a listener, to make it again when its stack has ended.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Listener {
    /// Of this one. No two have the same name.
    pub id: Id,
    /// At the first stack that it was of.
    pub first: Id,
    /// Its name.
    pub local: Name,
    /// As of listen(2).
    pub backlog: i32,
    /// A bit for each option that is set again.
    pub options: u32,
}

/// What stands before each datagram.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Head {
    /// Who has sent it, or gets it; without a family: the far end that the socket is connected to.
    pub name: Name,
    /// The address that it came to, or the own one that it goes from; all zeros: as the stack chooses. IPv4 in the first four bytes; in the next
    /// four, of what came, the own address that answers it.
    pub own: [u8; 16],
    /// Of [`head`].
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// Marks of a [`Head`].
pub mod head {
    /// The program wants to know `own` (IP_PKTINFO, IPV6_RECVPKTINFO).
    pub const PACKET_INFO: u32 = 1;
    /// No datagram: an error waits (SO_ERROR), which this receive tells unless it was told meanwhile.
    pub const FAILED: u32 = 2;
    /// The program wants to know how many hops were left to it (IP_RECVTTL, IPV6_RECVHOPLIMIT): the byte at [`HOPS_SHIFT`].
    pub const HOP_LIMIT: u32 = 4;
    /// Of the lowest of eight bits that are a number.
    pub const HOPS_SHIFT: u32 = 8;
}

/// Bytes of a [`Head`].
pub const HEAD_BYTES: usize = size_of::<Head>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_which_socket_it_is() {
        let id = Id {
            epoch: 0x0123_4567_89ab_cdef,
            index: 77,
            generation: u32::MAX,
        };
        let name = name_of(id);
        assert_eq!(&name, b"fordway.stack.0123456789abcdef0000004dffffffff");
        assert_eq!(id_of(&name), Some(id));
        assert_eq!(id_of(&name[1..]), None);
        assert_eq!(id_of(&name[..45]), None);
        let mut other = name;
        other[20] = b'A';
        assert_eq!(id_of(&other), None);
    }

    #[test]
    fn operations_have_their_numbers() {
        for number in 0..20 {
            if let Some(operation) = Operation::from_u32(number) {
                assert_eq!(operation as u32, number);
            }
        }
    }
}
