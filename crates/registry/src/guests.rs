//! Whose the addresses of guests of Xen are here, by what dom0 says.
//!
//! To others all addresses of a guest are the guest's *place* ([`crate::place_of_guest`]): which namespace of its an address
//! belongs to, its own broker knows and vouches for.

use crate::domains::guest_of_place;
use crate::processes::ConnState;
use crate::{ProcessId, Registry, SocketFacts, place_of_guest};
use fordway_abi::control::Protocol;
pub use fordway_guests::{GuestAddresses, GuestAddressesError};
use std::net::IpAddr;

/// What dom0 says.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    own: Option<GuestAddresses>,
    others: Vec<(u16, GuestAddresses)>,
}

impl Guests {
    /// The place of the guest that has an address; `host` is this one's.
    pub(crate) fn place_with(&self, ip: IpAddr, host: Option<u64>) -> Option<u64> {
        let is_own = self.own.as_ref().is_some_and(|own| own.has(ip));
        let other = || self.other_with(ip).map(place_of_guest);
        host.filter(|_| is_own).or_else(other)
    }

    fn other_with(&self, ip: IpAddr) -> Option<u16> {
        let mut others = self.others.iter();
        let found = others.find(|(_, addresses)| addresses.has(ip));
        found.map(|(domid, _)| *domid)
    }
}

impl Registry {
    /// What dom0 says of guests: this one's addresses, and those of the ones that it may meet. Channels with others are
    /// downgraded.
    pub fn set_guests(
        &mut self,
        own: Option<GuestAddresses>,
        others: impl Iterator<Item = (u16, GuestAddresses)>,
    ) -> Vec<crate::Action> {
        let others = others.collect();
        self.domains.guests = Guests { own, others };
        self.downgrade_unassigned()
    }

    /// The other guest that has this address. What a domain of ours has is nobody else's.
    pub fn guest_with(&self, ip: IpAddr) -> Option<u16> {
        guest_of_place(self.domains.owner_of(ip)?)
    }

    /// Whether the connection of a socket of ours is one with this other guest.
    pub fn is_with_guest(&self, facts: &SocketFacts, other: u16) -> bool {
        self.is_of_this_guest(facts) && self.guest_with(facts.remote.ip()) == Some(other)
    }

    /// What a process of another guest has on offer is not any more.
    pub fn end_offers_of(&mut self, process: ProcessId) {
        let conns = self.processes.get(&process).map(|process| &process.conns);
        let offered = conns
            .into_iter()
            .flatten()
            .filter(|(_, conn)| matches!(conn.state, ConnState::Offered { .. }))
            .map(|(conn_id, _)| (process, *conn_id));
        for key in offered.collect::<Vec<_>>() {
            self.end_conn(key, &mut Vec::new());
        }
    }

    /// What our processes have on offer to another guest, without a partner: not here any more from now on, but with that guest's
    /// broker.
    pub fn take_offers_to(&mut self, other: u16) -> Vec<(ProcessId, u64, SocketFacts)> {
        let mut taken = Vec::new();
        for key in self.offers.values() {
            let facts = self.conn(*key).map(|conn| conn.facts);
            let is_to_other = |facts: &SocketFacts| {
                facts.protocol == Protocol::Tcp && self.is_with_guest(facts, other)
            };
            if let Some(facts) = facts.filter(is_to_other) {
                taken.push((key.0, key.1, facts));
            }
        }
        for (process, conn_id, _) in &taken {
            self.end_conn((*process, *conn_id), &mut Vec::new());
        }
        taken
    }

    /// Whether a socket of ours is one that another guest may be told of: in the namespace that has its local
    /// address, which is one of this guest's by dom0's word.
    pub fn is_of_this_guest(&self, facts: &SocketFacts) -> bool {
        let ip = facts.local.ip();
        let own = self.domains.guests.own.as_ref();
        own.is_some_and(|own| own.has(ip)) && self.domains.owner_of(ip) == Some(facts.netns_cookie)
    }

    /// Whether a socket may be that of a connection with us: of the place of a guest which has its local address, to an
    /// address of ours.
    pub fn is_for_this_guest(&self, facts: &SocketFacts) -> bool {
        let theirs = self.guest_with(facts.local.ip());
        let own = self.domains.guests.own.as_ref();
        theirs.is_some()
            && theirs == guest_of_place(facts.netns_cookie)
            && own.is_some_and(|own| own.has(facts.remote.ip()))
    }

    /// What the guest at this address is called in listings.
    pub fn name_of_guest_at(&self, ip: IpAddr) -> Option<String> {
        let domid = self.guest_with(ip)?;
        Some(self.name_of_netns(place_of_guest(domid)))
    }
}
