//! Between the link and the protocols: what an arriving frame is, where a packet of ours goes.
//!
//! Order of an arriving packet: headers sound, source possible, for us, whole (fragments),
//! transport checksum, filter, protocol. Order of a packet of ours: route, filter, checksum or
//! request for it, fragments, neighbor.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::Mac;
use crate::checksum;
use crate::config::Offloads;
use crate::counters::Drop;
use crate::frame::{ChecksumRequest, Rest, RxChecksum};
use crate::neighbor::{Answer, Request};
use crate::outbox::Waiting;
use crate::packet::{self, ETHERNET, Ip};
use crate::route::{Class, Hop};
use crate::stack::Stack;

pub(crate) const IP_BYTES_MAX: usize = 65_535;
/// As on Linux.
const HOP_LIMIT: u8 = 64;
/// Packets that wait in the loopback queue.
pub(crate) const LOOPBACK_MAX: usize = 256;

pub(crate) fn gso_bytes_max(offloads: &Offloads) -> usize {
    match offloads.gso_bytes_max {
        0 => IP_BYTES_MAX,
        some => some.min(IP_BYTES_MAX),
    }
}

/// Where an arriving packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From the link, with the sender's Ethernet address.
    Link(Mac),
    Loopback,
}

impl Stack {
    pub(crate) fn ethernet_input(
        &mut self,
        frame: &mut [u8],
        checksum: RxChecksum,
        rest: Option<Rest<'_>>,
    ) {
        let Some((header, packet)) = frame.split_at_mut_checked(ETHERNET) else {
            return self.counters.drop(Drop::Malformed);
        };
        // The first bit of an Ethernet address marks groups; which of them are ours is seen
        // from the IP address.
        if header[..6] != self.link.mac && header[0] & 1 == 0 {
            return self.counters.drop(Drop::NotForUs);
        }
        let mut source: Mac = [0; 6];
        source.copy_from_slice(&header[6..12]);
        match u16::from_be_bytes([header[12], header[13]]) {
            packet::ETHERTYPE_ARP => self.arp_input(packet),
            packet::ETHERTYPE_IPV4 if packet.first().is_some_and(|b| b >> 4 == 4) => {
                self.ip_input(packet, Origin::Link(source), checksum, rest);
            }
            #[cfg(feature = "ipv6")]
            packet::ETHERTYPE_IPV6 if packet.first().is_some_and(|b| b >> 4 == 6) => {
                self.ip_input(packet, Origin::Link(source), checksum, rest);
            }
            _ => self.counters.drop(Drop::Protocol),
        }
    }

    pub(crate) fn loopback_input(&mut self, mut frame: Vec<u8>) {
        let packet = &mut frame[ETHERNET..];
        self.ip_input(packet, Origin::Loopback, RxChecksum::Blank, None);
        self.outbox.give_back(frame);
    }

    fn ip_input(
        &mut self,
        bytes: &mut [u8],
        origin: Origin,
        known: RxChecksum,
        rest: Option<Rest<'_>>,
    ) {
        if let Err(why) = self.ip_checked(bytes, origin, known, rest) {
            self.counters.drop(why);
        }
    }

    fn ip_checked(
        &mut self,
        bytes: &mut [u8],
        origin: Origin,
        known: RxChecksum,
        rest: Option<Rest<'_>>,
    ) -> Result<(), Drop> {
        let ip = packet::parse(bytes).ok_or(Drop::Malformed)?;
        if ip.dst.is_ipv4() && origin != Origin::Loopback {
            let header = &bytes[..usize::from(bytes[0] & 15) * 4];
            let sum = match header.len() {
                packet::IPV4 => checksum::of_words::<{ packet::IPV4 }>(header),
                _ => checksum::sum(header),
            };
            if checksum::fold(sum) != 0xffff {
                return Err(Drop::Checksum);
            }
        }
        // What comes is mostly more of the same.
        #[cfg(feature = "tcp")]
        let names = self.names_to_check(bytes, &ip, origin);
        #[cfg(feature = "tcp")]
        if names.is_some() && names == self.checked_names {
            return self.own_input(bytes, &ip, Class::Own, origin, known, rest);
        }
        self.check_source(&ip, origin)?;
        let class = self.routing.classify(&ip.dst);
        let is_foreign_group = class == Class::Multicast && !self.hears_group(&ip);
        #[cfg(feature = "dhcp")]
        let class = self.class_for_dhcp(bytes, &ip, class);
        if class == Class::Other || is_foreign_group {
            return Err(Drop::NotForUs);
        }
        if ip.fragment.is_some() {
            #[cfg(feature = "fragments")]
            if let Some(mut whole) = self.reassemble(bytes, &ip)? {
                #[cfg(feature = "ipv6")]
                if crate::ndp::is_discovery(&whole[ETHERNET..]) {
                    self.outbox.give_back(whole);
                    return Err(Drop::Discovery);
                }
                #[cfg(feature = "filter")]
                {
                    self.hooks.is_whole_of_pieces = true;
                }
                let packet = &mut whole[ETHERNET..];
                let checked = self.ip_checked(packet, origin, RxChecksum::Unchecked, None);
                #[cfg(feature = "filter")]
                {
                    self.hooks.is_whole_of_pieces = false;
                }
                self.outbox.give_back(whole);
                return checked;
            } else {
                return Ok(());
            }
            #[cfg(not(feature = "fragments"))]
            return Err(Drop::Fragment);
        }
        #[cfg(feature = "tcp")]
        if names.is_some() && class == Class::Own {
            self.checked_names = names;
        }
        self.own_input(bytes, &ip, class, origin, known, rest)
    }

