//! The calls that move bytes, as the program links to them. Each decides
//! whether a stream socket is meant; if not, libc's function gets the call as it is.

use crate::datagram::{self, Place, To};
use crate::state::{self, Conn, phase};
use crate::sys::{self, give, sys};
use crate::thread::{self, Shield};
use crate::transfer::{self, Buffers, Done, Unaware, short};
use crate::upgrade::Does;
use crate::{
    broker, config, faults, hooks_records, hooks_stack, libcs, real, stack, stay, upgrade,
};
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use fordway_abi::reason::Reason;
use fordway_sockets::{down, up};

/// Flags of a receive that only the kernel carries.
const RECEIVE_KERNEL: i32 = libc::MSG_OOB | libc::MSG_ERRQUEUE;
/// Flags of a send that only the kernel carries.
const SEND_KERNEL: i32 = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

/// No error: the parts have no bytes, and readv and writev then ask the socket nothing.
const NO_BYTES: i32 = 0;

/// What a descriptor moves bytes of.
pub enum Of {
    /// A stream socket; `None`: nothing of ours.
    Stream(Option<&'static Conn>),
    /// One over which records go.
    Records(&'static Conn),
    /// A UDP socket.
    Datagrams(&'static datagram::Socket),
    /// A socket of the program's own stack, and what the table says of it.
    Stack(u32),
}

impl Of {
    /// One look for a stream socket; what is seldom is found behind it.
    #[inline(always)]
    fn fd(fd: c_int) -> Self {
        match state::plain_conn(fd) {
            Some(conn) => Self::Stream(Some(conn)),
            None => Self::other(fd),
        }
    }

    #[inline(never)]
    fn other(fd: c_int) -> Self {
        if let Some(socket) = datagram::of(fd) {
            Self::Datagrams(socket)
        } else if let Some(word) = stack::of(fd) {
            Self::Stack(word)
        } else if let Some(conn) = state::records(fd) {
            Self::Records(conn)
        } else {
            Self::Stream(state::conn(fd))
        }
    }
}

/// What a call on a descriptor has to do.
enum Way {
    /// libc's function.
    Libc,
    /// libc's function, on a stream socket that has no channel yet.
    Watched(&'static Conn),
    /// The channel.
    Channel(&'static Conn),
    /// The program's policy forbids the kernel path.
    Refused(i32),
}

#[inline(always)]
fn way(found: Option<&'static Conn>, fd: c_int, does: Does) -> Way {
    let Some(conn) = found.filter(|_| config::is_active()) else {
        return Way::Libc;
    };
    thread::cancellation_point();
    broker::check_mail();
    if conn.is_paired() {
        upgrade::note_call(conn, does);
        return Way::Channel(conn);
    }
    match upgrade::count_operation(conn, fd, does) {
        Err(error) => Way::Refused(error),
        Ok(()) if conn.is_paired() => Way::Channel(conn),
        Ok(()) => Way::Watched(conn),
    }
}

/// A receive of `found`, the stream socket behind `fd`: by the channel, or by `by_libc`, with the thread counted as
/// unaware.
#[inline(always)]
pub fn receive(
    mut found: Option<&'static Conn>,
    fd: c_int,
    flags: c_int,
    buffers: impl Fn() -> sys::Result<Buffers> + Copy,
    by_libc: impl Fn() -> isize + Copy,
) -> isize {
    let does = match flags & libc::MSG_DONTWAIT {
        0 => Does::Receive,
        _ => Does::Look,
    };
    loop {
        let (conn, has_channel) = match way(found, fd, does) {
            Way::Libc => return by_libc(),
            Way::Refused(error) => return give(Err(error)),
            Way::Watched(conn) => (conn, false),
            Way::Channel(conn) => (conn, true),
        };
        if !conn.reads.load(Ordering::Relaxed) {
            up::reads(&conn.end());
        }
        if has_channel {
            if flags & RECEIVE_KERNEL != 0 {
                return by_libc();
            }
            let done = match buffers() {
                Ok(buffers) => transfer::receive(conn, fd, &buffers, flags),
                Err(error) => Err(error),
            };
            if let Some(result) = given(done) {
                return result;
            }
        }
        // Copies, so that the call by a ring need not keep its arguments in memory.
        if let Some(result) = receive_watched(conn, fd, flags, &{ buffers }, &{ by_libc }) {
            return result;
        }
        found = state::conn(fd);
    }
}

/// A receive of a connection that had no channel when it was looked at last. `None`: another thread
/// has closed the number since, and the call is made anew.
#[inline(never)]
fn receive_watched(
    conn: &Conn,
    fd: c_int,
    flags: c_int,
    buffers: &dyn Fn() -> sys::Result<Buffers>,
    by_libc: &dyn Fn() -> isize,
) -> Option<isize> {
    loop {
        if conn.is_paired() {
            if flags & RECEIVE_KERNEL != 0 {
                return Some(by_libc());
            }
            let done = buffers().and_then(|buffers| transfer::receive(conn, fd, &buffers, flags));
            if let Some(result) = given(done) {
                return Some(result);
            }
        }
        if flags & (RECEIVE_KERNEL | libc::MSG_DONTWAIT) == 0
            && let Err(error) = upgrade::spin_young(conn, fd)
        {
            return Some(give(Err(error)));
        }
        if !stay::is_callable(conn, fd) {
            return None;
        }
        // It may have left its rings in this very call.
        upgrade::sight(conn, fd);
        if flags & libc::MSG_DONTWAIT == 0
            && upgrade::is_undecided(conn)
            && let Err(error) = upgrade::await_rings(conn, fd)
        {
            return Some(give(Err(error)));
        }
        let shield = Shield::new();
        let unaware = Unaware::reader(conn);
        if conn.phase.load(Ordering::SeqCst) != phase::PAIRED {
            return Some(unaware.during(shield, by_libc));
        }
    }
}

/// What a call by the channel gives the program. `None`: the connection has no channel any more.
#[inline(always)]
fn given(done: sys::Result<Done>) -> Option<isize> {
    match done {
        Ok(Done::Bytes(count)) => Some(count as isize),
        Ok(Done::Kernel) => None,
        Err(NO_BYTES) => Some(0),
        Err(error) => Some(give(Err(error))),
    }
}

/// A send over `found`, the stream socket behind `fd`: by the channel, or by `by_libc`, with the thread counted as a
/// sender.
#[inline(always)]
pub fn transmit(
    mut found: Option<&'static Conn>,
    fd: c_int,
    flags: c_int,
    buffers: impl Fn() -> sys::Result<Buffers> + Copy,
    by_libc: impl Fn() -> isize + Copy,
) -> isize {
    loop {
        let conn = match way(found, fd, Does::Send) {
            Way::Libc => return by_libc(),
            Way::Refused(error) => return give(Err(error)),
            Way::Watched(conn) => conn,
            Way::Channel(conn) => {
                if flags & SEND_KERNEL != 0 {
                    return send_by_kernel(conn, fd, flags, &by_libc);
                }
                let done = match buffers() {
                    Ok(buffers) => transfer::send(conn, fd, &buffers, flags),
                    Err(error) => Err(error),
                };
                match given(done) {
                    Some(result) => return result,
                    None => conn,
                }
            }
        };
        if let Some(result) = transmit_watched(conn, fd, flags, &{ buffers }, &{ by_libc }) {
            return result;
        }
        found = state::conn(fd);
    }
}

/// A send of a connection that had no channel when it was looked at last. `None`: another thread
/// has closed the number since, and the call is made anew.
#[inline(never)]
fn transmit_watched(
    conn: &Conn,
    fd: c_int,
    flags: c_int,
    buffers: &dyn Fn() -> sys::Result<Buffers>,
    by_libc: &dyn Fn() -> isize,
) -> Option<isize> {
    loop {
        if conn.is_paired() {
            if flags & SEND_KERNEL != 0 {
                return Some(send_by_kernel(conn, fd, flags, by_libc));
            }
            let done = buffers().and_then(|buffers| transfer::send(conn, fd, &buffers, flags));
            if let Some(result) = given(done) {
                return Some(result);
            }
        }
        if !stay::is_callable(conn, fd) {
            return None;
        }
        let shield = Shield::new();
        if flags & libc::MSG_OOB != 0 {
            // A byte that is no part of the stream: the kernel's count is not ours any more.
            down::bar(&conn.at(fd), Reason::Oob);
        }
        let sender = Unaware::sender(conn);
        if conn.phase.load(Ordering::SeqCst) != phase::PAIRED {
            return Some(sender.during(shield, by_libc));
        }
    }
}

/// A send that only the kernel carries: behind what is in the ring.
#[cold]
fn send_by_kernel(conn: &Conn, fd: c_int, flags: c_int, by_libc: &dyn Fn() -> isize) -> isize {
    let urgent = flags & libc::MSG_OOB != 0;
    let reason = if urgent {
        Reason::Oob
    } else {
        Reason::Unsupported
    };
    match down::send_by_kernel(&conn.at(fd), reason) {
        true => by_libc(),
        false => give(Err(libc::EAGAIN)),
    }
}

/// A receive of what goes over a stream, into parts that [`Buffers::new`] was given. One that does not wait
/// may be made under a lock: no thread is cancelled in it.
pub fn receive_stream(fd: c_int, buffers: &Buffers, flags: c_int) -> isize {
    let by_libc = || {
        let (parts, count) = buffers.all();
        let mut message = message_of(parts, count as c_int);
        let message = &raw mut message;
        match flags & libc::MSG_DONTWAIT {
            // SAFETY: parts of ours.
            0 => unsafe { real::recvmsg(fd, message, flags) },
            _ => give(sys!(SYS_recvmsg, fd, message, flags)),
        }
    };
    receive(state::conn(fd), fd, flags, || Ok(*buffers), by_libc)
}

/// A send over a stream, or `by_libc`.
pub fn send_stream(
    fd: c_int,
    buffers: &Buffers,
    flags: c_int,
    by_libc: impl Fn() -> isize + Copy,
) -> isize {
    transmit(state::conn(fd), fd, flags, || Ok(*buffers), by_libc)
}

fn part_of(base: *const c_void, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast_mut(),
        iov_len: length,
    }
}

/// # Safety
/// As read(2).
pub unsafe fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize {
    match short::received(fd, buffer.cast(), count) {
        Some(received) => received,
        // SAFETY: the program's own arguments.
        None => unsafe { read_any(fd, buffer, count) },
    }
}

/// # Safety
/// As read(2).
#[inline(never)]
unsafe fn read_any(fd: c_int, buffer: *mut c_void, count: usize) -> isize {
    if count == 0 {
        // Linux asks a socket nothing then; recv with a length of 0 may wait.
        // SAFETY: the program's own arguments.
        return unsafe { real::read(fd, buffer, count) };
    }
    let part = part_of(buffer, count);
    let found = match Of::fd(fd) {
        Of::Stream(found) => found,
        // A length that is none of memory, read refuses, and recv cuts.
        Of::Stack(_) if !faults::is_user_range(buffer.cast(), count) => {
            return give(Err(libc::EFAULT));
        }
        Of::Datagrams(_) if !faults::is_user_range(buffer.cast(), count) => None,
        Of::Stack(word) => {
            let nobody = (core::ptr::null_mut(), core::ptr::null_mut());
            // SAFETY: the program's own arguments.
            return unsafe { hooks_stack::recv(fd, word, (buffer, count), 0, nobody) };
        }
        Of::Records(conn) => {
            return hooks_records::recv(conn, fd, Buffers::one(part, true), 0);
        }
        // SAFETY: the program's own arguments.
        Of::Datagrams(_) => return unsafe { recv_named(fd, buffer, count, 0) },
    };
    // SAFETY: the program's own arguments.
    receive(
        found,
        fd,
        0,
        || Buffers::one(part, true),
        || unsafe { real::read(fd, buffer, count) },
    )
}

/// # Safety
/// As readv(2).
pub unsafe fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: the program's own arguments.
    unsafe { receive_parts(fd, parts, count, 0, || real::readv(fd, parts, count)) }
}

/// A message of these parts.
pub fn message_of(parts: *const libc::iovec, count: c_int) -> libc::msghdr {
    // SAFETY: a msghdr of zeros is an empty message.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = parts.cast_mut();
    message.msg_iovlen = count as _;
    message
}

fn some_bytes(buffers: Buffers) -> sys::Result<Buffers> {
    if buffers.total == 0 {
        Err(NO_BYTES)
    } else {
        Ok(buffers)
    }
}

/// readv by the channel, or by `by_libc`.
///
/// # Safety
/// As readv(2).
pub unsafe fn receive_parts(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    flags: c_int,
    by_libc: impl Fn() -> isize + Copy,
) -> isize {
    let all = || Buffers::new(parts, count as usize);
    let found = match Of::fd(fd) {
        Of::Stream(found) => found,
        Of::Stack(word) => return hooks_stack::readv(fd, word, parts, count, flags),
        Of::Records(conn) => return hooks_records::recv(conn, fd, all(), flags),
        Of::Datagrams(socket) => {
            let mut name = [0u8; datagram::ADDRESS_BYTES];
            let mut message = message_of(parts, count);
            message.msg_name = name.as_mut_ptr().cast();
            message.msg_namelen = name.len() as u32;
            let message = &raw mut message;
            let buffers = || some_bytes(all()?);
            let by_libc = |more: c_int| match buffers() {
                // SAFETY: the program's own parts, in a message of ours.
                Ok(_) => unsafe { real::recvmsg(fd, message, flags | more) },
                // What is wrong, and what is nothing, the kernel says.
                Err(_) => by_libc(),
            };
            let place = Place::Message(message);
            return datagram::receive(socket, fd, flags, place, &buffers, &by_libc);
        }
    };
    receive(found, fd, flags, || some_bytes(all()?), by_libc)
}

/// # Safety
/// As recv(2).
pub unsafe fn recv(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int) -> isize {
    if flags & !short::FLAGS == 0
        && let Some(received) = short::received(fd, buffer.cast(), count)
    {
        return received;
    }
    // SAFETY: the program's own arguments.
    unsafe { recv_any(fd, buffer, count, flags) }
}

/// # Safety
/// As recv(2).
#[inline(never)]
unsafe fn recv_any(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int) -> isize {
    let part = part_of(buffer, count);
    let found = match Of::fd(fd) {
        Of::Stream(found) => found,
        Of::Stack(word) => {
            let nobody = (core::ptr::null_mut(), core::ptr::null_mut());
            // SAFETY: the program's own arguments.
            return unsafe { hooks_stack::recv(fd, word, (buffer, count), flags, nobody) };
        }
        Of::Records(conn) => {
            return hooks_records::recv(conn, fd, Buffers::one(part, false), flags);
        }
        // SAFETY: the program's own arguments.
        Of::Datagrams(_) => return unsafe { recv_named(fd, buffer, count, flags) },
    };
    // SAFETY: the program's own arguments.
    receive(
        found,
        fd,
        flags,
        || Buffers::one(part, false),
        || unsafe { real::recv(fd, buffer, count, flags) },
    )
}

/// recv of a UDP socket, for which the library wants to know whose datagram it is.
///
/// # Safety
/// As recv(2).
unsafe fn recv_named(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int) -> isize {
    let mut name = [0u8; datagram::ADDRESS_BYTES];
    let mut length = name.len() as u32;
    // SAFETY: the program's own arguments, and a name of ours.
    unsafe {
        recvfrom(
            fd,
            buffer,
            count,
            flags,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    }
}

/// # Safety
/// As recvfrom(2).
pub unsafe fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    count: usize,
    flags: c_int,
    name: *mut c_void,
    length: *mut u32,
) -> isize {
    if name.is_null() {
        // SAFETY: the program's own arguments.
        return unsafe { recv(fd, buffer, count, flags) };
    }
    let part = part_of(buffer, count);
    let buffers = || Buffers::one(part, false);
    let found = match Of::fd(fd) {
        Of::Stream(found) => found,
        Of::Stack(word) => {
            let sender = (name, length);
            // SAFETY: the program's own arguments.
            return unsafe { hooks_stack::recv(fd, word, (buffer, count), flags, sender) };
        }
        Of::Records(conn) => {
            let received = hooks_records::recv(conn, fd, buffers(), flags);
            return match received >= 0 {
                true => give(no_name(length).map(|()| received as usize)),
                false => received,
            };
        }
        Of::Datagrams(socket) => {
            let by_libc = |more: c_int| {
                // SAFETY: the program's own arguments.
                unsafe { real::recvfrom(fd, buffer, count, flags | more, name, length) }
            };
            let place = Place::Name(name, length);
            return datagram::receive(socket, fd, flags, place, &buffers, &by_libc);
        }
    };
    let ours = Cell::new(false);
    let by_channel = || {
        ours.set(true);
        buffers()
    };
    let received = receive(found, fd, flags, by_channel, || {
        ours.set(false);
        // SAFETY: the program's own arguments.
        unsafe { real::recvfrom(fd, buffer, count, flags, name, length) }
    });
    if received >= 0 && ours.get() {
        return give(no_name(length).map(|()| received as usize));
    }
    received
}

/// A connected stream gives no address: its length is 0 (linux: move_addr_to_user).
pub fn no_name(length: *mut u32) -> sys::Result<()> {
    faults::check(faults::can_read(length))?;
    // SAFETY: the program's own argument, found readable.
    if (unsafe { length.read_unaligned() } as i32) < 0 {
        return Err(libc::EINVAL);
    }
    faults::check(faults::give(length, 0))
}

/// A name that a connected stream does not need is judged all the same (linux:
/// move_addr_to_kernel).
fn check_name(name: *const c_void, length: u32) -> sys::Result<()> {
    if name.is_null() || length == 0 {
        return Ok(());
    }
    if length as usize > size_of::<libc::sockaddr_storage>() {
        return Err(libc::EINVAL);
    }
    faults::check(faults::can_read_all(name.cast::<u8>(), length as usize))
}

/// The same of a message's (linux: __copy_msghdr): one that is too long is cut.
fn check_name_of(message: &libc::msghdr, sends: bool) -> sys::Result<()> {
    if !message.msg_name.is_null() && (message.msg_namelen as i32) < 0 {
        return Err(libc::EINVAL);
    }
    let most = size_of::<libc::sockaddr_storage>() as u32;
    match sends {
        true => check_name(message.msg_name, message.msg_namelen.min(most)),
        false => Ok(()),
    }
}

/// # Safety
/// As recvmsg(2).
pub unsafe fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    let buffers = || {
        faults::check(faults::can_read(message))?;
        // SAFETY: the program's own message, found readable.
        let message = unsafe { &*message };
        check_name_of(message, false)?;
        Buffers::of_message(message)
    };
    let found = match Of::fd(fd) {
        Of::Stream(found) => found,
        // SAFETY: the program's own arguments.
        Of::Stack(word) => return unsafe { hooks_stack::recvmsg(fd, word, message, flags) },
        // SAFETY: the program's own arguments.
        Of::Records(conn) => return unsafe { hooks_records::recvmsg(conn, fd, message, flags) },
        Of::Datagrams(socket) => {
            // SAFETY: the program's own arguments.
            let by_libc = |more: c_int| unsafe { real::recvmsg(fd, message, flags | more) };
            let place = Place::Message(message);
            return datagram::receive(socket, fd, flags, place, &buffers, &by_libc);
        }
    };
    let ours = Cell::new(false);
    let by_channel = || {
        ours.set(true);
        buffers()
    };
    let received = receive(found, fd, flags, by_channel, || {
        ours.set(false);
        // SAFETY: the program's own arguments.
        unsafe { real::recvmsg(fd, message, flags) }
    });
    if received >= 0 && ours.get() {
        // SAFETY: the program's own message.
        unsafe { no_more_than_bytes(message, flags, 0) };
    }
    if received >= 0 && !ours.get() && config::is_active() && state::conn(fd).is_none() {
        // SAFETY: the kernel has just filled in the program's own message.
        unsafe { crate::hooks_fd::after_passing(message) };
    }
    received
}

/// What a receive from a connected stream says besides the bytes (linux: ____sys_recvmsg), and `told` of them.
///
/// # Safety
/// `message` is readable.
pub unsafe fn no_more_than_bytes(message: *mut libc::msghdr, flags: c_int, told: c_int) {
    // SAFETY: by contract; the fields are only named.
    unsafe {
        if !(*message).msg_name.is_null() {
            faults::give(&raw mut (*message).msg_namelen, 0);
        }
        faults::give(&raw mut (*message).msg_controllen, 0);
        let kept = flags & libc::MSG_CMSG_CLOEXEC;
        faults::give(&raw mut (*message).msg_flags, kept | told);
    }
}

/// # Safety
/// As write(2).
pub unsafe fn write(fd: c_int, buffer: *const c_void, count: usize) -> isize {
    if short::has_sent(fd, buffer.cast(), count) {
        return count as isize;
    }
    // SAFETY: the program's own arguments.
    unsafe { write_any(fd, buffer, count) }
}

/// # Safety
/// As write(2).
#[inline(never)]
unsafe fn write_any(fd: c_int, buffer: *const c_void, count: usize) -> isize {
    let part = part_of(buffer, count);
    let buffers = || Buffers::one(part, true);
    // SAFETY: the program's own arguments.
    let by_libc = || unsafe { real::write(fd, buffer, count) };
    match Of::fd(fd) {
        Of::Stream(found) => transmit(found, fd, 0, buffers, by_libc),
        Of::Stack(_) if !faults::is_user_range(buffer.cast(), count) => give(Err(libc::EFAULT)),
        Of::Stack(word) => {
            let nobody = (core::ptr::null(), 0);
            // SAFETY: the program's own arguments.
            unsafe { hooks_stack::send(fd, word, (buffer, count), 0, nobody) }
        }
        Of::Records(conn) => hooks_records::send(conn, fd, buffers(), 0),
        Of::Datagrams(socket) => datagram::send(socket, fd, 0, To::Connected, &buffers, &by_libc),
    }
}

/// # Safety
/// As writev(2).
pub unsafe fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: the program's own arguments.
    unsafe { send_parts(fd, parts, count, 0, || real::writev(fd, parts, count)) }
}

/// writev by the channel, or by `by_libc`.
///
/// # Safety
/// As writev(2).
pub unsafe fn send_parts(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    flags: c_int,
    by_libc: impl Fn() -> isize + Copy,
) -> isize {
    let all = || Buffers::new(parts, count as usize);
    // Without a byte nothing is sent.
    let buffers = || some_bytes(all()?);
    match Of::fd(fd) {
        Of::Stream(found) => transmit(found, fd, flags, buffers, by_libc),
        Of::Stack(word) => hooks_stack::writev(fd, word, parts, count, flags),
        Of::Records(conn) => hooks_records::send(conn, fd, all(), flags),
        Of::Datagrams(socket) => {
            datagram::send(socket, fd, flags, To::Connected, &buffers, &by_libc)
        }
    }
}

/// # Safety
/// As send(2).
pub unsafe fn send(fd: c_int, buffer: *const c_void, count: usize, flags: c_int) -> isize {
    if flags & !short::FLAGS == 0 && short::has_sent(fd, buffer.cast(), count) {
        return count as isize;
    }
    // SAFETY: the program's own arguments.
    unsafe { send_any(fd, buffer, count, flags) }
}

/// # Safety
/// As send(2).
#[inline(never)]
unsafe fn send_any(fd: c_int, buffer: *const c_void, count: usize, flags: c_int) -> isize {
    let part = part_of(buffer, count);
    let buffers = || Buffers::one(part, false);
    // SAFETY: the program's own arguments.
    let by_libc = || unsafe { real::send(fd, buffer, count, flags) };
    match Of::fd(fd) {
        Of::Stream(found) => transmit(found, fd, flags, buffers, by_libc),
        Of::Stack(word) => {
            let nobody = (core::ptr::null(), 0);
            // SAFETY: the program's own arguments.
            unsafe { hooks_stack::send(fd, word, (buffer, count), flags, nobody) }
        }
        Of::Records(conn) => hooks_records::send(conn, fd, buffers(), flags),
        Of::Datagrams(socket) => {
            datagram::send(socket, fd, flags, To::Connected, &buffers, &by_libc)
        }
    }
}

/// # Safety
/// As sendto(2).
pub unsafe fn sendto(
    fd: c_int,
    buffer: *const c_void,
    count: usize,
    flags: c_int,
    name: *const c_void,
    length: u32,
) -> isize {
    if name.is_null() {
        // SAFETY: the program's own arguments.
        return unsafe { send(fd, buffer, count, flags) };
    }
    let part = part_of(buffer, count);
    let buffers = || Buffers::one(part, false);
    // SAFETY: the program's own arguments.
    let by_libc = || unsafe { real::sendto(fd, buffer, count, flags, name, length) };
    match Of::fd(fd) {
        Of::Stream(found) => {
            let by_channel = || check_name(name, length).and_then(|()| buffers());
            transmit(found, fd, flags, by_channel, by_libc)
        }
        Of::Stack(word) => {
            let target = (name, length);
            // SAFETY: the program's own arguments.
            unsafe { hooks_stack::send(fd, word, (buffer, count), flags, target) }
        }
        Of::Records(conn) => hooks_records::sendto(conn, fd, buffers(), flags, (name, length)),
        Of::Datagrams(socket) => {
            let to = To::Name(name, length);
            datagram::send(socket, fd, flags, to, &buffers, &by_libc)
        }
    }
}

/// # Safety
/// As sendmsg(2).
pub unsafe fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the program's own arguments.
    let by_libc = || unsafe { real::sendmsg(fd, message, flags) };
    let found = match Of::fd(fd) {
        Of::Stream(found) => found,
        // SAFETY: the program's own arguments.
        Of::Stack(word) => return unsafe { hooks_stack::sendmsg(fd, word, message, flags) },
        // SAFETY: the program's own arguments.
        Of::Records(conn) => return unsafe { hooks_records::sendmsg(conn, fd, message, flags) },
        Of::Datagrams(socket) => {
            let buffers = || {
                faults::check(faults::can_read(message))?;
                // SAFETY: the program's own message, found readable.
                Buffers::of_message(unsafe { &*message })
            };
            let to = To::Message(message);
            return datagram::send(socket, fd, flags, to, &buffers, &by_libc);
        }
    };
    if config::is_active() && found.is_none() {
        // SAFETY: the program's own message.
        unsafe { crate::hooks_fd::before_passing(message) };
    }
    let by_channel = || {
        faults::check(faults::can_read(message))?;
        // SAFETY: the program's own message, found readable.
        let message = unsafe { &*message };
        check_name_of(message, true)?;
        if libcs::count(message.msg_controllen) != 0 {
            check_control(fd, message, flags)?;
        }
        Buffers::of_message(message)
    };
    transmit(found, fd, flags, by_channel, by_libc)
}

