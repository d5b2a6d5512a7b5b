//! What stands beside a datagram: control messages (cmsg(3)).
//!
//! # Received
//! Options say what a socket's datagrams tell besides ([`TELLING`]): addresses, TOS, TTL, a time. A record of a ring says its
//! TOS, and when it was sent; all else is the same for each datagram of a flow. So a flow keeps what the kernel has said beside
//! the last one that came by its own way, a [`Template`]. No peer uses its ring before there is one, made since the
//! last of these options was set.
//!
//! # Sent
//! A message may say its TOS, its source, and that it is many datagrams of one length (UDP_SEGMENT). Whatever else one says,
//! the kernel does it.

use super::{MAPPED, Socket};
use crate::sys::{self, sys};
use crate::{faults, libcs, spin};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a struct cmsghdr.
const HEAD: usize = size_of::<libc::cmsghdr>();
/// More control data than that is left to the kernel: all options of [`TELLING`] have less.
const ROOM: usize = 256;
/// Datagrams that a message is cut into at most (linux/udp.h: UDP_MAX_SEGMENTS, as it was first).
pub const SEGMENTS_MAX: usize = 64;
/// A record is not older, whatever the sender says.
const AGE_MAX_NS: u64 = 10_000_000_000;

// asm-generic/socket.h, linux/in6.h; not in the libc crate.
const SO_TIMESTAMP_NEW: i32 = 63;
const SO_TIMESTAMPNS_NEW: i32 = 64;

/// Options of which each adds a message to what is received, always of the same length.
const TELLING: [(i32, i32); 12] = [
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, SO_TIMESTAMP_NEW),
    (libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_RECVTOS),
    (libc::IPPROTO_IP, libc::IP_RECVTTL),
    (libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR),
];

/// Whether datagrams tell more, or less, once this option is set.
pub fn is_telling(level: i32, name: i32) -> bool {
    TELLING.contains(&(level, name))
}

/// Whether the socket behind `fd` tells anything.
pub fn tells(fd: i32) -> bool {
    let is_set = |(level, name): &(i32, i32)| sys::int_option(fd, *level, *name) != 0;
    TELLING.iter().any(is_set)
}

/// A control message: level, kind, and where its bytes are.
type Message = (i32, i32, Range<usize>);

/// The messages in `bytes`; `None` in place of one that is malformed, and of all behind it.
fn messages(bytes: &[u8]) -> impl Iterator<Item = Option<Message>> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let head = bytes.get(at..at + HEAD)?;
        let word =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let length = libcs::count((word(4) as usize) << 32 | word(0) as usize);
        if length < HEAD || length > bytes.len() - at {
            at = bytes.len();
            return Some(None);
        }
        let payload = at + HEAD..at + length;
        at += length.next_multiple_of(8);
        Some(Some((word(8) as i32, word(12) as i32, payload)))
    })
}

/// The program's control data, if it can be read and is not too long.
fn control_of(message: &libc::msghdr, bytes: &mut [u8; ROOM]) -> Option<usize> {
    let (from, count) = (
        message.msg_control.cast::<u8>(),
        libcs::count(message.msg_controllen),
    );
    faults::arm();
    let is_ours = count <= ROOM && faults::can_read_all(from, count);
    is_ours.then(|| {
        // SAFETY: found readable; `bytes` has room.
        unsafe { core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), count) };
        count
    })
}

fn int(bytes: &[u8]) -> Option<i32> {
    bytes.try_into().map(i32::from_ne_bytes).ok()
}

/// What a message of the program asks for beside its bytes.
#[derive(Clone, Copy, Default)]
pub struct Beside {
    /// Something that only the kernel does.
    pub is_kernels: bool,
    pub tos: Option<u8>,
    /// The bytes of each datagram but the last one; 0: it is one.
    pub segment: usize,
    /// The interface that it leaves by; 0: any.
    interface: u32,
    source: Option<[u8; 16]>,
}

impl Beside {
    /// Whether it asks for nothing.
    pub fn is_nothing(&self) -> bool {
        !self.is_kernels
            && self.tos.is_none()
            && self.segment == 0
            && self.interface == 0
            && self.source.is_none()
    }

    /// Of a message that was found readable, to a name of this kind.
    pub fn look(message: &libc::msghdr, is_mapped: bool) -> Self {
        let mut bytes = [0; ROOM];
        let mut beside = Self::default();
        if libcs::count(message.msg_controllen) == 0 {
            return beside;
        }
        let count = control_of(message, &mut bytes);
        let is_understood = count.is_some_and(|count| {
            messages(&bytes[..count]).all(|message| {
                message.is_some_and(|(level, kind, at)| {
                    beside.take((level, kind), &bytes[at], is_mapped).is_some()
                })
            })
        });
        beside.is_kernels = !is_understood;
        beside
    }

