//! The lab: a broker of its own, domains, and real programs in them; used by the
//! bench, the demo and the tests of programs, so that all three try the same thing.
//!
//! ```text
//!   Lab ─┬─ broker: fordway up --runtime-dir DIR/run      (restart_broker: killed or ended, then up again)
//!        ├─ Program: fordway run --domain db ... -- redis-server ...
//!        └─ Program: fordway run --domain web ... -- redis-benchmark ...
//! ```
//!
//! Everything lies in one new directory, DIR: the broker's runtime directory in
//! `run`, the files of programs in `work`, what they wrote in `out`, and in `bin` a
//! copy of the build that is tried. Nothing is
//! shared with a broker that the machine's owner runs, nor with another lab.
//!
//! Who starts what: programs only through the `fordway` command line, as a user
//! would; questions go to the broker's admin socket, as the command line's do.
//!
//! The end, in this order, whether by `close`, by `Drop` or after a signal
//! ([`crate::interrupt`]): programs, broker, orphans, mounts, directory. `close`
//! says what it had to remove by force, which a test takes as a failure. Orphans
//! (daemons that left their program's tree) come to us because the process of
//! the lab is a subreaper; hence one lab at a time in a process: a second one waits
//! for the end of the first. Killed by SIGKILL, a lab cleans nothing up.

pub use crate::program::{Output, Program, Spawn, Stdin, Stdout};

use crate::broker_state::BrokerState;
use crate::{interrupt, proc, program};
use anyhow::{Context, Result, anyhow, bail, ensure};
use fordwayd::admin::{ADMIN_SOCKET, Connection, Domain, Info, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the broker may take to answer a question, to start and to end.
const BROKER_LIMIT: Duration = Duration::from_secs(20);
/// How long processes may take to vanish once their program has ended.
const SETTLE_LIMIT: Duration = Duration::from_secs(3);
/// How long the broker may take to let go of what ended programs held.
const REST_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at something that nobody announces.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Where a program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a domain, which is made if it does not exist.
    Domain {
        /// Its name.
        name: String,
        /// Its address.
        ip: Ipv4Addr,
    },
    /// In the network of a process, as in a container.
    Container {
        /// The process.
        pid: u32,
        /// The address that this network has.
        ip: Ipv4Addr,
    },
    /// In our own namespaces, over loopback.
    Here,
}

impl Place {
    /// A domain with an address in the fabric's network.
    pub fn domain(name: &str, ip: [u8; 4]) -> Place {
        Place::Domain {
            name: name.to_owned(),
            ip: ip.into(),
        }
    }

    /// Address at which a server in this place is reached.
    pub fn ip(&self) -> Ipv4Addr {
        match self {
            Place::Domain { ip, .. } | Place::Container { ip, .. } => *ip,
            Place::Here => Ipv4Addr::LOCALHOST,
        }
    }
}

/// The value of `fordway run --path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChoice {
    /// Rings where they can be had.
    Auto,
    /// The kernel only.
    Kernel,
    /// Rings, or the connection fails.
    Fast,
    /// A network stack of the domain's own.
    Stack,
    /// The same, with its driver in one process.
    FusedStack,
    /// One without TCP.
    UdpStack,
}

impl PathChoice {
    /// As `--path` has it.
    pub fn word(self) -> &'static str {
        match self {
            PathChoice::Auto => "auto",
            PathChoice::Kernel => "kernel",
            PathChoice::Fast => "fast",
            PathChoice::Stack | PathChoice::FusedStack | PathChoice::UdpStack => "stack",
        }
    }
}

/// Held by the lab of this process.
static ONE_LAB: Mutex<()> = Mutex::new(());

/// See the module.
#[derive(Debug)]
pub struct Lab {
    _one: MutexGuard<'static, ()>,
    fordway: PathBuf,
    dir: PathBuf,
    broker_arguments: Vec<String>,
    broker_variables: Vec<(String, String)>,
    broker: Option<Program>,
    next_file: AtomicU32,
}

