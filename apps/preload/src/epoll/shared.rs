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
//! the parent keeps its rings. A child's first use of it ([`settle`], [`UNSETTLED`]):
//! * nobody else lives that has it (the parent was a daemon's): it is the child's own;
//! * else its cell is marked, the parent is woken from its sleep in it, and the child
//!   lets go of it. The parent does so too, before its next sleep or change.
//!
//! What was shot or armed between the fork and the child's first use, the parent alone knows. If the
//! child is the first to give it back, what it holds for armed is armed, though the parent has been
//! told of it since: of a one-shot that relatives share in such a way, two may be told.
//!
//! Once its last other holder is gone, the next socket added to it takes it up again.
//!
//! Who has an instance, the kernel knows: each process holds a lock on the byte of a file
//! that stands for the cell (`Cells::family`; POSIX locks, fcntl(2)). The lock ends with the
//! process, however it ends; there may be any number of holders; and a cell that nobody holds
//! is free. What a relative has given back already, the kernel knows too: it shows the data of
//! each registration (proc_pid_fdinfo(5)), and those with a tag of ours are still ours.

use super::instances::bell_of;
use super::items::{items_of, remove};
use super::*;
use crate::thread::Shield;
use crate::wait::{self, Bell};
use crate::{broker, datagram, hidden};
use fordway_abi::reason::Reason;
use fordway_abi::shm::tx_state;
use fordway_sockets::down;

/// Instances that forks have shared, in one family of processes, at the same time.
const CELL_COUNT: u32 = 1 << 16;
/// Cells that are tried before an instance is left to the kernel.
const CELL_TRIES: u32 = 1024;
/// Longest wait for a sleeper to notice that the instance is let go of, and for a relative that
/// gives registrations back.
const WAKE_MS_MAX: u32 = 500;

/// What relatives share, in memory that all of them map.
#[repr(C)]
struct Shared {
    /// Where the next free cell is looked for.
    next: AtomicU32,
    /// 1: some process could not tell that it has an instance. From then on all are taken for
    /// held by others: those that are let go of stay with the kernel.
    untold: AtomicU32,
    /// For each cell, 1: a process uses the instance that did not make it.
    used_by_others: [AtomicU32; CELL_COUNT as usize],
}

/// Of the process: which instances relatives have too.
pub struct Cells {
    shared: AtomicPtr<Shared>,
    /// The file of the locks; -1: nobody has forked yet. Byte `i`: who has the instance of cell `i`.
    /// Byte `CELL_COUNT + i`: who gives its registrations back.
    family: AtomicI32,
    /// The cells whose locks this process holds: its own locks stand in nobody's way (fcntl(2)).
    own: [AtomicU64; CELL_COUNT as usize / 64],
}

impl Cells {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            shared: AtomicPtr::new(core::ptr::null_mut()),
            family: AtomicI32::new(-1),
            own: [const { AtomicU64::new(0) }; CELL_COUNT as usize / 64],
        }
    }
}

/// Maps what relatives share.
pub fn set_up() -> sys::Result<()> {
    let shared = sys::map_anonymous(size_of::<Shared>(), true)?;
    PROCESS.cells.shared.store(shared.cast(), Ordering::Release);
    Ok(())
}

fn shared() -> &'static Shared {
    // SAFETY: zeroed atomics, mapped by `set_up`, never unmapped.
    unsafe { &*PROCESS.cells.shared.load(Ordering::Relaxed) }
}

/// The cell of an instance.
#[derive(Clone, Copy)]
struct Cell(u32);

fn cell_of(instance: &Instance) -> Option<Cell> {
    instance
        .cell
        .load(Ordering::Relaxed)
        .checked_sub(1)
        .map(Cell)
}

