//! SOCK_SEQPACKET of AF_VSOCK, in terms of a stream: each record has its length before it ([`fordway_abi::record`]).
//!
//! # Taking
//! A record is looked at where it lies (MSG_PEEK), in the kernel or in a ring, and taken when all of it is there: by
//! one receive that copies nothing (MSG_TRUNC). So no part of one is kept anywhere: who has the socket too, since a
//! dup, a fork, an exec or in a message, finds the next record. Threads take turns (`Conn::taking`), and so do
//! processes ([`Alone`]); who has to wait does that outside, by a look that sleeps, or for the other process ([`KeptOut`]).
//!
//! # Sending
//! [`record`] says how a record goes in one piece.
//!
//! # Against vsock(7), which says little, and linux/net/vmw_vsock/af_vsock.c
//! * A send without a byte sends nothing. A receive without room takes nothing.
//! * MSG_TRUNC and MSG_EOR are as there; a record that was cut is gone.
//! * A record has up to [`BYTES_MAX`] bytes and 1,023 parts; a longer one gives EMSGSIZE.
//! * What moves bytes past the library (splice, sendfile, a stdio stream) would see the lengths: EINVAL.

use crate::faults;
use crate::hooks_io;
use crate::lock::{lock_word, rank};
use crate::signals::Call;
use crate::state::Conn;
use crate::sys::{self, give};
use crate::transfer::Buffers;
use crate::transfer::record::{self, Alone, KeptOut, NONBLOCKING_NS_MAX, Way};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use fordway_abi::record::{HEAD_BYTES, head, read};
use fordway_sockets::down;

/// Longest record.
pub const BYTES_MAX: usize = 128 * 1024;
/// Parts of a record for which there is room without much ado.
const PARTS_FEW: usize = 8;
/// Parts that one call takes at all.
const PARTS_MAX: usize = libc::UIO_MAXIOV as usize;
/// How long the rest of a record that has been taken in part is waited for at a time, in milliseconds.
const TRY_MS: i32 = 100;

/// What was taken.
pub struct Taken {
    /// Bytes that were copied.
    copied: usize,
    /// Bytes of the record.
    length: usize,
    /// Its sender has given MSG_EOR.
    is_end: bool,
}

impl Taken {
    /// The result of the program's call.
    pub fn result(&self, flags: c_int) -> usize {
        match flags & libc::MSG_TRUNC {
            0 => self.copied,
            _ => self.length,
        }
    }

    /// What recvmsg says of it.
    pub fn flags(&self) -> c_int {
        let cut = match self.copied < self.length {
            true => libc::MSG_TRUNC,
            false => 0,
        };
        let end = if self.is_end { libc::MSG_EOR } else { 0 };
        cut | end
    }
}

/// Why nothing was taken.
enum Not {
    /// So many bytes have to be there first; whether some are.
    Yet(usize, bool),
    /// Another process takes one just now.
    KeptOut,
    /// An errno.
    Failed(i32),
}

/// The parts of a record and of its head.
struct Parts<const N: usize> {
    parts: [MaybeUninit<libc::iovec>; N],
    count: usize,
    total: usize,
}

impl<const N: usize> Parts<N> {
    /// With room for the head's.
    fn new() -> Self {
        Self {
            parts: [const { MaybeUninit::uninit() }; N],
            count: 1,
            total: 0,
        }
    }

    fn add(&mut self, base: *mut u8, length: usize) -> bool {
        if self.count == N {
            return false;
        }
        self.parts[self.count].write(libc::iovec {
            iov_base: base.cast(),
            iov_len: length,
        });
        self.count += 1;
        self.total += length;
        true
    }

    /// Up to `limit` bytes of the program's; false: there are too many parts.
    fn add_all(&mut self, buffers: &Buffers, limit: usize) -> bool {
        let add = |base, length| self.add(base, length).then_some(()).ok_or(());
        buffers.pieces(0, limit, add).is_ok()
    }

    /// All of them, behind a head.
    fn behind(&mut self, head: &mut [u8; HEAD_BYTES]) -> sys::Result<Buffers> {
        self.parts[0].write(libc::iovec {
            iov_base: head.as_mut_ptr().cast(),
            iov_len: HEAD_BYTES,
        });
        Buffers::new(self.parts.as_ptr().cast(), self.count)
    }
}

