//! Registrations of stream sockets, in two lists each: of the connection and of the
//! instance. [`LIST_LOCK`] first, then the instance's lock.

use super::*;

/// Items of a connection.
pub fn items_of(conn: &Conn) -> impl Iterator<Item = (u32, &'static Item)> {
    let mut next = conn.items.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        let index = next.checked_sub(1)?;
        next = item_at(index).next_of_conn.load(Ordering::Relaxed);
        Some((index, item_at(index)))
    })
}

/// The registration of `fd` in an instance.
pub fn find(conn: &Conn, instance: u32, fd: i32) -> Option<(u32, &'static Item)> {
    items_of(conn).find(|(_, item)| {
        item.instance.load(Ordering::Relaxed) == instance && item.fd.load(Ordering::Relaxed) == fd
    })
}

/// Takes an item that is free.
pub fn new_item() -> Option<u32> {
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

/// Makes all items of a connection hot: with more than one, or while room is waited for,
/// none may be cold.
pub fn warm_all(conn: &Conn) {
    for (index, item) in items_of(conn) {
        let instance = instance_at(item.instance.load(Ordering::Relaxed));
        let _guard = instance.lock.lock();
        if item.attached.load(Ordering::Relaxed) != 0 {
            hot::warm(instance, index);
        }
    }
}

/// Takes an item out of both lists.
pub fn remove(index: u32) {
    let Some(_list) = LIST_LOCK.lock() else {
        return;
    };
    let item = item_at(index);
    if item.conn.load(Ordering::Relaxed) == 0 {
        return; // Another thread was quicker.
    }
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

/// Takes an item out of a list.
pub fn unlink(head: &AtomicU32, index: u32, next: impl Fn(&'static Item) -> &'static AtomicU32) {
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

/// Takes the connection's registrations out of the kernel's instances.
pub fn leave_all(conn: &Conn) {
    for (_, item) in items_of(conn) {
        let epoll = instance_at(item.instance.load(Ordering::Relaxed))
            .fd
            .load(Ordering::Relaxed);
        let fd = item.fd.load(Ordering::Relaxed);
        let _ = sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, fd, 0);
    }
}
