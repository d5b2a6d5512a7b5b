//! What rules become: a flat program.
//!
//! A rule is a stretch of instructions; the first that does not hold ends it and the
//! next rule begins. Most rules are not even begun: a [`Guard`] beside each denies them to
//! packets that they do not match. Everything larger than an instruction (keys, maps, NAT) stands in a
//! table beside the code and is named by its position. The program never changes; what
//! it counts and what packets add to sets is in [`crate::state::State`].
//!
//! A run of rules that ask the same questions with other numbers is one entry of `rules`
//! whose last instruction is [`Insn::Run`]: an index from the numbers to the rule, whose
//! remaining instructions are in `bodies`.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::guard::{Fact, Guard};
use crate::packet::Layer;
use crate::rules::{ChainKind, Log, NatKind, PayloadBase, SetOp};
use crate::sets::{ElementStatement, Form, Index};

/// A rule, or a chain's policy, by positions in the ruleset that was compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId {
    pub table: u16,
    pub chain: u16,
    /// `None` for the policy.
    pub rule: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerdictCode {
    Accept,
    Drop,
    Continue,
    Return,
    /// Position in [`Program::chains`].
    Jump(u32),
    Goto(u32),
}

/// What the sender of a rejected packet is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reject {
    /// ICMP destination unreachable (type 3) with this code.
    Icmp(u8),
    /// ICMPv6 destination unreachable (type 1) with this code.
    Icmpv6(u8),
    TcpReset,
}

/// Reject as compiled: two wait for the packet's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RejectCode {
    Known(Reject),
    /// NFT_REJECT_ICMPX_*.
    Icmpx(u8),
    /// Of ICMP or ICMPv6, whichever the packet's family has.
    ByFamily(u8),
}

/// What is known of a packet besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaKey {
    Length,
    Protocol,
    Priority,
    Mark,
    Iif,
    Oif,
    Iifname,
    Oifname,
    Iiftype,
    Oiftype,
    Skuid,
    Skgid,
    Nftrace,
    Nfproto,
    L4proto,
    Ibrname,
    Obrname,
    Pkttype,
    Cpu,
    Iifgroup,
    Oifgroup,
    Random,
    Time,
    Day,
    Hour,
}

impl MetaKey {
    pub(crate) fn can_be_set(self) -> bool {
        use MetaKey::{Mark, Nftrace, Pkttype, Priority};
        matches!(self, Mark | Priority | Pkttype | Nftrace)
    }
}

/// What is known of a packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CtKey {
    State,
    Direction,
    Status,
    Mark,
    Expiration,
    L3proto,
    Saddr,
    Daddr,
    Protocol,
    ProtoSrc,
    ProtoDst,
    Packets,
    Bytes,
    Avgpkt,
    IpSaddr,
    IpDaddr,
    Ip6Saddr,
    Ip6Daddr,
    Id,
}

/// Which route is asked for (NFTA_FIB_F_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FibFlags {
    pub saddr: bool,
    pub mark: bool,
    pub iif: bool,
    pub oif: bool,
    /// Only whether there is one.
    pub present: bool,
}

