//! The broker is killed at each step of the way up to rings, and of the way down.
//!
//! ```text
//!   steady A ─┐                 ┌─ a message of the chosen kind, the chosen time:
//!             ├─► middle man ───┤  the broker is killed, the message lost or delivered,
//!   steady B ─┘                 └─ then a broker is started again
//!                   └──► broker
//! ```
//!
//! Programs find the middle man where they look for the control socket. It passes packets and
//! descriptors on, in both directions. To the broker he is the program, so what a program claims to
//! have he has a copy of, until it has its channel. The mailbox that a program looks at is his own: the
//! broker's would tell of packets that are still with him, and not again when they come. The programs compare every byte, whatever happens.

use anyhow::{Context, Result, ensure};
use fordway_abi::control::{Claim, PACKET_BYTES_MAX, kind};
use fordway_lab::{Spawn, Stdin};
use fordway_platform::ipc::{self, Kind, ReceiveError};
use fordway_platform::memfd::OwnPage;
use fordway_platform::process;
use fordway_test_conformance::{Bed, PATIENCE};
use fordwayd::admin::{CONTROL_SOCKET, Reply, Request};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use zerocopy::{FromBytes, IntoBytes};

/// As the broker's.
const MAILBOX_BYTES: usize = 4096;
/// Descriptors beside one packet.
const FDS_MAX: usize = 2;

/// What is said on the way up, in order.
const UP: [(&str, u32); 9] = [
    ("Hello", kind::Hello),
    ("Welcome", kind::Welcome),
    ("Offer", kind::Offer),
    ("Link", kind::Link),
    ("Region", kind::Region),
    ("Peer", kind::Peer),
    ("OwnDoor", kind::OwnDoor),
    ("PeerDoor", kind::PeerDoor),
    ("Pair", kind::Pair),
];
/// What is said on the way down, in order.
const DOWN: [(&str, u32); 2] = [("Downgrade", kind::Downgrade), ("Status", kind::Status)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// Where the broker is to be killed.
#[derive(Clone, Copy, Debug)]
struct Step {
    way: Way,
    name: &'static str,
    kind: u32,
    /// Its first message of the kind, or its second: that of the other program, mostly.
    number: u32,
    /// Whether the message still comes to whom it is for.
    delivered: bool,
}

/// Passes packets on, and stops at one of them.
struct MiddleMan {
    broker: PathBuf,
    step: Step,
    /// From now on the messages count.
    counts: AtomicBool,
    seen: AtomicU32,
    /// The step has come.
    reached: Mutex<Sender<()>>,
    /// The broker is dead.
    go_on: Mutex<Receiver<()>>,
}

impl MiddleMan {
    fn serve(self: &Arc<Self>, listener: &OwnedFd) {
        while readable(listener) {
            let Ok(program) = ipc::accept(listener) else {
                return;
            };
            // Nobody there: the program sees its connection closed, and comes again.
            let Ok(broker) = ipc::connect(&self.broker, Kind::Packets) else {
                continue;
            };
            let [program, broker] = [program, broker].map(Arc::new);
            let copies = Arc::new(Mutex::new(Vec::new()));
            for (from, to, to_program) in [(&program, &broker, false), (&broker, &program, true)] {
                let (own, from, to) = (Arc::clone(self), Arc::clone(from), Arc::clone(to));
                let copies = Arc::clone(&copies);
                std::thread::spawn(move || {
                    let mailbox = OwnPage::create("middle-mailbox", MAILBOX_BYTES);
                    let mailbox = mailbox.ok().filter(|_| to_program);
                    while own.pass(&from, &to, mailbox.as_ref(), &copies) {}
                    copies.lock().expect("no panic").clear();
                    let _ = shutdown(&*from, Shutdown::Both);
                    let _ = shutdown(&*to, Shutdown::Both);
                });
            }
        }
    }

    /// Passes one packet on; false at the end.
    fn pass(
        &self,
        from: &OwnedFd,
        to: &OwnedFd,
        mailbox: Option<&(OwnPage, OwnedFd)>,
        copies: &Mutex<Vec<OwnedFd>>,
    ) -> bool {
        if !readable(from) {
            return false;
        }
        let mut buffer = [0; PACKET_BYTES_MAX];
        let packet = match ipc::receive(from, &mut buffer, FDS_MAX) {
            Ok(packet) => packet,
            Err(ReceiveError::Empty) => return true,
            Err(_) => return false,
        };
        match u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]) {
            kind::Offer | kind::RejoinChannel => {
                let Some(copy) = own_claim(from, &mut buffer[..packet.len]) else {
                    // The program has closed it.
                    return true;
                };
                copies.lock().expect("no panic").push(copy);
            }
            kind::Pair | kind::Status => copies.lock().expect("no panic").clear(),
            _ => {}
        }
        let bytes = &buffer[..packet.len];
        let mut fds: Vec<_> = packet.fds.iter().map(AsFd::as_fd).collect();
        let said = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if let (Some((_, own)), kind::Welcome, Some(first)) = (mailbox, said, fds.first_mut()) {
            *first = own.as_fd();
        }
        let send = || {
            let sent = ipc::send(to, bytes, &fds).is_ok();
            if let Some((page, _)) = mailbox {
                page.bump();
            }
            sent
        };
        let is_here = said == self.step.kind
            && self.counts.load(Ordering::SeqCst)
            && self.seen.fetch_add(1, Ordering::SeqCst) + 1 == self.step.number;
        if is_here {
            if self.step.delivered && !send() {
                return false;
            }
            let _ = self.reached.lock().expect("no panic").send(());
            let _ = self.go_on.lock().expect("no panic").recv();
            return true;
        }
        send()
    }
}

