//! Moving a live connection to a channel and back.
//!
//! # Up
//! After some calls a connection is offered. When the broker has paired it,
//! [`paired`] points it at its endpoint; [`try_ready`] tells the peer that this end
//! looks at the ring, once no thread sleeps in the kernel unaware of it. Each end
//! then puts its own sending direction on the ring at its next send.
//!
//! # Down
//! An end that must be on the kernel path leaves the ring with its own direction,
//! stops taking from the other, and rings the peer; the peer sends by the kernel
//! what was not taken, before anything else ([`downgrade`]). Nobody else has to
//! act, and no byte depends on timing. When both directions are back, the
//! connection gives its channel up ([`finish_if_over`]) and may be offered again,
//! unless the reason stands.

use crate::state::{self, Conn, attention, hint, lock_word, phase};
use crate::sys::{self, sys};
use crate::{config, control, ends, epoll, link, transfer};
use core::sync::atomic::Ordering;
use fordway_abi::control::{PathPolicy, status};
use fordway_abi::reason::Reason;
use fordway_abi::shm::{tx_flags, tx_state};
use fordway_ring::Violation;

/// How long `--path fast` lets an offer stand unanswered.
const UNANSWERED_NS_MAX: u64 = 2_000_000_000;
/// Longest wait for a peer to take its direction back before an exec or a passed
/// descriptor; a peer that was stopped or computes that long holds the caller up.
const BACK_WAIT_NS_MAX: u64 = 10_000_000_000;
/// Times that the watchdog may act on a connection before it is left with the kernel.
const RESCUES_MAX: u32 = 2;
/// One look at a time while waiting for that.
const BACK_LOOK_MS: i32 = 1;

/// Counts a call that moves data; offers the connection when it has proved itself.
/// `Err`: the program asked for the fast path or nothing, and it is nothing.
#[inline]
pub fn count_operation(conn: &Conn, fd: i32) -> sys::Result<()> {
    control::check_mail();
    let now = conn.phase.load(Ordering::Relaxed);
    if now != phase::KERNEL {
        return if now == phase::OFFERED && config::policy() == PathPolicy::Fast {
            insist(conn)
        } else {
            Ok(())
        };
    }
    let barred = conn.barred.load(Ordering::Relaxed);
    if barred != 0 {
        let insist = config::policy() == PathPolicy::Fast;
        return if insist {
            Err(libc::ENETUNREACH)
        } else {
            Ok(())
        };
    }
    let operations = conn.operations.fetch_add(1, Ordering::Relaxed);
    if operations == config::offer_after() {
        offer(conn, fd);
    }
    Ok(())
}

/// For a program that asked for the fast path or nothing: an offer that nobody answers
/// is a refusal after a while. The far end needs the time to offer, too.
#[cold]
fn insist(conn: &Conn) -> sys::Result<()> {
    let since = conn.offered_ns.load(Ordering::Relaxed);
    if sys::now_ns().saturating_sub(since) > UNANSWERED_NS_MAX {
        control::report(conn, status::WITHDRAWN, 0);
        bar(conn, Reason::NoPeer);
        conn.phase.store(phase::KERNEL, Ordering::Release);
        return Err(libc::ENETUNREACH);
    }
    Ok(())
}

