//! Rings past the stacks: a program whose sockets its own stack serves, and the far end of its connection.
//!
//! ```text
//!   A ══pair══ A's stack ··· frames ··· B's stack ══pair══ B        each pair may have a channel
//!   A ═══════════════════ one channel ══════════════════ B          or both programs one, past both stacks
//! ```
//! B may as well have a socket of the kernel's. What A offers is its end of a pair ([`Protocol::Unix`]), and its names say nothing. Its stack's
//! claim of the other end says which connection it serves by that pair. So the names of A's connection are known when the two were
//! paired for the first time, and stay known while A's end is. With them, A's end is what a socket of the kernel's would be:
//! it is looked up by them, the packet filter is asked about them, and the same rule joins it to its mirror image.
//!
//! - A offers, and its mirror image waits: they get a channel.
//! - A has a channel with its stack when the mirror image comes: A is asked to leave it (`cut-through`), and offers anew.
//! - Both have channels with their stacks: whoever comes second waits, the first is asked to leave, and offers anew.
//!
//! A stack is believed about its domain alone: A's process lies there, and the local address is that domain's. Where both ends
//! are one stack's, over its loopback, the namespace in which they mirror each other is that of the pairs: no socket of the kernel's is there.
//!
//! If the filter refuses rings between the two, A has its stack's, as if there were no far end; a socket of the kernel's is held back, and gets
//! them when the rules allow it. One that waits for a far end that does not come (a fork has barred it, say) has no rings meanwhile.

use crate::pairing::{Names, names};
use crate::policy::{BothEnds, Gate};
use crate::processes::{ConnKey, ConnState};
use crate::{Action, OfPair, Outgoing, Registry, SocketFacts, Witness};
use fordway_abi::control::{self, Protocol};
use fordway_abi::reason::Reason;
use std::net::SocketAddr;

/// Local and remote name of a connection.
type Served = (SocketAddr, SocketAddr);

/// What stands in the way of rings to a far end that has a channel with its stack.
pub(crate) enum Way {
    /// There is no such far end.
    Nobody,
    /// The packet filter, or whoever else was asked.
    Refused(Reason),
    /// Nothing: that far end was asked to leave its stack.
    Made,
}

impl SocketFacts {
    /// As its process has offered it.
    pub fn as_offered(&self) -> SocketFacts {
        let Some(pair) = self.shown.pair else {
            return *self;
        };
        let mut facts = *self;
        facts.protocol = Protocol::Unix;
        facts.netns_cookie = pair.netns_cookie;
        (facts.local, facts.remote) = (pair.local, pair.remote);
        facts.shown.pair = None;
        facts
    }
}

impl Registry {
    /// A program's end of a pair as an end of the connection that its stack serves by it; `None` where no other program can be at the far end.
    fn as_connection(
        &self,
        key: ConnKey,
        offered: &SocketFacts,
        (local, remote): Served,
    ) -> Option<SocketFacts> {
        let owner = |name: SocketAddr| self.domains.owner_of(name.ip());
        let own = self.processes.get(&key.0)?.netns_cookie;
        let netns_cookie = match (owner(local), owner(remote)) {
            (Some(near), Some(far)) if near == own && far != own => own,
            (None, None) if local.ip().is_loopback() && remote.ip().is_loopback() => {
                offered.netns_cookie
            }
            _ => return None,
        };
        let mut facts = *offered;
        facts.protocol = Protocol::Tcp;
        facts.netns_cookie = netns_cookie;
        (facts.local, facts.remote) = (local, remote);
        facts.shown.pair = Some(OfPair {
            netns_cookie: offered.netns_cookie,
            local: offered.local,
            remote: offered.remote,
        });
        Some(facts)
    }

    /// The connection of an end that was paired with its stack's once.
    pub(crate) fn served_by(&self, end: &SocketFacts) -> Option<Names> {
        self.conn(*self.by_end.get(&end.end_id())?)?.served
    }

    /// Facts by which an end of a pair is to be offered: those of its connection, if the far end's offer of it waits and may have rings with it.
    pub(crate) fn offered_as(
        &mut self,
        key: ConnKey,
        offered: &SocketFacts,
        served: Option<Names>,
        witness: &mut Witness<'_>,
        gate: &mut Gate<'_>,
        actions: &mut Vec<Action>,
    ) -> SocketFacts {
        let facts = served
            .and_then(|(_, local, remote, _)| self.as_connection(key, offered, (local, remote)));
        let Some(facts) = facts else {
            return *offered;
        };
        let far = self.live_partner_of(&facts, witness, actions);
        let far = far.and_then(|far| Some((far, self.conn(far)?.facts)));
        match far {
            None => *offered,
            Some((far, of_far)) => match gate(&facts, &of_far, None) {
                None => facts,
                Some(reason) => {
                    self.gives_up(far, reason, witness, actions);
                    *offered
                }
            },
        }
    }

    /// An end that waits for a far end may not have rings with it. One of a pair goes back to its stack.
    fn gives_up(
        &mut self,
        key: ConnKey,
        reason: Reason,
        witness: &mut Witness<'_>,
        actions: &mut Vec<Action>,
    ) {
        let Some(facts) = self.conn(key).map(|conn| conn.facts) else {
            return;
        };
        if facts.shown.pair.is_none() {
            return self.hold_back(key, reason, actions);
        }
        let offered = facts.as_offered();
        self.is_offered_as(key, &offered, actions);
        if let Some(stack) = self.live_partner_of(&offered, witness, actions) {
            self.pair([key, stack], None, actions);
        }
    }

