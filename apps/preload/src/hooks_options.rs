//! Options, counts and states of a socket: the kernel's, but for what only the library
//! knows of bytes in rings.

use crate::datagram::{self, Socket};
use crate::state::{self, Conn};
use crate::sys::{self, give, sys};
use crate::transfer::tcp_info;
use crate::{
    config, cork, end, faults, hooks_records, hooks_stack, hooks_vsock, real, stack, upgrade,
};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use fordway_abi::reason::Reason;
use fordway_abi::shm::tx_state;
use fordway_abi::stack::SERVED_LEVEL;
use fordway_sockets::{Half, carried, down, ends, holding, is_at_mark, ready};

/// linux/sockios.h.
const SIOCOUTQNSD: u64 = 0x894b;
const SIOCATMARK: u64 = end::SIOCATMARK as u64;
/// Largest SO_RCVLOWAT that a ring respects: the smallest ring holds twice that, so a
/// sender that waits for room always finds a reader who is told.
const LOW_BYTES_MAX: u32 = 32 * 1024;

fn stream(fd: c_int) -> Option<&'static Conn> {
    state::conn(fd).filter(|_| config::is_active())
}

/// # Safety
/// As setsockopt(2).
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: u32,
) -> c_int {
    if stack::of(fd).is_some() && !hooks_stack::is_of_pair(level, name) {
        // SAFETY: the program's own arguments.
        let result = unsafe { hooks_stack::setsockopt(fd, (level, name), value, length) };
        if result != 0 || (level, name) != (libc::SOL_SOCKET, libc::SO_OOBINLINE) {
            return result;
        }
        // The stack has it for those that a listener accepts, and the pair heeds it.
    }
    if level == SERVED_LEVEL && hooks_stack::serve(fd, value, length) {
        return 0;
    }
    if level == libc::AF_VSOCK
        && let Some(result) = hooks_vsock::set_option(fd, name, value, length)
    {
        return result;
    }
    if level == libc::SOL_SOCKET && is_of_streams(name) && state::records(fd).is_some() {
        return 0;
    }
    let corks = level == libc::IPPROTO_TCP && name == libc::TCP_CORK;
    let corked = corks.then(|| stream(fd)).flatten();
    let on = value.cast::<c_int>();
    let is_known = length as usize >= size_of::<c_int>();
    if let Some(conn) = corked.filter(|_| is_known && faults::check(faults::can_read(on)).is_ok()) {
        // SAFETY: found readable.
        let on = unsafe { on.read_unaligned() } != 0;
        if cork::set(conn, on) {
            return 0;
        }
        // SAFETY: the program's own arguments.
        let result = unsafe { real::setsockopt(fd, level, name, value, length) };
        if result == 0 {
            cork::was_set(conn, on);
        }
        return result;
    }
    let conn = stream(fd);
    if let Some(conn) = conn.filter(|_| (level, name) == (libc::IPPROTO_TCP, libc::TCP_ULP)) {
        // From here on the kernel changes the bytes: those of the ring go before.
        keep_by_kernel(conn, fd);
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::setsockopt(fd, level, name, value, length) };
    if result == 0 && !datagram::is_harmless(level, name) {
        datagram::bar(fd, Reason::Unsupported);
    } else if result == 0 {
        datagram::note_option(fd, level, name);
    }
    if result == 0
        && is_of_kernel_only(level, name)
        && let Some(conn) = conn
    {
        keep_by_kernel(conn, fd);
    }
    if result == 0
        && level == libc::SOL_SOCKET
        && let Some(conn) = conn
    {
        match name {
            libc::SO_RCVTIMEO | libc::SO_SNDTIMEO => upgrade::read_timeouts(conn, fd),
            libc::SO_OOBINLINE => {
                down::bar(&conn.end(), Reason::Oob);
                down::downgrade(&conn.at(fd), Reason::Oob, false);
            }
            libc::SO_RCVLOWAT => set_low(conn, fd),
            _ => {}
        }
    }
    result
}

/// Options with which the kernel tells of bytes, or judges them, as it has them itself: time
/// stamps and counts beside them, a place to peek at, a filter. A connection that has one is the
/// kernel's.
const OF_KERNEL_ONLY: [(c_int, c_int); 11] = [
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, SO_TIMESTAMP_NEW),
    (libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW),
    (libc::SOL_SOCKET, SO_TIMESTAMPING_NEW),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
    (libc::IPPROTO_TCP, libc::TCP_INQ),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR),
];

/// asm-generic/socket.h.
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;

