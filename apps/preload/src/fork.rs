//! Processes: fork, and what a child may do with what it inherits.
//!
//! Parent and child hold the same kernel socket. Who may offer it, or use its
//! channel? Only a sole holder: bytes that one of them sends by the kernel would
//! otherwise overtake those that the other has in the ring. A cell in memory that
//! both share counts the holders of each connection, and of each UDP socket, from the first fork on.
//!
//! A child does not use an inherited channel: doorbells and wait page are the
//! parent's. Its first call on such a connection moves it to the kernel path, for
//! both. A child that never touches it (redis saving to disk) harms nothing.
//! Of a channel to another guest a child has not even the memory: the parent moves the
//! connection before the fork ([`guest`]).
//!
//! Forks are seen by libc's own hook. vfork and posix_spawn children run in the parent's
//! memory until they exec; they change nothing here.

use crate::process::PROCESS;
use crate::state::{self, Held, attention};
use crate::sys;
use crate::{
    broker, datagram, epoll, guest, headroom, hidden, identity, late, libcs, link, shared_bell,
    stay, thread, wait,
};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use fordway_sockets::{Event, down};

const CELL_COUNT: usize = 1 << 16;

/// Of the process: who holds its connections too.
pub struct Family {
    cells: AtomicPtr<AtomicU32>,
    /// Where the next free cell is looked for.
    next_cell: AtomicU32,
    /// Which of the locks the fork has taken.
    held: [AtomicBool; 3],
    /// Forks under way: who shares a socket is about to change.
    under_way: AtomicU32,
    /// Rises in each child.
    generation: AtomicU32,
}

impl Family {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            cells: AtomicPtr::new(core::ptr::null_mut()),
            next_cell: AtomicU32::new(0),
            held: [const { AtomicBool::new(false) }; 3],
            under_way: AtomicU32::new(0),
            generation: AtomicU32::new(0),
        }
    }
}

/// Maps the cells and asks libc to be called at each fork.
pub fn set_up() -> sys::Result<()> {
    // Word 0 is not used: index 0 says that a connection has no cell.
    PROCESS.family.cells.store(
        sys::map_anonymous((CELL_COUNT + 1) * 4, true)?.cast(),
        Ordering::Release,
    );
    identity::begin();
    libcs::at_fork(Some(prepare), Some(parent), Some(child));
    Ok(())
}

fn cell(of: &Held) -> Option<&'static AtomicU32> {
    let index = of.cell.load(Ordering::Relaxed);
    // SAFETY: the table has CELL_COUNT + 1 words; indices are 1 to CELL_COUNT.
    (index != 0).then(|| unsafe {
        &*PROCESS
            .family
            .cells
            .load(Ordering::Relaxed)
            .add(index as usize)
    })
}

/// Processes that hold a socket.
pub fn holders(of: &Held) -> u32 {
    let gone = of.let_go.load(Ordering::Relaxed);
    cell(of).map_or(1, |cell| cell.load(Ordering::Acquire) + u32::from(gone))
}

/// Which process of those that were forked from each other this one is: a child that returns from a handler has calls of its
/// parent's under it, and what these have taken is the parent's.
#[inline]
pub fn generation() -> u32 {
    PROCESS.family.generation.load(Ordering::Relaxed)
}

/// Takes one thread from a count; what it was before. 0, and stays so, where the thread was counted in the parent.
pub fn one_less(count: &AtomicU32) -> u32 {
    let order = Ordering::SeqCst;
    let less = count.fetch_update(order, order, |before| before.checked_sub(1));
    less.unwrap_or(0)
}

/// Whether a fork is under way. Who asks under the lock of the mail, and is told that none is, has acted on it before
/// the fork looks at connections ([`guest::before_fork`]).
pub fn is_under_way() -> bool {
    PROCESS.family.under_way.load(Ordering::SeqCst) != 0
}

/// What a fork begins with, and its end.
#[cfg(test)]
pub fn pretend_under_way(is_so: bool) {
    let count = u32::from(is_so);
    PROCESS.family.under_way.store(count, Ordering::SeqCst);
}

/// Whether this process alone holds it, and no fork is about to change that. Under the lock of the tables.
pub fn is_alone(of: &Held) -> bool {
    !is_under_way() && holders(of) == 1
}

/// This process lets go of it; once, however often it says so.
pub fn let_go(of: &Held) {
    let had = of.let_go.swap(true, Ordering::AcqRel);
    if let Some(cell) = cell(of).filter(|_| !had) {
        cell.fetch_sub(1, Ordering::AcqRel);
    }
}

/// This process goes on with it after all: the exec has failed.
pub fn hold_again(of: &Held) {
    let had = of.let_go.swap(false, Ordering::AcqRel);
    if had {
        one_more(of);
    }
}

/// Somebody else holds it too: if others do, they take it for shared for ever.
pub fn one_more(of: &Held) {
    if let Some(cell) = cell(of) {
        cell.fetch_add(1, Ordering::AcqRel);
    }
}

