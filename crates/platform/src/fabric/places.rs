//! Where the bridge finds whom, told beforehand by rtnetlink(7): an entry of its table for each
//! port, which keeps the first packet to a domain that has not sent any yet from going to all of them,
//! and which nothing that a port sends changes.

use super::filter::mac_bytes_of;
use crate::netlink::{self, Socket, attribute};
use crate::netns;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

// linux/rtnetlink.h, linux/neighbour.h
const RTM_NEWNEIGH: u16 = 28;
const CREATE_OR_REPLACE: u16 = 0x400 | 0x100;
const NDA_LLADDR: u16 = 2;
const NUD_NOARP: u16 = 0x40;
const NTF_MASTER: u8 = 0x04;

/// Has the bridge of `port` know for good that this one is behind it.
pub(super) fn place(namespace: BorrowedFd<'_>, port: &str, ip: Ipv4Addr) -> io::Result<()> {
    netns::within(namespace, || {
        let [index, state] = [&index_of(port)?.to_ne_bytes()[..], &NUD_NOARP.to_ne_bytes()];
        // struct ndmsg.
        let family = [libc::PF_BRIDGE as u8, 0, 0, 0];
        let mut body = [&family[..], index, state, &[NTF_MASTER, 0]].concat();
        body.extend(attribute(NDA_LLADDR, &mac_bytes_of(ip)));
        let flags = netlink::REQUEST | netlink::ACK | CREATE_OR_REPLACE;
        let request = netlink::request(RTM_NEWNEIGH, flags, &body);
        Socket::open(None)?.ask(&request)?.message()?.outcome()
    })?
}

/// Whether a namespace has a device of this name. An error says nothing of the device: want of a descriptor, say.
pub(super) fn is_there(namespace: BorrowedFd<'_>, device: &str) -> io::Result<bool> {
    match netns::within(namespace, || index_of(device))? {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Of a device in the namespace of the calling thread.
fn index_of(device: &str) -> io::Result<u32> {
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    let any = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    Ok(rustix::net::netdevice::name_to_index(&any, device)?)
}
