//! How the shim behaves beside the kernel.
//!
//! A program of `programs/` holds scenarios of two roles (`programs/try.h`). Each is
//! played twice: on the kernel path, which is the oracle, and on the fast path. What
//! the roles saw must be the same text; that the bytes went through rings, the roles
//! assert themselves, by the kernel's own count of bytes, and the broker's count is
//! asked at the end.
//!
//! ```text
//!   Bed::start ── compare("stream") ─┬─ fordway run --here --path kernel -- stream NAME ─┐ same
//!                                    └─ fordway run --here               -- stream NAME ─┘ text
//! ```
//!
//! Everything runs in our own namespaces over loopback, with a broker of its own; no
//! privilege is needed. One test at a time (the lab of a process is one).
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use fordway_bench::lab::{Lab, Output, PathChoice, Place, Program, Spawn, Stdin};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Longest that one scenario may take; the roles' own limit is shorter.
const LIMIT: Duration = Duration::from_secs(40);

/// A lab, and what was found in it so far.
#[derive(Debug)]
pub struct Bed {
    /// The lab.
    pub lab: Lab,
    failures: String,
}

impl Bed {
    /// With a broker of its own.
    pub fn start() -> Result<Bed> {
        Ok(Bed {
            lab: Lab::start()?,
            failures: String::new(),
        })
    }

    /// A compiled program of `programs/`.
    pub fn program(name: &str) -> PathBuf {
        PathBuf::from(env!("OUT_DIR")).join(name)
    }

    /// One scenario on one path.
    pub fn spawn(&self, program: &str, scenario: &str, path: PathChoice) -> Result<Program> {
        let program = Bed::program(program);
        let mut spawn = Spawn::new([program.to_string_lossy().as_ref(), scenario])
            .env("FORDWAY_OFFER_AFTER", "0")
            .stdin(Stdin::Null)
            .time_limit(LIMIT);
        if path == PathChoice::Kernel {
            spawn = spawn.env("TRY_KERNEL", "1");
        }
        self.lab.spawn(&Place::Here, path, &spawn)
    }

    /// Plays every scenario of a program on both paths; keeps what differs.
    pub fn compare_all(&mut self, program: &str) -> Result<()> {
        let listing = std::process::Command::new(Bed::program(program)).output()?;
        let names = String::from_utf8(listing.stdout)?;
        ensure!(!names.is_empty(), "{program} lists no scenario");
        let before = self.lab.ring_bytes()?;
        for name in names.lines() {
            self.compare(program, name)?;
        }
        let ring_bytes = self.lab.ring_bytes()? - before;
        ensure!(ring_bytes > 0, "{program}: nothing went through rings");
        Ok(())
    }

    /// Plays one scenario on both paths, at once.
    pub fn compare(&mut self, program: &str, scenario: &str) -> Result<()> {
        let oracle = self.spawn(program, scenario, PathChoice::Kernel)?;
        let fast = self.spawn(program, scenario, PathChoice::Auto)?;
        let (oracle, fast) = (oracle.finish()?, fast.finish()?);
        if seen(&oracle) != seen(&fast) || !is_good(&oracle) || !is_good(&fast) {
            let _ = writeln!(
                self.failures,
                "== {program} {scenario}\n-- kernel path\n{}{}\n-- fast path\n{}{}",
                oracle.text(),
                oracle.errors(),
                fast.text(),
                fast.errors()
            );
        }
        Ok(())
    }

    /// Ends the lab, and the test with all that was found.
    pub fn finish(self) -> Result<()> {
        let forced = self.lab.close();
        ensure!(self.failures.is_empty(), "{}", self.failures);
        ensure!(forced.is_empty(), "left behind: {}", forced.join(", "));
        Ok(())
    }
}

/// What the roles saw: without the lines that name processes, which come in any order.
fn seen(output: &Output) -> String {
    let text = output.text();
    let lines = text.lines().filter(|line| !line.starts_with("holding "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether the roles ended as they should; what they saw is another matter.
fn is_good(output: &Output) -> bool {
    let failed = |line: &str| line.starts_with("A: status") || line.starts_with("B: status");
    output.status.success() && !output.text().lines().any(failed)
}

/// Plays all scenarios of a program.
pub fn compare_all(program: &str) -> Result<()> {
    let mut bed = Bed::start()?;
    bed.compare_all(program).context(program.to_owned())?;
    bed.finish()
}
