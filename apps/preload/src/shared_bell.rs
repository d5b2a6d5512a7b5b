//! Sleeping behind the bell that everybody shares.
//!
//! There are more threads than doorbells (`DOOR_COUNT`). Threads without a bell of
//! their own sleep behind bell 0. What several poll cannot be made quiet by one
//! of them without robbing the others; so each such sleeper has an epoll instance of
//! its own, in which bell 0 is registered edge-triggered: every ring wakes all of
//! them, once, and each looks at its own rings. The instances are kept for the next sleeper.

use crate::process::PROCESS;
use crate::sys::{self, sys};
use crate::{hidden, wait};
use core::sync::atomic::{AtomicI32, Ordering};

/// Instances that are kept.
const KEPT: usize = 512;

/// Of the process: bells for those who share a door.
pub struct SharedBells {
    pool: [AtomicI32; KEPT],
}

impl SharedBells {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            pool: [const { AtomicI32::new(-1) }; KEPT],
        }
    }
}

/// A descriptor that becomes readable at each knock at bell 0 (whose descriptor is `bell`); -1 if
/// none can be had.
pub fn take(bell: i32) -> i32 {
    for kept in &PROCESS.shared_bells.pool {
        if kept.load(Ordering::Relaxed) >= 0 {
            let fd = kept.swap(-1, Ordering::AcqRel);
            if fd >= 0 {
                return fd;
            }
        }
    }
    make(bell).unwrap_or(-1)
}

fn make(bell: i32) -> sys::Result<i32> {
    let fd = hidden::hide(sys!(SYS_epoll_create1, libc::EPOLL_CLOEXEC)? as i32)?;
    if let Err(error) = wait::watch_edges(fd, bell) {
        hidden::close(fd);
        return Err(error);
    }
    // Knocks of the past show as one event.
    wait::harvest(fd);
    Ok(fd)
}

/// Gives a descriptor back.
pub fn give(fd: i32) {
    if fd < 0 {
        return;
    }
    wait::harvest(fd);
    for kept in &PROCESS.shared_bells.pool {
        let free = kept
            .compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if free {
            return;
        }
    }
    hidden::close(fd);
}

/// In a forked child: the bell is the parent's.
pub fn after_fork() {
    for kept in &PROCESS.shared_bells.pool {
        hidden::close(kept.swap(-1, Ordering::Relaxed));
    }
}
