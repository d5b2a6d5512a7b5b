//! The domain's purse: what the rings of all its processes may take in all
//! ([`fordway_abi::shm::Purse`]). It comes with `Welcome`. The next broker's is laid over it, at the
//! same place, because a thread may be about to look; that broker has counted what our regions
//! had taken before.

use crate::process::PROCESS;
use crate::sys;
use core::sync::atomic::{AtomicPtr, Ordering};
use fordway_abi::shm::{PURSE_BYTES, PURSE_MAGIC, Purse};

/// Of the process: what the domain's rings may take.
pub struct DomainsPurse {
    purse: AtomicPtr<Purse>,
}

impl DomainsPurse {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            purse: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

/// Maps the purse that the broker has sent, and closes its descriptor.
pub fn receive(fd: i32) -> sys::Result<()> {
    let place = PROCESS.purse.purse.load(Ordering::Relaxed);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let base = sys::map_sealed(fd, PURSE_BYTES, protection, place.cast())?.cast::<Purse>();
    PROCESS.purse.purse.store(base, Ordering::Release);
    // SAFETY: just mapped, whole; all its fields are atomics.
    let magic = unsafe { &*base }.magic.load(Ordering::Relaxed);
    if magic == PURSE_MAGIC {
        Ok(())
    } else {
        Err(libc::EPROTO)
    }
}

/// It, or null before the first `Welcome`. It stays mapped.
pub fn get() -> *const Purse {
    PROCESS.purse.purse.load(Ordering::Acquire)
}
