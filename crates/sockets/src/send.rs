//! One attempt to send.

use crate::{End, Half, Moved, Result, down, ends, loan};
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use fordway_abi::reason::Reason;
use fordway_abi::shm::{tx_flags, tx_state};
use fordway_ring::{Entered, Producer, Violation};

/// Ends a call that has sent something: that is its result, and the error is the next one's to fetch.
const WENT_SO_FAR: i32 = libc::EPIPE;

/// What a program sends by one call: its buffers, or a file.
pub trait Source {
    /// Bytes that are still to go, as far as they go in one piece.
    fn wanted(&self) -> usize;
    /// Bytes below which it waits for room: short records of several threads do not mix.
    fn least(&self) -> usize;
    /// Bytes that are still to go in all: what a ring that is too small is to grow for.
    fn in_all(&self) -> usize;
    /// Where it begins, if it may be memory that was lent.
    fn place(&self) -> usize {
        0
    }
    /// Whether something of this call has gone before.
    fn has_begun(&self) -> bool;
    /// Writes up to `count` bytes behind the tail, within the room; how many there were.
    fn by_ring(&mut self, producer: &Producer, count: usize) -> Result<usize>;
    /// Sends by the kernel, without a sleep. It raises SIGPIPE by itself.
    fn by_kernel(&mut self) -> Result<Moved>;
    /// Raises SIGPIPE, unless the call forbids it.
    fn break_pipe(&self);
}

/// Sends what there is room for, by the ring or by the kernel.
#[inline(always)]
pub fn send<E: End>(end: &E, source: &mut impl Source) -> Result<Moved> {
    let (wanted, least) = (source.wanted(), source.least());
    let guard = match end.lock(Half::Sending) {
        Ok(guard) => guard,
        Err(why) => return why.moved(),
    };
    let producer = end.producer();
    if !on_ring(end) {
        return off_ring(end, guard, source);
    }
    if loan::is_anothers(end, source) {
        return Err(libc::EBUSY);
    }
    if ends::is_dead(end) {
        if ends::is_dead_now(end) {
            return at_dead(end, guard, source);
        }
        if !source.has_begun() {
            tell_error(end, source)?;
        }
    }
    let room = match room_for(&producer, source, wanted) {
        Ok(room) => room,
        Err(found) => return Err(down::broke(end, found)),
    };
    let count = wanted.min(room);
    if count < least || count == 0 && wanted != 0 {
        // Whoever asks is told of room from a third on (`ready::has_room`): what needs more could ask for ever.
        return match least * 3 > producer.capacity_bytes() {
            true => leave_small(end, guard, source),
            false => Ok(Moved::Nothing),
        };
    }
    let count = source.by_ring(&producer, count)?;
    hand_over(end, guard, &producer, count);
    Ok(Moved::Bytes(count))
}

/// Publishes `count` bytes behind the tail, and wakes who waits for them.
#[inline(always)]
pub(crate) fn hand_over<E: End>(end: &E, guard: E::Guard<'_>, producer: &Producer, count: usize) {
    let _shield = end.shield();
    producer.publish(count);
    drop(guard);
    let (doors, stopped) = producer.peer_waits();
    end.tell(doors);
    if stopped {
        down::leave(end, None);
    }
}

/// A ring that is too small for what is to go in one piece, and cannot grow: who asks for room is told
/// of a third of a ring. It is left for the kernel, which has the room.
#[cold]
fn leave_small<E: End>(end: &E, guard: E::Guard<'_>, source: &mut impl Source) -> Result<Moved> {
    drop(guard);
    down::bar(end, Reason::NoMemory);
    down::leave(end, Some(Reason::NoMemory));
    match end.lock(Half::Sending) {
        Ok(guard) => off_ring(end, guard, source),
        Err(why) => why.moved(),
    }
}