impl Lab {
    /// A lab with the broker's defaults.
    pub fn start() -> Result<Lab> {
        Lab::start_with(&[])
    }

    /// A lab whose broker gets more arguments for `fordway up`.
    pub fn start_with(broker_arguments: &[&str]) -> Result<Lab> {
        Lab::start_build(&find_fordway()?, broker_arguments)
    }

    /// A lab of a certain build, named by its launcher.
    pub fn start_from(fordway: &Path) -> Result<Lab> {
        Lab::start_build(fordway, &[])
    }

    fn start_build(fordway: &Path, broker_arguments: &[&str]) -> Result<Lab> {
        interrupt::install();
        interrupt::check()?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let one = ONE_LAB.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = make_dir()?;
        let fordway = copy_build(fordway, &dir)?;
        let mut lab = Lab {
            _one: one,
            fordway,
            dir,
            broker_arguments: broker_arguments
                .iter()
                .map(|&argument| argument.to_owned())
                .collect(),
            broker_variables: Vec::new(),
            broker: None,
            next_file: AtomicU32::new(0),
        };
        lab.start_broker()?;
        Ok(lab)
    }

    /// A directory for files of programs; removed with the lab.
    pub fn work_dir(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// The broker's runtime directory.
    pub fn runtime_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// The `fordway` binary that is used (the lab's copy).
    pub fn fordway(&self) -> &Path {
        &self.fordway
    }

    /// `fordway SUBCOMMAND` that speaks to this lab's broker.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.fordway);
        command
            .args(subcommand.split_whitespace())
            .arg("--runtime-dir")
            .arg(self.runtime_dir());
        command
    }

