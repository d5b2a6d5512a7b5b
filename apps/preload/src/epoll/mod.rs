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
//! again, and the kernel's epoll_wait runs. Every [`KERNEL_TURN`]th wait that the
//! rings satisfy asks the kernel too, so that busy rings starve nobody.
//!
//! Only *hot* items are looked at in each wait; the others are marked by the peer
//! when something comes ([`hot`]).
//!
//! # Edges
//! An edge-triggered item is reported when something came since it was last
//! reported: the peer's tail moved, the kernel showed an edge, room came after a
//! send found none, or the item was armed by ADD or MOD. What is then reported is
//! the whole present state, as the kernel does it.

mod hot;
mod ready;
mod waiting;

pub use ready::mask_of;
pub use waiting::wait_in;

use crate::state::{self, Conn, Lock, hint, kind};
use crate::sys::{self, sys};
use crate::wait::{self, Bell};
use crate::{control, upgrade};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use fordway_abi::reason::Reason;
use fordway_abi::shm::DOOR_SHARED;

const ITEM_COUNT: usize = 1 << 17;
const INSTANCE_COUNT: usize = 4096;
/// One wait in so many asks the kernel although rings had events.
const KERNEL_TURN: u32 = 16;

const IN: u32 = libc::EPOLLIN as u32;
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

/// `Item::spent`: deleted by the program while attached.
const DELETED: u32 = 2;

/// A registration of a stream socket. Written under its instance's lock.
#[repr(C, align(128))]
struct Item {
    /// Connection, plus one; 0: free.
    conn: AtomicU32,
    instance: AtomicU32,
    fd: AtomicI32,
    /// What the program wants.
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
    /// The peer's tail when it was last reported.
    seen_tail: AtomicU64,
    /// Where the peer's tail and our head of it lie, when attached.
    tail: AtomicPtr<AtomicU64>,
    head: AtomicPtr<AtomicU64>,
    /// 1: in the list of items that every wait looks at.
    hot: AtomicU32,
    /// Walks in a row that found nothing, while hot.
    cool: AtomicU32,
    /// Next hot item of the instance, plus one.
    next_hot: AtomicU32,
    /// Next item of the connection, plus one; of the free list if free.
    next_of_conn: AtomicU32,
    /// Next item of the instance, plus one.
    next_of_instance: AtomicU32,
}

/// An epoll instance of the program.
#[repr(C, align(64))]
struct Instance {
    fd: AtomicI32,
    lock: Lock,
    /// Held while it gets its doorbell.
    equipping: Lock,
    /// First item, plus one.
    items: AtomicU32,
    /// Items that are attached.
    attached: AtomicU32,
    /// First hot item, plus one.
    hot: AtomicU32,
    /// Hot items.
    hot_count: AtomicU32,
    /// Where the next walk begins (a hot item, plus one), so that all get their turn.
    cursor: AtomicU32,
    /// The connection that had an event last, plus one: its peer decides about spinning.
    active: AtomicU32,
    turns: AtomicU32,
    /// Doorbell, plus one; 0: none yet.
    door: AtomicU32,
    door_fd: AtomicI32,
    /// The control socket that is watched.
    control_fd: AtomicI32,
    /// 1: another epoll instance or a poll waits for it.
    nested: AtomicU32,
    /// 1: made before a fork, by the parent, which registers under numbers of its own.
    inherited: AtomicU32,
    used: AtomicU32,
}

static ITEMS: AtomicPtr<Item> = AtomicPtr::new(core::ptr::null_mut());
static INSTANCES: AtomicPtr<Instance> = AtomicPtr::new(core::ptr::null_mut());
static ITEM_NEXT: AtomicU32 = AtomicU32::new(0);
static ITEM_FREE: AtomicU32 = AtomicU32::new(0);
static LIST_LOCK: Lock = Lock::new();
static TAG: AtomicU32 = AtomicU32::new(0);

