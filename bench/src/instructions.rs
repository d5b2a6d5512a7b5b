//! `fordway-bench instructions`: how many instructions the library carries out for a small write, a small
//! read and a wait on the fast path, and in which of its functions.
//!
//! A plain program ([`Stepped`], this very file) has both ends of a connection: it writes 64 B to the
//! one and reads them from the other, so that nothing is ever waited for. Once the connection has rings,
//! each instruction of it is carried out by itself ([`fordway_platform::trace`]), and those whose
//! address lies in the library are counted. Counting does not depend on the machine, but on the build:
//! two builds compare by one number each, without a quiet machine. What it does not count: instructions
//! of the kernel and of the program.
//!
//! | work | what the reader does |
//! |---|---|
//! | read | reads; one that spins for its bytes does the same, after it has spun |
//! | epoll | epoll_wait, then reads |
//! | datagrams | recvfrom, of what sendto has sent by UDP |

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use fordway_lab::{Lab, PathChoice, Place, Spawn};
use fordway_platform::elf::{self, Function};
use fordway_platform::trace::{self, RDTSC};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const MESSAGE_BYTES: usize = 64;
/// Calls of each kind that are counted.
const CALLS: u64 = 200;
/// Before them: what is cold once.
const CALLS_SKIPPED: u64 = 20;
/// Bytes by rings before any of it.
const WARM_RING_BYTES: u64 = 1 << 20;
const WARM_UP_LIMIT: Duration = Duration::from_secs(20);
/// Instructions between two calls of the library's are fewer.
const STRAY_STEPS_MAX: u64 = 1_000_000;
/// Functions below this share of a call's instructions are counted as one row.
const SHOWN_MIN: f64 = 0.01;
/// What the library calls outside of itself, __tls_get_addr(3) say, and what of it has no name.
const ELSEWHERE: &str = "elsewhere";
const LIBRARY: &str = "libfordway.so";

/// What the reader does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Waits {
    /// It reads.
    Read,
    /// It waits by epoll, and reads.
    Epoll,
    /// It receives datagrams.
    Datagrams,
}

/// `fordway-bench stepped`: the program that is counted.
#[derive(Clone, Debug, Args)]
pub struct SteppedArgs {
    waits: Waits,
}

