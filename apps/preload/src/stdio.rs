//! A socket that becomes a stdio stream: libc reads and writes it past the library.
//!
//! What lies unread in the ring cannot be put back into the kernel's socket, and the
//! peer, which could send it again, may not call the library for long. So it is taken
//! here and pushed back into the new stream (ungetc), and the ring is left with nothing in it.
//!
//! glibc takes any number of bytes back. musl fills the stream's buffer with them from its end
//! (src/stdio/ungetc.c, __toread.c), so that a stream gets one that holds them all; this one
//! stays mapped after the stream is closed.

use crate::libcs;
use crate::real;
use crate::state::Conn;
use crate::sys::{self, sys};
use crate::transfer::{self, Buffers, Done};
use core::ffi::c_void;
use fordway_abi::reason::Reason;
use fordway_sockets::{Half, down, holding, ready};

/// Most that two rings of a growing connection and the kernel's part before them hold.
const EARLY_BYTES_MAX: usize = 16 << 20;
const PAGE_BYTES: usize = 4096;
/// musl's own buffers have at least so many (stdio.h: BUFSIZ).
const BUFFER_BYTES_MIN: usize = 1024;
/// stdio.h: _IOFBF.
const IO_FULL: i32 = 0;

/// Bytes that came before the stream was made; mapped for as long as it lives.
pub struct Early {
    base: *mut u8,
    count: usize,
    /// Bytes at the end that are the stream's buffer.
    kept: usize,
}

/// Takes the receiving direction off the ring, with all that lies there.
pub fn take_early(conn: &Conn, fd: i32) -> Option<Early> {
    down::bar(&conn.end(), Reason::Stdio);
    if !conn.is_paired() {
        return None;
    }
    let base = sys::map_anonymous(EARLY_BYTES_MAX, false).ok()?;
    let mut early = Early {
        base,
        count: 0,
        kept: 0,
    };
    while early.take(conn, fd) {
        let end = conn.at(fd);
        let stopped = holding(&end, Half::Receiving, || {
            let drained = !ready::has_ring_bytes(&end);
            if drained {
                // Who publishes from now on sees the stop, and sends again by the kernel.
                conn.consumer().stop();
            }
            drained
        });
        if stopped != Some(false) {
            break;
        }
    }
    down::downgrade(&conn.at(fd), Reason::Stdio, true);
    Some(early)
}

impl Early {
    /// Takes what lies in the ring now; false if that cannot be.
    fn take(&mut self, conn: &Conn, fd: i32) -> bool {
        while conn.is_paired() && ready::has_ring_bytes(&conn.end()) {
            let part = libc::iovec {
                // SAFETY: inside the mapping.
                iov_base: unsafe { self.base.add(self.count) }.cast(),
                iov_len: EARLY_BYTES_MAX - self.count,
            };
            let received = Buffers::one(part, false)
                .and_then(|buffers| transfer::receive(conn, fd, &buffers, libc::MSG_DONTWAIT));
            match received {
                Ok(Done::Bytes(count)) if count != 0 => self.count += count,
                _ => return false,
            }
        }
        true
    }

    /// Pushes the bytes back into the stream, the last one first.
    pub fn give(mut self, file: *mut c_void) {
        if file.is_null() {
            return;
        }
        let buffer_bytes = self.count.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        let has_buffer = libcs::is_musl() && self.count > BUFFER_BYTES_MIN;
        if has_buffer {
            // At the mapping's end: a byte never goes to where one is that has yet to go.
            // SAFETY: of the mapping, which is larger; the program's new stream.
            unsafe {
                let buffer = self.base.add(EARLY_BYTES_MAX - buffer_bytes);
                real::setvbuf(file, buffer.cast(), IO_FULL, buffer_bytes);
            }
        }
        for at in (0..self.count).rev() {
            // SAFETY: inside the mapping; the program's new stream.
            unsafe { real::ungetc((*self.base.add(at)).into(), file) };
        }
        if has_buffer {
            self.kept = buffer_bytes;
        }
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        let _ = sys!(SYS_munmap, self.base, EARLY_BYTES_MAX - self.kept);
    }
}