/// Maps the tables and draws the tag.
pub fn set_up() -> sys::Result<()> {
    let mut secret = 0u32;
    let _ = sys!(SYS_getrandom, &raw mut secret, 4, 0);
    TAG.store(secret | 1, Ordering::Relaxed);
    INSTANCES.store(
        sys::map_anonymous(INSTANCE_COUNT * size_of::<Instance>(), false)?.cast(),
        Ordering::Relaxed,
    );
    ITEMS.store(
        sys::map_anonymous(ITEM_COUNT * size_of::<Item>(), false)?.cast(),
        Ordering::Release,
    );
    Ok(())
}

fn item_at(index: u32) -> &'static Item {
    // SAFETY: ITEM_COUNT zeroed entries of atomics, never unmapped.
    unsafe {
        &*ITEMS
            .load(Ordering::Relaxed)
            .add(index as usize % ITEM_COUNT)
    }
}

fn instance_at(index: u32) -> &'static Instance {
    // SAFETY: INSTANCE_COUNT zeroed entries of atomics, never unmapped.
    unsafe {
        &*INSTANCES
            .load(Ordering::Relaxed)
            .add(index as usize % INSTANCE_COUNT)
    }
}

fn instance(fd: i32) -> Option<(u32, &'static Instance)> {
    let word = state::look(fd);
    (word & kind::MASK == kind::EPOLL)
        .then(|| (word & !kind::MASK, instance_at(word & !kind::MASK)))
}

fn tag(low: u32) -> u64 {
    u64::from(TAG.load(Ordering::Relaxed)) << 32 | u64::from(low)
}

/// The program has made an epoll instance.
pub fn created(fd: i32) {
    let Some(word) = state::slot(fd) else { return };
    let Some(_guard) = LIST_LOCK.lock() else {
        return;
    };
    for index in 0..INSTANCE_COUNT as u32 {
        let instance = instance_at(index);
        if instance.used.load(Ordering::Relaxed) == 0 {
            for zeroed in [
                &instance.items,
                &instance.attached,
                &instance.cursor,
                &instance.hot,
                &instance.hot_count,
                &instance.active,
                &instance.nested,
                &instance.inherited,
            ] {
                zeroed.store(0, Ordering::Relaxed);
            }
            instance.door.store(0, Ordering::Relaxed);
            instance.control_fd.store(-1, Ordering::Relaxed);
            instance.fd.store(fd, Ordering::Relaxed);
            instance.used.store(1, Ordering::Relaxed);
            word.store(kind::EPOLL | index, Ordering::Release);
            return;
        }
    }
}

/// The program has closed a descriptor of an epoll instance; `other`: one that is left.
pub fn closed(index: u32, other: Option<i32>) {
    let instance = instance_at(index);
    if let Some(other) = other {
        instance.fd.store(other, Ordering::Relaxed);
        return;
    }
    loop {
        let first = instance.items.load(Ordering::Relaxed);
        if first == 0 {
            break;
        }
        remove(first - 1);
    }
    if let Some(bell) = bell_of(instance) {
        wait::release(bell);
    }
    instance.used.store(0, Ordering::Release);
}

fn bell_of(instance: &Instance) -> Option<Bell> {
    let door = instance.door.load(Ordering::Acquire);
    (door != 0).then(|| Bell {
        door: door as usize - 1,
        fd: instance.door_fd.load(Ordering::Relaxed),
    })
}

/// Gives the instance a doorbell and lets the kernel watch it and the control socket.
fn equip(instance: &Instance) -> Option<Bell> {
    let bell = match bell_of(instance) {
        Some(bell) => bell,
        None => {
            if !control::connect() {
                return None;
            }
            let _guard = instance.equipping.lock();
            if let Some(bell) = bell_of(instance) {
                return Some(bell);
            }
            let bell = wait::acquire();
            watch(instance, bell.fd, TAG_BELL);
            instance.door_fd.store(bell.fd, Ordering::Relaxed);
            instance.door.store(bell.door as u32 + 1, Ordering::Release);
            announce_door(instance, bell);
            bell
        }
    };
    let control = control::fd();
    if instance.control_fd.swap(control, Ordering::Relaxed) != control && control >= 0 {
        watch(instance, control, TAG_CONTROL);
    }
    Some(bell)
}

