//! The library's locks: their order, and who may take them.
//!
//! A lock is held for a few instructions, in which no signal handler of the program runs
//! ([`thread`]), and never in a sleep (but for the pages of a file that sendfile reads into a ring).
//!
//! # Order
//! A thread that waits for a lock holds none of the same rank or of a higher one. Debug builds
//! check it at each lock. A lock that is only tried ends no thread's wait, and has no order.
//! ```text
//!   rank       guards
//!   TURN       one connection: a send in several pieces, which others do not part; a record that is taken
//!   EQUIP      one epoll instance: its doorbell, while the broker registers it
//!   DOOR       the making of doorbells
//!   MAIL       what the broker has sent is acted on by one thread; entries and links go under it
//!   SENDING    one channel: the producer's half of the own endpoint
//!   RECEIVING  the consumer's half
//!   SWEEP      one link: the peer's marks
//!   LIST       which registrations a connection has, and an instance
//!   INSTANCE   one epoll instance: its items, its circle of hot ones, what the kernel has of them
//!   TABLE      the free entries of the table of connections
//!   RAISING    the limit of descriptors, while it is raised for hidden ones
//!   RECORD     one connection: a record that goes by the kernel
//! ```
//!
//! # Where no lock may be waited for
//! * The handler of a fault (SIGSEGV, SIGBUS in [`crate::faults`]) may run in a thread that holds
//!   one: [`Lock::lock`] gives `None` to the holder itself, and the caller goes on without.
//! * A handler of the program runs in no thread that holds one. It may call everything.
//! * A child of vfork runs in its parent's memory while the parent's thread waits: it takes locks
//!   as its parent does, and changes no table ([`crate::identity::in_borrowed_memory`]).
//! * A child of fork has one thread. LIST, TABLE and RAISING are held over the fork, so that what
//!   they guard is whole; the locks of threads that the child does not have are freed ([`Lock::reset`]),
//!   and what these guard is set up anew. The halves' locks lie in memory that relatives share:
//!   [`lock_shared`] frees that of a process which is gone.

use crate::sys;
use crate::thread;
use core::sync::atomic::{AtomicU32, Ordering};

/// The order of locks, lowest first. See the module.
pub mod rank {
    pub const TURN: u32 = 0;
    pub const EQUIP: u32 = 1;
    pub const DOOR: u32 = 2;
    pub const MAIL: u32 = 3;
    pub const SENDING: u32 = 4;
    pub const RECEIVING: u32 = 5;
    pub const SWEEP: u32 = 6;
    pub const LIST: u32 = 7;
    pub const INSTANCE: u32 = 8;
    pub const TABLE: u32 = 9;
    pub const RAISING: u32 = 10;
    pub const RECORD: u32 = 11;
}

/// Tries for a lock before it is asked whether its holder's process lives.
const SPINS_PATIENT: u32 = 1 << 14;

static LOCK_SALT: AtomicU32 = AtomicU32::new(0);

/// A lock of a rank. Its word is 0, or names the holder by its thread pointer, so that the handler
/// of a fault in there notices and does not wait.
#[derive(Debug)]
#[repr(transparent)]
pub struct Lock<const RANK: u32>(AtomicU32);

/// Frees its lock.
pub struct Guard<'a> {
    word: &'a AtomicU32,
    holder: Option<&'a AtomicU32>,
    rank: u32,
}

impl Drop for Guard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(holder) = self.holder {
            holder.store(0, Ordering::Relaxed);
        }
        note_freed(self.rank);
        self.word.store(0, Ordering::Release);
        thread::leave();
    }
}

/// In debug builds: the order is kept by a thread that takes a lock of `rank`, for which it has
/// waited or could have.
#[inline(always)]
fn note_taken(_rank: u32, _may_wait: bool) {
    #[cfg(debug_assertions)]
    {
        let before = thread::current()
            .ranks()
            .fetch_or(1 << _rank, Ordering::Relaxed);
        assert!(
            !_may_wait || before >> _rank == 0,
            "a lock of rank {_rank} under {before:#b}"
        );
    }
}

#[inline(always)]
fn note_freed(_rank: u32) {
    #[cfg(debug_assertions)]
    thread::current()
        .ranks()
        .fetch_and(!(1 << _rank), Ordering::Relaxed);
}

impl<const RANK: u32> Lock<RANK> {
    /// A free lock.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Waits for the lock; `None` if the caller itself holds it (it is in a fault's handler).
    #[inline]
    pub fn lock(&self) -> Option<Guard<'_>> {
        lock_word(&self.0, RANK)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        thread::enter();
        let taken = self
            .0
            .compare_exchange(0, lock_id(), Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            thread::leave();
            return None;
        }
        note_taken(RANK, false);
        Some(Guard {
            word: &self.0,
            holder: None,
            rank: RANK,
        })
    }

    /// Takes it for a fork: what it guards is whole in the child. False: see `lock`.
    pub fn hold(&self) -> bool {
        self.lock().map(core::mem::forget).is_some()
    }

    /// Gives up what `hold` has taken, in the parent and in the child.
    pub fn let_go(&self) {
        note_freed(RANK);
        self.0.store(0, Ordering::Release);
        thread::leave();
    }

    /// Frees it, whoever holds it: in a forked child, where the holder does not exist.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Names the calling thread in lock words.
