//! Whether some program requires the fast path, so that all others offer a connection as soon as they
//! see it.
//!
//! The broker says so in a file beside its control socket, for a program that has offered nothing yet
//! speaks to no broker. The file has one byte (a [`insisted`]), which the process maps at its first
//! connection and looks at from then on: a look by name would cost each connection a microsecond.
//!
//! # States
//! * No file: there is no broker (yet). Each connection looks by name.
//! * Mapped. A broker that is killed leaves its file to the next one, which goes on with it.
//! * Over: a broker that ends says so in the byte and removes the file. Each connection looks by
//!   name again, and what it finds is mapped over what was: another thread may be about to look there.
//! * An empty file is an older broker's, which makes it while some program requires the fast path.
//!
//! Order: who requires the fast path is known to the broker before it connects or listens, and the
//! byte is written before the broker answers. So what the other end of its connection finds is so.

use crate::config;
use crate::process::PROCESS;
use crate::sys::{self, sys};
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use fordway_abi::insisted;

/// Of the process: the mapped byte.
pub struct Insisted(AtomicPtr<AtomicU8>);

impl Insisted {
    /// As a process begins.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }
}

/// Maps the file, if there is one: later the program may have another root, or may open nothing.
pub fn set_up() {
    is_so();
}

/// Whether some program requires the fast path: its peers are to offer at once.
pub fn is_so() -> bool {
    let place = PROCESS.insisted.0.load(Ordering::Acquire);
    // SAFETY: mapped for good; written by a broker alone.
    let word = unsafe { place.as_ref() }.map(|word| word.load(Ordering::Acquire));
    match word {
        None | Some(insisted::OVER) => look(place),
        Some(word) => word == insisted::YES,
    }
}

/// Looks by name, and maps what it finds, over `place` if that is not null.
#[cold]
fn look(place: *mut AtomicU8) -> bool {
    let path = config::insisted_path().cast::<u8>();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let Ok(fd) = sys!(SYS_openat, libc::AT_FDCWD, path, flags, 0) else {
        return false;
    };
    let bytes = sys!(SYS_lseek, fd, 0, libc::SEEK_END);
    let mapped = match bytes {
        Ok(0) | Err(_) => None,
        Ok(_) => sys::map(
            fd as i32,
            1,
            libc::PROT_READ,
            libc::MAP_SHARED,
            place.cast(),
        )
        .ok(),
    };
    let _ = sys!(SYS_close, fd);
    let Some(mapped) = mapped else {
        // An older broker's: there is one while it is so. Of one that cannot be mapped nothing is
        // known, and an offer that nobody waits for is only early.
        return bytes.is_ok();
    };
    let mapped = mapped.cast::<AtomicU8>();
    // SAFETY: just mapped.
    let is_so = unsafe { (*mapped).load(Ordering::Acquire) } == insisted::YES;
    let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
    let kept = PROCESS
        .insisted
        .0
        .compare_exchange(place, mapped, set, fetch);
    if kept.is_err() && place.is_null() {
        // Another thread was first.
        let _ = sys!(SYS_munmap, mapped, 1);
    }
    is_so
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tables;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn the_byte_is_looked_at_and_by_name_again_once_it_is_over() {
        let _turn = tables();
        let directory = std::env::temp_dir().join(format!("insisted-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join(fordway_abi::INSISTED_FILE);
        config::pretend_insisted(path.as_os_str().as_bytes());
        let write = |word: u8| std::fs::write(&path, [word]).expect("it is written");
        assert!(!is_so(), "there is no broker");
        std::fs::write(&path, []).expect("it is made");
        assert!(is_so(), "an older broker's");
        write(insisted::NO);
        assert!(!is_so());
        write(insisted::YES);
        assert!(is_so());
        write(insisted::OVER);
        std::fs::remove_file(&path).expect("it is there");
        assert!(!is_so(), "the broker has ended");
        write(insisted::YES);
        assert!(is_so(), "another one has begun");
        write(insisted::NO);
        assert!(!is_so(), "and its byte is the one that is mapped");
        std::fs::remove_dir_all(&directory).expect("it is there");
        config::pretend_insisted(b"");
    }
}
