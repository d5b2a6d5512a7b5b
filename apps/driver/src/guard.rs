//! What a stack may send: frames from its own addresses.
//!
//! The bridge's filter says the same, and more of neighbour discovery. This is the first of the two, so that neither a fault
//! there nor one here lets a stack be somebody else. Only a copy of a frame's head is looked at, which is then also what is
//! sent: the stack may change its own memory at any moment.

use crate::config::Mac;
use fordway_platform::frames::FrameNotes;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a frame's beginning that are looked at: Ethernet's header, and an IPv6 header.
pub const HEAD_BYTES: usize = ETHERNET_BYTES + 40;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Smallest segments that Linux lets a far end ask for (TCP_MIN_MSS).
const TRAIN_PIECE_BYTES_MIN: u16 = 88;
/// For Ethernet and IPv4 (RFC 826).
const ARP_BYTES: usize = 28;

/// Why a frame was not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It ends within a header.
    Short,
    /// It is longer than any frame.
    Long,
    /// Its source is another Ethernet address than the stack's.
    SourceMac,
    /// It is neither IP nor ARP, or has a VLAN tag.
    Kind,
    /// Its source, or whom it speaks for, is an address that the stack has not.
    SourceAddress,
    /// What the kernel is to do would change a header that was looked at, or is more work than any frame needs.
    Notes,
    /// The kernel did not take it: no link, no memory, or notes that cannot be.
    Kernel,
}

impl Refusal {
    /// All of them, in the order of their counters.
    pub const ALL: [Refusal; 7] = [
        Refusal::Short,
        Refusal::Long,
        Refusal::SourceMac,
        Refusal::Kind,
        Refusal::SourceAddress,
        Refusal::Notes,
        Refusal::Kernel,
    ];

    /// As logs name it.
    pub fn word(self) -> &'static str {
        match self {
            Refusal::Short => "short",
            Refusal::Long => "long",
            Refusal::SourceMac => "source-mac",
            Refusal::Kind => "kind",
            Refusal::SourceAddress => "source-address",
            Refusal::Notes => "notes",
            Refusal::Kernel => "kernel",
        }
    }
}

/// What a stack may ask the kernel to do to a frame. A checksum is written behind the first address header: in front of that, whoever
/// completes it would write over an address that was looked at. A train has pieces of a size that TCP may have.
pub fn check_notes(head: &[u8], notes: FrameNotes) -> Result<(), Refusal> {
    let header_end = match head.get(12..14) {
        Some([0x08, 0x00]) => ETHERNET_BYTES + IPV4_BYTES,
        Some([0x86, 0xdd]) => ETHERNET_BYTES + IPV6_BYTES,
        _ => usize::MAX,
    };
    let is_sound = notes
        .checksum
        .is_none_or(|(start, _)| usize::from(start) >= header_end)
        && notes
            .gso_bytes
            .is_none_or(|bytes| bytes >= TRAIN_PIECE_BYTES_MIN);
    is_sound.then_some(()).ok_or(Refusal::Notes)
}

/// See the module.
#[derive(Debug)]
pub struct Guard {
    mac: [u8; 6],
    four: Vec<[u8; 4]>,
    six: Vec<[u8; 16]>,
}

impl Guard {
    /// Lets frames from these addresses pass.
    pub fn new(mac: Mac, addresses: &[IpAddr]) -> Guard {
        let mut guard = Guard {
            mac: mac.0,
            four: Vec::new(),
            // Who has no address yet asks whether one is free (RFC 4862, 5.4.2).
            six: vec![Ipv6Addr::UNSPECIFIED.octets()],
        };
        for address in addresses {
            match address {
                IpAddr::V4(address) => guard.four.push(address.octets()),
                IpAddr::V6(address) => guard.six.push(address.octets()),
            }
        }
        guard
    }

    /// What the log calls the domain: its first address, or else its Ethernet address.
    pub fn name(&self) -> String {
        match (self.four.first(), self.six.get(1)) {
            (Some(four), _) => Ipv4Addr::from(*four).to_string(),
            (None, Some(six)) => Ipv6Addr::from(*six).to_string(),
            (None, None) => self.mac.map(|byte| format!("{byte:02x}")).join(":"),
        }
    }

