//! The ring's protocol under loom: every interleaving with two preemptions, and every
//! stale value that the memory model allows. The models run the ring's own code; what
//! the shim does around it (its sleeps, its choice between ring and kernel) is in `world`.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p fordway-ring --release --test loom --target-dir target/loom
//! ```
//! `LOOM_MAX_PREEMPTIONS=3` looks deeper (some minutes). A sleep that nobody ends is
//! found as a deadlock.
//!
//! Each model says by which changes of the ring it was seen to fail.
//!
//! Limits: one process on each side has one thread (two in the marks' models); loom 0.7
//! takes sequentially consistent accesses for acquire and release, so it is the fences
//! that count, and an argument from a locked instruction needs one (`Consumer::producer_state`).
#![cfg(loom)]

mod leaving;
mod marks;
mod queue;
mod world;

use loom::thread;
use world::{QUARTER, RING_UNITS, explore};

/// Bytes arrive in order and only after they were published, over the ring's end.
///
/// Fails if `publish` or `take` stores its index relaxed, or if `fill_bytes` or `head`
/// loads it so.
#[test]
fn produce_and_consume() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        let producer = thread::spawn(move || {
            for quarters in [3, 2, 2] {
                sender.try_send(quarters * QUARTER);
            }
            sender.sent.get()
        });
        for quarters in [2, 4, 2] {
            receiver.try_receive(quarters * QUARTER);
        }
        let sent = producer.join().unwrap();
        while receiver.try_receive(RING_UNITS) != 0 {}
        receiver.assert_got(sent);
    });
}

/// A consumer that found the ring empty is woken by what comes.
///
/// Fails if the fence of `publish` or of `announce` is missing, or comes before the store.
#[test]
fn sleep_for_bytes() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        let producer = thread::spawn(move || {
            sender.send(1);
            sender.send(1);
        });
        receiver.receive(2, 1);
        producer.join().unwrap();
        receiver.assert_got(2);
    });
}

/// A producer that finds its ring full is woken once there is room.
///
/// Fails if `take` never fences, or only when it finds the ring half full: a producer that
/// still sees an old head then sleeps for ever.
#[test]
fn sleep_for_room() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        let producer = thread::spawn(move || {
            for _ in 0..5 {
                sender.send(QUARTER);
            }
        });
        receiver.receive(5 * QUARTER, QUARTER);
        producer.join().unwrap();
        receiver.assert_got(5 * QUARTER);
    });
}

/// A producer whose ring is not full, but not writable either, is woken by the take that
/// makes half of it free, in however small steps: the consumer may read no further.
///
/// Fails if `take` looks who waits only when it finds the ring half full, or only when it
/// passes an eighth of the ring.
#[test]
fn wait_until_writable() {
    for takes in [&[3][..], &[2, 1], &[1, 2]] {
        explore(move |world| {
            let (sender, receiver) = world.on_ring();
            sender.send(3);
            let producer = thread::spawn(move || {
                sender.send(RING_UNITS / 2);
                sender.wait_until_writable();
            });
            for units in takes {
                receiver.try_receive(*units);
            }
            producer.join().unwrap();
        });
    }
}

/// The ring grows while its old segment is being read.
///
/// Fails if the count of segments is stored or loaded relaxed.
#[test]
fn grow() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        sender.try_send(3 * QUARTER);
        receiver.try_receive(QUARTER);
        let producer = thread::spawn(move || {
            let count = sender.try_send(RING_UNITS).0;
            assert_eq!(count, RING_UNITS, "there is memory");
            sender.try_send(QUARTER);
            sender.sent.get()
        });
        for quarters in [1, 2, 1] {
            receiver.try_receive(quarters * QUARTER);
        }
        let sent = producer.join().unwrap();
        while receiver.try_receive(RING_UNITS) != 0 {}
        receiver.assert_got(sent);
    });
}

/// The ring grows twice, and what is unread lies in three segments.
///
/// Fails if `take` loads the count of segments again to say which one it has entered, or if
/// a segment has no end.
#[test]
fn grow_twice() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        sender.try_send(3 * QUARTER);
        let producer = thread::spawn(move || {
            sender.try_send(RING_UNITS);
            sender.try_send(RING_UNITS * 16);
            sender.sent.get()
        });
        for units in [2 * QUARTER, RING_UNITS, RING_UNITS * 16] {
            receiver.try_receive(units);
        }
        let sent = producer.join().unwrap();
        while receiver.try_receive(RING_UNITS) != 0 {}
        receiver.assert_got(sent);
    });
}
