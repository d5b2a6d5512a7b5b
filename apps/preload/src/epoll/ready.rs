//! What is to be reported: the state of a connection as poll(2) bits, and the
//! rules of level- and edge-triggered items.

use super::items::{items_of, warm_all};
use super::{ERR, ET, HUP, IN, Item, ONESHOT, OUT, PRI, RDHUP};
use crate::state::{self, Conn, attention};
use crate::stay;
use crate::sys::sys;
use crate::thread::Shield;
use core::sync::atomic::{Ordering, fence};
use fordway_abi::shm::{no_space, tx_flags, tx_state};
use fordway_sockets::{End, ends, ready};

/// The state of a connection with a channel, as poll(2) bits; of those that nobody `wanted`, OUT may
/// be left out.
#[inline(always)]
pub fn mask_of(conn: &Conn, fd: i32, wanted: u32) -> u32 {
    let end = conn.end();
    let before = ready::binding(&end);
    if let Some(mask) = plain_mask(conn, wanted)
        && ready::is_still(&end, before)
    {
        return mask;
    }
    mask_of_any(conn, fd, wanted)
}

/// The same of a connection of which nothing is known but that bytes come and go by rings: neither
/// the kernel nor the peer's flags have anything to add. `None`: [`mask_now`] is to look.
#[inline(always)]
fn plain_mask(conn: &Conn, wanted: u32) -> Option<u32> {
    let producer = conn.producer();
    let flags = conn.consumer().producer_flags();
    // An end that sends nothing yet does so by the kernel, who knows of its room.
    let by_ring = match producer.state() {
        tx_state::RING => true,
        state => state == tx_state::KERNEL && wanted & OUT == 0,
    };
    if conn.shown() & (IN | PRI | RDHUP | HUP | ERR) != 0
        || conn.attention.load(Ordering::Relaxed) & attention::BROKEN != 0
        || !by_ring
        || !conn.peer_is_there()
        || flags & (tx_flags::SHUT | tx_flags::CLOSED) != 0
    {
        return None;
    }
    let mut mask = 0;
    if ready::is_readable(&conn.end()) {
        mask |= IN;
    }
    if wanted & OUT != 0 && ready::has_room(&conn.end()) {
        mask |= OUT;
    }
    Some(mask)
}

#[inline(never)]
fn mask_of_any(conn: &Conn, fd: i32, wanted: u32) -> u32 {
    loop {
        let mask = ready::steadily(&conn.end(), || mask_now(conn, fd, wanted));
        match mask {
            Some(mask) => return mask,
            // Another thread has just given the channel up.
            None if !conn.is_paired() => return ask_kernel(conn, fd, true),
            None => {}
        }
    }
}

fn mask_now(conn: &Conn, fd: i32, wanted: u32) -> u32 {
    let seen = conn.shown();
    if conn.attention.load(Ordering::Relaxed) & attention::BROKEN != 0 {
        return IN | OUT | ERR | HUP | RDHUP;
    }
    let producer = conn.producer();
    let mut mask = seen & (RDHUP | HUP | ERR);
    if ready::is_readable(&conn.end()) {
        mask |= IN;
    }
    let sends = producer.state();
    let full = conn.own().tx_own.no_space.load(Ordering::Relaxed) != 0;
    if sends == tx_state::RING {
        if ready::has_room(&conn.end()) {
            mask |= OUT;
        }
    } else if sends == tx_state::KERNEL && !full {
        mask |= OUT;
    }
    let there = conn.peer_is_there();
    // An end that the kernel has not shown to us yet, and one that only the kernel can explain.
    let ends = there
        && seen & RDHUP == 0
        && conn.consumer().producer_flags() & (tx_flags::SHUT | tx_flags::CLOSED) != 0;
    let dead = there && ends::is_by_ring(&conn.end()) && ends::is_dead(&conn.end());
    let ask_out = wanted & OUT != 0 && mask & OUT == 0 && sends != tx_state::RING;
    let ask_in = wanted & IN != 0 && mask & IN == 0 && seen & (IN | RDHUP | HUP) != 0;
    let ask_urgent = wanted & seen & PRI != 0;
    if ask_in || ask_urgent || ask_out || ends || dead {
        let by_kernel = sends != tx_state::RING && producer.back_bytes_or_zero() == 0;
        mask = mask & !ERR | ask_kernel(conn, fd, dead || by_kernel);
    }
    if dead && ends::is_reset(&conn.end()) {
        let untold = if ends::is_untold(&conn.end()) { ERR } else { 0 };
        mask |= IN | OUT | RDHUP | HUP | untold;
    }
    mask
}

