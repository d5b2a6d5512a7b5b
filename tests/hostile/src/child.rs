//! Mallory in a process of its own, which ends, execs, or takes over the number of another.
//!
//! The child is the test binary again: a test file that uses [`start`] has a test `child`
//! that calls [`run`], which does nothing unless it was started so. It writes one line at
//! each step, one for each connection that it makes ([`Bed::made`] counts them), and goes on
//! when it is sent one.

use crate::Bed;
use crate::mallory::Mallory;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long it writes, if nothing ends it before.
const WRITING: Duration = Duration::from_secs(10);

const ROLE: &str = "FORDWAY_HOSTILE_ROLE";
const DIR: &str = "FORDWAY_HOSTILE_DIR";
const VICTIM: &str = "FORDWAY_HOSTILE_VICTIM";
/// Its line for a connection that it is about to make.
const CONNECTS: &str = "connects";

/// How often a certain process number is tried for.
const ATTEMPTS_MAX: u32 = 50;

/// What it does when it has a channel with the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Writes without end, and is replaced by another program meanwhile.
    Exec,
    /// Leaves its connections to a child, and ends.
    Bequeath,
    /// Sends bytes around until it is told to end.
    Echo,
}

const ROLES: [(Role, &str); 3] = [
    (Role::Exec, "exec"),
    (Role::Bequeath, "bequeath"),
    (Role::Echo, "echo"),
];

/// A child at work.
#[derive(Debug)]
pub struct Child<'bed> {
    bed: &'bed Bed,
    process: std::process::Child,
    lines: BufReader<std::process::ChildStdout>,
}

/// Starts one, in mallory's namespace.
pub fn start(bed: &Bed, role: Role) -> Result<Child<'_>> {
    let mut child = start_after(bed, role, || Ok(()))?;
    child.go_on()?;
    Ok(child)
}

/// Starts one that has this process number, which is free: the kernel gives the next one
/// after the last that it gave in this PID namespace (proc(5), ns_last_pid).
pub fn start_as(bed: &Bed, role: Role, pid: u32) -> Result<Child<'_>> {
    for _ in 0..ATTEMPTS_MAX {
        let last = (pid - 1).to_string();
        let mut child = start_after(bed, role, || {
            std::fs::write("/proc/sys/kernel/ns_last_pid", &last)
        })?;
        if child.pid() == pid {
            child.go_on()?;
            return Ok(child);
        }
        // Somebody else started something. This one has not begun.
        child.end()?;
    }
    bail!("process number {pid} is not to be had")
}

fn start_after(
    bed: &Bed,
    role: Role,
    before: impl FnOnce() -> std::io::Result<()> + Send,
) -> Result<Child<'_>> {
    let word = ROLES.iter().find(|(own, _)| *own == role);
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(ROLE, word.map_or("", |(_, word)| *word))
        .env(DIR, bed.lab.runtime_dir())
        .env(VICTIM, bed.victim.name.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut process = bed.at_home(|| before().and_then(|()| command.spawn()))??;
    let lines = BufReader::new(process.stdout.take().context("no stdout")?);
    Ok(Child {
        bed,
        process,
        lines,
    })
}

impl Child<'_> {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until it says this; gives what follows on the line.
    pub fn says(&mut self, word: &str) -> Result<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line)? == 0 {
                bail!("the child ended before it said {word:?}");
            }
            let line = line.trim_end();
            if line == CONNECTS {
                self.bed.made.fetch_add(1, Ordering::Relaxed);
            }
            if let Some((_, rest)) = line.split_once(word) {
                return Ok(rest.trim().to_owned());
            }
        }
    }

    /// Lets it take its next step.
    pub fn go_on(&mut self) -> Result<()> {
        let stdin = self.process.stdin.as_mut().context("no stdin")?;
        Ok(writeln!(stdin)?)
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Result<()> {
        self.process.wait()?;
        Ok(())
    }

    /// Ends it, if it has not ended, and reaps it.
    pub fn end(mut self) -> Result<()> {
        let _ = self.process.kill();
        self.process.wait()?;
        Ok(())
    }
}

/// The body of the test `child`.
pub fn run() -> Result<()> {
    let Ok(word) = std::env::var(ROLE) else {
        return Ok(());
    };
    let role = ROLES.iter().find(|(_, own)| *own == word);
    let (role, _) = role.context("an unknown role")?;
    let dir = PathBuf::from(std::env::var(DIR)?);
    let victim: SocketAddr = std::env::var(VICTIM)?.parse()?;
    wait_for_word()?;
    println!("\nstarted");
    let mut mallory = Mallory::join_by(&dir, || {
        println!("\n{CONNECTS}");
        Ok(TcpStream::connect(victim)?)
    })?;
    println!("\njoined {}", mallory.pair.channel_id);
    match role {
        Role::Exec => exec(mallory),
        Role::Bequeath => bequeath(mallory),
        Role::Echo => {
            mallory.echo(100)?;
            println!("\nechoed");
            wait_for_word()?;
            mallory.echo(100)?;
            println!("\nechoed again");
            wait_for_word()
        }
    }
}

fn wait_for_word() -> Result<()> {
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Another thread writes, to ring and kernel, when the image is replaced.
fn exec(mut mallory: Mallory) -> Result<()> {
    std::thread::spawn(move || {
        let end = Instant::now() + WRITING;
        while Instant::now() < end {
            mallory.put(1000);
            mallory.provoke();
        }
    });
    // Let it write a while: a thread that has begun says nothing.
    std::thread::yield_now();
    Err(Command::new("true").exec().into())
}

/// The heir keeps the control connection and the socket, and does nothing with them.
fn bequeath(mallory: Mallory) -> Result<()> {
    let shim = rustix::io::dup(&mallory.shim.socket)?;
    let socket = rustix::io::dup(&mallory.socket)?;
    let heir = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    println!("\nheir {}", heir.id());
    wait_for_word()?;
    drop((shim, socket));
    // Without a word to anybody.
    std::process::exit(0)
}
