//! Waiting: doorbells, and the sleep itself. The spin before it is [`crate::spin`].
//!
//! # Doorbells
//! A waiter (an epoll instance, or a thread in a blocking call) has a doorbell: a bit in
//! the wait page, and an epoll instance of ours. In it are, edge-triggered and never
//! drained, an eventfd of our own and, for each link, what the broker gave us to see
//! that peer's knocks by (`fordway_abi::control`). Bells of epoll
//! instances belong to them until close; bells of threads are borrowed for one
//! sleep. Bell 0 is everybody's: it is used when no other can be had
//! ([`crate::shared_bell`]). Peers in other guests have pages of their own, in which the same is said, and event channels
//! for views ([`crate::guest`]). A sleeper without any bell looks around every [`BLIND_SLICE_NS`].

use crate::deadline::{Deadline, timespec};
use crate::lock::{Lock, rank};
use crate::process::PROCESS;
use crate::signals::Call;
use crate::spin::{self, Look};
use crate::state::Conn;
use crate::sys::{self, sys};
use crate::thread::{self, Shield};
use crate::{broker, fork, guest, hidden, late, link, pace, real, shared_bell, stay, upgrade};
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use fordway_abi::shm::{DOOR_COUNT, DOOR_SHARED, WAIT_PAGE_BYTES, WAIT_PAGE_MAGIC, WaitPage};
use fordway_ring::Sleeper;
use fordway_sockets::ready::{Want, announce, binding, is_ready, retract};
use fordway_sockets::{down, sends_by_kernel};

/// How long no door is made known after one was not answered.
const DOOR_AGAIN_NS: u64 = 10_000_000_000;
/// Longest sleep without a bell.
pub const BLIND_SLICE_NS: u64 = 5_000_000;
/// Longest sleep while the broker is away, so that a new one is found.
const ORPHAN_SLICE_NS: u64 = 500_000_000;
/// Longest sleep while bytes of ours lie unread in some ring, the watchdog's period, or are owed.
pub const WATCH_SLICE_NS: u64 = 50_000_000;
/// Longest sleep while a look at all connections is owed.
const OWED_SLICE_NS: u64 = 5_000_000;

/// Of the process: doorbells, and the page that says who sleeps.
pub struct Doors {
    page: AtomicPtr<WaitPage>,
    page_fd: AtomicI32,
    /// The epoll instance of each door; -1: not made yet.
    doors: [AtomicI32; DOOR_COUNT],
    /// The eventfd in each, by which we knock at our own doors.
    own_rings: [AtomicI32; DOOR_COUNT],
    /// Threads that sleep behind each door.
    sleepers: [AtomicU32; DOOR_COUNT],
    /// Doors that are in use.
    busy: AtomicU64,
    /// Doors that every peer was told of.
    registered: AtomicU64,
    door_lock: Lock<{ rank::DOOR }>,
    /// When the broker is told of a new door at the earliest.
    again_ns: AtomicU64,
    /// The parent's page, in a forked child.
    parent_page: AtomicPtr<WaitPage>,
}

impl Doors {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            page: AtomicPtr::new(core::ptr::null_mut()),
            page_fd: AtomicI32::new(-1),
            doors: [const { AtomicI32::new(-1) }; DOOR_COUNT],
            own_rings: [const { AtomicI32::new(-1) }; DOOR_COUNT],
            sleepers: [const { AtomicU32::new(0) }; DOOR_COUNT],
            busy: AtomicU64::new(1 << DOOR_SHARED),
            registered: AtomicU64::new(0),
            door_lock: Lock::new(),
            again_ns: AtomicU64::new(0),
            parent_page: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

/// A doorbell, and what it takes to sleep on it.
#[derive(Clone, Copy, Debug)]
pub struct Bell {
    /// Index in the wait page.
    pub door: usize,
    /// What becomes readable at a ring; -1: nothing does.
    pub fd: i32,
    /// The process whose door it is ([`fork::generation`]).
    process: u32,
}

impl Bell {
    /// Of a door of this process.
    pub fn of(door: usize, fd: i32) -> Self {
        let process = fork::generation();
        Self { door, fd, process }
    }

