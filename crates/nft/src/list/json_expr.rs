//! Expressions, elements and statements as libnftables-json(5) has them.
use super::{
    expr::{Beside, direction_name, fib_flags, fib_result, numgen_mode, sign},
    sorted,
    statement::{all_log_flags, bytes, nat_flags, reject_parts, target_expr, update_op},
    value::{self, Writer},
};
use crate::prelude::*;
use crate::symbols::{self, LOG_LEVELS};
use fordway_filter::model::{
    BinaryOp, DataType, Element, ElementData, Expr, Limit, Log, Nat, NatKind, PayloadBase, Quota,
    RelOp, SetRef, SetUpdate, Statement, Value, Verdict,
};
use serde_json::{Map, Value as Json, json};

impl Writer<'_> {
    pub(super) fn json(&self, expr: &Expr) -> Json {
        self.json_beside(expr, &[])
    }

    fn json_right(&self, expr: &Expr, left: &Expr) -> Json {
        self.json_beside(expr, &parts(left))
    }

    fn json_beside(&self, expr: &Expr, beside: &[Beside]) -> Json {
        let first = beside.first().copied().unwrap_or_default();
        let one = |expr: &Expr| self.json_beside(expr, &[first]);
        match expr {
            Expr::Value(value) => self.json_value(value, first),
            Expr::Range(low, high) => json!({ "range": [one(low), one(high)] }),
            Expr::Prefix(value, bits) => json!({ "prefix": { "addr": one(value), "len": bits } }),
            Expr::List(items) => Json::Array(items.iter().map(one).collect()),
            Expr::Concat(parts) => {
                let parts: Vec<Json> = parts
                    .iter()
                    .enumerate()
                    .map(|(at, part)| {
                        self.json_beside(part, &[beside.get(at).copied().unwrap_or_default()])
                    })
                    .collect();
                json!({ "concat": parts })
            }
            Expr::Any => json!("*"),
            Expr::Set(set) => self.json_set(set, beside),
            Expr::Payload(field) => {
                let def = field.def();
                json!({ "payload": { "protocol": def.protocol.name(), "field": def.name } })
            }
            Expr::PayloadRaw {
                base,
                offset_bits,
                bits,
            } => {
                let base: &PayloadBase = base;
                json!({ "payload": { "base": base.name(), "offset": offset_bits, "len": bits } })
            }
            Expr::Exthdr(field) => {
                let def = field.def();
                let inner = json!({ "name": def.kind.name(), "field": def.name });
                header(def.kind.is_tcp_option(), inner)
            }
            Expr::ExthdrExists(field) => {
                let kind = field.def().kind;
                header(kind.is_tcp_option(), json!({ "name": kind.name() }))
            }
            Expr::Meta(key) => json!({ "meta": { "key": key.name() } }),
            Expr::Ct { key, direction } => match direction {
                None => json!({ "ct": { "key": key.name() } }),
                Some(direction) => {
                    json!({ "ct": { "key": key.name(), "dir": direction_name(*direction) } })
                }
            },
            Expr::Fib { flags, result } => {
                json!({ "fib": { "result": fib_result(*result), "flags": fib_flags(*flags) } })
            }
            Expr::Numgen {
                mode,
                modulus,
                offset,
            } => {
                json!({ "numgen": { "mode": numgen_mode(*mode), "mod": modulus, "offset": offset } })
            }
            Expr::Jhash {
                input,
                modulus,
                seed,
                offset,
            } => {
                let mut inner = Map::new();
                inner.insert("mod".into(), json!(modulus));
                if let Some(seed) = seed {
                    inner.insert("seed".into(), json!(seed));
                }
                if *offset != 0 {
                    inner.insert("offset".into(), json!(offset));
                }
                inner.insert("expr".into(), self.json(input));
                json!({ "jhash": inner })
            }
            Expr::Binary { op, left, right } => {
                let value = match (op, right.as_ref()) {
                    // The bits of a mask are a list to nft.
                    (BinaryOp::And, Expr::Value(value)) if value.data_type.is_bitmask() => {
                        json_flags(value).unwrap_or_else(|| self.json_right(right, left))
                    }
                    _ => self.json_right(right, left),
                };
                json!({ sign(*op): [self.json(left), value] })
            }
            Expr::Map { key, map } => json!({
                "map": { "key": self.json(key), "data": self.json_set(map, &parts(key)) }
            }),
        }
    }

    fn json_value(&self, value: &Value, beside: Beside) -> Json {
        let number = value.as_number();
        let plain = || {
            u64::try_from(number)
                .map_or_else(|_| json!(format!("{number:#x}")), |number| json!(number))
        };
        if beside.raw {
            return plain();
        }
        if let Some((name, _)) = beside
            .extra
            .iter()
            .find(|(_, known)| u128::from(*known) == number)
        {
            return json!(name);
        }
        match value.data_type {
            DataType::IfName | DataType::String => json!(value::text(value)),
            DataType::Ipv4Addr
            | DataType::Ipv6Addr
            | DataType::EtherAddr
            | DataType::LlAddr
            | DataType::ClassId => json!(self.value(value, &[], false)),
            DataType::Hour | DataType::Time | DataType::Day => {
                json!(self.value(value, &[], false).trim_matches('"'))
            }
            DataType::IfIndex => json!(self.value(value, &[], false).trim_matches('"')),
            DataType::Boolean => json!(number != 0),
            // Seconds, as nft has it; what is less is written out.
            DataType::TimeSpan if number.is_multiple_of(1000) => {
                json!(u64::try_from(number / 1000).unwrap_or(0))
            }
            DataType::TimeSpan => json!(self.value(value, &[], false)),
            DataType::CtLabel if number.count_ones() == 1 => json!(number.trailing_zeros()),
            DataType::Mark | DataType::DevGroup => plain(),
            DataType::Realm => json!(number.to_string()),
            other if other.is_bitmask() => match value::flags(other, number) {
                None => plain(),
                Some(names) => or_of(&names),
            },
            other => symbols::by_number(other, number).map_or_else(plain, |name| json!(name)),
        }
    }

    fn json_set(&self, set: &SetRef, beside: &[Beside]) -> Json {
        match set {
            SetRef::Named(name) => json!(format!("@{name}")),
            SetRef::Anonymous(elements) => {
                let elements: Vec<Json> = sorted(elements)
                    .into_iter()
                    .map(|element| self.json_element(element, beside))
                    .collect();
                json!({ "set": elements })
            }
        }
    }

    pub(super) fn json_element(&self, element: &Element, beside: &[Beside]) -> Json {
        let key = self.json_beside(&element.key, beside);
        let mut rest = Map::new();
        if let Some(ms) = element.timeout_ms {
            rest.insert("timeout".into(), seconds(ms));
        }
        if let Some(ms) = element.expires_ms {
            rest.insert("expires".into(), seconds(ms));
        }
        if let Some(comment) = &element.comment {
            rest.insert("comment".into(), json!(comment));
        }
        for statement in &element.statements {
            if let Json::Object(inner) = self.json_statement(statement) {
                rest.extend(inner);
            }
        }
        let key = if rest.is_empty() {
            key
        } else {
            rest.insert("val".into(), key);
            json!({ "elem": rest })
        };
        match &element.data {
            None => key,
            Some(ElementData::Value(value)) => json!([key, self.json(value)]),
            Some(ElementData::Verdict(verdict)) => json!([key, json_verdict(verdict)]),
            Some(ElementData::Object(name)) => json!([key, name]),
        }
    }

    pub(super) fn json_statement(&self, statement: &Statement) -> Json {
        match statement {
            Statement::Match { op, left, right } => {
                let flags = left.data_type().is_some_and(DataType::is_bitmask);
                let computed = matches!(left, Expr::Binary { .. });
                let op = match op {
                    RelOp::Implicit if flags && !computed && !matches!(right, Expr::Set(_)) => "in",
                    RelOp::Implicit | RelOp::Eq => "==",
                    RelOp::Ne => "!=",
                    RelOp::Lt => "<",
                    RelOp::Gt => ">",
                    RelOp::Le => "<=",
                    RelOp::Ge => ">=",
                    RelOp::Not => "!",
                };
                // Flags are compared as a list with a mask, as one number without.
                let value = match right {
                    Expr::Value(value) if flags && computed => {
                        json_flags(value).unwrap_or_else(|| self.json_right(right, left))
                    }
                    _ => self.json_right(right, left),
                };
                json!({ "match": { "op": op, "left": self.json(left), "right": value } })
            }
            Statement::Verdict(verdict) => json_verdict(verdict),
            Statement::VerdictMap { key, map } => json!({
                "vmap": { "key": self.json(key), "data": self.json_set(map, &parts(key)) }
            }),
            Statement::Reject(kind) => match reject_parts(*kind) {
                None => json!({ "reject": null }),
                Some(("tcp reset", _)) => json!({ "reject": { "type": "tcp reset" } }),
                Some((word, code)) => {
                    json!({ "reject": { "type": word, "expr": code_json(&code) } })
                }
            },
            Statement::Counter(counter) => {
                json!({ "counter": { "packets": counter.packets, "bytes": counter.bytes } })
            }
            Statement::Limit(limit) => json!({ "limit": json_limit(limit) }),
            Statement::Quota(quota) => json!({ "quota": json_quota(quota) }),
            Statement::Object { kind, name } => json!({ kind.name(): name }),
            Statement::ObjectMap { kind, key, map } => json!({
                kind.name(): {
                    "map": { "key": self.json(key), "data": self.json_set(map, &parts(key)) }
                }
            }),
            Statement::ConnLimit { count, over } => {
                let mut inner = Map::new();
                inner.insert("val".into(), json!(count));
                if *over {
                    inner.insert("inv".into(), json!(true));
                }
                json!({ "ct count": inner })
            }
            Statement::Log(log) => json!({ "log": json_log(log) }),
            Statement::Nat(nat) => self.json_nat(nat),
            Statement::SetUpdate(update) => self.json_update(update),
            Statement::Mangle { target, value } => {
                let key = target_expr(target);
                json!({ "mangle": { "key": self.json(&key), "value": self.json_right(value, &key) } })
            }
            Statement::Notrack => json!({ "notrack": null }),
        }
    }

    fn json_nat(&self, nat: &Nat) -> Json {
        let name = match nat.kind {
            NatKind::Snat => "snat",
            NatKind::Dnat => "dnat",
            NatKind::Masquerade => "masquerade",
            NatKind::Redirect => "redirect",
        };
        let mut inner = Map::new();
        if let Some(family) = nat.family {
            inner.insert("family".into(), json!(family.name()));
        }
        if let Some(address) = &nat.address {
            inner.insert("addr".into(), self.json(address));
        }
        if let Some(port) = &nat.port {
            inner.insert("port".into(), self.json(port));
        }
        let mut flags = nat_flags(nat.flags);
        if nat.flags.netmap {
            flags.push("netmap");
            inner.insert("type_flags".into(), json!("prefix"));
        }
        if !flags.is_empty() {
            inner.insert("flags".into(), one_or_many(&flags));
        }
        if inner.is_empty() {
            json!({ name: null })
        } else {
            json!({ name: inner })
        }
    }

    fn json_update(&self, update: &SetUpdate) -> Json {
        let key = self.json(&update.key);
        let elem = match update.timeout_ms {
            None => key,
            Some(ms) => json!({ "elem": { "val": key, "timeout": seconds(ms) } }),
        };
        let mut inner = Map::new();
        inner.insert("op".into(), json!(update_op(update.op)));
        inner.insert("elem".into(), elem);
        if !update.statements.is_empty() {
            let statements: Vec<Json> = update
                .statements
                .iter()
                .map(|statement| self.json_statement(statement))
                .collect();
            inner.insert("stmt".into(), json!(statements));
        }
        let set = json!(format!("@{}", update.set));
        match &update.data {
            None => {
                inner.insert("set".into(), set);
                json!({ "set": inner })
            }
            Some(data) => {
                inner.insert("data".into(), self.json(data));
                inner.insert("map".into(), set);
                json!({ "map": inner })
            }
        }
    }
}

