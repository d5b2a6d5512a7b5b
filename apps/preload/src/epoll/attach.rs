//! An item's way to its channel and back: what the kernel is asked to show of it.

use super::instances::{bell_of, want_rings};
use super::items::{items_of, remove};
use super::*;
use crate::wait::Bell;
use fordway_abi::shm::DOOR_SHARED;

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
        hot::warm(instance, index);
        instance.attached.fetch_add(1, Ordering::Relaxed);
        // Room shows at once, which is for those alone who wait here.
        let watched = instance.plain.load(Ordering::Relaxed) != 0;
        let event = libc::epoll_event {
            events: IN | if watched { 0 } else { OUT } | PRI | RDHUP | ET,
            u64: tag(index),
        };
        let exclusive = item.asked.load(Ordering::Relaxed) & EXCLUSIVE != 0;
        if watched || !shared::is_or_will_be_left(instance) {
            register(instance, item, event, exclusive);
        }
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
            unregister(instance, item);
            continue;
        }
        if !shared::is_or_will_be_left(instance) {
            give_back(instance, item, tag(index));
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
    while let Some((index, item)) = items_of(conn).next() {
        let instance = instance_at(item.instance.load(Ordering::Relaxed));
        if let Some(_guard) = instance.lock.lock() {
            give_back(instance, item, item.data.load(Ordering::Relaxed));
        }
        remove(index);
    }
}

/// Has the kernel show what the program wants of an item. Under the instance's lock.
pub fn give_back(instance: &Instance, item: &Item, data: u64) {
    let mut events = item.asked.load(Ordering::Relaxed);
    if item.spent.load(Ordering::Relaxed) != 0 {
        // As the kernel has it after the shot: nothing but the flags.
        events &= ONESHOT | ET;
    }
    let event = libc::epoll_event { events, u64: data };
    register(instance, item, event, events & EXCLUSIVE != 0);
}

/// Has the kernel show nothing of an item any more.
pub fn unregister(instance: &Instance, item: &Item) {
    let epoll = instance.fd.load(Ordering::Relaxed);
    let fd = item.fd.load(Ordering::Relaxed);
    let _ = sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, fd, 0);
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
