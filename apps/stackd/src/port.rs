//! How frames come and go: the port that the configuration names, and what its notes mean to the stack.

use crate::config::PortConfig;
use anyhow::{Context, Result};
use fordway_driver::{Arrived, Foreign, Frame, FrameNotes, Port};
use fordway_netstack::{Behind, Offloads, RxChecksum, RxFrame, Stack, TxFrame};
use fordway_platform::frames::FrameFile;
use fordway_platform::{launch, packet};

/// What the far side does for the stack, whichever port it is.
pub(crate) const OFFLOADS: Offloads = Offloads {
    tx_checksum_v4: true,
    tx_checksum_v6: true,
    gso_v4: true,
    gso_v6: true,
    gso_bytes_max: 0,
};

/// Opens the port that the configuration names.
pub fn open(config: &PortConfig) -> Result<Port> {
    match config {
        PortConfig::Packet(interface) => {
            let socket =
                packet::open(interface).with_context(|| format!("interface {interface}"))?;
            Ok(Port::kernel(socket))
        }
        PortConfig::Tap(end) => {
            let end = launch::inherited(*end).with_context(|| format!("tap, descriptor {end}"))?;
            Ok(Port::kernel(FrameFile::of_tap(end)))
        }
        PortConfig::Queue { link } => {
            let queue = launch::inherited(*link).and_then(Port::queue);
            queue.with_context(|| format!("the link to the driver, descriptor {link}"))
        }
    }
}

/// A frame in the driver's memory.
#[derive(Debug)]
struct Block<'a>(Foreign<'a>);

impl Behind for Block<'_> {
    fn copy_to(&self, at: usize, target: &mut [u8]) {
        // It has as many: its length does not change.
        self.0.copy_to(at, target);
    }
}

/// Gives a frame to the stack.
pub(crate) fn take_in(stack: &mut Stack, now: u64, arrived: Arrived<'_>) {
    let mut frame = RxFrame {
        checksum: checksum_of(arrived.notes),
        bytes: arrived.bytes,
    };
    match arrived.rest {
        None => stack.receive(now, &mut frame),
        Some((here, rest)) => stack.receive_head(now, &mut frame, here, &Block(rest)),
    }
}

/// What is known of a checksum that came.
fn checksum_of(notes: FrameNotes) -> RxChecksum {
    match notes {
        _ if notes.checksum.is_some() => RxChecksum::Blank,
        _ if notes.is_checksum_good => RxChecksum::Good,
        _ => RxChecksum::Unchecked,
    }
}

/// A frame of the stack's.
pub(crate) fn frame_of(sent: TxFrame) -> Frame {
    Frame {
        bytes: sent.len_bytes,
        notes: FrameNotes {
            checksum: sent.checksum.map(|asked| (asked.start, asked.offset)),
            is_checksum_good: false,
            gso_bytes: sent.gso_bytes,
            is_ipv6: sent.is_ipv6,
        },
    }
}
