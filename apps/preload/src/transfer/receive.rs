//! The receiving side of a transfer.

use super::{Buffers, Done, Moved, attended, broken, copier, message};
use crate::state::{Conn, hint, lock_word};
use crate::sys::{self, sys};
use crate::wait::{self, Deadline, Want};
use crate::{ends, signals, upgrade};
use core::sync::atomic::Ordering;
use fordway_abi::shm::{tx_flags, tx_state};
use fordway_ring::Violation;
use fordway_ring::copy::Kernel;

/// Empty reads of a ring in a row before the kernel is asked for an end of file.
const EMPTY_READS_MAX: u32 = 8;
/// Between two looks of a MSG_PEEK with MSG_WAITALL.
const PEEK_AGAIN_MS: i32 = 1;

/// Longest wait for bytes that were taken back and are on their way.
const WITHDRAWN_WAIT_MS: i32 = 20;

/// recv and its kin.
pub fn receive(conn: &Conn, fd: i32, buffers: &Buffers, flags: i32) -> sys::Result<Done> {
    let mut done = 0;
    let mut deadline = None;
    let may_wait = flags & libc::MSG_DONTWAIT == 0 && !conn.is_nonblocking();
    let wait_all = flags & libc::MSG_WAITALL != 0;
    let peek = flags & libc::MSG_PEEK != 0;
    let before = place(conn);
    loop {
        if !attended(conn, fd)? {
            return Ok(if done == 0 {
                Done::Kernel
            } else {
                Done::Bytes(done)
            });
        }
        match try_receive(conn, fd, buffers, done, flags) {
            Ok(Moved::Bytes(count)) if peek => {
                let more = count != 0 && count < buffers.total && wait_all && may_wait;
                let timeout_ns = conn.receive_timeout_ns.load(Ordering::Relaxed);
                let until = *deadline.get_or_insert_with(|| deadline_after(timeout_ns));
                if !more || has_end(conn) || until.has_passed() {
                    return Ok(Done::Bytes(count));
                }
                // No bell rings for the bytes behind those that are left.
                sys!(SYS_poll, 0, 0, PEEK_AGAIN_MS)?;
                continue;
            }
            Ok(Moved::Bytes(count)) => {
                done += count;
                if count == 0 || done == buffers.total {
                    return Ok(Done::Bytes(done));
                }
                if wait_all || has_crossed(conn, before) {
                    continue;
                }
                return Ok(Done::Bytes(done));
            }
            Ok(Moved::Nothing) if done != 0 && !wait_all => return Ok(Done::Bytes(done)),
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
            return if done == 0 {
                Err(libc::EAGAIN)
            } else {
                Ok(Done::Bytes(done))
            };
        }
        let timeout_ns = conn.receive_timeout_ns.load(Ordering::Relaxed);
        let until = *deadline.get_or_insert_with(|| deadline_after(timeout_ns));
        match wait::for_conn(conn, fd, Want::Bytes, until) {
            Ok(()) => {}
            Err(libc::EINTR) if timeout_ns == 0 && done == 0 && signals::restarts() => {}
            Err(_) if done != 0 => return Ok(Done::Bytes(done)),
            Err(error) => return Err(error),
        }
    }
}

/// Where in the stream the next byte is taken: kernel and ring.
fn place(conn: &Conn) -> (u64, u64) {
    let position = conn.own().rx_own.kernel_position.load(Ordering::Relaxed);
    (position, conn.consumer().head())
}

/// Whether this call has come to the end of the kernel's part, or of a ring that is
/// over, and there may be more behind it. A program that waits for edges takes a short
/// read for the end of what there is, so one call must not stop at the seam.
fn has_crossed(conn: &Conn, before: (u64, u64)) -> bool {
    if !conn.is_paired() || !conn.peer_is_there() {
        return false;
    }
    let (position, head) = place(conn);
    match conn.consumer().producer_state() {
        tx_state::RING => position != before.0 && wait::has_ring_bytes(conn),
        tx_state::BACK => {
            (position, head) != before && (head != before.1 || wait::has_ring_bytes(conn))
        }
        _ => false,
    }
}

