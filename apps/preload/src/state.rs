//! What the shim knows of the process: which descriptor is what, and one
//! [`Conn`] for each stream socket. Everything lies in memory that the shim
//! mapped for itself; nothing is allocated from the program's heap.
//!
//! # Descriptors
//! `FDS[fd]` says what a descriptor is: unknown, nothing of ours, hidden, an
//! epoll instance, or a connection (its index). Descriptors made by dup share a
//! connection. Only descriptors up to [`FD_COUNT`] are watched; others are the
//! kernel's alone.
//!
//! # States of a connection
//! ```text
//!   FREE ─► KERNEL ─offer─► OFFERED ─Pair─► PAIRED ─both directions back─► KERNEL
//!              ▲───Reject────┘                                      (or closed: FREE)
//! ```
//! KERNEL and OFFERED: every call goes to libc, counted. PAIRED: every call looks
//! at the endpoint first. A thread that sleeps in the kernel without looking at
//! rings is counted in `unaware`; the channel is not used before it came back.

use crate::sys::{self, map_anonymous};
use crate::thread;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use fordway_abi::shm::{Endpoint, WaitPage};
use fordway_sockets::State;
pub use fordway_sockets::{attention, hint};

/// Descriptors that are watched.
pub const FD_COUNT: usize = 1 << 20;
/// Connections of one process.
pub const CONN_COUNT: usize = 1 << 16;

/// What a descriptor is: kind in the top byte, index below.
pub mod kind {
    /// Never looked at.
    pub const UNKNOWN: u32 = 0;
    /// Not ours.
    pub const OTHER: u32 = 1 << 24;
    /// One of our own descriptors, which the program must not touch.
    pub const HIDDEN: u32 = 2 << 24;
    /// An epoll instance.
    pub const EPOLL: u32 = 3 << 24;
    /// A stream socket.
    pub const CONN: u32 = 4 << 24;
    /// The kind of a word.
    pub const MASK: u32 = 0xff << 24;
}

/// States of a connection.
pub mod phase {
    /// Not in use.
    pub const FREE: u32 = 0;
    /// On the kernel path.
    pub const KERNEL: u32 = 1;
    /// Offered to the broker, still on the kernel path.
    pub const OFFERED: u32 = 2;
    /// Has a channel.
    pub const PAIRED: u32 = 3;
}

/// A stream socket of this process.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Conn {
    /// A [`phase`].
    pub phase: AtomicU32,
    /// Rises when the entry is given back, and when it is used again: late mail finds nobody.
    pub serial: AtomicU32,
    /// Descriptors of this process.
    pub refs: AtomicU32,
    /// One of the descriptors.
    pub fd: AtomicI32,
    /// Threads that may sleep on it ([`crate::stay`]).
    pub sleepers: AtomicU32,
    /// Calls that moved data, up to the offer.
    pub operations: AtomicU32,
    /// What the kernel knows of TCP_CORK ([`crate::cork`]).
    pub cork: AtomicU32,
    /// The peer's index when its distance was looked at last.
    pub looked_head: AtomicU64,
    /// How many looks found the peer's CPU far away ([`crate::transfer`]).
    pub far: AtomicU32,
    /// O_NONBLOCK.
    pub nonblock: AtomicU32,
    /// The reason for the kernel path that the broker was told last, or has told, or 0.
    pub told: AtomicU32,
    /// Lock of a send in several pieces, which others do not part while there is room.
    pub turn: AtomicU32,
    /// First epoll item of it, plus one.
    pub items: AtomicU32,
    /// 1: its epoll items are attached to its channel, new ones too ([`crate::epoll::attach`]).
    pub attaches: AtomicU32,
    /// Rises each time that room, after a send found none, was told to some epoll item.
    pub rooms: AtomicU32,
    /// Cell that counts the processes which hold it since a fork; 0: only this one does.
    pub cell: AtomicU32,
    /// Link and endpoint, when PAIRED.
    pub link: AtomicU32,
    /// See `link`.
    pub slot: AtomicU32,
    /// The channel's generation.
    pub generation: AtomicU32,
    /// Channels that the entry has had, of whichever connection.
    pub bound: AtomicU32,
    /// `bound` of the last one whose generation the peer's endpoint showed. A thread that looked at
    /// a former one may store it late.
    pub peer_there: AtomicU32,
    /// The channel's number.
    pub channel_id: AtomicU64,
    /// SO_RCVTIMEO in nanoseconds; 0: none.
    pub receive_timeout_ns: AtomicU64,
    /// SO_SNDTIMEO in nanoseconds; 0: none.
    pub send_timeout_ns: AtomicU64,
    /// 1: it was looked at whether it is to be offered at once ([`crate::upgrade::sight`]).
    pub sighted: AtomicU32,
    /// Until when it waits for rings, because an end requires the fast path; 0: it does not.
    pub rings_until_ns: AtomicU64,
    /// SO_COOKIE of the socket, once it was offered.
    pub cookie: AtomicU64,
    /// Own endpoint.
    pub own: AtomicPtr<Endpoint>,
    /// Own region.
    pub own_base: AtomicPtr<u8>,
    /// Peer's endpoint (read-only).
    pub peer: AtomicPtr<Endpoint>,
    /// Peer's region (read-only).
    pub peer_base: AtomicPtr<u8>,
    /// Peer's wait page (read-only).
    pub peer_page: AtomicPtr<WaitPage>,
    /// Next free entry, plus one.
    next_free: AtomicU32,
    /// What the machine remembers of it.
    state: State,
}

