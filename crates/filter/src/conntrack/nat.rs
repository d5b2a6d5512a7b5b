//! Address translation: a flow is bound once, when its first packet meets the rules; from
//! then on every packet of the flow is rewritten from its two tuples.
//!
//! What a packet of one direction looks like behind the translation is the other
//! direction's tuple, turned round. The destination is rewritten before routing
//! (prerouting, output), the source behind it (postrouting, input). Checksums follow by
//! difference (RFC 1624). In ICMP errors the header inside is turned back as well, so that
//! the sender knows what it is about (RFC 5508).

use super::{Conntrack, Tracking, Tuple, status};
use crate::checksum;
use crate::packet::{Layer, PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP, Packet};

/// How many ports are tried when the wanted tuple is taken.
const TRIES_MAX: u32 = 128;

/// What a flow is to be bound to: one end's address and port, as ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    /// The destination (dnat, redirect) instead of the source.
    pub destination: bool,
    pub address: Option<(u128, u128)>,
    pub port: Option<(u16, u16)>,
    /// The host part of the address stays.
    pub netmap: bool,
    /// Any free port of the range, not the same as before.
    pub random: bool,
    /// The same address for a sender whatever the destination is.
    pub persistent: bool,
}

impl Conntrack {
    /// Binds the flow of the packet, once for each end. Without a rule's wish (`None`)
    /// the source port still moves if another flow has the same names already. False if
    /// no free tuple was found: the packet is dropped.
    pub(crate) fn bind(
        &mut self,
        packet: &Packet,
        destination: bool,
        wish: Option<Binding>,
        random: u32,
        now_ns: u64,
    ) -> bool {
        let Tracking::Flow { number, .. } = packet.tracking else {
            return true;
        };
        let Some(flow) = self.flow(number) else {
            return true;
        };
        let done = if destination {
            status::DST_NAT_DONE
        } else {
            status::SRC_NAT_DONE
        };
        if flow.status & (done | status::CONFIRMED) != 0 {
            return true;
        }
        // As the packet is to look from here on.
        let current = flow.reply.inverted();
        let wanted = wish.map_or(current, |wish| self.choose_address(&current, &wish));
        let Some(chosen) = self.choose_port(current, wanted, wish, destination, random, now_ns)
        else {
            return false;
        };
        let Some(flow) = self.flow_mut(number) else {
            return true;
        };
        flow.status |= done;
        if chosen != current {
            flow.status |= if destination {
                status::DST_NAT
            } else {
                status::SRC_NAT
            };
            flow.reply = chosen.inverted();
        }
        true
    }

    fn choose_address(&self, current: &Tuple, wish: &Binding) -> Tuple {
        let mut tuple = *current;
        if let Some((low, high)) = wish.address {
            let old = if wish.destination {
                tuple.destination
            } else {
                tuple.source
            };
            let host = low ^ high;
            let span = high.saturating_sub(low).saturating_add(1);
            let new = if wish.netmap {
                low & !host | old & host
            } else if low == high || (low..=high).contains(&old) && !wish.persistent {
                if low == high { low } else { old }
            } else {
                use core::hash::BuildHasher;
                let other = if wish.persistent {
                    0
                } else {
                    tuple.destination
                };
                low + u128::from(self.seed().hash_one((tuple.source, other))) % span
            };
            match wish.destination {
                true => tuple.destination = new,
                false => tuple.source = new,
            }
        }
        tuple
    }

