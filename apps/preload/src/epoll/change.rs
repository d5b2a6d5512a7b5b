//! epoll_ctl.

use super::attach::attach_new;
use super::instances::{bell_of, equip};
use super::items::{find, is_item_of, link_of_instance, new_item, remove, warm_all};
use super::*;
use crate::lock::Guard;
use crate::thread::Shield;
use fordway_abi::reason::Reason;

/// epoll_ctl on a stream socket. `None`: it is libc's to do.
///
/// Sockets are registered under our tag from the start, with or without a channel, so
/// that a channel may come at any moment while threads wait: whoever fetches an event
/// finds the item and sees what has become of it. The kernel's registration changes
/// only under the instance's lock. No handler comes in between, and jumps: the kernel's set and
/// ours are the same, and who sleeps knows of the change.
pub fn control(
    epoll: i32,
    operation: i32,
    conn: &Conn,
    fd: i32,
    event: *const libc::epoll_event,
) -> Option<sys::Result<usize>> {
    let (instance_index, instance) = instance(epoll)?;
    shared::settle(instance);
    if matches!(operation, libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD) && event.is_null() {
        return None;
    }
    let deletes = operation == libc::EPOLL_CTL_DEL;
    let shield = Shield::new();
    let Some(found) = locked(conn, instance_index, fd, deletes) else {
        drop(shield);
        if operation != libc::EPOLL_CTL_ADD {
            return None;
        }
        let follows = shared::may_follow(instance) && can_wake(instance)
            || shared::must_follow(instance, conn) && equip(instance).is_some();
        let shield = Shield::new();
        let Some(index) = follows.then(new_item).flatten() else {
            drop(shield);
            let reason = Reason::from_u32(instance.plain.load(Ordering::Relaxed));
            shared::keep_from_rings(conn, reason.unwrap_or(Reason::NoMemory), true);
            return None;
        };
        let added = add(instance_index, instance, index, conn, fd, event);
        if instance.plain.load(Ordering::Relaxed) != 0 {
            shared::go_on(instance);
        }
        return Some(added);
    };
    let Found { index, item, .. } = found;
    let result = if item.attached.load(Ordering::Relaxed) != 0 {
        if !deletes {
            hot::warm(instance, index);
        }
        control_attached(item, operation, event)
    } else {
        control_unattached(instance, index, item, operation, event)
    };
    drop(found.guard);
    if found.goes {
        remove(index);
    }
    drop(found.list);
    if let Some(bell) = bell_of(instance)
        && !deletes
        && bell.has_sleepers()
    {
        // The kernel's epoll_ctl would have woken them.
        bell.knock();
    }
    if instance.plain.load(Ordering::Relaxed) != 0 {
        shared::go_on(instance);
    }
    Some(result)
}

/// A registration, under its instance's lock; `goes`: and under `Epoll::list_lock`, for it leaves the
/// lists.
struct Found {
    index: u32,
    item: &'static Item,
    goes: bool,
    list: Option<Guard<'static>>,
    guard: Option<Guard<'static>>,
}

/// The registration of `fd` for an epoll_ctl. One that is attached stays in the lists when it is
/// deleted, and needs no lock of theirs.
fn locked(conn: &Conn, instance: u32, fd: i32, deletes: bool) -> Option<Found> {
    loop {
        let (index, item) = find(conn, instance, fd)?;
        let is_attached = || item.attached.load(Ordering::Relaxed) != 0;
        let goes = deletes && !is_attached();
        let list = goes.then(|| PROCESS.epoll.list_lock.lock()).flatten();
        let guard = instance_at(instance).lock.lock();
        let is_same = is_item_of(item, conn, instance, fd);
        if is_same && goes == (deletes && !is_attached()) {
            return Some(Found {
                index,
                item,
                goes,
                list,
                guard,
            });
        }
        // Another thread has taken it out, or attached or detached it, since it was found.
    }
}

/// Whether peers can wake who sleeps in the instance, as far as can be told without a broker.
/// If not, it is left to the kernel.
pub fn can_wake(instance: &Instance) -> bool {
    shared::settle(instance);
    equip(instance);
    instance.plain.load(Ordering::Relaxed) == 0
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
        u64: tag_of_item(index),
    };
    if operation != libc::EPOLL_CTL_DEL {
        // SAFETY: the program's event, as epoll_ctl takes it.
        ours.events = unsafe { event.read_unaligned() }.events;
    }
    let epoll = instance.fd.load(Ordering::Relaxed);
    let key = item.key.load(Ordering::Relaxed);
    let result = sys!(SYS_epoll_ctl, epoll, operation, key, &raw const ours);
    if operation == libc::EPOLL_CTL_MOD && result.is_ok() {
        set_interest(item, event);
    }
    result
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
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD if is_refused(operation, event) => {
            Err(libc::EINVAL)
        }
        libc::EPOLL_CTL_ADD if !deleted => Err(libc::EEXIST),
        libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if deleted => Err(libc::ENOENT),
        libc::EPOLL_CTL_DEL => {
            item.spent.store(DELETED, Ordering::Relaxed);
            // It leaves the kernel's list, too, and an ADD puts it at the end.
            hot::lose_place(item);
            Ok(0)
        }
        libc::EPOLL_CTL_MOD if item.asked.load(Ordering::Relaxed) & EXCLUSIVE != 0 => {
            Err(libc::EINVAL)
        }
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            set_interest(item, event);
            Ok(0)
        }
        _ => Err(libc::EINVAL),
    }
}

