//! The conversation with the program's own network stack (messages: `fordway_abi::stack`).
//!
//! One request and its answer at a time go over a control connection. A thread that asks takes the process's connection out of
//! its place, and puts it back with the answer read: nobody waits for another thread, and a handler that asks in between
//! opens a connection of its own. What comes back to a place that is taken is closed. So no lock is held while a thread waits.
//!
//! A stack that has ended is started again by others: who finds none tries for [`TRY_NS`]. Its sockets are another's then, and
//! what is asked about those of the former one gets ESTALE.

use crate::process::PROCESS;
use crate::sys::{self, sys};
use crate::{config, hidden, identity};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use fordway_abi::stack::{Answer, Id, KEY_OPTION, Request, id_of};
use zerocopy::{FromZeros, IntoBytes};

/// How long a stack is looked for that is not there.
const TRY_NS: u64 = 1_000_000_000;
/// How long between two looks.
const PAUSE_MS: i32 = 10;
/// Longest wait for an answer, in seconds.
const ANSWER_S: i64 = 10;

/// Of the process: its control connection, in the low half, plus one, and in the high half whose it is. 0: it is taken, or there is none.
pub struct Talk(AtomicU64);

impl Talk {
    /// As a process begins.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }
}

/// A control connection, and whether it may stay for the next question.
fn take() -> sys::Result<(c_int, bool)> {
    let known = PROCESS.talk.0.swap(0, Ordering::AcqRel);
    let fd = (known as u32).wrapping_sub(1) as c_int;
    if known == 0 {
        return open();
    }
    if (known >> 32) as u32 != identity::pid() as u32 {
        // A parent's, which may be in the middle of a talk.
        hidden::close(fd);
        return open();
    }
    Ok((fd, true))
}

