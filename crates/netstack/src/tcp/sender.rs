//! What is to be sent, what is on its way, and what was lost of it.
//!
//! ```text
//!   una ──[ Flying ]──[ Sacked ]──[ Lost ]──[ Flying ]── nxt ──── not sent ──── end (+ FIN)
//! ```
//! `runs` has what lies between `una` and `nxt` in order: each run was sent at one time and has
//! one state, and is split where an acknowledgement or a retransmission covers a part. A run of
//! several segments costs as much as one. Their number is bounded: beyond that, blocks of a peer
//! that would split one more are not believed.
//!
//! **Losses** are found by time (RACK, RFC 8985): what was sent before something that has
//! arrived, by more than the reordering seen on this way, is lost. So is a retransmission. When
//! nothing comes back, a tail loss probe asks after two round trips, then the timeout of RFC 6298
//! declares all lost. A peer without SACK gets RFC 6582: the third duplicate, then each partial
//! acknowledgement, shows one lost segment. Only what is lost is sent again.
//!
//! **No loss after all** shows when all that was sent again has come twice (RFC 2883), or when
//! the answer's timestamp is older than the retransmission (RFC 3522): the window goes back to
//! what it was.

use alloc::collections::VecDeque;
use core::ops::Range;

use super::congestion::{Before, Window};
use super::ring::{Pool, Ring};
use super::rtt::Rtt;
use crate::Micros;
use crate::config::TcpOptions;

/// Runs besides two for each segment that may be in flight.
const RUNS_SPARE: u64 = 64;
/// So much may be written before it is known how much the way takes.
const FIRST_ROOM: u64 = 64 * 1024;
/// Longest that a peer holds an acknowledgement of one segment back.
const PEER_WAIT_US: Micros = 200_000;
const PROBE_FIRST_US: Micros = 1_000_000;
const DUPLICATES: u64 = 3;
/// The reordering window in quarters of the least round trip, at most.
const QUARTERS_MAX: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Flying,
    Sacked,
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    end: u64,
    sent_at: Micros,
    order: u64,
    state: State,
    /// It was sent more than once.
    is_again: bool,
}

impl Run {
    fn len(&self) -> u64 {
        self.end - self.start
    }
}

/// Whether losses are being repaired, and up to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// By the acknowledgements that come.
    Recovery(u64),
    /// After a timeout.
    Timeout(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    Off,
    /// Something may be lost unless it is acknowledged until then.
    Reorder,
    TailProbe,
    Retransmit,
    /// The peer's window is shut: ask.
    Persist,
}

/// What to go back to, and whether all of it came twice.
#[derive(Clone, Copy, Debug)]
struct Undo {
    before: Before,
    /// Segments that were sent again, less those that the peer had already.
    again: u64,
    /// When the first went out, by our timestamps.
    stamp: Option<u32>,
}

/// A segment that may be sent now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub start: u64,
    pub end: u64,
    /// The run that is sent again.
    again: Option<usize>,
}

/// What an acknowledgement said besides its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard<'a> {
    /// The segment's own position, its acknowledgement, its window in bytes.
    pub seq: u64,
    pub ack: u64,
    pub window: u64,
    pub is_empty: bool,
    pub blocks: &'a [(u32, u32)],
    /// The timestamp of ours that it answers, and our clock now.
    pub echo: Option<u32>,
    pub stamp: u32,
}

