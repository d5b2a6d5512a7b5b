//! Groups of multicast that sockets of UDP are in (ip(7), ipv6(7); linux: ip_sockglue.c, ipv6_sockglue.c, igmp.c, mcast.c).
//!
//! A socket's groups are kept with the socket, as it may join before it has a name, and told to the stack's socket as soon as there is one.
//!
//! **Interfaces.** A program sees one, `lo`, of index 1: that is the stack's own loop, as any address of 127.0.0.0/8 is. The stack's own addresses,
//! and none (index 0), are the link, which has no index. Others are not there.

use crate::options::{Options, has_level};
use crate::server::{EADDRINUSE, EADDRNOTAVAIL, EINVAL, Server, errno};
use crate::table::{Place, Socket};
use fordway_abi::stack::{INET, INET6, level, name};
use fordway_netstack::Membership;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Groups that a socket is in, of either version of IP (linux: igmp_max_memberships; of IPv6 its memory for options bounds them).
const GROUPS_MAX: usize = 20;
const GROUPS6_MAX: usize = 64;
/// Of `lo`.
const LOOPBACK_INDEX: u32 = 1;
/// struct in_addr, ip_mreq, ip_mreqn; ipv6_mreq; the used part of a group_req (linux/in.h, linux/in6.h).
const ADDRESS_BYTES: usize = 4;
const REQUEST_BYTES: usize = 8;
const REQUEST_WITH_INDEX_BYTES: usize = 12;
const REQUEST6_BYTES: usize = 20;
const ANY_REQUEST_BYTES: usize = 32;

const ENODEV: i32 = 19;
const EPROTO: i32 = 71;
const ENOPROTOOPT: i32 = 92;
const ENOBUFS: i32 = 105;

/// What a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    is_join: bool,
    group: IpAddr,
    index: u32,
    /// Of IPv4, an address of the interface.
    address: Ipv4Addr,
}

fn word(value: &[u8], at: usize) -> Option<u32> {
    let bytes = value.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn four(value: &[u8], at: usize) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = value.get(at..at + 4)?.try_into().ok()?;
    Some(octets.into())
}

fn six(value: &[u8], at: usize) -> Option<Ipv6Addr> {
    let octets: [u8; 16] = value.get(at..at + 16)?.try_into().ok()?;
    Some(octets.into())
}

/// Whether an option is no value, but an order about a group.
pub(crate) fn is_order(of: (i32, i32)) -> bool {
    use name::{IP_ADD_MEMBERSHIP, IP_DROP_MEMBERSHIP, IPV6_JOIN_GROUP, IPV6_LEAVE_GROUP};
    use name::{MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP};
    match of.0 {
        level::IP => matches!(
            of.1,
            IP_ADD_MEMBERSHIP | IP_DROP_MEMBERSHIP | MCAST_JOIN_GROUP | MCAST_LEAVE_GROUP
        ),
        level::IPV6 => matches!(
            of.1,
            IPV6_JOIN_GROUP | IPV6_LEAVE_GROUP | MCAST_JOIN_GROUP | MCAST_LEAVE_GROUP
        ),
        _ => false,
    }
}

/// An order as its option's structure has it. `Err`: the errno, of one that is too short, or of another family.
fn read(of: (i32, i32), value: &[u8]) -> Result<Order, i32> {
    let is_any = matches!(of.1, name::MCAST_JOIN_GROUP | name::MCAST_LEAVE_GROUP);
    let is_join = matches!(
        of,
        (level::IP, name::IP_ADD_MEMBERSHIP)
            | (level::IPV6, name::IPV6_JOIN_GROUP)
            | (_, name::MCAST_JOIN_GROUP)
    );
    let is_six = of.0 == level::IPV6;
    let (group, index, address) = match (is_any, is_six) {
        (true, _) if value.len() < ANY_REQUEST_BYTES => return Err(EINVAL),
        (true, _) => {
            // Behind the index, and four bytes that align: a sockaddr_in, or a sockaddr_in6.
            let family = u16::from_ne_bytes([value[8], value[9]]);
            let group = match (family, is_six) {
                (INET, false) => four(value, 12).ok_or(EINVAL)?.into(),
                (INET6, true) => six(value, 16).ok_or(EINVAL)?.into(),
                (_, true) => return Err(EADDRNOTAVAIL),
                (_, false) => return Err(EINVAL),
            };
            (group, word(value, 0).ok_or(EINVAL)?, Ipv4Addr::UNSPECIFIED)
        }
        (false, true) if value.len() < REQUEST6_BYTES => return Err(EINVAL),
        (false, true) => {
            let group = six(value, 0).ok_or(EINVAL)?.into();
            (group, word(value, 16).ok_or(EINVAL)?, Ipv4Addr::UNSPECIFIED)
        }
        (false, false) if value.len() < REQUEST_BYTES => return Err(EINVAL),
        (false, false) => {
            let index = word(value, 8).unwrap_or(0);
            let [group, address] = [0, 4].map(|at| four(value, at));
            let group = group.ok_or(EINVAL)?.into();
            (group, index, address.ok_or(EINVAL)?)
        }
    };
    let order = Order {
        is_join,
        group,
        index,
        address,
    };
    group.is_multicast().then_some(order).ok_or(EINVAL)
}

