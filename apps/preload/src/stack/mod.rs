//! What the library knows of sockets of the program's own stack ([`crate::hooks_stack`] has the calls): words of the table of
//! descriptors, questions to the stack ([`talk`]), names, waits; bytes of streams ([`stream`]) and of UDP ([`datagram`]).

pub mod again;
pub mod datagram;
pub mod stream;
pub mod talk;

use crate::deadline::Deadline;
use crate::signals::Call;
use crate::state::{kind, look, slot};
use crate::sys::{self, sys};
use crate::{config, faults, identity, wait};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use fordway_abi::stack::{
    Answer, DATAGRAM, INET, INET6, NAME_BYTES, Name, Operation, Request, id_of, level, name, state,
};
use libc::{sockaddr_in, sockaddr_in6};
use zerocopy::FromBytes;

/// Beside [`kind::OF_STACK`]: it is of UDP.
pub const UDP: u32 = 1 << kind::OF_STACK_SHIFT;
/// It is of IPv6.
pub const SIX: u32 = 2 << kind::OF_STACK_SHIFT;
/// It listens.
pub const LISTENS: u32 = 4 << kind::OF_STACK_SHIFT;
/// It was connected once.
pub const CONNECTED: u32 = 8 << kind::OF_STACK_SHIFT;
/// Its send buffer is that of a connected one.
pub const ROOMY: u32 = 16 << kind::OF_STACK_SHIFT;
/// All of these.
pub const ALL: u32 = 31 << kind::OF_STACK_SHIFT;

/// How often positions are asked for while bytes come.
const POSITIONS_TRIES: usize = 8;
/// How long a stack may take to tell of them.
const POSITIONS_WAIT_MS: i32 = 200;
/// Longest name that the kernel reads (linux: sockaddr_storage).
const NAME_BYTES_MAX: usize = 128;
/// linux/in6.h: SIN6_LEN_RFC2133.
pub const IN6_BYTES_MIN: usize = 24;

/// What the table says of a stack's socket; `None`: it is none.
#[inline(always)]
pub fn of(fd: c_int) -> Option<u32> {
    let word = look(fd);
    if word & kind::OF_STACK != 0 {
        return Some(word);
    }
    if word == kind::UNKNOWN && config::has_stack() {
        return find(fd);
    }
    None
}

/// A descriptor that is not known: over an exec, or from a message.
#[cold]
#[inline(never)]
fn find(fd: c_int) -> Option<u32> {
    let errno = sys::errno();
    let word = match talk::id(fd) {
        None => kind::OTHER,
        Some(id) => match asked(&Request::new(Operation::Names, id, talk::key(fd))) {
            Ok((answer, _)) => word_of(&answer),
            // Its stack has ended: what the pair says is all there is.
            Err(_) => match sys::int_option(fd, libc::SOL_SOCKET, libc::SO_TYPE) {
                libc::SOCK_STREAM => kind::STACK | CONNECTED,
                _ => kind::STACK | UDP,
            },
        },
    };
    sys::set_errno(errno);
    if let Some(slot) = slot(fd).filter(|_| !identity::in_borrowed_memory()) {
        let order = Ordering::AcqRel;
        let _ = slot.compare_exchange(kind::UNKNOWN, word, order, Ordering::Relaxed);
    }
    (word != kind::OTHER).then_some(word)
}

pub fn word_of(answer: &Answer) -> u32 {
    let mut word = kind::STACK;
    if u32::from(answer.kind) == DATAGRAM {
        word |= UDP;
    }
    if answer.family == INET6 {
        word |= SIX;
    }
    word | match answer.state {
        state::LISTENING => LISTENS,
        state::CONNECTED | state::OVER => CONNECTED | ROOMY,
        _ => 0,
    }
}

pub fn set_bits(fd: c_int, bits: u32, are_on: bool) {
    if let Some(slot) = slot(fd).filter(|slot| slot.load(Ordering::Relaxed) & kind::OF_STACK != 0) {
        match are_on {
            true => slot.fetch_or(bits, Ordering::Release),
            false => slot.fetch_and(!bits, Ordering::Release),
        };
    }
}

/// The answer to a request, or the errno in it.
pub fn asked(request: &Request) -> sys::Result<(Answer, Option<c_int>)> {
    let (answer, fd) = talk::ask(request)?;
    match answer.error {
        0 => Ok((answer, fd)),
        error => Err(error),
    }
}

