//! One connection's TCP (RFC 9293), without I/O: segments, time and what the owner does go in;
//! `write` gives the next segment, `deadline` says when it wants to be called.
//!
//! ```text
//!   input ──► acceptable? ──► ACK ──► Sender: what has arrived, what is lost, what may go
//!                 │           text ─► Receiver: in order, beyond holes, window
//!                 └─ no: an acknowledgement says where we stand (RFC 5961), not too often
//!   write ◄── RST, SYN ◄── Sender's plan ◄── an acknowledgement that is due ◄── a question
//! ```
//! Positions are 64 bits wide; only the header has 32 ([`position`]). A passive connection begins
//! here when its handshake is over (`handshake` does that), an active one with its SYN.

use super::flow::{Ready, TcpCounts, TcpInfo, TcpState};
use super::payload::Payload;
use super::position;
use super::receiver::{BLOCKS_MAX, Receiver, Taken};
use super::ring::Pool;
use super::sender::{Heard, Sender};
use crate::config::TcpOptions;
use crate::packet::{self, SegmentOptions, SynOptions, TIMES, Tcp, flag};
use crate::stack::Error;
use crate::{Micros, SECOND_US};

/// A connection that its owner has closed waits so long for the peer's FIN (Linux's
/// tcp_fin_timeout).
const ORPHAN_US: Micros = 60 * SECOND_US;
/// Without its program a connection waits no longer for a peer that takes nothing, whatever the program was willing to
/// (Linux's tcp_orphan_retries: some 100 s).
const LEFT_US: Micros = 120 * SECOND_US;
/// A connection that is being made: as long as six SYNs take.
const CONNECT_US: Micros = 64 * SECOND_US;
/// Acknowledgements that go at once while the peer's window is small, if we have nothing to say.
const QUICK_ACKS: u8 = 16;
/// What is out of the window is answered once in so long (Linux's tcp_invalid_ratelimit).
const CHALLENGE_US: Micros = 500_000;
/// A peer's clock may have gone round since (RFC 7323 section 5.5).
const TIMES_VALID_US: Micros = 24 * 86_400 * SECOND_US;

/// Both sides send timestamps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Our clock is in milliseconds from here.
    pub offset: u32,
    /// The peer's, to be answered; since when.
    pub recent: u32,
    pub recent_at: Micros,
}

impl Clock {
    pub(super) fn stamp(&self, now: Micros) -> u32 {
        ((now / 1000) as u32).wrapping_add(self.offset)
    }
}

/// What both SYNs have settled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shaken {
    pub our_seq: u32,
    pub their_seq: u32,
    /// The peer's window, not scaled.
    pub window: u16,
    /// The peer's options, its MSS cut to what we can send.
    pub options: SynOptions,
    /// Where our timestamps begin.
    pub clock_offset: u32,
    /// When our SYN left, if once.
    pub sent_at: Option<Micros>,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub state: TcpState,
    pub error: Option<Error>,
    pub ready: Ready,
    pub options: TcpOptions,
    pub send: Sender,
    pub receive: Receiver,
    pub clock: Option<Clock>,
    /// Its owner is gone.
    pub is_orphan: bool,
    /// Its program is gone: nobody reads, though its owner may still bring what was sent.
    is_left: bool,
    /// A RST follows what may go now.
    pub breaks_off: bool,
    /// Bytes that nobody will read any more, and that are no reason to break off.
    pub abandoned: usize,
    /// The RST that is due has no acknowledgement.
    is_reset_bare: bool,
    /// A send was cut short.
    pub wants_room: bool,
    pub confirmed_at: Micros,
    /// The MSS that we name.
    own_mss: u16,
    syn_due: bool,
    syn_at: Micros,
    syn_tries: u8,
    clock_offset: u32,
    reset_due: bool,
    /// Acknowledgements that are to go now: one, or one for each duplicate without SACK.
    acks_due: u8,
    ack_at: Micros,
    /// What we have acknowledged last.
    told: u64,
    /// The longest segment that came.
    heard_mss: u64,
    quick_acks: u8,
    challenged_at: Micros,
    heard_at: Micros,
    asked_at: Micros,
    /// Probes of keepalive since the peer was heard last.
    probes: u32,
    /// Since when we have waited for an acknowledgement, a FIN, an answer.
    waits_since: Option<Micros>,
    /// Bytes that the owner has taken since the window was last looked at.
    taken: u64,
    counts: TcpCounts,
}

