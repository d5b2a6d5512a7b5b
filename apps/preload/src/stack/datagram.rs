//! Datagrams under a stack: one message of the pair each, with a head (`fordway_abi::stack::Head`) before the program's bytes.

use super::stream::is_closed;
use super::{CONNECTED, SIX, give_name, names, read_name, take_error};
use crate::sys::{self, give, sys};
use crate::transfer::Buffers;
use crate::{faults, libcs, real};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::net::Ipv6Addr;
use fordway_abi::stack::{DATAGRAM_BYTES_MAX, HEAD_BYTES, Head, INET, Name, head, state};
use zerocopy::IntoBytes;

/// Parts of a datagram for which there is room without much ado, the head's among them.
const PARTS_FEW: usize = 8;
const PARTS_MAX: usize = libc::UIO_MAXIOV as usize + 1;
/// linux/in.h, linux/in6.h: what stands beside a datagram.
const IP_PKTINFO: c_int = 8;
const IPV6_PKTINFO: c_int = 50;
const IP_TTL: c_int = 2;
const IPV6_HOPLIMIT: c_int = 52;

/// Where the name of a datagram's sender goes, or stands.
#[derive(Clone, Copy)]
pub enum Place {
    /// Nowhere.
    None,
    /// Name and its length.
    Name(*mut c_void, *mut u32),
    /// A message.
    Message(*mut libc::msghdr),
}

/// Parts of a datagram, behind its head.
struct Parts<const N: usize> {
    parts: [MaybeUninit<libc::iovec>; N],
    count: usize,
}

impl<const N: usize> Parts<N> {
    fn new(head: &mut Head, buffers: &Buffers) -> sys::Result<Self> {
        let mut made = Self {
            parts: [const { MaybeUninit::uninit() }; N],
            count: 1,
        };
        made.parts[0].write(libc::iovec {
            iov_base: head.as_mut_bytes().as_mut_ptr().cast(),
            iov_len: HEAD_BYTES,
        });
        buffers.pieces(0, buffers.total, |base, length| {
            if made.count == N {
                return Err(libc::EMSGSIZE);
            }
            made.parts[made.count].write(libc::iovec {
                iov_base: base.cast(),
                iov_len: length,
            });
            made.count += 1;
            Ok(())
        })?;
        Ok(made)
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: a msghdr of zeros is an empty message.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = self.parts.as_mut_ptr().cast();
        message.msg_iovlen = self.count as _;
        message
    }
}

/// A datagram into the program's buffers.
pub fn receive_datagram(
    fd: c_int,
    word: u32,
    buffers: sys::Result<Buffers>,
    flags: c_int,
    place: Place,
) -> isize {
    let received = buffers.and_then(|buffers| match buffers.part_count() < PARTS_FEW {
        true => receive_parts::<PARTS_FEW>(fd, word, &buffers, flags, place),
        false => receive_many_parts(fd, word, &buffers, flags, place),
    });
    give(received)
}

#[cold]
#[inline(never)]
fn receive_many_parts(
    fd: c_int,
    word: u32,
    buffers: &Buffers,
    flags: c_int,
    place: Place,
) -> sys::Result<usize> {
    receive_parts::<PARTS_MAX>(fd, word, buffers, flags, place)
}

#[inline(always)]
fn receive_parts<const N: usize>(
    fd: c_int,
    word: u32,
    buffers: &Buffers,
    flags: c_int,
    place: Place,
) -> sys::Result<usize> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(libc::EAGAIN);
    }
    // UDP does not know it, and the pair would refuse it (linux: udp_recvmsg).
    let flags = flags & !libc::MSG_OOB;
    let mut head = Head::default();
    let mut parts = Parts::<N>::new(&mut head, buffers)?;
    let (message, received) = loop {
        let mut message = parts.message();
        // SAFETY: a message of ours, with the program's parts.
        let received = unsafe { real::recvmsg(fd, &raw mut message, flags) };
        let received = usize::try_from(received).map_err(|_| sys::errno())?;
        if received < HEAD_BYTES {
            // The program has shut it, or its stack has ended.
            return match is_closed(fd) && names(fd).is_err() {
                true => Err(libc::ENETDOWN),
                false => end(place).map(|()| 0),
            };
        }
        if head.flags & head::FAILED == 0 {
            break (message, received);
        }
        failed(fd, word, flags)?;
    };
    match place {
        Place::None => {}
        Place::Name(target, _) if target.is_null() => {}
        Place::Name(target, length) => {
            give_name(target, length, &head.name)?;
        }
        // SAFETY: the program's own message, found readable with its parts.
        Place::Message(target) => unsafe {
            let told = message.msg_flags & libc::MSG_TRUNC | flags & libc::MSG_CMSG_CLOEXEC;
            give_message(target, word, &head, told)?;
        },
    }
    Ok(received - HEAD_BYTES)
}

