//! What has arrived: bytes in order for the reader, pieces beyond holes, what is told of both.
//!
//! ```text
//!   read ────── in order ────── next ── hole ──[ piece ]── hole ──[ piece ]── edge
//!                                               kept in `pieces`, told by SACK
//! ```
//! Positions count bytes of the stream and are never cut to 32 bits here. The window that is told
//! ends at `edge`, which never goes back; it may promise more than there is memory for, so that
//! what finds none is dropped as if on the way. The window begins with 64 KB and doubles whenever
//! a whole one was read by a reader that keeps up, to what the options allow.

use alloc::vec::Vec;

use super::payload::Payload;
use super::ring::{Pool, Ring};

/// The window of the handshake has 16 bits.
const FIRST_LIMIT: u64 = 65_535;
const LIMIT_MIN: u64 = 2048;
/// Pieces beyond holes; what would make one more is dropped.
const PIECES_MAX: usize = 256;
/// SACK blocks that fit beside no timestamps.
pub(super) const BLOCKS_MAX: usize = 4;

type Piece = (u64, u64);

#[derive(Debug)]
pub(super) struct Receiver {
    pub ring: Ring,
    /// What the owner reads next.
    pub read: u64,
    /// The end of what is in order.
    pub next: u64,
    /// The peer's FIN was taken; it stands at `next`.
    pub is_over: bool,
    /// The last urgent byte that the peer has told of. It may have been read, or never come.
    urgent: Option<u64>,
    fin_at: Option<u64>,
    edge: u64,
    limit: u64,
    limit_max: u64,
    shift: u8,
    pieces: Vec<Piece>,
    /// Where pieces begin that have changed last, the last one first.
    recent: [u64; BLOCKS_MAX],
    /// What came twice and was not told yet (RFC 2883).
    twice: Option<Piece>,
    start: u64,
    /// Read since the limit was raised.
    consumed: u64,
}

/// What became of a segment's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// In order, and nothing waits behind a hole.
    InOrder,
    /// It closed a hole, lies beyond one, came twice or had no room: the peer wants to know now.
    OutOfOrder,
}

impl Receiver {
    /// `shift` is what we offer; a window without it has 16 bits.
    pub(super) fn new(start: u64, buffer_bytes: usize, shift: Option<u8>) -> Receiver {
        let limit_max = match shift {
            Some(_) => buffer_bytes as u64,
            None => (buffer_bytes as u64).min(FIRST_LIMIT),
        };
        let limit = limit_max.min(FIRST_LIMIT);
        Receiver {
            ring: Ring::default(),
            read: start,
            next: start,
            is_over: false,
            urgent: None,
            fin_at: None,
            edge: start + limit,
            limit,
            limit_max,
            shift: shift.unwrap_or(0),
            pieces: Vec::new(),
            recent: [0; BLOCKS_MAX],
            twice: None,
            start,
            consumed: 0,
        }
    }

    /// What we acknowledge.
    pub(super) fn acknowledged(&self) -> u64 {
        self.next + u64::from(self.is_over)
    }

    pub(super) fn received_bytes(&self) -> u64 {
        self.next - self.start
    }

    /// All of a segment had come before.
    pub(super) fn came_twice(&mut self, at: u64, len: usize) {
        let end = at + len as u64;
        if len > 0 && end <= self.next {
            self.twice = Some((at, end));
        }
    }

    pub(super) fn unread(&self) -> usize {
        (self.next - self.read) as usize
    }

    /// The segment at `at` has an urgent pointer: behind the byte, as all give it (RFC 6093). What is here already is urgent no more,
    /// and a byte before another urgent one is an ordinary one (linux: tcp_check_urg).
    pub(super) fn hear_urgent(&mut self, at: u64, pointer: u16) {
        let byte = at + u64::from(pointer.saturating_sub(1));
        if byte >= self.next && self.urgent.is_none_or(|known| byte > known) {
            self.urgent = Some(byte);
        }
    }

    /// How many bytes that wait to be read stand before the urgent one, if it waits as well.
    pub(super) fn before_urgent(&self) -> Option<usize> {
        let before = self.urgent?.checked_sub(self.read)? as usize;
        (before < self.unread()).then_some(before)
    }

    pub(super) fn edge(&self) -> u64 {
        self.edge
    }

    /// What the peer may send still, and by how much its window is shifted.
    pub(super) fn open(&self) -> (u64, u8) {
        (self.edge.saturating_sub(self.acknowledged()), self.shift)
    }

    /// The window as it stands in a header. Opens only by steps that are worth it (RFC 9293
    /// section 3.8.6.2.2).
    pub(super) fn window(&mut self, mss: u64) -> u16 {
        let wish = self.read + self.limit;
        if wish >= self.edge + mss.min(self.limit / 2) {
            self.edge = wish;
        }
        let open = self.edge.saturating_sub(self.acknowledged());
        (open >> self.shift).min(0xffff) as u16
    }

