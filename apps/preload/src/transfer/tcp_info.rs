//! Offsets in `struct tcp_info` (linux/tcp.h); libc's type ends before them.

use crate::sys;
use fordway_sockets::{Carried, State};

pub const STATE: usize = 0;
const LAST_DATA_SENT: usize = 44;
const LAST_DATA_RECV: usize = 52;
const LAST_ACK_RECV: usize = 56;
pub const BYTES_ACKED: usize = 120;
pub const BYTES_RECEIVED: usize = 128;
pub const NOTSENT_BYTES: usize = 144;
pub const BYTES_SENT: usize = 200;
pub const BYTES_RETRANS: usize = 208;
pub const NEEDED_BYTES: usize = 216;

/// Adds what rings have carried to what the kernel has counted, in the fields that
/// `length` bytes have whole, and says how long ago the last of it moved, at most. Counts of
/// segments and other times stay the kernel's.
///
/// # Safety
/// The kernel has written `length` bytes at `info`.
pub unsafe fn add(info: *mut u8, length: usize, carried: Carried, state: &State) {
    let now_ns = sys::now_ns();
    let sent = state.sent_last.quiet_ns(carried.sent, now_ns);
    let received = state.received_last.quiet_ns(carried.received, now_ns);
    let since = |offset: usize, quiet_ns: Option<u64>| {
        if let Some(quiet_ns) = quiet_ns.filter(|_| offset + 4 <= length) {
            let quiet_ms = u32::try_from(quiet_ns / 1_000_000).unwrap_or(u32::MAX);
            // SAFETY: inside of what the kernel has written.
            unsafe {
                let field = info.add(offset).cast::<u32>();
                field.write_unaligned(field.read_unaligned().min(quiet_ms));
            }
        }
    };
    since(LAST_DATA_SENT, sent);
    since(LAST_DATA_RECV, received);
    // What is published is acknowledged at once, and what comes acknowledges.
    since(LAST_ACK_RECV, sent.into_iter().chain(received).min());
    let long = |offset: usize, more: u64| {
        if offset + 8 <= length {
            // SAFETY: inside of what the kernel has written.
            unsafe {
                let field = info.add(offset).cast::<u64>();
                field.write_unaligned(field.read_unaligned().wrapping_add(more));
            }
        }
    };
    long(BYTES_ACKED, carried.sent);
    long(BYTES_RECEIVED, carried.received);
    long(BYTES_SENT, carried.sent);
    if NOTSENT_BYTES + 4 <= length {
        // SAFETY: as above.
        unsafe {
            let field = info.add(NOTSENT_BYTES).cast::<u32>();
            field.write_unaligned(field.read_unaligned().wrapping_add(carried.queued as u32));
        }
    }
}
