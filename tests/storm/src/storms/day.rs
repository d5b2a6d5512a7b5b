//! A day of a server in an hour or less: what comes and goes in 24 hours, at an even pace, with figures
//! taken all along, so that what grows shows itself.
//!
//! | in a day | on average | what |
//! |---:|---|---|
//! | 864,000 | ten a second | connections to a server, each made, offered, used and closed |
//! | 8,640 | one in ten seconds | programs that start, make ten of these connections, and end |
//! | 288 | one in five minutes | domains that are made, whose program connects to a server in another one thirty times, and that go again; new rules with each |
//!
//! Pauses are what the storm leaves out: a day counts by what comes and goes, and idle time takes no memory.
//! Ninety-six times (each quarter of an hour of the day) a row of [`FIGURES`] is taken; the verdict is [`Trend`]'s.
//! A day shorter than [`JUDGED_FROM`] is played, but not judged.

use crate::trend::Trend;
use crate::{Scale, Storm, Told, go_on, watch};
use anyhow::{Context, Result, ensure};
use fordway_lab::{PathChoice, Place, Program, Spawn};
use fordwayd::admin::Request;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

const CONNECTIONS: u64 = 864_000;
const PROGRAMS: u64 = 8640;
const OF_EACH_PROGRAM: u64 = 10;
const DOMAINS: u64 = 288;
const OF_EACH_DOMAIN: u64 = 30;
const ROWS: u64 = 96;
/// Clients that stay.
const CLIENTS: u64 = 2;
/// The short piece: this part of a day, in so many seconds.
const SHORT: (u64, f64) = (144, 10.0);
const JUDGED_FROM: Duration = Duration::from_secs(10 * 60);
/// A day that is this much behind its pace does not come to its end.
const LATE_MAX: Duration = Duration::from_secs(3600);
/// The first part of a row that comes before anything has come to rest: an eighth.
const WARM_UP: usize = (ROWS / 8) as usize;
/// Where the server in a domain is, and its name.
const SHOP: [u8; 4] = [10, 77, 0, 10];
const SHOP_NAME: &str = "shop";

/// What a row has behind the hour and the counts.
const FIGURES: [&str; 14] = [
    "broker_kb",
    "server_kb",
    "client_kb",
    "shop_kb",
    "broker_descriptors",
    "server_descriptors",
    "client_descriptors",
    "broker_mappings",
    "server_mappings",
    "client_mappings",
    "ring_kb",
    "probe_ns",
    "probe_p99_ns",
    "join_ms",
];

/// A stage on which a day is played.
struct Played<'a> {
    storm: &'a Storm,
    server: Program,
    clients: Vec<Program>,
    probe: Program,
    shop: Program,
    shop_port: String,
    domains: u64,
    /// What the domain that came last took, to its end.
    join: Duration,
}

