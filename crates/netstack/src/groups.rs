//! Groups of multicast that sockets are in: which of them the host hears, and where.
//!
//! ```text
//!   socket joins ──► counted here ──► heard: by the link, or by our own loop
//!                         └── of the link ──► reported: IGMP (`igmp`), MLD (`mld`)
//!   datagram to a group ──► heard at all? ──► each socket that is in it, or takes all (`udp`)
//! ```
//! A group is joined at one of two places, as Linux has a group at an interface: the link, or the
//! loop of the host's own addresses. What has a loopback address as its source goes by the loop
//! alone. What goes by the link comes back by the loop, too, if we are in the group and its
//! sender wants that (IP_MULTICAST_LOOP).
//!
//! **Limits.** [`Limits::groups_max`](crate::Limits::groups_max) groups; how many one socket has
//! is for its owner to bound.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::igmp::Igmp;
use crate::outbox::Waiting;
use crate::packet;
use crate::route::Hop;
use crate::stack::{Error, Stack};

/// Every host is in this one, and nobody reports it (RFC 1112).
pub(crate) const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

/// A group, and where it is joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    pub group: IpAddr,
    /// By the loop of our own addresses, not by the link.
    pub is_loopback: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Each with the number of those who want it.
    joined: Vec<(Membership, u32)>,
    /// What is sent now to a group that we are in comes back.
    pub loops: bool,
    pub igmp: Igmp,
}

impl Groups {
    pub(crate) fn has(&self, group: &IpAddr, is_loopback: bool) -> bool {
        let is_it = |membership: &Membership| {
            membership.group == *group && membership.is_loopback == is_loopback
        };
        self.joined.iter().any(|(joined, _)| is_it(joined))
    }

    fn of_link(&self) -> impl Iterator<Item = IpAddr> {
        let joined = self.joined.iter();
        let of_link = joined.filter(|(joined, _)| !joined.is_loopback);
        of_link.map(|(joined, _)| joined.group)
    }

    pub(crate) fn of_link_v4(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.of_link().filter_map(|group| match group {
            IpAddr::V4(four) => Some(four),
            IpAddr::V6(_) => None,
        })
    }

    pub(crate) fn of_link_v6(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.of_link().filter_map(|group| match group {
            IpAddr::V6(six) => Some(six),
            IpAddr::V4(_) => None,
        })
    }
}

impl Stack {
    /// Hears a group from now on, for one more who wants it. Which sockets get what comes,
    /// [`Stack::udp_set_groups`] says.
    pub fn join_group(&mut self, wanted: Membership) -> Result<(), Error> {
        if !wanted.group.is_multicast() {
            return Err(Error::AddressNotAvailable);
        }
        let mut joined = self.groups.joined.iter_mut();
        if let Some((_, count)) = joined.find(|(joined, _)| *joined == wanted) {
            *count += 1;
            return Ok(());
        }
        if self.groups.joined.len() >= self.limits.groups_max {
            return Err(Error::Full);
        }
        self.groups.joined.push((wanted, 1));
        self.groups_settle();
        Ok(())
    }

    /// One of those who wanted it does not any more.
    pub fn leave_group(&mut self, left: Membership) {
        let joined = &mut self.groups.joined;
        let Some(index) = joined.iter().position(|(joined, _)| *joined == left) else {
            return;
        };
        joined[index].1 -= 1;
        if joined[index].1 == 0 {
            joined.remove(index);
            self.groups_settle();
        }
    }

    fn groups_settle(&mut self) {
        self.igmp_settle();
        #[cfg(feature = "autoconf")]
        self.autoconf_settle();
    }

    /// Gives ourselves a copy of what goes to a group, if we are in it and it is to come back.
    /// True: nobody else gets it.
    pub(crate) fn loop_group(&mut self, hop: Hop, frame: &[u8], dst: &IpAddr) -> bool {
        if hop != Hop::Multicast {
            return false;
        }
        if self.groups.loops && self.groups.has(dst, false) {
            let mut copy = self.outbox.buffer();
            copy.extend_from_slice(frame);
            if self.loopback.len() < crate::ip::LOOPBACK_MAX {
                self.loopback.push_back(copy);
            } else {
                self.outbox.give_back(copy);
                self.counters.drop(crate::Drop::Full);
            }
        }
        let packet = &frame[packet::ETHERNET..];
        // A hop limit of 0, or a group of the host's own (RFC 4291 section 2.7).
        match dst {
            IpAddr::V4(_) => packet[8] == 0,
            IpAddr::V6(group) => packet[7] == 0 || group.segments()[0] & 0xf <= 1,
        }
    }

    /// A packet to a group of IPv4, whole.
    pub(crate) fn send_to_group(&mut self, mut frame: Vec<u8>) {
        #[cfg(feature = "filter")]
        if self.has_rules() {
            let judged = self.filter_output(&mut frame[packet::ETHERNET..], false);
            if !matches!(judged, crate::filter::Judged::Pass) {
                self.counters.drop(crate::Drop::Filter);
                return self.outbox.give_back(frame);
            }
        }
        let mac = crate::ip::group_mac(&frame[packet::ETHERNET..], false);
        packet::put_ethernet(&mut frame, &mac, &self.link.mac, false);
        let waiting = Waiting {
            bytes: frame,
            checksum: None,
        };
        if !self.outbox.push(waiting) {
            self.counters.drop(crate::Drop::Full);
        }
    }
}
