//! A DHCP client (RFC 2131, options of RFC 2132).
//!
//! ```text
//!   Off ──start──► Selecting ──offer──► Requesting ──ack──► Bound ──T1──► Renewing ──T2──► Rebinding
//!                     ▲                    │ nak, silence      ▲             │ ack            │ ack
//!                     └────────────────────┘                   └─────────────┴────────────────┘
//!                     ▲──────────────────────── nak, lease over ─────────────────────────────┘
//! ```
//! A lease sets the one IPv4 address that DHCP has brought, and a default route; they go when
//! it ends. Other addresses and routes are left alone. Answers count with our transaction id and
//! Ethernet address; an acknowledgement only from the server that was asked.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use alloc::vec::Vec;

use crate::config::UdpOptions;
use crate::packet::{self, Ip};
use crate::route::{Cidr, Class, Route};
use crate::stack::{Source, Stack};
use crate::{Micros, SECOND_US};

const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Fixed part with the cookie.
const FIXED: usize = 240;
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;
const RETRY_US_FIRST: Micros = 2 * SECOND_US;
const RETRY_US_MAX: Micros = 64 * SECOND_US;
const REQUEST_TRIES_MAX: u8 = 4;
const DNS_MAX: usize = 3;

/// What a server has lent us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub address: Cidr,
    pub router: Option<Ipv4Addr>,
    pub name_servers: Vec<Ipv4Addr>,
    pub ends_at: Micros,
}

#[derive(Clone, Debug)]
struct Bound {
    lease: Lease,
    server: Ipv4Addr,
    renew_at: Micros,
    rebind_at: Micros,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Off,
    Selecting,
    Requesting {
        address: Ipv4Addr,
        server: Ipv4Addr,
    },
    Bound(Bound),
    Renewing(Bound),
    Rebinding(Bound),
}

#[derive(Debug, Default)]
pub(crate) struct Dhcp {
    state: State,
    transaction: u32,
    tries: u8,
    since: Micros,
    next_at: Option<Micros>,
}

/// What a reply says.
#[derive(Debug, Default)]
struct Reply {
    kind: u8,
    address: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
    mask: Option<Ipv4Addr>,
    router: Option<Ipv4Addr>,
    name_servers: Vec<Ipv4Addr>,
    lease_s: Option<u32>,
    renew_s: Option<u32>,
    rebind_s: Option<u32>,
}

impl Dhcp {
    pub(crate) fn next_at(&self) -> Option<Micros> {
        self.next_at
    }

    fn bound(&self) -> Option<&Bound> {
        match &self.state {
            State::Bound(bound) | State::Renewing(bound) | State::Rebinding(bound) => Some(bound),
            _ => None,
        }
    }

    fn is_on(&self) -> bool {
        !matches!(self.state, State::Off)
    }

    /// After this many tries the next comes so much later, within a second more or less.
    fn retry(&mut self, now: Micros, jitter: u64) {
        let wait = (RETRY_US_FIRST << self.tries.min(5)).min(RETRY_US_MAX);
        self.tries = self.tries.saturating_add(1);
        self.next_at = Some(now + wait - SECOND_US + jitter % (2 * SECOND_US));
    }
}

impl Reply {
    fn parse(message: &[u8], transaction: u32, mac: &[u8; 6]) -> Option<Reply> {
        let fixed = message.get(..FIXED)?;
        let is_ours = fixed[0] == 2
            && packet::be32(fixed, 4)? == transaction
            && fixed[28..34] == *mac
            && fixed[236..240] == COOKIE;
        if !is_ours {
            return None;
        }
        let mut reply = Reply::default();
        let yours = Ipv4Addr::from_bits(packet::be32(fixed, 16)?);
        reply.address = (!yours.is_unspecified()).then_some(yours);
        let mut options = &message[FIXED..];
        while let [code, rest @ ..] = options {
            if *code == 0 {
                options = rest;
                continue;
            }
            let [len, rest @ ..] = rest else { break };
            if *code == 255 || rest.len() < usize::from(*len) {
                break;
            }
            let (value, after) = rest.split_at((*len).into());
            reply.take(*code, value);
            options = after;
        }
        Some(reply)
    }

    fn take(&mut self, code: u8, value: &[u8]) {
        let word = packet::be32(value, 0);
        let address = word.map(Ipv4Addr::from_bits);
        match code {
            1 => self.mask = address,
            3 => self.router = address,
            6 => {
                let all = value.chunks_exact(4).filter_map(|v| packet::be32(v, 0));
                self.name_servers = all.take(DNS_MAX).map(Ipv4Addr::from_bits).collect();
            }
            51 => self.lease_s = word,
            53 => self.kind = value.first().copied().unwrap_or(0),
            54 => self.server = address,
            58 => self.renew_s = word,
            59 => self.rebind_s = word,
            _ => {}
        }
    }
}

