//! When a connection is offered to the broker, and what becomes of its answer. How it then
//! moves to its channel and back is `fordway_sockets`' matter; see [`crate::end`].

use crate::deadline::{Deadline, timespec};
use crate::end::At;
use crate::process::PROCESS;
use crate::signals::Call;
use crate::state::{self, Conn, attention, phase};
use crate::sys::{self, sys};
use crate::{
    broker, claim, config, epoll, faults, fork, hidden, hooks_options, identity, insisted, link,
    spin, stack, thread, wait,
};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use fordway_abi::control::{Pair, status};
use fordway_abi::reason::Reason;
use fordway_abi::shm::{Endpoint, tx_flags, tx_state};
use fordway_sockets::{End, Event, Half, NoLock, down, ends, up};

/// How long a connection waits for rings that an end requires: the far end's program has to see
/// its connection, and to offer it. The broker refuses an offer a little earlier.
const INSIST_NS_MAX: u64 = 2_200_000_000;
/// How long a receive waits for them that may not sleep.
const LOOK_NS_MAX: u64 = 1_000_000;
/// How long the first send waits after that until the peer looks at its ring.
const SETTLE_NS_MAX: u64 = 100_000_000;
/// Time between two looks at the mail: another thread may have read it.
const LOOK_NS: u64 = 5_000_000;
/// The same at the peer's endpoint, of which no bell rings.
const SETTLE_LOOK_NS: u64 = 50_000;
/// Calls that move data before a connection is offered again for which there was no memory.
const CALLS_WITHOUT_MEMORY: u32 = 1000;
/// The same of one whose offer did not come to its end: a handler jumped out of it.
const CALLS_WITHOUT_OFFER: u32 = 1000;
/// Calls on a connection that is on offer before the mail is read: a program that only sleeps in the kernel hears so of a
/// broker's end, behind which the mailbox stands still.
const CALLS_WITHOUT_MAIL: u32 = 64;

/// What a call does that moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// It sends.
    Send,
    /// It receives.
    Receive,
    /// It receives what is there (MSG_DONTWAIT).
    Look,
}

/// Whether the far end has closed, and nothing lies unread.
fn has_ended_empty(fd: i32) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLRDHUP,
        revents: 0,
    };
    let _ = sys!(SYS_poll, &raw mut entry, 1, 0);
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // An error is the program's to hear: a look would take it away.
    entry.revents & libc::POLLRDHUP != 0
        && entry.revents & libc::POLLERR == 0
        && sys!(SYS_recvfrom, fd, &raw mut byte, 1, flags, 0, 0) == Ok(0)
}

/// Counts a call that moves data; offers the connection when it has proved itself.
/// `Err`: the program asked for the fast path or nothing, and it is nothing.
#[inline(never)]
pub fn count_operation(conn: &Conn, fd: i32, does: Does) -> sys::Result<()> {
    let now = conn.phase.load(Ordering::Relaxed);
    if now == phase::PAIRED {
        note_call(conn, does);
        return Ok(());
    }
    if config::insists() {
        return insist(conn, fd, does);
    }
    if now == phase::OFFERED {
        let operations = conn.operations.fetch_add(1, Ordering::Relaxed);
        if operations.is_multiple_of(CALLS_WITHOUT_MAIL) {
            broker::drain_mail();
        }
        return Ok(());
    }
    let barred = conn.barred.load(Ordering::Relaxed);
    if barred != 0 {
        if conn.told.load(Ordering::Relaxed) != barred {
            tell(conn, fd, barred);
        }
        return Ok(());
    }
    sight(conn, fd);
    let operations = conn.operations.fetch_add(1, Ordering::Relaxed);
    if is_due(operations, config::offer_after()) {
        offer(conn, fd);
    }
    Ok(())
}

