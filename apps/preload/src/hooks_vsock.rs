//! AF_VSOCK between domains (vsock(7)), in which no hypervisor and no vsock of the kernel has a part.
//!
//! A socket of AF_VSOCK, a stream or one of sequenced packets, is one of TCP whose address stands for a CID ([`fordway_abi::vsock`]). The program sees
//! `struct sockaddr_vm`, the kernel and all others see addresses of IPv6:
//! ```text
//!   socket                                bound to the domain's own address for it, with no port yet
//!   bind, connect                         CID and port to address and port, on the way to the kernel
//!   accept, getsockname, getpeername      back
//! ```
//! Nothing is kept of it: that a descriptor is such a socket, its own address and hop limit say, also after dup, fork, exec, and
//! in a message. All else (rings, proof, rules of the filter, the way back to the kernel path) is as with TCP.
//!
//! Nobody else pays for it but who asks for a socket's names or binds one, with one system call: a name of connect's is looked
//! at once the kernel has refused its family, and a listener's kind is kept.
//!
//! # Limits
//! * A process whose namespace has no such address has the kernel's AF_VSOCK, and so has who asks for datagrams.
//! * Sequenced packets have limits of their own ([`crate::hooks_records`]).
//! * VMADDR_CID_LOCAL leads to a socket that is bound to it, which no other domain reaches, or else to one that is bound to
//!   the domain's own CID. To any CID (VMADDR_CID_ANY) means to the domain's own.
//! * A port has 16 bits. A port beyond is not available (EADDRNOTAVAIL), and nobody listens there (ECONNREFUSED).
//! * A peer that came by its other addresses, as TCP, has no CID (VMADDR_CID_ANY).
//! * Of the options of level AF_VSOCK there are the sizes of buffers.

use crate::state::{self, kind};
use crate::sys::{self, give, sys};
use crate::transfer::record;
use crate::{config, datagram, faults, hooks_fd, hooks_stack, real, stack};
use core::ffi::{c_int, c_long, c_void};
use core::net::Ipv6Addr;
use fordway_abi::vsock::{CID_HOST, CID_LOCAL, address_of, cid_of};
use libc::{VMADDR_CID_ANY as CID_ANY, VMADDR_PORT_ANY as PORT_ANY, sockaddr_in6, sockaddr_vm};

/// linux/in.h.
const IP_BIND_ADDRESS_NO_PORT: c_int = 24;
/// linux/vm_sockets.h.
const IOCTL_VM_SOCKETS_GET_LOCAL_CID: usize = 0x7b9;
const SO_VM_SOCKETS_BUFFER_SIZE: c_int = 0;
const SO_VM_SOCKETS_BUFFER_MIN_SIZE: c_int = 1;
const SO_VM_SOCKETS_BUFFER_MAX_SIZE: c_int = 2;

/// The hop limit of such sockets, by which they are told from those of TCP with the same address: accepted ones and copies
/// have it, too. Between domains each limit will do.
const HOPS: c_int = 86;
/// The same of those of SOCK_SEQPACKET.
const HOPS_RECORDS: c_int = 87;
/// Longest name that the kernel reads (linux: sockaddr_storage).
const NAME_BYTES_MAX: usize = 128;

/// A socket of AF_VSOCK, if it is one of ours.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Option<c_int> {
    let hops = match kind & 0xf {
        libc::SOCK_STREAM => HOPS,
        libc::SOCK_SEQPACKET => HOPS_RECORDS,
        _ => return None,
    };
    if domain != libc::AF_VSOCK || !matches!(protocol, 0 | libc::AF_VSOCK) || !config::is_active() {
        return None;
    }
    let own = own_cid()?;
    let stream = kind & !0xf | libc::SOCK_STREAM;
    let fd = real::socket(libc::AF_INET6, stream, libc::IPPROTO_TCP);
    if fd >= 0 {
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, hops);
        if hops == HOPS_RECORDS {
            for buffer in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
                sys::set_option(fd, libc::SOL_SOCKET, buffer, record::BUFFER_BYTES);
            }
            // With less (net.core.rmem_max) the longest record might never be there as a whole.
            let room = sys::int_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF);
            if room < 2 * record::BUFFER_BYTES {
                real::close(fd);
                return None;
            }
        }
        // Nothing of vsock(7) waits for more to send.
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        if let Err(error) = bind_without_port(fd, own) {
            real::close(fd);
            return Some(give(Err(error)) as c_int);
        }
    }
    Some(fd)
}

