//! Sockets of AF_INET and AF_INET6 under a stack of the program's own (apps/stackd; `FORDWAY_STACK`): what the calls on them come to.
//!
//! Such a descriptor is one end of a pair of AF_UNIX sockets (`fordway_abi::stack`). The kernel does what it can do on a pair: bytes of a
//! stream, waiting, time-outs, poll and epoll, dup, fork, exec, descriptors in messages. The rest is asked of the stack
//! ([`crate::stack::talk`]):
//! ```text
//!   socket               a pair's end from the stack
//!   connect              begun by the stack; the pair can be written to once it is over, which is waited for here
//!   accept               a message of the pair, with the connection's end
//!   bind, listen, names, options, SO_ERROR                 asked
//!   read, write, ...     of a stream: by the pair, or by the rings over it, and at the end the error that the stack has kept
//!                        of UDP: a message with a head (`Head`) before the datagram
//! ```
//! # What the table of descriptors says
//! That it is such a socket, its family and kind, whether it listens, and whether it was connected once, so that bytes need
//! no question. All this is a memory of what the stack knows: a descriptor that came over an exec or in a message is asked for
//! by its other end's name when it is used first. So processes without a stack pay one comparison in each call.
//!
//! # Against tcp(7) and udp(7)
//! docs/stack-sockets.md has the differences.

use crate::stack::datagram::{Place, receive_datagram, send_datagram, source_of};
use crate::stack::stream::{receive_stream, send_stream};
use crate::stack::{
    CONNECTED, IN6_BYTES_MIN, LISTENS, ROOMY, SIX, UDP, again, asked, copy_timeouts, give_name,
    is_nonblocking, names, read_name, request, set_bits, take_error, talk, wait_connected, word_of,
};
use crate::state::{self as table, kind};
use crate::sys::{self, give, sys};
use crate::transfer::Buffers;
use crate::{config, epoll, faults, hooks_fd, hooks_io, real};
use core::ffi::{c_int, c_void};
use fordway_abi::stack::{
    Accepted, DATAGRAM, GOT_BYTES_MAX, HEAD_BYTES, Handling, INET, INET6, Id, Operation, Request,
    SET_BYTES_MAX, STREAM, Served, level, name, option, state,
};
use fordway_sockets::ends;
use libc::sockaddr_in;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// linux/sockios.h.
const SIOCOUTQNSD: u64 = 0x894b;
const SIOCATMARK: u64 = 0x8905;
/// A descriptor of the stack's, which is close-on-exec, as the program wants it.
fn settle(fd: c_int, flags: c_int) {
    if flags & libc::SOCK_CLOEXEC == 0 {
        let _ = sys!(SYS_fcntl, fd, libc::F_SETFD, 0);
    }
    if flags & libc::SOCK_NONBLOCK != 0 {
        let _ = sys!(
            SYS_fcntl,
            fd,
            libc::F_SETFL,
            libc::O_RDWR | libc::O_NONBLOCK
        );
    }
}

/// A socket of the stack's, and what the table is to say of it; `None`: the kernel has this kind.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Option<sys::Result<(c_int, u32)>> {
    if !config::has_stack() || !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return None;
    }
    let of_stack = match (kind & 0xf, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => STREAM,
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => DATAGRAM,
        _ => return None,
    };
    if kind & !(0xf | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
        return Some(Err(libc::EINVAL));
    }
    let mut request = Request::new(Operation::Open, Id::default(), 0);
    (request.first, request.second) = (domain, of_stack as i32);
    let opened = asked(&request).and_then(|(answer, fd)| {
        let fd = fd.ok_or(libc::EMFILE)?;
        settle(fd, kind);
        Ok((fd, word_of(&answer)))
    });
    Some(opened)
}

/// As bind(2).
pub fn bind(fd: c_int, word: u32, at: *const c_void, length: u32) -> c_int {
    let bound = || {
        let needed = if word & SIX != 0 {
            IN6_BYTES_MIN
        } else {
            size_of::<sockaddr_in>()
        };
        if (length as usize) < needed {
            return Err(libc::EINVAL);
        }
        let mut name = read_name(word, at, length)?;
        let own = if word & SIX != 0 { INET6 } else { INET };
        match name.family {
            // Any address may go without a family (linux: __inet_bind).
            0 if own == INET => name.family = INET,
            family if family == own => {}
            _ => return Err(libc::EAFNOSUPPORT),
        }
        let mut request = request(fd, Operation::Bind)?;
        request.name = name;
        asked(&request).map(|_| 0)
    };
    give(bound()) as c_int
}

