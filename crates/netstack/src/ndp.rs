//! ICMPv6 (RFC 4443) with neighbor discovery (RFC 4861): echo, errors, solicitations and
//! advertisements. What routers advertise is for `advertised`, where that is wanted.
//!
//! Every discovery message must have a hop limit of 255: it has crossed no router. None may come in
//! fragments.

use core::net::{IpAddr, Ipv6Addr};

use crate::Mac;
use crate::counters::Drop;
use crate::errors::Said;
use crate::ip::Origin;
use crate::packet::{self, Ip};
use crate::route::{Cidr, Class};
use crate::stack::Stack;

const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
#[cfg(feature = "autoconf")]
const LISTENER_QUERY: u8 = 130;
const ROUTER_SOLICITATION: u8 = 133;
#[cfg(feature = "autoconf")]
const ROUTER_ADVERTISEMENT: u8 = 134;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
#[cfg(feature = "autoconf")]
const OPTION_NONCE: u8 = 14;
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
#[cfg(feature = "autoconf")]
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
#[cfg(feature = "autoconf")]
const IS_ROUTER: u8 = 0x80;
const IS_SOLICITED: u8 = 0x40;
const IS_OVERRIDE: u8 = 0x20;
/// Before the options: type, code, checksum, flags, target.
const FIXED: usize = 24;
const HOP_LIMIT: u8 = 255;

impl Cidr {
    /// The link-local address made from an Ethernet address (RFC 4291 appendix A).
    pub fn link_local(mac: &Mac) -> Cidr {
        let [a, b, c, d, e, f] = *mac;
        let host = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
        let mut octets = [0; 16];
        octets[..2].copy_from_slice(&[0xfe, 0x80]);
        octets[8..].copy_from_slice(&host);
        Cidr::new(IpAddr::V6(Ipv6Addr::from(octets)), 64)
    }
}

/// The group in which an address is asked for (RFC 4291 section 2.7.1).
pub(crate) fn solicited_node(target: &Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xff02_u128 << 112 | 0x1_ff00_0000 | (target.to_bits() & 0x00ff_ffff))
}

/// The options one after the other: type and whole bytes. Ends at one that is broken.
pub(crate) fn options(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    core::iter::from_fn(move || {
        let [kind, units, ..] = *bytes else {
            return None;
        };
        let len = usize::from(units) * 8;
        let (option, rest) = bytes.split_at_checked(len).filter(|_| len > 0)?;
        bytes = rest;
        Some((kind, option))
    })
}

/// Whether the options fill the message to its end, none of them empty.
pub(crate) fn are_sound(bytes: &[u8]) -> bool {
    options(bytes)
        .map(|(_, option)| option.len())
        .sum::<usize>()
        == bytes.len()
}

/// Whether a packet is a message of neighbor discovery. One that came in fragments is not to be
/// believed (RFC 6980): a switch that looks for forged ones sees the first fragment alone.
#[cfg_attr(not(feature = "fragments"), expect(dead_code))]
pub(crate) fn is_discovery(bytes: &[u8]) -> bool {
    packet::parse(bytes).is_some_and(|ip| {
        let kind = bytes.get(ip.payload).copied();
        let is_one = |kind| (ROUTER_SOLICITATION..=REDIRECT).contains(&kind);
        ip.dst.is_ipv6() && ip.protocol == packet::ICMPV6 && kind.is_some_and(is_one)
    })
}

/// The Ethernet address in an option.
pub(crate) fn link_address(option: &[u8]) -> Option<Mac> {
    let mac: Mac = option.get(2..8)?.try_into().ok()?;
    (option.len() == 8 && mac[0] & 1 == 0).then_some(mac)
}

/// That of the first option of this type.
fn address_in(bytes: &[u8], wanted: u8) -> Option<Mac> {
    let (_, option) = options(bytes).find(|(kind, _)| *kind == wanted)?;
    link_address(option)
}

impl Stack {
    /// Whether we listen to this group: all nodes, and where our addresses are asked for.
    pub(crate) fn is_own_group(&self, group: &Ipv6Addr) -> bool {
        #[cfg(feature = "autoconf")]
        if self
            .autoconf
            .tentatives()
            .any(|own| solicited_node(&own) == *group)
        {
            return true;
        }
        *group == ALL_NODES
            || self.routing.addresses.iter().any(|own| match own.address {
                IpAddr::V6(own) => solicited_node(&own) == *group,
                IpAddr::V4(_) => false,
            })
    }

