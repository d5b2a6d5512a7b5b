//! Ctrl-C, SIGTERM and SIGHUP: a flag that every wait of the lab looks at, so
//! that an interrupted run unwinds like any other error and cleans up after
//! itself. The second signal ends the process at once.

use anyhow::{Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Exit status of a run that was interrupted, as a shell reports SIGINT.
pub const EXIT_INTERRUPTED: i32 = 130;

/// Takes the signals over. Children do not get a terminal's Ctrl-C: the lab puts
/// them in process groups of their own.
pub fn install() {
    FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order the first signal only sets the flag.
            let second = signal_hook::flag::register_conditional_shutdown(
                signal,
                EXIT_INTERRUPTED,
                Arc::clone(&flag),
            );
            let first = signal_hook::flag::register(signal, Arc::clone(&flag));
            debug_assert!(first.is_ok() && second.is_ok());
        }
        flag
    });
}

/// Whether a signal has come.
pub fn seen() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// An error once a signal has come.
pub fn check() -> Result<()> {
    if seen() {
        bail!("interrupted");
    }
    Ok(())
}
