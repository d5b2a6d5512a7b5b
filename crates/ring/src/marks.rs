//! Marks: which of a link's channels have something new.
//!
//! A waiter looks at the tails of the few channels that are busy. For the others it
//! sets `wants_mark`, and their producers mark them: two levels of bits, so that a
//! waiter finds one marked channel among 16,384 with two or three loads, and an idle
//! channel costs nothing.
//!
//! Neither side can clear the other's bits. A channel is marked while the marker's
//! bit and the waiter's seen bit differ; the marker makes them differ, the waiter
//! makes them equal. A marker that finds them unlike has nothing to do.
//!
//! Order: the marker publishes its bytes, fences, looks at the seen bit; the waiter
//! writes its seen bit, fences, looks at the bytes. The same holds between a word
//! and its summary bit. Several threads may mark at once; each looks again after its
//! write, because another may have written in between.

use crate::{Mine, Ordering, fence};
use fordway_abi::atomic::AtomicU64;
use fordway_abi::shm::{MarkBits, MarkPage, SLOT_COUNT};

/// Looks at one bit before a marker gives up; an honest peer needs one or two.
const LOOKS_MAX: usize = 8;

/// The two mark pages of a link, as one side has them.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    own: *const MarkPage,
    peer: *const MarkPage,
}

impl Marks {
    /// # Safety
    /// `own` lies in our writable region, `peer` in the peer's, mapped read-only; both
    /// stay mapped as long as this is used.
    pub unsafe fn new(own: *const MarkPage, peer: *const MarkPage) -> Self {
        Self { own, peer }
    }

    fn own(&self) -> &MarkPage {
        // SAFETY: our own region; all fields are atomics.
        unsafe { &*self.own }
    }

    fn peer_seen(&self) -> &MarkBits {
        // SAFETY: mapped; all fields are atomics.
        unsafe { &(*self.peer).seen }
    }

    fn peer_marks(&self) -> &MarkBits {
        // SAFETY: mapped; all fields are atomics.
        unsafe { &(*self.peer).marks }
    }

    /// Marks the channel of `slot`. What is new in it was published before, and fenced.
    pub fn mark(&self, slot: u32) {
        let slot = slot as usize % SLOT_COUNT;
        let (word, bit) = (slot / 64, slot % 64);
        let own = &self.own().marks;
        if differ(&own.words[word], &self.peer_seen().words[word], bit) {
            // Nobody else may have told of it yet: the summary is looked at in any case.
            fence(Ordering::SeqCst);
        }
        differ(
            &own.summary[word / 64],
            &self.peer_seen().summary[word / 64],
            word % 64,
        );
    }

    /// Calls `act` with each channel that the peer has marked since the last sweep.
    /// One thread at a time. What is new in a channel is to be looked at after this.
    pub fn sweep(&self, mut act: impl FnMut(u32)) {
        let seen = &self.own().seen;
        for (index, summary) in seen.summary.iter().enumerate() {
            let mut words = changed(&self.peer_marks().summary[index], summary);
            while words != 0 {
                let word = index * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let mut slots = changed(&self.peer_marks().words[word], &seen.words[word]);
                while slots != 0 {
                    act((word * 64) as u32 + slots.trailing_zeros());
                    slots &= slots - 1;
                }
            }
        }
    }
}

/// Makes bit `bit` of `mine` unlike that of `theirs`; whether anything was written.
fn differ(mine: &AtomicU64, theirs: &AtomicU64, bit: usize) -> bool {
    let mut wrote = false;
    for _ in 0..LOOKS_MAX {
        // SYNC POINT with `changed`: the publication (or our write) before this look.
        let seen = theirs.load(Ordering::SeqCst) >> bit & 1;
        if ours(mine) >> bit & 1 != seen {
            break;
        }
        if seen == 0 {
            mine.fetch_or(1 << bit, Ordering::SeqCst);
        } else {
            mine.fetch_and(!(1 << bit), Ordering::SeqCst);
        }
        wrote = true;
        fence(Ordering::SeqCst);
    }
    wrote
}

/// A word of our own that several threads of ours write.
fn ours(word: &AtomicU64) -> u64 {
    // As `Mine`: a load of ours would hide from loom that the waiter has loaded the word.
    if cfg!(loom) {
        word.fetch_or(0, Ordering::SeqCst)
    } else {
        word.load(Ordering::SeqCst)
    }
}

/// The bits of `theirs` that are new, noted as seen in `mine`.
fn changed(theirs: &AtomicU64, mine: &AtomicU64) -> u64 {
    let shown = theirs.load(Ordering::SeqCst);
    let new = shown ^ mine.mine();
    if new != 0 {
        mine.store(shown, Ordering::SeqCst);
        // SYNC POINT with `differ`: the seen bits before the look at what they stand for.
        fence(Ordering::SeqCst);
    }
    new
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn swept(marks: &Marks) -> Vec<u32> {
        let mut slots = Vec::new();
        marks.sweep(|slot| slots.push(slot));
        slots
    }

    #[test]
    fn each_mark_is_swept_once() {
        let (a, b) = (Box::new(MarkPage::default()), Box::new(MarkPage::default()));
        // SAFETY: both pages outlive the views.
        let (marker, waiter) = unsafe { (Marks::new(&*a, &*b), Marks::new(&*b, &*a)) };
        assert_eq!(swept(&waiter), []);
        for round in 0..3 {
            for slot in [0, 63, 64, 4095, 4096, SLOT_COUNT as u32 - 1] {
                marker.mark(slot);
                marker.mark(slot);
                assert_eq!(swept(&waiter), [slot], "round {round}");
                assert_eq!(swept(&waiter), []);
            }
        }
        marker.mark(5);
        marker.mark(7);
        marker.mark(700);
        assert_eq!(swept(&waiter), [5, 7, 700]);
    }

    #[test]
    fn no_mark_is_lost_between_threads() {
        use core::sync::atomic::{AtomicU64, Ordering};
        const ROUNDS: u64 = 20_000;
        let (a, b) = (Box::new(MarkPage::default()), Box::new(MarkPage::default()));
        let published: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for (slot, published) in published.iter().enumerate() {
                let (own, peer) = (&*a, &*b);
                scope.spawn(move || {
                    // SAFETY: both pages outlive the view.
                    let marker = unsafe { Marks::new(own, peer) };
                    for round in 1..=ROUNDS {
                        published.store(round, Ordering::Release);
                        fence(Ordering::SeqCst);
                        marker.mark(slot as u32 * 3);
                    }
                });
            }
            // SAFETY: both pages outlive the view.
            let waiter = unsafe { Marks::new(&*b, &*a) };
            let mut last = [0; 4];
            // Would not end if the mark of a last round got lost.
            while last != [ROUNDS; 4] {
                waiter.sweep(|slot| {
                    let slot = slot as usize / 3;
                    last[slot] = published[slot].load(Ordering::Acquire);
                });
                std::thread::yield_now();
            }
        });
    }
}
