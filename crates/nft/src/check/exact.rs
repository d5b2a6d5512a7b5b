//! Keys as ranges of numbers: overlaps, order, merging.
use crate::prelude::*;
use fordway_filter::model::{Element, Expr, Value};

/// First and last number of a key that is no concatenation.
pub(crate) fn bounds(key: &Expr) -> Option<(u128, u128)> {
    match key {
        Expr::Value(value) if value.is_text_prefix() => {
            // `eth*`: everything that begins so; texts are compared from the left.
            let len = value.bytes().len();
            let mut low = [0; 16];
            let mut high = [0xff; 16];
            low[..len].copy_from_slice(value.bytes());
            high[..len].copy_from_slice(value.bytes());
            Some((u128::from_be_bytes(low), u128::from_be_bytes(high)))
        }
        Expr::Value(value) => Some((value.as_number(), value.as_number())),
        Expr::Range(low, high) => Some((bounds(low)?.0, bounds(high)?.1)),
        Expr::Prefix(value, bits) => {
            let Expr::Value(value) = value.as_ref() else {
                return None;
            };
            let host = u32::from(value.data_type.bits()).checked_sub(u32::from(*bits))?;
            let mask = if host >= 128 {
                u128::MAX
            } else {
                (1 << host) - 1
            };
            Some((value.as_number() & !mask, value.as_number() | mask))
        }
        _ => None,
    }
}

/// What elements are sorted by: the numbers of all parts, catch-all last.
pub(crate) fn order(key: &Expr) -> (bool, Vec<(u128, u128)>) {
    match key {
        Expr::Any => (true, Vec::new()),
        Expr::Concat(parts) => (
            false,
            parts
                .iter()
                .map(|part| bounds(part).unwrap_or((0, u128::MAX)))
                .collect(),
        ),
        other => (false, vec![bounds(other).unwrap_or((0, u128::MAX))]),
    }
}

/// Whether the order of elements means nothing. Ranges in concatenations may overlap, and then
/// the kernel goes by the order in which they came.
pub(crate) fn any_order(elements: &[Element]) -> bool {
    !elements.iter().any(|element| match &element.key {
        Expr::Concat(parts) => parts
            .iter()
            .any(|part| bounds(part).is_none_or(|(low, high)| low != high)),
        _ => false,
    })
}

/// In order, where the order means nothing.
pub(crate) fn sort(elements: &mut [Element]) {
    if any_order(elements) {
        elements.sort_by_key(|element| order(&element.key));
    }
}

/// The index of an element that shares a value with an earlier one without being the same.
pub(crate) fn overlap(elements: &[Element]) -> Option<usize> {
    let mut seen: Vec<(u128, u128, usize)> = Vec::new();
    for (at, element) in elements.iter().enumerate() {
        if let Some((low, high)) = bounds(&element.key) {
            seen.push((low, high, at));
        }
    }
    seen.sort_unstable();
    let mut widest: Option<(u128, u128, usize)> = None;
    for (low, high, at) in seen {
        if let Some((last_low, last_high, last_at)) = widest
            && low <= last_high
            && (low, high) != (last_low, last_high)
        {
            return Some(at.max(last_at));
        }
        if widest.is_none_or(|(_, last_high, _)| high > last_high) {
            widest = Some((low, high, at));
        }
    }
    None
}

/// Joins what overlaps or touches; elements with anything but a key stay as they are.
pub(crate) fn merge(elements: &mut Vec<Element>, touching: bool) {
    let plain = |element: &Element| {
        element.data.is_none()
            && element.timeout_ms.is_none()
            && element.comment.is_none()
            && element.statements.is_empty()
    };
    if !elements.iter().all(plain) || elements.iter().any(|e| bounds(&e.key).is_none()) {
        return;
    }
    let mut merged: Vec<(Element, u128, u128)> = Vec::new();
    let mut sorted: Vec<Element> = core::mem::take(elements);
    sorted.sort_by_key(|element| order(&element.key));
    for element in sorted {
        let Some((low, high)) = bounds(&element.key) else {
            continue;
        };
        if let Some((last, last_low, last_high)) = merged.last_mut()
            && (low <= *last_high || (touching && *last_high != u128::MAX && low == *last_high + 1))
        {
            if high > *last_high {
                if let Some(key) = range(&last.key, *last_low, high) {
                    last.key = key;
                }
                *last_high = high;
            }
            continue;
        }
        merged.push((element, low, high));
    }
    elements.extend(merged.into_iter().map(|(element, ..)| element));
}

/// From one number to another, in the type of a key.
fn range(like: &Expr, low: u128, high: u128) -> Option<Expr> {
    let data_type = like.data_type()?;
    if data_type.is_text() {
        return None;
    }
    let bits = u32::from(data_type.bits());
    let size = high - low;
    // A whole block is written as a prefix where addresses are.
    if size.wrapping_add(1).is_power_of_two()
        && low & size == 0
        && matches!(
            data_type,
            fordway_filter::model::DataType::Ipv4Addr | fordway_filter::model::DataType::Ipv6Addr
        )
        && size != 0
    {
        let prefix = bits - (size.count_ones());
        return Some(Expr::Prefix(
            Box::new(Expr::number(data_type, low)),
            u8::try_from(prefix).ok()?,
        ));
    }
    Some(Expr::Range(
        Box::new(Expr::Value(Value::number(data_type, low))),
        Box::new(Expr::Value(Value::number(data_type, high))),
    ))
}
