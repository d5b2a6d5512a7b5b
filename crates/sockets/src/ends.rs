//! How a connection with a channel ends, so that it looks as if the kernel had
//! carried the bytes.
//!
//! The kernel shows FIN and RST of its own socket, and these are what wakes and
//! what decides. It cannot know one thing: whether bytes lay unread in a ring.
//! * An end that *closes* with bytes unread in the ring resets the kernel's
//!   connection ([`before_close`]), as Linux does; the rest is the kernel's.
//! * An end that was *killed* cannot do that: its kernel sends a FIN. The survivor
//!   sees an end of file that no shutdown announced, and bytes of its own that
//!   nobody took: it [`is_reset`], and its program is told so once.
//! * Of a pair of AF_UNIX sockets the same says so of an end that closes. It is told behind the end of file as well, as
//!   the kernel does (linux: unix_release_sock), but not of one that has only shut both halves.
//!
//! A process may be gone while its socket lives on in a child of it
//! ([`peer_process_gone`]): then the bytes that nobody took are sent again by the kernel, as
//! soon as it is clear that no FIN is on its way.

use crate::{End, Half, Moved, Result, Source, State, down, holding, is_owed};
use core::sync::atomic::{Ordering, fence};
use fordway_abi::reason::Reason;
use fordway_abi::shm::{tx_flags, tx_state};

const RDHUP: u32 = libc::POLLRDHUP as u32;
/// What the kernel shows of a connection that is over in both directions.
const OVER: u32 = libc::POLLHUP as u32 | ERR;
const ERR: u32 = libc::POLLERR as u32;

/// Whether nobody will take bytes at the far end any more. Only when the peer is there.
#[inline(always)]
pub fn is_dead(end: &impl End) -> bool {
    let shown = end.state().shown();
    let closed = end.consumer().producer_flags() & tx_flags::CLOSED;
    closed | shown & (OVER | RDHUP) != 0 && is_dead_by(end, shown)
}

#[cold]
fn is_dead_by(end: &impl End, shown: u32) -> bool {
    let state = end.state();
    let flags = end.consumer().producer_flags();
    // An end of file that the far end announced, or that we made, says nothing of its reading half.
    let is_announced = || flags & tx_flags::SHUT != 0 || state.receive_shut.load(Ordering::Relaxed);
    flags & tx_flags::CLOSED != 0
        || shown & OVER != 0
        || shown & RDHUP != 0 && (!is_announced() || state.peer_gone.load(Ordering::Relaxed))
}

/// Whether nobody will take bytes at the far end, by what the kernel shows now, under a lock. A
/// hint that the kernel does not bear out (any more) is dropped: on its word alone, bytes would
/// go by the kernel past a ring that is in use. An error by itself ends nothing: it may be one
/// that IP_RECVERR asked for, or lie in the queue of errors (linux: tcp_poll).
pub(crate) fn is_dead_now(end: &impl End) -> bool {
    let state = end.state();
    let seen = state.shown();
    let mut shown = look(end);
    // The kernel may show the end of a half later that the program is about to shut.
    if state.receive_shut.load(Ordering::Relaxed) {
        shown |= seen & RDHUP;
    }
    state.forget(seen, (RDHUP | OVER) & !shown);
    if shown & OVER == ERR {
        shown &= !ERR;
    }
    is_dead_by(end, shown)
}

/// Whether the kernel shows the end of what the far end sends: behind a FIN nothing is published
/// any more. Not so if the program itself has shut its receiving half. It is asked if a hint says
/// so, which alone would have the receiver take nothing more from a ring that is in use.
#[inline(always)]
pub(crate) fn has_ended(end: &impl End) -> bool {
    let state = end.state();
    let seen = state.shown();
    seen & RDHUP != 0 && !state.receive_shut.load(Ordering::Relaxed) && shows_end(end, seen)
}

#[cold]
fn shows_end(end: &impl End, seen: u32) -> bool {
    let stale = RDHUP & !look(end);
    end.state().forget(seen, stale);
    stale == 0
}

/// Whether bytes of ours lie in the ring, or can, of which the kernel knows nothing: also behind a
/// ring that was left, while the far end drains it.
#[inline]
pub fn is_by_ring(end: &impl End) -> bool {
    let producer = end.producer();
    match producer.state() {
        tx_state::RING => true,
        tx_state::BACK => producer.unread_hint() != 0 && is_drained_by_peer(end),
        _ => false,
    }
}

/// Whether the far end died with bytes of ours unread, and the kernel does not know it.
pub fn is_reset(end: &impl End) -> bool {
    // The end first: who drains the ring gives the channel up, and says so, behind the last byte.
    let known = if end.is_unix() { ERR } else { OVER };
    if end.state().shown() & known != 0
        || !is_dead(end)
        || end.is_unix() && has_only_shut(end)
        || end.producer().unread_hint() == 0
    {
        return false;
    }
    // One look at the state: another thread may be leaving the ring just now.
    match end.producer().state() {
        tx_state::RING => !is_about_to_leave(end),
        state => state == tx_state::BACK && is_drained_by_peer(end),
    }
}

