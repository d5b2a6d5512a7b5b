//! Jobs of each suite, the rounds in which they are measured, and the rows that come of it.

use super::end::{Figures, Talk};
use super::memory;
use super::sample::{self, Contender, Job, Placement, Taken};
use crate::apps::CLIENT_CPU;
use crate::distance::Regime;
use crate::lab::Lab;
use crate::report::{self, JsonLines, Progress, Row, median};
use crate::{interrupt, packages};
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::time::Duration;

/// Sizes of messages.
const SIZES: [usize; 9] = [
    1,
    64,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
];
/// Those for placements other than the first, and with hogs.
const SIZES_FEW: [usize; 2] = [64, 64 << 10];
/// A message each 10 ms finds the receiver asleep.
const ASLEEP: Duration = Duration::from_millis(10);
/// A request and its answer.
const REQUEST_BYTES: usize = 64;
/// Idle connections beside a busy one.
const CROWDS: [usize; 3] = [0, 1000, 10_000];
/// At most this many rounds are played for each one that is wanted.
const ATTEMPTS_PER_ROUND: usize = 3;
/// Conversations at once.
const PAIRS: [usize; 4] = [1, 2, 4, 8];

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Suite {
    /// Round trips of 1 B to 4 MB.
    Rtt,
    /// One way, 1 B to 4 MB.
    Stream,
    /// Connections that carry nothing, or one request.
    Connect,
    /// Many pairs, and one busy connection among idle ones.
    Scale,
    /// Bytes of ring memory of idle and of busy connections.
    Memory,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which.
    pub suites: Vec<Suite>,
    /// Rounds of each job.
    pub rounds: usize,
    /// Length of one sample.
    pub seconds: f64,
    /// Few sizes, one placement.
    pub quick: bool,
}

