//! Who lives through a day: a client whose connections, and programs of its own, come at an even
//! pace; and a probe, which says what a round trip takes meanwhile.

use super::{connect, crowd, say, talk, wait_for_word};
use anyhow::{Result, ensure};
use std::io::Write;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Between two round trips of the probe.
const PROBE_EVERY: Duration = Duration::from_millis(10);
const PROBE_BYTES: usize = 64;

/// What comes, and in which time.
#[derive(Debug, clap::Args)]
pub struct Paced {
    /// Where the echo is
    port: u16,
    /// Connections of its own
    connections: u64,
    /// Programs that it starts
    programs: u64,
    /// Connections of each of them
    of_each: u64,
    /// In so many seconds
    seconds: f64,
}

/// What is late comes at once: the pace is made up for, never given up.
pub fn paced(day: &Paced) -> Result<()> {
    let began = Instant::now();
    let every = day.seconds / day.connections as f64;
    let mut programs = 0;
    for number in 0..day.connections {
        let due = began + Duration::from_secs_f64(every * number as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        crowd::come_and_go((Ipv4Addr::LOCALHOST, day.port), number)?;
        if programs * day.connections < number * day.programs {
            start_program(day)?;
            programs += 1;
        }
        if number % 1000 == 999 {
            say(format_args!("churned {}", number + 1))?;
        }
    }
    say(format_args!("started {programs}"))?;
    say(format_args!("done"))?;
    wait_for_word()
}

/// A program that comes, connects and goes.
fn start_program(day: &Paced) -> Result<()> {
    let words = ["role", "churn"].map(str::to_owned);
    let numbers = [day.port.into(), day.of_each].map(|number| number.to_string());
    let mut program = Command::new(std::env::current_exe()?)
        .args(words.into_iter().chain(numbers))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    // The word for which it waits at its end.
    let told = program
        .stdin
        .take()
        .map(|mut stdin| stdin.write_all(b"go\n"));
    let status = program.wait()?;
    ensure!(status.success(), "a program ended with {status}");
    Ok(told.transpose().map(drop)?)
}

/// At each line that it reads: `probe MEDIAN_NS P99_NS` of the round trips since the last one.
pub fn probe(port: u16) -> Result<()> {
    let mut stream = connect(port)?;
    stream.set_nodelay(true)?;
    let (tell, told) = channel();
    std::thread::spawn(
        move || {
            while wait_for_word().is_ok() && tell.send(()).is_ok() {}
        },
    );
    let mut took_ns = Vec::new();
    for number in 0.. {
        let began = Instant::now();
        talk(&mut stream, number, PROBE_BYTES)?;
        took_ns.push(began.elapsed().as_nanos() as u64);
        match told.recv_timeout(PROBE_EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Ok(()) => {
                took_ns.sort_unstable();
                let part = |hundredths: usize| took_ns[took_ns.len() * hundredths / 100];
                say(format_args!("probe {} {}", part(50), part(99)))?;
                took_ns.clear();
            }
        }
    }
    Ok(())
}
