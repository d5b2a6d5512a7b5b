//! The demo: one screen that shows what Fordway does, on real programs. Three parts, on one broker:
//!
//! - [`works`]: what the kernel path and the fast path give, and what CPU they take;
//! - [`rules`]: the packet filter cuts a live connection, and lets new ones pass again;
//! - [`takeover`]: the broker is killed, and nobody notices.
//!
//! [`stage`]: its domains. [`talk`]: the client of the second and the third part. [`screen`]: what is
//! shown. [`options`]: what it takes.
//!
//! It checks what it needs before anything is made, installs nothing, speaks to no broker but its
//! own, and removes what it made, also when it fails or is interrupted (`fordway_lab`).

pub mod options;
pub mod rules;
pub mod screen;
pub mod stage;
pub mod takeover;
pub mod talk;
pub mod works;

use crate::placement::CLIENT_CPU;
use crate::work::{self, ServerKind, WORKS, Work};
use crate::{exit, report};
use anyhow::{Result, ensure};
use fordway_lab::{Lab, packages};
use fordwayd::admin::SCHEMA;
use options::DemoArgs;
use screen::{Screen, Style};
use serde::Serialize;
use stage::{SERVERS, Stage};
use std::time::{Duration, Instant};

/// Works of the short form.
const QUICK: [&str; 3] = ["redis-get-c1", "redis-get-c50", "nginx-1k-c10"];
/// A work whose program the demo does without.
const IF_INSTALLED: &str = "iperf3-128k";
/// How long something may take that the demo waits for.
const LIMIT: Duration = Duration::from_secs(30);

/// How long, how often, where.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is measured.
    pub works: Vec<Work>,
    /// Alternations of each work.
    pub runs: usize,
    /// Length of one sample.
    pub seconds: f64,
    /// One CPU for servers, another for clients.
    pub pinned: bool,
}

impl Options {
    fn new(args: &DemoArgs) -> Result<Options> {
        let names: Vec<&str> = match (args.works.as_slice(), args.quick) {
            ([], true) => QUICK.to_vec(),
            ([], false) => {
                let mut names = options::WORKS.to_vec();
                names.retain(|name| *name != IF_INSTALLED || packages::find("iperf3").is_some());
                names
            }
            (some, _) => some.iter().map(String::as_str).collect(),
        };
        let works = WORKS.into_iter();
        let (runs, seconds) = if args.quick { (1, 0.5) } else { (3, 1.0) };
        Ok(Options {
            works: works.filter(|work| names.contains(&work.name)).collect(),
            runs: args.runs.unwrap_or(runs).into(),
            seconds: args.seconds.unwrap_or(seconds),
            // On one CPU there is nothing to choose.
            pinned: args.pinned && std::thread::available_parallelism()?.get() > CLIENT_CPU,
        })
    }

    fn cpu(&self, cpu: usize) -> Option<String> {
        self.pinned.then(|| cpu.to_string())
    }

    /// What has to be there: for the works, and for the parts that stand on redis.
    fn programs(&self) -> Vec<&'static str> {
        let mut programs = work::programs(&self.works);
        programs.extend(ServerKind::Redis.programs());
        programs.sort_unstable();
        programs.dedup();
        programs
    }
}

/// The whole, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Document {
    schema: u32,
    version: &'static str,
    cpu_model: String,
    cpus: usize,
    pinned: bool,
    network: String,
    works: Vec<works::Shown>,
    filter: rules::Filter,
    takeover: takeover::Takeover,
    /// CPU seconds of all samples of the kernel path, and those that the fast path takes for the
    /// same work.
    kernel_cpu_s: f64,
    fast_cpu_s: f64,
    /// Of the whole demo, warm-up included.
    ring_bytes: u64,
    seconds: f64,
    /// Works that could not be shown, and why.
    failures: Vec<String>,
}

