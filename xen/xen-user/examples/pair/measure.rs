//! The figures: TCP over netfront, libxenvchan and our rings, one after another, by the same loops.
//!
//! ```text
//!   for each contender: verified messages ─► one way, by sizes ─► round trips, asleep and awake
//!   for each: 1, 2, 4 pairs of threads at once, with a connection or a ring each
//! ```
//!
//! Contenders by what copies: `rep` is `rep movsb`, as kernels and Debian's libc do on this CPU; `vec` is vectors of 32
//! bytes (libc is told so by GLIBC_TUNABLES, in a process of its own). Emulation charges one instruction for either.
//! Whatever waits for longer than [`BOUND`] ends the program with a line.

use crate::vchan::{RING_BYTES_MAX, Vchan};
use crate::{Guest, Outcome, Pipe, Ring, check, content};
use fordway_ring::copy::{Copier, Level};
use fordway_xen_user::{Channel, EventChannel, OwnRegion, PeerRegion};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// No step takes so long.
const BOUND: Duration = Duration::from_secs(30);
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(5);
const SIZES: [usize; 7] = [1, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 512 << 10];
const RINGS: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 2 << 20];
/// The ring that is measured in every way.
const RING: usize = 1 << 20;
/// The first one of a direction, which stays in the region while the direction goes on to another.
const FIRST_RING: usize = 64 << 10;
/// One way, in all, within these bounds of how many messages that is.
const BYTES: usize = 16 << 20;
const MESSAGES: [usize; 2] = [32, 8 << 10];
const ROUND_TRIPS: u32 = 500;
/// Each may take two slices of Xen's scheduler, of milliseconds.
const ROUND_TRIPS_AWAKE: u32 = 40;
const PAIRS: [usize; 3] = [1, 2, 4];
/// Of one message, where pairs run at once.
const PAIR_BYTES: usize = 64 << 10;
const PAIR_MESSAGES: usize = 512;
/// gntalloc's own limit of pages is too low for several rings of 1 MB.
const LIMIT: &str = "/sys/module/xen_gntalloc/parameters/limit";
/// One that libc's copy never reaches.
const VECTORS: &str = "glibc.cpu.x86_rep_movsb_threshold=1073741824";

/// What is being done, and since when.
static STEP: Mutex<(String, Option<Instant>)> = Mutex::new((String::new(), None));

fn step(what: &str) {
    let mut step = STEP.lock().unwrap_or_else(PoisonError::into_inner);
    *step = (what.to_owned(), Some(Instant::now()));
}

/// Nothing that hangs is waited for, whoever's code it is in.
fn watch_steps() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(LOOK);
            let step = STEP.lock().unwrap_or_else(PoisonError::into_inner);
            if step.1.is_some_and(|since| since.elapsed() > BOUND) {
                println!("pair: FAILED: {}: no end in {BOUND:?}", step.0);
                std::process::exit(1);
            }
        }
    });
}

/// All of it.
pub(crate) fn all(guest: &mut Guest) -> Outcome {
    watch_steps();
    step("setup");
    std::fs::write(LIMIT, "16384").map_err(|error| format!("{LIMIT}: {error}"))?;
    guest.setup_times()?;
    calls(guest)?;
    for (name, copier) in [
        ("ring-rep", Copier::sse2().at_most(Level::Strings)),
        ("ring-vec", Copier::detect()),
    ] {
        for bytes in RINGS {
            let subject = format!("{name}-{}", kb(bytes));
            step(&subject);
            let channel = ring(guest, bytes, copier)?;
            one_way(guest, &mut Ring(&channel), &subject)?;
            if bytes == RING {
                asleep(guest, &mut Ring(&channel), &subject)?;
                guest.exchange("and awake")?;
                ring_awake(guest, &channel, &subject)?;
            }
            guest.exchange("measured")?;
        }
        at_once(guest, name, |guest, _| {
            ring(guest, RING, copier).map(OwnRing)
        })?;
    }
    for (copy, tunables) in [("vchan-rep", ""), ("vchan-vec", VECTORS)] {
        // Two copies of libc are two processes.
        step(copy);
        let mut child = Command::new(std::env::current_exe()?)
            .args(["vchan", copy])
            .env("GLIBC_TUNABLES", tunables)
            .spawn()?;
        // It looks after its own steps.
        *STEP.lock().unwrap_or_else(PoisonError::into_inner) = (String::new(), None);
        check(child.wait()?.success(), "libxenvchan is measured")?;
    }
    step("tcp");
    let mut stream = guest.tcp(0)?;
    one_way(guest, &mut stream, "tcp")?;
    asleep(guest, &mut stream, "tcp")?;
    guest.exchange("and awake")?;
    stream.set_nonblocking(true)?;
    awake(guest, &mut SpinStream(&stream), "tcp", None)?;
    stream.set_nonblocking(false)?;
    // As it is without a word of the program: small messages are gathered.
    stream.set_nodelay(false)?;
    guest.exchange("nagle")?;
    one_way(guest, &mut stream, "tcp-nagle")?;
    at_once(guest, "tcp", |guest, number| guest.tcp(number as u16))?;
    println!("pair: measured");
    Ok(())
}

