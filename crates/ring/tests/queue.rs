//! The packet queue: honest ends against the plainest model, a list of messages for each receiver; and each end against a
//! peer that writes anything.
#![cfg(not(loom))]

#[path = "memory/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of the byte ring")]
mod memory;

use fordway_abi::queue::{Acknowledgements, ENTRY_COUNT, Lane, MESSAGE_BLOCKS_MAX};
use fordway_ring::Violation;
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::queue::{Draft, Geometry, Header, Message, Receiver, Refusal, Sender};
use memory::Guarded;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

const LANES: usize = 3;
const BLOCK_LOG2: u32 = 7;
const BLOCK_BYTES: usize = 1 << BLOCK_LOG2;
const BLOCKS: usize = 24;

/// A queue with all of its memory.
struct Queue {
    sender: Sender,
    pool: Guarded,
    sides: Vec<Side>,
    geometry: Geometry,
    copier: Copier,
}

/// A receiver with its lane.
struct Side {
    lane: Box<Lane>,
    acknowledgements: Box<Acknowledgements>,
    receiver: Receiver,
    number: usize,
}

impl Queue {
    fn new(blocks: usize, lanes: usize) -> Queue {
        let geometry = Geometry::new(blocks, BLOCK_LOG2).expect("geometry");
        let pool = Guarded::new(
            geometry.pool_bytes().next_multiple_of(4096),
            libc::PROT_READ | libc::PROT_WRITE,
        );
        // The guard is right behind it.
        // SAFETY: the pool lives as long as the queue.
        let sender = unsafe { Sender::new(pool.end(geometry.pool_bytes()), geometry) };
        let mut queue = Queue {
            sender,
            pool,
            sides: Vec::new(),
            geometry,
            copier: Copier::detect(),
        };
        for _ in 0..lanes {
            let side = queue.attach();
            queue.sides.push(side);
        }
        queue
    }

    fn attach(&mut self) -> Side {
        let (lane, acknowledgements) = (Box::<Lane>::default(), Box::<Acknowledgements>::default());
        let pool = self.pool.end(self.geometry.pool_bytes());
        // SAFETY: both boxes live in the side, and the sides in the queue.
        unsafe {
            let receiver = Receiver::new(&*acknowledgements, &*lane, pool, self.geometry);
            let number = self.sender.attach(&*lane, &*acknowledgements);
            Side {
                lane,
                acknowledgements,
                receiver,
                number: number.expect("a lane"),
            }
        }
    }

    /// A draft with these bytes, written in two pieces.
    fn draft(&mut self, bytes: &[u8]) -> Result<Draft, Refusal> {
        let draft = self.sender.draft(bytes.len())?;
        let middle = bytes.len() / 3;
        for (at, piece) in [(0, &bytes[..middle]), (middle, &bytes[middle..])] {
            let (source, count) = (piece.as_ptr(), piece.len());
            // SAFETY: the draft has room for all of it.
            unsafe {
                let sender = &self.sender;
                sender.write(&draft, &self.copier, Kernel::Plain, at, source, count);
            }
        }
        Ok(draft)
    }

    fn send(&mut self, number: u64, bytes: &[u8], lanes: u64) -> Result<u64, Refusal> {
        let draft = self.draft(bytes)?;
        let header = Header {
            source: number << 32,
            destination: lanes,
            number,
            kind: number as u8,
        };
        Ok(self.sender.send(draft, &header, lanes))
    }

