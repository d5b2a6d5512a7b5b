//! The functions that this library stands in front of. A call that stays with the
//! kernel goes to libc's own function, not to a bare system call, because libc
//! does more than the call: cancellation points, 32-bit time, locks.
//!
//! Addresses come from `dlsym(RTLD_NEXT)`, each looked up once. `dlsym` is a weak
//! reference: a program without it (none is known that loads this library) gets
//! the system call.

use core::ffi::{c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

/// stdio.h.
const EOF: c_int = -1;

const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;

/// A function of libc, looked up at first use.
pub struct Real {
    name: &'static core::ffi::CStr,
    address: AtomicUsize,
}

impl Real {
    /// Names the function; nothing is looked up yet.
    pub const fn new(name: &'static core::ffi::CStr) -> Self {
        Self {
            name,
            address: AtomicUsize::new(0),
        }
    }

    /// Its address, or `None` if libc has no such function.
    pub fn find(&self) -> Option<usize> {
        let known = self.address.load(Ordering::Relaxed);
        if known != 0 {
            return Some(known);
        }
        let dlsym = crate::sys::weak_address!("dlsym");
        if dlsym == 0 {
            return None;
        }
        // SAFETY: libc's function of this name has this signature (dlfcn.h); the name is a C string.
        let found = unsafe {
            let dlsym: extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
                core::mem::transmute(dlsym);
            dlsym(RTLD_NEXT, self.name.as_ptr()) as usize
        };
        if found == 0 {
            return None;
        }
        self.address.store(found, Ordering::Relaxed);
        Some(found)
    }
}

/// `reals! { fn read(fd: c_int, ...) -> isize = SYS_read; }` declares `real::read`, which calls
/// libc's function, or the named system call if there is none. What is no system call fails
/// then, with the value behind `or`.
macro_rules! reals {
    (@without $number:ident ($($argument:ident),*) -> $result:ty) => {
        crate::sys::give(crate::sys::sys!($number $(, $argument)*)) as $result
    };
    (@without (or $failed:expr) ($($argument:ident),*) -> $result:ty) => {{
        let _ = ($($argument,)*);
        crate::sys::set_errno(libc::ENOSYS);
        $failed
    }};
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $number:tt;)+) => {
        $(
            /// libc's function of this name.
            ///
            /// # Safety
            /// As libc's function.
            pub unsafe fn $name($($argument: $type),*) -> $result {
                static REAL: Real = Real::new(
                    match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!(),
                    },
                );
                match REAL.find() {
                    Some(address) => {
                        let call: unsafe extern "C" fn($($type),*) -> $result =
                            // SAFETY: libc's function of this name has this signature.
                            unsafe { core::mem::transmute(address) };
                        // SAFETY: by the caller's contract.
                        unsafe { call($($argument),*) }
                    }
                    None => reals!(@without $number ($($argument),*) -> $result),
                }
            }
        )+
    };
}

reals! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = SYS_socket;
    fn listen(fd: c_int, backlog: c_int) -> c_int = SYS_listen;
    fn connect(fd: c_int, name: *const c_void, length: u32) -> c_int = SYS_connect;
    fn accept(fd: c_int, name: *mut c_void, length: *mut u32) -> c_int = SYS_accept;
    fn accept4(fd: c_int, name: *mut c_void, length: *mut u32, flags: c_int) -> c_int = SYS_accept4;
    fn shutdown(fd: c_int, how: c_int) -> c_int = SYS_shutdown;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int = SYS_setsockopt;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut u32) -> c_int = SYS_getsockopt;
    fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize = SYS_read;
    fn readv(fd: c_int, iov: *const libc::iovec, count: c_int) -> isize = SYS_readv;
    fn preadv2(fd: c_int, iov: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize = SYS_preadv2;
    fn pwritev2(fd: c_int, iov: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize = SYS_pwritev2;
    fn recv(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int) -> isize = SYS_recvfrom;
    fn recvfrom(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int, name: *mut c_void, length: *mut u32) -> isize = SYS_recvfrom;
    fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize = SYS_recvmsg;
    fn recvmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: u32, flags: c_int, timeout: *mut libc::timespec) -> c_int = SYS_recvmmsg;
    fn write(fd: c_int, buffer: *const c_void, count: usize) -> isize = SYS_write;
    fn writev(fd: c_int, iov: *const libc::iovec, count: c_int) -> isize = SYS_writev;
    fn send(fd: c_int, buffer: *const c_void, count: usize, flags: c_int) -> isize = SYS_sendto;
    fn sendto(fd: c_int, buffer: *const c_void, count: usize, flags: c_int, name: *const c_void, length: u32) -> isize = SYS_sendto;
    fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize = SYS_sendmsg;
    fn sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: u32, flags: c_int) -> c_int = SYS_sendmmsg;
    fn sendfile(out: c_int, input: c_int, offset: *mut i64, count: usize) -> isize = SYS_sendfile;
    fn splice(input: c_int, input_offset: *mut i64, output: c_int, output_offset: *mut i64, count: usize, flags: u32) -> isize = SYS_splice;
    fn close(fd: c_int) -> c_int = SYS_close;
    fn dup(fd: c_int) -> c_int = SYS_dup;
    fn dup2(old: c_int, new: c_int) -> c_int = SYS_dup2;
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int = SYS_dup3;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int = SYS_fcntl;
    fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int = SYS_ioctl;
    fn poll(fds: *mut libc::pollfd, count: usize, timeout_ms: c_int) -> c_int = SYS_poll;
    fn ppoll(fds: *mut libc::pollfd, count: usize, timeout: *const libc::timespec, mask: *const c_void) -> c_int = SYS_ppoll;
    fn select(count: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *mut libc::timeval) -> c_int = SYS_select;
    fn pselect(count: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *const libc::timespec, mask: *const c_void) -> c_int = SYS_pselect6;
    fn epoll_create1(flags: c_int) -> c_int = SYS_epoll_create1;
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int = SYS_epoll_ctl;
    fn epoll_wait(epoll: c_int, events: *mut libc::epoll_event, count: c_int, timeout_ms: c_int) -> c_int = SYS_epoll_wait;
    fn epoll_pwait(epoll: c_int, events: *mut libc::epoll_event, count: c_int, timeout_ms: c_int, mask: *const c_void) -> c_int = SYS_epoll_pwait;
    fn epoll_pwait2(epoll: c_int, events: *mut libc::epoll_event, count: c_int, timeout: *const libc::timespec, mask: *const c_void) -> c_int = SYS_epoll_pwait2;
    fn sigaction(signal: c_int, new: *const c_void, old: *mut c_void) -> c_int = SYS_rt_sigaction;
    fn fclose(file: *mut c_void) -> c_int = (or EOF);
    fn fflush(file: *mut c_void) -> c_int = (or EOF);
    fn fileno(file: *mut c_void) -> c_int = (or -1);
    fn ungetc(byte: c_int, file: *mut c_void) -> c_int = (or EOF);
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void = (or core::ptr::null_mut());
    fn freopen(path: *const c_char, mode: *const c_char, file: *mut c_void) -> *mut c_void = (or core::ptr::null_mut());
    fn aio_read(block: *mut c_void) -> c_int = (or -1);
    fn aio_write(block: *mut c_void) -> c_int = (or -1);
    fn lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int = (or -1);
    fn io_submit(context: usize, count: c_long, list: *const *mut c_void) -> c_int = (or -libc::ENOSYS);
    fn close_range(first: u32, last: u32, flags: c_int) -> c_int = SYS_close_range;
}