/// A send by the kernel, behind what was left in the ring.
#[cold]
fn off_ring<E: End>(end: &E, guard: E::Guard<'_>, source: &mut impl Source) -> Result<Moved> {
    let producer = end.producer();
    let met = &end.state().error;
    if source.has_begun() && (ends::has_error(end) || met.load(Ordering::Relaxed) != 0) {
        return Err(WENT_SO_FAR);
    }
    if producer.state() == tx_state::BACK && ends::is_reset(end) && ends::is_dead_now(end) {
        return at_dead(end, guard, source);
    }
    let flushed = match ends::take_error(end) {
        Some(error) => Err(error),
        None if producer.back_bytes_or_zero() != 0 => flush_back(end),
        None => Ok(true),
    };
    match flushed {
        Ok(true) => {}
        Ok(false) if end.state().end_due.load(Ordering::Relaxed) => {
            return Err(broken(source, libc::EPIPE));
        }
        Ok(false) => return Ok(Moved::Nothing),
        Err(error) => return Err(broken(source, error)),
    }
    let moved = source.by_kernel();
    drop(guard);
    down::give_up_if_over(end);
    moved
}

/// A send to a far end that is dead.
#[cold]
fn at_dead<E: End>(end: &E, guard: E::Guard<'_>, source: &mut impl Source) -> Result<Moved> {
    match source.has_begun() && !end.producer().must_leave() {
        true => Err(WENT_SO_FAR),
        false => ends::send(end, guard, source),
    }
}

/// An error that ends nothing is told before anything goes (linux: tcp_sendmsg_locked).
#[cold]
fn tell_error(end: &impl End, source: &impl Source) -> Result<()> {
    match end.send_run(NonNull::dangling().as_ptr(), 0) {
        Ok(_) => Ok(()),
        Err(error) => Err(broken(source, error)),
    }
}

/// An error that a send ends with.
fn broken(source: &impl Source, error: i32) -> i32 {
    if error == libc::EPIPE {
        source.break_pipe();
    }
    error
}

/// Room for the next piece, grown if the ring is too small for what goes on.
#[inline(always)]
fn room_for(
    producer: &Producer,
    source: &impl Source,
    wanted: usize,
) -> core::result::Result<usize, Violation> {
    let room = producer.room_bytes(wanted)?;
    if room >= wanted {
        return Ok(room);
    }
    let grows = || producer.grow(source.in_all());
    // Without any room the caller sleeps, and the far end may send as much before it reads: no ring waits for that before it
    // has grown.
    let is_full = room < source.least().max(1);
    if grows() || is_full && grows() {
        producer.room_bytes(wanted)
    } else {
        Ok(room)
    }
}

/// Whether bytes of this side go by the kernel at present.
pub fn sends_by_kernel(end: &impl End) -> bool {
    end.producer().state() != tx_state::RING
}

/// Whether bytes may go to the ring; enters it if the time has come. Under the lock.
#[inline(always)]
pub(crate) fn on_ring(end: &impl End) -> bool {
    let own = &end.own().cold;
    if own.tx_flags.load(Ordering::Relaxed) & tx_flags::SHUT != 0 {
        return false;
    }
    match own.tx_state.load(Ordering::Relaxed) {
        tx_state::RING => true,
        tx_state::KERNEL => enter(end),
        _ => false,
    }
}

/// Enters the ring if the time has come; whether it has.
#[cold]
fn enter(end: &impl End) -> bool {
    if !end.peer_is_there() || end.state().senders.load(Ordering::SeqCst) != 0 {
        return false;
    }
    if end.is_unix() && !end.is_drained() {
        return false;
    }
    match end.producer().enter(|| end.sent_position()) {
        Entered::Yes => {
            end.push_kernel_tail();
            return true;
        }
        Entered::NoMemory => {
            let reason = Reason::NoMemory as u32;
            end.state().passing.store(reason, Ordering::Relaxed);
            end.own().cold.left_for.store(reason, Ordering::Relaxed);
        }
        Entered::NotYet | Entered::Never => {}
    }
    false
}

/// Sends by the kernel what was left in the ring, and the end that is due behind it; true when all of it went. Under the lock.
pub fn flush_back(end: &impl End) -> Result<bool> {
    let producer = end.producer();
    while producer.back_bytes_or_zero() != 0 {
        let (base, length) = producer.back_run();
        match end.send_run(base, length) {
            Ok(count) => producer.back_sent(count),
            Err(libc::EINTR) => {}
            Err(libc::EAGAIN) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    end_if_due(end);
    Ok(true)
}

/// Sends the end that waits behind what this process had to send by the kernel, all of which has gone. Under the lock.
pub(crate) fn end_if_due(end: &impl End) {
    if end.state().end_due.swap(false, Ordering::Relaxed) {
        end.shut_sending();
    }
}