/// Runs the suites, prints their table; gives the rows.
pub fn run(options: &Options, json: &mut JsonLines) -> Result<Vec<Row>> {
    let cpus = std::thread::available_parallelism()?.get();
    ensure!(
        cpus > CLIENT_CPU,
        "the bench needs two CPUs and may use {cpus}"
    );
    packages::ensure(&["ip", "nft"])?;
    let jobs: Vec<Job> = options
        .suites
        .iter()
        .flat_map(|suite| jobs(*suite, options.quick))
        .collect();
    let lab = Lab::start()?;
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    {
        let progress = Progress::new((jobs.len() * options.rounds) as u64);
        for job in &jobs {
            match measure(&lab, job, options, &progress) {
                Ok(found) => {
                    for row in &found {
                        json.write(row)?;
                    }
                    rows.extend(found);
                }
                Err(error) => {
                    interrupt::check()?;
                    progress.say(&format!("{}: {error:#}", job.name));
                    failures.push(job.name.clone());
                }
            }
        }
        if options.suites.contains(&Suite::Memory) {
            progress.say("memory of connections");
            for row in memory::rows(&lab, options.quick)? {
                json.write(&row)?;
                rows.push(row);
            }
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

/// The jobs of a suite.
pub fn jobs(suite: Suite, quick: bool) -> Vec<Job> {
    let job = |name: String, talk, size| Job {
        name,
        talk,
        size,
        pause: Duration::ZERO,
        idle: 0,
        pairs: 1,
        placement: Placement::Apart,
        hogs: false,
    };
    let mut jobs = Vec::new();
    match suite {
        Suite::Rtt | Suite::Stream => {
            let (word, talk) = match suite {
                Suite::Rtt => ("rtt", Talk::Rtt),
                _ => ("stream", Talk::Stream),
            };
            let sizes = if quick { &SIZES_FEW[..] } else { &SIZES[..] };
            for &size in sizes {
                jobs.push(job(format!("{word}-{}", size_word(size)), talk, size));
            }
            let asleep = |placement| Job {
                pause: ASLEEP,
                placement,
                ..job("rtt-64-asleep".to_owned(), Talk::Rtt, 64)
            };
            if suite == Suite::Rtt {
                jobs.push(asleep(Placement::Apart));
            }
            let others = [
                (Placement::Together, false),
                (Placement::Free, false),
                (Placement::Free, true),
            ];
            for (placement, hogs) in others.into_iter().filter(|_| !quick) {
                for size in SIZES_FEW {
                    jobs.push(Job {
                        placement,
                        hogs,
                        ..job(format!("{word}-{}", size_word(size)), talk, size)
                    });
                }
                if suite == Suite::Rtt {
                    jobs.push(Job {
                        hogs,
                        ..asleep(placement)
                    });
                }
            }
        }
        Suite::Connect => {
            for placement in [Placement::Apart, Placement::Free] {
                for (name, talk) in [("connect", Talk::Connect), ("request", Talk::Request)] {
                    jobs.push(Job {
                        placement,
                        ..job(name.to_owned(), talk, REQUEST_BYTES)
                    });
                }
                if quick {
                    break;
                }
            }
        }
        Suite::Scale => {
            let pairs = if quick { &PAIRS[..2] } else { &PAIRS[..] };
            for &pairs in pairs {
                jobs.push(Job {
                    pairs,
                    placement: Placement::Free,
                    ..job(format!("rtt-64-pairs{pairs}"), Talk::Rtt, 64)
                });
            }
            let crowds = if quick { &CROWDS[..2] } else { &CROWDS[..] };
            for &idle in crowds {
                jobs.push(Job {
                    idle,
                    ..job(format!("rtt-64-idle{idle}"), Talk::Crowd, 64)
                });
            }
        }
        Suite::Memory => {}
    }
    jobs
}

fn size_word(bytes: usize) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{}m", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// Bare names of sizes are enough for pairs and crowds: their own rivals.
fn contenders(job: &Job) -> Vec<Contender> {
    use clap::ValueEnum;
    let all = Contender::value_variants().iter().copied();
    let able = all.filter(|contender| contender.can(job));
    let crowded = job.talk == Talk::Crowd || job.pairs > 1;
    able.filter(|contender| !crowded || *contender != Contender::KernelBridge)
        .collect()
}

fn measure(lab: &Lab, job: &Job, options: &Options, progress: &Progress) -> Result<Vec<Row>> {
    let hogs = job.hogs.then(|| sample::hogs(lab)).transpose()?;
    let length = Duration::from_secs_f64(if job.pause.is_zero() {
        options.seconds
    } else {
        // A hundred rounds a second.
        options.seconds.max(0.5)
    });
    let contenders = contenders(job);
    let mut rounds: BTreeMap<Regime, Vec<Vec<Taken>>> = BTreeMap::new();
    for attempt in 0..options.rounds * ATTEMPTS_PER_ROUND {
        let done = rounds.values().map(Vec::len).max().unwrap_or(0);
        if done == options.rounds {
            break;
        }
        if attempt < options.rounds {
            progress.step(&format!(
                "{} {}{}, round {}",
                job.name,
                job.placement.word(),
                if job.hogs { " with hogs" } else { "" },
                attempt + 1
            ));
        }
        let mut taken = Vec::new();
        for contender in &contenders {
            taken.push(sample::take(lab, *contender, job, length)?);
        }
        let first = taken[0].regime;
        if let Some(regime) = first.filter(|_| taken.iter().all(|one| one.regime == first)) {
            rounds.entry(regime).or_default().push(taken);
        }
    }
    if let Some(hogs) = hogs {
        for hog in hogs {
            hog.stop()?;
        }
    }
    let Some((&regime, rounds)) = rounds.iter().max_by_key(|(_, rounds)| rounds.len()) else {
        anyhow::bail!("the distance of the CPUs changed in every round; run it again");
    };
    let rivals = contenders.iter().enumerate().skip(1);
    Ok(rivals
        .map(|(index, rival)| row(job, *rival, regime, rounds, index))
        .collect())
}

/// The figure of a sample, and whether more is better.
pub fn value(job: &Job, figures: &Figures) -> (f64, &'static str, bool) {
    let rate = figures.count as f64 / figures.seconds;
    match job.talk {
        Talk::Rtt if job.pairs > 1 => (rate, "req/s", true),
        Talk::Rtt | Talk::Crowd => (figures.p50_ns as f64, "ns", false),
        Talk::Stream if job.size < 1024 => (rate, "msg/s", true),
        Talk::Stream => (figures.bytes as f64 / figures.seconds / 1e9, "GB/s", true),
        Talk::Connect | Talk::Request => (rate, "conn/s", true),
    }
}

/// How much better one sample is than another.
pub fn ratio(job: &Job, one: &Figures, other: &Figures) -> f64 {
    let (mine, _, more_is_better) = value(job, one);
    let theirs = value(job, other).0;
    if more_is_better {
        mine / theirs
    } else {
        theirs / mine
    }
}

fn row(job: &Job, rival: Contender, regime: Regime, rounds: &[Vec<Taken>], index: usize) -> Row {
    let pairs = || rounds.iter().map(|round| (&round[0], &round[index]));
    let ratios: Vec<f64> = pairs()
        .map(|(fast, other)| ratio(job, &fast.figures, &other.figures))
        .collect();
    let middle = |pick: &dyn Fn(&Taken) -> f64| {
        (
            median(pairs().map(|(fast, _)| pick(fast))),
            median(pairs().map(|(_, other)| pick(other))),
        )
    };
    let (unit_size, cpu_unit) = match job.talk {
        Talk::Stream => (1e9, "GB"),
        _ => (1e6, "Mreq"),
    };
    let per_unit = middle(&|taken| {
        let done = match job.talk {
            Talk::Stream => taken.figures.bytes,
            _ => taken.figures.count,
        };
        taken.cpu_s / done.max(1) as f64 * unit_size
    });
    let (mine, theirs) = middle(&|taken| value(job, &taken.figures).0);
    let (cpu_s, rival_cpu_s) = middle(&|taken| taken.cpu_s);
    let tail = |pick: fn(&Figures) -> u64| {
        let (fast, other) = middle(&|taken| pick(&taken.figures) as f64);
        (fast > 0.0).then_some([fast as u64, other as u64])
    };
    Row {
        value: mine,
        rival_value: theirs,
        ratio: Some(median(ratios.iter().copied())),
        ratio_min: ratios.iter().copied().reduce(f64::min),
        ratio_max: ratios.iter().copied().reduce(f64::max),
        runs: rounds.len(),
        cpu_s,
        rival_cpu_s,
        cpu_s_per_unit: Some(per_unit.0),
        rival_cpu_s_per_unit: Some(per_unit.1),
        cpu_unit: Some(cpu_unit.into()),
        ring_bytes: middle(&|taken| taken.ring_bytes as f64).0 as u64,
        size_bytes: Some(job.size),
        placement: Some(job.placement.word().into()),
        hogs: job.hogs,
        p99_ns: tail(|figures| figures.p99_ns),
        p999_ns: tail(|figures| figures.p999_ns),
        ..Row::new(
            &job.name,
            rival.name(),
            value(job, &rounds[0][0].figures).1,
            regime,
            job.placement != Placement::Free,
        )
    }
}
