//! The data path of a connection with a channel: one call of the program, in
//! terms of the ring and, where the stream is still or again there, the kernel.
//!
//! # The way of the bytes
//! A direction is first the kernel's, then the ring's from `switch_at` on, then
//! perhaps the kernel's again. The receiver reads each part to its end before the
//! next. Both ends of a part are known from shared memory, so no byte is lost,
//! doubled or swapped, whatever the two programs do meanwhile.
//!
//! Kernel calls in here never sleep (MSG_DONTWAIT) and are made under the
//! endpoint's lock, so that the count of what went by the kernel is exact; sleeping
//! is `wait`'s, without any lock.

use crate::state::{Conn, attention, lock_word};
use crate::sys::{self, sys};
use crate::wait::{self, Deadline, Want};
use crate::{signals, upgrade};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use fordway_abi::shm::{tx_flags, tx_state};
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::{Entered, Violation};

/// Empty reads of a ring in a row before the kernel is asked for an end of file.
const EMPTY_READS_MAX: u32 = 8;
/// From this size on, bytes are written around the caches if the ring is large.
const NON_TEMPORAL_BYTES: usize = 16 * 1024;
/// A long write is handed over in pieces, so that the peer copies while we do.
const PIECE_BYTES: usize = 64 * 1024;
/// iovecs that a kernel call inside a transfer takes at once.
const PARTS_MAX: usize = 16;
/// `Conn::hints`: the program was told of the reset.
const RESET_TOLD: u32 = 1 << 30;

static COPIER: Copiers = Copiers(core::cell::UnsafeCell::new(Copier::sse2()));

struct Copiers(core::cell::UnsafeCell<Copier>);
// SAFETY: written once in the constructor, before other threads exist.
unsafe impl Sync for Copiers {}

/// Chooses the copy kernels of this processor.
pub fn set_up() {
    // SAFETY: see `Copiers`.
    unsafe { *COPIER.0.get() = Copier::detect() };
}

fn copier() -> &'static Copier {
    // SAFETY: see `Copiers`.
    unsafe { &*COPIER.0.get() }
}

/// The program's buffers of one call, with what was done of them.
#[derive(Clone, Copy)]
pub struct Buffers {
    parts: *const libc::iovec,
    count: usize,
    /// Bytes in all parts.
    pub total: usize,
}

impl Buffers {
    /// The parts that a program passed; `EINVAL` as the kernel gives it.
    pub fn new(parts: *const libc::iovec, count: usize) -> sys::Result<Self> {
        if count > libc::UIO_MAXIOV as usize {
            return Err(libc::EINVAL);
        }
        let mut total = 0usize;
        for index in 0..count {
            // SAFETY: the program's array of `count` parts.
            let length = unsafe { (*parts.add(index)).iov_len };
            total = total.checked_add(length).filter(|total| *total <= isize::MAX as usize).ok_or(libc::EINVAL)?;
        }
        Ok(Self { parts, count, total })
    }

    /// Calls `act` with each contiguous piece of the bytes `[skip, skip + count)`.
    fn pieces(&self, skip: usize, count: usize, mut act: impl FnMut(*mut u8, usize)) {
        let (mut skip, mut left) = (skip, count);
        for index in 0..self.count {
            if left == 0 {
                break;
            }
            // SAFETY: as in `new`.
            let part = unsafe { *self.parts.add(index) };
            if skip >= part.iov_len {
                skip -= part.iov_len;
                continue;
            }
            let length = (part.iov_len - skip).min(left);
            act(part.iov_base.cast::<u8>().wrapping_add(skip), length);
            left -= length;
            skip = 0;
        }
    }

    /// The first bytes of `[skip, skip + count)` as parts for a kernel call.
    fn parts(&self, skip: usize, count: usize) -> ([libc::iovec; PARTS_MAX], usize) {
        let mut parts = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
        let mut used = 0;
        self.pieces(skip, count, |base, length| {
            if used < PARTS_MAX {
                parts[used] = libc::iovec { iov_base: base.cast(), iov_len: length };
                used += 1;
            }
        });
        (parts, used)
    }
}

fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a msghdr of zeros is an empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    message
}

/// Offsets in `struct tcp_info` (linux/tcp.h); libc's type ends before them.
mod tcp_info {
    pub const STATE: usize = 0;
    pub const BYTES_RECEIVED: usize = 128;
    pub const NOTSENT_BYTES: usize = 144;
    pub const BYTES_SENT: usize = 200;
    pub const BYTES_RETRANS: usize = 208;
    pub const NEEDED_BYTES: usize = 216;
}

