//! Suite `stack`: servers whose domain has a network stack of its own, beside the same servers on Linux's.
//!
//! ```text
//!   client (kernel path) ── veth ─┐          ┌─ tap ─── driver ══ stackd ══ server   `apart`
//!                                 ├ bridge ──┼─ tap ──────────── stackd ══ server   `fused`
//!                                 │          └─ veth ─────────────────────── server  `linux`
//! ```
//! The client, the bridge and its rules are the same for all. Where a server has a CPU of its own, its stack and driver are
//! on that CPU, too, and the client is on the other one. Rows of two servers (`two`) have each on a CPU of its own, with the other
//! one's client. Rows of `both` have the client on a stack of its own as well, and a rule that has to see each packet; without that rule rings go
//! past both stacks (`through`), and the rival is the same pair of programs on the kernel's stack, with rings between them (`rings`).
//! The server of `udp-alone` has a stack without TCP.
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
use std::panic;
use std::thread;
use std::time::Duration;

/// Begins the names of the suite's rows.
pub const PREFIX: &str = "stack-";
/// What is measured on each stack, beside [`MEMCACHED`].
const WORKS_OF_STACKS: [&str; 3] = [REDIS, "iperf3-128k", "iperf3-128k-reverse"];
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
/// The work that is measured in all arrangements.
const REDIS: &str = "redis-get-c50";
const RULES: usize = 100;
/// Least length of a sample of rings past two stacks: each connection begins by frames, which is not to be measured.
const THROUGH_SECONDS_MIN: f64 = 2.0;
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
            let least = case.work.client.least_seconds();
            Duration::from_secs_f64(case.seconds(self.seconds).max(least)) + SAMPLE_OVERHEAD
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
    /// Its own, without TCP, with a driver apart.
    Udp,
    Linux,
    /// The kernel's, with rings between the programs.
    Rings,
}

/// Number of a server of a side, from 0, and of its client.
type Instance = u8;
const INSTANCES_MAX: Instance = 2;

impl Stack {
    /// The domain of a server.
    fn place(self, instance: Instance) -> Place {
        let (name, ip) = match self {
            Stack::Apart => ("apart", 13),
            Stack::Fused => ("fused", 14),
            Stack::Udp => ("udp", 20),
            Stack::Linux => ("linux", 15),
            Stack::Rings => ("rings", 18),
        };
        Place::domain(
            &format!("{name}-{instance}"),
            [10, 77, 0, ip + 10 * instance],
        )
    }

    /// The domain of a client that is not on Linux's stack, as most are.
    fn client_place(self) -> Place {
        match self {
            Stack::Apart => Place::domain("apart-client", [10, 77, 0, 16]),
            Stack::Fused => Place::domain("fused-client", [10, 77, 0, 17]),
            Stack::Udp | Stack::Linux => client_place(),
            Stack::Rings => Place::domain("rings-client", [10, 77, 0, 19]),
        }
    }

    fn path(self) -> PathChoice {
        match self {
            Stack::Apart => PathChoice::Stack,
            Stack::Fused => PathChoice::FusedStack,
            Stack::Udp => PathChoice::UdpStack,
            Stack::Linux => PathChoice::Kernel,
            Stack::Rings => PathChoice::Auto,
        }
    }
}

/// What the packet filter has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    None,
    /// [`RULES`] that each packet is asked about, and that none meets.
    Many,
    /// One that has to see each packet, and stops none: no rings past a stack.
    EachPacket,
}

/// One contender.
#[derive(Clone, Copy, Debug)]
struct Side {
    stack: Stack,
    placement: Placement,
    rules: Rules,
    /// Of the client.
    client: Stack,
    /// Servers, each with a client. The second ones have their CPUs the other way round.
    instances: Instance,
}

impl Side {
    fn of(stack: Stack, placement: Placement) -> Side {
        Side {
            stack,
            placement,
            rules: Rules::None,
            client: Stack::Linux,
            instances: 1,
        }
    }

    /// CPUs of a server and of its client.
    fn cpus(self, instance: Instance) -> [Vec<usize>; 2] {
        let both = [placement::SERVER_CPU, placement::CLIENT_CPU];
        match (self.placement, instance) {
            (Placement::Free, _) => [both.to_vec(), both.to_vec()],
            (_, 0) => both.map(|cpu| vec![cpu]),
            (..) => [both[1], both[0]].map(|cpu| vec![cpu]),
        }
    }
}

