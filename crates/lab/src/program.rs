//! A program that the lab has started: a tree of processes, from `fordway run`
//! at its root down to the last worker.
//!
//! States: running → ended (a zombie: its times can still be read) → reaped.
//! `finish` waits for the end, `stop` asks for it (SIGTERM to the root, then to
//! what is left, then SIGKILL); both give one [`Output`]. Dropping a running
//! program kills its tree. Output goes to files of the lab, not to pipes, so
//! that a descendant that outlives the program can block nobody.
//!
//! Waiting is done on a pidfd, in slices that end when the user interrupts.
//! Every wait has a bound: a program that hangs is killed and reported as hanging.

use crate::{interrupt, proc};
use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a wait sleeps before it looks at the interrupt flag and its own condition again.
const SLICE: Duration = Duration::from_millis(10);
/// How long `stop` waits after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(5);
/// How long a tree may take to vanish after SIGKILL.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// How long a server may take until it listens.
const LISTEN_LIMIT: Duration = Duration::from_secs(30);

/// Roots of the programs that run: our children, not reaped yet.
static ROOTS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Roots of all programs that run, brokers included.
pub(crate) fn roots() -> BTreeSet<u32> {
    ROOTS.lock().expect("no holder panics").clone()
}

/// What a program reads.
#[derive(Clone, Debug, Default)]
pub enum Stdin {
    /// Nothing.
    #[default]
    Null,
    /// These bytes, then end of file.
    Bytes(Vec<u8>),
    /// A file.
    File(PathBuf),
    /// A socket of the caller's, as inetd(8) passes one.
    Socket(Arc<OwnedFd>),
    /// What the caller writes to [`Program::take_stdin`].
    Pipe,
}

/// Where a program's standard output goes.
#[derive(Clone, Debug, Default)]
pub enum Stdout {
    /// To [`Output::stdout`].
    #[default]
    Capture,
    /// To a file; `Output::stdout` stays empty.
    File(PathBuf),
    /// Nowhere.
    Null,
}

/// A program to start.
#[derive(Clone, Debug)]
pub struct Spawn {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// CPUs it may run on, as taskset(1) lists them (`0`, `0-1`).
    pub cpu: Option<String>,
    /// Set in addition to our own environment.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub dir: Option<PathBuf>,
    /// What it reads.
    pub stdin: Stdin,
    /// Where its output goes.
    pub stdout: Stdout,
    /// How long `finish` waits for it before it counts as hanging.
    pub time_limit: Duration,
}

impl Spawn {
    /// A program with nothing to read, its output captured, and one minute to finish.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Spawn {
        Spawn {
            argv: argv.into_iter().map(Into::into).collect(),
            cpu: None,
            env: Vec::new(),
            dir: None,
            stdin: Stdin::Null,
            stdout: Stdout::Capture,
            time_limit: Duration::from_secs(60),
        }
    }

    /// A command line that is split at blanks (nothing is quoted or expanded).
    pub fn line(command: &str) -> Spawn {
        Spawn::new(command.split_whitespace())
    }

    /// With one more argument.
    pub fn argument(mut self, argument: &str) -> Spawn {
        self.argv.push(argument.to_owned());
        self
    }

    /// On these CPUs.
    pub fn cpu(mut self, list: &str) -> Spawn {
        self.cpu = Some(list.to_owned());
        self
    }

    /// With this variable.
    pub fn env(mut self, name: &str, value: &str) -> Spawn {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// In this directory.
    pub fn dir(mut self, path: &Path) -> Spawn {
        self.dir = Some(path.to_owned());
        self
    }

    /// Reading this.
    pub fn stdin(mut self, stdin: Stdin) -> Spawn {
        self.stdin = stdin;
        self
    }

    /// Writing there.
    pub fn stdout(mut self, stdout: Stdout) -> Spawn {
        self.stdout = stdout;
        self
    }

    /// With this long to finish.
    pub fn time_limit(mut self, limit: Duration) -> Spawn {
        self.time_limit = limit;
        self
    }
}

/// What a program left behind.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote (empty unless captured).
    pub stdout: Vec<u8>,
    /// What it wrote to standard error, the launcher's own lines included.
    pub stderr: Vec<u8>,
    /// User and system time of its whole tree.
    pub cpu_s: f64,
    /// From its start to its end.
    pub wall_s: f64,
    name: String,
}

