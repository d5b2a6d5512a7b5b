//! Losses that smoltcp alone would wait a second for.
//!
//! smoltcp retransmits one segment after three duplicate acknowledgements, else after a timeout
//! of at least a second (RFC 6298). Two rules are laid around it, both by giving it the three
//! duplicates that it waits for:
//!
//! * *Partial acknowledgements* (NewReno, RFC 6582): while what was in flight at the loss is not
//!   acknowledged whole, each acknowledgement that moves on ends at the next hole.
//! * *Tail loss probe* (RFC 8985 section 7): when nothing comes back for two round trips and a
//!   peer's longest wait, the first segment goes out again. Once for each silence; then the
//!   timeout of smoltcp decides, and nothing is added to its way of sending all again.

use crate::Micros;
use crate::packet::{Tcp, flag};

/// Longer than acknowledgements are held back (40 ms on Linux).
const ACK_WAIT_US: Micros = 50_000;
/// smoltcp's shortest timeout: what is retransmitted so long after a loss was its decision.
const TIMEOUT_US: Micros = 1_000_000;
const DUPLICATES: u8 = 3;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recovery {
    /// What the peer has acknowledged, its window as it stood there, and how often it said so.
    acknowledged: u32,
    window: u16,
    duplicates: u8,
    /// Until this is acknowledged, a loss is being repaired; since when.
    until: Option<(u32, Micros)>,
    /// A timeout sends all again up to this.
    timed_out: Option<u32>,
    round_trip_us: Option<Micros>,
    /// When our side of the handshake went out, if it went out once.
    shook_at: Option<Micros>,
    /// A sequence number, and when it was sent first.
    sample: Option<(u32, Micros)>,
    heard_at: Micros,
    has_probed: bool,
    /// When the last segment went out, it began what is in flight now.
    is_alone: bool,
}

/// Whether sequence number `a` is behind `b`.
fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

impl Recovery {
    /// Notes an arriving segment, its acknowledgement as on the wire. True if smoltcp is to be
    /// told of the next hole.
    pub(super) fn heard(&mut self, tcp: &Tcp, is_empty: bool, seq_next: u32, now: Micros) -> bool {
        if !tcp.has(flag::ACK) {
            return false;
        }
        if let Some(shook_at) = self.shook_at.take() {
            self.round_trip_us = Some(now.saturating_sub(shook_at));
        }
        if !after(tcp.ack, self.acknowledged) || after(tcp.ack, seq_next) {
            let is_duplicate = tcp.ack == self.acknowledged
                && is_empty
                && tcp.window == self.window
                && tcp.ack != seq_next;
            self.window = tcp.window;
            if is_duplicate {
                self.duplicates = self.duplicates.saturating_add(1);
                if self.duplicates == DUPLICATES && self.until.is_none() {
                    self.until = Some((seq_next, now));
                }
            }
            return false;
        }
        self.acknowledged = tcp.ack;
        self.window = tcp.window;
        self.duplicates = 0;
        self.has_probed = false;
        self.heard_at = now;
        if let Some((seq, sent_at)) = self.sample
            && !after(seq, tcp.ack)
        {
            let sample = now.saturating_sub(sent_at);
            self.round_trip_us = Some(
                self.round_trip_us
                    .map_or(sample, |old| (7 * old + sample) / 8),
            );
            self.sample = None;
        }
        self.timed_out = self.timed_out.filter(|end| after(*end, tcp.ack));
        self.until = self.until.filter(|(end, _)| after(*end, tcp.ack));
        self.until.is_some() && self.timed_out.is_none()
    }

    /// Notes a segment of ours, `seq` as on the wire; `seq_next` is the end of all before it.
    pub(super) fn sent(&mut self, seq: u32, end: u32, seq_next: u32, now: Micros) {
        self.is_alone = seq == self.acknowledged && seq == seq_next && seq != end;
        if seq == end {
            return;
        }
        if !after(seq_next, seq) {
            if self.sample.is_none() {
                self.sample = Some((end, now));
            }
            self.heard_at = self.heard_at.max(now);
            return;
        }
        // Sent again: its acknowledgement measures nothing (Karn).
        self.sample = None;
        let is_repair = self
            .until
            .is_some_and(|(_, since)| now < since + TIMEOUT_US);
        if !is_repair && self.timed_out.is_none() {
            self.until = None;
            self.timed_out = Some(seq_next);
        }
    }

    /// Whether a loss is known that is not repaired yet.
    pub(super) fn is_repairing(&self) -> bool {
        self.until.is_some() || self.timed_out.is_some()
    }

    /// When nothing of ours can be due before, if the last segment carried all of the
    /// `unacknowledged` bytes that the socket holds.
    pub(super) fn quiet_until(&self, unacknowledged: usize, seq_next: u32) -> Option<Micros> {
        let in_flight = seq_next.wrapping_sub(self.acknowledged);
        let is_all = self.is_alone && in_flight as usize == unacknowledged;
        (is_all && !self.is_repairing()).then_some(self.heard_at + ACK_WAIT_US)
    }

    /// When to probe, if nothing is heard until then.
    pub(super) fn probe_at(&self, seq_next: u32) -> Option<Micros> {
        let is_quiet = !self.is_repairing() && !self.has_probed;
        if !is_quiet || seq_next == self.acknowledged {
            return None;
        }
        Some(self.heard_at + 2 * self.round_trip_us? + ACK_WAIT_US)
    }

    /// The probe goes out: what is acknowledged, and the window that came with it.
    pub(super) fn probe(&mut self, seq_next: u32, now: Micros) -> (u32, u16) {
        self.has_probed = true;
        self.until = Some((seq_next, now));
        (self.acknowledged, self.window)
    }

    /// The handshake will acknowledge everything up to here. Our side of it went out at
    /// `sent_at`, or more than once.
    pub(super) fn begin(&mut self, acknowledged: u32, sent_at: Option<Micros>) {
        self.acknowledged = acknowledged;
        self.shook_at = sent_at;
    }
}
