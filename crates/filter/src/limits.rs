//! Token buckets and quotas, with the kernel's arithmetic (nft_limit.c, nft_quota.c), so
//! that the same packets at the same times pass.

use crate::rules::{Limit, Quota};

/// A limit while it is in use. Tokens are nanoseconds: a packet costs the time in which
/// the rate earns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub limit: Limit,
    unit_ns: u64,
    tokens_max: u64,
    tokens: u64,
    last_ns: u64,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(limit: &Limit, now_ns: u64) -> Bucket {
        let unit_ns = limit.unit_s.saturating_mul(1_000_000_000);
        let rate = limit.rate.max(1);
        let tokens_max = if limit.bytes {
            let full = u128::from(unit_ns) * (u128::from(rate) + u128::from(limit.burst));
            u64::try_from(full / u128::from(rate)).unwrap_or(u64::MAX)
        } else {
            let burst = if limit.burst == 0 { 5 } else { limit.burst };
            (unit_ns / rate).saturating_mul(burst.into())
        };
        Bucket {
            limit: *limit,
            unit_ns,
            tokens_max,
            tokens: tokens_max,
            last_ns: now_ns,
        }
    }

    /// Whether the packet passes; takes its cost if the bucket has it.
    pub(crate) fn pass(&mut self, bytes: usize, now_ns: u64) -> bool {
        let rate = self.limit.rate.max(1);
        let cost = if self.limit.bytes {
            let cost = u128::from(self.unit_ns) * bytes as u128 / u128::from(rate);
            u64::try_from(cost).unwrap_or(u64::MAX)
        } else {
            self.unit_ns / rate
        };
        let earned = now_ns.saturating_sub(self.last_ns);
        let tokens = self.tokens.saturating_add(earned).min(self.tokens_max);
        self.last_ns = self.last_ns.max(now_ns);
        match tokens.checked_sub(cost) {
            Some(rest) => {
                self.tokens = rest;
                !self.limit.over
            }
            None => {
                self.tokens = tokens;
                self.limit.over
            }
        }
    }
}

/// A quota while it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaState {
    pub quota: Quota,
}

impl QuotaState {
    pub(crate) fn new(quota: &Quota) -> QuotaState {
        QuotaState { quota: *quota }
    }

    pub(crate) fn pass(&mut self, bytes: usize) -> bool {
        self.quota.used = self.quota.used.saturating_add(bytes as u64);
        (self.quota.used > self.quota.bytes) == self.quota.over
    }
}
