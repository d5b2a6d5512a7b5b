//! A listener of a stack that has ended is made again by the stack that comes after it, under the descriptor that the program has.
//!
//! What is needed for that lies where a fork, an exec or a message does not lose it: [`keep`] binds the program's end of the pair to
//! an abstract name that is a [`Listener`]. [`make_again`] is called by an accept that finds the pair's end:
//! ```text
//!   the stack that made it answers  ──► the program has shut it: nothing to be done
//!   another stack answers           ──► a new socket: options, bind, listen; epoll instances are told; it replaces the old one
//! ```
//! Processes that share the listener each get one of their own of the new stack, which spreads connections over them; that it
//! is the same one they show by the number that it had at its first stack, and its key, which stays.
//!
//! Limits: instances of epoll that the library does not know, or of which /proc does not tell, or beyond 64, show the old pair's end until the program
//! closes them. Sizes of buffers and lesser options are as of a new socket.

use super::{LISTENS, SIX, asked, copy_timeouts, is_nonblocking, request, set_bits, talk};
use crate::process::PROCESS;
use crate::sys::{self, sys};
use crate::{epoll, identity};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use fordway_abi::stack::{Answer, INET, INET6, Id, LISTENER_PREFIX, Listener, Operation, STREAM};
use fordway_abi::stack::{KEY_OPTION, level, name};
use zerocopy::{FromBytes, IntoBytes};

/// Options that are set again, by their bits in [`Listener::options`].
const OPTIONS: [(c_int, c_int); 5] = [
    (level::SOCKET, name::REUSEADDR),
    (level::SOCKET, name::REUSEPORT),
    (level::IPV6, name::V6ONLY),
    (level::SOCKET, name::KEEPALIVE),
    (level::TCP, name::TCP_NODELAY),
];
/// Epoll instances in which a listener is told of again.
const REGISTRATIONS_MAX: usize = 64;
/// How often a stack is looked for, a second or two each time.
const TRIES: usize = 8;
/// How long another thread may take that makes the same one again.
const PATIENCE_MS: i32 = 20_000;

/// Of the process: the number of one in which a thread makes a listener again; 0: none does. A parent's has no such thread here.
pub struct Again(AtomicU32);

impl Again {
    /// As a process begins.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn take(&self) -> bool {
        let (own, held) = (identity::pid() as u32, self.0.load(Ordering::Relaxed));
        let (taken, not) = (Ordering::Acquire, Ordering::Relaxed);
        held != own && self.0.compare_exchange(held, own, taken, not).is_ok()
    }
}

/// A family, the zero that begins an abstract name, and what is kept.
const NAME_BYTES: usize = 2 + 1 + LISTENER_PREFIX.len() + size_of::<Listener>();

/// Keeps what a listener is. One that was kept before stays so: its name cannot be changed.
pub fn keep(fd: c_int, answer: &Answer, backlog: c_int) {
    keep_as(fd, None, answer, backlog);
}

fn keep_as(fd: c_int, first: Option<Id>, answer: &Answer, backlog: c_int) {
    let Some(id) = talk::id(fd) else { return };
    let mut options = 0;
    for (bit, (at_level, number)) in OPTIONS.iter().enumerate() {
        let set = request(fd, Operation::GetOption).and_then(|mut request| {
            (request.first, request.second) = (*at_level, *number);
            asked(&request)
        });
        if set.is_ok_and(|(answer, _)| answer.value[..4] != [0; 4]) {
            options |= 1 << bit;
        }
    }
    let kept = Listener {
        id,
        first: first.unwrap_or(id),
        local: answer.local,
        backlog,
        options,
    };
    let mut bytes = [0u8; NAME_BYTES];
    bytes[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    bytes[3..3 + LISTENER_PREFIX.len()].copy_from_slice(LISTENER_PREFIX);
    bytes[3 + LISTENER_PREFIX.len()..].copy_from_slice(kept.as_bytes());
    let _ = sys!(SYS_bind, fd, bytes.as_ptr(), bytes.len());
}

fn kept(fd: c_int) -> Option<Listener> {
    let mut bytes = [0u8; NAME_BYTES + 1];
    let mut length = bytes.len() as u32;
    let (at, length_at) = (bytes.as_mut_ptr(), &raw mut length);
    sys!(SYS_getsockname, fd, at, length_at).ok()?;
    let name = bytes[..NAME_BYTES]
        .get(3..)
        .filter(|_| length as usize == NAME_BYTES)?;
    Listener::read_from_bytes(name.strip_prefix(LISTENER_PREFIX)?).ok()
}

/// Whether nothing more comes by the pair under this descriptor.
fn has_end(fd: c_int) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLRDHUP,
        revents: 0,
    };
    sys!(SYS_poll, &raw mut entry, 1, 0).is_ok() && entry.revents != 0
}

