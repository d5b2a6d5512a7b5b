//! One attempt to receive.

use crate::ready::{has_ring_bytes, kernel_part_bytes, steadily};
use crate::{End, Half, Lost, Moved, Result, State, down, ends};
use core::sync::atomic::Ordering;
use fordway_abi::reason::Reason;
use fordway_abi::shm::{rx_state, tx_flags, tx_state};
use fordway_ring::{Consumer, Layout, Violation};

/// Empty reads of a ring in a row before the kernel is asked for an end of file.
const EMPTY_READS_MAX: u32 = 8;
/// Each time that so many bytes (log2) have come by the ring, the kernel is asked for the end:
/// a ring that is never found empty, by a program that never waits, would hide it for good.
const LOOK_EVERY_LOG2: u32 = 22;
/// Looks at ring and kernel in turn. The first ones tell; more are only needed if a peer
/// changes its words as fast as they are looked at.
const LOOKS_MAX: u32 = 8;

/// The program's buffers of one receive.
pub trait Target {
    /// Bytes that are wanted.
    fn wanted(&self) -> usize;
    /// Whether what is received stays there to be received again (MSG_PEEK).
    fn peeks(&self) -> bool;
    /// Receives at most `limit` bytes by the kernel, without a sleep; 0: end of file. With
    /// `peek` they stay there, as if the program had asked for that.
    fn by_kernel(&mut self, limit: usize, peek: bool) -> Result<usize>;
    /// Copies `count` bytes from behind the head, which are there.
    fn by_ring<L: Layout>(
        &mut self,
        consumer: &Consumer<L>,
        count: usize,
    ) -> core::result::Result<(), NotCopied>;
}

/// Why bytes that lie in the ring were not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCopied {
    /// The peer broke the protocol.
    Broken(Violation),
    /// The program's buffer takes no bytes: an errno. Nothing has been taken.
    Refused(i32),
}

impl From<Violation> for NotCopied {
    fn from(violation: Violation) -> Self {
        Self::Broken(violation)
    }
}

/// Where in the stream the next byte is taken: kernel and ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    kernel: u64,
    ring: u64,
}

impl Place {
    /// That of an end with a channel.
    #[inline]
    pub fn of(end: &impl End) -> Self {
        Self {
            kernel: end.own().rx_own.kernel_position.load(Ordering::Relaxed),
            ring: end.consumer().head(),
        }
    }
}

/// Whether a call that began at `before` has come to the end of the kernel's part, or of a
/// ring that is over, and there may be more behind it. A program that waits for edges takes
/// a short read for the end of what there is, so one call must not stop at the seam.
#[inline]
pub fn has_crossed(end: &impl End, before: Place) -> bool {
    if !end.has_channel() || !end.peer_is_there() {
        return false;
    }
    let now = Place::of(end);
    match end.consumer().producer_state() {
        tx_state::RING => now.kernel != before.kernel && has_ring_bytes(end),
        tx_state::BACK => now != before && (now.ring != before.ring || has_ring_bytes(end)),
        _ => false,
    }
}

/// Whether the next byte of the stream is an urgent one, before which a call with bytes ends
/// (linux: tcp_recvmsg). Urgent data goes by the kernel, behind all that is in the ring.
pub fn is_at_mark(end: &impl End) -> bool {
    if !end.has_channel() || !end.peer_is_there() {
        return end.is_at_mark();
    }
    let by_ring = steadily(end, || match end.consumer().producer_state() {
        tx_state::RING => kernel_part_bytes(end) == 0,
        tx_state::BACK => has_ring_bytes(end),
        _ => false,
    });
    by_ring != Some(true) && end.is_at_mark()
}

