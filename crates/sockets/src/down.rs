//! The way back to the kernel, of one direction or of both.
//!
//! # States
//! A half goes down by itself, and says so in its endpoint (`fordway_abi::shm`: `tx_state`,
//! `rx_state`). The connection is over when both have, and gives its channel up.
//! ```text
//!   sending                                     receiving
//!   RING ── leave ───► BACK       the peer      READY ── drain ──► DRAIN ── empty ──► STOP
//!     │                           drains it       └────── stop, at once ───────────────▲
//!     └─ withdraw ──► WITHDRAWN   what it had not taken goes by the kernel (send_rest)
//! ```
//!
//! | step | from, to | asked by | lock |
//! |---|---|---|---|
//! | [`downgrade`] | all of the below, both halves | the administrator, the program, a fork | - |
//! | [`leave_and_stop`], [`settle`] | the same in two steps, of many connections | exec, a passed descriptor, a fork | - |
//! | `leave` | RING to WITHDRAWN if the kernel has room for all that is unread, else to BACK | this end, or a peer that stopped | sending |
//! | `withdraw` | RING to WITHDRAWN, however much is unread | [`watch`], a close | sending |
//! | `send_rest` | WITHDRAWN: the rest goes by the kernel | each call and wake-up ([`serve`]) | sending |
//! | `drain` | READY to DRAIN, and to STOP once it is empty | this end | receiving |
//! | [`give_up_if_over`] | both halves down and empty: no channel | whoever moved last | both |

use crate::flush::Wait;
use crate::{
    End, Half, Lost, NoLock, Result, State, attention, carried, ends, flush_back, holding, receive,
    send,
};
use core::sync::atomic::{Ordering, fence};
use fordway_abi::reason::Reason;
use fordway_abi::shm::{rx_state, tx_flags, tx_state};
use fordway_ring::Violation;

/// Longest wait for a peer to take its direction back before an exec or a passed
/// descriptor; a peer that was stopped or computes that long holds the caller up.
const BACK_WAIT_NS_MAX: u64 = 10_000_000_000;
/// What each of several peers has at least to go on taking, when others have used it up.
const FLUSH_WAIT_NS_MIN: u64 = 200_000_000;
/// Tries to find nothing taken back when an end is announced.
const ANNOUNCEMENTS_MAX: u32 = 8;
/// A reader holds its lock for a copy, at most.
const TAKE_BACK_TRIES: u32 = 1000;
/// How long a peer is believed to take what lies there.
const EXCUSED_NS_MAX: u64 = 1_000_000_000;
/// The same at a channel that ends without the peer's answer ([`End::parts_alone`]): the peer may be gone, or be stopped in the
/// middle of a copy. A peer that begins waits in the library meanwhile lives, and is believed anew.
const EXCUSED_ALONE_NS_MAX: u64 = 60_000_000_000;
/// Times that the watchdog may act on a connection before it is left with the kernel.
const RESCUES_MAX: u32 = 2;

/// Marks a connection as never to be offered again.
pub fn bar(end: &impl End, reason: Reason) {
    end.state().barred.store(reason as u32, Ordering::Relaxed);
}

/// The kernel path is asked for by whoever cannot move the connection himself: the reader of the
/// mail, under locks. The next call on it, or [`attend`] behind the mail, acts on it.
pub fn ask(state: &State, reason: u32) {
    state.passing.store(reason, Ordering::Relaxed);
    let asked = &state.attention;
    asked.fetch_or(attention::DOWN, Ordering::AcqRel);
}

/// Acts on [`crate::State::attention`]. `Err`: what the program's call gives.
#[cold]
pub fn attend(end: &impl End) -> Result<()> {
    let state = end.state();
    let asked = state.attention.load(Ordering::Acquire);
    if asked & attention::BROKEN != 0 {
        return Err(libc::ECONNRESET);
    }
    if asked & attention::INHERITED != 0 && !end.is_bound() {
        // The parent gave the channel up, and its place has another one by now.
        end.disown();
        return Ok(());
    }
    if asked & attention::FOREIGN != 0 {
        bar(end, Reason::Forked);
        downgrade(end, Reason::Forked, false);
    } else if asked & attention::DOWN != 0 {
        // The administrator's wish stands; the far end's reason is the far end's.
        let told = Reason::from_u32(state.passing.load(Ordering::Relaxed));
        let reason = told.unwrap_or(Reason::Asked);
        if reason == Reason::Asked {
            bar(end, reason);
        }
        downgrade(end, reason, false);
    }
    Ok(())
}

