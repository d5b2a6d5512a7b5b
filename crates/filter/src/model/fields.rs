//! The fields of protocol headers that have names, and where they lie.
//!
//! See the RFCs 791 (IP), 8200 (IPv6), 792 (ICMP), 4443 (ICMPv6), 826 (ARP), 9293 (TCP),
//! 768 (UDP), 9260 (SCTP), 4302, 4303 (IPsec), and IEEE 802.1Q.

use core::fmt;

use super::DataType;

/// The header that an offset counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PayloadBase {
    /// `@ll`
    Link,
    /// `@nh`
    Network,
    /// `@th`
    Transport,
    /// `@ih`: behind the transport header
    Inner,
}

impl PayloadBase {
    pub fn name(self) -> &'static str {
        match self {
            PayloadBase::Link => "ll",
            PayloadBase::Network => "nh",
            PayloadBase::Transport => "th",
            PayloadBase::Inner => "ih",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Ether,
    Vlan,
    Arp,
    Ip,
    Ip6,
    Icmp,
    Igmp,
    Icmpv6,
    Tcp,
    Udp,
    Udplite,
    Sctp,
    Dccp,
    /// Any protocol with ports at the start of its header.
    Th,
    Ah,
    Esp,
    Comp,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Ether => "ether",
            Protocol::Vlan => "vlan",
            Protocol::Arp => "arp",
            Protocol::Ip => "ip",
            Protocol::Ip6 => "ip6",
            Protocol::Icmp => "icmp",
            Protocol::Igmp => "igmp",
            Protocol::Icmpv6 => "icmpv6",
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Udplite => "udplite",
            Protocol::Sctp => "sctp",
            Protocol::Dccp => "dccp",
            Protocol::Th => "th",
            Protocol::Ah => "ah",
            Protocol::Esp => "esp",
            Protocol::Comp => "comp",
        }
    }

    pub fn base(self) -> PayloadBase {
        match self {
            Protocol::Ether | Protocol::Vlan => PayloadBase::Link,
            Protocol::Arp | Protocol::Ip | Protocol::Ip6 => PayloadBase::Network,
            _ => PayloadBase::Transport,
        }
    }

    /// The number of a transport protocol in IP.
    pub fn number(self) -> Option<u8> {
        Some(match self {
            Protocol::Icmp => 1,
            Protocol::Igmp => 2,
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Dccp => 33,
            Protocol::Esp => 50,
            Protocol::Ah => 51,
            Protocol::Icmpv6 => 58,
            Protocol::Comp => 108,
            Protocol::Sctp => 132,
            Protocol::Udplite => 136,
            _ => return None,
        })
    }
}

/// A field of [`FIELDS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Field(u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldDef {
    pub protocol: Protocol,
    /// As written behind the protocol's name; some have two words (`saddr ether`).
    pub name: &'static str,
    pub offset_bits: u16,
    pub bits: u16,
    pub data_type: DataType,
}

impl Field {
    pub fn by_name(protocol: Protocol, name: &str) -> Option<Field> {
        let at = FIELDS
            .iter()
            .position(|f| f.protocol == protocol && f.name == name)?;
        Some(Field(at as u16))
    }

    pub fn def(self) -> &'static FieldDef {
        &FIELDS[usize::from(self.0)]
    }
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.def().protocol.name(), self.def().name)
    }
}

/// An IPv6 extension header, or a TCP option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExthdrKind {
    Hbh,
    Rt,
    Frag,
    Dst,
    Mh,
    TcpEol,
    TcpNop,
    TcpMaxseg,
    TcpWindow,
    TcpSackPerm,
    TcpSack,
    TcpTimestamp,
}

impl ExthdrKind {
    /// Each of them.
    pub const ALL: [ExthdrKind; 12] = {
        use ExthdrKind::*;
        [
            Hbh,
            Rt,
            Frag,
            Dst,
            Mh,
            TcpEol,
            TcpNop,
            TcpMaxseg,
            TcpWindow,
            TcpSackPerm,
            TcpSack,
            TcpTimestamp,
        ]
    };

