//! Suite `stack`: servers whose domain has a network stack of its own, beside the same servers on Linux's.
//!
//! ```text
//!   client (kernel path) ── veth ─┐          ┌─ veth ── driver ══ stackd ══ server   `apart`
//!                                 ├ bridge ──┼─ veth ──────────── stackd ══ server   `fused`
//!                                 │          └─ veth ─────────────────────── server  `linux`
//! ```
//! The client, the bridge and its rules are the same for all. Where a server has a CPU of its own, its stack and driver are
//! on that CPU, too, and the client is on the other one.
//!
//! CPU seconds are those of the whole machine meanwhile: what Linux does for a packet is in no process's account. So nothing
//! else may run.

use crate::alternate;
use crate::pace::Pace;
use crate::placement::{self, Placement, client_place};
use crate::report::{self, JsonLines, Progress, Row};
use crate::work::{self, Client, Runner, Sample, Server, ServerKind, Setting, WORKS, Work};
use anyhow::{Context, Result, bail, ensure};
use fordway_lab::{Lab, PathChoice, Place, packages, proc};
use fordwayd::admin::{Reply, Request};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write;
use std::fs;
use std::time::Duration;

/// Begins the names of the suite's rows.
pub const PREFIX: &str = "stack-";
/// What is measured on each stack, beside [`MEMCACHED`].
const WORKS_OF_STACKS: [&str; 3] = ["redis-get-c50", "iperf3-128k", "iperf3-128k-reverse"];
const MEMCACHED: Work = Work {
    name: "memcached-udp-c10",
    what: "memcached get of 100 B by UDP, 10 sockets",
    unit: "req/s",
    server: ServerKind::MemcachedDatagrams,
    client: Client::Memcached {
        connections: 10,
        datagrams: true,
    },
};
/// The work that is measured with rules and without.
const WORK_OF_RULES: &str = "redis-get-c50";
const RULES: usize = 100;
/// What a sample takes beside its length.
const SAMPLE_OVERHEAD: Duration = Duration::from_millis(400);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Pairs of samples for each row and rival.
    pub runs: usize,
    /// Length of one sample.
    pub seconds: f64,
    /// redis only.
    pub quick: bool,
}

impl Options {
    /// About how long it takes.
    pub fn estimate_all(&self) -> Duration {
        let samples = cases(self.quick).into_iter().map(|case| {
            let least = f64::from(u8::from(case.work.client.counts_whole_seconds()));
            Duration::from_secs_f64(self.seconds.max(least)) + SAMPLE_OVERHEAD
        });
        samples.sum::<Duration>() * 2 * (self.runs as u32 + 1)
    }
}

/// Whose stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stack {
    /// Its own, with a driver apart.
    Apart,
    /// Its own, with the driver in it.
    Fused,
    Linux,
}

impl Stack {
    fn place(self) -> Place {
        match self {
            Stack::Apart => Place::domain("apart", [10, 77, 0, 13]),
            Stack::Fused => Place::domain("fused", [10, 77, 0, 14]),
            Stack::Linux => Place::domain("linux", [10, 77, 0, 15]),
        }
    }

    fn path(self) -> PathChoice {
        match self {
            Stack::Apart => PathChoice::Stack,
            Stack::Fused => PathChoice::FusedStack,
            Stack::Linux => PathChoice::Kernel,
        }
    }
}

/// One contender.
#[derive(Clone, Copy, Debug)]
struct Side {
    stack: Stack,
    has_rules: bool,
}

/// One row.
#[derive(Debug)]
struct Case {
    name: String,
    work: Work,
    placement: Placement,
    ours: Side,
    rival: &'static str,
    theirs: Side,
}