impl Output {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// An error, with the end of what it wrote, unless it ended with status 0.
    pub fn ok(self) -> Result<Output> {
        if self.status.success() {
            return Ok(self);
        }
        bail!(
            "{} ended with {}{}",
            self.name,
            self.status,
            ending(&self.stdout, &self.stderr)
        )
    }
}

/// A running program.
#[derive(Debug)]
pub struct Program {
    child: Child,
    pidfd: OwnedFd,
    name: String,
    stdout: Option<PathBuf>,
    stderr: PathBuf,
    started: Instant,
    time_limit: Duration,
}

impl Program {
    /// Starts a command as the root of a tree; `files` is the start of the names of its output files.
    pub(crate) fn start(mut command: Command, spawn: &Spawn, files: &Path) -> Result<Program> {
        use std::os::unix::process::CommandExt;
        let name = spawn
            .argv
            .first()
            .cloned()
            .context("nothing to start: the command line is empty")?;
        let stderr = files.with_extension("stderr");
        let captured = files.with_extension("stdout");
        let stdin = match &spawn.stdin {
            Stdin::Null => Stdio::null(),
            Stdin::Pipe => Stdio::piped(),
            Stdin::Socket(socket) => socket.try_clone()?.into(),
            Stdin::File(path) => File::open(path)
                .with_context(|| path.display().to_string())?
                .into(),
            Stdin::Bytes(bytes) => {
                let path = files.with_extension("stdin");
                fs::write(&path, bytes)?;
                File::open(&path)?.into()
            }
        };
        let stdout = match &spawn.stdout {
            Stdout::Null => Stdio::null(),
            Stdout::Capture => File::create(&captured)?.into(),
            Stdout::File(path) => File::create(path)
                .with_context(|| path.display().to_string())?
                .into(),
        };
        command
            .envs(spawn.env.iter().map(|(name, value)| (name, value)))
            .stdin(stdin)
            .stdout(stdout)
            .stderr(File::create(&stderr)?)
            .process_group(0);
        if let Some(dir) = &spawn.dir {
            command.current_dir(dir);
        }
        let started = Instant::now();
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        ROOTS.lock().expect("no holder panics").insert(child.id());
        let pidfd = rustix::process::pidfd_open(pid_of(&child), PidfdFlags::empty())?;
        Ok(Program {
            child,
            pidfd,
            name,
            stdout: matches!(spawn.stdout, Stdout::Capture).then_some(captured),
            stderr,
            started,
            time_limit: spawn.time_limit,
        })
    }

    /// The root of its tree.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its processes without the launcher's: those whose name (first 15 bytes) is
    /// the program's own.
    pub fn pids(&self) -> Vec<u32> {
        let name = Path::new(&self.name)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let short: String = name.chars().take(15).collect();
        proc::tree(self.pid())
            .into_iter()
            .filter(|process| process.name == short && process.state != 'Z')
            .map(|process| process.pid)
            .collect()
    }

    /// The writing end of its standard input, if it was started with [`Stdin::Pipe`].
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Gives the writing end back: it stays open as long as the program is held.
    pub fn hold_stdin(&mut self, stdin: ChildStdin) {
        self.child.stdin = Some(stdin);
    }

    /// Whether it has not ended yet.
    pub fn is_running(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    /// Whether it ends within this time (or has ended).
    pub fn ends_within(&self, limit: Duration) -> bool {
        self.wait_end(limit).unwrap_or(true)
    }

    /// What it has written so far.
    pub fn stdout_so_far(&self) -> String {
        let bytes = self
            .stdout
            .as_ref()
            .and_then(|path| fs::read(path).ok())
            .unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What it has written to standard error so far.
    pub fn stderr_so_far(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).unwrap_or_default()).into_owned()
    }

    /// User and system time of its tree so far, in seconds.
    pub fn cpu_s(&self) -> f64 {
        proc::tree_cpu_s(self.pid())
    }

    /// Returns when one of its processes listens on the port (any namespace, any address).
    pub fn wait_for_port(&self, port: u16) -> Result<()> {
        self.wait_until(LISTEN_LIMIT, &format!("listens on TCP port {port}"), || {
            proc::tree(self.pid())
                .iter()
                .any(|process| proc::listens(process.pid, port))
        })
    }

