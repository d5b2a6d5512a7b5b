//! Bytes that went through rings, by domain and direction: counts that never go back.
//!
//! A live end shows its count in its memory, one that is over has reported it, and of a dead process the memory is read a last time.
//! Programs say what they like of themselves. So what was told once stays the least that is told, and a program that lies
//! spoils its own domain's counts. Ends of processes in namespaces that have no name are counted together: anybody can make such
//! namespaces, as many as he likes.

use crate::broker::Broker;
use fordway_platform::process::Peer;
use fordway_registry::ProcessId;
use std::collections::BTreeMap;

/// Sent and received.
pub(crate) type Bytes = [u64; 2];
/// By the number of the domain; `None`: of those in none.
type ByDomain = BTreeMap<Option<u32>, Bytes>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// By ends that are over.
    over: ByDomain,
    /// The most that was told.
    told: ByDomain,
    /// Sent in domains that were removed, by ends that were over then.
    removed: u64,
    /// The most that was told of all.
    told_of_all: u64,
}

impl Carried {
    fn add(to: &mut ByDomain, domain: Option<u32>, bytes: Bytes) {
        let sums = to.entry(domain).or_default();
        *sums = [0, 1].map(|at| sums[at].saturating_add(bytes[at]));
    }

    /// Takes what live ends show beside what is over.
    fn tell(&mut self, live: impl Iterator<Item = (Option<u32>, Bytes)>) -> Told {
        let mut now = self.over.clone();
        live.for_each(|(domain, bytes)| Carried::add(&mut now, domain, bytes));
        for (domain, bytes) in now {
            let told = self.told.entry(domain).or_default();
            *told = [0, 1].map(|at| told[at].max(bytes[at]));
        }
        let sent = self.told.values().map(|bytes| bytes[0]);
        let sum = sent.fold(self.removed, u64::saturating_add);
        self.told_of_all = self.told_of_all.max(sum);
        Told {
            sent_by_all: self.told_of_all,
            by_domain: self.told.clone(),
        }
    }

    /// A domain is removed. Ends of it that live go on as those of no domain.
    pub(crate) fn forget(&mut self, domain: u32) {
        let over = self.over.remove(&Some(domain)).unwrap_or_default();
        self.removed = self.removed.saturating_add(over[0]);
        self.told.remove(&Some(domain));
    }
}

/// So far.
#[derive(Debug)]
pub(crate) struct Told {
    /// Each byte once, by its sender.
    pub(crate) sent_by_all: u64,
    by_domain: ByDomain,
}

impl Told {
    /// Of a domain; `None`: of those in none.
    pub(crate) fn of(&self, domain: Option<u32>) -> Bytes {
        self.by_domain.get(&domain).copied().unwrap_or_default()
    }
}

impl Broker {
    /// Bytes through rings so far.
    pub(crate) fn carried(&mut self) -> Told {
        let mut live = Vec::new();
        for (process, number) in &self.by_process {
            let peer = self.connections.get(number).map(|one| &one.peer);
            let domain = peer.and_then(|peer| self.domain_with_stack(peer));
            live.push((domain, self.shown_by(*process)));
        }
        self.carried.tell(live.into_iter())
    }

    /// By the live ends of a process.
    fn shown_by(&self, process: ProcessId) -> Bytes {
        let ends = self.registry.live_channels_of(process).into_iter();
        let ends = ends.chain(self.channels_to_guests(process));
        let shown = ends.filter_map(|end| self.memory.progress(&end));
        shown.fold([0; 2], |sums, one| {
            let bytes = [one.ring_bytes_tx, one.ring_bytes_rx];
            [0, 1].map(|at| sums[at].saturating_add(bytes[at]))
        })
    }

    /// An end is over, and its process has said so.
    pub(crate) fn end_is_over(&mut self, process: ProcessId, bytes: Bytes) {
        let number = self.by_process.get(&process);
        let peer = number.and_then(|number| Some(&self.connections.get(number)?.peer));
        let domain = peer.and_then(|peer| self.domain_with_stack(peer));
        Carried::add(&mut self.carried.over, domain, bytes);
    }

    /// A process is gone, which had these credentials, and its memory is about to go.
    pub(crate) fn ends_are_over(&mut self, process: ProcessId, peer: &Peer) {
        let (domain, bytes) = (self.domain_with_stack(peer), self.shown_by(process));
        Carried::add(&mut self.carried.over, domain, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_never_go_back() {
        let mut carried = Carried::default();
        let (web, none) = (Some(1), None);
        let told = carried.tell([(web, [10, 1]), (none, [5, 5]), (web, [1, 1])].into_iter());
        assert_eq!((told.of(web), told.of(none)), ([11, 2], [5, 5]));
        assert_eq!(told.sent_by_all, 16);
        // One end is over and another one turns its count back.
        Carried::add(&mut carried.over, web, [10, 1]);
        let told = carried.tell([(web, [0, 9])].into_iter());
        assert_eq!((told.of(web), told.of(none)), ([11, 10], [5, 5]));
        let told = carried.tell([(web, [u64::MAX, 0])].into_iter());
        assert_eq!((told.of(web)[0], told.sent_by_all), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_domain_that_is_removed_takes_nothing_from_the_sum() {
        let mut carried = Carried::default();
        Carried::add(&mut carried.over, Some(1), [10, 1]);
        assert_eq!(
            carried.tell([(Some(1), [3, 3])].into_iter()).sent_by_all,
            13
        );
        carried.forget(1);
        let told = carried.tell([(None, [3, 3])].into_iter());
        assert_eq!((told.of(Some(1)), told.of(None)), ([0, 0], [3, 3]));
        assert_eq!(told.sent_by_all, 13);
    }
}
