//! An item's way to its channel and back: what the kernel is asked to show of it.

use super::instances::{bell_of, want_rings};
use super::items::{items_of, remove};
use super::*;
use crate::wait::Bell;
use fordway_abi::shm::DOOR_SHARED;
use fordway_sockets::Event;

/// The connection has a channel from here on, and its items are ours. Runs while mail is
/// read, so it gives no instance a doorbell (which waits for mail): one that has none
/// yet gets it before its next sleep, and a thread that sleeps in it now is woken by
/// the changed registration.
pub fn attach(conn: &Conn) {
    let _list = PROCESS.epoll.list_lock.lock();
    // Whoever sees the channel may give it up at once: `detach` is to come behind this.
    conn.phase.advance(Event::Paired);
    conn.attaches.store(1, Ordering::Relaxed);
    attach_all(conn, false);
}

/// The connection has a registration more. While its channel is given up, the phase still says
/// that it has one, and `detach` has come already: nobody would detach the item any more.
pub fn attach_new(conn: &Conn) {
    let _list = PROCESS.epoll.list_lock.lock();
    if conn.attaches.load(Ordering::Relaxed) != 0 {
        attach_all(conn, true);
    }
}

/// Under `Epoll::list_lock`. `added`: what is not attached yet has just been added, and has its place as of
/// now if it is ready. What came before is noted nowhere (`fordway_ring::moment`).
fn attach_all(conn: &Conn, added: bool) {
    for (index, item) in items_of(conn) {
        let instance = instance_at(item.instance.load(Ordering::Relaxed));
        let _guard = instance.lock.lock();
        if item.attached.swap(1, Ordering::Relaxed) != 0 {
            continue;
        }
        item.forced.store(1, Ordering::Relaxed);
        item.seen_tail.store(0, Ordering::Relaxed);
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
        hot::keep_place(instance, item);
        if added {
            hot::arm(item);
        }
        hot::warm(instance, index);
        instance.attached.fetch_add(1, Ordering::Relaxed);
        if is_watched(instance) || !shared::is_or_will_be_left(instance) {
            register(instance, item, event_of(instance, index, item));
        }
        want_rings(conn, bell_of(instance).map_or(1 << DOOR_SHARED, Bell::bit));
    }
}

/// The connection gives its channel up: the kernel gets the program's interest back.
pub fn detach(conn: &Conn) {
    let _list = PROCESS.epoll.list_lock.lock();
    conn.attaches.store(0, Ordering::Relaxed);
    for (index, item) in items_of(conn) {
        let instance = instance_at(item.instance.load(Ordering::Relaxed));
        let _guard = instance.lock.lock();
        hot::forget(instance, index);
        if item.attached.swap(0, Ordering::Relaxed) == 0 {
            continue;
        }
        instance.attached.fetch_sub(1, Ordering::Relaxed);
        if item.spent.load(Ordering::Relaxed) == DELETED {
            unregister(instance, item);
            continue;
        }
        if !shared::is_or_will_be_left(instance) {
            register(instance, item, asked_of(item, tag_of_item(index)));
        }
    }
    let deleted = |(_, item): &(u32, &Item)| item.spent.load(Ordering::Relaxed) == DELETED;
    while let Some((index, _)) = items_of(conn).find(deleted) {
        remove(index);
    }
}

/// A socket that is no stream any more (it listens) is the kernel's alone, under the
/// program's own data.
pub fn let_go(conn: &Conn) {
    let _list = PROCESS.epoll.list_lock.lock();
    while let Some((index, item)) = items_of(conn).next() {
        let instance = instance_at(item.instance.load(Ordering::Relaxed));
        if let Some(_guard) = instance.lock.lock() {
            give_back(instance, index);
        }
        remove(index);
    }
}

/// Has the kernel show what the program wants of an item, as the program's own. Under the instance's
/// lock. A one-shot that was shot wants nothing, but EPOLL_CTL_MOD arms it for ends and errors (linux:
/// fs/eventpoll.c, do_epoll_ctl): these come with a tag of ours, and are dropped. It is nobody's item,
/// so that no relative takes it for one that is still to be given back. A child knows only that
/// the item was shot when it was forked: under the item's own tag its parent finds it, and may arm it.
pub fn give_back(instance: &Instance, index: u32) {
    let item = item_at(index);
    let is_shot = item.spent.load(Ordering::Relaxed) != 0;
    let data = if !is_shot {
        item.data.load(Ordering::Relaxed)
    } else if instance.inherited.load(Ordering::Relaxed) != 0 {
        tag_of_item(index)
    } else {
        tag(TAG_BELL)
    };
    register(instance, item, asked_of(item, data));
}

/// What the program wants of an item, as the kernel takes it.
fn asked_of(item: &Item, data: u64) -> libc::epoll_event {
    let mut events = item.asked.load(Ordering::Relaxed);
    if item.spent.load(Ordering::Relaxed) != 0 {
        // As the kernel has it after the shot: nothing but the flags.
        events &= ONESHOT | ET;
    }
    libc::epoll_event { events, u64: data }
}

/// What the kernel is to show of an item now, under our tag.
fn event_of(instance: &Instance, index: u32, item: &Item) -> libc::epoll_event {
    let data = tag_of_item(index);
    if item.attached.load(Ordering::Relaxed) == 0 {
        return asked_of(item, data);
    }
    // Room shows at once, which is for those alone who wait here.
    let room = if is_watched(instance) { 0 } else { OUT };
    libc::epoll_event {
        events: IN | room | PRI | RDHUP | ET,
        u64: data,
    }
}

/// Whether others than our own waiters look at the instance.
fn is_watched(instance: &Instance) -> bool {
    instance.plain.load(Ordering::Relaxed) != 0
}

/// Has the kernel show nothing of an item any more. False: it did not before.
pub fn unregister(instance: &Instance, item: &Item) -> bool {
    control(instance, item, libc::EPOLL_CTL_DEL, core::ptr::null()).is_ok()
}

/// Registers what the kernel does not have. Under the instance's lock.
pub fn register_anew(instance: &Instance, index: u32, item: &Item) -> bool {
    let event = event_of(instance, index, item);
    control(instance, item, libc::EPOLL_CTL_ADD, &raw const event).is_ok()
}

fn control(
    instance: &Instance,
    item: &Item,
    operation: i32,
    event: *const libc::epoll_event,
) -> sys::Result<usize> {
    let epoll = instance.fd.load(Ordering::Relaxed);
    let key = item.key.load(Ordering::Relaxed);
    sys!(SYS_epoll_ctl, epoll, operation, key, event)
}

/// Changes the kernel's registration. EPOLLEXCLUSIVE cannot be modified (man 2 epoll_ctl).
fn register(instance: &Instance, item: &Item, event: libc::epoll_event) {
    let event = &raw const event;
    let changed = if item.asked.load(Ordering::Relaxed) & EXCLUSIVE != 0 {
        unregister(instance, item);
        control(instance, item, libc::EPOLL_CTL_ADD, event)
    } else {
        control(instance, item, libc::EPOLL_CTL_MOD, event)
    };
    if changed.is_err() {
        // The program has taken it out past the library: nothing is to be told of it.
        item.spent.store(DELETED, Ordering::Relaxed);
    }
}
