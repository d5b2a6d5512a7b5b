//! UDP sockets in epoll instances.
//!
//! The kernel's registration stays as the program has made it: the kernel tells of its own queue, of errors and of
//! room. Beside it stands a [`Registration`] here, by which a wait finds what rings have. The instance's doorbell is
//! among those at which peers knock (see [`crate::epoll`]).
//!
//! What shoots once, or wakes one of several, the kernel would have to be told of each time rings were told of: such
//! a socket stays the kernel's. So does one in an instance that somebody else watches too.
//!
//! An edge is a record that has come since the last one was told of, or an epoll_ctl of the program's.

use super::{Socket, of_some, socket_at};
use crate::epoll::{self, Instance};
use crate::process::PROCESS;
use crate::spin::Peer;
use crate::thread::Shield;
use crate::{faults, state};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use fordway_abi::reason::Reason;

/// Registrations of one process. Each wait looks through all of them.
pub const REGISTRATION_COUNT: usize = 1 << 10;
/// Those of one instance: a wait looks into the rings of all of them, and with more takes longer than the kernel's.
pub const WATCHED_MAX: usize = 64;

const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const ET: u32 = libc::EPOLLET as u32;
/// What makes a socket the kernel's.
const OF_KERNEL: u32 = (libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;

/// A UDP socket in an epoll instance. Written under the lock of the tables and of the instance.
#[repr(C)]
pub struct Registration {
    /// Instance, plus one; 0: free.
    instance: AtomicU32,
    socket: AtomicU32,
    fd: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
    /// [`Socket::arrivals`] when it was told of last.
    seen: AtomicU64,
    /// 1: armed by epoll_ctl, not told of since.
    forced: AtomicU32,
}

fn at(index: u32) -> &'static Registration {
    let all = PROCESS.datagrams.registrations.load(Ordering::Relaxed);
    // SAFETY: REGISTRATION_COUNT zeroed entries of atomics, never unmapped; there are some if a socket is.
    unsafe { &*all.add(index as usize % REGISTRATION_COUNT) }
}

fn all() -> impl Iterator<Item = &'static Registration> {
    (0..PROCESS.datagrams.registration_high.load(Ordering::Acquire)).map(at)
}

/// Those of an instance.
fn of_instance(instance: &Instance) -> impl Iterator<Item = &'static Registration> {
    let number = epoll::number_of(instance) + 1;
    all().filter(move |entry| entry.instance.load(Ordering::Acquire) == number)
}

/// Whether an instance may have something to tell of.
#[inline]
pub fn are_in(instance: &Instance) -> bool {
    instance.has_datagrams() && PROCESS.datagrams.paired.load(Ordering::Relaxed) != 0
}

/// epoll_ctl on a UDP socket; `by_libc` makes it.
pub fn control(
    (epoll, operation, fd): (i32, i32, i32),
    event: *const libc::epoll_event,
    by_libc: &dyn Fn() -> i32,
) -> i32 {
    let Some(socket) = of_some(fd) else {
        return by_libc();
    };
    let adds = operation == libc::EPOLL_CTL_ADD;
    let wanted = (operation != libc::EPOLL_CTL_DEL && {
        faults::arm();
        faults::can_read(event)
    })
    // SAFETY: the program's event, found readable.
    .then(|| unsafe { event.read_unaligned() });
    if adds {
        epoll::find(epoll);
    }
    let instance = epoll::instance(epoll);
    if let Some(event) = wanted {
        let follows = event.events & OF_KERNEL == 0
            && instance.is_some_and(|(_, instance)| epoll::can_wake(instance));
        if !follows {
            socket.bar(Reason::Unsupported);
        }
    }
    // A handler that jumps would leave a registration of the kernel's alone, by which nobody is told of records.
    let _shield = Shield::new();
    let result = by_libc();
    let Some((number, instance)) = instance.filter(|_| result == 0) else {
        return result;
    };
    let known = of_instance(instance).find(|entry| {
        entry.socket.load(Ordering::Relaxed) == socket.index()
            && entry.fd.load(Ordering::Relaxed) == fd
    });
    match (wanted, known) {
        (Some(event), Some(entry)) => entry.arm(event),
        (Some(event), None) if adds && !add((number, instance), socket, fd, event) => {
            socket.bar(Reason::NoMemory);
        }
        (None, Some(entry)) => {
            let _guard = state::table_lock().lock();
            entry.instance.store(0, Ordering::Release);
        }
        _ => {}
    }
    if wanted.is_some() {
        epoll::wake(instance);
    }
    result
}

fn add(
    (number, instance): (u32, &Instance),
    socket: &Socket,
    fd: i32,
    event: libc::epoll_event,
) -> bool {
    let Some(_guard) = state::table_lock().lock() else {
        return false;
    };
    if of_instance(instance).count() >= WATCHED_MAX {
        return false;
    }
    let high = PROCESS.datagrams.registration_high.load(Ordering::Relaxed);
    let is_free = |index: &u32| at(*index).instance.load(Ordering::Relaxed) == 0;
    let index = match (0..high).find(is_free) {
        Some(index) => index,
        None if (high as usize) < REGISTRATION_COUNT => high,
        None => return false,
    };
    let entry = at(index);
    entry.socket.store(socket.index(), Ordering::Relaxed);
    entry.fd.store(fd, Ordering::Relaxed);
    entry.seen.store(socket.arrivals(), Ordering::Relaxed);
    entry.arm(event);
    instance.note_datagrams();
    entry.instance.store(number + 1, Ordering::Release);
    PROCESS
        .datagrams
        .registration_high
        .fetch_max(index + 1, Ordering::AcqRel);
    drop(_guard);
    socket.want_knocks(epoll::doors(instance));
    true
}

