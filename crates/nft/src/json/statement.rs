//! Statements of libnftables' JSON.
use super::{
    Read,
    expr::{elem, expr},
    milliseconds, name_of,
    node::{Json, Node},
    quotable,
};
use crate::prelude::*;
use crate::{
    ast::{Data, Nat, RejectWith, Statement, StatementKind},
    error::Fault,
    names,
    parse::{mangle_target, time_unit},
    source::Span,
    support::Refused,
    symbols,
};
use fordway_filter::model::{
    Counter, Family, Limit, LimitUnit, Log, LogFlags, NatFlags, NatKind, ObjectKind, Quota, RelOp,
    SetUpdateOp, Verdict,
};

/// One statement.
pub(super) fn statement(node: &Node) -> Read<Statement> {
    let (word, inner) = node.only()?;
    let kind = kind(word, inner, node)?;
    Ok(Statement {
        kind,
        span: node.span,
    })
}

fn kind(word: &str, inner: &Node, node: &Node) -> Read<StatementKind> {
    let span = node.span;
    if let Some(verdict) = verdict(word, inner)? {
        return Ok(StatementKind::Verdict(verdict));
    }
    let refused = |what| Err(Fault::refused(span, what));
    match word {
        "match" => relation(inner),
        "counter" | "limit" | "quota" | "ct count" => {
            stateful(word, inner, span).map(|statement| statement.kind)
        }
        "mangle" => Ok(StatementKind::Mangle {
            target: mangle_target(&expr(inner.need("key")?)?)?,
            value: expr(inner.need("value")?)?,
        }),
        "vmap" => Ok(StatementKind::VerdictMap {
            key: expr(inner.need("key")?)?,
            map: expr(inner.need("data")?)?,
        }),
        "notrack" => Ok(StatementKind::Notrack),
        "log" => log(inner).map(StatementKind::Log),
        "reject" => reject(inner).map(StatementKind::Reject),
        "snat" => nat(NatKind::Snat, inner),
        "dnat" => nat(NatKind::Dnat, inner),
        "masquerade" => nat(NatKind::Masquerade, inner),
        "redirect" => nat(NatKind::Redirect, inner),
        "set" | "map" => set_update(word, inner),
        "queue" => refused(Refused::Queue),
        "fwd" => refused(Refused::Fwd),
        "dup" => refused(Refused::Dup),
        "tproxy" => refused(Refused::Tproxy),
        "synproxy" => refused(Refused::Synproxy),
        "flow" => refused(Refused::Flowtable),
        "meter" => refused(Refused::Meter),
        "xt" => refused(Refused::Xt),
        "reset" => refused(Refused::TcpOptionReset),
        "ct helper" => refused(Refused::CtHelper),
        "ct timeout" => refused(Refused::CtTimeout),
        "ct expectation" => refused(Refused::CtExpectation),
        other => Err(Fault::wrong(
            span,
            format!("there is no statement \"{other}\""),
        )),
    }
}

/// `{"accept": null}` and the like.
pub(super) fn verdict(word: &str, inner: &Node) -> Read<Option<Verdict>> {
    Ok(Some(match word {
        "accept" => Verdict::Accept,
        "drop" => Verdict::Drop,
        "continue" => Verdict::Continue,
        "return" => Verdict::Return,
        "jump" => Verdict::Jump(name_of(inner, "target")?),
        "goto" => Verdict::Goto(name_of(inner, "target")?),
        _ => return Ok(None),
    }))
}

fn relation(inner: &Node) -> Read<StatementKind> {
    let op = inner.need("op")?;
    let op = match op.text()? {
        // A test of bits is what no operator means to flags.
        "in" => RelOp::Implicit,
        sign => names::relation(sign)
            .ok_or_else(|| Fault::wrong(op.span, format!("there is no operator \"{sign}\"")))?,
    };
    Ok(StatementKind::Match {
        op,
        left: expr(inner.need("left")?)?,
        right: expr(inner.need("right")?)?,
    })
}

