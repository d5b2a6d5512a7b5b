//! Own addresses and routes: which of our addresses speaks to a destination, and who on the
//! link takes the packet. Both lists are short and set by the administrator, so they are walked.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub address: IpAddr,
    pub prefix_len: u8,
}

impl Cidr {
    pub fn new(address: IpAddr, prefix_len: u8) -> Cidr {
        Cidr {
            address,
            prefix_len,
        }
    }

    pub fn contains(&self, address: &IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_len.min(32)));
                (own.to_bits() ^ other.to_bits()) & mask.unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_len.min(128)));
                (own.to_bits() ^ other.to_bits()) & mask.unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    fn broadcast(&self) -> Option<Ipv4Addr> {
        match self.address {
            IpAddr::V4(own) if self.prefix_len < 31 => {
                let host = u32::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
                Some(Ipv4Addr::from_bits(own.to_bits() | host))
            }
            _ => None,
        }
    }
}

/// Packets to `destination` go to the neighbor `gateway`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub destination: Cidr,
    pub gateway: IpAddr,
}

/// What a destination address means to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Own,
    Broadcast,
    Multicast,
    Other,
}

/// Where a packet goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// Back into our own input.
    Own,
    Broadcast,
    Multicast,
    Neighbor(IpAddr),
}

#[derive(Debug, Default)]
pub(crate) struct Routing {
    pub addresses: Vec<Cidr>,
    pub routes: Vec<Route>,
    /// What router advertisements say, kept by `autoconf`: networks on the link, default
    /// routers (the best first), addresses that begin no conversation any more.
    pub on_link: Vec<Cidr>,
    pub routers: Vec<IpAddr>,
    pub deprecated: Vec<IpAddr>,
}

impl Routing {
    pub(crate) fn is_own(&self, address: &IpAddr) -> bool {
        address.is_loopback() || self.addresses.iter().any(|own| own.address == *address)
    }

    /// Whether a socket may be bound to it.
    pub(crate) fn can_bind(&self, address: &IpAddr) -> bool {
        address.is_unspecified() || self.is_own(address)
    }

    pub(crate) fn classify(&self, address: &IpAddr) -> Class {
        if self.addresses.iter().any(|own| own.address == *address) {
            return Class::Own;
        }
        if address.is_multicast() {
            return Class::Multicast;
        }
        match address {
            IpAddr::V4(four) if *four == Ipv4Addr::BROADCAST => Class::Broadcast,
            IpAddr::V4(four) if self.addresses.iter().any(|a| a.broadcast() == Some(*four)) => {
                Class::Broadcast
            }
            _ if address.is_loopback() => Class::Own,
            _ => Class::Other,
        }
    }

    /// The longest prefix that contains the destination, networks of our own first. A network that a router has told of
    /// is no better than a route of the owner's that is as long.
    pub(crate) fn hop(&self, dst: &IpAddr) -> Option<Hop> {
        match self.classify(dst) {
            Class::Own => return Some(Hop::Own),
            Class::Broadcast => return Some(Hop::Broadcast),
            Class::Multicast => return Some(Hop::Multicast),
            Class::Other => {}
        }
        if is_link_local(dst) || self.addresses.iter().any(|own| own.contains(dst)) {
            return Some(Hop::Neighbor(*dst));
        }
        let route = self
            .routes
            .iter()
            .filter(|route| route.destination.contains(dst))
            .max_by_key(|route| route.destination.prefix_len);
        let told = self.on_link.iter().filter(|network| network.contains(dst));
        let told = told.map(|network| network.prefix_len).max();
        let length = route.map(|route| route.destination.prefix_len);
        if told.is_some_and(|told| length.is_none_or(|length| told > length)) {
            return Some(Hop::Neighbor(*dst));
        }
        let route = route.map(|route| route.gateway);
        let advertised = || self.routers.first().copied().filter(|_| dst.is_ipv6());
        route.or_else(advertised).map(Hop::Neighbor)
    }

    /// The same of a packet with this source: to a group, a loopback address speaks to us alone.
    pub(crate) fn hop_from(&self, src: &IpAddr, dst: &IpAddr) -> Option<Hop> {
        if dst.is_multicast() && src.is_loopback() {
            return Some(Hop::Own);
        }
        self.hop(dst)
    }

    /// Whether a destination is a neighbor.
    pub(crate) fn is_on_link(&self, address: &IpAddr) -> bool {
        let mut networks = self.addresses.iter().chain(&self.on_link);
        is_link_local(address) || networks.any(|network| network.contains(address))
    }

    /// The address of ours that speaks to `dst`: itself, one of the same scope, one that is not
    /// about to run out, one in the same network, the one that has most in common with it, the
    /// first (RFC 6724 section 5, as far as there is one link).
    pub(crate) fn source_for(&self, dst: &IpAddr) -> Option<IpAddr> {
        if self.is_own(dst) {
            return Some(*dst);
        }
        let same = self.addresses.iter().rev();
        same.filter(|own| own.address.is_ipv4() == dst.is_ipv4())
            .max_by_key(|own| {
                let is_scope = has_link_scope(&own.address) == has_link_scope(dst);
                let is_good = !self.deprecated.contains(&own.address);
                let common = common_bits(&own.address, dst);
                (is_scope, is_good, own.contains(dst), common)
            })
            .map(|own| own.address)
    }
}

/// Of the network's half of two IPv6 addresses.
fn common_bits(a: &IpAddr, b: &IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros().min(64),
        _ => 0,
    }
}

/// It means something on one link only.
fn has_link_scope(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(six) if six.is_multicast() => six.segments()[0] & 0xf <= 2,
        IpAddr::V6(six) => is_link_local_v6(six),
    }
}

/// "Any address" of the family that this one is of: who is bound to it takes that family alone.
pub(crate) fn any_of(address: &IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Of sockets bound to these addresses, the one that takes what comes to `dst`: its very address, its family, all.
pub(crate) fn best_bound(
    bound: &[u32],
    dst: &IpAddr,
    address_of: impl Fn(u32) -> Option<IpAddr>,
) -> Option<u32> {
    [Some(*dst), Some(any_of(dst)), None]
        .into_iter()
        .find_map(|wanted| {
            bound
                .iter()
                .copied()
                .find(|index| address_of(*index) == wanted)
        })
}

pub(crate) fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(six) => is_link_local_v6(six),
    }
}

pub(crate) fn is_link_local_v6(address: &Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}
