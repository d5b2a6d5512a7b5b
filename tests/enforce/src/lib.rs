//! The packet filter in force, tried with the real nft and real programs.
//!
//! ```text
//!   Bed ── lab (broker, domains db, web, guest) ── fordway filter load ... ─► kernel and broker
//!    └ db: redis-server or echo     web, guest: redis-cli, talker
//! ```
//! Tests say what must be so whatever the machine does; times are printed and not bounded.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use fordway_lab::packages;
use fordway_lab::{Lab, PathChoice, Place, Program, Spawn, Stdin};
use fordwayd::admin::{Connection, FilterRules, Reply, Request};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// Longest that a program may run.
const LIMIT: Duration = Duration::from_secs(120);

/// One test's lab.
#[derive(Debug)]
pub struct Bed {
    /// With its broker.
    pub lab: Lab,
}

/// The domain of the servers.
pub fn db() -> Place {
    Place::domain("db", [10, 77, 0, 3])
}

/// The domain that the rules let in.
pub fn web() -> Place {
    Place::domain("web", [10, 77, 0, 4])
}

/// The domain that they do not.
pub fn guest() -> Place {
    Place::domain("guest", [10, 77, 0, 5])
}

/// The programs of these tests; `CARGO_BIN_EXE_...` of the test.
pub fn program(words: &str, binary: &str) -> Spawn {
    let words = std::iter::once(binary).chain(words.split(' '));
    Spawn::new(words)
        .env("FORDWAY_OFFER_AFTER", "0")
        .stdin(Stdin::Pipe)
        .time_limit(LIMIT)
}

impl Bed {
    /// `None`, with a line that says why, where there cannot be one.
    pub fn start(name: &str) -> Result<Option<Bed>> {
        if !rustix::process::getuid().is_root() {
            fordway_test_skip::skipped(format_args!("{name}: domains need root"));
            return Ok(None);
        }
        packages::path_of("nft")?;
        let lab = Lab::start()?;
        for place in [db(), web(), guest()] {
            let Place::Domain { name, ip } = place else {
                continue;
            };
            lab.ask(&Request::DomainAdd {
                name,
                ip: Some(ip),
                publish: Vec::new(),
            })?;
        }
        Ok(Some(Bed { lab }))
    }

    /// The IPv6 address of a domain.
    pub fn six(&self, place: &Place) -> Result<Ipv6Addr> {
        let Reply::Domains { domains } = self.lab.ask(&Request::DomainList)? else {
            anyhow::bail!("no list of domains");
        };
        let domain = domains.iter().find(|one| one.ip == Some(place.ip()));
        domain
            .and_then(|domain| domain.ip6)
            .context("a domain without IPv6")
    }

    /// Ends everything; nothing may be left.
    pub fn finish(self) -> Result<()> {
        let left = self.lab.close();
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    }

    /// Starts a program.
    pub fn spawn(&self, place: &Place, spawn: &Spawn) -> Result<Program> {
        self.lab.spawn(place, PathChoice::Auto, spawn)
    }

    /// Runs a program to its end, whatever its status.
    pub fn try_run(&self, place: &Place, command: &str) -> Result<fordway_lab::Output> {
        let spawn = Spawn::line(command).time_limit(LIMIT);
        self.spawn(place, &spawn)?.finish()
    }

    /// `fordway filter WORDS`, with its output.
    pub fn filter(&self, words: &[&str]) -> Result<Output> {
        let mut command: Command = self.lab.command("filter");
        Ok(command.args(words).output()?)
    }

    /// Loads a file; it must be taken.
    pub fn load(&self, words: &[&str]) -> Result<String> {
        let words: Vec<&str> = ["load"].into_iter().chain(words.iter().copied()).collect();
        let output = self.filter(&words)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "fordway filter {words:?}: {errors}"
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Loads rules that are written here.
    pub fn load_text(&self, text: &str, add: bool) -> Result<String> {
        let file = self.write("rules.nft", text)?;
        let file = file.to_str().context("no UTF-8")?;
        match add {
            true => self.load(&["--add", file]),
            false => self.load(&[file]),
        }
    }

    /// A file in the lab's directory.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let file = self.lab.work_dir().join(name);
        std::fs::write(&file, text)?;
        Ok(file)
    }

    /// The rules in force.
    pub fn rules(&self) -> Result<FilterRules> {
        match self.lab.ask(&Request::FilterList)? {
            Reply::Filter(rules) => Ok(rules),
            other => anyhow::bail!("{other:?}"),
        }
    }

    /// What the kernel has in the namespace that joins the domains.
    pub fn kernel_rules(&self) -> Result<String> {
        self.nft_in_fabric(&["list", "ruleset"])
    }

    /// nft there, past the broker.
    pub fn nft_in_fabric(&self, words: &[&str]) -> Result<String> {
        let namespace = self.lab.runtime_dir().join("netns/.fabric");
        let net = format!("--net={}", namespace.display());
        let output = Command::new("nsenter")
            .args([&net, "nft"])
            .args(words)
            .output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The connections of a domain.
    pub fn connections_of(&self, domain: &str) -> Result<Vec<Connection>> {
        let mut rows = self.lab.connections()?;
        rows.retain(|row| row.domain == domain);
        Ok(rows)
    }

    /// Waits until a domain has this many connections on rings that have carried bytes.
    pub fn wait_for_rings(&self, domain: &str, count: usize) -> Result<()> {
        self.lab.wait_until(LIMIT, "connections on rings", || {
            let rows = self.connections_of(domain)?;
            let fast = rows.iter().filter(|row| row.path == "fast");
            Ok(fast.filter(|row| row.ring_bytes_tx > 0).count() >= count)
        })
    }
}

/// A file of the checkout.
pub fn in_checkout(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(name).display().to_string()
}

/// The number after a word of an output's last line with it.
pub fn said(output: &str, word: &str, place: usize) -> Option<u64> {
    let line = output.lines().rev().find(|line| line.starts_with(word))?;
    line.split(' ').nth(place)?.parse().ok()
}

/// Bytes of the counter in the first line that has these words.
pub fn counted(listing: &str, words: &str) -> u64 {
    let line = listing.lines().find(|line| line.contains(words));
    let mut words = line.unwrap_or_default().split(' ');
    words.find(|word| *word == "bytes");
    words
        .next()
        .and_then(|count| count.parse().ok())
        .unwrap_or(0)
}