    /// Whether it was taken in the parent, by a call to which a forked child returns from a handler: nothing is to be
    /// given back here, and what the parent has in shared memory is to stay there.
    fn is_parents(self) -> bool {
        self.process != fork::generation()
    }

    /// Its bit in masks of doors.
    pub fn bit(self) -> u64 {
        match self.is_parents() {
            false => 1 << self.door,
            true => 0,
        }
    }

    /// Publishes that its waiter is about to sleep; rings are to be looked at once more.
    pub fn announce(self) {
        self.sleepers().fetch_add(1, Ordering::SeqCst);
        self.stand_by_beside(1);
    }

    /// Its waiter runs again. While others sleep behind the same bell (threads in one
    /// epoll instance), the bell stays announced.
    pub fn retract(self) {
        if self.is_parents() {
            return;
        }
        if self.sleepers().fetch_sub(1, Ordering::SeqCst) != 1 {
            // Peers have knocked for this sleep. What comes while the waiter works is for the
            // others: peers must knock anew. What came before, the waiter looks for.
            self.stand_by();
            return;
        }
        if let Some(sleeper) = self.page() {
            sleeper.retract();
            if link::has_guests() {
                guest::retract(self.door);
            }
        }
        if self.has_sleepers() {
            // Somebody announced between the two steps: what was missed since, he looks for.
            self.stand_by();
            self.knock();
        }
    }

    /// Whether a thread sleeps behind it.
    pub fn has_sleepers(self) -> bool {
        self.sleepers().load(Ordering::SeqCst) != 0
    }

    fn sleepers(self) -> &'static AtomicU32 {
        &PROCESS.doors.sleepers[self.door]
    }

    /// Wakes a thread that sleeps behind it, as a peer would.
    pub fn knock(self) {
        let one = 1u64;
        let eventfd = PROCESS.doors.own_rings[self.door].load(Ordering::Acquire);
        let _ = sys!(SYS_write, eventfd, &raw const one, 8);
    }

    /// A forked child that speaks to no broker has no page: it sleeps in slices.
    fn page(self) -> Option<Sleeper<'static>> {
        // SAFETY: the page stays mapped once it is made.
        let page = unsafe { PROCESS.doors.page.load(Ordering::Acquire).as_ref() };
        page.map(|page| Sleeper::new(page, self.door))
    }

    /// Has peers ring it, whether or not a thread of ours sleeps behind it.
    pub fn stand_by(self) {
        self.stand_by_beside(0);
    }

    /// The same, for so many of its sleepers.
    fn stand_by_beside(self, own: u32) {
        if let Some(sleeper) = self.page() {
            sleeper.announce();
            // SYNC POINT with `guest::make`: the announcement, which fences, before the look for links.
            if link::has_guests() && guest::stand_by(self.door) {
                self.pass_on(own);
            }
        }
    }

    /// A ring was taken by a thread that opened its view: others, for whom it may have been, look for it.
    #[cold]
    fn pass_on(self, own: u32) {
        if self.sleepers().load(Ordering::SeqCst) > own {
            self.knock();
        }
    }

    /// Forgets past rings. Only for bells that one thread sleeps on.
    fn quiet(self) {
        harvest(self.fd);
    }
}

/// A handler runs in the thread that is about to sleep behind `door`: it must not, before
/// it has looked what that means for its call.
pub fn knock_own(door: usize) {
    let one = 1u64;
    let eventfd = PROCESS.doors.own_rings[door % DOOR_COUNT].load(Ordering::Acquire);
    let _ = sys!(SYS_write, eventfd, &raw const one, 8);
}

/// Sleeps by `body` behind `bell` (if there is one), unless a handler has run that ends `call`. `body` also says
/// whether the bell has rung.
/// `Err(EINTR)` only if the call has to end. The caller's shield is down meanwhile; if the
/// thread never comes back, `routine` is called.
pub fn asleep<R>(
    shield: Shield,
    bell: Option<Bell>,
    (call, by_any): (Call, bool),
    (routine, argument): (extern "C" fn(*mut c_void), *mut c_void),
    body: impl FnOnce() -> sys::Result<(R, bool)>,
) -> (sys::Result<Option<R>>, Shield) {
    let own = &thread::current().door;
    own.store(
        bell.map_or(0, |bell| bell.door as u32 + 1),
        Ordering::Relaxed,
    );
    let (result, shield) = thread::guarded(shield, routine, argument, || {
        if call.is_interrupted(by_any) {
            return Err(libc::EINTR);
        }
        let result = body();
        spin::woke(matches!(result, Ok((_, true))));
        match result {
            Err(libc::EINTR) if call.is_ended(by_any) => Err(libc::EINTR),
            Err(libc::EINTR) => Ok(None),
            // What has come comes first; the next sleep does not begin.
            result => result.map(|(result, _)| Some(result)),
        }
    });
    own.store(0, Ordering::Relaxed);
    (result, shield)
}

