//! Ranges of one number: which of them holds a point.
//!
//! The ranges are cut into segments that do not overlap, so that a lookup is a binary
//! search for the segment's start. A table over the upper bits of the point narrows the
//! search to a few segments; its size follows the number of segments, so the cost hardly
//! grows with them.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// A number that can be a point.
pub(crate) trait Point: Copy + Ord {
    fn above(self, shift: u32) -> usize;
    fn next(self) -> Option<Self>;
    /// How many bits the number has without leading zeros.
    fn bits(self) -> u32;
    const ZERO: Self;
}

macro_rules! point {
    ($number:ty) => {
        impl Point for $number {
            #[inline]
            fn above(self, shift: u32) -> usize {
                self.checked_shr(shift).unwrap_or(0) as usize
            }
            fn next(self) -> Option<Self> {
                self.checked_add(1)
            }
            fn bits(self) -> u32 {
                <$number>::BITS - self.leading_zeros()
            }
            const ZERO: Self = 0;
        }
    };
}

point!(u64);
point!(u128);

const GAP: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(crate) struct Intervals<P> {
    /// Where each segment starts; the first is zero.
    starts: Vec<P>,
    /// What each segment leads to, or [`GAP`].
    slots: Vec<u32>,
    /// For each value of a point's upper bits, the last segment that starts at or before
    /// the first such point.
    table: Vec<u32>,
    shift: u32,
}

impl<P: Point> Intervals<P> {
    /// Where ranges overlap, the first in the list counts.
    pub(crate) fn new(ranges: &[(P, P, u32)]) -> Intervals<P> {
        let mut events: Vec<(P, bool, usize)> = Vec::with_capacity(ranges.len() * 2);
        for (at, (low, high, _)) in ranges.iter().enumerate() {
            if low <= high {
                events.push((*low, true, at));
                events.extend(high.next().map(|after| (after, false, at)));
            }
        }
        events.sort_unstable_by_key(|event| event.0);
        let (mut starts, mut slots) = (alloc::vec![P::ZERO], alloc::vec![GAP]);
        let mut open: BTreeSet<usize> = BTreeSet::new();
        let mut events = events.into_iter().peekable();
        while let Some((point, begins, at)) = events.next() {
            if begins {
                open.insert(at);
            } else {
                open.remove(&at);
            }
            if events.peek().is_some_and(|next| next.0 == point) {
                continue;
            }
            let slot = open.first().map_or(GAP, |at| ranges[*at].2);
            if starts.last() == Some(&point) {
                slots.pop();
                slots.push(slot);
            } else if slots.last() != Some(&slot) {
                starts.push(point);
                slots.push(slot);
            }
        }
        let mut made = Intervals {
            starts,
            slots,
            table: Vec::new(),
            shift: 0,
        };
        made.make_table();
        made
    }

    fn make_table(&mut self) {
        let highest = *self.starts.last().unwrap_or(&P::ZERO);
        let table_bits = (self.starts.len() as u32)
            .next_power_of_two()
            .trailing_zeros()
            + 1;
        self.shift = highest.bits().saturating_sub(table_bits);
        let mut segment = 0;
        for upper in 0..=highest.above(self.shift) {
            while self
                .starts
                .get(segment + 1)
                .is_some_and(|s| s.above(self.shift) < upper)
            {
                segment += 1;
            }
            self.table.push(segment as u32);
        }
    }

    #[inline]
    pub(crate) fn find(&self, point: P) -> Option<u32> {
        let upper = point.above(self.shift);
        let last = self.starts.len() - 1;
        // Beyond the table lies only the last segment.
        let (low, high) = match self.table.get(upper) {
            Some(low) => (
                *low as usize,
                self.table
                    .get(upper + 1)
                    .map_or(last, |h| *h as usize + 1)
                    .min(last),
            ),
            None => (last, last),
        };
        let within = self.starts[low..=high].partition_point(|start| *start <= point);
        let slot = self.slots[low + within.max(1) - 1];
        (slot != GAP).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_the_first_range_that_holds_the_point(
            ranges in prop::collection::vec((0..300u64, 0..40u64), 0..40),
            offset in prop::sample::select(alloc::vec![0, 1 << 40, u64::MAX - 340]),
            points in prop::collection::vec(0..340u64, 20),
        ) {
            let ranges: Vec<(u64, u64, u32)> = ranges
                .iter()
                .enumerate()
                .map(|(at, (low, len))| (offset + low, offset + low + len, at as u32))
                .collect();
            let intervals = Intervals::new(&ranges);
            for point in points.into_iter().map(|p| p + offset).chain([0, u64::MAX]) {
                let want = ranges.iter().find(|r| r.0 <= point && point <= r.1).map(|r| r.2);
                prop_assert_eq!(intervals.find(point), want);
            }
        }
    }
}
