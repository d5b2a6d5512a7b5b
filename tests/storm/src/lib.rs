//! Storms: many connections, many deaths, and little of everything; bounded, with figures.
//!
//! ```text
//!   fordway-test storm NAME ── Storm (lab, broker) ─┬─ fordway run --here -- fordway-test role echo
//!                                                   └─ fordway run --here -- fordway-test role hold ...
//! ```
//!
//! The programs of a storm are this binary again in a role ([`roles`]): plain sockets of
//! Rust's standard library and of mio, without any knowledge of Fordway; that of the storm
//! of threads is `programs/threads.c`. They say what
//! they have seen on their standard output; the storm ([`storms`]) starts them, harms
//! them, and compares. After each storm everything must be as before: no process left,
//! no channel, no protocol error, and of the broker's descriptors and mappings exactly
//! those that it had.
//!
//! Each storm has two scales: whole (`./x storm`), in pieces that end within ten minutes,
//! and short (`./x test`).
#![forbid(unsafe_code)]

pub mod content;
pub mod roles;
pub mod storms;
mod trend;
mod watch;

use anyhow::{Context, Result, ensure};
use fordway_lab::broker_state::BrokerState;
use fordway_lab::{Lab, PathChoice, Place, Program, Spawn, Stdin};
use fordwayd::admin::Info;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest that any program of a storm may take: a piece ends within ten minutes.
const LIMIT: Duration = Duration::from_secs(600);
/// How long the broker may take to let go of what ended programs held.
pub(crate) const LET_GO_LIMIT: Duration = Duration::from_secs(30);
/// What the broker's allocator may keep of what is freed: 3 KB for each of ten thousand
/// connections. That it is not more and more, the storm of churn holds.
const KEPT_KB_MAX: u64 = 30_000;
/// Descriptors that the programs of a storm may have, where the hard limit allows it.
const DESCRIPTORS: u64 = 32_768;

/// How much of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scale {
    /// Seconds.
    Short,
    /// As much as was promised.
    Whole,
}

impl Scale {
    /// One of two numbers.
    pub fn pick<T>(self, short: T, whole: T) -> T {
        match self {
            Scale::Short => short,
            Scale::Whole => whole,
        }
    }
}

/// What storms are told that have something to choose.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Told {
    /// Minutes that the day of storm `day` takes [default: 60]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=24 * 60))]
    pub minutes: Option<u64>,
    /// Write its rows to this file, as CSV
    #[arg(long, value_name = "FILE")]
    pub rows: Option<PathBuf>,
    /// Kills of storm `stack` [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(3..=100_000))]
    pub kills: Option<u64>,
}

/// The stage of a storm.
#[derive(Debug)]
pub struct Storm {
    /// Its lab.
    pub lab: Lab,
    /// How much of it.
    pub scale: Scale,
    /// What else it is told.
    pub told: Told,
    binary: PathBuf,
    before: BrokerState,
    /// The broker's own memory, before.
    before_kb: u64,
    started: Instant,
}

impl Storm {
    /// `binary` plays the roles.
    pub fn start(
        binary: &Path,
        (scale, told): (Scale, &Told),
        broker_arguments: &[&str],
    ) -> Result<Storm> {
        raise_descriptor_limit()?;
        let lab = Lab::start_with(broker_arguments)?;
        // What the broker sets up once, at the first program, is part of "before".
        lab.run(&Place::Here, PathChoice::Auto, &Spawn::new(["true"]))?;
        let before = lab.broker_at_rest()?;
        let before_kb = watch::own_kb(lab.broker_pid()?);
        Ok(Storm {
            lab,
            scale,
            told: told.clone(),
            binary: binary.to_owned(),
            before,
            before_kb,
            started: Instant::now(),
        })
    }

    /// What stands now belongs to what must be as before.
    pub fn stands_now(&mut self) -> Result<()> {
        self.before = self.lab.broker_at_rest()?;
        Ok(())
    }

