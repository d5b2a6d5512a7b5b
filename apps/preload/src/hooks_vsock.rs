//! AF_VSOCK between domains (vsock(7)), in which no hypervisor and no vsock of the kernel has a part.
//!
//! A stream socket of AF_VSOCK is one of TCP whose address stands for a CID ([`fordway_abi::vsock`]). The program sees
//! `struct sockaddr_vm`, the kernel and all others see addresses of IPv6:
//! ```text
//!   socket                                bound to the domain's own address for it, with no port yet
//!   bind, connect                         CID and port to address and port, on the way to the kernel
//!   accept, getsockname, getpeername      back
//! ```
//! Nothing is kept of it: that a descriptor is such a socket, its own address says, also after dup, fork, exec, and in a
//! message. All else (rings, proof, rules of the filter, the way back to the kernel path) is as with TCP.
//!
//! Nobody else pays for it but who asks for a socket's names, with one system call: a name of the program's is looked at
//! once the kernel has refused its family, and a listener's kind is kept.
//!
//! # Limits
//! * A process whose namespace has no such address has the kernel's AF_VSOCK, and so has who asks for datagrams or
//!   sequenced packets.
//! * VMADDR_CID_LOCAL leads to the domain's own sockets, and cannot be bound to: they are open to others, too.
//! * A port has 16 bits. A port beyond is not available (EADDRNOTAVAIL), and nobody listens there (ECONNREFUSED).
//! * A peer that came by its other addresses, as TCP, has no CID (VMADDR_CID_ANY).
//! * Of the options of level AF_VSOCK there are the sizes of buffers.

use crate::state::{self, kind};
use crate::sys::{self, give, sys};
use crate::{config, faults, real};
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

/// A socket of AF_VSOCK, if it is one of ours.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Option<c_int> {
    let is_stream = kind & 0xf == libc::SOCK_STREAM && matches!(protocol, 0 | libc::AF_VSOCK);
    if domain != libc::AF_VSOCK || !is_stream || !config::is_active() {
        return None;
    }
    let own = own_cid()?;
    let fd = real::socket(libc::AF_INET6, kind, libc::IPPROTO_TCP);
    if fd >= 0 {
        sys::set_option(fd, libc::IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
        // Nothing of vsock(7) waits for more to send.
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        if let Err(error) = bind_to(fd, &name_of(own, 0)) {
            real::close(fd);
            return Some(give(Err(error)) as c_int);
        }
    }
    Some(fd)
}

/// The CID of the caller's namespace: the kernel has an address for what goes to others.
fn own_cid() -> Option<u32> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let fd = sys!(SYS_socket, libc::AF_INET6, kind, 0).ok()? as c_int;
    let far = name_of(CID_HOST, 1);
    let connected = sys!(SYS_connect, fd, &raw const far, size_of_val(&far));
    let own = connected.ok().and_then(|_| own_name(fd));
    let _ = sys!(SYS_close, fd);
    own.and_then(|name| cid_of_name(&name))
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
    asked(fd, libc::SYS_getsockname).filter(|name| cid_of_name(name).is_some())
}

fn bind_to(fd: c_int, name: &sockaddr_in6) -> sys::Result<()> {
    sys!(SYS_bind, fd, &raw const *name, size_of::<sockaddr_in6>()).map(drop)
}

/// The CID that stands in a name which the kernel has read and refused, its port, and the socket's own CID; if both are of AF_VSOCK.
///
/// # Safety
/// The program has passed the name and its length to a call that failed.
unsafe fn refused(fd: c_int, name: *const c_void, length: u32) -> Option<(u32, u32, u32)> {
    let family_is_strange = matches!(sys::errno(), libc::EINVAL | libc::EAFNOSUPPORT);
    let is_long = length as usize >= size_of::<sockaddr_vm>();
    if !family_is_strange || !is_long || !config::is_active() {
        return None;
    }
    let name = name.cast::<sockaddr_vm>();
    if !faults::can_read(name) {
        return None;
    }
    // SAFETY: found readable.
    let name = unsafe { name.read_unaligned() };
    let own = cid_of_name(&own_name(fd)?)?;
    (i32::from(name.svm_family) == libc::AF_VSOCK).then_some((name.svm_cid, name.svm_port, own))
}

/// What connect is to be tried with once more: the kernel's name for one that it refused.
///
/// # Safety
/// As [`refused`].
pub unsafe fn destination(
    fd: c_int,
    name: *const c_void,
    length: u32,
) -> Option<sys::Result<sockaddr_in6>> {
    // SAFETY: by contract.
    let (cid, port, own) = unsafe { refused(fd, name, length) }?;
    let cid = if cid == CID_LOCAL { own } else { cid };
    let port = u16::try_from(port).map_err(|_| libc::ECONNREFUSED);
    Some(port.map(|port| name_of(cid, port)))
}

