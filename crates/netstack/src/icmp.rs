//! ICMP for IPv4 (RFC 792, RFC 1122 section 3.2.2): echo in both directions, errors in both
//! directions. Errors of ours are limited per second, never answer an error or a group, and
//! carry as much of the packet as RFC 1812 and RFC 4443 want. Errors from others are for `errors`.
//! Redirects of IPv4 are not believed: anybody on the link can forge one, and without them a
//! packet only takes one hop more.

use alloc::collections::VecDeque;
use core::net::IpAddr;

use crate::config::Limits;
use crate::counters::Drop;
use crate::errors::Said;
use crate::packet::{self, Ip};
use crate::route::Class;
use crate::stack::{Error, Event, Source, Stack};
use crate::{Micros, SECOND_US};

const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
/// A quoted packet's share of an error: the whole stays under 576 bytes (RFC 1812 section 4.3.2.3),
/// or 1,280 (RFC 4443 section 2.4).
const QUOTE_BYTES_MAX: usize = 576 - packet::IPV4 - 8;
const QUOTE_BYTES_MAX_V6: usize = crate::path::FLOOR_V6 - packet::IPV6 - 8;

/// Why a packet could not be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    Protocol,
    #[cfg(feature = "udp")]
    Port,
}

/// An answer to a ping of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingReply {
    pub from: IpAddr,
    pub ident: u16,
    pub sequence: u16,
    pub payload_bytes: usize,
    pub hop_limit: u8,
    pub at: Micros,
}

#[derive(Debug)]
pub(crate) struct Icmp {
    replies: VecDeque<PingReply>,
    replies_max: usize,
    is_queued: bool,
    errors_per_second: u32,
    errors_left: u32,
    refilled_at: Micros,
}

impl Icmp {
    pub(crate) fn new(limits: &Limits) -> Icmp {
        Icmp {
            replies: VecDeque::new(),
            replies_max: limits.ping_replies_max,
            is_queued: false,
            errors_per_second: limits.icmp_errors_per_second,
            errors_left: limits.icmp_errors_per_second,
            refilled_at: 0,
        }
    }

    pub(crate) fn event(&mut self) -> Option<Event> {
        self.is_queued = false;
        (!self.replies.is_empty()).then_some(Event::Ping)
    }

    fn may_send_error(&mut self, now: Micros) -> bool {
        if now.saturating_sub(self.refilled_at) >= SECOND_US {
            self.refilled_at = now;
            self.errors_left = self.errors_per_second;
        }
        let may = self.errors_left > 0;
        self.errors_left = self.errors_left.saturating_sub(1);
        may
    }
}

impl Stack {
    /// Sends an echo request. The reply comes as [`Event::Ping`].
    pub fn ping(
        &mut self,
        to: IpAddr,
        ident: u16,
        sequence: u16,
        payload: &[u8],
    ) -> Result<(), Error> {
        let src = self.routing.source_for(&to).ok_or(Error::Unreachable)?;
        if payload.len() > 65_535 - packet::IPV6 - 8 {
            return Err(Error::TooLong);
        }
        let protocol = if to.is_ipv4() {
            packet::ICMP
        } else {
            packet::ICMPV6
        };
        let kind = if to.is_ipv4() { ECHO_REQUEST } else { 128 };
        let buffer = self.outbox.buffer();
        let hops = self.hop_limit(to.is_ipv6());
        let (mut frame, at) = packet::start(buffer, &src, &to, protocol, hops, 8 + payload.len());
        frame[at] = kind;
        packet::put16(&mut frame, at + 4, ident);
        packet::put16(&mut frame, at + 6, sequence);
        frame[at + 8..].copy_from_slice(payload);
        self.send(frame, src, to, 2);
        Ok(())
    }

    /// The next answer to a ping.
    pub fn ping_reply(&mut self) -> Option<PingReply> {
        self.icmp.replies.pop_front()
    }

