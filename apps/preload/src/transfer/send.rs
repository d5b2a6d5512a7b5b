//! The sending side of a transfer.

use super::position::sent_position;
use super::{Buffers, Done, Moved, attended, broken, copier, message, sends_by_kernel};
use crate::state::{Conn, lock_word};
use crate::sys::{self, sys};
use crate::wait::{self, Deadline, Want};
use crate::{ends, signals, upgrade};
use core::sync::atomic::Ordering;
use fordway_abi::shm::{tx_flags, tx_state};
use fordway_ring::copy::Kernel;
use fordway_ring::{Entered, Violation};

/// From this size on, bytes are written around the caches if the ring is large.
const NON_TEMPORAL_BYTES: usize = 16 * 1024;
/// A long write is handed over in pieces, so that the peer copies while we do.
const PIECE_BYTES: usize = 64 * 1024;

/// What sendfile by the kernel copies at once, on the stack.
const FILE_PIECE_BYTES: usize = 16 * 1024;
/// Ends a call that has sent something: that is its result, and the error is the next one's to fetch.
const WENT_SO_FAR: i32 = libc::EPIPE;

/// send and its kin.
pub fn send(conn: &Conn, fd: i32, buffers: &Buffers, flags: i32) -> sys::Result<Done> {
    let mut done = 0;
    let mut deadline = None;
    let may_wait = flags & libc::MSG_DONTWAIT == 0 && !conn.is_nonblocking();
    loop {
        if !attended(conn, fd)? {
            return Ok(if done == 0 {
                Done::Kernel
            } else {
                Done::Bytes(done)
            });
        }
        match try_send(conn, fd, buffers, done, flags) {
            Ok(Moved::Bytes(count)) => {
                done += count;
                if done == buffers.total {
                    return Ok(Done::Bytes(done));
                }
                continue;
            }
            Ok(Moved::Kernel) => {
                return Ok(if done == 0 {
                    Done::Kernel
                } else {
                    Done::Bytes(done)
                });
            }
            Ok(Moved::Nothing) => {}
            Err(_) if done != 0 => return Ok(Done::Bytes(done)),
            Err(error) => return Err(error),
        }
        if !may_wait {
            conn.own().tx_own.no_space.store(1, Ordering::Relaxed);
            return if done == 0 {
                Err(libc::EAGAIN)
            } else {
                Ok(Done::Bytes(done))
            };
        }
        let timeout_ns = conn.send_timeout_ns.load(Ordering::Relaxed);
        let until = *deadline
            .get_or_insert_with(|| Deadline::after((timeout_ns != 0).then_some(timeout_ns)));
        match wait::for_conn(conn, fd, Want::Room, until) {
            Ok(()) => {}
            Err(libc::EINTR) if timeout_ns == 0 && done == 0 && signals::restarts() => {}
            Err(_) if done != 0 => return Ok(Done::Bytes(done)),
            Err(error) => return Err(error),
        }
    }
}

fn try_send(
    conn: &Conn,
    fd: i32,
    buffers: &Buffers,
    skip: usize,
    flags: i32,
) -> sys::Result<Moved> {
    let own = conn.own();
    let Some(guard) = lock_word(&own.tx_own.lock) else {
        return Err(libc::EAGAIN);
    };
    if !conn.is_paired() {
        return Ok(Moved::Kernel);
    }
    let producer = conn.producer();
    if !on_ring(conn, fd)? {
        if skip != 0 && ends::has_error(conn, fd) {
            return Err(WENT_SO_FAR);
        }
        if producer.back_bytes_or_zero() != 0 && !flush_back(conn, fd)? {
            return Ok(Moved::Nothing);
        }
        let moved = kernel_send(fd, buffers, skip, flags);
        drop(guard);
        upgrade::finish_if_over(conn);
        return moved;
    }
    if ends::is_dead(conn) {
        drop(guard);
        if skip != 0 {
            return Err(WENT_SO_FAR);
        }
        return ends::send(conn, fd, flags, || kernel_send(fd, buffers, skip, flags));
    }
    let left = (buffers.total - skip).min(PIECE_BYTES);
    let room = room_for(conn, left).map_err(|violation| broken(conn, violation))?;
    let count = left.min(room);
    if count == 0 && left != 0 {
        return Ok(Moved::Nothing);
    }
    let kernel = if count >= NON_TEMPORAL_BYTES && producer.capacity_bytes() >= 1 << 20 {
        Kernel::NonTemporal
    } else {
        Kernel::Plain
    };
    let mut at = producer.tail();
    buffers.pieces(skip, count, |base, length| {
        // SAFETY: the program's buffer, as it passed it; within the room.
        unsafe { producer.write(copier(), kernel, at, base, length) };
        at = at.wrapping_add(length as u64);
    });
    producer.publish(count);
    drop(guard);
    after_publish(conn, fd);
    Ok(Moved::Bytes(count))
}

