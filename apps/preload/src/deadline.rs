//! When a sleep has to end.

use crate::{spin, sys};

/// When a call that may sleep has to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// Never.
    Never,
    /// At this time, in nanoseconds of the monotonic clock.
    At(u64),
}

impl Deadline {
    /// `timeout_ns` from now; `None`: never.
    pub fn after(timeout_ns: Option<u64>) -> Self {
        timeout_ns.map_or(Self::Never, |timeout| {
            Self::At(sys::now_ns().saturating_add(timeout))
        })
    }

    /// `timeout_ns` from when the clock showed `ticks`, not long ago; `None`: never. Nothing is asked
    /// of the kernel before the call has to sleep.
    pub fn after_ticks(ticks: u64, timeout_ns: Option<u64>) -> Self {
        // A deadline may come late, not early.
        let passed_us = sys::ticks().saturating_sub(ticks) / (spin::ticks_per_us() + 1);
        Self::after(timeout_ns.map(|timeout| timeout.saturating_sub(passed_us * 1000)))
    }

    /// Time left, cut to `slice`; `None`: for ever.
    pub fn left_ns(self, slice: Option<u64>) -> Option<u64> {
        match self {
            Self::Never => slice,
            Self::At(at) => {
                let left = at.saturating_sub(sys::now_ns());
                Some(slice.map_or(left, |slice| slice.min(left)))
            }
        }
    }

    /// Whether it has passed.
    pub fn has_passed(self) -> bool {
        match self {
            Self::Never => false,
            Self::At(at) => sys::now_ns() >= at,
        }
    }
}

/// A relative time as the kernel wants it.
pub fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}