/// The peer broke the protocol: this connection is lost, nothing else is. What the
/// program's call gives.
#[cold]
pub fn broke(end: &impl End, violation: Violation) -> i32 {
    lose(end, Lost::Broken(violation))
}

/// As [`broke`], for whatever reason.
#[cold]
pub(crate) fn lose(end: &impl End, why: Lost) -> i32 {
    let attention = &end.state().attention;
    let before = attention.fetch_or(attention::BROKEN, Ordering::AcqRel);
    if before & attention::BROKEN == 0 {
        end.lost(why);
    }
    libc::ECONNRESET
}

/// Moves both directions to the kernel. With `wait`, returns only when the peer has
/// sent by the kernel what was left in its ring (or is gone), so that a program
/// without the shim can go on reading. A reason that stands is the caller's to
/// [`bar`] before.
pub fn downgrade(end: &impl End, reason: Reason, wait: bool) {
    if wait {
        leave_and_stop(end, reason);
        settle(end, Some(deadline(end.now_ns())));
    } else if end.has_channel() {
        // Who is asked for the kernel path is asked once.
        let _shield = end.shield();
        ask_for_kernel(end, reason);
        let has_left = leave(end, Some(reason));
        if !drain(end) || !has_left {
            // The holder of the lock is beneath us: the next call does it.
            return ask(end.state(), reason as u32);
        }
        end.knock_all();
        give_up_if_over(end);
    }
}

/// Until when a call waits for the peers of all the connections that it moves.
pub fn deadline(now_ns: u64) -> u64 {
    now_ns + BACK_WAIT_NS_MAX
}

/// The first half of a downgrade with `wait`, of one of several connections: all peers are
/// asked before any is waited for, so that those that do not answer cost the time of one.
pub fn leave_and_stop(end: &impl End, reason: Reason) {
    if !end.has_channel() {
        return;
    }
    // As in `downgrade`.
    let _shield = end.shield();
    ask_for_kernel(end, reason);
    leave(end, Some(reason));
    if let Ok(_guard) = end.lock(Half::Receiving) {
        end.consumer().stop();
    }
    end.knock_all();
}

/// The second half; `None`: nothing is waited for.
pub fn settle(end: &impl End, deadline_ns: Option<u64>) {
    if !end.has_channel() {
        return;
    }
    flush_until(end, deadline_ns);
    // Who is not there yet finds the ring stopped, and puts nothing in.
    if let Some(deadline_ns) = deadline_ns.filter(|_| end.peer_is_there()) {
        wait_for_peer(end, deadline_ns);
    }
    give_up_if_over(end);
}

/// Whether this end can do without the channel from here on, behind [`settle`]: all that it sends goes by the kernel, and
/// so does all that comes. Without the peer's answer it keeps the channel, for the peer may still drain the ring.
pub fn is_off_rings(end: &impl End) -> bool {
    let Ok(_tx) = end.lock(Half::Sending) else {
        return !end.has_channel();
    };
    let Ok(_rx) = end.lock(Half::Receiving) else {
        return !end.has_channel();
    };
    let (producer, consumer) = (end.producer(), end.consumer());
    let sends = matches!(producer.state(), tx_state::BACK | tx_state::WITHDRAWN);
    // Who comes later finds the ring stopped.
    let has_stopped = match end.peer_is_there() {
        true => consumer.has_stopped() || consumer.is_over().unwrap_or(false),
        false => end.own().wait.rx_state.load(Ordering::Relaxed) == rx_state::STOP,
    };
    sends && producer.back_bytes_or_zero() == 0 && has_stopped
}

fn ask_for_kernel(end: &impl End, reason: Reason) {
    let state = end.state();
    let asked = attention::FOREIGN | attention::DOWN;
    state.attention.fetch_and(!asked, Ordering::AcqRel);
    state.passing.store(reason as u32, Ordering::Relaxed);
}

