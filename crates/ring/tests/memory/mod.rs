//! Memory between pages that nobody may touch: an access beside it ends the test with SIGSEGV.

use fordway_abi::shm::{ENDPOINT_BYTES, ENDPOINTS_OFFSET, Endpoint, REGION_BYTES};
use std::ptr::null_mut;

const GUARD_BYTES: usize = 64 * 1024;

/// Memory between two guards.
pub struct Guarded {
    outer: *mut u8,
    bytes: usize,
}

impl Guarded {
    /// Zeroed memory that takes no room before it is touched.
    pub fn new(bytes: usize, protection: i32) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, and then a part of it.
        unsafe {
            let total = bytes + 2 * GUARD_BYTES;
            let outer = libc::mmap(null_mut(), total, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(outer, libc::MAP_FAILED);
            let guarded = Self {
                outer: outer.cast(),
                bytes,
            };
            assert_eq!(libc::mprotect(guarded.base().cast(), bytes, protection), 0);
            guarded
        }
    }

    pub fn base(&self) -> *mut u8 {
        self.outer.wrapping_add(GUARD_BYTES)
    }

    /// The last `count` bytes: what is written behind them hits the guard.
    pub fn end(&self, count: usize) -> *mut u8 {
        self.base().wrapping_add(self.bytes - count)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.outer.cast(), self.bytes + 2 * GUARD_BYTES) };
    }
}

/// A region that its side may write.
pub fn own_region() -> Guarded {
    Guarded::new(REGION_BYTES, libc::PROT_READ | libc::PROT_WRITE)
}

/// The endpoint of `slot` in the region at `base`.
pub fn endpoint(base: *mut u8, slot: usize) -> *mut Endpoint {
    base.wrapping_add(ENDPOINTS_OFFSET + slot * ENDPOINT_BYTES)
        .cast()
}