    /// A TCP port that is free in our own namespace (in a domain all but a few are).
    pub fn free_port(&self) -> Result<u16> {
        Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port())
    }

    /// Starts a program.
    pub fn spawn(&self, place: &Place, path: PathChoice, spawn: &Spawn) -> Result<Program> {
        interrupt::check()?;
        let mut command = self.command("run");
        match place {
            Place::Domain { name, ip } => command
                .arg("--domain")
                .arg(name)
                .arg("--ip")
                .arg(ip.to_string()),
            Place::Container { .. } | Place::Here => command.arg("--here"),
        };
        if let Place::Container { pid, .. } = place {
            command = enter(*pid, &command);
        }
        command.args(["--path", path.word()]);
        match path {
            PathChoice::FusedStack => command.arg("--fuse"),
            PathChoice::UdpStack => command.args(["--stack", "udp,icmp"]),
            _ => &mut command,
        };
        if let Some(list) = &spawn.cpu {
            command.arg("--cpu").arg(list);
        }
        command.arg("--").args(&spawn.argv);
        self.start_program(command, spawn)
    }

    /// Starts a program and waits for its end; an error unless its status is 0.
    pub fn run(&self, place: &Place, path: PathChoice, spawn: &Spawn) -> Result<Output> {
        self.spawn(place, path, spawn)?.finish()?.ok()
    }

    /// Starts a program of the caller's own making (no `fordway run`), as part of the lab.
    pub fn spawn_bare(&self, spawn: &Spawn) -> Result<Program> {
        let (name, arguments) = spawn
            .argv
            .split_first()
            .context("the command line is empty")?;
        let mut command = Command::new(name);
        command.args(arguments);
        self.start_program(command, spawn)
    }

    /// The broker's process.
    pub fn broker_pid(&self) -> Result<u32> {
        Ok(self
            .broker
            .as_ref()
            .context("the broker is not running")?
            .pid())
    }

    /// CPU seconds of the broker so far.
    pub fn broker_cpu_s(&self) -> Result<f64> {
        Ok(proc::tree_cpu_s(self.broker_pid()?))
    }

    /// Ends the broker (by SIGKILL if `kill`) and starts it again on the same
    /// runtime directory; programs and domains stay.
    pub fn restart_broker(&mut self, kill: bool) -> Result<()> {
        self.stop_broker(kill)?;
        self.start_broker()
    }

    /// Ends the broker and leaves it so.
    pub fn stop_broker(&mut self, kill: bool) -> Result<()> {
        let broker = self.broker.take().context("the broker is not running")?;
        if !kill {
            ask(&self.runtime_dir(), &Request::Down { keep_domains: true })?;
            // A signal now would be another wish: to end with the domains.
            broker.ends_within(BROKER_LIMIT);
        }
        broker.stop_with(if kill { Signal::KILL } else { Signal::TERM })?;
        Ok(())
    }

    /// Starts the broker after `stop_broker`.
    pub fn start_broker(&mut self) -> Result<()> {
        let mut command = self.command("up");
        command.args(&self.broker_arguments);
        let variables = self.broker_variables.iter();
        command.envs(variables.map(|(name, value)| (name, value)));
        let spawn = Spawn::new(["fordway up"]);
        let broker = self.start_program(command, &spawn)?;
        let dir = self.runtime_dir();
        broker.wait_until(BROKER_LIMIT, "answers on its admin socket", || {
            ask(&dir, &Request::Info).is_ok()
        })?;
        self.broker = Some(broker);
        Ok(())
    }

    /// Brokers that are started from now on have this in their environment.
    pub fn set_broker_variable(&mut self, name: &str, value: &str) {
        let variable = (name.to_owned(), value.to_owned());
        self.broker_variables.push(variable);
    }

    /// What the broker has written.
    pub fn broker_log(&self) -> String {
        self.broker
            .as_ref()
            .map(|broker| broker.stdout_so_far() + &broker.stderr_so_far())
            .unwrap_or_default()
    }

    /// Asks the broker.
    pub fn ask(&self, request: &Request) -> Result<Reply> {
        interrupt::check()?;
        ask(&self.runtime_dir(), request)
    }

    /// Asks the broker all of this at once, and does not wait for its answers.
    pub fn put(&self, requests: &[Request]) -> Result<Question> {
        put(&self.runtime_dir(), requests)
    }

    /// What the broker says of itself.
    pub fn info(&self) -> Result<Info> {
        match self.ask(&Request::Info)? {
            Reply::Info(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    /// Every connection, as `fordway ss` shows it.
    pub fn connections(&self) -> Result<Vec<Connection>> {
        match self.ask(&Request::Connections)? {
            Reply::Connections { connections } => Ok(connections),
            other => Err(unexpected(&other)),
        }
    }

    /// Every domain.
    pub fn domains(&self) -> Result<Vec<Domain>> {
        match self.ask(&Request::DomainList)? {
            Reply::Domains { domains } => Ok(domains),
            other => Err(unexpected(&other)),
        }
    }

    /// Bytes that went through rings so far, closed connections included.
    pub fn ring_bytes(&self) -> Result<u64> {
        Ok(self.info()?.ring_bytes_total)
    }

    /// What the broker holds on to at rest: no process, and two looks that agree. The broker has answered a question before
    /// each look, so what was closed before the question is gone; the socket of the question, still open, does not count.
    pub fn broker_at_rest(&self) -> Result<BrokerState> {
        let mut seen = None;
        self.wait_until(REST_LIMIT, "the broker is at rest", || {
            let mut question = self.put(&[Request::Info])?;
            let processes = match question.answer()? {
                Reply::Info(info) => info.processes,
                other => return Err(unexpected(&other)),
            };
            let now = Some(BrokerState::of(self.broker_pid()?).but_one("socket"));
            let rests = processes == 0 && now == seen;
            seen = now;
            Ok(rests)
        })?;
        seen.context("no look")
    }

    /// Returns when a condition holds; bounded, with no other synchronisation at hand.
    pub fn wait_until(
        &self,
        limit: Duration,
        what: &str,
        mut holds: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let until = Instant::now() + limit;
        while !holds()? {
            interrupt::check()?;
            if Instant::now() > until {
                bail!("waited {limit:?} in vain until {what}");
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Our descendants that no running program of the lab accounts for: orphans, and what they
    /// started. Gives those that are about to end the time to.
    pub fn leftovers(&self) -> Vec<String> {
        let until = Instant::now() + SETTLE_LIMIT;
        loop {
            let found = self.stray_processes();
            if found.is_empty() || Instant::now() > until || interrupt::seen() {
                return found
                    .iter()
                    .map(|process| format!("process {} ({})", process.pid, process.name))
                    .collect();
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Ends everything and says what had to be removed by force.
    pub fn close(mut self) -> Vec<String> {
        self.clean_up()
    }

    fn start_program(&self, mut command: Command, spawn: &Spawn) -> Result<Program> {
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        let name = spawn.argv.first().map_or("", String::as_str);
        let name = Path::new(name)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let files = self
            .dir
            .join("out")
            .join(format!("{number:04}-{}.x", name.replace(' ', "-")));
        command.env_remove("LD_PRELOAD");
        Program::start(command, spawn, &files)
    }

    /// Only descendants: the number of a namespace that is gone may by now be that of another lab's.
    fn stray_processes(&self) -> Vec<proc::Stat> {
        let me = std::process::id();
        let descendants = proc::tree(me);
        let accounted: BTreeSet<u32> = program::roots()
            .iter()
            .flat_map(|&root| proc::tree(root))
            .map(|process| process.pid)
            .collect();
        descendants
            .into_iter()
            .filter(|process| {
                process.pid != me && process.state != 'Z' && !accounted.contains(&process.pid)
            })
            .collect()
    }

    fn clean_up(&mut self) -> Vec<String> {
        let mut forced = Vec::new();
        // Programs that their owner has not ended yet.
        let broker_pid = self.broker.as_ref().map(Program::pid);
        for root in program::roots()
            .into_iter()
            .filter(|&root| Some(root) != broker_pid)
        {
            for process in proc::tree(root).iter().rev() {
                proc::signal(process, Signal::KILL);
            }
        }
        if let Some(broker) = self.broker.take() {
            let _ = ask(
                &self.runtime_dir(),
                &Request::Down {
                    keep_domains: false,
                },
            );
            if !broker.ends_within(BROKER_LIMIT) && !interrupt::seen() {
                forced.push("the broker, which did not end when asked to".to_owned());
            }
            let _ = broker.stop();
        }
        forced.extend(self.leftovers());
        let strays = self.stray_processes();
        strays
            .iter()
            .for_each(|process| proc::signal(process, Signal::KILL));
        program::reap_orphans(strays.iter().map(|process| &process.pid));
        let dir = self.dir.to_string_lossy().into_owned();
        let mounted = || {
            let points = proc::mount_points().into_iter();
            points.filter(|point| point.starts_with(&dir))
        };
        for point in mounted().rev() {
            let _ = rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH);
            forced.push(format!("mount {point}"));
        }
        let mounted = mounted().next().is_some();
        if !mounted && let Err(error) = fs::remove_dir_all(&self.dir) {
            forced.push(format!("directory {dir}: {error}"));
        }
        forced
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.dir.exists() {
            self.clean_up();
        }
    }
}

/// A command in the network of a process.
fn enter(pid: u32, command: &Command) -> Command {
    let mut entering = Command::new("nsenter");
    entering
        .args(["-t", &pid.to_string(), "--net"])
        .arg(command.get_program())
        .args(command.get_args());
    entering
}

/// Asks the broker of a runtime directory.
pub fn ask(runtime_dir: &Path, request: &Request) -> Result<Reply> {
    match put(runtime_dir, std::slice::from_ref(request))?.answer()? {
        Reply::Error { message, .. } => bail!("the broker: {message}"),
        reply => Ok(reply),
    }
}

fn put(runtime_dir: &Path, requests: &[Request]) -> Result<Question> {
    let socket = runtime_dir.join(ADMIN_SOCKET);
    let mut stream = UnixStream::connect(&socket)
        .with_context(|| format!("no broker answers on {}", socket.display()))?;
    stream.set_read_timeout(Some(BROKER_LIMIT))?;
    let lines = requests.iter().map(serde_json::to_string);
    let lines: Vec<String> = lines.collect::<Result<_, _>>()?;
    stream.write_all(format!("{}\n", lines.join("\n")).as_bytes())?;
    let stream = BufReader::new(stream);
    Ok(Question { stream })
}

/// What a broker was asked. Who drops it hangs up.
#[derive(Debug)]
pub struct Question {
    stream: BufReader<UnixStream>,
}

impl Question {
    /// The next answer, whatever it says.
    pub fn answer(&mut self) -> Result<Reply> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        read.context("the broker does not answer")?;
        serde_json::from_str(&line).context("the broker's answer is not understood")
    }

    /// Whether the answer has come, or the broker has gone.
    pub fn is_answered(&self) -> Result<bool> {
        let mut fds = [PollFd::new(self.stream.get_ref(), PollFlags::IN)];
        Ok(poll(&mut fds, Some(&Timespec::default()))? == 1)
    }
}

fn unexpected(reply: &Reply) -> anyhow::Error {
    anyhow!("the broker answered something else: {reply:?}")
}

/// `$FORDWAY_BIN`, or the checkout's release build, or what lies beside us, or what the package of a
/// program in PREFIX/lib/fordway has in PREFIX/bin.
pub fn find_fordway() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("FORDWAY_BIN").map(PathBuf::from) {
        let shown = path.display();
        ensure!(
            path.exists(),
            "{shown}, which FORDWAY_BIN names, is missing"
        );
        return Ok(path);
    }
    let own = std::env::current_exe()?;
    // A program lies in TARGET/PROFILE, a test in TARGET/PROFILE/deps.
    let targets = own.ancestors().skip(2).take(2);
    let built = targets.map(|target| target.join("release/fordway"));
    let prefix = own.ancestors().nth(3);
    let installed = prefix.map(|prefix| prefix.join("bin/fordway"));
    let beside = own.with_file_name("fordway");
    let mut found = built.chain([beside]).chain(installed);
    found.find(|path| path.exists()).context(
        "target/release/fordway is missing: build it (./x build) or name another one in FORDWAY_BIN",
    )
}

/// Takes a copy of a build directory's launcher, shim and parts, so that a build that goes
/// on meanwhile cannot change them under a running program. An installed launcher,
/// which has no shim beside it, is used where it is.
fn copy_build(fordway: &Path, dir: &Path) -> Result<PathBuf> {
    const SHIM: &str = "libfordway.so";
    // Those of domains with a stack, where they are built.
    const PARTS: [&str; 2] = ["fordway-stackd", "fordway-driver"];
    if !fordway.with_file_name(SHIM).is_file() {
        return Ok(fordway.to_owned());
    }
    let copy = dir.join("bin/fordway");
    let beside = [SHIM].into_iter().chain(PARTS);
    let beside = beside.map(|name| (fordway.with_file_name(name), copy.with_file_name(name)));
    let all = [(fordway.to_owned(), copy.clone())]
        .into_iter()
        .chain(beside);
    for (from, to) in all.filter(|(from, _)| from.is_file()) {
        fs::copy(&from, to).with_context(|| format!("copy {}", from.display()))?;
    }
    // Whoever has no domain with a stack of its own does without.
    for part in ["fordway-driver", "fordway-stackd", "fordway-stackd-udp"] {
        let from = fordway.with_file_name(part);
        if from.exists() {
            fs::copy(&from, copy.with_file_name(part))
                .with_context(|| format!("copy {}", from.display()))?;
        }
    }
    Ok(copy)
}

fn make_dir() -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let unique = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("fordway-lab-{}-{unique}", std::process::id()));
    fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
    for part in ["bin", "run", "work", "out"] {
        fs::create_dir(dir.join(part))?;
    }
    Ok(dir)
}
