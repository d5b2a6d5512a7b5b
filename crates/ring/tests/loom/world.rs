//! The two ends of one direction as the shim uses them, in a size that can be explored:
//! a producer and a consumer with an endpoint, a wait page and a doorbell each, the
//! producer's arena, and the kernel's stream beside the ring.
//!
//! Bytes move in units of [`UNIT_BYTES`], mostly a quarter of a new ring at once. Unit n
//! of the stream is filled with [`name`] of n, so that what arrives says where it came from. Which memory may be
//! touched when is checked by the ring's own `shadow`.

use fordway_abi::atomic::AtomicU64;
use fordway_abi::shm::{
    ARENA_OFFSET, Endpoint, RegionHeader, SEGMENT_LOG2_MIN, WaitPage, tx_state,
};
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::{Consumer, Entered, Producer, Sleeper, doors_to_knock_at};
use loom::sync::{Condvar, Mutex};
use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Units that a ring of the smallest size holds.
pub const RING_UNITS: usize = 16;
pub const QUARTER: usize = RING_UNITS / 4;
const UNIT_BYTES: usize = (1 << SEGMENT_LOG2_MIN) / RING_UNITS;
const PREEMPTIONS_MAX: usize = 2;
/// The rings of two growths.
const ARENA_BYTES: usize = (RING_UNITS + RING_UNITS * 16 + RING_UNITS * 256) * UNIT_BYTES;
pub const BELL: usize = 0;

/// What unit number `unit` of the stream is filled with.
fn name(unit: usize) -> u8 {
    (unit % 251) as u8
}

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

    /// With the header of a region that was just made. Ring memory keeps what an earlier
    /// run has left in it: `shadow` sees to it that nothing is read before it is written.
    fn renew(&self) {
        // SAFETY: the header lies at the region's start.
        unsafe {
            self.base
                .cast::<RegionHeader>()
                .write(RegionHeader::default());
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made in `new` with this layout.
        unsafe { std::alloc::dealloc(self.base, Self::LAYOUT) };
    }
}

/// An eventfd: knocked at until it is read.
pub struct Bell {
    knocked: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn knock(&self) {
        *self.knocked.lock().unwrap() = true;
        self.changed.notify_all();
    }

    /// poll(2) on it. A model in which nobody knocks ends here, as a deadlock.
    fn sleep(&self) {
        let mut knocked = self.knocked.lock().unwrap();
        while !*knocked {
            knocked = self.changed.wait(knocked).unwrap();
        }
    }

    fn quiet(&self) {
        *self.knocked.lock().unwrap() = false;
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
            knocked: Mutex::new(false),
            changed: Condvar::new(),
        };
        Self {
            endpoint: Endpoint::default(),
            page,
            bell,
        }
    }

    /// Sleeps on the bell until the peer knocks at it, unless `ready`.
    pub fn sleep(&self, doors: &AtomicU64, ready: impl FnOnce() -> bool) {
        doors.fetch_or(1 << BELL, Ordering::SeqCst);
        let sleeper = Sleeper::new(&self.page, BELL);
        sleeper.announce();
        if !ready() {
            self.bell.sleep();
        }
        sleeper.retract();
        doors.fetch_and(!(1 << BELL), Ordering::SeqCst);
        self.bell.quiet();
    }

    /// Knocks at the bell if somebody sleeps behind it who was not woken yet.
    pub fn wake(&self, doors: u64, knocked: &AtomicU32) {
        // SAFETY: the page lives as long as the side.
        let doors = unsafe {
            doors_to_knock_at(&*self.page, doors, |_, count| {
                knocked.swap(count, Ordering::Relaxed) != count
            })
        };
        if doors != 0 {
            self.bell.knock();
        }
    }
}

pub struct World {
    memory: Arc<Memory>,
    pub from: Side,
    pub to: Side,
    /// Units in the kernel's connection: sent and not received.
    kernel: Mutex<VecDeque<u8>>,
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

    /// Both ends of a direction that is on the ring already.
    pub fn on_ring(self: &Arc<Self>) -> (Sender, Receiver) {
        let (sender, receiver) = self.ends();
        receiver.consumer.get_ready();
        assert_eq!(sender.producer.enter(|| Some(0)), Entered::Yes);
        (sender, receiver)
    }

