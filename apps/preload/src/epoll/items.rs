//! Registrations of stream sockets, in two lists each: of the connection and of the
//! instance. `Epoll::list_lock` first, then the instance's lock.
//!
//! An item is in the lists exactly while the kernel has its registration: ADD and DEL change
//! both under `Epoll::list_lock`. A thread that attaches the connection meanwhile would otherwise
//! change a registration which the kernel does not have yet, or has no more, and take the
//! item for one that the program has deleted.

use super::*;
use crate::hidden;
use fordway_abi::reason::Reason;

/// Items of a connection. Under `Epoll::list_lock`: who stands on an item that is taken out would go
/// on in the list of free ones.
pub fn items_of(conn: &Conn) -> impl Iterator<Item = (u32, &'static Item)> {
    let mut next = conn.items.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        let index = next.checked_sub(1)?;
        next = item_at(index).next_of_conn.load(Ordering::Relaxed);
        Some((index, item_at(index)))
    })
}

/// The registration of `fd` in an instance. The list is locked only when the walk without the
/// lock, which finds nearly all, found nothing.
pub fn find(conn: &Conn, instance: u32, fd: i32) -> Option<(u32, &'static Item)> {
    let is_it = |(_, item): &(u32, &Item)| is_item_of(item, conn, instance, fd);
    if conn.items.load(Ordering::Acquire) == 0 {
        return None;
    }
    items_of(conn).find(is_it).or_else(|| {
        let _list = PROCESS.epoll.list_lock.lock();
        items_of(conn).find(is_it)
    })
}

/// Whether an item is the registration of `fd` of `conn` in an instance. For sure only under the
/// instance's lock.
pub fn is_item_of(item: &Item, conn: &Conn, instance: u32, fd: i32) -> bool {
    item.conn.load(Ordering::Relaxed) == state::index_of(conn) + 1
        && item.instance.load(Ordering::Relaxed) == instance
        && item.fd.load(Ordering::Relaxed) == fd
}

/// Takes an item that is free.
pub fn new_item() -> Option<u32> {
    let _guard = PROCESS.epoll.list_lock.lock()?;
    let free = PROCESS.epoll.item_free.load(Ordering::Relaxed);
    let index = if free != 0 {
        PROCESS.epoll.item_free.store(
            item_at(free - 1).next_of_conn.load(Ordering::Relaxed),
            Ordering::Relaxed,
        );
        free - 1
    } else if (PROCESS.epoll.item_next.load(Ordering::Relaxed) as usize) < ITEM_COUNT {
        PROCESS.epoll.item_next.fetch_add(1, Ordering::Relaxed)
    } else {
        return None;
    };
    let generation = &item_at(index).generation;
    let next = (generation.load(Ordering::Relaxed) + 1) % GENERATION_COUNT;
    generation.store(next, Ordering::Relaxed);
    item_at(index).place.store(0, Ordering::Relaxed);
    Some(index)
}

/// Makes all items of a connection hot: with more than one, or while room is waited for,
/// none may be cold.
pub fn warm_all(conn: &Conn) {
    if conn.items.load(Ordering::Acquire) == 0 {
        return;
    }
    let _list = PROCESS.epoll.list_lock.lock();
    for (index, item) in items_of(conn) {
        let instance = instance_at(item.instance.load(Ordering::Relaxed));
        let guard = instance.lock.lock();
        let cold =
            item.attached.load(Ordering::Relaxed) != 0 && item.hot.load(Ordering::Relaxed) == 0;
        if cold {
            hot::warm(instance, index);
        }
        drop(guard);
        // Bytes that came just before had no mark, if another item was made hot already: who
        // was woken for them has found nothing.
        if cold
            && let Some(bell) = super::instances::bell_of(instance)
            && bell.has_sleepers()
        {
            bell.knock();
        }
    }
}

