//! The C ABI, as `include/fordway.h` has it (cbindgen, `./x native`): the calls of sys/socket.h under a prefix.
//!
//! A socket is called by its descriptor, which poll(2) and its kin take too. What fails gives -1, or NULL, and errno. Other
//! threads may use a socket that one closes; the memory of its loans they may not.
//!
//! # Safety
//! Pointers lead to what their types say, and to as many bytes as the argument behind them; those for results of
//! `fordway_accept` and `fordway_recvfrom`, and the target of `fordway_sendto`, may be NULL.
#![allow(clippy::missing_safety_doc)]

use crate::address::{Address, domain_of, error, own_domain};
use crate::socket::{Kind, Socket, name_of};
use fordway_abi::vsock::{CID_HOST, CID_LOCAL};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{self, Result};
use std::os::fd::AsRawFd;
use std::sync::{Arc, PoisonError, RwLock};

/// Bytes, in order.
pub const FORDWAY_STREAM: c_int = 1;
/// Messages of up to 65,507 bytes, each for itself; also to all domains.
pub const FORDWAY_DATAGRAM: c_int = 2;
/// Messages of up to 1 MiB, in order.
pub const FORDWAY_SEQPACKET: c_int = 5;
/// The own domain, by loopback.
pub const FORDWAY_LOCAL: u32 = 1;
/// The host, at the far end of an uplink.
pub const FORDWAY_HOST: u32 = 2;
/// All domains of the network; datagrams only.
pub const FORDWAY_BROADCAST: u32 = 0xffff_fffe;
/// To bind to: each address of the own domain.
pub const FORDWAY_ANY: u32 = 0xffff_ffff;
const _: () = assert!(FORDWAY_LOCAL == CID_LOCAL && FORDWAY_HOST == CID_HOST);

/// Sockets by their descriptors.
static SOCKETS: RwLock<Vec<Option<Arc<Socket>>>> = RwLock::new(Vec::new());

fn socket(fd: c_int) -> Result<Arc<Socket>> {
    let sockets = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    let known = usize::try_from(fd)
        .ok()
        .and_then(|fd| sockets.get(fd)?.clone());
    known.ok_or(error(libc::EBADF))
}

fn add(socket: Socket) -> c_int {
    let fd = socket.as_raw_fd();
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    if sockets.len() <= fd as usize {
        sockets.resize(fd as usize + 1, None);
    }
    if let Some(closed) = sockets[fd as usize].replace(Arc::new(socket)) {
        // By close(2): its number is another's now.
        std::mem::forget(closed);
    }
    fd
}

fn fail(reason: &io::Error) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = reason.raw_os_error().unwrap_or(libc::EIO) };
}

fn number<T>(done: Result<T>, number: impl FnOnce(T) -> isize) -> isize {
    done.map_or_else(
        |reason| {
            fail(&reason);
            -1
        },
        number,
    )
}

fn status<T>(done: Result<T>) -> c_int {
    number(done, |_| 0) as c_int
}

/// The caller's address, if there is one.
///
/// # Safety
/// `address` is NULL or an address.
unsafe fn read(address: *const Address) -> Result<Address> {
    // SAFETY: by contract.
    unsafe { address.as_ref() }
        .copied()
        .ok_or(error(libc::EFAULT))
}

/// # Safety
/// `target` is NULL or a place for an address.
unsafe fn give(target: *mut Address, address: Address) {
    if !target.is_null() {
        // SAFETY: by contract.
        unsafe { target.write(address) };
    }
}

/// # Safety
/// `length` bytes at `bytes` can be read.
unsafe fn slice<'a>(bytes: *const c_void, length: usize) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: by contract.
        _ => unsafe { std::slice::from_raw_parts(bytes.cast(), length) },
    }
}

/// A new socket: FORDWAY_STREAM, FORDWAY_DATAGRAM or FORDWAY_SEQPACKET.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_socket(kind: c_int) -> c_int {
    let kind = match kind {
        FORDWAY_STREAM => Ok(Kind::Stream),
        FORDWAY_DATAGRAM => Ok(Kind::Datagram),
        FORDWAY_SEQPACKET => Ok(Kind::SeqPacket),
        _ => Err(error(libc::EPROTONOSUPPORT)),
    };
    number(kind.and_then(Socket::new), |socket| add(socket) as isize) as c_int
}

/// Gives it an address of the own domain, FORDWAY_ANY or a port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_bind(fd: c_int, address: *const Address) -> c_int {
    // SAFETY: by contract.
    let address = unsafe { read(address) };
    status(address.and_then(|address| socket(fd)?.bind(address)))
}

/// Lets others connect; so many may wait for fordway_accept.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_listen(fd: c_int, backlog: c_int) -> c_int {
    status(socket(fd).and_then(|socket| socket.listen(backlog)))
}

/// The next connection; whose it is, unless `from` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_accept(fd: c_int, from: *mut Address) -> c_int {
    let accepted = socket(fd).and_then(|socket| socket.accept());
    let number_of = |(socket, address)| {
        // SAFETY: by contract.
        unsafe { give(from, address) };
        add(socket) as isize
    };
    number(accepted, number_of) as c_int
}

/// Connects to a domain's port; of datagrams: names whom fordway_send and fordway_recv are about.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_connect(fd: c_int, address: *const Address) -> c_int {
    // SAFETY: by contract.
    let address = unsafe { read(address) };
    status(address.and_then(|address| socket(fd)?.connect(address)))
}

/// Sends to the far end. Of a message all or nothing is taken, of a stream what there is room for. Flags: MSG_DONTWAIT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_send(
    fd: c_int,
    bytes: *const c_void,
    length: usize,
    flags: c_int,
) -> isize {
    // SAFETY: by contract.
    unsafe { fordway_sendto(fd, bytes, length, flags, std::ptr::null()) }
}

