//! The rounds in which the jobs are measured, and the rows that come of their pairs.

use super::end::{Figures, Talk};
use super::job::{self, Ends, Job, Suite};
use super::sample::{self, Contender, Taken};
use super::{everybody, idle, memory};
use crate::distance::Regime;
use crate::pace::Pace;
use crate::pairs::median;
use crate::placement;
use crate::report::{self, JsonLines, Progress, Row};
use anyhow::{Result, ensure};
use fordway_lab::Lab;
use fordway_lab::{interrupt, packages};
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
    /// Names of rows; empty: all.
    pub rows: Vec<String>,
    /// More jobs: those of each side at its best.
    pub best: Vec<Job>,
}

impl Options {
    fn jobs(&self) -> Vec<Job> {
        let suites = self.suites.iter();
        let jobs = suites.flat_map(|suite| job::jobs(*suite, self.quick));
        let jobs = jobs.chain(self.best.iter().cloned());
        jobs.filter(|job| self.wants(&job.name)).collect()
    }

    fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|wanted| wanted == row)
    }

    /// One of suite `com` that is no conversation.
    fn wants_of_com(&self, row: &str) -> bool {
        self.suites.contains(&Suite::Com) && self.wants(row)
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
        let contenders = job.contenders();
        let round = order(contenders.len(), false).into_iter();
        let round = round.map(|index| match contenders[index] {
            Contender::Ring | Contender::Memcpy => self.length(job),
            Contender::Alone => self.length(job) + SAMPLE_OVERHEAD,
            _ => self.length(job) + SAMPLE_OVERHEAD + IDLE_OVERHEAD * job.idle as u32,
        });
        round.sum::<Duration>() * self.rounds as u32
    }

    fn everybody(&self) -> Duration {
        everybody::estimate(self.rounds, Duration::from_secs_f64(self.seconds))
    }

    /// About how long it takes.
    pub fn estimate_all(&self) -> Duration {
        let jobs = self.jobs();
        let of = |is_wanted, takes| match is_wanted {
            true => takes,
            false => Duration::ZERO,
        };
        let counted = of(self.suites.contains(&Suite::Memory), MEMORY)
            + of(self.wants_of_com(idle::NAME), idle::WINDOW)
            + of(self.wants_of_com(everybody::NAME), self.everybody());
        jobs.iter().map(|job| self.estimate(job)).sum::<Duration>() + counted
    }
}

