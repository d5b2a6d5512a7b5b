//! The first part: redis-server, nginx and iperf3, each in a domain of its own, asked from another
//! domain over the kernel path and the fast path in turn; one line for each work.
//!
//! Each server runs twice in its domain, once started with `--path kernel`, so that the two paths
//! can alternate without a restart.

use super::Options;
use super::screen::{Screen, Style};
use super::stage::{SERVERS, Stage};
use crate::pairs::median;
use crate::placement::{CLIENT_CPU, SERVER_CPU};
use crate::report;
use crate::work::{Runner, Sample, Server, ServerKind, Setting, Work};
use anyhow::{Result, ensure};
use fordway_lab::watch::Watch;
use fordway_lab::{Lab, PathChoice, interrupt};
use fordwayd::admin::Connection;
use serde::Serialize;
use std::collections::BTreeMap;

/// By kind and whether it serves the fast path.
pub type Servers = BTreeMap<(ServerKind, bool), Server>;

/// One path's side of a work: medians of its samples.
#[derive(Debug, Serialize)]
pub struct Side {
    value: f64,
    /// CPU seconds of server, client and (on the fast path) broker, for each `cpu_unit` of work.
    cpu_s_per_unit: f64,
    ring_bytes: u64,
}

/// What came of a work.
#[derive(Debug, Serialize)]
pub struct Shown {
    name: &'static str,
    what: &'static str,
    unit: &'static str,
    runs: usize,
    kernel: Side,
    fast: Side,
    /// Median of the ratios of neighbouring samples.
    ratio: f64,
    cpu_unit: &'static str,
    /// CPU seconds that the samples of the kernel path took, and that their work takes by rings.
    #[serde(skip)]
    pub cpu_s: [f64; 2],
}

/// Starts what serves the works; redis by rings in any case.
pub fn start_servers(
    lab: &Lab,
    options: &Options,
    stage: &Stage,
    screen: &mut Screen,
) -> Result<Servers> {
    let mut servers = Servers::new();
    for &(kind, domain, _) in &SERVERS {
        for path in [PathChoice::Kernel, PathChoice::Auto] {
            let is_fast = path == PathChoice::Auto;
            let is_measured = options.works.iter().any(|work| work.server == kind);
            let is_needed = is_measured || is_fast && kind == ServerKind::Redis;
            if !is_needed {
                continue;
            }
            screen.status(&format!("starting {kind:?} in {domain}").to_lowercase())?;
            let cpu = options.cpu(SERVER_CPU);
            let server = Server::start(lab, kind, &stage.of(kind), path, cpu.as_deref())?;
            servers.insert((kind, is_fast), server);
        }
    }
    Ok(servers)
}

/// Measures all; what could not be shown comes second, as a line each.
pub fn show(
    lab: &Lab,
    options: &Options,
    stage: &Stage,
    servers: &Servers,
    screen: &mut Screen,
) -> Result<(Vec<Shown>, Vec<String>)> {
    let (mut all, mut failures) = (Vec::new(), Vec::new());
    screen.line(
        Style::Heading,
        "\n1. Unmodified programs, by the kernel path and by the fast path",
    )?;
    screen.line(
        Style::Plain,
        &cells(["", "kernel", "fast", "ratio", "CPU s", "CPU s"]),
    )?;
    for work in &options.works {
        match measure(lab, options, stage, servers, work, screen) {
            Ok(shown) => {
                screen.line(Style::Plain, &row(&shown))?;
                all.push(shown);
            }
            Err(error) => {
                interrupt::check()?;
                let failure = format!("{}: {error:#}", work.what);
                screen.line(Style::Bad, &failure)?;
                failures.push(failure);
            }
        }
    }
    let explained = "CPU s: seconds of client, server and broker, by the kernel and by rings, for a million requests or a GB.";
    screen.line(Style::Plain, explained)?;
    if options.works.iter().any(|work| work.name.ends_with("curl")) {
        screen.line(Style::Plain, "What curl fetched is compared byte by byte.")?;
    }
    Ok((all, failures))
}

/// Samples on the kernel path and on the fast path, in turn.
fn measure(
    lab: &Lab,
    options: &Options,
    stage: &Stage,
    servers: &Servers,
    work: &Work,
    screen: &mut Screen,
) -> Result<Shown> {
    let runner = |path| {
        let setting = Setting {
            place: stage.client(),
            path,
            cpu: options.cpu(CLIENT_CPU),
            unix: false,
            through: None,
        };
        Runner::new(
            *work,
            &servers[&(work.server, path == PathChoice::Auto)],
            setting,
        )
    };
    let (mut kernel, mut fast) = (runner(PathChoice::Kernel), runner(PathChoice::Auto));
    screen.status(&format!("{}: warming up", work.what))?;
    kernel.warm_up(lab)?;
    fast.warm_up(lab)?;
    let mut pairs = Vec::new();
    let mut spare = 1;
    while pairs.len() < options.runs {
        let run = pairs.len() + 1;
        screen.status(&format!("{}, {run} of {}", work.what, options.runs))?;
        let slow = kernel.sample(lab, options.seconds)?;
        let watch = Watch::start(lab, carries);
        let quick = fast.sample(lab, options.seconds)?;
        let seen = watch.end();
        if quick.ring_bytes != 0 {
            pairs.push((slow, quick));
            continue;
        }
        // On a crowded machine the broker may answer when a short sample is over.
        let nothing = "nothing went through rings";
        let why = why(&seen, servers[&(work.server, true)].port());
        ensure!(spare != 0, "{nothing}; {why}");
        spare -= 1;
        let again = format!("{}: {nothing}; {why}; once more", work.what);
        screen.line(Style::Plain, &again)?;
    }
    Ok(shown(work, &pairs))
}