/// The thread will not come back to a sleep behind a bell.
pub fn forget_own() {
    thread::current().door.store(0, Ordering::Relaxed);
}

/// A thread begins to wait in the library: peers see that the process is alive in there
/// ([`down::watch`]). Two threads may count as one. What it has held back, it does now.
#[inline]
pub fn beat() {
    late::give();
    // SAFETY: the page stays mapped once it is made.
    if let Some(page) = unsafe { PROCESS.doors.page.load(Ordering::Relaxed).as_ref() } {
        let beat = page.beat.load(Ordering::Relaxed);
        page.beat.store(beat.wrapping_add(1), Ordering::Relaxed);
        if link::has_guests() {
            guest::beat();
        }
    }
}

/// The process has done something to a socket of the kernel's that a peer may see: connect, close,
/// shutdown, a send. After it, and before what is published in rings next.
#[inline]
pub fn acted() {
    // SAFETY: the page stays mapped once it is made.
    if let Some(page) = unsafe { PROCESS.doors.page.load(Ordering::Relaxed).as_ref() } {
        // SYNC POINT with `Link::has_acted_since`: behind the act, before the next tail.
        page.kernel_acts.fetch_add(1, Ordering::SeqCst);
        if link::has_guests() {
            guest::acted();
        }
    }
}

/// Says in a page for another guest's process who is said to sleep. One who wakes meanwhile may be said to sleep until
/// he wakes the next time, which costs his peer a ring.
pub fn show_sleepers(page: &WaitPage) {
    // SAFETY: the page stays mapped once it is made.
    if let Some(own) = unsafe { PROCESS.doors.page.load(Ordering::Acquire).as_ref() } {
        let sleeping = own.sleeping.load(Ordering::SeqCst);
        let doors = (0..DOOR_COUNT).filter(|door| sleeping >> door & 1 != 0);
        doors.for_each(|door| Sleeper::new(page, door).announce());
    }
}

/// Knocks at those of our own `doors` behind which somebody sleeps.
pub fn knock_for_sleepers(doors: u64) {
    for door in (0..DOOR_COUNT).filter(|door| doors >> door & 1 != 0) {
        let bell = Bell::of(door, -1);
        if bell.has_sleepers() {
            bell.knock();
        }
    }
}

/// Takes the events of an epoll instance of ours, so that it is not readable before the
/// next. More than fit leave it readable: its waiter wakes once for nothing.
pub fn harvest(epoll: i32) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
    let room = events.len();
    let _ = sys!(SYS_epoll_wait, epoll, events.as_mut_ptr(), room, 0);
}

/// Makes the wait page and bell 0, once; returns the page's descriptor.
pub fn set_up() -> sys::Result<i32> {
    if PROCESS.doors.page.load(Ordering::Acquire).is_null() {
        let (fd, base) =
            link::make_memory(c"fordway-wait", WAIT_PAGE_BYTES, core::ptr::null_mut())?;
        let page = base.cast::<WaitPage>();
        // SAFETY: a fresh, zeroed, writable mapping of the page.
        unsafe {
            (*page).magic.store(WAIT_PAGE_MAGIC, Ordering::Relaxed);
            (*page)
                .abi_version
                .store(fordway_abi::ABI_VERSION, Ordering::Relaxed);
        }
        PROCESS.doors.page_fd.store(fd, Ordering::Relaxed);
        PROCESS.doors.page.store(page, Ordering::Release);
    }
    if PROCESS.doors.doors[DOOR_SHARED].load(Ordering::Acquire) < 0 {
        make_door(DOOR_SHARED)?;
    }
    Ok(PROCESS.doors.page_fd.load(Ordering::Relaxed))
}

