//! Rules that write into a packet: bytes change, and the checksums over them follow.

use super::Live;
use crate::conntrack::{Zero, adjust, transport_checksum};
use crate::packet::{PROTO_UDP, Packet};
use crate::rules::PayloadBase;

/// A place in a header that is written to.
pub(super) struct Field {
    pub start: usize,
    pub offset: u16,
    pub len: u8,
    pub checksum: Option<u16>,
    pub pseudo: bool,
}

impl Live<'_, '_, '_> {
    /// Writes a field; the checksums that cover it follow.
    pub(super) fn write(&mut self, base: PayloadBase, field: &Field, value: u128) -> Option<()> {
        let at = field.start + usize::from(field.offset);
        let len = usize::from(field.len);
        // A checksum is summed in pairs of bytes, so a whole number of pairs is looked at.
        let (even, pairs) = (at - (at - field.start) % 2, len + (at - field.start) % 2);
        let pairs = pairs.next_multiple_of(2).min(18);
        let mut old = [0; 18];
        let span = self
            .packet
            .slice(even, pairs)
            .map_or(pairs - 1, <[u8]>::len);
        old[..span].copy_from_slice(self.packet.slice(even, span)?);

        // A sum that is cut off cannot follow: then nothing changes.
        let is_cut = |packet: &Packet| {
            let transport = packet.transport().filter(|t| field.pseudo && !t.fragment);
            let place = transport.and_then(|t| {
                let (sum, _) = transport_checksum(t.protocol).filter(|(_, pseudo)| *pseudo)?;
                Some(t.at + sum)
            });
            place.is_some_and(|sum_at| packet.slice(sum_at, 2).is_none())
        };
        if is_cut(self.packet) {
            return None;
        }
        let place = self.packet.slice_mut(at, len)?;
        place.copy_from_slice(&value.to_be_bytes()[16 - len..]);

        let mut new = [0; 18];
        new[..span].copy_from_slice(self.packet.slice(even, span)?);
        let is_udp = self.packet.transport().map(|t| t.protocol) == Some(PROTO_UDP);
        let zero = |is_udp: bool| match is_udp {
            true => Zero::Absent,
            false => Zero::Avoided,
        };
        if let Some(sum) = field.checksum {
            let zero = zero(is_udp && base == PayloadBase::Transport);
            let at = field.start + usize::from(sum);
            adjust(self.packet, at, &old[..span], &new[..span], zero);
        }
        if field.pseudo
            && let Some(transport) = self.packet.transport().filter(|t| !t.fragment)
            && let Some((sum, true)) = transport_checksum(transport.protocol)
        {
            let at = transport.at + sum;
            adjust(self.packet, at, &old[..span], &new[..span], zero(is_udp));
        }
        Some(())
    }
}
