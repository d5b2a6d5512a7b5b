//! Statements as nft writes them.
use super::value::Writer;
use crate::prelude::*;
use crate::symbols::{self, LOG_LEVELS};
use fordway_filter::model::{
    BinaryOp, DataType, Expr, Limit, Log, LogFlags, Mangle, Nat, NatFlags, NatKind, Quota,
    RejectKind, RelOp, SetUpdate, SetUpdateOp, Statement,
};

impl Writer<'_> {
    pub(super) fn statement(&self, statement: &Statement, stateless: bool) -> String {
        match statement {
            Statement::Match { op, left, right } => self.relation(*op, left, right),
            Statement::Verdict(verdict) => self.verdict(verdict),
            Statement::VerdictMap { key, map } => {
                format!("{} vmap {}", self.expr(key), self.set_of(map, key))
            }
            Statement::Reject(kind) => reject(*kind),
            Statement::Counter(_) if stateless => "counter".to_string(),
            Statement::Counter(counter) => {
                format!(
                    "counter packets {} bytes {}",
                    counter.packets, counter.bytes
                )
            }
            Statement::Limit(limit) => format!("limit {}", limit_text(limit)),
            Statement::Quota(quota) => format!("quota {}", quota_text(quota, stateless)),
            Statement::Object { kind, name } => format!("{} name \"{name}\"", kind.name()),
            Statement::ObjectMap { kind, key, map } => format!(
                "{} name {} map {}",
                kind.name(),
                self.expr(key),
                self.set_of(map, key)
            ),
            Statement::ConnLimit { count, over } => {
                format!("ct count {}{count}", if *over { "over " } else { "" })
            }
            Statement::Log(log) => log_text(log),
            Statement::Nat(nat) => self.nat(nat),
            Statement::SetUpdate(update) => self.update(update, stateless),
            Statement::Mangle { target, value } => {
                let target = match target {
                    // `mark set` would do, but nft says `meta` here.
                    Mangle::Meta(key) => format!("meta {}", key.name()),
                    other => self.expr(&target_expr(other)),
                };
                let value = self.right(value, &target_expr_of(statement));
                format!("{target} set {value}")
            }
            Statement::Notrack => "notrack".to_string(),
        }
    }

    fn relation(&self, op: RelOp, left: &Expr, right: &Expr) -> String {
        if let Some(masked) = self.masked(op, left, right) {
            return masked;
        }
        let sign = match op {
            RelOp::Implicit => "",
            RelOp::Eq => "== ",
            RelOp::Ne => "!= ",
            RelOp::Lt => "< ",
            RelOp::Gt => "> ",
            RelOp::Le => "<= ",
            RelOp::Ge => ">= ",
            RelOp::Not => "! ",
        };
        format!("{} {sign}{}", self.expr(left), self.right(right, left))
    }

    /// `tcp flags syn / syn,ack`.
    fn masked(&self, op: RelOp, left: &Expr, right: &Expr) -> Option<String> {
        let Expr::Binary {
            op: BinaryOp::And,
            left: field,
            right: mask,
        } = left
        else {
            return None;
        };
        let sign = match op {
            RelOp::Eq => "",
            RelOp::Ne => "!= ",
            _ => return None,
        };
        // Of a single flag nft says it with the operator.
        if matches!(mask.as_ref(), Expr::Value(mask) if mask.as_number().count_ones() < 2) {
            return None;
        }
        let (value, mask) = (self.flag_list(right)?, self.flag_list(mask)?);
        Some(format!("{} {sign}{value} / {mask}", self.expr(field)))
    }

    fn nat(&self, nat: &Nat) -> String {
        let mut out = match nat.kind {
            NatKind::Snat => "snat",
            NatKind::Dnat => "dnat",
            NatKind::Masquerade => "masquerade",
            NatKind::Redirect => "redirect",
        }
        .to_string();
        if let Some(family) = nat.family {
            out.push_str(&format!(" {family}"));
        }
        if nat.flags.netmap {
            out.push_str(" prefix");
        }
        if nat.address.is_some() || nat.port.is_some() {
            out.push_str(" to ");
        }
        if let Some(address) = &nat.address {
            let text = self.expr(address);
            // A port behind a colon needs brackets before it.
            out.push_str(&if nat.port.is_some() && is_ipv6(address) {
                bracketed(&text)
            } else {
                text
            });
        }
        if let Some(port) = &nat.port {
            out.push_str(&format!(":{}", self.expr(port)));
        }
        let flags = nat_flags(nat.flags);
        if !flags.is_empty() {
            out.push_str(&format!(" {}", flags.join(",")));
        }
        out
    }

    fn update(&self, update: &SetUpdate, stateless: bool) -> String {
        let mut out = format!(
            "{} @{} {{ {}",
            update_op(update.op),
            update.set,
            self.expr(&update.key)
        );
        if let Some(ms) = update.timeout_ms {
            out.push_str(&format!(" timeout {}", crate::words::write_time_ms(ms)));
        }
        for statement in &update.statements {
            out.push_str(&format!(" {}", self.statement(statement, stateless)));
        }
        if let Some(data) = &update.data {
            out.push_str(&format!(" : {}", self.expr(data)));
        }
        out.push_str(" }");
        out
    }
}

/// What a mangle writes to, as the expression that reads it.
pub(super) fn target_expr(target: &Mangle) -> Expr {
    match target {
        Mangle::Meta(key) => Expr::Meta(*key),
        Mangle::Ct { key, direction } => Expr::Ct {
            key: *key,
            direction: *direction,
        },
        Mangle::Payload(field) => Expr::Payload(*field),
        Mangle::PayloadRaw {
            base,
            offset_bits,
            bits,
        } => Expr::PayloadRaw {
            base: *base,
            offset_bits: *offset_bits,
            bits: *bits,
        },
    }
}

