//! Our TCP beside Linux's over the same bad link, as root:
//! `cargo run --release -p fordway-netstack --example lossy -- 3 4000000` (runs of each kind, bytes).
//!
//! The link is a program between two tap devices in namespaces of their own, or between one and
//! a stack in this process: 100 Mbit/s, 2 ms each way, a queue of 1,000 frames, losses both ways.
//! No offloads, so that each segment is lost by itself. Prints megabytes per second as the
//! receiver sees them, the median of all runs; each run has a seed of its own, the same for all.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fordway_netstack::{Cidr, Config, Event, ListenerId, RxChecksum, RxFrame, Stack, TcpId};
use fordway_netstack::{Congestion, TcpOptions};
use fordway_platform::frames::{FrameFile, FrameNotes};
use fordway_platform::netns;
use fordway_platform::tap;

const BITS_PER_US: u64 = 100;
const DELAY_US: u64 = 2_000;
const QUEUE_MAX: usize = 1_000;
const PORT: u16 = 5_001;
const PATIENCE: Duration = Duration::from_secs(60);

fn address(side: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, 0, 1 + side)
}

/// The kernel's. Ours is CUBIC.
fn congestion() -> String {
    std::env::var("CONGESTION").unwrap_or_else(|_| "cubic".to_owned())
}

fn byte(at: usize) -> u8 {
    (at * 13 + at / 255) as u8
}

/// Sends bytes on side 0, or takes them on side 1.
enum Side {
    Kernel { namespace: OwnedFd, tap: FrameFile },
    Ours(Box<Ours>),
}

struct Ours {
    stack: Stack,
    listener: Option<ListenerId>,
    connection: Option<TcpId>,
    moved: usize,
    total: usize,
    began: Option<Instant>,
    took: Option<Duration>,
}

impl Side {
    fn new(side: u8, is_ours: bool, total: usize) -> Side {
        if !is_ours {
            let namespace = netns::anonymous().expect("a namespace: are you root?");
            let tap = netns::within(namespace.as_fd(), || {
                let tap = tap::open("tap0", false).expect("a tap device");
                for words in [
                    "link set lo up".to_owned(),
                    format!("address add {}/24 dev tap0", address(side)),
                    "link set tap0 up".to_owned(),
                ] {
                    let status = Command::new("ip").args(words.split(' ')).status();
                    assert!(status.expect("ip runs").success(), "ip {words}");
                }
                tap
            });
            let tap = tap.expect("the namespace is there");
            return Side::Kernel { namespace, tap };
        }
        let mut stack = Stack::new(Config::new([2, 0, 0, 0, 0, side], 77 + u64::from(side)));
        stack.set_addresses(&[Cidr::new(IpAddr::V4(address(side)), 24)]);
        let options = options();
        let listener = (side == 1).then(|| {
            let listener = stack.tcp_listen(None, PORT, 8, options);
            listener.expect("listens")
        });
        Side::Ours(Box::new(Ours {
            stack,
            listener,
            connection: None,
            moved: 0,
            total,
            began: None,
            took: None,
        }))
    }
}

/// As large as Linux's become.
fn options() -> TcpOptions {
    TcpOptions {
        receive_bytes: 4 << 20,
        send_bytes: 4 << 20,
        ack_delay_us: Some(40_000),
        congestion: Congestion::Cubic,
        ..TcpOptions::default()
    }
}

impl Ours {
    fn poll(&mut self, now: u64, may_begin: bool) {
        while let Some(event) = self.stack.event() {
            if let Event::Accept(listener) = event {
                self.connection = self.stack.tcp_accept(listener).ok().map(|(id, _)| id);
                self.began = Some(Instant::now());
            }
        }
        if self.listener.is_none() && self.connection.is_none() && may_begin {
            let to = SocketAddr::new(IpAddr::V4(address(1)), PORT);
            self.connection = self.stack.tcp_connect(now, to, None, options()).ok();
        }
        let Some(id) = self.connection else { return };
        if self.listener.is_none() {
            while self.moved < self.total {
                let (at, rest) = (self.moved, self.total - self.moved);
                let sent = self.stack.tcp_send_with(id, |room| {
                    let len = room.len().min(rest);
                    for (index, place) in room[..len].iter_mut().enumerate() {
                        *place = byte(at + index);
                    }
                    len
                });
                let Ok(len) = sent else { return };
                self.moved += len;
            }
            let _ = self.stack.tcp_shutdown(id);
            return;
        }
        let mut buffer = [0; 65_536];
        while let Ok(len) = self.stack.tcp_receive(id, &mut buffer) {
            if len == 0 {
                if let Some(began) = self.began {
                    self.took.get_or_insert(began.elapsed());
                }
                let _ = self.stack.tcp_shutdown(id);
                return;
            }
            for (index, got) in buffer[..len].iter().enumerate() {
                assert_eq!(
                    *got,
                    byte(self.moved + index),
                    "byte {}",
                    self.moved + index
                );
            }
            self.moved += len;
        }
    }
}

