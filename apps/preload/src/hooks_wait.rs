//! The calls that wait: poll, select, epoll and their kin, as the program links to
//! them. Calls in which no stream socket takes part go to libc as they are.

use crate::hooks_io::check_size;
use crate::state::{self, kind};
use crate::sys::{self, give};
use crate::{config, epoll, poll, real};
use core::ffi::{c_int, c_void};
use fordway_abi::reason::Reason;

/// Milliseconds as poll and epoll_wait take them.
fn timeout_of_ms(timeout_ms: c_int) -> Option<u64> {
    (timeout_ms >= 0).then(|| timeout_ms as u64 * 1_000_000)
}

fn timeout_of_spec(timeout: *const libc::timespec) -> sys::Result<Option<u64>> {
    if timeout.is_null() {
        return Ok(None);
    }
    // SAFETY: the program's own argument.
    let time = unsafe { timeout.read() };
    if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) {
        return Err(libc::EINVAL);
    }
    Ok(Some(
        (time.tv_sec as u64)
            .saturating_mul(1_000_000_000)
            .saturating_add(time.tv_nsec as u64),
    ))
}

/// The program's array of descriptors, if the shim has anything to do with it.
unsafe fn concerned<'a>(fds: *mut libc::pollfd, count: usize) -> Option<&'a mut [libc::pollfd]> {
    if !config::is_active() || fds.is_null() {
        return None;
    }
    // SAFETY: the program's array of `count` entries.
    let entries = unsafe { core::slice::from_raw_parts_mut(fds, count) };
    poll::concerns(entries.iter().map(|entry| entry.fd)).then_some(entries)
}

/// # Safety
/// As poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut libc::pollfd, count: usize, timeout_ms: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    match unsafe { concerned(fds, count) } {
        Some(entries) => give(poll::poll(
            entries,
            timeout_of_ms(timeout_ms),
            core::ptr::null(),
        )) as c_int,
        // SAFETY: as above.
        None => unsafe { real::poll(fds, count, timeout_ms) },
    }
}

/// # Safety
/// As poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll(fds: *mut libc::pollfd, count: usize, timeout_ms: c_int) -> c_int {
    // SAFETY: by the caller's contract.
    unsafe { self::poll(fds, count, timeout_ms) }
}

/// # Safety
/// As poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut libc::pollfd,
    count: usize,
    timeout_ms: c_int,
    size: usize,
) -> c_int {
    check_size(count * size_of::<libc::pollfd>(), size);
    // SAFETY: by the caller's contract.
    unsafe { self::poll(fds, count, timeout_ms) }
}

/// # Safety
/// As ppoll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut libc::pollfd,
    count: usize,
    timeout: *const libc::timespec,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the program's own arguments.
    match unsafe { concerned(fds, count) } {
        Some(entries) => {
            give(timeout_of_spec(timeout).and_then(|time| poll::poll(entries, time, mask))) as c_int
        }
        // SAFETY: as above.
        None => unsafe { real::ppoll(fds, count, timeout, mask) },
    }
}

/// # Safety
/// As ppoll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut libc::pollfd,
    count: usize,
    timeout: *const libc::timespec,
    mask: *const c_void,
    size: usize,
) -> c_int {
    check_size(count * size_of::<libc::pollfd>(), size);
    // SAFETY: by the caller's contract.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// # Safety
/// As select(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
    timeout: *mut libc::timeval,
) -> c_int {
    if config::is_active() && count >= 0 {
        // SAFETY: the program's own argument.
        let time = unsafe { timeout.as_ref() }.copied();
        if time.is_some_and(|time| time.tv_sec < 0 || time.tv_usec < 0) {
            return give(Err(libc::EINVAL)) as c_int;
        }
        let time_ns =
            time.map(|time| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000);
        let start = sys::now_ns();
        let sets = [read, write, except].map(|set| poll::FdSet(set.cast()));
        if let Some(result) = poll::select(count as usize, sets, time_ns, core::ptr::null()) {
            if let Some(time_ns) = time_ns {
                // Linux tells how much time was left (man 2 select).
                let left_us = time_ns.saturating_sub(sys::now_ns() - start) / 1000;
                let left = libc::timeval {
                    tv_sec: (left_us / 1_000_000) as i64,
                    tv_usec: (left_us % 1_000_000) as i64,
                };
                // SAFETY: the program's own argument, not null.
                unsafe { timeout.write(left) };
            }
            return give(result) as c_int;
        }
    }
    // SAFETY: the program's own arguments.
    unsafe { real::select(count, read, write, except, timeout) }
}

/// # Safety
/// As pselect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
    timeout: *const libc::timespec,
    mask: *const c_void,
) -> c_int {
    if config::is_active() && count >= 0 {
        let time_ns = match timeout_of_spec(timeout) {
            Ok(time_ns) => time_ns,
            Err(error) => return give(Err(error)) as c_int,
        };
        let sets = [read, write, except].map(|set| poll::FdSet(set.cast()));
        if let Some(result) = poll::select(count as usize, sets, time_ns, mask) {
            return give(result) as c_int;
        }
    }
    // SAFETY: the program's own arguments.
    unsafe { real::pselect(count, read, write, except, timeout, mask) }
}

/// # Safety
/// As epoll_create1(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the program's own argument.
    let fd = unsafe { real::epoll_create1(flags) };
    if fd >= 0 && config::is_active() {
        epoll::created(fd);
    }
    fd
}

/// # Safety
/// As epoll_create(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        return give(Err(libc::EINVAL)) as c_int;
    }
    // SAFETY: no flags.
    unsafe { epoll_create1(0) }
}

/// # Safety
/// As epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    if config::is_active()
        && let Some(conn) = state::conn(fd)
    {
        if state::look(epoll) == kind::UNKNOWN {
            epoll::discover(epoll, conn);
        }
        if let Some(result) = epoll::control(epoll, operation, conn, fd, event) {
            return give(result) as c_int;
        }
    }
    if config::is_active() {
        epoll::settle_fd(epoll);
        if operation == libc::EPOLL_CTL_ADD {
            // Before the kernel counts how deep it lies.
            epoll::let_go_of(fd, Reason::Unsupported);
        }
    }
    // SAFETY: the program's own arguments.
    unsafe { real::epoll_ctl(epoll, operation, fd, event) }
}

/// # Safety
/// As epoll_wait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    if let Some(result) = epoll::wait_in(
        epoll,
        events,
        count,
        timeout_of_ms(timeout_ms),
        core::ptr::null(),
    ) {
        return give(result) as c_int;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::epoll_wait(epoll, events, count, timeout_ms) }
}

/// # Safety
/// As epoll_pwait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout_ms: c_int,
    mask: *const c_void,
) -> c_int {
    if let Some(result) = epoll::wait_in(epoll, events, count, timeout_of_ms(timeout_ms), mask) {
        return give(result) as c_int;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::epoll_pwait(epoll, events, count, timeout_ms, mask) }
}

/// # Safety
/// As epoll_pwait2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: *const libc::timespec,
    mask: *const c_void,
) -> c_int {
    let result =
        timeout_of_spec(timeout).map(|time_ns| epoll::wait_in(epoll, events, count, time_ns, mask));
    match result {
        Ok(Some(result)) => give(result) as c_int,
        Err(error) => give(Err(error)) as c_int,
        // SAFETY: the program's own arguments.
        Ok(None) => unsafe { real::epoll_pwait2(epoll, events, count, timeout, mask) },
    }
}
