//! Frames that wait for `transmit`: replies, datagrams, neighbor requests. Bounded in bytes;
//! what finds it full is dropped, as on a full link. Buffers are used again, so that a steady
//! flow of small frames allocates nothing.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::frame::ChecksumRequest;

const SPARE_BUFFERS_MAX: usize = 64;
/// Larger buffers go back to the allocator.
const SPARE_BYTES_MAX: usize = 2048;

#[derive(Debug)]
pub(crate) struct Waiting {
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    pub checksum: Option<ChecksumRequest>,
}

#[derive(Debug)]
pub(crate) struct Outbox {
    frames: VecDeque<Waiting>,
    bytes: usize,
    bytes_max: usize,
    spare: Vec<Vec<u8>>,
}

impl Outbox {
    pub(crate) fn new(bytes_max: usize) -> Outbox {
        Outbox {
            frames: VecDeque::new(),
            bytes: 0,
            bytes_max,
            spare: Vec::new(),
        }
    }

    /// An empty buffer, a used one if there is one.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(256))
    }

    pub(crate) fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX && buffer.capacity() <= SPARE_BYTES_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    pub(crate) fn room_bytes(&self) -> usize {
        self.bytes_max - self.bytes
    }

    /// False if there was no room.
    pub(crate) fn push(&mut self, frame: Waiting) -> bool {
        if frame.bytes.len() > self.room_bytes() {
            self.give_back(frame.bytes);
            return false;
        }
        self.bytes += frame.bytes.len();
        self.frames.push_back(frame);
        true
    }

    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.bytes.len();
        Some(frame)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}
