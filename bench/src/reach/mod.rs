//! Suite `reach`: rings where the two ends of a connection do not see each other as they are.
//!
//! | rows | ours | rivals |
//! |---|---|---|
//! | `reach-direct-WORK` | by rings, container to container | `kernel-bridge`: the same by the kernel |
//! | `reach-published-WORK` | by rings, by a port of the host ([`stage`]) | `direct`: by rings without; `kernel-published` |
//! | `reach-sidecar-WORK` | by rings to a haproxy beside the server (REDIRECT), and on by rings | `kernel-sidecar`: both by the kernel; `sockmap-sidecar`: by a BPF program where names mirror, which they do behind the proxy alone |
//! | `reach-musl-WORK` | redis of musl, by rings | `glibc`: of the same source, flags and allocator |
//! | `reach-pair` | what the broker takes for a pair by that port, of redis' 500 clients | `direct` |
//!
//! A sample in which fewer bytes went through rings than the clients' requests and answers have,
//! over each connection on the way, is an error. Half a connection's share may be missing: what
//! is sent until there are rings goes by the kernel.

mod stage;

use crate::alternate;
use crate::micro::measure::cpu_s_of;
use crate::pace::Pace;
use crate::placement::{self, Placement};
use crate::report::{self, JsonLines, Progress, Row};
use crate::work::{self, Runner, Sample, Server, ServerKind, Setting, WORKS, Work};
use anyhow::{Context, Result, bail, ensure};
use fordway_lab::{Lab, PathChoice, Program, Spawn, packages};
use fordway_platform::netns;
use fordway_platform::sockmap::Group;
use stage::{HOST, Stage};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Begins the names of the suite's rows.
pub const PREFIX: &str = "reach-";
/// What is measured by each way.
const WORKS_REACHED: [&str; 3] = ["redis-get-c1", "redis-get-c50", "nginx-1k-c10"];
/// Many connections, each of which gets a pair and is closed soon.
const WORK_OF_PAIRS: &str = "redis-get-c500";
/// Least bytes of a GET of redis-benchmark's key, and of the answer.
const GET_BYTES: f64 = 45.0;
/// Of the document that nginx serves.
const DOCUMENT_BYTES: f64 = 1024.0;
/// What a sample takes beside its length.
const SAMPLE_OVERHEAD: Duration = Duration::from_millis(350);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Pairs of samples for each row and rival.
    pub runs: usize,
    /// Length of one sample.
    pub seconds: f64,
    /// redis with one client only, and only what is installed.
    pub quick: bool,
}

impl Options {
    /// About how long it takes, without what is to be built.
    pub fn estimate_all(&self) -> Duration {
        let samples = cases(self.quick).into_iter().map(|case| {
            let least = case.ours.work.client.least_seconds();
            Duration::from_secs_f64(self.seconds.max(least)) + SAMPLE_OVERHEAD
        });
        samples.sum::<Duration>() * 2 * (self.runs as u32 + 1)
    }
}

/// The way of a connection to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Direct,
    /// By a port of the host.
    Published,
    /// By a proxy beside the server.
    Sidecar,
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Carrier {
    Rings,
    Kernel,
    /// The kernel, with a BPF program that moves them from socket to socket.
    Sockmap,
}

/// Whose programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Build {
    Installed,
    Glibc,
    Musl,
}

impl Build {
    /// Where its programs are, built if need be.
    fn dir(self) -> Result<Option<PathBuf>> {
        let name = match self {
            Build::Installed => return Ok(None),
            Build::Glibc => "redis-glibc",
            Build::Musl => "redis-musl",
        };
        let program = std::env::current_exe()?;
        let mut scripts = program
            .ancestors()
            .map(|dir| dir.join("contrib/fetch-suite"));
        let script = scripts.find(|script| script.is_file());
        let script = script.context("this build does not lie in its source tree")?;
        let output = Command::new(script).arg(name).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", said.trim());
        let source = String::from_utf8(output.stdout)?;
        Ok(Some(Path::new(source.trim()).join("src")))
    }
}

/// What was built before the suite, or why not.
#[derive(Debug)]
struct Builds(BTreeMap<Build, Result<Option<PathBuf>>>);