/// Whether the stream ends behind what is there, or the kernel has a part of it still.
pub fn has_end(end: &impl End) -> bool {
    let flags = tx_flags::SHUT | tx_flags::CLOSED;
    let ends = || {
        end.peer_is_there() && end.consumer().producer_flags() & flags != 0
            || end.consumer().head() == 0
    };
    end.state().shown() & libc::POLLRDHUP as u32 != 0 || steadily(end, ends) != Some(false)
}

/// Receives what can be had now. Never `Nothing` while something can be had: its edge may
/// have been reported already.
#[inline(always)]
pub fn receive<E: End>(end: &E, target: &mut impl Target) -> Result<Moved> {
    match look(end, target)? {
        Some(moved) => Ok(moved),
        None => look_again(end, target),
    }
}

#[cold]
fn look_again<E: End>(end: &E, target: &mut impl Target) -> Result<Moved> {
    for _ in 1..LOOKS_MAX {
        if let Some(moved) = look(end, target)? {
            return Ok(moved);
        }
    }
    Ok(Moved::Nothing)
}

/// `None`: what was seen has changed meanwhile, look again.
#[inline(always)]
fn look<E: End>(end: &E, target: &mut impl Target) -> Result<Option<Moved>> {
    let guard = match end.lock(Half::Receiving) {
        Ok(guard) => guard,
        Err(why) => return why.moved().map(Some),
    };
    let wanted = target.wanted();
    let consumer = end.consumer();
    let state = producer_state(end);
    if state == tx_state::KERNEL || state == tx_state::WITHDRAWN || consumer.has_stopped() {
        return off_ring(end, guard, target, state);
    }
    if !consumer.was_entered() {
        drop(guard);
        return behind_all(end, target);
    }
    let position = end.own().rx_own.kernel_position.load(Ordering::Relaxed);
    let switch_at = consumer.switch_at();
    if position < switch_at {
        let limit = (switch_at - position).min(wanted as u64) as usize;
        return by_kernel(end, target, limit).map(Some);
    }
    if position > switch_at && consumer.head() == 0 && consumer.has_unread() {
        return Err(down::broke(end, Violation::Tail));
    }
    if state == tx_state::RING && !consumer.has_resumed() && ends::has_ended(end) {
        consumer.resume();
    }
    let seen = end.state().shown();
    let shown = (libc::POLLIN | libc::POLLRDHUP) as u32;
    if state == tx_state::RING
        && seen & shown == libc::POLLIN as u32
        && has_unseen(end, seen)
        && let Some(moved) = past_library(end, target)?
    {
        drop(guard);
        down::leave_and_stop(end, Reason::Unseen);
        return Ok(Some(moved));
    }
    let moved = by_ring(&consumer, target, wanted).map_err(|why| match why {
        NotCopied::Broken(violation) => down::broke(end, violation),
        NotCopied::Refused(error) => error,
    })?;
    let is_last = consumer.stop_if_drained();
    if let Some((count, crowded)) = moved {
        let head = consumer.head();
        // Until who waits for the room was woken.
        let _shield = crowded.then(|| end.shield());
        drop(guard);
        took(end, &consumer, head, count, crowded);
        if is_last {
            down::give_up_if_over(end);
        }
        return Ok(Some(Moved::Bytes(count)));
    }
    if state == tx_state::BACK {
        drop(guard);
        return behind_all(end, target);
    }
    let (moved, unseen) = behind_ring(end, target)?;
    if unseen {
        drop(guard);
        down::leave_and_stop(end, Reason::Unseen);
    }
    Ok(moved)
}

/// Behind a receive of `count` bytes that lie before `head`; `crowded`: the producer may wait for their room. Without lock.
#[inline(always)]
pub(crate) fn took<E: End>(
    end: &E,
    consumer: &Consumer<E::Layout>,
    head: u64,
    count: usize,
    crowded: bool,
) {
    let state = end.state();
    state.empty_reads.store(0, Ordering::Relaxed);
    let takes = state.takes.load(Ordering::Relaxed).wrapping_add(1);
    state.takes.store(takes, Ordering::Relaxed);
    if is_time_to_look(head, count as u64) {
        look_behind(end);
    }
    if crowded {
        end.knock(consumer.peer_waits());
    }
}

