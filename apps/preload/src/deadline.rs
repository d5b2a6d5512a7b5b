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

/// The deadline of a call that began a moment ago, set once it is asked for: a call that need not sleep asks
/// the kernel for no time, and one that sleeps once asks once.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    ticks: u64,
    timeout_ns: Option<u64>,
    deadline: Option<Deadline>,
}

impl Begun {
    /// `timeout_ns` from when the counter showed `ticks`; `None`: never.
    pub fn at(ticks: u64, timeout_ns: Option<u64>) -> Self {
        Self {
            ticks,
            timeout_ns,
            deadline: None,
        }
    }

    /// The deadline.
    pub fn deadline(&mut self) -> Deadline {
        self.deadline.unwrap_or_else(|| self.set().0)
    }

    /// As [`Deadline::left_ns`].
    pub fn left_ns(&mut self, slice: Option<u64>) -> Option<u64> {
        let Some(deadline) = self.deadline else {
            let (_, left) = self.set();
            return match (left, slice) {
                (Some(left), Some(slice)) => Some(left.min(slice)),
                (left, slice) => left.or(slice),
            };
        };
        deadline.left_ns(slice)
    }

    /// Sets it; also what is left of the time.
    fn set(&mut self) -> (Deadline, Option<u64>) {
        // A deadline may come late, not early.
        let passed_us = || sys::ticks().saturating_sub(self.ticks) / (spin::ticks_per_us() + 1);
        let left = |timeout_ns: u64| timeout_ns.saturating_sub(passed_us() * 1000);
        let left = self.timeout_ns.map(left);
        let deadline = Deadline::after(left);
        self.deadline = Some(deadline);
        (deadline, left)
    }
}

/// A relative time as the kernel wants it.
pub fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_is_asked_for_late_is_the_calls_own() {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let begun = |timeout_ns| Begun::at(sys::ticks(), timeout_ns);
        let before_ns = sys::now_ns();
        let mut first = begun(Some(HOUR_NS));
        let left_ns = first.left_ns(None).expect("a time");
        assert!(left_ns > 0 && left_ns <= HOUR_NS);
        // The first answer has set it, and the next ones go by the clock.
        let Deadline::At(at) = first.deadline() else {
            panic!("it is never")
        };
        assert!(at >= before_ns + left_ns && at <= sys::now_ns() + HOUR_NS);
        assert!(first.left_ns(None) <= Some(left_ns));
        assert_eq!(first.left_ns(Some(1000)), Some(1000));
        assert_eq!(begun(Some(HOUR_NS)).left_ns(Some(1000)), Some(1000));
        assert_eq!(begun(Some(0)).left_ns(Some(1000)), Some(0));
        assert_eq!(begun(None).left_ns(Some(1000)), Some(1000));
        assert_eq!(begun(None).left_ns(None), None);
        assert_eq!(begun(None).deadline(), Deadline::Never);
        // What has passed since the call began is over.
        let long_ago = sys::ticks() - 1_000_000 * spin::ticks_per_us();
        let left_ns = Begun::at(long_ago, Some(HOUR_NS)).left_ns(None);
        assert!(left_ns <= Some(HOUR_NS - 990_000_000), "{left_ns:?}");
    }
}