#[derive(Debug)]
pub(super) struct Sender {
    ring: Ring,
    room_max: u64,
    /// Where the stream begins.
    start: u64,
    pub una: u64,
    pub nxt: u64,
    /// The end of what the owner has written.
    pub end: u64,
    /// The owner has shut the sending side: a FIN follows `end`.
    pub is_shut: bool,
    /// Where the last urgent byte ends, as long as it is not acknowledged.
    urgent: Option<u64>,
    pub is_nagle: bool,
    pub is_sack: bool,
    pub mss: u64,
    pub rtt: Rtt,
    pub window: Window,
    pub shift: u8,
    /// The right edge of the peer's window, the segment that said so, the largest ever.
    edge: u64,
    edge_by: (u64, u64),
    pub window_max: u64,
    runs: VecDeque<Run>,
    /// Transmissions so far: what was sent at one time has an order, too.
    order: u64,
    sacked: u64,
    lost: u64,
    /// Of a peer without SACK: duplicates since the last progress.
    duplicates: u64,
    phase: Phase,
    undo: Option<Undo>,
    /// The end of the last segment that was shorter than it could be (Minshall's Nagle).
    small_end: u64,
    /// The latest transmission that has arrived: its order, its end, how long it took.
    latest: (u64, u64),
    latest_rtt_us: Micros,
    /// The furthest position that has arrived, and that was sent again.
    furthest: u64,
    again_end: u64,
    is_reordering_seen: bool,
    quarters: u64,
    timer: Timer,
    timer_at: Micros,
    sent_at: Micros,
    /// A tail probe is out: acknowledged here, it has done its work. True: it was a repetition.
    probe: Option<(u64, bool)>,
    probe_due: bool,
    /// One loss may be repaired whatever is in flight (RFC 6675 section 5 step 4.3).
    repair_due: bool,
    /// The window is open less than is worth it: send what it takes.
    squeeze_due: bool,
    pub ask_due: bool,
    pub retransmits: u64,
    pub sent_bytes: u64,
    pub again_bytes: u64,
}

impl Sender {
    /// `start` is the SYN's position.
    pub(super) fn new(start: u64, options: &TcpOptions) -> Sender {
        Sender {
            ring: Ring::default(),
            room_max: options.send_bytes() as u64,
            start: start + 1,
            una: start,
            nxt: start,
            end: start + 1,
            is_shut: false,
            urgent: None,
            is_nagle: options.is_nagle,
            is_sack: false,
            mss: 536,
            rtt: Rtt::default(),
            window: Window::new(options.congestion),
            shift: 0,
            edge: start,
            edge_by: (0, 0),
            window_max: 0,
            runs: VecDeque::new(),
            order: 0,
            sacked: 0,
            lost: 0,
            duplicates: 0,
            phase: Phase::Open,
            undo: None,
            small_end: 0,
            latest: (0, 0),
            latest_rtt_us: 0,
            furthest: 0,
            again_end: 0,
            is_reordering_seen: false,
            quarters: 1,
            timer: Timer::Off,
            timer_at: Micros::MAX,
            sent_at: 0,
            probe: None,
            probe_due: false,
            repair_due: false,
            squeeze_due: false,
            ask_due: false,
            retransmits: 0,
            sent_bytes: 0,
            again_bytes: 0,
        }
    }

    /// The SYN is acknowledged: `una` is its position, the stream begins behind it.
    pub(super) fn begin(&mut self, seq: u64, window: u64, now: Micros) {
        self.una = self.end.min(self.una + 1);
        self.nxt = self.una;
        self.furthest = self.una;
        self.edge = self.una + window;
        self.edge_by = (seq, self.una);
        self.window_max = window;
        self.sent_at = now;
        self.timer = Timer::Off;
        self.timer_at = Micros::MAX;
        self.rtt.end_backoff();
        self.window.begin(self.mss);
    }

    // What the owner does.

    pub(super) fn unacknowledged(&self) -> usize {
        (self.end - self.una.min(self.end)) as usize
    }

    pub(super) fn acked_bytes(&self) -> u64 {
        self.una.min(self.end).saturating_sub(self.start)
    }

    /// Sent and not acknowledged: all of it, what the peer has beyond holes, and what is lost.
    pub(super) fn outstanding(&self) -> [u64; 3] {
        [self.nxt - self.una, self.sacked, self.lost]
    }

    pub(super) fn unsent(&self) -> usize {
        (self.end - self.nxt.min(self.end)) as usize
    }

    /// No more than twice of what the way takes is kept.
    fn kept_max(&self) -> u64 {
        let useful = self.window.limit().saturating_mul(2).max(FIRST_ROOM);
        self.room_max.min(useful)
    }

    /// Bytes that may be written now.
    pub(super) fn room(&self) -> usize {
        let used = self.unacknowledged() as u64;
        self.kept_max().saturating_sub(used) as usize
    }

    /// Whether there is room enough to wake a writer.
    pub(super) fn is_roomy(&self) -> bool {
        self.room() as u64 >= self.kept_max() / 4
    }

