//! Matches in the form in which nft lists them, so that what means the same is the same.
use crate::prelude::*;
use fordway_filter::model::{self, BinaryOp, DataType, RelOp};

/// One way to say each thing, the one in which nft lists it.
///
/// `x == y` is `x y` unless flags or bitwise operators are about; flags that are compared with
/// `==` and `!=` are one number; any of some flags is a list; and no bit of a mask is `!`.
pub(super) fn normal(
    op: RelOp,
    seen: model::Expr,
    value: model::Expr,
) -> (RelOp, model::Expr, model::Expr) {
    let computed = matches!(seen, model::Expr::Binary { .. });
    let flags = match &seen {
        model::Expr::Binary { left, .. } => left.data_type(),
        other => other.data_type(),
    }
    .is_some_and(DataType::is_bitmask);
    let op = match op {
        RelOp::Implicit if computed => RelOp::Eq,
        RelOp::Eq if matches!(value, model::Expr::Set(_)) && !computed => RelOp::Implicit,
        RelOp::Eq if !flags && !computed => RelOp::Implicit,
        op => op,
    };
    if !flags {
        return (op, seen, value);
    }
    let value = match (op, value) {
        (RelOp::Eq | RelOp::Ne, model::Expr::List(items)) => one_number(&items),
        (RelOp::Implicit | RelOp::Not, model::Expr::Value(value)) => bit_list(value),
        (_, value) => value,
    };
    let no_bits = matches!(&value, model::Expr::Value(value) if value.as_number() == 0);
    match (op, seen, value) {
        (
            RelOp::Eq | RelOp::Ne,
            model::Expr::Binary {
                op: BinaryOp::And,
                left,
                right,
            },
            value,
        ) if no_bits => match *right {
            model::Expr::Value(mask) if mask.as_number() != 0 => {
                let op = if op == RelOp::Eq {
                    RelOp::Not
                } else {
                    RelOp::Implicit
                };
                (op, *left, bit_list(mask))
            }
            right => (op, left.binary(BinaryOp::And, right), value),
        },
        (op, seen, value) => (op, seen, value),
    }
}

/// All flags of a list in one value.
fn one_number(items: &[model::Expr]) -> model::Expr {
    let mut sum = 0;
    let mut data_type = DataType::Integer(32);
    for item in items {
        if let model::Expr::Value(value) = item {
            sum |= value.as_number();
            data_type = value.data_type;
        }
    }
    model::Expr::number(data_type, sum)
}

/// A value of more than one bit as the list of them.
pub(super) fn bit_list(value: model::Value) -> model::Expr {
    let number = value.as_number();
    if number.count_ones() < 2 {
        return model::Expr::Value(value);
    }
    let bits = (0..u128::BITS)
        .map(|bit| number & (1 << bit))
        .filter(|bit| *bit != 0)
        .map(|bit| model::Expr::number(value.data_type, bit))
        .collect();
    model::Expr::List(bits)
}

/// `ip saddr & 255.0.0.0 == 10.0.0.0` is `ip saddr 10.0.0.0/8`, as nft lists it.
pub(super) fn as_prefix(
    op: RelOp,
    seen: model::Expr,
    value: model::Expr,
) -> (RelOp, model::Expr, model::Expr) {
    if !matches!(op, RelOp::Implicit | RelOp::Eq | RelOp::Ne) {
        return (op, seen, value);
    }
    let bits = match (&seen, &value) {
        (
            model::Expr::Binary {
                op: BinaryOp::And,
                right,
                ..
            },
            model::Expr::Value(value),
        ) if matches!(value.data_type, DataType::Ipv4Addr | DataType::Ipv6Addr) => {
            match right.as_ref() {
                model::Expr::Value(mask) => {
                    let width = u32::from(mask.data_type.bits());
                    let host = width - mask.as_number().count_ones();
                    let whole = if host >= 128 {
                        u128::MAX
                    } else {
                        (1 << host) - 1
                    };
                    let is_prefix = mask.as_number() & whole == 0 && host > 0 && host < width;
                    (is_prefix && value.as_number() & whole == 0).then_some(width - host)
                }
                _ => None,
            }
        }
        _ => None,
    };
    match (bits, seen) {
        (Some(bits), model::Expr::Binary { left, .. }) => (
            if op == RelOp::Ne { op } else { RelOp::Implicit },
            *left,
            model::Expr::Prefix(Box::new(value), u8::try_from(bits).unwrap_or(u8::MAX)),
        ),
        (_, seen) => (op, seen, value),
    }
}
