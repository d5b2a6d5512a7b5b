//! The calls that make, copy, close and configure descriptors. They keep the
//! table of descriptors true; what they do to the socket itself is the kernel's.

use crate::state::{self, Conn, PROGRAMS_END, STACKS_END, kind, slot};
use crate::sys::{self, give, set_errno, sys};
use crate::thread::Shield;
use crate::transfer::{self, Unaware};
use crate::{
    broker, claim, config, datagram, epoll, faults, fork, hidden, hooks_options, hooks_stack,
    hooks_vsock, identity, libcs, real, select, stack, stay, thread, upgrade, wait,
};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use fordway_abi::reason::Reason;
use fordway_sockets::{End, Half, down, ends};

/// Descriptors that are searched for another one of the same connection.
const SEARCH_FDS: i32 = 1 << 16;

/// Descriptors that are looked at when a program starts; no more than poll takes of a process with few of them.
const INHERITED_FDS: usize = 256;

/// What the table says of a listening stream socket.
const LISTEN: u32 = 5 << 24;
/// The same of AF_VSOCK.
const LISTEN_VSOCK: u32 = LISTEN | 1;
/// The same of SOCK_SEQPACKET.
const LISTEN_RECORDS: u32 = LISTEN | 2;

/// What the table is to say of one.
fn listener_word(fd: c_int) -> u32 {
    match hooks_vsock::kind_of(fd) {
        Some(libc::SOCK_SEQPACKET) => LISTEN_RECORDS,
        Some(_) => LISTEN_VSOCK,
        None => LISTEN,
    }
}

fn set_kind(fd: c_int, word: u32) {
    if let Some(slot) = slot(fd) {
        slot.store(word, Ordering::Release);
    }
}

/// A stream socket has come under `fd`.
fn adopt(fd: c_int, nonblock: bool) {
    forget(fd);
    let _ = state::add_conn(fd, nonblock);
}

/// Whether a socket that has just accepted is a listener for TCP. Such a one may have come
/// without its listen(): over an exec, which may also lie between bind and listen, from a service
/// manager, or in a message.
fn is_listener(fd: c_int) -> bool {
    match state::look(fd) {
        LISTEN | LISTEN_VSOCK | LISTEN_RECORDS => true,
        kind::UNKNOWN => {
            let is_tcp = is_tcp(fd);
            let word = if is_tcp {
                listener_word(fd)
            } else {
                kind::OTHER
            };
            // The number may be another file's by now, which is looked at elsewhere.
            if let Some(slot) = slot(fd).filter(|_| may_change(fd)) {
                let order = Ordering::AcqRel;
                let _ = slot.compare_exchange(kind::UNKNOWN, word, order, Ordering::Relaxed);
            }
            is_tcp
        }
        _ => false,
    }
}

fn is_tcp(fd: c_int) -> bool {
    sys::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == libc::IPPROTO_TCP
}

/// The descriptor is closed, or about to be, or overwritten.
fn forget(fd: c_int) {
    let Some(word) = slot(fd) else { return };
    let was = word.load(Ordering::Acquire);
    match was & kind::MASK {
        kind::CONN => {
            let conn = state::conn_at(was & !kind::MASK);
            word.store(kind::UNKNOWN, Ordering::Release);
            drop_reference(conn, fd);
        }
        kind::EPOLL => {
            word.store(kind::UNKNOWN, Ordering::Release);
            let other = (0..SEARCH_FDS).find(|other| state::look(*other) == was);
            epoll::closed(was & !kind::MASK, other);
        }
        kind::DATAGRAMS => {
            word.store(kind::UNKNOWN, Ordering::Release);
            datagram::dropped(was);
        }
        _ => word.store(kind::UNKNOWN, Ordering::Release),
    }
}