fn parts(left: &Expr) -> Vec<Beside> {
    match left {
        Expr::Concat(parts) => parts.iter().map(Beside::of).collect(),
        other => vec![Beside::of(other)],
    }
}

fn header(tcp_option: bool, inner: Json) -> Json {
    if tcp_option {
        json!({ "tcp option": inner })
    } else {
        json!({ "exthdr": inner })
    }
}

fn json_verdict(verdict: &Verdict) -> Json {
    match verdict {
        Verdict::Accept => json!({ "accept": null }),
        Verdict::Drop => json!({ "drop": null }),
        Verdict::Continue => json!({ "continue": null }),
        Verdict::Return => json!({ "return": null }),
        Verdict::Jump(name) => json!({ "jump": { "target": name } }),
        Verdict::Goto(name) => json!({ "goto": { "target": name } }),
    }
}

/// `["fin", "syn"]`, one name alone.
fn json_flags(value: &Value) -> Option<Json> {
    let names = value::flags(value.data_type, value.as_number())?;
    Some(match names.as_slice() {
        [one] => json!(one),
        _ => json!(names),
    })
}

/// `{"|": [{"|": [a, b]}, c]}`.
fn or_of(names: &[String]) -> Json {
    let mut names = names.iter();
    let first = names.next().map_or(Json::Null, |name| json!(name));
    names.fold(first, |sum, name| json!({ "|": [sum, name] }))
}