impl Stack {
    /// Looks for an address. Events tell when there is one, and when it is gone.
    pub fn dhcp_start(&mut self, now: Micros) {
        self.advance(now);
        self.dhcp_restart();
    }

    /// Stops; what was lent is given up without a word.
    pub fn dhcp_stop(&mut self) {
        self.drop_lease();
        self.dhcp = Dhcp::default();
    }

    pub fn dhcp_lease(&self) -> Option<&Lease> {
        self.dhcp.bound().map(|bound| &bound.lease)
    }

    fn dhcp_restart(&mut self) {
        self.drop_lease();
        let now = self.now;
        self.dhcp = Dhcp {
            state: State::Selecting,
            transaction: self.random.next() as u32,
            tries: 0,
            since: now,
            next_at: Some(now),
        };
    }

    #[inline(never)]
    pub(crate) fn dhcp_advance(&mut self) {
        let now = self.now;
        let jitter = self.random.next();
        match self.dhcp.state.clone() {
            State::Off => self.dhcp.next_at = None,
            State::Selecting => {
                self.dhcp.retry(now, jitter);
                self.send_dhcp(DISCOVER, None, None);
            }
            State::Requesting { address, server } => {
                if self.dhcp.tries >= REQUEST_TRIES_MAX {
                    return self.dhcp_restart();
                }
                self.dhcp.retry(now, jitter);
                self.send_dhcp(REQUEST, Some(address), Some(server));
            }
            State::Bound(bound) | State::Renewing(bound) | State::Rebinding(bound) => {
                self.dhcp_renew(bound);
            }
        }
    }

    /// RFC 2131 section 4.4.5: half of what is left until the next step, a minute at least.
    fn dhcp_renew(&mut self, bound: Bound) {
        let now = self.now;
        if now >= bound.lease.ends_at {
            return self.dhcp_restart();
        }
        let until = if now >= bound.rebind_at {
            bound.lease.ends_at
        } else {
            bound.rebind_at
        };
        let wait = ((until - now) / 2).max(60 * SECOND_US);
        self.dhcp.next_at = Some((now + wait).min(until));
        if matches!(self.dhcp.state, State::Bound(_)) {
            self.dhcp.transaction = self.random.next() as u32;
            self.dhcp.since = now;
        }
        self.dhcp.state = if now >= bound.rebind_at {
            State::Rebinding(bound)
        } else {
            State::Renewing(bound)
        };
        self.send_dhcp(REQUEST, None, None);
    }

    fn send_dhcp(&mut self, kind: u8, wanted: Option<Ipv4Addr>, server: Option<Ipv4Addr>) {
        let own = self
            .dhcp
            .bound()
            .and_then(|bound| match bound.lease.address.address {
                IpAddr::V4(own) => Some(own),
                IpAddr::V6(_) => None,
            });
        let mut message = [0; 300];
        message[..3].copy_from_slice(&[1, 1, 6]);
        packet::put32(&mut message, 4, self.dhcp.transaction);
        let seconds = self.now.saturating_sub(self.dhcp.since) / SECOND_US;
        packet::put16(&mut message, 8, seconds.min(0xffff) as u16);
        match own {
            Some(own) => packet::put32(&mut message, 12, own.to_bits()),
            // We cannot be reached by an address that we do not have yet.
            None => packet::put16(&mut message, 10, 0x8000),
        }
        message[28..34].copy_from_slice(&self.link.mac);
        message[236..240].copy_from_slice(&COOKIE);
        let mut at = FIXED;
        let mut option = |code: u8, value: &[u8]| {
            message[at] = code;
            message[at + 1] = value.len() as u8;
            message[at + 2..at + 2 + value.len()].copy_from_slice(value);
            at += 2 + value.len();
        };
        option(53, &[kind]);
        let mut client = [1; 7];
        client[1..].copy_from_slice(&self.link.mac);
        option(61, &client);
        option(57, &576u16.to_be_bytes());
        option(55, &[1, 3, 6, 51, 54, 58, 59]);
        if let Some(wanted) = wanted {
            option(50, &wanted.octets());
        }
        if let Some(server) = server {
            option(54, &server.octets());
        }
        message[at] = 255;
        let to = match &self.dhcp.state {
            State::Renewing(bound) => bound.server,
            _ => Ipv4Addr::BROADCAST,
        };
        let src = own.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let to = SocketAddr::new(to.into(), SERVER_PORT);
        let from = SocketAddr::new(src.into(), CLIENT_PORT);
        let _ = self.udp_output(from, to, &message, &UdpOptions::default());
    }

