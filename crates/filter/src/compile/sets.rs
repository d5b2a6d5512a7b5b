//! Sets and maps as the kernel keeps them, into what is looked up in; and the keys that rules make.
//!
//! A key is compared as the bytes that registers hold: each part is one number, the first byte the
//! highest. What the machine writes in its own order is turned around for that ([`Bitop::Swap`]).
//!
//! Ranges of one part are kept by their ends: an element where one begins, and one, marked, at the first
//! key behind it (linux: net/netfilter/nft_set_rbtree.c). Ranges of several parts have both of their
//! keys in one element (nft_set_pipapo.c).

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::Compiler;
use super::lower::Step;
use crate::limits::{Bucket, QuotaState};
use crate::program::{Bitop, KeyCode, Term, low_bits, number};
use crate::rules::{self, ElementData, Set, SetData, Stateful};
use crate::sets::{DYNAMIC_SIZE, Data, Element, ElementKey, ElementStatement, SetStore};

const NS_PER_MS: u64 = 1_000_000;

impl<'r> Compiler<'r> {
    /// The set of that name, and where it stands in its table.
    pub(super) fn set(&self, table_at: usize, name: &str) -> Option<(usize, &'r Set)> {
        let mut sets = self.rules.tables[table_at].sets.iter().enumerate();
        sets.find(|(_, set)| set.name == name)
    }

    /// Which of the state's sets it is: made for the first rule that asks, by whose values the parts of
    /// a key are known. `None` if it is none that is known here.
    pub(super) fn set_number(&mut self, table_at: usize, at: usize, lengths: &[u8]) -> Option<u32> {
        if self.set_numbers[table_at][at].is_none() {
            let store = self.store(table_at, &self.rules.tables[table_at].sets[at], lengths)?;
            self.state.sets.push(store);
            self.set_numbers[table_at][at] = Some(self.state.sets.len() as u32 - 1);
        }
        self.set_numbers[table_at][at]
    }

    fn store(&self, table_at: usize, set: &Set, lengths: &[u8]) -> Option<SetStore> {
        if lengths.is_empty() || lengths.iter().any(|len| !(1..=16).contains(len)) {
            return None;
        }
        let bits: Vec<u16> = lengths.iter().map(|len| u16::from(*len) * 8).collect();
        let template = self.all_kept(&set.exprs)?;
        let timeout_ns = set.timeout_ms.saturating_mul(NS_PER_MS);
        let make = |of: &rules::Element, key: ElementKey| -> Option<Element> {
            let timeout_ns = of
                .timeout_ms
                .map_or(timeout_ns, |ms| ms.saturating_mul(NS_PER_MS));
            let rest_ns = of
                .expires_ms
                .map_or(timeout_ns, |ms| ms.saturating_mul(NS_PER_MS));
            Some(Element {
                key,
                data: self.element_data(table_at, set, of.data.as_ref())?,
                timeout_ns,
                expires_ns: self.now_ns.saturating_add(rest_ns),
                statements: self.all_kept(&of.exprs)?,
            })
        };
        let any = || bits.iter().map(|bits| (0, low_bits(*bits))).collect();
        let mut catch_all = None;
        let mut elements = Vec::new();
        let mut ends = Vec::new();
        for of in &set.elements {
            if of.catches_all {
                catch_all = Some(make(of, any())?);
            } else if set.interval && set.parts.is_empty() {
                let one = parts_of(&of.key, lengths)?;
                if one.len() != 1 || of.key.len() != usize::from(lengths[0]) {
                    return None;
                }
                ends.push((one[0], !of.ends, of));
            } else {
                let low = parts_of(&of.key, lengths)?;
                let high = match &of.key_end {
                    Some(end) => parts_of(end, lengths)?,
                    None => low.clone(),
                };
                elements.push(make(of, low.into_iter().zip(high).collect())?);
            }
        }
        // Where one ends and the next begins, the end comes first.
        ends.sort_by_key(|(key, begins, _)| (*key, *begins));
        let mut ends = ends.into_iter().peekable();
        while let Some((low, begins, of)) = ends.next() {
            if begins {
                let high = match ends.peek() {
                    Some((next, ..)) => next.checked_sub(1)?,
                    None => low_bits(bits[0]),
                };
                elements.push(make(of, vec![(low, high)])?);
            }
        }
        let mut store = SetStore::new(bits, set.interval, elements, catch_all, self.seed)?;
        store.timeout_ns = timeout_ns;
        store.look_at_hits |= !template.is_empty();
        store.template = template;
        store.size_max = match set.size {
            Some(size) => size as usize,
            None if set.dynamic => DYNAMIC_SIZE,
            None => usize::MAX,
        };
        Some(store)
    }