/// As listen(2).
pub fn listen(fd: c_int, backlog: c_int) -> c_int {
    let listened = || {
        let mut request = request(fd, Operation::Listen)?;
        request.first = backlog;
        let (answer, _) = asked(&request)?;
        again::keep(fd, &answer, backlog);
        set_bits(fd, LISTENS, true);
        Ok(0)
    };
    give(listened()) as c_int
}

/// As accept4(2); what the table is to say of the new descriptor.
pub fn accept(
    fd: c_int,
    word: u32,
    (target, length): (*mut c_void, *mut u32),
    flags: c_int,
) -> sys::Result<(c_int, u32)> {
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
        return Err(libc::EINVAL);
    }
    if word & UDP != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if word & LISTENS == 0 {
        match names(fd) {
            Ok(answer) if answer.state == state::LISTENING => {}
            // Perhaps one of a stack that has ended.
            Err(libc::ESTALE) => {}
            Ok(_) => return Err(libc::EINVAL),
            Err(error) => return Err(error),
        }
    }
    set_bits(fd, LISTENS, true);
    let mut accepted = Accepted::new_zeroed();
    let receive = |message, flags| {
        // SAFETY: a message of ours.
        let count = unsafe { real::recvmsg(fd, message, flags) };
        usize::try_from(count).map_err(|_| sys::errno())
    };
    let new = loop {
        let at = accepted.as_mut_bytes().as_mut_ptr();
        let received = talk::receive_with_fd(receive, at, size_of::<Accepted>());
        let (count, new) = match received {
            // The plug was in the pair when it ended.
            Err(libc::ECONNRESET) => (0, None),
            received => received?,
        };
        match (count == size_of::<Accepted>(), new) {
            (true, Some(new)) => break new,
            // It had no place in the table of descriptors.
            (true, None) => return Err(libc::EMFILE),
            // The stack has ended, and there is another one.
            _ if again::make_again(fd)? => {}
            // The program has shut it.
            _ => return Err(libc::EINVAL),
        }
    };
    settle(new, flags);
    copy_timeouts(fd, new);
    if !target.is_null()
        && let Err(error) = give_name(target, length, &accepted.remote)
    {
        let _ = sys!(SYS_close, new);
        return Err(error);
    }
    Ok((new, kind::STACK | CONNECTED | ROOMY | word & SIX))
}

/// As connect(2).
pub fn connect(fd: c_int, word: u32, at: *const c_void, length: u32) -> c_int {
    let connected = || {
        let name = read_name(word, at, length)?;
        let own = if word & SIX != 0 { INET6 } else { INET };
        if name.family != 0 && name.family != own && word & UDP == 0 {
            return Err(libc::EAFNOSUPPORT);
        }
        let mut is_anew = false;
        loop {
            let mut request = request(fd, Operation::Connect)?;
            request.name = name;
            let (answer, _) = talk::ask(&request)?;
            match answer.error {
                0 if name.family == 0 => {
                    set_bits(fd, CONNECTED, false);
                    return Ok(0);
                }
                0 => {
                    set_bits(fd, CONNECTED, true);
                    return Ok(0);
                }
                error @ (libc::EINPROGRESS | libc::EALREADY) => {
                    if is_nonblocking(fd) {
                        return Err(error);
                    }
                    wait_connected(fd, error)?;
                }
                // A former connection is over, and was told of: a socket may be connected once more.
                libc::ECONNABORTED if answer.state == state::OVER && !is_anew => {
                    is_anew = true;
                    renew(fd)?;
                }
                error => return Err(error),
            }
        }
    };
    give(connected()) as c_int
}

/// Puts a new socket of the stack's under a descriptor whose connection is over.
fn renew(fd: c_int) -> sys::Result<()> {
    let (answer, of) = (names(fd)?, talk::id(fd));
    let mut request = request(fd, Operation::Open)?;
    request.first = i32::from(answer.family);
    request.second = i32::from(answer.kind);
    let (opened, new) = asked(&request)?;
    let new = new.ok_or(libc::EMFILE)?;
    // The former pair goes, with its rings; epoll instances have the descriptor by the kernel from now on.
    if let Some(conn) = table::conn(fd) {
        epoll::let_go(conn);
    }
    hooks_fd::stack_socket_by_kernel(fd, word_of(&answer));
    let replaced = again::replace(fd, of, new);
    let _ = sys!(SYS_close, new);
    hooks_fd::stack_socket_by_kernel(fd, word_of(&opened));
    replaced
}