/// Asks the peer for the kernel path. What is there already is taken here: a stop would leave
/// it to the peer, whose program may not call the library for long. False: the caller has interrupted who has the lock.
pub(crate) fn drain(end: &impl End) -> bool {
    match end.lock(Half::Receiving) {
        Ok(guard) => {
            let consumer = end.consumer();
            consumer.drain();
            consumer.stop_if_drained();
            let _shield = end.shield();
            drop(guard);
            // Who looked meanwhile may not have seen all that may be taken.
            end.wake_own();
            true
        }
        Err(why) => why == NoLock::NoChannel,
    }
}

fn wait_for_peer(end: &impl End, deadline_ns: u64) {
    let consumer = end.consumer();
    while consumer.producer_state() == tx_state::RING && consumer.has_unread() {
        let gone = end.state().peer_gone.load(Ordering::Relaxed);
        if gone || end.now_ns() >= deadline_ns || !end.has_channel() {
            return;
        }
        end.knock_all();
        end.pause();
    }
}

/// Takes the sending direction off the ring for good, for a writer that the library
/// does not see; what the peer gave back has gone by the kernel when this returns. False: it
/// found no room in time, and nothing may go before it.
pub fn send_by_kernel(end: &impl End, reason: Reason) -> bool {
    bar(end, reason);
    if !end.has_channel() {
        return true;
    }
    leave(end, Some(reason));
    flush_before_end(end, deadline(end.now_ns()))
}

/// Takes the sending direction off the ring; if the peer has stopped taking, what
/// it left goes by the kernel at once (or as soon as the kernel takes it). `reason`: why, if
/// it is not the peer that wants it. False: as [`drain`].
pub(crate) fn leave(end: &impl End, reason: Option<Reason>) -> bool {
    let guard = match end.lock(Half::Sending) {
        Ok(guard) => guard,
        Err(why) => return why == NoLock::NoChannel,
    };
    match reason {
        Some(reason) => {
            let told = &end.own().cold.left_for;
            told.store(reason as u32, Ordering::Relaxed);
        }
        // Another thread has done it, and the channel may be the next one.
        None if !end.producer().must_leave() => return true,
        None => {}
    }
    let left =
        withdraw_all(end).and_then(|taken| if taken { Ok(0) } else { end.producer().leave() });
    match left {
        Ok(_) => send_rest(end),
        Err(violation) => {
            broke(end, violation);
        }
    }
    let _shield = end.shield();
    drop(guard);
    // A waiter that looked meanwhile may have seen the ring taken away for a moment.
    end.knock_all();
    true
}

/// Before this side leaves its ring: what lies there goes by the kernel, too, if the kernel
/// has the room for it, or no reader is waited for. A reader that becomes another program, without the library, then
/// finds it. Under the lock; false: the reader has to drain the ring.
fn withdraw_all(end: &impl End) -> core::result::Result<bool, Violation> {
    let producer = end.producer();
    let unread = producer.unread_hint();
    let alone = producer.state() != tx_state::RING || !end.peer_is_there() || unread == 0;
    let has_room = || unread <= end.kernel_room() || end.parts_alone();
    if alone || producer.must_leave() || !has_room() {
        return Ok(false);
    }
    for _ in 0..TAKE_BACK_TRIES {
        if producer.withdraw()? {
            return Ok(true);
        }
        // It was just taking.
        core::hint::spin_loop();
    }
    Ok(false)
}

/// The sending direction has left the ring: the rest goes by the kernel. Whoever
/// waits for room waits for the kernel's now, and must look again: its edge may be long past.
fn send_rest(end: &impl End) {
    // An error is the program's to fetch.
    if !ends::has_error(end)
        && let Err(error) = flush_back(end)
    {
        end.state().error.store(error as u32, Ordering::Relaxed);
    }
    end.state().edges.fetch_add(1, Ordering::Relaxed);
    end.wake_own();
}

/// What a waiter does for its connections when it was woken: leave a ring that the
/// peer has stopped taking from, and go on sending what is left.
pub fn serve(end: &impl End) {
    if !end.has_channel() || !end.peer_is_there() {
        return;
    }
    let producer = end.producer();
    if producer.must_leave() {
        leave(end, None);
    } else if producer.back_bytes_or_zero() != 0
        && let Ok(_guard) = end.lock(Half::Sending)
    {
        send_rest(end);
    }
    give_up_if_over(end);
}

