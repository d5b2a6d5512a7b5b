//! Which items every wait looks at.
//!
//! An attached item is *hot* (in its instance's list: each wait looks at its tail)
//! or *cold* (nobody looks; the peer marks it when bytes come, see
//! `fordway_ring::marks`). New items are hot. When more than [`HOT_MAX`] are, those in
//! which nothing happened for [`COOL_WALKS`] walks become cold. Marks, the kernel's
//! events and the program's own epoll_ctl make an item hot again. So a wait costs
//! the same beside 10 and beside 10,000 idle connections.
//!
//! An item stays hot while something else than the peer's next byte may make it
//! ready: room, an end of file that was shown, bytes of ours that are still unread.
//! So does one of several items of a connection, because the mark is the connection's.
//!
//! # Their order
//! Linux has a list of what is ready (fs/eventpoll.c: ep_send_events). What became ready stands at
//! its end. What is told of at each level is put there again; what found no room keeps its place.
//! EPOLL_CTL_MOD puts at the end what is ready and not in the list.
//!
//! Nobody is told here when a ring becomes ready. So the wait that tells of items puts them in order
//! ([`in_order`]), by their place in that list, which is a time: when it was told of at each level,
//! armed, or became ready. The latter is when the first byte was published that the program does
//! not know of (`fordway_ring::moment`), by the peer's word. It counts as not before the last time
//! when anything was told: else a peer that lies would be the first in each wait.
//!
//! Hot items form a circle, in the order in which a wait looks at them and told of them. It is their
//! order if more of them have something than a wait looks at before it tells of any. First comes
//! what was told of last, then what was told of before, last what is new. If the room was too small,
//! the rest comes first.
//!
//! All of this happens under the instance's lock. A mark may be swept by a thread of
//! another instance; it makes the item hot where it belongs and wakes that instance.

use super::instances::bell_of;
use super::items::items_of;
use super::ready::{has_bytes, stirs};
use super::waiting::BATCH_ITEMS;
use super::*;
use fordway_abi::shm::tx_state;

/// Hot items up to which none becomes cold. Each costs every wait 3 ns, and a mark costs
/// 100 ns; with 64 of them a round trip beside idle connections took twice as long.
const HOT_MAX: u32 = 8;
/// Bit of [`Item::place`].
pub const TOLD_ONCE: u64 = 1;
/// Ticks between the places of what the kernel's word told of and of the rings in the same wait.
pub const BEHIND_KERNEL: u64 = 2;
/// Walks without an event after which a hot item may become cold.
const COOL_WALKS: u32 = 32;

/// Puts an attached item into the list. Under the instance's lock.
pub fn warm(instance: &Instance, index: u32) {
    let item = item_at(index);
    item.cool.store(0, Ordering::Relaxed);
    if item.hot.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    if let Some(conn) = conn_of(item).filter(|conn| conn.is_paired()) {
        conn.own().wait.wants_mark.store(0, Ordering::Relaxed);
    }
    link(instance, index, first(instance));
    instance.hot_count.fetch_add(1, Ordering::Relaxed);
}

/// An item gets a ring, and has the place of what the kernel told of, if nothing was told of since
/// but rings right behind it. Under the instance's lock.
pub fn keep_place(instance: &Instance, item: &Item) {
    let last = instance.told_at.load(Ordering::Relaxed);
    if (item.place.load(Ordering::Relaxed) | TOLD_ONCE) < last.saturating_sub(BEHIND_KERNEL) {
        item.place.store(0, Ordering::Relaxed);
    }
}

/// The program arms an item anew. Under the instance's lock.
pub fn arm(item: &Item) {
    if has_place(item).is_none() {
        let is_ready = item.attached.load(Ordering::Relaxed) != 0 && has_bytes(item);
        let place = if is_ready {
            sys::ticks() & !TOLD_ONCE
        } else {
            0
        };
        item.place.store(place, Ordering::Relaxed);
    }
}

/// An item has been told of at a time, in ticks. Under the instance's lock.
pub fn note_told(item: &Item, told_at: u64) {
    let once = item.events.load(Ordering::Relaxed) & (ET | ONESHOT) != 0;
    let place = if once { told_at | TOLD_ONCE } else { told_at };
    item.place.store(place, Ordering::Relaxed);
}