/// Tells the peers of what is attached already which doorbell the instance has got.
fn announce_door(instance: &Instance, bell: Bell) {
    let _guard = instance.lock.lock();
    let mut next = instance.items.load(Ordering::Relaxed);
    while let Some(index) = next.checked_sub(1) {
        let item = item_at(index);
        next = item.next_of_instance.load(Ordering::Relaxed);
        if item.attached.load(Ordering::Relaxed) != 0
            && let Some(conn) = hot::conn_of(item).filter(|conn| conn.is_paired())
        {
            want_rings(conn, bell.bit());
        }
    }
}

fn want_rings(conn: &Conn, door: u64) {
    conn.own().wait.rx_doors.fetch_or(door, Ordering::SeqCst);
    conn.own().wait.tx_doors.fetch_or(door, Ordering::SeqCst);
}

fn watch(instance: &Instance, fd: i32, low: u32) {
    let event = libc::epoll_event {
        events: IN | ET,
        u64: tag(low),
    };
    let epoll = instance.fd.load(Ordering::Relaxed);
    let _ = sys!(
        SYS_epoll_ctl,
        epoll,
        libc::EPOLL_CTL_ADD,
        fd,
        &raw const event
    );
}

/// Items of a connection.
fn items_of(conn: &Conn) -> impl Iterator<Item = (u32, &'static Item)> {
    let mut next = conn.items.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        let index = next.checked_sub(1)?;
        next = item_at(index).next_of_conn.load(Ordering::Relaxed);
        Some((index, item_at(index)))
    })
}

fn find(conn: &Conn, instance: u32, fd: i32) -> Option<(u32, &'static Item)> {
    items_of(conn).find(|(_, item)| {
        item.instance.load(Ordering::Relaxed) == instance && item.fd.load(Ordering::Relaxed) == fd
    })
}

/// epoll_ctl on a stream socket. `None`: it is libc's to do.
///
/// Sockets are registered under our tag from the start, with or without a channel, so
/// that a channel may come at any moment while threads wait: whoever fetches an event
/// finds the item and sees what has become of it. The kernel's registration changes
/// only under the instance's lock.
pub fn control(
    epoll: i32,
    operation: i32,
    conn: &Conn,
    fd: i32,
    event: *const libc::epoll_event,
) -> Option<sys::Result<usize>> {
    let (instance_index, instance) = instance(epoll)?;
    if matches!(operation, libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD) && event.is_null() {
        return None;
    }
    let Some((index, item)) = find(conn, instance_index, fd) else {
        if operation != libc::EPOLL_CTL_ADD {
            return None;
        }
        let inherited = instance.inherited.load(Ordering::Relaxed) != 0;
        let Some(index) = new_item().filter(|_| !inherited) else {
            // Without an item a ready ring would go unnoticed.
            keep_from_rings(conn, fd);
            return None;
        };
        return Some(add(instance_index, instance, index, conn, fd, event));
    };
    let guard = instance.lock.lock();
    let result = if item.attached.load(Ordering::Relaxed) != 0 {
        if operation != libc::EPOLL_CTL_DEL {
            hot::warm(instance, index);
        }
        control_attached(item, operation, event)
    } else {
        control_unattached(instance, index, item, operation, event)
    };
    drop(guard);
    if operation == libc::EPOLL_CTL_DEL && item.attached.load(Ordering::Relaxed) == 0 {
        remove(index);
    }
    stand_by(instance);
    Some(result)
}

fn control_unattached(
    instance: &Instance,
    index: u32,
    item: &Item,
    operation: i32,
    event: *const libc::epoll_event,
) -> sys::Result<usize> {
    let mut ours = libc::epoll_event {
        events: 0,
        u64: tag(index),
    };
    if operation == libc::EPOLL_CTL_MOD {
        set_interest(item, event);
        ours.events = item.events.load(Ordering::Relaxed);
    }
    let epoll = instance.fd.load(Ordering::Relaxed);
    let fd = item.fd.load(Ordering::Relaxed);
    sys!(SYS_epoll_ctl, epoll, operation, fd, &raw const ours)
}

