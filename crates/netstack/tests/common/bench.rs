//! The stack at a tap device in a network namespace of its own, whose far end is Linux.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fordway_netstack::{
    ChecksumRequest, Cidr, Config, Offloads, RxChecksum, RxFrame, Stack, TxFrame,
};
use fordway_platform::frames::{FrameFile, FrameNotes};
use fordway_platform::netns;
use fordway_platform::tap;

pub const MAC: [u8; 6] = [2, 0xf0, 0, 0, 0, 7];
pub const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub const OURS_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Frames that the stack has sent, as far as a test wants to look at them.
#[derive(Clone, Debug)]
pub struct Sent {
    pub frame: Vec<u8>,
    pub notes: TxFrame,
}

pub struct Bench {
    pub namespace: OwnedFd,
    tap: FrameFile,
    pub stack: Stack,
    pub sent: Vec<Sent>,
    pub received: Vec<Vec<u8>>,
}

impl Bench {
    /// `None` where this cannot be done.
    pub fn new(offloads: bool) -> Option<Bench> {
        if !rustix::process::geteuid().is_root() {
            fordway_test_skip::skipped("needs root for a network namespace with a tap device");
            return None;
        }
        let namespace = netns::anonymous().expect("a namespace");
        let tap = netns::within(namespace.as_fd(), || {
            let tap = tap::open("tap0", offloads);
            for words in [
                "link set lo up",
                "address add 10.77.0.1/24 dev tap0",
                "-6 address add fd77::1/64 dev tap0 nodad",
                "link set tap0 up",
            ] {
                let status = Command::new("ip").args(words.split(' ')).status();
                assert!(status.expect("ip runs").success(), "ip {words}");
            }
            tap
        });
        let tap = match tap.expect("the namespace is there") {
            Ok(tap) => tap,
            Err(error) => {
                fordway_test_skip::skipped(format_args!("no tap device: {error}"));
                return None;
            }
        };
        let mut config = Config::new(MAC, 0x1357_9bdf_0246_8ace);
        config.link.offloads = Offloads {
            tx_checksum_v4: offloads,
            tx_checksum_v6: offloads,
            gso_v4: offloads,
            gso_v6: offloads,
            gso_bytes_max: 0,
        };
        let mut stack = Stack::new(config);
        stack.set_addresses(&[
            Cidr::new(OURS.into(), 24),
            Cidr::new(OURS_V6.into(), 64),
            Cidr::link_local(&MAC),
        ]);
        Some(Bench {
            namespace,
            tap,
            stack,
            sent: Vec::new(),
            received: Vec::new(),
        })
    }

    /// Runs the stack with `app` while `client` runs in the kernel's namespace.
    pub fn run<T: Send>(
        &mut self,
        mut app: impl FnMut(&mut Stack, u64),
        client: impl FnOnce() -> T + Send,
    ) -> T {
        let is_done = AtomicBool::new(false);
        let namespace = self.namespace.try_clone().expect("a descriptor");
        std::thread::scope(|scope| {
            let done = &is_done;
            let client = scope.spawn(move || {
                let got = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    netns::within(namespace.as_fd(), client).expect("the namespace is there")
                }));
                done.store(true, Ordering::Release);
                got
            });
            let start = Instant::now();
            let mut buffer = vec![0; 70_000];
            while !is_done.load(Ordering::Acquire) {
                assert!(start.elapsed() < 3 * PATIENCE, "stuck");
                let now = start.elapsed().as_micros() as u64 + 1;
                while let Ok(Some((len, notes))) = self.tap.receive(&mut buffer) {
                    self.take(now, &mut buffer[..len], notes);
                }
                app(&mut self.stack, now);
                while let Some(frame) = self.stack.transmit(now, &mut buffer) {
                    self.give(&buffer[..frame.len_bytes], frame);
                }
                let poll_at = self.stack.poll_at().unwrap_or(u64::MAX);
                let wait_us = poll_at.saturating_sub(now).min(5_000);
                let timeout = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: (wait_us * 1000) as i64,
                };
                let mut waits = [rustix::event::PollFd::new(
                    &self.tap,
                    rustix::event::PollFlags::IN,
                )];
                let _ = rustix::event::poll(&mut waits, Some(&timeout));
            }
            client
                .join()
                .expect("joins")
                .unwrap_or_else(|e| std::panic::resume_unwind(e))
        })
    }

    fn take(&mut self, now: u64, bytes: &mut [u8], notes: FrameNotes) {
        if self.received.len() < 10_000 {
            self.received.push(bytes[..bytes.len().min(128)].to_vec());
        }
        let checksum = match notes {
            FrameNotes {
                checksum: Some(_), ..
            } => RxChecksum::Blank,
            FrameNotes {
                is_checksum_good: true,
                ..
            } => RxChecksum::Good,
            _ => RxChecksum::Unchecked,
        };
        self.stack.receive(now, &mut RxFrame { bytes, checksum });
    }

    fn give(&mut self, bytes: &[u8], frame: TxFrame) {
        if self.sent.len() < 10_000 {
            self.sent.push(Sent {
                frame: bytes.to_vec(),
                notes: frame,
            });
        }
        let notes = FrameNotes {
            checksum: frame
                .checksum
                .map(|ChecksumRequest { start, offset }| (start, offset)),
            is_checksum_good: false,
            gso_bytes: frame.gso_bytes,
            is_ipv6: frame.is_ipv6,
        };
        self.tap
            .send(bytes, notes)
            .expect("the kernel takes the frame");
    }
}