/// EPOLLEXCLUSIVE is for ADD alone, and beside few other bits (man 2 epoll_ctl).
fn is_refused(operation: i32, event: *const libc::epoll_event) -> bool {
    // SAFETY: the program's event, as epoll_ctl takes it.
    let events = unsafe { event.read_unaligned() }.events;
    let beside = IN | OUT | ERR | HUP | ET | EXCLUSIVE | libc::EPOLLWAKEUP as u32;
    events & EXCLUSIVE != 0 && (operation == libc::EPOLL_CTL_MOD || events & !beside != 0)
}

fn set_interest(item: &Item, event: *const libc::epoll_event) {
    // SAFETY: the program's event, as epoll_ctl takes it.
    let event = unsafe { event.read_unaligned() };
    // EPOLLRDNORM (1 << 6) and EPOLLWRNORM (1 << 8) are other names of EPOLLIN (1) and EPOLLOUT (1 << 2).
    let events = event.events | event.events >> 6 & 0b101;
    item.asked.store(event.events, Ordering::Relaxed);
    item.events.store(events, Ordering::Relaxed);
    item.data.store(event.u64, Ordering::Relaxed);
    item.spent.store(0, Ordering::Relaxed);
    item.forced.store(1, Ordering::Relaxed);
    hot::arm(item);
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
    let item = item_at(index);
    item.instance.store(instance_index, Ordering::Relaxed);
    item.fd.store(fd, Ordering::Relaxed);
    item.key.store(fd, Ordering::Relaxed);
    for zeroed in [&item.attached, &item.seen_edges, &item.seen_ends, &item.hot] {
        zeroed.store(0, Ordering::Relaxed);
    }
    item.place.store(0, Ordering::Relaxed);
    set_interest(item, event);
    item.seen_tail.store(0, Ordering::Relaxed);
    let Some(list) = PROCESS.epoll.list_lock.lock() else {
        return Err(libc::ENOMEM);
    };
    item.conn
        .store(state::index_of(conn) + 1, Ordering::Relaxed);
    item.next_of_conn
        .store(conn.items.load(Ordering::Relaxed), Ordering::Relaxed);
    conn.items.store(index + 1, Ordering::Release);
    let added = {
        let _guard = instance.lock.lock();
        link_of_instance(instance, index);
        let ours = libc::epoll_event {
            events: item.asked.load(Ordering::Relaxed),
            u64: tag_of_item(index),
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
    if added.is_err() {
        remove(index);
    }
    drop(list);
    if added.is_ok() && conn.is_paired() {
        attach_new(conn);
        warm_all(conn);
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tables;

    fn event(events: u32, data: u64) -> libc::epoll_event {
        libc::epoll_event { events, u64: data }
    }

    #[test]
    fn exclusive_is_for_add_and_beside_few_bits() {
        let judged = |operation, events| {
            let event = event(events, 0);
            is_refused(operation, &raw const event)
        };
        assert!(!judged(libc::EPOLL_CTL_ADD, EXCLUSIVE | IN | OUT | ET));
        assert!(judged(libc::EPOLL_CTL_ADD, EXCLUSIVE | IN | ONESHOT));
        assert!(judged(libc::EPOLL_CTL_ADD, EXCLUSIVE | RDHUP));
        assert!(judged(libc::EPOLL_CTL_MOD, EXCLUSIVE | IN));
        assert!(!judged(libc::EPOLL_CTL_MOD, IN | RDHUP | ONESHOT));
    }

    #[test]
    fn an_attached_registration_answers_as_the_kernels() {
        let _turn = tables();
        let index = super::super::items::new_item().expect("a place");
        let item = item_at(index);
        let (add, change, delete) = (
            libc::EPOLL_CTL_ADD,
            libc::EPOLL_CTL_MOD,
            libc::EPOLL_CTL_DEL,
        );
        let call = |operation, events| {
            let event = event(events, 9);
            control_attached(item, operation, &raw const event)
        };
        item.spent.store(0, Ordering::Relaxed);
        item.asked.store(IN, Ordering::Relaxed);
        assert_eq!(call(add, IN), Err(libc::EEXIST));
        assert_eq!(call(change, OUT | ONESHOT), Ok(0));
        assert_eq!(item.asked.load(Ordering::Relaxed), OUT | ONESHOT);
        assert_eq!(item.data.load(Ordering::Relaxed), 9);
        assert_eq!(call(77, IN), Err(libc::EINVAL));
        assert_eq!(call(delete, 0), Ok(0));
        assert_eq!(call(delete, 0), Err(libc::ENOENT));
        assert_eq!(call(change, IN), Err(libc::ENOENT));
        assert_eq!(call(add, EXCLUSIVE | IN), Ok(0));
        assert_eq!(call(change, IN), Err(libc::EINVAL));
    }

    #[test]
    fn other_names_of_in_and_out_are_the_same() {
        let _turn = tables();
        let index = super::super::items::new_item().expect("a place");
        let item = item_at(index);
        item.spent.store(1, Ordering::Relaxed);
        let asked = (libc::EPOLLRDNORM | libc::EPOLLWRNORM) as u32;
        let event = event(asked, 5);
        set_interest(item, &raw const event);
        assert_eq!(item.asked.load(Ordering::Relaxed), asked);
        assert_eq!(item.events.load(Ordering::Relaxed), asked | IN | OUT);
        assert_eq!(item.spent.load(Ordering::Relaxed), 0);
        assert_eq!(item.forced.load(Ordering::Relaxed), 1);
    }
}