/// Whether it was told of at that time.
pub fn was_told(item: &Item, told_at: u64) -> bool {
    item.place.load(Ordering::Relaxed) | TOLD_ONCE == told_at | TOLD_ONCE
}

/// A wait has found an item with nothing, or it was deleted. Under the instance's lock.
#[inline]
pub fn lose_place(item: &Item) {
    if item.place.load(Ordering::Relaxed) != 0 {
        item.place.store(0, Ordering::Relaxed);
    }
}

fn has_place(item: &Item) -> Option<u64> {
    let place = item.place.load(Ordering::Relaxed);
    (place != 0 && place & TOLD_ONCE == 0).then_some(place)
}

/// Puts items that have something into the order in which they are told of, and gives them their
/// places. Under the instance's lock.
pub fn in_order(instance: &Instance, items: &mut [u32]) {
    let now = sys::ticks();
    let last = instance.told_at.load(Ordering::Relaxed);
    let mut places = [(0, 0, 0); BATCH_ITEMS];
    let places = &mut places[..items.len()];
    for (at, (place, &index)) in places.iter_mut().zip(&*items).enumerate() {
        let item = item_at(index);
        let ticks = has_place(item).unwrap_or_else(|| {
            // Without bytes it has something else, which the kernel has shown.
            ready_since(item, now).map_or(last, |ticks| ticks.max(last)) & !TOLD_ONCE
        });
        item.place.store(ticks, Ordering::Relaxed);
        // Those of one time stay in the order in which they were told of.
        *place = (ticks, at, index);
    }
    places.sort_unstable();
    for (place, (.., index)) in items.iter_mut().zip(places) {
        *place = *index;
    }
}

/// When the first byte came that the program does not know of, in ticks up to `now`, if there is one.
fn ready_since(item: &Item, now: u64) -> Option<u64> {
    let conn = conn_of(item).filter(|conn| conn.is_paired() && conn.peer_is_there())?;
    let taken = conn.consumer().head();
    let from = match item.events.load(Ordering::Relaxed) & ET {
        0 => taken,
        _ => taken.max(item.seen_tail.load(Ordering::Relaxed)),
    };
    conn.consumer().published_at(from, now)
}