fn ask_kernel(conn: &Conn, fd: i32, by_kernel: bool) -> u32 {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP,
        revents: 0,
    };
    let serial = conn.serial.load(Ordering::Acquire);
    let is_its = stay::is_its(conn, fd);
    let seen = conn.shown();
    let _ = sys!(SYS_poll, &raw mut entry, 1, 0);
    let shown = entry.revents as u16 as u32;
    // Who polls a number may find it closed meanwhile, and number and entry others' by now.
    if is_its {
        stay::if_still(conn, fd, serial, || {
            // An error is shown until the program has fetched it.
            conn.forget(seen, (IN | PRI | ERR) & !shown);
            conn.note(shown & (PRI | RDHUP | HUP | ERR));
        });
    }
    // A send that can only fail need not wait for what was taken back from the ring.
    if by_kernel || shown & HUP != 0 {
        shown
    } else {
        shown & !OUT
    }
}

/// Whether bytes of an attached item's ring are unread.
pub fn has_bytes(item: &Item) -> bool {
    let (tail, head) = (&item.tail, &item.head);
    // SAFETY: set by `attach`, and regions stay mapped while a connection is attached.
    let [tail, head] =
        [tail, head].map(|word| unsafe { (*word.load(Ordering::Relaxed)).load(Ordering::Acquire) });
    tail != head
}

/// Whether an item is worth an [`evaluate`]: a few loads, because every wait asks it
/// of every item. May say yes for nothing, never no for something.
#[inline]
pub fn stirs(item: &Item) -> bool {
    let attached = item.attached.load(Ordering::Relaxed);
    if attached == 0 || item.spent.load(Ordering::Relaxed) != 0 {
        return false;
    }
    let conn = state::conn_at(item.conn.load(Ordering::Relaxed).wrapping_sub(1));
    let events = item.events.load(Ordering::Relaxed);
    // SAFETY: set by `attach`, and regions stay mapped while a connection is attached.
    let tail = unsafe { (*item.tail.load(Ordering::Relaxed)).load(Ordering::Acquire) };
    let stirred =
        conn.attention.load(Ordering::Relaxed) != 0 || item.forced.load(Ordering::Relaxed) != 0;
    if events & ET != 0 {
        return stirred
            || tail != item.seen_tail.load(Ordering::Relaxed)
            || conn.edges.load(Ordering::Relaxed) != item.seen_edges.load(Ordering::Relaxed)
            || events & OUT != 0
                && (conn.own().tx_own.no_space.load(Ordering::Relaxed) != 0
                    || conn.rooms.load(Ordering::Relaxed)
                        != item.seen_rooms.load(Ordering::Relaxed));
    }
    // SAFETY: as above.
    let head = unsafe { (*item.head.load(Ordering::Relaxed)).load(Ordering::Relaxed) };
    stirred
        || tail != head
        || events & OUT != 0
        || conn.shown() & (IN | PRI | RDHUP | HUP | ERR) != 0
}