    /// Returns when one of its processes has a UDP socket at the port (any namespace, any address).
    pub fn wait_for_datagram_port(&self, port: u16) -> Result<()> {
        self.wait_until(LISTEN_LIMIT, &format!("has UDP port {port}"), || {
            proc::tree(self.pid())
                .iter()
                .any(|process| proc::is_bound(process.pid, port))
        })
    }

    /// Returns when its standard output contains the text.
    pub fn wait_for_output(&self, text: &str) -> Result<()> {
        self.wait_until(LISTEN_LIMIT, &format!("writes {text:?}"), || {
            self.stdout_so_far().contains(text) || self.stderr_so_far().contains(text)
        })
    }

    /// Returns when a condition holds; an error if the program ends or time runs out before.
    pub fn wait_until(
        &self,
        limit: Duration,
        what: &str,
        mut holds: impl FnMut() -> bool,
    ) -> Result<()> {
        let until = Instant::now() + limit;
        loop {
            if holds() {
                return Ok(());
            }
            if self.wait_end(SLICE)? {
                bail!("{} ended before it {what}{}", self.name, self.ending());
            }
            interrupt::check()?;
            if Instant::now() > until {
                bail!(
                    "{} does not come to the point where it {what}{}",
                    self.name,
                    self.ending()
                );
            }
        }
    }

    /// Waits for its end, at most [`Spawn::time_limit`].
    pub fn finish(mut self) -> Result<Output> {
        let until = Instant::now() + self.time_limit;
        while !self.wait_end(SLICE)? {
            let hangs = Instant::now() > until;
            if hangs || interrupt::seen() {
                self.kill_tree();
                interrupt::check()?;
                bail!(
                    "{} hangs: not finished after {:?}{}",
                    self.name,
                    self.time_limit,
                    self.ending()
                );
            }
        }
        self.reap()
    }

    /// Ends it: SIGTERM, and SIGKILL for whatever does not go.
    pub fn stop(self) -> Result<Output> {
        self.stop_with(Signal::TERM)
    }

    /// Ends it with a signal of the caller's choice (sent to the root), then as `stop`.
    pub fn stop_with(mut self, signal: Signal) -> Result<Output> {
        let tree = proc::tree(self.pid());
        if let Some(root) = tree.first() {
            proc::signal(root, signal);
        }
        if !self.wait_end(TERM_GRACE)? {
            for process in proc::tree(self.pid()) {
                proc::signal(&process, Signal::TERM);
            }
            self.wait_end(TERM_GRACE)?;
        }
        // Also those whose parent went first and who are no longer in the tree.
        for process in &tree[1.min(tree.len())..] {
            proc::signal(process, Signal::KILL);
        }
        self.kill_tree();
        self.reap()
    }

    /// Sends a signal to each of the program's own processes (not to the launcher).
    pub fn signal(&self, signal: Signal) {
        for process in self.pids().into_iter().filter_map(proc::stat) {
            proc::signal(&process, signal);
        }
    }

