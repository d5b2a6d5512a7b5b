//! The receiving side of a transfer.

use super::{Buffers, Done, Unaware, attended, by_libc, copier, message};
use crate::deadline::Deadline;
use crate::end::At;
use crate::signals::Call;
use crate::state::Conn;
use crate::stay::Stay;
use crate::sys::{self, sys};
use crate::wait;
use crate::{faults, real};
use core::sync::atomic::Ordering;
use fordway_ring::Consumer;
use fordway_ring::copy::Kernel;
use fordway_sockets::ready::{Want, is_ready};
use fordway_sockets::{
    End, Moved, NotCopied, Place, Target, has_crossed, has_end, is_at_mark, is_owed,
};

/// Between two looks for bytes of which no bell and no event tells.
const LOOK_AGAIN_MS: i32 = 1;

/// recv and its kin.
pub fn receive(conn: &Conn, fd: i32, buffers: &Buffers, flags: i32) -> sys::Result<Done> {
    let Some(called) = At::called(conn, fd) else {
        return Ok(Done::Kernel);
    };
    let mut done = 0;
    let mut deadline = None;
    let call = Call::begin();
    let may_wait = flags & libc::MSG_DONTWAIT == 0 && !conn.is_nonblocking();
    let wait_all = flags & libc::MSG_WAITALL != 0;
    let peek = flags & libc::MSG_PEEK != 0;
    let mut stay = Stay::none();
    let number = fd;
    let mut fd = fd;
    // A blocking call goes on until it has so many (linux: sock_rcvlowat).
    let enough = if wait_all {
        buffers.total
    } else {
        buffers
            .total
            .min(conn.low_bytes.load(Ordering::Relaxed) as usize)
    };
    let before = Place::of(&called);
    loop {
        let end = called.by(fd);
        let mut parts = Parts {
            buffers,
            fd,
            skip: done,
            flags,
        };
        let moved = match attended(&end) {
            Ok(true) => fordway_sockets::receive(&end, &mut parts),
            Ok(false) => Ok(Moved::Kernel),
            Err(error) => Err(error),
        };
        match moved {
            Ok(Moved::Bytes(count)) if peek => {
                let more = count != 0 && count < enough && may_wait;
                let timeout_ns = conn.receive_timeout_ns.load(Ordering::Relaxed);
                let until = *deadline.get_or_insert_with(|| deadline_after(timeout_ns));
                if !more || has_end(&end) || until.has_passed() {
                    return Ok(Done::Bytes(count));
                }
                // No bell rings for the bytes behind those that are left.
                let _ = sys!(SYS_poll, 0, 0, LOOK_AGAIN_MS);
                if call.is_interrupted(true) {
                    return Ok(Done::Bytes(count));
                }
                continue;
            }
            Ok(Moved::Bytes(count)) => {
                done += count;
                if count == 0 || done == buffers.total {
                    return Ok(Done::Bytes(done));
                }
                if (done < enough || has_crossed(&end, before)) && !is_at_mark(&end) {
                    continue;
                }
                return Ok(Done::Bytes(done));
            }
            Ok(Moved::Nothing) if done != 0 && done >= enough => return Ok(Done::Bytes(done)),
            // The entry is another connection's.
            Ok(Moved::Kernel) if !end.is_same() => return Ok(Done::so_far(done)),
            Ok(Moved::Kernel) if done == 0 && stay.descriptor(fd) == number => {
                return Ok(Done::Kernel);
            }
            Ok(Moved::Kernel) if !may_wait || done != 0 && done >= enough => {
                return Ok(Done::Bytes(done));
            }
            // A call that waits for all of it, or one whose descriptor is gone: only this
            // call knows what is left to do.
            Ok(Moved::Kernel) => match parts.rest_by_kernel(conn) {
                None => continue,
                Some(Ok(count)) => {
                    done += count;
                    if count == 0 || done >= enough || peek {
                        return Ok(Done::Bytes(done));
                    }
                    continue;
                }
                Some(Err(_)) if done != 0 => return Ok(Done::Bytes(done)),
                Some(Err(error)) => return Err(error),
            },
            Ok(Moved::Nothing) => {}
            Err(_) if done != 0 => return Ok(Done::Bytes(done)),
            Err(error) => return Err(error),
        }
        if !may_wait {
            return if done == 0 {
                Err(libc::EAGAIN)
            } else {
                Ok(Done::Bytes(done))
            };
        }
        let timeout_ns = conn.receive_timeout_ns.load(Ordering::Relaxed);
        let until = *deadline.get_or_insert_with(|| deadline_after(timeout_ns));
        stay.begin(conn);
        if !end.is_same() {
            continue;
        }
        let low = conn.low_bytes.load(Ordering::Relaxed) > 1;
        if low && is_owed(&end) && !until.has_passed() && !call.is_interrupted(true) {
            let _ = sys!(SYS_poll, 0, 0, LOOK_AGAIN_MS);
            continue;
        }
        let slept = loop {
            let slept = wait::for_conn(conn, fd, Want::Bytes, until, (call, done != 0));
            if !low || slept.is_err() || !conn.is_paired() || has_cause(&end) {
                break slept;
            }
        };
        match slept {
            Ok(()) => fd = stay.descriptor(fd),
            Err(_) if done != 0 => return Ok(Done::Bytes(done)),
            Err(error) => return Err(error),
        }
    }
}

