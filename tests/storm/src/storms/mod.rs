//! The storms.

mod churn;
mod descriptors;
mod held;
mod kills;
mod memory;
mod threads;

use crate::{Scale, Storm};
use anyhow::Result;
use std::path::Path;

type Run = fn(&mut Storm) -> Result<()>;

/// All of them by name, with what their brokers are told.
pub const ALL: [(&str, Run, &[&str]); 6] = [
    ("held", held::run, &[]),
    ("churn", churn::run, &[]),
    ("kills", kills::run, &[]),
    ("descriptors", descriptors::run, &[]),
    ("memory", memory::run, &memory::BROKER_ARGUMENTS),
    ("threads", threads::run, &[]),
];

/// Runs one, prints its figures, and looks for leaks.
pub fn run(name: &str, binary: &Path, scale: Scale) -> Result<()> {
    let (_, run, broker_arguments) = ALL
        .iter()
        .find(|(known, ..)| *known == name)
        .ok_or_else(|| anyhow::anyhow!("there is no storm {name}"))?;
    println!("{name} ({scale:?})");
    let mut storm = Storm::start(binary, scale, broker_arguments)?;
    run(&mut storm)?;
    storm.finish()
}
