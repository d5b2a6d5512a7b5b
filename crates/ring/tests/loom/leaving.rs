//! Models of the ways onto the ring and off it.

use crate::world::{QUARTER, RING_UNITS, explore};
use fordway_abi::shm::tx_state;
use loom::thread;

/// The producer enters when it sees that the consumer is ready; no unit of the kernel's
/// part is overtaken.
///
/// Fails if `enter` shows its state before the stream's position, or stores it relaxed.
#[test]
fn enter() {
    explore(|world| {
        let (sender, receiver) = world.ends();
        sender.send_somehow();
        let producer = thread::spawn(move || {
            sender.send_somehow();
            sender.send_somehow();
        });
        receiver.consumer.get_ready();
        receiver.receive_somehow(3 * QUARTER);
        producer.join().unwrap();
        receiver.assert_got(3 * QUARTER);
    });
}

/// The consumer stops while the producer publishes: each unit comes once, from the ring
/// before the stop or by the kernel after it.
///
/// Fails if `leave` does not take back what a stopped consumer has left, if it loads the
/// stop relaxed, or if `fill_bytes` shows bytes after a stop.
#[test]
fn consumer_stops() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        sender.send_somehow();
        let producer = thread::spawn(move || {
            sender.send_somehow();
            sender.send_somehow();
            sender
        });
        receiver.try_receive_somehow();
        receiver.stop();
        receiver.try_receive_somehow();
        let sender = producer.join().unwrap();
        sender.serve();
        while receiver.try_receive_somehow() != 0 {}
        receiver.assert_got(3 * QUARTER);
    });
}

/// The consumer asks for the kernel path while the producer publishes, and goes on taking:
/// each unit comes once, from the ring or by the kernel.
///
/// Fails if `leave` takes back from a consumer that drains without a look at its lock.
#[test]
fn consumer_drains() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        sender.send_somehow();
        let producer = thread::spawn(move || {
            sender.send_somehow();
            sender.send_somehow();
            sender
        });
        receiver.drain();
        receiver.try_receive_somehow();
        receiver.try_receive_somehow();
        let sender = producer.join().unwrap();
        sender.serve();
        while receiver.try_receive_somehow() != 0 {}
        receiver.assert_got(3 * QUARTER);
    });
}

/// What was published after the stop is never left to a consumer that saw nothing to wait
/// for: it may hand its descriptor to a program that does not know of rings.
///
/// Fails if the fence of `stop` or of `publish` is missing.
#[test]
fn nobody_publishes_after_a_stop() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        let producer = thread::spawn(move || sender.try_send(1).1);
        receiver.consumer.stop();
        let unread = receiver.consumer.has_unread();
        let told = producer.join().unwrap();
        assert!(unread || told, "a unit lies in the ring and nobody knows");
    });
}

/// Both ends go to the kernel path at once, each by itself.
///
/// Fails if a stop is final for the consumer alone (it must drain a ring that was left
/// before the stop was seen), if a consumer turns to the kernel before the producer has
/// decided, or if `leave` takes back always.
#[test]
fn both_leave() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        sender.send_somehow();
        sender.send_somehow();
        let producer = thread::spawn(move || {
            sender.leave();
            sender.send_somehow();
        });
        receiver.try_receive_somehow();
        receiver.stop();
        for _ in 0..2 {
            receiver.try_receive_somehow();
        }
        producer.join().unwrap();
        while receiver.try_receive_somehow() != 0 {}
        receiver.assert_got(3 * QUARTER);
    });
}

/// A stop wakes a producer that sleeps for room.
///
/// Fails if the one who stops does not knock, if the sleeper does not look whether it must
/// leave before it sleeps, or if the fence of `stop` or of `announce` is missing.
#[test]
fn stop_wakes_a_sleeper() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        sender.try_send(RING_UNITS);
        let producer = thread::spawn(move || sender.send_somehow());
        receiver.stop();
        receiver.receive_somehow(5 * QUARTER);
        producer.join().unwrap();
        receiver.assert_got(5 * QUARTER);
    });
}

/// What is sent again may lie in three segments.
///
/// Fails if `back_run` knows the newest one or two only.
#[test]
fn stop_while_growing() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        sender.try_send(3 * QUARTER);
        receiver.try_receive(QUARTER);
        let producer = thread::spawn(move || {
            for units in [RING_UNITS, RING_UNITS * 16] {
                if sender.producer.state() == tx_state::RING && sender.try_send(units).1 {
                    sender.leave();
                }
            }
            sender
        });
        receiver.try_receive_somehow();
        receiver.stop();
        let sender = producer.join().unwrap();
        sender.serve();
        while receiver.try_receive_somehow() != 0 {}
        receiver.assert_got(sender.sent.get());
    });
}

/// The producer takes back what seems forgotten, just while the consumer comes for it.
///
/// Fails if `withdraw` does not look at the consumer's lock, or if either side's order
/// (state, fence, lock against lock, fence, state) is broken.
#[test]
fn withdraw() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        sender.send_somehow();
        sender.send_somehow();
        let producer = thread::spawn(move || {
            sender.withdraw();
            sender.send_somehow();
        });
        for _ in 0..2 {
            receiver.try_receive_somehow();
        }
        producer.join().unwrap();
        while receiver.try_receive_somehow() != 0 {}
        receiver.assert_got(3 * QUARTER);
    });
}

/// A consumer that looked while the producer tried in vain to withdraw does not sleep for ever.
///
/// Fails if nobody is woken after a withdrawal that could not be, or if there is no fence before.
#[test]
fn withdraw_in_vain() {
    explore(|world| {
        let (sender, receiver) = world.on_ring();
        sender.send_somehow();
        let producer = thread::spawn(move || {
            sender.withdraw();
        });
        receiver.receive_somehow(QUARTER);
        producer.join().unwrap();
        receiver.assert_got(QUARTER);
    });
}