    fn element_data(&self, table_at: usize, set: &Set, data: Option<&ElementData>) -> Option<Data> {
        Some(match (set.data, data) {
            (None, _) | (Some(_), None) => Data::None,
            (Some(SetData::Verdict), Some(ElementData::Verdict(verdict))) => {
                Data::Verdict(self.verdict(table_at, verdict)?)
            }
            (Some(SetData::Value(_)), Some(ElementData::Value(bytes))) => {
                Data::Bytes(bytes.as_slice().into())
            }
            (Some(SetData::Object(kind)), Some(ElementData::Object(name))) => {
                Data::Object(self.object(table_at, kind, name)?)
            }
            _ => return None,
        })
    }

    fn all_kept(&self, exprs: &[Stateful]) -> Option<Box<[ElementStatement]>> {
        let kept = exprs.iter().filter(|one| !matches!(one, Stateful::Last));
        kept.map(|one| self.kept(one)).collect()
    }

    /// What an element keeps.
    pub(super) fn kept(&self, one: &Stateful) -> Option<ElementStatement> {
        Some(match one {
            Stateful::Counter { packets, bytes } => {
                ElementStatement::Counter((*packets, *bytes).into())
            }
            Stateful::Limit(limit) => ElementStatement::Limit(Bucket::new(limit, self.now_ns)),
            Stateful::Quota(quota) => ElementStatement::Quota(QuotaState::new(quota)),
            Stateful::ConnLimit { count, over } => ElementStatement::ConnLimit {
                count: *count,
                over: *over,
                flows: Vec::new(),
            },
            Stateful::Last => return None,
        })
    }

    /// Values side by side, as the set has its keys.
    pub(super) fn key_for(&self, parts: Box<[(Term, u16, bool)]>, set: u32) -> Option<KeyCode> {
        let store = &self.state.sets[set as usize];
        if !parts.iter().map(|(_, bits, _)| bits).eq(store.bits.iter()) {
            return None;
        }
        let turned = parts.into_iter().map(|(mut term, bits, host)| {
            if host && bits > 8 {
                term.ops.push(Bitop::Swap((bits / 8) as u8));
            }
            (term, bits)
        });
        Some(KeyCode::new(turned.collect(), store.form()))
    }

    /// A lookup that has no effect besides its answer.
    pub(super) fn is_pure_lookup(&self, step: &Step) -> bool {
        let Step::Lookup { set, .. } = step else {
            return true;
        };
        let store = &self.state.sets[*set as usize];
        let mut elements = store.elements.iter().flatten();
        store.template.is_empty() && elements.all(|element| element.statements.is_empty())
    }

    pub(super) fn intern_key(&mut self, key: KeyCode) -> u32 {
        match self.program.keys.iter().rposition(|known| *known == key) {
            Some(at) => at as u32,
            None => {
                self.program.keys.push(key);
                self.program.keys.len() as u32 - 1
            }
        }
    }
}

/// The parts of a key, each filled up to whole words in it.
fn parts_of(key: &[u8], lengths: &[u8]) -> Option<Vec<u128>> {
    let mut at = 0;
    let mut parts = Vec::with_capacity(lengths.len());
    for len in lengths {
        let len = usize::from(*len);
        parts.push(number(key.get(at..at + len)?, false));
        at += len.next_multiple_of(4);
    }
    Some(parts)
}