/// The socket is closed for good.
pub fn forget(socket: &Socket) {
    let index = socket.index();
    // Else an entry that is free could become another socket's under the look.
    let _guard = state::table_lock().lock();
    let of_socket = all().filter(|entry| entry.socket.load(Ordering::Relaxed) == index);
    of_socket.for_each(|entry| entry.instance.store(0, Ordering::Release));
}

/// The instance is closed.
pub fn instance_closed(instance: &Instance) {
    let _guard = state::table_lock().lock();
    of_instance(instance).for_each(|entry| entry.instance.store(0, Ordering::Release));
}

/// Somebody else watches the instance too: what is in it stays with the kernel.
pub fn bar_in(instance: &Instance, reason: Reason) {
    of_instance(instance).for_each(|entry| entry.socket().bar(reason));
}

/// Whether sockets in an instance have rings still, be it that they are on their way out.
pub fn have_rings_in(instance: &Instance) -> bool {
    are_in(instance) && of_instance(instance).any(|entry| entry.socket().has_rings())
}

/// The instance has got its bell.
pub fn want_knocks_in(instance: &Instance, doors: u64) {
    if instance.has_datagrams() {
        of_instance(instance).for_each(|entry| entry.socket().want_knocks(doors));
    }
}

/// Whether a wait would tell of something that rings have.
pub fn is_any_ready(instance: &Instance) -> bool {
    are_in(instance) && of_instance(instance).any(|entry| entry.look() != 0)
}

/// Whether room is told of as long as there is some.
pub fn wants_room(instance: &Instance) -> bool {
    of_instance(instance).any(|entry| {
        let events = entry.events.load(Ordering::Relaxed);
        events & OUT != 0 && events & ET == 0
    })
}

/// For how many events of others there is room: UDP sockets that have something get at least one place, or, where there
/// is one in all, every other wait.
#[inline]
pub fn room_beside(instance: &Instance, room: usize) -> usize {
    match room {
        0 => 0,
        _ if !is_any_ready(instance) => room,
        1 => usize::from(instance.datagrams_wait()),
        more => more - 1,
    }
}

/// Who is most likely to end a wait; nobody where there may be more sockets, which only the kernel tells of.
pub fn peer_in(instance: &Instance) -> Option<Peer> {
    match are_in(instance) && of_instance(instance).count() < WATCHED_MAX {
        true => of_instance(instance).find_map(|entry| entry.socket().peer()),
        false => None,
    }
}

/// Tells of what rings have behind the `used` events that stand in the program's array, which has room for
/// `room`; how many were added. What the kernel tells of already is not told of twice.
pub fn collect(
    instance: &Instance,
    events: *mut libc::epoll_event,
    used: usize,
    room: usize,
) -> usize {
    if !are_in(instance) {
        return 0;
    }
    let mut results = faults::Results::of(events);
    let mut count = 0;
    let (first, behind) = (instance.datagram_turn(), of_instance(instance).count());
    let in_turn = of_instance(instance).skip(first % behind.max(1));
    for entry in in_turn.chain(of_instance(instance).take(first % behind.max(1))) {
        let seen = entry.socket().arrivals();
        let mask = entry.look();
        if mask == 0 {
            continue;
        }
        let data = entry.data.load(Ordering::Relaxed);
        let told = (0..used)
            .map(|index| events.wrapping_add(index))
            .find(|event| {
                // SAFETY: the kernel, or this wait, has just filled it in.
                unsafe { event.read_unaligned() }.u64 == data
            });
        let place = match told {
            Some(place) => place,
            None if used + count == room => break,
            None => events.wrapping_add(used + count),
        };
        if !results.may_take(place) {
            break;
        }
        // SAFETY: in the program's array, found writable.
        unsafe {
            let before = match told {
                Some(_) => place.read_unaligned().events,
                None => 0,
            };
            place.write_unaligned(libc::epoll_event {
                events: before | mask,
                u64: data,
            });
        }
        entry.seen.store(seen, Ordering::Relaxed);
        entry.forced.store(0, Ordering::Relaxed);
        count += usize::from(told.is_none());
    }
    instance.take_datagram_turn();
    count
}

impl Registration {
    fn socket(&self) -> &'static Socket {
        socket_at(self.socket.load(Ordering::Relaxed))
    }

    fn arm(&self, event: libc::epoll_event) {
        self.events.store(event.events, Ordering::Relaxed);
        self.data.store(event.u64, Ordering::Relaxed);
        self.forced.store(1, Ordering::Relaxed);
    }

    /// What is to be told of now; 0: nothing.
    fn look(&self) -> u32 {
        let (socket, events) = (self.socket(), self.events.load(Ordering::Relaxed));
        let is_edge = events & ET != 0;
        if events & IN == 0 || !socket.has_unread() {
            return 0;
        }
        if is_edge
            && self.forced.load(Ordering::Relaxed) == 0
            && socket.arrivals() == self.seen.load(Ordering::Relaxed)
        {
            return 0;
        }
        // The whole present state: sending never waits for a receiver.
        events & (IN | OUT)
    }
}
