//! What an end remembers of its connection besides the endpoint.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

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

/// In [`State::shown`], above the poll bits: counts what the kernel has shown by edges, which it does
/// not show again.
const EDGE_COUNT: u32 = !(EDGE_ONE - 1);
/// One of them.
const EDGE_ONE: u32 = 1 << 16;

/// See the module. Zeros are a new connection.
#[repr(C)]
#[derive(Debug, Default)]
pub struct State {
    /// Bits of [`attention`]: something besides data has to be looked at.
    pub attention: AtomicU32,
    /// Poll bits that the kernel has shown while there is a channel, and a count ([`EDGE_COUNT`]).
    /// A bit may be stale: the kernel is asked before bytes depend on one.
    shown: AtomicU32,
    /// A receive of the program was seen: its reads come by the library.
    pub reads: AtomicBool,
    /// The program has shut its receiving half.
    pub receive_shut: AtomicBool,
    /// The program has shut its sending half, and the kernel hears of it behind what was taken back from the ring. Changed with the
    /// lock of the sending half.
    pub end_due: AtomicBool,
    /// The process at the far end is gone (its socket may live on in another one).
    pub peer_gone: AtomicBool,
    /// The program was told of a reset that the kernel does not know of.
    pub reset_told: AtomicBool,
    /// Bytes that were taken back from the ring have been waited for.
    pub awaited: AtomicBool,
    /// Rises with each edge that the kernel shows.
    pub edges: AtomicU32,
    /// Reads in a row that found the ring empty without asking the kernel.
    pub empty_reads: AtomicU32,
    /// Receives that have got something from the ring, modulo 2^32; of those of several threads at once some are not counted.
    pub takes: AtomicU32,
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
    /// For how long in a row the watchdog has believed the peer.
    pub excused_ns: AtomicU64,
    /// An error of the kernel's socket that sending on from the ring has met, until the
    /// program is told.
    pub error: AtomicU32,
    /// SO_RCVLOWAT: fewer bytes in the ring are nothing to read. 0 and 1 are the same.
    pub low_bytes: AtomicU32,
    /// What of the peer's ring was published when the kernel was last found to have no bytes.
    pub calm: AtomicU64,
    /// Loans of ring memory that are out ([`crate::loan`]): the channel is not given up meanwhile.
    pub loans: AtomicU32,
    /// Where the sending ring's loan lies, which alone is sent; 0: there is none.
    pub reserved: AtomicUsize,
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
    /// What the kernel has shown: poll bits, and the count of edges above them, for [`State::forget`].
    /// What this end did to the connection before a bit was shown is seen with the bit.
    #[inline(always)]
    pub fn shown(&self) -> u32 {
        self.shown.load(Ordering::Acquire)
    }

    /// The kernel shows these poll bits. What was known before.
    pub fn note(&self, bits: u32) -> u32 {
        self.shown.fetch_or(bits, Ordering::AcqRel)
    }

    /// As [`State::note`], by an edge.
    pub fn note_edge(&self, bits: u32) -> u32 {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let shown = |seen: u32| Some(seen.wrapping_add(EDGE_ONE) | bits);
        let update = self.shown.fetch_update(set, fetch, shown);
        update.unwrap_or_else(|seen| seen)
    }

    /// The kernel was asked after `seen` had been shown, and does not show these bits
    /// (any more). What was shown meanwhile stays: it may be newer than the answer.
    pub fn forget(&self, seen: u32, bits: u32) {
        if seen & bits != 0 {
            let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = self.shown.compare_exchange(seen, seen & !bits, set, fetch);
        }
    }

    /// Another connection begins: what was seen of the one before is not true of it.
    pub fn forget_all(&self) {
        self.shown.store(0, Ordering::Relaxed);
        self.reads.store(false, Ordering::Relaxed);
        self.receive_shut.store(false, Ordering::Relaxed);
        self.end_due.store(false, Ordering::Relaxed);
        self.forget_peer();
    }

    /// The same of another channel.
    pub(crate) fn forget_peer(&self) {
        for flag in [&self.peer_gone, &self.reset_told, &self.awaited] {
            flag.store(false, Ordering::Relaxed);
        }
    }

    /// Whether nothing is known of the connection but that bytes come and go.
    pub fn is_plain(&self) -> bool {
        let told = [
            &self.receive_shut,
            &self.peer_gone,
            &self.reset_told,
            &self.awaited,
        ];
        self.shown() & !EDGE_COUNT == 0 && told.iter().all(|flag| !flag.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: u32 = libc::POLLIN as u32;

    #[test]
    fn an_edge_outlives_an_older_answer() {
        let state = State::default();
        state.note_edge(IN);
        let seen = state.shown();
        // Another thread takes an edge while this one waits for the kernel's answer.
        assert_eq!(state.note_edge(IN) & IN, IN);
        state.forget(seen, IN);
        assert_eq!(state.shown() & IN, IN);
        let seen = state.shown();
        state.forget(seen, IN);
        assert_eq!(state.shown() & IN, 0);
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
    fn the_count_of_edges_disturbs_no_bit() {
        let state = State::default();
        state.note(libc::POLLRDHUP as u32);
        for _ in 0..100_000 {
            state.note_edge(IN);
        }
        assert_eq!(state.shown() & !EDGE_COUNT, libc::POLLRDHUP as u32 | IN);
        assert!(!state.is_plain());
        state.forget_all();
        state.note_edge(0);
        assert!(state.is_plain());
    }
}
