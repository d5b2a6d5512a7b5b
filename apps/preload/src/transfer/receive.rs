//! The receiving side of a transfer.

use super::{Begun, Buffers, Caller, Unaware, by_libc, copier, message, short};
use crate::deadline::Deadline;
use crate::end::At;
use crate::state::Conn;
use crate::sys::{self, sys};
use crate::{faults, pace, real};
use core::sync::atomic::Ordering;
use fordway_abi::shm::{rx_state, tx_state};
use fordway_ring::copy::Kernel;
use fordway_ring::{Consumer, Layout};
use fordway_sockets::ready::{Want, is_ready, kernel_part_bytes};
use fordway_sockets::{
    Caller as _, Done, End, Moved, NotCopied, Receive, Target, Transfer, is_owed, receive_enough,
    receive_short,
};

/// Between two looks for bytes of which no bell and no event tells.
const LOOK_AGAIN_MS: i32 = 1;
/// The same while none are known to be on their way.
const LOOK_SELDOM_MS: i32 = 10;

/// recv and its kin.
pub fn receive(conn: &Conn, fd: i32, buffers: &Buffers, flags: i32) -> sys::Result<Done> {
    let Some(begun) = Begun::now(conn, fd, flags & libc::MSG_DONTWAIT == 0) else {
        return Ok(Done::Kernel);
    };
    if flags & !short::FLAGS == 0 && short::is_untried(conn, buffers) {
        let range = (buffers.total, enough(conn, buffers, flags).max(1));
        let count = receive_short(&begun.end, range, |ring, count| {
            fetch_all(ring, buffers, (0, count)).is_ok()
        })?;
        if count != 0 {
            return Ok(Done::Bytes(count));
        }
    }
    let call = &mut Receiving {
        caller: Caller::new(conn, fd, begun),
        buffers,
        flags,
    };
    receive_enough(call, buffers.total)
}

/// With fewer bytes a receive goes on to wait.
#[inline]
fn enough(conn: &Conn, buffers: &Buffers, flags: i32) -> usize {
    let low = conn.low_bytes.load(Ordering::Relaxed) as usize;
    match flags & libc::MSG_WAITALL {
        0 => low.min(buffers.total),
        _ => buffers.total,
    }
}

/// A receive into the program's buffers.
struct Receiving<'a> {
    caller: Caller<'a>,
    buffers: &'a Buffers,
    flags: i32,
}

impl Receiving<'_> {
    fn parts(&self, done: usize) -> Parts<'_> {
        Parts {
            buffers: self.buffers,
            fd: self.caller.fd,
            skip: done,
            flags: self.flags,
        }
    }
}

impl<'a> Transfer for Receiving<'a> {
    type Caller = Caller<'a>;

    #[inline]
    fn caller(&self) -> &Caller<'a> {
        &self.caller
    }

    #[inline]
    fn attempt(&mut self, done: usize) -> sys::Result<Moved> {
        fordway_sockets::receive(&self.caller.end(), &mut self.parts(done))
    }

    fn rest_by_kernel(&mut self, done: usize) -> Option<sys::Result<usize>> {
        self.parts(done).rest_by_kernel(self.caller.conn)
    }

    fn sleep(&mut self, done: usize) -> sys::Result<()> {
        let caller = &mut self.caller;
        // SO_RCVLOWAT asks for more than a byte.
        let low = caller.conn.low_bytes.load(Ordering::Relaxed) > 1;
        caller.stay();
        let until = caller.until(Want::Bytes);
        if low && is_between_paths(&caller.end()) && !until.has_passed() {
            let pause_ms = match is_owed(&caller.end()) {
                true => LOOK_AGAIN_MS,
                false => LOOK_SELDOM_MS,
            };
            let _ = sys!(SYS_poll, 0, 0, pause_ms);
            // As of any sleep (`wait::for_conn`).
            let by_any = done != 0 || until != Deadline::Never;
            return match caller.handled.is_interrupted(by_any) {
                true => Err(libc::EINTR),
                false => Ok(()),
            };
        }
        if done == 0 && caller.end().has_channel() && caller.end().peer_is_there() {
            pace::note(caller.conn);
        }
        let goes_on = |end: &At<'_>| low && end.has_channel() && !has_cause(end);
        caller.sleep(Want::Bytes, done, goes_on)
    }
}

impl Receive for Receiving<'_> {
    fn peeks(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    fn enough(&self) -> usize {
        enough(self.caller.conn, self.buffers, self.flags)
    }

    fn look_again(&mut self) -> bool {
        if !self.caller.has_time(Want::Bytes) {
            return false;
        }
        self.caller.stay();
        let _ = sys!(SYS_poll, 0, 0, LOOK_AGAIN_MS);
        !self.caller.is_interrupted()
    }
}

/// Whether bytes may come by the kernel whose first part came by the ring, or the other way round. For
/// fewer of them than SO_RCVLOWAT asks the kernel wakes nobody, so they are looked for.
fn is_between_paths(end: &At<'_>) -> bool {
    if !end.has_channel() || !end.peer_is_there() {
        return false;
    }
    let has_asked = end.own().wait.rx_state.load(Ordering::Relaxed) != rx_state::READY;
    match end.consumer().producer_state() {
        tx_state::RING => has_asked || kernel_part_bytes(end) != 0,
        tx_state::KERNEL => false,
        _ => true,
    }
}

/// With SO_RCVLOWAT, fewer bytes than that wake nobody, not even one who has some already
/// (linux: tcp_data_ready).
fn has_cause(end: &At<'_>) -> bool {
    let shown = libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    is_ready(end, Want::Bytes) || is_owed(end) || end.state().shown() & shown as u32 != 0
}