impl Builds {
    fn of(cases: &[Case]) -> Builds {
        let sides = cases.iter().flat_map(|case| [case.ours, case.theirs]);
        let builds: BTreeSet<Build> = sides.map(|side| side.build).collect();
        let built = builds.into_iter().map(|build| (build, build.dir()));
        Builds(built.collect())
    }

    /// Where a build's programs are; `None`: where installed ones are.
    fn dir(&self, build: Build) -> Result<Option<&Path>> {
        match &self.0[&build] {
            Ok(dir) => Ok(dir.as_deref()),
            Err(why) => bail!("{why:#}"),
        }
    }
}

/// What is read off a sample.
#[derive(Clone, Copy, Debug)]
enum Figure {
    /// The client's.
    Rate,
    /// CPU time of the broker for a pair, from the offer to the end.
    Pairing,
}

/// One contender.
#[derive(Clone, Copy, Debug)]
struct Side {
    work: Work,
    carrier: Carrier,
    way: Way,
    build: Build,
}

/// One row.
#[derive(Debug)]
struct Case {
    name: String,
    figure: Figure,
    ours: Side,
    rival: &'static str,
    theirs: Side,
}

/// All rows.
fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: &str, figure, ours, rival, theirs| {
        cases.push(Case {
            name: format!("{PREFIX}{name}"),
            figure,
            ours,
            rival,
            theirs,
        });
    };
    let count = if quick { 1 } else { WORKS_REACHED.len() };
    for work in &WORKS_REACHED[..count] {
        let direct = Side::direct(work);
        let [published, sidecar] = [Way::Published, Way::Sidecar].map(|way| direct.by(way));
        let rate = Figure::Rate;
        let row = format!("direct-{work}");
        add(&row, rate, direct, "kernel-bridge", direct.by_kernel());
        let row = format!("published-{work}");
        add(&row, rate, published, "direct", direct);
        let theirs = published.by_kernel();
        add(&row, rate, published, "kernel-published", theirs);
        let row = format!("sidecar-{work}");
        add(&row, rate, sidecar, "kernel-sidecar", sidecar.by_kernel());
        let theirs = sidecar.by_sockmap();
        add(&row, rate, sidecar, "sockmap-sidecar", theirs);
        if direct.work.server == ServerKind::Redis && !quick {
            let [musl, glibc] = [Build::Musl, Build::Glibc].map(|build| direct.of(build));
            add(&format!("musl-{work}"), rate, musl, "glibc", glibc);
        }
    }
    let direct = Side::direct(WORK_OF_PAIRS);
    let published = direct.by(Way::Published);
    add("pair", Figure::Pairing, published, "direct", direct);
    cases
}

impl Side {
    /// By rings, from container to container.
    fn direct(name: &str) -> Side {
        let work = WORKS.into_iter().find(|work| work.name == name);
        Side {
            work: work.expect("the bench has this work"),
            carrier: Carrier::Rings,
            way: Way::Direct,
            build: Build::Installed,
        }
    }

    fn by(self, way: Way) -> Side {
        Side { way, ..self }
    }

    fn of(self, build: Build) -> Side {
        Side { build, ..self }
    }

    fn by_kernel(self) -> Side {
        let carrier = Carrier::Kernel;
        Side { carrier, ..self }
    }

    fn by_sockmap(self) -> Side {
        let carrier = Carrier::Sockmap;
        Side { carrier, ..self }
    }

    fn path(&self) -> PathChoice {
        match self.carrier {
            Carrier::Rings => PathChoice::Auto,
            Carrier::Kernel | Carrier::Sockmap => PathChoice::Kernel,
        }
    }

    /// Starts programs where what is to move their bytes is told of them.
    fn carried<T>(
        &self,
        group: &io::Result<Group>,
        start: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match group {
            Ok(group) if self.carrier == Carrier::Sockmap => group.within(start)?,
            _ => start(),
        }
    }

    fn key(&self) -> Key {
        let has_proxy = self.way == Way::Sidecar;
        (self.work.server, self.build, self.carrier, has_proxy)
    }

    /// So many bytes go through rings at least, if so many requests were answered.
    fn ring_bytes_min(&self, answered: f64) -> u64 {
        let exchange = match self.work.server {
            ServerKind::Nginx => DOCUMENT_BYTES,
            _ => GET_BYTES,
        };
        let connections = match self.way {
            Way::Sidecar => 2.0,
            _ => 1.0,
        };
        (answered * exchange * (connections - 0.5)) as u64
    }
}

