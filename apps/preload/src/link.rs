//! Links: what this process shares with one other process. A link has a region
//! of ours (written by us, sealed before anybody else sees it), the peer's region
//! and wait page (read-only), and the peer's doorbells.
//!
//! States: FREE; MADE (our region exists and was sent); LIVE (the peer's side is
//! mapped). A link is never unmapped while a connection uses it; when the peer's
//! process is gone and the last connection closed, it is given back.
//!
//! A link to a process of another guest of Xen is one too, but for how it is made and what its doorbells are
//! ([`crate::guest`]).

use crate::late::Held;
use crate::lock::{Lock, lock_shared, rank};
use crate::process::PROCESS;
use crate::spin::Spins;
use crate::state::{self, Conn, attention};
use crate::sys::{self, sys};
use crate::thread::Shield;
use crate::{broker, guest, headroom, hidden, purse, thread, wait};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use fordway_abi::reason::Reason;
use fordway_abi::shm::{
    DOOR_COUNT, DOOR_SHARED, ENDPOINT_BYTES, ENDPOINTS_OFFSET, Endpoint, MARKS_OFFSET,
    REGION_BYTES, REGION_MAGIC, RegionHeader, SLOT_COUNT, WAIT_PAGE_BYTES, WAIT_PAGE_MAGIC,
    WaitPage, rx_state,
};
use fordway_ring::marks::Marks;
use fordway_ring::{Consumer, Producer};
use fordway_sockets::down;

/// Links of one process.
pub const LINK_COUNT: usize = 4096;

/// More than the broker has links to other guests, those among them of which it has not heard that they are over.
pub const OWED_MAX: usize = 32;

/// States of a link.
pub mod link_state {
    /// Not in use.
    pub const FREE: u32 = 0;
    /// Our region was sent.
    pub const MADE: u32 = 1;
    /// The peer's side is mapped.
    pub const LIVE: u32 = 2;
}

/// One side of a link, as this process holds it.
#[repr(C, align(128))]
pub struct Link {
    /// A [`link_state`].
    pub state: AtomicU32,
    /// 1: the peer's process is gone.
    pub peer_gone: AtomicU32,
    /// 1: inherited over a fork; its registration is the parent's.
    pub inherited: AtomicU32,
    /// 1: descriptors of it were lost, or its broker; it takes no connections any more.
    pub useless: AtomicU32,
    /// 1: the peer is a process of another guest.
    pub guest: AtomicU32,
    /// Connections that use it.
    pub users: AtomicU32,
    /// The peer's `kernel_acts` when they were looked at last.
    acts_seen: AtomicU32,
    /// `Links::acts_seen` when they were seen to have moved last.
    acted_at: AtomicU32,
    /// Held by the thread that sweeps the peer's marks.
    pub sweeping: Lock<{ rank::SWEEP }>,
    /// Our region's descriptor (hidden), for a restarted broker.
    pub own_fd: AtomicI32,
    /// The broker's number of it.
    pub id: AtomicU64,
    /// Its name across brokers: two words.
    pub key: [AtomicU64; 2],
    /// Our region.
    pub own_base: AtomicPtr<u8>,
    /// The peer's region.
    pub peer_base: AtomicPtr<u8>,
    /// The peer's wait page.
    pub peer_page: AtomicPtr<WaitPage>,
    /// Where such a page was mapped last that lies in no region.
    page_place: AtomicPtr<u8>,
    /// The peer's doorbells (0: unknown, else descriptor plus one).
    pub doors: [AtomicI32; DOOR_COUNT],
    /// The event channel of each that has one. Set before the doorbell is.
    pub ports: [AtomicU32; DOOR_COUNT],
    /// Threads that knock at one of them, or open a view again, by a number that is not closed before they have.
    knockers: AtomicU32,
    /// What shows the peer's rings at our doors (0: not there, else descriptor plus one):
    /// the newest, and the one before, by which a peer knocks that has not heard of it yet.
    pub views: [[AtomicI32; DOOR_COUNT]; 2],
    /// `sleep_count` at which each door was knocked at last.
    pub knocked: [AtomicU32; DOOR_COUNT],
    /// Knocks that are held back.
    pub late: Held,
    /// What waits for this peer have shown.
    pub spins: Spins,
}

/// Of the process: what it shares with other processes.
pub struct Links {
    links: AtomicPtr<Link>,
    link_high: AtomicU32,
    /// How often some peer was seen to have acted on the kernel's sockets.
    acts_seen: AtomicU32,
    /// Links of this process to other guests, and those of which the broker has still to hear that they are over.
    pub guests: AtomicU32,
    /// Numbers of the latter; 0: none.
    pub owed: [AtomicU64; OWED_MAX],
    /// What forks have waited for peers in other guests that did not answer.
    pub waited_in_vain_ns: AtomicU64,
}

