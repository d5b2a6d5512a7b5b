//! What was written, before anything is known about types.
//!
//! Text and JSON are both read into this, so that all checks have one home
//! ([`crate::check`]). Leaves that mean the same whatever stands around them (`tcp dport`,
//! `ct state`) are already the model's; words, numbers and everything that holds words are
//! not, because only their place says what they mean.
use crate::prelude::*;
use crate::source::Span;
use alloc::rc::Rc;
use fordway_filter::model::{
    self, BinaryOp, Counter, CtDirection, CtKey, Limit, Log, Mangle, NatFlags, NatKind, ObjectKind,
    Op, Quota, RelOp, SetFlags, SetUpdateOp, TableId, Verdict,
};

/// An expression and its place.
#[derive(Clone, Debug)]
pub struct Expr {
    /// What it is.
    pub kind: ExprKind,
    /// Where it stands.
    pub span: Span,
}

/// See [`Expr`].
#[derive(Clone, Debug)]
pub enum ExprKind {
    /// A word whose meaning is the type's business: `ssh`, `10.0.0.1`, `new`.
    Word(String),
    /// A quoted text.
    Quoted(String),
    /// `eth*`, with the asterisk.
    Wild(String),
    /// A number.
    Number(u64),
    /// `exists`, `missing`; JSON's true and false.
    Bool(bool),
    /// `*` as an element.
    Star,
    /// `@name`.
    SetRef(String),
    /// `{ ... }`.
    Set(Rc<Vec<Element>>),
    /// `a,b` without braces.
    List(Vec<Expr>),
    /// `a . b`.
    Concat(Vec<Expr>),
    /// `a-b`.
    Range(Box<Expr>, Box<Expr>),
    /// `a/8`.
    Prefix(Box<Expr>, u64),
    /// `a & b` ...
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// `key map { ... }`.
    Map(Box<Expr>, Box<Expr>),
    /// Something read from the packet, its connection or the kernel.
    Leaf(model::Expr),
    /// A name of a header's field, told apart by the family of the rule: `ct saddr`.
    Jhash {
        /// What is hashed.
        input: Box<Expr>,
        /// `mod`.
        modulus: u32,
        /// `seed`.
        seed: Option<u32>,
        /// `offset`.
        offset: u32,
    },
    /// `$name`, and what it stands for.
    Variable(Rc<Expr>),
}

impl Expr {
    /// An expression at a place.
    pub fn new(kind: ExprKind, span: Span) -> Expr {
        Expr { kind, span }
    }

    /// What a variable stands for, with the place of its use.
    pub fn resolved(&self) -> &ExprKind {
        let mut kind = &self.kind;
        while let ExprKind::Variable(inner) = kind {
            kind = &inner.kind;
        }
        kind
    }
}

/// A member of `{ ... }`.
#[derive(Clone, Debug)]
pub struct Element {
    /// Value, range, prefix, concatenation, `*`.
    pub key: Expr,
    /// After the colon.
    pub data: Option<Data>,
    /// `timeout`.
    pub timeout_ms: Option<u64>,
    /// `expires`.
    pub expires_ms: Option<u64>,
    /// `comment`.
    pub comment: Option<String>,
    /// `counter` ...
    pub statements: Vec<Statement>,
}

/// What a map's element leads to.
#[derive(Clone, Debug)]
pub enum Data {
    /// A value, or the name of an object.
    Expr(Expr),
    /// A verdict.
    Verdict(Verdict, Span),
}

/// A statement and its place.
#[derive(Clone, Debug)]
pub struct Statement {
    /// What it is.
    pub kind: StatementKind,
    /// Where it stands.
    pub span: Span,
}

/// See [`Statement`].
#[derive(Clone, Debug)]
pub enum StatementKind {
    /// `left op right`.
    Match {
        /// The operator.
        op: RelOp,
        /// What is looked at.
        left: Expr,
        /// What it is compared with.
        right: Expr,
    },
    /// `accept` ...
    Verdict(Verdict),
    /// `key vmap { ... }`.
    VerdictMap {
        /// The key.
        key: Expr,
        /// The map.
        map: Expr,
    },
    /// `reject with ...`.
    Reject(RejectWith),
    /// `counter`.
    Counter(Counter),
    /// `limit rate ...`.
    Limit(Limit),
    /// `quota ...`.
    Quota(Quota),
    /// `counter name ...`.
    Object(ObjectKind, Expr),
    /// `ct count`.
    ConnLimit {
        /// How many.
        count: u32,
        /// `over`.
        over: bool,
    },
    /// `log`.
    Log(Log),
    /// `snat`, `dnat`, `masquerade`, `redirect`.
    Nat(Nat),
    /// `add @set { ... }`.
    SetUpdate {
        /// add, update, delete.
        op: SetUpdateOp,
        /// The set.
        set: String,
        /// Key, timeout, statements, data.
        element: Box<Element>,
    },
    /// `meta mark set ...`.
    Mangle {
        /// What is written to.
        target: Mangle,
        /// What is written.
        value: Expr,
    },
    /// `notrack`.
    Notrack,
}

/// How a packet is rejected.
#[derive(Clone, Debug)]
pub enum RejectWith {
    /// Plain `reject`.
    Default,
    /// `with icmp`.
    Icmp(Expr),
    /// `with icmpv6`.
    Icmpv6(Expr),
    /// `with icmpx`.
    Icmpx(Expr),
    /// `with tcp reset`.
    TcpReset,
}

