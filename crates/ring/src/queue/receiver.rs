//! The receiving half of a packet queue.

use super::{Geometry, Header};
use crate::copy::{Copier, Kernel};
use crate::{Ordering, Violation, fence};
use fordway_abi::queue::{Acknowledgements, ENTRY_COUNT, Lane, MESSAGE_BLOCKS_MAX, Piece};

/// A message that was received: it is read in place until it is acknowledged.
#[must_use]
#[derive(Debug)]
pub struct Message {
    /// What the sender says of it.
    pub header: Header,
    bytes: u32,
    count: u16,
    blocks: [u16; MESSAGE_BLOCKS_MAX],
}

impl Message {
    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

/// The receiving half.
#[derive(Debug)]
pub struct Receiver {
    lane: *const Lane,
    own: *const Acknowledgements,
    pool: *const u8,
    geometry: Geometry,
    /// Entries that were read.
    head: u64,
    /// Acknowledgements that were published.
    tail: u64,
}

impl Receiver {
    /// # Safety
    /// `own` is zeroed memory that only this receiver writes; `lane` and `pool`, of `geometry.pool_bytes()`, are the sender's. All of
    /// it stays mapped as long as this is used.
    pub unsafe fn new(
        own: *const Acknowledgements,
        lane: *const Lane,
        pool: *const u8,
        geometry: Geometry,
    ) -> Self {
        Self {
            lane,
            own,
            pool,
            geometry,
            head: 0,
            tail: 0,
        }
    }

    fn peer(&self) -> &Lane {
        // SAFETY: mapped; all fields are atomics, loaded once each and checked.
        unsafe { &*self.lane }
    }

    fn own(&self) -> &Acknowledgements {
        // SAFETY: our own memory; all fields are atomics.
        unsafe { &*self.own }
    }

    /// A hint, without a check: is there a message?
    pub fn looks_readable(&self) -> bool {
        self.peer().tail.0.load(Ordering::Relaxed) != self.head
    }

    /// The next message, if there is one. After a violation nothing is taken any more: the caller gives the lane up.
    pub fn receive(&mut self) -> Result<Option<Message>, Violation> {
        let fill = self
            .peer()
            .tail
            .0
            .load(Ordering::Acquire)
            .wrapping_sub(self.head);
        if fill == 0 {
            return Ok(None);
        }
        if fill > ENTRY_COUNT as u64 {
            return Err(Violation::Tail);
        }
        let first = self.entry(0);
        let mut message = Message {
            header: Header {
                source: first.source.load(Ordering::Relaxed),
                destination: first.destination.load(Ordering::Relaxed),
                number: first.number.load(Ordering::Relaxed),
                kind: 0,
            },
            bytes: 0,
            count: 0,
            blocks: [0; MESSAGE_BLOCKS_MAX],
        };
        let block_bytes = self.geometry.block_bytes() as u32;
        for at in 0..fill.min(MESSAGE_BLOCKS_MAX as u64) {
            let piece = Piece::unpack(self.entry(at).piece.load(Ordering::Relaxed));
            // All but the last one are full, or nobody could say where a byte lies.
            let is_sound = match piece.goes_on {
                true => piece.bytes == block_bytes,
                false => piece.bytes <= block_bytes,
            };
            if !is_sound || piece.block >= self.geometry.blocks {
                return Err(Violation::Descriptor);
            }
            message.blocks[at as usize] = piece.block;
            message.bytes += piece.bytes;
            message.header.kind = piece.kind;
            if !piece.goes_on {
                message.count = at as u16 + 1;
                self.head = self.head.wrapping_add(at + 1);
                return Ok(Some(message));
            }
        }
        // A sender publishes messages whole, and none is so long.
        Err(Violation::Descriptor)
    }

    fn entry(&self, at: u64) -> &fordway_abi::queue::Descriptor {
        &self.peer().entries[self.head.wrapping_add(at) as usize % ENTRY_COUNT]
    }

    /// Copies a message's bytes from `at` on, as many as there are up to `count`; how many.
    ///
    /// # Safety
    /// `target` is writable for `count` bytes. The message came from this receiver.
    pub unsafe fn copy(
        &self,
        message: &Message,
        copier: &Copier,
        kernel: Kernel,
        at: usize,
        target: *mut u8,
        count: usize,
    ) -> usize {
        let mut done = 0;
        for (run, length) in self.runs(message, at, count) {
            // SAFETY: a run lies in the pool; `target` by contract.
            unsafe { copier.copy(target.add(done), run, length, kernel) };
            done += length;
        }
        done
    }

    /// Where a message's bytes from `at` on lie, up to `count` of them. The sender may change them at any moment.
    pub fn runs(
        &self,
        message: &Message,
        at: usize,
        count: usize,
    ) -> impl Iterator<Item = (*const u8, usize)> {
        let count = count.min(message.bytes().saturating_sub(at));
        let stretches = self.geometry.stretches(at, count);
        stretches.map(|(number, within, length)| {
            let block = usize::from(message.blocks[number]);
            let offset = block * self.geometry.block_bytes() + within;
            #[cfg(loom)]
            crate::shadow::read(offset, length);
            (self.pool.wrapping_add(offset), length)
        })
    }

    /// Gives a message's blocks back. Afterwards the caller wakes who [waits](Receiver::peer_waits) for room.
    pub fn acknowledge(&mut self, message: Message) {
        for block in &message.blocks[..usize::from(message.count)] {
            let at = self.tail as usize % ENTRY_COUNT;
            self.own().blocks[at].store(u32::from(*block), Ordering::Relaxed);
            self.tail = self.tail.wrapping_add(1);
        }
        self.own().tail.0.store(self.tail, Ordering::Release);
        // SYNC POINT with `Sleeper::announce`: room before the look at who sleeps.
        fence(Ordering::SeqCst);
    }

    /// Doors of the sender that want to know of room. The caller has acknowledged.
    pub fn peer_waits(&self) -> u64 {
        self.peer().doors.0.load(Ordering::Relaxed)
    }

    /// Which doors of ours the sender is to knock at when it has sent something. Who sets some announces that he
    /// sleeps, and then looks once more.
    pub fn wait_for_messages(&self, doors: u64) {
        self.own().doors.0.store(doors, Ordering::SeqCst);
    }
}
