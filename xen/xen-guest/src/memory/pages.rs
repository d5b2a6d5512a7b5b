//! The page allocator: one bit for each page of the domain, set while the page is taken.
//!
//! Everything is taken at first; boot gives back what nothing lives in. Runs of pages are
//! found by looking for free bits from where the last search ended, word by word. Pages are
//! asked for when a pool is made or the heap grows, never for each packet, so that a search
//! is good enough and a page costs one bit.

/// Which pages are taken. The words are borrowed for good: the map lies in pages itself.
pub struct Pages {
    taken: &'static mut [u64],
    page_count: usize,
    free_count: usize,
    /// Where the next search for a single page begins, as a word.
    next_word: usize,
}

impl Pages {
    /// Words that a map of `page_count` pages needs.
    pub const fn words(page_count: usize) -> usize {
        page_count.div_ceil(64)
    }

    /// A map of `page_count` pages in `words`, all of them taken.
    pub fn new(words: &'static mut [u64], page_count: usize) -> Self {
        words.fill(u64::MAX);
        assert!(words.len() >= Self::words(page_count));
        Pages {
            taken: words,
            page_count,
            free_count: 0,
            next_word: 0,
        }
    }

    pub fn free_count(&self) -> usize {
        self.free_count
    }

    pub fn page_count(&self) -> usize {
        self.page_count
    }

    /// Gives pages back. A page that is free already is a fault of the caller.
    pub fn free(&mut self, first: usize, count: usize) {
        assert!(first + count <= self.page_count);
        for page in first..first + count {
            let bit = 1u64 << (page % 64);
            assert!(self.taken[page / 64] & bit != 0, "page {page} freed twice");
            self.taken[page / 64] &= !bit;
        }
        self.free_count += count;
        self.next_word = self.next_word.min(first / 64);
    }

    /// Takes `count` neighbouring pages; the first one's number.
    pub fn take(&mut self, count: usize) -> Option<usize> {
        if count == 0 || count > self.free_count {
            return None;
        }
        let first = self.find(count)?;
        for page in first..first + count {
            self.taken[page / 64] |= 1 << (page % 64);
        }
        self.free_count -= count;
        if count == 1 {
            self.next_word = first / 64;
        }
        Some(first)
    }

    fn find(&self, count: usize) -> Option<usize> {
        let mut run = 0;
        let mut page = self.next_word * 64;
        while page < self.page_count {
            let word = self.taken[page / 64] >> (page % 64);
            if word & 1 != 0 {
                // Past all the taken ones of this word at once.
                run = 0;
                page += (word.trailing_ones() as usize).min(64 - page % 64);
            } else {
                let free = (word.trailing_zeros() as usize).min(64 - page % 64);
                if run + free >= count {
                    let first = page - run;
                    return (first + count <= self.page_count).then_some(first);
                }
                run += free;
                page += free;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{boxed::Box, vec, vec::Vec};

    fn pages(count: usize) -> Pages {
        Pages::new(
            Box::leak(vec![0; Pages::words(count)].into_boxed_slice()),
            count,
        )
    }

    #[test]
    fn pages_are_given_out_once_and_come_back() {
        let mut map = pages(200);
        assert_eq!(map.take(1), None);
        map.free(3, 190);
        let taken: Vec<_> = (0..190).map(|_| map.take(1).unwrap()).collect();
        assert_eq!(taken, (3..193).collect::<Vec<_>>());
        assert_eq!(map.take(1), None);
        map.free(100, 1);
        assert_eq!(map.take(1), Some(100));
    }

    #[test]
    fn a_run_may_cross_words_but_not_a_taken_page() {
        let mut map = pages(256);
        map.free(0, 60);
        map.free(61, 195);
        assert_eq!(map.take(61), Some(61));
        assert_eq!(map.take(60), Some(0));
        assert_eq!(map.take(134), Some(122));
        assert_eq!(map.take(1), None);
        assert_eq!(map.free_count(), 0);
    }

    #[test]
    fn the_last_word_ends_with_the_memory() {
        let mut map = pages(70);
        map.free(0, 70);
        assert_eq!(map.take(71), None);
        assert_eq!(map.take(70), Some(0));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_page_cannot_be_freed_twice() {
        let mut map = pages(8);
        map.free(1, 2);
        map.free(2, 1);
    }
}
