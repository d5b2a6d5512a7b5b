//! Statements of a rule, from left to right.
use super::{
    Checked, Checker,
    elements::DataWanted,
    expr::{Within, has_leaf, has_range},
    normal::{as_prefix, bit_list, normal},
    protocols::Protocols,
    value::{Wanted, literal},
};
use crate::prelude::*;
use crate::{
    ast::{self, Expr, ExprKind, RejectWith, Statement, StatementKind},
    error::Fault,
    source::Span,
    support::Refused,
    symbols::type_name,
};
use fordway_filter::model::{
    self, CtKey, DataType, Family, FibResult, Limit, Log, Mangle, MapData, MetaKey, ObjectKind,
    PayloadBase, Protocol, RejectKind, RelOp, Rule, SetRef, SetUpdate, TableId, Verdict,
};

impl Checker<'_> {
    pub(super) fn rule(&mut self, table: &TableId, rule: &ast::Rule) -> Checked<Rule> {
        let mut within = Within {
            table,
            protocols: Protocols::new(table.family, self.env),
        };
        let mut statements: Vec<model::Statement> = Vec::new();
        for statement in &rule.statements {
            if let Some(model::Statement::Verdict(verdict)) = statements.last()
                && *verdict != Verdict::Continue
            {
                return Err(Fault::wrong(
                    statement.span,
                    "nothing behind a verdict is ever reached",
                ));
            }
            if matches!(
                statements.last(),
                Some(model::Statement::Reject(_) | model::Statement::Nat(_))
            ) {
                return Err(Fault::wrong(
                    statement.span,
                    "the statement before this one ends the rule",
                ));
            }
            statements.push(self.statement(&mut within, statement)?);
        }
        Ok(Rule {
            handle: 0,
            comment: rule.comment.clone(),
            statements,
        })
    }

    fn statement(
        &mut self,
        within: &mut Within,
        statement: &Statement,
    ) -> Checked<model::Statement> {
        let span = statement.span;
        Ok(match &statement.kind {
            StatementKind::Match { op, left, right } => self.relation(within, *op, left, right)?,
            StatementKind::Verdict(verdict) => model::Statement::Verdict(verdict.clone()),
            StatementKind::VerdictMap { key, map } => self.verdict_map(within, key, map)?,
            StatementKind::Reject(with) => {
                model::Statement::Reject(self.reject(within, with, span)?)
            }
            StatementKind::Object(kind, name) => self.object(within, *kind, name)?,
            StatementKind::Log(log) => {
                check_log(log, span)?;
                let mut log = log.clone();
                // warn, the level that is meant where none is said.
                log.level = log.level.filter(|level| *level != 4);
                model::Statement::Log(log)
            }
            StatementKind::Nat(nat) => model::Statement::Nat(self.nat(within, nat, span)?),
            StatementKind::SetUpdate { op, set, element } => {
                self.set_update(within, *op, set, element, span)?
            }
            StatementKind::Mangle { target, value } => self.mangle(within, target, value, span)?,
            StatementKind::Notrack => {
                if matches!(within.table.family, Family::Netdev) {
                    return Err(Fault::wrong(span, "connections are not tracked here"));
                }
                model::Statement::Notrack
            }
            StatementKind::Counter(_)
            | StatementKind::Limit(_)
            | StatementKind::Quota(_)
            | StatementKind::ConnLimit { .. } => {
                if matches!(statement.kind, StatementKind::ConnLimit { .. })
                    && matches!(within.table.family, Family::Arp | Family::Netdev)
                {
                    return Err(Fault::wrong(span, "connections are not tracked here"));
                }
                stateful(statement)?
            }
        })
    }

    /// Statements that elements keep.
    pub(super) fn stateful(&mut self, statements: &[Statement]) -> Checked<Vec<model::Statement>> {
        statements.iter().map(stateful).collect()
    }

    fn relation(
        &mut self,
        within: &mut Within,
        op: RelOp,
        left: &Expr,
        right: &Expr,
    ) -> Checked<model::Statement> {
        let span = left.span.to(right.span);
        let seen = self.left(within, left)?;
        let wanted = self.type_of(within, &seen, left.span)?;
        let wanted = yes_or_no(&seen, wanted, right);
        let value = match right.resolved() {
            ExprKind::Set(elements) => {
                if matches!(op, RelOp::Not) {
                    return Err(Fault::wrong(right.span, "'!' takes flags, not a set"));
                }
                let elements = self.anonymous(elements, &wanted, None, right.span)?;
                only_element(elements, &wanted)
            }
            ExprKind::SetRef(name) => {
                let set = self.need_set(within.table, name, right.span)?;
                if set.data.is_some() {
                    return Err(Fault::refused(right.span, Refused::MapAsSet));
                }
                super::expr::fits(&wanted, &set.key, name, right.span)?;
                model::Expr::Set(SetRef::Named(name.clone()))
            }
            ExprKind::List(items) => {
                let [one] = wanted.as_slice() else {
                    return Err(Fault::wrong(right.span, "one value is expected here"));
                };
                self.list(items, *one, right.span)?
            }
            _ if wanted.len() > 1 => {
                return Err(Fault::wrong(
                    right.span,
                    "joined values are compared with sets: put them in braces",
                ));
            }
            _ => self.key(right, &wanted)?,
        };
        if op == RelOp::Not && matches!(seen, model::Expr::Binary { .. }) {
            return Err(Fault::wrong(
                span,
                "'!' takes flags as they are, without bitwise operators",
            ));
        }
        self.check_relation(op, &wanted, &value, span, right.span)?;
        let (op, seen, value) = normal(op, seen, value);
        let (op, seen, value) = as_prefix(op, seen, value);
        within.protocols.learn(op, &seen, &value);
        Ok(model::Statement::Match {
            op,
            left: seen,
            right: value,
        })
    }

    /// `syn,ack`: flags only, in the order of their bits; a number in it may stand for several.
    fn list(&mut self, items: &[Expr], wanted: Wanted, span: Span) -> Checked<model::Expr> {
        if !wanted.data_type.is_bitmask() {
            return Err(Fault::wrong(
                span,
                format!(
                    "values of type {} are not flags: put them in braces",
                    type_name(wanted.data_type)
                ),
            ));
        }
        let mut values = items
            .iter()
            .map(|item| literal(self.env, item, wanted))
            .collect::<Checked<Vec<_>>>()?;
        values.sort_by_key(model::Value::as_number);
        values.dedup();
        if let [one] = values.as_slice() {
            return Ok(model::Expr::Value(*one));
        }
        let bits = values.into_iter().flat_map(|value| match bit_list(value) {
            model::Expr::List(bits) => bits,
            bit => vec![bit],
        });
        let mut flags: Vec<model::Expr> = bits.collect();
        flags.sort_by_key(|flag| match flag {
            model::Expr::Value(value) => value.as_number(),
            _ => 0,
        });
        flags.dedup();
        Ok(model::Expr::List(flags))
    }

    fn check_relation(
        &self,
        op: RelOp,
        wanted: &[Wanted],
        value: &model::Expr,
        span: Span,
        right: Span,
    ) -> Checked<()> {
        match op {
            RelOp::Lt | RelOp::Gt | RelOp::Le | RelOp::Ge => {
                let what = match value {
                    model::Expr::Range(..) => "a range",
                    model::Expr::Prefix(..) => "a prefix",
                    model::Expr::Set(_) => "a set",
                    model::Expr::List(_) => "a list of flags",
                    _ => return Ok(()),
                };
                Err(Fault::wrong(
                    right,
                    format!("{what} is neither less nor greater"),
                ))
            }
            RelOp::Not => {
                let flags = wanted.len() == 1
                    && wanted[0].data_type.is_bitmask()
                    && matches!(value, model::Expr::Value(_) | model::Expr::List(_));
                if flags {
                    Ok(())
                } else {
                    Err(Fault::wrong(span, "'!' takes flags; write != instead"))
                }
            }
            RelOp::Implicit | RelOp::Eq | RelOp::Ne => Ok(()),
        }
    }

    fn verdict_map(
        &mut self,
        within: &mut Within,
        key: &Expr,
        map: &Expr,
    ) -> Checked<model::Statement> {
        let (key, map) = self.keyed(within, key, map, MapData::Verdict)?;
        Ok(model::Statement::VerdictMap { key, map })
    }

    fn object(
        &mut self,
        within: &mut Within,
        kind: ObjectKind,
        name: &Expr,
    ) -> Checked<model::Statement> {
        match name.resolved() {
            ExprKind::Word(name) | ExprKind::Quoted(name) => Ok(model::Statement::Object {
                kind,
                name: name.clone(),
            }),
            ExprKind::Map(key, map) => {
                let (key, map) = self.keyed(within, key, map, MapData::Object(kind))?;
                Ok(model::Statement::ObjectMap { kind, key, map })
            }
            _ => Err(Fault::wrong(name.span, "expected a name or a map of names")),
        }
    }

    /// A key and the map that leads from it to verdicts or objects.
    fn keyed(
        &mut self,
        within: &mut Within,
        key: &Expr,
        map: &Expr,
        leads_to: MapData,
    ) -> Checked<(model::Expr, SetRef)> {
        let seen = self.left(within, key)?;
        let wanted = self.type_of(within, &seen, key.span)?;
        let (data, what) = match &leads_to {
            MapData::Object(kind) => (
                DataWanted::Object,
                format!("objects of type {}", kind.name()),
            ),
            _ => (DataWanted::Verdict, "verdicts".to_string()),
        };
        let map = match map.resolved() {
            ExprKind::SetRef(name) => {
                let found = self.named_map(within, &seen, name, map.span)?;
                let set = self.need_set(within.table, name, map.span)?;
                if set.data != Some(leads_to) {
                    return Err(Fault::wrong(map.span, format!("{name} holds no {what}")));
                }
                found
            }
            ExprKind::Set(elements) => {
                SetRef::Anonymous(self.anonymous(elements, &wanted, Some(&data), map.span)?)
            }
            _ => return Err(Fault::wrong(map.span, format!("expected a map of {what}"))),
        };
        Ok((seen, map))
    }

    fn reject(
        &mut self,
        within: &mut Within,
        with: &RejectWith,
        span: Span,
    ) -> Checked<RejectKind> {
        let family = within.protocols.family();
        if family == Family::Arp {
            return Err(Fault::wrong(span, "reject is not there in family arp"));
        }
        let code = |checker: &Self, expr: &Expr, data_type| -> Checked<u8> {
            let value = literal(checker.env, expr, Wanted::of(data_type))?;
            Ok(u8::try_from(value.as_number()).unwrap_or(u8::MAX))
        };
        let network = within.protocols.network();
        if network == Some(Protocol::Arp) {
            return Err(Fault::wrong(span, "reject answers IPv4 and IPv6 only"));
        }
        let only = |protocol: Protocol| -> Checked<()> {
            match network {
                Some(known) if known != protocol => Err(Fault::wrong(
                    span,
                    format!(
                        "the rule is about {}, not {}",
                        known.name(),
                        protocol.name()
                    ),
                )),
                _ => Ok(()),
            }
        };
        match with {
            RejectWith::Default => Ok(RejectKind::Default),
            RejectWith::TcpReset => {
                match within.protocols.transport() {
                    Some(6) | None => {}
                    Some(_) => {
                        return Err(Fault::wrong(span, "a reset answers TCP only"));
                    }
                }
                Ok(RejectKind::TcpReset)
            }
            RejectWith::Icmp(expr) => {
                only(Protocol::Ip)?;
                Ok(match code(self, expr, DataType::IcmpCode)? {
                    // What plain reject says in such a table.
                    3 if family == Family::Ip => RejectKind::Default,
                    code => RejectKind::Icmp(code),
                })
            }
            RejectWith::Icmpv6(expr) => {
                only(Protocol::Ip6)?;
                Ok(match code(self, expr, DataType::Icmpv6Code)? {
                    4 if family == Family::Ip6 => RejectKind::Default,
                    code => RejectKind::Icmpv6(code),
                })
            }
            RejectWith::Icmpx(expr) => {
                if matches!(family, Family::Ip | Family::Ip6) {
                    return Err(Fault::wrong(
                        span,
                        format!(
                            "icmpx is for tables of both families; write icmp or icmpv6 in family {family}"
                        ),
                    ));
                }
                let code = code(self, expr, DataType::IcmpxCode)?;
                match code {
                    0 | 2 | 3 => Ok(RejectKind::Icmpx(code)),
                    1 => Ok(RejectKind::Default),
                    _ => Err(Fault::wrong(expr.span, "a code of icmpx is 0 to 3")),
                }
            }
        }
    }

    fn set_update(
        &mut self,
        within: &mut Within,
        op: model::SetUpdateOp,
        name: &str,
        element: &ast::Element,
        span: Span,
    ) -> Checked<model::Statement> {
        let set = self.need_set(within.table, name, span)?;
        let key = if has_leaf(&element.key) {
            let key = self.left(within, &element.key)?;
            let types = self.type_of(within, &key, element.key.span)?;
            super::expr::fits(&types, &set.key, name, element.key.span)?;
            key
        } else {
            let wanted: Vec<Wanted> = set.key.iter().map(|part| Wanted::of(*part)).collect();
            self.key(&element.key, &wanted)?
        };
        if set.flags.constant {
            return Err(Fault::wrong(span, format!("set {name} is constant")));
        }
        if set.flags.interval && set.key.len() == 1 {
            return Err(Fault::wrong(
                span,
                format!("set {name} holds ranges; packets can add to sets of single values only"),
            ));
        }
        let timed = set.flags.timeout || set.timeout;
        if element.timeout_ms.is_some() && !timed {
            return Err(Fault::wrong(
                span,
                format!("set {name} has no timeouts: give it flags timeout"),
            ));
        }
        let counts =
            |statement: &Statement| matches!(statement.kind, StatementKind::ConnLimit { .. });
        if timed && element.statements.iter().any(counts) {
            return Err(Fault::wrong(
                span,
                format!(
                    "set {name} has timeouts; elements with ct count leave with their connections"
                ),
            ));
        }
        let statements = self.stateful(&element.statements)?;
        let data = match (&element.data, &set.data) {
            (None, None) => None,
            (
                Some(ast::Data::Expr(expr)),
                Some(MapData::Type(types) | MapData::Interval(types)),
            ) => {
                let wanted: Vec<Wanted> = types.parts().into_iter().map(Wanted::of).collect();
                Some(self.given(within, expr, &wanted)?)
            }
            (Some(_), None) => {
                return Err(Fault::wrong(span, format!("{name} is a set, not a map")));
            }
            (None, Some(_)) if op == model::SetUpdateOp::Delete => None,
            _ => {
                return Err(Fault::wrong(
                    span,
                    format!("map {name} needs a value behind a colon"),
                ));
            }
        };
        Ok(model::Statement::SetUpdate(SetUpdate {
            op,
            set: name.to_string(),
            key,
            data,
            timeout_ms: element.timeout_ms,
            statements,
        }))
    }

    fn mangle(
        &mut self,
        within: &mut Within,
        target: &Mangle,
        value: &Expr,
        span: Span,
    ) -> Checked<model::Statement> {
        let wanted = match target {
            Mangle::Meta(key) => match key {
                MetaKey::Mark | MetaKey::Priority | MetaKey::Nftrace | MetaKey::Pkttype => {
                    Wanted::of(key.data_type())
                }
                _ => {
                    return Err(Fault::wrong(
                        span,
                        format!("meta {} cannot be set", key.name()),
                    ));
                }
            },
            Mangle::Ct { key, direction } => {
                if matches!(within.table.family, Family::Arp | Family::Netdev) {
                    return Err(Fault::wrong(span, "connections are not tracked here"));
                }
                match key {
                    CtKey::Mark | CtKey::Label if direction.is_none() => {
                        Wanted::of(key.data_type())
                    }
                    CtKey::Zone => Wanted::of(key.data_type()),
                    CtKey::Helper => return Err(Fault::refused(span, Refused::CtHelper)),
                    _ => {
                        return Err(Fault::wrong(
                            span,
                            format!("ct {} cannot be set", key.name()),
                        ));
                    }
                }
            }
            Mangle::Payload(field) => {
                within.protocols.uses(field.def().protocol, span)?;
                let leaf = model::Expr::Payload(*field);
                Wanted::beside(&leaf, field.def().data_type)
            }
            Mangle::PayloadRaw { bits, base, .. } => {
                let _: &PayloadBase = base;
                Wanted::of(DataType::Integer(u8::try_from(*bits).unwrap_or(128)))
            }
        };
        let value_expr = self.given(within, value, &[wanted])?;
        if has_range(&value_expr) || matches!(value_expr, model::Expr::Set(_) | model::Expr::Any) {
            return Err(Fault::wrong(value.span, "one value is expected here"));
        }
        Ok(model::Statement::Mangle {
            target: target.clone(),
            value: value_expr,
        })
    }
}

