//! poll and ppoll over sockets with channels: rings first, then a
//! spin, then one ppoll over the program's descriptors, a doorbell and the control
//! socket, with the program's signal mask, atomically.
//!
//! A socket with a channel stays in the kernel's set: the kernel knows of end of
//! file, errors, and bytes before or behind the ring. Its POLLOUT is asked only
//! while bytes go by the kernel: the idle kernel socket is always writable.

use crate::datagram::Socket;
use crate::deadline::Deadline;
use crate::process::PROCESS;
use crate::signals::Call;
use crate::spin::{self, Look};
use crate::state::{self, Conn, attention, kind, phase};
use crate::sys::{self, sys};
use crate::thread::{self, Shield};
use crate::wait::{self, Bell};
use crate::{broker, datagram, epoll, faults, fork, late, link, stay, upgrade};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use fordway_abi::reason::Reason;
use fordway_abi::shm::DOOR_SHARED;
use fordway_sockets::ready::binding;
use fordway_sockets::{down, sends_by_kernel, up};

/// Descriptors of one call that are handled on the stack.
const SMALL: usize = 64;

/// Longest sleep while it is not known whether one of the connections gets rings: another thread
/// may read the mail that says so.
const UNDECIDED_SLICE_NS: u64 = 5_000_000;
/// Says of an entry that counts a thread that it names a UDP socket, and no connection.
const OF_DATAGRAMS: i16 = 1;
/// Entries of our own in a sleep: a doorbell and the control socket.
const OWN_ENTRIES: usize = 2;

/// Of the process: when poll has asked the kernel.
pub struct Polled {
    /// [`crate::link::acts_seen`] when the kernel was asked last, by any thread, and when it is to be
    /// asked again although rings have events, in ticks.
    asked: AtomicU32,
    ask_at_ticks: AtomicU64,
}

impl Polled {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            asked: AtomicU32::new(0),
            ask_at_ticks: AtomicU64::new(0),
        }
    }
}

const EMPTY: libc::pollfd = libc::pollfd {
    fd: -1,
    events: 0,
    revents: 0,
};

/// Runs `body` with space for `count` entries: on the stack, or mapped meanwhile. The mapping goes also if the thread never
/// comes back.
pub fn with_space<R>(
    count: usize,
    body: &mut dyn FnMut(&mut [libc::pollfd]) -> sys::Result<R>,
) -> sys::Result<R> {
    if count <= SMALL + OWN_ENTRIES {
        return body(&mut [EMPTY; SMALL + OWN_ENTRIES][..count]);
    }
    let shield = Shield::new();
    let bytes = count * size_of::<libc::pollfd>();
    let mapped = sys::map_anonymous(bytes, false)?;
    let mut space = (mapped, bytes);
    let (result, shield) = thread::guarded(shield, unmap, (&raw mut space).cast(), || {
        // SAFETY: zeroed, and as many.
        body(unsafe { core::slice::from_raw_parts_mut(mapped.cast(), count) })
    });
    unmap((&raw mut space).cast());
    drop(shield);
    result
}

extern "C" fn unmap(space: *mut c_void) {
    // SAFETY: of `with_space`, whose frame is still there.
    let (mapped, bytes) = unsafe { *space.cast::<(*mut u8, usize)>() };
    let _ = sys!(SYS_munmap, mapped, bytes);
}

/// Whether one of the connections may get rings at any moment, for an end requires them.
fn is_any_undecided(fds: &[libc::pollfd]) -> bool {
    let conn = |entry: &libc::pollfd| state::conn(entry.fd);
    fds.iter().filter_map(conn).any(upgrade::is_undecided)
}

fn paired(fd: i32) -> Option<&'static Conn> {
    state::conn(fd).filter(|conn| conn.is_paired())
}

/// Whether a descriptor may have something in rings.
fn has_rings(fd: i32) -> bool {
    paired(fd).is_some() || datagram::with_rings(fd).is_some() || holds_datagrams(fd)
}

/// Whether an epoll instance has datagrams in rings to tell of: those that came before it was first watched itself, which
/// leaves all that is in it to the kernel.
fn holds_datagrams(fd: i32) -> bool {
    epoll::instance(fd).is_some_and(|(_, instance)| datagram::is_any_ready(instance))
}

/// Whether what rings have is all there is to tell of a UDP socket, until the kernel is asked again.
fn is_told_by_rings(fd: i32) -> bool {
    datagram::with_rings(fd).is_some_and(|socket| !socket.is_shut())
}