impl Options {
    /// Where what goes to groups comes from: see `UdpOptions`.
    pub(crate) fn group_sources(&self) -> [Option<IpAddr>; 2] {
        let six = self.get(level::IPV6, name::IPV6_MULTICAST_IF) as u32;
        let six = (six == LOOPBACK_INDEX).then_some(Ipv6Addr::LOCALHOST);
        let four = match self.group_index {
            LOOPBACK_INDEX if self.group_address.is_unspecified() => Some(Ipv4Addr::LOCALHOST),
            _ => Some(self.group_address).filter(|own| !own.is_unspecified()),
        };
        [four.map(IpAddr::from), six.map(IpAddr::from)]
    }
}

impl Server {
    /// Whether an interface is the loop; `None`: it is not there.
    fn is_loop(&self, index: u32, address: Ipv4Addr) -> Option<bool> {
        match index {
            LOOPBACK_INDEX => Some(true),
            0 if address.is_unspecified() => Some(false),
            0 if address.is_loopback() => Some(true),
            0 => {
                let mut own = self.stack.addresses().iter();
                own.any(|own| own.address == address).then_some(false)
            }
            _ => None,
        }
    }

    /// Sets an option that is about groups and their interfaces; `None`: it is another one.
    pub(crate) fn set_group_option(
        &mut self,
        place: Place,
        of: (i32, i32),
        value: &[u8],
    ) -> Option<Result<(), i32>> {
        let is_interface = matches!(
            of,
            (level::IP, name::IP_MULTICAST_IF) | (level::IPV6, name::IPV6_MULTICAST_IF)
        );
        let socket = self.table.look(place)?;
        if !is_order(of) && !is_interface || !has_level(socket, of.0) {
            return None;
        }
        let is_stream = socket.is_stream();
        Some(match (is_interface, of.0) {
            (true, level::IP) if is_stream => Err(EINVAL),
            (true, _) if is_stream => Err(ENOPROTOOPT),
            (true, level::IP) => self.set_interface(place, value),
            (true, _) => self.set_interface6(place, value),
            (false, _) if is_stream => Err(EPROTO),
            (false, _) => match read(of, value) {
                Ok(order) if order.is_join => self.join(place, &order),
                Ok(order) => self.leave(place, &order),
                Err(error) => Err(error),
            },
        })
    }

    fn set_interface(&mut self, place: Place, value: &[u8]) -> Result<(), i32> {
        let (address_at, index_at) = match value.len() {
            0..ADDRESS_BYTES => return Err(EINVAL),
            ADDRESS_BYTES..REQUEST_BYTES => (0, None),
            REQUEST_BYTES..REQUEST_WITH_INDEX_BYTES => (4, None),
            _ => (4, Some(8)),
        };
        let address = four(value, address_at).ok_or(EINVAL)?;
        let index = index_at.and_then(|at| word(value, at)).unwrap_or(0);
        let is_loop = self.is_loop(index, address).ok_or(EADDRNOTAVAIL)?;
        let socket = self.table.get(place).ok_or(EINVAL)?;
        socket.options.group_address = address;
        socket.options.group_index = if is_loop { LOOPBACK_INDEX } else { 0 };
        Ok(())
    }

    fn set_interface6(&mut self, place: Place, value: &[u8]) -> Result<(), i32> {
        let index = word(value, 0).ok_or(EINVAL)?;
        if index > LOOPBACK_INDEX {
            return Err(ENODEV);
        }
        let socket = self.table.get(place).ok_or(EINVAL)?;
        socket
            .options
            .put(level::IPV6, name::IPV6_MULTICAST_IF, index as i32);
        Ok(())
    }

