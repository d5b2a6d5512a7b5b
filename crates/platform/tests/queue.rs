//! Frames between two processes by a pair of queues, and each end against one that writes anything.

use fordway_abi::ABI_VERSION;
use fordway_abi::queue::POOL_OFFSET;
use fordway_platform::frames::FrameNotes;
use fordway_platform::memfd::OwnPage;
use fordway_platform::queue::{Frame, QueueEnd, Received, Role, Sent};
use fordway_platform::{ipc, launch};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a child is, and the number of its end of the link.
const ROLE: &str = "FORDWAY_TEST_QUEUE";
const FRAMES: u64 = 20_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Frame `number`: of any length up to the longest, and not compressible to one block.
fn content(number: u64, buffer: &mut [u8]) -> Frame {
    let bytes = match number % 7 {
        0 => buffer.len(),
        1 => 8_192,
        _ => 60 + (number as usize * 37) % 1_400,
    };
    for (at, byte) in buffer[..bytes].iter_mut().enumerate().step_by(61) {
        *byte = (number as usize + at) as u8;
    }
    buffer[..8].copy_from_slice(&number.to_ne_bytes());
    let notes = FrameNotes {
        checksum: (number.is_multiple_of(2)).then_some((34, 16)),
        is_checksum_good: number.is_multiple_of(3),
        gso_bytes: (number.is_multiple_of(5)).then_some(1448),
        is_ipv6: number.is_multiple_of(11),
    };
    Frame { bytes, notes }
}

fn sleep(end: &mut QueueEnd, for_room: bool) {
    let may_sleep = end.may_sleep(for_room);
    let timeout = Timespec {
        tv_sec: if may_sleep {
            PATIENCE.as_secs() as i64
        } else {
            0
        },
        tv_nsec: 0,
    };
    let woken = poll(&mut [PollFd::new(&*end, PollFlags::IN)], Some(&timeout)).expect("poll");
    assert!(woken == 1 || !may_sleep, "nobody rang: {end:?}");
    end.woken().expect("the link");
}

/// What is sent before goes to the one before.
fn until_joined(end: &mut QueueEnd, joins: u64) {
    while end.counters().joins < joins {
        sleep(end, false);
    }
}

/// Sends all frames and takes as many, each checked.
fn exchange(end: &mut QueueEnd) {
    let (mut sent, mut received) = (0, 0);
    let (mut expected, mut got) = (vec![0; 65_549], vec![0; 65_549]);
    while sent < FRAMES || received < FRAMES {
        let mut moved = false;
        let mut is_full = false;
        while sent < FRAMES {
            match end.send(|buffer| Some(content(sent, buffer))) {
                Sent::Frame => {
                    sent += 1;
                    moved = true;
                }
                other => {
                    is_full = other == Sent::Full;
                    break;
                }
            }
        }
        loop {
            let one = end.receive(|frame, notes| {
                let Frame {
                    bytes,
                    notes: noted,
                } = content(received, &mut expected);
                assert_eq!((frame.bytes(), notes), (bytes, noted), "frame {received}");
                assert_eq!(frame.copy_to(0, &mut got), bytes);
                let same = |at: &usize| expected[*at] == got[*at];
                assert!(
                    (0..bytes).step_by(61).all(|at| same(&at)),
                    "frame {received}"
                );
                assert_eq!(got[..8], received.to_ne_bytes());
                true
            });
            match one {
                Received::Frame => {
                    received += 1;
                    moved = true;
                }
                _ => break,
            }
        }
        if !moved {
            sleep(end, is_full);
        }
    }
}

fn child(role: &str, link: &OwnedFd) -> Child {
    // Inherited under its number: the test harness of the child opens nothing that could have it.
    rustix::io::fcntl_setfd(link, rustix::io::FdFlags::empty()).expect("fcntl");
    let child = Command::new(std::env::current_exe().expect("our file"))
        .args(["a_child_of_these_tests", "--exact", "--nocapture"])
        .env(ROLE, format!("{role} {}", link.as_raw_fd()))
        .spawn();
    rustix::io::fcntl_setfd(link, rustix::io::FdFlags::CLOEXEC).expect("fcntl");
    child.expect("a child")
}

/// Descriptors are passed by being left open: no two tests at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn link() -> (OwnedFd, OwnedFd) {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a link")
}

