//! An arriving segment: whose it is, and what it gets when it is nobody's.

use core::net::SocketAddr;

use smoltcp::socket::tcp::State;
use smoltcp::time::Duration;

use super::device::OneShot;
use super::{Key, Slot, instant};
use crate::counters::Drop;
use crate::ip::Origin;
use crate::packet::{self, Ip, SynOptions, Tcp, flag};
use crate::route::Hop;
use crate::stack::{Error, Stack};
use crate::{Micros, SECOND_US};

/// How often what a connection hears counts as proof that its neighbor is there.
const CONFIRM_US: Micros = 5 * SECOND_US;
/// Headers with all options: what smoltcp answers at once is never longer.
const REPLY_BYTES_MAX: usize = 128;
/// Smaller packets than this every IPv4 link takes (RFC 791, with RFC 1191 section 3's floor).
const PATH_MTU_MIN: usize = 576;

impl Stack {
    pub(crate) fn tcp_input(
        &mut self,
        bytes: &mut [u8],
        ip: &Ip,
        _origin: Origin,
    ) -> Result<(), Drop> {
        let segment = &bytes[ip.payload..];
        let tcp = Tcp::parse(segment).ok_or(Drop::Malformed)?;
        if tcp.src_port == 0 || tcp.dst_port == 0 {
            return Err(Drop::Malformed);
        }
        let local = SocketAddr::new(ip.dst, tcp.dst_port);
        let remote = SocketAddr::new(ip.src, tcp.src_port);
        let key = Key::new(&local, &remote);
        match self.tcp.table.get(&key).copied() {
            Some(Slot::Flow(index)) => self.flow_input(index, bytes, ip, &tcp),
            Some(Slot::HalfOpen(index)) => self.half_open_input(index, bytes, ip, &tcp),
            Some(Slot::TimeWait(number)) => {
                self.time_wait_input(number, local, remote, bytes, ip, &tcp)
            }
            None => self.unknown_input(local, remote, bytes, ip, &tcp),
        }
    }

    fn unknown_input(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        bytes: &mut [u8],
        ip: &Ip,
        tcp: &Tcp,
    ) -> Result<(), Drop> {
        if tcp.has(flag::RST) {
            return Err(Drop::Protocol);
        }
        if let Some(listener) = self.find_listener(&local) {
            let kind = tcp.flags & (flag::SYN | flag::ACK | flag::FIN);
            if kind == flag::SYN {
                let options = SynOptions::parse(&bytes[ip.payload + 20..ip.payload + tcp.header]);
                return self.syn(listener, local, remote, tcp, options);
            }
            if !tcp.has(flag::SYN)
                && tcp.has(flag::ACK)
                && self.cookie_input(listener, local, remote, bytes, ip, tcp)?
            {
                return Ok(());
            }
        }
        self.send_reset(local, remote, tcp, ip);
        Ok(())
    }

    /// RFC 9293 section 3.10.7.1.
    pub(super) fn send_reset(&mut self, local: SocketAddr, remote: SocketAddr, tcp: &Tcp, ip: &Ip) {
        let payload = ip.len().saturating_sub(tcp.header) as u32;
        let controls = u32::from(tcp.has(flag::SYN)) + u32::from(tcp.has(flag::FIN));
        let (seq, ack, flags) = if tcp.has(flag::ACK) {
            (tcp.ack, 0, flag::RST)
        } else {
            let after = tcp.seq.wrapping_add(payload + controls);
            (0, after, flag::RST | flag::ACK)
        };
        let header = Tcp {
            src_port: local.port(),
            dst_port: remote.port(),
            seq,
            ack,
            flags,
            window: 0,
            header: 20,
        };
        self.counters.resets_sent += 1;
        self.send_header(local, remote, header, &SynOptions::default(), 64);
    }

    /// The filter has refused a segment and wants its sender to know.
    #[cfg(feature = "filter")]
    pub(crate) fn reset_for(&mut self, bytes: &[u8], ip: &Ip) {
        let Some(tcp) = Tcp::parse(&bytes[ip.payload..]) else {
            return;
        };
        if ip.protocol == packet::TCP && !tcp.has(flag::RST) {
            let local = SocketAddr::new(ip.dst, tcp.dst_port);
            self.send_reset(local, SocketAddr::new(ip.src, tcp.src_port), &tcp, ip);
        }
    }

