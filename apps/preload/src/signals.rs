//! Whether a blocking call goes on after a signal handler ran.
//!
//! Linux restarts recv and send after a handler that was installed with SA_RESTART
//! (man 7 signal); the shim's sleeps are ppoll, which never restarts, so the shim
//! must know. It sees every sigaction and keeps two sets. While all handlers are of
//! one kind, that kind decides. While there are both, a sleep of a blocking call
//! keeps all signals pending, sees which one came, and only then lets its handler
//! run ([`ppoll`]); this costs four more system calls, and only such programs.

use crate::sys::{self, sys};
use crate::wait;
use core::sync::atomic::{AtomicU64, Ordering};

static RESTARTING: AtomicU64 = AtomicU64::new(0);
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// The two signals that libc keeps for itself (cancellation, setuid of all threads).
const OF_LIBC: u64 = 0b11 << 31;

/// A handler was installed or removed.
pub fn changed(signal: i32, handled: bool, restarts: bool) {
    let Some(bit) = bit_of(signal) else { return };
    RESTARTING.fetch_and(!bit, Ordering::Relaxed);
    INTERRUPTING.fetch_and(!bit, Ordering::Relaxed);
    match (handled, restarts) {
        (true, true) => RESTARTING.fetch_or(bit, Ordering::Relaxed),
        (true, false) => INTERRUPTING.fetch_or(bit, Ordering::Relaxed),
        _ => 0,
    };
}

/// Only the kind of a handler changes, if there is one (siginterrupt).
pub fn kind_changed(signal: i32, restarts: bool) {
    let Some(bit) = bit_of(signal) else { return };
    let handled = RESTARTING.load(Ordering::Relaxed) | INTERRUPTING.load(Ordering::Relaxed);
    changed(signal, handled & bit != 0, restarts);
}

fn bit_of(signal: i32) -> Option<u64> {
    (1..=64).contains(&signal).then(|| 1u64 << (signal - 1))
}

/// Whether a call that was interrupted goes on.
pub fn restarts() -> bool {
    INTERRUPTING.load(Ordering::Relaxed) == 0
}

/// ppoll for a blocking call. `EINTR` only if the call has to end: with handlers of both
/// kinds, not after one that restarts, unless the call has a time-out (`timed`).
pub fn ppoll(fds: &mut [libc::pollfd], time_ns: Option<u64>, timed: bool) -> sys::Result<usize> {
    let last = fds.len() - 1;
    let ours = &mut fds[..last];
    if restarts() || RESTARTING.load(Ordering::Relaxed) == 0 {
        return wait::ppoll(ours.as_mut_ptr(), last, time_ns, core::ptr::null());
    }
    let mut before = 0u64;
    let all = !OF_LIBC;
    sys!(
        SYS_rt_sigprocmask,
        libc::SIG_SETMASK,
        &raw const all,
        &raw mut before,
        8
    )?;
    let open = all & !before;
    let watch = sys!(
        SYS_signalfd4,
        -1isize,
        &raw const open,
        8,
        libc::SFD_CLOEXEC
    );
    let result = watch.and_then(|watch| {
        fds[last] = libc::pollfd {
            fd: watch as i32,
            events: libc::POLLIN,
            revents: 0,
        };
        let shown = wait::ppoll(fds.as_mut_ptr(), last + 1, time_ns, core::ptr::null());
        let _ = sys!(SYS_close, watch);
        shown
    });
    let mut pending = 0u64;
    let _ = sys!(SYS_rt_sigpending, &raw mut pending, 8);
    let interrupting = INTERRUPTING.load(Ordering::Relaxed);
    let handled = interrupting | RESTARTING.load(Ordering::Relaxed);
    let ends = if timed { handled } else { interrupting };
    // The handlers run here.
    let _ = sys!(
        SYS_rt_sigprocmask,
        libc::SIG_SETMASK,
        &raw const before,
        0,
        8
    );
    if pending & open & ends != 0 {
        return Err(libc::EINTR);
    }
    result.map(|shown| shown - usize::from(fds[last].revents != 0))
}
