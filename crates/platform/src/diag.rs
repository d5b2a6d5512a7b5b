//! Connected TCP sockets of a network namespace, by sock_diag(7): what ss(8) shows,
//! with the cookie by which a socket is known everywhere in Fordway.
//!
//! Of UDP one socket at a time: which one the kernel gives a datagram with these names. It looks it up as
//! it does for a datagram (linux: udp_dump_one), so the answer is its own choice among sockets that are bound
//! to any address, more closely or connected, and among those of an SO_REUSEPORT group. It is asked
//! about a datagram that came by no device: a socket that is bound to one (SO_BINDTODEVICE) is not found.
//!
//! Of AF_UNIX one socket at a time, by its inode: which socket is its peer.
//!
//! For another namespace a helper thread enters it (setns(2) moves one thread only) and ends with
//! the dump.

use crate::netlink::{self, Socket, read_u32, read_u64};
use crate::netns;
use crate::sockinfo::{self, TcpState};
use fordway_abi::control::Protocol;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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

// linux/sock_diag.h, linux/inet_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const REQUEST_BYTES: usize = 56;
const DIAG_MESSAGE_BYTES: usize = 72;
const INET_DIAG_INFO: u16 = 2;
// linux/unix_diag.h
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
const UNIX_DIAG_MESSAGE_BYTES: usize = 16;
/// INET_DIAG_NOCOOKIE, twice.
const ANY_COOKIE: u64 = u64::MAX;
/// Offsets in struct tcp_info (linux/tcp.h); older kernels give a shorter one.
const INFO_BYTES_ACKED: usize = 120;
const INFO_BYTES_RECEIVED: usize = 128;
const INFO_BYTES_SENT: usize = 200;
const INFO_BYTES_RETRANSMITTED: usize = 208;

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

/// A UDP socket that is bound to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// SO_COOKIE.
    pub cookie: u64,
    /// Normalised as [`sockinfo::normal`].
    pub local: SocketAddr,
    /// Whom it is connected to; port 0: nobody.
    pub remote: SocketAddr,
    /// The device that it is bound to (SO_BINDTODEVICE); 0: none.
    pub device: u32,
}

/// A namespace's answers about single sockets: those of the thread that made it. It keeps the
/// namespace alive.
#[derive(Debug)]
pub struct Asker(Socket);

impl Asker {
    /// For the calling thread's namespace.
    pub fn new() -> io::Result<Self> {
        diag_socket().map(Self)
    }

    /// For another namespace, provided that its SO_NETNS_COOKIE is `cookie`.
    pub fn within(namespace: OwnedFd, cookie: u64) -> io::Result<Self> {
        within(&namespace, cookie, Self::new)
    }

    /// The socket with these names and this cookie, if there is one now; of UDP, if it is the one that
    /// gets datagrams from the remote name to the local one. Names and state come without the socket's
    /// lock, so nobody can make the caller wait.
    pub fn find(&self, socket: &Named) -> io::Result<Option<Found>> {
        let found = self.look(socket)?;
        let found = found.filter(|(row, _)| row.cookie == socket.cookie);
        Ok(found.map(|(row, uid)| Found {
            state: row.state,
            inode: row.inode,
            uid,
        }))
    }

