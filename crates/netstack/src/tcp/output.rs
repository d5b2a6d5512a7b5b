//! Segments on their way out: smoltcp writes one straight into the caller's buffer, headers are
//! put right, and what is too large goes as GSO or through `cut`.

use smoltcp::socket::tcp::State;

use super::device::{OneShot, segment_bytes_max};
use super::flow::{CachedHop, Flow};
use super::{Cut, instant};
use crate::checksum;
use crate::frame::{ChecksumRequest, TxFrame};
use crate::ip::LOOPBACK_MAX;
use crate::neighbor::Answer;
use crate::packet::{self, ETHERNET, SynOptions, Tcp, flag};
use crate::route::Hop;
use crate::stack::{Error, Stack};
use crate::{Mac, Micros, SECOND_US};

/// How long a flow uses a neighbor's address without asking the table.
const HOP_US: Micros = 10 * SECOND_US;

/// Where a flow's segments go.
enum Way {
    Own,
    Link(Mac),
    /// The neighbor is being asked for; the flow waits with it.
    Parked,
    Nowhere,
}

impl Flow {
    /// Puts smoltcp's sequence number right and notes what was said.
    pub(super) fn note_sent(&mut self, segment: &mut [u8], now: Micros) {
        let Some(tcp) = Tcp::parse(segment) else {
            return;
        };
        if let Some(wanted) = self.initial_seq.take() {
            self.delta = wanted.wrapping_sub(tcp.seq);
        }
        let seq = tcp.seq.wrapping_add(self.delta);
        if self.delta != 0 {
            packet::put32(segment, 4, seq);
        }
        let controls = u32::from(tcp.has(flag::SYN)) + u32::from(tcp.has(flag::FIN));
        let next = seq.wrapping_add((segment.len() - tcp.header) as u32 + controls);
        if tcp.has(flag::SYN) {
            // Sent again, its answer measures nothing.
            let is_first = self.seq_next != next;
            self.recovery.begin(next, is_first.then_some(now));
        } else {
            self.recovery.sent(seq, next, self.seq_next, now);
        }
        // A retransmission does not take it back.
        if next.wrapping_sub(self.seq_next).cast_signed() > 0 || tcp.has(flag::SYN) {
            self.seq_next = next;
        }
        self.ack_next = tcp.ack;
    }
}

impl Stack {
    /// The next frame of the flows that have something to send.
    pub(crate) fn tcp_transmit(&mut self, buffer: &mut [u8]) -> Option<TxFrame> {
        loop {
            if let Some(len) = self.tcp.cut.next(buffer, &self.link.mac) {
                return Some(self.seal_segment(buffer, len, None));
            }
            let index = self.tcp.dirty.pop_front()?;
            let Some(flow) = self.tcp.flow(index) else {
                continue;
            };
            flow.is_dirty = false;
            if !flow.is_attached {
                continue;
            }
            if core::mem::take(&mut flow.is_heard) {
                // Nobody has answered since: this sets its timer, or makes it dirty.
                self.settle(index);
                continue;
            }
            let frame = match self.way(index) {
                Way::Link(mac) => self.write_segment(index, mac, buffer),
                Way::Own if self.loopback.len() < LOOPBACK_MAX => {
                    self.loop_segment(index);
                    None
                }
                Way::Own => {
                    self.tcp.mark_dirty(index);
                    return None;
                }
                Way::Parked => continue,
                Way::Nowhere => {
                    self.unreachable(index);
                    continue;
                }
            };
            if frame.is_some() {
                self.settle_sent(index);
                return frame;
            }
            self.settle(index);
            // What was looped back is taken in before more is sent.
            if !self.loopback.is_empty() {
                return None;
            }
        }
    }

