//! Epoll instances: made and closed, and their doorbells.
//!
//! An instance gets its doorbell with the first stream socket, or before the first
//! sleep with one. The kernel watches bell and control socket for it, edge-triggered;
//! neither is ever drained there.

use super::items::remove;
use super::*;
use crate::thread::Shield;
use crate::wait::{self, Bell};
use crate::{broker, datagram};
use fordway_abi::reason::Reason;
use fordway_abi::shm::DOOR_SHARED;

/// The program has made an epoll instance.
pub fn created(fd: i32) {
    let Some(word) = state::slot(fd) else { return };
    let Some(_guard) = PROCESS.epoll.list_lock.lock() else {
        return;
    };
    for index in 0..INSTANCE_COUNT as u32 {
        let instance = instance_at(index);
        if instance.used.load(Ordering::Relaxed) == 0 {
            for zeroed in [
                &instance.items,
                &instance.attached,
                &instance.hot,
                &instance.hot_count,
                &instance.active,
                &instance.plain,
                &instance.cell,
                &instance.inherited,
                &instance.datagrams,
            ] {
                zeroed.store(0, Ordering::Relaxed);
            }
            instance.door.store(0, Ordering::Relaxed);
            instance.control.store(0, Ordering::Relaxed);
            instance.fd.store(fd, Ordering::Relaxed);
            instance.parent_ring.store(0, Ordering::Relaxed);
            instance.used.store(1, Ordering::Relaxed);
            PROCESS
                .epoll
                .instance_high
                .fetch_max(index + 1, Ordering::AcqRel);
            word.store(kind::EPOLL | index, Ordering::Release);
            return;
        }
    }
}

/// The program has closed a descriptor of an epoll instance; `other`: one that is left.
pub fn closed(index: u32, other: Option<i32>) {
    let instance = instance_at(index);
    if let Some(other) = other {
        instance.fd.store(other, Ordering::Relaxed);
        return;
    }
    let list = PROCESS.epoll.list_lock.lock();
    while let Some(first) = instance.items.load(Ordering::Relaxed).checked_sub(1) {
        remove(first);
    }
    drop(list);
    if let Some(bell) = bell_of(instance) {
        wait::release(bell);
    }
    shared::closed(instance);
    datagram::instance_closed(instance);
    instance.used.store(0, Ordering::Release);
}

/// Its doorbell, if it has one yet.
pub fn bell_of(instance: &Instance) -> Option<Bell> {
    let door = instance.door.load(Ordering::Acquire);
    let fd = || instance.door_fd.load(Ordering::Relaxed);
    (door != 0).then(|| Bell::of(door as usize - 1, fd()))
}

/// Gives the instance a doorbell and lets the kernel watch it and the control socket.
pub fn equip(instance: &Instance) -> Option<Bell> {
    let bell = match bell_of(instance) {
        Some(bell) => bell,
        None => {
            if !broker::connect() {
                return None;
            }
            let guard = instance.equipping.lock();
            if let Some(bell) = bell_of(instance) {
                return Some(bell);
            }
            let bell = wait::acquire();
            if watch_bell(instance, bell).is_err() {
                wait::release(bell);
                drop(guard);
                shared::let_go(instance, Reason::NoMemory);
                return None;
            }
            instance.door_fd.store(bell.fd, Ordering::Relaxed);
            instance.door.store(bell.door as u32 + 1, Ordering::Release);
            announce_door(instance, bell);
            bell
        }
    };
    // A handler that jumps would leave it noted, and not watched.
    let _shield = Shield::new();
    let number = broker::number();
    let control = broker::fd();
    if instance.control.swap(number, Ordering::Relaxed) != number && control >= 0 {
        match watch(instance, control, TAG_CONTROL) {
            Ok(_) | Err(libc::EEXIST) => {}
            // The broker has gone just now: there will be another one.
            Err(libc::EBADF) => instance.control.store(0, Ordering::Relaxed),
            Err(_) => {
                shared::let_go(instance, Reason::NoMemory);
                return bell_of(instance);
            }
        }
    }
    Some(bell)
}

