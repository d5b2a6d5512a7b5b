//! The ring's protocol under loom.
#![cfg(loom)]

mod world;

use loom::thread;
use world::{RING_UNITS, explore};

/// Bytes arrive in order and only after they were published, over the ring's end.
#[test]
fn produce_and_consume() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        let producer = thread::spawn(move || {
            for units in [3, 2, 2] {
                sender.try_send(units);
            }
            sender.sent.get()
        });
        for units in [2, 4, 2] {
            receiver.try_receive(units);
        }
        let sent = producer.join().unwrap();
        while receiver.try_receive(1) != 0 {}
        assert_eq!(receiver.got.borrow().len(), sent);
        receiver.assert_in_order();
    });
}

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
        receiver.assert_in_order();
    });
}

#[test]
fn sleep_for_room() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        const UNITS: usize = RING_UNITS + 1;
        let producer = thread::spawn(move || {
            for _ in 0..UNITS {
                sender.send(1);
            }
        });
        receiver.receive(UNITS, 1);
        producer.join().unwrap();
        receiver.assert_in_order();
    });
}