    fn way(&mut self, index: u32) -> Way {
        let (epoch, now) = (self.neighbors.epoch, self.now);
        let Some(flow) = self.tcp.flow(index) else {
            return Way::Nowhere;
        };
        if flow.hop.epoch == epoch && now.saturating_sub(flow.hop.checked_at) < HOP_US {
            return Way::Link(flow.hop.mac);
        }
        let remote = flow.remote.ip();
        let neighbor = match self.routing.hop(&remote) {
            Some(Hop::Own) => return Way::Own,
            Some(Hop::Neighbor(neighbor)) => neighbor,
            _ => return Way::Nowhere,
        };
        match self.neighbors.resolve(neighbor, now) {
            Answer::Known(mac) => {
                let hop = CachedHop {
                    epoch,
                    checked_at: now,
                    mac,
                };
                if let Some(flow) = self.tcp.flow(index) {
                    flow.hop = hop;
                }
                Way::Link(mac)
            }
            Answer::Refused => Way::Nowhere,
            Answer::Wait => {
                let generation = self.tcp.id(index).generation;
                if let Some(flow) = self.tcp.flow(index)
                    && !flow.is_parked
                {
                    flow.is_parked = true;
                    self.neighbors.park_flow(&neighbor, (index, generation));
                }
                Way::Parked
            }
        }
    }

    /// A neighbor that a flow waited for is known, or will not be.
    pub(crate) fn tcp_neighbor(&mut self, index: u32, generation: u32, is_known: bool) {
        let is_same = self.tcp.id(index).generation == generation;
        let Some(flow) = self.tcp.flow(index).filter(|_| is_same) else {
            return;
        };
        flow.is_parked = false;
        if is_known {
            self.tcp.mark_dirty(index);
        } else {
            self.unreachable(index);
        }
    }

    /// A connection that is being made fails; one that stands tries again later.
    fn unreachable(&mut self, index: u32) {
        let now = self.now;
        let Some(flow) = self.tcp.flow(index) else {
            return;
        };
        if flow.socket_ref().state() == State::SynSent {
            flow.error = Some(Error::Unreachable);
            flow.socket().close();
            self.settle(index);
        } else if flow.socket_ref().state() == State::Closed {
            // Its RST has nowhere to go.
            self.detach(index);
        } else {
            flow.waits_since.get_or_insert(now);
            if self.give_up_if_due(index) {
                return;
            }
            self.tcp.timers.set(index, Some(now + SECOND_US));
        }
    }

    /// Lets smoltcp write; gives the length of its IP packet.
    fn write(&mut self, index: u32, room: &mut [u8], bytes_max: usize) -> usize {
        let now = instant(self.now);
        self.counters.flow_visits += 1;
        let Some(flow) = self.tcp.flows[index as usize].flow.as_deref_mut() else {
            return 0;
        };
        let mut device = OneShot::new(None, room, bytes_max);
        self.tcp
            .interface
            .poll_egress(now, &mut device, &mut flow.set);
        device.len_bytes
    }

    fn write_segment(&mut self, index: u32, mac: Mac, buffer: &mut [u8]) -> Option<TxFrame> {
        let offloads = self.link.offloads;
        let is_v4 = self.tcp.flow(index)?.remote.is_ipv4();
        let has_gso = if is_v4 {
            offloads.gso_v4
        } else {
            offloads.gso_v6
        };
        let bytes_max = segment_bytes_max(&self.link);
        if has_gso {
            let len = self.write(index, &mut buffer[ETHERNET..], bytes_max);
            if len == 0 {
                return None;
            }
            packet::put_ethernet(buffer, &mac, &self.link.mac, !is_v4);
            let (_, header) = self.put_right(index, &mut buffer[ETHERNET..ETHERNET + len]);
            if !self.may_leave(index, &mut buffer[ETHERNET..ETHERNET + len], false) {
                return None;
            }
            let mss = self.tcp.flow(index)?.mss;
            let gso = (len - header > usize::from(mss)).then_some(mss);
            return Some(self.seal_segment(buffer, ETHERNET + len, gso));
        }
        let mut cut = core::mem::take(&mut self.tcp.cut);
        cut.bytes.resize(bytes_max, 0);
        let len = self.write(index, &mut cut.bytes, bytes_max);
        if len > 0 {
            self.begin_cut(index, &mut cut, len, mac);
        }
        self.tcp.cut = cut;
        let len = self.tcp.cut.next(buffer, &self.link.mac)?;
        Some(self.seal_segment(buffer, len, None))
    }

    fn begin_cut(&mut self, index: u32, cut: &mut Cut, len: usize, mac: Mac) {
        let (network, header) = self.put_right(index, &mut cut.bytes[..len]);
        if !self.may_leave(index, &mut cut.bytes[..len], false) {
            return;
        }
        let mss = self.tcp.flow(index).map_or(0, |flow| flow.mss);
        cut.begin(len, network, header, mss.into(), mac);
    }