/// A NAT statement.
#[derive(Clone, Debug)]
pub struct Nat {
    /// Which.
    pub kind: NatKind,
    /// `ip`, `ip6` before `to`.
    pub family: Option<model::Family>,
    /// The address.
    pub address: Option<Expr>,
    /// The port.
    pub port: Option<Expr>,
    /// The flags.
    pub flags: NatFlags,
    /// `addr . port to`.
    pub joined: bool,
}

impl Nat {
    /// Without anything behind the word.
    pub fn new(kind: NatKind) -> Self {
        Self {
            kind,
            family: None,
            address: None,
            port: None,
            flags: NatFlags::default(),
            joined: false,
        }
    }
}

/// `set name { ... }` and `map name { ... }`.
#[derive(Clone, Debug)]
pub struct SetSpec {
    /// Its name.
    pub name: String,
    /// `type` or `typeof`.
    pub key: Option<TypeSpec>,
    /// A map's data.
    pub data: Option<DataSpec>,
    /// Written as `map`.
    pub is_map: bool,
    /// The flags.
    pub flags: SetFlags,
    /// `timeout`.
    pub timeout_ms: Option<u64>,
    /// `gc-interval`.
    pub gc_interval_ms: Option<u64>,
    /// `size`.
    pub size: Option<u32>,
    /// `policy memory`.
    pub policy_memory: bool,
    /// `auto-merge`.
    pub auto_merge: bool,
    /// `comment`.
    pub comment: Option<String>,
    /// `counter` ... for each element.
    pub statements: Vec<Statement>,
    /// `elements = { ... }`.
    pub elements: Option<Expr>,
}

/// The type of a key or of data.
#[derive(Clone, Debug)]
pub enum TypeSpec {
    /// Names of types.
    Names(Vec<(String, Span)>),
    /// Expressions that have a type.
    Typeof(Vec<Expr>),
}

/// What a map leads to.
#[derive(Clone, Debug)]
pub enum DataSpec {
    /// Values; true for `interval`.
    Values(TypeSpec, bool),
    /// Verdicts.
    Verdict,
    /// Objects.
    Object(ObjectKind),
}

/// Where a rule goes.
#[derive(Clone, Debug)]
pub enum RulePlace {
    /// `add`, `insert`.
    At(model::Position),
    /// `replace`.
    Instead(u64),
}

/// A rule as written.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its statements.
    pub statements: Vec<Statement>,
    /// Its comment.
    pub comment: Option<String>,
}

/// A command and its place.
#[derive(Clone, Debug)]
pub struct Command {
    /// What it is.
    pub kind: CommandKind,
    /// Where it stands.
    pub span: Span,
}

/// See [`Command`].
#[derive(Clone, Debug)]
pub enum CommandKind {
    /// Needs no types: the model's operation as it is.
    Plain(Op),
    /// A rule to be added or replaced.
    Rule {
        /// The table.
        table: TableId,
        /// The chain.
        chain: String,
        /// Where.
        place: RulePlace,
        /// The rule.
        rule: Rule,
    },
    /// A set or map to be added.
    Set {
        /// The table.
        table: TableId,
        /// The set.
        set: Box<SetSpec>,
        /// `create`.
        exclusive: bool,
    },
    /// Elements to be added or taken away.
    Elements {
        /// The table.
        table: TableId,
        /// The set.
        set: String,
        /// The elements.
        elements: Expr,
        /// What with them.
        verb: ElementsVerb,
    },
    /// Something to be listed.
    List(Listing),
}

/// What is done with elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementsVerb {
    /// Added.
    Add,
    /// Added, an error if there.
    Create,
    /// Taken away.
    Delete,
}

/// A `list` command: what of the ruleset it shows. Names and family narrow it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Which things.
    pub what: Listed,
    /// Only of this family.
    pub family: Option<model::Family>,
    /// Only of this table.
    pub table: Option<String>,
    /// Only of this name.
    pub name: Option<String>,
}

/// Which things a [`Listing`] shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Whole tables.
    Ruleset,
    /// Tables by name only.
    Tables,
    /// A chain with its rules.
    Chain,
    /// Chains without rules.
    Chains,
    /// A set or map, with elements.
    Set,
    /// Sets.
    Sets,
    /// Maps.
    Maps,
    /// Named objects of a kind.
    Objects(ObjectKind),
}

/// `ct` keys that a direction may stand before.
pub fn takes_direction(key: CtKey) -> bool {
    use CtKey::*;
    matches!(
        key,
        L3proto
            | Protocol
            | Saddr
            | Daddr
            | IpSaddr
            | IpDaddr
            | Ip6Saddr
            | Ip6Daddr
            | ProtoSrc
            | ProtoDst
            | Bytes
            | Packets
            | Avgpkt
            | Zone
    )
}

/// `ct` keys that say nothing without a direction.
pub fn needs_direction(key: CtKey) -> bool {
    use CtKey::*;
    matches!(
        key,
        Saddr | Daddr | IpSaddr | IpDaddr | Ip6Saddr | Ip6Daddr | ProtoSrc | ProtoDst
    )
}

/// The leaf of a `ct` expression.
pub fn ct(key: CtKey, direction: Option<CtDirection>) -> ExprKind {
    ExprKind::Leaf(model::Expr::Ct { key, direction })
}