/// Tries for a lock before it is asked whether its holder's process lives.
const SPINS_PATIENT: u32 = 1 << 14;

static FDS: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
static CONNS: AtomicPtr<Conn> = AtomicPtr::new(core::ptr::null_mut());
static CONN_NEXT: AtomicU32 = AtomicU32::new(0);
static CONN_FREE: AtomicU32 = AtomicU32::new(0);
static TABLE_LOCK: Lock = Lock::new();
static LOCK_SALT: AtomicU32 = AtomicU32::new(0);

/// A lock for a few instructions, in which no signal handler of the program runs. Held by
/// a thread, named by its thread pointer, so that the handler of a fault in there notices
/// and does not wait.
#[derive(Debug)]
#[repr(transparent)]
pub struct Lock(AtomicU32);

/// Frees its lock.
pub struct Guard<'a> {
    word: &'a AtomicU32,
    holder: Option<&'a AtomicU32>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(holder) = self.holder {
            holder.store(0, Ordering::Relaxed);
        }
        self.word.store(0, Ordering::Release);
        thread::leave();
    }
}

impl Lock {
    /// A free lock.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Waits for the lock; `None` if the caller itself holds it (it is in a fault's handler).
    pub fn lock(&self) -> Option<Guard<'_>> {
        lock_word(&self.0)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        thread::enter();
        let taken = self
            .0
            .compare_exchange(0, lock_id(), Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            thread::leave();
            return None;
        }
        Some(Guard {
            word: &self.0,
            holder: None,
        })
    }

    /// Takes it for a fork: what it guards is whole in the child. False: see `lock`.
    pub fn hold(&self) -> bool {
        self.lock().map(core::mem::forget).is_some()
    }

    /// Gives up what `hold` has taken, in the parent and in the child.
    pub fn let_go(&self) {
        self.0.store(0, Ordering::Release);
        thread::leave();
    }

    /// Frees it, whoever holds it: in a forked child, where the holder does not exist.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Names the calling thread in lock words.
fn lock_id() -> u32 {
    ((sys::thread_pointer() >> 6) as u32 ^ LOCK_SALT.load(Ordering::Relaxed)) | 1
}

/// Must be called in a new process: its threads are not the parent's.
pub fn set_lock_salt(pid: u32) {
    LOCK_SALT.store(pid.wrapping_mul(0x9e37_79b1), Ordering::Relaxed);
}

/// As [`Lock::lock`], for a lock word that no other process has.
#[inline]
pub fn lock_word(word: &AtomicU32) -> Option<Guard<'_>> {
    take_lock(word, |_| false)
}

