//! The packet queue: honest ends against the plainest model, a list of messages for each receiver; and each end against a
//! peer that writes anything.
#![cfg(not(loom))]

#[path = "memory/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of the byte ring")]
mod memory;
#[path = "queue/whole.rs"]
mod whole;

use fordway_abi::queue::{ENTRY_COUNT, MESSAGE_BLOCKS_MAX};
use fordway_ring::Violation;
use fordway_ring::queue::{Message, Refusal};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use whole::{BLOCK_BYTES, BLOCKS, Queue, all_are_free, content};

const LANES: usize = 3;

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
