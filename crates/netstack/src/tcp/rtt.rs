//! Round-trip times and the retransmission timeout (RFC 6298, with Linux's bounds: from 200 ms
//! above the round trip to two minutes).

use crate::{Micros, SECOND_US};

const RTO_FIRST_US: Micros = SECOND_US;
const RTO_VARIANCE_MIN_US: Micros = 200_000;
const RTO_MAX_US: Micros = 120 * SECOND_US;
/// How long the least round trip counts, after which the way may be another one.
const MIN_FOR_US: Micros = 300 * SECOND_US;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rtt {
    /// Smoothed, zero before the first sample; and how much it varies.
    pub smooth_us: Micros,
    pub variance_us: Micros,
    /// The least of the last minutes, and when it was seen.
    pub min_us: Micros,
    min_at: Micros,
    backoff: u32,
}

impl Rtt {
    pub(super) fn sample(&mut self, us: Micros, now: Micros) {
        let us = us.max(1);
        if self.smooth_us == 0 {
            self.smooth_us = us;
            self.variance_us = us / 2;
        } else {
            self.variance_us = (3 * self.variance_us + self.smooth_us.abs_diff(us)) / 4;
            self.smooth_us = ((7 * self.smooth_us + us) / 8).max(1);
        }
        if self.min_us == 0 || us <= self.min_us || now.saturating_sub(self.min_at) > MIN_FOR_US {
            self.min_us = us;
            self.min_at = now;
        }
    }

    pub(super) fn timeout_us(&self) -> Micros {
        let base = match self.smooth_us {
            0 => RTO_FIRST_US,
            smooth => smooth + (4 * self.variance_us).max(RTO_VARIANCE_MIN_US),
        };
        (base << self.backoff).min(RTO_MAX_US)
    }

    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(10);
    }

    pub(super) fn end_backoff(&mut self) {
        self.backoff = 0;
    }
}
