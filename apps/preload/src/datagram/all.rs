//! What is sent to a broadcast address, by the rings of its receivers.
//!
//! The flow to a broadcast address never has a channel. It is offered to the broker as what it is, and the broker says
//! which sockets receive what is sent there, each time that this changes ([`Everybody`]): all of them, or nothing. To each of them the
//! socket has a flow of its own, as to anybody else:
//!
//! ```text
//!   socket 40001 ─┬─ flow to 10.83.0.255:7000: receivers 10.83.0.2, 10.83.0.3
//!                 ├─ flow to 10.83.0.2:7000 ═══ channel ═══ flow to 10.83.0.1:40001 ── socket 7000
//!                 └─ flow to 10.83.0.3:7000 ═══ channel ═══ flow to 10.83.0.1:40001 ── socket 7000
//! ```
//! Once all of these are on their rings, a broadcast is a record in each of them. A receiver notices no difference, but where it
//! asks to whom a datagram was sent: its endpoint says so (`tx_flags::TELLS`), and keeps broadcasts with the kernel.
//!
//! # Who is held up
//! Nobody by another: what a ring has no room for is lost there, at once. A receiver whose ring was left, since it does not read or
//! has asked for that, gets a datagram of its own by the kernel, as long as half of the receivers have rings. The sender itself, if it is
//! a receiver, too, gets one as well.
//!
//! # Order
//! That of each flow. What the kernel broadcasts is counted in the flow of each receiver, so that a record waits for it, and before it
//! does, rings with something unread are left ([`Flow::go_before_kernel`]).

use super::beside::Beside;
use super::send::{self, FLAGS};
use super::{ADDRESS_BYTES, Flow, MAPPED, Name, Socket, flow};
use crate::sys::{self, sys};
use crate::transfer::Buffers;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use fordway_abi::control::{EVERYBODY_MAX, Everybody};

/// Who receives what a flow sends, if it is one to a broadcast address.
#[derive(Default)]
pub(super) struct Receivers {
    /// 1: it is one.
    is_to_all: AtomicU32,
    /// 1: the broker has its offer.
    is_offered: AtomicU32,
    /// 1: all receivers are known.
    are_known: AtomicU32,
    /// Rises before and after they are written.
    version: AtomicU32,
    own: AtomicU32,
    count: AtomicU32,
    /// Each: the address, in the upper half; below, the number of its flow, plus one, or 0 while it has none.
    words: [AtomicU64; EVERYBODY_MAX],
}

/// A copy of that.
struct Copied {
    own: bool,
    count: usize,
    words: [u64; EVERYBODY_MAX],
}

impl Copied {
    fn words(&self) -> &[u64] {
        &self.words[..self.count]
    }
}

/// By which way one receiver gets a broadcast.
enum Way {
    Ring,
    /// The ring was left: a datagram of its own, by the kernel.
    Alone,
    /// It has none yet.
    Unknown,
}

impl Receivers {
    /// As a flow begins.
    pub fn begin(&self) {
        self.forget();
        self.is_to_all.store(0, Ordering::SeqCst);
    }

    /// It is about to be offered, as what it is.
    pub fn offer(&self, is_to_all: bool) {
        self.forget();
        let is_to_all = u32::from(is_to_all);
        self.is_to_all.fetch_max(is_to_all, Ordering::SeqCst);
        self.is_offered.store(is_to_all, Ordering::SeqCst);
    }

    /// The broker has no such offer any more.
    pub fn forget(&self) {
        self.are_known.store(0, Ordering::SeqCst);
        self.is_offered.store(0, Ordering::SeqCst);
    }

    pub fn is_offered(&self) -> bool {
        self.is_offered.load(Ordering::SeqCst) != 0
    }

    /// Under the lock of the mail.
    fn set(&self, told: &Everybody) {
        self.are_known.store(0, Ordering::SeqCst);
        if told.reason != 0 || !self.is_offered() {
            return;
        }
        self.version.fetch_add(1, Ordering::SeqCst);
        self.own.store(told.own, Ordering::Relaxed);
        let count = (told.count as usize).min(EVERYBODY_MAX);
        self.count.store(count as u32, Ordering::Relaxed);
        for (word, ip) in self.words.iter().zip(&told.ips).take(count) {
            let ip = u64::from(u32::from_ne_bytes(*ip)) << 32;
            word.store(ip, Ordering::Relaxed);
        }
        self.version.fetch_add(1, Ordering::SeqCst);
        self.are_known.store(1, Ordering::SeqCst);
    }

