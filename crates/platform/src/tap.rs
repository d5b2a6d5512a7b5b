//! A tap device: a program at the other end of an Ethernet interface of the kernel
//! (Documentation/networking/tuntap.rst), with the offloads that virtio-net names.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Before each frame: `struct virtio_net_hdr` of linux/virtio_net.h.
pub const HEADER: usize = 10;

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const IFF_TAP: i16 = 2;
const IFF_NO_PI: i16 = 0x1000;
const IFF_VNET_HDR: i16 = 0x4000;
/// TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6.
const OFFLOADS: libc::c_ulong = 1 | 2 | 4;

const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_IS_GOOD: u8 = 2;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;

/// What goes with a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameNotes {
    /// The checksum from `start` on is to be put at `start + offset`.
    pub checksum: Option<(u16, u16)>,
    pub is_checksum_good: bool,
    /// A TCP segment that is to be cut into pieces with this much payload.
    pub gso_bytes: Option<u16>,
    pub is_ipv6: bool,
}

impl FrameNotes {
    pub(crate) fn to_header(self, headers_len: u16) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        if let Some((start, offset)) = self.checksum {
            header[0] = NEEDS_CHECKSUM;
            header[6..8].copy_from_slice(&start.to_ne_bytes());
            header[8..10].copy_from_slice(&offset.to_ne_bytes());
        }
        if let Some(gso_bytes) = self.gso_bytes {
            header[1] = if self.is_ipv6 { GSO_TCP6 } else { GSO_TCP4 };
            header[2..4].copy_from_slice(&headers_len.to_ne_bytes());
            header[4..6].copy_from_slice(&gso_bytes.to_ne_bytes());
        }
        header
    }

    pub(crate) fn from_header(header: &[u8; HEADER]) -> FrameNotes {
        let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let kind = header[1] & 0x7f;
        FrameNotes {
            checksum: (header[0] & NEEDS_CHECKSUM != 0).then(|| (word(6), word(8))),
            is_checksum_good: header[0] & CHECKSUM_IS_GOOD != 0,
            gso_bytes: (kind != 0).then(|| word(4)),
            is_ipv6: kind == GSO_TCP6,
        }
    }
}

/// The program's end. Closing it removes the interface.
#[derive(Debug)]
pub struct Tap(File);

impl Tap {
    /// Makes the interface in the network namespace of the calling thread. Needs CAP_NET_ADMIN
    /// there. Does not block. With `offloads`, the kernel gives large segments and blank
    /// checksums; it takes them in any case.
    pub fn open(name: &str, offloads: bool) -> io::Result<Tap> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")?;
        // SAFETY: all zeros are a valid ifreq: plain numbers and an empty name.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
        // SAFETY: TUNSETIFF reads and writes one ifreq, which is live.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        let wanted = if offloads { OFFLOADS } else { 0 };
        // SAFETY: TUNSETOFFLOAD takes a number, no memory.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, wanted) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Tap(file))
    }

    /// Gives the kernel a frame; `headers_len` matters for one that is to be cut.
    pub fn send(&self, frame: &[u8], notes: FrameNotes, headers_len: u16) -> io::Result<()> {
        let header = notes.to_header(headers_len);
        let parts = [IoSlice::new(&header), IoSlice::new(frame)];
        // A tap takes a frame whole or not at all.
        let taken = (&self.0).write_vectored(&parts)?;
        debug_assert_eq!(taken, HEADER + frame.len());
        Ok(())
    }

    /// The next frame from the kernel; `None` if there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, FrameNotes)>> {
        let mut header = [0; HEADER];
        let parts = &mut [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)];
        match (&self.0).read_vectored(parts) {
            Ok(len) if len >= HEADER => Ok(Some((len - HEADER, FrameNotes::from_header(&header)))),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