    /// Takes one message; `None`: only the kernel understands it.
    fn take(&mut self, kind: (i32, i32), bytes: &[u8], is_mapped: bool) -> Option<()> {
        match kind {
            // ip(7): an octet, and in fact an int, too (linux: ip_cmsg_send).
            (libc::IPPROTO_IP, libc::IP_TOS) if is_mapped => {
                let tos = match bytes {
                    [tos] => i32::from(*tos),
                    _ => int(bytes)?,
                };
                self.tos = Some(u8::try_from(tos).ok()?);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if !is_mapped => {
                self.tos = Some(u8::try_from(int(bytes)?).ok()?);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) if is_mapped && bytes.len() == 12 => {
                self.interface = int(&bytes[..4])? as u32;
                let mut ip = [0; 16];
                ip[..12].copy_from_slice(&MAPPED);
                ip[12..].copy_from_slice(&bytes[4..8]);
                self.source = (bytes[4..8] != [0; 4]).then_some(ip);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if !is_mapped && bytes.len() == 20 => {
                self.interface = int(&bytes[16..])? as u32;
                let ip: [u8; 16] = bytes[..16].try_into().ok()?;
                self.source = (ip != [0; 16]).then_some(ip);
            }
            (libc::SOL_UDP, libc::UDP_SEGMENT) => {
                self.segment = usize::from(u16::from_ne_bytes(bytes.try_into().ok()?));
            }
            _ => return None,
        }
        Some(())
    }

    /// Whether a datagram that says so is one of the flow with this address of its own.
    pub fn suits(&self, own_ip: &[u8; 16]) -> bool {
        !self.is_kernels && self.interface == 0 && self.is_from(own_ip)
    }

    /// Whether it has this source, as far as is known; with another one it is not the flow's, which counts its own.
    pub fn is_from(&self, own_ip: &[u8; 16]) -> bool {
        self.source.is_none_or(|source| source == *own_ip)
    }

    /// How many datagrams `total` bytes are.
    pub fn count(&self, total: usize) -> usize {
        match self.segment {
            0 => 1,
            segment => total.div_ceil(segment).max(1),
        }
    }
}

/// What the kernel has said beside a flow's last datagram. See the module.
#[repr(C)]
pub struct Template {
    /// `Socket::told` when it was made; 0: there is none.
    made: AtomicU32,
    bytes: AtomicU32,
    words: [AtomicU64; ROOM / 8],
}

impl Template {
    /// A new flow has none.
    pub fn forget(&self) {
        self.made.store(0, Ordering::Relaxed);
    }

    /// Whether what stands beside a record of the flow is known, as the socket's options are.
    pub fn is_current(&self, socket: &Socket) -> bool {
        socket.tells.load(Ordering::Acquire) == 0
            || self.made.load(Ordering::Acquire) == socket.told.load(Ordering::Acquire)
    }

    /// Notes what the kernel has just said in a message of `received` bytes; how many datagrams it has put together
    /// (UDP_GRO). One to another address than `own_ip` does not count. Under the lock of the socket's receivers.
    pub fn note(
        &self,
        socket: &Socket,
        message: &libc::msghdr,
        received: usize,
        own_ip: Option<[u8; 16]>,
    ) -> usize {
        let (mut bytes, mut kept) = ([0; ROOM], [0u8; ROOM]);
        // Of an option that is set meanwhile, nothing is known yet.
        let told = socket.told.load(Ordering::Acquire);
        let Some(count) = control_of(message, &mut bytes) else {
            return 1;
        };
        let (mut length, mut datagrams) = (0, 1);
        for told in messages(&bytes[..count]) {
            let Some((level, kind, at)) = told else {
                return datagrams;
            };
            if (level, kind) == (libc::SOL_UDP, libc::UDP_GRO) {
                let each = int(&bytes[at]).unwrap_or(0).max(1) as usize;
                datagrams = received.div_ceil(each).max(1);
                continue;
            }
            let is_other = |ip| own_ip.is_some_and(|own| destination(level, kind, ip) != Some(own));
            let names = matches!(kind, libc::IP_PKTINFO | libc::IPV6_PKTINFO);
            if !is_of_template(level, kind) || names && is_other(&bytes[at.clone()]) {
                return datagrams;
            }
            let whole = at.start - HEAD..at.end;
            kept[length..length + whole.len()].copy_from_slice(&bytes[whole.clone()]);
            length += whole.len().next_multiple_of(8);
        }
        if message.msg_flags & libc::MSG_CTRUNC == 0 {
            self.made.store(0, Ordering::Release);
            for (word, bytes) in self.words.iter().zip(kept.chunks_exact(8)) {
                let bytes = bytes.try_into().unwrap_or([0; 8]);
                word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
            }
            self.bytes.store(length as u32, Ordering::Relaxed);
            self.made.store(told, Ordering::Release);
        }
        datagrams
    }

    /// Says it of a record in a message of the program's, which can be read; the flags that are to be told (MSG_CTRUNC).
    /// Without locks.
    pub fn give(
        &self,
        socket: &Socket,
        message: *mut libc::msghdr,
        (tos, moment): (u8, u64),
    ) -> sys::Result<i32> {
        let mut bytes = [0; ROOM];
        let mut count = 0;
        let tells = socket.tells.load(Ordering::Acquire) != 0;
        // Another thread may be noting what the kernel says now.
        let guard = tells.then(|| socket.receiving.lock());
        if tells && self.is_current(socket) {
            count = (self.bytes.load(Ordering::Relaxed) as usize).min(ROOM);
            for (bytes, word) in bytes.chunks_exact_mut(8).zip(&self.words) {
                bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
            freshen(&mut bytes, count, tos, moment);
        }
        drop(guard);
        // SAFETY: found readable by contract; only named.
        let (control, room, length) = unsafe {
            let message = &raw mut *message;
            let length = &raw mut (*message).msg_controllen;
            let room = libcs::count((*message).msg_controllen);
            ((*message).msg_control.cast::<u8>(), room, length)
        };
        let room = if control.is_null() { 0 } else { room };
        let fits = put(&bytes[..count], room, |at, message| {
            let to = control.wrapping_add(at);
            let can =
                faults::is_user_range(to, message.len()) && faults::is_writable(to, message.len());
            if can {
                // SAFETY: the program's room, found writable.
                unsafe { core::ptr::copy_nonoverlapping(message.as_ptr(), to, message.len()) };
            }
            can
        });
        faults::check(faults::give(length, fits.bytes))?;
        Ok(if fits.is_cut { libc::MSG_CTRUNC } else { 0 })
    }
}

/// Which address packet information says that a datagram was sent to.
fn destination(level: i32, kind: i32, bytes: &[u8]) -> Option<[u8; 16]> {
    match (level, kind) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            let mut ip = [0; 16];
            ip[..12].copy_from_slice(&MAPPED);
            ip[12..].copy_from_slice(bytes.get(8..12)?);
            Some(ip)
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => bytes.get(..16)?.try_into().ok(),
        _ => None,
    }
}

/// Whether a message is one of an option of [`TELLING`].
fn is_of_template(level: i32, kind: i32) -> bool {
    match level {
        libc::SOL_SOCKET => is_telling(level, kind),
        libc::IPPROTO_IP => matches!(
            kind,
            libc::IP_PKTINFO | libc::IP_TOS | libc::IP_TTL | libc::IP_ORIGDSTADDR
        ),
        libc::IPPROTO_IPV6 => matches!(
            kind,
            libc::IPV6_PKTINFO | libc::IPV6_TCLASS | libc::IPV6_HOPLIMIT | libc::IPV6_ORIGDSTADDR
        ),
        _ => false,
    }
}

/// Puts what is a record's own into a copy of a template.
fn freshen(bytes: &mut [u8; ROOM], count: usize, tos: u8, moment: u64) {
    let template = *bytes;
    for (level, kind, at) in messages(&template[..count]).flatten() {
        let place = &mut bytes[at];
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                place.fill(0);
                place[..1].fill(tos);
            }
            (libc::SOL_SOCKET, _) => {
                let (s, ns) = time_of(moment);
                let part = match kind {
                    libc::SO_TIMESTAMP | SO_TIMESTAMP_NEW => ns / 1000,
                    _ => ns,
                };
                for (place, part) in place.chunks_exact_mut(8).zip([s, part]) {
                    place.copy_from_slice(&part.to_ne_bytes());
                }
            }
            _ => {}
        }
    }
}

