//! The answer to a question about a connection, and what it counts for.
//!
//! An answer holds for the epoch that it was given in: what the connection's packets would have
//! counted is known by place, and new rules have other places.

use alloc::vec::Vec;

use crate::exec;
use crate::filter::Filter;
use crate::program::{Reject, RuleId};
use crate::sets::ElementStatement;
use crate::state::{Counter, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Allowed,
    /// Dropped, or rejected in this way.
    Refused {
        reject: Option<Reject>,
        rule: RuleId,
    },
    /// The rule has to see each packet.
    EachPacket {
        rule: RuleId,
        why: exec::EachPacket,
    },
}

/// Something that counts and that the connection's packets go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Credit {
    Counter(u32),
    Element { set: u32, slot: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub decision: Decision,
    pub(super) epoch: u64,
    pub(super) forward: Vec<Credit>,
    pub(super) backward: Vec<Credit>,
}

impl Answer {
    pub fn is_allowed(&self) -> bool {
        self.decision == Decision::Allowed
    }

    /// The answer of who cannot know which end connected, from this one and the one with the
    /// ends changed over: where they differ, a rule looks at the direction, and each packet
    /// has to be asked.
    #[must_use]
    pub fn whoever_connected(mut self, other: &Answer) -> Answer {
        use Decision::{Allowed, EachPacket, Refused};
        self.decision = match (self.decision, other.decision) {
            (Allowed, Allowed) => Allowed,
            (mine @ (EachPacket { .. } | Refused { .. }), EachPacket { .. } | Refused { .. }) => {
                mine
            }
            (Allowed, other @ EachPacket { .. }) => other,
            (mine @ EachPacket { .. }, Allowed) => mine,
            (Allowed, Refused { rule, .. }) | (Refused { rule, .. }, Allowed) => EachPacket {
                rule,
                why: exec::EachPacket::Direction,
            },
        };
        self
    }
}

impl Filter {
    /// Credits the counters of an answer with what the fast path carried. False if the
    /// rules have changed since: the question has to be asked again.
    pub fn credit(&mut self, answer: &Answer, forward: (u64, u64), backward: (u64, u64)) -> bool {
        if answer.epoch != self.epoch {
            return false;
        }
        for (credits, (packets, bytes)) in
            [(&answer.forward, forward), (&answer.backward, backward)]
        {
            for credit in credits {
                self.state.credit(credit, packets, bytes);
            }
        }
        true
    }
}

impl State {
    fn credit(&mut self, credit: &Credit, packets: u64, bytes: u64) {
        match credit {
            Credit::Counter(at) => {
                add(&mut self.counters[*at as usize].0, packets, bytes);
            }
            Credit::Element { set, slot } => {
                let element = self.sets[*set as usize].element_mut(*slot);
                for statement in element.into_iter().flat_map(|e| &mut e.statements) {
                    if let ElementStatement::Counter(counter) = statement {
                        add(counter, packets, bytes);
                    }
                }
            }
        }
    }
}

/// What a program says that it has carried may be any number: no counter goes back by it.
fn add(counter: &mut Counter, packets: u64, bytes: u64) {
    counter.packets = counter.packets.saturating_add(packets);
    counter.bytes = counter.bytes.saturating_add(bytes);
}
