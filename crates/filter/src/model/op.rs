//! The changes that can be asked for, as nft's commands.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Chain, Element, Family, Object, Rule, Set};

/// Which table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId {
    pub family: Family,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    Counter,
    Quota,
    Limit,
}

impl ObjectKind {
    pub fn name(self) -> &'static str {
        match self {
            ObjectKind::Counter => "counter",
            ObjectKind::Quota => "quota",
            ObjectKind::Limit => "limit",
        }
    }
}

/// Where a rule goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// `insert rule`: before all others.
    First,
    /// `add rule`: after all others.
    Last,
    /// `insert rule ... position HANDLE` (or `handle`)
    BeforeHandle(u64),
    /// `add rule ... position HANDLE`
    AfterHandle(u64),
    /// `insert rule ... index N`, from 0
    BeforeIndex(usize),
    /// `add rule ... index N`
    AfterIndex(usize),
}

/// Which elements of which set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElementsOp {
    pub table: TableId,
    pub set: String,
    pub elements: Vec<Element>,
    /// `create element`: an element that is there already is an error.
    pub exclusive: bool,
}

/// One command. `exclusive` is nft's `create`: what is there already is an error.
/// `missing_ok` is nft's `destroy`: what is not there is none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    AddTable {
        table: TableId,
        dormant: bool,
        comment: Option<String>,
        exclusive: bool,
    },
    DeleteTable {
        table: TableId,
        missing_ok: bool,
    },
    DeleteTableHandle {
        family: Family,
        handle: u64,
    },
    /// Removes the rules of all chains.
    FlushTable {
        table: TableId,
    },

    /// A base chain that is there already may change its policy, nothing else.
    AddChain {
        table: TableId,
        chain: Chain,
        exclusive: bool,
    },
    DeleteChain {
        table: TableId,
        chain: String,
        missing_ok: bool,
    },
    DeleteChainHandle {
        table: TableId,
        handle: u64,
    },
    FlushChain {
        table: TableId,
        chain: String,
    },
    RenameChain {
        table: TableId,
        chain: String,
        to: String,
    },

    AddRule {
        table: TableId,
        chain: String,
        position: Position,
        rule: Rule,
    },
    ReplaceRule {
        table: TableId,
        chain: String,
        handle: u64,
        rule: Rule,
    },
    DeleteRule {
        table: TableId,
        chain: String,
        handle: u64,
    },

    AddSet {
        table: TableId,
        set: Set,
        exclusive: bool,
    },
    DeleteSet {
        table: TableId,
        set: String,
        missing_ok: bool,
    },
    DeleteSetHandle {
        table: TableId,
        handle: u64,
    },
    FlushSet {
        table: TableId,
        set: String,
    },
    AddElements(ElementsOp),
    DeleteElements(ElementsOp),

    AddObject {
        table: TableId,
        object: Object,
        exclusive: bool,
    },
    DeleteObject {
        table: TableId,
        kind: ObjectKind,
        name: String,
        missing_ok: bool,
    },
    DeleteObjectHandle {
        table: TableId,
        kind: ObjectKind,
        handle: u64,
    },

    /// `reset counters|quotas`, everywhere, in a family, in a table or one: back to zero.
    ResetObjects {
        kind: ObjectKind,
        family: Option<Family>,
        table: Option<TableId>,
        name: Option<String>,
    },
    /// `reset rules`: the counters and quotas inside rules back to zero.
    ResetRules {
        family: Option<Family>,
        table: Option<TableId>,
        chain: Option<String>,
    },

    /// `flush ruleset [family]`
    FlushRuleset {
        family: Option<Family>,
    },
}
