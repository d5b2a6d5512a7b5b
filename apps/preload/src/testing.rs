//! What tests of the library's functions share: its tables, one test at a time, and memory of
//! which some pages cannot be used.

use crate::{config, datagram, epoll, fork, link, state};
use core::sync::atomic::Ordering;
use fordway_sockets::Event;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// The tables, for one test at a time.
pub fn tables() -> MutexGuard<'static, ()> {
    static READY: Once = Once::new();
    static TURN: Mutex<()> = Mutex::new(());
    READY.call_once(|| {
        let socket = CString::new(format!("{}=/no/broker", fordway_abi::env::SOCKET));
        let socket = socket.expect("a name and a path");
        // SAFETY: an environment of one variable.
        unsafe { config::read([socket.as_ptr(), std::ptr::null()].as_ptr()) };
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
    if state::look(fd) == state::kind::CONN | state::index_of(conn)
        && let Some(word) = state::slot(fd)
    {
        word.store(state::kind::UNKNOWN, Ordering::Release);
    }
    state::free_conn(conn);
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
        let base = unsafe { libc::mmap(std::ptr::null_mut(), count * PAGE, all, flags, -1, 0) };
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
            let base = libc::mmap(std::ptr::null_mut(), count * PAGE, all, flags, file, 0);
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
