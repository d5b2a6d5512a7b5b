//! Asking the kernel what an offered socket is, without being held up by it.
//!
//! getsockname(2) and TCP_INFO take the socket's lock. A program that is in send(2) on
//! the same socket holds it while the kernel copies its bytes, and where these lie on
//! userfaultfd(2) or FUSE it decides how long that takes; who waits for the lock cannot
//! be interrupted, nor killed. A thread of its own for each question would make two
//! context switches of each offer. So the loop's thread asks itself, and lays the broker
//! down meanwhile ([`Desk::aside`]). The process's first thread, the warden, sleeps; while
//! questions are asked it looks every [`LOOK`]. Who is seen to wait for a lock has lost the
//! broker: the warden takes it, and another thread goes on with the loop. Whoever made the
//! thread hang is not asked about for a while, so that it costs the broker a small part of
//! its time at most.
//!
//! ```text
//!   loop ──(aside)──► broker on the desk ──(answer)──► loop
//!                          └──(LOOK, LOOK, ...: in an uninterruptible sleep)──► the warden
//!         takes it, starts another loop; the old thread ends when the lock is free
//! ```

use crate::shares::Whose;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After so long it is looked what the thread does. An honest program holds the lock for
/// microseconds, or for as long as its own memory comes from a disk.
const LOOK: Duration = Duration::from_millis(20);
/// So often: on a busy machine the thread may not have had its turn.
const LOOKS_MAX: u32 = 50;
/// For how long an owner is not asked about after it made us wait.
const PAUSE: Duration = Duration::from_millis(400);
/// Most threads that may hang.
const HANGING_MAX: usize = 64;
/// Owners that are remembered.
const OWNERS_MAX: usize = 1024;

/// Who may be asked about now.
#[derive(Debug, Default)]
pub(crate) struct Asker {
    not_before: BTreeMap<Whose, Instant>,
}

impl Asker {
    /// Whether a question about a socket of `whose` may be risked, with `hanging` threads
    /// that did not come back from theirs.
    pub(crate) fn may_ask(&self, whose: Whose, hanging: usize, now: Instant) -> bool {
        let paused = self.not_before.get(&whose);
        hanging < HANGING_MAX && paused.is_none_or(|time| *time <= now)
    }

    /// A thread was lost by a question about one of its sockets.
    pub(crate) fn pause(&mut self, whose: Whose, now: Instant) {
        if self.not_before.len() >= OWNERS_MAX {
            self.not_before.retain(|_, time| now < *time);
        }
        self.not_before.insert(whose, now + PAUSE);
    }
}

/// Where `T` lies while the thread that works with it is away, and where it comes back in
/// the end as `E`.
#[derive(Debug)]
pub(crate) struct Desk<T, E> {
    state: Mutex<State<T, E>>,
    /// For the warden.
    change: Condvar,
    /// Each thread of the loop has one more of these.
    threads: Arc<()>,
}

#[derive(Debug)]
struct State<T, E> {
    laid: Option<T>,
    ended: Option<E>,
    /// Who has laid it down.
    thread_id: i32,
    /// Counts the times that it was laid down or taken by the warden.
    turn: u64,
    /// Whether the warden looks.
    watched: bool,
}

