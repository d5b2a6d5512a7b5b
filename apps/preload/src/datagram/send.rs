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

use super::all;
use super::beside::{Beside, SEGMENTS_MAX};
use super::{BYTES_MAX, Flow, HEADER_BYTES, Header, Name, Socket, record_bytes};
use crate::sys::{self, give, sys};
use crate::thread::Shield;
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
/// So often a send looks whether they are: the look costs a transfer of the line that the reader writes.
const LOOK_EVERY_US: u64 = 1000;
/// A send that may sleep waits so long for room before its datagram is lost.
const ROOM_US: u64 = 50;
/// Flags that ask for nothing that a ring has not.
pub(super) const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM;
/// The longest datagrams of IPv4 and IPv6: what their headers leave of 65,535 bytes.
const BYTES4_MAX: usize = BYTES_MAX - 28;
const BYTES6_MAX: usize = BYTES_MAX - 8;

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
    /// The name, and what stands beside the datagram.
    fn look(self, socket: &Socket) -> Option<(Name, Beside)> {
        let connected = || {
            let is_connected = socket.is_connected.load(Ordering::Acquire) != 0;
            is_connected.then(|| socket.remote.get())
        };
        let named = |name: *const c_void, length| match name.is_null() {
            true => connected(),
            false => Name::of_program(name, length).filter(|name| fits(*name, name_family(socket))),
        };
        match self {
            To::Connected => Some((connected()?, Beside::default())),
            To::Name(name, length) => Some((named(name, length as usize)?, Beside::default())),
            To::Message(message) => {
                faults::arm();
                if !faults::can_read(message) {
                    return None;
                }
                // SAFETY: the program's own message, found readable.
                let message = unsafe { message.read_unaligned() };
                let name = named(message.msg_name, message.msg_namelen as usize)?;
                Some((name, Beside::look(&message, name.is_mapped())))
            }
        }
    }
}

fn name_family(socket: &Socket) -> i32 {
    socket.family.load(Ordering::Relaxed)
}

/// The longest datagram to a name: that of IPv4 also where a socket of IPv6 sends it.
pub(super) fn longest(name: Name) -> usize {
    match name.is_mapped() {
        true => BYTES4_MAX,
        false => BYTES6_MAX,
    }
}

/// A socket of IPv4 takes no other names.
fn fits(name: Name, family: i32) -> bool {
    family == libc::AF_INET6 || name.is_mapped()
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
        && let Some(flow) = socket.flow_to(name)
    {
        let sent = match flow.is_paired() {
            true => by_pair(socket, flow, fd, (flags, beside), buffers),
            false => all::send(socket, flow, fd, (flags, beside), buffers),
        };
        if let Some(sent) = sent {
            return give(sent);
        }
    }
    let sent = by_libc();
    if sent >= 0 {
        let begun = u32::from(flags & libc::MSG_MORE != 0);
        socket.begun.store(begun, Ordering::Relaxed);
    }
    if sent >= 0
        && let Some((name, beside)) = to
    {
        let errno = sys::errno();
        note_gone(socket, fd, name, beside, sent as usize);
        sys::set_errno(errno);
    }
    sent
}

/// By the ring of a flow that has a channel. `None`: the kernel is to send it.
fn by_pair(
    socket: &Socket,
    flow: &'static Flow,
    fd: i32,
    (flags, beside): (i32, Beside),
    buffers: &dyn Fn() -> sys::Result<Buffers>,
) -> Option<sys::Result<usize>> {
    let own_ip = flow.own_ip().unwrap_or_default();
    let is_kernels =
        flags & !FLAGS != 0 || socket.begun.load(Ordering::Relaxed) != 0 || !beside.suits(&own_ip);
    if is_kernels {
        flow.go_before_kernel();
        return None;
    }
    by_ring(socket, flow, fd, (flags, beside), buffers)
}

/// Datagrams of so many bytes have gone by the kernel.
fn note_gone(socket: &'static Socket, fd: i32, name: Name, beside: Beside, bytes: usize) {
    if let Some(flow) = socket.flow_by_kernel(fd, name)
        && flow.own_ip().is_none_or(|own| beside.is_from(&own))
    {
        flow.note_sent(socket, fd, beside.count(bytes));
    }
}

/// One of several messages has been sent by the kernel.
pub fn note_sent(socket: &'static Socket, fd: i32, message: *const libc::msghdr, bytes: usize) {
    if let Some((name, beside)) = To::Message(message).look(socket) {
        note_gone(socket, fd, name, beside, bytes);
    }
}

