//! Sending a datagram: as a record, or by the kernel.
//!
//! # Entering the ring
//! What the kernel was given is in the receiver's queue soon, but not at once (a softirq may be put off). A
//! record must not come before it. So a sender enters the ring when the peer has answered since, or [`SETTLED_US`] have
//! passed; a stream of datagrams without such a pause is held up for that time, once.
//!
//! # A ring that nobody reads
//! Somebody may read the socket past the library. A record that is unread for [`UNREAD_US`] makes the sender leave the ring: the
//! kernel's datagram wakes whoever sleeps there.

use super::{BYTES_MAX, Flow, HEADER_BYTES, Header, Name, Socket, record_bytes};
use crate::sys::{self, give, sys};
use crate::transfer::{Buffers, copier};
use crate::{broker, config, deadline, faults, spin, thread};
use core::ffi::c_void;
use core::sync::atomic::Ordering;
use fordway_abi::shm::tx_state;
use fordway_ring::copy::Kernel;
use fordway_ring::{Entered, Producer, Violation};

/// The kernel has put a datagram into the receiver's queue by then.
const SETTLED_US: u64 = 1000;
/// Datagrams by the kernel before a sender waits for a pause to enter the ring.
const HELD_BACK_MAX: u32 = 64;
/// A ring with records that are unread for so long is left.
const UNREAD_US: u64 = 50_000;
/// A send that may sleep waits so long for room before its datagram is lost.
const ROOM_US: u64 = 50;
/// Flags that ask for nothing that a ring has not.
const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM;
/// The longest datagrams of IPv4 and IPv6: what their headers leave of 65,535 bytes.
const BYTES4_MAX: usize = BYTES_MAX - 28;
const BYTES6_MAX: usize = BYTES_MAX - 8;

/// What fits every path of IPv6, and all but odd ones of IPv4: 1280 bytes less the headers (RFC 8200).
const SMALL_MAX: usize = 1280 - 48;

/// Whom a call of the program sends to.
#[derive(Clone, Copy)]
pub enum To {
    /// Whom the socket is connected to.
    Connected,
    /// The name of sendto.
    Name(*const c_void, u32),
    /// What a message says.
    Message(*const libc::msghdr),
}

impl To {
    /// The name, and whether something stands beside the datagram.
    fn look(self, socket: &Socket) -> Option<(Name, bool)> {
        let connected = || {
            let is_connected = socket.is_connected.load(Ordering::Acquire) != 0;
            is_connected.then(|| socket.remote.get())
        };
        let named = |name: *const c_void, length| match name.is_null() {
            true => connected(),
            false => Name::of_program(name, length).filter(|name| fits(*name, name_family(socket))),
        };
        match self {
            To::Connected => Some((connected()?, false)),
            To::Name(name, length) => Some((named(name, length as usize)?, false)),
            To::Message(message) => {
                faults::arm();
                if !faults::can_read(message) {
                    return None;
                }
                // SAFETY: the program's own message, found readable.
                let message = unsafe { message.read_unaligned() };
                let beside = crate::libcs::count(message.msg_controllen) != 0;
                let name = named(message.msg_name, message.msg_namelen as usize)?;
                Some((name, beside))
            }
        }
    }
}

fn name_family(socket: &Socket) -> i32 {
    socket.family.load(Ordering::Relaxed)
}

/// The longest datagram to a name: that of IPv4 also where a socket of IPv6 sends it.
pub(super) fn longest(name: Name) -> usize {
    match name.ip[..12] == super::MAPPED {
        true => BYTES4_MAX,
        false => BYTES6_MAX,
    }
}

/// A socket of IPv4 takes no other names.
fn fits(name: Name, family: i32) -> bool {
    family == libc::AF_INET6 || name.ip[..12] == super::MAPPED
}

/// send and its kin. `by_libc`: the call as the program made it.
pub fn send(
    socket: &'static Socket,
    fd: i32,
    flags: i32,
    to: To,
    buffers: &dyn Fn() -> sys::Result<Buffers>,
    by_libc: &dyn Fn() -> isize,
) -> isize {
    if !config::is_active() {
        return by_libc();
    }
    thread::cancellation_point();
    broker::check_mail();
    let to = to.look(socket);
    if let Some((name, beside)) = to
        && socket.has_rings()
        && let Some(flow) = socket.flow_to(name).filter(|flow| flow.is_paired())
    {
        let is_kernels = beside || flags & !FLAGS != 0 || socket.begun.load(Ordering::Relaxed) != 0;
        if is_kernels {
            flow.go_before_kernel();
        } else if let Some(sent) = by_ring(socket, flow, fd, flags, buffers) {
            return give(sent);
        }
    }
    let sent = by_libc();
    if sent >= 0 {
        let begun = u32::from(flags & libc::MSG_MORE != 0);
        socket.begun.store(begun, Ordering::Relaxed);
    }
    if sent >= 0
        && let Some((name, _)) = to
    {
        let errno = sys::errno();
        socket.note_by_kernel(fd, name, true);
        sys::set_errno(errno);
    }
    sent
}

/// One of several messages has been sent by the kernel.
pub fn note_sent(socket: &'static Socket, fd: i32, message: *const libc::msghdr) {
    if let Some((name, _)) = To::Message(message).look(socket) {
        socket.note_by_kernel(fd, name, true);
    }
}

