//! The sending side of a transfer.

use super::record::{KeptOut, Way};
use super::{Begun, Buffers, Caller, Unaware, by_libc, copier, distance, message, record, short};
use crate::lock::{Guard, lock_word, rank};
use crate::state::Conn;
use crate::sys::{self, sys};
use crate::thread::Shield;
use crate::wait;
use crate::{epoll, faults, late, real};
use core::sync::atomic::{Ordering, fence};
use fordway_abi::shm::no_space;
use fordway_ring::Producer;
use fordway_ring::copy::Kernel;
use fordway_sockets::ready::Want;
use fordway_sockets::{
    Caller as _, Done, End as _, Moved, Source, Transfer, send_all, send_short, sends_by_kernel,
};

/// From this size on, bytes are written around the caches if the ring is large and the
/// peer far: three times as fast then, and half as fast if it is near.
pub const NON_TEMPORAL_BYTES: usize = 16 * 1024;
/// A long write is handed over in pieces, so that the peer copies while we do.
const PIECE_BYTES: usize = 64 * 1024;

/// A write of up to so much that may wait goes as a whole, as a pipe would have it.
const WHOLE_BYTES_MAX: usize = 4096;

/// What sendfile by the kernel copies at once, on the stack.
const FILE_PIECE_BYTES: usize = 16 * 1024;

/// send and its kin.
pub fn send(conn: &Conn, fd: i32, buffers: &Buffers, flags: i32) -> sys::Result<Done> {
    let Some(begun) = Begun::now(conn, fd, flags & libc::MSG_DONTWAIT == 0) else {
        return Ok(Done::Kernel);
    };
    let total = buffers.total;
    let is_short = total < NON_TEMPORAL_BYTES && conn.turn.load(Ordering::Relaxed) == 0;
    if is_short
        && short::is_untried(conn, buffers)
        && send_short(&begun.end, total, |ring| put_all(ring, buffers).is_ok())
    {
        return Ok(Done::Bytes(total));
    }
    send_all(&mut Sending::new(conn, fd, begun, buffers, flags), total)
}

/// A send of the program's buffers.
struct Sending<'a> {
    /// Held by a long send, which others do not part while there is room. Given back before the caller's stay, which may
    /// end the connection.
    turn: Option<Guard<'a>>,
    caller: Caller<'a>,
    buffers: &'a Buffers,
    flags: i32,
}

impl<'a> Sending<'a> {
    fn new(conn: &'a Conn, fd: i32, begun: Begun<'a>, buffers: &'a Buffers, flags: i32) -> Self {
        Self {
            turn: None,
            caller: Caller::new(conn, fd, begun),
            buffers,
            flags,
        }
    }

    fn parts(&self, done: usize) -> Parts<'_> {
        Parts {
            conn: self.caller.conn,
            buffers: self.buffers,
            fd: self.caller.fd,
            skip: done,
            flags: self.flags,
            may_wait: self.caller.may_wait,
            is_kept_out: false,
        }
    }

    #[inline(always)]
    fn attempt_once(&mut self, done: usize) -> (sys::Result<Moved>, bool) {
        let conn = self.caller.conn;
        if self.turn.is_none() {
            if self.buffers.total > PIECE_BYTES {
                self.turn = lock_word(&conn.turn, rank::TURN);
            } else if conn.turn.load(Ordering::Relaxed) != 0 {
                // Behind a long one.
                drop(lock_word(&conn.turn, rank::TURN));
            }
        }
        if self.buffers.total >= NON_TEMPORAL_BYTES {
            distance::look(conn);
        }
        let mut parts = self.parts(done);
        let moved = fordway_sockets::send(&self.caller.end(), &mut parts);
        (moved, parts.is_kept_out)
    }

    /// An attempt once the other process that sends a record has let go.
    #[cold]
    fn attempt_behind(&mut self, done: usize) -> sys::Result<Moved> {
        let kept_out = KeptOut::begin(
            self.caller.handled,
            self.caller.fd,
            Way::Out,
            self.caller.may_wait,
        );
        loop {
            self.turn = None;
            self.caller.stay();
            kept_out.pause()?;
            self.caller.fd = self.caller.stay.descriptor(self.caller.fd);
            if let (moved, false) = self.attempt_once(done) {
                return moved;
            }
        }
    }
}

impl<'a> Transfer for Sending<'a> {
    type Caller = Caller<'a>;

    #[inline]
    fn caller(&self) -> &Caller<'a> {
        &self.caller
    }

    #[inline]
    fn attempt(&mut self, done: usize) -> sys::Result<Moved> {
        let (moved, is_kept_out) = self.attempt_once(done);
        match is_kept_out {
            true => self.attempt_behind(done),
            false => moved,
        }
    }

    fn rest_by_kernel(&mut self, done: usize) -> Option<sys::Result<usize>> {
        // No turn is held in a sleep.
        self.turn = None;
        self.parts(done).rest_by_kernel(self.caller.conn)
    }

    fn sleep(&mut self, done: usize) -> sys::Result<()> {
        // Others may go on while this one sleeps, as on Linux.
        self.turn = None;
        self.caller.sleep(Want::Room, done, |_| false)
    }

    fn ends_in_vain(&self) {
        await_room(self.caller.conn);
    }
}