    /// What decides whether a whole TCP segment over IPv4 is for us.
    #[cfg(feature = "tcp")]
    fn names_to_check(&self, bytes: &[u8], ip: &Ip, origin: Origin) -> Option<(u64, u32)> {
        let is_plain = ip.dst.is_ipv4() && ip.protocol == packet::TCP && ip.fragment.is_none();
        let names = bytes.get(12..20)?.try_into().ok()?;
        (is_plain && origin != Origin::Loopback)
            .then(|| (u64::from_ne_bytes(names), self.neighbors.epoch))
    }

    /// A whole packet that is for us.
    fn own_input(
        &mut self,
        bytes: &mut [u8],
        ip: &Ip,
        class: Class,
        origin: Origin,
        known: RxChecksum,
        rest: Option<Rest<'_>>,
    ) -> Result<(), Drop> {
        let end = ip.end;
        if known == RxChecksum::Unchecked && !transport_checksum_is_good(bytes, ip) {
            return Err(Drop::Checksum);
        }
        #[cfg(feature = "filter")]
        if self.has_rules() {
            let before = names(bytes);
            self.filter_input(&mut bytes[..end], ip, class, origin, rest)?;
            if names(bytes) == before {
                return self.deliver(&mut bytes[..end], ip, class, origin, rest);
            }
            // NAT has changed the names, or a rule the header: padding does not come in by that.
            let ip = packet::parse(&bytes[..end]).ok_or(Drop::Malformed)?;
            let class = self.routing.classify(&ip.dst);
            return self.deliver(&mut bytes[..end], &ip, class, origin, rest);
        }
        self.deliver(&mut bytes[..end], ip, class, origin, rest)
    }