/// Whether a connection without an offer is to be offered, after so many calls of which `after` come first.
fn is_due(operations: u32, after: u32) -> bool {
    // Below zero: see `count_anew`.
    let is_counted = operations < u32::MAX - CALLS_WITHOUT_MEMORY;
    operations == after
        || operations > after
            && is_counted
            && (operations - after).is_multiple_of(CALLS_WITHOUT_OFFER)
}

/// A connection is by the kernel again, or still; calls are counted until the next offer. Without
/// memory that is far off: each try costs both ends a channel.
pub fn count_anew(conn: &Conn, reason: u32) {
    let first = match Reason::from_u32(reason) {
        Some(Reason::NoMemory) => config::offer_after().wrapping_sub(CALLS_WITHOUT_MEMORY),
        _ => 0,
    };
    conn.operations.store(first, Ordering::Relaxed);
}

/// Of a connection with a channel: goes on counting until this side sends by its ring.
#[inline(always)]
pub fn note_call(conn: &Conn, does: Does) {
    if conn.own().cold.tx_state.load(Ordering::Relaxed) == tx_state::KERNEL {
        note_call_before_ring(conn, does);
    }
}

/// Two threads may count as one.
#[cold]
fn note_call_before_ring(conn: &Conn, does: Does) {
    let calls = &conn.own().tx_own.calls;
    calls.store(calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    if does == Does::Send && conn.rings_until_ns.load(Ordering::Relaxed) != 0 {
        settle(conn);
    }
}

/// A connection is seen for the first time. If its program requires the fast path, or some other
/// does, which may be that of the far end, it is offered at once: the far end waits for that.
/// Not as soon as it is accepted: many a server then forks, and the child goes on with it.
#[inline]
pub fn sight(conn: &Conn, fd: i32) {
    if conn.sighted.load(Ordering::Relaxed) == 0 {
        sight_first(conn, fd);
    }
}

/// A connection is by the kernel again: what was decided at first is decided again.
pub fn sight_anew(conn: &Conn, reason: u32) {
    if reason != Reason::NoMemory as u32 {
        conn.rings_until_ns.store(0, Ordering::Relaxed);
        conn.sighted.store(0, Ordering::Relaxed);
    }
}

#[cold]
fn sight_first(conn: &Conn, fd: i32) {
    let may_have_rings = conn.phase.load(Ordering::Relaxed) == phase::KERNEL
        && conn.barred.load(Ordering::Relaxed) == 0;
    // Who requires the fast path attaches to the broker before it connects or listens. So what
    // the other end of its connection finds here holds for good.
    if !may_have_rings || !config::insists() && !insisted::is_so() {
        conn.sighted.store(1, Ordering::Relaxed);
        return;
    }
    if identity::in_borrowed_memory() || claim::of(fd).is_none() {
        // Not connected yet.
        return;
    }
    let now_ns = sys::now_ns();
    let until = &conn.rings_until_ns;
    let _ = until.compare_exchange(
        0,
        now_ns + INSIST_NS_MAX,
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
    // While a forked relative holds it too, the next call looks again.
    let has_time = now_ns < until.load(Ordering::Relaxed);
    if !is_shared(conn) || !has_time {
        conn.sighted.store(1, Ordering::Relaxed);
    }
    if has_time {
        offer(conn, fd);
    }
}

/// Whether a connection may get rings at any moment, because an end requires them: who waits for
/// it has to look at the mail.
#[inline]
pub fn is_undecided(conn: &Conn) -> bool {
    conn.rings_until_ns.load(Ordering::Relaxed) != 0 && has_time(conn)
}

#[cold]
fn has_time(conn: &Conn) -> bool {
    if conn.is_paired() || conn.barred.load(Ordering::Relaxed) != 0 {
        return false;
    }
    let has_time = sys::now_ns() < conn.rings_until_ns.load(Ordering::Relaxed);
    if !has_time && conn.sighted.load(Ordering::Relaxed) != 0 {
        // The clock need not be asked again.
        conn.rings_until_ns.store(0, Ordering::Relaxed);
    }
    has_time
}

/// Offers a connection again that could not be offered, or was turned down for now. Whether the
/// broker has the offer.
fn pursue(conn: &Conn, fd: i32) -> bool {
    if conn.phase.load(Ordering::Relaxed) == phase::KERNEL {
        if conn.sighted.load(Ordering::Relaxed) != 0 {
            // What passes takes its time.
            doze(-1, false, LOOK_NS);
            offer(conn, fd);
        }
        sight(conn, fd);
    }
    conn.phase.load(Ordering::Relaxed) == phase::OFFERED
}

/// Sleeps until there is mail, if the broker `may_answer`, or `fd` has something to read, or for a
/// while. Whether `fd` has.
fn doze(fd: i32, may_answer: bool, time_ns: u64) -> bool {
    let entry = |fd, events| libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let mail = if may_answer { broker::fd() } else { -1 };
    let readable = libc::POLLIN | libc::POLLRDHUP;
    let mut entries = [entry(fd, readable), entry(mail, libc::POLLIN)];
    let time = timespec(time_ns);
    let _ = sys!(SYS_ppoll, entries.as_mut_ptr(), 2, &raw const time, 0, 8);
    entries[0].revents != 0
}

/// A receive is about to sleep in the kernel, where the mail is not read and no ring is looked at:
/// not before it is known whether the connection gets rings, or has bytes.
#[cold]
pub fn await_rings(conn: &Conn, fd: i32) -> sys::Result<()> {
    if conn.is_nonblocking() {
        return Ok(());
    }
    let call = Call::begin();
    let serial = conn.serial.load(Ordering::Relaxed);
    read_timeouts(conn, fd);
    let timeout_ns = conn.receive_timeout_ns.load(Ordering::Relaxed);
    let deadline = Deadline::after((timeout_ns != 0).then_some(timeout_ns));
    while is_undecided(conn) && conn.serial.load(Ordering::Relaxed) == serial {
        broker::drain_mail();
        if conn.is_paired() || doze(fd, pursue(conn, fd), LOOK_NS) {
            break;
        }
        thread::cancellation_point();
        if call.is_interrupted(deadline != Deadline::Never) {
            return Err(libc::EINTR);
        }
        if deadline.has_passed() {
            return Err(libc::EAGAIN);
        }
    }
    Ok(())
}

/// A receive may sleep in the kernel, on a connection that may still get rings: it spins as it would
/// with them. A connection of one request is a few sleeps, and each costs both ends more than a spin.
pub fn spin_young(conn: &Conn, fd: i32) -> sys::Result<()> {
    if conn.is_nonblocking() || conn.barred.load(Ordering::Relaxed) != 0 {
        return Ok(());
    }
    let call = Call::begin();
    spin::spin_for_kernel(|| {
        let mut entry = libc::pollfd {
            fd,
            events: libc::POLLIN | libc::POLLRDHUP,
            revents: 0,
        };
        sys!(SYS_poll, &raw mut entry, 1, 0) != Ok(0) || call.is_interrupted(true)
    });
    if call.is_interrupted(true) {
        read_timeouts(conn, fd);
        // With a time limit each handler ends the call (man 7 signal).
        if call.is_interrupted(conn.receive_timeout_ns.load(Ordering::Relaxed) != 0) {
            return Err(libc::EINTR);
        }
    }
    Ok(())
}

/// The program requires the fast path: none of its calls moves a byte before the connection has a
/// channel. Also a send that may not sleep waits for that, up to the bound: what was reported as
/// writable must take something. A receive that may not sleep finds nothing yet: a peer that never
/// offers holds up a server's event loop no longer than that.
#[cold]
fn insist(conn: &Conn, fd: i32, does: Does) -> sys::Result<()> {
    let refused = |reason| {
        tell(conn, fd, reason);
        Err(libc::ENETUNREACH)
    };
    let call = Call::begin();
    let serial = conn.serial.load(Ordering::Relaxed);
    let may_sleep = does != Does::Look && !conn.is_nonblocking();
    let look_until_ns = match does {
        Does::Receive | Does::Look if !may_sleep => sys::now_ns() + LOOK_NS_MAX,
        _ => u64::MAX,
    };
    sight(conn, fd);
    sight_others(conn);
    loop {
        broker::drain_mail();
        let barred = conn.barred.load(Ordering::Relaxed);
        if conn.is_paired() {
            break;
        }
        if barred != 0 {
            return refused(barred);
        }
        if conn.serial.load(Ordering::Relaxed) != serial || claim::of(fd).is_none() {
            // Not connected (any more): the kernel says so.
            return Ok(());
        }
        if identity::in_borrowed_memory() {
            return Err(libc::ENETUNREACH);
        }
        // Nor is an end a byte. By a ring nothing has come: this side has never looked at one.
        if does != Does::Send && has_ended_empty(fd) {
            return Ok(());
        }
        let is_offered = pursue(conn, fd);
        if !is_undecided(conn) && !conn.is_paired() {
            if stop_waiting(conn) {
                return refused(Reason::NoPeer as u32);
            }
            continue;
        }
        let left_ns = look_until_ns.saturating_sub(sys::now_ns());
        if left_ns == 0 {
            return Err(libc::EAGAIN);
        }
        doze(-1, is_offered, left_ns.min(LOOK_NS));
        thread::cancellation_point();
        if may_sleep && call.is_interrupted(false) {
            return Err(libc::EINTR);
        }
    }
    if does == Does::Send {
        settle(conn);
    }
    Ok(())
}

/// The other end may be this process's own, and this thread the one that would see it.
fn sight_others(conn: &Conn) {
    if conn.phase.load(Ordering::Relaxed) == phase::OFFERED {
        // Another thread may close one of them: then it waits with that, or has begun.
        let _mail = broker::hold_mail();
        let in_use = |other: &&Conn| other.refs.load(Ordering::Acquire) != 0;
        for other in state::conns().filter(in_use) {
            sight(other, other.fd.load(Ordering::Relaxed));
        }
    }
}

/// The time is over. False: it has a channel after all.
fn stop_waiting(conn: &Conn) -> bool {
    // Nobody binds the connection to a channel meanwhile.
    let mail = broker::hold_mail();
    if conn.is_paired() {
        return false;
    }
    withdraw(conn, Reason::NoPeer as u32);
    drop(mail);
    down::bar(&conn.end(), Reason::NoPeer);
    break_off(conn);
    true
}

/// Takes the connection's offer back. Whether there was one.
fn withdraw(conn: &Conn, reason: u32) -> bool {
    let withdrawn = conn.phase.transition(Event::Voided).is_ok();
    if withdrawn {
        broker::report(conn, status::WITHDRAWN, reason);
    }
    withdrawn
}

/// The first send of a program that requires the fast path: the peer has heard of the channel, or
/// is about to, and looks at its ring soon, if a thread of its reads. One that waits for an event
/// need not have read anything yet: then it does not before it has got something by the kernel.
#[cold]
fn settle(conn: &Conn) {
    let until_ns = conn.rings_until_ns.load(Ordering::Relaxed);
    while conn.is_paired() && !conn.is_attended() && sys::now_ns() < until_ns {
        doze(-1, false, SETTLE_LOOK_NS);
        broker::drain_mail();
    }
    conn.rings_until_ns.store(0, Ordering::Relaxed);
}

/// Has the broker list why a connection stays on the kernel path, once it is not young any more.
#[cold]
fn tell(conn: &Conn, fd: i32, reason: u32) {
    if conn.operations.fetch_add(1, Ordering::Relaxed) >= config::offer_after()
        && conn.told.swap(reason, Ordering::Relaxed) != reason
    {
        broker::decline(conn, fd, reason);
    }
}

fn offer(conn: &Conn, fd: i32) {
    let Some(end) = At::called(conn, fd) else {
        return;
    };
    let reason = unsuited(conn, fd);
    let is_connected = end.sent_position().is_some();
    if !end.is_callable() {
        return;
    }
    if let Some(reason) = reason {
        down::bar(&end, reason);
        return;
    }
    if !is_connected {
        // Not yet, or no more: the broker would turn it down for good.
        conn.operations.store(0, Ordering::Relaxed);
        return;
    }
    fork::hold_again(&conn.held);
    if is_shared(conn) {
        tell(conn, fd, Reason::Forked as u32);
        conn.operations.store(0, Ordering::Relaxed);
        return;
    }
    if conn.is_unix()
        && !conn.is_served()
        && conn.channels.load(Ordering::Relaxed) != 0
        && stack::is_owed(fd)
    {
        // Rings past the stack begin at a position that is not known before all has come.
        conn.operations.store(0, Ordering::Relaxed);
        return;
    }
    if !broker::offer(conn, &end) {
        if conn.phase.load(Ordering::Relaxed) == phase::KERNEL {
            conn.operations.store(0, Ordering::Relaxed);
        }
        return;
    }
    broker::check_mail();
}

fn cookie(fd: i32) -> u64 {
    claim::wide_option(fd, libc::SO_COOKIE).unwrap_or(0)
}

/// Whether `fd` is this connection's socket here and now: in a vfork child the table
/// of descriptors is the parent's, and need not be true.
pub fn is_under(conn: &Conn, fd: i32) -> bool {
    cookie(fd) == conn.cookie.load(Ordering::Relaxed)
}

/// Options, perhaps inherited from the listening socket, that only the kernel heeds.
fn unsuited(conn: &Conn, fd: i32) -> Option<Reason> {
    let option = |name| sys::int_option(fd, libc::SOL_SOCKET, name);
    // A stack looks for marks by itself.
    if !conn.is_served() && option(libc::SO_OOBINLINE) != 0 {
        return Some(Reason::Oob);
    }
    let flags = sys!(SYS_fcntl, fd, libc::F_GETFL).unwrap_or(0) as i32;
    let unsuited = option(libc::SO_RCVLOWAT) > 1
        || flags & libc::O_ASYNC != 0
        || hooks_options::has_kernel_option(fd);
    unsuited.then_some(Reason::Unsupported)
}

/// The broker has said no.
pub fn rejected(conn: &Conn, reason: u32) {
    if conn.phase.transition(Event::Voided).is_err() {
        return;
    }
    count_anew(conn, reason);
    if up::is_for_good(reason) {
        conn.told.store(reason, Ordering::Relaxed);
        conn.barred.store(reason, Ordering::Relaxed);
        if config::insists() {
            // It is refused, and not just closed meanwhile: to be logged.
            broker::report(conn, status::WITHDRAWN, reason);
            break_off(conn);
        }
    }
}

/// The broker has asked for the kernel path, and the connection has given its channel up by
/// itself meanwhile, for the far end was quicker. The administrator's wish stands all the same.
pub fn asked_late(conn: &Conn) {
    down::bar(&conn.end(), Reason::Asked);
    withdraw(conn, Reason::Asked as u32);
}

/// The broker has cut a channel for the connection.
pub fn paired(conn: &Conn, index: u32, pair: &Pair) {
    if conn.phase.load(Ordering::Acquire) != phase::OFFERED {
        return;
    }
    faults::arm();
    conn.cuts_through
        .store(pair.cuts_through, Ordering::Relaxed);
    link::bind(conn, index, pair.slot, pair.generation, pair.channel_id);
    conn.ask(|fd| {
        if let Ok(flags) = sys!(SYS_fcntl, fd, libc::F_GETFL) {
            let nonblock = u32::from(flags as i32 & libc::O_NONBLOCK != 0);
            conn.nonblock.store(nonblock, Ordering::Relaxed);
        }
        read_timeouts(conn, fd);
    });
    let mut settles_until_ns = 0;
    if config::insists() {
        // It reads by the library or not at all.
        conn.reads.store(true, Ordering::SeqCst);
        settles_until_ns = sys::now_ns() + SETTLE_NS_MAX;
    }
    conn.rings_until_ns
        .store(settles_until_ns, Ordering::Relaxed);
    up::begin(&conn.end());
    // What the kernel holds is not known until it was asked once more.
    conn.note_edge(libc::POLLIN as u32);
    epoll::attach(conn);
    up::set_out(&conn.end(), is_shared(conn));
}

/// The broker has found the far end out: it broke the control protocol.
#[cold]
pub fn condemned(conn: &Conn) {
    let before = conn.attention.fetch_or(attention::BROKEN, Ordering::AcqRel);
    if before & attention::BROKEN == 0 {
        break_off(conn);
    }
}

/// The kernel's connection ends, and whoever sleeps in the kernel on it wakes. Another thread may
/// close it now, and the number be a new connection's at once: a copy stays what it is.
pub fn break_off(conn: &Conn) {
    let socket = conn.cookie.load(Ordering::Relaxed);
    if let Ok(copy) = hidden::copy(conn.fd.load(Ordering::Relaxed)) {
        if cookie(copy) == socket {
            let _ = sys!(SYS_shutdown, copy, libc::SHUT_RDWR);
        }
        hidden::close(copy);
    }
}

/// Reads SO_RCVTIMEO and SO_SNDTIMEO again.
pub fn read_timeouts(conn: &Conn, fd: i32) {
    for (option, target) in [
        (libc::SO_RCVTIMEO, &conn.receive_timeout_ns),
        (libc::SO_SNDTIMEO, &conn.send_timeout_ns),
    ] {
        let none = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        if let Ok((time, _)) = sys::option(fd, libc::SOL_SOCKET, option, none) {
            let time_us = time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
            target.store(time_us * 1000, Ordering::Relaxed);
        }
    }
}

/// Whether another process holds the connection too, since a fork.
pub fn is_shared(conn: &Conn) -> bool {
    fork::holders(&conn.held) > 1
}

/// Attends to every connection, after mail that asked for it.
pub fn attend_all() {
    for conn in state::conns().filter(|conn| conn.is_paired()) {
        if conn.attention.load(Ordering::Acquire) & attention::DOWN != 0 {
            let _ = down::attend(&conn.end());
        }
    }
}

/// Looks at all connections take at most one part in so many of the time...
const LOOK_SHARE: u64 = 16;
/// ...if they take longer than this: thousands of connections are not looked at at each wake-up.
const LOOK_TICKS_FREE: u64 = 100_000;

/// Of the process: looks at all connections.
pub struct Looks {
    /// No look at all connections before this time.
    next_look_ticks: AtomicU64,
    /// 1: a look was left out.
    look_owed: AtomicU32,
    /// Whether bytes that were taken back from a ring have found no room by the kernel: see [`owed`].
    owes_bytes: AtomicU32,
}

impl Looks {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            next_look_ticks: AtomicU64::new(0),
            look_owed: AtomicU32::new(0),
            owes_bytes: AtomicU32::new(0),
        }
    }
}