fn make_door(door: usize) -> sys::Result<()> {
    let rings =
        hidden::hide(sys!(SYS_eventfd2, 0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)? as i32)?;
    let made = sys!(SYS_epoll_create1, libc::EPOLL_CLOEXEC)
        .and_then(|epoll| hidden::hide(epoll as i32))
        .and_then(|epoll| {
            let watched = watch_edges(epoll, rings);
            watched
                .inspect_err(|_| hidden::close(epoll))
                .map(|()| epoll)
        });
    let epoll = made.inspect_err(|_| hidden::close(rings))?;
    PROCESS.doors.own_rings[door].store(rings, Ordering::Release);
    PROCESS.doors.doors[door].store(epoll, Ordering::Release);
    Ok(())
}

/// Has `epoll` become readable at each event of `fd`.
pub fn watch_edges(epoll: i32, fd: i32) -> sys::Result<()> {
    let event = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLET) as u32,
        u64: 0,
    };
    match sys!(
        SYS_epoll_ctl,
        epoll,
        libc::EPOLL_CTL_ADD,
        fd,
        &raw const event
    ) {
        // Another thread was quicker.
        Ok(_) | Err(libc::EEXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A peer's knocks at `door` show by `view` from now on.
pub fn watch_view(door: usize, view: i32) -> sys::Result<()> {
    watch_edges(PROCESS.doors.doors[door].load(Ordering::Acquire), view)
}

/// The opposite; a view that was not watched need not go.
pub fn unwatch_view(door: usize, view: i32) {
    if view >= 0 {
        let epoll = PROCESS.doors.doors[door].load(Ordering::Acquire);
        let _ = sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, view, 0);
    }
}

/// The broker has told every peer of bell `door`.
pub fn registered(door: u64) {
    PROCESS
        .doors
        .registered
        .fetch_or(1 << (door % DOOR_COUNT as u64), Ordering::AcqRel);
}

/// The opposite.
#[cfg(test)]
pub fn forget(door: u64) {
    let mask = !(1 << door);
    PROCESS.doors.registered.fetch_and(mask, Ordering::AcqRel);
}

/// Makes bell `door`, of which every peer is taken to have been told.
#[cfg(test)]
pub fn make_known(door: usize) -> sys::Result<()> {
    if PROCESS.doors.doors[door].load(Ordering::Acquire) < 0 {
        make_door(door)?;
    }
    registered(door as u64);
    Ok(())
}

/// Whether every peer has been told of bell `door`.
pub fn is_registered(door: u64) -> bool {
    PROCESS.doors.registered.load(Ordering::Acquire) >> door & 1 != 0
}

/// Tells a new broker of all bells.
pub fn register_doors() {
    for (door, fd) in PROCESS.doors.doors.iter().enumerate().skip(1) {
        let fd = fd.load(Ordering::Acquire);
        if fd >= 0 {
            broker::send_door(door as u64);
        }
    }
}

/// A bell for one sleep of a thread, to be given back with [`release_thread`].
pub fn acquire_thread() -> Bell {
    let bell = acquire();
    if bell.door != DOOR_SHARED || bell.fd < 0 {
        return bell;
    }
    Bell {
        fd: shared_bell::take(bell.fd),
        ..bell
    }
}

/// Gives the bell of a thread back.
pub fn release_thread(bell: Bell) {
    if bell.door == DOOR_SHARED {
        match bell.is_parents() {
            false => shared_bell::give(bell.fd),
            true => hidden::close(bell.fd),
        }
    } else {
        release(bell);
    }
}

/// A bell of the caller's own, to be given back with [`release`]; else the shared one.
pub fn acquire() -> Bell {
    loop {
        let busy = PROCESS.doors.busy.load(Ordering::Relaxed);
        let door = (!busy).trailing_zeros() as usize;
        if door >= DOOR_COUNT {
            break;
        }
        if PROCESS
            .doors
            .busy
            .compare_exchange(busy, busy | 1 << door, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            continue;
        }
        if let Some(fd) = door_fd(door) {
            return Bell::of(door, fd);
        }
        PROCESS.doors.busy.fetch_and(!(1 << door), Ordering::AcqRel);
        break;
    }
    let fd = PROCESS.doors.doors[DOOR_SHARED].load(Ordering::Acquire);
    Bell::of(DOOR_SHARED, fd)
}

fn door_fd(door: usize) -> Option<i32> {
    if is_registered(door as u64) {
        return Some(PROCESS.doors.doors[door].load(Ordering::Acquire));
    }
    let _guard = PROCESS.doors.door_lock.lock()?;
    if PROCESS.doors.doors[door].load(Ordering::Acquire) < 0 {
        make_door(door).ok()?;
    }
    let fd = PROCESS.doors.doors[door].load(Ordering::Acquire);
    // A broker that waits for another one (of a guest that is paused, say) would be waited for at each sleep.
    let again_ns = &PROCESS.doors.again_ns;
    if sys::now_ns() < again_ns.load(Ordering::Relaxed) {
        return None;
    }
    let is_known = broker::register_door(door as u64);
    if !is_known && broker::fd() >= 0 {
        again_ns.store(sys::now_ns() + DOOR_AGAIN_NS, Ordering::Relaxed);
    }
    is_known.then_some(fd)
}

/// Gives a bell back.
pub fn release(bell: Bell) {
    if bell.door != DOOR_SHARED && !bell.is_parents() {
        bell.quiet();
        PROCESS.doors.busy.fetch_and(!bell.bit(), Ordering::AcqRel);
    }
}

/// In a forked child, before its bells are closed: keeps what knocks at a bell of the parent's;
/// the descriptor plus one.
pub fn keep_ring_of_parent(bell: Bell) -> i32 {
    PROCESS.doors.parent_page.store(
        PROCESS.doors.page.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    PROCESS.doors.own_rings[bell.door].swap(-1, Ordering::Relaxed) + 1
}

/// Whether a thread of the parent sleeps behind its door.
pub fn parent_sleeps(door: usize) -> bool {
    // SAFETY: mapped since before the fork.
    let page = unsafe { PROCESS.doors.parent_page.load(Ordering::Relaxed).as_ref() };
    page.is_some_and(|page| page.sleeping.load(Ordering::SeqCst) >> door & 1 != 0)
}

/// In a forked child: bells and page are the parent's.
pub fn after_fork() {
    PROCESS.doors.door_lock.reset();
    for sleepers in &PROCESS.doors.sleepers {
        sleepers.store(0, Ordering::Relaxed);
    }
    for fd in PROCESS.doors.doors.iter().chain(&PROCESS.doors.own_rings) {
        hidden::close(fd.swap(-1, Ordering::Relaxed));
    }
    hidden::close(PROCESS.doors.page_fd.swap(-1, Ordering::Relaxed));
    PROCESS
        .doors
        .page
        .store(core::ptr::null_mut(), Ordering::Relaxed);
    PROCESS
        .doors
        .busy
        .store(1 << DOOR_SHARED, Ordering::Relaxed);
    PROCESS.doors.registered.store(0, Ordering::Relaxed);
    PROCESS.doors.again_ns.store(0, Ordering::Relaxed);
}

/// How long a sleep may last for the shim's own sake; `None`: for ever.
pub fn slice_ns(bell: Option<Bell>, unread: bool) -> Option<u64> {
    if bell.is_some_and(|bell| bell.fd < 0 || PROCESS.doors.page.load(Ordering::Relaxed).is_null())
    {
        Some(BLIND_SLICE_NS)
    } else if upgrade::owes_a_look() {
        Some(OWED_SLICE_NS)
    } else if unread || upgrade::owes_bytes() {
        Some(WATCH_SLICE_NS)
    } else if broker::is_orphaned() {
        Some(ORPHAN_SLICE_NS)
    } else {
        None
    }
}

/// How long a sleep may last that is the kernel's alone, and in which no ring is looked at.
pub fn plain_slice_ns() -> Option<u64> {
    upgrade::owes_bytes().then_some(WATCH_SLICE_NS)
}

/// Whether a sleep that began at `since_ns` with bytes unread was long enough for
/// the watchdog to look.
pub fn is_watch_due(since_ns: u64) -> bool {
    sys::now_ns().saturating_sub(since_ns) >= WATCH_SLICE_NS
}

/// The kernel's ppoll. By libc, where a thread can be cancelled (man 7 pthreads).
pub fn ppoll(
    fds: *mut libc::pollfd,
    count: usize,
    time_ns: Option<u64>,
    mask: *const core::ffi::c_void,
) -> sys::Result<usize> {
    let time = time_ns.map(timespec);
    let time_pointer = time
        .as_ref()
        .map_or(core::ptr::null(), |time| &raw const *time);
    // SAFETY: the caller's array; a time of ours; the program's mask.
    let shown = unsafe { real::ppoll(fds, count, time_pointer, mask) };
    if shown < 0 {
        Err(sys::errno())
    } else {
        Ok(shown as usize)
    }
}

/// Has `epoll` show the next event of an entry as `number`. Once: a thread that never comes back
/// from its sleep leaves it there.
fn show_once(epoll: i32, entry: libc::pollfd, number: usize) -> sys::Result<()> {
    let event = libc::epoll_event {
        events: entry.events as u32 | libc::EPOLLONESHOT as u32,
        u64: number as u64,
    };
    let (fd, event) = (entry.fd, &raw const event);
    if fd < 0 {
        return Ok(());
    }
    let shown = match sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, fd, event) {
        Err(libc::EEXIST) => sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_MOD, fd, event),
        added => added,
    };
    shown.map(drop)
}

