//! A short piece of each storm.

use anyhow::Result;
use fordway_test_storm::{Scale, Told, storms};
use std::path::Path;

fn short(name: &str) -> Result<()> {
    storms::run(
        name,
        Path::new(env!("CARGO_BIN_EXE_fordway-test")),
        (Scale::Short, &Told::default()),
    )
}

#[test]
fn held() -> Result<()> {
    short("held")
}

#[test]
fn churn() -> Result<()> {
    short("churn")
}

#[test]
fn kills() -> Result<()> {
    short("kills")
}

#[test]
fn descriptors() -> Result<()> {
    short("descriptors")
}

#[test]
fn memory() -> Result<()> {
    short("memory")
}

#[test]
fn threads() -> Result<()> {
    short("threads")
}

#[test]
fn stack() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        fordway_test_skip::skipped("domains need root");
        return Ok(());
    }
    short("stack")
}

#[test]
fn day() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        fordway_test_skip::skipped("domains need root");
        return Ok(());
    }
    short("day")
}
