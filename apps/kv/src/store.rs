//! Keys and values, in order of use, within a bound of memory.
//!
//! ```text
//!   table (hashbrown, hashes keyed by the seed) ──► place in a chunk
//!   chunks of entries: key, value, time of its end, and the neighbours in the order of use
//!   newest ◄──► ... ◄──► oldest           dropped first when the next value does not fit
//! ```
//! - Every read and write of a key moves it to the newest end: eviction is exact LRU, at the
//!   cost of two links per access.
//! - A key whose time is over is gone for whoever asks; its memory goes then, when it is evicted,
//!   or when [`Store::expire_some`] comes by: a hand that goes round the entries.
//! - The bound counts what is taken: keys, capacities of values, chunks ([`CHUNK_BYTES`]), and for
//!   each entry its share of the table and of what an allocator adds ([`ENTRY_BYTES`]). A chunk
//!   is made when all others are full and goes when it is empty, and none ever moves: so many small
//!   entries leave nothing behind for large ones to live beside. Growing the table needs the old and the
//!   new one for a moment, 15 bytes for each entry, which is not counted.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::Hasher;
use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use hashbrown::HashTable;

/// No neighbour, no time.
const NONE: u32 = u32::MAX;
pub(crate) const NEVER: u64 = u64::MAX;
/// What an entry takes besides its key, its value and its place: at most two slots of the table,
/// and what an allocator adds to two allocations.
pub(crate) const ENTRY_BYTES: usize = 2 * (size_of::<u32>() + 1) + 32;
/// Entries of a chunk: a page of memory.
const CHUNK: usize = 64;
const CHUNK_BYTES: usize = CHUNK * size_of::<Entry>() + size_of::<Chunk>() + 16;
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

impl Entry {
    /// Of a place that is free; `next`: another one in the chunk.
    fn free(next: u32) -> Entry {
        Entry {
            key: Box::default(),
            value: Vec::new(),
            expires_ms: NEVER,
            newer: NONE,
            older: next,
            is_used: false,
        }
    }
}

/// Places that are made, and go, together.
#[derive(Default)]
struct Chunk {
    /// None while it is not there.
    entries: Box<[Entry]>,
    used: u32,
    /// The first free place; each names the next one as its older neighbour.
    free: u32,
    /// In the list of those that have free places, perhaps no longer rightly.
    is_listed: bool,
}

/// The value does not fit, even alone; or nothing may be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

pub(crate) struct Store {
    table: HashTable<u32>,
    chunks: Vec<Chunk>,
    /// Chunks that have had free places when they were entered here; the last one is used first.
    open: Vec<u32>,
    /// Numbers of chunks that are not there and not in `open`.
    gone: Vec<u32>,
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
            chunks: Vec::new(),
            open: Vec::new(),
            gone: Vec::new(),
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

    #[inline(always)]
    fn entry(&self, at: u32) -> &Entry {
        &self.chunks[at as usize / CHUNK].entries[at as usize % CHUNK]
    }

    #[inline(always)]
    fn entry_mut(&mut self, at: u32) -> &mut Entry {
        &mut self.chunks[at as usize / CHUNK].entries[at as usize % CHUNK]
    }

    /// A free place, if there is one.
    fn free_place(&mut self) -> Option<u32> {
        while let Some(&number) = self.open.last() {
            let chunk = &mut self.chunks[number as usize];
            if !chunk.entries.is_empty() && chunk.free != NONE {
                return Some(chunk.free);
            }
            chunk.is_listed = false;
            if chunk.entries.is_empty() {
                self.gone.push(number);
            }
            self.open.pop();
        }
        None
    }

    /// Puts an entry into a free place, for which there is room.
    fn put(&mut self, entry: Entry) -> u32 {
        let at = self.free_place().unwrap_or_else(|| self.add_chunk());
        let chunk = &mut self.chunks[at as usize / CHUNK];
        chunk.used += 1;
        let place = &mut chunk.entries[at as usize % CHUNK];
        chunk.free = core::mem::replace(place, entry).older;
        at
    }

