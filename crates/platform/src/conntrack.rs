//! Connections as a namespace's connection tracking knows them, by ctnetlink
//! (linux/netfilter/nfnetlink_conntrack.h): the kernel's proof that a handshake has passed
//! the rules, and of which two pairs of names are one connection where addresses are translated.
//! Only root of the namespace can write there.
//!
//! The kernel looks a connection up by the names of either direction, so one question
//! is enough, whoever connected. It tracks only where a rule in force looks at
//! connections or translates them; elsewhere nothing is known, and nothing is proven.

use crate::netlink::{self, Answer, Socket, attribute, find_attribute, invalid, nested};
use crate::{diag, netns};
use fordway_abi::control::Protocol;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// There once the kernel has connection tracking, in every namespace.
const LOADED: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

// linux/netfilter/nfnetlink.h, linux/netfilter/nfnetlink_conntrack.h
const NFNL_HEADER_BYTES: usize = 4;
const CT_NEW: u16 = 1 << 8;
const CT_GET: u16 = 1 << 8 | 1;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMEOUT: u16 = 7;
const CTA_ZONE: u16 = 18;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_TUPLE_ZONE: u16 = 3;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
/// linux/netfilter/nf_conntrack_tcp.h, enum tcp_conntrack.
const TCP_CONNTRACK_ESTABLISHED: u8 = 3;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
/// enum ip_conntrack_status: of TCP, the third packet of the handshake has passed.
const IPS_ASSURED: u32 = 1 << 2;
/// The entry is taken out of the table.
const IPS_DYING: u32 = 1 << 9;

/// The socket at the far end of a connection, as connection tracking has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarEnd {
    /// Its local name, and its remote one.
    pub names: (SocketAddr, SocketAddr),
    /// The handshake has passed, both ways, and neither end has closed.
    pub is_established: bool,
}

/// Whether the kernel has connection tracking.
fn is_loaded() -> bool {
    Path::new(LOADED).exists()
}

/// A namespace's answers about single connections: those of the thread that made it. It keeps
/// the namespace alive.
#[derive(Debug)]
pub struct Asker(Socket);

impl Asker {
    /// For the calling thread's namespace; `None` where the kernel has no connection tracking,
    /// which a question would load.
    pub fn new() -> io::Result<Option<Self>> {
        match is_loaded() {
            true => netfilter_socket().map(|socket| Some(Self(socket))),
            false => Ok(None),
        }
    }

    /// For the namespace of a socket, provided that its SO_NETNS_COOKIE is `cookie`.
    pub fn beside(socket: impl AsFd, cookie: u64) -> io::Result<Option<Self>> {
        match is_loaded() {
            true => diag::within(&netns::of_socket(socket)?, cookie, Self::new),
            false => Ok(None),
        }
    }