    /// `frag`; of TCP options what stands behind `tcp option`.
    pub fn name(self) -> &'static str {
        match self {
            ExthdrKind::Hbh => "hbh",
            ExthdrKind::Rt => "rt",
            ExthdrKind::Frag => "frag",
            ExthdrKind::Dst => "dst",
            ExthdrKind::Mh => "mh",
            ExthdrKind::TcpEol => "eol",
            ExthdrKind::TcpNop => "nop",
            ExthdrKind::TcpMaxseg => "maxseg",
            ExthdrKind::TcpWindow => "window",
            ExthdrKind::TcpSackPerm => "sack-perm",
            ExthdrKind::TcpSack => "sack",
            ExthdrKind::TcpTimestamp => "timestamp",
        }
    }

    /// The protocol number of an extension header, the kind of a TCP option.
    pub fn number(self) -> u8 {
        match self {
            ExthdrKind::Hbh => 0,
            ExthdrKind::Rt => 43,
            ExthdrKind::Frag => 44,
            ExthdrKind::Dst => 60,
            ExthdrKind::Mh => 135,
            ExthdrKind::TcpEol => 0,
            ExthdrKind::TcpNop => 1,
            ExthdrKind::TcpMaxseg => 2,
            ExthdrKind::TcpWindow => 3,
            ExthdrKind::TcpSackPerm => 4,
            ExthdrKind::TcpSack => 5,
            ExthdrKind::TcpTimestamp => 8,
        }
    }

    pub fn is_tcp_option(self) -> bool {
        self >= ExthdrKind::TcpEol
    }
}

/// A field of [`EXTHDR_FIELDS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExthdrField(u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExthdrDef {
    pub kind: ExthdrKind,
    pub name: &'static str,
    pub offset_bits: u16,
    pub bits: u16,
    pub data_type: DataType,
}

impl ExthdrField {
    pub fn by_name(kind: ExthdrKind, name: &str) -> Option<ExthdrField> {
        let at = EXTHDR_FIELDS
            .iter()
            .position(|f| f.kind == kind && f.name == name)?;
        Some(ExthdrField(at as u16))
    }

    /// Some field of that header, for [`super::Expr::ExthdrExists`].
    pub fn first(kind: ExthdrKind) -> ExthdrField {
        ExthdrField(
            EXTHDR_FIELDS
                .iter()
                .position(|f| f.kind == kind)
                .unwrap_or(0) as u16,
        )
    }

    pub fn def(self) -> &'static ExthdrDef {
        &EXTHDR_FIELDS[usize::from(self.0)]
    }
}

impl fmt::Debug for ExthdrField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.def().kind.name(), self.def().name)
    }
}

const fn field(
    protocol: Protocol,
    name: &'static str,
    offset_bits: u16,
    bits: u16,
    data_type: DataType,
) -> FieldDef {
    FieldDef {
        protocol,
        name,
        offset_bits,
        bits,
        data_type,
    }
}

const fn exthdr(
    kind: ExthdrKind,
    name: &'static str,
    offset_bits: u16,
    bits: u16,
    data_type: DataType,
) -> ExthdrDef {
    ExthdrDef {
        kind,
        name,
        offset_bits,
        bits,
        data_type,
    }
}

