//! A packet socket: whole frames of one interface, in and out (packet(7)).
//!
//! Frames are read and written by calls, not by rings that the kernel shares with us (PACKET_RX_RING): a ring costs one copy
//! more, as the kernel copies into it what is then copied to its place, and one of version 3 shows a frame only when its
//! block is full or a millisecond has passed (docs/stack.md has figures).

use crate::frames::FrameFile;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What may wait for us in the kernel, as it counts (a train of 64 KB as twice that).
const WAITING_BYTES: libc::c_int = 8 << 20;

/// A socket that is bound to one interface: sees what comes in there and sends out there. Needs CAP_NET_RAW in the
/// namespace. Frames that this host sends out by the interface are not seen; frames to groups are, whichever ones the host itself is in.
pub fn open(interface: &str) -> io::Result<FrameFile> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // Protocol 0: nothing is queued before the socket is bound to its interface.
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let index = rustix::net::netdevice::name_to_index(&fd, interface)?;
    set(&fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    set(&fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    let groups = libc::packet_mreq {
        mr_ifindex: index as i32,
        mr_type: libc::PACKET_MR_ALLMULTI as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(&fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, groups)?;
    // Who may not have so much has what the system lets everybody have.
    let _ = set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, WAITING_BYTES)
        .or_else(|_| set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, WAITING_BYTES));
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the address is a live sockaddr_ll of the length that is given.
    let done = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(FrameFile::new(fd))
}

fn set<T>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: T) -> io::Result<()> {
    // SAFETY: the option's value is alive, and of the length that is given.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
