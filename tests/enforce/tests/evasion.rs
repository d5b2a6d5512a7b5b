//! Packets made by hand, over the live fabric: none walks around the rules.

use anyhow::{Context, Result, ensure};
use fordway_platform::fabric::Fabric;
use fordway_test_enforce::{Bed, db, guest, program, web};
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_fordway-test-enforce");
const LIMIT: Duration = Duration::from_secs(60);
/// Whom the rules refuse: an echo of `db`. And where nobody listens, which they leave open.
const SERVER: &str = "10.77.0.3:7000";
const OPEN_PORT: u16 = 7001;

/// Port 7000 is refused, port 7001 let pass: in words that differ in what they look at.
const RULESETS: [(&str, &str); 5] = [
    (
        "a port refused",
        "table inet t {
           chain c { type filter hook forward priority 0; policy accept;
             tcp dport 7000 counter drop
           }
         }",
    ),
    (
        "a port refused for connections",
        "table inet t {
           chain c { type filter hook forward priority 0; policy accept;
             ct state new tcp dport 7000 counter drop
           }
         }",
    ),
    (
        "a port let pass",
        "table ip t {
           chain c { type filter hook input priority 0; policy drop;
             ct state established accept
             tcp dport 7001 counter accept
           }
         }",
    ),
    (
        "a port let pass, packet by packet",
        "table ip t {
           chain c { type filter hook forward priority 0; policy drop;
             tcp dport 7001 counter accept
             tcp sport 7001 counter accept
           }
         }",
    ),
    (
        "a port refused in the bridge",
        "table bridge t {
           chain c { type filter hook forward priority 0; policy accept;
             tcp dport 7000 counter drop
           }
         }",
    ),
];

/// What `craft` says became of each shape.
fn crafted(bed: &Bed) -> Result<Vec<(String, bool)>> {
    let words = format!("craft {} {SERVER} {OPEN_PORT}", guest().ip());
    let output = bed.spawn(&guest(), &program(&words, BINARY))?.finish()?;
    let output = output.ok()?;
    let lines = output.text();
    let lines = lines.lines().filter_map(|line| line.split_once(' '));
    Ok(lines
        .map(|(shape, what)| (shape.to_owned(), what == "answered"))
        .collect())
}

/// A SYN in one piece or in fragments, tiny, overlapping or behind options: what the receiver
/// would take for one is refused, and what is let pass arrives.
#[test]
fn a_port_is_not_reached_by_fragments() -> Result<()> {
    let Some(bed) = Bed::start("fragments")? else {
        return Ok(());
    };
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    // Without rules all that mean one thing are answered, so the receiver understands them.
    let free = crafted(&bed)?;
    println!("no rules: {free:?}");
    for shape in ["whole", "options", "tiny", "reversed", "options-tiny"] {
        ensure!(
            free.contains(&(shape.to_owned(), true)),
            "{shape}: {free:?}"
        );
    }
    for (what, rules) in RULESETS {
        bed.load_text(&format!("{rules}\n"), false)?;
        let seen = crafted(&bed)?;
        println!("{what}: {seen:?}");
        ensure!(seen.len() == free.len(), "{what}: {seen:?}");
        ensure!(
            seen.iter().all(|(_, answered)| !answered),
            "{what}: {seen:?}"
        );
    }
    echo.stop()?;
    bed.finish()
}

/// Frames with the address, the MAC or the ARP answer of somebody else, and frames that the
/// rules of families ip and inet would not see, for they are tagged: none leaves the port.
#[test]
fn a_frame_that_is_not_the_ports_own_does_not_pass() -> Result<()> {
    let Some(bed) = Bed::start("forged")? else {
        return Ok(());
    };
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    let fabric = Fabric::open(&bed.lab.runtime_dir())?.context("no fabric")?;
    let spoofed = || -> Result<u64> { Ok(fabric.spoofed_frames(guest().ip())?) };
    let before = spoofed()?;
    let words = format!("forge {} {SERVER} {}", guest().ip(), web().ip());
    let output = bed.spawn(&guest(), &program(&words, BINARY))?.finish()?;
    let output = output.ok()?;
    print!("{}", output.text());
    let sent = output.text().lines().count() as u64;
    bed.lab.wait_until(LIMIT, "all frames are dropped", || {
        Ok(spoofed()? >= before + sent)
    })?;
    ensure!(spoofed()? == before + sent);
    echo.stop()?;
    bed.finish()
}
