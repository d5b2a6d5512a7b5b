//! One literal: from its word to the bytes of its type, and every way in which it can be wrong.
use crate::prelude::*;
use crate::{
    ast::{Expr, ExprKind},
    env::Env,
    error::Fault,
    source::Span,
    support::Refused,
    symbols::{self, Table, type_name},
    words::parse_time_ms,
};
use core::net::{Ipv4Addr, Ipv6Addr};
use fordway_filter::model::{self, DataType, Value};

/// What a literal is expected to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// Its type.
    pub data_type: DataType,
    /// Names that belong to one field only, such as the types of IGMP.
    pub extra: Table,
}

impl Wanted {
    pub(crate) fn of(data_type: DataType) -> Wanted {
        Wanted {
            data_type,
            extra: &[],
        }
    }

    /// What is expected beside an expression, with its own names.
    pub(crate) fn beside(left: &model::Expr, data_type: DataType) -> Wanted {
        Wanted {
            data_type,
            extra: extra_names(left),
        }
    }
}

/// Names that only one field has.
pub(crate) fn extra_names(left: &model::Expr) -> Table {
    match left {
        model::Expr::Payload(field) => match (field.def().protocol, field.def().name) {
            (model::Protocol::Igmp, "type") => symbols::IGMP_TYPES,
            (model::Protocol::Dccp, "type") => symbols::DCCP_TYPES,
            _ => &[],
        },
        model::Expr::Exthdr(field)
            if field.def().kind == model::ExthdrKind::Mh && field.def().name == "type" =>
        {
            symbols::MH_TYPES
        }
        _ => &[],
    }
}

/// A literal of one value.
pub(crate) fn literal(env: &Env, expr: &Expr, wanted: Wanted) -> Result<Value, Fault> {
    let span = expr.span;
    match expr.resolved() {
        ExprKind::Number(number) => from_number(env, *number, wanted.data_type, span),
        ExprKind::Word(word) => from_word(env, word, wanted, span),
        ExprKind::Quoted(text) => from_quoted(env, text, wanted, span),
        ExprKind::Wild(text) => from_quoted(env, text, wanted, span),
        ExprKind::Bool(yes) => match wanted.data_type {
            DataType::Boolean => Ok(Value::number(DataType::Boolean, u128::from(*yes))),
            // `fib ... oif exists`: the answer is taken as a yes or no.
            other => {
                let word = if *yes { "exists" } else { "missing" };
                Err(Fault::wrong(
                    span,
                    format!("'{word}' is not a value of type {}", type_name(other)),
                ))
            }
        },
        _ => Err(Fault::wrong(
            span,
            format!("expected a value of type {}", type_name(wanted.data_type)),
        )),
    }
}

/// A number, if it fits.
pub(crate) fn from_number(
    env: &Env,
    number: u64,
    data_type: DataType,
    span: Span,
) -> Result<Value, Fault> {
    let _ = env;
    match data_type {
        DataType::IfName | DataType::String => text(&number.to_string(), data_type, span),
        DataType::EtherAddr | DataType::LlAddr => Err(Fault::wrong(
            span,
            format!("'{number}' is not a link layer address"),
        )),
        DataType::Ipv6Addr => Err(Fault::wrong(
            span,
            format!("'{number}' is not an IPv6 address"),
        )),
        DataType::Verdict => Err(Fault::wrong(span, "expected a verdict")),
        // A bit by its number.
        DataType::CtLabel if number < 128 => Ok(Value::number(data_type, 1u128 << number)),
        // Seconds; the model keeps milliseconds.
        DataType::TimeSpan => number
            .checked_mul(1000)
            .map(|ms| Value::number(data_type, ms.into()))
            .ok_or_else(|| too_large(number, u64::MAX / 1000, span)),
        // Seconds since 1970; the model keeps nanoseconds.
        DataType::Time => number
            .checked_mul(1_000_000_000)
            .map(|ns| Value::number(data_type, ns.into()))
            .ok_or_else(|| too_large(number, u64::MAX / 1_000_000_000, span)),
        DataType::Day if number > 6 => Err(too_large(number, 6, span)),
        DataType::Boolean if number > 1 => Err(too_large(number, 1, span)),
        _ => {
            let bits = data_type.bits();
            if bits < 64 && number >> bits != 0 {
                return Err(too_large(number, (1 << bits) - 1, span));
            }
            Ok(Value::number(data_type, number.into()))
        }
    }
}

fn too_large(number: u64, max: u64, span: Span) -> Fault {
    Fault::wrong(
        span,
        format!("value {number} exceeds the valid range 0-{max}"),
    )
}

