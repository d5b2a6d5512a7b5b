//! What rings cost in memory: blocks of the memfds of the two programs, as the kernel
//! counts them (st_blocks), divided by the number of connections.

use super::end::Talk;
use super::job::Job;
use super::sample::{self, Contender};
use crate::placement::{self, Placement};
use crate::report::Row;
use anyhow::Result;
use fordway_lab::Lab;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Idle connections that are compared with one.
const IDLE: usize = 1000;
/// How long opening them may take.
const OPEN_LIMIT: Duration = Duration::from_secs(60);

/// Bytes for an idle connection, and for one that carries a stream.
pub fn rows(lab: &Lab, quick: bool) -> Result<Vec<Row>> {
    let regime = placement::regime()?;
    let job = |talk, size, idle| Job {
        idle,
        ..Job::new("memory".to_owned(), talk, size)
    };
    let idle_count = if quick { IDLE / 10 } else { IDLE };
    let one = held(lab, &job(Talk::Crowd, 64, 0))?;
    let many = held(lab, &job(Talk::Crowd, 64, idle_count))?;
    let busy = held(lab, &job(Talk::Stream, 64 << 10, 0))?;
    let row = |name: &str, bytes: f64| Row {
        value: bytes,
        runs: 1,
        ..Row::new(name, "none", "B", regime, Placement::Apart)
    };
    Ok(vec![
        row("memory-idle", (many - one) / idle_count as f64),
        row("memory-busy", busy),
    ])
}

/// Bytes of ring memory while the conversation goes on.
fn held(lab: &Lab, job: &Job) -> Result<f64> {
    let conversation = sample::start(lab, Contender::Fast, job, OPEN_LIMIT)?;
    lab.wait_until(OPEN_LIMIT, "all connections are on the fast path", || {
        let info = lab.info()?;
        Ok(info.channels as usize > job.idle && lab.ring_bytes()? > 0)
    })?;
    // A stream grows its ring within its first megabytes.
    let before = lab.ring_bytes()?;
    lab.wait_until(OPEN_LIMIT, "bytes flow", || {
        Ok(lab.ring_bytes()? > before + (64 << 10))
    })?;
    let mut memory: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for pid in conversation.pids() {
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            let is_memfd = fs::read_link(entry.path())
                .is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"));
            if is_memfd && let Ok(file) = fs::metadata(entry.path()) {
                memory.insert((file.dev(), file.ino()), file.blocks() * 512);
            }
        }
    }
    conversation.stop()?;
    Ok(memory.values().sum::<u64>() as f64)
}