/// As [`lock_word`], for the lock words of an endpoint, which relatives of a fork share: one
/// that was killed in the middle of a copy does not free its lock. `holder` is its process, 0
/// while nobody is known to hold it.
#[inline]
pub fn lock_shared<'a>(word: &'a AtomicU32, holder: &'a AtomicU32) -> Option<Guard<'a>> {
    let own = crate::fork::pid() as u32;
    let mut guard = take_lock(word, |of| {
        let process = holder.load(Ordering::Relaxed);
        process != own
            && crate::fork::is_gone(process as i32)
            // One of those who found it out frees it.
            && holder.compare_exchange(process, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            && word.compare_exchange(of, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    })?;
    holder.store(own, Ordering::Relaxed);
    guard.holder = Some(holder);
    Some(guard)
}

/// Takes a lock; `freed` is asked now and then about one that stays taken.
#[inline(always)]
fn take_lock(word: &AtomicU32, freed: impl Fn(u32) -> bool) -> Option<Guard<'_>> {
    let id = lock_id();
    let mut spins = 0u32;
    thread::enter();
    loop {
        // SYNC POINT with `Producer::withdraw`: the lock before the look at the peer's state.
        match word.compare_exchange(0, id, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return Some(Guard { word, holder: None }),
            Err(holder) if holder == id => {
                thread::leave();
                return None;
            }
            Err(holder) => {
                spins = spins.wrapping_add(1);
                if spins.is_multiple_of(SPINS_PATIENT) && freed(holder) {
                    continue;
                }
                if spins.is_multiple_of(128) {
                    let _ = sys::sys!(SYS_sched_yield);
                } else {
                    core::hint::spin_loop();
                }
            }
        }
    }
}

/// Maps the tables. Called once, before any thread but the first exists.
pub fn set_up() -> sys::Result<()> {
    CONNS.store(
        map_anonymous(CONN_COUNT * size_of::<Conn>(), false)?.cast(),
        Ordering::Relaxed,
    );
    FDS.store(
        map_anonymous(FD_COUNT * 4, false)?.cast(),
        Ordering::Release,
    );
    Ok(())
}

/// The word of a descriptor.
#[inline]
pub fn slot(fd: i32) -> Option<&'static AtomicU32> {
    let table = FDS.load(Ordering::Relaxed);
    if table.is_null() || fd as u32 as usize >= FD_COUNT {
        return None;
    }
    // SAFETY: the table has FD_COUNT entries and is never unmapped.
    Some(unsafe { &*table.add(fd as usize) })
}

/// What a descriptor is: kind and index.
#[inline]
pub fn look(fd: i32) -> u32 {
    slot(fd).map_or(kind::OTHER, |word| word.load(Ordering::Relaxed))
}

/// The connection behind a descriptor.
#[inline]
pub fn conn(fd: i32) -> Option<&'static Conn> {
    let word = look(fd);
    (word & kind::MASK == kind::CONN).then(|| conn_at(word & !kind::MASK))
}

/// Connection number `index`.
pub fn conn_at(index: u32) -> &'static Conn {
    // SAFETY: the table has CONN_COUNT entries, zeroed, and is never unmapped; all fields are atomics.
    unsafe {
        &*CONNS
            .load(Ordering::Relaxed)
            .add(index as usize % CONN_COUNT)
    }
}

/// Index of a connection.
pub fn index_of(conn: &Conn) -> u32 {
    let base = CONNS.load(Ordering::Relaxed) as usize;
    ((conn as *const Conn as usize - base) / size_of::<Conn>()) as u32
}

/// How many entries were ever in use: the bound of a walk over all.
pub fn conn_high() -> u32 {
    CONN_NEXT.load(Ordering::Acquire)
}

/// The connections in use.
pub fn conns() -> impl Iterator<Item = &'static Conn> {
    (0..conn_high())
        .map(conn_at)
        .filter(|conn| conn.phase.load(Ordering::Acquire) != phase::FREE)
}

/// The connection that has this channel, or had it last; the other one of it, if both ends are
/// ours and it is asked again (each end is told by itself). Looks on where it found the last one: of
/// thousands that are told to leave at once, the broker names them about in our order.
pub fn next_of_channel(channel_id: u64) -> Option<&'static Conn> {
    static FOUND: AtomicU32 = AtomicU32::new(0);
    let high = conn_high();
    let from = (FOUND.load(Ordering::Relaxed) + 1).min(high);
    let index = (from..high).chain(0..from).find(|index| {
        let conn = conn_at(*index);
        conn.channel_id.load(Ordering::Relaxed) == channel_id
            && conn.phase.load(Ordering::Acquire) != phase::FREE
    })?;
    FOUND.store(index, Ordering::Relaxed);
    Some(conn_at(index))
}

