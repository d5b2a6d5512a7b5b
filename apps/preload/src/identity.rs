//! Who this process is, and whether another one of its family is gone.

use crate::lock;
use crate::process::PROCESS;
use crate::sys::sys;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Of the process: its number, and where that number holds.
pub struct Identity {
    pid: AtomicI32,
    /// That of the process in which the library was loaded, from which the others were forked.
    namespace: AtomicU64,
}

impl Identity {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            pid: AtomicI32::new(0),
            namespace: AtomicU64::new(0),
        }
    }
}

/// The library has been loaded.
pub fn begin() {
    after_fork();
    let known = &PROCESS.identity.namespace;
    known.store(namespace(), Ordering::Relaxed);
}

/// In a forked child.
pub fn after_fork() {
    let pid = sys!(SYS_getpid).unwrap_or(0) as i32;
    PROCESS.identity.pid.store(pid, Ordering::Relaxed);
    lock::set_lock_salt(pid as u32);
}

/// Whether a process is gone that was in this one's family when it had this number. Not so,
/// if that cannot be told: in another PID namespace the number may be nobody's, or somebody's.
#[cold]
pub fn is_gone(pid: i32) -> bool {
    if pid <= 0 || namespace() != PROCESS.identity.namespace.load(Ordering::Relaxed) {
        return false;
    }
    let Ok(handle) = sys!(SYS_pidfd_open, pid, 0) else {
        return sys!(SYS_kill, pid, 0) == Err(libc::ESRCH);
    };
    let mut entry = libc::pollfd {
        fd: handle as i32,
        events: libc::POLLIN,
        revents: 0,
    };
    // Also one that nobody has waited for yet.
    let ended = sys!(SYS_poll, &raw mut entry, 1, 0) == Ok(1);
    let _ = sys!(SYS_close, handle);
    ended
}

/// The PID namespace's number (namespaces(7)), or 0.
fn namespace() -> u64 {
    let mut text = [0u8; 32];
    let path = c"/proc/self/ns/pid".as_ptr();
    let length = sys!(SYS_readlink, path, text.as_mut_ptr(), text.len()).unwrap_or(0);
    let digits = text[..length].iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: u64, digit| {
        number.wrapping_mul(10) + u64::from(digit - b'0')
    })
}

/// This process.
pub fn pid() -> i32 {
    PROCESS.identity.pid.load(Ordering::Relaxed)
}

/// Whether the caller runs in the memory of another process (a vfork child).
pub fn in_borrowed_memory() -> bool {
    sys!(SYS_getpid).unwrap_or(0) as i32 != PROCESS.identity.pid.load(Ordering::Relaxed)
}
