//! The seeds that every test run tries.

use fordway_test_simulation::{Figures, run_seed};

const SEEDS: u64 = 1000;

#[test]
fn a_thousand_seeds() {
    let mut sum = Figures::default();
    for seed in 0..SEEDS {
        let outcome = run_seed(seed, false);
        sum.add(&outcome.figures);
        if let Some(failure) = outcome.failure {
            panic!("seed {seed}: {failure}; again: ./x simulate --seed {seed}");
        }
    }
    for (word, count) in sum.words() {
        println!("{count:>16} {word}");
        assert_ne!(*count, 0, "{word}: never happened, so nothing was tried");
    }
}
