//! Ring memory used up: connections are filled and not read until their domain has no
//! memory left; those that are made then must do on the kernel path, and every byte of
//! all of them must come, and all memory must be given back. Then programs whose address space,
//! or whose files, are too small for a ring at all.

use crate::{Storm, go_on, watch};
use anyhow::{Result, ensure};
use fordway_bench::lab::{Program, Spawn};
use std::time::Duration;

/// What the broker allows a domain.
pub const BROKER_ARGUMENTS: [&str; 2] = ["--ring-memory-max", "64M"];
const RING_BYTES_MAX: u64 = 64 << 20;
/// Connections that would take ten times that if each had all it could.
const CONNECTIONS: u64 = 300;
/// What else of shared memory there is: regions' first pages, marks, endpoints.
const OTHER_SHARED_KB: u64 = 32 << 10;
const STEP_LIMIT: Duration = Duration::from_secs(120);
/// What a program is kept to, by ulimit(1): address space and size of files in KB.
const SMALL: [&str; 2] = ["-v 600000", "-f 1000"];

pub fn run(storm: &mut Storm) -> Result<()> {
    let shared_kb = watch::shared_kb();
    let offered = |spawn: Spawn| spawn.env("FORDWAY_OFFER_AFTER", "0");
    let (mut hoard, port) = storm.serve(&offered(storm.role(["hoard"])))?;
    let mut fill = storm.spawn(&offered(storm.role([
        "fill",
        &port,
        &CONNECTIONS.to_string(),
    ])))?;
    let filled = says(&fill, "filled")?;
    storm.figure(
        "put into connections that nobody reads",
        format_args!("{} MB in {CONNECTIONS}", filled >> 20),
    );
    storm.figure(
        "of it in rings",
        format_args!("{} MB", storm.lab.ring_bytes()? >> 20),
    );
    let taken = storm.lab.info()?.ring_memory_bytes;
    storm.figure(
        "ring memory of the domain",
        format_args!("{} of {} MB", taken >> 20, RING_BYTES_MAX >> 20),
    );
    ensure!(
        taken <= RING_BYTES_MAX && taken > RING_BYTES_MAX / 2,
        "{taken} bytes are taken"
    );
    let above_kb = watch::shared_kb().saturating_sub(shared_kb);
    storm.figure(
        "shared memory of the machine, above idle",
        format_args!("{} MB", above_kb / 1024),
    );
    ensure!(
        above_kb < RING_BYTES_MAX / 1024 + OTHER_SHARED_KB,
        "{above_kb} KB"
    );
    go_on(&mut fill)?;
    let late = says(&fill, "late")?;
    let rows = storm.lab.connections()?;
    let kernel = rows
        .iter()
        .filter(|row| row.path == "kernel" && row.channel.is_some());
    storm.figure("connections made when nothing was left", late);
    let kernel = kernel.count();
    storm.figure("ends with a channel on the kernel path", kernel);
    ensure!(kernel != 0, "there was memory for all of them");
    go_on(&mut fill)?;
    go_on(&mut hoard)?;
    let (sent, read) = (says(&fill, "sent")?, says(&hoard, "read")?);
    storm.figure("sent, read", format_args!("{sent}, {read} bytes"));
    ensure!(sent == read, "{} bytes are missing", sent.abs_diff(read));
    for mut program in [fill, hoard] {
        go_on(&mut program)?;
        let output = program.finish()?.ok()?;
        ensure!(!output.text().contains("WRONG"), "{}", output.text());
    }
    storm.channels_gone()?;
    let left = storm.lab.info()?.ring_memory_bytes;
    ensure!(left == 0, "{left} bytes are not given back");
    for limit in SMALL {
        run_small(storm, limit)?;
    }
    Ok(())
}

/// A program that is kept too small for a link, against one that is not.
fn run_small(storm: &Storm, limit: &str) -> Result<()> {
    let offered = |spawn: Spawn| spawn.env("FORDWAY_OFFER_AFTER", "0");
    let (server, port) = storm.serve(&offered(storm.role(["echo"])))?;
    let role = storm.role(["hold", &port, "20"]);
    let script = format!("ulimit {limit} && exec {}", role.argv.join(" "));
    let mut small = role.clone();
    small.argv = ["sh", "-c", &script].map(str::to_owned).to_vec();
    let mut client = storm.spawn(&offered(small))?;
    for said in ["ready\n", "held\n", "exercised\n", "closed\n"] {
        client.wait_for_output(said)?;
        go_on(&mut client)?;
    }
    client.finish()?.ok()?;
    server.stop()?;
    storm.figure(&format!("a program under ulimit {limit}"), "20 connections");
    Ok(())
}

/// The number behind a word that a role says.
fn says(program: &Program, word: &str) -> Result<u64> {
    let number = || {
        let text = program.stdout_so_far();
        let line = text.lines().find_map(|line| line.strip_prefix(word));
        line.and_then(|line| line.trim().parse().ok())
    };
    program.wait_until(STEP_LIMIT, &format!("says {word}"), || number().is_some())?;
    Ok(number().unwrap_or(0))
}
