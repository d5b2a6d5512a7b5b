//! UDP sockets whose datagrams go through rings.
//!
//! The program's descriptor stays the kernel's UDP socket: names, options, errors, and every datagram of
//! somebody without the library are its own. Two sockets that exchange datagrams are a [`Flow`] of each other:
//! once some have gone by the kernel it is offered to the broker, as a TCP connection is, and gets a channel.
//!
//! ```text
//!   socket 5353 ─┬─ flow to 10.83.0.2:40001 ═══ channel ═══ flow to 10.83.0.1:5353 ── socket 40001
//!                ├─ flow to 10.83.0.3:40001 ═══ channel ═══ ...
//!                └─ the kernel's queue: everybody else
//! ```
//!
//! # A record
//! A datagram is a record in the byte ring: a [`Header`], the bytes, and what is missing up to the next
//! multiple of 8. It is published whole. What has no room is lost, as in a socket's full queue.
//!
//! # Order
//! The datagrams of one sender come in its order, also across the two paths:
//! * A header says how many datagrams its sender has given to the kernel before. Until so many have come, or the
//!   kernel's queue is empty, a receiver takes from there.
//! * A sender enters the ring only when the kernel has had time to put its last datagram into that queue
//!   ([`send`]).
//! * Of several rings the one whose datagram was sent first comes first, by the senders' word.
//! * Rings come before the kernel's queue, so what a sender gives to the kernel when it has left its ring
//!   comes behind.
//!
//! # Who wakes whom
//! A record is published, and then the sender looks which doors of the receiver want to know
//! ([`fordway_ring::Sleeper`]). Who sleeps for datagrams announces a door, looks at the rings once more, and sleeps
//! on the door and the socket. A thread that sleeps in the kernel's call alone is counted in `Socket::unaware`; no
//! ring of the socket is READY before it came back.
//!
//! # Down
//! Either end [leaves](Flow::leave) its ring and goes on by the kernel; what is in the ring is still read. The flow is
//! over when both ends have left and nothing is unread. A socket that is passed on, or gets an option
//! that only the kernel heeds is [barred](Socket::bar), and stays the kernel's; one that forks does as long as relatives
//! hold it. What stands beside datagrams: [`beside`].
//!
//! # Limits
//! [`SOCKET_COUNT`] sockets of a process, [`FLOWS_MAX`] flows of a socket, [`FLOW_COUNT`] in all: beyond, the kernel's.
//! Sockets that the program has from elsewhere (an exec, a message) are the kernel's, too.

mod all;
mod beside;
mod flow;
mod receive;
mod send;
#[cfg(test)]
mod tests;
mod watch;

pub use all::told;
pub use flow::{Flow, is_any_offered, lost};
pub use receive::{Place, next_bytes, note_received, receive, receive_unaware};
pub use send::{To, note_sent, send};
pub use watch::{
    Registration, are_in, bar_in, collect, control, have_rings_in, instance_closed, is_any_ready,
    peer_in, room_beside, want_knocks_in, wants_room,
};

use crate::lock::{Lock, rank};
use crate::process::PROCESS;
use crate::state::{self, Held, kind};
use crate::sys::{self, sys};
use crate::thread::Shield;
use crate::{broker, claim, config, faults, fork, identity};
use beside::Template;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use fordway_abi::reason::Reason;

/// UDP sockets of one process.
pub const SOCKET_COUNT: usize = 1 << 12;
/// Flows of one process.
pub const FLOW_COUNT: usize = 1 << 14;
/// Flows of one socket. Each costs a receive that finds nothing some nanoseconds.
pub const FLOWS_MAX: usize = 64;

/// What stands before a datagram in a ring.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Header {
    /// Bytes of the datagram.
    bytes: u16,
    /// TOS or traffic class, as its sender wants it.
    tos: u8,
    pad: u8,
    /// Datagrams that the sender has given to the kernel before, on this flow.
    by_kernel: u32,
    /// When it was sent, in ticks: of several senders' the first one comes first.
    moment: u64,
}

const HEADER_BYTES: usize = size_of::<Header>();
/// The longest datagram (RFC 768).
const BYTES_MAX: usize = u16::MAX as usize;

/// What a datagram takes of a ring.
fn record_bytes(bytes: usize) -> usize {
    (HEADER_BYTES + bytes).next_multiple_of(8)
}

/// Address, IPv4 in IPv6, and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    ip: [u8; 16],
    port: u16,
}