/// A child will hold it too; false: nobody can count that.
pub fn share(of: &Held) -> bool {
    hold_again(of);
    if cell(of).is_some() {
        one_more(of);
        return true;
    }
    let cell = free_cell();
    of.cell.store(cell.unwrap_or(0), Ordering::Relaxed);
    cell.is_some()
}

/// Takes a cell that counts nobody and lets it count two.
fn free_cell() -> Option<u32> {
    for _ in 0..CELL_COUNT {
        let index =
            PROCESS.family.next_cell.fetch_add(1, Ordering::Relaxed) % CELL_COUNT as u32 + 1;
        // SAFETY: the table has CELL_COUNT + 1 words.
        let cell = unsafe {
            &*PROCESS
                .family
                .cells
                .load(Ordering::Relaxed)
                .add(index as usize)
        };
        if cell
            .compare_exchange(0, 2, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return Some(index);
        }
    }
    None
}

/// Before a fork, in the parent: the child will hold every connection too. A fork
/// that fails leaves the count too high, which costs an upgrade, nothing else. No handler runs
/// from here to the end of [`parent`], or [`child`]: one that jumps would leave a fork under way for ever, and libc's list of
/// such routines locked (musl, glibc before 2.36).
unsafe extern "C" fn prepare() {
    thread::enter();
    PROCESS.family.under_way.fetch_add(1, Ordering::SeqCst);
    guest::before_fork();
    loop {
        datagram::before_fork();
        epoll::before_fork();
        hold_tables();
        if epoll::has_cells() && datagram::are_barred() {
            break;
        }
        // Another thread has made an instance, or a socket, meanwhile.
        let_go_tables();
    }
    for conn in state::conns() {
        if !share(&conn.held) {
            // Taken for shared for ever.
            state::bar_shared(conn);
        }
    }
    datagram::share_all();
}

/// After a fork, or in vain, in the parent.
unsafe extern "C" fn parent() {
    let_go_tables();
    PROCESS.family.under_way.fetch_sub(1, Ordering::SeqCst);
    thread::leave();
}

/// No thread is in the middle of a change when the process is copied.
fn hold_tables() {
    let [list, table, raising] = &PROCESS.family.held;
    list.store(epoll::list_lock().hold(), Ordering::Relaxed);
    table.store(state::table_lock().hold(), Ordering::Relaxed);
    raising.store(hidden::raising_lock().hold(), Ordering::Relaxed);
}

fn let_go_tables() {
    let was_held = |held: &AtomicBool| held.swap(false, Ordering::Relaxed);
    let [list, table, raising] = &PROCESS.family.held;
    if was_held(raising) {
        hidden::raising_lock().let_go();
    }
    if was_held(table) {
        state::table_lock().let_go();
    }
    if was_held(list) {
        epoll::list_lock().let_go();
    }
}

/// What is the parent's. Guests' memory first, where there would be none. The cells before the bells: they keep what
/// rings the parent's, which are closed in the child then.
const AFTER_FORK: [fn(); 9] = [
    guest::after_fork,
    broker::after_fork,
    epoll::cells_after_fork,
    epoll::after_fork,
    wait::after_fork,
    shared_bell::after_fork,
    link::after_fork,
    headroom::after_fork,
    datagram::after_fork,
];

/// After a fork, in the child: only this thread is left.
unsafe extern "C" fn child() {
    let_go_tables();
    PROCESS.family.under_way.store(0, Ordering::SeqCst);
    PROCESS.family.generation.fetch_add(1, Ordering::Relaxed);
    identity::after_fork();
    for after_fork in AFTER_FORK {
        after_fork();
    }
    // Also in entries that are not in use: a thread of the parent that came by a number just
    // closed counts itself there, and would be counted in the entry's next connection for good.
    for conn in (0..state::conn_high()).map(state::conn_at) {
        conn.unaware.store(0, Ordering::Relaxed);
        conn.senders.store(0, Ordering::Relaxed);
        stay::after_fork(conn);
    }
    for conn in state::conns() {
        for lock in [&conn.turn, &conn.taking, &conn.record_turn] {
            lock.store(0, Ordering::Relaxed);
        }
        if conn.is_paired() {
            let lost = match guest::misses_bytes(conn) {
                true => attention::BROKEN,
                false => 0,
            };
            let marks = attention::FOREIGN | attention::INHERITED | lost;
            conn.attention.fetch_or(marks, Ordering::Relaxed);
        } else {
            // An offer is the parent's, if there is one.
            let _ = conn.phase.transition(Event::Voided);
            conn.operations.store(0, Ordering::Relaxed);
            conn.sighted.store(0, Ordering::Relaxed);
            conn.rings_until_ns.store(0, Ordering::Relaxed);
        }
    }
    thread::leave();
}