/// Sends a record of the program's buffers.
pub fn send(conn: &Conn, fd: c_int, buffers: sys::Result<Buffers>, flags: c_int) -> isize {
    let sent = buffers.and_then(|buffers| match buffers.total {
        _ if flags & libc::MSG_OOB != 0 => Err(libc::EOPNOTSUPP),
        // Whether it could be sent at all the stream says.
        0 => Ok(hooks_io::send_stream(
            fd,
            &buffers,
            flags & libc::MSG_NOSIGNAL,
            || {
                // SAFETY: no bytes.
                unsafe { crate::real::send(fd, core::ptr::null(), 0, flags & libc::MSG_NOSIGNAL) }
            },
        )),
        total if total > BYTES_MAX => Err(libc::EMSGSIZE),
        _ if buffers.part_count() < PARTS_FEW => send_parts::<PARTS_FEW>(conn, fd, &buffers, flags),
        _ => send_many_parts(conn, fd, &buffers, flags),
    });
    sent.unwrap_or_else(|error| give(Err(error)))
}

#[cold]
#[inline(never)]
fn send_many_parts(conn: &Conn, fd: c_int, buffers: &Buffers, flags: c_int) -> sys::Result<isize> {
    send_parts::<PARTS_MAX>(conn, fd, buffers, flags)
}

#[inline(always)]
fn send_parts<const N: usize>(
    conn: &Conn,
    fd: c_int,
    buffers: &Buffers,
    flags: c_int,
) -> sys::Result<isize> {
    let mut parts = Parts::<N>::new();
    if !parts.add_all(buffers, buffers.total) {
        return Err(libc::EMSGSIZE);
    }
    // Of the parts as they were read, which the program may change meanwhile.
    let total = parts.total;
    let mut head = head(total, flags & libc::MSG_EOR != 0);
    let record = parts.behind(&mut head)?.whole();
    let flags = flags & (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    let sent = hooks_io::send_stream(fd, &record, flags, || {
        record::by_libc(conn, fd, &record, flags)
    });
    Ok(match sent {
        ..0 => sent,
        _ => total as isize,
    })
}

/// Takes a record into the program's buffers; `None`: the connection is over, or the buffers have no room.
pub fn receive(
    conn: &Conn,
    fd: c_int,
    buffers: &Buffers,
    flags: c_int,
) -> sys::Result<Option<Taken>> {
    if flags & libc::MSG_OOB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(libc::EAGAIN);
    }
    if buffers.total == 0 {
        return Ok(None);
    }
    let call = Call::begin();
    let mut kept_out = None;
    loop {
        let needed = match take(conn, fd, buffers, flags & libc::MSG_PEEK != 0) {
            Ok(taken) => return Ok(taken),
            Err(Not::Failed(error)) => return Err(error),
            Err(Not::KeptOut) => {
                let waits = flags & libc::MSG_DONTWAIT == 0;
                let kept_out =
                    kept_out.get_or_insert_with(|| KeptOut::begin(call, fd, Way::In, waits));
                kept_out.pause()?;
                continue;
            }
            Err(Not::Yet(_, false)) if flags & libc::MSG_DONTWAIT != 0 => {
                return Err(libc::EAGAIN);
            }
            Err(Not::Yet(needed, true)) if flags & libc::MSG_DONTWAIT != 0 => {
                return still(fd, needed);
            }
            Err(Not::Yet(needed, _)) => needed,
        };
        let looks = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_WAITALL;
        let there = look(fd, needed, looks)?;
        if there == 0 {
            return Ok(None);
        }
        // A part of one has come, and a handler has run, or the time is over, or no more will come.
        let gives_up =
            || record::is_nonblocking(fd) || record::timeout_ms(fd, libc::SO_RCVTIMEO) >= 0;
        if there < needed && (has_end(fd) || gives_up()) {
            return still(fd, needed);
        }
    }
}

/// A part of a record is there, and the call does not wait: is the rest missing for good?
fn still(fd: c_int, needed: usize) -> sys::Result<Option<Taken>> {
    let looks = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // The end first: what came before it is there then.
    if has_end(fd) && look(fd, needed, looks).unwrap_or(0) < needed {
        return Err(libc::ECONNRESET);
    }
    Err(libc::EAGAIN)
}

/// Whether the far end has ended.
fn has_end(fd: c_int) -> bool {
    let over = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    record::shown(fd, libc::POLLRDHUP, 0).is_ok_and(|shown| shown & over != 0)
}

/// How many of the next `bytes` of the stream are there; nothing is copied (MSG_TRUNC, tcp(7)).
fn look(fd: c_int, bytes: usize, flags: c_int) -> sys::Result<usize> {
    // Where the number has become another file's meanwhile, nothing is overwritten (EFAULT).
    let part = libc::iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: bytes,
    };
    let received = hooks_io::receive_stream(fd, &Buffers::new(&raw const part, 1)?, flags);
    usize::try_from(received).map_err(|_| sys::errno())
}