    /// Finds a port so that no other flow has the same names on its way back.
    fn choose_port(
        &self,
        current: Tuple,
        mut tuple: Tuple,
        wish: Option<Binding>,
        destination: bool,
        random: u32,
        now_ns: u64,
    ) -> Option<Tuple> {
        let is_free = |t: &Tuple| self.find(&t.inverted(), now_ns).is_none();
        let old = if destination {
            tuple.destination_port
        } else {
            tuple.source_port
        };
        let is_icmp = matches!(tuple.protocol, PROTO_ICMP | PROTO_ICMPV6);
        let range = wish.and_then(|w| w.port).filter(|_| tuple.has_ports());
        let shuffled = wish.is_some_and(|w| w.random);
        if !shuffled {
            match range {
                Some((low, high))
                    if (low..=high).contains(&old) && (low == high || is_free(&tuple)) =>
                {
                    return Some(tuple);
                }
                None if is_free(&tuple) || tuple == current && destination => return Some(tuple),
                _ => {}
            }
        }
        if !tuple.has_ports() && !is_icmp {
            return Some(tuple);
        }
        let (low, high) = match range {
            Some(range) => range,
            // A destination keeps its port.
            None if destination => return Some(tuple),
            None if is_icmp => (0, u16::MAX),
            // As Linux: ports that need privileges stay among themselves.
            None if old < 512 => (1, 511),
            None if old < 1024 => (600, 1023),
            None => (1024, u16::MAX),
        };
        let span = u32::from(high - low) + 1;
        let start = match (range, shuffled) {
            (Some(_), false) => 0,
            _ => random % span,
        };
        for step in 0..span.min(TRIES_MAX) {
            let port = low + ((start + step) % span) as u16;
            match destination {
                true => tuple.destination_port = port,
                false => tuple.source_port = port,
            }
            if is_free(&tuple) {
                return Some(tuple);
            }
        }
        // A destination may be shared: its clients differ.
        destination.then_some(tuple)
    }

    /// Rewrites one end of the packet as its flow is bound.
    pub(crate) fn translate(&self, packet: &mut Packet, destination: bool) {
        let Tracking::Flow { number, reply, .. } = packet.tracking else {
            return;
        };
        let Some(flow) = self.flow(number) else {
            return;
        };
        if flow.status & (status::SRC_NAT | status::DST_NAT) == 0 {
            return;
        }
        let (mine, other) = match reply {
            false => (flow.original, flow.reply),
            true => (flow.reply, flow.original),
        };
        let target = other.inverted();
        if inner_tuple(packet).is_some() {
            translate_error(packet, &mine, &target, destination);
        } else {
            rewrite(packet, &target, destination);
        }
    }
}

/// The tuple inside an ICMP error, with where its IP header and what follows begin.
pub(super) fn inner_tuple(packet: &Packet) -> Option<(Tuple, usize, usize)> {
    let transport = packet.transport().filter(|t| !t.fragment)?;
    let kind = *packet.slice(transport.at, 8)?.first()?;
    let six = packet.layer() == Layer::Ip6;
    let at = transport.at + 8;
    match (transport.protocol, six) {
        (PROTO_ICMP, false) if matches!(kind, 3 | 4 | 5 | 11 | 12) => {
            let first = *packet.slice(at, 20)?.first()?;
            let length = usize::from(first & 15) * 4;
            let header = packet.slice(at, 20)?;
            let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
            if first >> 4 != 4 || length < 20 || fragment {
                return None;
            }
            let head = packet.slice(at + length, 8)?;
            Some((
                Tuple::read(header, head, header[9], false)?,
                at,
                at + length,
            ))
        }
        (PROTO_ICMPV6, true) if kind < 128 => {
            let header = packet.slice(at, 40)?;
            let head = packet.slice(at + 40, 8)?;
            Some((Tuple::read(header, head, header[6], true)?, at, at + 40))
        }
        _ => None,
    }
}

/// Where a transport protocol keeps its checksum, and whether it covers the addresses.
pub(crate) fn transport_checksum(protocol: u8) -> Option<(usize, bool)> {
    match protocol {
        PROTO_TCP => Some((16, true)),
        PROTO_UDP => Some((6, true)),
        PROTO_ICMPV6 => Some((2, true)),
        PROTO_ICMP => Some((2, false)),
        _ => None,
    }
}