/// With SO_RCVLOWAT, fewer bytes than that wake nobody, not even one who has some already
/// (linux: tcp_data_ready).
fn has_cause(end: &At<'_>) -> bool {
    let shown = libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    is_ready(end, Want::Bytes)
        || is_owed(end)
        || end.state().hints.load(Ordering::Relaxed) & shown as u32 != 0
}

fn deadline_after(timeout_ns: u64) -> Deadline {
    Deadline::after((timeout_ns != 0).then_some(timeout_ns))
}

/// The buffers of one attempt.
struct Parts<'a> {
    buffers: &'a Buffers,
    fd: i32,
    skip: usize,
    flags: i32,
}

impl Parts<'_> {
    /// The rest by libc, which may sleep. `None`: there is a channel again.
    fn rest_by_kernel(&self, conn: &Conn) -> Option<sys::Result<usize>> {
        let left = self.buffers.total - self.skip;
        let (mut parts, used) = self.buffers.parts(self.skip, left);
        let mut message = message(&mut parts[..used]);
        // SAFETY: the program's buffers, as it passed them.
        let receive = || unsafe { real::recvmsg(self.fd, &raw mut message, self.flags) };
        by_libc(Unaware::reader, conn, receive)
    }
}

impl Target for Parts<'_> {
    fn wanted(&self) -> usize {
        self.buffers.total - self.skip
    }

    fn peeks(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    fn by_kernel(&mut self, limit: usize, peek: bool) -> sys::Result<usize> {
        let (mut parts, used) = self.buffers.parts(self.skip, limit);
        let mut message = message(&mut parts[..used]);
        let peek = if peek { libc::MSG_PEEK } else { 0 };
        let flags = self.flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT | peek;
        sys!(SYS_recvmsg, self.fd, &raw mut message, flags)
    }

    #[inline]
    fn by_ring(&mut self, consumer: &Consumer, count: usize) -> Result<(), NotCopied> {
        if self.flags & libc::MSG_TRUNC != 0 {
            return Ok(());
        }
        let mut at = 0u64;
        self.buffers.pieces(self.skip, count, |base, length| {
            faults::check(faults::is_writable(base, length)).map_err(NotCopied::Refused)?;
            // SAFETY: the program's buffer, found writable.
            unsafe { consumer.peek(copier(), Kernel::Plain, at, base, length)? };
            at += length as u64;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state;
    use crate::testing::tables;
    use crate::transfer::send;

    #[test]
    fn a_call_by_a_number_that_another_connection_has_is_libcs() {
        let _turn = tables();
        let fd = state::FD_COUNT as i32 - 3;
        // As `state::conn` finds it, before another thread closes the number...
        let found = state::add_conn(fd, false).expect("a place");
        state::free_conn(found);
        state::slot(fd)
            .expect("watched")
            .store(state::kind::OTHER, Ordering::Relaxed);
        // ... and the entry is another connection's, under another number, with a channel.
        let other = state::add_conn(fd - 1, false).expect("a place");
        assert!(core::ptr::eq(found, other), "the place is used again");
        other.phase.store(state::phase::PAIRED, Ordering::Relaxed);
        let mut byte = 0u8;
        let part = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        let buffers = Buffers::one(&part, true).expect("a buffer");
        assert!(matches!(receive(found, fd, &buffers, 0), Ok(Done::Kernel)));
        assert!(matches!(send(found, fd, &buffers, 0), Ok(Done::Kernel)));
        other.phase.store(state::phase::KERNEL, Ordering::Relaxed);
        state::free_conn(other);
    }
}