/// Shows it.
pub fn run(args: &DemoArgs) -> Result<()> {
    exit::ensure_root("the demo")?;
    let options = Options::new(args)?;
    if let Some(lacking) = packages::lacking(&options.programs()) {
        return Err(exit::missing(lacking));
    }
    fordway_lab::find_fordway().map_err(|error| exit::missing(error.to_string()))?;
    let began = Instant::now();
    let mut screen = Screen::new(args.json);
    let stage = Stage::find()?;
    introduce(&options, &stage, &mut screen)?;
    screen.status("starting a broker")?;
    // No file of the machine's: it may have an uplink to the host.
    let mut lab = Lab::start_with(&["--config", "/dev/null", "--network", &stage.network()])?;
    let shown = show(&mut lab, &options, &stage, &mut screen);
    screen.status("removing domains, programs and broker")?;
    let forced = lab.close();
    let mut document = shown?;
    document.seconds = began.elapsed().as_secs_f64();
    sum_up(&document, &mut screen)?;
    ensure!(
        forced.is_empty(),
        "left behind and removed by force: {}",
        forced.join(", ")
    );
    let gone = "Broker, domains and programs are gone again.";
    screen.line(Style::Plain, gone)?;
    drop(screen);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&document)?);
    }
    let failures = document.failures;
    ensure!(failures.is_empty(), "not shown: {}", failures.join("; "));
    Ok(())
}

fn introduce(options: &Options, stage: &Stage, screen: &mut Screen) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let title = format!(
        "Fordway {version}: a broker of its own, domains in {}",
        stage.network()
    );
    screen.line(Style::Heading, &title)?;
    let shows = |kind: ServerKind| options.works.iter().any(|work| work.server == kind);
    let used = SERVERS
        .iter()
        .filter(|server| server.0 == ServerKind::Redis || shows(server.0));
    let used = used.map(|&(kind, domain, host)| {
        let program = kind.programs()[0];
        match kind {
            ServerKind::Redis => format!("{domain} {} {program}", stage.of(kind).ip()),
            _ => format!("{domain} .{host} {program}"),
        }
    });
    let web = format!("{} .{} clients", stage::WEB, stage::WEB_HOST);
    let places: Vec<String> = used.chain([web]).collect();
    screen.line(Style::Plain, &places.join(", "))
}

fn show(lab: &mut Lab, options: &Options, stage: &Stage, screen: &mut Screen) -> Result<Document> {
    let servers = works::start_servers(lab, options, stage, screen)?;
    let (works, failures) = works::show(lab, options, stage, &servers, screen)?;
    let rings_of_works = lab.ring_bytes()?;
    let redis = &servers[&(ServerKind::Redis, true)];
    let (filter, talk) = rules::show(lab, stage, redis, screen)?;
    let rings_of_first_broker = lab.ring_bytes()?.max(rings_of_works);
    let takeover = takeover::show(lab, stage, redis, talk, screen)?;
    let ring_bytes = rings_of_first_broker + lab.ring_bytes()?;
    let sum = |path: usize| works.iter().map(|work| work.cpu_s[path]).sum();
    let document = Document {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        cpu_model: report::cpu_model(),
        cpus: std::thread::available_parallelism()?.get(),
        pinned: options.pinned,
        network: stage.network(),
        kernel_cpu_s: sum(0),
        fast_cpu_s: sum(1),
        works,
        filter,
        takeover,
        ring_bytes,
        seconds: 0.0,
        failures,
    };
    screen.status("ending the servers")?;
    servers.into_values().try_for_each(work::Server::stop)?;
    Ok(document)
}

fn sum_up(document: &Document, screen: &mut Screen) -> Result<()> {
    let Document {
        kernel_cpu_s,
        fast_cpu_s,
        cpus,
        cpu_model,
        ..
    } = document;
    if !document.works.is_empty() {
        let cpu = format!(
            "\nCPU: {kernel_cpu_s:.1} s by the kernel path, {fast_cpu_s:.1} s by the fast path for the same work."
        );
        screen.line(Style::Heading, &cpu)?;
    }
    let placed = match document.pinned {
        true => "servers on CPU 0, clients on CPU 1",
        false => "the scheduler placed the programs",
    };
    let rings = report::bytes(document.ring_bytes);
    let total = format!(
        "{rings} went through rings in {:.0} s, on {cpus} CPUs ({cpu_model}); {placed}.",
        document.seconds
    );
    screen.line(Style::Plain, &total)
}

/// Milliseconds since then.
fn ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}
