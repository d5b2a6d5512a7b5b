//! Listeners: from a SYN to a connection that can be accepted.
//!
//! ```text
//!   SYN ──► HalfOpen (120 bytes; SYN-ACK sent, again after 1, 2, 4, 8 s, then gone)
//!    │          └── ACK ──► Flow ──► accept queue
//!    └─ too many of them ──► SYN cookie, nothing kept ── ACK with it ──► Flow
//! ```
//! No buffer exists before the peer has shown that it is where it says. A full accept queue
//! takes no SYN and no ACK: the peer tries again, as with Linux.

use alloc::collections::VecDeque;
use core::net::{IpAddr, SocketAddr};

use super::connection::{Connection, Shaken, window_shift};
use super::flow::Flow;
use super::{Key, ListenerId, Slot};
use crate::config::TcpOptions;
use crate::counters::Drop;
use crate::hash::mix;
use crate::packet::{self, Ip, SynOptions, Tcp, flag};
use crate::stack::{Source, Stack};
use crate::{Micros, SECOND_US};

const TRIES_MAX: u8 = 4;
/// Smaller segments than this are not believed (Linux's TCP_MIN_MSS).
pub(super) const MSS_MIN: u16 = 88;

#[derive(Debug)]
pub(super) struct Listener {
    pub generation: u32,
    pub address: Option<IpAddr>,
    pub port: u16,
    /// Half-open connections, beyond which SYN cookies answer.
    pub half_open_max: usize,
    /// Connections that wait for accept.
    pub queue_max: usize,
    pub options: TcpOptions,
    pub is_open: bool,
    pub is_queued: bool,
    pub half_open: usize,
    /// Flows that wait for accept.
    pub accepted: VecDeque<u32>,
}