fn offer(conn: &Conn, fd: i32) {
    if let Some(reason) = unsuited(fd) {
        bar(conn, reason);
        return;
    }
    conn.cookie.store(cookie(fd), Ordering::Relaxed);
    conn.offered_ns.store(sys::now_ns(), Ordering::Relaxed);
    crate::fork::hold_again(conn);
    if is_shared(conn) {
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
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as u32;
    let asked = sys!(
        SYS_getsockopt,
        fd,
        libc::SOL_SOCKET,
        libc::SO_COOKIE,
        &raw mut cookie,
        &raw mut length
    );
    asked.map_or(0, |_| cookie)
}

/// Whether `fd` is this connection's socket here and now: in a vfork child the table
/// of descriptors is the parent's, and need not be true.
pub fn is_under(conn: &Conn, fd: i32) -> bool {
    cookie(fd) == conn.cookie.load(Ordering::Relaxed)
}

/// Options, perhaps inherited from the listening socket, that only the kernel heeds.
fn unsuited(fd: i32) -> Option<Reason> {
    let option = |name| {
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
    };
    if option(libc::SO_OOBINLINE) != 0 {
        Some(Reason::Oob)
    } else {
        (option(libc::SO_RCVLOWAT) > 1).then_some(Reason::Unsupported)
    }
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
    conn.operations.store(0, Ordering::Relaxed);
    let passing = matches!(
        Reason::from_u32(reason),
        Some(Reason::Shared | Reason::NoMemory | Reason::Waiting)
    );
    if !passing {
        conn.barred.store(reason, Ordering::Relaxed);
    }
}

/// The broker has cut a channel for the connection.
pub fn paired(conn: &Conn, index: u32, slot: u32, generation: u32, channel_id: u64) {
    if conn.phase.load(Ordering::Acquire) != phase::OFFERED {
        return;
    }
    link::bind(conn, index, slot, generation, channel_id);
    let fd = conn.fd.load(Ordering::Relaxed);
    if let Ok(flags) = sys!(SYS_fcntl, fd, libc::F_GETFL) {
        conn.nonblock.store(
            u32::from(flags as i32 & libc::O_NONBLOCK != 0),
            Ordering::Relaxed,
        );
    }
    read_timeouts(conn, fd);
    let former = hint::STOPPING | hint::PEER_GONE | hint::RESET_TOLD;
    conn.hints.fetch_and(!former, Ordering::Relaxed);
    conn.phase.store(phase::PAIRED, Ordering::SeqCst);
    epoll::attach(conn);
    if is_shared(conn) {
        // A child that was forked after the offer knows of no channel.
        bar(conn, Reason::Forked);
        downgrade(conn, fd, Reason::Forked, false);
    } else {
        try_ready(conn);
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

/// The program's first receive by the library.
#[cold]
pub fn reads(conn: &Conn) {
    conn.hints.fetch_or(hint::READS, Ordering::SeqCst);
    if conn.is_paired() {
        try_ready(conn);
    }
}

/// Tells the peer that it may use the ring, unless a thread sleeps in the kernel
/// that would not notice; the last such thread calls this when it comes back. Nor
/// before a receive was seen: a program may read by bare system calls alone.
pub fn try_ready(conn: &Conn) {
    let reads = conn.hints.load(Ordering::SeqCst) & hint::READS != 0;
    if !reads || conn.unaware.load(Ordering::SeqCst) != 0 {
        return;
    }
    let own = conn.own();
    let Some(_guard) = lock_word(&own.rx_own.lock) else {
        return;
    };
    if !conn.is_paired()
        || own.wait.rx_state.load(Ordering::Relaxed) != fordway_abi::shm::rx_state::OFF
    {
        return;
    }
    match transfer::received_position(conn.fd.load(Ordering::Relaxed)) {
        Some(position) => {
            own.rx_own
                .kernel_position
                .store(position, Ordering::Relaxed);
            conn.consumer().get_ready();
        }
        // The peer has sent its FIN already: nothing will come.
        None => conn.consumer().stop(),
    }
}

/// Whether another process holds the connection too, since a fork.
pub fn is_shared(conn: &Conn) -> bool {
    crate::fork::holders(conn) > 1
}

/// Acts on `attention`. `Err`: what the program's call gives.
#[cold]
pub fn attend(conn: &Conn, fd: i32) -> sys::Result<()> {
    let asked = conn.attention.load(Ordering::Acquire);
    if asked & attention::BROKEN != 0 {
        return Err(libc::ECONNRESET);
    }
    if asked & attention::INHERITED != 0 && !link::is_bound(conn) {
        // The parent gave the channel up, and its place has another one by now.
        conn.phase.store(phase::KERNEL, Ordering::SeqCst);
        link::unbind(conn);
        return Ok(());
    }
    if asked & attention::FOREIGN != 0 {
        bar(conn, Reason::Forked);
        downgrade(conn, fd, Reason::Forked, false);
    } else if asked & attention::DOWN != 0 {
        // The administrator's wish stands; the far end's reason is the far end's.
        let told = Reason::from_u32(conn.passing.load(Ordering::Relaxed));
        let reason = told.unwrap_or(Reason::Asked);
        if reason == Reason::Asked {
            bar(conn, reason);
        }
        downgrade(conn, fd, reason, false);
    }
    Ok(())
}

/// Attends to every connection, after mail that asked for it.
pub fn attend_all() {
    for conn in state::conns().filter(|conn| conn.is_paired()) {
        if conn.attention.load(Ordering::Acquire) & attention::DOWN != 0 {
            let _ = attend(conn, conn.fd.load(Ordering::Relaxed));
        }
    }
}

/// The peer broke the protocol: this connection is lost, nothing else is.
pub fn broke(conn: &Conn, _violation: Violation) {
    if conn.attention.fetch_or(attention::BROKEN, Ordering::AcqRel) & attention::BROKEN == 0 {
        sys::complain(&["a peer broke the channel protocol; its connection is reset"]);
        control::report(conn, status::KERNEL, Reason::Protocol as u32);
        let fd = conn.fd.load(Ordering::Relaxed);
        let _ = sys!(SYS_shutdown, fd, libc::SHUT_RDWR);
    }
}

/// Moves both directions to the kernel. With `wait`, returns only when the peer has
/// sent by the kernel what was left in its ring (or is gone), so that a program
/// without the shim can go on reading. A reason that stands is the caller's to
/// [`bar`] before.
pub fn downgrade(conn: &Conn, fd: i32, reason: Reason, wait: bool) {
    if !conn.is_paired() {
        return;
    }
    conn.attention
        .fetch_and(!(attention::FOREIGN | attention::DOWN), Ordering::AcqRel);
    conn.passing.store(reason as u32, Ordering::Relaxed);
    leave_ring(conn, fd);
    if let Some(_guard) = lock_word(&conn.own().rx_own.lock) {
        if wait {
            conn.consumer().stop();
        } else {
            // What is there already can be read here. A stop would leave it to the peer,
            // whose program may not call the library for long.
            conn.hints.fetch_or(hint::STOPPING, Ordering::Relaxed);
            stop_if_drained(conn);
        }
    }
    conn.ring_all();
    if wait {
        wait_for_peer(conn);
    }
    finish_if_over(conn);
}

/// Stops taking from the ring if that is wanted and nothing lies there. Under the rx lock.
#[inline]
pub fn stop_if_drained(conn: &Conn) {
    let wanted = conn.hints.load(Ordering::Relaxed) & hint::STOPPING != 0;
    if wanted && !conn.consumer().has_unread() {
        conn.hints.fetch_and(!hint::STOPPING, Ordering::Relaxed);
        // Who publishes after the look at `tail` sees the stop, and sends again.
        conn.consumer().stop();
    }
}

fn wait_for_peer(conn: &Conn) {
    let deadline = sys::now_ns() + BACK_WAIT_NS_MAX;
    let consumer = conn.consumer();
    while consumer.producer_state() == tx_state::RING && consumer.has_unread() {
        let gone = conn.hints.load(Ordering::Relaxed) & hint::PEER_GONE != 0;
        if gone || sys::now_ns() >= deadline || !conn.is_paired() {
            return;
        }
        conn.ring_all();
        let _ = sys!(SYS_poll, 0, 0, BACK_LOOK_MS);
        control::check_mail();
    }
}

/// Takes the sending direction off the ring for good, for a writer that the library
/// does not see; what the peer gave back has gone by the kernel when this returns.
pub fn send_by_kernel(conn: &Conn, fd: i32, reason: Reason) {
    bar(conn, reason);
    if conn.is_paired() {
        leave_ring(conn, fd);
        flush_before_end(conn, fd);
    }
}

/// Takes the sending direction off the ring; if the peer has stopped taking, what
/// it left goes by the kernel at once (or as soon as the kernel takes it).
pub fn leave_ring(conn: &Conn, fd: i32) {
    let Some(_guard) = lock_word(&conn.own().tx_own.lock) else {
        return;
    };
    if !conn.is_paired() {
        return;
    }
    match conn.producer().leave() {
        Ok(_) => go_back(conn, fd),
        Err(violation) => broke(conn, violation),
    }
}

/// The sending direction has left the ring: the rest goes by the kernel. Whoever
/// waits for room waits for the kernel's now, and must look again: its edge may be long past.
fn go_back(conn: &Conn, fd: i32) {
    // An error is the program's to fetch.
    if !ends::has_error(conn, fd) {
        let _ = transfer::flush_back(conn, fd);
    }
    conn.edges.fetch_add(1, Ordering::Relaxed);
}

/// What a waiter does for its connections when it was woken: leave a ring that the
/// peer has stopped taking from, and go on sending what is left.
pub fn serve(conn: &Conn) {
    if !conn.is_paired() || !conn.peer_is_there() {
        return;
    }
    let fd = conn.fd.load(Ordering::Relaxed);
    let producer = conn.producer();
    if producer.must_leave() {
        leave_ring(conn, fd);
    } else if producer.state() != tx_state::RING
        && producer.state() != tx_state::KERNEL
        && producer.back_bytes() != 0
        && let Some(_guard) = lock_word(&conn.own().tx_own.lock)
    {
        go_back(conn, fd);
    }
    finish_if_over(conn);
}

/// Whether the peer has taken bytes, from the ring or from the kernel before it,
/// since this was asked last: a slow reader is no unseen one.
fn has_progressed(conn: &Conn) -> bool {
    // SAFETY: mapped as long as the connection has its channel; atomic loads.
    let taken = unsafe {
        let peer = conn.peer.load(Ordering::Relaxed);
        let by_ring = (*peer).rx.head.load(Ordering::Relaxed);
        by_ring.wrapping_add((*peer).rx_own.kernel_position.load(Ordering::Relaxed))
    };
    conn.watched.swap(taken, Ordering::Relaxed) != taken
}

/// Bytes of ours have been unread for a while. If nobody on the far side waits for
/// them in the library, a waiter that the shim did not see may wait in the kernel:
/// they are taken back and sent there.
pub fn watch(conn: &Conn) {
    if !conn.is_paired() || !conn.peer_is_there() {
        return;
    }
    let producer = conn.producer();
    if producer.state() != tx_state::RING || producer.unread_hint() == 0 {
        return;
    }
    let (doors, _) = producer.peer_waits();
    let page = conn.peer_page.load(Ordering::Relaxed);
    // SAFETY: mapped as long as the connection has its channel; an atomic load.
    let sleeping = unsafe { (*page).sleeping.load(Ordering::SeqCst) };
    let gone = conn.hints.load(Ordering::Relaxed) & hint::PEER_GONE != 0;
    if gone && ends::is_dead(conn) || !gone && (sleeping & doors != 0 || has_progressed(conn)) {
        return;
    }
    if !take_back(conn) {
        return;
    }
    if conn.rescues.fetch_add(1, Ordering::Relaxed) >= RESCUES_MAX {
        bar(conn, Reason::Watchdog);
    }
    // The other direction goes too, so that the connection can be offered again.
    downgrade(
        conn,
        conn.fd.load(Ordering::Relaxed),
        Reason::Watchdog,
        false,
    );
}

/// Takes what the peer has not read out of the ring and sends it by the kernel; false if
/// that cannot be.
pub fn take_back(conn: &Conn) -> bool {
    let Some(_guard) = lock_word(&conn.own().tx_own.lock) else {
        return false;
    };
    if !conn.is_paired() || conn.producer().state() != tx_state::RING {
        return false;
    }
    match conn.producer().withdraw() {
        Ok(true) => {
            go_back(conn, conn.fd.load(Ordering::Relaxed));
            return true;
        }
        // A waiter that looked just then may have seen the ring taken away.
        Ok(false) => conn.ring_all(),
        Err(violation) => broke(conn, violation),
    }
    false
}

/// Gives the channel up if both directions are back with the kernel and nothing is
/// left in either ring.
pub fn finish_if_over(conn: &Conn) {
    if !conn.is_paired() || !conn.peer_is_there() {
        return;
    }
    let own = conn.own();
    let (producer, consumer) = (conn.producer(), conn.consumer());
    if matches!(producer.state(), tx_state::RING | tx_state::KERNEL) || producer.back_bytes() != 0 {
        return;
    }
    let Some(tx) = lock_word(&own.tx_own.lock) else {
        return;
    };
    let Some(rx) = lock_word(&own.rx_own.lock) else {
        return;
    };
    // A peer that stopped after this direction went back still drains the ring.
    let drained = producer.unread_hint() == 0 || producer.state() == tx_state::WITHDRAWN;
    if !conn.is_paired() || !drained || !consumer.is_over().unwrap_or(false) {
        return;
    }
    epoll::detach(conn);
    let reason = match conn.passing.swap(0, Ordering::Relaxed) {
        0 => conn.barred.load(Ordering::Relaxed),
        reason => reason,
    };
    control::report(conn, status::KERNEL, reason);
    own.tx
        .tx_flags
        .fetch_or(tx_flags::CLOSED, Ordering::Release);
    conn.operations.store(0, Ordering::Relaxed);
    conn.phase.store(phase::KERNEL, Ordering::SeqCst);
    drop((tx, rx));
    link::unbind(conn);
}

/// Before a FIN: what was taken back from the ring must go before it. Waits for the
/// kernel's room, within a bound: a peer that takes nothing for so long loses the rest.
pub fn flush_before_end(conn: &Conn, fd: i32) {
    let deadline = sys::now_ns() + BACK_WAIT_NS_MAX;
    while conn.is_paired() && conn.producer().back_bytes_or_zero() != 0 && sys::now_ns() < deadline
    {
        let flushed = match lock_word(&conn.own().tx_own.lock) {
            Some(_guard) => transfer::flush_back(conn, fd),
            None => return,
        };
        if flushed != Ok(false) {
            return;
        }
        let mut entry = libc::pollfd {
            fd,
            events: libc::POLLOUT,
            revents: 0,
        };
        let _ = sys!(SYS_poll, &raw mut entry, 1, BACK_LOOK_MS * 100);
    }
}

/// The program's last descriptor of this connection is about to be closed.
pub fn closing(conn: &Conn) {
    match conn.phase.load(Ordering::Acquire) {
        phase::OFFERED => control::report(conn, status::WITHDRAWN, 0),
        phase::PAIRED => {
            if !is_shared(conn) {
                ends::before_close(conn, conn.fd.load(Ordering::Relaxed));
            }
            let own = conn.own();
            let (tx, rx) = (lock_word(&own.tx_own.lock), lock_word(&own.rx_own.lock));
            conn.phase.store(phase::KERNEL, Ordering::SeqCst);
            drop((tx, rx));
            if !is_shared(conn) {
                control::report(conn, status::CLOSED, 0);
            }
            link::unbind(conn);
        }
        _ => {}
    }
}

/// Marks a connection as never to be offered again.
pub fn bar(conn: &Conn, reason: Reason) {
    conn.barred.store(reason as u32, Ordering::Relaxed);
}
