//! The sending side of a transfer.

use super::position::sent_position;
use super::{Buffers, Done, Moved, attended, broken, copier, message, sends_by_kernel};
use crate::state::{Conn, attention, lock_word};
use crate::sys::{self, sys};
use crate::wait::{self, Deadline, Want};
use crate::{signals, upgrade};
use core::sync::atomic::Ordering;
use fordway_abi::shm::{tx_flags, tx_state};
use fordway_ring::copy::Kernel;
use fordway_ring::{Entered, Violation};

/// From this size on, bytes are written around the caches if the ring is large.
const NON_TEMPORAL_BYTES: usize = 16 * 1024;
/// A long write is handed over in pieces, so that the peer copies while we do.
const PIECE_BYTES: usize = 64 * 1024;

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
        if producer.back_bytes_or_zero() != 0 && !flush_back(conn, fd)? {
            return Ok(Moved::Nothing);
        }
        let moved = kernel_send(fd, buffers, skip, flags);
        drop(guard);
        upgrade::finish_if_over(conn);
        return moved;
    }
    let left = (buffers.total - skip).min(PIECE_BYTES);
    let room = room_for(conn, left).map_err(|violation| broken(conn, violation))?;
    let count = left.min(room);
    if count == 0 && left != 0 {
        return blocked(conn, fd, buffers, skip, flags);
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

/// The ring is full: because the peer is slow, or because it is gone? A peer that
/// closed or died takes nothing any more; the kernel then says what Linux says.
fn blocked(conn: &Conn, fd: i32, buffers: &Buffers, skip: usize, flags: i32) -> sys::Result<Moved> {
    if peer_is_gone(conn) {
        kernel_send(fd, buffers, skip, flags)
    } else {
        Ok(Moved::Nothing)
    }
}

fn peer_is_gone(conn: &Conn) -> bool {
    conn.attention.load(Ordering::Relaxed) & attention::PEER_GONE != 0
        || conn.peer_flags() & tx_flags::CLOSED != 0
        || conn.hints.load(Ordering::Relaxed) & (libc::POLLHUP | libc::POLLERR) as u32 != 0
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
    let stays = conn.is_paired() && !sends_by_kernel(conn) && !peer_is_gone(conn);
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
    if !conn.is_paired() || !on_ring(conn, fd)? {
        return Ok(None);
    }
    let producer = conn.producer();
    let wanted = wanted.min(PIECE_BYTES * 4);
    let room = room_for(conn, wanted).map_err(|violation| broken(conn, violation))?;
    if room == 0 {
        if peer_is_gone(conn) {
            // The kernel's sendfile then says what Linux says.
            return Ok(None);
        }
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
