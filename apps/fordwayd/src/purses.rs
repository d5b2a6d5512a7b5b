//! How much ring memory a domain may have: one purse for each, a page that its processes share
//! ([`Purse`](fordway_abi::shm::Purse)).
//!
//! A process takes out of it what the arenas of its regions grow by, before they grow; with an
//! empty purse a connection gets no rings (reason `no-memory`) or keeps the small one. The broker
//! puts back what a region had taken when the region is gone, also after a kill. The words are
//! the domain's own: a program that writes there at will spoils its own domain's rings and
//! nothing else. A process that grows an arena just while it rejoins a new broker is counted
//! twice for that growth; this ends with its region.
//!
//! Outside of domains each user has a purse in each namespace.

use crate::shares::Whose;
use fordway_abi::ABI_VERSION;
use fordway_abi::shm::{ARENA_OFFSET, PURSE_BYTES, PURSE_MAGIC, Purse as Words, REGION_BYTES};
use fordway_platform::memfd::CommonPage;
use std::collections::BTreeMap;
use std::io;
use std::mem::offset_of;
use std::ops::RangeBounds;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// Whose a purse is: a namespace, and a user unless the namespace is a domain's.
type Key = (u64, Option<u32>);

/// What the rings of one domain may take.
#[derive(Debug)]
pub(crate) struct Purse {
    page: CommonPage,
    /// To be sent to its processes.
    pub(crate) fd: Arc<OwnedFd>,
}

impl Purse {
    fn new(bytes_max: u64) -> io::Result<Self> {
        let (page, fd) = CommonPage::create("fordway-purse", PURSE_BYTES)?;
        page.store_u32(offset_of!(Words, magic), PURSE_MAGIC);
        page.store_u32(offset_of!(Words, abi_version), ABI_VERSION);
        page.store_u64(offset_of!(Words, bytes_max), bytes_max);
        let fd = Arc::new(fd);
        Ok(Self { page, fd })
    }

    /// Bytes that are taken, by the words of its processes.
    pub(crate) fn bytes_taken(&self) -> u64 {
        let taken = self.page.load_u64(offset_of!(Words, bytes_taken));
        taken.unwrap_or(0)
    }

    /// A region has come from an earlier broker's time, or is gone; `arena_next` is its word.
    pub(crate) fn change(&self, arena_next: u64, comes: bool) {
        let taken =
            arena_next.clamp(ARENA_OFFSET as u64, REGION_BYTES as u64) - ARENA_OFFSET as u64;
        let by = taken as i64;
        self.page
            .change_u64(offset_of!(Words, bytes_taken), if comes { by } else { -by });
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Purses {
    bytes_max: u64,
    purses: BTreeMap<Key, Weak<Purse>>,
}

impl Purses {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            purses: BTreeMap::new(),
        }
    }

    /// Most bytes of ring memory of one domain.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The purse for a process of `whose`; it lives as long as somebody keeps it.
    pub(crate) fn of(&mut self, whose: Whose, in_domain: bool) -> io::Result<Arc<Purse>> {
        let key = (whose.netns_cookie, (!in_domain).then_some(whose.uid));
        if let Some(purse) = self.purses.get(&key).and_then(Weak::upgrade) {
            return Ok(purse);
        }
        self.purses.retain(|_, purse| purse.strong_count() != 0);
        let purse = Arc::new(Purse::new(self.bytes_max)?);
        self.purses.insert(key, Arc::downgrade(&purse));
        Ok(purse)
    }

    /// Bytes that are taken in a namespace.
    pub(crate) fn bytes_taken_in(&self, netns_cookie: u64) -> u64 {
        self.sum((netns_cookie, None)..=(netns_cookie, Some(u32::MAX)))
    }

    /// Bytes that are taken in all.
    pub(crate) fn bytes_taken(&self) -> u64 {
        self.sum(..)
    }

    fn sum(&self, whose: impl RangeBounds<Key>) -> u64 {
        let purses = self.purses.range(whose);
        purses
            .filter_map(|(_, purse)| purse.upgrade())
            .fold(0, |sum, purse| sum.saturating_add(purse.bytes_taken()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: Whose = Whose {
        uid: 33,
        netns_cookie: 7,
    };

    #[test]
    fn a_domain_has_one_purse_and_users_outside_have_their_own() -> io::Result<()> {
        let mut purses = Purses::new(1 << 20);
        let root = Whose { uid: 0, ..WEB };
        let (web, same) = (purses.of(WEB, true)?, purses.of(root, true)?);
        assert!(Arc::ptr_eq(&web, &same));
        let (one, other) = (purses.of(WEB, false)?, purses.of(root, false)?);
        assert!(!Arc::ptr_eq(&one, &other));
        web.change(ARENA_OFFSET as u64 + 100, true);
        one.change(ARENA_OFFSET as u64 + 10, true);
        assert_eq!(purses.bytes_taken_in(7), 110);
        web.change(ARENA_OFFSET as u64 + 100, false);
        assert_eq!(purses.bytes_taken_in(7), 10);
        drop((one, other));
        assert_eq!(purses.bytes_taken_in(7), 0);
        Ok(())
    }

    #[test]
    fn what_a_region_says_of_itself_is_bounded() -> io::Result<()> {
        let mut purses = Purses::new(0);
        let purse = purses.of(WEB, true)?;
        purse.change(u64::MAX, true);
        assert_eq!(purse.bytes_taken(), (REGION_BYTES - ARENA_OFFSET) as u64);
        purse.change(0, true);
        assert_eq!(purse.bytes_taken(), (REGION_BYTES - ARENA_OFFSET) as u64);
        Ok(())
    }
}
