//! Short calls with one buffer, which go over rings as a whole (`fordway_sockets::send_short`, `receive_short`): almost
//! all calls are such. They are tried before what a descriptor may be besides is looked at ([`crate::hooks_io`]), and what
//! they find out of the ordinary they leave, as it was, to the calls' general way.

use super::{Buffers, buffers, receive, send};
use crate::end::At;
use crate::state::{self, Conn};
use crate::upgrade::{self, Does};
use crate::{broker, config, faults, thread};
use core::sync::atomic::Ordering;
use fordway_ring::copy::Kernel;
use fordway_sockets::{receive_short, send_short};

/// Flags that say nothing to a short call.
pub const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Whether a call with these buffers may not have been tried here yet.
pub fn is_untried(conn: &Conn, buffers: &Buffers) -> bool {
    buffers.are_parts() || conn.is_unix() || buffers.is_record
}

/// The connection behind `fd`, if its calls go over rings.
#[inline(always)]
fn find(fd: i32) -> Option<(&'static Conn, At<'static>)> {
    let conn = state::plain_conn(fd).filter(|_| config::is_active())?;
    thread::cancellation_point();
    broker::check_mail();
    let end = At::called(conn, fd)?;
    conn.is_paired().then_some((conn, end))
}

/// Whether a send of `count` bytes at `base` has gone, as a whole. False: nothing was done.
#[inline(always)]
pub fn has_sent(fd: i32, base: *const u8, count: usize) -> bool {
    // 0 wraps.
    if count.wrapping_sub(1) >= send::NON_TEMPORAL_BYTES - 1 || !faults::is_user_range(base, count)
    {
        return false;
    }
    let Some((conn, end)) = find(fd) else {
        return false;
    };
    let base = base.cast_mut();
    conn.turn.load(Ordering::Relaxed) == 0
        && send_short(&end, count, |producer| {
            send::put(producer, Kernel::Plain, producer.tail(), base, count).is_ok()
        })
}

/// What a receive of up to `count` bytes into `base` has given. `None`: nothing was done.
#[inline(always)]
pub fn received(fd: i32, base: *mut u8, count: usize) -> Option<isize> {
    if count.wrapping_sub(1) >= buffers::BYTES_MAX || !faults::is_user_range(base, count) {
        return None;
    }
    let (conn, end) = find(fd)?;
    let low = conn.low_bytes.load(Ordering::Relaxed) as usize;
    if !conn.reads.load(Ordering::Relaxed) {
        return None;
    }
    let range = (count, low.max(1).min(count));
    let fetched = receive_short(&end, range, |consumer, count| {
        receive::fetch(consumer, 0, base, count).is_ok()
    });
    match fetched {
        Ok(0) => None,
        Ok(count) => {
            upgrade::note_call(conn, Does::Receive);
            Some(count as isize)
        }
        Err(error) => Some(crate::sys::give(Err(error))),
    }
}