/// The shift that is offered for a receive buffer of this size.
pub(super) fn window_shift(options: &TcpOptions) -> u8 {
    let bits = usize::BITS - options.receive_bytes().leading_zeros();
    bits.saturating_sub(16) as u8
}

impl Connection {
    fn new(seq: u32, own_mss: u16, options: &TcpOptions, now: Micros) -> Connection {
        let first = 1 << 32 | u64::from(seq);
        Connection {
            state: TcpState::SynSent,
            error: None,
            ready: Ready::default(),
            options: *options,
            send: Sender::new(first, options),
            receive: Receiver::new(0, 0, None),
            clock: None,
            is_orphan: false,
            is_left: false,
            breaks_off: false,
            abandoned: 0,
            is_reset_bare: false,
            wants_room: false,
            confirmed_at: 0,
            own_mss,
            syn_due: false,
            syn_at: Micros::MAX,
            syn_tries: 0,
            clock_offset: 0,
            reset_due: false,
            acks_due: 0,
            ack_at: Micros::MAX,
            told: 0,
            heard_mss: 0,
            quick_acks: QUICK_ACKS,
            challenged_at: 0,
            heard_at: now,
            asked_at: 0,
            probes: 0,
            waits_since: None,
            taken: 0,
            counts: TcpCounts::default(),
        }
    }

    /// Begins with a SYN.
    pub(super) fn connect(
        seq: u32,
        clock_offset: u32,
        own_mss: u16,
        options: &TcpOptions,
        now: Micros,
    ) -> Connection {
        Connection {
            syn_due: true,
            clock_offset,
            ..Connection::new(seq, own_mss, options, now)
        }
    }

    /// Stands; the segment that has completed it is still to be given to `input`.
    pub(super) fn accept(
        shaken: &Shaken,
        own_mss: u16,
        options: &TcpOptions,
        now: Micros,
    ) -> Connection {
        let mut connection = Connection::new(shaken.our_seq, own_mss, options, now);
        connection.hear_syn(shaken, now);
        connection.establish(shaken, now);
        // The SYN and its answer.
        connection.counts.comes(0, 1);
        connection.counts.goes(0, 1, now);
        connection
    }

    fn hear_syn(&mut self, shaken: &Shaken, now: Micros) {
        let said = &shaken.options;
        let start = (1 << 32 | u64::from(shaken.their_seq)) + 1;
        let shift = said.window_scale.map(|_| window_shift(&self.options));
        self.receive = Receiver::new(start, self.options.receive_bytes(), shift);
        self.told = start;
        self.clock = said.times.map(|(stamp, _)| Clock {
            offset: shaken.clock_offset,
            recent: stamp,
            recent_at: now,
        });
        let mss = said.mss.unwrap_or(self.own_mss);
        let options = if self.clock.is_some() { TIMES } else { 0 };
        self.send.mss = u64::from(mss).saturating_sub(options as u64).max(1);
        self.send.is_sack = said.is_sack;
        self.send.shift = said.window_scale.unwrap_or(0);
    }

