//! One packet as the filter sees it: its bytes, where it came from and goes to, and where
//! its headers lie.
//!
//! Nothing of a packet is believed. Headers are found once, with every offset checked
//! against the bytes that are there and every walk bounded; what cannot be found is
//! absent, and a rule that asks for it does not match, as in the kernel. What counts as
//! the packet's end differs by layer: on the IP hooks it is the length in the IP header
//! (the kernel has trimmed padding by then), on the others the last byte of the frame.
//! One VLAN tag is taken as the network card would take it: it stays readable behind the
//! link header, and the network header begins behind it.

use crate::conntrack::Tracking;

/// Which lists of base chains a packet meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    Netdev,
    Bridge,
    Arp,
    Ip,
    Ip6,
}

impl Layer {
    pub(crate) const COUNT: usize = 5;

    /// What `meta nfproto` says (AF_NETDEV, AF_BRIDGE ... of linux/netfilter.h).
    pub(crate) fn nfproto(self) -> u8 {
        match self {
            Layer::Netdev => 5,
            Layer::Bridge => 7,
            Layer::Arp => 3,
            Layer::Ip => 2,
            Layer::Ip6 => 10,
        }
    }
}

pub(crate) const ETHERTYPE_IP: u16 = 0x0800;
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
pub(crate) const ETHERTYPE_VLAN: u16 = 0x8100;
pub(crate) const ETHERTYPE_QINQ: u16 = 0x88a8;
pub(crate) const ETHERTYPE_IP6: u16 = 0x86dd;

pub(crate) const PROTO_ICMP: u8 = 1;
pub(crate) const PROTO_TCP: u8 = 6;
pub(crate) const PROTO_UDP: u8 = 17;
pub(crate) const PROTO_ICMPV6: u8 = 58;
pub(crate) const PROTO_SCTP: u8 = 132;

/// An interface, as far as rules can ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iface {
    pub index: u32,
    name: u128,
    /// ARPHRD_*: 1 Ethernet, 772 loopback.
    pub kind: u16,
    pub group: u32,
}

impl Iface {
    /// An Ethernet interface. Names longer than 15 bytes are cut.
    pub fn new(index: u32, name: &str) -> Iface {
        let mut bytes = [0; 16];
        let len = name.len().min(15);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Iface {
            index,
            name: u128::from_be_bytes(bytes),
            kind: 1,
            group: 0,
        }
    }

    /// The name as 16 bytes padded with zeros, read as one number.
    pub fn name_number(&self) -> u128 {
        self.name
    }
}

/// What came with the packet besides its bytes. Rules may change mark and priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Meta {
    pub iif: Option<Iface>,
    pub oif: Option<Iface>,
    pub iif_bridge: Option<Iface>,
    pub oif_bridge: Option<Iface>,
    pub mark: u32,
    pub priority: u32,
    /// PACKET_HOST 0, broadcast 1, multicast 2, other host 3, outgoing 4.
    pub pkttype: u8,
    pub cpu: u32,
    /// Of the socket that sent it, if it is known.
    pub skuid: Option<u32>,
    pub skgid: Option<u32>,
    pub nftrace: bool,
}

/// Where the transport header lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transport {
    pub protocol: u8,
    /// From the start of the bytes.
    pub at: usize,
    /// Not the first fragment: there is no transport header, only the protocol's number.
    pub fragment: bool,
}

/// A packet and what the filter keeps with it from hook to hook.
#[derive(Debug)]
pub struct Packet<'a> {
    bytes: &'a mut [u8],
    /// Where the network header begins; 0 if there is no link header.
    network: usize,
    /// Where the packet ends for the layer that looks at it.
    end: usize,
    layer: Layer,
    protocol: u16,
    transport: Option<Transport>,
    pub meta: Meta,
    pub(crate) tracking: Tracking,
}

