//! What tests of the library's functions share: its tables, one test at a time, and memory of
//! which some pages cannot be used.

use crate::state::Conn;
use crate::sys::{self, sys};
use crate::{broker, config, datagram, epoll, fork, guest, link, state, upgrade, wait};
use core::sync::atomic::Ordering;
use fordway_abi::control;
use fordway_abi::reason::Reason;
use fordway_abi::shm::GUEST_HEAD_BYTES;
use fordway_ring::Entered;
use fordway_sockets::{Event, down};
use std::ffi::CString;
use std::ptr;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// The tables, for one test at a time.
pub fn tables() -> MutexGuard<'static, ()> {
    static READY: Once = Once::new();
    static TURN: Mutex<()> = Mutex::new(());
    READY.call_once(|| {
        let socket = CString::new(format!("{}=/no/broker", fordway_abi::env::SOCKET));
        let socket = socket.expect("a name and a path");
        // SAFETY: an environment of one variable.
        unsafe { config::read([socket.as_ptr(), ptr::null()].as_ptr()) };
        let made = state::set_up().and_then(|()| link::set_up());
        let made = made.and_then(|()| epoll::set_up());
        let made = made.and_then(|()| datagram::set_up());
        made.and_then(|()| fork::set_up()).expect("tables");
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: the default, in the place of std's word about a full stack.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    });
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection has a channel, of which nothing is bound.
pub fn pair(conn: &state::Conn) {
    conn.phase.advance(Event::Offered);
    conn.phase.advance(Event::Paired);
}

/// The entry goes back, and its number leads to it no more: the test's own files have such numbers,
/// and are closed by the library's `close`.
pub fn free(conn: &state::Conn) {
    let fd = conn.fd.load(Ordering::Relaxed);
    if state::conn(fd).is_some_and(|known| ptr::eq(known, conn))
        && let Some(word) = state::slot(fd)
    {
        word.store(state::kind::UNKNOWN, Ordering::Release);
    }
    state::free_conn(conn);
}

/// A control connection to a broker that says nothing.
pub struct Silent([i32; 2]);

impl Silent {
    pub fn broker() -> Self {
        let ends = pair_of(libc::SOCK_SEQPACKET);
        broker::pretend(ends[0]);
        Self(ends)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        broker::pretend(-1);
        close(self.0);
    }
}

fn pair_of(kind: i32) -> [i32; 2] {
    let mut ends = [-1; 2];
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let made = sys!(SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr());
    made.map(|_| ends).expect("two sockets")
}

fn close(fds: [i32; 2]) {
    for fd in fds {
        let _ = sys!(SYS_close, fd);
    }
}

/// Bytes of ring memory of a link between guests.
pub const GUEST_ARENA_BYTES: usize = 256 * 1024;

/// What stands in the place of the devices by which two guests have each other's pages: the pages of each.
pub struct GuestFiles(pub [i32; 2]);

impl GuestFiles {
    pub fn new() -> Self {
        Self([(); 2].map(|()| {
            let fd = sys!(SYS_memfd_create, c"pages".as_ptr(), libc::MFD_CLOEXEC);
            let fd = fd.expect("a file") as i32;
            let bytes = GUEST_HEAD_BYTES + GUEST_ARENA_BYTES;
            sys!(SYS_ftruncate, fd, bytes).expect("its size");
            fd
        }))
    }

    /// The link of one side.
    pub fn link(&self, side: usize, id: u64) -> u32 {
        let index = link::free_place().expect("a place");
        // As in `host_link`.
        let former = &link::at(index).peer_base;
        former.store(ptr::null_mut(), Ordering::Relaxed);
        let copy = |side: usize| sys!(SYS_dup, self.0[side]).expect("a copy") as i32;
        let guest = control::Guest {
            link_id: id,
            arena_bytes: GUEST_ARENA_BYTES as u64,
            peer_arena_bytes: GUEST_ARENA_BYTES as u64,
        };
        guest::make(&guest, copy(side), copy(1 - side)).expect("a link");
        assert!(link::by_id(id).is_some_and(|(its, _)| its == index));
        index
    }
}

impl Drop for GuestFiles {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// A link whose peer's side has not come.
fn host_link(id: u64) -> u32 {
    link::make(id, [id as u8; 16]).expect("a link");
    let (index, link) = link::by_id(id).expect("the link");
    // Other tests have put there what is not to be mapped over.
    link.peer_base.store(ptr::null_mut(), Ordering::Relaxed);
    index
}

/// Both ends of a connection, this process's, between which bytes may go by rings. While there is a broker.
pub struct Channel {
    pub ends: [&'static Conn; 2],
    pub fds: [i32; 2],
    pub links: [u32; 2],
}

impl Channel {
    /// By links of these numbers. `before` comes between the connection and its channel.
    pub fn new(ids: [u64; 2], before: impl FnOnce([&'static Conn; 2], [i32; 2])) -> Self {
        let links = || {
            let page = wait::set_up().expect("a page");
            let links = ids.map(host_link);
            for at in 0..2 {
                let region = link::at(links[1 - at]).own_fd.load(Ordering::Relaxed);
                let copy = |fd| sys!(SYS_dup, fd).expect("a copy") as i32;
                let joined = link::at(links[at]).join(copy(region), copy(page));
                joined.expect("the other side");
            }
            links
        };
        Self::by(links, ids[0], before)
    }

    /// The same as between two guests.
    pub fn between_guests(ids: [u64; 2], files: &GuestFiles) -> Self {
        let links = || [0, 1].map(|side| files.link(side, ids[side]));
        Self::by(links, ids[0], |_, _| ())
    }

    fn by(
        links: impl FnOnce() -> [u32; 2],
        channel_id: u64,
        before: impl FnOnce([&'static Conn; 2], [i32; 2]),
    ) -> Self {
        wait::set_up().expect("a page");
        let fds = pair_of(libc::SOCK_STREAM);
        let ends = fds.map(|fd| {
            let conn = state::add_conn(fd, true).expect("a place");
            conn.unix.store(state::PROGRAMS_END, Ordering::Relaxed);
            // Its program reads.
            conn.reads.store(true, Ordering::Relaxed);
            conn
        });
        for door in 1..4 {
            wait::make_known(door).expect("a bell");
        }
        before(ends, fds);
        let links = links();
        for (conn, link) in ends.into_iter().zip(links) {
            conn.phase.advance(Event::Offered);
            let pair = control::Pair {
                conn_id: conn.id(),
                channel_id,
                link_id: 0,
                slot: 0,
                generation: 1,
                cuts_through: 0,
                pad: 0,
            };
            upgrade::paired(conn, link, &pair);
        }
        Self { ends, fds, links }
    }

    /// The first end has sent as much as its ring has room for: how much.
    pub fn fill(&self) -> usize {
        let producer = self.ends[0].producer();
        assert_eq!(producer.enter(|| Some(0)), Entered::Yes);
        let count = producer.room_bytes(0).expect("room");
        producer.publish(count);
        count
    }

    /// The first end owes bytes: the other one has asked for the kernel path, and there is no room for all that lay in the ring.
    /// How many lay there.
    pub fn owe(&self) -> usize {
        let [near, far] = self.ends;
        let least = 1;
        sys::set_option(self.fds[0], libc::SOL_SOCKET, libc::SO_SNDBUF, least);
        let count = self.fill();
        down::leave_and_stop(&far.end(), Reason::Asked);
        down::serve(&near.end());
        let left = self.owed();
        assert!(left != 0 && left < count as u64, "{left} of {count}");
        count
    }

    /// Bytes that the first end owes.
    pub fn owed(&self) -> u64 {
        let near = self.ends[0];
        match near.is_paired() {
            true => near.producer().back_bytes_or_zero(),
            false => 0,
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        for conn in self.ends {
            if conn.is_paired() {
                epoll::detach(conn);
                conn.phase.advance(Event::Left);
            }
            free(conn);
        }
        for link in self.links.map(link::at) {
            link.users.store(0, Ordering::Relaxed);
            link.peer_gone.store(1, Ordering::Relaxed);
            link.drop_if_over();
        }
        close(self.fds);
    }
}

/// Takes all that comes by `fd` up to `count` bytes, or for ten seconds at each of them: how many came. Then `last` is written to.
pub fn take_all(fd: i32, count: usize, last: i32) -> usize {
    let mut buffer = vec![0_u8; count];
    let mut taken = 0;
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    while taken < count && sys!(SYS_poll, &raw mut entry, 1, 10_000) == Ok(1) {
        taken += sys!(SYS_read, fd, buffer.as_mut_ptr(), count).unwrap_or(0);
    }
    let one = 1_u64;
    let _ = sys!(SYS_write, last, &raw const one, 8);
    taken
}

pub const PAGE: usize = 4096;

/// Pages in a row, each with a protection of its own.
pub struct Pages {
    base: *mut u8,
    count: usize,
}

impl Pages {
    pub fn of(protections: &[i32]) -> Self {
        let (count, all) = (protections.len(), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), count * PAGE, all, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let pages = Self {
            base: base.cast(),
            count,
        };
        // SAFETY: just mapped.
        unsafe { base.write_bytes(b'x', count * PAGE) };
        for (page, protection) in protections.iter().enumerate() {
            // SAFETY: of this mapping.
            let done = unsafe { libc::mprotect(pages.at(page * PAGE).cast(), PAGE, *protection) };
            assert_eq!(done, 0);
        }
        pages
    }

    /// A file of so many bytes, mapped over all of so many pages.
    pub fn of_file(bytes: usize, count: usize) -> Self {
        // SAFETY: a name; a file of ours; new memory.
        let base = unsafe {
            let file = libc::memfd_create(c"short".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(file, bytes as i64), 0);
            let all = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED;
            let base = libc::mmap(ptr::null_mut(), count * PAGE, all, flags, file, 0);
            libc::close(file);
            base
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self {
            base: base.cast(),
            count,
        }
    }

    /// The byte at this distance from the first one; there need not be one.
    pub fn at(&self, distance: usize) -> *mut u8 {
        self.base.wrapping_add(distance)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: of `mmap`, and nobody has it any more.
        unsafe { libc::munmap(self.base.cast(), self.count * PAGE) };
    }
}
