//! Two honest ends of some channels against the plainest model of a stream: a queue of
//! bytes each. All channels are cut from one region, so that one which strays into the
//! memory of another is found by its content.
#![cfg(not(loom))]

mod memory;

use fordway_abi::shm::{REGION_BYTES, rx_state, tx_state};
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::{Consumer, Entered, Producer};
use memory::{Guarded, endpoint, own_region};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

const CHANNELS: usize = 3;
/// More than the largest ring holds.
const PIECE_BYTES_MAX: usize = 3 << 20;

#[derive(Clone, Copy, Debug)]
enum Step {
    Send {
        count: usize,
        kernel: Kernel,
    },
    /// As sendfile: right into ring memory, and less than was offered.
    SendInPlace {
        offered: usize,
        used: usize,
    },
    Receive(usize),
    Peek {
        skip: usize,
        count: usize,
    },
    /// The consumer stops; the rest is sent again.
    Stop,
    /// The producer leaves; the rest is drained.
    Leave,
    /// The producer takes back what was not taken.
    Withdraw,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => 0..200usize,
        4 => 0..70_000usize,
        2 => 0..PIECE_BYTES_MAX,
        1 => prop::sample::select(vec![1 << 16, (1 << 16) - 1, (1 << 16) + 1, 1 << 20, 1 << 21]),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let kernel = prop_oneof![Just(Kernel::Plain), Just(Kernel::NonTemporal)];
    prop_oneof![
        20 => (size(), kernel).prop_map(|(count, kernel)| Step::Send { count, kernel }),
        5 => (size(), size()).prop_map(|(offered, used)| Step::SendInPlace { offered, used }),
        20 => size().prop_map(Step::Receive),
        5 => (size(), size()).prop_map(|(skip, count)| Step::Peek { skip, count }),
        1 => Just(Step::Stop),
        1 => Just(Step::Leave),
        1 => Just(Step::Withdraw),
    ]
}

/// One direction between two regions, and what it should hold.
struct Channel<'a> {
    slot: usize,
    from: &'a Guarded,
    to: &'a Guarded,
    producer: Producer,
    consumer: Consumer,
    /// Where the program reads to.
    buffer: Guarded,
    queue: VecDeque<u8>,
    /// Makes the next bytes, so that no two stretches of any two channels look the same.
    random: fastrand::Rng,
}

impl<'a> Channel<'a> {
    fn new(slot: usize, from: &'a Guarded, to: &'a Guarded) -> Self {
        let (own, peer) = (endpoint(from.base(), slot), endpoint(to.base(), slot));
        // SAFETY: both regions outlive the channel, and nothing else uses these endpoints.
        let (producer, consumer) = unsafe {
            let producer = Producer::new(own, from.base(), peer);
            (producer, Consumer::new(peer, own, from.base()))
        };
        let random = fastrand::Rng::with_seed(slot as u64);
        let channel = Self {
            slot,
            from,
            to,
            producer,
            consumer,
            buffer: Guarded::new(4 << 20, libc::PROT_READ | libc::PROT_WRITE),
            queue: VecDeque::new(),
            random,
        };
        channel.enter();
        channel
    }

    fn enter(&self) {
        assert_eq!(self.producer.enter(|| Some(7)), Entered::NotYet);
        self.consumer.get_ready();
        assert_eq!(self.producer.enter(|| Some(7)), Entered::Yes);
        assert_eq!(self.consumer.switch_at(), 7);
        assert_eq!(
            self.producer.room_bytes(usize::MAX),
            Ok(self.producer.capacity_bytes())
        );
    }

    /// Both sides are done with the channel; its slot begins a new one.
    fn begin_anew(&mut self) {
        self.producer.release_memory();
        for base in [self.from.base(), self.to.base()] {
            // SAFETY: as in the shim's `bind`; nobody uses the endpoints meanwhile.
            unsafe { endpoint(base, self.slot).write_bytes(0, 1) };
        }
        self.queue.clear();
        self.enter();
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.random.fill(&mut bytes);
        bytes
    }

