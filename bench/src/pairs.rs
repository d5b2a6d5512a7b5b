//! What pairs of neighbouring samples say: the middle of their ratios, and how sure that is.
//!
//! A pair is a sample of ours and one of the rival's, taken one right after the other, in turns
//! ours first and the rival's first, both while the CPUs were equally far apart. The interval is
//! that of a percentile bootstrap (Efron, "Bootstrap methods", Annals of Statistics 7, 1979): the
//! pairs are drawn again with replacement, and the middle of each drawing is noted; what lies
//! between the outermost 2.5 % on either side is the interval. The drawings are the same in each
//! run, so that a report made again from its rows says the same.

/// Fewer pairs prove nothing.
pub const PAIRS_MIN: usize = 7;
/// How often they are drawn.
const DRAWINGS: usize = 2_000;
/// Of all drawings, on either side.
const OUTSIDE: f64 = 0.025;

/// The middle of a set; the mean of the two middles if it is even.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// Ours against the rival's, as a ratio of speeds.
pub fn ratios(samples: &[[f64; 2]], less_is_better: bool) -> Vec<f64> {
    let pairs = samples.iter();
    pairs
        .map(|&[mine, theirs]| match less_is_better {
            true => theirs / mine,
            false => mine / theirs,
        })
        .collect()
}

/// Where the middle of these ratios lies, with 95 % certainty; `None` of none.
pub fn interval(ratios: &[f64]) -> Option<[f64; 2]> {
    if ratios.is_empty() {
        return None;
    }
    let mut draw = Draw(0x9E37_79B9_7F4A_7C15);
    let mut middles: Vec<f64> = (0..DRAWINGS)
        .map(|_| median((0..ratios.len()).map(|_| ratios[draw.below(ratios.len())])))
        .collect();
    middles.sort_by(f64::total_cmp);
    let at = |part: f64| middles[(part * (DRAWINGS - 1) as f64).round() as usize];
    Some([at(OUTSIDE), at(1.0 - OUTSIDE)])
}

/// Marsaglia's xorshift ("Xorshift RNGs", 2003): no more is asked of it than to be even.
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn times_and_speeds_give_the_same_ratio() {
        assert_eq!(ratios(&[[100.0, 300.0]], true), [3.0]);
        assert_eq!(ratios(&[[300.0, 100.0]], false), [3.0]);
    }

    #[test]
    fn the_interval_holds_the_median_and_is_wider_where_pairs_differ() {
        let even = interval(&[2.0; 7]).unwrap();
        assert_eq!(even, [2.0, 2.0]);
        let some = [1.0, 1.9, 2.0, 2.0, 2.1, 2.2, 9.0];
        let [low, high] = interval(&some).unwrap();
        assert!(
            (1.0..2.0).contains(&low) && (2.0..9.0).contains(&high),
            "{low} {high}"
        );
        assert_eq!(interval(&some), interval(&some), "drawn alike each time");
        assert_eq!(interval(&[]), None);
    }
}