    fn establish(&mut self, shaken: &Shaken, now: Micros) {
        if let Some(sent_at) = shaken.sent_at {
            self.send.rtt.sample(now.saturating_sub(sent_at), now);
        }
        let (seq, window) = (self.receive.next, u64::from(shaken.window));
        self.send.begin(seq, window, now);
        self.counts.begin(now);
        self.state = TcpState::Established;
        (self.syn_due, self.syn_at) = (false, Micros::MAX);
        self.waits_since = None;
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, TcpState::Established | TcpState::CloseWait)
    }

    /// Nothing is left to be sent or heard.
    pub(super) fn is_over(&self) -> bool {
        self.state == TcpState::Closed && !self.reset_due
    }

    fn hears_text(&self) -> bool {
        use TcpState::*;
        matches!(self.state, Established | FinWait1 | FinWait2)
    }

    // What the owner does.

    pub(super) fn shut(&mut self) {
        self.state = match self.state {
            TcpState::Established => TcpState::FinWait1,
            TcpState::CloseWait => TcpState::LastAck,
            TcpState::SynSent | TcpState::SynReceived => return self.abort(),
            _ => return,
        };
        self.send.is_shut = true;
        self.waits_since = None;
    }

    /// Its program goes; false: it has gone before.
    pub(super) fn leave(&mut self) -> bool {
        if self.is_left {
            return false;
        }
        // Patience begins here.
        (self.is_left, self.waits_since) = (true, None);
        true
    }

    /// Over, with a RST behind what may go now: Linux has sent that before it hears of the end (tcp_sendmsg, tcp_close).
    pub(super) fn break_off(&mut self) {
        use TcpState::*;
        match self.state {
            Established | CloseWait | FinWait1 | Closing | LastAck => self.breaks_off = true,
            _ => self.abort(),
        }
    }

    /// Whether the RST that ends it is due.
    pub(super) fn is_to_break(&self) -> bool {
        let is_unread = self.receive.unread() > self.abandoned;
        self.state != TcpState::Closed
            && match self.breaks_off {
                true => self.send.plan(self.send.mss).is_none(),
                // Whoever has closed it will not read (RFC 9293 section 3.10.4, as Linux does).
                false => self.is_orphan && is_unread,
            }
    }

    /// Over, with a RST if the peer knows of the connection.
    pub(super) fn abort(&mut self) {
        use TcpState::*;
        self.reset_due = !matches!(self.state, SynSent | TimeWait | Closed) || self.reset_due;
        // It answers what came to a connection that was closed on this side (linux: tcp_send_active_reset, tcp_v4_send_reset).
        self.is_reset_bare = self.is_orphan && self.send.is_fin_acked();
        self.close();
    }

    fn close(&mut self) {
        if self.state != TcpState::Closed {
            self.state = TcpState::Closed;
            self.ready.is_closed = true;
            self.ready.is_readable = true;
        }
    }

    /// Over for a reason that the owner is told.
    pub(super) fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
        self.abort();
    }

    /// Bytes were read.
    pub(super) fn consumed(&mut self, len: usize, pool: &mut Pool) {
        self.receive.consume(len, pool);
        self.taken += len as u64;
        // Below this it is not worth looking: that much more is open anyway.
        let worth = (2 * self.send.mss).min(self.options.receive_bytes() as u64 / 2);
        if self.taken >= worth {
            self.taken = 0;
            if self.hears_text() && self.receive.has_opened(self.send.mss) {
                self.acks_due = self.acks_due.max(1);
            }
        }
    }

    // What is heard.

    /// Takes in a segment. True if it is to be answered with a RST.
    pub(super) fn input(
        &mut self,
        tcp: &Tcp,
        options: &[u8],
        payload: Payload<'_>,
        pool: &mut Pool,
        now: Micros,
    ) -> bool {
        self.counts.comes(payload.len() as u64, self.own_mss.into());
        match self.state {
            TcpState::SynSent => return self.input_syn(tcp, options, now),
            TcpState::Closed => return false,
            TcpState::TimeWait => {
                self.challenge(!payload.is_empty() || tcp.has(flag::FIN), now);
                return false;
            }
            _ => (self.heard_at, self.probes) = (now, 0),
        }
        let said = SegmentOptions::parse(options);
        let next = self.receive.acknowledged();
        let seq = position(next, tcp.seq);
        let controls = tcp.flags & (flag::SYN | flag::FIN);
        let end = seq + payload.len() as u64 + u64::from(controls.count_ones());
        if !self.is_current(tcp, &said, end > seq, now) {
            return false;
        }
        if seq > self.receive.edge() || end < next {
            if !tcp.has(flag::RST) {
                self.receive.came_twice(seq, payload.len());
                self.challenge(!payload.is_empty(), now);
            }
            return false;
        }
        if tcp.has(flag::RST) {
            // Only exactly what is awaited ends it (RFC 5961 section 3.2).
            if seq == next {
                self.hear_reset();
            } else {
                self.challenge(false, now);
            }
            return false;
        }
        let ends_opening = self.state == TcpState::SynReceived && end == next;
        if tcp.has(flag::SYN) && !ends_opening {
            self.challenge(false, now);
            return false;
        }
        if !tcp.has(flag::ACK) {
            return false;
        }
        let ack = position(self.send.una, tcp.ack);
        if self.state == TcpState::SynReceived {
            if ack != self.send.end {
                return true;
            }
            let shaken = self.shaken(tcp, SynOptions::default());
            self.establish(&shaken, now);
            self.ready.is_connected = true;
            self.ready.is_writable = true;
        }
        // RFC 5961 section 5.2.
        let oldest = self
            .send
            .una
            .saturating_sub(self.send.window_max.max(0xffff));
        if ack > self.send.nxt || ack < oldest {
            self.challenge(false, now);
            return false;
        }
        // Not sooner: one forged segment would make all that follow look old.
        if seq <= self.told
            && let Some((clock, (stamp, _))) = self.clock.as_mut().zip(said.times)
        {
            (clock.recent, clock.recent_at) = (stamp, now);
        }
        self.counts.acked_at = now;
        let heard = Heard {
            seq,
            ack,
            window: u64::from(tcp.window) << self.send.shift,
            is_empty: end == seq,
            blocks: said.blocks(),
            echo: self.clock.and(said.times).map(|times| times.1),
            stamp: self.clock.map_or(0, |clock| clock.stamp(now)),
        };
        if self.send.hear(&heard, now) {
            self.waits_since = None;
            self.send.consume_acked(pool);
            self.hear_fin_acked();
        }
        if tcp.has(flag::URG) && self.hears_text() && !tcp.has(flag::SYN) {
            self.receive.hear_urgent(seq, tcp.urgent);
        }
        if end > seq && self.hears_text() && !tcp.has(flag::SYN) {
            self.hear_text(seq, payload, tcp.has(flag::FIN), pool, now);
        } else if end > seq {
            self.challenge(true, now);
        }
        false
    }

    /// Whether a segment is not older than what came before it (RFC 7323 section 5).
    fn is_current(
        &mut self,
        tcp: &Tcp,
        said: &SegmentOptions,
        has_text: bool,
        now: Micros,
    ) -> bool {
        let Some((clock, (stamp, _))) = self.clock.as_ref().zip(said.times) else {
            return true;
        };
        let age = stamp.wrapping_sub(clock.recent).cast_signed();
        let is_valid = now.saturating_sub(clock.recent_at) < TIMES_VALID_US;
        if age < 0 && is_valid && !tcp.has(flag::RST) {
            self.challenge(has_text, now);
            return false;
        }
        true
    }

    /// Says where we stand. What carries nothing might be an answer to this itself, so that it
    /// is not answered often.
    fn challenge(&mut self, has_text: bool, now: Micros) {
        if has_text || now.saturating_sub(self.challenged_at) >= CHALLENGE_US {
            if !has_text {
                self.challenged_at = now;
            }
            self.acks_due = self.acks_due.max(1);
        }
    }

    fn hear_reset(&mut self) {
        if !matches!(self.state, TcpState::LastAck | TcpState::Closing) && !self.is_orphan {
            // All was read, or will be: what fails is the sending (linux: tcp_reset).
            let is_half = self.state == TcpState::CloseWait;
            let error = if is_half { Error::Pipe } else { Error::Reset };
            self.error.get_or_insert(error);
        }
        self.close();
        self.reset_due = false;
    }

    fn hear_fin_acked(&mut self) {
        if !self.send.is_fin_acked() {
            return;
        }
        match self.state {
            TcpState::FinWait1 => {
                self.state = TcpState::FinWait2;
                self.waits_since = None;
            }
            TcpState::Closing => self.state = TcpState::TimeWait,
            TcpState::LastAck => self.close(),
            _ => {}
        }
    }

    fn hear_text(&mut self, at: u64, text: Payload<'_>, fin: bool, pool: &mut Pool, now: Micros) {
        let before = self.receive.next;
        let taken = self.receive.take(at, text, fin, pool);
        self.heard_mss = self
            .heard_mss
            .max(text.len() as u64)
            .min(self.own_mss.into());
        if self.receive.next > before {
            self.ready.is_readable = true;
            self.counts.heard_at = now;
        }
        let waiting = self.receive.next - self.told.min(self.receive.next);
        if taken == Taken::OutOfOrder {
            // Without SACK the peer counts duplicates (RFC 5681 section 3.2).
            let is_counted = !self.send.is_sack && self.receive.next == before;
            self.acks_due = if is_counted {
                self.acks_due.saturating_add(1)
            } else {
                1
            };
        } else if waiting > self.heard_mss
            || self.options.ack_delay_us.is_none()
            || self.quick_acks > 0
        {
            self.acks_due = self.acks_due.max(1);
        } else if self.ack_at == Micros::MAX {
            self.ack_at = now + self.options.ack_delay_us.unwrap_or(0);
        }
        if self.receive.is_over {
            self.acks_due = self.acks_due.max(1);
            self.ready.is_readable = true;
            self.state = match self.state {
                TcpState::Established => TcpState::CloseWait,
                TcpState::FinWait1 => TcpState::Closing,
                TcpState::FinWait2 => TcpState::TimeWait,
                other => other,
            };
        }
    }

    pub(super) fn info(&self) -> TcpInfo {
        let (send, receive) = (&self.send, &self.receive);
        let [out_bytes, sacked_bytes, lost_bytes] = send.outstanding();
        let (receive_window_bytes, receive_shift) = receive.open();
        TcpInfo {
            state: self.state,
            rtt_us: send.rtt.smooth_us,
            rttvar_us: send.rtt.variance_us,
            rto_us: send.rtt.timeout_us(),
            min_rtt_us: send.rtt.min_us,
            cwnd_bytes: send.window.limit(),
            ssthresh_bytes: send.window.threshold,
            mss_bytes: send.mss,
            heard_mss_bytes: self.heard_mss,
            retransmits: send.retransmits,
            sent_bytes: send.sent_bytes,
            sent_again_bytes: send.again_bytes,
            acked_bytes: send.acked_bytes(),
            received_bytes: receive.received_bytes(),
            unacked_bytes: send.unacknowledged(),
            unsent_bytes: send.unsent(),
            out_bytes,
            sacked_bytes,
            lost_bytes,
            send_window_bytes: send.peer_window(),
            receive_window_bytes,
            window_shifts: (send.shift, receive_shift),
            is_sack: send.is_sack,
            has_timestamps: self.clock.is_some(),
            probes: self.probes,
            counts: self.counts,
            buffer_bytes: send.ring().capacity() + receive.ring.capacity(),
        }
    }

    fn shaken(&self, tcp: &Tcp, mut options: SynOptions) -> Shaken {
        let mss = options.mss.filter(|mss| *mss != 0).unwrap_or(536);
        let least = super::handshake::MSS_MIN;
        options.mss = Some(mss.clamp(least, self.own_mss.max(least)));
        Shaken {
            our_seq: self.send.una as u32,
            their_seq: tcp.seq,
            window: tcp.window,
            options,
            clock_offset: self.clock_offset,
            sent_at: (self.syn_tries == 1).then_some(self.asked_at),
        }
    }

    /// In SYN-SENT (RFC 9293 section 3.10.7.3).
    fn input_syn(&mut self, tcp: &Tcp, options: &[u8], now: Micros) -> bool {
        let answers_us = position(self.send.una, tcp.ack) == self.send.end;
        if tcp.has(flag::ACK) && !answers_us {
            return !tcp.has(flag::RST);
        }
        if tcp.has(flag::RST) {
            if tcp.has(flag::ACK) {
                self.error.get_or_insert(Error::Refused);
                self.close();
            }
            return false;
        }
        if !tcp.has(flag::SYN) {
            return false;
        }
        self.heard_at = now;
        let shaken = self.shaken(tcp, SynOptions::parse(options));
        self.hear_syn(&shaken, now);
        if tcp.has(flag::ACK) {
            self.establish(&shaken, now);
            self.ready.is_connected = true;
            self.ready.is_writable = true;
            self.acks_due = 1;
        } else {
            // Both have begun at once.
            self.state = TcpState::SynReceived;
            self.syn_due = true;
        }
        false
    }

    // What is sent.

    /// Whether `write` has something.
    pub(super) fn wants(&self) -> bool {
        match self.state {
            TcpState::SynSent | TcpState::SynReceived => self.syn_due,
            TcpState::Closed => self.reset_due,
            TcpState::TimeWait => self.acks_due > 0,
            _ => self.acks_due > 0 || self.send.ask_due || self.send.plan(self.send.mss).is_some(),
        }
    }

    /// Writes the next segment without ports into `bytes`, at most `payload_max` of payload; that
    /// is a multiple of the MSS, or less. Gives the lengths of header and payload.
    pub(super) fn write(
        &mut self,
        bytes: &mut [u8],
        payload_max: u64,
        now: Micros,
    ) -> Option<(usize, usize)> {
        let written = match self.state {
            TcpState::SynSent | TcpState::SynReceived => self.write_syn(bytes, now),
            TcpState::Closed => {
                let is_due = core::mem::take(&mut self.reset_due);
                let flags = match self.is_reset_bare {
                    true => flag::RST,
                    false => flag::RST | flag::ACK,
                };
                is_due.then(|| (self.put(bytes, self.send.nxt, flags, false, now), 0))
            }
            _ => self.write_text(bytes, payload_max, now),
        };
        if let Some((_, len)) = written {
            self.counts.goes(len as u64, self.send.mss, now);
        }
        written
    }

    fn write_syn(&mut self, bytes: &mut [u8], now: Micros) -> Option<(usize, usize)> {
        if !core::mem::take(&mut self.syn_due) {
            return None;
        }
        let is_answer = self.state == TcpState::SynReceived;
        let recent = self.clock.map_or(0, |clock| clock.recent);
        let stamp = ((now / 1000) as u32).wrapping_add(self.clock_offset);
        let options = SynOptions {
            mss: Some(self.own_mss),
            window_scale: Some(window_shift(&self.options)),
            is_sack: !is_answer || self.send.is_sack,
            times: (!is_answer || self.clock.is_some()).then_some((stamp, recent)),
        };
        let mut written = [0; 24];
        let len = options.put(&mut written);
        let header = Tcp {
            seq: self.send.una as u32,
            ack: if is_answer {
                self.receive.next as u32
            } else {
                0
            },
            flags: if is_answer {
                flag::SYN | flag::ACK
            } else {
                flag::SYN
            },
            window: self.options.receive_bytes().min(0xffff) as u16,
            header: 20 + len,
            ..Tcp::default()
        };
        packet::put_tcp(bytes, &header);
        bytes[20..20 + len].copy_from_slice(&written[..len]);
        self.syn_at = now + (SECOND_US << self.syn_tries.min(6));
        self.syn_tries += 1;
        self.asked_at = now;
        self.send.nxt = self.send.una + 1;
        Some((20 + len, 0))
    }

    fn write_text(
        &mut self,
        bytes: &mut [u8],
        payload_max: u64,
        now: Micros,
    ) -> Option<(usize, usize)> {
        // What is beyond holes is told by an acknowledgement alone.
        let is_due = self.acks_due > 0 && self.send.is_sack && self.receive.has_blocks();
        let planned = match self.state {
            TcpState::TimeWait => None,
            _ if is_due => None,
            // Whoever cuts a segment gives each part the same pointer.
            _ if self.send.is_urgent() => self.send.plan(payload_max.min(self.send.mss)),
            _ => self.send.plan(payload_max),
        };
        if let Some(plan) = planned {
            let stop = plan.end.min(self.send.end);
            let len = stop.saturating_sub(plan.start) as usize;
            let mut flags = flag::ACK;
            if stop == self.send.end && len > 0 {
                flags |= flag::PSH;
            }
            if plan.end > self.send.end {
                flags |= flag::FIN;
            }
            let header = self.put(bytes, plan.start, flags, false, now);
            self.send
                .ring()
                .get(plan.start, &mut bytes[header..header + len]);
            let stamp = self.clock.map_or(0, |clock| clock.stamp(now));
            self.send.commit(plan, stamp, now);
            // We talk both ways: acknowledgements have company.
            if self.heard_mss > 0 {
                self.quick_acks = 0;
            }
            return Some((header, len));
        }
        if self.acks_due > 0 {
            let left = self.acks_due - 1;
            let header = self.put(bytes, self.send.nxt, flag::ACK, true, now);
            self.acks_due = left;
            self.quick_acks = self.quick_acks.saturating_sub(1);
            return Some((header, 0));
        }
        // A number that was acknowledged asks for an answer: keepalive, a shut window.
        core::mem::take(&mut self.send.ask_due).then(|| {
            self.asked_at = now;
            (self.put(bytes, self.send.una - 1, flag::ACK, true, now), 0)
        })
    }

    /// Writes a header that acknowledges what there is; gives its length. A bare one tells of what is beyond holes as well:
    /// beside payload there is no room for that.
    fn put(&mut self, bytes: &mut [u8], at: u64, flags: u8, is_bare: bool, now: Micros) -> usize {
        let mut len = 20;
        if let Some(clock) = &self.clock {
            packet::put_times(&mut bytes[len..], (clock.stamp(now), clock.recent));
            len += TIMES;
        }
        if is_bare && self.receive.has_blocks() && self.send.is_sack && at == self.send.nxt {
            let fits = if self.clock.is_some() { 3 } else { BLOCKS_MAX };
            let mut blocks = [(0, 0); BLOCKS_MAX];
            let count = self.receive.blocks(&mut blocks[..fits]);
            len += packet::put_blocks(&mut bytes[len..], &blocks[..count]);
        }
        self.told = self.receive.acknowledged();
        let pointer = self.send.pointer(at).filter(|_| flags & flag::RST == 0);
        let header = Tcp {
            seq: at as u32,
            ack: self.told as u32,
            flags: flags | pointer.map_or(0, |_| flag::URG),
            window: self.receive.window(self.send.mss),
            urgent: pointer.unwrap_or(0),
            header: len,
            ..Tcp::default()
        };
        packet::put_tcp(bytes, &header);
        (self.acks_due, self.ack_at) = (0, Micros::MAX);
        len
    }

    // Time.

    /// When this connection is to be given up if nothing changes.
    fn gives_up_at(&mut self, now: Micros) -> Option<Micros> {
        use TcpState::*;
        let waits = match self.state {
            SynSent | SynReceived | FinWait1 | Closing | LastAck => true,
            FinWait2 => self.is_orphan,
            Established | CloseWait => self.send.unacknowledged() > 0,
            _ => false,
        };
        if !waits {
            self.waits_since = None;
            let keepalive = self.options.keepalive?;
            // Silence alone is none: it may be older than the option, or this side's own.
            let is_over = self.is_open() && self.probes >= keepalive.probes.max(1);
            return is_over.then_some(self.asked_at.saturating_add(keepalive.interval_us));
        }
        let since = *self.waits_since.get_or_insert(now);
        Some(match self.state {
            SynSent => since + CONNECT_US,
            SynReceived => since.max(self.heard_at) + CONNECT_US,
            FinWait2 => since + ORPHAN_US,
            // Nobody is left who could lose patience with a peer that answers, and takes nothing.
            _ if self.is_left => since + self.options.user_timeout_us.min(LEFT_US),
            _ => since.max(self.heard_at) + self.options.user_timeout_us,
        })
    }

    /// Probes of an earlier time, whose end was not waited for, count no more.
    pub(super) fn begin_probes(&mut self) {
        self.probes = 0;
    }

    fn keepalive_at(&self) -> Option<Micros> {
        let keepalive = self.options.keepalive?;
        let is_idle = self.is_open() && self.send.unacknowledged() == 0;
        let (since, wait_us) = match self.probes {
            0 => (self.heard_at.max(self.asked_at), keepalive.idle_us),
            _ => (self.asked_at, keepalive.interval_us),
        };
        is_idle.then_some(since.saturating_add(wait_us))
    }

    /// When `on_time` wants to be called, if nothing happens before.
    pub(super) fn deadline(&mut self, now: Micros) -> Option<Micros> {
        self.send.watch(now);
        let limit = self.gives_up_at(now);
        let first = self.ack_at.min(self.syn_at).min(self.send.timer_at());
        let at = limit
            .into_iter()
            .chain(self.keepalive_at())
            .fold(first, Micros::min);
        (at != Micros::MAX && self.state != TcpState::Closed).then_some(at.max(now + 1))
    }

    pub(super) fn on_time(&mut self, now: Micros) {
        if self.gives_up_at(now).is_some_and(|at| at <= now) {
            return self.fail(Error::TimedOut);
        }
        if self.ack_at <= now {
            self.ack_at = Micros::MAX;
            self.acks_due = self.acks_due.max(1);
        }
        if self.syn_at <= now {
            self.syn_at = Micros::MAX;
            self.syn_due = true;
        }
        if self.send.timer_at() <= now {
            self.send.on_timer(now);
        }
        if self.keepalive_at().is_some_and(|at| at <= now) {
            self.send.ask_due = true;
            // Also one that cannot leave is one.
            (self.asked_at, self.probes) = (now, self.probes.saturating_add(1));
        }
    }

    /// Segments of the path may have so much payload with all options.
    pub(super) fn lower_mss(&mut self, mss: u16, now: Micros) {
        self.own_mss = self.own_mss.min(mss);
        if matches!(self.state, TcpState::SynSent | TcpState::SynReceived) {
            return;
        }
        let options = if self.clock.is_some() { TIMES } else { 0 };
        let mss = u64::from(mss).saturating_sub(options as u64).max(1);
        if mss < self.send.mss {
            self.send.lower_mss(mss, now);
        }
    }
}
