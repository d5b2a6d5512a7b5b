//! The sending side of a transfer.

use super::{Buffers, Done, Unaware, attended, by_libc, copier, distance, message};
use crate::deadline::Deadline;
use crate::end::At;
use crate::signals::Call;
use crate::state::{Conn, Guard, lock_word};
use crate::stay::Stay;
use crate::sys::{self, sys};
use crate::wait;
use crate::{epoll, faults, real};
use core::sync::atomic::Ordering;
use fordway_ring::Producer;
use fordway_ring::copy::Kernel;
use fordway_sockets::ready::Want;
use fordway_sockets::{End, Moved, Source, sends_by_kernel};

/// From this size on, bytes are written around the caches if the ring is large and the
/// peer far: three times as fast then, and half as fast if it is near.
const NON_TEMPORAL_BYTES: usize = 16 * 1024;
/// A long write is handed over in pieces, so that the peer copies while we do.
const PIECE_BYTES: usize = 64 * 1024;

/// A write of up to so much that may wait goes as a whole, as a pipe would have it.
const RECORD_BYTES_MAX: usize = 4096;

/// What sendfile by the kernel copies at once, on the stack.
const FILE_PIECE_BYTES: usize = 16 * 1024;

/// send and its kin.
pub fn send(conn: &Conn, fd: i32, buffers: &Buffers, flags: i32) -> sys::Result<Done> {
    let Some(called) = At::called(conn, fd) else {
        return Ok(Done::Kernel);
    };
    let mut done = 0;
    let mut deadline = None;
    let call = Call::begin();
    let mut stay = Stay::none();
    let number = fd;
    let mut fd = fd;
    let may_wait = flags & libc::MSG_DONTWAIT == 0 && !conn.is_nonblocking();
    let mut turn: Option<Guard<'_>> = None;
    loop {
        if buffers.total > PIECE_BYTES && turn.is_none() {
            turn = lock_word(&conn.turn);
        } else if turn.is_none() && conn.turn.load(Ordering::Relaxed) != 0 {
            // Behind a long one.
            drop(lock_word(&conn.turn));
        }
        if buffers.total >= NON_TEMPORAL_BYTES && conn.is_paired() {
            distance::look(conn);
        }
        let mut parts = Parts {
            conn,
            buffers,
            fd,
            skip: done,
            flags,
            may_wait,
        };
        let end = called.by(fd);
        let moved = match attended(&end) {
            Ok(true) => fordway_sockets::send(&end, &mut parts),
            Ok(false) => Ok(Moved::Kernel),
            Err(error) => Err(error),
        };
        match moved {
            Ok(Moved::Bytes(count)) => {
                done += count;
                if done == buffers.total {
                    return Ok(Done::Bytes(done));
                }
                continue;
            }
            // The entry is another connection's.
            Ok(Moved::Kernel) if !end.is_same() => return Ok(Done::so_far(done)),
            Ok(Moved::Kernel) if done == 0 && stay.descriptor(fd) == number => {
                return Ok(Done::Kernel);
            }
            Ok(Moved::Kernel) if !may_wait => return Ok(Done::Bytes(done)),
            // A call that may wait sends all of it. No turn is held in a sleep.
            Ok(Moved::Kernel) => match parts.rest_by_kernel(conn, turn.take()) {
                None => continue,
                Some(Ok(count)) => {
                    done += count;
                    if done == buffers.total || call.is_interrupted(true) {
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
            await_room(conn);
            return if done == 0 {
                Err(libc::EAGAIN)
            } else {
                Ok(Done::Bytes(done))
            };
        }
        let timeout_ns = conn.send_timeout_ns.load(Ordering::Relaxed);
        let until = *deadline
            .get_or_insert_with(|| Deadline::after((timeout_ns != 0).then_some(timeout_ns)));
        turn = None;
        stay.begin(conn);
        // Others may go on while this one sleeps, as on Linux.
        drop(turn.take());
        if !end.is_same() {
            continue;
        }
        match wait::for_conn(conn, fd, Want::Room, until, (call, done != 0)) {
            Ok(()) => fd = stay.descriptor(fd),
            Err(_) if done != 0 => return Ok(Done::Bytes(done)),
            Err(error) => return Err(error),
        }
    }
}

/// A send that may not wait found no room: that there is some again is an event.
fn await_room(conn: &Conn) {
    conn.own().tx_own.no_space.store(1, Ordering::SeqCst);
    epoll::warm_all(conn);
}

/// The buffers of one attempt.
struct Parts<'a> {
    conn: &'a Conn,
    buffers: &'a Buffers,
    fd: i32,
    skip: usize,
    flags: i32,
    may_wait: bool,
}

impl Parts<'_> {
    /// The rest by libc, which may sleep. `None`: there is a channel again.
    fn rest_by_kernel(&self, conn: &Conn, turn: Option<Guard<'_>>) -> Option<sys::Result<usize>> {
        drop(turn);
        let left = self.buffers.total - self.skip;
        let (mut parts, used) = self.buffers.parts(self.skip, left);
        let message = message(&mut parts[..used]);
        // SAFETY: the program's buffers, as it passed them.
        let send = || unsafe { real::sendmsg(self.fd, &raw const message, self.flags) };
        by_libc(Unaware::sender, conn, send)
    }
}

impl Source for Parts<'_> {
    #[inline]
    fn wanted(&self) -> usize {
        (self.buffers.total - self.skip).min(PIECE_BYTES)
    }

    #[inline]
    fn least(&self) -> usize {
        let whole = self.may_wait && self.buffers.total <= RECORD_BYTES_MAX;
        if whole {
            self.buffers.total - self.skip
        } else {
            0
        }
    }

    fn in_all(&self) -> usize {
        self.buffers.total - self.skip
    }

    fn has_begun(&self) -> bool {
        self.skip != 0
    }

    #[inline]
    fn by_ring(&mut self, producer: &Producer, count: usize) -> sys::Result<usize> {
        let around = count >= NON_TEMPORAL_BYTES && distance::is_far(self.conn);
        if around {
            producer.grow_for_large();
        }
        let kernel = if around && producer.capacity_bytes() >= 1 << 20 {
            Kernel::NonTemporal
        } else {
            Kernel::Plain
        };
        let mut at = producer.tail();
        self.buffers.pieces(self.skip, count, |base, length| {
            faults::check(faults::is_readable(base, length))?;
            // SAFETY: the program's buffer, found readable; within the room.
            unsafe { producer.write(copier(), kernel, at, base, length) };
            at = at.wrapping_add(length as u64);
            Ok::<(), i32>(())
        })?;
        Ok(count)
    }

    fn by_kernel(&mut self) -> sys::Result<Moved> {
        let (mut parts, used) = self
            .buffers
            .parts(self.skip, self.buffers.total - self.skip);
        let message = message(&mut parts[..used]);
        let flags = self.flags | libc::MSG_DONTWAIT;
        moved(sys!(SYS_sendmsg, self.fd, &raw const message, flags))
    }

    fn break_pipe(&self) {
        if self.flags & libc::MSG_NOSIGNAL == 0 {
            break_pipe();
        }
    }
}