impl FibFlags {
    pub(crate) fn new(bits: u32) -> FibFlags {
        let has = |bit: u32| bits & bit != 0;
        FibFlags {
            saddr: has(1),
            mark: has(4),
            iif: has(8),
            oif: has(16),
            present: has(32),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FibResult {
    Oif,
    Oifname,
    Type,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// So many bytes, then shifted right; the term keeps `bits` of it.
    Payload {
        base: PayloadBase,
        offset: u16,
        len: u8,
        shift: u8,
    },
    Meta(MetaKey),
    /// Of the flow's reply, of its original direction, or of both.
    Ct {
        key: CtKey,
        reply: Option<bool>,
    },
    /// An option of TCP, or an extension header of IPv6, by its number.
    Exthdr {
        tcp: bool,
        kind: u8,
        offset: u16,
        len: u8,
    },
    ExthdrExists {
        tcp: bool,
        kind: u8,
    },
    Fib {
        flags: FibFlags,
        result: FibResult,
    },
    Numgen(u32),
    Jhash(u32),
    /// Bytes of what [`Insn::Map`] has found; `host`: in the machine's order.
    Data {
        map: u32,
        offset: u8,
        len: u8,
        host: bool,
    },
    Constant(u128),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bitop {
    And(u128),
    Xor(u128),
    /// The last so many bytes the other way round.
    Swap(u8),
    Left(u32),
    Right(u32),
}

/// A value and what is done to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    pub load: Load,
    pub bits: u16,
    pub ops: Vec<Bitop>,
}

impl Term {
    /// What is loaded, of so many bytes.
    pub fn of(load: Load, len: u8) -> Self {
        Self {
            load,
            bits: u16::from(len) * 8,
            ops: Vec::new(),
        }
    }

    /// In bytes.
    pub fn len(&self) -> u8 {
        (self.bits / 8) as u8
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// (value & mask) == want
    Masked {
        mask: u128,
        want: u128,
        negate: bool,
    },
    Range {
        low: u128,
        high: u128,
        negate: bool,
    },
}

/// A field of at most eight bytes, as it lies in the packet: what is asked for most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldCode {
    pub base: PayloadBase,
    pub offset: u16,
    pub len: u8,
    pub shift: u8,
    /// The bits that count, before the shift.
    pub mask: u64,
}

impl FieldCode {
    /// These bits of a term, if it is a field.
    pub(crate) fn of(term: &Term, mask: u128) -> Option<FieldCode> {
        match term.load {
            Load::Payload {
                base,
                offset,
                len: len @ 1..=8,
                shift,
            } if term.ops.is_empty() => Some(FieldCode {
                base,
                offset,
                len,
                shift,
                mask: (mask << shift) as u64,
            }),
            _ => None,
        }
    }
}

/// Terms side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyCode {
    /// Each with the width that the set gives it.
    pub parts: Box<[(Term, u16)]>,
    /// The same if all are fields, else none.
    pub fields: Box<[(FieldCode, u16)]>,
    pub form: Form,
}

impl KeyCode {
    pub(crate) fn new(parts: Box<[(Term, u16)]>, form: Form) -> KeyCode {
        let field = |(term, width): &(Term, u16)| {
            let code = FieldCode::of(term, low_bits(term.bits))?;
            Some((code, *width))
        };
        let fields: Option<Box<[_]>> = parts.iter().map(field).collect();
        KeyCode {
            fields: fields.unwrap_or_default(),
            parts,
            form,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub key: KeyCode,
    /// Leads to [`Program::bodies`].
    pub index: Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Insn {
    /// (payload & mask) == want, of at most eight bytes: the common case of `Test`.
    Payload {
        base: PayloadBase,
        len: u8,
        negate: bool,
        offset: u16,
        mask: u64,
        want: u64,
    },
    /// `meta nfproto` and `meta l4proto` with one number: the implied dependencies.
    Nfproto(u8),
    L4proto(u8),
    Test {
        term: u32,
        test: u32,
    },
    Lookup {
        key: u32,
        set: u32,
        negate: bool,
    },
    Run(u32),
    VerdictMap {
        key: u32,
        set: u32,
    },
    Counter(u32),
    Limit(u32),
    Quota(u32),
    ConnLimit(u32),
    ObjectMap {
        key: u32,
        set: u32,
    },
    /// Looks up in [`Program::maps`], for [`Load::Data`]; the rule ends if there is nothing.
    Map(u32),
    /// What is not known here: the kernel alone decides.
    Unknown,
    Log(u32),
    Nat(u32),
    Update(u32),
    Mangle(u32),
    Notrack,
    Reject(RejectCode),
    Verdict(VerdictCode),
}

#[derive(Clone, Debug)]
pub(crate) struct NatCode {
    pub kind: NatKind,
    /// Only packets of IPv6, or only of IPv4.
    pub six: Option<bool>,
    /// The lowest and the highest.
    pub address: Option<[Term; 2]>,
    pub port: Option<[Term; 2]>,
    /// NF_NAT_RANGE_* (linux/netfilter/nf_nat.h).
    pub flags: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct UpdateCode {
    pub op: SetOp,
    pub set: u32,
    pub key: u32,
    /// `true`: its bytes lie in the machine's order.
    pub data: Option<(Term, bool)>,
    pub timeout_ns: Option<u64>,
    pub statements: Box<[ElementStatement]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum MangleTarget {
    Meta(MetaKey),
    CtMark,
    Payload {
        base: PayloadBase,
        offset: u16,
        len: u8,
        /// Where the header's own checksum lies, from the header's start.
        checksum: Option<u16>,
        /// They are part of the pseudo header that TCP, UDP and ICMPv6 sum up.
        pseudo: bool,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct MangleCode {
    pub target: MangleTarget,
    pub value: Term,
}

#[derive(Clone, Debug)]
pub(crate) struct HashCode {
    /// Each with its bits, and whether its bytes lie in the machine's order.
    pub parts: Box<[(Term, u16, bool)]>,
    pub modulus: u32,
    pub seed: u32,
    pub offset: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NumgenCode {
    pub random: bool,
    pub modulus: u32,
    pub offset: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleCode {
    pub start: u32,
    pub end: u32,
    /// So many of the instructions hold if the guard does.
    pub answered: u32,
    pub id: RuleId,
}

/// Positions in [`Program::rules`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChainCode {
    pub start: u32,
    pub end: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct BaseCode {
    pub chain: u32,
    pub id: RuleId,
    pub kind: ChainKind,
    pub priority: i32,
    /// What its policy says.
    pub drops: bool,
    /// Names as numbers; empty: every device.
    pub devices: Box<[u128]>,
    /// Hook ingress of family inet: it sees IP only, and `meta nfproto` says which.
    pub calls_ip_by_name: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    /// Sets that packets change, also by a rule of which not all is known here.
    pub changing_sets: Vec<u32>,
    /// For each layer and hook the base chains in the order in which they run.
    pub hooks: [[Vec<BaseCode>; 7]; Layer::COUNT],
    pub chains: Vec<ChainCode>,
    pub rules: Vec<RuleCode>,
    /// One for each of `rules`.
    pub guards: Vec<Guard>,
    /// What guards compare; at most [`crate::guard::FACTS_MAX`].
    pub facts: Vec<Fact>,
    /// Some rule changes what facts are read from.
    pub writes: bool,
    pub bodies: Vec<RuleCode>,
    /// Rules that do what is not known here.
    pub unknown: Vec<RuleId>,
    pub insns: Vec<Insn>,
    pub terms: Vec<Term>,
    pub tests: Vec<Test>,
    pub keys: Vec<KeyCode>,
    pub runs: Vec<Run>,
    /// Key and set of each map that yields a value.
    pub maps: Vec<(u32, u32)>,
    pub hashes: Vec<HashCode>,
    pub numgens: Vec<NumgenCode>,
    pub logs: Vec<Log>,
    pub nats: Vec<NatCode>,
    pub updates: Vec<UpdateCode>,
    pub mangles: Vec<MangleCode>,
    /// Some rule asks for connections in this layer.
    pub tracks: [bool; Layer::COUNT],
    /// Some chain of this layer is of type nat.
    pub translates: [bool; Layer::COUNT],
}

/// The number that bytes are, in the network's or the machine's order.
pub(crate) fn number(bytes: &[u8], host: bool) -> u128 {
    let add = |sum: u128, byte: &u8| sum << 8 | u128::from(*byte);
    match host {
        false => bytes.iter().fold(0, add),
        true => bytes.iter().rev().fold(0, add),
    }
}

/// As many low bits.
#[inline]
pub(crate) fn low_bits(bits: u16) -> u128 {
    if bits >= 128 {
        u128::MAX
    } else {
        (1 << bits) - 1
    }
}