    /// Whether we are in the group that a packet goes to.
    fn hears_group(&self, ip: &Ip) -> bool {
        #[cfg(feature = "udp")]
        if self.groups.has(&ip.dst, ip.src.is_loopback()) {
            return true;
        }
        match ip.dst {
            #[cfg(feature = "udp")]
            IpAddr::V4(group) => group == crate::groups::ALL_HOSTS,
            #[cfg(feature = "ipv6")]
            IpAddr::V6(group) => self.is_own_group(&group),
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// A source that is a group, ourselves seen from outside, or unset where it must not be.
    fn check_source(&self, ip: &Ip, origin: Origin) -> Result<(), Drop> {
        let src = &ip.src;
        let is_group = match src {
            IpAddr::V4(four) => four.is_multicast() || *four == Ipv4Addr::BROADCAST,
            IpAddr::V6(six) => six.is_multicast(),
        };
        let from_outside = origin != Origin::Loopback;
        let is_ours = self.routing.is_own(src) || ip.dst.is_loopback();
        // A group that does not leave a host (RFC 4291, section 2.7; linux: ip6_rcv_core).
        let is_inner = match ip.dst {
            IpAddr::V6(to) => to.is_multicast() && to.segments()[0] & 0xf <= 1,
            IpAddr::V4(_) => false,
        };
        if is_group || (from_outside && (is_ours || is_inner)) {
            return Err(Drop::Source);
        }
        // Only who looks for an address has none (DHCP, duplicate address detection), and a switch
        // that asks for groups (RFC 4541 section 2.1.1).
        let may_lack_one = [packet::UDP, packet::ICMPV6, packet::IGMP];
        if src.is_unspecified() && !may_lack_one.contains(&ip.protocol) {
            return Err(Drop::Source);
        }
        Ok(())
    }

    fn deliver(
        &mut self,
        bytes: &mut [u8],
        ip: &Ip,
        class: Class,
        origin: Origin,
        rest: Option<Rest<'_>>,
    ) -> Result<(), Drop> {
        #[cfg(feature = "tcp")]
        if ip.protocol == packet::TCP && class == Class::Own {
            return self.tcp_input(bytes, ip, rest);
        }
        // Nobody else knows of a rest.
        if let Some(rest) = rest {
            rest.fill(bytes);
        }
        match ip.protocol {
            #[cfg(feature = "udp")]
            packet::UDP => {
                #[cfg(feature = "dhcp")]
                if self.dhcp_input(bytes, ip) {
                    return Ok(());
                }
                #[cfg(feature = "dns")]
                if self.dns_input(bytes, ip) {
                    return Ok(());
                }
                self.udp_input(bytes, ip, class)
            }
            #[cfg(feature = "udp")]
            packet::IGMP if ip.dst.is_ipv4() => self.igmp_input(bytes, ip),
            #[cfg(feature = "icmp")]
            packet::ICMP if ip.dst.is_ipv4() => self.icmp_input(bytes, ip, class),
            #[cfg(feature = "ipv6")]
            packet::ICMPV6 if ip.dst.is_ipv6() => self.icmpv6_input(bytes, ip, class, origin),
            _ => {
                #[cfg(feature = "icmp")]
                self.icmp_unreachable(bytes, ip, class, crate::icmp::Unreachable::Protocol);
                let _ = (bytes, class, origin);
                Err(Drop::Protocol)
            }
        }
    }

    /// Sends a packet that `packet::start` began and whose payload is filled in. `field` is
    /// where in the payload the protocol's checksum stands.
    pub(crate) fn send(&mut self, frame: Vec<u8>, src: IpAddr, dst: IpAddr, field: usize) {
        if let Err((why, frame)) = self.send_checked(frame, src, dst, field) {
            self.counters.drop(why);
            self.outbox.give_back(frame);
        }
    }

    fn send_checked(
        &mut self,
        #[cfg_attr(not(feature = "filter"), expect(unused_mut))] mut frame: Vec<u8>,
        src: IpAddr,
        dst: IpAddr,
        field: usize,
    ) -> Result<(), (Drop, Vec<u8>)> {
        let Some(hop) = self.routing.hop_from(&src, &dst) else {
            return Err((Drop::Unreachable, frame));
        };
        #[cfg(feature = "filter")]
        if self.has_rules() {
            let judged = self.filter_output(&mut frame[ETHERNET..], hop == Hop::Own);
            let Some(ip) = packet::parse(&frame[ETHERNET..]) else {
                return Err((Drop::Malformed, frame));
            };
            if !matches!(judged, crate::filter::Judged::Pass) {
                return Err((Drop::Filter, frame));
            }
            return self.send_filtered(frame, ip.src, ip.dst, field);
        }
        self.send_sealed(hop, frame, src, dst, field)
    }

    /// NAT may have changed where it goes.
    #[cfg(feature = "filter")]
    fn send_filtered(
        &mut self,
        frame: Vec<u8>,
        src: IpAddr,
        dst: IpAddr,
        field: usize,
    ) -> Result<(), (Drop, Vec<u8>)> {
        match self.routing.hop_from(&src, &dst) {
            Some(hop) => self.send_sealed(hop, frame, src, dst, field),
            None => Err((Drop::Unreachable, frame)),
        }
    }

    fn send_sealed(
        &mut self,
        hop: Hop,
        mut frame: Vec<u8>,
        src: IpAddr,
        dst: IpAddr,
        field: usize,
    ) -> Result<(), (Drop, Vec<u8>)> {
        if hop == Hop::Own {
            return self.send_to_hop(hop, frame, None);
        }
        #[cfg(feature = "udp")]
        if self.loop_group(hop, &frame, &dst) {
            self.outbox.give_back(frame);
            return Ok(());
        }
        let mtu_bytes = self.path_mtu(&dst);
        if frame.len() - ETHERNET > mtu_bytes {
            #[cfg(feature = "fragments")]
            {
                self.seal(&mut frame, &src, &dst, field, false);
                return self.send_in_fragments(hop, frame, mtu_bytes);
            }
            #[cfg(not(feature = "fragments"))]
            return Err((Drop::Fragment, frame));
        }
        let request = self.seal(&mut frame, &src, &dst, field, true);
        self.send_to_hop(hop, frame, request)
    }

    /// Fills in the checksum, or its pseudo header's part with a request for the rest.
    pub(crate) fn seal(
        &self,
        frame: &mut [u8],
        src: &IpAddr,
        dst: &IpAddr,
        field: usize,
        may_ask: bool,
    ) -> Option<ChecksumRequest> {
        let mut payload = ETHERNET + packet::header_len(dst);
        let mut protocol = match dst {
            IpAddr::V4(_) => frame[ETHERNET + 9],
            IpAddr::V6(_) => frame[ETHERNET + 6],
        };
        // The one extension header that we write: eight bytes for each router to look at.
        if protocol == packet::HOP_BY_HOP && dst.is_ipv6() {
            protocol = frame[payload];
            payload += 8;
        }
        let has_pseudo = protocol != packet::ICMP;
        let partial = if has_pseudo {
            checksum::pseudo(src, dst, protocol, frame.len() - payload)
        } else {
            0
        };
        let offered = match dst {
            IpAddr::V4(_) => self.link.offloads.tx_checksum_v4,
            IpAddr::V6(_) => self.link.offloads.tx_checksum_v6,
        };
        if may_ask && offered && (protocol == packet::TCP || protocol == packet::UDP) {
            packet::put16(frame, payload + field, checksum::fold(partial));
            return Some(ChecksumRequest {
                start: payload as u16,
                offset: field as u16,
            });
        }
        packet::put16(frame, payload + field, 0);
        let mut value = checksum::of(partial, &frame[payload..]);
        // Zero says "none" in UDP (RFC 768).
        if value == 0 && protocol == packet::UDP {
            value = 0xffff;
        }
        packet::put16(frame, payload + field, value);
        None
    }

    pub(crate) fn send_to_hop(
        &mut self,
        hop: Hop,
        mut frame: Vec<u8>,
        checksum: Option<ChecksumRequest>,
    ) -> Result<(), (Drop, Vec<u8>)> {
        let is_v6 = frame[ETHERNET] >> 4 == 6;
        let mac = match hop {
            Hop::Own => {
                if self.loopback.len() >= LOOPBACK_MAX {
                    return Err((Drop::Full, frame));
                }
                self.loopback.push_back(frame);
                return Ok(());
            }
            Hop::Broadcast => packet::BROADCAST,
            Hop::Multicast => group_mac(&frame[ETHERNET..], is_v6),
            Hop::Neighbor(address) => match self.neighbors.resolve(address, self.now) {
                Answer::Known(mac) => mac,
                Answer::Refused => return Err((Drop::Unreachable, frame)),
                Answer::Wait => {
                    packet::put_ethernet(&mut frame, &[0; 6], &self.link.mac, is_v6);
                    let waiting = Waiting {
                        bytes: frame,
                        checksum,
                    };
                    return match self.neighbors.park(&address, waiting) {
                        Some(refused) => Err((Drop::Full, refused.bytes)),
                        None => Ok(()),
                    };
                }
            },
        };
        packet::put_ethernet(&mut frame, &mac, &self.link.mac, is_v6);
        if !self.outbox.push(Waiting {
            bytes: frame,
            checksum,
        }) {
            self.counters.drop(Drop::Full);
        }
        Ok(())
    }

    /// The largest packet that the link takes.
    pub(crate) fn link_mtu(&self, dst: &IpAddr) -> usize {
        #[cfg(feature = "autoconf")]
        if dst.is_ipv6()
            && let Some(mtu_bytes) = self.autoconf.mtu_bytes
        {
            return mtu_bytes.min(self.link.mtu_bytes);
        }
        let _ = dst;
        self.link.mtu_bytes
    }

    /// Time to live or hop limit of packets for which nobody says one.
    pub(crate) fn hop_limit(&self, is_ipv6: bool) -> u8 {
        #[cfg(feature = "autoconf")]
        if is_ipv6 && let Some(hop_limit) = self.autoconf.hop_limit {
            return hop_limit;
        }
        let _ = is_ipv6;
        HOP_LIMIT
    }

    /// For packets from `from` to `to`; 0 over IPv4.
    pub(crate) fn flow_label(&self, from: &SocketAddr, to: &SocketAddr) -> u32 {
        #[cfg(feature = "ipv6")]
        if to.is_ipv6() {
            return crate::hash::flow_label(self.label_key, from, to);
        }
        let _ = (from, to);
        0
    }

    /// Writes what the neighbor table wants to ask.
    pub(crate) fn send_neighbor_requests(&mut self) {
        while let Some(request) = self.neighbors.requests.pop() {
            match request.address {
                IpAddr::V4(target) => self.send_arp_request(target, request),
                #[cfg(feature = "ipv6")]
                IpAddr::V6(target) => self.send_solicitation(target, request.to),
                #[cfg(not(feature = "ipv6"))]
                IpAddr::V6(_) => {}
            }
        }
    }

    fn send_arp_request(&mut self, target: Ipv4Addr, request: Request) {
        let Some(IpAddr::V4(own)) = self.routing.source_for(&request.address) else {
            return;
        };
        let to = request.to.unwrap_or(packet::BROADCAST);
        self.send_arp(1, to, own, [0; 6], target);
    }

    fn send_arp(&mut self, operation: u16, to: Mac, own: Ipv4Addr, their: Mac, target: Ipv4Addr) {
        let mut bytes = self.outbox.buffer();
        bytes.extend_from_slice(&to);
        bytes.extend_from_slice(&self.link.mac);
        // Ethernet type, then: hardware Ethernet, protocol IPv4, lengths 6 and 4.
        bytes.extend_from_slice(&[0x08, 0x06, 0, 1, 8, 0, 6, 4]);
        bytes.extend_from_slice(&operation.to_be_bytes());
        bytes.extend_from_slice(&self.link.mac);
        bytes.extend_from_slice(&own.octets());
        bytes.extend_from_slice(&their);
        bytes.extend_from_slice(&target.octets());
        if !self.outbox.push(Waiting {
            bytes,
            checksum: None,
        }) {
            self.counters.drop(Drop::Full);
        }
    }

    fn arp_input(&mut self, bytes: &[u8]) {
        if let Err(why) = self.arp_checked(bytes) {
            self.counters.drop(why);
        }
    }

    fn arp_checked(&mut self, bytes: &[u8]) -> Result<(), Drop> {
        let arp: &[u8; 28] = bytes.first_chunk().ok_or(Drop::Malformed)?;
        if arp[..6] != [0, 1, 8, 0, 6, 4] {
            return Err(Drop::Malformed);
        }
        let operation = u16::from_be_bytes([arp[6], arp[7]]);
        let mut mac: Mac = [0; 6];
        mac.copy_from_slice(&arp[8..14]);
        let sender = Ipv4Addr::new(arp[14], arp[15], arp[16], arp[17]);
        let target = Ipv4Addr::new(arp[24], arp[25], arp[26], arp[27]);
        let is_for_us = self
            .routing
            .addresses
            .iter()
            .any(|own| own.address == target);
        if !is_for_us || mac[0] & 1 != 0 || mac == [0; 6] {
            return Err(Drop::NotForUs);
        }
        let sender_address = IpAddr::V4(sender);
        let on_link = self
            .routing
            .addresses
            .iter()
            .any(|own| own.contains(&sender_address));
        // A probe for a free address has no sender (RFC 5227); whoever claims ours is ignored.
        if on_link && !self.routing.is_own(&sender_address) {
            let is_answer = operation == 2;
            let now = self.now;
            if let Some(released) = self.neighbors.learn(sender_address, mac, is_answer, now) {
                self.release(released);
            }
        } else if !sender.is_unspecified() {
            return Err(Drop::Source);
        }
        if operation == 1 {
            self.send_arp(2, mac, target, mac, sender);
        }
        Ok(())
    }
}

/// The header's beginning with both addresses, as far as it is there.
#[cfg(feature = "filter")]
fn names(packet: &[u8]) -> [u8; packet::IPV6] {
    let mut names = [0; packet::IPV6];
    let len = packet.len().min(packet::IPV6);
    names[..len].copy_from_slice(&packet[..len]);
    names
}

/// The Ethernet group of a multicast address (RFC 1112 section 6.4, RFC 2464 section 7).
pub(crate) fn group_mac(packet: &[u8], is_v6: bool) -> Mac {
    if is_v6 {
        [0x33, 0x33, packet[36], packet[37], packet[38], packet[39]]
    } else {
        [1, 0, 0x5e, packet[17] & 0x7f, packet[18], packet[19]]
    }
}

fn transport_checksum_is_good(bytes: &[u8], ip: &Ip) -> bool {
    let payload = &bytes[ip.payload..ip.end];
    match ip.protocol {
        packet::TCP | packet::ICMPV6 => checksum::is_good(ip.pseudo(), payload),
        // No checksum is a choice over IPv4 only.
        packet::UDP if ip.dst.is_ipv4() && packet::be16(payload, 6) == Some(0) => true,
        packet::UDP => checksum::is_good(ip.pseudo(), payload),
        packet::ICMP if ip.dst.is_ipv4() => checksum::is_good(0, payload),
        _ => true,
    }
}
