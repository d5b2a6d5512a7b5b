//! The test suites of others, whole, over the fast path and without Fordway.
//!
//! ```text
//!   table ── play(suite) ─┬─ python3 scripts/run_tests.py ...                          ─┐ same verdict
//!                         └─ fordway run --here -- python3 scripts/run_tests.py ...    ─┘ for each name
//!                    once for each offer; the broker's counts are read before and after
//! ```
//!
//! A suite is what a Debian package ships: CPython's tests of sockets, of the waits
//! and of what is built on them, and those of Twisted and Tornado; or what a Debian source
//! package builds (`contrib/fetch-suite`): the tests of libuv, libevent, libzmq and redis.
//! Their clients and servers live in one process, or in one and its children. Every verdict
//! must be the same under the same name. A test that differs is run again without Fordway,
//! [`RUNS_AGAIN`] times: if it varies by itself, it is listed as unsteady and counts
//! for nothing; else it differs, unless the table of suites knows why.
//!
//! Each play has loopback in a network namespace of its own, if root starts it: suites bind
//! ports and abstract names that are fixed, or that they just found to be free. Python's play
//! on both paths at once. The others have files of fixed names: one play after the other, as
//! all do without root.
//!
//! # When a connection is offered
//! [`Offer::Default`] is what users have. Suites open connections for a few bytes, so that
//! few of them live long enough; hence [`Offer::FirstCall`] (`FORDWAY_OFFER_AFTER=0`, where
//! the default is 4). The short form ([`Form::Short`]) plays Python's suites and the quick
//! ones of redis, with an offer at the first call only.
//!
//! # Which connections should have used rings
//! The broker counts (`fordway_registry::Counts`): *paired*, TCP with the library at both
//! ends, both of which offered; *eligible*, those of them with enough calls at both ends
//! behind the broker's answer, or with bytes in rings; *carried*, those with bytes in rings.
//! At least [`SHARE_MIN`] of the eligible ones must be carried.
//!
//! # Skipped
//! The VSOCK classes of CPython's test_socket: they hang on a machine without a vsock
//! peer, with and without Fordway. Tests that need the network are left out as CPython's
//! own runner leaves them out, but for test_socketserver, which asks for "network" and
//! means loopback. Two tests of redis' integration/replication set a word that Debian's
//! redis-server does not have, which ends the file. Debian has neither LTP nor nginx-tests.
#![forbid(unsafe_code)]

mod suite;
mod verdicts;

pub use suite::{Fetched, Offer, SUITES, Suite};
pub use verdicts::Verdicts;

use anyhow::{Context, Result, ensure};
use fordway_lab::{Lab, Output, PathChoice, Place, Program, Spawn};
use fordwayd::admin::Info;
use std::path::PathBuf;
use std::time::Duration;

/// How often a test that differs is run again without Fordway.
pub const RUNS_AGAIN: usize = 2;
/// The least share of eligible connections that must have used rings.
pub const SHARE_MIN: f64 = 0.95;
/// Of each output of a play that differs: more, and the verdict is lost among passed tests.
const LINES_SHOWN_MAX: usize = 60;
/// How long the broker may take to hear of the last closed connection.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// How much is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// What the tests play.
    Short,
    /// All suites, with each offer.
    Whole,
}

impl Form {
    fn has(self, suite: &Suite) -> bool {
        self == Form::Whole || suite.is_short
    }

    fn offers(self) -> &'static [Offer] {
        match self {
            Form::Short => &[Offer::FirstCall],
            Form::Whole => &Offer::ALL,
        }
    }
}

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

/// What came of a suite over the fast path.
#[derive(Debug)]
pub struct Played {
    /// When its connections were offered.
    pub offer: Offer,
    /// Its verdicts.
    pub verdicts: Verdicts,
    /// Tests whose verdicts differ, and do not vary by themselves.
    pub differing: Vec<String>,
    /// Tests that vary without Fordway.
    pub unsteady: Vec<String>,
    /// Its connections.
    pub counts: Counts,
    /// What it wrote.
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