/// A connection is what `fordway_sockets` knows of it, and where it lies.
impl core::ops::Deref for Conn {
    type Target = State;

    #[inline(always)]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl Conn {
    /// Number under which the broker knows it.
    pub fn id(&self) -> u64 {
        u64::from(self.serial.load(Ordering::Relaxed)) << 32 | u64::from(index_of(self))
    }

    /// Whether this is the connection that the broker means.
    pub fn by_id(id: u64) -> Option<&'static Conn> {
        let conn = conn_at(id as u32);
        (conn.serial.load(Ordering::Relaxed) == (id >> 32) as u32
            && conn.phase.load(Ordering::Acquire) != phase::FREE)
            .then_some(conn)
    }

    /// Whether it has a channel.
    #[inline]
    pub fn is_paired(&self) -> bool {
        self.phase.load(Ordering::Acquire) == phase::PAIRED
    }

    /// Whether calls may not sleep.
    pub fn is_nonblocking(&self) -> bool {
        self.nonblock.load(Ordering::Relaxed) != 0
    }

    /// The endpoint of this side. Only when PAIRED.
    #[inline]
    pub fn own(&self) -> &'static Endpoint {
        // SAFETY: set before PAIRED, and regions stay mapped as long as a connection uses them.
        unsafe { &*self.own.load(Ordering::Relaxed) }
    }
}

/// A new connection for `fd`; `None` when the table is full.
pub fn add_conn(fd: i32, nonblock: bool) -> Option<&'static Conn> {
    let word = slot(fd)?;
    let guard = TABLE_LOCK.lock()?;
    let free = CONN_FREE.load(Ordering::Relaxed);
    let index = if free != 0 {
        CONN_FREE.store(
            conn_at(free - 1).next_free.load(Ordering::Relaxed),
            Ordering::Relaxed,
        );
        free - 1
    } else {
        let next = CONN_NEXT.load(Ordering::Relaxed);
        if next as usize == CONN_COUNT {
            return None;
        }
        CONN_NEXT.store(next + 1, Ordering::Release);
        next
    };
    let conn = conn_at(index);
    drop(guard);
    conn.refs.store(1, Ordering::Relaxed);
    conn.fd.store(fd, Ordering::Relaxed);
    conn.serial.fetch_add(1, Ordering::Release);
    // Not `sleepers`, `unaware` and `senders`: threads that found the entry by a number which was
    // closed meanwhile are counted there, and count themselves out.
    for zeroed in [
        &conn.operations,
        &conn.barred,
        &conn.hints,
        &conn.edges,
        &conn.rooms,
    ] {
        zeroed.store(0, Ordering::Relaxed);
    }
    for zeroed in [
        &conn.empty_reads,
        &conn.items,
        &conn.attaches,
        &conn.cell,
        &conn.attention,
        &conn.rescues,
        &conn.passing,
        &conn.low_bytes,
        &conn.turn,
        &conn.cork,
        &conn.told,
        &conn.sighted,
        &conn.error,
    ] {
        zeroed.store(0, Ordering::Relaxed);
    }
    conn.nonblock.store(u32::from(nonblock), Ordering::Relaxed);
    conn.rings_until_ns.store(0, Ordering::Relaxed);
    conn.calm.store(0, Ordering::Relaxed);
    conn.channel_id.store(0, Ordering::Relaxed);
    conn.sent_by_rings.store(0, Ordering::Relaxed);
    conn.received_by_rings.store(0, Ordering::Relaxed);
    conn.receive_timeout_ns.store(0, Ordering::Relaxed);
    conn.send_timeout_ns.store(0, Ordering::Relaxed);
    conn.phase.store(phase::KERNEL, Ordering::Release);
    word.store(kind::CONN | index, Ordering::Release);
    Some(conn)
}

