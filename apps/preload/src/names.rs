//! The functions of libc that this library has to do with: one table, one row for each.
//!
//! # A row
//! ```text
//! unsafe fn recv(fd: c_int, buffer: *mut c_void, count: usize; flags: c_int) -> isize = SYS_recvfrom,
//!     by hooks_io, also ..., numbered ..., checked __recv_chk(count of 1);
//! ```
//! First stands the signature of libc's function, as in a block of foreign functions. What stands
//! behind it may each be missing:
//!
//! | part | what comes of it |
//! |---|---|
//! | `= SYS_recvfrom` | `real::recv`, which calls libc's function; if libc has none, this system call |
//! | `= (or -1)`, `= nothing` | the same; if libc has none, ENOSYS and this result; nothing |
//! | `= (as f)` | the same; if libc has none, this function of ours |
//! | `by hooks_io` | the function of this name in that module stands in front of libc's: the library exports the name |
//! | `also __recv` | further names of the same function |
//! | `numbered SYS_recvfrom` | syscall() with this number calls ours as well |
//! | `checked __recv_chk(...)` | the fortified name: the size of the buffer stands where the signature has its `;`, and so many entries of so many bytes have to find room there |
//!
//! A program links to whichever name its headers and its compiler's options made of a call: that of
//! another standard, libc's own (`__`), the one for large files (`64`: off_t has 64 bits anyway), or
//! the fortified one (`_chk`).
//!
//! # Calls that stay with the kernel
//! They go to libc's own function, not to a bare system call, because libc does more than
//! the call: cancellation points, 32-bit time, locks. Addresses come from `dlsym(RTLD_NEXT)`,
//! each looked up once. `dlsym` is a weak reference: a program without it (none is known that
//! loads this library) gets the system call.
//!
//! # Jumps
//! Functions with variable arguments cannot be passed on by a Rust function. Their entries are a few
//! instructions that keep every argument register, have the row's preparation made, and jump to
//! libc's function. Functions to which nothing has to be done behind the call stand there, too.
//! The preparation is given the first and the third argument.

use crate::{hooks_proc, sys, thread};
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

/// stdio.h.
const EOF: c_int = -1;
/// wordexp.h.
const WRDE_NOSPACE: c_int = 1;

const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;

/// A function of libc, looked up at first use.
struct Real {
    name: &'static CStr,
    address: AtomicUsize,
}

/// What [`Real`] has for an address where libc has no such function: it is looked for once,
/// because musl's dlsym takes memory for what it has to say then.
const NONE: usize = 1;

impl Real {
    /// Names the function, with a zero at the end; nothing is looked up yet.
    const fn new(name: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            panic!()
        };
        Self {
            name,
            address: AtomicUsize::new(0),
        }
    }

    /// Its address, or `None` if libc has no such function.
    fn find(&self) -> Option<usize> {
        let known = self.address.load(Ordering::Relaxed);
        if known != 0 {
            return (known != NONE).then_some(known);
        }
        let dlsym = sys::weak_address!("dlsym");
        if dlsym == 0 {
            return None;
        }
        // SAFETY: libc's function of this name has this signature (dlfcn.h); the name is a C string.
        let found = unsafe {
            let dlsym: extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
                core::mem::transmute(dlsym);
            dlsym(RTLD_NEXT, self.name.as_ptr()) as usize
        };
        let known = if found == 0 { NONE } else { found };
        self.address.store(known, Ordering::Relaxed);
        (found != 0).then_some(found)
    }
}

