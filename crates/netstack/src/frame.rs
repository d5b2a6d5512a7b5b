//! Frames as they pass between the stack and what carries them.
//!
//! **Bulk.** A frame may lie in memory that its sender can still write, and is never judged there. Either it was copied whole, or
//! only its [head](HEAD_BYTES_MIN) was, and the rest is [`Behind`]. What decides about a TCP segment stands in its head: its text
//! is copied once, from there to the connection's buffer, and nobody looks at it. Of all else the rest is copied behind the
//! head first ([`Rest::fill`]). Either way each byte is copied once, so nothing that was judged can change.

use crate::packet::{self, ETHERNET};

/// An IP header, or TCP's, is no longer.
pub(crate) const HEADER_BYTES_MAX: usize = 60;
/// What of a frame decides about a TCP segment: no header is longer, and a rule that writes a byte reads one more.
pub const HEAD_BYTES_MIN: usize = ETHERNET + 2 * HEADER_BYTES_MAX + 2;

/// The rest of a frame, which may change at any moment.
pub trait Behind: core::fmt::Debug {
    /// Copies the frame's bytes from `at` on to all of `target`. It is asked for no byte twice.
    fn copy_to(&self, at: usize, target: &mut [u8]);
}

/// What of a frame is not here: there is room for it, in which anything may stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest<'a> {
    /// Where in the frame it begins.
    pub at: usize,
    pub source: &'a dyn Behind,
}

impl Rest<'_> {
    /// All of a packet is here afterwards.
    pub(crate) fn fill(self, packet: &mut [u8]) {
        if let Some(room) = packet.get_mut(self.at - ETHERNET..) {
            self.source.copy_to(self.at, room);
        }
    }
}

/// Whether all that decides about a frame stands in this head, unless rules look further: a TCP segment that is no
/// fragment, whose checksum is known, behind an IP header without extensions.
pub(crate) fn is_bulk(head: &[u8], checksum: RxChecksum) -> bool {
    let (Some(kind), Some(packet)) = (packet::be16(head, 12), head.get(ETHERNET..HEAD_BYTES_MIN))
    else {
        return false;
    };
    let is_segment = match (kind, packet[0] >> 4) {
        (packet::ETHERTYPE_IPV4, 4) => {
            let is_whole = packet::be16(packet, 6).is_some_and(|flags| flags & 0x3fff == 0);
            is_whole && packet[9] == packet::TCP
        }
        #[cfg(feature = "ipv6")]
        (packet::ETHERTYPE_IPV6, 6) => packet[6] == packet::TCP,
        _ => false,
    };
    is_segment && checksum != RxChecksum::Unchecked
}

/// What is known of the TCP or UDP checksum of an arriving frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RxChecksum {
    /// Nothing: the stack computes it.
    #[default]
    Unchecked,
    /// Checked behind us.
    Good,
    /// Never filled in, since the frame did not leave the host.
    Blank,
}

/// A frame that has arrived, from its Ethernet header on. It may be a train of TCP segments put
/// together (GRO, LRO). The stack changes its bytes.
#[derive(Debug)]
pub struct RxFrame<'a> {
    pub bytes: &'a mut [u8],
    pub checksum: RxChecksum,
}

/// "Sum from `start` to the end of the frame and put the result at `start + offset`": the field
/// holds the sum of the pseudo header, as in virtio-net and Xen's netif.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumRequest {
    pub start: u16,
    pub offset: u16,
}

/// A frame to be sent. Its bytes are the first `len_bytes` of the buffer given to `transmit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxFrame {
    pub len_bytes: usize,
    pub checksum: Option<ChecksumRequest>,
    /// The frame is one TCP segment too large for the link, to be cut into segments with this
    /// much payload each.
    pub gso_bytes: Option<u16>,
    pub is_ipv6: bool,
}
