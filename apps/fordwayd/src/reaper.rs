//! Closing descriptors that strangers passed.
//!
//! close(2) may block: for the last reference of a socket with SO_LINGER it waits
//! until the peer has taken all (and the program may have closed its own in the
//! meantime), and for a file on FUSE it waits for the file system's daemon. What may
//! block is closed in a short-lived thread. Their number is bounded; beyond that the
//! descriptors wait, and only other lingering or malformed ones wait with them.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most closes that may hang at the same time.
const THREADS_MAX: usize = 64;
/// Most descriptors that wait for a thread; more are closed on the spot.
const WAITING_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    running: Arc<AtomicUsize>,
    waiting: VecDeque<OwnedFd>,
}

impl Reaper {
    /// Closes a TCP socket.
    pub(crate) fn close_socket(&mut self, socket: OwnedFd) {
        match fordway_platform::sockinfo::lingers(&socket) {
            true => self.close_unknown(socket),
            false => drop(socket),
        }
    }

    /// Closes something of which nothing is known.
    pub(crate) fn close_unknown(&mut self, fd: OwnedFd) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(fd);
        }
        self.work();
    }

    /// Starts threads for what waits.
    pub(crate) fn work(&mut self) {
        while !self.waiting.is_empty() && self.running.load(Ordering::Acquire) < THREADS_MAX {
            let Some(fd) = self.waiting.pop_front() else {
                return;
            };
            self.running.fetch_add(1, Ordering::AcqRel);
            let running = Arc::clone(&self.running);
            let started = std::thread::Builder::new().spawn(move || {
                drop(fd);
                running.fetch_sub(1, Ordering::AcqRel);
            });
            if started.is_err() {
                // The closure, and the descriptor with it, was dropped here: closed after all.
                self.running.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}