/// The same for a bell and what else ends a sleep, but that it ends with EINTR when the process
/// was stopped and continued meanwhile: so does the kernel's receive or send with a time-out,
/// and ppoll goes on by itself (man 7 signal).
fn epoll(fds: &mut [libc::pollfd; 3], time_ns: Option<u64>) -> sys::Result<usize> {
    let bell = fds[0].fd;
    let process = fork::generation();
    let mut added = 1;
    while bell >= 0 && added < fds.len() && show_once(bell, fds[added], added).is_ok() {
        added += 1;
    }
    let is_whole = added == fds.len();
    let woken = if is_whole {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let time = time_ns.map(timespec);
        let time = time
            .as_ref()
            .map_or(core::ptr::null(), |time| &raw const *time);
        let room = events.len() as i32;
        // SAFETY: ours all.
        let shown =
            unsafe { real::epoll_pwait2(bell, events.as_mut_ptr(), room, time, core::ptr::null()) };
        let shown = usize::try_from(shown).map_err(|_| sys::errno());
        for event in &events[..shown.unwrap_or(0)] {
            // What belongs to the bell has 0.
            let number = event.u64 as usize % fds.len();
            fds[number].revents |= event.events as i16;
        }
        shown
    } else {
        // The descriptor is gone, or there is no room for it.
        ppoll(fds.as_mut_ptr(), fds.len(), time_ns, core::ptr::null())
    };
    // A child that returns here from a handler has closed the bell, which is its parent's.
    let is_ours = process == fork::generation();
    for entry in fds[1..added]
        .iter()
        .filter(|entry| is_ours && entry.fd >= 0)
    {
        let _ = sys!(SYS_epoll_ctl, bell, libc::EPOLL_CTL_DEL, entry.fd, 0);
    }
    woken
}