/// The same to a domain's port, of datagrams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_sendto(
    fd: c_int,
    bytes: *const c_void,
    length: usize,
    flags: c_int,
    to: *const Address,
) -> isize {
    // SAFETY: by contract.
    let (bytes, to) = unsafe { (slice(bytes, length), to.as_ref()) };
    let send = || {
        let flags = allowed(flags, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)?;
        let to = to.map(|to| name_of(*to)).transpose()?;
        socket(fd)?.send_with(bytes, flags, to)
    };
    number(send(), |count| count as isize)
}

/// Receives: a message, or of a stream what there is; 0 is the end. Flags: MSG_DONTWAIT; MSG_TRUNC: the length of
/// the whole message is returned, also where it was cut.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_recv(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
) -> isize {
    // SAFETY: by contract.
    unsafe { fordway_recvfrom(fd, buffer, length, flags, std::ptr::null_mut()) }
}

/// The same; who has sent a datagram, unless `from` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
    from: *mut Address,
) -> isize {
    let buffer = match length {
        0 => &mut [],
        // SAFETY: by contract.
        _ => unsafe { std::slice::from_raw_parts_mut(buffer.cast(), length) },
    };
    let received = allowed(flags, libc::MSG_DONTWAIT | libc::MSG_TRUNC)
        .and_then(|flags| socket(fd)?.recv_with(buffer, flags & libc::MSG_DONTWAIT));
    number(received, |received| {
        if let Some(address) = received.from {
            // SAFETY: by contract.
            unsafe { give(from, address) };
        }
        match flags & libc::MSG_TRUNC {
            0 => received.bytes as isize,
            _ => received.whole as isize,
        }
    })
}

fn allowed(flags: c_int, known: c_int) -> Result<c_int> {
    match flags & !known {
        0 => Ok(flags),
        _ => Err(error(libc::EOPNOTSUPP)),
    }
}

/// poll(2): POLLIN, POLLOUT and their kin. Descriptors of other kinds may stand beside sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_poll(
    entries: *mut libc::pollfd,
    count: usize,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: by contract.
    unsafe { libc::poll(entries, count as libc::nfds_t, timeout_ms) }
}

/// Whether calls give EAGAIN instead of sleeping (1, 0).
#[unsafe(no_mangle)]
pub extern "C" fn fordway_set_nonblocking(fd: c_int, nonblocking: c_int) -> c_int {
    status(socket(fd).and_then(|socket| socket.set_nonblocking(nonblocking != 0)))
}

/// Sends what is left of what was accepted by calls that did not sleep; EAGAIN: there is no room for all of it.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_flush(fd: c_int) -> c_int {
    status(socket(fd).and_then(|socket| socket.flush()))
}

/// Ends the socket.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_close(fd: c_int) -> c_int {
    let known = socket(fd).map(drop);
    if known.is_ok() {
        let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
        let closed = sockets[fd as usize].take();
        drop(sockets);
        // May wait for the rest of a message, and is not to hold others up.
        drop(closed);
    }
    status(known)
}

/// The own address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_local(fd: c_int, address: *mut Address) -> c_int {
    let found = socket(fd).and_then(|socket| socket.local_address());
    // SAFETY: by contract.
    status(found.map(|found| unsafe { give(address, found) }))
}

/// That of the far end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_peer(fd: c_int, address: *mut Address) -> c_int {
    let found = socket(fd).and_then(|socket| socket.peer_address());
    // SAFETY: by contract.
    status(found.map(|found| unsafe { give(address, found) }))
}

/// Looks a domain up by its name, or by its number in digits; EHOSTUNREACH: there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_domain(name: *const c_char, domain: *mut u32) -> c_int {
    // SAFETY: by contract.
    let name = unsafe { CStr::from_ptr(name) }.to_str();
    let found = name
        .map_err(|_| error(libc::EHOSTUNREACH))
        .and_then(domain_of);
    // SAFETY: by contract.
    status(found.map(|found| unsafe { domain.write(found) }))
}

/// The number of the own domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_own_domain(domain: *mut u32) -> c_int {
    // SAFETY: by contract.
    status(own_domain().map(|found| unsafe { domain.write(found) }))
}

/// Lends room for `bytes` that are to be sent, of the ring if there is one, until fordway_commit.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_reserve(fd: c_int, bytes: usize) -> *mut c_void {
    let lent = socket(fd).and_then(|socket| socket.lend(bytes));
    number(lent, |place| place as isize).max(0) as *mut c_void
}

/// Sends the first `bytes` of what was lent; all of them are taken. 0: nothing of a stream, and the loan is over.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_commit(fd: c_int, bytes: usize) -> c_int {
    status(socket(fd).and_then(|socket| socket.commit(bytes, &mut false)))
}

/// Ends a loan of fordway_reserve; nothing is sent.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_cancel(fd: c_int) -> c_int {
    status(socket(fd).map(|socket| socket.cancel()))
}

/// Lends what is to be received next, until fordway_release: a message, or what there is of a stream. NULL with errno 0
/// is the end. A hostile far end may change the bytes at any time: copy what you have to trust.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_peek(fd: c_int, bytes: *mut usize) -> *const c_void {
    match socket(fd).and_then(|socket| socket.show()) {
        Ok(Some((place, count))) => {
            // SAFETY: by contract.
            unsafe { bytes.write(count) };
            place.cast()
        }
        end => {
            fail(&end.err().unwrap_or(error(0)));
            std::ptr::null()
        }
    }
}

/// Receives the first `bytes` of a stream, or the message, that was lent; the loan is over.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_release(fd: c_int, bytes: usize) -> c_int {
    status(socket(fd).and_then(|socket| socket.take(bytes)))
}
