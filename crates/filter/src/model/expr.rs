//! Expressions: what a match compares, what a statement sets.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::{DataType, Element, ExthdrField, Field, PayloadBase, Value};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// A literal.
    Value(Value),
    /// `1-5`, `10.0.0.1-10.0.0.9`: both ends included.
    Range(Box<Expr>, Box<Expr>),
    /// `10.0.0.0/8`: so many leading bits.
    Prefix(Box<Expr>, u8),
    /// `syn,ack`: flags joined with commas, without braces.
    List(Vec<Expr>),
    /// `ip saddr . tcp dport`, and the literals beside it.
    Concat(Vec<Expr>),
    /// `*`: the element that catches all, or in a concatenation nothing else.
    Any,
    /// `@name` or `{ ... }` on the right side of a match.
    Set(SetRef),
    /// `tcp dport` ...
    Payload(Field),
    /// `@nh,96,32`: bits, counted from the start of a header.
    PayloadRaw {
        base: PayloadBase,
        offset_bits: u16,
        bits: u16,
    },
    /// `frag more-fragments`, `tcp option maxseg size`.
    Exthdr(ExthdrField),
    /// `exthdr frag`, `tcp option sack-perm`, compared with a Boolean. The field is any of that header's.
    ExthdrExists(ExthdrField),
    /// `meta mark`, `iifname` ...
    Meta(MetaKey),
    /// `ct state`, `ct original saddr` ...
    Ct {
        key: CtKey,
        direction: Option<CtDirection>,
    },
    /// `fib saddr . iif oif`
    Fib { flags: FibFlags, result: FibResult },
    /// `numgen inc mod 2 offset 100`
    Numgen {
        mode: NumgenMode,
        modulus: u32,
        offset: u32,
    },
    /// `jhash ip saddr . tcp dport mod 2 seed 0xdeadbeef offset 0`
    Jhash {
        input: Box<Expr>,
        modulus: u32,
        seed: Option<u32>,
        offset: u32,
    },
    /// `meta mark & 0xff`
    Binary {
        op: BinaryOp,
        left: Box<Expr>,
        right: Box<Expr>,
    },
    /// `tcp dport map { 22 : 1, 80 : 2 }` or `map @name`
    Map { key: Box<Expr>, map: SetRef },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