    /// `head` is the beginning of a frame, as much as there is of [`HEAD_BYTES`].
    pub fn check(&self, head: &[u8]) -> Result<(), Refusal> {
        let ethernet = head.first_chunk::<ETHERNET_BYTES>().ok_or(Refusal::Short)?;
        if ethernet[6..12] != self.mac {
            return Err(Refusal::SourceMac);
        }
        let rest = &head[ETHERNET_BYTES..];
        let is_own = match [ethernet[12], ethernet[13]] {
            [0x08, 0x00] => {
                let header = rest.first_chunk::<IPV4_BYTES>().ok_or(Refusal::Short)?;
                header[0] >> 4 == 4 && self.four.iter().any(|own| header[12..16] == *own)
            }
            [0x86, 0xdd] => {
                let header = rest.first_chunk::<IPV6_BYTES>().ok_or(Refusal::Short)?;
                header[0] >> 4 == 6 && self.six.iter().any(|own| header[8..24] == *own)
            }
            [0x08, 0x06] => {
                let message = rest.first_chunk::<ARP_BYTES>().ok_or(Refusal::Short)?;
                // A probe speaks for nobody (RFC 5227).
                let sender = &message[14..18];
                let is_own = self.four.iter().any(|own| sender == own);
                let is_probe = sender == Ipv4Addr::UNSPECIFIED.octets();
                message[..6] == [0, 1, 8, 0, 6, 4]
                    && message[8..14] == self.mac
                    && (is_own || is_probe)
            }
            _ => return Err(Refusal::Kind),
        };
        is_own.then_some(()).ok_or(Refusal::SourceAddress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_checksum_is_written_over_an_address() {
        let mut four = [0; HEAD_BYTES];
        four[12] = 8;
        let at = |start| FrameNotes {
            checksum: Some((start, 8)),
            ..FrameNotes::default()
        };
        assert_eq!(check_notes(&four, at(20)), Err(Refusal::Notes));
        assert_eq!(check_notes(&four, at(34)), Ok(()));
        let mut six = [0; HEAD_BYTES];
        six[12..14].copy_from_slice(&[0x86, 0xdd]);
        assert_eq!(check_notes(&six, at(34)), Err(Refusal::Notes));
        assert_eq!(check_notes(&six, at(54)), Ok(()));
        let train = |bytes| FrameNotes {
            gso_bytes: Some(bytes),
            ..at(34)
        };
        assert_eq!(check_notes(&four, train(1)), Err(Refusal::Notes));
        assert_eq!(check_notes(&four, train(1448)), Ok(()));
        assert_eq!(check_notes(&four, FrameNotes::default()), Ok(()));
    }

    const MAC: [u8; 6] = [2, 0x46, 10, 70, 0, 5];

    fn guard() -> Guard {
        let addresses = ["10.70.0.5", "fd00::a46:5", "fe80::1"];
        Guard::new(
            Mac(MAC),
            &addresses.map(|one| one.parse().expect("an address")),
        )
    }

    fn frame(source: [u8; 6], kind: [u8; 2], rest: &[u8]) -> Vec<u8> {
        [&[0xff; 6][..], &source, &kind, rest].concat()
    }

    fn four(source: [u8; 4]) -> Vec<u8> {
        let mut header = [0; IPV4_BYTES];
        header[0] = 0x45;
        header[12..16].copy_from_slice(&source);
        header.to_vec()
    }

    fn six(source: &str) -> Vec<u8> {
        let source: Ipv6Addr = source.parse().expect("an address");
        [
            &[0x60, 0, 0, 0, 0, 0, 6, 64][..],
            &source.octets(),
            &[0; 16],
        ]
        .concat()
    }

    fn arp(mac: [u8; 6], source: [u8; 4]) -> Vec<u8> {
        [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac, &source, &[0; 10]].concat()
    }

    #[test]
    fn own_frames_pass_and_each_lie_has_its_name() {
        let (own, other) = ([10, 70, 0, 5], [10, 70, 0, 6]);
        let (ip, ip6, address) = ([8, 0], [0x86, 0xdd], [8, 6]);
        let stolen = [2, 0x46, 10, 70, 0, 6];
        for (frame, verdict) in [
            (frame(MAC, ip, &four(own)), Ok(())),
            (frame(MAC, ip, &four(other)), Err(Refusal::SourceAddress)),
            (frame(stolen, ip, &four(own)), Err(Refusal::SourceMac)),
            (frame(MAC, ip, &four(own)[..19]), Err(Refusal::Short)),
            (
                frame(MAC, ip, &six("fd00::a46:5")),
                Err(Refusal::SourceAddress),
            ),
            (frame(MAC, ip6, &six("fd00::a46:5")), Ok(())),
            (frame(MAC, ip6, &six("fe80::1")), Ok(())),
            (frame(MAC, ip6, &six("::")), Ok(())),
            (
                frame(MAC, ip6, &six("fd00::a46:6")),
                Err(Refusal::SourceAddress),
            ),
            (frame(MAC, address, &arp(MAC, own)), Ok(())),
            (frame(MAC, address, &arp(MAC, [0; 4])), Ok(())),
            (
                frame(MAC, address, &arp(MAC, other)),
                Err(Refusal::SourceAddress),
            ),
            (
                frame(MAC, address, &arp(stolen, own)),
                Err(Refusal::SourceAddress),
            ),
            (frame(MAC, [0x81, 0], &four(own)), Err(Refusal::Kind)),
            (frame(MAC, [0x88, 0xb5], &[0; 46]), Err(Refusal::Kind)),
            (vec![0; 13], Err(Refusal::Short)),
        ] {
            assert_eq!(guard().check(&frame), verdict, "{frame:02x?}");
        }
    }
}