/// Takes the next record, if all of it is there; `peeks`: it stays there.
fn take(conn: &Conn, fd: c_int, buffers: &Buffers, peeks: bool) -> Result<Option<Taken>, Not> {
    let _turn = lock_word(&conn.taking, rank::TURN);
    let Some(_alone) = Alone::at(conn, fd, Way::In) else {
        return Err(Not::KeptOut);
    };
    let Some((length, is_end)) = next(fd)? else {
        return Ok(None);
    };
    let all = HEAD_BYTES + length;
    let copied = buffers.total.min(length);
    if copied < length && seen(look(fd, all, LOOKS | libc::MSG_TRUNC))? < all {
        return Err(Not::Yet(all, true));
    }
    let there = match buffers.part_count() < PARTS_FEW {
        true => copy::<PARTS_FEW>(fd, buffers, copied),
        false => copy_many(fd, buffers, copied),
    };
    if seen(there)? < HEAD_BYTES + copied {
        return Err(Not::Yet(all, true));
    }
    if !peeks {
        pass(fd, all)?;
    }
    Ok(Some(Taken {
        copied,
        length,
        is_end,
    }))
}

/// Looks, and leaves all where it is.
const LOOKS: c_int = libc::MSG_PEEK | libc::MSG_DONTWAIT;

/// What a look has found of the head.
fn seen(found: sys::Result<usize>) -> Result<usize, Not> {
    found.map_err(|error| match error {
        libc::EAGAIN => Not::Yet(HEAD_BYTES, false),
        error => Not::Failed(error),
    })
}

/// Length and mark of the next record; `None`: there is none, and will be none.
fn next(fd: c_int) -> Result<Option<(usize, bool)>, Not> {
    let mut head = [0; HEAD_BYTES];
    let mut parts = Parts::<1>::new();
    let buffers = parts.behind(&mut head).map_err(Not::Failed)?;
    let received = hooks_io::receive_stream(fd, &buffers, LOOKS);
    match seen(usize::try_from(received).map_err(|_| sys::errno()))? {
        0 => Ok(None),
        1..HEAD_BYTES => Err(Not::Yet(HEAD_BYTES, true)),
        _ => match read(head) {
            (length @ 1..=BYTES_MAX, is_end) => Ok(Some((length, is_end))),
            // No library has sent that.
            _ => Err(Not::Failed(record::torn(fd))),
        },
    }
}

/// Copies the first `count` bytes of the next record; how many there were of them and the head.
#[inline(always)]
fn copy<const N: usize>(fd: c_int, buffers: &Buffers, count: usize) -> sys::Result<usize> {
    let mut head = [0; HEAD_BYTES];
    let mut parts = Parts::<N>::new();
    if !parts.add_all(buffers, count) {
        return Err(libc::EMSGSIZE);
    }
    let received = hooks_io::receive_stream(fd, &parts.behind(&mut head)?, LOOKS);
    usize::try_from(received).map_err(|_| sys::errno())
}

#[cold]
#[inline(never)]
fn copy_many(fd: c_int, buffers: &Buffers, count: usize) -> sys::Result<usize> {
    copy::<PARTS_MAX>(fd, buffers, count)
}

/// Takes `bytes` that were there. A sender that has just left its ring sends them again by the kernel: they are waited for
/// outside, unless some of them have been taken already. Then handlers wait as well, for one that received would find a part.
fn pass(fd: c_int, bytes: usize) -> Result<(), Not> {
    let mut left = bytes;
    let mut deadline_ns = None;
    loop {
        match look(fd, left, libc::MSG_TRUNC | libc::MSG_DONTWAIT) {
            Ok(count) if count >= left => return Ok(()),
            Ok(0) => return Err(Not::Failed(record::torn(fd))),
            Ok(count) => left -= count,
            Err(libc::EAGAIN) if left == bytes => return Err(Not::Yet(bytes, true)),
            Err(libc::EAGAIN | libc::EINTR) => {}
            Err(error) => return Err(Not::Failed(error)),
        }
        let now_ns = sys::now_ns();
        // A peer that never sends them holds up an event loop no longer than a second.
        let until_ns = || match record::is_nonblocking(fd) {
            true => now_ns + NONBLOCKING_NS_MAX,
            false => down::deadline(now_ns),
        };
        if now_ns > *deadline_ns.get_or_insert_with(until_ns) {
            return Err(Not::Failed(record::torn(fd)));
        }
        let _ = record::shown(fd, libc::POLLIN, TRY_MS);
    }
}

/// FIONREAD: the bytes of the next record.
pub fn next_bytes(fd: c_int) -> sys::Result<u64> {
    match next(fd) {
        Ok(found) => Ok(found.map_or(0, |(length, _)| length as u64)),
        Err(Not::Yet(..) | Not::KeptOut) => Ok(0),
        Err(Not::Failed(error)) => Err(error),
    }
}

