//! Suite `apps`: real programs on the fast path against each rival.
//!
//! For each row and rival, pairs of samples are taken in alternation ([`crate::alternate`]).
//!
//! What is made and closed by the kernel either way (connections of one request) is compared
//! over one and the same network: loopback, or the bridge between the same two domains.
//!
//! Once the placements are known, [`best`] says where each side of a work was fastest, and the
//! work is measured once more with each side there.
//!
//! A fast sample during which nothing went through rings is an error, with the
//! reason that the broker has for it: a figure of the wrong path is worse than none.

use crate::alternate::{self, Taken};
use crate::pace::Pace;
use crate::placement::{self, Placement, client_place, server_place};
use crate::report::{self, JsonLines, Progress, Row};
use crate::work::{self, Runner, Server, ServerKind, Setting, WORKS, Work};
use anyhow::{Context, Result, bail, ensure};
use fordway_lab::{Lab, PathChoice, Place, Program, Spawn, Stdin};
use fordway_lab::{packages, proc};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

/// How long the idle servers are watched.
const IDLE_WINDOW: Duration = Duration::from_secs(10);
/// How long a connection may take to come to the fast path.
const UPGRADE_LIMIT: Duration = Duration::from_secs(5);
/// What a sample takes beside its length.
const SAMPLE_OVERHEAD: Duration = Duration::from_millis(250);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of rows; empty: all.
    pub rows: Vec<String>,
    /// Pairs of samples for each row and rival.
    pub runs: usize,
    /// Length of one sample.
    pub seconds: f64,
    /// On which CPUs.
    pub placement: Placement,
    /// Where the rivals are, if not there, too: each side is where it is fastest.
    pub rival_placement: Option<Placement>,
    /// With a busy loop on each CPU beside.
    pub hogs: bool,
    /// Against all rivals, or only against TCP over loopback.
    pub all_rivals: bool,
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|row| row == name)
    }

    fn works(&self) -> Vec<Work> {
        suite().filter(|work| self.wants(work.name)).collect()
    }

    fn rivals(&self, work: &Work) -> &'static [Rival] {
        if self.all_rivals || work.client.is_short_between_domains() {
            Rival::of(work)
        } else {
            &[Rival::KernelLoopback]
        }
    }

    /// Servers that wake up show it only where nothing else runs.
    fn idle_rows(&self) -> impl Iterator<Item = (&'static str, ServerKind)> {
        let wanted = IDLE_ROWS.into_iter().filter(|row| self.wants(row.0));
        wanted.filter(|_| !self.hogs && self.rival_placement.is_none())
    }

    /// One row against one rival.
    fn estimate(&self, work: &Work) -> Duration {
        let least = work.client.least_seconds();
        let length = |seconds: f64| Duration::from_secs_f64(seconds.max(least)) + SAMPLE_OVERHEAD;
        (length(self.seconds) * self.runs as u32 + length(work::WARM_UP_SECONDS)) * 2
    }

    /// About how long it takes.
    pub fn estimate_all(&self) -> Duration {
        let rows = self.works().into_iter();
        let rows = rows.map(|work| self.estimate(&work) * self.rivals(&work).len() as u32);
        rows.sum::<Duration>() + IDLE_WINDOW * self.idle_rows().count() as u32
    }
}

/// These works once more, each side where these rows show it fastest against TCP over loopback.
pub fn best(works: &[&str], rows: &[Row], base: &Options) -> Vec<Options> {
    let at_best = |&work: &&str| {
        let [placement, rival] = placement::best(rows, work, Rival::KernelLoopback.name())?;
        Some(Options {
            rows: vec![work.to_owned()],
            placement,
            rival_placement: Some(rival),
            all_rivals: false,
            hogs: false,
            ..base.clone()
        })
    };
    works.iter().filter_map(at_best).collect()
}

/// Against what the fast path is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rival {
    /// The kernel's TCP between two domains: veth, bridge, veth.
    KernelBridge,
    /// The kernel's TCP over loopback, no domains.
    KernelLoopback,
    /// The program's own UNIX socket.
    Unix,
}

impl Rival {
    fn name(self) -> &'static str {
        match self {
            Rival::KernelBridge => "kernel-bridge",
            Rival::KernelLoopback => "kernel-loopback",
            Rival::Unix => "unix",
        }
    }

    fn of(work: &Work) -> &'static [Rival] {
        match work.server {
            _ if work.client.is_short_between_domains() => &[Rival::KernelBridge],
            _ if !work::FIRST.contains(&work.name) || work.client.is_short() => {
                &[Rival::KernelLoopback]
            }
            ServerKind::Redis => &[Rival::KernelBridge, Rival::KernelLoopback, Rival::Unix],
            _ => &[Rival::KernelBridge, Rival::KernelLoopback],
        }
    }
}

/// Names of everything that `--rows` takes.
pub fn row_names() -> Vec<&'static str> {
    suite()
        .map(|work| work.name)
        .chain(IDLE_ROWS.iter().map(|row| row.0))
        .collect()
}

