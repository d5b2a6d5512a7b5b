//! Driver, stack and program of one domain are killed in turns, under load. How long is each missed, what is left behind, and does
//! another domain feel it?
//!
//! ```text
//!   this process ── load: one connection, anew where it broke ──► program, stack, driver: one of them is killed
//!    (in a domain ── probe: a new connection each 2 ms ─────────► the same
//!     without a   ── steady: one connection, which stays ───────► another domain with a stack of its own
//!     stack)
//! ```
//! A part is missed from its kill until the first bytes come back over a connection that was asked for after its death. Parts are started
//! again by the broker, the program by us. What ends within 50 ms of its start waits before it is started again, so the next
//! kill comes later than that.

use crate::roles::talk;
use crate::{LET_GO_LIMIT, Scale, Storm, watch};
use anyhow::{Context, Result, ensure};
use fordway_lab::{PathChoice, Place, Program, proc};
use fordway_platform::netns;
use fordwayd::admin::{Reply, Request};
use mio::net::TcpStream as Try;
use mio::{Events, Interest, Poll, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KILLED: (&str, [u8; 4]) = ("killed", [10, 77, 0, 31]);
const SPARED: (&str, [u8; 4]) = ("spared", [10, 77, 0, 32]);
const ASKS: (&str, [u8; 4]) = ("asks", [10, 77, 0, 33]);
const PORT: u16 = 7000;
const PARTS: [&str; 3] = ["driver", "stack", "program"];
/// Between two kills: longer than what is started again at once has to live.
const APART: Duration = Duration::from_millis(60);
/// Between two tries to connect, and how many are under way.
const RETRY: Duration = Duration::from_millis(2);
const TRIES_MAX: usize = 64;
const PROBE: &[u8; 4] = b"here";
/// Of the load, in one message.
const PIECE_BYTES: usize = 20_000;
/// What a process has for its rings to another one, at most.
const LINK_DESCRIPTORS: usize = 8;
/// What somebody else's client would notice.
const GAP: Duration = Duration::from_millis(100);
/// The verdict: all but one in a hundred.
const MISSED_MAX: Duration = Duration::from_millis(100);

/// What is there, for the comparison of before and after.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    /// Of the broker, and of each driver and stack.
    descriptors: Vec<usize>,
    processes: usize,
    files: Vec<PathBuf>,
}

impl Held {
    fn now(storm: &Storm) -> Result<Held> {
        let broker = storm.lab.broker_pid()?;
        let mut pids = vec![broker];
        for (name, _) in [KILLED, SPARED] {
            pids.extend(parts(storm, name, 0)?);
        }
        let mut files = Vec::new();
        list(&storm.lab.runtime_dir(), &mut files);
        files.sort();
        Ok(Held {
            descriptors: pids.into_iter().map(watch::descriptors).collect(),
            processes: proc::tree(broker).len(),
            files,
        })
    }

    /// A leak of each kill would be many: what a pair of processes shares for their rings comes when it comes.
    fn is_within(&self, before: &Held) -> bool {
        let mut both = self.descriptors.iter().zip(&before.descriptors);
        both.all(|(now, before)| *now <= before + LINK_DESCRIPTORS)
            && self.processes <= before.processes
            && self.files.iter().all(|file| before.files.contains(file))
    }
}

/// All below a directory.
fn list(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        files.push(entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&entry.path(), files);
        }
    }
}

