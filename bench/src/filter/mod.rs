//! Suite `filter`: what rules cost a packet, beside the kernel's nf_tables on the same rules
//! and the same packets, and what they cost the fast path.
//!
//! ```text
//!   rules (nft's text) ──┬─ nft -f ─────► namespace: a0 ══ b0 [forward: rules] c0 ══ ── kernel
//!                        └─ our reader ─► the filter engine, hook forward            ── packet
//!   rules ── fordway filter load ──► two domains that connect and talk               ── paths
//! ```
//! The kernel's figure is the time of a packet through the namespace with the rules, less the
//! time through one without any: what the rules cost, with their hook. The filter's is
//! the time of its hook. Both are medians of batches on one CPU, and take turns: each second round
//! goes backwards. Rounds in which the distance of the CPUs changed are played again, while there is
//! time.

mod kernel;
mod packet;
mod paths;
mod rules;

pub(crate) use kernel::tell;

use crate::distance::Regime;
use crate::pace::Pace;
use crate::placement::{self, Placement};
use crate::report::{self, JsonLines, Progress, Row};
use anyhow::{Context, Result};
use fordway_lab::{interrupt, packages};
use rules::Rules;
use std::collections::BTreeMap;
use std::time::Duration;

/// Begins the names of the suite's rows.
pub const PREFIX: &str = "filter-";
/// At most this many rounds are played for each one that is wanted.
const ATTEMPTS_PER_ROUND: usize = 3;
/// Rules of the largest list; what a rule costs is read off it.
const RULES_MANY: u32 = 1_000;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rounds; each takes one sample of each row.
    pub rounds: usize,
    /// Length of one sample of the fast path.
    pub seconds: f64,
    /// Packets only.
    pub quick: bool,
}

impl Options {
    /// About how long it takes.
    pub fn estimate_all(&self) -> Duration {
        let packets = Duration::from_secs(3) + Duration::from_secs(2) * self.rounds as u32;
        match self.quick {
            true => packets,
            false => packets + paths::estimate(self),
        }
    }
}

/// Runs the suite, prints its table; gives the rows.
pub fn run(options: &Options, json: &mut JsonLines, pace: &Pace) -> Result<Vec<Row>> {
    placement::ensure_cpus()?;
    packages::ensure(&["ip", "nft"])?;
    let mut rows = packets(options, pace)?;
    if !options.quick {
        rows.extend(paths::rows(options, pace)?);
    }
    for row in &rows {
        json.write(row)?;
    }
    println!("{}", table(&rows));
    Ok(rows)
}

/// Figures of one row, ours and the rival's, round by round.
type Samples = Vec<[f64; 2]>;

/// The rounds, each with the distance of the CPUs if it stayed: rows are of one regime.
#[derive(Debug)]
struct Rounds<'p> {
    wanted: usize,
    pace: &'p Pace,
    begun: Option<Regime>,
    seen: Vec<Option<Regime>>,
}

impl Rounds<'_> {
    fn new(wanted: usize, pace: &Pace) -> Rounds<'_> {
        Rounds {
            wanted,
            pace,
            begun: None,
            seen: Vec::new(),
        }
    }

    /// Whether one more is to be played.
    fn goes_on(&self) -> bool {
        let (played, kept) = (
            self.seen.len(),
            self.most().map_or(0, |(_, rounds)| rounds.len()),
        );
        let may_repeat = played < self.wanted || kept == 0 || self.pace.may_repeat();
        kept < self.wanted && played < self.wanted * ATTEMPTS_PER_ROUND && may_repeat
    }

    /// Whether this round goes backwards.
    fn is_backwards(&self) -> bool {
        self.seen.len() % 2 == 1
    }

    fn begin(&mut self) -> Result<()> {
        self.begun = Some(placement::regime()?);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let ended = placement::regime()?;
        self.seen.push(self.begun.filter(|begun| *begun == ended));
        Ok(())
    }

    /// The regime of most rounds, and which ones these are.
    fn most(&self) -> Option<(Regime, Vec<usize>)> {
        let of = |regime| {
            let seen = self.seen.iter().enumerate();
            let of = seen.filter(move |(_, seen)| **seen == Some(regime));
            of.map(|(round, _)| round).collect::<Vec<_>>()
        };
        let regimes = [Regime::Near, Regime::Far].map(|regime| (regime, of(regime)));
        let most = regimes.into_iter().max_by_key(|(_, rounds)| rounds.len())?;
        (!most.1.is_empty()).then_some(most)
    }
}

