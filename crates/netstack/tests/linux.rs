//! The stack against the kernel's: a tap device in a network namespace of its own, the kernel's
//! TCP, UDP and ICMP at the far end, with offloads and without. Skipped, with a line, where that
//! needs rights that are missing.

#[path = "common/bench.rs"]
mod bench;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use bench::{Bench, OURS, OURS_V6, PATIENCE};
use fordway_netstack::{Drop, Error, Event, ListenerId, Stack, TcpId, TcpOptions};

const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

fn pattern(at: usize) -> u8 {
    (at * 7 + at / 253) as u8
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
