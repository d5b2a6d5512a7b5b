//! Connected TCP sockets of a network namespace, by sock_diag(7): what ss(8) shows,
//! with the cookie by which a socket is known everywhere in Fordway.
//!
//! A netlink socket speaks of the namespace it was made in. For another namespace a
//! helper thread enters it (setns(2) moves one thread only) and ends with the dump.

use crate::netns;
use crate::sockinfo::{self, TcpState};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

/// One connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// SO_COOKIE.
    pub cookie: u64,
    /// Where TCP is.
    pub state: TcpState,
    /// Normalised as [`sockinfo::normal`].
    pub local: SocketAddr,
    /// Normalised as [`sockinfo::normal`].
    pub remote: SocketAddr,
    /// Inode on sockfs, the number that /proc/PID/fd shows.
    pub inode: u32,
    /// Bytes of the stream that were sent, each counted once.
    pub bytes_tx: u64,
    /// Bytes of the stream that were received.
    pub bytes_rx: u64,
}

// linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h
const NLMSG_HEADER_BYTES: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLM_F_REQUEST: u16 = 0x001;
const NLM_F_REQUEST_ACK: u16 = 0x001 | 0x004;
const NLM_F_REQUEST_DUMP: u16 = 0x001 | 0x300;
const REQUEST_BYTES: usize = NLMSG_HEADER_BYTES + 56;
const DIAG_MESSAGE_BYTES: usize = 72;
const INET_DIAG_INFO: u16 = 2;
/// Offsets in struct tcp_info (linux/tcp.h); older kernels give a shorter one.
const INFO_BYTES_ACKED: usize = 120;
const INFO_BYTES_RECEIVED: usize = 128;
const INFO_BYTES_SENT: usize = 200;
const INFO_BYTES_RETRANSMITTED: usize = 208;
/// A dump's skb is at most 32 KB (net/netlink/af_netlink.c); this leaves room.
const RECEIVE_BYTES: usize = 64 << 10;

/// States that are listed: those in which the program still holds the connection or
/// its bytes are still moving.
const STATES: [TcpState; 6] = [
    TcpState::Established,
    TcpState::FinWait1,
    TcpState::FinWait2,
    TcpState::CloseWait,
    TcpState::LastAck,
    TcpState::Closing,
];

/// What is asked of each socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Names and states, without bytes (they are 0). No socket can make the caller wait.
    Names,
    /// Bytes too. The kernel takes each socket's lock for them (linux: tcp_get_info), which a
    /// program can hold for as long as it likes.
    Bytes,
}

/// What the kernel says of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where TCP is.
    pub state: TcpState,
    /// Inode on sockfs; 0 if no process has the socket open any more.
    pub inode: u32,
    /// Effective user of who made or accepted it.
    pub uid: u32,
}

/// A namespace's answers about single sockets: those of the thread that made it. It keeps the
/// namespace alive.
#[derive(Debug)]
pub struct Asker(OwnedFd);

impl Asker {
    /// For the calling thread's namespace.
    pub fn new() -> io::Result<Self> {
        diag_socket().map(Self)
    }

    /// For another namespace, provided that its SO_NETNS_COOKIE is `cookie`.
    pub fn within(namespace: OwnedFd, cookie: u64) -> io::Result<Self> {
        netns::within(namespace.as_fd(), || {
            if own_netns_cookie()? != cookie {
                return Err(io::ErrorKind::NotFound.into());
            }
            Self::new()
        })?
    }

    /// The TCP socket with these names and this cookie, if there is one now. Names and state
    /// come without the socket's lock, so nobody can make the caller wait.
    pub fn find(&self, socket: &Named) -> io::Result<Option<Found>> {
        let request = request_about(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, socket);
        rustix::net::send(&self.0, &request, SendFlags::empty())?;
        let mut buffer = [0u8; 1024];
        // The work is done within send; the answer is there when it returns.
        let (_, length) = rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT)?;
        match buffer.get(..length).and_then(split_message) {
            Some((SOCK_DIAG_BY_FAMILY, body, _)) => {
                let Some(row) = parse(body) else {
                    return Ok(None);
                };
                let is_it = row.cookie == socket.cookie
                    && row.local == sockinfo::normal(socket.local)
                    && row.remote == sockinfo::normal(socket.remote);
                Ok(is_it.then_some(Found {
                    state: row.state,
                    inode: row.inode,
                    uid: read_u32(body, 64).unwrap_or(u32::MAX),
                }))
            }
            Some((NLMSG_ERROR, body, _)) => match read_u32(body, 0).unwrap_or(0) as i32 {
                // Another socket has these names; or none has.
                code if [libc::ENOENT, libc::ESTALE].contains(&-code) => Ok(None),
                code => Err(io::Error::from_raw_os_error(-code)),
            },
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Connected sockets of the calling thread's namespace, IPv4 and IPv6.
pub fn connected(detail: Detail) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        dump(family as u8, detail, &mut rows)?;
    }
    Ok(rows)
}

