//! The packet queue: messages in blocks, from one [`Sender`] to one [`Receiver`] or to many.
//!
//! One structure for whatever has bounds of its own: datagrams between domains, frames between a network stack and
//! its driver. What has none, a stream of bytes, goes through a byte ring.
//!
//! # A message's life
//! ```text
//!   sender     draft() ──► write() ──► send() ┐                       ┌─► collect(): its blocks are free
//!                 └──► cancel()               ▼                       │   once the last receiver has acknowledged
//!   receiver                               receive() ──► copy() ──► acknowledge()
//! ```
//! * A draft takes blocks, as many as the message needs; they need not be neighbours. What is made in place takes
//!   neighbours for the longest it may become (`draft_run`), and gives back what it did not need (`shorten`).
//! * `send` writes a descriptor for each block into the lane of each receiver. There is one copy of the message,
//!   whoever reads it.
//! * A receiver acknowledges messages in any order; until then nobody writes into their blocks.
//!
//! # Who is held up
//! Nobody by another: of a queue with several lanes each may hold its [share](Sender::share_blocks) of the blocks, so
//! that one which takes nothing never uses up what the others need. A message for which a lane has no room is lost
//! there, and counted ([`Sender::dropped`]); a sender that would rather wait asks [`Sender::has_room`] first.
//! A lane needs no more entries than there are blocks: an entry whose block was acknowledged was read, and no block is
//! in a lane twice.
//!
//! # Who wakes whom
//! By the doors of a wait page, as with byte rings ([`crate::Sleeper`], [`crate::doors_to_knock_at`]): a receiver that sleeps for
//! messages sets `Acknowledgements::doors`, a sender that sleeps for room sets `Lane::doors`. Both publish, fence, and look who
//! waits; who waits announces it, and looks again.
//!
//! # Trust
//! Each side keeps in its own memory what it relies on: the sender which blocks each lane holds, the receiver where it
//! reads. A word of the peer's is loaded once and checked; what cannot be is a [`Violation`], after which the lane is
//! [given up](Sender::detach). A peer that lies about blocks harms what it sends or gets itself.

mod receiver;
mod sender;

pub use receiver::{Message, Receiver};
pub use sender::{Draft, Refusal, Sender};

use fordway_abi::queue::{BLOCK_LOG2, ENTRY_COUNT};

/// How large a queue is. Both sides have it from elsewhere than from each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    blocks: u16,
    block_log2: u32,
}

impl Geometry {
    /// `blocks` of 2^`block_log2` bytes each; `None` beyond [`ENTRY_COUNT`] blocks of 64 B to 1 MiB.
    pub fn new(blocks: usize, block_log2: u32) -> Option<Geometry> {
        let is_whole = (1..=ENTRY_COUNT).contains(&blocks) && (6..=20).contains(&block_log2);
        is_whole.then_some(Geometry {
            blocks: blocks as u16,
            block_log2,
        })
    }

    /// Blocks of the queue.
    pub fn blocks(self) -> usize {
        usize::from(self.blocks)
    }

    /// Size of a block.
    pub fn block_bytes(self) -> usize {
        1 << self.block_log2
    }

    /// Memory that all blocks take.
    pub fn pool_bytes(self) -> usize {
        self.blocks() << self.block_log2
    }

    /// Blocks of a message; one that is empty has one, too.
    fn blocks_of(self, bytes: usize) -> usize {
        bytes.div_ceil(self.block_bytes()).max(1)
    }

    /// Splits a stretch of a message at the ends of its blocks: which of its blocks, where in it, how many bytes.
    fn stretches(self, at: usize, count: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let mut done = 0;
        core::iter::from_fn(move || {
            let (block, within) = (
                (at + done) >> self.block_log2,
                (at + done) & (self.block_bytes() - 1),
            );
            let length = (count - done).min(self.block_bytes() - within);
            done += length;
            (length != 0).then_some((block, within, length))
        })
    }
}

impl Default for Geometry {
    fn default() -> Self {
        Self {
            blocks: ENTRY_COUNT as u16,
            block_log2: BLOCK_LOG2,
        }
    }
}

/// What the two ends tell each other of a message. Nothing here is checked but by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Domain id above port.
    pub source: u64,
    /// Domain id above port.
    pub destination: u64,
    /// The sender's number of the message.
    pub number: u64,
    /// What sort of message.
    pub kind: u8,
}

/// A set of blocks.
#[derive(Clone, Copy, Debug, Default)]
struct Blocks([u64; ENTRY_COUNT.div_ceil(64)]);

impl Blocks {
    fn has(&self, block: u16) -> bool {
        self.0[usize::from(block) / 64] >> (block % 64) & 1 != 0
    }

    fn insert(&mut self, block: u16) {
        self.0[usize::from(block) / 64] |= 1 << (block % 64);
    }

    fn remove(&mut self, block: u16) {
        self.0[usize::from(block) / 64] &= !(1 << (block % 64));
    }

    /// The lowest one: what was used last is in the caches.
    fn take_first(&mut self) -> Option<u16> {
        let word = self.0.iter().position(|word| *word != 0)?;
        let bit = self.0[word].trailing_zeros();
        self.0[word] &= self.0[word] - 1;
        Some((word * 64) as u16 + bit as u16)
    }

    /// The lowest `count` neighbours.
    fn take_run(&mut self, count: usize) -> Option<u16> {
        let mut length = 0;
        for block in 0..ENTRY_COUNT as u16 {
            length = if self.has(block) { length + 1 } else { 0 };
            if length == count {
                let first = block + 1 - count as u16;
                (first..=block).for_each(|block| self.remove(block));
                return Some(first);
            }
        }
        None
    }

    fn iter(&self) -> impl Iterator<Item = u16> {
        let mut left = *self;
        core::iter::from_fn(move || left.take_first())
    }
}