/// What elements may keep, too.
pub(super) fn stateful(word: &str, inner: &Node, span: Span) -> Read<Statement> {
    let object = match word {
        "counter" => Some(ObjectKind::Counter),
        "limit" => Some(ObjectKind::Limit),
        "quota" => Some(ObjectKind::Quota),
        _ => None,
    };
    let named = matches!(inner.value, Json::Text(_)) || inner.get("map").is_some();
    let kind = match object {
        Some(kind) if named => StatementKind::Object(kind, expr(inner)?),
        Some(ObjectKind::Counter) => StatementKind::Counter(counter(inner)?),
        Some(ObjectKind::Limit) => StatementKind::Limit(limit(inner)?),
        Some(ObjectKind::Quota) => StatementKind::Quota(Quota {
            bytes: bytes(inner, "val", "val_unit")?.unwrap_or(0),
            used: bytes(inner, "used", "used_unit")?.unwrap_or(0),
            over: inner.flag("inv")?,
        }),
        None => StatementKind::ConnLimit {
            count: u32::try_from(inner.need("val")?.number()?)
                .map_err(|_| Fault::wrong(inner.span, "the count has more than 32 bits"))?,
            over: inner.flag("inv")?,
        },
    };
    Ok(Statement { kind, span })
}

/// Of a statement and of an object.
pub(super) fn counter(inner: &Node) -> Read<Counter> {
    Ok(Counter {
        packets: inner.number_of("packets")?.unwrap_or(0),
        bytes: inner.number_of("bytes")?.unwrap_or(0),
    })
}

/// A number with a unit; packets are counted one by one.
fn bytes(inner: &Node, name: &str, unit: &str) -> Read<Option<u64>> {
    let Some(number) = inner.number_of(name)? else {
        return Ok(None);
    };
    let scale = match inner.text_of(unit)? {
        None | Some("bytes" | "packets") => 1,
        Some("kbytes") => 1024,
        Some("mbytes") => 1024 * 1024,
        Some(other) => {
            return Err(Fault::wrong(
                inner.span,
                format!("there is no unit \"{other}\""),
            ));
        }
    };
    number
        .checked_mul(scale)
        .map(Some)
        .ok_or_else(|| Fault::wrong(inner.span, "the number is too large"))
}

/// Of a statement and of an object.
pub(super) fn limit(inner: &Node) -> Read<Limit> {
    let rate = bytes(inner, "rate", "rate_unit")?
        .ok_or_else(|| Fault::wrong(inner.span, "property \"rate\" is missing"))?;
    let in_bytes = !matches!(inner.text_of("rate_unit")?, None | Some("packets"));
    let unit = match inner.get("per") {
        None => LimitUnit::Second,
        Some(per) => time_unit(per.text()?)
            .ok_or_else(|| Fault::wrong(per.span, "there is no such unit of time"))?,
    };
    let burst = match bytes(inner, "burst", "burst_unit")? {
        Some(burst) => u32::try_from(burst)
            .map_err(|_| Fault::wrong(inner.span, "the burst has more than 32 bits"))?,
        None if in_bytes => 0,
        None => 5,
    };
    Ok(Limit {
        rate,
        unit,
        // nft fills in its default for a burst of no packets, too.
        burst: if burst == 0 && !in_bytes { 5 } else { burst },
        over: inner.flag("inv")?,
        bytes: in_bytes,
    })
}

