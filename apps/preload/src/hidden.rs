//! Descriptors of the shim's own: kept out of the program's way and out of its
//! reach. The hooks of close and dup step over them.
//!
//! What a program may have open is its own: ours lie above its soft limit, so that its open()
//! fails no sooner than without us. Where no higher limit can be had (soft and hard limit are the
//! same, and the program is not privileged; memcached makes them so), the top of the table is
//! taken, at most a [`SHARE`]th of it; of a small table nothing, and connections stay on the
//! kernel path.
//!
//! Peers decide how many there are (a peer's doors, `crate::link`): [`is_fair`] bounds what one
//! of them may have.

use crate::lock::{Lock, rank};
use crate::process::PROCESS;
use crate::state::{kind, slot};
use crate::sys::{self, sys};
use core::sync::atomic::{AtomicU32, Ordering};

/// Room above the soft limit that is asked for, in descriptors.
const ROOM: u64 = 8192;
/// Descriptors that must be there above the limit for the shim to take any.
const ENOUGH: u64 = 256;
/// Of a table that cannot be made larger, one in so many may be ours, if these are so many, and
/// not more.
const SHARE: u64 = 8;
const SHARE_MIN: u64 = 48;
const SHARE_MAX: u64 = 1024;
/// A peer may have one in so many of those that are left.
const PEER_SHARE: u32 = 8;

/// Of the process: descriptors of its own.
pub struct Hidden {
    /// How many there are, and how many there can be.
    count: AtomicU32,
    count_max: AtomicU32,
    /// How often one began or ended to be made by [`make`]: odd, while it has a number that may be the program's.
    makings: AtomicU32,
    /// The limit is raised for a moment: by one thread at a time, or it would stay raised.
    raising: Lock<{ rank::RAISING }>,
}

impl Hidden {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            count_max: AtomicU32::new(0),
            makings: AtomicU32::new(0),
            raising: Lock::new(),
        }
    }
}

/// Where descriptors of ours may lie.
struct Span {
    /// The lowest number.
    first: u64,
    /// Behind the highest number.
    end: u64,
    limit: libc::rlimit64,
}

impl Span {
    /// The limits under which the span can be had.
    fn wide(&self) -> libc::rlimit64 {
        libc::rlimit64 {
            rlim_cur: self.end,
            rlim_max: self.limit.rlim_max.max(self.end),
        }
    }

    fn note(&self) -> &Self {
        PROCESS
            .hidden
            .count_max
            .store((self.end - self.first) as u32, Ordering::Relaxed);
        self
    }
}

fn set_limit(limit: &libc::rlimit64) -> sys::Result<()> {
    sys!(
        SYS_prlimit64,
        0,
        libc::RLIMIT_NOFILE,
        core::ptr::from_ref(limit),
        0
    )?;
    Ok(())
}

fn limit() -> sys::Result<libc::rlimit64> {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit)?;
    Ok(limit)
}

/// Above all numbers that the program's descriptors are likely to have.
pub fn number_end() -> i32 {
    /// fs.nr_open, as Linux has it from the start (proc(5)).
    const OPEN_MAX: u64 = 1 << 20;
    let _guard = PROCESS.hidden.raising.lock();
    limit().map_or(OPEN_MAX, |limit| limit.rlim_cur.min(OPEN_MAX)) as i32
}

/// Whether the program may have a descriptor of this number.
pub fn is_below_limit(fd: i32) -> bool {
    // Not while another thread raises the limit.
    let _guard = PROCESS.hidden.raising.lock();
    // Where the limit cannot be asked for, the copy is likely to be made.
    limit().map_or(true, |limit| {
        u64::try_from(fd).is_ok_and(|fd| fd < limit.rlim_cur)
    })
}