/// The longest that is understood.
pub const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_in6>();
const ADDRESS4_BYTES: usize = size_of::<libc::sockaddr_in>();
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Name {
    /// Of a struct sockaddr that can be read; `None`: of another family, or with a scope.
    #[inline]
    fn of(address: *const c_void, length: usize) -> Option<Self> {
        if length < ADDRESS4_BYTES {
            return None;
        }
        // SAFETY: `length` bytes can be read, of which either family's are no more.
        unsafe {
            match i32::from(address.cast::<u16>().read_unaligned()) {
                libc::AF_INET => {
                    let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                    let mut ip = [0; 16];
                    ip[..12].copy_from_slice(&MAPPED);
                    ip[12..].copy_from_slice(&address.sin_addr.s_addr.to_ne_bytes());
                    let port = u16::from_be(address.sin_port);
                    Some(Self { ip, port })
                }
                libc::AF_INET6 if length >= ADDRESS_BYTES => {
                    let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                    let is_plain = address.sin6_flowinfo == 0 && address.sin6_scope_id == 0;
                    let port = u16::from_be(address.sin6_port);
                    let ip = address.sin6_addr.s6_addr;
                    is_plain.then_some(Self { ip, port })
                }
                _ => None,
            }
        }
    }

    /// The same of the program's, which may be anything.
    fn of_program(address: *const c_void, length: usize) -> Option<Self> {
        // Longer than any is refused (linux: move_addr_to_kernel).
        if length > size_of::<libc::sockaddr_storage>() {
            return None;
        }
        let bytes = address.cast::<u8>();
        let length = length.min(ADDRESS_BYTES);
        faults::arm();
        (!address.is_null()
            && faults::is_user_range(bytes, length)
            && faults::is_readable(bytes, length))
        .then(|| Self::of(address, length))
        .flatten()
    }

    /// As a struct sockaddr of a family, and its length.
    fn address(self, family: i32) -> ([u8; ADDRESS_BYTES], usize) {
        let mut bytes = [0; ADDRESS_BYTES];
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.port.to_be_bytes());
        if family == libc::AF_INET {
            bytes[4..8].copy_from_slice(&self.ip[12..]);
            return (bytes, ADDRESS4_BYTES);
        }
        bytes[8..24].copy_from_slice(&self.ip);
        (bytes, ADDRESS_BYTES)
    }

    /// A number by which most names differ: a socket finds the one among its flows without a look at them.
    fn mark(self) -> u32 {
        let half = |at: usize| self.ip[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
        let mixed = half(0).rotate_left(16) ^ half(8) ^ u64::from(self.port) << 17;
        // 2^64 by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }

    /// Whether it is of IPv4.
    fn is_mapped(self) -> bool {
        self.ip[..12] == MAPPED
    }

    /// Whether it can be one socket's: no group, nobody's, no whole network's.
    fn is_single(self) -> bool {
        let is_mapped = self.is_mapped();
        let first = if is_mapped { self.ip[12] } else { self.ip[0] };
        let is_group = match is_mapped {
            true => first >= 224,
            false => first == 0xff || first == 0xfe && self.ip[1] & 0xc0 == 0x80,
        };
        !is_group && self.ip != [0; 16] && self.ip[12..] != [0; 4] && self.port != 0
    }
}

/// A UDP socket of this process.
#[repr(C, align(128))]
pub struct Socket {
    /// Descriptors of this process; 0: free.
    refs: AtomicU32,
    /// Rises when the entry is given back.
    serial: AtomicU32,
    /// AF_INET or AF_INET6.
    family: AtomicI32,
    /// O_NONBLOCK.
    nonblock: AtomicU32,
    /// A reason: it is the kernel's, for good if that is not that relatives hold it too.
    barred: AtomicU32,
    /// The reason that the broker was told of.
    told_barred: AtomicU32,
    /// Who holds it too, and datagrams since that was looked at.
    held: Held,
    since_alone: AtomicU32,
    /// 1: an exec leaves it open.
    kept: AtomicU32,
    /// Flows with a channel.
    paired: AtomicU32,
    /// Threads that sleep in the kernel's call, without a look at rings.
    unaware: AtomicU32,
    /// 1: a call of the library has received from it.
    reads: AtomicU32,
    /// Its own port, once it has made an offer; it stays that.
    port: AtomicU32,
    /// 1: its receiving half is shut.
    shut: AtomicU32,
    /// 1: the kernel has the first part of a datagram (MSG_MORE).
    begun: AtomicU32,
    /// Not 0: the kernel refuses what does not fit the path (IP_MTU_DISCOVER), a bit for each family.
    whole: AtomicU32,
    /// 1: options have something stand beside what is received ([`beside`]). How often they were set, from 1 on.
    tells: AtomicU32,
    told: AtomicU32,
    /// IP_TOS and IPV6_TCLASS.
    tos: [AtomicU32; 2],
    /// Guards the consumers of all flows.
    receiving: Lock<{ rank::RECEIVING }>,
    /// Datagrams by rings since the kernel was asked, and when that was, in ticks.
    since_kernel: AtomicU32,
    asked_at: AtomicU64,
    /// Whose datagram a look (MSG_PEEK, FIONREAD) has shown: it is the next one. See [`looked`].
    looked: AtomicU32,
    /// The flow that was used last, plus one.
    last: AtomicU32,
    /// Which flow makes way next.
    next_out: AtomicU32,
    /// Doors behind which somebody sleeps for it, or an epoll instance does.
    doors: AtomicU64,
    /// 1: it is connected, to this name.
    is_connected: AtomicU32,
    remote: NameWords,
    /// Places of `flows` that were ever in use, and how many are.
    high: AtomicU32,
    used: AtomicU32,
    /// Each: a flow, plus one, and above it the mark of the name at its far end; 0: none.
    flows: [AtomicU64; FLOWS_MAX],
}

/// What a place of `Socket::flows` says.
fn place_word(flow: u32, remote: Name) -> u64 {
    u64::from(remote.mark()) << 32 | u64::from(flow + 1)
}

/// The flow in a place.
fn flow_in(word: u64) -> Option<&'static Flow> {
    (word as u32).checked_sub(1).map(flow::at)
}

