//! Rules as the kernel keeps them: tables, chains, sets, objects, and of each rule the expressions that
//! nf_tables carries out (linux: include/uapi/linux/netfilter/nf_tables.h).
//!
//! ```text
//!   text ── nft -f, a namespace made for it ──► kernel ── dump by netlink ──► bytes ── read ──► Rules
//! ```
//! Who reads what the kernel enforces has no opinion of its own about the text. An expression that is
//! not known here stays in its place as [`Expr::Unknown`]: a rule with one is decided by the kernel alone.

mod attribute;
mod packed;
mod read;

pub use attribute::Damaged;
pub use packed::{packed, unpacked};
pub use read::read;

use crate::program::RuleId;
use alloc::string::String;
use alloc::vec::Vec;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Ip,
    Ip6,
    Inet,
    Arp,
    Bridge,
    Netdev,
}

impl core::fmt::Display for Family {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
            Family::Inet => "inet",
            Family::Arp => "arp",
            Family::Bridge => "bridge",
            Family::Netdev => "netdev",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
    Ingress,
    Egress,
}

impl Hook {
    /// As nft calls it.
    pub fn name(self) -> &'static str {
        match self {
            Hook::Prerouting => "prerouting",
            Hook::Input => "input",
            Hook::Forward => "forward",
            Hook::Output => "output",
            Hook::Postrouting => "postrouting",
            Hook::Ingress => "ingress",
            Hook::Egress => "egress",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    pub tables: Vec<Table>,
}

impl Rules {
    /// Counters begin at nothing: somebody else counts on from what was there.
    pub fn forget_counts(&mut self) {
        let forget = |one: &mut Stateful| {
            if let Stateful::Counter { packets, bytes } = one {
                (*packets, *bytes) = (0, 0);
            }
        };
        for table in &mut self.tables {
            let rules = table.chains.iter_mut().flat_map(|chain| &mut chain.rules);
            for expr in rules.flat_map(|rule| &mut rule.exprs) {
                match expr {
                    Expr::Stateful(one) => forget(one),
                    Expr::Dynset { exprs, .. } => exprs.iter_mut().for_each(forget),
                    _ => {}
                }
            }
            for object in &mut table.objects {
                if let ObjectState::Stateful(one) = &mut object.state {
                    forget(one);
                }
            }
            for set in &mut table.sets {
                let of_elements = set
                    .elements
                    .iter_mut()
                    .flat_map(|element| &mut element.exprs);
                set.exprs.iter_mut().chain(of_elements).for_each(forget);
            }
        }
    }

    /// Whether both have the same tables, with the same chains of as many rules: what packets have
    /// counted and added, and the names that the kernel makes up (`__chain7`), differ each time.
    pub fn is_alike(&self, other: &Rules) -> bool {
        let shape = |rules: &Rules| -> Vec<_> {
            let chains = rules.tables.iter().flat_map(|table| {
                let named = table
                    .chains
                    .iter()
                    .filter(|c| !c.name.starts_with("__chain"));
                let chains = named.map(|c| (c.name.clone(), c.rules.len()));
                let table = (table.family, table.name.clone());
                [(String::new(), 0)]
                    .into_iter()
                    .chain(chains)
                    .map(move |c| (table.clone(), c))
            });
            chains.collect()
        };
        shape(self) == shape(other)
    }

    /// Whether a rule looks at, or writes, bytes that lie more than `bytes` behind the beginning of a packet's network or
    /// transport header: bytes of what a TCP segment carries, if no header is longer than that.
    pub fn look_behind(&self, bytes: usize) -> bool {
        let is_far = |offset: u16, len: u8| usize::from(offset) + usize::from(len) > bytes;
        let far = |at: &Bytes| at.base == PayloadBase::Inner || is_far(at.offset, at.len);
        let mut exprs = self.ids().flat_map(|(_, rule)| &rule.exprs);
        exprs.any(|expr| match expr {
            Expr::Payload { at, .. } => far(at),
            // What is written to the first bytes of an IP header may move where the next one begins.
            Expr::PayloadSet { at, sum, .. } => {
                far(at)
                    || at.base == PayloadBase::Network && at.offset < 10
                    || sum.at.is_some_and(|at| is_far(at, 2))
            }
            // An extension header has a number of its own, which may be that of TCP.
            Expr::Exthdr { offset, len, .. } => is_far(*offset, *len),
            // These look at no more than addresses and ports.
            Expr::Meta { .. }
            | Expr::MetaSet { .. }
            | Expr::Ct { .. }
            | Expr::CtSet { .. }
            | Expr::Fib { .. }
            | Expr::Nat(_)
            | Expr::Reject { .. }
            | Expr::Log(_)
            | Expr::Notrack => false,
            // These know what others have read.
            Expr::Numgen { .. }
            | Expr::Hash { .. }
            | Expr::Immediate { .. }
            | Expr::Verdict(_)
            | Expr::Bitwise { .. }
            | Expr::Byteorder { .. }
            | Expr::Cmp { .. }
            | Expr::Range { .. }
            | Expr::Lookup { .. }
            | Expr::Dynset { .. }
            | Expr::Object { .. }
            | Expr::ObjectMap { .. }
            | Expr::Stateful(_) => false,
            // Not done here.
            Expr::Unknown(_) => false,
        })
    }

