//! `fordway-bench stack-count`: instructions of a request of 100 B and its reply, on a network stack of the domain's own
//! beside Linux's, and where they go.
//!
//! ```text
//!   client ── veth ── bridge ─┬─ veth ──────────────────── server   `linux`
//!                             ├─ tap ── driver ══ stackd ═ server   `apart`
//!                             └─ tap ─────────── stackd ══ server   `fused`
//! ```
//! A virtual machine seldom has counters of instructions. So it is counted in an emulated one ([`fordway_xen_testbed`],
//! Linux alone), whose clock is the count: one CPU, an instruction a nanosecond. [`inside`] runs there, as a job; [`profile`]
//! says whose an instruction is; [`talk`] is the server and its client. What this gives is no time: nothing misses a
//! cache there, and a trap costs no more than its instructions.

pub mod inside;
pub mod profile;
pub mod talk;

use crate::report::Table;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use fordway_lab::find_fordway;
use fordway_xen_testbed::{Case, Event, Images, Job, Limits, Source, qemu};
use profile::Share;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const SCHEMA: u32 = 1;
/// What a request may take between the domain's device and its program, of Linux's.
const GOAL: f64 = 0.5;
/// What the job needs of the build.
const PARTS: [&str; 4] = [
    "fordway",
    "libfordway.so",
    "fordway-stackd",
    "fordway-driver",
];
/// Lines of a table of stages and of one of functions.
const STAGES_SHOWN: usize = 30;
const FUNCTIONS_SHOWN: usize = 15;
/// Of the job, emulated; of the machine, the host's.
const LIMIT_S: u32 = 1800;
const MACHINE_LIMIT: Duration = Duration::from_secs(3600);

type Connections = usize;

/// What to count.
#[derive(Clone, Debug, Args)]
pub struct CountArgs {
    /// Write the rows to this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Requests of a round.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    requests: u32,
    /// Rounds of each arrangement, in turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Connections that have a request each on its way.
    #[arg(long, default_values_t = [1, 50], value_delimiter = ',')]
    connections: Vec<Connections>,
}

/// Whose stack the server is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stack {
    Linux,
    /// Its own, with a driver apart.
    Apart,
    /// Its own, with the driver in it.
    Fused,
}

impl Stack {
    const ALL: [Stack; 3] = [Stack::Linux, Stack::Apart, Stack::Fused];

    fn word(self) -> &'static str {
        match self {
            Stack::Linux => "linux",
            Stack::Apart => "apart",
            Stack::Fused => "fused",
        }
    }
}

/// A row. Figures are instructions for one request and its reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Counted {
    schema: u32,
    work: String,
    stack: Stack,
    connections: Connections,
    /// Of a round.
    requests: u64,
    /// Of all processes, the median of the rounds.
    total: f64,
    totals: Vec<f64>,
    /// The clock's, which counts the processor at rest as well, and who counts.
    elapsed: f64,
    /// Of each process, with what the kernel did in its name.
    processes: BTreeMap<String, f64>,
    /// The following are shares of so many samples.
    samples: u64,
    shares: BTreeMap<String, f64>,
    stages: Vec<Line>,
    /// The largest.
    functions: Vec<Line>,
}

/// One stage or function.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    share: String,
    process: String,
    what: String,
    instructions: f64,
}

/// Counts and prints the tables.
pub fn run(args: &CountArgs) -> Result<()> {
    let images = Images::prepare_linux(&|what| println!("{what}"))?;
    let out = "rows.json";
    let job = job(args, out)?;
    let limits = Limits {
        silence: MACHINE_LIMIT,
        whole: MACHINE_LIMIT,
        ..Limits::default()
    };
    let report = qemu::run(&images, &job, limits, &mut |event| {
        if let Event::Up(host, _) = event {
            println!("the machine is up after {:.0} s", host.as_secs_f64());
        }
    })?;
    let case = report.runs.first().context("the job was not run")?;
    if case.status != 0 {
        bail!("status {}: {}{}", case.status, case.output, case.diagnosis);
    }
    let mut files = report.files.iter();
    let (_, text) = files
        .find(|(name, _)| name == out)
        .context("no rows came")?;
    if let Some(path) = &args.json {
        std::fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    let lines = text
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty());
    let rows: Vec<Counted> = lines
        .map(serde_json::from_slice)
        .collect::<Result<_, _>>()?;
    for connections in &args.connections {
        let of: Vec<&Counted> = rows
            .iter()
            .filter(|row| row.connections == *connections)
            .collect();
        print(*connections, &of)?;
    }
    Ok(())
}

fn job(args: &CountArgs, out: &str) -> Result<Job> {
    let fordway = find_fordway()?;
    let parts = PARTS.map(|name| (name, fordway.with_file_name(name)));
    let own = ("fordway-bench", std::env::current_exe()?);
    let mut job = Job::default();
    for (name, path) in parts.into_iter().chain([own]) {
        ensure!(path.is_file(), "{} is missing: ./x build", path.display());
        job.files.push((format!("bin/{name}"), Source::Path(path)));
    }
    let connections: Vec<String> = args.connections.iter().map(usize::to_string).collect();
    job.cases.push(Case {
        name: "count".to_owned(),
        script: format!(
            "/job/bin/fordway-bench counted measure --requests {} --rounds {} --connections {} --out /job/out/{out}\n",
            args.requests,
            args.rounds,
            connections.join(",")
        ),
        limit_s: LIMIT_S,
    });
    Ok(job)
}

