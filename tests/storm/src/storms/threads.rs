//! Servers and clients of many threads, each kind of server with each kind of client, while connections come and go
//! (`programs/threads.c` has the kinds, and compares every byte). Beside them, in rounds of their own: children that are
//! made all the time, and requests to the broker to give up all channels.
//!
//! Each round says by itself what is wrong. The storm adds: the server has served as many connections as the client has
//! made, and in each kind of circumstances bytes went through rings. Kernel TCP is the oracle: a round that fails there shows a fault of the program.

use crate::{Scale, Storm, tell};
use anyhow::{Context, Result, bail, ensure};
use fordway_lab::{Output, PathChoice, Place, Spawn, Stdin};
use fordwayd::admin::Request;
use std::fmt;
use std::time::{Duration, Instant};

const PROGRAM: &str = concat!(env!("OUT_DIR"), "/threads");
/// The programs end by themselves before, when one of their steps takes too long.
const ROUND_LIMIT: Duration = Duration::from_secs(60);
/// At least this part of the bytes that go one way must go by rings. Not where children are made
/// all the time: on a busy machine one lives nearly always, and its relatives share no ring.
const RING_SHARE: u64 = 10;
/// How long the client makes connections.
const ROUND_SECONDS: &str = "0.7";
/// What the broker said last is shown with a round that failed: so many lines.
const LOG_LINES: usize = 10;
/// Between two requests to give up all channels.
const DOWNGRADES_EVERY: Duration = Duration::from_millis(300);
const SERVERS: [&str; 7] = [
    "blocking",
    "pollers",
    "oneshot",
    "edges",
    "visited",
    "instances",
    "duplicate",
];
const CLIENTS: [&str; 5] = ["mixed", "nonblocking", "replaced", "half-closed", "closed"];
/// The short piece: each kind of server, of client and of circumstances is in it.
const SHORT: [(&str, &str, Beside); 11] = [
    ("pollers", "half-closed", ORACLE),
    ("blocking", "mixed", QUIET),
    ("pollers", "nonblocking", QUIET),
    ("visited", "half-closed", QUIET),
    ("blocking", "closed", QUIET),
    ("oneshot", "mixed", FORKS),
    ("instances", "replaced", FORKS),
    ("edges", "nonblocking", DOWNGRADES),
    ("duplicate", "half-closed", DOWNGRADES),
    ("pollers", "replaced", ALL),
    ("instances", "half-closed", ALL),
];

/// The circumstances of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Beside {
    path: PathChoice,
    forks: bool,
    downgrades: bool,
    /// Connections are offered at their first call.
    first_call: bool,
}

const QUIET: Beside = Beside {
    path: PathChoice::Auto,
    forks: false,
    downgrades: false,
    first_call: true,
};
const FORKS: Beside = Beside {
    forks: true,
    first_call: false,
    ..QUIET
};
const DOWNGRADES: Beside = Beside {
    downgrades: true,
    first_call: false,
    ..QUIET
};
const ALL: Beside = Beside {
    forks: true,
    downgrades: true,
    ..QUIET
};
const ORACLE: Beside = Beside {
    path: PathChoice::Kernel,
    forks: true,
    ..QUIET
};
const ALL_BESIDE: [Beside; 5] = [ORACLE, QUIET, FORKS, DOWNGRADES, ALL];

impl fmt::Display for Beside {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} path", self.path.word())?;
        let words = [
            (self.forks, "forks"),
            (self.downgrades, "downgrades"),
            (self.first_call, "offered at the first call"),
        ];
        for (_, word) in words.iter().filter(|(is, _)| *is) {
            write!(out, ", {word}")?;
        }
        Ok(())
    }
}

/// What the rounds of one kind have done.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    connections: u64,
    messages: u64,
    bytes: u64,
    ring_bytes: u64,
}

