//! How frames come and go: one interface, and the packet socket that has it.

use crate::config::PortConfig;
use anyhow::{Context, Result};
use fordway_netstack::{Offloads, RxChecksum, RxFrame, TxFrame};
use fordway_platform::packet::PacketSocket;
use fordway_platform::tap::FrameNotes;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// A port of a network. It never blocks.
pub trait Port {
    /// Shows when there are frames (readable), and room after [`Port::send`] found none (writable). Edges are enough.
    fn poll_fd(&self) -> BorrowedFd<'_>;

    /// What the far side does for the stack.
    fn offloads(&self) -> Offloads;

    /// Gives up to `most` frames that have come to `take`; whether there may be more.
    fn receive(&mut self, most: usize, take: &mut dyn FnMut(&mut RxFrame<'_>)) -> io::Result<bool>;

    /// Sends a frame; false: there is no room now, and the frame is to be offered again.
    fn send(&mut self, frame: &[u8], notes: &TxFrame) -> io::Result<bool>;

    /// All frames of a round were sent.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens the port that the configuration names.
pub fn open(config: &PortConfig) -> Result<Box<dyn Port>> {
    match config {
        PortConfig::Packet(interface) => {
            let socket = PacketSocket::open_with_notes(interface)
                .with_context(|| format!("interface {interface}"))?;
            Ok(Box::new(PacketPort {
                socket,
                buffer: vec![0; FRAME_BYTES_MAX],
            }))
        }
    }
}

/// A segment that the far side has put together, with its Ethernet header.
const FRAME_BYTES_MAX: usize = 70_000;

/// A packet socket: large segments and checksums that are not filled in pass both ways.
struct PacketPort {
    socket: PacketSocket,
    buffer: Vec<u8>,
}

impl Port for PacketPort {
    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn offloads(&self) -> Offloads {
        Offloads {
            tx_checksum_v4: true,
            tx_checksum_v6: true,
            gso_v4: true,
            gso_v6: true,
            gso_bytes_max: 0,
        }
    }

    fn receive(&mut self, most: usize, take: &mut dyn FnMut(&mut RxFrame<'_>)) -> io::Result<bool> {
        for _ in 0..most {
            let Some((len, notes)) = self.socket.receive_with_notes(&mut self.buffer)? else {
                return Ok(false);
            };
            let checksum = match notes {
                _ if notes.checksum.is_some() => RxChecksum::Blank,
                _ if notes.is_checksum_good => RxChecksum::Good,
                _ => RxChecksum::Unchecked,
            };
            let bytes = &mut self.buffer[..len.min(FRAME_BYTES_MAX)];
            take(&mut RxFrame { bytes, checksum });
        }
        Ok(true)
    }

    fn send(&mut self, frame: &[u8], notes: &TxFrame) -> io::Result<bool> {
        let checksum = notes.checksum.map(|asked| (asked.start, asked.offset));
        // TCP's header says where its payload begins (RFC 9293 section 3.1).
        let tcp = checksum.map_or(0, |(start, _)| usize::from(start));
        let tcp_bytes = frame
            .get(tcp + 12)
            .map_or(0, |word| usize::from(word >> 4) * 4);
        let notes = FrameNotes {
            checksum,
            is_checksum_good: false,
            gso_bytes: notes.gso_bytes,
            is_ipv6: notes.is_ipv6,
        };
        let sent = self
            .socket
            .send_with_notes(frame, notes, (tcp + tcp_bytes) as u16);
        match sent {
            // The interface is down, or refuses the frame: as a wire that loses it.
            Err(error) if error.raw_os_error() == Some(ENETDOWN) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(true),
            sent => sent,
        }
    }
}

/// errno.h.
const ENETDOWN: i32 = 100;