/// By the ring, if it may be used now.
pub(super) fn by_ring(
    socket: &Socket,
    flow: &'static Flow,
    fd: i32,
    (flags, beside): (i32, Beside),
    buffers: &dyn Fn() -> sys::Result<Buffers>,
) -> Option<sys::Result<usize>> {
    let buffers = match buffers() {
        Ok(buffers) => buffers,
        // What is wrong the kernel says.
        Err(_) => return None,
    };
    let remote = flow.remote();
    let is_cut = beside.segment != 0;
    let most = match is_cut || socket.whole.load(Ordering::Relaxed) != 0 {
        true => flow.bytes_that_fit(),
        false => BYTES_MAX,
    };
    let each = if is_cut {
        beside.segment
    } else {
        buffers.total
    };
    let count = beside.count(buffers.total);
    if each > most
        || buffers.total > longest(remote)
        || count > SEGMENTS_MAX
        || !may_enter(socket, flow)
    {
        return None;
    }
    let of_socket = &socket.tos[usize::from(!remote.is_mapped())];
    let tos = beside
        .tos
        .unwrap_or(of_socket.load(Ordering::Relaxed) as u8);
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
    let moment = sys::ticks();
    let mut put = Ok(());
    for index in 0..count {
        let begin = index * each;
        let bytes = each.min(buffers.total - begin);
        match room(&producer, record_bytes(bytes), may_wait) {
            Ok(true) => put = self::put(flow, &producer, &buffers, (begin, bytes), (tos, moment)),
            // As in a queue that is full.
            Ok(false) => {
                flow.own().tx_own.lost.fetch_add(1, Ordering::Relaxed);
            }
            // What others of the call are in the ring is lost with it.
            Err(_) => {
                flow.broke();
                drop(guard);
                flow.tidy();
                return None;
            }
        }
        if put.is_err() {
            break;
        }
    }
    let is_stale = is_unread(flow, &producer, moment);
    // Until the peer was woken.
    let _shield = Shield::new();
    drop(guard);
    let (doors, stopped) = producer.peer_waits();
    flow.knock(doors);
    if stopped || is_stale {
        flow.leave(false);
    }
    Some(put.map(|()| buffers.total))
}

/// Whether the flow is on its ring, or may be from now on.
pub(super) fn may_enter(socket: &Socket, flow: &'static Flow) -> bool {
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
        // A socket that always has something to receive never lets go of it otherwise.
        _ => {
            flow.tidy();
            false
        }
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

/// Writes a record of so many bytes from `begin` on, and publishes it. Under the lock, with room.
fn put(
    flow: &Flow,
    producer: &Producer,
    buffers: &Buffers,
    (begin, bytes): (usize, usize),
    (tos, moment): (u8, u64),
) -> sys::Result<()> {
    let tail = producer.tail();
    let header = Header {
        bytes: bytes as u16,
        tos,
        pad: 0,
        by_kernel: flow.by_kernel.load(Ordering::Acquire),
        moment,
    };
    let from = (&raw const header).cast();
    // SAFETY: a header of ours; there is room.
    unsafe { producer.write(copier(), Kernel::Plain, tail, from, HEADER_BYTES) };
    let mut at = tail.wrapping_add(HEADER_BYTES as u64);
    buffers.pieces(begin, bytes, |base, count| {
        faults::check(faults::is_readable(base, count))?;
        // SAFETY: the program's buffer, found readable; there is room.
        unsafe { producer.write(copier(), Kernel::Plain, at, base, count) };
        at = at.wrapping_add(count as u64);
        sys::Result::Ok(())
    })?;
    producer.publish(record_bytes(bytes));
    Ok(())
}

/// Whether records lie unread for too long: since a look that found the peer's index where it is.
fn is_unread(flow: &Flow, producer: &Producer, now: u64) -> bool {
    if now < flow.look_at.load(Ordering::Relaxed) {
        return false;
    }
    let next = now + LOOK_EVERY_US * spin::ticks_per_us();
    flow.look_at.store(next, Ordering::Relaxed);
    let head = producer.head_hint();
    if head == producer.tail() || flow.seen_head.swap(head, Ordering::Relaxed) != head {
        flow.unread_since.store(0, Ordering::Relaxed);
        return false;
    }
    let since = flow.unread_since.load(Ordering::Relaxed);
    if since == 0 {
        flow.unread_since.store(now, Ordering::Relaxed);
    }
    since != 0 && now.saturating_sub(since) > UNREAD_US * spin::ticks_per_us()
}
