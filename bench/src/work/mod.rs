//! The pieces of work that the bench and the demo measure: a real server, a real
//! client, and how to read the client's figure. One home, so that the demo's
//! table and the bench's rows mean the same.
//!
//! A [`Server`] is started once per path and serves several samples. A sample is
//! one run of the client: its figure, the CPU time that client and server spent
//! meanwhile, and the bytes that went through rings meanwhile. The CPU time of a
//! server counts only while a client works, so that servers may stand by idle.
//!
//! `server`: how each server is set up and started. `client`: how each client is run, and
//! how its report is read.

mod client;
pub mod postgres;
mod server;

pub use client::Client;
pub use server::{Server, ServerKind};

use crate::micro::end::Talk;
use anyhow::{Context, Result};
use fordway_lab::{Lab, PathChoice, Place, Program, Stdin};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Longest wait for the broker to have counted what a closed connection carried.
const COUNTED_LIMIT: Duration = Duration::from_secs(1);
/// Length of the sample that warms two programs up.
pub const WARM_UP_SECONDS: f64 = 0.2;
/// A client that takes this much longer than it was asked to is hanging.
const CLIENT_SLACK: Duration = Duration::from_secs(60);

/// One row: who serves, who asks, what is counted.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Name of the row.
    pub name: &'static str,
    /// In words.
    pub what: &'static str,
    /// Unit of the figure.
    pub unit: &'static str,
    /// Server.
    pub server: ServerKind,
    /// Client.
    pub client: Client,
}

/// By how much work of this unit CPU seconds are divided, and what a table calls it.
pub fn cpu_unit(unit: &str) -> (f64, &'static str) {
    match unit {
        "GB/s" => (1e9, "GB"),
        _ => (1e6, "Mreq"),
    }
}

const fn work(
    name: &'static str,
    what: &'static str,
    unit: &'static str,
    server: ServerKind,
    client: Client,
) -> Work {
    Work {
        name,
        what,
        unit,
        server,
        client,
    }
}

const fn redis(
    name: &'static str,
    what: &'static str,
    command: &'static str,
    clients: u32,
    pipeline: u32,
) -> Work {
    let client = Client::Redis {
        command,
        clients,
        pipeline,
    };
    work(name, what, "req/s", ServerKind::Redis, client)
}

const fn wrk(
    name: &'static str,
    what: &'static str,
    document: &'static str,
    connections: u32,
) -> Work {
    let client = Client::Wrk {
        document,
        connections,
    };
    work(name, what, "req/s", ServerKind::Nginx, client)
}

const fn iperf3(
    name: &'static str,
    what: &'static str,
    write_bytes: u32,
    streams: u32,
    reverse: bool,
) -> Work {
    let client = Client::Iperf3 {
        write_bytes,
        streams,
        reverse,
    };
    work(name, what, "GB/s", ServerKind::Iperf3, client)
}

/// As netperf's test of that name, by plain programs of our own.
const fn plain(
    name: &'static str,
    what: &'static str,
    unit: &'static str,
    talk: Talk,
    size: usize,
) -> Work {
    let (server, client) = (
        ServerKind::Plain { talk, size },
        Client::Plain { talk, size },
    );
    work(name, what, unit, server, client)
}