/// A far end that has left the ring may live, without the library: what lies there is about to go by the kernel. Not so
/// behind our own end of file.
fn is_about_to_leave(end: &impl End) -> bool {
    let ended = tx_flags::SHUT | tx_flags::CLOSED;
    let has_ended = end.own().cold.tx_flags.load(Ordering::Relaxed) & ended != 0;
    !has_ended && end.producer().peer_waits().1
}

/// Of a ring that was left to be drained, with bytes in it: whether this peer still has to do that.
fn is_drained_by_peer(end: &impl End) -> bool {
    // A far end that has drained it may have given the channel up, and begun the next one.
    fence(Ordering::Acquire);
    end.peer_is_there()
}

/// Whether the far end has announced the end of what it sends, and not that it closes.
fn has_only_shut(end: &impl End) -> bool {
    let flags = end.consumer().producer_flags();
    flags & (tx_flags::SHUT | tx_flags::CLOSED) == tx_flags::SHUT
}

/// Whether the far end of a pair has closed before it could send what it had taken back from its ring.
fn has_cut(end: &impl End) -> bool {
    let consumer = end.consumer();
    end.is_unix() && consumer.producer_state() == tx_state::WITHDRAWN && consumer.is_still_to_send()
}

/// The error of the reset, once. After an announced end of file it is EPIPE (linux: tcp_reset).
pub fn fetch_error(end: &impl End) -> Option<i32> {
    let was_told = end.state().reset_told.swap(true, Ordering::AcqRel);
    let announced = end.consumer().producer_flags() & tx_flags::SHUT != 0;
    (!was_told).then_some(if announced {
        libc::EPIPE
    } else {
        libc::ECONNRESET
    })
}

/// What a receive says behind the last byte: the reset, once, or the end of file.
pub fn receive(end: &impl End) -> Result<()> {
    let is_clean = !end.is_unix() && end.consumer().producer_flags() & tx_flags::SHUT != 0;
    if is_clean || !is_reset(end) && !has_cut(end) {
        return Ok(());
    }
    fetch_error(end).map_or(Ok(()), Err)
}

/// Whether the program has still to be told of the reset.
pub fn is_untold(end: &impl End) -> bool {
    !end.state().reset_told.load(Ordering::Relaxed)
}

/// A send to a far end that is dead, with the lock of its half: the kernel does it if it knows
/// what to say.
pub(crate) fn send<E: End>(
    end: &E,
    guard: E::Guard<'_>,
    source: &mut impl Source,
) -> Result<Moved> {
    let leaves = end.producer().must_leave();
    let reset = (!leaves && is_reset(end)).then(|| fetch_error(end));
    drop(guard);
    if leaves {
        // What lies there goes before.
        down::leave(end, None);
        return match end.producer().state() {
            tx_state::RING => crate::attend(end).map(|()| Moved::Nothing),
            _ => crate::send(end, source),
        };
    }
    match reset {
        None => by_kernel_behind(end, source),
        Some(Some(libc::ECONNRESET)) => Err(libc::ECONNRESET),
        Some(_) => {
            source.break_pipe();
            Err(libc::EPIPE)
        }
    }
}

/// An error by which the kernel tells of the connection: whether it is a reset of which the program was told before. It is told once
/// (linux: sk_stream_error), and what the ring has told, the kernel may come to know a moment later.
pub fn is_told_again(state: &State, error: i32) -> bool {
    matches!(error, libc::ECONNRESET | libc::EPIPE) && state.reset_told.swap(true, Ordering::AcqRel)
}

fn by_kernel_behind(end: &impl End, source: &mut impl Source) -> Result<Moved> {
    match source.by_kernel() {
        Err(error @ libc::ECONNRESET) if is_told_again(end.state(), error) => {
            source.break_pipe();
            Err(libc::EPIPE)
        }
        moved => moved,
    }
}

/// Notes what the kernel shows of the connection's end. Where that is news, it is an edge
/// for whoever waits for one: the kernel's own event, when it comes, is none any more.
pub fn look(end: &impl End) -> u32 {
    let shown = end.kernel_shows() & (RDHUP | OVER);
    let state = end.state();
    if shown & !state.note(shown) != 0 {
        state.edges.fetch_add(1, Ordering::Relaxed);
    }
    shown
}

/// Whether the kernel has an error for the program.
pub fn has_error(end: &impl End) -> bool {
    look(end) & ERR != 0
}