/// What `Socket::looked` says; else a flow, plus [`looked::FLOWS`].
mod looked {
    pub const NOWHERE: u32 = 0;
    pub const AT_KERNELS: u32 = 1;
    pub const FLOWS: u32 = 2;
}

/// A [`Name`] that several threads look at.
#[derive(Default)]
struct NameWords {
    ip: [AtomicU64; 2],
    port: AtomicU32,
}

impl NameWords {
    fn set(&self, name: Name) {
        for (word, bytes) in self.ip.iter().zip(name.ip.chunks_exact(8)) {
            let bytes = bytes.try_into().unwrap_or([0; 8]);
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        self.port.store(u32::from(name.port), Ordering::Relaxed);
    }

    #[inline]
    fn is(&self, name: Name) -> bool {
        let mut words = self.ip.iter().zip(name.ip.chunks_exact(8));
        let same = |(word, bytes): (&AtomicU64, &[u8])| {
            word.load(Ordering::Relaxed).to_ne_bytes() == *bytes
        };
        self.port.load(Ordering::Relaxed) == u32::from(name.port) && words.all(same)
    }

    fn get(&self) -> Name {
        let mut ip = [0; 16];
        for (bytes, word) in ip.chunks_exact_mut(8).zip(&self.ip) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        let port = self.port.load(Ordering::Relaxed) as u16;
        Name { ip, port }
    }
}

/// Of the process: its UDP sockets.
pub struct Datagrams {
    sockets: AtomicPtr<Socket>,
    flows: AtomicPtr<Flow>,
    registrations: AtomicPtr<Registration>,
    /// How many entries were ever in use.
    socket_high: AtomicU32,
    flow_high: AtomicU32,
    /// All flows below are in use.
    flow_free_from: AtomicU32,
    registration_high: AtomicU32,
    /// Flows with a channel.
    paired: AtomicU32,
}

impl Datagrams {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            sockets: AtomicPtr::new(core::ptr::null_mut()),
            flows: AtomicPtr::new(core::ptr::null_mut()),
            registrations: AtomicPtr::new(core::ptr::null_mut()),
            socket_high: AtomicU32::new(0),
            flow_high: AtomicU32::new(0),
            flow_free_from: AtomicU32::new(0),
            registration_high: AtomicU32::new(0),
            paired: AtomicU32::new(0),
        }
    }
}

/// Maps the tables.
pub fn set_up() -> sys::Result<()> {
    if !config::datagrams() {
        return Ok(());
    }
    let all = &PROCESS.datagrams;
    let map = |bytes| sys::map_anonymous(bytes, false);
    let flows = map(FLOW_COUNT * size_of::<Flow>())?;
    let registrations = map(watch::REGISTRATION_COUNT * size_of::<Registration>())?;
    let sockets = map(SOCKET_COUNT * size_of::<Socket>())?;
    all.flows.store(flows.cast(), Ordering::Relaxed);
    all.registrations
        .store(registrations.cast(), Ordering::Relaxed);
    all.sockets.store(sockets.cast(), Ordering::Release);
    Ok(())
}

