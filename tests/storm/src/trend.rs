//! Whether a figure grows with time, from samples that jump about.
//!
//! The slope is Theil's and Sen's: the median of the slopes of all pairs of samples, which neither a burst nor a
//! step pulls far. Its interval follows from how many pairs rise (Kendall). A figure grows if it is certain to
//! rise in the first half of the time and in the second one, and by more than [`ALLOWED`] over the whole: what
//! leaks goes on leaking, while a cache that fills, and a table that doubles once, come to rest.

/// Part of a figure by which it may rise and yet stay what it is.
const ALLOWED: f64 = 0.05;
/// Of a normal distribution, for 95 % on both sides.
const SIGMAS: f64 = 1.96;

/// How a figure has gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Median of the first quarter.
    pub begin: f64,
    /// Median of the last quarter.
    pub end: f64,
    /// What it rises by over the whole time, and the interval that holds this with 95 % certainty.
    pub rise: f64,
    /// Lower and upper bound.
    pub rise_between: [f64; 2],
    /// See the module.
    pub grows: bool,
}

impl Trend {
    /// Of samples at equal distances, eight at least.
    pub fn of(samples: &[f64]) -> Option<Trend> {
        if samples.len() < 8 {
            return None;
        }
        let (quarter, half) = (samples.len() / 4, samples.len() / 2);
        let [low, rise, high] = rise(samples);
        let begin = median(&samples[..quarter]);
        let both = [&samples[..half], &samples[half..]];
        let always = both.iter().all(|part| self::rise(part)[0] > 0.0);
        Some(Trend {
            begin,
            end: median(&samples[samples.len() - quarter..]),
            rise,
            rise_between: [low, high],
            grows: always && low > 0.0 && rise > begin.abs() * ALLOWED,
        })
    }
}

/// Lower bound, median and upper bound of what samples rise by from the first to the last.
fn rise(samples: &[f64]) -> [f64; 3] {
    let count = samples.len() as f64;
    let mut slopes = Vec::new();
    for (index, one) in samples.iter().enumerate() {
        let later = samples[index + 1..].iter().enumerate();
        slopes.extend(later.map(|(beyond, other)| (other - one) / (beyond + 1) as f64));
    }
    slopes.sort_by(f64::total_cmp);
    let spread = SIGMAS * (count * (count - 1.0) * (2.0 * count + 5.0) / 18.0).sqrt();
    let pairs = slopes.len() as f64;
    let at = |place: f64| slopes[place.clamp(0.0, pairs - 1.0) as usize] * (count - 1.0);
    [
        at((pairs - spread) / 2.0),
        at(pairs / 2.0),
        at((pairs + spread) / 2.0),
    ]
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::mix;

    /// Some 10 % to and fro.
    fn noise(index: u64) -> f64 {
        (mix(index) % 200) as f64 - 100.0
    }

    fn of(sample: impl Fn(u64) -> f64) -> Trend {
        let samples: Vec<f64> = (0..96).map(sample).collect();
        Trend::of(&samples).expect("enough samples")
    }

    #[test]
    fn noise_a_step_and_a_cache_that_fills_do_not_grow() {
        assert!(!of(|index| 1000.0 + noise(index)).grows);
        assert!(!of(|_| 1000.0).grows);
        assert!(!of(|index| if index < 40 { 1000.0 } else { 1500.0 }).grows);
        let filling =
            of(|index| 1000.0 + 500.0 * (1.0 - (-(index as f64) / 8.0).exp()) + noise(index));
        assert!(!filling.grows, "{filling:?}");
        assert_eq!(Trend::of(&[1.0; 7]), None);
    }

    #[test]
    fn a_leak_grows_also_in_noise_and_is_told_by_its_size() {
        let leak = of(|index| 1000.0 + 5.0 * index as f64 + noise(index));
        assert!(leak.grows, "{leak:?}");
        assert!((300.0..650.0).contains(&leak.rise), "{leak:?}");
        assert!(leak.rise_between[0] < leak.rise && leak.rise < leak.rise_between[1]);
        assert!(leak.begin < leak.end);
        assert!(!of(|index| 1000.0 + 0.2 * index as f64).grows, "2 %");
    }
}