/// Writes to itself and reads, until it is ended.
pub fn stepped(args: &SteppedArgs) -> Result<()> {
    if args.waits == Waits::Datagrams {
        return stepped_datagrams();
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    far.set_nonblocking(args.waits == Waits::Epoll)?;
    // read(2) and write(2), as programs do, not std's recv and send.
    let [mut near, mut far] = [near, far].map(|end| File::from(OwnedFd::from(end)));
    let mut poll = mio::Poll::new()?;
    let mut events = mio::Events::with_capacity(8);
    if args.waits == Waits::Epoll {
        let fd = far.as_raw_fd();
        let mut source = mio::unix::SourceFd(&fd);
        let readable = mio::Interest::READABLE;
        poll.registry()
            .register(&mut source, mio::Token(0), readable)?;
    }
    let mut message = [7; MESSAGE_BYTES];
    loop {
        near.write_all(&message)?;
        if args.waits == Waits::Epoll {
            poll.poll(&mut events, None)?;
        }
        far.read_exact(&mut message)?;
    }
}

/// The same, there and back: a flow's ends answer each other.
fn stepped_datagrams() -> Result<()> {
    let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let (near, far) = (bind()?, bind()?);
    let mut message = [7; MESSAGE_BYTES];
    loop {
        near.send_to(&message, far.local_addr()?)?;
        let (_, from) = far.recv_from(&mut message)?;
        far.send_to(&message, from)?;
        near.recv_from(&mut message)?;
    }
}

/// Instructions by the functions' places in the list; none: the dynamic linker's, and what has no name.
type Steps = BTreeMap<Option<usize>, u64>;

/// A call of the library by the program, which lasts.
struct Call {
    name: String,
    /// Where it has its way back.
    stack: u64,
    steps: Steps,
}

/// Instructions of the calls of one kind.
#[derive(Default)]
struct Counted {
    calls: u64,
    steps: Steps,
}

impl Counted {
    fn add(&mut self, call: Steps) {
        self.calls += 1;
        for (at, steps) in call {
            *self.steps.entry(at).or_default() += steps;
        }
    }

    fn total(&self) -> u64 {
        self.steps.values().sum()
    }
}

/// Prints the tables.
pub fn run() -> Result<()> {
    let lab = Lab::start()?;
    let library = lab.fordway().with_file_name(LIBRARY);
    let code = Code::read(&library)?;
    for waits in [Waits::Read, Waits::Epoll, Waits::Datagrams] {
        let counted = count(&lab, &code, waits)?;
        let what = match waits {
            Waits::Read => "write, then read (as one that spins)",
            Waits::Epoll => "write, then epoll_wait and read",
            Waits::Datagrams => "sendto, then recvfrom (UDP)",
        };
        println!("{what}: instructions of {LIBRARY} for each call of {MESSAGE_BYTES} B");
        for (name, counted) in &counted {
            print(name, counted, &code);
        }
    }
    let left = lab.close();
    ensure!(left.is_empty(), "left behind: {}", left.join(", "));
    Ok(())
}

fn print(name: &str, counted: &Counted, code: &Code) {
    let per_call = |steps: u64| steps as f64 / counted.calls as f64;
    let total = counted.total();
    println!("  {:<58} {:>8.1}", plain(name), per_call(total));
    let mut steps: Vec<(Option<usize>, u64)> =
        counted.steps.iter().map(|(&at, &n)| (at, n)).collect();
    steps.sort_by_key(|&(_, steps)| std::cmp::Reverse(steps));
    let (shown, rest): (Vec<_>, Vec<_>) = steps
        .into_iter()
        .partition(|&(_, steps)| steps as f64 >= SHOWN_MIN * total as f64);
    for (at, steps) in shown {
        let name = at.map(|at| plain(&code.functions[at].name));
        let name = name.unwrap_or(ELSEWHERE.to_owned());
        println!("    {name:<56} {:>8.1}", per_call(steps));
    }
    if !rest.is_empty() {
        let steps = rest.iter().map(|&(_, steps)| steps).sum();
        println!("    {:<56} {:>8.1}", "others", per_call(steps));
    }
}

/// Calls of the library's functions, by name.
fn count(lab: &Lab, code: &Code, waits: Waits) -> Result<BTreeMap<String, Counted>> {
    let own = std::env::current_exe()?.to_string_lossy().into_owned();
    let word = match waits {
        Waits::Read => "read",
        Waits::Epoll => "epoll",
        Waits::Datagrams => "datagrams",
    };
    let spawn = Spawn::new([own.as_str(), "stepped", word]);
    let program = lab.spawn(&Place::Here, PathChoice::Auto, &spawn)?;
    let before = lab.ring_bytes()?;
    lab.wait_until(WARM_UP_LIMIT, "the connection has rings", || {
        Ok(lab.ring_bytes()? >= before + WARM_RING_BYTES)
    })?;
    let base = base_of(program.pid())?;
    let process = trace::Stepped::attach(program.pid())?;
    let clocks = code.clocks(program.pid(), base)?;
    // The clock of this processor, as far as it has come, and an instruction a tick from now on.
    let mut ticks = trace::ticks();
    let mut counted: BTreeMap<String, Counted> = BTreeMap::new();
    let mut skipped: BTreeMap<String, u64> = BTreeMap::new();
    let mut call: Option<Call> = None;
    let mut strayed = 0;
    loop {
        let (address, stack) = process.place()?;
        ticks += 1;
        // A return takes its address from the stack.
        if let Some(over) = call.take_if(|call| stack > call.stack) {
            let skipped = skipped.entry(over.name.clone()).or_default();
            *skipped += 1;
            if *skipped > CALLS_SKIPPED {
                let counted = counted.entry(over.name).or_default();
                counted.add(over.steps);
                if counted.calls == CALLS {
                    break;
                }
            }
        }
        let at = code.function_at(address.wrapping_sub(base));
        if let (None, Some(at)) = (&call, at)
            // In the midst of a function: of a call that had begun before.
            && code.functions[at].addresses.start == address - base
        {
            call = Some(Call {
                name: code.functions[at].name.clone(),
                stack,
                steps: BTreeMap::new(),
            });
        }
        match &mut call {
            Some(call) => {
                *call.steps.entry(at).or_default() += 1;
                strayed = 0;
            }
            None => {
                strayed += 1;
                ensure!(strayed < STRAY_STEPS_MAX, "the library is not called");
            }
        }
        if clocks.contains(&address) {
            process.tell_time(ticks)?;
        } else {
            process.step()?;
        }
    }
    Ok(counted)
}

/// Where the library is mapped (proc_pid_maps(5)).
fn base_of(pid: u32) -> Result<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let first = maps.lines().find(|line| line.ends_with(LIBRARY));
    let Some((start, _)) = first.and_then(|line| line.split_once('-')) else {
        bail!("process {pid} does not have {LIBRARY}");
    };
    Ok(u64::from_str_radix(start, 16)?)
}