/// libxenvchan, in a process that copies in one way.
pub(crate) fn vchan(guest: &mut Guest) -> Outcome {
    watch_steps();
    let name = guest.name.clone();
    for bytes in RINGS.into_iter().filter(|bytes| *bytes <= RING_BYTES_MAX) {
        let subject = format!("{name}-{}", kb(bytes));
        step(&subject);
        let mut vchan = Vchan::link(guest, bytes)?;
        one_way(guest, &mut vchan, &subject)?;
        if bytes == RING {
            asleep(guest, &mut vchan, &subject)?;
            guest.exchange("and awake")?;
            vchan.set_blocking(false);
            let bell = vchan.descriptor().try_clone_to_owned()?;
            awake(
                guest,
                &mut vchan,
                &subject,
                Some(std::os::fd::AsFd::as_fd(&bell)),
            )?;
        }
        guest.exchange("measured")?;
    }
    at_once(guest, &name, |guest, _| Vchan::link(guest, RING))
}

fn kb(bytes: usize) -> String {
    format!("{}k", bytes >> 10)
}

fn ring(guest: &mut Guest, bytes: usize, copier: Copier) -> Outcome<Channel> {
    let more = if bytes > FIRST_RING { bytes } else { 0 };
    let channel = guest.link(FIRST_RING + more, None)?.with_copier(copier);
    guest.echo(&mut Ring(&channel), 1)?;
    check(
        more == 0 || channel.grow_to(bytes),
        "there is room for the ring",
    )?;
    check(
        channel.capacity_bytes() == bytes,
        "the ring is as large as it should be",
    )?;
    Ok(channel)
}

/// Messages of each size whose bytes are compared, then as many as are measured. Nothing is printed meanwhile: dom0
/// would run for the console.
fn one_way(guest: &Guest, pipe: &mut dyn Pipe, subject: &str) -> Outcome {
    let mut buffer = vec![0; SIZES[SIZES.len() - 1]];
    for (turn, bytes) in SIZES.into_iter().cycle().take(2 * SIZES.len()).enumerate() {
        let [question, answer] = [turn as u8, turn as u8 + 100].map(content);
        if !guest.is_server {
            pipe.send(&question[..bytes])?;
        }
        pipe.receive(&mut buffer[..bytes])?;
        let expected = if guest.is_server { &question } else { &answer };
        check(
            buffer[..bytes] == expected[..bytes],
            "messages arrive as they were sent",
        )?;
        if guest.is_server {
            pipe.send(&answer[..bytes])?;
        }
    }
    let mut figures = Vec::new();
    for bytes in SIZES {
        let [few, many] = MESSAGES;
        let count = (BYTES / bytes).clamp(few, many);
        guest.echo(pipe, 1)?;
        let took = stream(guest, pipe, &mut buffer[..bytes], count)?;
        figures.push((bytes, (bytes * count) as f64 / took / 1e6));
    }
    for (bytes, rate) in figures {
        guest.figure(subject, &format!("mb_per_s_{bytes}"), rate);
    }
    Ok(())
}

/// So many messages to the server, and one byte back when it has all: in seconds.
fn stream(guest: &Guest, pipe: &mut dyn Pipe, message: &mut [u8], count: usize) -> Outcome<f64> {
    let began = Instant::now();
    for _ in 0..count {
        if guest.is_server {
            pipe.receive(message)?;
        } else {
            pipe.send(message)?;
        }
    }
    if guest.is_server {
        pipe.send(&[1])?;
    } else {
        pipe.receive(&mut [0])?;
    }
    Ok(began.elapsed().as_secs_f64())
}