pub fn run(storm: &mut Storm) -> Result<()> {
    let (part, seconds) = match (storm.told.minutes, storm.scale) {
        (Some(minutes), _) => (1, minutes as f64 * 60.0),
        (None, Scale::Short) => SHORT,
        (None, Scale::Whole) => (1, 3600.0),
    };
    let length = Duration::from_secs_f64(seconds);
    let place = Place::domain(SHOP_NAME, SHOP);
    let role = offered(storm.role(["echo", "0.0.0.0"]));
    // The fabric stays, and so does what the broker has of it.
    let (shop, shop_port) = storm.serve_at(&place, PathChoice::Auto, &role)?;
    load_rules(storm, 0)?;
    storm.stands_now()?;
    let (server, port) = storm.serve(&offered(storm.role(["echo"])))?;
    let each = |whole: u64| (whole / part / CLIENTS).to_string();
    let own = CONNECTIONS - PROGRAMS * OF_EACH_PROGRAM;
    let of_each = OF_EACH_PROGRAM.to_string();
    let words = [
        &port,
        &each(own),
        &each(PROGRAMS),
        &of_each,
        &seconds.to_string(),
    ];
    let words: Vec<&str> = ["paced"]
        .into_iter()
        .chain(words.map(String::as_str))
        .collect();
    let client = || storm.spawn(&offered(storm.role(words.clone())));
    let clients = (0..CLIENTS).map(|_| client()).collect::<Result<_>>()?;
    let probe = storm.spawn(&offered(storm.role(["probe", &port])))?;
    let before = storm.lab.info()?;
    let mut played = Played {
        storm,
        server,
        clients,
        probe,
        shop,
        shop_port,
        domains: 0,
        join: Duration::ZERO,
    };

    let domains = DOMAINS / part;
    let mut rows = Rows::create(&storm.told)?;
    let began = Instant::now();
    for tick in 1..=ROWS {
        let due = began + length.mul_f64(tick as f64 / ROWS as f64);
        while played.domains < domains * tick / ROWS {
            played.domain_comes_and_goes()?;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        rows.add(tick as f64 * 24.0 / ROWS as f64, &mut played)?;
    }
    played.ends(began + length + LATE_MAX)?;
    let took = began.elapsed();
    let info = storm.channels_gone()?;
    let (paired, carried) = (
        info.paired_total - before.paired_total,
        info.carried_total - before.carried_total,
    );
    storm.figure(
        "connections, programs, domains",
        format_args!("{}, {}, {domains}", CONNECTIONS / part, PROGRAMS / part),
    );
    storm.figure(
        "in",
        format_args!("{:.0} s of {seconds:.0}", took.as_secs_f64()),
    );
    storm.figure(
        "had a channel, used its rings",
        format_args!("{paired}, {carried}"),
    );
    ensure!(
        carried * 2 > CONNECTIONS / part,
        "most connections did not use rings"
    );
    rows.judge(length >= JUDGED_FROM)
}

fn offered(spawn: Spawn) -> Spawn {
    spawn.env("FORDWAY_OFFER_AFTER", "0")
}

/// Rules that let all pass, and differ from those before.
fn load_rules(storm: &Storm, number: u64) -> Result<()> {
    let port = 20_000 + number;
    let text = format!(
        "table ip shop {{\nchain each {{\ntype filter hook forward priority 0\n\
         ip daddr ${SHOP_NAME} tcp dport {port} drop\n}}\n}}\n"
    );
    let file = storm.lab.work_dir().join("rules");
    fs::write(&file, text)?;
    let loaded = storm
        .lab
        .command("filter")
        .arg("load")
        .arg(&file)
        .output()?;
    ensure!(
        loaded.status.success(),
        "{}",
        String::from_utf8_lossy(&loaded.stderr)
    );
    Ok(())
}

impl Played<'_> {
    fn domain_comes_and_goes(&mut self) -> Result<()> {
        let began = Instant::now();
        self.domains += 1;
        load_rules(self.storm, self.domains)?;
        let name = format!("guest{}", self.domains);
        // Each address is used anew, as those of containers are.
        let place = Place::domain(&name, [10, 77, 0, 20 + (self.domains % 100) as u8]);
        let shop = std::net::Ipv4Addr::from(SHOP).to_string();
        let role = self
            .storm
            .role(["churn", &self.shop_port, &OF_EACH_DOMAIN.to_string(), &shop]);
        let mut guest = self
            .storm
            .lab
            .spawn(&place, PathChoice::Auto, &offered(role))?;
        guest.wait_for_output("done\n")?;
        go_on(&mut guest)?;
        guest.finish()?.ok()?;
        self.storm
            .lab
            .ask(&Request::DomainRemove { name, force: false })?;
        self.join = began.elapsed();
        Ok(())
    }

    /// Returns when the clients have had their day.
    fn ends(mut self, until: Instant) -> Result<()> {
        for client in &self.clients {
            let left = until.saturating_duration_since(Instant::now());
            client.wait_until(left, "has had its day", || {
                client.stdout_so_far().ends_with("done\n")
            })?;
        }
        for mut client in self.clients {
            go_on(&mut client)?;
            client.finish()?.ok()?;
        }
        drop(self.probe.take_stdin());
        self.probe.finish()?.ok()?;
        self.server.stop()?;
        self.shop.stop()?;
        Ok(())
    }

    fn figures(&mut self) -> Result<[f64; FIGURES.len()]> {
        let storm = self.storm;
        let own = |program: &Program| program.pids().first().copied().context("a program is gone");
        let [broker, server, client, shop] = [
            storm.lab.broker_pid()?,
            own(&self.server)?,
            own(&self.clients[0])?,
            own(&self.shop)?,
        ];
        let said = self.probe.stdout_so_far().lines().count();
        go_on(&mut self.probe)?;
        self.probe
            .wait_until(crate::LET_GO_LIMIT, "says what a round trip takes", || {
                self.probe.stdout_so_far().lines().count() > said
            })?;
        let text = self.probe.stdout_so_far();
        let line = text
            .lines()
            .last()
            .and_then(|line| line.strip_prefix("probe "));
        let (probe, p99) = line
            .and_then(|line| line.split_once(' '))
            .context("the probe says nothing")?;
        Ok([
            watch::own_kb(broker) as f64,
            watch::own_kb(server) as f64,
            watch::own_kb(client) as f64,
            watch::own_kb(shop) as f64,
            watch::descriptors(broker) as f64,
            watch::descriptors(server) as f64,
            watch::descriptors(client) as f64,
            watch::mappings(broker) as f64,
            watch::mappings(server) as f64,
            watch::mappings(client) as f64,
            (storm.lab.info()?.ring_memory_bytes >> 10) as f64,
            probe.parse()?,
            p99.parse()?,
            self.join.as_secs_f64() * 1e3,
        ])
    }

    /// Connections of the clients so far, without those of their programs.
    fn connections(&self) -> u64 {
        let last = |client: &Program| {
            let text = client.stdout_so_far();
            let line = text
                .lines()
                .rev()
                .find_map(|line| line.strip_prefix("churned "));
            line.and_then(|count| count.parse::<u64>().ok())
                .unwrap_or(0)
        };
        self.clients.iter().map(last).sum()
    }
}

