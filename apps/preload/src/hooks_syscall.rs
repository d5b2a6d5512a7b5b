//! syscall(2): a call by its number goes the way of the function that has its name. What
//! libc's functions do besides (cancellation points, times that are copied) it does not have:
//! where the library has nothing to do with it, the bare system call is made.

use crate::sys::{self, give, sys};
use crate::{config, deadline, faults, hooks_fd, hooks_many, hooks_proc, hooks_unseen, hooks_wait};
use crate::{datagram, libcs, names, signals, stack, state};
use core::ffi::{c_int, c_long, c_void};

/// Bytes of the kernel's signal masks.
const MASK_BYTES: usize = 8;

/// # Safety
/// As syscall(2): arguments that the call does not take are never looked at.
pub unsafe fn syscall(
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
            messages(number, [a, b, c, d, e, f])
                .or_else(|| names::by_number(number, [a, b, c, d, e, f]))
                .or_else(|| others(number, a, b, c, d, f))
                .or_else(|| waits(number, &mut a, b, c, d, e, f))
        };
        if let Some(result) = done {
            return result;
        }
    }
    // SAFETY: the program's own arguments.
    give(sys::check(unsafe { sys::raw(number, a, b, c, d, e, f) })) as c_long
}

/// Messages by a descriptor that is no connection, which only their passing of descriptors makes ours. The call itself is
/// the bare one: libc's functions may look at a message first (musl's do), and end the program where the kernel says EFAULT.
///
/// # Safety
/// As the call of this number.
unsafe fn messages(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    let [fd, first, count, d, e, f] = arguments;
    let (sends, many) = match number {
        libc::SYS_sendmsg => (true, false),
        libc::SYS_sendmmsg => (true, true),
        libc::SYS_recvmsg => (false, false),
        libc::SYS_recvmmsg => (false, true),
        _ => return None,
    };
    if state::conn(fd as c_int).is_some() || stack::of(fd as c_int).is_some() {
        return None;
    }
    let header = |index| match many {
        // SAFETY: only named.
        true => unsafe {
            &raw const (*(first as *const libc::mmsghdr).wrapping_add(index)).msg_hdr
        },
        false => first as *const libc::msghdr,
    };
    let count_most = count.min(hooks_many::MESSAGES_MAX as usize);
    let count_looked_at = if many { count_most } else { 1 };
    let is_whole = |index| can_be_copied(header(index));
    if datagram::of(fd as c_int).is_some() && (0..count_looked_at).all(is_whole) {
        return None;
    }
    if sends {
        for index in 0..count_looked_at {
            // SAFETY: the program's messages, of which only what can be read is looked at.
            unsafe { hooks_fd::before_passing(header(index)) };
        }
    }
    // SAFETY: by contract.
    let result = sys::check(unsafe { sys::raw(number, fd, first, count, d, e, f) });
    if let (false, Ok(received)) = (sends, result) {
        for index in 0..if many { received } else { 1 } {
            // SAFETY: the kernel has just filled in the program's own messages.
            unsafe { hooks_fd::after_passing(header(index)) };
        }
    }
    Some(give(result) as c_long)
}

/// Whether musl's functions, which copy a message and its control data, may have it.
fn can_be_copied(message: *const libc::msghdr) -> bool {
    if !faults::can_read(message) {
        return false;
    }
    // SAFETY: the program's own message, found readable.
    let message = unsafe { message.read_unaligned() };
    let control = message.msg_control.cast::<u8>();
    control.is_null() || faults::can_read_all(control, libcs::count(message.msg_controllen))
}

/// Calls whose arguments are others than those of the functions.
///
/// # Safety
/// As the call of this number.
unsafe fn others(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    f: usize,
) -> Option<c_long> {
    let fd = a as c_int;
    let (count, offset, flags) = (c as c_int, d as i64, f as c_int);
    let made = || give(sys!(SYS_epoll_create, fd));
    // SAFETY: by contract.
    let result = unsafe {
        match number {
            libc::SYS_epoll_create => hooks_wait::created(made() as c_int) as isize,
            libc::SYS_preadv2 => hooks_many::preadv2(fd, b as *const _, count, offset, flags),
            libc::SYS_pwritev2 => hooks_many::pwritev2(fd, b as *const _, count, offset, flags),
            libc::SYS_io_submit => {
                hooks_unseen::before_submit(b as c_long, c as *const _);
                return None;
            }
            // Completion queues would bypass the channel; node and others fall back.
            libc::SYS_io_uring_setup => give(Err(libc::ENOSYS)),
            libc::SYS_rt_sigaction => {
                give(signals::raw_sigaction(fd, b as *const _, c as *mut _, d))
            }
            libc::SYS_exit_group => hooks_proc::_exit(fd),
            libc::SYS_execve | libc::SYS_execveat => {
                hooks_proc::before_exec(false);
                return None;
            }
            _ => return None,
        }
    };
    Some(result as c_long)
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