struct TcpInfo([u8; 256]);

impl TcpInfo {
    fn of(fd: i32) -> Option<Self> {
        let mut info = Self([0; 256]);
        let mut length = info.0.len() as u32;
        sys!(SYS_getsockopt, fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.0.as_mut_ptr(), &raw mut length).ok()?;
        (length as usize >= tcp_info::NEEDED_BYTES).then_some(info)
    }

    fn long(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.0[offset..offset + 8].try_into().unwrap_or([0; 8]))
    }
}

/// Bytes that the kernel has taken from this end. The caller keeps others from sending.
fn sent_position(fd: i32) -> Option<u64> {
    let info = TcpInfo::of(fd)?;
    let notsent = u32::from_ne_bytes(
        info.0[tcp_info::NOTSENT_BYTES..tcp_info::NOTSENT_BYTES + 4].try_into().unwrap_or([0; 4]),
    );
    let sent = info.long(tcp_info::BYTES_SENT).checked_sub(info.long(tcp_info::BYTES_RETRANS))?;
    (info.0[tcp_info::STATE] == TCP_ESTABLISHED || info.0[tcp_info::STATE] == TCP_CLOSE_WAIT)
        .then_some(sent + u64::from(notsent))
}

const TCP_ESTABLISHED: u8 = 1;
const TCP_FIN_WAIT1: u8 = 4;
const TCP_FIN_WAIT2: u8 = 5;
const TCP_CLOSE_WAIT: u8 = 8;

/// Bytes that this end has read from the kernel; `None` once the peer's FIN is
/// there (which counts as a byte in some of the kernel's figures).
pub fn received_position(fd: i32) -> Option<u64> {
    // Bytes may come in between the two questions: ask until nothing came.
    for _ in 0..8 {
        let before = TcpInfo::of(fd)?;
        let mut queued: i32 = 0;
        sys!(SYS_ioctl, fd, libc::FIONREAD, &raw mut queued).ok()?;
        let after = TcpInfo::of(fd)?;
        if !matches!(after.0[tcp_info::STATE], TCP_ESTABLISHED | TCP_FIN_WAIT1 | TCP_FIN_WAIT2) {
            return None;
        }
        let received = after.long(tcp_info::BYTES_RECEIVED);
        if received == before.long(tcp_info::BYTES_RECEIVED) {
            return received.checked_sub(queued as u64);
        }
    }
    None
}

/// What one attempt to move bytes came to.
enum Moved {
    /// So many bytes (0: end of file).
    Bytes(usize),
    /// Nothing can be moved now.
    Nothing,
    /// The connection has no channel any more.
    Kernel,
}

/// How a whole call ended.
pub enum Done {
    /// Its result.
    Bytes(usize),
    /// The rest is libc's: the connection has no channel any more.
    Kernel,
}

/// Whether bytes of this side go by the kernel at present.
pub fn sends_by_kernel(conn: &Conn) -> bool {
    conn.producer().state() != tx_state::RING
}

fn broken(conn: &Conn, violation: Violation) -> i32 {
    upgrade::broke(conn, violation);
    libc::ECONNRESET
}

/// Attends to what the connection asks for besides data. `Ok(false)`: it has no
/// channel any more.
#[inline]
fn attended(conn: &Conn, fd: i32) -> sys::Result<bool> {
    if conn.attention.load(Ordering::Relaxed) != 0 {
        upgrade::attend(conn, fd)?;
    }
    Ok(conn.is_paired())
}

/// recv and its kin.
pub fn receive(conn: &Conn, fd: i32, buffers: &Buffers, flags: i32) -> sys::Result<Done> {
    let mut done = 0;
    let mut deadline = None;
    let may_wait = flags & libc::MSG_DONTWAIT == 0 && !conn.is_nonblocking();
    let wait_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
    loop {
        if !attended(conn, fd)? {
            return Ok(if done == 0 { Done::Kernel } else { Done::Bytes(done) });
        }
        match try_receive(conn, fd, buffers, done, flags) {
            Ok(Moved::Bytes(count)) => {
                done += count;
                if count == 0 || done == buffers.total || !wait_all {
                    return Ok(Done::Bytes(done));
                }
                continue;
            }
            Ok(Moved::Kernel) => return Ok(if done == 0 { Done::Kernel } else { Done::Bytes(done) }),
            Ok(Moved::Nothing) => {}
            Err(_) if done != 0 => return Ok(Done::Bytes(done)),
            Err(error) => return Err(error),
        }
        if !may_wait {
            return if done == 0 { Err(libc::EAGAIN) } else { Ok(Done::Bytes(done)) };
        }
        let timeout_ns = conn.receive_timeout_ns.load(Ordering::Relaxed);
        let until = *deadline
            .get_or_insert_with(|| Deadline::after((timeout_ns != 0).then_some(timeout_ns)));
        match wait::for_conn(conn, fd, Want::Bytes, until) {
            Ok(()) => {}
            Err(libc::EINTR) if timeout_ns == 0 && done == 0 && signals::restarts() => {}
            Err(_) if done != 0 => return Ok(Done::Bytes(done)),
            Err(error) => return Err(error),
        }
    }
}

