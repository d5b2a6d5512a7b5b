//! Pairs across NAT: two sockets whose names do not mirror each other, because the kernel
//! translated the connection's addresses on the way.
//!
//! A namespace's connection tracking has one entry for each translated connection, with the names
//! that its packets have in either direction. Each end's names are one of the two directions:
//!
//! ```text
//!   socket A: local a, remote v ─► table of T: (a → v) is answered by (b → s) ─► socket B: local b, remote s
//! ```
//! DNAT: v is not b. SNAT and masquerade: s is not a. Hairpin: both. REDIRECT: A and B are in T.
//!
//! # The rule
//! Whoever asks ([`Translator`]) has found that the entry is alive, and that no socket mirrors either
//! end's names where a plain pair would have it. Asked by the names of either end, the table of T
//! answers with those of the other; and
//! - both sockets lie in T, and neither local address is another namespace's; or
//! - T is the host, whose table no domain can write. An end in another namespace has an address that is
//!   assigned to that namespace; and where a remote address is assigned to anybody, the far end
//!   lies there: who is connected to a domain's address talks to that domain; or
//! - B alone lies in T, and T has done no more than lead a connection to its own address to another
//!   socket of its own: v and b are addresses of T (b may be nobody's), s is a, which A's namespace owns.
//!
//! A namespace's root can write what he likes into its own table. By the rule that says what becomes of
//! connections within it, or to its own address, which is his to say by any rule or program of his.
//!
//! # The host's own programs
//! The host has an address on each network that it joins, and none of them is assigned to anybody. So
//! names that mirror each other do not make a pair of a program of the host and one of a domain. The
//! host's table does, if it has the connection as it is: then a is s, b is v, and the rule is the same.
//!
//! No pair is remembered by its translation: an end is found under the names that the table says,
//! among the offers that stand, and the table is asked about both ends before they are paired. So
//! the first end asks in vain, unless it is alone and does not ask, and nothing older than the pairing is proof.

use crate::processes::ConnKey;
use crate::{Action, Registry, SocketFacts, Witness};
use std::net::SocketAddr;

/// What is to be found out about a socket that no offered socket mirrors.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The socket.
    pub facts: SocketFacts,
    /// Namespaces (SO_NETNS_COOKIE) in which a plain pair would have the far end. If a socket
    /// with the mirrored names is in one of them, nothing was translated.
    pub mirrored_in: [Option<u64>; 2],
    /// Namespaces whose tables can prove something, each once, in the order in which they are to be
    /// asked.
    pub tables: [Option<u64>; 3],
    /// An entry counts also if its handshake is not past: of who connected, the last packet may be
    /// on its way.
    pub even_if_new: bool,
}

/// What a table says of the connection of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarEnd {
    /// The table's namespace (SO_NETNS_COOKIE).
    pub table: u64,
    /// The far end's local name.
    pub local: SocketAddr,
    /// The far end's remote name.
    pub remote: SocketAddr,
}

/// What the first table says that has translated the connection, if one has a live entry of it; else
/// the names as they are, if the host's table has one. Of UDP, nothing.
pub type Translator<'t> = dyn FnMut(&Question) -> Option<FarEnd> + 't;

impl Registry {
    /// What [`Translator`] is asked about a socket. No table is asked about names that another
    /// namespace owns: what the socket's process is told would show that a connection of these names exists.
    pub fn question(&self, facts: &SocketFacts) -> Question {
        let own = Some(facts.netns_cookie);
        let near = self.owner_of(facts.local);
        let is_own = near == own;
        let [host, far] = [self.domains.host(), self.owner_of(facts.remote)];
        let tables = [
            host.filter(|_| is_own && host != own),
            own.filter(|_| is_own || near.is_none()),
            far.filter(|_| is_own && far != own && far != host),
        ];
        Question {
            facts: *facts,
            mirrored_in: self.mirrors(facts).map(|names| {
                let (.., netns) = names?;
                Some(netns)
            }),
            tables,
            even_if_new: false,
        }
    }

