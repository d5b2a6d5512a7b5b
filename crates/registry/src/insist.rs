//! Offers of programs that want rings or nothing. On such a connection nothing moves before the
//! other end is offered too, so an offer that finds no partner is refused after a while. Datagrams go by
//! the kernel meanwhile and afterwards: their offer stands, and is told that it has no partner.

use crate::processes::{ConnKey, ConnState};
use crate::{Action, ProcessId, Registry};
use fordway_abi::control::PathPolicy;
use fordway_abi::reason::Reason;
use std::collections::{BTreeMap, BTreeSet};

/// How long such an offer waits for the other end's, which is made as soon as that program has
/// its connection, if it wants the same.
pub const INSIST_NS_MAX: u64 = 2_000_000_000;

/// Those that wait.
#[derive(Debug, Default)]
pub(crate) struct Insisting {
    due: BTreeSet<(u64, ConnKey)>,
    until_ns: BTreeMap<ConnKey, u64>,
}

impl Insisting {
    fn insert(&mut self, key: ConnKey, until_ns: u64) {
        self.remove(key);
        self.until_ns.insert(key, until_ns);
        self.due.insert((until_ns, key));
    }

    /// The offer is over, whatever became of it.
    pub(crate) fn remove(&mut self, key: ConnKey) {
        if let Some(until_ns) = self.until_ns.remove(&key) {
            self.due.remove(&(until_ns, key));
        }
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.due.first().map(|(until_ns, _)| *until_ns)
    }
}

impl Registry {
    /// To be told after [`Registry::offer_through`], for the time that the offer may wait.
    pub fn insists(&mut self, process: ProcessId, conn_id: u64, now_ns: u64) {
        let key = (process, conn_id);
        let waits = matches!(
            self.conn(key).map(|conn| conn.state),
            Some(ConnState::Offered { .. })
        );
        let is_new = !self.insisting.until_ns.contains_key(&key);
        let insists = self.policy(process) == Some(PathPolicy::Fast);
        if insists && waits && is_new {
            let until_ns = now_ns.saturating_add(INSIST_NS_MAX);
            self.insisting.insert(key, until_ns);
        }
    }

    /// Refuses those that have waited long enough.
    pub(crate) fn refuse_overdue(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        while let Some(&(until_ns, key)) = self.insisting.due.first()
            && until_ns <= now_ns
        {
            self.insisting.remove(key);
            let state = self.conn(key).map(|conn| conn.state);
            match state {
                _ if self.insists_on(key) => self.turn_down(key, Reason::NoPeer, actions),
                Some(ConnState::Offered { told: None }) => {
                    self.hold_back(key, Reason::NoPeer, actions);
                }
                _ => {}
            }
        }
    }
}