/// What waits in a close, or in what overwrites a descriptor, before any of its steps that belong together.
fn flush(fd: c_int) {
    if let Some(conn) = state::conn(fd) {
        upgrade::flush_before_closing(conn, down::deadline(sys::now_ns()));
    }
}

/// libc is about to close the descriptor without calling [`close`].
pub fn closed_by_libc(fd: c_int) {
    if may_change(fd) {
        forget(fd);
    }
}

fn drop_reference(conn: &Conn, fd: c_int) {
    if conn.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
        // Waiters look at the channel through their items: these go first. And before the
        // connection is left to its sleepers, the last of which gives the entry back.
        epoll::fd_closed(conn, fd, true);
        if stay::keep(conn, fd) {
            return;
        }
        upgrade::closing(conn);
        fork::let_go(&conn.held);
        let _mail = broker::hold_mail();
        state::free_conn(conn);
        return;
    }
    if conn.fd.load(Ordering::Relaxed) == fd {
        let is_another =
            |other: &c_int| state::conn(*other).is_some_and(|its| core::ptr::eq(its, conn));
        let other = (0..SEARCH_FDS).find(is_another);
        conn.fd.store(other.unwrap_or(-1), Ordering::Release);
        // Whoever uses the number now does so under a lock of a half; it is closed next.
        let end = conn.end();
        if end.has_channel() {
            drop((end.lock(Half::Sending), end.lock(Half::Receiving)));
        }
    }
    epoll::fd_closed(conn, fd, false);
}

/// A vfork child copies descriptors for the image that it will become, and nothing
/// else can be noted of it: the connection goes to the kernel path.
fn copied_for_exec(old: c_int) {
    if datagram::of(old).is_some() && identity::in_borrowed_memory() {
        datagram::bar(old, Reason::Exec);
    }
    if let Some(conn) = state::conn(old).filter(|_| config::is_active())
        && identity::in_borrowed_memory()
        && upgrade::is_under(conn, old)
    {
        down::bar(&conn.end(), Reason::Exec);
        down::downgrade(&conn.at(old), Reason::Exec, true);
    }
}

/// `new` is now another descriptor of what `old` is. Of one of libc's streams, the rest is [`settle`]'s.
fn duplicated(old: c_int, new: c_int) {
    if old == new {
        return;
    }
    select::note_descriptor(new);
    let word = state::look(old);
    match word & kind::MASK {
        kind::CONN => {
            let conn = state::conn_at(word & !kind::MASK);
            conn.refs.fetch_add(1, Ordering::AcqRel);
            set_kind(new, word);
            if (0..=libc::STDERR_FILENO).contains(&new) {
                // libc's streams read and write it past the library.
                down::bar(&conn.end(), Reason::Stdio);
                down::leave_and_stop(&conn.at(new), Reason::Stdio);
            }
        }
        kind::EPOLL => set_kind(new, word),
        LISTEN => set_kind(new, word),
        kind::DATAGRAMS => {
            set_kind(new, word);
            datagram::duplicated(word, new);
        }
        _ if word & kind::OF_STACK != 0 => set_kind(new, word),
        _ => set_kind(new, kind::UNKNOWN),
    }
}

/// What waits behind [`duplicated`].
fn settle(new: c_int) {
    if let Some(conn) = state::conn(new).filter(|_| new <= libc::STDERR_FILENO) {
        down::settle(&conn.at(new), Some(down::deadline(sys::now_ns())));
    }
}

/// Whether what the table says of `fd` may be changed: not by a vfork child, whose table
/// is its parent's.
fn may_change(fd: c_int) -> bool {
    config::is_active() && (state::look(fd) == kind::UNKNOWN || !identity::in_borrowed_memory())
}