impl Links {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            links: AtomicPtr::new(core::ptr::null_mut()),
            link_high: AtomicU32::new(0),
            acts_seen: AtomicU32::new(0),
            guests: AtomicU32::new(0),
            owed: [const { AtomicU64::new(0) }; OWED_MAX],
            waited_in_vain_ns: AtomicU64::new(0),
        }
    }
}

/// To be noted before the kernel is asked: what was seen up to here, the answer holds.
pub fn acts_seen() -> u32 {
    PROCESS.links.acts_seen.load(Ordering::SeqCst)
}

/// Maps the table.
pub fn set_up() -> sys::Result<()> {
    PROCESS.links.links.store(
        sys::map_anonymous(LINK_COUNT * size_of::<Link>(), false)?.cast(),
        Ordering::Release,
    );
    Ok(())
}

/// Link number `index`.
pub fn at(index: u32) -> &'static Link {
    // SAFETY: the table has LINK_COUNT zeroed entries of atomics and is never unmapped.
    unsafe {
        &*PROCESS
            .links
            .links
            .load(Ordering::Relaxed)
            .add(index as usize % LINK_COUNT)
    }
}

/// All links in use, with their indices.
pub fn all() -> impl Iterator<Item = (u32, &'static Link)> {
    (0..PROCESS.links.link_high.load(Ordering::Acquire))
        .map(|index| (index, at(index)))
        .filter(|(_, link)| link.state.load(Ordering::Acquire) != link_state::FREE)
}

/// All places that were ever in use, and the next one, which another thread may be about to use.
pub fn places() -> impl Iterator<Item = &'static Link> {
    let high = PROCESS.links.link_high.load(Ordering::Acquire);
    (0..(high + 1).min(LINK_COUNT as u32)).map(at)
}

/// Those that are this process's own, not inherited.
pub fn own() -> impl Iterator<Item = &'static Link> {
    all()
        .map(|(_, link)| link)
        .filter(|link| link.inherited.load(Ordering::Relaxed) == 0)
}

/// Whether this process has links to other guests: one load where there are none.
#[inline(always)]
pub fn has_guests() -> bool {
    PROCESS.links.guests.load(Ordering::Relaxed) != 0
}

/// Whether link number `index` is one of those.
#[inline(always)]
pub fn is_guests(index: u32) -> bool {
    has_guests() && at(index).is_guest()
}

/// The peer's CPU by its word; unknown of another guest's, whose CPUs are not ours.
#[inline(always)]
pub fn cpu_by(index: u32, word: &AtomicU32) -> u32 {
    match is_guests(index) {
        true => u32::MAX,
        false => word.load(Ordering::Relaxed),
    }
}

/// In a forked child: all links are the parent's. Connections that were inherited still
/// use their memory until they are on the kernel path.
pub fn after_fork() {
    // Also of links that are over: who has come too late rings none, and is counted.
    for index in 0..PROCESS.links.link_high.load(Ordering::Acquire) {
        at(index).knockers.store(0, Ordering::Relaxed);
    }
    for (_, link) in all() {
        link.inherited.store(1, Ordering::Relaxed);
        link.sweeping.reset();
        link.close_views();
        if link.is_guest() {
            // A channel of events is open for as long as somebody has it.
            link.close_doors();
        }
    }
    PROCESS.links.guests.store(0, Ordering::Relaxed);
}

/// The link with the broker's number `id`.
pub fn by_id(id: u64) -> Option<(u32, &'static Link)> {
    all().find(|(_, link)| link.id.load(Ordering::Relaxed) == id)
}

/// Makes and seals a memfd that only this mapping can write; returns descriptor and mapping.
pub fn make_memory(
    name: &core::ffi::CStr,
    bytes: usize,
    place: *mut u8,
) -> sys::Result<(i32, *mut u8)> {
    if !sys::may_have_file(bytes) {
        return Err(libc::EFBIG);
    }
    let fd = sys!(
        SYS_memfd_create,
        name.as_ptr(),
        libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING
    )? as i32;
    let made = (|| {
        sys!(SYS_ftruncate, fd, bytes)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let base = sys::map(fd, bytes, protection, libc::MAP_SHARED, place)?;
        let seals =
            libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
        sys!(SYS_fcntl, fd, libc::F_ADD_SEALS, seals)?;
        Ok(base)
    })();
    match made {
        Ok(base) => Ok((hidden::hide(fd)?, base)),
        Err(error) => {
            let _ = sys!(SYS_close, fd);
            Err(error)
        }
    }
}

/// Lays empty memory over the range at `place`, or anywhere if that is null.
pub fn cover(place: *mut u8, bytes: usize, protection: i32) -> sys::Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    sys::map(-1, bytes, protection, flags, place)
}

/// Puts empty memory in the place of a region: a thread of the program may still be
/// about to look at it, and the next link of this slot is laid over it.
pub fn blank(base: *mut u8, bytes: usize) {
    if !base.is_null() {
        let _ = cover(base, bytes, libc::PROT_READ | libc::PROT_WRITE);
    }
}