fn log(inner: &Node) -> Read<Log> {
    let mut log = Log::default();
    if let Some(prefix) = inner.get("prefix") {
        log.prefix = Some(quotable(prefix, 127)?);
    }
    let u16_of = |name: &str| -> Read<Option<u16>> {
        inner
            .get(name)
            .map(|of| {
                u16::try_from(of.number()?)
                    .map_err(|_| Fault::wrong(of.span, "the number has more than 16 bits"))
            })
            .transpose()
    };
    log.group = u16_of("group")?;
    log.queue_threshold = u16_of("queue-threshold")?;
    log.snaplen = inner
        .number_of("snaplen")?
        .map(|length| u32::try_from(length).unwrap_or(u32::MAX));
    if let Some(level) = inner.get("level") {
        log.level = Some(
            symbols::log_level(level.text()?)
                .ok_or_else(|| Fault::wrong(level.span, "there is no such level"))?,
        );
    }
    for flag in inner.get("flags").map_or(&[][..], Node::many) {
        match flag.text()? {
            "tcp sequence" => log.flags.tcp_sequence = true,
            "tcp options" => log.flags.tcp_options = true,
            "ip options" => log.flags.ip_options = true,
            "skuid" => log.flags.skuid = true,
            "ether" => log.flags.ether = true,
            "all" => {
                log.flags = LogFlags {
                    tcp_sequence: true,
                    tcp_options: true,
                    ip_options: true,
                    skuid: true,
                    ether: true,
                };
            }
            _ => return Err(Fault::wrong(flag.span, "there is no such flag of log")),
        }
    }
    Ok(log)
}

fn reject(inner: &Node) -> Read<RejectWith> {
    let Some(word) = inner.text_of("type")? else {
        return Ok(RejectWith::Default);
    };
    if word == "tcp reset" {
        return Ok(RejectWith::TcpReset);
    }
    let code = expr(inner.need("expr")?)?;
    match word {
        "icmp" => Ok(RejectWith::Icmp(code)),
        "icmpv6" => Ok(RejectWith::Icmpv6(code)),
        "icmpx" => Ok(RejectWith::Icmpx(code)),
        _ => Err(Fault::wrong(
            inner.span,
            "a type is icmp, icmpv6, icmpx or tcp reset",
        )),
    }
}

fn nat(kind: NatKind, inner: &Node) -> Read<StatementKind> {
    let family = match inner.text_of("family")? {
        None => None,
        Some("ip") => Some(Family::Ip),
        Some("ip6") => Some(Family::Ip6),
        Some(_) => return Err(Fault::wrong(inner.span, "a family is ip or ip6")),
    };
    let mut flags = NatFlags::default();
    for flag in inner.get("flags").map_or(&[][..], Node::many) {
        match flag.text()? {
            "random" => flags.random = true,
            "fully-random" => flags.fully_random = true,
            "persistent" => flags.persistent = true,
            "netmap" => flags.netmap = true,
            _ => return Err(Fault::wrong(flag.span, "there is no such flag")),
        }
    }
    for flag in inner.get("type_flags").map_or(&[][..], Node::many) {
        flags.netmap |= flag.text()? == "prefix";
    }
    let part = |name: &str| inner.get(name).map(expr).transpose();
    let address = part("addr")?;
    if address.is_some() && matches!(kind, NatKind::Masquerade | NatKind::Redirect) {
        return Err(Fault::wrong(inner.span, "an address cannot be given here"));
    }
    Ok(StatementKind::Nat(Nat {
        kind,
        family,
        address,
        port: part("port")?,
        flags,
        joined: false,
    }))
}

fn set_update(word: &str, inner: &Node) -> Read<StatementKind> {
    let op = inner.need("op")?;
    let op = match op.text()? {
        "add" => SetUpdateOp::Add,
        "update" => SetUpdateOp::Update,
        "delete" => SetUpdateOp::Delete,
        _ => {
            return Err(Fault::wrong(
                op.span,
                "an operation is add, update or delete",
            ));
        }
    };
    let set = inner.need(word)?;
    let name = set
        .text()?
        .strip_prefix('@')
        .ok_or_else(|| Fault::wrong(set.span, "a set is named with @ before it"))?;
    let mut element = elem(inner.need("elem")?)?;
    for one in inner.get("stmt").map_or(&[][..], Node::many) {
        element.statements.push(statement(one)?);
    }
    if let Some(timeout) = milliseconds(inner, "timeout")? {
        element.timeout_ms = Some(timeout);
    }
    if let Some(data) = inner.get("data") {
        element.data = Some(Data::Expr(expr(data)?));
    }
    Ok(StatementKind::SetUpdate {
        op,
        set: name.to_string(),
        element: Box::new(element),
    })
}
