//! One suite of small programs over plain POSIX sockets, for every backend.
//!
//! A program of `programs/` holds cases of two roles (`programs/try.h`). Each is played
//! on kernel TCP, which is the oracle, and on the fast path. What the roles saw (return
//! values, errno, bytes, event masks, order, signals) must be the same text; that the
//! bytes went through rings, the roles assert themselves, by the kernel's own count of
//! bytes, and the broker's count stands in the table. Programs whose names begin with `udp_` are about
//! datagrams (`programs/udp.h`), whose oracle is kernel UDP; no ring carries these.
//!
//! ```text
//!   suite::run ── Bed::play(case) ─┬─ fordway run --here --path kernel -- stream NAME ─┐ same
//!                                  └─ fordway run --here               -- stream NAME ─┘ text
//! ```
//!
//! Everything runs in our own namespaces over loopback, with a broker of its own; no
//! privilege is needed. Or the roles lie in two domains (root) and meet over IPv4 or IPv6 ([`Between`]):
//! some programs in `cargo test`, all by `./x conformance --between`. One bed in a process (the lab of a process is one).
#![forbid(unsafe_code)]

pub mod suite;

use crate::suite::{Case, Played};
use anyhow::{Context, Result, bail, ensure};
use fordway_lab::{Lab, Output, PathChoice, Place, Program, Spawn, Stdin};
use fordwayd::admin::{Connection, Reply, Request};
use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Longest that one scenario may take; the roles' own limit is shorter.
const LIMIT: Duration = Duration::from_secs(90);

/// Longest that anything may take that is sure to come, on a busy machine too.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Runs of a case on kernel TCP, after one that differs from the fast path.
const ORACLE_RUNS_MAX: usize = 10;

/// A lab, and what was found in it so far.
#[derive(Debug)]
pub struct Bed {
    /// The lab.
    pub lab: Lab,
    failures: String,
    /// Where the roles are, and meet, if not here (`programs/try.c`).
    places: Vec<(String, String)>,
    /// The other side is not the fast path, but a stack of the program's own.
    is_stack: bool,
    /// Cases that are known to differ, and those that may.
    known: suite::Known,
}

/// The domain of a stack's programs.
const STACK: &str = "own";
const STACK_IP: [u8; 4] = [10, 77, 0, 21];

/// Over what the roles of two domains meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// IPv4.
    Four,
    /// IPv6.
    Six,
}

impl Bed {
    /// With a broker of its own.
    pub fn start() -> Result<Bed> {
        Ok(Bed {
            lab: Lab::start()?,
            failures: String::new(),
            places: Vec::new(),
            is_stack: false,
            known: suite::Known::default(),
        })
    }

    /// With a domain that has a stack of its own, which serves both roles; they meet over its loopback.
    /// `None`, with a line that says why, where there cannot be one.
    pub fn with_stack() -> Result<Option<Bed>> {
        if !rustix::process::getuid().is_root() {
            fordway_test_skip::skipped("conformance of a stack needs root");
            return Ok(None);
        }
        let mut bed = Bed::start()?;
        bed.is_stack = true;
        bed.known = suite::Known::of_stacks();
        Ok(Some(bed))
    }

    /// With a domain for each role. `None`, with a line that says why, where there cannot be one.
    pub fn between(family: Between) -> Result<Option<Bed>> {
        if !rustix::process::getuid().is_root() {
            fordway_test_skip::skipped("conformance between domains needs root");
            return Ok(None);
        }
        let mut bed = Bed::start()?;
        for role in ["A", "B"] {
            let request = Request::DomainAdd {
                name: format!("role-{}", role.to_lowercase()),
                ip: None,
                publish: Vec::new(),
            };
            let Reply::Domain(domain) = bed.lab.ask(&request)? else {
                bail!("no domain for role {role}");
            };
            let address = match family {
                Between::Four => domain.ip.map(IpAddr::V4),
                Between::Six => domain.ip6.map(IpAddr::V6),
            };
            let Some(address) = address else {
                fordway_test_skip::skipped("conformance over IPv6: the kernel has it off");
                bed.finish()?;
                return Ok(None);
            };
            let netns = domain.netns_path.context("no namespace")?;
            bed.places
                .push((format!("TRY_{role}"), address.to_string()));
            bed.places.push((format!("TRY_NETNS_{role}"), netns));
        }
        Ok(Some(bed))
    }

    /// The cases of a program that can be played here.
    pub(crate) fn cases(&self, program: &str) -> Result<Vec<Case>> {
        let mut cases = suite::cases(program)?;
        cases.retain(|case| self.places.is_empty() || case.may_be_far());
        Ok(cases)
    }

    /// A compiled program of `programs/`.
    pub fn program(name: &str) -> PathBuf {
        PathBuf::from(env!("OUT_DIR")).join(name)
    }

    /// One scenario on one path.
    pub fn spawn(&self, name: &str, scenario: &str, path: PathChoice) -> Result<Program> {
        let program = Bed::program(name);
        let mut spawn = Spawn::new([program.to_string_lossy().as_ref(), scenario])
            .env("FORDWAY_OFFER_AFTER", self.offer_after())
            .stdin(Stdin::Null)
            .time_limit(LIMIT);
        // Under a stack, no role can see by the kernel's count which way its bytes go.
        if path == PathChoice::Kernel || self.is_stack {
            spawn = spawn.env("TRY_KERNEL", "1");
        }
        if suite::is_without_rings(name, scenario) {
            spawn = spawn.env("FORDWAY_DATAGRAMS", "0");
        }
        for (name, value) in &self.places {
            spawn = spawn.env(name, value);
        }
        match self.is_stack && path != PathChoice::Kernel {
            true => {
                let place = Place::domain(STACK, STACK_IP);
                self.lab.spawn(&place, PathChoice::Stack, &spawn)
            }
            false => self.lab.spawn(&Place::Here, path, &spawn),
        }
    }

