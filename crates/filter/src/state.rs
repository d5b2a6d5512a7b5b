//! What changes while a program runs: counts, buckets, sets that packets add to.

use alloc::vec::Vec;

use crate::limits::{Bucket, QuotaState};
use crate::model::Counter;
use crate::sets::SetStore;

/// Where in the ruleset something that counts is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Statement {
        table: u16,
        chain: u16,
        rule: u32,
        statement: u16,
    },
    Object {
        table: u16,
        object: u32,
    },
}

/// A set by position; anonymous sets stand nowhere by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetPlace {
    Named { table: u16, set: u32 },
    Anonymous,
}

/// `ct count`: the connections that were counted, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnLimitState {
    pub count: u32,
    pub over: bool,
    pub flows: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub counters: Vec<(Counter, Place)>,
    pub limits: Vec<(Bucket, Place)>,
    pub quotas: Vec<(QuotaState, Place)>,
    pub conn_limits: Vec<(ConnLimitState, Place)>,
    pub numgens: Vec<u32>,
    pub sets: Vec<(SetStore, SetPlace)>,
}
