//! Shares: nobody may use up what the broker can keep.
//!
//! What it keeps is counted for the *parties* of whoever it is kept for: the user (but root
//! and the broker's own), and the network namespace (but the broker's own). Who has neither
//! is an administrator.
//!
//! A party may have as much as is still free for parties ([`Shares::has_room`]). One alone
//! comes to half of it, two come to a third each, n to one in n + 1: a newcomer finds room
//! whatever the others do, and nobody has to be taken anything away. (Choudhury and Hahne,
//! "Dynamic queue length thresholds for shared-memory packet switches", 1998.) An eighth of
//! all is the administrators' alone.

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

/// One in so many of everything is kept for administrators.
pub(crate) const RESERVED: usize = 8;

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) connections: usize,
    pub(crate) descriptors: usize,
    /// Connections of programs with the registry.
    pub(crate) offers: usize,
}

impl Kept {
    /// What is left of this to the parties, when so much is kept in all.
    fn free_for_parties(self, all: Kept) -> Kept {
        let free = |limit: usize, kept| (limit - limit / RESERVED).saturating_sub(kept);
        Kept {
            connections: free(self.connections, all.connections),
            descriptors: free(self.descriptors, all.descriptors),
            offers: free(self.offers, all.offers),
        }
    }

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

    /// Whether nobody's limits but those of all are theirs.
    pub(crate) fn is_administrator(&self, whose: Whose) -> bool {
        self.parties(whose).next().is_none()
    }

    /// Whether one more of each may be kept, of so many in all.
    pub(crate) fn has_room(&self, whose: Whose, of: Kept) -> bool {
        let free = of.free_for_parties(self.all);
        let of_party = |party| self.kept.get(&party).copied().unwrap_or_default();
        let mut parties = self.parties(whose);
        self.all.is_below(of) && parties.all(|party| of_party(party).is_below(free))
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

    const ONE: Kept = Kept {
        connections: 1,
        descriptors: 3,
        offers: 4,
    };

    fn whose(uid: u32, netns_cookie: u64) -> Whose {
        Whose { uid, netns_cookie }
    }

    const MANY: Kept = Kept {
        connections: 1000,
        descriptors: 3000,
        offers: 4000,
    };

    #[test]
    fn a_newcomer_finds_room_whatever_the_others_took() {
        let mut shares = Shares::new(whose(0, 1));
        let parties = (0..8).map(|n| match n % 3 {
            0 => whose(1000 + n, 1),
            1 => whose(0, 100 + u64::from(n)),
            _ => whose(1000 + n, 100 + u64::from(n)),
        });
        let mut counts = Vec::new();
        for party in parties {
            let mut count = 0;
            while shares.has_room(party, MANY) {
                shares.change(party, Kept::default(), ONE);
                count += 1;
            }
            counts.push((party, count));
        }
        let (_, first) = counts[0];
        assert!(
            (430..=440).contains(&first),
            "half of seven eighths: {first}"
        );
        assert!(counts.iter().all(|(_, count)| *count > 0), "{counts:?}");
        // An eighth is left to who is no party.
        let administrator = whose(0, 1);
        for _ in 0..MANY.connections / RESERVED {
            assert!(shares.has_room(administrator, MANY));
            shares.change(administrator, Kept::default(), ONE);
        }
        for (party, count) in counts {
            for _ in 0..count {
                shares.change(party, ONE, Kept::default());
            }
        }
        assert!(shares.kept.is_empty());
    }

    #[test]
    fn what_others_gave_back_can_be_had() {
        let mut shares = Shares::new(whose(0, 1));
        let [one, other] = [whose(1000, 1), whose(1001, 1)];
        let fill = |shares: &mut Shares, party| {
            let mut count = 0;
            while shares.has_room(party, MANY) {
                shares.change(party, Kept::default(), ONE);
                count += 1;
            }
            count
        };
        let of_one = fill(&mut shares, one);
        let of_other = fill(&mut shares, other);
        assert!(of_other < of_one);
        for _ in 0..of_one {
            shares.change(one, ONE, Kept::default());
        }
        assert_eq!(of_other + fill(&mut shares, other), of_one);
    }

    #[test]
    fn the_brokers_own_user_and_namespace_are_not_counted() {
        let mut shares = Shares::new(whose(1000, 1));
        shares.change(whose(1000, 1), Kept::default(), MANY);
        shares.change(whose(0, 1), Kept::default(), MANY);
        assert!(shares.kept.is_empty());
    }
}