/// Sizes that have nothing to say where records go in one piece: vsock(7)'s own are set at its own level.
fn is_of_streams(name: c_int) -> bool {
    matches!(name, libc::SO_SNDBUF | libc::SO_RCVBUF | libc::SO_RCVLOWAT)
}

fn is_of_kernel_only(level: c_int, name: c_int) -> bool {
    OF_KERNEL_ONLY.contains(&(level, name))
}

/// Whether such an option is set, perhaps since before the connection was accepted.
pub fn has_kernel_option(fd: c_int) -> bool {
    let asked = [
        ((libc::SOL_SOCKET, libc::SO_TIMESTAMP), 0),
        ((libc::SOL_SOCKET, libc::SO_TIMESTAMPNS), 0),
        ((libc::SOL_SOCKET, libc::SO_TIMESTAMPING), 0),
        ((libc::SOL_SOCKET, libc::SO_PEEK_OFF), -1),
        ((libc::IPPROTO_TCP, libc::TCP_INQ), 0),
    ];
    asked.into_iter().any(|((level, name), usual)| {
        sys::option(fd, level, name, usual).is_ok_and(|(value, _)| value != usual)
    })
}

fn keep_by_kernel(conn: &Conn, fd: c_int) {
    down::bar(&conn.end(), Reason::Unsupported);
    down::downgrade(&conn.at(fd), Reason::Unsupported, false);
}

/// The program wants a signal when something can be read or sent (O_ASYNC): only the kernel's
/// socket raises it.
pub fn signalled(conn: &Conn, fd: c_int) {
    keep_by_kernel(conn, fd);
}

/// SO_RCVLOWAT, as the kernel has understood it. On a ring it is respected there; a
/// connection that is just coming to one stays with the kernel, which counts its own bytes only.
fn set_low(conn: &Conn, fd: c_int) {
    let low = sys::int_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).max(1) as u32;
    conn.low_bytes.store(low, Ordering::Relaxed);
    let end = conn.at(fd);
    let on_ring = conn.is_paired()
        && conn.peer_is_there()
        && conn.consumer().producer_state() == tx_state::RING
        && ready::kernel_part_bytes(&end) == 0;
    if low > LOW_BYTES_MAX || low > 1 && !on_ring {
        down::bar(&end, Reason::Unsupported);
        down::downgrade(&end, Reason::Unsupported, false);
    }
    // What was too little may be enough now.
    conn.edges.fetch_add(1, Ordering::Relaxed);
}

/// # Safety
/// As getsockopt(2).
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut u32,
) -> c_int {
    if let Some(word) = stack::of(fd) {
        // SAFETY: the program's own arguments.
        return unsafe { hooks_stack::getsockopt(fd, word, (level, name), value, length) };
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::getsockopt(fd, level, name, value, length) };
    let is_kind = matches!(name, libc::SO_DOMAIN | libc::SO_PROTOCOL | libc::SO_TYPE);
    if result == 0 && level == libc::SOL_SOCKET && is_kind {
        // SAFETY: the kernel has just written `*length` bytes there.
        unsafe {
            if *length as usize == size_of::<c_int>() {
                let kind = value.cast::<c_int>();
                let by_kernel = kind.read_unaligned();
                kind.write_unaligned(hooks_vsock::understood(fd, name, by_kernel));
            }
        }
    }
    let wanted = matches!(
        (level, name),
        (libc::SOL_SOCKET, libc::SO_ERROR) | (libc::IPPROTO_TCP, libc::TCP_INFO | libc::TCP_CORK)
    );
    if result != 0 || !wanted {
        return result;
    }
    let Some(conn) = stream(fd) else {
        return result;
    };
    // SAFETY: the kernel has just written `*length` bytes there.
    unsafe {
        if name == libc::TCP_INFO && level == libc::IPPROTO_TCP {
            tcp_info::add(value.cast(), *length as usize, carried(&conn.at(fd)), conn);
        } else if level == libc::IPPROTO_TCP {
            if cork::is_wanted(conn) && *length != 0 {
                // The low byte comes first.
                value.cast::<u8>().write(1);
            }
        } else if !conn.is_paired() {
            // A connect that did not wait may be over.
            upgrade::sight(conn, fd);
        } else if *length as usize == size_of::<c_int>() {
            let error = value.cast::<c_int>();
            let by_kernel = error.read_unaligned();
            if by_kernel == 0 {
                error.write_unaligned(ends::socket_error(&conn.end()));
            } else if ends::is_told_again(conn, by_kernel) {
                error.write_unaligned(0);
            }
        }
    }
    result
}