fn bind_without_port(fd: c_int, own: u32) -> sys::Result<()> {
    sys::set_option(fd, libc::IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    bind_to(fd, &name_of(own, 0))
}

/// The CID of the caller's namespace: the kernel has an address for what goes to others.
fn own_cid() -> Option<u32> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let fd = sys!(SYS_socket, libc::AF_INET6, kind, 0).ok()? as c_int;
    let far = name_of(CID_HOST, 1);
    let connected = sys!(SYS_connect, fd, &raw const far, size_of_val(&far));
    let own = connected
        .ok()
        .and_then(|_| asked(fd, libc::SYS_getsockname));
    let _ = sys!(SYS_close, fd);
    cid_of_name(&own?)
}

/// The kernel's name for a CID and a port.
fn name_of(cid: u32, port: u16) -> sockaddr_in6 {
    sockaddr_in6 {
        sin6_family: libc::AF_INET6 as u16,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr {
            s6_addr: address_of(cid).octets(),
        },
        sin6_scope_id: 0,
    }
}

fn cid_of_name(name: &sockaddr_in6) -> Option<u32> {
    cid_of(Ipv6Addr::from(name.sin6_addr.s6_addr))
}

/// What the kernel answers to getsockname or getpeername, if it is a name of IPv6.
fn asked(fd: c_int, number: c_long) -> Option<sockaddr_in6> {
    let mut name = name_of(0, 0);
    let mut length = size_of_val(&name) as u32;
    let (at, length_at) = (&raw mut name, &raw mut length);
    match number {
        libc::SYS_getsockname => sys!(SYS_getsockname, fd, at, length_at),
        _ => sys!(SYS_getpeername, fd, at, length_at),
    }
    .ok()?;
    (i32::from(name.sin6_family) == libc::AF_INET6).then_some(name)
}

/// The name of a socket that is of AF_VSOCK.
fn own_name(fd: c_int) -> Option<sockaddr_in6> {
    if !is_stream(fd) {
        return None;
    }
    let own = asked(fd, libc::SYS_getsockname).filter(|name| cid_of_name(name).is_some());
    own.filter(|_| kind_by_hops(fd).is_some())
}

fn kind_by_hops(fd: c_int) -> Option<c_int> {
    match sys::int_option(fd, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) {
        HOPS => Some(libc::SOCK_STREAM),
        HOPS_RECORDS => Some(libc::SOCK_SEQPACKET),
        _ => None,
    }
}

fn bind_to(fd: c_int, name: &sockaddr_in6) -> sys::Result<()> {
    sys!(SYS_bind, fd, &raw const *name, size_of::<sockaddr_in6>()).map(drop)
}

/// The CID that stands in a name of the program's, and its port.
fn read_name(name: *const c_void, length: u32) -> sys::Result<(u32, u32)> {
    let name = name.cast::<sockaddr_vm>();
    if !(size_of::<sockaddr_vm>()..=NAME_BYTES_MAX).contains(&(length as usize)) {
        return Err(libc::EINVAL);
    }
    faults::check(faults::can_read(name))?;
    // SAFETY: found readable.
    let name = unsafe { name.read_unaligned() };
    match i32::from(name.svm_family) {
        libc::AF_VSOCK => Ok((name.svm_cid, name.svm_port)),
        _ => Err(libc::EINVAL),
    }
}

/// What connect is to be tried with once more: the kernel's name for one whose family it has just refused.
pub fn destination(
    fd: c_int,
    name: *const c_void,
    length: u32,
) -> Option<sys::Result<sockaddr_in6>> {
    if !matches!(sys::errno(), libc::EINVAL | libc::EAFNOSUPPORT) {
        return None;
    }
    let own = cid_of_name(&own_name(fd)?)?;
    let (cid, port) = read_name(name, length).ok()?;
    let Ok(port) = u16::try_from(port) else {
        return Some(Err(libc::ECONNREFUSED));
    };
    let cid = match cid {
        // From its own address nothing leaves the domain.
        cid if own == CID_LOCAL && cid != CID_LOCAL => return Some(Err(libc::ENETUNREACH)),
        CID_LOCAL if own != CID_LOCAL && !is_had(CID_LOCAL, port) => own,
        cid => cid,
    };
    Some(Ok(name_of(cid, port)))
}