    /// The far end of the connection of a socket with these names, if the kernel knows it.
    pub fn far_end(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<Option<FarEnd>> {
        far_end(&self.0.ask(&question(local, remote))?, (local, remote))
    }

    /// Has the kernel know these connections for so many seconds more, as if a packet of each had
    /// just passed. What it does not know stays unknown. Returns how many it knows.
    pub fn keep(
        &self,
        protocol: Protocol,
        connections: &[(SocketAddr, SocketAddr)],
        seconds: u32,
    ) -> io::Result<usize> {
        let mut known = 0;
        for (one, other) in connections {
            let mut body = tuple(protocol, *one, *other);
            body.extend(attribute(CTA_TIMEOUT, &seconds.to_be_bytes()));
            let flags = netlink::REQUEST | netlink::ACK;
            let request = request((CT_NEW, flags), *one, &body);
            known += usize::from(is_done(&self.0.ask(&request)?)?);
        }
        Ok(known)
    }

    fn handshake_has_passed(&self, one: SocketAddr, other: SocketAddr) -> io::Result<bool> {
        let answer = self.0.ask(&question(one, other))?;
        status(&answer).map(|bits| bits & IPS_ASSURED != 0)
    }
}

/// Whether the kernel of `namespace` has let the handshake of the TCP connection between
/// these two names pass, whichever of them connected.
pub(crate) fn handshake_has_passed(
    namespace: BorrowedFd<'_>,
    (one, other): (SocketAddr, SocketAddr),
) -> io::Result<bool> {
    netns::within(namespace, || match Asker::new()? {
        Some(asker) => asker.handshake_has_passed(one, other),
        None => Ok(false),
    })?
}

/// As [`Asker::keep`], in `namespace`.
pub(crate) fn keep(
    namespace: BorrowedFd<'_>,
    protocol: Protocol,
    connections: &[(SocketAddr, SocketAddr)],
    seconds: u32,
) -> io::Result<usize> {
    netns::within(namespace, || match Asker::new()? {
        Some(asker) => asker.keep(protocol, connections, seconds),
        None => Ok(0),
    })?
}

pub(crate) fn netfilter_socket() -> io::Result<Socket> {
    Socket::open(rustix::net::netlink::NETFILTER)
}

fn question(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let names = tuple(Protocol::Tcp, from, to);
    request((CT_GET, netlink::REQUEST), from, &names)
}

/// The tuple of a connection, by which the kernel finds it.
fn tuple(protocol: Protocol, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let addresses = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            pair(CTA_TUPLE_IP, CTA_IP_V4_SRC, [&from.octets(), &to.octets()])
        }
        (from, to) => {
            let six = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            let words = [&six(from)[..], &six(to)];
            pair(CTA_TUPLE_IP, CTA_IP_V6_SRC, words)
        }
    };
    let mut ports = attribute(CTA_PROTO_NUM, &[protocol.number()]);
    ports.extend(attribute(CTA_PROTO_SRC_PORT, &from.port().to_be_bytes()));
    ports.extend(attribute(CTA_PROTO_DST_PORT, &to.port().to_be_bytes()));
    let mut tuple = addresses;
    tuple.extend(nested(CTA_TUPLE_PROTO, &ports));
    nested(CTA_TUPLE_ORIG, &tuple)
}

