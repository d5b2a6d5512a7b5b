//! Real, unmodified programs over the fast path: what all their tests share.
//!
//! A [`Bed`] is one test's lab with its domains made. The tests in `tests/programs`
//! start servers and clients on it, compare every byte that arrives, and ask
//! [`Watch`] whether the bytes went through rings at both ends. [`Bed::finish`] then
//! holds the test to leaving nothing: no process, no namespace, no mount, and of the
//! broker's descriptors and mappings exactly those that it had before; nor may the
//! broker have seen a protocol error, which only a faulty shim makes.
//!
//! ```text
//!   Bed::start ── serve ── watch ── run clients, compare ── rings_at_both_ends ── stop ── finish
//!                            └ a thread that lists connections every few ms
//! ```
//!
//! # When the shim is off
//! `FORDWAY_TEST_PATH=kernel` runs everything with `--path kernel`. All contents are
//! then still right, and each test fails at its assertion about rings: that is how to
//! see that the tests can tell the paths apart. The tests of ssh are the exception:
//! they state why sshd's connections stay on the kernel path, and see the difference
//! in that reason. So is that of chrony, whose datagrams are the kernel's in any case.
//!
//! # Time
//! Each client has a limit ([`CLIENT_LIMIT`]) and each server must end within
//! [`STOP_LIMIT`] of its signal. Whoever does not is a failure, reported with the
//! connections as the broker sees them and the stacks of every thread ([`stacks`]).
//!
//! # Needs
//! Root, the release build, and the programs of contrib/packages.txt, which are
//! installed if missing. Without root each test says so and passes. One test at a
//! time: the lab of a process is one (`--test-threads=1` spares the others the wait).
#![forbid(unsafe_code)]

pub mod files;
pub mod stacks;
mod watch;

pub use fordway_lab::packages::path_of;
pub use fordway_lab::{Output, PathChoice, Place, Program, Spawn, Stdin, Stdout};
pub use watch::{Carried, Watch};

use anyhow::{Context, Result, anyhow, bail, ensure};
use fordway_lab::Lab;
use fordway_lab::broker_state::BrokerState;
use fordway_lab::{packages, proc};
use fordwayd::admin::{Reply, Request};
use rustix::process::Signal;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Longest that a client may take; also on a busy machine.
pub const CLIENT_LIMIT: Duration = Duration::from_secs(60);
/// Longest that a server may take to end once it was asked to.
pub const STOP_LIMIT: Duration = Duration::from_secs(10);
/// How long the broker may take to let go of what ended programs held.
const LET_GO_LIMIT: Duration = Duration::from_secs(30);
/// The lab's own limit, behind ours, so that ours fires first and says more.
const LAB_LIMIT: Duration = Duration::from_secs(600);

/// `kernel` runs every test with `--path kernel`, to see that it fails.
const PATH_VARIABLE: &str = "FORDWAY_TEST_PATH";

/// The domains of a test, in the order of their making.
const DOMAINS: [(&str, [u8; 4]); 3] = [
    (SERVER, [10, 77, 0, 11]),
    (CLIENT, [10, 77, 0, 12]),
    (PROXY, [10, 77, 0, 13]),
];
/// Of the domain with a stack of its own.
pub const STACK_IP: [u8; 4] = [10, 77, 0, 14];
/// Of the clients that have one.
const ASKER_IP: [u8; 4] = [10, 77, 0, 15];
/// The domain of the servers.
pub const SERVER: &str = "server";
/// The domain of the clients.
pub const CLIENT: &str = "client";
/// The domain of what stands in between.
pub const PROXY: &str = "proxy";

/// The domain of clients with a stack of their own.
pub const ASKER: &str = "asker";

/// Of a domain with a stack of its own, in the order of their listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Has the port.
    Driver,
    /// Serves the sockets.
    Stack,
}

/// How a client is started that asks a program under a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// With the library switched off.
    ByKernel,
    /// As any client: its rings go to the program, past the stack.
    ByRings,
    /// Under a stack of its own, in the domain [`ASKER`]: the same, past both.
    ByStack,
}

/// One test's lab.
#[derive(Debug)]
pub struct Bed {
    name: &'static str,
    lab: Lab,
    path: PathChoice,
    before: BrokerState,
    started: Instant,
}

impl Bed {
    /// A lab with its domains; `None`, with a line that says why, where there cannot be one.
    pub fn start(name: &'static str, programs: &[&str]) -> Result<Option<Bed>> {
        Bed::start_with(name, programs, &[])
    }

