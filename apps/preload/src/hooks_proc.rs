//! Calls that hand descriptors to code without the shim: exec, spawn, stdio; and
//! what the shim must know of exits.

use crate::end::At;
use crate::state::{self, Conn};
use crate::sys::{self, sys};
use crate::{config, datagram, fork, hooks_fd, identity, libcs, real, stack, stdio, upgrade};
use core::ffi::{c_char, c_int, c_void};
use fordway_abi::reason::Reason;
use fordway_sockets::down;

/// Sockets that stay open across exec may be used there by the kernel's calls.
pub fn before_exec(spawns: bool) {
    let borrowed = identity::in_borrowed_memory();
    datagram::before_exec(!borrowed && !spawns);
    for (conn, end, flags) in with_flags(borrowed) {
        if flags & libc::FD_CLOEXEC == 0 {
            down::bar(&end, Reason::Exec);
            down::leave_and_stop(&end, Reason::Exec);
        } else if !borrowed && !spawns {
            // Closed by the exec: this process lets go of it.
            fork::let_go(&conn.held);
        }
    }
    let deadline_ns = down::deadline(sys::now_ns());
    for (_, end, flags) in with_flags(borrowed) {
        if flags & libc::FD_CLOEXEC == 0 {
            down::settle(&end, Some(deadline_ns));
        }
    }
}

/// All connections with their descriptors' flags. Other threads may close them meanwhile, and have
/// others under the same numbers.
fn with_flags(borrowed: bool) -> impl Iterator<Item = (&'static Conn, At<'static>, c_int)> {
    state::conns().filter_map(move |conn| {
        let end = conn.end();
        let fd = end.fd();
        if borrowed && !upgrade::is_under(conn, fd) {
            return None;
        }
        let flags = sys!(SYS_fcntl, fd, libc::F_GETFD).ok()?;
        end.is_same().then_some((conn, end, flags as c_int))
    })
}

/// dprintf and its kin write past the library.
pub fn before_stdio(fd: c_int) {
    datagram::bar(fd, Reason::Stdio);
    if let Some(conn) = state::conn(fd) {
        down::send_by_kernel(&conn.at(fd), Reason::Stdio);
    }
}

/// # Safety
/// As fdopen(3).
pub unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
    datagram::bar(fd, Reason::Stdio);
    let conn = state::conn(fd).filter(|_| config::is_active());
    let Some(conn) = conn else {
        // SAFETY: the program's own arguments.
        return unsafe { real::fdopen(fd, mode) };
    };
    if state::records(fd).is_some() {
        // A stream would take lengths for bytes.
        sys::set_errno(libc::EINVAL);
        return core::ptr::null_mut();
    }
    // SAFETY: the program's string; "w", "r+" and the like.
    let mode_bytes = unsafe { core::ffi::CStr::from_ptr(mode) }.to_bytes();
    let has = |letter: &u8| mode_bytes.contains(letter);
    if !has(&b'r') || has(&b'+') {
        down::send_by_kernel(&conn.at(fd), Reason::Stdio);
    }
    let early = if has(&b'+') {
        // A stream that is written to before it is read loses what was pushed back into it.
        down::bar(&conn.end(), Reason::Stdio);
        down::downgrade(&conn.at(fd), Reason::Stdio, true);
        None
    } else if has(&b'r') {
        stdio::take_early(conn, fd)
    } else {
        None
    };
    // SAFETY: the program's own arguments.
    let file = unsafe { real::fdopen(fd, mode) };
    if let Some(early) = early {
        early.give(file);
    }
    file
}

/// libc is about to close a stream's descriptor past the hooks.
///
/// # Safety
/// `file` is a stream of the program's, or null.
unsafe fn before_closing(file: *mut c_void) {
    if !config::is_active() || file.is_null() {
        return;
    }
    let errno = sys::errno();
    // SAFETY: by contract.
    let fd = unsafe { real::fileno(file) };
    sys::set_errno(errno);
    if state::conn(fd).is_some() || stack::of(fd).is_some() {
        // What is buffered goes first.
        // SAFETY: by contract.
        unsafe { real::fflush(file) };
        hooks_fd::closed_by_libc(fd);
    }
}

/// # Safety
/// As fclose(3).
pub unsafe fn fclose(file: *mut c_void) -> c_int {
    // SAFETY: the program's own argument.
    unsafe {
        before_closing(file);
        real::fclose(file)
    }
}

/// # Safety
/// As freopen(3).
pub unsafe fn freopen(path: *const c_char, mode: *const c_char, file: *mut c_void) -> *mut c_void {
    // SAFETY: the program's own arguments.
    unsafe {
        before_closing(file);
        real::freopen(path, mode, file)
    }
}

/// # Safety
/// As wordexp(3).
pub unsafe fn wordexp(text: *const c_char, words: *mut c_void, flags: c_int) -> c_int {
    // SAFETY: the program's string.
    let bytes = unsafe { core::ffi::CStr::from_ptr(text) }.to_bytes();
    // A shell runs what stands in these; with musl, one reads the whole.
    let has_command = bytes.contains(&b'`') || bytes.windows(2).any(|two| two == b"$(");
    if config::is_active() && (has_command || libcs::is_musl()) {
        before_exec(true);
    }
    // SAFETY: the program's own arguments.
    unsafe { real::wordexp(text, words, flags) }
}

/// # Safety
/// As posix_spawn_file_actions_adddup2(3).
pub unsafe fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    fd: c_int,
    new: c_int,
) -> c_int {
    if config::is_active()
        && let Some(conn) = state::conn(fd)
    {
        down::bar(&conn.end(), Reason::Exec);
        down::downgrade(&conn.at(fd), Reason::Exec, true);
    }
    // SAFETY: the program's own arguments.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, new) }
}

/// As _exit(2).
pub fn _exit(status: c_int) -> ! {
    if config::is_active() && !identity::in_borrowed_memory() {
        fork::leaving();
    }
    loop {
        let _ = sys!(SYS_exit_group, status);
    }
}
