//! A ruleset as nft sees it, with the structure of its source kept.
//!
//! Nothing here is lowered: no implied dependency (`meta l4proto tcp` before `tcp dport`)
//! is written into a rule, sets that stand inside a rule stay there, ranges and prefixes
//! stay what they were. So a listing gives back what was read, and all lowering has one
//! home, the compiler. What the rules *count* while they run lives in the engine; the
//! numbers here are those that were written in the source or put back by the engine
//! before a listing.
//!
//! All numbers in values are in network byte order, whatever the kernel keeps them in
//! ([`Value`]), so that comparing bytes compares numbers.
//!
//! Changes come as a list of [`Op`] and are taken whole or not at all
//! ([`Ruleset::apply`]).

mod apply;
mod check;
mod elements;
mod expr;
mod fields;
mod op;
mod set;
mod stmt;
mod types;

pub use apply::{ApplyError, ApplyErrorKind};
pub use expr::{
    BinaryOp, CtDirection, CtKey, Expr, FibFlags, FibResult, MetaKey, NumgenMode, SetRef,
};
pub use fields::{
    EXTHDR_FIELDS, ExthdrDef, ExthdrField, ExthdrKind, FIELDS, Field, FieldDef, PayloadBase,
    Protocol,
};
pub use op::{ElementsOp, ObjectKind, Op, Position, TableId};
pub use set::{Element, ElementData, MapData, Object, ObjectState, Set, SetFlags, SetType};
pub use stmt::{
    Counter, Limit, LimitUnit, Log, LogFlags, Mangle, Nat, NatFlags, NatKind, Quota, RejectKind,
    RelOp, SetUpdate, SetUpdateOp, Statement, Verdict,
};
pub use types::{BYTES_MAX, DataType, Family, Value};

use alloc::string::String;
use alloc::vec::Vec;

/// The longest jump chain that may be entered from a base chain (kernel: NFT_JUMP_STACK_SIZE).
pub const JUMP_DEPTH_MAX: usize = 16;

/// All tables, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ruleset {
    pub tables: Vec<Table>,
    /// The last table handle that was given out; handles are never used again.
    pub last_table_handle: u64,
    /// Goes up with each [`Ruleset::apply`] that changed something.
    pub epoch: u64,
}

/// `table inet name { ... }`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Table {
    pub family: Family,
    pub name: String,
    pub handle: u64,
    /// `flags dormant`: kept, but its base chains see no packets.
    pub dormant: bool,
    pub comment: Option<String>,
    pub chains: Vec<Chain>,
    /// Sets, maps and verdict maps with a name.
    pub sets: Vec<Set>,
    /// Named counters, quotas and limits.
    pub objects: Vec<Object>,
    /// The last handle given to anything inside this table.
    pub last_handle: u64,
}

/// `chain name { ... }`; a base chain if it has a hook.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    pub name: String,
    pub handle: u64,
    pub base: Option<BaseChain>,
    pub comment: Option<String>,
    pub rules: Vec<Rule>,
}

/// `type filter hook input device "eth0" priority 0; policy drop;`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BaseChain {
    pub kind: ChainKind,
    pub hook: Hook,
    /// The number that the kernel sorts by; the front end turns `filter - 10` into it.
    pub priority: i32,
    pub policy: Policy,
    /// Only for hook ingress and egress; one or more names.
    pub devices: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainKind {
    Filter,
    Nat,
    Route,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    Ingress,
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
    Egress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    #[default]
    Accept,
    Drop,
}

/// One rule. A rule that is being added has handle 0; [`Ruleset::apply`] gives it one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Rule {
    pub handle: u64,
    pub comment: Option<String>,
    pub statements: Vec<Statement>,
}

impl Chain {
    /// A chain without rules; handle 0 until it is added.
    pub fn new(name: &str, base: Option<BaseChain>) -> Chain {
        Chain {
            name: name.into(),
            handle: 0,
            base,
            comment: None,
            rules: Vec::new(),
        }
    }
}

impl Table {
    pub fn new(family: Family, name: &str) -> Table {
        Table {
            family,
            name: name.into(),
            handle: 0,
            dormant: false,
            comment: None,
            chains: Vec::new(),
            sets: Vec::new(),
            objects: Vec::new(),
            last_handle: 0,
        }
    }

    pub fn chain(&self, name: &str) -> Option<&Chain> {
        self.chains.iter().find(|c| c.name == name)
    }

    pub fn set(&self, name: &str) -> Option<&Set> {
        self.sets.iter().find(|s| s.name == name)
    }

    /// Objects of different kinds may share a name, as in the kernel.
    pub fn object(&self, kind: ObjectKind, name: &str) -> Option<&Object> {
        self.objects
            .iter()
            .find(|o| o.name == name && o.state.kind() == kind)
    }
}

impl Ruleset {
    pub fn table(&self, family: Family, name: &str) -> Option<&Table> {
        self.tables
            .iter()
            .find(|t| t.family == family && t.name == name)
    }
}

impl Hook {
    pub const ALL: [Hook; 7] = [
        Hook::Ingress,
        Hook::Prerouting,
        Hook::Input,
        Hook::Forward,
        Hook::Output,
        Hook::Postrouting,
        Hook::Egress,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Hook::Ingress => "ingress",
            Hook::Prerouting => "prerouting",
            Hook::Input => "input",
            Hook::Forward => "forward",
            Hook::Output => "output",
            Hook::Postrouting => "postrouting",
            Hook::Egress => "egress",
        }
    }

    pub fn by_name(name: &str) -> Option<Hook> {
        Hook::ALL.into_iter().find(|h| h.name() == name)
    }
}

impl ChainKind {
    pub fn name(self) -> &'static str {
        match self {
            ChainKind::Filter => "filter",
            ChainKind::Nat => "nat",
            ChainKind::Route => "route",
        }
    }
}