fn put(fd: c_int) {
    let known = u64::from(identity::pid() as u32) << 32 | (fd as u64 + 1);
    let place = &PROCESS.talk.0;
    if identity::in_borrowed_memory()
        || place
            .compare_exchange(0, known, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
    {
        hidden::close(fd);
    }
}

fn open() -> sys::Result<(c_int, bool)> {
    let mut address = [0u8; 2 + config::SOCKET_PATH_BYTES];
    address[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    // SAFETY: written once by the constructor.
    address[2..].copy_from_slice(unsafe { &*config::stack_path() });
    let until_ns = sys::now_ns() + TRY_NS;
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let make = || sys!(SYS_socket, libc::AF_UNIX, kind, 0);
    // Where no hidden number can be had, it has one of the program's for this question.
    let is_kept = hidden::can_be_had();
    let socket = match is_kept {
        true => hidden::make(make)?,
        false => {
            let made = make()? as c_int;
            let copied = hidden::copy(made);
            let _ = sys!(SYS_close, made);
            copied?
        }
    };
    loop {
        match sys!(SYS_connect, socket, address.as_ptr(), address.len()) {
            Ok(_) => {
                let patience = libc::timeval {
                    tv_sec: ANSWER_S,
                    tv_usec: 0,
                };
                sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, patience);
                return Ok((socket, is_kept));
            }
            Err(error) => {
                let may_come = matches!(error, libc::ECONNREFUSED | libc::ENOENT | libc::EINTR);
                if !may_come || sys::now_ns() > until_ns {
                    hidden::close(socket);
                    return Err(libc::ENETDOWN);
                }
                let _ = sys!(SYS_poll, 0, 0, PAUSE_MS);
            }
        }
    }
}

/// Asks the stack; the answer, with the descriptor that came beside it. `Err`: there is no stack.
pub fn ask(request: &Request) -> sys::Result<(Answer, Option<c_int>)> {
    for _ in 0..2 {
        let (fd, is_kept) = take()?;
        match talk(fd, request) {
            Ok(answered) => {
                match is_kept {
                    true => put(fd),
                    false => hidden::close(fd),
                }
                return Ok(answered);
            }
            // The stack may have ended since; the next one says what it knows.
            Err(_) => hidden::close(fd),
        }
    }
    Err(libc::ENETDOWN)
}

/// The same of a question whose answer is worth little time: `Err` also where the stack does not answer within it.
pub fn ask_soon(request: &Request, wait_ms: c_int) -> sys::Result<(Answer, Option<c_int>)> {
    let (fd, is_kept) = take()?;
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut shown = || loop {
        match sys!(SYS_poll, &raw mut entry, 1, wait_ms) {
            Err(libc::EINTR) => {}
            shown => return shown,
        }
    };
    let answered = send(fd, request).and_then(|()| match shown()? {
        0 => Err(libc::ETIMEDOUT),
        _ => receive(fd),
    });
    match answered.is_ok() && is_kept {
        true => put(fd),
        // An answer may still come, and would be taken for that to the next question.
        false => hidden::close(fd),
    }
    answered
}

fn talk(fd: c_int, request: &Request) -> sys::Result<(Answer, Option<c_int>)> {
    send(fd, request)?;
    receive(fd)
}

fn send(fd: c_int, request: &Request) -> sys::Result<()> {
    let bytes = request.as_bytes();
    let (at, count) = (bytes.as_ptr(), bytes.len());
    let flags = libc::MSG_NOSIGNAL;
    while let Err(error) = sys!(SYS_sendto, fd, at, count, flags, 0, 0) {
        if error != libc::EINTR {
            return Err(error);
        }
    }
    Ok(())
}

fn receive(fd: c_int) -> sys::Result<(Answer, Option<c_int>)> {
    let mut answer = Answer::new_zeroed();
    let at = answer.as_mut_bytes().as_mut_ptr();
    loop {
        match receive_with_fd(
            |message, flags| sys!(SYS_recvmsg, fd, message, flags),
            at,
            size_of::<Answer>(),
        ) {
            Ok((count, came)) if count == size_of::<Answer>() => return Ok((answer, came)),
            Ok((_, came)) => {
                if let Some(came) = came {
                    let _ = sys!(SYS_close, came);
                }
                return Err(libc::EPROTO);
            }
            Err(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Space for one descriptor beside a message.
#[repr(C, align(8))]
struct Ancillary([u8; 24]);

/// One message of up to `count` bytes, and the descriptor beside it, which is the program's. It is close-on-exec.
pub fn receive_with_fd(
    receive: impl FnOnce(*mut libc::msghdr, c_int) -> sys::Result<usize>,
    at: *mut u8,
    count: usize,
) -> sys::Result<(usize, Option<c_int>)> {
    let mut part = libc::iovec {
        iov_base: at.cast(),
        iov_len: count,
    };
    let mut ancillary = Ancillary([0; 24]);
    // SAFETY: a msghdr of zeros is an empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.0.as_mut_ptr().cast();
    message.msg_controllen = ancillary.0.len() as _;
    let makings = hidden::makings();
    let count = receive(&raw mut message, libc::MSG_CMSG_CLOEXEC)?;
    let word = |from: usize| {
        let bytes = ancillary.0[from..from + 4].try_into();
        c_int::from_ne_bytes(bytes.unwrap_or([0xff; 4]))
    };
    // A header of 16 bytes (socket.h), and one number.
    let has_one = crate::libcs::count(message.msg_controllen) >= 20
        && (word(8), word(12)) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    let came = has_one.then(|| hidden::lowest(word(16), makings));
    Ok((count, came))
}

/// Which socket of a stack a descriptor is: the name of its other end says so.
pub fn id(fd: c_int) -> Option<Id> {
    let mut name = [0u8; 2 + config::SOCKET_PATH_BYTES];
    let mut length = name.len() as u32;
    let (at, length_at) = (name.as_mut_ptr(), &raw mut length);
    sys!(SYS_getpeername, fd, at, length_at).ok()?;
    let name = name.get(..length as usize)?;
    let (family, path) = name.split_at_checked(2)?;
    if family != (libc::AF_UNIX as u16).to_ne_bytes() {
        return None;
    }
    id_of(path.strip_prefix(b"\0")?)
}

/// The key of a stack's socket; 0 if it cannot be read.
pub fn key(fd: c_int) -> u64 {
    sys::option(fd, libc::SOL_SOCKET, KEY_OPTION, 0).map_or(0, |(key, _)| key)
}
