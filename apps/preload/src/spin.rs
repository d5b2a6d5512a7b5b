//! The spin before a sleep. It pays only if the peer answers from another CPU within what a
//! wake-up costs. Not at all if the peer was last seen on this CPU ([`aside`] may part them); less and less after
//! spins that did not pay; again now and then, to see whether times have changed. Longer
//! while sleeps end soon after they began: then a peer is at work on our request (redis on
//! 16 pipelines: 40 us), and the sleep would cost both sides more than the rest of the wait.
//! Longest if this thread has just woken its peer, and the like ended soon before: a CPU that
//! halted takes its time (a virtual one 70 us), and would take it once more for the answer.

use crate::state::Conn;
use crate::sys;
use crate::thread;
use crate::{aside, config};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Spins in a row that did not pay before spinning is given up.
const SPIN_FAILURES_MAX: u32 = 8;
/// One spin in so many is tried although spinning is given up.
const SPIN_RETRY: u32 = 32;
/// A long spin is so many ordinary ones.
const LONG: u64 = 3;
/// So many is one for a peer that was woken.
const WAKING: u64 = 12;
/// Bit of `spin_since`: the thread and its peer share a CPU.
const TOGETHER: u64 = 1;
/// Bit of `spin_since`: the thread has rung for its peer.
const RANG: u64 = 2;
/// Short sleeps in a row before long spins are tried, and twice that is the most that counts.
const SHORT_SLEEPS_MIN: u32 = 4;

static SPIN_FAILURES: AtomicU32 = AtomicU32::new(0);
/// Sleeps in a row that ended so soon that a long spin would have spared them; half of them are
/// forgotten with each that did not.
static SHORT_SLEEPS: AtomicU32 = AtomicU32::new(0);
/// The same of sleeps after the peer was woken.
static SHORT_WAKES: AtomicU32 = AtomicU32::new(0);
static SPIN_SKIPPED: AtomicU32 = AtomicU32::new(0);
static START_TICKS: AtomicU64 = AtomicU64::new(0);
static START_NS: AtomicU64 = AtomicU64::new(0);
/// Ticks of a microsecond, once they are measured.
static RATE: AtomicU64 = AtomicU64::new(0);

/// Notes the time, so that ticks can be turned into microseconds later.
pub fn start_clock() {
    START_TICKS.store(sys::ticks(), Ordering::Relaxed);
    START_NS.store(sys::now_ns(), Ordering::Relaxed);
}

/// How many ticks a microsecond has.
#[inline]
pub fn ticks_per_us() -> u64 {
    match RATE.load(Ordering::Relaxed) {
        0 => measure_rate(),
        rate => rate,
    }
}

#[cold]
fn measure_rate() -> u64 {
    let ticks = sys::ticks() - START_TICKS.load(Ordering::Relaxed);
    // Before a millisecond has passed the quotient is rough; any modern rate will do.
    if ticks < 10_000_000 {
        return 2500;
    }
    let elapsed_ns = (sys::now_ns() - START_NS.load(Ordering::Relaxed)).max(1);
    let rate = ((ticks as u128 * 1000 / elapsed_ns as u128) as u64).max(100);
    RATE.store(rate, Ordering::Relaxed);
    rate
}

/// Looks again and again, for as long as that is likely to be cheaper than a
/// sleep. `peer_cpu` is where the peer that matters was last seen. Returns when the clock was last
/// looked at before `ready`, in ticks. After `None` the caller sleeps, and says so when it wakes
/// ([`woke`]).
pub fn spin(peer_cpu: u32, mut ready: impl FnMut() -> bool) -> Option<u64> {
    let limit_us = u64::from(config::spin_us());
    let thread = thread::current();
    let (since, rang) = (&thread.spin_since, thread.rang.load(Ordering::Relaxed) != 0);
    thread.rang.store(0, Ordering::Relaxed);
    if limit_us == 0 {
        since.store(0, Ordering::Relaxed);
        return None;
    }
    if peer_cpu == sys::current_cpu() && peer_cpu != u32::MAX {
        since.store(sys::ticks() | TOGETHER, Ordering::Relaxed);
        return None;
    }
    let begun = sys::ticks() & !(TOGETHER | RANG);
    since.store(begun | if rang { RANG } else { 0 }, Ordering::Relaxed);
    let times = if rang && are_usual(&SHORT_WAKES) {
        WAKING
    } else if are_usual(&SHORT_SLEEPS) {
        LONG
    } else {
        1
    };
    let failures = SPIN_FAILURES.load(Ordering::Relaxed);
    if times == 1
        && failures >= SPIN_FAILURES_MAX
        && !SPIN_SKIPPED
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(SPIN_RETRY)
    {
        return None;
    }
    let end = begun + times * limit_us * ticks_per_us();
    let mut now = begun;
    loop {
        for _ in 0..8 {
            if ready() {
                if failures != 0 {
                    SPIN_FAILURES.store(failures.min(SPIN_FAILURES_MAX) / 2, Ordering::Relaxed);
                }
                return Some(now);
            }
            core::hint::spin_loop();
        }
        now = sys::ticks();
        if now >= end {
            SPIN_FAILURES.store(failures.saturating_add(1), Ordering::Relaxed);
            return None;
        }
    }
}

/// The calling thread has slept, after a spin that was in vain or not made at all.
pub fn woke() {
    let since = thread::current().spin_since.swap(0, Ordering::Relaxed);
    if since == 0 {
        return;
    }
    let waited_ticks = sys::ticks() - since;
    // The wake-up itself took about an ordinary spin's time.
    let limit = |times: u64| (times + 1) * u64::from(config::spin_us()) * ticks_per_us();
    let was_short = waited_ticks <= limit(LONG);
    if since & TOGETHER != 0 {
        return aside::slept_together(was_short);
    }
    count(&SHORT_SLEEPS, was_short);
    if since & RANG != 0 {
        count(&SHORT_WAKES, waited_ticks <= limit(WAKING));
    }
}

fn count(sleeps: &AtomicU32, was_short: bool) {
    let before = sleeps.load(Ordering::Relaxed);
    let after = match was_short {
        true => (before + 1).min(2 * SHORT_SLEEPS_MIN),
        false => before / 2,
    };
    sleeps.store(after, Ordering::Relaxed);
}

fn are_usual(sleeps: &AtomicU32) -> bool {
    sleeps.load(Ordering::Relaxed) >= SHORT_SLEEPS_MIN
}

/// Publishes on which CPU this side runs, if that has changed; before that, it may step aside.
#[inline]
pub fn note_cpu(conn: &Conn) {
    aside::step(conn.peer_cpu());
    let cpu = sys::current_cpu();
    let shown = &conn.own().wait.cpu;
    if shown.load(Ordering::Relaxed) != cpu {
        shown.store(cpu, Ordering::Relaxed);
    }
}
