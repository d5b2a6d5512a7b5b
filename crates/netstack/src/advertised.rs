//! Router advertisements (RFC 4861 section 6.3.4): prefixes on the link and addresses in them
//! (RFC 4862 section 5.5.3), default routers with their preference (RFC 4191), hop limit, MTU.
//!
//! Only a neighbor is believed: hop limit 255, a link-local source, no fragments (`ip`; RFC 6980).
//! What each option may do is
//! bounded: routers, prefixes and addresses in number (`Limits::advertised_max`, then
//! [`Drop::Discovery`]), the MTU from below by 1,280 and from above by our link, and an
//! address that is in use cannot be taken away in less than two hours (RFC 4862 section 5.5.3 e).
//! Ways to single networks (RFC 4191 option 24), name servers (RFC 8106) and timers of neighbor
//! discovery are not read: the first Linux ignores by itself, the second come by the owner's
//! configuration, the third stay at their defaults. Redirects are not believed: they would save
//! one hop on a link with one router, and let a neighbor take our packets.

use core::net::{IpAddr, Ipv6Addr};

use crate::autoconf::{FOREVER, Router, Status};
use crate::counters::Drop;
use crate::ndp::{are_sound, link_address, options};
use crate::packet::{self, Ip};
use crate::path::FLOOR_V6;
use crate::route::{Cidr, is_link_local_v6};
use crate::stack::Stack;
use crate::{Micros, SECOND_US};

const OPTION_SOURCE: u8 = 1;
const OPTION_PREFIX: u8 = 3;
const OPTION_MTU: u8 = 5;
/// Before the options: type, code, checksum, hop limit, flags, lifetime, two timers.
const FIXED: usize = 16;
const IS_ON_LINK: u8 = 0x80;
const IS_AUTONOMOUS: u8 = 0x40;
/// An address lives so long at least after it was heard of.
const TWO_HOURS_US: Micros = 7200 * SECOND_US;

/// When a lifetime in seconds is over; all ones are forever.
fn until(now: Micros, seconds: u32) -> Micros {
    match seconds {
        u32::MAX => FOREVER,
        seconds => now + Micros::from(seconds) * SECOND_US,
    }
}

impl Stack {
    pub(crate) fn router_advertised(&mut self, ip: &Ip, message: &[u8]) -> Result<(), Drop> {
        let IpAddr::V6(router) = ip.src else {
            return Err(Drop::Malformed);
        };
        let fixed: &[u8; FIXED] = message.first_chunk().ok_or(Drop::Malformed)?;
        if !are_sound(&message[FIXED..]) {
            return Err(Drop::Malformed);
        }
        if !is_link_local_v6(&router) || !self.autoconf.asks_routers() {
            return Err(Drop::Discovery);
        }
        if fixed[4] != 0 {
            self.autoconf.hop_limit = Some(fixed[4]);
        }
        let lifetime = u16::from_be_bytes([fixed[6], fixed[7]]);
        // Two bits of the flags: 01 high, 11 low; 10 says nothing and counts as medium.
        let preference = match fixed[5] >> 3 & 3 {
            1 => 1,
            3 => -1,
            _ => 0,
        };
        let mut result = self.note_router(router, lifetime, preference);
        for (kind, option) in options(&message[FIXED..]) {
            let taken = match (kind, option.len()) {
                (OPTION_SOURCE, 8) => {
                    if let Some(mac) = link_address(option) {
                        self.learn_neighbor(ip.src, mac);
                    }
                    Ok(())
                }
                (OPTION_MTU, 8) => {
                    let mtu_bytes = packet::be32(option, 4).unwrap_or(0) as usize;
                    if (FLOOR_V6..=self.link.mtu_bytes).contains(&mtu_bytes) {
                        self.autoconf.mtu_bytes = Some(mtu_bytes);
                    }
                    Ok(())
                }
                (OPTION_PREFIX, 32) => self.note_prefix(option),
                _ => Ok(()),
            };
            result = result.and(taken);
        }
        self.autoconf_apply();
        self.autoconf_settle();
        result
    }

