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
}

impl Routing {
    pub(crate) fn is_own(&self, address: &IpAddr) -> bool {
        address.is_loopback() || self.addresses.iter().any(|own| own.address == *address)
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

    /// The longest prefix that contains the destination, networks of our own first.
    pub(crate) fn hop(&self, dst: &IpAddr) -> Option<Hop> {
        match self.classify(dst) {
            Class::Own => return Some(Hop::Own),
            Class::Broadcast => return Some(Hop::Broadcast),
            Class::Multicast => return Some(Hop::Multicast),
            Class::Other => {}
        }
        if self.addresses.iter().any(|own| own.contains(dst)) || is_link_local(dst) {
            return Some(Hop::Neighbor(*dst));
        }
        self.routes
            .iter()
            .filter(|route| route.destination.contains(dst))
            .max_by_key(|route| route.destination.prefix_len)
            .map(|route| Hop::Neighbor(route.gateway))
    }

    /// The address of ours that speaks to `dst`: one in the same network, else one of the same
    /// scope, else the first of its family (RFC 6724 in little).
    pub(crate) fn source_for(&self, dst: &IpAddr) -> Option<IpAddr> {
        if self.is_own(dst) {
            return Some(*dst);
        }
        let same = self
            .addresses
            .iter()
            .map(|own| own.address)
            .filter(|a| a.is_ipv4() == dst.is_ipv4());
        let near = self
            .addresses
            .iter()
            .find(|own| own.contains(dst))
            .map(|own| own.address);
        near.or_else(|| {
            same.clone()
                .find(|a| is_link_local(a) == is_link_local(dst))
        })
        .or_else(|| same.clone().next())
    }
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
