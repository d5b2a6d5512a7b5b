//! Who is bound to which port, and who may be (linux: inet_bind_conflict, udp_lib_lport_inuse).

use crate::table::{Place, Table};
use fordway_abi::stack::{level, name};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// Ports that are chosen for who asks for none (linux: ip_local_port_range).
const EPHEMERAL: std::ops::Range<u16> = 32_768..60_999;

/// What a socket is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Perhaps any of a family.
    pub address: IpAddr,
    pub port: u16,
    /// Any of IPv6 is any of IPv4, too.
    pub is_both: bool,
}

impl Bound {
    pub(crate) fn new(address: IpAddr, port: u16, is_v6only: bool) -> Bound {
        Bound {
            address,
            port,
            is_both: address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !is_v6only,
        }
    }

    /// What `crates/netstack` binds.
    pub(crate) fn address_of_stack(&self) -> Option<IpAddr> {
        (!self.is_both).then_some(self.address)
    }

    /// Whether there is an address that both would take.
    fn meets(&self, other: &Bound) -> bool {
        self.is_both
            || other.is_both
            || self.address.is_ipv4() == other.address.is_ipv4()
                && (self.address.is_unspecified()
                    || other.address.is_unspecified()
                    || self.address == other.address)
    }
}

/// The ports of one protocol.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    by_port: BTreeMap<u16, Vec<Place>>,
    next: u16,
}

impl Ports {
    /// Whether a socket may be bound so, or may listen where it is.
    pub(crate) fn is_free(&self, table: &Table, place: Place, wanted: &Bound) -> bool {
        let option = |place, name| {
            let socket = table.look(place);
            socket.is_some_and(|socket| socket.options.is_set(level::SOCKET, name))
        };
        let others = self.by_port.get(&wanted.port).into_iter().flatten();
        others
            .copied()
            .filter(|other| *other != place)
            .all(|other| {
                let Some(socket) = table.look(other) else {
                    return true;
                };
                let both = |name| option(place, name) && option(other, name);
                let is_listening = socket.is_listening();
                let meets = socket.bound.is_some_and(|bound| bound.meets(wanted));
                let former = table.look(place).and_then(|socket| socket.former);
                let is_same = former.is_some() && former == socket.former;
                !meets || is_same || both(name::REUSEPORT) || both(name::REUSEADDR) && !is_listening
            })
    }

    /// Who is bound to a port.
    pub(crate) fn of(&self, port: u16) -> Vec<Place> {
        self.by_port.get(&port).cloned().unwrap_or_default()
    }

    /// A port that nobody is bound to.
    pub(crate) fn choose(&mut self, random: u16) -> Option<u16> {
        let span = EPHEMERAL.end - EPHEMERAL.start;
        self.next = self.next.wrapping_add(random % 64 + 1);
        let first = self.next;
        (0..span)
            .map(|step| EPHEMERAL.start + first.wrapping_add(step) % span)
            .find(|port| !self.by_port.contains_key(port))
    }

    pub(crate) fn add(&mut self, port: u16, place: Place) {
        self.by_port.entry(port).or_default().push(place);
    }

    pub(crate) fn remove(&mut self, port: u16, place: Place) {
        if let Some(places) = self.by_port.get_mut(&port) {
            places.retain(|other| *other != place);
            if places.is_empty() {
                self.by_port.remove(&port);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_meets_each_of_its_family() {
        let bound = |text: &str, only| Bound::new(text.parse().expect("an address"), 80, only);
        let meet = |a: &Bound, b: &Bound| {
            assert_eq!(a.meets(b), b.meets(a));
            a.meets(b)
        };
        let (any4, any6) = (bound("0.0.0.0", false), bound("::", false));
        let (one4, one6) = (bound("10.0.0.1", false), bound("fd00::1", false));
        assert!(
            meet(&any4, &one4) && meet(&any6, &one4) && meet(&any6, &one6) && meet(&any4, &any6)
        );
        assert!(!meet(&any4, &one6) && !meet(&one4, &one6));
        assert!(!meet(&bound("::", true), &any4) && meet(&bound("::", true), &one6));
        assert!(!meet(&one4, &bound("10.0.0.2", false)));
    }
}