/// `act` with the span, under limits that let it be had.
fn within<R>(act: impl FnOnce(&Span) -> sys::Result<R>) -> sys::Result<R> {
    let _guard = PROCESS.hidden.raising.lock().ok_or(libc::EAGAIN)?;
    let limit = limit()?;
    let soft = limit.rlim_cur;
    let end = soft.saturating_add(ROOM);
    // The whole room, for which a privileged program's hard limit moves too; else as much of it
    // as the hard limit has.
    for end in [end, end.min(limit.rlim_max)] {
        let above = Span {
            first: soft,
            end,
            limit,
        };
        if end - soft >= ENOUGH && set_limit(&above.wide()).is_ok() {
            let done = act(above.note());
            set_limit(&limit)?;
            return done;
        }
    }
    let share = (soft / SHARE).min(SHARE_MAX);
    if share < SHARE_MIN {
        return Err(libc::EMFILE);
    }
    let top = Span {
        first: soft - share,
        end: soft,
        limit,
    };
    act(top.note())
}

/// Whether descriptors can be had that are not the program's.
pub fn can_be_had() -> bool {
    within(|_| Ok(())).is_ok()
}

/// Whether a peer that has `held` of our descriptors may have another one.
pub fn is_fair(held: u32) -> bool {
    let left = PROCESS.hidden.count_max.load(Ordering::Relaxed);
    let left = left.saturating_sub(PROCESS.hidden.count.load(Ordering::Relaxed));
    held.saturating_mul(PEER_SHARE) <= left
}

/// Moves a descriptor to a high number; the given number is closed in any case.
pub fn hide(fd: i32) -> sys::Result<i32> {
    let moved = within(|span| duplicate(fd, span.first));
    let _ = sys!(SYS_close, fd);
    moved
}

/// A new hidden descriptor, by the call of the kernel that makes it. It has the lowest free number before it has a
/// high one: [`lowest`] knows of that.
pub fn make(call: impl FnOnce() -> sys::Result<usize>) -> sys::Result<i32> {
    within(|span| {
        // SYNC POINT with `lowest`.
        PROCESS.hidden.makings.fetch_add(1, Ordering::SeqCst);
        let made = call().and_then(|made| {
            let moved = duplicate(made as i32, span.first);
            let _ = sys!(SYS_close, made);
            moved
        });
        PROCESS.hidden.makings.fetch_add(1, Ordering::SeqCst);
        made
    })
}

/// To be asked before a descriptor comes to the program through the library; see [`lowest`].
pub fn makings() -> u32 {
    PROCESS.hidden.makings.load(Ordering::SeqCst)
}

/// A descriptor that has come to the program since [`makings`] was `before`, under the number that it would have if
/// none of ours had been made meanwhile. Nobody knows the one yet that it has.
pub fn lowest(fd: i32, before: u32) -> i32 {
    if before & 1 == 0 && makings() == before {
        return fd;
    }
    let _guard = PROCESS.hidden.raising.lock();
    match sys!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0) {
        Ok(other) => {
            let (lower, higher) = (fd.min(other as i32), fd.max(other as i32));
            let _ = sys!(SYS_close, higher);
            lower
        }
        Err(_) => fd,
    }
}

/// A hidden descriptor of the same file. For a moment, or for a file of which the program has
/// just let go: where no other number can be had, one of the program's will do.
pub fn copy(fd: i32) -> sys::Result<i32> {
    within(|span| duplicate(fd, span.first)).or_else(|_| duplicate(fd, 0))
}

fn duplicate(fd: i32, first: u64) -> sys::Result<i32> {
    let copy = sys!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, first)? as i32;
    let Some(word) = slot(copy) else {
        // The program could close it, unseen by our hooks.
        let _ = sys!(SYS_close, copy);
        return Err(libc::EMFILE);
    };
    word.store(kind::HIDDEN, Ordering::Release);
    PROCESS.hidden.count.fetch_add(1, Ordering::Relaxed);
    Ok(copy)
}