pub fn request(fd: c_int, operation: Operation) -> sys::Result<Request> {
    let id = talk::id(fd).ok_or(libc::EBADF)?;
    Ok(Request::new(operation, id, talk::key(fd)))
}

pub fn names(fd: c_int) -> sys::Result<Answer> {
    asked(&request(fd, Operation::Names)?).map(|(answer, _)| answer)
}

/// Where a stream stands, as its stack counts.
struct Positions {
    /// Bytes that the program has sent.
    sent: u64,
    /// Bytes that the stack has given.
    given: u64,
    /// Some of these have found no room in the pair yet.
    is_owed: bool,
}

/// Asked under a connection's locks: a stack that does not answer soon is not waited for.
fn positions(fd: c_int) -> sys::Result<Positions> {
    let (answer, _) = talk::ask_soon(&request(fd, Operation::Positions)?, POSITIONS_WAIT_MS)?;
    let words = <[u64; 3]>::read_from_prefix(&answer.value);
    let (words, _) = words.map_err(|_| libc::EPROTO)?;
    match answer.error {
        0 => Ok(Positions {
            sent: words[0],
            given: words[1],
            is_owed: words[2] != 0,
        }),
        error => Err(error),
    }
}

/// As the kernel's position of what was sent: bytes that the stack has from this end, or will have. The caller keeps others from sending.
/// `None`: it cannot be known.
pub fn sent_position(fd: c_int) -> Option<u64> {
    positions(fd).ok().map(|positions| positions.sent)
}

/// As the kernel's position of what was read: bytes of those that the stack has given. The caller keeps others from reading. `None`: it
/// cannot be known.
pub fn received_position(fd: c_int) -> Option<u64> {
    let unread = || {
        let mut queued: c_int = 0;
        let asked = sys!(SYS_ioctl, fd, libc::FIONREAD, &raw mut queued);
        asked.ok().map(|_| queued as u64)
    };
    // Bytes may come between the questions: until none came.
    for _ in 0..POSITIONS_TRIES {
        let before = unread()?;
        let positions = positions(fd).ok().filter(|positions| !positions.is_owed)?;
        if unread()? == before {
            return positions.given.checked_sub(before);
        }
    }
    None
}

/// Whether the stack has bytes for the program that have found no room in the pair: what the rings between them have given back.
pub fn is_owed(fd: c_int) -> bool {
    positions(fd).is_ok_and(|positions| positions.is_owed)
}

/// The stack is to break the connection off when its last descriptor is closed, which is now.
pub fn reset_at_close(fd: c_int) {
    let at_once = [1, 0, 0, 0, 0, 0, 0, 0];
    let _ = request(fd, Operation::SetOption).and_then(|mut request| {
        (request.first, request.second) = (level::SOCKET, name::LINGER);
        request.length = at_once.len() as u32;
        request.value[..at_once.len()].copy_from_slice(&at_once);
        asked(&request)
    });
}

/// A name of the program's.
pub fn read_name(word: u32, at: *const c_void, length: u32) -> sys::Result<Name> {
    let length = length as usize;
    if !(2..=NAME_BYTES_MAX).contains(&length) {
        return Err(libc::EINVAL);
    }
    faults::check(faults::can_read_all(at.cast::<u8>(), length))?;
    // SAFETY: found readable; a family has two bytes.
    let family = unsafe { at.cast::<u16>().read_unaligned() };
    let mut name = Name::default();
    match family {
        0 => {}
        INET if length >= size_of::<sockaddr_in>() => {
            // SAFETY: found readable, as long as it is.
            let given = unsafe { at.cast::<sockaddr_in>().read_unaligned() };
            (name.family, name.port) = (INET, u16::from_be(given.sin_port));
            name.address[..4].copy_from_slice(&given.sin_addr.s_addr.to_ne_bytes());
        }
        INET6 if length >= IN6_BYTES_MIN && word & SIX != 0 => {
            // SAFETY: found readable up to the address.
            let given = unsafe { &*at.cast::<sockaddr_in6>() };
            let (port, address) = (
                &raw const given.sin6_port,
                &raw const given.sin6_addr.s6_addr,
            );
            // SAFETY: as above.
            let (port, address) = unsafe { (port.read_unaligned(), address.read_unaligned()) };
            (name.family, name.port, name.address) = (INET6, u16::from_be(port), address);
        }
        INET | INET6 if word & SIX != 0 || family == INET => return Err(libc::EINVAL),
        _ => return Err(libc::EAFNOSUPPORT),
    }
    Ok(name)
}

