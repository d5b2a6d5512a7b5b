//! The rounds in which the jobs are measured, and the rows that come of them.

use super::end::{Figures, Talk};
use super::job::{Job, Suite, jobs};
use super::memory;
use super::sample::{self, Contender, Taken};
use crate::distance::Regime;
use crate::lab::Lab;
use crate::pace::Pace;
use crate::placement;
use crate::report::{self, JsonLines, Progress, Row, median};
use crate::{interrupt, packages};
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::time::Duration;

/// At most this many rounds are played for each one that is wanted.
const ATTEMPTS_PER_ROUND: usize = 3;
/// Rounds of the rarer regime that make a row of their own.
const ROUNDS_MIN: usize = 3;
/// A sample of a job with pauses: a hundred rounds a second.
const PAUSED: Duration = Duration::from_millis(500);
/// What a sample takes beside its length: two programs start, warm up and end.
const SAMPLE_OVERHEAD: Duration = Duration::from_millis(200);
/// The same, for each idle connection.
const IDLE_OVERHEAD: Duration = Duration::from_micros(400);
/// What suite `memory` takes.
const MEMORY: Duration = Duration::from_secs(5);

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

impl Options {
    fn jobs(&self) -> Vec<Job> {
        let suites = self.suites.iter();
        suites.flat_map(|suite| jobs(*suite, self.quick)).collect()
    }

    fn length(&self, job: &Job) -> Duration {
        let length = Duration::from_secs_f64(self.seconds);
        if job.pause.is_zero() {
            length
        } else {
            length.max(PAUSED)
        }
    }

    fn estimate(&self, job: &Job) -> Duration {
        let round = job
            .contenders()
            .into_iter()
            .map(|contender| match contender {
                Contender::Ring => self.length(job),
                Contender::Alone => self.length(job) + SAMPLE_OVERHEAD,
                _ => self.length(job) + SAMPLE_OVERHEAD + IDLE_OVERHEAD * job.idle as u32,
            });
        round.sum::<Duration>() * self.rounds as u32
    }

    /// About how long it takes.
    pub fn estimate_all(&self) -> Duration {
        let jobs = self.jobs();
        let memory = self.suites.contains(&Suite::Memory).then_some(MEMORY);
        jobs.iter().map(|job| self.estimate(job)).sum::<Duration>() + memory.unwrap_or_default()
    }
}

/// Runs the suites, prints their table; gives the rows.
pub fn run(options: &Options, json: &mut JsonLines, pace: &Pace) -> Result<Vec<Row>> {
    placement::ensure_cpus()?;
    packages::ensure(&["ip", "nft"])?;
    let jobs = options.jobs();
    let absent = obstacles(&jobs);
    let lab = Lab::start()?;
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    {
        let progress = Progress::new((jobs.len() * options.rounds) as u64);
        for job in &jobs {
            pace.begin(options.estimate(job));
            match measure(&lab, job, &absent, options, &progress, pace) {
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
            pace.begin(MEMORY);
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

/// Contenders that cannot take part here; says why.
fn obstacles(jobs: &[Job]) -> Vec<Contender> {
    let mut wanted: Vec<Contender> = jobs.iter().flat_map(Job::contenders).collect();
    wanted.sort_unstable();
    wanted.dedup();
    wanted.retain(|contender| match contender.obstacle() {
        Some(why) => {
            eprintln!("without {}: {why}", contender.name());
            true
        }
        None => false,
    });
    wanted
}

fn measure(
    lab: &Lab,
    job: &Job,
    absent: &[Contender],
    options: &Options,
    progress: &Progress,
    pace: &Pace,
) -> Result<Vec<Row>> {
    let hogs = job.hogs.then(|| placement::hogs(lab)).transpose()?;
    let length = options.length(job);
    let mut contenders = job.contenders();
    contenders.retain(|contender| !absent.contains(contender));
    let mut rounds: BTreeMap<Regime, Vec<Vec<Taken>>> = BTreeMap::new();
    for attempt in 0..options.rounds * ATTEMPTS_PER_ROUND {
        let done = rounds.values().map(Vec::len).max().unwrap_or(0);
        let repeated = attempt >= options.rounds && done > 0;
        if done == options.rounds || repeated && !pace.may_repeat() {
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
        let (mut taken, mut seen) = (Vec::new(), None);
        for contender in &contenders {
            taken.push(sample::take(lab, *contender, job, length, &mut seen)?);
        }
        let first = taken[0].regime;
        if let Some(regime) = first.filter(|_| taken.iter().all(|one| one.regime == first)) {
            rounds.entry(regime).or_default().push(taken);
        }
    }
    for hog in hogs.into_iter().flatten() {
        hog.stop()?;
    }
    let most = rounds.values().map(Vec::len).max();
    let Some(most) = most else {
        progress.say(&format!("{}: {}", job.name, report::ALWAYS_MOVED));
        return Ok(Vec::new());
    };
    rounds.retain(|_, rounds| rounds.len() == most || rounds.len() >= ROUNDS_MIN);
    let rows = rounds.iter().flat_map(|(regime, rounds)| {
        let rivals = contenders.iter().enumerate().skip(1);
        rivals.map(|(index, _)| row(job, &contenders, *regime, rounds, index))
    });
    Ok(rows.collect())
}

/// The figure of a sample, and whether more is better.
pub fn value(job: &Job, figures: &Figures) -> (f64, &'static str, bool) {
    let rate = figures.count as f64 / figures.seconds;
    match job.talk {
        Talk::Rtt if job.pairs.is_some() => (rate, "req/s", true),
        Talk::Rtt | Talk::Crowd => (figures.p50_ns as f64, "ns", false),
        Talk::Stream if job.size < 1024 => (rate, "msg/s", true),
        Talk::Stream | Talk::Maerts => (figures.bytes as f64 / figures.seconds / 1e9, "GB/s", true),
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

fn row(
    job: &Job,
    contenders: &[Contender],
    regime: Regime,
    rounds: &[Vec<Taken>],
    index: usize,
) -> Row {
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
        hogs: job.hogs,
        samples: pairs()
            .map(|(fast, other)| [fast, other].map(|taken| value(job, &taken.figures).0))
            .collect(),
        p99_ns: tail(|figures| figures.p99_ns),
        p999_ns: tail(|figures| figures.p999_ns),
        path: contenders[0].name().into(),
        ..Row::new(
            &job.name,
            contenders[index].name(),
            value(job, &rounds[0][0].figures).1,
            regime,
            job.placement,
        )
    }
}