/// Bytes of ours have been unread for a while, of which `lain_ns` since the last look. If nobody on the far side waits for
/// them in the library, a waiter that the shim did not see may wait in the kernel:
/// they are taken back and sent there. A stack is no such waiter: its far end may be slow.
pub fn watch(end: &impl End, lain_ns: u64) {
    if !end.has_channel() || !end.peer_is_there() {
        return;
    }
    let producer = end.producer();
    if end.parts_alone() {
        return watch_alone(end, lain_ns);
    }
    if producer.state() != tx_state::RING || producer.unread_hint() == 0 {
        return;
    }
    let (doors, _) = producer.peer_waits();
    let gone = end.state().peer_gone.load(Ordering::Relaxed);
    if !gone && end.is_to_stack() {
        // All that this look can do for it.
        return end.knock_all();
    }
    if !gone && (has_progressed(end) || is_excused(end, doors, lain_ns)) {
        return;
    }
    if !withdraw(end) {
        return;
    }
    let rescues = end.state().rescues.fetch_add(1, Ordering::Relaxed);
    if rescues >= RESCUES_MAX {
        bar(end, Reason::Watchdog);
    }
    // The other direction goes too, so that the connection can be offered again.
    downgrade(end, Reason::Watchdog, false);
}

/// Bytes of ours lie in a ring that is over. Nobody takes them any more, if they could not be taken back: a reader that ended
/// in the middle of a copy has the lock for good.
#[cold]
fn watch_alone(end: &impl End, lain_ns: u64) {
    if end.producer().state() == tx_state::RING && !ends::is_dead_now(end) {
        downgrade(end, Reason::NoPeer, false);
    }
    give_up_if_over(end);
    let is_left = || {
        let producer = end.producer();
        let by_ring = [tx_state::RING, tx_state::BACK].contains(&producer.state());
        by_ring && producer.unread_hint() != 0
    };
    if end.has_channel()
        && is_left()
        && !has_progressed(end)
        && !lives(end)
        && !is_believed(end, lain_ns, EXCUSED_ALONE_NS_MAX)
    {
        lose(end, Lost::Alone);
    }
}

/// The far end's machine is gone: bytes of ours that neither it nor the kernel has taken by now, nobody takes. What it has
/// sent is the program's to receive, which ends the channel.
pub(crate) fn lose_if_stuck(end: &impl End) {
    let is_stuck = holding(end, Half::Sending, || {
        let producer = end.producer();
        let by_ring = [tx_state::RING, tx_state::BACK].contains(&producer.state());
        producer.back_bytes_or_zero() != 0 || by_ring && producer.unread_hint() != 0
    });
    if is_stuck == Some(true) {
        lose(end, Lost::Alone);
    }
}

/// Whether the peer has taken bytes, from the ring or from the kernel before it,
/// since this was asked last: a slow reader is no unseen one.
fn has_progressed(end: &impl End) -> bool {
    let taken = end.producer().peer_taken_hint();
    let progressed = end.state().watched.swap(taken, Ordering::Relaxed) != taken;
    if progressed {
        end.state().excused_ns.store(0, Ordering::Relaxed);
    }
    progressed
}

/// Whether the peer's process shows that it lives; then it is believed anew.
fn lives(end: &impl End) -> bool {
    let has_beaten = has_beaten(end);
    if has_beaten {
        end.state().excused_ns.store(0, Ordering::Relaxed);
    }
    has_beaten
}

/// Whether the peer's process has begun a wait in the library since this was asked last.
fn has_beaten(end: &impl End) -> bool {
    let beat = end.peer_beat();
    end.state().watched_beat.swap(beat, Ordering::Relaxed) != beat
}

/// Whether the peer has been believed for less than `most_ns` in a row.
fn is_believed(end: &impl End, lain_ns: u64, most_ns: u64) -> bool {
    end.state().excused_ns.fetch_add(lain_ns, Ordering::Relaxed) < most_ns
}

