//! The data path of a connection with a channel: one call of the program, made of
//! attempts (`fordway_sockets`) and sleeps ([`crate::wait`]), with the program's buffers.
//!
//! Kernel calls on the socket never sleep (MSG_DONTWAIT) and, up to the switch, are
//! made under the endpoint's lock, so that the count of what went by the kernel is
//! exact; sleeping is `wait`'s, without any lock.

mod position;
mod receive;
mod send;

pub use position::{push_kernel_tail, received_position, sent_position};
pub use receive::receive;
pub use send::{send, send_file};

use crate::state::Conn;
use crate::thread::{self, Shield};
use crate::{stay, sys};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use fordway_ring::copy::Copier;
use fordway_sockets::{down, up};

/// iovecs that a kernel call inside a transfer takes at once.
const PARTS_MAX: usize = 16;

static COPIER: Copiers = Copiers(core::cell::UnsafeCell::new(Copier::sse2()));

struct Copiers(core::cell::UnsafeCell<Copier>);
// SAFETY: written once in the constructor, before other threads exist.
unsafe impl Sync for Copiers {}

/// Chooses the copy kernels of this processor.
pub fn set_up() {
    // SAFETY: see `Copiers`.
    unsafe { *COPIER.0.get() = Copier::detect() };
}

fn copier() -> &'static Copier {
    // SAFETY: see `Copiers`.
    unsafe { &*COPIER.0.get() }
}

/// The program's buffers of one call, with what was done of them.
#[derive(Clone, Copy)]
pub struct Buffers {
    parts: *const libc::iovec,
    count: usize,
    /// Bytes in all parts.
    pub total: usize,
}

impl Buffers {
    /// The parts that a program passed; `EINVAL` as the kernel gives it.
    pub fn new(parts: *const libc::iovec, count: usize) -> sys::Result<Self> {
        if count > libc::UIO_MAXIOV as usize {
            return Err(libc::EINVAL);
        }
        let mut total = 0usize;
        for index in 0..count {
            // SAFETY: the program's array of `count` parts.
            let length = unsafe { (*parts.add(index)).iov_len };
            total = total
                .checked_add(length)
                .filter(|total| *total <= isize::MAX as usize)
                .ok_or(libc::EINVAL)?;
        }
        Ok(Self {
            parts,
            count,
            total,
        })
    }

    /// Calls `act` with each contiguous piece of the bytes `[skip, skip + count)`.
    fn pieces(&self, skip: usize, count: usize, mut act: impl FnMut(*mut u8, usize)) {
        let (mut skip, mut left) = (skip, count);
        for index in 0..self.count {
            if left == 0 {
                break;
            }
            // SAFETY: as in `new`.
            let part = unsafe { *self.parts.add(index) };
            if skip >= part.iov_len {
                skip -= part.iov_len;
                continue;
            }
            let length = (part.iov_len - skip).min(left);
            act(part.iov_base.cast::<u8>().wrapping_add(skip), length);
            left -= length;
            skip = 0;
        }
    }

    /// The first bytes of `[skip, skip + count)` as parts for a kernel call.
    fn parts(&self, skip: usize, count: usize) -> ([libc::iovec; PARTS_MAX], usize) {
        let mut parts = [libc::iovec {
            iov_base: core::ptr::null_mut(),
            iov_len: 0,
        }; PARTS_MAX];
        let mut used = 0;
        self.pieces(skip, count, |base, length| {
            if used < PARTS_MAX {
                parts[used] = libc::iovec {
                    iov_base: base.cast(),
                    iov_len: length,
                };
                used += 1;
            }
        });
        (parts, used)
    }
}

fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a msghdr of zeros is an empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    message
}

/// How a whole call ended.
pub enum Done {
    /// Its result.
    Bytes(usize),
    /// The rest is libc's: the connection has no channel any more.
    Kernel,
}

/// Attends to what the connection asks for besides data. `Ok(false)`: it has no
/// channel any more.
#[inline]
fn attended(conn: &Conn, fd: i32) -> sys::Result<bool> {
    if conn.attention.load(Ordering::Relaxed) != 0 {
        down::attend(&conn.at(fd))?;
    }
    Ok(conn.is_paired())
}

/// Marks a thread as being in the kernel, unaware of rings, for as long as it lives.
pub struct Unaware<'a> {
    conn: &'a Conn,
    counter: &'a AtomicU32,
}

impl<'a> Unaware<'a> {
    /// A sleep for bytes.
    pub fn reader(conn: &'a Conn) -> Self {
        stay::enter(conn);
        conn.unaware.fetch_add(1, Ordering::SeqCst);
        Self {
            conn,
            counter: &conn.unaware,
        }
    }

    /// A send.
    pub fn sender(conn: &'a Conn) -> Self {
        stay::enter(conn);
        conn.senders.fetch_add(1, Ordering::SeqCst);
        Self {
            conn,
            counter: &conn.senders,
        }
    }
}

/// For a thread that never comes back from libc's call.
extern "C" fn abandon(unaware: *mut core::ffi::c_void) {
    let _shield = Shield::new();
    // SAFETY: of `Unaware::during`, whose frame is still there.
    drop(unsafe { unaware.cast::<Unaware<'_>>().read() });
}

impl Unaware<'_> {
    /// libc's call, with the thread counted meanwhile.
    pub fn during(self, shield: Shield, by_libc: impl FnOnce() -> isize) -> isize {
        let mut unaware = core::mem::ManuallyDrop::new(self);
        let argument = (&raw mut unaware).cast();
        let ((result, errno), shield) = thread::guarded(shield, abandon, argument, || {
            let result = by_libc();
            (result, sys::errno())
        });
        drop(core::mem::ManuallyDrop::into_inner(unaware));
        drop(shield);
        sys::set_errno(errno);
        result
    }
}

impl Drop for Unaware<'_> {
    fn drop(&mut self) {
        if self.counter.fetch_sub(1, Ordering::SeqCst) == 1 && self.conn.is_paired() {
            up::try_ready(&self.conn.end());
        }
        stay::leave(self.conn);
    }
}
