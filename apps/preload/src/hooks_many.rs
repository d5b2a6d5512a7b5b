//! The calls that move several messages, or take flags of their own, in terms of those
//! of [`crate::hooks_io`]: each message goes the way that is right for it at its time.

use crate::deadline::Deadline;
use crate::hooks_io::{self, recvmsg, sendmsg};
use crate::hooks_wait::timeout_of_spec;
use crate::sys::{self, give};
use crate::{config, datagram, faults, hooks_fd, libcs, real, stack, state};
use core::ffi::c_int;

/// Offset of preadv2 and pwritev2 that makes them readv and writev (man 2 preadv2).
const NO_OFFSET: i64 = -1;
/// Messages that one sendmmsg takes (linux: __sys_sendmmsg).
pub const MESSAGES_MAX: u32 = libc::UIO_MAXIOV as u32;

/// Whether messages go one by one, by rings or by the kernel.
fn may_use_rings(fd: c_int) -> bool {
    config::is_active()
        && (state::conn(fd).is_some()
            || stack::of(fd).is_some()
            || datagram::with_rings(fd).is_some())
}

/// Whether a call with an offset is a receive or a send of a socket that may have rings, or get them.
fn goes_by_message(fd: c_int) -> bool {
    config::is_active()
        && (state::conn(fd).is_some() || stack::of(fd).is_some() || datagram::of(fd).is_some())
}

/// # Safety
/// As recvmmsg(2).
pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    // SAFETY: the program's own arguments.
    let by_libc = || unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    let by_kernel = match datagram::of(fd).filter(|_| config::is_active()) {
        // Who sleeps there would not notice what comes by a ring.
        Some(socket) => datagram::receive_unaware(socket, || by_libc() as isize),
        None => (!may_use_rings(fd)).then(|| by_libc() as isize),
    };
    if let Some(received) = by_kernel {
        let received = received as c_int;
        for index in 0..received.max(0) as usize {
            if config::is_active() {
                let entry = messages.wrapping_add(index);
                // SAFETY: the kernel has just filled in the program's own messages.
                unsafe { hooks_fd::after_passing(&raw const (*entry).msg_hdr) };
                if let Some(socket) = datagram::of(fd) {
                    // SAFETY: as above.
                    let (message, bytes) = unsafe { (&raw mut (*entry).msg_hdr, (*entry).msg_len) };
                    datagram::note_received(socket, fd, message, bytes as usize);
                }
            }
        }
        return received;
    }
    let deadline = match timeout_of_spec(timeout).map(Deadline::after) {
        Ok(deadline) => deadline,
        Err(error) => return give(Err(error)) as c_int,
    };
    let mut flags = flags;
    let mut done = 0;
    while done < count {
        let entry = messages.wrapping_add(done as usize);
        // SAFETY: the program's array, of which recvmsg looks at the header only if it can be read.
        let received =
            unsafe { recvmsg(fd, &raw mut (*entry).msg_hdr, flags & !libc::MSG_WAITFORONE) };
        if received < 0 {
            break;
        }
        // SAFETY: as above; only named.
        if !faults::give(unsafe { &raw mut (*entry).msg_len }, received as u32) {
            sys::set_errno(libc::EFAULT);
            break;
        }
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        // The time is looked at behind each message, and ends no wait (man 2 recvmmsg, BUGS).
        if deadline.has_passed() {
            break;
        }
    }
    if done == 0 && count != 0 {
        return -1;
    }
    if done != 0 && !timeout.is_null() {
        let left = deadline.left_ns(None).unwrap_or(0);
        if !faults::give(timeout, crate::deadline::timespec(left)) {
            return give(Err(libc::EFAULT)) as c_int;
        }
    }
    done as c_int
}

