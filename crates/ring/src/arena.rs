//! Ring memory of one region, by powers of two: a bump pointer and one free list
//! for each size. Only the owning side (a process and its forked children) calls
//! this; the words are private words of [`RegionHeader`], so nothing here is input.
//!
//! A freed block keeps its pages warm and is handed out first (last in, first
//! out). Blocks are never merged: sizes are few, and a region is sparse. Where only a part of it has
//! memory, a larger block that is free is cut for what finds no other room.
//! The lock is held for a handful of instructions; a holder that was killed in
//! between costs its region new segments, not its channels: `take` gives up after
//! a bound and the ring stays as large as it is.

use crate::{Geometry, Mine, Ordering};
use fordway_abi::atomic::AtomicU64;
use fordway_abi::shm::{Purse, RegionHeader, SEGMENT_LOG2_MIN};

/// What a ring that grows leaves to rings that are not there yet: one part in so many, of ring memory as of the purse that
/// others draw from as well.
const LEFT_BY_GROWTH: u64 = 8;

/// What a purse holds behind `bytes` more, if that is not more than it may.
fn behind(purse: &Purse, before: u64, bytes: u64, grows: bool) -> Option<u64> {
    let max = purse.bytes_max.load(Ordering::Relaxed);
    let left = if grows { max / LEFT_BY_GROWTH } else { 0 };
    before.checked_add(bytes).filter(|now| *now <= max - left)
}

/// Takes `bytes` out of a purse, or nothing; `grows`: for a ring that has memory already. Other processes of the domain
/// do the same; what one of them writes there in malice is its own domain's loss.
fn draw(purse: &Purse, bytes: u64, grows: bool) -> bool {
    // Never more than there is, be it for a moment: another process would find nothing for its first ring.
    let drawn = purse
        .bytes_taken
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            behind(purse, before, bytes, grows)
        });
    drawn.is_ok()
}

/// Takes `bytes` out of all of them, or nothing.
fn draw_from_all(purses: [Option<&Purse>; 2], bytes: u64, grows: bool) -> bool {
    let [shared, own] = purses;
    if !shared.is_none_or(|purse| draw(purse, bytes, grows)) {
        return false;
    }
    let fits = own.is_none_or(|purse| draw(purse, bytes, false));
    if let Some(purse) = shared.filter(|_| !fits) {
        purse.bytes_taken.fetch_sub(bytes, Ordering::Relaxed);
    }
    fits
}

const LOCK_SPINS_MAX: u32 = 10_000;

/// Allocator of one region; `base` is where its owner mapped it.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    base: *mut u8,
    geometry: Geometry,
}

impl Arena {
    /// # Safety
    /// `base` is a writable mapping of a whole region of this geometry, with a valid header.
    pub unsafe fn new(base: *mut u8, geometry: Geometry) -> Self {
        Self { base, geometry }
    }

    fn header(&self) -> &RegionHeader {
        // SAFETY: by the contract of `new`; only the owning side writes it.
        unsafe { &*self.base.cast::<RegionHeader>() }
    }

