//! `fordway-test-filter [RULESETS [PACKETS [SEED]]]`: the filter beside the kernel's
//! nf_tables, for as many rulesets and packets of each as you like. Needs root and nft.

use std::time::Instant;

fn main() -> anyhow::Result<()> {
    let mut numbers = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let mut next = |default| numbers.next().unwrap_or(Ok(default));
    let (rulesets, packets, seed) = (next(200)?, next(50)?, next(1)?);
    let start = Instant::now();
    let tally = fordway_test_filter::compare::run(seed, 0..rulesets, packets as usize)?;
    println!(
        "{} rulesets ({} refused by both), {} packets ({} arrived), no difference, {:.1} s",
        tally.rulesets,
        tally.refused,
        tally.packets,
        tally.arrived,
        start.elapsed().as_secs_f64(),
    );
    Ok(())
}
