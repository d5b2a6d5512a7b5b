//! Fragments of IPv4 (RFC 791 section 3.2, RFC 815) and IPv6 (RFC 8200 section 4.5): put
//! together on the way in, cut on the way out.
//!
//! What is being put together is bounded in packets and bytes; when there is no room, the oldest
//! goes. A packet with overlapping fragments is given up whole (RFC 5722), and so is one with
//! more than [`PIECES_MAX`] holes. What lies within what is there is a duplicate and ignored.

use alloc::vec::Vec;
use core::net::IpAddr;

use crate::counters::Drop;
use crate::packet::{self, ETHERNET, Ip};
use crate::route::Hop;
use crate::stack::Stack;
use crate::{Micros, SECOND_US};

const TIMEOUT_US: Micros = 30 * SECOND_US;
const PACKET_BYTES_MAX: usize = 65_535;
const PIECES_MAX: usize = 64;

#[derive(Debug)]
struct Partial {
    key: (IpAddr, IpAddr, u8, u32),
    since: Micros,
    /// Of the first fragment, without extension headers; absent until it arrives.
    hop_limit: u8,
    protocol: Option<u8>,
    bytes: Vec<u8>,
    /// What has arrived, in order, not touching one another.
    ranges: Vec<(usize, usize)>,
    total: Option<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Fragments {
    /// Oldest first.
    partial: Vec<Partial>,
    bytes: usize,
}

impl Fragments {
    fn remove(&mut self, index: usize) -> Partial {
        let gone = self.partial.remove(index);
        self.bytes -= gone.bytes.len();
        gone
    }

    pub(crate) fn advance(&mut self, now: Micros) {
        while self
            .partial
            .first()
            .is_some_and(|p| now.saturating_sub(p.since) >= TIMEOUT_US)
        {
            self.remove(0);
        }
    }

    pub(crate) fn next_at(&self) -> Option<Micros> {
        self.partial.first().map(|p| p.since + TIMEOUT_US)
    }
}

impl Partial {
    /// Notes a piece; false if it overlaps another or does not fit.
    fn add(&mut self, from: usize, piece: &[u8], is_last: bool) -> bool {
        let to = from + piece.len();
        let beyond_end = self
            .total
            .is_some_and(|total| to > total || (is_last && to != total));
        if beyond_end || self.ranges.len() >= PIECES_MAX {
            return false;
        }
        let at = self.ranges.partition_point(|(start, _)| *start <= from);
        let before = at.checked_sub(1).map(|index| self.ranges[index]);
        // What is there already, in whole, is a duplicate: the first counts.
        let past_last = is_last && self.ranges.last().is_some_and(|(_, end)| *end > to);
        if before.is_some_and(|(_, end)| to <= end) && !past_last {
            return true;
        }
        let hits_before = before.is_some_and(|(_, end)| end > from);
        let hits_after = self.ranges.get(at).is_some_and(|(start, _)| *start < to);
        if hits_before || hits_after || past_last {
            return false;
        }
        if self.bytes.len() < to {
            self.bytes.resize(to, 0);
        }
        self.bytes[from..to].copy_from_slice(piece);
        self.ranges.insert(at, (from, to));
        self.join(at);
        if is_last {
            self.total = Some(to);
        }
        true
    }

    /// Makes one of the range at `at` and those that it touches.
    fn join(&mut self, at: usize) {
        if let Some((from, to)) = self.ranges.get(at + 1).copied()
            && self.ranges[at].1 == from
        {
            self.ranges[at].1 = to;
            self.ranges.remove(at + 1);
        }
        if at > 0 && self.ranges[at - 1].1 == self.ranges[at].0 {
            self.ranges[at - 1].1 = self.ranges[at].1;
            self.ranges.remove(at);
        }
    }