/// A place for one more link, if there is address space for its regions.
pub fn free_place() -> sys::Result<u32> {
    let index = (0..LINK_COUNT as u32)
        .find(|index| at(*index).state.load(Ordering::Relaxed) == link_state::FREE)
        .ok_or(libc::ENOBUFS)?;
    // What is mapped stays so: links that are free again have their range.
    let links = PROCESS
        .links
        .link_high
        .load(Ordering::Acquire)
        .max(index + 1) as u64;
    let place = at(index).own_base.load(Ordering::Relaxed);
    if place.is_null() && !sys::may_have_space(links * 2 * REGION_BYTES as u64) {
        return Err(libc::ENOMEM);
    }
    Ok(index)
}

/// Makes an empty region of ours known as one.
///
/// # Safety
/// A zeroed, writable mapping of a region's header.
pub unsafe fn begin_region<'a>(base: *mut u8) -> &'a RegionHeader {
    // SAFETY: by contract.
    let header = unsafe { &*base.cast::<RegionHeader>() };
    header.magic.store(REGION_MAGIC, Ordering::Relaxed);
    header
        .abi_version
        .store(fordway_abi::ABI_VERSION, Ordering::Relaxed);
    header
}

/// A new link with a region of its own; returns its region's descriptor.
pub fn make(id: u64, key: [u8; 16]) -> sys::Result<i32> {
    let index = free_place()?;
    let link = at(index);
    let place = link.own_base.load(Ordering::Relaxed);
    let (fd, base) = make_memory(c"fordway-region", REGION_BYTES, place)?;
    // SAFETY: just mapped.
    unsafe { begin_region(base) };
    for (word, bytes) in link.key.iter().zip(key.chunks_exact(8)) {
        word.store(
            u64::from_ne_bytes(bytes.try_into().unwrap_or([0; 8])),
            Ordering::Relaxed,
        );
    }
    link.own_fd.store(fd, Ordering::Relaxed);
    link.own_base.store(base, Ordering::Relaxed);
    link.guest.store(0, Ordering::Relaxed);
    begin(index, id, link_state::MADE);
    Ok(fd)
}

/// The link in this place is in use from here on. Its own memory is there.
pub fn begin(index: u32, id: u64, state: u32) {
    let link = at(index);
    for (door, knocked) in link.doors.iter().zip(&link.knocked) {
        door.store(0, Ordering::Relaxed);
        knocked.store(0, Ordering::Relaxed);
    }
    link.id.store(id, Ordering::Relaxed);
    link.users.store(0, Ordering::Relaxed);
    link.spins.forget();
    link.acts_seen.store(0, Ordering::Relaxed);
    link.peer_gone.store(0, Ordering::Relaxed);
    link.useless.store(0, Ordering::Relaxed);
    link.inherited.store(0, Ordering::Relaxed);
    link.state.store(state, Ordering::Release);
    PROCESS
        .links
        .link_high
        .fetch_max(index + 1, Ordering::AcqRel);
}

impl Link {
    /// Whether the peer is a process of another guest.
    #[inline(always)]
    pub fn is_guest(&self) -> bool {
        self.guest.load(Ordering::Relaxed) != 0
    }

    /// Whether a later broker can be shown it.
    pub fn can_rejoin(&self) -> bool {
        !self.is_guest()
    }

    /// The peer's side has come.
    pub fn join(&self, region: i32, page: i32) -> sys::Result<()> {
        let place = self.peer_base.load(Ordering::Relaxed);
        let base = sys::map_sealed(region, REGION_BYTES, libc::PROT_READ, place);
        let place = self.page_place.load(Ordering::Relaxed);
        let page = sys::map_sealed(page, WAIT_PAGE_BYTES, libc::PROT_READ, place);
        let (base, page) = (base?, page?.cast::<WaitPage>());
        // SAFETY: both were just mapped, whole; read through atomics only.
        let (region_magic, page_magic) = unsafe {
            let header = &*base.cast::<RegionHeader>();
            (
                header.magic.load(Ordering::Relaxed),
                (*page).magic.load(Ordering::Relaxed),
            )
        };
        if region_magic != REGION_MAGIC || page_magic != WAIT_PAGE_MAGIC {
            return Err(libc::EPROTO);
        }
        self.peer_base.store(base, Ordering::Relaxed);
        self.peer_page.store(page, Ordering::Relaxed);
        self.page_place.store(page.cast(), Ordering::Relaxed);
        self.state.store(link_state::LIVE, Ordering::Release);
        Ok(())
    }

    /// Moves its connections to the kernel path, and takes no others.
    pub fn give_up(&self, index: u32, reason: Reason) {
        self.useless.store(1, Ordering::Release);
        for conn in users(index) {
            down::ask(conn, reason as u32);
        }
    }