/// Writes a name where the program wants it.
pub fn give_name(target: *mut c_void, length: *mut u32, name: &Name) -> sys::Result<()> {
    let mut bytes = [0u8; size_of::<sockaddr_in6>()];
    bytes[..2].copy_from_slice(&name.family.to_ne_bytes());
    bytes[2..4].copy_from_slice(&name.port.to_be_bytes());
    if name.family == INET6 {
        bytes[8..24].copy_from_slice(&name.address);
        bytes[24..28].copy_from_slice(&name.scope.to_ne_bytes());
        return faults::give_bytes(target, length, &bytes);
    }
    bytes[4..8].copy_from_slice(&name.address[..4]);
    faults::give_bytes(target, length, &bytes[..size_of::<sockaddr_in>()])
}

/// Whether a socket that was bound to this name is a stack's end of a pair of streams. Then this process is a stack.
pub fn is_served_end(fd: c_int, at: *const c_void, length: u32) -> bool {
    let mut name = [0u8; 2 + 1 + NAME_BYTES];
    let given = at.cast::<u8>();
    let is_as_long = length as usize == name.len() && !config::has_stack();
    if !is_as_long || !faults::can_read_all(given, name.len()) {
        return false;
    }
    // SAFETY: found readable, and as long.
    unsafe { core::ptr::copy_nonoverlapping(given, name.as_mut_ptr(), name.len()) };
    let is_unix = name[..2] == (libc::AF_UNIX as u16).to_ne_bytes() && name[2] == 0;
    let is_stream = || sys::int_option(fd, libc::SOL_SOCKET, libc::SO_TYPE) == libc::SOCK_STREAM;
    is_unix && id_of(&name[3..]).is_some() && is_stream()
}

pub fn is_nonblocking(fd: c_int) -> bool {
    let flags = sys!(SYS_fcntl, fd, libc::F_GETFL).unwrap_or(0);
    flags as c_int & libc::O_NONBLOCK != 0
}

/// SO_RCVTIMEO or SO_SNDTIMEO of the pair.
fn timeout_ns(fd: c_int, name: c_int) -> Option<u64> {
    let none = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let (time, _) = sys::option(fd, libc::SOL_SOCKET, name, none).unwrap_or((none, 0));
    let time_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    (time_ns != 0).then_some(time_ns)
}

/// Time-outs are the pair's own, of which the stack does not know: a socket that takes another one's place, or comes from a listener,
/// gets them here.
pub fn copy_timeouts(from: c_int, to: c_int) {
    const NONE: libc::timeval = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        if let Ok((time, _)) = sys::option(from, libc::SOL_SOCKET, option, NONE)
            && (time.tv_sec, time.tv_usec) != (0, 0)
        {
            sys::set_option(to, libc::SOL_SOCKET, option, time);
        }
    }
}

/// Waits until a connection that is under way is made, or has failed. `Err(late)`: the time is over.
pub fn wait_connected(fd: c_int, late: c_int) -> sys::Result<()> {
    let call = Call::begin();
    let timeout_ns = timeout_ns(fd, libc::SO_SNDTIMEO);
    let deadline = Deadline::after(timeout_ns);
    loop {
        let mut entry = libc::pollfd {
            fd,
            events: libc::POLLOUT,
            revents: 0,
        };
        let left_ns = deadline.left_ns(None);
        match wait::ppoll(&raw mut entry, 1, left_ns, core::ptr::null()) {
            Ok(0) if deadline.has_passed() => return Err(late),
            Ok(0) => {}
            Ok(_) => return Ok(()),
            // linux: sock_intr_errno.
            Err(libc::EINTR) if !call.is_ended(timeout_ns.is_some()) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The error that the stack has kept for the socket, once; 0: none. A stack that has ended has broken all off.
pub fn take_error(fd: c_int, word: u32) -> c_int {
    take_error_as(fd, word, false)
}

/// The same, as far as a receive is told of it.
pub fn take_error_as(fd: c_int, word: u32, is_receive: bool) -> c_int {
    let Ok(mut request) = request(fd, Operation::TakeError) else {
        return 0;
    };
    request.first = is_receive.into();
    match asked(&request) {
        Ok((answer, _)) => {
            if answer.state == state::CONNECTED && word & UDP == 0 {
                set_bits(fd, CONNECTED, true);
            }
            let [a, b, c, d, ..] = answer.value;
            c_int::from_ne_bytes([a, b, c, d])
        }
        Err(_) => libc::ECONNRESET,
    }
}
