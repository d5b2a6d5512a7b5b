//! Which option does what in a stack's socket: one table, for the library and the stack. What is not in it does not exist (ENOPROTOOPT).
//!
//! Numbers are Linux's (asm-generic/socket.h, linux/in.h, linux/in6.h, linux/tcp.h, linux/udp.h).

/// What becomes of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// The pair of AF_UNIX sockets has it, and the kernel heeds it there.
    Pair,
    /// The stack heeds it.
    Served,
    /// Can be asked for only.
    Told,
    /// The stack keeps it, and does nothing more.
    Kept,
    /// Cannot be set, with this errno.
    Refused(i32),
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// See [`level`].
    pub level: i32,
    /// See [`name`].
    pub name: i32,
    /// What becomes of it.
    pub handling: Handling,
    /// What it is before it is set.
    pub usual: i32,
}

/// Levels.
pub mod level {
    pub const SOCKET: i32 = 1;
    pub const IP: i32 = 0;
    pub const TCP: i32 = 6;
    pub const UDP: i32 = 17;
    pub const IPV6: i32 = 41;
}

/// Names of options that somebody asks for by name; the others stand in the table alone.
pub mod name {
    pub const REUSEADDR: i32 = 2;
    pub const TYPE: i32 = 3;
    pub const ERROR: i32 = 4;
    pub const SNDBUF: i32 = 7;
    pub const RCVBUF: i32 = 8;
    pub const KEEPALIVE: i32 = 9;
    pub const OOBINLINE: i32 = 10;
    pub const LINGER: i32 = 13;
    pub const REUSEPORT: i32 = 15;
    pub const ACCEPTCONN: i32 = 30;
    pub const PROTOCOL: i32 = 38;
    pub const DOMAIN: i32 = 39;
    pub const IP_TOS: i32 = 1;
    pub const IP_TTL: i32 = 2;
    pub const IP_PKTINFO: i32 = 8;
    pub const IP_RECVTTL: i32 = 12;
    pub const IP_MTU: i32 = 14;
    pub const IP_MULTICAST_IF: i32 = 32;
    pub const IP_MULTICAST_TTL: i32 = 33;
    pub const IP_MULTICAST_LOOP: i32 = 34;
    pub const IP_ADD_MEMBERSHIP: i32 = 35;
    pub const IP_DROP_MEMBERSHIP: i32 = 36;
    pub const MCAST_JOIN_GROUP: i32 = 42;
    pub const MCAST_LEAVE_GROUP: i32 = 45;
    pub const IP_MULTICAST_ALL: i32 = 49;
    pub const TCP_NODELAY: i32 = 1;
    pub const TCP_MAXSEG: i32 = 2;
    pub const TCP_KEEPIDLE: i32 = 4;
    pub const TCP_KEEPINTVL: i32 = 5;
    pub const TCP_KEEPCNT: i32 = 6;
    pub const TCP_INFO: i32 = 11;
    pub const TCP_CONGESTION: i32 = 13;
    pub const TCP_USER_TIMEOUT: i32 = 18;
    pub const IPV6_UNICAST_HOPS: i32 = 16;
    pub const IPV6_MULTICAST_IF: i32 = 17;
    pub const IPV6_MULTICAST_HOPS: i32 = 18;
    pub const IPV6_MULTICAST_LOOP: i32 = 19;
    pub const IPV6_JOIN_GROUP: i32 = 20;
    pub const IPV6_LEAVE_GROUP: i32 = 21;
    pub const IPV6_MTU: i32 = 24;
    pub const V6ONLY: i32 = 26;
    pub const IPV6_MULTICAST_ALL: i32 = 29;
    pub const IPV6_RECVPKTINFO: i32 = 49;
    pub const IPV6_RECVHOPLIMIT: i32 = 51;
    pub const IPV6_TCLASS: i32 = 67;
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const ENODEV: i32 = 19;
const ENOPROTOOPT: i32 = 92;
const EOPNOTSUPP: i32 = 95;

const fn row(level: i32, name: i32, handling: Handling, usual: i32) -> Row {
    Row {
        level,
        name,
        handling,
        usual,
    }
}

use Handling::{Kept, Pair, Refused, Served, Told};
use level::{IP, IPV6, SOCKET, TCP, UDP};

/// See the module.
const TABLE: &[Row] = &[
    row(SOCKET, 1, Kept, 0), // SO_DEBUG
    row(SOCKET, name::REUSEADDR, Served, 0),
    row(SOCKET, name::TYPE, Told, 0),
    row(SOCKET, name::ERROR, Told, 0),
    row(SOCKET, 5, Kept, 0), // SO_DONTROUTE
    row(SOCKET, 6, Kept, 0), // SO_BROADCAST
    row(SOCKET, name::SNDBUF, Served, 87_040),
    row(SOCKET, name::RCVBUF, Served, 131_072),
    row(SOCKET, name::KEEPALIVE, Served, 0),
    row(SOCKET, name::OOBINLINE, Served, 0),
    row(SOCKET, 12, Kept, 0), // SO_PRIORITY
    row(SOCKET, name::LINGER, Served, 0),
    row(SOCKET, name::REUSEPORT, Served, 0),
    row(SOCKET, 18, Pair, 0),                 // SO_RCVLOWAT
    row(SOCKET, 19, Refused(ENOPROTOOPT), 1), // SO_SNDLOWAT
    row(SOCKET, 20, Pair, 0),                 // SO_RCVTIMEO
    row(SOCKET, 21, Pair, 0),                 // SO_SNDTIMEO
    row(SOCKET, 25, Refused(ENODEV), 0),      // SO_BINDTODEVICE
    row(SOCKET, 26, Refused(EPERM), 0),       // SO_ATTACH_FILTER
    row(SOCKET, name::ACCEPTCONN, Told, 0),
    row(SOCKET, 36, Refused(EPERM), 0), // SO_MARK
    row(SOCKET, name::PROTOCOL, Told, 0),
    row(SOCKET, name::DOMAIN, Told, 0),
    row(SOCKET, 46, Kept, 0),                // SO_BUSY_POLL
    row(SOCKET, 49, Kept, 0),                // SO_INCOMING_CPU
    row(SOCKET, 50, Refused(EPERM), 0),      // SO_ATTACH_BPF
    row(SOCKET, 57, Pair, 0),                // SO_COOKIE
    row(SOCKET, 60, Refused(EOPNOTSUPP), 0), // SO_ZEROCOPY
    row(SOCKET, 66, Pair, 0),                // SO_RCVTIMEO of 64 bits
    row(SOCKET, 67, Pair, 0),                // SO_SNDTIMEO of 64 bits
    row(SOCKET, 71, Pair, 0),                // SO_NETNS_COOKIE
    row(IP, name::IP_TOS, Served, 0),
    row(IP, name::IP_TTL, Served, 64),
    row(IP, name::IP_PKTINFO, Served, 0),
    row(IP, 10, Kept, 1), // IP_MTU_DISCOVER
    row(IP, 11, Kept, 0), // IP_RECVERR
    row(IP, name::IP_RECVTTL, Served, 0),
    row(IP, 13, Kept, 0), // IP_RECVTOS
    row(IP, name::IP_MTU, Told, 0),
    row(IP, 15, Kept, 0), // IP_FREEBIND
    row(IP, 24, Kept, 0), // IP_BIND_ADDRESS_NO_PORT
    row(IP, name::IP_MULTICAST_IF, Served, 0),
    row(IP, name::IP_MULTICAST_TTL, Served, 1),
    row(IP, name::IP_MULTICAST_LOOP, Served, 1),
    row(IP, name::IP_ADD_MEMBERSHIP, Served, 0),
    row(IP, name::IP_DROP_MEMBERSHIP, Served, 0),
    row(IP, name::MCAST_JOIN_GROUP, Served, 0),
    row(IP, name::MCAST_LEAVE_GROUP, Served, 0),
    row(IP, name::IP_MULTICAST_ALL, Served, 1),
    row(IPV6, name::IPV6_UNICAST_HOPS, Served, 64),
    row(IPV6, name::IPV6_MULTICAST_IF, Served, 0),
    row(IPV6, name::IPV6_MULTICAST_HOPS, Served, 1),
    row(IPV6, name::IPV6_MULTICAST_LOOP, Served, 1),
    row(IPV6, name::IPV6_JOIN_GROUP, Served, 0),
    row(IPV6, name::IPV6_LEAVE_GROUP, Served, 0),
    row(IPV6, 23, Kept, 1), // IPV6_MTU_DISCOVER
    row(IPV6, name::IPV6_MTU, Kept, 0),
    row(IPV6, 25, Kept, 0), // IPV6_RECVERR
    row(IPV6, name::V6ONLY, Served, 0),
    row(IPV6, name::IPV6_MULTICAST_ALL, Served, 1),
    row(IPV6, name::MCAST_JOIN_GROUP, Served, 0),
    row(IPV6, name::MCAST_LEAVE_GROUP, Served, 0),
    row(IPV6, name::IPV6_RECVPKTINFO, Served, 0),
    row(IPV6, name::IPV6_RECVHOPLIMIT, Served, 0),
    row(IPV6, 62, Kept, 0), // IPV6_DONTFRAG
    row(IPV6, 66, Kept, 0), // IPV6_RECVTCLASS
    row(IPV6, name::IPV6_TCLASS, Served, 0),
    row(IPV6, 72, Kept, 0), // IPV6_ADDR_PREFERENCES
    row(TCP, name::TCP_NODELAY, Served, 0),
    row(TCP, name::TCP_MAXSEG, Kept, 536),
    row(TCP, 3, Kept, 0), // TCP_CORK
    row(TCP, name::TCP_KEEPIDLE, Served, 7200),
    row(TCP, name::TCP_KEEPINTVL, Served, 75),
    row(TCP, name::TCP_KEEPCNT, Served, 9),
    row(TCP, 7, Kept, 6),  // TCP_SYNCNT
    row(TCP, 8, Kept, 60), // TCP_LINGER2
    row(TCP, 9, Kept, 0),  // TCP_DEFER_ACCEPT
    row(TCP, 10, Kept, 0), // TCP_WINDOW_CLAMP
    row(TCP, name::TCP_INFO, Told, 0),
    row(TCP, 12, Kept, 1), // TCP_QUICKACK
    row(TCP, name::TCP_CONGESTION, Refused(ENOENT), 0),
    row(TCP, name::TCP_USER_TIMEOUT, Served, 0),
    row(TCP, 19, Refused(EPERM), 0),        // TCP_REPAIR
    row(TCP, 23, Kept, 0),                  // TCP_FASTOPEN
    row(TCP, 25, Kept, -1),                 // TCP_NOTSENT_LOWAT
    row(TCP, 30, Refused(EOPNOTSUPP), 0),   // TCP_FASTOPEN_CONNECT
    row(TCP, 31, Refused(ENOENT), 0),       // TCP_ULP
    row(UDP, 1, Refused(ENOPROTOOPT), 0),   // UDP_CORK
    row(UDP, 103, Refused(ENOPROTOOPT), 0), // UDP_SEGMENT
    row(UDP, 104, Refused(ENOPROTOOPT), 0), // UDP_GRO
];

/// The option of this number at this level.
pub fn option(level: i32, name: i32) -> Option<&'static Row> {
    TABLE
        .iter()
        .find(|row| row.level == level && row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_stands_there_once() {
        for (at, row) in TABLE.iter().enumerate() {
            let same = |other: &&Row| (other.level, other.name) == (row.level, row.name);
            assert_eq!(
                TABLE.iter().position(|other| same(&other)),
                Some(at),
                "{row:?}"
            );
        }
        assert!(option(level::TCP, 99).is_none());
    }
}