/// Takes both samples, backwards the second one first; gives them in the order of the arguments.
fn both<A, B>(
    is_backwards: bool,
    one: impl FnOnce() -> Result<A>,
    other: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    if is_backwards {
        let other = other()?;
        return Ok((one()?, other));
    }
    Ok((one()?, other()?))
}

/// The samples of some rounds.
fn kept_of(samples: &Samples, rounds: &[usize]) -> Samples {
    rounds.iter().map(|&round| samples[round]).collect()
}

fn packets(options: &Options, pace: &Pace) -> Result<Vec<Row>> {
    let all = Rules::all();
    let progress = Progress::new((all.len() + options.rounds) as u64);
    let none = kernel::Rig::new(&Rules::none())?;
    let mut rigs = Vec::new();
    for rules in &all {
        progress.step(&format!("{}: into the kernel and the filter", rules.name));
        let rig = kernel::Rig::new(rules).with_context(|| rules.name.clone())?;
        rigs.push((rules, rig, packet::Engine::new(rules)?));
    }
    let mut samples: BTreeMap<&str, Samples> = BTreeMap::new();
    let mut rounds = Rounds::new(options.rounds, pace);
    while rounds.goes_on() {
        progress.step(&format!("packets, round {}", rounds.seen.len() + 1));
        rounds.begin()?;
        let is_backwards = rounds.is_backwards();
        let mut order: Vec<_> = rigs.iter_mut().collect();
        if is_backwards {
            order.reverse();
        }
        for (rules, rig, engine) in order {
            interrupt::check()?;
            let sample = on_one_cpu(|| {
                let kernel = || both(is_backwards, || none.sample_ns(), || rig.sample_ns());
                let ours = || Ok(engine.sample_ns());
                let (ours, (without, with)) = both(is_backwards, ours, kernel)?;
                Ok([ours, with - without])
            })?;
            samples.entry(&rules.name).or_default().push(sample);
        }
        rounds.end()?;
    }
    let (regime, kept) = rounds.most().context(report::ALWAYS_MOVED)?;
    for samples in samples.values_mut() {
        *samples = kept_of(samples, &kept);
    }
    let less = |work: &str, base: &str, by: f64| -> Samples {
        let pairs = samples[work].iter().zip(&samples[base]);
        pairs
            .map(|(of, base)| [0, 1].map(|side| (of[side] - base[side]) / by))
            .collect()
    };
    let derived = [
        (
            "filter-per-rule",
            less("filter-rules-1000", "filter-rules-0", RULES_MANY.into()),
        ),
        (
            "filter-per-mixed-rule",
            less("filter-mixed-1000", "filter-rules-0", RULES_MANY.into()),
        ),
        (
            "filter-lookup-hash",
            less("filter-hash-100000", "filter-rules-0", 1.0),
        ),
        (
            "filter-lookup-interval",
            less("filter-interval-100000", "filter-rules-0", 1.0),
        ),
    ];
    let measured = all.iter().map(|rules| {
        let name = rules.name.as_str();
        row(name, "nf_tables", regime, &samples[name])
    });
    let derived = derived
        .iter()
        .map(|(name, samples)| row(name, "nf_tables", regime, samples));
    Ok(measured.chain(derived).collect())
}

/// Runs it on a thread that stays on one CPU.
fn on_one_cpu<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            crate::distance::pin(placement::CLIENT_CPU)?;
            work()
        });
        thread.join().expect("a sample does not panic")
    })
}

/// Times: less is better.
fn row(work: &str, rival: &'static str, regime: Regime, samples: &Samples) -> Row {
    let row = Row {
        path: if rival == "nf_tables" {
            "filter"
        } else {
            "fast"
        }
        .into(),
        ..Row::new(work, rival, "ns", regime, Placement::Apart)
    };
    row.of_pairs(samples.clone())
}

/// The rows for people: without the columns that say nothing here.
fn table(rows: &[Row]) -> report::Table {
    let headings = ["work", "ours", "rival", "rival's", "ratio", "from", "to"];
    let mut table = report::Table::new(headings);
    for row in rows {
        let interval = row.interval();
        table.line([
            row.work.clone(),
            report::figure(row.value, &row.unit),
            row.rival.to_string(),
            report::figure(row.rival_value, &row.unit),
            report::ratio(row.ratio),
            report::ratio(interval.map(|[low, _]| low)),
            report::ratio(interval.map(|[_, high]| high)),
        ]);
    }
    table
}
