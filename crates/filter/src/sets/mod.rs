//! Sets and maps as they are looked up in: the index of a set's keys, and its elements
//! with what they carry.
//!
//! The form of an index follows from the keys ([`Index`]); whatever the form, a lookup
//! costs about the same at ten elements and at a hundred thousand. Elements stand in
//! slots; an index leads to slots, and so do the runs of rules that the compiler turns
//! into one lookup. An element whose time is over counts as absent at once and is
//! removed when its room is needed.

mod boxes;
mod intervals;

use alloc::boxed::Box;
use alloc::vec::Vec;
use hashbrown::HashMap;

use crate::hash::Seed;
use crate::limits::{Bucket, QuotaState};
use crate::program::{Insn, VerdictCode};
use crate::state::Counter;
use boxes::{Bounds, Boxes};
use intervals::Intervals;

/// The most parts that a concatenation may have.
pub(crate) const FIELDS_MAX: usize = 8;
/// The longest key; as in the kernel, each part takes whole groups of four bytes.
pub(crate) const WIDE_BYTES: usize = 64;

/// How the parts of a key are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// All bits side by side, at most 64.
    Small,
    /// At most 128.
    Medium,
    /// In bytes.
    Wide,
    /// Each part by itself.
    Fields,
}

pub(crate) type Wide = [u64; WIDE_BYTES / 8];

#[derive(Clone, Debug)]
pub(crate) enum Index {
    Small(HashMap<u64, u32, Seed>),
    Medium(HashMap<u128, u32, Seed>),
    Wide(HashMap<Wide, u32, Seed>),
    SmallRanges(Intervals<u64>),
    MediumRanges(Intervals<u128>),
    Boxes(Boxes),
}

/// The key of one element: a range for each part.
pub(crate) type ElementKey = Bounds;

/// `None` if the parts are too many or too long.
pub(crate) fn form_of(bits: &[u16], ranges: bool) -> Option<Form> {
    let total: u32 = bits.iter().map(|b| u32::from(*b)).sum();
    let padded: usize = bits.iter().map(|b| usize::from(b.div_ceil(32)) * 4).sum();
    let fits = bits.len() <= FIELDS_MAX && padded <= WIDE_BYTES && bits.iter().all(|b| *b <= 128);
    fits.then_some(match (ranges && bits.len() > 1, total) {
        (true, _) => Form::Fields,
        (false, ..=64) => Form::Small,
        (false, ..=128) => Form::Medium,
        _ => Form::Wide,
    })
}

/// Parts side by side, the first highest.
#[inline]
pub(crate) fn pack(parts: impl Iterator<Item = (u128, u16)>) -> u128 {
    parts.fold(0, |sum, (part, bits)| {
        sum.checked_shl(bits.into()).unwrap_or(0) | part
    })
}

/// Parts in bytes, each filled up to a multiple of four.
pub(crate) fn pack_wide(parts: impl Iterator<Item = (u128, u16)>) -> Wide {
    let mut bytes = [0u8; WIDE_BYTES];
    let mut at = 0;
    for (part, bits) in parts {
        let len = usize::from(bits.div_ceil(32)) * 4;
        if let Some(room) = bytes.get_mut(at..at + len) {
            room.copy_from_slice(&part.to_be_bytes()[16 - len..]);
        }
        at += len;
    }
    let mut wide = [0; WIDE_BYTES / 8];
    for (word, chunk) in wide.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(chunk.try_into().unwrap_or_default());
    }
    wide
}

impl Index {
    /// An index over these keys, each with its slot; of equal or overlapping keys the
    /// first counts. `ranges` says that keys may be ranges.
    pub(crate) fn new(
        bits: &[u16],
        keys: &[(ElementKey, u32)],
        ranges: bool,
        seed: Seed,
    ) -> Option<Index> {
        let form = form_of(bits, ranges)?;
        let exact = |key: &ElementKey| pack(key.iter().map(|k| k.0).zip(bits.iter().copied()));
        let range = |key: &ElementKey| key.first().copied().unwrap_or_default();
        Some(match form {
            Form::Fields => Index::Boxes(Boxes::new(bits.len(), keys)),
            Form::Small if ranges => {
                let list: Vec<_> = keys
                    .iter()
                    .map(|(k, s)| (range(k).0 as u64, range(k).1 as u64, *s))
                    .collect();
                Index::SmallRanges(Intervals::new(&list))
            }
            Form::Medium if ranges => {
                let list: Vec<_> = keys
                    .iter()
                    .map(|(k, s)| (range(k).0, range(k).1, *s))
                    .collect();
                Index::MediumRanges(Intervals::new(&list))
            }
            Form::Small => {
                let mut map = HashMap::with_capacity_and_hasher(keys.len(), seed);
                for (key, slot) in keys {
                    map.entry(exact(key) as u64).or_insert(*slot);
                }
                Index::Small(map)
            }
            Form::Medium => {
                let mut map = HashMap::with_capacity_and_hasher(keys.len(), seed);
                for (key, slot) in keys {
                    map.entry(exact(key)).or_insert(*slot);
                }
                Index::Medium(map)
            }
            Form::Wide => {
                let mut map = HashMap::with_capacity_and_hasher(keys.len(), seed);
                for (key, slot) in keys {
                    let parts = key.iter().map(|k| k.0).zip(bits.iter().copied());
                    map.entry(pack_wide(parts)).or_insert(*slot);
                }
                Index::Wide(map)
            }
        })
    }