/// Everything that can be measured; the bench's suite `apps` is all but curl's.
pub const WORKS: [Work; 35] = [
    redis("redis-get-c1", "redis GET, 1 client", "get", 1, 1),
    redis("redis-get-c16", "redis GET, 16 clients", "get", 16, 1),
    redis("redis-get-c50", "redis GET, 50 clients", "get", 50, 1),
    redis(
        "redis-get-c16-p16",
        "redis GET, 16 clients, 16 in flight",
        "get",
        16,
        16,
    ),
    wrk("nginx-1k-c10", "nginx 1 KB, wrk, 10 connections", "1k", 10),
    work(
        "nginx-64m-curl",
        "nginx 64 MB, curl",
        "GB/s",
        ServerKind::Nginx,
        Client::Curl,
    ),
    iperf3("iperf3-128k", "iperf3, 128 KB writes", 128 << 10, 1, false),
    redis("redis-get-c500", "redis GET, 500 clients", "get", 500, 1),
    redis(
        "redis-get-c50-p16",
        "redis GET, 50 clients, 16 in flight",
        "get",
        50,
        16,
    ),
    redis(
        "redis-get-c1-p16",
        "redis GET, 1 client, 16 in flight",
        "get",
        1,
        16,
    ),
    redis(
        "redis-get-c500-p16",
        "redis GET, 500 clients, 16 in flight",
        "get",
        500,
        16,
    ),
    redis("redis-set-c1", "redis SET, 1 client", "set", 1, 1),
    redis("redis-set-c500", "redis SET, 500 clients", "set", 500, 1),
    redis(
        "redis-set-c1-p16",
        "redis SET, 1 client, 16 in flight",
        "set",
        1,
        16,
    ),
    redis(
        "redis-set-c500-p16",
        "redis SET, 500 clients, 16 in flight",
        "set",
        500,
        16,
    ),
    redis("redis-set-c50", "redis SET, 50 clients", "set", 50, 1),
    redis(
        "redis-set-c50-p16",
        "redis SET, 50 clients, 16 in flight",
        "set",
        50,
        16,
    ),
    wrk(
        "nginx-1k-c100",
        "nginx 1 KB, wrk, 100 connections",
        "1k",
        100,
    ),
    wrk(
        "nginx-100k-c10",
        "nginx 100 KB, wrk, 10 connections",
        "100k",
        10,
    ),
    wrk(
        "nginx-100k-c100",
        "nginx 100 KB, wrk, 100 connections",
        "100k",
        100,
    ),
    wrk("nginx-1m-c10", "nginx 1 MB, wrk, 10 connections", "1m", 10),
    wrk(
        "nginx-1m-c100",
        "nginx 1 MB, wrk, 100 connections",
        "1m",
        100,
    ),
    wrk(
        "nginx-10m-c10",
        "nginx 10 MB, wrk, 10 connections",
        "10m",
        10,
    ),
    wrk(
        "nginx-10m-c100",
        "nginx 10 MB, wrk, 100 connections",
        "10m",
        100,
    ),
    work(
        "nginx-1k-c50-close",
        "nginx 1 KB, ab, 50 clients, a connection for each request",
        "conn/s",
        ServerKind::Nginx,
        Client::Ab {
            document: "1k",
            clients: 50,
        },
    ),
    work(
        "memcached-get-c10",
        "memcached get of 100 B, 10 connections",
        "req/s",
        ServerKind::Memcached { threads: 1 },
        Client::Memcached {
            connections: 10,
            datagrams: false,
        },
    ),
    work(
        "pgbench-s-c8",
        "PostgreSQL, pgbench -S, 8 clients",
        "req/s",
        ServerKind::Postgres,
        Client::Pgbench { clients: 8 },
    ),
    iperf3("iperf3-1m", "iperf3, 1 MB writes", 1 << 20, 1, false),
    iperf3(
        "iperf3-128k-p4",
        "iperf3, 128 KB writes, 4 streams",
        128 << 10,
        4,
        false,
    ),
    iperf3(
        "iperf3-128k-reverse",
        "iperf3, 128 KB writes, server to client",
        128 << 10,
        1,
        true,
    ),
    work(
        "netpipe",
        "NetPIPE, best rate of its sizes up to 1 MB",
        "GB/s",
        ServerKind::Netpipe,
        Client::Netpipe,
    ),
    plain(
        "tcp-stream",
        "16 KB messages to the server",
        "GB/s",
        Talk::Stream,
        16 << 10,
    ),
    plain(
        "tcp-maerts",
        "16 KB messages from the server",
        "GB/s",
        Talk::Maerts,
        16 << 10,
    ),
    plain("tcp-rr", "1 B there and back", "req/s", Talk::Rtt, 1),
    plain(
        "tcp-crr",
        "a connection for each 1 B there and back",
        "conn/s",
        Talk::Request,
        1,
    ),
];

/// The rows that a demo shows and that a quick look needs.
pub const FIRST: [&str; 7] = [
    "redis-get-c1",
    "redis-get-c16",
    "redis-get-c50",
    "redis-get-c16-p16",
    "nginx-1k-c10",
    "nginx-64m-curl",
    "iperf3-128k",
];