    fn time_wait_input(
        &mut self,
        number: u32,
        local: SocketAddr,
        remote: SocketAddr,
        bytes: &mut [u8],
        ip: &Ip,
        tcp: &Tcp,
    ) -> Result<(), Drop> {
        let wait = self.tcp.time_waits.get(number).ok_or(Drop::Protocol)?;
        // A RST would end the wait too early (RFC 1337).
        if tcp.has(flag::RST) {
            return Err(Drop::Protocol);
        }
        let is_later = tcp.seq.wrapping_sub(wait.ack).cast_signed() > 0;
        if tcp.has(flag::SYN) && !tcp.has(flag::ACK) && is_later {
            // RFC 9293 section 3.6.1: a new connection between the same names.
            self.tcp.time_waits.end(number);
            self.tcp.table.remove(&wait.key);
            return self.unknown_input(local, remote, bytes, ip, tcp);
        }
        let is_empty = ip.len() == tcp.header && tcp.flags & (flag::SYN | flag::FIN) == 0;
        if is_empty && tcp.seq == wait.ack {
            return Ok(());
        }
        let header = Tcp {
            src_port: local.port(),
            dst_port: remote.port(),
            seq: wait.seq,
            ack: wait.ack,
            flags: flag::ACK,
            window: 0,
            header: 20,
        };
        self.send_header(local, remote, header, &SynOptions::default(), 64);
        Ok(())
    }

    /// Gives a segment to the one flow that it is for.
    pub(super) fn flow_input(
        &mut self,
        index: u32,
        bytes: &mut [u8],
        ip: &Ip,
        tcp: &Tcp,
    ) -> Result<(), Drop> {
        let now = self.now;
        self.counters.flow_visits += 1;
        let own_mss = self.own_mss(&SocketAddr::new(ip.src, 0));
        // smoltcp looks behind IPv6's extension headers with rules of its own: it gets none.
        if ip.payload != packet::header_len(&ip.dst) && ip.dst.is_ipv6() {
            return Err(Drop::Protocol);
        }
        let Some(flow) = self.tcp.flows[index as usize].flow.as_deref_mut() else {
            return Err(Drop::Protocol);
        };
        flow.heard_at = now;
        if flow.delta != 0 && tcp.has(flag::ACK) {
            packet::put32(bytes, ip.payload + 8, tcp.ack.wrapping_sub(flow.delta));
        }
        if tcp.has(flag::SYN) && flow.socket_ref().state() == State::SynSent {
            let at = ip.payload + 20;
            let options = SynOptions::parse(&bytes[at..ip.payload + tcp.header]);
            flow.mss = options.mss.unwrap_or(flow.mss).max(88).min(own_mss);
            if let Some(mss_at) = options.mss_at {
                packet::put16(bytes, at + mss_at, flow.mss);
            }
        }
        let payload_len = ip.len() - tcp.header;
        let is_empty = payload_len == 0 && tcp.flags & (flag::SYN | flag::FIN | flag::RST) == 0;
        let has_hole = flow.recovery.heard(tcp, is_empty, flow.seq_next, now);
        // Several segments at once (GRO) are acknowledged as several: at once.
        let is_train = payload_len > usize::from(flow.mss);
        if is_train {
            flow.socket().set_ack_delay(None);
        }
        let mut reply = [0; REPLY_BYTES_MAX];
        let mut device = OneShot::new(Some(bytes), &mut reply, super::device::MTU);
        self.tcp
            .interface
            .poll_ingress_single(instant(now), &mut device, &mut flow.set);
        let reply_len = device.len_bytes;
        if is_train {
            let delay = flow.options.ack_delay_us.map(Duration::from_micros);
            flow.socket().set_ack_delay(delay);
        }
        if now.saturating_sub(flow.confirmed_at) >= CONFIRM_US && tcp.has(flag::ACK) {
            flow.confirmed_at = now;
            let remote = flow.remote.ip();
            if let Some(Hop::Neighbor(neighbor)) = self.routing.hop(&remote) {
                self.neighbors.confirm(&neighbor, now);
            }
        }
        if reply_len > 0 {
            self.send_reply(index, &mut reply[..reply_len]);
        }
        if has_hole {
            let seq = tcp.seq.wrapping_add(payload_len as u32);
            self.feign_duplicates(index, seq, tcp.ack, tcp.window);
        }
        self.settle_heard(index);
        Ok(())
    }