/// A set or map: by name in the same table, or written out in place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SetRef {
    Named(String),
    Anonymous(Vec<Element>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetaKey {
    Length,
    Protocol,
    Nfproto,
    L4proto,
    Mark,
    Priority,
    Random,
    Nftrace,
    Iif,
    Oif,
    Iifname,
    Oifname,
    Iiftype,
    Oiftype,
    Iifgroup,
    Oifgroup,
    Iifkind,
    Oifkind,
    /// `ibrname`: the bridge that the packet came in by.
    Ibrname,
    Obrname,
    Pkttype,
    Cpu,
    Skuid,
    Skgid,
    Cgroup,
    Rtclassid,
    Time,
    Day,
    Hour,
}

impl MetaKey {
    pub const ALL: [(MetaKey, &'static str, DataType); 29] = [
        (MetaKey::Length, "length", DataType::Integer(32)),
        (MetaKey::Protocol, "protocol", DataType::EtherType),
        (MetaKey::Nfproto, "nfproto", DataType::NfProto),
        (MetaKey::L4proto, "l4proto", DataType::InetProto),
        (MetaKey::Mark, "mark", DataType::Mark),
        (MetaKey::Priority, "priority", DataType::ClassId),
        (MetaKey::Random, "random", DataType::Integer(32)),
        (MetaKey::Nftrace, "nftrace", DataType::Integer(1)),
        (MetaKey::Iif, "iif", DataType::IfIndex),
        (MetaKey::Oif, "oif", DataType::IfIndex),
        (MetaKey::Iifname, "iifname", DataType::IfName),
        (MetaKey::Oifname, "oifname", DataType::IfName),
        (MetaKey::Iiftype, "iiftype", DataType::IfType),
        (MetaKey::Oiftype, "oiftype", DataType::IfType),
        (MetaKey::Iifgroup, "iifgroup", DataType::DevGroup),
        (MetaKey::Oifgroup, "oifgroup", DataType::DevGroup),
        (MetaKey::Iifkind, "iifkind", DataType::IfName),
        (MetaKey::Oifkind, "oifkind", DataType::IfName),
        (MetaKey::Ibrname, "ibrname", DataType::IfName),
        (MetaKey::Obrname, "obrname", DataType::IfName),
        (MetaKey::Pkttype, "pkttype", DataType::PktType),
        (MetaKey::Cpu, "cpu", DataType::Integer(32)),
        (MetaKey::Skuid, "skuid", DataType::Uid),
        (MetaKey::Skgid, "skgid", DataType::Gid),
        (MetaKey::Cgroup, "cgroup", DataType::Integer(32)),
        (MetaKey::Rtclassid, "rtclassid", DataType::Realm),
        (MetaKey::Time, "time", DataType::Time),
        (MetaKey::Day, "day", DataType::Day),
        (MetaKey::Hour, "hour", DataType::Hour),
    ];

    pub fn name(self) -> &'static str {
        MetaKey::ALL[self as usize].1
    }

    pub fn data_type(self) -> DataType {
        MetaKey::ALL[self as usize].2
    }

    pub fn by_name(name: &str) -> Option<MetaKey> {
        MetaKey::ALL
            .iter()
            .find(|(_, n, _)| *n == name)
            .map(|(key, ..)| *key)
    }

    /// Written without `meta` in front (`iifname "eth0"`), as nft lists it.
    pub fn is_unqualified(self) -> bool {
        use MetaKey::*;
        matches!(
            self,
            Iif | Oif
                | Iifname
                | Oifname
                | Iiftype
                | Oiftype
                | Iifgroup
                | Oifgroup
                | Skuid
                | Skgid
                | Rtclassid
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtDirection {
    Original,
    Reply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CtKey {
    State,
    Direction,
    Status,
    Mark,
    Expiration,
    Helper,
    L3proto,
    Protocol,
    /// `ct original saddr`: the width follows the rule's family.
    Saddr,
    Daddr,
    /// `ct original ip saddr`
    IpSaddr,
    IpDaddr,
    Ip6Saddr,
    Ip6Daddr,
    ProtoSrc,
    ProtoDst,
    Label,
    Bytes,
    Packets,
    Avgpkt,
    Zone,
    Id,
}

impl CtKey {
    pub const ALL: [(CtKey, &'static str, DataType); 22] = [
        (CtKey::State, "state", DataType::CtState),
        (CtKey::Direction, "direction", DataType::CtDir),
        (CtKey::Status, "status", DataType::CtStatus),
        (CtKey::Mark, "mark", DataType::Mark),
        (CtKey::Expiration, "expiration", DataType::TimeSpan),
        (CtKey::Helper, "helper", DataType::String),
        (CtKey::L3proto, "l3proto", DataType::NfProto),
        (CtKey::Protocol, "protocol", DataType::InetProto),
        (CtKey::Saddr, "saddr", DataType::Ipv4Addr),
        (CtKey::Daddr, "daddr", DataType::Ipv4Addr),
        (CtKey::IpSaddr, "ip saddr", DataType::Ipv4Addr),
        (CtKey::IpDaddr, "ip daddr", DataType::Ipv4Addr),
        (CtKey::Ip6Saddr, "ip6 saddr", DataType::Ipv6Addr),
        (CtKey::Ip6Daddr, "ip6 daddr", DataType::Ipv6Addr),
        (CtKey::ProtoSrc, "proto-src", DataType::InetService),
        (CtKey::ProtoDst, "proto-dst", DataType::InetService),
        (CtKey::Label, "label", DataType::CtLabel),
        (CtKey::Bytes, "bytes", DataType::Integer(64)),
        (CtKey::Packets, "packets", DataType::Integer(64)),
        (CtKey::Avgpkt, "avgpkt", DataType::Integer(64)),
        (CtKey::Zone, "zone", DataType::Integer(16)),
        (CtKey::Id, "id", DataType::Integer(32)),
    ];

    pub fn name(self) -> &'static str {
        CtKey::ALL[self as usize].1
    }

    /// For [`CtKey::Saddr`] and [`CtKey::Daddr`] in the ip6 family it is Ipv6Addr instead.
    pub fn data_type(self) -> DataType {
        CtKey::ALL[self as usize].2
    }

    pub fn by_name(name: &str) -> Option<CtKey> {
        CtKey::ALL
            .iter()
            .find(|(_, n, _)| *n == name)
            .map(|(key, ..)| *key)
    }
}

/// What `fib` looks up by; exactly one of `saddr` and `daddr` is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FibFlags {
    pub saddr: bool,
    pub daddr: bool,
    pub mark: bool,
    pub iif: bool,
    pub oif: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FibResult {
    Oif,
    Oifname,
    Type,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NumgenMode {
    Inc,
    Random,
}

impl Expr {
    /// A number of the given type.
    pub fn number(data_type: DataType, number: u128) -> Expr {
        Expr::Value(Value::number(data_type, number))
    }

    /// The type of what this expression yields, as far as it stands in the expression
    /// itself (a map by name, for one, does not say).
    pub fn data_type(&self) -> Option<DataType> {
        Some(match self {
            Expr::Value(value) => value.data_type,
            Expr::Range(low, _) => return low.data_type(),
            Expr::Prefix(value, _) => return value.data_type(),
            Expr::List(items) => return items.first()?.data_type(),
            Expr::Payload(field) => field.def().data_type,
            Expr::PayloadRaw { bits, .. } => DataType::Integer(u8::try_from(*bits).ok()?),
            Expr::Exthdr(field) => field.def().data_type,
            Expr::ExthdrExists(_) => DataType::Boolean,
            Expr::Meta(key) => key.data_type(),
            Expr::Ct { key, .. } => key.data_type(),
            Expr::Fib {
                result: FibResult::Oif,
                ..
            } => DataType::IfIndex,
            Expr::Fib {
                result: FibResult::Oifname,
                ..
            } => DataType::IfName,
            Expr::Fib {
                result: FibResult::Type,
                ..
            } => DataType::FibAddrType,
            Expr::Numgen { .. } | Expr::Jhash { .. } => DataType::Integer(32),
            Expr::Binary { left, .. } => return left.data_type(),
            Expr::Concat(_) | Expr::Any | Expr::Set(_) | Expr::Map { .. } => return None,
        })
    }
}
