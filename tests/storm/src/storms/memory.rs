//! Ring memory used up: connections are filled and not read until their domain has no
//! memory left to grow; some of those that are made then have rings still, in what growth leaves, and
//! the others must do on the kernel path. Every byte of all of them must come, and all memory must
//! be given back. Then programs whose address space, or whose files, are too small for a ring at all.

use crate::{LET_GO_LIMIT, Storm, go_on, watch};
use anyhow::{Result, ensure};
use fordway_lab::{Program, Spawn};
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
    // They stay, and with them the account of what the domain has.
    let witness = Held::start(storm, "1", &[])?;
    let kept = storm.lab.info()?.ring_memory_bytes;
    ensure!(kept != 0, "the one that stays has no ring");
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
    let ends = [&hoard, &fill].map(Program::pids).concat();
    let all = ends.iter().copied().chain([storm.lab.broker_pid()?]);
    let shared_kb: u64 = all.map(watch::shared_kb).sum();
    storm.figure(
        "shared memory of the programs and the broker",
        format_args!("{} MB", shared_kb / 1024),
    );
    let rings_kb = RING_BYTES_MAX / 1024;
    ensure!(
        (rings_kb / 2..rings_kb + OTHER_SHARED_KB).contains(&shared_kb),
        "{shared_kb} KB"
    );
    go_on(&mut fill)?;
    let late = says(&fill, "late")?;
    let rows = storm.lab.connections()?;
    let kernel = rows
        .iter()
        .filter(|row| row.path == "kernel" && row.channel.is_some());
    storm.figure("connections made when no ring could grow", late);
    let kernel = kernel.count();
    storm.figure("ends with a channel on the kernel path", kernel);
    ensure!(kernel != 0, "there was memory for all of them");
    ensure!((kernel as u64) < 2 * late, "growth has left them nothing");
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
    let what = "ring memory is given back, but for that of the connection that stays";
    storm.lab.wait_until(LET_GO_LIMIT, what, || {
        Ok(storm.lab.info()?.ring_memory_bytes == kept)
    })?;
    storm.figure(
        "ring memory of the connection that stays",
        format_args!("{} KB", kept >> 10),
    );
    witness.finish()?;
    for limit in SMALL {
        Held::start(storm, "20", &["ulimit", limit, "&&"])?.finish()?;
        storm.figure(&format!("a program under ulimit {limit}"), "20 connections");
    }
    storm.channels_gone()?;
    Ok(())
}

/// A program that holds connections to a server.
struct Held {
    server: Program,
    client: Program,
}

impl Held {
    /// `before`: what the client's shell does first.
    fn start(storm: &Storm, connections: &str, before: &[&str]) -> Result<Held> {
        let offered = |spawn: Spawn| spawn.env("FORDWAY_OFFER_AFTER", "0");
        let (server, port) = storm.serve(&offered(storm.role(["echo"])))?;
        let mut role = storm.role(["hold", &port, connections]);
        let script = format!("{} exec {}", before.join(" "), role.argv.join(" "));
        role.argv = ["sh", "-c", &script].map(str::to_owned).to_vec();
        let mut client = storm.spawn(&offered(role))?;
        for said in ["ready\n", "held\n"] {
            client.wait_for_output(said)?;
            go_on(&mut client)?;
        }
        client.wait_for_output("exercised\n")?;
        Ok(Held { server, client })
    }

    fn finish(mut self) -> Result<()> {
        go_on(&mut self.client)?;
        self.client.wait_for_output("closed\n")?;
        go_on(&mut self.client)?;
        self.client.finish()?.ok()?;
        self.server.stop()?;
        Ok(())
    }
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
