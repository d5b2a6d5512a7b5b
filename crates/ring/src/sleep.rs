//! Sleep and wake without a lost wake-up, in two halves that must agree.
//!
//! The sleeper's half: add one to `sleep_count`, set the bit in `sleeping`, fence,
//! look at the rings again, sleep, clear the bit. The waker's half: publish,
//! fence, load `sleeping`, ring. Either the waker sees the bit, or the sleeper
//! sees what was published.
//!
//! A door is knocked at once per `sleep_count` at most: between the knock and the moment
//! the sleeper runs (10 to 25 us on another CPU) a busy producer would otherwise
//! pay for a system call with every message.

use crate::{Ordering, fence};
use fordway_abi::shm::WaitPage;

/// One waiter of this process: its doorbell's index in the wait page.
#[derive(Clone, Copy, Debug)]
pub struct Sleeper<'a> {
    page: &'a WaitPage,
    door: usize,
}

impl<'a> Sleeper<'a> {
    /// `page` is this process's own page; `door` < `DOOR_COUNT`.
    pub fn new(page: &'a WaitPage, door: usize) -> Self {
        Self { page, door }
    }

    /// Publishes that this waiter is about to sleep. Afterwards the caller looks
    /// at its rings once more before it really sleeps.
    pub fn announce(&self) {
        self.page.sleep_count[self.door].fetch_add(1, Ordering::Relaxed);
        self.page
            .sleeping
            .fetch_or(1 << self.door, Ordering::SeqCst);
        // SYNC POINT with `doors_to_knock_at`: bit before the look at the rings.
        fence(Ordering::SeqCst);
    }

    /// Publishes that this waiter runs again.
    pub fn retract(&self) {
        self.page
            .sleeping
            .fetch_and(!(1 << self.door), Ordering::SeqCst);
    }
}

/// Which of the `wanted` doors of the process behind `page` must be knocked at now.
/// The caller has published and fenced. `knocked[i]` is the caller's memory of the
/// `sleep_count` at which it knocked at door i last (0: never).
///
/// # Safety
/// `page` is mapped (read-only, written by the peer).
pub unsafe fn doors_to_knock_at(
    page: *const WaitPage,
    wanted: u64,
    knocked: impl Fn(usize, u32) -> bool,
) -> u64 {
    if wanted == 0 {
        return 0;
    }
    // SYNC POINT with `Sleeper::announce`: the caller published and fenced before this load.
    // SAFETY: mapped, and read through an atomic only.
    let mut left = unsafe { (*page).sleeping.load(Ordering::SeqCst) } & wanted;
    let mut ring = 0;
    while left != 0 {
        let door = left.trailing_zeros() as usize;
        left &= left - 1;
        // SAFETY: as above; `door` < 64.
        let count = unsafe { (*page).sleep_count[door].load(Ordering::Relaxed) };
        if knocked(door, count) {
            ring |= 1 << door;
        }
    }
    ring
}
