//! syscall(2): a call by its number goes the way of the function that has its name. What
//! libc's functions do besides (cancellation points, times that are copied) it does not have:
//! where the library has nothing to do with it, the bare system call is made.

use crate::sys::{self, give};
use crate::{config, hooks_fd, hooks_io, hooks_many, hooks_options, hooks_proc, hooks_unseen};
use crate::{deadline, faults, hooks_wait, signals};
use core::ffi::{c_int, c_long, c_void};

/// Bytes of the kernel's signal masks.
const MASK_BYTES: usize = 8;

/// # Safety
/// As syscall(2): arguments that the call does not take are never looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let mut a = a;
    if config::is_active() {
        // SAFETY: the program's own arguments, as the named call takes them.
        let done = unsafe {
            moves(number, a, b, c, d, e, f)
                .or_else(|| changes(number, a, b, c, d, e))
                .or_else(|| waits(number, &mut a, b, c, d, e, f))
        };
        if let Some(result) = done {
            return result;
        }
    }
    // SAFETY: the program's own arguments.
    give(sys::check(unsafe { sys::raw(number, a, b, c, d, e, f) })) as c_long
}

/// Calls that move bytes.
///
/// # Safety
/// As the call of this number.
unsafe fn moves(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> Option<c_long> {
    use {hooks_io as io, hooks_many as many};
    let fd = a as c_int;
    // SAFETY: by contract.
    let result = unsafe {
        match number {
            libc::SYS_read => io::read(fd, b as *mut c_void, c),
            libc::SYS_write => io::write(fd, b as *const c_void, c),
            libc::SYS_readv => io::readv(fd, b as *const _, c as c_int),
            libc::SYS_writev => io::writev(fd, b as *const _, c as c_int),
            libc::SYS_preadv2 => many::preadv2(fd, b as *const _, c as c_int, d as i64, f as c_int),
            libc::SYS_pwritev2 => {
                many::pwritev2(fd, b as *const _, c as c_int, d as i64, f as c_int)
            }
            libc::SYS_sendto => {
                let (flags, name) = (d as c_int, e as *const c_void);
                io::sendto(fd, b as *const c_void, c, flags, name, f as u32)
            }
            libc::SYS_recvfrom => {
                let (flags, name) = (d as c_int, e as *mut c_void);
                io::recvfrom(fd, b as *mut c_void, c, flags, name, f as *mut u32)
            }
            libc::SYS_sendmsg => io::sendmsg(fd, b as *const _, c as c_int),
            libc::SYS_recvmsg => io::recvmsg(fd, b as *mut _, c as c_int),
            libc::SYS_sendmmsg => many::sendmmsg(fd, b as *mut _, c as u32, d as c_int) as isize,
            libc::SYS_recvmmsg => {
                many::recvmmsg(fd, b as *mut _, c as u32, d as c_int, e as *mut _) as isize
            }
            libc::SYS_sendfile => io::sendfile(fd, b as c_int, c as *mut i64, d),
            libc::SYS_splice => {
                let (output, output_offset) = (c as c_int, d as *mut i64);
                io::splice(fd, b as *mut i64, output, output_offset, e, f as u32)
            }
            libc::SYS_io_submit => {
                hooks_unseen::before_submit(b as c_long, c as *const _);
                return None;
            }
            // Completion queues would bypass the channel; node and others fall back.
            libc::SYS_io_uring_setup => give(Err(libc::ENOSYS)),
            _ => return None,
        }
    };
    Some(result as c_long)
}

/// Calls that make, copy, close or configure descriptors, and what a process does.
///
/// # Safety
/// As the call of this number.
unsafe fn changes(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
) -> Option<c_long> {
    use {hooks_fd as fds, hooks_options as options};
    let fd = a as c_int;
    // SAFETY: by contract.
    let result = unsafe {
        match number {
            libc::SYS_socket => fds::socket(fd, b as c_int, c as c_int),
            libc::SYS_listen => fds::listen(fd, b as c_int),
            libc::SYS_connect => fds::connect(fd, b as *const c_void, c as u32),
            libc::SYS_accept => fds::accept(fd, b as *mut c_void, c as *mut u32),
            libc::SYS_accept4 => fds::accept4(fd, b as *mut c_void, c as *mut u32, d as c_int),
            libc::SYS_shutdown => fds::shutdown(fd, b as c_int),
            libc::SYS_close => fds::close(fd),
            libc::SYS_close_range => fds::close_range(a as u32, b as u32, c as c_int),
            libc::SYS_dup => fds::dup(fd),
            libc::SYS_dup2 => fds::dup2(fd, b as c_int),
            libc::SYS_dup3 => fds::dup3(fd, b as c_int, c as c_int),
            libc::SYS_fcntl => fds::fcntl(fd, b as c_int, c),
            libc::SYS_ioctl => options::ioctl(fd, b, c),
            libc::SYS_setsockopt => {
                options::setsockopt(fd, b as c_int, c as c_int, d as *const c_void, e as u32)
            }
            libc::SYS_getsockopt => {
                let (value, length) = (d as *mut c_void, e as *mut u32);
                options::getsockopt(fd, b as c_int, c as c_int, value, length)
            }
            libc::SYS_rt_sigaction => {
                let done = signals::raw_sigaction(fd, b as *const _, c as *mut _, d);
                give(done) as c_int
            }
            libc::SYS_exit_group => hooks_proc::_exit(fd),
            libc::SYS_execve | libc::SYS_execveat => {
                hooks_proc::before_exec(false);
                return None;
            }
            _ => return None,
        }
    };
    Some(result.into())
}

/// Calls that wait. The first argument of select may be less for the kernel.
///
/// # Safety
/// As the call of this number.
unsafe fn waits(
    number: c_long,
    a: &mut usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> Option<c_long> {
    use hooks_wait as wait;
    let fd = *a as c_int;
    let sets = [b, c, d].map(|set| set as *mut c_void);
    let no_mask = core::ptr::null();
    // SAFETY: by contract.
    let result = unsafe {
        match number {
            libc::SYS_poll => {
                let timeout = || Ok(wait::timeout_of_ms(c as c_int));
                // The kernel's count has 32 bits.
                wait::polled(*a as *mut _, b as u32 as usize, timeout, no_mask)?
            }
            libc::SYS_ppoll => {
                let begin_ns = sys::now_ns();
                let time = c as *mut libc::timespec;
                let mask = mask_of(d, e)?;
                let timeout = || wait::timeout_of_spec(time);
                let result = wait::polled(*a as *mut _, b as u32 as usize, timeout, mask)?;
                give_left(time, begin_ns);
                result
            }
            libc::SYS_select => {
                let time = e as *mut libc::timeval;
                let (timeout, told) = (
                    || wait::timeout_of_val(time),
                    |left_ns| wait::give_left_val(time, left_ns),
                );
                let mut count = fd;
                let selected = wait::selected(&mut count, sets, timeout, no_mask, told);
                *a = count as usize;
                selected?
            }
            libc::SYS_pselect6 => {
                let begin_ns = sys::now_ns();
                let (time, both) = (e as *mut libc::timespec, f as *const [usize; 2]);
                let mask = if both.is_null() {
                    no_mask
                } else if faults::can_read(both) {
                    let [mask, bytes] = both.read_unaligned();
                    mask_of(mask, bytes)?
                } else {
                    return None;
                };
                let mut count = fd;
                let timeout = || wait::timeout_of_spec(time);
                let selected = wait::selected(&mut count, sets, timeout, mask, |_| ());
                *a = count as usize;
                let result = selected?;
                give_left(time, begin_ns);
                result
            }
            libc::SYS_epoll_create => return Some(wait::epoll_create(fd).into()),
            libc::SYS_epoll_create1 => return Some(wait::epoll_create1(fd).into()),
            libc::SYS_epoll_ctl => {
                let done = wait::epoll_ctl(fd, b as c_int, c as c_int, d as *mut _);
                return Some(done.into());
            }
            libc::SYS_epoll_wait => {
                let timeout = || Ok(wait::timeout_of_ms(d as c_int));
                wait::waited(fd, b as *mut _, c as c_int, timeout, no_mask)?
            }
            libc::SYS_epoll_pwait => {
                let timeout = || Ok(wait::timeout_of_ms(d as c_int));
                wait::waited(fd, b as *mut _, c as c_int, timeout, mask_of(e, f)?)?
            }
            libc::SYS_epoll_pwait2 => {
                let timeout = || wait::timeout_of_spec(d as *const _);
                wait::waited(fd, b as *mut _, c as c_int, timeout, mask_of(e, f)?)?
            }
            _ => return None,
        }
    };
    Some(give(result) as c_long)
}

/// A mask with its size; `None`: the kernel is to refuse the size.
fn mask_of(mask: usize, bytes: usize) -> Option<*const c_void> {
    (mask == 0 || bytes == MASK_BYTES).then_some(mask as *const c_void)
}

/// These calls tell how much of the time was left.
fn give_left(time: *mut libc::timespec, begin_ns: u64) {
    if let Ok(Some(time_ns)) = hooks_wait::timeout_of_spec(time) {
        let left_ns = time_ns.saturating_sub(sys::now_ns() - begin_ns);
        faults::give(time, deadline::timespec(left_ns));
    }
}