/// As socket(2).
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if let Some(made) = hooks_stack::socket(domain, kind, protocol) {
        return of_stack(made);
    }
    let in_disguise = hooks_vsock::socket(domain, kind, protocol);
    let fd = in_disguise.unwrap_or_else(|| real::socket(domain, kind, protocol));
    let stream =
        kind & 0xf == libc::SOCK_STREAM && (domain == libc::AF_INET || domain == libc::AF_INET6);
    let is_tcp = stream && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    if fd >= 0 && config::is_active() && (is_tcp || in_disguise.is_some()) {
        adopt(fd, kind & libc::SOCK_NONBLOCK != 0);
        if in_disguise.is_some() && kind & 0xf == libc::SOCK_SEQPACKET {
            return of_records(fd);
        }
    }
    let is_udp = kind & 0xf == libc::SOCK_DGRAM && matches!(protocol, 0 | libc::IPPROTO_UDP);
    if fd >= 0 && is_udp && matches!(domain, libc::AF_INET | libc::AF_INET6) && may_change(fd) {
        forget(fd);
        datagram::opened(fd, domain, kind & libc::SOCK_NONBLOCK != 0);
    }
    fd
}

/// A socket has come from the stack.
fn of_stack(made: sys::Result<(c_int, u32)>) -> c_int {
    if let Ok((fd, word)) = made
        && may_change(fd)
    {
        stack_socket(fd, word);
    }
    give(made.map(|(fd, _)| fd as usize)) as c_int
}

/// A socket of the program's own stack is under `fd` from now on.
pub fn stack_socket(fd: c_int, word: u32) {
    forget(fd);
    if word & (stack::UDP | stack::LISTENS) != 0 || !adopt_unix(fd, word) {
        set_kind(fd, word);
    }
}

/// The same of one that gets no rings, for the kernel tells epoll instances of it.
pub fn stack_socket_by_kernel(fd: c_int, word: u32) {
    forget(fd);
    set_kind(fd, word);
}

/// One of a pair of AF_UNIX sockets between a program and its stack has come under `fd`, that nobody else has. False: it
/// has found no place in the table.
fn adopt_unix(fd: c_int, of_stack: u32) -> bool {
    let Some(conn) = state::add_conn(fd, stack::is_nonblocking(fd)) else {
        return false;
    };
    let is_programs = of_stack & kind::OF_STACK != 0;
    let end = if is_programs {
        PROGRAMS_END
    } else {
        STACKS_END
    };
    conn.unix.store(end, Ordering::Relaxed);
    if let Some(word) = slot(fd) {
        word.fetch_or(of_stack & (kind::OF_STACK | stack::ALL), Ordering::Release);
    }
    true
}

/// A stack has bound its end of a pair, which is as new as the pair.
pub fn served(fd: c_int) {
    if may_change(fd) {
        forget(fd);
        adopt_unix(fd, 0);
    }
}

/// As listen(2).
pub fn listen(fd: c_int, backlog: c_int) -> c_int {
    if let Some(word) = stack::of(fd) {
        let result = hooks_stack::listen(fd, backlog);
        if result == 0
            && may_change(fd)
            && let Some(conn) = state::conn(fd)
        {
            epoll::let_go(conn);
            stack_socket(fd, kind::STACK | word & stack::ALL | stack::LISTENS);
        }
        return result;
    }
    broker::attach();
    if let Err(error) = hooks_vsock::before_listen(fd) {
        return give(Err(error)) as c_int;
    }
    let result = real::listen(fd, backlog);
    if result == 0
        && may_change(fd)
        && let Some(conn) = state::conn(fd)
    {
        epoll::let_go(conn);
        let word = listener_word(fd);
        forget(fd);
        set_kind(fd, word);
    }
    result
}

/// # Safety
/// As accept(2).
pub unsafe fn accept(fd: c_int, name: *mut c_void, length: *mut u32) -> c_int {
    broker::attach();
    // SAFETY: the program's own arguments, or room for a name.
    accept_by(fd, name, length, 0, |name, length| unsafe {
        real::accept(fd, name, length)
    })
}