    /// The same with a broker of these options.
    pub fn start_with(
        name: &'static str,
        programs: &[&str],
        options: &[&str],
    ) -> Result<Option<Bed>> {
        if !rustix::process::getuid().is_root() {
            fordway_test_skip::skipped("domains need root");
            return Ok(None);
        }
        install_packages()?;
        for program in programs {
            packages::path_of(program)?;
        }
        let lab = Lab::start_with(options)?;
        for (domain, ip) in DOMAINS {
            lab.ask(&Request::DomainAdd {
                name: domain.to_owned(),
                ip: Some(ip.into()),
                publish: Vec::new(),
            })?;
        }
        // What the broker sets up once, at the first program, is part of "before".
        let once = Spawn::new(["true"]);
        lab.run(
            &Place::domain(SERVER, DOMAINS[0].1),
            PathChoice::Auto,
            &once,
        )?;
        let before = lab.broker_at_rest()?;
        Ok(Some(Bed {
            name,
            lab,
            path: path_from_environment()?,
            before,
            started: Instant::now(),
        }))
    }

    /// The lab.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// A directory for the test's files; removed with the lab.
    pub fn dir(&self) -> PathBuf {
        self.lab.work_dir()
    }

    /// One more domain, until [`Bed::remove_domain`].
    pub fn add_domain(&self, name: &str, ip: [u8; 4]) -> Result<()> {
        let made = self.lab.ask(&Request::DomainAdd {
            name: name.to_owned(),
            ip: Some(ip.into()),
            publish: Vec::new(),
        })?;
        ensure!(!matches!(made, Reply::Error { .. }), "{name}: {made:?}");
        Ok(())
    }

    /// It goes.
    pub fn remove_domain(&self, name: &str) -> Result<()> {
        let gone = self.lab.ask(&Request::DomainRemove {
            name: name.to_owned(),
            force: false,
        })?;
        ensure!(!matches!(gone, Reply::Error { .. }), "{name}: {gone:?}");
        Ok(())
    }

    /// Starts a program in a domain.
    pub fn spawn(&self, domain: &str, spawn: Spawn) -> Result<Program> {
        let spawn = spawn.time_limit(LAB_LIMIT);
        self.lab.spawn(&self.place(domain)?, self.path, &spawn)
    }

    /// Starts a server in a domain; returns when it listens.
    pub fn serve(&self, domain: &str, port: u16, spawn: Spawn) -> Result<Program> {
        let program = self.spawn(domain, spawn)?;
        program.wait_for_port(port)?;
        Ok(program)
    }

    /// Starts a server in a domain with a stack of its own, which is made for it; returns when it has said so.
    pub fn serve_under_a_stack(&self, domain: &str, spawn: Spawn, says: &str) -> Result<Program> {
        let path = match self.path {
            PathChoice::Kernel => PathChoice::Kernel,
            _ => PathChoice::Stack,
        };
        let ip = if domain == ASKER { ASKER_IP } else { STACK_IP };
        let place = Place::domain(domain, ip);
        let program = self.lab.spawn(&place, path, &spawn.time_limit(LAB_LIMIT))?;
        program.wait_for_output(says)?;
        Ok(program)
    }

    /// Returns when the stack of such a domain lists so many sockets; a listing leaves out what a busy stack has not told in time.
    pub fn lists_of_stack(&self, domain: &str, wanted: usize) -> Result<()> {
        let mut most = 0;
        let waited = self.lab.wait_until(CLIENT_LIMIT, "all are listed", || {
            let rows = self.lab.connections()?.into_iter();
            let of_stack = rows.filter(|row| row.path == "stack" && row.domain == domain);
            let listed = of_stack.count();
            most = most.max(listed);
            Ok(listed == wanted)
        });
        waited.with_context(|| format!("{most} are listed, not {wanted}"))
    }

    /// Kills a part of such a domain; returns when its successor runs.
    pub fn kill_part(&self, domain: &str, part: Part) -> Result<()> {
        let before = self.parts(domain)?;
        let pid = before.get(part as usize).context("no such part")?;
        let process = proc::stat(*pid as u32).context("no process")?;
        proc::signal(&process, Signal::KILL);
        self.lab.wait_until(CLIENT_LIMIT, "its successor runs", || {
            let now = self.parts(domain)?;
            Ok(now.len() == before.len() && !now.contains(pid))
        })
    }

