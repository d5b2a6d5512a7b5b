//! Frames as they pass between the stack and what carries them.

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
