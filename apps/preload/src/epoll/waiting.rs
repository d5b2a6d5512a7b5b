//! epoll_wait itself.

use super::hot::{self, conn_of, walk};
use super::instances::{bell_of, equip};
use super::ready::{by_kernel, evaluate, stirs};
use super::*;
use crate::deadline::{self, Begun, Deadline};
use crate::signals::Call;
use crate::spin::{self, Look};
use crate::thread::{self, Shield};
use crate::wait::{self, Bell};
use crate::{broker, datagram, faults, late, link, real, upgrade};
use core::ffi::c_void;
use fordway_abi::shm::tx_state;
use fordway_sockets::down;

/// What epoll_wait takes at most (linux: EP_MAX_EVENTS).
pub const ROOM_MAX: i32 = i32::MAX / size_of::<libc::epoll_event>() as i32;

/// Items that are looked at before the first of them is reported.
pub const BATCH_ITEMS: usize = 32;
/// Between two waits that showed what is another process's.
const STRANGE_PAUSE_MS: i32 = 1;
/// Looks of one wait that own events alone may fill: doors of peers, which others may knock at again and again.
const HIDDEN_MAX: u32 = 16;

/// Reports up to `room` items at `events`, in the array that begins at `first`; returns how
/// many, and whether the kernel is to be asked before the next one. `now`: it may be, and how
/// late it is, in ticks. Nothing is reported twice: not what the array has by the kernel's word,
/// told of at `by_kernel_at`.
#[inline(never)]
fn collect(
    instance: &Instance,
    (first, events): (*mut libc::epoll_event, *mut libc::epoll_event),
    room: usize,
    now: Option<u64>,
    by_kernel_at: u64,
) -> (usize, bool) {
    if room == 0 || instance.attached.load(Ordering::Relaxed) == 0 {
        return (0, false);
    }
    hot::sweep(instance, false);
    let Some(_guard) = instance.lock.lock() else {
        return (0, false);
    };
    let is_stale = now.is_some_and(|now| is_stale(instance, now));
    let mut results = faults::Results::of(first);
    let mut items = walk(instance);
    let mut batch = [0; BATCH_ITEMS];
    let mut count = 0;
    let mut told = None;
    let mut told_at = 0;
    let mut is_late = false;
    let mut is_full = false;
    while !is_full {
        let found = fill(&mut batch, by_kernel_at, &mut items);
        // Before any of them is reported, or what rings have would be parted by the question. And
        // before that is asked because of its age, so that the answer holds the peers' acts.
        is_late = now.is_some() && is_any_behind(instance, found) || is_stale;
        if found.is_empty() || is_late {
            if let Some(&index) = found.first() {
                hot::begin_with(instance, index);
            }
            break;
        }
        let is_all = told.is_none() && found.len() < BATCH_ITEMS;
        if is_all && found.len() > 1 {
            hot::in_order(instance, found);
        }
        for &index in &*found {
            let item = item_at(index);
            if count == room {
                hot::begin_with(instance, index);
                is_full = true;
                break;
            }
            // SAFETY: the program's array, with room for it.
            let place = unsafe { events.add(count) };
            if !results.may_take(place) {
                // Behind it nothing is reported (linux: ep_send_events).
                hot::begin_with(instance, index);
                is_full = true;
                break;
            }
            let mask = evaluate(item, true);
            if mask == 0 {
                hot::lose_place(item);
            } else {
                item.cool.store(0, Ordering::Relaxed);
                let event = libc::epoll_event {
                    events: mask,
                    u64: item.data.load(Ordering::Relaxed),
                };
                // SAFETY: as above, found writable.
                unsafe { place.write_unaligned(event) };
                count += 1;
                if told.is_none() {
                    told_at = match by_kernel_at {
                        0 => sys::ticks() & !hot::TOLD_ONCE,
                        before => before + hot::BEHIND_KERNEL,
                    };
                    instance.told_at.store(told_at, Ordering::Relaxed);
                }
                hot::note_told(item, told_at);
                hot::tell(instance, index, told);
                told = Some(index);
                instance
                    .active
                    .store(item.conn.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        if found.len() < BATCH_ITEMS {
            // There are no more.
            break;
        }
        if count == room && !is_full {
            if let Some((index, _)) = items.next() {
                hot::begin_with(instance, index);
            }
            is_full = true;
        }
    }
    hot::cool(instance);
    (count, is_late)
}

/// The next of `items` that stir, without those that were told of at `by_kernel_at`.
#[inline(always)]
fn fill<'a>(
    batch: &'a mut [u32; BATCH_ITEMS],
    by_kernel_at: u64,
    items: &mut impl Iterator<Item = (u32, &'static Item)>,
) -> &'a mut [u32] {
    let mut count = 0;
    // The place first: what is taken out of `items` has one.
    while let Some(place) = batch.get_mut(count)
        && let Some((index, item)) = items.next()
    {
        if !stirs(item) {
            hot::lose_place(item);
        } else if by_kernel_at == 0 || !hot::was_told(item, by_kernel_at) {
            *place = index;
            count += 1;
        }
    }
    batch.get_mut(..count).unwrap_or_default()
}

/// Whether the kernel's last answer is too old.
fn is_stale(instance: &Instance, now: u64) -> bool {
    now >= instance.ask_at_ticks.load(Ordering::Relaxed)
}

/// Whether the kernel is to be asked before what is found in rings is told: some peer has acted.
/// All are looked at, so that their acts up to here are known before the kernel is asked.
#[inline(always)]
fn is_any_behind(instance: &Instance, found: &[u32]) -> bool {
    let asked = instance.asked.load(Ordering::Relaxed);
    let mut is_any = false;
    for &index in found {
        if let Some(conn) = conn_of(item_at(index)) {
            is_any |= conn.has_acted_since(asked);
        }
    }
    is_any
}

/// Reports what there is without a sleep: what the kernel has, if it is to be asked, and then what
/// rings have. `now`: the time in ticks, or a little before.
#[inline(always)]
fn gather(instance: &Instance, events: *mut libc::epoll_event, room: usize, now: u64) -> usize {
    // However little room there is, neither may starve the other.
    let asks = instance.filled.load(Ordering::Relaxed) == 0;
    if !asks {
        instance.filled.store(0, Ordering::Relaxed);
    }
    let array = (events, events);
    let beside = datagram::room_beside(instance, room);
    let (count, is_late) = collect(instance, array, beside, asks.then_some(now), 0);
    if !datagram::are_in(instance) {
        return match count {
            0 if is_late => gather_late(instance, events, room),
            count => count,
        };
    }
    gather_datagrams(
        instance,
        events,
        room,
        (count, is_late),
        asks.then_some(now),
    )
}

/// The same where UDP sockets may have something, behind what `collect` has found.
#[inline(never)]
fn gather_datagrams(
    instance: &Instance,
    events: *mut libc::epoll_event,
    room: usize,
    (count, is_late): (usize, bool),
    now: Option<u64>,
) -> usize {
    // The kernel's turn comes with those, too.
    let is_late = is_late
        || now.is_some_and(|now| is_stale(instance, now)) && datagram::is_any_ready(instance);
    if count == 0 && is_late {
        return gather_late(instance, events, room);
    }
    count + datagram::collect(instance, events, count, room)
}

/// The kernel is to be asked before what rings have is told.
#[inline(never)]
fn gather_late(instance: &Instance, events: *mut libc::epoll_event, room: usize) -> usize {
    // A handler that jumps would take edges along that the kernel tells of once.
    let _shield = Shield::new();
    for round in 1..=ASKED_MAX {
        let by_kernel = ask_kernel(instance, events, room);
        let now = (round != ASKED_MAX).then_some(0);
        let (count, is_late) = report(instance, events, room, by_kernel, now);
        if count != 0 || !is_late {
            return count;
        }
    }
    0
}

/// A wait begins: whether the kernel is to be asked in it, whatever the time.
fn is_turn(instance: &Instance) -> bool {
    let turns = instance.turns.load(Ordering::Relaxed) + 1;
    let is_it = turns == TURNS;
    let next = if is_it { 0 } else { turns };
    instance.turns.store(next, Ordering::Relaxed);
    is_it
}

fn ask_kernel(instance: &Instance, events: *mut libc::epoll_event, room: usize) -> usize {
    let asked = kernel_wait(instance, events, room, Some(0), core::ptr::null());
    let count = asked.unwrap_or(0);
    instance
        .filled
        .store(u32::from(count == room), Ordering::Relaxed);
    count
}

/// Whether some item has something to report. `surely`: the last look before a sleep,
/// which may not leave anything to a thread that holds a lock.
fn anything(instance: &Instance, surely: bool) -> bool {
    hot::sweep(instance, surely);
    let lock = &instance.lock;
    let Some(_guard) = (if surely { lock.lock() } else { lock.try_lock() }) else {
        return false;
    };
    walk(instance).any(|(_, item)| stirs(item) && evaluate(item, false) != 0)
        || datagram::is_any_ready(instance)
}

/// As `anything`, surely. Without the lock.
pub fn has_something(instance: &Instance) -> bool {
    anything(instance, true)
}

/// Sorts what the kernel reported: ours is noted, the program's stays, moved together.
/// Then adds what rings have to report.
fn report(
    instance: &Instance,
    events: *mut libc::epoll_event,
    room: usize,
    by_kernel: usize,
    now: Option<u64>,
) -> (usize, bool) {
    let (kept, told_at) = translate(instance, events, by_kernel);
    // SAFETY: the program's array, behind what is kept.
    let behind = unsafe { events.add(kept) };
    let beside = datagram::room_beside(instance, room - kept);
    let (count, is_late) = collect(instance, (events, behind), beside, now, told_at);
    if told_at != 0 {
        // Behind `collect`, which goes by the wait before.
        instance.told_at.fetch_max(told_at, Ordering::Relaxed);
    }
    let count = kept + count;
    let more = match is_late && count == 0 {
        true => 0,
        false => datagram::collect(instance, events, count, room),
    };
    (count + more, is_late)
}

/// Whether rings may end a wait.
#[inline]
fn has_rings(instance: &Instance) -> bool {
    instance.attached.load(Ordering::Relaxed) != 0 || datagram::are_in(instance)
}

/// How many of the kernel's events are the program's, and when the items among them were told of,
/// in ticks; 0 if there are none.
fn translate(instance: &Instance, events: *mut libc::epoll_event, count: usize) -> (usize, u64) {
    let (mut kept, mut told_at) = (0, 0);
    for at in 0..count {
        // SAFETY: the kernel has just filled `count` events of the program's array.
        let event = unsafe { events.add(at).read_unaligned() };
        let (high, low) = ((event.u64 >> 32) as u32, event.u64 as u32);
        if high != PROCESS.epoll.tag.load(Ordering::Relaxed) {
            // SAFETY: as above; `kept <= at`.
            unsafe { events.add(kept).write_unaligned(event) };
            kept += 1;
        } else if low == TAG_CONTROL {
            broker::drain_mail();
        } else if low == TAG_BELL {
            // SYNC POINT with `Sleeper::announce`: behind the knock that this thread takes from who sleeps here,
            // and before the look at the rings. Peers must knock anew for the others.
            bell_of(instance)
                .filter(|bell| bell.has_sleepers())
                .inspect(|bell| bell.stand_by());
        } else if let Some(event) = translate_item(instance, event, &mut told_at) {
            // SAFETY: as above.
            unsafe { events.add(kept).write_unaligned(event) };
            kept += 1;
        }
    }
    (kept, told_at)
}

/// Whether the instance's bell is among what the kernel reported.
fn has_rung(events: *mut libc::epoll_event, count: usize) -> bool {
    let bell = tag(TAG_BELL);
    // SAFETY: the kernel has just filled `count` events of the program's array.
    (0..count).any(|at| unsafe { events.add(at).read_unaligned() }.u64 == bell)
}

/// An event of one of our items: what the program gets of it by the kernel's word alone.
fn translate_item(
    instance: &Instance,
    event: libc::epoll_event,
    told_at: &mut u64,
) -> Option<libc::epoll_event> {
    let guard = instance.lock.lock()?;
    let (index, item) = item_of_tag(event.u64)?;
    let events = event.events;
    let ours = core::ptr::eq(instance_at(item.instance.load(Ordering::Relaxed)), instance);
    let conn = conn_of(item).filter(|_| ours)?;
    if item.attached.load(Ordering::Relaxed) == 0 {
        if *told_at == 0 {
            *told_at = sys::ticks() & !hot::TOLD_ONCE;
        }
        hot::note_told(item, *told_at);
        return by_kernel(item, events);
    }
    hot::warm(instance, index);
    // News to this item, although another instance may have shown it to the connection.
    let ends = events & (RDHUP | HUP | ERR);
    if ends & !item.seen_ends.load(Ordering::Relaxed) != 0 {
        item.forced.store(1, Ordering::Relaxed);
    }
    // Under the lock: without it the connection may be closed, and its entry another one's.
    note_kernel(conn, events);
    drop(guard);
    None
}

fn note_kernel(conn: &Conn, events: u32) {
    let shown = events & (IN | PRI | RDHUP | HUP | ERR);
    let known = conn.note_edge(shown);
    let by_kernel = conn.is_paired() && conn.producer().state() != tx_state::RING;
    if by_kernel && events & OUT != 0 {
        conn.own().tx_own.no_space.store(0, Ordering::Relaxed);
    }
    // An end that was seen and reported before is no news; nor is it, then, as something to read.
    // Behind a shutdown of our own there is no end yet: bytes may still come.
    let news = shown & !(known & (RDHUP | HUP | ERR));
    let is_ours = conn.receive_shut.load(Ordering::Relaxed);
    let old_end = known & RDHUP != 0 && !is_ours && news == IN;
    if by_kernel || news != 0 && !old_end {
        conn.edges.fetch_add(1, Ordering::Relaxed);
    }
}

/// After a sleep: what peers and the watchdog want of the connections.
fn serve(instance: &Instance, watch: bool) {
    let count = instance.hot_count.load(Ordering::Relaxed) as usize;
    for (_, item) in walk(instance).take(count) {
        if item.attached.load(Ordering::Relaxed) == 0 {
            // Giving a channel up changes the list under us: the rest has its turn next time.
            break;
        }
        let Some(conn) = conn_of(item) else { break };
        down::serve(&conn.end());
        if watch {
            down::watch(&conn.end(), wait::WATCH_SLICE_NS);
        }
    }
}

/// Whether bytes of ours lie in a ring.
fn unread(instance: &Instance) -> bool {
    let Some(_guard) = instance.lock.lock() else {
        return true;
    };
    walk(instance)
        .filter_map(|(_, item)| conn_of(item))
        .any(|conn| {
            // The peer's index is of this channel once the peer is there.
            conn.is_paired()
                && conn.producer().state() == tx_state::RING
                && conn.peer_is_there()
                && conn.producer().unread_hint() != 0
        })
}

fn kernel_wait(
    instance: &Instance,
    events: *mut libc::epoll_event,
    room: usize,
    time_ns: Option<u64>,
    mask: *const c_void,
) -> sys::Result<usize> {
    let time = time_ns.map(deadline::timespec);
    let time_pointer = time
        .as_ref()
        .map_or(core::ptr::null(), |time| &raw const *time);
    let epoll = instance.fd.load(Ordering::Relaxed);
    let asked = link::acts_seen();
    let woken = if time_ns == Some(0) {
        sys!(SYS_epoll_pwait2, epoll, events, room, time_pointer, mask, 8)
    } else {
        // By libc, where a thread can be cancelled (man 7 pthreads).
        // SAFETY: the program's array; a time of ours; the program's mask.
        match unsafe { real::epoll_pwait2(epoll, events, room as i32, time_pointer, mask) } {
            ..0 => Err(sys::errno()),
            woken => Ok(woken as usize),
        }
    };
    instance.asked.store(asked, Ordering::Relaxed);
    let next = sys::ticks() + UNASKED_US * spin::ticks_per_us();
    instance.ask_at_ticks.store(next, Ordering::Relaxed);
    woken
}

/// epoll_wait and its kin. Also an instance without sockets is waited for here: another thread may
/// add one meanwhile, and our own descriptors with it.
#[inline(always)]
pub fn wait_in(
    instance: &Instance,
    events: *mut libc::epoll_event,
    room: usize,
    timeout_ns: Option<u64>,
    mask: *const c_void,
) -> sys::Result<usize> {
    wait::beat();
    shared::settle(instance);
    wait_equipped(instance, events, room, timeout_ns, mask)
}

/// Whether the kernel's wait alone will do.
#[inline]
fn is_plain(instance: &Instance) -> bool {
    instance.plain.load(Ordering::Relaxed) != 0 && shared::is_left(instance)
}

/// Looks of one wait that own events alone have filled.
#[derive(Default)]
struct Hidden(u32);

impl Hidden {
    /// Whether a look is to be made again at once: own events took all the `room`, and what is the program's may
    /// stand behind them, and is there now.
    fn looks_again(&mut self, (count, woken, room): (usize, usize, usize)) -> bool {
        let is_hidden = count == 0 && woken == room && self.0 < HIDDEN_MAX;
        self.0 += u32::from(is_hidden);
        is_hidden
    }
}

/// The kernel's wait alone, in an instance that was let go of. Other processes may not
/// have done so yet: what is theirs is not the program's. `None`: it was taken up again.
fn wait_plain(
    instance: &Instance,
    events: *mut libc::epoll_event,
    room: usize,
    (deadline, call): (Deadline, Call),
    mask: *const c_void,
) -> sys::Result<Option<usize>> {
    let (mut hidden, mut slices) = (Hidden::default(), None);
    loop {
        upgrade::serve_owing();
        // Once in slices, always: a handler that runs behind the next look is seen at the end of one.
        slices = slices.or(wait::plain_slice_ns());
        // Between two sleeps a handler may run of which the kernel does not say that it ends the call.
        let is_over = call.behind(mask).is_interrupted(true);
        let slice = if is_over { Some(0) } else { slices };
        let left = deadline.left_ns(slice);
        let woken = kernel_wait(instance, events, room, left, mask)?;
        // Of what was added since it was taken up again, this may be the only word.
        let (kept, _) = translate(instance, events, woken);
        if hidden.looks_again((kept, woken, room)) {
            continue;
        }
        if kept != 0 {
            return Ok(Some(kept));
        }
        if !is_plain(instance) {
            return Ok(None);
        }
        if deadline.has_passed() {
            return Ok(Some(0));
        }
        if is_over {
            return Err(libc::EINTR);
        }
        if woken != 0 {
            let _ = sys!(SYS_poll, 0, 0, STRANGE_PAUSE_MS);
        }
    }
}

#[inline(always)]
fn wait_equipped(
    instance: &Instance,
    events: *mut libc::epoll_event,
    room: usize,
    timeout_ns: Option<u64>,
    mask: *const c_void,
) -> sys::Result<usize> {
    thread::cancellation_point();
    let call = Call::begin();
    let timeout_ns = match is_plain(instance) {
        false => timeout_ns,
        true => {
            let deadline = Deadline::after(timeout_ns);
            match wait_plain(instance, events, room, (deadline, call), mask)? {
                Some(count) => return Ok(count),
                None => deadline.left_ns(None),
            }
        }
    };
    broker::check_mail();
    let begun = sys::ticks();
    let now = if is_turn(instance) {
        serve(instance, false);
        upgrade::serve_owing();
        u64::MAX
    } else {
        begun
    };
    let count = gather(instance, events, room, now);
    if count != 0 {
        pass_on(instance, count == room);
        return Ok(count);
    }
    wait_on(instance, events, room, timeout_ns, (begun, call), mask)
}

/// Nothing is there yet: spins, and sleeps.
#[inline(never)]
fn wait_on(
    instance: &Instance,
    events: *mut libc::epoll_event,
    room: usize,
    timeout_ns: Option<u64>,
    (begun, call): (u64, Call),
    mask: *const c_void,
) -> sys::Result<usize> {
    let (mut due, mut hidden) = (Begun::at(begun, timeout_ns), Hidden::default());
    loop {
        // Of the room of UDP sockets, which is told again and again, the kernel alone knows.
        if timeout_ns != Some(0) && datagram::are_in(instance) && datagram::wants_room(instance) {
            let _shield = Shield::new();
            let woken = kernel_wait(instance, events, room, Some(0), core::ptr::null())?;
            let (count, _) = report(instance, events, room, woken, Some(0));
            if count != 0 {
                pass_on(instance, count == room);
                return Ok(count);
            }
        }
        if timeout_ns != Some(0) && has_rings(instance) {
            let active = instance
                .active
                .load(Ordering::Relaxed)
                .checked_sub(1)
                .map(state::conn_at);
            let active = active.filter(|conn| conn.is_paired()).map(spin::Peer::of);
            let active = active.or_else(|| datagram::peer_in(instance));
            let (mut asked, mut shield) = (Ok(0), None);
            let spun = spin::spin_for(active, |what| match what {
                Look::Rings => anything(instance, false),
                Look::Kernel => {
                    // As in `gather_late`.
                    let whole = Shield::new();
                    asked = kernel_wait(instance, events, room, Some(0), core::ptr::null());
                    shield = (asked != Ok(0)).then_some(whole);
                    shield.is_some()
                }
            });
            if let Some(now) = spun {
                let count = match asked? {
                    0 => gather(instance, events, room, now),
                    by_kernel => report(instance, events, room, by_kernel, Some(0)).0,
                };
                drop(shield);
                if count != 0 {
                    pass_on(instance, count == room);
                    return Ok(count);
                }
            }
        }
        if is_plain(instance) {
            match wait_plain(instance, events, room, (due.deadline(), call), mask)? {
                Some(count) => return Ok(count),
                None => continue,
            }
        }
        // A look without a sleep may have taken the edge by which the kernel tells of room for bytes that are owed.
        upgrade::serve_owing();
        let (woken, watch, shield) =
            sleep(instance, events, room, timeout_ns, (&mut due, call), mask)?;
        serve(instance, watch);
        // What the kernel has not shown, it shows before the rings' next.
        let (mut count, is_late) = report(instance, events, room, woken, Some(0));
        drop(shield);
        if is_late && count == 0 {
            count = gather(instance, events, room, 0);
        }
        if hidden.looks_again((count, woken, room)) {
            continue;
        }
        if count != 0 || timeout_ns == Some(0) || due.deadline().has_passed() {
            pass_on(instance, count == room);
            return Ok(count);
        }
        shared::settle(instance);
        upgrade::serve_others();
        broker::check_mail();
    }
}

/// What may not have fitted is for another thread that waits in the same instance.
#[inline(always)]
fn pass_on(instance: &Instance, full: bool) {
    if full
        && let Some(bell) = bell_of(instance)
        && bell.has_sleepers()
    {
        bell.knock();
    }
}

/// For a thread that never comes back from its sleep.
extern "C" fn abandon(announced: *mut c_void) {
    wait::forget_own();
    // SAFETY: of `sleep`, whose frame is still there.
    if let Some(bell) = unsafe { *announced.cast::<Option<Bell>>() } {
        bell.retract();
        // The kernel may have told this thread of a knock that was for others as well.
        if bell.has_sleepers() {
            bell.knock();
        }
    }
}

/// Announces the sleep, looks once more, and sleeps in the kernel. Returns how many
/// events the kernel filled in, and whether bytes of ours lay unread for long. What the kernel has told
/// is to be taken before the shield is dropped.
fn sleep(
    instance: &Instance,
    events: *mut libc::epoll_event,
    room: usize,
    timeout_ns: Option<u64>,
    (due, call): (&mut Begun, Call),
    mask: *const c_void,
) -> sys::Result<(usize, bool, Shield)> {
    if timeout_ns == Some(0) {
        // Handlers that the program's mask lets in run within the kernel's call alone.
        let shield = mask.is_null().then(Shield::new);
        let woken = kernel_wait(instance, events, room, Some(0), mask)?;
        return Ok((woken, false, shield.unwrap_or_else(Shield::new)));
    }
    if broker::is_orphaned() {
        broker::connect();
    }
    // Of what this wait has done so far: it may have left a ring, and nobody else would say so.
    late::give();
    let empty = instance.items.load(Ordering::Acquire) == 0 && !instance.has_datagrams();
    let bell = if empty {
        bell_of(instance)
    } else {
        equip(instance)
    };
    let shield = Shield::new();
    if let Some(bell) = bell {
        bell.announce();
    }
    let attached = has_rings(instance);
    let unread = attached && unread(instance);
    let since_ns = if unread { sys::now_ns() } else { 0 };
    // SYNC POINT with `shared`: announced before the look, marked before the look for sleepers.
    let (result, shield) = if shared::is_going(instance) || attached && anything(instance, true) {
        (Ok(Some(0)), shield)
    } else {
        let slice = match bell {
            // What can be had only soon, or never: the program's, until it is let go of.
            None if attached => Some(wait::BLIND_SLICE_NS),
            _ => wait::slice_ns(bell, unread),
        };
        let left = due.left_ns(slice);
        let mut announced = bell;
        let way_out = (abandon as extern "C" fn(_), (&raw mut announced).cast());
        let body = || {
            let woken = kernel_wait(instance, events, room, left, mask)?;
            Ok((woken, has_rung(events, woken)))
        };
        wait::asleep(shield, bell, (call.behind(mask), true), way_out, body)
    };
    if let Some(bell) = bell {
        bell.retract();
    }
    let watch = unread && wait::is_watch_due(since_ns);
    Ok((result?.unwrap_or(0), watch, shield))
}

#[cfg(test)]
mod tests {
    use super::super::items::new_item;
    use super::*;
    use crate::poll;
    use crate::testing::{Channel, Silent, free, tables, take_all};
    use fordway_abi::reason::Reason;
    use fordway_sockets::ready::Want;

    /// The kernel's answer has events of the program, of a registration, and of former ones.
    #[test]
    fn what_the_kernel_tells_is_moved_together_and_has_its_time() {
        let _turn = tables();
        let fd = state::FD_COUNT as i32 - 12;
        created(fd);
        let (number, instance) = super::super::instance(fd).expect("an instance");
        let conn = state::add_conn(fd - 1, false).expect("a connection");
        let (index, gone) = (new_item().expect("an item"), new_item().expect("an item"));
        for item in [index, gone].map(item_at) {
            item.instance.store(number, Ordering::Relaxed);
            item.conn
                .store(state::index_of(conn) + 1, Ordering::Relaxed);
            item.attached.store(0, Ordering::Relaxed);
            item.spent.store(0, Ordering::Relaxed);
            item.asked.store(IN, Ordering::Relaxed);
            item.data.store(7, Ordering::Relaxed);
        }
        let of_gone = tag_of_item(gone);
        item_at(gone).conn.store(0, Ordering::Relaxed);
        let event = |events, data| libc::epoll_event { events, u64: data };
        let answer = [
            event(IN, tag(TAG_BELL)),
            event(OUT, 3),
            event(IN, of_gone),
            event(IN | OUT, tag_of_item(index)),
            event(IN, 4),
        ];
        let told = |events: &[libc::epoll_event]| -> Vec<(u32, u64)> {
            events
                .iter()
                .map(|event| ({ event.events }, { event.u64 }))
                .collect()
        };
        let mut events = answer;
        let (kept, told_at) = translate(instance, events.as_mut_ptr(), 5);
        assert_eq!(told(&events[..kept]), [(OUT, 3), (IN, 7), (IN, 4)]);
        assert_ne!(told_at, 0);
        assert!(hot::was_told(item_at(index), told_at));
        let mut events = answer;
        let (_, next) = translate(instance, events.as_mut_ptr(), 5);
        assert_ne!(next, told_at, "each answer has its own");
        let mut events = [event(IN, 5), event(IN, of_gone)];
        assert_eq!(translate(instance, events.as_mut_ptr(), 2), (1, 0));
        item_at(index).conn.store(0, Ordering::Relaxed);
        instance.used.store(0, Ordering::Relaxed);
        free(conn);
        for fd in [fd, fd - 1] {
            if let Some(word) = state::slot(fd) {
                word.store(state::kind::UNKNOWN, Ordering::Relaxed);
            }
        }
    }

    /// The kernel may have told the first of a knock that was for both.
    #[test]
    fn a_thread_that_never_comes_back_leaves_its_knock_to_others() {
        let _turn = tables();
        wait::make_known(1).expect("a bell");
        let bell = wait::acquire();
        let rings = || {
            let mut entry = libc::pollfd {
                fd: bell.fd,
                events: libc::POLLIN,
                revents: 0,
            };
            sys!(SYS_poll, &raw mut entry, 1, 0) == Ok(1)
        };
        wait::harvest(bell.fd);
        bell.announce();
        bell.announce();
        for others in [true, false] {
            let mut announced = Some(bell);
            abandon((&raw mut announced).cast());
            assert_eq!(rings(), others);
            wait::harvest(bell.fd);
        }
        wait::release(bell);
    }

    /// A wait that leaves a ring, and sleeps on, has told so.
    #[test]
    fn what_a_wait_holds_back_it_gives_before_it_sleeps() {
        let _turn = tables();
        link::make(13, [13; 16]).expect("a link");
        let (index, link) = link::by_id(13).expect("the link");
        let page = sys::map_anonymous(fordway_abi::shm::WAIT_PAGE_BYTES, false).expect("a page");
        let none = link.peer_page.swap(page.cast(), Ordering::Relaxed);
        link.users.store(1, Ordering::Relaxed);
        let fd = sys!(SYS_epoll_create1, libc::EPOLL_CLOEXEC).expect("an instance") as i32;
        created(fd);
        let (_, instance) = super::super::instance(fd).expect("the instance");
        // Who has no broker looks for one, which gives them as well.
        let flags = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;
        let broker = sys!(SYS_eventfd2, 0, flags).expect("a file") as i32;
        broker::pretend(broker);
        crate::late::hold(index, 1);
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let time_ns = Some(1);
        let mut due = Begun::at(sys::ticks(), time_ns);
        let at = (&mut due, Call::begin());
        let slept = sleep(instance, &raw mut event, 1, time_ns, at, core::ptr::null());
        assert_eq!(slept.map(|(count, ..)| count), Ok(0));
        assert!(!crate::late::is_any_held());
        if let Some(word) = state::slot(fd) {
            word.store(state::kind::UNKNOWN, Ordering::Relaxed);
        }
        instance.used.store(0, Ordering::Relaxed);
        broker::pretend(-1);
        for fd in [fd, broker] {
            let _ = sys!(SYS_close, fd);
        }
        link.peer_page.store(none, Ordering::Relaxed);
        link.peer_gone.store(1, Ordering::Relaxed);
        link::unbind(index);
        assert!(link::by_id(13).is_none());
    }

    /// An instance of its own, with what is made for it; gone when that is.
    fn in_new_instance<R>(run: impl FnOnce(i32, &'static Instance) -> R) -> R {
        let epoll = sys!(SYS_epoll_create1, libc::EPOLL_CLOEXEC).expect("an instance") as i32;
        created(epoll);
        let (number, instance) = super::super::instance(epoll).expect("the instance");
        let result = run(epoll, instance);
        super::super::instances::closed(number, None);
        if let Some(word) = state::slot(epoll) {
            word.store(state::kind::UNKNOWN, Ordering::Relaxed);
        }
        let _ = sys!(SYS_close, epoll);
        result
    }

    const FOREVER_NS: Option<u64> = Some(60_000_000_000);

    /// The kernel tells of room once, and a look without a sleep was told. The wait that follows sends what is owed.
    #[test]
    fn owed_bytes_go_although_a_look_has_taken_the_word_of_room() {
        let _turn = tables();
        let _broker = Silent::broker();
        in_new_instance(|epoll, instance| {
            let mut event = libc::epoll_event {
                events: IN | ET,
                u64: 7,
            };
            let channel = Channel::new([21, 22], |[near, _], [fd, _]| {
                let add = libc::EPOLL_CTL_ADD;
                let added = control(epoll, add, near, fd, &raw const event);
                assert_eq!(added, Some(Ok(0)));
            });
            let count = channel.owe();
            let [_, far] = channel.fds;
            let look = |event| gather_late(instance, event, 1);
            let _ = look(&raw mut event);
            let mut bytes = vec![0_u8; count];
            let first = sys!(SYS_read, far, bytes.as_mut_ptr(), count).expect("bytes");
            assert_eq!(look(&raw mut event), 0);
            let owed = channel.owed();
            assert!(owed != 0 && first != 0, "{owed}, {first}");
            let taker = std::thread::spawn(move || take_all(far, count - first, far));
            let none = core::ptr::null();
            let shown = wait_in(instance, &raw mut event, 1, FOREVER_NS, none);
            let rest = taker.join().expect("its end");
            assert_eq!(rest, count - first, "of what was owed");
            assert_eq!((shown, { event.u64 }), (Ok(1), 7));
        });
    }

    /// Whichever wait a thread sleeps in, and although nothing in there tells of room for what another connection owes.
    #[test]
    fn owed_bytes_go_in_each_wait() {
        let _turn = tables();
        let _broker = Silent::broker();
        in_new_instance(|epoll, instance| {
            let beside = Channel::new([23, 24], |_, _| ());
            let [near, far] = beside.fds;
            // Of which the library knows nothing.
            let flags = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;
            let own = sys!(SYS_eventfd2, 0, flags).expect("a file") as i32;
            let mut event = libc::epoll_event { events: IN, u64: 7 };
            let add = libc::EPOLL_CTL_ADD;
            sys!(SYS_epoll_ctl, epoll, add, own, &raw const event).expect("its place");
            let none = core::ptr::null();
            let entry = |fd| {
                let (events, revents) = (libc::POLLIN, 0);
                let entries = &mut [libc::pollfd {
                    fd,
                    events,
                    revents,
                }];
                assert!(poll::concerns(entries.iter().map(|entry| entry.fd)));
                poll::poll(entries, FOREVER_NS, none)
            };
            let place = &raw mut event;
            let in_epoll = |plain: u32| {
                instance.plain.store(plain, Ordering::Relaxed);
                let shown = wait_in(instance, place, 1, FOREVER_NS, none);
                instance.plain.store(0, Ordering::Relaxed);
                shown
            };
            let in_call = || {
                let conn = beside.ends[0];
                let call = (Call::begin(), false);
                let deadline = Deadline::after(FOREVER_NS);
                // Who sleeps there tries again, and sleeps again.
                loop {
                    wait::for_conn(conn, near, Want::Bytes, deadline, call)?;
                    let mut byte = 0_u8;
                    let (byte, flags) = (&raw mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT);
                    match sys!(SYS_recvfrom, near, byte, 1, flags, 0, 0) {
                        Err(libc::EAGAIN) => {}
                        peeked => return peeked,
                    }
                }
            };
            let let_go = Reason::Forked as u32;
            type Wait<'a> = &'a dyn Fn() -> sys::Result<usize>;
            let waits: [(&str, i32, Wait<'_>); 5] = [
                ("poll, by the kernel", own, &|| entry(own)),
                ("poll, with rings", far, &|| entry(near)),
                ("epoll", own, &|| in_epoll(0)),
                ("epoll, let go of", own, &|| in_epoll(let_go)),
                ("a call", far, &in_call),
            ];
            let mut faults = Vec::new();
            for (name, last, wait) in waits {
                let channel = Channel::new([21, 22], |_, _| ());
                let count = channel.owe();
                let [_, far] = channel.fds;
                let taker = std::thread::spawn(move || take_all(far, count, last));
                let shown = wait();
                let taken = taker.join().expect("its end");
                if (taken, shown) != (count, Ok(1)) {
                    faults.push((name, taken, shown));
                }
                let mut rest = [0_u8; 8];
                for fd in [near, own] {
                    let _ = sys!(SYS_read, fd, rest.as_mut_ptr(), rest.len());
                }
            }
            let _ = sys!(SYS_close, own);
            assert_eq!(faults, []);
        });
    }

    /// Doors that were knocked at stand in front of the program's event; there is room for one, and no time.
    #[test]
    fn own_events_hide_none_of_the_programs() {
        let _turn = tables();
        // SAFETY: makes descriptors, which the test closes.
        let fds = unsafe {
            let flags = libc::EFD_NONBLOCK;
            let files = [(); 4].map(|()| libc::eventfd(1, flags));
            [
                libc::epoll_create1(0),
                files[0],
                files[1],
                files[2],
                files[3],
            ]
        };
        let [epoll, first, second, third, own] = fds;
        created(epoll);
        let (_, instance) = super::super::instance(epoll).expect("an instance");
        let add = |fd, u64| {
            let event = libc::epoll_event {
                events: IN | ET,
                u64,
            };
            let added = sys!(
                SYS_epoll_ctl,
                epoll,
                libc::EPOLL_CTL_ADD,
                fd,
                &raw const event
            );
            assert_eq!(added, Ok(0));
        };
        for reason in [Reason::Forked as u32, 0] {
            instance.plain.store(reason, Ordering::Relaxed);
            for door in [first, second, third] {
                add(door, tag(TAG_BELL));
            }
            add(own, 7);
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            let none = core::ptr::null();
            let shown = wait_in(instance, &raw mut event, 1, Some(0), none);
            assert_eq!((shown, { event.u64 }), (Ok(1), 7), "{reason}");
            for fd in [first, second, third, own] {
                let gone = sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, fd, 0);
                assert_eq!(gone, Ok(0));
            }
        }
        instance.used.store(0, Ordering::Relaxed);
        if let Some(word) = state::slot(epoll) {
            word.store(state::kind::UNKNOWN, Ordering::Relaxed);
        }
        for fd in fds {
            let _ = sys!(SYS_close, fd);
        }
    }

    /// A thread that waits by the kernel alone is told of what was added once the instance was taken up again.
    #[test]
    fn a_plain_wait_ends_where_the_instance_is_taken_up_again() {
        let _turn = tables();
        // SAFETY: makes descriptors, which the test closes.
        let fds = unsafe { [libc::epoll_create1(0), libc::eventfd(1, libc::EFD_NONBLOCK)] };
        let [epoll, door] = fds;
        created(epoll);
        let (_, instance) = super::super::instance(epoll).expect("an instance");
        let event = libc::epoll_event {
            events: IN | ET,
            u64: tag(TAG_BELL),
        };
        let added = sys!(
            SYS_epoll_ctl,
            epoll,
            libc::EPOLL_CTL_ADD,
            door,
            &raw const event
        );
        assert_eq!(added, Ok(0));
        // It was, just as the thread had begun to wait.
        instance.plain.store(0, Ordering::Relaxed);
        let mut events = [event; 2];
        let none = core::ptr::null();
        let late = (Deadline::after(Some(5_000_000_000)), Call::begin());
        let waited = wait_plain(instance, events.as_mut_ptr(), 2, late, none);
        assert_eq!(waited, Ok(None));
        instance.used.store(0, Ordering::Relaxed);
        if let Some(word) = state::slot(epoll) {
            word.store(state::kind::UNKNOWN, Ordering::Relaxed);
        }
        for fd in fds {
            let _ = sys!(SYS_close, fd);
        }
    }
}
