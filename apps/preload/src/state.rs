//! What the shim knows of the process: which descriptor is what, and one
//! [`Conn`] for each stream socket. Everything lies in memory that the shim
//! mapped for itself; nothing is allocated from the program's heap.
//!
//! # Descriptors
//! A word for each says what a descriptor is: unknown, nothing of ours, hidden, an
//! epoll instance, or a connection (its index). Descriptors made by dup share a
//! connection. Only descriptors up to [`FD_COUNT`] are watched; others are the
//! kernel's alone.
//!
//! # States of a connection
//! `fordway_sockets::phase` has them, and moves them. A thread that sleeps in the kernel without
//! looking at rings is counted in `unaware`; the channel is not used before it came back.

use crate::lock::{Lock, rank};
use crate::process::PROCESS;
use crate::sys::{self, map_anonymous};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use fordway_abi::shm::{Endpoint, WaitPage};
use fordway_abi::stack::Served;
use fordway_sockets::{Event, Phase, State};
pub use fordway_sockets::{attention, phase};
use zerocopy::{FromBytes, IntoBytes};

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
    /// In any word: a socket of the program's own stack; what [`crate::stack`] knows of it stands from `OF_STACK_SHIFT` on.
    pub const OF_STACK: u32 = 1 << 22;
    /// See `OF_STACK`. Below is the index of a connection.
    pub const OF_STACK_SHIFT: u32 = 16;
    /// A socket of the program's own stack that is no connection of ours: one of UDP, a listener, one that came over an exec or in
    /// a message.
    pub const STACK: u32 = 7 << 24 | OF_STACK;
    /// A UDP socket.
    pub const DATAGRAMS: u32 = 6 << 24;
    /// Beside `CONN`: what goes over it are records ([`crate::hooks_records`]).
    pub const RECORDS: u32 = 1 << 23;
    /// The kind of a word.
    pub const MASK: u32 = 0xff << 24;
}

/// See [`Conn::unix`].
pub const PROGRAMS_END: u32 = 1;
/// The same.
pub const STACKS_END: u32 = 2;

/// A stream socket of this process.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Conn {
    /// Where it stands.
    pub phase: Phase,
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
    /// What the last wait for bytes has left ([`crate::pace`]).
    pub pace: AtomicU64,
    /// O_NONBLOCK.
    pub nonblock: AtomicU32,
    /// The reason for the kernel path that the broker was told last, or has told, or 0.
    pub told: AtomicU32,
    /// Lock of a send in several pieces, which others do not part while there is room.
    pub turn: AtomicU32,
    /// 1: what goes over it are records ([`crate::hooks_records`]).
    pub records: AtomicU32,
    /// Lock of a record that is taken.
    pub taking: AtomicU32,
    /// Lock of a record that goes by the kernel.
    pub record_turn: AtomicU32,
    /// First epoll item of it, plus one.
    pub items: AtomicU32,
    /// 1: its epoll items are attached to its channel, new ones too ([`crate::epoll::attach`]).
    pub attaches: AtomicU32,
    /// Rises each time that room, after a send found none, was told to some epoll item.
    pub rooms: AtomicU32,
    /// Who holds it too.
    pub held: Held,
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
    /// What the last fork found: 1, neither ring had anything for this end any more; 2, it waited in vain
    /// for that; 0, none has looked ([`crate::guest`]).
    pub off_rings: AtomicU32,
    /// Until when its close waits for room of the kernel's ([`crate::upgrade::flush_before_closing`]); 0: none has begun to.
    pub flush_until_ns: AtomicU64,
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
    /// [`PROGRAMS_END`], [`STACKS_END`]: the socket is one of a pair of AF_UNIX, between a program and its own stack.
    pub unix: AtomicU32,
    /// 1: its channel goes past its stack, to the far end of the connection ([`crate::end`]).
    pub cuts_through: AtomicU32,
    /// Of a stack's end: which connection it serves ([`Served`]).
    served: [AtomicU64; SERVED_WORDS],
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
    /// Kind and index, as a descriptor's word has them; the same for good once it was in use.
    word: AtomicU32,
    /// What the machine remembers of it.
    state: State,
}

/// Words of a [`Served`], the last one half used.
const SERVED_WORDS: usize = size_of::<Served>().div_ceil(8);

/// Which processes hold a socket since a fork ([`crate::fork`]).
#[derive(Debug)]
pub struct Held {
    /// Cell that counts them; 0: only this one does.
    pub cell: AtomicU32,
    /// This process is not counted there any more (an exec was about to close the socket).
    pub let_go: AtomicBool,
}

impl Held {
    /// A new socket is this process's alone.
    pub fn begin(&self) {
        self.cell.store(0, Ordering::Relaxed);
        self.let_go.store(false, Ordering::Relaxed);
    }
}

