//! ICMPv6 (RFC 4443) with neighbor discovery (RFC 4861): echo, errors, solicitations and
//! advertisements. Routers are set by the administrator, their advertisements are not believed.
//!
//! Every discovery message must have a hop limit of 255: it has crossed no router.

use core::net::{IpAddr, Ipv6Addr};

use crate::Mac;
use crate::counters::Drop;
use crate::packet::{self, Ip};
use crate::route::{Cidr, Class};
use crate::stack::Stack;

const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
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
fn solicited_node(target: &Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xff02_u128 << 112 | 0x1_ff00_0000 | (target.to_bits() & 0x00ff_ffff))
}

/// The Ethernet address in the first option of this type.
fn link_address(mut options: &[u8], wanted: u8) -> Option<Mac> {
    while let [kind, units, ..] = *options {
        let len = usize::from(units) * 8;
        if len == 0 || len > options.len() {
            return None;
        }
        if kind == wanted && len == 8 {
            let mac: Mac = options[2..8].try_into().ok()?;
            return (mac[0] & 1 == 0).then_some(mac);
        }
        options = &options[len..];
    }
    None
}

impl Stack {
    /// Whether we listen to this group: all nodes, and where our addresses are asked for.
    pub(crate) fn is_own_group(&self, group: &Ipv6Addr) -> bool {
        *group == Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)
            || self.routing.addresses.iter().any(|own| match own.address {
                IpAddr::V6(own) => solicited_node(&own) == *group,
                IpAddr::V4(_) => false,
            })
    }

    pub(crate) fn icmpv6_input(&mut self, bytes: &[u8], ip: &Ip, class: Class) -> Result<(), Drop> {
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
            SOLICITATION | ADVERTISEMENT if ip.hop_limit == HOP_LIMIT && code == 0 => {
                let octets: [u8; 16] = message
                    .get(8..FIXED)
                    .and_then(|target| target.try_into().ok())
                    .ok_or(Drop::Malformed)?;
                let target = Ipv6Addr::from(octets);
                if kind == SOLICITATION {
                    self.solicited(ip, target, &message[FIXED..])
                } else {
                    self.advertised(target, &message[FIXED..])
                }
            }
            #[cfg(feature = "tcp")]
            1 | 2 if class == Class::Own => {
                let mtu = (kind == 2).then_some(usize::from(u16::from_be_bytes([s0, s1])));
                self.tcp_icmp_error(&message[8..], mtu, kind == 1 && code == 4);
                Ok(())
            }
            _ => Err(Drop::Protocol),
        }
    }

    fn solicited(&mut self, ip: &Ip, target: Ipv6Addr, options: &[u8]) -> Result<(), Drop> {
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
            let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            self.send_discovery(ADVERTISEMENT, IS_OVERRIDE, target, target, all);
            return Ok(());
        }
        let IpAddr::V6(source) = ip.src else {
            return Err(Drop::Malformed);
        };
        if let Some(mac) = link_address(options, OPTION_SOURCE)
            && self.is_on_link(&ip.src)
            && let Some(released) = self.neighbors.learn(ip.src, mac, false, self.now)
        {
            self.release(released);
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

    fn advertised(&mut self, target: Ipv6Addr, options: &[u8]) -> Result<(), Drop> {
        let target = IpAddr::V6(target);
        if self.routing.is_own(&target) {
            return Err(Drop::Source);
        }
        let mac = link_address(options, OPTION_TARGET).ok_or(Drop::Malformed)?;
        if let Some(released) = self.neighbors.learn(target, mac, true, self.now) {
            self.release(released);
        }
        Ok(())
    }

    fn is_on_link(&self, address: &IpAddr) -> bool {
        crate::route::is_link_local(address)
            || self
                .routing
                .addresses
                .iter()
                .any(|own| own.contains(address))
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

    fn send_discovery(
        &mut self,
        kind: u8,
        flags: u8,
        target: Ipv6Addr,
        src: Ipv6Addr,
        dst: Ipv6Addr,
    ) {
        let (src, dst) = (IpAddr::V6(src), IpAddr::V6(dst));
        let buffer = self.outbox.buffer();
        let (mut frame, at) =
            packet::start(buffer, &src, &dst, packet::ICMPV6, HOP_LIMIT, FIXED + 8);
        frame[at] = kind;
        frame[at + 4] = flags;
        frame[at + 8..at + FIXED].copy_from_slice(&target.octets());
        let option = if kind == SOLICITATION {
            OPTION_SOURCE
        } else {
            OPTION_TARGET
        };
        frame[at + FIXED] = option;
        frame[at + FIXED + 1] = 1;
        frame[at + FIXED + 2..].copy_from_slice(&self.link.mac);
        self.send(frame, src, dst, 2);
    }
}