/// The broker says that the peer's process is gone. Its FIN may come later than this word. If
/// none comes, another process holds the socket, which knows nothing of the ring or has left
/// it: the watchdog ([`down::watch`]) sends by the kernel what lies there. And a process that
/// lives and has only left the broker has no ring any more, either: what it publishes from now
/// on is not taken.
///
/// Where this end [`parts_alone`](End::parts_alone), the word comes a second time once the far end's whole machine is known to
/// be gone, and nothing will ever come of what is left.
pub fn peer_process_gone(end: &impl End) {
    let is_news = !end.state().peer_gone.swap(true, Ordering::Relaxed);
    let shown = look(end);
    if end.has_channel() {
        down::drain(end);
        end.knock_all();
        if end.parts_alone() && !is_news {
            down::lose_if_stuck(end);
        } else if end.parts_alone() && shown & (RDHUP | OVER) == 0 {
            // A machine that is gone sends no FIN, ever.
            down::ask(end.state(), Reason::NoPeer as u32);
        }
    }
}

/// The watchdog will not come any more.
fn withdraw_from_gone(end: &impl End) {
    if end.has_channel() && end.state().peer_gone.load(Ordering::Relaxed) {
        down::withdraw(end);
    }
}

/// The program is about to shut halves down by the kernel. Whether its sending half may be: a FIN would overtake bytes that were taken
/// back from the ring, and for which a call that may not wait has found no room. Then [`crate::flush_back`] does it behind them.
pub fn before_shutdown(end: &impl End, sends: bool, receives: bool) -> bool {
    let mut is_free = true;
    if sends {
        withdraw_from_gone(end);
        // Before the kernel's FIN, so that the peer knows that this end of file is clean.
        let deadline_ns = Some(down::deadline(end.now_ns()));
        is_free = down::announce_end(end, tx_flags::SHUT, deadline_ns) || !put_off(end);
    }
    if receives {
        // Who sees the end of file sees that it is our own.
        end.state().receive_shut.store(true, Ordering::Relaxed);
        end.state().note((libc::POLLIN | libc::POLLRDHUP) as u32);
    }
    is_free
}

/// Leaves the end to whoever sends the rest; false: there is none (any more).
fn put_off(end: &impl End) -> bool {
    let is_owed = holding(end, Half::Sending, || {
        let is_owed = end.producer().back_bytes_or_zero() != 0;
        end.state().end_due.store(is_owed, Ordering::Relaxed);
        is_owed
    });
    is_owed == Some(true)
}

/// What a close waits for. Whoever holds handlers off during [`before_close`] does this before. Whether all went, or need not.
pub fn flush_before_close(end: &impl End, deadline_ns: u64) -> bool {
    withdraw_from_gone(end);
    down::flush_before_end(end, deadline_ns)
}

/// The last descriptor is about to be closed by the program, or by its exit: with
/// bytes unread, Linux resets the connection instead of ending it (RFC 2525, 2.17).
/// What was taken back from the ring goes before, and is waited for until `deadline_ns`; `None`: not at all.
pub fn before_close(end: &impl End, deadline_ns: Option<u64>) {
    withdraw_from_gone(end);
    let all = down::announce_end(end, tx_flags::CLOSED, deadline_ns);
    // Another thread may give the channel up meanwhile: then the kernel knows of all bytes.
    let unread = holding(end, Half::Receiving, || {
        let consumer = end.consumer();
        end.peer_is_there()
            && match consumer.producer_state() {
                tx_state::RING | tx_state::BACK => consumer.has_unread(),
                // Neither is sure alone: a program may read past the library, and the far end
                // counts what it has sent a moment later.
                tx_state::WITHDRAWN => is_owed(end) && consumer.is_still_to_send(),
                _ => false,
            }
    });
    // A peer that misses bytes is to see that its stream did not end well. What is unread here, another program may receive: it has the
    // socket as well, and what is set there.
    if !all || unread == Some(true) && !is_handed_on(end.state()) {
        end.reset_at_close();
    }
}

/// Whether another program may hold the socket, and no process that has this end's channel.
fn is_handed_on(state: &State) -> bool {
    let barred = Reason::from_u32(state.barred.load(Ordering::Relaxed));
    matches!(barred, Some(Reason::Exec | Reason::Passed))
}

/// The error that was met on the program's behalf, once.
pub(crate) fn take_error(end: &impl End) -> Option<i32> {
    let error = &end.state().error;
    if error.load(Ordering::Relaxed) == 0 {
        return None;
    }
    Some(error.swap(0, Ordering::Relaxed) as i32).filter(|error| *error != 0)
}

/// The reset's error for getsockopt(SO_ERROR), or 0: beyond the kernel's own answer.
pub fn socket_error(end: &impl End) -> i32 {
    if let Some(error) = take_error(end) {
        return error;
    }
    let error = holding(end, Half::Sending, || {
        look(end);
        let reset = end.peer_is_there() && is_reset(end);
        reset.then(|| fetch_error(end)).flatten()
    });
    error.flatten().unwrap_or(0)
}