fn code_json(code: &str) -> Json {
    code.parse::<u64>()
        .map_or_else(|_| json!(code), |code| json!(code))
}

/// Whole seconds as nft counts them; what is less is written out.
pub(super) fn seconds(ms: u64) -> Json {
    if ms.is_multiple_of(1000) {
        json!(ms / 1000)
    } else {
        json!(crate::words::write_time_ms(ms))
    }
}

pub(super) fn one_or_many(names: &[&str]) -> Json {
    match names {
        [one] => json!(one),
        _ => json!(names),
    }
}

/// A limit as statement and as object.
pub(super) fn json_limit(limit: &Limit) -> Map<String, Json> {
    let mut out = Map::new();
    let (rate, unit) = if limit.bytes {
        bytes(limit.rate)
    } else {
        (limit.rate, "packets")
    };
    out.insert("rate".into(), json!(rate));
    out.insert("per".into(), json!(limit.unit.name()));
    if limit.bytes {
        out.insert("rate_unit".into(), json!(unit));
        if limit.burst != 0 {
            let (burst, unit) = bytes(limit.burst.into());
            out.insert("burst".into(), json!(burst));
            out.insert("burst_unit".into(), json!(unit));
        }
    } else {
        out.insert("burst".into(), json!(limit.burst));
    }
    if limit.over {
        out.insert("inv".into(), json!(true));
    }
    out
}