    pub(crate) fn icmpv6_input(
        &mut self,
        bytes: &[u8],
        ip: &Ip,
        class: Class,
        origin: Origin,
    ) -> Result<(), Drop> {
        let message = &bytes[ip.payload..ip.end];
        let [kind, code, _, _, i0, i1, s0, s1, ..] = *message else {
            return Err(Drop::Malformed);
        };
        match kind {
            ECHO_REQUEST if class == Class::Own && !ip.src.is_unspecified() => {
                self.echo_reply(message, ip, packet::ICMPV6, ECHO_REPLY);
                Ok(())
            }
            ECHO_REPLY if class == Class::Own => {
                let ident = u16::from_be_bytes([i0, i1]);
                self.note_reply(ip, ident, u16::from_be_bytes([s0, s1]));
                Ok(())
            }
            #[cfg(feature = "autoconf")]
            LISTENER_QUERY => self.mld_query(ip, message),
            ROUTER_SOLICITATION..=REDIRECT => {
                // Nobody tells us by our own loop who is on the link.
                let is_near = ip.hop_limit == HOP_LIMIT && origin != Origin::Loopback;
                if !is_near || code != 0 {
                    return Err(Drop::Discovery);
                }
                match kind {
                    SOLICITATION | ADVERTISEMENT => self.neighbor_input(ip, message),
                    #[cfg(feature = "autoconf")]
                    ROUTER_ADVERTISEMENT => self.router_advertised(ip, message),
                    _ => Err(Drop::Protocol),
                }
            }
            _ => {
                let said = message.first_chunk().and_then(Said::of_v6);
                let said = said.filter(|_| class == Class::Own).ok_or(Drop::Protocol)?;
                self.icmp_error_input(&message[8..], said)
            }
        }
    }

    fn neighbor_input(&mut self, ip: &Ip, message: &[u8]) -> Result<(), Drop> {
        let octets: [u8; 16] = message
            .get(8..FIXED)
            .and_then(|target| target.try_into().ok())
            .ok_or(Drop::Malformed)?;
        let target = Ipv6Addr::from(octets);
        let options = &message[FIXED..];
        if target.is_multicast() || !are_sound(options) {
            return Err(Drop::Malformed);
        }
        if message[0] == SOLICITATION {
            self.solicited(ip, target, options)
        } else {
            self.advertised(target, message[4], options)
        }
    }

    fn solicited(&mut self, ip: &Ip, target: Ipv6Addr, options: &[u8]) -> Result<(), Drop> {
        #[cfg(feature = "autoconf")]
        if let Some(nonce) = self.autoconf.tentative(&target) {
            return self.is_wanted_too(ip, target, nonce, options);
        }
        let target_address = IpAddr::V6(target);
        if !self
            .routing
            .addresses
            .iter()
            .any(|own| own.address == target_address)
        {
            return Err(Drop::NotForUs);
        }
        if ip.src.is_unspecified() {
            // Someone wants our address: all are told whose it is (RFC 4862 section 5.4.3).
            self.send_discovery(ADVERTISEMENT, IS_OVERRIDE, target, target, ALL_NODES);
            return Ok(());
        }
        let IpAddr::V6(source) = ip.src else {
            return Err(Drop::Malformed);
        };
        if let Some(mac) = address_in(options, OPTION_SOURCE) {
            self.learn_neighbor(ip.src, mac);
        }
        self.send_discovery(
            ADVERTISEMENT,
            IS_SOLICITED | IS_OVERRIDE,
            target,
            target,
            source,
        );
        Ok(())
    }

    /// Somebody asks for an address that we ask for: to have it too, or only to speak to it.
    #[cfg(feature = "autoconf")]
    fn is_wanted_too(
        &mut self,
        ip: &Ip,
        target: Ipv6Addr,
        nonce: [u8; 6],
        bytes: &[u8],
    ) -> Result<(), Drop> {
        let mut options = options(bytes);
        let is_echo = options.any(|(kind, option)| kind == OPTION_NONCE && option[2..] == nonce);
        if !ip.src.is_unspecified() || is_echo {
            return Err(Drop::NotForUs);
        }
        self.autoconf_duplicate(&target);
        Ok(())
    }