    /// The same, of a message that is made in place and turns out shorter than it might have been.
    fn make(
        &mut self,
        number: u64,
        bytes: &[u8],
        spare: usize,
        lanes: u64,
    ) -> Result<u64, Refusal> {
        let mut draft = self.sender.draft_run(bytes.len() + spare)?;
        let place = self.sender.place(&draft);
        // SAFETY: the draft has room for all of it, and its blocks are neighbours.
        unsafe {
            place.write_bytes(0xee, bytes.len() + spare);
            place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.sender.shorten(&mut draft, bytes.len());
        let header = Header {
            source: number << 32,
            destination: lanes,
            number,
            kind: number as u8,
        };
        Ok(self.sender.send(draft, &header, lanes))
    }

    fn bytes_of(&self, lane: usize, message: &Message) -> Vec<u8> {
        let mut bytes = vec![0; message.bytes()];
        let (target, count) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: `bytes` is that long.
        let copied = unsafe {
            let receiver = &self.sides[lane].receiver;
            receiver.copy(message, &self.copier, Kernel::Plain, 0, target, count)
        };
        assert_eq!(copied, count);
        bytes
    }
}

/// What message `number` says.
fn content(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (number as usize * 31 + at * 7 + at / BLOCK_BYTES) as u8)
        .collect()
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send {
        bytes: usize,
        lanes: u64,
    },
    /// Made in place, in a draft that is longer by so much.
    Make {
        bytes: usize,
        spare: usize,
        lanes: u64,
    },
    Cancel {
        bytes: usize,
    },
    Receive(usize),
    /// The n-th of those that are held.
    Acknowledge(usize, prop::sample::Index),
    Collect(usize),
    /// The receiver goes, and another one comes in its place.
    Replace(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![3 => 0..BLOCK_BYTES + 2, 1 => 0..BLOCKS * BLOCK_BYTES / 2];
    prop_oneof![
        8 => (bytes(), 0..1u64 << LANES).prop_map(|(bytes, lanes)| Step::Send { bytes, lanes }),
        4 => (bytes(), 0..4 * BLOCK_BYTES, 0..1u64 << LANES).prop_map(|(bytes, spare, lanes)| Step::Make { bytes, spare, lanes }),
        1 => bytes().prop_map(|bytes| Step::Cancel { bytes }),
        8 => (0..LANES).prop_map(Step::Receive),
        6 => (0..LANES, any::<prop::sample::Index>()).prop_map(|(lane, which)| Step::Acknowledge(lane, which)),
        6 => (0..LANES).prop_map(Step::Collect),
        1 => (0..LANES).prop_map(Step::Replace),
    ]
}

/// What a lane should have.
#[derive(Default)]
struct Expected {
    /// Sent and not received: number and bytes.
    on_the_way: VecDeque<(u64, usize)>,
    held: Vec<(u64, Message)>,
    acknowledged_blocks: usize,
    /// Blocks that the sender counts for it.
    counted_blocks: usize,
}

fn blocks_of(bytes: usize) -> usize {
    bytes.div_ceil(BLOCK_BYTES).max(1)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..Default::default() })]

    #[test]
    fn each_receiver_gets_what_fits_its_share(steps in prop::collection::vec(step(), 1..200)) {
        let mut queue = Queue::new(BLOCKS, LANES);
        let mut lanes: Vec<Expected> = (0..LANES).map(|_| Expected::default()).collect();
        let share = BLOCKS / LANES;
        for (step, number) in steps.into_iter().zip(1u64..) {
            match step {
                Step::Send { bytes, lanes: wanted } => {
                    let sent = queue.send(number, &content(number, bytes), wanted);
                    let blocks = blocks_of(bytes);
                    if blocks > share {
                        prop_assert_eq!(sent, Err(Refusal::TooLong));
                        continue;
                    }
                    // Whoever holds nothing can be reached, whatever the others do.
                    let is_owed = lanes.iter().any(|lane| lane.counted_blocks == 0);
                    prop_assert!(!is_owed || sent.is_ok());
                    let Ok(reached) = sent else { continue };
                    for (at, lane) in lanes.iter_mut().enumerate() {
                        let fits = lane.counted_blocks + blocks <= share;
                        prop_assert_eq!(reached >> at & 1 != 0, wanted >> at & 1 != 0 && fits);
                        if reached >> at & 1 != 0 {
                            lane.on_the_way.push_back((number, bytes));
                            lane.counted_blocks += blocks;
                        }
                    }
                }
                Step::Make { bytes, spare, lanes: wanted } => {
                    let made = queue.make(number, &content(number, bytes), spare, wanted);
                    let blocks = blocks_of(bytes);
                    prop_assert_eq!(made == Err(Refusal::TooLong), blocks_of(bytes + spare) > share);
                    let Ok(reached) = made else { continue };
                    for (at, lane) in lanes.iter_mut().enumerate() {
                        let fits = lane.counted_blocks + blocks <= share;
                        prop_assert_eq!(reached >> at & 1 != 0, wanted >> at & 1 != 0 && fits);
                        if reached >> at & 1 != 0 {
                            lane.on_the_way.push_back((number, bytes));
                            lane.counted_blocks += blocks;
                        }
                    }
                }
                Step::Cancel { bytes } => {
                    if let Ok(draft) = queue.sender.draft(bytes) {
                        queue.sender.cancel(draft);
                    }
                }
                Step::Receive(at) => {
                    prop_assert_eq!(queue.sides[at].receiver.looks_readable(), !lanes[at].on_the_way.is_empty());
                    let message = queue.sides[at].receiver.receive().expect("honest");
                    let expected = lanes[at].on_the_way.pop_front();
                    let Some((message, (number, bytes))) = message.zip(expected) else {
                        prop_assert!(lanes[at].on_the_way.is_empty());
                        continue;
                    };
                    let header = message.header;
                    prop_assert_eq!((header.number, header.kind, message.bytes()), (number, number as u8, bytes));
                    prop_assert_eq!(header.source, number << 32);
                    lanes[at].held.push((number, message));
                }
                Step::Acknowledge(at, which) => {
                    if lanes[at].held.is_empty() {
                        continue;
                    }
                    let which = which.index(lanes[at].held.len());
                    let (number, message) = lanes[at].held.swap_remove(which);
                    // As it was sent, however long it was held.
                    prop_assert_eq!(queue.bytes_of(at, &message), content(number, message.bytes()));
                    lanes[at].acknowledged_blocks += blocks_of(message.bytes());
                    queue.sides[at].receiver.acknowledge(message);
                }
                Step::Collect(at) => {
                    let lane = &mut lanes[at];
                    prop_assert_eq!(queue.sender.collect(at), Ok(lane.acknowledged_blocks));
                    lane.counted_blocks -= std::mem::take(&mut lane.acknowledged_blocks);
                }
                Step::Replace(at) => {
                    let number = queue.sides[at].number;
                    queue.sender.detach(number);
                    let side = queue.attach();
                    prop_assert_eq!(side.number, number);
                    queue.sides[at] = side;
                    lanes[at] = Expected::default();
                }
            }
        }
        // Nothing is lost: without receivers all blocks are free.
        (0..LANES).for_each(|lane| queue.sender.detach(lane));
        all_are_free(&mut queue.sender);
    }

    #[test]
    fn whatever_the_sender_writes(words in prop::collection::vec((0..ENTRY_COUNT, word(), any::<u64>()), 1..60), tails in prop::collection::vec(near(), 1..20)) {
        let mut queue = Queue::new(BLOCKS, 1);
        for (entry, piece, other) in words {
            let descriptor = &queue.sides[0].lane.entries[entry % 40];
            descriptor.piece.store(piece, Ordering::Relaxed);
            descriptor.number.store(other, Ordering::Relaxed);
        }
        for tail in tails {
            queue.sides[0].lane.tail.0.store(tail, Ordering::Relaxed);
            for _ in 0..ENTRY_COUNT + 1 {
                match queue.sides[0].receiver.receive() {
                    Ok(Some(message)) => {
                        // Reads beside the pool end the test.
                        let bytes = queue.bytes_of(0, &message);
                        prop_assert!(bytes.len() <= MESSAGE_BLOCKS_MAX * BLOCK_BYTES);
                        queue.sides[0].receiver.acknowledge(message);
                    }
                    Ok(None) => break,
                    Err(violation) => {
                        prop_assert!(matches!(violation, Violation::Tail | Violation::Descriptor));
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn whatever_the_receiver_writes(rounds in prop::collection::vec((near(), prop::collection::vec((0..ENTRY_COUNT, 0..BLOCKS as u32 + 2), 0..30), 0..400usize), 1..30)) {
        let mut queue = Queue::new(BLOCKS, 2);
        for ((tail, blocks, bytes), number) in rounds.into_iter().zip(1..) {
            let _ = queue.send(number, &content(number, bytes), 0b11);
            let told = &queue.sides[0].acknowledgements;
            for (at, block) in blocks {
                told.blocks[at % 40].store(block, Ordering::Relaxed);
            }
            told.tail.0.store(tail, Ordering::Relaxed);
            if queue.sender.collect(0).is_err() {
                queue.sender.detach(0);
                queue.sides[0] = queue.attach();
            }
            // The other one is served as ever.
            while let Some(message) = queue.sides[1].receiver.receive().expect("honest") {
                let number = message.header.number;
                let bytes = queue.bytes_of(1, &message);
                prop_assert_eq!(&bytes, &content(number, bytes.len()));
                queue.sides[1].receiver.acknowledge(message);
            }
            prop_assert!(queue.sender.collect(1).is_ok());
            prop_assert!(queue.sender.has_room(1, 400));
        }
        (0..2).for_each(|lane| queue.sender.detach(lane));
        all_are_free(&mut queue.sender);
    }
}

fn all_are_free(sender: &mut Sender) {
    let drafts: Vec<Draft> = (0..BLOCKS)
        .map(|_| sender.draft(1).expect("a block"))
        .collect();
    assert_eq!(sender.draft(0).map(drop), Err(Refusal::Full));
    drafts.into_iter().for_each(|draft| sender.cancel(draft));
}

/// A piece, mostly one that could be.
fn word() -> impl Strategy<Value = u64> {
    let bytes = prop_oneof![2 => Just(BLOCK_BYTES as u64), 1 => 0..BLOCK_BYTES as u64 + 2];
    prop_oneof![
        6 => (0..BLOCKS as u64 + 1, any::<bool>(), bytes).prop_map(|(block, goes_on, bytes)| block | u64::from(goes_on) << 16 | bytes << 32),
        1 => any::<u64>(),
    ]
}

fn near() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..60u64, 1 => 250..260u64, 1 => any::<u64>()]
}
