//! Who receives what a UDP socket sends to the broadcast address of the domains' network.
//!
//! A shim asks by an offer ([`wire::Offer::to_all`]), and is told the addresses of all receivers, or why its
//! broadcasts are to go by the kernel. What it sends then goes to each of them by the ring of their pair, so the answer is exact, or
//! none: nobody may miss a broadcast, or have it twice.
//!
//! ```text
//!   offer ──► is it true? ──► each namespace at the fabric's bridge: its sockets of that port
//!                                  none hears broadcasts ──► nobody there
//!                                  one, bound to any address ──► what do the rules say of a broadcast to there?
//!                                                                let pass: a receiver · dropped: nobody
//!                                  else ──► by the kernel (and so if a rule needs each packet)
//! ```
//! A socket that is the only one of its port in its namespace gets what is sent to its address as well, so that a datagram of
//! the pair is one to the same receiver. More than one, one that is bound to the broadcast address, to a device or to IPv6, and
//! any at all on a host with an uplink, leave the broadcast to the kernel.
//!
//! No event tells of a socket that is bound. So all is asked anew as often as pairs are looked at, in turn, and a shim is told of
//! what has changed. With new rules, broadcasts go by the kernel until the next look.

use crate::broker::Broker;
use crate::proof::Witness;
use fordway_abi::control::{self as wire, EVERYBODY_MAX};
use fordway_abi::reason::Reason;
use fordway_platform::diag::Bound;
use fordway_registry::{Action, Outgoing, ProcessId, Shown, SocketFacts};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Bound::{Excluded, Unbounded};

/// Offers of all shims, and those of one process.
const OFFERS_MAX: usize = 64;
const OFFERS_OF_ONE_MAX: usize = 8;
/// Namespaces that a broadcast may reach.
const NAMESPACES_MAX: usize = 64;
/// Namespaces whose sockets are listed at one look. Each takes two dumps, of some ten microseconds.
const LISTED_MAX: usize = 128;

type Key = (ProcessId, u64);

/// Those who ask.
#[derive(Debug, Default)]
pub(crate) struct Everybody {
    offers: BTreeMap<Key, Offered>,
    /// The last one that was looked at.
    last: Option<Key>,
}

#[derive(Debug)]
struct Offered {
    facts: SocketFacts,
    told: Option<Answer>,
}

type Answer = Result<Receivers, Reason>;

/// Who receives a broadcast.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Receivers {
    /// Its sender, too.
    own: bool,
    ips: Vec<Ipv4Addr>,
}

impl Everybody {
    pub(crate) fn is_empty(&self) -> bool {
        self.offers.is_empty()
    }

    /// A process is gone.
    pub(crate) fn forget(&mut self, process: ProcessId) {
        self.offers.retain(|(of, _), _| *of != process);
    }

    /// An offer is withdrawn; whether it was one of these.
    pub(crate) fn end(&mut self, process: ProcessId, conn_id: u64) -> bool {
        self.offers.remove(&(process, conn_id)).is_some()
    }

    fn is_full(&self, process: ProcessId) -> bool {
        let of_one = self.offers.keys().filter(|(of, _)| *of == process).count();
        self.offers.len() >= OFFERS_MAX || of_one >= OFFERS_OF_ONE_MAX
    }

    /// All of them, beginning with the next one in turn.
    fn in_turn(&self) -> Vec<Key> {
        let last = self.last.unwrap_or((ProcessId(0), 0));
        let behind = self.offers.range((Excluded(last), Unbounded));
        let before = self.offers.range(..=last);
        behind.chain(before).map(|(key, _)| *key).collect()
    }
}

/// Who hears broadcasts in one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    Nobody,
    /// One socket, by its cookie, which also gets what is sent to the namespace's address.
    One(u64),
    /// Only the kernel knows.
    Some,
}

/// Of the sockets of the port.
fn here(sockets: &[Bound], all: Ipv4Addr) -> Here {
    let all = IpAddr::V4(all);
    // linux: __udp_is_mcast_sock.
    let hears = |socket: &Bound| {
        let ip = socket.local.ip();
        ip.is_unspecified() || ip == all
    };
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    match sockets {
        none if !none.iter().any(hears) => Here::Nobody,
        [one] if one.local.ip() == any && one.remote.port() == 0 && one.device == 0 => {
            Here::One(one.cookie)
        }
        _ => Here::Some,
    }
}

