//! What the kernel says of a socket: the facts on which pairing rests. Nothing here
//! is the word of the program that passed the descriptor (socket(7), tcp(7)).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Since Linux 5.14 (asm-generic/socket.h); not in the libc crate.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// Since Linux 6.5 (asm-generic/socket.h); not in the libc crate.
const SO_PEERPIDFD: libc::c_int = 77;
/// asm-generic/sockios.h; not in the libc crate.
const SIOCATMARK: libc::Ioctl = 0x8905;

/// A socket option of fixed size.
fn option<const BYTES: usize>(
    fd: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<[u8; BYTES]> {
    let mut value = [0u8; BYTES];
    let mut length = BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &mut length,
        )
    };
    match result {
        0 if length as usize == BYTES => Ok(value),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// SO_PEERGROUPS: the supplementary groups of who connected, when it did; of many, none.
pub fn peer_groups(fd: impl AsFd) -> io::Result<Vec<u32>> {
    // More than an ordinary system gives out; the kernel allows 65,536 (NGROUPS_MAX).
    let mut groups = vec![0u32; 1024];
    let mut length = size_of_val(&groups[..]) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the groups.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(length as usize / size_of::<u32>());
    Ok(groups)
}

/// Memory that a UNIX socket's messages take in the queue of its peer (unix(7), SIOCOUTQ), or what TCP's far end has not acknowledged (tcp(7)).
pub fn queued_memory(fd: impl AsFd) -> io::Result<usize> {
    count(fd, libc::TIOCOUTQ)
}

/// Bytes that a receive from a stream could have (unix(7), SIOCINQ), by libc's ioctl, so that a preloaded library adds those
/// in its rings.
pub fn unread_bytes(fd: impl AsFd) -> io::Result<usize> {
    count(fd, libc::FIONREAD)
}

/// Whether the next byte is an urgent one (sockatmark(3)), by libc's ioctl, so that a preloaded library says it of its rings as well.
pub fn is_at_mark(fd: impl AsFd) -> io::Result<bool> {
    count(fd, SIOCATMARK).map(|at| at != 0)
}

fn count(fd: impl AsFd, request: libc::Ioctl) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: each of these requests stores one int.
    let done = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw mut bytes) };
    match done {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// SO_PASSRIGHTS (linux 6.16): from now on nobody can send descriptors to this socket. On a listening one, to those that it accepts.
/// An older kernel does not know it.
pub fn refuse_descriptors(fd: impl AsFd) -> io::Result<()> {
    const SO_PASSRIGHTS: libc::c_int = 83;
    set_option(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, &[0; 4])
}

/// Gives a UNIX socket a number that whoever has a descriptor of it can read, and nobody else: SO_MAX_PACING_RATE, which means
/// nothing there, and is the socket's, not the descriptor's.
pub fn set_key(fd: impl AsFd, key: u64) -> io::Result<()> {
    let name = libc::SO_MAX_PACING_RATE;
    set_option(fd, libc::SOL_SOCKET, name, &key.to_ne_bytes())
}

/// setsockopt(2), by libc's function, so that the preloaded library sees it.
pub fn set_option(fd: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let (at, length) = (value.as_ptr().cast(), value.len() as libc::socklen_t);
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `length` bytes of the value.
    match unsafe { libc::setsockopt(fd, level, name, at, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// SO_NETNS_COOKIE: the number of the network namespace in which the socket was made.
/// On an accepted UNIX socket it is the connecting side's.
pub fn netns_cookie(fd: impl AsFd) -> io::Result<u64> {
    option(&fd, libc::SOL_SOCKET, SO_NETNS_COOKIE).map(u64::from_ne_bytes)
}

/// SO_PEERPIDFD: a pidfd of the process that connected.
pub(crate) fn peer_pidfd(fd: impl AsFd) -> io::Result<OwnedFd> {
    let raw = option(&fd, libc::SOL_SOCKET, SO_PEERPIDFD).map(libc::c_int::from_ne_bytes)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// States of TCP, with the kernel's numbers (net/tcp_states.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TcpState {
    /// Connected.
    Established = 1,
    /// The program has connected, the other end has not answered.
    SynSent = 2,
    /// The other end has connected, its last word is missing.
    SynReceived = 3,
    /// We have shut; the other end has not acknowledged.
    FinWait1 = 4,
    /// We have shut; the other end has acknowledged.
    FinWait2 = 5,
    /// Remains of a connection.
    TimeWait = 6,
    /// Not connected.
    Close = 7,
    /// The other end has shut.
    CloseWait = 8,
    /// The other end had shut, we have as well.
    LastAck = 9,
    /// Listening.
    Listen = 10,
    /// Both have shut at once.
    Closing = 11,
}

impl TcpState {
    /// The state with this number.
    pub fn from_u8(value: u8) -> Option<Self> {
        use TcpState::*;
        [
            Established,
            SynSent,
            SynReceived,
            FinWait1,
            FinWait2,
            TimeWait,
            Close,
            CloseWait,
            LastAck,
            Listen,
            Closing,
        ]
        .into_iter()
        .find(|state| *state as u8 == value)
    }

    /// The word that ss(8) prints.
    pub fn word(self) -> &'static str {
        match self {
            Self::Established => "ESTAB",
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECV",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::TimeWait => "TIME-WAIT",
            Self::Close => "UNCONN",
            Self::CloseWait => "CLOSE-WAIT",
            Self::LastAck => "LAST-ACK",
            Self::Listen => "LISTEN",
            Self::Closing => "CLOSING",
        }
    }

    /// Whether bytes may still move in at least one direction.
    pub fn carries(self) -> bool {
        matches!(
            self,
            Self::Established | Self::FinWait1 | Self::FinWait2 | Self::CloseWait
        )
    }
}

/// A connected TCP socket, as the kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// SO_COOKIE: unique until the machine is started again.
    pub cookie: u64,
    /// SO_NETNS_COOKIE.
    pub netns_cookie: u64,
    /// getsockname, normalised.
    pub local: SocketAddr,
    /// getpeername, normalised.
    pub remote: SocketAddr,
    /// Where TCP is.
    pub state: TcpState,
}

/// Why a descriptor is no connected TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTcp {
    /// Not a TCP socket at all: no honest program passes it.
    #[error("not a TCP socket")]
    Kind,
    /// It is not connected (any more): this happens to honest programs too.
    #[error("not connected")]
    State,
}

/// Reads what a passed descriptor is. The calls may wait for the socket's lock, which a
/// program can hold for as long as it likes.
pub fn tcp_socket(fd: impl AsFd) -> Result<TcpSocket, NotTcp> {
    use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
    let domain = sockopt::socket_domain(&fd).map_err(|_| NotTcp::Kind)?;
    let kind = sockopt::socket_type(&fd).map_err(|_| NotTcp::Kind)?;
    let protocol = sockopt::socket_protocol(&fd).map_err(|_| NotTcp::Kind)?;
    let internet = domain == AddressFamily::INET || domain == AddressFamily::INET6;
    if !internet || kind != SocketType::STREAM || protocol != Some(ipproto::TCP) {
        return Err(NotTcp::Kind);
    }
    let netns_cookie = netns_cookie(&fd).map_err(|_| NotTcp::Kind)?;
    let cookie = sockopt::socket_cookie(&fd).map_err(|_| NotTcp::Kind)?;
    // The first byte of struct tcp_info (linux/tcp.h); a shorter buffer than the whole is allowed.
    let [state] = option::<1>(&fd, libc::IPPROTO_TCP, libc::TCP_INFO).map_err(|_| NotTcp::Kind)?;
    let state = TcpState::from_u8(state).ok_or(NotTcp::Kind)?;
    if !state.carries() {
        return Err(NotTcp::State);
    }
    let local = rustix::net::getsockname(&fd).map_err(|_| NotTcp::State)?;
    let remote = rustix::net::getpeername(&fd)
        .map_err(|_| NotTcp::State)?
        .ok_or(NotTcp::State)?;
    Ok(TcpSocket {
        cookie,
        netns_cookie,
        local: normal(SocketAddr::try_from(local).map_err(|_| NotTcp::State)?),
        remote: normal(SocketAddr::try_from(remote).map_err(|_| NotTcp::State)?),
        state,
    })
}

/// The form in which addresses are compared: IPv4 in IPv6 (RFC 4291, 2.5.5.2) as
/// IPv4, no flow label, no scope.
pub fn normal(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = address.ip().to_canonical();
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn both_ends_of_a_connection_mirror_each_other() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let a = TcpStream::connect(listener.local_addr().expect("name")).expect("connect");
        let (b, _) = listener.accept().expect("accept");
        let (a, b) = (tcp_socket(&a).expect("a"), tcp_socket(&b).expect("b"));
        assert_eq!((a.local, a.remote), (b.remote, b.local));
        assert_eq!(a.netns_cookie, b.netns_cookie);
        assert_ne!(a.cookie, b.cookie);
        assert_eq!(a.state, TcpState::Established);
        assert_eq!(tcp_socket(&listener), Err(NotTcp::State));
    }

    #[test]
    fn ipv4_in_ipv6_is_ipv4() {
        let listener = TcpListener::bind("[::]:0").expect("bind");
        let port = listener.local_addr().expect("name").port();
        let _a = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect");
        let (b, _) = listener.accept().expect("accept");
        let b = tcp_socket(&b).expect("b");
        assert!(b.local.is_ipv4() && b.remote.is_ipv4());
    }

    #[test]
    fn other_descriptors_are_told_apart() {
        let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("pair");
        assert_eq!(tcp_socket(&unix), Err(NotTcp::Kind));
        let udp = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        assert_eq!(tcp_socket(&udp), Err(NotTcp::Kind));
        let file = std::fs::File::open("/proc/self/exe").expect("open");
        assert_eq!(tcp_socket(&file), Err(NotTcp::Kind));
    }
}