/// Connected sockets of another namespace, provided that its SO_NETNS_COOKIE is
/// `cookie` (the file it was opened by may lead elsewhere by now).
pub fn connected_in(namespace: OwnedFd, cookie: u64, detail: Detail) -> io::Result<Vec<Row>> {
    netns::within(namespace.as_fd(), || {
        if own_netns_cookie()? != cookie {
            return Err(io::ErrorKind::NotFound.into());
        }
        connected(detail)
    })?
}

/// SO_NETNS_COOKIE of the calling thread's namespace.
pub fn own_netns_cookie() -> io::Result<u64> {
    let kind = SocketType::DGRAM;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    sockinfo::netns_cookie(probe)
}

/// A socket by its names and its cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its own name.
    pub local: SocketAddr,
    /// Its far end's.
    pub remote: SocketAddr,
    /// SO_COOKIE.
    pub cookie: u64,
}

/// Ends connected sockets of another namespace, provided that its SO_NETNS_COOKIE is
/// `cookie`: their programs get ECONNABORTED, and a reset is sent (SOCK_DESTROY, which
/// `ss -K` uses; needs CAP_NET_ADMIN there and CONFIG_INET_DIAG_DESTROY). Returns how many
/// were ended; those that are gone already are not counted.
pub fn destroy_in(namespace: OwnedFd, cookie: u64, victims: &[Named]) -> io::Result<usize> {
    netns::within(namespace.as_fd(), || {
        if own_netns_cookie()? != cookie {
            return Err(io::ErrorKind::NotFound.into());
        }
        destroy(victims)
    })?
}

fn destroy(victims: &[Named]) -> io::Result<usize> {
    let socket = diag_socket()?;
    let mut buffer = [0u8; 1024];
    let mut ended = 0;
    for victim in victims {
        let request = request_about(SOCK_DESTROY, NLM_F_REQUEST_ACK, victim);
        rustix::net::send(&socket, &request, SendFlags::empty())?;
        // The work is done within send; the answer is there when it returns.
        let (_, length) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        let answer = buffer.get(..length).and_then(split_message);
        let Some((NLMSG_ERROR, body, _)) = answer else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match read_u32(body, 0).unwrap_or(0) as i32 {
            0 => ended += 1,
            code if -code == libc::ENOENT => {}
            code => return Err(io::Error::from_raw_os_error(-code)),
        }
    }
    Ok(ended)
}

/// struct nlmsghdr and struct inet_diag_req_v2, about one socket.
fn request_about(kind: u16, flags: u16, socket: &Named) -> [u8; REQUEST_BYTES] {
    let family = match socket.local {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let mut bytes = [0; REQUEST_BYTES];
    bytes[0..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[16] = family as u8;
    bytes[17] = libc::IPPROTO_TCP as u8;
    bytes[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    bytes[24..26].copy_from_slice(&socket.local.port().to_be_bytes());
    bytes[26..28].copy_from_slice(&socket.remote.port().to_be_bytes());
    for (at, name) in [(28, socket.local), (44, socket.remote)] {
        match name.ip() {
            IpAddr::V4(ip) => bytes[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    bytes[64..72].copy_from_slice(&socket.cookie.to_ne_bytes());
    bytes
}

fn diag_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?)
}

fn dump(family: u8, detail: Detail, rows: &mut Vec<Row>) -> io::Result<()> {
    let socket = diag_socket()?;
    rustix::net::send(&socket, &request(family, detail), SendFlags::empty())?;
    let mut buffer = vec![0u8; RECEIVE_BYTES];
    loop {
        let (_, length) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::TRUNC)?;
        let mut rest = buffer
            .get(..length)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        while let Some((kind, body, next)) = split_message(rest) {
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = read_u32(body, 0).unwrap_or(0) as i32;
                    return Err(io::Error::from_raw_os_error(-code));
                }
                SOCK_DIAG_BY_FAMILY => rows.extend(parse(body)),
                _ => {}
            }
            rest = next;
        }
    }
}

/// struct nlmsghdr and struct inet_diag_req_v2.
fn request(family: u8, detail: Detail) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[0..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    bytes[16] = family;
    bytes[17] = libc::IPPROTO_TCP as u8;
    bytes[18] = u8::from(detail == Detail::Bytes) << (INET_DIAG_INFO - 1);
    let states = STATES
        .iter()
        .fold(0u32, |bits, state| bits | 1 << (*state as u8));
    bytes[20..24].copy_from_slice(&states.to_ne_bytes());
    bytes
}

/// The first message of `bytes`: its type, its body, and what follows it.
pub(crate) fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = read_u32(bytes, 0)? as usize;
    let kind = read_u16(bytes, 4)?;
    let body = bytes.get(NLMSG_HEADER_BYTES..length)?;
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, body, next))
}

