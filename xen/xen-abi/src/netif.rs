//! The network interface's shared rings (Xen's public `io/netif.h` and `io/ring.h`).
//!
//! A ring is one page: four indices, padding up to byte 64, then a power of two of slots. A
//! request and the response that answers it lie in the same slot, so a slot belongs to the
//! frontend until `req_prod` passes it and to the backend until `rsp_prod` does. Slots are
//! given here as the words they are made of: whoever shares the page copies whole words, once,
//! and looks at the copy.

/// Where the indices and the first slot lie in a ring's page.
pub const REQ_PROD: usize = 0;
pub const REQ_EVENT: usize = 4;
pub const RSP_PROD: usize = 8;
pub const RSP_EVENT: usize = 12;
pub const SLOTS: usize = 64;

pub const TX_SLOT_BYTES: usize = 12;
pub const RX_SLOT_BYTES: usize = 8;
pub const CTRL_SLOT_BYTES: usize = 16;
pub const TX_SLOTS: u32 = ring_slots(TX_SLOT_BYTES);
pub const RX_SLOTS: u32 = ring_slots(RX_SLOT_BYTES);
pub const CTRL_SLOTS: u32 = ring_slots(CTRL_SLOT_BYTES);

/// The largest power of two that fits (`__RD32` and its kin in ring.h).
const fn ring_slots(slot_bytes: usize) -> u32 {
    let fitting = (4096 - SLOTS) / slot_bytes;
    1 << (usize::BITS - 1 - fitting.leading_zeros())
}

/// Slots of one packet that every backend takes (`XEN_NETIF_NR_SLOTS_MIN`).
pub const SLOTS_PER_PACKET_MAX: usize = 18;
/// `XEN_NETIF_MAX_TX_SIZE`.
pub const TX_BYTES_MAX: usize = 0xffff;

/// `NETTXF_*`.
pub mod tx_flag {
    pub const CSUM_BLANK: u16 = 1;
    pub const DATA_VALIDATED: u16 = 2;
    pub const MORE_DATA: u16 = 4;
    pub const EXTRA_INFO: u16 = 8;
}

/// `NETRXF_*`: the first two are the other way round.
pub mod rx_flag {
    pub const DATA_VALIDATED: u16 = 1;
    pub const CSUM_BLANK: u16 = 2;
    pub const MORE_DATA: u16 = 4;
    pub const EXTRA_INFO: u16 = 8;
}

/// `NETIF_RSP_*`.
pub mod status {
    pub const DROPPED: i16 = -2;
    pub const ERROR: i16 = -1;
    pub const OKAY: i16 = 0;
    /// Answers an extra info slot, which has no id.
    pub const NULL: i16 = 1;
}

/// `netif_tx_request`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxRequest {
    pub gref: u32,
    pub offset: u16,
    pub flags: u16,
    pub id: u16,
    /// Of the whole packet in its first request, of the fragment in the others.
    pub size: u16,
}

impl TxRequest {
    pub fn words(self) -> [u32; 3] {
        [
            self.gref,
            pair(self.offset, self.flags),
            pair(self.id, self.size),
        ]
    }

    pub fn from_words([gref, second, third]: [u32; 3]) -> Self {
        let (offset, flags) = halves(second);
        let (id, size) = halves(third);
        Self {
            gref,
            offset,
            flags,
            id,
            size,
        }
    }
}

/// `netif_tx_response`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxResponse {
    pub id: u16,
    pub status: i16,
}

impl TxResponse {
    pub fn word(self) -> u32 {
        pair(self.id, self.status.cast_unsigned())
    }

    pub fn from_word(word: u32) -> Self {
        let (id, status) = halves(word);
        Self {
            id,
            status: status.cast_signed(),
        }
    }
}

/// `netif_rx_request`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxRequest {
    pub id: u16,
    pub gref: u32,
}

impl RxRequest {
    pub fn word(self) -> u64 {
        u64::from(self.id) | u64::from(self.gref) << 32
    }

    pub fn from_word(word: u64) -> Self {
        Self {
            id: word as u16,
            gref: (word >> 32) as u32,
        }
    }
}

/// `netif_rx_response`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxResponse {
    pub id: u16,
    pub offset: u16,
    pub flags: u16,
    /// Bytes of this fragment, or a negative `NETIF_RSP_*`.
    pub status: i16,
}

impl RxResponse {
    pub fn word(self) -> u64 {
        let high = pair(self.flags, self.status.cast_unsigned());
        u64::from(pair(self.id, self.offset)) | u64::from(high) << 32
    }

    pub fn from_word(word: u64) -> Self {
        let (id, offset) = halves(word as u32);
        let (flags, status) = halves((word >> 32) as u32);
        Self {
            id,
            offset,
            flags,
            status: status.cast_signed(),
        }
    }
}

pub const EXTRA_TYPE_GSO: u8 = 1;
/// One above the highest type (`XEN_NETIF_EXTRA_TYPE_MAX`).
pub const EXTRA_TYPE_MAX: u8 = 6;
pub const EXTRA_FLAG_MORE: u8 = 1;
pub const GSO_TCPV4: u8 = 1;
pub const GSO_TCPV6: u8 = 2;