impl Broker {
    /// A process offers a socket that sends to a broadcast address.
    pub(crate) fn offer_to_all(
        &mut self,
        process: ProcessId,
        conn_id: u64,
        facts: Result<SocketFacts, Reason>,
    ) {
        let key = (process, conn_id);
        let kept = facts.and_then(|facts| {
            if self.everybody.is_full(process) {
                return Err(Reason::NoMemory);
            }
            let answer = self.receivers(process, &facts, &mut BTreeMap::new());
            self.places.close_unused();
            match answer {
                // That stays so.
                Err(reason @ (Reason::Unsupported | Reason::Unassigned)) => Err(reason),
                answer => Ok((facts, answer)),
            }
        });
        match kept {
            Ok((facts, answer)) => {
                let offered = Offered { facts, told: None };
                self.everybody.offers.insert(key, offered);
                self.say_who_receives(key, answer);
            }
            Err(reason) => {
                let reason = reason as u32;
                self.note_refused_datagrams(process, reason);
                let message = Outgoing::Reject(wire::Reject {
                    conn_id,
                    reason,
                    pending: 0,
                });
                let to = process;
                self.carry_out(vec![Action::Send { to, message }]);
            }
        }
    }

    /// Asks anew who receives broadcasts.
    pub(crate) fn look_at_everybody(&mut self) {
        let mut listed = BTreeMap::new();
        for key in self.everybody.in_turn() {
            if listed.len() >= LISTED_MAX {
                break;
            }
            self.look_at_one(key, &mut listed);
            self.everybody.last = Some(key);
        }
        if !listed.is_empty() {
            self.places.close_unused();
        }
    }

    /// The rules have changed.
    pub(crate) fn ask_anew_about_everybody(&mut self) {
        for key in self.everybody.in_turn() {
            self.say_who_receives(key, Err(Reason::Filter));
        }
        self.hurry_datagrams();
    }

    fn look_at_one(&mut self, key: Key, listed: &mut BTreeMap<(u64, u16), Here>) {
        if let Some(offered) = self.everybody.offers.get(&key) {
            let facts = offered.facts;
            let answer = self.receivers(key.0, &facts, listed);
            self.say_who_receives(key, answer);
        }
    }

    /// Tells a shim, if it was told something else.
    fn say_who_receives(&mut self, key: Key, answer: Answer) {
        if let Some(offered) = self.everybody.offers.get_mut(&key)
            && offered.told.as_ref() != Some(&answer)
        {
            self.tell_everybody(key, &answer);
            if let Some(offered) = self.everybody.offers.get_mut(&key) {
                offered.told = Some(answer);
            }
        }
    }

    fn tell_everybody(&mut self, (process, conn_id): Key, answer: &Answer) {
        let mut body = wire::Everybody {
            conn_id,
            reason: 0,
            own: 0,
            count: 0,
            pad: 0,
            ips: [[0; 4]; EVERYBODY_MAX],
        };
        match answer {
            Ok(receivers) => {
                body.own = receivers.own.into();
                body.count = receivers.ips.len() as u32;
                for (place, ip) in body.ips.iter_mut().zip(&receivers.ips) {
                    *place = ip.octets();
                }
            }
            Err(reason) => {
                body.reason = *reason as u32;
                self.note_refused_datagrams(process, body.reason);
            }
        }
        let Some(&number) = self.by_process.get(&process) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        match connection.send(&body, Vec::new()) {
            Ok(()) => self.watch_writable(number),
            Err(error) => self.give_up_unsendable(number, &error),
        }
    }

