//! How much may be in flight: CUBIC (RFC 9438) with ten segments to begin with (RFC 6928), or no
//! limit at all. In bytes and integers; time in milliseconds where it is cubed.

use crate::Micros;
use crate::config::Congestion;

/// What stands for "no limit".
const UNLIMITED: u64 = u64::MAX / 4;
/// Beta: what is left after a loss, in tenths.
const LEFT_TENTHS: u64 = 7;
/// The curve is followed so far from its middle, which keeps its cube in 64 bits.
const CURVE_MS_MAX: u64 = 100_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub bytes: u64,
    /// Below it the window doubles each round trip.
    pub threshold: u64,
    /// No limit: until the first loss, or for ever.
    pub is_unlimited: bool,
    is_for_ever: bool,
    /// The curve's middle: the window before the last loss, and how long after the epoch's start
    /// it is reached.
    middle: u64,
    middle_ms: u64,
    epoch_at: Option<Micros>,
    /// What Reno would have by now.
    reno: u64,
    /// Bytes that were acknowledged and have not yet made the window a byte larger.
    rest: u64,
}

/// To go back to when a loss was none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    bytes: u64,
    threshold: u64,
}

fn initial(mss: u64) -> u64 {
    (10 * mss).min((2 * mss).max(14_600))
}

/// The largest whole number whose cube is not above `value`.
fn cube_root(value: u64) -> u64 {
    let (mut low, mut high) = (0u64, 2_642_246);
    while low + 1 < high {
        let middle = (low + high) / 2;
        if middle * middle * middle <= value {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

impl Window {
    pub(super) fn new(congestion: Congestion) -> Window {
        Window {
            bytes: 0,
            threshold: UNLIMITED,
            is_unlimited: congestion == Congestion::None,
            is_for_ever: congestion == Congestion::None,
            middle: 0,
            middle_ms: 0,
            epoch_at: None,
            reno: 0,
            rest: 0,
        }
    }

    /// The connection stands, and how long its segments are is known.
    pub(super) fn begin(&mut self, mss: u64) {
        self.bytes = initial(mss);
    }

    pub(super) fn limit(&self) -> u64 {
        if self.is_unlimited {
            UNLIMITED
        } else {
            self.bytes
        }
    }

    /// Nothing was sent for so many timeouts: what was known of the way is out of date.
    pub(super) fn idle(&mut self, timeouts: u64, mss: u64) {
        let halved = self.bytes >> timeouts.min(32);
        self.bytes = halved.max(initial(mss).min(self.bytes));
        self.epoch_at = None;
    }

    /// `acked` bytes have arrived while the window was what held us back.
    pub(super) fn grow(&mut self, mut acked: u64, round_trip_us: Micros, mss: u64, now: Micros) {
        if self.bytes < self.threshold {
            let step = acked.min(self.threshold - self.bytes);
            self.bytes += step;
            acked -= step;
        }
        if acked == 0 {
            return;
        }
        let since = *self.epoch_at.get_or_insert_with(|| {
            // In segments: cube root of (middle - window) / 0.4, in seconds.
            let below = self.middle.saturating_sub(self.bytes).min(1 << 30);
            self.middle = self.middle.max(self.bytes);
            self.middle_ms = cube_root(below * (10_000_000_000 / 4) / mss);
            self.reno = self.bytes;
            now
        });
        // Reno with the same beta adds 0.53 segments each round trip, and one beyond the middle.
        let tenths = if self.reno < self.middle { 5 } else { 10 };
        self.reno += (mss * acked * tenths / 10 / self.bytes).max(1);
        let elapsed_ms = (now.saturating_sub(since) + round_trip_us) / 1000;
        let from_middle = elapsed_ms.abs_diff(self.middle_ms).min(CURVE_MS_MAX);
        let off = 4 * from_middle.pow(3) / 10_000_000 * mss / 1000;
        let curve = if elapsed_ms < self.middle_ms {
            self.middle.saturating_sub(off)
        } else {
            self.middle + off
        };
        let target = curve.clamp(self.bytes, self.bytes + self.bytes / 2);
        self.rest += (target - self.bytes) * acked;
        self.bytes = (self.bytes + self.rest / self.bytes).max(self.reno);
        self.rest %= self.bytes;
    }

    /// Something was lost while `in_flight` bytes were on the way.
    pub(super) fn shrink(&mut self, in_flight: u64, mss: u64) -> Before {
        if self.is_unlimited && !self.is_for_ever {
            self.is_unlimited = false;
            self.bytes = in_flight.max(initial(mss));
        }
        let before = Before {
            bytes: self.bytes,
            threshold: self.threshold,
        };
        // Fast convergence: who had less than last time makes room (RFC 9438 section 4.7).
        self.middle = if self.bytes < self.middle {
            self.bytes * (10 + LEFT_TENTHS) / 20
        } else {
            self.bytes
        };
        self.epoch_at = None;
        self.threshold = (self.bytes * LEFT_TENTHS / 10).max(2 * mss);
        self.bytes = self.threshold;
        before
    }

    /// A timeout: begin with one segment.
    pub(super) fn collapse(&mut self, mss: u64) {
        self.bytes = mss;
        self.epoch_at = None;
    }

    /// It was no loss.
    pub(super) fn undo(&mut self, before: Before) {
        self.bytes = self.bytes.max(before.bytes);
        self.threshold = self.threshold.max(before.threshold);
        self.middle = self.middle.max(self.bytes);
        self.epoch_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1460;

    /// The window after so long at a round trip of 100 ms.
    fn after(window: &mut Window, from_ms: u64, to_ms: u64) -> u64 {
        for ms in (from_ms..to_ms).step_by(100) {
            window.grow(window.bytes, 100_000, MSS, ms * 1000);
        }
        window.bytes / MSS
    }

    #[test]
    fn cube_roots_are_right() {
        for value in [0, 1, 7, 8, 26, 27, 1_000_000, u64::MAX] {
            let root = u128::from(cube_root(value));
            assert!(root.pow(3) <= u128::from(value) && (root + 1).pow(3) > u128::from(value));
        }
    }

    #[test]
    fn the_window_doubles_then_falls_and_comes_back_along_the_curve() {
        let mut window = Window::new(Congestion::Cubic);
        window.begin(MSS);
        assert_eq!(window.bytes, 10 * MSS);
        window.grow(10 * MSS, 10_000, MSS, 0);
        assert_eq!(window.bytes, 20 * MSS);
        window.bytes = 1000 * MSS;
        window.shrink(1000 * MSS, MSS);
        assert_eq!((window.bytes, window.threshold), (700 * MSS, 700 * MSS));
        // K = cube root of 300 / 0.4: 9.1 s to the middle, flat around it.
        let near = after(&mut window, 0, 6_000);
        assert!((970..1000).contains(&near), "{near}");
        let middle = after(&mut window, 6_000, 9_000);
        assert!((998..1003).contains(&middle), "{middle}");
        let beyond = after(&mut window, 9_000, 15_000);
        assert!((1050..1130).contains(&beyond), "{beyond}");
    }

    #[test]
    fn no_loss_puts_all_back() {
        let mut window = Window::new(Congestion::Cubic);
        window.begin(MSS);
        window.bytes = 100 * MSS;
        let before = window.shrink(100 * MSS, MSS);
        window.collapse(MSS);
        window.undo(before);
        assert_eq!(window.bytes, 100 * MSS);
        assert_eq!(window.threshold, UNLIMITED);
    }
}
