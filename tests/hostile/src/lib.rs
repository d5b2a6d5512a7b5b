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
//! that with it. [`Census`] counts what an attack might leave behind.
#![forbid(unsafe_code)]

#[path = "../../../apps/fordwayd/tests/common/mod.rs"]
mod common;
pub mod mallory;

pub use common::{Bells, Shim};

use anyhow::{Context, Result, ensure};
use fordway_bench::lab::{Lab, PathChoice, Place, Program, Spawn, Stdin};
use fordway_platform::netns;
use rustix::process::Signal;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::time::{Duration, Instant};

/// Longest that anything may take that is sure to come.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at something that nobody announces.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long neighbours are measured without the attack.
const CALM: Duration = Duration::from_millis(400);
/// Longest that the programs of a bed run.
const LIMIT: Duration = Duration::from_secs(120);

/// How the victim waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One thread, edge-triggered epoll.
    Epoll,
    /// A thread for each connection, blocking calls.
    Threads,
}

/// An echo server.
#[derive(Debug)]
pub struct Echo {
    program: Program,
    /// Where it listens.
    pub name: SocketAddr,
}

/// A neighbour's round trips.
#[derive(Debug)]
struct Ping {
    what: &'static str,
    program: Program,
    stdin: ChildStdin,
    lines: usize,
}

/// What a neighbour saw in a while.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trips {
    /// Round trips.
    pub count: u64,
    /// Their median.
    pub p50_us: f64,
    /// And the slow ones.
    pub p99_us: f64,
    /// The slowest.
    pub max_us: f64,
}

/// What an attack might leave behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    victim_descriptors: usize,
    victim_memfds: usize,
    broker_descriptors: usize,
    broker_memfds: usize,
    processes: u32,
    channels: u32,
}

impl Census {
    fn exceeds(&self, other: &Census) -> bool {
        self.victim_descriptors > other.victim_descriptors
            || self.victim_memfds > other.victim_memfds
            || self.broker_descriptors > other.broker_descriptors
            || self.broker_memfds > other.broker_memfds
            || self.processes > other.processes
            || self.channels > other.channels
    }
}

/// A victim, its neighbours, and where mallory lives.
#[derive(Debug)]
pub struct Bed {
    /// The lab.
    pub lab: Lab,
    /// The victim.
    pub victim: Echo,
    other: Echo,
    pings: Vec<Ping>,
    /// Mallory's namespace; `None`: the same as everybody's.
    home: Option<OwnedFd>,
}

/// Whether namespaces can be had. Says so if not: then the caller is not to count as passed.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("NOT TRIED: needs root, for namespaces");
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
        let place = |name: &str, last: u8| match root {
            true => Place::domain(name, [10, 77, 0, last]),
            false => Place::Here,
        };
        let lab = Lab::start_with(&["--network", "10.77.0.0/24"])?;
        let victim = Echo::start(&lab, &place("victim", 10), style)?;
        let other = Echo::start(&lab, &place("other", 11), style)?;
        let pings = [("victim's", &victim), ("other's", &other)]
            .map(|(what, echo)| Ping::start(&lab, &place("honest", 12), what, echo.name));
        let pings = pings.into_iter().collect::<Result<Vec<_>>>()?;
        let home = match root {
            true => {
                // A domain is made by the first program in it.
                lab.run(
                    &place("mallory", 13),
                    PathChoice::Auto,
                    &Spawn::line("true"),
                )?;
                let domains = lab.domains()?;
                let own = domains.iter().find(|domain| domain.name == "mallory");
                let path = own.and_then(|own| own.netns_path.as_deref());
                netns::open(Path::new(path.context("mallory has no namespace")?))?
            }
            false => None,
        };
        let bed = Bed {
            lab,
            victim,
            other,
            pings,
            home,
        };
        bed.wait_for("the neighbours go by rings", || {
            let rings = bed.lab.connections().unwrap_or_default();
            let fast = rings
                .iter()
                .filter(|end| end.path == "fast" && end.ring_bytes_tx != 0);
            fast.count() == 4
        })?;
        Ok(bed)
    }

    /// Runs `attack`, and prints what the neighbours saw before and meanwhile. They must
    /// have gone on: returns what each saw during the attack.
    pub fn beside<T>(
        &mut self,
        name: &str,
        attack: impl FnOnce(&Bed) -> Result<T>,
    ) -> Result<(T, Vec<Trips>)> {
        self.trips()?;
        // What there is to be measured is how long this lasts.
        std::thread::sleep(CALM);
        let without = self.trips()?;
        let begin = Instant::now();
        let result = attack(self).with_context(|| name.to_owned())?;
        let lasted_ms = begin.elapsed().as_millis();
        let with = self.trips()?;
        for ((ping, without), with) in self.pings.iter().zip(&without).zip(&with) {
            println!(
                "{name} ({lasted_ms} ms), {} neighbour: p50 {:.1} -> {:.1} us, p99 {:.1} -> {:.1} us ({:.1}x), slowest {:.0} -> {:.0} us",
                ping.what,
                without.p50_us,
                with.p50_us,
                without.p99_us,
                with.p99_us,
                with.p99_us / without.p99_us.max(0.1),
                without.max_us,
                with.max_us,
            );
        }
        // They still run, and got more than one answer each since.
        let after = self.trips()?;
        ensure!(
            with.iter().chain(&after).all(|trips| trips.count > 0),
            "{name}: a neighbour stood still: {with:?}, then {after:?}"
        );
        Ok((result, with))
    }

    fn trips(&mut self) -> Result<Vec<Trips>> {
        self.pings.iter_mut().map(Ping::trips).collect()
    }

    /// A connection to the victim, from mallory's home.
    pub fn connect(&self) -> Result<TcpStream> {
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

    /// How many of the victim's connections have ended, somehow.
    pub fn all_ends(&self) -> usize {
        let text = self.victim.program.stdout_so_far();
        text.lines().filter(|line| line.starts_with("end ")).count()
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
        let info = self.lab.info()?;
        let victim = self.victim.pid()?;
        let broker = u32::try_from(info.pid)?;
        Ok(Census {
            victim_descriptors: descriptors(victim)?,
            victim_memfds: memfds(victim)?,
            broker_descriptors: descriptors(broker)?,
            broker_memfds: memfds(broker)?,
            processes: info.processes,
            channels: info.channels,
        })
    }

    /// Waits until nothing is left of what came after `before`.
    pub fn no_more_than(&self, before: &Census) -> Result<()> {
        let mut now = None;
        let settled = self.wait_for("is as it was before", || {
            now = self.census().ok();
            now.as_ref().is_some_and(|now| !now.exceeds(before))
        });
        settled.with_context(|| format!("{before:?}, then {now:?}"))
    }

    /// Resident memory of the broker, in kB.
    pub fn broker_rss_kb(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.lab.info()?.pid))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let figure = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(figure.context("no VmRSS")?.parse()?)
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
            drop(ping.stdin);
            ping.program.finish()?.ok().context(ping.what)?;
        }
        for echo in [victim, other] {
            ensure!(echo.program.is_running(), "an echo server has ended");
            echo.program.stop_with(Signal::KILL)?;
        }
        let forced = lab.close();
        ensure!(forced.is_empty(), "left behind: {}", forced.join(", "));
        Ok(())
    }
}

