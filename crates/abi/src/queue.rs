//! A packet queue: messages from one sender to one receiver or to many, in blocks that are read in place.
//!
//! # Who writes what
//! ```text
//!   the sender's memory                       each receiver's memory
//!   ┌──────────────────────────┐              ┌─────────────────────────────┐
//!   │ blocks                   │ ───────────► │                             │
//!   │ Lane of receiver 0       │ ───────────► │ Acknowledgements of lane 0  │ ───► free blocks
//!   │ Lane of receiver 1       │              └─────────────────────────────┘
//!   └──────────────────────────┘
//! ```
//! As with regions ([`crate::shm`]), each side maps the other's memory read-only. How many blocks there are and how
//! large they are is agreed before; nothing of it stands here.

use crate::atomic::{AtomicU32, AtomicU64};

/// Entries of a lane, and the most blocks that a queue can have (models have fewer).
pub const ENTRY_COUNT: usize = if cfg!(loom) { 4 } else { 256 };
/// Receivers of one queue.
pub const LANE_COUNT: usize = 64;
/// Blocks of the longest message.
pub const MESSAGE_BLOCKS_MAX: usize = if cfg!(loom) { 2 } else { 64 };
/// log2 of the size of a block, unless another one is agreed on.
pub const BLOCK_LOG2: u32 = 13;

/// One block of a message, for one receiver.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Descriptor {
    /// See [`Piece`].
    pub piece: AtomicU64,
    /// Domain id above port of who sent the message.
    pub source: AtomicU64,
    /// Domain id above port of whom it is for.
    pub destination: AtomicU64,
    /// The sender's number of the message.
    pub number: AtomicU64,
}

/// What [`Descriptor::piece`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The block.
    pub block: u16,
    /// What sort of message, for its two ends.
    pub kind: u8,
    /// Whether the message goes on in the next entry.
    pub goes_on: bool,
    /// Bytes in the block.
    pub bytes: u32,
}

impl Piece {
    /// As it stands in a descriptor: bytes above kind, a bit, and the block.
    pub fn pack(self) -> u64 {
        let low = u64::from(self.block) | u64::from(self.goes_on) << 16;
        low | u64::from(self.kind) << 24 | u64::from(self.bytes) << 32
    }

    /// Reads back what [`Piece::pack`] made, whoever wrote it. Bits without a meaning are passed over.
    pub fn unpack(word: u64) -> Piece {
        Piece {
            block: word as u16,
            goes_on: word >> 16 & 1 != 0,
            kind: (word >> 24) as u8,
            bytes: (word >> 32) as u32,
        }
    }
}

/// What a sender tells one receiver. `tail` counts entries from the queue's start.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Lane {
    /// Entries published.
    pub tail: Line<AtomicU64>,
    /// Doorbells of the sender that want to know of acknowledgements.
    pub doors: Line<AtomicU64>,
    /// Entry n stands at n modulo [`ENTRY_COUNT`].
    pub entries: [Descriptor; ENTRY_COUNT],
}

/// What one receiver tells the sender. `tail` counts blocks from the queue's start.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Acknowledgements {
    /// Acknowledgements published.
    pub tail: Line<AtomicU64>,
    /// Doorbells of the receiver that want to know of messages.
    pub doors: Line<AtomicU64>,
    /// Blocks that the receiver needs no more, in any order; number n stands at n modulo [`ENTRY_COUNT`].
    pub blocks: [AtomicU32; ENTRY_COUNT],
}

/// What one end of a pair of queues, one for each direction, writes. It stands at the start of its memory; behind it,
/// from [`POOL_OFFSET`] on, lie the blocks of what it sends.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct End {
    /// Who sleeps at this end.
    pub wait: crate::shm::WaitPage,
    /// Of the queue that it sends to.
    pub lane: Lane,
    /// Of the queue that it receives from.
    pub acknowledgements: Acknowledgements,
}

/// Where the blocks of an [`End`] begin.
pub const POOL_OFFSET: usize = 12 << 10;
#[cfg(not(loom))]
const _: () = assert!(core::mem::size_of::<End>() <= POOL_OFFSET);

/// A word on lines of its own (see [`crate::shm::LINE_BYTES`]).
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Line<T>(pub T);

impl Default for Lane {
    fn default() -> Self {
        Self {
            tail: Line::default(),
            doors: Line::default(),
            entries: core::array::from_fn(|_| Descriptor::default()),
        }
    }
}

impl Default for Acknowledgements {
    fn default() -> Self {
        Self {
            tail: Line::default(),
            doors: Line::default(),
            blocks: core::array::from_fn(|_| AtomicU32::default()),
        }
    }
}
