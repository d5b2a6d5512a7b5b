//! epoll for programs whose sockets have channels.
//!
//! The program's epoll instance stays the kernel's. A registered stream socket has
//! an [`Item`]; once its connection has a channel the item is *attached*: the
//! kernel's registration is changed, once, to an edge-triggered one under a tag of
//! ours, and from then on the program's interest is kept here alone, so that
//! EPOLL_CTL_MOD costs no system call. The instance also watches its doorbell (an
//! eventfd, edge-triggered and never drained) and the control socket.
//!
//! # A wait
//! Rings first; then a spin; then the sleep is announced, rings are looked at
//! again, and the kernel's epoll_wait runs.
//!
//! A wait that rings satisfy asks the kernel too, before it tells of them, if the last answer is
//! older than [`UNASKED_US`] or [`TURNS`] waits, or if the peer has done something by the kernel
//! before it used the ring ([`crate::link::Link::has_acted_since`]): what happened first is told first, or with it.
//!
//! Only *hot* items are looked at in each wait; the others are marked by the peer
//! when something comes ([`hot`]).
//!
//! # The house
//! [`control`] (epoll_ctl) makes [`items`] in [`instances`]; [`attach`] moves them to
//! channels and back; [`waiting`] asks [`hot`] ones whether they are [`ready`].
//!
//! # Edges
//! An edge-triggered item is reported when something came since it was last
//! reported: the peer's tail moved, the kernel showed an edge, room came after a
//! send found none, or the item was armed by ADD or MOD. What is then reported is
//! the whole present state, as the kernel does it.

mod attach;
mod change;
mod hot;
mod instances;
mod items;
mod ready;
mod registered;
mod shared;
#[cfg(test)]
mod tests;
mod waiting;

pub use attach::{attach, detach, let_go};
pub use change::{can_wake, control};
pub use instances::{after_fork, closed, created, discover, doors, find, wake};
pub use items::{fd_closed, warm_all};
pub use ready::{mask_of, note_room_told, polled_in_vain};
pub use registered::registrations;
pub use shared::{
    Cells, after_fork as cells_after_fork, before_fork, has_cells, let_go_of, settle_fd,
};
pub use waiting::{ROOM_MAX, wait_in};

use crate::lock::{Lock, rank};
use crate::process::PROCESS;
use crate::state::{self, Conn, kind};
use crate::sys::{self, sys};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

const ITEM_BITS: u32 = 17;
const ITEM_COUNT: usize = 1 << ITEM_BITS;
/// Generations of an item. The last one is that of [`TAG_BELL`] and its like.
const GENERATION_COUNT: u32 = (1 << (32 - ITEM_BITS)) - 1;
const INSTANCE_COUNT: usize = 4096;
/// For so long the kernel is not asked while rings have events: what processes without rings do
/// is seen no later than that. About the time of three requests; the question takes 0.2.
pub const UNASKED_US: u64 = 20;
/// Nor for so many waits, of a program that does nothing in between; and as often a wait does what
/// peers want of the connections.
const TURNS: u32 = 16;
/// Times that one wait asks it because of what peers with rings did meanwhile.
const ASKED_MAX: u32 = 3;

const IN: u32 = libc::EPOLLIN as u32;
const PRI: u32 = libc::EPOLLPRI as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// Low words of tags that are no items.
const TAG_BELL: u32 = u32::MAX;
const TAG_CONTROL: u32 = u32::MAX - 1;

/// `Instance::plain`: made before a fork, by the parent, and not used here since.
const UNSETTLED: u32 = u32::MAX;
/// `Instance::plain`: a thread is letting go of it.
const LEAVING: u32 = u32::MAX - 1;

/// `Item::spent`: deleted by the program while attached.
const DELETED: u32 = 2;

