//! The demo: redis-server, nginx and iperf3, each in a domain of its own, asked
//! from a fourth domain, over the kernel path and the fast path in turn; one table.
//!
//! Each server runs twice in its domain, once started with `--path kernel`, so
//! that the two paths can alternate without a restart. Takes about a minute.

use crate::apps::{CLIENT_CPU, SERVER_CPU};
use crate::lab::{Lab, PathChoice, Place};
use crate::report::{self, Progress, Table, median};
use crate::work::{Client, Runner, Sample, Server, ServerKind, Setting, WORKS, Work};
use crate::{interrupt, packages, work};
use anyhow::{Context, Result, ensure};
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
/// The client of the demo.
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

fn domain_of(kind: ServerKind) -> Place {
    match kind {
        ServerKind::Redis => Place::domain("db", [10, 77, 0, 3]),
        ServerKind::Nginx => Place::domain("www", [10, 77, 0, 4]),
        ServerKind::Iperf3 => Place::domain("store", [10, 77, 0, 5]),
    }
}

/// Runs it.
pub fn run(options: &Options) -> Result<()> {
    packages::ensure(&work::PROGRAMS)?;
    let works: Vec<Work> = WORKS
        .into_iter()
        .filter(|work| SHOWN.contains(&work.name))
        .collect();
    let lab = Lab::start()?;
    let result = show(&lab, &works, options);
    let forced = lab.close();
    let (table, ring_bytes) = result?;
    println!("\n{table}");
    println!("Files that curl fetched were compared byte by byte.");
    println!(
        "{} went through rings. Broker, domains and programs are gone again.",
        report::bytes(ring_bytes)
    );
    ensure!(
        forced.is_empty(),
        "left behind and removed by force: {}",
        forced.join(", ")
    );
    ensure!(
        ring_bytes > 0,
        "nothing went through rings: the fast path did not work"
    );
    Ok(())
}

fn show(lab: &Lab, works: &[Work], options: &Options) -> Result<(Table, u64)> {
    // On one CPU there is nothing to choose.
    let two_cpus = std::thread::available_parallelism()?.get() > CLIENT_CPU;
    let cpu = |cpu: usize| (options.pinned && two_cpus).then(|| cpu.to_string());
    let kinds = [ServerKind::Redis, ServerKind::Nginx, ServerKind::Iperf3];
    let progress = Progress::new((kinds.len() + works.len() * options.runs) as u64);
    let client = Place::domain(CLIENT.0, CLIENT.1);
    let setting = |path| Setting {
        place: client.clone(),
        path,
        cpu: cpu(CLIENT_CPU),
        unix: false,
    };

    let mut servers = BTreeMap::new();
    for kind in kinds {
        let place = domain_of(kind);
        progress.step(&format!("starting {kind:?} at {}", place.ip()).to_lowercase());
        for path in [PathChoice::Kernel, PathChoice::Auto] {
            let server = Server::start(lab, kind, &place, path, cpu(SERVER_CPU).as_deref())?;
            servers.insert((kind, path == PathChoice::Auto), server);
        }
    }

    let mut table = Table::new([
        "work",
        "kernel path",
        "fast path",
        "ratio",
        "CPU s kernel",
        "CPU s fast",
        "per",
        "through rings",
    ]);
    for work in works {
        let mut kernel = Runner::new(
            *work,
            &servers[&(work.server, false)],
            setting(PathChoice::Kernel),
        );
        let mut fast = Runner::new(
            *work,
            &servers[&(work.server, true)],
            setting(PathChoice::Auto),
        );
        kernel.warm_up(lab)?;
        fast.warm_up(lab)?;
        let mut pairs = Vec::new();
        for run in 1..=options.runs {
            progress.step(&format!("{}, run {run} of {}", work.what, options.runs));
            pairs.push((
                kernel.sample(lab, options.seconds)?,
                fast.sample(lab, options.seconds)?,
            ));
        }
        table.line(line(work, &pairs));
    }
    show_connections(lab, works, &servers, &setting(PathChoice::Auto), &progress)?;
    let ring_bytes = lab.ring_bytes()?;
    servers.into_values().try_for_each(Server::stop)?;
    Ok((table, ring_bytes))
}

fn line(work: &Work, pairs: &[(Sample, Sample)]) -> [String; 8] {
    let kernel = median(pairs.iter().map(|pair| pair.0.value));
    let fast = median(pairs.iter().map(|pair| pair.1.value));
    let ratio = median(pairs.iter().map(|pair| pair.1.value / pair.0.value));
    let (unit_size, unit_name) = if work.unit == "GB/s" {
        (1e9, "GB")
    } else {
        (1e6, "Mreq")
    };
    let cpu = |samples: Vec<Sample>| {
        format!(
            "{:.2}",
            median(
                samples
                    .iter()
                    .map(|sample| sample.cpu_s / sample.done * unit_size)
            )
        )
    };
    [
        work.what.to_owned(),
        report::figure(kernel, work.unit),
        report::figure(fast, work.unit),
        report::ratio(Some(ratio)),
        cpu(pairs.iter().map(|pair| pair.0).collect()),
        cpu(pairs.iter().map(|pair| pair.1).collect()),
        unit_name.to_owned(),
        report::bytes(pairs.iter().map(|pair| pair.1.ring_bytes).sum()),
    ]
}

/// `fordway ss` while connections are open, as a user would see it.
fn show_connections(
    lab: &Lab,
    works: &[Work],
    servers: &BTreeMap<(ServerKind, bool), Server>,
    setting: &Setting,
    progress: &Progress,
) -> Result<()> {
    let Some(work) = works
        .iter()
        .find(|work| matches!(work.client, Client::Iperf3 { .. }))
    else {
        return Ok(());
    };
    let runner = Runner::new(*work, &servers[&(work.server, true)], setting.clone());
    let running = runner.spawn(lab, 1.0)?;
    let fast = || {
        Ok(lab
            .connections()?
            .iter()
            .any(|connection| connection.path == "fast"))
    };
    let upgraded = lab.wait_until(UPGRADE_LIMIT, "a connection is on the fast path", fast);
    let output = lab
        .command("ss")
        .stdin(Stdio::null())
        .output()
        .context("fordway ss")?;
    interrupt::check()?;
    progress.say("\n$ fordway ss        (while iperf3 runs)");
    for line in String::from_utf8_lossy(&output.stdout)
        .lines()
        .take(SS_LINES)
    {
        progress.say(&format!("  {line}"));
    }
    running.finish()?.ok()?;
    upgraded
}