/// Socket number `index`.
pub fn socket_at(index: u32) -> &'static Socket {
    let sockets = PROCESS.datagrams.sockets.load(Ordering::Relaxed);
    // SAFETY: SOCKET_COUNT zeroed entries of atomics, never unmapped; an index was given out with them.
    unsafe { &*sockets.add(index as usize % SOCKET_COUNT) }
}

/// The sockets in use.
fn all() -> impl Iterator<Item = &'static Socket> {
    (0..PROCESS.datagrams.socket_high.load(Ordering::Acquire))
        .map(socket_at)
        .filter(|socket| socket.refs.load(Ordering::Acquire) != 0)
}

/// The UDP socket behind a descriptor, if its datagrams may go through rings.
#[inline(always)]
pub fn of(fd: i32) -> Option<&'static Socket> {
    match PROCESS.datagrams.socket_high.load(Ordering::Relaxed) {
        0 => None,
        _ => of_some(fd),
    }
}

/// Whether there ever was one.
pub fn is_used() -> bool {
    PROCESS.datagrams.socket_high.load(Ordering::Relaxed) != 0
}

fn of_some(fd: i32) -> Option<&'static Socket> {
    let word = state::look(fd);
    (word & kind::MASK == kind::DATAGRAMS).then(|| socket_at(word & !kind::MASK))
}

/// The same, if some flow of it has a channel.
#[inline]
pub fn with_rings(fd: i32) -> Option<&'static Socket> {
    of(fd).filter(|socket| socket.has_rings())
}

/// The program has made a UDP socket.
pub fn opened(fd: i32, family: i32, nonblock: bool) {
    let all = &PROCESS.datagrams;
    let Some(word) = state::slot(fd).filter(|_| !all.sockets.load(Ordering::Acquire).is_null())
    else {
        return;
    };
    let Some(_guard) = state::table_lock().lock() else {
        return;
    };
    let free = |index: &u32| socket_at(*index).refs.load(Ordering::Relaxed) == 0;
    let Some(index) = (0..SOCKET_COUNT as u32).find(free) else {
        return;
    };
    let socket = socket_at(index);
    for zeroed in [
        &socket.barred,
        &socket.told_barred,
        &socket.reads,
        &socket.begun,
        &socket.port,
        &socket.shut,
        &socket.since_kernel,
        &socket.looked,
        &socket.whole,
        &socket.tells,
        &socket.tos[0],
        &socket.tos[1],
        &socket.last,
        &socket.is_connected,
        &socket.high,
    ] {
        zeroed.store(0, Ordering::Relaxed);
    }
    socket
        .nonblock
        .store(u32::from(nonblock), Ordering::Relaxed);
    socket.doors.store(0, Ordering::Relaxed);
    socket.held.begin();
    socket.told.store(1, Ordering::Relaxed);
    socket.family.store(family, Ordering::Relaxed);
    socket.serial.fetch_add(1, Ordering::Relaxed);
    socket.refs.store(1, Ordering::Release);
    all.socket_high.fetch_max(index + 1, Ordering::AcqRel);
    word.store(kind::DATAGRAMS | index, Ordering::Release);
}

/// There is another descriptor of the socket.
pub fn duplicated(word: u32, new: i32) {
    let socket = socket_at(word & !kind::MASK);
    socket.refs.fetch_add(1, Ordering::AcqRel);
    if (0..=libc::STDERR_FILENO).contains(&new) {
        // libc's streams read and write it past the library.
        socket.bar(Reason::Stdio);
    }
}

/// A descriptor of the socket is about to be closed.
pub fn dropped(word: u32) {
    let socket = socket_at(word & !kind::MASK);
    // One of the threads that close its descriptors at once is the last one; the entry is free only behind its work.
    let others = |refs: u32| (refs > 1).then(|| refs - 1);
    let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
    if socket.refs.fetch_update(set, get, others).is_err() {
        watch::forget(socket);
        socket.close_flows();
        fork::let_go(&socket.held);
        socket.serial.fetch_add(1, Ordering::Release);
        socket.refs.store(0, Ordering::Release);
    }
}

