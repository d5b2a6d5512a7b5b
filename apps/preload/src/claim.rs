//! What the broker is told of a socket that is offered. Its descriptor is not passed: a copy
//! would outlive the program's close, and with it the kernel's epoll registrations and the
//! end of the stream. The broker asks the kernel whether the words are true.

use crate::sys::{self, sys};
use fordway_abi::control::{Claim, protocol};

/// asm-generic/socket.h; not in the libc crate.
const SO_NETNS_COOKIE: i32 = 71;
/// A struct sockaddr_in6 is the longest that is understood.
const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// Address, IPv4 in IPv6, and port.
type Name = ([u8; 16], u16);

/// Of a connected TCP socket, or of one end of a pair of AF_UNIX, of which names say nothing.
pub fn of(fd: i32) -> Option<Claim> {
    let mut remote = [0u8; ADDRESS_BYTES];
    let mut length = ADDRESS_BYTES as u32;
    sys!(SYS_getpeername, fd, remote.as_mut_ptr(), &raw mut length).ok()?;
    if remote[..2] == (libc::AF_UNIX as u16).to_ne_bytes() {
        let none = ([0; 16], 0);
        return of_names(fd, none, none, protocol::UNIX);
    }
    of_names(fd, own_name(fd)?, name(&remote)?, protocol::TCP)
}

/// Of a UDP socket that exchanges datagrams with `remote`, under this name of its own.
pub fn of_flow(fd: i32, [local, remote]: [Name; 2]) -> Option<Claim> {
    of_names(fd, local, remote, protocol::UDP)
}

/// How datagrams of a UDP socket come to an address.
pub struct Way {
    /// The name of its own that they have.
    pub source: Name,
    /// Bytes of IP that fit.
    pub mtu: u32,
    /// The address is a broadcast one.
    pub is_to_all: bool,
}

/// How they come to `remote`.
pub fn way_to(fd: i32, remote: &[u8; 16]) -> Option<Way> {
    let (ip, port) = own_name(fd).filter(|(_, port)| *port != 0)?;
    let (source, mtu, is_to_all) = route(remote)?;
    let ip = if is_unspecified(&ip) { source } else { ip };
    Some(Way {
        source: (ip, port),
        mtu,
        is_to_all,
    })
}

fn of_names(
    fd: i32,
    (local_ip, local_port): Name,
    (remote_ip, remote_port): Name,
    protocol: u32,
) -> Option<Claim> {
    Some(Claim {
        cookie: wide_option(fd, libc::SO_COOKIE)?,
        netns_cookie: wide_option(fd, SO_NETNS_COOKIE)?,
        fd: fd as u32,
        thread: sys!(SYS_gettid).unwrap_or(0) as u32,
        local_ip,
        remote_ip,
        local_port,
        remote_port,
        protocol,
    })
}

/// Address and port of its own.
pub fn own_name(fd: i32) -> Option<Name> {
    let mut local = [0u8; ADDRESS_BYTES];
    let mut length = ADDRESS_BYTES as u32;
    sys!(SYS_getsockname, fd, local.as_mut_ptr(), &raw mut length).ok()?;
    name(&local)
}

/// No address of IPv6, or of IPv4 in IPv6.
fn is_unspecified(ip: &[u8; 16]) -> bool {
    let is_mapped = ip[..10] == [0; 10] && ip[10..12] == [0xff; 2];
    ip[12..] == [0; 4] && (is_mapped || ip[..12] == [0; 12])
}

/// Which address of its own the kernel puts into a datagram to `remote`, how long that may be, and whether it goes to
/// everybody, which has to be asked for (ip(7)): connecting a socket sends nothing.
fn route(remote: &[u8; 16]) -> Option<([u8; 16], u32, bool)> {
    let is_mapped = remote[..10] == [0; 10] && remote[10..12] == [0xff; 2];
    let mut address = [0u8; ADDRESS_BYTES];
    let (family, length) = match is_mapped {
        true => (libc::AF_INET, size_of::<libc::sockaddr_in>()),
        false => (libc::AF_INET6, ADDRESS_BYTES),
    };
    address[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    // Any port will do.
    address[3] = 9;
    match is_mapped {
        true => address[4..8].copy_from_slice(&remote[12..]),
        false => address[8..24].copy_from_slice(remote),
    }
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let probe = sys!(SYS_socket, family, kind, 0).ok()? as i32;
    let mut asked = sys!(SYS_connect, probe, address.as_ptr(), length);
    let is_to_all = is_mapped && asked == Err(libc::EACCES);
    if is_to_all {
        sys::set_option(probe, libc::SOL_SOCKET, libc::SO_BROADCAST, 1);
        asked = sys!(SYS_connect, probe, address.as_ptr(), length);
    }
    let source = asked.ok().and_then(|_| own_name(probe));
    let mtu = match is_mapped {
        true => sys::int_option(probe, libc::IPPROTO_IP, libc::IP_MTU),
        false => sys::int_option(probe, libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let _ = sys!(SYS_close, probe);
    let (ip, _) = source.filter(|(ip, _)| !is_unspecified(ip))?;
    Some((ip, mtu.max(0) as u32, is_to_all))
}

/// A socket's option of 64 bits.
pub fn wide_option(fd: i32, option: i32) -> Option<u64> {
    let asked = sys::option(fd, libc::SOL_SOCKET, option, 0u64);
    asked.ok().map(|(value, _)| value)
}

/// Address, IPv4 in IPv6 (RFC 4291, 2.5.5.2), and port of a struct sockaddr_in (the address
/// at 4) or sockaddr_in6 (at 8).
pub fn name(address: &[u8; ADDRESS_BYTES]) -> Option<Name> {
    let port = u16::from_be_bytes([address[2], address[3]]);
    let mut ip = [0; 16];
    match i32::from(u16::from_ne_bytes([address[0], address[1]])) {
        libc::AF_INET => {
            ip[10..12].copy_from_slice(&[0xff, 0xff]);
            ip[12..].copy_from_slice(&address[4..8]);
        }
        libc::AF_INET6 => ip.copy_from_slice(&address[8..24]),
        _ => return None,
    }
    Some((ip, port))
}