/// The library's code.
struct Code {
    functions: Vec<Function>,
}

impl Code {
    fn read(library: &Path) -> Result<Self> {
        let functions = elf::functions(library);
        let functions = functions.with_context(|| library.display().to_string())?;
        ensure!(!functions.is_empty(), "{} is stripped", library.display());
        Ok(Self { functions })
    }

    /// Which function an instruction belongs to.
    fn function_at(&self, offset: u64) -> Option<usize> {
        let behind = self
            .functions
            .partition_point(|one| one.addresses.start <= offset);
        let at = behind.checked_sub(1)?;
        // Of some in assembler no size is known; they end where the next one begins.
        let Function { addresses, .. } = &self.functions[at];
        let next = self
            .functions
            .get(behind)
            .map_or(addresses.start, |next| next.addresses.start);
        let end = if addresses.is_empty() {
            next
        } else {
            addresses.end
        };
        (offset < end).then_some(at)
    }

    /// Where the clock is asked, of a process that has the library at `base`.
    fn clocks(&self, pid: u32, base: u64) -> Result<BTreeSet<u64>> {
        let starts = self.functions.iter().map(|one| one.addresses.start);
        let start = starts.min().unwrap_or(0);
        let end = self.functions.iter().map(|one| one.addresses.end).max();
        let mut bytes = vec![0; (end.unwrap_or(start) - start) as usize];
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        memory.read_exact_at(&mut bytes, base + start)?;
        let windows = bytes.windows(RDTSC.len()).enumerate();
        let clocks = windows.filter(|(_, window)| *window == RDTSC);
        Ok(clocks.map(|(at, _)| base + start + at as u64).collect())
    }
}

/// A name of Rust's as people write it: of `_ZN7fordway5epoll4waitE`, each part behind its length.
pub(crate) fn plain(name: &str) -> String {
    let Some(mut rest) = name.strip_prefix("_ZN") else {
        return name.to_owned();
    };
    let mut parts = Vec::new();
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let Some(part) = rest[..digits]
            .parse()
            .ok()
            .and_then(|length: usize| rest.get(digits..digits + length))
        else {
            break;
        };
        rest = &rest[digits + part.len()..];
        parts.push(part);
    }
    // The last one tells functions of one name apart.
    parts.pop();
    let name = parts.join("::").replace("..", "::");
    [("$LT$", "<"), ("$GT$", ">"), ("$u20$", " "), ("_<", "<")]
        .iter()
        .fold(name, |name, (from, to)| name.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_as_they_are_written() {
        let name = "_ZN7fordway5epoll7waiting6report17h2bec9513f7bfb572E.llvm.68";
        assert_eq!(plain(name), "fordway::epoll::waiting::report");
        assert_eq!(plain("memcpy"), "memcpy");
    }
}
