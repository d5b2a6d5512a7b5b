//! Suite `wide`: what grows with the number of domains, of busy connections, and of a server's event loops.
//!
//! | rows | figure | rival |
//! |---|---|---|
//! | `wide-make-N` | time to make one more domain, where there are N | `few`: where there are [`FEW`] |
//! | `wide-list-N`, `wide-rules-N` | time for each domain of a listing, and of new rules, which each name one of them | the same |
//! | `wide-memory-N` | memory of the machine for each domain | the same |
//! | `wide-redis-cN` | redis GET with N busy connections | `kernel-loopback` |
//! | `wide-loops-N` | memcached get with [`LOOP_CONNECTIONS`] busy connections and N threads, each with an epoll instance of its own | the same |
//! | `wide-loop-memory-N`, `wide-loop-descriptors-N` | what that server holds meanwhile, for each thread: memory of its own with its part of what is shared, and descriptors | the same |
//!
//! A figure of the first three rows that stays what it is says that the whole grows with its cause and no faster.
//! Such a row's pairs are one figure with many domains and one with few, in the order in which they were taken: the two cannot be
//! taken in turns.

use crate::alternate;
use crate::distance::Regime;
use crate::pace::Pace;
use crate::placement::{self, Placement};
use crate::report::{self, JsonLines, Progress, Row};
use crate::work::{Client, Runner, Server, ServerKind, Setting, Work};
use anyhow::{Context, Result, bail, ensure};
use fordway_lab::{Lab, PathChoice, Place, packages, proc};
use fordwayd::admin::Request;
use std::fs;
use std::time::{Duration, Instant};

/// What stands beside busy connections.
const RIVAL: &str = "kernel-loopback";
/// Begins the names of the suite's rows.
pub const PREFIX: &str = "wide-";
/// Domains of the row that others are compared with.
const FEW: usize = 10;
const DOMAINS: [usize; 5] = [FEW, 30, 100, 300, 1000];
const CONNECTIONS: [(u32, &str); 4] = [
    (10, "wide-redis-c10"),
    (100, "wide-redis-c100"),
    (1000, "wide-redis-c1000"),
    (10_000, "wide-redis-c10000"),
];
/// What is asked of memcached, however many loops it has.
const LOOP_CONNECTIONS: u32 = 64;
const LOOPS: [(u32, &str); 4] = [
    (1, "wide-loops-1"),
    (4, "wide-loops-4"),
    (16, "wide-loops-16"),
    (64, "wide-loops-64"),
];
/// CPU time of a client that has brought its connections to work.
const BUSY_CPU_S: f64 = 0.1;
/// How long it works in all.
const BUSY_SECONDS: f64 = 2.0;
/// Longest wait for that.
const BUSY_LIMIT: Duration = Duration::from_secs(30);
/// With room for the largest number of domains.
const NETWORK: &str = "10.77.0.0/16";
/// What a domain takes to be made, for the estimate.
const MAKING: Duration = Duration::from_millis(20);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Figures for each row.
    pub runs: usize,
    /// Length of one sample of redis.
    pub seconds: f64,
    /// Up to 100 domains, 1,000 connections and 16 loops.
    pub quick: bool,
}

impl Options {
    fn domains(&self) -> &'static [usize] {
        if self.quick { &DOMAINS[..3] } else { &DOMAINS }
    }

    fn connections(&self) -> &'static [(u32, &'static str)] {
        let count = if self.quick { 3 } else { CONNECTIONS.len() };
        &CONNECTIONS[..count]
    }

    fn loops(&self) -> &'static [(u32, &'static str)] {
        let count = if self.quick { 3 } else { LOOPS.len() };
        &LOOPS[..count]
    }

    /// About how long it takes.
    pub fn estimate_all(&self) -> Duration {
        let most = self.domains().last().copied().unwrap_or(0);
        let sample = Duration::from_secs_f64(self.seconds + 1.0);
        let rows = self.connections().len() + self.loops().len();
        let held = Duration::from_secs_f64(2.0 * BUSY_SECONDS) * self.loops().len() as u32;
        MAKING * most as u32 + sample * (2 * self.runs * rows) as u32 + held
    }
}

/// Runs the suite, prints its table; gives the rows.
pub fn run(options: &Options, json: &mut JsonLines) -> Result<Vec<Row>> {
    placement::ensure_cpus()?;
    let redis = ["redis-server", "redis-cli", "redis-benchmark"];
    packages::ensure(&[&["ip", "nft", "memcached"], &redis[..]].concat())?;
    let steps = options.domains().len() + options.connections().len() + options.loops().len();
    let progress = Progress::new(steps as u64);
    let mut rows = Vec::new();
    for part in [domains, connections, loops] {
        let found = part(options, &progress)?;
        found.iter().try_for_each(|row| json.write(row))?;
        rows.extend(found);
    }
    println!("{}", report::table(&rows));
    Ok(rows)
}