/// `exists` and `missing` ask an interface or an option whether it is there.
fn yes_or_no(seen: &model::Expr, wanted: Vec<Wanted>, right: &Expr) -> Vec<Wanted> {
    let asks = matches!(right.resolved(), ExprKind::Bool(_));
    let may = matches!(
        seen,
        model::Expr::Fib {
            result: FibResult::Oif | FibResult::Oifname,
            ..
        }
    );
    if asks && may {
        vec![Wanted::of(DataType::Boolean)]
    } else {
        wanted
    }
}

/// A set of one element is that element.
fn only_element(mut elements: Vec<model::Element>, wanted: &[Wanted]) -> model::Expr {
    let single = wanted.len() == 1
        && elements.len() == 1
        && elements[0].statements.is_empty()
        && elements[0].timeout_ms.is_none()
        && elements[0].comment.is_none()
        && elements[0].key != model::Expr::Any;
    if single && let Some(element) = elements.pop() {
        return element.key;
    }
    model::Expr::Set(SetRef::Anonymous(elements))
}

fn stateful(statement: &Statement) -> Checked<model::Statement> {
    let span = statement.span;
    Ok(match &statement.kind {
        StatementKind::Counter(counter) => model::Statement::Counter(*counter),
        StatementKind::Limit(limit) => {
            check_limit(limit, span)?;
            model::Statement::Limit(*limit)
        }
        StatementKind::Quota(quota) => model::Statement::Quota(*quota),
        StatementKind::ConnLimit { count, over } => model::Statement::ConnLimit {
            count: *count,
            over: *over,
        },
        _ => {
            return Err(Fault::wrong(
                span,
                "an element keeps counter, limit, quota or ct count",
            ));
        }
    })
}