/// By the ring, if it may be used now.
fn by_ring(
    socket: &Socket,
    flow: &'static Flow,
    fd: i32,
    flags: i32,
    buffers: &dyn Fn() -> sys::Result<Buffers>,
) -> Option<sys::Result<usize>> {
    let buffers = match buffers() {
        Ok(buffers) => buffers,
        // What is wrong the kernel says.
        Err(_) => return None,
    };
    let may_not_fit = buffers.total > SMALL_MAX && socket.whole.load(Ordering::Relaxed) != 0;
    if may_not_fit || buffers.total > longest(flow.remote()) || !may_enter(socket, flow) {
        return None;
    }
    let may_wait = flags & libc::MSG_DONTWAIT == 0 && socket.nonblock.load(Ordering::Relaxed) == 0;
    let guard = flow.sending.lock()?;
    // Another thread may have closed the socket, and the entry be another one's.
    if !flow.is_paired() || !flow.is_of(socket.index()) || !socket.is_behind(fd) {
        return None;
    }
    let producer = flow.producer();
    if producer.state() == tx_state::KERNEL && producer.enter(|| Some(0)) != Entered::Yes {
        return None;
    }
    if producer.state() != tx_state::RING {
        return None;
    }
    let put = match room(&producer, record_bytes(buffers.total), may_wait) {
        Ok(true) => put(flow, &producer, &buffers),
        // As in a queue that is full.
        Ok(false) => Ok(()),
        Err(_) => {
            flow.broke();
            drop(guard);
            flow.tidy();
            return None;
        }
    };
    let is_stale = is_unread(flow, &producer);
    drop(guard);
    let (doors, stopped) = producer.peer_waits();
    flow.knock(doors);
    if stopped || is_stale {
        flow.leave(false);
    }
    Some(put.map(|()| buffers.total))
}

/// Whether the flow is on its ring, or may be from now on.
fn may_enter(socket: &Socket, flow: &'static Flow) -> bool {
    if !flow.peer_is_there() {
        return false;
    }
    let producer = flow.producer();
    match producer.state() {
        // It is left first.
        tx_state::RING if producer.must_leave() => {
            flow.tidy();
            false
        }
        tx_state::RING => true,
        tx_state::KERNEL => {
            socket.barred.load(Ordering::Relaxed) == 0 && flow.peer_reads() && is_settled(flow)
        }
        _ => false,
    }
}

/// Whether what the kernel was given has come. See the module.
fn is_settled(flow: &Flow) -> bool {
    let since = sys::ticks().saturating_sub(flow.by_kernel_at.load(Ordering::Relaxed));
    if flow.by_kernel.load(Ordering::Relaxed) == 0
        || flow.answered.load(Ordering::Relaxed) != 0
        || since >= SETTLED_US * spin::ticks_per_us()
    {
        return true;
    }
    if flow.held_back.fetch_add(1, Ordering::Relaxed) < HELD_BACK_MAX {
        return false;
    }
    let pause = deadline::timespec(SETTLED_US * 1000);
    // A signal ends it early: then the next send waits.
    sys!(SYS_nanosleep, &raw const pause, 0).is_ok()
}

/// Whether there is room for a record; waits a little if it may.
fn room(producer: &Producer, wanted: usize, may_wait: bool) -> Result<bool, Violation> {
    let has_room = || producer.room_bytes(wanted).map(|room| room >= wanted);
    // A datagram is lost at once where a stream would try again, so the ring need not be found full twice.
    let grows = || producer.grow(wanted) || producer.grow(wanted);
    if has_room()? || grows() && has_room()? {
        return Ok(true);
    }
    if !may_wait {
        return Ok(false);
    }
    let end = sys::ticks() + ROOM_US * spin::ticks_per_us();
    while sys::ticks() < end {
        if has_room()? {
            return Ok(true);
        }
        core::hint::spin_loop();
    }
    Ok(false)
}

/// Writes a record and publishes it. Under the lock, with room.
fn put(flow: &Flow, producer: &Producer, buffers: &Buffers) -> sys::Result<()> {
    let tail = producer.tail();
    let header = Header {
        bytes: buffers.total as u32,
        by_kernel: flow.by_kernel.load(Ordering::Acquire),
        moment: sys::ticks(),
    };
    let from = (&raw const header).cast();
    // SAFETY: a header of ours; there is room.
    unsafe { producer.write(copier(), Kernel::Plain, tail, from, HEADER_BYTES) };
    let mut at = tail.wrapping_add(HEADER_BYTES as u64);
    buffers.pieces(0, buffers.total, |base, count| {
        faults::check(faults::is_readable(base, count))?;
        // SAFETY: the program's buffer, found readable; there is room.
        unsafe { producer.write(copier(), Kernel::Plain, at, base, count) };
        at = at.wrapping_add(count as u64);
        sys::Result::Ok(())
    })?;
    producer.publish(record_bytes(buffers.total));
    Ok(())
}

/// Whether records lie unread for too long: since a look that found the peer's index where it is.
fn is_unread(flow: &Flow, producer: &Producer) -> bool {
    let head = producer.head_hint();
    if head == producer.tail() || flow.seen_head.swap(head, Ordering::Relaxed) != head {
        flow.unread_since.store(0, Ordering::Relaxed);
        return false;
    }
    let since = flow.unread_since.load(Ordering::Relaxed);
    let now = sys::ticks();
    if since == 0 {
        flow.unread_since.store(now, Ordering::Relaxed);
    }
    since != 0 && now.saturating_sub(since) > UNREAD_US * spin::ticks_per_us()
}
