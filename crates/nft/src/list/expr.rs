//! Expressions as nft writes them.
use super::{
    sorted,
    value::{self, Writer},
};
use crate::prelude::*;
use crate::{check::extra_names, symbols::Table};
use fordway_filter::model::{
    BinaryOp, CtDirection, DataType, Element, ElementData, Expr, ExthdrKind, FibFlags, FibResult,
    MetaKey, NumgenMode, SetRef, Verdict,
};

/// How tightly an operator holds; a literal holds tightest.
fn level(op: BinaryOp) -> u8 {
    match op {
        BinaryOp::Or => 0,
        BinaryOp::Xor => 1,
        BinaryOp::And => 2,
        BinaryOp::ShiftLeft | BinaryOp::ShiftRight => 3,
    }
}

pub(super) fn sign(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Or => "|",
        BinaryOp::Xor => "^",
        BinaryOp::And => "&",
        BinaryOp::ShiftLeft => "<<",
        BinaryOp::ShiftRight => ">>",
    }
}

/// What stands beside an expression, as far as its literals care.
#[derive(Clone, Copy, Default)]
pub(super) struct Beside {
    pub extra: Table,
    pub raw: bool,
}

impl Beside {
    pub(super) fn of(left: &Expr) -> Beside {
        match left {
            Expr::PayloadRaw { .. } => Beside {
                extra: &[],
                raw: true,
            },
            // An address that nft takes for a number.
            Expr::Payload(field) if field.def().name == "group" => Beside {
                extra: &[],
                raw: true,
            },
            Expr::Binary { left, .. } => Beside::of(left),
            other => Beside {
                extra: extra_names(other),
                raw: false,
            },
        }
    }

    /// For each part of joined keys.
    fn parts(left: &Expr) -> Vec<Beside> {
        match left {
            Expr::Concat(parts) => parts.iter().map(Beside::of).collect(),
            other => vec![Beside::of(other)],
        }
    }
}

impl Writer<'_> {
    pub(super) fn expr(&self, expr: &Expr) -> String {
        self.beside(expr, &[])
    }

    /// Right of `left`.
    pub(super) fn right(&self, expr: &Expr, left: &Expr) -> String {
        self.beside(expr, &Beside::parts(left))
    }

    fn beside(&self, expr: &Expr, beside: &[Beside]) -> String {
        let first = beside.first().copied().unwrap_or_default();
        let one = |expr: &Expr| self.beside(expr, &[first]);
        match expr {
            Expr::Value(value) => self.value(value, first.extra, first.raw),
            Expr::Range(low, high) => {
                let end = |expr: &Expr| match expr {
                    Expr::Value(value) => self.end(value, first.extra, first.raw),
                    other => one(other),
                };
                format!("{}-{}", end(low), end(high))
            }
            Expr::Prefix(value, bits) => format!("{}/{bits}", one(value)),
            Expr::List(items) => items.iter().map(one).collect::<Vec<_>>().join(","),
            Expr::Concat(parts) => {
                let parts: Vec<String> = parts
                    .iter()
                    .enumerate()
                    .map(|(at, part)| {
                        self.beside(part, &[beside.get(at).copied().unwrap_or_default()])
                    })
                    .collect();
                parts.join(" . ")
            }
            Expr::Any => "*".to_string(),
            Expr::Set(set) => self.set(set, beside, false),
            Expr::Payload(field) => {
                let def = field.def();
                format!("{} {}", def.protocol.name(), def.name)
            }
            Expr::PayloadRaw {
                base,
                offset_bits,
                bits,
            } => format!("@{},{offset_bits},{bits}", base.name()),
            Expr::Exthdr(field) => {
                let def = field.def();
                format!("{} {}", header(def.kind), def.name)
            }
            Expr::ExthdrExists(field) => exists(field.def().kind),
            Expr::Meta(key) => meta(*key),
            Expr::Ct { key, direction } => match direction {
                None => format!("ct {}", key.name()),
                Some(direction) => format!("ct {} {}", direction_name(*direction), key.name()),
            },
            Expr::Fib { flags, result } => {
                format!(
                    "fib {} {}",
                    fib_flags(*flags).join(" . "),
                    fib_result(*result)
                )
            }
            Expr::Numgen {
                mode,
                modulus,
                offset,
            } => {
                let mode = numgen_mode(*mode);
                format!("numgen {mode} mod {modulus}{}", offset_text(*offset))
            }
            Expr::Jhash {
                input,
                modulus,
                seed,
                offset,
            } => {
                let seed = seed.map_or(String::new(), |seed| format!(" seed {seed:#x}"));
                let offset = offset_text(*offset);
                format!("jhash {} mod {modulus}{seed}{offset}", self.expr(input))
            }
            Expr::Binary { op, left, right } => self.binary(*op, left, right),
            Expr::Map { key, map } => format!(
                "{} map {}",
                self.expr(key),
                self.set(map, &Beside::parts(key), true)
            ),
        }
    }

    fn binary(&self, op: BinaryOp, left: &Expr, right: &Expr) -> String {
        let inner = self.expr(left);
        let inner = match left {
            Expr::Binary { op: under, .. } if level(*under) < level(op) => format!("({inner})"),
            _ => inner,
        };
        let value = self.right(right, left);
        let value = match right {
            _ if value.contains(" | ") && level(op) > 0 => format!("({value})"),
            Expr::Binary { .. } => format!("({value})"),
            _ => value,
        };
        format!("{inner} {} {value}", sign(op))
    }

    /// `@name` or `{ ... }`.
    pub(super) fn set(&self, set: &SetRef, beside: &[Beside], _map: bool) -> String {
        match set {
            SetRef::Named(name) => format!("@{name}"),
            SetRef::Anonymous(elements) => {
                let elements: Vec<String> = sorted(elements)
                    .into_iter()
                    .map(|element| self.element(element, beside, false))
                    .collect();
                format!("{{ {} }}", elements.join(", "))
            }
        }
    }

    /// The set behind a key.
    pub(super) fn set_of(&self, set: &SetRef, key: &Expr) -> String {
        self.set(set, &Beside::parts(key), true)
    }

    /// An element; without its state if it is listed `stateless`.
    pub(super) fn element(&self, element: &Element, beside: &[Beside], stateless: bool) -> String {
        let mut out = self.beside(&element.key, beside);
        for statement in &element.statements {
            out.push(' ');
            out.push_str(&self.statement(statement, stateless));
        }
        if let Some(ms) = element.timeout_ms {
            out.push_str(&format!(" timeout {}", crate::words::write_time_ms(ms)));
        }
        if let Some(ms) = element.expires_ms
            && !stateless
        {
            out.push_str(&format!(" expires {}", crate::words::write_time_ms(ms)));
        }
        if let Some(comment) = &element.comment {
            out.push_str(&format!(" comment \"{comment}\""));
        }
        match &element.data {
            None => {}
            Some(ElementData::Value(value)) => out.push_str(&format!(" : {}", self.expr(value))),
            Some(ElementData::Verdict(verdict)) => {
                out.push_str(&format!(" : {}", self.verdict(verdict)));
            }
            Some(ElementData::Object(name)) => out.push_str(&format!(" : \"{name}\"")),
        }
        out
    }

    pub(super) fn verdict(&self, verdict: &Verdict) -> String {
        match verdict {
            Verdict::Accept => "accept".to_string(),
            Verdict::Drop => "drop".to_string(),
            Verdict::Continue => "continue".to_string(),
            Verdict::Return => "return".to_string(),
            Verdict::Jump(name) => format!("jump {name}"),
            Verdict::Goto(name) => format!("goto {name}"),
        }
    }

    /// Flags by their names, joined with commas, if all of them have one.
    pub(super) fn flag_list(&self, expr: &Expr) -> Option<String> {
        match expr {
            Expr::Value(value) if value.data_type.is_bitmask() => {
                value::flags(value.data_type, value.as_number()).map(|names| names.join(","))
            }
            Expr::List(_) => Some(self.expr(expr)),
            _ => None,
        }
    }
}