    /// Whether the root has ended, waiting for at most `limit`. It is not reaped yet.
    fn wait_end(&self, limit: Duration) -> Result<bool> {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(rustix::io::Errno::INTR) if !interrupt::seen() => {}
                Err(rustix::io::Errno::INTR) => return Ok(false),
                Err(error) => return Err(anyhow!(error).context("wait for a program")),
            }
        }
    }

    /// SIGKILL to the whole tree until only the root's zombie is left.
    fn kill_tree(&self) {
        let until = Instant::now() + KILL_GRACE;
        // Once their parent is dead, descendants are ours and no longer in the tree.
        let mut members: BTreeMap<u32, proc::Stat> = BTreeMap::new();
        loop {
            members.extend(
                proc::tree(self.pid())
                    .into_iter()
                    .map(|process| (process.pid, process)),
            );
            let alive: Vec<_> = members
                .values()
                .filter(|process| proc::is_alive(process))
                .collect();
            if alive.is_empty() || Instant::now() > until {
                break;
            }
            alive
                .iter()
                .for_each(|process| proc::signal(process, Signal::KILL));
            std::thread::sleep(Duration::from_millis(1));
        }
        members.remove(&self.pid());
        reap_orphans(members.keys());
    }

    /// Takes the zombie's times, reaps it and reads what it wrote.
    fn reap(&mut self) -> Result<Output> {
        let wall_s = self.started.elapsed().as_secs_f64();
        // Synchronises with the end: the times of a zombie are final.
        let _ = rustix::process::waitid(
            WaitId::Pid(pid_of(&self.child)),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        );
        let cpu_s = self.cpu_s();
        let status = self.child.wait()?;
        let stdout = match &self.stdout {
            Some(path) => fs::read(path).with_context(|| path.display().to_string())?,
            None => Vec::new(),
        };
        let stderr = fs::read(&self.stderr).unwrap_or_default();
        Ok(Output {
            status,
            stdout,
            stderr,
            cpu_s,
            wall_s,
            name: self.name.clone(),
        })
    }

    fn ending(&self) -> String {
        ending(
            self.stdout_so_far().as_bytes(),
            self.stderr_so_far().as_bytes(),
        )
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill_tree();
            let _ = self.child.wait();
        }
        ROOTS.lock().expect("no holder panics").remove(&self.pid());
    }
}

/// Reaps those of these dead processes that came to us when their parent died.
pub(crate) fn reap_orphans<'a>(pids: impl IntoIterator<Item = &'a u32>) {
    let me = std::process::id();
    for &pid in pids {
        let ours = proc::stat(pid).is_some_and(|process| process.parent == me);
        if let (true, Some(pid)) = (ours, Pid::from_raw(pid as i32)) {
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// The last lines that a program wrote, for an error message.
fn ending(stdout: &[u8], stderr: &[u8]) -> String {
    let text = if stderr.iter().all(u8::is_ascii_whitespace) {
        stdout
    } else {
        stderr
    };
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.trim().lines().collect();
    match lines[lines.len().saturating_sub(8)..].join("\n") {
        last if last.is_empty() => String::new(),
        last => format!("; it wrote at last: {last}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(spawn: &Spawn) -> Program {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let files =
            std::env::temp_dir().join(format!("fordway-program-{}-{unique}.x", std::process::id()));
        let mut command = Command::new(&spawn.argv[0]);
        command.args(&spawn.argv[1..]);
        let program = Program::start(command, spawn, &files).unwrap();
        for end in ["stdin", "stdout", "stderr"] {
            // Open descriptors outlive the names, but `reap` reads by name.
            if end == "stdin" {
                let _ = fs::remove_file(files.with_extension(end));
            }
        }
        program
    }

    fn forget_files(program: &Program) -> [PathBuf; 2] {
        [
            program.stderr.clone(),
            program.stderr.with_extension("stdout"),
        ]
    }

    #[test]
    fn gives_status_output_and_errors() {
        let program = start(
            &Spawn::new(["sh", "-c", "cat; echo oops >&2; exit 3"])
                .stdin(Stdin::Bytes(b"hi".into())),
        );
        let files = forget_files(&program);
        let output = program.finish().unwrap();
        assert_eq!(
            (output.text().as_str(), output.status.code()),
            ("hi", Some(3))
        );
        assert!(output.ok().unwrap_err().to_string().contains("oops"));
        files.iter().for_each(|file| fs::remove_file(file).unwrap());
    }

    #[test]
    fn stops_a_tree_that_ignores_sigterm() {
        let program = start(&Spawn::new([
            "sh",
            "-c",
            "trap '' TERM; sleep 1000 & echo up; exec sleep 1000",
        ]));
        let files = forget_files(&program);
        program.wait_for_output("up").unwrap();
        let tree = proc::tree(program.pid());
        assert_eq!(tree.len(), 2);
        drop(program);
        for process in tree {
            assert!(!proc::is_alive(&process), "{process:?} is left");
        }
        files.iter().for_each(|file| fs::remove_file(file).unwrap());
    }

    #[test]
    fn a_hanging_program_is_an_error() {
        let program = start(&Spawn::new(["sleep", "1000"]).time_limit(Duration::from_millis(50)));
        let files = forget_files(&program);
        assert!(program.finish().unwrap_err().to_string().contains("hangs"));
        files.iter().for_each(|file| fs::remove_file(file).unwrap());
    }
}
