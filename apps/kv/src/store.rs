//! Keys and values, in order of use, within a bound of memory.
//!
//! ```text
//!   table (hashbrown, hashes keyed by the seed) ──► place in `entries`
//!   entries: key, value, time of its end, and the neighbours in the order of use
//!   newest ◄──► ... ◄──► oldest           dropped first when the next value does not fit
//! ```
//! - Every read and write of a key moves it to the newest end: eviction is exact LRU, at the
//!   cost of two links per access.
//! - A key whose time is over is gone for whoever asks; its memory goes then, when it is evicted,
//!   or when [`Store::expire_some`] comes by: a hand that goes round the entries.
//! - The bound counts what an entry takes: key, capacity of the value, its place and its share of
//!   the table ([`ENTRY_BYTES`]). Growing the table or the list of entries needs the old and the
//!   new one for a moment, which is not counted.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::Hasher;
use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use hashbrown::HashTable;

/// No neighbour, no time.
const NONE: u32 = u32::MAX;
pub(crate) const NEVER: u64 = u64::MAX;
/// What an entry takes besides its key and value: its place, at most two slots of the table, and
/// what an allocator adds to two allocations.
pub(crate) const ENTRY_BYTES: usize = size_of::<Entry>() + 2 * (size_of::<u32>() + 1) + 32;
/// A value's buffer is given back when it is so many times too large.
const SLACK: usize = 4;

struct Entry {
    key: Box<[u8]>,
    value: Vec<u8>,
    expires_ms: u64,
    newer: u32,
    older: u32,
    is_used: bool,
}

/// The value does not fit, even alone; or nothing may be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

pub(crate) struct Store {
    table: HashTable<u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    /// Where [`Store::expire_some`] goes on.
    hand: usize,
    /// The last of [`Store::some_key`].
    shown: usize,
    /// Entries that have a time.
    volatile: usize,
    bytes: usize,
    bytes_max: usize,
    seed: u64,
    shared_seed: SharedSeed,
    pub evicted: u64,
    pub expired: u64,
}