/// All rows.
fn cases(quick: bool) -> Vec<Case> {
    let side = |stack| Side {
        stack,
        has_rules: false,
    };
    let with_rules = |stack| Side {
        stack,
        has_rules: true,
    };
    let [apart, fused, linux] = [Stack::Apart, Stack::Fused, Stack::Linux].map(side);
    let mut cases = Vec::new();
    for placement in [Placement::Free, Placement::Apart] {
        let mut add = |name: String, work: Work, ours, rival, theirs| {
            cases.push(Case {
                name: format!("{PREFIX}{name}"),
                work,
                placement,
                ours,
                rival,
                theirs,
            });
        };
        let works = WORKS_OF_STACKS.map(named).into_iter().chain([MEMCACHED]);
        for work in works.take(if quick { 1 } else { usize::MAX }) {
            let name = work.name;
            add(name.to_owned(), work, apart, "linux", linux);
            add(format!("fused-{name}"), work, fused, "linux", linux);
        }
        let work = named(WORK_OF_RULES);
        add(
            format!("{WORK_OF_RULES}-apart"),
            work,
            apart,
            "fused",
            fused,
        );
        let (name, rival) = (format!("{WORK_OF_RULES}-rules-{RULES}"), "no rules");
        add(name.clone(), work, with_rules(Stack::Apart), rival, apart);
        let name = format!("linux-{name}");
        add(name, work, with_rules(Stack::Linux), rival, linux);
    }
    cases
}

fn named(name: &str) -> Work {
    let work = WORKS.into_iter().find(|work| work.name == name);
    work.expect("the bench has this work")
}

/// Rules that each packet is asked about, and that none meets.
fn rules(has_rules: bool) -> String {
    let mut text = "table inet bench {
	chain c {
		type filter hook forward priority 0; policy accept;
"
    .to_owned();
    for rule in (0..RULES).filter(|_| has_rules) {
        let _ = writeln!(text, "\t\tip saddr 192.0.2.{rule} counter drop");
    }
    text + "\t}\n}\n"
}

/// Runs the suite, prints its table; gives the rows.
pub fn run(options: &Options, json: &mut JsonLines) -> Result<Vec<Row>> {
    placement::ensure_cpus()?;
    let cases = cases(options.quick);
    let works: Vec<Work> = cases.iter().map(|case| case.work).collect();
    packages::ensure(&work::programs(&works))?;
    let lab = Lab::start()?;
    let measured = measure(&lab, options, &cases, json);
    let forced = lab.close();
    let rows = measured?;
    ensure!(forced.is_empty(), "left behind: {}", forced.join(", "));
    println!("{}", report::table(&rows));
    Ok(rows)
}

fn measure(lab: &Lab, options: &Options, cases: &[Case], json: &mut JsonLines) -> Result<Vec<Row>> {
    let progress = Progress::new((cases.len() * options.runs) as u64);
    let mut servers = BTreeMap::new();
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for case in cases {
        let what = format!("{} against {}", case.name, case.rival);
        let step = |run| progress.step(&format!("{what}, run {run}"));
        match row(lab, options, case, &mut servers, step) {
            Ok(Some(row)) => {
                json.write(&row)?;
                rows.push(row);
            }
            Ok(None) => progress.say(&format!("{what}: {}", report::ALWAYS_MOVED)),
            Err(error) => {
                fordway_lab::interrupt::check()?;
                progress.say(&format!("{what}: {error:#}"));
                failures.push(what);
            }
        }
    }
    servers.into_values().try_for_each(Server::stop)?;
    ensure!(failures.is_empty(), "not measured: {}", failures.join(", "));
    Ok(rows)
}

type Servers = BTreeMap<(ServerKind, Stack), Server>;

/// `None`: no pair of samples saw one distance of the CPUs.
fn row(
    lab: &Lab,
    options: &Options,
    case: &Case,
    servers: &mut Servers,
    step: impl Fn(usize),
) -> Result<Option<Row>> {
    let kind = case.work.server;
    for side in [case.ours, case.theirs] {
        let (place, path) = (side.stack.place(), side.stack.path());
        let server = match servers.entry((kind, side.stack)) {
            Entry::Occupied(runs) => runs.into_mut(),
            Entry::Vacant(free) => free.insert(Server::start(lab, kind, &place, path, None)?),
        };
        pin(lab, server, &place, case.placement)?;
    }
    let contender = |side: Side| {
        let setting = Setting {
            place: client_place(),
            path: PathChoice::Kernel,
            cpu: case.placement.cpus().1,
            unix: false,
            through: None,
        };
        let server = &servers[&(kind, side.stack)];
        (side, Runner::new(case.work, server, setting))
    };
    let (mut ours, mut theirs) = (contender(case.ours), contender(case.theirs));
    sample(lab, &mut ours, work::WARM_UP_SECONDS)?;
    sample(lab, &mut theirs, work::WARM_UP_SECONDS)?;
    let seconds = options.seconds;
    let taken = alternate::pairs(
        options.runs,
        &Pace::unbounded(),
        step,
        || sample(lab, &mut ours, seconds),
        || sample(lab, &mut theirs, seconds),
    )?;
    let (unit, placement) = (case.work.unit, case.placement);
    let row = |regime| Row {
        path: "stack".into(),
        ..Row::new(&case.name, case.rival, unit, regime, placement)
    };
    Ok(taken.map(|taken| taken.row(row(taken.regime))))
}

/// Holds a server, and its stack and driver, to the CPU of servers, or lets them go.
fn pin(lab: &Lab, server: &Server, place: &Place, placement: Placement) -> Result<()> {
    let domains = lab.domains()?;
    let of_server = domains
        .into_iter()
        .find(|domain| domain.ip == Some(place.ip()));
    let stack = of_server.and_then(|domain| domain.stack);
    let parts = stack.map(|stack| stack.pids).unwrap_or_default();
    let tree = proc::tree(server.program.pid()).into_iter();
    let own = tree.map(|process| process.pid as i32);
    let mut set = CpuSet::new();
    for cpu in [placement::SERVER_CPU, placement::CLIENT_CPU] {
        if placement == Placement::Free || cpu == placement::SERVER_CPU {
            set.set(cpu);
        }
    }
    for pid in own.chain(parts) {
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let thread = thread?.file_name().to_string_lossy().parse()?;
            let thread = Pid::from_raw(thread).context("a thread without a number")?;
            sched_setaffinity(Some(thread), &set).with_context(|| format!("pin process {pid}"))?;
        }
    }
    Ok(())
}

