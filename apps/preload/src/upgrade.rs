//! When a connection is offered to the broker, and what becomes of its answer. How it then
//! moves to its channel and back is `fordway_sockets`' matter; see [`crate::end`].

use crate::state::{self, Conn, attention, phase};
use crate::sys::{self, sys};
use crate::{claim, config, control, epoll, faults, hidden, hooks_options, link, transfer};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use fordway_abi::control::{PathPolicy, status};
use fordway_abi::reason::Reason;
use fordway_abi::shm::{tx_flags, tx_state};
use fordway_sockets::{End, Half, NoLock, down, ends, up};

/// How long `--path fast` lets an offer stand unanswered.
const UNANSWERED_NS_MAX: u64 = 2_000_000_000;
/// Calls that move data before a connection is offered again for which there was no memory.
const CALLS_WITHOUT_MEMORY: u32 = 1000;

/// Counts a call that moves data; offers the connection when it has proved itself.
/// `Err`: the program asked for the fast path or nothing, and it is nothing.
#[inline]
pub fn count_operation(conn: &Conn, fd: i32) -> sys::Result<()> {
    control::check_mail();
    let now = conn.phase.load(Ordering::Relaxed);
    if now == phase::PAIRED {
        note_call(conn);
        return Ok(());
    }
    if now == phase::OFFERED {
        conn.operations.fetch_add(1, Ordering::Relaxed);
        return match config::policy() {
            PathPolicy::Fast => insist(conn),
            _ => Ok(()),
        };
    }
    let barred = conn.barred.load(Ordering::Relaxed);
    if barred != 0 {
        if config::policy() == PathPolicy::Fast {
            return Err(libc::ENETUNREACH);
        }
        if conn.told.load(Ordering::Relaxed) != barred {
            tell(conn, fd, barred);
        }
        return Ok(());
    }
    let operations = conn.operations.fetch_add(1, Ordering::Relaxed);
    if operations == config::offer_after() {
        offer(conn, fd);
    }
    Ok(())
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

/// Goes on counting until this side sends by its ring. Two threads may count as one.
#[inline]
fn note_call(conn: &Conn) {
    let own = conn.own();
    if own.tx.tx_state.load(Ordering::Relaxed) == tx_state::KERNEL {
        let calls = &own.tx_own.calls;
        calls.store(calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// For a program that asked for the fast path or nothing: an offer that nobody answers
/// is a refusal after a while. The far end needs the time to offer, too.
#[cold]
fn insist(conn: &Conn) -> sys::Result<()> {
    let since = conn.offered_ns.load(Ordering::Relaxed);
    if sys::now_ns().saturating_sub(since) > UNANSWERED_NS_MAX {
        control::report(conn, status::WITHDRAWN, 0);
        down::bar(&conn.end(), Reason::NoPeer);
        conn.phase.store(phase::KERNEL, Ordering::Release);
        return Err(libc::ENETUNREACH);
    }
    Ok(())
}

/// Has the broker list why a connection stays on the kernel path, once it is not young any more.
#[cold]
fn tell(conn: &Conn, fd: i32, reason: u32) {
    if conn.operations.fetch_add(1, Ordering::Relaxed) >= config::offer_after()
        && conn.told.swap(reason, Ordering::Relaxed) != reason
    {
        control::decline(conn, fd, reason);
    }
}

fn offer(conn: &Conn, fd: i32) {
    if let Some(reason) = unsuited(fd) {
        down::bar(&conn.at(fd), reason);
        return;
    }
    if transfer::sent_position(fd).is_none() {
        // Not connected yet, or no more: the broker would turn it down for good.
        conn.operations.store(0, Ordering::Relaxed);
        return;
    }
    conn.cookie.store(cookie(fd), Ordering::Relaxed);
    conn.offered_ns.store(sys::now_ns(), Ordering::Relaxed);
    crate::fork::hold_again(conn);
    if is_shared(conn) {
        tell(conn, fd, Reason::Forked as u32);
        conn.operations.store(0, Ordering::Relaxed);
        return;
    }
    if !control::offer(conn, fd) {
        if conn.phase.load(Ordering::Relaxed) == phase::KERNEL {
            conn.operations.store(0, Ordering::Relaxed);
        }
        return;
    }
    control::check_mail();
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
fn unsuited(fd: i32) -> Option<Reason> {
    if int_option(fd, libc::SO_OOBINLINE) != 0 {
        return Some(Reason::Oob);
    }
    let flags = sys!(SYS_fcntl, fd, libc::F_GETFL).unwrap_or(0) as i32;
    let unsuited = int_option(fd, libc::SO_RCVLOWAT) > 1
        || flags & libc::O_ASYNC != 0
        || hooks_options::has_kernel_option(fd);
    unsuited.then_some(Reason::Unsupported)
}

/// A socket's option as the kernel has it; 0 if it cannot be told.
pub fn int_option(fd: i32, name: i32) -> i32 {
    let mut value: i32 = 0;
    let mut length = size_of::<i32>() as u32;
    let asked = sys!(
        SYS_getsockopt,
        fd,
        libc::SOL_SOCKET,
        name,
        &raw mut value,
        &raw mut length
    );
    asked.map_or(0, |_| value)
}

/// The broker has said no.
pub fn rejected(conn: &Conn, reason: u32) {
    let refused = conn
        .phase
        .compare_exchange(
            phase::OFFERED,
            phase::KERNEL,
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_ok();
    if !refused {
        return;
    }
    count_anew(conn, reason);
    let passing = matches!(
        Reason::from_u32(reason),
        Some(Reason::Shared | Reason::NoMemory | Reason::Waiting)
    );
    if !passing {
        conn.told.store(reason, Ordering::Relaxed);
        conn.barred.store(reason, Ordering::Relaxed);
    }
}

/// The broker has asked for the kernel path, and the connection has given its channel up by
/// itself meanwhile, for the far end was quicker. The administrator's wish stands all the same.
pub fn asked_late(conn: &Conn) {
    down::bar(&conn.end(), Reason::Asked);
    let was_offered = conn
        .phase
        .compare_exchange(
            phase::OFFERED,
            phase::KERNEL,
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_ok();
    if was_offered {
        control::report(conn, status::WITHDRAWN, Reason::Asked as u32);
    }
}

/// The broker has cut a channel for the connection.
pub fn paired(conn: &Conn, index: u32, slot: u32, generation: u32, channel_id: u64) {
    if conn.phase.load(Ordering::Acquire) != phase::OFFERED {
        return;
    }
    faults::arm();
    link::bind(conn, index, slot, generation, channel_id);
    let fd = conn.fd.load(Ordering::Relaxed);
    if let Ok(flags) = sys!(SYS_fcntl, fd, libc::F_GETFL) {
        conn.nonblock.store(
            u32::from(flags as i32 & libc::O_NONBLOCK != 0),
            Ordering::Relaxed,
        );
    }
    read_timeouts(conn, fd);
    up::begin(&conn.at(fd));
    // What the kernel holds is not known until it was asked once more.
    conn.show(libc::POLLIN as u32);
    conn.phase.store(phase::PAIRED, Ordering::SeqCst);
    epoll::attach(conn);
    up::set_out(&conn.at(fd), is_shared(conn));
}

/// The broker has found the far end out: it broke the control protocol.
#[cold]
pub fn condemned(conn: &Conn) {
    let socket = conn.cookie.load(Ordering::Relaxed);
    let before = conn.attention.fetch_or(attention::BROKEN, Ordering::AcqRel);
    if before & attention::BROKEN == 0 {
        // Whoever sleeps in the kernel on this connection wakes. Another thread may close it
        // now, and the number be a new connection's at once: a copy stays what it is.
        if let Ok(copy) = hidden::copy(conn.fd.load(Ordering::Relaxed)) {
            if cookie(copy) == socket {
                let _ = sys!(SYS_shutdown, copy, libc::SHUT_RDWR);
            }
            hidden::close(copy);
        }
    }
}

/// Reads SO_RCVTIMEO and SO_SNDTIMEO again.
pub fn read_timeouts(conn: &Conn, fd: i32) {
    for (option, target) in [
        (libc::SO_RCVTIMEO, &conn.receive_timeout_ns),
        (libc::SO_SNDTIMEO, &conn.send_timeout_ns),
    ] {
        let mut time = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let mut length = size_of::<libc::timeval>() as u32;
        if sys!(
            SYS_getsockopt,
            fd,
            libc::SOL_SOCKET,
            option,
            &raw mut time,
            &raw mut length
        )
        .is_ok()
        {
            target.store(
                time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000,
                Ordering::Relaxed,
            );
        }
    }
}

/// Whether another process holds the connection too, since a fork.
pub fn is_shared(conn: &Conn) -> bool {
    crate::fork::holders(conn) > 1
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
/// No look at all connections before this time.
static NEXT_LOOK_TICKS: AtomicU64 = AtomicU64::new(0);
/// 1: a look was left out.
static LOOK_OWED: AtomicU32 = AtomicU32::new(0);

/// Whether a look at all connections was left out: the next sleep is a short one.
pub fn owes_a_look() -> bool {
    LOOK_OWED.load(Ordering::Relaxed) != 0
}

/// A thread was woken and has nothing to do for its own connections: some peer may wait for
/// another one to leave its ring.
#[cold]
pub fn serve_others() {
    let begin_ticks = sys::ticks();
    if begin_ticks < NEXT_LOOK_TICKS.load(Ordering::Relaxed) {
        LOOK_OWED.store(1, Ordering::Relaxed);
        return;
    }
    LOOK_OWED.store(0, Ordering::Relaxed);
    serve_all();
    let end_ticks = sys::ticks();
    let took_ticks = end_ticks.saturating_sub(begin_ticks);
    if took_ticks > LOOK_TICKS_FREE {
        let next = end_ticks + took_ticks * LOOK_SHARE;
        NEXT_LOOK_TICKS.store(next, Ordering::Relaxed);
    }
}

fn serve_all() {
    for conn in state::conns().filter(|conn| conn.is_paired() && conn.peer_is_there()) {
        if conn.producer().must_leave() {
            down::serve(&conn.end());
        }
    }
}

/// The program's last descriptor of this connection is about to be closed.
pub fn closing(conn: &Conn) {
    let mail = control::hold_mail();
    match conn.phase.load(Ordering::Acquire) {
        phase::OFFERED => {
            conn.phase.store(phase::KERNEL, Ordering::SeqCst);
            control::report(conn, status::WITHDRAWN, 0);
        }
        phase::PAIRED => {
            drop(mail);
            if !is_shared(conn) {
                ends::before_close(&conn.end());
            }
            let end = conn.end();
            let (tx, rx) = (end.lock(Half::Sending), end.lock(Half::Receiving));
            if matches!(tx, Err(NoLock::NoChannel)) {
                // Another thread has given it up, and may have offered it again.
                if conn.phase.swap(phase::KERNEL, Ordering::SeqCst) == phase::OFFERED {
                    control::report(conn, status::WITHDRAWN, 0);
                }
                return;
            }
            let link = conn.link.load(Ordering::Relaxed);
            conn.phase.store(phase::KERNEL, Ordering::SeqCst);
            drop((tx, rx));
            if !is_shared(conn) {
                control::report(conn, status::CLOSED, 0);
            }
            link::unbind(link);
        }
        _ => {}
    }
}

/// The program has dissolved the connection (connect to AF_UNSPEC, man 2 connect): the
/// socket is as new, and may be connected to somebody else.
pub fn dissolved(conn: &Conn) {
    let mail = control::hold_mail();
    match conn.phase.load(Ordering::Acquire) {
        phase::OFFERED => {
            conn.phase.store(phase::KERNEL, Ordering::SeqCst);
            control::report(conn, status::WITHDRAWN, 0);
        }
        phase::PAIRED => {
            drop(mail);
            epoll::detach(conn);
            let end = conn.end();
            let (tx, rx) = (end.lock(Half::Sending), end.lock(Half::Receiving));
            let own = conn.own();
            own.tx
                .tx_flags
                .fetch_or(tx_flags::CLOSED, Ordering::Release);
            let link = conn.link.load(Ordering::Relaxed);
            conn.phase.store(phase::KERNEL, Ordering::SeqCst);
            drop((tx, rx));
            control::report(conn, status::CLOSED, 0);
            link::unbind(link);
        }
        _ => {}
    }
    state::renew_conn(conn, !is_shared(conn));
}