    fn join(&mut self, place: Place, order: &Order) -> Result<(), i32> {
        let is_loopback = self.is_loop(order.index, order.address).ok_or(ENODEV)?;
        let wanted = Membership {
            group: order.group,
            is_loopback,
        };
        let socket = self.table.get(place).ok_or(EINVAL)?;
        let same = |joined: &&Membership| joined.group.is_ipv4() == wanted.group.is_ipv4();
        let (count, most) = match order.group {
            IpAddr::V4(_) => (socket.groups.iter().filter(same).count(), GROUPS_MAX),
            IpAddr::V6(_) => (socket.groups.iter().filter(same).count(), GROUPS6_MAX),
        };
        // Of IPv6 one that is joined anywhere is, if it is not said where.
        let is_anywhere = order.group.is_ipv6() && order.index == 0;
        let is_it =
            |joined: &Membership| *joined == wanted || is_anywhere && joined.group == wanted.group;
        if socket.groups.iter().any(is_it) {
            return Err(EADDRINUSE);
        }
        if count >= most {
            return Err(ENOBUFS);
        }
        self.stack.join_group(wanted).map_err(errno)?;
        socket.groups.push(wanted);
        self.tell_groups(place);
        Ok(())
    }

    fn leave(&mut self, place: Place, order: &Order) -> Result<(), i32> {
        let is_anywhere = order.index == 0 && order.address.is_unspecified();
        let is_loop = self.is_loop(order.index, order.address);
        let socket = self.table.get(place).ok_or(EINVAL)?;
        let is_it = |joined: &Membership| {
            joined.group == order.group && (is_anywhere || is_loop == Some(joined.is_loopback))
        };
        let at = socket.groups.iter().position(is_it).ok_or(EADDRNOTAVAIL)?;
        let left = socket.groups.remove(at);
        self.stack.leave_group(left);
        self.tell_groups(place);
        Ok(())
    }

    /// A socket is gone, and so is it from its groups.
    pub(crate) fn leave_all(&mut self, place: Place) {
        let socket = self.table.get(place);
        let groups = socket.map(|socket| std::mem::take(&mut socket.groups));
        for left in groups.unwrap_or_default() {
            self.stack.leave_group(left);
        }
    }
}

/// The address that IP_MULTICAST_IF says of itself.
pub(crate) fn interface_of(socket: &Socket) -> Vec<u8> {
    socket.options.group_address.octets().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_structure_says_what_it_says() {
        let (group, six_group) = (Ipv4Addr::new(239, 1, 2, 3), "ff05::77");
        let six_group: Ipv6Addr = six_group.parse().expect("a group");
        let order = |is_join, group: IpAddr, index, address| {
            Ok(Order {
                is_join,
                group,
                index,
                address,
            })
        };
        let none = Ipv4Addr::UNSPECIFIED;
        let own = Ipv4Addr::new(10, 0, 0, 5);
        let short = [group.octets(), own.octets()].concat();
        let long = [&short[..], &3u32.to_ne_bytes()].concat();
        let join = (level::IP, name::IP_ADD_MEMBERSHIP);
        assert_eq!(read(join, &short), order(true, group.into(), 0, own));
        assert_eq!(read(join, &long), order(true, group.into(), 3, own));
        assert_eq!(read(join, &short[..7]), Err(EINVAL));
        let leave = (level::IP, name::IP_DROP_MEMBERSHIP);
        assert_eq!(read(leave, &long), order(false, group.into(), 3, own));
        let no_group = [own.octets(), own.octets()].concat();
        assert_eq!(read(join, &no_group), Err(EINVAL));
        let six = [&six_group.octets()[..], &7u32.to_ne_bytes()].concat();
        let join6 = (level::IPV6, name::IPV6_JOIN_GROUP);
        assert_eq!(read(join6, &six), order(true, six_group.into(), 7, none));
        assert_eq!(read(join6, &six[..19]), Err(EINVAL));
        // Of any family.
        let mut any = vec![0; ANY_REQUEST_BYTES];
        any[..4].copy_from_slice(&7u32.to_ne_bytes());
        any[8..10].copy_from_slice(&INET.to_ne_bytes());
        any[12..16].copy_from_slice(&group.octets());
        let join_any = (level::IP, name::MCAST_JOIN_GROUP);
        assert_eq!(read(join_any, &any), order(true, group.into(), 7, none));
        let of_six = (level::IPV6, name::MCAST_JOIN_GROUP);
        assert_eq!(read(of_six, &any), Err(EADDRNOTAVAIL));
        any[8..10].copy_from_slice(&INET6.to_ne_bytes());
        any[16..32].copy_from_slice(&six_group.octets());
        assert_eq!(read(of_six, &any), order(true, six_group.into(), 7, none));
        let leave_any = (level::IPV6, name::MCAST_LEAVE_GROUP);
        assert_eq!(
            read(leave_any, &any),
            order(false, six_group.into(), 7, none)
        );
    }
}
