//! The second part: rules that close redis' port and open it again, while a client talks to it. The
//! live connection is cut, a new one is refused; then a new one is served, by rings.

use super::screen::{Screen, Style};
use super::stage::{DB, WEB};
use super::talk::{self, Talk};
use super::{Stage, ms};
use crate::work::{Server, ServerKind};
use anyhow::{Context, Result, ensure};
use fordway_lab::{Lab, Output, PathChoice};
use serde::Serialize;
use std::process::{Child, Stdio};
use std::time::Instant;

/// What was seen.
#[derive(Debug, Serialize)]
pub struct Filter {
    rule: String,
    /// From `fordway filter load` to the end of the program that had the connection.
    cut_ms: f64,
    cut_said: String,
    refused_said: String,
    /// From `fordway filter load` to a new connection's answer.
    served_ms: f64,
    served_said: String,
    /// To the first bytes through rings that the broker tells of.
    fast_ms: f64,
}

/// Shows it; the new connection goes on.
pub fn show(
    lab: &Lab,
    stage: &Stage,
    server: &Server,
    screen: &mut Screen,
) -> Result<(Filter, Talk)> {
    screen.line(
        Style::Heading,
        "\n2. The packet filter closes a port, and opens it again",
    )?;
    screen.status("a redis-cli gets its rings")?;
    let talk = Talk::start(lab, stage, server, "counted-until-cut")?;
    let place = stage.of(ServerKind::Redis);
    let rule = format!(
        "ip saddr {} ip daddr {} tcp dport {} reject with tcp reset",
        stage.client().ip(),
        place.ip(),
        server.port()
    );
    let rules = format!(
        "table inet demo {{\n\tchain forward {{\n\t\ttype filter hook forward priority filter; policy accept;\n\t\t{rule}\n\t}}\n}}\n"
    );
    std::fs::write(lab.work_dir().join("shut.nft"), rules)?;
    std::fs::write(lab.work_dir().join("open.nft"), "")?;

    let load = load(lab, "shut.nft", screen)?;
    screen.line(Style::Plain, &format!("    {rule}"))?;
    let output = talk.finish()?;
    let cut_ms = ms(load.began);
    load.done()?;
    let cut_said = last_words(&output);
    ensure!(
        !output.status.success(),
        "redis-cli ended well though its connection was to be cut: {cut_said}"
    );
    let told = format!(
        "    {WEB}'s connection to {DB}: cut after {cut_ms:.0} ms ({})",
        reason(&cut_said)
    );
    screen.line(Style::Good, &told)?;
    let ping = talk::cli(server, &["ping"])?;
    let output = lab
        .spawn(&stage.client(), PathChoice::Auto, &ping)?
        .finish()?;
    let refused_said = last_words(&output);
    ensure!(
        refused_said.contains("refused"),
        "a new connection was to be refused; redis-cli says: {refused_said}"
    );
    screen.line(
        Style::Good,
        &format!("    a new one: {}", reason(&refused_said)),
    )?;

    let load = self::load(lab, "open.nft", screen)?;
    let began = load.began;
    load.done()?;
    let output = lab.run(&stage.client(), PathChoice::Auto, &ping)?;
    let served_ms = ms(began);
    let served_said = last_words(&output);
    let talk = Talk::start(lab, stage, server, "counted-on")?;
    let fast_ms = ms(began);
    let told = format!(
        "    a new one: {served_said} after {served_ms:.0} ms; the next is on rings after {fast_ms:.0} ms"
    );
    screen.line(Style::Good, &told)?;
    let filter = Filter {
        rule,
        cut_ms,
        cut_said,
        refused_said,
        served_ms,
        served_said,
        fast_ms,
    };
    Ok((filter, talk))
}

/// `fordway filter load` that runs.
struct Load {
    child: Child,
    began: Instant,
}

fn load(lab: &Lab, file: &str, screen: &mut Screen) -> Result<Load> {
    screen.line(Style::Command, &format!("$ fordway filter load {file}"))?;
    let began = Instant::now();
    let mut command = lab.command("filter load");
    command.arg(lab.work_dir().join(file));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.stderr(Stdio::piped()).spawn();
    let child = child.context("start fordway filter load")?;
    Ok(Load { child, began })
}

impl Load {
    /// Returns when the rules are in force.
    fn done(self) -> Result<()> {
        let output = self.child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "fordway filter load: {said}");
        Ok(())
    }
}

/// The last line that a program wrote, on either output.
fn last_words(output: &Output) -> String {
    let text = output.text() + &output.errors();
    let mut lines = text.lines().rev().map(str::trim);
    let last = lines.find(|line| !line.is_empty());
    last.unwrap_or("without a word").to_owned()
}

/// What comes behind the last colon.
fn reason(said: &str) -> &str {
    said.rsplit(": ").next().unwrap_or(said)
}
