//! The calls that wait: poll, select, epoll and their kin, as the program links to
//! them. Calls in which no stream socket takes part go to libc as they are.

use crate::select::Sets;
use crate::state::{self, kind};
use crate::sys::{self, give, sys};
use crate::{broker, config, datagram, epoll, faults, late, libcs, poll, real, upgrade};
use core::ffi::{c_int, c_void};
use fordway_abi::reason::Reason;

const MS_NS: u64 = 1_000_000;

/// Milliseconds as poll and epoll_wait take them.
pub fn timeout_of_ms(timeout_ms: c_int) -> Option<u64> {
    (timeout_ms >= 0).then(|| timeout_ms as u64 * 1_000_000)
}

/// A time as the program gives it, judged as the kernel does it.
pub fn timeout_of_spec(timeout: *const libc::timespec) -> sys::Result<Option<u64>> {
    if timeout.is_null() {
        return Ok(None);
    }
    faults::check(faults::can_read(timeout))?;
    // SAFETY: the program's own argument, found readable.
    let time = unsafe { timeout.read_unaligned() };
    if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) {
        return Err(libc::EINVAL);
    }
    Ok(Some(
        (time.tv_sec as u64)
            .saturating_mul(1_000_000_000)
            .saturating_add(time.tv_nsec as u64),
    ))
}

/// The same of select, which takes any number of microseconds.
pub fn timeout_of_val(timeout: *const libc::timeval) -> sys::Result<Option<u64>> {
    if timeout.is_null() {
        return Ok(None);
    }
    faults::check(faults::can_read(timeout))?;
    // SAFETY: the program's own argument, found readable.
    let time = unsafe { timeout.read_unaligned() };
    if time.tv_sec < 0 || time.tv_usec < 0 {
        return Err(libc::EINVAL);
    }
    Ok(Some(
        (time.tv_sec as u64)
            .saturating_mul(1_000_000_000)
            .saturating_add((time.tv_usec as u64).saturating_mul(1000)),
    ))
}

/// The kernel would look at the program's mask before it waits.
fn check_mask(mask: *const c_void) -> sys::Result<()> {
    faults::check(mask.is_null() || faults::can_read(mask.cast::<u64>()))
}

/// Whether the library may have a part in a wait: until then it looks at no argument.
fn takes_part() -> bool {
    let takes_part =
        config::is_active() && (state::conn_high() != 0 || epoll::is_used() || datagram::is_used());
    if takes_part {
        late::give();
        // A forked child may wait for what its parent listens to.
        broker::attach();
    }
    takes_part
}

/// poll and ppoll, if the library has anything to do with them. What is wrong with an array
/// that cannot be read, or is too long, the kernel says.
///
/// # Safety
/// As ppoll(2).
pub unsafe fn polled(
    fds: *mut libc::pollfd,
    count: usize,
    timeout: impl FnOnce() -> sys::Result<Option<u64>>,
    mask: *const c_void,
) -> Option<sys::Result<usize>> {
    if !takes_part() || poll::is_too_many(count) || !faults::can_read_all(fds, count) {
        return None;
    }
    // SAFETY: the program's array of `count` entries, found readable.
    let fd_at = |index| unsafe { (&raw const (*fds.add(index)).fd).read_unaligned() };
    if !poll::concerns((0..count).map(fd_at)) {
        return None;
    }
    let time_ns = timeout().and_then(|time_ns| check_mask(mask).map(|()| time_ns));
    Some(time_ns.and_then(|time_ns| {
        if !fds.is_aligned() || !faults::can_write_all(fds, count) {
            // SAFETY: as above.
            return unsafe { poll::poll_in_copy(fds, count, time_ns, mask) };
        }
        let entries = match count {
            // Where none are may be nowhere: a program that sleeps by poll(2) gives no array.
            0 => &mut [],
            // SAFETY: the program's array of `count` entries, found readable and writable.
            _ => unsafe { core::slice::from_raw_parts_mut(fds, count) },
        };
        poll::poll(entries, time_ns, mask)
    }))
}

/// select and pselect, if the library has anything to do with them; `told` is given the time
/// that was left. Else the kernel's call is to look at `count` descriptors.
pub fn selected(
    count: &mut c_int,
    sets: [*mut c_void; 3],
    timeout: impl FnOnce() -> sys::Result<Option<u64>>,
    mask: *const c_void,
    told: impl FnOnce(u64),
) -> Option<sys::Result<usize>> {
    if !takes_part() || *count < 0 {
        return None;
    }
    let start_ns = sys::now_ns();
    let sets = Sets::of(*count, sets);
    *count = sets.count();
    let time_ns = match timeout().and_then(|time_ns| check_mask(mask).map(|()| time_ns)) {
        Ok(time_ns) => time_ns,
        Err(error) => return Some(Err(error)),
    };
    let result = sets.select(time_ns, mask)?;
    if let Some(time_ns) = time_ns {
        told(time_ns.saturating_sub(sys::now_ns() - start_ns));
    }
    Some(result)
}

