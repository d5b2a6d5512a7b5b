//! A resolver's questions to name servers (RFC 1035, RFC 3596): addresses of a name.
//!
//! Each question goes out from a port of its own with an identifier of its own, both random; an
//! answer counts only from the server asked, to that port, with that identifier and that
//! question (RFC 5452). It is asked again after 1, 2 and 4 seconds, each time of the next server.
//! Names that are aliases are followed within the answer; a truncated answer gives what is in it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::config::UdpOptions;
use crate::packet::{self, Ip};
use crate::stack::{Error, Event, Source, Stack};
use crate::udp::EPHEMERAL;
use crate::{Micros, SECOND_US};

const PORT: u16 = 53;
const TRIES_MAX: u8 = 3;
const ANSWERS_MAX: usize = 16;
const HEADER: usize = 12;
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
/// Answers that wait for their reader.
const DONE_MAX: usize = 64;

/// A question that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DnsId(u64);

/// Why there is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsError {
    /// The name does not exist, or has no address of the kind asked for.
    NoName,
    /// The server said that it cannot answer.
    Failed,
    /// No server answered.
    TimedOut,
}

#[derive(Debug)]
struct Query {
    id: DnsId,
    /// Name and type as in the message.
    question: Vec<u8>,
    identifier: u16,
    port: u16,
    server: IpAddr,
    tries: u8,
    next_at: Micros,
}

#[derive(Debug, Default)]
pub(crate) struct Dns {
    servers: Vec<IpAddr>,
    queries: Vec<Query>,
    done: VecDeque<(DnsId, Result<Vec<IpAddr>, DnsError>)>,
    is_queued: bool,
    count: u64,
}

impl Dns {
    #[inline]
    pub(crate) fn is_asking(&self) -> bool {
        !self.queries.is_empty()
    }

    pub(crate) fn next_at(&self) -> Option<Micros> {
        self.queries.iter().map(|query| query.next_at).min()
    }

    pub(crate) fn event(&mut self) -> Option<Event> {
        self.is_queued = false;
        (!self.done.is_empty()).then_some(Event::Dns)
    }
}

/// A name as labels with their lengths; `None` if it is no name.
fn question(name: &str, kind: u16) -> Option<Vec<u8>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut bytes = Vec::with_capacity(name.len() + 6);
    for label in name.split('.') {
        if label.is_empty() || label.len() > 63 || !label.is_ascii() {
            return None;
        }
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes().map(|b| b.to_ascii_lowercase()));
    }
    bytes.push(0);
    if bytes.len() > 255 {
        return None;
    }
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&1u16.to_be_bytes());
    Some(bytes)
}

/// Where a name in a message ends; names may end in a pointer (RFC 1035 section 4.1.4).
fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let len = *message.get(at)?;
        match len {
            0 => return Some(at + 1),
            1..=63 => at += 1 + usize::from(len),
            192.. => return Some(at + 2),
            _ => return None,
        }
    }
}

/// Addresses of the kind that was asked for in an answer to our question.
fn answers(message: &[u8], question: &[u8]) -> Option<Result<Vec<IpAddr>, DnsError>> {
    let header = message.get(..HEADER)?;
    let flags = packet::be16(header, 2)?;
    let (is_response, is_query_kind) = (flags & 0x8000 != 0, flags & 0x7800 == 0);
    let asked = message.get(HEADER..HEADER + question.len())?;
    let is_ours = is_response
        && is_query_kind
        && packet::be16(header, 4)? == 1
        && asked.eq_ignore_ascii_case(question);
    if !is_ours {
        return None;
    }
    match flags & 15 {
        0 => {}
        3 => return Some(Err(DnsError::NoName)),
        _ => return Some(Err(DnsError::Failed)),
    }
    let wanted = packet::be16(question, question.len() - 4)?;
    let mut found = Vec::new();
    let mut at = HEADER + question.len();
    for _ in 0..packet::be16(header, 6)? {
        // What is cut off is missing; what is there counts.
        let Some(fixed) = skip_name(message, at) else {
            break;
        };
        let Some(len) = packet::be16(message, fixed + 8).map(usize::from) else {
            break;
        };
        let Some(data) = message.get(fixed + 10..fixed + 10 + len) else {
            break;
        };
        let (kind, class) = (
            packet::be16(message, fixed)?,
            packet::be16(message, fixed + 2)?,
        );
        if kind == wanted && class == 1 && found.len() < ANSWERS_MAX {
            found.extend(address(kind, data));
        }
        at = fixed + 10 + len;
    }
    Some(if found.is_empty() {
        Err(DnsError::NoName)
    } else {
        Ok(found)
    })
}

