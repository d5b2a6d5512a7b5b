//! See [`ring_consumer`] and [`ring_producer`].

use crate::Bytes;
use crate::victim::{Call, Index, Scribble, on_ring};
use fordway_abi::shm::{
    ARENA_OFFSET, REGION_BYTES, SEGMENT_COUNT, SEGMENT_LOG2_MAX, SEGMENT_LOG2_MIN,
};

/// Steps of one run.
const STEPS_MAX: usize = 400;
/// Longest piece that is read or written at once.
const PIECE_BYTES_MAX: u64 = 3 << 20;

/// The consumer against a producer that writes anything.
pub fn ring_consumer(bytes: &[u8]) {
    run(bytes, |bytes| match bytes.byte() % 8 {
        0..5 => Call::Receive {
            skip: if bytes.byte() < 200 {
                0
            } else {
                bytes.number(8)
            },
            count: size(bytes),
            take: bytes.byte() & 1 == 0,
        },
        5 => Call::LookAround,
        6 => Call::Stop,
        _ => Call::Resume,
    });
}

/// The producer against a consumer that writes anything.
pub fn ring_producer(bytes: &[u8]) {
    run(bytes, |bytes| match bytes.byte() % 12 {
        0..4 => Call::Send(size(bytes)),
        4..6 => Call::SendInPlace(size(bytes)),
        6 => Call::LookAround,
        7 => Call::AskForRoom,
        8 => Call::Leave,
        9 => Call::Withdraw,
        10 => Call::SendBack,
        _ => Call::Enter,
    });
}

fn run(bytes: &[u8], call: impl Fn(&mut Bytes<'_>) -> Call) {
    let mut bytes = Bytes(bytes);
    let victim = on_ring();
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        if bytes.byte() & 1 == 0 {
            // A violation ends a call; the next one is made all the same.
            let _ = victim.call(call(&mut bytes));
        } else {
            victim.scribble(scribble(&mut bytes));
        }
    }
    victim.assert_untouched();
}

fn size(bytes: &mut Bytes<'_>) -> usize {
    let count = match bytes.byte() % 8 {
        0..6 => bytes.number(2),
        6 => bytes.number(3),
        _ => bytes.number(4),
    };
    (count % PIECE_BYTES_MAX) as usize
}

fn index(bytes: &mut Bytes<'_>) -> Index {
    match bytes.byte() % 6 {
        0 => Index::Any(bytes.number(8)),
        1 => Index::Any([0, 1, 1 << 63, u64::MAX][bytes.number(1) as usize % 4]),
        2 => Index::Near(bytes.number(4) as i64 % 9_000_000),
        3 => Index::Near(-(bytes.number(2) as i64)),
        _ => Index::Near(bytes.number(2) as i64),
    }
}

fn small(bytes: &mut Bytes<'_>) -> u32 {
    match bytes.byte() {
        value @ 0..240 => u32::from(value % 6),
        _ => bytes.number(4) as u32,
    }
}

fn place(bytes: &mut Bytes<'_>) -> u64 {
    let log2 = match bytes.byte() {
        value @ 0..200 => {
            let sizes = SEGMENT_LOG2_MAX - SEGMENT_LOG2_MIN + 3;
            SEGMENT_LOG2_MIN - 1 + u32::from(value) % sizes
        }
        value => u32::from(value),
    };
    let offset = match bytes.byte() % 4 {
        0 => (ARENA_OFFSET as u64).wrapping_add(bytes.number(3) * 64),
        1 => (REGION_BYTES as u64).wrapping_sub(bytes.number(3) * 64),
        2 => (ARENA_OFFSET as u64).wrapping_sub(bytes.number(1) * 64),
        _ => bytes.number(7),
    };
    offset << 8 | u64::from(log2 & 0xff)
}

fn scribble(bytes: &mut Bytes<'_>) -> Scribble {
    let segment = |bytes: &mut Bytes<'_>| bytes.number(1) as usize % SEGMENT_COUNT;
    match bytes.byte() % 20 {
        0..4 => Scribble::Tail(index(bytes)),
        4 => Scribble::TxState(small(bytes)),
        5 => Scribble::TxFlags(small(bytes)),
        6..8 => Scribble::SegmentCount(small(bytes)),
        8 => Scribble::SegmentStart(segment(bytes), index(bytes)),
        9..12 => Scribble::SegmentPlace(segment(bytes), place(bytes)),
        12 => Scribble::SwitchAt(bytes.number(8)),
        13..16 => Scribble::Head(index(bytes)),
        16 => Scribble::SegmentSeen(small(bytes)),
        17 => Scribble::RxState(small(bytes)),
        18 => Scribble::Doors(bytes.number(8)),
        _ => Scribble::Lock(small(bytes)),
    }
}
