//! The honest programs: the victim, an echo server, and neighbours that measure round trips.

use crate::PATIENCE;
use anyhow::{Context, Result};
use fordway_lab::{Lab, PathChoice, Place, Program, Spawn, Stdin};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ChildStdin;
use std::time::Duration;

/// Longest that the programs of a bed run.
const LIMIT: Duration = Duration::from_secs(120);

/// How the victim waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One thread, edge-triggered epoll.
    Epoll,
    /// A thread for each connection, blocking calls.
    Threads,
    /// The same, each with an epoll instance of its own.
    Instances,
    /// As `Epoll`; becomes another program, with all connections, when its stdin ends.
    Exec,
}

/// An echo server.
#[derive(Debug)]
pub struct Echo {
    pub(crate) program: Program,
    /// Where it listens.
    pub name: SocketAddr,
}

/// A neighbour's round trips.
#[derive(Debug)]
pub(crate) struct Ping {
    pub(crate) what: &'static str,
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

/// The path of a program of `programs`.
pub fn compiled(name: &str) -> String {
    let path = PathBuf::from(env!("OUT_DIR")).join(name);
    path.to_string_lossy().into_owned()
}

impl Echo {
    /// Starts one, and waits until it listens.
    pub fn start(lab: &Lab, place: &Place, style: Style) -> Result<Echo> {
        let word = match style {
            Style::Epoll => "epoll",
            Style::Threads => "threads",
            Style::Instances => "instances",
            Style::Exec => "exec",
        };
        let spawn = Spawn::new([compiled("echo"), word.to_owned()])
            .env("FORDWAY_OFFER_AFTER", "0")
            .stdin(Stdin::Pipe)
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

    /// Ends its stdin, and waits for its end.
    pub fn finish(mut self) -> Result<()> {
        drop(self.program.take_stdin());
        self.program.finish()?.ok()?;
        Ok(())
    }

    /// The server itself, not the launcher.
    pub fn pid(&self) -> Result<u32> {
        let pids = self.program.pids();
        pids.first().copied().context("the echo server is gone")
    }
}

impl Ping {
    pub(crate) fn start(
        lab: &Lab,
        place: &Place,
        what: &'static str,
        name: SocketAddr,
    ) -> Result<Ping> {
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

    /// Asks what it has seen since it was asked last, as soon as that is so many round trips.
    pub(crate) fn ask(&mut self, least: u64) -> Result<()> {
        // In one piece: of two, the program would take the second for another question.
        self.stdin.write_all(format!("{least}\n").as_bytes())?;
        self.lines += 1;
        Ok(())
    }

    /// Whether it has answered.
    pub(crate) fn has_answered(&self) -> bool {
        let text = self.program.stdout_so_far();
        text.lines().count() >= self.lines && text.ends_with('\n')
    }

    /// Its answer; waits for it.
    pub(crate) fn answer(&self) -> Result<Trips> {
        let program = &self.program;
        program.wait_until(PATIENCE, "answers", || self.has_answered())?;
        let text = program.stdout_so_far();
        let line = text.lines().nth(self.lines - 1).context("no line")?;
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

    /// The program itself.
    pub fn pid(&self) -> Result<u32> {
        let pids = self.program.pids();
        pids.first().copied().context("a neighbour is gone")
    }

    /// Ends it; it must have come through unharmed.
    pub(crate) fn finish(self) -> Result<()> {
        drop(self.stdin);
        self.program.finish()?.ok().context(self.what)?;
        Ok(())
    }
}
