//! Whole frames of one interface, by a file that takes and gives each behind a virtio-net header: a tap device
//! ([`crate::tap`]) or a packet socket ([`crate::packet`]).
//!
//! The header says what the kernel has left undone, or leaves to us: a checksum that was never computed, because
//! the frame did not leave the host, and a train, one TCP segment of up to 64 KB that somebody is to cut. Passed on as they
//! are, neither is ever done between programs of one host.
//!
//! Each call is one frame and one copy, between the kernel's buffer and the caller's. Nothing blocks.

use crate::queue::Foreign;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Before each frame: `struct virtio_net_hdr` of linux/virtio_net.h.
const HEADER_BYTES: usize = 10;
/// The longest frame: Ethernet's header, and the longest IP packet.
pub const FRAME_BYTES_MAX: usize = 14 + 65_535;

const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_IS_GOOD: u8 = 2;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
/// Congestion was seen by who sent the train.
const GSO_ECN: u8 = 0x80;
/// Where a train's TCP header ends, if it has no options: the kernel looks for itself, and wants a guess.
const TCP_HEADER_BYTES: u16 = 20;

/// What goes with a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameNotes {
    /// The checksum from `start` on is to be put at `start + offset`.
    pub checksum: Option<(u16, u16)>,
    /// It was checked, or needs no check.
    pub is_checksum_good: bool,
    /// A TCP segment that is to be cut into pieces with this much payload.
    pub gso_bytes: Option<u16>,
    /// Of a train: whether it goes by IPv6.
    pub is_ipv6: bool,
}

impl FrameNotes {
    fn to_header(self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        let mut put =
            |at: usize, word: u16| header[at..at + 2].copy_from_slice(&word.to_ne_bytes());
        let start = self.checksum.map_or(0, |(start, offset)| {
            put(6, start);
            put(8, offset);
            start
        });
        if let Some(gso_bytes) = self.gso_bytes {
            put(2, start.saturating_add(TCP_HEADER_BYTES));
            put(4, gso_bytes);
        }
        if self.checksum.is_some() {
            header[0] = NEEDS_CHECKSUM;
        }
        if self.gso_bytes.is_some() {
            header[1] = if self.is_ipv6 { GSO_TCP6 } else { GSO_TCP4 };
        }
        header
    }

    /// `None`: a train of something else than TCP.
    fn from_header(header: &[u8; HEADER_BYTES]) -> Option<FrameNotes> {
        let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let kind = header[1] & !GSO_ECN;
        matches!(kind, 0 | GSO_TCP4 | GSO_TCP6).then(|| FrameNotes {
            checksum: (header[0] & NEEDS_CHECKSUM != 0).then(|| (word(6), word(8))),
            is_checksum_good: header[0] & CHECKSUM_IS_GOOD != 0,
            gso_bytes: (kind != 0).then(|| word(4)),
            is_ipv6: kind == GSO_TCP6,
        })
    }

    /// As two words of a queue's header, without its kind.
    pub(crate) fn pack(self) -> (u64, u8) {
        let (start, offset) = self.checksum.unwrap_or_default();
        let gso = self.gso_bytes.unwrap_or_default();
        let word = u64::from(start) | u64::from(offset) << 16 | u64::from(gso) << 32;
        let kind = u8::from(self.checksum.is_some())
            | u8::from(self.is_checksum_good) << 1
            | u8::from(self.gso_bytes.is_some()) << 2
            | u8::from(self.is_ipv6) << 3;
        (word, kind)
    }

    /// Reads back what [`FrameNotes::pack`] made, whoever wrote it.
    pub(crate) fn unpack(word: u64, kind: u8) -> FrameNotes {
        let has = |bit: u8| kind >> bit & 1 != 0;
        FrameNotes {
            checksum: has(0).then_some((word as u16, (word >> 16) as u16)),
            is_checksum_good: has(1),
            gso_bytes: has(2).then_some((word >> 32) as u16),
            is_ipv6: has(3),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct FrameFile {
    file: OwnedFd,
}

impl FrameFile {
    pub(crate) fn new(file: OwnedFd) -> FrameFile {
        FrameFile { file }
    }

    /// A program's end of a tap device ([`crate::tap::end_of`]).
    pub fn of_tap(end: OwnedFd) -> FrameFile {
        FrameFile::new(end)
    }

    /// Gives the kernel a frame, from its Ethernet header on. `WouldBlock`: not now.
    pub fn send(&self, frame: &[u8], notes: FrameNotes) -> io::Result<()> {
        self.send_behind(frame, &Foreign::NONE, 0, notes)
    }

    /// A frame of which the first bytes are `head`, and the others those of `foreign` from `from` on: what was looked at
    /// stands where nobody else can change it, and the rest is copied by the kernel alone.
    pub fn send_behind(
        &self,
        head: &[u8],
        foreign: &Foreign<'_>,
        from: usize,
        notes: FrameNotes,
    ) -> io::Result<()> {
        let header = notes.to_header();
        let part = |start: *const u8, length| libc::iovec {
            iov_base: start.cast_mut().cast(),
            iov_len: length,
        };
        let mut parts = [part(std::ptr::null(), 0); 2 + Foreign::RUNS_MAX];
        let mut bytes = 0;
        let own = [(header.as_ptr(), HEADER_BYTES), (head.as_ptr(), head.len())];
        let mut count = 0;
        for ((start, length), to) in own.into_iter().chain(foreign.runs(from)).zip(&mut parts) {
            *to = part(start, length);
            bytes += length;
            count += 1;
        }
        // SAFETY: each part is readable as long as it says; that somebody changes a foreign one is the kernel's to bear.
        let taken = unsafe { libc::writev(self.file.as_raw_fd(), parts.as_ptr(), count) };
        if taken < 0 {
            return Err(io::Error::last_os_error());
        }
        // The kernel takes a frame whole or not at all.
        debug_assert_eq!(taken as usize, bytes);
        Ok(())
    }

    /// The next frame from the kernel; `None` if there is none. A VLAN tag is taken off by the kernel. What does not fit is
    /// cut off.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, FrameNotes)>> {
        loop {
            let mut header = [0; HEADER_BYTES];
            let parts = &mut [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)];
            match rustix::io::readv(&self.file, parts) {
                Ok(bytes) if bytes >= HEADER_BYTES => {
                    // What has none is a train of something else than TCP, of which the kernel gives a tap none. It is gone.
                    if let Some(notes) = FrameNotes::from_header(&header) {
                        return Ok(Some((bytes - HEADER_BYTES, notes)));
                    }
                }
                Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                // One that the header has no words for.
                Err(rustix::io::Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for FrameFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_survive_both_ways_of_writing_them() {
        let train = FrameNotes {
            checksum: Some((34, 16)),
            is_checksum_good: false,
            gso_bytes: Some(1448),
            is_ipv6: true,
        };
        let good = FrameNotes {
            is_checksum_good: true,
            ..FrameNotes::default()
        };
        for notes in [FrameNotes::default(), train, good] {
            let (word, kind) = notes.pack();
            assert_eq!(FrameNotes::unpack(word, kind), notes);
        }
        assert_eq!(FrameNotes::from_header(&train.to_header()), Some(train));
        // A train of datagrams (VIRTIO_NET_HDR_GSO_UDP_L4) is none of TCP.
        assert_eq!(
            FrameNotes::from_header(&[0, 5, 0, 0, 0, 0, 0, 0, 0, 0]),
            None
        );
    }
}