/// Whether the kernel has bytes although the producer's go by the ring. Under the lock.
#[cold]
fn has_unseen(end: &impl End, seen: u32) -> bool {
    if ends::has_error(end) {
        // As in `look_behind`.
        return false;
    }
    let consumer = end.consumer();
    let published = consumer.tail_hint();
    match end.peek_kernel() {
        // A producer that has left the ring said so before it sent by the kernel.
        Ok(count) => count != 0 && consumer.producer_state() == tx_state::RING,
        Err(libc::EAGAIN) => {
            end.state().forget(seen, libc::POLLIN as u32);
            end.state().calm.store(published, Ordering::Relaxed);
            false
        }
        Err(_) => false,
    }
}

/// Bytes that were sent past the library lie in the kernel. If nothing was published since it
/// was last found to have none, they come behind what was: they are received once the ring is
/// empty, which is stopped; what is published from now on comes behind them by the kernel.
/// `None`: the ring's bytes are first. Under the lock.
#[cold]
fn past_library(end: &impl End, target: &mut impl Target) -> Result<Option<Moved>> {
    let consumer = end.consumer();
    if consumer.tail_hint() != end.state().calm.load(Ordering::Relaxed) {
        return Err(down::lose(end, Lost::Unseen));
    }
    if consumer.has_unread() {
        return Ok(None);
    }
    consumer.stop();
    down::bar(end, Reason::Unseen);
    by_kernel(end, target, target.wanted()).map(Some)
}

/// A receive before or behind the ring's part of the stream. Under the lock.
#[cold]
fn off_ring<E: End>(
    end: &E,
    guard: E::Guard<'_>,
    target: &mut impl Target,
    state: u32,
) -> Result<Option<Moved>> {
    if end.parts_alone() {
        // Nobody else's answer would have it end.
        drop(guard);
        return behind_all(end, target);
    }
    let mut moved = before_ring(end, target, state)?;
    if moved == Some(Moved::Nothing) && is_on_its_way(end, state) {
        moved = before_ring(end, target, state)?;
    }
    if moved == Some(Moved::Bytes(0)) && target.wanted() != 0 && end.peer_is_there() {
        at_end(end)?;
    }
    Ok(moved)
}

/// Asks the kernel for the end, and for bytes that it should not have.
#[cold]
fn look_behind(end: &impl End) {
    // A look would take an error of the kernel's, which is the program's to fetch. The next receive looks at the bytes.
    if !ends::has_error(end) && end.peek_kernel().is_ok_and(|count| count != 0) {
        end.state().note(libc::POLLIN as u32);
    }
}

/// Whether the last `count` bytes before `head` have crossed a mark at which the kernel is asked.
fn is_time_to_look(head: u64, count: u64) -> bool {
    (head ^ head.wrapping_sub(count)) >> LOOK_EVERY_LOG2 != 0
}

/// The ring is over and drained: the rest is the kernel's. Without a channel it is not even
/// counted, for the endpoint may be another connection's by now.
#[cold]
fn behind_all<E: End>(end: &E, target: &mut impl Target) -> Result<Option<Moved>> {
    down::give_up_if_over(end);
    let _guard = match end.lock(Half::Receiving) {
        Ok(guard) => guard,
        Err(why) => return why.moved().map(Some),
    };
    let wanted = target.wanted();
    let moved = by_kernel(end, target, wanted)?;
    if moved == Moved::Bytes(0) && wanted != 0 && end.peer_is_there() {
        at_end(end)?;
    }
    Ok(Some(moved))
}

/// What the producer says, once it is there.
#[inline(always)]
fn producer_state(end: &impl End) -> u32 {
    if end.peer_is_there() {
        end.consumer().producer_state()
    } else {
        tx_state::KERNEL
    }
}

