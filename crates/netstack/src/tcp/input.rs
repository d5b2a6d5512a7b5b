//! An arriving segment: whose it is, and what it gets when it is nobody's.

use core::net::SocketAddr;

use super::connection::Clock;
use super::flow::TcpState;
use super::payload::Payload;
use super::{Key, Slot, Tcp as Table};
use crate::counters::Drop;
use crate::frame::Rest;
use crate::packet::{self, Ip, SegmentOptions, SynOptions, Tcp, flag};
use crate::route::Hop;
use crate::stack::Stack;
use crate::{Micros, SECOND_US};

/// How often what a connection hears counts as proof that its neighbor is there.
const CONFIRM_US: Micros = 5 * SECOND_US;

impl Stack {
    pub(crate) fn tcp_input(
        &mut self,
        bytes: &mut [u8],
        ip: &Ip,
        rest: Option<Rest<'_>>,
    ) -> Result<(), Drop> {
        let segment = &bytes[ip.payload..];
        let tcp = Tcp::parse(segment).ok_or(Drop::Malformed)?;
        if tcp.src_port == 0 || tcp.dst_port == 0 {
            return Err(Drop::Malformed);
        }
        let local = SocketAddr::new(ip.dst, tcp.dst_port);
        let remote = SocketAddr::new(ip.src, tcp.src_port);
        let key = Key::new(&local, &remote);
        let slot = self.tcp.table.get(&key).copied();
        if let Some(rest) = rest
            && !matches!(slot, Some(Slot::Flow(_)))
        {
            rest.fill(bytes);
        }
        match slot {
            Some(Slot::Flow(index)) => self.flow_input(index, bytes, ip, &tcp, rest),
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
            urgent: 0,
            header: 20,
        };
        self.counters.resets_sent += 1;
        self.send_header(local, remote, header, &[], 64, 0);
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
        let options = &bytes[ip.payload + 20..ip.payload + tcp.header];
        let said = SegmentOptions::parse(options);
        let newer = |(clock, times): (Clock, packet::Times)| {
            times.0.wrapping_sub(clock.recent).cast_signed() > 0
        };
        let is_later = tcp.seq.wrapping_sub(wait.ack).cast_signed() > 0
            || wait.clock.zip(said.times).is_some_and(newer);
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
            urgent: 0,
            header: 20,
        };
        let mut times = [0; packet::TIMES];
        let mut options = &times[..0];
        if let Some(clock) = wait.clock {
            packet::put_times(&mut times, (clock.stamp(self.now), clock.recent));
            options = &times;
        }
        self.send_header(local, remote, header, options, 64, 0);
        Ok(())
    }

    /// Gives a segment to the one flow that it is for.
    pub(super) fn flow_input(
        &mut self,
        index: u32,
        bytes: &[u8],
        ip: &Ip,
        tcp: &Tcp,
        rest: Option<Rest<'_>>,
    ) -> Result<(), Drop> {
        let now = self.now;
        self.counters.flow_visits += 1;
        let Table { flows, pool, .. } = &mut self.tcp;
        let Some(flow) = flows[index as usize].flow.as_deref_mut() else {
            return Err(Drop::Protocol);
        };
        let text_at = ip.payload + tcp.header;
        let options = &bytes[ip.payload + 20..text_at];
        let payload = Payload::of(&bytes[..ip.end], text_at, rest);
        let wants_reset = flow.tcp.input(tcp, options, payload, pool, now);
        let (local, remote) = (flow.local, flow.remote);
        let is_proof = tcp.has(flag::ACK) && !wants_reset;
        if is_proof && now.saturating_sub(flow.tcp.confirmed_at) >= CONFIRM_US {
            flow.tcp.confirmed_at = now;
            if let Some(Hop::Neighbor(neighbor)) = self.routing.hop(&remote.ip()) {
                self.neighbors.confirm(&neighbor, now);
            }
        }
        if wants_reset {
            self.send_reset(local, remote, tcp, ip);
        }
        self.settle(index);
        Ok(())
    }

    /// An ICMP error quotes a packet of ours.
    #[cfg(feature = "icmp")]
    pub(crate) fn tcp_icmp_error(&mut self, quote: &[u8], said: &crate::errors::Said) {
        let Some((local, remote, seq)) = quoted_tcp(quote) else {
            return;
        };
        let key = Key::new(&local, &remote);
        let Some(Slot::Flow(index)) = self.tcp.table.get(&key).copied() else {
            return;
        };
        let now = self.now;
        let Some(flow) = self.tcp.flow(index) else {
            return;
        };
        // Only who sees our packets knows what is in flight (RFC 5927 section 4).
        let at = super::position(flow.tcp.send.una, seq);
        if at < flow.tcp.send.una || at >= flow.tcp.send.nxt {
            return;
        }
        if let Some(mtu) = said.mtu_bytes {
            self.learn_path_mtu(remote.ip(), mtu);
            let mss = self.own_mss(&remote);
            if let Some(flow) = self.tcp.flow(index) {
                flow.tcp.lower_mss(mss, now);
            }
        } else if flow.tcp.state == TcpState::SynSent {
            // Whatever it is, an attempt ends by it (linux: tcp_v4_err).
            flow.tcp.fail(said.error);
        }
        self.settle(index);
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