    fn is_whole(&self) -> bool {
        let whole = self.total.map(|total| (0, total));
        self.protocol.is_some() && self.ranges.len() == 1 && self.ranges.first().copied() == whole
    }
}

impl Stack {
    /// Takes a fragment; gives the packet, with a plain IP header, once it is whole.
    pub(crate) fn reassemble(&mut self, bytes: &[u8], ip: &Ip) -> Result<Option<Vec<u8>>, Drop> {
        let fragment = ip.fragment.ok_or(Drop::Fragment)?;
        let piece = &bytes[ip.payload..ip.end];
        let is_first = fragment.offset == 0;
        let is_odd = fragment.more && !piece.len().is_multiple_of(8);
        let header = packet::header_len(&ip.dst);
        if piece.is_empty() || is_odd || fragment.offset + piece.len() + header > PACKET_BYTES_MAX {
            return Err(Drop::Fragment);
        }
        // IPv6 names the packet by its addresses and identification alone; later fragments
        // may even differ in the next header.
        let protocol = if ip.dst.is_ipv4() { ip.protocol } else { 0 };
        let key = (ip.src, ip.dst, protocol, fragment.id);
        let (packets_max, bytes_max) = (
            self.limits.reassembly_packets_max,
            self.limits.reassembly_bytes_max,
        );
        let fragments = &mut self.fragments;
        let grows = fragment.offset + piece.len();
        while fragments.bytes + grows > bytes_max && !fragments.partial.is_empty() {
            fragments.remove(0);
        }
        if grows > bytes_max {
            return Err(Drop::Fragment);
        }
        let index = match fragments.partial.iter().position(|p| p.key == key) {
            Some(index) => index,
            None => {
                if fragments.partial.len() >= packets_max.max(1) {
                    fragments.remove(0);
                }
                fragments.partial.push(Partial {
                    key,
                    since: self.now,
                    hop_limit: ip.hop_limit,
                    protocol: None,
                    bytes: Vec::new(),
                    ranges: Vec::new(),
                    total: None,
                });
                fragments.partial.len() - 1
            }
        };
        let partial = &mut fragments.partial[index];
        let before = partial.bytes.len();
        let fits = partial.add(fragment.offset, piece, !fragment.more);
        fragments.bytes += partial.bytes.len() - before;
        if is_first {
            partial.protocol = Some(ip.protocol);
            partial.hop_limit = ip.hop_limit;
        }
        if !fits {
            fragments.remove(index);
            return Err(Drop::Fragment);
        }
        if !partial.is_whole() {
            return Ok(None);
        }
        let whole = fragments.remove(index);
        let buffer = self.outbox.buffer();
        let protocol = whole.protocol.unwrap_or(0);
        let len = whole.bytes.len();
        let (mut packet, at) =
            packet::start(buffer, &ip.src, &ip.dst, protocol, whole.hop_limit, len);
        packet[at..].copy_from_slice(&whole.bytes);
        Ok(Some(packet))
    }

    /// Sends a packet that is larger than the link, or its way, in pieces. Its checksum is
    /// filled in.
    pub(crate) fn send_in_fragments(
        &mut self,
        hop: Hop,
        frame: Vec<u8>,
        mtu_bytes: usize,
    ) -> Result<(), (Drop, Vec<u8>)> {
        let is_v4 = frame[ETHERNET] >> 4 == 4;
        let header = if is_v4 { packet::IPV4 } else { packet::IPV6 };
        let extension = if is_v4 { 0 } else { 8 };
        let room = mtu_bytes.saturating_sub(header + extension) & !7;
        if room == 0 {
            return Err((Drop::Fragment, frame));
        }
        let id = self.random.next() as u32;
        let payload = &frame[ETHERNET + header..];
        let pieces = payload.len().div_ceil(room);
        for (index, piece) in payload.chunks(room).enumerate() {
            let more = index + 1 < pieces;
            let mut part = self.outbox.buffer();
            part.extend_from_slice(&frame[..ETHERNET + header]);
            let offset = index * room;
            if is_v4 {
                let ip = &mut part[ETHERNET..];
                packet::put16(ip, 2, (header + piece.len()) as u16);
                packet::put16(ip, 4, id as u16);
                packet::put16(ip, 6, (offset / 8) as u16 | u16::from(more) << 13);
                packet::fill_ipv4_checksum(ip);
            } else {
                let protocol = part[ETHERNET + 6];
                packet::put16(&mut part[ETHERNET..], 4, (8 + piece.len()) as u16);
                part[ETHERNET + 6] = 44;
                part.extend_from_slice(&[protocol, 0]);
                part.extend_from_slice(&(offset as u16 | u16::from(more)).to_be_bytes());
                part.extend_from_slice(&id.to_be_bytes());
            }
            part.extend_from_slice(piece);
            if let Err((why, part)) = self.send_to_hop(hop, part, None) {
                self.outbox.give_back(part);
                return Err((why, frame));
            }
        }
        self.outbox.give_back(frame);
        Ok(())
    }
}
