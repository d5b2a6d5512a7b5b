//! Multicast listener reports of version 2 (RFC 3810), for the groups in which our addresses
//! are asked for, and those that sockets have joined. When they go out, `reports` says: that a
//! group is joined is told before its address is asked for (RFC 4862 section 5.4.2).
//!
//! Queries of version 1 get reports of version 2.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use crate::counters::Drop;
use crate::ndp::solicited_node;
use crate::packet::{self, Ip};
use crate::reports::{Reports, wait_of};
use crate::route::is_link_local_v6;
use crate::stack::Stack;

const REPORT: u8 = 143;
/// All routers that listen for reports.
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Record types: we have it; we have joined; we have left (all with an empty list of sources).
const HAVE: u8 = 2;
const LEFT: u8 = 3;
const JOINED: u8 = 4;
const RECORD: usize = 20;
/// Next header ICMPv6, 8 bytes; router alert: MLD (RFC 2711); padding.
const ROUTER_ALERT: [u8; 8] = [packet::ICMPV6, 0, 5, 2, 0, 0, 1, 0];

pub(crate) type Mld = Reports<Ipv6Addr>;

/// All nodes, and what does not leave the host, are reported by nobody (RFC 3810 section 6).
#[cfg(feature = "udp")]
fn is_reported(group: &Ipv6Addr) -> bool {
    *group != crate::ndp::ALL_NODES && group.segments()[0] & 0xf > 1
}

impl Stack {
    /// Joins and leaves what addresses and sockets want.
    pub(crate) fn mld_settle(&mut self) {
        let mut wanted = Vec::new();
        if self.autoconf.is_on() {
            let addresses = self.routing.addresses.iter();
            let own = addresses.filter_map(|own| match own.address {
                IpAddr::V6(six) => Some(six),
                IpAddr::V4(_) => None,
            });
            let asked = own.chain(self.autoconf.tentatives());
            let groups = asked.map(|address| solicited_node(&address));
            #[cfg(feature = "udp")]
            let groups = groups.chain(self.groups.of_link_v6().filter(is_reported));
            for group in groups {
                if !wanted.contains(&group) {
                    wanted.push(group);
                }
            }
        }
        let mld = &mut self.autoconf.mld;
        if let Some(change) = mld.settle(wanted, self.now, &mut self.random) {
            self.send_reports(JOINED, &change.joined);
            self.send_reports(LEFT, &change.left);
        }
    }

    pub(crate) fn mld_advance(&mut self) {
        let due = self.autoconf.mld.due(self.now);
        self.send_reports(JOINED, &due.again);
        self.send_reports(HAVE, &due.all);
    }

    /// A router asks which groups there are.
    pub(crate) fn mld_query(&mut self, ip: &Ip, message: &[u8]) -> Result<(), Drop> {
        let IpAddr::V6(router) = ip.src else {
            return Err(Drop::Malformed);
        };
        if ip.hop_limit != 1 || !is_link_local_v6(&router) || message.len() < 24 {
            return Err(Drop::Discovery);
        }
        let octets: [u8; 16] = message[8..24].try_into().map_err(|_| Drop::Malformed)?;
        let group = Ipv6Addr::from(octets);
        let group = (!group.is_unspecified()).then_some(group);
        let code = u64::from(packet::be16(message, 4).unwrap_or(0));
        let wait_us = wait_of(code, 12) * 1000;
        let (now, random) = (self.now, &mut self.random);
        self.autoconf.mld.asked(group, wait_us, now, random);
        self.autoconf_settle();
        Ok(())
    }

    fn send_reports(&mut self, kind: u8, groups: &[Ipv6Addr]) {
        // Our link-local address, once it is ours (RFC 3590).
        let own = self
            .routing
            .addresses
            .iter()
            .find_map(|own| match own.address {
                IpAddr::V6(six) if is_link_local_v6(&six) => Some(six),
                _ => None,
            });
        let src = IpAddr::V6(own.unwrap_or(Ipv6Addr::UNSPECIFIED));
        let dst = IpAddr::V6(ROUTERS);
        let room = self.link.mtu_bytes.saturating_sub(packet::IPV6 + 16) / RECORD;
        for groups in groups.chunks(room.max(1)) {
            let buffer = self.outbox.buffer();
            let len = 16 + groups.len() * RECORD;
            let protocol = packet::HOP_BY_HOP;
            let (mut frame, at) = packet::start(buffer, &src, &dst, protocol, 1, len);
            frame[at..at + 8].copy_from_slice(&ROUTER_ALERT);
            frame[at + 8] = REPORT;
            packet::put16(&mut frame, at + 14, groups.len() as u16);
            for (record, group) in frame[at + 16..].chunks_exact_mut(RECORD).zip(groups) {
                record[0] = kind;
                record[4..].copy_from_slice(&group.octets());
            }
            self.send(frame, src, dst, 2);
        }
    }
}
