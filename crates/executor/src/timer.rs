//! Timers: a binary heap of names of slots in a slab, so that a timer that is dropped early
//! leaves the heap at once (logarithmic) instead of lying there until it would have been due.
//!
//! A timer enters the heap at its first poll. It leaves the heap when it is due and gives its
//! slot back when its future has seen that, or when that future is dropped. Timers of one time
//! are woken in the order in which they were set.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

/// `Slot::at` of a timer that has been due.
const OUT: usize = usize::MAX;

#[derive(Default)]
struct Heap {
    now_us: u64,
    /// Counts timers set, for the order among equal times.
    set: u64,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Names of slots, the earliest first, each before its children at 2i + 1 and 2i + 2.
    order: Vec<u32>,
}

struct Slot {
    key: (u64, u64),
    /// Place in `order`.
    at: usize,
    waker: Waker,
}

impl Heap {
    fn insert(&mut self, deadline_us: u64, waker: Waker) -> u32 {
        self.set += 1;
        let slot = Slot {
            key: (deadline_us, self.set),
            at: self.order.len(),
            waker,
        };
        let name = match self.free.pop() {
            Some(name) => {
                self.slots[name as usize] = slot;
                name
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        self.order.push(name);
        self.rise(self.order.len() - 1);
        name
    }

    /// Takes a timer out of the order; its slot stays.
    fn take_out(&mut self, name: u32) {
        let at = core::mem::replace(&mut self.slots[name as usize].at, OUT);
        if at == OUT {
            return;
        }
        self.order.swap_remove(at);
        if let Some(&moved) = self.order.get(at) {
            self.slots[moved as usize].at = at;
            self.sink(at);
            self.rise(at);
        }
    }

    /// Takes the first timer out if it is due.
    fn take_due(&mut self) -> Option<Waker> {
        let name = *self.order.first()?;
        let slot = &self.slots[name as usize];
        if slot.key.0 > self.now_us {
            return None;
        }
        let waker = slot.waker.clone();
        self.take_out(name);
        Some(waker)
    }

    fn key(&self, at: usize) -> (u64, u64) {
        self.slots[self.order[at] as usize].key
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.order.swap(a, b);
        self.slots[self.order[a] as usize].at = a;
        self.slots[self.order[b] as usize].at = b;
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.key(at) < self.key((at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.order.len() && self.key(child) < self.key(least) {
                    least = child;
                }
            }
            if least == at {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }
}

/// The executor's time and timers; a handle for tasks.
#[derive(Clone)]
pub struct Timers {
    heap: Rc<RefCell<Heap>>,
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers {
            heap: Rc::default(),
        }
    }

    /// The time of the executor's current pass.
    pub fn now_us(&self) -> u64 {
        self.heap.borrow().now_us
    }

    /// Ready from `deadline_us` on.
    pub fn sleep_until(&self, deadline_us: u64) -> Sleep {
        Sleep {
            timers: self.clone(),
            deadline_us,
            name: None,
        }
    }

    /// Ready `duration_us` from now.
    pub fn sleep(&self, duration_us: u64) -> Sleep {
        self.sleep_until(self.now_us().saturating_add(duration_us))
    }

    /// `work`'s result, or [`Elapsed`] if it is not there at `deadline_us`.
    pub fn timeout_at<F: Future + Unpin>(&self, deadline_us: u64, work: F) -> Timeout<F> {
        Timeout {
            sleep: self.sleep_until(deadline_us),
            work,
        }
    }

    /// Number of timers that are waited for.
    pub fn waiting(&self) -> usize {
        self.heap.borrow().order.len()
    }

    /// When the first of them is due.
    pub(crate) fn first(&self) -> Option<u64> {
        let heap = self.heap.borrow();
        (!heap.order.is_empty()).then(|| heap.key(0).0)
    }

    /// Moves the time on and wakes whoever is due.
    pub(crate) fn advance(&self, now_us: u64) {
        let mut heap = self.heap.borrow_mut();
        heap.now_us = heap.now_us.max(now_us);
        while let Some(waker) = heap.take_due() {
            waker.wake();
        }
    }
}

/// See [`Timers::sleep_until`].
pub struct Sleep {
    timers: Timers,
    deadline_us: u64,
    name: Option<u32>,
}

impl Sleep {
    fn release(&mut self) {
        if let Some(name) = self.name.take() {
            let mut heap = self.timers.heap.borrow_mut();
            heap.take_out(name);
            heap.free.push(name);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.timers.now_us() >= this.deadline_us {
            this.release();
            return Poll::Ready(());
        }
        let mut heap = this.timers.heap.borrow_mut();
        match this.name {
            None => this.name = Some(heap.insert(this.deadline_us, context.waker().clone())),
            Some(name) => heap.slots[name as usize].waker.clone_from(context.waker()),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.release();
    }
}

/// The time was over first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

/// See [`Timers::timeout_at`].
pub struct Timeout<F> {
    sleep: Sleep,
    work: F,
}

impl<F: Future + Unpin> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(result) = Pin::new(&mut self.work).poll(context) {
            return Poll::Ready(Ok(result));
        }
        Pin::new(&mut self.sleep)
            .poll(context)
            .map(|()| Err(Elapsed))
    }
}