    /// The command line of a role.
    pub fn role<S: Into<String>>(&self, words: impl IntoIterator<Item = S>) -> Spawn {
        let binary = self.binary.to_string_lossy().into_owned();
        let words = words.into_iter().map(Into::into);
        Spawn::new([binary, "role".to_owned()].into_iter().chain(words))
            .stdin(Stdin::Pipe)
            .time_limit(LIMIT)
    }

    /// Starts a program over the fast path.
    pub fn spawn(&self, spawn: &Spawn) -> Result<Program> {
        self.lab.spawn(&Place::Here, PathChoice::Auto, spawn)
    }

    /// Starts a server role over the fast path; gives it with its TCP port.
    pub fn serve(&self, spawn: &Spawn) -> Result<(Program, String)> {
        self.serve_at(&Place::Here, PathChoice::Auto, spawn)
    }

    /// The same, in a place and over a path of the caller's choice.
    pub fn serve_at(
        &self,
        place: &Place,
        path: PathChoice,
        spawn: &Spawn,
    ) -> Result<(Program, String)> {
        let server = self.lab.spawn(place, path, spawn)?;
        server.wait_for_output("listening ")?;
        let said = server.stdout_so_far();
        let port = said
            .lines()
            .find_map(|line| line.strip_prefix("listening "))
            .context("no port")?;
        Ok((server, port.to_owned()))
    }

    /// Prints a figure.
    pub fn figure(&self, name: &str, value: impl std::fmt::Display) {
        println!("  {name}: {value}");
    }

    /// Returns when no channel is left, and gives the broker's figures then.
    pub fn channels_gone(&self) -> Result<Info> {
        self.lab
            .wait_until(LET_GO_LIMIT, "no channel is left", || {
                Ok(self.lab.info()?.channels == 0)
            })?;
        self.lab.info()
    }

    /// Everything must be as before.
    pub fn finish(self) -> Result<()> {
        // Workers of a server that was killed end with their last transfer.
        let until = Instant::now() + LET_GO_LIMIT;
        loop {
            let leftovers = self.lab.leftovers();
            if leftovers.is_empty() {
                break;
            }
            ensure!(Instant::now() < until, "left behind: {leftovers:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = self.lab.broker_pid()?;
        let until = Instant::now() + LET_GO_LIMIT;
        loop {
            let info = self.lab.info()?;
            ensure!(
                info.protocol_errors == 0,
                "the broker took the shim for an attacker: {}",
                self.lab.broker_log()
            );
            let now = BrokerState::of(pid);
            if now == self.before && info.channels == 0 && info.processes == 0 {
                break;
            }
            ensure!(
                Instant::now() < until,
                "the broker still has {} channels of {} processes and holds: {}",
                info.channels,
                info.processes,
                now.differences(&self.before)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let seconds = self.started.elapsed().as_secs_f64();
        let memory_kb = watch::own_kb(pid);
        let forced = self.lab.close();
        ensure!(forced.is_empty(), "removed by force: {forced:?}");
        println!(
            "  leaks: none; broker's memory {} -> {memory_kb} KB; {seconds:.0} s",
            self.before_kb
        );
        ensure!(
            memory_kb <= self.before_kb + KEPT_KB_MAX,
            "the broker has kept memory"
        );
        Ok(())
    }
}

/// Lets a role go on: a line on its standard input.
pub fn go_on(program: &mut Program) -> Result<()> {
    tell(program, "go")
}

/// Writes a line to a program's standard input, which stays open.
pub fn tell(program: &mut Program, line: &str) -> Result<()> {
    use std::io::Write;
    let mut stdin = program.take_stdin().context("it has no pipe")?;
    stdin.write_all(format!("{line}\n").as_bytes())?;
    program.hold_stdin(stdin);
    Ok(())
}

fn raise_descriptor_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit
        .maximum
        .map_or(DESCRIPTORS, |hard| hard.min(DESCRIPTORS));
    if limit.current.is_some_and(|soft| soft < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, raised)?;
    }
    Ok(())
}