fn moved(sent: sys::Result<usize>) -> sys::Result<Moved> {
    wait::acted();
    match sent {
        Ok(count) => Ok(Moved::Bytes(count)),
        Err(libc::EAGAIN) => Ok(Moved::Nothing),
        Err(error) => Err(error),
    }
}

/// As the kernel raises SIGPIPE: for the thread that sends.
fn break_pipe() {
    let (pid, thread) = (sys!(SYS_getpid), sys!(SYS_gettid));
    let _ = sys!(
        SYS_tgkill,
        pid.unwrap_or(0),
        thread.unwrap_or(0),
        libc::SIGPIPE
    );
}

/// sendfile into the ring: the file's bytes are read right into ring memory.
/// `None`: the connection has no channel, or does not send by the ring at present.
pub fn send_file(
    conn: &Conn,
    fd: i32,
    file: i32,
    offset: *mut i64,
    count: usize,
) -> sys::Result<Option<usize>> {
    if offset.is_null() {
        // Only what has a position is sent in this way (linux: splice_direct_to_actor);
        // the kernel has the right error for all else.
        if sys!(SYS_lseek, file, 0, libc::SEEK_CUR).is_err() {
            return Ok(None);
        }
    } else {
        faults::check(faults::can_read(offset))?;
    }
    let Some(called) = At::called(conn, fd) else {
        return Ok(None);
    };
    let mut done = 0;
    let mut deadline = None;
    let call = Call::begin();
    let mut stay = Stay::none();
    let number = fd;
    let mut fd = fd;
    while done < count {
        let end = called.by(fd);
        if !attended(&end)? {
            break;
        }
        let mut stretch = File {
            fd,
            file,
            offset,
            wanted: count - done,
        };
        match fordway_sockets::send(&end, &mut stretch) {
            Ok(Moved::Bytes(0) | Moved::Kernel) => break,
            Ok(Moved::Bytes(moved)) => {
                done += moved;
                continue;
            }
            Ok(Moved::Nothing) => {}
            Err(_) if done != 0 => break,
            Err(error) => return Err(error),
        }
        if conn.is_nonblocking() {
            await_room(conn);
            return if done == 0 {
                Err(libc::EAGAIN)
            } else {
                Ok(Some(done))
            };
        }
        let timeout_ns = conn.send_timeout_ns.load(Ordering::Relaxed);
        let until = *deadline
            .get_or_insert_with(|| Deadline::after((timeout_ns != 0).then_some(timeout_ns)));
        stay.begin(conn);
        if !end.is_same() {
            continue;
        }
        match wait::for_conn(conn, fd, Want::Room, until, (call, done != 0)) {
            Ok(()) => fd = stay.descriptor(fd),
            Err(_) if done != 0 => break,
            Err(error) => return Err(error),
        }
    }
    let end = called.by(fd);
    if done != 0 || end.has_channel() && !sends_by_kernel(&end) {
        return Ok(Some(done));
    }
    // Libc's to do; but behind a sleep the program's number may be another file's.
    if !end.is_same() || stay.descriptor(fd) == number {
        return Ok(None);
    }
    let fd = stay.descriptor(fd);
    // SAFETY: the program's own arguments, and a descriptor of the connection.
    let call = || unsafe { real::sendfile(fd, file, offset, count) };
    match by_libc(Unaware::sender, conn, call) {
        Some(sent) => sent.map(Some),
        None => send_file(conn, fd, file, offset, count),
    }
}

