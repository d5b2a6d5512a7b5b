//! The two ends of one direction as the shim uses them, in a size that can be explored:
//! a producer and a consumer with an endpoint, a wait page and a doorbell each, the
//! producer's arena, and the kernel's stream beside the ring.
//!
//! Bytes move in units of [`UNIT_BYTES`]; a new ring holds four. Unit n of the stream is
//! filled with n, so that what arrives says where it came from. Which memory may be
//! touched when is checked by the ring's own `shadow`.

use fordway_abi::shm::{
    ARENA_OFFSET, Endpoint, RegionHeader, SEGMENT_LOG2_MIN, WaitPage, rx_state, tx_state,
};
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::{Consumer, Entered, Producer, Sleeper, doors_to_ring};
use loom::sync::{Condvar, Mutex};
use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::{Arc, atomic::Ordering};

/// Units that a ring of the smallest size holds.
pub const RING_UNITS: usize = 4;
pub const UNIT_BYTES: usize = (1 << SEGMENT_LOG2_MIN) / RING_UNITS;
const PREEMPTIONS_MAX: usize = 2;
const ARENA_BYTES: usize = 80 * UNIT_BYTES;
const BELL: usize = 0;

/// Explores every interleaving with up to two preemptions (or as many as
/// `LOOM_MAX_PREEMPTIONS` says).
pub fn explore(model: impl Fn(&Arc<World>) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS_MAX));
    builder.max_branches = 50_000;
    let memory = Arc::new(Memory::new());
    let runs = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = runs.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model(&World::new(memory.clone()));
    });
    println!("{} interleavings", runs.load(Ordering::Relaxed));
}

/// The producer's region up to as much arena as a model uses; the same for all runs.
struct Memory {
    base: *mut u8,
}

// SAFETY: it is plain memory; loom runs one thread at a time.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    const LAYOUT: Layout = match Layout::from_size_align(ARENA_OFFSET + ARENA_BYTES, 4096) {
        Ok(layout) => layout,
        Err(_) => panic!(),
    };

    fn new() -> Self {
        // SAFETY: the layout is not empty.
        let base = unsafe { std::alloc::alloc_zeroed(Self::LAYOUT) };
        assert!(!base.is_null());
        Self { base }
    }

    /// As a region that was just made.
    fn renew(&self) {
        // SAFETY: the header lies at the region's start; the arena is as long as that.
        unsafe {
            self.base
                .cast::<RegionHeader>()
                .write(RegionHeader::default());
            self.base.add(ARENA_OFFSET).write_bytes(0, ARENA_BYTES);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made in `new` with this layout.
        unsafe { std::alloc::dealloc(self.base, Self::LAYOUT) };
    }
}

/// An eventfd: rung until it is read.
pub struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }

    /// poll(2) on it. A model in which nobody rings ends here, as a deadlock.
    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
    }

    fn quiet(&self) {
        *self.rung.lock().unwrap() = false;
    }
}

/// What one process has of the channel.
pub struct Side {
    pub endpoint: Endpoint,
    pub page: Box<WaitPage>,
    pub bell: Bell,
}

impl Side {
    fn new() -> Self {
        let mut page = Box::<WaitPage>::new_zeroed();
        // SAFETY: the models use bell 0 alone, and no other word of the page.
        let page = unsafe {
            let words = page.as_mut_ptr();
            (&raw mut (*words).sleeping).write(Default::default());
            (&raw mut (*words).sleep_count[BELL]).write(Default::default());
            page.assume_init()
        };
        let bell = Bell {
            rung: Mutex::new(false),
            changed: Condvar::new(),
        };
        Self {
            endpoint: Endpoint::default(),
            page,
            bell,
        }
    }

    /// Rings the bell if somebody sleeps behind it who was not rung yet.
    fn wake(&self, doors: u64, rung: &Cell<u32>) {
        // SAFETY: the page lives as long as the side.
        let doors =
            unsafe { doors_to_ring(&*self.page, doors, |_, count| rung.replace(count) != count) };
        if doors != 0 {
            self.bell.ring();
        }
    }
}

pub struct World {
    memory: Arc<Memory>,
    pub from: Side,
    pub to: Side,
    /// Units in the kernel's connection: sent and not received.
    pub kernel: Mutex<VecDeque<u8>>,
}

impl World {
    fn new(memory: Arc<Memory>) -> Arc<Self> {
        memory.renew();
        Arc::new(Self {
            memory,
            from: Side::new(),
            to: Side::new(),
            kernel: Mutex::new(VecDeque::new()),
        })
    }

    fn producer(&self) -> Producer {
        // SAFETY: endpoint and memory live as long as the world.
        unsafe { Producer::new(&self.from.endpoint, self.memory.base, &self.to.endpoint) }
    }

    fn consumer(&self) -> Consumer {
        // SAFETY: as above.
        unsafe { Consumer::new(&self.to.endpoint, &self.from.endpoint, self.memory.base) }
    }

    /// Both ends of a direction that is on the ring already.
    pub fn on_ring(self: &Arc<Self>) -> (Sender, Receiver) {
        let (sender, receiver) = self.ends();
        receiver.consumer.get_ready();
        assert_eq!(sender.producer.enter(|| Some(0)), Entered::Yes);
        (sender, receiver)
    }