fn suite() -> impl Iterator<Item = Work> {
    WORKS
        .into_iter()
        .filter(|work| work.name != "nginx-64m-curl")
}

const IDLE_ROWS: [(&str, ServerKind); 2] = [
    ("idle-redis", ServerKind::Redis),
    ("idle-nginx", ServerKind::Nginx),
];

/// Runs the suite, prints its table; gives the rows.
pub fn run(options: &Options, json: &mut JsonLines, pace: &Pace) -> Result<Vec<Row>> {
    for name in &options.rows {
        ensure!(
            row_names().contains(&name.as_str()),
            "no row is named {name}; there are {}",
            row_names().join(", ")
        );
    }
    placement::ensure_cpus()?;
    let works = options.works();
    packages::ensure(&work::programs(&works))?;
    let idle: Vec<_> = options.idle_rows().collect();
    if !idle.is_empty() {
        packages::ensure(&["socat", "redis-server", "redis-cli", "nginx"])?;
    }

    let mut rows = Vec::new();
    let mut failures = Vec::new();
    let lab = Lab::start()?;
    {
        let steps = works
            .iter()
            .map(|work| options.rivals(work).len() * options.runs)
            .sum::<usize>()
            + idle.len();
        let progress = Progress::new(steps as u64);
        let mut keep = |name: &str, result: Result<Option<Row>>| -> Result<()> {
            match result {
                Ok(None) => progress.say(&format!("{name}: {}", report::ALWAYS_MOVED)),
                Ok(Some(row)) => {
                    json.write(&row)?;
                    rows.push(row);
                }
                Err(error) => {
                    fordway_lab::interrupt::check()?;
                    progress.say(&format!("{name}: {error:#}"));
                    failures.push(name.to_owned());
                }
            }
            Ok(())
        };
        let mut bench = Bench {
            lab: &lab,
            options,
            progress: &progress,
            pace,
            servers: BTreeMap::new(),
        };
        let hogs = options.hogs.then(|| placement::hogs(&lab)).transpose()?;
        for work in &works {
            for &rival in options.rivals(work) {
                pace.begin(options.estimate(work));
                keep(
                    &format!("{} against {}", work.name, rival.name()),
                    bench.row(work, rival),
                )?;
            }
        }
        bench.servers.into_values().try_for_each(Server::stop)?;
        for hog in hogs.into_iter().flatten() {
            hog.stop()?;
        }
        for (name, kind) in idle {
            progress.step(&format!("{name}, {} s", IDLE_WINDOW.as_secs()));
            pace.begin(IDLE_WINDOW);
            keep(name, idle_row(&lab, name, kind, options).map(Some))?;
        }
    }
    let forced = lab.close();
    println!("{}", report::table(&rows));
    ensure!(
        forced.is_empty(),
        "left behind and removed by force: {}",
        forced.join(", ")
    );
    ensure!(failures.is_empty(), "not measured: {}", failures.join(", "));
    Ok(rows)
}

struct Bench<'a> {
    lab: &'a Lab,
    options: &'a Options,
    progress: &'a Progress,
    pace: &'a Pace,
    /// By kind and whether it serves the fast path, and where.
    servers: BTreeMap<(ServerKind, bool, bool), Server>,
}

impl Bench<'_> {
    /// `None`: no pair of samples saw one distance of the CPUs.
    fn row(&mut self, work: &Work, rival: Rival) -> Result<Option<Row>> {
        let is_short = work.client.is_short();
        let in_domains = !is_short || work.client.is_short_between_domains();
        let fast_place = if in_domains {
            client_place()
        } else {
            Place::Here
        };
        let fast_setting = self.setting(fast_place, PathChoice::Auto, false);
        let (place, unix) = match rival {
            Rival::KernelBridge => (client_place(), false),
            Rival::KernelLoopback => (Place::Here, false),
            Rival::Unix => (Place::Here, true),
        };
        let rival_setting = self.setting(place, PathChoice::Kernel, unix);
        let (fast_key, rival_key) = (
            (work.server, true, in_domains),
            (work.server, false, rival == Rival::KernelBridge),
        );
        self.ensure_server(fast_key)?;
        self.ensure_server(rival_key)?;
        let lab = self.lab;
        let mut fast = Runner::new(*work, &self.servers[&fast_key], fast_setting);
        let mut other = Runner::new(*work, &self.servers[&rival_key], rival_setting);
        fast.warm_up(lab)?;
        other.warm_up(lab)?;

        let what = format!("{} against {}", work.name, rival.name());
        let taken = alternate::pairs(
            self.options.runs,
            self.pace,
            |run| self.progress.step(&format!("{what}, run {run}")),
            || {
                let sample = fast.sample(lab, self.options.seconds)?;
                if sample.ring_bytes == 0 && !is_short {
                    bail!("nothing went through rings ({})", alternate::reasons(lab));
                }
                Ok(sample)
            },
            || other.sample(lab, self.options.seconds),
        )?;
        Ok(taken.map(|taken| summary(work, rival, taken, self.options)))
    }

    /// CPUs of the server and of the client.
    fn cpus(&self, is_fast: bool) -> (Option<String>, Option<String>) {
        let rival = self.options.rival_placement.filter(|_| !is_fast);
        rival.unwrap_or(self.options.placement).cpus()
    }

    fn setting(&self, place: Place, path: PathChoice, unix: bool) -> Setting {
        Setting {
            place,
            path,
            cpu: self.cpus(path == PathChoice::Auto).1,
            unix,
            through: None,
        }
    }

    fn ensure_server(&mut self, key: (ServerKind, bool, bool)) -> Result<()> {
        if !self.servers.contains_key(&key) {
            let (kind, fast, in_domain) = key;
            let place = if in_domain {
                server_place()
            } else {
                Place::Here
            };
            let path = if fast {
                PathChoice::Auto
            } else {
                PathChoice::Kernel
            };
            let cpu = self.cpus(fast).0;
            let server = Server::start(self.lab, kind, &place, path, cpu.as_deref())?;
            self.servers.insert(key, server);
        }
        Ok(())
    }
}

