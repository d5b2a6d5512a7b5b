//! Segments on their way out: a flow writes one straight into the caller's buffer, the headers
//! before it are put there, and what is too large for the link goes as GSO.

use super::flow::{CachedHop, TcpState};
use crate::checksum;
use crate::frame::{ChecksumRequest, TxFrame};
use crate::ip::{LOOPBACK_MAX, gso_bytes_max};
use crate::neighbor::Answer;
use crate::packet::{self, ETHERNET, TIMES};
use crate::route::Hop;
use crate::stack::{Error, Stack};
use crate::{Mac, Micros, SECOND_US};

/// How long a flow uses a neighbor's address without asking the table.
const HOP_US: Micros = 10 * SECOND_US;
const IP_BYTES_MAX: usize = 65_535;

/// Where a flow's segments go.
enum Way {
    Own,
    Link(Mac),
    /// The neighbor is being asked for; the flow waits with it.
    Parked,
    Nowhere,
}

impl Stack {
    /// The next frame of the flows that have something to send.
    pub(crate) fn tcp_transmit(&mut self, buffer: &mut [u8]) -> Option<TxFrame> {
        loop {
            let index = self.tcp.dirty.pop_front()?;
            let Some(flow) = self.tcp.flow(index) else {
                continue;
            };
            flow.is_dirty = false;
            if !flow.is_attached {
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
            self.settle(index);
            if frame.is_some() {
                return frame;
            }
            // What was looped back is taken in before more is sent.
            if !self.loopback.is_empty() {
                return None;
            }
        }
    }

    /// Segments of the flows whose far end is ours; the others go on waiting.
    pub(crate) fn tcp_loop(&mut self) {
        for _ in 0..self.tcp.dirty.len() {
            let Some(index) = self.tcp.dirty.pop_front() else {
                return;
            };
            let Some(flow) = self.tcp.flow(index) else {
                continue;
            };
            flow.is_dirty = false;
            if !flow.is_attached {
                continue;
            }
            match self.way(index) {
                Way::Own if self.loopback.len() < LOOPBACK_MAX => {
                    self.loop_segment(index);
                    self.settle(index);
                }
                Way::Own | Way::Link(_) => self.tcp.mark_dirty(index),
                Way::Parked => {}
                Way::Nowhere => self.unreachable(index),
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
        match flow.tcp.state {
            TcpState::SynSent => {
                flow.tcp.fail(Error::Unreachable);
                self.settle(index);
            }
            // Its RST has nowhere to go.
            TcpState::Closed => self.detach(index),
            // So has the last acknowledgement.
            TcpState::TimeWait => self.enter_time_wait(index),
            _ => self.tcp.timers.set(index, Some(now + SECOND_US)),
        }
    }

    /// Lets a flow write an IP packet, whose headers may be followed by at most `bytes_max` with
    /// them. Gives its length, and the payload of a segment on the wire if it is to be cut.
    fn write(
        &mut self,
        index: u32,
        packet: &mut [u8],
        bytes_max: usize,
    ) -> Option<(usize, Option<u16>)> {
        let now = self.now;
        self.counters.flow_visits += 1;
        let usual_hops = [false, true].map(|is_ipv6| self.hop_limit(is_ipv6));
        let flow = self.tcp.flow(index)?;
        let (local, remote) = (flow.local, flow.remote);
        let network = packet::header_len(&remote.ip());
        let mss = flow.tcp.send.mss;
        let payload_max = bytes_max.saturating_sub(network + 20 + TIMES) as u64;
        let payload_max = (payload_max - payload_max % mss).max(mss);
        let hop_limit = match flow.tcp.options.hop_limit {
            Some(hops) => hops.max(1),
            None => usual_hops[usize::from(remote.is_ipv6())],
        };
        let class = flow.tcp.options.class;
        let (header, payload) = flow.tcp.write(&mut packet[network..], payload_max, now)?;
        packet::put16(packet, network, local.port());
        packet::put16(packet, network + 2, remote.port());
        let len = header + payload;
        packet::put_ip(
            packet,
            &local.ip(),
            &remote.ip(),
            packet::TCP,
            hop_limit,
            len,
        );
        if class != 0 {
            packet::mark(packet, class, 0);
        }
        let cut = (payload as u64 > mss).then_some(mss as u16);
        Some((network + len, cut))
    }

    fn write_segment(&mut self, index: u32, mac: Mac, buffer: &mut [u8]) -> Option<TxFrame> {
        let offloads = self.link.offloads;
        let is_v4 = self.tcp.flow(index)?.remote.is_ipv4();
        let has_gso = if is_v4 {
            offloads.gso_v4
        } else {
            offloads.gso_v6
        };
        // Where nobody cuts, one segment at a time.
        let bytes_max = if has_gso {
            gso_bytes_max(&offloads).max(self.link.mtu_bytes)
        } else {
            0
        };
        let (len, cut) = self.write(index, &mut buffer[ETHERNET..], bytes_max)?;
        packet::put_ethernet(buffer, &mac, &self.link.mac, !is_v4);
        self.may_leave(index, &mut buffer[ETHERNET..ETHERNET + len], false)
            .then(|| self.seal_segment(buffer, ETHERNET + len, cut))
    }

    fn loop_segment(&mut self, index: u32) {
        let mut scratch = core::mem::take(&mut self.tcp.scratch);
        scratch.resize(IP_BYTES_MAX, 0);
        if let Some((len, _)) = self.write(index, &mut scratch, IP_BYTES_MAX)
            && self.may_leave(index, &mut scratch[..len], true)
        {
            let mut frame = self.outbox.buffer();
            frame.resize(ETHERNET, 0);
            frame.extend_from_slice(&scratch[..len]);
            self.loopback.push_back(frame);
        }
        self.tcp.scratch = scratch;
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
            && flow.tcp.state == TcpState::SynSent
        {
            flow.tcp.fail(Error::Refused);
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