fn offset_text(offset: u32) -> String {
    if offset == 0 {
        String::new()
    } else {
        format!(" offset {offset}")
    }
}

/// `frag`, `tcp option maxseg`.
fn header(kind: ExthdrKind) -> String {
    if kind.is_tcp_option() {
        format!("tcp option {}", kind.name())
    } else {
        kind.name().to_string()
    }
}

fn exists(kind: ExthdrKind) -> String {
    if kind.is_tcp_option() {
        header(kind)
    } else {
        format!("exthdr {}", kind.name())
    }
}

/// As nft lists it: `meta` is left out before interfaces.
fn meta(key: MetaKey) -> String {
    use MetaKey::*;
    if matches!(key, Iif | Oif | Iifname | Oifname | Iifgroup | Oifgroup) {
        key.name().to_string()
    } else {
        format!("meta {}", key.name())
    }
}

pub(super) fn direction_name(direction: CtDirection) -> &'static str {
    match direction {
        CtDirection::Original => "original",
        CtDirection::Reply => "reply",
    }
}

pub(super) fn numgen_mode(mode: NumgenMode) -> &'static str {
    match mode {
        NumgenMode::Inc => "inc",
        NumgenMode::Random => "random",
    }
}

pub(super) fn fib_result(result: FibResult) -> &'static str {
    match result {
        FibResult::Oif => "oif",
        FibResult::Oifname => "oifname",
        FibResult::Type => "type",
    }
}

pub(super) fn fib_flags(flags: FibFlags) -> Vec<&'static str> {
    [
        ("saddr", flags.saddr),
        ("daddr", flags.daddr),
        ("mark", flags.mark),
        ("iif", flags.iif),
        ("oif", flags.oif),
    ]
    .into_iter()
    .filter(|(_, set)| *set)
    .map(|(name, _)| name)
    .collect()
}

/// Elements of a named set on one line: as many as nft puts there.
pub(super) fn per_line(types: &[DataType]) -> usize {
    use DataType::*;
    match types {
        [
            NfProto | Integer(_) | ArpOp | InetProto | InetService | TcpFlag | Mark | IfIndex
            | ClassId | Uid | Gid | CtDir,
        ] => 5,
        [Ipv4Addr | CtState | CtStatus | PktType] => 2,
        _ => 1,
    }
}
