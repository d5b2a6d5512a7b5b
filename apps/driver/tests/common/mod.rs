//! Two hosts, each a network namespace with a cable, and between the far ends of the cables whatever is tried.
//!
//! ```text
//!   host a: eth0 ══ da ── (one port) ── the wire that a test makes ── (other port) ── db ══ eth0: host b
//! ```
//! `da` and `db` lie in a third namespace. Both hosts speak TCP by their kernel's own stack, over frames that the ports
//! carry: with trains and blank checksums if they do, without if they do not.
#![allow(dead_code, reason = "tests and the example use different parts")]

use fordway_driver::config::{DriverConfig, Mac, Wire};
use fordway_driver::{Frame, Port};
use fordway_platform::frames::FrameNotes;
use fordway_platform::launch::Part;
use fordway_platform::{netns, packet, tap};
use rustix::event::{PollFd, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
pub const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
pub const IP_A: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub const IP_B: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// See the module.
pub struct Hosts {
    pub a: OwnedFd,
    pub b: OwnedFd,
    pub middle: OwnedFd,
}

impl Hosts {
    /// `None` where this cannot be done.
    pub fn new() -> Option<Hosts> {
        if !rustix::process::geteuid().is_root() {
            fordway_test_skip::skipped("needs root for network namespaces");
            return None;
        }
        let [a, b, middle] = [(), (), ()].map(|()| netns::anonymous().expect("a namespace"));
        for (host, far, mac, ip) in [(&a, "da", MAC_A, IP_A), (&b, "db", MAC_B, IP_B)] {
            let mac = String::from(Mac(mac));
            let path = format!("/proc/{}/fd/{}", std::process::id(), host.as_raw_fd());
            run(
                &middle,
                &format!(
                    "link add {far} type veth peer name eth0 address {mac} netns {path}\n\
                link set {far} addrgenmode none\nlink set {far} arp off up\n"
                ),
            );
            run(
                host,
                &format!(
                    "link set lo up\nlink set eth0 addrgenmode none\naddr add {ip}/24 dev eth0\nlink set eth0 up\n"
                ),
            );
        }
        Some(Hosts { a, b, middle })
    }

    /// A port of the kernel's.
    pub fn port(&self, far: &str) -> Port {
        let file = netns::within(self.middle.as_fd(), || packet::open(far)).expect("the namespace");
        Port::kernel(file.expect("a packet socket"))
    }

    /// A tap in place of the cable of host a.
    pub fn tap(&self) -> Port {
        run(&self.a, "link del eth0\n");
        let file =
            netns::within(self.a.as_fd(), || tap::open("eth0", true)).expect("the namespace");
        let mac = String::from(Mac(MAC_A));
        run(
            &self.a,
            &format!(
                "link set eth0 address {mac} addrgenmode none\naddr add {IP_A}/24 dev eth0\nlink set eth0 up\n"
            ),
        );
        Port::kernel(file.expect("a tap"))
    }

    /// A driver in a process of its own for host a, and the port that it serves.
    pub fn driver(&self, program: &Path, wire: Wire, uid: u32) -> (Child, OwnedFd, Port) {
        let (driver, stack) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a link");
        let child = self.start_driver(program, wire, uid, &driver);
        (child, driver, Port::queue(stack).expect("a port"))
    }

    /// Another one, or the first, over this end of a link.
    pub fn start_driver(&self, program: &Path, wire: Wire, uid: u32, link: &OwnedFd) -> Child {
        let config = DriverConfig {
            wire,
            link: link.as_raw_fd(),
            mac: Mac(MAC_B),
            addresses: vec![IP_B.into()],
            uid,
        };
        let part = Part {
            program,
            config: &serde_json::to_vec(&config).expect("JSON"),
            inherits: &[link.as_fd()],
            netns: self.middle.as_fd(),
            variables: &[],
            user: None,
            gives_way: false,
            cpus: &[],
        };
        let started = part.start().expect("a driver");
        let untold = started.untold.expect("something to tell");
        untold.tell().expect("told");
        started.child
    }
}

/// `ip -batch` in a namespace.
fn run(ns: &OwnedFd, batch: &str) {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped());
    let mut child = netns::within(ns.as_fd(), || command.spawn())
        .expect("the namespace")
        .expect("ip");
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(batch.as_bytes())
        .expect("written");
    assert!(child.wait().expect("ends").success(), "{batch}");
}

/// What went over a wire.
#[derive(Debug, Default)]
pub struct Seen {
    pub frames: AtomicU64,
    pub trains: AtomicU64,
    pub blank: AtomicU64,
}