fn compiled(name: &str) -> String {
    let path = PathBuf::from(env!("OUT_DIR")).join(name);
    path.to_string_lossy().into_owned()
}

impl Echo {
    fn start(lab: &Lab, place: &Place, style: Style) -> Result<Echo> {
        let word = match style {
            Style::Epoll => "epoll",
            Style::Threads => "threads",
        };
        let spawn = Spawn::new([compiled("echo"), word.to_owned()])
            .env("FORDWAY_OFFER_AFTER", "0")
            .time_limit(LIMIT);
        let program = lab.spawn(place, PathChoice::Auto, &spawn)?;
        program.wait_for_output("port ")?;
        let text = program.stdout_so_far();
        let port = text.lines().find_map(|line| line.strip_prefix("port "));
        let port: u16 = port.context("no port")?.parse()?;
        Ok(Echo {
            program,
            name: SocketAddr::from((place.ip(), port)),
        })
    }

    /// The server itself, not the launcher.
    pub fn pid(&self) -> Result<u32> {
        let pids = self.program.pids();
        pids.first().copied().context("the echo server is gone")
    }
}

impl Ping {
    fn start(lab: &Lab, place: &Place, what: &'static str, name: SocketAddr) -> Result<Ping> {
        let (host, port) = (name.ip().to_string(), name.port().to_string());
        let spawn = Spawn::new([compiled("ping"), host, port])
            .stdin(Stdin::Pipe)
            .time_limit(LIMIT);
        let mut program = lab.spawn(place, PathChoice::Auto, &spawn)?;
        let stdin = program.take_stdin().context("no stdin")?;
        Ok(Ping {
            what,
            program,
            stdin,
            lines: 0,
        })
    }

    /// What it saw since it was asked last.
    fn trips(&mut self) -> Result<Trips> {
        self.stdin.write_all(b"\n")?;
        let wanted = self.lines + 1;
        let program = &self.program;
        program.wait_until(PATIENCE, "answers", || {
            program.stdout_so_far().lines().count() >= wanted
                && program.stdout_so_far().ends_with('\n')
        })?;
        let text = program.stdout_so_far();
        let line = text.lines().nth(self.lines).context("no line")?;
        self.lines = wanted;
        let figures: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [count, p50_us, p99_us, max_us] = figures[..] else {
            anyhow::bail!("{line}");
        };
        Ok(Trips {
            count: count as u64,
            p50_us,
            p99_us,
            max_us,
        })
    }
}

fn descriptors(pid: u32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Mappings of shared memory.
fn memfds(pid: u32) -> Result<usize> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    Ok(maps.lines().filter(|line| line.contains("memfd:")).count())
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
