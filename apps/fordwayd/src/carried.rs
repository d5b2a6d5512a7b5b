//! Bytes through rings, by domain and direction: counts that never go back.
//!
//! A live end shows its count in its memory, one that is over has reported it, and of a dead process the memory is read a last time.
//! What an end shows beyond what it showed before is counted for the domain in which its process is then: a domain that comes
//! or goes moves no byte from one count to another. What an end carried under a broker before is no byte of this one's.
//!
//! Programs say what they like of themselves; a program that lies spoils its own domain's counts. Ends of processes in namespaces
//! that have no name are counted together: anybody can make such namespaces, as many as he likes. Of a pair between a program and its
//! stack the program's end is counted for the domain, and both for the sum.

use crate::broker::Broker;
use fordway_platform::process::Peer;
use fordway_registry::{ChannelView, LinkSide, ProcessId};
use std::collections::{BTreeMap, BTreeSet};

/// Sent and received.
pub(crate) type Bytes = [u64; 2];

/// An end, for as long as it lives: its side, and the channel's number.
type End = (LinkSide, u64);

fn end_of(channel: &ChannelView) -> End {
    (channel.own, channel.id)
}

/// Whose bytes an end's are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Of the domain with this number.
    Domain(u32),
    /// Of programs in no domain.
    Nobody,
    /// Of a stack: what it carries is a program's, too.
    Stack,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// By the number of the domain; `None`: of those in none.
    by_domain: BTreeMap<Option<u32>, Bytes>,
    /// Each byte once, by its sender.
    sent_by_all: u64,
    /// What live ends have shown. `None`: an end that another broker has looked at, and not yet this one.
    seen: BTreeMap<End, Option<Bytes>>,
}

impl Carried {
    fn count(&mut self, owner: Owner, end: End, shown: Bytes) {
        let seen = self.seen.entry(end).or_insert(Some([0; 2]));
        let before = seen.unwrap_or(shown);
        *seen = Some([0, 1].map(|at| before[at].max(shown[at])));
        let more = [0, 1].map(|at| shown[at].saturating_sub(before[at]));
        self.sent_by_all = self.sent_by_all.saturating_add(more[0]);
        let domain = match owner {
            Owner::Domain(id) => Some(id),
            Owner::Nobody => None,
            Owner::Stack => return,
        };
        let sums = self.by_domain.entry(domain).or_default();
        *sums = [0, 1].map(|at| sums[at].saturating_add(more[at]));
    }

    /// A domain is removed. Ends of it that live go on as those of no domain.
    pub(crate) fn forget(&mut self, domain: u32) {
        self.by_domain.remove(&Some(domain));
    }

    /// Each byte so far once, by its sender.
    pub(crate) fn sent_by_all(&self) -> u64 {
        self.sent_by_all
    }

    /// Of a domain; `None`: of those in none.
    pub(crate) fn of(&self, domain: Option<u32>) -> Bytes {
        self.by_domain.get(&domain).copied().unwrap_or_default()
    }
}

impl Broker {
    /// Counts what all live ends show. To be called before a domain comes or goes, and before counts are told.
    pub(crate) fn count_carried(&mut self) {
        let mut live = BTreeSet::new();
        let processes: Vec<ProcessId> = self.by_process.keys().copied().collect();
        for process in processes {
            live.extend(self.count_ends_of(process));
        }
        self.carried.seen.retain(|end, _| live.contains(end));
    }

    /// The same of a process; they are returned.
    pub(crate) fn count_ends_of(&mut self, process: ProcessId) -> Vec<End> {
        let number = self.by_process.get(&process);
        let peer = number.and_then(|number| Some(&self.connections.get(number)?.peer));
        let Some(owner) = peer.map(|peer| self.owner_of(peer)) else {
            return Vec::new();
        };
        self.count_as(process, owner)
    }

    fn count_as(&mut self, process: ProcessId, owner: Owner) -> Vec<End> {
        let ends = self.registry.live_channels_of(process).into_iter();
        let ends: Vec<ChannelView> = ends.chain(self.channels_to_guests(process)).collect();
        for end in &ends {
            if let Some(one) = self.memory.progress(end) {
                let shown = [one.ring_bytes_tx, one.ring_bytes_rx];
                self.carried.count(owner, end_of(end), shown);
            }
        }
        ends.iter().map(end_of).collect()
    }

