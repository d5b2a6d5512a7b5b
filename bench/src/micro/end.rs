//! The two plain programs of a conversation that is measured: `fordway-bench end serve`
//! answers, `fordway-bench end drive` asks, measures, and prints one line of JSON. They
//! know nothing of Fordway; `fordway run` puts the library under them, or does not.
//!
//! | work | the driving end | the serving end |
//! |---|---|---|
//! | rtt | sends a message, receives it back, perhaps after a pause | sends back what it received |
//! | stream | sends messages for a while, announces the end, receives a total | counts to the end, sends the total |
//! | datagrams | sends messages for a while, asks before and behind how many came | counts, says how many when asked |
//! | maerts | receives for a while, closes | sends messages until nobody receives |
//! | connect | connects, receives the end | accepts, closes |
//! | request | connects, sends a message, receives it back and the end | accepts, sends it back, closes |
//! | crowd | as rtt on one connection, beside many that have talked once and are idle now | as rtt, for all by epoll |
//!
//! The serving end closes first where connections end, so that no port of the driving
//! end is kept by TIME_WAIT.
//!
//! The driving end also reads the CPU time of the processes that it is told of. It alone knows when
//! start and warm-up, which are not measured, are over.

use super::measure::Measure;
use super::wire::{Conn, Talker, Wire};
use super::{crowd, everybody, memcached};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Round trips before anything is counted: the connection comes to its rings meanwhile.
const WARM_UP_ROUNDS: u32 = 200;
/// And at least for so long, for what needs time to grow.
const WARM_UP: Duration = Duration::from_millis(30);
/// How often an end of datagrams is asked how many came: the question may be lost.
const ASKED_MAX: u32 = 20;
/// Datagrams that are sent between two looks at the clock.
const DATAGRAMS_BATCH: u32 = 64;

/// `fordway-bench end`.
#[derive(Clone, Debug, Args)]
pub struct EndArgs {
    #[command(subcommand)]
    role: Role,
}

#[derive(Clone, Debug, Subcommand)]
enum Role {
    /// Answers until it is ended.
    Serve(Conversation),
    /// Asks, measures, prints.
    Drive {
        #[command(flatten)]
        conversation: Conversation,
        #[command(flatten)]
        measure: Measure,
    },
    /// Asks a memcached.
    Memcached {
        /// Where.
        #[arg(long)]
        at: String,
        /// Connections, each with one request in flight.
        #[arg(long)]
        connections: usize,
        /// By UDP.
        #[arg(long)]
        datagrams: bool,
        #[command(flatten)]
        measure: Measure,
    },
    /// Answers to broadcasts.
    Hear {
        /// Where.
        #[arg(long)]
        port: u16,
    },
    /// Broadcasts, measures, prints.
    Speak {
        /// To which port.
        #[arg(long)]
        port: u16,
        /// How many answer.
        #[arg(long)]
        receivers: usize,
        /// How long.
        #[arg(long)]
        seconds: f64,
    },
    /// Does nothing but use its CPU.
    Hog,
}

#[derive(Clone, Debug, Args)]
struct Conversation {
    #[arg(long)]
    wire: Wire,
    /// Where.
    #[arg(long)]
    at: String,
    #[arg(long)]
    work: Talk,
    /// Bytes of a message.
    #[arg(long)]
    size: usize,
}

/// What is done in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Talk {
    /// There and back.
    Rtt,
    /// One way.
    Stream,
    /// One way, by datagrams: those that came count.
    Datagrams,
    /// The other way.
    Maerts,
    /// Connect, accept, close.
    Connect,
    /// Connect, one request, close.
    Request,
    /// There and back among idle connections.
    Crowd,
}

impl Talk {
    /// Whether connections end before rings would pay.
    pub fn is_short(self) -> bool {
        matches!(self, Talk::Connect | Talk::Request)
    }
}

/// What the driving end prints.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Messages, round trips or connections.
    pub count: u64,
    /// Payload bytes in one direction.
    pub bytes: u64,
    /// Measured time.
    pub seconds: f64,
    /// CPU seconds of the driving end meanwhile, and of those that it was told of.
    pub cpu_s: f64,
    /// Of a round trip or a connection; 0 where that is not measured.
    pub p50_ns: u64,
    /// See `p50_ns`.
    pub p99_ns: u64,
    /// See `p50_ns`.
    pub p999_ns: u64,
}

/// Times of single rounds.
#[derive(Debug)]
pub struct Times(Histogram<u64>);

impl Times {
    /// Up to a minute, three digits.
    pub fn new() -> Result<Times> {
        Ok(Times(Histogram::new_with_max(60_000_000_000, 3)?))
    }

