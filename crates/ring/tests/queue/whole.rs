//! A packet queue with all of its memory and its receivers, in one process: for its tests and for the fuzzer.

use crate::memory::Guarded;
use fordway_abi::queue::{Acknowledgements, Lane};
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::queue::{Draft, Geometry, Header, Message, Receiver, Refusal, Sender};

const BLOCK_LOG2: u32 = 7;
pub const BLOCK_BYTES: usize = 1 << BLOCK_LOG2;
pub const BLOCKS: usize = 24;

/// A queue with all of its memory.
pub struct Queue {
    pub sender: Sender,
    pool: Guarded,
    pub sides: Vec<Side>,
    geometry: Geometry,
    copier: Copier,
}

/// A receiver with its lane.
pub struct Side {
    pub lane: Box<Lane>,
    pub acknowledgements: Box<Acknowledgements>,
    pub receiver: Receiver,
    pub number: usize,
}

impl Queue {
    pub fn new(blocks: usize, lanes: usize) -> Queue {
        let geometry = Geometry::new(blocks, BLOCK_LOG2).expect("geometry");
        let pool = Guarded::new(
            geometry.pool_bytes().next_multiple_of(4096),
            libc::PROT_READ | libc::PROT_WRITE,
        );
        // The guard is right behind it.
        // SAFETY: the pool lives as long as the queue.
        let sender = unsafe { Sender::new(pool.end(geometry.pool_bytes()), geometry) };
        let mut queue = Queue {
            sender,
            pool,
            sides: Vec::new(),
            geometry,
            copier: Copier::detect(),
        };
        for _ in 0..lanes {
            let side = queue.attach();
            queue.sides.push(side);
        }
        queue
    }

    pub fn attach(&mut self) -> Side {
        let (lane, acknowledgements) = (Box::<Lane>::default(), Box::<Acknowledgements>::default());
        let pool = self.pool.end(self.geometry.pool_bytes());
        // SAFETY: both boxes live in the side, and the sides in the queue.
        unsafe {
            let receiver = Receiver::new(&*acknowledgements, &*lane, pool, self.geometry);
            let number = self.sender.attach(&*lane, &*acknowledgements);
            Side {
                lane,
                acknowledgements,
                receiver,
                number: number.expect("a lane"),
            }
        }
    }

    /// A draft with these bytes, written in two pieces.
    fn draft(&mut self, bytes: &[u8]) -> Result<Draft, Refusal> {
        let draft = self.sender.draft(bytes.len())?;
        let middle = bytes.len() / 3;
        for (at, piece) in [(0, &bytes[..middle]), (middle, &bytes[middle..])] {
            let (source, count) = (piece.as_ptr(), piece.len());
            // SAFETY: the draft has room for all of it.
            unsafe {
                let sender = &self.sender;
                sender.write(&draft, &self.copier, Kernel::Plain, at, source, count);
            }
        }
        Ok(draft)
    }

    pub fn send(&mut self, number: u64, bytes: &[u8], lanes: u64) -> Result<u64, Refusal> {
        let draft = self.draft(bytes)?;
        let header = Header {
            source: number << 32,
            destination: lanes,
            number,
            kind: number as u8,
        };
        Ok(self.sender.send(draft, &header, lanes))
    }

    /// The same, of a message that is made in place and turns out shorter than it might have been.
    pub fn make(
        &mut self,
        number: u64,
        bytes: &[u8],
        spare: usize,
        lanes: u64,
    ) -> Result<u64, Refusal> {
        let mut draft = self.sender.draft_run(bytes.len() + spare)?;
        let place = self.sender.place(&draft);
        // SAFETY: the draft has room for all of it, and its blocks are neighbours.
        unsafe {
            place.write_bytes(0xee, bytes.len() + spare);
            place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.sender.shorten(&mut draft, bytes.len());
        let header = Header {
            source: number << 32,
            destination: lanes,
            number,
            kind: number as u8,
        };
        Ok(self.sender.send(draft, &header, lanes))
    }

    pub fn bytes_of(&self, lane: usize, message: &Message) -> Vec<u8> {
        let mut bytes = vec![0; message.bytes()];
        let (target, count) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: `bytes` is that long.
        let copied = unsafe {
            let receiver = &self.sides[lane].receiver;
            receiver.copy(message, &self.copier, Kernel::Plain, 0, target, count)
        };
        assert_eq!(copied, count);
        bytes
    }
}

/// What message `number` says.
pub fn content(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (number as usize * 31 + at * 7 + at / BLOCK_BYTES) as u8)
        .collect()
}

/// That nothing holds a block.
pub fn all_are_free(sender: &mut Sender) {
    let drafts: Vec<Draft> = (0..BLOCKS)
        .map(|_| sender.draft(1).expect("a block"))
        .collect();
    assert_eq!(sender.draft(0).map(drop), Err(Refusal::Full));
    drafts.into_iter().for_each(|draft| sender.cancel(draft));
}