fn json_quota(quota: &Quota) -> Map<String, Json> {
    let mut out = Map::new();
    let (val, unit) = bytes(quota.bytes);
    out.insert("val".into(), json!(val));
    out.insert("val_unit".into(), json!(unit));
    if quota.used != 0 {
        let (used, unit) = bytes(quota.used);
        out.insert("used".into(), json!(used));
        out.insert("used_unit".into(), json!(unit));
    }
    if quota.over {
        out.insert("inv".into(), json!(true));
    }
    out
}

fn json_log(log: &Log) -> Json {
    let mut out = Map::new();
    if let Some(prefix) = &log.prefix {
        out.insert("prefix".into(), json!(prefix));
    }
    if let Some(group) = log.group {
        out.insert("group".into(), json!(group));
    }
    if let Some(snaplen) = log.snaplen {
        out.insert("snaplen".into(), json!(snaplen));
    }
    if let Some(threshold) = log.queue_threshold {
        out.insert("queue-threshold".into(), json!(threshold));
    }
    if let Some(name) = log
        .level
        .and_then(|level| LOG_LEVELS.get(usize::from(level)))
    {
        out.insert("level".into(), json!(name));
    }
    let flags: Vec<&str> = if all_log_flags(log.flags) {
        vec!["all"]
    } else {
        [
            ("tcp sequence", log.flags.tcp_sequence),
            ("tcp options", log.flags.tcp_options),
            ("ip options", log.flags.ip_options),
            ("skuid", log.flags.skuid),
            ("ether", log.flags.ether),
        ]
        .into_iter()
        .filter(|(_, on)| *on)
        .map(|(name, _)| name)
        .collect()
    };
    if !flags.is_empty() {
        out.insert("flags".into(), one_or_many(&flags));
    }
    if out.is_empty() {
        Json::Null
    } else {
        Json::Object(out)
    }
}