/// As getsockname(2), or getpeername(2) if it `is_far`.
pub fn name_asked(fd: c_int, target: *mut c_void, length: *mut u32, is_far: bool) -> c_int {
    let answer = match names(fd) {
        Ok(answer) => answer,
        Err(error) => {
            return give(Err(if error == libc::ESTALE {
                libc::ENOTCONN
            } else {
                error
            })) as c_int;
        }
    };
    let name = if is_far {
        &answer.remote
    } else {
        &answer.local
    };
    if is_far && (answer.state != state::CONNECTED || name.family == 0) {
        return give(Err(libc::ENOTCONN)) as c_int;
    }
    give(give_name(target, length, name).map(|()| 0)) as c_int
}

/// Before shutdown(2) of the pair: whether Linux would do it.
pub fn before_shutdown(fd: c_int, word: u32, how: c_int) -> sys::Result<()> {
    if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
        return Err(libc::EINVAL);
    }
    if word & (CONNECTED | LISTENS) == 0 {
        match names(fd).map(|answer| answer.state) {
            Ok(state::CONNECTED) => set_bits(fd, CONNECTED, true),
            Ok(state::CONNECTING | state::LISTENING) => {}
            _ => return Err(libc::ENOTCONN),
        }
    }
    Ok(())
}

/// A stack says which connection it serves by its end of a pair. False: it is no such end.
#[cold]
pub fn serve(fd: c_int, value: *const c_void, length: u32) -> bool {
    let at = value.cast::<[u8; size_of::<Served>()]>();
    let conn = table::conn(fd).filter(|conn| conn.is_served());
    let Some(conn) =
        conn.filter(|_| length as usize == size_of::<Served>() && faults::can_read(at))
    else {
        return false;
    };
    // SAFETY: found readable; bytes.
    let bytes = unsafe { at.read_unaligned() };
    Served::read_from_bytes(&bytes).is_ok_and(|served| {
        conn.serve(&served);
        true
    })
}

/// Whether the pair itself has an option.
pub fn is_of_pair(at_level: c_int, number: c_int) -> bool {
    option(at_level, number).is_some_and(|row| row.handling == Handling::Pair)
}

/// As setsockopt(2), of what is not the pair's.
///
/// # Safety
/// As setsockopt(2).
pub unsafe fn setsockopt(
    fd: c_int,
    (at_level, number): (c_int, c_int),
    value: *const c_void,
    length: u32,
) -> c_int {
    let row = option(at_level, number);
    let set = || {
        if row.is_none() {
            return Err(libc::ENOPROTOOPT);
        }
        let count = match i32::try_from(length) {
            Ok(length) => (length as usize).min(SET_BYTES_MAX),
            Err(_) => return Err(libc::EINVAL),
        };
        faults::check(faults::can_read_all(value.cast::<u8>(), count))?;
        let mut request = request(fd, Operation::SetOption)?;
        (request.first, request.second) = (at_level, number);
        request.length = count as u32;
        // SAFETY: found readable, and no more than there is room for.
        unsafe { core::ptr::copy_nonoverlapping(value.cast(), request.value.as_mut_ptr(), count) };
        asked(&request).map(|_| 0)
    };
    give(set()) as c_int
}

