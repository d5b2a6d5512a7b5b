//! Frames cross each kind of port unchanged, with trains and blank checksums; and a driver that is killed is followed by another.

mod common;

use common::{Hosts, IP_A, IP_B, MAC_A, MAC_B, Seen, bulk, join, request_reply};
use fordway_driver::config::Wire;
use fordway_driver::guard::Refusal;
use fordway_driver::{FRAME_BYTES_MAX, Frame, FrameNotes, Port};
use fordway_platform::frames::FrameFile;
use fordway_platform::{netns, packet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const BYTES: u64 = 32 << 20;
const DRIVER: &str = env!("CARGO_BIN_EXE_fordway-driver");
/// Nobody's.
const UID: u32 = 0x7000_0000;

fn packet_socket() -> Wire {
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
    let (mut driver, _link, mut a) = hosts.driver(Path::new(DRIVER), packet_socket(), UID);
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
    let (mut driver, link, mut a) = hosts.driver(Path::new(DRIVER), packet_socket(), UID);
    let files_before = open_files();
    let mut b = hosts.port("db");
    while_joined(&mut a, &mut b, || {
        for _ in 0..KILLS {
            // A connection of its own each time: it is there when the driver dies, and ends well under the next one.
            std::thread::scope(|scope| {
                scope.spawn(|| bulk(&hosts.a, &hosts.b, IP_B, BYTES / 16));
                driver.kill().expect("killed");
                driver.wait().expect("waited");
                driver = hosts.start_driver(Path::new(DRIVER), packet_socket(), UID, &link);
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

const PATIENCE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};
/// Whom all frames are for that a test makes by hand: nobody else has any.
const MARK: [u8; 6] = [2, 0x5a, 0, 0, 0, 0x5a];
const MAC_OTHER: [u8; 6] = [2, 0, 0, 0, 0, 0x0c];
const IP_OTHER: [u8; 4] = [10, 9, 0, 3];

/// A driver's program whose last words go to a file.
struct Told {
    dir: PathBuf,
}

impl Told {
    fn new() -> Told {
        let dir = std::env::temp_dir().join(format!("fwd-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        // By another process: what this one has open for writing, a child of another test might have open still when it is run.
        let write = "printf '#!/bin/sh\\nexec %s \"$1\" 2>%s/said\\n' \"$0\" \"$1\" >\"$1/driver\" && chmod 755 \"$1/driver\"";
        let mut command = Command::new("sh");
        command.args(["-c", write, DRIVER]).arg(&dir);
        assert!(command.status().expect("sh").success());
        Told { dir }
    }

    fn program(&self) -> PathBuf {
        self.dir.join("driver")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.dir.join("said")).expect("what it said")
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn ethernet(source: [u8; 6], rest: &[u8]) -> Vec<u8> {
    [&MARK[..], &source, rest].concat()
}

/// From Ethernet's kind on; `number` tells one from another.
fn four(source: [u8; 4], number: u8) -> Vec<u8> {
    let header = [8, 0, 0x45, 0, 0, 40, 0, number, 0x40, 0, 64, 6, 0, 0];
    [&header[..], &source, &IP_A.octets(), &[number; 20]].concat()
}

fn six(source: u8) -> Vec<u8> {
    let mut address = [0; 16];
    address[0] = 0xfd;
    address[15] = source;
    [
        &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 59, 64][..],
        &address,
        &[0; 36],
    ]
    .concat()
}

fn arp(mac: [u8; 6], source: [u8; 4]) -> Vec<u8> {
    [
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2][..],
        &mac,
        &source,
        &MAC_A,
        &IP_A.octets(),
        &[0; 18],
    ]
    .concat()
}

/// What no stack may send, under the words by which the driver counts it.
fn forged() -> Vec<(&'static str, Vec<u8>, FrameNotes)> {
    let own = IP_B.octets();
    let plain = FrameNotes::default();
    let at = |start| FrameNotes {
        checksum: Some((start, 16)),
        ..plain
    };
    let train = |bytes| FrameNotes {
        gso_bytes: Some(bytes),
        ..plain
    };
    let tagged = [&[0x81, 0, 0, 7][..], &four(own, 7)].concat();
    vec![
        ("short", MARK.to_vec(), plain),
        ("short", ethernet(MAC_B, &four(own, 7)[..21]), plain),
        ("short", ethernet(MAC_B, &arp(MAC_B, own)[..29]), plain),
        ("source-mac", ethernet(MAC_OTHER, &four(own, 7)), plain),
        ("source-mac", ethernet(MAC_A, &arp(MAC_B, own)), plain),
        ("kind", ethernet(MAC_B, &tagged), plain),
        ("kind", ethernet(MAC_B, &[0x88, 0xb5, 1, 2]), plain),
        ("source-address", ethernet(MAC_B, &four(IP_OTHER, 7)), plain),
        (
            "source-address",
            ethernet(MAC_B, &four(IP_A.octets(), 7)),
            plain,
        ),
        ("source-address", ethernet(MAC_B, &six(3)), plain),
        (
            "source-address",
            ethernet(MAC_B, &arp(MAC_B, IP_OTHER)),
            plain,
        ),
        (
            "source-address",
            ethernet(MAC_B, &arp(MAC_OTHER, own)),
            plain,
        ),
        // Over the addresses; over ARP's words; more pieces than any frame needs.
        ("notes", ethernet(MAC_B, &four(own, 7)), at(10)),
        ("notes", ethernet(MAC_B, &arp(MAC_B, own)), at(42)),
        ("notes", ethernet(MAC_B, &four(own, 7)), train(1)),
        // A checksum behind the frame's end.
        ("kernel", ethernet(MAC_B, &four(own, 7)), at(2000)),
    ]
}

/// All of them at once, into the queue.
fn send(stack: &mut Port, frames: &[(&[u8], FrameNotes)]) {
    let mut left = frames.iter();
    let all = stack.send(|buffer| {
        let (frame, notes) = left.next()?;
        buffer[..frame.len()].copy_from_slice(frame);
        Some(Frame {
            bytes: frame.len(),
            notes: *notes,
        })
    });
    assert!(all.expect("the port is there"), "no room");
}

/// The next frame of a test's own that host a gets.
fn next_at(host: &FrameFile, patience: &Timespec) -> Option<Vec<u8>> {
    let mut buffer = vec![0; FRAME_BYTES_MAX];
    loop {
        match host.receive(&mut buffer).expect("the interface is there") {
            Some((length, _)) if buffer.starts_with(&MARK) => {
                return Some(buffer[..length].to_vec());
            }
            Some(_) => {}
            None => {
                let shown = poll(&mut [PollFd::new(host, PollFlags::IN)], Some(patience));
                if shown.expect("poll") == 0 {
                    return None;
                }
            }
        }
    }
}

/// A stack that lies to its driver, in frames and in notes: its far end sees what is true, and the driver has counted the rest.
#[test]
fn forged_frames_reach_nobody_and_are_counted() {
    let Some(hosts) = Hosts::new() else { return };
    let told = Told::new();
    let (mut driver, link, mut stack) = hosts.driver(&told.program(), packet_socket(), UID);
    let host = netns::within(hosts.a.as_fd(), || packet::open("eth0"));
    let host = host.expect("the namespace").expect("a packet socket");
    let shown = poll(&mut [PollFd::new(&stack, PollFlags::IN)], Some(&PATIENCE));
    assert_eq!(shown, Ok(1), "the driver has answered");
    stack.woken().expect("the link");
    let good = |number| ethernet(MAC_B, &four(IP_B.octets(), number));
    // The first ones may go while the link comes up.
    let soon = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    let mut tries = 0;
    loop {
        send(&mut stack, &[(&good(1), FrameNotes::default())]);
        if let Some(frame) = next_at(&host, &soon) {
            assert_eq!(frame, good(1));
            break;
        }
        tries += 1;
        assert!(tries < 3000, "nothing passes");
    }
    let (forged, last) = (forged(), good(2));
    let mut frames: Vec<(&[u8], FrameNotes)> = forged
        .iter()
        .map(|(_, frame, notes)| (&frame[..], *notes))
        .collect();
    frames.push((&last, FrameNotes::default()));
    send(&mut stack, &frames);
    // Nothing between the good ones.
    loop {
        let frame = next_at(&host, &PATIENCE).expect("the last one comes");
        if frame == last {
            break;
        }
        assert_eq!(frame, good(1), "a forged frame has passed");
    }
    // It has looked at all of them: with its link it ends.
    let process = pidfd_open(Pid::from_child(&driver), PidfdFlags::empty()).expect("a pidfd");
    drop((link, stack));
    let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&PATIENCE));
    if ended != Ok(1) {
        driver.kill().expect("killed");
    }
    let status = driver.wait().expect("waited");
    let line = |word: &str, count: usize| {
        format!("fordway-driver of {IP_B}: frames refused ({word}): {count}\n")
    };
    let count = |frames: &[(&str, Vec<u8>, FrameNotes)], word: &str| {
        frames.iter().filter(|(other, ..)| *other == word).count()
    };
    // The first of a kind, the second, the fourth; at the end what is left to tell.
    let mut lines = String::new();
    for (at, (word, ..)) in forged.iter().enumerate() {
        let count = count(&forged[..=at], word);
        if count.is_power_of_two() {
            lines += &line(word, count);
        }
    }
    let mut words: Vec<&str> = forged.iter().map(|(word, ..)| *word).collect();
    words.dedup();
    words.sort_by_key(|word| {
        Refusal::ALL
            .iter()
            .position(|refusal| refusal.word() == *word)
    });
    for word in words {
        let count = count(&forged, word);
        if !count.is_power_of_two() {
            lines += &line(word, count);
        }
    }
    assert_eq!(told.said(), lines);
    assert!(status.success(), "{status}");
    assert_eq!(next_at(&host, &soon), None, "a forged frame has passed");
}