/// Has the kernel watch the doorbell for the instance.
///
/// It counts the ways from each file up to the instances that watch it, and refuses one too
/// many (linux: fs/eventpoll.c, `path_limits`). A peer has the file by which it knocks, and may
/// have used the ways up. Then its link is given up, and no other: those are at fault that the
/// door cannot watch any more once it is watched itself. The shared door is watched by many
/// instances; those that come too late have no bell.
fn watch_bell(instance: &Instance, bell: Bell) -> sys::Result<usize> {
    let watched = watch(instance, bell.fd, TAG_BELL);
    if watched != Err(libc::EINVAL) || bell.door == DOOR_SHARED {
        return watched;
    }
    crate::link::without_views(bell.door, || watch(instance, bell.fd, TAG_BELL))
}

/// The door of its bell; none if it has none yet.
pub fn doors(instance: &Instance) -> u64 {
    bell_of(instance).map_or(0, Bell::bit)
}

/// Wakes who sleeps in it: something has changed that the kernel does not tell of.
pub fn wake(instance: &Instance) {
    if let Some(bell) = bell_of(instance).filter(|bell| bell.has_sleepers()) {
        bell.knock();
    }
}

/// Tells the peers of what is attached already which doorbell the instance has got.
fn announce_door(instance: &Instance, bell: Bell) {
    datagram::want_knocks_in(instance, bell.bit());
    let _guard = instance.lock.lock();
    let mut next = instance.items.load(Ordering::Relaxed);
    while let Some(index) = next.checked_sub(1) {
        let item = item_at(index);
        next = item.next_of_instance.load(Ordering::Relaxed);
        if item.attached.load(Ordering::Relaxed) != 0
            && let Some(conn) = hot::conn_of(item).filter(|conn| conn.is_paired())
        {
            want_rings(conn, bell.bit());
        }
    }
}

/// Has the peer knock at this door for bytes and for room.
pub fn want_rings(conn: &Conn, door: u64) {
    conn.own().wait.rx_doors.fetch_or(door, Ordering::SeqCst);
    conn.own().wait.tx_doors.fetch_or(door, Ordering::SeqCst);
}

fn watch(instance: &Instance, fd: i32, low: u32) -> sys::Result<usize> {
    let event = libc::epoll_event {
        events: IN | ET,
        u64: tag(low),
    };
    let epoll = instance.fd.load(Ordering::Relaxed);
    sys!(
        SYS_epoll_ctl,
        epoll,
        libc::EPOLL_CTL_ADD,
        fd,
        &raw const event
    )
}

/// A stream socket is about to be added to something that may be an instance which we did
/// not see made: by a bare system call, before an exec, by another process.
pub fn discover(epoll: i32, conn: &Conn) {
    if find(epoll) && instance(epoll).is_none() {
        shared::keep_from_rings(conn, Reason::NoMemory, true);
    }
}

/// The same for whom it may concern: whether it is one, known from now on if there is a place for it.
pub fn find(epoll: i32) -> bool {
    if instance(epoll).is_some() {
        return true;
    }
    let path = proc_path(b"/proc/self/fd/", epoll);
    let mut target = [0u8; 32];
    let length = sys!(
        SYS_readlink,
        path.as_ptr(),
        target.as_mut_ptr(),
        target.len()
    );
    let is_one = length.is_ok_and(|length| target[..length] == *b"anon_inode:[eventpoll]");
    if is_one {
        created(epoll);
    }
    is_one
}

/// A descriptor's entry in a directory of /proc, ended by a zero.
pub fn proc_path(directory: &[u8], fd: i32) -> [u8; 32] {
    let mut path = [0u8; 32];
    let mut digits = [0u8; 10];
    let mut count = 0;
    let mut left = fd.unsigned_abs();
    while count == 0 || left != 0 {
        digits[count] = b'0' + (left % 10) as u8;
        left /= 10;
        count += 1;
    }
    let text = directory.iter().chain(digits[..count].iter().rev());
    for (target, byte) in path.iter_mut().zip(text) {
        *target = *byte;
    }
    path
}

/// All instances.
pub fn all() -> impl Iterator<Item = &'static Instance> {
    (0..PROCESS.epoll.instance_high.load(Ordering::Acquire))
        .map(instance_at)
        .filter(|instance| instance.used.load(Ordering::Relaxed) != 0)
}

/// In a forked child: locks of instances are free, bells are the parent's.
pub fn after_fork() {
    for instance in all() {
        instance.lock.reset();
        instance.equipping.reset();
        hot::renew(instance);
        instance.door.store(0, Ordering::Relaxed);
        instance.control.store(0, Ordering::Relaxed);
    }
}