    /// Whether the peer should hear of a larger window without being asked.
    pub(super) fn has_opened(&self, mss: u64) -> bool {
        self.read + self.limit >= self.edge + (2 * mss).min(self.limit / 2)
    }

    /// Takes a segment's bytes in, as far as they are new, in the window and have room.
    pub(super) fn take(&mut self, at: u64, text: Payload<'_>, fin: bool, pool: &mut Pool) -> Taken {
        let end = at + text.len() as u64;
        if fin && end >= self.next && end <= self.edge {
            self.fin_at.get_or_insert(end);
        }
        let (start, mut stop) = (at.max(self.next), end.min(self.edge));
        let needed = stop.saturating_sub(self.read) as usize;
        let kept = self.read..self.pieces.last().map_or(self.next, |last| last.1);
        if start < stop && !pool.fit(&mut self.ring, needed, kept.clone()) {
            // What is for sure, at least: a segment may be longer than that.
            let _ = pool.fit(&mut self.ring, needed.min(4096), kept);
            stop = stop.min(self.read + self.ring.capacity() as u64);
            self.limit = (self.ring.capacity() as u64).clamp(LIMIT_MIN.min(self.limit), self.limit);
        }
        let taken = if start < stop {
            if at < self.next {
                self.twice = Some((at, self.next));
            }
            let piece = text.cut((start - at) as usize, (stop - at) as usize);
            self.place(start, stop, piece)
        } else {
            self.came_twice(at, text.len());
            if fin && text.is_empty() && end == self.next {
                Taken::InOrder
            } else {
                Taken::OutOfOrder
            }
        };
        if self.fin_at == Some(self.next) {
            self.is_over = true;
        }
        taken
    }

    fn place(&mut self, start: u64, stop: u64, text: Payload<'_>) -> Taken {
        if start == self.next && self.pieces.is_empty() {
            self.ring.put(start, text);
            self.next = stop;
            return Taken::InOrder;
        }
        // Pieces that the new one touches become one with it.
        let first = self.pieces.partition_point(|piece| piece.1 < start);
        let behind = self.pieces.partition_point(|piece| piece.0 <= stop);
        let mut whole = (start, stop);
        if let Some(touched) = self.pieces.get(first..behind)
            && let (Some(left), Some(right)) = (touched.first(), touched.last())
        {
            if left.0 <= start && left.1 >= stop {
                self.twice = Some((start, stop));
            }
            whole = (start.min(left.0), stop.max(right.1));
        }
        if start == self.next {
            self.ring.put(start, text);
            self.next = whole.1;
            self.pieces.drain(..behind);
            return Taken::OutOfOrder;
        }
        if first == behind && self.pieces.len() >= PIECES_MAX {
            return Taken::OutOfOrder;
        }
        self.ring.put(start, text);
        self.pieces.splice(first..behind, [whole]);
        let old = self.recent.iter().position(|at| *at == whole.0);
        self.recent[..=old.unwrap_or(BLOCKS_MAX - 1)].rotate_right(1);
        self.recent[0] = whole.0;
        Taken::OutOfOrder
    }

    /// Whether a SACK option has to go with an acknowledgement.
    pub(super) fn has_blocks(&self) -> bool {
        !self.pieces.is_empty() || self.twice.is_some()
    }

    /// What to tell of pieces beyond holes: what came twice, then what has changed last.
    pub(super) fn blocks(&mut self, blocks: &mut [(u32, u32)]) -> usize {
        let mut count = 0;
        let mut told = |blocks: &mut [(u32, u32)], piece: Piece| {
            let block = (piece.0 as u32, piece.1 as u32);
            if count < blocks.len() && !blocks[..count].contains(&block) {
                blocks[count] = block;
                count += 1;
            }
            count
        };
        let mut len = 0;
        if let Some(piece) = self.twice.take() {
            len = told(blocks, piece);
        }
        for at in self.recent {
            let found = self.pieces.partition_point(|piece| piece.1 <= at);
            if let Some(piece) = self.pieces.get(found).filter(|piece| piece.0 <= at) {
                len = told(blocks, *piece);
            }
        }
        len
    }

    /// The reader is done with so many bytes.
    pub(super) fn consume(&mut self, len: usize, pool: &mut Pool) {
        self.read += len as u64;
        self.consumed += len as u64;
        if self.consumed >= self.limit && self.unread() as u64 <= self.limit / 2 {
            self.consumed -= self.limit;
            self.limit = (2 * self.limit).min(self.limit_max);
        }
        if self.read == self.next && self.pieces.is_empty() {
            pool.trim(&mut self.ring);
        }
    }

    #[cfg(test)]
    pub(super) fn piece_count(&self) -> usize {
        self.pieces.len()
    }
}