impl Listener {
    fn is_full(&self) -> bool {
        self.accepted.len() >= self.queue_max
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HalfOpen {
    local: SocketAddr,
    remote: SocketAddr,
    listener: ListenerId,
    our_seq: u32,
    their_seq: u32,
    window: u16,
    /// What the peer's SYN said, its MSS cut to what we can send.
    options: SynOptions,
    clock_offset: u32,
    tries: u8,
    sent_at: Micros,
}

impl HalfOpen {
    fn key(&self) -> Key {
        Key::new(&self.local, &self.remote)
    }
}

impl Stack {
    /// Payload of one segment that we can send and take.
    pub(super) fn own_mss(&self, remote: &SocketAddr) -> u16 {
        let headers = packet::header_len(&remote.ip()) + 20;
        self.path_mtu(&remote.ip())
            .saturating_sub(headers)
            .min(65_495) as u16
    }

    pub(super) fn find_listener(&self, local: &SocketAddr) -> Option<ListenerId> {
        let bound = self.tcp.ports.get(&local.port())?;
        let address_of = |index: u32| self.tcp.listeners[index as usize].address;
        let found = crate::route::best_bound(bound, &local.ip(), address_of);
        found.map(|index| ListenerId {
            index,
            generation: self.tcp.listeners[index as usize].generation,
        })
    }

    pub(super) fn listener(&mut self, id: ListenerId) -> Option<&mut Listener> {
        let found = self.tcp.listeners.get_mut(id.index as usize)?;
        (found.is_open && found.generation == id.generation).then_some(found)
    }

    /// A number that grows by one each 4 us for the same names and that others cannot guess
    /// (RFC 6528).
    pub(super) fn initial_seq(&self, key: &Key) -> u32 {
        let hash = mix(
            (key.remote ^ u128::from(key.ports)) as u64 ^ self.tcp.secret,
            (key.local >> 3) as u64 ^ (key.remote >> 64) as u64 ^ self.tcp.secret.rotate_left(29),
        );
        (hash as u32).wrapping_add((self.now / 4) as u32)
    }

    /// Where our timestamps begin for these names: nobody learns from them how long we run.
    pub(super) fn clock_offset(&self, key: &Key) -> u32 {
        let hash = mix(
            (key.remote >> 64) as u64 ^ key.remote as u64 ^ self.tcp.secret.rotate_left(11),
            u64::from(key.ports) ^ key.local as u64 ^ self.tcp.secret.rotate_left(43),
        );
        (hash >> 32) as u32
    }

    /// A SYN for a listener.
    pub(super) fn syn(
        &mut self,
        id: ListenerId,
        local: SocketAddr,
        remote: SocketAddr,
        tcp: &Tcp,
        mut options: SynOptions,
    ) -> Result<(), Drop> {
        let (half_open_max, now) = (self.tcp.half_open_max, self.now);
        let all = self.tcp.half_open.len() - self.tcp.free_half_open.len();
        let own_mss = self.own_mss(&remote);
        let listener = self.listener(id).ok_or(Drop::Protocol)?;
        if listener.is_full() {
            return Err(Drop::Backlog);
        }
        let is_full = listener.half_open >= listener.half_open_max || all >= half_open_max;
        let mss = options
            .mss
            .filter(|mss| *mss != 0)
            .unwrap_or(mss_default(&remote));
        options.mss = Some(mss.max(MSS_MIN).min(own_mss));
        let key = Key::new(&local, &remote);
        let mut half_open = HalfOpen {
            local,
            remote,
            listener: id,
            our_seq: 0,
            their_seq: tcp.seq,
            window: tcp.window,
            options,
            clock_offset: 0,
            tries: 1,
            sent_at: now,
        };
        if is_full {
            let mss = options.mss.unwrap_or(MSS_MIN);
            half_open.our_seq = self.tcp.cookies.make(&key, tcp.seq, mss, now);
            half_open.options = SynOptions {
                mss: options.mss,
                ..SynOptions::default()
            };
            self.counters.syn_cookies += 1;
            self.send_syn_ack(&half_open);
            return Ok(());
        }
        listener.half_open += 1;
        half_open.our_seq = self.initial_seq(&key);
        half_open.clock_offset = self.clock_offset(&key);
        let index = match self.tcp.free_half_open.pop() {
            Some(index) => index,
            None => {
                self.tcp.half_open.push(None);
                self.tcp.half_open.len() as u32 - 1
            }
        };
        self.tcp.half_open[index as usize] = Some(half_open);
        self.tcp.table.insert(key, Slot::HalfOpen(index));
        self.tcp.half_open_timers.set(index, Some(now + SECOND_US));
        self.send_syn_ack(&half_open);
        Ok(())
    }

    fn send_syn_ack(&mut self, half_open: &HalfOpen) {
        let Some(listener) = self.listener(half_open.listener) else {
            return;
        };
        let tcp_options = listener.options;
        let hop_limit = match tcp_options.hop_limit {
            Some(hops) => hops.max(1),
            None => self.hop_limit(half_open.remote.is_ipv6()),
        };
        let class = tcp_options.class;
        let options = SynOptions {
            mss: Some(self.own_mss(&half_open.remote)),
            window_scale: half_open
                .options
                .window_scale
                .map(|_| window_shift(&tcp_options)),
            is_sack: half_open.options.is_sack,
            times: half_open.options.times.map(|(stamp, _)| {
                let ours = ((self.now / 1000) as u32).wrapping_add(half_open.clock_offset);
                (ours, stamp)
            }),
        };
        let header = Tcp {
            src_port: half_open.local.port(),
            dst_port: half_open.remote.port(),
            seq: half_open.our_seq,
            ack: half_open.their_seq.wrapping_add(1),
            flags: flag::SYN | flag::ACK,
            window: u16::try_from(tcp_options.receive_bytes()).unwrap_or(u16::MAX),
            urgent: 0,
            header: 20,
        };
        let mut written = [0; 24];
        let len = options.put(&mut written);
        let (local, remote) = (half_open.local, half_open.remote);
        self.send_header(local, remote, header, &written[..len], hop_limit, class);
    }

    /// Sends a segment without payload.
    pub(super) fn send_header(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        mut header: Tcp,
        options: &[u8],
        hop_limit: u8,
        class: u8,
    ) {
        header.header = 20 + options.len();
        let (src, dst) = (local.ip(), remote.ip());
        let buffer = self.outbox.buffer();
        let (mut frame, at) =
            packet::start(buffer, &src, &dst, packet::TCP, hop_limit, header.header);
        packet::put_tcp(&mut frame[at..], &header);
        frame[at + 20..].copy_from_slice(options);
        if class != 0 {
            packet::mark(&mut frame[packet::ETHERNET..], class, 0);
        }
        self.send(frame, src, dst, 16);
    }

    pub(super) fn half_open_timer(&mut self, index: u32) {
        let Some(half_open) = self.tcp.half_open[index as usize].as_mut() else {
            return;
        };
        if half_open.tries > TRIES_MAX {
            self.forget_half_open(index);
            return;
        }
        let wait: Micros = SECOND_US << half_open.tries;
        half_open.tries += 1;
        let again = *half_open;
        self.tcp.half_open_timers.set(index, Some(self.now + wait));
        self.send_syn_ack(&again);
    }

    fn forget_half_open(&mut self, index: u32) -> Option<HalfOpen> {
        let half_open = self.tcp.half_open[index as usize].take()?;
        self.tcp.table.remove(&half_open.key());
        self.tcp.half_open_timers.set(index, None);
        self.tcp.free_half_open.push(index);
        if let Some(listener) = self.listener(half_open.listener) {
            listener.half_open = listener.half_open.saturating_sub(1);
        }
        Some(half_open)
    }

    /// A segment for a half-open connection.
    pub(super) fn half_open_input(
        &mut self,
        index: u32,
        bytes: &mut [u8],
        ip: &Ip,
        tcp: &Tcp,
    ) -> Result<(), Drop> {
        let Some(half_open) = self.tcp.half_open[index as usize] else {
            return Err(Drop::Protocol);
        };
        let is_next = tcp.seq == half_open.their_seq.wrapping_add(1);
        if tcp.has(flag::RST) {
            if is_next {
                self.forget_half_open(index);
            }
            return Ok(());
        }
        if tcp.has(flag::SYN) {
            if tcp.seq == half_open.their_seq && !tcp.has(flag::ACK) {
                self.send_syn_ack(&half_open);
                return Ok(());
            }
            return Err(Drop::Protocol);
        }
        if !tcp.has(flag::ACK) {
            return Err(Drop::Protocol);
        }
        if tcp.ack != half_open.our_seq.wrapping_add(1) {
            self.send_reset(half_open.local, half_open.remote, tcp, ip);
            return Ok(());
        }
        // Data that overtook the ACK: the SYN-ACK's timer brings both again.
        if !is_next {
            return Err(Drop::Protocol);
        }
        self.establish(half_open, Some(index), bytes, ip, tcp)
    }

    /// An ACK to a listener's port that nothing is known of.
    pub(super) fn cookie_input(
        &mut self,
        id: ListenerId,
        local: SocketAddr,
        remote: SocketAddr,
        bytes: &mut [u8],
        ip: &Ip,
        tcp: &Tcp,
    ) -> Result<bool, Drop> {
        let their_seq = tcp.seq.wrapping_sub(1);
        let our_seq = tcp.ack.wrapping_sub(1);
        let key = Key::new(&local, &remote);
        let Some(mss) = self.tcp.cookies.check(&key, their_seq, our_seq, self.now) else {
            return Ok(false);
        };
        let half_open = HalfOpen {
            local,
            remote,
            listener: id,
            our_seq,
            their_seq,
            window: tcp.window,
            options: SynOptions {
                mss: Some(mss.min(self.own_mss(&remote))),
                ..SynOptions::default()
            },
            clock_offset: 0,
            tries: 0,
            sent_at: self.now,
        };
        self.establish(half_open, None, bytes, ip, tcp)?;
        Ok(true)
    }

    /// Makes the flow and hands it the ACK.
    fn establish(
        &mut self,
        half_open: HalfOpen,
        index: Option<u32>,
        bytes: &mut [u8],
        ip: &Ip,
        tcp: &Tcp,
    ) -> Result<(), Drop> {
        let now = self.now;
        let listener = self.listener(half_open.listener).ok_or(Drop::Protocol)?;
        let is_full = listener.is_full();
        let options = listener.options;
        if is_full || !self.tcp.has_room() {
            return Err(Drop::Backlog);
        }
        let shaken = Shaken {
            our_seq: half_open.our_seq,
            their_seq: half_open.their_seq,
            window: half_open.window,
            options: half_open.options,
            clock_offset: half_open.clock_offset,
            sent_at: (half_open.tries == 1).then_some(half_open.sent_at),
        };
        let own_mss = self.own_mss(&half_open.remote);
        let connection = Connection::accept(&shaken, own_mss, &options, now);
        let mut flow = Flow::new(half_open.local, half_open.remote, connection);
        flow.listener = Some(half_open.listener);
        if let Some(index) = index {
            self.forget_half_open(index);
        }
        let index = self.add_flow(flow);
        if let Some(listener) = self.listener(half_open.listener) {
            listener.accepted.push_back(index);
            if !listener.is_queued {
                listener.is_queued = true;
                self.sources
                    .push_back(Source::Listener(half_open.listener.index));
            }
        }
        self.flow_input(index, bytes, ip, tcp, None)
    }
}

/// Of a peer that names none (RFC 9293 section 3.7.1).
fn mss_default(remote: &SocketAddr) -> u16 {
    if remote.is_ipv4() { 536 } else { 1220 }
}
