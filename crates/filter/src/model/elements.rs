//! Elements coming into a set and leaving it; the cost of a list of them does not grow
//! with the square of its length, nor that of additions one by one in a row.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::hash::BuildHasher;

use super::apply::Done;
use super::{ApplyErrorKind, Element, Expr, Set};
use crate::hash::Seed;

/// Where the elements stand, by the hash of their keys.
pub(super) struct Index(BTreeMap<u64, Vec<usize>>);

impl Index {
    pub(super) fn of(elements: &[Element]) -> Index {
        let mut index = Index(BTreeMap::new());
        for (at, element) in elements.iter().enumerate() {
            index.put(&element.key, at);
        }
        index
    }

    fn put(&mut self, key: &Expr, at: usize) {
        self.0.entry(hash_of(key)).or_default().push(at);
    }

    fn find(&self, elements: &[Element], key: &Expr) -> Option<usize> {
        self.0
            .get(&hash_of(key))?
            .iter()
            .copied()
            .find(|at| elements[*at].key == *key)
    }
}

fn hash_of(key: &Expr) -> u64 {
    Seed::default().hash_one(key)
}

impl Set {
    /// An element that is there already stays as it is, unless `exclusive`. `index` is the set's.
    pub(super) fn add(&mut self, elements: &[Element], exclusive: bool, index: &mut Index) -> Done {
        for element in elements {
            if let Some(at) = index.find(&self.elements, &element.key) {
                if exclusive {
                    return Err((ApplyErrorKind::Exists, self.element_name()));
                }
                if self.elements[at].data != element.data {
                    return Err((ApplyErrorKind::Different, self.element_name()));
                }
                continue;
            }
            if self
                .size
                .is_some_and(|size| self.elements.len() as u64 >= size.into())
            {
                let name = alloc::format!("{} {}", self.word(), self.name);
                return Err((ApplyErrorKind::Full, name));
            }
            index.put(&element.key, self.elements.len());
            self.elements.push(element.clone());
        }
        Ok(())
    }

    /// All of them, or an error if one is not there.
    pub(super) fn remove(&mut self, elements: &[Element]) -> Done {
        let index = Index::of(&self.elements);
        let mut goes = alloc::vec![false; self.elements.len()];
        for element in elements {
            match index.find(&self.elements, &element.key) {
                Some(at) if !goes[at] => goes[at] = true,
                _ => return Err((ApplyErrorKind::NoSuchObject, self.element_name())),
            }
        }
        let mut goes = goes.into_iter();
        self.elements.retain(|_| !goes.next().unwrap_or(false));
        Ok(())
    }

    fn element_name(&self) -> String {
        alloc::format!("element in {} {}", self.word(), self.name)
    }
}
