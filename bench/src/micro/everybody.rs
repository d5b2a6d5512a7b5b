//! What a broadcast costs who sends it: to eight domains, beside one by rings, and beside eight by the kernel.
//!
//! The sender sends [`BURST`] broadcasts, and awaits an answer of each receiver to the last of them; so it goes on. What is counted is
//! the time within its sends. It has a CPU for itself, and the receivers share the other.

use super::end::Figures;
use crate::placement::{self, Placement};
use crate::report::Row;
use crate::work::settled_ring_bytes;
use anyhow::{Context, Result, ensure};
use fordway_lab::{Lab, PathChoice, Place, Program, Spawn, interrupt};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// The rows' name.
pub const NAME: &str = "udp-broadcast-64";
/// The rival that is the same to one receiver.
pub const ONE: &str = "one";
const RECEIVERS: usize = 8;
const PORT: u16 = 7001;
const SIZE: usize = 64;
/// Broadcasts between two waits for all receivers.
const BURST: u64 = 64;
/// All receivers have their rings by then: they are known to the broker after a look of its own, 100 ms each.
const WARM_UP: Duration = Duration::from_secs(1);
/// An answer that has not come by then does not come.
const ANSWER_LIMIT: Duration = Duration::from_millis(200);
/// What a sample takes beside its warm-up and length.
const OVERHEAD: Duration = Duration::from_millis(500);
/// Time beyond which a sender is taken for hung.
const SLACK: Duration = Duration::from_secs(30);

/// About how long the rows take.
pub fn estimate(rounds: usize, length: Duration) -> Duration {
    (WARM_UP + length + OVERHEAD) * 3 * rounds as u32
}

/// The rows.
pub fn rows(lab: &Lab, rounds: usize, length: Duration) -> Result<Vec<Row>> {
    let regime = placement::regime()?;
    let [mut beside_one, mut beside_kernel] = [Vec::new(), Vec::new()];
    let take = |receivers, path| sample(lab, receivers, path, length);
    for round in 0..rounds {
        interrupt::check()?;
        let eight = || take(RECEIVERS, PathChoice::Auto);
        let one = || take(1, PathChoice::Auto);
        let kernel = || take(RECEIVERS, PathChoice::Kernel);
        // The one in the middle is the neighbour of both.
        let [one, eight, kernel] = match round % 2 {
            0 => {
                let one = one()?;
                [one, eight()?, kernel()?]
            }
            _ => {
                let kernel = kernel()?;
                let eight = eight()?;
                [one()?, eight, kernel]
            }
        };
        if placement::regime()? == regime {
            beside_one.push([eight, one]);
            beside_kernel.push([eight, kernel]);
        }
    }
    let row = |rival, samples| {
        let row = Row::new(NAME, rival, "ns", regime, Placement::Apart);
        let size_bytes = Some(SIZE);
        Row { size_bytes, ..row }.of_pairs(samples)
    };
    ensure!(!beside_one.is_empty(), "the CPUs moved in each round");
    Ok(vec![
        row(ONE, beside_one),
        row("kernel-bridge", beside_kernel),
    ])
}

/// Nanoseconds of a broadcast within send.
fn sample(lab: &Lab, receivers: usize, path: PathChoice, length: Duration) -> Result<f64> {
    let (of_receivers, of_sender) = Placement::Apart.cpus();
    let spawn = |place: &Place, cpu: &Option<String>, role: &[String]| {
        let program = std::env::current_exe()?.display().to_string();
        let words = [program, "end".to_owned()];
        let mut spawn = Spawn::new(words.into_iter().chain(role.iter().cloned()));
        spawn.cpu = cpu.clone();
        spawn.time_limit = WARM_UP + length + SLACK;
        lab.spawn(place, path, &spawn)
    };
    let hear = |number| -> Result<Program> {
        let place = Place::domain(&format!("hear{number}"), [10, 77, 0, 31 + number as u8]);
        let hears = ["hear".to_owned(), format!("--port={PORT}")];
        let program = spawn(&place, &of_receivers, &hears)?;
        program.wait_for_datagram_port(PORT)?;
        Ok(program)
    };
    let hearing: Vec<Program> = (0..receivers).map(hear).collect::<Result<_>>()?;
    let before = lab.ring_bytes()?;
    let speaks = [
        "speak".to_owned(),
        format!("--port={PORT}"),
        format!("--receivers={receivers}"),
        format!("--seconds={}", length.as_secs_f64()),
    ];
    let speaker = spawn(&placement::client_place(), &of_sender, &speaks)?;
    let text = speaker.finish()?.ok()?.text();
    let figures: Figures = serde_json::from_str(text.trim()).context("a sender's figures")?;
    let is_fast = path == PathChoice::Auto;
    let by_rings = settled_ring_bytes(lab, before, is_fast)?;
    let least = figures.bytes * receivers as u64;
    ensure!(
        !is_fast || by_rings >= least,
        "{by_rings} bytes went through rings, and {least} were broadcast"
    );
    for program in hearing {
        program.stop()?;
    }
    ensure!(figures.count > 0, "no broadcast reached all receivers");
    Ok(figures.seconds * 1e9 / figures.count as f64)
}

/// `fordway-bench end hear`: answers the last broadcast of each burst, until it is ended.
pub fn hear(port: u16) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let mut message = [0; SIZE];
    loop {
        let (_, from) = socket.recv_from(&mut message)?;
        let (round, is_last) = (&message[..8], message[8] != 0);
        if is_last {
            socket.send_to(round, from)?;
        }
    }
}

/// `fordway-bench end speak`: broadcasts to that many, in their network.
pub fn speak(port: u16, receivers: usize, length: Duration) -> Result<Figures> {
    let all = SocketAddr::from((Ipv4Addr::new(10, 77, 0, 255), port));
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_broadcast(true)?;
    socket.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut number = 0;
    let mut figures = Figures::default();
    let begun = Instant::now();
    while begun.elapsed() < WARM_UP + length {
        number += 1;
        let is_counted = begun.elapsed() >= WARM_UP;
        let took = burst(&socket, all, number)?;
        if are_answered(&socket, number, receivers)? && is_counted {
            figures.count += BURST;
            figures.bytes += BURST * SIZE as u64;
            figures.seconds += took.as_secs_f64();
        }
    }
    Ok(figures)
}

/// The time within the sends.
fn burst(socket: &UdpSocket, all: SocketAddr, number: u64) -> Result<Duration> {
    let mut message = [0; SIZE];
    message[..8].copy_from_slice(&number.to_le_bytes());
    let begun = Instant::now();
    for left in (0..BURST).rev() {
        message[8] = u8::from(left == 0);
        socket.send_to(&message, all)?;
    }
    Ok(begun.elapsed())
}

/// Whether each receiver has had the last one.
fn are_answered(socket: &UdpSocket, number: u64, receivers: usize) -> Result<bool> {
    let mut answer = [0; 8];
    let mut count = 0;
    while count < receivers {
        match socket.recv_from(&mut answer) {
            // Others are of bursts that were given up.
            Ok(_) => count += usize::from(u64::from_le_bytes(answer) == number),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}