/// Whether any of the descriptors is a stream socket, with a channel or without. Epoll
/// instances among them are told that they are waited for. Nor is a sleep without them the kernel's while bytes are owed.
pub fn concerns(fds: impl Iterator<Item = i32>) -> bool {
    fds.fold(upgrade::owes_bytes(), |concerns, fd| {
        let kind = state::look(fd) & kind::MASK;
        if kind == kind::EPOLL {
            epoll::let_go_of(fd, Reason::Unsupported);
        }
        concerns || kind == kind::CONN || kind == kind::DATAGRAMS || holds_datagrams(fd)
    })
}

/// Most descriptors that the kernel takes in one call; asked only where many are wanted.
fn descriptors_max(wanted: usize) -> usize {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    if wanted <= SMALL || sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit).is_err() {
        return usize::MAX;
    }
    limit.rlim_cur as usize
}

/// Whether the kernel refuses an array of so many (linux: do_sys_poll).
pub fn is_too_many(count: usize) -> bool {
    count > descriptors_max(count)
}

/// As [`poll`], over an array that cannot be changed in place: what came of it is written at
/// the end, as far as it can be.
///
/// # Safety
/// `count` entries can be read.
pub unsafe fn poll_in_copy(
    fds: *mut libc::pollfd,
    count: usize,
    timeout_ns: Option<u64>,
    mask: *const c_void,
) -> sys::Result<usize> {
    with_space(count, &mut |entries| {
        for (index, entry) in entries.iter_mut().enumerate() {
            // SAFETY: by contract.
            *entry = unsafe { fds.add(index).read_unaligned() };
        }
        let ready = poll(entries, timeout_ns, mask)?;
        for (index, entry) in entries.iter().enumerate() {
            // SAFETY: only named.
            let shown = unsafe { &raw mut (*fds.add(index)).revents };
            faults::check(faults::give(shown, entry.revents))?;
        }
        Ok(ready)
    })
}

/// poll and ppoll over the program's array.
pub fn poll(
    fds: &mut [libc::pollfd],
    timeout_ns: Option<u64>,
    mask: *const c_void,
) -> sys::Result<usize> {
    poll_since(fds, timeout_ns, mask, Call::begin())
}

/// The same as a part of a call of the program's that began before.
pub fn poll_since(
    fds: &mut [libc::pollfd],
    timeout_ns: Option<u64>,
    mask: *const c_void,
    call: Call,
) -> sys::Result<usize> {
    thread::cancellation_point();
    broker::check_mail();
    let (deadline, mut slices) = (Deadline::after(timeout_ns), None);
    loop {
        for entry in fds.iter() {
            if let Some(conn) = paired(entry.fd)
                && conn.attention.load(Ordering::Relaxed) != 0
            {
                let _ = down::attend(&conn.end());
            }
        }
        upgrade::serve_owing();
        // Once in slices, always: a handler that runs behind the next look is seen at the end of one.
        slices = slices.or(wait::plain_slice_ns());
        for entry in fds.iter() {
            if let Some(conn) = state::conn(entry.fd) {
                upgrade::sight(conn, entry.fd);
            }
        }
        if !fds.iter().any(|entry| has_rings(entry.fd)) && !is_any_undecided(fds) {
            match unaware(fds, (deadline, slices, call), mask)? {
                0 if !deadline.has_passed() => continue,
                count => return Ok(count),
            }
        }
        wait::beat();
        let ready = look(fds);
        let is_ours = |fd| fd < 0 || paired(fd).is_some() || is_told_by_rings(fd);
        let all_ours = || fds.iter().all(|entry| is_ours(entry.fd));
        // It may know of something that happened before.
        if ready != 0 && all_ours() && !is_due(fds) {
            return Ok(ready);
        }
        if ready != 0 {
            // What is ready goes before a signal that the mask lets in (linux: do_poll).
            let count = ask(fds, core::ptr::null())?;
            if count != 0 {
                return Ok(count);
            }
        }
        if timeout_ns == Some(0) {
            return ask(fds, mask);
        }
        if wants_room(fds) {
            let count = ask(fds, core::ptr::null())?;
            if count != 0 {
                return Ok(count);
            }
        }
        match spin(fds)? {
            Some(0) if !deadline.has_passed() => continue,
            Some(0) => {
                return match ask(fds, core::ptr::null())? {
                    0 => ask(fds, mask),
                    count => Ok(count),
                };
            }
            Some(count) => return Ok(count),
            None => {}
        }
        let count = sleep(fds, deadline, mask, call)?;
        if count != 0 || deadline.has_passed() {
            return Ok(count);
        }
        upgrade::serve_others();
        broker::check_mail();
    }
}