    /// Both ends of a direction that is the kernel's still.
    pub fn ends(self: &Arc<Self>) -> (Sender, Receiver) {
        let (from, to, base) = (&self.from.endpoint, &self.to.endpoint, self.memory.base);
        // SAFETY: endpoints and memory live as long as the world, and each end holds that.
        let (producer, consumer) = unsafe {
            let producer = Producer::new(from, base, to);
            (producer, Consumer::new(to, from, base))
        };
        let sender = Sender {
            producer,
            world: self.clone(),
            knocked: AtomicU32::new(0),
            sent: Cell::new(0),
        };
        let receiver = Receiver {
            consumer,
            world: self.clone(),
            knocked: AtomicU32::new(0),
            got: RefCell::new(Vec::new()),
            by_kernel: Cell::new(0),
        };
        (sender, receiver)
    }
}

/// The producer and what its process remembers.
pub struct Sender {
    pub producer: Producer,
    world: Arc<World>,
    knocked: AtomicU32,
    /// Units of the stream that were sent.
    pub sent: Cell<usize>,
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
            .map(|at| name(self.sent.get() + at / UNIT_BYTES))
            .collect();
        let (source, tail) = (bytes.as_ptr(), self.producer.tail());
        // SAFETY: `bytes` is that long; `count` units are within the room.
        unsafe {
            self.producer
                .write(&Copier::sse2(), Kernel::Plain, tail, source, bytes.len())
        };
        self.sent.set(self.sent.get() + count);
        self.producer.publish(bytes.len());
        (count, self.wake_reader())
    }

    /// What follows each publication; whether the consumer has stopped.
    fn wake_reader(&self) -> bool {
        let (doors, stopped) = self.producer.peer_waits();
        self.world.to.wake(doors, &self.knocked);
        stopped
    }

    /// Waits as poll(2) with POLLOUT: until a third of the ring is free. The ring need not be
    /// full; but who waits is only sure to be woken once half of it is free.
    pub fn wait_until_writable(&self) {
        let (side, producer) = (&self.world.from, &self.producer);
        producer.ask_for_room();
        side.sleep(&side.endpoint.wait.tx_doors, || {
            producer.room_hint() * 3 >= producer.capacity_bytes()
        });
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

    /// As a blocking send: a quarter by ring or kernel, whatever the other side does meanwhile.
    pub fn send_somehow(&self) {
        loop {
            if self.producer.state() == tx_state::KERNEL {
                self.producer.enter(|| Some(self.sent.get() as u64));
            }
            if self.producer.state() != tx_state::RING {
                self.flush_back();
                let sent = self.sent.get();
                self.send_by_kernel((sent..sent + QUARTER).map(name));
                self.sent.set(sent + QUARTER);
                return;
            }
            let (count, stopped) = self.try_send(QUARTER);
            if stopped {
                self.leave();
            }
            if count != 0 {
                return;
            }
            self.sleep_for_room();
            self.serve();
        }
    }

    /// What a waiter does once it runs again.
    pub fn serve(&self) {
        if self.producer.must_leave() {
            self.leave();
        }
    }

    pub fn leave(&self) {
        self.producer.leave().unwrap();
        self.flush_back();
        self.wake_reader();
    }

    /// Takes back what was not read; whether that could be.
    pub fn withdraw(&self) -> bool {
        let done = self.producer.withdraw().unwrap();
        if done {
            self.flush_back();
        }
        self.wake_reader();
        done
    }

    fn flush_back(&self) {
        while self.producer.back_bytes() != 0 {
            let (base, length) = self.producer.back_run();
            // SAFETY: a run lies in the producer's own memory.
            let bytes = unsafe { std::slice::from_raw_parts(base, length) };
            self.send_by_kernel(bytes.iter().copied().step_by(UNIT_BYTES));
            self.producer.back_sent(length);
        }
    }

    fn send_by_kernel(&self, units: impl Iterator<Item = u8>) {
        self.world.kernel.lock().unwrap().extend(units);
        self.world.to.bell.knock();
    }

    fn sleep_for_room(&self) {
        let (side, producer) = (&self.world.from, &self.producer);
        producer.ask_for_room();
        side.sleep(&side.endpoint.wait.tx_doors, || {
            producer.must_leave() || producer.room_hint() >= producer.capacity_bytes() / 2
        });
    }
}

/// The consumer and what its process remembers.
pub struct Receiver {
    pub consumer: Consumer,
    world: Arc<World>,
    knocked: AtomicU32,
    /// Units that arrived.
    pub got: RefCell<Vec<u8>>,
    /// How many of them came by the kernel.
    by_kernel: Cell<usize>,
}