/// Nothing in a stream's control data moves bytes, but the kernel judges it: a message
/// without bytes has it say what is wrong. By libc, which may have to clean it first.
fn check_control(fd: c_int, message: &libc::msghdr, flags: c_int) -> sys::Result<()> {
    let empty = libc::msghdr {
        msg_iov: core::ptr::null_mut(),
        msg_iovlen: 0,
        ..*message
    };
    // SAFETY: a message of ours, with the program's control data and name.
    match unsafe { real::sendmsg(fd, &raw const empty, flags) } {
        ..0 => Err(sys::errno()),
        _ => Ok(()),
    }
}

/// # Safety
/// As sendfile(2).
pub unsafe fn sendfile(out: c_int, file: c_int, offset: *mut i64, count: usize) -> isize {
    if state::records(out).is_some() {
        return give(Err(libc::EINVAL));
    }
    if let Err(error) = leave_for_pipe(file).and_then(|()| stack::stream::before_pipe(out)) {
        return give(Err(error));
    }
    datagram::bar(out, Reason::Unsupported);
    // SAFETY: the program's own arguments.
    let by_libc = || unsafe { real::sendfile(out, file, offset, count) };
    let conn = match way(state::conn(out), out, Does::Send) {
        Way::Refused(error) => return give(Err(error)),
        Way::Libc => return by_libc(),
        Way::Watched(conn) | Way::Channel(conn) => conn,
    };
    if conn.is_paired() {
        match transfer::send_file(conn, out, file, offset, count) {
            Ok(Done::Bytes(done)) => return done as isize,
            Ok(Done::Kernel) => {}
            Err(error) => return give(Err(error)),
        }
    }
    if !stay::is_callable(conn, out) {
        // SAFETY: by the caller's contract.
        return unsafe { sendfile(out, file, offset, count) };
    }
    let shield = Shield::new();
    Unaware::sender(conn).during(shield, by_libc)
}

