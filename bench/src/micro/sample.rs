//! One sample of one contender: two plain programs talk for a while.
//!
//! ```text
//!   fordway run ... -- fordway-bench end serve ...      on the server's CPU
//!   fordway run ... -- fordway-bench end drive ...      on the client's CPU ──► one line of JSON
//! ```
//! The distance of the CPUs is probed before and after; a sample during which it
//! changed has no regime and is thrown away by the caller.

use super::end::{self, Figures, Talk, Times};
use super::job::{self, Ends, Job, Transport};
use super::measure::own_cpu_s;
use super::wire::Wire;
use crate::distance::{self, Regime};
use crate::placement::{self, CLIENT_CPU, Placement, SERVER_CPU, client_place, server_place};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use fordway_lab::{Lab, PathChoice, Place, Program, Spawn, packages};
use fordway_platform::sockmap;
use std::fs;
use std::hint::black_box;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Debian's own; the name alone may be a launcher of versions.
const PYTHON: &str = "/usr/bin/python3";
/// Beyond this, a packet socket refuses a message (net.core.wmem_default), unless root makes its buffer larger.
const PACKET_BYTES_MAX: usize = 128 << 10;
/// A driver that takes this much longer than it was asked to is hanging.
const SLACK: Duration = Duration::from_secs(60);

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Contender {
    /// Two programs in two domains, over rings.
    Fast,
    /// The bare ring between two threads: no sockets, no sleeping, one process.
    Ring,
    /// TCP over loopback.
    KernelLoopback,
    /// The same with nonblocking sockets: both ends ask again until there is something. (A
    /// socket that polls its device, SO_BUSY_POLL, does nothing here: loopback has no queue to poll.)
    KernelPolling,
    /// TCP between two network namespaces over veth and a bridge.
    KernelBridge,
    /// TCP over loopback, its bytes moved from socket to socket by a BPF program.
    Sockmap,
    /// UNIX stream sockets.
    Unix,
    /// UNIX packet sockets.
    Seqpacket,
    /// Two FIFOs.
    Pipe,
    /// iceoryx2's publish-subscribe; both ends poll.
    Iceoryx2,
    /// memcpy of messages, by one thread, into memory as large as the largest ring: the limit of the curve.
    Memcpy,
    /// The fast path without the crowd or the other pairs that the job is about.
    Alone,
}

impl Contender {
    /// Those that are measured in all placements.
    pub const FEW: [Contender; 5] = [
        Contender::Fast,
        Contender::KernelLoopback,
        Contender::KernelPolling,
        Contender::Unix,
        Contender::Alone,
    ];

    /// Those of datagrams: UDP between domains with the library, UDP by the kernel, SOCK_DGRAM of AF_UNIX.
    pub const OF_DATAGRAMS: [Contender; 4] = [
        Contender::Fast,
        Contender::KernelLoopback,
        Contender::KernelBridge,
        Contender::Unix,
    ];

    /// Those of datagrams whose programs know UDP only.
    pub const OF_UDP: [Contender; 3] = [
        Contender::Fast,
        Contender::KernelLoopback,
        Contender::KernelBridge,
    ];

    /// Those of the published curve.
    pub const OF_CURVE: [Contender; 5] = [
        Contender::Fast,
        Contender::KernelLoopback,
        Contender::Unix,
        Contender::Seqpacket,
        Contender::Memcpy,
    ];

    /// Those of messages that are lent.
    pub const OF_LOANS: [Contender; 3] = [Contender::Fast, Contender::Iceoryx2, Contender::Unix];

    /// Those of connections by the native API.
    pub const OF_CONNECTS: [Contender; 3] =
        [Contender::Fast, Contender::Unix, Contender::KernelBridge];

