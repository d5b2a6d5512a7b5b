//! The demo: redis-server, nginx and iperf3, each in a domain of its own, asked
//! from a fourth domain, over the kernel path and the fast path in turn; one table.
//!
//! Each server runs twice in its domain, once started with `--path kernel`, so
//! that the two paths can alternate without a restart. Takes about a minute.

use crate::pairs::median;
use crate::placement::{CLIENT_CPU, SERVER_CPU};
use crate::report::{self, Progress, Table};
use crate::work;
use crate::work::{Client, Runner, Sample, Server, ServerKind, Setting, WORKS, Work};
use anyhow::{Context, Result, ensure};
use fordway_lab::{Lab, PathChoice, Place};
use fordway_lab::{interrupt, packages};
use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

/// Works that the demo shows.
const SHOWN: [&str; 5] = [
    "redis-get-c1",
    "redis-get-c50",
    "nginx-1k-c10",
    "nginx-64m-curl",
    "iperf3-128k",
];
/// Servers, each with its domain.
const SERVERS: [(ServerKind, &str, [u8; 4]); 3] = [
    (ServerKind::Redis, "db", [10, 77, 0, 3]),
    (ServerKind::Nginx, "www", [10, 77, 0, 4]),
    (ServerKind::Iperf3, "store", [10, 77, 0, 5]),
];
/// The domain of the clients.
const CLIENT: (&str, [u8; 4]) = ("web", [10, 77, 0, 6]);
/// How long a connection may take to show up on the fast path.
const UPGRADE_LIMIT: Duration = Duration::from_secs(5);
/// Lines of `fordway ss` that are shown.
const SS_LINES: usize = 5;

/// How long, how often, where.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Alternations of each work.
    pub runs: usize,
    /// Length of one sample.
    pub seconds: f64,
    /// One CPU for servers, another for clients.
    pub pinned: bool,
}

/// Runs it.
pub fn run(options: &Options) -> Result<()> {
    let shown: Vec<Work> = WORKS
        .into_iter()
        .filter(|work| SHOWN.contains(&work.name))
        .collect();
    packages::ensure(&work::programs(&shown))?;
    let lab = Lab::start()?;
    let shown = Demo::new(&lab, *options).and_then(Demo::show);
    let forced = lab.close();
    let shown = shown?;
    println!("\n{}", shown.table);
    println!("Ratios are medians over pairs of runs, one right after the other. CPU: the");
    println!("seconds of client and server for the same work, of the kernel path's.");
    println!("What curl fetched was compared byte by byte with the server's file.");
    let total = report::bytes(shown.ring_bytes);
    let placed = match options.pinned {
        true => "servers on CPU 0, clients on CPU 1",
        false => "the scheduler placed the programs",
    };
    println!("{}; {placed}.", report::cpu_model());
    println!("{total} went through rings, warm-up and set-up included.");
    println!("Broker, domains and programs are gone again.");
    ensure!(
        forced.is_empty(),
        "left behind and removed by force: {}",
        forced.join(", ")
    );
    let failures = shown.failures.join(", ");
    ensure!(failures.is_empty(), "not shown: {failures}");
    Ok(())
}

/// What came of it.
struct Shown {
    table: Table,
    ring_bytes: u64,
    failures: Vec<&'static str>,
}

struct Demo<'a> {
    lab: &'a Lab,
    options: Options,
    progress: Progress,
    /// By kind and whether it serves the fast path.
    servers: BTreeMap<(ServerKind, bool), Server>,
}

