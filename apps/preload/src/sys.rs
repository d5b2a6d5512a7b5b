//! System calls, made directly: the shim keeps no state in libc and must work in
//! signal handlers, in vfork children and before libc's constructors have run.
//! Results are Linux's own: a negative value is `-errno` (man 2 syscall).

use core::arch::asm;
use core::ffi::c_int;

/// `Err` carries an errno.
pub type Result<T> = core::result::Result<T, c_int>;

/// One system call with up to six arguments.
///
/// # Safety
/// As the system call itself: pointers must be valid for what it does with them.
#[inline(always)]
pub unsafe fn raw(
    number: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let result: isize;
    // SAFETY: the x86-64 system call convention (man 2 syscall): rcx and r11 are clobbered.
    unsafe {
        asm!("syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Splits a raw result into value and errno.
#[inline(always)]
pub fn check(result: isize) -> Result<usize> {
    if (-4095..0).contains(&result) {
        Err(-result as c_int)
    } else {
        Ok(result as usize)
    }
}

/// `sys!(SYS_close, fd)`: a checked system call.
macro_rules! sys {
    ($number:ident $(, $argument:expr)*) => {
        $crate::sys::sys_args!(libc::$number; $($argument as usize),*)
    };
}
macro_rules! sys_args {
    ($n:expr;) => { $crate::sys::sys_args!($n; 0, 0, 0, 0, 0, 0) };
    ($n:expr; $a:expr) => { $crate::sys::sys_args!($n; $a, 0, 0, 0, 0, 0) };
    ($n:expr; $a:expr, $b:expr) => { $crate::sys::sys_args!($n; $a, $b, 0, 0, 0, 0) };
    ($n:expr; $a:expr, $b:expr, $c:expr) => { $crate::sys::sys_args!($n; $a, $b, $c, 0, 0, 0) };
    ($n:expr; $a:expr, $b:expr, $c:expr, $d:expr) => { $crate::sys::sys_args!($n; $a, $b, $c, $d, 0, 0) };
    ($n:expr; $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => { $crate::sys::sys_args!($n; $a, $b, $c, $d, $e, 0) };
    ($n:expr; $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        // SAFETY: every caller passes pointers that are valid for this call, or
        // pointers of the program, which the kernel checks (EFAULT).
        $crate::sys::check(unsafe { $crate::sys::raw($n, $a, $b, $c, $d, $e, $f) })
    };
}
pub(crate) use {sys, sys_args};

/// Address of a symbol that may not exist (0 then). A weak reference, read from the
/// global offset table: the compiler takes a function's address for never null.
macro_rules! weak_address {
    ($name:literal) => {{
        let address: usize;
        // SAFETY: a load from this library's own table.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) address, options(nostack, readonly, pure, preserves_flags));
        }
        address
    }};
}
pub(crate) use weak_address;

fn errno_location() -> Option<*mut c_int> {
    let address = weak_address!("__errno_location");
    if address == 0 {
        return None;
    }
    // SAFETY: libc's function of this name has this signature (errno.h).
    unsafe {
        let locate: extern "C" fn() -> *mut c_int = core::mem::transmute(address);
        Some(locate())
    }
}

/// The program's errno of this thread.
pub fn errno() -> c_int {
    // SAFETY: libc's word of this thread.
    errno_location().map_or(0, |location| unsafe { *location })
}

/// Sets the program's errno.
pub fn set_errno(value: c_int) {
    if let Some(location) = errno_location() {
        // SAFETY: libc's word of this thread.
        unsafe { *location = value };
    }
}

/// A socket's option as the kernel has it, and its length in bytes. `value`: what a shorter one leaves
/// as it is.
pub fn option<T: Copy>(fd: i32, level: i32, name: i32, mut value: T) -> Result<(T, usize)> {
    let mut length = size_of::<T>() as u32;
    let (at, length_at) = (&raw mut value, &raw mut length);
    sys!(SYS_getsockopt, fd, level, name, at, length_at)?;
    Ok((value, length as usize))
}

/// The same of one that is a number; 0 if it cannot be told.
pub fn int_option(fd: i32, level: i32, name: i32) -> i32 {
    option(fd, level, name, 0).map_or(0, |(value, _)| value)
}

/// Sets a socket's option. One that the kernel refuses stays as it is.
pub fn set_option<T: Copy>(fd: i32, level: i32, name: i32, value: T) {
    let value = &raw const value;
    let _ = sys!(SYS_setsockopt, fd, level, name, value, size_of::<T>());
}

/// Turns a result into what libc's functions return.
#[inline]
pub fn give(result: Result<usize>) -> isize {
    result.map_or_else(give_error, |value| value as isize)
}

#[cold]
fn give_error(code: c_int) -> isize {
    set_errno(code);
    -1
}

/// The thread pointer: differs between the live threads of a process.
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: x86-64 ABI: the word at fs:0 is the thread pointer itself.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, pure)) };
    pointer
}

/// CPU on which the caller runs, without a system call where glibc registered
/// restartable sequences (man 2 rseq: `cpu_id_start` is always a valid CPU once registered), or where
/// libc asks the kernel's code in the process (man 7 vdso).
#[inline(always)]
pub fn current_cpu() -> u32 {
    let offset = weak_address!("__rseq_offset") as *const isize;
    if offset.is_null() {
        return crate::real::sched_getcpu() as u32;
    }
    let cpu: u32;
    // SAFETY: glibc keeps `struct rseq` at this offset from the thread pointer; `cpu_id` is its second word.
    unsafe {
        asm!("mov {0:e}, dword ptr fs:[{1} + 4]", out(reg) cpu, in(reg) *offset, options(nostack, readonly));
    }
    // Negative: not registered, or refused (linux/rseq.h, enum rseq_cpu_id_state). Two threads of
    // which that is so share no CPU for it.
    if cpu > i32::MAX as u32 { u32::MAX } else { cpu }
}