    /// Gives smoltcp the three acknowledgements of the same that make it retransmit.
    pub(super) fn feign_duplicates(&mut self, index: u32, seq: u32, ack: u32, window: u16) {
        let now = instant(self.now);
        let Some(flow) = self.tcp.flows[index as usize].flow.as_deref_mut() else {
            return;
        };
        let (src, dst) = (flow.remote.ip(), flow.local.ip());
        let network = packet::header_len(&dst);
        let mut bytes = [0; packet::IPV6 + 20];
        packet::put_ip(&mut bytes, &src, &dst, packet::TCP, 64, 20);
        let header = Tcp {
            src_port: flow.remote.port(),
            dst_port: flow.local.port(),
            seq,
            ack: ack.wrapping_sub(flow.delta),
            flags: flag::ACK,
            window,
            header: 20,
        };
        packet::put_tcp(&mut bytes[network..], &header);
        for _ in 0..3 {
            let mut nowhere = [0; REPLY_BYTES_MAX];
            let arriving = &bytes[..network + 20];
            let mut device = OneShot::new(Some(arriving), &mut nowhere, super::device::MTU);
            self.tcp
                .interface
                .poll_ingress_single(now, &mut device, &mut flow.set);
        }
    }

    /// Sends what smoltcp answered at once: an ACK out of turn, a RST.
    fn send_reply(&mut self, index: u32, reply: &mut [u8]) {
        let now = self.now;
        let Some(flow) = self.tcp.flow(index) else {
            return;
        };
        let (local, remote) = (flow.local.ip(), flow.remote.ip());
        let network = packet::header_len(&remote);
        flow.note_sent(&mut reply[network..], now);
        let mut frame = self.outbox.buffer();
        frame.resize(packet::ETHERNET, 0);
        frame.extend_from_slice(reply);
        if remote.is_ipv4() {
            packet::fill_ipv4_checksum(&mut frame[packet::ETHERNET..]);
        }
        self.send(frame, local, remote, 16);
    }

    /// An ICMP error quotes a packet of ours.
    #[cfg(feature = "icmp")]
    pub(crate) fn tcp_icmp_error(&mut self, quote: &[u8], mtu: Option<usize>, is_hard: bool) {
        let Some((local, remote, seq)) = quoted_tcp(quote) else {
            return;
        };
        let key = Key::new(&local, &remote);
        let Some(Slot::Flow(index)) = self.tcp.table.get(&key).copied() else {
            return;
        };
        let headers = packet::header_len(&remote.ip()) + 20;
        let Some(flow) = self.tcp.flow(index) else {
            return;
        };
        // Only who sees our packets knows what is in flight (RFC 5927 section 4).
        let in_flight = flow.seq_next.wrapping_sub(seq);
        if in_flight as usize > flow.options.send_bytes + 1 {
            return;
        }
        if let Some(mtu) = mtu {
            let mss = mtu.max(PATH_MTU_MIN) - headers;
            flow.mss = flow.mss.min(mss as u16);
        } else if is_hard && flow.socket_ref().state() == State::SynSent {
            flow.error = Some(Error::Refused);
            flow.socket().close();
            self.settle(index);
        }
    }
}

/// Names and sequence number of a TCP packet of which at least eight bytes are quoted.
#[cfg(feature = "icmp")]
fn quoted_tcp(quote: &[u8]) -> Option<(SocketAddr, SocketAddr, u32)> {
    // The quote is cut short, so its lengths are not checked against it.
    let (src, dst, protocol, at) = match quote.first()? >> 4 {
        4 => {
            let address =
                |at: usize| Some(core::net::Ipv4Addr::from_bits(packet::be32(quote, at)?));
            let header = usize::from(quote[0] & 15) * 4;
            (
                address(12)?.into(),
                address(16)?.into(),
                *quote.get(9)?,
                header,
            )
        }
        #[cfg(feature = "ipv6")]
        6 => {
            let address = |at: usize| -> Option<core::net::IpAddr> {
                let octets: [u8; 16] = quote.get(at..at + 16)?.try_into().ok()?;
                Some(core::net::Ipv6Addr::from(octets).into())
            };
            (address(8)?, address(24)?, *quote.get(6)?, packet::IPV6)
        }
        _ => return None,
    };
    let local = SocketAddr::new(src, packet::be16(quote, at)?);
    let remote = SocketAddr::new(dst, packet::be16(quote, at + 2)?);
    (protocol == packet::TCP).then_some((local, remote, packet::be32(quote, at + 4)?))
}
