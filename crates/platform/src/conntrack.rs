//! Connections as the fabric's own connection tracking knows them, by ctnetlink
//! (linux/netfilter/nfnetlink_conntrack.h): the kernel's proof that a handshake has passed
//! the rules. No program of a domain can write there.
//!
//! The kernel looks a connection up by the names of either direction, so one question
//! is enough, whoever connected. It tracks only where a rule in force looks at
//! connections; elsewhere nothing is known, and nothing is proven.

use crate::diag::{attribute, read_u32, split_message};
use crate::netns;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

// linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nfnetlink_conntrack.h
const NLMSG_HEADER_BYTES: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NFNL_HEADER_BYTES: usize = 4;
const CT_NEW: u16 = 1 << 8;
const CT_GET: u16 = 1 << 8 | 1;
const NLA_F_NESTED: u16 = 1 << 15;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_STATUS: u16 = 3;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
/// enum ip_conntrack_status: of TCP, the third packet of the handshake has passed.
const IPS_ASSURED: u32 = 1 << 2;
const ANSWER_BYTES_MAX: usize = 4096;

/// Whether the kernel of `namespace` has let the handshake of the TCP connection between
/// these two names pass, whichever of them connected.
pub(crate) fn handshake_has_passed(
    namespace: BorrowedFd<'_>,
    (one, other): (SocketAddr, SocketAddr),
) -> io::Result<bool> {
    netns::within(namespace, || {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::NETFILTER),
        )?;
        rustix::net::send(&socket, &question(one, other), SendFlags::empty())?;
        // The work is done within send; the answer is there when it returns.
        let mut buffer = [0; ANSWER_BYTES_MAX];
        let (_, length) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        status(buffer.get(..length).unwrap_or(&[])).map(|bits| bits & IPS_ASSURED != 0)
    })?
}

/// struct nlmsghdr, struct nfgenmsg, and one tuple.
fn question(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let (family, addresses) = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (
            libc::AF_INET,
            nested(CTA_TUPLE_IP, CTA_IP_V4_SRC, [&from.octets(), &to.octets()]),
        ),
        (from, to) => {
            let six = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            let words = [&six(from)[..], &six(to)];
            (libc::AF_INET6, nested(CTA_TUPLE_IP, CTA_IP_V6_SRC, words))
        }
    };
    let mut ports = word(CTA_PROTO_NUM, &[libc::IPPROTO_TCP as u8]);
    ports.extend(word(CTA_PROTO_SRC_PORT, &from.port().to_be_bytes()));
    ports.extend(word(CTA_PROTO_DST_PORT, &to.port().to_be_bytes()));
    let mut tuple = addresses;
    tuple.extend(word(CTA_TUPLE_PROTO | NLA_F_NESTED, &ports));
    let tuple = word(CTA_TUPLE_ORIG | NLA_F_NESTED, &tuple);
    let length = NLMSG_HEADER_BYTES + NFNL_HEADER_BYTES + tuple.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(CT_GET.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family as u8, 0, 0, 0]);
    bytes.extend(tuple);
    bytes
}

/// Two attributes in one, of types that follow each other.
fn nested(kind: u16, first: u16, values: [&[u8]; 2]) -> Vec<u8> {
    let mut inside = word(first, values[0]);
    inside.extend(word(first + 1, values[1]));
    word(kind | NLA_F_NESTED, &inside)
}

/// struct nlattr with its payload, filled up to four bytes.
fn word(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = 4 + payload.len();
    let mut bytes = (length as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

/// CTA_STATUS of the answer; 0 if there is no such connection.
fn status(answer: &[u8]) -> io::Result<u32> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let (kind, body, _) = split_message(answer).ok_or_else(invalid)?;
    match kind {
        NLMSG_ERROR => match read_u32(body, 0).map(|code| code as i32) {
            Some(code) if -code == libc::ENOENT => Ok(0),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
            None => Err(invalid()),
        },
        CT_NEW => {
            let attributes = body.get(NFNL_HEADER_BYTES..).ok_or_else(invalid)?;
            let bits = attribute(attributes, CTA_STATUS).ok_or_else(invalid)?;
            bits.try_into()
                .map(u32::from_be_bytes)
                .map_err(|_| invalid())
        }
        _ => Err(invalid()),
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
    }

    #[test]
    fn malformed_answers_prove_nothing() {
        for answer in [&[][..], &[0; 15], &[255; 40], &[16, 0, 0, 0, 0, 1, 0, 0]] {
            assert!(status(answer).is_err());
        }
    }
}
