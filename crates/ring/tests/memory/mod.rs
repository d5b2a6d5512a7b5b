//! Regions as the shim maps them, between pages that nobody may touch: an access beside
//! a region ends the test with SIGSEGV, as does a write to the peer's.

use fordway_abi::shm::{ARENA_OFFSET, ENDPOINT_BYTES, ENDPOINTS_OFFSET, Endpoint, REGION_BYTES};
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

    pub fn contains(&self, start: *const u8, count: usize) -> bool {
        let offset = start.addr().wrapping_sub(self.base().addr());
        offset <= self.bytes && count <= self.bytes - offset
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

/// A peer's region, which its user may only read. Its arena reads as zeros; all before it
/// can be changed from outside.
pub struct PeerRegion {
    pub region: Guarded,
    shared: *mut u8,
}

impl PeerRegion {
    pub fn new() -> Self {
        let region = Guarded::new(REGION_BYTES, libc::PROT_READ);
        // SAFETY: a memfd, mapped over the region's own beginning and a second time.
        unsafe {
            let fd = libc::memfd_create(c"peer".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            assert_eq!(libc::ftruncate(fd, ARENA_OFFSET as i64), 0);
            let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
            let base = region.base().cast();
            let read_only = libc::mmap(base, ARENA_OFFSET, libc::PROT_READ, fixed, fd, 0);
            assert_eq!(read_only, base);
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let shared = libc::mmap(null_mut(), ARENA_OFFSET, both, libc::MAP_SHARED, fd, 0);
            assert_ne!(shared, libc::MAP_FAILED);
            libc::close(fd);
            Self {
                region,
                shared: shared.cast(),
            }
        }
    }

    /// The peer's own view.
    pub fn writable(&self) -> *mut u8 {
        self.shared
    }
}

impl Drop for PeerRegion {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.shared.cast(), ARENA_OFFSET) };
    }
}
