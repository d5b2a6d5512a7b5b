//! All scripts, against the stack as the unikernel sets it up: its file, its bounds for a small and for an ordinary domain, of both
//! applications. Linux has played each script in `wire.rs`, so what a script says is Linux's answer. What differs has a reason in
//! docs/unikernel.md.
//!
//! Offloads are off (`off=csum,gso`): what the other side of the device does with a frame is for tests/netfront. Built by itself and without
//! the default features, as `./x test` does, the stack has those of an image and no others.

#[path = "../../../apps/unikernel/src/stack.rs"]
mod setup;

use fordway_netstack::{Cidr, Config};
use fordway_test_wire::{OWN_MAC, Script, Setup, StackSide, address, play, scripts};

const UNIKERNEL: &str = include_str!("../../../docs/unikernel.md");
const DIFFER: &str = "### Scripts that differ";

/// The scripts in backticks behind each reason of the table.
fn known() -> Vec<&'static str> {
    let section = UNIKERNEL.split_once(DIFFER).map_or("", |both| both.1);
    let section = section.split("\n##").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|'));
    let columns = rows.filter_map(|row| row.split('|').nth(2));
    let names = columns.flat_map(|column| column.split('`').skip(1).step_by(2));
    names.collect()
}

fn played(script: &Script, megabytes: usize, is_kv: bool) -> Result<(), String> {
    // The command line has `receive=KB`, and Nagle's algorithm is off.
    let is_had =
        |(name, value): &&(String, String)| name == "rcvbuf" || name == "nodelay" && value == "1";
    if let Some((name, _)) = script.options.iter().find(|option| !is_had(option)) {
        return Err(format!("{}: no socket there has {name}", script.name));
    }
    let memory_bytes = megabytes << 20;
    let mut config = Config::new(OWN_MAC, 0x0dd_ba11);
    // What is left of the memory is not the same in all images.
    config.limits = setup::limits(setup::tasks(memory_bytes), memory_bytes / 2, is_kv);
    let own = address(script.is_ipv6, true);
    let own = Cidr::new(own, if script.is_ipv6 { 64 } else { 24 });
    let setup = Setup {
        config,
        tcp: setup::tcp_options(setup::buffers(memory_bytes), setup::CONGESTION, is_kv),
        addresses: setup::addresses(Some(own)).collect(),
        bound: None,
    };
    let side = StackSide::new(script, setup);
    let mut side = side.map_err(|error| format!("{}: {error:#}", script.name))?;
    play(script, &mut side).map_err(|what| format!("{megabytes} MB, kv {is_kv}: {what}"))
}

#[test]
fn the_unikernel_s_stack_does_what_linux_does() {
    let (scripts, known) = (scripts(), known());
    let mut wrong = Vec::new();
    for script in &scripts {
        let domains = [(8, false), (8, true), (64, false), (64, true)];
        let mut failures = domains
            .into_iter()
            .filter_map(|(megabytes, is_kv)| played(script, megabytes, is_kv).err());
        match (failures.next(), known.contains(&script.name.as_str())) {
            (Some(what), false) => wrong.push(what),
            (None, true) => wrong.push(format!("{}: no longer a difference", script.name)),
            (Some(what), true) => println!("known: {what}"),
            (None, false) => {}
        }
    }
    for name in known {
        let is_there = scripts.iter().any(|script| script.name == name);
        if !is_there && std::env::var_os("FORDWAY_WIRE").is_none() {
            wrong.push(format!("{name}: no script"));
        }
    }
    let count = wrong.len();
    assert!(
        wrong.is_empty(),
        "{count} of {}:\n{}",
        scripts.len(),
        wrong.join("\n")
    );
}

#[test]
fn its_features_are_those_of_an_image() {
    let features = |manifest: &'static str| {
        let mut lines = manifest.lines();
        let line = lines.find(|line| line.starts_with("fordway-netstack = "));
        line.and_then(|line| line.split_once("default-features = "))
            .map(|both| both.1)
    };
    let own = features(include_str!("../Cargo.toml"));
    let image = features(include_str!("../../../apps/unikernel/Cargo.toml"));
    assert!(own.is_some_and(|own| own.starts_with("false, features = [")));
    assert_eq!(own, image);
}
