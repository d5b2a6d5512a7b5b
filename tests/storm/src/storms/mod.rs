//! The storms.

mod churn;
mod day;
mod descriptors;
mod held;
mod kills;
mod memory;
mod stack;
mod threads;

use crate::{Scale, Storm, Told};
use anyhow::Result;
use std::path::Path;

type Run = fn(&mut Storm) -> Result<()>;

/// The one that takes as long as it is told to.
pub const DAY: &str = "day";

/// All of them by name, with what their brokers are told.
pub const ALL: [(&str, Run, &[&str]); 8] = [
    ("held", held::run, &[]),
    ("churn", churn::run, &[]),
    ("kills", kills::run, &[]),
    ("descriptors", descriptors::run, &[]),
    ("memory", memory::run, &memory::BROKER_ARGUMENTS),
    ("threads", threads::run, &[]),
    ("stack", stack::run, &[]),
    (DAY, day::run, &[]),
];

/// Runs one, prints its figures, and looks for leaks.
pub fn run(name: &str, binary: &Path, how: (Scale, &Told)) -> Result<()> {
    let (_, run, broker_arguments) = ALL
        .iter()
        .find(|(known, ..)| *known == name)
        .ok_or_else(|| anyhow::anyhow!("there is no storm {name}"))?;
    println!("{name} ({:?})", how.0);
    let mut storm = Storm::start(binary, how, broker_arguments)?;
    run(&mut storm)?;
    storm.finish()
}
