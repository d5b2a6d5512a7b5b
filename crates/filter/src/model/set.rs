//! Sets, maps, their elements, and named objects.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Counter, DataType, Expr, Limit, ObjectKind, Quota, Statement, Verdict};

/// A set or a map with a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Set {
    pub name: String,
    pub handle: u64,
    /// The type of the key; more than one part is a concatenation.
    pub key: SetType,
    /// What a map leads to; `None` for a set.
    pub data: Option<MapData>,
    pub flags: SetFlags,
    /// Elements leave so long after they came, unless they say otherwise.
    pub timeout_ms: Option<u64>,
    pub gc_interval_ms: Option<u64>,
    /// No more elements than this.
    pub size: Option<u32>,
    /// `policy memory` instead of `policy performance`; only listed back.
    pub policy_memory: bool,
    pub auto_merge: bool,
    pub comment: Option<String>,
    /// `counter`, `limit` ... that each new element gets.
    pub statements: Vec<Statement>,
    pub elements: Vec<Element>,
}

/// `type ipv4_addr . inet_service` or `typeof ip saddr . tcp dport`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SetType {
    Type(Vec<DataType>),
    /// The expressions as written, each with the type that it has.
    Typeof(Vec<(Expr, DataType)>),
}

impl SetType {
    pub fn parts(&self) -> Vec<DataType> {
        match self {
            SetType::Type(parts) => parts.clone(),
            SetType::Typeof(parts) => parts.iter().map(|(_, t)| *t).collect(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MapData {
    Type(SetType),
    /// `flags interval` on the data: ranges of addresses and ports for NAT.
    Interval(SetType),
    Verdict,
    Object(ObjectKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SetFlags {
    pub constant: bool,
    pub interval: bool,
    pub timeout: bool,
    pub dynamic: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    /// A value, range, prefix or a concatenation of these; [`Expr::Any`] catches all.
    pub key: Expr,
    pub data: Option<ElementData>,
    pub timeout_ms: Option<u64>,
    /// What is left of the timeout.
    pub expires_ms: Option<u64>,
    pub comment: Option<String>,
    /// `counter packets 0 bytes 0`, `limit ...` of this element.
    pub statements: Vec<Statement>,
}

impl Element {
    pub fn new(key: Expr) -> Element {
        Element {
            key,
            data: None,
            timeout_ms: None,
            expires_ms: None,
            comment: None,
            statements: Vec::new(),
        }
    }

    pub fn with_data(key: Expr, data: ElementData) -> Element {
        Element {
            data: Some(data),
            ..Element::new(key)
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ElementData {
    Value(Expr),
    Verdict(Verdict),
    /// The name of an object of the map's kind.
    Object(String),
}

/// A counter, quota or limit with a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    pub name: String,
    pub handle: u64,
    pub comment: Option<String>,
    pub state: ObjectState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectState {
    Counter(Counter),
    Quota(Quota),
    Limit(Limit),
}

impl ObjectState {
    pub fn kind(&self) -> ObjectKind {
        match self {
            ObjectState::Counter(_) => ObjectKind::Counter,
            ObjectState::Quota(_) => ObjectKind::Quota,
            ObjectState::Limit(_) => ObjectKind::Limit,
        }
    }
}
