//! Packets as they lie on a wire, with sums that are right.

use std::net::IpAddr;

/// What is behind the IP header.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    Tcp {
        source: u16,
        destination: u16,
        flags: u8,
        options: Vec<u8>,
    },
    Udp {
        source: u16,
        destination: u16,
        no_checksum: bool,
    },
    /// Type, code, identifier.
    Icmp { kind: u8, code: u8, id: u16 },
    /// Another protocol with nothing that anyone reads.
    Other(u8),
}

/// One IP packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ip {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Of IPv4; IPv6 carries it as the flow label. Tells packets apart.
    pub id: u16,
    pub ttl: u8,
    /// Differentiated services and ECN.
    pub tos: u8,
    pub body: Body,
    pub payload: usize,
    /// IPv4: four no-operation options. IPv6: a destination options header.
    pub options: bool,
    /// Offset in units of eight bytes, and whether more follow.
    pub fragment: Option<(u16, bool)>,
    /// Bytes cut off the end of the transport part.
    pub cut: usize,
}

impl Ip {
    pub fn new(source: IpAddr, destination: IpAddr, body: Body) -> Ip {
        Ip {
            source,
            destination,
            id: 0,
            ttl: 64,
            tos: 0,
            body,
            payload: 8,
            options: false,
            fragment: None,
            cut: 0,
        }
    }

    pub fn udp(source: &str, destination: &str, from: u16, to: u16) -> Ip {
        let body = Body::Udp {
            source: from,
            destination: to,
            no_checksum: false,
        };
        Ip::new(address(source), address(destination), body)
    }

    pub fn tcp(source: &str, destination: &str, from: u16, to: u16, flags: u8) -> Ip {
        let body = Body::Tcp {
            source: from,
            destination: to,
            flags,
            options: Vec::new(),
        };
        Ip::new(address(source), address(destination), body)
    }

    pub fn is_six(&self) -> bool {
        self.destination.is_ipv6()
    }

    fn protocol(&self) -> u8 {
        match self.body {
            Body::Tcp { .. } => 6,
            Body::Udp { .. } => 17,
            Body::Icmp { .. } if self.is_six() => 58,
            Body::Icmp { .. } => 1,
            Body::Other(protocol) => protocol,
        }
    }

    /// From the IP header on.
    pub fn bytes(&self) -> Vec<u8> {
        let mut segment = self.segment();
        segment.truncate(segment.len().saturating_sub(self.cut));
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header_len = if self.options { 24 } else { 20 };
                let (offset, more) = self.fragment.unwrap_or((0, false));
                let mut header = vec![0x40 | (header_len / 4) as u8, self.tos];
                header.extend(((header_len + segment.len()) as u16).to_be_bytes());
                header.extend(self.id.to_be_bytes());
                header.extend((offset | if more { 0x2000 } else { 0 }).to_be_bytes());
                header.extend([self.ttl, self.protocol(), 0, 0]);
                header.extend(source.octets());
                header.extend(destination.octets());
                header.resize(header_len, 1);
                let sum = checksum(&header, 0);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                header.extend(segment);
                header
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut extensions = Vec::new();
                let mut next = self.protocol();
                if let Some((offset, more)) = self.fragment {
                    extensions = vec![next, 0];
                    extensions.extend((offset << 3 | u16::from(more)).to_be_bytes());
                    extensions.extend(u32::from(self.id).to_be_bytes());
                    next = 44;
                }
                if self.options {
                    extensions.splice(0..0, [next, 0, 1, 4, 0, 0, 0, 0]);
                    next = 60;
                }
                let first = 6 << 28 | u32::from(self.tos) << 20 | u32::from(self.id);
                let mut header = first.to_be_bytes().to_vec();
                header.extend(((extensions.len() + segment.len()) as u16).to_be_bytes());
                header.extend([next, self.ttl]);
                header.extend(source.octets());
                header.extend(destination.octets());
                header.extend(extensions);
                header.extend(segment);
                header
            }
            _ => Vec::new(),
        }
    }

    /// The transport header and the payload, with their checksum.
    fn segment(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut sum_at = None;
        match &self.body {
            Body::Tcp {
                source,
                destination,
                flags,
                options,
            } => {
                bytes.extend(source.to_be_bytes());
                bytes.extend(destination.to_be_bytes());
                bytes.extend(1_000_u32.to_be_bytes());
                bytes.extend(2_000_u32.to_be_bytes());
                bytes.extend([
                    (((20 + options.len()) / 4) << 4) as u8,
                    *flags,
                    0x20,
                    0,
                    0,
                    0,
                    0,
                    0,
                ]);
                bytes.extend(options);
                sum_at = Some(16);
            }
            Body::Udp {
                source,
                destination,
                no_checksum,
            } => {
                bytes.extend(source.to_be_bytes());
                bytes.extend(destination.to_be_bytes());
                bytes.extend(((8 + self.payload) as u16).to_be_bytes());
                bytes.extend([0, 0]);
                sum_at = (!no_checksum).then_some(6);
            }
            Body::Icmp { kind, code, id } => {
                bytes.extend([*kind, *code, 0, 0]);
                bytes.extend(id.to_be_bytes());
                bytes.extend([0, 1]);
                sum_at = Some(2);
            }
            Body::Other(_) => {}
        }
        bytes.extend((0..self.payload).map(|n| n as u8));
        if let Some(at) = sum_at {
            let start = match (self.source, self.destination) {
                (IpAddr::V4(_), _) if self.protocol() == 1 => 0,
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    let addresses = [source.octets(), destination.octets()].concat();
                    pseudo(&addresses, bytes.len(), self.protocol())
                }
                (IpAddr::V6(source), IpAddr::V6(destination)) => {
                    let addresses = [source.octets(), destination.octets()].concat();
                    pseudo(&addresses, bytes.len(), self.protocol())
                }
                _ => 0,
            };
            let sum = checksum(&bytes, start).to_be_bytes();
            bytes[at..at + 2].copy_from_slice(&sum);
        }
        bytes
    }

    /// In an Ethernet frame, behind these VLAN tags.
    pub fn frame(&self, to: [u8; 6], from: [u8; 6], tags: &[u16]) -> Vec<u8> {
        let mut frame = [to, from].concat();
        for tag in tags {
            frame.extend([0x81, 0x00]);
            frame.extend(tag.to_be_bytes());
        }
        frame.extend(if self.is_six() {
            [0x86, 0xdd]
        } else {
            [0x08, 0x00]
        });
        frame.extend(self.bytes());
        frame
    }
}

fn pseudo(addresses: &[u8], len: usize, protocol: u8) -> u32 {
    u32::from(!checksum(addresses, 0)) + len as u32 + u32::from(protocol)
}

pub fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = u64::from(start);
    for pair in bytes.chunks(2) {
        sum += u64::from(u16::from_be_bytes([
            pair[0],
            pair.get(1).copied().unwrap_or(0),
        ]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Of a text that a test wrote.
pub fn address(text: &str) -> IpAddr {
    text.parse()
        .unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED))
}
