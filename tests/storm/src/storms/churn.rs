//! 1,000,000 connections, one after the other, in pieces: each is made, offered, talks
//! and is closed. Memory and descriptors of both programs and of the broker must be
//! as large at the end of a piece as after its first tenth.

use crate::{Storm, go_on, watch};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 2;
/// Longest that a piece may take.
const PIECE_LIMIT: Duration = Duration::from_secs(590);
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// What a process may grow by: warm caches, not a leak. A leak of 100 bytes for each
/// connection would be more.
const GROWTH_KB_MAX: u64 = 8 * 1024;
/// Connections that the server has not closed yet.
const DESCRIPTORS_MORE_MAX: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Held {
    memory_kb: u64,
    descriptors: usize,
    mappings: usize,
}

fn held(pid: u32) -> Held {
    Held {
        memory_kb: watch::rss_kb(pid),
        descriptors: watch::descriptors(pid),
        mappings: watch::mappings(pid),
    }
}

pub fn run(storm: &mut Storm) -> Result<()> {
    let (pieces, each) = storm.scale.pick((1, 10_000), (4, 125_000));
    for piece in 0..pieces {
        storm.figure(
            &format!("piece {} of {pieces}", piece + 1),
            format_args!("{} connections", each * CLIENTS),
        );
        run_piece(storm, each)?;
    }
    Ok(())
}

fn run_piece(storm: &Storm, each: u64) -> Result<()> {
    let offered = |spawn: fordway_lab::Spawn| spawn.env("FORDWAY_OFFER_AFTER", "0");
    let before = storm.lab.info()?;
    let began = Instant::now();
    let (server, port) = storm.serve(&offered(storm.role(["echo"])))?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(storm.spawn(&offered(storm.role(["churn", &port, &each.to_string()])))?);
    }
    let names = ["server", "client", "broker"];
    let pids = [server.pid(), clients[0].pid(), storm.lab.broker_pid()?];
    let mut first = None;
    let until = Instant::now() + PIECE_LIMIT;
    loop {
        let said: Vec<String> = clients.iter().map(|c| c.stdout_so_far()).collect();
        let done = |said: &String| {
            said.lines()
                .filter(|line| line.starts_with("churned"))
                .count()
        };
        let churned: usize = said.iter().map(done).sum();
        if first.is_none() && churned as u64 * 1000 >= each * CLIENTS / 10 {
            first = Some(pids.map(held));
        }
        if said.iter().all(|said| said.contains("done\n")) {
            break;
        }
        ensure!(
            Instant::now() < until,
            "the piece does not end: {churned} thousand"
        );
        ensure!(
            clients.iter().all(|c| c.is_running()),
            "a client ended: {}",
            {
                clients
                    .iter()
                    .map(|c| c.stderr_so_far())
                    .collect::<String>()
            }
        );
        std::thread::sleep(LOOK_AGAIN);
    }
    let seconds = began.elapsed().as_secs_f64();
    let info = storm.channels_gone()?;
    let first = first.unwrap_or_else(|| pids.map(held));
    let last = pids.map(held);
    storm.figure(
        "speed",
        format_args!("{:.0} connections/s", (each * CLIENTS) as f64 / seconds),
    );
    let (paired, carried) = (
        info.paired_total - before.paired_total,
        info.carried_total - before.carried_total,
    );
    storm.figure(
        "had a channel, used its rings",
        format_args!("{paired}, {carried}"),
    );
    ensure!(
        carried * 2 > each * CLIENTS,
        "most connections did not use rings"
    );
    for ((name, first), last) in names.iter().zip(first).zip(last) {
        storm.figure(
            &format!("{name}: memory, descriptors, mappings after a tenth and at the end"),
            format_args!(
                "{} -> {} KB, {} -> {}, {} -> {}",
                first.memory_kb,
                last.memory_kb,
                first.descriptors,
                last.descriptors,
                first.mappings,
                last.mappings
            ),
        );
        ensure!(
            last.memory_kb <= first.memory_kb + GROWTH_KB_MAX,
            "the {name} grows: {first:?}, then {last:?}"
        );
        ensure!(
            last.descriptors <= first.descriptors + DESCRIPTORS_MORE_MAX,
            "the {name} keeps descriptors: {first:?}, then {last:?}"
        );
    }
    for mut client in clients {
        go_on(&mut client)?;
        client.finish()?.ok()?;
    }
    server.stop()?;
    Ok(())
}