    /// A neighbor that is about to speak says where it is.
    pub(crate) fn learn_neighbor(&mut self, address: IpAddr, mac: Mac) {
        if self.routing.is_on_link(&address)
            && let Some(released) = self.neighbors.learn(address, mac, false, self.now)
        {
            self.release(released);
        }
    }

    fn advertised(&mut self, target: Ipv6Addr, flags: u8, options: &[u8]) -> Result<(), Drop> {
        #[cfg(feature = "autoconf")]
        if self.autoconf.tentative(&target).is_some() {
            self.autoconf_duplicate(&target);
            return Ok(());
        }
        let address = IpAddr::V6(target);
        if self.routing.is_own(&address) {
            return Err(Drop::Source);
        }
        match address_in(options, OPTION_TARGET) {
            Some(mac) => {
                if let Some(released) = self.neighbors.learn(address, mac, true, self.now) {
                    self.release(released);
                }
            }
            // Who was asked alone need not say where it is.
            None if flags & IS_SOLICITED != 0 => self.neighbors.confirm(&address, self.now),
            None => return Err(Drop::Malformed),
        }
        #[cfg(feature = "autoconf")]
        if flags & IS_ROUTER == 0 {
            self.is_no_router(&target);
        }
        Ok(())
    }

    /// Asks where an address is: all, or the one who had it.
    pub(crate) fn send_solicitation(&mut self, target: Ipv6Addr, to: Option<Mac>) {
        let Some(IpAddr::V6(own)) = self.routing.source_for(&IpAddr::V6(target)) else {
            return;
        };
        let dst = if to.is_some() {
            target
        } else {
            solicited_node(&target)
        };
        self.send_discovery(SOLICITATION, 0, target, own, dst);
    }

    /// Asks all whether one of them has an address that we want.
    #[cfg(feature = "autoconf")]
    pub(crate) fn send_duplicate_question(&mut self, target: Ipv6Addr, nonce: [u8; 6]) {
        let (src, dst) = (Ipv6Addr::UNSPECIFIED, solicited_node(&target));
        let body = target.octets();
        self.send_message(SOLICITATION, 0, &body, (OPTION_NONCE, nonce), src, dst);
    }

    /// Asks routers to say what they know.
    #[cfg(feature = "autoconf")]
    pub(crate) fn send_router_solicitation(&mut self) {
        let own = self.routing.source_for(&ALL_ROUTERS.into());
        if let Some(IpAddr::V6(own)) = own {
            let option = (OPTION_SOURCE, self.link.mac);
            self.send_message(ROUTER_SOLICITATION, 0, &[], option, own, ALL_ROUTERS);
        }
    }

    fn send_discovery(
        &mut self,
        kind: u8,
        flags: u8,
        target: Ipv6Addr,
        src: Ipv6Addr,
        dst: Ipv6Addr,
    ) {
        let option = if kind == SOLICITATION {
            OPTION_SOURCE
        } else {
            OPTION_TARGET
        };
        let option = (option, self.link.mac);
        self.send_message(kind, flags, &target.octets(), option, src, dst);
    }

    /// A message of discovery with one option of eight bytes.
    fn send_message(
        &mut self,
        kind: u8,
        flags: u8,
        body: &[u8],
        option: (u8, [u8; 6]),
        src: Ipv6Addr,
        dst: Ipv6Addr,
    ) {
        let (src, dst) = (IpAddr::V6(src), IpAddr::V6(dst));
        let buffer = self.outbox.buffer();
        let len = 8 + body.len() + 8;
        let (mut frame, at) = packet::start(buffer, &src, &dst, packet::ICMPV6, HOP_LIMIT, len);
        frame[at] = kind;
        frame[at + 4] = flags;
        frame[at + 8..at + 8 + body.len()].copy_from_slice(body);
        let end = &mut frame[at + 8 + body.len()..];
        end[..2].copy_from_slice(&[option.0, 1]);
        end[2..].copy_from_slice(&option.1);
        self.send(frame, src, dst, 2);
    }
}
