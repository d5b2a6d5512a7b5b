//! A call that sleeps keeps its socket, whatever other threads do to the descriptor.
//!
//! The kernel's call holds the file: a close or dup2 by another thread frees the number at
//! once, but the socket lives until the call returns; the peer sees no end before. Our
//! sleeps hold no file in between. So a connection counts its sleepers ([`Stay`]), and
//! who closes its last descriptor while there are some leaves the socket to them under a
//! hidden descriptor ([`keep`]); the last one to leave closes it.

use crate::state::{Conn, kind, phase};
use crate::thread::{Guard, Shield};
use crate::{broker, fork, hidden, state, upgrade};
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

/// Bit of `Conn::sleepers`: the program has no descriptor of it any more.
const LEFT: u32 = 1 << 31;

/// A thread that may sleep on the connection, for as long as it lives: until the call's end, or until
/// a handler jumps out of the call or the thread is cancelled, wherever in the call that is.
pub struct Stay<'a> {
    conn: Option<&'a Conn>,
    /// Set while there is a connection.
    guard: MaybeUninit<Guard>,
}

impl<'a> Stay<'a> {
    /// Not yet.
    pub fn none() -> Self {
        Self {
            conn: None,
            guard: MaybeUninit::uninit(),
        }
    }

    /// Whether the call has slept, or was about to.
    pub fn has_begun(&self) -> bool {
        self.conn.is_some()
    }

    /// What the socket is to be called by, which was `fd` when the call began: that number may have
    /// been closed in a sleep, and be another socket's.
    pub fn descriptor(&self, fd: i32) -> i32 {
        match self.conn {
            Some(conn) if is_left(conn) || !is_its(conn, fd) => conn.fd.load(Ordering::Acquire),
            _ => fd,
        }
    }

    /// From now on, however often it is said.
    ///
    /// # Safety
    /// It stays where it is from now on. What else of the thread is guarded later is over before it.
    pub unsafe fn begin(&mut self, conn: &'a Conn) {
        if self.conn.is_none() {
            let _shield = Shield::new();
            enter(conn);
            self.conn = Some(conn);
            let place = core::ptr::from_ref(conn).cast_mut().cast();
            // SAFETY: by the caller's word; `end` takes it off.
            unsafe { self.guard.write(Guard::new()).push(abandon, place) };
        }
    }

    #[cold]
    fn end(&mut self, conn: &Conn) {
        let _shield = Shield::new();
        // SAFETY: set by `begin`.
        unsafe { self.guard.assume_init_mut().pop() };
        leave(conn);
    }
}

extern "C" fn abandon(conn: *mut c_void) {
    // SAFETY: of `Stay::begin`: an entry of the table, which stays.
    leave(unsafe { &*conn.cast::<Conn>() });
}

impl Drop for Stay<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(conn) = self.conn {
            self.end(conn);
        }
    }
}

/// Acts on the connection `conn` under number `fd`, unless `serial` is not its any more: until
/// `act` has come back, the entry is no other connection's.
pub fn if_still(conn: &Conn, fd: i32, serial: u32, act: impl FnOnce()) {
    let _shield = Shield::new();
    enter(conn);
    if conn.serial.load(Ordering::SeqCst) == serial && is_its(conn, fd) {
        act();
    }
    leave(conn);
}

/// Whether `fd` is a number of the connection: the program's, or a hidden one of the caller's.
#[inline(always)]
pub fn is_its(conn: &Conn, fd: i32) -> bool {
    let word = state::look(fd);
    conn.is_named_by(word) || word & kind::MASK == kind::HIDDEN
}

/// Whether a call by `fd` that has found the connection may act on it. While the last number is
/// being closed the table says nothing of that number any more, and the connection does.
#[inline(always)]
pub fn is_callable(conn: &Conn, fd: i32) -> bool {
    is_its(conn, fd) || is_closing(conn, fd)
}

#[cold]
fn is_closing(conn: &Conn, fd: i32) -> bool {
    state::look(fd) == kind::UNKNOWN
        && conn.fd.load(Ordering::Acquire) == fd
        && conn.phase.load(Ordering::Acquire) != phase::FREE
}

/// One sleeper more, without a [`Stay`].
pub fn enter(conn: &Conn) {
    conn.sleepers.fetch_add(1, Ordering::SeqCst);
}

/// One less. The last one ends what was left to it.
#[inline]
pub fn leave(conn: &Conn) {
    // Whoever still finds the number may have come in between: one of them ends it.
    if fork::one_less(&conn.sleepers) == LEFT + 1 && is_last(conn) {
        end(conn);
    }
}

/// Takes what was left, unless somebody has come or has taken it.
fn is_last(conn: &Conn) -> bool {
    let taken = conn
        .sleepers
        .compare_exchange(LEFT, 0, Ordering::SeqCst, Ordering::Relaxed);
    taken.is_ok()
}

#[cold]
fn end(conn: &Conn) {
    let _shield = Shield::new();
    upgrade::closing(conn);
    fork::let_go(&conn.held);
    let fd = conn.fd.load(Ordering::Relaxed);
    let mail = broker::hold_mail();
    state::free_conn(conn);
    drop(mail);
    hidden::close(fd);
}

/// Whether its socket was left to its sleepers.
pub fn is_left(conn: &Conn) -> bool {
    conn.sleepers.load(Ordering::SeqCst) & LEFT != 0
}

/// The last descriptor is about to go; true if sleepers keep the socket.
pub fn keep(conn: &Conn, fd: i32) -> bool {
    if conn.sleepers.load(Ordering::SeqCst) == 0 {
        return false;
    }
    let Ok(copy) = hidden::copy(fd) else {
        return false;
    };
    conn.fd.store(copy, Ordering::Relaxed);
    if conn.sleepers.fetch_or(LEFT, Ordering::SeqCst) != 0 {
        return true;
    }
    if !is_last(conn) {
        return true;
    }
    conn.fd.store(fd, Ordering::Relaxed);
    hidden::close(copy);
    false
}

/// In a forked child: nobody sleeps, and what was left, or lent, is the parent's.
pub fn after_fork(conn: &Conn) {
    conn.loans.store(0, Ordering::Relaxed);
    conn.reserved.store(0, Ordering::Relaxed);
    if conn.sleepers.swap(0, Ordering::Relaxed) & LEFT != 0 {
        hidden::close(conn.fd.load(Ordering::Relaxed));
        state::free_conn(conn);
    }
}
