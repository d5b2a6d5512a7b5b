//! `simulate [--seeds N] [--from S]`: that many seeds on all processors.
//! `simulate --seed S`: one seed, each step printed; `simulate --bytes FILE`: the same for
//! what the fuzz target `machine` has found.

use fordway_test_simulation::{Figures, Outcome, run_bytes, run_seed};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const SEEDS: u64 = 1_000_000;
/// Failures after which a run ends.
const FAILURES_MAX: usize = 10;
/// Seeds between two lines about the progress.
const REPORT_SEEDS: u64 = 50_000;

fn main() -> ExitCode {
    let (mut seeds, mut from, mut one) = (SEEDS, 0, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(word) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match (word.as_str(), value.parse::<u64>()) {
            ("--seeds", Ok(value)) => seeds = value,
            ("--from", Ok(value)) => from = value,
            ("--seed", Ok(value)) => one = Some(value),
            ("--bytes", _) => match std::fs::read(&value) {
                Ok(bytes) => return tell(&value, run_bytes(&bytes, true)),
                Err(error) => {
                    eprintln!("{value}: {error}");
                    return ExitCode::from(2);
                }
            },
            _ => {
                eprintln!("usage: simulate [--seeds N] [--from S] | --seed S | --bytes FILE");
                return ExitCode::from(2);
            }
        }
    }
    match one {
        Some(seed) => tell(&format!("seed {seed}"), run_seed(seed, true)),
        None => many(from, seeds),
    }
}

fn tell(what: &str, outcome: Outcome) -> ExitCode {
    match outcome.failure {
        None => {
            println!("{what}: passed after {} steps", outcome.figures.steps);
            ExitCode::SUCCESS
        }
        Some(failure) => {
            println!("{what}: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn many(from: u64, seeds: u64) -> ExitCode {
    let next = AtomicU64::new(from);
    let end = from + seeds;
    let failures = Mutex::new(Vec::new());
    let sum = Mutex::new(Figures::default());
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut own = Figures::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let enough = failures.lock().is_ok_and(|list| list.len() >= FAILURES_MAX);
                    if seed >= end || enough {
                        break;
                    }
                    let outcome = run_seed(seed, false);
                    own.add(&outcome.figures);
                    if let (Some(failure), Ok(mut list)) = (outcome.failure, failures.lock()) {
                        println!("seed {seed}: {failure}");
                        list.push(seed);
                    }
                    if (seed + 1 - from).is_multiple_of(REPORT_SEEDS) {
                        let seconds = start.elapsed().as_secs();
                        println!("{} seeds, {seconds} s", seed + 1 - from);
                    }
                }
                if let Ok(mut sum) = sum.lock() {
                    sum.add(&own);
                }
            });
        }
    });
    let failed = failures.lock().map_or(0, |list| list.len());
    let done = next.load(Ordering::Relaxed).min(end) - from;
    if let Ok(mut sum) = sum.lock() {
        for (word, count) in sum.words() {
            println!("{count:>16} {word}");
        }
    }
    println!(
        "{done} seeds in {:.1} s, {failed} failed",
        start.elapsed().as_secs_f64()
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        println!("again, each step printed: ./x simulate --seed N");
        ExitCode::FAILURE
    }
}
