//! IGMP: reports of the groups of IPv4 that sockets have joined at the link, of version 3 (RFC
//! 3376), and of version 2 (RFC 2236) while there is a router that asks by that. When they go
//! out, `reports` says. Others' reports do not keep us from ours. Version 1 is not spoken.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use crate::counters::Drop;
use crate::groups::ALL_HOSTS;
use crate::packet::{self, Ip};
use crate::reports::{Reports, wait_of};
use crate::stack::Stack;
use crate::{Micros, SECOND_US, checksum};

const QUERY: u8 = 0x11;
const REPORT_V2: u8 = 0x16;
const LEAVE_V2: u8 = 0x17;
const REPORT_V3: u8 = 0x22;
const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// All routers that listen for reports of version 3.
const ROUTERS_V3: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
/// Record types: we have it; we have left; we have joined (all with an empty list of sources).
const HAVE: u8 = 2;
const LEFT: u8 = 3;
const JOINED: u8 = 4;
const RECORD: usize = 8;
/// Of version 2, and the head of a report of version 3.
const MESSAGE: usize = 8;
/// Router alert (RFC 2113), which is all the options that a header of ours has.
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
/// Internetwork control, as Linux marks reports.
const CLASS: u8 = 0xc0;
/// Older Version Querier Present Timeout: so long after its last question a router may be there.
const OLDER_US: Micros = 260 * SECOND_US;

#[derive(Debug, Default)]
pub(crate) struct Igmp {
    pub reports: Reports<Ipv4Addr>,
    older_until: Micros,
}

impl Stack {
    pub(crate) fn igmp_settle(&mut self) {
        let groups = self.groups.of_link_v4();
        let wanted: Vec<_> = groups.filter(|group| *group != ALL_HOSTS).collect();
        let reports = &mut self.groups.igmp.reports;
        if let Some(change) = reports.settle(wanted, self.now, &mut self.random) {
            self.send_igmp(JOINED, &change.joined);
            self.send_igmp(LEFT, &change.left);
        }
    }

    pub(crate) fn igmp_advance(&mut self) {
        let due = self.groups.igmp.reports.due(self.now);
        self.send_igmp(JOINED, &due.again);
        self.send_igmp(HAVE, &due.all);
    }

    pub(crate) fn igmp_input(&mut self, bytes: &[u8], ip: &Ip) -> Result<(), Drop> {
        let message = &bytes[ip.payload..ip.end];
        let [kind, code, _, _, a, b, c, d, ..] = *message else {
            return Err(Drop::Malformed);
        };
        if !checksum::is_good(0, message) {
            return Err(Drop::Checksum);
        }
        if kind != QUERY {
            return Ok(());
        }
        // From a neighbor: it has crossed no router.
        if ip.hop_limit != 1 || ip.src.is_loopback() {
            return Err(Drop::Discovery);
        }
        let now = self.now;
        let wait_tenths = match (message.len(), code) {
            // Ten seconds, says RFC 3376 section 7.2.1 of one that does not say.
            (MESSAGE, 0) => 100,
            (MESSAGE, _) => code.into(),
            _ => wait_of(code.into(), 4),
        };
        let igmp = &mut self.groups.igmp;
        if message.len() == MESSAGE {
            igmp.older_until = now + OLDER_US;
        }
        let group = Ipv4Addr::new(a, b, c, d);
        let group = (!group.is_unspecified()).then_some(group);
        let wait_us = wait_tenths * SECOND_US / 10;
        igmp.reports.asked(group, wait_us, now, &mut self.random);
        Ok(())
    }

    fn send_igmp(&mut self, kind: u8, groups: &[Ipv4Addr]) {
        let own = self.routing.addresses.iter().map(|own| own.address);
        let own = own
            .filter(|own| !own.is_loopback())
            .find_map(|own| match own {
                IpAddr::V4(four) => Some(four),
                IpAddr::V6(_) => None,
            });
        // Without an address nobody would believe us. A query comes again.
        let Some(own) = own else {
            return;
        };
        if self.now < self.groups.igmp.older_until {
            for group in groups {
                let (kind, to) = match kind {
                    LEFT => (LEAVE_V2, ALL_ROUTERS),
                    _ => (REPORT_V2, *group),
                };
                let mut message = [kind, 0, 0, 0, 0, 0, 0, 0];
                message[4..].copy_from_slice(&group.octets());
                self.send_igmp_message(own, to, &mut message);
            }
            return;
        }
        let heads = packet::IPV4 + ROUTER_ALERT.len() + MESSAGE;
        let room = self.link.mtu_bytes.saturating_sub(heads) / RECORD;
        for groups in groups.chunks(room.max(1)) {
            let mut message = alloc::vec![0; MESSAGE + RECORD * groups.len()];
            message[0] = REPORT_V3;
            packet::put16(&mut message, 6, groups.len() as u16);
            for (record, group) in message[MESSAGE..].chunks_exact_mut(RECORD).zip(groups) {
                record[0] = kind;
                record[4..].copy_from_slice(&group.octets());
            }
            self.send_igmp_message(own, ROUTERS_V3, &mut message);
        }
    }

    fn send_igmp_message(&mut self, src: Ipv4Addr, dst: Ipv4Addr, message: &mut [u8]) {
        let value = checksum::of(0, message);
        packet::put16(message, 2, value);
        let (buffer, len) = (self.outbox.buffer(), ROUTER_ALERT.len() + message.len());
        let (src, dst) = (src.into(), dst.into());
        let (mut frame, at) = packet::start(buffer, &src, &dst, packet::IGMP, 1, len);
        frame[at..at + ROUTER_ALERT.len()].copy_from_slice(&ROUTER_ALERT);
        frame[at + ROUTER_ALERT.len()..].copy_from_slice(message);
        // The option is a part of the header.
        let header = &mut frame[packet::ETHERNET..at + ROUTER_ALERT.len()];
        (header[0], header[1]) = (0x46, CLASS);
        packet::put16(header, 10, 0);
        let value = checksum::of(0, header);
        packet::put16(header, 10, value);
        self.send_to_group(frame);
    }
}