    /// Free space in one piece; `wanted` is how much its writer has, if known.
    pub(super) fn space(&mut self, wanted: Option<usize>, pool: &mut Pool) -> &mut [u8] {
        let (used, room) = (self.unacknowledged(), self.room());
        let kept = self.una.min(self.end)..self.end;
        let more = wanted
            .unwrap_or((self.ring.capacity() / 2).max(8192))
            .min(room);
        if !pool.fit(&mut self.ring, used + more, kept.clone()) {
            // A little is there for everybody.
            let _ = pool.fit(&mut self.ring, 4096.min(used + room), kept);
        }
        let free = (self.ring.capacity() - used).min(room);
        self.ring.piece_mut(self.end, free)
    }

    pub(super) fn written(&mut self, len: usize) {
        self.end += len as u64;
    }

    /// The byte that was written last is urgent.
    pub(super) fn mark_urgent(&mut self) {
        self.urgent = Some(self.end).filter(|end| *end > self.una);
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.urgent.is_some()
    }

    /// The urgent pointer of a segment that begins at `at`: behind the byte, as all take it (RFC 6093). One that does not reach so far
    /// has none: nearer segments say it.
    pub(super) fn pointer(&self, at: u64) -> Option<u16> {
        let ahead = self.urgent?.checked_sub(at).filter(|ahead| *ahead > 0)?;
        u16::try_from(ahead).ok()
    }

    pub(super) fn ring(&self) -> &Ring {
        &self.ring
    }

    // What may be sent.

    pub(super) fn in_flight(&self) -> u64 {
        let flying = self.nxt - self.una - self.sacked - self.lost;
        flying.saturating_sub(self.duplicates * self.mss)
    }

    /// The FIN's position and all before it.
    fn last(&self) -> u64 {
        self.end + u64::from(self.is_shut)
    }

    pub(super) fn is_fin_acked(&self) -> bool {
        self.is_shut && self.una == self.last()
    }

    pub(super) fn peer_window(&self) -> u64 {
        self.edge.saturating_sub(self.una)
    }

    /// The next segment with sequence numbers, at most `most` bytes of it, if one may go now.
    pub(super) fn plan(&self, most: u64) -> Option<Plan> {
        if self.lost == 0 && !self.probe_due && self.last() <= self.nxt {
            return None;
        }
        let in_flight = self.in_flight();
        let mut room = self.window.limit().saturating_sub(in_flight);
        if self.lost > 0 {
            if room < self.mss && in_flight > 0 && !self.repair_due {
                return None;
            }
            let found = self.runs.iter().position(|run| run.state == State::Lost)?;
            let run = &self.runs[found];
            let len = run
                .len()
                .min(most)
                .min((room - room % self.mss).max(self.mss));
            return Some(Plan {
                start: run.start,
                end: run.start + len,
                again: Some(found),
            });
        }
        if self.probe_due {
            room = room.max(self.mss);
        }
        if in_flight == 0 {
            room = room.max(self.mss);
        }
        if let Some(plan) = self.plan_new(room, most) {
            return Some(plan);
        }
        if !self.probe_due {
            return None;
        }
        // The last segment once more.
        let found = self
            .runs
            .iter()
            .rposition(|run| run.state == State::Flying)?;
        let run = &self.runs[found];
        Some(Plan {
            start: run.start.max(run.end.saturating_sub(self.mss)),
            end: run.end,
            again: Some(found),
        })
    }

    fn plan_new(&self, room: u64, most: u64) -> Option<Plan> {
        let unsent = self
            .last()
            .checked_sub(self.nxt)
            .filter(|unsent| *unsent > 0)?;
        if self.runs.len() as u64 > self.runs_max() {
            return None;
        }
        let fin = u64::from(self.is_shut);
        let open = self.edge.saturating_sub(self.nxt);
        let bytes = unsent - fin;
        let mut len = bytes.min(open).min(room).min(most);
        let tail = len % self.mss;
        if len < bytes {
            // Whole segments, or at least half of what the peer has ever offered.
            let is_worth = self.squeeze_due || open * 2 >= self.window_max;
            if len >= self.mss {
                len -= tail;
            } else if room < self.mss || !is_worth {
                return None;
            }
        } else if tail > 0
            && fin == 0
            && self.is_nagle
            && self.small_end > self.una
            && !self.is_urgent()
        {
            // What is urgent goes at once (linux: tcp_nagle_test).
            len -= tail;
        }
        let ends = fin == 1 && len == bytes && len < most.max(1);
        let end = self.nxt + len + u64::from(ends);
        (end > self.nxt).then_some(Plan {
            start: self.nxt,
            end,
            again: None,
        })
    }

