//! Instances whose events somebody else takes too: another epoll instance or a poll that
//! watches them, and processes that came into being by fork.
//!
//! Rings and doorbells are known to one process, and a doorbell in an instance makes it
//! readable for others who find nothing there. Such an instance is *let go of*: its
//! connections move to the kernel path, its registrations become the program's own, and
//! nothing of ours is left in it. It is then the kernel's alone ([`Instance::plain`]).
//!
//! # Fork
//! Parent and child have one instance of the kernel. Most children never touch it, and
//! the parent keeps its rings. A [`Cell`] in memory that both share holds who has the
//! instance. A child's first use of it ([`settle`], [`UNSETTLED`]):
//! * nobody else lives that has it (the parent was a daemon's): it is the child's own;
//! * else the cell is marked, the parent is woken from its sleep in it, and the child
//!   lets go of it. The parent does so too, before its next sleep or change.
//!
//! Once its last other holder is gone, the next socket added to it takes it up again.

use super::instances::bell_of;
use super::items::{items_of, remove};
use super::*;
use crate::wait::{self, Bell};
use crate::{fork, hidden};
use fordway_abi::reason::Reason;
use fordway_abi::shm::tx_state;
use fordway_sockets::down;

/// Instances that forks have shared, in one family of processes.
const CELL_COUNT: usize = 1024;
/// Processes that a cell can name.
const HOLDER_COUNT: usize = 6;
/// Longest wait for a sleeper to notice that the instance is let go of.
const WAKE_MS_MAX: u32 = 500;

/// Who has an instance since a fork. In memory that the processes share.
#[repr(C)]
struct Cell {
    /// 1: in use.
    used: AtomicU32,
    /// Not 0: several processes use the instance, or there are more than can be named.
    /// The number of the fork by which the first came that was not its maker.
    shared: AtomicU32,
    /// Their process ids; 0: free.
    holders: [AtomicI32; HOLDER_COUNT],
}

/// Forks of this process and its ancestors, and the one by which it came.
static FORKS: AtomicU32 = AtomicU32::new(0);
static BORN: AtomicU32 = AtomicU32::new(0);
static CELLS: AtomicPtr<Cell> = AtomicPtr::new(core::ptr::null_mut());

/// Maps the cells.
pub fn set_up() -> sys::Result<()> {
    let bytes = CELL_COUNT * size_of::<Cell>();
    CELLS.store(sys::map_anonymous(bytes, true)?.cast(), Ordering::Release);
    Ok(())
}

fn cell_at(index: u32) -> &'static Cell {
    // SAFETY: CELL_COUNT zeroed entries of atomics, never unmapped.
    unsafe {
        &*CELLS
            .load(Ordering::Relaxed)
            .add(index as usize % CELL_COUNT)
    }
}

fn cell_of(instance: &Instance) -> Option<&'static Cell> {
    let index = instance.cell.load(Ordering::Relaxed).checked_sub(1)?;
    Some(cell_at(index))
}