/// connect(2) has been called on it.
pub fn connected(socket: &Socket, fd: i32) {
    let mut address = [0u8; ADDRESS_BYTES];
    let mut length = ADDRESS_BYTES as u32;
    let (name, at) = (address.as_mut_ptr(), &raw mut length);
    let asked = sys!(SYS_getpeername, fd, name, at);
    let remote = asked
        .ok()
        .and_then(|_| Name::of(name.cast(), length as usize));
    let own = claim::own_name(fd);
    if let Some(remote) = remote {
        socket.remote.set(remote);
    }
    let is_connected = u32::from(remote.is_some());
    socket.is_connected.store(is_connected, Ordering::Release);
    // What came from others before is still read. What comes from this one is the socket's alone from now
    // on: another one, bound to the same port, has it no more.
    for other in all() {
        let is_own = core::ptr::eq(other, socket);
        let is_peers = |flow: &&Flow| remote.is_some_and(|remote| flow.is_to(remote));
        let is_lost = |flow: &&Flow| match is_own {
            true => !is_peers(flow),
            false => is_peers(flow) && own.is_none_or(|(_, port)| other.is_from(port)),
        };
        other.flows().filter(is_lost).for_each(Flow::drop_out);
    }
    if remote.is_none() {
        bound(fd);
    }
}

/// What is behind a descriptor has been bound, or has a peer no more: it may get now what others of its port got.
pub fn bound(fd: i32) {
    if !is_used() {
        return;
    }
    let Some((_, port)) = claim::own_name(fd) else {
        return;
    };
    let own = of(fd).map(Socket::index);
    for other in all().filter(|other| Some(other.index()) != own && other.has_rings()) {
        if other.is_from(port) {
            other.flows().for_each(Flow::drop_out);
        }
    }
}

/// Options that change nothing for datagrams by rings, or that [`note_option`] understands. Any other one makes a socket the
/// kernel's: it asks for what only the kernel does with a datagram.
pub fn is_harmless(level: i32, name: i32) -> bool {
    beside::is_telling(level, name)
        || match level {
            libc::SOL_SOCKET => matches!(
                name,
                libc::SO_RCVBUF
                    | libc::SO_SNDBUF
                    | libc::SO_RCVBUFFORCE
                    | libc::SO_SNDBUFFORCE
                    | libc::SO_RCVTIMEO
                    | libc::SO_SNDTIMEO
                    | libc::SO_REUSEADDR
                    | libc::SO_REUSEPORT
                    | libc::SO_BROADCAST
                    | libc::SO_KEEPALIVE
                    | libc::SO_PRIORITY
            ),
            libc::IPPROTO_IP => matches!(
                name,
                libc::IP_MTU_DISCOVER
                    | libc::IP_RECVERR
                    | libc::IP_TOS
                    | libc::IP_MULTICAST_TTL
                    | libc::IP_MULTICAST_LOOP
                    | libc::IP_MULTICAST_IF
            ),
            libc::IPPROTO_IPV6 => matches!(
                name,
                libc::IPV6_V6ONLY
                    | libc::IPV6_MTU_DISCOVER
                    | libc::IPV6_RECVERR
                    | libc::IPV6_TCLASS
                    | libc::IPV6_MULTICAST_HOPS
                    | libc::IPV6_MULTICAST_LOOP
                    | libc::IPV6_MULTICAST_IF
            ),
            // What it puts together may come by itself as well.
            libc::SOL_UDP => name == libc::UDP_GRO,
            _ => false,
        }
}

/// An option has been set: whether a datagram that does not fit the path is refused, what stands beside those that are
/// received, or what those that are sent say.
pub fn note_option(fd: i32, level: i32, name: i32) {
    let Some(socket) = of(fd) else {
        return;
    };
    let bit = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => {
            return socket.flows().for_each(Flow::withdraw_to_all);
        }
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => 1,
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => 2,
        (libc::IPPROTO_IP, libc::IP_TOS) => return socket.note_tos(0, fd, level, name),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => return socket.note_tos(1, fd, level, name),
        _ if beside::is_telling(level, name) => return socket.note_telling(fd),
        _ => return,
    };
    // linux: ip_sk_ignore_df.
    let cuts = |how| how < libc::IP_PMTUDISC_DO || how == libc::IP_PMTUDISC_OMIT;
    match sys::option(fd, level, name, 0).is_ok_and(|(how, _)| cuts(how)) {
        true => socket.whole.fetch_and(!bit, Ordering::Relaxed),
        false => socket.whole.fetch_or(bit, Ordering::Relaxed),
    };
}