/// Monotonic time in nanoseconds.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let _ = sys!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The time stamp counter; its rate is [`crate::spin::ticks_per_us`].
pub use fordway_ring::ticks;

/// The same, after all that comes before it, and before all that comes after it (Intel SDM
/// vol. 2, RDTSC).
pub fn ticks_in_order() -> u64 {
    // SAFETY: every x86-64 has both.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        let ticks = core::arch::x86_64::_rdtsc();
        core::arch::x86_64::_mm_lfence();
        ticks
    }
}

/// Maps anonymous memory of which only touched pages cost anything.
pub fn map_anonymous(bytes: usize, shared: bool) -> Result<*mut u8> {
    let kind = if shared {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    map(-1, bytes, protection, flags, core::ptr::null_mut())
}

/// mmap for memory of the library's own: over the range at `place`, or anywhere if that is null.
///
/// It is sparse, and reading a hole of shared memory fills it. So it is in no core dump, and it
/// is never locked: after mlockall(2) with MCL_FUTURE the kernel would fill a mapping at once. It
/// fills none that cannot be read yet, and after munlock it does not either.
pub fn map(
    fd: c_int,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    place: *mut u8,
) -> Result<*mut u8> {
    let none = libc::PROT_NONE;
    let base = sys!(SYS_mmap, 0, bytes, none, flags, fd as isize, 0)?;
    let settled = (|| {
        sys!(SYS_munlock, base, bytes)?;
        sys!(SYS_madvise, base, bytes, libc::MADV_DONTDUMP)?;
        sys!(SYS_mprotect, base, bytes, protection)?;
        if place.is_null() {
            return Ok(base);
        }
        // In one step: a thread of the program may be about to look there.
        let moves = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        sys!(SYS_mremap, base, bytes, bytes, moves, place)
    })();
    if settled.is_err() {
        let _ = sys!(SYS_munmap, base, bytes);
    }
    settled.map(|base| base as *mut u8)
}

/// Maps pages of a device over a range that is ours, in one step and with the rights that they keep: where
/// the kernel has put another guest's pages, they can be neither moved nor given others. Devices keep theirs
/// out of core dumps, and have none of them locked.
pub fn map_over(
    (fd, offset): (c_int, usize),
    bytes: usize,
    protection: c_int,
    place: *mut u8,
) -> Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    sys!(SYS_mmap, place, bytes, protection, flags, fd, offset).map(drop)
}

/// Maps somebody else's memfd after looking at its size and seals, and closes it. The broker has
/// looked too; the library trusts nobody it need not.
pub fn map_sealed(fd: c_int, bytes: usize, protection: c_int, place: *mut u8) -> Result<*mut u8> {
    let mapped = (|| {
        let seals = sys!(SYS_fcntl, fd, libc::F_GET_SEALS)? as i32;
        let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        let end = sys!(SYS_lseek, fd, 0, libc::SEEK_END)?;
        if seals & needed != needed || end != bytes {
            return Err(libc::EPROTO);
        }
        map(fd, bytes, protection, libc::MAP_SHARED, place)
    })();
    let _ = sys!(SYS_close, fd);
    mapped
}

/// Of a limited address space, one byte in so many may be the library's.
const SPACE_SHARE: u64 = 8;

/// Whether links may have so much address space: the program's own mappings are not to fail for
/// it (man 2 setrlimit, RLIMIT_AS).
pub fn may_have_space(bytes: u64) -> bool {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let asked = sys!(SYS_prlimit64, 0, libc::RLIMIT_AS, 0, &raw mut limit);
    asked.is_ok()
        && (limit.rlim_cur == libc::RLIM64_INFINITY || bytes <= limit.rlim_cur / SPACE_SHARE)
}

/// The library cannot go on: ends the process as abort(3) does, but for the program's handler.
/// Nothing is written: what is open under any number is the program's.
pub fn abort() -> ! {
    // The kernel's own layout: SIG_DFL, no flags, no restorer, an empty mask.
    let default = [0u64; 4];
    let set = 1u64 << (libc::SIGABRT - 1);
    let (signal, unblock) = (libc::SIGABRT, libc::SIG_UNBLOCK);
    let _ = sys!(SYS_rt_sigaction, signal, default.as_ptr(), 0, 8);
    let _ = sys!(SYS_rt_sigprocmask, unblock, &raw const set, 0, 8);
    let (pid, thread) = (sys!(SYS_getpid), sys!(SYS_gettid));
    let (pid, thread) = (pid.unwrap_or(0), thread.unwrap_or(0));
    let _ = sys!(SYS_tgkill, pid, thread, signal);
    loop {
        let _ = sys!(SYS_exit_group, 128 + signal);
    }
}

/// Whether a file may be that large: ftruncate of a larger one, a memfd too, would end
/// the program with SIGXFSZ (man 2 setrlimit, RLIMIT_FSIZE).
pub fn may_have_file(bytes: usize) -> bool {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let asked = sys!(SYS_prlimit64, 0, libc::RLIMIT_FSIZE, 0, &raw mut limit);
    asked.is_ok() && limit.rlim_cur >= bytes as u64
}
