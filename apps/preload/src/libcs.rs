//! The two libcs, and what the library has to know of their differences; all else is the
//! same to it, since on x86-64 both took their types from the kernel.
//!
//! | | glibc | musl |
//! |---|---|---|
//! | a constructor is handed | arguments and environment | nothing |
//! | forks are told of by | `__register_atfork` | `pthread_atfork` |
//! | counts in messages (`struct msghdr`, `cmsghdr`) | have 64 bits | have 32, and padding with anything in it |
//! | signals of its own | 32, 33 | 32, 33, 34 |
//! | a jump out of a frame calls its cleanup routine | yes | no ([`crate::thread`]) |
//! | bytes pushed back into a stream | any number | as many as its buffer has room for ([`crate::stdio`]) |
//! | waits in nanoseconds for an epoll instance | from 2.35 on | no |
//! | restartable sequences, fortified names | has them | has none |
//!
//! With a third libc the library stays passive.

use crate::sys;
use core::ffi::{c_char, c_int, c_void};

/// Whether the program is linked to musl: the second stage of its loader is a function that the
/// first one looks up by name. (The name that glibc is known by, layers of compatibility have, too.)
#[inline(always)]
pub fn is_musl() -> bool {
    sys::weak_address!("__dls3") != 0
}

/// The environment as the process was given it: what the constructor was `handed`, or what
/// libc shows; `None` with a libc that is not known.
pub fn environment(handed: *const *const c_char) -> Option<*const *const c_char> {
    if is_musl() {
        let shown = sys::weak_address!("__environ") as *const *const *const c_char;
        // SAFETY: musl's variable, or the program's copy of it; set before any constructor runs.
        return unsafe { shown.as_ref() }.copied();
    }
    (sys::weak_address!("gnu_get_libc_version") != 0).then_some(handed)
}

/// What a count of a message means, that of its parts or of control data.
#[inline]
pub fn count(field: usize) -> usize {
    if is_musl() {
        field as u32 as usize
    } else {
        field
    }
}

/// Signals that libc keeps for itself, from 32 on.
pub fn signals_of_its_own() -> u32 {
    if is_musl() { 3 } else { 2 }
}

type Handler = Option<unsafe extern "C" fn()>;

/// Asks libc to call these at each fork. They live as long as the process: this library is never
/// unloaded.
pub fn at_fork(prepare: Handler, parent: Handler, child: Handler) {
    let register = sys::weak_address!("__register_atfork");
    let by_standard = sys::weak_address!("pthread_atfork");
    // SAFETY: functions of these names have these signatures (glibc's own; pthread.h).
    unsafe {
        if register != 0 {
            let register: extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int =
                core::mem::transmute(register);
            register(prepare, parent, child, core::ptr::null_mut());
        } else if by_standard != 0 {
            let register: extern "C" fn(Handler, Handler, Handler) -> c_int =
                core::mem::transmute(by_standard);
            register(prepare, parent, child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn these_tests_run_with_glibc() {
        assert!(!is_musl());
        let handed = core::ptr::dangling();
        assert_eq!(environment(handed), Some(handed));
        assert_eq!(count(usize::MAX), usize::MAX);
    }
}