/// What comes of the table as a whole.
macro_rules! names {
    (
        functions {$(
            $safety:ident fn $name:ident $signature:tt -> $result:ty $(= $without:tt)? $(, by $module:ident
                $(, also $($further:ident)+)?
                $(, numbered $number:ident)?
                $(, checked $checked:ident($count:ident of $bytes:expr))?
            )?;
        )+}
        jumps {$(
            $before:expr, or $missing:expr => $($jump:ident)+;
        )+}
    ) => {
        /// libc's functions, each with its own contract.
        pub mod real {
            use super::*;
            $($(called! { $safety fn $name $signature -> $result = $without })?)+
        }

        /// What a program links to.
        #[cfg(not(test))]
        // Some of ours are safe.
        #[allow(unused_unsafe)]
        mod exports {
            use super::*;
            $($(
                exported! { $name $signature -> $result = $module::$name }
                $($(exported! { $further $signature -> $result = $module::$name })+)?
                $(fortified! { $checked $signature -> $result = $module::$name, $count of $bytes })?
            )?)+
            $($(jumped! { $jump })+)+
        }

        /// What syscall() with this number comes to, where that is the function of the same name.
        ///
        /// # Safety
        /// As the system call; arguments that it does not take are never looked at.
        // What an argument is cast to may be what it is.
        #[allow(clippy::unnecessary_cast)]
        pub unsafe fn by_number(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
            // SAFETY: by contract.
            Some(unsafe {
                match number {
                    $($($(libc::$number => numbered!($signature $module::$name arguments) as c_long,)?)?)+
                    _ => return None,
                }
            })
        }

        /// The functions that are jumped to, by index.
        #[allow(non_camel_case_types)]
        enum Index {
            $($($jump,)+)+
            Count,
        }

        static JUMPS: [Jump; Index::Count as usize] = [
            $($(Jump {
                real: Real::new(concat!(stringify!($jump), "\0")),
                before: $before,
                missing: missing::<{ $missing }>,
            },)+)+
        ];

        /// All exported names, and whose function each is.
        #[cfg(test)]
        const EXPORTED: &[(&str, &str)] = &[
            $($(
                (stringify!($name), stringify!($module)),
                $($((stringify!($further), stringify!($module)),)+)?
                $((stringify!($checked), stringify!($module)),)?
            )?)+
            $($((stringify!($jump), "libc"),)+)+
        ];
    };
}

/// A function in [`real`].
macro_rules! called {
    (safe $($row:tt)+) => {
        called! { [pub fn] $($row)+ }
    };
    (unsafe $($row:tt)+) => {
        called! { [pub unsafe fn] $($row)+ }
    };
    (
        [$($head:tt)+] fn $name:ident($($argument:ident: $type:ty),* $(; $($after:ident: $more:ty),*)?)
            -> $result:ty = $without:tt
    ) => {
        // What is inlined would have registers to save in calls that never come here.
        #[inline(never)]
        $($head)+ $name($($argument: $type,)* $($($after: $more),*)?) -> $result {
            static REAL: Real = Real::new(concat!(stringify!($name), "\0"));
            match REAL.find() {
                Some(address) => {
                    let call: unsafe extern "C" fn($($type,)* $($($more),*)?) -> $result =
                        // SAFETY: libc's function of this name has this signature.
                        unsafe { core::mem::transmute(address) };
                    // SAFETY: by the caller's contract.
                    unsafe { call($($argument,)* $($($after),*)?) }
                }
                None => called!(@without $without ($($argument,)* $($($after,)*)?) -> $result),
            }
        }
    };
    (@without nothing ($($argument:ident,)*) -> $result:ty) => {{
        let _ = ($($argument,)*);
    }};
    (@without (or $failed:expr) ($($argument:ident,)*) -> $result:ty) => {{
        let _ = ($($argument,)*);
        sys::set_errno(libc::ENOSYS);
        $failed
    }};
    (@without (as $module:ident::$function:ident) ($($argument:ident,)*) -> $result:ty) => {
        // SAFETY: by the caller's contract.
        unsafe { crate::$module::$function($($argument),*) }
    };
    (@without $number:ident ($($argument:ident,)*) -> $result:ty) => {
        sys::give(sys::sys!($number $(, $argument)*)) as $result
    };
}

/// An exported name.
macro_rules! exported {
    (
        $exported:ident($($argument:ident: $type:ty),* $(; $($after:ident: $more:ty),*)?)
            -> $result:ty = $module:ident::$name:ident
    ) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $exported($($argument: $type,)* $($($after: $more),*)?) -> $result {
            // SAFETY: by the caller's contract.
            unsafe { crate::$module::$name($($argument,)* $($($after),*)?) }
        }
    };
}

