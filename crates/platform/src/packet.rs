//! A packet socket: whole frames of one interface, in and out (packet(7)).

use crate::tap::{FrameNotes, HEADER};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// linux/if_packet.h.
const PACKET_VNET_HDR: libc::c_int = 15;

/// Bound to one interface; sees what comes in there and sends out there.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Needs CAP_NET_RAW in the namespace. Does not block; frames that this host sends
    /// out by the interface are not seen.
    pub fn open(interface: &str) -> io::Result<PacketSocket> {
        let all = (libc::ETH_P_ALL as u16).to_be();
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
        let one: libc::c_int = 1;
        // SAFETY: the option's value is a live int of the length that is given.
        let done = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_IGNORE_OUTGOING,
                (&raw const one).cast(),
                size_of_val(&one) as libc::socklen_t,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: all,
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
        Ok(PacketSocket(fd))
    }

    /// The same, whose frames have notes ([`PacketSocket::send_with_notes`]): large segments and checksums that are not
    /// filled in pass both ways (PACKET_VNET_HDR).
    pub fn open_with_notes(interface: &str) -> io::Result<PacketSocket> {
        let socket = PacketSocket::open(interface)?;
        let one: libc::c_int = 1;
        // SAFETY: the option's value is a live int of the length that is given.
        let done = unsafe {
            libc::setsockopt(
                socket.0.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_VNET_HDR,
                (&raw const one).cast(),
                size_of_val(&one) as libc::socklen_t,
            )
        };
        match done {
            0 => Ok(socket),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// One frame with its notes; `headers_len` matters for one that is to be cut. False: there is no room now.
    pub fn send_with_notes(
        &self,
        frame: &[u8],
        notes: FrameNotes,
        headers_len: u16,
    ) -> io::Result<bool> {
        let header = notes.to_header(headers_len);
        let parts = [IoSlice::new(&header), IoSlice::new(frame)];
        match rustix::io::writev(&self.0, &parts) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The next frame that came in, with its notes; `None` if there is none.
    pub fn receive_with_notes(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, FrameNotes)>> {
        let mut header = [0; HEADER];
        let parts = &mut [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)];
        match rustix::io::readv(&self.0, parts) {
            Ok(len) if len >= HEADER => Ok(Some((len - HEADER, FrameNotes::from_header(&header)))),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// One frame, from its Ethernet header on.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.0, frame)?;
        Ok(())
    }

    /// The next frame that came in; `None` if there is none. A VLAN tag is taken off by
    /// the kernel.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.0, buffer) {
            Ok(len) => Ok(Some(len)),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