/// An accept has found the end of a listener's pair. `Ok(false)`: the listener is at its end, too; true: accept may try once more.
#[cold]
pub fn make_again(fd: c_int) -> sys::Result<bool> {
    let lock = &PROCESS.stack_again;
    let mut waited_ms = 0;
    while !lock.take() && waited_ms < PATIENCE_MS {
        let _ = sys!(SYS_poll, 0, 0, 1);
        waited_ms += 1;
    }
    let made = match has_end(fd) {
        // Another thread was faster.
        false => Ok(true),
        true => make(fd),
    };
    lock.0.store(0, Ordering::Release);
    made
}

/// ESTALE: another stack answers. Of a socket that the program has shut the one that made it says that there is no error.
fn ask(fd: c_int) -> sys::Result<()> {
    asked(&request(fd, Operation::TakeError)?).map(drop)
}

fn make(fd: c_int) -> sys::Result<bool> {
    let of = talk::id(fd);
    // Until there is a stack: who waits for an edge would not come again.
    let mut answered = ask(fd);
    for _ in 0..TRIES {
        if !matches!(answered, Err(libc::ENETDOWN)) {
            break;
        }
        answered = ask(fd);
    }
    match answered {
        Ok(()) => return Ok(false),
        Err(libc::ESTALE) => {}
        Err(error) => return Err(error),
    }
    let Some(former) = kept(fd) else {
        return Ok(false);
    };
    let mut open = request(fd, Operation::Open)?;
    open.first = former.local.family.into();
    open.second = STREAM as i32;
    let (_, new) = asked(&open)?;
    let new = new.ok_or(libc::EMFILE)?;
    let made = set_up(new, &former, talk::key(fd)).and_then(|()| replace(fd, of, new));
    let _ = sys!(SYS_close, new);
    made?;
    set_bits(fd, LISTENS, true);
    set_bits(fd, SIX, former.local.family == INET6);
    Ok(true)
}

/// Has a new socket listen where a former one did.
fn set_up(new: c_int, former: &Listener, key: u64) -> sys::Result<()> {
    for (bit, (at_level, number)) in OPTIONS.iter().enumerate() {
        if former.options & 1 << bit == 0 || *at_level == level::IPV6 && former.local.family == INET
        {
            continue;
        }
        let mut set = request(new, Operation::SetOption)?;
        (set.first, set.second, set.length) = (*at_level, *number, 4);
        set.value[0] = 1;
        asked(&set)?;
    }
    let mut bind = request(new, Operation::Bind)?;
    bind.name = former.local;
    bind.length = size_of::<Id>() as u32 + 8;
    bind.value[..16].copy_from_slice(former.first.as_bytes());
    bind.value[16..24].copy_from_slice(&key.to_ne_bytes());
    asked(&bind)?;
    // It has the key of the former one from now on, so that all who shared that one share the next one, too.
    sys::set_option(new, libc::SOL_SOCKET, KEY_OPTION, key);
    let mut listen = request(new, Operation::Listen)?;
    listen.first = former.backlog;
    let (answer, _) = asked(&listen)?;
    keep_as(new, Some(former.first), &answer, former.backlog);
    Ok(())
}

/// Puts a new socket of the stack's in the place of an old one, also in epoll instances. EBADF if another thread has put
/// something else there meanwhile.
pub fn replace(fd: c_int, of: Option<Id>, new: c_int) -> sys::Result<()> {
    if talk::id(fd) != of {
        return Err(libc::EBADF);
    }
    let close_on_exec = sys!(SYS_fcntl, fd, libc::F_GETFD).unwrap_or(0) & 1 != 0;
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    if is_nonblocking(fd) {
        let _ = sys!(
            SYS_fcntl,
            new,
            libc::F_SETFL,
            libc::O_RDWR | libc::O_NONBLOCK
        );
    }
    copy_timeouts(fd, new);
    let mut told = [(-1, libc::epoll_event { events: 0, u64: 0 }); REGISTRATIONS_MAX];
    let mut count = 0;
    epoll::registrations(fd, |instance, events, data| {
        if let Some(place) = told.get_mut(count) {
            *place = (instance, libc::epoll_event { events, u64: data });
            count += 1;
        }
    });
    // Those of the old pair would go on in other processes' name.
    for (instance, _) in &told[..count] {
        let _ = sys!(SYS_epoll_ctl, *instance, libc::EPOLL_CTL_DEL, fd, 0);
    }
    let replaced = sys!(SYS_dup3, new, fd, flags).map(drop);
    for (instance, event) in &told[..count] {
        let _ = sys!(
            SYS_epoll_ctl,
            *instance,
            libc::EPOLL_CTL_ADD,
            fd,
            core::ptr::from_ref(event)
        );
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_a_fork_has_left_behind_holds_nobody_up() {
        let lock = Again::new();
        assert!(lock.take() && !lock.take());
        // As a child finds it.
        lock.0.store(identity::pid() as u32 + 1, Ordering::Relaxed);
        assert!(lock.take() && !lock.take());
    }
}