fn deadline_after(timeout_ns: u64) -> Deadline {
    Deadline::after((timeout_ns != 0).then_some(timeout_ns))
}

/// Whether the stream ends behind what is there, or the kernel has a part of it still.
fn has_end(conn: &Conn) -> bool {
    let ends = tx_flags::SHUT | tx_flags::CLOSED;
    conn.hints.load(Ordering::Relaxed) & libc::POLLRDHUP as u32 != 0
        || !conn.is_paired()
        || conn.peer_is_there() && conn.peer_flags() & ends != 0
        || conn.consumer().head() == 0
}

fn try_receive(
    conn: &Conn,
    fd: i32,
    buffers: &Buffers,
    skip: usize,
    flags: i32,
) -> sys::Result<Moved> {
    let own = conn.own();
    let Some(guard) = lock_word(&own.rx_own.lock) else {
        return Err(libc::EAGAIN);
    };
    if !conn.is_paired() {
        return Ok(Moved::Kernel);
    }
    let wanted = buffers.total - skip;
    let consumer = conn.consumer();
    let state = if conn.peer_is_there() {
        consumer.producer_state()
    } else {
        tx_state::KERNEL
    };
    if state == tx_state::KERNEL || state == tx_state::WITHDRAWN || consumer.has_stopped() {
        let mut moved = kernel_receive(conn, fd, buffers, skip, wanted, flags);
        if matches!(moved, Ok(Moved::Nothing)) && is_on_its_way(conn, fd, state) {
            moved = kernel_receive(conn, fd, buffers, skip, wanted, flags);
        }
        let ended = matches!(moved, Ok(Moved::Bytes(0))) && wanted != 0;
        if ended && conn.peer_is_there() && consumer.producer_state() != state {
            // The producer entered the ring, and ended, between the two looks.
            drop(guard);
            return try_receive(conn, fd, buffers, skip, flags);
        }
        return moved;
    }
    if !consumer.was_entered() {
        drop(guard);
        upgrade::finish_if_over(conn);
        return kernel_receive(conn, fd, buffers, skip, wanted, flags);
    }
    let position = own.rx_own.kernel_position.load(Ordering::Relaxed);
    let switch_at = consumer.switch_at();
    if position < switch_at {
        let limit = (switch_at - position).min(wanted as u64) as usize;
        return kernel_receive(conn, fd, buffers, skip, limit, flags);
    }
    if position > switch_at && consumer.head() == 0 && consumer.has_unread() {
        return Err(broken(conn, Violation::Tail));
    }
    let moved = ring_receive(conn, buffers, skip, wanted, flags)
        .map_err(|violation| broken(conn, violation))?;
    upgrade::stop_if_drained(conn);
    if let Some((count, crowded)) = moved {
        drop(guard);
        conn.empty_reads.store(0, Ordering::Relaxed);
        if crowded {
            conn.ring(consumer.peer_waits());
        }
        return Ok(Moved::Bytes(count));
    }
    if state == tx_state::BACK {
        drop(guard);
        upgrade::finish_if_over(conn);
        return kernel_receive(conn, fd, buffers, skip, wanted, flags);
    }
    match end_of_file(conn, fd, buffers, skip, flags)? {
        Some(moved) => Ok(moved),
        None => {
            drop(guard);
            try_receive(conn, fd, buffers, skip, flags)
        }
    }
}

/// Bytes that the program may have been told of were taken back from the ring and are
/// being sent by the kernel: waits for them, once and shortly, because a program does
/// not expect EAGAIN behind an event.
fn is_on_its_way(conn: &Conn, fd: i32, state: u32) -> bool {
    if state != tx_state::WITHDRAWN || !conn.consumer().has_unread() {
        return false;
    }
    if conn.hints.fetch_or(hint::AWAITED, Ordering::Relaxed) & hint::AWAITED != 0 {
        return false;
    }
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    matches!(
        sys!(SYS_poll, &raw mut entry, 1, WITHDRAWN_WAIT_MS),
        Ok(1..)
    )
}

