//! Registrations and the circle of hot ones, without kernel and peer.

use super::instances::equip;
use super::items::{link_of_instance, new_item, remove};
use super::*;
use crate::testing::{Channel, Silent, free, tables};
use crate::{broker, link, upgrade};
use fordway_abi::shm::RegionHeader;

/// A number of no descriptor.
const FD: i32 = state::FD_COUNT as i32 - 9;

/// An instance of its own with so many items of one connection, attached and hot.
fn instance_with(count: usize) -> (&'static Instance, Vec<u32>) {
    created(FD);
    let (index, instance) = super::instance(FD).expect("an instance");
    let conn = state::add_conn(FD - 1, false).expect("a connection");
    let items = (0..count).map(|_| {
        let item = new_item().expect("an item");
        let place = item_at(item);
        place.hot.store(0, Ordering::Relaxed);
        place.attached.store(1, Ordering::Relaxed);
        place.instance.store(index, Ordering::Relaxed);
        place
            .conn
            .store(state::index_of(conn) + 1, Ordering::Relaxed);
        hot::warm(instance, item);
        item
    });
    (instance, items.collect())
}

fn end(instance: &Instance, items: &[u32]) {
    for item in items {
        hot::forget(instance, *item);
        item_at(*item).conn.store(0, Ordering::Relaxed);
    }
    assert_eq!(instance.hot.load(Ordering::Relaxed), 0);
    instance.used.store(0, Ordering::Relaxed);
    if let Some(word) = state::slot(FD) {
        word.store(state::kind::UNKNOWN, Ordering::Relaxed);
    }
    if let Some(conn) = state::conn(FD - 1) {
        free(conn);
    }
}

/// The places of hot items in `items`, in the order of a walk.
fn order(instance: &Instance, items: &[u32]) -> Vec<usize> {
    let place = |(index, _)| items.iter().position(|item| *item == index);
    hot::walk(instance).filter_map(place).collect()
}

