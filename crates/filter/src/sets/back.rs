//! From a set in use back to the model: what elements have counted, which are over, and
//! which packets have added.

use alloc::vec::Vec;

use super::{Data, Element, ElementStatement, SetStore};
use crate::model::{
    DataType, Element as Source, ElementData, Expr, MapData, Set, SetType, Statement,
};

impl SetStore {
    pub(crate) fn write_back(&self, set: &mut Set, now_ns: u64) {
        let old = core::mem::take(&mut set.elements);
        let mut stays: Vec<Option<&Element>> = alloc::vec![None; old.len()];
        let mut added = Vec::new();
        for element in self
            .elements
            .iter()
            .flatten()
            .filter(|e| e.is_alive(now_ns))
        {
            match element.source {
                Some(at) => stays[at as usize] = Some(element),
                None => added.push(element),
            }
        }
        for (mut source, element) in old.into_iter().zip(stays) {
            let Some(element) = element else { continue };
            element.update(&mut source, now_ns);
            set.elements.push(source);
        }
        for element in added {
            let mut source = Source::new(literal(&element.key, &set.key.parts()));
            source.data = match (&element.data, &set.data) {
                (Data::Number(number), Some(MapData::Type(t) | MapData::Interval(t))) => Some(
                    ElementData::Value(literal(&[(*number, *number)], &parts(t))),
                ),
                _ => None,
            };
            if element.timeout_ns > 0 && Some(element.timeout_ns / 1_000_000) != set.timeout_ms {
                source.timeout_ms = Some(element.timeout_ns / 1_000_000);
            }
            element.update(&mut source, now_ns);
            set.elements.push(source);
        }
    }
}

fn parts(t: &SetType) -> Vec<DataType> {
    t.parts()
}

/// A key as it would be written.
fn literal(key: &[(u128, u128)], types: &[DataType]) -> Expr {
    let mut parts = key.iter().zip(types).map(|((low, high), t)| {
        let low_value = Expr::number(*t, *low);
        match low == high {
            true => low_value,
            false => Expr::Range(low_value.into(), Expr::number(*t, *high).into()),
        }
    });
    match types.len() {
        1 => parts.next().unwrap_or(Expr::Any),
        _ => Expr::Concat(parts.collect()),
    }
}

impl Element {
    /// What is left of its time, and what it has counted.
    fn update(&self, source: &mut Source, now_ns: u64) {
        if self.timeout_ns > 0 {
            source.expires_ms = Some(self.expires_ns.saturating_sub(now_ns) / 1_000_000);
        }
        source.statements = self
            .statements
            .iter()
            .map(|statement| match statement {
                ElementStatement::Counter(counter) => Statement::Counter(*counter),
                ElementStatement::Limit(bucket) => Statement::Limit(bucket.limit),
                ElementStatement::Quota(quota) => Statement::Quota(quota.quota),
                ElementStatement::ConnLimit { count, over, .. } => Statement::ConnLimit {
                    count: *count,
                    over: *over,
                },
            })
            .collect();
    }
}