    /// The inode of the peer of the AF_UNIX stream with this inode and this cookie, if there is one now and both ends are open.
    pub fn peer_of_unix(&self, inode: u32, cookie: u64) -> io::Result<Option<u32>> {
        let mut bytes = [0; 24];
        bytes[0] = libc::AF_UNIX as u8;
        bytes[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
        bytes[8..12].copy_from_slice(&inode.to_ne_bytes());
        bytes[12..16].copy_from_slice(&UDIAG_SHOW_PEER.to_ne_bytes());
        bytes[16..24].copy_from_slice(&cookie.to_ne_bytes());
        let request = netlink::request(SOCK_DIAG_BY_FAMILY, netlink::REQUEST, &bytes);
        let Some(answer) = self.answer(&request)? else {
            return Ok(None);
        };
        let body = answer.message()?.body;
        let is_it = body.get(..2) == Some(&[libc::AF_UNIX as u8, libc::SOCK_STREAM as u8])
            && read_u32(body, 4) == Some(inode)
            && read_u64(body, 8) == Some(cookie);
        let attributes = body.get(UNIX_DIAG_MESSAGE_BYTES..).filter(|_| is_it);
        let peer = attributes.and_then(|all| netlink::find_attribute(all, UNIX_DIAG_PEER));
        let peer = peer.and_then(|peer| read_u32(peer, 0));
        Ok(peer.filter(|peer| *peer != 0))
    }

    /// The cookies of all AF_UNIX sockets.
    pub fn unix_cookies(&self) -> io::Result<BTreeSet<u64>> {
        let mut bytes = [0; 24];
        bytes[0] = libc::AF_UNIX as u8;
        bytes[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
        let flags = netlink::REQUEST | netlink::DUMP;
        let request = netlink::request(SOCK_DIAG_BY_FAMILY, flags, &bytes);
        let mut found = BTreeSet::new();
        self.0
            .dump(&request, |message| found.extend(read_u64(message.body, 8)))?;
        Ok(found)
    }

    /// All UDP sockets of a port, of IPv4 and IPv6. The kernel looks at each slot of its table for them, and tells of these
    /// alone.
    pub fn bound_to(&self, port: u16) -> io::Result<Vec<Bound>> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut bytes = [0; REQUEST_BYTES];
            bytes[0] = family as u8;
            bytes[1] = Protocol::Udp.number();
            bytes[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
            bytes[8..10].copy_from_slice(&port.to_be_bytes());
            let flags = netlink::REQUEST | netlink::DUMP;
            let request = netlink::request(SOCK_DIAG_BY_FAMILY, flags, &bytes);
            let mut is_clear = true;
            self.0.dump(&request, |message| {
                let row = parse(message.body).zip(read_u32(message.body, 40));
                match row {
                    Some((row, device)) => found.push(Bound {
                        cookie: row.cookie,
                        local: row.local,
                        remote: row.remote,
                        device,
                    }),
                    None => is_clear = false,
                }
            })?;
            if !is_clear {
                return Err(netlink::invalid());
            }
        }
        found.retain(|bound| bound.local.port() == port);
        Ok(found)
    }

    /// Whether some TCP socket has these names and carries a connection, whatever its cookie.
    pub fn has_connection(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
        let cookie = ANY_COOKIE;
        let found = self.look(&Named {
            protocol: Protocol::Tcp,
            local,
            remote,
            cookie,
        })?;
        Ok(found.is_some_and(|(row, _)| row.state.carries()))
    }

    /// The socket that the kernel finds, and its user, if it has these names.
    fn look(&self, socket: &Named) -> io::Result<Option<(Row, u32)>> {
        let request = request_about(SOCK_DIAG_BY_FAMILY, netlink::REQUEST, socket);
        let Some(answer) = self.answer(&request)? else {
            return Ok(None);
        };
        let message = answer.message()?;
        // A UDP socket may be bound to any address, and have no remote name.
        let has_names = |row: &Row| {
            socket.protocol == Protocol::Udp
                || row.local == sockinfo::normal(socket.local)
                    && row.remote == sockinfo::normal(socket.remote)
        };
        let row = parse(message.body).filter(has_names);
        let uid = read_u32(message.body, 64).unwrap_or(u32::MAX);
        Ok(row.map(|row| (row, uid)))
    }
}

impl Asker {
    /// What answers a question about one socket; `None`: there is none, or it is another one.
    fn answer(&self, request: &[u8]) -> io::Result<Option<netlink::Answer>> {
        let answer = self.0.ask(request)?;
        let message = answer.message()?;
        match message.kind {
            SOCK_DIAG_BY_FAMILY => Ok(Some(answer)),
            netlink::ERROR => match message.outcome() {
                Err(error) if is(&error, &[libc::ENOENT, libc::ESTALE]) => Ok(None),
                outcome => Err(outcome.err().unwrap_or_else(netlink::invalid)),
            },
            _ => Err(netlink::invalid()),
        }
    }
}

impl AsFd for Asker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn is(error: &io::Error, codes: &[i32]) -> bool {
    error
        .raw_os_error()
        .is_some_and(|code| codes.contains(&code))
}

/// Does something in a namespace, provided that its SO_NETNS_COOKIE is `cookie`: the file it was
/// opened by may lead elsewhere by now.
pub(crate) fn within<T: Send>(
    namespace: &OwnedFd,
    cookie: u64,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    netns::within(namespace.as_fd(), || if_cookie(cookie, work))?
}

/// Does something, provided that the calling thread is in the namespace of this SO_NETNS_COOKIE.
fn if_cookie<T>(cookie: u64, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    match own_netns_cookie()? == cookie {
        true => work(),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Connected sockets of the calling thread's namespace, IPv4 and IPv6.
pub fn connected(detail: Detail) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (family, counts, protocol) in [
        (libc::AF_INET, "sockstat", "TCP:"),
        (libc::AF_INET6, "sockstat6", "TCP6:"),
    ] {
        if is_used(counts, protocol) {
            dump(family as u8, detail, &mut rows)?;
        }
    }
    Ok(rows)
}

/// Whether the calling thread's namespace has sockets of a protocol. A dump of one without takes as
/// long as of one with many: the kernel looks into each slot of a table that all namespaces share,
/// which takes some milliseconds.
fn is_used(counts: &str, protocol: &str) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/thread-self/net/{counts}")) else {
        return true;
    };
    let line = text.lines().find_map(|line| line.strip_prefix(protocol));
    // proc(5): "TCP: inuse 5 orphan 0 ..."; those of others are not counted.
    line.is_none_or(|words| words.split_whitespace().nth(1) != Some("0"))
}

