//! What pairs of neighbouring samples say: the middle of their ratios, and how sure that is.
//!
//! A pair is a sample of ours and one of the rival's, one right after the other, both while the
//! CPUs were equally far apart. Which one comes first alternates from pair to pair.
//!
//! The interval of a median needs only that samples are independent. Each value lies below the true
//! median with probability 1/2, so how many do is binomial (David and Nagaraja, "Order Statistics",
//! 2003, section 7.1). The interval goes from the k-th smallest value to the k-th largest. This k is
//! the largest for which the interval holds the true median in at least 95 of 100 runs. Of seven
//! values it goes from the smallest to the largest; of fewer than six there is none. A percentile
//! bootstrap would take the second and the sixth of seven, which hold it in 87 of 100 runs only.

/// Fewer pairs prove nothing.
pub const PAIRS_MIN: usize = 7;
/// How often the true median may lie beyond the interval, on either side.
const BEYOND_MAX: f64 = 0.025;

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

/// Where the median of what these values are drawn from lies, with at least 95 % certainty;
/// `None`: they are too few to say.
pub fn interval(values: &[f64]) -> Option<[f64; 2]> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // That exactly, and that at most, so many of them lie below the median.
    let mut exactly = 0.5f64.powi(count as i32);
    let (mut at_most, mut outside) = (exactly, 0);
    while at_most <= BEYOND_MAX && outside < count / 2 {
        exactly *= (count - outside) as f64 / (outside + 1) as f64;
        at_most += exactly;
        outside += 1;
    }
    let first = outside.checked_sub(1)?;
    Some([sorted[first], sorted[count - 1 - first]])
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
    fn intervals_are_those_of_the_tables() {
        let of = |count: u32| {
            let values: Vec<f64> = (1..=count).rev().map(f64::from).collect();
            interval(&values)
        };
        // By tables of the binomial: ranks 1 of 6 to 8, 2 of 9 to 11, 3 of 12, 10 of 30.
        assert_eq!([of(0), of(1), of(5)], [None; 3]);
        assert_eq!(of(6), Some([1.0, 6.0]));
        assert_eq!(of(7), Some([1.0, 7.0]));
        assert_eq!(of(9), Some([2.0, 8.0]));
        assert_eq!(of(12), Some([3.0, 10.0]));
        assert_eq!(of(30), Some([10.0, 21.0]));
    }
}