/// Every payload field that has a name. [`Field`] is an index into it.
pub static FIELDS: &[FieldDef] = &[
    field(Protocol::Ether, "daddr", 0, 48, DataType::EtherAddr),
    field(Protocol::Ether, "saddr", 48, 48, DataType::EtherAddr),
    field(Protocol::Ether, "type", 96, 16, DataType::EtherType),
    field(Protocol::Vlan, "pcp", 112, 3, DataType::Integer(3)),
    field(Protocol::Vlan, "dei", 115, 1, DataType::Integer(1)),
    field(Protocol::Vlan, "cfi", 115, 1, DataType::Integer(1)),
    field(Protocol::Vlan, "id", 116, 12, DataType::Integer(12)),
    field(Protocol::Vlan, "type", 128, 16, DataType::EtherType),
    field(Protocol::Arp, "htype", 0, 16, DataType::Integer(16)),
    field(Protocol::Arp, "ptype", 16, 16, DataType::EtherType),
    field(Protocol::Arp, "hlen", 32, 8, DataType::Integer(8)),
    field(Protocol::Arp, "plen", 40, 8, DataType::Integer(8)),
    field(Protocol::Arp, "operation", 48, 16, DataType::ArpOp),
    field(Protocol::Arp, "saddr ether", 64, 48, DataType::EtherAddr),
    field(Protocol::Arp, "saddr ip", 112, 32, DataType::Ipv4Addr),
    field(Protocol::Arp, "daddr ether", 144, 48, DataType::EtherAddr),
    field(Protocol::Arp, "daddr ip", 192, 32, DataType::Ipv4Addr),
    field(Protocol::Ip, "version", 0, 4, DataType::Integer(4)),
    field(Protocol::Ip, "hdrlength", 4, 4, DataType::Integer(4)),
    field(Protocol::Ip, "dscp", 8, 6, DataType::Dscp),
    field(Protocol::Ip, "ecn", 14, 2, DataType::Ecn),
    field(Protocol::Ip, "length", 16, 16, DataType::Integer(16)),
    field(Protocol::Ip, "id", 32, 16, DataType::Integer(16)),
    field(Protocol::Ip, "frag-off", 48, 16, DataType::Integer(16)),
    field(Protocol::Ip, "ttl", 64, 8, DataType::Integer(8)),
    field(Protocol::Ip, "protocol", 72, 8, DataType::InetProto),
    field(Protocol::Ip, "checksum", 80, 16, DataType::Integer(16)),
    field(Protocol::Ip, "saddr", 96, 32, DataType::Ipv4Addr),
    field(Protocol::Ip, "daddr", 128, 32, DataType::Ipv4Addr),
    field(Protocol::Ip6, "version", 0, 4, DataType::Integer(4)),
    field(Protocol::Ip6, "dscp", 4, 6, DataType::Dscp),
    field(Protocol::Ip6, "ecn", 10, 2, DataType::Ecn),
    field(Protocol::Ip6, "flowlabel", 12, 20, DataType::Integer(20)),
    field(Protocol::Ip6, "length", 32, 16, DataType::Integer(16)),
    field(Protocol::Ip6, "nexthdr", 48, 8, DataType::InetProto),
    field(Protocol::Ip6, "hoplimit", 56, 8, DataType::Integer(8)),
    field(Protocol::Ip6, "saddr", 64, 128, DataType::Ipv6Addr),
    field(Protocol::Ip6, "daddr", 192, 128, DataType::Ipv6Addr),
    field(Protocol::Icmp, "type", 0, 8, DataType::IcmpType),
    field(Protocol::Icmp, "code", 8, 8, DataType::IcmpCode),
    field(Protocol::Icmp, "checksum", 16, 16, DataType::Integer(16)),
    field(Protocol::Icmp, "id", 32, 16, DataType::Integer(16)),
    field(Protocol::Icmp, "sequence", 48, 16, DataType::Integer(16)),
    field(Protocol::Icmp, "gateway", 32, 32, DataType::Integer(32)),
    field(Protocol::Icmp, "mtu", 48, 16, DataType::Integer(16)),
    field(Protocol::Igmp, "type", 0, 8, DataType::Integer(8)),
    field(Protocol::Igmp, "mrt", 8, 8, DataType::Integer(8)),
    field(Protocol::Igmp, "checksum", 16, 16, DataType::Integer(16)),
    field(Protocol::Igmp, "group", 32, 32, DataType::Ipv4Addr),
    field(Protocol::Icmpv6, "type", 0, 8, DataType::Icmpv6Type),
    field(Protocol::Icmpv6, "code", 8, 8, DataType::Icmpv6Code),
    field(Protocol::Icmpv6, "checksum", 16, 16, DataType::Integer(16)),
    field(
        Protocol::Icmpv6,
        "parameter-problem",
        32,
        32,
        DataType::Integer(32),
    ),
    field(
        Protocol::Icmpv6,
        "packet-too-big",
        32,
        32,
        DataType::Integer(32),
    ),
    field(Protocol::Icmpv6, "mtu", 32, 32, DataType::Integer(32)),
    field(Protocol::Icmpv6, "id", 32, 16, DataType::Integer(16)),
    field(Protocol::Icmpv6, "sequence", 48, 16, DataType::Integer(16)),
    field(Protocol::Icmpv6, "max-delay", 32, 16, DataType::Integer(16)),
    field(Protocol::Tcp, "sport", 0, 16, DataType::InetService),
    field(Protocol::Tcp, "dport", 16, 16, DataType::InetService),
    field(Protocol::Tcp, "sequence", 32, 32, DataType::Integer(32)),
    field(Protocol::Tcp, "ackseq", 64, 32, DataType::Integer(32)),
    field(Protocol::Tcp, "doff", 96, 4, DataType::Integer(4)),
    field(Protocol::Tcp, "reserved", 100, 4, DataType::Integer(4)),
    field(Protocol::Tcp, "flags", 104, 8, DataType::TcpFlag),
    field(Protocol::Tcp, "window", 112, 16, DataType::Integer(16)),
    field(Protocol::Tcp, "checksum", 128, 16, DataType::Integer(16)),
    field(Protocol::Tcp, "urgptr", 144, 16, DataType::Integer(16)),
    field(Protocol::Udp, "sport", 0, 16, DataType::InetService),
    field(Protocol::Udp, "dport", 16, 16, DataType::InetService),
    field(Protocol::Udp, "length", 32, 16, DataType::Integer(16)),
    field(Protocol::Udp, "checksum", 48, 16, DataType::Integer(16)),
    field(Protocol::Udplite, "sport", 0, 16, DataType::InetService),
    field(Protocol::Udplite, "dport", 16, 16, DataType::InetService),
    field(Protocol::Udplite, "csumcov", 32, 16, DataType::Integer(16)),
    field(Protocol::Udplite, "checksum", 48, 16, DataType::Integer(16)),
    field(Protocol::Sctp, "sport", 0, 16, DataType::InetService),
    field(Protocol::Sctp, "dport", 16, 16, DataType::InetService),
    field(Protocol::Sctp, "vtag", 32, 32, DataType::Integer(32)),
    field(Protocol::Sctp, "checksum", 64, 32, DataType::Integer(32)),
    field(Protocol::Dccp, "sport", 0, 16, DataType::InetService),
    field(Protocol::Dccp, "dport", 16, 16, DataType::InetService),
    field(Protocol::Dccp, "type", 67, 4, DataType::Integer(4)),
    field(Protocol::Th, "sport", 0, 16, DataType::InetService),
    field(Protocol::Th, "dport", 16, 16, DataType::InetService),
    field(Protocol::Ah, "nexthdr", 0, 8, DataType::InetProto),
    field(Protocol::Ah, "hdrlength", 8, 8, DataType::Integer(8)),
    field(Protocol::Ah, "reserved", 16, 16, DataType::Integer(16)),
    field(Protocol::Ah, "spi", 32, 32, DataType::Integer(32)),
    field(Protocol::Ah, "sequence", 64, 32, DataType::Integer(32)),
    field(Protocol::Esp, "spi", 0, 32, DataType::Integer(32)),
    field(Protocol::Esp, "sequence", 32, 32, DataType::Integer(32)),
    field(Protocol::Comp, "nexthdr", 0, 8, DataType::InetProto),
    field(Protocol::Comp, "flags", 8, 8, DataType::Integer(8)),
    field(Protocol::Comp, "cpi", 16, 16, DataType::Integer(16)),
];

