//! How far away the peer's CPU is, in time: whether the two share a cache. Nobody tells (a
//! virtual machine's topology may be a fairy tale, and programs move), so it is measured: a
//! look at the peer's index, where that has changed, fetches a line from the peer's caches.
//! That takes some 60 ns within one L3, and 230 ns from another.
//!
//! One look may be late for other reasons, so several agree: each far one adds one to
//! `Conn::far`, each near one takes one away.

use crate::spin;
use crate::state::Conn;
use crate::sys;
use core::sync::atomic::Ordering;

/// From here on a line comes from another L3.
const FAR_NS_MIN: u64 = 150;
/// Looks that are remembered, and how many make a peer a far one.
const LOOKS_MAX: u32 = 8;
const FAR_LOOKS_MIN: u32 = 4;

/// Looks, if the peer has moved since the last time. Only when PAIRED.
#[inline]
pub fn look(conn: &Conn) {
    let producer = conn.producer();
    let begin_ticks = sys::ticks_in_order();
    let head = producer.head_hint();
    let took_ticks = sys::ticks_in_order() - begin_ticks;
    if conn.looked_head.swap(head, Ordering::Relaxed) == head {
        // The line may still be in our own cache.
        return;
    }
    let far = conn.far.load(Ordering::Relaxed);
    let is_far = took_ticks * 1000 > FAR_NS_MIN * spin::ticks_per_us();
    let now = if is_far {
        (far + 1).min(LOOKS_MAX)
    } else {
        far.saturating_sub(1)
    };
    conn.far.store(now, Ordering::Relaxed);
}

/// Whether the peer's CPU shares no cache with ours.
pub fn is_far(conn: &Conn) -> bool {
    conn.far.load(Ordering::Relaxed) >= FAR_LOOKS_MIN
}