    #[inline]
    pub(crate) fn find_small(&self, key: u64) -> Option<u32> {
        match self {
            Index::Small(map) => map.get(&key).copied(),
            Index::SmallRanges(ranges) => ranges.find(key),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn find_medium(&self, key: u128) -> Option<u32> {
        match self {
            Index::Medium(map) => map.get(&key).copied(),
            Index::MediumRanges(ranges) => ranges.find(key),
            _ => None,
        }
    }

    pub(crate) fn find_wide(&self, key: &Wide) -> Option<u32> {
        match self {
            Index::Wide(map) => map.get(key).copied(),
            _ => None,
        }
    }

    pub(crate) fn find_fields(&self, key: &[u128]) -> Option<u32> {
        match self {
            Index::Boxes(boxes) => boxes.find(key),
            _ => None,
        }
    }

    pub(crate) fn find(&self, key: &Key) -> Option<u32> {
        match key {
            Key::Small(key) => self.find_small(*key),
            Key::Medium(key) => self.find_medium(*key),
            Key::Wide(key) => self.find_wide(key),
            Key::Fields(key, len) => self.find_fields(&key[..*len]),
        }
    }

    /// False if the index cannot take keys one at a time.
    fn put(&mut self, key: &Key, slot: u32) -> bool {
        match (self, key) {
            (Index::Small(map), Key::Small(key)) => map.insert(*key, slot).is_none(),
            (Index::Medium(map), Key::Medium(key)) => map.insert(*key, slot).is_none(),
            (Index::Wide(map), Key::Wide(key)) => map.insert(*key, slot).is_none(),
            _ => false,
        }
    }

    fn take(&mut self, key: &Key) -> Option<u32> {
        match (self, key) {
            (Index::Small(map), Key::Small(key)) => map.remove(key),
            (Index::Medium(map), Key::Medium(key)) => map.remove(key),
            (Index::Wide(map), Key::Wide(key)) => map.remove(key),
            _ => None,
        }
    }

    /// Removes the keys whose slots are not wanted.
    fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        match self {
            Index::Small(map) => map.retain(|_, slot| keep(*slot)),
            Index::Medium(map) => map.retain(|_, slot| keep(*slot)),
            Index::Wide(map) => map.retain(|_, slot| keep(*slot)),
            Index::SmallRanges(_) | Index::MediumRanges(_) | Index::Boxes(_) => {}
        }
    }
}

/// A key that was put together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    Small(u64),
    Medium(u128),
    Wide(Wide),
    Fields([u128; FIELDS_MAX], usize),
}

/// What an element of a map leads to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    None,
    /// As the kernel would load them into registers.
    Bytes(Box<[u8]>),
    Verdict(VerdictCode),
    /// A counter, limit or quota.
    Object(Insn),
}