impl Cell {
    /// A cell that nobody holds, held by this process alone.
    fn claim() -> Option<Self> {
        if PROCESS.cells.family.load(Ordering::Relaxed) < 0 {
            let name = c"fordway-family";
            let made = sys!(SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC).ok()?;
            PROCESS
                .cells
                .family
                .store(hidden::hide(made as i32).ok()?, Ordering::Relaxed);
        }
        (0..CELL_TRIES).find_map(|_| {
            let next = shared().next.fetch_add(1, Ordering::Relaxed);
            let cell = Self(next % CELL_COUNT);
            if cell.is_own() || cell.lock(libc::F_WRLCK).is_err() {
                return None;
            }
            cell.used_by_others().store(0, Ordering::Relaxed);
            cell.enter().ok().map(|()| cell)
        })
    }

    fn lock_byte(at: u32, kind: i32) -> sys::Result<usize> {
        let range = byte_range(at, kind);
        let file = PROCESS.cells.family.load(Ordering::Relaxed);
        sys!(SYS_fcntl, file, libc::F_SETLK, &raw const range)
    }

    fn lock(self, kind: i32) -> sys::Result<usize> {
        Self::lock_byte(self.0, kind)
    }

    fn own_bit(self) -> (&'static AtomicU64, u64) {
        (&PROCESS.cells.own[self.0 as usize / 64], 1 << (self.0 % 64))
    }

    fn is_own(self) -> bool {
        let (word, bit) = self.own_bit();
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// This process has the instance.
    fn enter(self) -> sys::Result<()> {
        self.lock(libc::F_RDLCK)?;
        let (word, bit) = self.own_bit();
        word.fetch_or(bit, Ordering::Relaxed);
        Ok(())
    }

    fn leave(self) {
        let (word, bit) = self.own_bit();
        word.fetch_and(!bit, Ordering::Relaxed);
        if self.lock(libc::F_UNLCK).is_err() {
            shared().untold.store(1, Ordering::Relaxed);
        }
    }

    fn used_by_others(self) -> &'static AtomicU32 {
        &shared().used_by_others[self.0 as usize]
    }

    /// Whether a process besides this one has the instance.
    fn is_held_by_others(self) -> bool {
        if shared().untold.load(Ordering::Relaxed) != 0 {
            return true;
        }
        let mut range = byte_range(self.0, libc::F_WRLCK);
        let file = PROCESS.cells.family.load(Ordering::Relaxed);
        let asked = sys!(SYS_fcntl, file, libc::F_GETLK, &raw mut range);
        asked.is_err() || i32::from(range.l_type) != libc::F_UNLCK
    }
}

fn byte_range(at: u32, kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: i64::from(at),
        l_len: 1,
        l_pid: 0,
    }
}

/// Before a fork, in the parent: the child will have all instances too.
pub fn before_fork() {
    for instance in instances::all().filter(|instance| cell_of(instance).is_none()) {
        let Some(cell) = Cell::claim() else {
            // Nobody could tell of its use by several.
            let_go(instance, Reason::NoMemory);
            continue;
        };
        let word = &instance.cell;
        let taken = word.compare_exchange(0, cell.0 + 1, Ordering::Relaxed, Ordering::Relaxed);
        if taken.is_err() {
            // Another thread forks, too.
            cell.leave();
        }
    }
}

/// Whether it can be told of each instance who has it.
pub fn has_cells() -> bool {
    instances::all()
        .all(|instance| cell_of(instance).is_some() || instance.plain.load(Ordering::Relaxed) != 0)
}