/// One way of the link.
struct Way {
    frames: VecDeque<(u64, Vec<u8>)>,
    free_at: u64,
    rng: fastrand::Rng,
    loss_per_mille: u32,
}

impl Way {
    fn new(seed: u64, loss_per_mille: u32) -> Way {
        Way {
            frames: VecDeque::new(),
            free_at: 0,
            rng: fastrand::Rng::with_seed(seed),
            loss_per_mille,
        }
    }

    fn put(&mut self, now: u64, frame: &[u8]) {
        if self.rng.u32(..1000) < self.loss_per_mille || self.frames.len() >= QUEUE_MAX {
            return;
        }
        self.free_at = self.free_at.max(now) + frame.len() as u64 * 8 / BITS_PER_US;
        self.frames
            .push_back((self.free_at + DELAY_US, frame.to_vec()));
    }

    fn due(&mut self, now: u64) -> Option<Vec<u8>> {
        self.frames.front().filter(|frame| frame.0 <= now)?;
        self.frames.pop_front().map(|frame| frame.1)
    }
}

fn kernel_send(total: usize) {
    let bytes: Vec<u8> = (0..total).map(byte).collect();
    let to = SocketAddr::new(IpAddr::V4(address(1)), PORT);
    let mut stream = TcpStream::connect(to).expect("connects");
    rustix::net::sockopt::set_tcp_congestion(&stream, &congestion()).expect("the kernel has it");
    stream.write_all(&bytes).expect("writes");
    stream.shutdown(std::net::Shutdown::Write).expect("shuts");
    let _ = stream.read(&mut [0; 1]);
}

fn kernel_take(listener: &TcpListener, total: usize) -> Duration {
    let (mut stream, _) = listener.accept().expect("accepts");
    let began = Instant::now();
    let (mut buffer, mut got) = (vec![0; 65_536], 0);
    loop {
        let len = stream.read(&mut buffer).expect("reads");
        if len == 0 {
            break;
        }
        let right = buffer[..len].iter().enumerate();
        assert!(right.into_iter().all(|(at, b)| *b == byte(got + at)));
        got += len;
    }
    assert_eq!(got, total);
    began.elapsed()
}

/// Moves `total` bytes; megabytes per second.
fn run(ours: [bool; 2], loss_per_mille: u32, seed: u64, total: usize) -> f64 {
    let mut sides = [Side::new(0, ours[0], total), Side::new(1, ours[1], total)];
    let spaces = [0, 1].map(|at| match &sides[at] {
        Side::Kernel { namespace, .. } => Some(namespace.try_clone().expect("a descriptor")),
        Side::Ours(_) => None,
    });
    let [sender, receiver] = spaces;
    let (is_listening, is_done) = (AtomicBool::new(ours[1]), AtomicBool::new(false));
    let (listening, done) = (&is_listening, &is_done);
    let took = std::thread::scope(|scope| {
        let receiver = receiver.map(|space| {
            scope.spawn(move || {
                let took = netns::within(space.as_fd(), || {
                    let listener = TcpListener::bind((address(1), PORT)).expect("listens");
                    listening.store(true, Ordering::Release);
                    kernel_take(&listener, total)
                });
                done.store(true, Ordering::Release);
                took.expect("the namespace is there")
            })
        });
        if let Some(space) = sender {
            scope.spawn(move || {
                while !listening.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                netns::within(space.as_fd(), || kernel_send(total)).expect("sent");
            });
        }
        let took = carry(&mut sides, loss_per_mille, seed, listening, done);
        match receiver {
            Some(receiver) => receiver.join().expect("the receiver ends"),
            None => took.expect("all was received"),
        }
    });
    total as f64 / took.as_secs_f64() / 1e6
}