    fn owner_of(&self, peer: &Peer) -> Owner {
        if self.stacks.served_by(&self.parts, peer.pid).is_some() {
            return Owner::Stack;
        }
        let domain = self.registry.domain_of_netns(peer.netns_cookie);
        domain.map_or(Owner::Nobody, |domain| Owner::Domain(domain.id))
    }

    /// An end is over, and its process has said so.
    pub(crate) fn end_is_over(&mut self, channel: &ChannelView, bytes: Bytes) {
        let number = self.by_process.get(&channel.own.process);
        let peer = number.and_then(|number| Some(&self.connections.get(number)?.peer));
        let owner = peer.map_or(Owner::Nobody, |peer| self.owner_of(peer));
        self.carried.count(owner, end_of(channel), bytes);
        self.carried.seen.remove(&end_of(channel));
    }

    /// A process is gone, which had these credentials, and its memory is about to go.
    pub(crate) fn ends_are_over(&mut self, process: ProcessId, peer: &Peer) {
        for end in self.count_as(process, self.owner_of(peer)) {
            self.carried.seen.remove(&end);
        }
    }

    /// An end goes on that began under another broker.
    pub(crate) fn end_goes_on(&mut self, channel: &ChannelView) {
        let shown = self.memory.progress(channel);
        let shown = shown.map(|one| [one.ring_bytes_tx, one.ring_bytes_rx]);
        self.carried.seen.insert(end_of(channel), shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: Owner = Owner::Domain(1);

    fn end(link_id: u64) -> End {
        let process = ProcessId(9);
        (LinkSide { process, link_id }, 1)
    }

    #[test]
    fn counts_never_go_back() {
        let mut carried = Carried::default();
        for (owner, at, bytes) in [
            (WEB, 0, [10, 1]),
            (Owner::Nobody, 1, [5, 5]),
            (WEB, 2, [1, 1]),
        ] {
            carried.count(owner, end(at), bytes);
        }
        assert_eq!((carried.of(Some(1)), carried.of(None)), ([11, 2], [5, 5]));
        assert_eq!(carried.sent_by_all(), 16);
        // One end turns a count back.
        carried.count(WEB, end(2), [0, 9]);
        carried.count(WEB, end(2), [1, 9]);
        assert_eq!((carried.of(Some(1)), carried.sent_by_all()), ([11, 10], 16));
        carried.count(WEB, end(0), [u64::MAX, 1]);
        carried.count(WEB, end(2), [u64::MAX, 9]);
        assert_eq!(carried.of(Some(1)), [u64::MAX, 10]);
        assert_eq!(carried.sent_by_all(), u64::MAX);
    }

    #[test]
    fn a_byte_stays_in_the_count_of_its_moment() {
        let mut carried = Carried::default();
        carried.count(Owner::Nobody, end(0), [3, 3]);
        // Its namespace gets a name, and loses it.
        carried.count(WEB, end(0), [4, 5]);
        assert_eq!((carried.of(None), carried.of(Some(1))), ([3, 3], [1, 2]));
        carried.forget(1);
        carried.count(Owner::Nobody, end(0), [5, 5]);
        assert_eq!((carried.of(None), carried.of(Some(1))), ([4, 3], [0, 0]));
        assert_eq!(carried.sent_by_all(), 5);
    }

    #[test]
    fn of_an_end_that_goes_on_its_past_is_not_counted() {
        let mut carried = Carried::default();
        carried.seen.insert(end(0), Some([100, 100]));
        carried.seen.insert(end(1), None);
        carried.count(WEB, end(0), [101, 100]);
        carried.count(WEB, end(1), [50, 50]);
        carried.count(WEB, end(1), [52, 51]);
        assert_eq!(carried.of(Some(1)), [3, 1]);
    }

    #[test]
    fn what_a_stack_carries_is_its_programs() {
        let mut carried = Carried::default();
        carried.count(WEB, end(0), [7, 2]);
        carried.count(Owner::Stack, end(1), [2, 7]);
        assert_eq!((carried.of(Some(1)), carried.sent_by_all()), ([7, 2], 9));
    }
}