/// Runs the suite, prints its table; gives the rows.
pub fn run(options: &Options, json: &mut JsonLines) -> Result<Vec<Row>> {
    placement::ensure_cpus()?;
    let works: Vec<Work> = cases(options.quick)
        .iter()
        .map(|case| case.ours.work)
        .collect();
    let mut programs = work::programs(&works);
    programs.extend(["haproxy", "nsenter"]);
    packages::ensure(&programs)?;
    // From here, where sources can be fetched: the containers' host is a network without a way out.
    let builds = Builds::of(&cases(options.quick));
    let host = netns::anonymous()?;
    netns::within(host.as_fd(), || rows(options, &builds, json))?
}

fn rows(options: &Options, builds: &Builds, json: &mut JsonLines) -> Result<Vec<Row>> {
    let lab = Lab::start()?;
    let measured = measure(&lab, options, builds, json);
    let forced = lab.close();
    let rows = measured?;
    ensure!(forced.is_empty(), "left behind: {}", forced.join(", "));
    Ok(rows)
}

fn measure(
    lab: &Lab,
    options: &Options,
    builds: &Builds,
    json: &mut JsonLines,
) -> Result<Vec<Row>> {
    let cases = cases(options.quick);
    let progress = Progress::new((cases.len() * options.runs) as u64);
    let mut bench = Bench {
        lab,
        options,
        builds,
        stage: Stage::lay(lab)?,
        group: Group::new(&format!("fordway-bench-{}", std::process::id())),
        served: BTreeMap::new(),
    };
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for case in &cases {
        let what = format!("{} against {}", case.name, case.rival);
        let built = [case.ours, case.theirs].map(|side| builds.dir(side.build));
        if let Some(why) = built.iter().find_map(|built| built.as_ref().err()) {
            progress.say(&format!("{what}: left out, {why:#}"));
            continue;
        }
        if let (Carrier::Sockmap, Err(why)) = (case.theirs.carrier, &bench.group) {
            progress.say(&format!("{what}: left out, no sockmap: {why}"));
            continue;
        }
        let step = |run| progress.step(&format!("{what}, run {run}"));
        match bench.row(case, step) {
            Ok(Some(row)) => {
                json.write(&row)?;
                rows.push(row);
            }
            Ok(None) => progress.say(&format!("{what}: {}", report::ALWAYS_MOVED)),
            Err(error) => {
                fordway_lab::interrupt::check()?;
                progress.say(&format!("{what}: {error:#}"));
                failures.push(what);
            }
        }
    }
    let Bench { stage, served, .. } = bench;
    served.into_values().try_for_each(Served::stop)?;
    stage.close()?;
    println!("{}", report::table(&rows));
    ensure!(failures.is_empty(), "not measured: {}", failures.join(", "));
    Ok(rows)
}

/// A server, and the proxy before it, if any.
#[derive(Debug)]
struct Served {
    server: Server,
    proxy: Option<Program>,
}

impl Served {
    fn stop(self) -> Result<()> {
        if let Some(proxy) = self.proxy {
            proxy.stop()?;
        }
        self.server.stop()
    }

    fn proxy_cpu_s(&self) -> f64 {
        self.proxy.as_ref().map_or(0.0, Program::cpu_s)
    }
}

/// What tells servers apart: program, whose, what moves their bytes, whether a proxy is before it.
type Key = (ServerKind, Build, Carrier, bool);

struct Bench<'l> {
    lab: &'l Lab,
    options: &'l Options,
    builds: &'l Builds,
    stage: Stage,
    /// Where the programs of [`Carrier::Sockmap`] are.
    group: io::Result<Group>,
    served: BTreeMap<Key, Served>,
}

