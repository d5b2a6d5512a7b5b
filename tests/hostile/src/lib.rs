//! A peer that speaks the protocol by hand, and lies.
//!
//! ```text
//!   mallory (this process) ── channel, every word of his side his own ──► victim: echo, under fordway run
//!                                                                            ▲
//!                          neighbour: ping, under fordway run ───────────────┘
//!                          neighbour: ping ──► another echo
//! ```
//!
//! [`Bed`] starts the honest programs, in domains of their own if we are root, else all
//! over loopback. [`mallory::Mallory`] has one connection to the victim, and does itself
//! what a shim would do. The neighbours go on throughout: every byte that they get is
//! checked, and what a round trip took is printed for the time without the attack and for
//! that with it.
//! [`Census`] counts what an attack might leave behind.
//!
//! Rings of datagrams have a bed and a liar of their own ([`datagrams`]).
//!
//! What is not in this process is in children of it ([`child`]): who ends, execs, or has
//! somebody's process number must be another.
#![forbid(unsafe_code)]

mod bystanders;
mod census;
pub mod child;
#[path = "../../../apps/fordwayd/tests/common/mod.rs"]
mod common;
pub mod datagrams;
pub mod mallory;
mod rounds;

pub use bystanders::{Echo, Style, compiled};
pub use census::Census;
pub use common::{
    Bells, PrivateNamespace, Shim, claim, claim_named, connect_as, packet_of, sealed, stop_process,
};

use anyhow::{Context, Result, ensure};
use bystanders::{Ping, Trips};
use fordway_lab::{Lab, PathChoice, Place, Spawn};
use fordway_platform::netns;
use mallory::Mallory;
use rustix::process::Signal;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest that anything may take that is sure to come.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at something that nobody announces.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Round trips of the neighbours by which they are measured without an attack.
const CALM_TRIPS: u64 = 1000;
/// Round trips of an honest peer in mallory's place.
const HONEST_TRIPS: usize = 100;
/// How many connections the victim has had at the same time before it is looked what it keeps.
const TOGETHER: usize = 8;

/// A victim, its neighbours, and where mallory lives.
#[derive(Debug)]
pub struct Bed {
    /// The lab.
    pub lab: Lab,
    /// The victim.
    pub victim: Echo,
    other: Echo,
    pings: Vec<Ping>,
    style: Style,
    /// Connections of honest ones that the victim has seen end.
    seen: usize,
    /// Connections to the victim since then; a peer without a turn for long makes several
    /// before one stays with its rings.
    made: AtomicUsize,
    /// Mallory's namespace; `None`: the same as everybody's.
    home: Option<OwnedFd>,
}

/// The namespace of a domain.
fn open_namespace(lab: &Lab, name: &str) -> Result<OwnedFd> {
    let domains = lab.domains()?;
    let domain = domains.iter().find(|domain| domain.name == name);
    let path = domain.and_then(|domain| domain.netns_path.as_deref());
    let path = path.with_context(|| format!("{name} has no namespace"))?;
    netns::open(Path::new(path))?.with_context(|| format!("{path} is no namespace"))
}

/// Whether namespaces can be had. Says so if not: then the caller is not to count as passed.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        fordway_test_skip::skipped("needs root, for namespaces");
    }
    root
}

impl Bed {
    /// Starts everything, and waits until the neighbours go by rings.
    pub fn start(style: Style) -> Result<Bed> {
        let root = rustix::process::geteuid().is_root();
        if !root {
            println!("without root: all over loopback, no domains are crossed");
        }
        let place = Bed::place;
        let lab = Lab::start_with(&["--network", "10.77.0.0/24"])?;
        // A domain is made by the first program in it; before the machine is busy, for `ip` is
        // slow then.
        let home = match root {
            true => {
                let nothing = Spawn::line("true");
                lab.run(&place("mallory", 13), PathChoice::Auto, &nothing)?;
                Some(open_namespace(&lab, "mallory")?)
            }
            false => None,
        };
        let victim = Echo::start(&lab, &place("victim", 10), style)?;
        let other = Echo::start(&lab, &place("other", 11), style)?;
        let pings = [("victim's", &victim), ("other's", &other)]
            .map(|(what, echo)| Ping::start(&lab, &place("honest", 12), what, echo.name));
        let pings = pings.into_iter().collect::<Result<Vec<_>>>()?;
        let mut bed = Bed {
            lab,
            victim,
            other,
            pings,
            style,
            seen: 0,
            made: AtomicUsize::new(0),
            home,
        };
        bed.wait_for("the neighbours go by rings", || {
            let rings = bed.lab.connections().unwrap_or_default();
            let fast = rings
                .iter()
                .filter(|end| end.path == "fast" && end.ring_bytes_tx != 0);
            fast.count() == 4
        })?;
        bed.be_honest()?;
        Ok(bed)
    }

    /// A domain, or here if there can be none.
    pub fn place(name: &str, last: u8) -> Place {
        match rustix::process::geteuid().is_root() {
            true => Place::domain(name, [10, 77, 0, last]),
            false => Place::Here,
        }
    }

    /// Honest peers in mallory's place have the victim make what it makes once and keeps.
    fn be_honest(&mut self) -> Result<()> {
        let mut honest = Mallory::join(self)?;
        for _ in 0..HONEST_TRIPS {
            honest.echo(64)?;
        }
        // Its threads keep a doorbell for each that slept at the same time.
        let several = (1..TOGETHER).map(|_| Mallory::join(self));
        let several = several.collect::<Result<Vec<_>>>()?;
        drop((honest, several));
        let made = self.made.swap(0, Ordering::Relaxed);
        self.wait_for("sees the honest ones go", || self.all_ends() == made)?;
        self.seen = made;
        Ok(())
    }

