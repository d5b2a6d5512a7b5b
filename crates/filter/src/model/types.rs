//! Address families, data types, and values as bytes in network order.

use core::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Ip,
    Ip6,
    Inet,
    Arp,
    Bridge,
    Netdev,
}

impl Family {
    pub const ALL: [Family; 6] = [
        Family::Ip,
        Family::Ip6,
        Family::Inet,
        Family::Arp,
        Family::Bridge,
        Family::Netdev,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
            Family::Inet => "inet",
            Family::Arp => "arp",
            Family::Bridge => "bridge",
            Family::Netdev => "netdev",
        }
    }

    pub fn by_name(name: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|f| f.name() == name)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a value means; decides its width, and how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataType {
    /// `integer` of so many bits (1 to 128).
    Integer(u8),
    /// `string`, up to [`BYTES_MAX`] bytes (helper names, interface kinds).
    String,
    /// `lladdr`
    LlAddr,
    /// `ipv4_addr`
    Ipv4Addr,
    /// `ipv6_addr`
    Ipv6Addr,
    /// `ether_addr`
    EtherAddr,
    /// `ether_type`
    EtherType,
    /// `arp_op`
    ArpOp,
    /// `inet_proto`
    InetProto,
    /// `inet_service`
    InetService,
    /// `nf_proto`: 2 for ipv4, 10 for ipv6 ...
    NfProto,
    /// `icmp_type`
    IcmpType,
    /// `icmp_code`
    IcmpCode,
    /// `icmpv6_type`
    Icmpv6Type,
    /// `icmpv6_code`
    Icmpv6Code,
    /// `icmpx_code`
    IcmpxCode,
    /// `tcp_flag`, a bitmask
    TcpFlag,
    /// `dscp`
    Dscp,
    /// `ecn`
    Ecn,
    /// `mark`
    Mark,
    /// `iface_index`; always resolved, by number
    IfIndex,
    /// `ifname`; a `*` at the end stands for any rest (kept as a shorter value, see [`Value::text_prefix`])
    IfName,
    /// `iface_type`
    IfType,
    /// `devgroup`
    DevGroup,
    /// `uid`
    Uid,
    /// `gid`
    Gid,
    /// `realm`
    Realm,
    /// `classid`
    ClassId,
    /// `pkt_type`
    PktType,
    /// `time`: a span, in milliseconds (`ct expiration`)
    TimeSpan,
    /// `time` of the clock, nanoseconds since 1970 (`meta time`)
    Time,
    /// `day`: 0 is Sunday
    Day,
    /// `hour`: seconds since midnight, UTC
    Hour,
    /// `boolean`, of `exists` and `missing`
    Boolean,
    /// `fib_addrtype`
    FibAddrType,
    /// `ct_state`, a bitmask: invalid 1, established 2, related 4, new 8, untracked 64
    CtState,
    /// `ct_dir`: original 0, reply 1
    CtDir,
    /// `ct_status`, a bitmask
    CtStatus,
    /// `ct_label`, a bitmask of 128
    CtLabel,
    /// `ct_event`, a bitmask
    CtEvent,
    /// `verdict`, the data of verdict maps
    Verdict,
}

impl DataType {
    /// Width of a value in bits.
    pub fn bits(self) -> u16 {
        use DataType::*;
        match self {
            Integer(bits) => bits.into(),
            String | IfName => (BYTES_MAX * 8) as u16,
            LlAddr | EtherAddr => 48,
            Ipv6Addr | CtLabel => 128,
            Time | TimeSpan => 64,
            Ipv4Addr | Mark | IfIndex | DevGroup | Uid | Gid | Realm | ClassId | Hour
            | FibAddrType | CtState | CtStatus | CtEvent => 32,
            EtherType | ArpOp | InetService | IfType => 16,
            Dscp => 6,
            Ecn => 2,
            InetProto | NfProto | IcmpType | IcmpCode | Icmpv6Type | Icmpv6Code | IcmpxCode
            | TcpFlag | PktType | Day | Boolean | CtDir => 8,
            Verdict => 0,
        }
    }

    /// Width of a value in whole bytes.
    pub fn width(self) -> usize {
        usize::from(self.bits().div_ceil(8))
    }

    /// A type whose values are sets of bits: `x y,z` then asks for any of them.
    pub fn is_bitmask(self) -> bool {
        matches!(
            self,
            DataType::TcpFlag
                | DataType::CtState
                | DataType::CtStatus
                | DataType::CtLabel
                | DataType::CtEvent
        )
    }

    /// Texts, compared from the left and padded with zeros.
    pub fn is_text(self) -> bool {
        matches!(self, DataType::String | DataType::IfName)
    }
}

/// The widest single value.
pub const BYTES_MAX: usize = 16;

/// One literal: a type and its bytes, numbers in network order and as wide as their type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value {
    pub data_type: DataType,
    len: u8,
    bytes: [u8; BYTES_MAX],
}

impl Value {
    /// `None` if it is longer than [`BYTES_MAX`].
    pub fn new(data_type: DataType, value: &[u8]) -> Option<Value> {
        let mut bytes = [0; BYTES_MAX];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        Some(Value {
            data_type,
            len: value.len() as u8,
            bytes,
        })
    }

    /// The low bits of `number`, as wide as the type.
    pub fn number(data_type: DataType, number: u128) -> Value {
        let width = data_type.width().clamp(1, BYTES_MAX);
        let mut bytes = [0; BYTES_MAX];
        bytes[..width].copy_from_slice(&number.to_be_bytes()[BYTES_MAX - width..]);
        Value {
            data_type,
            len: width as u8,
            bytes,
        }
    }

    /// A whole text (an interface's name): padded with zeros, so that it matches only itself.
    /// `None` if there is no room for the zero at its end.
    pub fn text(data_type: DataType, text: &str) -> Option<Value> {
        if text.len() >= BYTES_MAX {
            return None;
        }
        let mut value = Value::new(data_type, text.as_bytes())?;
        value.len = BYTES_MAX as u8;
        Some(value)
    }

    /// `text*`: matches everything that begins so.
    pub fn text_prefix(data_type: DataType, text: &str) -> Option<Value> {
        (text.len() < BYTES_MAX).then(|| Value::new(data_type, text.as_bytes()))?
    }

    /// True for what [`Value::text_prefix`] made.
    pub fn is_text_prefix(&self) -> bool {
        self.data_type.is_text() && usize::from(self.len) < BYTES_MAX
    }

    /// The text without its padding; empty if it is not UTF-8.
    pub fn as_text(&self) -> &str {
        let bytes = self.bytes();
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        core::str::from_utf8(&bytes[..end]).unwrap_or("")
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The bytes as one number.
    pub fn as_number(&self) -> u128 {
        self.bytes()
            .iter()
            .fold(0, |sum, b| sum << 8 | u128::from(*b))
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.data_type.is_text() {
            write!(f, "{:?}", self.as_text())
        } else {
            write!(f, "{:?}:{:#x}", self.data_type, self.as_number())
        }
    }
}
