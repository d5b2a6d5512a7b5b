//! What `fordway-bench` takes, and what it comes to.

use crate::micro::end::{self, EndArgs};
use crate::micro::{job, suite};
use crate::pace::Pace;
use crate::pairs::PAIRS_MIN;
use crate::placement::Placement;
use crate::report::{JsonLines, Row};
use crate::{
    apps, compare, count, document, filter, instructions, marks, publish, reach, stack, wide,
};
use anyhow::{Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Longest sample: a slip of the finger should not run for a day.
const SECONDS_MAX: f64 = 600.0;

/// A full run ends in less, but for what each side does at its best, which comes behind; rounds
/// that must be played again have what the estimate leaves.
const FULL_MAX: Duration = Duration::from_secs(45 * 60);
/// The same of the short form.
const QUICK_MAX: Duration = Duration::from_secs(150);

/// Rows of applications in the short form.
const QUICK_APPS: [&str; 3] = ["redis-get-c1", "nginx-1k-c10", "iperf3-128k"];

/// Measures the fast path beside the kernel path and other ways, in alternation.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Real programs: redis, nginx, memcached, PostgreSQL, iperf3, NetPIPE, and idle servers.
    Apps(AppsArgs),
    /// Round trips of plain programs, 1 B to 4 MB, against the bare ring, TCP, UNIX sockets and pipes.
    Rtt(MicroArgs),
    /// One way, 1 B to 4 MB, against the same.
    Stream(MicroArgs),
    /// Bare rings of 64 KB to 4 MB, beside the fast path, whose rings grow, and TCP.
    RingSize(MicroArgs),
    /// Connections that carry nothing, or one request.
    Connect(MicroArgs),
    /// Many pairs, and one busy connection among idle ones.
    Scale(MicroArgs),
    /// Ring memory of idle and of busy connections.
    Memory(MicroArgs),
    /// What rules cost packets, beside nf_tables, and the fast path (root).
    Filter(MicroArgs),
    /// Connections that are translated on their way, a proxy beside a server, redis of musl (root).
    Reach(MicroArgs),
    /// Servers on a network stack of their own, beside Linux's (root).
    Stack(MicroArgs),
    /// What grows with the number of domains, and of busy connections (root).
    Wide(MicroArgs),
    /// Datagrams of plain programs, of Python and of memcached, against UDP and UNIX datagram sockets; streams of
    /// 1 to 512 KB against memcpy; the native API against iceoryx2 and UNIX sockets.
    Com(ComArgs),
    /// All suites but reach, stack, wide and com; rows, tables and plots into a directory.
    All(AllArgs),
    /// Tables and plots of rows that were measured before.
    Report {
        /// Where report.md and report.html go.
        dir: PathBuf,
        /// Files that --json has written.
        #[arg(required = true)]
        rows: Vec<PathBuf>,
    },
    /// Keep a full run for the documentation, and print the documentation's tables anew.
    Publish {
        /// The tree's root.
        root: PathBuf,
        /// The directory of the run; none: only the tables.
        run: Option<PathBuf>,
    },
    /// Two builds in alternation; fails if the new one is worse.
    Compare {
        /// Directory of the build that is there (fordway and libfordway.so).
        old: PathBuf,
        /// Directory of the build that shall replace it.
        new: PathBuf,
        /// Rounds; in each, each build plays every job once.
        #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(6..=100))]
        runs: u16,
        /// Length of one sample.
        #[arg(long, value_name = "N", default_value_t = 0.3)]
        seconds: f64,
    },
    /// Instructions of the library for a small write, read and wait, by function.
    Instructions,
    /// Instructions of a request on a stack of the domain's own, beside Linux's, in an emulated machine.
    StackCount(count::CountArgs),
    /// What runs in that machine.
    #[command(hide = true)]
    Counted(count::inside::CountedArgs),
    /// One end of a conversation that is measured.
    #[command(hide = true)]
    End(EndArgs),
    /// The program whose instructions are counted.
    #[command(hide = true)]
    Stepped(instructions::SteppedArgs),
}

/// Options of all suites together.
#[derive(Clone, Debug, Args)]
pub struct AllArgs {
    /// Where rows.json, report.md and report.html go.
    #[arg(default_value = "bench-report")]
    dir: PathBuf,
    /// A short form: few sizes, two rounds, three applications; under three minutes.
    #[arg(long)]
    quick: bool,
}

/// Options of the suites of plain programs.
#[derive(Clone, Debug, Args)]
pub struct MicroArgs {
    /// Write the rows to this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rounds of each job; in each round every contender takes one sample.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Length of one sample.
    #[arg(long, value_name = "N", default_value_t = 0.3)]
    seconds: f64,
    /// Few sizes, and each program on a CPU of its own only; of the filter, packets only; of reach, one
    /// client and what is installed; of stack, redis only; of wide, fewer of each.
    #[arg(long)]
    quick: bool,
}