/// A receive by the kernel after the producer has said `state`. It may have entered the ring
/// since, and left it again, and have sent more by the kernel, or have ended: so the bytes
/// are taken only when it says the same with them in the queue. `None`: it does not.
fn before_ring(end: &impl End, target: &mut impl Target, state: u32) -> Result<Option<Moved>> {
    let mut limit = target.wanted();
    let seen = end.state().shown();
    // After a stop it enters no more, and takes back what it publishes.
    if end.own().wait.rx_state.load(Ordering::Relaxed) == rx_state::READY {
        match target.by_kernel(limit, true) {
            Ok(0) if limit != 0 => {}
            Ok(count) => limit = count,
            Err(libc::EAGAIN) => {
                end.state().forget(seen, libc::POLLIN as u32);
                return Ok(vain(end, state, Moved::Nothing));
            }
            Err(error) => {
                return told_by_kernel(end.state(), error).map(|count| Some(Moved::Bytes(count)));
            }
        }
        if producer_state(end) != state {
            return Ok(None);
        }
    }
    let moved = by_kernel(end, target, limit)?;
    let ended = moved == Moved::Bytes(0) && limit != 0;
    if ended || moved == Moved::Nothing {
        return Ok(vain(end, state, moved));
    }
    Ok(Some(moved))
}

/// The kernel had no bytes after the producer had said `state`. It may have entered the ring,
/// and ended, between the two looks. Or it had begun to take its bytes back, and has left
/// them when it saw our lock.
fn vain(end: &impl End, state: u32, moved: Moved) -> Option<Moved> {
    (producer_state(end) == state).then_some(moved)
}

/// Bytes that the program may have been told of were taken back from the ring and are
/// being sent by the kernel: waits for them, once for each channel, because a program does
/// not expect EAGAIN behind an event.
fn is_on_its_way(end: &impl End, state: u32) -> bool {
    if state != tx_state::WITHDRAWN || !lacks_bytes(end) {
        return false;
    }
    let was_awaited = end.state().awaited.swap(true, Ordering::Relaxed);
    let begin = end.now_ns();
    let most_ns = match end.is_nonblocking() {
        true => end.patience().left_ns(begin),
        false => u64::MAX,
    };
    if was_awaited || most_ns == 0 {
        return false;
    }
    let came = end.await_bytes(most_ns);
    if end.is_nonblocking() {
        end.patience().spent(begin, end.now_ns());
    }
    came
}

/// Whether bytes that lay in the ring were taken back by the producer, and have not been
/// received by the kernel since. They may be on their way.
pub fn is_owed(end: &impl End) -> bool {
    producer_state(end) == tx_state::WITHDRAWN && lacks_bytes(end)
}

/// Whether fewer bytes have come by the kernel since the ring was left than lay there.
fn lacks_bytes(end: &impl End) -> bool {
    let consumer = end.consumer();
    let left = consumer.tail_hint().wrapping_sub(consumer.head());
    let position = end.own().rx_own.kernel_position.load(Ordering::Relaxed);
    position.saturating_sub(consumer.switch_at()) < left
}

/// Copies from the ring: how much, and whether the producer may wait for the room.
#[inline(always)]
fn by_ring<L: Layout>(
    consumer: &Consumer<L>,
    target: &mut impl Target,
    wanted: usize,
) -> core::result::Result<Option<(usize, bool)>, NotCopied> {
    let fill = consumer.fill_bytes()?;
    if fill == 0 {
        return Ok(None);
    }
    let count = (wanted as u64).min(fill) as usize;
    target.by_ring(consumer, count)?;
    let crowded = !target.peeks() && count != 0 && consumer.take(count)?;
    Ok(Some((count, crowded)))
}