    /// Both ends of a direction that is the kernel's still.
    pub fn ends(self: &Arc<Self>) -> (Sender, Receiver) {
        let sender = Sender {
            producer: self.producer(),
            world: self.clone(),
            rung: Cell::new(0),
            sent: Cell::new(0),
            copier: Copier::sse2(),
        };
        let receiver = Receiver {
            consumer: self.consumer(),
            world: self.clone(),
            rung: Cell::new(0),
            got: RefCell::new(Vec::new()),
            copier: Copier::sse2(),
        };
        (sender, receiver)
    }
}

pub struct Sender {
    pub producer: Producer,
    pub world: Arc<World>,
    rung: Cell<u32>,
    /// Units of the stream that were sent.
    pub sent: Cell<usize>,
    copier: Copier,
}

impl Sender {
    /// Sends up to `units` by the ring; how many, and whether the consumer has stopped.
    pub fn try_send(&self, units: usize) -> (usize, bool) {
        let wanted = units * UNIT_BYTES;
        let mut room = self.producer.room_bytes(wanted).unwrap();
        if room < wanted && self.producer.grow(wanted) {
            room = self.producer.room_bytes(wanted).unwrap();
        }
        let count = units.min(room / UNIT_BYTES);
        if count == 0 {
            return (0, false);
        }
        let bytes: Vec<u8> = (0..count * UNIT_BYTES)
            .map(|at| (self.sent.get() + at / UNIT_BYTES) as u8)
            .collect();
        let tail = self.producer.tail();
        // SAFETY: `bytes` is that long; `count` units are within the room.
        unsafe {
            self.producer.write(
                &self.copier,
                Kernel::Plain,
                tail,
                bytes.as_ptr(),
                bytes.len(),
            )
        };
        self.sent.set(self.sent.get() + count);
        self.producer.publish(bytes.len());
        let (doors, stopped) = self.producer.peer_waits();
        self.world.to.wake(doors, &self.rung);
        (count, stopped)
    }

    /// Sends `units`, sleeping for room.
    pub fn send(&self, units: usize) {
        let mut left = units;
        loop {
            left -= self.try_send(left).0;
            if left == 0 {
                return;
            }
            self.sleep_for_room();
        }
    }

    fn sleep_for_room(&self) {
        let side = &self.world.from;
        let producer = &self.producer;
        producer.ask_for_room();
        side.endpoint
            .wait
            .tx_doors
            .fetch_or(1 << BELL, Ordering::SeqCst);
        let sleeper = Sleeper::new(&side.page, BELL);
        sleeper.announce();
        if producer.room_hint() < producer.capacity_bytes() / 2 {
            side.bell.sleep();
        }
        sleeper.retract();
        side.endpoint
            .wait
            .tx_doors
            .fetch_and(!(1 << BELL), Ordering::SeqCst);
        side.bell.quiet();
    }
}

pub struct Receiver {
    pub consumer: Consumer,
    pub world: Arc<World>,
    rung: Cell<u32>,
    /// Units that arrived.
    pub got: RefCell<Vec<u8>>,
    copier: Copier,
}

impl Receiver {
    /// Takes up to `units` from the ring; how many.
    pub fn try_receive(&self, units: usize) -> usize {
        let fill = self.consumer.fill_bytes().unwrap() as usize;
        let count = fill.min(units * UNIT_BYTES);
        if count == 0 {
            return 0;
        }
        let mut bytes = vec![0xff; count];
        // SAFETY: `bytes` is that long.
        let copied = unsafe {
            self.consumer
                .peek(&self.copier, Kernel::Plain, 0, bytes.as_mut_ptr(), count)
        };
        assert_eq!(copied, Ok(count));
        for unit in bytes.chunks(UNIT_BYTES) {
            assert!(unit.iter().all(|byte| *byte == unit[0]), "a torn unit");
            self.got.borrow_mut().push(unit[0]);
        }
        if self.consumer.take(count).unwrap() {
            self.world.from.wake(self.consumer.peer_waits(), &self.rung);
        }
        count / UNIT_BYTES
    }

    /// Receives until `units` came in all, sleeping for bytes.
    pub fn receive(&self, units: usize, at_once: usize) {
        while self.got.borrow().len() < units {
            if self.try_receive(at_once) == 0 {
                self.sleep_for_bytes();
            }
        }
    }

    fn sleep_for_bytes(&self) {
        let side = &self.world.to;
        side.endpoint
            .wait
            .rx_doors
            .fetch_or(1 << BELL, Ordering::SeqCst);
        let sleeper = Sleeper::new(&side.page, BELL);
        sleeper.announce();
        if !self.consumer.looks_readable() {
            side.bell.sleep();
        }
        sleeper.retract();
        side.endpoint
            .wait
            .rx_doors
            .fetch_and(!(1 << BELL), Ordering::SeqCst);
        side.bell.quiet();
    }

    /// What came is the stream's beginning.
    pub fn assert_in_order(&self) {
        let got = self.got.borrow();
        let expected: Vec<u8> = (0..got.len()).map(|unit| unit as u8).collect();
        assert_eq!(*got, expected, "units lost, doubled or swapped");
    }
}