/// Puts bytes in place and gives what stood there.
fn exchange(packet: &mut Packet, at: usize, new: &[u8]) -> Option<[u8; 16]> {
    let place = packet.slice_mut(at, new.len())?;
    let mut old = [0; 16];
    old[..new.len()].copy_from_slice(place);
    place.copy_from_slice(new);
    Some(old)
}

/// What a checksum of zero is: zero and 0xffff are the same number to whoever adds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zero {
    /// A sum like any other.
    Sum,
    /// Never written: a rule that writes into a packet leaves 0xffff, as the kernel's does.
    Avoided,
    /// The same, and where it stands there is no checksum (UDP over IPv4, RFC 768).
    Absent,
}

/// Lets a checksum follow what it covers.
pub(crate) fn adjust(packet: &mut Packet, at: usize, old: &[u8], new: &[u8], zero: Zero) {
    let Some(place) = packet.slice_mut(at, 2) else {
        return;
    };
    let before = u16::from_be_bytes([place[0], place[1]]);
    if zero == Zero::Absent && before == 0 {
        return;
    }
    let after = match checksum::update(before, old, new) {
        0 if zero != Zero::Sum => 0xffff,
        after => after,
    };
    place.copy_from_slice(&after.to_be_bytes());
}

/// What zero is where NAT changes what a transport's checksum covers.
fn zero_of(protocol: u8) -> Zero {
    match protocol {
        PROTO_UDP => Zero::Absent,
        _ => Zero::Sum,
    }
}

/// Writes an address into an IP header; the header's checksum follows.
fn put_address(
    packet: &mut Packet,
    header: usize,
    six: bool,
    destination: bool,
    new: u128,
) -> Option<[u8; 16]> {
    let bytes = new.to_be_bytes();
    if six {
        return exchange(packet, header + if destination { 24 } else { 8 }, &bytes);
    }
    let old = exchange(
        packet,
        header + if destination { 16 } else { 12 },
        &bytes[12..],
    )?;
    adjust(packet, header + 10, &old[..4], &bytes[12..], Zero::Sum);
    Some(old)
}

/// Makes one end of the packet what the tuple says.
fn rewrite(packet: &mut Packet, target: &Tuple, destination: bool) {
    let Some(transport) = packet.transport() else {
        return;
    };
    let six = target.six;
    let address = if destination {
        target.destination
    } else {
        target.source
    };
    let header = packet.network_at();
    let Some(old) = put_address(packet, header, six, destination, address) else {
        return;
    };
    let bytes = address.to_be_bytes();
    let (old, new) = if six {
        (&old[..], &bytes[..])
    } else {
        (&old[..4], &bytes[12..])
    };
    if transport.fragment {
        return;
    }
    let place = transport_checksum(transport.protocol);
    let zero = zero_of(transport.protocol);
    if let Some((at, true)) = place {
        adjust(packet, transport.at + at, old, new, zero);
    }
    let (port_at, port) = match transport.protocol {
        PROTO_TCP | PROTO_UDP | PROTO_SCTP if destination => (2, target.destination_port),
        PROTO_TCP | PROTO_UDP | PROTO_SCTP => (0, target.source_port),
        // The identifier stands for the asker's port, whichever way the message goes.
        PROTO_ICMP | PROTO_ICMPV6 => (4, target.source_port),
        _ => return,
    };
    let port = port.to_be_bytes();
    if let Some(old) = exchange(packet, transport.at + port_at, &port) {
        if let Some((at, _)) = place {
            adjust(packet, transport.at + at, &old[..2], &port, zero);
        }
        if transport.protocol == PROTO_SCTP && old[..2] != port {
            sctp_checksum(packet, transport.at);
        }
    }
}