/// The end of a socket that was shut comes from nobody.
#[cold]
fn end(place: Place) -> sys::Result<()> {
    let length = match place {
        Place::None => return Ok(()),
        Place::Name(target, _) if target.is_null() => return Ok(()),
        Place::Name(_, length) => length,
        Place::Message(target) => {
            // SAFETY: the program's own message, found readable with its parts; its fields are only named.
            let (length, room, flags) = unsafe {
                (
                    &raw mut (*target).msg_namelen,
                    &raw mut (*target).msg_controllen,
                    &raw mut (*target).msg_flags,
                )
            };
            faults::give(room, 0);
            faults::give(flags, 0);
            length
        }
    };
    faults::check(faults::give(length, 0))
}

/// A message that says that an error waits; nothing, if it was told meanwhile.
#[cold]
fn failed(fd: c_int, word: u32, flags: c_int) -> sys::Result<()> {
    if flags & libc::MSG_PEEK != 0 {
        // The error is told once also to who looks only (linux: sock_error).
        let mut head = Head::default();
        let (at, count) = (head.as_mut_bytes().as_mut_ptr(), HEAD_BYTES);
        let _ = sys!(SYS_recvfrom, fd, at, count, libc::MSG_DONTWAIT, 0, 0);
    }
    match take_error(fd, word) {
        0 => Ok(()),
        error => Err(error),
    }
}

/// What a message says besides the bytes.
///
/// # Safety
/// `target` is a message of the program's that can be read.
unsafe fn give_message(
    target: *mut libc::msghdr,
    word: u32,
    head: &Head,
    told: c_int,
) -> sys::Result<()> {
    // SAFETY: by contract; the fields are only named.
    let (at, length, control, room, room_at, flags_at) = unsafe {
        (
            (*target).msg_name,
            &raw mut (*target).msg_namelen,
            (*target).msg_control.cast::<u8>(),
            libcs::count((*target).msg_controllen),
            &raw mut (*target).msg_controllen,
            &raw mut (*target).msg_flags,
        )
    };
    if !at.is_null() {
        give_name(at, length, &head.name)?;
    }
    let (mut told, mut used) = (told, 0);
    for (header, count) in beside(word, head).into_iter().flatten() {
        let (mut header, left) = (header, room - used);
        if left < HEADER_BYTES || control.is_null() {
            told |= libc::MSG_CTRUNC;
            break;
        }
        // linux: put_cmsg.
        let given = count.min(left);
        if given < count {
            told |= libc::MSG_CTRUNC;
            header[..8].copy_from_slice(&given.to_ne_bytes());
        }
        let at = control.wrapping_add(used);
        faults::check(faults::can_write_all(at, given))?;
        // SAFETY: found writable.
        unsafe { core::ptr::copy_nonoverlapping(header.as_ptr(), at, given) };
        used += count.next_multiple_of(8).min(left);
    }
    faults::give(room_at, used as _);
    faults::give(flags_at, told);
    Ok(())
}

/// Bytes of a cmsghdr, and of the longest control message here.
const HEADER_BYTES: usize = 16;
const BESIDE_BYTES_MAX: usize = 40;

/// A control message and its length.
type Beside = ([u8; BESIDE_BYTES_MAX], usize);

/// A control message (struct cmsghdr) but for its data.
fn control_message((at_level, number): (c_int, c_int), data: usize) -> Beside {
    let mut bytes = [0u8; BESIDE_BYTES_MAX];
    let length = HEADER_BYTES + data;
    bytes[..8].copy_from_slice(&(length as u64).to_ne_bytes());
    bytes[8..12].copy_from_slice(&at_level.to_ne_bytes());
    bytes[12..16].copy_from_slice(&number.to_ne_bytes());
    (bytes, length)
}

/// What the program wants to know of a datagram, in Linux's order.
fn beside(word: u32, head: &Head) -> [Option<Beside>; 2] {
    let info = (head.flags & head::PACKET_INFO != 0).then(|| packet_info(word, head));
    let hops = (head.flags & head::HOP_LIMIT != 0).then(|| {
        let of = match word & SIX != 0 {
            true => (libc::IPPROTO_IPV6, IPV6_HOPLIMIT),
            false => (libc::IPPROTO_IP, IP_TTL),
        };
        let (mut bytes, length) = control_message(of, 4);
        let hops = head.flags >> head::HOPS_SHIFT & 0xff;
        bytes[16..20].copy_from_slice(&hops.to_ne_bytes());
        (bytes, length)
    });
    [info, hops]
}

fn is_of_loop(sender: &Name) -> bool {
    let six = Ipv6Addr::from(sender.address);
    match sender.family {
        INET => sender.address[0] == 127,
        _ => six.is_loopback() || six.to_ipv4_mapped().is_some_and(|four| four.is_loopback()),
    }
}

