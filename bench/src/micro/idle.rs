//! How often a receiver of datagrams wakes up to which nobody sends: by rings, its flow paired, beside one of the kernel's.

use super::end::Talk;
use super::job::{Job, Transport};
use super::sample::{self, Contender, Conversation};
use crate::placement::{self, Placement};
use crate::report::Row;
use crate::work::settled_ring_bytes;
use anyhow::{Result, ensure};
use fordway_lab::{Lab, interrupt, proc};
use std::time::{Duration, Instant};

/// The row's name.
pub const NAME: &str = "udp-idle";
/// How long the receivers are watched.
pub const WINDOW: Duration = Duration::from_secs(10);
/// The driving end has warmed up, and sleeps before its first round.
const PAUSE: Duration = Duration::from_secs(3600);

/// The row.
pub fn row(lab: &Lab) -> Result<Row> {
    let job = Job {
        transport: Transport::Datagram,
        pause: PAUSE,
        ..Job::new(NAME.to_owned(), Talk::Rtt, 64)
    };
    let rings_before = lab.ring_bytes()?;
    let start = |contender| sample::start(lab, contender, &job, PAUSE);
    let pair = [start(Contender::Fast)?, start(Contender::KernelLoopback)?];
    // Both have warmed up once nothing moves by the rings, which is behind the slower one.
    ensure!(
        settled_ring_bytes(lab, rings_before, true)? > 0,
        "nothing went through rings"
    );
    let regime = placement::regime()?;
    let sleeps = |talk: &Conversation| talk.servers().map(proc::sleeps).sum::<u64>() as f64;
    let before = pair.each_ref().map(sleeps);
    let until = Instant::now() + WINDOW;
    while Instant::now() < until {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let after = pair.each_ref().map(sleeps);
    for conversation in pair {
        conversation.stop()?;
    }
    let rival = Contender::KernelLoopback.name();
    Ok(Row {
        value: after[0] - before[0],
        rival_value: after[1] - before[1],
        runs: 1,
        ..Row::new(&job.name, rival, "wake-ups/10s", regime, Placement::Apart)
    })
}