    /// The processes of a domain's stack, by [`Part`].
    pub fn parts(&self, domain: &str) -> Result<Vec<i32>> {
        let all = self.lab.domains()?;
        let known = all.into_iter().find(|known| known.name == domain);
        let stack = known.and_then(|known| known.stack);
        Ok(stack.context("no stack")?.pids)
    }

    /// The same of a server of datagrams; returns when it has the port.
    pub fn serve_datagrams(&self, domain: &str, port: u16, spawn: Spawn) -> Result<Program> {
        let program = self.spawn(domain, spawn)?;
        program.wait_for_datagram_port(port)?;
        Ok(program)
    }

    /// Runs a client in the domain [`CLIENT`] to its end, which must be a success.
    pub fn run(&self, spawn: Spawn) -> Result<Output> {
        let name = spawn.argv.join(" ");
        let program = self.spawn(CLIENT, spawn)?;
        self.end_of(program, CLIENT_LIMIT, &name)?.ok()
    }

    /// The same of a client that asks in one of these ways.
    pub fn run_as(&self, asks: Asks, spawn: Spawn) -> Result<Output> {
        let name = format!("{asks:?}: {}", spawn.argv.join(" "));
        let program = self.spawn_as(asks, spawn)?;
        self.end_of(program, CLIENT_LIMIT, &name)?.ok()
    }

    /// Runs a client in the domain [`CLIENT`] that reads these bytes, and their end only when what is waited for has come:
    /// its connection stays until then.
    pub fn run_fed(
        &self,
        spawn: Spawn,
        bytes: Vec<u8>,
        until: impl FnOnce() -> Result<()>,
    ) -> Result<Output> {
        let name = spawn.argv.join(" ");
        let mut program = self.spawn(CLIENT, spawn.stdin(Stdin::Pipe))?;
        let mut input = program.take_stdin().context("no pipe")?;
        let (come, waits) = mpsc::channel::<()>();
        // A thread of its own: a client that reads no more is ended by the limits below.
        let feeds = thread::spawn(move || {
            let fed = input.write_all(&bytes);
            let _ = waits.recv();
            fed
        });
        until().with_context(|| name.clone())?;
        drop(come);
        let output = self.end_of(program, CLIENT_LIMIT, &name)?.ok()?;
        let fed = feeds.join();
        fed.map_err(|_| anyhow!("a panic"))?.context(name)?;
        Ok(output)
    }

    /// Plays something whose connections may come and go between two looks of a watch, until they are seen: so often in
    /// a row they hardly do.
    pub fn seen(
        &self,
        play: impl FnMut() -> Result<()>,
        check: impl Fn(&Carried) -> Result<String>,
    ) -> Result<String> {
        const LOOKS: u32 = 5;
        self.seen_by(LOOKS, play, check)
    }

    /// The same with so many looks.
    pub fn seen_by(
        &self,
        looks: u32,
        mut play: impl FnMut() -> Result<()>,
        check: impl Fn(&Carried) -> Result<String>,
    ) -> Result<String> {
        let mut more = 1..looks;
        loop {
            let watch = self.watch()?;
            play()?;
            let seen = check(&watch.end(self)?);
            if seen.is_ok() || more.next().is_none() {
                return seen;
            }
        }
    }

    /// Starts such a client.
    pub fn spawn_as(&self, asks: Asks, spawn: Spawn) -> Result<Program> {
        let (place, path) = match asks {
            Asks::ByKernel => (self.place(CLIENT)?, PathChoice::Kernel),
            Asks::ByRings => (self.place(CLIENT)?, PathChoice::Auto),
            Asks::ByStack => (Place::domain(ASKER, ASKER_IP), PathChoice::Stack),
        };
        self.lab.spawn(&place, path, &spawn.time_limit(LAB_LIMIT))
    }

    /// Waits for the end of a program; one that takes too long is a failure that says
    /// where all of the lab's programs stand.
    pub fn end_of(&self, program: Program, limit: Duration, name: &str) -> Result<Output> {
        if program.ends_within(limit) {
            return program.finish();
        }
        bail!(
            "{name} hangs: it has not ended after {limit:?}\n{}",
            self.where_all_stand()
        )
    }

    /// Asks a server to end, which it must do by itself in time.
    pub fn stop(&self, program: Program) -> Result<Output> {
        self.stop_by(program, Signal::TERM)
    }

    /// As [`Bed::stop`], with the signal that the program takes as the wish to end.
    pub fn stop_by(&self, program: Program, signal: Signal) -> Result<Output> {
        let process = proc::stat(program.pid()).context("the server has no process")?;
        ensure!(
            process.state != 'Z',
            "{} had ended before it was asked to; it wrote: {}",
            process.name,
            program.stderr_so_far()
        );
        proc::signal(&process, signal);
        self.end_of(program, STOP_LIMIT, &process.name)
    }