/// Whether a look at all connections was left out: the next sleep is a short one.
pub fn owes_a_look() -> bool {
    PROCESS.looks.look_owed.load(Ordering::Relaxed) != 0
}

/// Values of `Looks::owes_bytes`: none, some, and a look is under way at whose end there may be none.
mod owed {
    pub const NONE: u32 = 0;
    pub const SOME: u32 = 1;
    pub const LOOKED_AT: u32 = 2;
}

/// Bytes that were taken back from a ring have found no room: they go by the kernel with a later call. Who sleeps already, without a
/// bound, begins anew with one: the thread of that later call may have gone to sleep elsewhere. A sleep that is the kernel's alone
/// has no doorbell, and goes on.
pub fn note_owed_bytes() {
    if PROCESS.looks.owes_bytes.swap(owed::SOME, Ordering::SeqCst) == owed::NONE {
        wait::knock_for_sleepers(u64::MAX);
    }
}

/// Whether there are such bytes. Nothing need tell of room for them: each sleep is a short one.
#[inline]
pub fn owes_bytes() -> bool {
    PROCESS.looks.owes_bytes.load(Ordering::Relaxed) != owed::NONE
}

/// A call asks what is ready, perhaps again and again without ever sleeping, and its program may send nothing more by the connection
/// that owes bytes.
#[inline]
pub fn serve_owing() {
    if owes_bytes() {
        serve_others();
    }
}