/// Of the process: which descriptor is what, and the connections.
pub struct Table {
    fds: AtomicPtr<AtomicU32>,
    conns: AtomicPtr<Conn>,
    conn_next: AtomicU32,
    conn_free: AtomicU32,
    table_lock: Lock<{ rank::TABLE }>,
    /// Where [`next_of_channel`] found the last one.
    found: AtomicU32,
}

impl Table {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            fds: AtomicPtr::new(core::ptr::null_mut()),
            conns: AtomicPtr::new(core::ptr::null_mut()),
            conn_next: AtomicU32::new(0),
            conn_free: AtomicU32::new(0),
            table_lock: Lock::new(),
            found: AtomicU32::new(0),
        }
    }
}

/// Maps the tables. Called once, before any thread but the first exists.
pub fn set_up() -> sys::Result<()> {
    PROCESS.table.conns.store(
        map_anonymous(CONN_COUNT * size_of::<Conn>(), false)?.cast(),
        Ordering::Relaxed,
    );
    PROCESS.table.fds.store(
        map_anonymous(FD_COUNT * 4, false)?.cast(),
        Ordering::Release,
    );
    Ok(())
}

/// The word of a descriptor.
#[inline]
pub fn slot(fd: i32) -> Option<&'static AtomicU32> {
    let table = PROCESS.table.fds.load(Ordering::Relaxed);
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

/// The same, if its bytes go over it as they are, and by no stack: what almost every call is about.
#[inline(always)]
pub fn plain_conn(fd: i32) -> Option<&'static Conn> {
    let word = look(fd);
    let kinds = kind::MASK | kind::RECORDS | kind::OF_STACK;
    (word & kinds == kind::CONN).then(|| conn_at(word))
}

/// The connection behind a descriptor, if what goes over it are records.
#[inline]
pub fn records(fd: i32) -> Option<&'static Conn> {
    let word = look(fd);
    (word & (kind::MASK | kind::RECORDS) == kind::CONN | kind::RECORDS).then(|| conn_at(word))
}

/// What goes over the connection of a new descriptor are records; false: it has found no place in the table.
pub fn mark_records(fd: i32) -> bool {
    let (Some(conn), Some(word)) = (conn(fd), slot(fd)) else {
        return false;
    };
    conn.records.store(1, Ordering::Relaxed);
    word.fetch_or(kind::RECORDS, Ordering::Release);
    true
}

/// Connection number `index`; bits above it are not looked at.
pub fn conn_at(index: u32) -> &'static Conn {
    // SAFETY: the table has CONN_COUNT entries, zeroed, and is never unmapped; all fields are atomics.
    unsafe {
        &*PROCESS
            .table
            .conns
            .load(Ordering::Relaxed)
            .add(index as usize % CONN_COUNT)
    }
}

/// Index of a connection.
pub fn index_of(conn: &Conn) -> u32 {
    let base = PROCESS.table.conns.load(Ordering::Relaxed) as usize;
    ((conn as *const Conn as usize - base) / size_of::<Conn>()) as u32
}