/// As getsockopt(2).
///
/// # Safety
/// As getsockopt(2).
pub unsafe fn getsockopt(
    fd: c_int,
    word: u32,
    (at_level, number): (c_int, c_int),
    value: *mut c_void,
    length: *mut u32,
) -> c_int {
    let row = option(at_level, number);
    if row.is_some_and(|row| row.handling == Handling::Pair) {
        // SAFETY: the program's own arguments.
        return unsafe { real::getsockopt(fd, at_level, number, value, length) };
    }
    if (at_level, number) == (level::SOCKET, name::ERROR) {
        // That of the pair says less, and is told once, too.
        let _ = sys::int_option(fd, libc::SOL_SOCKET, libc::SO_ERROR);
        let error = match (take_error(fd, word), table::conn(fd)) {
            (0, Some(conn)) if conn.is_paired() => ends::socket_error(&conn.end()),
            (error, _) => error,
        };
        let error = error.to_ne_bytes();
        return give(give_option(value, length, &error).map(|()| 0)) as c_int;
    }
    let got = || {
        if row.is_none() {
            return Err(libc::ENOPROTOOPT);
        }
        let mut request = request(fd, Operation::GetOption)?;
        (request.first, request.second) = (at_level, number);
        asked(&request).map(|(answer, _)| answer)
    };
    let given = got().and_then(|answer| {
        let count = (answer.length as usize).min(GOT_BYTES_MAX);
        give_option(value, length, &answer.value[..count])
    });
    give(given.map(|()| 0)) as c_int
}

/// Writes an option's value, and how long that part of it is for which there was room (linux: sk_getsockopt).
fn give_option(target: *mut c_void, length: *mut u32, value: &[u8]) -> sys::Result<()> {
    faults::check(faults::can_read(length))?;
    // SAFETY: found readable.
    let room = unsafe { length.read_unaligned() } as usize;
    faults::give_bytes(target, length, &value[..value.len().min(room)])
}

/// As ioctl(2); `None`: it is the kernel's on the pair.
pub fn ioctl(fd: c_int, word: u32, request_number: u64, argument: usize) -> Option<c_int> {
    let count = match request_number {
        libc::FIONREAD if word & UDP != 0 => {
            let mut byte = 0u8;
            let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
            let there = sys!(SYS_recvfrom, fd, &raw mut byte, 1, flags, 0, 0).unwrap_or(0);
            Ok(there.saturating_sub(HEAD_BYTES))
        }
        libc::FIONREAD if word & LISTENS != 0 => Err(libc::EINVAL),
        SIOCATMARK | SIOCOUTQNSD if word & UDP != 0 => Err(libc::ENOTTY),
        libc::TIOCOUTQ | SIOCOUTQNSD => {
            let asked = request(fd, Operation::Unsent).and_then(|request| asked(&request));
            asked.map(|(answer, _)| {
                let at = if request_number == SIOCOUTQNSD { 4 } else { 0 };
                let bytes = answer.value[at..at + 4].try_into();
                u32::from_ne_bytes(bytes.unwrap_or([0; 4])) as usize
            })
        }
        SIOCATMARK if !table::conn(fd).is_some_and(|conn| conn.is_paired()) => {
            let mut at: c_int = 0;
            // A kernel whose AF_UNIX has no urgent bytes does not know it.
            Ok(sys!(SYS_ioctl, fd, SIOCATMARK, &raw mut at).map_or(0, |_| at as usize))
        }
        _ => return None,
    };
    let given =
        count.and_then(|count| faults::check(faults::give(argument as *mut c_int, count as c_int)));
    Some(give(given.map(|()| 0)) as c_int)
}

fn part_of(base: *const c_void, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast_mut(),
        iov_len: length,
    }
}

/// As recvfrom(2).
///
/// # Safety
/// As recvfrom(2).
pub unsafe fn recv(
    fd: c_int,
    word: u32,
    (buffer, count): (*mut c_void, usize),
    flags: c_int,
    (target, length): (*mut c_void, *mut u32),
) -> isize {
    if word & UDP != 0 {
        let buffers = Buffers::one(part_of(buffer, count), false);
        return receive_datagram(fd, word, buffers, flags, Place::Name(target, length));
    }
    let part = part_of(buffer, count);
    let received = receive_stream(fd, word, flags, |flags| {
        let buffers = || Buffers::one(part, false);
        // SAFETY: the program's own arguments.
        let by_libc = || unsafe { real::recv(fd, buffer, count, flags) };
        hooks_io::receive(table::conn(fd), fd, flags, buffers, by_libc)
    });
    match received >= 0 && !target.is_null() {
        true => give(hooks_io::no_name(length).map(|()| received as usize)),
        false => received,
    }
}

