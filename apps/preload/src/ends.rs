//! How a connection with a channel ends, so that it looks as if the kernel had
//! carried the bytes.
//!
//! The kernel shows FIN and RST of its own socket, and these are what wakes and
//! what decides. It cannot know one thing: whether bytes lay unread in a ring.
//! * An end that *closes* with bytes unread in the ring resets the kernel's
//!   connection ([`before_close`]), as Linux does; the rest is the kernel's.
//! * An end that was *killed* cannot do that: its kernel sends a FIN. The survivor
//!   sees an end of file that no shutdown announced, and bytes of its own that
//!   nobody took: it [`is_reset`], and the shim says so once.
//!
//! A process may be gone while its socket lives on in a child of it
//! ([`peer_process_gone`]): then the bytes that nobody took are sent again by the kernel.

use crate::state::{Conn, hint};
use crate::sys::{self, sys};
use crate::{control, upgrade};
use core::sync::atomic::Ordering;
use fordway_abi::shm::{tx_flags, tx_state};

const RDHUP: u32 = libc::POLLRDHUP as u32;
/// What the kernel shows of a connection that is over in both directions.
const OVER: u32 = (libc::POLLHUP | libc::POLLERR) as u32;

/// Whether nobody will take bytes at the far end any more. Only when the peer is there.
#[inline]
pub fn is_dead(conn: &Conn) -> bool {
    let hints = conn.hints.load(Ordering::Relaxed);
    let flags = conn.peer_flags();
    // An end of file that the far end announced, or that we made, says nothing of its reading half.
    let unannounced = flags & tx_flags::SHUT == 0 && hints & hint::RECEIVE_SHUT == 0;
    flags & tx_flags::CLOSED != 0
        || hints & OVER != 0
        || hints & RDHUP != 0 && (unannounced || hints & hint::PEER_GONE != 0)
}

/// Whether the far end died with bytes of ours unread, and the kernel does not know it.
pub fn is_reset(conn: &Conn) -> bool {
    conn.hints.load(Ordering::Relaxed) & OVER == 0
        && conn.producer().state() == tx_state::RING
        && conn.producer().unread_hint() != 0
        && is_dead(conn)
}

/// The error of the reset, once. After an announced end of file it is EPIPE (linux: tcp_reset).
fn fetch_error(conn: &Conn) -> Option<i32> {
    let told = conn.hints.fetch_or(hint::RESET_TOLD, Ordering::AcqRel) & hint::RESET_TOLD != 0;
    let announced = conn.peer_flags() & tx_flags::SHUT != 0;
    (!told).then_some(if announced {
        libc::EPIPE
    } else {
        libc::ECONNRESET
    })
}

/// What a receive says behind the last byte: the reset, once, or the end of file.
pub fn receive(conn: &Conn) -> sys::Result<()> {
    if conn.peer_flags() & tx_flags::SHUT != 0 || !is_reset(conn) {
        return Ok(());
    }
    fetch_error(conn).map_or(Ok(()), Err)
}

/// Whether the program has still to be told of the reset.
pub fn is_untold(conn: &Conn) -> bool {
    conn.hints.load(Ordering::Relaxed) & hint::RESET_TOLD == 0
}

/// A send to a far end that is dead: `by_kernel` does it if the kernel knows what to say.
pub fn send<T>(
    conn: &Conn,
    fd: i32,
    flags: i32,
    by_kernel: impl FnOnce() -> sys::Result<T>,
) -> sys::Result<T> {
    look(conn, fd);
    if !is_reset(conn) {
        return by_kernel();
    }
    if fetch_error(conn) == Some(libc::ECONNRESET) {
        return Err(libc::ECONNRESET);
    }
    if flags & libc::MSG_NOSIGNAL == 0 {
        let (pid, thread) = (sys!(SYS_getpid), sys!(SYS_gettid));
        let _ = sys!(
            SYS_tgkill,
            pid.unwrap_or(0),
            thread.unwrap_or(0),
            libc::SIGPIPE
        );
    }
    Err(libc::EPIPE)
}

/// Notes what the kernel shows of the connection's end.
fn look(conn: &Conn, fd: i32) -> u32 {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLRDHUP,
        revents: 0,
    };
    let _ = sys!(SYS_poll, &raw mut entry, 1, 0);
    let shown = entry.revents as u16 as u32 & (RDHUP | OVER);
    conn.hints.fetch_or(shown, Ordering::Relaxed);
    shown
}

/// Whether the kernel has an error for the program.
pub fn has_error(conn: &Conn, fd: i32) -> bool {
    look(conn, fd) & libc::POLLERR as u32 != 0
}

/// The broker says that the peer's process is gone. If its socket is not, another
/// process holds it, which knows nothing of the ring or has left it: what lies there goes by the kernel.
pub fn peer_process_gone(conn: &Conn) {
    let known = is_dead(conn);
    conn.hints.fetch_or(hint::PEER_GONE, Ordering::Relaxed);
    if look(conn, conn.fd.load(Ordering::Relaxed)) == 0 {
        upgrade::take_back(conn);
    } else if !known {
        conn.edges.fetch_add(1, Ordering::Relaxed);
    }
}

/// The last descriptor is about to be closed by the program, or by its exit: with
/// bytes unread, Linux resets the connection instead of ending it (RFC 2525, 2.17).
pub fn before_close(conn: &Conn, fd: i32) {
    upgrade::flush_before_end(conn, fd);
    if conn.peer_is_there()
        && conn.consumer().has_unread()
        && conn.consumer().producer_state() == tx_state::RING
    {
        let at_once = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        let _ = sys!(
            SYS_setsockopt,
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            &raw const at_once,
            size_of::<libc::linger>()
        );
    }
    conn.own()
        .tx
        .tx_flags
        .fetch_or(tx_flags::CLOSED, Ordering::Release);
}

/// What getsockopt(SO_ERROR) has to say beyond the kernel's answer.
pub fn socket_error(conn: &Conn) -> i32 {
    control::check_mail();
    if !conn.is_paired() || !conn.peer_is_there() {
        return 0;
    }
    look(conn, conn.fd.load(Ordering::Relaxed));
    if is_reset(conn) {
        fetch_error(conn).unwrap_or(0)
    } else {
        0
    }
}