/// Closes a hidden descriptor.
pub fn close(fd: i32) {
    if fd < 0 {
        return;
    }
    if let Some(word) = slot(fd) {
        word.store(kind::UNKNOWN, Ordering::Release);
    }
    PROCESS.hidden.count.fetch_sub(1, Ordering::Relaxed);
    let _ = sys!(SYS_close, fd);
}

/// For the time of a fork ([`Lock::hold`]): no other thread has the limit raised, which the
/// child would keep.
pub fn raising_lock() -> &'static Lock<{ rank::RAISING }> {
    &PROCESS.hidden.raising
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tables;

    fn limits() -> (u64, u64) {
        let limit = limit().expect("the limits");
        (limit.rlim_cur, limit.rlim_max)
    }

    #[test]
    fn they_lie_outside_the_programs_range() {
        let _turn = tables();
        let (soft, hard) = limits();
        let low = libc::rlimit64 {
            rlim_cur: 1000,
            rlim_max: hard,
        };
        assert_eq!(set_limit(&low), Ok(()));
        let count = PROCESS.hidden.count.load(Ordering::Relaxed);
        let own = copy(0).expect("a hidden descriptor");
        assert!(own >= 1000);
        assert_eq!(limits(), (1000, hard), "raised for a moment only");
        assert_eq!(crate::state::look(own), kind::HIDDEN);
        assert_eq!(PROCESS.hidden.count.load(Ordering::Relaxed), count + 1);
        close(own);
        assert_eq!(crate::state::look(own), kind::UNKNOWN);
        assert_eq!(PROCESS.hidden.count.load(Ordering::Relaxed), count);
        assert_eq!(sys!(SYS_fcntl, own, libc::F_GETFD), Err(libc::EBADF));
        let before = libc::rlimit64 {
            rlim_cur: soft,
            rlim_max: hard,
        };
        assert_eq!(set_limit(&before), Ok(()));
    }

    #[test]
    fn one_that_is_made_takes_no_number_of_the_programs() {
        let _turn = tables();
        // Another test may take the number as soon as it is free.
        let is_lower = (0..100).any(|_| {
            let (mut before, mut came) = (0, -1);
            let made = make(|| {
                let made = sys!(SYS_dup, 0)?;
                before = makings();
                came = sys!(SYS_dup, 0)? as i32;
                Ok(made)
            });
            let fd = lowest(came, before);
            assert_eq!(lowest(fd, makings()), fd, "nothing was made");
            close(made.expect("a hidden descriptor"));
            assert_eq!(sys!(SYS_close, fd), Ok(0));
            fd < came
        });
        assert!(is_lower);
    }

    #[test]
    fn what_cannot_be_hidden_is_closed_and_not_counted() {
        let _turn = tables();
        let count = PROCESS.hidden.count.load(Ordering::Relaxed);
        assert_eq!(hide(-1), Err(libc::EBADF));
        close(-1);
        assert_eq!(PROCESS.hidden.count.load(Ordering::Relaxed), count);
    }

    #[test]
    fn a_peer_has_an_eighth_of_what_is_left() {
        let _turn = tables();
        let before = (
            PROCESS.hidden.count.load(Ordering::Relaxed),
            PROCESS.hidden.count_max.load(Ordering::Relaxed),
        );
        PROCESS.hidden.count.store(20, Ordering::Relaxed);
        PROCESS.hidden.count_max.store(100, Ordering::Relaxed);
        assert!(is_fair(0) && is_fair(10) && !is_fair(11));
        assert!(!is_fair(1 << 29) && !is_fair(u32::MAX));
        // More than there can be, after the limit was lowered.
        PROCESS.hidden.count.store(120, Ordering::Relaxed);
        assert!(is_fair(0) && !is_fair(1));
        PROCESS.hidden.count.store(before.0, Ordering::Relaxed);
        PROCESS.hidden.count_max.store(before.1, Ordering::Relaxed);
    }
}