/// Copies from the ring: how much, and whether the producer may wait for the room.
fn ring_receive(
    conn: &Conn,
    buffers: &Buffers,
    skip: usize,
    wanted: usize,
    flags: i32,
) -> Result<Option<(usize, bool)>, Violation> {
    let consumer = conn.consumer();
    let fill = consumer.fill_bytes()?;
    if fill == 0 {
        return Ok(None);
    }
    let count = (wanted as u64).min(fill) as usize;
    if flags & libc::MSG_TRUNC == 0 {
        let mut at = 0u64;
        let mut result = Ok(());
        buffers.pieces(skip, count, |base, length| {
            if result.is_ok() {
                // SAFETY: the program's buffer, as it passed it.
                result =
                    unsafe { consumer.peek(copier(), Kernel::Plain, at, base, length) }.map(|_| ());
                at += length as u64;
            }
        });
        result?;
    }
    let crowded = flags & libc::MSG_PEEK == 0 && count != 0 && consumer.take(count)?;
    Ok(Some((count, crowded)))
}

/// A receive by the kernel, of at most `limit` bytes, that does not sleep.
fn kernel_receive(
    conn: &Conn,
    fd: i32,
    buffers: &Buffers,
    skip: usize,
    limit: usize,
    flags: i32,
) -> sys::Result<Moved> {
    let (mut parts, used) = buffers.parts(skip, limit);
    let mut message = message(&mut parts[..used]);
    let flags = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    match sys!(SYS_recvmsg, fd, &raw mut message, flags) {
        Ok(count) => {
            if flags & libc::MSG_PEEK == 0 {
                conn.own()
                    .rx_own
                    .kernel_position
                    .fetch_add(count as u64, Ordering::Relaxed);
            }
            Ok(Moved::Bytes(count))
        }
        Err(libc::EAGAIN) => {
            conn.hints
                .fetch_and(!(libc::POLLIN as u32), Ordering::Relaxed);
            Ok(Moved::Nothing)
        }
        Err(error) => Err(error),
    }
}

/// The ring is empty: is there an end of file, or an error, behind it? The kernel
/// knows, but asking costs more than a message, so it is asked only when a wait has
/// shown something or the program polls by reading. `None`: look at the ring again.
/// Never EAGAIN while something can be had: its edge may have been reported already.
fn end_of_file(
    conn: &Conn,
    fd: i32,
    buffers: &Buffers,
    skip: usize,
    flags: i32,
) -> sys::Result<Option<Moved>> {
    let shown = libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    if conn.hints.load(Ordering::Relaxed) & shown as u32 == 0
        && conn.empty_reads.fetch_add(1, Ordering::Relaxed) < EMPTY_READS_MAX
    {
        return Ok(Some(Moved::Nothing));
    }
    conn.empty_reads.store(0, Ordering::Relaxed);
    let mut byte = 0u8;
    let count = match sys!(
        SYS_recvfrom,
        fd,
        &raw mut byte,
        1,
        libc::MSG_PEEK | libc::MSG_DONTWAIT,
        0,
        0
    ) {
        Err(libc::EAGAIN) => {
            conn.hints
                .fetch_and(!(libc::POLLIN as u32), Ordering::Relaxed);
            return Ok(Some(Moved::Nothing));
        }
        other => other?,
    };
    let consumer = conn.consumer();
    if count != 0 {
        // Kernel bytes: the ring was left meanwhile, or the peer wrote past the library.
        // What it had put into the ring before is there now, and comes first.
        if consumer.looks_readable() {
            return Ok(None);
        }
        let wanted = buffers.total - skip;
        return kernel_receive(conn, fd, buffers, skip, wanted, flags).map(Some);
    }
    conn.hints
        .fetch_or(libc::POLLRDHUP as u32, Ordering::Relaxed);
    // The last bytes may have come between the look at the ring and at the kernel.
    // Or the producer is gone without having taken back what we left to it.
    if consumer.resume() {
        return Ok(None);
    }
    ends::receive(conn)?;
    Ok(Some(Moved::Bytes(0)))
}