/// One row.
#[derive(Debug)]
struct Case {
    name: String,
    work: Work,
    ours: Side,
    rival: &'static str,
    theirs: Side,
}

impl Case {
    /// Length of a sample, of `usual` length elsewhere.
    fn seconds(&self, usual: f64) -> f64 {
        match self.rival {
            "rings" => usual.max(THROUGH_SECONDS_MIN),
            _ => usual,
        }
    }
}

/// All rows.
fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: &str, work: Work, ours, rival, theirs| {
        let name = format!("{PREFIX}{name}");
        cases.push(Case {
            name,
            work,
            ours,
            rival,
            theirs,
        });
    };
    let redis = named(REDIS);
    for placement in [Placement::Free, Placement::Apart] {
        let [apart, fused, linux] =
            [Stack::Apart, Stack::Fused, Stack::Linux].map(|stack| Side::of(stack, placement));
        let works = WORKS_OF_STACKS.map(named).into_iter().chain([MEMCACHED]);
        for work in works.take(if quick { 1 } else { usize::MAX }) {
            add(work.name, work, apart, "linux", linux);
            add(&format!("fused-{}", work.name), work, fused, "linux", linux);
        }
        if !quick {
            let udp = Side::of(Stack::Udp, placement);
            let name = format!("udp-alone-{}", MEMCACHED.name);
            add(&name, MEMCACHED, udp, "linux", linux);
        }
        for (name, side) in [("", apart), ("fused-", fused)] {
            let two = |side| Side {
                instances: 2,
                ..side
            };
            let through = Side {
                client: side.stack,
                ..side
            };
            let both = Side {
                rules: Rules::EachPacket,
                ..through
            };
            let rings = Side {
                client: Stack::Rings,
                ..Side::of(Stack::Rings, placement)
            };
            let row = |what: &str| format!("{name}{what}-{REDIS}");
            add(&row("two"), redis, two(side), "linux", two(linux));
            add(&row("both"), redis, both, "linux", linux);
            add(&row("through"), redis, through, "rings", rings);
        }
        add(&format!("{REDIS}-apart"), redis, apart, "fused", fused);
        for (name, side) in [("", apart), ("linux-", linux)] {
            let with_rules = Side {
                rules: Rules::Many,
                ..side
            };
            let name = format!("{name}{REDIS}-rules-{RULES}");
            add(&name, redis, with_rules, "no rules", side);
        }
    }
    // The scheduler may use both CPUs, or what serves is on one of them.
    for (name, stack) in [("", Stack::Apart), ("fused-", Stack::Fused)] {
        let side = |placement| Side::of(stack, placement);
        let name = format!("{name}{REDIS}-two-cpus");
        let (two, one) = (side(Placement::Free), side(Placement::Apart));
        add(&name, redis, two, "one CPU", one);
    }
    cases
}

fn named(name: &str) -> Work {
    let work = WORKS.into_iter().find(|work| work.name == name);
    work.expect("the bench has this work")
}