/// Whether somebody of the own namespace listens under this name.
fn is_had(cid: u32, port: u16) -> bool {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let Ok(fd) = sys!(SYS_socket, libc::AF_INET6, kind, 0) else {
        return false;
    };
    let fd = fd as c_int;
    // Else what has ended lately counts, too.
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    let bound = bind_to(fd, &name_of(cid, port));
    let _ = sys!(SYS_close, fd);
    bound == Err(libc::EADDRINUSE)
}

/// # Safety
/// As bind(2).
pub unsafe fn bind(fd: c_int, name: *const c_void, length: u32) -> c_int {
    if let Some(word) = stack::of(fd) {
        return hooks_stack::bind(fd, word, name, length);
    }
    let Some((own_name, own)) = own_name(fd).and_then(|name| Some((name, cid_of_name(&name)?)))
    else {
        // SAFETY: the program's own arguments.
        let result = unsafe { real::bind(fd, name, length) };
        if result == 0 && config::is_active() {
            datagram::bound(fd);
            if stack::is_served_end(fd, name, length) {
                hooks_fd::served(fd);
            }
        }
        return result;
    };
    let bound = read_name(name, length).and_then(|(cid, port)| {
        let port = match port {
            _ if own_name.sin6_port != 0 => Err(libc::EINVAL),
            PORT_ANY => Ok(0),
            0 => Err(libc::EADDRNOTAVAIL),
            port => u16::try_from(port).map_err(|_| libc::EADDRNOTAVAIL),
        }?;
        match cid {
            CID_ANY => bind_anew(fd, own, own, port),
            cid if cid == own || cid == CID_LOCAL => bind_anew(fd, own, cid, port),
            _ => Err(libc::EADDRNOTAVAIL),
        }
    });
    give(bound.map(|()| 0)) as c_int
}

/// Gives a socket its port, at once, for who asks, and a CID, which it has `own` of without.
fn bind_anew(fd: c_int, own: u32, cid: u32, port: u16) -> sys::Result<()> {
    sys::set_option(fd, libc::IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 0);
    let name = name_of(cid, port);
    let mut bound = bind_to(fd, &name);
    if bound == Err(libc::EADDRINUSE) {
        // What TCP keeps for a while after a connection (TIME_WAIT), vsock(7) does not know.
        let reuses = sys::int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR);
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        bound = bind_to(fd, &name);
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuses);
    }
    if bound.is_err() {
        // The kernel has taken the address away.
        let _ = bind_without_port(fd, own);
    }
    bound
}

/// A socket is about to listen; `Err`: it may not, without a port. Nothing that came by an earlier listener keeps it from its
/// port ([`bind_anew`]), and nothing that comes by this one will keep the next.
pub fn before_listen(fd: c_int) -> sys::Result<()> {
    match own_name(fd) {
        Some(own) if own.sin6_port == 0 => Err(libc::EINVAL),
        Some(_) => {
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
            Ok(())
        }
        None => Ok(()),
    }
}

/// # Safety
/// As getsockname(2).
pub unsafe fn getsockname(fd: c_int, name: *mut c_void, length: *mut u32) -> c_int {
    if stack::of(fd).is_some() {
        return hooks_stack::name_asked(fd, name, length, false);
    }
    match own_name(fd) {
        Some(own) => give_name(name, length, &own),
        // SAFETY: the program's own arguments.
        None => unsafe { real::getsockname(fd, name, length) },
    }
}

/// # Safety
/// As getpeername(2).
pub unsafe fn getpeername(fd: c_int, name: *mut c_void, length: *mut u32) -> c_int {
    if stack::of(fd).is_some() {
        return hooks_stack::name_asked(fd, name, length, true);
    }
    let peer = is_one(fd).then(|| asked(fd, libc::SYS_getpeername));
    match peer.flatten() {
        Some(peer) => give_name(name, length, &peer),
        // SAFETY: the program's own arguments.
        None => unsafe { real::getpeername(fd, name, length) },
    }
}

/// Whether a descriptor may be a stream socket.
fn is_stream(fd: c_int) -> bool {
    let is_other = matches!(state::look(fd) & kind::MASK, kind::OTHER | kind::EPOLL);
    config::is_active() && !is_other
}

/// Whether a socket is one of AF_VSOCK.
pub fn is_one(fd: c_int) -> bool {
    own_name(fd).is_some()
}

/// SOCK_STREAM or SOCK_SEQPACKET, if a socket is one of AF_VSOCK.
pub fn kind_of(fd: c_int) -> Option<c_int> {
    own_name(fd).and_then(|_| kind_by_hops(fd))
}