    pub(crate) fn icmp_input(&mut self, bytes: &[u8], ip: &Ip, class: Class) -> Result<(), Drop> {
        let message = &bytes[ip.payload..ip.end];
        let [kind, _, _, _, i0, i1, s0, s1, ..] = *message else {
            return Err(Drop::Malformed);
        };
        match kind {
            // Answering a group would let one packet make many (RFC 1122 section 3.2.2.6).
            ECHO_REQUEST if class == Class::Own => {
                self.echo_reply(message, ip, packet::ICMP, ECHO_REPLY);
                Ok(())
            }
            ECHO_REPLY if class == Class::Own => {
                let ident = u16::from_be_bytes([i0, i1]);
                self.note_reply(ip, ident, u16::from_be_bytes([s0, s1]));
                Ok(())
            }
            _ => {
                let said = message.first_chunk().and_then(Said::of_v4);
                let said = said.filter(|_| class == Class::Own).ok_or(Drop::Protocol)?;
                self.icmp_error_input(&message[8..], said)
            }
        }
    }

    pub(crate) fn echo_reply(&mut self, message: &[u8], ip: &Ip, protocol: u8, kind: u8) {
        let (src, dst) = (ip.dst, ip.src);
        let buffer = self.outbox.buffer();
        let hops = self.hop_limit(dst.is_ipv6());
        let (mut frame, at) = packet::start(buffer, &src, &dst, protocol, hops, message.len());
        frame[at..].copy_from_slice(message);
        frame[at] = kind;
        self.send(frame, src, dst, 2);
    }

    pub(crate) fn note_reply(&mut self, ip: &Ip, ident: u16, sequence: u16) {
        if self.icmp.replies.len() >= self.icmp.replies_max {
            return self.counters.drop(Drop::Full);
        }
        self.icmp.replies.push_back(PingReply {
            from: ip.src,
            ident,
            sequence,
            payload_bytes: ip.len() - 8,
            hop_limit: ip.hop_limit,
            at: self.now,
        });
        if !self.icmp.is_queued {
            self.icmp.is_queued = true;
            self.sources.push_back(Source::Ping);
        }
    }

    /// Tells the sender that its packet found nobody.
    pub(crate) fn icmp_unreachable(
        &mut self,
        bytes: &[u8],
        ip: &Ip,
        class: Class,
        why: Unreachable,
    ) {
        let (protocol, kind, code) = match (ip.src, why) {
            (IpAddr::V4(_), Unreachable::Protocol) => (packet::ICMP, UNREACHABLE, 2),
            #[cfg(feature = "udp")]
            (IpAddr::V4(_), Unreachable::Port) => (packet::ICMP, UNREACHABLE, 3),
            // RFC 4443 section 3.4: parameter problem, next header not recognized.
            (IpAddr::V6(_), Unreachable::Protocol) => (packet::ICMPV6, 4, 1),
            #[cfg(feature = "udp")]
            (IpAddr::V6(_), Unreachable::Port) => (packet::ICMPV6, 1, 4),
        };
        // Protocols 1 and 58 carry errors themselves; 59 wants nothing.
        let is_mute = matches!(ip.protocol, packet::ICMP | packet::ICMPV6 | packet::NOTHING);
        if class != Class::Own || is_mute || ip.src.is_unspecified() || ip.src.is_multicast() {
            return;
        }
        self.send_icmp_error(bytes, ip, protocol, kind, code);
    }

    pub(crate) fn send_icmp_error(
        &mut self,
        bytes: &[u8],
        ip: &Ip,
        protocol: u8,
        kind: u8,
        code: u8,
    ) {
        if !self.icmp.may_send_error(self.now) {
            return;
        }
        let quote_max = match ip.src {
            IpAddr::V4(_) => QUOTE_BYTES_MAX,
            IpAddr::V6(_) => QUOTE_BYTES_MAX_V6,
        };
        let quote = &bytes[..bytes.len().min(quote_max)];
        let buffer = self.outbox.buffer();
        let (src, dst) = (ip.dst, ip.src);
        let hops = self.hop_limit(dst.is_ipv6());
        let (mut frame, at) = packet::start(buffer, &src, &dst, protocol, hops, 8 + quote.len());
        frame[at] = kind;
        frame[at + 1] = code;
        if kind == 4 {
            // Where the field stands that was not understood: the next header's number.
            packet::put32(&mut frame, at + 4, 6);
        }
        frame[at + 8..].copy_from_slice(quote);
        self.send(frame, src, dst, 2);
    }
}