    /// Bytes before a program offers rings. Under a stack no role sees when it has them, and they change what is seen: so it has none.
    fn offer_after(&self) -> &'static str {
        if self.is_stack { "1000000000" } else { "0" }
    }

    /// Plays one case on every backend at once: on the oracle, and on the fast path.
    pub fn play(&mut self, case: &Case) -> Result<Played> {
        let before = self.lab.ring_bytes()?;
        let oracle = self.spawn(&case.program, &case.name, PathChoice::Kernel)?;
        let fast = self.spawn(&case.program, &case.name, PathChoice::Auto)?;
        let (mut oracle, fast) = (oracle.finish()?, fast.finish()?);
        // Linux does not tell the same each time, either: of a FIN and the state behind it an
        // edge-triggered wait is told once or, seldom, twice. What it tells in any of some runs, holds. A case that is known to differ is
        // worth one run only.
        let label = case.to_string();
        let is_known = self.known.differs(&label) || self.known.may_differ(&label);
        for _ in 0..ORACLE_RUNS_MAX {
            if seen(&oracle) == seen(&fast) || !is_good(&fast) || is_known {
                break;
            }
            oracle = self
                .spawn(&case.program, &case.name, PathChoice::Kernel)?
                .finish()?;
        }
        let same = seen(&oracle) == seen(&fast) && is_good(&oracle) && is_good(&fast);
        let as_known = match (self.known.differs(&label), same) {
            _ if self.known.may_differ(&label) => true,
            (false, false) => self.note(&label, &oracle, &fast),
            (true, true) => {
                let _ = writeln!(self.failures, "== {label}: differs no longer");
                false
            }
            _ => true,
        };
        Ok(Played {
            oracle_is_good: is_good(&oracle),
            same,
            as_known,
            ring_bytes: self.lab.ring_bytes()? - before,
        })
    }

    /// Keeps what differs between two runs of `what`. True if nothing does.
    pub fn note(&mut self, what: &str, oracle: &Output, fast: &Output) -> bool {
        let same = seen(oracle) == seen(fast) && is_good(oracle) && is_good(fast);
        if !same {
            // First what matters: reports of failures are cut.
            let difference = first_difference(&seen(oracle), &seen(fast));
            let _ = writeln!(
                self.failures,
                "== {what}\n{difference}{}{}\n-- kernel path\n{}\n-- fast path\n{}",
                oracle.errors(),
                fast.errors(),
                oracle.text(),
                fast.text()
            );
        }
        same
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

/// The first line that only one of two runs has, as text.
fn first_difference(oracle: &str, fast: &str) -> String {
    let (mut by_kernel, mut by_ring) = (oracle.lines(), fast.lines());
    loop {
        match (by_kernel.next(), by_ring.next()) {
            (None, None) => return String::new(),
            (kernel, ring) if kernel == ring => {}
            (kernel, ring) => {
                let [kernel, ring] = [kernel, ring].map(|line| line.unwrap_or("nothing more"));
                return format!("kernel path: {kernel}\nfast path: {ring}\n");
            }
        }
    }
}

/// Whether the roles ended as they should; what they saw is another matter.
fn is_good(output: &Output) -> bool {
    let failed = |line: &str| line.starts_with("A: status") || line.starts_with("B: status");
    output.status.success() && !output.text().lines().any(failed)
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
        Self::start_on(bed, scenario, PathChoice::Auto)
    }

    /// The same with programs that were started with this choice.
    pub fn start_on(bed: &Bed, scenario: &str, path: PathChoice) -> Result<Steady> {
        let program = Bed::program("steady");
        let spawn = Spawn::new([program.to_string_lossy().as_ref(), scenario])
            .env("FORDWAY_OFFER_AFTER", "0")
            .stdin(Stdin::Pipe)
            .time_limit(LIMIT);
        let steady = Steady {
            program: bed.lab.spawn(&Place::Here, path, &spawn)?,
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
        self.lab.wait_until(PATIENCE, what, || {
            let own = self.lab.connections()?;
            let own: Vec<_> = own.into_iter().filter(|end| end.pid.is_some()).collect();
            Ok(holds(&own))
        })
    }

    /// Waits until more bytes have gone through rings.
    pub fn wait_for_ring_bytes(&self) -> Result<()> {
        self.wait_for_more("ring bytes", |end| end.ring_bytes_tx)
    }

    /// Waits until more bytes have gone, whichever way.
    pub fn wait_for_bytes(&self) -> Result<()> {
        self.wait_for_more("bytes", |end| end.ring_bytes_tx + end.kernel_bytes_tx)
    }

    fn wait_for_more(&self, what: &str, count: impl Fn(&Connection) -> u64) -> Result<()> {
        let total = || -> Result<u64> {
            let ends = self.lab.connections()?;
            Ok(ends.iter().map(&count).sum())
        };
        let before = total()?;
        self.lab
            .wait_until(PATIENCE, &format!("{what} rise"), || Ok(total()? > before))
    }
}