    /// See the module.
    fn receivers(
        &mut self,
        process: ProcessId,
        facts: &SocketFacts,
        listed: &mut BTreeMap<(u64, u16), Here>,
    ) -> Answer {
        let all = self.registry.network().broadcast_address();
        if facts.remote.ip() != all {
            return Err(Reason::Unsupported);
        }
        let domains = self.registry.domains();
        let domains = domains.filter(|domain| self.domains.is_on_fabric(domain));
        let domains: Vec<_> = domains.cloned().collect();
        let is_senders = |domain: &fordway_registry::Domain| {
            domain.netns_cookie == facts.netns_cookie
                && domain.ip.map(IpAddr::V4) == Some(facts.local.ip())
        };
        if !domains.iter().any(is_senders) {
            return Err(Reason::Unassigned);
        }
        if domains.len() > NAMESPACES_MAX {
            return Err(Reason::NoMemory);
        }
        Witness::new(&mut self.places, &self.connections, &self.by_process)
            .still_true(process, facts)?;
        let port = facts.remote.port();
        let host = self.places.own();
        if self.domains.has_uplink() && self.here(host, port, None, listed)? != Here::Nobody {
            return Err(Reason::NoPeer);
        }
        let mut receivers = Receivers::default();
        for domain in &domains {
            let cookie = match self.here(domain.netns_cookie, port, Some(domain), listed)? {
                Here::Nobody => continue,
                Here::One(cookie) => cookie,
                Here::Some => return Err(Reason::NoPeer),
            };
            if cookie == facts.cookie {
                receivers.own = true;
                continue;
            }
            let Some(ip) = domain.ip else { continue };
            let name = SocketAddr::from((ip, port));
            let from = SocketFacts {
                remote: name,
                ..*facts
            };
            let to = SocketFacts {
                cookie,
                netns_cookie: domain.netns_cookie,
                local: name,
                remote: facts.local,
                shown: Shown::default(),
                ..*facts
            };
            if self.rules.hears([&from, &to], facts.remote)? {
                receivers.ips.push(ip);
            }
        }
        match receivers.ips.len() {
            // The kernel sends it to nobody else as fast.
            0 => Err(Reason::NoPeer),
            count if count > EVERYBODY_MAX => Err(Reason::NoMemory),
            _ => Ok(receivers),
        }
    }

    /// Who hears broadcasts to a port in a namespace; the broker's own without a domain.
    fn here(
        &mut self,
        netns_cookie: u64,
        port: u16,
        domain: Option<&fordway_registry::Domain>,
        listed: &mut BTreeMap<(u64, u16), Here>,
    ) -> Result<Here, Reason> {
        if let Some(known) = listed.get(&(netns_cookie, port)) {
            return Ok(*known);
        }
        let (places, domains) = (&mut self.places, &self.domains);
        let open = || {
            domain
                .and_then(|domain| domains.open(domain))
                .ok_or(std::io::ErrorKind::NotFound.into())
        };
        let sockets = places.bound_to(netns_cookie, port, open);
        let sockets = sockets.map_err(|error| {
            tracing::debug!("namespace {netns_cookie} does not show its sockets: {error}");
            Reason::Unproven
        })?;
        let found = here(&sockets, self.registry.network().broadcast_address());
        listed.insert((netns_cookie, port), found);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 255);
    const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

    fn bound(local: impl Into<IpAddr>) -> Bound {
        Bound {
            cookie: 7,
            local: (local.into(), 7000).into(),
            remote: (ANY, 0).into(),
            device: 0,
        }
    }

    #[test]
    fn a_receiver_is_the_only_socket_of_its_port() {
        let own = bound(Ipv4Addr::new(10, 77, 0, 2));
        assert_eq!(here(&[], ALL), Here::Nobody);
        assert_eq!(here(&[own], ALL), Here::Nobody);
        assert_eq!(here(&[bound(ANY)], ALL), Here::One(7));
        let six = bound(std::net::Ipv6Addr::UNSPECIFIED);
        let connected = Bound {
            remote: own.local,
            ..bound(ANY)
        };
        let of_device = Bound {
            device: 2,
            ..bound(ANY)
        };
        for some in [
            &[bound(ALL)][..],
            &[six],
            &[connected],
            &[of_device],
            &[bound(ANY), bound(ANY)],
            // It would get what is sent to the other one.
            &[bound(ANY), own],
        ] {
            assert_eq!(here(some, ALL), Here::Some, "{some:?}");
        }
    }
}