/// # Safety
/// As accept4(2).
pub unsafe fn accept4(fd: c_int, name: *mut c_void, length: *mut u32, flags: c_int) -> c_int {
    broker::attach();
    // SAFETY: as in `accept`.
    accept_by(fd, name, length, flags, |name, length| unsafe {
        real::accept4(fd, name, length, flags)
    })
}

/// Accepts by `by_kernel`, which takes room for a name.
fn accept_by(
    listener: c_int,
    name: *mut c_void,
    length: *mut u32,
    flags: c_int,
    by_kernel: impl FnOnce(*mut c_void, *mut u32) -> c_int,
) -> c_int {
    if let Some(word) = stack::of(listener) {
        return of_stack(hooks_stack::accept(listener, word, (name, length), flags));
    }
    let is_of_vsock = match state::look(listener) {
        LISTEN_VSOCK | LISTEN_RECORDS => true,
        kind::UNKNOWN => hooks_vsock::is_one(listener),
        _ => false,
    };
    let new = match is_of_vsock && !name.is_null() {
        true => hooks_vsock::accept(name, length, by_kernel),
        false => by_kernel(name, length),
    };
    accepted(listener, new, flags)
}

/// What goes over a new socket are records. Without a place in the table they would be a stream to the program: it
/// gets none.
fn of_records(fd: c_int) -> c_int {
    if state::mark_records(fd) {
        return fd;
    }
    real::close(fd);
    give(Err(libc::ENFILE)) as c_int
}

fn accepted(listener: c_int, fd: c_int, flags: c_int) -> c_int {
    if fd >= 0 && config::is_active() {
        if is_listener(listener) {
            adopt(fd, flags & libc::SOCK_NONBLOCK != 0);
            if state::look(listener) == LISTEN_RECORDS {
                return of_records(fd);
            }
        } else {
            forget(fd);
        }
    }
    fd
}

/// As shutdown(2).
pub fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some(word) = stack::of(fd)
        && let Err(error) = hooks_stack::before_shutdown(fd, word, how)
    {
        return give(Err(error)) as c_int;
    }
    let conn = state::conn(fd)
        .filter(|_| config::is_active() && (libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how));
    let (sends, receives) = (how != libc::SHUT_RD, how != libc::SHUT_WR);
    // Without a channel, none is to be used before the kernel's FIN has gone: it would have
    // to announce it.
    let without_channel = conn.and_then(|conn| {
        transfer::by_libc(Unaware::reader, conn, || {
            ends::before_shutdown(&conn.at(fd), false, receives);
            real::shutdown(fd, how) as isize
        })
    });
    let with_channel = || {
        let is_free = conn.is_none_or(|conn| ends::before_shutdown(&conn.at(fd), sends, receives));
        match (is_free, how) {
            (true, _) => real::shutdown(fd, how),
            (false, libc::SHUT_RDWR) => real::shutdown(fd, libc::SHUT_RD),
            (false, _) => 0,
        }
    };
    let result = without_channel.map_or_else(with_channel, |result| give(result) as c_int);
    let errno = sys::errno();
    // Also of an unconnected one, of which it says that it is not connected (linux: inet_shutdown).
    datagram::shut(fd, how);
    wait::acted();
    set_errno(errno);
    result
}

/// As close(2).
pub fn close(fd: c_int) -> c_int {
    let kind = state::look(fd) & kind::MASK;
    if kind == kind::HIDDEN {
        return give(Err(libc::EBADF)) as c_int;
    }
    if kind == kind::CONN {
        // Not once the connection is forgotten: who is cancelled here leaves it open.
        thread::cancellation_point();
    }
    let result = match kind != kind::UNKNOWN && may_change(fd) {
        true => close_known(fd),
        false => real::close(fd),
    };
    if result == 0 {
        select::note_descriptor(fd);
    }
    if kind == kind::CONN {
        wait::acted();
    }
    result
}