impl Receiver {
    /// Takes up to `units` from the ring; how many.
    pub fn try_receive(&self, units: usize) -> usize {
        let wanted = units * UNIT_BYTES;
        let fill = self.consumer.fill_bytes_for(wanted).unwrap() as usize;
        let count = fill.min(wanted);
        if count == 0 {
            return 0;
        }
        let mut bytes = vec![0xff; count];
        let target = bytes.as_mut_ptr();
        // SAFETY: `bytes` is that long.
        let copied = unsafe {
            let copier = Copier::sse2();
            self.consumer.peek(&copier, Kernel::Plain, 0, target, count)
        };
        assert_eq!(copied, Ok(count));
        for unit in bytes.chunks(UNIT_BYTES) {
            assert!(unit.iter().all(|byte| *byte == unit[0]), "a torn unit");
            self.got.borrow_mut().push(unit[0]);
        }
        if self.consumer.take(count).unwrap() {
            self.world
                .from
                .wake(self.consumer.peer_waits(), &self.knocked);
        }
        count / UNIT_BYTES
    }

    /// Receives until `units` came in all, sleeping for bytes.
    pub fn receive(&self, units: usize, at_once: usize) {
        while self.got.borrow().len() < units {
            if self.try_receive(at_once) == 0 {
                self.sleep_for_bytes(|| self.consumer.looks_readable());
            }
        }
    }

    /// Up to a quarter by ring or kernel, as the shim chooses between them; how many units.
    pub fn try_receive_somehow(&self) -> usize {
        let lock = &self.world.to.endpoint.rx_own.lock;
        let taken = lock.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed);
        assert_eq!(taken, Ok(0), "one thread has no rival");
        let came = self.receive_locked();
        lock.store(0, Ordering::Release);
        came
    }

    fn receive_locked(&self) -> usize {
        let consumer = &self.consumer;
        let state = consumer.producer_state();
        if state == tx_state::KERNEL || state == tx_state::WITHDRAWN || consumer.has_stopped() {
            return self.receive_by_kernel(QUARTER);
        }
        if !consumer.was_entered() {
            return self.receive_by_kernel(QUARTER);
        }
        let left = consumer.switch_at() as usize - self.by_kernel.get();
        if left != 0 {
            return self.receive_by_kernel(left.min(QUARTER));
        }
        let count = self.try_receive(QUARTER);
        consumer.stop_if_drained();
        match count {
            0 if state == tx_state::BACK => self.receive_by_kernel(QUARTER),
            count => count,
        }
    }

    fn receive_by_kernel(&self, units: usize) -> usize {
        let mut kernel = self.world.kernel.lock().unwrap();
        let count = units.min(kernel.len());
        self.by_kernel.set(self.by_kernel.get() + count);
        self.got.borrow_mut().extend(kernel.drain(..count));
        count
    }

    /// As blocking receives: until `units` came in all, by ring or kernel.
    pub fn receive_somehow(&self, units: usize) {
        while self.got.borrow().len() < units {
            if self.try_receive_somehow() != 0 {
                continue;
            }
            self.sleep_for_bytes(|| {
                let shown = self.consumer.producer_state();
                matches!(shown, tx_state::RING | tx_state::BACK) && self.consumer.looks_readable()
                    || !self.world.kernel.lock().unwrap().is_empty()
            });
        }
    }

    fn sleep_for_bytes(&self, ready: impl Fn() -> bool) {
        let side = &self.world.to;
        side.sleep(&side.endpoint.wait.rx_doors, ready);
    }

    /// Asks for the kernel path, goes on with what is there, and tells whoever sleeps over there.
    pub fn drain(&self) {
        self.consumer.drain();
        self.consumer.stop_if_drained();
        self.tell();
    }

    /// Asks for the kernel path, and tells whoever sleeps over there.
    pub fn stop(&self) {
        self.consumer.stop();
        self.tell();
    }

    fn tell(&self) {
        let wait = &self.world.from.endpoint.wait;
        let doors = wait.rx_doors.load(Ordering::Relaxed) | wait.tx_doors.load(Ordering::Relaxed);
        self.world.from.wake(doors, &self.knocked);
    }

    /// All `sent` units came, once each, in order.
    pub fn assert_got(&self, sent: usize) {
        let got = self.got.borrow();
        let expected: Vec<u8> = (0..sent).map(name).collect();
        assert_eq!(*got, expected, "units lost, doubled or swapped");
    }
}