/// A thread was woken and has nothing to do for its own connections: some peer may wait for
/// another one to leave its ring.
#[cold]
pub fn serve_others() {
    let begin_ticks = sys::ticks();
    if begin_ticks < PROCESS.looks.next_look_ticks.load(Ordering::Relaxed) {
        PROCESS.looks.look_owed.store(1, Ordering::Relaxed);
        return;
    }
    PROCESS.looks.look_owed.store(0, Ordering::Relaxed);
    serve_all();
    let end_ticks = sys::ticks();
    let took_ticks = end_ticks.saturating_sub(begin_ticks);
    if took_ticks > LOOK_TICKS_FREE {
        let next = end_ticks + took_ticks * LOOK_SHARE;
        PROCESS.looks.next_look_ticks.store(next, Ordering::Relaxed);
    }
}

fn serve_all() {
    // Who finds no room again says so again. Until then nobody sleeps for long. Where nothing was owed, a note in here is the first.
    let owes = &PROCESS.looks.owes_bytes;
    let (some, seen) = (owed::SOME, owed::LOOKED_AT);
    let _ = owes.compare_exchange(some, seen, Ordering::SeqCst, Ordering::SeqCst);
    for conn in state::conns().filter(|conn| conn.is_paired() && conn.peer_is_there()) {
        let producer = conn.producer();
        if producer.must_leave() || producer.back_bytes_or_zero() != 0 {
            down::serve(&conn.end());
        }
        // Nobody has tried where an error stands before them, or where this is a handler in the middle of a send.
        let is_over = conn.shown() & libc::POLLHUP as u32 != 0;
        if producer.back_bytes_or_zero() != 0 && !is_over {
            note_owed_bytes();
        }
    }
    // What another thread has noted meanwhile stands.
    let _ = owes.compare_exchange(seen, owed::NONE, Ordering::SeqCst, Ordering::SeqCst);
}

