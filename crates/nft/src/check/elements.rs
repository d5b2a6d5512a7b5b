//! Elements of sets and maps, in rules and by name.
use super::{Checked, Checker, exact, expr::has_range, value::Wanted};
use crate::prelude::*;
use crate::{
    ast::{Data, Element, ExprKind},
    error::Fault,
    source::Span,
};
use fordway_filter::model::{self, ElementData};

/// Sets in sets.
const DEPTH_MAX: usize = 64;

/// What a map's elements lead to.
pub(crate) enum DataWanted {
    Values(Vec<Wanted>, bool),
    Verdict,
    Object,
}

impl Checker<'_> {
    /// `{ ... }` in a rule: elements of a key's types, with data if it is a map.
    pub(super) fn anonymous(
        &mut self,
        elements: &[Element],
        key: &[Wanted],
        data: Option<&DataWanted>,
        span: Span,
    ) -> Checked<Vec<model::Element>> {
        let mut out = Vec::new();
        self.flatten(elements, key, data, &mut out, 0)?;
        if out.is_empty() {
            return Err(Fault::wrong(span, "the set is empty"));
        }
        // Bits of a set in a rule are merged and sorted, as nft does it.
        if data.is_none() && key.len() == 1 {
            let ranges = out.iter().any(|element| has_range(&element.key));
            exact::merge(&mut out, ranges);
        } else if let Some(at) = exact::overlap(&out) {
            let at = elements.get(at).map_or(span, |element| element.key.span);
            return Err(Fault::wrong(at, "this overlaps with another element"));
        }
        exact::sort(&mut out);
        same_twice(&mut out, span)?;
        Ok(out)
    }

    /// Elements as they come, sets in them taken apart.
    pub(super) fn flatten(
        &mut self,
        elements: &[Element],
        key: &[Wanted],
        data: Option<&DataWanted>,
        out: &mut Vec<model::Element>,
        depth: usize,
    ) -> Checked<()> {
        for element in elements {
            let span = element.key.span;
            if let ExprKind::Set(inner) = element.key.resolved() {
                if depth >= DEPTH_MAX {
                    return Err(Fault::wrong(span, "sets are nested too deep"));
                }
                if element.data.is_some() {
                    return Err(Fault::wrong(span, "a set cannot be the key of an element"));
                }
                self.flatten(inner, key, data, out, depth + 1)?;
                continue;
            }
            self.elements += 1;
            if self.elements > super::ELEMENTS_MAX {
                return Err(Fault::wrong(
                    span,
                    format!("more than {} elements", super::ELEMENTS_MAX),
                ));
            }
            let made = self.element(element, key, data)?;
            out.push(made);
        }
        Ok(())
    }

    fn element(
        &mut self,
        element: &Element,
        key: &[Wanted],
        data: Option<&DataWanted>,
    ) -> Checked<model::Element> {
        let span = element.key.span;
        let mut made = model::Element::new(self.key(&element.key, key)?);
        made.timeout_ms = element.timeout_ms;
        made.expires_ms = element.expires_ms;
        made.comment.clone_from(&element.comment);
        made.statements = self.stateful(&element.statements)?;
        made.data = match (&element.data, data) {
            (None, None) => None,
            (Some(_), None) => {
                return Err(Fault::wrong(span, "an element of a set has no value"));
            }
            (None, Some(_)) => {
                return Err(Fault::wrong(
                    span,
                    "an element of a map needs a value behind a colon",
                ));
            }
            (Some(given), Some(wanted)) => Some(self.data(given, wanted)?),
        };
        Ok(made)
    }

    pub(super) fn data(&mut self, given: &Data, wanted: &DataWanted) -> Checked<ElementData> {
        match (given, wanted) {
            (Data::Verdict(verdict, _), DataWanted::Verdict) => {
                Ok(ElementData::Verdict(verdict.clone()))
            }
            (Data::Verdict(_, span), _) => Err(Fault::wrong(
                *span,
                "a verdict cannot be a value of this map",
            )),
            (Data::Expr(expr), DataWanted::Verdict) => {
                Err(Fault::wrong(expr.span, "expected a verdict"))
            }
            (Data::Expr(expr), DataWanted::Object) => match expr.resolved() {
                ExprKind::Word(name) | ExprKind::Quoted(name) => {
                    Ok(ElementData::Object(name.clone()))
                }
                _ => Err(Fault::wrong(expr.span, "expected the name of an object")),
            },
            (Data::Expr(expr), DataWanted::Values(types, interval)) => {
                let value = self.key(expr, types)?;
                if !interval && has_range(&value) {
                    return Err(Fault::wrong(
                        expr.span,
                        "ranges as values need a map with 'interval' before the type of its values",
                    ));
                }
                Ok(ElementData::Value(value))
            }
        }
    }
}

/// The same key twice is one; with different values it is an error.
pub(super) fn same_twice(elements: &mut Vec<model::Element>, span: Span) -> Checked<()> {
    let mut fault = None;
    elements.dedup_by(|later, earlier| {
        if later.key != earlier.key {
            return false;
        }
        if later.data != earlier.data {
            fault = Some(Fault::wrong(
                span,
                "the same key leads to two different values",
            ));
        }
        true
    });
    fault.map_or(Ok(()), Err)
}