/// struct inet_diag_msg and the attributes behind it.
fn parse(body: &[u8]) -> Option<Row> {
    let family = libc::c_int::from(*body.first()?);
    let state = TcpState::from_u8(*body.get(1)?)?;
    let local = address(family, body.get(8..24)?, body.get(4..6)?)?;
    let remote = address(family, body.get(24..40)?, body.get(6..8)?)?;
    let cookie = u64::from(read_u32(body, 44)?) | u64::from(read_u32(body, 48)?) << 32;
    let inode = read_u32(body, 68)?;
    let info = attribute(body.get(DIAG_MESSAGE_BYTES..)?, INET_DIAG_INFO).unwrap_or(&[]);
    let count = |offset| read_u64(info, offset);
    let bytes_tx = match (count(INFO_BYTES_SENT), count(INFO_BYTES_RETRANSMITTED)) {
        (Some(sent), Some(again)) => sent.saturating_sub(again),
        _ => count(INFO_BYTES_ACKED).unwrap_or(0),
    };
    Some(Row {
        cookie,
        state,
        local: sockinfo::normal(local),
        remote: sockinfo::normal(remote),
        inode,
        bytes_tx,
        bytes_rx: count(INFO_BYTES_RECEIVED).unwrap_or(0),
    })
}

fn address(family: libc::c_int, ip: &[u8], port: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(port.try_into().ok()?);
    let ip: IpAddr = match family {
        libc::AF_INET => Ipv4Addr::from(<[u8; 4]>::try_from(&ip[..4]).ok()?).into(),
        libc::AF_INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// The payload of the attribute (struct nlattr) of this type.
pub(crate) fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(read_u16(bytes, 0)?);
        let payload = bytes.get(4..length)?;
        if read_u16(bytes, 2)? == wanted {
            return Some(payload);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

fn read_u16(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(
        bytes.get(offset..offset + 2)?.try_into().ok()?,
    ))
}

pub(crate) fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(
        bytes.get(offset..offset + 4)?.try_into().ok()?,
    ))
}