/// Options of suite `com`.
#[derive(Clone, Debug, Args)]
pub struct ComArgs {
    #[command(flatten)]
    micro: MicroArgs,
    /// Only these rows (comma-separated).
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    rows: Vec<String>,
}

/// Options of suite `apps`.
#[derive(Clone, Debug, Args)]
pub struct AppsArgs {
    /// Write the rows to this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only these rows (comma-separated).
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    rows: Vec<String>,
    /// Pairs of samples for each row and rival.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Length of one sample.
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    seconds: f64,
    /// Where servers and clients run.
    #[arg(long, value_enum, default_value_t = Placement::Apart)]
    placement: Placement,
    /// Beside a busy loop on each CPU.
    #[arg(long)]
    hogs: bool,
    /// Only against TCP over loopback.
    #[arg(long)]
    loopback: bool,
}

/// Carries one out.
pub fn run(command: &Command) -> Result<()> {
    match command {
        Command::Apps(args) => {
            check_seconds(args.seconds)?;
            let options = apps::Options {
                rows: args.rows.clone(),
                runs: args.runs.into(),
                seconds: args.seconds,
                placement: args.placement,
                rival_placement: None,
                hogs: args.hogs,
                all_rivals: !args.loopback,
            };
            let mut json = JsonLines::create(args.json.as_deref())?;
            announce(options.estimate_all());
            apps::run(&options, &mut json, &Pace::unbounded()).map(drop)
        }
        Command::Rtt(args) => run_micro(job::Suite::Rtt, args, &[]),
        Command::Stream(args) => run_micro(job::Suite::Stream, args, &[]),
        Command::RingSize(args) => run_micro(job::Suite::RingSize, args, &[]),
        Command::Connect(args) => run_micro(job::Suite::Connect, args, &[]),
        Command::Scale(args) => run_micro(job::Suite::Scale, args, &[]),
        Command::Memory(args) => run_micro(job::Suite::Memory, args, &[]),
        Command::Com(args) => run_micro(job::Suite::Com, &args.micro, &args.rows),
        Command::Filter(args) => run_filter(args),
        Command::Reach(args) => run_reach(args),
        Command::Stack(args) => run_stack(args),
        Command::Wide(args) => run_wide(args),
        Command::All(args) => run_all(args),
        Command::Report { dir, rows } => {
            let mut all = Vec::new();
            for file in rows {
                all.extend(document::read(file)?);
            }
            println!("{}", marks::table(&all));
            document::write(dir, &document::machine(), &all)
        }
        Command::Publish { root, run } => publish::publish(root, run.as_deref()),
        Command::Compare {
            old,
            new,
            runs,
            seconds,
        } => {
            check_seconds(*seconds)?;
            compare::run(&compare::Options {
                old: old.clone(),
                new: new.clone(),
                rounds: (*runs).into(),
                seconds: *seconds,
            })
        }
        Command::End(args) => end::run(args),
        Command::Instructions => instructions::run(),
        Command::Stepped(args) => instructions::stepped(args),
        Command::StackCount(args) => count::run(args),
        Command::Counted(args) => count::inside::run(args),
    }
}

fn run_micro(which: job::Suite, args: &MicroArgs, rows: &[String]) -> Result<()> {
    check_seconds(args.seconds)?;
    let options = suite::Options {
        suites: vec![which],
        rounds: args.runs.into(),
        seconds: args.seconds,
        quick: args.quick,
        rows: rows.to_vec(),
        best: Vec::new(),
    };
    let mut json = JsonLines::create(args.json.as_deref())?;
    announce(options.estimate_all());
    let rows = suite::run(&options, &mut json, &Pace::unbounded())?;
    if which == job::Suite::Com {
        println!("{}", marks::table_of(&rows, &job::COM_PREFIXES));
    }
    Ok(())
}

fn run_filter(args: &MicroArgs) -> Result<()> {
    check_seconds(args.seconds)?;
    let options = filter::Options {
        rounds: args.runs.into(),
        seconds: args.seconds,
        quick: args.quick,
    };
    let mut json = JsonLines::create(args.json.as_deref())?;
    announce(options.estimate_all());
    let rows = filter::run(&options, &mut json, &Pace::unbounded())?;
    println!("{}", marks::table_of(&rows, &[filter::PREFIX]));
    Ok(())
}

fn run_reach(args: &MicroArgs) -> Result<()> {
    check_seconds(args.seconds)?;
    let options = reach::Options {
        runs: args.runs.into(),
        seconds: args.seconds,
        quick: args.quick,
    };
    let mut json = JsonLines::create(args.json.as_deref())?;
    announce(options.estimate_all());
    let rows = reach::run(&options, &mut json)?;
    println!("{}", marks::table_of(&rows, &[reach::PREFIX]));
    Ok(())
}

