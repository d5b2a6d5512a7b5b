//! nf_tables: a namespace that forwards what comes in by one cable to another one, whose far
//! end takes it for somebody else's. A packet is sent, filtered and thrown away within one
//! system call.

use super::rules::{self, Rules};
use crate::pairs::median;
use anyhow::{Context, Result, bail, ensure};
use fordway_platform::frames::{FrameFile, FrameNotes};
use fordway_platform::{netns, packet};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const BATCHES: usize = 20;
const BATCH: usize = 500;
/// How long the last packets may take.
const SETTLE: Duration = Duration::from_secs(5);

const LINKS: &str = "link set lo up
link add a0 address 02:00:00:00:00:0a type veth peer name b0 address 02:00:00:00:00:0b
link add c0 type veth peer name d0
link set b0 arp off up
link set a0 arp off up
link set d0 arp off up
link set c0 arp off up
route add default dev c0
";

/// A namespace with rules.
#[derive(Debug)]
pub struct Rig {
    ns: OwnedFd,
    socket: FrameFile,
    frames: Vec<Vec<u8>>,
}

impl Rig {
    /// Makes it. The rules are in force when this returns.
    pub fn new(rules: &Rules) -> Result<Rig> {
        let ns = netns::anonymous()?;
        let socket = netns::within(ns.as_fd(), || -> Result<FrameFile> {
            for (path, value) in [
                ("ipv4/ip_forward", "1"),
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
                ("ipv6/conf/all/disable_ipv6", "1"),
                ("ipv6/conf/default/disable_ipv6", "1"),
            ] {
                std::fs::write(format!("/proc/sys/net/{path}"), value)
                    .with_context(|| path.to_owned())?;
            }
            tell("ip", &["-batch", "-"], LINKS)?;
            tell("nft", &["-f", "-"], &rules.text)?;
            Ok(packet::open("a0")?)
        })??;
        let rig = Rig {
            ns,
            socket,
            frames: rules::packets().iter().map(|ip| frame(ip)).collect(),
        };
        rig.wait_for_link()?;
        if rules.tracks {
            for packet in rules::flows() {
                rig.socket.send(&frame(&packet), FrameNotes::default())?;
            }
        }
        Ok(rig)
    }

    /// The cable drops what is sent until the kernel's worker has seen both ends.
    fn wait_for_link(&self) -> Result<()> {
        let until = Instant::now() + SETTLE;
        while self.passed()? == 0 {
            ensure!(Instant::now() < until, "no packet passes");
            self.socket.send(&self.frames[0], FrameNotes::default())?;
        }
        Ok(())
    }

    /// Nanoseconds of a packet; an error if one was lost.
    pub fn sample_ns(&self) -> Result<f64> {
        let before = self.passed()?;
        let mut frames = self.frames.iter().cycle();
        let mut batches = Vec::with_capacity(BATCHES);
        for _ in 0..BATCHES {
            let start = Instant::now();
            for frame in frames.by_ref().take(BATCH) {
                self.socket.send(frame, FrameNotes::default())?;
            }
            batches.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
        }
        let until = Instant::now() + SETTLE;
        while self.passed()? < before + (BATCHES * BATCH) as u64 {
            ensure!(Instant::now() < until, "packets were lost");
        }
        Ok(median(batches))
    }

    /// Packets that went out.
    fn passed(&self) -> Result<u64> {
        let text = netns::within(self.ns.as_fd(), || {
            std::fs::read_to_string("/proc/thread-self/net/dev")
        })??;
        // proc_pid_net(5): eight columns of what came in, then packets sent at the tenth.
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("c0:"));
        let sent = line.and_then(|line| line.split_whitespace().nth(9)?.parse().ok());
        sent.context("no interface c0")
    }
}

/// To the namespace's end of the cable.
fn frame(ip: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 0x0b, 2, 0, 0, 0, 0, 0x0a, 8, 0], ip].concat()
}

pub fn tell(program: &str, arguments: &[&str], text: &str) -> Result<()> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| program.to_owned())?;
    let mut input = child.stdin.take().context("no pipe")?;
    input.write_all(text.as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