/// Makes a program's claim one of ours, by a copy of its socket. The claim ends the packet.
fn own_claim(program: &OwnedFd, packet: &mut [u8]) -> Option<OwnedFd> {
    let at = packet.len() - size_of::<Claim>();
    let mut claim = Claim::read_from_bytes(&packet[at..]).ok()?;
    let peer = process::peer(program).ok()?;
    let flags = PidfdGetfdFlags::empty();
    let copy = pidfd_getfd(peer.pidfd?, claim.fd as i32, flags).ok()?;
    (claim.fd, claim.thread) = (copy.as_raw_fd() as u32, 0);
    packet[at..].copy_from_slice(claim.as_bytes());
    Some(copy)
}

fn readable(socket: &OwnedFd) -> bool {
    let mut entry = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut entry, None).is_ok() && entry[0].revents().contains(PollFlags::IN)
}

fn is_settled(bed: &Bed, path: &str) -> Result<()> {
    bed.wait_for(&format!("both ends are on the {path} path"), |ends| {
        ends.len() == 2 && ends.iter().all(|end| end.path == path)
    })
}

fn run(bed: &mut Bed, step: Step) -> Result<()> {
    let path = bed.lab.work_dir().join("middle.sock");
    let listener = ipc::listen(&path, Kind::Packets, 0o666)?;
    let ((reached, reaching), (going, go_on)) = (channel(), channel());
    let middle = Arc::new(MiddleMan {
        broker: bed.lab.runtime_dir().join(CONTROL_SOCKET),
        step,
        counts: AtomicBool::new(step.way == Way::Up),
        seen: AtomicU32::new(0),
        reached: Mutex::new(reached),
        go_on: Mutex::new(go_on),
    });
    let (own, waiting) = (Arc::clone(&middle), rustix::io::dup(&listener)?);
    let serving = std::thread::spawn(move || own.serve(&waiting));
    let result = play(bed, &path, &middle, &reaching, &going);
    drop(going);
    shutdown(&listener, Shutdown::Both)?;
    serving.join().expect("it does not panic");
    result
}

fn play(
    bed: &mut Bed,
    path: &Path,
    middle: &MiddleMan,
    reaching: &Receiver<()>,
    going: &Sender<()>,
) -> Result<()> {
    let shim = bed.lab.fordway().with_file_name("libfordway.so");
    let program = Bed::program("steady");
    let spawn = Spawn::new([program.to_string_lossy().as_ref(), "streams_cold"])
        .env("FORDWAY_OFFER_AFTER", "0")
        .env("FORDWAY_SOCKET", &path.to_string_lossy())
        .env("LD_PRELOAD", &shim.to_string_lossy())
        .stdin(Stdin::Pipe);
    let mut steady = bed.lab.spawn_bare(&spawn)?;
    let mut both = Vec::new();
    if middle.step.way == Way::Down {
        is_settled(bed, "fast")?;
        let ends = bed.lab.connections()?;
        both.extend(
            ends.iter()
                .filter(|end| end.pid.is_some())
                .map(|end| end.cookie.clone()),
        );
        bed.wait_for_ring_bytes()?;
        middle.counts.store(true, Ordering::SeqCst);
        let reply = bed.lab.ask(&Request::Downgrade { channel: None })?;
        ensure!(!matches!(reply, Reply::Error { .. }), "{reply:?}");
    }
    reaching.recv_timeout(PATIENCE).context("it never came")?;
    bed.lab.stop_broker(true)?;
    going.send(())?;
    bed.lab.start_broker()?;
    match middle.step.way {
        Way::Up => {
            // Whatever each end had heard of a channel, in the end there is one.
            is_settled(bed, "fast")?;
            bed.wait_for_ring_bytes()?;
        }
        // Whoever was asked is on the kernel path, and the other end with it; it does not offer
        // itself again, so the new broker does not know whose it is. If nobody was asked, the
        // channel is as it was.
        Way::Down => {
            let what = "both ends are on one path";
            bed.lab.wait_until(PATIENCE, what, || {
                let mut ends = bed.lab.connections()?;
                ends.retain(|end| both.contains(&end.cookie));
                Ok(ends.len() == 2 && ends[0].path == ends[1].path)
            })?;
        }
    }
    bed.wait_for_bytes()?;
    drop(steady.take_stdin());
    let output = steady.finish()?;
    let (text, errors) = (output.text(), output.errors());
    ensure!(text == "A: all there\nB: all there\n", "{text}{errors}");
    Ok(())
}

fn kill_at_each(way: Way, messages: &[(&'static str, u32)]) -> Result<()> {
    let mut bed = Bed::start()?;
    let mut steps = 0;
    for &(name, kind) in messages {
        for number in [1, 2] {
            for delivered in [false, true] {
                let step = Step {
                    way,
                    name,
                    kind,
                    number,
                    delivered,
                };
                run(&mut bed, step).with_context(|| format!("{}, {step:?}", step.name))?;
                steps += 1;
            }
        }
    }
    println!("the broker was killed at {steps} steps");
    bed.finish()
}

#[test]
fn killed_at_each_step_of_the_way_up() -> Result<()> {
    kill_at_each(Way::Up, &UP)
}

#[test]
fn killed_at_each_step_of_the_way_down() -> Result<()> {
    kill_at_each(Way::Down, &DOWN)
}
