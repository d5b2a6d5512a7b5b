//! What later commands have to know of earlier ones: the types of sets, by name.
use crate::prelude::*;
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
    /// What is in it, for finding overlaps.
    pub elements: Vec<Element>,
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
            there.elements.extend(set.elements.iter().cloned());
            return;
        }
        let info = SetInfo {
            key: set.key.parts(),
            data: set.data.clone(),
            flags: set.flags,
            timeout: set.flags.timeout || set.timeout_ms.is_some(),
            auto_merge: set.auto_merge,
            // Only ranges can overlap without being the same.
            elements: if set.flags.interval {
                set.elements.clone()
            } else {
                Vec::new()
            },
        };
        self.sets.insert(key, info);
    }

    /// Keeps up with an operation.
    pub(crate) fn saw(&mut self, op: &Op) {
        match op {
            Op::AddSet { table, set, .. } => self.add_set(table, set),
            Op::AddElements(change) => {
                if let Some(set) = self.set_mut(&change.table, &change.set)
                    && set.flags.interval
                {
                    set.elements.extend(change.elements.iter().cloned());
                }
            }
            Op::DeleteElements(change) => {
                if let Some(set) = self.set_mut(&change.table, &change.set) {
                    set.elements
                        .retain(|there| !change.elements.iter().any(|gone| gone.key == there.key));
                }
            }
            Op::FlushSet { table, set } => {
                if let Some(set) = self.set_mut(table, set) {
                    set.elements.clear();
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
