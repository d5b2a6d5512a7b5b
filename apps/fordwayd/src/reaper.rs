//! Closing descriptors that strangers passed.
//!
//! close(2) may block: for the last reference of a socket with SO_LINGER it waits
//! until the peer has taken all (and the program may have closed its own in the
//! meantime), and for a file on FUSE it waits for the file system's daemon. The same
//! holds for closing a control connection with packets that nobody has read: the kernel
//! then closes the descriptors in them. What may block is closed in a short-lived
//! thread. Their number is bounded, for each owner and in all; beyond that descriptors
//! wait, and are counted as the broker's. Nothing is ever closed on the broker's own
//! thread because there is too much of it.

use crate::shares::Whose;
use rustix::net::{RecvFlags, Shutdown};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Most closes that may hang at the same time.
const THREADS_MAX: usize = 64;
/// Most of them for one owner.
const THREADS_OF_ONE_MAX: usize = 16;
/// They do next to nothing.
const STACK_BYTES: usize = 64 * 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    running: Arc<Mutex<BTreeMap<Whose, usize>>>,
    waiting: BTreeMap<Whose, VecDeque<OwnedFd>>,
}

impl Reaper {
    /// Closes a TCP socket.
    pub(crate) fn close_socket(&mut self, whose: Whose, socket: OwnedFd) {
        match fordway_platform::sockinfo::lingers(&socket) {
            true => self.close_unknown(whose, socket),
            false => drop(socket),
        }
    }

    /// Closes a control connection. What was sent on it before can still be read.
    pub(crate) fn close_connection(&mut self, whose: Whose, socket: OwnedFd) {
        // After this nothing more can be sent to us, so what is found is all there is.
        let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(&socket, &mut [0; 1], look) {
            Ok((0, _)) | Err(_) => drop(socket),
            Ok(_) => self.close_unknown(whose, socket),
        }
    }

    /// Closes something of which nothing is known.
    pub(crate) fn close_unknown(&mut self, whose: Whose, fd: OwnedFd) {
        self.waiting.entry(whose).or_default().push_back(fd);
        self.work();
    }

    /// Descriptors that wait for a thread.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    /// Starts threads for what waits.
    pub(crate) fn work(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        for (whose, list) in &mut self.waiting {
            while let Some(fd) = list.pop_front() {
                if let Err(fd) = start(&self.running, *whose, fd) {
                    list.push_front(fd);
                    break;
                }
            }
        }
        self.waiting.retain(|_, list| !list.is_empty());
    }
}

/// Closes it in a thread of its own, or gives it back.
fn start(
    running: &Arc<Mutex<BTreeMap<Whose, usize>>>,
    whose: Whose,
    fd: OwnedFd,
) -> Result<(), OwnedFd> {
    let mut counts = running.lock().unwrap_or_else(PoisonError::into_inner);
    let own = counts.get(&whose).copied().unwrap_or(0);
    if own >= THREADS_OF_ONE_MAX || counts.values().sum::<usize>() >= THREADS_MAX {
        return Err(fd);
    }
    // Not moved into the thread, which may not come about.
    let place = Arc::new(Mutex::new(Some(fd)));
    let (taken, done) = (Arc::clone(&place), Arc::clone(running));
    let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
    let started = builder.spawn(move || {
        let fd = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(fd);
        let mut counts = done.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&whose) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&whose);
            }
        }
    });
    if started.is_err() {
        let fd = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        return fd.map_or(Ok(()), Err);
    }
    *counts.entry(whose).or_default() += 1;
    Ok(())
}