fn from_word(env: &Env, word: &str, wanted: Wanted, span: Span) -> Result<Value, Fault> {
    let data_type = wanted.data_type;
    let number = |number: u64| Value::number(data_type, number.into());
    if let Some((_, found)) = wanted.extra.iter().find(|(name, _)| *name == word) {
        return Ok(number(*found));
    }
    if let Some(found) = symbols::by_name(data_type, word) {
        return Ok(number(found));
    }
    let wrong = |what: &str| Err(Fault::wrong(span, format!("'{word}' is not {what}")));
    match data_type {
        DataType::Ipv4Addr => match word.parse::<Ipv4Addr>() {
            Ok(address) => Ok(number(u32::from(address).into())),
            Err(_) if looks_like_host(word) => Err(Fault::refused(span, Refused::Hostname)),
            Err(_) => wrong("an IPv4 address"),
        },
        DataType::Ipv6Addr => match word.parse::<Ipv6Addr>() {
            Ok(address) => Ok(Value::number(data_type, u128::from(address))),
            Err(_) if looks_like_host(word) => Err(Fault::refused(span, Refused::Hostname)),
            Err(_) => wrong("an IPv6 address"),
        },
        DataType::EtherAddr | DataType::LlAddr => match lladdr(word) {
            Some(address) => Ok(number(address)),
            None => wrong("a link layer address"),
        },
        DataType::InetService => match env.services.get(word) {
            Some(port) => Ok(number(u64::from(*port))),
            None => wrong("a service"),
        },
        DataType::IfIndex => match env.interface(word) {
            Some(index) => Ok(number(u64::from(index))),
            None => Err(Fault::wrong(
                span,
                format!("there is no interface '{word}' here; iifname and oifname compare names"),
            )),
        },
        DataType::IfName | DataType::String => text(word, data_type, span),
        DataType::Uid => match env.users.get(word) {
            Some(uid) => Ok(number(u64::from(*uid))),
            None => wrong("a user"),
        },
        DataType::Gid => match env.groups.get(word) {
            Some(gid) => Ok(number(u64::from(*gid))),
            None => wrong("a group"),
        },
        DataType::ClassId => match classid(word) {
            Some(id) => Ok(number(id.into())),
            None => wrong("a class id such as 1:10"),
        },
        DataType::TimeSpan => match parse_time_ms(word) {
            Some(ms) => Ok(number(ms)),
            None => wrong("a time such as 1d2h3m4s"),
        },
        DataType::Time => match crate::clock::parse_time_ns(word) {
            Some(ns) => Ok(number(ns)),
            None => wrong("a time such as \"2030-01-31 12:00:00\""),
        },
        DataType::Hour => match crate::clock::parse_hour(word) {
            Some(seconds) => Ok(number(seconds.into())),
            None => wrong("an hour such as \"17:00\""),
        },
        // A number that is too long for the lexer.
        other if other.bits() > 64 && long_number(word).is_some_and(|n| fits_in(n, other)) => {
            Ok(Value::number(other, long_number(word).unwrap_or(0)))
        }
        other => wrong(&format!("a value of type {}", type_name(other))),
    }
}

fn long_number(word: &str) -> Option<u128> {
    match word.get(..2) {
        Some("0x" | "0X") => u128::from_str_radix(&word[2..], 16).ok(),
        _ => word.parse().ok(),
    }
}

fn fits_in(number: u128, data_type: DataType) -> bool {
    data_type.bits() >= 128 || number >> data_type.bits() == 0
}

/// Quotes only tell texts from words; a quoted word means what the word means.
fn from_quoted(env: &Env, quoted: &str, wanted: Wanted, span: Span) -> Result<Value, Fault> {
    match wanted.data_type {
        DataType::IfName => interface_name(quoted, span),
        DataType::String => text(quoted, wanted.data_type, span),
        // Numbers in quotes are numbers.
        other => match parse_number(quoted) {
            Some(number) if symbols::by_name(other, quoted).is_none() => {
                from_number(env, number, other, span)
            }
            _ => from_word(env, quoted, wanted, span),
        },
    }
}

fn parse_number(text: &str) -> Option<u64> {
    match text.get(..2) {
        Some("0x" | "0X") => u64::from_str_radix(&text[2..], 16).ok(),
        _ if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}

/// A name, or the beginning of one before an asterisk; `\*` is an asterisk.
fn interface_name(quoted: &str, span: Span) -> Result<Value, Fault> {
    if let Some(start) = quoted.strip_suffix("\\*") {
        return text(&format!("{start}*"), DataType::IfName, span);
    }
    let Some(start) = quoted.strip_suffix('*') else {
        return text(quoted, DataType::IfName, span);
    };
    if start.is_empty() {
        return Err(Fault::wrong(
            span,
            "an interface name of the asterisk alone matches everything; leave the match out",
        ));
    }
    Value::text_prefix(DataType::IfName, start)
        .ok_or_else(|| Fault::wrong(span, "an interface name has at most 15 bytes"))
}

fn text(text: &str, data_type: DataType, span: Span) -> Result<Value, Fault> {
    if text.is_empty() {
        return Err(Fault::wrong(span, "an empty text"));
    }
    Value::text(data_type, text)
        .ok_or_else(|| Fault::wrong(span, format!("'{text}' is longer than 15 bytes")))
}

fn looks_like_host(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && !word.contains([':', '/'])
        && !word.contains("..")
}

fn lladdr(word: &str) -> Option<u64> {
    let mut sum = 0u64;
    let mut parts = 0;
    for part in word.split(':') {
        if part.is_empty() || part.len() > 2 {
            return None;
        }
        sum = sum << 8 | u64::from_str_radix(part, 16).ok()?;
        parts += 1;
    }
    (parts == 6).then_some(sum)
}

fn classid(word: &str) -> Option<u32> {
    match word {
        "root" => Some(0xffff_ffff),
        "none" => Some(0),
        _ => {
            let (major, minor) = word.split_once(':')?;
            let part = |text: &str| {
                if text.is_empty() {
                    Some(0)
                } else {
                    u32::from(u16::from_str_radix(text, 16).ok()?).into()
                }
            };
            Some(part(major)? << 16 | part(minor)?)
        }
    }
}
