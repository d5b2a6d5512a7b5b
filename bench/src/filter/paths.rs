//! What rules cost the fast path: a short connection between two domains, the question that
//! the broker asks for it, and a message.
//!
//! A connection crosses the kernel's copy of the rules with its handshake whether it gets
//! rings or not, so what rules add to it is the broker's question and the kernel's walk.

use super::rules::{RULES_ASKED, Rules};
use super::{Options, Rounds, Samples, both, kept_of, packet, row};
use crate::micro::end::{self, Figures, Talk};
use crate::micro::wire::Wire;
use crate::pace::Pace;
use crate::placement::{self, Placement};
use crate::report::{self, Progress, Row};
use anyhow::{Context, Result, ensure};
use fordway_lab::{Lab, PathChoice, Spawn};
use fordwayd::admin::Request;
use std::time::Duration;

/// Bytes of a request and its answer.
const SIZE: usize = 64;
/// What a sample takes beside its length.
const OVERHEAD: Duration = Duration::from_millis(300);
const SLACK: Duration = Duration::from_secs(60);

/// About how long it takes.
pub fn estimate(options: &Options) -> Duration {
    (Duration::from_secs_f64(options.seconds) + OVERHEAD) * 8 * options.rounds as u32
}

/// All rows.
pub fn rows(options: &Options, pace: &Pace) -> Result<Vec<Row>> {
    let lab = Lab::start()?;
    let rows = measure(&lab, options, pace);
    let forced = lab.close();
    let rows = rows?;
    ensure!(forced.is_empty(), "left behind: {}", forced.join(", "));
    Ok(rows)
}

fn measure(lab: &Lab, options: &Options, pace: &Pace) -> Result<Vec<Row>> {
    let progress = Progress::new(options.rounds as u64);
    let rulesets = [
        Rules::differ(0),
        Rules::differ(RULES_ASKED).about_tcp(),
        Rules::mixed(RULES_ASKED).about_tcp(),
    ];
    let (mut connects, mut talks) = ([(); 3].map(|()| Samples::new()), Samples::new());
    let mut asked = Samples::new();
    let mut rounds = Rounds::new(options.rounds, pace);
    while rounds.goes_on() {
        progress.step(&format!("fast path, round {}", rounds.seen.len() + 1));
        rounds.begin()?;
        let mut talked = [0.0; 2];
        let is_backwards = rounds.is_backwards();
        let mut order = [0, 1, 2];
        if is_backwards {
            order.reverse();
        }
        for index in order {
            load(lab, &rulesets[index])?;
            let sample = |path, talk| conversation(lab, path, talk, options.seconds);
            let (fast, kernel) = both(
                is_backwards,
                || sample(PathChoice::Auto, Talk::Request),
                || sample(PathChoice::Kernel, Talk::Request),
            )?;
            connects[index].push([fast, kernel].map(|f| f.seconds * 1e9 / f.count as f64));
            if let Some(talked) = talked.get_mut(index) {
                *talked = sample(PathChoice::Auto, Talk::Rtt)?.p50_ns as f64;
            }
        }
        // Ours has rules, the rival has none.
        talks.push([talked[1], talked[0]]);
        let (none, many) = both(
            is_backwards,
            || packet::ask_ns(&rulesets[0]),
            || packet::ask_ns(&rulesets[1]),
        )?;
        asked.push([many, none]);
        rounds.end()?;
    }
    let (regime, kept) = rounds.most().context(report::ALWAYS_MOVED)?;
    for samples in connects.iter_mut().chain([&mut talks, &mut asked]) {
        *samples = kept_of(samples, &kept);
    }
    let row = |work: &str, rival, samples: &Samples| row(work, rival, regime, samples);
    // What rules add, on either path.
    let added = |work: &str, with: &Samples| {
        let pairs = with.iter().zip(&connects[0]);
        let samples: Samples = pairs
            .map(|(many, none)| [0, 1].map(|side| many[side] - none[side]))
            .collect();
        Row {
            ratio: None,
            ..row(work, "kernel-bridge", &samples)
        }
    };
    Ok(vec![
        row("filter-request-0", "kernel-bridge", &connects[0]),
        row("filter-request-1000", "kernel-bridge", &connects[1]),
        added("filter-request-added", &connects[1]),
        row("filter-request-mixed", "kernel-bridge", &connects[2]),
        added("filter-request-mixed-added", &connects[2]),
        row("filter-ask-1000", "no rules", &asked),
        row("filter-rtt-64-1000", "no rules", &talks),
    ])
}

fn load(lab: &Lab, rules: &Rules) -> Result<()> {
    lab.ask(&Request::FilterLoad {
        text: rules.text.clone(),
        epoch: None,
    })
    .map(drop)
}

fn conversation(lab: &Lab, path: PathChoice, talk: Talk, seconds: f64) -> Result<Figures> {
    let (server, client) = (placement::server_place(), placement::client_place());
    let (server_cpu, client_cpu) = Placement::Apart.cpus();
    let at = format!("{}:{}", server.ip(), lab.free_port()?);
    let start = |place, cpu, role, more: &[String]| {
        let mut argv = end::command(role, Wire::Tcp, talk, &at, SIZE)?;
        argv.extend_from_slice(more);
        // A connection asks for rings at once, or short ones never would.
        let mut spawn = Spawn::new(argv).env("FORDWAY_OFFER_AFTER", "0");
        spawn.cpu = cpu;
        spawn.time_limit = Duration::from_secs_f64(seconds) + SLACK;
        lab.spawn(place, path, &spawn)
    };
    let server = start(&server, server_cpu, "serve", &[])?;
    let more = [format!("--seconds={seconds}")];
    let driver = start(&client, client_cpu, "drive", &more)?.finish()?.ok()?;
    server.stop()?;
    Ok(serde_json::from_str(driver.text().trim())?)
}
