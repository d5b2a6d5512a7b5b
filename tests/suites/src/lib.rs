//! The test suites of others, whole, over the fast path and without Fordway.
//!
//! ```text
//!   table ── play(suite) ─┬─ python3 scripts/run_tests.py ...                          ─┐ same verdict
//!                         └─ fordway run --here -- python3 scripts/run_tests.py ...    ─┘ for each name
//!              both at once, over loopback; the broker's counts are read before and after
//! ```
//!
//! A suite is what a Debian package ships: CPython's tests of sockets, of the waits
//! and of what is built on them, and those of Twisted and Tornado. Their clients and
//! servers live in one process, or in one and its children. Every verdict must be the
//! same under the same name. A test that differs is run again without Fordway,
//! [`RUNS_AGAIN`] times: if it varies by itself, it is listed as unsteady and counts
//! for nothing; else it differs.
//!
//! # Which connections should have used rings
//! The broker counts (`fordway_registry::Counts`): *paired*, TCP with the library at both
//! ends, both of which offered; *eligible*, those of them with enough calls at both ends
//! for the change of path, or with bytes in rings; *carried*, those with bytes in rings.
//! At least [`SHARE_MIN`] of the eligible ones must be carried. Suites open connections
//! for a few bytes, so every connection is offered at its first call
//! (`FORDWAY_OFFER_AFTER=0`, where the default is 4).
//!
//! # Skipped
//! The VSOCK classes of CPython's test_socket: they hang on a machine without a vsock
//! peer, with and without Fordway. Tests that need the network are left out as CPython's
//! own runner leaves them out, but for test_socketserver, which asks for "network" and
//! means loopback.
#![forbid(unsafe_code)]

mod verdicts;

pub use verdicts::Verdicts;

use anyhow::{Context, Result, ensure};
use fordway_bench::lab::{Lab, Output, PathChoice, Place, Program, Spawn};
use fordwayd::admin::Info;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Debian's own, which the packages with tests belong to.
const PYTHON: &str = "/usr/bin/python3";
/// How often a test that differs is run again without Fordway.
pub const RUNS_AGAIN: usize = 2;
/// The least share of eligible connections that must have used rings.
pub const SHARE_MIN: f64 = 0.9;
/// The same for one suite, which may have few.
pub const SHARE_OF_ONE_MIN: f64 = 0.75;
/// Longest that one run of a suite may take.
const LIMIT: Duration = Duration::from_secs(180);
/// How long the broker may take to hear of the last closed connection.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// One of the suites.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// As the table shows it.
    pub name: &'static str,
    /// What `scripts/run_tests.py` gets before the modules.
    options: &'static [&'static str],
    runner: &'static str,
    modules: &'static [&'static str],
    /// As many must pass at least: modules that are missing on both sides are alike there.
    passed_min: usize,
    /// As many connections must have used rings at least. Suites of waits have hardly any that
    /// live long enough.
    carried_min: u64,
}

const fn cpython(name: &'static str, modules: &'static [&'static str]) -> Suite {
    Suite {
        name,
        options: &[],
        runner: "unittest",
        modules,
        passed_min: 0,
        carried_min: 0,
    }
}

impl Suite {
    /// See [`Suite::passed_min`] and [`Suite::carried_min`].
    const fn at_least(self, passed_min: usize, carried_min: u64) -> Suite {
        Suite {
            passed_min,
            carried_min,
            ..self
        }
    }

    /// What fell short, in words.
    fn shortfalls(&self, passed: [usize; 2], counts: Counts) -> Vec<String> {
        let mut short = Vec::new();
        let [without, with] = passed;
        if without.min(with) < self.passed_min {
            short.push(format!(
                "{without} passed without and {with} with Fordway, not {}",
                self.passed_min
            ));
        }
        if counts.carried < self.carried_min {
            short.push(format!(
                "{} connections used rings, not {}",
                counts.carried, self.carried_min
            ));
        }
        if let Some(share) = counts.share().filter(|share| *share < SHARE_OF_ONE_MIN) {
            short.push(format!("{:.1} % of the eligible used rings", share * 100.0));
        }
        short
    }
}

/// All suites.
pub const SUITES: &[Suite] = &[
    Suite {
        options: &["--without", "VSOCK"],
        ..cpython("cpython test_socket", &["test.test_socket"]).at_least(580, 8)
    },
    cpython("cpython test_selectors", &["test.test_selectors"]).at_least(70, 0),
    cpython("cpython test_epoll", &["test.test_epoll"]).at_least(10, 0),
    cpython("cpython test_poll", &["test.test_poll"]).at_least(7, 0),
    cpython("cpython test_select", &["test.test_select"]).at_least(6, 0),
    Suite {
        options: &["--resource", "network"],
        ..cpython("cpython test_socketserver", &["test.test_socketserver"]).at_least(25, 0)
    },
    cpython("cpython test_httplib", &["test.test_httplib"]).at_least(110, 5),
    cpython(
        "cpython test_urllib2_localnet",
        &["test.test_urllib2_localnet"],
    )
    .at_least(22, 6),
    cpython(
        "cpython asyncore, asynchat",
        &["test.test_asyncore", "test.test_asynchat"],
    )
    .at_least(110, 20),
    cpython(
        "cpython asyncio",
        &[
            "test.test_asyncio.test_streams",
            "test.test_asyncio.test_server",
            "test.test_asyncio.test_sock_lowlevel",
            "test.test_asyncio.test_sendfile",
            "test.test_asyncio.test_buffered_proto",
        ],
    )
    .at_least(158, 30),
    Suite {
        name: "twisted tcp",
        options: &[],
        runner: "trial",
        modules: &[
            "twisted.test.test_tcp",
            "twisted.test.test_tcp_internals",
            "twisted.internet.test.test_tcp",
            "twisted.protocols.test.test_basic",
        ],
        passed_min: 640,
        carried_min: 10,
    },
    Suite {
        name: "tornado",
        options: &[],
        runner: "unittest",
        modules: &[
            "tornado.test.iostream_test",
            "tornado.test.tcpserver_test",
            "tornado.test.tcpclient_test",
            "tornado.test.httpserver_test",
            "tornado.test.simple_httpclient_test",
            "tornado.test.websocket_test",
        ],
        passed_min: 385,
        carried_min: 250,
    },
];

/// What the broker counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Both ends offered.
    pub paired: u64,
    /// Should have used rings.
    pub eligible: u64,
    /// Did.
    pub carried: u64,
}

