//! When bytes were published: what puts rings that are ready in one wait into an order.
//!
//! Linux tells of sockets in the order in which they became ready (fs/eventpoll.c: rdllist). A
//! producer does not know whether its ring was empty without a look at the consumer's line, which
//! costs a send more than its copy. So it notes each publication: at which stream index it began,
//! and when. The consumer, which knows how far it has read, finds the publication in which the
//! first unread byte lies. The last one stands beside the tail, in the line that both sides have
//! at hand; the ones before it in a line of their own, which the consumer looks at only if more
//! than one is unread.
//!
//! Nothing is noted for a peer that wants no doorbell: an epoll instance wants one from the
//! registration on, a receive only while it sleeps.
//!
//! # Limits
//! Beside more than [`MOMENT_COUNT`] unread publications, the oldest that is known counts. Moments
//! are 128 ticks long, and what lies further back than 2^31 of them (a minute or more) counts as
//! just come. They order what is told and nothing else. A liar's events are told later, or earlier
//! among those of one wait: who waits lets no moment count before its last wait. Where two domains
//! do not have one clock (Xen guests whose tsc has an offset), the order among their rings is any.

use crate::Mine;
use core::sync::atomic::Ordering;
use fordway_abi::shm::{Endpoint, MOMENT_COUNT};

/// log2 of the ticks of one moment.
const MOMENT_TICKS_LOG2: u32 = 7;

/// The processor's clock: the same for all CPUs of a machine.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

fn moment_of(ticks: u64) -> u32 {
    (ticks >> MOMENT_TICKS_LOG2) as u32
}

/// Notes that what begins at `tail` is published now. Before the tail is.
#[inline(always)]
pub(crate) fn note(own: &Endpoint, tail: u64) {
    note_at(own, tail, ticks());
}

#[inline(always)]
fn note_at(own: &Endpoint, tail: u64, ticks: u64) {
    let word = tail << 32 | u64::from(moment_of(ticks));
    let line = &own.moments;
    let place = line.count.mine() as usize;
    // Ours, and below the count: without a division, which costs as much as the rest.
    if let Some(moment) = line.moments.get(place) {
        moment.store(word, Ordering::Relaxed);
    }
    let next = if place + 1 < MOMENT_COUNT {
        place + 1
    } else {
        0
    };
    line.count.store(next as u32, Ordering::Relaxed);
    own.tx.moment.store(word, Ordering::Relaxed);
}

/// How far before stream index `from` a publication began, if it did.
fn distance(word: u64, from: u64) -> Option<u32> {
    let distance = (from as u32).wrapping_sub((word >> 32) as u32);
    (distance >> 31 == 0).then_some(distance)
}

/// When the byte at stream index `from` was published, in ticks and not after `now`, by what the
/// peer says.
pub(crate) fn published_at(peer: &Endpoint, from: u64, now: u64) -> u64 {
    let last = peer.tx.moment.load(Ordering::Relaxed);
    let word = match distance(last, from) {
        Some(_) => last,
        None => nearest(peer, from).unwrap_or(last),
    };
    let age = moment_of(now).wrapping_sub(word as u32);
    // Of one that is later than `now`, by a clock that differs.
    let age = if age >> 31 == 0 { age } else { 0 };
    now.saturating_sub(u64::from(age) << MOMENT_TICKS_LOG2)
}

/// Of the noted publications the last that began at or before `from`, or else the first.
fn nearest(peer: &Endpoint, from: u64) -> Option<u64> {
    let noted = peer.moments.moments.each_ref();
    let noted = noted.map(|place| place.load(Ordering::Relaxed));
    let noted = || noted.into_iter().filter(|word| *word != 0);
    let before = noted().filter_map(|word| distance(word, from).map(|distance| (distance, word)));
    let behind = || noted().min_by_key(|word| ((word >> 32) as u32).wrapping_sub(from as u32));
    before.min().map(|(_, word)| word).or_else(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: u64 = 1 << 60 | 1 << 20;

    fn at(moment: u64) -> u64 {
        BEGUN + (moment << MOMENT_TICKS_LOG2)
    }

    #[test]
    fn the_publication_of_a_byte_is_found() {
        let peer = Endpoint::default();
        for (count, tail) in (0..MOMENT_COUNT as u64).map(|count| (count, count * 100)) {
            note_at(&peer, tail, at(count));
            for first in 0..=count {
                let found = |from| published_at(&peer, from, at(1000));
                assert_eq!(
                    [found(first * 100), found(first * 100 + 99)],
                    [at(first); 2]
                );
            }
        }
        // More than are known: of the first two that are unread, the first is not.
        let count = MOMENT_COUNT as u64;
        note_at(&peer, count * 100, at(count));
        assert_eq!(published_at(&peer, 0, at(1000)), at(1));
        assert_eq!(published_at(&peer, 100, at(1000)), at(1));
        assert_eq!(published_at(&peer, 200, at(1000)), at(2));
        assert_eq!(published_at(&peer, count * 100, at(1000)), at(count));
    }

    #[test]
    fn indices_may_be_long() {
        let peer = Endpoint::default();
        let around = 7 << 32;
        note_at(&peer, around - 9, at(1));
        note_at(&peer, around + 5, at(2));
        for (from, moment) in [(-9, 1), (0, 1), (4, 1), (5, 2), (100, 2)] {
            let from = around.wrapping_add_signed(from);
            assert_eq!(published_at(&peer, from, at(9)), at(moment));
        }
    }

    #[test]
    fn whatever_the_peer_says_it_was_not_later_than_now() {
        let peer = Endpoint::default();
        assert!(published_at(&peer, 0, at(9)) <= at(9));
        for word in [0, 1, u64::MAX, u64::MAX << 32, 1 << 31, 1 << 63] {
            peer.tx.moment.store(word, Ordering::Relaxed);
            peer.moments.moments[3].store(word ^ 1 << 40, Ordering::Relaxed);
            for from in [0, 1 << 31, u64::from(u32::MAX), u64::MAX] {
                assert!(published_at(&peer, from, at(9)) <= at(9));
                assert!(published_at(&peer, from, 5) <= 5);
            }
        }
    }
}