/// Closes what the table knows. No handler comes in between, and jumps: it would leave a descriptor without its entry.
fn close_known(fd: c_int) -> c_int {
    flush(fd);
    let shield = Shield::new();
    forget(fd);
    // A thread that is cancelled in libc's close drops no shield.
    thread::enter();
    let (result, shield) = thread::guarded(shield, never_closed, core::ptr::null_mut(), || {
        let result = real::close(fd);
        (result, sys::errno())
    });
    thread::leave();
    let (result, errno) = result;
    drop(shield);
    set_errno(errno);
    result
}

extern "C" fn never_closed(_: *mut c_void) {
    thread::leave();
}

/// As close_range(2).
pub fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    let cloexec = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
    if !config::is_active() || first > last || cloexec {
        // Hidden descriptors are close-on-exec anyway.
        return real::close_range(first, last, flags);
    }
    // What the kernel refuses closes nothing. No descriptor has this number.
    let refused = real::close_range(u32::MAX, u32::MAX, flags);
    if refused != 0 {
        return refused;
    }
    let end = last.min(state::FD_COUNT as u32 - 1);
    let borrowed = identity::in_borrowed_memory();
    // As in `close_known`.
    let number = |conn: &Conn| conn.fd.load(Ordering::Relaxed) as u32;
    let goes = |conn: &&Conn| !borrowed && (first..=end).contains(&number(conn));
    // Their peers share the time of one, and one that does not read keeps nothing from the others for which the kernel has room.
    let deadline_ns = down::deadline(sys::now_ns());
    state::conns()
        .filter(goes)
        .for_each(upgrade::flush_now_before_closing);
    state::conns()
        .filter(goes)
        .for_each(|conn| upgrade::flush_before_closing(conn, deadline_ns));
    let _shield = Shield::new();
    // Runs of descriptors between hidden ones are closed each with one call.
    let mut from = first;
    for fd in first..=end {
        let word = state::look(fd as c_int);
        if word & kind::MASK == kind::HIDDEN {
            if fd > from {
                real::close_range(from, fd - 1, flags);
            }
            from = fd + 1;
        } else if word != kind::UNKNOWN && !borrowed {
            forget(fd as c_int);
        }
    }
    if from > last {
        return 0;
    }
    let result = real::close_range(from, last, flags);
    wait::acted();
    result
}

/// As closefrom(3).
pub fn closefrom(first: c_int) {
    let first = first.max(0);
    if close_range(first as u32, u32::MAX, 0) == 0 {
        return;
    }
    // A kernel before 5.9, or a container's filter that does not know the call: each by itself.
    for fd in first..hidden::number_end() {
        close(fd);
    }
}

/// As dup(2).
pub fn dup(fd: c_int) -> c_int {
    copy(fd, || real::dup(fd))
}

/// libc makes a copy of `old`, by a number that is free.
fn copy(old: c_int, by_libc: impl FnOnce() -> c_int) -> c_int {
    let is_known = may_change(old);
    // As in `close_known`.
    let shield = is_known.then(Shield::new);
    let new = by_libc();
    let change = is_known && new >= 0 && may_change(new);
    if change {
        forget(new);
        duplicated(old, new);
    }
    drop(shield);
    copied_for_exec(old);
    if change {
        settle(new);
    }
    new
}

/// As dup2(2).
pub fn dup2(old: c_int, new: c_int) -> c_int {
    replace(old, new, 0, || real::dup2(old, new))
}

/// As dup3(2).
pub fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    replace(old, new, flags, || real::dup3(old, new, flags))
}

/// Whether the kernel makes `new` another descriptor of `old` (linux: ksys_dup3). Only what is open can be copied, to a
/// number below the limit; else `new` stays as it is.
fn can_replace(old: c_int, new: c_int, flags: c_int) -> bool {
    flags & !libc::O_CLOEXEC == 0
        && sys!(SYS_fcntl, old, libc::F_GETFD).is_ok()
        && hidden::is_below_limit(new)
}