/// A send that may not wait found no room: that there is some again is an event.
fn await_room(conn: &Conn) {
    // The wish without the look for room would be a waiter's that nobody wakes.
    let _shield = Shield::new();
    conn.own()
        .tx_own
        .no_space
        .store(no_space::SEND, Ordering::SeqCst);
    late::give();
    epoll::warm_all(conn);
    // SYNC POINT with `Consumer::take`, and with a waiter of ours that announces itself: the wish before the look for room. Who
    // slept in between was told of room while nobody wished for any.
    fence(Ordering::SeqCst);
    let end = conn.end();
    if end.has_channel() && end.peer_is_there() {
        let producer = end.producer();
        // Of the kernel's room, the kernel tells.
        if !sends_by_kernel(&end) && producer.room_hint() * 2 >= producer.capacity_bytes() {
            end.wake_own();
        }
    }
}

/// The buffers of one attempt.
struct Parts<'a> {
    conn: &'a Conn,
    buffers: &'a Buffers,
    fd: i32,
    skip: usize,
    flags: i32,
    may_wait: bool,
    /// A record of another process goes just now.
    is_kept_out: bool,
}

/// All of the buffers, behind the tail.
#[inline(always)]
fn put_all(producer: &Producer, buffers: &Buffers) -> sys::Result<()> {
    match buffers.one_piece(0, buffers.total) {
        Some(base) => put(
            producer,
            Kernel::Plain,
            producer.tail(),
            base,
            buffers.total,
        ),
        None => put_pieces(producer, Kernel::Plain, buffers, (0, buffers.total)),
    }
}

/// As [`put`], of several parts: the bytes `[skip, skip + count)`, behind the tail.
#[inline(never)]
fn put_pieces(
    producer: &Producer,
    kernel: Kernel,
    buffers: &Buffers,
    (skip, count): (usize, usize),
) -> sys::Result<()> {
    let mut at = producer.tail();
    buffers.pieces(skip, count, |base, length| {
        put(producer, kernel, at, base, length)?;
        at = at.wrapping_add(length as u64);
        Ok(())
    })
}

/// Copies `count` bytes at `base` to stream index `at`, within the room.
#[inline(always)]
pub fn put(
    producer: &Producer,
    kernel: Kernel,
    at: u64,
    base: *mut u8,
    count: usize,
) -> sys::Result<()> {
    faults::check(faults::is_readable(base, count))?;
    // SAFETY: the program's buffer, found readable; within the room.
    unsafe { producer.write(copier(), kernel, at, base, count) };
    Ok(())
}

impl Parts<'_> {
    /// Whether they were written where they are to go.
    fn lies_there(&self, producer: &Producer, count: usize) -> bool {
        let reserved = self.conn.reserved.load(Ordering::Relaxed);
        let [(place, length), _] = producer.runs(count);
        reserved != 0 && length == count && self.buffers.one_piece(self.skip, count) == Some(place)
    }

    /// The rest by libc, which may sleep. `None`: there is a channel again.
    fn rest_by_kernel(&self, conn: &Conn) -> Option<sys::Result<usize>> {
        let left = self.buffers.total - self.skip;
        let send = || match self.buffers.is_record {
            true => record::by_libc(conn, self.fd, self.buffers, self.flags),
            false => self.buffers.with_parts(self.skip, left, |parts| {
                let message = message(parts);
                // SAFETY: the program's buffers, as it passed them.
                unsafe { real::sendmsg(self.fd, &raw const message, self.flags) }
            }),
        };
        by_libc(Unaware::sender, conn, send)
    }
}