    /// `None`: they are not known, or change just now.
    fn copy(&self) -> Option<Copied> {
        if self.are_known.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let before = self.version.load(Ordering::Acquire);
        let mut copied = Copied {
            own: self.own.load(Ordering::Relaxed) != 0,
            count: self.count.load(Ordering::Relaxed) as usize % (EVERYBODY_MAX + 1),
            words: [0; EVERYBODY_MAX],
        };
        let words = copied.words[..copied.count].iter_mut().zip(&self.words);
        words.for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before;
        is_whole.then_some(copied)
    }
}

/// The broker says who receives what a flow sends. Under the lock of the mail.
pub fn told(told: &Everybody) {
    if let Some(flow) = Flow::by_id(told.conn_id) {
        flow.receivers.set(told);
    }
}

/// The name at an address, of the port that a flow is to.
fn name_of(word: u64, all: Name) -> Name {
    let mut ip = [0; 16];
    ip[..12].copy_from_slice(&MAPPED);
    ip[12..].copy_from_slice(&((word >> 32) as u32).to_ne_bytes());
    Name { ip, ..all }
}

/// The flow to a receiver, if it has one of the socket's still.
fn flow_to(socket: &Socket, word: u64, all: Name) -> Option<&'static Flow> {
    let flow = flow::at((word as u32).checked_sub(1)?);
    (flow.is_of(socket.index()) && flow.is_to(name_of(word, all))).then_some(flow)
}

/// Datagrams to everybody have gone by the kernel: to each receiver, as far as those are known, or were.
pub(super) fn note_sent(socket: &'static Socket, fd: i32, all: &Flow, count: usize) {
    if all.receivers.is_to_all.load(Ordering::Relaxed) == 0 {
        return;
    }
    let receivers = all.receivers.copy();
    let is_connected = socket.is_connected.load(Ordering::Relaxed) != 0;
    if let Some(receivers) = receivers.as_ref().filter(|_| !is_connected) {
        join(socket, fd, all, receivers, count);
    }
    for flow in hearing(socket, all) {
        let is_one = |receivers: &Copied| {
            let mut names = receivers.words().iter();
            names.any(|word| name_of(*word, all.remote()) == flow.remote())
        };
        match receivers.as_ref().is_none_or(is_one) {
            true => flow.note_sent(socket, fd, count),
            false => flow.hears.store(0, Ordering::SeqCst),
        }
    }
}

/// Has a flow to each receiver.
fn join(socket: &'static Socket, fd: i32, all: &Flow, receivers: &Copied, count: usize) {
    let name = all.remote();
    for (place, word) in all.receivers.words.iter().zip(receivers.words()) {
        // One that was made anew in its old place does not hear yet.
        let hears = |flow: &Flow| flow.hears.load(Ordering::SeqCst) != 0;
        if flow_to(socket, *word, name).is_some_and(hears) {
            continue;
        }
        let Some(flow) = socket.flow_by_kernel(fd, name_of(*word, name)) else {
            continue;
        };
        let joined = word >> 32 << 32 | u64::from(flow.index() + 1);
        let order = Ordering::SeqCst;
        if place.compare_exchange(*word, joined, order, order).is_ok()
            && flow.hears.swap(1, Ordering::SeqCst) == 0
        {
            // What it has received of us so far: rather too many, for which it would look, than too few.
            let before = all.by_kernel.load(Ordering::Relaxed);
            flow.by_kernel
                .fetch_add(before.wrapping_sub(count as u32), Ordering::Release);
            flow.hurry();
        }
    }
}

/// Flows to those who hear, or have heard, what goes where a flow is to.
fn hearing(socket: &Socket, all: &Flow) -> impl Iterator<Item = &'static Flow> {
    let port = all.remote().port;
    socket
        .flows()
        .filter(move |flow| flow.hears.load(Ordering::SeqCst) != 0 && flow.remote().port == port)
}