    fn runs_max(&self) -> u64 {
        RUNS_SPARE + 2 * (self.nxt - self.una) / self.mss
    }

    /// The planned segment leaves.
    pub(super) fn commit(&mut self, plan: Plan, stamp: u32, now: Micros) {
        let was_empty = self.nxt == self.una;
        // Without the FIN.
        let bytes = plan.end.min(self.end).saturating_sub(plan.start);
        self.sent_bytes += bytes;
        self.order += 1;
        match plan.again {
            Some(found) => {
                self.again_bytes += bytes;
                self.commit_again(found, plan, stamp, now);
            }
            None => self.commit_new(plan, now),
        }
        if self.probe_due {
            self.probe_due = false;
            self.probe = Some((self.nxt, plan.again.is_some()));
        }
        self.squeeze_due = false;
        self.sent_at = now;
        let is_head = plan.start == self.una;
        if was_empty || is_head || matches!(self.timer, Timer::TailProbe | Timer::Off) {
            self.arm(now);
        }
    }

    fn commit_new(&mut self, plan: Plan, now: Micros) {
        if !(plan.end - plan.start).is_multiple_of(self.mss) {
            self.small_end = plan.end;
        }
        let is_crowded = self.runs.len() as u64 > RUNS_SPARE;
        self.nxt = plan.end;
        if let Some(last) = self.runs.back_mut()
            && last.state == State::Flying
            && !last.is_again
            && ((last.sent_at == now && last.order + 1 == self.order)
                || (is_crowded && last.len() < self.mss))
        {
            last.end = plan.end;
            last.sent_at = now;
            last.order = self.order;
            return;
        }
        self.runs.push_back(Run {
            start: plan.start,
            end: plan.end,
            sent_at: now,
            order: self.order,
            state: State::Flying,
            is_again: false,
        });
    }

    fn commit_again(&mut self, found: usize, plan: Plan, stamp: u32, now: Micros) {
        self.repair_due = false;
        let mut at = found;
        if self.runs[at].start < plan.start {
            self.split(at, plan.start);
            at += 1;
        }
        if self.runs[at].end > plan.end {
            self.split(at, plan.end);
        }
        let run = &mut self.runs[at];
        if run.state == State::Lost {
            self.lost -= run.end - run.start;
        }
        run.state = State::Flying;
        run.is_again = true;
        run.sent_at = now;
        run.order = self.order;
        self.again_end = self.again_end.max(plan.end);
        let count = (plan.end - plan.start).div_ceil(self.mss);
        self.retransmits += count;
        if let Some(undo) = &mut self.undo {
            undo.again += count;
            undo.stamp.get_or_insert(stamp);
        }
    }

    fn split(&mut self, at: usize, position: u64) {
        let mut second = self.runs[at];
        self.runs[at].end = position;
        second.start = position;
        self.runs.insert(at + 1, second);
    }

    /// Idle for long, then busy again: the window is out of date.
    pub(super) fn wake(&mut self, now: Micros) {
        if self.una == self.nxt {
            let timeouts = now.saturating_sub(self.sent_at) / self.rtt.timeout_us();
            if timeouts > 0 {
                self.window.idle(timeouts, self.mss);
            }
        }
    }

    // What is heard.