/// O_NONBLOCK has been set, or taken away.
pub fn set_nonblocking(fd: i32, is: bool) {
    if let Some(socket) = of(fd) {
        socket.nonblock.store(u32::from(is), Ordering::Relaxed);
    }
}

/// Keeps what is behind a descriptor, if it is a UDP socket, with the kernel.
pub fn bar(fd: i32, reason: Reason) {
    if let Some(socket) = of(fd) {
        socket.bar(reason);
    }
}

/// shutdown(2) has been called on what is behind a descriptor.
pub fn shut(fd: i32, how: i32) {
    if let Some(socket) = of(fd) {
        if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
            socket.shut.store(1, Ordering::SeqCst);
        }
        socket.bar(Reason::Unsupported);
    }
}

/// Before a fork: relatives share one queue of the kernel's, and one of them alone would have the rings.
pub fn before_fork() {
    all().for_each(|socket| socket.bar(Reason::Forked));
}

/// Whether that was done of all. Under the lock of the tables.
pub fn are_barred() -> bool {
    all().all(|socket| socket.barred.load(Ordering::SeqCst) != 0)
}

/// The child will hold them too. Under the lock of the tables.
pub fn share_all() {
    for socket in all() {
        if !fork::share(&socket.held) {
            socket.bar(Reason::NoMemory);
        }
    }
}

/// The process ends: relatives may go on alone.
pub fn let_go_all() {
    all().for_each(|socket| fork::let_go(&socket.held));
}

/// In a forked child: the channels are the parent's.
pub fn after_fork() {
    for socket in all() {
        for zeroed in [&socket.paired, &socket.high, &socket.used, &socket.unaware] {
            zeroed.store(0, Ordering::Relaxed);
        }
        for place in &socket.flows {
            place.store(0, Ordering::Relaxed);
        }
        socket.receiving.reset();
    }
    flow::after_fork();
}

/// Before an exec, also of a vfork child: whoever has the sockets afterwards has no rings. A number that is
/// another file's in the child costs its socket the rings for nothing. `is_own`: what is closed by the exec, this process
/// holds no more.
pub fn before_exec(is_own: bool) {
    if !is_used() {
        return;
    }
    for fd in 0..EXEC_FDS {
        let is_kept = |flags| flags as i32 & libc::FD_CLOEXEC == 0;
        if let Some(socket) = of(fd)
            && sys!(SYS_fcntl, fd, libc::F_GETFD).is_ok_and(is_kept)
        {
            socket.bar(Reason::Exec);
            socket.kept.store(1, Ordering::Relaxed);
        }
    }
    for socket in all().filter(|_| is_own) {
        if socket.kept.swap(0, Ordering::Relaxed) == 0 {
            fork::let_go(&socket.held);
        }
    }
}

/// Datagrams by the kernel until a socket that relatives hold too looks whether they still do.
const LOOK_FOR_RELATIVES_EVERY: u32 = 64;
/// Descriptors that are looked at before an exec.
const EXEC_FDS: i32 = 1 << 16;

/// Looks after all flows, when mail has come.
pub fn attend_all() {
    if PROCESS.datagrams.paired.load(Ordering::Relaxed) != 0 {
        all().for_each(Socket::tidy);
    }
}

impl Socket {
    /// Its number.
    pub fn index(&self) -> u32 {
        let base = PROCESS.datagrams.sockets.load(Ordering::Relaxed) as usize;
        ((self as *const Self as usize - base) / size_of::<Self>()) as u32
    }

    /// Whether some flow of it has a channel.
    #[inline]
    pub fn has_rings(&self) -> bool {
        self.paired.load(Ordering::SeqCst) != 0
    }

    /// Whether it made its offers as one of this port.
    fn is_from(&self, port: u16) -> bool {
        self.port.load(Ordering::Relaxed) == u32::from(port)
    }

