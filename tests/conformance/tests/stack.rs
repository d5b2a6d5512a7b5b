//! Under a stack of the program's own: some programs of cases, with the list of those that differ. All are played by
//! `./x conformance --stack`.

use anyhow::{Result, ensure};
use fordway_test_conformance::suite::{self, Known, hold_under_a_stack};

#[test]
fn stream() -> Result<()> {
    hold_under_a_stack("stream")
}

#[test]
fn epoll() -> Result<()> {
    hold_under_a_stack("epoll")
}

/// Each case of the list is there, and stands there once.
#[test]
fn the_list_is_one_of_cases() -> Result<()> {
    let mut all = Vec::new();
    for program in suite::programs(false) {
        all.extend(suite::cases(&program)?.iter().map(ToString::to_string));
    }
    let mut seen = std::collections::BTreeSet::new();
    for known in Known::of_stacks().all() {
        ensure!(all.contains(known), "there is no case {known}");
        ensure!(seen.insert(known.clone()), "{known} stands there twice");
    }
    ensure!(!seen.is_empty(), "no list");
    Ok(())
}
