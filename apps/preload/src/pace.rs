//! The pace of a reader that is faster than its writer.
//!
//! Each look at the peer's index takes its line out of the peer's cache, and the peer, which has to fetch it back for
//! its next publication, gets no further than one message a look. Who waits a moment before the first look finds several.
//! That pays a program that reads on and on, message by message, and no other: so a pause is made only if nothing was
//! sent since the last wait, tried seldom, and kept up only while several reads have followed each.

use crate::state::Conn;
use core::sync::atomic::Ordering;

/// One wait in so many tries a pause.
const TRIED: u8 = 32;
/// Reads that have to follow a pause for the next one.
const READS_MIN: u16 = 4;
/// The longest pause, in quarters of a microsecond.
const QUARTERS_MAX: u8 = 8;

/// What the last wait for bytes has left, in one word of the connection: parts of numbers, as a guess may be wrong.
struct Last {
    /// Where the ring's tail was: its lowest bits.
    tail: u32,
    /// How many takes there had been: their lowest bits.
    takes: u16,
    /// Waits without a pause, modulo [`TRIED`].
    waits: u8,
    /// How long it paused, in quarters of a microsecond.
    quarters: u8,
}

impl Last {
    fn of(conn: &Conn) -> Self {
        let word = conn.pace.load(Ordering::Relaxed);
        Self {
            tail: word as u32,
            takes: (word >> 32) as u16,
            waits: (word >> 48) as u8,
            quarters: (word >> 56) as u8,
        }
    }

    fn keep(&self, conn: &Conn) {
        let high =
            u64::from(self.takes) | u64::from(self.waits) << 16 | u64::from(self.quarters) << 24;
        let word = high << 32 | u64::from(self.tail);
        conn.pace.store(word, Ordering::Relaxed);
    }
}

/// How long the wait that was noted last pauses, in quarters of a microsecond.
pub fn quarters(conn: &Conn) -> u32 {
    Last::of(conn).quarters.into()
}

/// Before a wait for bytes: how long it pauses. Only when PAIRED. Threads that read the same connection at once may have
/// a pause too many.
#[inline(always)]
pub fn note(conn: &Conn) {
    let last = Last::of(conn);
    let (tail, takes) = (
        conn.producer().tail() as u32,
        conn.takes.load(Ordering::Relaxed) as u16,
    );
    let reads = takes.wrapping_sub(last.takes);
    let (mut waits, mut quarters) = (last.waits, 0);
    if last.tail == tail {
        quarters = match last.quarters {
            0 => {
                waits = (waits + 1) % TRIED;
                u8::from(reads != 0 && waits == 0)
            }
            quarters if reads >= READS_MIN => (2 * quarters).min(QUARTERS_MAX),
            _ => 0,
        };
    }
    let now = Last {
        tail,
        takes,
        waits,
        quarters,
    };
    now.keep(conn);
}