fn try_receive(conn: &Conn, fd: i32, buffers: &Buffers, skip: usize, flags: i32) -> sys::Result<Moved> {
    let own = conn.own();
    let Some(guard) = lock_word(&own.rx_own.lock) else { return Err(libc::EAGAIN) };
    if !conn.is_paired() {
        return Ok(Moved::Kernel);
    }
    let wanted = buffers.total - skip;
    let consumer = conn.consumer();
    let state = if conn.peer_is_there() { consumer.producer_state() } else { tx_state::KERNEL };
    if state == tx_state::KERNEL || state == tx_state::WITHDRAWN || consumer.has_stopped() {
        return kernel_receive(conn, fd, buffers, skip, wanted, flags);
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
    if position > switch_at && consumer.head() == 0 {
        return Err(broken(conn, Violation::Tail));
    }
    let moved = ring_receive(conn, buffers, skip, wanted, flags).map_err(|violation| broken(conn, violation))?;
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
    end_of_file(conn, fd)
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
                result = unsafe { consumer.peek(copier(), Kernel::Plain, at, base, length) }.map(|_| ());
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
                conn.own().rx_own.kernel_position.fetch_add(count as u64, Ordering::Relaxed);
            }
            Ok(Moved::Bytes(count))
        }
        Err(libc::EAGAIN) => {
            conn.hints.fetch_and(!(libc::POLLIN as u32), Ordering::Relaxed);
            Ok(Moved::Nothing)
        }
        Err(error) => Err(error),
    }
}

/// The ring is empty: is there an end of file, or an error, behind it? The kernel
/// knows, but asking costs more than a message, so it is asked only when a wait has
/// shown something or the program polls by reading.
fn end_of_file(conn: &Conn, fd: i32) -> sys::Result<Moved> {
    let shown = libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    if conn.hints.load(Ordering::Relaxed) & shown as u32 == 0
        && conn.empty_reads.fetch_add(1, Ordering::Relaxed) < EMPTY_READS_MAX
    {
        return Ok(Moved::Nothing);
    }
    conn.empty_reads.store(0, Ordering::Relaxed);
    let mut byte = 0u8;
    match sys!(SYS_recvfrom, fd, &raw mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT, 0, 0) {
        // Kernel bytes behind a ring that was left meanwhile: the next attempt sees that.
        Ok(1..) => Ok(Moved::Nothing),
        Err(libc::EAGAIN) => {
            conn.hints.fetch_and(!(libc::POLLIN as u32), Ordering::Relaxed);
            Ok(Moved::Nothing)
        }
        Err(error) => Err(error),
        Ok(_) => {
            conn.hints.fetch_or(libc::POLLRDHUP as u32, Ordering::Relaxed);
            let consumer = conn.consumer();
            // The last bytes may have come between the look at the ring and at the kernel.
            if consumer.looks_readable() {
                return Ok(Moved::Nothing);
            }
            let told = conn.hints.load(Ordering::Relaxed) & RESET_TOLD != 0;
            let clean = conn.peer_flags() & tx_flags::SHUT != 0;
            let lost = conn.producer().state() == tx_state::RING && conn.producer().unread_hint() != 0;
            if lost && !clean && !told {
                // As Linux: an end that closes with bytes unread sends a reset.
                conn.hints.fetch_or(RESET_TOLD, Ordering::Relaxed);
                return Err(libc::ECONNRESET);
            }
            Ok(Moved::Bytes(0))
        }
    }
}

