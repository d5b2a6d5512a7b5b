//! The pace of a reader that is faster than its writer.
//!
//! Each look at the peer's index takes its line out of the peer's cache, and the peer, which has to fetch it back for
//! its next publication, gets no further than one message a look. Who waits a moment before the first look finds several.
//! That pays a program that reads on and on, message by message, and no other: so a pause is made only if nothing was
//! sent since the last wait, tried seldom, and kept up only while several reads have followed each.

use crate::state::Conn;
use core::sync::atomic::Ordering;

/// One wait in so many tries a pause.
const TRIED: u32 = 32;
/// Reads that have to follow a pause for the next one.
const READS_MIN: u32 = 4;
/// The longest pause, in quarters of a microsecond.
const QUARTERS_MAX: u32 = 8;

/// Before a wait for bytes: how long it pauses. Only when PAIRED. Threads that read the same connection at once may have
/// a pause too many.
#[inline(always)]
pub fn note(conn: &Conn) {
    let (takes, tail) = (conn.takes.load(Ordering::Relaxed), conn.producer().tail());
    let reads = takes.wrapping_sub(conn.waited_takes.load(Ordering::Relaxed));
    let has_sent = conn.waited_tail.load(Ordering::Relaxed) != tail;
    conn.waited_takes.store(takes, Ordering::Relaxed);
    if has_sent {
        conn.waited_tail.store(tail, Ordering::Relaxed);
        conn.pause.store(0, Ordering::Relaxed);
        return;
    }
    let quarters = match conn.pause.load(Ordering::Relaxed) {
        0 => {
            let waits = conn.waits.load(Ordering::Relaxed).wrapping_add(1);
            conn.waits.store(waits, Ordering::Relaxed);
            u32::from(reads != 0 && waits.is_multiple_of(TRIED))
        }
        quarters if reads >= READS_MIN => (2 * quarters).min(QUARTERS_MAX),
        _ => 0,
    };
    conn.pause.store(quarters, Ordering::Relaxed);
}
