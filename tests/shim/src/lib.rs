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
use fordwayd::admin::Connection;
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
        self.note(&format!("{program} {scenario}"), &oracle, &fast);
        Ok(())
    }

    /// Keeps what differs between two runs of `what`.
    pub fn note(&mut self, what: &str, oracle: &Output, fast: &Output) {
        if seen(oracle) != seen(fast) || !is_good(oracle) || !is_good(fast) {
            let _ = writeln!(
                self.failures,
                "== {what}\n-- kernel path\n{}{}\n-- fast path\n{}{}",
                oracle.text(),
                oracle.errors(),
                fast.text(),
                fast.errors()
            );
        }
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

/// What `warm` in `try.c` sends at most before a scenario begins.
const WARM_BYTES_MAX: u64 = 2000;

/// Traffic that goes on until it is ended: a scenario of `steady`.
#[derive(Debug)]
pub struct Steady {
    program: Program,
    scenario: String,
}

impl Steady {
    /// Starts it and waits until its connection is on the fast path.
    pub fn start(bed: &Bed, scenario: &str) -> Result<Steady> {
        let program = Bed::program("steady");
        let spawn = Spawn::new([program.to_string_lossy().as_ref(), scenario])
            .env("FORDWAY_OFFER_AFTER", "0")
            .stdin(Stdin::Pipe)
            .time_limit(LIMIT);
        let steady = Steady {
            program: bed.lab.spawn(&Place::Here, PathChoice::Auto, &spawn)?,
            scenario: scenario.to_owned(),
        };
        bed.wait_for("both ends send by the ring", |ends| {
            ends.len() == 2
                && ends
                    .iter()
                    .all(|end| end.path == "fast" && end.ring_bytes_tx > WARM_BYTES_MAX)
        })?;
        Ok(steady)
    }

    /// Ends it; every byte must have come.
    pub fn finish(mut self) -> Result<()> {
        drop(self.program.take_stdin());
        let output = self.program.finish()?;
        let (text, errors) = (output.text(), output.errors());
        ensure!(
            text == "A: all there\nB: all there\n",
            "{}: {text}{errors}",
            self.scenario
        );
        Ok(())
    }
}

impl Bed {
    /// Waits until the connections of this lab's programs are so.
    pub fn wait_for(&self, what: &str, holds: impl Fn(&[Connection]) -> bool) -> Result<()> {
        self.lab.wait_until(Duration::from_secs(10), what, || {
            let own = self.lab.connections()?;
            let own: Vec<_> = own.into_iter().filter(|end| end.pid.is_some()).collect();
            Ok(holds(&own))
        })
    }

    /// Waits until more bytes have gone through rings.
    pub fn wait_for_ring_bytes(&self) -> Result<()> {
        let total = || -> Result<u64> {
            let ends = self.lab.connections()?;
            Ok(ends.iter().map(|end| end.ring_bytes_tx).sum())
        };
        let before = total()?;
        self.lab
            .wait_until(Duration::from_secs(10), "ring bytes rise", || {
                Ok(total()? > before)
            })
    }
}
