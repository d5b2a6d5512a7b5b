//! What the processes of a domain have of something that there is a bounded number of: sockets, control connections.
//!
//! A process may have one more as long as it has at most three times what is free. So one process alone gets three quarters of all, the
//! next one three quarters of what is left, and so on: whoever takes what it can leaves something to each of the others, and nothing
//! has to be known of how many there will be. Processes are told apart by the number that opened the control connection.

use std::collections::HashMap;

/// Times of what is free that one process may have.
const TIMES: usize = 3;

/// A process's number (SO_PEERCRED).
pub(crate) type Owner = i32;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shares {
    by_owner: HashMap<Owner, usize>,
    taken: usize,
    all: usize,
}

impl Shares {
    pub(crate) fn new(all: usize) -> Shares {
        Shares {
            by_owner: HashMap::new(),
            taken: 0,
            all,
        }
    }

    /// Whether this process may have one more.
    pub(crate) fn has_room(&self, owner: Owner) -> bool {
        let has = self.by_owner.get(&owner).copied().unwrap_or(0);
        let free = self.all.saturating_sub(self.taken);
        free > 0 && has <= free.saturating_mul(TIMES)
    }

    pub(crate) fn take(&mut self, owner: Owner) {
        *self.by_owner.entry(owner).or_default() += 1;
        self.taken += 1;
    }

    pub(crate) fn give_back(&mut self, owner: Owner) {
        let Some(has) = self.by_owner.get_mut(&owner) else {
            return;
        };
        *has -= 1;
        self.taken -= 1;
        if *has == 0 {
            self.by_owner.remove(&owner);
        }
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(shares: &mut Shares, owner: Owner) -> usize {
        let mut count = 0;
        while shares.has_room(owner) {
            shares.take(owner);
            count += 1;
        }
        count
    }

    #[test]
    fn whoever_takes_all_it_can_leaves_some() {
        let mut shares = Shares::new(16_384);
        let taken: Vec<_> = (0..5).map(|owner| all_of(&mut shares, owner)).collect();
        assert_eq!(taken, [12_289, 3_072, 768, 192, 48]);
        // What is given back is anybody's.
        for _ in 0..12_289 {
            shares.give_back(0);
        }
        assert_eq!(shares.taken(), 3_072 + 768 + 192 + 48);
        assert!(all_of(&mut shares, 9) > 9_000);
    }

    #[test]
    fn the_last_one_is_had() {
        let mut shares = Shares::new(2);
        assert_eq!(all_of(&mut shares, 1), 2);
        assert!(!shares.has_room(2));
    }
}
