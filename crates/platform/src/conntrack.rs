//! Connections as the fabric's own connection tracking knows them, by ctnetlink
//! (linux/netfilter/nfnetlink_conntrack.h): the kernel's proof that a handshake has passed
//! the rules. No program of a domain can write there.
//!
//! The kernel looks a connection up by the names of either direction, so one question
//! is enough, whoever connected. It tracks only where a rule in force looks at
//! connections; elsewhere nothing is known, and nothing is proven.

use crate::netlink::{self, Answer, Socket, attribute, invalid, nested};
use crate::netns;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

// linux/netfilter/nfnetlink.h, linux/netfilter/nfnetlink_conntrack.h
const NFNL_HEADER_BYTES: usize = 4;
const CT_NEW: u16 = 1 << 8;
const CT_GET: u16 = 1 << 8 | 1;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_STATUS: u16 = 3;
const CTA_TIMEOUT: u16 = 7;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
/// enum ip_conntrack_status: of TCP, the third packet of the handshake has passed.
const IPS_ASSURED: u32 = 1 << 2;

/// Whether the kernel of `namespace` has let the handshake of the TCP connection between
/// these two names pass, whichever of them connected.
pub(crate) fn handshake_has_passed(
    namespace: BorrowedFd<'_>,
    (one, other): (SocketAddr, SocketAddr),
) -> io::Result<bool> {
    netns::within(namespace, || {
        let answer = netfilter_socket()?.ask(&question(one, other))?;
        status(&answer).map(|bits| bits & IPS_ASSURED != 0)
    })?
}

/// Has the kernel of `namespace` know these connections for so many seconds more, as if a packet
/// of each had just passed. What it does not know stays unknown. Returns how many it knows.
pub(crate) fn keep(
    namespace: BorrowedFd<'_>,
    connections: &[(SocketAddr, SocketAddr)],
    seconds: u32,
) -> io::Result<usize> {
    netns::within(namespace, || {
        let socket = netfilter_socket()?;
        let mut known = 0;
        for (one, other) in connections {
            let mut body = tuple(*one, *other);
            body.extend(attribute(CTA_TIMEOUT, &seconds.to_be_bytes()));
            let flags = netlink::REQUEST | netlink::ACK;
            let request = request((CT_NEW, flags), *one, &body);
            known += usize::from(is_done(&socket.ask(&request)?)?);
        }
        Ok(known)
    })?
}

pub(crate) fn netfilter_socket() -> io::Result<Socket> {
    Socket::open(rustix::net::netlink::NETFILTER)
}

fn question(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    request((CT_GET, netlink::REQUEST), from, &tuple(from, to))
}

/// The tuple of a connection, by which the kernel finds it.
fn tuple(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
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
    let mut ports = attribute(CTA_PROTO_NUM, &[libc::IPPROTO_TCP as u8]);
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
    let message = answer.message()?;
    if message.kind != CT_NEW {
        return match is_done(answer)? {
            true => Err(invalid()),
            false => Ok(None),
        };
    }
    let attributes = message.body.get(NFNL_HEADER_BYTES..);
    let bits = attributes.and_then(|attributes| netlink::find_attribute(attributes, of));
    let bits = bits.and_then(|bits| bits.try_into().ok());
    Ok(Some(u32::from_be_bytes(bits.ok_or_else(invalid)?)))
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
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    /// A real connection in a namespace that tracks connections, and names that never were.
    #[test]
    fn a_handshake_is_known_by_the_names_of_either_direction() {
        let Ok(namespace) = netns::anonymous() else {
            fordway_test_skip::skipped("network namespaces need root");
            return;
        };
        let rules =
            "table inet t { chain c { type filter hook input priority 0; ct state new accept; }; }";
        let ends = netns::within(namespace.as_fd(), || {
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
            let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
            let mut client = TcpStream::connect(listener.local_addr().expect("name")).expect("up");
            let (mut server, _) = listener.accept().expect("accept");
            client.write_all(b"x").expect("sent");
            server.read_exact(&mut [0]).expect("received");
            (client, server)
        });
        let (client, _server) = ends.expect("entered");
        let names = (
            client.local_addr().expect("name"),
            client.peer_addr().expect("name"),
        );
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
            let known = keep(namespace.as_fd(), &[other, named, other], seconds);
            assert_eq!(known.expect("kept"), 1);
            let left = left_s(names).expect("known");
            assert!((seconds - 100..=seconds).contains(&left), "{left}");
            assert_eq!(left_s(other), None);
        }
    }

    #[test]
    fn malformed_answers_prove_nothing() {
        for answer in [&[][..], &[0; 15], &[255; 40], &[16, 0, 0, 0, 0, 1, 0, 0]] {
            assert!(status(&Answer::of(answer)).is_err());
        }
    }
}