/// Connected sockets of another namespace, provided that its SO_NETNS_COOKIE is `cookie`.
pub fn connected_in(namespace: &OwnedFd, cookie: u64, detail: Detail) -> io::Result<Vec<Row>> {
    netns::in_thread(|| connected_after_entering(namespace, cookie, detail))
}

/// As [`connected_in`], by a thread that stays in that namespace. None needs a right to enter its own.
pub fn connected_after_entering(
    namespace: &OwnedFd,
    cookie: u64,
    detail: Detail,
) -> io::Result<Vec<Row>> {
    if own_netns_cookie()? != cookie {
        netns::enter(namespace.as_fd())?;
    }
    if_cookie(cookie, || connected(detail))
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
    /// Whose names they are.
    pub protocol: Protocol,
    /// Its own name.
    pub local: SocketAddr,
    /// Its far end's.
    pub remote: SocketAddr,
    /// SO_COOKIE.
    pub cookie: u64,
}

/// Ends connected TCP sockets of another namespace, provided that its SO_NETNS_COOKIE is
/// `cookie`: their programs get ECONNABORTED, and a reset is sent (SOCK_DESTROY, which
/// `ss -K` uses; needs CAP_NET_ADMIN there and CONFIG_INET_DIAG_DESTROY). Returns how many
/// were ended; those that are gone already are not counted.
pub fn destroy_in(namespace: OwnedFd, cookie: u64, victims: &[Named]) -> io::Result<usize> {
    within(&namespace, cookie, || destroy(victims))
}