/// What the children of the other tests do.
#[test]
fn a_child_of_these_tests() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (role, link) = role.split_once(' ').expect("two words");
    let link = launch::inherited(link.parse().expect("a number")).expect("the link");
    match role {
        "honest" => {
            let mut end = QueueEnd::new(link, Role::Stack).expect("an end");
            exchange(&mut end);
            // Until the other end has all and says so by its own end.
            while !end.is_alone() {
                sleep(&mut end, false);
            }
        }
        _ => lie(&link, role.parse().expect("a seed")),
    }
}

#[test]
fn frames_cross_two_processes_and_a_new_one_takes_over() {
    let _alone = alone();
    let (ours, theirs) = link();
    let mut end = QueueEnd::new(ours, Role::Driver).expect("an end");
    for round in 1..=3 {
        let mut child = child("honest", &theirs);
        until_joined(&mut end, round);
        exchange(&mut end);
        child.kill().expect("killed");
        child.wait().expect("waited");
        let counters = end.counters();
        assert_eq!(
            (counters.joins, counters.violations),
            (round, 0),
            "{counters:?}"
        );
    }
    drop(theirs);
    end.woken().expect("the link");
    assert!(end.is_alone());
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // xorshift64: any sequence will do.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A stack that joins as it should and then writes whatever comes to its mind, into words that are looked at.
fn lie(link: &OwnedFd, seed: u64) {
    let bytes = POOL_OFFSET + (256 << 13);
    let mut random = Random(seed * 2 + 1);
    let join = |number: u64| {
        let (memory, memfd) = OwnPage::create("liar", bytes).expect("memory");
        let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("eventfd");
        let words = [
            &ABI_VERSION.to_ne_bytes()[..],
            &2u32.to_ne_bytes(),
            &number.to_ne_bytes(),
        ]
        .concat();
        let _ = ipc::send(link, &words, &[memfd.as_fd(), bell.as_fd()]);
        (memory, bell)
    };
    let mut joined = join(1);
    let mut theirs = None;
    let until = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < until, "the driver does not end");
        let mut words = [0; 64];
        match ipc::receive(link, &mut words, 2) {
            Ok(packet) if packet.fds.is_empty() => joined = join(random.next()),
            Ok(packet) => theirs = packet.fds.into_iter().nth(1),
            Err(ipc::ReceiveError::Empty) => {}
            Err(_) => return,
        }
        for _ in 0..20 {
            let at = random.next() as usize % (POOL_OFFSET / 8) * 8;
            let small = random.next() % 300;
            let value = [
                small,
                random.next(),
                small << 32 | small,
                1 << 16 | 8192 << 32,
            ][random.next() as usize % 4];
            joined.0.store_u64(at, value);
        }
        if let Some(bell) = &theirs {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
        // Now and then what the link does not know. An empty packet would end it.
        if random.next().is_multiple_of(50) {
            let _ = ipc::send(link, &words[..1 + random.next() as usize % 63], &[]);
        }
    }
}

#[test]
fn whatever_a_stack_writes_the_driver_goes_on() {
    const VIOLATIONS: u64 = 300;
    let _alone = alone();
    for seed in 1..=3 {
        let (ours, theirs) = link();
        let mut end = QueueEnd::new(ours, Role::Driver).expect("an end");
        let mut liar = child(&seed.to_string(), &theirs);
        let until = Instant::now() + PATIENCE;
        let mut taken = [0; 4096];
        while end.counters().violations < VIOLATIONS {
            assert!(Instant::now() < until, "{:?}", end.counters());
            for number in 0..8 {
                end.send(|buffer| Some(content(number, buffer)));
                // Whatever it is, it lies where nothing else does, and is no longer than its blocks.
                end.receive(|frame, _| {
                    frame.copy_to(0, &mut taken);
                    frame.bytes() <= 64 << 13 && !number.is_multiple_of(3)
                });
            }
            end.may_sleep(true);
            end.woken().expect("the link");
        }
        liar.kill().expect("killed");
        liar.wait().expect("waited");
        // What the dead one has left in the link.
        loop {
            let before = end.counters();
            end.woken().expect("the link");
            if end.counters() == before {
                break;
            }
        }
        // The next one is served as if nothing had been.
        let joins = end.counters().joins;
        let mut honest = child("honest", &theirs);
        until_joined(&mut end, joins + 1);
        exchange(&mut end);
        honest.kill().expect("killed");
        honest.wait().expect("waited");
    }
}
