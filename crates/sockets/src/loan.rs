//! Ring memory that is lent to the program, so that it need not copy.
//!
//! ```text
//!   reserve ── the program writes ── a send from there, which copies nothing ── give_back
//!   peek ───── the program reads ─── a receive that copies nothing ──────────── give_back
//! ```
//! A loan changes nothing of the stream: the send and the receive are whole calls as any others, which go
//! whichever way they have to. What was written is sent by the kernel if the ring was left meanwhile,
//! and what was peeked and taken back by the far end is received from there.
//!
//! # What keeps the memory
//! Memory of a channel may become another one's only after both ends have given the channel up. With
//! [`crate::State::loans`] this end does not; whoever runs the connection keeps the socket, too. A loan is
//! taken under the lock of its half, and the channel is given up under both.
//!
//! # Who else writes
//! Behind the tail of the ring lies what was reserved: no other send may write there. It gives EBUSY
//! ([`is_anothers`]), for nobody would wake it when the loan is over. By the kernel it may go.

use crate::{End, Half, Source, down, ends, ready, send};
use core::sync::atomic::Ordering;

/// A ring that is smaller than so many loans grows, if one finds no room.
const LOANS_IN_RING: usize = 16;

/// Room for `bytes` behind the tail, in one run.
pub fn reserve(end: &impl End, bytes: usize) -> Option<*mut u8> {
    let _guard = end.lock(Half::Sending).ok()?;
    let state = end.state();
    let is_free = state.reserved.load(Ordering::Relaxed) == 0 && bytes != 0;
    if !is_free || !send::on_ring(end) || ends::is_dead(end) {
        return None;
    }
    let producer = end.producer();
    // Of a large ring few loans come to its end, where they would be in two runs.
    let is_small = || producer.capacity_bytes() < bytes.saturating_mul(LOANS_IN_RING);
    let place = match room(end, bytes)? {
        Some(place) => place,
        None if is_small() && producer.grow(bytes) => room(end, bytes)??,
        None => return None,
    };
    state.reserved.store(place.addr(), Ordering::Relaxed);
    state.loans.fetch_add(1, Ordering::SeqCst);
    Some(place)
}

/// Where so much room begins, in one run. `None`: the peer broke the protocol; or there is none.
fn room(end: &impl End, bytes: usize) -> Option<Option<*mut u8>> {
    let producer = end.producer();
    let room = producer.room_bytes(bytes);
    let room = room.map_err(|found| down::broke(end, found)).ok()?;
    let [(place, length), _] = producer.runs(bytes);
    Some((room >= bytes && length >= bytes).then_some(place))
}

/// Whether the ring's room is lent, and not to this sender. Under the sending lock.
#[inline(always)]
pub(crate) fn is_anothers(end: &impl End, source: &impl Source) -> bool {
    let reserved = end.state().reserved.load(Ordering::Relaxed);
    reserved != 0 && reserved != source.place()
}

/// The next bytes to be received, in one run of the ring.
pub fn peek(end: &impl End) -> Option<(*const u8, usize)> {
    let _guard = end.lock(Half::Receiving).ok()?;
    let unseen = (libc::POLLIN | libc::POLLRDHUP) as u32;
    // The kernel's part, and what is to be looked at before it is believed, is a receive's.
    if !ready::has_ring_bytes(end) || end.state().shown() & unseen != 0 {
        return None;
    }
    let run = end.consumer().run();
    let run = run.map_err(|found| down::broke(end, found)).ok()??;
    end.state().loans.fetch_add(1, Ordering::SeqCst);
    Some(run)
}

/// A loan is over. False: it is not this process's, but that of a parent.
pub fn give_back(end: &impl End, reserved: bool) -> bool {
    let state = end.state();
    if reserved {
        state.reserved.store(0, Ordering::Release);
    }
    let less = |loans: u32| loans.checked_sub(1);
    let (set, fetch) = (Ordering::SeqCst, Ordering::Relaxed);
    let is_ours = state.loans.fetch_update(set, fetch, less).is_ok();
    down::give_up_if_over(end);
    is_ours
}
