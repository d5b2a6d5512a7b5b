//! Asking the kernel what an offered socket is, without being held up by it.
//!
//! getsockname(2) and TCP_INFO take the socket's lock. A program that is in send(2) on
//! the same socket holds it while the kernel copies its bytes, and where these lie on
//! userfaultfd(2) or FUSE it decides how long that takes; who waits for the lock cannot
//! be interrupted, nor killed. So a thread asks, and the broker waits for it until it is
//! seen to wait for a lock. Such a thread is left behind with the socket, and another one
//! takes its place; whoever made it hang is not asked about for a while, so that it costs
//! the broker a small part of its time at most.
//!
//! ```text
//!   asked ──► known
//!     └──(LOOK)──► in an uninterruptible sleep: thread given up, owner not asked about for
//!         PAUSE; the thread ends when the lock is free
//! ```

use crate::shares::Whose;
use fordway_platform::sockinfo::{self, NotTcp, TcpSocket};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
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
/// They make a few system calls.
const STACK_BYTES: usize = 64 * 1024;

type Facts = Result<TcpSocket, NotTcp>;

/// What became of a question.
#[derive(Debug)]
pub(crate) enum Answer {
    /// What the kernel says, and the socket.
    Known(OwnedFd, Facts),
    /// Nobody was asked.
    Unasked(OwnedFd),
    /// The one who was asked does not come back, and has the socket.
    Hangs,
}

#[derive(Debug)]
struct Worker {
    /// 0 until it runs.
    thread_id: Arc<AtomicI32>,
    questions: Sender<OwnedFd>,
    answers: Receiver<(OwnedFd, Facts)>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Asker {
    worker: Option<Worker>,
    /// Each thread has one more of these.
    threads: Arc<()>,
    not_before: BTreeMap<Whose, Instant>,
}

impl Asker {
    pub(crate) fn ask(&mut self, whose: Whose, socket: OwnedFd) -> Answer {
        let now = Instant::now();
        if self.not_before.get(&whose).is_some_and(|time| now < *time) {
            return Answer::Unasked(socket);
        }
        let Some(worker) = self.worker.take().or_else(|| self.start()) else {
            return Answer::Unasked(socket);
        };
        if let Err(unsent) = worker.questions.send(socket) {
            return Answer::Unasked(unsent.0);
        }
        let Some((socket, facts)) = worker.wait() else {
            if self.not_before.len() >= OWNERS_MAX {
                self.not_before.retain(|_, time| now < *time);
            }
            self.not_before.insert(whose, now + PAUSE);
            return Answer::Hangs;
        };
        self.worker = Some(worker);
        Answer::Known(socket, facts)
    }

    fn start(&self) -> Option<Worker> {
        if Arc::strong_count(&self.threads) > HANGING_MAX {
            return None;
        }
        let (questions, asked) = channel::<OwnedFd>();
        let (tell, answers) = channel();
        let alive = Arc::clone(&self.threads);
        let thread_id = Arc::new(AtomicI32::new(0));
        let own_id = Arc::clone(&thread_id);
        let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
        let started = builder.spawn(move || {
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            own_id.store(id, Ordering::Relaxed);
            for socket in asked {
                let facts = sockinfo::tcp_socket(&socket);
                // Nobody may listen any more: then the socket is closed here.
                if tell.send((socket, facts)).is_err() {
                    break;
                }
            }
            drop(alive);
        });
        started.is_ok().then_some(Worker {
            thread_id,
            questions,
            answers,
        })
    }
}

impl Worker {
    /// Its answer; `None`: it hangs.
    fn wait(&self) -> Option<(OwnedFd, Facts)> {
        for _ in 0..LOOKS_MAX {
            match self.answers.recv_timeout(LOOK) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Timeout) if !self.waits_for_a_lock() => {}
                Err(_) => return None,
            }
        }
        None
    }

    /// Whether it is in an uninterruptible sleep (proc(5), state D).
    fn waits_for_a_lock(&self) -> bool {
        let id = self.thread_id.load(Ordering::Relaxed);
        let stat = std::fs::read_to_string(format!("/proc/self/task/{id}/stat"));
        // The name may have anything in it, but for what follows it.
        stat.is_ok_and(|stat| {
            let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
            state.is_some_and(|rest| rest.starts_with('D'))
        })
    }
}