    /// Room as the shim asks for it.
    fn room(&self, wanted: usize) -> usize {
        let room = self.producer.room_bytes(wanted).unwrap();
        if room < wanted && self.producer.grow(wanted) {
            let capacity = self.producer.capacity_bytes();
            assert_eq!(self.producer.room_bytes(wanted), Ok(capacity), "it is new");
            return capacity;
        }
        room
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Send { count, kernel } => {
                let count = count.min(self.room(count));
                let bytes = self.bytes(count);
                if kernel == Kernel::NonTemporal {
                    self.producer.grow_for_large();
                }
                let (tail, source) = (self.producer.tail(), bytes.as_ptr());
                // SAFETY: `bytes` is that long, and within the room.
                unsafe {
                    self.producer
                        .write(&Copier::detect(), kernel, tail, source, count)
                };
                self.publish(bytes);
            }
            Step::SendInPlace { offered, used } => {
                let offered = offered.min(self.room(offered));
                let bytes = self.bytes(used.min(offered));
                let mut left = &bytes[..];
                for (start, length) in self.producer.runs(offered) {
                    let (now, later) = left.split_at(length.min(left.len()));
                    // SAFETY: a run of ring memory, of `length` bytes.
                    unsafe { start.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
                    left = later;
                }
                assert!(left.is_empty());
                self.publish(bytes);
            }
            Step::Receive(count) => {
                let count = self.peek(0, count);
                self.queue.drain(..count);
                if count != 0 {
                    self.consumer.take(count).unwrap();
                }
            }
            Step::Peek { skip, count } => {
                self.peek(skip, count);
            }
            Step::Stop => {
                self.consumer.stop();
                assert_eq!(self.consumer.fill_bytes(), Ok(0), "nothing may be taken");
                assert!(self.producer.must_leave());
                let back = self.producer.leave();
                assert_eq!(back, Ok(self.queue.len() as u64));
                assert!(self.consumer.has_stopped() && self.consumer.is_over().unwrap());
                self.send_back();
                self.begin_anew();
            }
            Step::Leave => {
                assert_eq!(self.producer.leave(), Ok(0));
                // Too late: what is there is drained.
                self.consumer.stop();
                assert!(!self.consumer.has_stopped());
                assert_eq!(self.consumer.is_over(), Ok(self.queue.is_empty()));
                while !self.queue.is_empty() {
                    self.run(Step::Receive(PIECE_BYTES_MAX));
                }
                assert_eq!(self.consumer.is_over(), Ok(true));
                self.begin_anew();
            }
            Step::Withdraw => {
                assert_eq!(self.producer.withdraw(), Ok(true));
                assert_eq!(self.consumer.producer_state(), tx_state::WITHDRAWN);
                self.send_back();
                assert_eq!(self.consumer.is_over(), Ok(true));
                self.begin_anew();
            }
        }
        assert_eq!(self.consumer.fill_bytes(), Ok(self.queue.len() as u64));
        assert_eq!(self.producer.unread_bytes(), Ok(self.queue.len() as u64));
        assert_eq!(self.consumer.looks_readable(), !self.queue.is_empty());
    }

    fn publish(&mut self, bytes: Vec<u8>) {
        self.producer.publish(bytes.len());
        self.queue.extend(bytes);
    }

    /// Reads and compares; how much there was, of at most `count`.
    fn peek(&self, skip: usize, count: usize) -> usize {
        let target = self.buffer.end(count);
        let copier = Copier::detect();
        // SAFETY: the buffer's last `count` bytes.
        let got = unsafe {
            self.consumer
                .peek(&copier, Kernel::Plain, skip as u64, target, count)
        };
        let there = self.queue.len().saturating_sub(skip).min(count);
        assert_eq!(got, Ok(there));
        let expected = self.queue.iter().skip(skip).take(there);
        // SAFETY: as above, and written by `peek`.
        let bytes = unsafe { std::slice::from_raw_parts(target, there) };
        assert!(bytes.iter().eq(expected), "other bytes");
        there
    }

