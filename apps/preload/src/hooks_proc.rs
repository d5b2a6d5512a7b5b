//! Calls that hand descriptors to code without the shim: exec, spawn, stdio; and
//! what the shim must know of exits.
//!
//! exec and dprintf take variable arguments, which a Rust function cannot pass on.
//! Their entries are a few instructions that keep every argument register, ask
//! [`fordway_before`] what libc's address is, and jump there.

use crate::end::At;
use crate::real::Real;
use crate::state::{self, Conn};
use crate::sys::{self, give, sys};
use crate::{config, fork, hooks_fd, real, stdio, upgrade};
use core::ffi::{c_char, c_int, c_void};
use fordway_abi::reason::Reason;
use fordway_sockets::down;

/// The functions behind the jumping entries, by index.
static JUMPS: [Real; 17] = [
    Real::new(c"execve"),
    Real::new(c"execv"),
    Real::new(c"execvp"),
    Real::new(c"execvpe"),
    Real::new(c"execl"),
    Real::new(c"execlp"),
    Real::new(c"execle"),
    Real::new(c"fexecve"),
    Real::new(c"execveat"),
    Real::new(c"posix_spawn"),
    Real::new(c"posix_spawnp"),
    Real::new(c"system"),
    Real::new(c"popen"),
    Real::new(c"dprintf"),
    Real::new(c"vdprintf"),
    Real::new(c"__dprintf_chk"),
    Real::new(c"__vdprintf_chk"),
];
const FIRST_SPAWN: usize = 9;
const FIRST_STDIO: usize = 13;

macro_rules! jumps {
    ($($index:literal $name:ident),+) => {
        $(
            /// Prepares, then jumps to libc's function of this name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() {
                core::arch::naked_asm!(
                    // Seven pushes also align the stack for the call.
                    "push rax", "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
                    "mov rsi, rdi",
                    concat!("mov edi, ", $index),
                    "call {before}",
                    "mov r11, rax",
                    "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "pop rax",
                    "jmp r11",
                    before = sym fordway_before,
                );
            }
        )+
    };
}

jumps!(0 execve, 1 execv, 2 execvp, 3 execvpe, 4 execl, 5 execlp, 6 execle, 7 fexecve,
       8 execveat, 9 posix_spawn, 10 posix_spawnp, 11 system, 12 popen, 13 dprintf, 14 vdprintf,
       15 __dprintf_chk, 16 __vdprintf_chk);

/// Does what has to be done before the function `index`; returns libc's address of it.
extern "C" fn fordway_before(index: usize, first: usize) -> usize {
    let errno = sys::errno();
    if config::is_active() {
        if index >= FIRST_STDIO {
            before_stdio(first as c_int);
        } else {
            before_exec(index >= FIRST_SPAWN);
        }
    }
    sys::set_errno(errno);
    match JUMPS[index].find() {
        Some(address) => address,
        None => missing as *const () as usize,
    }
}

extern "C" fn missing() -> c_int {
    give(Err(libc::ENOSYS)) as c_int
}

/// Sockets that stay open across exec may be used there by the kernel's calls.
pub fn before_exec(spawns: bool) {
    let borrowed = fork::in_borrowed_memory();
    for (conn, end, flags) in with_flags(borrowed) {
        if flags & libc::FD_CLOEXEC == 0 {
            down::bar(&end, Reason::Exec);
            down::leave_and_stop(&end, Reason::Exec);
        } else if !borrowed && !spawns {
            // Closed by the exec: this process lets go of it.
            fork::let_go(conn);
        }
    }
    let deadline_ns = down::deadline(sys::now_ns());
    for (_, end, flags) in with_flags(borrowed) {
        if flags & libc::FD_CLOEXEC == 0 {
            down::settle(&end, deadline_ns);
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

/// dprintf writes past the library.
fn before_stdio(fd: c_int) {
    if let Some(conn) = state::conn(fd) {
        down::send_by_kernel(&conn.at(fd), Reason::Stdio);
    }
}

/// # Safety
/// As fdopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
    let conn = state::conn(fd).filter(|_| config::is_active());
    let Some(conn) = conn else {
        // SAFETY: the program's own arguments.
        return unsafe { real::fdopen(fd, mode) };
    };
    // SAFETY: the program's string; "w", "r+" and the like.
    let mode_bytes = unsafe { core::ffi::CStr::from_ptr(mode) }.to_bytes();
    let has = |letter: &u8| mode_bytes.contains(letter);
    if !has(&b'r') || has(&b'+') {
        down::send_by_kernel(&conn.at(fd), Reason::Stdio);
    }
    let early = if has(&b'r') || has(&b'+') {
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
    if state::conn(fd).is_some() {
        // What is buffered goes first.
        // SAFETY: by contract.
        unsafe { real::fflush(file) };
        hooks_fd::closed_by_libc(fd);
    }
}

/// # Safety
/// As fclose(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(file: *mut c_void) -> c_int {
    // SAFETY: the program's own argument.
    unsafe {
        before_closing(file);
        real::fclose(file)
    }
}

/// # Safety
/// As freopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut c_void,
) -> *mut c_void {
    // SAFETY: the program's own arguments.
    unsafe {
        before_closing(file);
        real::freopen(path, mode, file)
    }
}

/// # Safety
/// As posix_spawn_file_actions_adddup2(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    fd: c_int,
    new: c_int,
) -> c_int {
    static REAL: Real = Real::new(c"posix_spawn_file_actions_adddup2");
    if config::is_active()
        && let Some(conn) = state::conn(fd)
    {
        down::bar(&conn.end(), Reason::Exec);
        down::downgrade(&conn.at(fd), Reason::Exec, true);
    }
    let Some(address) = REAL.find() else {
        return libc::ENOSYS;
    };
    // SAFETY: libc's function of this name has this signature.
    unsafe {
        let call: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int =
            core::mem::transmute(address);
        call(actions, fd, new)
    }
}

/// # Safety
/// As _exit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    if config::is_active() && !fork::in_borrowed_memory() {
        fork::leaving();
    }
    loop {
        let _ = sys!(SYS_exit_group, status);
    }
}