    /// Makes a chunk; its first place.
    fn add_chunk(&mut self) -> u32 {
        let number = self.gone.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk::default());
            (self.chunks.len() - 1) as u32
        });
        let first = number * CHUNK as u32;
        let behind = |at: usize| match at + 1 {
            CHUNK => NONE,
            next => first + next as u32,
        };
        self.chunks[number as usize] = Chunk {
            entries: (0..CHUNK).map(|at| Entry::free(behind(at))).collect(),
            used: 0,
            free: first,
            is_listed: true,
        };
        self.open.push(number);
        self.bytes += CHUNK_BYTES;
        first
    }

    /// A place is free again.
    fn give_back(&mut self, at: u32) {
        let number = at as usize / CHUNK;
        let chunk = &mut self.chunks[number];
        chunk.used -= 1;
        if chunk.used == 0 {
            chunk.entries = Box::default();
            self.bytes -= CHUNK_BYTES;
        } else {
            chunk.entries[at as usize % CHUNK] = Entry::free(chunk.free);
            chunk.free = at;
        }
        if !chunk.is_listed {
            match chunk.used {
                0 => self.gone.push(number as u32),
                _ => {
                    chunk.is_listed = true;
                    self.open.push(number as u32);
                }
            }
        }
    }

    #[inline(always)]
    fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        let is = |at: &u32| *self.entry(*at).key == *key;
        self.table.find(hash, is).copied()
    }

    /// The key's place if it is there and its time is not over; it becomes the newest.
    fn touch(&mut self, key: &[u8], now_ms: u64) -> Option<u32> {
        let at = self.find(self.hash(key), key)?;
        if self.entry(at).expires_ms <= now_ms {
            self.expired += 1;
            self.remove_at(at);
            return None;
        }
        self.renew(at);
        Some(at)
    }

    pub fn get(&mut self, key: &[u8], now_ms: u64) -> Option<&[u8]> {
        let at = self.touch(key, now_ms)?;
        Some(&self.entry(at).value)
    }

    /// When the key's time is over; [`NEVER`] if it has none.
    pub fn expires_ms(&mut self, key: &[u8], now_ms: u64) -> Option<u64> {
        let at = self.touch(key, now_ms)?;
        Some(self.entry(at).expires_ms)
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
        let before = core::mem::replace(&mut self.entry_mut(at).expires_ms, expires_ms);
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
        let capacity = self.entry(at).value.capacity();
        let fits = value.len() <= capacity && capacity / SLACK <= value.len().max(16);
        if fits {
            let kept = &mut self.entry_mut(at).value;
            kept.clear();
            kept.extend_from_slice(value);
        } else {
            self.make_room(value.len().saturating_sub(capacity), at)?;
            let fresh = value.to_vec();
            self.bytes = self.bytes - capacity + fresh.capacity();
            self.entry_mut(at).value = fresh;
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
        self.make_room_for_entry(bytes)?;
        let entry = Entry {
            key: key.into(),
            value: value.to_vec(),
            expires_ms,
            newer: NONE,
            older: NONE,
            is_used: true,
        };
        let at = self.put(entry);
        self.bytes += bytes;
        self.volatile += usize::from(expires_ms != NEVER);
        self.link(at);
        let (chunks, seed, shared) = (&self.chunks, self.seed, &self.shared_seed);
        let key = |at: usize| &chunks[at / CHUNK].entries[at % CHUNK].key;
        let rehash = |at: &u32| self::hash(seed, shared, key(*at as usize));
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
        let before = self.entry(at).value.capacity();
        self.make_room(bytes_max.saturating_sub(before), at)?;
        let value = &mut self.entry_mut(at).value;
        change(value);
        let length = value.len();
        let after = value.capacity();
        self.bytes = self.bytes - before + after;
        // A buffer grows by more than was asked for; if there is no room for that, it does not.
        if self.make_room(0, at).is_err() {
            let value = &mut self.entry_mut(at).value;
            value.shrink_to_fit();
            let shrunk = value.capacity();
            self.bytes = self.bytes - after + shrunk;
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
        let chunks = self.chunks.iter().enumerate().skip(place / CHUNK);
        let entries = chunks.flat_map(|(number, chunk)| {
            let places = number * CHUNK..;
            places.zip(&chunk.entries[..])
        });
        let mut there = entries
            .filter(|(at, entry)| *at >= place && entry.is_used && entry.expires_ms > now_ms);
        there.next().map(|(at, entry)| (at, &*entry.key))
    }

    /// A key, each time another one.
    pub fn some_key(&mut self, now_ms: u64) -> Option<&[u8]> {
        let from = self.shown.wrapping_add(1);
        let found = self.key_from(from, now_ms).or(self.key_from(0, now_ms));
        let at = found?.0;
        self.shown = at;
        Some(&self.entry(at as u32).key)
    }

    pub fn clear(&mut self) {
        self.table = HashTable::new();
        (self.chunks, self.open, self.gone) = (Vec::new(), Vec::new(), Vec::new());
        (self.newest, self.oldest) = (NONE, NONE);
        (self.hand, self.volatile, self.bytes) = (0, 0, 0);
    }

    /// Looks at `count` entries and drops those whose time is over.
    pub fn expire_some(&mut self, now_ms: u64, count: usize) {
        for _ in 0..count.min(self.chunks.len() * CHUNK) {
            let Some(chunk) = self.chunks.get(self.hand / CHUNK) else {
                self.hand = 0;
                continue;
            };
            match chunk.entries.get(self.hand % CHUNK) {
                Some(entry) if entry.is_used && entry.expires_ms <= now_ms => {
                    self.expired += 1;
                    self.remove_at(self.hand as u32);
                    self.hand += 1;
                }
                Some(_) => self.hand += 1,
                None => self.hand = (self.hand / CHUNK + 1) * CHUNK,
            }
        }
    }

    /// Makes room for a new entry, which may need a chunk too.
    fn make_room_for_entry(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        loop {
            let chunk = match self.free_place() {
                Some(_) => 0,
                None => CHUNK_BYTES,
            };
            if self.bytes.saturating_add(bytes + chunk) <= self.bytes_max {
                return Ok(());
            }
            self.evict(NONE)?;
        }
    }

    /// Drops the least recently used, but for `kept`, until `more` bytes fit.
    fn make_room(&mut self, more: usize, kept: u32) -> Result<(), OutOfMemory> {
        while self.bytes.saturating_add(more) > self.bytes_max {
            self.evict(kept)?;
        }
        Ok(())
    }

    fn evict(&mut self, kept: u32) -> Result<(), OutOfMemory> {
        if self.oldest == NONE || self.oldest == kept {
            return Err(OutOfMemory);
        }
        self.evicted += 1;
        self.remove_at(self.oldest);
        Ok(())
    }

    fn remove_at(&mut self, at: u32) {
        let hash = self.hash(&self.entry(at).key);
        if let Ok(found) = self.table.find_entry(hash, |other| *other == at) {
            found.remove();
        }
        self.unlink(at);
        self.time(at, NEVER);
        let entry = self.entry(at);
        self.bytes -= ENTRY_BYTES + entry.key.len() + entry.value.capacity();
        self.give_back(at);
    }

    fn renew(&mut self, at: u32) {
        if self.newest != at {
            self.unlink(at);
            self.link(at);
        }
    }

    fn link(&mut self, at: u32) {
        let older = core::mem::replace(&mut self.newest, at);
        let entry = self.entry_mut(at);
        (entry.newer, entry.older) = (NONE, older);
        match older {
            NONE => self.oldest = at,
            older => self.entry_mut(older).newer = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let entry = self.entry(at);
        let (newer, older) = (entry.newer, entry.older);
        match newer {
            NONE => self.newest = older,
            newer => self.entry_mut(newer).older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.entry_mut(older).newer = newer,
        }
    }
}

fn hash(seed: u64, shared: &SharedSeed, key: &[u8]) -> u64 {
    let mut hasher = FoldHasher::with_seed(seed, shared);
    hasher.write(key);
    hasher.finish()
}
