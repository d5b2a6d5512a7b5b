//! Which tasks are ready: one bit for each place, and a summary of one bit for each word.
//!
//! A waker sets the bit, then the summary; the executor clears the summary of a word when it
//! found the word empty, and looks at the word once more. So a set bit has its summary set, or
//! is about to have it, and none is lost: the summary's OR comes after the bit's in the
//! order of every thread that sees it (AcqRel on both words).

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Ready {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
}

impl Ready {
    pub(crate) fn new(places: usize) -> Ready {
        let zeroes = |bits: usize| (0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let words: Box<[AtomicU64]> = zeroes(places);
        let summary = zeroes(words.len());
        Ready { words, summary }
    }

    /// The places, rounded up to whole words.
    pub(crate) fn places(&self) -> usize {
        self.words.len() * 64
    }

    pub(crate) fn mark(&self, place: usize) {
        let (word, bit) = (place / 64, 1 << (place % 64));
        if self.words[word].fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            self.summary[word / 64].fetch_or(1 << (word % 64), Ordering::AcqRel);
        }
    }

    pub(crate) fn any(&self) -> bool {
        let set = |word: &AtomicU64| word.load(Ordering::Acquire) != 0;
        self.summary.iter().any(set) && self.words.iter().any(set)
    }

    /// Takes the first place that is ready in `from..end`.
    pub(crate) fn take_first(&self, from: usize, end: usize) -> Option<usize> {
        let end = end.min(self.places());
        let mut at = from;
        while at < end {
            let word = at / 64;
            let summary = self.summary[word / 64].load(Ordering::Acquire) >> (word % 64);
            if summary == 0 {
                at = (word / 64 + 1) * 64 * 64;
                continue;
            }
            if summary & 1 == 0 {
                at = (word + summary.trailing_zeros() as usize) * 64;
                continue;
            }
            let bits = self.words[word].load(Ordering::Acquire);
            if bits == 0 {
                self.rest(word);
            }
            let wanted = bits & (u64::MAX << (at % 64));
            if wanted == 0 {
                at = (word + 1) * 64;
                continue;
            }
            let place = word * 64 + wanted.trailing_zeros() as usize;
            if place >= end {
                return None;
            }
            let left = self.words[word].fetch_and(!(1 << (place % 64)), Ordering::AcqRel);
            if left & (left - 1) == 0 {
                self.rest(word);
            }
            return Some(place);
        }
        None
    }

    /// Clears the summary of a word that was seen empty, unless it has a bit again.
    fn rest(&self, word: usize) {
        let bit = 1 << (word % 64);
        self.summary[word / 64].fetch_and(!bit, Ordering::AcqRel);
        if self.words[word].load(Ordering::Acquire) != 0 {
            self.summary[word / 64].fetch_or(bit, Ordering::AcqRel);
        }
    }
}