/// Whether the wait is for room of a UDP socket, of which the kernel alone knows, and which is there nearly always.
fn wants_room(fds: &[libc::pollfd]) -> bool {
    let room = libc::POLLOUT | libc::POLLWRNORM;
    fds.iter()
        .any(|entry| entry.events & room != 0 && datagram::with_rings(entry.fd).is_some())
}

/// Whether the kernel is to be asked before what rings have is told, as in epoll.
fn is_due(fds: &[libc::pollfd]) -> bool {
    let asked = PROCESS.polled.asked.load(Ordering::Relaxed);
    let is_behind = |entry: &libc::pollfd| {
        entry.revents != 0 && paired(entry.fd).is_some_and(|conn| conn.has_acted_since(asked))
    };
    sys::ticks() >= PROCESS.polled.ask_at_ticks.load(Ordering::Relaxed) || fds.iter().any(is_behind)
}

/// None of the sockets has a channel: the kernel's poll, with the threads counted that
/// would not notice if one got a channel meanwhile.
fn unaware(
    fds: &mut [libc::pollfd],
    (deadline, slice_ns, call): (Deadline, Option<u64>, Call),
    mask: *const c_void,
) -> sys::Result<usize> {
    with_space(fds.len(), &mut |counted| {
        unaware_in(counted, fds, (deadline, slice_ns, call), mask)
    })
}

/// The same with space for what is counted.
fn unaware_in(
    counted: &mut [libc::pollfd],
    fds: &mut [libc::pollfd],
    (deadline, slice_ns, call): (Deadline, Option<u64>, Call),
    mask: *const c_void,
) -> sys::Result<usize> {
    let shield = Shield::new();
    let mut taken = Taken {
        counted,
        fds,
        bell: None,
    };
    count_unaware(taken.fds, taken.counted);
    // A channel that came before the count was seen must be waited for with the rings.
    let too_late = taken.fds.iter().any(|entry| has_rings(entry.fd));
    let time = match too_late {
        true => Some(0),
        false => deadline.left_ns(slice_ns),
    };
    let (base, count) = (taken.fds.as_mut_ptr(), taken.fds.len());
    let (result, shield) = thread::guarded(shield, abandon, (&raw mut taken).cast(), || {
        // Between two sleeps a handler may run of which the kernel does not say that it ends the call.
        let is_over = call.behind(mask).is_interrupted(true);
        let time = if is_over { Some(0) } else { time };
        match wait::ppoll(base, count, time, mask) {
            Ok(0) if is_over => Err(libc::EINTR),
            result => result,
        }
    });
    taken.give_back();
    drop(shield);
    result
}

/// Counts this thread as unaware for each socket without a channel; notes which in `counted`.
fn count_unaware(fds: &[libc::pollfd], counted: &mut [libc::pollfd]) {
    for (counted, entry) in counted.iter_mut().zip(fds) {
        counted.fd = -1;
        counted.events = 0;
        if let Some(conn) = state::conn(entry.fd).filter(|conn| !conn.is_paired()) {
            stay::enter(conn);
            conn.unaware.fetch_add(1, Ordering::SeqCst);
            counted.fd = state::index_of(conn) as i32;
        } else if let Some(socket) = datagram::of(entry.fd)
            && socket.enter_kernel()
        {
            counted.fd = socket.index() as i32;
            counted.events = OF_DATAGRAMS;
        }
    }
}

fn uncount(counted: &[libc::pollfd]) {
    for counted in counted.iter().filter(|counted| counted.fd >= 0) {
        if counted.events == OF_DATAGRAMS {
            datagram::socket_at(counted.fd as u32).leave_kernel();
            continue;
        }
        let conn = state::conn_at(counted.fd as u32);
        if fork::one_less(&conn.unaware) == 1 && conn.phase.load(Ordering::SeqCst) == phase::PAIRED
        {
            up::try_ready(&conn.end());
        }
        stay::leave(conn);
    }
}

