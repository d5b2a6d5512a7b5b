//! The data path of a connection with a channel: one call of the program, made of
//! attempts and sleeps (`fordway_sockets::Transfer`), with the program's buffers.
//!
//! Kernel calls on the socket never sleep (MSG_DONTWAIT) and, up to the switch, are
//! made under the endpoint's lock, so that the count of what went by the kernel is
//! exact; sleeping is `wait`'s, without any lock.

mod buffers;
mod distance;
mod position;
mod receive;
pub mod record;
mod send;
pub mod short;
pub mod tcp_info;

pub use buffers::Buffers;
pub use position::{can_send, is_drained, push_kernel_tail, received_position, sent_position};
pub use receive::receive;
pub use send::{send, send_file};

use crate::deadline::Deadline;
use crate::end::At;
use crate::signals::Call;
use crate::state::{Conn, phase};
use crate::stay::Stay;
use crate::thread::{self, Shield};
use crate::{fork, stay, sys, wait};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use fordway_ring::copy::Copier;
use fordway_sockets::Caller as _;
pub use fordway_sockets::Done;
use fordway_sockets::ready::Want;
use fordway_sockets::up;

static COPIER: Copiers = Copiers(core::cell::UnsafeCell::new(Copier::sse2()));

struct Copiers(core::cell::UnsafeCell<Copier>);
// SAFETY: written once in the constructor, before other threads exist.
unsafe impl Sync for Copiers {}

/// Chooses the copy kernels of this processor.
pub fn set_up() {
    // SAFETY: see `Copiers`.
    unsafe { *COPIER.0.get() = Copier::detect() };
}

/// The copy kernels of this processor.
pub fn copier() -> &'static Copier {
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

/// What is looked at when a call begins.
#[derive(Clone, Copy)]
struct Begun<'a> {
    /// The connection as the call has found it.
    end: At<'a>,
    may_wait: bool,
    handled: Call,
}

impl<'a> Begun<'a> {
    /// `None`: the number is not the connection's any more.
    #[inline(always)]
    fn now(conn: &'a Conn, fd: i32, may_wait: bool) -> Option<Self> {
        Some(Self {
            end: At::called(conn, fd)?,
            may_wait: may_wait && !conn.is_nonblocking(),
            handled: Call::begin(),
        })
    }
}

/// What calls of all kinds have: the connection, its number, and when their sleeps end.
struct Caller<'a> {
    conn: &'a Conn,
    /// The connection as the call has found it.
    called: At<'a>,
    /// The number of the program's call.
    number: i32,
    /// The number that the connection goes by now: in a sleep the program's may be closed.
    fd: i32,
    may_wait: bool,
    handled: Call,
    stay: Stay<'a>,
    deadline: Option<Deadline>,
}

impl<'a> Caller<'a> {
    /// Of a call by number `fd` that began at `begun`.
    fn new(conn: &'a Conn, fd: i32, begun: Begun<'a>) -> Self {
        Self {
            conn,
            called: begun.end,
            number: fd,
            fd,
            may_wait: begun.may_wait,
            handled: begun.handled,
            stay: Stay::none(),
            deadline: None,
        }
    }

    /// When the call gives up, by SO_RCVTIMEO or SO_SNDTIMEO.
    fn until(&mut self, want: Want) -> Deadline {
        let timeout = match want {
            Want::Bytes => &self.conn.receive_timeout_ns,
            Want::Room => &self.conn.send_timeout_ns,
        };
        let timeout_ns = timeout.load(Ordering::Relaxed);
        *self
            .deadline
            .get_or_insert_with(|| Deadline::after((timeout_ns != 0).then_some(timeout_ns)))
    }

    /// Whether neither its time is over nor a handler has run.
    fn has_time(&mut self, want: Want) -> bool {
        !self.until(want).has_passed() && !self.is_interrupted()
    }

    /// The call will sleep: the socket is kept for it.
    fn stay(&mut self) {
        // SAFETY: a call is made in one frame, by reference, from here on; its sleeps are guarded within.
        unsafe { self.stay.begin(self.conn) };
    }

    /// Sleeps until the connection is worth another try, and as long as `goes_on` says so.
    fn sleep(
        &mut self,
        want: Want,
        done: usize,
        goes_on: impl Fn(&At<'_>) -> bool,
    ) -> sys::Result<()> {
        let until = self.until(want);
        self.stay();
        let end = self.end();
        while end.is_same() {
            let call = (self.handled, done != 0);
            wait::for_conn(self.conn, self.fd, want, until, call)?;
            if !goes_on(&end) {
                self.fd = self.stay.descriptor(self.fd);
                break;
            }
        }
        Ok(())
    }
}

impl<'a> fordway_sockets::Caller for Caller<'a> {
    type End = At<'a>;

    #[inline]
    fn end(&self) -> At<'a> {
        self.called.by(self.fd)
    }

    fn is_same(&self) -> bool {
        self.called.is_same()
    }

    fn has_its_number(&self) -> bool {
        self.stay.descriptor(self.fd) == self.number
    }

    #[inline]
    fn may_wait(&self) -> bool {
        self.may_wait
    }

    fn is_interrupted(&self) -> bool {
        self.handled.is_interrupted(true)
    }

    fn is_ended(&self) -> bool {
        // As of any sleep (`wait::for_conn`). A handler that ran before the first one ran before the kernel's call.
        let has_end = !matches!(self.deadline, None | Some(Deadline::Never));
        self.stay.has_begun() && self.handled.is_interrupted(has_end)
    }
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
pub fn by_libc<'a>(
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
        if fork::one_less(self.counter) == 1 && self.conn.is_paired() {
            up::try_ready(&self.conn.end());
        }
        stay::leave(self.conn);
    }
}
