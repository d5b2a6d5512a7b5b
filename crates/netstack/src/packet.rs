//! Headers as offsets into bytes: read with every offset checked, written at fixed places.
//!
//! Read first: RFC 791, RFC 8200 (section 4 for the chain of extension headers), RFC 9293
//! section 3.1.

use core::net::IpAddr;
use core::net::Ipv4Addr;
#[cfg(feature = "ipv6")]
use core::net::Ipv6Addr;

use alloc::vec::Vec;

use crate::{Mac, checksum};

pub(crate) const ETHERNET: usize = 14;
pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
#[cfg(feature = "ipv6")]
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(crate) const BROADCAST: Mac = [0xff; 6];

pub(crate) const IPV4: usize = 20;
pub(crate) const IPV6: usize = 40;
pub(crate) const ICMP: u8 = 1;
pub(crate) const IGMP: u8 = 2;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;
/// Extension headers of IPv6; the last says that nothing follows.
pub(crate) const HOP_BY_HOP: u8 = 0;
#[cfg(feature = "ipv6")]
const ROUTING: u8 = 43;
#[cfg(feature = "ipv6")]
const FRAGMENT: u8 = 44;
#[cfg(feature = "ipv6")]
const DESTINATION: u8 = 60;
pub(crate) const NOTHING: u8 = 59;

pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// What an IP header says. `end` may lie before the end of the bytes (padding).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ip {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub protocol: u8,
    /// Where the payload begins, behind all extension headers.
    pub payload: usize,
    pub end: usize,
    pub hop_limit: u8,
    pub fragment: Option<Fragment>,
}

#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "fragments"), expect(dead_code))]
pub(crate) struct Fragment {
    pub id: u32,
    pub offset: usize,
    pub more: bool,
}

impl Ip {
    pub(crate) fn len(&self) -> usize {
        self.end - self.payload
    }

    pub(crate) fn pseudo(&self) -> u32 {
        checksum::pseudo(&self.src, &self.dst, self.protocol, self.len())
    }
}

/// Reads the header at the start of `bytes`.
pub(crate) fn parse(bytes: &[u8]) -> Option<Ip> {
    match bytes.first()? >> 4 {
        4 => parse_v4(bytes),
        #[cfg(feature = "ipv6")]
        6 => parse_v6(bytes),
        _ => None,
    }
}

fn parse_v4(bytes: &[u8]) -> Option<Ip> {
    let fixed: &[u8; IPV4] = bytes.get(..IPV4)?.try_into().ok()?;
    let payload = usize::from(fixed[0] & 15) * 4;
    let end = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if payload < IPV4 || end < payload || end > bytes.len() {
        return None;
    }
    let flags = u16::from_be_bytes([fixed[6], fixed[7]]);
    let fragment = (flags & 0x3fff != 0).then(|| Fragment {
        id: u32::from(u16::from_be_bytes([fixed[4], fixed[5]])),
        offset: usize::from(flags & 0x1fff) * 8,
        more: flags & 0x2000 != 0,
    });
    Some(Ip {
        src: IpAddr::V4(Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15])),
        dst: IpAddr::V4(Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19])),
        protocol: fixed[9],
        payload,
        end,
        hop_limit: fixed[8],
        fragment,
    })
}

/// So many extension headers may come before the payload.
#[cfg(feature = "ipv6")]
const EXTENSIONS_MAX: usize = 8;

#[cfg(feature = "ipv6")]
fn parse_v6(bytes: &[u8]) -> Option<Ip> {
    let fixed: &[u8; IPV6] = bytes.get(..IPV6)?.try_into().ok()?;
    let end = IPV6 + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    if end > bytes.len() {
        return None;
    }
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = fixed[at..at + 16].try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    let mut ip = Ip {
        src: address(8)?,
        dst: address(24)?,
        protocol: fixed[6],
        payload: IPV6,
        end,
        hop_limit: fixed[7],
        fragment: None,
    };
    for _ in 0..=EXTENSIONS_MAX {
        let (next, len) = match ip.protocol {
            // Length in units of 8 bytes after the first 8.
            HOP_BY_HOP | ROUTING | DESTINATION => {
                let len = 8 + usize::from(*bytes.get(ip.payload + 1)?) * 8;
                let header = bytes.get(ip.payload..ip.payload + len)?;
                let may_pass = match ip.protocol {
                    // For every router, so that it comes first.
                    HOP_BY_HOP => ip.payload == IPV6 && options_may_pass(&header[2..]),
                    // Segments that are left would make us a router (RFC 5095).
                    ROUTING => header[3] == 0,
                    _ => options_may_pass(&header[2..]),
                };
                if !may_pass {
                    return None;
                }
                (header[0], len)
            }
            FRAGMENT => {
                let word = be16(bytes, ip.payload + 2)?;
                let fragment = Fragment {
                    id: be32(bytes, ip.payload + 4)?,
                    offset: usize::from(word & 0xfff8),
                    more: word & 1 != 0,
                };
                // One that is whole stands for itself (RFC 6946). What follows in a true
                // fragment is looked at when the packet is whole.
                if fragment.offset != 0 || fragment.more {
                    ip.fragment = Some(fragment);
                }
                (*bytes.get(ip.payload)?, 8)
            }
            _ => return Some(ip),
        };
        ip.payload += len;
        if ip.payload > ip.end {
            return None;
        }
        ip.protocol = next;
        if ip.fragment.is_some() {
            return Some(ip);
        }
    }
    None
}