/// The kernel is about to move bytes between a connection and a pipe by itself. `Err`: not if the
/// program requires the fast path.
fn leave_for_pipe(fd: c_int) -> sys::Result<()> {
    stack::stream::before_pipe(fd)?;
    if state::records(fd).is_some() {
        // Lengths would stand among the bytes.
        return Err(libc::EINVAL);
    }
    datagram::bar(fd, Reason::Unsupported);
    if config::is_active()
        && let Some(conn) = state::conn(fd)
    {
        if config::insists() {
            return Err(libc::ENETUNREACH);
        }
        down::bar(&conn.end(), Reason::Unsupported);
        down::downgrade(&conn.at(fd), Reason::Unsupported, true);
    }
    Ok(())
}

/// # Safety
/// As splice(2).
pub unsafe fn splice(
    input: c_int,
    input_offset: *mut i64,
    output: c_int,
    output_offset: *mut i64,
    count: usize,
    flags: u32,
) -> isize {
    if let Err(error) = leave_for_pipe(input).and_then(|()| leave_for_pipe(output)) {
        return give(Err(error));
    }
    // SAFETY: the program's own arguments.
    unsafe { real::splice(input, input_offset, output, output_offset, count, flags) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Channel, Silent, tables};

    #[test]
    fn no_urgent_byte_overtakes_what_is_owed() {
        let _turn = tables();
        let _broker = Silent::broker();
        let channel = Channel::new([25, 26], |_, _| ());
        let count = channel.owe();
        let [near, far] = channel.fds;
        let urgent = || {
            // SAFETY: a byte of ours.
            let sent = unsafe { send(near, b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
            (sent, sys::errno())
        };
        assert_eq!(urgent(), (-1, libc::EAGAIN));
        assert_ne!(channel.owed(), 0);
        let (mut bytes, mut taken, mut is_sent) = (vec![0_u8; count], 0, false);
        for _ in 0..100_000 {
            taken += sys!(SYS_read, far, bytes.as_mut_ptr(), count).unwrap_or(0);
            if is_sent && taken == count {
                return;
            }
            is_sent = is_sent || urgent().0 == 1;
        }
        panic!("{taken} of {count}, sent: {is_sent}");
    }
}