    /// An offer goes by other facts from now on.
    fn is_offered_as(&mut self, key: ConnKey, facts: &SocketFacts, actions: &mut Vec<Action>) {
        let Some(former) = self.conn(key).map(|conn| conn.facts) else {
            return;
        };
        self.take_offer_down(key, &former);
        if let Some(conn) = self.conn_mut(key) {
            conn.facts = *facts;
        }
        if let Some(stale) = self.offers.insert(names(facts), key) {
            self.turn_down(stale, Reason::NoPeer, actions);
        }
    }

    /// The two ends of a pair have met: what the stack says of the connection is the program's end's from now on. The ends that are to get a
    /// channel: these, or the program's and the far end; `None`: the program's waits for the far end.
    pub(crate) fn past_the_stack(
        &mut self,
        ends: [ConnKey; 2],
        witness: &mut Witness<'_>,
        gate: &mut Gate<'_>,
        actions: &mut Vec<Action>,
    ) -> (Option<[ConnKey; 2]>, Option<u64>) {
        let stay = (Some(ends), None);
        let facts = |key| self.conn(key).map(|conn| conn.facts);
        let (Some(a), Some(b)) = (facts(ends[0]), facts(ends[1])) else {
            return stay;
        };
        let (program, offered, served) = match (a.shown.serves, b.shown.serves) {
            (None, Some(served)) => (ends[0], a, served),
            (Some(served), None) => (ends[1], b, served),
            _ => return stay,
        };
        let Some(facts) = self.as_connection(program, &offered, served) else {
            return stay;
        };
        self.note_served(program, &facts);
        let far = self.live_partner_of(&facts, witness, actions);
        let far = far.and_then(|far| Some((far, self.conn(far)?.facts)));
        let partner = match far {
            Some((far, of_far)) => match gate(&facts, &of_far, None) {
                None => Some(far),
                Some(reason) => {
                    self.gives_up(far, reason, witness, actions);
                    return stay;
                }
            },
            None => match self.way_to(&facts, gate, actions) {
                Way::Made => None,
                Way::Nobody | Way::Refused(_) => return stay,
            },
        };
        self.is_offered_as(program, &facts, actions);
        (partner.map(|far| [program, far]), None)
    }

    /// Enters the connection of an end of a pair.
    fn note_served(&mut self, key: ConnKey, facts: &SocketFacts) {
        let names = names(facts);
        if let Some(conn) = self.conn_mut(key) {
            let former = conn.served.replace(names);
            self.forget_served(key, former);
            self.served.insert(names, key);
        }
    }

    /// The same of an end that is offered anew.
    pub(crate) fn note_served_again(&mut self, key: ConnKey, served: Option<Names>) {
        if let Some(names) = served
            && let Some(conn) = self.conn_mut(key)
        {
            conn.served = Some(names);
            self.served.insert(names, key);
        }
    }

    /// An end is forgotten, or its connection another one.
    pub(crate) fn forget_served(&mut self, key: ConnKey, served: Option<Names>) {
        if let Some(names) = served
            && self.served.get(&names) == Some(&key)
        {
            self.served.remove(&names);
        }
    }

    /// Whether a connection's far end has a channel with its stack, which it is asked to leave then.
    pub(crate) fn way_to(
        &mut self,
        facts: &SocketFacts,
        gate: &mut Gate<'_>,
        actions: &mut Vec<Action>,
    ) -> Way {
        if facts.protocol != Protocol::Tcp || self.served.is_empty() {
            return Way::Nobody;
        }
        let far = self.mirrors(facts).into_iter().flatten();
        let mut far = far.filter_map(|names: Names| {
            let key = self.served.get(&names).copied()?;
            let conn = self.conn(key)?;
            let ConnState::Channel { channel, .. } = conn.state else {
                return None;
            };
            let offered = Some(conn.facts).filter(|facts| facts.protocol == Protocol::Unix)?;
            let is_leaving = self.channels.get(&channel)?.downgrading.is_some();
            let far = self.as_connection(key, &offered, (names.1, names.2))?;
            (!is_leaving && self.rule_holds(facts, &far)).then_some((channel, far))
        });
        let Some((channel, far)) = far.next() else {
            return Way::Nobody;
        };
        if let Some(reason) = gate(facts, &far, None) {
            return Way::Refused(reason);
        }
        self.downgrade_or_note(channel, Reason::CutThrough, actions);
        Way::Made
    }

    /// Has the programs' ends among these that go past their stacks be broken off: the kernel has no socket of that connection.
    pub fn break_off_past_stacks(&self, channels: &[BothEnds]) -> Vec<Action> {
        let mut actions = Vec::new();
        for channel in channels {
            for key in channel.facts.iter().filter_map(|end| {
                end.shown.pair?;
                self.by_end.get(&end.end_id()).copied()
            }) {
                let message = Outgoing::Downgrade(control::Downgrade {
                    channel_id: channel.id,
                    reason: Reason::Protocol as u32,
                    pad: 0,
                });
                actions.push(Action::Send { to: key.0, message });
            }
        }
        actions
    }
}