fn print(connections: Connections, rows: &[&Counted]) -> Result<()> {
    let [linux, apart, fused] = Stack::ALL.map(|stack| rows.iter().find(|row| row.stack == stack));
    let sides = [linux, apart, fused].map(|row| row.copied());
    let [Some(linux), Some(apart), Some(fused)] = sides else {
        bail!("rows of {connections} connections are missing");
    };
    let sides = [linux, apart, fused];
    println!("{}", shares(connections, sides).markdown());
    println!("{}", stages(sides).markdown());
    for row in sides {
        println!("{}", functions(row).markdown());
    }
    Ok(())
}

/// Instructions, for people.
fn count(instructions: f64) -> String {
    format!("{instructions:.0}")
}

fn shares(connections: Connections, sides: [&Counted; 3]) -> Table {
    let heading = match connections {
        1 => "one connection".to_owned(),
        _ => format!("{connections} connections"),
    };
    let mut table = Table::new([&heading, "linux", "driver apart", "fused"]);
    let mut line = |what: &str, of: &dyn Fn(&Counted) -> String| {
        let [linux, apart, fused] = sides.map(of);
        table.line([what.to_owned(), linux, apart, fused]);
    };
    let part = |of: &BTreeMap<String, f64>, name: &str| of.get(name).copied().unwrap_or(0.0);
    line("in all", &|row| count(row.total));
    line("in all, from, to", &|row| {
        let least = row.totals.iter().copied().fold(f64::INFINITY, f64::min);
        let most = row.totals.iter().copied().fold(0.0, f64::max);
        format!("{} to {}", count(least), count(most))
    });
    for process in ["client", "server", "stack", "driver", "others"] {
        line(&format!("process: {process}"), &|row| {
            count(part(&row.processes, process))
        });
    }
    for share in Share::ALL {
        line(&format!("share: {}", share.word()), &|row| {
            count(part(&row.shares, share.word()))
        });
    }
    let between = |row: &Counted| part(&row.shares, Share::Between.word());
    let of_linux = |row: &Counted| between(row) / between(sides[0]);
    line("device to program and back, of Linux's", &|row| {
        format!("{:.2}x", of_linux(row))
    });
    line(&format!("goal: {GOAL}x"), &|row| {
        let verdict = match of_linux(row) <= GOAL {
            _ if row.stack == Stack::Linux => "-",
            true => "met",
            false => "MISSED",
        };
        verdict.to_owned()
    });
    table
}

/// Between the domain's device and its program, the largest first.
fn stages(sides: [&Counted; 3]) -> Table {
    let mut all: BTreeMap<(&str, &str), [f64; 3]> = BTreeMap::new();
    for (at, row) in sides.iter().enumerate() {
        for line in row
            .stages
            .iter()
            .filter(|line| line.share == Share::Between.word())
        {
            all.entry((&line.process, &line.what)).or_default()[at] += line.instructions;
        }
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by(|(_, one), (_, other)| {
        let most = |figures: &[f64; 3]| figures.iter().copied().fold(0.0, f64::max);
        most(other).total_cmp(&most(one))
    });
    let rest = all.split_off(STAGES_SHOWN.min(all.len()));
    let mut table = Table::new(["in whose name: stage", "linux", "driver apart", "fused"]);
    for ((process, what), [linux, apart, fused]) in all {
        let name = format!("{process}: {what}");
        table.line([name, count(linux), count(apart), count(fused)]);
    }
    let [linux, apart, fused] =
        [0, 1, 2].map(|at| rest.iter().map(|(_, figures)| figures[at]).sum());
    table.line([
        "others".to_owned(),
        count(linux),
        count(apart),
        count(fused),
    ]);
    table
}

fn functions(row: &Counted) -> Table {
    let heading = format!("{}: function", row.stack.word());
    let mut table = Table::new([&heading, "in whose name", "instructions"]);
    let between = row
        .functions
        .iter()
        .filter(|line| line.share == Share::Between.word());
    for line in between.take(FUNCTIONS_SHOWN) {
        table.line([
            line.what.clone(),
            line.process.clone(),
            count(line.instructions),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(stack: Stack, between: f64) -> Counted {
        let line = Line {
            share: Share::Between.word().to_owned(),
            process: "server".to_owned(),
            what: "TCP".to_owned(),
            instructions: between,
        };
        Counted {
            schema: SCHEMA,
            work: "stack-count".to_owned(),
            stack,
            connections: 1,
            requests: 100,
            total: between * 2.0,
            totals: vec![between * 2.0, between * 2.5],
            elapsed: between * 2.0,
            processes: BTreeMap::new(),
            samples: 7,
            shares: BTreeMap::from([(Share::Between.word().to_owned(), between)]),
            stages: vec![line.clone()],
            functions: vec![line],
        }
    }

    #[test]
    fn the_goal_is_met_at_half_and_missed_above() {
        let rows = [
            row(Stack::Linux, 1000.0),
            row(Stack::Apart, 501.0),
            row(Stack::Fused, 500.0),
        ];
        let [linux, apart, fused] = &rows;
        let table = shares(1, [linux, apart, fused]);
        let last = table.cells().last().unwrap();
        assert_eq!(last[1..], ["-", "MISSED", "met"]);
        let stages = stages([linux, apart, fused]);
        assert_eq!(stages.cells()[1], ["server: TCP", "1000", "501", "500"]);
    }
}
