//! Frames cross each kind of port unchanged, with trains and blank checksums; and a driver that is killed is followed by another.

mod common;

use common::{Hosts, IP_A, IP_B, Seen, bulk, join, request_reply};
use fordway_driver::Port;
use fordway_driver::config::Wire;
use fordway_platform::netns;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const BYTES: u64 = 32 << 20;
const DRIVER: &str = env!("CARGO_BIN_EXE_fordway-driver");
/// Nobody's.
const UID: u32 = 0x7000_0000;

fn packet() -> Wire {
    Wire::Packet("da".into())
}

/// Set when the work is done, however it ends.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs `work` while the two ports are joined; what was seen of each direction, first of what host a sent.
fn while_joined(a: &mut Port, b: &mut Port, work: impl FnOnce() + Send) -> [Seen; 2] {
    let (seen, done) = (<[Seen; 2]>::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let end = Done(&done);
        let worker = scope.spawn(move || {
            let _end = end;
            work();
        });
        join(a, b, &seen, &done);
        worker.join().expect("the work");
    });
    seen
}

/// Both ways, in trains whose checksums nobody computed.
fn exchange(hosts: &Hosts, a: &mut Port, b: &mut Port) {
    let seen = while_joined(a, b, || {
        request_reply(&hosts.a, &hosts.b, IP_B, 64, 200);
        bulk(&hosts.a, &hosts.b, IP_B, BYTES);
        bulk(&hosts.b, &hosts.a, IP_A, BYTES);
    });
    for direction in &seen {
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (frames, trains) = (count(&direction.frames), count(&direction.trains));
        assert!(
            trains > 0 && count(&direction.blank) > trains,
            "{direction:?}"
        );
        // Cut into segments it would be ten times as many.
        assert!(frames < BYTES / 4096, "{direction:?}");
    }
}

#[test]
fn a_packet_socket_carries_trains_and_blank_checksums() {
    let Some(hosts) = Hosts::new() else { return };
    exchange(&hosts, &mut hosts.port("da"), &mut hosts.port("db"));
}

#[test]
fn so_does_a_tap() {
    let Some(hosts) = Hosts::new() else { return };
    exchange(&hosts, &mut hosts.tap(), &mut hosts.port("db"));
}

#[test]
fn so_does_a_driver_in_a_process_of_its_own() {
    let Some(hosts) = Hosts::new() else { return };
    let (mut driver, _link, mut a) = hosts.driver(Path::new(DRIVER), packet(), UID);
    exchange(&hosts, &mut a, &mut hosts.port("db"));
    let counters = a.queue_counters().expect("a queue");
    assert_eq!((counters.joins, counters.violations), (1, 0));
    driver.kill().expect("killed");
    driver.wait().expect("waited");
}

/// What nobody completes behind AF_XDP is complete in a ping.
#[test]
fn af_xdp_carries_frames_that_need_nothing() {
    let Some(hosts) = Hosts::new() else { return };
    let wire = Wire::Xdp("da".into());
    let (mut driver, _link, mut a) = hosts.driver(Path::new(DRIVER), wire, UID);
    let seen = while_joined(&mut a, &mut hosts.port("db"), || {
        // The first one may go while the link comes up.
        for (count, size) in [("1", "56"), ("300", "56"), ("300", "1400")] {
            let mut ping = Command::new("ping");
            ping.args([
                "-q", "-i", "0.002", "-w", "20", "-p", "5a", "-c", count, "-s", size,
            ]);
            ping.arg(IP_B.to_string());
            let said = netns::within(hosts.a.as_fd(), || ping.output());
            let said = said.expect("the namespace").expect("ping");
            let text = String::from_utf8_lossy(&said.stdout);
            assert!(said.status.success() && !text.contains("wrong"), "{text}");
        }
    });
    let frames = seen.map(|direction| direction.frames.into_inner());
    assert!(frames.iter().all(|count| *count >= 601), "{frames:?}");
    driver.kill().expect("killed");
    driver.wait().expect("waited");
}

#[test]
fn a_driver_that_is_killed_is_followed_by_another() {
    const KILLS: usize = 20;
    let Some(hosts) = Hosts::new() else { return };
    let (mut driver, link, mut a) = hosts.driver(Path::new(DRIVER), packet(), UID);
    let files_before = open_files();
    let mut b = hosts.port("db");
    while_joined(&mut a, &mut b, || {
        for _ in 0..KILLS {
            // A connection of its own each time: it is there when the driver dies, and ends well under the next one.
            std::thread::scope(|scope| {
                scope.spawn(|| bulk(&hosts.a, &hosts.b, IP_B, BYTES / 16));
                driver.kill().expect("killed");
                driver.wait().expect("waited");
                driver = hosts.start_driver(Path::new(DRIVER), packet(), UID, &link);
            });
        }
    });
    let counters = a.queue_counters().expect("a queue");
    assert!(
        counters.joins >= 2 && counters.violations == 0,
        "{counters:?}"
    );
    driver.kill().expect("killed");
    driver.wait().expect("waited");
    drop(b);
    // What each join brought is closed again.
    assert!(
        open_files() <= files_before + 2,
        "{files_before} {}",
        open_files()
    );
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}