pub fn run(storm: &mut Storm) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        println!("  not played: domains need root");
        return Ok(());
    }
    let kills = storm
        .told
        .kills
        .unwrap_or(storm.scale.pick(12, 1000))
        .max(PARTS.len() as u64) as usize;
    add_domain(storm, ASKS)?;
    storm.stands_now()?;
    let mut server = serve(storm, KILLED)?;
    server.wait_for_output("listening ")?;
    let spared = serve(storm, SPARED)?;
    spared.wait_for_output("listening ")?;
    let domains = storm.lab.domains()?;
    let of_asks = domains.iter().find(|domain| domain.name == ASKS.0);
    let path = of_asks
        .and_then(|domain| domain.netns_path.clone())
        .context("no namespace")?;
    let ns = netns::open(Path::new(&path))?.context("no namespace")?;
    let [killed_at, spared_at] = [KILLED, SPARED].map(|(_, ip)| SocketAddr::from((ip, PORT)));
    let done = AtomicBool::new(false);
    let mut missed: [Vec<Duration>; 3] = Default::default();
    let spared_parts = parts(storm, SPARED.0, 0)?;
    std::thread::scope(|scope| -> Result<()> {
        let (ns, done) = (&ns, &done);
        let end = Done(done);
        let load = scope.spawn(move || netns::within(ns.as_fd(), || load(killed_at, done))?);
        let steady = scope.spawn(move || netns::within(ns.as_fd(), || steady(spared_at, done))?);
        probe(ns, killed_at, Instant::now())?;
        let mut before = None;
        for round in 0..kills {
            if round == kills / 3 {
                before = Some(Held::now(storm)?);
            }
            let at = round % PARTS.len();
            let victim = match at {
                2 => server.pid(),
                part => parts(storm, KILLED.0, 0)?[part],
            };
            let began = Instant::now();
            kill(victim)?;
            if at == 2 {
                let next = serve(storm, KILLED)?;
                // It has ended by our hand.
                std::mem::replace(&mut server, next).finish()?;
            }
            missed[at].push(probe(ns, killed_at, began)?);
            if at != 2 {
                parts(storm, KILLED.0, victim)?;
            }
            std::thread::sleep(APART);
        }
        drop(end);
        let (pieces, connections) = load.join().expect("no panic")?;
        storm.figure(
            "load",
            format_args!(
                "{pieces} messages of {PIECE_BYTES} B echoed, over {connections} connections"
            ),
        );
        let felt = steady.join().expect("no panic")?;
        storm.figure(
            "another domain's client",
            format_args!(
                "{} round trips, the longest {:.1} ms, {} of them over {} ms",
                felt.count,
                ms(felt.longest),
                felt.gaps,
                GAP.as_millis()
            ),
        );
        let before = before.context("no kills")?;
        let mut now = Held::now(storm)?;
        let until = Instant::now() + LET_GO_LIMIT;
        while !now.is_within(&before) {
            ensure!(Instant::now() < until, "{now:?}, before {before:?}");
            std::thread::sleep(RETRY);
            now = Held::now(storm)?;
        }
        storm.figure(
            "held, before and after",
            format_args!(
                "descriptors {:?} and {:?}, processes {} and {}, files {} and {}",
                before.descriptors,
                now.descriptors,
                before.processes,
                now.processes,
                before.files.len(),
                now.files.len()
            ),
        );
        Ok(())
    })?;
    ensure!(
        parts(storm, SPARED.0, 0)? == spared_parts,
        "a part that was spared has ended"
    );
    let mut late = Vec::new();
    for (part, missed) in PARTS.iter().zip(&mut missed) {
        missed.sort();
        let of = |share: f64| {
            missed[((missed.len() as f64 * share).ceil() as usize).clamp(1, missed.len()) - 1]
        };
        storm.figure(
            &format!("{part} missed, {} times", missed.len()),
            format_args!(
                "median {:.1} ms, p99 {:.1} ms, longest {:.1} ms",
                ms(of(0.5)),
                ms(of(0.99)),
                ms(of(1.0))
            ),
        );
        if of(0.99) > MISSED_MAX {
            late.push(*part);
        }
    }
    for program in [server, spared] {
        program.stop()?;
    }
    for (name, _) in [KILLED, SPARED] {
        let name = name.to_owned();
        let gone = storm
            .lab
            .ask(&Request::DomainRemove { name, force: false })?;
        ensure!(!matches!(gone, Reply::Error { .. }), "{gone:?}");
    }
    // A short piece of it, beside other tests, says nothing about time.
    ensure!(
        storm.scale == Scale::Short || late.is_empty(),
        "missed for too long: {late:?}"
    );
    Ok(())
}

/// Set when the kills are over, however that is.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn add_domain(storm: &Storm, (name, ip): (&str, [u8; 4])) -> Result<()> {
    let made = storm.lab.ask(&Request::DomainAdd {
        name: name.to_owned(),
        ip: Some(ip.into()),
        publish: Vec::new(),
    })?;
    ensure!(!matches!(made, Reply::Error { .. }), "{name}: {made:?}");
    Ok(())
}

/// Starts an echo under a stack.
fn serve(storm: &Storm, (name, ip): (&str, [u8; 4])) -> Result<Program> {
    let role = storm.role(["echo", "0.0.0.0", &PORT.to_string()]);
    storm
        .lab
        .spawn(&Place::domain(name, ip), PathChoice::Stack, &role)
}