    /// An acknowledgement of what was sent (`una <= ack <= nxt`), or an older one. True if it
    /// has moved on.
    pub(super) fn hear(&mut self, heard: &Heard<'_>, now: Micros) -> bool {
        let progress = heard.ack.saturating_sub(self.una);
        let was_limited = self.in_flight() + self.mss > self.window.limit() / 2;
        let same_window = self.una.max(heard.ack) + heard.window == self.edge;
        let is_later = (heard.seq, heard.ack) >= self.edge_by;
        let mut has_opened = false;
        if heard.ack > self.una || heard.ack == self.una && is_later {
            let was_shut = self.edge <= self.nxt;
            has_opened = self.edge <= self.una && heard.ack == self.una && heard.window > 0;
            self.edge = heard.ack + heard.window;
            self.edge_by = (heard.seq, heard.ack);
            self.window_max = self.window_max.max(heard.window);
            if was_shut && self.edge > self.nxt && self.timer == Timer::Persist {
                self.rtt.end_backoff();
                self.timer = Timer::Off;
            }
        }
        let (moved, before) = (progress > 0, (progress, self.sacked));
        let mut arrived = Arrived::default();
        let came_twice = self.hear_blocks(heard, &mut arrived, now);
        let is_duplicate = !moved && heard.ack == self.una && heard.is_empty && same_window;
        if moved {
            self.advance(heard.ack, &mut arrived, now);
        }
        self.end_probe(came_twice || is_duplicate);
        self.end_phase(heard, came_twice, moved);
        if self.una == self.nxt && !moved {
            self.arm(now);
            return false;
        }
        self.note_arrived(&arrived, heard, moved, now);
        if !self.is_sack {
            self.count_duplicates(progress, is_duplicate);
        }
        let mut waits = None;
        if before != (0, self.sacked) || self.lost > 0 || self.phase != Phase::Open {
            waits = self.find_losses(now);
        }
        if moved && was_limited && !matches!(self.phase, Phase::Recovery(_)) {
            self.window
                .grow(progress, self.rtt.smooth_us, self.mss, now);
        }
        if moved {
            self.rtt.end_backoff();
        }
        if has_opened && self.lost > 0 {
            self.lose_refused();
            self.arm(now);
        }
        if moved || waits.is_some() || self.timer != Timer::Retransmit {
            self.arm(now);
        }
        moved
    }

    /// A peer that had taken its window back, for want of memory (linux: tcp_select_window, ICSK_ACK_NOMEM), has it open again. What was
    /// sent again meanwhile it has not taken: that goes now, and not when a wait is over that has doubled with each try.
    fn lose_refused(&mut self) {
        self.lose_all();
        self.rtt.end_backoff();
    }

    /// All that flies is lost.
    fn lose_all(&mut self) {
        for run in &mut self.runs {
            if run.state == State::Flying {
                run.state = State::Lost;
                self.lost += run.end - run.start;
            }
        }
    }

    /// Marks what the peer has beyond holes. True if it names something that it had already.
    fn hear_blocks(&mut self, heard: &Heard<'_>, arrived: &mut Arrived, now: Micros) -> bool {
        let mut came_twice = false;
        for (index, block) in heard.blocks.iter().enumerate() {
            let start = super::position(heard.ack, block.0);
            let end = super::position(heard.ack, block.1);
            if start >= end || end > self.nxt {
                continue;
            }
            let second = heard.blocks.get(1).map(|second| {
                super::position(heard.ack, second.0)..super::position(heard.ack, second.1)
            });
            let is_inside = second.is_some_and(|second| second.start <= start && end <= second.end);
            if index == 0 && (end <= heard.ack || is_inside) {
                came_twice = true;
                self.came_twice(start, end);
            } else if self.is_sack && start >= self.una.max(heard.ack) {
                self.mark(start..end, arrived, now);
            }
        }
        came_twice
    }

    fn mark(&mut self, block: Range<u64>, arrived: &mut Arrived, now: Micros) {
        let mut at = self.runs.partition_point(|run| run.end <= block.start);
        while let Some(run) = self.runs.get(at).copied()
            && run.start < block.end
        {
            if run.state == State::Sacked {
                at += 1;
                continue;
            }
            let may_split = (self.runs.len() as u64) < self.runs_max();
            if (run.start < block.start || run.end > block.end) && !may_split {
                at += 1;
                continue;
            }
            if run.start < block.start {
                self.split(at, block.start);
                at += 1;
            }
            if self.runs[at].end > block.end {
                self.split(at, block.end);
            }
            let run = &mut self.runs[at];
            let len = run.len();
            if run.state == State::Lost {
                self.lost -= len;
            }
            self.sacked += len;
            run.state = State::Sacked;
            arrived.note(run, self.furthest, now);
            at += 1;
        }
        self.merge_around(block);
    }