/// Whether bytes of a connection were seen to go through rings.
pub fn carries(row: &Connection) -> bool {
    row.path == "fast" && row.ring_bytes_tx | row.ring_bytes_rx != 0
}

/// What became of the connections to a server, as they were last seen: how many, whose, and the
/// reason.
fn why(seen: &[Connection], port: u16) -> String {
    let port = format!(":{port}");
    let mut groups: BTreeMap<String, usize> = BTreeMap::new();
    for row in seen {
        if row.local.ends_with(&port) || row.remote.ends_with(&port) {
            let reason = row.reason.as_deref().unwrap_or("no reason");
            let group = format!("{} ({}, {})", row.domain, row.path, reason);
            *groups.entry(group).or_default() += 1;
        }
    }
    if groups.is_empty() {
        return "no connection was seen: each was over too soon".to_owned();
    }
    let groups = groups
        .iter()
        .map(|(group, count)| format!("{count} of {group}"));
    format!("ends: {}", groups.collect::<Vec<_>>().join(", "))
}

fn shown(work: &Work, pairs: &[(Sample, Sample)]) -> Shown {
    let middle = |pick: &dyn Fn(&(Sample, Sample)) -> f64| median(pairs.iter().map(pick));
    let (per, cpu_unit) = crate::work::cpu_unit(work.unit);
    let cpu_s = |sample: &Sample| sample.cpu_s / sample.done;
    let quick_s = middle(&|pair| cpu_s(&pair.1));
    let done: f64 = pairs.iter().map(|pair| pair.0.done).sum();
    Shown {
        name: work.name,
        what: work.what,
        unit: work.unit,
        runs: pairs.len(),
        kernel: Side {
            value: middle(&|pair| pair.0.value),
            cpu_s_per_unit: per * middle(&|pair| cpu_s(&pair.0)),
            ring_bytes: 0,
        },
        fast: Side {
            value: middle(&|pair| pair.1.value),
            cpu_s_per_unit: per * quick_s,
            ring_bytes: pairs.iter().map(|pair| pair.1.ring_bytes).sum(),
        },
        ratio: middle(&|pair| pair.1.value / pair.0.value),
        cpu_unit,
        cpu_s: [pairs.iter().map(|pair| pair.0.cpu_s).sum(), quick_s * done],
    }
}

fn row(shown: &Shown) -> String {
    let figure = |side: &Side| report::figure(side.value, shown.unit);
    let cpu = |side: &Side| format!("{:.2}", side.cpu_s_per_unit);
    cells([
        shown.what,
        &figure(&shown.kernel),
        &figure(&shown.fast),
        &report::ratio(Some(shown.ratio)),
        &cpu(&shown.kernel),
        &cpu(&shown.fast),
    ])
}

fn cells([work, kernel, fast, ratio, kernel_s, fast_s]: [&str; 6]) -> String {
    format!("{work:<31} {kernel:>12} {fast:>12} {ratio:>7} {kernel_s:>6} {fast_s:>6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(domain: &str, local: &str, remote: &str, reason: &str) -> Connection {
        let row = serde_json::json!({
            "domain": domain, "peer_domain": null, "local": local, "remote": remote, "state": "ESTAB",
            "path": "kernel", "reason": reason, "pid": 1, "joined": true, "cookie": "1", "channel": null,
            "ring_bytes_tx": 0, "ring_bytes_rx": 0, "kernel_bytes_tx": 1, "kernel_bytes_rx": 1,
        });
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn without_rings_the_reasons_are_told() {
        let seen = [
            end("web", "10.0.0.6:4000", "10.0.0.3:80", "young"),
            end("web", "10.0.0.6:4001", "10.0.0.3:80", "young"),
            end("www", "10.0.0.3:80", "10.0.0.6:4000", "waiting"),
            end("web", "10.0.0.6:4002", "10.0.0.3:81", "policy"),
        ];
        let told = "ends: 2 of web (kernel, young), 1 of www (kernel, waiting)";
        assert_eq!(why(&seen, 80), told);
        assert!(why(&seen, 8).starts_with("no connection was seen"));
    }

    #[test]
    fn a_row_fits_the_screen() {
        let row = cells([
            "",
            "999.9k req/s",
            "99.99M req/s",
            "999.99x",
            "999.99",
            "999.99",
        ]);
        assert!(
            row.chars().count() <= super::super::screen::COLUMNS,
            "{row}"
        );
    }
}