    /// Each rule with its place.
    pub fn ids(&self) -> impl Iterator<Item = (RuleId, &Rule)> {
        let tables = self.tables.iter().enumerate();
        tables.flat_map(|(table, of)| {
            of.chains.iter().enumerate().flat_map(move |(chain, of)| {
                of.rules.iter().enumerate().map(move |(rule, of)| {
                    let id = RuleId {
                        table: table as u16,
                        chain: chain as u16,
                        rule: Some(rule as u32),
                    };
                    (id, of)
                })
            })
        })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub family: Family,
    pub name: String,
    /// Its base chains see no packet.
    pub dormant: bool,
    pub chains: Vec<Chain>,
    pub sets: Vec<Set>,
    pub objects: Vec<Object>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    pub name: String,
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    Filter,
    Nat,
    Route,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Base {
    pub kind: ChainKind,
    pub hook: Hook,
    pub priority: i32,
    pub drops: bool,
    /// Empty: every device.
    pub devices: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub exprs: Vec<Expr>,
}

/// A place among the registers, in words of four bytes; `None` is the verdict's.
pub type Register = Option<u8>;

#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    Payload {
        to: Register,
        at: Bytes,
    },
    PayloadSet {
        from: Register,
        at: Bytes,
        sum: Sum,
    },
    Meta {
        to: Register,
        key: u32,
    },
    MetaSet {
        from: Register,
        key: u32,
    },
    Ct {
        to: Register,
        key: u32,
        direction: Option<u8>,
    },
    CtSet {
        from: Register,
        key: u32,
        direction: Option<u8>,
    },
    Exthdr {
        to: Register,
        op: u32,
        kind: u8,
        offset: u16,
        len: u8,
        present: bool,
    },
    Fib {
        to: Register,
        result: u32,
        flags: u32,
    },
    Numgen {
        to: Register,
        modulus: u32,
        random: bool,
        offset: u32,
    },
    Hash {
        from: Register,
        to: Register,
        len: u8,
        modulus: u32,
        seed: u32,
        offset: u32,
    },
    Immediate {
        to: Register,
        data: Vec<u8>,
    },
    Verdict(Verdict),
    Bitwise {
        from: Register,
        to: Register,
        len: u8,
        op: Bitwise,
    },
    Byteorder {
        from: Register,
        to: Register,
        len: u8,
        size: u8,
    },
    Cmp {
        from: Register,
        op: Comparison,
        data: Vec<u8>,
    },
    Range {
        from: Register,
        negate: bool,
        low: Vec<u8>,
        high: Vec<u8>,
    },
    Lookup {
        set: String,
        from: Register,
        to: Option<Register>,
        negate: bool,
    },
    Dynset {
        set: String,
        op: SetOp,
        key: Register,
        data: Option<Register>,
        timeout_ms: u64,
        exprs: Vec<Stateful>,
    },
    Object {
        kind: u32,
        name: String,
    },
    ObjectMap {
        set: String,
        from: Register,
    },
    Stateful(Stateful),
    Log(Log),
    Reject {
        kind: u32,
        code: u8,
    },
    Nat(Nat),
    Notrack,
    /// Its name.
    Unknown(String),
}

/// What keeps something from packet to packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Stateful {
    Counter {
        packets: u64,
        bytes: u64,
    },
    Limit(Limit),
    Quota(Quota),
    ConnLimit {
        count: u32,
        over: bool,
    },
    /// When it was met last: nothing rests on it.
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub rate: u64,
    pub unit_s: u64,
    pub burst: u32,
    pub bytes: bool,
    pub over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub bytes: u64,
    pub used: u64,
    pub over: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    pub group: Option<u16>,
    pub prefix: Option<String>,
    pub level: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadBase {
    Link,
    Network,
    Transport,
    Inner,
}

/// Bytes of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    pub base: PayloadBase,
    pub offset: u16,
    pub len: u8,
}

