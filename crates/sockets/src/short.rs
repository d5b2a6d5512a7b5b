//! A short call over rings, as almost every call is: all that is asked for is there, and nothing else is to be done.
//!
//! Each of these either does the whole of it, in one look under the lock of its half, or nothing; then
//! [`crate::send()`] and [`crate::receive()`] find what the matter is. So what is not plain need only be noticed here, and no
//! state is passed on from here to there.

use crate::send::hand_over;
use crate::{End, Half, Result, down, ends, receive};
use core::sync::atomic::Ordering;
use fordway_abi::shm::{rx_state, tx_flags, tx_state};
use fordway_ring::{Consumer, Producer};

/// What waits have shown of the kernel's connection, and a receive is to look at.
const SHOWN: u32 = (libc::POLLIN | libc::POLLRDHUP) as u32;

/// Sends `count` bytes, which `copy` puts behind the tail unless they cannot be read. False: nothing was sent.
#[inline(always)]
pub fn send_short<E: End>(end: &E, count: usize, copy: impl FnOnce(&Producer) -> bool) -> bool {
    let state = end.state();
    let is_asked = state.attention.load(Ordering::Relaxed) != 0;
    if is_asked || state.reserved.load(Ordering::Relaxed) != 0 {
        return false;
    }
    let Ok(guard) = end.lock(Half::Sending) else {
        return false;
    };
    let own = &end.own().cold;
    if own.tx_state.load(Ordering::Relaxed) != tx_state::RING
        || own.tx_flags.load(Ordering::Relaxed) & tx_flags::SHUT != 0
        // Ring memory may have been lent since.
        || state.reserved.load(Ordering::Relaxed) != 0
        || ends::is_dead(end)
    {
        return false;
    }
    let producer = end.producer();
    let has_room = producer.room_bytes(count).is_ok_and(|room| room >= count);
    if !has_room || !copy(&producer) {
        return false;
    }
    hand_over(end, guard, &producer, count);
    true
}

/// Receives what is there of `wanted` bytes, at least `least` of them (not 0), which `copy` copies from behind the head
/// unless they cannot be written. 0: nothing was received.
#[inline(always)]
pub fn receive_short<E: End>(
    end: &E,
    (wanted, least): (usize, usize),
    copy: impl FnOnce(&Consumer<E::Layout>, usize) -> bool,
) -> Result<usize> {
    let state = end.state();
    if state.attention.load(Ordering::Relaxed) != 0 {
        return Ok(0);
    }
    let Ok(guard) = end.lock(Half::Receiving) else {
        return Ok(0);
    };
    let own = end.own();
    let consumer = end.consumer();
    if !end.peer_is_there()
        || consumer.producer_state() != tx_state::RING
        || own.wait.rx_state.load(Ordering::Relaxed) != rx_state::READY
        || own.rx_own.kernel_position.load(Ordering::Relaxed) != consumer.switch_at()
        || state.shown() & SHOWN != 0
    {
        return Ok(0);
    }
    let fill = consumer.fill_bytes_for(wanted).unwrap_or(0);
    let count = (wanted as u64).min(fill) as usize;
    if count < least
        // A program that waits for edges takes a short read for the end of what there is.
        || count < wanted && consumer.producer_state() != tx_state::RING
        || !copy(&consumer, count)
    {
        return Ok(0);
    }
    let crowded = consumer.take(count);
    let crowded = crowded.map_err(|found| down::broke(end, found))?;
    let head = consumer.head();
    // As in `receive`.
    let _shield = crowded.then(|| end.shield());
    drop(guard);
    receive::took(end, &consumer, head, count, crowded);
    Ok(count)
}
