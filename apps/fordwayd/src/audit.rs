//! Who changed what: one record of the log for each change, by the names of [`Event`] and the fields of `Record`.
//!
//! A record is written where the change is done, not where it is asked for: what was there already is no event. What an
//! administrator is refused is one as well, with the kind of refusal as its result. Who asks is what the kernel says of the other
//! end of the socket. What the broker does by itself, such as when an element's time is over, it does in its own name.

use crate::admin::{Reply, Request};
use crate::broker::Broker;
use fordway_platform::process::Peer;
use std::fmt::Display;

/// The module that these records have in the log, for its filter.
pub const AUDIT: &str = "audit";

/// Everything that is audited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Rules of the packet filter came into force.
    FilterLoad,
    /// Connections were ended because the rules refuse them.
    Cut,
    /// A domain was made.
    DomainAdd,
    /// A namespace that somebody else made was registered.
    DomainAttach,
    /// A domain was removed, or its registration.
    DomainRemove,
    /// Channels were moved to the kernel path.
    Downgrade,
    /// What is logged was changed.
    Log,
    /// The broker was told to end.
    Down,
    /// Packets are captured. Nothing does that yet.
    Capture,
}

impl Event {
    /// In the order of their numbers.
    pub const ALL: [Event; 9] = [
        Event::FilterLoad,
        Event::Cut,
        Event::DomainAdd,
        Event::DomainAttach,
        Event::DomainRemove,
        Event::Downgrade,
        Event::Log,
        Event::Down,
        Event::Capture,
    ];

    /// As it is logged.
    pub fn word(self) -> &'static str {
        let words = [
            "filter-load",
            "cut",
            "domain-add",
            "domain-attach",
            "domain-remove",
            "downgrade",
            "log",
            "down",
            "capture",
        ];
        words[self as usize]
    }

    /// What a request would be, and of which domain; `None`: nothing that is audited.
    pub(crate) fn of(request: &Request) -> Option<(Event, Option<String>)> {
        let (event, domain) = match request {
            Request::FilterLoad { .. } => (Event::FilterLoad, None),
            Request::DomainAdd { name, .. } | Request::DomainAddWithStack { name, .. } => {
                (Event::DomainAdd, Some(name))
            }
            Request::DomainAttach { name, .. } => (Event::DomainAttach, Some(name)),
            Request::DomainRemove { name, .. } => (Event::DomainRemove, Some(name)),
            Request::Downgrade { .. } => (Event::Downgrade, None),
            Request::Log { level: Some(_) } => (Event::Log, None),
            Request::Down { .. } => (Event::Down, None),
            Request::Info
            | Request::DomainList
            | Request::Connections
            | Request::FilterList
            | Request::FilterCounts
            | Request::FilterMonitor
            | Request::Log { level: None } => return None,
        };
        Some((event, domain.cloned()))
    }
}

/// On whose behalf something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    uid: u32,
    pid: i32,
}

impl Who {
    /// The broker itself.
    pub(crate) fn own() -> Who {
        Who {
            uid: rustix::process::geteuid().as_raw(),
            pid: std::process::id() as i32,
        }
    }
}

impl From<&Peer> for Who {
    fn from(peer: &Peer) -> Who {
        Who {
            uid: peer.uid,
            pid: peer.pid,
        }
    }
}

/// What is said of an event. A field that is `None` is not written.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) event: Event,
    /// `done`, or the kind of refusal.
    pub(crate) result: &'a str,
    /// Its name; several with commas between.
    pub(crate) domain: Option<&'a str>,
    /// SO_NETNS_COOKIE of its namespace.
    pub(crate) netns: Option<u64>,
    /// The epoch of the rules.
    pub(crate) ruleset: Option<u64>,
    pub(crate) rules_before: Option<u64>,
    pub(crate) rules_after: Option<u64>,
    /// Lines of the listing that came and went.
    pub(crate) changes: Option<u64>,
    /// Which rules have cut.
    pub(crate) rule: Option<&'a str>,
    /// Channels that went to the kernel path, and that were ended.
    pub(crate) moved: Option<u64>,
    pub(crate) cut: Option<u64>,
    /// The number of a connection; `None`: all.
    pub(crate) channel: Option<u64>,
    pub(crate) level: Option<&'a str>,
}

impl<'a> Record<'a> {
    pub(crate) fn of(event: Event) -> Record<'a> {
        Record {
            event,
            result: "done",
            domain: None,
            netns: None,
            ruleset: None,
            rules_before: None,
            rules_after: None,
            changes: None,
            rule: None,
            moved: None,
            cut: None,
            channel: None,
            level: None,
        }
    }

    pub(crate) fn of_domain(event: Event, name: &'a str, netns_cookie: u64) -> Record<'a> {
        Record {
            domain: Some(name),
            netns: Some(netns_cookie),
            ..Record::of(event)
        }
    }
}

impl Broker {
    /// Logs what was done for who asks just now.
    pub(crate) fn audit(&self, what: Record<'_>, said: impl Display) {
        let Who { uid, pid } = self.asking;
        tracing::info!(
            target: AUDIT,
            event = what.event.word(),
            result = what.result,
            user = uid,
            pid,
            domain = what.domain,
            netns = what.netns,
            ruleset = what.ruleset,
            rules_before = what.rules_before,
            rules_after = what.rules_after,
            changes = what.changes,
            rule = what.rule,
            moved = what.moved,
            cut = what.cut,
            channel = what.channel,
            level = what.level,
            "{said}"
        );
    }

    /// Logs that something was not done, if the answer says so.
    pub(crate) fn audit_refusal(&self, event: Event, domain: Option<&str>, reply: &Reply) {
        if let Reply::Error { kind, message } = reply {
            // As in JSON.
            let kind = serde_json::to_value(kind).unwrap_or_default();
            let what = Record {
                result: kind.as_str().unwrap_or_default(),
                domain,
                ..Record::of(event)
            };
            self.audit(what, message);
        }
    }

    /// Does something for who has asked before.
    pub(crate) fn on_behalf_of<T>(&mut self, who: Who, work: impl FnOnce(&mut Broker) -> T) -> T {
        let before = std::mem::replace(&mut self.asking, who);
        let done = work(self);
        self.asking = before;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_has_a_name_and_is_explained() {
        let text = include_str!("../../../docs/operations.md");
        for (at, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, at);
            let row = format!("| `{}` |", event.word());
            assert!(text.contains(&row), "{row}");
        }
    }
}
