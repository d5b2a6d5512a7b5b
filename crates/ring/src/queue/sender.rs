//! The sending half of a packet queue.

use super::{Blocks, Geometry, Header};
use crate::copy::{Copier, Kernel};
use crate::{Mine, Ordering, Violation, fence};
use fordway_abi::queue::{
    Acknowledgements, ENTRY_COUNT, LANE_COUNT, Lane, MESSAGE_BLOCKS_MAX, Piece,
};

/// Blocks in which a message is written. They are lost until it is sent or cancelled.
#[must_use]
#[derive(Debug)]
pub struct Draft {
    first: u16,
    blocks: u16,
    bytes: u32,
}

/// Why a message gets no blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It never gets any: it is longer than a lane's share, or than [`MESSAGE_BLOCKS_MAX`].
    TooLong,
    /// Not before more blocks were acknowledged.
    Full,
}

/// One receiver, as the sender knows it.
#[derive(Clone, Copy, Debug)]
struct Held {
    lane: *const Lane,
    acknowledgements: *const Acknowledgements,
    /// Blocks that the receiver has not acknowledged, and how many.
    blocks: Blocks,
    count: u16,
    /// Acknowledgements that were seen.
    seen: u64,
    dropped: u64,
}

/// The sending half. It is several kilobytes large.
#[derive(Debug)]
pub struct Sender {
    pool: *mut u8,
    geometry: Geometry,
    free: Blocks,
    free_count: u16,
    /// Behind a block of a draft or message: its next one.
    next: [u16; ENTRY_COUNT],
    /// Lanes that hold a block.
    holders: [u8; ENTRY_COUNT],
    lanes: [Option<Held>; LANE_COUNT],
    lane_count: u16,
}

impl Sender {
    /// # Safety
    /// `pool` is memory of `geometry.pool_bytes()` that only this sender writes, and that stays mapped as long as this
    /// is used.
    pub unsafe fn new(pool: *mut u8, geometry: Geometry) -> Self {
        let mut free = Blocks::default();
        (0..geometry.blocks).for_each(|block| free.insert(block));
        Self {
            pool,
            geometry,
            free,
            free_count: geometry.blocks,
            next: [0; ENTRY_COUNT],
            holders: [0; ENTRY_COUNT],
            lanes: [None; LANE_COUNT],
            lane_count: 0,
        }
    }

    /// Adds a receiver; the number of its lane, or `None` if there are [`LANE_COUNT`], or as many as blocks.
    ///
    /// # Safety
    /// `lane` is zeroed memory that only this sender writes, `acknowledgements` the receiver's, mapped; both stay mapped until
    /// [`Sender::detach`].
    pub unsafe fn attach(
        &mut self,
        lane: *const Lane,
        acknowledgements: *const Acknowledgements,
    ) -> Option<usize> {
        let number = self.lanes.iter().position(Option::is_none)?;
        if self.lane_count == self.geometry.blocks {
            return None;
        }
        self.lanes[number] = Some(Held {
            lane,
            acknowledgements,
            blocks: Blocks::default(),
            count: 0,
            seen: 0,
            dropped: 0,
        });
        self.lane_count += 1;
        Some(number)
    }

    /// A receiver is gone, or broke the protocol: what it held is free.
    pub fn detach(&mut self, lane: usize) {
        let Some(held) = self.lanes.get_mut(lane).and_then(Option::take) else {
            return;
        };
        self.lane_count -= 1;
        held.blocks.iter().for_each(|block| self.let_go(block));
    }

    /// Blocks that one receiver may hold: with them all, each other one has as many left.
    pub fn share_blocks(&self) -> usize {
        usize::from(self.geometry.blocks / self.lane_count.max(1))
    }

    /// Messages that were lost for want of room in a lane.
    pub fn dropped(&self, lane: usize) -> u64 {
        self.held(lane).map_or(0, |held| held.dropped)
    }

    /// Whether a message of so many bytes would not be lost in this lane.
    pub fn has_room(&self, lane: usize, bytes: usize) -> bool {
        let needed = self.geometry.blocks_of(bytes);
        self.held(lane)
            .is_some_and(|held| usize::from(held.count) + needed <= self.share_blocks())
    }