    /// A test's domain.
    fn place(&self, domain: &str) -> Result<Place> {
        if let Some((name, ip)) = DOMAINS.into_iter().find(|(name, _)| *name == domain) {
            return Ok(Place::domain(name, ip));
        }
        let all = self.lab.domains()?;
        let added = all.iter().find(|known| known.name == domain);
        let ip = added.and_then(|added| added.ip).context("no such domain")?;
        Ok(Place::domain(domain, ip.octets()))
    }

    /// Begins to watch connections and pairs of UDP sockets.
    pub fn watch(&self) -> Result<Watch> {
        Watch::start(&self.lab)
    }

    /// Ends the lab; prints the test's line; an error if anything was left.
    pub fn finish(self, what_was_carried: &str) -> Result<()> {
        let leftovers = self.lab.leftovers();
        ensure!(leftovers.is_empty(), "left behind: {leftovers:?}");
        self.broker_let_go()?;
        let (name, seconds) = (self.name, self.started.elapsed().as_secs_f64());
        let forced = self.lab.close();
        ensure!(forced.is_empty(), "removed by force: {forced:?}");
        let line = format!("{name}: {what_was_carried}, {seconds:.1} s\n");
        // Not by `println!`, which the test runner keeps back when a test passes.
        std::io::stdout().write_all(line.as_bytes())?;
        Ok(())
    }

    /// Every program has ended: the broker's descriptors and mappings are what they were.
    fn broker_let_go(&self) -> Result<()> {
        let pid = self.lab.broker_pid()?;
        let until = Instant::now() + LET_GO_LIMIT;
        loop {
            let now = BrokerState::of(pid);
            let info = self.lab.info()?;
            ensure!(
                info.protocol_errors == 0,
                "the broker took the shim for an attacker: {}",
                self.lab.broker_log()
            );
            if now == self.before && info.channels == 0 && info.processes == 0 {
                return Ok(());
            }
            ensure!(
                Instant::now() < until,
                "the broker still has {} channels of {} processes and holds: {}",
                info.channels,
                info.processes,
                now.differences(&self.before)
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// For a failure: connections, the broker's log, stacks.
    fn where_all_stand(&self) -> String {
        let mut text = String::new();
        let rows = self.lab.connections().unwrap_or_default().into_iter();
        let ours = |domain: &str| DOMAINS.iter().any(|(name, _)| *name == domain);
        for row in rows.filter(|row| ours(&row.domain)) {
            text += &format!("{row:?}\n");
        }
        text += &self.lab.broker_log();
        let domains: Vec<_> = DOMAINS
            .iter()
            .map(|(name, _)| self.lab.runtime_dir().join("netns").join(name))
            .collect();
        text + &stacks::of_namespaces(&domains)
    }
}

/// A helper script of these tests.
pub fn script(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("scripts")
        .join(name);
    file.to_string_lossy().into_owned()
}

/// Where `contrib/fetch-suite` keeps a program that is no package of Debian's; `None`, with a line that says why,
/// where it cannot be had.
pub fn fetched(name: &str) -> Result<Option<PathBuf>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/fetch-suite");
    let output = Command::new(script).arg(name).output()?;
    if !output.status.success() {
        fordway_test_skip::skipped(String::from_utf8_lossy(&output.stderr).trim());
        return Ok(None);
    }
    let source = String::from_utf8(output.stdout)?;
    Ok(Some(PathBuf::from(source.trim())))
}

fn path_from_environment() -> Result<PathChoice> {
    match std::env::var(PATH_VARIABLE).as_deref() {
        Err(_) | Ok("auto") => Ok(PathChoice::Auto),
        Ok("kernel") => Ok(PathChoice::Kernel),
        Ok(other) => bail!("{PATH_VARIABLE}={other}: it is auto or kernel"),
    }
}

/// Once for all tests; silent and quick when nothing is missing.
fn install_packages() -> Result<()> {
    static DONE: OnceLock<bool> = OnceLock::new();
    let installer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/install-packages");
    let done = *DONE.get_or_init(|| {
        let status = Command::new(installer)
            .args(["demo", "run", "test"])
            .status();
        status.is_ok_and(|status| status.success())
    });
    ensure!(done, "programs are missing and could not be installed");
    Ok(())
}
