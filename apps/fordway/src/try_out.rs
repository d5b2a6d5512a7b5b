//! `fordway try`: a program twice, over the kernel path and with the fast path, and what it gained.
//!
//! Both runs are those of `fordway run`. While the second one goes on, the broker is asked again and
//! again which connections the program and its children hold; of each the last answer counts. One
//! that is over between two questions is not seen, which the totals of the broker make up for:
//! they say how many connections came to rings meanwhile.

use crate::broker::Broker;
use crate::cli::{PathChoice, Try};
use crate::exit::{Exit, Failure, Outcome};
use crate::show::{document, print, say};
use crate::table::{Table, bytes, wrap};
use fordwayd::admin::{Connection, SCHEMA};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// How often the broker is asked.
const INTERVAL: Duration = Duration::from_millis(50);
/// Ticks of proc_pid_stat(5) in a second: USER_HZ, on every machine that we serve.
const TICKS_PER_S: f64 = 100.0;
/// Longest chain of parents that is followed.
const ANCESTORS_MAX: usize = 64;

/// One run.
#[derive(Debug, Serialize)]
struct Ran {
    path: &'static str,
    seconds: f64,
    /// Of the program and the children that it waited for.
    cpu_seconds: f64,
    /// Its exit status; none if a signal ended it.
    status: Option<i32>,
}

/// What became of connections to one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Place {
    remote: String,
    path: String,
    reason: Option<String>,
}

/// How many, and what they carried.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Carried {
    connections: u64,
    ring_bytes: u64,
    kernel_bytes: u64,
}

/// `fordway try`.
pub fn try_out(broker: &Broker, options: &Try) -> Outcome {
    let before = broker.info()?;
    say("1 of 2: over the kernel path");
    let kernel = run(broker, options, PathChoice::Kernel, |_| {})?;
    if let Some(exit) = kernel.status.and_then(Exit::of_launcher) {
        // Why, `run` has said.
        return Err(Failure::silent(exit));
    }
    say("2 of 2: with the fast path");
    let mut seen: BTreeMap<String, Connection> = BTreeMap::new();
    let fast = run(broker, options, PathChoice::Auto, |child| {
        let own = |one: &Connection| one.pid.is_some_and(|pid| descends(pid, child));
        let connections = broker.connections().unwrap_or_default();
        let own = connections.into_iter().filter(own);
        seen.extend(own.map(|one| (one.cookie.clone(), one)));
    })?;
    let paired = broker
        .info()?
        .paired_total
        .saturating_sub(before.paired_total);
    let places = places(seen.values());
    let ended_well = [&kernel, &fast].iter().all(|ran| ran.status == Some(0));
    if options.json.json {
        let places: Vec<_> = places
            .iter()
            .map(|(place, carried)| json!({ "place": place, "carried": carried }))
            .collect();
        document(&json!({
            "schema": SCHEMA, "runs": [kernel, fast], "connections": places,
            "paired": paired,
        }))?;
    } else {
        print(&text(&kernel, &fast, &places, paired))?;
    }
    match ended_well {
        true => Ok(Exit::Done),
        false => Err(Failure::internal(
            "the program did not end with status 0 both times; the figures may say nothing",
        )),
    }
}

/// Runs it once; `look` is called with its process while it goes on.
fn run(
    broker: &Broker,
    options: &Try,
    path: PathChoice,
    mut look: impl FnMut(i32),
) -> Result<Ran, Failure> {
    let own = std::env::current_exe().map_err(Failure::internal)?;
    let mut command = Command::new(own);
    command.arg("--runtime-dir").arg(broker.runtime_dir());
    command.args(["run", "--path", path.word()]);
    match &options.domain {
        Some(name) => command.arg("--domain").arg(name),
        None => command.arg("--here"),
    };
    command.arg("--").args(&options.command);
    if options.json.json {
        // The document is all that comes on the standard output.
        command.stdout(std::io::stderr());
    }
    let start = Instant::now();
    let mut child = command.spawn().map_err(Failure::internal)?;
    let pid = Pid::from_child(&child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(Failure::internal)?;
    // Dead but not gone: its times can still be read.
    let ended = || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        waitid(WaitId::PidFd(pidfd.as_fd()), options).map_err(Failure::internal)
    };
    while ended()?.is_none() {
        look(pid.as_raw_nonzero().get());
        wait_for_end(&pidfd)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = cpu_seconds(&child);
    let status = child.wait().map_err(Failure::internal)?;
    Ok(Ran {
        path: path.word(),
        seconds,
        cpu_seconds,
        status: status.code(),
    })
}

/// Returns at its end, or after [`INTERVAL`].
fn wait_for_end(pidfd: &impl AsFd) -> Result<(), Failure> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let interval = Timespec {
        tv_sec: 0,
        tv_nsec: INTERVAL.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&interval)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Failure::internal(error)),
    }
}

