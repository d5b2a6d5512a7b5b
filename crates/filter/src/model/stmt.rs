//! Statements: what a rule does, from left to right, until one does not match.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::{CtDirection, CtKey, Expr, Family, Field, MetaKey, ObjectKind, PayloadBase, SetRef};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Statement {
    /// `tcp dport 22`, `ip saddr != @bad`
    Match {
        op: RelOp,
        left: Expr,
        right: Expr,
    },
    Verdict(Verdict),
    /// `tcp dport vmap { 22 : accept }`
    VerdictMap {
        key: Expr,
        map: SetRef,
    },
    /// `reject with ...`
    Reject(RejectKind),
    /// `counter packets 0 bytes 0`
    Counter(Counter),
    /// `limit rate over 10/second burst 5 packets`
    Limit(Limit),
    /// `quota over 25 mbytes used 0 bytes`
    Quota(Quota),
    /// `counter name "x"`, `limit name "x"`, `quota name "x"`
    Object {
        kind: ObjectKind,
        name: String,
    },
    /// `counter name tcp dport map { 22 : "ssh" }`
    ObjectMap {
        kind: ObjectKind,
        key: Expr,
        map: SetRef,
    },
    /// `ct count over 10`: how many connections share the key of the set it stands in
    /// (or of the whole rule).
    ConnLimit {
        count: u32,
        over: bool,
    },
    Log(Log),
    Nat(Nat),
    /// `add @set { ip saddr timeout 5s counter }`
    SetUpdate(SetUpdate),
    /// `meta mark set 1`, `ct mark set meta mark`, `ip ttl set 5`
    Mangle {
        target: Mangle,
        value: Expr,
    },
    Notrack,
}

/// How a match compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RelOp {
    /// No operator written: equal; for bitmasks, any of the bits; for sets, contained.
    Implicit,
    Eq,
    Ne,
    Lt,
    Gt,
    Le,
    Ge,
    /// `tcp flags ! syn`: none of the bits.
    Not,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Accept,
    Drop,
    Continue,
    Return,
    Jump(String),
    Goto(String),
}

/// What the sender is told. The codes are those on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectKind {
    /// Plain `reject`: port unreachable in the packet's own family.
    Default,
    /// `with icmp CODE`, ICMP type 3
    Icmp(u8),
    /// `with icmpv6 CODE`, ICMPv6 type 1
    Icmpv6(u8),
    /// `with icmpx CODE`: 0 no-route, 1 port-unreachable, 2 host-unreachable, 3 admin-prohibited
    Icmpx(u8),
    /// `with tcp reset`
    TcpReset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Counter {
    pub packets: u64,
    pub bytes: u64,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Packets, or bytes if `bytes`, per unit of time.
    pub rate: u64,
    pub unit: LimitUnit,
    /// Packets or bytes; what nft would fill in (5 packets, 0 bytes) is filled in.
    pub burst: u32,
    /// Matches while the rate is exceeded instead of while it is kept.
    pub over: bool,
    pub bytes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitUnit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
}

impl LimitUnit {
    pub const ALL: [LimitUnit; 5] = [
        LimitUnit::Second,
        LimitUnit::Minute,
        LimitUnit::Hour,
        LimitUnit::Day,
        LimitUnit::Week,
    ];

    pub fn seconds(self) -> u64 {
        match self {
            LimitUnit::Second => 1,
            LimitUnit::Minute => 60,
            LimitUnit::Hour => 3600,
            LimitUnit::Day => 86_400,
            LimitUnit::Week => 604_800,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            LimitUnit::Second => "second",
            LimitUnit::Minute => "minute",
            LimitUnit::Hour => "hour",
            LimitUnit::Day => "day",
            LimitUnit::Week => "week",
        }
    }
}

/// Matches until (`over`: once) so many bytes have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    pub bytes: u64,
    pub used: u64,
    pub over: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Log {
    pub prefix: Option<String>,
    /// 0 emerg to 7 debug, 8 audit; `None` is nft's default, warn.
    pub level: Option<u8>,
    pub group: Option<u16>,
    pub snaplen: Option<u32>,
    pub queue_threshold: Option<u16>,
    pub flags: LogFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct LogFlags {
    pub tcp_sequence: bool,
    pub tcp_options: bool,
    pub ip_options: bool,
    pub skuid: bool,
    pub ether: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nat {
    pub kind: NatKind,
    /// `snat ip to`: only where the table's family (inet, bridge) does not say.
    pub family: Option<Family>,
    /// A value, range, prefix (with `flags.netmap`) or map. A map whose data is an
    /// address joined with a port (`dnat ip to ip saddr map { 10.0.0.1 : 10.1.1.1 . 80 }`,
    /// `dnat ip addr . port to ...`) gives both, and `port` is then empty.
    pub address: Option<Expr>,
    /// A value, range or map.
    pub port: Option<Expr>,
    pub flags: NatFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NatKind {
    Snat,
    Dnat,
    Masquerade,
    Redirect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct NatFlags {
    pub random: bool,
    pub fully_random: bool,
    pub persistent: bool,
    /// `snat ip prefix to`: the host part of the address is kept.
    pub netmap: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetUpdate {
    pub op: SetUpdateOp,
    pub set: String,
    pub key: Expr,
    /// For a map: what the key is to lead to.
    pub data: Option<Expr>,
    pub timeout_ms: Option<u64>,
    /// Statements kept with the element (counter, limit, quota, ct count).
    pub statements: Vec<Statement>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetUpdateOp {
    /// Keeps the timeout of an element that is already there.
    Add,
    /// Starts its timeout again.
    Update,
    Delete,
}

/// What a `set` statement writes to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mangle {
    Meta(MetaKey),
    Ct {
        key: CtKey,
        direction: Option<CtDirection>,
    },
    Payload(Field),
    PayloadRaw {
        base: PayloadBase,
        offset_bits: u16,
        bits: u16,
    },
}

impl Statement {
    /// `left right`, no operator written.
    pub fn is(left: Expr, right: Expr) -> Statement {
        Statement::Match {
            op: RelOp::Implicit,
            left,
            right,
        }
    }

    /// Calls `see` for each expression that stands directly in the statement.
    pub fn for_each_expr<'a>(&'a self, see: &mut dyn FnMut(&'a Expr)) {
        match self {
            Statement::Match { left, right, .. } => {
                see(left);
                see(right);
            }
            Statement::VerdictMap { key, .. } | Statement::ObjectMap { key, .. } => see(key),
            Statement::Nat(nat) => {
                nat.address.iter().for_each(&mut *see);
                nat.port.iter().for_each(see);
            }
            Statement::SetUpdate(update) => {
                see(&update.key);
                update.data.iter().for_each(&mut *see);
                update.statements.iter().for_each(|s| s.for_each_expr(see));
            }
            Statement::Mangle { value, .. } => see(value),
            Statement::Verdict(_)
            | Statement::Reject(_)
            | Statement::Counter(_)
            | Statement::Limit(_)
            | Statement::Quota(_)
            | Statement::Object { .. }
            | Statement::ConnLimit { .. }
            | Statement::Log(_)
            | Statement::Notrack => {}
        }
    }
}

impl Expr {
    /// `self op right`
    pub fn binary(self, op: super::BinaryOp, right: Expr) -> Expr {
        Expr::Binary {
            op,
            left: Box::new(self),
            right: Box::new(right),
        }
    }
}