/// Whether the peer may leave bytes unread for now. Its waiter sleeps, and is woken: it need not
/// want them. But one that has shut its half and was killed then shows no other sign of it,
/// while the broker is away; so it is believed for a while only. The same holds for a process
/// that waits in the library now and then: this connection may just not have had its turn,
/// or another thread may be the one that waits, and the reader be unseen all the same.
fn is_excused(end: &impl End, doors: u64, lain_ns: u64) -> bool {
    let state = end.state();
    let alive = has_beaten(end);
    let sleeps = end.peer_sleeps(doors);
    let has_shut = state.shown() & libc::POLLRDHUP as u32 != 0;
    sleeps && !has_shut || (alive || sleeps) && is_believed(end, lain_ns, EXCUSED_NS_MAX)
}

/// Takes what the peer has not read out of the ring and sends it by the kernel; false if
/// that cannot be.
pub fn withdraw(end: &impl End) -> bool {
    let Ok(guard) = end.lock(Half::Sending) else {
        return false;
    };
    if end.producer().state() != tx_state::RING {
        return false;
    }
    // Who died with bytes unread has reset the connection: sent behind its FIN, they would
    // not say so.
    if ends::is_dead_now(end) || ends::has_error(end) {
        return false;
    }
    match end.producer().withdraw() {
        Ok(true) => {
            send_rest(end);
            return true;
        }
        // A waiter that looked just then may have seen the ring taken away.
        Ok(false) => {
            let _shield = end.shield();
            drop(guard);
            end.knock_all();
        }
        Err(violation) => {
            broke(end, violation);
        }
    }
    false
}

/// Gives the channel up if both halves are down, and nothing is left in either ring.
pub fn give_up_if_over(end: &impl End) {
    if !end.has_channel() || !may_be_over(end, end.peer_is_there()) {
        return;
    }
    let Ok(tx) = end.lock(Half::Sending) else {
        return;
    };
    let Ok(rx) = end.lock(Half::Receiving) else {
        return;
    };
    // SYNC POINT with `Producer::enter` of a peer that comes just now: our stop before the look
    // for it; it shows itself before it looks whether we have stopped.
    fence(Ordering::SeqCst);
    let is_there = end.peer_is_there();
    // Another thread may have given the channel up, and got the next one, meanwhile.
    if !may_be_over(end, is_there) || is_there && !is_over(end) {
        return;
    }
    if is_there {
        carried::keep(end);
    }
    // A relative may have sent the rest.
    send::end_if_due(end);
    let link = give_up(end);
    let _shield = end.shield();
    drop((tx, rx));
    end.unbind(link);
}

/// What is looked at before the locks. At a channel to which the peer has not come, and of which it
/// may never have heard: only if the broker has asked to leave it. Otherwise the peer is on its
/// way, and would be left with a channel that nobody tells it to give up. If it comes later all the
/// same, it finds this side off the ring and stopped.
fn may_be_over(end: &impl End, peer_is_there: bool) -> bool {
    let producer = end.producer();
    if end.state().loans.load(Ordering::SeqCst) != 0 {
        return false;
    }
    if peer_is_there {
        let on_ring = matches!(producer.state(), tx_state::RING | tx_state::KERNEL);
        return !on_ring && producer.back_bytes() == 0;
    }
    let asked = end.own().wait.rx_state.load(Ordering::Relaxed);
    producer.state() == tx_state::BACK
        && matches!(asked, rx_state::STOP | rx_state::DRAIN)
        && end.state().passing.load(Ordering::Relaxed) != 0
}

/// Under both locks, when the peer is there.
fn is_over(end: &impl End) -> bool {
    let (producer, consumer) = (end.producer(), end.consumer());
    // A peer that stopped after this direction went back still drains the ring.
    let drained = producer.unread_hint() == 0 || producer.state() == tx_state::WITHDRAWN;
    // An empty ring that was stopped stays empty, whatever the peer says of it and when.
    let takes_nothing = || end.parts_alone() && consumer.has_stopped();
    drained && (consumer.is_over().unwrap_or(false) || takes_nothing()) && !is_waited_for(end)
}