/// Carries frames until all has arrived and its sender knows.
fn carry(
    sides: &mut [Side; 2],
    loss_per_mille: u32,
    seed: u64,
    is_listening: &AtomicBool,
    is_done: &AtomicBool,
) -> Option<Duration> {
    let mut ways = [0, 1].map(|way| Way::new(2 * seed + way, loss_per_mille));
    let start = Instant::now();
    let mut buffer = vec![0; 70_000];
    let mut ends_at = u64::MAX;
    let mut took = None;
    loop {
        if start.elapsed() > PATIENCE {
            // Threads that wait in the kernel end with the process only.
            eprintln!("stuck");
            std::process::exit(1);
        }
        let now = start.elapsed().as_micros() as u64 + 1;
        for (at, side) in sides.iter_mut().enumerate() {
            while let Some(mut frame) = ways[1 - at].due(now) {
                match side {
                    Side::Kernel { tap, .. } => {
                        let _ = tap.send(&frame, FrameNotes::default());
                    }
                    Side::Ours(ours) => {
                        let mut frame = RxFrame {
                            bytes: &mut frame,
                            checksum: RxChecksum::Unchecked,
                        };
                        ours.stack.receive(now, &mut frame);
                    }
                }
            }
            match side {
                Side::Kernel { tap, .. } => {
                    while let Ok(Some((len, _))) = tap.receive(&mut buffer) {
                        ways[at].put(now, &buffer[..len]);
                    }
                }
                Side::Ours(ours) => {
                    ours.poll(now, is_listening.load(Ordering::Acquire));
                    took = took.or(ours.took);
                    while let Some(frame) = ours.stack.transmit(now, &mut buffer) {
                        ways[at].put(now, &buffer[..frame.len_bytes]);
                    }
                }
            }
            if took.is_some() || is_done.load(Ordering::Acquire) {
                // Until the sender's last questions are answered.
                ends_at = ends_at.min(now + 1_000_000);
            }
        }
        let ours_at = sides.iter().filter_map(|side| match side {
            Side::Ours(ours) => ours.stack.poll_at(),
            Side::Kernel { .. } => None,
        });
        let frames_at = ways.iter().filter_map(|way| way.frames.front());
        let next = ours_at.chain(frames_at.map(|frame| frame.0)).min();
        if now >= ends_at {
            return took;
        }
        let wait_us = next.unwrap_or(u64::MAX).saturating_sub(now).min(2_000);
        let timeout = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: (wait_us * 1000) as i64,
        };
        let taps = sides.iter().filter_map(|side| match side {
            Side::Kernel { tap, .. } => Some(tap),
            Side::Ours(_) => None,
        });
        let flags = rustix::event::PollFlags::IN;
        let mut waits: Vec<_> = taps
            .map(|tap| rustix::event::PollFd::new(tap, flags))
            .collect();
        let _ = rustix::event::poll(&mut waits, Some(&timeout));
    }
}

fn main() {
    let mut words = std::env::args().skip(1);
    let mut number = |default: usize| {
        let word = words.next();
        word.map_or(default, |word| word.parse().expect("a number"))
    };
    let (runs, total) = (number(5), number(2_000_000));
    println!("{total} bytes over 100 Mbit/s, 2 ms each way; MB/s, median of {runs}");
    println!("lost     linux-linux   ours-linux   linux-ours   ours-ours");
    for loss_per_mille in [0, 10, 50] {
        let rates = [[false; 2], [true, false], [false, true], [true; 2]].map(|ours| {
            let mut rates: Vec<f64> = (0..runs)
                .map(|seed| run(ours, loss_per_mille, seed as u64, total))
                .collect();
            rates.sort_by(f64::total_cmp);
            rates[runs / 2]
        });
        print!("{:>4} %", f64::from(loss_per_mille) / 10.0);
        for (rate, width) in rates.iter().zip([14, 12, 12, 11]) {
            print!(" {rate:>width$.2}");
        }
        println!();
    }
}