pub fn run(storm: &mut Storm) -> Result<()> {
    let whole = || {
        let pairs = SERVERS
            .iter()
            .flat_map(|server| CLIENTS.iter().map(move |client| (*server, *client)));
        pairs
            .flat_map(|(server, client)| ALL_BESIDE.map(|beside| (server, client, beside)))
            .collect()
    };
    let rounds: Vec<_> = match storm.scale {
        Scale::Short => SHORT.to_vec(),
        Scale::Whole => whole(),
    };
    let mut failed = 0;
    for beside in ALL_BESIDE {
        let mut sum = Done::default();
        for (server, client, _) in rounds.iter().filter(|round| round.2 == beside) {
            if let Err(error) = round(storm, server, client, beside, &mut sum) {
                println!("  FAILED: {server}, {client} ({beside}): {error:#}");
                let log = storm.lab.broker_log();
                let last = log.lines().rev().take(LOG_LINES).collect::<Vec<_>>();
                last.iter()
                    .rev()
                    .for_each(|line| println!("  broker: {line}"));
                failed += 1;
            }
        }
        storm.figure(
            &beside.to_string(),
            format_args!(
                "{} connections, {} messages, {} MB each way, {} MB in all by rings",
                sum.connections,
                sum.messages,
                sum.bytes >> 20,
                sum.ring_bytes >> 20
            ),
        );
        let least = match beside {
            Beside {
                path: PathChoice::Kernel,
                ..
            } => 0,
            Beside { forks: true, .. } => 1,
            _ => sum.bytes / RING_SHARE,
        };
        if sum.ring_bytes < least || least == 0 && sum.ring_bytes != 0 {
            println!(
                "  FAILED: {} of {} bytes by rings ({beside})",
                sum.ring_bytes, sum.bytes
            );
            failed += 1;
        }
    }
    ensure!(failed == 0, "{failed} of {} rounds", rounds.len());
    storm.channels_gone()?;
    Ok(())
}

fn round(storm: &Storm, server: &str, client: &str, beside: Beside, sum: &mut Done) -> Result<()> {
    let rings_before = storm.lab.ring_bytes()?;
    let play = |role: &str, more: &[&str]| {
        let forks = if beside.forks { "1" } else { "0" };
        let words = [PROGRAM, role, server, client, forks];
        let spawn = Spawn::new(words.iter().chain(more).copied())
            .stdin(Stdin::Pipe)
            .time_limit(ROUND_LIMIT);
        match beside.first_call {
            true => spawn.env("FORDWAY_OFFER_AFTER", "0"),
            false => spawn,
        }
    };
    let (mut serving, port) = storm.serve_at(&Place::Here, beside.path, &play("server", &[]))?;
    let dialling = play("client", &[&port, ROUND_SECONDS]);
    let dialling = storm.lab.spawn(&Place::Here, beside.path, &dialling)?;
    let until = Instant::now() + ROUND_LIMIT;
    while !dialling.ends_within(DOWNGRADES_EVERY) && Instant::now() < until {
        if beside.downgrades {
            storm.lab.ask(&Request::Downgrade { channel: None })?;
        }
    }
    let said = match dialling.finish().and_then(Output::ok) {
        Ok(output) => output.text(),
        Err(error) => bail!("{error:#}\n{}", serving.stop()?.errors()),
    };
    let mut numbers = said.split_whitespace().map(str::parse::<u64>);
    let mut number = || {
        numbers
            .next()
            .context("the client says too little")?
            .context(said.clone())
    };
    let (connections, messages, bytes) = (number()?, number()?, number()?);
    tell(&mut serving, &connections.to_string())?;
    serving.finish()?.ok()?;
    let ring_bytes = storm.lab.ring_bytes()? - rings_before;
    sum.connections += connections;
    sum.messages += messages;
    sum.bytes += bytes;
    sum.ring_bytes += ring_bytes;
    ensure!(
        ring_bytes <= 2 * bytes,
        "{ring_bytes} bytes by rings, of {bytes} each way"
    );
    Ok(())
}