    /// Runs that the peer has, side by side, are one.
    fn merge_around(&mut self, block: Range<u64>) {
        let mut at = self.runs.partition_point(|run| run.end < block.start);
        while at + 1 < self.runs.len() && self.runs[at].start <= block.end {
            let (first, second) = (self.runs[at], self.runs[at + 1]);
            if first.state == State::Sacked && second.state == State::Sacked {
                self.runs[at].end = second.end;
                self.runs.remove(at + 1);
            } else {
                at += 1;
            }
        }
    }

    /// Everything before `ack` has arrived.
    fn advance(&mut self, ack: u64, arrived: &mut Arrived, now: Micros) {
        while let Some(run) = self.runs.front_mut()
            && run.start < ack
        {
            let mut part = *run;
            part.end = part.end.min(ack);
            run.start = part.end;
            if run.start == run.end {
                self.runs.pop_front();
            }
            match part.state {
                State::Sacked => self.sacked -= part.len(),
                State::Lost => self.lost -= part.len(),
                State::Flying => {}
            }
            if part.state != State::Sacked {
                arrived.note(&part, self.furthest, now);
            }
        }
        self.una = ack;
        self.urgent = self.urgent.filter(|end| *end > ack);
        self.furthest = self.furthest.max(ack);
    }

    fn note_arrived(&mut self, arrived: &Arrived, heard: &Heard<'_>, moved: bool, now: Micros) {
        if let Some(sent_at) = arrived.original_at {
            self.rtt.sample(now.saturating_sub(sent_at), now);
        } else if moved
            && arrived.latest.1 > 0
            && let Some(echo) = heard.echo
        {
            // A retransmission's own time says nothing (Karn), the timestamp does.
            let ms = heard.stamp.wrapping_sub(echo);
            if ms < 60_000 {
                self.rtt.sample(Micros::from(ms) * 1000, now);
            }
        }
        self.is_reordering_seen |= arrived.is_reordered;
        self.furthest = self.furthest.max(arrived.furthest);
        let took = now.saturating_sub(arrived.latest_at);
        // A retransmission that is answered sooner than any answer came: it was the first one's.
        let is_doubtful = arrived.latest_is_again && took < self.rtt.min_us;
        if arrived.latest.1 > 0 && !is_doubtful && arrived.latest > self.latest {
            self.latest = arrived.latest;
            self.latest_rtt_us = took;
        }
    }

    /// The peer had this already when it came.
    fn came_twice(&mut self, start: u64, end: u64) {
        if end.saturating_sub(start) > self.window_max.max(self.mss) {
            return;
        }
        // The reordering is wider than thought (RFC 8985 section 6.2 step 4).
        self.quarters = (self.quarters + 1).min(QUARTERS_MAX);
        if let Some(undo) = &mut self.undo {
            undo.again = undo.again.saturating_sub((end - start).div_ceil(self.mss));
        }
    }

    /// RFC 6582, for a peer without SACK.
    fn count_duplicates(&mut self, progress: u64, is_duplicate: bool) {
        if progress > 0 {
            self.duplicates = self.duplicates.saturating_sub(progress.div_ceil(self.mss));
            match self.phase {
                Phase::Recovery(until) if self.una < until => self.lose_head(),
                Phase::Recovery(_) => self.duplicates = 0,
                _ => {}
            }
        } else if is_duplicate {
            let most = (self.nxt - self.una).div_ceil(self.mss).saturating_sub(1);
            self.duplicates = (self.duplicates + 1).min(most);
            if self.duplicates == DUPLICATES && self.phase == Phase::Open {
                self.lose_head();
            }
        }
    }

    fn lose_head(&mut self) {
        let Some(head) = self.runs.front().copied() else {
            return;
        };
        if head.state != State::Flying || head.is_again {
            return;
        }
        if head.len() > self.mss {
            self.split(0, head.start + self.mss);
        }
        self.runs[0].state = State::Lost;
        self.repair_due = true;
        self.lost += self.runs[0].len();
    }