    /// A doorbell of the peer has come, with the port of its event channel if it is one. False: it cannot be
    /// kept, and the link must be given up.
    pub fn add_door(&self, door: u64, fd: i32, port: u32) -> bool {
        let (Some(word), Ok(fd)) = (self.doors.get(door as usize), self.keep(door, fd)) else {
            return false;
        };
        // Whoever finds the descriptor finds its port. One that still has the former descriptor rings none.
        self.ports[door as usize].store(port, Ordering::SeqCst);
        let former = word.swap(fd + 1, Ordering::SeqCst);
        // A ring may have gone astray before the door was here (the peer has found a new
        // broker before we did), or by the one before, at which the peer does not look any more.
        knock_by(fd, port);
        self.close_door(former);
        true
    }

    /// What shows the peer's knocks at door `door` of ours has come. False: as `add_door`.
    pub fn add_view(&self, door: u64, fd: i32) -> bool {
        let (Some(newest), Ok(fd)) = (self.views[0].get(door as usize), self.keep(door, fd)) else {
            return false;
        };
        let before = &self.views[1][door as usize];
        let former = newest.swap(fd + 1, Ordering::SeqCst);
        self.close_door(before.swap(former, Ordering::SeqCst));
        wait::watch_view(door as usize, fd).is_ok()
    }

    /// Hides a descriptor of door `door`, of ours or of the peer's, unless the link has more than
    /// its share: a peer says how many doors it has.
    fn keep(&self, door: u64, fd: i32) -> sys::Result<i32> {
        let doors = self.doors.iter().chain(self.views.iter().flatten());
        let held = doors.filter(|door| door.load(Ordering::Relaxed) != 0);
        let is_fair = door == DOOR_SHARED as u64 || hidden::is_fair(held.count() as u32);
        let kept = hidden::hide(fd);
        match kept {
            Ok(fd) if !is_fair => {
                hidden::close(fd);
                Err(libc::EMFILE)
            }
            kept => kept,
        }
    }

    fn close_doors(&self) {
        for door in &self.doors {
            self.close_door(door.swap(0, Ordering::SeqCst));
        }
    }

    fn close_views(&self) {
        for view in self.views.iter().flatten() {
            self.close_door(view.swap(0, Ordering::SeqCst));
        }
    }

    /// Whether the peer's process is gone.
    pub fn is_peer_gone(&self) -> bool {
        self.peer_gone.load(Ordering::Acquire) != 0
    }

    /// Whether the doors are there that every waiter can fall back to.
    pub fn has_shared_bells(&self) -> bool {
        [&self.doors, &self.views[0]]
            .iter()
            .all(|list| list[DOOR_SHARED].load(Ordering::Acquire) != 0)
    }

    /// The marks of both sides. Only when LIVE.
    fn marks(&self) -> Marks {
        // SAFETY: both regions are mapped while the link is LIVE; the offset is inside.
        unsafe {
            Marks::new(
                self.own_base
                    .load(Ordering::Relaxed)
                    .add(MARKS_OFFSET)
                    .cast(),
                self.peer_base
                    .load(Ordering::Relaxed)
                    .add(MARKS_OFFSET)
                    .cast(),
            )
        }
    }