    /// Blocks for a message of so many bytes. What was acknowledged is free only after [`Sender::collect`].
    pub fn draft(&mut self, bytes: usize) -> Result<Draft, Refusal> {
        let blocks = self.geometry.blocks_of(bytes);
        if blocks > self.share_blocks().min(MESSAGE_BLOCKS_MAX) {
            return Err(Refusal::TooLong);
        }
        if blocks > usize::from(self.free_count) {
            return Err(Refusal::Full);
        }
        let mut first = 0;
        for _ in 0..blocks {
            let block = self.free.take_first().ok_or(Refusal::Full)?;
            self.free_count -= 1;
            self.next[usize::from(block)] = first;
            first = block;
        }
        Ok(Draft {
            first,
            blocks: blocks as u16,
            bytes: bytes as u32,
        })
    }

    /// As [`Sender::draft`], with blocks that are neighbours, so that whoever writes needs no copy of ours: a frame is
    /// made, or read from a socket, in [its place](Sender::place). Full also if no neighbours are free.
    pub fn draft_run(&mut self, bytes: usize) -> Result<Draft, Refusal> {
        let blocks = self.geometry.blocks_of(bytes);
        if blocks > self.share_blocks().min(MESSAGE_BLOCKS_MAX) {
            return Err(Refusal::TooLong);
        }
        let first = self.free.take_run(blocks).ok_or(Refusal::Full)?;
        self.free_count -= blocks as u16;
        for block in first..first + blocks as u16 - 1 {
            self.next[usize::from(block)] = block + 1;
        }
        Ok(Draft {
            first,
            blocks: blocks as u16,
            bytes: bytes as u32,
        })
    }

    /// Where a draft of neighbours begins. All of it may be written until it is sent.
    pub fn place(&self, draft: &Draft) -> *mut u8 {
        let offset = usize::from(draft.first) * self.geometry.block_bytes();
        #[cfg(loom)]
        crate::shadow::write(offset, draft.bytes as usize);
        self.pool.wrapping_add(offset)
    }

    /// A message turns out to be shorter than its draft: the blocks behind its end are free again.
    pub fn shorten(&mut self, draft: &mut Draft, bytes: usize) {
        let bytes = bytes.min(draft.bytes as usize);
        let keep = self.geometry.blocks_of(bytes) as u16;
        let mut block = draft.first;
        for number in 0..draft.blocks {
            let next = self.next[usize::from(block)];
            if number >= keep {
                self.free_again(block);
            }
            block = next;
        }
        draft.blocks = keep;
        draft.bytes = bytes as u32;
    }

    /// Copies `count` bytes into a draft, from its byte `at` on.
    ///
    /// # Safety
    /// `source` is readable for `count` bytes; `at + count` is at most what was drafted, by this sender.
    pub unsafe fn write(
        &self,
        draft: &Draft,
        copier: &Copier,
        kernel: Kernel,
        at: usize,
        source: *const u8,
        count: usize,
    ) {
        debug_assert!(at + count <= draft.bytes as usize);
        let mut done = 0;
        let (mut block, mut number) = (draft.first, 0);
        for (wanted, within, length) in self.geometry.stretches(at, count) {
            while number < wanted {
                (block, number) = (self.next[usize::from(block)], number + 1);
            }
            let offset = usize::from(block) * self.geometry.block_bytes() + within;
            #[cfg(loom)]
            crate::shadow::write(offset, length);
            // SAFETY: the blocks of a draft lie in the pool, and nobody reads them; `source` by contract.
            unsafe { copier.copy(self.pool.add(offset), source.add(done), length, kernel) };
            done += length;
        }
    }

    /// A message is not to be sent.
    pub fn cancel(&mut self, draft: Draft) {
        self.blocks_of(&draft, |sender, block, _| sender.free_again(block));
    }