/// What a sleep of a blocking call has taken.
struct Taken<'a> {
    conn: &'a Conn,
    bell: Bell,
    want: Want,
}

impl Taken<'_> {
    fn give_back(&self) {
        self.bell.retract();
        if self.bell.door != DOOR_SHARED {
            retract(&self.conn.end(), (self.want, self.bell.bit()));
        }
        release_thread(self.bell);
    }
}

/// For a thread that never comes back from its sleep.
extern "C" fn abandon(taken: *mut c_void) {
    forget_own();
    // SAFETY: of `for_conn`, whose frame is still there.
    let taken = unsafe { &*taken.cast::<Taken<'_>>() };
    taken.give_back();
}

/// Sleeps (after a spin) until `conn` is worth another try, for blocking calls.
/// `Err(EAGAIN)`: the deadline has passed. `Err(EINTR)`: a signal was handled that ends
/// the call, which has moved bytes already if it is `partial`. The caller has a
/// [`stay::Stay`]; the descriptor may be another one afterwards.
pub fn for_conn(
    conn: &Conn,
    fd: i32,
    want: Want,
    deadline: Deadline,
    (call, partial): (Call, bool),
) -> sys::Result<()> {
    let shield = Shield::new();
    let end = conn.at(fd);
    let ready = || is_ready(&end, want);
    beat();
    let look = |what| what == Look::Rings && ready();
    let pause = match want {
        Want::Bytes if !partial => pace::quarters(conn),
        _ => 0,
    };
    let peer = || spin::Peer {
        pause,
        ..spin::Peer::of(conn)
    };
    // A handler that comes while it spins runs in the sleep, from where it may jump: what the call has taken is given back there.
    let has_deferred = || thread::current().has_deferred();
    let spun = conn.peer_is_there() && spin::spin_for(Some(peer()), look).is_some();
    if spun && !has_deferred() {
        return Ok(());
    }
    let before = binding(&end);
    if before & 1 == 0 {
        return Ok(());
    }
    let bell = acquire_thread();
    let mut taken = Taken { conn, bell, want };
    let sleeps = announce(&end, (want, bell.bit()), before, || bell.announce());
    let (result, shield) = if !sleeps && !has_deferred() {
        (Ok(None), shield)
    } else {
        // A call with a time-out, or with bytes to show, does not go on (linux: sock_intr_errno).
        let by_any = partial || deadline != Deadline::Never;
        let way_out = (abandon as extern "C" fn(_), (&raw mut taken).cast());
        let body = || match sleeps {
            true => sleep(conn, fd, want, bell, deadline).map(|rang| (rang, rang)),
            false => Ok((false, false)),
        };
        let (result, shield) = asleep(shield, Some(bell), (call, by_any), way_out, body);
        // What has come comes first.
        let result = if sleeps { result } else { Ok(None) };
        (result, shield)
    };
    taken.give_back();
    drop(shield);
    broker::check_mail();
    // The number may have been closed meanwhile.
    down::serve(&conn.end());
    let woken = result == Ok(Some(true));
    if (woken || upgrade::owes_a_look() || upgrade::owes_bytes()) && !ready() {
        upgrade::serve_others();
    }
    result.map(|_| ())
}

/// The sleep itself; whether the bell ended it.
fn sleep(conn: &Conn, fd: i32, want: Want, bell: Bell, deadline: Deadline) -> sys::Result<bool> {
    let events = match want {
        Want::Bytes => libc::POLLIN | libc::POLLRDHUP,
        // While bytes go through the ring the kernel's socket is always writable.
        Want::Room if sends_by_kernel(&conn.at(fd)) => libc::POLLOUT,
        Want::Room => libc::POLLRDHUP,
    };
    let entry = |fd, events| libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let mut fds = [
        entry(bell.fd, libc::POLLIN),
        entry(fd, events),
        entry(broker::fd(), libc::POLLIN),
    ];
    // A peer that has shut its sending half shows RDHUP for ever: no reason to wake a sender.
    if want == Want::Room && conn.shown() & libc::POLLRDHUP as u32 != 0 {
        fds[1].events &= !libc::POLLRDHUP;
    }
    let unread = conn.peer_is_there() && conn.producer().unread_hint() != 0;
    let left = deadline.left_ns(slice_ns(Some(bell), unread));
    let since_ns = if unread { sys::now_ns() } else { 0 };
    let woken = match deadline {
        Deadline::Never => ppoll(fds.as_mut_ptr(), fds.len(), left, core::ptr::null())?,
        Deadline::At(_) => epoll(&mut fds, left)?,
    };
    // Another thread may have closed the number, and a new socket have got it.
    if stay::is_its(conn, fd) {
        conn.note(fds[1].revents as u16 as u32);
    }
    if fds[2].revents != 0 || broker::is_orphaned() {
        broker::drain_mail();
        if broker::is_orphaned() {
            broker::connect();
        }
    }
    if woken == 0 && unread && is_watch_due(since_ns) {
        down::watch(&conn.end(), WATCH_SLICE_NS);
    }
    if woken == 0 && deadline.has_passed() {
        Err(libc::EAGAIN)
    } else {
        Ok(fds[0].revents != 0)
    }
}