/// Seconds and nanoseconds since 1970 at a moment, in ticks, by its sender's word.
fn time_of(moment: u64) -> (u64, u64) {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let _ = sys!(SYS_clock_gettime, libc::CLOCK_REALTIME, &raw mut now);
    let age = sys::ticks().saturating_sub(moment);
    let age_ns = age.saturating_mul(1000) / spin::ticks_per_us().max(1);
    let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let then_ns = now_ns.saturating_sub(age_ns.min(AGE_MAX_NS));
    (then_ns / 1_000_000_000, then_ns % 1_000_000_000)
}

/// What fits into the program's room.
struct Fits {
    bytes: usize,
    is_cut: bool,
}

/// Has messages written to the room that there is, each at its place, as the kernel does (linux: put_cmsg): the one that does
/// not fit says how much of it is there, and the next one stands in the place of one that cannot be written.
fn put(bytes: &[u8], room: usize, mut write: impl FnMut(usize, &[u8]) -> bool) -> Fits {
    let (mut used, mut is_cut) = (0, false);
    for (_, _, at) in messages(bytes).flatten() {
        let left = room - used;
        let length = left.min(HEAD + at.len());
        is_cut |= length < HEAD + at.len();
        if length < HEAD {
            continue;
        }
        let mut whole = [0; ROOM];
        whole[..length].copy_from_slice(&bytes[at.start - HEAD..][..length]);
        whole[..8].copy_from_slice(&(length as u64).to_ne_bytes());
        if write(used, &whole[..length]) {
            used += left.min(length.next_multiple_of(8));
        }
    }
    Fits {
        bytes: used,
        is_cut,
    }
}

/// The TOS that control data says.
#[cfg(test)]
pub fn tos_in(bytes: &[u8]) -> Option<u8> {
    messages(bytes).flatten().find_map(|(level, kind, at)| {
        let is_tos = (level, kind) == (libc::IPPROTO_IP, libc::IP_TOS);
        is_tos.then(|| bytes[at.start])
    })
}