/// What the kernel wants of a limit.
pub(super) fn check_limit(limit: &Limit, span: Span) -> Checked<()> {
    if limit.rate == 0 {
        return Err(Fault::wrong(span, "a rate of 0 lets nothing happen ever"));
    }
    // The kernel counts in nanoseconds, in 64 bits.
    let unit_ns = u128::from(limit.unit.seconds()) * 1_000_000_000;
    let bucket = if limit.bytes {
        unit_ns * (u128::from(limit.rate) + u128::from(limit.burst))
    } else {
        unit_ns / u128::from(limit.rate) * u128::from(limit.burst)
    };
    if bucket > u128::from(u64::MAX) {
        return Err(Fault::wrong(span, "the rate or the burst is too large"));
    }
    Ok(())
}

fn check_log(log: &Log, span: Span) -> Checked<()> {
    if log.level.is_some() && log.group.is_some() {
        return Err(Fault::wrong(span, "a level and a group exclude each other"));
    }
    let flags = log.flags != model::LogFlags::default();
    if flags && log.group.is_some() {
        return Err(Fault::wrong(span, "flags and a group exclude each other"));
    }
    // 8 is audit.
    if log.level == Some(8)
        && (log.prefix.is_some() || flags || log.snaplen.is_some() || log.queue_threshold.is_some())
    {
        return Err(Fault::wrong(span, "level audit takes nothing else"));
    }
    if log.prefix.as_ref().is_some_and(|prefix| prefix.len() > 127) {
        return Err(Fault::wrong(span, "a prefix has at most 127 bytes"));
    }
    Ok(())
}
