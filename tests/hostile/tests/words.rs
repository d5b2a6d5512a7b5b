//! Every index and flag of a hostile peer's memory, at every time.

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use fordway_abi::shm::{ARENA_OFFSET, Endpoint, REGION_BYTES, SEGMENT_LOG2_MAX, tx_state};
use fordway_test_hostile::mallory::{Mallory, Word};
use fordway_test_hostile::{Bed, Style};
use std::mem::offset_of;

const ECONNRESET: i32 = 104;

/// Connections beside which words are written at random.
const ROUNDS: usize = 120;

/// One word, and a value that no honest peer writes there.
type Lie = (&'static str, fn(&mut Mallory));

const LIES: &[Lie] = &[
    ("a tail that goes back", |mallory| {
        let tail = mallory.tail - 1;
        mallory.set_u64(offset_of!(Endpoint, tx.tail), tail);
    }),
    ("a tail far ahead", |mallory| {
        let tail = mallory.tail + (4 << SEGMENT_LOG2_MAX);
        mallory.set_u64(offset_of!(Endpoint, tx.tail), tail);
    }),
    ("a segment before the arena", |mallory| {
        second(mallory, 4096, 16)
    }),
    ("a segment behind the region", |mallory| {
        second(mallory, REGION_BYTES as u64 - 4096, 16);
    }),
    ("a segment of no size", |mallory| {
        second(mallory, ARENA_OFFSET as u64, 0)
    }),
    ("a segment of every size", |mallory| {
        second(mallory, ARENA_OFFSET as u64, 63)
    }),
    ("more segments than there can be", |mallory| {
        mallory.set_u32(offset_of!(Endpoint, cold.segment_count), 5);
        mallory.put(10);
    }),
    ("fewer segments than there were", |mallory| {
        mallory.set_u32(offset_of!(Endpoint, cold.segment_count), 0);
        mallory.put(10);
        mallory.set_u32(offset_of!(Endpoint, cold.segment_count), u32::MAX);
        mallory.put(10);
    }),
    ("a head beyond the tail", |mallory| {
        let head = mallory.head + 1_000_000;
        mallory.set_u64(offset_of!(Endpoint, rx.head), head);
        // It is looked at when room is short.
        mallory.put(60_000);
        mallory.put(60_000);
    }),
];

/// Publishes a second segment, and bytes that lie in it.
fn second(mallory: &mut Mallory, offset: u64, log2: u64) {
    let segments = offset_of!(Endpoint, cold.segments);
    mallory.set_u64(segments + 16, mallory.tail);
    mallory.set_u64(segments + 24, offset << 8 | log2);
    mallory.set_u32(offset_of!(Endpoint, cold.segment_count), 2);
    mallory.put(10);
}

#[test]
fn a_lie_costs_the_connection_and_nothing_else() -> Result<()> {
    for style in [Style::Epoll, Style::Threads] {
        let mut bed = Bed::start(style)?;
        let errors = bed.lab.info()?.channel_errors;
        bed.case("one lie after the other", |bed| {
            for (number, (what, lie)) in LIES.iter().enumerate() {
                let mut mallory = Mallory::join(bed).context(*what)?;
                mallory.echo(100)?;
                lie(&mut mallory);
                mallory.knock();
                bed.wait_for("resets him", || bed.ends(ECONNRESET) == number + 1)
                    .with_context(|| format!("{style:?}: {what}"))?;
            }
            Ok(())
        })?;
        ensure!(
            bed.lab.info()?.channel_errors == errors + LIES.len() as u64,
            "each is counted"
        );
        let pid = std::process::id().to_string();
        let logged = bed.log_count(&["broke the channel protocol", &pid]);
        ensure!(logged == 1, "logged once, not {logged} times");
        bed.finish()?;
    }
    Ok(())
}

/// A value that is likely to mean something.
fn value(random: &mut Rng, mallory: &Mallory) -> u64 {
    let random = random.u64(..);
    match random % 10 {
        0 => 0,
        1 => u64::MAX,
        2 => mallory.tail + random % 100_000,
        3 => mallory.head + random % 100_000,
        4 => 1 << (random >> 8 & 63),
        5 | 6 => random >> 32 & 3,
        7 => ((ARENA_OFFSET as u64 + (random >> 16 & 0xffff_ffff)) << 8) | (16 + (random & 7)),
        8 => u64::from(tx_state::RING),
        _ => random,
    }
}

#[test]
fn every_word_at_random_times() -> Result<()> {
    for style in [Style::Epoll, Style::Threads] {
        let mut bed = Bed::start(style)?;
        let mut random = Rng::with_seed(1);
        bed.case("every word at random", |bed| {
            for round in 0..ROUNDS {
                let mallory = Mallory::join(bed).with_context(|| bed.lab.broker_log())?;
                scribble(&mallory, &mut random, 10 << (round % 8));
            }
            // Whatever he wrote: when he is gone, the victim hears of it.
            bed.wait_for("sees the end of each", || bed.all_ends() == bed.made())?;
            Ok(())
        })?;
        bed.finish()?;
    }
    Ok(())
}

/// Writes so many words, and makes the victim look now and then.
fn scribble(mallory: &Mallory, random: &mut Rng, count: u64) {
    let words = mallory.words();
    // The endpoint's words come first; they are the most telling.
    let telling = words
        .iter()
        .filter(|word| !matches!(word.name, "marks" | "header"));
    let telling: Vec<Word> = telling.copied().collect();
    for _ in 0..count {
        let list = if random.u8(..8) == 0 {
            &words
        } else {
            &telling
        };
        let word = list[random.usize(..list.len())];
        mallory.write(word, value(random, mallory));
        if random.u8(..4) == 0 {
            mallory.provoke();
        }
    }
}