/// At exit: what this process holds is let go, so that a sibling may go on alone; what
/// was taken back from a ring and waits for the kernel's room is waited for.
pub fn leaving() {
    let deadline_ns = down::deadline(sys::now_ns());
    let owes = |conn: &&state::Conn| conn.is_paired() && holders(&conn.held) == 1;
    // A peer that does not read keeps nothing from the others for which the kernel has room.
    for conn in state::conns().filter(owes) {
        down::flush_now(&conn.end());
    }
    for conn in state::conns() {
        if owes(&conn) {
            down::flush_before_end(&conn.end(), deadline_ns);
        }
        let_go(&conn.held);
    }
    datagram::let_go_all();
    late::give();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Conn;
    use crate::sys::sys;
    use crate::testing::{Channel, Silent, free, tables, take_all};
    use fordway_sockets::{End as _, ends};
    use std::time::{Duration, Instant};

    #[test]
    fn a_child_counts_no_thread_of_its_parent() {
        let _turn = tables();
        let fds = [state::FD_COUNT as i32 - 3, state::FD_COUNT as i32 - 4];
        let conns = fds.map(|fd| state::add_conn(fd, false).expect("a place"));
        let [_, freed] = conns;
        free(freed);
        let counts = |conn: &'static Conn| [&conn.unaware, &conn.senders, &conn.sleepers];
        let all = || conns.into_iter().flat_map(counts);
        all().for_each(|count| count.store(1, Ordering::Relaxed));
        let bell = wait::Bell::of(1, -1);
        // SAFETY: the child reads a few words and ends.
        let child = unsafe { libc::fork() };
        let left: u32 = all().map(|count| count.swap(0, Ordering::Relaxed)).sum();
        if child == 0 {
            // What a call of the parent's gives back when the child returns to it.
            let gives = |count: &AtomicU32| one_less(count) | count.load(Ordering::Relaxed);
            let given = all().fold(0, |all, count| all | gives(count)) as u8;
            // SAFETY: the child's end.
            unsafe { libc::_exit(left as i32 | i32::from(given) | bell.bit() as i32) };
        }
        assert_eq!(bell.bit(), 2);
        let mut status = -1;
        // SAFETY: a child of ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((left, status), (6, 0));
        free(conns[0]);
    }

    /// Peers that take nothing cost an exit the time of one.
    #[test]
    fn an_exit_waits_for_all_peers_together() {
        const ONE_WAIT: Duration = Duration::from_secs(10);
        let _turn = tables();
        let _broker = Silent::broker();
        let channels = [[80, 81], [82, 83], [84, 85]].map(|ids| Channel::new(ids, |_, _| ()));
        for channel in &channels {
            channel.ends[0].nonblock.store(0, Ordering::Relaxed);
            channel.owe();
        }
        let begin = Instant::now();
        leaving();
        let waited = begin.elapsed();
        assert!(channels.iter().all(|channel| channel.owed() != 0));
        assert!(waited < 2 * ONE_WAIT, "{waited:?}");
    }

    /// Whichever comes first in the table, whose free entries come back in turns: the peer of one reads only after the other one's
    /// has all.
    #[test]
    fn an_exit_sends_at_once_what_there_is_room_for() {
        let _turn = tables();
        let _broker = Silent::broker();
        for roomy in [0, 0, 1, 1] {
            let channels = [[86, 87], [88, 89]].map(|ids| Channel::new(ids, |_, _| ()));
            let counts = [0, 1].map(|at| {
                channels[at].ends[0].nonblock.store(0, Ordering::Relaxed);
                channels[at].owe()
            });
            let [near, far] = channels[roomy].fds;
            sys::set_option(near, libc::SOL_SOCKET, libc::SO_SNDBUF, 1_048_576);
            let other = channels[1 - roomy].fds[1];
            let peers = std::thread::spawn(move || {
                let first = take_all(far, counts[roomy], -1);
                let all = first == counts[roomy];
                all && take_all(other, counts[1 - roomy], -1) == counts[1 - roomy]
            });
            leaving();
            assert!(channels.iter().all(|channel| channel.owed() == 0));
            assert!(peers.join().expect("the peers"));
        }
    }

    /// This process owes the end behind bytes that its relative sends.
    #[test]
    fn an_end_that_is_due_follows_what_a_relative_has_sent() {
        let _turn = tables();
        let _broker = Silent::broker();
        let channel = Channel::new([90, 91], |_, _| ());
        let (near, far) = (channel.ends[0], channel.fds[1]);
        let count = channel.owe();
        assert!(!ends::before_shutdown(&near.end(), true, false), "put off");
        // A relative has the producer's words in common, and knows of no end.
        let mut taken = 0;
        while channel.owed() != 0 {
            let producer = near.producer();
            let (base, length) = producer.back_run();
            match near.end().send_run(base, length) {
                Ok(sent) => producer.back_sent(sent),
                Err(error) => {
                    assert_eq!(error, libc::EAGAIN);
                    taken += take_all(far, 1, -1);
                }
            }
        }
        down::serve(&near.end());
        assert_eq!(taken + take_all(far, count - taken, -1), count);
        let mut entry = libc::pollfd {
            fd: far,
            events: libc::POLLRDHUP,
            revents: 0,
        };
        assert_eq!(sys!(SYS_poll, &raw mut entry, 1, 10_000), Ok(1));
    }
}