fn sample(lab: &Lab, (side, runner): &mut (Side, Runner<'_>), seconds: f64) -> Result<Sample> {
    let load = Request::FilterLoad {
        text: rules(side.has_rules),
        epoch: None,
    };
    if let Reply::Error { message, .. } = lab.ask(&load)? {
        bail!("the rules: {message}");
    }
    let (busy_before, rings_before) = (busy_s()?, lab.ring_bytes()?);
    let taken = runner.sample(lab, seconds)?;
    Ok(Sample {
        cpu_s: busy_s()? - busy_before,
        ring_bytes: lab.ring_bytes()? - rings_before,
        ..taken
    })
}

/// CPU seconds of the machine that were not idle: all of the first line of proc_stat(5) but idle, iowait, and what guests
/// had, which is in user.
fn busy_s() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let fields = line.split_whitespace().skip(1).map(str::parse::<u64>);
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let busy: u64 = [0, 1, 2, 5, 6]
        .iter()
        .filter_map(|&at| fields.get(at))
        .sum();
    Ok(busy as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_a_name_of_its_own() {
        let cases = cases(false);
        let mut names: Vec<_> = cases
            .iter()
            .map(|case| (&case.name, case.placement, case.rival))
            .collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), cases.len());
    }

    #[test]
    fn rules_are_as_many_as_they_are_said_to_be() {
        assert_eq!(rules(true).matches("drop").count(), RULES);
        assert_eq!(rules(false).matches("drop").count(), 0);
    }
}