/// In a forked child, before bells are closed there.
pub fn after_fork() {
    for word in &PROCESS.cells.own {
        word.store(0, Ordering::Relaxed);
    }
    for instance in instances::all() {
        let plain = instance.plain.load(Ordering::Relaxed);
        let Some(cell) = cell_of(instance) else {
            if plain == LEAVING {
                // By a thread of the parent's.
                let reason = Reason::NoMemory as u32;
                instance.plain.store(reason, Ordering::Relaxed);
            }
            continue;
        };
        if cell.enter().is_err() {
            shared().untold.store(1, Ordering::Relaxed);
        }
        // The parent may take it up again; the child's first use must tell it.
        if plain == 0 || plain == LEAVING || plain == Reason::Forked as u32 {
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
        instance.cell.store(0, Ordering::Relaxed);
        cell.leave();
    }
}

/// Whether another process has begun to use the instance, and this one knows nothing of it.
#[inline]
pub fn is_to_be_let_go(instance: &Instance) -> bool {
    instance.cell.load(Ordering::Relaxed) != 0
        && instance.plain.load(Ordering::Relaxed) == 0
        && is_used_by_others(instance)
}

fn is_used_by_others(instance: &Instance) -> bool {
    cell_of(instance).is_some_and(|cell| cell.used_by_others().load(Ordering::SeqCst) != 0)
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
    // A handler that jumps would leave a first use of which nobody was told.
    let shield = Shield::new();
    let plain = &instance.plain;
    let first_use = plain
        .compare_exchange(UNSETTLED, 0, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok();
    match cell_of(instance) {
        Some(cell) if first_use => {
            if cell.is_held_by_others() {
                cell.used_by_others().store(1, Ordering::SeqCst);
                instance.inherited.store(1, Ordering::Relaxed);
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
    drop(shield);
    if is_to_be_let_go(instance) {
        let_go(instance, Reason::Forked);
    }
}

/// The instance is this process's alone.
fn take_up(instance: &Instance, cell: Cell) {
    cell.used_by_others().store(0, Ordering::Relaxed);
    instance.plain.store(0, Ordering::Relaxed);
    instance.inherited.store(0, Ordering::Relaxed);
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
    // A handler that jumps would leave it LEAVING for ever, and others wait for the end of that.
    let shield = Shield::new();
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
    // Another program would not see what is left in the ring; here, and in a child, it
    // can be read.
    let stops = reason == Reason::Passed;
    for conn in members(instance) {
        take_from_rings(conn, reason, stops);
    }
    datagram::bar_in(instance, reason);
    plain.store(reason as u32, Ordering::SeqCst);
    drop(shield);
    if stops {
        let deadline_ns = down::deadline(sys::now_ns());
        for conn in members(instance) {
            down::settle(&conn.end(), Some(deadline_ns));
        }
    }
    go_on(instance);
}

/// Of an instance that is let go of, or about to be: whether the kernel's wait alone will do.
#[cold]
pub fn is_left(instance: &Instance) -> bool {
    while instance.plain.load(Ordering::SeqCst) == LEAVING {
        let _ = sys!(SYS_poll, 0, 0, 1);
    }
    go_on(instance);
    holds_nothing(instance)
}

/// Whether nothing that is in the instance may be found in rings any more.
fn holds_nothing(instance: &Instance) -> bool {
    instance.items.load(Ordering::Acquire) == 0 && !datagram::have_rings_in(instance)
}

/// Whether nobody may begin to sleep behind the instance's doorbell: it goes, or is gone.
#[inline]
pub fn is_going(instance: &Instance) -> bool {
    let plain = instance.plain.load(Ordering::SeqCst);
    let gone = plain == LEAVING || plain != 0 && holds_nothing(instance);
    gone || is_to_be_let_go(instance)
}

/// The connections that have a registration in an instance. For rare use.
fn members(instance: &Instance) -> impl Iterator<Item = &'static Conn> {
    let inside =
        |item: &Item| core::ptr::eq(instance_at(item.instance.load(Ordering::Relaxed)), instance);
    state::conns().filter(move |conn| {
        let _list = PROCESS.epoll.list_lock.lock();
        items_of(conn).any(|(_, item)| inside(item))
    })
}

/// Of an instance that is let go of: registrations become the program's own when nothing
/// is left in their rings; then nothing of ours stays. While something is left, waits look
/// at rings and whoever watches the instance sees it readable.
#[cold]
pub fn go_on(instance: &Instance) {
    // A handler that jumps would keep a relative's turn, or a doorbell that nobody has.
    let _shield = Shield::new();
    give_all_back(instance);
    let Some(bell) = bell_of(instance) else {
        return;
    };
    if !holds_nothing(instance) {
        // Knocks that left nothing behind would show the instance as readable for ever.
        if !bell.has_sleepers() {
            wait::harvest(bell.fd);
        }
        if waiting::has_something(instance) {
            bell.knock();
        }
        return;
    }
    if instance.door.swap(0, Ordering::AcqRel) == 0 {
        return;
    }
    instance.control.store(0, Ordering::Relaxed);
    for ours in [bell.fd, broker::fd()] {
        let epoll = instance.fd.load(Ordering::Relaxed);
        // Nothing waits for them any more; what is not there need not go.
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

/// Gives the registrations back whose rings have nothing left.
fn give_all_back(instance: &Instance) {
    if next_to_give_back(instance).is_none() {
        return;
    }
    let turn = cell_of(instance).filter(|_| is_used_by_others(instance));
    let turn = turn.map(Turn::take);
    note_registrations(instance, turn.is_some());
    let _list = PROCESS.epoll.list_lock.lock();
    while let Some(index) = next_to_give_back(instance) {
        give_one_back(instance, index);
        remove(index);
    }
}

fn next_to_give_back(instance: &Instance) -> Option<u32> {
    let _guard = instance.lock.lock()?;
    let mut next = instance.items.load(Ordering::Acquire);
    while let Some(index) = next.checked_sub(1) {
        let item = item_at(index);
        let deleted = item.spent.load(Ordering::Relaxed) == DELETED;
        if deleted || hot::conn_of(item).is_none_or(is_kernels) {
            return Some(index);
        }
        next = item.next_of_instance.load(Ordering::Relaxed);
    }
    None
}

/// Unless a relative has given it back already: what it, or its program, made of it since holds.
fn give_one_back(instance: &Instance, index: u32) {
    let item = item_at(index);
    let Some(_guard) = instance.lock.lock() else {
        return;
    };
    if item.conn.load(Ordering::Relaxed) == 0 || item.registered.load(Ordering::Relaxed) == 0 {
        return;
    }
    if item.spent.load(Ordering::Relaxed) == DELETED {
        attach::unregister(instance, item);
    } else {
        attach::give_back(instance, index);
    }
}

/// Relatives give registrations back one after the other.
struct Turn(Cell);

impl Turn {
    fn take(cell: Cell) -> Self {
        let mut tries = 0;
        while Cell::lock_byte(CELL_COUNT + cell.0, libc::F_WRLCK).is_err() && tries < WAKE_MS_MAX {
            let _ = sys!(SYS_poll, 0, 0, 1);
            tries += 1;
        }
        Self(cell)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // One that is not let go of ends with the process; others wait for a while only.
        let _ = Cell::lock_byte(CELL_COUNT + self.0.0, libc::F_UNLCK);
    }
}

/// Notes which items the kernel has under our tags. Without relatives, all of them; so too where
/// /proc is not to be had, and what a relative has changed is changed back.
fn note_registrations(instance: &Instance, has_relatives: bool) {
    let note_all = |registered| {
        let _guard = instance.lock.lock();
        let mut next = instance.items.load(Ordering::Acquire);
        while let Some(index) = next.checked_sub(1) {
            item_at(index)
                .registered
                .store(registered, Ordering::Relaxed);
            next = item_at(index).next_of_instance.load(Ordering::Relaxed);
        }
    };
    note_all(u32::from(!has_relatives));
    if has_relatives && note_shown(instance).is_err() {
        note_all(1);
    }
}

/// Those that the kernel has.
fn note_shown(instance: &Instance) -> sys::Result<()> {
    registered::each(instance.fd.load(Ordering::Relaxed), |_, _, data| {
        if let Some((_, item)) = item_of_tag(data) {
            item.registered.store(1, Ordering::Relaxed);
        }
    })
}

/// Threads of ours that sleep in the instance go on in the kernel's own wait.
fn wake(bell: Bell) {
    let mut tries = 0;
    while bell.has_sleepers() && tries < WAKE_MS_MAX {
        bell.knock();
        let _ = sys!(SYS_poll, 0, 0, 1);
        tries += 1;
    }
}

/// For a socket in an instance that we do not follow: without an item a ready ring
/// would go unnoticed. `wait`: also what lies there now.
pub fn keep_from_rings(conn: &Conn, reason: Reason, wait: bool) {
    take_from_rings(conn, reason, wait);
    if wait {
        down::settle(&conn.end(), Some(down::deadline(sys::now_ns())));
    }
}

/// The same without the wait for a peer that sends by the kernel what this end `stops` to take.
fn take_from_rings(conn: &Conn, reason: Reason, stops: bool) {
    let _shield = Shield::new();
    let end = conn.end();
    down::bar(&end, reason);
    if conn.attention.load(Ordering::Relaxed) != 0 {
        // Its channel may be the parent's.
        let _ = down::attend(&end);
    }
    match stops {
        true => down::leave_and_stop(&end, reason),
        false => down::downgrade(&end, reason, false),
    }
}

#[cfg(test)]
mod tests {
    use super::super::instances::proc_path;
    use super::*;
    use crate::testing::tables;

    /// Runs it in a child of a fork, which ends without the library's knowledge.
    fn in_child(act: impl FnOnce()) -> i32 {
        // SAFETY: the child calls nothing that needs another thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // A test that fails leaves nobody behind.
            // SAFETY: no pointers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            act();
            loop {
                // SAFETY: waits for its end.
                unsafe { libc::pause() };
            }
        }
        assert!(child > 0);
        child
    }

    fn kill(child: i32) {
        // SAFETY: a child of ours.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0);
        }
    }

    #[test]
    fn a_cell_is_held_as_long_as_a_holder_lives() {
        let _turn = tables();
        let cell = Cell::claim().expect("a cell");
        assert!(cell.is_own() && !cell.is_held_by_others());
        let mut pipe = [0; 2];
        // SAFETY: room for two.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let children = [(); 8].map(|()| {
            in_child(|| {
                let told = [u8::from(cell.enter().is_ok())];
                // SAFETY: a byte of ours.
                unsafe { libc::write(pipe[1], told.as_ptr().cast(), 1) };
            })
        });
        for _ in children {
            let mut told = [0u8];
            // SAFETY: room for one.
            let count = unsafe { libc::read(pipe[0], told.as_mut_ptr().cast(), 1) };
            assert_eq!((count, told), (1, [1]));
        }
        for child in children {
            assert!(cell.is_held_by_others());
            kill(child);
        }
        assert!(!cell.is_held_by_others());
        // What this process holds, it does not claim once more.
        shared().next.store(cell.0, Ordering::Relaxed);
        let other = Cell::claim().expect("a cell");
        assert_ne!(other.0, cell.0);
        cell.leave();
        other.leave();
        shared().next.store(cell.0, Ordering::Relaxed);
        let again = Cell::claim().expect("a cell");
        assert_eq!(again.0, cell.0, "nobody holds it");
        again.leave();
        // SAFETY: ours.
        unsafe { (libc::close(pipe[0]), libc::close(pipe[1])) };
    }

    #[test]
    fn entries_of_proc_have_their_number() {
        assert_eq!(proc_path(b"/proc/self/fd/", 0)[..16], *b"/proc/self/fd/0\0");
        assert_eq!(
            proc_path(b"/proc/self/fd/", 1_048_575)[..22],
            *b"/proc/self/fd/1048575\0"
        );
        let longest = proc_path(b"/proc/self/fdinfo/", i32::MAX);
        assert_eq!(longest[..29], *b"/proc/self/fdinfo/2147483647\0");
    }
}