    /// As rows and tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Fast => "fast",
            Contender::Ring => "ring",
            Contender::KernelLoopback => "kernel-loopback",
            Contender::KernelPolling => "kernel-polling",
            Contender::KernelBridge => "kernel-bridge",
            Contender::Sockmap => "sockmap",
            Contender::Unix => "unix",
            Contender::Seqpacket => "unix-seqpacket",
            Contender::Pipe => "pipe",
            Contender::Iceoryx2 => "iceoryx2",
            Contender::Memcpy => "memcpy",
            Contender::Alone => "alone",
        }
    }

    /// Why it cannot take part on this machine.
    pub fn obstacle(self) -> Option<String> {
        match self {
            Contender::Sockmap => sockmap::Pair::new()
                .and_then(|maps| maps.ids())
                .err()
                .map(|error| format!("bpf(2) makes no sockmap: {error}")),
            Contender::Iceoryx2 => iceoryx2()
                .err()
                .map(|why| format!("{why:#}; `./x bench` builds it")),
            _ => None,
        }
    }

    fn wire(self, job: &Job) -> Wire {
        match self {
            Contender::Fast if job.ends == Ends::Native => Wire::Native,
            Contender::Unix if job.transport == Transport::Datagram => Wire::UnixDatagram,
            _ if job.transport == Transport::Datagram => Wire::Udp,
            Contender::KernelPolling => Wire::Polling,
            Contender::Sockmap => Wire::Sockmap,
            Contender::Unix => Wire::Unix,
            Contender::Seqpacket => Wire::Seqpacket,
            // Only a path is wanted of it.
            Contender::Pipe | Contender::Iceoryx2 => Wire::Pipe,
            _ => Wire::Tcp,
        }
    }

    /// Between domains; but what is made and closed by the kernel either way is compared
    /// over one and the same network.
    fn places(self, job: &Job) -> (Place, Place) {
        match self {
            Contender::Fast if job.talk.is_short() && !job.is_between_domains => {
                (Place::Here, Place::Here)
            }
            Contender::Fast | Contender::KernelBridge => (server_place(), client_place()),
            _ => (Place::Here, Place::Here),
        }
    }

    fn path(self) -> PathChoice {
        match self {
            Contender::Fast => PathChoice::Auto,
            _ => PathChoice::Kernel,
        }
    }

    /// Whether it can do this work at all.
    pub fn can(self, job: &Job) -> bool {
        let plain_talk = matches!(job.talk, Talk::Rtt | Talk::Stream);
        let spins = plain_talk && job.pause.is_zero() && job.pairs.is_none();
        match self {
            Contender::Fast | Contender::KernelLoopback => true,
            Contender::KernelBridge => !job.talk.is_short(),
            // They spin and never sleep.
            Contender::Ring | Contender::Iceoryx2 => spins && job.is_undisturbed(),
            // Two that spin in turns on one CPU measure the scheduler.
            Contender::KernelPolling => {
                spins && job.rival_placement != Placement::Together && !job.hogs
            }
            Contender::Unix => job.talk != Talk::Crowd,
            Contender::Seqpacket => plain_talk && job.size <= PACKET_BYTES_MAX,
            Contender::Sockmap | Contender::Pipe => plain_talk,
            Contender::Memcpy => false,
            Contender::Alone => job.idle != 0 || job.pairs.is_some_and(|pairs| pairs > 1),
        }
    }
}

/// One sample.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Of all pairs: counts are sums, times are the worst pair's.
    pub figures: Figures,
    /// Bytes through rings, warm-up included.
    pub ring_bytes: u64,
    /// Distance of the CPUs, if it stayed.
    pub regime: Option<Regime>,
}

/// Takes one. `seen` is the distance of the CPUs as it was seen last: a sample begins where
/// its neighbour ended.
pub fn take(
    lab: &Lab,
    contender: Contender,
    job: &Job,
    length: Duration,
    seen: &mut Option<Regime>,
) -> Result<Taken> {
    if contender == Contender::Alone {
        return take(lab, Contender::Fast, &job.alone(), length, seen);
    }
    let before = match *seen {
        Some(before) => before,
        None => placement::regime()?,
    };
    let mut taken = match contender {
        Contender::Ring => bare_ring(job, length)?,
        Contender::Memcpy => memcpy(job.size, length),
        _ => programs(lab, contender, job, length)
            .with_context(|| format!("{} over {}", job.name, contender.name()))?,
    };
    let after = placement::regime()?;
    taken.regime = (before == after).then_some(before);
    *seen = Some(after);
    Ok(taken)
}

fn bare_ring(job: &Job, length: Duration) -> Result<Taken> {
    let pin = |end: usize| {
        let cpu = if end == 0 { SERVER_CPU } else { CLIENT_CPU };
        // Fails where we may not use that CPU; the probe has said so by now.
        let _ = distance::pin(cpu);
    };
    let before = own_cpu_s();
    let figures = if job.talk == Talk::Stream {
        let rate = fordway_ring_limit::stream(job.size, job.ring, length, pin);
        let bytes = (rate * length.as_secs_f64()) as u64;
        Figures {
            count: bytes / job.size as u64,
            bytes,
            ..Figures::default()
        }
    } else {
        let mut times = Times::new()?;
        fordway_ring_limit::round_trips(job.size, job.ring, length, pin, |ns| times.add(ns));
        times.figures(job.size)
    };
    let figures = Figures {
        seconds: length.as_secs_f64(),
        cpu_s: own_cpu_s() - before,
        ..figures
    };
    Ok(Taken {
        figures,
        ring_bytes: 0,
        regime: None,
    })
}

