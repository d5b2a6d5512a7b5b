//! The third part: the broker is killed while a client talks. The connection goes on by its rings,
//! a new broker takes it over, and a new connection gets rings.

use super::screen::{Screen, Style};
use super::talk::{Answers, Talk};
use super::{Stage, ms};
use crate::work::Server;
use anyhow::{Result, ensure};
use fordway_lab::{Lab, interrupt};
use fordwayd::admin::Connection;
use serde::Serialize;
use std::process::Stdio;
use std::time::Instant;

/// Answers that have to come while there is no broker.
const ALONE: u64 = 5_000;

/// What was seen.
#[derive(Debug, Serialize)]
pub struct Takeover {
    killed_pid: u32,
    pid: u32,
    /// Answers that came while there was no broker.
    answers_without_broker: u64,
    /// From `fordway up` to the answer of the new broker, and to the old connection's bytes in its
    /// listing.
    up_ms: f64,
    known_ms: f64,
    /// From the new client's start to its first bytes through rings that the broker tells of.
    new_fast_ms: f64,
    /// Of the old connection, and of the new one.
    answers: Answers,
    new_answers: Answers,
    /// Both, as the new broker lists them.
    connections: Vec<Connection>,
}

/// Shows it, on a client that has rings, and `fordway ss`.
pub fn show(
    lab: &mut Lab,
    stage: &Stage,
    server: &Server,
    talk: Talk,
    screen: &mut Screen,
) -> Result<Takeover> {
    screen.line(
        Style::Heading,
        "\n3. The broker is killed, with traffic going on",
    )?;
    let killed_pid = lab.broker_pid()?;
    screen.line(Style::Command, &format!("$ kill -9 {killed_pid}"))?;
    lab.stop_broker(true)?;
    screen.status("redis-cli goes on")?;
    let answers_without_broker = talk.wait_for_more(ALONE)?;
    let alone = format!("    redis-cli goes on: {answers_without_broker} answers without a broker");
    screen.line(Style::Good, &alone)?;
    screen.line(Style::Command, "$ fordway up --detach")?;
    let began = Instant::now();
    lab.start_broker()?;
    let (up_ms, pid) = (ms(began), lab.broker_pid()?);
    talk.wait_for_rings(lab)?;
    let known_ms = ms(began);
    let taken = format!(
        "    a new broker (pid {pid}): up after {up_ms:.0} ms, has the connection after {known_ms:.0} ms"
    );
    screen.line(Style::Good, &taken)?;
    let new_began = Instant::now();
    let new = Talk::start(lab, stage, server, "counted-anew")?;
    let new_fast_ms = ms(new_began);
    let rings = format!("    a new connection: on rings after {new_fast_ms:.0} ms");
    screen.line(Style::Good, &rings)?;
    let connections = lab.connections()?;
    let listing = lab.command("ss").stdin(Stdio::null()).output()?;
    interrupt::check()?;
    let answers = talk.stop(lab, stage, server)?;
    let new_answers = new.stop(lab, stage, server)?;
    for (whose, answers) in [("the old", answers), ("the new", new_answers)] {
        let Answers {
            count,
            lost,
            repeated,
        } = answers;
        ensure!(
            lost == 0 && repeated == 0,
            "{whose} connection: of {count} answers {lost} are missing, {repeated} came twice or late"
        );
    }
    let each = format!(
        "    {} answers, each once and in order",
        answers.count + new_answers.count
    );
    screen.line(Style::Good, &each)?;
    screen.line(Style::Command, "\n$ fordway ss")?;
    let listing = String::from_utf8_lossy(&listing.stdout);
    for line in listing.lines() {
        screen.line(Style::Plain, line)?;
    }
    Ok(Takeover {
        killed_pid,
        pid,
        answers_without_broker,
        up_ms,
        known_ms,
        new_fast_ms,
        answers,
        new_answers,
        connections,
    })
}