/// Driver and stack of a domain, once both run and neither is `dead`.
fn parts(storm: &Storm, name: &str, dead: u32) -> Result<[u32; 2]> {
    let until = Instant::now() + LET_GO_LIMIT;
    loop {
        let domains = storm.lab.domains()?.into_iter();
        let pids = domains
            .filter(|domain| domain.name == name)
            .find_map(|domain| domain.stack)
            .context("no stack")?
            .pids;
        if let [driver, stack] = pids[..] {
            let pids = [driver, stack].map(|pid| pid as u32);
            if !pids.contains(&dead) {
                return Ok(pids);
            }
        }
        ensure!(Instant::now() < until, "{name}: {pids:?} run");
        std::thread::sleep(RETRY);
    }
}

/// Returns when the process has ended.
fn kill(pid: u32) -> Result<()> {
    let pid = Pid::from_raw(pid as i32).context("no process")?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_send_signal(&process, Signal::KILL)?;
    let limit = Timespec::try_from(LET_GO_LIMIT)?;
    let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit))?;
    ensure!(ended == 1, "{pid:?} does not die");
    Ok(())
}

/// How long it took since `began` until somebody echoed over a new connection.
fn probe(ns: &OwnedFd, address: SocketAddr, began: Instant) -> Result<Duration> {
    netns::within(ns.as_fd(), || {
        let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(TRIES_MAX));
        // Those under way: whether each has asked.
        let mut tries: BTreeMap<usize, (Try, bool)> = BTreeMap::new();
        let (mut number, mut next) = (0, Instant::now());
        loop {
            let now = Instant::now();
            ensure!(now < began + LET_GO_LIMIT, "nobody answers");
            if now >= next {
                next = now + RETRY;
                if tries.len() == TRIES_MAX {
                    tries.pop_first();
                }
                if let Ok(mut stream) = Try::connect(address) {
                    let both = Interest::READABLE | Interest::WRITABLE;
                    poll.registry().register(&mut stream, Token(number), both)?;
                    tries.insert(number, (stream, false));
                    number += 1;
                }
            }
            match poll.poll(&mut events, Some(next.saturating_duration_since(now))) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                let Some((stream, asked)) = tries.get_mut(&event.token().0) else {
                    continue;
                };
                match go_on(stream, asked) {
                    Ok(true) => return Ok(began.elapsed()),
                    Ok(false) => {}
                    Err(_) => drop(tries.remove(&event.token().0)),
                }
            }
        }
    })?
}

/// Asks once there is a connection; whether the answer has come.
fn go_on(stream: &mut Try, asked: &mut bool) -> io::Result<bool> {
    if !*asked {
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        match stream.peer_addr() {
            Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
            other => other?,
        };
        stream.write_all(PROBE)?;
        *asked = true;
    }
    let mut got = [0; PROBE.len()];
    match stream.read(&mut got) {
        Ok(count) if count == got.len() && got == *PROBE => Ok(true),
        Ok(_) => Err(ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Echoes over one connection after the other; how many messages, and connections.
fn load(address: SocketAddr, done: &AtomicBool) -> Result<(u64, u64)> {
    let (mut pieces, mut connections) = (0, 0);
    while !done.load(Ordering::Acquire) {
        let Ok(mut stream) = connect(address) else {
            std::thread::sleep(RETRY);
            continue;
        };
        connections += 1;
        while !done.load(Ordering::Acquire) {
            let talked = talk(&mut stream, pieces, PIECE_BYTES);
            match talked {
                Ok(()) => pieces += 1,
                Err(error) if error.is::<io::Error>() => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok((pieces, connections))
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let limit = Duration::from_millis(500);
    let stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    Ok(stream)
}

/// What a client has felt.
#[derive(Debug, Default)]
struct Felt {
    count: u64,
    longest: Duration,
    gaps: u64,
}

/// One connection, which may not break.
fn steady(address: SocketAddr, done: &AtomicBool) -> Result<Felt> {
    let begun = Instant::now();
    let mut stream = loop {
        match connect(address) {
            // Refused at once, it would be asked as fast as it can be.
            Err(_) if begun.elapsed() < LET_GO_LIMIT => {
                std::thread::sleep(Duration::from_millis(10))
            }
            made => break made?,
        }
    };
    stream.set_read_timeout(Some(LET_GO_LIMIT))?;
    stream.set_write_timeout(Some(LET_GO_LIMIT))?;
    let mut felt = Felt::default();
    while !done.load(Ordering::Acquire) {
        let asked = Instant::now();
        talk(&mut stream, felt.count, 1000).context("another domain's connection broke")?;
        let took = asked.elapsed();
        felt.count += 1;
        felt.longest = felt.longest.max(took);
        felt.gaps += u64::from(took > GAP);
        // A client that asks now and then.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(felt)
}