/// Room for a send of `wanted` bytes, grown if the ring is too small for what goes on.
fn room_for(conn: &Conn, wanted: usize) -> Result<usize, Violation> {
    let producer = conn.producer();
    let room = producer.room_bytes(wanted)?;
    if room < wanted && producer.grow(wanted) {
        producer.room_bytes(wanted)
    } else {
        Ok(room)
    }
}

fn after_publish(conn: &Conn, fd: i32) {
    let (doors, stopped) = conn.producer().peer_waits();
    conn.mark();
    conn.ring(doors);
    wait::note_cpu(conn);
    if stopped {
        upgrade::leave_ring(conn, fd);
    }
}

/// Whether bytes may go to the ring; enters it if the time has come. Under the tx lock.
fn on_ring(conn: &Conn, fd: i32) -> sys::Result<bool> {
    let producer = conn.producer();
    if conn.own().tx.tx_flags.load(Ordering::Relaxed) & tx_flags::SHUT != 0 {
        return Ok(false);
    }
    match producer.state() {
        tx_state::RING => Ok(true),
        tx_state::KERNEL => Ok(conn.peer_is_there()
            && conn.senders.load(Ordering::SeqCst) == 0
            && producer.enter(|| sent_position(fd)) == Entered::Yes),
        _ => Ok(false),
    }
}

/// A send by the kernel that does not sleep. It raises SIGPIPE by itself.
fn kernel_send(fd: i32, buffers: &Buffers, skip: usize, flags: i32) -> sys::Result<Moved> {
    let (mut parts, used) = buffers.parts(skip, buffers.total - skip);
    let message = message(&mut parts[..used]);
    match sys!(
        SYS_sendmsg,
        fd,
        &raw const message,
        flags | libc::MSG_DONTWAIT
    ) {
        Ok(count) => Ok(Moved::Bytes(count)),
        Err(libc::EAGAIN) => Ok(Moved::Nothing),
        Err(error) => Err(error),
    }
}