    /// A server may answer to the address that it is about to lend.
    pub(crate) fn class_for_dhcp(&self, bytes: &[u8], ip: &Ip, class: Class) -> Class {
        let is_reply = self.dhcp.is_on()
            && ip.protocol == packet::UDP
            && ip.fragment.is_none()
            && ip.dst.is_ipv4()
            && packet::be16(bytes, ip.payload + 2) == Some(CLIENT_PORT);
        if is_reply && class == Class::Other {
            Class::Broadcast
        } else {
            class
        }
    }

    /// True if the datagram was for the client.
    pub(crate) fn dhcp_input(&mut self, bytes: &[u8], ip: &Ip) -> bool {
        let datagram = &bytes[ip.payload..ip.end];
        let is_reply = self.dhcp.is_on()
            && ip.dst.is_ipv4()
            && packet::be16(datagram, 0) == Some(SERVER_PORT)
            && packet::be16(datagram, 2) == Some(CLIENT_PORT);
        if !is_reply {
            return false;
        }
        let message = datagram.get(8..).unwrap_or_default();
        if let Some(reply) = Reply::parse(message, self.dhcp.transaction, &self.link.mac) {
            self.dhcp_reply(reply);
        }
        true
    }

    fn dhcp_reply(&mut self, reply: Reply) {
        let asked = match &self.dhcp.state {
            State::Requesting { server, .. } => Some(*server),
            State::Renewing(bound) => Some(bound.server),
            State::Rebinding(_) => reply.server,
            State::Selecting => None,
            State::Off | State::Bound(_) => return,
        };
        match (reply.kind, asked) {
            (OFFER, None) => {
                let (Some(address), Some(server)) = (reply.address, reply.server) else {
                    return;
                };
                self.dhcp.state = State::Requesting { address, server };
                self.dhcp.tries = 0;
                self.dhcp.next_at = Some(self.now);
            }
            (ACK, Some(_)) if reply.server == asked => self.dhcp_bind(reply),
            (NAK, Some(_)) if reply.server == asked => self.dhcp_restart(),
            _ => {}
        }
    }

    fn dhcp_bind(&mut self, reply: Reply) {
        let (Some(address), Some(server)) = (reply.address, reply.server) else {
            return;
        };
        let is_host = !address.is_multicast() && !address.is_broadcast() && !address.is_loopback();
        let Some(lease_s) = reply.lease_s.filter(|s| *s > 0 && is_host) else {
            return;
        };
        let now = self.now;
        let after = |seconds: u32| now + Micros::from(seconds) * SECOND_US;
        let prefix_len = reply
            .mask
            .map_or(24, |mask| mask.to_bits().leading_ones() as u8);
        let renew_s = reply
            .renew_s
            .filter(|s| *s < lease_s)
            .unwrap_or(lease_s / 2);
        let rebind_s = reply.rebind_s.filter(|s| *s < lease_s && *s > renew_s);
        let rebind_s = rebind_s.unwrap_or((u64::from(lease_s) * 7 / 8) as u32);
        let bound = Bound {
            lease: Lease {
                address: Cidr::new(address.into(), prefix_len),
                router: reply.router,
                name_servers: reply.name_servers,
                ends_at: after(lease_s),
            },
            server,
            renew_at: after(renew_s),
            rebind_at: after(rebind_s),
        };
        let is_same = self.dhcp.bound().is_some_and(|old| {
            old.lease.address == bound.lease.address && old.lease.router == bound.lease.router
        });
        if !is_same {
            self.drop_lease();
            self.routing.addresses.push(bound.lease.address);
            if let Some(router) = bound.lease.router {
                self.routing.routes.push(default_route(router));
            }
            self.addresses_changed();
            self.sources.push_back(Source::Lease);
        }
        self.dhcp.next_at = Some(bound.renew_at);
        self.dhcp.state = State::Bound(bound);
    }

    /// Takes back what the lease has set.
    fn drop_lease(&mut self) {
        let Some(lease) = self.dhcp.bound().map(|bound| bound.lease.clone()) else {
            return;
        };
        self.routing.addresses.retain(|own| *own != lease.address);
        if let Some(router) = lease.router {
            self.routing
                .routes
                .retain(|route| *route != default_route(router));
        }
        self.dhcp.state = State::Off;
        self.addresses_changed();
        self.sources.push_back(Source::Lease);
    }
}

fn default_route(router: Ipv4Addr) -> Route {
    Route {
        destination: Cidr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        gateway: router.into(),
    }
}