/// Programs that these works and their lab need.
pub fn programs(works: &[Work]) -> Vec<&'static str> {
    let needed = works.iter().flat_map(|work| {
        let server = work.server.programs();
        server.iter().chain(work.client.programs()).copied()
    });
    let mut programs: Vec<_> = ["ip", "nft"].into_iter().chain(needed).collect();
    programs.sort_unstable();
    programs.dedup();
    programs
}

/// How a client is run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Where the client runs.
    pub place: Place,
    /// Its path.
    pub path: PathChoice,
    /// Its CPUs.
    pub cpu: Option<String>,
    /// Over the server's UNIX socket instead of TCP (redis only).
    pub unix: bool,
    /// At this address, which leads to the server's port, instead of its own (redis and nginx only).
    pub through: Option<Ipv4Addr>,
}

/// What one run of a client gave.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// In the work's unit.
    pub value: f64,
    /// CPU seconds of client and server, and of the broker on the fast path.
    pub cpu_s: f64,
    /// Bytes through rings.
    pub ring_bytes: u64,
    /// How much was done in all: requests or bytes.
    pub done: f64,
}

/// Runs one work's client again and again against one server.
#[derive(Debug)]
pub struct Runner<'a> {
    work: Work,
    server: &'a Server,
    setting: Setting,
    /// Last figure: sizes the next run of clients that count requests, not seconds.
    rate: Option<f64>,
}

impl<'a> Runner<'a> {
    /// A client for a server of the work's kind.
    pub fn new(work: Work, server: &'a Server, setting: Setting) -> Runner<'a> {
        debug_assert_eq!(work.server, server.kind());
        Runner {
            work,
            server,
            setting,
            rate: None,
        }
    }

    /// A short run that is not counted: sizes the next ones and warms both programs up.
    pub fn warm_up(&mut self, lab: &Lab) -> Result<()> {
        self.sample(lab, WARM_UP_SECONDS).map(drop)
    }

    /// One run of about `seconds`.
    pub fn sample(&mut self, lab: &Lab, seconds: f64) -> Result<Sample> {
        if self.server.kind() == ServerKind::Netpipe {
            // It serves one client, and is started anew.
            self.server.program.wait_for_port(self.server.port())?;
        }
        let is_fast = self.setting.path != PathChoice::Kernel;
        let rings_before = if is_fast { lab.ring_bytes()? } else { 0 };
        let beside_cpu_s = || -> Result<f64> {
            let broker = if is_fast { lab.broker_cpu_s()? } else { 0.0 };
            Ok(self.server.program.cpu_s() + broker)
        };
        let beside_before = beside_cpu_s()?;
        let output = self.spawn(lab, seconds)?.finish()?.ok()?;
        let beside = beside_cpu_s()? - beside_before;
        let ring_bytes = if is_fast {
            settled_ring_bytes(lab, rings_before, !self.work.client.is_short())?
        } else {
            0
        };
        let text = output.text();
        let figure = self
            .work
            .client
            .figure(self.server, self.rate, &text, seconds);
        let (value, done) = figure.with_context(|| {
            format!(
                "{}: the client's report is not understood:\n{text}",
                self.work.name
            )
        })?;
        self.rate = Some(value);
        Ok(Sample {
            value,
            cpu_s: output.cpu_s + beside,
            ring_bytes,
            done,
        })
    }

    /// Starts the client, for about `seconds`.
    pub fn spawn(&self, lab: &Lab, seconds: f64) -> Result<Program> {
        let mut spawn = self
            .work
            .client
            .command(self.server, &self.setting, self.rate, seconds)?
            .stdin(Stdin::Null);
        spawn.cpu = self.setting.cpu.clone();
        spawn.time_limit = Duration::from_secs_f64(seconds) + CLIENT_SLACK;
        lab.spawn(&self.setting.place, self.setting.path, &spawn)
    }
}

/// By how much the broker's total has gone up, once it no longer moves, and, where it is `expected`
/// to, has moved.
pub(crate) fn settled_ring_bytes(lab: &Lab, before: u64, expected: bool) -> Result<u64> {
    let until = Instant::now() + COUNTED_LIMIT;
    let mut last = lab.ring_bytes()?;
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = lab.ring_bytes()?;
        let has_moved = now > before || !expected;
        if now == last && has_moved || Instant::now() > until {
            return Ok(now.saturating_sub(before));
        }
        last = now;
    }
}