/// SCTP sums up with CRC32c (RFC 9260 appendix A), which cannot be adjusted.
fn sctp_checksum(packet: &mut Packet, at: usize) {
    let end = packet.network_at() + packet.len();
    let Some(bytes) = packet
        .slice_mut(at, end.saturating_sub(at))
        .filter(|b| b.len() >= 12)
    else {
        return;
    };
    bytes[8..12].fill(0);
    let mut crc = u32::MAX;
    for byte in bytes.iter() {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    bytes[8..12].copy_from_slice(&(!crc).to_le_bytes());
}

/// An ICMP error that runs in the direction of `mine` is about a packet of the other
/// direction: what is done to the outer end is done to the opposite inner one.
fn translate_error(packet: &mut Packet, mine: &Tuple, target: &Tuple, destination: bool) {
    let Some((inner, header, behind)) = inner_tuple(packet) else {
        return;
    };
    let Some(transport) = packet.transport() else {
        return;
    };
    let six = target.six;
    let (old_end, new_end) = match destination {
        true => (
            (mine.destination, mine.destination_port),
            (target.destination, target.destination_port),
        ),
        false => (
            (mine.source, mine.source_port),
            (target.source, target.source_port),
        ),
    };
    if old_end == new_end {
        return;
    }
    // Inside, the ends are the other way round.
    let inside_destination = !destination;
    if put_address(packet, header, six, inside_destination, new_end.0).is_none() {
        return;
    }
    if inner.has_ports() {
        let at = behind + if inside_destination { 2 } else { 0 };
        exchange(packet, at, &new_end.1.to_be_bytes());
    } else if matches!(inner.protocol, PROTO_ICMP | PROTO_ICMPV6) {
        exchange(packet, behind + 4, &target.source_port.to_be_bytes());
    }
    // The outer address: an error may come from a router on the way, whose address stays.
    let outer = if destination {
        packet_end(packet, true)
    } else {
        packet_end(packet, false)
    };
    if outer == Some(old_end.0) {
        put_address(packet, packet.network_at(), six, destination, new_end.0);
    }
    sum_up(packet, transport.at, six);
}

/// Whether the transport's checksum fits. One that is not there fits, where it may be absent.
pub(super) fn is_sum_right(packet: &Packet) -> bool {
    let Some(transport) = packet.transport().filter(|t| !t.fragment) else {
        return true;
    };
    let Some((sum_at, with_addresses)) = transport_checksum(transport.protocol) else {
        return true;
    };
    let end = packet.network_at() + packet.len();
    let len = end.saturating_sub(transport.at);
    let Some(segment) = packet.slice(transport.at, len) else {
        return false;
    };
    let six = packet.layer() == Layer::Ip6;
    if transport.protocol == PROTO_UDP && !six && segment.get(sum_at..sum_at + 2) == Some(&[0, 0]) {
        return true;
    }
    let (from, addresses_len) = if six { (8, 32) } else { (12, 8) };
    let mut start = 0;
    if with_addresses {
        let Some(addresses) = packet.slice(packet.network_at() + from, addresses_len) else {
            return false;
        };
        start = u32::from(!checksum::of(addresses, 0)) + len as u32 + u32::from(transport.protocol);
    }
    checksum::of(segment, start) == 0
}

fn packet_end(packet: &Packet, destination: bool) -> Option<u128> {
    let tuple = Tuple::of(packet)?;
    Some(if destination {
        tuple.destination
    } else {
        tuple.source
    })
}

/// The checksum of an ICMP message from its bytes: so much changed inside that
/// differences are not worth their trouble.
fn sum_up(packet: &mut Packet, at: usize, six: bool) {
    let header = packet.network_at();
    let end = header + packet.len();
    let Some(len) = end.checked_sub(at) else {
        return;
    };
    let mut start = 0;
    if six {
        let Some(addresses) = packet.slice(header + 8, 32) else {
            return;
        };
        start = u32::from(!checksum::of(addresses, 0)) + len as u32 + u32::from(PROTO_ICMPV6);
    }
    let Some(message) = packet.slice_mut(at, len).filter(|m| m.len() >= 4) else {
        return;
    };
    message[2..4].fill(0);
    let sum = checksum::of(message, start);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}
