//! How long a call may be held up for bytes that were taken back from a ring.
//!
//! They lie in front of a FIN, or of another program, and the kernel takes them as fast as
//! the far end reads. TCP's close would not wait, for its queue outlives the process; ours
//! does not. So an honest reader, however slow it seems, is to get all of it, and a hostile one
//! that takes a byte now and then is not to hold the caller for ever:
//! * who takes nothing at all for the call's limit is waited for no longer;
//! * nor is who has not taken everything [`SLOW_NS_MAX`] after the limit: a minute in all, in
//!   which a full ring of 3 MB goes at 52 KB/s, on top of what the kernel's buffers hold.

/// What a reader that takes something has beyond the limit.
const SLOW_NS_MAX: u64 = 50_000_000_000;

/// One wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    limit_ns: u64,
    /// When something was taken last, ...
    since_ns: u64,
    /// ... and what was left then.
    left_bytes: u64,
    end_ns: u64,
}

impl Wait {
    /// Begins at `now_ns`, with a limit that ends at `limit_at_ns`, or `least_ns` from now,
    /// because others have used it up.
    pub fn begin(now_ns: u64, limit_at_ns: u64, least_ns: u64) -> Self {
        Self {
            limit_ns: limit_at_ns.saturating_sub(now_ns).max(least_ns),
            since_ns: now_ns,
            left_bytes: u64::MAX,
            end_ns: (limit_at_ns + SLOW_NS_MAX).max(now_ns + least_ns),
        }
    }

    /// Whether the peer is to be waited for still, with so much left.
    pub fn goes_on(&mut self, now_ns: u64, left_bytes: u64) -> bool {
        if left_bytes < self.left_bytes {
            (self.since_ns, self.left_bytes) = (now_ns, left_bytes);
        }
        now_ns - self.since_ns < self.limit_ns && now_ns < self.end_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const LEFT: u64 = 3 << 20;

    /// Seconds for which a peer is waited for that takes `bytes` every `every` seconds, and
    /// what it has not taken.
    fn waited(bytes: u64, every: u64) -> (u64, u64) {
        let mut wait = Wait::begin(5 * S, 15 * S, S / 5);
        let mut left = LEFT;
        for second in 0.. {
            if second % every == 0 {
                left = left.saturating_sub(bytes);
            }
            if left == 0 || !wait.goes_on((5 + second) * S, left) {
                return (second, left);
            }
        }
        unreachable!("seconds do not end")
    }

    #[test]
    fn a_trickle_is_not_waited_for_without_end() {
        let (seconds, left) = waited(1, 9);
        assert!(left != 0 && seconds <= 60, "{seconds} s, {left} left");
    }

    #[test]
    fn who_takes_nothing_has_the_limit() {
        let mut wait = Wait::begin(0, 10 * S, S / 5);
        assert!(wait.goes_on(0, LEFT));
        assert!(wait.goes_on(10 * S - 1, LEFT));
        assert!(!wait.goes_on(10 * S, LEFT));
    }

    #[test]
    fn a_slow_honest_reader_gets_all() {
        let (seconds, left) = waited(64 * 1024, 1);
        assert_eq!(left, 0, "after {seconds} s");
        assert!(seconds > 40);
        assert_eq!(waited(9 * 64 * 1024, 9).1, 0, "in gulps");
    }

    /// The peers of one exec share its limit.
    #[test]
    fn many_trickles_cost_little_more_than_one() {
        let mut now = 0;
        for _ in 0..100 {
            let mut wait = Wait::begin(now, 10 * S, S / 5);
            let mut left = LEFT;
            while wait.goes_on(now, left) {
                now += S / 10;
                left -= 1;
            }
        }
        assert!(now <= 100 * S, "{} s", now / S);
    }
}
