//! Sets and maps with a name: their types, their elements.
use super::{
    Checked, Checker,
    elements::{DataWanted, same_twice},
    exact,
    expr::{Within, has_range},
    protocols::Protocols,
    value::Wanted,
};
use crate::prelude::*;
use crate::{
    ast::{DataSpec, ElementsVerb, Expr, ExprKind, SetSpec, TypeSpec},
    error::Fault,
    source::Span,
    symbols::TYPES,
};
use fordway_filter::model::{self, DataType, Element, MapData, ObjectKind, Set, SetType, TableId};

impl Checker<'_> {
    pub(super) fn set(&mut self, table: &TableId, spec: &SetSpec, span: Span) -> Checked<Set> {
        let Some(key) = &spec.key else {
            return Err(Fault::wrong(span, "the set has no type"));
        };
        let (key, wanted) = self.types(table, key)?;
        let (data, data_wanted) = match &spec.data {
            None if spec.is_map => return Err(Fault::wrong(span, "the map has no data type")),
            None => (None, None),
            Some(DataSpec::Verdict) => (Some(MapData::Verdict), Some(DataWanted::Verdict)),
            Some(DataSpec::Object(kind)) => {
                (Some(MapData::Object(*kind)), Some(DataWanted::Object))
            }
            Some(DataSpec::Values(types, interval)) => {
                let (types, wanted) = self.types(table, types)?;
                let data = if *interval {
                    MapData::Interval(types)
                } else {
                    MapData::Type(types)
                };
                (Some(data), Some(DataWanted::Values(wanted, *interval)))
            }
        };
        let mut flags = spec.flags;
        // A timeout for all says the flag too.
        flags.timeout |= spec.timeout_ms.is_some();
        if flags.interval && flags.dynamic && wanted.len() == 1 {
            return Err(Fault::wrong(
                span,
                "a set that packets add to holds single values: flags dynamic and interval exclude each other",
            ));
        }
        if flags.constant && (flags.timeout || flags.dynamic) {
            return Err(Fault::wrong(
                span,
                "a constant set cannot change: leave out flags constant",
            ));
        }
        let statements = self.stateful(&spec.statements)?;
        let mut set = Set {
            name: spec.name.clone(),
            handle: 0,
            key,
            data,
            flags,
            timeout_ms: spec.timeout_ms,
            gc_interval_ms: spec.gc_interval_ms,
            size: spec.size,
            policy_memory: spec.policy_memory,
            auto_merge: spec.auto_merge,
            comment: spec.comment.clone(),
            statements,
            elements: Vec::new(),
        };
        if let Some(elements) = &spec.elements {
            let about = About {
                key: &wanted,
                data: data_wanted.as_ref(),
                flags,
                auto_merge: spec.auto_merge,
                deleting: false,
            };
            set.elements = self.named_elements(elements, &about)?;
            self.no_overlap(
                table,
                &spec.name,
                &set.elements,
                elements.span,
                spec.auto_merge,
            )?;
        }
        Ok(set)
    }

    fn types(&mut self, table: &TableId, spec: &TypeSpec) -> Checked<(SetType, Vec<Wanted>)> {
        match spec {
            TypeSpec::Names(names) => {
                let mut types = Vec::new();
                for (name, span) in names {
                    types.push(by_name(name, *span)?);
                }
                let wanted = types
                    .iter()
                    .map(|data_type| Wanted::of(*data_type))
                    .collect();
                Ok((SetType::Type(types), wanted))
            }
            TypeSpec::Typeof(parts) => {
                let mut types = Vec::new();
                let mut all = Vec::new();
                for part in parts {
                    // Each part stands for itself: `typeof ip saddr . ip6 saddr` is fine.
                    let mut within = Within {
                        table,
                        protocols: Protocols::new(model::Family::Inet, self.env),
                    };
                    let expr = match &part.kind {
                        ExprKind::Leaf(leaf) => leaf.clone(),
                        _ => self.left(&mut within, part)?,
                    };
                    let wanted = self.type_of(&within, &expr, part.span)?;
                    let [one] = wanted.as_slice() else {
                        return Err(Fault::wrong(part.span, "this has no type of its own"));
                    };
                    all.push(*one);
                    types.push((expr, one.data_type));
                }
                Ok((SetType::Typeof(types), all))
            }
        }
    }

    /// `add element`, `create element`, `delete element`.
    pub(super) fn elements(
        &mut self,
        table: &TableId,
        name: &str,
        elements: &Expr,
        verb: ElementsVerb,
        span: Span,
    ) -> Checked<Vec<Element>> {
        let set = self.need_set(table, name, span)?;
        let key: Vec<Wanted> = set.key.iter().map(|part| Wanted::of(*part)).collect();
        let data = match &set.data {
            None => None,
            Some(MapData::Verdict) => Some(DataWanted::Verdict),
            Some(MapData::Object(ObjectKind::Counter | ObjectKind::Quota | ObjectKind::Limit)) => {
                Some(DataWanted::Object)
            }
            Some(MapData::Type(types)) => Some(DataWanted::Values(
                types.parts().into_iter().map(Wanted::of).collect(),
                false,
            )),
            Some(MapData::Interval(types)) => Some(DataWanted::Values(
                types.parts().into_iter().map(Wanted::of).collect(),
                true,
            )),
        };
        let deleting = verb == ElementsVerb::Delete;
        let mut flags = set.flags;
        flags.timeout |= set.timeout;
        if flags.constant {
            return Err(Fault::wrong(span, format!("set {name} is constant")));
        }
        let about = About {
            key: &key,
            data: data.as_ref(),
            flags,
            auto_merge: set.auto_merge,
            deleting,
        };
        let made = self.named_elements(elements, &about)?;
        if !deleting {
            self.no_overlap(table, name, &made, elements.span, set.auto_merge)?;
        }
        Ok(made)
    }

    fn named_elements(&mut self, elements: &Expr, about: &About) -> Checked<Vec<Element>> {
        let span = elements.span;
        let ExprKind::Set(list) = elements.resolved() else {
            return Err(Fault::wrong(span, "expected elements in braces"));
        };
        // A deletion may leave the data out.
        let bare = about.deleting && list.iter().all(|element| element.data.is_none());
        let data = if bare { None } else { about.data };
        let mut out = Vec::new();
        self.flatten(list, about.key, data, &mut out, 0)?;
        for element in &out {
            if has_range(&element.key) && !about.flags.interval {
                return Err(Fault::wrong(
                    span,
                    "ranges and prefixes need a set with flags interval",
                ));
            }
            let timed = element.timeout_ms.is_some() || element.expires_ms.is_some();
            if timed && !about.flags.timeout {
                return Err(Fault::wrong(
                    span,
                    "an element with a timeout needs a set with flags timeout",
                ));
            }
        }
        if about.auto_merge && about.key.len() == 1 {
            exact::merge(&mut out, true);
        }
        let keep = out.len();
        exact::sort(&mut out);
        same_twice(&mut out, span)?;
        debug_assert!(out.len() <= keep);
        Ok(out)
    }

    /// Ranges of one set share no value, unless it merges them.
    fn no_overlap(
        &self,
        table: &TableId,
        name: &str,
        elements: &[Element],
        span: Span,
        auto_merge: bool,
    ) -> Checked<()> {
        if auto_merge {
            return Ok(());
        }
        let overlaps = match self.scope.set(table, name) {
            Some(set) => set.overlaps(elements),
            None => exact::overlap(elements).is_some(),
        };
        if overlaps {
            return Err(Fault::wrong(
                span,
                "elements overlap; join them, or give the set auto-merge",
            ));
        }
        Ok(())
    }
}

/// What a set's elements are read against.
struct About<'a> {
    key: &'a [Wanted],
    data: Option<&'a DataWanted>,
    flags: model::SetFlags,
    auto_merge: bool,
    deleting: bool,
}

fn by_name(name: &str, span: Span) -> Checked<DataType> {
    match name {
        // Keywords where types stand.
        "day" | "hour" => Err(Fault::wrong(
            span,
            format!("'{name}' cannot stand here; write typeof meta {name}"),
        )),
        "integer" | "string" | "bitmask" => Err(Fault::wrong(
            span,
            format!("type {name} has no width; use typeof with an expression"),
        )),
        _ => TYPES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, data_type)| *data_type)
            .ok_or_else(|| Fault::wrong(span, format!("there is no type '{name}'"))),
    }
}
