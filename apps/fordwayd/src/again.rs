//! What could not be done and is tried again: how long until the next time, and whether that is news.
//!
//! ```text
//!   works ──(failed)──► fails: 1 s, 2 s, 4 s ... 60 s between tries ──(worked)──► works
//! ```
//! Who tries says how it went, and logs it when [`Again::failed`] or [`Again::worked`] says that it went otherwise before.

use std::time::{Duration, Instant};

/// The first pause, and the longest one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Again {
    /// While it fails: when it is tried again, and the pause before that.
    next: Option<(Instant, Duration)>,
}

impl Again {
    /// It could not be done; whether it could be done the last time. A try before its time changes nothing.
    pub(crate) fn failed(&mut self) -> bool {
        if self.is_failing() && !self.is_due() {
            return false;
        }
        let pause = self.next.map(|(_, pause)| (pause * 2).min(PAUSE_MAX));
        let is_news = pause.is_none();
        let pause = pause.unwrap_or(PAUSE_MIN);
        self.next = Some((Instant::now() + pause, pause));
        is_news
    }

    /// It was done; whether it could not be done the last time.
    pub(crate) fn worked(&mut self) -> bool {
        self.next.take().is_some()
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.next.is_some()
    }

    /// Whether it is to be tried now.
    pub(crate) fn is_due(&self) -> bool {
        self.patience_ns() == Some(0)
    }

    /// Until then.
    pub(crate) fn patience_ns(&self) -> Option<u64> {
        let left = self.next?.0.saturating_duration_since(Instant::now());
        Some(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_only_a_change_is_news() {
        let mut again = Again::default();
        assert!(!again.worked() && !again.is_due() && again.patience_ns().is_none());
        let mut pauses = Vec::new();
        for round in 0..10 {
            assert_eq!(again.failed(), round == 0);
            let (_, pause) = again.next.expect("it fails");
            assert!(!again.failed() && again.next.expect("it fails").1 == pause);
            pauses.push(pause.as_secs());
            again.next = Some((Instant::now(), pause));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert!(again.is_failing() && again.is_due());
        assert!(again.worked() && !again.worked());
        assert!(again.failed());
        assert_eq!(again.next.expect("it fails").1, PAUSE_MIN);
    }
}
