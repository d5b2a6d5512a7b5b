//! Calls of which the bytes are moved elsewhere, past the library: by threads of libc (POSIX
//! asynchronous I/O), or by the kernel later (libaio). Both directions of a connection that is
//! given to one go to the kernel path first.

use crate::{config, datagram, faults, real, state};
use core::ffi::{c_int, c_long, c_void};
use fordway_abi::reason::Reason;
use fordway_sockets::down;

/// Requests of one call that are looked at (linux: limits.h, AIO_LISTIO_MAX is the program's).
const REQUESTS_MAX: usize = 65_536;
/// Where the descriptor stands in a `struct aiocb` (aio.h), ...
const IN_AIOCB: usize = 0;
/// ... and in a `struct iocb` (linux/aio_abi.h: aio_fildes).
const IN_IOCB: usize = 20;

/// Whether there may be one that has rings.
fn has_sockets() -> bool {
    config::is_active() && (state::conn_high() != 0 || datagram::is_used())
}

fn leave(fd: c_int) {
    datagram::bar(fd, Reason::Unsupported);
    if let Some(conn) = state::conn(fd) {
        down::bar(&conn.end(), Reason::Unsupported);
        down::downgrade(&conn.at(fd), Reason::Unsupported, true);
    }
}

/// Before the request at `block`, whose descriptor stands at `offset`.
fn before(block: *const c_void, offset: usize) {
    let fd = block.wrapping_byte_add(offset).cast::<c_int>();
    if has_sockets() && !block.is_null() && faults::can_read(fd) {
        // SAFETY: found readable.
        leave(unsafe { fd.read_unaligned() });
    }
}

fn before_all(list: *const *mut c_void, count: usize, offset: usize) {
    if !has_sockets() {
        return;
    }
    for index in 0..count.min(REQUESTS_MAX) {
        let block = list.wrapping_add(index);
        if !faults::can_read(block) {
            return;
        }
        // SAFETY: found readable.
        before(unsafe { block.read_unaligned() }, offset);
    }
}

/// Before io_submit.
pub fn before_submit(count: c_long, list: *const *mut c_void) {
    before_all(list, count.max(0) as usize, IN_IOCB);
}

/// # Safety
/// As aio_read(3).
pub unsafe fn aio_read(block: *mut c_void) -> c_int {
    before(block, IN_AIOCB);
    // SAFETY: the program's own argument.
    unsafe { real::aio_read(block) }
}

/// # Safety
/// As aio_write(3).
pub unsafe fn aio_write(block: *mut c_void) -> c_int {
    before(block, IN_AIOCB);
    // SAFETY: the program's own argument.
    unsafe { real::aio_write(block) }
}

/// # Safety
/// As lio_listio(3).
pub unsafe fn lio_listio(
    mode: c_int,
    list: *const *mut c_void,
    count: c_int,
    event: *mut c_void,
) -> c_int {
    before_all(list, count.max(0) as usize, IN_AIOCB);
    // SAFETY: the program's own arguments.
    unsafe { real::lio_listio(mode, list, count, event) }
}

/// libaio's function, where the program has that library.
///
/// # Safety
/// As io_submit(3).
pub unsafe fn io_submit(context: usize, count: c_long, list: *const *mut c_void) -> c_int {
    before_submit(count, list);
    // SAFETY: the program's own arguments.
    unsafe { real::io_submit(context, count, list) }
}
