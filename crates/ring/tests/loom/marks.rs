//! Models of the marks by which a waiter finds the idle channels in which something came.

use crate::world::{BELL, World, explore};
use fordway_abi::atomic::AtomicU64;
use fordway_abi::shm::{MarkBits, MarkPage, SLOT_COUNT};
use fordway_ring::marks::Marks;
use loom::sync::atomic::fence;
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A waiter, its peer, and channels 0 and 1 of their link.
struct Link {
    world: Arc<World>,
    marker: Box<MarkPage>,
    waiter: Box<MarkPage>,
    /// Stands for the tails of the two channels.
    published: [AtomicU64; 2],
    knocked: AtomicU32,
}

// SAFETY: loom's atomics; the pages are only used through them.
unsafe impl Send for Link {}
// SAFETY: as above.
unsafe impl Sync for Link {}

impl Link {
    fn new(world: &Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            marker: mark_page(),
            waiter: mark_page(),
            published: Default::default(),
            knocked: AtomicU32::new(0),
        })
    }

    /// What a producer does for a channel that the waiter does not look at.
    fn publish(&self, slot: usize, value: u64) {
        self.published[slot].store(value, Ordering::Release);
        fence(Ordering::SeqCst);
        // SAFETY: the pages live as long as the link.
        unsafe { Marks::new(&*self.marker, &*self.waiter) }.mark(slot as u32);
        self.world.to.wake(1 << BELL, &self.knocked);
    }

    /// Waits until both channels hold what is awaited, looking at marked ones only.
    fn await_both(&self, awaited: [u64; 2]) {
        // SAFETY: as above.
        let marks = unsafe { Marks::new(&*self.waiter, &*self.marker) };
        let side = &self.world.to;
        let mut found = [0; 2];
        while found != awaited {
            side.sleep(&side.endpoint.wait.rx_doors, || {
                let mut any = false;
                marks.sweep(|slot| {
                    let slot = slot as usize;
                    found[slot] = self.published[slot].load(Ordering::Acquire);
                    any = true;
                });
                any
            });
        }
    }
}

/// A page with the words that channels 0 and 1 need.
fn mark_page() -> Box<MarkPage> {
    let mut page = Box::<MarkPage>::new_zeroed();
    let bits = page.as_mut_ptr();
    // SAFETY: the models use no other word of the page.
    unsafe {
        for bits in [&raw mut (*bits).marks, &raw mut (*bits).seen] {
            let bits: *mut MarkBits = bits;
            for summary in 0..SLOT_COUNT / 64 / 64 {
                (&raw mut (*bits).summary[summary]).write(Default::default());
            }
            (&raw mut (*bits).words[0]).write(Default::default());
        }
        page.assume_init()
    }
}

/// A mark is found, by the sweep before the sleep or by that after it.
///
/// Fails if `changed` has no fence, or the marker none between its bytes and its mark.
#[test]
fn one_marker() {
    explore(|world| {
        let link = Link::new(world);
        let marker = link.clone();
        let producer = thread::spawn(move || {
            marker.publish(0, 1);
            marker.publish(0, 2);
        });
        link.await_both([2, 0]);
        producer.join().unwrap();
    });
}

/// Threads of one process mark at once, in one word.
///
/// Fails if `differ` has no fence behind its write.
#[test]
fn two_markers() {
    explore(|world| {
        let link = Link::new(world);
        let producers = [0, 1].map(|slot| {
            let marker = link.clone();
            thread::spawn(move || marker.publish(slot, 1))
        });
        link.await_both([1, 1]);
        for producer in producers {
            producer.join().unwrap();
        }
    });
}

/// A marker that was held up does not undo what another has marked since.
///
/// Fails if a marker does not look again after its write, or marks the summary first.
#[test]
fn late_marker() {
    explore(|world| {
        let link = Link::new(world);
        let late = link.clone();
        let late = thread::spawn(move || late.publish(0, 1));
        let marker = link.clone();
        let producer = thread::spawn(move || {
            marker.publish(1, 1);
            marker.publish(1, 2);
        });
        link.await_both([1, 2]);
        late.join().unwrap();
        producer.join().unwrap();
    });
}