/// What is summed anew when bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Where the header's own sum lies.
    pub at: Option<u16>,
    /// The transport's sum covers them, too.
    pub pseudo: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Accept,
    Drop,
    Continue,
    Break,
    Return,
    Jump(String),
    Goto(String),
    /// To a program (NF_QUEUE), or what is not known.
    Other,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Bitwise {
    /// (register & mask) ^ flip
    Mask {
        mask: Vec<u8>,
        flip: Vec<u8>,
    },
    Left(u32),
    Right(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetOp {
    Add,
    Update,
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatKind {
    Snat,
    Dnat,
    Masquerade,
    Redirect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nat {
    pub kind: NatKind,
    pub family: Option<Family>,
    /// The lowest and the highest, if they are given.
    pub address: Option<[Register; 2]>,
    pub port: Option<[Register; 2]>,
    /// NF_NAT_RANGE_*.
    pub flags: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    pub name: String,
    pub state: ObjectState,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ObjectState {
    Stateful(Stateful),
    /// NFT_OBJECT_*.
    Unknown(u32),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    pub name: String,
    pub interval: bool,
    pub key_len: u8,
    /// Lengths of a concatenation's parts; empty: one part.
    pub parts: Vec<u8>,
    pub data: Option<SetData>,
    pub dynamic: bool,
    pub timeout_ms: u64,
    pub size: Option<u32>,
    pub exprs: Vec<Stateful>,
    pub elements: Vec<Element>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetData {
    Verdict,
    /// Of so many bytes.
    Value(u8),
    /// NFT_OBJECT_*.
    Object(u32),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    /// Empty of the one that catches all.
    pub key: Vec<u8>,
    /// The highest key of a range of a concatenation.
    pub key_end: Option<Vec<u8>>,
    pub catches_all: bool,
    /// Of a set of intervals: the interval before ends here, this key not included.
    pub ends: bool,
    pub data: Option<ElementData>,
    pub timeout_ms: Option<u64>,
    pub expires_ms: Option<u64>,
    pub exprs: Vec<Stateful>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ElementData {
    Verdict(Verdict),
    Value(Vec<u8>),
    Object(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn looks_behind(expr: Expr) -> bool {
        let chain = Chain {
            name: "c".into(),
            base: None,
            rules: vec![Rule { exprs: vec![expr] }],
        };
        let table = Table {
            family: Family::Inet,
            name: "t".into(),
            dormant: false,
            chains: vec![chain],
            sets: vec![],
            objects: vec![],
        };
        let tables = vec![table];
        Rules { tables }.look_behind(60)
    }

    #[test]
    fn what_looks_behind_headers_is_told() {
        use PayloadBase::{Inner, Network, Transport};
        let to = Some(0);
        for (base, offset, len, expected) in [
            (Network, 16, 4, false),
            (Transport, 56, 4, false),
            (Transport, 57, 4, true),
            (Network, 60, 1, true),
            (Transport, u16::MAX, 16, true),
            (Inner, 0, 1, true),
        ] {
            let at = Bytes { base, offset, len };
            assert_eq!(looks_behind(Expr::Payload { to, at }), expected, "{at:?}");
            let sum = Sum {
                at: None,
                pseudo: false,
            };
            let set = Expr::PayloadSet { from: to, at, sum };
            assert_eq!(looks_behind(set), expected, "{at:?}");
        }
        // The next header of IPv6: the payload may begin elsewhere then.
        let at = Bytes {
            base: Network,
            offset: 6,
            len: 1,
        };
        let sum = Sum {
            at: None,
            pseudo: false,
        };
        assert!(!looks_behind(Expr::Payload { to, at }));
        assert!(looks_behind(Expr::PayloadSet { from: to, at, sum }));
        let at = Bytes {
            base: Transport,
            offset: 0,
            len: 2,
        };
        let sum = Sum {
            at: Some(100),
            pseudo: false,
        };
        assert!(looks_behind(Expr::PayloadSet { from: to, at, sum }));
        let option = |offset| Expr::Exthdr {
            to,
            op: 0,
            kind: 6,
            offset,
            len: 4,
            present: false,
        };
        assert!(!looks_behind(option(2)));
        assert!(looks_behind(option(100)));
    }
}
