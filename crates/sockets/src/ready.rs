//! Whether a call is worth another try: what waiters look at, without locks.

use crate::{End, attention, sends_by_kernel};
use core::sync::atomic::{AtomicU64, Ordering, fence};
use fordway_abi::shm::{no_space, tx_state};

/// What a connection is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Something to read: bytes, EOF, an error.
    Bytes,
    /// Room to write, or an error.
    Room,
}

/// Whether a waiter need not sleep. What the kernel has to say of its own part is not
/// looked at: that wakes by itself.
#[inline]
pub fn is_ready(end: &impl End, want: Want) -> bool {
    end.state().attention.load(Ordering::Relaxed) & attention::URGENT != 0
        || match want {
            Want::Bytes => is_readable(end),
            Want::Room if sends_by_kernel(end) => false,
            Want::Room => {
                let producer = end.producer();
                producer.must_leave() || producer.room_hint() >= producer.capacity_bytes() / 2
            }
        }
}

/// Whether a program is told that it can send by the ring: with a third of it free, as with a kernel's buffer; and as
/// long as a send would make it larger, for two ends that ask before each send would else wait for each other in small
/// rings. Not so once a send found no room for all that: who was told of room and got none is told of a third.
#[inline(always)]
pub fn has_room(end: &impl End) -> bool {
    let producer = end.producer();
    producer.room_hint() * 3 >= producer.capacity_bytes()
        || end.own().tx_own.no_space.load(Ordering::Relaxed) != no_space::SEND
            && producer.may_grow()
}

/// Which channel the connection has, if any; never the same again for another one. Waiters
/// are known to the endpoint of one channel only: who has made himself known there looks once
/// more that it is still the same before he sleeps. If it goes later, he is woken
/// ([`End::wake_own`]), for nobody at the next one knows of him.
#[inline(always)]
pub fn binding(end: &impl End) -> u32 {
    let channels = end.state().channels.load(Ordering::SeqCst);
    channels << 1 | u32::from(end.has_channel())
}

/// Where those who wait for `want` are known to the peer.
fn doors_of(end: &impl End, want: Want) -> &AtomicU64 {
    let wait = &end.own().wait;
    match want {
        Want::Bytes => &wait.rx_doors,
        Want::Room => &wait.tx_doors,
    }
}

/// A waiter behind door `bit` makes itself known: to the peer here, to its own process by `announce`.
/// Whether it is to sleep: not if what it waits for has come since it found `before` ([`binding`]).
#[inline]
pub fn announce(
    end: &impl End,
    (want, bit): (Want, u64),
    before: u32,
    announce: impl FnOnce(),
) -> bool {
    if want == Want::Room {
        end.producer().ask_for_room();
    }
    // SYNC POINT with `Producer::publish` and `Consumer::take`: known first, then the last look.
    doors_of(end, want).fetch_or(bit, Ordering::SeqCst);
    announce();
    binding(end) == before && !is_ready(end, want)
}

/// The waiter is not to be woken for the connection any more.
pub fn retract(end: &impl End, (want, bit): (Want, u64)) {
    doors_of(end, want).fetch_and(!bit, Ordering::SeqCst);
}

/// What is seen of the channel without a lock, if it was one and the same all the time. Whoever
/// tells a program of what was seen asks for that; a try of a call finds out by itself.
#[inline]
pub fn steadily<E: End, T>(end: &E, look: impl FnOnce() -> T) -> Option<T> {
    let before = binding(end);
    let seen = look();
    is_still(end, before).then_some(seen)
}

/// Whether what was seen behind `before` ([`binding`]) was of one and the same channel.
#[inline(always)]
pub fn is_still(end: &impl End, before: u32) -> bool {
    fence(Ordering::Acquire);
    before & 1 != 0 && binding(end) == before
}

/// Whether bytes lie in the ring that a receive may take.
#[inline(always)]
pub fn has_ring_bytes(end: &impl End) -> bool {
    let consumer = end.consumer();
    consumer.looks_readable()
        && end.peer_is_there()
        && matches!(consumer.producer_state(), tx_state::RING | tx_state::BACK)
        && consumer.was_entered()
        && !consumer.has_stopped()
        && kernel_part_bytes(end) == 0
}

/// Whether a waiter is to be told that bytes lie in the ring: as many as SO_RCVLOWAT asks
/// for. Once the producer has left, the rest comes by the kernel, and no count is whole.
#[inline(always)]
pub fn is_readable(end: &impl End) -> bool {
    let low = u64::from(end.state().low_bytes.load(Ordering::Relaxed));
    has_ring_bytes(end) && (low <= 1 || has_enough(end, low))
}

#[cold]
fn has_enough(end: &impl End, low: u64) -> bool {
    let consumer = end.consumer();
    consumer.producer_state() != tx_state::RING || consumer.fill_hint() >= low
}

/// Bytes that the kernel has to deliver before the ring's; they may still be on their
/// way when the ring's are there. Only once the producer has entered the ring.
pub fn kernel_part_bytes(end: &impl End) -> u64 {
    let position = end.own().rx_own.kernel_position.load(Ordering::Relaxed);
    end.consumer().switch_at().saturating_sub(position)
}
