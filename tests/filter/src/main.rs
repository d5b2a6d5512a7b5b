//! `fordway-test-filter [RULESETS [PACKETS [SEED [FIRST]]]]`: the filter beside the kernel's
//! nf_tables, for as many rulesets and packets of each as you like, from the ruleset of number
//! FIRST on. Needs root and nft. A long run says how far it has come, and goes on behind a
//! difference.

use std::process::ExitCode;
use std::time::Instant;

use fordway_test_filter::compare::{Tally, run};

/// Rulesets between two lines of a long run.
const SHARD: u64 = 50;

fn main() -> anyhow::Result<ExitCode> {
    let mut numbers = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let mut next = |default| numbers.next().unwrap_or(Ok(default));
    let (rulesets, packets, seed, first) = (next(200)?, next(50)?, next(1)?, next(0)?);
    anyhow::ensure!(
        packets <= u16::MAX.into(),
        "packets are told apart by 16 bits"
    );
    let start = Instant::now();
    let mut all = Tally::default();
    let end = first + rulesets;
    for from in (first..end).step_by(SHARD as usize) {
        let to = end.min(from + SHARD);
        let tally = run(seed, from..to, packets as usize)?;
        for difference in &tally.differences {
            println!("{difference}");
        }
        all.add(tally);
        let seconds = start.elapsed().as_secs_f64();
        eprintln!("seed {seed}, up to ruleset {to}: {all}, {seconds:.1} s");
    }
    println!("{all}, {:.1} s", start.elapsed().as_secs_f64());
    if all.excuses_too_much() {
        println!("chance excuses more than it can have done");
    }
    Ok(if all.differences.is_empty() && !all.excuses_too_much() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
