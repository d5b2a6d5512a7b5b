//! Whether a blocking call goes on after a signal handler ran.
//!
//! Linux restarts recv and send after a handler that was installed with SA_RESTART
//! (man 7 signal); the shim's sleeps are ppoll, which never restarts, so the shim
//! must know. It sees sigaction and signal (not the rarer ways) and keeps two sets; when handlers of both
//! kinds are installed it cannot know which one ran, and gives EINTR.

use core::sync::atomic::{AtomicU64, Ordering};

static RESTARTING: AtomicU64 = AtomicU64::new(0);
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// A handler was installed or removed.
pub fn changed(signal: i32, handled: bool, restarts: bool) {
    if !(1..=64).contains(&signal) {
        return;
    }
    let bit = 1u64 << (signal - 1);
    RESTARTING.fetch_and(!bit, Ordering::Relaxed);
    INTERRUPTING.fetch_and(!bit, Ordering::Relaxed);
    match (handled, restarts) {
        (true, true) => RESTARTING.fetch_or(bit, Ordering::Relaxed),
        (true, false) => INTERRUPTING.fetch_or(bit, Ordering::Relaxed),
        _ => 0,
    };
}

/// Whether a call that was interrupted goes on.
pub fn restarts() -> bool {
    INTERRUPTING.load(Ordering::Relaxed) == 0
}
