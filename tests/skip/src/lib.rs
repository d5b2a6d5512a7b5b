//! A test that cannot be played here is no test that passed: `./x test` counts and lists
//! such tests, and where it has to hold everything (`CI=true`, or `--all`) it fails for each
//! that contrib/skips.txt does not have.
//!
//! The test harness keeps what a test prints to itself, unless the test fails. So the line
//! goes past it, to the standard output of the process.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::Write;

/// What the line begins with; the name of the test and the reason follow.
pub const MARK: &str = "skipped: ";

/// Says that the test that runs in this thread is not played, and why.
pub fn skipped(reason: impl Display) {
    let thread = std::thread::current();
    let line = format!("\n{MARK}{}: {reason}\n", thread.name().unwrap_or("main"));
    // A reader that is gone does not count.
    let _ = std::io::stdout().write_all(line.as_bytes());
}