/// Two ports, joined: what comes in at one goes out at the other, unchanged. Runs until `done`.
pub fn join(a: &mut Port, b: &mut Port, seen: &[Seen; 2], done: &AtomicBool) {
    let mut waiting: [VecDeque<(Vec<u8>, FrameNotes)>; 2] = Default::default();
    let mut spare: Vec<Vec<u8>> = Vec::new();
    while !done.load(Ordering::Acquire) {
        let mut moved = false;
        let mut full = [false; 2];
        for at in 0..2 {
            let (from, to) = match at {
                0 => (&mut *a, &mut *b),
                _ => (&mut *b, &mut *a),
            };
            let queue = &mut waiting[at];
            if queue.len() < 64 {
                let count = from.receive(|bytes, notes| {
                    seen[at].frames.fetch_add(1, Ordering::Relaxed);
                    seen[at]
                        .trains
                        .fetch_add(u64::from(notes.gso_bytes.is_some()), Ordering::Relaxed);
                    seen[at]
                        .blank
                        .fetch_add(u64::from(notes.checksum.is_some()), Ordering::Relaxed);
                    let mut frame = spare.pop().unwrap_or_default();
                    frame.clear();
                    frame.extend_from_slice(bytes);
                    queue.push_back((frame, notes));
                });
                moved |= count.expect("the port is there") != 0;
            }
            let sent = to.send(|buffer| {
                let (frame, notes) = queue.pop_front()?;
                buffer[..frame.len()].copy_from_slice(&frame);
                let bytes = frame.len();
                spare.push(frame);
                moved = true;
                Some(Frame { bytes, notes })
            });
            full[1 - at] = !sent.expect("the port is there");
        }
        if moved {
            continue;
        }
        let may_sleep = a.may_sleep(full[0]) & b.may_sleep(full[1]);
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: if may_sleep { 20_000_000 } else { 0 },
        };
        let interest = [a.interest(), b.interest()];
        let mut fds = [PollFd::new(&*a, interest[0]), PollFd::new(&*b, interest[1])];
        poll(&mut fds, Some(&timeout)).expect("poll");
        a.woken().expect("the port is there");
        b.woken().expect("the port is there");
    }
}

/// The byte at a place of a stream.
fn pattern(seed: u64, at: u64) -> u8 {
    ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Sends so many bytes from one host to the other and verifies each; how long it took.
pub fn bulk(from: &OwnedFd, to: &OwnedFd, ip: Ipv4Addr, bytes: u64) -> Duration {
    std::thread::scope(|scope| {
        let listener = netns::within(to.as_fd(), || TcpListener::bind(SocketAddrV4::new(ip, 0)));
        let listener = listener.expect("the namespace").expect("a listener");
        let port = listener.local_addr().expect("a name").port();
        let sender = scope.spawn(move || {
            let connected = netns::within(from.as_fd(), || {
                TcpStream::connect(SocketAddrV4::new(ip, port))
            });
            let mut stream = connected.expect("the namespace").expect("a connection");
            let mut at = 0;
            let block: Vec<u8> = (0..1 << 20).map(|at| pattern(7, at)).collect();
            let start = Instant::now();
            while at < bytes {
                let count = (bytes - at).min(block.len() as u64) as usize;
                stream.write_all(&block[..count]).expect("written");
                at += count as u64;
            }
            stream.shutdown(std::net::Shutdown::Write).expect("shut");
            // The other end's close: it has all.
            assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
            start.elapsed()
        });
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        let block: Vec<u8> = (0..1 << 20).map(|at| pattern(7, at)).collect();
        let mut buffer = vec![0; 1 << 18];
        let mut at = 0u64;
        loop {
            let count = stream.read(&mut buffer).expect("bytes");
            if count == 0 {
                break;
            }
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                let within = (at & ((1 << 20) - 1)) as usize;
                let length = rest.len().min(block.len() - within);
                assert!(
                    rest[..length] == block[within..within + length],
                    "bytes at {at}"
                );
                rest = &rest[length..];
                at += length as u64;
            }
        }
        assert_eq!(at, bytes);
        drop(stream);
        sender.join().expect("sent")
    })
}

/// So many requests of so many bytes, one at a time, each answered with the same; how long they took.
pub fn request_reply(
    from: &OwnedFd,
    to: &OwnedFd,
    ip: Ipv4Addr,
    bytes: usize,
    count: usize,
) -> Duration {
    std::thread::scope(|scope| {
        let listener = netns::within(to.as_fd(), || TcpListener::bind(SocketAddrV4::new(ip, 0)));
        let listener = listener.expect("the namespace").expect("a listener");
        let port = listener.local_addr().expect("a name").port();
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_nodelay(true).expect("an option");
            let mut buffer = vec![0; bytes];
            while stream.read_exact(&mut buffer).is_ok() {
                stream.write_all(&buffer).expect("answered");
            }
        });
        let connected = netns::within(from.as_fd(), || {
            TcpStream::connect(SocketAddrV4::new(ip, port))
        });
        let mut stream = connected.expect("the namespace").expect("a connection");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        let mut buffer = vec![0; bytes];
        let start = Instant::now();
        for number in 0..count {
            buffer.fill(number as u8);
            stream.write_all(&buffer).expect("asked");
            stream.read_exact(&mut buffer).expect("answered");
            assert!(buffer.iter().all(|byte| *byte == number as u8));
        }
        start.elapsed()
    })
}