impl<'a> Demo<'a> {
    fn new(lab: &'a Lab, mut options: Options) -> Result<Demo<'a>> {
        // On one CPU there is nothing to choose.
        options.pinned &= std::thread::available_parallelism()?.get() > CLIENT_CPU;
        let steps = SERVERS.len() + SHOWN.len() * options.runs;
        Ok(Demo {
            lab,
            options,
            progress: Progress::new(steps as u64),
            servers: BTreeMap::new(),
        })
    }

    fn show(mut self) -> Result<Shown> {
        self.start_servers()?;
        let mut table = Table::new(["work", "kernel path", "fast path", "ratio", "CPU"]);
        let mut failures = Vec::new();
        for work in WORKS.iter().filter(|work| SHOWN.contains(&work.name)) {
            match self.measure(work) {
                Ok(pairs) => table.line(line(work, &pairs)),
                Err(error) => {
                    interrupt::check()?;
                    self.progress.say(&format!("{}: {error:#}", work.what));
                    failures.push(work.what);
                }
            }
        }
        self.show_connections()?;
        let ring_bytes = self.lab.ring_bytes()?;
        self.servers.into_values().try_for_each(Server::stop)?;
        Ok(Shown {
            table,
            ring_bytes,
            failures,
        })
    }

    fn start_servers(&mut self) -> Result<()> {
        let cpu = self.cpu(SERVER_CPU);
        for (kind, domain, ip) in SERVERS {
            let place = Place::domain(domain, ip);
            let what = format!("starting {kind:?} in domain {domain} at {}", place.ip());
            self.progress.step(&what.to_lowercase());
            for path in [PathChoice::Kernel, PathChoice::Auto] {
                let server = Server::start(self.lab, kind, &place, path, cpu.as_deref())?;
                self.servers
                    .insert((kind, path == PathChoice::Auto), server);
            }
        }
        Ok(())
    }

    /// Samples on the kernel path and on the fast path, in turn.
    fn measure(&self, work: &Work) -> Result<Vec<(Sample, Sample)>> {
        let mut kernel = self.runner(work, PathChoice::Kernel);
        let mut fast = self.runner(work, PathChoice::Auto);
        kernel.warm_up(self.lab)?;
        fast.warm_up(self.lab)?;
        let mut pairs = Vec::new();
        for run in 1..=self.options.runs {
            let runs = self.options.runs;
            self.progress
                .step(&format!("{}, {run} of {runs}", work.what));
            let slow = kernel.sample(self.lab, self.options.seconds)?;
            let quick = fast.sample(self.lab, self.options.seconds)?;
            ensure!(quick.ring_bytes > 0, "nothing went through rings");
            pairs.push((slow, quick));
        }
        Ok(pairs)
    }

    fn runner(&self, work: &Work, path: PathChoice) -> Runner<'_> {
        let setting = Setting {
            place: Place::domain(CLIENT.0, CLIENT.1),
            path,
            cpu: self.cpu(CLIENT_CPU),
            unix: false,
        };
        let server = &self.servers[&(work.server, path == PathChoice::Auto)];
        Runner::new(*work, server, setting)
    }

    fn cpu(&self, cpu: usize) -> Option<String> {
        self.options.pinned.then(|| cpu.to_string())
    }

    /// `fordway ss` while connections are open, as a user would see it.
    fn show_connections(&self) -> Result<()> {
        let is_iperf3 = |work: &&Work| matches!(work.client, Client::Iperf3 { .. });
        let work = WORKS.iter().find(is_iperf3).context("no work has iperf3")?;
        let running = self.runner(work, PathChoice::Auto).spawn(self.lab, 1.0)?;
        let fast = || {
            let connections = self.lab.connections()?;
            Ok(connections
                .iter()
                .any(|connection| connection.path == "fast" && connection.ring_bytes_tx > 0))
        };
        let what = "a connection is on the fast path";
        let upgraded = self.lab.wait_until(UPGRADE_LIMIT, what, fast);
        let output = self.lab.command("ss").stdin(Stdio::null()).output()?;
        interrupt::check()?;
        self.progress.say("\n$ fordway ss    (while iperf3 runs)");
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines()
            .take(SS_LINES)
            .for_each(|line| self.progress.say(line));
        running.finish()?.ok()?;
        upgraded
    }
}

fn line(work: &Work, pairs: &[(Sample, Sample)]) -> [String; 5] {
    let middle = |pick: &dyn Fn(&(Sample, Sample)) -> f64| median(pairs.iter().map(pick));
    let cpu_s = |sample: &Sample| sample.cpu_s / sample.done;
    [
        work.what.to_owned(),
        report::figure(middle(&|pair| pair.0.value), work.unit),
        report::figure(middle(&|pair| pair.1.value), work.unit),
        report::ratio(Some(middle(&|pair| pair.1.value / pair.0.value))),
        report::ratio(Some(middle(&|pair| cpu_s(&pair.1) / cpu_s(&pair.0)))),
    ]
}