/// `Conn::flush_until_ns`: a close has waited already, and not all went.
const IN_VAIN: u64 = u64::MAX;

/// The program's last descriptor of this connection is about to be closed.
pub fn closing(conn: &Conn) {
    let mail = broker::hold_mail();
    if withdraw(conn, 0) || !conn.is_paired() {
        return;
    }
    drop(mail);
    let has_relatives = is_shared(conn);
    if has_relatives {
        leave_to_relatives(conn);
    } else {
        let end = conn.end();
        let deadline_ns = match conn.flush_until_ns.swap(0, Ordering::Relaxed) {
            0 => Some(down::deadline(end.now_ns())),
            IN_VAIN => None,
            deadline_ns => Some(deadline_ns),
        };
        ends::before_close(&end, deadline_ns);
    }
    leave_closed(conn, |_| !has_relatives || is_left(conn));
}

/// Whether the close of its number ends the connection: nobody else holds it, or sleeps on it.
fn ends_with_close(conn: &Conn) -> bool {
    let is_last =
        || conn.refs.load(Ordering::Relaxed) == 1 && conn.sleepers.load(Ordering::SeqCst) == 0;
    conn.is_paired() && is_last() && !is_shared(conn)
}

/// What goes without a wait before any close of several that may wait for its peer.
pub fn flush_now_before_closing(conn: &Conn) {
    if ends_with_close(conn) {
        down::flush_now(&conn.end());
    }
}