    /// Whether its receiving half is shut, which the kernel tells of.
    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Relaxed) != 0
    }

    /// Whether calls by `fd` mean this socket still.
    fn is_behind(&self, fd: i32) -> bool {
        state::look(fd) == kind::DATAGRAMS | self.index()
    }

    /// Its flows, in whatever phase.
    fn flows(&self) -> impl Iterator<Item = &'static Flow> {
        let high = self.high.load(Ordering::Acquire) as usize;
        let places = self.flows.iter().take(high);
        // A flow leaves its place and is another socket's before long.
        let own = self.index();
        places
            .filter_map(|place| flow_in(place.load(Ordering::Acquire)))
            .filter(move |flow| flow.is_of(own))
    }

    /// Whether something can be received from rings, as far as can be told without the lock.
    pub fn has_unread(&self) -> bool {
        self.has_rings() && self.flows().any(Flow::has_unread)
    }

    /// Changes with each record that comes.
    fn arrivals(&self) -> u64 {
        let paired = self.flows().filter(|flow| flow.is_paired());
        paired.fold(0, |sum, flow| sum.wrapping_add(flow.arrivals()))
    }

    /// Has peers knock at these doors.
    pub fn want_knocks(&self, doors: u64) {
        self.doors.fetch_or(doors, Ordering::SeqCst);
        for flow in self.flows().filter(|flow| flow.is_paired()) {
            flow.own().wait.rx_doors.fetch_or(doors, Ordering::SeqCst);
        }
    }

    /// The opposite.
    pub fn want_no_knocks(&self, doors: u64) {
        self.doors.fetch_and(!doors, Ordering::SeqCst);
        for flow in self.flows().filter(|flow| flow.is_paired()) {
            flow.own().wait.rx_doors.fetch_and(!doors, Ordering::SeqCst);
        }
    }

    /// Who is most likely to send next.
    pub fn peer(&self) -> Option<crate::spin::Peer> {
        let last = self.last.load(Ordering::Relaxed).checked_sub(1)?;
        let flow = Some(flow::at(last)).filter(|flow| flow.is_of(self.index()));
        flow.filter(|flow| flow.is_paired()).map(Flow::peer)
    }

    /// A thread begins to sleep in the kernel's call; false: there are rings to look at.
    pub fn enter_kernel(&self) -> bool {
        self.unaware.fetch_add(1, Ordering::SeqCst);
        if self.has_rings() {
            self.leave_kernel();
            return false;
        }
        true
    }

    /// It has come back.
    pub fn leave_kernel(&self) {
        if fork::one_less(&self.unaware) == 1 {
            self.try_ready();
        }
    }

    /// The TOS of what it sends has been set.
    fn note_tos(&self, place: usize, fd: i32, level: i32, name: i32) {
        let tos = sys::int_option(fd, level, name).max(0) as u32;
        self.tos[place].store(tos, Ordering::Relaxed);
    }

    /// Something else than before stands beside what it receives: what that is, the kernel has to say first.
    fn note_telling(&self, fd: i32) {
        let _shield = Shield::new();
        let tells = u32::from(beside::tells(fd));
        self.tells.store(tells, Ordering::SeqCst);
        self.flows().for_each(|flow| flow.show_tells(self));
        if self.told.fetch_add(1, Ordering::SeqCst) == u32::MAX {
            self.told.store(1, Ordering::SeqCst);
        }
        self.flows()
            .filter(|flow| flow.is_paired())
            .for_each(Flow::drop_out);
    }

    /// Lets peers use their rings, unless a thread sleeps that would not notice.
    fn try_ready(&self) {
        if self.has_rings()
            && self.unaware.load(Ordering::SeqCst) == 0
            && self.reads.load(Ordering::Relaxed) != 0
            && self.barred.load(Ordering::Relaxed) == 0
        {
            self.flows()
                .filter(|flow| flow.is_paired())
                .for_each(|flow| flow.get_ready(self));
        }
    }

    /// It stays with the kernel from now on; because of a fork, as long as relatives hold it.
    #[cold]
    pub fn bar(&self, reason: Reason) {
        // Nobody does again what a handler that jumps leaves undone.
        let _shield = Shield::new();
        let reason = reason as u32;
        let of_fork = Reason::Forked as u32;
        if reason == Reason::Passed as u32 {
            fork::one_more(&self.held);
        }
        let before = self
            .barred
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |barred| {
                (barred == 0 || barred == of_fork && reason != of_fork).then_some(reason)
            });
        if before == Ok(0) {
            self.flows().for_each(|flow| flow.asked(reason));
        }
    }

    /// Whether it stays with the kernel. Looks now and then whether its relatives are gone.
    fn is_barred(&self) -> bool {
        let of_fork = Reason::Forked as u32;
        let barred = self.barred.load(Ordering::Relaxed);
        if barred != of_fork {
            return barred != 0;
        }
        fork::hold_again(&self.held);
        let since = self.since_alone.fetch_add(1, Ordering::Relaxed);
        if !since.is_multiple_of(LOOK_FOR_RELATIVES_EVERY) {
            return true;
        }
        let Some(_guard) = state::table_lock().lock() else {
            return true;
        };
        let order = Ordering::SeqCst;
        !fork::is_alone(&self.held)
            || self
                .barred
                .compare_exchange(of_fork, 0, order, order)
                .is_err()
    }

    /// Its program requires rings: the broker's log says why its datagrams have none, once for each reason.
    #[cold]
    fn tell_barred(&self, fd: i32, remote: Name) {
        let reason = self.barred.load(Ordering::Relaxed);
        if self.told_barred.swap(reason, Ordering::Relaxed) != reason {
            broker::decline_flow(fd, (remote.ip, remote.port), reason);
        }
    }

    /// Ends all flows: the socket goes, or is to have other ones.
    fn close_flows(&self) {
        self.flows().for_each(Flow::close);
    }

    /// Leaves the rings that peers have left, and lets go of the channels that are over.
    #[cold]
    fn tidy(&self) {
        self.flows().for_each(Flow::tidy);
    }

    /// The flow to a name.
    fn flow_to(&self, name: Name) -> Option<&'static Flow> {
        let own = self.index();
        let last = self.last.load(Ordering::Relaxed).checked_sub(1);
        let last = last.map(flow::at);
        if let Some(flow) = last.filter(|flow| flow.is_of(own) && flow.is_to(name)) {
            return Some(flow);
        }
        let mark = name.mark();
        let high = self.high.load(Ordering::Acquire) as usize;
        let marked = |place: &AtomicU64| {
            let word = place.load(Ordering::Acquire);
            let is_marked = (word >> 32) as u32 == mark;
            flow_in(word).filter(|flow| is_marked && flow.is_of(own) && flow.is_to(name))
        };
        let flow = self.flows.iter().take(high).find_map(marked)?;
        self.last.store(flow.index() + 1, Ordering::Relaxed);
        Some(flow)
    }

    /// The flow to a name, with which datagrams were exchanged by the kernel; a new one if there is none.
    fn flow_by_kernel(&self, fd: i32, name: Name) -> Option<&'static Flow> {
        if self.is_barred() {
            if config::insists() {
                self.tell_barred(fd, name);
            }
            return None;
        }
        let is_new = || match identity::in_borrowed_memory() {
            true => None,
            false => flow::new(self, name),
        };
        self.flow_to(name).or_else(is_new)
    }
}