/// As sendto(2).
///
/// # Safety
/// As sendto(2).
pub unsafe fn send(
    fd: c_int,
    word: u32,
    (buffer, count): (*const c_void, usize),
    flags: c_int,
    target: (*const c_void, u32),
) -> isize {
    if word & UDP != 0 {
        let buffers = Buffers::one(part_of(buffer, count), false);
        return send_datagram(fd, word, buffers, flags, target, [0; 16]);
    }
    let part = part_of(buffer, count);
    send_stream(fd, word, flags, |flags| {
        let buffers = || Buffers::one(part, false);
        // SAFETY: the program's own arguments.
        let by_libc = || unsafe { real::send(fd, buffer, count, flags) };
        hooks_io::transmit(table::conn(fd), fd, flags, buffers, by_libc)
    })
}

/// As readv(2), with flags of recvmsg.
pub fn readv(fd: c_int, word: u32, parts: *const libc::iovec, count: c_int, flags: c_int) -> isize {
    match Buffers::new(parts, count as usize) {
        Err(error) => give(Err(error)),
        // No socket is asked (linux: do_iter_read).
        Ok(buffers) if buffers.total == 0 => 0,
        buffers if word & UDP != 0 => receive_datagram(fd, word, buffers, flags, Place::None),
        Ok(buffers) => receive_parts(fd, word, &buffers, flags),
    }
}

/// As writev(2), with flags of sendmsg.
pub fn writev(
    fd: c_int,
    word: u32,
    parts: *const libc::iovec,
    count: c_int,
    flags: c_int,
) -> isize {
    let none = (core::ptr::null(), 0);
    match Buffers::new(parts, count as usize) {
        Err(error) => give(Err(error)),
        Ok(buffers) if buffers.total == 0 => 0,
        buffers if word & UDP != 0 => send_datagram(fd, word, buffers, flags, none, [0; 16]),
        Ok(buffers) => send_parts(fd, word, &buffers, flags),
    }
}

/// As recvmsg(2).
///
/// # Safety
/// As recvmsg(2).
pub unsafe fn recvmsg(fd: c_int, word: u32, message: *mut libc::msghdr, flags: c_int) -> isize {
    if !faults::can_read(message) {
        return give(Err(libc::EFAULT));
    }
    // SAFETY: the program's own message, found readable.
    let given = unsafe { message.read_unaligned() };
    let buffers = Buffers::of_message(&given);
    if word & UDP != 0 {
        return receive_datagram(fd, word, buffers, flags, Place::Message(message));
    }
    let received = match buffers {
        Err(error) => return give(Err(error)),
        Ok(buffers) => receive_parts(fd, word, &buffers, flags),
    };
    if received >= 0 {
        // SAFETY: found readable.
        unsafe { hooks_io::no_more_than_bytes(message, flags, flags & libc::MSG_OOB) };
    }
    received
}

/// As sendmsg(2).
///
/// # Safety
/// As sendmsg(2).
pub unsafe fn sendmsg(fd: c_int, word: u32, message: *const libc::msghdr, flags: c_int) -> isize {
    if !faults::can_read(message) {
        return give(Err(libc::EFAULT));
    }
    // SAFETY: the program's own message, found readable.
    let given = unsafe { message.read_unaligned() };
    let buffers = Buffers::of_message(&given);
    if word & UDP != 0 {
        // A name of no length is none (linux: copy_msghdr_from_user); to sendto it is a bad one.
        let target = match given.msg_namelen {
            0 => (core::ptr::null(), 0),
            length => (given.msg_name.cast_const(), length),
        };
        // SAFETY: found readable.
        let own = unsafe { source_of(&given, word) };
        return send_datagram(fd, word, buffers, flags, target, own);
    }
    match buffers {
        Err(error) => give(Err(error)),
        Ok(buffers) => send_parts(fd, word, &buffers, flags),
    }
}

fn receive_parts(fd: c_int, word: u32, buffers: &Buffers, flags: c_int) -> isize {
    receive_stream(fd, word, flags, |flags| {
        hooks_io::receive_stream(fd, buffers, flags)
    })
}

fn send_parts(fd: c_int, word: u32, buffers: &Buffers, flags: c_int) -> isize {
    send_stream(fd, word, flags, |flags| {
        let (parts, count) = buffers.all();
        let message = hooks_io::message_of(parts, count as c_int);
        // SAFETY: the program's parts, in a message of ours.
        let by_libc = || unsafe { real::sendmsg(fd, &raw const message, flags) };
        hooks_io::send_stream(fd, buffers, flags, by_libc)
    })
}