    /// What is sent by the kernel is just what was not taken.
    fn send_back(&mut self) {
        let mut sent = Vec::new();
        while self.producer.back_bytes() != 0 {
            let (start, length) = self.producer.back_run();
            // The kernel may take less than it was offered.
            let taken = length.div_ceil(2);
            // SAFETY: a run of ring memory.
            sent.extend_from_slice(unsafe { std::slice::from_raw_parts(start, taken) });
            self.producer.back_sent(taken);
        }
        assert!(sent.iter().eq(&self.queue), "other bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..Default::default() })]

    #[test]
    fn channels_are_queues(steps in prop::collection::vec((0..CHANNELS, step()), 1..60)) {
        let (from, to) = (own_region(), own_region());
        let mut channels: Vec<_> = (0..CHANNELS).map(|slot| Channel::new(slot, &from, &to)).collect();
        for (channel, step) in steps {
            channels[channel].run(step);
        }
        for channel in &mut channels {
            channel.run(Step::Leave);
        }
    }
}

/// A channel that is over leaves nothing behind: a region lasts for ever.
#[test]
fn memory_comes_back() {
    /// With leaks, more than the region holds.
    const LIVES: usize = REGION_BYTES >> 20;
    let (from, to) = (own_region(), own_region());
    let mut channel = Channel::new(0, &from, &to);
    for life in 0..LIVES {
        while channel.producer.grow(PIECE_BYTES_MAX) {}
        assert_eq!(channel.producer.capacity_bytes(), 2 << 20, "life {life}");
        channel.begin_anew();
    }
}

/// Large writes have the ring grow once, though there is always room; what lies in the
/// former segment is read first.
#[test]
fn large_writes_have_the_ring_grow() {
    const LARGE_BYTES: usize = 16 << 10;
    let (from, to) = (own_region(), own_region());
    let mut channel = Channel::new(0, &from, &to);
    let small = channel.producer.capacity_bytes();
    for write in 0..100 {
        channel.run(Step::Send {
            count: LARGE_BYTES,
            kernel: Kernel::NonTemporal,
        });
        let grown = channel.producer.capacity_bytes();
        assert!(grown == small || write >= 3, "{write}: too soon");
        // One behind: something is always left in the ring.
        channel.run(Step::Receive(if write == 0 { 1 } else { LARGE_BYTES }));
    }
    assert_eq!(channel.producer.capacity_bytes(), 1 << 20);
}

/// A shut sending half takes nothing back: behind the FIN it could not be sent again.
#[test]
fn nothing_is_taken_back_behind_a_fin() {
    use fordway_abi::shm::tx_flags;
    let (from, to) = (own_region(), own_region());
    let mut channel = Channel::new(0, &from, &to);
    channel.run(Step::Send {
        count: 100,
        kernel: Kernel::Plain,
    });
    // SAFETY: our own endpoint.
    let own = unsafe { &*endpoint(from.base(), 0) };
    own.cold
        .tx_flags
        .fetch_or(tx_flags::SHUT, Ordering::Relaxed);
    assert_eq!(channel.producer.withdraw(), Ok(false));
    channel.consumer.stop();
    assert_eq!(channel.consumer.fill_bytes(), Ok(0));
    assert_eq!(channel.producer.leave(), Ok(0));
    assert_eq!(
        channel.peek(0, 1000),
        100,
        "the consumer drains it after all"
    );
}

/// A producer that died answers no stop; the consumer that learns of it goes on.
#[test]
fn a_stop_that_nobody_answers_can_be_taken_back() {
    let (from, to) = (own_region(), own_region());
    let mut channel = Channel::new(0, &from, &to);
    channel.run(Step::Send {
        count: 100,
        kernel: Kernel::Plain,
    });
    channel.consumer.stop();
    assert!(!channel.consumer.looks_readable());
    assert!(channel.consumer.has_unread());
    assert!(channel.consumer.resume());
    assert_eq!(channel.peek(0, 1000), 100);
}

/// A peer that publishes on and on is not read from for ever.
#[test]
fn what_is_published_after_a_drain_was_asked_for_is_not_taken() {
    let (from, to) = (own_region(), own_region());
    let mut channel = Channel::new(0, &from, &to);
    channel.run(Step::Send {
        count: 100,
        kernel: Kernel::Plain,
    });
    channel.consumer.drain();
    channel.producer.publish(100);
    assert!(channel.producer.must_leave());
    assert_eq!(channel.consumer.fill_hint(), 100);
    assert_eq!(channel.consumer.fill_bytes(), Ok(100));
    assert_eq!(channel.consumer.take(100), Ok(false));
    channel.consumer.stop_if_drained();
    assert_eq!(channel.consumer.fill_bytes(), Ok(0));
    assert!(channel.consumer.has_unread() && !channel.consumer.looks_readable());
    assert_eq!(channel.producer.leave(), Ok(100), "it sends the rest");
    assert_eq!(channel.consumer.is_over(), Ok(true));
}

/// A consumer that never became ready, or stopped at once, is left to the kernel for good.
#[test]
fn entering_needs_a_consumer() {
    let (from, to) = (own_region(), own_region());
    let (own, peer) = (endpoint(from.base(), 0), endpoint(to.base(), 0));
    // SAFETY: both regions live to the end of this test.
    let (producer, consumer) = unsafe {
        let producer = Producer::new(own, from.base(), peer);
        (producer, Consumer::new(peer, own, from.base()))
    };
    assert_eq!(producer.enter(|| Some(0)), Entered::NotYet);
    consumer.stop();
    assert_eq!(producer.enter(|| Some(0)), Entered::Never);
    assert_eq!(producer.state(), tx_state::BACK);
    consumer.get_ready();
    // SAFETY: an endpoint of a live region.
    let shown = unsafe { (*peer).wait.rx_state.load(Ordering::Relaxed) };
    assert_eq!(shown, rx_state::STOP, "a stop stands");
    assert_eq!(consumer.is_over(), Ok(true));
}