/// send and its kin.
pub fn send(conn: &Conn, fd: i32, buffers: &Buffers, flags: i32) -> sys::Result<Done> {
    let mut done = 0;
    let mut deadline = None;
    let may_wait = flags & libc::MSG_DONTWAIT == 0 && !conn.is_nonblocking();
    loop {
        if !attended(conn, fd)? {
            return Ok(if done == 0 { Done::Kernel } else { Done::Bytes(done) });
        }
        match try_send(conn, fd, buffers, done, flags) {
            Ok(Moved::Bytes(count)) => {
                done += count;
                if done == buffers.total {
                    return Ok(Done::Bytes(done));
                }
                continue;
            }
            Ok(Moved::Kernel) => return Ok(if done == 0 { Done::Kernel } else { Done::Bytes(done) }),
            Ok(Moved::Nothing) => {}
            Err(_) if done != 0 => return Ok(Done::Bytes(done)),
            Err(error) => return Err(error),
        }
        if !may_wait {
            conn.own().tx_own.no_space.store(1, Ordering::Relaxed);
            return if done == 0 { Err(libc::EAGAIN) } else { Ok(Done::Bytes(done)) };
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

fn try_send(conn: &Conn, fd: i32, buffers: &Buffers, skip: usize, flags: i32) -> sys::Result<Moved> {
    let own = conn.own();
    let Some(guard) = lock_word(&own.tx_own.lock) else { return Err(libc::EAGAIN) };
    if !conn.is_paired() {
        return Ok(Moved::Kernel);
    }
    let producer = conn.producer();
    if !on_ring(conn, fd)? {
        if producer.state() != tx_state::KERNEL && !flush_back(conn, fd)? {
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
    if room < wanted && producer.grow(wanted) { producer.room_bytes(wanted) } else { Ok(room) }
}

fn after_publish(conn: &Conn, fd: i32) {
    let (doors, stopped) = conn.producer().peer_waits();
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
    let gone = conn.attention.load(Ordering::Relaxed) & attention::PEER_GONE != 0
        || conn.peer_flags() & tx_flags::CLOSED != 0
        || conn.hints.load(Ordering::Relaxed) & (libc::POLLHUP | libc::POLLERR) as u32 != 0;
    if gone { kernel_send(fd, buffers, skip, flags) } else { Ok(Moved::Nothing) }
}

/// A send by the kernel that does not sleep. It raises SIGPIPE by itself.
fn kernel_send(fd: i32, buffers: &Buffers, skip: usize, flags: i32) -> sys::Result<Moved> {
    let (mut parts, used) = buffers.parts(skip, buffers.total - skip);
    let message = message(&mut parts[..used]);
    match sys!(SYS_sendmsg, fd, &raw const message, flags | libc::MSG_DONTWAIT) {
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
        match sys!(SYS_sendto, fd, base, length, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL, 0, 0) {
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
pub fn send_file(conn: &Conn, fd: i32, file: i32, offset: *mut i64, count: usize) -> sys::Result<Option<usize>> {
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
            return if done == 0 { Err(libc::EAGAIN) } else { Ok(Some(done)) };
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
    let Some(guard) = lock_word(&own.tx_own.lock) else { return Err(libc::EAGAIN) };
    if !conn.is_paired() || !on_ring(conn, fd)? {
        return Ok(None);
    }
    let producer = conn.producer();
    let wanted = wanted.min(PIECE_BYTES * 4);
    let room = room_for(conn, wanted).map_err(|violation| broken(conn, violation))?;
    if room == 0 {
        return Ok(Some(Moved::Nothing));
    }
    let runs = producer.runs(wanted.min(room));
    let parts = runs.map(|(base, length)| libc::iovec { iov_base: base.cast(), iov_len: length });
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

/// Marks a thread as being in the kernel, unaware of rings, for as long as it lives.
pub struct Unaware<'a> {
    conn: &'a Conn,
    counter: &'a AtomicU32,
}

impl<'a> Unaware<'a> {
    /// A sleep for bytes.
    pub fn reader(conn: &'a Conn) -> Self {
        conn.unaware.fetch_add(1, Ordering::SeqCst);
        Self { conn, counter: &conn.unaware }
    }

    /// A send.
    pub fn sender(conn: &'a Conn) -> Self {
        conn.senders.fetch_add(1, Ordering::SeqCst);
        Self { conn, counter: &conn.senders }
    }
}

impl Drop for Unaware<'_> {
    fn drop(&mut self) {
        if self.counter.fetch_sub(1, Ordering::SeqCst) == 1 && self.conn.is_paired() {
            upgrade::try_ready(self.conn);
        }
    }
}