/// Figures with so many domains, each per domain.
#[derive(Clone, Debug, Default)]
struct Figures {
    make_ns: Vec<f64>,
    list_ns: Vec<f64>,
    rules_ns: Vec<f64>,
    memory_bytes: Vec<f64>,
}

fn domains(options: &Options, progress: &Progress) -> Result<Vec<Row>> {
    let lab = Lab::start_with(&["--network", NETWORK])?;
    let mut few = None;
    let mut rows = Vec::new();
    let mut made = 0;
    let bytes_before = available_bytes()?;
    for &count in options.domains() {
        progress.step(&format!("{count} domains"));
        let mut figures = Figures::default();
        while made < count {
            let name = name(made);
            let (ip, publish) = (None, Vec::new());
            let begin = Instant::now();
            lab.ask(&Request::DomainAdd { name, ip, publish })?;
            figures.make_ns.push(begin.elapsed().as_nanos() as f64);
            made += 1;
        }
        // The last ones.
        let spare = figures.make_ns.len().saturating_sub(options.runs);
        figures.make_ns.drain(..spare);
        let taken = bytes_before.saturating_sub(available_bytes()?);
        figures.memory_bytes.push(taken as f64 / count as f64);
        let rules = lab.work_dir().join("rules");
        fs::write(&rules, rules_about(count))?;
        for _ in 0..options.runs {
            let begin = Instant::now();
            let listed = lab.domains()?.len();
            ensure!(listed >= count, "{listed} domains are listed");
            figures
                .list_ns
                .push(begin.elapsed().as_nanos() as f64 / count as f64);
            let begin = Instant::now();
            let mut load = lab.command("filter");
            let loaded = load.arg("load").arg(&rules).output()?;
            let said = String::from_utf8_lossy(&loaded.stderr);
            ensure!(loaded.status.success(), "{said}");
            figures
                .rules_ns
                .push(begin.elapsed().as_nanos() as f64 / count as f64);
        }
        let few = few.get_or_insert_with(|| figures.clone());
        rows.extend(rows_of(count, &figures, few));
    }
    close(lab)?;
    Ok(rows)
}

fn name(number: usize) -> String {
    format!("wide{number}")
}

/// A rule about each domain.
fn rules_about(count: usize) -> String {
    let rules = (0..count).map(|number| format!("ip saddr ${} counter\n", name(number)));
    let hook = "type filter hook forward priority 0";
    let rules: String = rules.collect();
    format!("table ip wide {{\nchain each {{\n{hook}\n{rules}}}\n}}\n")
}

/// Memory that the kernel could give away.
fn available_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    let kilobytes: u64 = kilobytes.context("no MemAvailable")?.parse()?;
    Ok(kilobytes << 10)
}

fn rows_of(count: usize, many: &Figures, few: &Figures) -> Vec<Row> {
    let row = |what: &str, unit, pick: fn(&Figures) -> &Vec<f64>| {
        let pairs = pick(many).iter().zip(pick(few));
        let pairs = pairs.map(|(many, few)| [*many, *few]).collect();
        let name = format!("{PREFIX}{what}-{count}");
        Row::new(&name, "few", unit, Regime::Near, Placement::Free).of_pairs(pairs)
    };
    vec![
        row("make", "ns", |figures| &figures.make_ns),
        row("list", "ns", |figures| &figures.list_ns),
        row("rules", "ns", |figures| &figures.rules_ns),
        row("memory", "B", |figures| &figures.memory_bytes),
    ]
}

fn connections(options: &Options, progress: &Progress) -> Result<Vec<Row>> {
    let lab = Lab::start()?;
    let servers = Pair::start(&lab, ServerKind::Redis)?;
    let mut rows = Vec::new();
    for &(clients, name) in options.connections() {
        progress.step(name);
        rows.extend(servers.measure(&lab, busy(clients, name), options, progress)?);
    }
    servers.stop()?;
    close(lab)?;
    Ok(rows)
}