fn asleep(guest: &Guest, pipe: &mut dyn Pipe, subject: &str) -> Outcome {
    guest.echo(pipe, 200)?;
    let began = Instant::now();
    guest.echo(pipe, ROUND_TRIPS)?;
    let each = began.elapsed().as_secs_f64() / f64::from(ROUND_TRIPS);
    guest.figure(subject, "round_trip_asleep_us", each * 1e6);
    Ok(())
}

/// What a wake-up is made of: system calls that find nothing to do, while the other guest sleeps.
fn calls(guest: &mut Guest) -> Outcome {
    const TIMES: u32 = 1000;
    if guest.is_server {
        let bell = EventChannel::offer(guest.peer)?;
        guest.exchange(&bell.port().to_string())?;
        guest.exchange("rung")?;
        return Ok(());
    }
    let port = guest.exchange("")?.parse()?;
    let bell = EventChannel::accept(guest.peer, port)?;
    let own_port = bell.port().to_ne_bytes();
    let each = |call: &dyn Fn() -> Outcome| -> Outcome<f64> {
        let began = Instant::now();
        (0..TIMES).try_for_each(|_| call())?;
        Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES))
    };
    let none = each(&|| {
        std::hint::black_box(rustix::process::getppid());
        Ok(())
    })?;
    let open = each(&|| Ok(rustix::io::write(bell.descriptor(), &own_port).map(drop)?))?;
    let ring = each(&|| Ok(bell.ring()?))?;
    guest.exchange("rung")?;
    guest.figure("call", "getppid_us", none);
    guest.figure("call", "open_again_us", open);
    guest.figure("call", "ring_us", ring);
    Ok(())
}

/// Both look until there is something. With `bell`, which is open: how many of the two were rung meanwhile.
fn awake(
    guest: &mut Guest,
    pipe: &mut dyn Pipe,
    subject: &str,
    bell: Option<BorrowedFd>,
) -> Outcome {
    let began = Instant::now();
    guest.echo(pipe, ROUND_TRIPS_AWAKE)?;
    let each = began.elapsed().as_secs_f64() / f64::from(ROUND_TRIPS_AWAKE);
    // The other does nothing any more, either.
    guest.exchange("awake is done")?;
    guest.figure(subject, "round_trip_awake_us", each * 1e6);
    if let Some(bell) = bell {
        let rung = u8::from(is_readable(bell)?);
        let other: u8 = guest.exchange(&rung.to_string())?.parse()?;
        guest.figure(subject, "ends_rung_awake", f64::from(rung + other));
    }
    Ok(())
}

/// The bell is opened before, for a closed one would not tell.
fn ring_awake(guest: &mut Guest, channel: &Channel, subject: &str) -> Outcome {
    let bell = channel.descriptor();
    let mut rings = 0;
    rustix::io::write(bell, &guest.ports)?;
    while is_readable(bell)? {
        rustix::io::read(bell, &mut [0; 4])?;
        rustix::io::write(bell, &guest.ports)?;
        rings += 1;
        check(rings <= guest.ports.len(), "an old ring comes once")?;
    }
    guest.exchange("is open")?;
    awake(guest, &mut SpinRing(channel), subject, Some(bell))
}

fn is_readable(bell: BorrowedFd) -> Outcome<bool> {
    let soon = Timespec::try_from(Duration::from_millis(20))?;
    Ok(poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&soon))? != 0)
}