fn run_stack(args: &MicroArgs) -> Result<()> {
    check_seconds(args.seconds)?;
    let options = stack::Options {
        runs: args.runs.into(),
        seconds: args.seconds,
        quick: args.quick,
    };
    let mut json = JsonLines::create(args.json.as_deref())?;
    announce(options.estimate_all());
    let rows = stack::run(&options, &mut json)?;
    println!("{}", marks::table_of(&rows, &[stack::PREFIX]));
    Ok(())
}

fn run_wide(args: &MicroArgs) -> Result<()> {
    check_seconds(args.seconds)?;
    let options = wide::Options {
        runs: args.runs.into(),
        seconds: args.seconds,
        quick: args.quick,
    };
    let mut json = JsonLines::create(args.json.as_deref())?;
    announce(options.estimate_all());
    wide::run(&options, &mut json).map(drop)
}

/// What one suite does not give is missing in the report; its error comes at the end.
fn run_all(args: &AllArgs) -> Result<()> {
    std::fs::create_dir_all(&args.dir)?;
    let file = args.dir.join("rows.json");
    let mut json = JsonLines::create(Some(&file))?;
    let suites = job::Suite::value_variants().iter().copied();
    let micro = suite::Options {
        suites: suites.filter(|suite| *suite != job::Suite::Com).collect(),
        rounds: if args.quick { 2 } else { PAIRS_MIN },
        seconds: if args.quick { 0.1 } else { 0.2 },
        quick: args.quick,
        rows: Vec::new(),
        best: Vec::new(),
    };
    let app = |rows: &[&str], placement, hogs, all_rivals| apps::Options {
        rows: rows.iter().map(|&row| row.to_owned()).collect(),
        runs: if args.quick { 1 } else { PAIRS_MIN },
        seconds: 0.4,
        placement,
        rival_placement: None,
        hogs,
        all_rivals,
    };
    let marked = marks::works();
    let apps = if args.quick {
        vec![app(&QUICK_APPS, Placement::Apart, false, false)]
    } else {
        vec![
            app(&marks::works_free(), Placement::Free, false, false),
            app(&[], Placement::Apart, false, true),
            app(&marked, Placement::Together, false, false),
            app(&marked, Placement::Free, true, false),
        ]
    };
    // What each side does at its best comes behind, once the placements are known.
    let at_best = |best: Vec<job::Job>| suite::Options {
        suites: Vec::new(),
        best,
        ..micro.clone()
    };
    let behind = match args.quick {
        true => Duration::ZERO,
        false => {
            let apps = apps::Options {
                rival_placement: Some(Placement::Apart),
                ..app(&marked, Placement::Apart, false, false)
            };
            at_best(job::best_at_most()).estimate_all() + apps.estimate_all()
        }
    };
    let estimates = apps.iter().map(apps::Options::estimate_all);
    let filter = filter::Options {
        rounds: micro.rounds,
        seconds: micro.seconds,
        quick: args.quick,
    };
    let estimate = micro.estimate_all() + filter.estimate_all() + estimates.sum::<Duration>();
    announce(estimate + behind);
    let longest = if args.quick { QUICK_MAX } else { FULL_MAX };
    let pace = Pace::with_slack(longest.saturating_sub(estimate));
    let mut failed = Ok(());
    let mut keep = |measured: Result<Vec<Row>>| {
        if let Err(error) = measured
            && failed.is_ok()
        {
            failed = Err(error);
        }
    };
    keep(suite::run(&micro, &mut json, &pace));
    pace.begin(filter.estimate_all());
    keep(filter::run(&filter, &mut json, &pace));
    for options in &apps {
        keep(apps::run(options, &mut json, &pace));
    }
    // What is written is what is known, also where a suite lacks a row.
    let known = document::read(&file)?;
    if !args.quick {
        keep(suite::run(&at_best(job::best(&known)), &mut json, &pace));
        for options in apps::best(&marked, &known, &apps[0]) {
            keep(apps::run(&options, &mut json, &pace));
        }
    }
    let rows = document::read(&file)?;
    document::write(&args.dir, &document::machine(), &rows)?;
    println!("{}", marks::table(&rows));
    println!(
        "the report is in {}",
        args.dir.join("report.html").display()
    );
    failed
}

/// How long it will take.
fn announce(estimate: Duration) {
    let seconds = estimate.as_secs();
    println!("about {} min {:02} s", seconds / 60, seconds % 60);
}

fn check_seconds(seconds: f64) -> Result<()> {
    ensure!(
        seconds > 0.0 && seconds <= SECONDS_MAX,
        "--seconds must lie between 0 and {SECONDS_MAX}"
    );
    Ok(())
}