    fn note_router(
        &mut self,
        address: Ipv6Addr,
        lifetime: u16,
        preference: i8,
    ) -> Result<(), Drop> {
        let (now, most) = (self.now, self.limits.advertised_max);
        let routers = &mut self.autoconf.routers;
        let until = until(now, lifetime.into());
        let known = routers.iter().position(|router| router.address == address);
        if lifetime == 0 {
            if let Some(index) = known {
                routers.remove(index);
            }
            return Ok(());
        }
        match known {
            // One that keeps its preference keeps its place, as another may have been put
            // before it for its silence.
            Some(index) if routers[index].preference == preference => {
                routers[index].until = until;
            }
            Some(index) => {
                routers.remove(index);
                insert(routers, address, until, preference);
            }
            None if routers.len() < most => insert(routers, address, until, preference),
            None => return Err(Drop::Discovery),
        }
        self.autoconf.stop_soliciting();
        Ok(())
    }

    /// A prefix option: what is on the link, and where we may have an address.
    fn note_prefix(&mut self, option: &[u8]) -> Result<(), Drop> {
        let (prefix_len, flags) = (option[2], option[3]);
        let valid = packet::be32(option, 4).unwrap_or(0);
        let preferred = packet::be32(option, 8).unwrap_or(0);
        let octets: [u8; 16] = option[16..32].try_into().map_err(|_| Drop::Malformed)?;
        let prefix = Ipv6Addr::from(octets);
        if is_link_local_v6(&prefix) || prefix.is_multicast() || prefix_len > 128 {
            return Err(Drop::Discovery);
        }
        let now = self.now;
        let mut result = Ok(());
        if flags & IS_ON_LINK != 0 {
            let cidr = Cidr::new(prefix.into(), prefix_len);
            let prefixes = &mut self.autoconf.prefixes;
            let known = prefixes.iter().position(|(kept, _)| {
                kept.prefix_len == prefix_len && kept.contains(&cidr.address)
            });
            match known {
                // Over at once if the lifetime is zero: `autoconf_apply` takes it away.
                Some(index) => prefixes[index].1 = until(now, valid),
                None if valid == 0 => {}
                None if prefixes.len() < self.limits.advertised_max => {
                    prefixes.push((cidr, until(now, valid)));
                }
                None => result = Err(Drop::Discovery),
            }
        }
        let makes = self.autoconf.makes_addresses();
        if makes && flags & IS_AUTONOMOUS != 0 && prefix_len == 64 && preferred <= valid {
            let own = Cidr::link_local(&self.link.mac).address;
            let IpAddr::V6(own) = own else {
                return result;
            };
            let network = prefix.to_bits() & !u128::from(u64::MAX);
            let address = Ipv6Addr::from_bits(network | own.to_bits() & u128::from(u64::MAX));
            result = result.and(self.note_address(address, valid, preferred));
        }
        result
    }

    fn note_address(&mut self, address: Ipv6Addr, valid: u32, preferred: u32) -> Result<(), Drop> {
        let now = self.now;
        let (valid_until, preferred_until) = (until(now, valid), until(now, preferred));
        let mut own = self.autoconf.own.iter_mut();
        if let Some(own) = own.find(|own| own.address == address) {
            // Nor does a router have a say in what the owner has set.
            if matches!(own.status, Status::Duplicate) || !own.is_advertised {
                return Ok(());
            }
            own.preferred_until = preferred_until;
            let left_us = own.valid_until.saturating_sub(now);
            // Nobody takes an address away by one forged word.
            own.valid_until = if valid_until > now + TWO_HOURS_US.min(left_us) {
                valid_until
            } else {
                now + left_us.min(TWO_HOURS_US)
            };
            return Ok(());
        }
        let is_set = self.routing.is_own(&address.into());
        if valid == 0 || is_set {
            return Ok(());
        }
        if self.autoconf.advertised_len() >= self.limits.advertised_max {
            return Err(Drop::Discovery);
        }
        self.autoconf_add(address, 128, [preferred_until, valid_until], true);
        Ok(())
    }

    /// A neighbor says that it is no router (any more).
    pub(crate) fn is_no_router(&mut self, address: &Ipv6Addr) {
        let routers = &mut self.autoconf.routers;
        let count = routers.len();
        routers.retain(|router| router.address != *address);
        if routers.len() != count {
            self.autoconf_apply();
            self.autoconf_settle();
        }
    }
}

/// Behind those that are preferred as much.
fn insert(routers: &mut alloc::vec::Vec<Router>, address: Ipv6Addr, until: Micros, preference: i8) {
    let at = routers.partition_point(|router| router.preference >= preference);
    let router = Router {
        address,
        until,
        preference,
    };
    routers.insert(at, router);
}
