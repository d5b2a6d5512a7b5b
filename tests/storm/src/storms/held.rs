//! 10,000 connections open at once, all used, then closed.

use crate::{Storm, go_on, watch};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 4;
/// How long opening, or using, all of them may take.
const STEP_LIMIT: Duration = Duration::from_secs(300);

pub fn run(storm: &mut Storm) -> Result<()> {
    let each = storm.scale.pick(250, 2500);
    let all = each * CLIENTS;
    let (server, port) = storm.serve(&storm.role(["echo"]).env("FORDWAY_OFFER_AFTER", "0"))?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let spawn = storm.role(["hold", &port, &each.to_string()]);
        clients.push(storm.spawn(&spawn.env("FORDWAY_OFFER_AFTER", "0"))?);
    }
    for client in &clients {
        client.wait_for_output("ready\n")?;
    }
    let pids: Vec<u32> = [server.pid(), storm.lab.broker_pid()?]
        .into_iter()
        .chain(clients.iter().map(|client| client.pid()))
        .collect();
    let memory_kb = || pids.iter().map(|&pid| watch::rss_kb(pid)).sum::<u64>();
    let shared_kb = || pids.iter().map(|&pid| watch::shared_kb(pid)).sum::<u64>();
    let (idle_kb, idle_shared_kb) = (memory_kb(), shared_kb());
    let idle_descriptors = watch::descriptors(server.pid());

    let mut step = |name: &str, said: &str| -> Result<()> {
        let began = Instant::now();
        for client in &mut clients {
            go_on(client)?;
        }
        for client in &clients {
            client.wait_until(STEP_LIMIT, &format!("says {said}"), || {
                client.stdout_so_far().contains(said)
            })?;
        }
        storm.figure(name, format_args!("{:.1} s", began.elapsed().as_secs_f64()));
        Ok(())
    };
    step(&format!("opening {all} connections"), "held\n")?;
    let info = storm.lab.info()?;
    let rows = storm.lab.connections()?;
    let fast = rows.iter().filter(|row| row.path == "fast").count();
    let before_bytes = info.ring_bytes_total;
    storm.figure("channels", info.channels);
    storm.figure("ends on the fast path", fast);
    ensure!(
        info.channels as u64 * 100 >= all * 99,
        "only {} of {all} connections have a channel",
        info.channels
    );
    step("using all of them", "exercised\n")?;
    let bytes = storm.lab.info()?.ring_bytes_total - before_bytes;
    storm.figure("bytes through rings meanwhile", bytes);
    ensure!(bytes > all * 1000 * 9 / 10, "most bytes did not use rings");
    storm.figure(
        "memory of all processes, above idle",
        format_args!("{} MB", memory_kb().saturating_sub(idle_kb) / 1024),
    );
    storm.figure(
        "shared memory of all processes, above idle, each page once",
        format_args!("{} MB", shared_kb().saturating_sub(idle_shared_kb) / 1024),
    );
    step("closing all of them", "closed\n")?;
    storm.channels_gone()?;
    let left = watch::descriptors(server.pid());
    storm.figure(
        "the server's descriptors, idle, and after all",
        format_args!("{idle_descriptors}, {left}"),
    );
    // Doorbells of the links and one region each stay with the processes.
    ensure!(
        left < idle_descriptors + 100,
        "the server keeps descriptors"
    );
    for mut client in clients {
        go_on(&mut client)?;
        client.finish()?.ok()?;
    }
    server.stop()?;
    Ok(())
}