/// Sends a datagram to all receivers, if they are known and each of them can have it. `None`: the kernel is to send it.
pub(super) fn send(
    socket: &'static Socket,
    all: &'static Flow,
    fd: i32,
    (flags, beside): (i32, Beside),
    buffers: &dyn Fn() -> sys::Result<Buffers>,
) -> Option<sys::Result<usize>> {
    if all.receivers.is_to_all.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let is_offered = all.receivers.is_offered();
    let by_rings = is_offered
        .then(|| by_rings(socket, all, fd, (flags, beside), buffers))
        .flatten();
    if by_rings.is_none() {
        hearing(socket, all)
            .filter(|flow| flow.is_paired())
            .for_each(Flow::go_before_kernel);
    }
    by_rings
}

fn by_rings(
    socket: &'static Socket,
    all: &'static Flow,
    fd: i32,
    (flags, beside): (i32, Beside),
    buffers: &dyn Fn() -> sys::Result<Buffers>,
) -> Option<sys::Result<usize>> {
    let receivers = all.receivers.copy()?;
    let name = all.remote();
    let flows = || receivers.words().iter();
    let is_plain = flags & !FLAGS == 0
        && socket.begun.load(Ordering::Relaxed) == 0
        && socket.whole.load(Ordering::Relaxed) == 0
        && socket.barred.load(Ordering::Relaxed) == 0
        && beside.is_nothing();
    let whole = buffers().ok().filter(|_| is_plain);
    let whole = whole.filter(|buffers| buffers.total <= send::longest(name))?;
    let mut alone_count = 0;
    let are_ready = flows().all(|word| match way(socket, flow_to(socket, *word, name)) {
        Way::Ring => true,
        Way::Alone => {
            alone_count += 1;
            true
        }
        Way::Unknown => false,
    });
    let may_be_alone = || 2 * alone_count <= receivers.count && !tells_of_errors(fd);
    if !are_ready || alone_count != 0 && !may_be_alone() {
        return None;
    }
    for (index, word) in flows().enumerate() {
        let flow = flow_to(socket, *word, name);
        let at_once = (flags | libc::MSG_DONTWAIT, beside);
        let by_ring = flow.and_then(|flow| send::by_ring(socket, flow, fd, at_once, buffers));
        match by_ring {
            // Nobody has it yet.
            Some(Err(error)) if index == 0 => return Some(Err(error)),
            // What there was no room for is lost there alone.
            Some(_) => {}
            None => {
                alone(socket, fd, name_of(*word, name), &whole);
                if let Some(flow) = flow {
                    flow.note_sent(socket, fd, 1);
                }
            }
        }
    }
    if let Some(own) = all.own_name().filter(|_| receivers.own) {
        alone(socket, fd, own, &whole);
    }
    Some(Ok(whole.total))
}

fn way(socket: &'static Socket, flow: Option<&'static Flow>) -> Way {
    let is_heard = |flow: &Flow| flow.is_paired() && flow.peer_is_there() && !flow.peer_tells();
    let Some(flow) = flow.filter(|flow| is_heard(flow)) else {
        return Way::Unknown;
    };
    if send::may_enter(socket, flow) {
        return Way::Ring;
    }
    match is_heard(flow) && flow.is_on_its_way_out() {
        true => Way::Alone,
        false => Way::Unknown,
    }
}

/// Whether the program is told that a port was closed (IP_RECVERR): a datagram of its own to one receiver could bring that, and
/// a broadcast never does.
fn tells_of_errors(fd: i32) -> bool {
    sys::int_option(fd, libc::IPPROTO_IP, libc::IP_RECVERR) != 0
        || sys::int_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR) != 0
}

/// One receiver's datagram, by the kernel. What there is no room for is lost, as it is of a broadcast.
#[cold]
fn alone(socket: &Socket, fd: i32, to: Name, buffers: &Buffers) {
    let (mut address, length): ([u8; ADDRESS_BYTES], usize) =
        to.address(socket.family.load(Ordering::Relaxed));
    buffers.with_parts(0, buffers.total, |parts| {
        // SAFETY: a struct of integers and pointers.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_name = address.as_mut_ptr().cast();
        message.msg_namelen = length as u32;
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let _ = sys!(SYS_sendmsg, fd, &raw const message, flags);
    });
}