fn destroy(victims: &[Named]) -> io::Result<usize> {
    let socket = diag_socket()?;
    let mut ended = 0;
    for victim in victims {
        let request = request_about(SOCK_DESTROY, netlink::REQUEST | netlink::ACK, victim);
        let answer = socket.ask(&request)?;
        let message = answer.message()?;
        if message.kind != netlink::ERROR {
            return Err(netlink::invalid());
        }
        match message.outcome() {
            Ok(()) => ended += 1,
            Err(error) if is(&error, &[libc::ENOENT]) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ended)
}

/// struct inet_diag_req_v2, about one socket.
fn request_about(kind: u16, flags: u16, socket: &Named) -> Vec<u8> {
    let family = match socket.local {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let mut bytes = [0; REQUEST_BYTES];
    // Of UDP the kernel wants a datagram's names: its source first, which is the remote one.
    let (first, second) = match socket.protocol {
        Protocol::Tcp => (socket.local, socket.remote),
        Protocol::Udp => (socket.remote, socket.local),
        // Nobody asks so: it has no names.
        Protocol::Unix => (socket.local, socket.remote),
    };
    bytes[0] = family as u8;
    bytes[1] = socket.protocol.number();
    bytes[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    bytes[8..10].copy_from_slice(&first.port().to_be_bytes());
    bytes[10..12].copy_from_slice(&second.port().to_be_bytes());
    for (at, name) in [(12, first), (28, second)] {
        match name.ip() {
            IpAddr::V4(ip) => bytes[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    bytes[48..56].copy_from_slice(&socket.cookie.to_ne_bytes());
    netlink::request(kind, flags, &bytes)
}

fn diag_socket() -> io::Result<Socket> {
    Socket::open(rustix::net::netlink::SOCK_DIAG)
}

/// By struct inet_diag_req_v2.
fn dump(family: u8, detail: Detail, rows: &mut Vec<Row>) -> io::Result<()> {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[0] = family;
    bytes[1] = libc::IPPROTO_TCP as u8;
    bytes[2] = u8::from(detail == Detail::Bytes) << (INET_DIAG_INFO - 1);
    let states = STATES
        .iter()
        .fold(0u32, |bits, state| bits | 1 << (*state as u8));
    bytes[4..8].copy_from_slice(&states.to_ne_bytes());
    let flags = netlink::REQUEST | netlink::DUMP;
    let request = netlink::request(SOCK_DIAG_BY_FAMILY, flags, &bytes);
    diag_socket()?.dump(&request, |message| {
        if message.kind == SOCK_DIAG_BY_FAMILY {
            rows.extend(parse(message.body));
        }
    })?;
    Ok(())
}

/// struct inet_diag_msg and the attributes behind it.
fn parse(body: &[u8]) -> Option<Row> {
    let family = libc::c_int::from(*body.first()?);
    let state = TcpState::from_u8(*body.get(1)?)?;
    let local = address(family, body.get(8..24)?, body.get(4..6)?)?;
    let remote = address(family, body.get(24..40)?, body.get(6..8)?)?;
    let cookie = u64::from(read_u32(body, 44)?) | u64::from(read_u32(body, 48)?) << 32;
    let inode = read_u32(body, 68)?;
    let info =
        netlink::find_attribute(body.get(DIAG_MESSAGE_BYTES..)?, INET_DIAG_INFO).unwrap_or(&[]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockinfo::tcp_socket;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

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
    fn an_af_unix_socket_is_known_with_its_peer() {
        use std::os::unix::net::UnixStream;
        let inode = |socket: &UnixStream| rustix::fs::fstat(socket).expect("fstat").st_ino as u32;
        let cookie =
            |socket: &UnixStream| rustix::net::sockopt::socket_cookie(socket).expect("cookie");
        let (a, b) = UnixStream::pair().expect("pair");
        let asker = Asker::new().expect("netlink");
        let peer = |of: &UnixStream, cookie| asker.peer_of_unix(inode(of), cookie).expect("asked");
        assert_eq!(peer(&a, cookie(&a)), Some(inode(&b)));
        assert_eq!(peer(&b, cookie(&b)), Some(inode(&a)));
        // Another one's cookie; one that was never given out; a socket that is no stream.
        assert_eq!(peer(&a, cookie(&b)), None);
        assert_eq!(peer(&a, u64::MAX >> 1), None);
        let (other, _far) = std::os::unix::net::UnixDatagram::pair().expect("pair");
        let of_other = rustix::fs::fstat(&other).expect("fstat").st_ino as u32;
        let its = rustix::net::sockopt::socket_cookie(&other).expect("cookie");
        assert_eq!(asker.peer_of_unix(of_other, its).expect("asked"), None);
        let (of_a, of_b) = (cookie(&a), cookie(&b));
        let all = || asker.unix_cookies().expect("dump");
        assert!([of_a, of_b].iter().all(|one| all().contains(one)));
        drop(b);
        assert_eq!(peer(&a, cookie(&a)), None);
        assert!(all().contains(&of_a) && !all().contains(&of_b));
    }

    #[test]
    fn udp_sockets_of_a_port_are_listed() {
        let any = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bind");
        let port = any.local_addr().expect("name").port();
        let asker = Asker::new().expect("netlink");
        let six = UdpSocket::bind("[::1]:0").expect("bind");
        let of_six = six.local_addr().expect("name");
        six.connect("[::1]:9").expect("connect");
        let bound = |port| asker.bound_to(port).expect("dump");
        let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let [one] = bound(port)[..] else {
            panic!("{:?}", bound(port));
        };
        assert_eq!(
            (one.local.port(), one.remote, one.device),
            (port, nobody, 0)
        );
        assert!(one.local.ip().is_unspecified());
        let cookie = rustix::net::sockopt::socket_cookie(&any).expect("cookie");
        assert_eq!(one.cookie, cookie);
        let connected = bound(of_six.port());
        let connected = connected.iter().find(|bound| bound.local == of_six);
        let far = connected.map(|bound| bound.remote.port());
        assert_eq!(far, Some(9));
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
                protocol: Protocol::Tcp,
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
            cookie: ANY_COOKIE,
            ..name
        };
        let other_name = Named {
            local: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            ..name
        };
        for wrong in [other_cookie, any, other_name] {
            assert_eq!(asker.find(&wrong).expect("ask"), None);
        }
        let has = |local, remote| asker.has_connection(local, remote).expect("ask");
        assert!(has(name.local, name.remote) && has(name.remote, name.local));
        // The kernel would show the listener instead.
        assert!(!has(
            name.remote,
            SocketAddr::from((Ipv4Addr::LOCALHOST, 1))
        ));
        let far = named(&b);
        drop(a);
        // Nobody has it open, whatever TCP has still to do for it.
        let left = asker.find(&name).expect("ask");
        assert!(left.is_none_or(|found| found.inode == 0), "{left:?}");
        let found = asker.find(&far).expect("ask").expect("found");
        assert_eq!(found.state, TcpState::CloseWait);
    }

    /// A UDP socket bound to this name, which others may be bound to as well.
    fn udp(name: impl Into<SocketAddr>) -> UdpSocket {
        let name = name.into();
        let family = match name {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(family, kind, flags, None).expect("socket");
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true).expect("reuse");
        rustix::net::bind(&socket, &name).expect("bind");
        socket.into()
    }

    fn name_of(socket: &UdpSocket) -> SocketAddr {
        socket.local_addr().expect("name")
    }

    /// What the kernel says of a socket that is to get datagrams from `remote` to `local`.
    fn receiver(socket: &UdpSocket, local: SocketAddr, remote: SocketAddr) -> Option<Found> {
        let named = Named {
            protocol: Protocol::Udp,
            local,
            remote,
            cookie: rustix::net::sockopt::socket_cookie(socket).expect("cookie"),
        };
        let asker = Asker::new().expect("netlink");
        let found = asker.find(&named).expect("ask");
        for cookie in [ANY_COOKIE, named.cookie + 1_000_000] {
            let wrong = Named { cookie, ..named };
            assert_eq!(asker.find(&wrong).expect("ask"), None);
        }
        found
    }

    const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
    const ALSO_HERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

    #[test]
    fn a_udp_socket_is_found_by_the_datagrams_that_it_gets() {
        let sender = name_of(&udp((HERE, 0)));
        let other_sender = SocketAddr::from((ALSO_HERE, sender.port()));
        let socket = udp((Ipv4Addr::UNSPECIFIED, 0));
        let port = name_of(&socket).port();
        let inode = rustix::fs::fstat(&socket).expect("fstat").st_ino as u32;
        let is = |state| {
            let uid = rustix::process::geteuid().as_raw();
            Some(Found { state, inode, uid })
        };
        let at = |ip: Ipv4Addr| SocketAddr::from((ip, port));
        // Bound to any address; of one that this namespace has not, the kernel says the same.
        for ip in [HERE, ALSO_HERE, Ipv4Addr::new(192, 0, 2, 1)] {
            let found = receiver(&socket, at(ip), sender);
            assert_eq!(found, is(TcpState::Close), "{ip}");
        }
        // Another port is another socket's.
        let beside = SocketAddr::from((HERE, port ^ 1));
        assert_eq!(receiver(&socket, beside, sender), None);
        // Connected, it gets that one's datagrams only, and at one address.
        socket.connect(sender).expect("connect");
        let found = receiver(&socket, at(HERE), sender);
        assert_eq!(found, is(TcpState::Established));
        assert_eq!(receiver(&socket, at(HERE), other_sender), None);
        assert_eq!(receiver(&socket, at(ALSO_HERE), sender), None);
    }

    #[test]
    fn the_udp_socket_that_is_bound_more_closely_gets_the_datagrams() {
        let sender = name_of(&udp((HERE, 0)));
        let any = udp((Ipv4Addr::UNSPECIFIED, 0));
        let name = SocketAddr::from((HERE, name_of(&any).port()));
        assert!(receiver(&any, name, sender).is_some());
        let closer = udp(name);
        assert_eq!(receiver(&any, name, sender), None);
        assert!(receiver(&closer, name, sender).is_some());
        let elsewhere = SocketAddr::from((ALSO_HERE, name.port()));
        assert!(receiver(&any, elsewhere, sender).is_some());
        assert_eq!(receiver(&closer, elsewhere, sender), None);
        // Where it is connected, it gets nobody else's.
        closer.connect((HERE, 9)).expect("connect");
        assert!(receiver(&any, name, sender).is_some());
        assert_eq!(receiver(&closer, name, sender), None);
    }

    #[test]
    fn a_udp_socket_of_ipv6_gets_datagrams_of_ipv4() {
        let sender = name_of(&udp((HERE, 0)));
        let socket = udp((Ipv6Addr::UNSPECIFIED, 0));
        let port = name_of(&socket).port();
        assert!(receiver(&socket, (HERE, port).into(), sender).is_some());
        let six = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        let sender = SocketAddr::from((Ipv6Addr::LOCALHOST, 9));
        assert!(receiver(&socket, six, sender).is_some());
        // Of its own family, the closer one is preferred as well.
        let closer = udp(six);
        assert!(receiver(&closer, six, sender).is_some());
        assert_eq!(receiver(&socket, six, sender), None);
    }

    /// What the kernel says beforehand is what it does.
    #[test]
    fn of_a_group_that_shares_a_port_the_one_that_the_kernel_picks_is_found() {
        let member = |port| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let kind = SocketType::DGRAM;
            let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None);
            let socket = socket.expect("socket");
            rustix::net::sockopt::set_socket_reuseport(&socket, true).expect("reuse");
            rustix::net::bind(&socket, &SocketAddr::from((HERE, port))).expect("bind");
            UdpSocket::from(socket)
        };
        let first = member(0);
        let name = name_of(&first);
        let more = [(); 3].map(|()| member(name.port()));
        let group: Vec<UdpSocket> = std::iter::once(first).chain(more).collect();
        for _ in 0..8 {
            let sender = udp((HERE, 0));
            let found = |socket: &&UdpSocket| receiver(socket, name, name_of(&sender)).is_some();
            let picked: Vec<&UdpSocket> = group.iter().filter(found).collect();
            let [picked] = picked[..] else {
                panic!("{} of them", picked.len());
            };
            sender.send_to(b"x", name).expect("sent");
            picked.recv_from(&mut [0]).expect("it came there");
        }
    }

    #[test]
    fn a_socket_is_ended_by_its_names_and_cookie() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let mut a = TcpStream::connect(listener.local_addr().expect("name")).expect("connect");
        let (_b, _) = listener.accept().expect("accept");
        let facts = tcp_socket(&a).expect("facts");
        let victim = |cookie| Named {
            protocol: Protocol::Tcp,
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
            protocol: Protocol::Tcp,
            local: facts.local,
            remote: facts.remote,
            cookie: facts.cookie,
        };
        let kind = |error: io::Error| error.kind();
        let refused = Some(io::ErrorKind::NotFound);
        assert_eq!(Asker::within(namespace(), cookie).err().map(kind), refused);
        let rows = connected_in(&namespace(), cookie, Detail::Names);
        assert_eq!(rows.err().map(kind), refused);
        let ended = destroy_in(namespace(), cookie, &[named]);
        assert_eq!(ended.err().map(kind), refused);
        // Nor does it know sockets of any other.
        let asker = Asker::within(meant, cookie).expect("ask");
        assert_eq!(asker.find(&named).expect("find"), None);
    }

    #[test]
    fn a_namespace_without_sockets_is_known_for_one() {
        if !rustix::process::geteuid().is_root() {
            fordway_test_skip::skipped("needs root");
            return;
        }
        let namespace = netns::anonymous().expect("namespace");
        let used =
            || [("sockstat", "TCP:"), ("sockstat6", "TCP6:")].map(|(file, of)| is_used(file, of));
        let inside = netns::within(namespace.as_fd(), || {
            let before = used();
            let _four = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bind");
            let four = used();
            let _six = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("bind");
            [before, four, used()]
        });
        let [before, four, six] = inside.expect("entered");
        assert_eq!([before, four, six], [[false; 2], [true, false], [true; 2]]);
    }

    #[test]
    fn malformed_messages_give_nothing() {
        assert!(parse(&[0; 10]).is_none());
    }
}
