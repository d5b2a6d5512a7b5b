//! How long a run takes. Before it begins, the estimate of each of its parts is known; as
//! it goes on, a round during which the CPUs moved is played again only while the run is
//! not late by more than its slack. So a run ends in time also on a machine that moves
//! its CPUs all the while; such rows then have fewer rounds, and say so.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub struct Pace {
    start: Instant,
    planned: Cell<Duration>,
    slack: Duration,
}

impl Pace {
    /// A run that may be late by so much.
    pub fn with_slack(slack: Duration) -> Pace {
        Pace {
            start: Instant::now(),
            planned: Cell::default(),
            slack,
        }
    }

    /// A run that may take as long as it wants.
    pub fn unbounded() -> Pace {
        Pace::with_slack(Duration::MAX)
    }

    /// A part begins that should take so long.
    pub fn begin(&self, estimate: Duration) {
        self.planned.set(self.planned.get() + estimate);
    }

    /// Whether there is time for more than was planned.
    pub fn may_repeat(&self) -> bool {
        self.start.elapsed() < self.planned.get().saturating_add(self.slack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_run_repeats_nothing() {
        let pace = Pace::with_slack(Duration::ZERO);
        assert!(!pace.may_repeat(), "nothing is planned and time goes on");
        pace.begin(Duration::from_secs(3600));
        assert!(pace.may_repeat());
        assert!(Pace::unbounded().may_repeat());
    }
}
