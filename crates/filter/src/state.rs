//! What changes while a program runs: counts, buckets, sets that packets add to.

use alloc::vec::Vec;

use crate::limits::{Bucket, QuotaState};
use crate::sets::SetStore;

/// Packets, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    pub packets: u64,
    pub bytes: u64,
}

impl From<(u64, u64)> for Counter {
    fn from((packets, bytes): (u64, u64)) -> Counter {
        Counter { packets, bytes }
    }
}

/// Where in the rules something that counts stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Expr {
        table: u16,
        chain: u16,
        rule: u32,
        expr: u16,
    },
    Object {
        table: u16,
        object: u32,
    },
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
    pub sets: Vec<SetStore>,
}