/// A fortified name.
macro_rules! fortified {
    (
        $exported:ident($($argument:ident: $type:ty),*; $($after:ident: $more:ty),*)
            -> $result:ty = $module:ident::$name:ident, $count:ident of $bytes:expr
    ) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $exported($($argument: $type,)* size: usize, $($after: $more),*) -> $result {
            if $count > size / $bytes {
                // As libc does it.
                real::__chk_fail();
                sys::abort();
            }
            // SAFETY: by the caller's contract.
            unsafe { crate::$module::$name($($argument,)* $($after),*) }
        }
    };
}

/// Calls ours with the arguments of a system call.
macro_rules! numbered {
    (
        ($($argument:ident: $type:ty),* $(; $($after:ident: $more:ty),*)?)
            $module:ident::$name:ident $arguments:ident
    ) => {{
        let [$($argument,)* $($($after,)*)? ..] = $arguments;
        crate::$module::$name($($argument as $type,)* $($($after as $more),*)?)
    }};
}

/// An entry that prepares, then jumps to libc's function of this name.
macro_rules! jumped {
    ($name:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() {
            core::arch::naked_asm!(
                // Seven pushes also align the stack for the call.
                "push rax", "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
                // The third argument stays where it is.
                "mov rsi, rdi",
                "mov edi, {index}",
                "call {before}",
                "mov r11, rax",
                "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "pop rax",
                "jmp r11",
                index = const Index::$name as usize,
                before = sym fordway_before,
            );
        }
    };
}

/// Looks up what a handler of the program may call first. dlsym is not for handlers (man 7
/// signal-safety): musl's may wait for a lock that the interrupted code has.
pub fn look_up_jumps() {
    for index in [Index::longjmp, Index::_longjmp, Index::siglongjmp] {
        JUMPS[index as usize].real.find();
    }
}

struct Jump {
    real: Real,
    before: fn(usize, usize),
    missing: extern "C" fn() -> isize,
}

/// What libc's function would give that it does not have.
extern "C" fn missing<const RESULT: isize>() -> isize {
    sys::set_errno(libc::ENOSYS);
    RESULT
}

/// Does what has to be done before the function `index`; returns the address to jump to.
extern "C" fn fordway_before(index: usize, first: usize, third: usize) -> usize {
    let jump = &JUMPS[index];
    if crate::config::is_active() {
        let errno = sys::errno();
        (jump.before)(first, third);
        sys::set_errno(errno);
    }
    let missing = jump.missing as usize;
    jump.real.find().unwrap_or(missing)
}