#[inline(always)]
fn lock_id() -> u32 {
    ((sys::thread_pointer() >> 6) as u32 ^ LOCK_SALT.load(Ordering::Relaxed)) | 1
}

/// Must be called in a new process: its threads are not the parent's.
pub fn set_lock_salt(pid: u32) {
    LOCK_SALT.store(pid.wrapping_mul(0x9e37_79b1), Ordering::Relaxed);
}

/// As [`Lock::lock`], for a lock word that no other process has.
#[inline]
pub fn lock_word(word: &AtomicU32, rank: u32) -> Option<Guard<'_>> {
    take_lock(word, rank, |_| false)
}

/// As [`lock_word`], for the lock words of an endpoint, which relatives of a fork share: one
/// that was killed in the middle of a copy does not free its lock. `holder` is its process, 0
/// while nobody is known to hold it.
#[inline(always)]
pub fn lock_shared<'a>(word: &'a AtomicU32, holder: &'a AtomicU32, rank: u32) -> Option<Guard<'a>> {
    let own = crate::identity::pid() as u32;
    let mut guard = take_lock(word, rank, |of| is_freed(word, holder, of, own))?;
    holder.store(own, Ordering::Relaxed);
    guard.holder = Some(holder);
    Some(guard)
}

/// Frees a lock word that `of` has, for good if the holder's process is gone.
fn is_freed(word: &AtomicU32, holder: &AtomicU32, of: u32, own: u32) -> bool {
    let process = holder.load(Ordering::Relaxed);
    process != own
        && crate::identity::is_gone(process as i32)
        // One of those who found it out frees it.
        && holder.compare_exchange(process, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        && word.compare_exchange(of, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Takes a lock; `freed` is asked now and then about one that stays taken.
#[inline(always)]
fn take_lock(word: &AtomicU32, rank: u32, freed: impl Fn(u32) -> bool) -> Option<Guard<'_>> {
    let id = lock_id();
    thread::enter();
    // SYNC POINT with `Producer::withdraw`: the lock before the look at the peer's state.
    let tried = word.compare_exchange(0, id, Ordering::SeqCst, Ordering::Relaxed);
    if tried.is_err() && !wait_for(word, id, freed) {
        thread::leave();
        return None;
    }
    note_taken(rank, true);
    Some(Guard {
        word,
        holder: None,
        rank,
    })
}

/// Takes a lock that was found taken; false if the caller has it.
#[cold]
fn wait_for(word: &AtomicU32, id: u32, freed: impl Fn(u32) -> bool) -> bool {
    let mut spins = 0u32;
    loop {
        // SYNC POINT as in `take_lock`.
        match word.compare_exchange(0, id, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(holder) if holder == id => return false,
            Err(holder) => {
                spins = spins.wrapping_add(1);
                if spins.is_multiple_of(SPINS_PATIENT) && freed(holder) {
                    continue;
                }
                if spins.is_multiple_of(128) {
                    let _ = sys::sys!(SYS_sched_yield);
                } else {
                    core::hint::spin_loop();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tables;

    #[test]
    fn a_lock_is_refused_to_its_holder() {
        let lock = Lock::<{ rank::MAIL }>::new();
        let guard = lock.lock();
        assert!(guard.is_some() && lock.lock().is_none() && lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
        assert!(lock.hold() && !lock.hold());
        lock.let_go();
        assert!(lock.lock().is_some());
    }

    #[test]
    fn a_lock_of_a_process_that_is_gone_is_free() {
        let _turn = tables();
        let (word, holder) = (AtomicU32::new(0), AtomicU32::new(0));
        let own = crate::identity::pid() as u32;
        let guard = lock_shared(&word, &holder, rank::SENDING);
        assert_eq!(holder.load(Ordering::Relaxed), own);
        drop(guard);
        assert_eq!(
            (word.load(Ordering::Relaxed), holder.load(Ordering::Relaxed)),
            (0, 0)
        );
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        let gone = child.id();
        child.wait().expect("its end");
        word.store(1, Ordering::Relaxed);
        holder.store(gone, Ordering::Relaxed);
        assert!(lock_shared(&word, &holder, rank::SENDING).is_some());
    }

    #[test]
    fn a_thread_keeps_the_order() {
        let low = Lock::<{ rank::MAIL }>::new();
        let high = Lock::<{ rank::LIST }>::new();
        let (first, second) = (low.lock(), high.lock());
        // Freed in whichever order.
        drop((first, second));
        let first = high.lock();
        assert!(low.try_lock().is_some(), "nobody waits for it");
        let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| low.lock().is_some()));
        assert!(wrong.is_err());
        drop(first);
        low.reset();
        note_freed(rank::MAIL);
        thread::leave();
        assert!(low.lock().is_some());
    }
}
