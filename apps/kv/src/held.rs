//! What the buffers of all clients take: commands that are not whole, replies that wait.
//!
//! They are shared out as switches share their packet buffers among queues (dynamic thresholds):
//! a client may hold half of what the others leave. One alone can have half of all;
//! with a thousand that take what they can there is still something for the next. So nobody
//! has to be told to give back, and together they stay within [`Config::client_bytes_max`],
//! but for what one growing buffer needs beside its old place.
//!
//! [`Config::client_bytes_max`]: crate::Config::client_bytes_max

use alloc::rc::Rc;
use core::cell::Cell;

/// What a client may hold in any case: small commands work always.
const LEAST_BYTES: usize = 1024;

/// Of all clients.
#[derive(Clone)]
pub(crate) struct Held {
    all: Rc<Cell<usize>>,
    max: usize,
}

impl Held {
    pub fn new(max: usize) -> Held {
        Held {
            all: Rc::default(),
            max,
        }
    }

    /// What one client holds, counted until it is dropped.
    pub fn part(&self) -> Part {
        Part {
            held: self.clone(),
            own: 0,
        }
    }

    pub fn bytes(&self) -> usize {
        self.all.get()
    }
}

/// Of one client.
pub(crate) struct Part {
    held: Held,
    own: usize,
}

impl Part {
    /// It holds so much now.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.own {
            self.held.all.set(self.held.all.get() - self.own + bytes);
            self.own = bytes;
        }
    }

    pub fn own(&self) -> usize {
        self.own
    }

    /// What it may hold.
    #[inline]
    pub fn allowed(&self) -> usize {
        let others = self.held.all.get() - self.own;
        (self.held.max.saturating_sub(others) / 2).max(LEAST_BYTES)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.set(0);
    }
}