/// Options of which one must be understood, and is not, stop the packet (RFC 8200 section 4.2).
#[cfg(feature = "ipv6")]
fn options_may_pass(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        // Pad1 is a byte alone.
        let len = match (kind, rest) {
            (0, _) => 0,
            (_, [len, ..]) => 1 + usize::from(*len),
            (_, []) => return false,
        };
        if len > rest.len() || kind >> 6 != 0 {
            return false;
        }
        options = &rest[len..];
    }
    true
}

/// Length of the IP header that we write towards this address.
pub(crate) fn header_len(dst: &IpAddr) -> usize {
    match dst {
        IpAddr::V4(_) => IPV4,
        IpAddr::V6(_) => IPV6,
    }
}

/// Writes an IP header without options for a payload that follows it.
pub(crate) fn put_ip(
    bytes: &mut [u8],
    src: &IpAddr,
    dst: &IpAddr,
    protocol: u8,
    hop_limit: u8,
    payload_len: usize,
) {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            bytes[0] = 0x45;
            bytes[1] = 0;
            put16(bytes, 2, (IPV4 + payload_len) as u16);
            put16(bytes, 4, 0);
            put16(bytes, 6, 0x4000);
            bytes[8] = hop_limit;
            bytes[9] = protocol;
            put16(bytes, 10, 0);
            bytes[12..16].copy_from_slice(&src.octets());
            bytes[16..20].copy_from_slice(&dst.octets());
            fill_ipv4_checksum(bytes);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            put32(bytes, 0, 0x6000_0000);
            put16(bytes, 4, payload_len as u16);
            bytes[6] = protocol;
            bytes[7] = hop_limit;
            bytes[8..24].copy_from_slice(&src.octets());
            bytes[24..40].copy_from_slice(&dst.octets());
        }
        _ => {}
    }
}

/// Puts the type of service or traffic class, and for IPv6 the flow label (RFC 6437), into a
/// header that [`put_ip`] wrote.
pub(crate) fn mark(bytes: &mut [u8], class: u8, label: u32) {
    if bytes[0] >> 4 == 6 {
        put32(
            bytes,
            0,
            0x6000_0000 | u32::from(class) << 20 | label & 0xf_ffff,
        );
    } else if class != 0 {
        bytes[1] = class;
        fill_ipv4_checksum(bytes);
    }
}

/// Of a header without options.
pub(crate) fn fill_ipv4_checksum(bytes: &mut [u8]) {
    put16(bytes, 10, 0);
    let sum = checksum::fold(checksum::of_words::<IPV4>(&bytes[..IPV4]));
    put16(bytes, 10, !sum);
}

pub(crate) fn put_ethernet(bytes: &mut [u8], dst: &Mac, src: &Mac, is_v6: bool) {
    bytes[..6].copy_from_slice(dst);
    bytes[6..12].copy_from_slice(src);
    put16(bytes, 12, if is_v6 { 0x86dd } else { ETHERTYPE_IPV4 });
}

/// A packet of ours that begins with room for the Ethernet header.
pub(crate) fn start(
    mut buffer: Vec<u8>,
    src: &IpAddr,
    dst: &IpAddr,
    protocol: u8,
    hop_limit: u8,
    payload_len: usize,
) -> (Vec<u8>, usize) {
    let payload = ETHERNET + header_len(dst);
    buffer.clear();
    buffer.resize(payload + payload_len, 0);
    put_ip(
        &mut buffer[ETHERNET..],
        src,
        dst,
        protocol,
        hop_limit,
        payload_len,
    );
    (buffer, payload)
}

/// Flags of a TCP header.
pub(crate) mod flag {
    pub(crate) const FIN: u8 = 1;
    pub(crate) const SYN: u8 = 2;
    pub(crate) const RST: u8 = 4;
    pub(crate) const PSH: u8 = 8;
    pub(crate) const ACK: u8 = 16;
    pub(crate) const URG: u8 = 32;
}

/// The fixed part of a TCP header.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tcp {
    pub src_port: u16,
    pub dst_port: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    /// With URG: how far behind `seq` the urgent byte ends.
    pub urgent: u16,
    /// Length of the header with its options.
    pub header: usize,
}

impl Tcp {
    /// Of a segment that ends with `bytes`.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Tcp> {
        let fixed: &[u8; 20] = bytes.get(..20)?.try_into().ok()?;
        let header = usize::from(fixed[12] >> 4) * 4;
        if header < 20 || header > bytes.len() {
            return None;
        }
        Some(Tcp {
            src_port: u16::from_be_bytes([fixed[0], fixed[1]]),
            dst_port: u16::from_be_bytes([fixed[2], fixed[3]]),
            seq: u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
            ack: u32::from_be_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]),
            flags: fixed[13],
            window: u16::from_be_bytes([fixed[14], fixed[15]]),
            urgent: u16::from_be_bytes([fixed[18], fixed[19]]),
            header,
        })
    }

    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