/// Fills in what rings (and what is known of the kernel) say; how many are ready.
fn look(fds: &mut [libc::pollfd]) -> usize {
    let mut ready = 0;
    for entry in fds {
        entry.revents = 0;
        if let Some(conn) = paired(entry.fd) {
            let room = libc::POLLOUT | libc::POLLWRNORM;
            entry.revents = ring_events(conn, entry);
            if entry.revents & room != 0 {
                epoll::note_room_told(conn);
            } else if entry.events & room != 0 {
                epoll::polled_in_vain(conn);
            }
        } else {
            entry.revents = datagram_events(entry);
        }
        ready += usize::from(entry.revents != 0);
    }
    ready
}

fn ring_events(conn: &Conn, entry: &libc::pollfd) -> i16 {
    let wanted = entry.events as u16 as u32;
    // POLLRDNORM (1 << 6) and POLLWRNORM (1 << 8) are other names of POLLIN (1) and POLLOUT (1 << 2).
    let mut mask = epoll::mask_of(conn, entry.fd, wanted | wanted >> 6 & 0b101);
    mask |= (mask & 0b101) << 6;
    (mask & (wanted | (libc::POLLERR | libc::POLLHUP) as u32)) as i16
}

/// The same of a UDP socket, whose sending never waits for a receiver, or of an epoll instance that has one.
fn datagram_events(entry: &libc::pollfd) -> i16 {
    let readable = libc::POLLIN | libc::POLLRDNORM;
    if entry.events & readable == 0 {
        return 0;
    }
    match datagram::with_rings(entry.fd).map(Socket::has_unread) {
        Some(true) => entry.events & (readable | libc::POLLOUT | libc::POLLWRNORM),
        None if holds_datagrams(entry.fd) => entry.events & readable,
        _ => 0,
    }
}

/// How many the kernel has shown; 0: there is something in rings; `None`: the spin was in vain.
fn spin(fds: &mut [libc::pollfd]) -> sys::Result<Option<usize>> {
    let peer = fds.iter().find_map(|entry| match paired(entry.fd) {
        Some(conn) => Some(spin::Peer::of(conn)),
        None => datagram::with_rings(entry.fd)?.peer(),
    });
    if peer.is_none() {
        return Ok(None);
    }
    let is_kernels = |entry: &libc::pollfd| entry.fd >= 0 && paired(entry.fd).is_none();
    let asks = fds.iter().any(is_kernels);
    let mut asked = Ok(0);
    let spun = spin::spin_for(peer, |what| match what {
        Look::Rings => fds.iter().any(has_something),
        Look::Kernel if !asks => false,
        Look::Kernel => {
            asked = ask(fds, core::ptr::null());
            asked != Ok(0)
        }
    });
    asked.map(|count| spun.map(|_| count))
}

/// Whether rings end a wait for a descriptor.
fn has_something(entry: &libc::pollfd) -> bool {
    match paired(entry.fd) {
        Some(conn) => {
            conn.attention.load(Ordering::Relaxed) & attention::URGENT != 0
                || ring_events(conn, entry) != 0
        }
        None => datagram_events(entry) != 0,
    }
}

/// What a sleep has taken.
struct Taken<'a> {
    fds: &'a mut [libc::pollfd],
    counted: &'a mut [libc::pollfd],
    bell: Option<Bell>,
}

impl Taken<'_> {
    fn give_back(&mut self) {
        if let Some(bell) = self.bell {
            bell.retract();
            let paired = self.fds.iter().filter_map(|entry| paired(entry.fd));
            for conn in paired.filter(|_| bell.door != DOOR_SHARED) {
                let wait = &conn.own().wait;
                wait.rx_doors.fetch_and(!bell.bit(), Ordering::SeqCst);
                wait.tx_doors.fetch_and(!bell.bit(), Ordering::SeqCst);
            }
            let sockets = self.fds.iter().filter_map(|entry| datagram::of(entry.fd));
            for socket in sockets.filter(|_| bell.door != DOOR_SHARED) {
                socket.want_no_knocks(bell.bit());
            }
            wait::release_thread(bell);
        }
        uncount(self.counted);
    }
}