#[test]
fn a_late_event_is_not_the_next_registrations() {
    let _turn = tables();
    let index = new_item().expect("an item");
    let item = item_at(index);
    let of_first = tag_of_item(index);
    assert!(item_of_tag(of_first).is_none(), "nobody's yet");
    item.conn.store(1, Ordering::Relaxed);
    assert!(item_of_tag(of_first).is_some_and(|(found, _)| found == index));
    // Another process's, with a secret of its own.
    assert!(item_of_tag(of_first ^ 1 << 63).is_none());
    item.conn.store(0, Ordering::Relaxed);
    // Given back, and taken again.
    item.next_of_conn.store(
        PROCESS.epoll.item_free.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    PROCESS.epoll.item_free.store(index + 1, Ordering::Relaxed);
    assert_eq!(new_item(), Some(index));
    item.conn.store(1, Ordering::Relaxed);
    assert!(item_of_tag(of_first).is_none());
    assert!(item_of_tag(tag_of_item(index)).is_some());
    item.conn.store(0, Ordering::Relaxed);
}

#[test]
fn no_generation_makes_a_tag_of_another_kind() {
    let _turn = tables();
    let index = ITEM_COUNT as u32 - 1;
    let generation = &item_at(index).generation;
    for last in [GENERATION_COUNT - 2, GENERATION_COUNT - 1] {
        generation.store(last, Ordering::Relaxed);
        let low = tag_of_item(index) as u32;
        assert!(low != TAG_BELL && low != TAG_CONTROL);
    }
    // The last place, with the last generation, and the next one.
    item_at(index).next_of_conn.store(
        PROCESS.epoll.item_free.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    PROCESS.epoll.item_free.store(index + 1, Ordering::Relaxed);
    assert_eq!(new_item(), Some(index));
    assert_eq!(generation.load(Ordering::Relaxed), 0);
}

#[test]
fn hot_items_are_walked_in_the_order_of_their_registration() {
    let _turn = tables();
    let (instance, items) = instance_with(4);
    assert_eq!(order(instance, &items), [0, 1, 2, 3]);
    // Hot already.
    hot::warm(instance, items[0]);
    assert_eq!(order(instance, &items), [0, 1, 2, 3]);
    hot::forget(instance, items[1]);
    hot::forget(instance, items[1]);
    assert_eq!(order(instance, &items), [0, 2, 3]);
    hot::warm(instance, items[1]);
    assert_eq!(order(instance, &items), [0, 2, 3, 1]);
    hot::forget(instance, items[0]);
    assert_eq!(order(instance, &items), [2, 3, 1]);
    assert_eq!(instance.hot_count.load(Ordering::Relaxed), 3);
    end(instance, &items);
}

#[test]
fn what_was_told_of_comes_first_in_that_order() {
    let _turn = tables();
    let (instance, items) = instance_with(5);
    let tell = |told: &[usize]| {
        let mut last = None;
        for place in told {
            hot::tell(instance, items[*place], last);
            last = Some(items[*place]);
        }
        order(instance, &items)
    };
    assert_eq!(tell(&[3]), [3, 0, 1, 2, 4]);
    assert_eq!(tell(&[3]), [3, 0, 1, 2, 4]);
    assert_eq!(tell(&[1, 4]), [1, 4, 3, 0, 2]);
    assert_eq!(tell(&[1, 4, 2]), [1, 4, 2, 3, 0]);
    assert_eq!(tell(&[1, 4, 2, 3, 0]), [1, 4, 2, 3, 0]);
    hot::begin_with(instance, items[2]);
    assert_eq!(order(instance, &items), [2, 3, 0, 1, 4]);
    // Of those before it, the last one is told of: it stands before what has to wait.
    assert_eq!(tell(&[2, 4]), [2, 4, 3, 0, 1]);
    end(instance, &items);
}

#[test]
fn a_walk_sees_each_item_once_while_it_is_changed() {
    let _turn = tables();
    let (instance, items) = instance_with(5);
    let mut last = None;
    let mut seen = vec![];
    for (index, _) in hot::walk(instance) {
        seen.push(index);
        // Each other one is told of, and one goes.
        if index == items[2] {
            hot::forget(instance, index);
        } else if seen.len() % 2 == 0 {
            hot::tell(instance, index, last);
            last = Some(index);
        }
    }
    assert_eq!(seen, items);
    assert_eq!(order(instance, &items), [1, 3, 0, 4]);
    end(instance, &items);
    let (instance, items) = instance_with(1);
    hot::tell(instance, items[0], None);
    assert_eq!(order(instance, &items), [0]);
    end(instance, &items);
}

#[test]
fn after_a_fork_the_circle_is_made_anew() {
    let _turn = tables();
    let (instance, items) = instance_with(3);
    for index in &items {
        link_of_instance(instance, *index);
    }
    // A thread of the parent's was in the middle of a change.
    item_at(items[0])
        .next_hot
        .store(items[0], Ordering::Relaxed);
    item_at(items[1]).attached.store(0, Ordering::Relaxed);
    hot::renew(instance);
    assert_eq!(order(instance, &items), [0, 2]);
    assert_eq!(instance.attached.load(Ordering::Relaxed), 2);
    instance.items.store(0, Ordering::Relaxed);
    end(instance, &items);
}

/// A list from its head on, as places in `items`.
fn list(
    head: &AtomicU32,
    items: &[u32],
    next: impl Fn(&'static Item) -> &'static AtomicU32,
) -> Vec<usize> {
    let (mut found, mut at) = (vec![], head.load(Ordering::Relaxed));
    while let Some(index) = at.checked_sub(1) {
        found.extend(items.iter().position(|item| *item == index));
        at = next(item_at(index)).load(Ordering::Relaxed);
    }
    found
}

#[test]
fn an_item_is_taken_out_of_all_lists_wherever_it_stands() {
    let _turn = tables();
    for out in 0..3 {
        let (instance, items) = instance_with(3);
        let conn = state::conn(FD - 1).expect("a connection");
        for index in &items {
            let item = item_at(*index);
            link_of_instance(instance, *index);
            let next = conn.items.swap(index + 1, Ordering::Relaxed);
            item.next_of_conn.store(next, Ordering::Relaxed);
            for number in [&item.fd, &item.key] {
                number.store(FD, Ordering::Relaxed);
            }
        }
        instance.attached.store(3, Ordering::Relaxed);
        // The second time there is nothing to take out.
        remove(items[out]);
        remove(items[out]);
        let mut left = vec![2, 1, 0];
        left.retain(|place| *place != out);
        assert_eq!(list(&conn.items, &items, |item| &item.next_of_conn), left);
        let of_instance = list(&instance.items, &items, |item| &item.next_of_instance);
        assert_eq!(of_instance, left);
        left.reverse();
        assert_eq!(order(instance, &items), left);
        assert_eq!(instance.attached.load(Ordering::Relaxed), 2);
        let _ = items.iter().map(|item| remove(*item)).count();
        assert_eq!(instance.items.load(Ordering::Relaxed), 0);
        end(instance, &[]);
    }
}

#[test]
fn a_one_shot_is_told_of_once_by_the_kernels_word() {
    let _turn = tables();
    let item = item_at(new_item().expect("an item"));
    item.spent.store(0, Ordering::Relaxed);
    item.asked.store(IN | ONESHOT, Ordering::Relaxed);
    item.data.store(42, Ordering::Relaxed);
    assert!(ready::by_kernel(item, OUT).is_none(), "not asked for");
    let told = ready::by_kernel(item, IN | OUT | RDHUP).expect("an event");
    assert_eq!(({ told.events }, { told.u64 }), (IN, 42));
    assert!(ready::by_kernel(item, IN).is_none(), "shot");
    item.asked.store(OUT, Ordering::Relaxed);
    item.spent.store(0, Ordering::Relaxed);
    let told = ready::by_kernel(item, ERR | HUP).expect("an event");
    assert_eq!({ told.events }, ERR | HUP);
}

#[test]
fn who_sees_a_channel_finds_the_connection_attached() {
    let _turn = tables();
    link::make(11, [11; 16]).expect("a link");
    let (index, link) = link::by_id(11).expect("the link");
    // Only addresses of the peer's region are needed.
    let region = link.own_base.load(Ordering::Relaxed);
    let none = link.peer_base.swap(region, Ordering::Relaxed);
    let conn = state::add_conn(FD - 2, false).expect("a connection");
    conn.phase.advance(fordway_sockets::Event::Offered);
    // Who attaches, or gives a channel up, walks the connection's registrations.
    let list = PROCESS.epoll.list_lock.lock();
    let pair = fordway_abi::control::Pair {
        conn_id: conn.id(),
        channel_id: 1,
        link_id: 0,
        slot: 0,
        generation: 1,
        cuts_through: 0,
        pad: 0,
    };
    let other = std::thread::spawn(move || upgrade::paired(conn, index, &pair));
    while conn.shown() & IN == 0 {
        std::thread::yield_now();
    }
    // Now the thread waits. One that does not would show the channel soon.
    for _ in 0..1000 {
        std::thread::yield_now();
    }
    assert!(!conn.is_paired(), "somebody could give it up before");
    drop(list);
    other.join().expect("the thread's end");
    assert!(conn.is_paired());
    assert_eq!(conn.attaches.load(Ordering::Relaxed), 1);
    attach::detach(conn);
    free(conn);
    link.peer_base.store(none, Ordering::Relaxed);
    link.peer_gone.store(1, Ordering::Relaxed);
    link::unbind(index);
    assert!(link::by_id(11).is_none());
}

#[test]
fn a_control_connection_is_watched_under_the_number_of_the_one_before() {
    let _turn = tables();
    let flags = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;
    let readable = || sys!(SYS_eventfd2, 1, flags).expect("a file") as i32;
    let epoll = sys!(SYS_epoll_create1, libc::EPOLL_CLOEXEC).expect("an instance") as i32;
    created(epoll);
    let (_, instance) = super::instance(epoll).expect("the instance");
    // It has a doorbell.
    instance.door.store(1, Ordering::Relaxed);
    let is_told = || {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        sys!(SYS_epoll_wait, epoll, &raw mut event, 1, 0) == Ok(1)
    };
    let number = readable();
    broker::pretend(number);
    assert!(equip(instance).is_some() && is_told());
    assert!(equip(instance).is_some() && !is_told(), "watched already");
    // The broker goes, and the connection to the next one has the number at once.
    let next = readable();
    sys!(SYS_dup3, next, number, libc::O_CLOEXEC).expect("the number");
    broker::pretend(number);
    assert!(equip(instance).is_some() && is_told());
    broker::pretend(-1);
    if let Some(word) = state::slot(epoll) {
        word.store(kind::UNKNOWN, Ordering::Relaxed);
    }
    instance.used.store(0, Ordering::Relaxed);
    for fd in [epoll, number, next] {
        let _ = sys!(SYS_close, fd);
    }
}

/// Who is told of room, and may sleep in its send, gets some: a full ring shows room as long as there is memory for a larger
/// one, and no send has found that there is none.
#[test]
fn a_full_ring_shows_room_only_where_there_is_memory_to_grow() {
    let _turn = tables();
    let _broker = Silent::broker();
    let channel = Channel::new([86, 87], |_, _| ());
    let near = channel.ends[0];
    channel.fill();
    let base = link::at(channel.links[0]).own_base.load(Ordering::Relaxed);
    // SAFETY: a region of ours; all words are atomics.
    let header = unsafe { &*base.cast::<RegionHeader>() };
    let shows_room = || mask_of(near, channel.fds[0], OUT) & OUT != 0;
    assert!(shows_room());
    let taken = header.arena_next.load(Ordering::Relaxed);
    header.arena_end.store(taken, Ordering::Relaxed);
    assert!(!shows_room(), "without memory");
    header.arena_end.store(0, Ordering::Relaxed);
    near.own().tx_own.no_space.store(1, Ordering::Relaxed);
    assert!(!shows_room(), "behind a send that found none");
    assert!(note_room_told(near));
    assert!(shows_room() && !note_room_told(near));
}