/// To which address it came, and which one of our own answers (in_pktinfo, in6_pktinfo).
fn packet_info(word: u32, head: &Head) -> Beside {
    // As the stack counts: the loop is 1, and the link, the only other one, has no number.
    let interface = u32::from(is_of_loop(&head.name));
    if word & SIX != 0 {
        let (mut bytes, length) = control_message((libc::IPPROTO_IPV6, IPV6_PKTINFO), 20);
        bytes[16..32].copy_from_slice(&head.own);
        bytes[32..36].copy_from_slice(&interface.to_ne_bytes());
        return (bytes, length);
    }
    let (mut bytes, length) = control_message((libc::IPPROTO_IP, IP_PKTINFO), 12);
    let (came_to, answers) = (&head.own[..4], &head.own[4..8]);
    // A stack of an older version says nothing of that.
    let answers = if answers == [0; 4] { came_to } else { answers };
    bytes[16..20].copy_from_slice(&interface.to_ne_bytes());
    bytes[20..24].copy_from_slice(answers);
    bytes[24..28].copy_from_slice(came_to);
    (bytes, length)
}

/// The own address that a message asks to go from (IP_PKTINFO, IPV6_PKTINFO beside it).
///
/// # Safety
/// A message of the program's that can be read.
pub unsafe fn source_of(message: &libc::msghdr, word: u32) -> [u8; 16] {
    let mut own = [0u8; 16];
    let room = libcs::count(message.msg_controllen);
    let control = message.msg_control.cast::<u8>();
    if room < 28 || control.is_null() || !faults::can_read_all(control, room) {
        return own;
    }
    let mut at = 0;
    while at + 16 <= room {
        // SAFETY: found readable.
        let number = |from: usize| unsafe { control.add(at + from).cast::<u32>().read_unaligned() };
        let length = libcs::count(number(0) as usize);
        if length < 16 || length > room - at {
            break;
        }
        match (number(8) as c_int, number(12) as c_int) {
            (libc::IPPROTO_IP, IP_PKTINFO) if length >= 28 && word & SIX == 0 => {
                own[..4].copy_from_slice(&number(20).to_ne_bytes());
            }
            (libc::IPPROTO_IPV6, IPV6_PKTINFO) if length >= 36 && word & SIX != 0 => {
                for (index, place) in own.chunks_exact_mut(4).enumerate() {
                    place.copy_from_slice(&number(16 + 4 * index).to_ne_bytes());
                }
            }
            _ => {}
        }
        at += length.next_multiple_of(8);
    }
    own
}

/// A datagram of the program's buffers, to a name or to the far end that the socket is connected to.
pub fn send_datagram(
    fd: c_int,
    word: u32,
    buffers: sys::Result<Buffers>,
    flags: c_int,
    (target, length): (*const c_void, u32),
    own: [u8; 16],
) -> isize {
    let sent = buffers.and_then(|buffers| {
        if flags & libc::MSG_OOB != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let name = match target.is_null() {
            true => Name::default(),
            false => read_name(word, target, length)?,
        };
        if name.family != 0 && name.port == 0 {
            return Err(libc::EINVAL);
        }
        if name.family == 0 && word & CONNECTED == 0 && names(fd)?.state != state::CONNECTED {
            return Err(libc::EDESTADDRREQ);
        }
        if buffers.total > DATAGRAM_BYTES_MAX {
            return Err(libc::EMSGSIZE);
        }
        let mut head = Head {
            name,
            own,
            ..Head::default()
        };
        match buffers.part_count() < PARTS_FEW {
            true => send_parts::<PARTS_FEW>(fd, &mut head, &buffers, flags),
            false => send_many_parts(fd, &mut head, &buffers, flags),
        }
    });
    give(sent)
}

#[cold]
#[inline(never)]
fn send_many_parts(
    fd: c_int,
    head: &mut Head,
    buffers: &Buffers,
    flags: c_int,
) -> sys::Result<usize> {
    send_parts::<PARTS_MAX>(fd, head, buffers, flags)
}

#[inline(always)]
fn send_parts<const N: usize>(
    fd: c_int,
    head: &mut Head,
    buffers: &Buffers,
    flags: c_int,
) -> sys::Result<usize> {
    let mut parts = Parts::<N>::new(head, buffers)?;
    let message = parts.message();
    let flags = flags & libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: a message of ours, with the program's parts.
    let sent = unsafe { real::sendmsg(fd, &raw const message, flags) };
    match usize::try_from(sent) {
        Ok(sent) => Ok(sent.saturating_sub(HEAD_BYTES)),
        Err(_) => Err(match sys::errno() {
            libc::ECONNRESET | libc::ECONNREFUSED | libc::ENOTCONN => libc::ENETDOWN,
            error => error,
        }),
    }
}