/// What [`closing`] would wait for, while handlers may still run. Nothing where others hold the connection as well, or
/// sleep on it: it may not end now. What is closed together has one deadline.
pub fn flush_before_closing(conn: &Conn, deadline_ns: u64) {
    let until_ns = match ends_with_close(conn) {
        true if ends::flush_before_close(&conn.end(), deadline_ns) => deadline_ns,
        true => IN_VAIN,
        // Whatever it is that ends it later, waits anew.
        false => 0,
    };
    conn.flush_until_ns.store(until_ns, Ordering::Relaxed);
}

/// This process closes a connection that forked relatives go on with, or just keep. The broker
/// knows this process alone, so nobody else can report the channel's end: the channel is moved to
/// the kernel path here. Not the channel of a parent.
#[cold]
fn leave_to_relatives(conn: &Conn) {
    if conn.attention.load(Ordering::Relaxed) & attention::INHERITED == 0 {
        down::downgrade(&conn.end(), Reason::Forked, false);
    }
}

/// Whether this end of such a channel may be reported: the rest is the peer's to finish. Not so
/// while the ring has bytes that a relative may want. Under the locks.
fn is_left(conn: &Conn) -> bool {
    conn.attention.load(Ordering::Relaxed) & attention::INHERITED == 0
        && conn.peer_is_there()
        && conn.consumer().has_stopped()
        && conn.producer().back_bytes_or_zero() == 0
}