fn rules(rules: Rules) -> String {
    let mut text = "table inet bench {
	chain c {
		type filter hook forward priority 0; policy accept;
"
    .to_owned();
    match rules {
        Rules::None => {}
        Rules::Many => {
            for rule in 0..RULES {
                let _ = writeln!(text, "\t\tip saddr 192.0.2.{rule} counter drop");
            }
        }
        Rules::EachPacket => text += "\t\tlimit rate over 1000000000/second drop\n",
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

type Servers = BTreeMap<(ServerKind, Stack, Instance), Server>;

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
        for instance in 0..side.instances {
            if let Entry::Vacant(free) = servers.entry((kind, side.stack, instance)) {
                let (place, path) = (side.stack.place(instance), side.stack.path());
                free.insert(Server::start(lab, kind, &place, path, None)?);
            }
        }
    }
    let servers = &*servers;
    let contender = |side: Side| {
        let ends = (0..side.instances).map(|instance| {
            let server = &servers[&(kind, side.stack, instance)];
            let [_, cpus] = side.cpus(instance);
            let cpus = cpus.iter().map(usize::to_string).collect::<Vec<_>>();
            let setting = Setting {
                place: side.client.client_place(),
                path: side.client.path(),
                cpu: Some(cpus.join(",")),
                unix: false,
                through: None,
            };
            (server, Runner::new(case.work, server, setting))
        });
        (side, ends.collect::<Vec<_>>())
    };
    let (mut ours, mut theirs) = (contender(case.ours), contender(case.theirs));
    // The first run makes the client's domain, whose stack can be held to a CPU from then on.
    sample(lab, &mut ours, work::WARM_UP_SECONDS)?;
    sample(lab, &mut theirs, work::WARM_UP_SECONDS)?;
    let seconds = case.seconds(options.seconds);
    let taken = alternate::pairs(
        options.runs,
        &Pace::unbounded(),
        step,
        || sample(lab, &mut ours, seconds),
        || sample(lab, &mut theirs, seconds),
    )?;
    let (unit, placement) = (case.work.unit, case.ours.placement);
    let row = |regime| Row {
        path: "stack".into(),
        ..Row::new(&case.name, case.rival, unit, regime, placement)
    };
    Ok(taken.map(|taken| taken.row(row(taken.regime))))
}

/// Holds a server to its CPUs, and the stacks and drivers of both ends to theirs.
fn pin(lab: &Lab, side: Side, instance: Instance, server: &Server) -> Result<()> {
    let [own, clients] = side.cpus(instance);
    let tree = proc::tree(server.program.pid()).into_iter();
    let programs = tree.map(|process| process.pid as i32);
    let ends = [
        (side.stack.place(instance), own.clone()),
        (side.client.client_place(), clients),
    ];
    let mut pinned: Vec<_> = programs.map(|pid| (pid, own.clone())).collect();
    for domain in lab.domains()? {
        for (place, cpus) in &ends {
            if let Some(stack) = &domain.stack
                && domain.ip == Some(place.ip())
            {
                pinned.extend(stack.pids.iter().map(|pid| (*pid, cpus.clone())));
            }
        }
    }
    for (pid, cpus) in pinned {
        let mut set = CpuSet::new();
        cpus.into_iter().for_each(|cpu| set.set(cpu));
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let thread = thread?.file_name().to_string_lossy().parse()?;
            let thread = Pid::from_raw(thread).context("a thread without a number")?;
            sched_setaffinity(Some(thread), &set).with_context(|| format!("pin process {pid}"))?;
        }
    }
    Ok(())
}

type Contender<'s> = (Side, Vec<(&'s Server, Runner<'s>)>);

/// The sum of all instances, which run at once.
fn sample(lab: &Lab, (side, ends): &mut Contender<'_>, seconds: f64) -> Result<Sample> {
    let load = Request::FilterLoad {
        text: rules(side.rules),
        epoch: None,
    };
    if let Reply::Error { message, .. } = lab.ask(&load)? {
        bail!("the rules: {message}");
    }
    for (instance, (server, _)) in (0..INSTANCES_MAX).zip(&*ends) {
        pin(lab, *side, instance, server)?;
    }
    let (busy_before, rings_before) = (busy_s()?, lab.ring_bytes()?);
    let taken = thread::scope(|scope| {
        let runs = ends.iter_mut();
        let runs = runs.map(|(_, runner)| scope.spawn(|| runner.sample(lab, seconds)));
        let runs: Vec<_> = runs.collect();
        let ended = runs.into_iter().map(|run| match run.join() {
            Ok(taken) => taken,
            Err(panic) => panic::resume_unwind(panic),
        });
        ended.collect::<Result<Vec<Sample>>>()
    })?;
    Ok(Sample {
        value: taken.iter().map(|one| one.value).sum(),
        done: taken.iter().map(|one| one.done).sum(),
        cpu_s: busy_s()? - busy_before,
        ring_bytes: lab.ring_bytes()? - rings_before,
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
            .map(|case| (&case.name, case.ours.placement, case.rival))
            .collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), cases.len());
    }

    #[test]
    fn rules_are_as_many_as_they_are_said_to_be() {
        for (has, count) in [
            (Rules::Many, RULES),
            (Rules::None, 0),
            (Rules::EachPacket, 1),
        ] {
            assert_eq!(rules(has).matches("drop").count(), count);
        }
    }
}