impl Counts {
    fn of(info: &Info) -> Counts {
        Counts {
            paired: info.paired_total,
            eligible: info.eligible_total,
            carried: info.carried_total,
        }
    }

    fn since(self, before: Counts) -> Counts {
        Counts {
            paired: self.paired - before.paired,
            eligible: self.eligible - before.eligible,
            carried: self.carried - before.carried,
        }
    }

    /// Adds others.
    pub fn add(&mut self, more: Counts) {
        self.paired += more.paired;
        self.eligible += more.eligible;
        self.carried += more.carried;
    }

    /// Carried of eligible; nothing if nothing was eligible.
    pub fn share(self) -> Option<f64> {
        (self.eligible != 0).then(|| self.carried as f64 / self.eligible as f64)
    }
}

/// What came of a suite.
#[derive(Debug)]
pub struct Played {
    /// Without Fordway.
    pub without: Verdicts,
    /// Over the fast path.
    pub with: Verdicts,
    /// Tests whose verdicts differ, and do not vary by themselves.
    pub differing: Vec<String>,
    /// Tests that vary without Fordway.
    pub unsteady: Vec<String>,
    /// Connections of the run over the fast path.
    pub counts: Counts,
    /// What the run over the fast path wrote.
    pub output: Output,
}

/// A lab for suites.
#[derive(Debug)]
pub struct Bed {
    lab: Lab,
    runs: usize,
}

impl Bed {
    /// With a broker of its own.
    pub fn start() -> Result<Bed> {
        Ok(Bed {
            lab: Lab::start()?,
            runs: 0,
        })
    }

    /// Plays a suite on both paths at once.
    pub fn play(&mut self, suite: &Suite) -> Result<Played> {
        let before = Counts::of(&self.lab.info()?);
        let without = self.spawn(suite, None)?;
        let with = self.spawn(suite, Some(PathChoice::Auto))?;
        let (without, _) = without.finish()?;
        let (with, output) = with.finish()?;
        let mut differing = without.differing(&with);
        let mut unsteady = Vec::new();
        if !differing.is_empty() {
            for _ in 0..RUNS_AGAIN {
                let (again, _) = self.spawn(suite, None)?.finish()?;
                let varied = without.differing(&again);
                unsteady.extend(differing.extract_if(.., |name| varied.contains(name)));
            }
        }
        Ok(Played {
            without,
            with,
            differing,
            unsteady,
            counts: self.counts_at_rest()?.since(before),
            output,
        })
    }

    /// Ends the lab: nothing may be left, and no shim may have broken the protocol.
    pub fn finish(self) -> Result<()> {
        let info = self.lab.info()?;
        ensure!(
            info.protocol_errors == 0,
            "the broker took the shim for an attacker: {}",
            self.lab.broker_log()
        );
        let leftovers = self.lab.leftovers();
        ensure!(leftovers.is_empty(), "left behind: {leftovers:?}");
        let forced = self.lab.close();
        ensure!(forced.is_empty(), "removed by force: {forced:?}");
        Ok(())
    }

    fn counts_at_rest(&self) -> Result<Counts> {
        self.lab
            .wait_until(SETTLE_LIMIT, "no channel is left", || {
                let info = self.lab.info()?;
                Ok(info.channels == 0 && info.processes == 0)
            })?;
        Ok(Counts::of(&self.lab.info()?))
    }