/// A receive by the kernel, of at most `limit` bytes.
#[inline(never)]
fn by_kernel(end: &impl End, target: &mut impl Target, limit: usize) -> Result<Moved> {
    let seen = end.state().shown();
    // Of a pair, what lies before the ring has no position.
    let counts = !end.is_unix() || end.peer_is_there() && end.consumer().was_entered();
    match target.by_kernel(limit, target.peeks()) {
        Ok(count) => {
            if !target.peeks() && counts {
                let position = &end.own().rx_own.kernel_position;
                position.fetch_add(count as u64, Ordering::Relaxed);
            }
            Ok(Moved::Bytes(count))
        }
        Err(libc::EAGAIN) => {
            end.state().forget(seen, libc::POLLIN as u32);
            Ok(Moved::Nothing)
        }
        Err(error) => told_by_kernel(end.state(), error).map(Moved::Bytes),
    }
}

/// What the kernel says in place of bytes. Behind a reset that the program knows of there is the end of file: 0 bytes.
fn told_by_kernel(state: &State, error: i32) -> Result<usize> {
    match ends::is_told_again(state, error) {
        true => Ok(0),
        false => Err(error),
    }
}

/// The ring is empty: is there an end of file, or an error, behind it? The kernel knows, but
/// asking costs more than a message. So it is asked only when a wait has shown something, the
/// far end has said that it ends, or the program polls by reading. `None`: look at the ring again;
/// true: the connection is to leave it ([`past_library`]).
#[inline(never)]
fn behind_ring<E: End>(end: &E, target: &mut impl Target) -> Result<(Option<Moved>, bool)> {
    let state = end.state();
    let shown = libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let seen = state.shown();
    let ends = end.consumer().producer_flags() & (tx_flags::SHUT | tx_flags::CLOSED) != 0;
    if seen & shown as u32 == 0
        && !ends
        && state.empty_reads.fetch_add(1, Ordering::Relaxed) < EMPTY_READS_MAX
    {
        return Ok((Some(Moved::Nothing), false));
    }
    state.empty_reads.store(0, Ordering::Relaxed);
    let consumer = end.consumer();
    let published = consumer.tail_hint();
    let count = match end.peek_kernel() {
        Err(libc::EAGAIN) => {
            state.forget(seen, libc::POLLIN as u32);
            state.calm.store(published, Ordering::Relaxed);
            return Ok((Some(Moved::Nothing), false));
        }
        other => other.or_else(|error| told_by_kernel(state, error))?,
    };
    if count != 0 {
        if consumer.producer_state() == tx_state::RING {
            let moved = past_library(end, target)?;
            return Ok((moved, moved.is_some()));
        }
        // The ring was left meanwhile. What was put into it before is there now, and comes first.
        if consumer.looks_readable() {
            return Ok((None, false));
        }
        let moved = by_kernel(end, target, target.wanted())?;
        return Ok((Some(moved), false));
    }
    state.note(libc::POLLRDHUP as u32);
    // The last bytes may have come between the look at the ring and at the kernel.
    // Or the producer is gone without having taken back what we left to it.
    if consumer.resume() {
        return Ok((None, false));
    }
    at_end(end)?;
    Ok((Some(Moved::Bytes(0)), false))
}

/// The kernel has shown the end of file, and nothing is left in the ring. `Err`: it is a
/// reset, of which the kernel does not know.
fn at_end(end: &impl End) -> Result<()> {
    end.state().note(libc::POLLRDHUP as u32);
    ends::receive(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_is_never_empty_hides_the_end_for_some_bytes_only() {
        let mut looks = 0;
        let mut head = 0;
        for count in [100, 65_536, 1 << LOOK_EVERY_LOG2].into_iter().cycle() {
            if head >= 100 << LOOK_EVERY_LOG2 {
                break;
            }
            head += count;
            looks += u64::from(is_time_to_look(head, count));
        }
        assert!((90..=100).contains(&looks), "{looks}");
        assert!(is_time_to_look(u64::MAX.wrapping_add(3), 5));
    }
}