/// Runs the suites, prints their table; gives the rows.
pub fn run(options: &Options, json: &mut JsonLines, pace: &Pace) -> Result<Vec<Row>> {
    placement::ensure_cpus()?;
    packages::ensure(&["ip", "nft"])?;
    let jobs = options.jobs();
    let others = [idle::NAME, everybody::NAME];
    let known =
        |row: &&String| jobs.iter().any(|job| job.name == **row) || others.contains(&row.as_str());
    let unknown = options.rows.iter().find(|row| !known(row));
    ensure!(
        unknown.is_none(),
        "no row is named {}",
        unknown.map_or("", |row| row)
    );
    if options.suites.contains(&Suite::Com) {
        packages::ensure(&["memcached", "python3"])?;
    }
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
        if options.wants_of_com(everybody::NAME) {
            pace.begin(options.everybody());
            progress.say("broadcasts");
            let length = Duration::from_secs_f64(options.seconds);
            for row in everybody::rows(&lab, options.rounds, length)? {
                json.write(&row)?;
                rows.push(row);
            }
        }
        if options.wants_of_com(idle::NAME) {
            pace.begin(idle::WINDOW);
            progress.say("an idle receiver");
            let row = idle::row(&lab)?;
            json.write(&row)?;
            rows.push(row);
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
    let rivals = 1..contenders.len();
    // By rival and regime.
    let mut pairs: BTreeMap<(usize, Regime), Vec<[Taken; 2]>> = BTreeMap::new();
    let fewest = |pairs: &BTreeMap<(usize, Regime), Vec<[Taken; 2]>>| {
        let of = |rival: usize| {
            let regimes = [Regime::Near, Regime::Far].into_iter();
            regimes.filter_map(move |regime| pairs.get(&(rival, regime)).map(Vec::len))
        };
        let counts = rivals.clone().map(|rival| of(rival).max().unwrap_or(0));
        counts.min().unwrap_or(0)
    };
    for attempt in 0..options.rounds * ATTEMPTS_PER_ROUND {
        let done = fewest(&pairs);
        let repeated = attempt >= options.rounds && done > 0;
        if done >= options.rounds || repeated && !pace.may_repeat() {
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
        let mut seen = None;
        let mut taken: Vec<(usize, Taken)> = Vec::new();
        for index in order(contenders.len(), attempt % 2 == 1) {
            let sample = sample::take(lab, contenders[index], job, length, &mut seen)?;
            taken.push((index, sample));
        }
        for two in taken.windows(2) {
            let [(fast, mine), (rival, theirs)] = match two {
                [one, other] if one.0 == 0 => [*one, *other],
                [one, other] => [*other, *one],
                _ => continue,
            };
            if fast == 0
                && rival != 0
                && let Some(regime) = mine.regime.filter(|_| mine.regime == theirs.regime)
            {
                pairs
                    .entry((rival, regime))
                    .or_default()
                    .push([mine, theirs]);
            }
        }
    }
    for hog in hogs.into_iter().flatten() {
        hog.stop()?;
    }
    if pairs.is_empty() {
        progress.say(&format!("{}: {}", job.name, report::ALWAYS_MOVED));
    }
    let most = |rival| {
        let of_rival = pairs.iter().filter(move |((of, _), _)| *of == rival);
        of_rival.map(|(_, pairs)| pairs.len()).max().unwrap_or(0)
    };
    let wanted = |rival, count| count == most(rival) || count >= ROUNDS_MIN;
    let rows = pairs
        .iter()
        .filter(|((rival, _), pairs)| wanted(*rival, pairs.len()))
        .map(|((rival, regime), pairs)| {
            let names = [contenders[0], contenders[*rival]].map(Contender::name);
            row(job, names, *regime, pairs)
        });
    Ok(rows.collect())
}

/// In which order the contenders of a round take their samples, the first of them (ours) beside
/// each other: `a 0 b, c 0 d, ...` or that backwards.
fn order(contenders: usize, backwards: bool) -> Vec<usize> {
    let rivals: Vec<usize> = (1..contenders).collect();
    let mut order = Vec::new();
    for two in rivals.chunks(2) {
        order.extend([two[0], 0]);
        order.extend(two.get(1));
    }
    if backwards {
        order.reverse();
    }
    order
}

/// The figure of a sample, and whether more is better.
pub fn value(job: &Job, figures: &Figures) -> (f64, &'static str, bool) {
    let rate = figures.count as f64 / figures.seconds;
    match job.talk {
        Talk::Rtt if job.pairs.is_some() || job.ends == Ends::Memcached => (rate, "req/s", true),
        Talk::Rtt | Talk::Crowd => (figures.p50_ns as f64, "ns", false),
        Talk::Stream if job.size < 1024 => (rate, "msg/s", true),
        Talk::Datagrams => (rate, "msg/s", true),
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

fn row(job: &Job, [ours, rival]: [&'static str; 2], regime: Regime, pairs: &[[Taken; 2]]) -> Row {
    let middle = |pick: &dyn Fn(&Taken) -> f64| {
        [0, 1].map(|side| median(pairs.iter().map(|two| pick(&two[side]))))
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
        taken.figures.cpu_s / done.max(1) as f64 * unit_size
    });
    let [cpu_s, rival_cpu_s] = middle(&|taken| taken.figures.cpu_s);
    let tail = |pick: fn(&Figures) -> u64| {
        let [fast, other] = middle(&|taken| pick(&taken.figures) as f64);
        (fast > 0.0).then_some([fast as u64, other as u64])
    };
    let unit = value(job, &pairs[0][0].figures).1;
    let row = Row {
        cpu_s,
        rival_cpu_s,
        cpu_s_per_unit: Some(per_unit[0]),
        rival_cpu_s_per_unit: Some(per_unit[1]),
        cpu_unit: Some(cpu_unit.into()),
        ring_bytes: middle(&|taken| taken.ring_bytes as f64)[0] as u64,
        size_bytes: Some(job.size),
        hogs: job.hogs,
        p99_ns: tail(|figures| figures.p99_ns),
        p999_ns: tail(|figures| figures.p999_ns),
        path: ours.into(),
        ..Row::new(&job.name, rival, unit, regime, job.placement)
    };
    let figures = pairs
        .iter()
        .map(|two| two.map(|taken| value(job, &taken.figures).0));
    let row = row.of_pairs(figures.collect());
    match job.best {
        Some(_) => row.best([job.placement, job.rival_placement]),
        None => row,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rival_stands_beside_ours() {
        assert_eq!(order(6, false), [1, 0, 2, 3, 0, 4, 5, 0]);
        assert_eq!(order(3, true), [2, 0, 1]);
        assert_eq!(order(2, false), [1, 0]);
    }
}