/// A stretch of a file.
struct File {
    fd: i32,
    file: i32,
    offset: *mut i64,
    wanted: usize,
}

impl Source for File {
    fn wanted(&self) -> usize {
        self.wanted.min(PIECE_BYTES * 4)
    }

    fn least(&self) -> usize {
        0
    }

    fn in_all(&self) -> usize {
        self.wanted()
    }

    fn has_begun(&self) -> bool {
        false
    }

    fn by_ring(&mut self, producer: &Producer, count: usize) -> sys::Result<usize> {
        let parts = producer.runs(count).map(|(base, length)| libc::iovec {
            iov_base: base.cast(),
            iov_len: length,
        });
        if self.offset.is_null() {
            return sys!(SYS_readv, self.file, parts.as_ptr(), 2);
        }
        // SAFETY: the program's offset, which `send_file` found readable.
        let at = unsafe { *self.offset };
        // One piece, unless the ring wraps: pread spares the kernel a look at the parts.
        let [first, second] = &parts;
        let count = match second.iov_len {
            0 => sys!(SYS_pread64, self.file, first.iov_base, first.iov_len, at)?,
            _ => sys!(SYS_preadv, self.file, parts.as_ptr(), 2, at, 0)?,
        };
        faults::check(faults::give(self.offset, at + count as i64))?;
        Ok(count)
    }

    fn by_kernel(&mut self) -> sys::Result<Moved> {
        file_by_kernel(self.fd, self.file, self.offset, self.wanted)
    }

    fn break_pipe(&self) {
        break_pipe();
    }
}

/// sendfile by the kernel while the channel is there, without a sleep under the lock:
/// sendfile itself takes no MSG_DONTWAIT. A file without a position is libc's to do.
fn file_by_kernel(fd: i32, file: i32, offset: *mut i64, wanted: usize) -> sys::Result<Moved> {
    let at = if offset.is_null() {
        match sys!(SYS_lseek, file, 0, libc::SEEK_CUR) {
            Ok(at) => at as i64,
            Err(libc::ESPIPE) => return Ok(Moved::Kernel),
            Err(error) => return Err(error),
        }
    } else {
        // SAFETY: as in `File::by_ring`.
        unsafe { *offset }
    };
    let mut buffer = [0u8; FILE_PIECE_BYTES];
    let wanted = wanted.min(buffer.len());
    let count = sys!(SYS_pread64, file, buffer.as_mut_ptr(), wanted, at)?;
    if count == 0 {
        return Ok(Moved::Bytes(0));
    }
    let sent = match sys!(
        SYS_sendto,
        fd,
        buffer.as_ptr(),
        count,
        libc::MSG_DONTWAIT,
        0,
        0
    ) {
        Ok(sent) => sent,
        Err(libc::EAGAIN) => return Ok(Moved::Nothing),
        Err(error) => return Err(error),
    };
    let after = at + sent as i64;
    if offset.is_null() {
        sys!(SYS_lseek, file, after, libc::SEEK_SET)?;
    } else {
        faults::check(faults::give(offset, after))?;
    }
    Ok(Moved::Bytes(sent))
}