/// On a CPU of its own.
fn memcpy(size: usize, length: Duration) -> Taken {
    let copy = || {
        // Fails where we may not use that CPU; the probe has said so by now.
        let _ = distance::pin(CLIENT_CPU);
        let (from, mut to) = (vec![7u8; size], vec![0u8; job::RING_BYTES_MAX]);
        let (begun, mut figures) = (Instant::now(), Figures::default());
        // A whole ring between two looks at the clock.
        while begun.elapsed() < length {
            for place in to.chunks_exact_mut(size) {
                place.copy_from_slice(black_box(&from));
                figures.count += 1;
            }
            black_box(&mut to);
        }
        figures.bytes = figures.count * size as u64;
        figures.seconds = begun.elapsed().as_secs_f64();
        figures.cpu_s = figures.seconds;
        figures
    };
    let figures = std::thread::scope(|scope| scope.spawn(copy).join().expect("it copies"));
    Taken {
        figures,
        ring_bytes: 0,
        regime: None,
    }
}

/// Pairs of programs that talk.
#[derive(Debug)]
pub struct Conversation {
    /// Lives as long as they talk.
    maps: Option<sockmap::Pair>,
    servers: Vec<Program>,
    drivers: Vec<Program>,
}

/// Starts them.
pub fn start(lab: &Lab, contender: Contender, job: &Job, length: Duration) -> Result<Conversation> {
    let (server_place, client_place) = contender.places(job);
    let (server_cpu, client_cpu) = job.placement_of(contender).cpus();
    let maps = (contender == Contender::Sockmap).then(sockmap::Pair::new);
    let mut conversation = Conversation {
        maps: maps.transpose()?,
        servers: Vec::new(),
        drivers: Vec::new(),
    };
    let more = [
        format!("--seconds={}", length.as_secs_f64()),
        format!("--pause-us={}", job.pause.as_micros()),
        format!("--idle={}", job.idle),
    ];
    for _ in 0..job.pairs.unwrap_or(1) {
        let mut at = address(lab, contender, job)?;
        if let Some(maps) = &conversation.maps {
            let [server, driver] = maps.ids()?;
            at += &format!("/{server}/{driver}");
        }
        let start = |place, cpu: &Option<String>, role, more: &[String]| {
            let mut argv = argv(contender, job, role, &at)?;
            argv.extend_from_slice(more);
            let mut spawn = Spawn::new(argv);
            if job.at_once {
                spawn = spawn.env("FORDWAY_OFFER_AFTER", "0");
            }
            spawn.cpu = cpu.clone();
            spawn.time_limit = length + SLACK;
            lab.spawn(place, contender.path(), &spawn)
        };
        let server = start(&server_place, &server_cpu, "serve", &[])?;
        let cpu_of = |pid| format!("--cpu-of={pid}");
        let mut more = more.to_vec();
        more.push(cpu_of(server.pid()));
        // The broker's once.
        if contender == Contender::Fast && conversation.servers.is_empty() {
            more.push(cpu_of(lab.broker_pid()?));
        }
        conversation.servers.push(server);
        let driver = start(&client_place, &client_cpu, "drive", &more)?;
        conversation.drivers.push(driver);
    }
    Ok(conversation)
}

/// The command line of an end, but for how long it measures.
fn argv(contender: Contender, job: &Job, role: &str, at: &str) -> Result<Vec<String>> {
    let mut argv = end::command(role, contender.wire(job), job.talk, at, job.size)?;
    match job.ends {
        Ends::Plain | Ends::Native if contender == Contender::Iceoryx2 => argv[0] = iceoryx2()?,
        Ends::Plain | Ends::Native => {}
        Ends::Python => {
            let python = [PYTHON, "-c", include_str!("rtt.py")].map(str::to_owned);
            argv.splice(..1, python);
        }
        Ends::Memcached if role == "serve" => {
            let (host, port) = at.split_once(':').context("an address and a port")?;
            let program = packages::path_of("memcached")?;
            let line = format!("{program} -u root -l {host} -p 0 -U {port} -t 1 -m 64");
            argv = line.split(' ').map(str::to_owned).collect();
        }
        Ends::Memcached => {
            let sockets = job::MEMCACHED_SOCKETS;
            argv.truncate(1);
            let line = format!("end memcached --datagrams --at={at} --connections={sockets}");
            argv.extend(line.split(' ').map(str::to_owned));
        }
    }
    Ok(argv)
}