    /// Runs `attack`, and prints what the neighbours saw before and meanwhile. They must go on.
    pub fn beside<T>(&mut self, name: &str, attack: impl FnOnce(&Bed) -> Result<T>) -> Result<T> {
        self.trips(0)?;
        let without = self.trips(CALM_TRIPS)?;
        let begin = Instant::now();
        let result = attack(self).with_context(|| name.to_owned())?;
        let lasted_ms = begin.elapsed().as_millis();
        let with = self.trips(1)?;
        for ((ping, calm), now) in self.pings.iter().zip(&without).zip(&with) {
            println!(
                "{name} ({lasted_ms} ms), {} neighbour before / now: p50 {:.1} / {:.1} us, p99 {:.1} / {:.1} us, slowest {:.1} / {:.1} us",
                ping.what,
                calm.p50_us,
                now.p50_us,
                calm.p99_us,
                now.p99_us,
                calm.max_us,
                now.max_us,
            );
        }
        // They still run, and get more answers.
        self.trips(2)?;
        Ok(result)
    }

    /// As [`Bed::beside`], for an attack that is over when it returns: nothing of it may be
    /// left then. Prints what there was before and is now.
    pub fn case<T>(&mut self, name: &str, attack: impl FnOnce(&Bed) -> Result<T>) -> Result<T> {
        let before = self.census()?;
        let result = self.beside(name, attack)?;
        self.no_more_than(name, &before)?;
        Ok(result)
    }

    /// The neighbours' processes.
    pub fn neighbours(&self) -> Result<Vec<u32>> {
        self.pings.iter().map(Ping::pid).collect()
    }

    /// What the neighbours have seen since they were asked last, as soon as that is so many round
    /// trips of each.
    pub(crate) fn trips(&mut self, least: u64) -> Result<Vec<Trips>> {
        for ping in &mut self.pings {
            ping.ask(least)?;
        }
        self.pings.iter().map(Ping::answer).collect()
    }

    /// A connection to the victim, from mallory's home.
    pub fn connect(&self) -> Result<TcpStream> {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.at_home(|| TcpStream::connect(self.victim.name))?
            .context("connecting to the victim")
    }

    /// Does something in mallory's namespace.
    pub fn at_home<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        match &self.home {
            Some(home) => Ok(netns::within(home.as_fd(), work)?),
            None => Ok(work()),
        }
    }

    /// How many of the victim's connections ended so.
    pub fn ends(&self, errno: i32) -> usize {
        let line = format!("end {errno}");
        let text = self.victim.program.stdout_so_far();
        text.lines().filter(|found| *found == line).count()
    }

    /// How many of the victim's connections have ended, somehow, since the bed was made.
    pub fn all_ends(&self) -> usize {
        let text = self.victim.program.stdout_so_far();
        let all = text.lines().filter(|line| line.starts_with("end ")).count();
        all - self.seen
    }

    /// How many connections to the victim were made since the bed was.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Waits for something that is sure to come.
    pub fn wait_for(&self, what: &str, holds: impl FnMut() -> bool) -> Result<()> {
        self.victim.program.wait_until(PATIENCE, what, holds)
    }

    /// The line of the broker's log with all these words; waits for it.
    pub fn logged(&self, words: &[&str]) -> Result<()> {
        self.wait_for(&format!("sees {words:?} logged"), || {
            self.log_count(words) != 0
        })
    }

    /// How many lines of the broker's log have all these words.
    pub fn log_count(&self, words: &[&str]) -> usize {
        let log = self.lab.broker_log();
        log.lines()
            .filter(|line| words.iter().all(|word| line.contains(word)))
            .count()
    }

    /// Takes a census.
    pub fn census(&self) -> Result<Census> {
        Census::take(
            self.victim.pid()?,
            matches!(self.style, Style::Threads | Style::Instances),
            &self.lab.info()?,
        )
    }

    /// Waits until nothing is left of what came after `before`, and prints both.
    pub fn no_more_than(&self, name: &str, before: &Census) -> Result<()> {
        let mut now = None;
        let settled = self.wait_for("is as it was before", || {
            now = self.census().ok();
            now.as_ref().is_some_and(|now| !now.exceeds(before))
        });
        let now = now.context("no census")?.against(before);
        println!("{name}, left behind: {now}");
        settled.with_context(|| now)?;
        let strays = self.lab.leftovers();
        ensure!(strays.is_empty(), "left behind: {}", strays.join(", "));
        Ok(())
    }

    /// Resident memory of the broker, in kB.
    pub fn broker_rss_kb(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.lab.info()?.pid))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let figure = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(figure.context("no VmRSS")?.parse()?)
    }

    /// Does something in the namespace of a domain.
    pub fn in_domain<T: Send>(&self, name: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
        let namespace = open_namespace(&self.lab, name)?;
        Ok(netns::within(namespace.as_fd(), work)?)
    }

    /// Ends everything. The honest programs must have come through unharmed.
    pub fn finish(self) -> Result<()> {
        let Bed {
            lab,
            victim,
            other,
            pings,
            ..
        } = self;
        for ping in pings {
            ping.finish()?;
        }
        for echo in [victim, other] {
            ensure!(echo.program.is_running(), "an echo server has ended");
            let text = echo.program.stdout_so_far();
            let wrote = text.lines().find(|line| line.starts_with("wrote "));
            ensure!(wrote.is_none(), "into a file of the program's: {wrote:?}");
            echo.program.stop_with(Signal::KILL)?;
        }
        let forced = lab.close();
        ensure!(forced.is_empty(), "left behind: {}", forced.join(", "));
        Ok(())
    }
}

/// Waits for something of our own, in small steps.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        ensure!(Instant::now() < end, "never: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}