fn summary(work: &Work, rival: Rival, taken: Taken, options: &Options) -> Row {
    let row = taken.row(Row {
        hogs: options.hogs,
        ..Row::new(
            work.name,
            rival.name(),
            work.unit,
            taken.regime,
            options.placement,
        )
    });
    match options.rival_placement {
        Some(rival) => row.best([options.placement, rival]),
        None => row,
    }
}

/// Two idle servers, each with one established connection, side by side: how often
/// does each wake up? redis-server has timers of its own, hence the rival.
fn idle_row(lab: &Lab, name: &str, kind: ServerKind, options: &Options) -> Result<Row> {
    let cpu = options.placement.cpus().0;
    let start = |path| -> Result<(Server, Program)> {
        let server = Server::start(lab, kind, &server_place(), path, cpu.as_deref())?;
        let client = idle_client(lab, kind, &server, path)?;
        Ok((server, client))
    };
    let (fast, _fast_client) = start(PathChoice::Auto)?;
    let (other, _other_client) = start(PathChoice::Kernel)?;
    let suffix = format!(":{}", fast.port());
    lab.wait_until(
        UPGRADE_LIMIT,
        "the idle connection is on the fast path",
        || {
            let connections = lab.connections()?;
            Ok(connections
                .iter()
                .any(|connection| connection.local.ends_with(&suffix) && connection.path == "fast"))
        },
    )
    .with_context(|| alternate::reasons(lab))?;
    let regime = placement::regime()?;
    let look = || {
        let count = |server: &Server| {
            (
                server
                    .program
                    .pids()
                    .into_iter()
                    .map(proc::sleeps)
                    .sum::<u64>() as f64,
                server.program.cpu_s(),
            )
        };
        (count(&fast), count(&other))
    };
    let before = look();
    let until = Instant::now() + IDLE_WINDOW;
    while Instant::now() < until {
        fordway_lab::interrupt::check()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let after = look();
    Ok(Row {
        value: after.0.0 - before.0.0,
        rival_value: after.1.0 - before.1.0,
        cpu_s: after.0.1 - before.0.1,
        rival_cpu_s: after.1.1 - before.1.1,
        runs: 1,
        ..Row::new(
            name,
            Rival::KernelBridge.name(),
            "wake-ups/10s",
            regime,
            options.placement,
        )
    })
}

/// A client that talks until its connection has been upgraded, then says nothing.
fn idle_client(lab: &Lab, kind: ServerKind, server: &Server, path: PathChoice) -> Result<Program> {
    let (host, port) = (server.host(), server.port().to_string());
    let (argv, request, answer) = match kind {
        ServerKind::Redis => (
            vec![
                packages::path_of("redis-cli")?,
                "-h".to_owned(),
                host.to_owned(),
                "-p".to_owned(),
                port,
            ],
            "PING\n".to_owned(),
            "PONG",
        ),
        _ => (
            vec![
                packages::path_of("socat")?,
                "-".to_owned(),
                format!("TCP:{host}:{port}"),
            ],
            format!("HEAD /1k HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            "200 OK",
        ),
    };
    let mut client = lab.spawn(&client_place(), path, &Spawn::new(argv).stdin(Stdin::Pipe))?;
    let mut input = client.take_stdin().context("the client has no input")?;
    for round in 1..=16 {
        input.write_all(request.as_bytes())?;
        client.wait_until(UPGRADE_LIMIT, "answers", || {
            client.stdout_so_far().matches(answer).count() >= round
        })?;
    }
    // Held open: end of file would end the client. It ends with its pipe when dropped.
    client.hold_stdin(input);
    Ok(client)
}