/// The fields behind the program's name, which may hold blanks (proc_pid_stat(5)).
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// utime, stime, cutime and cstime: fields 14 to 17, of which the first two are cut off.
fn cpu_seconds(child: &Child) -> f64 {
    let fields = stat(child.id() as i32).unwrap_or_default();
    let times = fields.iter().skip(11).take(4);
    let ticks: u64 = times.filter_map(|time| time.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS_PER_S
}

/// Whether a process is another one, or was started by it or by those that it started.
fn descends(mut pid: i32, from: i32) -> bool {
    for _ in 0..ANCESTORS_MAX {
        if pid == from {
            return true;
        }
        let parent = stat(pid).and_then(|fields| fields.get(1)?.parse().ok());
        match parent {
            Some(parent) if parent > 1 => pid = parent,
            _ => return false,
        }
    }
    false
}

/// The connections, by where they lead to and what became of them.
fn places<'c>(seen: impl Iterator<Item = &'c Connection>) -> BTreeMap<Place, Carried> {
    let mut places: BTreeMap<Place, Carried> = BTreeMap::new();
    for one in seen {
        let place = Place {
            remote: one.remote.clone(),
            path: one.path.clone(),
            reason: one.reason.clone(),
        };
        let carried = places.entry(place).or_default();
        carried.connections += 1;
        carried.ring_bytes += one.ring_bytes_tx.saturating_add(one.ring_bytes_rx);
        carried.kernel_bytes += one.kernel_bytes_tx.saturating_add(one.kernel_bytes_rx);
    }
    places
}

fn text(kernel: &Ran, fast: &Ran, places: &BTreeMap<Place, Carried>, paired: u64) -> String {
    let mut runs = Table::new(&["", "KERNEL", "FORDWAY", "RATIO"], &[1, 2, 3]);
    let mut line = |name: &str, of: fn(&Ran) -> f64| {
        let [slow, quick] = [of(kernel), of(fast)];
        let ratio = match quick > 0.0 && slow > 0.0 {
            true => format!("{:.2}x", slow / quick),
            false => "-".to_owned(),
        };
        let [slow, quick] = [slow, quick].map(|seconds| format!("{seconds:.2} s"));
        runs.row([name.to_owned(), slow, quick, ratio]);
    };
    line("time", |ran| ran.seconds);
    line("CPU", |ran| ran.cpu_seconds);
    let mut text = runs.render() + "\n";
    if places.is_empty() {
        let none = "no connection of the program was seen while it ran";
        text += &format!("{none}; {paired} came to rings.\n");
        return text;
    }
    let headings = ["REMOTE", "PATH", "REASON", "COUNT", "RINGS", "KERNEL"];
    let mut table = Table::new(&headings, &[3, 4, 5]);
    for (place, carried) in places {
        table.row([
            place.remote.clone(),
            place.path.clone(),
            place.reason.clone().unwrap_or_else(|| "-".to_owned()),
            carried.connections.to_string(),
            bytes(carried.ring_bytes),
            bytes(carried.kernel_bytes),
        ]);
    }
    text += &table.render_cut(&[0]);
    let outside = places
        .keys()
        .any(|place| place.reason.as_deref() == Some("no-peer"));
    let listed: u64 = places.values().map(|carried| carried.connections).sum();
    let fast = places.iter().filter(|(place, _)| place.path == "fast");
    let fast: u64 = fast.map(|(_, carried)| carried.connections).sum();
    if paired > fast {
        let short = format!(
            "Meanwhile {paired} connections of this machine came to rings. Of the program {listed} were seen; \
             short ones may be missing above."
        );
        text += &(wrap(&short, "") + "\n");
    }
    if outside {
        let advice = "no-peer: the program at the other end was not started by fordway run; start it so, and try again.";
        text += &(wrap(advice, "") + "\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_are_found() {
        let own = std::process::id() as i32;
        let parent: i32 = stat(own).expect("stat")[1].parse().expect("a number");
        assert!(descends(own, own) && descends(own, parent));
        assert!(!descends(parent, own));
    }

    #[test]
    fn the_gain_and_the_reasons_are_shown() {
        let ran = |path, seconds| Ran {
            path,
            seconds,
            cpu_seconds: seconds / 2.0,
            status: Some(0),
        };
        let place = Place {
            remote: "10.77.0.3:6379".into(),
            path: "kernel".into(),
            reason: Some("no-peer".into()),
        };
        let carried = Carried {
            connections: 2,
            ring_bytes: 0,
            kernel_bytes: 5_000,
        };
        let places = BTreeMap::from([(place, carried)]);
        let [slow, quick] = [ran("kernel", 3.0), ran("auto", 0.5)];
        let short = text(&slow, &quick, &places, 50).replace('\n', " ");
        assert!(
            short.contains("50 connections of this machine came to rings. Of the program 2"),
            "{short}"
        );
        let text = text(&slow, &quick, &places, 0);
        assert!(!text.contains("came to rings"), "{text}");
        assert!(text.contains("time  3.00 s   0.50 s  6.00x"), "{text}");
        assert!(
            text.contains("10.77.0.3:6379  kernel  no-peer      2      0    5000"),
            "{text}"
        );
        assert!(
            text.replace('\n', " ").contains("start it so")
                && text.lines().all(|line| line.len() <= 80)
        );
    }
}