/// The socket is to have another connection: late mail is for the old one. `unbar`: what
/// stood against rings does not stand any more.
pub fn renew_conn(conn: &Conn, unbar: bool) {
    conn.serial.fetch_add(1, Ordering::Relaxed);
    if unbar {
        conn.barred.store(0, Ordering::Relaxed);
    }
    for zeroed in [
        &conn.operations,
        &conn.empty_reads,
        &conn.attention,
        &conn.rescues,
        &conn.passing,
        &conn.told,
        &conn.sighted,
    ] {
        zeroed.store(0, Ordering::Relaxed);
    }
    conn.hints.fetch_and(hint::LET_GO, Ordering::Relaxed);
    conn.channel_id.store(0, Ordering::Relaxed);
    conn.rings_until_ns.store(0, Ordering::Relaxed);
}

/// Gives the entry back; its last descriptor is gone.
pub fn free_conn(conn: &Conn) {
    conn.phase.store(phase::FREE, Ordering::Release);
    // Who still has it by its serial finds nobody.
    conn.serial.fetch_add(1, Ordering::Release);
    if let Some(_guard) = TABLE_LOCK.lock() {
        conn.next_free
            .store(CONN_FREE.load(Ordering::Relaxed), Ordering::Relaxed);
        CONN_FREE.store(index_of(conn) + 1, Ordering::Relaxed);
    }
}

/// For the time of a fork ([`Lock::hold`]): nothing comes into the table, or leaves it.
pub fn table_lock() -> &'static Lock {
    &TABLE_LOCK
}

/// Takes a connection for shared with another process for ever.
pub fn bar_shared(conn: &Conn) {
    conn.barred.store(
        fordway_abi::reason::Reason::Forked as u32,
        Ordering::Relaxed,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tables;

    #[test]
    fn descriptors_beyond_the_table_are_the_kernels() {
        let _turn = tables();
        for fd in [-1, i32::MIN, FD_COUNT as i32, i32::MAX] {
            assert!(slot(fd).is_none());
            assert_eq!(look(fd), kind::OTHER);
            assert!(conn(fd).is_none());
            assert!(add_conn(fd, false).is_none());
        }
        assert!(slot(FD_COUNT as i32 - 1).is_some());
    }

    #[test]
    fn late_mail_finds_nobody() {
        let _turn = tables();
        let fd = FD_COUNT as i32 - 2;
        let first = add_conn(fd, false).expect("a place");
        let id = first.id();
        assert!(Conn::by_id(id).is_some_and(|conn| core::ptr::eq(conn, first)));
        assert!(conn(fd).is_some_and(|conn| core::ptr::eq(conn, first)));
        first.edges.store(7, Ordering::Relaxed);
        free_conn(first);
        assert!(Conn::by_id(id).is_none());
        let second = add_conn(fd, true).expect("a place");
        assert!(core::ptr::eq(first, second), "the place is used again");
        assert!(Conn::by_id(id).is_none() && Conn::by_id(second.id()).is_some());
        assert!(second.is_nonblocking() && second.edges.load(Ordering::Relaxed) == 0);
        // A new connection of the same socket.
        let id = second.id();
        renew_conn(second, true);
        assert!(Conn::by_id(id).is_none());
        free_conn(second);
    }

    #[test]
    fn a_lock_is_refused_to_its_holder() {
        let lock = Lock::new();
        let guard = lock.lock();
        assert!(guard.is_some() && lock.lock().is_none() && lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
        assert!(lock.hold() && !lock.hold());
        lock.let_go();
        assert!(lock.lock().is_some());
    }

    #[test]
    fn a_lock_of_a_process_that_is_gone_is_free() {
        let _turn = tables();
        let (word, holder) = (AtomicU32::new(0), AtomicU32::new(0));
        let own = crate::fork::pid() as u32;
        let guard = lock_shared(&word, &holder);
        assert_eq!(holder.load(Ordering::Relaxed), own);
        drop(guard);
        assert_eq!(
            (word.load(Ordering::Relaxed), holder.load(Ordering::Relaxed)),
            (0, 0)
        );
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        let gone = child.id();
        child.wait().expect("its end");
        word.store(1, Ordering::Relaxed);
        holder.store(gone, Ordering::Relaxed);
        assert!(lock_shared(&word, &holder).is_some());
    }
}