/// So many pairs of threads, each with its own pipe: messages in all, and round trips in all.
fn at_once<P: Pipe>(
    guest: &mut Guest,
    subject: &str,
    make: impl Fn(&mut Guest, usize) -> Outcome<P> + Sync,
) -> Outcome {
    for pairs in PAIRS {
        step(&format!("{subject}, {pairs} pairs"));
        let ready = Barrier::new(pairs + 1);
        let one = |number: usize| -> Outcome {
            let mut guest = Guest::here(&format!("{subject}-{pairs}-{number}"))?;
            let mut pipe = make(&mut guest, number + 1)?;
            let mut message = vec![0; PAIR_BYTES];
            guest.echo(&mut pipe, 100)?;
            ready.wait();
            ready.wait();
            stream(&guest, &mut pipe, &mut message, PAIR_MESSAGES)?;
            ready.wait();
            ready.wait();
            guest.echo(&mut pipe, ROUND_TRIPS)?;
            ready.wait();
            // Until the other has what it waits for.
            ready.wait();
            Ok(())
        };
        std::thread::scope(|scope| -> Outcome {
            for number in 0..pairs {
                let one = &one;
                scope.spawn(move || {
                    if let Err(error) = one(number) {
                        // The others wait for it.
                        println!("pair: FAILED: pair {number}: {error}");
                        std::process::exit(1);
                    }
                });
            }
            ready.wait();
            for (key, work, scale) in [
                ("pairs_mb_per_s", PAIR_BYTES * PAIR_MESSAGES, 1e6),
                ("pairs_round_trips_per_s", ROUND_TRIPS as usize, 1.0),
            ] {
                guest.exchange("all are ready")?;
                let began = Instant::now();
                ready.wait();
                ready.wait();
                let took = began.elapsed().as_secs_f64();
                let rate = (work * pairs) as f64 / took / scale;
                guest.figure(subject, &format!("{key}_{pairs}"), rate);
            }
            guest.exchange("all are done")?;
            ready.wait();
            Ok(())
        })?;
    }
    Ok(())
}

impl Guest {
    fn figure(&self, subject: &str, key: &str, value: f64) {
        if !self.is_server {
            println!("FIGURE {subject} {key} {value:.3}");
        }
    }

    /// How long regions of two sizes take, on either side.
    fn setup_times(&mut self) -> Outcome {
        // Who has never mapped anything first makes room for it.
        for (turn, kb) in [("first_", 64), ("", 64), ("", 1024)] {
            let key = |what| format!("{turn}{what}_{kb}k_us");
            let took = |began: Instant| began.elapsed().as_secs_f64() * 1e6;
            if self.is_server {
                let began = Instant::now();
                let own = OwnRegion::new(self.peer, kb << 10)?;
                println!("FIGURE setup {} {:.0}", key("grant"), took(began));
                self.exchange(&own.reference().to_string())?;
                self.exchange("")?;
                let began = Instant::now();
                drop(own);
                println!("FIGURE setup {} {:.0}", key("take_back"), took(began));
            } else {
                let said = self.exchange("")?;
                let began = Instant::now();
                let peer = PeerRegion::map(self.peer, said.parse()?)?;
                println!("FIGURE setup {} {:.0}", key("map"), took(began));
                let began = Instant::now();
                drop(peer);
                println!("FIGURE setup {} {:.0}", key("unmap"), took(began));
                self.exchange("")?;
            }
        }
        Ok(())
    }
}

struct OwnRing(Channel);

impl Pipe for OwnRing {
    fn send(&mut self, bytes: &[u8]) -> Outcome {
        Ring(&self.0).send(bytes)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Outcome {
        Ring(&self.0).receive(buffer)
    }
}

/// Never sleeps, and so is never rung.
struct SpinRing<'a>(&'a Channel);

impl Pipe for SpinRing<'_> {
    fn send(&mut self, mut bytes: &[u8]) -> Outcome {
        while !bytes.is_empty() {
            bytes = &bytes[self.0.try_send(bytes)?..];
        }
        Ok(())
    }

    fn receive(&mut self, mut buffer: &mut [u8]) -> Outcome {
        while !buffer.is_empty() {
            let count = self.0.try_receive(buffer)?;
            buffer = &mut buffer[count..];
        }
        Ok(())
    }
}

/// The same with a socket that does not block.
struct SpinStream<'a>(&'a TcpStream);

impl SpinStream<'_> {
    fn until_done(mut call: impl FnMut() -> std::io::Result<usize>) -> Outcome<usize> {
        loop {
            match call() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(0) => return Err("the connection has ended".into()),
                done => return Ok(done?),
            }
        }
    }
}

impl Pipe for SpinStream<'_> {
    fn send(&mut self, mut bytes: &[u8]) -> Outcome {
        while !bytes.is_empty() {
            bytes = &bytes[Self::until_done(|| self.0.write(bytes))?..];
        }
        Ok(())
    }

    fn receive(&mut self, mut buffer: &mut [u8]) -> Outcome {
        while !buffer.is_empty() {
            let count = Self::until_done(|| self.0.read(buffer))?;
            buffer = &mut buffer[count..];
        }
        Ok(())
    }
}
