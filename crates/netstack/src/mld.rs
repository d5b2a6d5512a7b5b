//! Multicast listener reports of version 2 (RFC 3810), for the groups in which our addresses
//! are asked for: a switch that looks into them sends solicitations to those ports only.
//!
//! A report goes out when a group is joined, before its address is asked for (RFC 4862 section
//! 5.4.2), and once more within a second; when it is left; and in answer to a query, after a
//! random while that the query bounds. An answer always names all groups. Queries of version 1
//! get reports of version 2. Nothing is kept but our own groups.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use crate::counters::Drop;
use crate::ndp::solicited_node;
use crate::packet::{self, Ip};
use crate::route::is_link_local_v6;
use crate::stack::Stack;
use crate::{Micros, SECOND_US};

const REPORT: u8 = 143;
/// All routers that listen for reports.
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Record types: we have it; we have joined; we have left (all with an empty list of sources).
const HAVE: u8 = 2;
const LEFT: u8 = 3;
const JOINED: u8 = 4;
const RECORD: usize = 20;
/// Unsolicited Report Interval.
const AGAIN_US_MAX: Micros = SECOND_US;
/// Next header ICMPv6, 8 bytes; router alert: MLD (RFC 2711); padding.
const ROUTER_ALERT: [u8; 8] = [packet::ICMPV6, 0, 5, 2, 0, 0, 1, 0];

#[derive(Debug, Default)]
pub(crate) struct Mld {
    groups: Vec<Ipv6Addr>,
    /// Groups whose report is sent again.
    again: Vec<Ipv6Addr>,
    again_at: Option<Micros>,
    answer_at: Option<Micros>,
}

impl Mld {
    pub(crate) fn next_at(&self) -> Option<Micros> {
        self.again_at.into_iter().chain(self.answer_at).min()
    }
}

impl Stack {
    /// Joins and leaves what the addresses want.
    pub(crate) fn mld_settle(&mut self) {
        let mut wanted = Vec::new();
        if self.autoconf.is_on() {
            let addresses = self.routing.addresses.iter();
            let own = addresses.filter_map(|own| match own.address {
                IpAddr::V6(six) => Some(six),
                IpAddr::V4(_) => None,
            });
            for address in own.chain(self.autoconf.tentatives()) {
                let group = solicited_node(&address);
                if !wanted.contains(&group) {
                    wanted.push(group);
                }
            }
        }
        if wanted == self.autoconf.mld.groups {
            return;
        }
        let before = core::mem::replace(&mut self.autoconf.mld.groups, wanted);
        let wanted = &self.autoconf.mld.groups;
        let is_new = |group: &&Ipv6Addr| !before.contains(group);
        let joined: Vec<Ipv6Addr> = wanted.iter().filter(is_new).copied().collect();
        let is_gone = |group: &&Ipv6Addr| !wanted.contains(group);
        let left: Vec<Ipv6Addr> = before.iter().filter(is_gone).copied().collect();
        self.send_reports(JOINED, &joined);
        self.send_reports(LEFT, &left);
        let mld = &mut self.autoconf.mld;
        mld.again.retain(|group| mld.groups.contains(group));
        mld.again.extend(&joined);
        if !joined.is_empty() {
            let wait_us = 1 + self.random.next() % AGAIN_US_MAX;
            mld.again_at = Some(self.now + wait_us);
        }
    }

    pub(crate) fn mld_advance(&mut self) {
        let now = self.now;
        let mld = &mut self.autoconf.mld;
        let is_due = |at: &mut Option<Micros>| at.take_if(|at| *at <= now).is_some();
        let (is_again, is_answer) = (is_due(&mut mld.again_at), is_due(&mut mld.answer_at));
        if is_again {
            let again = core::mem::take(&mut self.autoconf.mld.again);
            self.send_reports(JOINED, &again);
        }
        if is_answer {
            let groups = self.autoconf.mld.groups.clone();
            self.send_reports(HAVE, &groups);
        }
    }

    /// A router asks which groups there are.
    pub(crate) fn mld_query(&mut self, ip: &Ip, message: &[u8]) -> Result<(), Drop> {
        let IpAddr::V6(router) = ip.src else {
            return Err(Drop::Malformed);
        };
        if ip.hop_limit != 1 || !is_link_local_v6(&router) || message.len() < 24 {
            return Err(Drop::Discovery);
        }
        let mld = &mut self.autoconf.mld;
        let octets: [u8; 16] = message[8..24].try_into().map_err(|_| Drop::Malformed)?;
        let group = Ipv6Addr::from(octets);
        if mld.groups.is_empty() || !(group.is_unspecified() || mld.groups.contains(&group)) {
            return Ok(());
        }
        let code = u64::from(packet::be16(message, 4).unwrap_or(0));
        // RFC 3810 section 5.1.3: large ones are a mantissa and an exponent.
        let wait_ms = match code {
            0..0x8000 => code,
            _ => (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3),
        };
        let wait_us = 1 + self.random.next() % (wait_ms * 1000).max(1);
        let at = self.now + wait_us;
        let mld = &mut self.autoconf.mld;
        mld.answer_at = Some(mld.answer_at.map_or(at, |kept| kept.min(at)));
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