fn replace(old: c_int, new: c_int, flags: c_int, by_libc: impl FnOnce() -> c_int) -> c_int {
    if state::look(new) & kind::MASK == kind::HIDDEN {
        return give(Err(libc::EBADF)) as c_int;
    }
    let change = old != new && may_change(old) && may_change(new);
    let overwrites = || change && can_replace(old, new, flags);
    // As in `close_known`.
    if overwrites() {
        flush(new);
    }
    let shield = change.then(Shield::new);
    if overwrites() {
        forget(new);
    }
    let result = by_libc();
    if result >= 0 && change {
        duplicated(old, new);
        wait::acted();
    }
    drop(shield);
    copied_for_exec(old);
    if result >= 0 && change {
        settle(new);
    }
    result
}

/// # Safety
/// As fcntl(2): a third argument that the command does not take is never looked at.
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the program's own arguments.
    let by_libc = || unsafe { real::fcntl(fd, command, argument) };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return copy(fd, by_libc);
    }
    let result = by_libc();
    // What changes nothing need not be asked whose the table is.
    if result < 0 || command != libc::F_SETFL || !may_change(fd) {
        return result;
    }
    if let Some(conn) = state::conn(fd) {
        let nonblock = argument as c_int & libc::O_NONBLOCK != 0;
        conn.nonblock.store(u32::from(nonblock), Ordering::Relaxed);
        if argument as c_int & libc::O_ASYNC != 0 {
            hooks_options::signalled(conn, fd);
        }
    } else if datagram::of(fd).is_some() {
        datagram::set_nonblocking(fd, argument as c_int & libc::O_NONBLOCK != 0);
        if argument as c_int & libc::O_ASYNC != 0 {
            datagram::bar(fd, Reason::Unsupported);
        }
    }
    result
}

/// Moves stream sockets that are about to be passed to another process to the
/// kernel path: the receiver may be a program without the shim.
///
/// # Safety
/// `message` is a message as sendmsg takes it.
pub unsafe fn before_passing(message: *const libc::msghdr) {
    if state::conn_high() == 0 && !datagram::is_used() {
        return;
    }
    faults::arm();
    if !faults::can_read(message) {
        return;
    }
    let leave = |fd| {
        datagram::bar(fd, Reason::Passed);
        if let Some(conn) = state::conn(fd) {
            down::bar(&conn.end(), Reason::Passed);
            down::leave_and_stop(&conn.at(fd), Reason::Passed);
        }
    };
    // SAFETY: by contract.
    unsafe { each_passed(message, leave) };
    let deadline_ns = down::deadline(sys::now_ns());
    let complete = |fd| {
        if let Some(conn) = state::conn(fd) {
            down::settle(&conn.at(fd), Some(deadline_ns));
        }
        epoll::let_go_of(fd, Reason::Passed);
    };
    // SAFETY: by contract.
    unsafe { each_passed(message, complete) };
}

/// Connections that came from another process stay on the kernel path here, for who else has
/// them cannot be told.
///
/// # Safety
/// `message` was received by the kernel just now.
pub unsafe fn after_passing(message: *const libc::msghdr) {
    // SAFETY: by contract.
    if libcs::count(unsafe { (*message).msg_controllen }) == 0 {
        return;
    }
    let visit = |fd| {
        if config::has_stack() && may_change(fd) {
            // What it is, is looked at when it is used.
            forget(fd);
        }
        take_foreign(fd, Reason::Passed);
    };
    // SAFETY: by contract.
    unsafe { each_passed(message, visit) };
}