/// # Safety
/// As ioctl(2): a third argument that the request does not take is never looked at.
pub unsafe fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int {
    // SAFETY: the program's own arguments.
    let by_libc = || unsafe { real::ioctl(fd, request, argument) };
    let asked = request as u64 & 0xffff_ffff;
    if let Some(word) = stack::of(fd)
        && let Some(result) = hooks_stack::ioctl(fd, word, asked, argument)
    {
        return result;
    }
    let Some(conn) = stream(fd) else {
        return match datagram::of(fd) {
            Some(socket) => on_datagrams(socket, fd, (request, argument), by_libc),
            None => hooks_vsock::local_cid(fd, request, argument).unwrap_or_else(by_libc),
        };
    };
    let request = request as u64 & 0xffff_ffff;
    match request {
        libc::FIONREAD if state::records(fd).is_some() => {
            give_count(argument, hooks_records::next_bytes(fd))
        }
        libc::FIONREAD if conn.is_paired() => {
            let unread = holding(&conn.at(fd), Half::Receiving, || unread_bytes(conn, fd));
            let count = unread.map_or_else(|| by_kernel(fd, libc::FIONREAD as usize), Ok);
            give_count(argument, count)
        }
        libc::TIOCOUTQ | SIOCOUTQNSD if conn.is_paired() => {
            let by_ring = carried(&conn.at(fd)).queued;
            let asked = by_kernel(fd, request as usize);
            give_count(argument, asked.map(|queued| by_ring + queued))
        }
        SIOCATMARK if conn.is_paired() => give_count(argument, Ok(is_at_mark(&conn.at(fd)).into())),
        _ => {
            let result = by_libc();
            if result == 0 && request == libc::FIONBIO {
                // SAFETY: FIONBIO takes a pointer to an int, which the kernel has just read.
                let on = unsafe { *(argument as *const c_int) } != 0;
                conn.nonblock.store(u32::from(on), Ordering::Relaxed);
            }
            // Whether it is set or taken away makes little difference.
            if result == 0 && request == libc::FIOASYNC {
                signalled(conn, fd);
            }
            result
        }
    }
}

/// ioctl on a UDP socket.
fn on_datagrams(
    socket: &Socket,
    fd: c_int,
    (request, argument): (usize, usize),
    by_libc: impl Fn() -> c_int,
) -> c_int {
    let request = request as u64 & 0xffff_ffff;
    if request == libc::FIONREAD {
        let of_kernel = || by_kernel(fd, libc::FIONREAD as usize);
        return give_count(argument, datagram::next_bytes(socket, of_kernel));
    }
    let result = by_libc();
    if result == 0 && request == libc::FIONBIO {
        // SAFETY: FIONBIO takes a pointer to an int, which the kernel has just read.
        let on = unsafe { *(argument as *const c_int) } != 0;
        datagram::set_nonblocking(fd, on);
    } else if result == 0 && request == libc::FIOASYNC {
        datagram::bar(fd, Reason::Unsupported);
    }
    result
}

/// As sockatmark(3).
pub fn sockatmark(fd: c_int) -> c_int {
    let mut at: c_int = 0;
    // SAFETY: a count of ours.
    match unsafe { ioctl(fd, SIOCATMARK as usize, (&raw mut at) as usize) } {
        0 => at,
        failed => failed,
    }
}

/// Bytes that a receive could have now.
fn unread_bytes(conn: &Conn, fd: c_int) -> u64 {
    let consumer = conn.consumer();
    let there = conn.peer_is_there();
    let ring = if there { consumer.fill_hint() } else { 0 };
    // What is left in the kernel counts too; once the ring is in use there is nothing.
    let in_use = there && consumer.producer_state() == tx_state::RING && consumer.head() != 0;
    let queued = if in_use {
        0
    } else {
        by_kernel(fd, libc::FIONREAD as usize).unwrap_or(0)
    };
    // The ring's bytes can be had only behind all of the kernel's.
    let entered = consumer.was_entered();
    let within_reach = !entered || ready::kernel_part_bytes(&conn.at(fd)) <= queued;
    queued + if within_reach { ring } else { 0 }
}

/// What the kernel counts of its own bytes.
fn by_kernel(fd: c_int, request: usize) -> Result<u64, c_int> {
    let mut count: c_int = 0;
    sys!(SYS_ioctl, fd, request, &raw mut count)?;
    Ok(count as u64)
}

/// These requests take a pointer to an int.
fn give_count(argument: usize, count: Result<u64, c_int>) -> c_int {
    let given = count.and_then(|count| {
        let count = count.min(c_int::MAX as u64) as c_int;
        faults::check(faults::give(argument as *mut c_int, count))
    });
    give(given.map(|()| 0)) as c_int
}