/// Linux tells how much time was left (man 2 select); where it cannot, nothing comes of it
/// (linux: poll_select_finish).
pub fn give_left_val(timeout: *mut libc::timeval, left_ns: u64) {
    let left = libc::timeval {
        tv_sec: (left_ns / 1_000_000_000) as i64,
        tv_usec: (left_ns / 1000 % 1_000_000) as i64,
    };
    faults::give(timeout, left);
}

/// # Safety
/// As poll(2).
pub unsafe fn poll(fds: *mut libc::pollfd, count: usize, timeout_ms: c_int) -> c_int {
    let timeout = || Ok(timeout_of_ms(timeout_ms));
    // SAFETY: the program's own arguments.
    match unsafe { polled(fds, count, timeout, core::ptr::null()) } {
        Some(result) => give(result) as c_int,
        // SAFETY: as above.
        None => unsafe { real::poll(fds, count, timeout_ms) },
    }
}

/// # Safety
/// As ppoll(2).
pub unsafe fn ppoll(
    fds: *mut libc::pollfd,
    count: usize,
    timeout: *const libc::timespec,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the program's own arguments.
    match unsafe { polled(fds, count, || timeout_of_spec(timeout), mask) } {
        Some(result) => give(result) as c_int,
        // SAFETY: as above.
        None => unsafe { real::ppoll(fds, count, timeout, mask) },
    }
}

/// # Safety
/// As select(2).
pub unsafe fn select(
    count: c_int,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
    timeout: *mut libc::timeval,
) -> c_int {
    let mut count = count;
    let sets = [read, write, except];
    let timed = || timeout_of_val(timeout);
    let told = |left_ns| {
        // musl hands the kernel a copy of the time.
        if !libcs::is_musl() {
            give_left_val(timeout, left_ns);
        }
    };
    if let Some(result) = selected(&mut count, sets, timed, core::ptr::null(), told) {
        return give(result) as c_int;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::select(count, read, write, except, timeout) }
}

/// # Safety
/// As pselect(2).
pub unsafe fn pselect(
    count: c_int,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
    timeout: *const libc::timespec,
    mask: *const c_void,
) -> c_int {
    let mut count = count;
    let sets = [read, write, except];
    let timed = || timeout_of_spec(timeout);
    if let Some(result) = selected(&mut count, sets, timed, mask, |_| ()) {
        return give(result) as c_int;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::pselect(count, read, write, except, timeout, mask) }
}

/// As epoll_create1(2).
pub fn epoll_create1(flags: c_int) -> c_int {
    created(real::epoll_create1(flags))
}

/// As epoll_create(2); whether a size has to be positive, libcs differ in.
pub fn epoll_create(size: c_int) -> c_int {
    created(real::epoll_create(size))
}

/// A new instance, if there is one.
pub fn created(fd: c_int) -> c_int {
    if fd >= 0 && config::is_active() {
        epoll::created(fd);
    }
    fd
}

/// The program's event, if it can be read, or is not looked at.
///
/// # Safety
/// As epoll_ctl(2).
unsafe fn judged_event(
    operation: c_int,
    event: *const libc::epoll_event,
) -> Option<libc::epoll_event> {
    if operation == libc::EPOLL_CTL_DEL {
        return Some(libc::epoll_event { events: 0, u64: 0 });
    }
    // SAFETY: found readable.
    faults::can_read(event).then(|| unsafe { event.read_unaligned() })
}

/// epoll_wait and its kin, if the instance is one that the library has a part in. What is
/// wrong with arguments that say so by themselves, the kernel says.
#[inline(always)]
pub fn waited(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: impl FnOnce() -> sys::Result<Option<u64>>,
    mask: *const c_void,
) -> Option<sys::Result<usize>> {
    let (_, instance) = epoll::instance(epoll)?;
    if !(1..=epoll::ROOM_MAX).contains(&count) {
        return None;
    }
    let room = count as usize;
    let bytes = room * size_of::<libc::epoll_event>();
    if !faults::is_user_range(events.cast(), bytes) {
        return None;
    }
    let time_ns = match timeout().and_then(|time_ns| check_mask(mask).map(|()| time_ns)) {
        Ok(time_ns) => time_ns,
        Err(error) => return Some(Err(error)),
    };
    faults::arm();
    if faults::may_be_filled(events) {
        return Some(epoll::wait_in(instance, events, room, time_ns, mask));
    }
    // An event finds no place (linux: ep_send_events).
    let mut spare = libc::epoll_event { events: 0, u64: 0 };
    Some(
        match epoll::wait_in(instance, &raw mut spare, 1, time_ns, mask) {
            Ok(0) => Ok(0),
            Ok(_) => Err(libc::EFAULT),
            error => error,
        },
    )
}

