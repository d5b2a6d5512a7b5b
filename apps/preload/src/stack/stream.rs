//! Bytes of a stream under a stack: the kernel's on the pair, but for what a pair cannot say: that it is not connected, why it has
//! ended, and which of its ends is SIGPIPE's.

use super::{
    CONNECTED, LISTENS, ROOMY, UDP, asked, is_nonblocking, names, of, request, set_bits,
    take_error, take_error_as, wait_connected,
};
use crate::state::{attention, conn};
use crate::sys::{self, give, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use fordway_abi::stack::{Operation, state};

/// What a connected socket's send buffer is: that of a pair as it is made (linux: net.core.wmem_default).
const SEND_BYTES: c_int = 212_992 / 2;

/// The first send of a socket that is connected: its send buffer was small as long as it was not. Not before: it is an edge to epoll.
#[cold]
fn make_room(fd: c_int) {
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BYTES);
    set_bits(fd, ROOMY, true);
}

/// Before bytes of a stream that the table does not know as connected. `Ok(false)`: none can come or go yet, and the call does not wait.
#[cold]
fn before_bytes(fd: c_int, sends: bool, flags: c_int) -> sys::Result<bool> {
    loop {
        let answer = match names(fd) {
            // The stack has ended: the pair says the rest.
            Err(_) => return Ok(true),
            Ok(answer) => answer,
        };
        match answer.state {
            state::CONNECTED | state::OVER => {
                set_bits(fd, CONNECTED, true);
                return Ok(true);
            }
            // A receive waits at the pair.
            state::CONNECTING if !sends => return Ok(true),
            state::CONNECTING if flags & libc::MSG_DONTWAIT != 0 || is_nonblocking(fd) => {
                return Ok(false);
            }
            state::CONNECTING => wait_connected(fd, libc::EAGAIN)?,
            _ if sends => return Err(libc::EPIPE),
            _ => return Err(libc::ENOTCONN),
        }
    }
}

/// Whether the pair's other end is closed.
pub fn is_closed(fd: c_int) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    };
    sys!(SYS_poll, &raw mut entry, 1, 0).is_ok() && entry.revents & libc::POLLHUP != 0
}

/// A receive of a stream; `by_libc` makes it with these flags.
#[inline(always)]
pub fn receive_stream(
    fd: c_int,
    word: u32,
    flags: c_int,
    by_libc: impl Fn(c_int) -> isize,
) -> isize {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return give(Err(libc::EAGAIN));
    }
    if flags & libc::MSG_OOB != 0 {
        return receive_urgent(fd, word, || by_libc(flags));
    }
    if word & CONNECTED == 0 {
        match before_bytes(fd, false, flags) {
            Ok(true) => {}
            Ok(false) => return give(Err(libc::EAGAIN)),
            Err(error) => return give(Err(error)),
        }
    }
    let received = by_libc(flags);
    if received > 0 || received < 0 && sys::errno() != libc::ECONNRESET {
        return received;
    }
    if received < 0 && is_of_rings(fd) {
        return give(Err(libc::ECONNRESET));
    }
    end_of_stream(fd, word)
}

/// The urgent byte, of which there is none where AF_UNIX has none (linux: tcp_recv_urg).
#[cold]
fn receive_urgent(fd: c_int, word: u32, receive: impl FnOnce() -> isize) -> isize {
    if word & CONNECTED == 0 && before_bytes(fd, false, 0) != Ok(true) {
        return give(Err(libc::EINVAL));
    }
    let received = receive();
    match received < 0 && sys::errno() == libc::EOPNOTSUPP {
        true => give(Err(libc::EINVAL)),
        false => received,
    }
}

/// Whether a reset is the library's own finding, of which neither the pair nor the stack knows: the far end's program, past the
/// stack, died with bytes unread in its ring, or the connection was broken off.
#[cold]
fn is_of_rings(fd: c_int) -> bool {
    conn(fd).is_some_and(|conn| {
        let is_broken = conn.attention.load(Ordering::Relaxed) & attention::BROKEN != 0;
        is_broken || conn.is_paired() && !is_closed(fd)
    })
}

/// Nothing more comes: what the program is told.
#[cold]
fn end_of_stream(fd: c_int, word: u32) -> isize {
    match is_closed(fd).then(|| take_error_as(fd, word, true)) {
        None | Some(0) => 0,
        Some(error) => give(Err(error)),
    }
}

/// A send of a stream; `by_libc` makes it with these flags.
#[inline(always)]
pub fn send_stream(fd: c_int, word: u32, flags: c_int, by_libc: impl Fn(c_int) -> isize) -> isize {
    // Of the others, none has to do with a pair.
    let kept = flags & (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    if word & CONNECTED == 0 {
        match before_bytes(fd, true, flags) {
            Ok(true) => {}
            Ok(false) => return give(Err(libc::EAGAIN)),
            Err(error) => return broken(error, flags),
        }
    }
    if word & ROOMY == 0 {
        make_room(fd);
    }
    let send = |urgent| by_libc(kept | libc::MSG_NOSIGNAL | urgent);
    let sent = match flags & libc::MSG_OOB {
        0 => send(0),
        _ => send_urgent(fd, send),
    };
    let errno = sys::errno();
    if sent >= 0 || !matches!(errno, libc::EPIPE | libc::ECONNRESET) {
        return sent;
    }
    if is_of_rings(fd) {
        return broken(errno, flags);
    }
    match is_closed(fd).then(|| take_error(fd, word)) {
        None | Some(0) => broken(libc::EPIPE, flags),
        Some(error) => broken(error, flags),
    }
}

/// The stack is to look for the byte before it takes it. Of nothing, none is urgent, nor where AF_UNIX has none: then what is sent is
/// ordinary.
#[cold]
fn send_urgent(fd: c_int, send: impl Fn(c_int) -> isize) -> isize {
    // A stack that has ended shows at the pair. One that was not asked would take the byte for an ordinary one.
    let is_told = request(fd, Operation::Urgent).and_then(|request| asked(&request));
    if let Err(error) = is_told
        && !is_closed(fd)
    {
        return give(Err(error));
    }
    let sent = send(libc::MSG_OOB);
    match sent < 0 && sys::errno() == libc::EOPNOTSUPP {
        true => send(0),
        false => sent,
    }
}

/// A send has failed; EPIPE with the signal, if the program has not said that it wants none (linux: sk_stream_error).
#[cold]
fn broken(error: c_int, flags: c_int) -> isize {
    if error == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        let (pid, thread) = (sys!(SYS_getpid), sys!(SYS_gettid));
        let (pid, thread) = (pid.unwrap_or(0), thread.unwrap_or(0));
        let _ = sys!(SYS_tgkill, pid, thread, libc::SIGPIPE);
    }
    give(Err(error))
}

/// Before the kernel moves bytes between a pair and a file by itself.
pub fn before_pipe(fd: c_int) -> sys::Result<()> {
    match of(fd) {
        None => Ok(()),
        // Heads would stand among the bytes.
        Some(word) if word & UDP != 0 => Err(libc::EINVAL),
        Some(word) if word & (CONNECTED | LISTENS) == 0 => match before_bytes(fd, true, 0) {
            Ok(true) => Ok(()),
            Ok(false) => Err(libc::EAGAIN),
            Err(error) => Err(error),
        },
        Some(_) => Ok(()),
    }
}
