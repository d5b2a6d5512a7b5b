//! What the filter asks of its surroundings, beyond packet and rules.

use crate::packet::Iface;

/// Clock of the day, randomness, routes. Everything but randomness has an answer that
/// says "not known", so that a small environment is a small `impl`.
pub trait Environment {
    fn random(&mut self) -> u32;

    /// Nanoseconds since 1970, for `meta time`, `day` and `hour`.
    fn wall_ns(&self) -> u64 {
        0
    }

    /// What the routing table says, for `fib`.
    fn fib(&self, query: &FibQuery) -> FibAnswer {
        let _ = query;
        FibAnswer::default()
    }

    /// An own address: of the interface a packet leaves by (masquerade) or came in by
    /// (redirect; the loopback address if there is none).
    fn local_address(&self, interface: Option<&Iface>, six: bool, towards: u128) -> Option<u128> {
        let _ = (interface, six, towards);
        None
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FibQuery {
    /// IPv4 addresses stand in the low bits.
    pub address: u128,
    pub six: bool,
    pub iif: Option<Iface>,
    pub oif: Option<Iface>,
    pub mark: Option<u32>,
    /// The address is the packet's source: the route back is asked for.
    pub is_source: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FibAnswer {
    pub interface: Option<Iface>,
    /// RTN_*: 1 unicast, 2 local, 3 broadcast, 5 multicast, 6 blackhole, 7 unreachable ...
    pub kind: u32,
}