/// Leaves the channel as it is. `told`: what is still to be said there, and whether the broker is
/// to know.
fn leave_closed(conn: &Conn, told: impl FnOnce(&Endpoint) -> bool) {
    loop {
        let end = conn.end();
        let (tx, rx) = (end.lock(Half::Sending), end.lock(Half::Receiving));
        if !matches!(tx, Err(NoLock::NoChannel)) {
            let tells = told(conn.own());
            let link = conn.link.load(Ordering::Relaxed);
            // A socket that was dissolved although some of its memory is lent: nobody else ever gets that.
            let is_lent = conn.loans.load(Ordering::SeqCst) != 0;
            conn.phase.advance(Event::Left);
            drop((tx, rx));
            if is_lent {
                return;
            }
            if tells {
                broker::report(conn, status::CLOSED, 0);
            }
            link::unbind(link);
            return;
        }
        if has_lost(conn) {
            return;
        }
    }
}

/// The connection has lost its channel before its halves were locked. False: it has another one.
fn has_lost(conn: &Conn) -> bool {
    let _mail = broker::hold_mail();
    let end = conn.end();
    if end.has_channel() {
        // Or it is a forked child's, whose parent has given it up.
        let gone = !end.is_bound();
        if gone {
            end.disown();
        }
        return gone;
    }
    // Another thread has given it up, and may have offered it again.
    withdraw(conn, 0);
    true
}

/// The program has dissolved the connection (connect to AF_UNSPEC, man 2 connect): the
/// socket is as new, and may be connected to somebody else.
pub fn dissolved(conn: &Conn) {
    let mail = broker::hold_mail();
    if !withdraw(conn, 0) && conn.is_paired() {
        drop(mail);
        epoll::detach(conn);
        leave_closed(conn, |own| {
            let flags = &own.cold.tx_flags;
            flags.fetch_or(tx_flags::CLOSED, Ordering::Release);
            true
        });
    }
    state::renew_conn(conn, !is_shared(conn));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_that_was_left_is_made_again() {
        let due = |after: u32, calls: core::ops::Range<u32>| -> Vec<u32> {
            calls.filter(|calls| is_due(*calls, after)).collect()
        };
        assert_eq!(due(0, 0..2500), [0, 1000, 2000]);
        assert_eq!(due(4, 0..2500), [4, 1004, 2004]);
        assert_eq!(due(2000, 0..2500), [2000]);
        assert_eq!(due(u32::MAX, 0..5000), []);
        // Without memory the count begins below zero.
        assert_eq!(due(4, u32::MAX - 1000..u32::MAX), []);
    }
}
