//! Who is behind which MAC, told beforehand: entries of domains for each other, and of the bridge
//! for its ports, by rtnetlink(7).
//!
//! Neighbour discovery would tell it, too, and does where an entry is missing (a domain's root may
//! remove it). But its packets are IPv6: rules of families ip6 and inet that let only some ports
//! pass would keep domains from each other, where ARP is nothing that such rules see. An entry is
//! permanent, so that nothing is asked and nobody's answer changes it. The bridge's entries keep
//! the first packet to a domain that has not sent any yet from going to all of them.

use super::filter::mac_bytes_of;
use crate::netlink::{self, Socket, attribute};
use crate::netns;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

// linux/rtnetlink.h, linux/neighbour.h
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const CREATE_OR_REPLACE: u16 = 0x400 | 0x100;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
const NTF_MASTER: u8 = 0x04;

/// One who is known by an address.
pub(super) type Neighbour = (Ipv6Addr, Ipv4Addr);

/// Has the namespace know these by its device, or no more.
pub(super) fn know(
    namespace: BorrowedFd<'_>,
    device: &str,
    neighbours: &[Neighbour],
    known: bool,
) -> io::Result<()> {
    change(namespace, device, known, |index| {
        let message = |(six, ip): &Neighbour| {
            let mut body = header(libc::AF_INET6 as u8, index, NUD_PERMANENT, 0);
            body.extend(attribute(NDA_DST, &six.octets()));
            body.extend(attribute(NDA_LLADDR, &mac_bytes_of(*ip)));
            body
        };
        neighbours.iter().map(message).collect()
    })
}

/// Has the bridge of `port` know for good that this one is behind it.
pub(super) fn place(namespace: BorrowedFd<'_>, port: &str, ip: Ipv4Addr) -> io::Result<()> {
    change(namespace, port, true, |index| {
        let mut body = header(libc::PF_BRIDGE as u8, index, NUD_NOARP, NTF_MASTER);
        body.extend(attribute(NDA_LLADDR, &mac_bytes_of(ip)));
        vec![body]
    })
}

/// struct ndmsg.
fn header(family: u8, index: u32, state: u16, flags: u8) -> Vec<u8> {
    let [index, state] = [&index.to_ne_bytes()[..], &state.to_ne_bytes()];
    [&[family, 0, 0, 0][..], index, state, &[flags, 0]].concat()
}

fn change(
    namespace: BorrowedFd<'_>,
    device: &str,
    known: bool,
    bodies: impl FnOnce(u32) -> Vec<Vec<u8>> + Send,
) -> io::Result<()> {
    netns::within(namespace, || {
        let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
        let any = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        let index = rustix::net::netdevice::name_to_index(&any, device)?;
        let socket = Socket::open(None)?;
        let flags = netlink::REQUEST | netlink::ACK;
        for body in bodies(index) {
            let request = match known {
                true => netlink::request(RTM_NEWNEIGH, flags | CREATE_OR_REPLACE, &body),
                false => netlink::request(RTM_DELNEIGH, flags, &body),
            };
            match socket.ask(&request)?.message()?.outcome() {
                Err(error) if !known && error.raw_os_error() == Some(libc::ENOENT) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    })?
}
