//! Offsets in `struct tcp_info` (linux/tcp.h); libc's type ends before them.

use fordway_sockets::Carried;

pub const STATE: usize = 0;
pub const BYTES_ACKED: usize = 120;
pub const BYTES_RECEIVED: usize = 128;
pub const NOTSENT_BYTES: usize = 144;
pub const BYTES_SENT: usize = 200;
pub const BYTES_RETRANS: usize = 208;
pub const NEEDED_BYTES: usize = 216;

/// Adds what rings have carried to what the kernel has counted, in the fields that
/// `length` bytes have whole. Counts of segments and times stay the kernel's.
///
/// # Safety
/// The kernel has written `length` bytes at `info`.
pub unsafe fn add(info: *mut u8, length: usize, carried: Carried) {
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