    fn locked<T>(&self, act: impl FnOnce(&RegionHeader) -> Option<T>) -> Option<T> {
        let header = self.header();
        for _ in 0..LOCK_SPINS_MAX {
            if header
                .arena_lock
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                let result = act(header);
                header.arena_lock.store(0, Ordering::Release);
                return result;
            }
            core::hint::spin_loop();
        }
        None
    }

    /// A block of `1 << log2` bytes, as an offset from the region's start. Each purse pays
    /// for what was never handed out before: one that other processes share, and one of this process. A block that is larger
    /// than a new ring's is for a ring that grows, and leaves something to new ones.
    pub fn take(&self, log2: u32, purses: [Option<&Purse>; 2]) -> Option<usize> {
        self.locked(|header| {
            if let Some(first) = self.pop(&header.arena_free[log2 as usize]) {
                return Some(first);
            }
            let next = self
                .next(header, log2)
                .filter(|_| draw_from_all(purses, 1 << log2, log2 > SEGMENT_LOG2_MIN));
            let Some(next) = next else {
                return self.cut(header, log2);
            };
            header
                .arena_next
                .store((next + (1 << log2)) as u64, Ordering::Relaxed);
            Some(next)
        })
    }

    /// Whether [`Arena::take`] seems to have such a block, as far as can be told without the lock.
    pub fn has(&self, log2: u32, purses: [Option<&Purse>; 2]) -> bool {
        let header = self.header();
        let pays = |purse: Option<&Purse>, grows| {
            purse.is_none_or(|purse| {
                let before = purse.bytes_taken.load(Ordering::Relaxed);
                behind(purse, before, 1 << log2, grows).is_some()
            })
        };
        let [shared, own] = purses;
        let mut free = header.arena_free.iter().skip(log2 as usize);
        free.any(|first| first.mine() != 0)
            || self.next(header, log2).is_some()
                && pays(shared, log2 > SEGMENT_LOG2_MIN)
                && pays(own, false)
    }

    /// Where a block that was never handed out would lie, if there is memory for it.
    fn next(&self, header: &RegionHeader, log2: u32) -> Option<usize> {
        let first = self.geometry.arena_offset as usize;
        let next = (header.arena_next.mine() as usize).max(first);
        let end = match header.arena_end.mine() as usize {
            0 => self.geometry.region_bytes as usize,
            end => end,
        };
        let left = match log2 > SEGMENT_LOG2_MIN {
            true => end.saturating_sub(first) / LEFT_BY_GROWTH as usize,
            false => 0,
        };
        let is_there = next + (1 << log2) <= end - left && self.geometry.holds(next, log2);
        is_there.then_some(next)
    }

    /// The first block of a list, taken out of it.
    fn pop(&self, free: &AtomicU64) -> Option<usize> {
        let first = free.mine() as usize;
        if first == 0 {
            return None;
        }
        // SAFETY: a free block's first word belongs to the list; it lies in our own region.
        let next = unsafe { self.base.add(first).cast::<u64>().read() };
        free.store(next, Ordering::Relaxed);
        Some(first)
    }

    fn push(&self, free: &AtomicU64, offset: usize) {
        #[cfg(loom)]
        crate::shadow::write(offset, size_of::<u64>());
        // SAFETY: the block is ours and unused; its first word joins the list.
        unsafe { self.base.add(offset).cast::<u64>().write(free.mine()) };
        free.store(offset as u64, Ordering::Relaxed);
    }

    /// A part of the smallest larger block that is free, whose other parts become free. It was paid for.
    #[cold]
    fn cut(&self, header: &RegionHeader, log2: u32) -> Option<usize> {
        let lists = &header.arena_free;
        let larger = log2 as usize + 1..lists.len();
        let (from, first) = larger
            .into_iter()
            .find_map(|larger| Some((larger, self.pop(&lists[larger])?)))?;
        let halves = lists.iter().enumerate().take(from).skip(log2 as usize);
        for (half, list) in halves {
            self.push(list, first + (1 << half));
        }
        Some(first)
    }

    /// Gives a block back. It must have come from [`Arena::take`] with this size,
    /// and the peer must have left it (its content may be read until overwritten).
    pub fn give(&self, offset: usize, log2: u32) {
        self.locked(|header| {
            self.push(&header.arena_free[log2 as usize], offset);
            Some(())
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::alloc::Layout;

    const FIRST: usize = 4096;
    const LOG2: u32 = 12;
    const BLOCKS: usize = 8;

    #[test]
    fn what_has_no_memory_is_not_handed_out() {
        let bytes = FIRST + (BLOCKS << LOG2);
        let geometry = Geometry::new(FIRST, bytes).expect("a region");
        let taken = |arena_end: usize| {
            let layout = Layout::from_size_align(bytes, 4096).expect("a layout");
            // SAFETY: of some bytes; zeros are a header.
            let base = unsafe { std::alloc::alloc_zeroed(layout) };
            assert!(!base.is_null());
            // SAFETY: a region of ours.
            let arena = unsafe { Arena::new(base, geometry) };
            let end = &arena.header().arena_end;
            end.store(arena_end as u64, Ordering::Relaxed);
            let next = || arena.take(LOG2, [None; 2]);
            let places: Vec<usize> = std::iter::from_fn(next).collect();
            if let Some(last) = places.last() {
                arena.give(*last, LOG2);
                assert_eq!(next(), Some(*last), "what was given back is there");
            }
            // SAFETY: of above.
            unsafe { std::alloc::dealloc(base, layout) };
            let is_next = |(at, place): (usize, &usize)| *place == FIRST + (at << LOG2);
            assert!(places.iter().enumerate().all(is_next));
            places.len()
        };
        let behind = |count: usize| FIRST + (count << LOG2);
        assert_eq!(taken(0), BLOCKS);
        assert_eq!(taken(behind(3)), 3);
        assert_eq!(taken(behind(3) - 1), 2);
        assert_eq!(taken(FIRST), 0);
        assert_eq!(taken(behind(BLOCKS + 1)), BLOCKS);
    }

    #[test]
    fn a_ring_that_grows_leaves_something_to_new_ones() {
        const BLOCK: usize = 1 << SEGMENT_LOG2_MIN;
        let bytes = FIRST + 16 * BLOCK;
        let geometry = Geometry::new(FIRST, bytes).expect("a region");
        let layout = Layout::from_size_align(bytes, 4096).expect("a layout");
        let purse = |blocks: usize| Purse {
            bytes_max: ((blocks * BLOCK) as u64).into(),
            ..Purse::default()
        };
        // Blocks that purses pay for, and how many there are for rings that grow, two each, and then for new ones.
        for (blocks, grown, new) in [([16, 16], 7, 2), ([32, 8], 4, 0), ([5, 9], 2, 1)] {
            // SAFETY: of some bytes; zeros are a header.
            let base = unsafe { std::alloc::alloc_zeroed(layout) };
            assert!(!base.is_null());
            // SAFETY: a region of ours.
            let arena = unsafe { Arena::new(base, geometry) };
            let purses = blocks.map(purse);
            let purses_of = || [Some(&purses[0]), Some(&purses[1])];
            let take = |log2| {
                let seems = arena.has(log2, purses_of());
                let taken = arena.take(log2, purses_of());
                assert_eq!(seems, taken.is_some());
                taken
            };
            let count = |log2| std::iter::from_fn(|| take(log2)).count();
            assert_eq!(count(SEGMENT_LOG2_MIN + 1), grown);
            assert_eq!(count(SEGMENT_LOG2_MIN), new);
            let taken = purses.map(|purse| purse.bytes_taken.into_inner());
            assert_eq!(taken, [((2 * grown + new) * BLOCK) as u64; 2]);
            // SAFETY: of above.
            unsafe { std::alloc::dealloc(base, layout) };
        }
    }

    #[test]
    fn a_large_block_is_cut_where_nothing_else_has_memory() {
        let bytes = FIRST + (BLOCKS << LOG2);
        let geometry = Geometry::new(FIRST, bytes).expect("a region");
        let layout = Layout::from_size_align(bytes, 4096).expect("a layout");
        // SAFETY: of some bytes; zeros are a header.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!base.is_null());
        // SAFETY: a region of ours.
        let arena = unsafe { Arena::new(base, geometry) };
        let end = &arena.header().arena_end;
        end.store(bytes as u64, Ordering::Relaxed);
        let whole = arena.take(LOG2 + 3, [None; 2]);
        assert_eq!(whole, Some(FIRST));
        assert_eq!(arena.take(LOG2, [None; 2]), None);
        assert!(!arena.has(LOG2, [None; 2]));
        arena.give(FIRST, LOG2 + 3);
        assert!(arena.has(LOG2, [None; 2]));
        let next = || arena.take(LOG2, [None; 2]);
        let mut places: Vec<usize> = std::iter::from_fn(next).collect();
        places.sort_unstable();
        let all: Vec<usize> = (0..BLOCKS).map(|at| FIRST + (at << LOG2)).collect();
        assert_eq!(places, all);
        // SAFETY: of above.
        unsafe { std::alloc::dealloc(base, layout) };
    }
}