    fn loop_segment(&mut self, index: u32) {
        let mut cut = core::mem::take(&mut self.tcp.cut.bytes);
        cut.resize(super::device::MTU, 0);
        let len = self.write(index, &mut cut, super::device::MTU);
        if len > 0 {
            self.put_right(index, &mut cut[..len]);
        }
        if len > 0 && self.may_leave(index, &mut cut[..len], true) {
            let mut frame = self.outbox.buffer();
            frame.resize(ETHERNET, 0);
            frame.extend_from_slice(&cut[..len]);
            self.loopback.push_back(frame);
        }
        self.tcp.cut.bytes = cut;
    }

    /// Puts our sequence number and MSS into a packet of smoltcp's. Gives the lengths of its IP
    /// header and of both headers.
    fn put_right(&mut self, index: u32, ip: &mut [u8]) -> (usize, usize) {
        let is_v4 = ip[0] >> 4 == 4;
        let network = if is_v4 { packet::IPV4 } else { packet::IPV6 };
        let header = network + usize::from(ip[network + 12] >> 4) * 4;
        if ip[network + 13] & flag::SYN != 0
            && let Some(remote) = self.tcp.flow(index).map(|flow| flow.remote)
        {
            let own_mss = self.own_mss(&remote);
            let options = SynOptions::parse(&ip[network + 20..header]);
            if let Some(at) = options.mss_at {
                packet::put16(ip, network + 20 + at, own_mss);
            }
        }
        let now = self.now;
        if let Some(flow) = self.tcp.flow(index) {
            flow.note_sent(&mut ip[network..], now);
        }
        if is_v4 {
            packet::fill_ipv4_checksum(ip);
        }
        (network, header)
    }

    /// What the filter says to a segment. A dropped one is lost as if on the link.
    #[cfg(feature = "filter")]
    fn may_leave(&mut self, index: u32, ip: &mut [u8], is_loopback: bool) -> bool {
        use crate::filter::Judged;
        if !self.has_rules() {
            return true;
        }
        let judged = self.filter_output(ip, is_loopback);
        if matches!(judged, Judged::Pass) {
            return true;
        }
        self.counters.drop(crate::Drop::Filter);
        if matches!(judged, Judged::Reject(_))
            && let Some(flow) = self.tcp.flow(index)
            && flow.socket_ref().state() == State::SynSent
        {
            flow.error = Some(Error::Refused);
            flow.socket().close();
        }
        false
    }

    #[cfg(not(feature = "filter"))]
    fn may_leave(&mut self, _index: u32, _ip: &mut [u8], _is_loopback: bool) -> bool {
        true
    }

    /// The checksum of a frame that is ready otherwise, or the request for it.
    fn seal_segment(&self, frame: &mut [u8], len_bytes: usize, gso_bytes: Option<u16>) -> TxFrame {
        let ip = &mut frame[ETHERNET..len_bytes];
        let is_v4 = ip[0] >> 4 == 4;
        let (network, addresses) = if is_v4 {
            (packet::IPV4, checksum::of_words::<8>(&ip[12..20]))
        } else {
            (packet::IPV6, checksum::of_words::<32>(&ip[8..40]))
        };
        let payload_len = ip.len() - network;
        let length = [0, packet::TCP, (payload_len >> 8) as u8, payload_len as u8];
        let partial = addresses + checksum::of_words::<4>(&length);
        let offloads = &self.link.offloads;
        let offered = if is_v4 {
            offloads.tx_checksum_v4
        } else {
            offloads.tx_checksum_v6
        };
        let at = network + 16;
        let checksum = if offered || gso_bytes.is_some() {
            packet::put16(ip, at, checksum::fold(partial));
            Some(ChecksumRequest {
                start: (ETHERNET + network) as u16,
                offset: 16,
            })
        } else {
            packet::put16(ip, at, 0);
            let sum = checksum::of(partial, &ip[network..]);
            packet::put16(ip, at, sum);
            None
        };
        TxFrame {
            len_bytes,
            checksum,
            gso_bytes,
            is_ipv6: !is_v4,
        }
    }
}