    /// Plays a suite without Fordway, and with each of these offers.
    pub fn play(
        &mut self,
        suite: &Suite,
        fetched: &Fetched,
        offers: &[Offer],
    ) -> Result<(Verdicts, Vec<Played>)> {
        let run = self.spawn(suite, fetched, None)?;
        let mut running = Some(run);
        let mut without = None;
        let mut all = Vec::new();
        for &offer in offers {
            if suite.is_alone() {
                finish(&mut running, &mut without)?;
            }
            let before = Counts::of(&self.lab.info()?);
            let with = self.spawn(suite, fetched, Some(offer))?;
            finish(&mut running, &mut without)?;
            let (verdicts, output) = with.finish()?;
            let without = without.as_ref().context("it has been played")?;
            let mut differing = without.differing(&verdicts);
            differing.retain(|test| suite.known(test).is_none());
            let mut unsteady = Vec::new();
            for _ in 0..RUNS_AGAIN {
                if differing.is_empty() {
                    break;
                }
                let (again, _) = self.spawn(suite, fetched, None)?.finish()?;
                let varied = without.differing(&again);
                unsteady.extend(differing.extract_if(.., |name| varied.contains(name)));
            }
            all.push(Played {
                offer,
                verdicts,
                differing,
                unsteady,
                counts: self.counts_at_rest()?.since(before),
                output,
            });
        }
        Ok((without.context("no offer")?, all))
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
    fn spawn(&mut self, suite: &Suite, fetched: &Fetched, offer: Option<Offer>) -> Result<Run> {
        self.runs += 1;
        let dir = self.lab.work_dir().join(format!("{:03}", self.runs));
        std::fs::create_dir(&dir)?;
        let results = dir.join("results");
        let argv = suite.argv(fetched, &results);
        let mut spawn = Spawn::new(argv).dir(&dir).time_limit(suite.limit());
        if offer == Some(Offer::FirstCall) {
            spawn = spawn.env("FORDWAY_OFFER_AFTER", "0");
        }
        let program = match offer {
            None => self.lab.spawn_bare(&spawn)?,
            Some(_) => self.lab.spawn(&Place::Here, PathChoice::Auto, &spawn)?,
        };
        Ok(Run { program, results })
    }
}

/// Waits for the end of the play without Fordway, if it goes on.
fn finish(running: &mut Option<Run>, verdicts: &mut Option<Verdicts>) -> Result<()> {
    if let Some(run) = running.take() {
        *verdicts = Some(run.finish()?.0);
    }
    Ok(())
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
pub fn table(form: Form, wanted: impl Fn(&Suite) -> bool) -> Result<bool> {
    let mut bed = Bed::start()?;
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut sum = Counts::default();
    println!("tests: passed/failed/skipped; connections of the fast path, by default and with an");
    println!("offer at the first call (FORDWAY_OFFER_AFTER=0)");
    println!(
        "{:<30} | {:<7} | {:>11} | {:>11} | {:>6} | {:>8} | {:>8} | {:>6}",
        "suite", "offer", "without", "with", "paired", "eligible", "on rings", "share"
    );
    for suite in SUITES
        .iter()
        .filter(|suite| form.has(suite) && wanted(suite))
    {
        let fetched = match suite.fetch() {
            Ok(fetched) => fetched,
            Err(reason) => {
                fordway_test_skip::skipped(reason);
                skipped += 1;
                continue;
            }
        };
        let (mut without, mut all) = bed.play(suite, &fetched, form.offers())?;
        // How many connections live long enough for rings differs from play to play.
        let falls_short = |played: &Played| suite.carries_too_few(played.offer, played.counts);
        if all.iter().any(falls_short) {
            (without, all) = bed.play(suite, &fetched, form.offers())?;
        }
        for played in all {
            if suite.has_share {
                sum.add(played.counts);
            }
            match print_played(suite, &without, &played) {
                true => passed += 1,
                false => failed += 1,
            }
        }
    }
    print_row("all whose share is judged", "", "", "", sum);
    bed.finish()?;
    match sum.share() {
        Some(share) if share < SHARE_MIN => {
            println!("too few eligible connections used rings");
            failed += 1;
        }
        _ => {}
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(failed == 0)
}

/// True if it holds.
fn print_played(suite: &Suite, without: &Verdicts, played: &Played) -> bool {
    let with = &played.verdicts;
    print_row(
        suite.name,
        played.offer.word(),
        &without.to_string(),
        &with.to_string(),
        played.counts,
    );
    let both = |name: &str| format!("{} without, {} with", without.of(name), with.of(name));
    for name in &played.unsteady {
        println!("  varies without Fordway: {name}");
    }
    for name in without.differing(with) {
        if let Some(reason) = suite.known(&name) {
            println!("  known: {name}: {}: {reason}", both(&name));
        }
    }
    if !played.differing.is_empty() {
        print_ends(&played.output);
    }
    for name in &played.differing {
        println!("  DIFFERS: {name}: {}", both(name));
    }
    let passed = [without, with].map(Verdicts::passed);
    let short = suite.shortfalls(played.offer, passed, played.counts);
    for what in &short {
        println!("  TOO FEW: {what}");
    }
    played.differing.is_empty() && short.is_empty()
}

/// The ends of what a play wrote, where runners of tests say what failed.
fn print_ends(output: &Output) {
    for text in [output.text(), output.errors()] {
        let lines: Vec<&str> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(LINES_SHOWN_MAX)..] {
            println!("    {line}");
        }
    }
}

fn print_row(name: &str, offer: &str, without: &str, with: &str, counts: Counts) {
    let share = counts
        .share()
        .map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    println!(
        "{name:<30} | {offer:<7} | {without:>11} | {with:>11} | {:>6} | {:>8} | {:>8} | {share:>6}",
        counts.paired, counts.eligible, counts.carried
    );
}
