//! How long peers may hold up a process that does not want to be held up.
//!
//! Two calls on a non-blocking socket wait for the far end, because TCP's would not have
//! to: a close that still has to give bytes to the kernel, and a receive behind an event
//! whose bytes are on their way. A hostile peer lets them wait for nothing, in the middle
//! of the program's event loop, and with connection after connection. So all of a process
//! share one allowance: a burst, and one part in [`SHARE`] of the time.

use core::sync::atomic::{AtomicU64, Ordering};

/// One part in so many of all time may go by waiting.
const SHARE: u64 = 10;
/// What may go at once.
const BURST_NS: u64 = 200_000_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Patience {
    /// When all that was spent is earned again.
    even_at_ns: AtomicU64,
}

impl Patience {
    /// With the whole burst.
    pub const fn new() -> Self {
        Self {
            even_at_ns: AtomicU64::new(0),
        }
    }

    /// Of who never waits: it looks again at its next event.
    pub const fn none() -> Self {
        Self {
            even_at_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// How long a wait that begins now may last.
    pub fn left_ns(&self, now_ns: u64) -> u64 {
        let debt_ns = self.even_at_ns.load(Ordering::Relaxed);
        BURST_NS.saturating_sub(debt_ns.saturating_sub(now_ns) / SHARE)
    }

    /// A wait is over.
    pub fn spent(&self, from_ns: u64, to_ns: u64) {
        let cost_ns = to_ns.saturating_sub(from_ns) * SHARE;
        let add = |even_at: u64| Some(even_at.max(from_ns).saturating_add(cost_ns));
        let _ = self
            .even_at_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_again_and_again_waits_a_tenth_of_the_time() {
        let patience = Patience::new();
        let mut now_ns = 1_000_000_000;
        let mut waited_ns = 0;
        while now_ns < 101_000_000_000 {
            let wait_ns = patience.left_ns(now_ns).min(20_000_000);
            patience.spent(now_ns, now_ns + wait_ns);
            waited_ns += wait_ns;
            now_ns += wait_ns + 1_000_000;
        }
        assert!(waited_ns > 10_000_000_000, "{waited_ns}");
        assert!(waited_ns <= 10_000_000_000 + 2 * BURST_NS, "{waited_ns}");
    }

    #[test]
    fn who_has_none_never_waits() {
        let patience = Patience::none();
        for now_ns in [0, 1 << 40, u64::MAX / 2] {
            patience.spent(now_ns, now_ns + 1_000);
            assert_eq!(patience.left_ns(now_ns), 0);
        }
    }

    #[test]
    fn an_allowance_that_nobody_used_does_not_grow() {
        let patience = Patience::new();
        assert_eq!(patience.left_ns(u64::MAX / 2), BURST_NS);
        patience.spent(1_000, 1_000 + BURST_NS);
        assert_eq!(patience.left_ns(1_000 + BURST_NS), BURST_NS / SHARE);
        assert_eq!(patience.left_ns(100 * BURST_NS), BURST_NS);
    }
}