/// What was taken so far.
struct Rows {
    taken: Vec<[f64; FIGURES.len()]>,
    file: Option<fs::File>,
}

impl Rows {
    fn create(told: &Told) -> Result<Rows> {
        let file = told.rows.as_ref().map(fs::File::create).transpose()?;
        let mut rows = Rows {
            taken: Vec::new(),
            file,
        };
        rows.print(&format!("hour,connections,domains,{}", FIGURES.join(",")))?;
        Ok(rows)
    }

    fn add(&mut self, hour: f64, played: &mut Played<'_>) -> Result<()> {
        let figures = played.figures()?;
        let mut line = format!("{hour},{},{}", played.connections(), played.domains);
        figures
            .iter()
            .try_for_each(|figure| write!(line, ",{figure:.0}"))?;
        self.taken.push(figures);
        self.print(&line)
    }

    fn print(&mut self, line: &str) -> Result<()> {
        println!("{line}");
        match &mut self.file {
            Some(file) => Ok(writeln!(file, "{line}")?),
            None => Ok(()),
        }
    }

    /// Says how each figure went; an error if one grows.
    fn judge(&self, strictly: bool) -> Result<()> {
        let mut growing = Vec::new();
        for (place, name) in FIGURES.iter().enumerate() {
            let samples: Vec<f64> = self
                .taken
                .iter()
                .skip(WARM_UP)
                .map(|row| row[place])
                .collect();
            let Some(trend) = Trend::of(&samples) else {
                continue;
            };
            let [low, high] = trend.rise_between;
            let word = if trend.grows { "grows" } else { "steady" };
            println!(
                "  {name}: {:.0} -> {:.0}, slope {:+.1} a day ({low:+.1} to {high:+.1}): {word}",
                trend.begin, trend.end, trend.rise
            );
            if trend.grows {
                growing.push(*name);
            }
        }
        if !strictly {
            println!("  too short a day to be judged");
            return Ok(());
        }
        ensure!(
            growing.is_empty(),
            "grows with time: {}",
            growing.join(", ")
        );
        Ok(())
    }
}