impl<T: Send + 'static, E: Send + 'static> Desk<T, E> {
    pub(crate) fn new() -> Self {
        let state = State {
            laid: None,
            ended: None,
            thread_id: 0,
            turn: 0,
            watched: false,
        };
        Self {
            state: Mutex::new(state),
            change: Condvar::new(),
            threads: Arc::new(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Threads that have lost `T` and are not back yet.
    pub(crate) fn hanging(&self) -> usize {
        // One is ours, one is the thread's that has it.
        Arc::strong_count(&self.threads).saturating_sub(2)
    }

    /// Does `work`, which may hang, with `load` laid down. `None`: it took too long, and
    /// another thread has the load.
    pub(crate) fn aside<R>(&self, load: T, work: impl FnOnce() -> R) -> Option<(T, R)> {
        let thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut state = self.state();
        state.laid = Some(load);
        state.thread_id = thread_id;
        state.turn += 1;
        let turn = state.turn;
        if !std::mem::replace(&mut state.watched, true) {
            self.change.notify_one();
        }
        drop(state);
        let result = work();
        let mut state = self.state();
        if state.turn != turn {
            return None;
        }
        state.laid.take().map(|load| (load, result))
    }

    /// The warden's part: runs `serve` with `load` in a thread, again with whatever a lost
    /// thread had laid down, until one ends.
    pub(crate) fn watch(
        self: &Arc<Self>,
        load: T,
        serve: fn(&Self, T) -> Option<E>,
    ) -> std::io::Result<E> {
        self.start(load, serve)?;
        let mut looks = 0;
        let mut state = self.state();
        loop {
            if let Some(ended) = state.ended.take() {
                return Ok(ended);
            }
            if !state.watched {
                state = self.wait(state);
                continue;
            }
            let turn = state.turn;
            state = self.wait_a_look(state);
            looks = match state.turn == turn {
                false => 0,
                true if state.laid.is_none() => {
                    // No question since the last look: whoever has one wakes us.
                    state.watched = false;
                    0
                }
                true => looks + 1,
            };
            if looks != 0 && (looks >= LOOKS_MAX || waits_for_a_lock(state.thread_id)) {
                looks = 0;
                state.turn += 1;
                if let Some(load) = state.laid.take() {
                    self.start(load, serve)?;
                }
            }
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<T, E>>) -> MutexGuard<'a, State<T, E>> {
        let woken = self.change.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_a_look<'a>(&self, state: MutexGuard<'a, State<T, E>>) -> MutexGuard<'a, State<T, E>> {
        let woken = self.change.wait_timeout(state, LOOK);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }

    fn start(self: &Arc<Self>, load: T, serve: fn(&Self, T) -> Option<E>) -> std::io::Result<()> {
        let (desk, alive) = (Arc::clone(self), Arc::clone(&self.threads));
        let body = move || {
            let ended = serve(&desk, load);
            if ended.is_some() {
                desk.state().ended = ended;
                desk.change.notify_one();
            }
            drop(alive);
        };
        std::thread::Builder::new()
            .name("loop".into())
            .spawn(body)
            .map(drop)
    }
}

/// Whether a thread of ours is in an uninterruptible sleep (proc(5), state D).
fn waits_for_a_lock(thread_id: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread_id}/stat"));
    // The name may have anything in it, but for what follows it.
    stat.is_ok_and(|stat| {
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_some_and(|rest| rest.starts_with('D'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// What is passed from thread to thread: questions that hang until they are released.
    struct Load {
        hangs: Vec<Receiver<()>>,
        done: u32,
    }

    fn serve(desk: &Desk<Load, u32>, mut load: Load) -> Option<u32> {
        while let Some(hang) = load.hangs.pop() {
            (load, ()) = desk.aside(load, move || {
                let _ = hang.recv();
            })?;
            load.done += 1;
        }
        Some(load.done)
    }

    #[test]
    fn another_thread_goes_on_when_one_hangs() {
        let desk = Arc::new(Desk::new());
        let (keep, held) = channel();
        // At once, each. A busy machine may make the warden take one for lost all the same.
        let mut hangs: Vec<_> = std::iter::repeat_with(|| channel().1).take(20).collect();
        hangs.push(held);
        let load = Load { hangs, done: 0 };
        let done = desk.watch(load, serve).unwrap();
        assert!((1..=20).contains(&done), "{done}");
        // The lost thread ends by itself, and says nothing more.
        let threads_are = |count: usize| {
            while Arc::strong_count(&desk.threads) != 1 + count {
                std::thread::yield_now();
            }
        };
        threads_are(1);
        drop(keep);
        threads_are(0);
        assert!(desk.state().ended.is_none());
    }

    #[test]
    fn an_owner_that_made_us_wait_is_left_alone() {
        let mut asker = Asker::default();
        let [one, other] = [1, 2].map(|uid| Whose {
            uid,
            netns_cookie: 0,
        });
        let now = Instant::now();
        assert!(asker.may_ask(one, 0, now));
        asker.pause(one, now);
        assert!(!asker.may_ask(one, 0, now) && asker.may_ask(other, 0, now));
        assert!(asker.may_ask(one, 0, now + PAUSE));
        assert!(!asker.may_ask(other, HANGING_MAX, now));
    }
}
