//! What later commands have to know of earlier ones: the types of sets, by name.
use super::exact;
use crate::prelude::*;
use alloc::collections::BTreeMap;
use fordway_filter::model::{
    DataType, Element, Family, MapData, Op, Ruleset, Set, SetFlags, TableId,
};
use hashbrown::HashMap;

/// A set as far as its users care.
#[derive(Clone, Debug)]
pub(crate) struct SetInfo {
    /// Types of the key's parts.
    pub key: Vec<DataType>,
    pub data: Option<MapData>,
    pub flags: SetFlags,
    pub timeout: bool,
    pub auto_merge: bool,
    /// Ranges in it, first and last number, for finding overlaps.
    ranges: BTreeMap<u128, u128>,
}

impl SetInfo {
    pub(crate) fn without_elements(&self) -> SetInfo {
        SetInfo {
            key: self.key.clone(),
            data: self.data.clone(),
            ranges: BTreeMap::new(),
            ..*self
        }
    }

    /// Whether one of these shares a value with one that is there, without being the same, or
    /// with another of these.
    pub(crate) fn overlaps(&self, elements: &[Element]) -> bool {
        let touches = |(low, high): (u128, u128)| {
            // What is there lies apart, so it is the last that begins before the end, or none.
            let there = self.ranges.range(..=high).next_back();
            there.is_some_and(|(first, last)| *last >= low && (*first, *last) != (low, high))
        };
        let mut bounds = elements.iter().filter_map(|one| exact::bounds(&one.key));
        bounds.any(touches) || exact::overlap(elements).is_some()
    }

    fn keep(&mut self, elements: &[Element]) {
        // Only ranges can overlap without being the same.
        if self.flags.interval {
            self.ranges
                .extend(elements.iter().filter_map(|one| exact::bounds(&one.key)));
        }
    }

    fn forget(&mut self, elements: &[Element]) {
        for (low, high) in elements.iter().filter_map(|one| exact::bounds(&one.key)) {
            if self.ranges.get(&low) == Some(&high) {
                self.ranges.remove(&low);
            }
        }
    }
}

#[derive(Default)]
pub(crate) struct Scope {
    sets: HashMap<(Family, String, String), SetInfo>,
}

impl Scope {
    pub(crate) fn of(base: &Ruleset) -> Scope {
        let mut scope = Scope::default();
        for table in &base.tables {
            let id = TableId {
                family: table.family,
                name: table.name.clone(),
            };
            for set in &table.sets {
                scope.add_set(&id, set);
            }
        }
        scope
    }

    pub(crate) fn set(&self, table: &TableId, name: &str) -> Option<&SetInfo> {
        self.sets
            .get(&(table.family, table.name.clone(), name.to_string()))
    }

    fn add_set(&mut self, table: &TableId, set: &Set) {
        let key = (table.family, table.name.clone(), set.name.clone());
        if let Some(there) = self.sets.get_mut(&key) {
            there.keep(&set.elements);
            return;
        }
        let mut info = SetInfo {
            key: set.key.parts(),
            data: set.data.clone(),
            flags: set.flags,
            timeout: set.flags.timeout || set.timeout_ms.is_some(),
            auto_merge: set.auto_merge,
            ranges: BTreeMap::new(),
        };
        info.keep(&set.elements);
        self.sets.insert(key, info);
    }

    /// Keeps up with an operation.
    pub(crate) fn saw(&mut self, op: &Op) {
        match op {
            Op::AddSet { table, set, .. } => self.add_set(table, set),
            Op::AddElements(change) => {
                if let Some(set) = self.set_mut(&change.table, &change.set) {
                    set.keep(&change.elements);
                }
            }
            Op::DeleteElements(change) => {
                if let Some(set) = self.set_mut(&change.table, &change.set) {
                    set.forget(&change.elements);
                }
            }
            Op::FlushSet { table, set } => {
                if let Some(set) = self.set_mut(table, set) {
                    set.ranges.clear();
                }
            }
            Op::DeleteSet { table, set, .. } => {
                self.sets
                    .remove(&(table.family, table.name.clone(), set.clone()));
            }
            Op::DeleteTable { table, .. } => self
                .sets
                .retain(|(family, name, _), _| *family != table.family || *name != table.name),
            Op::FlushRuleset { family } => self
                .sets
                .retain(|(of, ..), _| family.is_some_and(|family| family != *of)),
            _ => {}
        }
    }

    fn set_mut(&mut self, table: &TableId, name: &str) -> Option<&mut SetInfo> {
        self.sets
            .get_mut(&(table.family, table.name.clone(), name.to_string()))
    }
}