/// # Safety
/// As sendmmsg(2).
pub unsafe fn sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: u32, flags: c_int) -> c_int {
    if !may_use_rings(fd) {
        for index in 0..if config::is_active() {
            count.min(MESSAGES_MAX) as usize
        } else {
            0
        } {
            let entry = messages.wrapping_add(index);
            // SAFETY: the program's array, of which only what can be read is looked at.
            unsafe { hooks_fd::before_passing(&raw const (*entry).msg_hdr) };
        }
        // SAFETY: the program's own arguments.
        let sent = unsafe { real::sendmmsg(fd, messages, count, flags) };
        for index in 0..sent.max(0) as usize {
            if let Some(socket) = datagram::of(fd) {
                let entry = messages.wrapping_add(index);
                // SAFETY: the program's array, which the kernel has filled in.
                let (message, bytes) = unsafe { (&raw const (*entry).msg_hdr, (*entry).msg_len) };
                datagram::note_sent(socket, fd, message, bytes as usize);
            }
        }
        return sent;
    }
    let mut done = 0;
    while done < count.min(MESSAGES_MAX) {
        let entry = messages.wrapping_add(done as usize);
        // SAFETY: as above.
        let sent = unsafe { sendmsg(fd, &raw const (*entry).msg_hdr, flags) };
        if sent < 0 {
            break;
        }
        // SAFETY: as above; only named.
        if !faults::give(unsafe { &raw mut (*entry).msg_len }, sent as u32) {
            sys::set_errno(libc::EFAULT);
            break;
        }
        done += 1;
        // SAFETY: a message that was sent was readable.
        if unsafe { is_part(&(*entry).msg_hdr, sent as usize) } {
            break;
        }
    }
    if done == 0 && count != 0 {
        -1
    } else {
        done as c_int
    }
}

/// Whether less than the whole message was sent: the next one must not follow it.
///
/// # Safety
/// The message and its parts can be read.
unsafe fn is_part(message: &libc::msghdr, sent: usize) -> bool {
    let parts = (0..libcs::count(message.msg_iovlen)).map(|index| {
        // SAFETY: by contract.
        unsafe { (*message.msg_iov.add(index)).iov_len }
    });
    sent < parts.sum()
}

/// # Safety
/// As preadv2(2).
pub unsafe fn preadv2(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    // SAFETY: the program's own arguments.
    let by_libc = || unsafe { real::preadv2(fd, parts, count, offset, flags) };
    if offset != NO_OFFSET || !goes_by_message(fd) {
        return by_libc();
    }
    match message_flags(flags) {
        // SAFETY: the program's own arguments.
        Some(flags) => unsafe { hooks_io::receive_parts(fd, parts, count, flags, by_libc) },
        None => give(Err(libc::EOPNOTSUPP)),
    }
}

/// # Safety
/// As pwritev2(2).
pub unsafe fn pwritev2(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    // SAFETY: the program's own arguments.
    let by_libc = || unsafe { real::pwritev2(fd, parts, count, offset, flags) };
    if offset != NO_OFFSET || !goes_by_message(fd) {
        return by_libc();
    }
    match message_flags(flags) {
        // SAFETY: the program's own arguments.
        Some(flags) => unsafe { hooks_io::send_parts(fd, parts, count, flags, by_libc) },
        None => give(Err(libc::EOPNOTSUPP)),
    }
}

/// The system calls of libcs without these functions. An offset takes two arguments (linux: pos_from_hilo), the second
/// of which has nothing to say where registers have 64 bits; the flags stand behind both.
///
/// # Safety
/// As preadv2(2).
pub unsafe fn bare_preadv2(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    give(sys::sys!(SYS_preadv2, fd, parts, count, offset, 0, flags))
}

/// # Safety
/// As pwritev2(2).
pub unsafe fn bare_pwritev2(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    give(sys::sys!(SYS_pwritev2, fd, parts, count, offset, 0, flags))
}

/// What the flags of preadv2 mean for a socket; `None`: there is one that it does not know.
fn message_flags(flags: c_int) -> Option<c_int> {
    let known =
        libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND;
    if flags & !known != 0 {
        None
    } else if flags & libc::RWF_NOWAIT != 0 {
        Some(libc::MSG_DONTWAIT)
    } else {
        Some(0)
    }
}
