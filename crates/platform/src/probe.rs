//! What this kernel can do, found out by doing it; for `fordway doctor`.

use crate::diag::{Asker, Named};
use crate::{memfd, sockinfo};
use fordway_abi::control::Protocol;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;

/// Major and minor version of the running kernel.
pub fn kernel_version() -> Option<(u32, u32)> {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    parse_version(&release)
}

/// Makes a memfd and seals it as a region is sealed (F_SEAL_FUTURE_WRITE: Linux 5.1).
pub fn memfd_seals() -> io::Result<()> {
    let fd = memfd::create("fordway-doctor", 4096)?;
    memfd::seal(&fd)
}

/// SO_PEERPIDFD (Linux 6.5).
pub fn peer_pidfd() -> io::Result<()> {
    let (socket, _other) = UnixStream::pair()?;
    sockinfo::peer_pidfd(&socket).map(drop)
}

/// SO_NETNS_COOKIE (Linux 5.14).
pub fn netns_cookie() -> io::Result<u64> {
    let (socket, _other) = UnixStream::pair()?;
    sockinfo::netns_cookie(&socket)
}

/// Asks sock_diag(7) about a TCP socket of our own. A kernel without inet_diag or tcp_diag knows
/// of none.
pub fn inet_diag() -> io::Result<()> {
    // A listener: in a new namespace the loopback device is down, and connects nobody.
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let named = Named {
        protocol: Protocol::Tcp,
        local: socket.local_addr()?,
        remote: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        cookie: rustix::net::sockopt::socket_cookie(&socket)?,
    };
    match Asker::new()?.find(&named)? {
        Some(_) => Ok(()),
        None => Err(io::Error::other("it does not show TCP sockets")),
    }
}

/// Asks sock_diag(7) who gets datagrams to a UDP socket of our own. A kernel without udp_diag knows of none.
pub fn udp_diag() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let named = Named {
        protocol: Protocol::Udp,
        local: socket.local_addr()?,
        remote: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        cookie: rustix::net::sockopt::socket_cookie(&socket)?,
    };
    match Asker::new()?.find(&named)? {
        Some(_) => Ok(()),
        None => Err(io::Error::other("it does not show UDP sockets")),
    }
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_shown() {
        inet_diag().expect("sock_diag of TCP");
        udp_diag().expect("sock_diag of UDP");
    }

    #[test]
    fn releases_are_read() {
        assert_eq!(parse_version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(parse_version("6.18-rc1"), Some((6, 18)));
        assert_eq!(parse_version("strange"), None);
    }
}