fn target_expr_of(statement: &Statement) -> Expr {
    match statement {
        Statement::Mangle { target, .. } => target_expr(target),
        _ => Expr::Any,
    }
}

fn is_ipv6(address: &Expr) -> bool {
    match address {
        Expr::Value(value) => value.data_type == DataType::Ipv6Addr,
        Expr::Range(low, _) => is_ipv6(low),
        _ => false,
    }
}

/// `[::1]`, `[::1]-[::5]`.
fn bracketed(text: &str) -> String {
    let parts: Vec<String> = text.split('-').map(|part| format!("[{part}]")).collect();
    parts.join("-")
}

pub(super) fn update_op(op: SetUpdateOp) -> &'static str {
    match op {
        SetUpdateOp::Add => "add",
        SetUpdateOp::Update => "update",
        SetUpdateOp::Delete => "delete",
    }
}

pub(super) fn nat_flags(flags: NatFlags) -> Vec<&'static str> {
    [
        ("random", flags.random),
        ("fully-random", flags.fully_random),
        ("persistent", flags.persistent),
    ]
    .into_iter()
    .filter(|(_, set)| *set)
    .map(|(name, _)| name)
    .collect()
}

fn reject(kind: RejectKind) -> String {
    match reject_parts(kind) {
        None => "reject".to_string(),
        Some(("tcp reset", _)) => "reject with tcp reset".to_string(),
        Some((word, code)) => format!("reject with {word} {code}"),
    }
}

/// The word and the code of a rejection.
pub(super) fn reject_parts(kind: RejectKind) -> Option<(&'static str, String)> {
    let (word, data_type, code) = match kind {
        RejectKind::Default => return None,
        RejectKind::TcpReset => return Some(("tcp reset", String::new())),
        RejectKind::Icmp(code) => ("icmp", DataType::IcmpCode, code),
        RejectKind::Icmpv6(code) => ("icmpv6", DataType::Icmpv6Code, code),
        RejectKind::Icmpx(code) => ("icmpx", DataType::IcmpxCode, code),
    };
    let code =
        symbols::by_number(data_type, code.into()).map_or_else(|| code.to_string(), str::to_string);
    Some((word, code))
}

/// Bytes with the largest unit that leaves no rest.
pub(super) fn bytes(bytes: u64) -> (u64, &'static str) {
    const KILO: u64 = 1024;
    if bytes != 0 && bytes.is_multiple_of(KILO * KILO) {
        (bytes / KILO / KILO, "mbytes")
    } else if bytes != 0 && bytes.is_multiple_of(KILO) {
        (bytes / KILO, "kbytes")
    } else {
        (bytes, "bytes")
    }
}

/// Behind `limit`, and inside a named limit.
pub(super) fn limit_text(limit: &Limit) -> String {
    let over = if limit.over { "over " } else { "" };
    let unit = limit.unit.name();
    if limit.bytes {
        let (rate, scale) = bytes(limit.rate);
        let burst = match limit.burst {
            0 => String::new(),
            burst => {
                let (burst, scale) = bytes(burst.into());
                format!(" burst {burst} {scale}")
            }
        };
        return format!("rate {over}{rate} {scale}/{unit}{burst}");
    }
    let burst = match limit.burst {
        5 => String::new(),
        burst => format!(" burst {burst} packets"),
    };
    format!("rate {over}{}/{unit}{burst}", limit.rate)
}

/// Behind `quota`, and inside a named quota.
pub(super) fn quota_text(quota: &Quota, stateless: bool) -> String {
    let over = if quota.over { "over " } else { "" };
    let (number, scale) = bytes(quota.bytes);
    let used = match quota.used {
        0 => String::new(),
        _ if stateless => String::new(),
        used => {
            let (number, scale) = bytes(used);
            format!(" used {number} {scale}")
        }
    };
    format!("{over}{number} {scale}{used}")
}

fn log_text(log: &Log) -> String {
    let mut out = "log".to_string();
    if let Some(prefix) = &log.prefix {
        out.push_str(&format!(" prefix \"{prefix}\""));
    }
    if let Some(group) = log.group {
        out.push_str(&format!(" group {group}"));
    }
    if let Some(snaplen) = log.snaplen {
        out.push_str(&format!(" snaplen {snaplen}"));
    }
    if let Some(threshold) = log.queue_threshold {
        out.push_str(&format!(" queue-threshold {threshold}"));
    }
    if let Some(name) = log
        .level
        .and_then(|level| LOG_LEVELS.get(usize::from(level)))
    {
        out.push_str(&format!(" level {name}"));
    }
    if all_log_flags(log.flags) {
        out.push_str(" flags all");
        return out;
    }
    match (log.flags.tcp_sequence, log.flags.tcp_options) {
        (true, true) => out.push_str(" flags tcp sequence,options"),
        (true, false) => out.push_str(" flags tcp sequence"),
        (false, true) => out.push_str(" flags tcp options"),
        (false, false) => {}
    }
    for (name, set) in [
        ("ip options", log.flags.ip_options),
        ("skuid", log.flags.skuid),
        ("ether", log.flags.ether),
    ] {
        if set {
            out.push_str(&format!(" flags {name}"));
        }
    }
    out
}

pub(super) fn all_log_flags(flags: LogFlags) -> bool {
    flags.tcp_sequence && flags.tcp_options && flags.ip_options && flags.skuid && flags.ether
}