/// A socket has come from who may have it still: it stays on the kernel path.
fn take_foreign(fd: c_int, reason: Reason) {
    if !may_change(fd) || !is_tcp(fd) {
        return;
    }
    let are_records = hooks_vsock::kind_of(fd) == Some(libc::SOCK_SEQPACKET)
        && sys::int_option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == 0;
    if are_records || claim::of(fd).is_some() && reason == Reason::Passed {
        forget(fd);
        if let Some(conn) = state::add_conn(fd, false) {
            down::bar(&conn.end(), reason);
        }
        if are_records {
            state::mark_records(fd);
        }
    }
}

/// Sockets of records that the program was started with: what they carry is not to be taken for a stream. One that
/// has a number beyond [`INHERITED_FDS`] is not found.
pub fn take_inherited() {
    let mut entries = [libc::pollfd {
        fd: 0,
        events: 0,
        revents: 0,
    }; INHERITED_FDS];
    for (fd, entry) in entries.iter_mut().enumerate() {
        entry.fd = fd as c_int;
    }
    if sys!(SYS_poll, entries.as_mut_ptr(), entries.len(), 0).is_ok() {
        let open = |entry: &&libc::pollfd| entry.revents & libc::POLLNVAL == 0;
        for entry in entries.iter().filter(open) {
            take_foreign(entry.fd, Reason::Exec);
        }
    }
}

/// Visits the descriptors that a message passes.
///
/// # Safety
/// As [`before_passing`] or [`after_passing`]; the message can be read.
unsafe fn each_passed(message: *const libc::msghdr, mut visit: impl FnMut(c_int)) {
    // SAFETY: by contract.
    let (mut at, mut left) = unsafe {
        (
            (*message).msg_control.cast::<u8>(),
            libcs::count((*message).msg_controllen),
        )
    };
    const HEADER: usize = size_of::<libc::cmsghdr>();
    if !faults::is_user_range(at, left) || !faults::is_readable(at, left) {
        return;
    }
    while !at.is_null() && left >= HEADER {
        // SAFETY: `left` bytes of the program's control data are there.
        let header = unsafe { at.cast::<libc::cmsghdr>().read_unaligned() };
        let length = libcs::count(header.cmsg_len);
        if length < HEADER || length > left {
            return;
        }
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            for index in 0..(length - HEADER) / 4 {
                // SAFETY: inside this header's data.
                let fd = unsafe { at.add(HEADER + index * 4).cast::<c_int>().read_unaligned() };
                visit(fd);
            }
        }
        let step = length.next_multiple_of(8);
        if step >= left {
            return;
        }
        left -= step;
        at = at.wrapping_add(step);
    }
}

/// # Safety
/// As connect(2).
pub unsafe fn connect(fd: c_int, name: *const c_void, length: u32) -> c_int {
    if let Some(word) = stack::of(fd) {
        return hooks_stack::connect(fd, word, name, length);
    }
    if state::conn(fd).is_some() {
        broker::attach();
    }
    let before = sys::errno();
    // SAFETY: the program's own arguments.
    let mut result = unsafe { real::connect(fd, name, length) };
    if result != 0 {
        let errno = sys::errno();
        match hooks_vsock::destination(fd, name, length) {
            None => set_errno(errno),
            Some(Err(error)) => set_errno(error),
            Some(Ok(address)) => {
                set_errno(before);
                let (name, length) = (&raw const address, size_of_val(&address));
                // SAFETY: a name of ours.
                result = unsafe { real::connect(fd, name.cast(), length as u32) };
            }
        }
    }
    if let Some(socket) = datagram::of(fd).filter(|_| result == 0) {
        datagram::connected(socket, fd);
    }
    if let Some(conn) = state::conn(fd).filter(|_| config::is_active()) {
        let errno = sys::errno();
        wait::acted();
        // SAFETY: the kernel has just read the family of this name, if it took it.
        if result == 0 && i32::from(unsafe { *name.cast::<u16>() }) == libc::AF_UNSPEC {
            upgrade::dissolved(conn);
        } else if result == 0 {
            upgrade::sight(conn, fd);
        }
        broker::check_mail();
        set_errno(errno);
    }
    result
}
