//! Whether neighbours are worse off beside an attack than beside somebody honest.
//!
//! A slow round trip has many causes on a machine with other work, and most of them are not
//! mallory. So the two are measured in turn, a round of one beside a round of the other, and
//! what counts is the median of the ratios. Noise meets both kinds alike: it moves single
//! ratios far to either side, and their median little. Rounds are added until the median is
//! within the bound, or there have been so many that chance is no excuse: a neighbour whom an
//! attack makes slower stays above it, however long that goes on.

use crate::bystanders::Ping;
use crate::{Bed, Trips};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

/// How long one round goes on.
const ROUND: Duration = Duration::from_millis(60);
/// As many pairs of rounds at least, ...
const PAIRS_MIN: usize = 5;
/// ... and at most.
const PAIRS_MAX: usize = 61;
/// How much higher the 99th percentile may be beside an attack, and how much fewer the round trips.
const RATIO_MAX: f64 = 2.0;

/// What one neighbour saw: of each pair of rounds the one beside an honest peer, and the other.
struct Seen {
    what: &'static str,
    pairs: Vec<(Trips, Trips)>,
}

impl Seen {
    fn median(&self, of: impl Fn(&(Trips, Trips)) -> f64) -> f64 {
        let mut sorted: Vec<f64> = self.pairs.iter().map(of).collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// How much slower the slow ones were.
    fn p99_ratio(&self) -> f64 {
        self.median(|(honest, now)| p99_us(now) / p99_us(honest))
    }

    /// How much fewer there were: a stall is one slow round trip among thousands.
    fn count_ratio(&self) -> f64 {
        self.median(|(honest, now)| honest.count as f64 / now.count.max(1) as f64)
    }

    fn is_no_worse(&self) -> bool {
        self.p99_ratio() <= RATIO_MAX && self.count_ratio() <= RATIO_MAX
    }

    fn line(&self) -> String {
        format!(
            "{} neighbour, beside an honest one / beside mallory: p99 {:.1} / {:.1} us ({:.2}x), {:.0} / {:.0} round trips ({:.2}x fewer); medians of {} pairs of rounds",
            self.what,
            self.median(|(honest, _)| p99_us(honest)),
            self.median(|(_, now)| p99_us(now)),
            self.p99_ratio(),
            self.median(|(honest, _)| honest.count as f64),
            self.median(|(_, now)| now.count as f64),
            self.count_ratio(),
            self.pairs.len(),
        )
    }
}

/// Who had no turn in a round has no 99th percentile there.
fn p99_us(trips: &Trips) -> f64 {
    match trips.count {
        0 => ROUND.as_secs_f64() * 1e6,
        _ => trips.p99_us.max(0.1),
    }
}

impl Bed {
    /// Compares an attack with what an honest peer does who is as busy. Both are called with
    /// a time, up to which they are to go on.
    pub fn no_worse(
        &mut self,
        name: &str,
        mut honest: impl FnMut(&Bed, Instant) -> Result<()>,
        mut attack: impl FnMut(&Bed, Instant) -> Result<()>,
    ) -> Result<()> {
        let seen = |ping: &Ping| Seen {
            what: ping.what,
            pairs: Vec::new(),
        };
        let mut all: Vec<Seen> = self.pings.iter().map(seen).collect();
        for pair in 1..=PAIRS_MAX {
            // Who comes first takes turns, too.
            let (beside_honest, beside_attack) = if pair % 2 == 0 {
                let first = self.round(&mut honest)?;
                (first, self.round(&mut attack)?)
            } else {
                let first = self.round(&mut attack)?;
                (self.round(&mut honest)?, first)
            };
            let rounds = beside_honest.into_iter().zip(beside_attack);
            all.iter_mut()
                .zip(rounds)
                .for_each(|(seen, pair)| seen.pairs.push(pair));
            if pair >= PAIRS_MIN && all.iter().all(Seen::is_no_worse) {
                break;
            }
        }
        for seen in &all {
            println!("{name}, {}", seen.line());
        }
        for seen in &all {
            ensure!(seen.is_no_worse(), "{name}: {}", seen.line());
        }
        Ok(())
    }

    fn round(&mut self, act: &mut impl FnMut(&Bed, Instant) -> Result<()>) -> Result<Vec<Trips>> {
        self.trips()?;
        act(self, Instant::now() + ROUND)?;
        self.trips()
    }
}
