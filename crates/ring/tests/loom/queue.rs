//! Models of the packet queue: one sender, and a receiver in a thread of its own.

use crate::world::{BELL, World, explore};
use fordway_abi::queue::{Acknowledgements, Lane};
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::queue::{Geometry, Header, Receiver, Sender};
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

const BLOCK_LOG2: u32 = 6;
const BLOCK_BYTES: usize = 1 << BLOCK_LOG2;
const ALL: u64 = u64::MAX;

/// The memory of both sides, and who sleeps: the sender on the world's `from`, the receiver on `to`.
struct Place {
    world: Arc<World>,
    pool: Box<[u8]>,
    lane: Lane,
    acknowledgements: Acknowledgements,
    knocked: [AtomicU32; 2],
}

/// An end, and its place.
struct End<T> {
    end: T,
    place: Arc<Place>,
}

// SAFETY: loom runs one thread at a time, and `shadow` checks that the pool's bytes are not used at once.
unsafe impl<T> Send for End<T> {}

fn place(world: &Arc<World>, blocks: usize) -> (End<Sender>, End<Receiver>) {
    let geometry = Geometry::new(blocks, BLOCK_LOG2).expect("a small queue");
    let place = Arc::new(Place {
        world: world.clone(),
        pool: vec![0; geometry.pool_bytes()].into(),
        lane: Lane::default(),
        acknowledgements: Acknowledgements::default(),
        knocked: Default::default(),
    });
    let pool = place.pool.as_ptr().cast_mut();
    // SAFETY: both ends hold the place; the pool is written through this pointer alone.
    let (mut sender, receiver) = unsafe {
        let receiver = Receiver::new(&place.acknowledgements, &place.lane, pool, geometry);
        (Sender::new(pool, geometry), receiver)
    };
    // SAFETY: as above.
    let attached = unsafe { sender.attach(&place.lane, &place.acknowledgements) };
    assert_eq!(attached, Some(0));
    let sender = End {
        end: sender,
        place: place.clone(),
    };
    let receiver = End {
        end: receiver,
        place,
    };
    (sender, receiver)
}

impl End<Sender> {
    /// A message of so many blocks, filled with its number; whether there was room.
    fn try_send(&mut self, number: u8, blocks: usize) -> bool {
        self.end.collect(0).unwrap();
        let bytes = vec![number; blocks * BLOCK_BYTES];
        let Ok(draft) = self.end.draft(bytes.len()) else {
            return false;
        };
        let (source, count) = (bytes.as_ptr(), bytes.len());
        // SAFETY: `bytes` is that long, and so is the draft.
        unsafe {
            let copier = Copier::sse2();
            self.end
                .write(&draft, &copier, Kernel::Plain, 0, source, count);
        }
        let header = Header {
            number: number.into(),
            ..Header::default()
        };
        assert_eq!(self.end.send(draft, &header, ALL), 1);
        let (to, knocked) = (&self.place.world.to, &self.place.knocked[0]);
        to.wake(self.end.peer_waits(0), knocked);
        true
    }

    /// Sends, sleeping for room.
    fn send(&mut self, number: u8) {
        while !self.try_send(number, 1) {
            self.end.wait_for_room(0, 1 << BELL);
            let mut came = 0;
            let from = &self.place.world.from;
            from.sleep(&from.endpoint.wait.tx_doors, || {
                came = self.end.collect(0).unwrap();
                came != 0
            });
        }
    }
}

impl End<Receiver> {
    /// The number of the next message; what it holds is looked at, and given back.
    fn try_receive(&mut self) -> Option<u8> {
        let message = self.end.receive().unwrap()?;
        let mut bytes = vec![0xff; message.bytes()];
        let (target, count) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: `bytes` is that long.
        let copied = unsafe {
            let copier = Copier::sse2();
            self.end
                .copy(&message, &copier, Kernel::Plain, 0, target, count)
        };
        assert_eq!(copied, count);
        let number = message.header.number as u8;
        assert!(bytes.iter().all(|byte| *byte == number), "{bytes:?}");
        self.end.acknowledge(message);
        let (from, knocked) = (&self.place.world.from, &self.place.knocked[1]);
        from.wake(self.end.peer_waits(), knocked);
        Some(number)
    }

    /// Receives, sleeping for a message.
    fn receive(&mut self) -> u8 {
        loop {
            if let Some(number) = self.try_receive() {
                return number;
            }
            self.end.wait_for_messages(1 << BELL);
            let to = &self.place.world.to;
            to.sleep(&to.endpoint.wait.rx_doors, || self.end.looks_readable());
        }
    }
}

/// Messages arrive whole and in order, and no block is written while it is read, or before.
///
/// Fails if `send` or `acknowledge` stores its tail relaxed, or if `receive` or `collect` loads it so.
#[test]
fn blocks_come_back() {
    explore(|world| {
        let (mut sender, mut receiver) = place(world, 2);
        let thread = thread::spawn(move || {
            let sizes = [1, 2, 1].into_iter().zip(1..);
            let sent = sizes.filter(|(blocks, number)| sender.try_send(*number, *blocks));
            sent.map(|(_, number)| number).collect::<Vec<u8>>()
        });
        let mut got = Vec::new();
        for _ in 0..2 {
            got.extend(receiver.try_receive());
        }
        let sent = thread.join().unwrap();
        got.extend(std::iter::from_fn(|| receiver.try_receive()));
        assert_eq!(got, sent);
    });
}

/// A receiver that found nothing is woken by what comes.
///
/// Fails if the fence of `send` is missing.
#[test]
fn sleep_for_messages() {
    explore(|world| {
        let (mut sender, mut receiver) = place(world, 4);
        let thread = thread::spawn(move || {
            assert!(sender.try_send(1, 1));
            assert!(sender.try_send(2, 1));
        });
        assert_eq!([receiver.receive(), receiver.receive()], [1, 2]);
        thread.join().unwrap();
    });
}

/// A sender that found no block is woken by an acknowledgement.
///
/// Fails if the fence of `acknowledge` is missing.
#[test]
fn sleep_for_room() {
    explore(|world| {
        let (mut sender, mut receiver) = place(world, 1);
        let thread = thread::spawn(move || (1..=3).for_each(|number| sender.send(number)));
        assert_eq!([(); 3].map(|()| receiver.receive()), [1, 2, 3]);
        thread.join().unwrap();
    });
}
