//! Shares: nobody may use up what the broker can keep.
//!
//! What it keeps is counted for the user and for the network namespace of whoever it is
//! kept for; each may have half. Root is no user to be counted, nor is the broker's own
//! user, and the broker's own namespace is that of everybody who is in no domain: of two
//! who could be one, the one that tells them apart counts.

use fordway_platform::process::Peer;
use std::collections::BTreeMap;

/// Whom something is kept for. Read from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Whose {
    pub(crate) uid: u32,
    pub(crate) netns_cookie: u64,
}

impl From<&Peer> for Whose {
    fn from(peer: &Peer) -> Self {
        Self {
            uid: peer.uid,
            netns_cookie: peer.netns_cookie,
        }
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) connections: usize,
    pub(crate) descriptors: usize,
    /// Connections of programs with the registry.
    pub(crate) offers: usize,
}

impl Kept {
    fn is_below(self, limit: Kept) -> bool {
        self.connections < limit.connections
            && self.descriptors < limit.descriptors
            && self.offers < limit.offers
    }

    fn change(&mut self, was: Kept, is: Kept) {
        self.connections = self.connections + is.connections - was.connections;
        self.descriptors = self.descriptors + is.descriptors - was.descriptors;
        self.offers = self.offers + is.offers - was.offers;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    User(u32),
    Namespace(u64),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shares {
    own: Whose,
    all: Kept,
    kept: BTreeMap<Party, Kept>,
}

impl Shares {
    /// For a broker of this user and namespace.
    pub(crate) fn new(own: Whose) -> Self {
        Self {
            own,
            all: Kept::default(),
            kept: BTreeMap::new(),
        }
    }

    /// The broker's own user and namespace.
    pub(crate) fn own(&self) -> Whose {
        self.own
    }

    fn parties(&self, whose: Whose) -> impl Iterator<Item = Party> + use<> {
        let own = self.own;
        let user = (whose.uid != 0 && whose.uid != own.uid).then_some(Party::User(whose.uid));
        let inside = whose.netns_cookie != own.netns_cookie;
        let namespace = inside.then_some(Party::Namespace(whose.netns_cookie));
        user.into_iter().chain(namespace)
    }

    /// Whether one more of each may be kept, of so many in all.
    pub(crate) fn has_room(&self, whose: Whose, of: Kept) -> bool {
        let half = Kept {
            connections: of.connections / 2,
            descriptors: of.descriptors / 2,
            offers: of.offers / 2,
        };
        let of_party = |party| self.kept.get(&party).copied().unwrap_or_default();
        let parties = self.parties(whose);
        self.all.is_below(of) && { parties }.all(|party| of_party(party).is_below(half))
    }

    /// Something is kept instead of what was.
    pub(crate) fn change(&mut self, whose: Whose, was: Kept, is: Kept) {
        self.all.change(was, is);
        for party in self.parties(whose) {
            let kept = self.kept.entry(party).or_default();
            kept.change(was, is);
            if *kept == Kept::default() {
                self.kept.remove(&party);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Kept = Kept {
        connections: 10,
        descriptors: 100,
        offers: 20,
    };
    const ONE: Kept = Kept {
        connections: 1,
        descriptors: 3,
        offers: 4,
    };

    fn whose(uid: u32, netns_cookie: u64) -> Whose {
        Whose { uid, netns_cookie }
    }

    #[test]
    fn each_user_and_each_namespace_has_half_at_most() {
        let mut shares = Shares::new(whose(0, 1));
        for (one, another) in [
            (whose(1000, 1), whose(1001, 1)),
            (whose(0, 7), whose(0, 8)),
            (whose(1000, 7), whose(1001, 8)),
        ] {
            // Half of its twenty offers are used up first.
            let mut count = 0;
            while shares.has_room(one, ALL) {
                shares.change(one, Kept::default(), ONE);
                count += 1;
            }
            assert_eq!(count, 3);
            assert!(shares.has_room(another, ALL));
            assert!(shares.has_room(whose(0, 1), ALL));
            // All of them are too many, whoever has them.
            shares.change(whose(0, 1), Kept::default(), ALL);
            assert!(!shares.has_room(another, ALL));
            shares.change(whose(0, 1), ALL, Kept::default());
            for _ in 0..count {
                shares.change(one, ONE, Kept::default());
            }
            assert!(shares.kept.is_empty());
        }
    }

    #[test]
    fn the_brokers_own_user_and_namespace_are_not_counted() {
        let mut shares = Shares::new(whose(1000, 1));
        shares.change(whose(1000, 1), Kept::default(), ALL);
        shares.change(whose(0, 1), Kept::default(), ALL);
        assert!(shares.kept.is_empty());
    }
}