/// Goes through the options of a TCP header: kind, and what follows kind and length.
fn each_option(options: &[u8], mut found: impl FnMut(u8, &[u8])) {
    let mut rest = options;
    while let Some((&kind, after)) = rest.split_first() {
        rest = match kind {
            0 => return,
            1 => after,
            _ => {
                let len = after.first().map_or(0, |len| usize::from(*len));
                let Some(body) = rest.get(2..len) else {
                    return;
                };
                found(kind, body);
                &rest[len..]
            }
        };
    }
}

/// A timestamp and the one that it answers (RFC 7323).
pub(crate) type Times = (u32, u32);

/// Options of a SYN that we understand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SynOptions {
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub is_sack: bool,
    pub times: Option<Times>,
}

impl SynOptions {
    pub(crate) fn parse(options: &[u8]) -> SynOptions {
        let mut said = SynOptions::default();
        each_option(options, |kind, body| match (kind, body.len()) {
            (2, 2) => said.mss = be16(body, 0),
            // RFC 7323 section 2.3: larger shifts count as 14.
            (3, 1) => said.window_scale = Some(body[0].min(14)),
            (4, 0) => said.is_sack = true,
            (8, 8) => said.times = be32(body, 0).zip(be32(body, 4)),
            _ => {}
        });
        said
    }

    /// Writes the options of a SYN into `bytes`; gives their length, a multiple of four.
    pub(crate) fn put(&self, bytes: &mut [u8; 24]) -> usize {
        let mut at = 0;
        if let Some(mss) = self.mss {
            bytes[..2].copy_from_slice(&[2, 4]);
            put16(bytes, 2, mss);
            at = 4;
        }
        if self.is_sack {
            bytes[at..at + 4].copy_from_slice(&[1, 1, 4, 2]);
            at += 4;
        }
        if let Some(shift) = self.window_scale {
            bytes[at..at + 4].copy_from_slice(&[1, 3, 3, shift]);
            at += 4;
        }
        if let Some(times) = self.times {
            put_times(&mut bytes[at..], times);
            at += TIMES;
        }
        at
    }
}

/// Length of timestamps with the padding before them.
pub(crate) const TIMES: usize = 12;
/// What they look like where nothing else is said.
const TIMES_ALONE: [u8; 4] = [1, 1, 8, 10];

pub(crate) fn put_times(bytes: &mut [u8], times: Times) {
    bytes[..4].copy_from_slice(&TIMES_ALONE);
    put32(bytes, 4, times.0);
    put32(bytes, 8, times.1);
}

/// Options of any other segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentOptions {
    pub times: Option<Times>,
    blocks: [(u32, u32); 4],
    block_count: usize,
}

impl SegmentOptions {
    pub(crate) fn parse(options: &[u8]) -> SegmentOptions {
        let mut said = SegmentOptions::default();
        if options.len() == TIMES && options[..4] == TIMES_ALONE {
            said.times = be32(options, 4).zip(be32(options, 8));
            return said;
        }
        each_option(options, |kind, body| match (kind, body.len()) {
            (8, 8) => said.times = be32(body, 0).zip(be32(body, 4)),
            (5, 8 | 16 | 24 | 32) => {
                for (place, block) in said.blocks.iter_mut().zip(body.chunks_exact(8)) {
                    *place = be32(block, 0).zip(be32(block, 4)).unwrap_or_default();
                }
                said.block_count = body.len() / 8;
            }
            _ => {}
        });
        said
    }

    pub(crate) fn blocks(&self) -> &[(u32, u32)] {
        &self.blocks[..self.block_count]
    }
}

/// Writes a SACK option with its padding; gives its length.
pub(crate) fn put_blocks(bytes: &mut [u8], blocks: &[(u32, u32)]) -> usize {
    if blocks.is_empty() {
        return 0;
    }
    bytes[..4].copy_from_slice(&[1, 1, 5, 2 + 8 * blocks.len() as u8]);
    for (index, block) in blocks.iter().enumerate() {
        put32(bytes, 4 + 8 * index, block.0);
        put32(bytes, 8 + 8 * index, block.1);
    }
    4 + 8 * blocks.len()
}

/// Writes a TCP header; the checksum stays zero.
pub(crate) fn put_tcp(bytes: &mut [u8], tcp: &Tcp) {
    put16(bytes, 0, tcp.src_port);
    put16(bytes, 2, tcp.dst_port);
    put32(bytes, 4, tcp.seq);
    put32(bytes, 8, tcp.ack);
    bytes[12] = ((tcp.header / 4) as u8) << 4;
    bytes[13] = tcp.flags;
    put16(bytes, 14, tcp.window);
    // The checksum follows when all is there.
    put32(bytes, 16, tcp.urgent.into());
}
