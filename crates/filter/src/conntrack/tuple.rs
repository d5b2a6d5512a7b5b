//! What a flow is known by.

use crate::packet::{
    Layer, PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP, Packet, be16, be32, number,
};

/// One direction of a flow. IPv4 addresses stand in the low bits. For ICMP the "ports"
/// are the identifier, and type and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    pub source: u128,
    pub destination: u128,
    pub source_port: u16,
    pub destination_port: u16,
    pub protocol: u8,
    /// IPv6.
    pub six: bool,
}

/// ICMP types that ask, each with the type that answers.
const ICMP_PAIRS: [(u8, u8); 4] = [(8, 0), (13, 14), (15, 16), (17, 18)];
const ICMPV6_PAIRS: [(u8, u8); 2] = [(128, 129), (139, 140)];

impl Tuple {
    /// The tuple of the way back.
    pub fn inverted(&self) -> Tuple {
        let mut back = Tuple {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..*self
        };
        let pairs: &[(u8, u8)] = match self.protocol {
            PROTO_ICMP if !self.six => &ICMP_PAIRS,
            PROTO_ICMPV6 if self.six => &ICMPV6_PAIRS,
            _ => return back,
        };
        let (kind, code) = (
            (self.destination_port >> 8) as u8,
            self.destination_port & 0xff,
        );
        let other = pairs.iter().find_map(|(a, b)| {
            if *a == kind {
                Some(*b)
            } else {
                (*b == kind).then_some(*a)
            }
        });
        back.source_port = self.source_port;
        back.destination_port = u16::from(other.unwrap_or(kind)) << 8 | code;
        back
    }

    /// Of the packet's own headers. `None` if they cannot be read.
    pub(crate) fn of(packet: &Packet) -> Option<Tuple> {
        let transport = packet.transport().filter(|t| !t.fragment)?;
        let six = packet.layer() == Layer::Ip6;
        let at = packet.network_at();
        let header = packet.slice(at, if six { 40 } else { 20 })?;
        let rest = packet.slice(transport.at, 0).map(|_| transport.at)?;
        let head = packet
            .slice(rest, 8)
            .or_else(|| packet.slice(rest, 4))
            .unwrap_or(&[]);
        Tuple::read(header, head, transport.protocol, six)
    }

    /// Of an IP header and the first bytes behind it.
    pub(super) fn read(header: &[u8], head: &[u8], protocol: u8, six: bool) -> Option<Tuple> {
        let (source, destination) = match six {
            true => (number(header.get(8..24)?), number(header.get(24..40)?)),
            false => (be32(header, 12)?.into(), be32(header, 16)?.into()),
        };
        let (source_port, destination_port) = match protocol {
            PROTO_TCP | PROTO_UDP | PROTO_SCTP => (be16(head, 0)?, be16(head, 2)?),
            PROTO_ICMP if !six => (be16(head, 4)?, be16(head, 0)?),
            PROTO_ICMPV6 if six => (be16(head, 4)?, be16(head, 0)?),
            _ => (0, 0),
        };
        Some(Tuple {
            source,
            destination,
            source_port,
            destination_port,
            protocol,
            six,
        })
    }

    /// A first packet of this kind may begin a flow; answers and messages about others may not.
    pub(super) fn may_begin(&self) -> bool {
        let kind = (self.destination_port >> 8) as u8;
        match self.protocol {
            PROTO_ICMP if !self.six => ICMP_PAIRS.iter().any(|(asks, _)| *asks == kind),
            PROTO_ICMPV6 if self.six => ICMPV6_PAIRS.iter().any(|(asks, _)| *asks == kind),
            _ => true,
        }
    }

    pub(crate) fn has_ports(&self) -> bool {
        matches!(self.protocol, PROTO_TCP | PROTO_UDP | PROTO_SCTP)
    }
}