    /// Sends a message to the lanes whose bits are set; to which of them it went. It is lost to those that hold
    /// their share, and to those that are gone. Afterwards the caller wakes who [waits](Sender::peer_waits) there.
    pub fn send(&mut self, draft: Draft, header: &Header, lanes: u64) -> u64 {
        let share = self.share_blocks();
        let mut reached = 0u64;
        for lane in bits(lanes) {
            let Some(held) = &mut self.lanes[lane] else {
                continue;
            };
            if usize::from(held.count) + usize::from(draft.blocks) > share {
                held.dropped += 1;
                continue;
            }
            held.count += draft.blocks;
            reached |= 1 << lane;
            // SAFETY: mapped until the lane is detached; all fields are atomics.
            let words = unsafe { &*held.lane };
            let tail = words.tail.0.mine();
            let mut entry = tail;
            self.blocks_of(&draft, |sender, block, piece| {
                let descriptor = &words.entries[entry as usize % ENTRY_COUNT];
                descriptor.source.store(header.source, Ordering::Relaxed);
                let destination = header.destination;
                descriptor.destination.store(destination, Ordering::Relaxed);
                descriptor.number.store(header.number, Ordering::Relaxed);
                let kind = header.kind;
                let piece = Piece { kind, ..piece }.pack();
                descriptor.piece.store(piece, Ordering::Relaxed);
                sender.holders[usize::from(block)] += 1;
                if let Some(held) = &mut sender.lanes[lane] {
                    held.blocks.insert(block);
                }
                entry = entry.wrapping_add(1);
            });
            words.tail.0.store(entry, Ordering::Release);
        }
        if reached == 0 {
            self.cancel(draft);
        }
        // SYNC POINT with `Sleeper::announce`: the message before the look at who sleeps.
        fence(Ordering::SeqCst);
        reached
    }

    /// Doors of the receiver that want to know of messages. The caller has sent.
    pub fn peer_waits(&self, lane: usize) -> u64 {
        self.held(lane).map_or(0, |held| {
            // SAFETY: mapped until the lane is detached; an atomic.
            unsafe { &*held.acknowledgements }
                .doors
                .0
                .load(Ordering::Relaxed)
        })
    }

    /// Sees what a receiver has acknowledged; how many blocks came free for it. After a violation the lane is to be
    /// [detached](Sender::detach).
    pub fn collect(&mut self, lane: usize) -> Result<usize, Violation> {
        let Some(held) = self.held(lane) else {
            return Ok(0);
        };
        // SAFETY: mapped until the lane is detached; all fields are atomics, loaded once each and checked.
        let words = unsafe { &*held.acknowledgements };
        let count = words.tail.0.load(Ordering::Acquire).wrapping_sub(held.seen);
        if count > u64::from(held.count) {
            return Err(Violation::Acknowledgement);
        }
        for _ in 0..count {
            let Some(held) = &mut self.lanes[lane] else {
                break;
            };
            let at = held.seen as usize % ENTRY_COUNT;
            let block = words.blocks[at].load(Ordering::Relaxed);
            let Some(block) = u16::try_from(block)
                .ok()
                .filter(|block| *block < self.geometry.blocks && held.blocks.has(*block))
            else {
                return Err(Violation::Acknowledgement);
            };
            held.seen = held.seen.wrapping_add(1);
            held.count -= 1;
            held.blocks.remove(block);
            self.let_go(block);
        }
        Ok(count as usize)
    }

    /// Which doors of ours a receiver is to knock at when it has acknowledged something. Who sets some announces
    /// that he sleeps, and then collects once more.
    pub fn wait_for_room(&self, lane: usize, doors: u64) {
        if let Some(held) = self.held(lane) {
            // SAFETY: our own memory; an atomic.
            let words = unsafe { &*held.lane };
            words.doors.0.store(doors, Ordering::SeqCst);
        }
    }

    fn held(&self, lane: usize) -> Option<&Held> {
        self.lanes.get(lane)?.as_ref()
    }

    /// Calls for each block of a draft, in order, with the piece of the message in it.
    fn blocks_of(&mut self, draft: &Draft, mut each: impl FnMut(&mut Self, u16, Piece)) {
        let mut block = draft.first;
        let mut left = draft.bytes;
        for number in 1..=draft.blocks {
            let bytes = left.min(1 << self.geometry.block_log2);
            left -= bytes;
            let next = self.next[usize::from(block)];
            let piece = Piece {
                block,
                kind: 0,
                goes_on: number != draft.blocks,
                bytes,
            };
            each(self, block, piece);
            block = next;
        }
    }

    /// A lane needs a block no more.
    fn let_go(&mut self, block: u16) {
        let holders = &mut self.holders[usize::from(block)];
        *holders -= 1;
        if *holders == 0 {
            self.free_again(block);
        }
    }

    fn free_again(&mut self, block: u16) {
        self.free.insert(block);
        self.free_count += 1;
    }
}

/// Positions of the bits that are set.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = set.trailing_zeros() as usize;
        (set != 0).then(|| {
            set &= set - 1;
            bit
        })
    })
}