/// epoll_ctl on an attached item: no system call. A deleted item stays with the
/// kernel, silenced, because programs delete and add the same socket all the time
/// (redis-benchmark five times a request); the kernel drops it at close.
fn control_attached(
    item: &Item,
    operation: i32,
    event: *const libc::epoll_event,
) -> sys::Result<usize> {
    let deleted = item.spent.load(Ordering::Relaxed) == DELETED;
    match operation {
        libc::EPOLL_CTL_ADD if !deleted => Err(libc::EEXIST),
        libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if deleted => Err(libc::ENOENT),
        libc::EPOLL_CTL_DEL => {
            item.spent.store(DELETED, Ordering::Relaxed);
            Ok(0)
        }
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD if event.is_null() => Err(libc::EFAULT),
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            set_interest(item, event);
            Ok(0)
        }
        _ => Err(libc::EINVAL),
    }
}

fn set_interest(item: &Item, event: *const libc::epoll_event) {
    // SAFETY: the program's event, as epoll_ctl takes it.
    let event = unsafe { event.read_unaligned() };
    item.events.store(event.events, Ordering::Relaxed);
    item.data.store(event.u64, Ordering::Relaxed);
    item.spent.store(0, Ordering::Relaxed);
    item.forced.store(1, Ordering::Relaxed);
}

/// A new registration of a stream socket.
fn add(
    instance_index: u32,
    instance: &Instance,
    index: u32,
    conn: &Conn,
    fd: i32,
    event: *const libc::epoll_event,
) -> sys::Result<usize> {
    equip(instance);
    let item = item_at(index);
    item.instance.store(instance_index, Ordering::Relaxed);
    item.fd.store(fd, Ordering::Relaxed);
    set_interest(item, event);
    for zeroed in [&item.attached, &item.seen_edges, &item.hot] {
        zeroed.store(0, Ordering::Relaxed);
    }
    item.seen_tail.store(0, Ordering::Relaxed);
    item.conn
        .store(state::index_of(conn) + 1, Ordering::Relaxed);
    let Some(list) = LIST_LOCK.lock() else {
        return Err(libc::ENOMEM);
    };
    item.next_of_conn
        .store(conn.items.load(Ordering::Relaxed), Ordering::Relaxed);
    conn.items.store(index + 1, Ordering::Release);
    let added = {
        let _guard = instance.lock.lock();
        item.next_of_instance
            .store(instance.items.load(Ordering::Relaxed), Ordering::Relaxed);
        instance.items.store(index + 1, Ordering::Release);
        let ours = libc::epoll_event {
            events: item.events.load(Ordering::Relaxed),
            u64: tag(index),
        };
        let epoll = instance.fd.load(Ordering::Relaxed);
        sys!(
            SYS_epoll_ctl,
            epoll,
            libc::EPOLL_CTL_ADD,
            fd,
            &raw const ours
        )
    };
    drop(list);
    if added.is_err() {
        remove(index);
    } else if conn.is_paired() {
        attach(conn);
        warm_all(conn);
    }
    stand_by(instance);
    added
}

fn new_item() -> Option<u32> {
    let _guard = LIST_LOCK.lock()?;
    let free = ITEM_FREE.load(Ordering::Relaxed);
    if free != 0 {
        ITEM_FREE.store(
            item_at(free - 1).next_of_conn.load(Ordering::Relaxed),
            Ordering::Relaxed,
        );
        Some(free - 1)
    } else if (ITEM_NEXT.load(Ordering::Relaxed) as usize) < ITEM_COUNT {
        Some(ITEM_NEXT.fetch_add(1, Ordering::Relaxed))
    } else {
        None
    }
}

/// For a socket in an instance that we cannot follow.
fn keep_from_rings(conn: &Conn, fd: i32) {
    upgrade::bar(conn, Reason::NoMemory);
    upgrade::downgrade(conn, fd, Reason::NoMemory, false);
}