/// Under both locks.
fn give_up<E: End>(end: &E) -> E::Link {
    let reason = match end.state().passing.swap(0, Ordering::Relaxed) {
        0 => match end.state().barred.load(Ordering::Relaxed) {
            0 => others_reason(end),
            reason => reason,
        },
        reason => reason,
    };
    if !end.parts_alone() {
        // Else the far end has not answered yet, and what it still sends goes by the kernel.
        let flags = &end.own().cold.tx_flags;
        flags.fetch_or(tx_flags::CLOSED, Ordering::Release);
    }
    let link = end.give_up(reason);
    end.wake_own();
    link
}

/// Why the channel ends, if it is not this end that wants it: what a relative of this process
/// says, or the peer. Good enough to be listed; that the peer broke the protocol is not the
/// peer's to say.
fn others_reason(end: &impl End) -> u32 {
    let relative = end.own().cold.left_for.load(Ordering::Relaxed);
    let peer = || match end.peer_is_there() {
        true => end.producer().peer_left_for(),
        false => 0,
    };
    let told = if relative != 0 { relative } else { peer() };
    let reason = Reason::from_u32(told).filter(|reason| *reason != Reason::Protocol);
    reason.map_or(0, |reason| reason as u32)
}

/// With SO_RCVLOWAT the kernel wakes nobody for the last bytes of a ring that come by it, for
/// they may be too few (linux: tcp_data_ready): a receive looks for them, with the channel.
fn is_waited_for(end: &impl End) -> bool {
    end.state().low_bytes.load(Ordering::Relaxed) > 1 && receive::is_owed(end)
}

/// Before a FIN: what was taken back from the ring must go before it. Waits for the
/// kernel's room, within a bound ([`crate::flush`]); the peers of all that end together have one deadline. Whether all
/// went, or need not.
pub fn flush_before_end(end: &impl End, deadline_ns: u64) -> bool {
    flush_until(end, Some(deadline_ns))
}

/// What is owed goes as far as the kernel has room for it, which is not waited for. Before a wait for one peer, for all others'
/// sake.
pub fn flush_now(end: &impl End) {
    flush_until(end, None);
}

/// The same until then, and a little longer if that is past; `None`: nothing is waited for.
fn flush_until(end: &impl End, deadline_ns: Option<u64>) -> bool {
    let begin = end.now_ns();
    let impatient = end.is_nonblocking();
    let (limit_at, least) = match deadline_ns {
        None => (begin, 0),
        Some(_) if impatient => (begin + end.patience().left_ns(begin), 0),
        Some(deadline_ns) => (deadline_ns, FLUSH_WAIT_NS_MIN),
    };
    let mut wait = None;
    let all = loop {
        if !end.has_channel() || end.producer().back_bytes_or_zero() == 0 {
            break true;
        }
        let flushed = match end.lock(Half::Sending) {
            Ok(_guard) => flush_back(end).map(|all| (all, end.producer().back_bytes_or_zero())),
            Err(_) => break true,
        };
        let Ok((false, left)) = flushed else {
            break true;
        };
        let wait = wait.get_or_insert_with(|| Wait::begin(begin, limit_at, least));
        let now = end.now_ns();
        if (impatient || deadline_ns.is_none()) && now >= limit_at || !wait.goes_on(now, left) {
            break false;
        }
        end.await_room();
    };
    if impatient && wait.is_some() {
        end.patience().spent(begin, end.now_ns());
    }
    all
}

/// Says by `flag` that nothing will be sent any more, once all that was taken back from the
/// ring has gone. From then on nothing is taken back, for behind a FIN it could not be sent.
/// Waits for room of the kernel's until `deadline_ns`; `None`: not at all. Whether all went, or need not.
pub(crate) fn announce_end(end: &impl End, flag: u32, deadline_ns: Option<u64>) -> bool {
    let mut attempts_left = ANNOUNCEMENTS_MAX;
    loop {
        let all = flush_until(end, deadline_ns);
        let said = holding(end, Half::Sending, || {
            // Another thread may have taken something back before the lock was ours.
            let left = end.producer().back_bytes_or_zero() != 0;
            let says = !all || !left || attempts_left == 0;
            if says {
                let flags = &end.own().cold.tx_flags;
                flags.fetch_or(flag, Ordering::Release);
            }
            says
        });
        if said != Some(false) {
            return all;
        }
        attempts_left -= 1;
    }
}