impl Source for Parts<'_> {
    fn wanted(&self) -> usize {
        match self.buffers.is_record {
            false => (self.buffers.total - self.skip).min(PIECE_BYTES),
            true => self.buffers.total,
        }
    }

    fn least(&self) -> usize {
        let short = self.may_wait && self.buffers.total <= WHOLE_BYTES_MAX;
        if short || self.buffers.is_record {
            self.buffers.total - self.skip
        } else {
            0
        }
    }

    fn in_all(&self) -> usize {
        // A waiter is woken once half of the ring is free, and who asks is told of room from a third on. That has to be
        // enough for a record.
        match self.buffers.is_record {
            false => self.buffers.total - self.skip,
            true => self.buffers.total * 3,
        }
    }

    #[inline(always)]
    fn place(&self) -> usize {
        let base = self.buffers.one_piece(0, 0);
        base.map_or(0, |base| base.addr())
    }

    fn has_begun(&self) -> bool {
        self.skip != 0
    }

    #[inline(always)]
    fn by_ring(&mut self, producer: &Producer, count: usize) -> sys::Result<usize> {
        if self.lies_there(producer, count) {
            return Ok(count);
        }
        let around = count >= NON_TEMPORAL_BYTES && distance::is_far(self.conn);
        if around {
            producer.grow_for_large();
        }
        let kernel = if around && producer.capacity_bytes() >= 1 << 20 {
            Kernel::NonTemporal
        } else {
            Kernel::Plain
        };
        match self.buffers.one_piece(self.skip, count) {
            Some(base) => put(producer, kernel, producer.tail(), base, count)?,
            None => put_pieces(producer, kernel, self.buffers, (self.skip, count))?,
        }
        Ok(count)
    }

    #[cold]
    fn by_kernel(&mut self) -> sys::Result<Moved> {
        if self.buffers.is_record {
            let sent = record::by_kernel(self.conn, self.fd, self.buffers, self.flags)?;
            self.is_kept_out = sent.is_none();
            return Ok(sent.unwrap_or(Moved::Nothing));
        }
        let flags = self.flags | libc::MSG_DONTWAIT;
        let left = self.buffers.total - self.skip;
        let sent = self.buffers.with_parts(self.skip, left, |parts| {
            let message = message(parts);
            sys!(SYS_sendmsg, self.fd, &raw const message, flags)
        });
        moved(sent)
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
pub fn send_file(
    conn: &Conn,
    fd: i32,
    file: i32,
    offset: *mut i64,
    count: usize,
) -> sys::Result<Done> {
    if offset.is_null() {
        // Only what has a position is sent in this way (linux: splice_direct_to_actor);
        // the kernel has the right error for all else.
        if sys!(SYS_lseek, file, 0, libc::SEEK_CUR).is_err() {
            return Ok(Done::Kernel);
        }
    } else {
        faults::check(faults::can_read(offset))?;
    }
    let Some(begun) = Begun::now(conn, fd, true) else {
        return Ok(Done::Kernel);
    };
    let call = &mut Filing {
        caller: Caller::new(conn, fd, begun),
        file,
        offset,
        count,
    };
    send_all(call, count)
}

/// A send of a stretch of a file.
struct Filing<'a> {
    caller: Caller<'a>,
    file: i32,
    offset: *mut i64,
    count: usize,
}

impl<'a> Transfer for Filing<'a> {
    type Caller = Caller<'a>;

    #[inline]
    fn caller(&self) -> &Caller<'a> {
        &self.caller
    }

    fn attempt(&mut self, done: usize) -> sys::Result<Moved> {
        let stretch = &mut File {
            fd: self.caller.fd,
            file: self.file,
            offset: self.offset,
            wanted: self.count - done,
        };
        fordway_sockets::send(&self.caller.end(), stretch)
    }

    fn rest_by_kernel(&mut self, done: usize) -> Option<sys::Result<usize>> {
        let (fd, file, offset) = (self.caller.fd, self.file, self.offset);
        let left = self.count - done;
        // SAFETY: the program's own arguments, and a descriptor of the connection.
        let call = || unsafe { real::sendfile(fd, file, offset, left) };
        by_libc(Unaware::sender, self.caller.conn, call)
    }

    fn sleep(&mut self, done: usize) -> sys::Result<()> {
        self.caller.sleep(Want::Room, done, |_| false)
    }

    fn ends_in_vain(&self) {
        await_room(self.caller.conn);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Channel, Silent, tables};

    #[test]
    fn who_went_to_sleep_before_room_was_wished_for_is_told_of_what_is_there() {
        let _turn = tables();
        let _broker = Silent::broker();
        let channel = Channel::new([74, 75], |_, _| {});
        let [near, far] = channel.ends;
        let count = channel.fill();
        let _shield = Shield::new();
        let bell = wait::acquire();
        let rings = || {
            let mut entry = libc::pollfd {
                fd: bell.fd,
                events: libc::POLLIN,
                revents: 0,
            };
            sys!(SYS_poll, &raw mut entry, 1, 0) == Ok(1)
        };
        // As an epoll instance waits for an edge.
        let doors = &near.own().wait.tx_doors;
        doors.fetch_or(bell.bit(), Ordering::SeqCst);
        bell.announce();
        await_room(near);
        assert!(!rings(), "no room");
        near.own().tx_own.no_space.store(0, Ordering::SeqCst);
        // The peer takes all, before a send that found none says so.
        let consumer = far.consumer();
        assert_eq!(consumer.fill_bytes(), Ok(count as u64));
        consumer.take(count).expect("they are there");
        await_room(near);
        assert!(rings());
        bell.retract();
        doors.fetch_and(!bell.bit(), Ordering::SeqCst);
        wait::release(bell);
    }
}