    /// Starts a suite; `None`: without Fordway.
    fn spawn(&mut self, suite: &Suite, path: Option<PathChoice>) -> Result<Run> {
        self.runs += 1;
        let dir = self.lab.work_dir().join(format!("{:03}", self.runs));
        std::fs::create_dir(&dir)?;
        let results = dir.join("results");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/run_tests.py");
        let mut argv = vec![
            PYTHON.to_owned(),
            script.to_string_lossy().into_owned(),
            suite.runner.to_owned(),
            results.to_string_lossy().into_owned(),
        ];
        let rest = suite
            .options
            .iter()
            .chain(["--"].iter())
            .chain(suite.modules);
        argv.extend(rest.map(|&word| word.to_owned()));
        let spawn = Spawn::new(argv).dir(&dir).time_limit(LIMIT);
        let program = match path {
            None => self.lab.spawn_bare(&spawn)?,
            Some(path) => {
                let spawn = spawn.env("FORDWAY_OFFER_AFTER", "0");
                self.lab.spawn(&Place::Here, path, &spawn)?
            }
        };
        Ok(Run { program, results })
    }
}

/// A suite that runs.
struct Run {
    program: Program,
    results: PathBuf,
}

impl Run {
    fn finish(self) -> Result<(Verdicts, Output)> {
        let output = self.program.finish().with_context(|| {
            let so_far = std::fs::read_to_string(&self.results).unwrap_or_default();
            let last = so_far.lines().last().unwrap_or("nothing");
            format!("its last line of results: {last}")
        })?;
        let verdicts = std::fs::read_to_string(&self.results)
            .ok()
            .and_then(|text| Verdicts::read(&text))
            .with_context(|| format!("no whole results; it wrote: {}", output.errors()))?;
        Ok((verdicts, output))
    }
}

/// Plays suites and prints the table, a row as soon as it is known. True if all hold.
pub fn table(wanted: impl Fn(&Suite) -> bool) -> Result<bool> {
    let mut bed = Bed::start()?;
    let (mut passed, mut failed) = (0, 0);
    let mut sum = Counts::default();
    println!("FORDWAY_OFFER_AFTER=0; tests: passed/failed/skipped; connections of the fast path");
    println!(
        "{:<30} | {:>11} | {:>11} | {:>6} | {:>8} | {:>8} | {:>6}",
        "suite", "without", "with", "paired", "eligible", "on rings", "share"
    );
    for suite in SUITES.iter().filter(|suite| wanted(suite)) {
        let played = bed.play(suite)?;
        print_row(
            suite.name,
            &played.without.to_string(),
            &played.with.to_string(),
            played.counts,
        );
        for name in &played.unsteady {
            println!("  varies without Fordway: {name}");
        }
        for name in &played.differing {
            println!(
                "  DIFFERS: {name}: {} without, {} with",
                played.without.of(name),
                played.with.of(name)
            );
        }
        if !played.differing.is_empty() {
            println!("{}{}", played.output.text(), played.output.errors());
        }
        let verdicts = [&played.without, &played.with].map(Verdicts::passed);
        let short = suite.shortfalls(verdicts, played.counts);
        for what in &short {
            println!("  TOO FEW: {what}");
        }
        match played.differing.is_empty() && short.is_empty() {
            true => passed += 1,
            false => failed += 1,
        }
        sum.add(played.counts);
    }
    print_row("all", "", "", sum);
    bed.finish()?;
    match sum.share() {
        Some(share) if share < SHARE_MIN => {
            println!("too few eligible connections used rings");
            failed += 1;
        }
        _ => {}
    }
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

fn print_row(name: &str, without: &str, with: &str, counts: Counts) {
    let share = counts
        .share()
        .map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    println!(
        "{name:<30} | {without:>11} | {with:>11} | {:>6} | {:>8} | {:>8} | {share:>6}",
        counts.paired, counts.eligible, counts.carried
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_are_missing_on_both_sides_are_too_few() {
        let suite = SUITES[0];
        let none = Counts::default();
        assert_eq!(suite.shortfalls([0, 0], none).len(), 2);
        let counts = |eligible, carried| Counts {
            paired: eligible,
            eligible,
            carried,
        };
        let passed = [suite.passed_min; 2];
        let (least, most) = (suite.carried_min, suite.carried_min * 2);
        assert!(suite.shortfalls(passed, counts(least, least)).is_empty());
        assert_eq!(suite.shortfalls(passed, counts(most, least)).len(), 1);
        assert_eq!(
            suite.shortfalls([0, passed[1]], counts(least, least)).len(),
            1
        );
        let all_have = SUITES.iter().all(|suite| suite.passed_min > 0);
        assert!(all_have, "each suite has a floor");
    }
}