/// Every named field of IPv6 extension headers and TCP options. [`ExthdrField`] is an
/// index into it.
pub static EXTHDR_FIELDS: &[ExthdrDef] = &[
    exthdr(ExthdrKind::Hbh, "nexthdr", 0, 8, DataType::InetProto),
    exthdr(ExthdrKind::Hbh, "hdrlength", 8, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::Rt, "nexthdr", 0, 8, DataType::InetProto),
    exthdr(ExthdrKind::Rt, "hdrlength", 8, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::Rt, "type", 16, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::Rt, "seg-left", 24, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::Frag, "nexthdr", 0, 8, DataType::InetProto),
    exthdr(ExthdrKind::Frag, "reserved", 8, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::Frag, "frag-off", 16, 13, DataType::Integer(13)),
    exthdr(ExthdrKind::Frag, "reserved2", 29, 2, DataType::Integer(2)),
    exthdr(
        ExthdrKind::Frag,
        "more-fragments",
        31,
        1,
        DataType::Integer(1),
    ),
    exthdr(ExthdrKind::Frag, "id", 32, 32, DataType::Integer(32)),
    exthdr(ExthdrKind::Dst, "nexthdr", 0, 8, DataType::InetProto),
    exthdr(ExthdrKind::Dst, "hdrlength", 8, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::Mh, "nexthdr", 0, 8, DataType::InetProto),
    exthdr(ExthdrKind::Mh, "hdrlength", 8, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::Mh, "type", 16, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::Mh, "reserved", 24, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::Mh, "checksum", 32, 16, DataType::Integer(16)),
    exthdr(ExthdrKind::TcpEol, "kind", 0, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::TcpNop, "kind", 0, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::TcpMaxseg, "kind", 0, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::TcpMaxseg, "length", 8, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::TcpMaxseg, "size", 16, 16, DataType::Integer(16)),
    exthdr(ExthdrKind::TcpWindow, "kind", 0, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::TcpWindow, "length", 8, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::TcpWindow, "count", 16, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::TcpSackPerm, "kind", 0, 8, DataType::Integer(8)),
    exthdr(
        ExthdrKind::TcpSackPerm,
        "length",
        8,
        8,
        DataType::Integer(8),
    ),
    exthdr(ExthdrKind::TcpSack, "kind", 0, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::TcpSack, "length", 8, 8, DataType::Integer(8)),
    exthdr(ExthdrKind::TcpSack, "left", 16, 32, DataType::Integer(32)),
    exthdr(ExthdrKind::TcpSack, "right", 48, 32, DataType::Integer(32)),
    exthdr(ExthdrKind::TcpTimestamp, "kind", 0, 8, DataType::Integer(8)),
    exthdr(
        ExthdrKind::TcpTimestamp,
        "length",
        8,
        8,
        DataType::Integer(8),
    ),
    exthdr(
        ExthdrKind::TcpTimestamp,
        "tsval",
        16,
        32,
        DataType::Integer(32),
    ),
    exthdr(
        ExthdrKind::TcpTimestamp,
        "tsecr",
        48,
        32,
        DataType::Integer(32),
    ),
];
