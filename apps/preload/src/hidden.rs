//! Descriptors of the shim's own: kept out of the program's way and out of its
//! reach. They lie above the program's soft limit where the hard limit allows it,
//! else as high as they can, and the hooks of close and dup step over them.

use crate::state::{kind, slot};
use crate::sys::{self, sys};
use core::sync::atomic::Ordering;

/// Room above the soft limit that is asked for, in descriptors.
const ROOM: u64 = 8192;

/// Descriptors that a program must be able to have for the shim to take some.
const ENOUGH: u64 = 256;

/// Whether the program can spare the descriptors that channels need.
pub fn can_be_had() -> bool {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let asked = sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit);
    let above = limit.rlim_max.saturating_sub(limit.rlim_cur);
    asked.is_ok() && (limit.rlim_cur >= ENOUGH || above >= ENOUGH)
}

/// Moves a descriptor to a high number; the given number is closed in any case.
pub fn hide(fd: i32) -> sys::Result<i32> {
    let moved = copy(fd);
    let _ = sys!(SYS_close, fd);
    moved
}

/// A hidden descriptor of the same file.
pub fn copy(fd: i32) -> sys::Result<i32> {
    let high = duplicate_high(fd)?;
    if let Some(word) = slot(high) {
        word.store(kind::HIDDEN, Ordering::Release);
    }
    Ok(high)
}

fn duplicate_high(fd: i32) -> sys::Result<i32> {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit)?;
    let soft = limit.rlim_cur;
    let raised = soft.saturating_add(ROOM).min(limit.rlim_max);
    if raised > soft {
        // A raised soft limit is needed only while the descriptor is made.
        let wide = libc::rlimit64 {
            rlim_cur: raised,
            rlim_max: limit.rlim_max,
        };
        sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, &raw const wide, 0)?;
        let high = sys!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, soft);
        sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, &raw const limit, 0)?;
        if let Ok(high) = high {
            return Ok(high as i32);
        }
    }
    let mut floor = soft - soft / 4;
    loop {
        match sys!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, floor) {
            Ok(high) => return Ok(high as i32),
            Err(error) if floor < 8 => return Err(error),
            Err(_) => floor /= 2,
        }
    }
}

/// Closes a hidden descriptor.
pub fn close(fd: i32) {
    if fd < 0 {
        return;
    }
    if let Some(word) = slot(fd) {
        word.store(kind::UNKNOWN, Ordering::Release);
    }
    let _ = sys!(SYS_close, fd);
}