    /// The offer that is the other end of this socket's translated connection, and whose socket is
    /// there now; with the table that has joined them.
    pub(crate) fn partner_across(
        &mut self,
        facts: &SocketFacts,
        witness: &mut Witness<'_>,
        translate: &mut Translator<'_>,
        actions: &mut Vec<Action>,
    ) -> Option<(ConnKey, u64)> {
        // Nobody else waits.
        if self.offers.len() < 2 {
            return None;
        }
        let far = translate(&self.question(facts))?;
        for netns in self.namespaces_of(&far) {
            let names = (facts.protocol, far.local, far.remote, netns);
            let key = self.offers.get(&names).copied();
            let Some((key, other)) = key.and_then(|key| Some((key, self.conn(key)?.facts))) else {
                continue;
            };
            if !self.translation_holds(facts, &other, far.table) {
                continue;
            }
            match witness(key.0, &other) {
                Ok(()) if self.leads_back(&other, facts, far.table, translate) => {
                    return Some((key, far.table));
                }
                Ok(()) => {}
                Err(reason) => self.turn_down(key, reason, actions),
            }
        }
        None
    }

    /// The table in which two sockets are one translated connection now.
    pub(crate) fn joined_in(
        &self,
        a: &SocketFacts,
        b: &SocketFacts,
        translate: &mut Translator<'_>,
    ) -> Option<u64> {
        let far = translate(&self.question(a))?;
        let is_joined = (far.local, far.remote) == (b.local, b.remote)
            && self.translation_holds(a, b, far.table)
            && self.leads_back(b, a, far.table, translate);
        is_joined.then_some(far.table)
    }

    /// Whether the table that has led from a socket to `from` leads from there to that socket.
    fn leads_back(
        &self,
        from: &SocketFacts,
        to: &SocketFacts,
        table: u64,
        translate: &mut Translator<'_>,
    ) -> bool {
        let question = self.question(from);
        let wanted = FarEnd {
            table,
            local: to.local,
            remote: to.remote,
        };
        let only = question.tables.map(|one| one.filter(|one| *one == table));
        let question = Question {
            tables: only,
            ..question
        };
        translate(&question) == Some(wanted)
    }

    /// Whether a table leads from this socket to where programs under this broker may be.
    pub(crate) fn is_led_on(&self, facts: &SocketFacts, translate: &mut Translator<'_>) -> bool {
        let question = Question {
            even_if_new: true,
            ..self.question(facts)
        };
        translate(&question).is_some_and(|far| {
            let is_translated = (far.local, far.remote) != (facts.remote, facts.local);
            let is_within = is_translated && far.table == facts.netns_cookie;
            is_within || self.owner_of(far.local).is_some()
        })
    }

    /// Where a socket of these names can be that the rule allows.
    fn namespaces_of(&self, far: &FarEnd) -> impl Iterator<Item = u64> + use<> {
        let owner = self.owner_of(far.local);
        let table = Some(far.table).filter(|table| Some(*table) != owner);
        owner.into_iter().chain(table)
    }

    /// Whether a table of this namespace may join two sockets (see the module).
    pub(crate) fn translation_holds(&self, a: &SocketFacts, b: &SocketFacts, table: u64) -> bool {
        let owner = |name: SocketAddr| self.owner_of(name);
        let inside = |end: &SocketFacts| end.netns_cookie == table;
        let own_or_nobodys = |name| owner(name).is_none_or(|owner| owner == table);
        let by_host = || {
            let stands = |end: &SocketFacts| match owner(end.local) {
                Some(owner) => owner == end.netns_cookie,
                None => inside(end),
            };
            let talks_to = |end: &SocketFacts, far: &SocketFacts| {
                // In a guest the host's own address is assigned, too; its table may lead on from there.
                owner(end.remote).is_none_or(|owner| owner == far.netns_cookie || owner == table)
            };
            stands(a) && stands(b) && talks_to(a, b) && talks_to(b, a)
        };
        let led_on = |outer: &SocketFacts, inner: &SocketFacts| {
            owner(outer.local) == Some(outer.netns_cookie)
                && owner(outer.remote) == Some(table)
                && own_or_nobodys(inner.local)
                && inner.remote == outer.local
        };
        let is_host = self.domains.host() == Some(table);
        a.cookie != b.cookie
            && match (inside(a), inside(b)) {
                (true, true) => own_or_nobodys(a.local) && own_or_nobodys(b.local),
                _ if is_host => by_host(),
                (false, true) => led_on(a, b),
                (true, false) => led_on(b, a),
                (false, false) => false,
            }
    }

    fn owner_of(&self, name: SocketAddr) -> Option<u64> {
        self.domains.owner_of(name.ip())
    }
}