/// For a thread that never comes back from its sleep.
extern "C" fn abandon(taken: *mut c_void) {
    wait::forget_own();
    // SAFETY: of `sleep` or `unaware`, whose frame is still there.
    unsafe { &mut *taken.cast::<Taken<'_>>() }.give_back();
}

fn sleep(
    fds: &mut [libc::pollfd],
    deadline: Deadline,
    mask: *const c_void,
    call: Call,
) -> sys::Result<usize> {
    late::give();
    with_space(fds.len(), &mut |counted| {
        sleep_in(counted, fds, deadline, mask, call)
    })
}

/// The same with space for what is counted.
fn sleep_in(
    counted: &mut [libc::pollfd],
    fds: &mut [libc::pollfd],
    deadline: Deadline,
    mask: *const c_void,
    call: Call,
) -> sys::Result<usize> {
    let shield = Shield::new();
    // Sockets that have no channel yet may get one from another thread.
    count_unaware(fds, counted);
    let before = bindings(fds);
    let bell = wait::acquire_thread();
    let mut unread = false;
    for entry in fds.iter() {
        if let Some(conn) = paired(entry.fd) {
            let own = conn.own();
            own.wait.rx_doors.fetch_or(bell.bit(), Ordering::SeqCst);
            own.wait.tx_doors.fetch_or(bell.bit(), Ordering::SeqCst);
            if entry.events & libc::POLLOUT != 0 {
                conn.producer().ask_for_room();
            }
            unread |= conn.peer_is_there() && conn.producer().unread_hint() != 0;
        } else if let Some(socket) = datagram::of(entry.fd) {
            socket.want_knocks(bell.bit());
        }
    }
    bell.announce();
    let since_ns = if unread { sys::now_ns() } else { 0 };
    let mut taken = Taken {
        fds,
        counted,
        bell: Some(bell),
    };
    let way_out = (abandon as extern "C" fn(_), (&raw mut taken).cast());
    let fds = &mut *taken.fds;
    let (result, shield) = if look(fds) != 0 || bindings(fds) != before {
        (ask(fds, core::ptr::null()), shield)
    } else {
        let slice = match is_any_undecided(fds) {
            true => Some(UNDECIDED_SLICE_NS),
            false => wait::slice_ns(Some(bell), unread),
        };
        let left = deadline.left_ns(slice);
        let body = || ask_behind(fds, Some(bell), left, mask);
        let (result, shield) =
            wait::asleep(shield, Some(bell), (call.behind(mask), true), way_out, body);
        (result.map(|count| count.unwrap_or(0)), shield)
    };
    taken.give_back();
    let watch = unread && wait::is_watch_due(since_ns);
    for conn in taken.fds.iter().filter_map(|entry| paired(entry.fd)) {
        down::serve(&conn.end());
        if watch {
            down::watch(&conn.end(), wait::WATCH_SLICE_NS);
        }
    }
    drop(shield);
    result
}

/// Changes when one of the connections gets or loses a channel.
fn bindings(fds: &[libc::pollfd]) -> u32 {
    let conns = fds.iter().filter_map(|entry| state::conn(entry.fd));
    conns.fold(0, |sum: u32, conn| {
        sum.wrapping_mul(31).wrapping_add(binding(&conn.end()))
    })
}

/// The kernel's poll over the program's descriptors, without a sleep; then the kernel's and the
/// rings' answers together.
fn ask(fds: &mut [libc::pollfd], mask: *const c_void) -> sys::Result<usize> {
    ask_behind(fds, None, Some(0), mask).map(|(ready, _)| ready)
}

/// The same over the bell and the control socket as well, with a sleep; also whether the bell has rung.
fn ask_behind(
    fds: &mut [libc::pollfd],
    bell: Option<Bell>,
    time_ns: Option<u64>,
    mask: *const c_void,
) -> sys::Result<(usize, bool)> {
    let count = fds.len();
    let own = if bell.is_some() { OWN_ENTRIES } else { 0 };
    with_space(count + own, &mut |entries| {
        with_space(count, &mut |serials| {
            ask_in((entries, serials), fds, bell, time_ns, mask)
        })
    })
}

/// The same with space for what the kernel is asked, and for whom it is.
fn ask_in(
    (entries, serials): (&mut [libc::pollfd], &mut [libc::pollfd]),
    fds: &mut [libc::pollfd],
    bell: Option<Bell>,
    time_ns: Option<u64>,
    mask: *const c_void,
) -> sys::Result<(usize, bool)> {
    let count = fds.len();
    let own = entries.len() - count;
    for ((target, entry), asked) in entries.iter_mut().zip(fds.iter()).zip(&mut *serials) {
        *target = *entry;
        target.revents = 0;
        note_asked(asked, state::conn(entry.fd));
        if let Some(conn) = paired(entry.fd) {
            target.events = kernel_interest(conn, entry.events);
        }
    }
    if let Some(bell) = bell {
        entries[count] = libc::pollfd {
            fd: bell.fd,
            events: libc::POLLIN,
            revents: 0,
        };
        entries[count + 1] = libc::pollfd {
            fd: broker::fd(),
            events: libc::POLLIN,
            revents: 0,
        };
    }
    let asked = link::acts_seen();
    match wait::ppoll(entries.as_mut_ptr(), count + own, time_ns, mask) {
        // Where the kernel takes no entries more than the program's, the sleep is a short one.
        Err(libc::EINVAL) if own != 0 => {
            let slice_ns = time_ns.map_or(wait::BLIND_SLICE_NS, |ns| ns.min(wait::BLIND_SLICE_NS));
            wait::ppoll(entries.as_mut_ptr(), count, Some(slice_ns), mask)?
        }
        shown => shown?,
    };
    PROCESS.polled.asked.store(asked, Ordering::Relaxed);
    let next = sys::ticks() + epoll::UNASKED_US * spin::ticks_per_us();
    PROCESS.polled.ask_at_ticks.store(next, Ordering::Relaxed);
    let is_shown = |at| {
        let entry: Option<&libc::pollfd> = entries.get(at);
        entry.is_some_and(|entry| entry.revents != 0)
    };
    let (rang, mailed) = (is_shown(count), is_shown(count + 1));
    if mailed || broker::is_orphaned() {
        broker::drain_mail();
        broker::connect();
    }
    let mut ready = 0;
    for ((entry, shown), asked) in fds.iter_mut().zip(entries.iter()).zip(&*serials) {
        entry.revents = match paired(entry.fd) {
            Some(conn) => {
                let keep = libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
                let bits = (shown.revents & keep) as u16 as u32;
                // The number may be another connection's by now: of this one nothing was shown.
                if bits != 0
                    && let Some(serial) = serial_asked(asked, conn)
                {
                    stay::if_still(conn, entry.fd, serial, || {
                        conn.note(bits);
                    });
                }
                ring_events(conn, entry) | shown.revents & entry.events & libc::POLLPRI
            }
            None => shown.revents | datagram_events(entry),
        };
        ready += usize::from(entry.revents != 0);
    }
    Ok((ready, rang))
}

/// Notes of which connection the kernel is about to be asked: its entry and its serial, for other
/// entries have serials of their own, which may be the same.
fn note_asked(asked: &mut libc::pollfd, conn: Option<&Conn>) {
    let index = conn.map_or(0, |conn| state::index_of(conn) + 1);
    asked.events = index as i16;
    asked.revents = (index >> 16) as i16;
    asked.fd = conn.map_or(0, |conn| conn.serial.load(Ordering::Acquire) as i32);
}

/// The serial that was noted, if it was one of this entry.
fn serial_asked(asked: &libc::pollfd, conn: &Conn) -> Option<u32> {
    let index = u32::from(asked.events as u16) | u32::from(asked.revents as u16) << 16;
    (index == state::index_of(conn) + 1).then_some(asked.fd as u32)
}

fn kernel_interest(conn: &Conn, events: i16) -> i16 {
    let mut interest = events & !(libc::POLLOUT | libc::POLLWRNORM) | libc::POLLRDHUP;
    if conn.shown() & libc::POLLRDHUP as u32 != 0 && events & libc::POLLIN == 0 {
        // Seen already, and not asked for: it must not cut every sleep short.
        interest = events & libc::POLLRDHUP;
    }
    if events & (libc::POLLOUT | libc::POLLWRNORM) != 0 && sends_by_kernel(&conn.end()) {
        interest |= libc::POLLOUT;
    }
    interest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{free, tables};

    #[test]
    fn what_was_shown_of_one_entry_is_not_noted_of_another() {
        let _turn = tables();
        let fd = state::FD_COUNT as i32 - 6;
        let conn = |fd| state::add_conn(fd, false).expect("a place");
        let (one, other) = (conn(fd), conn(fd - 1));
        // Each entry counts by itself.
        let serial = one.serial.load(Ordering::Relaxed);
        other.serial.store(serial, Ordering::Relaxed);
        let mut asked = libc::pollfd {
            fd: 0,
            events: 0,
            revents: 0,
        };
        note_asked(&mut asked, Some(one));
        assert_eq!(serial_asked(&asked, one), Some(serial));
        assert_eq!(serial_asked(&asked, other), None);
        note_asked(&mut asked, None);
        assert_eq!(serial_asked(&asked, one), None);
        for conn in [one, other] {
            free(conn);
        }
    }
}