impl Cell {
    fn enter(&self, pid: i32) {
        let entered = self.holders.iter().any(|holder| {
            holder
                .compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        if !entered {
            self.shared.store(1, Ordering::SeqCst);
        }
    }

    fn leave(&self, pid: i32) {
        for holder in &self.holders {
            let _ = holder.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Whether a process besides this one has the instance. One that is gone has not,
    /// however it went.
    fn is_held_by_others(&self) -> bool {
        let mut named = 0;
        let mut others = 0;
        for holder in &self.holders {
            let pid = holder.load(Ordering::Acquire);
            if pid != 0 {
                named += 1;
                others += u32::from(pid != fork::pid() && lives(pid));
            }
        }
        others != 0 || named == HOLDER_COUNT
    }
}

/// Whether a process runs. One that nobody has waited for does not.
fn lives(pid: i32) -> bool {
    match sys!(SYS_pidfd_open, pid, 0) {
        Err(error) => error != libc::ESRCH,
        Ok(pidfd) => {
            let mut entry = libc::pollfd {
                fd: pidfd as i32,
                events: libc::POLLIN,
                revents: 0,
            };
            let ended = sys!(SYS_poll, &raw mut entry, 1, 0);
            let _ = sys!(SYS_close, pidfd);
            ended != Ok(1)
        }
    }
}

/// Before a fork, in the parent: the child will have all instances too.
pub fn before_fork() {
    let number = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
    for instance in instances::all() {
        let mut next = instance.items.load(Ordering::Acquire);
        while let Some(index) = next.checked_sub(1) {
            let item = item_at(index);
            next = item.next_of_instance.load(Ordering::Relaxed);
            if item.known_since.load(Ordering::Relaxed) == 0 {
                item.known_since.store(number, Ordering::Relaxed);
            }
        }
        if instance.cell.load(Ordering::Relaxed) != 0 {
            continue;
        }
        let free = (0..CELL_COUNT as u32).find(|index| {
            let used = &cell_at(*index).used;
            used.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        match free {
            Some(index) => {
                instance.cell.store(index + 1, Ordering::Relaxed);
                cell_at(index).enter(fork::pid());
            }
            // Nobody could tell of its use by several.
            None => let_go(instance, Reason::NoMemory),
        }
    }
}

/// In a forked child, before bells are closed there.
pub fn after_fork() {
    BORN.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
    for instance in instances::all() {
        let Some(cell) = cell_of(instance) else {
            continue;
        };
        cell.enter(fork::pid());
        let unsettled = instance.plain.load(Ordering::Relaxed) == 0;
        if unsettled {
            instance.plain.store(UNSETTLED, Ordering::Relaxed);
        }
        if let Some(bell) = bell_of(instance) {
            let kept = wait::keep_ring_of_parent(bell);
            hidden::close(instance.parent_ring.swap(kept, Ordering::Relaxed) - 1);
            instance
                .parent_door
                .store(bell.door as u32, Ordering::Relaxed);
        }
    }
}

/// The process has closed its last descriptor of an instance.
pub fn closed(instance: &Instance) {
    hidden::close(instance.parent_ring.swap(0, Ordering::Relaxed) - 1);
    if let Some(cell) = cell_of(instance) {
        cell.leave(fork::pid());
        if !cell.is_held_by_others() {
            cell.shared.store(0, Ordering::Relaxed);
            cell.used.store(0, Ordering::Release);
        }
        instance.cell.store(0, Ordering::Relaxed);
    }
}

/// Whether another process has begun to use the instance, and this one knows nothing of it.
#[inline]
pub fn is_to_be_let_go(instance: &Instance) -> bool {
    instance.cell.load(Ordering::Relaxed) != 0
        && instance.plain.load(Ordering::Relaxed) == 0
        && cell_of(instance).is_some_and(|cell| cell.shared.load(Ordering::SeqCst) != 0)
}

/// Whether registrations in it are, or have become, the program's own.
pub fn is_or_will_be_left(instance: &Instance) -> bool {
    instance.plain.load(Ordering::Relaxed) != 0 || is_to_be_let_go(instance)
}

/// Before a use of the instance: what forks and other processes have made of it.
#[inline]
pub fn settle(instance: &Instance) {
    if instance.cell.load(Ordering::Relaxed) != 0 {
        settle_shared(instance);
    }
}

#[cold]
fn settle_shared(instance: &Instance) {
    let plain = &instance.plain;
    let first_use = plain
        .compare_exchange(UNSETTLED, 0, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok();
    match cell_of(instance) {
        Some(cell) if first_use => {
            if cell.is_held_by_others() {
                let number = BORN.load(Ordering::Relaxed);
                let _ = cell
                    .shared
                    .compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
                wake_parent(instance);
            } else {
                take_up(instance, cell);
                for conn in members(instance) {
                    // The channel that came with it is the parent's.
                    let _ = down::attend(&conn.end());
                }
            }
        }
        _ => {}
    }
    if is_to_be_let_go(instance) {
        let_go(instance, Reason::Forked);
    }
}

/// The instance is this process's alone.
fn take_up(instance: &Instance, cell: &Cell) {
    cell.shared.store(0, Ordering::Relaxed);
    for holder in &cell.holders {
        holder.store(0, Ordering::Relaxed);
    }
    cell.enter(fork::pid());
    instance.plain.store(0, Ordering::Relaxed);
}

/// A socket is to be added to an instance that was let go of: may it be followed again?
pub fn may_follow(instance: &Instance) -> bool {
    if instance.plain.load(Ordering::Relaxed) == 0 {
        return true;
    }
    let forked = instance.plain.load(Ordering::Relaxed) == Reason::Forked as u32;
    match cell_of(instance) {
        Some(cell) if forked && !cell.is_held_by_others() => {
            take_up(instance, cell);
            true
        }
        _ => false,
    }
}

/// Wakes the parent's sleepers in the instance, so that they see that it is shared: they
/// would wait for rings whose doorbell this process takes.
fn wake_parent(instance: &Instance) {
    let ring = instance.parent_ring.load(Ordering::Relaxed) - 1;
    let door = instance.parent_door.load(Ordering::Relaxed) as usize;
    let mut tries = 0;
    while ring >= 0 && wait::parent_sleeps(door) && tries < WAKE_MS_MAX {
        let one = 1u64;
        let _ = sys!(SYS_write, ring, &raw const one, 8);
        let _ = sys!(SYS_poll, 0, 0, 1);
        tries += 1;
    }
}

/// As [`settle`], by a descriptor that may be an instance's.
pub fn settle_fd(epoll: i32) {
    if let Some((_, instance)) = instance(epoll) {
        settle(instance);
    }
}

/// Somebody else is to watch `fd`, perhaps an instance: another one, a poll, a program
/// that it is passed to.
pub fn let_go_of(fd: i32, reason: Reason) {
    if let Some((_, instance)) = instance(fd) {
        settle(instance);
        let_go(instance, reason);
    }
}

/// Leaves the instance to the kernel. `reason`: that of its connections.
#[cold]
pub fn let_go(instance: &Instance, reason: Reason) {
    let plain = &instance.plain;
    if plain
        .compare_exchange(0, LEAVING, Ordering::SeqCst, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    if let Some(bell) = bell_of(instance) {
        wake(bell);
    }
    for conn in members(instance) {
        // Another program would not see what is left in the ring; here, and in a child, it
        // can be read.
        keep_from_rings(conn, reason, reason == Reason::Passed);
    }
    plain.store(reason as u32, Ordering::SeqCst);
    go_on(instance);
}

/// Of an instance that is let go of, or about to be: whether the kernel's wait alone will do.
#[cold]
pub fn is_left(instance: &Instance) -> bool {
    while instance.plain.load(Ordering::SeqCst) == LEAVING {
        let _ = sys!(SYS_poll, 0, 0, 1);
    }
    go_on(instance);
    instance.items.load(Ordering::Acquire) == 0
}

/// Whether nobody may begin to sleep behind the instance's doorbell: it goes, or is gone.
#[inline]
pub fn is_going(instance: &Instance) -> bool {
    let plain = instance.plain.load(Ordering::SeqCst);
    let gone = plain == LEAVING || plain != 0 && instance.items.load(Ordering::Acquire) == 0;
    gone || is_to_be_let_go(instance)
}

/// The connections that have a registration in an instance. For rare use.
fn members(instance: &Instance) -> impl Iterator<Item = &'static Conn> {
    let inside =
        |item: &Item| core::ptr::eq(instance_at(item.instance.load(Ordering::Relaxed)), instance);
    state::conns().filter(move |conn| items_of(conn).any(|(_, item)| inside(item)))
}

/// Of an instance that is let go of: registrations become the program's own when nothing
/// is left in their rings; then nothing of ours stays. While something is left, waits look
/// at rings and whoever watches the instance sees it readable.
#[cold]
pub fn go_on(instance: &Instance) {
    while let Some(index) = give_next_back(instance) {
        remove(index);
    }
    let Some(bell) = bell_of(instance) else {
        return;
    };
    if instance.items.load(Ordering::Acquire) != 0 {
        if waiting::has_something(instance) {
            bell.ring();
        }
        return;
    }
    if instance.door.swap(0, Ordering::AcqRel) == 0 {
        return;
    }
    let control = instance.control_fd.swap(-1, Ordering::Relaxed);
    for ours in [bell.fd, control] {
        let epoll = instance.fd.load(Ordering::Relaxed);
        let _ = sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, ours, 0);
    }
    if !bell.has_sleepers() {
        wait::release(bell);
    }
}

/// Whether all that is still to be received comes by the kernel.
fn is_kernels(conn: &Conn) -> bool {
    if !conn.is_paired() {
        return true;
    }
    let consumer = conn.consumer();
    consumer.has_stopped() || consumer.producer_state() == tx_state::BACK && !consumer.has_unread()
}

/// A socket with bytes in its ring is to be added to an instance that others watch: they
/// are shown from there first.
pub fn must_follow(instance: &Instance, conn: &Conn) -> bool {
    instance.plain.load(Ordering::Relaxed) == Reason::Unsupported as u32 && {
        keep_from_rings(conn, Reason::Unsupported, false);
        !is_kernels(conn)
    }
}

/// Gives one registration back whose ring has nothing left; the item is to be removed.
fn give_next_back(instance: &Instance) -> Option<u32> {
    let _guard = instance.lock.lock()?;
    let mut next = instance.items.load(Ordering::Acquire);
    while let Some(index) = next.checked_sub(1) {
        let item = item_at(index);
        next = item.next_of_instance.load(Ordering::Relaxed);
        let deleted = item.spent.load(Ordering::Relaxed) == DELETED;
        if !deleted && hot::conn_of(item).is_some_and(|conn| !is_kernels(conn)) {
            continue;
        }
        if deleted {
            attach::unregister(instance, item);
        } else if !is_known_to_sharer(instance, item) {
            attach::give_back(instance, item, item.data.load(Ordering::Relaxed));
        }
        return Some(index);
    }
    None
}

/// Whether the child that made the instance shared knew of the item and has given it back
/// already: what it, or its program, made of it since holds.
fn is_known_to_sharer(instance: &Instance, item: &Item) -> bool {
    let known_since = item.known_since.load(Ordering::Relaxed);
    cell_of(instance).is_some_and(|cell| {
        let sharer = cell.shared.load(Ordering::SeqCst);
        sharer != BORN.load(Ordering::Relaxed) && known_since != 0 && known_since <= sharer
    })
}

/// Threads of ours that sleep in the instance go on in the kernel's own wait.
fn wake(bell: Bell) {
    let mut tries = 0;
    while bell.has_sleepers() && tries < WAKE_MS_MAX {
        bell.ring();
        let _ = sys!(SYS_poll, 0, 0, 1);
        tries += 1;
    }
}

/// For a socket in an instance that we do not follow: without an item a ready ring
/// would go unnoticed. `wait`: also what lies there now.
pub fn keep_from_rings(conn: &Conn, reason: Reason, wait: bool) {
    let end = conn.end();
    down::bar(&end, reason);
    if conn.attention.load(Ordering::Relaxed) != 0 {
        // Its channel may be the parent's.
        let _ = down::attend(&end);
    }
    down::downgrade(&end, reason, wait);
}