    /// Whether a tail probe has repaired a loss (RFC 8985 section 7.4.2).
    fn end_probe(&mut self, came_twice: bool) {
        let Some((end, is_again)) = self.probe else {
            return;
        };
        if !is_again && self.una >= end || self.una == end && came_twice {
            self.probe = None;
        } else if self.una > end {
            self.probe = None;
            // Nobody has said that it came twice.
            if self.phase == Phase::Open {
                self.window.shrink(self.in_flight(), self.mss);
            }
        }
    }

    fn end_phase(&mut self, heard: &Heard<'_>, came_twice: bool, moved: bool) {
        if let Some(undo) = self.undo {
            let is_older = |(echo, stamp): (u32, u32)| echo.wrapping_sub(stamp).cast_signed() < 0;
            let was_first = moved && heard.echo.zip(undo.stamp).is_some_and(is_older);
            let all_twice = came_twice && undo.again == 0 && undo.stamp.is_some();
            if was_first && self.phase != Phase::Open || all_twice {
                self.window.undo(undo.before);
                self.undo = None;
                self.phase = Phase::Open;
                self.clear(State::Lost);
                return;
            }
        }
        if let Phase::Recovery(until) | Phase::Timeout(until) = self.phase
            && self.una >= until
        {
            self.phase = Phase::Open;
            self.duplicates = 0;
        }
    }

    /// Runs of this state are on their way after all.
    fn clear(&mut self, state: State) {
        for run in &mut self.runs {
            if run.state == state {
                run.state = State::Flying;
            }
        }
        match state {
            State::Sacked => self.sacked = 0,
            State::Lost => self.lost = 0,
            State::Flying => {}
        }
    }

    /// The first loss since all was well.
    fn shrink(&mut self, phase: Phase) {
        let flying = self.nxt - self.una;
        self.undo = Some(Undo {
            before: self.window.shrink(flying, self.mss),
            again: 0,
            stamp: None,
        });
        self.phase = phase;
        self.repair_due = true;
    }

    // Losses.

    /// How much later than its time something may come (RFC 8985 section 6.2 step 4).
    fn patience_us(&self) -> Micros {
        let is_sure = self.phase != Phase::Open || self.sacked >= DUPLICATES * self.mss;
        if !self.is_reordering_seen && is_sure {
            return 0;
        }
        (self.rtt.min_us * self.quarters / 4).min(self.rtt.smooth_us)
    }

    /// Marks what was sent so long before something that has arrived that it must be lost.
    /// Gives how long to wait for what may be.
    fn find_losses(&mut self, now: Micros) -> Option<Micros> {
        let waits = if self.is_sack {
            self.mark_late(now)
        } else {
            None
        };
        if self.lost > 0 && self.phase == Phase::Open {
            self.shrink(Phase::Recovery(self.nxt));
        }
        waits
    }

    fn mark_late(&mut self, now: Micros) -> Option<Micros> {
        let patience = self.latest_rtt_us + self.patience_us();
        let until = self.furthest.max(self.again_end);
        let mut waits = None;
        for run in self.runs.iter_mut().take_while(|run| run.start < until) {
            if run.state != State::Flying || (run.order, run.end) >= self.latest {
                continue;
            }
            let lost_at = run.sent_at + patience;
            if lost_at <= now {
                run.state = State::Lost;
                self.lost += run.end - run.start;
            } else {
                waits = waits.max(Some(lost_at));
            }
        }
        waits
    }

    /// The path's segments are smaller than those in flight: none of those will arrive.
    pub(super) fn lower_mss(&mut self, mss: u64, now: Micros) {
        self.mss = mss;
        if self.phase == Phase::Open && self.una < self.nxt {
            // Nothing says that the way is full.
            self.phase = Phase::Recovery(self.nxt);
        }
        for run in &mut self.runs {
            if run.state == State::Flying && run.len() > mss {
                run.state = State::Lost;
                self.lost += run.end - run.start;
            }
        }
        self.arm(now);
    }

    // Timers.

    pub(super) fn timer_at(&self) -> Micros {
        self.timer_at
    }