/// The address in a record's data; `None` if its length is not that of the kind.
fn address(kind: u16, data: &[u8]) -> Option<IpAddr> {
    match kind {
        TYPE_A => Some(<[u8; 4]>::try_from(data).ok()?.into()),
        TYPE_AAAA => Some(<[u8; 16]>::try_from(data).ok()?.into()),
        _ => None,
    }
}

impl Stack {
    /// Whom to ask. Without any, those that DHCP has named are asked.
    pub fn dns_set_servers(&mut self, servers: &[IpAddr]) {
        self.dns.servers = servers.to_vec();
    }

    fn dns_servers(&self) -> Vec<IpAddr> {
        #[cfg(feature = "dhcp")]
        if self.dns.servers.is_empty()
            && let Some(lease) = self.dhcp_lease()
        {
            return lease
                .name_servers
                .iter()
                .map(|server| IpAddr::V4(*server))
                .collect();
        }
        self.dns.servers.clone()
    }

    /// Asks for the IPv4 (or IPv6) addresses of a name.
    pub fn dns_query(&mut self, now: Micros, name: &str, is_ipv6: bool) -> Result<DnsId, Error> {
        self.advance(now);
        let kind = if is_ipv6 { TYPE_AAAA } else { TYPE_A };
        let question = question(name, kind).ok_or(Error::TooLong)?;
        let server = *self.dns_servers().first().ok_or(Error::Unreachable)?;
        if self.dns.queries.len() >= self.limits.dns_queries_max {
            return Err(Error::Full);
        }
        self.dns.count += 1;
        let id = DnsId(self.dns.count);
        self.dns.queries.push(Query {
            id,
            question,
            identifier: 0,
            port: 0,
            server,
            tries: 0,
            next_at: self.now,
        });
        self.dns_advance();
        Ok(id)
    }

    /// The next answer.
    pub fn dns_answer(&mut self) -> Option<(DnsId, Result<Vec<IpAddr>, DnsError>)> {
        self.dns.done.pop_front()
    }

    pub(crate) fn dns_advance(&mut self) {
        let now = self.now;
        if self.dns.next_at().is_none_or(|at| now < at) {
            return;
        }
        let servers = self.dns_servers();
        for index in (0..self.dns.queries.len()).rev() {
            let random = self.random.next();
            let query = &mut self.dns.queries[index];
            if now < query.next_at {
                continue;
            }
            if query.tries >= TRIES_MAX || servers.is_empty() {
                self.dns_finish(index, Err(DnsError::TimedOut));
                continue;
            }
            query.server = servers[usize::from(query.tries) % servers.len()];
            query.identifier = random as u16;
            let span = EPHEMERAL.end - EPHEMERAL.start;
            query.port = EPHEMERAL.start + (random >> 16) as u16 % span;
            query.next_at = now + (SECOND_US << query.tries);
            query.tries += 1;
            let mut message = alloc::vec![0; HEADER];
            packet::put16(&mut message, 0, query.identifier);
            // Recursion desired; one question.
            packet::put16(&mut message, 2, 0x0100);
            packet::put16(&mut message, 4, 1);
            message.extend_from_slice(&query.question);
            let (port, server) = (query.port, query.server);
            if let Some(src) = self.routing.source_for(&server) {
                let (from, to) = (SocketAddr::new(src, port), SocketAddr::new(server, PORT));
                let _ = self.udp_output(from, to, &message, &UdpOptions::default());
            }
        }
    }

    fn dns_finish(&mut self, index: usize, result: Result<Vec<IpAddr>, DnsError>) {
        let query = self.dns.queries.remove(index);
        if self.dns.done.len() >= DONE_MAX {
            self.dns.done.pop_front();
        }
        self.dns.done.push_back((query.id, result));
        if !self.dns.is_queued {
            self.dns.is_queued = true;
            self.sources.push_back(Source::Dns);
        }
    }

    /// True if the datagram came to a question's port.
    pub(crate) fn dns_input(&mut self, bytes: &[u8], ip: &Ip) -> bool {
        let datagram = &bytes[ip.payload..ip.end];
        if self.dns.queries.is_empty() || packet::be16(datagram, 0) != Some(PORT) {
            return false;
        }
        let port = packet::be16(datagram, 2);
        let mut queries = self.dns.queries.iter();
        let Some(index) = queries.position(|q| Some(q.port) == port && q.server == ip.src) else {
            return false;
        };
        let query = &self.dns.queries[index];
        let message = datagram.get(8..).unwrap_or_default();
        if packet::be16(message, 0) == Some(query.identifier)
            && let Some(result) = answers(message, &query.question)
        {
            self.dns_finish(index, result);
        }
        true
    }
}