/// What a name says that stands beside a record (linux: vsock_connectible_sendmsg).
fn check_name(fd: c_int, name: *const c_void, length: u32) -> sys::Result<()> {
    if name.is_null() || length == 0 {
        return Ok(());
    }
    let is_connected = record::shown(fd, 0, 0).is_ok_and(|shown| shown & libc::POLLHUP == 0);
    Err(match is_connected {
        true => libc::EISCONN,
        false => libc::EOPNOTSUPP,
    })
}

/// As sendto(2).
pub fn sendto(
    conn: &Conn,
    fd: c_int,
    buffers: sys::Result<Buffers>,
    flags: c_int,
    (name, length): (*const c_void, u32),
) -> isize {
    let buffers = check_name(fd, name, length).and(buffers);
    send(conn, fd, buffers, flags)
}

/// As sendmsg(2).
///
/// # Safety
/// As sendmsg(2).
pub unsafe fn sendmsg(conn: &Conn, fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    let buffers = || {
        faults::check(faults::can_read(message))?;
        // SAFETY: the program's own message, found readable.
        let message = unsafe { &*message };
        check_name(fd, message.msg_name, message.msg_namelen)?;
        Buffers::of_message(message)
    };
    send(conn, fd, buffers(), flags)
}

/// As recv(2) and its kin.
pub fn recv(conn: &Conn, fd: c_int, buffers: sys::Result<Buffers>, flags: c_int) -> isize {
    let taken = buffers.and_then(|buffers| receive(conn, fd, &buffers, flags));
    give(taken.map(|taken| taken.map_or(0, |taken| taken.result(flags))))
}

/// As recvmsg(2).
///
/// # Safety
/// As recvmsg(2).
pub unsafe fn recvmsg(conn: &Conn, fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    let take = || {
        faults::check(faults::can_read(message))?;
        // SAFETY: the program's own message, found readable.
        let buffers = Buffers::of_message(unsafe { &*message })?;
        receive(conn, fd, &buffers, flags)
    };
    let taken = match take() {
        Ok(taken) => taken,
        Err(error) => return give(Err(error)),
    };
    let (result, told) = taken.map_or((0, 0), |taken| (taken.result(flags), taken.flags()));
    // SAFETY: found readable.
    unsafe { hooks_io::no_more_than_bytes(message, flags, told) };
    result as isize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state;
    use crate::sys::sys;
    use crate::testing::{free, tables};
    use core::sync::atomic::Ordering;
    use fordway_abi::reason::Reason;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// Of a process that fails to end it.
    const RELATIVE_S_MAX: u32 = 10;

    /// A process that stands still in the middle of a record keeps others out, and in no call that does not wait.
    #[test]
    fn a_relative_that_stands_still_keeps_nobody_in_a_call() {
        let _turn = tables();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let name = listener.local_addr().expect("its name");
        let far_end = TcpStream::connect(name).expect("a far end");
        let (near_end, _) = listener.accept().expect("a near end");
        let [near, far] = [&near_end, &far_end].map(AsRawFd::as_raw_fd);
        let conn = state::add_conn(near, true).expect("a place");
        assert!(state::mark_records(near));
        conn.barred.store(Reason::Passed as u32, Ordering::Relaxed);
        // SAFETY: the child makes system calls, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let holds = [Way::In, Way::Out].map(|way| Alone::at(conn, near, way));
            let is_there = holds.iter().all(Option::is_some);
            // SAFETY: only ends this process.
            unsafe { libc::alarm(RELATIVE_S_MAX) };
            let _ = sys!(
                SYS_sendto,
                near,
                c"x".as_ptr(),
                usize::from(is_there),
                0,
                0,
                0
            );
            // SAFETY: until it is ended.
            unsafe { libc::pause() };
        }
        assert!(record::shown(far, libc::POLLIN, 10_000).is_ok_and(|shown| shown != 0));
        let mut byte = [0u8; 8];
        assert_eq!(
            sys!(SYS_recvfrom, far, byte.as_mut_ptr(), 8, 0, 0, 0),
            Ok(1)
        );
        let mut one = head(1, false).to_vec();
        one.push(7);
        assert_eq!(
            sys!(SYS_sendto, far, one.as_ptr(), one.len(), 0, 0, 0),
            Ok(one.len())
        );
        let part = libc::iovec {
            iov_base: byte.as_mut_ptr().cast(),
            iov_len: 1,
        };
        let buffers = || Buffers::new(&raw const part, 1);
        let calls = || {
            [recv as fn(&Conn, _, _, _) -> isize, send].map(|call| {
                match call(conn, near, buffers(), libc::MSG_DONTWAIT) {
                    ..0 => Err(sys::errno()),
                    count => Ok(count),
                }
            })
        };
        assert_eq!(calls(), [Err(libc::EAGAIN); 2]);
        let _ = sys!(SYS_kill, child, libc::SIGKILL);
        // SAFETY: nobody wants its status.
        unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
        assert_eq!(calls(), [Ok(1); 2]);
        free(conn);
    }
}