    /// Sets the one timer that is next.
    fn arm(&mut self, now: Micros) {
        let timeout = self.rtt.timeout_us();
        (self.timer, self.timer_at) = if self.una == self.nxt {
            match self.timer {
                Timer::Persist => (Timer::Persist, self.timer_at),
                _ if self.last() > self.nxt && self.plan_new(u64::MAX, u64::MAX).is_none() => {
                    (Timer::Persist, now + timeout)
                }
                _ => (Timer::Off, Micros::MAX),
            }
        } else if let Some(at) = self.late_at(now) {
            (Timer::Reorder, at)
        } else if self.is_sack
            && self.phase == Phase::Open
            && self.probe.is_none()
            && self.sacked + self.lost == 0
        {
            let wait = match self.rtt.smooth_us {
                0 => PROBE_FIRST_US,
                smooth if self.nxt - self.una <= self.mss => 2 * smooth + PEER_WAIT_US,
                smooth => 2 * smooth + 2_000,
            };
            // Who goes on writing does not put it off for ever (RFC 8985 section 7.2).
            let head = self.runs.front().map_or(now, |run| run.sent_at);
            let at = (now + wait).min(head + timeout);
            (Timer::TailProbe, at.max(now + 1))
        } else {
            (Timer::Retransmit, now + timeout)
        };
    }

    /// When something that is still awaited is lost.
    fn late_at(&mut self, now: Micros) -> Option<Micros> {
        if self.sacked == 0 && self.phase == Phase::Open {
            return None;
        }
        self.find_losses(now).map(|at| at.max(now + 1))
    }

    /// The owner has written or shut: looks after a window that takes nothing.
    pub(super) fn watch(&mut self, now: Micros) {
        if self.timer == Timer::Off && self.last() > self.nxt {
            self.arm(now);
        }
    }

    /// The timer is due.
    pub(super) fn on_timer(&mut self, now: Micros) {
        match self.timer {
            Timer::Off => self.timer_at = Micros::MAX,
            Timer::Reorder => {
                self.timer = Timer::Off;
                self.arm(now);
            }
            Timer::TailProbe => {
                self.probe_due = true;
                self.probe = Some((self.nxt, false));
                (self.timer, self.timer_at) = (Timer::Retransmit, now + self.rtt.timeout_us());
            }
            Timer::Persist => {
                self.rtt.back_off();
                if self.edge > self.nxt {
                    self.squeeze_due = true;
                } else {
                    self.ask_due = true;
                }
                self.timer_at = now + self.rtt.timeout_us();
            }
            Timer::Retransmit => self.time_out(now),
        }
    }

    fn time_out(&mut self, now: Micros) {
        // A peer may take back what it has told by SACK (RFC 2018 section 8).
        if self
            .runs
            .front()
            .is_some_and(|run| run.state == State::Sacked)
        {
            self.clear(State::Sacked);
        }
        self.lose_all();
        (self.duplicates, self.probe, self.probe_due) = (0, None, false);
        match self.phase {
            Phase::Open => self.shrink(Phase::Timeout(self.nxt)),
            _ => self.phase = Phase::Timeout(self.nxt),
        }
        self.window.collapse(self.mss);
        self.rtt.back_off();
        (self.timer, self.timer_at) = (Timer::Retransmit, now + self.rtt.timeout_us());
    }

    #[cfg(test)]
    pub(super) fn run_count(&self) -> usize {
        self.runs.len()
    }

    pub(super) fn consume_acked(&mut self, pool: &mut Pool) {
        if self.una >= self.end {
            pool.trim(&mut self.ring);
        }
    }
}

/// What one acknowledgement shows to have arrived.
#[derive(Debug, Default)]
struct Arrived {
    /// The latest of what was sent once.
    original_at: Option<Micros>,
    latest: (u64, u64),
    latest_at: Micros,
    latest_is_again: bool,
    furthest: u64,
    is_reordered: bool,
}

impl Arrived {
    fn note(&mut self, run: &Run, furthest: u64, now: Micros) {
        debug_assert!(run.sent_at <= now);
        if (run.order, run.end) > self.latest {
            self.latest = (run.order, run.end);
            self.latest_at = run.sent_at;
            self.latest_is_again = run.is_again;
        }
        self.furthest = self.furthest.max(run.end);
        if !run.is_again {
            self.original_at = self.original_at.max(Some(run.sent_at));
            self.is_reordered |= run.end < furthest;
        }
    }
}
