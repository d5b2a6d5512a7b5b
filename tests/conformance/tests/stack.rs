//! Under a stack of the program's own: some programs of cases, with the list of those that differ. All are played by
//! `./x conformance --stack`.
//!
//! One after the other, whatever the number of test threads: each test has a bed of broker, stack, driver and the roles of two paths,
//! and with all beds at once what a case waits for comes late. Its time is mostly waiting, so the sum of time is about the same.

use anyhow::{Result, ensure};
use fordway_test_conformance::suite::{self, Known};
use std::sync::{Mutex, PoisonError};

/// Who has it has the one bed.
static TURN: Mutex<()> = Mutex::new(());

fn hold_under_a_stack(program: &str, left_out: &[&str]) -> Result<()> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    suite::hold_under_a_stack(program, left_out)
}

#[test]
fn stream() -> Result<()> {
    hold_under_a_stack("stream", &[])
}

#[test]
fn epoll() -> Result<()> {
    hold_under_a_stack("epoll", &[])
}

// Of these, what takes a second or more is left to the whole table, and what is about the way to rings, which there are none of.

#[test]
fn wait() -> Result<()> {
    hold_under_a_stack("wait", &["idle", "edge"])
}

#[test]
fn among() -> Result<()> {
    hold_under_a_stack(
        "among",
        &["in_order_", "order_of_", "many_instances", "cold_"],
    )
}

#[test]
fn polls() -> Result<()> {
    hold_under_a_stack("polls", &["upgrade_"])
}

#[test]
fn connect() -> Result<()> {
    hold_under_a_stack("connect", &[])
}

#[test]
fn listen() -> Result<()> {
    hold_under_a_stack("listen", &["reuseport_workers"])
}

#[test]
fn udp_peer() -> Result<()> {
    hold_under_a_stack("udp_peer", &[])
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