/// Sends by the kernel what was left in the ring; true when all of it went. Under the tx lock.
pub fn flush_back(conn: &Conn, fd: i32) -> sys::Result<bool> {
    let producer = conn.producer();
    while producer.back_bytes() != 0 {
        let (base, length) = producer.back_run();
        match sys!(
            SYS_sendto,
            fd,
            base,
            length,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            0,
            0
        ) {
            Ok(count) => producer.back_sent(count),
            Err(libc::EINTR) => {}
            Err(libc::EAGAIN) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
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
    let mut done = 0;
    let mut deadline = None;
    while done < count {
        if !attended(conn, fd)? {
            break;
        }
        match try_send_file(conn, fd, file, offset, count - done) {
            Ok(Some(Moved::Bytes(0))) => break,
            Ok(Some(Moved::Bytes(moved))) => {
                done += moved;
                continue;
            }
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) if done != 0 => break,
            Err(error) => return Err(error),
        }
        if conn.is_nonblocking() {
            conn.own().tx_own.no_space.store(1, Ordering::Relaxed);
            return if done == 0 {
                Err(libc::EAGAIN)
            } else {
                Ok(Some(done))
            };
        }
        let timeout_ns = conn.send_timeout_ns.load(Ordering::Relaxed);
        let until = *deadline
            .get_or_insert_with(|| Deadline::after((timeout_ns != 0).then_some(timeout_ns)));
        match wait::for_conn(conn, fd, Want::Room, until) {
            Err(libc::EINTR) if done == 0 && signals::restarts() => {}
            Err(_) if done != 0 => break,
            other => other?,
        }
    }
    let stays = conn.is_paired() && !sends_by_kernel(conn);
    Ok((done != 0 || stays).then_some(done))
}

fn try_send_file(
    conn: &Conn,
    fd: i32,
    file: i32,
    offset: *mut i64,
    wanted: usize,
) -> sys::Result<Option<Moved>> {
    let own = conn.own();
    let Some(guard) = lock_word(&own.tx_own.lock) else {
        return Err(libc::EAGAIN);
    };
    if !conn.is_paired() {
        return Ok(None);
    }
    let producer = conn.producer();
    if !on_ring(conn, fd)? {
        if producer.back_bytes_or_zero() != 0 && !flush_back(conn, fd)? {
            return Ok(Some(Moved::Nothing));
        }
        let moved = file_by_kernel(fd, file, offset, wanted);
        drop(guard);
        upgrade::finish_if_over(conn);
        return moved;
    }
    if ends::is_dead(conn) {
        drop(guard);
        return ends::send(conn, fd, 0, || {
            sys!(SYS_sendfile, fd, file, offset, wanted).map(|count| Some(Moved::Bytes(count)))
        });
    }
    let wanted = wanted.min(PIECE_BYTES * 4);
    let room = room_for(conn, wanted).map_err(|violation| broken(conn, violation))?;
    if room == 0 {
        return Ok(Some(Moved::Nothing));
    }
    let runs = producer.runs(wanted.min(room));
    let parts = runs.map(|(base, length)| libc::iovec {
        iov_base: base.cast(),
        iov_len: length,
    });
    let count = if offset.is_null() {
        sys!(SYS_readv, file, parts.as_ptr(), 2)?
    } else {
        // SAFETY: the program's offset, as sendfile takes it.
        let at = unsafe { *offset };
        let count = sys!(SYS_preadv, file, parts.as_ptr(), 2, at, 0)?;
        // SAFETY: as above.
        unsafe { *offset = at + count as i64 };
        count
    };
    producer.publish(count);
    drop(guard);
    after_publish(conn, fd);
    Ok(Some(Moved::Bytes(count)))
}

/// sendfile by the kernel while the channel is there, without a sleep under the lock:
/// sendfile itself takes no MSG_DONTWAIT. `None`: the file has no position, it is libc's to do.
fn file_by_kernel(
    fd: i32,
    file: i32,
    offset: *mut i64,
    wanted: usize,
) -> sys::Result<Option<Moved>> {
    let at = if offset.is_null() {
        match sys!(SYS_lseek, file, 0, libc::SEEK_CUR) {
            Ok(at) => at as i64,
            Err(libc::ESPIPE) => return Ok(None),
            Err(error) => return Err(error),
        }
    } else {
        // SAFETY: the program's offset, as sendfile takes it.
        unsafe { *offset }
    };
    let mut buffer = [0u8; FILE_PIECE_BYTES];
    let wanted = wanted.min(buffer.len());
    let count = sys!(SYS_pread64, file, buffer.as_mut_ptr(), wanted, at)?;
    if count == 0 {
        return Ok(Some(Moved::Bytes(0)));
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
        Err(libc::EAGAIN) => return Ok(Some(Moved::Nothing)),
        Err(error) => return Err(error),
    };
    let after = at + sent as i64;
    if offset.is_null() {
        sys!(SYS_lseek, file, after, libc::SEEK_SET)?;
    } else {
        // SAFETY: as above.
        unsafe { *offset = after };
    }
    Ok(Some(Moved::Bytes(sent)))
}