/// Accepts by `by_kernel`, which takes room for a name, from what was a socket of AF_VSOCK when it was looked at.
pub fn accept(
    name: *mut c_void,
    length: *mut u32,
    by_kernel: impl FnOnce(*mut c_void, *mut u32) -> c_int,
) -> c_int {
    let mut peer = [0u8; NAME_BYTES_MAX];
    let mut peer_length = peer.len() as u32;
    let new = by_kernel(peer.as_mut_ptr().cast(), &raw mut peer_length);
    if new < 0 {
        return new;
    }
    let given = match is_one(new) {
        true => {
            // SAFETY: the kernel has put one there.
            let peer = unsafe { peer.as_ptr().cast::<sockaddr_in6>().read_unaligned() };
            give_name(name, length, &peer)
        }
        false => give_bytes(
            name,
            length,
            &peer[..(peer_length as usize).min(NAME_BYTES_MAX)],
        ),
    };
    if given != 0 {
        // As the kernel does it.
        let errno = sys::errno();
        real::close(new);
        sys::set_errno(errno);
        return -1;
    }
    new
}

/// Writes a name as the program knows it where the program wants it.
fn give_name(target: *mut c_void, length: *mut u32, name: &sockaddr_in6) -> c_int {
    let (cid, port) = match u16::from_be(name.sin6_port) {
        // It is not bound yet.
        0 => (CID_ANY, PORT_ANY),
        port => (cid_of_name(name).unwrap_or(CID_ANY), port.into()),
    };
    // struct sockaddr_vm (linux/vm_sockets.h).
    let mut given = [0; size_of::<sockaddr_vm>()];
    given[..2].copy_from_slice(&(libc::AF_VSOCK as u16).to_ne_bytes());
    given[4..8].copy_from_slice(&port.to_ne_bytes());
    given[8..12].copy_from_slice(&cid.to_ne_bytes());
    give_bytes(target, length, &given)
}

fn give_bytes(target: *mut c_void, length: *mut u32, given: &[u8]) -> c_int {
    give(faults::give_bytes(target, length, given).map(|()| 0)) as c_int
}

/// What SO_DOMAIN, SO_PROTOCOL and SO_TYPE say of a socket, where the kernel says `value`.
pub fn understood(fd: c_int, name: c_int, value: c_int) -> c_int {
    let (by_kernel, by_us) = match name {
        libc::SO_DOMAIN => (libc::AF_INET6, libc::AF_VSOCK),
        libc::SO_TYPE => match state::records(fd) {
            Some(_) => return libc::SOCK_SEQPACKET,
            None => return value,
        },
        _ => (libc::IPPROTO_TCP, 0),
    };
    match value == by_kernel && is_one(fd) {
        true => by_us,
        false => value,
    }
}

/// Sets an option of level AF_VSOCK; `None` if the socket is none of ours.
pub fn set_option(fd: c_int, name: c_int, value: *const c_void, length: u32) -> Option<c_int> {
    if !is_one(fd) {
        return None;
    }
    let set = || match name {
        SO_VM_SOCKETS_BUFFER_SIZE
        | SO_VM_SOCKETS_BUFFER_MIN_SIZE
        | SO_VM_SOCKETS_BUFFER_MAX_SIZE => {
            let value = value.cast::<u64>();
            if (length as usize) < size_of::<u64>() {
                return Err(libc::EINVAL);
            }
            faults::check(faults::can_read(value))?;
            if name == SO_VM_SOCKETS_BUFFER_SIZE && state::records(fd).is_none() {
                // SAFETY: found readable.
                let bytes = unsafe { value.read_unaligned() }.min(i32::MAX as u64) as c_int;
                sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes);
                sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
            }
            // The others bound it; TCP's buffers have bounds of their own.
            Ok(0)
        }
        _ => Err(libc::ENOPROTOOPT),
    };
    Some(give(set()) as c_int)
}

/// The answer to the ioctl that asks for the own CID, which programs ask of /dev/vsock.
pub fn local_cid(fd: c_int, request: usize, argument: usize) -> Option<c_int> {
    if request != IOCTL_VM_SOCKETS_GET_LOCAL_CID || !config::is_active() {
        return None;
    }
    sys!(SYS_fcntl, fd, libc::F_GETFD).ok()?;
    let cid = own_cid()?;
    let given = faults::check(faults::give(argument as *mut u32, cid));
    Some(give(given.map(|()| 0)) as c_int)
}
