//! Rings that are worth their system calls: an event channel behind `fordway_ring`'s sleep and wake.
//!
//! ```text
//!   sleeper                                   waker
//!   announce (bit, fence)                     publish (index, fence)
//!   look again ── found: no system call       looks at the sleeper's bit ── not set: no system call
//!   wait                                      notify, once for each sleep, through the port of its number
//! ```
//!
//! A waker that was slow rings for a sleep that is over, maybe through a masked port. Nothing is lost by that: what it
//! has published was there before the sleeper looked, in the sleep that it does not know of yet.

use crate::{Error, EventChannel};
use fordway_abi::shm::{DOOR_SHARED, WaitPage};
use fordway_ring::{Sleeper, doors_to_knock_at};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The door that a side has, as a bit.
pub(crate) const DOOR: u64 = 1 << DOOR_SHARED;

/// An event channel, and the sleep in which we rang it last. One thread uses it.
#[derive(Debug)]
pub struct Doorbell {
    channel: EventChannel,
    knocked: Cell<u32>,
}

impl Doorbell {
    /// Over a connected channel.
    pub fn new(channel: EventChannel) -> Self {
        Self {
            channel,
            knocked: Cell::new(0),
        }
    }

    /// The event channel.
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Rings the peer if it sleeps at one of the `wanted` doors. What it is to see was published and fenced.
    ///
    /// # Safety
    /// `page` is mapped.
    pub(crate) unsafe fn knock(&self, page: *const WaitPage, wanted: u64) -> Result<(), Error> {
        let is_new = |_, sleep| self.knocked.replace(sleep) != sleep;
        // SAFETY: by contract.
        match unsafe { doors_to_knock_at(page, wanted & DOOR, is_new) } {
            0 => Ok(()),
            _ => self.channel.ring_in(self.knocked.get()),
        }
    }

    /// For an event loop: says that it sleeps, after it has taken a ring that came. It looks once more afterwards.
    pub(crate) fn stand_by(&self, page: &WaitPage) -> Result<(), Error> {
        self.channel.take()?;
        Sleeper::new(page, DOOR_SHARED).announce();
        Ok(())
    }

    /// Sleeps until `look` finds something; `Ok(None)` when it has not for so long, however often the peer rings.
    pub(crate) fn sleep_until<T>(
        &self,
        page: &WaitPage,
        patience: Option<Duration>,
        mut look: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let sleeper = Sleeper::new(page, DOOR_SHARED);
        let until = patience.and_then(|time| Instant::now().checked_add(time));
        loop {
            sleeper.announce();
            let found = match look() {
                Ok(None) => {
                    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                    let number = page.sleep_count[DOOR_SHARED].load(Ordering::Relaxed);
                    let rung = self.channel.wait_in(number, left);
                    rung.map(|rung| (!rung || left == Some(Duration::ZERO)).then_some(None))
                }
                found => found.map(Some),
            };
            sleeper.retract();
            if let Some(found) = found? {
                return Ok(found);
            }
        }
    }
}