/// A stream socket is about to be added to something that may be an instance which we did
/// not see made: by a bare system call, before an exec, by another process.
pub fn discover(epoll: i32, conn: &Conn, fd: i32) {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0u8; 10];
    let mut count = 0;
    let mut left = epoll.unsigned_abs();
    while count == 0 || left != 0 {
        digits[count] = b'0' + (left % 10) as u8;
        left /= 10;
        count += 1;
    }
    for (target, digit) in path[14..].iter_mut().zip(digits[..count].iter().rev()) {
        *target = *digit;
    }
    let mut target = [0u8; 32];
    let length = sys!(
        SYS_readlink,
        path.as_ptr(),
        target.as_mut_ptr(),
        target.len()
    );
    if !length.is_ok_and(|length| target[..length] == *b"anon_inode:[eventpoll]") {
        return;
    }
    created(epoll);
    if instance(epoll).is_none() {
        keep_from_rings(conn, fd);
    }
}

/// The kernel has shown an event of an item that is not attached: what the program
/// gets of it. Under the instance's lock.
fn by_kernel(item: &Item, shown: u32) -> Option<libc::epoll_event> {
    let events = item.events.load(Ordering::Relaxed);
    let mask = shown & (events | ERR | HUP);
    if mask == 0 || item.spent.load(Ordering::Relaxed) != 0 {
        return None;
    }
    if events & ONESHOT != 0 {
        item.spent.store(1, Ordering::Relaxed);
    }
    Some(libc::epoll_event {
        events: mask,
        u64: item.data.load(Ordering::Relaxed),
    })
}

/// Another epoll instance, or a poll, waits for this one: it must look readable to
/// the kernel whenever it has something.
pub fn watched(fd: i32) {
    if let Some((_, instance)) = instance(fd) {
        instance.nested.store(1, Ordering::Relaxed);
        stand_by(instance);
    }
}

/// Has a nested instance rung by peers although nobody sleeps in it.
fn stand_by(instance: &Instance) {
    if instance.nested.load(Ordering::Relaxed) != 0
        && let Some(bell) = bell_of(instance)
    {
        bell.stand_by();
        if waiting::has_something(instance) {
            bell.ring();
        }
    }
}

/// Makes all items of a connection hot: with more than one, none may be cold.
fn warm_all(conn: &Conn) {
    for (index, item) in items_of(conn) {
        let instance = instance_at(item.instance.load(Ordering::Relaxed));
        let _guard = instance.lock.lock();
        if item.attached.load(Ordering::Relaxed) != 0 {
            hot::warm(instance, index);
        }
    }
}

/// Takes an item out of both lists.
fn remove(index: u32) {
    let Some(_list) = LIST_LOCK.lock() else {
        return;
    };
    let item = item_at(index);
    let conn = state::conn_at(item.conn.load(Ordering::Relaxed).wrapping_sub(1));
    let instance = instance_at(item.instance.load(Ordering::Relaxed));
    unlink(&conn.items, index, |item| &item.next_of_conn);
    {
        let _guard = instance.lock.lock();
        unlink(&instance.items, index, |item| &item.next_of_instance);
        hot::forget(instance, index);
        if item.attached.swap(0, Ordering::Relaxed) != 0 {
            instance.attached.fetch_sub(1, Ordering::Relaxed);
        }
        item.conn.store(0, Ordering::Relaxed);
    }
    item.next_of_conn
        .store(ITEM_FREE.load(Ordering::Relaxed), Ordering::Relaxed);
    ITEM_FREE.store(index + 1, Ordering::Relaxed);
}