#[cfg(test)]
mod names {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        let four = Name {
            ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3],
            port: 53,
        };
        for (family, length) in [(libc::AF_INET, 16), (libc::AF_INET6, 28)] {
            let (bytes, count) = four.address(family);
            assert_eq!(count, length);
            assert_eq!(Name::of(bytes.as_ptr().cast(), count), Some(four));
            assert_eq!(Name::of(bytes.as_ptr().cast(), count - 1), None);
        }
        let (mut scoped, count) = four.address(libc::AF_INET6);
        scoped[24] = 1;
        assert_eq!(Name::of(scoped.as_ptr().cast(), count), None);
        let words = NameWords::default();
        words.set(four);
        assert_eq!(words.get(), four);
    }

    #[test]
    fn groups_and_nobody_have_no_flow() {
        let name = |ip: [u8; 16], port| Name { ip, port };
        let mapped = |last: [u8; 4]| {
            let mut ip = [0; 16];
            ip[..12].copy_from_slice(&MAPPED);
            ip[12..].copy_from_slice(&last);
            ip
        };
        assert!(name(mapped([127, 0, 0, 1]), 1).is_single());
        // udp(7): the largest datagrams to either.
        assert_eq!(send::longest(name(mapped([127, 0, 0, 1]), 1)), 65_507);
        assert_eq!(send::longest(name([1; 16], 1)), 65_527);
        assert!(!name(mapped([127, 0, 0, 1]), 0).is_single());
        assert!(!name(mapped([0; 4]), 1).is_single());
        assert!(!name(mapped([224, 0, 0, 1]), 1).is_single());
        assert!(!name(mapped([255; 4]), 1).is_single());
        let mut six = [0; 16];
        assert!(!name(six, 1).is_single());
        six[15] = 1;
        assert!(name(six, 1).is_single());
        six[..2].copy_from_slice(&[0xfe, 0x80]);
        assert!(!name(six, 1).is_single());
        six[0] = 0xff;
        assert!(!name(six, 1).is_single());
    }
}