impl<'a> Packet<'a> {
    /// A frame that begins with its Ethernet header. `None` if that header is cut.
    pub fn ethernet(bytes: &'a mut [u8], meta: Meta) -> Option<Packet<'a>> {
        let mut protocol = be16(bytes, 12)?;
        let mut network = 14;
        if (protocol == ETHERTYPE_VLAN || protocol == ETHERTYPE_QINQ)
            && let Some(inner) = be16(bytes, 16)
        {
            (protocol, network) = (inner, 18);
        }
        let end = bytes.len();
        let tracking = Tracking::default();
        let layer = Layer::Netdev;
        Some(Packet {
            bytes,
            network,
            end,
            layer,
            protocol,
            transport: None,
            meta,
            tracking,
        })
    }

    /// A packet that begins with its IPv4 or IPv6 header. `None` if it is neither.
    pub fn ip(bytes: &'a mut [u8], meta: Meta) -> Option<Packet<'a>> {
        let protocol = match bytes.first()? >> 4 {
            4 => ETHERTYPE_IP,
            6 => ETHERTYPE_IP6,
            _ => return None,
        };
        let end = bytes.len();
        let tracking = Tracking::default();
        let layer = Layer::Netdev;
        Some(Packet {
            bytes,
            network: 0,
            end,
            layer,
            protocol,
            transport: None,
            meta,
            tracking,
        })
    }

    /// All bytes, as rules have left them.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// For the stack around the filter (a hop less to live). The next hook finds the
    /// headers again.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// The IP layer that would take the packet, if one would.
    pub fn ip_layer(&self) -> Option<Layer> {
        match self.protocol {
            ETHERTYPE_IP => Some(Layer::Ip),
            ETHERTYPE_IP6 => Some(Layer::Ip6),
            ETHERTYPE_ARP => Some(Layer::Arp),
            _ => None,
        }
    }

    /// Looks at the packet from a layer: finds its end and its transport header.
    /// False if it is not sound enough for that layer (the stack would have dropped it).
    pub(crate) fn enter(&mut self, layer: Layer) -> bool {
        self.layer = layer;
        self.end = self.bytes.len();
        let wanted = match layer {
            Layer::Ip => ETHERTYPE_IP,
            Layer::Ip6 => ETHERTYPE_IP6,
            Layer::Arp => ETHERTYPE_ARP,
            Layer::Netdev | Layer::Bridge => self.protocol,
        };
        if wanted != self.protocol {
            return false;
        }
        let found = match self.protocol {
            ETHERTYPE_IP => self.find_ip(),
            ETHERTYPE_IP6 => self.find_ip6(),
            _ => None,
        };
        self.transport = found.and_then(|(_, transport)| transport);
        match (layer, found) {
            (Layer::Ip | Layer::Ip6, Some((end, _))) => {
                self.end = end;
                true
            }
            (Layer::Ip | Layer::Ip6, None) => false,
            _ => true,
        }
    }

    /// Where the IPv4 packet ends, and its transport header.
    fn find_ip(&self) -> Option<(usize, Option<Transport>)> {
        let first = *self.bytes.get(self.network)?;
        let (version, header) = (first >> 4, usize::from(first & 15) * 4);
        let total = usize::from(be16(self.bytes, self.network + 2)?);
        let protocol = *self.bytes.get(self.network + 9)?;
        self.bytes.get(self.network..self.network + 20)?;
        let room = self.bytes.len() - self.network;
        if version != 4 || header < 20 || total < header || total > room {
            return None;
        }
        let fragment = be16(self.bytes, self.network + 6)? & 0x1fff != 0;
        let transport = Transport {
            protocol,
            at: self.network + header,
            fragment,
        };
        Some((self.network + total, Some(transport)))
    }

    /// Where the IPv6 packet ends, and its transport header if the chain of extension
    /// headers leads to one (RFC 8200 section 4). Each header is at least 8 bytes long,
    /// so that the walk ends with the packet.
    fn find_ip6(&self) -> Option<(usize, Option<Transport>)> {
        let header = self.bytes.get(self.network..self.network + 40)?;
        let total = 40 + usize::from(be16(header, 4)?);
        if header[0] >> 4 != 6 || total > self.bytes.len() - self.network {
            return None;
        }
        let end = self.network + total;
        Some((end, self.walk_ip6(end)))
    }

    fn walk_ip6(&self, end: usize) -> Option<Transport> {
        let packet = &self.bytes[..end];
        let mut next = *packet.get(self.network + 6)?;
        let mut at = self.network + 40;
        while is_extension(next) {
            let after = *packet.get(at)?;
            let length = usize::from(*packet.get(at + 1)?);
            match next {
                EXT_FRAGMENT => {
                    if be16(packet, at + 2)? & !7 != 0 {
                        // Of a later fragment only the protocol is known, and not even
                        // that if more extension headers would have followed.
                        let protocol = after;
                        return (!is_extension(after)).then_some(Transport {
                            protocol,
                            at: 0,
                            fragment: true,
                        });
                    }
                    at += 8;
                }
                EXT_AUTH => at += (length + 2) * 4,
                _ => at += (length + 1) * 8,
            }
            next = after;
        }
        Some(Transport {
            protocol: next,
            at,
            fragment: false,
        })
    }

    /// Bytes that a rule asks for; `None` if there are not that many.
    #[inline]
    pub(crate) fn slice(&self, at: usize, len: usize) -> Option<&[u8]> {
        self.bytes.get(..self.end)?.get(at..at.checked_add(len)?)
    }

    #[inline]
    pub(crate) fn slice_mut(&mut self, at: usize, len: usize) -> Option<&mut [u8]> {
        self.bytes
            .get_mut(..self.end)?
            .get_mut(at..at.checked_add(len)?)
    }

    #[inline]
    pub(crate) fn network_at(&self) -> usize {
        self.network
    }

    pub(crate) fn has_link(&self) -> bool {
        self.network >= 14
    }

    #[inline]
    pub(crate) fn transport(&self) -> Option<Transport> {
        self.transport
    }

    /// Where the transport header begins, if the packet has one.
    #[inline]
    pub(crate) fn transport_at(&self) -> Option<usize> {
        self.transport.filter(|t| !t.fragment).map(|t| t.at)
    }

    /// Behind the transport header, for the protocols whose header's length is known.
    pub(crate) fn inner_at(&self) -> Option<usize> {
        let at = self.transport_at()?;
        match self.transport?.protocol {
            PROTO_UDP => Some(at + 8),
            PROTO_TCP => Some(at + usize::from(*self.slice(at + 12, 1)?.first()? >> 4) * 4),
            _ => None,
        }
    }

    pub(crate) fn ethertype(&self) -> u16 {
        self.protocol
    }

    /// What counters and `meta length` count: from the network header to the end.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end - self.network
    }

    /// Where an IPv6 extension header of this kind begins; the walk ends at the transport
    /// header.
    pub(crate) fn find_extension(&self, kind: u8) -> Option<usize> {
        if self.protocol != ETHERTYPE_IP6 {
            return None;
        }
        let packet = self.bytes.get(..self.end)?;
        let mut next = *packet.get(self.network + 6)?;
        let mut at = self.network + 40;
        while is_extension(next) || next == kind {
            packet.get(at..at + 2)?;
            if next == kind {
                return Some(at);
            }
            let length = usize::from(packet[at + 1]);
            let after = packet[at];
            match next {
                EXT_FRAGMENT if be16(packet, at + 2)? & !7 != 0 => return None,
                EXT_FRAGMENT => at += 8,
                EXT_AUTH => at += (length + 2) * 4,
                _ => at += (length + 1) * 8,
            }
            next = after;
        }
        None
    }

    /// Where a TCP option of this kind begins, and how long it is.
    pub(crate) fn find_tcp_option(&self, kind: u8) -> Option<(usize, usize)> {
        let transport = self
            .transport
            .filter(|t| t.protocol == PROTO_TCP && !t.fragment)?;
        let header = usize::from(self.slice(transport.at, 20)?[12] >> 4) * 4;
        let options = self.slice(transport.at, header)?.get(20..)?;
        // As the kernel walks (nft_exthdr.c): the end of the list does not stop it, a
        // length of zero counts as one, and the last byte alone is no option.
        let mut at = 0;
        while at + 1 < options.len() {
            let (found, length) = (options[at], usize::from(options[at + 1]));
            let len = if found <= 1 || length == 0 { 1 } else { length };
            if found == kind {
                return (at + len <= options.len()).then_some((transport.at + 20 + at, len));
            }
            at += len;
        }
        None
    }
}

const EXT_FRAGMENT: u8 = 44;
const EXT_AUTH: u8 = 51;

/// Hop-by-hop, routing, fragment, authentication, destination options. (No next header,
/// 59, ends the walk.)
fn is_extension(protocol: u8) -> bool {
    matches!(protocol, 0 | 43 | EXT_FRAGMENT | EXT_AUTH | 60)
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Up to 16 bytes as one number.
#[inline]
pub(crate) fn number(bytes: &[u8]) -> u128 {
    match bytes.len() {
        1 => bytes[0].into(),
        2 => u16::from_be_bytes([bytes[0], bytes[1]]).into(),
        4 => u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
        16 => u128::from_be_bytes(bytes.try_into().unwrap_or_default()),
        _ => bytes.iter().fold(0, |sum, b| sum << 8 | u128::from(*b)),
    }
}