fn read_u64(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(
        bytes.get(offset..offset + 8)?.try_into().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockinfo::tcp_socket;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_listed_with_cookie_names_and_bytes() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let mut a = TcpStream::connect(listener.local_addr().expect("name")).expect("connect");
        let (mut b, _) = listener.accept().expect("accept");
        a.write_all(b"12345").expect("write");
        b.read_exact(&mut [0; 5]).expect("read");
        let (a, b) = (tcp_socket(&a).expect("a"), tcp_socket(&b).expect("b"));
        let rows = connected(Detail::Bytes).expect("dump");
        let row = |cookie| *rows.iter().find(|row| row.cookie == cookie).expect("row");
        assert_eq!(
            (row(a.cookie).local, row(a.cookie).remote),
            (a.local, a.remote)
        );
        assert_eq!(row(a.cookie).state, TcpState::Established);
        assert_eq!((row(a.cookie).bytes_tx, row(b.cookie).bytes_rx), (5, 5));
        let names = connected(Detail::Names).expect("dump");
        let bare = names.iter().find(|row| row.cookie == a.cookie);
        let bare = *bare.expect("the same sockets");
        assert_eq!((bare.local, bare.bytes_tx), (a.local, 0));
        assert_ne!(row(a.cookie).inode, 0);
    }

    #[test]
    fn one_socket_is_found_by_names_and_cookie() {
        let listener = TcpListener::bind("[::]:0").expect("bind");
        let port = listener.local_addr().expect("name").port();
        let a = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect");
        let (b, _) = listener.accept().expect("accept");
        let asker = Asker::new().expect("netlink");
        let named = |stream: &TcpStream| {
            let facts = tcp_socket(stream).expect("facts");
            Named {
                local: facts.local,
                remote: facts.remote,
                cookie: facts.cookie,
            }
        };
        let inode = |stream: &TcpStream| rustix::fs::fstat(stream).expect("fstat").st_ino as u32;
        // The accepted one is IPv4 in IPv6.
        for stream in [&a, &b] {
            let found = asker.find(&named(stream)).expect("ask").expect("found");
            let uid = rustix::process::geteuid().as_raw();
            let is = (found.state, found.inode, found.uid);
            assert_eq!(is, (TcpState::Established, inode(stream), uid));
        }
        let name = named(&a);
        let other_cookie = Named {
            cookie: named(&b).cookie,
            ..name
        };
        // What the kernel takes for "any".
        let any = Named {
            cookie: u64::MAX,
            ..name
        };
        let other_name = Named {
            local: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            ..name
        };
        for wrong in [other_cookie, any, other_name] {
            assert_eq!(asker.find(&wrong).expect("ask"), None);
        }
        let far = named(&b);
        drop(a);
        // Nobody has it open, whatever TCP has still to do for it.
        let left = asker.find(&name).expect("ask");
        assert!(left.is_none_or(|found| found.inode == 0), "{left:?}");
        let found = asker.find(&far).expect("ask").expect("found");
        assert_eq!(found.state, TcpState::CloseWait);
    }

    #[test]
    fn a_socket_is_ended_by_its_names_and_cookie() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let mut a = TcpStream::connect(listener.local_addr().expect("name")).expect("connect");
        let (_b, _) = listener.accept().expect("accept");
        let facts = tcp_socket(&a).expect("facts");
        let victim = |cookie| Named {
            local: facts.local,
            remote: facts.remote,
            cookie,
        };
        match destroy(&[victim(facts.cookie + 1_000_000), victim(facts.cookie)]) {
            Ok(ended) => {
                assert_eq!(ended, 1);
                let kind = a.read(&mut [0]).expect_err("ended").kind();
                assert_eq!(kind, io::ErrorKind::ConnectionAborted);
            }
            // Without CAP_NET_ADMIN, or where the kernel does not have it.
            Err(error) => assert!(
                matches!(error.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP)),
                "{error}"
            ),
        }
    }

    /// The file or the process by which a namespace was known may lead to another one by now.
    #[test]
    fn a_namespace_is_asked_only_if_it_is_the_one_that_is_meant() {
        if !rustix::process::geteuid().is_root() {
            fordway_test_skip::skipped("needs root");
            return;
        }
        let namespace = || netns::anonymous().expect("namespace");
        let meant = namespace();
        let cookie = netns::cookie(meant.as_fd()).expect("cookie");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let stream = TcpStream::connect(listener.local_addr().expect("name")).expect("connect");
        let facts = sockinfo::tcp_socket(&stream).expect("facts");
        let named = Named {
            local: facts.local,
            remote: facts.remote,
            cookie: facts.cookie,
        };
        let kind = |error: io::Error| error.kind();
        let refused = Some(io::ErrorKind::NotFound);
        assert_eq!(Asker::within(namespace(), cookie).err().map(kind), refused);
        let rows = connected_in(namespace(), cookie, Detail::Names);
        assert_eq!(rows.err().map(kind), refused);
        let ended = destroy_in(namespace(), cookie, &[named]);
        assert_eq!(ended.err().map(kind), refused);
        // Nor does it know sockets of any other.
        let asker = Asker::within(meant, cookie).expect("ask");
        assert_eq!(asker.find(&named).expect("find"), None);
    }

    #[test]
    fn malformed_messages_give_nothing() {
        assert!(parse(&[0; 10]).is_none());
        assert!(split_message(&[255; 16]).is_none());
        assert!(attribute(&[0, 0, 0, 0], INET_DIAG_INFO).is_none());
    }
}