fn unlink(head: &AtomicU32, index: u32, next: impl Fn(&'static Item) -> &'static AtomicU32) {
    let after = next(item_at(index)).load(Ordering::Relaxed);
    let mut at = head.load(Ordering::Relaxed);
    if at == index + 1 {
        head.store(after, Ordering::Relaxed);
        return;
    }
    while at != 0 {
        let word = next(item_at(at - 1));
        at = word.load(Ordering::Relaxed);
        if at == index + 1 {
            word.store(after, Ordering::Relaxed);
            return;
        }
    }
}

/// One descriptor of a connection is closed: the kernel drops its registrations
/// when the last descriptor of the socket goes.
pub fn fd_closed(conn: &Conn, last: bool) {
    while last && let Some((index, _)) = items_of(conn).next() {
        remove(index);
    }
}

/// The connection has a channel: its items are ours from now on. Runs while mail is
/// read, so it gives no instance a doorbell (which waits for mail): one that has none
/// yet gets it before its next sleep, and a thread that sleeps in it now is woken by
/// the changed registration.
pub fn attach(conn: &Conn) {
    for (index, item) in items_of(conn) {
        let instance = instance_at(item.instance.load(Ordering::Relaxed));
        let _guard = instance.lock.lock();
        if item.attached.swap(1, Ordering::Relaxed) != 0 {
            continue;
        }
        item.forced.store(1, Ordering::Relaxed);
        // SAFETY: both endpoints are mapped as long as the connection has its channel; addresses only.
        let (tail, head) = unsafe {
            let peer = conn.peer.load(Ordering::Relaxed);
            (
                &raw mut (*peer).tx.tail,
                (&raw const conn.own().rx.head).cast_mut(),
            )
        };
        item.tail.store(tail, Ordering::Relaxed);
        item.head.store(head, Ordering::Relaxed);
        hot::warm(instance, index);
        instance.attached.fetch_add(1, Ordering::Relaxed);
        let event = libc::epoll_event {
            events: IN | OUT | RDHUP | ET,
            u64: tag(index),
        };
        register(
            instance,
            item,
            event,
            item.events.load(Ordering::Relaxed) & EXCLUSIVE != 0,
        );
        want_rings(conn, bell_of(instance).map_or(1 << DOOR_SHARED, Bell::bit));
    }
}

/// The connection gives its channel up: the kernel gets the program's interest back.
pub fn detach(conn: &Conn) {
    for (index, item) in items_of(conn) {
        let instance = instance_at(item.instance.load(Ordering::Relaxed));
        let _guard = instance.lock.lock();
        hot::forget(instance, index);
        if item.attached.swap(0, Ordering::Relaxed) == 0 {
            continue;
        }
        instance.attached.fetch_sub(1, Ordering::Relaxed);
        if item.spent.load(Ordering::Relaxed) == DELETED {
            let epoll = instance.fd.load(Ordering::Relaxed);
            let _ = sys!(
                SYS_epoll_ctl,
                epoll,
                libc::EPOLL_CTL_DEL,
                item.fd.load(Ordering::Relaxed),
                0
            );
            continue;
        }
        let mut events = item.events.load(Ordering::Relaxed);
        if item.spent.load(Ordering::Relaxed) != 0 {
            // As the kernel has it after the shot: nothing but the flags.
            events &= ONESHOT | ET;
        }
        let event = libc::epoll_event {
            events,
            u64: tag(index),
        };
        register(instance, item, event, events & EXCLUSIVE != 0);
    }
    let deleted = |(_, item): &(u32, &Item)| item.spent.load(Ordering::Relaxed) == DELETED;
    while let Some((index, _)) = items_of(conn).find(deleted) {
        remove(index);
    }
}

/// Changes the kernel's registration. EPOLLEXCLUSIVE cannot be modified (man 2 epoll_ctl).
fn register(instance: &Instance, item: &Item, event: libc::epoll_event, exclusive: bool) {
    let epoll = instance.fd.load(Ordering::Relaxed);
    let fd = item.fd.load(Ordering::Relaxed);
    if exclusive {
        let _ = sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, fd, 0);
        let _ = sys!(
            SYS_epoll_ctl,
            epoll,
            libc::EPOLL_CTL_ADD,
            fd,
            &raw const event
        );
    } else {
        let _ = sys!(
            SYS_epoll_ctl,
            epoll,
            libc::EPOLL_CTL_MOD,
            fd,
            &raw const event
        );
    }
}

/// In a forked child: locks are free, bells are the parent's.
pub fn after_fork() {
    LIST_LOCK.reset();
    for index in 0..INSTANCE_COUNT as u32 {
        let instance = instance_at(index);
        if instance.used.load(Ordering::Relaxed) != 0 {
            instance.lock.reset();
            instance.equipping.reset();
            instance.inherited.store(1, Ordering::Relaxed);
            instance.door.store(0, Ordering::Relaxed);
            instance.control_fd.store(-1, Ordering::Relaxed);
        }
    }
}
