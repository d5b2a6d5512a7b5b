//! The kernel's side of a driver, of each kind.

use crate::config;
use fordway_platform::frames::{FrameFile, FrameNotes};
use fordway_platform::queue::Foreign;
use fordway_platform::xdp::Xdp;
use fordway_platform::{launch, packet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// See the module.
#[derive(Debug)]
pub enum Wire {
    /// A packet socket or a tap.
    File(FrameFile),
    /// AF_XDP.
    Xdp(Box<Xdp>),
}

impl Wire {
    /// Opens the port, in the network namespace of the calling thread.
    pub fn open(wire: &config::Wire) -> io::Result<Wire> {
        Ok(match wire {
            config::Wire::Packet(interface) => Wire::File(packet::open(interface)?),
            config::Wire::Tap(end) => Wire::File(FrameFile::of_tap(launch::inherited(*end)?)),
            config::Wire::Xdp(interface) => Wire::Xdp(Box::new(Xdp::open(interface)?)),
        })
    }

    /// The next frame that came in.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, FrameNotes)>> {
        match self {
            Wire::File(file) => file.receive(buffer),
            Wire::Xdp(xdp) => Ok(xdp
                .receive(buffer)?
                .map(|bytes| (bytes, FrameNotes::default()))),
        }
    }

    /// Sends a frame whose beginning is `head`.
    pub(crate) fn send_behind(
        &mut self,
        head: &[u8],
        foreign: &Foreign<'_>,
        from: usize,
        notes: FrameNotes,
    ) -> io::Result<()> {
        match self {
            Wire::File(file) => file.send_behind(head, foreign, from, notes),
            // Nobody behind us would complete it.
            Wire::Xdp(_) if notes.checksum.is_some() || notes.gso_bytes.is_some() => {
                Err(io::ErrorKind::InvalidInput.into())
            }
            Wire::Xdp(xdp) => xdp.send_behind(head, foreign, from),
        }
    }

    /// What was sent leaves now, at the latest.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::File(_) => Ok(()),
            Wire::Xdp(xdp) => xdp.flush(),
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Wire::File(file) => file.as_fd(),
            Wire::Xdp(xdp) => xdp.as_fd(),
        }
    }
}