/// struct nfgenmsg and attributes.
fn request((kind, flags): (u16, u16), of: SocketAddr, attributes: &[u8]) -> Vec<u8> {
    let family = match of {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let body = [&[family as u8, 0, 0, 0], attributes].concat();
    netlink::request(kind, flags, &body)
}

/// Two attributes in one, of types that follow each other.
fn pair(kind: u16, first: u16, values: [&[u8]; 2]) -> Vec<u8> {
    let mut inside = attribute(first, values[0]);
    inside.extend(attribute(first + 1, values[1]));
    nested(kind, &inside)
}

/// CTA_STATUS of the answer; 0 if there is no such connection.
fn status(answer: &Answer) -> io::Result<u32> {
    Ok(figure(answer, CTA_STATUS)?.unwrap_or(0))
}

/// A figure that the answer to a question has; `None` if there is no such connection.
fn figure(answer: &Answer, of: u16) -> io::Result<Option<u32>> {
    let Some(attributes) = entry(answer)? else {
        return Ok(None);
    };
    let bits = find_attribute(attributes, of).and_then(|bits| bits.try_into().ok());
    Ok(Some(u32::from_be_bytes(bits.ok_or_else(invalid)?)))
}

/// The attributes of the connection that was asked about; `None` if there is none.
fn entry(answer: &Answer) -> io::Result<Option<&[u8]>> {
    let message = answer.message()?;
    if message.kind != CT_NEW {
        return match is_done(answer)? {
            true => Err(invalid()),
            false => Ok(None),
        };
    }
    let attributes = message.body.get(NFNL_HEADER_BYTES..);
    attributes.ok_or_else(invalid).map(Some)
}

/// See [`Asker::far_end`]. What a direction's packets have as source and destination are the names,
/// local and remote, of the socket that sends them.
fn far_end(answer: &Answer, near: (SocketAddr, SocketAddr)) -> io::Result<Option<FarEnd>> {
    let Some(entry) = entry(answer)? else {
        return Ok(None);
    };
    let inside = |kinds: &[u16]| {
        let mut kinds = kinds.iter();
        kinds.try_fold(entry, |bytes, kind| find_attribute(bytes, *kind))
    };
    let status = inside(&[CTA_STATUS]).and_then(|bits| bits.try_into().ok());
    let status = u32::from_be_bytes(status.ok_or_else(invalid)?);
    let state = inside(&[CTA_PROTOINFO, CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE]);
    // A zone has names of its own, which may be those of others (ip-rule(8), nft(8) `ct zone`).
    let zones = [
        inside(&[CTA_ZONE]),
        inside(&[CTA_TUPLE_ORIG, CTA_TUPLE_ZONE]),
        inside(&[CTA_TUPLE_REPLY, CTA_TUPLE_ZONE]),
    ];
    if status & IPS_DYING != 0 || zones != [None; 3] {
        return Ok(None);
    }
    let is_established = status & IPS_ASSURED != 0 && state == Some(&[TCP_CONNTRACK_ESTABLISHED]);
    let names = |direction| inside(&[direction]).and_then(names).ok_or_else(invalid);
    let [original, reply] = [names(CTA_TUPLE_ORIG)?, names(CTA_TUPLE_REPLY)?];
    let names = match near {
        _ if near == original => reply,
        _ if near == reply => original,
        _ => return Err(invalid()),
    };
    Ok(Some(FarEnd {
        names,
        is_established,
    }))
}

/// Source and destination of a tuple of TCP.
fn names(tuple: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let addresses = find_attribute(tuple, CTA_TUPLE_IP)?;
    let protocol = find_attribute(tuple, CTA_TUPLE_PROTO)?;
    let address = |at: u16| -> Option<IpAddr> {
        match find_attribute(addresses, CTA_IP_V4_SRC + at) {
            Some(four) => Some(Ipv4Addr::from(<[u8; 4]>::try_from(four).ok()?).into()),
            None => {
                let six = find_attribute(addresses, CTA_IP_V6_SRC + at)?;
                Some(Ipv6Addr::from(<[u8; 16]>::try_from(six).ok()?).into())
            }
        }
    };
    let port = |kind| {
        let port = find_attribute(protocol, kind)?.try_into().ok()?;
        Some(u16::from_be_bytes(port))
    };
    let is_tcp = find_attribute(protocol, CTA_PROTO_NUM)? == [libc::IPPROTO_TCP as u8];
    is_tcp.then_some((
        SocketAddr::new(address(0)?, port(CTA_PROTO_SRC_PORT)?),
        SocketAddr::new(address(1)?, port(CTA_PROTO_DST_PORT)?),
    ))
}

/// Whether a request was carried out; false if there is no such connection.
fn is_done(answer: &Answer) -> io::Result<bool> {
    let message = answer.message()?;
    if message.kind != netlink::ERROR {
        return Err(invalid());
    }
    match message.outcome() {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    /// A real connection in a namespace that tracks connections, and names that never were.
    #[test]
    fn a_handshake_is_known_by_the_names_of_either_direction() {
        let Ok(namespace) = netns::anonymous() else {
            fordway_test_skip::skipped("network namespaces need root");
            return;
        };
        let rules = "table inet t { chain c { type filter hook input priority 0; ct state new accept; }; }
            table ip n { chain o { type nat hook output priority -100; tcp dport 7 redirect to :17; }; }";
        let (ends, other_ends, datagrams) = netns::within(namespace.as_fd(), || {
            let run = |program: &str, words: &[&str], input: &str| {
                let mut child = Command::new(program)
                    .args(words)
                    .stdin(Stdio::piped())
                    .spawn()
                    .expect(program);
                let mut stdin = child.stdin.take().expect("piped");
                stdin.write_all(input.as_bytes()).expect("written");
                drop(stdin);
                assert!(child.wait().expect("ended").success(), "{program}");
            };
            run("ip", &["link", "set", "lo", "up"], "");
            run("nft", &["-f", "-"], rules);
            let listener = TcpListener::bind("127.0.0.1:17").expect("bind");
            let connect = |to: &str| {
                let mut client = TcpStream::connect(to).expect("up");
                let (mut server, _) = listener.accept().expect("accept");
                client.write_all(b"x").expect("sent");
                server.read_exact(&mut [0]).expect("received");
                (client, server)
            };
            let [a, b] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("bind"));
            let datagrams = [&a, &b].map(|socket| socket.local_addr().expect("name"));
            a.send_to(b"x", datagrams[1]).expect("sent");
            (connect("127.0.0.1:17"), connect("127.0.0.1:7"), datagrams)
        })
        .expect("entered");
        let names = |socket: &TcpStream| {
            let local = socket.local_addr().expect("name");
            (local, socket.peer_addr().expect("name"))
        };
        // What the far end of each is called, whichever end asks, and whether addresses were
        // translated; that it closes.
        let far = |near: (SocketAddr, SocketAddr)| {
            let asked = netns::within(namespace.as_fd(), || {
                let asker = Asker::new().expect("netlink").expect("loaded");
                asker.far_end(near.0, near.1)
            });
            asked.expect("entered").expect("asked")
        };
        let end = |socket, is_established| {
            let names = names(socket);
            Some(FarEnd {
                names,
                is_established,
            })
        };
        for (client, server) in [&ends, &other_ends] {
            assert_eq!(far(names(client)), end(server, true));
            assert_eq!(far(names(server)), end(client, true));
        }
        let translated = names(&other_ends.0);
        assert_ne!(translated.1, names(&other_ends.1).0);
        assert_eq!(far((translated.1, translated.0)), None);
        let closes = end(&other_ends.1, false);
        drop(other_ends.1);
        assert_eq!(far(translated), closes);

        let (client, _server) = ends;
        let names = names(&client);
        let ask = |names| handshake_has_passed(namespace.as_fd(), names).expect("asked");
        assert!(ask(names));
        assert!(ask((names.1, names.0)));
        let mut other = names;
        other.0.set_port(names.0.port().wrapping_add(1).max(1));
        assert!(!ask(other));

        // For how long it is known, and that what is not known stays so.
        let left_s = |(one, other)| {
            let asked = netns::within(namespace.as_fd(), || {
                let answer = netfilter_socket()?.ask(&question(one, other))?;
                figure(&answer, CTA_TIMEOUT)
            });
            asked.expect("entered").expect("asked")
        };
        let swapped = (names.1, names.0);
        for (named, seconds) in [(names, 1000), (swapped, 1_000_000)] {
            let asked = [other, named, other];
            let known = keep(namespace.as_fd(), Protocol::Tcp, &asked, seconds);
            assert_eq!(known.expect("kept"), 1);
            let left = left_s(names).expect("known");
            assert!((seconds - 100..=seconds).contains(&left), "{left}");
            assert_eq!(left_s(other), None);
        }
        // Of UDP and TCP, names are not each other's.
        for (protocol, known) in [(Protocol::Udp, 1), (Protocol::Tcp, 0)] {
            let [from, to] = datagrams;
            let kept = keep(namespace.as_fd(), protocol, &[(to, from)], 60);
            assert_eq!(kept.expect("kept"), known);
        }
    }

    #[test]
    fn malformed_answers_prove_nothing() {
        for answer in [&[][..], &[0; 15], &[255; 40], &[16, 0, 0, 0, 0, 1, 0, 0]] {
            assert!(status(&Answer::of(answer)).is_err());
            let near = SocketAddr::from(([10, 0, 0, 1], 1));
            assert!(far_end(&Answer::of(answer), (near, near)).is_err());
        }
    }
}
