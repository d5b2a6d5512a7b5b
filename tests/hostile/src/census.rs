//! What an attack might leave behind: counted before and after each.

use anyhow::{Context, Result};
use fordwayd::admin::Info;

/// Memory that an allocator keeps for next time, or that a page table took: no leak.
const SLACK_KB: u64 = 2048;

/// Doorbells that a victim with threads keeps: as many as it ever had threads asleep at the
/// same time, of three descriptors each (one more, for each of its links).
const DOORS_SLACK: u64 = 12;

/// Sockets by which the broker asks connection tracking: one for each domain and the host, opened when
/// a connection there may have been translated, and kept as long as its programs.
const TRACKERS_SLACK: u64 = 5;

/// One look.
#[derive(Clone, Debug)]
pub struct Census {
    victim: Process,
    broker: Process,
    /// Processes that speak to the broker.
    processes: u32,
    channels: u32,
}

/// What one process has.
#[derive(Clone, Debug)]
struct Process {
    descriptors: usize,
    /// Mappings of shared memory.
    memfds: usize,
    threads: usize,
    /// Resident, without what it shares with peers.
    own_kb: u64,
    descriptors_slack: u64,
}

impl Process {
    fn look(pid: u32) -> Result<Self> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let figure = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            let figure = line.and_then(|line| line.split_whitespace().nth(1));
            figure
                .with_context(|| format!("no {name}"))?
                .parse()
                .context("a number")
        };
        Ok(Self {
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            memfds: maps.lines().filter(|line| line.contains("memfd:")).count(),
            threads: std::fs::read_dir(format!("/proc/{pid}/task"))?.count(),
            own_kb: figure("RssAnon:")?,
            descriptors_slack: 0,
        })
    }

    /// Names and figures, in one order.
    fn figures(&self) -> [(&'static str, u64, u64); 4] {
        [
            (
                "descriptors",
                self.descriptors as u64,
                self.descriptors_slack,
            ),
            ("memfds", self.memfds as u64, 0),
            ("threads", self.threads as u64, 0),
            ("kB", self.own_kb, SLACK_KB),
        ]
    }
}

impl Census {
    /// Of the victim and its broker.
    pub(crate) fn take(victim: u32, has_threads: bool, info: &Info) -> Result<Self> {
        let mut victim = Process::look(victim)?;
        if has_threads {
            victim.descriptors_slack = DOORS_SLACK;
        }
        let mut broker = Process::look(u32::try_from(info.pid)?)?;
        broker.descriptors_slack = TRACKERS_SLACK;
        Ok(Self {
            victim,
            broker,
            processes: info.processes,
            channels: info.channels,
        })
    }

    fn rows(&self) -> Vec<(String, u64, u64)> {
        let all = [("victim", &self.victim), ("broker", &self.broker)];
        let named = all.into_iter().flat_map(|(who, process)| {
            let figures = process.figures();
            figures.map(|(what, figure, slack)| (format!("{who}'s {what}"), figure, slack))
        });
        let broker = [("processes", self.processes), ("channels", self.channels)];
        let broker = broker.map(|(what, figure)| (what.to_owned(), u64::from(figure), 0));
        named.chain(broker).collect()
    }

    /// Whether there is more than before.
    pub(crate) fn exceeds(&self, before: &Census) -> bool {
        let pairs = self.rows().into_iter().zip(before.rows());
        pairs
            .into_iter()
            .any(|((_, now, slack), (_, before, _))| now > before + slack)
    }

    /// All figures, before and now.
    pub(crate) fn against(&self, before: &Census) -> String {
        let pairs = before.rows().into_iter().zip(self.rows());
        let words =
            pairs.map(|((what, before, _), (_, now, _))| format!("{what} {before} -> {now}"));
        words.collect::<Vec<_>>().join(", ")
    }
}