/// # Safety
/// As epoll_ctl(2).
pub unsafe fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    if operation == libc::EPOLL_CTL_ADD {
        broker::attach();
    }
    if config::is_active()
        && let Some(conn) = state::conn(fd)
    {
        if operation != libc::EPOLL_CTL_DEL {
            upgrade::sight(conn, fd);
        }
        if state::look(epoll) & kind::MASK != kind::EPOLL {
            epoll::discover(epoll, conn);
        }
        // SAFETY: the program's own argument.
        let judged = unsafe { judged_event(operation, event) };
        // What cannot be read, the kernel finds out before it looks at anything else.
        if let Some(event) = judged
            && let Some(result) = epoll::control(epoll, operation, conn, fd, &raw const event)
        {
            return give(result) as c_int;
        }
    }
    if config::is_active() && datagram::of(fd).is_some() {
        epoll::settle_fd(epoll);
        return datagram::control((epoll, operation, fd), event, &|| {
            // SAFETY: the program's own arguments.
            unsafe { real::epoll_ctl(epoll, operation, fd, event) }
        });
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
pub unsafe fn epoll_wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    let timeout = || Ok(timeout_of_ms(timeout_ms));
    if let Some(result) = waited(epoll, events, count, timeout, core::ptr::null()) {
        return give(result) as c_int;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::epoll_wait(epoll, events, count, timeout_ms) }
}

/// # Safety
/// As epoll_pwait(2).
pub unsafe fn epoll_pwait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout_ms: c_int,
    mask: *const c_void,
) -> c_int {
    let timeout = || Ok(timeout_of_ms(timeout_ms));
    if let Some(result) = waited(epoll, events, count, timeout, mask) {
        return give(result) as c_int;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::epoll_pwait(epoll, events, count, timeout_ms, mask) }
}

/// # Safety
/// As epoll_pwait2(2).
pub unsafe fn epoll_pwait2(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: *const libc::timespec,
    mask: *const c_void,
) -> c_int {
    if let Some(result) = waited(epoll, events, count, || timeout_of_spec(timeout), mask) {
        return give(result) as c_int;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::epoll_pwait2(epoll, events, count, timeout, mask) }
}

/// epoll_pwait2 for a libc that has none: by its epoll_pwait, where a thread can be cancelled
/// (man 7 pthreads). Times are given in milliseconds there, and end up to one later. A rest that is shorter
/// is the kernel's.
///
/// # Safety
/// As epoll_pwait2(2).
pub unsafe fn wait_by_ms(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: *const libc::timespec,
    mask: *const c_void,
) -> c_int {
    let time_ms = match timeout_of_spec(timeout) {
        Err(error) => return give(Err(error)) as c_int,
        Ok(Some(..MS_NS)) => {
            let woken = sys!(SYS_epoll_pwait2, epoll, events, count, timeout, mask, 8);
            return give(woken) as c_int;
        }
        Ok(Some(time_ns)) => time_ns.div_ceil(MS_NS).min(c_int::MAX as u64) as c_int,
        Ok(None) => -1,
    };
    // SAFETY: by contract.
    unsafe { real::epoll_pwait(epoll, events, count, time_ms, mask) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_an_epoll_instance_end_in_time_and_show_what_came() {
        // SAFETY: descriptors and room of ours.
        unsafe {
            let (epoll, event) = (libc::epoll_create1(0), libc::eventfd(1, 0));
            let mut shown = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: 7,
            };
            let at = &raw mut shown;
            let wait = |time: libc::timespec, count| {
                wait_by_ms(epoll, at, count, &raw const time, core::ptr::null())
            };
            let time = |tv_sec, tv_nsec| libc::timespec { tv_sec, tv_nsec };
            assert_eq!(wait(time(0, 1), 1), 0);
            assert_eq!(wait(time(0, 1_500_000), 1), 0);
            assert_eq!((wait(time(0, -1), 1), sys::errno()), (-1, libc::EINVAL));
            assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, event, at), 0);
            assert_eq!(wait(time(i64::MAX, 0), 1), 1);
            let (forever, no_mask) = (core::ptr::null(), core::ptr::null());
            assert_eq!(wait_by_ms(epoll, at, 1, forever, no_mask), 1);
            assert_eq!({ shown.u64 }, 7);
            libc::close(event);
            libc::close(epoll);
        }
    }
}