/// Takes an item out of the list, if it is there. Under the instance's lock.
pub fn forget(instance: &Instance, index: u32) {
    if item_at(index).hot.swap(0, Ordering::Relaxed) != 0 {
        unlink(instance, index);
        instance.hot_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An item has been told of, behind `told`, or as the first one. Under the instance's lock.
#[inline]
pub fn tell(instance: &Instance, index: u32, told: Option<u32>) {
    let place = match told {
        None => first(instance),
        Some(told) => Some(item_at(told).next_hot.load(Ordering::Relaxed)),
    };
    if place != Some(index) {
        unlink(instance, index);
        link(instance, index, place);
    }
    if told.is_none() {
        begin_with(instance, index);
    }
}

/// The next walk begins with this item. Under the instance's lock.
pub fn begin_with(instance: &Instance, index: u32) {
    instance.hot.store(index + 1, Ordering::Relaxed);
}

fn first(instance: &Instance) -> Option<u32> {
    instance.hot.load(Ordering::Relaxed).checked_sub(1)
}

/// Puts an item into the circle before `next`, which is behind all others if that is the first
/// one; alone if there is none.
fn link(instance: &Instance, index: u32, next: Option<u32>) {
    let item = item_at(index);
    let Some(next) = next else {
        item.next_hot.store(index, Ordering::Relaxed);
        item.last_hot.store(index, Ordering::Relaxed);
        begin_with(instance, index);
        return;
    };
    let last = item_at(next).last_hot.swap(index, Ordering::Relaxed);
    item_at(last).next_hot.store(index, Ordering::Relaxed);
    item.next_hot.store(next, Ordering::Relaxed);
    item.last_hot.store(last, Ordering::Relaxed);
}

fn unlink(instance: &Instance, index: u32) {
    let item = item_at(index);
    let next = item.next_hot.load(Ordering::Relaxed);
    let last = item.last_hot.load(Ordering::Relaxed);
    item_at(last).next_hot.store(next, Ordering::Relaxed);
    item_at(next).last_hot.store(last, Ordering::Relaxed);
    if first(instance) == Some(index) {
        let left = if next == index { 0 } else { next + 1 };
        instance.hot.store(left, Ordering::Relaxed);
    }
}

/// In a forked child: a thread of the parent may have been changing the list.
pub fn renew(instance: &Instance) {
    instance.hot.store(0, Ordering::Relaxed);
    instance.hot_count.store(0, Ordering::Relaxed);
    let mut attached = 0;
    let mut next = instance.items.load(Ordering::Relaxed);
    while let Some(index) = next.checked_sub(1) {
        let item = item_at(index);
        next = item.next_of_instance.load(Ordering::Relaxed);
        item.hot.store(0, Ordering::Relaxed);
        if item.attached.load(Ordering::Relaxed) != 0 {
            attached += 1;
            item.hot.store(1, Ordering::Relaxed);
            // The instance has its newest item first.
            link(instance, index, first(instance));
            begin_with(instance, index);
            instance.hot_count.fetch_add(1, Ordering::Relaxed);
        }
    }
    instance.attached.store(attached, Ordering::Relaxed);
}

pub fn conn_of(item: &Item) -> Option<&'static Conn> {
    let index = item.conn.load(Ordering::Relaxed).checked_sub(1)?;
    Some(state::conn_at(index))
}

/// The hot items, each once. The current one may be taken out, or put before those to come.
pub fn walk(instance: &Instance) -> impl Iterator<Item = (u32, &'static Item)> {
    let mut next = first(instance);
    let last = next.map(|index| item_at(index).last_hot.load(Ordering::Relaxed));
    core::iter::from_fn(move || {
        let index = next?;
        let item = item_at(index);
        next = (next != last).then(|| item.next_hot.load(Ordering::Relaxed));
        Some((index, item))
    })
}

/// Makes those items cold in which nothing has happened for long. Under the lock.
pub fn cool(instance: &Instance) {
    if instance.hot_count.load(Ordering::Relaxed) <= HOT_MAX {
        return;
    }
    for (index, item) in walk(instance) {
        if item.cool.fetch_add(1, Ordering::Relaxed) < COOL_WALKS {
            continue;
        }
        let Some(conn) = conn_of(item).filter(|conn| may_cool(conn)) else {
            continue;
        };
        // SYNC POINT with `Producer::publish`: the wish before the look at the tail.
        conn.own().wait.wants_mark.store(1, Ordering::SeqCst);
        core::sync::atomic::fence(Ordering::SeqCst);
        if stirs(item) {
            conn.own().wait.wants_mark.store(0, Ordering::Relaxed);
            item.cool.store(0, Ordering::Relaxed);
            continue;
        }
        forget(instance, index);
    }
}

fn may_cool(conn: &Conn) -> bool {
    if !conn.is_paired() || !conn.peer_is_there() {
        return false;
    }
    let producer = conn.producer();
    let alone = items_of(conn).nth(1).is_none();
    // What comes before the ring is entered comes by the kernel, whose events make it hot.
    let stays = |state| matches!(state, tx_state::KERNEL | tx_state::RING);
    alone
        && stays(producer.state())
        && stays(conn.consumer().producer_state())
        && producer.unread_hint() == 0
        && conn.own().tx_own.no_space.load(Ordering::Relaxed) == 0
        && conn.is_plain()
        && conn.attention.load(Ordering::Relaxed) == 0
}

/// Makes the marked items of all links hot. Without the lock.
pub fn sweep(instance: &Instance, surely: bool) {
    let all = instance.attached.load(Ordering::Relaxed);
    if all == instance.hot_count.load(Ordering::Relaxed) {
        return;
    }
    for (_, link) in crate::link::all() {
        link.sweep(surely, |conn| {
            let _list = PROCESS.epoll.list_lock.lock();
            for (index, item) in items_of(conn) {
                warm_marked(instance, index, item);
            }
        });
    }
}

fn warm_marked(sweeper: &Instance, index: u32, item: &Item) {
    let instance = instance_at(item.instance.load(Ordering::Relaxed));
    let Some(guard) = instance.lock.lock() else {
        return;
    };
    if item.attached.load(Ordering::Relaxed) != 0 {
        warm(instance, index);
    }
    drop(guard);
    if !core::ptr::eq(instance, sweeper)
        && let Some(bell) = bell_of(instance)
        && bell.has_sleepers()
    {
        bell.knock();
    }
}
