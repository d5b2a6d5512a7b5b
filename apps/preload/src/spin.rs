//! The spin before a sleep. It pays only if the peer answers from another CPU within what a
//! wake-up costs. Not at all if the peer was last seen on this CPU; less and less after
//! spins that did not pay; again now and then, to see whether times have changed.

use crate::config;
use crate::state::Conn;
use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Spins in a row that did not pay before spinning is given up.
const SPIN_FAILURES_MAX: u32 = 8;
/// One spin in so many is tried although spinning is given up.
const SPIN_RETRY: u32 = 32;

static SPIN_FAILURES: AtomicU32 = AtomicU32::new(0);
static SPIN_SKIPPED: AtomicU32 = AtomicU32::new(0);
static START_TICKS: AtomicU64 = AtomicU64::new(0);
static START_NS: AtomicU64 = AtomicU64::new(0);

/// Notes the time, so that ticks can be turned into microseconds later.
pub fn start_clock() {
    START_TICKS.store(sys::ticks(), Ordering::Relaxed);
    START_NS.store(sys::now_ns(), Ordering::Relaxed);
}

/// How many ticks a microsecond has.
pub fn ticks_per_us() -> u64 {
    let ticks = sys::ticks() - START_TICKS.load(Ordering::Relaxed);
    // Before a millisecond has passed the quotient is rough; any modern rate will do.
    if ticks < 10_000_000 {
        return 2500;
    }
    static RATE: AtomicU64 = AtomicU64::new(0);
    match RATE.load(Ordering::Relaxed) {
        0 => {
            let elapsed_ns = (sys::now_ns() - START_NS.load(Ordering::Relaxed)).max(1);
            let rate = (ticks as u128 * 1000 / elapsed_ns as u128) as u64;
            RATE.store(rate.max(100), Ordering::Relaxed);
            rate.max(100)
        }
        rate => rate,
    }
}

/// Looks again and again, for as long as that is likely to be cheaper than a
/// sleep. `peer_cpu` is where the peer that matters was last seen.
pub fn spin(peer_cpu: u32, mut ready: impl FnMut() -> bool) -> bool {
    let limit_us = u64::from(config::spin_us());
    if limit_us == 0 || peer_cpu == sys::current_cpu() && peer_cpu != u32::MAX {
        return false;
    }
    let failures = SPIN_FAILURES.load(Ordering::Relaxed);
    if failures >= SPIN_FAILURES_MAX
        && !SPIN_SKIPPED
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(SPIN_RETRY)
    {
        return false;
    }
    let end = sys::ticks() + limit_us * ticks_per_us();
    loop {
        for _ in 0..8 {
            if ready() {
                if failures != 0 {
                    SPIN_FAILURES.store(failures.min(SPIN_FAILURES_MAX) / 2, Ordering::Relaxed);
                }
                return true;
            }
            core::hint::spin_loop();
        }
        if sys::ticks() >= end {
            SPIN_FAILURES.store(failures.saturating_add(1), Ordering::Relaxed);
            return false;
        }
    }
}

/// Publishes on which CPU this side runs, if that has changed.
#[inline]
pub fn note_cpu(conn: &Conn) {
    let cpu = sys::current_cpu();
    let shown = &conn.own().wait.cpu;
    if shown.load(Ordering::Relaxed) != cpu {
        shown.store(cpu, Ordering::Relaxed);
    }
}
