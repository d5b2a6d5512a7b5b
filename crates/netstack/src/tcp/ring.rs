//! Bytes of a stream, kept in a ring that begins without memory and grows with what is put in.
//!
//! A byte lies at its position in the stream modulo the capacity, a power of two, so that a ring
//! has no indices of its own: who uses it knows from where to where it holds something.
//! [`Pool`] bounds all rings together. What a ring may always have is paid for when its
//! connection is made, so that each connection can go on however short memory is.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::payload::Payload;

/// What each ring may hold whatever others hold.
const ALWAYS_BYTES: usize = 4096;
/// Both rings of a connection at least.
pub(super) const CONNECTION_BYTES: usize = 2 * ALWAYS_BYTES;
/// Larger ones give their memory back when they are empty and memory is short.
const KEPT_BYTES: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(super) struct Ring {
    bytes: Vec<u8>,
}

impl Ring {
    pub(super) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Where `len` bytes from `at` lie, as far as they are in one piece.
    fn piece_at(&self, at: u64, len: usize) -> Range<usize> {
        let start = at as usize & self.bytes.len().saturating_sub(1);
        start..start + len.min(self.bytes.len() - start)
    }

    pub(super) fn piece(&self, at: u64, len: usize) -> &[u8] {
        &self.bytes[self.piece_at(at, len)]
    }

    /// All `len` bytes from `at`: those before the ring's end, and those that go on at its beginning.
    pub(super) fn pieces(&self, at: u64, len: usize) -> [&[u8]; 2] {
        let first = self.piece(at, len);
        [first, &self.bytes[..len - first.len()]]
    }

    pub(super) fn piece_mut(&mut self, at: u64, len: usize) -> &mut [u8] {
        let piece = self.piece_at(at, len);
        &mut self.bytes[piece]
    }

    /// Copies in what fits into the capacity, which the caller has seen to.
    pub(super) fn put(&mut self, at: u64, text: Payload<'_>) {
        let (piece, len) = (self.piece_at(at, text.len()), text.len());
        let first = piece.len();
        text.cut(0, first).copy_to(&mut self.bytes[piece]);
        if first < len {
            text.cut(first, len).copy_to(&mut self.bytes[..len - first]);
        }
    }

    pub(super) fn get(&self, at: u64, buffer: &mut [u8]) {
        let piece = self.piece_at(at, buffer.len());
        let (first, second) = buffer.split_at_mut(piece.len());
        first.copy_from_slice(&self.bytes[piece]);
        second.copy_from_slice(&self.bytes[..second.len()]);
    }

    fn resize(&mut self, capacity: usize, kept: Range<u64>) {
        let mut larger = Ring {
            bytes: vec![0; capacity],
        };
        let mut at = kept.start;
        while at < kept.end {
            let piece = self.piece(at, (kept.end - at) as usize);
            larger.put(at, piece.into());
            at += piece.len() as u64;
        }
        *self = larger;
    }
}

/// Memory of all rings.
#[derive(Debug)]
pub(super) struct Pool {
    used: usize,
    max: usize,
}

fn charge(capacity: usize) -> usize {
    capacity.max(ALWAYS_BYTES)
}

impl Pool {
    pub(super) fn new(max: usize) -> Pool {
        Pool { used: 0, max }
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn has_room_for_connection(&self) -> bool {
        self.used + CONNECTION_BYTES <= self.max
    }

    pub(super) fn begin_connection(&mut self) {
        self.used += CONNECTION_BYTES;
    }

    pub(super) fn end_connection(&mut self, rings: [&Ring; 2]) {
        self.used -= rings
            .map(|ring| charge(ring.capacity()))
            .iter()
            .sum::<usize>();
    }

    /// Sees that the ring can hold `needed` bytes. Growth never takes more than half of what is
    /// left, so that something is left for others. False if the ring stays as it is.
    #[must_use]
    pub(super) fn fit(&mut self, ring: &mut Ring, needed: usize, kept: Range<u64>) -> bool {
        if needed <= ring.capacity() {
            return true;
        }
        let wanted = needed.next_power_of_two().max(ALWAYS_BYTES / 2);
        let more = charge(wanted) - charge(ring.capacity());
        if more > (self.max.saturating_sub(self.used)) / 2 {
            return false;
        }
        self.used += more;
        ring.resize(wanted, kept);
        true
    }

    /// An empty ring gives its memory back if it is large and memory is short.
    pub(super) fn trim(&mut self, ring: &mut Ring) {
        if ring.capacity() > KEPT_BYTES && self.used > self.max / 2 {
            self.used -= charge(ring.capacity()) - charge(0);
            *ring = Ring::default();
        }
    }
}
