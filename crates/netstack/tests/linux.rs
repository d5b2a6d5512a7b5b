//! The stack against the kernel's: a tap device in a network namespace of its own, the kernel's
//! TCP, UDP and ICMP at the far end, with offloads and without. Skipped, with a line, where that
//! needs rights that are missing.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fordway_netstack::{
    ChecksumRequest, Cidr, Config, Drop, Error, Event, ListenerId, Offloads, RxChecksum, RxFrame,
    Stack, TcpId, TcpOptions, TxFrame,
};
use fordway_platform::netns;
use fordway_platform::tap::{FrameNotes, Tap};

const MAC: [u8; 6] = [2, 0xf0, 0, 0, 0, 7];
const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const OURS_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
const PATIENCE: Duration = Duration::from_secs(20);

fn pattern(at: usize) -> u8 {
    (at * 7 + at / 253) as u8
}

/// Frames that the stack has sent, as far as a test wants to look at them.
#[derive(Clone, Debug)]
struct Sent {
    frame: Vec<u8>,
    notes: TxFrame,
}

struct Bench {
    namespace: OwnedFd,
    tap: Tap,
    stack: Stack,
    sent: Vec<Sent>,
    received: Vec<Vec<u8>>,
}

impl Bench {
    /// `None` where this cannot be done.
    fn new(offloads: bool) -> Option<Bench> {
        if !rustix::process::geteuid().is_root() {
            fordway_test_skip::skipped("needs root for a network namespace with a tap device");
            return None;
        }
        let namespace = netns::anonymous().expect("a namespace");
        let tap = netns::within(namespace.as_fd(), || {
            let tap = Tap::open("tap0", offloads);
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
    fn run<T: Send>(
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
        let headers = frame.checksum.map_or(0, |request| request.start + 20);
        self.tap
            .send(bytes, notes, headers)
            .expect("the kernel takes the frame");
    }
}

/// Port 7 echoes; port 80 answers `GET /N` with N bytes and closes.
#[derive(Default)]
struct Servers {
    http: Option<ListenerId>,
    connections: HashMap<TcpId, Connection>,
}

#[derive(Default)]
struct Connection {
    is_http: bool,
    request: Vec<u8>,
    out: Vec<u8>,
    body: std::ops::Range<usize>,
    ends: bool,
}

impl Servers {
    fn new(stack: &mut Stack, options: TcpOptions) -> Servers {
        stack.tcp_listen(None, 7, 64, options).expect("listens");
        stack.udp_bind(None, 7).expect("binds");
        Servers {
            http: stack.tcp_listen(None, 80, 64, options).ok(),
            connections: HashMap::new(),
        }
    }

    fn serve(&mut self, stack: &mut Stack) {
        while let Some(event) = stack.event() {
            match event {
                Event::Accept(listener) => {
                    while let Ok((id, _)) = stack.tcp_accept(listener) {
                        let is_http = Some(listener) == self.http;
                        self.connections.insert(
                            id,
                            Connection {
                                is_http,
                                ..Connection::default()
                            },
                        );
                        self.touch(stack, id);
                    }
                }
                Event::Tcp(id, _) => self.touch(stack, id),
                Event::Udp(id) => {
                    let mut buffer = vec![0; 65_536];
                    while let Ok((len, _, from, to)) = stack.udp_receive(id, &mut buffer) {
                        stack
                            .udp_send_from(id, Some(to), from, &buffer[..len])
                            .expect("answers");
                    }
                }
                _ => {}
            }
        }
    }

    fn touch(&mut self, stack: &mut Stack, id: TcpId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let mut buffer = [0; 16_384];
        loop {
            if connection.out.len() > 200_000 {
                break;
            }
            match stack.tcp_receive(id, &mut buffer) {
                Ok(0) => {
                    connection.ends = true;
                    break;
                }
                Ok(len) if connection.is_http => {
                    connection.request.extend_from_slice(&buffer[..len]);
                    if connection.request.windows(4).any(|w| w == b"\r\n\r\n") {
                        connection.answer();
                    }
                }
                Ok(len) => connection.out.extend_from_slice(&buffer[..len]),
                Err(Error::WouldBlock) => break,
                Err(_) => {
                    let _ = stack.tcp_close(id);
                    self.connections.remove(&id);
                    return;
                }
            }
        }
        loop {
            while connection.out.len() < 65_536
                && let Some(at) = connection.body.next()
            {
                connection.out.push(pattern(at));
            }
            if connection.out.is_empty() {
                break;
            }
            match stack.tcp_send(id, &connection.out) {
                Ok(len) => drop_front(&mut connection.out, len),
                Err(_) => return,
            }
        }
        if connection.ends {
            stack.tcp_close(id).expect("closes");
            self.connections.remove(&id);
        }
    }
}

fn drop_front(bytes: &mut Vec<u8>, len: usize) {
    bytes.drain(..len);
}

impl Connection {
    fn answer(&mut self) {
        let text = String::from_utf8_lossy(&self.request).into_owned();
        let wanted = text
            .split(['/', ' '])
            .find_map(|word| word.parse::<usize>().ok());
        let len = wanted.unwrap_or(0);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
        self.out.extend_from_slice(head.as_bytes());
        self.body = 0..len;
        self.ends = true;
    }
}

/// Sends `total` bytes to the echo port and compares what comes back.
fn echo(to: SocketAddr, total: usize) {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut writer = stream.try_clone().expect("a descriptor");
    let sender = std::thread::spawn(move || {
        let bytes: Vec<u8> = (0..total).map(pattern).collect();
        for chunk in bytes.chunks(50_000) {
            writer.write_all(chunk).expect("writes");
        }
        writer.shutdown(Shutdown::Write).expect("shuts");
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("reads to the end");
    sender.join().expect("joins");
    assert_eq!(received.len(), total);
    assert!(
        received
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == pattern(at))
    );
}

fn ours(is_ipv6: bool, port: u16) -> SocketAddr {
    let address = if is_ipv6 {
        IpAddr::V6(OURS_V6)
    } else {
        IpAddr::V4(OURS)
    };
    SocketAddr::new(address, port)
}

fn fetch_and_echo(offloads: bool, is_ipv6: bool) -> Option<Bench> {
    let mut bench = Bench::new(offloads)?;
    let mut servers = Servers::new(&mut bench.stack, TcpOptions::default());
    bench.run(
        |stack, _| servers.serve(stack),
        || {
            for total in [1, 1000, 100_000, 2_000_000] {
                echo(ours(is_ipv6, 7), total);
            }
            let url = format!("http://{}/5000000", ours(is_ipv6, 80));
            let done = Command::new("curl")
                .args(["-s", "-g", "-m", "20", &url])
                .output();
            let body = done.expect("curl runs").stdout;
            assert_eq!(body.len(), 5_000_000);
            assert!(
                body.iter()
                    .enumerate()
                    .all(|(at, byte)| *byte == pattern(at))
            );
        },
    );
    Some(bench)
}

#[test]
fn bytes_are_right_without_offloads() {
    let Some(bench) = fetch_and_echo(false, false) else {
        return;
    };
    assert!(
        bench
            .sent
            .iter()
            .all(|s| s.notes.gso_bytes.is_none() && s.notes.checksum.is_none())
    );
    assert!(bench.sent.iter().all(|s| s.frame.len() <= 1514));
    fetch_and_echo(false, true);
}

#[test]
fn bytes_are_right_with_offloads() {
    for is_ipv6 in [false, true] {
        let Some(bench) = fetch_and_echo(true, is_ipv6) else {
            return;
        };
        let largest = bench.sent.iter().filter(|s| s.notes.gso_bytes.is_some());
        let largest = largest.map(|s| s.frame.len()).max();
        assert!(
            largest > Some(20_000),
            "large segments leave as GSO: {largest:?}"
        );
        let counters = bench.stack.counters();
        for why in [Drop::Malformed, Drop::Checksum, Drop::Fragment, Drop::Full] {
            assert_eq!(counters.drops[why as usize], 0, "{why:?}: {counters:?}");
        }
    }
}

#[test]
fn ping_both_ways() {
    let Some(mut bench) = Bench::new(false) else {
        return;
    };
    let mut is_asked = false;
    let mut replies = Vec::new();
    bench.run(
        |stack, _| {
            if !is_asked {
                stack.ping(THEIRS.into(), 77, 1, &[7; 56]).expect("pings");
                stack
                    .ping(THEIRS.into(), 77, 2, &[7; 3000])
                    .expect("pings in fragments");
                let six = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
                stack
                    .ping(six.into(), 77, 3, &[7; 4000])
                    .expect("pings in fragments");
                is_asked = true;
            }
            while stack.event().is_some() {}
            replies.extend(std::iter::from_fn(|| stack.ping_reply()));
        },
        || {
            for words in [
                "-c 3 -i 0.01 -W 5 10.77.0.2",
                "-c 200 -f -W 5 10.77.0.2",
                "-c 2 -i 0.01 -W 5 -s 9000 10.77.0.2",
                "-6 -c 3 -i 0.01 -W 5 fd77::2",
                "-6 -c 2 -i 0.01 -W 5 -s 9000 fd77::2",
            ] {
                let done = Command::new("ping")
                    .args(words.split(' '))
                    .output()
                    .expect("ping runs");
                let said = String::from_utf8_lossy(&done.stdout).into_owned();
                assert!(said.contains(" 0% packet loss"), "ping {words}: {said}");
            }
        },
    );
    let mut sequences: Vec<u16> = replies.iter().map(|r| r.sequence).collect();
    sequences.sort_unstable();
    assert_eq!(sequences, [1, 2, 3], "{replies:?}");
}

#[test]
fn datagrams_of_all_sizes_come_back() {
    let Some(mut bench) = Bench::new(false) else {
        return;
    };
    let mut servers = Servers::new(&mut bench.stack, TcpOptions::default());
    bench.run(
        |stack, _| servers.serve(stack),
        || {
            for is_ipv6 in [false, true] {
                let any = if is_ipv6 { "[::]:0" } else { "0.0.0.0:0" };
                let socket = UdpSocket::bind(any).expect("binds");
                socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                for len in [0, 1, 1472, 1473, 4000, 60_000] {
                    let bytes: Vec<u8> = (0..len).map(pattern).collect();
                    socket.send_to(&bytes, ours(is_ipv6, 7)).expect("sends");
                    let mut buffer = vec![0; 65_536];
                    let (got, from) = socket.recv_from(&mut buffer).expect("an answer");
                    assert_eq!((got, from), (len, ours(is_ipv6, 7)));
                    assert!(buffer[..got] == bytes[..]);
                }
                // Nobody there: the kernel hears of it.
                socket.connect(ours(is_ipv6, 9)).expect("connects");
                socket.send(b"x").expect("sends");
                let refused = socket.recv(&mut [0; 8]).expect_err("refused");
                assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
            }
        },
    );
}

#[test]
fn we_connect_to_the_kernel() {
    let Some(mut bench) = Bench::new(true) else {
        return;
    };
    let target = SocketAddr::new(THEIRS.into(), 5000);
    let mut connection = None;
    let (mut sent, mut received) = (0, Vec::new());
    let is_ready = AtomicBool::new(false);
    const TOTAL: usize = 1_000_000;
    let bytes: Vec<u8> = (0..TOTAL).map(pattern).collect();
    bench.run(
        |stack, now| {
            if connection.is_none() && is_ready.load(Ordering::Acquire) {
                connection = stack
                    .tcp_connect(now, target, None, TcpOptions::default())
                    .ok();
            }
            while stack.event().is_some() {}
            let Some(id) = connection else { return };
            while sent < TOTAL
                && let Ok(len) = stack.tcp_send(id, &bytes[sent..])
            {
                sent += len;
            }
            let mut buffer = [0; 8192];
            while let Ok(len) = stack.tcp_receive(id, &mut buffer) {
                if len == 0 {
                    let _ = stack.tcp_shutdown(id);
                    break;
                }
                received.extend_from_slice(&buffer[..len]);
            }
        },
        || {
            let listener = std::net::TcpListener::bind(target).expect("listens");
            is_ready.store(true, Ordering::Release);
            let (mut stream, _) = listener.accept().expect("accepts");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let mut back = vec![0; TOTAL];
            stream.read_exact(&mut back).expect("reads");
            stream.write_all(&back).expect("writes");
            stream.shutdown(Shutdown::Write).expect("shuts");
            assert_eq!(stream.read(&mut back).expect("the end"), 0);
        },
    );
    assert!(received == bytes, "{} bytes", received.len());
}

/// The kernel's SYN and ours side by side: options that both must have, and what we answer.
#[test]
fn the_handshake_offers_what_it_should() {
    let Some(mut bench) = Bench::new(false) else {
        return;
    };
    let mut servers = Servers::new(&mut bench.stack, TcpOptions::default());
    bench.run(
        |stack, _| servers.serve(stack),
        || {
            echo(ours(false, 7), 10);
            let refused = TcpStream::connect_timeout(&ours(false, 99), PATIENCE);
            let kind = refused.expect_err("a closed port").kind();
            assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
        },
    );
    let syn_ack = bench
        .sent
        .iter()
        .map(|s| &s.frame)
        .find(|f| f.len() > 47 && f[23] == 6 && f[47] == 0x12);
    let options = &syn_ack.expect("a SYN-ACK was sent")[54..];
    // MSS 1460; SACK permitted; no window scaling is needed for 32 KB, but the option is there.
    assert_eq!(options[..8], [2, 4, 0x05, 0xb4, 1, 1, 4, 2], "{options:x?}");
    assert_eq!(options[8..11], [1, 3, 3], "{options:x?}");
}
