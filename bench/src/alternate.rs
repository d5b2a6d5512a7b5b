//! Two contenders in alternation: ours, the rival, the rival, ours, ours, the rival...
//!
//! Before, between and after the two samples of a pair the distance of the two CPUs is
//! probed; a pair during which it changed is thrown away, and pairs of unlike
//! distance never meet in one row. A row is complete when one regime has as many pairs
//! as are wanted; if that takes too long, the regime with the most pairs is reported with its count.

use crate::distance::Regime;
use crate::pace::Pace;
use crate::pairs::median;
use crate::placement;
use crate::report::Row;
use crate::work::{self, Sample};
use anyhow::Result;
use fordway_lab::Lab;
use std::collections::BTreeMap;

/// At most this many pairs are tried for each one that is wanted.
const ATTEMPTS_PER_RUN: usize = 3;
/// Of a run of few pairs, as long as there is none.
const ATTEMPTS_MIN: usize = 20;

/// Pairs of samples, ours first, all of one regime.
#[derive(Debug)]
pub struct Taken {
    /// How far apart the CPUs were.
    pub regime: Regime,
    pairs: Vec<(Sample, Sample)>,
}

/// Takes `runs` pairs; `step` is told which run begins. `None`: no pair saw one distance of the CPUs.
pub fn pairs(
    runs: usize,
    pace: &Pace,
    step: impl Fn(usize),
    mut mine: impl FnMut() -> Result<Sample>,
    mut theirs: impl FnMut() -> Result<Sample>,
) -> Result<Option<Taken>> {
    let mut pairs: BTreeMap<Regime, Vec<(Sample, Sample)>> = BTreeMap::new();
    // A row of no pair at all would be missing.
    for attempt in 0..(runs * ATTEMPTS_PER_RUN).max(ATTEMPTS_MIN) {
        let done = pairs.values().map(Vec::len).max().unwrap_or(0);
        let repeated = attempt >= runs && done > 0;
        if done == runs || repeated && !pace.may_repeat() {
            break;
        }
        if attempt < runs {
            step(attempt + 1);
        }
        let before = placement::regime()?;
        let (pair, between) = if attempt % 2 == 0 {
            let mine = mine()?;
            let between = placement::regime()?;
            ((mine, theirs()?), between)
        } else {
            let theirs = theirs()?;
            let between = placement::regime()?;
            ((mine()?, theirs), between)
        };
        if before == between && between == placement::regime()? {
            pairs.entry(before).or_default().push(pair);
        }
    }
    let most = pairs.into_iter().max_by_key(|(_, pairs)| pairs.len());
    Ok(most.map(|(regime, pairs)| Taken { regime, pairs }))
}

impl Taken {
    /// A row with the figures of these pairs.
    pub fn row(&self, row: Row) -> Row {
        let of = |pick: &dyn Fn(&Sample) -> f64| {
            (
                median(self.pairs.iter().map(|(mine, _)| pick(mine))),
                median(self.pairs.iter().map(|(_, theirs)| pick(theirs))),
            )
        };
        let (unit_size, cpu_unit) = work::cpu_unit(&row.unit);
        let cpu_of = |sample: &Sample| sample.cpu_s / sample.done * unit_size;
        let per_unit = of(&cpu_of);
        let pairs = self.pairs.iter();
        let cpu_samples = pairs.map(|(mine, theirs)| [cpu_of(mine), cpu_of(theirs)]);
        let (cpu_s, rival_cpu_s) = of(&|sample| sample.cpu_s);
        let figures = self.pairs.iter();
        let figures = figures.map(|(mine, theirs)| [mine.value, theirs.value]);
        Row {
            cpu_s,
            rival_cpu_s,
            cpu_s_per_unit: Some(per_unit.0),
            rival_cpu_s_per_unit: Some(per_unit.1),
            cpu_unit: Some(cpu_unit.into()),
            cpu_samples: cpu_samples.collect(),
            ring_bytes: of(&|sample| sample.ring_bytes as f64).0 as u64,
            ..row
        }
        .of_pairs(figures.collect())
    }
}

/// Why connections are on the kernel path just now, for an error line.
pub fn reasons(lab: &Lab) -> String {
    let mut words: Vec<String> = lab
        .connections()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|connection| connection.reason)
        .collect();
    words.sort();
    words.dedup();
    if words.is_empty() {
        "the broker gives no reason".to_owned()
    } else {
        format!("reasons: {}", words.join(", "))
    }
}