/// What is to be reported of an item now; 0: nothing. With `note`, it is reported.
#[inline(always)]
pub fn evaluate(item: &Item, note: bool) -> u32 {
    let Some(index) = item.conn.load(Ordering::Relaxed).checked_sub(1) else {
        return 0;
    };
    if item.attached.load(Ordering::Relaxed) == 0 || item.spent.load(Ordering::Relaxed) != 0 {
        return 0;
    }
    let conn = state::conn_at(index);
    if !conn.is_paired() {
        return 0;
    }
    let events = item.events.load(Ordering::Relaxed);
    // The program's number may be another socket's by now.
    let fd = item.key.load(Ordering::Relaxed);
    let edge = events & ET != 0;
    // Until the peer is there, its endpoint is that of the slot's former channel; this one
    // begins at 0, and may well come to the same tail.
    let tail = match conn.peer_is_there() {
        true => conn.consumer().tail_hint(),
        false => 0,
    };
    let edges = conn.edges.load(Ordering::Relaxed);
    let rooms = conn.rooms.load(Ordering::Relaxed);
    if edge {
        let moved = tail != item.seen_tail.load(Ordering::Relaxed)
            || edges != item.seen_edges.load(Ordering::Relaxed)
            || item.forced.load(Ordering::Relaxed) != 0
            || events & OUT != 0
                && (rooms != item.seen_rooms.load(Ordering::Relaxed) || room_came(conn));
        if !moved {
            return 0;
        }
    }
    let mut mask = mask_of(conn, fd, events);
    // The wish of an item of levels is for the connection's other items.
    if note && events & OUT != 0 && mask & OUT == 0 && (edge || has_more_items(conn)) {
        mask |= asked_in_vain(conn, || ());
    }
    let ends = mask & (RDHUP | HUP | ERR);
    let mask = (mask | (mask & 0b101) << 6) & (item.asked.load(Ordering::Relaxed) | ERR | HUP);
    if note {
        item.forced.store(0, Ordering::Relaxed);
        item.seen_ends.store(ends, Ordering::Relaxed);
        item.seen_edges.store(edges, Ordering::Relaxed);
        item.seen_tail.store(tail, Ordering::Relaxed);
        item.seen_rooms.store(rooms, Ordering::Relaxed);
        if mask & (OUT | OUT << 6) != 0 && note_room_told(conn) {
            item.seen_rooms
                .store(rooms.wrapping_add(1), Ordering::Relaxed);
        }
        if mask != 0 && events & ONESHOT != 0 {
            item.spent.store(1, Ordering::Relaxed);
        }
    }
    mask
}

/// The program is told of room. Whether a send had found none: then items that tell of edges have it still to be told.
pub fn note_room_told(conn: &Conn) -> bool {
    let no_space = &conn.own().tx_own.no_space;
    let is_news = no_space.load(Ordering::Relaxed) != 0;
    if is_news {
        no_space.store(0, Ordering::Relaxed);
        conn.rooms.fetch_add(1, Ordering::Relaxed);
    }
    is_news
}

fn has_more_items(conn: &Conn) -> bool {
    items_of(conn).nth(1).is_some()
}

/// Who polls asked for room of a ring in vain. Without an instance's lock.
pub fn polled_in_vain(conn: &Conn) {
    if conn.items.load(Ordering::Acquire) != 0 {
        // The wish without the look for room would be a waiter's that nobody wakes.
        let _shield = Shield::new();
        asked_in_vain(conn, || warm_all(conn));
    }
}

/// A wait asked for room of a ring in vain: that there is some again is an event of items of edges, whether or not a send has found
/// none (linux: SOCK_NOSPACE in tcp_poll). OUT if it has just come. `warm` makes items hot that may be cold.
#[cold]
fn asked_in_vain(conn: &Conn, warm: impl FnOnce()) -> u32 {
    let wish = &conn.own().tx_own.no_space;
    if conn.producer().state() != tx_state::RING || wish.load(Ordering::Relaxed) != no_space::NOBODY
    {
        return 0;
    }
    wish.store(no_space::WAIT, Ordering::SeqCst);
    warm();
    // SYNC POINT with `Consumer::take`: the wish before the look for room. A waiter that was woken in between found nobody's wish.
    fence(Ordering::SeqCst);
    if !conn.peer_is_there() || !room_came(conn) {
        return 0;
    }
    conn.end().wake_own();
    OUT
}

/// Whether a send found no room, and there is some now.
fn room_came(conn: &Conn) -> bool {
    let producer = conn.producer();
    conn.own().tx_own.no_space.load(Ordering::Relaxed) != 0
        && producer.state() == tx_state::RING
        && producer.room_hint() * 2 >= producer.capacity_bytes()
}

/// The kernel has shown an event of an item that is not attached: what the program
/// gets of it. Under the instance's lock.
pub fn by_kernel(item: &Item, shown: u32) -> Option<libc::epoll_event> {
    let events = item.asked.load(Ordering::Relaxed);
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