names! {
    functions {
        // Sockets.
        safe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = SYS_socket, by hooks_fd, numbered SYS_socket;
        unsafe fn bind(fd: c_int, name: *const c_void, length: u32) -> c_int = SYS_bind, by hooks_vsock, numbered SYS_bind;
        safe fn listen(fd: c_int, backlog: c_int) -> c_int = SYS_listen, by hooks_fd, numbered SYS_listen;
        unsafe fn connect(fd: c_int, name: *const c_void, length: u32) -> c_int = SYS_connect, by hooks_fd, also __connect, numbered SYS_connect;
        unsafe fn accept(fd: c_int, name: *mut c_void, length: *mut u32) -> c_int = SYS_accept, by hooks_fd, numbered SYS_accept;
        unsafe fn accept4(fd: c_int, name: *mut c_void, length: *mut u32, flags: c_int) -> c_int = SYS_accept4, by hooks_fd, numbered SYS_accept4;
        unsafe fn getsockname(fd: c_int, name: *mut c_void, length: *mut u32) -> c_int = SYS_getsockname, by hooks_vsock, numbered SYS_getsockname;
        unsafe fn getpeername(fd: c_int, name: *mut c_void, length: *mut u32) -> c_int = SYS_getpeername, by hooks_vsock, numbered SYS_getpeername;
        safe fn shutdown(fd: c_int, how: c_int) -> c_int = SYS_shutdown, by hooks_fd, numbered SYS_shutdown;
        unsafe fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int = SYS_setsockopt, by hooks_options, numbered SYS_setsockopt;
        unsafe fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut u32) -> c_int = SYS_getsockopt, by hooks_options, numbered SYS_getsockopt;
        safe fn sockatmark(fd: c_int) -> c_int, by hooks_options;

        // Bytes.
        unsafe fn read(fd: c_int, buffer: *mut c_void, count: usize;) -> isize = SYS_read, by hooks_io, also __read, numbered SYS_read, checked __read_chk(count of 1);
        unsafe fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize = SYS_readv, by hooks_io, numbered SYS_readv;
        unsafe fn preadv2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize = (as hooks_many::bare_preadv2), by hooks_many, also preadv64v2;
        unsafe fn pwritev2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize = (as hooks_many::bare_pwritev2), by hooks_many, also pwritev64v2;
        unsafe fn recv(fd: c_int, buffer: *mut c_void, count: usize; flags: c_int) -> isize = SYS_recvfrom, by hooks_io, checked __recv_chk(count of 1);
        unsafe fn recvfrom(fd: c_int, buffer: *mut c_void, count: usize; flags: c_int, name: *mut c_void, length: *mut u32) -> isize = SYS_recvfrom, by hooks_io, numbered SYS_recvfrom, checked __recvfrom_chk(count of 1);
        unsafe fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize = SYS_recvmsg, by hooks_io, numbered SYS_recvmsg;
        unsafe fn recvmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: u32, flags: c_int, timeout: *mut libc::timespec) -> c_int = SYS_recvmmsg, by hooks_many, numbered SYS_recvmmsg;
        unsafe fn write(fd: c_int, buffer: *const c_void, count: usize) -> isize = SYS_write, by hooks_io, also __write, numbered SYS_write;
        unsafe fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize = SYS_writev, by hooks_io, numbered SYS_writev;
        unsafe fn send(fd: c_int, buffer: *const c_void, count: usize, flags: c_int) -> isize = SYS_sendto, by hooks_io, also __send;
        unsafe fn sendto(fd: c_int, buffer: *const c_void, count: usize, flags: c_int, name: *const c_void, length: u32) -> isize = SYS_sendto, by hooks_io, numbered SYS_sendto;
        unsafe fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize = SYS_sendmsg, by hooks_io, numbered SYS_sendmsg;
        unsafe fn sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: u32, flags: c_int) -> c_int = SYS_sendmmsg, by hooks_many, numbered SYS_sendmmsg;
        unsafe fn sendfile(out: c_int, file: c_int, offset: *mut i64, count: usize) -> isize = SYS_sendfile, by hooks_io, also sendfile64, numbered SYS_sendfile;
        unsafe fn splice(input: c_int, input_offset: *mut i64, output: c_int, output_offset: *mut i64, count: usize, flags: u32) -> isize = SYS_splice, by hooks_io, numbered SYS_splice;
        unsafe fn aio_read(block: *mut c_void) -> c_int = (or -1), by hooks_unseen, also aio_read64;
        unsafe fn aio_write(block: *mut c_void) -> c_int = (or -1), by hooks_unseen, also aio_write64;
        unsafe fn lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int = (or -1), by hooks_unseen, also lio_listio64;
        // libaio's, where the program has that library.
        unsafe fn io_submit(context: usize, count: c_long, list: *const *mut c_void) -> c_int = (or -libc::ENOSYS), by hooks_unseen;

        // Descriptors.
        safe fn close(fd: c_int) -> c_int = SYS_close, by hooks_fd, also __close, numbered SYS_close;
        safe fn close_range(first: u32, last: u32, flags: c_int) -> c_int = SYS_close_range, by hooks_fd, numbered SYS_close_range;
        safe fn closefrom(first: c_int) -> (), by hooks_fd;
        safe fn dup(fd: c_int) -> c_int = SYS_dup, by hooks_fd, numbered SYS_dup;
        safe fn dup2(old: c_int, new: c_int) -> c_int = SYS_dup2, by hooks_fd, also __dup2, numbered SYS_dup2;
        safe fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int = SYS_dup3, by hooks_fd, numbered SYS_dup3;
        unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int = SYS_fcntl, by hooks_fd, also __fcntl fcntl64, numbered SYS_fcntl;
        unsafe fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int = SYS_ioctl, by hooks_options, numbered SYS_ioctl;

        // Waits.
        unsafe fn poll(fds: *mut libc::pollfd, count: usize, timeout_ms: c_int;) -> c_int = SYS_poll, by hooks_wait, also __poll, checked __poll_chk(count of size_of::<libc::pollfd>());
        unsafe fn ppoll(fds: *mut libc::pollfd, count: usize, timeout: *const libc::timespec, mask: *const c_void;) -> c_int = SYS_ppoll, by hooks_wait, checked __ppoll_chk(count of size_of::<libc::pollfd>());
        unsafe fn select(count: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *mut libc::timeval) -> c_int = SYS_select, by hooks_wait, also __select;
        unsafe fn pselect(count: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *const libc::timespec, mask: *const c_void) -> c_int = SYS_pselect6, by hooks_wait;
        safe fn epoll_create(size: c_int) -> c_int = SYS_epoll_create, by hooks_wait;
        safe fn epoll_create1(flags: c_int) -> c_int = SYS_epoll_create1, by hooks_wait, numbered SYS_epoll_create1;
        unsafe fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int = SYS_epoll_ctl, by hooks_wait, numbered SYS_epoll_ctl;
        unsafe fn epoll_wait(epoll: c_int, events: *mut libc::epoll_event, count: c_int, timeout_ms: c_int) -> c_int = SYS_epoll_wait, by hooks_wait;
        unsafe fn epoll_pwait(epoll: c_int, events: *mut libc::epoll_event, count: c_int, timeout_ms: c_int, mask: *const c_void) -> c_int = SYS_epoll_pwait, by hooks_wait;
        unsafe fn epoll_pwait2(epoll: c_int, events: *mut libc::epoll_event, count: c_int, timeout: *const libc::timespec, mask: *const c_void) -> c_int = (as hooks_wait::wait_by_ms), by hooks_wait;

        // Signals and threads.
        unsafe fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int = SYS_rt_sigaction, by signals, also __sigaction;
        unsafe fn signal(signal: c_int, handler: usize) -> usize, by signals, also bsd_signal ssignal;
        unsafe fn sysv_signal(signal: c_int, handler: usize) -> usize, by signals, also __sysv_signal;
        unsafe fn sigset(signal: c_int, disposition: usize) -> usize, by signals;
        safe fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int, by signals;
        unsafe fn pthread_cancel(thread: usize) -> c_int = (or libc::ENOSYS), by thread;
        unsafe fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int = (or libc::ENOSYS), by thread;
        safe fn pthread_testcancel() -> () = nothing;
        safe fn sched_getcpu() -> c_int = (or -1);
        unsafe fn _pthread_cleanup_push(buffer: *mut c_void, routine: extern "C" fn(*mut c_void), argument: *mut c_void) -> () = nothing;
        unsafe fn _pthread_cleanup_pop(buffer: *mut c_void, execute: c_int) -> () = nothing;

        // Streams and processes.
        unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void = (or core::ptr::null_mut()), by hooks_proc, also _IO_fdopen;
        unsafe fn freopen(path: *const c_char, mode: *const c_char, file: *mut c_void) -> *mut c_void = (or core::ptr::null_mut()), by hooks_proc, also freopen64;
        unsafe fn fclose(file: *mut c_void) -> c_int = (or EOF), by hooks_proc, also _IO_fclose;
        unsafe fn fflush(file: *mut c_void) -> c_int = (or EOF);
        unsafe fn fileno(file: *mut c_void) -> c_int = (or -1);
        unsafe fn ungetc(byte: c_int, file: *mut c_void) -> c_int = (or EOF);
        unsafe fn setvbuf(file: *mut c_void, buffer: *mut c_char, mode: c_int, size: usize) -> c_int = (or -1);
        unsafe fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int = (or libc::ENOSYS), by hooks_proc;
        unsafe fn wordexp(text: *const c_char, words: *mut c_void, flags: c_int) -> c_int = (or WRDE_NOSPACE), by hooks_proc;
        safe fn _exit(status: c_int) -> !, by hooks_proc, also _Exit;
        safe fn __chk_fail() -> () = nothing;

        // All of them.
        unsafe fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long, by hooks_syscall;
    }
    jumps {
        |_, _| hooks_proc::before_exec(false), or -1 => execve execv execvp execvpe execl execlp execle fexecve execveat;
        |_, _| hooks_proc::before_exec(true), or -1 => system;
        |_, _| hooks_proc::before_exec(true), or 0 => popen _IO_popen;
        |_, _| hooks_proc::before_exec(true), or libc::ENOSYS as isize => posix_spawn posix_spawnp pidfd_spawn pidfd_spawnp;
        |fd, _| hooks_proc::before_stdio(fd as c_int), or -1 => dprintf vdprintf __dprintf_chk __vdprintf_chk;
        |_, fd| hooks_proc::before_stdio(fd as c_int), or 0 => backtrace_symbols_fd __backtrace_symbols_fd;
        // Every libc has these; they do not come back.
        |buffer, _| thread::before_jump(buffer), or 0 => longjmp _longjmp siglongjmp;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that a libc or the program may not have: libaio's, and those of glibc 2.34 to 2.39.
    const PERHAPS: &[&str] = &[
        "io_submit",
        "close_range",
        "closefrom",
        "execveat",
        "epoll_pwait2",
        "pidfd_spawn",
        "pidfd_spawnp",
    ];

    #[test]
    fn every_name_is_one_of_libcs() {
        for (name, of) in EXPORTED {
            let spelled = std::ffi::CString::new(*name).expect("a name");
            // SAFETY: a C string.
            let found = unsafe { libc::dlsym(RTLD_NEXT, spelled.as_ptr()) };
            assert!(!found.is_null() || PERHAPS.contains(name), "{of}: {name}");
        }
        let mut names: Vec<_> = EXPORTED.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] < two[1]), "{names:?}");
    }

    #[test]
    fn without_libcs_function_a_call_gives_its_failure() {
        assert_eq!((missing::<{ -1 }>(), sys::errno()), (-1, libc::ENOSYS));
        let none = Real::new("fordway_is_no_function_of_libc\0");
        assert_eq!((none.find(), none.find()), (None, None));
        let known = Real::new("read\0");
        assert!(known.find().is_some() && known.find() == known.find());
    }

    #[test]
    fn a_call_by_its_number_is_that_of_the_same_name() {
        let _turn = crate::testing::tables();
        let mut ends = [0; 2];
        // SAFETY: room for two numbers; a text; room for three bytes.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let [from, to] = ends.map(|end| end as usize);
            let text = c"abc".as_ptr() as usize;
            let written = by_number(libc::SYS_write, [to, text, 3, 0, 0, 0]);
            let mut room = [0u8; 3];
            let read = by_number(
                libc::SYS_read,
                [from, room.as_mut_ptr() as usize, 3, 0, 0, 0],
            );
            assert_eq!((written, read, &room), (Some(3), Some(3), b"abc"));
            assert_eq!(by_number(libc::SYS_close, [from, 0, 0, 0, 0, 0]), Some(0));
            assert_eq!(by_number(libc::SYS_close, [to, 0, 0, 0, 0, 0]), Some(0));
            assert_eq!(by_number(libc::SYS_close, [to, 0, 0, 0, 0, 0]), Some(-1));
            assert_eq!(by_number(libc::SYS_getpid, [0; 6]), None);
        }
    }
}