    /// Calls `act` with each connection that the peer has marked. Unless `surely`, leaves
    /// it to another thread that is at it; the last look before a sleep must be sure.
    pub fn sweep(&self, surely: bool, mut act: impl FnMut(&'static Conn)) {
        // What an inherited one has marked is the parent's to see.
        let is_inherited = self.inherited.load(Ordering::Relaxed) != 0;
        if self.state.load(Ordering::Acquire) != link_state::LIVE || is_inherited {
            return;
        }
        let lock = &self.sweeping;
        let Some(_guard) = (if surely { lock.lock() } else { lock.try_lock() }) else {
            return;
        };
        let base = self.own_base.load(Ordering::Relaxed);
        self.marks().sweep(|slot| {
            // SAFETY: our own region; an atomic load.
            let owner = unsafe { (*endpoint(base, slot)).rx_own.owner.load(Ordering::Relaxed) };
            if let Some(index) = owner.checked_sub(1) {
                act(state::conn_at(index));
            }
        });
    }

    /// Knocks at those of `doors` behind which somebody sleeps, and at which it has not knocked yet.
    pub fn knock(&self, doors: u64) {
        // A handler may not come between the note that a door was knocked at and the knock, and stay away, or wait for the answer.
        let _shield = Shield::new();
        let page = self.peer_page.load(Ordering::Relaxed);
        // SAFETY: mapped since `join`.
        let mut left = unsafe {
            fordway_ring::doors_to_knock_at(page, doors, |door, count| {
                self.knocked[door].swap(count, Ordering::Relaxed) != count
            })
        };
        let mut mail_is_read = false;
        let mut astray = false;
        while left != 0 {
            let door = left.trailing_zeros() as usize;
            left &= left - 1;
            // A bell that the peer sleeps on was sent to us before it could be used: if it
            // is not here yet, it lies in the mail. A hostile peer names bells that do
            // not exist, so the mail is read once.
            let mut knocked = self.knock_at_door(door);
            if !knocked && !mail_is_read {
                broker::drain_mail_surely();
                mail_is_read = true;
                knocked = self.knock_at_door(door);
            }
            if !knocked {
                // Nobody will repeat a ring that went astray: the next send tries again.
                self.knocked[door].store(0, Ordering::Relaxed);
                astray = true;
            }
            thread::current().knocked.store(1, Ordering::Relaxed);
        }
        if astray {
            self.knock_at_door(DOOR_SHARED);
        }
    }

    /// Knocks at a door, if there is one.
    fn knock_at_door(&self, door: usize) -> bool {
        self.by_numbers(|| {
            let known = self.doors[door].load(Ordering::SeqCst);
            if known != 0 {
                knock_by(known - 1, self.ports[door].load(Ordering::SeqCst));
            }
            known != 0
        })
    }

    /// Runs `body`, in which no door and no view is closed whose number it finds.
    pub fn by_numbers<R>(&self, body: impl FnOnce() -> R) -> R {
        // No handler may come in between, and close a door: it would wait for this.
        let _shield = Shield::new();
        // SYNC POINT with `close_door`: counted before the number is looked at.
        self.knockers.fetch_add(1, Ordering::SeqCst);
        let result = body();
        self.knockers.fetch_sub(1, Ordering::Release);
        result
    }

    /// Closes what a door was, or a view, once nobody can be about to use it: the number is another file's
    /// then, perhaps a socket's of the program ([`crate::stay`]).
    fn close_door(&self, former: i32) {
        if former == 0 {
            return;
        }
        // They read and write a few bytes, without sleeping.
        while self.knockers.load(Ordering::SeqCst) != 0 {
            let _ = sys!(SYS_sched_yield);
        }
        hidden::close(former - 1);
    }

    /// Whether the peer has done something by the kernel, before it published what a ring has shown
    /// just now, that the kernel was not asked about since [`acts_seen`] was `asked`.
    #[inline(always)]
    pub fn has_acted_since(&self, asked: u32) -> bool {
        // SAFETY: mapped while a connection of the link has its channel; an atomic load.
        // SYNC POINT with `wait::acted`: the tail was loaded before, by `Acquire`.
        let acts = unsafe {
            let page = self.peer_page.load(Ordering::Relaxed);
            (*page).kernel_acts.load(Ordering::Relaxed)
        };
        if acts != self.acts_seen.load(Ordering::Relaxed) {
            self.note_acts(acts);
        }
        self.acted_at.load(Ordering::Relaxed).wrapping_sub(asked) as i32 > 0
    }

    #[cold]
    fn note_acts(&self, acts: u32) {
        let before = PROCESS.links.acts_seen.fetch_add(1, Ordering::SeqCst);
        self.acted_at
            .store(before.wrapping_add(1), Ordering::SeqCst);
        self.acts_seen.store(acts, Ordering::SeqCst);
    }

    /// Gives the link back once the peer's process is gone and nothing uses it. While no other
    /// thread acts on mail ([`broker::hold_mail`]).
    pub fn drop_if_over(&self) {
        if self.peer_gone.load(Ordering::Relaxed) == 0 || self.users.load(Ordering::Relaxed) != 0 {
            return;
        }
        if self.state.swap(link_state::FREE, Ordering::AcqRel) == link_state::FREE {
            return;
        }
        let own = self.own_base.load(Ordering::Relaxed);
        if self.inherited.load(Ordering::Relaxed) == 0 {
            // SAFETY: mapped since `make`.
            let header = unsafe { &*own.cast::<RegionHeader>() };
            headroom::give_back(header.arena_next.load(Ordering::Relaxed));
            if self.is_guest() {
                PROCESS.links.guests.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let is_ours_to_tell = self.is_guest() && self.inherited.load(Ordering::Relaxed) == 0;
        self.guest.store(0, Ordering::Relaxed);
        blank(own, REGION_BYTES);
        blank(self.peer_base.load(Ordering::Relaxed), REGION_BYTES);
        if is_ours_to_tell {
            guest::let_go(self.id.load(Ordering::Relaxed));
        }
        blank(self.page_place.load(Ordering::Relaxed), WAIT_PAGE_BYTES);
        hidden::close(self.own_fd.load(Ordering::Relaxed));
        self.close_doors();
        self.close_views();
    }
}

/// Knocks at a bell that the broker gave to us alone: this never blocks.
fn knock_by(fd: i32, port: u32) {
    match port {
        0 => {
            let one = 1u64;
            let _ = sys!(SYS_write, fd, &raw const one, 8);
        }
        port => guest::notify(fd, port),
    }
}

/// Endpoint `slot` of a region, by its bounds.
fn endpoint(base: *mut u8, slot: u32) -> *mut Endpoint {
    let offset = ENDPOINTS_OFFSET + (slot as usize % SLOT_COUNT) * ENDPOINT_BYTES;
    // SAFETY: inside the region by the two constants.
    unsafe { base.add(offset).cast() }
}

/// Where the ends of a channel lie.
pub struct Ends {
    /// Our endpoint.
    pub own: *mut Endpoint,
    /// Our region.
    pub own_base: *mut u8,
    /// The peer's endpoint.
    pub peer: *mut Endpoint,
    /// The peer's region.
    pub peer_base: *mut u8,
    /// The peer's wait page.
    pub peer_page: *mut WaitPage,
}

/// Cuts a channel from a LIVE link: our endpoint is as new, for `owner` ([`state::index_of`] plus one; 0: no
/// connection). To be given back by [`unbind`].
pub fn cut(index: u32, slot: u32, generation: u32, owner: u32) -> Ends {
    headroom::look();
    let link = at(index);
    let own_base = link.own_base.load(Ordering::Relaxed);
    let peer_base = link.peer_base.load(Ordering::Relaxed);
    let own = endpoint(own_base, slot);
    let peer = endpoint(peer_base, slot);
    // SAFETY: our own region; the broker hands a slot out again only when both sides are done with it.
    let producer = unsafe { Producer::new(own, own_base, peer) };
    producer.release_memory();
    // SAFETY: our own region; atomics.
    let halves = unsafe { (&(*own).tx_own, &(*own).rx_own) };
    // A child may still look at the channel before, of which its parent has let go.
    let _sending = lock_shared(&halves.0.lock, &halves.0.lock_process, rank::SENDING);
    let _receiving = lock_shared(&halves.1.lock, &halves.1.lock_process, rank::RECEIVING);
    // SAFETY: as above; the peer reads nothing of it until it sees the generation.
    unsafe {
        fordway_ring::renew(own);
        (*own).tx_own.calls.store(0, Ordering::Relaxed);
        (*own).tx_own.lost.store(0, Ordering::Relaxed);
        (*own).rx_own.owner.store(owner, Ordering::Relaxed);
        (*own).cold.generation.store(generation, Ordering::Release);
    }
    link.users.fetch_add(1, Ordering::Relaxed);
    Ends {
        own,
        own_base,
        peer,
        peer_base,
        peer_page: link.peer_page.load(Ordering::Relaxed),
    }
}

/// Points a connection at its channel.
pub fn bind(conn: &Conn, index: u32, slot: u32, generation: u32, channel_id: u64) {
    let ends = cut(index, slot, generation, state::index_of(conn) + 1);
    conn.own.store(ends.own, Ordering::Relaxed);
    conn.own_base.store(ends.own_base, Ordering::Relaxed);
    conn.peer.store(ends.peer, Ordering::Relaxed);
    conn.peer_base.store(ends.peer_base, Ordering::Relaxed);
    conn.peer_page.store(ends.peer_page, Ordering::Relaxed);
    conn.link.store(index, Ordering::Relaxed);
    conn.slot.store(slot, Ordering::Relaxed);
    conn.generation.store(generation, Ordering::Relaxed);
    conn.far.store(0, Ordering::Relaxed);
    conn.pace.store(0, Ordering::Relaxed);
    conn.channel_id.store(channel_id, Ordering::Relaxed);
    conn.off_rings.store(0, Ordering::Relaxed);
    conn.attention.store(0, Ordering::Relaxed);
    conn.bound.fetch_add(1, Ordering::Release);
}

/// Whether our endpoint is still that of the connection's channel, and this process has the peer's.
pub fn is_bound(conn: &Conn) -> bool {
    let generation = &conn.own().cold.generation;
    generation.load(Ordering::Acquire) == conn.generation.load(Ordering::Relaxed)
        && !guest::is_cut_off(conn)
}

/// Runs `body` while door `door` shows no peer's knocks. Links whose knocks cannot be shown afterwards
/// are given up. Knocks of meanwhile show when it is watched again.
#[cold]
pub fn without_views<R>(door: usize, body: impl FnOnce() -> R) -> R {
    // A view that goes meanwhile would be watched by its number, another file's.
    let mail = broker::hold_mail();
    let views = |link: &'static Link| link.views.iter().map(move |list| &list[door]);
    for (_, link) in all() {
        for view in views(link) {
            wait::unwatch_view(door, view.load(Ordering::Relaxed) - 1);
        }
    }
    let result = body();
    let mut given_up = false;
    for (index, link) in all() {
        for view in views(link) {
            let view = view.load(Ordering::Relaxed) - 1;
            if view >= 0 && wait::watch_view(door, view).is_err() {
                link.give_up(index, Reason::NoMemory);
                given_up = true;
            }
        }
    }
    drop(mail);
    if given_up {
        crate::upgrade::attend_all();
    }
    result
}

/// A connection lets go of its channel, which was one of link `index`. The caller holds no lock of
/// a list, of an instance or of a half: mail is acted on under the one taken here, and takes those.
pub fn unbind(index: u32) {
    let link = at(index);
    link.users.fetch_sub(1, Ordering::Relaxed);
    // Who reads the mail may be about to send the region to a new broker, by its number.
    let _mail = broker::hold_mail();
    link.drop_if_over();
}

/// The connections of a link.
pub fn users(index: u32) -> impl Iterator<Item = &'static Conn> {
    state::conns()
        .filter(move |conn| conn.is_paired() && conn.link.load(Ordering::Relaxed) == index)
}

/// A producer whose ring memory is the domain's and the process's to pay for.
#[inline(always)]
pub fn paid(producer: Producer) -> Producer {
    // SAFETY: both purses are mapped for good.
    unsafe { producer.paid_from(|| [purse::get(), headroom::purse()]) }
}

impl Conn {
    /// The sending half of its channel. Only when PAIRED.
    #[inline]
    pub fn producer(&self) -> Producer {
        // SAFETY: `bind` pointed these into mapped regions.
        unsafe {
            paid(Producer::new(
                self.own.load(Ordering::Relaxed),
                self.own_base.load(Ordering::Relaxed),
                self.peer.load(Ordering::Relaxed),
            ))
        }
    }

    /// The receiving half of its channel. Only when PAIRED.
    #[inline]
    pub fn consumer(&self) -> Consumer {
        // SAFETY: as `producer`.
        unsafe {
            Consumer::new(
                self.own.load(Ordering::Relaxed),
                self.peer.load(Ordering::Relaxed),
                self.peer_base.load(Ordering::Relaxed),
            )
        }
    }

    /// Whether a forked child finds the channel of another connection where its own was: the
    /// parent has given that one up. Under a lock of the endpoint this stays so, or not.
    #[inline]
    pub fn has_lost_its_place(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & attention::INHERITED != 0 && !is_bound(self)
    }

    /// Whether the peer has made its endpoint for this channel; before that, the
    /// endpoint there belongs to nobody or to an older channel.
    #[inline]
    pub fn peer_is_there(&self) -> bool {
        let bound = self.bound.load(Ordering::Acquire);
        if self.peer_there.load(Ordering::Relaxed) == bound {
            return true;
        }
        // SAFETY: mapped by `bind`; an atomic load.
        let shown = unsafe {
            (*self.peer.load(Ordering::Relaxed))
                .cold
                .generation
                .load(Ordering::Acquire)
        };
        let there = shown == self.generation.load(Ordering::Relaxed);
        if there {
            self.peer_there.store(bound, Ordering::Relaxed);
        }
        there
    }

    /// As [`Link::has_acted_since`], of a connection that may have no channel.
    #[inline]
    pub fn has_acted_since(&self, asked: u32) -> bool {
        self.is_paired() && at(self.link.load(Ordering::Relaxed)).has_acted_since(asked)
    }

    /// CPU on which the peer was last seen.
    #[inline(always)]
    pub fn peer_cpu(&self) -> u32 {
        // SAFETY: mapped by `bind`; an atomic load.
        let word = unsafe { &(*self.peer.load(Ordering::Relaxed)).wait.cpu };
        cpu_by(self.link.load(Ordering::Relaxed), word)
    }

    /// Whether the peer looks at the ring, or has a waiter that is to be told of bytes there.
    pub fn is_attended(&self) -> bool {
        // SAFETY: as in `peer_cpu`.
        let wait = unsafe { &(*self.peer.load(Ordering::Relaxed)).wait };
        self.peer_is_there()
            && (wait.rx_state.load(Ordering::Relaxed) != rx_state::OFF
                || wait.rx_doors.load(Ordering::Relaxed) != 0)
    }

    /// Knocks at those of the peer's doors that sleep. The caller has published and fenced.
    #[inline(always)]
    pub fn knock(&self, doors: u64) {
        if doors != 0 && self.peer_sleeps(doors) {
            at(self.link.load(Ordering::Relaxed)).knock(doors);
        }
    }

    /// Whether a waiter of the peer sleeps behind one of `doors`.
    #[inline(always)]
    pub fn peer_sleeps(&self, doors: u64) -> bool {
        let page = self.peer_page.load(Ordering::Relaxed);
        // SYNC POINT with `Sleeper::announce`, as in `doors_to_knock_at`.
        // SAFETY: mapped as long as the connection has its channel; an atomic load.
        let sleeping = unsafe { (*page).sleeping.load(Ordering::SeqCst) };
        sleeping & doors != 0
    }

    /// Marks the channel for a peer that does not look at it by itself.
    #[inline(always)]
    pub fn mark(&self) {
        // SAFETY: mapped by `bind`; an atomic load.
        let wait = unsafe { &(*self.peer.load(Ordering::Relaxed)).wait };
        if wait.wants_mark.load(Ordering::Relaxed) != 0 {
            self.mark_it();
        }
    }

    #[inline(never)]
    fn mark_it(&self) {
        let link = at(self.link.load(Ordering::Relaxed));
        link.marks().mark(self.slot.load(Ordering::Relaxed));
    }

    /// Wakes every waiter of the peer that has to do with this connection.
    pub fn knock_all(&self) {
        self.mark();
        // SAFETY: mapped by `bind`; atomic loads.
        let doors = unsafe {
            let wait = &(*self.peer.load(Ordering::Relaxed)).wait;
            wait.rx_doors.load(Ordering::Relaxed) | wait.tx_doors.load(Ordering::Relaxed)
        };
        self.knock(doors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{free, pair, tables};
    use fordway_sockets::{End, Half, NoLock};

    #[test]
    fn no_region_goes_while_mail_is_acted_on() {
        let _turn = tables();
        let fd = make(7, [7; 16]).expect("a link");
        let is_region = || sys!(SYS_fcntl, fd, libc::F_GET_SEALS).is_ok();
        let (index, link) = by_id(7).expect("the link");
        link.users.store(1, Ordering::Relaxed);
        link.peer_gone.store(1, Ordering::Relaxed);
        let mail = broker::hold_mail();
        let other = std::thread::spawn(move || unbind(index));
        while link.users.load(Ordering::Relaxed) != 0 {
            std::thread::yield_now();
        }
        // Now the thread waits. One that does not would be done soon.
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        assert!(is_region(), "a broker could be sent another file");
        drop(mail);
        other.join().expect("the thread's end");
        assert!(by_id(7).is_none() && !is_region());
    }

    #[test]
    fn a_child_locks_no_half_of_another_connections_channel() {
        let _turn = tables();
        make(8, [8; 16]).expect("a link");
        let (index, link) = by_id(8).expect("the link");
        link.users.store(2, Ordering::Relaxed);
        let conn = state::add_conn(state::FD_COUNT as i32 - 5, false).expect("a place");
        let own = endpoint(link.own_base.load(Ordering::Relaxed), 0);
        conn.own.store(own, Ordering::Relaxed);
        conn.link.store(index, Ordering::Relaxed);
        conn.generation.store(1, Ordering::Relaxed);
        conn.attention
            .store(attention::INHERITED, Ordering::Relaxed);
        conn.own().cold.generation.store(1, Ordering::Relaxed);
        pair(conn);
        assert!(conn.end().lock(Half::Sending).is_ok());
        // The parent has bound another connection.
        conn.own().cold.generation.store(2, Ordering::Relaxed);
        for half in [Half::Sending, Half::Receiving] {
            assert!(matches!(conn.end().lock(half), Err(NoLock::NoChannel)));
        }
        assert!(fordway_sockets::down::attend(&conn.end()).is_ok() && !conn.is_paired());
        assert_eq!(link.users.load(Ordering::Relaxed), 1, "let go of once");
        free(conn);
        link.peer_gone.store(1, Ordering::Relaxed);
        unbind(index);
        assert!(by_id(8).is_none());
    }

    #[test]
    fn of_several_who_disown_a_channel_one_lets_go() {
        let _turn = tables();
        make(10, [10; 16]).expect("a link");
        let (index, link) = by_id(10).expect("the link");
        link.users.store(3, Ordering::Relaxed);
        let conn = state::add_conn(state::FD_COUNT as i32 - 6, false).expect("a place");
        conn.link.store(index, Ordering::Relaxed);
        pair(conn);
        // Both have found out whose channel it is.
        let (one, other) = (conn.end(), conn.end());
        one.disown();
        other.disown();
        assert_eq!(link.users.load(Ordering::Relaxed), 2, "let go of once");
        assert!(!conn.is_paired());
        free(conn);
        link.users.store(1, Ordering::Relaxed);
        link.peer_gone.store(1, Ordering::Relaxed);
        unbind(index);
        assert!(by_id(10).is_none());
    }

    #[test]
    fn no_door_goes_while_somebody_rings_by_its_number() {
        let _turn = tables();
        make(9, [9; 16]).expect("a link");
        let (index, link) = by_id(9).expect("the link");
        let flags = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;
        let bell = sys!(SYS_eventfd2, 0, flags).expect("a bell") as i32;
        assert!(link.add_door(DOOR_SHARED as u64, bell, 0));
        let fd = link.doors[DOOR_SHARED].load(Ordering::Relaxed) - 1;
        let is_open = || sys!(SYS_fcntl, fd, libc::F_GETFD).is_ok();
        assert!(link.knock_at_door(DOOR_SHARED) && is_open());
        link.users.store(1, Ordering::Relaxed);
        link.peer_gone.store(1, Ordering::Relaxed);
        link.knockers.store(1, Ordering::Relaxed);
        let other = std::thread::spawn(move || unbind(index));
        while link.doors[DOOR_SHARED].load(Ordering::Relaxed) != 0 {
            std::thread::yield_now();
        }
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        assert!(is_open(), "a knock would go into another file");
        link.knockers.store(0, Ordering::Relaxed);
        other.join().expect("the thread's end");
        assert!(!is_open() && !link.knock_at_door(DOOR_SHARED));
    }
}