/// Takes an item out of both lists. Under `Epoll::list_lock`.
pub fn remove(index: u32) {
    let item = item_at(index);
    if item.conn.load(Ordering::Relaxed) == 0 {
        return;
    }
    let conn = state::conn_at(item.conn.load(Ordering::Relaxed).wrapping_sub(1));
    let instance = instance_at(item.instance.load(Ordering::Relaxed));
    unlink_of_conn(&conn.items, index);
    {
        let _guard = instance.lock.lock();
        unlink_of_instance(instance, index);
        hot::forget(instance, index);
        if item.attached.swap(0, Ordering::Relaxed) != 0 {
            instance.attached.fetch_sub(1, Ordering::Relaxed);
        }
        item.conn.store(0, Ordering::Relaxed);
    }
    let key = item.key.load(Ordering::Relaxed);
    if key != item.fd.load(Ordering::Relaxed) {
        hidden::close(key);
    }
    item.next_of_conn.store(
        PROCESS.epoll.item_free.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    PROCESS.epoll.item_free.store(index + 1, Ordering::Relaxed);
}

/// Puts an item in front of its instance's others. Under the instance's lock.
pub fn link_of_instance(instance: &Instance, index: u32) {
    let item = item_at(index);
    let first = instance.items.load(Ordering::Relaxed);
    item.next_of_instance.store(first, Ordering::Relaxed);
    item.before_of_instance.store(0, Ordering::Relaxed);
    if let Some(first) = first.checked_sub(1) {
        let before = &item_at(first).before_of_instance;
        before.store(index + 1, Ordering::Relaxed);
    }
    instance.items.store(index + 1, Ordering::Release);
}

/// Takes out an item that is there. It still leads to the rest: somebody may stand on it. It costs
/// the same wherever the item is, for a server closes thousands of them.
fn unlink_of_instance(instance: &Instance, index: u32) {
    let item = item_at(index);
    let next = item.next_of_instance.load(Ordering::Relaxed);
    let before = item.before_of_instance.load(Ordering::Relaxed);
    let word = match before.checked_sub(1) {
        Some(before) => &item_at(before).next_of_instance,
        None => &instance.items,
    };
    word.store(next, Ordering::Relaxed);
    if let Some(next) = next.checked_sub(1) {
        let back = &item_at(next).before_of_instance;
        back.store(before, Ordering::Relaxed);
    }
}

/// Takes an item out of its connection's list, which is short.
fn unlink_of_conn(head: &AtomicU32, index: u32) {
    let after = item_at(index).next_of_conn.load(Ordering::Relaxed);
    let mut word = head;
    while let Some(at) = word.load(Ordering::Relaxed).checked_sub(1) {
        if at == index {
            word.store(after, Ordering::Relaxed);
            return;
        }
        word = &item_at(at).next_of_conn;
    }
}

/// The program is about to close descriptor `fd` of a connection, perhaps its `last` one.
///
/// The kernel drops a registration when nobody has the socket any more. Whoever has a copy for a
/// moment (a broker) would keep it alive, so it is taken out before. Where another program may
/// have the socket, the kernel goes on telling of it, and so it is left here.
pub fn fd_closed(conn: &Conn, fd: i32, last: bool) {
    if !last {
        rename_all(conn, fd);
        return;
    }
    let passed = conn.barred.load(Ordering::Relaxed) == Reason::Passed as u32;
    let lives_on = passed || crate::fork::holders(&conn.held) > 1;
    if lives_on {
        settle_all(conn);
    }
    let _list = PROCESS.epoll.list_lock.lock();
    while let Some((index, item)) = items_of(conn).next() {
        let instance = instance_at(item.instance.load(Ordering::Relaxed));
        if let Some(_guard) = instance.lock.lock() {
            if !lives_on {
                attach::unregister(instance, item);
            } else if instance.plain.load(Ordering::Relaxed) == 0 {
                attach::give_back(instance, index);
            }
        }
        remove(index);
    }
}

/// Lets go of the connection's instances that a relative has begun to use: what it has given back
/// and armed since is its own.
fn settle_all(conn: &Conn) {
    let to_be_let_go = || {
        let _list = PROCESS.epoll.list_lock.lock();
        let mut instances =
            items_of(conn).map(|(_, item)| instance_at(item.instance.load(Ordering::Relaxed)));
        instances.find(|instance| shared::is_to_be_let_go(instance))
    };
    while let Some(instance) = to_be_let_go() {
        shared::settle(instance);
    }
}

/// The program closes the number of registrations, and has others of the socket: the kernel goes
/// on with them, under a number that nobody else can get.
fn rename_all(conn: &Conn, fd: i32) {
    let by_number = || items_of(conn).find(|(_, item)| item.key.load(Ordering::Relaxed) == fd);
    let mut list = PROCESS.epoll.list_lock.lock();
    while let Some((index, item)) = by_number() {
        if has_new_key(index, item) {
            continue;
        }
        // Nobody can change it any more: it stays the kernel's, under the program's own data.
        drop(list.take());
        shared::keep_from_rings(conn, Reason::NoMemory, true);
        list = PROCESS.epoll.list_lock.lock();
        let Some((index, item)) = by_number() else {
            continue;
        };
        let instance = instance_at(item.instance.load(Ordering::Relaxed));
        if let Some(_guard) = instance.lock.lock() {
            attach::give_back(instance, index);
        }
        remove(index);
    }
}

fn has_new_key(index: u32, item: &Item) -> bool {
    let instance = instance_at(item.instance.load(Ordering::Relaxed));
    let Some(_guard) = instance.lock.lock() else {
        return false;
    };
    let fd = item.key.load(Ordering::Relaxed);
    let Ok(copy) = hidden::copy(fd) else {
        return false;
    };
    // If the number is another socket's by now, the kernel has dropped the registration.
    if attach::unregister(instance, item) {
        item.key.store(copy, Ordering::Relaxed);
        if attach::register_anew(instance, index, item) {
            return true;
        }
        item.key.store(fd, Ordering::Relaxed);
        attach::register_anew(instance, index, item);
    }
    hidden::close(copy);
    false
}
