//! What an end remembers of its connection besides the endpoint.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bits of [`State::attention`].
pub mod attention {
    /// Inherited over a fork with its channel: must go to the kernel path before use.
    pub const FOREIGN: u32 = 1;
    /// The broker or the watchdog wants the kernel path.
    pub const DOWN: u32 = 2;
    /// The peer broke the protocol: every call fails with ECONNRESET.
    pub const BROKEN: u32 = 8;
    /// Inherited over a fork with its channel, for good: whose endpoint it is may change.
    pub const INHERITED: u32 = 16;
    /// Those that end a wait.
    pub const URGENT: u32 = FOREIGN | DOWN | BROKEN;
}

/// Bits of [`State::hints`] that are not poll's.
pub mod hint {
    /// The program was told of a reset that the kernel does not know of.
    pub const RESET_TOLD: u32 = 1 << 30;
    /// The program has shut its receiving half.
    pub const RECEIVE_SHUT: u32 = 1 << 29;
    /// The process at the far end is gone (its socket may live on in another one).
    pub const PEER_GONE: u32 = 1 << 28;
    /// A receive of the program was seen: its reads come by the library.
    pub const READS: u32 = 1 << 27;
    /// Bytes that were taken back from the ring have been waited for.
    pub const AWAITED: u32 = 1 << 25;
    /// This process is not counted among the holders any more (an exec was about to close it).
    pub const LET_GO: u32 = 1 << 24;
    /// Counts what the kernel has shown by edges, which it does not show again.
    pub const SHOWN: u32 = 0x3ff << 14;
    /// One of them.
    pub(crate) const SHOWN_ONE: u32 = 1 << 14;
}

/// See the module. Zeros are a new connection.
#[repr(C)]
#[derive(Debug, Default)]
pub struct State {
    /// Bits of [`attention`]: something besides data has to be looked at.
    pub attention: AtomicU32,
    /// Poll bits that the kernel has shown while there is a channel, and [`hint`]s.
    pub hints: AtomicU32,
    /// Rises with each edge that the kernel shows.
    pub edges: AtomicU32,
    /// Reads in a row that found the ring empty without asking the kernel.
    pub empty_reads: AtomicU32,
    /// Threads in the kernel that do not look at the ring.
    pub unaware: AtomicU32,
    /// Threads in a kernel send that began before there was a channel.
    pub senders: AtomicU32,
    /// A reason for which it is never offered (again), or 0.
    pub barred: AtomicU32,
    /// A reason for the way back that does not stand, or 0.
    pub passing: AtomicU32,
    /// How often the watchdog moved it to the kernel path.
    pub rescues: AtomicU32,
    /// How many channels it has had. See [`crate::ready::binding`].
    pub channels: AtomicU32,
    /// What the peer had taken when the watchdog looked last.
    pub watched: AtomicU64,
    /// The peer's beat at that time.
    pub watched_beat: AtomicU32,
    /// How often in a row the watchdog has believed the peer.
    pub excuses: AtomicU32,
    /// An error of the kernel's socket that sending on from the ring has met, until the
    /// program is told.
    pub error: AtomicU32,
    /// SO_RCVLOWAT: fewer bytes in the ring are nothing to read. 0 and 1 are the same.
    pub low_bytes: AtomicU32,
    /// What of the peer's ring was published when the kernel was last found to have no bytes.
    pub calm: AtomicU64,
    /// Bytes that former channels have carried out.
    pub sent_by_rings: AtomicU64,
    /// Bytes that former channels have brought.
    pub received_by_rings: AtomicU64,
    /// Of the bytes that rings have carried out.
    pub sent_last: Last,
    /// Of those that they have brought.
    pub received_last: Last,
}

/// When a count was last found to have moved. Nobody notes the time at each send and receive,
/// which would cost as much as a short one: the count is looked at when the program asks.
#[derive(Debug, Default)]
pub struct Last {
    count: AtomicU64,
    found_ns: AtomicU64,
}

impl Last {
    /// For how long the count has stood still at least, if it ever moved: since it was found
    /// to have moved, or not at all if that is found now.
    pub fn quiet_ns(&self, count: u64, now_ns: u64) -> Option<u64> {
        if count == 0 {
            return None;
        }
        if self.count.swap(count, Ordering::Relaxed) != count {
            self.found_ns.store(now_ns, Ordering::Relaxed);
        }
        Some(now_ns.saturating_sub(self.found_ns.load(Ordering::Relaxed)))
    }
}

impl State {
    /// The kernel has shown these poll bits by an edge. What was known before.
    pub fn show(&self, bits: u32) -> u32 {
        let shown = |hints: u32| {
            let count = hints.wrapping_add(hint::SHOWN_ONE) & hint::SHOWN;
            hints & !hint::SHOWN | count | bits
        };
        let update = self
            .hints
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |hints| {
                Some(shown(hints))
            });
        update.unwrap_or_else(|hints| hints)
    }

    /// The kernel was asked after `hints` had been `seen`, and does not show these bits
    /// (any more). What was shown meanwhile stays: it may be newer than the answer.
    pub fn forget(&self, seen: u32, bits: u32) {
        if seen & bits != 0 {
            let _ = self.hints.compare_exchange(
                seen,
                seen & !bits,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: u32 = libc::POLLIN as u32;

    #[test]
    fn an_edge_outlives_an_older_answer() {
        let state = State::default();
        state.show(IN);
        let seen = state.hints.load(Ordering::Relaxed);
        // Another thread takes an edge while this one waits for the kernel's answer.
        assert_eq!(state.show(IN) & IN, IN);
        state.forget(seen, IN);
        assert_eq!(state.hints.load(Ordering::Relaxed) & IN, IN);
        let seen = state.hints.load(Ordering::Relaxed);
        state.forget(seen, IN);
        assert_eq!(state.hints.load(Ordering::Relaxed) & IN, 0);
    }

    #[test]
    fn a_count_is_quiet_since_it_was_found_to_have_moved() {
        let last = Last::default();
        assert_eq!(last.quiet_ns(0, 100), None);
        assert_eq!(last.quiet_ns(5, 200), Some(0));
        assert_eq!(last.quiet_ns(5, 300), Some(100));
        assert_eq!(last.quiet_ns(6, 1000), Some(0));
        assert_eq!(last.quiet_ns(6, 1001), Some(1));
    }

    #[test]
    fn what_is_shown_disturbs_no_other_bit() {
        let state = State::default();
        state
            .hints
            .store(hint::LET_GO | hint::READS | IN, Ordering::Relaxed);
        for _ in 0..5000 {
            state.show(IN);
        }
        let rest = state.hints.load(Ordering::Relaxed) & !hint::SHOWN;
        assert_eq!(rest, hint::LET_GO | hint::READS | IN);
    }
}