    /// One round.
    pub fn add(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// All of them.
    pub fn figures(&self, size: usize) -> Figures {
        Figures {
            count: self.0.len(),
            bytes: self.0.len() * size as u64,
            p50_ns: self.0.value_at_quantile(0.5),
            p99_ns: self.0.value_at_quantile(0.99),
            p999_ns: self.0.value_at_quantile(0.999),
            ..Figures::default()
        }
    }
}

/// The command line of a plain program that plays `role`: `serve` or `drive`.
pub fn command(role: &str, wire: Wire, talk: Talk, at: &str, size: usize) -> Result<Vec<String>> {
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    Ok(vec![
        program,
        "end".to_owned(),
        role.to_owned(),
        format!("--wire={}", word(&wire)),
        format!("--work={}", word(&talk)),
        format!("--at={at}"),
        format!("--size={size}"),
    ])
}

/// As the command line spells it.
fn word(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Plays a role.
pub fn run(args: &EndArgs) -> Result<()> {
    match &args.role {
        Role::Serve(conversation) => serve(conversation),
        Role::Hog => loop {
            std::hint::spin_loop();
        },
        Role::Drive {
            conversation,
            measure,
        } => print(&conversation.drive(measure)?),
        Role::Hear { port } => everybody::hear(*port),
        Role::Speak {
            port,
            receivers,
            seconds,
        } => {
            let length = Duration::from_secs_f64(*seconds);
            print(&everybody::speak(*port, *receivers, length)?)
        }
        Role::Memcached {
            at,
            connections,
            datagrams,
            measure,
        } => print(&memcached::drive(at, *connections, *datagrams, measure)?),
    }
}

/// What the bench reads.
pub fn print(figures: &Figures) -> Result<()> {
    println!("{}", serde_json::to_string(figures)?);
    Ok(())
}

fn serve(conversation: &Conversation) -> Result<()> {
    let Conversation {
        wire,
        at,
        work,
        size,
    } = conversation;
    if *work == Talk::Crowd {
        return crowd::serve(at, *size);
    }
    let mut listener = wire.listen(at)?;
    let mut buffer = vec![0u8; *size];
    loop {
        let mut conn = listener.accept()?;
        let talked = match work {
            Talk::Stream => count(&mut conn, &mut buffer),
            Talk::Datagrams => tally(&mut conn, &mut buffer),
            Talk::Maerts => {
                while conn.send(&buffer).is_ok() {}
                Ok(())
            }
            Talk::Connect => Ok(()),
            Talk::Request => once(&mut conn, &mut buffer),
            Talk::Rtt | Talk::Crowd => echo(&mut conn, &mut buffer),
        };
        // The next conversation does not suffer from a driver that was ended.
        if let Err(error) = talked {
            eprintln!("{error:#}");
        }
        if wire.is_single() {
            return Ok(());
        }
    }
}

/// Sends back what comes, to the end.
pub fn echo(conn: &mut impl Talker, buffer: &mut [u8]) -> Result<()> {
    loop {
        match conn.receive(buffer)? {
            true => conn.send(buffer)?,
            // A driver that has not had its answer asks whether anybody is there again.
            false if !conn.has_end() => conn.send(&[])?,
            false => return Ok(()),
        }
    }
}

fn once(conn: &mut Conn, buffer: &mut [u8]) -> Result<()> {
    ensure!(conn.receive(buffer)?, "no request came");
    conn.send(buffer)
}

/// Counts bytes to the end, sends their number.
pub fn count(conn: &mut impl Talker, buffer: &mut [u8]) -> Result<()> {
    let mut total = 0u64;
    loop {
        match conn.receive_some(buffer)? {
            0 => return conn.send(&total.to_ne_bytes()),
            got => total += got as u64,
        }
    }
}

/// Counts messages; says how many came to whoever asks by an empty one.
fn tally(conn: &mut impl Talker, buffer: &mut [u8]) -> Result<()> {
    let mut total = 0u64;
    loop {
        match conn.receive_some(buffer)? {
            0 => conn.send(&total.to_ne_bytes())?,
            _ => total += 1,
        }
    }
}

/// How many came, now that they are more than there were before.
fn tallied(conn: &mut impl Talker, before: u64) -> Result<u64> {
    let mut total = [0u8; 8];
    for _ in 0..ASKED_MAX {
        conn.send(&[])?;
        // Also what was answered late.
        while let Ok(true) = conn.receive(&mut total) {
            let total = u64::from_ne_bytes(total);
            if total > before {
                return Ok(total);
            }
        }
    }
    bail!("the serving end does not say how many came")
}

/// Measures datagrams of `size` bytes to someone who tallies: those that came.
fn datagrams(conn: &mut impl Talker, size: usize, measure: &Measure) -> Result<Figures> {
    let out = vec![7u8; size];
    let warm = Instant::now();
    while warm.elapsed() < WARM_UP {
        conn.send(&out)?;
    }
    let early = tallied(conn, 0)?;
    let measured = measure.begin()?;
    while measured.goes_on() {
        // The clock costs as much as a small message.
        for _ in 0..DATAGRAMS_BATCH {
            conn.send(&out)?;
        }
    }
    let figures = measured.end(Figures::default())?;
    let count = tallied(conn, early)? - early;
    Ok(Figures {
        count,
        bytes: count * size as u64,
        ..figures
    })
}

/// Measures round trips of `size` bytes with someone who echoes.
pub fn round_trips(conn: &mut impl Talker, size: usize, measure: &Measure) -> Result<Figures> {
    let (out, mut back) = (vec![7u8; size], vec![0u8; size]);
    let mut round = |pause: Duration| -> Result<u64> {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let start = Instant::now();
        conn.send(&out)?;
        ensure!(conn.receive(&mut back)?, "the serving end is gone");
        Ok(start.elapsed().as_nanos() as u64)
    };
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < WARM_UP_ROUNDS || start.elapsed() < WARM_UP {
        round(Duration::ZERO)?;
        rounds += 1;
        if start.elapsed() > WARM_UP * 20 {
            break;
        }
    }
    let mut times = Times::new()?;
    let measured = measure.begin()?;
    while measured.goes_on() {
        times.add(round(measure.pause())?);
    }
    measured.end(times.figures(size))
}

/// Measures messages of `size` bytes to someone who counts.
pub fn stream(conn: &mut impl Talker, size: usize, measure: &Measure) -> Result<Figures> {
    let out = vec![7u8; size];
    let warm = Instant::now();
    let mut early = 0u64;
    while warm.elapsed() < WARM_UP {
        conn.send(&out)?;
        early += 1;
    }
    let (measured, mut messages) = (measure.begin()?, 0u64);
    // The clock costs as much as a small message.
    let batch = (65536 / size).clamp(1, 64);
    while measured.goes_on() {
        for _ in 0..batch {
            conn.send(&out)?;
        }
        messages += batch as u64;
    }
    conn.finish()?;
    let mut total = [0u8; 8];
    ensure!(conn.receive(&mut total)?, "the serving end is gone");
    let figures = measured.end(Figures {
        count: messages,
        bytes: messages * size as u64,
        ..Figures::default()
    })?;
    let sent = (early + messages) * size as u64;
    let total = u64::from_ne_bytes(total);
    ensure!(total == sent, "{sent} bytes were sent, {total} came");
    Ok(figures)
}

impl Conversation {
    fn drive(&self, measure: &Measure) -> Result<Figures> {
        match self.work {
            Talk::Rtt => round_trips(&mut self.wire.reach(&self.at)?, self.size, measure),
            Talk::Stream => stream(&mut self.wire.reach(&self.at)?, self.size, measure),
            Talk::Datagrams => datagrams(&mut self.wire.reach(&self.at)?, self.size, measure),
            Talk::Maerts => self.maerts(measure),
            Talk::Connect | Talk::Request => self.connections(measure),
            Talk::Crowd => {
                // Held open until the figures are there.
                let _idle = crowd::idle(self.wire, &self.at, self.size, measure.idle)?;
                round_trips(&mut self.wire.reach(&self.at)?, self.size, measure)
            }
        }
    }

    fn maerts(&self, measure: &Measure) -> Result<Figures> {
        let mut conn = self.wire.reach(&self.at)?;
        let mut buffer = vec![0u8; self.size];
        let mut receive = || -> Result<()> {
            ensure!(conn.receive(&mut buffer)?, "the serving end is gone");
            Ok(())
        };
        let warm = Instant::now();
        while warm.elapsed() < WARM_UP {
            receive()?;
        }
        let (measured, mut figures) = (measure.begin()?, Figures::default());
        while measured.goes_on() {
            receive()?;
            figures.count += 1;
        }
        figures.bytes = figures.count * self.size as u64;
        measured.end(figures)
    }

    fn connections(&self, measure: &Measure) -> Result<Figures> {
        drop(self.wire.reach(&self.at)?);
        let mut buffer = vec![7u8; self.size];
        let mut times = Times::new()?;
        let measured = measure.begin()?;
        while measured.goes_on() {
            let before = Instant::now();
            let mut conn = self.wire.reach(&self.at).context("connect")?;
            if self.work == Talk::Request {
                conn.send(&buffer)?;
                ensure!(conn.receive(&mut buffer)?, "no answer came");
            }
            ensure!(conn.receive_some(&mut [0u8])? == 0, "no end came");
            drop(conn);
            times.add(before.elapsed().as_nanos() as u64);
        }
        measured.end(times.figures(self.size))
    }
}
