//! The data path of a connection with a channel: one call of the program, made of
//! attempts (`fordway_sockets`) and sleeps ([`crate::wait`]), with the program's buffers.
//!
//! Kernel calls on the socket never sleep (MSG_DONTWAIT) and, up to the switch, are
//! made under the endpoint's lock, so that the count of what went by the kernel is
//! exact; sleeping is `wait`'s, without any lock.

mod buffers;
mod distance;
mod position;
mod receive;
mod send;
pub mod tcp_info;

pub use buffers::Buffers;
pub use position::{push_kernel_tail, received_position, sent_position};
pub use receive::receive;
pub use send::{send, send_file};

use crate::end::At;
use crate::state::{Conn, phase};
use crate::thread::{self, Shield};
use crate::{stay, sys, wait};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use fordway_ring::copy::Copier;
use fordway_sockets::{End, down, up};

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
    /// The rest is libc's: the connection has no channel any more, or its number is another's.
    Kernel,
}

impl Done {
    /// What there is to say once the connection is gone.
    fn so_far(done: usize) -> Self {
        match done {
            0 => Self::Kernel,
            count => Self::Bytes(count),
        }
    }
}

/// Attends to what the connection asks for besides data. `Ok(false)`: it has no
/// channel any more.
#[inline]
fn attended(end: &At<'_>) -> sys::Result<bool> {
    if end.state().attention.load(Ordering::Relaxed) != 0 {
        down::attend(end)?;
    }
    Ok(end.has_channel())
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

/// libc's `call`, by a thread that is counted meanwhile; `None` if there is a channel again.
fn by_libc<'a>(
    count: impl FnOnce(&'a Conn) -> Unaware<'a>,
    conn: &'a Conn,
    call: impl FnOnce() -> isize,
) -> Option<sys::Result<usize>> {
    let shield = Shield::new();
    let unaware = count(conn);
    if conn.phase.load(Ordering::SeqCst) == phase::PAIRED {
        return None;
    }
    let result = unaware.during(shield, call);
    Some(if result < 0 {
        Err(sys::errno())
    } else {
        Ok(result as usize)
    })
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
        if core::ptr::eq(self.counter, &raw const self.conn.senders) {
            wait::acted();
        }
        if self.counter.fetch_sub(1, Ordering::SeqCst) == 1 && self.conn.is_paired() {
            up::try_ready(&self.conn.end());
        }
        stay::leave(self.conn);
    }
}
