//! The byte ring of a channel: producer, consumer, sleep and wake, the switch
//! between kernel and ring, and the memory it is cut from. Beside it, for what has bounds
//! of its own, the packet queue ([`queue`]).
//!
//! # States of one direction
//! ```text
//!   producer (tx_state)      consumer (rx_state)
//!   KERNEL ──enter()──► RING ──leave()──► BACK         OFF ──► READY ──► DRAIN ──► STOP
//!      needs READY        └──withdraw(), or leave() after STOP or DRAIN──► WITHDRAWN
//! ```
//! * The producer may [`Producer::enter`] only when it sees READY: a consumer
//!   that blocks in the kernel and does not look at rings would never wake.
//! * A consumer that wants the kernel path sets STOP and takes nothing for now. The
//!   producer answers: WITHDRAWN, and it sends `[head, tail)` again by the kernel.
//! * Or it sets DRAIN first, and takes what has been published by then, and no more.
//! * A producer that wants the kernel path just leaves (BACK); the consumer drains the
//!   ring up to the final `tail` and goes on with the kernel, even after a STOP that
//!   the producer had not seen.
//!
//! # Who wakes whom
//! A waiter publishes that it sleeps, fences, and looks again; a producer
//! publishes bytes (a consumer: space), fences, and looks whether somebody
//! sleeps. Each place of such an ordering names its counterpart with `SYNC POINT`.
//!
//! # Trust
//! Everything reached through a peer pointer may change at any moment and hold
//! anything. Each word is loaded once, by an atomic, checked, and only then
//! used; a word that cannot be is a [`Violation`]. No plain reference to peer
//! memory is ever made; its bytes are only copied out through raw pointers.
#![cfg_attr(not(any(loom, test)), no_std)]

pub mod arena;
mod consumer;
pub mod copy;
pub mod marks;
#[cfg(not(loom))]
mod moment;
mod producer;
pub mod queue;
#[cfg(not(loom))]
mod renew;
#[cfg(loom)]
mod shadow;
mod sleep;

pub use consumer::Consumer;
#[cfg(not(loom))]
pub use moment::ticks;
pub use producer::{Entered, Producer};
#[cfg(not(loom))]
pub use renew::renew;
pub use sleep::{Sleeper, doors_to_knock_at};

use fordway_abi::shm::{ARENA_OFFSET, REGION_BYTES, SEGMENT_LOG2_MAX, SEGMENT_LOG2_MIN};

#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};

#[cfg(not(loom))]
use core::sync::atomic::{Ordering, fence};

/// A word of our own that only this side writes, so that it needs no order to read it.
trait Mine {
    type Value;
    fn mine(&self) -> Self::Value;
}

macro_rules! mine {
    ($($word:ty, $value:ty;)+) => { $(
        impl Mine for $word {
            type Value = $value;

            #[cfg(not(loom))]
            #[inline(always)]
            fn mine(&self) -> $value {
                self.load(Ordering::Relaxed)
            }

            // No access in the eyes of loom 0.7, whose search remembers but the last one to
            // each word: this one would hide from our next store that the peer has loaded
            // the word before, and with it all interleavings in which he does so after.
            #[cfg(loom)]
            fn mine(&self) -> $value {
                // SAFETY: only this side writes it; loom checks that.
                unsafe { self.unsync_load() }
            }
        }
    )+ };
}
mine! { fordway_abi::atomic::AtomicU32, u32; fordway_abi::atomic::AtomicU64, u64; }

/// The peer broke the protocol. The channel, or the lane, is lost; nothing else is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// `head` went backwards or beyond `tail`.
    Head,
    /// `tail` went backwards or further ahead than the ring holds.
    Tail,
    /// A segment lies outside the arena, is not aligned, or has an odd size.
    Segment,
    /// A message of a packet queue has no end, or lies where no block is.
    Descriptor,
    /// A block was acknowledged that the receiver did not hold.
    Acknowledgement,
}

/// Where ring memory lies in a region. Both sides of a link know it before there is a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    arena_offset: u32,
    region_bytes: u32,
}

impl Geometry {
    /// Of the regions that processes of one host share: sparse, hence large.
    pub const HOST: Self = match Self::new(ARENA_OFFSET, REGION_BYTES) {
        Some(geometry) => geometry,
        None => panic!(),
    };

    /// Ring memory from `arena_offset` up to the region's end; `None` if there is no sense in it.
    pub const fn new(arena_offset: usize, region_bytes: usize) -> Option<Self> {
        if arena_offset == 0
            || !arena_offset.is_multiple_of(64)
            || arena_offset > region_bytes
            || region_bytes > REGION_BYTES
        {
            return None;
        }
        Some(Self {
            arena_offset: arena_offset as u32,
            region_bytes: region_bytes as u32,
        })
    }

    /// Whether `1 << log2` bytes at `offset` are ring memory.
    fn holds(self, offset: usize, log2: u32) -> bool {
        let end = self.region_bytes as usize;
        (self.arena_offset as usize..=end).contains(&offset) && end - offset >= 1 << log2
    }
}

/// How a producer or a consumer knows its region's [`Geometry`]: [`Host`], which takes no memory, or the geometry itself.
pub trait Layout: Copy {
    /// What it is.
    fn geometry(self) -> Geometry;
}

/// [`Geometry::HOST`], known when the program is built.
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl Layout for Host {
    fn geometry(self) -> Geometry {
        Geometry::HOST
    }
}

impl Layout for Geometry {
    fn geometry(self) -> Geometry {
        self
    }
}

/// A place of ring memory, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Stream index of its first byte.
    pub start: u64,
    /// Offset from the region's start, in bytes.
    pub offset: usize,
    /// log2 of its capacity in bytes.
    pub log2: u32,
}

impl Segment {
    /// Capacity in bytes.
    pub fn capacity_bytes(self) -> u64 {
        1 << self.log2
    }

    fn pack(self) -> u64 {
        (self.offset as u64) << 8 | u64::from(self.log2)
    }

    /// Reads back what [`Segment::pack`] made, whoever wrote it.
    fn unpack(start: u64, place: u64, geometry: Geometry) -> Result<Self, Violation> {
        let log2 = (place & 0xff) as u32;
        let offset = (place >> 8) as usize;
        if !(SEGMENT_LOG2_MIN..=SEGMENT_LOG2_MAX).contains(&log2)
            || !offset.is_multiple_of(64)
            || !geometry.holds(offset, log2)
        {
            return Err(Violation::Segment);
        }
        Ok(Self {
            start,
            offset,
            log2,
        })
    }

    /// Where stream index `at` lies, as an offset from the region's start, and how many bytes
    /// lie there in one run.
    #[inline(always)]
    fn run(self, at: u64) -> (usize, usize) {
        let capacity = 1usize << self.log2;
        let from = at.wrapping_sub(self.start) as usize & (capacity - 1);
        (self.offset + from, capacity - from)
    }

    /// The (at most two) runs that hold stream bytes `[at, at + count)`, as
    /// offsets from the region's start and lengths. `count` must fit the capacity.
    fn runs(self, at: u64, count: usize) -> [(usize, usize); 2] {
        let (offset, length) = self.run(at);
        let first = count.min(length);
        [(offset, first), (self.offset, count - first)]
    }
}