impl Conversation {
    /// The serving ends.
    pub fn servers(&self) -> impl Iterator<Item = u32> {
        self.servers.iter().map(Program::pid)
    }

    /// All programs.
    pub fn pids(&self) -> Vec<u32> {
        let programs = self.servers.iter().chain(&self.drivers);
        programs.flat_map(Program::pids).collect()
    }

    /// Ends it before its time.
    pub fn stop(self) -> Result<()> {
        let mut programs = self.drivers.into_iter().chain(self.servers);
        programs.try_for_each(|program| program.stop().map(drop))
    }

    /// What all drivers measured.
    fn finish(self) -> Result<Figures> {
        let mut sum = Figures::default();
        let complaints = || {
            let wrote = self.servers.iter().map(Program::stderr_so_far);
            format!(
                "the serving end wrote: {}",
                wrote.collect::<String>().trim()
            )
        };
        for driver in self.drivers {
            let output = driver.finish()?.ok().with_context(complaints)?;
            add(&mut sum, &serde_json::from_str(output.text().trim())?);
        }
        for server in self.servers {
            server.stop()?;
        }
        Ok(sum)
    }
}

fn programs(lab: &Lab, contender: Contender, job: &Job, length: Duration) -> Result<Taken> {
    let is_fast = contender == Contender::Fast;
    let rings_before = if is_fast { lab.ring_bytes()? } else { 0 };
    let talked = start(lab, contender, job, length).and_then(Conversation::finish);
    if contender == Contender::Iceoryx2 {
        clean_shared_memory()?;
    }
    let figures = talked?;
    let expected = is_fast && !job.talk.is_short();
    let ring_bytes = if is_fast {
        crate::work::settled_ring_bytes(lab, rings_before, expected)?
    } else {
        0
    };
    ensure!(!expected || ring_bytes > 0, "nothing went through rings");
    Ok(Taken {
        figures,
        ring_bytes,
        regime: None,
    })
}

fn add(sum: &mut Figures, one: &Figures) {
    sum.count += one.count;
    sum.bytes += one.bytes;
    sum.seconds = sum.seconds.max(one.seconds);
    sum.cpu_s += one.cpu_s;
    sum.p50_ns = sum.p50_ns.max(one.p50_ns);
    sum.p99_ns = sum.p99_ns.max(one.p99_ns);
    sum.p999_ns = sum.p999_ns.max(one.p999_ns);
}

/// The two programs for iceoryx2 are one beside our own: most builds can do without what it links.
fn iceoryx2() -> Result<String> {
    let file = std::env::current_exe()?.with_file_name("fordway-bench-iceoryx2");
    ensure!(file.is_file(), "there is no {}", file.display());
    Ok(file.to_string_lossy().into_owned())
}

/// iceoryx2 leaves a word there for each name it was given, and more if it was ended.
fn clean_shared_memory() -> Result<()> {
    for entry in fs::read_dir("/dev/shm")? {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default();
        if name.to_string_lossy().starts_with(&shared_name("")) {
            fs::remove_file(file)?;
        }
    }
    Ok(())
}

/// Begins the names of what a run leaves outside its directory.
fn shared_name(rest: &str) -> String {
    format!("fordway-bench-{}-{rest}", std::process::id())
}

fn address(lab: &Lab, contender: Contender, job: &Job) -> Result<String> {
    // No name comes a second time: what an ended program left there is in nobody's way.
    static NAMES: AtomicU32 = AtomicU32::new(0);
    Ok(match contender.wire(job) {
        Wire::Tcp | Wire::Polling | Wire::Sockmap | Wire::Native => {
            let port = lab.free_port()?;
            format!("{}:{port}", contender.places(job).0.ip())
        }
        // One that is free of UDP.
        Wire::Udp => {
            let port = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?
                .local_addr()?
                .port();
            format!("{}:{port}", contender.places(job).0.ip())
        }
        _ => {
            let number = NAMES.fetch_add(1, Ordering::Relaxed);
            let file = lab.work_dir().join(shared_name(&number.to_string()));
            file.to_string_lossy().into_owned()
        }
    })
}