/// The buffers of one attempt.
struct Parts<'a> {
    buffers: &'a Buffers,
    fd: i32,
    skip: usize,
    flags: i32,
}

/// Copies `count` bytes, `skip` behind the head, to `base`.
#[inline(always)]
pub fn fetch<L: Layout>(
    consumer: &Consumer<L>,
    skip: u64,
    base: *mut u8,
    count: usize,
) -> Result<(), NotCopied> {
    faults::check(faults::is_writable(base, count)).map_err(NotCopied::Refused)?;
    // SAFETY: the program's buffer, found writable.
    unsafe { consumer.peek(copier(), Kernel::Plain, skip, base, count)? };
    Ok(())
}

/// Copies the bytes behind the head to the buffers' `[skip, skip + count)`.
#[inline(always)]
fn fetch_all<L: Layout>(
    consumer: &Consumer<L>,
    buffers: &Buffers,
    (skip, count): (usize, usize),
) -> Result<(), NotCopied> {
    match buffers.one_piece(skip, count) {
        Some(base) => fetch(consumer, 0, base, count),
        None => fetch_pieces(consumer, buffers, (skip, count)),
    }
}

/// As [`fetch`], to several parts, from the head on.
#[inline(never)]
fn fetch_pieces<L: Layout>(
    consumer: &Consumer<L>,
    buffers: &Buffers,
    (skip, count): (usize, usize),
) -> Result<(), NotCopied> {
    let mut at = 0u64;
    buffers.pieces(skip, count, |base, length| {
        fetch(consumer, at, base, length)?;
        at += length as u64;
        Ok(())
    })
}

impl Parts<'_> {
    /// The rest by libc, which may sleep. `None`: there is a channel again.
    fn rest_by_kernel(&self, conn: &Conn) -> Option<sys::Result<usize>> {
        let left = self.buffers.total - self.skip;
        self.buffers.with_parts(self.skip, left, |parts| {
            let mut message = message(parts);
            // SAFETY: the program's buffers, as it passed them.
            let receive = || unsafe { real::recvmsg(self.fd, &raw mut message, self.flags) };
            by_libc(Unaware::reader, conn, receive)
        })
    }
}

impl Target for Parts<'_> {
    fn wanted(&self) -> usize {
        self.buffers.total - self.skip
    }

    fn peeks(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    #[cold]
    fn by_kernel(&mut self, limit: usize, peek: bool) -> sys::Result<usize> {
        let peek = if peek { libc::MSG_PEEK } else { 0 };
        let flags = self.flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT | peek;
        self.buffers.with_parts(self.skip, limit, |parts| {
            let mut message = message(parts);
            sys!(SYS_recvmsg, self.fd, &raw mut message, flags)
        })
    }

    #[inline(always)]
    fn by_ring<L: Layout>(
        &mut self,
        consumer: &Consumer<L>,
        count: usize,
    ) -> Result<(), NotCopied> {
        if self.flags & libc::MSG_TRUNC != 0 {
            return Ok(());
        }
        fetch_all(consumer, self.buffers, (self.skip, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state;
    use crate::testing::{Channel, Silent, free, pair, tables};
    use crate::transfer::send;
    use fordway_sockets::ends;

    /// The ring tells of a close with bytes unread before the kernel knows of it.
    #[test]
    fn a_reset_that_the_ring_told_of_is_an_end_of_file_by_the_kernel() {
        for was_told in [false, true] {
            let _turn = tables();
            let _broker = Silent::broker();
            let channel = Channel::new([92, 93], |_, _| ());
            let [fd, far] = channel.fds;
            if was_told {
                assert_eq!(
                    ends::fetch_error(&channel.ends[0].end()),
                    Some(libc::ECONNRESET)
                );
            }
            let mut byte = 0_u8;
            assert_eq!(sys!(SYS_write, fd, &raw const byte, 1), Ok(1));
            // The far end is closed with the byte unread.
            let other = sys!(SYS_memfd_create, c"other".as_ptr(), libc::MFD_CLOEXEC);
            let other = other.expect("a file") as i32;
            assert_eq!(
                sys!(SYS_dup3, other, far, libc::O_CLOEXEC),
                Ok(far as usize)
            );
            let part = libc::iovec {
                iov_base: (&raw mut byte).cast(),
                iov_len: 1,
            };
            let buffers = Buffers::one(part, false).expect("a buffer");
            let moved = match receive(channel.ends[0], fd, &buffers, 0) {
                Ok(Done::Bytes(count)) => Ok(count),
                Ok(_) => panic!("not by the library"),
                Err(error) => Err(error),
            };
            let wanted = if was_told {
                Ok(0)
            } else {
                Err(libc::ECONNRESET)
            };
            assert_eq!(moved, wanted);
            let _ = sys!(SYS_close, other);
        }
    }

    #[test]
    fn a_call_by_a_number_that_another_connection_has_is_libcs() {
        let _turn = tables();
        let fd = state::FD_COUNT as i32 - 3;
        // As `state::conn` finds it, before another thread closes the number...
        let found = state::add_conn(fd, false).expect("a place");
        free(found);
        state::slot(fd)
            .expect("watched")
            .store(state::kind::OTHER, Ordering::Relaxed);
        // ... and the entry is another connection's, under another number, with a channel.
        let other = state::add_conn(fd - 1, false).expect("a place");
        assert!(core::ptr::eq(found, other), "the place is used again");
        pair(other);
        let mut byte = 0u8;
        let part = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        let buffers = Buffers::one(part, true).expect("a buffer");
        assert!(matches!(receive(found, fd, &buffers, 0), Ok(Done::Kernel)));
        assert!(matches!(send(found, fd, &buffers, 0), Ok(Done::Kernel)));
        free(other);
    }
}
