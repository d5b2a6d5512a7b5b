//! Closing descriptors that strangers passed.
//!
//! close(2) may block: for the last reference of a socket with SO_LINGER it waits
//! until the peer has taken all, and for a file on FUSE it waits for the file system's
//! daemon. The same holds for closing a control connection with packets that nobody has
//! read: the kernel then closes the descriptors in them. What may block is closed in a
//! thread. Their number is bounded, for each owner and in all; beyond that descriptors
//! wait, and are counted as the broker's. A thread that is done takes one that waits,
//! so none waits for the broker's next turn. Nothing is ever closed on the broker's own
//! thread because there is too much of it.

use crate::shares::Whose;
use rustix::net::{RecvFlags, Shutdown};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most closes that may hang at the same time.
const THREADS_MAX: usize = 64;
/// Most of them for one owner.
const THREADS_OF_ONE_MAX: usize = 16;
/// They do next to nothing.
const STACK_BYTES: usize = 64 * 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    shared: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Threads at work for each owner.
    running: BTreeMap<Whose, usize>,
    waiting: BTreeMap<Whose, VecDeque<OwnedFd>>,
}

impl State {
    /// The next descriptor to close, if another thread may be at work for its owner.
    fn next(&mut self) -> Option<(Whose, OwnedFd)> {
        if self.running.values().sum::<usize>() >= THREADS_MAX {
            return None;
        }
        let running = &self.running;
        let has_room =
            |whose: &Whose| running.get(whose).copied().unwrap_or_default() < THREADS_OF_ONE_MAX;
        let (&whose, list) = self.waiting.iter_mut().find(|(whose, _)| has_room(whose))?;
        let fd = list.pop_front()?;
        if list.is_empty() {
            self.waiting.remove(&whose);
        }
        *self.running.entry(whose).or_default() += 1;
        Some((whose, fd))
    }

    fn done(&mut self, whose: Whose) {
        if let Some(count) = self.running.get_mut(&whose) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&whose);
            }
        }
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reaper {
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
        let mut state = locked(&self.shared);
        state.waiting.entry(whose).or_default().push_back(fd);
        while let Some((whose, fd)) = state.next() {
            if let Err(fd) = start(&self.shared, whose, fd) {
                // For the threads that there are, or the next call.
                state.done(whose);
                state.waiting.entry(whose).or_default().push_front(fd);
                break;
            }
        }
    }

    /// Descriptors that wait for a thread.
    pub(crate) fn waiting(&self) -> usize {
        let state = locked(&self.shared);
        state.waiting.values().map(VecDeque::len).sum()
    }
}

/// Closes it, and then others, in a thread of its own; or gives it back.
fn start(shared: &Arc<Mutex<State>>, whose: Whose, fd: OwnedFd) -> Result<(), OwnedFd> {
    // Not moved into the thread, which may not come about.
    let place = Arc::new(Mutex::new(Some((whose, fd))));
    let (first, shared) = (Arc::clone(&place), Arc::clone(shared));
    let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
    let started = builder.spawn(move || {
        let mut next = first.lock().unwrap_or_else(PoisonError::into_inner).take();
        while let Some((whose, fd)) = next {
            drop(fd);
            let mut state = locked(&shared);
            state.done(whose);
            next = state.next();
        }
    });
    let left = || place.lock().unwrap_or_else(PoisonError::into_inner).take();
    match started {
        Ok(_) => Ok(()),
        Err(_) => left().map_or(Ok(()), |(_, fd)| Err(fd)),
    }
}