impl Store {
    pub fn new(bytes_max: usize, seed: [u64; 2]) -> Store {
        Store {
            table: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            hand: 0,
            shown: 0,
            volatile: 0,
            bytes: 0,
            bytes_max,
            seed: seed[0],
            shared_seed: SharedSeed::from_u64(seed[1]),
            evicted: 0,
            expired: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Keys that have a time.
    pub fn volatile(&self) -> usize {
        self.volatile
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    fn hash(&self, key: &[u8]) -> u64 {
        hash(self.seed, &self.shared_seed, key)
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        let is = |at: &u32| *self.entries[*at as usize].key == *key;
        self.table.find(hash, is).copied()
    }

    /// The key's place if it is there and its time is not over; it becomes the newest.
    fn touch(&mut self, key: &[u8], now_ms: u64) -> Option<u32> {
        let at = self.find(self.hash(key), key)?;
        if self.entries[at as usize].expires_ms <= now_ms {
            self.expired += 1;
            self.remove_at(at);
            return None;
        }
        self.renew(at);
        Some(at)
    }

    pub fn get(&mut self, key: &[u8], now_ms: u64) -> Option<&[u8]> {
        let at = self.touch(key, now_ms)?;
        Some(&self.entries[at as usize].value)
    }

    /// When the key's time is over; [`NEVER`] if it has none.
    pub fn expires_ms(&mut self, key: &[u8], now_ms: u64) -> Option<u64> {
        let at = self.touch(key, now_ms)?;
        Some(self.entries[at as usize].expires_ms)
    }

    /// Gives a key that is there a time, or with [`NEVER`] none; says whether it is there.
    pub fn set_expires_ms(&mut self, key: &[u8], now_ms: u64, expires_ms: u64) -> bool {
        let Some(at) = self.touch(key, now_ms) else {
            return false;
        };
        self.time(at, expires_ms);
        true
    }

    fn time(&mut self, at: u32, expires_ms: u64) {
        let before = core::mem::replace(&mut self.entries[at as usize].expires_ms, expires_ms);
        self.volatile += usize::from(expires_ms != NEVER);
        self.volatile -= usize::from(before != NEVER);
    }

    /// Gives a key this value and time.
    pub fn set(&mut self, key: &[u8], value: &[u8], expires_ms: u64) -> Result<(), OutOfMemory> {
        let hash = self.hash(key);
        let Some(at) = self.find(hash, key) else {
            return self.insert(hash, key, value, expires_ms);
        };
        // Whether the old value's time is over makes no difference: all of it is new.
        self.renew(at);
        let capacity = self.entries[at as usize].value.capacity();
        let fits = value.len() <= capacity && capacity / SLACK <= value.len().max(16);
        if fits {
            let kept = &mut self.entries[at as usize].value;
            kept.clear();
            kept.extend_from_slice(value);
        } else {
            self.make_room(value.len().saturating_sub(capacity), at)?;
            let fresh = value.to_vec();
            self.bytes = self.bytes - capacity + fresh.capacity();
            self.entries[at as usize].value = fresh;
        }
        self.time(at, expires_ms);
        Ok(())
    }

    fn insert(
        &mut self,
        hash: u64,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
    ) -> Result<(), OutOfMemory> {
        let bytes = ENTRY_BYTES + key.len() + value.len();
        self.make_room(bytes, NONE)?;
        let entry = Entry {
            key: key.into(),
            value: value.to_vec(),
            expires_ms,
            newer: NONE,
            older: NONE,
            is_used: true,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.bytes += bytes;
        self.volatile += usize::from(expires_ms != NEVER);
        self.link(at);
        let (entries, seed, shared) = (&self.entries, self.seed, &self.shared_seed);
        let rehash = |at: &u32| self::hash(seed, shared, &entries[*at as usize].key);
        self.table.insert_unique(hash, at, rehash);
        Ok(())
    }

    /// Changes the value of a key, empty if it was not there, to at most `bytes_max` bytes; the
    /// key's time stays.
    pub fn edit(
        &mut self,
        key: &[u8],
        now_ms: u64,
        bytes_max: usize,
        change: impl FnOnce(&mut Vec<u8>),
    ) -> Result<usize, OutOfMemory> {
        let at = match self.touch(key, now_ms) {
            Some(at) => at,
            None => {
                self.insert(self.hash(key), key, &[], NEVER)?;
                self.newest
            }
        };
        let before = self.entries[at as usize].value.capacity();
        self.make_room(bytes_max.saturating_sub(before), at)?;
        let value = &mut self.entries[at as usize].value;
        change(value);
        let length = value.len();
        self.bytes = self.bytes - before + value.capacity();
        // A buffer grows by more than was asked for; if there is no room for that, it does not.
        if self.make_room(0, at).is_err() {
            let value = &mut self.entries[at as usize].value;
            self.bytes -= value.capacity();
            value.shrink_to_fit();
            self.bytes += value.capacity();
        }
        Ok(length)
    }

    pub fn remove(&mut self, key: &[u8], now_ms: u64) -> bool {
        let Some(at) = self.touch(key, now_ms) else {
            return false;
        };
        self.remove_at(at);
        true
    }

    /// The first key at or behind a place, and its place. Being shown is no use of a key.
    pub fn key_from(&self, place: usize, now_ms: u64) -> Option<(usize, &[u8])> {
        let entries = self.entries.iter().enumerate().skip(place);
        let mut there = entries.filter(|(_, entry)| entry.is_used && entry.expires_ms > now_ms);
        there.next().map(|(at, entry)| (at, &*entry.key))
    }

    /// A key, each time another one.
    pub fn some_key(&mut self, now_ms: u64) -> Option<&[u8]> {
        let from = self.shown.wrapping_add(1);
        let found = self.key_from(from, now_ms).or(self.key_from(0, now_ms));
        let at = found?.0;
        self.shown = at;
        Some(&self.entries[at].key)
    }

    pub fn clear(&mut self) {
        self.table = HashTable::new();
        self.entries = Vec::new();
        self.free = Vec::new();
        (self.newest, self.oldest) = (NONE, NONE);
        (self.hand, self.volatile, self.bytes) = (0, 0, 0);
    }

    /// Looks at `count` entries and drops those whose time is over.
    pub fn expire_some(&mut self, now_ms: u64, count: usize) {
        for _ in 0..count.min(self.entries.len()) {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            if self.entries[self.hand].expires_ms <= now_ms {
                self.expired += 1;
                self.remove_at(self.hand as u32);
            }
            self.hand += 1;
        }
    }

    /// Drops the least recently used, but for `kept`, until `more` bytes fit.
    fn make_room(&mut self, more: usize, kept: u32) -> Result<(), OutOfMemory> {
        while self.bytes.saturating_add(more) > self.bytes_max {
            if self.oldest == NONE || self.oldest == kept {
                return Err(OutOfMemory);
            }
            self.evicted += 1;
            self.remove_at(self.oldest);
        }
        Ok(())
    }

    fn remove_at(&mut self, at: u32) {
        let hash = self.hash(&self.entries[at as usize].key);
        if let Ok(found) = self.table.find_entry(hash, |other| *other == at) {
            found.remove();
        }
        self.unlink(at);
        self.time(at, NEVER);
        let entry = &mut self.entries[at as usize];
        self.bytes -= ENTRY_BYTES + entry.key.len() + entry.value.capacity();
        entry.is_used = false;
        entry.key = Box::default();
        entry.value = Vec::new();
        self.free.push(at);
    }

    fn renew(&mut self, at: u32) {
        if self.newest != at {
            self.unlink(at);
            self.link(at);
        }
    }

    fn link(&mut self, at: u32) {
        let older = core::mem::replace(&mut self.newest, at);
        let entry = &mut self.entries[at as usize];
        (entry.newer, entry.older) = (NONE, older);
        match older {
            NONE => self.oldest = at,
            older => self.entries[older as usize].newer = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let entry = &self.entries[at as usize];
        let (newer, older) = (entry.newer, entry.older);
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
    }
}

fn hash(seed: u64, shared: &SharedSeed, key: &[u8]) -> u64 {
    let mut hasher = FoldHasher::with_seed(seed, shared);
    hasher.write(key);
    hasher.finish()
}
