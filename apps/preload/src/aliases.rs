//! Further names of the functions that the library takes over.
//!
//! A program links to whichever name its headers and its compiler's options made of a call: that of
//! another standard, libc's own (`__`), the one for large files (`64`: off_t has 64 bits anyway), or
//! the fortified one (`_chk`), which is told the size of the buffer as well.

use crate::real::Real;
use crate::{hooks_fd, hooks_io, hooks_many, hooks_proc, hooks_unseen, hooks_wait, signals, sys};
use core::ffi::{c_char, c_int, c_void};

macro_rules! aliases {
    ($($name:ident = $module:ident::$function:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        /// # Safety
        /// As the function's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: by the caller's contract.
            unsafe { $module::$function($($argument),*) }
        }
    )*};
}

aliases! {
    __close = hooks_fd::close(fd: c_int) -> c_int;
    __connect = hooks_fd::connect(fd: c_int, name: *const c_void, length: u32) -> c_int;
    __dup2 = hooks_fd::dup2(old: c_int, new: c_int) -> c_int;
    __fcntl = hooks_fd::fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fcntl64 = hooks_fd::fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    __read = hooks_io::read(fd: c_int, buffer: *mut c_void, count: usize) -> isize;
    __write = hooks_io::write(fd: c_int, buffer: *const c_void, count: usize) -> isize;
    __send = hooks_io::send(fd: c_int, buffer: *const c_void, count: usize, flags: c_int) -> isize;
    sendfile64 = hooks_io::sendfile(out: c_int, file: c_int, offset: *mut i64, count: usize) -> isize;
    preadv64v2 = hooks_many::preadv2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize;
    pwritev64v2 = hooks_many::pwritev2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize;
    _IO_fdopen = hooks_proc::fdopen(fd: c_int, mode: *const c_char) -> *mut c_void;
    _IO_fclose = hooks_proc::fclose(file: *mut c_void) -> c_int;
    freopen64 = hooks_proc::freopen(path: *const c_char, mode: *const c_char, file: *mut c_void) -> *mut c_void;
    _Exit = hooks_proc::_exit(status: c_int) -> !;
    lio_listio64 = hooks_unseen::lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int;
    __poll = hooks_wait::poll(fds: *mut libc::pollfd, count: usize, timeout_ms: c_int) -> c_int;
    __select = hooks_wait::select(count: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *mut libc::timeval) -> c_int;
    __sigaction = signals::sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    bsd_signal = signals::signal(signal: c_int, handler: usize) -> usize;
    ssignal = signals::signal(signal: c_int, handler: usize) -> usize;
    __sysv_signal = signals::sysv_signal(signal: c_int, handler: usize) -> usize;
}

macro_rules! fortified {
    ($($name:ident = $module:ident::$function:ident($($argument:ident: $kind:ty),* ; $size:ident ; $($after:ident: $more:ty),*) -> $result:ty, $count:ident of $bytes:expr;)*) => {$(
        /// # Safety
        /// As the function's; `size` is what the compiler knows of the buffer, in bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind,)* $size: usize, $($after: $more),*) -> $result {
            check_size($count, $size / $bytes);
            // SAFETY: by the caller's contract.
            unsafe { $module::$function($($argument,)* $($after),*) }
        }
    )*};
}

fortified! {
    __read_chk = hooks_io::read(fd: c_int, buffer: *mut c_void, count: usize; size;) -> isize, count of 1;
    __recv_chk = hooks_io::recv(fd: c_int, buffer: *mut c_void, count: usize; size; flags: c_int) -> isize, count of 1;
    __recvfrom_chk = hooks_io::recvfrom(fd: c_int, buffer: *mut c_void, count: usize; size; flags: c_int, name: *mut c_void, length: *mut u32) -> isize, count of 1;
    __poll_chk = hooks_wait::poll(fds: *mut libc::pollfd, count: usize, timeout_ms: c_int; size;) -> c_int, count of size_of::<libc::pollfd>();
    __ppoll_chk = hooks_wait::ppoll(fds: *mut libc::pollfd, count: usize, timeout: *const libc::timespec, mask: *const c_void; size;) -> c_int, count of size_of::<libc::pollfd>();
}

/// The fortified functions end a program that would overrun its buffer, as libc does it.
fn check_size(count: usize, size: usize) {
    static FAIL: Real = Real::new(c"__chk_fail");
    if count > size {
        if let Some(address) = FAIL.find() {
            // SAFETY: libc's function of this name has this signature.
            let fail: extern "C" fn() = unsafe { core::mem::transmute(address) };
            fail();
        }
        sys::abort();
    }
}