/// How many entries were ever in use: the bound of a walk over all.
pub fn conn_high() -> u32 {
    PROCESS.table.conn_next.load(Ordering::Acquire)
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
    let high = conn_high();
    let from = (PROCESS.table.found.load(Ordering::Relaxed) + 1).min(high);
    let index = (from..high).chain(0..from).find(|index| {
        let conn = conn_at(*index);
        conn.channel_id.load(Ordering::Relaxed) == channel_id
            && conn.phase.load(Ordering::Acquire) != phase::FREE
    })?;
    PROCESS.table.found.store(index, Ordering::Relaxed);
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

    /// Whether a descriptor's word names it.
    #[inline(always)]
    pub fn is_named_by(&self, word: u32) -> bool {
        word & (kind::MASK | (CONN_COUNT as u32 - 1)) == self.word.load(Ordering::Relaxed)
    }

    /// Whether it is one of a pair of AF_UNIX sockets.
    pub fn is_unix(&self) -> bool {
        self.unix.load(Ordering::Relaxed) != 0
    }

    /// Whether it is a stack's end of a pair.
    pub fn is_served(&self) -> bool {
        self.unix.load(Ordering::Relaxed) == STACKS_END
    }

    /// Notes which connection a stack serves by its end of a pair. The stack has one thread.
    pub fn serve(&self, served: &Served) {
        let mut words = [0u64; SERVED_WORDS];
        words.as_mut_bytes()[..size_of::<Served>()].copy_from_slice(served.as_bytes());
        for (kept, word) in self.served.iter().zip(words) {
            kept.store(word, Ordering::Relaxed);
        }
    }

    /// Which connection that is; nothing of a program's end.
    pub fn served(&self) -> Served {
        let mut words = [0u64; SERVED_WORDS];
        for (kept, word) in self.served.iter().zip(&mut words) {
            *word = kept.load(Ordering::Relaxed);
        }
        let read = Served::read_from_prefix(words.as_bytes());
        read.map_or_else(|_| Served::default(), |(served, _)| served)
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
    let guard = PROCESS.table.table_lock.lock()?;
    let free = PROCESS.table.conn_free.load(Ordering::Relaxed);
    let index = if free != 0 {
        PROCESS.table.conn_free.store(
            conn_at(free - 1).next_free.load(Ordering::Relaxed),
            Ordering::Relaxed,
        );
        free - 1
    } else {
        let next = PROCESS.table.conn_next.load(Ordering::Relaxed);
        if next as usize == CONN_COUNT {
            return None;
        }
        PROCESS.table.conn_next.store(next + 1, Ordering::Release);
        next
    };
    let conn = conn_at(index);
    drop(guard);
    conn.refs.store(1, Ordering::Relaxed);
    conn.fd.store(fd, Ordering::Relaxed);
    conn.serial.fetch_add(1, Ordering::Release);
    // Not `sleepers`, `unaware` and `senders`: threads that found the entry by a number which was
    // closed meanwhile are counted there, and count themselves out.
    for zeroed in [&conn.operations, &conn.barred, &conn.edges, &conn.rooms] {
        zeroed.store(0, Ordering::Relaxed);
    }
    conn.held.begin();
    conn.forget_all();
    for zeroed in [
        &conn.empty_reads,
        &conn.items,
        &conn.attaches,
        &conn.attention,
        &conn.rescues,
        &conn.passing,
        &conn.low_bytes,
        &conn.turn,
        &conn.records,
        &conn.unix,
        &conn.cuts_through,
        &conn.taking,
        &conn.record_turn,
        &conn.cork,
        &conn.told,
        &conn.sighted,
        &conn.error,
    ] {
        zeroed.store(0, Ordering::Relaxed);
    }
    conn.serve(&Served::default());
    conn.nonblock.store(u32::from(nonblock), Ordering::Relaxed);
    conn.rings_until_ns.store(0, Ordering::Relaxed);
    conn.flush_until_ns.store(0, Ordering::Relaxed);
    conn.calm.store(0, Ordering::Relaxed);
    conn.channel_id.store(0, Ordering::Relaxed);
    conn.sent_by_rings.store(0, Ordering::Relaxed);
    conn.received_by_rings.store(0, Ordering::Relaxed);
    conn.receive_timeout_ns.store(0, Ordering::Relaxed);
    conn.send_timeout_ns.store(0, Ordering::Relaxed);
    conn.phase.advance(Event::Opened);
    conn.word.store(kind::CONN | index, Ordering::Relaxed);
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
    conn.forget_all();
    conn.channel_id.store(0, Ordering::Relaxed);
    conn.rings_until_ns.store(0, Ordering::Relaxed);
}

/// Gives the entry back; its last descriptor is gone.
pub fn free_conn(conn: &Conn) {
    conn.phase.advance(Event::Freed);
    // Who still has it by its serial finds nobody.
    conn.serial.fetch_add(1, Ordering::Release);
    if let Some(_guard) = PROCESS.table.table_lock.lock() {
        conn.next_free.store(
            PROCESS.table.conn_free.load(Ordering::Relaxed),
            Ordering::Relaxed,
        );
        PROCESS
            .table
            .conn_free
            .store(index_of(conn) + 1, Ordering::Relaxed);
    }
}

/// For the time of a fork ([`Lock::hold`]): nothing comes into the table, or leaves it.
pub fn table_lock() -> &'static Lock<{ rank::TABLE }> {
    &PROCESS.table.table_lock
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
    use crate::testing::{free, tables};

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
    fn a_stack_waits_for_no_program() {
        use fordway_sockets::End;
        let _turn = tables();
        let conn = add_conn(FD_COUNT as i32 - 3, true).expect("a place");
        for (end, waits) in [(0, true), (PROGRAMS_END, true), (STACKS_END, false)] {
            conn.unix.store(end, Ordering::Relaxed);
            // Late enough for all that other tests of this process have spent.
            let left_ns = conn.end().patience().left_ns(u64::MAX / 2);
            assert_eq!(left_ns > 0, waits, "{end}");
        }
        free(conn);
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
        free(first);
        assert!(Conn::by_id(id).is_none());
        let second = add_conn(fd, true).expect("a place");
        assert!(core::ptr::eq(first, second), "the place is used again");
        assert!(Conn::by_id(id).is_none() && Conn::by_id(second.id()).is_some());
        assert!(second.is_nonblocking() && second.edges.load(Ordering::Relaxed) == 0);
        // A new connection of the same socket.
        let id = second.id();
        renew_conn(second, true);
        assert!(Conn::by_id(id).is_none());
        free(second);
    }
}