/// A registration of a stream socket. Written under its instance's lock.
#[repr(C, align(128))]
struct Item {
    /// Connection, plus one; 0: free.
    conn: AtomicU32,
    instance: AtomicU32,
    fd: AtomicI32,
    /// The number by which the kernel knows it: `fd`, or a hidden one since the program has closed
    /// that while it has others of the socket.
    key: AtomicI32,
    /// What the program wants, its own bits.
    asked: AtomicU32,
    /// The same in terms of IN and OUT.
    events: AtomicU32,
    data: AtomicU64,
    /// 1: the kernel knows it by our tag.
    attached: AtomicU32,
    /// 1: armed by ADD or MOD, not looked at since.
    forced: AtomicU32,
    /// 1: one-shot, and shot; [`DELETED`]: the program deleted it, the kernel still has it.
    spent: AtomicU32,
    /// `Conn::edges` when it was last reported.
    seen_edges: AtomicU32,
    /// The ends and errors that were there then.
    seen_ends: AtomicU32,
    /// `Conn::rooms` when it was last reported.
    seen_rooms: AtomicU32,
    /// The peer's tail when it was last reported.
    seen_tail: AtomicU64,
    /// Rises with each use of the entry: late events of a former registration are known by it.
    generation: AtomicU32,
    /// 1: the kernel had it under our tag when that was looked for ([`shared`]).
    registered: AtomicU32,
    /// Its place among those that have something, in ticks ([`hot`]); 0: a wait has found it with
    /// nothing since. With [`hot::TOLD_ONCE`]: when it was told of, and no place.
    place: AtomicU64,
    /// Where the peer's tail and our head of it lie, when attached.
    tail: AtomicPtr<AtomicU64>,
    head: AtomicPtr<AtomicU64>,
    /// 1: in the list of items that every wait looks at.
    hot: AtomicU32,
    /// Walks in a row that found nothing, while hot.
    cool: AtomicU32,
    /// The hot items before and behind it, in the circle of the instance's.
    last_hot: AtomicU32,
    next_hot: AtomicU32,
    /// Next item of the connection, plus one; of the free list if free.
    next_of_conn: AtomicU32,
    /// Next item of the instance, plus one.
    next_of_instance: AtomicU32,
    /// The one before it, plus one.
    before_of_instance: AtomicU32,
}

/// An epoll instance of the program.
#[repr(C, align(64))]
pub struct Instance {
    fd: AtomicI32,
    lock: Lock<{ rank::INSTANCE }>,
    /// Held while it gets its doorbell.
    equipping: Lock<{ rank::EQUIP }>,
    /// First item, plus one.
    items: AtomicU32,
    /// Items that are attached.
    attached: AtomicU32,
    /// First hot item, plus one: the next walk begins with it.
    hot: AtomicU32,
    /// Hot items.
    hot_count: AtomicU32,
    /// The connection that had an event last, plus one: its peer decides about spinning.
    active: AtomicU32,
    /// [`crate::link::acts_seen`] when the kernel was asked last.
    asked: AtomicU32,
    /// When it is to be asked again, although rings have events, in ticks.
    ask_at_ticks: AtomicU64,
    /// Waits since the one in which it was asked whatever the time.
    turns: AtomicU32,
    /// 1: its answer took all the room; rings have the next turn.
    filled: AtomicU32,
    /// When a wait told of sockets last, in ticks.
    told_at: AtomicU64,
    /// Doorbell, plus one; 0: none yet.
    door: AtomicU32,
    door_fd: AtomicI32,
    /// [`crate::broker::number`] of the control connection that is watched; 0: none.
    control: AtomicU32,
    /// A reason: it is the kernel's alone ([`shared`]); [`UNSETTLED`]; [`LEAVING`]; 0: none of them.
    plain: AtomicU32,
    /// Cell that says who has it since a fork, plus one.
    cell: AtomicU32,
    /// 1: shared with the parent since a fork, which knows better than this process what became of its
    /// items in the meantime ([`attach::give_back`]).
    inherited: AtomicU32,
    /// Since a fork: by what the parent's sleepers in it are woken, plus one.
    parent_ring: AtomicI32,
    /// And the door of the parent's behind which they sleep.
    parent_door: AtomicU32,
    used: AtomicU32,
    /// 1: a UDP socket was registered with it ([`crate::datagram`]).
    datagrams: AtomicU32,
    /// Which of them a wait looks at first.
    datagram_turn: AtomicU32,
    /// Waits with room for one event in which both they and others had some.
    datagram_waits: AtomicU32,
}

/// Of the process: epoll instances and their items.
pub struct Epoll {
    items: AtomicPtr<Item>,
    instances: AtomicPtr<Instance>,
    /// How many entries of the table were ever in use.
    instance_high: AtomicU32,
    item_next: AtomicU32,
    item_free: AtomicU32,
    list_lock: Lock<{ rank::LIST }>,
    tag: AtomicU32,
}