fn loops(options: &Options, progress: &Progress) -> Result<Vec<Row>> {
    let lab = Lab::start()?;
    let mut rows = Vec::new();
    for &(threads, name) in options.loops() {
        progress.step(name);
        let server = ServerKind::Memcached { threads };
        let work = Work {
            name,
            what: "memcached get, by many event loops",
            unit: "req/s",
            server,
            client: Client::Memcached {
                connections: LOOP_CONNECTIONS,
                datagrams: false,
            },
        };
        let servers = Pair::start(&lab, server)?;
        rows.extend(servers.measure(&lab, work, options, progress)?);
        let [ours, theirs] = [0, 1].map(|side| servers.held(&lab, work, side));
        let whats = [("loop-memory", "B"), ("loop-descriptors", "descriptors")];
        for ((what, unit), pair) in whats.into_iter().zip(ours?.into_iter().zip(theirs?)) {
            let name = format!("{PREFIX}{what}-{threads}");
            let row = Row::new(&name, RIVAL, unit, Regime::Near, Placement::Free);
            let pair = [pair.0, pair.1].map(|whole| whole / f64::from(threads));
            rows.push(row.of_pairs(vec![pair]));
        }
        servers.stop()?;
    }
    close(lab)?;
    Ok(rows)
}

/// One server of each path, on a CPU of their own.
struct Pair([Server; 2]);

const PATHS: [PathChoice; 2] = [PathChoice::Auto, PathChoice::Kernel];

impl Pair {
    fn start(lab: &Lab, kind: ServerKind) -> Result<Pair> {
        let (cpu, _) = Placement::Apart.cpus();
        let serve = |path| Server::start(lab, kind, &Place::Here, path, cpu.as_deref());
        let [ours, theirs] = PATHS.map(serve);
        Ok(Pair([ours?, theirs?]))
    }

    fn stop(self) -> Result<()> {
        self.0.into_iter().try_for_each(Server::stop)
    }

    fn runner(&self, work: Work, side: usize) -> Runner<'_> {
        let (_, cpu) = Placement::Apart.cpus();
        let setting = Setting {
            place: Place::Here,
            path: PATHS[side],
            cpu,
            unix: false,
            through: None,
        };
        Runner::new(work, &self.0[side], setting)
    }

    fn measure(
        &self,
        lab: &Lab,
        work: Work,
        options: &Options,
        progress: &Progress,
    ) -> Result<Option<Row>> {
        let name = work.name;
        let [mut ours, mut theirs] = [0, 1].map(|side| self.runner(work, side));
        ours.warm_up(lab)?;
        theirs.warm_up(lab)?;
        let mine = || {
            let sample = ours.sample(lab, options.seconds)?;
            if sample.ring_bytes == 0 {
                bail!(
                    "{name}: nothing went by rings ({})",
                    alternate::reasons(lab)
                );
            }
            Ok(sample)
        };
        let others = || theirs.sample(lab, options.seconds);
        let taken = alternate::pairs(options.runs, &Pace::unbounded(), |_| (), mine, others)?;
        if taken.is_none() {
            progress.say(&format!("{name}: {}", report::ALWAYS_MOVED));
        }
        let place = Placement::Apart;
        Ok(taken.map(|taken| taken.row(Row::new(name, RIVAL, work.unit, taken.regime, place))))
    }

    /// Bytes and descriptors of a server while all its connections are busy.
    fn held(&self, lab: &Lab, work: Work, side: usize) -> Result<[f64; 2]> {
        let client = self.runner(work, side).spawn(lab, BUSY_SECONDS)?;
        client.wait_until(BUSY_LIMIT, "works", || client.cpu_s() > BUSY_CPU_S)?;
        let pid = self.0[side].program.pids().first().copied();
        let pid = pid.context("the server is gone")?;
        let figures = [memory_bytes(pid)?, proc::descriptors(pid).len() as f64];
        client.finish()?.ok()?;
        Ok(figures)
    }
}

/// What a process has for itself, and its part of what it shares (proc_pid_smaps(5)).
fn memory_bytes(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let kilobytes = ["Pss_Anon:", "Pss_Shmem:"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let figure = line.and_then(|line| line.split_whitespace().next());
        figure.and_then(|figure| figure.parse::<f64>().ok())
    });
    let [own, shared] = kilobytes.map(|figure| figure.context("no smaps_rollup"));
    Ok((own? + shared?) * 1024.0)
}

fn close(lab: Lab) -> Result<()> {
    let forced = lab.close();
    ensure!(forced.is_empty(), "left behind: {}", forced.join(", "));
    Ok(())
}

fn busy(clients: u32, name: &'static str) -> Work {
    Work {
        name,
        what: "redis GET, all connections busy",
        unit: "req/s",
        server: ServerKind::Redis,
        client: Client::Redis {
            command: "get",
            clients,
            pipeline: 1,
        },
    }
}