/// # Safety
/// As bind(2).
pub unsafe fn bind(fd: c_int, name: *const c_void, length: u32) -> c_int {
    // SAFETY: the program's own arguments.
    let result = unsafe { real::bind(fd, name, length) };
    if result == 0 {
        return result;
    }
    let errno = sys::errno();
    // SAFETY: it has just failed.
    let Some((cid, port, own)) = (unsafe { refused(fd, name, length) }) else {
        sys::set_errno(errno);
        return result;
    };
    let port = match port {
        PORT_ANY => Ok(0),
        0 => Err(libc::EADDRNOTAVAIL),
        port => u16::try_from(port).map_err(|_| libc::EADDRNOTAVAIL),
    };
    let is_own = cid == own || cid == CID_ANY;
    let bound = port.and_then(|port| {
        if !is_own {
            return Err(libc::EADDRNOTAVAIL);
        }
        // The port is there at once, for who asks.
        sys::set_option(fd, libc::IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 0);
        bind_to(fd, &name_of(own, port))
    });
    give(bound.map(|()| 0)) as c_int
}

/// # Safety
/// As getsockname(2).
pub unsafe fn getsockname(fd: c_int, name: *mut c_void, length: *mut u32) -> c_int {
    match own_name(fd).filter(|_| is_stream(fd)) {
        Some(own) => give_name(name, length, Some(&own)),
        // SAFETY: the program's own arguments.
        None => unsafe { real::getsockname(fd, name, length) },
    }
}

/// # Safety
/// As getpeername(2).
pub unsafe fn getpeername(fd: c_int, name: *mut c_void, length: *mut u32) -> c_int {
    match asked(fd, libc::SYS_getpeername).filter(|_| is_one(fd)) {
        Some(peer) => give_name(name, length, Some(&peer)),
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
    is_stream(fd) && own_name(fd).is_some()
}

/// Accepts by `by_kernel`, which takes room for a name, from a socket of AF_VSOCK.
pub fn accept(
    name: *mut c_void,
    length: *mut u32,
    by_kernel: impl FnOnce(*mut c_void, *mut u32) -> c_int,
) -> c_int {
    let mut peer = name_of(0, 0);
    let mut peer_length = size_of_val(&peer) as u32;
    let new = by_kernel((&raw mut peer).cast(), &raw mut peer_length);
    if new >= 0 && give_name(name, length, Some(&peer)) != 0 {
        // As the kernel does it.
        let errno = sys::errno();
        real::close(new);
        sys::set_errno(errno);
        return -1;
    }
    new
}

/// Writes a name where the program wants it.
fn give_name(target: *mut c_void, length: *mut u32, name: Option<&sockaddr_in6>) -> c_int {
    // SAFETY: all fields are numbers.
    let mut given: sockaddr_vm = unsafe { core::mem::zeroed() };
    given.svm_family = libc::AF_VSOCK as u16;
    (given.svm_cid, given.svm_port) = match name {
        Some(name) if name.sin6_port != 0 => (
            cid_of_name(name).unwrap_or(CID_ANY),
            u16::from_be(name.sin6_port).into(),
        ),
        // It is not bound yet.
        _ => (CID_ANY, PORT_ANY),
    };
    let write = || {
        faults::check(faults::can_read(length))?;
        // SAFETY: found readable.
        let room = unsafe { length.read_unaligned() };
        if room > i32::MAX as u32 {
            return Err(libc::EINVAL);
        }
        let count = (room as usize).min(size_of_val(&given));
        faults::check(faults::can_write_all(target.cast::<u8>(), count))?;
        // SAFETY: found writable.
        unsafe {
            core::ptr::copy_nonoverlapping((&raw const given).cast::<u8>(), target.cast(), count);
        }
        faults::check(faults::give(length, size_of_val(&given) as u32))
    };
    give(write().map(|()| 0)) as c_int
}

/// What SO_DOMAIN and SO_PROTOCOL say of a socket, where the kernel says `value`.
pub fn understood(fd: c_int, name: c_int, value: c_int) -> c_int {
    let (by_kernel, by_us) = match name {
        libc::SO_DOMAIN => (libc::AF_INET6, libc::AF_VSOCK),
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
            if name == SO_VM_SOCKETS_BUFFER_SIZE {
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
pub fn local_cid(request: usize, argument: usize) -> Option<c_int> {
    if request != IOCTL_VM_SOCKETS_GET_LOCAL_CID || !config::is_active() {
        return None;
    }
    let cid = own_cid()?;
    let given = faults::check(faults::give(argument as *mut u32, cid));
    Some(give(given.map(|()| 0)) as c_int)
}