impl Epoll {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            items: AtomicPtr::new(core::ptr::null_mut()),
            instances: AtomicPtr::new(core::ptr::null_mut()),
            instance_high: AtomicU32::new(0),
            item_next: AtomicU32::new(0),
            item_free: AtomicU32::new(0),
            list_lock: Lock::new(),
            tag: AtomicU32::new(0),
        }
    }
}

/// For the time of a fork: registrations and instances stay as they are.
pub fn list_lock() -> &'static Lock<{ rank::LIST }> {
    &PROCESS.epoll.list_lock
}

/// Maps the tables and draws the tag.
pub fn set_up() -> sys::Result<()> {
    let mut secret = 0u32;
    let _ = sys!(SYS_getrandom, &raw mut secret, 4, 0);
    PROCESS.epoll.tag.store(secret | 1, Ordering::Relaxed);
    PROCESS.epoll.instances.store(
        sys::map_anonymous(INSTANCE_COUNT * size_of::<Instance>(), false)?.cast(),
        Ordering::Relaxed,
    );
    PROCESS.epoll.items.store(
        sys::map_anonymous(ITEM_COUNT * size_of::<Item>(), false)?.cast(),
        Ordering::Release,
    );
    shared::set_up()
}

/// Whether an instance was ever noted.
pub fn is_used() -> bool {
    PROCESS.epoll.instance_high.load(Ordering::Relaxed) != 0
}

fn item_at(index: u32) -> &'static Item {
    // SAFETY: ITEM_COUNT zeroed entries of atomics, never unmapped.
    unsafe {
        &*PROCESS
            .epoll
            .items
            .load(Ordering::Relaxed)
            .add(index as usize % ITEM_COUNT)
    }
}

fn instance_at(index: u32) -> &'static Instance {
    // SAFETY: INSTANCE_COUNT zeroed entries of atomics, never unmapped.
    unsafe {
        &*PROCESS
            .epoll
            .instances
            .load(Ordering::Relaxed)
            .add(index as usize % INSTANCE_COUNT)
    }
}

/// The instance behind a descriptor, and its number.
pub fn instance(fd: i32) -> Option<(u32, &'static Instance)> {
    let word = state::look(fd);
    (word & kind::MASK == kind::EPOLL)
        .then(|| (word & !kind::MASK, instance_at(word & !kind::MASK)))
}

/// Number of an instance.
pub fn number_of(instance: &Instance) -> u32 {
    let base = PROCESS.epoll.instances.load(Ordering::Relaxed) as usize;
    ((instance as *const Instance as usize - base) / size_of::<Instance>()) as u32
}

impl Instance {
    /// Whether a UDP socket was ever registered with it.
    #[inline]
    pub fn has_datagrams(&self) -> bool {
        self.datagrams.load(Ordering::Relaxed) != 0
    }

    /// One is about to be.
    pub fn note_datagrams(&self) {
        self.datagrams.store(1, Ordering::SeqCst);
    }

    /// Which of them is looked at first.
    pub fn datagram_turn(&self) -> usize {
        self.datagram_turn.load(Ordering::Relaxed) as usize
    }

    /// Whether a wait with room for one event tells of others, although they have something: every other time.
    pub fn datagrams_wait(&self) -> bool {
        self.datagram_waits.fetch_add(1, Ordering::Relaxed) & 1 == 0
    }

    /// The next time, another one.
    pub fn take_datagram_turn(&self) {
        self.datagram_turn.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the kernel is given as data: a number that no program uses, and what it is about.
fn tag(low: u32) -> u64 {
    u64::from(PROCESS.epoll.tag.load(Ordering::Relaxed)) << 32 | u64::from(low)
}

/// Of an item: which one, and its generation.
fn tag_of_item(index: u32) -> u64 {
    tag(item_at(index).generation.load(Ordering::Relaxed) << ITEM_BITS | index)
}

/// The item of a tag, if it is that registration still.
fn item_of_tag(data: u64) -> Option<(u32, &'static Item)> {
    let index = data as u32 % ITEM_COUNT as u32;
    let item = item_at(index);
    let used = item.conn.load(Ordering::Relaxed) != 0;
    (used && data == tag_of_item(index)).then_some((index, item))
}
