//! Expressions: what a packet is looked at for, what it is compared with, what is given.
use super::{
    Checked, Checker,
    elements::DataWanted,
    protocols::{Protocols, ct_family},
    value::{Wanted, literal},
};
use crate::prelude::*;
use crate::{
    ast::{Expr, ExprKind, needs_direction},
    error::Fault,
    source::Span,
    symbols::type_name,
};
use fordway_filter::model::{
    self, BinaryOp, CtKey, DataType, Family, MapData, MetaKey, Protocol, SetRef, TableId, Value,
};

/// What a rule's expressions are read against.
pub(crate) struct Within<'a> {
    pub table: &'a TableId,
    pub protocols: Protocols,
}

impl Checker<'_> {
    /// What is read from the packet: left of a match, keys.
    pub(super) fn left(&mut self, within: &mut Within, expr: &Expr) -> Checked<model::Expr> {
        match &expr.kind {
            ExprKind::Leaf(leaf) => self.leaf(within, leaf, expr.span),
            ExprKind::Concat(parts) => {
                let parts = parts
                    .iter()
                    .map(|part| self.left(within, part))
                    .collect::<Checked<_>>()?;
                Ok(model::Expr::Concat(parts))
            }
            ExprKind::Binary(op, left, right) => {
                let left = self.left(within, left)?;
                let wanted = self.type_of(within, &left, expr.span)?;
                let [wanted] = wanted.as_slice() else {
                    return Err(Fault::wrong(expr.span, "bits of joined values"));
                };
                if wanted.data_type.is_text() {
                    return Err(Fault::wrong(
                        expr.span,
                        "bitwise operators need numbers, not texts",
                    ));
                }
                let right = if matches!(op, BinaryOp::ShiftLeft | BinaryOp::ShiftRight) {
                    self.shift(right, wanted.data_type)?
                } else {
                    self.mask(right, *wanted)?
                };
                Ok(left.binary(*op, right))
            }
            ExprKind::Map(key, map) => {
                let ExprKind::SetRef(name) = map.resolved() else {
                    return Err(Fault::wrong(
                        map.span,
                        "only a map with a name says of which type its values are",
                    ));
                };
                let key = self.left(within, key)?;
                let map = self.named_map(within, &key, name, map.span)?;
                Ok(model::Expr::Map {
                    key: Box::new(key),
                    map,
                })
            }
            ExprKind::Jhash {
                input,
                modulus,
                seed,
                offset,
            } => {
                let input = Box::new(self.left(within, input)?);
                Ok(model::Expr::Jhash {
                    input,
                    modulus: *modulus,
                    seed: *seed,
                    offset: *offset,
                })
            }
            _ => Err(Fault::wrong(
                expr.span,
                "expected a field of the packet or a statement, not a value",
            )),
        }
    }

    /// Flags joined by `|`, or by commas, or a number.
    fn mask(&mut self, expr: &Expr, wanted: Wanted) -> Checked<model::Expr> {
        if let ExprKind::List(items) = expr.resolved() {
            let mut sum = 0;
            for item in items {
                sum |= self.number(item, wanted)?;
            }
            return Ok(model::Expr::number(wanted.data_type, sum));
        }
        let sum = self.number(expr, wanted)?;
        Ok(model::Expr::number(wanted.data_type, sum))
    }

    fn shift(&mut self, expr: &Expr, data_type: DataType) -> Checked<model::Expr> {
        match expr.resolved() {
            ExprKind::Number(bits) if *bits < u64::from(data_type.bits()) => {
                Ok(model::Expr::number(DataType::Integer(32), (*bits).into()))
            }
            _ => Err(Fault::wrong(
                expr.span,
                format!("a shift by 0 to {} bits", data_type.bits() - 1),
            )),
        }
    }

    /// A constant, worked out.
    fn number(&mut self, expr: &Expr, wanted: Wanted) -> Checked<u128> {
        if let ExprKind::Binary(op, left, right) = expr.resolved() {
            let left = self.number(left, wanted)?;
            if matches!(op, BinaryOp::ShiftLeft | BinaryOp::ShiftRight) {
                let bits = self.number(right, Wanted::of(DataType::Integer(32)))?;
                let bits = u32::try_from(bits).unwrap_or(u32::MAX);
                let shifted = if *op == BinaryOp::ShiftLeft {
                    left.checked_shl(bits)
                } else {
                    left.checked_shr(bits)
                };
                let shifted = shifted.unwrap_or(0);
                let width = wanted.data_type.bits();
                if width < 128 && shifted >> width != 0 {
                    return Err(Fault::wrong(expr.span, "the number has too many bits"));
                }
                return Ok(shifted);
            }
            let right = self.number(right, wanted)?;
            return Ok(match op {
                BinaryOp::And => left & right,
                BinaryOp::Or => left | right,
                _ => left ^ right,
            });
        }
        if wanted.data_type.is_text() {
            return Err(Fault::wrong(expr.span, "expected a number, not a text"));
        }
        Ok(literal(self.env, expr, wanted)?.as_number())
    }

    fn leaf(
        &mut self,
        within: &mut Within,
        leaf: &model::Expr,
        span: Span,
    ) -> Checked<model::Expr> {
        match leaf {
            model::Expr::Payload(field) => within.protocols.uses(field.def().protocol, span)?,
            model::Expr::Exthdr(field) | model::Expr::ExthdrExists(field) => {
                if field.def().kind.is_tcp_option() {
                    within.protocols.uses(Protocol::Tcp, span)?;
                } else {
                    within.protocols.uses_exthdr(span)?;
                }
            }
            model::Expr::Meta(MetaKey::Nfproto) if within.protocols.family() != Family::Inet => {
                return Err(Fault::wrong(
                    span,
                    "meta nfproto tells something only in family inet",
                ));
            }
            model::Expr::Meta(MetaKey::Ibrname | MetaKey::Obrname)
                if within.protocols.family() != Family::Bridge =>
            {
                return Err(Fault::wrong(
                    span,
                    "the name of a bridge is known in family bridge only",
                ));
            }
            model::Expr::Ct { key, direction } => {
                return self.ct(within, *key, *direction, span);
            }
            _ => {}
        }
        if matches!(leaf, model::Expr::Fib { .. }) && within.protocols.family() == Family::Arp {
            return Err(Fault::wrong(span, "fib is not there in family arp"));
        }
        Ok(leaf.clone())
    }

    fn ct(
        &mut self,
        within: &mut Within,
        key: CtKey,
        direction: Option<model::CtDirection>,
        span: Span,
    ) -> Checked<model::Expr> {
        let family = within.protocols.family();
        if matches!(family, Family::Arp | Family::Netdev) {
            return Err(Fault::wrong(
                span,
                format!("connections are not tracked in family {family}"),
            ));
        }
        if direction.is_none() && needs_direction(key) {
            return Err(Fault::wrong(
                span,
                format!("write ct original {0} or ct reply {0}", key.name()),
            ));
        }
        let key = match key {
            CtKey::Saddr | CtKey::Daddr => {
                let ip = ct_family(&within.protocols, span)? == Protocol::Ip;
                match (key == CtKey::Saddr, ip) {
                    (true, true) => CtKey::IpSaddr,
                    (true, false) => CtKey::Ip6Saddr,
                    (false, true) => CtKey::IpDaddr,
                    (false, false) => CtKey::Ip6Daddr,
                }
            }
            CtKey::IpSaddr | CtKey::IpDaddr => {
                self.ct_network(within, Protocol::Ip, span)?;
                key
            }
            CtKey::Ip6Saddr | CtKey::Ip6Daddr => {
                self.ct_network(within, Protocol::Ip6, span)?;
                key
            }
            CtKey::ProtoSrc | CtKey::ProtoDst if within.protocols.transport().is_none() => {
                return Err(Fault::wrong(
                    span,
                    "ports of which protocol? write meta l4proto or ct protocol before it",
                ));
            }
            other => other,
        };
        // These are the same in both directions, and the kernel keeps no direction for them.
        let direction = match key {
            CtKey::L3proto | CtKey::Protocol => None,
            _ => direction,
        };
        Ok(model::Expr::Ct { key, direction })
    }

    fn ct_network(&self, within: &Within, asked: Protocol, span: Span) -> Checked<()> {
        match within.protocols.network() {
            Some(known) if known != asked => Err(Fault::wrong(
                span,
                format!(
                    "the rule is about {} already, not {}",
                    known.name(),
                    asked.name()
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The types that an expression yields; more than one for joined values.
    pub(super) fn type_of(
        &self,
        within: &Within,
        expr: &model::Expr,
        span: Span,
    ) -> Checked<Vec<Wanted>> {
        match expr {
            model::Expr::Concat(parts) => {
                let mut out = Vec::new();
                for part in parts {
                    out.extend(self.type_of(within, part, span)?);
                }
                Ok(out)
            }
            model::Expr::Map {
                map: SetRef::Named(name),
                ..
            } => match self.scope.set(within.table, name).map(|set| &set.data) {
                Some(Some(MapData::Type(types) | MapData::Interval(types))) => {
                    Ok(types.parts().into_iter().map(Wanted::of).collect())
                }
                _ => Err(Fault::wrong(span, format!("map {name} holds no values"))),
            },
            // A question, or an interface.
            model::Expr::Binary { left, .. } => self.type_of(within, left, span),
            other => match other.data_type() {
                Some(data_type) => Ok(vec![Wanted::beside(other, data_type)]),
                None => Err(Fault::wrong(span, "this has no type")),
            },
        }
    }

    /// A constant of one type: a value, range or prefix.
    pub(super) fn constant(&mut self, expr: &Expr, wanted: Wanted) -> Checked<model::Expr> {
        match expr.resolved() {
            ExprKind::Range(low, high) => self.range(low, high, wanted, expr.span),
            ExprKind::Prefix(value, bits) => self.prefix(value, *bits, wanted, expr.span),
            ExprKind::Binary(..) => Ok(model::Expr::number(
                wanted.data_type,
                self.number(expr, wanted)?,
            )),
            ExprKind::Concat(_) => Err(Fault::wrong(expr.span, "one value is expected here")),
            ExprKind::Set(_) | ExprKind::SetRef(_) => {
                Err(Fault::wrong(expr.span, "a set cannot stand here"))
            }
            ExprKind::List(items) if wanted.data_type.is_bitmask() => {
                let mut sum = 0;
                for item in items {
                    sum |= self.number(item, wanted)?;
                }
                Ok(model::Expr::number(wanted.data_type, sum))
            }
            ExprKind::List(_) => Err(Fault::wrong(
                expr.span,
                format!(
                    "values of type {} are not flags: put them in braces",
                    type_name(wanted.data_type)
                ),
            )),
            ExprKind::Star => Ok(model::Expr::Any),
            // The place is that of the use.
            kind => {
                let at_use = Expr::new(kind.clone(), expr.span);
                literal(self.env, &at_use, wanted).map(model::Expr::Value)
            }
        }
    }

    fn range(
        &mut self,
        low: &Expr,
        high: &Expr,
        wanted: Wanted,
        span: Span,
    ) -> Checked<model::Expr> {
        let low = literal(self.env, low, wanted)?;
        let high = literal(self.env, high, wanted)?;
        if low.is_text_prefix() || high.is_text_prefix() {
            return Err(Fault::wrong(span, "an asterisk cannot stand in a range"));
        }
        // The hours of a day go round.
        let round = wanted.data_type == DataType::Hour;
        if low.as_number() > high.as_number() && !round {
            return Err(Fault::wrong(span, "the range ends before it begins"));
        }
        Ok(model::Expr::Range(
            Box::new(model::Expr::Value(low)),
            Box::new(model::Expr::Value(high)),
        ))
    }

    fn prefix(
        &mut self,
        value: &Expr,
        bits: u64,
        wanted: Wanted,
        span: Span,
    ) -> Checked<model::Expr> {
        let data_type = wanted.data_type;
        let width = u64::from(data_type.bits());
        if data_type.is_text() || data_type == DataType::Boolean {
            return Err(Fault::wrong(span, "a prefix needs an address or a number"));
        }
        if bits > width {
            return Err(Fault::wrong(
                span,
                format!(
                    "a prefix of {bits} bits is too long for type {}: it has {width}",
                    type_name(data_type)
                ),
            ));
        }
        let number = literal(self.env, value, wanted)?.as_number();
        let host = width - bits;
        let mask = if host >= 128 {
            u128::MAX
        } else {
            (1 << host) - 1
        };
        let kept = Value::number(data_type, number & !mask);
        let bits = u8::try_from(bits).unwrap_or(u8::MAX);
        Ok(if host == 0 {
            model::Expr::Value(kept)
        } else {
            model::Expr::Prefix(Box::new(model::Expr::Value(kept)), bits)
        })
    }

    /// Constants for each part of a key, catch-all included.
    pub(super) fn key(&mut self, expr: &Expr, wanted: &[Wanted]) -> Checked<model::Expr> {
        if let ExprKind::Star = expr.resolved() {
            return Ok(model::Expr::Any);
        }
        if let [wanted] = wanted {
            return self.constant(expr, *wanted);
        }
        let parts: Vec<&Expr> = flat_parts(expr);
        if parts.len() != wanted.len() {
            return Err(Fault::wrong(
                expr.span,
                format!(
                    "{} values are expected, joined with dots; here are {}",
                    wanted.len(),
                    parts.len()
                ),
            ));
        }
        let parts = parts
            .into_iter()
            .zip(wanted)
            .map(|(part, wanted)| self.constant(part, *wanted))
            .collect::<Checked<_>>()?;
        Ok(model::Expr::Concat(parts))
    }

    /// A map by name, with its key's type checked.
    pub(super) fn named_map(
        &mut self,
        within: &Within,
        key: &model::Expr,
        name: &str,
        span: Span,
    ) -> Checked<SetRef> {
        let types = self.type_of(within, key, span)?;
        let set = self.need_set(within.table, name, span)?;
        if set.data.is_none() {
            return Err(Fault::wrong(span, format!("{name} is a set, not a map")));
        }
        fits(&types, &set.key, name, span)?;
        Ok(SetRef::Named(name.to_string()))
    }

    pub(super) fn need_set(
        &self,
        table: &TableId,
        name: &str,
        span: Span,
    ) -> Checked<super::scope::SetInfo> {
        // Without its elements: they may be many.
        match self.scope.set(table, name) {
            Some(set) => Ok(set.without_elements()),
            None => Err(Fault::wrong(
                span,
                format!(
                    "there is no set {name} in table {} {}",
                    table.family, table.name
                ),
            )),
        }
    }

    /// What a statement is given, of an expected type.
    pub(super) fn given(
        &mut self,
        within: &mut Within,
        expr: &Expr,
        wanted: &[Wanted],
    ) -> Checked<model::Expr> {
        match expr.resolved() {
            ExprKind::Map(key, map) => {
                let key = self.left(within, key)?;
                let types = self.type_of(within, &key, expr.span)?;
                let map = match map.resolved() {
                    ExprKind::SetRef(name) => {
                        let found = self.named_map(within, &key, name, map.span)?;
                        self.map_yields(within, name, wanted, map.span)?;
                        found
                    }
                    ExprKind::Set(elements) => {
                        let data = DataWanted::Values(wanted.to_vec(), true);
                        SetRef::Anonymous(self.anonymous(
                            elements,
                            &types,
                            Some(&data),
                            map.span,
                        )?)
                    }
                    _ => return Err(Fault::wrong(map.span, "expected a map")),
                };
                Ok(model::Expr::Map {
                    key: Box::new(key),
                    map,
                })
            }
            ExprKind::Binary(op, left, right) if has_leaf(expr) => {
                let [one] = wanted else {
                    return Err(Fault::wrong(expr.span, "one value is expected here"));
                };
                let left = self.given(within, left, wanted)?;
                let right = if matches!(op, BinaryOp::ShiftLeft | BinaryOp::ShiftRight) {
                    self.shift(right, one.data_type)?
                } else if has_leaf(right) {
                    return Err(Fault::wrong(
                        right.span,
                        "the right side of a bitwise operator is a value",
                    ));
                } else {
                    self.mask(right, *one)?
                };
                Ok(left.binary(*op, right))
            }
            ExprKind::Leaf(_) | ExprKind::Jhash { .. } => {
                let made = self.left(within, expr)?;
                let found = self.type_of(within, &made, expr.span)?;
                match (found.as_slice(), wanted) {
                    ([found], [wanted]) => same_kind(found.data_type, wanted.data_type, expr.span)?,
                    _ => return Err(Fault::wrong(expr.span, "one value is expected here")),
                }
                Ok(made)
            }
            ExprKind::Concat(_) if has_leaf(expr) => Err(Fault::wrong(
                expr.span,
                "joined fields are the key of a map: write 'map' and the map behind them",
            )),
            _ => self.key(expr, wanted),
        }
    }

    fn map_yields(
        &self,
        within: &Within,
        name: &str,
        wanted: &[Wanted],
        span: Span,
    ) -> Checked<()> {
        let data = self
            .scope
            .set(within.table, name)
            .and_then(|set| set.data.as_ref());
        let Some(MapData::Type(types) | MapData::Interval(types)) = data else {
            return Err(Fault::wrong(span, format!("map {name} holds no values")));
        };
        let types = types.parts();
        if types.len() != wanted.len() {
            return Err(Fault::wrong(
                span,
                format!("map {name} holds values of another type"),
            ));
        }
        for (found, wanted) in types.iter().zip(wanted) {
            same_kind(*found, wanted.data_type, span)?;
        }
        Ok(())
    }
}

/// Whether a value of one type may go where another is wanted; plain numbers go anywhere.
pub(super) fn same_kind(found: DataType, wanted: DataType, span: Span) -> Checked<()> {
    let fits = match (found, wanted) {
        (DataType::Integer(_), _) => true,
        (found, wanted) => found == wanted,
    };
    if fits {
        Ok(())
    } else {
        Err(Fault::wrong(
            span,
            format!(
                "expected type {}, this is of type {}",
                type_name(wanted),
                type_name(found)
            ),
        ))
    }
}

/// Whether a key's types are those of a set.
pub(super) fn fits(found: &[Wanted], set: &[DataType], name: &str, span: Span) -> Checked<()> {
    let same = found.len() == set.len()
        && found.iter().zip(set).all(|(found, set)| {
            found.data_type == *set
                || matches!(
                    (found.data_type, set),
                    (DataType::Integer(_), DataType::Integer(_))
                )
        });
    if same {
        return Ok(());
    }
    let told = |types: Vec<DataType>| {
        let names: Vec<&str> = types.into_iter().map(type_name).collect();
        names.join(" . ")
    };
    Err(Fault::wrong(
        span,
        format!(
            "{name} has keys of type {}, but this is of type {}",
            told(set.to_vec()),
            told(found.iter().map(|wanted| wanted.data_type).collect())
        ),
    ))
}

/// Parts joined with dots, those of variables too.
fn flat_parts(expr: &Expr) -> Vec<&Expr> {
    let mut expr = expr;
    while let ExprKind::Variable(inner) = &expr.kind {
        expr = inner;
    }
    match &expr.kind {
        ExprKind::Concat(parts) => parts.iter().flat_map(flat_parts).collect(),
        _ => vec![expr],
    }
}

/// Something is read from the packet in it.
pub(super) fn has_leaf(expr: &Expr) -> bool {
    match expr.resolved() {
        ExprKind::Leaf(_) | ExprKind::Jhash { .. } | ExprKind::Map(..) => true,
        ExprKind::Binary(_, left, right) => has_leaf(left) || has_leaf(right),
        ExprKind::Concat(parts) => parts.iter().any(has_leaf),
        _ => false,
    }
}

/// More than one value may be meant.
pub(super) fn has_range(expr: &model::Expr) -> bool {
    match expr {
        model::Expr::Range(..) | model::Expr::Prefix(..) => true,
        model::Expr::Value(value) => value.is_text_prefix(),
        model::Expr::Concat(parts) => parts.iter().any(has_range),
        _ => false,
    }
}