impl Bench<'_> {
    /// `None`: no pair of samples saw one distance of the CPUs.
    fn row(&mut self, case: &Case, step: impl Fn(usize)) -> Result<Option<Row>> {
        self.serve(&case.ours)?;
        self.serve(&case.theirs)?;
        let [mut ours, mut theirs] = [case.ours, case.theirs].map(|side| self.contender(side));
        ours.sample(work::WARM_UP_SECONDS)?;
        theirs.sample(work::WARM_UP_SECONDS)?;
        let take = |contender: &mut Contender<'_>| match case.figure {
            Figure::Rate => contender.sample(self.options.seconds),
            Figure::Pairing => contender.pairing(self.options.seconds),
        };
        let (mine, other) = (|| take(&mut ours), || take(&mut theirs));
        let taken = alternate::pairs(self.options.runs, &Pace::unbounded(), step, mine, other)?;
        let unit = match case.figure {
            Figure::Rate => case.ours.work.unit,
            Figure::Pairing => "ns",
        };
        let row = |regime| Row::new(&case.name, case.rival, unit, regime, Placement::Apart);
        Ok(taken.map(|taken| taken.row(row(taken.regime))))
    }

    /// Starts what a side needs, unless it runs.
    fn serve(&mut self, side: &Side) -> Result<()> {
        if !self.served.contains_key(&side.key()) {
            let served = side.carried(&self.group, || self.start(side))?;
            self.served.insert(side.key(), served);
        }
        Ok(())
    }

    fn start(&self, side: &Side) -> Result<Served> {
        let (cpu, _) = Placement::Apart.cpus();
        let build = self.builds.dir(side.build)?;
        let server = Server::start_build(
            self.lab,
            side.work.server,
            &self.stage.server,
            side.path(),
            cpu.as_deref(),
            build,
        )?;
        let proxy = (side.way == Way::Sidecar).then(|| self.proxy(&server, side.path()));
        let proxy = proxy.transpose()?;
        Ok(Served { server, proxy })
    }

    /// A haproxy that passes on what comes in for a server.
    fn proxy(&self, server: &Server, path: PathChoice) -> Result<Program> {
        let (at, port) = (self.lab.free_port()?, server.port());
        let file = self.lab.work_dir().join(format!("haproxy-{at}.cfg"));
        let config = format!(
            "global
    nbthread 1
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen sidecar
    bind 0.0.0.0:{at}
    server app {}:{port}
",
            server.host()
        );
        std::fs::write(&file, config)?;
        let program = packages::path_of("haproxy")?;
        let mut spawn = Spawn::new([&program, "-db", "-f", &file.to_string_lossy()]);
        spawn.cpu = Placement::Apart.cpus().0;
        let proxy = self.lab.spawn(&self.stage.server, path, &spawn)?;
        proxy.wait_for_port(at)?;
        self.stage.redirect(port, at)?;
        Ok(proxy)
    }

    fn contender(&self, side: Side) -> Contender<'_> {
        let served = &self.served[&side.key()];
        let setting = Setting {
            place: self.stage.client.clone(),
            path: side.path(),
            cpu: Placement::Apart.cpus().1,
            unix: false,
            through: (side.way == Way::Published).then_some(HOST),
        };
        Contender {
            lab: self.lab,
            side,
            group: &self.group,
            served,
            runner: Runner::new(side.work, &served.server, setting),
        }
    }
}

/// A side that takes samples.
struct Contender<'b> {
    lab: &'b Lab,
    side: Side,
    group: &'b io::Result<Group>,
    served: &'b Served,
    runner: Runner<'b>,
}

impl Contender<'_> {
    fn sample(&mut self, seconds: f64) -> Result<Sample> {
        let proxy_before = self.served.proxy_cpu_s();
        let take = || self.runner.sample(self.lab, seconds);
        let mut sample = self.side.carried(self.group, take)?;
        sample.cpu_s += self.served.proxy_cpu_s() - proxy_before;
        let least = self.side.ring_bytes_min(sample.done);
        if self.side.carrier == Carrier::Rings && sample.ring_bytes < least {
            bail!(
                "{} went through rings, not {} or more ({})",
                report::bytes(sample.ring_bytes),
                report::bytes(least),
                alternate::reasons(self.lab)
            );
        }
        Ok(sample)
    }

    fn pairing(&mut self, seconds: f64) -> Result<Sample> {
        let broker = self.lab.broker_pid()?;
        let (paired, cpu_s) = (self.lab.info()?.paired_total, cpu_s_of(broker)?);
        let sample = self.sample(seconds)?;
        let taken_s = cpu_s_of(broker)? - cpu_s;
        let paired = self.lab.info()?.paired_total - paired;
        ensure!(paired > 0, "no connection got rings");
        Ok(Sample {
            value: taken_s * 1e9 / paired as f64,
            ..sample
        })
    }
}
