//! `fordway-bench compare OLD NEW`: two builds in alternation, for use before a merge.
//!
//! In each round each build, with its own broker and library, plays every job once, in turns the
//! old or the new one first. The two samples of a pair lie one build's jobs apart, for a broker is
//! not started anew for each. The ratio of a job is the median over the rounds of new against old. A
//! job is worse if its whole interval ([`crate::pairs`]) is, so that noise alone seldom says so.
//! A job with fewer rounds than an interval takes is not judged; a line below the table names it.

use crate::distance::Regime;
use crate::micro::job::{self, Suite};
use crate::micro::sample::{self, Contender, Taken};
use crate::micro::suite;
use crate::pairs::{self, median};
use crate::placement;
use crate::report::{self, Progress, Table};
use anyhow::{Context, Result, ensure};
use fordway_lab::Lab;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A build that is surely slower than this has become worse.
const WORSE_BELOW: f64 = 0.97;

/// What to compare.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory (or launcher) of the build that is there.
    pub old: PathBuf,
    /// Of the build that shall replace it.
    pub new: PathBuf,
    /// Rounds.
    pub rounds: usize,
    /// Length of one sample.
    pub seconds: f64,
}

/// Prints the table; an error if a job has become worse.
pub fn run(options: &Options) -> Result<()> {
    let builds = [launcher(&options.old)?, launcher(&options.new)?];
    let suites = [Suite::Rtt, Suite::Stream, Suite::Connect];
    let jobs: Vec<_> = suites
        .into_iter()
        .flat_map(|suite| job::jobs(suite, true))
        .collect();
    let length = Duration::from_secs_f64(options.seconds);
    let progress = Progress::new((options.rounds * jobs.len() * 2) as u64);
    // By job and regime: old and new, round by round.
    let mut pairs_of: BTreeMap<(usize, Regime), Vec<[Taken; 2]>> = BTreeMap::new();
    for round in 1..=options.rounds {
        let mut taken = [Vec::new(), Vec::new()];
        let order = if round % 2 == 1 { [0, 1] } else { [1, 0] };
        for index in order {
            let (build, name) = (&builds[index], ["old", "new"][index]);
            let lab = Lab::start_from(build)?;
            let mut samples = Vec::new();
            for job in &jobs {
                progress.step(&format!("{}, {name}, round {round}", job.name));
                samples.push(sample::take(&lab, Contender::Fast, job, length, &mut None)?);
            }
            let forced = lab.close();
            ensure!(forced.is_empty(), "left behind: {}", forced.join(", "));
            taken[index] = samples;
        }
        for (number, (old, new)) in taken[0].iter().zip(&taken[1]).enumerate() {
            if let Some(regime) = old.regime.filter(|_| old.regime == new.regime) {
                pairs_of
                    .entry((number, regime))
                    .or_default()
                    .push([*old, *new]);
            }
        }
    }
    drop(progress);
    let mut table = Table::new([
        "work",
        "old",
        "new",
        "ratio",
        "from",
        "to",
        "rounds",
        "CPU s old",
        "new",
        "CPUs",
    ]);
    let (mut worse, mut judged) = (Vec::new(), BTreeSet::new());
    for ((number, regime), rounds) in &pairs_of {
        let job = &jobs[*number];
        let value = |taken: &Taken| suite::value(job, &taken.figures);
        let ratios: Vec<f64> = rounds
            .iter()
            .map(|[old, new]| suite::ratio(job, &new.figures, &old.figures))
            .collect();
        let interval = pairs::interval(&ratios);
        if let Some([_, high]) = interval {
            judged.insert(*number);
            if high < WORSE_BELOW {
                worse.push(job.name.as_str());
            }
        }
        let middle = |pick: &dyn Fn(&Taken) -> f64, index: usize| {
            median(rounds.iter().map(|pair| pick(&pair[index])))
        };
        let unit = value(&rounds[0][0]).1;
        let figure = |index| report::figure(middle(&|taken| value(taken).0, index), unit);
        let cpu = |index| format!("{:.3}", middle(&|taken| taken.figures.cpu_s, index));
        table.line([
            job.name.clone(),
            figure(0),
            figure(1),
            report::ratio(Some(median(ratios.iter().copied()))),
            report::ratio(interval.map(|[low, _]| low)),
            report::ratio(interval.map(|[_, high]| high)),
            rounds.len().to_string(),
            cpu(0),
            cpu(1),
            regime.word().to_owned(),
        ]);
    }
    println!("{table}");
    ensure!(
        !pairs_of.is_empty(),
        "the distance of the CPUs changed in every round"
    );
    let unknown: Vec<&str> = (0..jobs.len())
        .filter(|number| !judged.contains(number))
        .map(|number| jobs[number].name.as_str())
        .collect();
    if !unknown.is_empty() {
        println!("too few rounds to judge: {}", unknown.join(", "));
    }
    ensure!(worse.is_empty(), "worse than before: {}", worse.join(", "));
    Ok(())
}

/// The `fordway` of a build that was named by its directory or itself.
fn launcher(build: &Path) -> Result<PathBuf> {
    let file = if build.is_dir() {
        build.join("fordway")
    } else {
        build.to_owned()
    };
    ensure!(
        file.with_file_name("libfordway.so").is_file(),
        "{} has no libfordway.so beside it; name a directory with both, such as target/release",
        file.display()
    );
    placement::regime().context("the comparison needs two CPUs")?;
    Ok(file)
}