/// A statement that stands with an element and keeps its count there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ElementStatement {
    Counter(Counter),
    Limit(Bucket),
    Quota(QuotaState),
    ConnLimit {
        count: u32,
        over: bool,
        flows: Vec<u64>,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Element {
    pub key: ElementKey,
    pub data: Data,
    /// 0: stays.
    pub timeout_ns: u64,
    pub expires_ns: u64,
    pub statements: Box<[ElementStatement]>,
}

impl Element {
    #[inline]
    pub(crate) fn is_alive(&self, now_ns: u64) -> bool {
        self.timeout_ns == 0 || now_ns < self.expires_ns
    }
}

/// A set while it is in use.
#[derive(Clone, Debug)]
pub(crate) struct SetStore {
    pub bits: Box<[u16]>,
    pub ranges: bool,
    pub index: Index,
    pub elements: Vec<Option<Element>>,
    free: Vec<u32>,
    /// The slot of `*`.
    pub catch_all: Option<u32>,
    /// Some element has a timeout or statements, so that a hit must look at it.
    pub look_at_hits: bool,
    pub size_max: usize,
    pub timeout_ns: u64,
    /// What an element that a packet adds starts with.
    pub template: Box<[ElementStatement]>,
}

/// Sets that packets add to have room for so many elements if nothing else is said (nft's
/// default).
pub(crate) const DYNAMIC_SIZE: usize = 65_535;

impl SetStore {
    pub(crate) fn new(
        bits: Vec<u16>,
        ranges: bool,
        elements: Vec<Element>,
        catch_all: Option<Element>,
        seed: Seed,
    ) -> Option<SetStore> {
        let keys: Vec<(ElementKey, u32)> = elements
            .iter()
            .enumerate()
            .map(|(at, e)| (e.key.clone(), at as u32))
            .collect();
        let index = Index::new(&bits, &keys, ranges, seed)?;
        let mut elements: Vec<Option<Element>> = elements.into_iter().map(Some).collect();
        let catch_all = catch_all.map(|element| {
            elements.push(Some(element));
            elements.len() as u32 - 1
        });
        let look_at_hits = elements
            .iter()
            .flatten()
            .any(|e| e.timeout_ns > 0 || !e.statements.is_empty());
        Some(SetStore {
            bits: bits.into(),
            ranges,
            index,
            elements,
            free: Vec::new(),
            catch_all,
            look_at_hits,
            size_max: usize::MAX,
            timeout_ns: 0,
            template: Box::default(),
        })
    }

    pub(crate) fn form(&self) -> Form {
        form_of(&self.bits, self.ranges).unwrap_or(Form::Small)
    }

    /// The slot that a lookup's result leads to: the element itself if it is alive, else
    /// the one that catches all.
    #[inline]
    pub(crate) fn settle(&self, found: Option<u32>, now_ns: u64) -> Option<u32> {
        match found {
            Some(slot) if !self.look_at_hits || self.alive(slot, now_ns) => Some(slot),
            _ => self.catch_all.filter(|slot| self.alive(*slot, now_ns)),
        }
    }

    fn alive(&self, slot: u32, now_ns: u64) -> bool {
        self.element(slot).is_some_and(|e| e.is_alive(now_ns))
    }

    pub(crate) fn element(&self, slot: u32) -> Option<&Element> {
        self.elements.get(slot as usize)?.as_ref()
    }

    pub(crate) fn element_mut(&mut self, slot: u32) -> Option<&mut Element> {
        self.elements.get_mut(slot as usize)?.as_mut()
    }

    /// Adds an element if there is room, and gives its slot. One that is there already
    /// and alive is found instead.
    pub(crate) fn add(&mut self, key: &Key, element: Element, now_ns: u64) -> Option<(u32, bool)> {
        if let Some(slot) = self.index.find(key) {
            if self.alive(slot, now_ns) {
                return Some((slot, false));
            }
            self.remove(key);
        }
        if self.elements.len() - self.free.len() >= self.size_max {
            self.sweep(now_ns);
            if self.elements.len() - self.free.len() >= self.size_max {
                return None;
            }
        }
        self.look_at_hits |= element.timeout_ns > 0 || !element.statements.is_empty();
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.elements.push(None);
                self.elements.len() as u32 - 1
            }
        };
        if !self.index.put(key, slot) {
            self.free.push(slot);
            return None;
        }
        self.elements[slot as usize] = Some(element);
        Some((slot, true))
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        if let Some(slot) = self.index.take(key) {
            self.elements[slot as usize] = None;
            self.free.push(slot);
        }
    }

    /// Whether some element counts, or will.
    pub(crate) fn counts(&self) -> bool {
        let counts = |one: &ElementStatement| matches!(one, ElementStatement::Counter(_));
        let mut elements = self.elements.iter().flatten();
        self.template.iter().any(counts)
            || elements.any(|element| element.statements.iter().any(counts))
    }

    /// Removes what is over.
    pub(crate) fn sweep(&mut self, now_ns: u64) {
        let SetStore {
            index,
            elements,
            free,
            ..
        } = self;
        index.retain(|slot| {
            let place = &mut elements[slot as usize];
            let keep = place.as_ref().is_some_and(|e| e.is_alive(now_ns));
            if !keep {
                *place = None;
                free.push(slot);
            }
            keep
        });
    }
}