/// `netif_extra_info`; what is not GSO is not looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra {
    pub kind: u8,
    pub flags: u8,
    pub gso_size: u16,
    pub gso_kind: u8,
}

impl Extra {
    pub fn gso(kind: u8, size: u16) -> Self {
        Self {
            kind: EXTRA_TYPE_GSO,
            flags: 0,
            gso_size: size,
            gso_kind: kind,
        }
    }

    pub fn word(self) -> u64 {
        let [a, b] = self.gso_size.to_le_bytes();
        u64::from_le_bytes([self.kind, self.flags, a, b, self.gso_kind, 0, 0, 0])
    }

    pub fn from_word(word: u64) -> Self {
        let [kind, flags, a, b, gso_kind, ..] = word.to_le_bytes();
        Self {
            kind,
            flags,
            gso_size: u16::from_le_bytes([a, b]),
            gso_kind,
        }
    }

    /// As it lies in a transmit slot, whose last word is padding.
    pub fn tx_words(self) -> [u32; 3] {
        [self.word() as u32, (self.word() >> 32) as u32, 0]
    }
}

/// `XEN_NETIF_CTRL_TYPE_*`: what is asked over the control ring.
pub mod ctrl {
    pub const GET_GREF_MAPPING_SIZE: u16 = 8;
    pub const ADD_GREF_MAPPING: u16 = 9;
    pub const DEL_GREF_MAPPING: u16 = 10;
    pub const STATUS_SUCCESS: u32 = 0;
    pub const STATUS_NOT_SUPPORTED: u32 = 1;
    /// `XEN_NETIF_CTRLF_GREF_readonly`.
    pub const GREF_READONLY: u16 = 1;
    /// `xen_netif_gref`, so many of them in a page.
    pub const GREFS_PER_PAGE: usize = 4096 / 8;
}

/// `xen_netif_ctrl_request`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtrlRequest {
    pub id: u16,
    pub kind: u16,
    pub data: [u32; 3],
}

impl CtrlRequest {
    pub fn words(self) -> [u32; 4] {
        let [a, b, c] = self.data;
        [pair(self.id, self.kind), a, b, c]
    }

    pub fn from_words([first, a, b, c]: [u32; 4]) -> Self {
        let (id, kind) = halves(first);
        Self {
            id,
            kind,
            data: [a, b, c],
        }
    }
}

/// `xen_netif_ctrl_response`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtrlResponse {
    pub id: u16,
    pub kind: u16,
    pub status: u32,
    pub data: u32,
}

impl CtrlResponse {
    pub fn words(self) -> [u32; 3] {
        [pair(self.id, self.kind), self.status, self.data]
    }

    pub fn from_words([first, status, data]: [u32; 3]) -> Self {
        let (id, kind) = halves(first);
        Self {
            id,
            kind,
            status,
            data,
        }
    }
}

/// `xen_netif_gref`: an entry of the list that ADD_GREF_MAPPING and DEL_GREF_MAPPING point to.
pub fn gref_entry(gref: u32, flags: u16) -> u64 {
    u64::from(gref) | u64::from(flags) << 32
}

/// x86 is little-endian: the first of two 16-bit fields is the low half.
fn pair(first: u16, second: u16) -> u32 {
    u32::from(first) | u32::from(second) << 16
}

fn halves(word: u32) -> (u16, u16) {
    (word as u16, (word >> 16) as u16)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    /// The sizes that every backend computes from ring.h's macro for one page.
    #[test]
    fn rings_have_the_slots_of_ring_h() {
        assert_eq!((TX_SLOTS, RX_SLOTS, CTRL_SLOTS), (256, 256, 128));
    }

    /// Byte for byte as the pictures in io/netif.h show them.
    #[test]
    fn slots_lie_as_in_netif_h() {
        let request = TxRequest {
            gref: 0x0403_0201,
            offset: 0x0605,
            flags: 0x0807,
            id: 0x0a09,
            size: 0x0c0b,
        };
        let bytes: Vec<u8> = request
            .words()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        assert_eq!(bytes, (1..=12).collect::<Vec<u8>>());
        assert_eq!(TxRequest::from_words(request.words()), request);
        let response = RxResponse {
            id: 0x0201,
            offset: 0x0403,
            flags: 0x0605,
            status: 0x0807,
        };
        assert_eq!(response.word().to_le_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(RxResponse::from_word(response.word()), response);
        let request = RxRequest {
            id: 0x0201,
            gref: 0x0807_0605,
        };
        assert_eq!(request.word().to_le_bytes(), [1, 2, 0, 0, 5, 6, 7, 8]);
        let extra = Extra::gso(GSO_TCPV6, 0x0403);
        assert_eq!(extra.word().to_le_bytes(), [1, 0, 3, 4, 2, 0, 0, 0]);
        assert_eq!(Extra::from_word(extra.word()), extra);
        let response = TxResponse { id: 7, status: -1 };
        assert_eq!(TxResponse::from_word(response.word()), response);
        assert_eq!(response.word().to_le_bytes(), [7, 0, 0xff, 0xff]);
    }
}
