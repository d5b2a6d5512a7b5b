//! Expressions and elements of libnftables' JSON.
use super::{
    Read, milliseconds,
    node::{Json, Node},
    quotable, set_of, statement,
};
use crate::prelude::*;
use crate::{
    ast::{self, Data, Element, Expr, ExprKind},
    error::Fault,
    names::{exthdr_kind, is_known_meta, meta_key, protocol},
    parse::exists,
    support::Refused,
};
use fordway_filter::model::{
    self, BinaryOp, CtDirection, CtKey, ExthdrField, FibFlags, FibResult, Field, NumgenMode,
    PayloadBase,
};

/// Any expression.
pub(super) fn expr(node: &Node) -> Read<Expr> {
    let span = node.span;
    let kind = match &node.value {
        Json::Number(number) => match u64::try_from(*number) {
            Ok(number) => ExprKind::Number(number),
            Err(_) if *number >= 0 => ExprKind::Word(number.to_string()),
            Err(_) => return Err(Fault::wrong(span, "the number is out of range")),
        },
        Json::Bool(yes) => ExprKind::Bool(*yes),
        Json::Text(text) if text == "*" => ExprKind::Star,
        Json::Text(text) => match text.strip_prefix('@') {
            Some(name) => ExprKind::SetRef(name.to_string()),
            None => ExprKind::Quoted(quotable(node, 256)?),
        },
        Json::Array(items) => ExprKind::List(items.iter().map(expr).collect::<Read<Vec<_>>>()?),
        Json::Object(_) => return object(node),
        Json::Null => return Err(Fault::wrong(span, "expected an expression")),
    };
    Ok(Expr::new(kind, span))
}

fn object(node: &Node) -> Read<Expr> {
    let (word, inner) = node.only()?;
    let span = node.span;
    let refused = |what| Err(Fault::refused(span, what));
    let kind = match word {
        "concat" => ExprKind::Concat(inner.many().iter().map(expr).collect::<Read<Vec<_>>>()?),
        "set" => return elements(inner),
        "map" => ExprKind::Map(
            Box::new(expr(inner.need("key")?)?),
            Box::new(expr(inner.need("data")?)?),
        ),
        "prefix" => ExprKind::Prefix(
            Box::new(expr(inner.need("addr")?)?),
            inner.need("len")?.number()?,
        ),
        "range" => {
            let (low, high) = two(inner)?;
            ExprKind::Range(Box::new(low), Box::new(high))
        }
        "payload" => return payload(inner, node),
        "exthdr" => exthdr(inner, false)?,
        "tcp option" => exthdr(inner, true)?,
        "meta" => meta(inner)?,
        "ct" => ct(inner)?,
        "fib" => fib(inner)?,
        "numgen" => numgen(inner)?,
        "jhash" => ExprKind::Jhash {
            input: Box::new(expr(inner.need("expr")?)?),
            modulus: modulus(inner)?,
            seed: number_u32(inner, "seed")?,
            offset: number_u32(inner, "offset")?.unwrap_or(0),
        },
        "|" | "^" | "&" | "<<" | ">>" => {
            let op = match word {
                "|" => BinaryOp::Or,
                "^" => BinaryOp::Xor,
                "&" => BinaryOp::And,
                "<<" => BinaryOp::ShiftLeft,
                _ => BinaryOp::ShiftRight,
            };
            let (left, right) = two(inner)?;
            ExprKind::Binary(op, Box::new(left), Box::new(right))
        }
        "symhash" => return refused(Refused::Symhash),
        "socket" => return refused(Refused::Socket),
        "osf" => return refused(Refused::Osf),
        "ipsec" => return refused(Refused::Ipsec),
        "rt" => return refused(Refused::Rt),
        "ip option" => return refused(Refused::IpOption),
        "sctp chunk" => return refused(Refused::SctpChunk),
        other => {
            return Err(Fault::wrong(
                span,
                format!("there is no expression \"{other}\""),
            ));
        }
    };
    Ok(Expr::new(kind, span))
}

fn two(node: &Node) -> Read<(Expr, Expr)> {
    match node.many() {
        [first, second] => Ok((expr(first)?, expr(second)?)),
        // Newer versions of nft join more than two at once.
        _ => Err(Fault::wrong(
            node.span,
            "expected an array of two expressions",
        )),
    }
}

fn number_u32(node: &Node, name: &str) -> Read<Option<u32>> {
    node.get(name)
        .map(|of| {
            u32::try_from(of.number()?)
                .map_err(|_| Fault::wrong(of.span, "the number has more than 32 bits"))
        })
        .transpose()
}

fn modulus(node: &Node) -> Read<u32> {
    match number_u32(node, "mod")? {
        Some(0) => Err(Fault::wrong(node.span, "the modulus is 0")),
        Some(modulus) => Ok(modulus),
        None => Err(Fault::wrong(node.span, "property \"mod\" is missing")),
    }
}

fn leaf(expr: model::Expr) -> ExprKind {
    ExprKind::Leaf(expr)
}

fn payload(inner: &Node, node: &Node) -> Read<Expr> {
    let span = node.span;
    if let Some(base) = inner.text_of("base")? {
        let base = match base {
            "ll" => PayloadBase::Link,
            "nh" => PayloadBase::Network,
            "th" => PayloadBase::Transport,
            "ih" => return Err(Fault::refused(span, Refused::InnerHeader)),
            _ => return Err(Fault::wrong(inner.span, "a base is ll, nh or th")),
        };
        let offset = u16::try_from(inner.need("offset")?.number()?);
        let bits = u16::try_from(inner.need("len")?.number()?);
        let (Ok(offset_bits), Ok(bits @ 1..=128)) = (offset, bits) else {
            return Err(Fault::wrong(
                inner.span,
                "a raw payload expression has 1 to 128 bits",
            ));
        };
        let kind = leaf(model::Expr::PayloadRaw {
            base,
            offset_bits,
            bits,
        });
        return Ok(Expr::new(kind, span));
    }
    let name = inner.need("protocol")?;
    let of = protocol(name.text()?)
        .ok_or_else(|| Fault::wrong(name.span, "there is no such protocol"))?;
    let field = inner.need("field")?;
    let found = Field::by_name(of, field.text()?).ok_or_else(|| {
        Fault::wrong(
            field.span,
            format!("the {} header has no such field", of.name()),
        )
    })?;
    Ok(Expr::new(leaf(model::Expr::Payload(found)), span))
}

fn exthdr(inner: &Node, tcp_option: bool) -> Read<ExprKind> {
    let name = inner.need("name");
    let (Ok(name), false) = (name, inner.get("base").is_some()) else {
        return Err(Fault::refused(inner.span, Refused::RawTcpOption));
    };
    let Some(kind) = exthdr_kind(name.text()?, tcp_option) else {
        return Err(Fault::refused(
            name.span,
            if tcp_option {
                Refused::RawTcpOption
            } else {
                Refused::ExthdrField
            },
        ));
    };
    let Some(field) = inner.get("field") else {
        return Ok(exists(kind));
    };
    ExthdrField::by_name(kind, field.text()?)
        .map(|field| leaf(model::Expr::Exthdr(field)))
        .ok_or_else(|| Fault::wrong(field.span, "the header has no such field"))
}

fn meta(inner: &Node) -> Read<ExprKind> {
    let key = inner.need("key")?;
    let word = key.text()?;
    match meta_key(word) {
        Some(found) => Ok(leaf(model::Expr::Meta(found.key()))),
        None if is_known_meta(word) => Err(Fault::refused(key.span, Refused::MetaKey)),
        None if word == "secmark" => Err(Fault::refused(key.span, Refused::Secmark)),
        None if matches!(word, "secpath" | "ipsec") => {
            Err(Fault::refused(key.span, Refused::Ipsec))
        }
        None => Err(Fault::wrong(key.span, "there is no such meta key")),
    }
}

fn ct(inner: &Node) -> Read<ExprKind> {
    let key = inner.need("key")?;
    let word = key.text()?;
    let family = inner.text_of("family")?.unwrap_or("");
    let joined = format!("{family} {word}");
    let Some(found) = CtKey::by_name(joined.trim()) else {
        return Err(match word {
            "event" => Fault::refused(key.span, Refused::CtEvent),
            "secmark" => Fault::refused(key.span, Refused::Secmark),
            _ => Fault::wrong(key.span, "there is no such ct key"),
        });
    };
    let direction = match inner.text_of("dir")? {
        None => None,
        Some("original") => Some(CtDirection::Original),
        Some("reply") => Some(CtDirection::Reply),
        Some(_) => {
            return Err(Fault::wrong(inner.span, "a direction is original or reply"));
        }
    };
    if direction.is_some() && !ast::takes_direction(found) {
        return Err(Fault::wrong(
            inner.span,
            format!("ct {word} has no direction"),
        ));
    }
    Ok(ast::ct(found, direction))
}

fn fib(inner: &Node) -> Read<ExprKind> {
    let result = inner.need("result")?;
    let result = match result.text()? {
        "oif" => FibResult::Oif,
        "oifname" => FibResult::Oifname,
        "type" => FibResult::Type,
        _ => {
            return Err(Fault::wrong(
                result.span,
                "a result is oif, oifname or type",
            ));
        }
    };
    let mut flags = FibFlags::default();
    for flag in inner.get("flags").map_or(&[][..], Node::many) {
        match flag.text()? {
            "saddr" => flags.saddr = true,
            "daddr" => flags.daddr = true,
            "mark" => flags.mark = true,
            "iif" => flags.iif = true,
            "oif" => flags.oif = true,
            _ => return Err(Fault::wrong(flag.span, "there is no such flag of fib")),
        }
    }
    if flags.saddr == flags.daddr || (flags.iif && flags.oif) {
        return Err(Fault::wrong(
            inner.span,
            "fib needs one of saddr and daddr, and takes one of iif and oif",
        ));
    }
    Ok(leaf(model::Expr::Fib { flags, result }))
}

fn numgen(inner: &Node) -> Read<ExprKind> {
    let mode = inner.need("mode")?;
    let mode = match mode.text()? {
        "inc" => NumgenMode::Inc,
        "random" => NumgenMode::Random,
        _ => return Err(Fault::wrong(mode.span, "a mode is inc or random")),
    };
    Ok(leaf(model::Expr::Numgen {
        mode,
        modulus: modulus(inner)?,
        offset: number_u32(inner, "offset")?.unwrap_or(0),
    }))
}

/// Elements of a set or map: one, or an array of them.
pub(super) fn elements(node: &Node) -> Read<Expr> {
    if let Json::Text(text) = &node.value
        && text.starts_with('@')
    {
        return expr(node);
    }
    let list = node.many().iter().map(element).collect::<Read<Vec<_>>>()?;
    Ok(set_of(list, node.span))
}

fn element(node: &Node) -> Read<Element> {
    let (key, data) = match &node.value {
        Json::Array(pair) => match pair.as_slice() {
            [key, data] => (key, Some(self::data(data)?)),
            _ => {
                return Err(Fault::wrong(
                    node.span,
                    "an element of a map is an array of two",
                ));
            }
        },
        _ => (node, None),
    };
    let mut element = elem(key)?;
    element.data = data;
    Ok(element)
}

/// A key with what is kept beside it.
pub(super) fn elem(node: &Node) -> Read<Element> {
    let Some(inner) = node.get("elem") else {
        return Ok(Element {
            key: expr(node)?,
            data: None,
            timeout_ms: None,
            expires_ms: None,
            comment: None,
            statements: Vec::new(),
        });
    };
    let mut statements = Vec::new();
    if let Json::Object(members) = &inner.value {
        for (name, value) in members {
            if matches!(name.as_str(), "counter" | "limit" | "quota" | "ct count") {
                statements.push(statement::stateful(name, value, node.span)?);
            }
        }
    }
    Ok(Element {
        key: expr(inner.need("val")?)?,
        data: None,
        timeout_ms: milliseconds(inner, "timeout")?,
        expires_ms: milliseconds(inner, "expires")?,
        comment: inner
            .get("comment")
            .map(|comment| quotable(comment, 128))
            .transpose()?,
        statements,
    })
}

fn data(node: &Node) -> Read<Data> {
    if let Json::Object(_) = &node.value {
        let (word, inner) = node.only()?;
        if let Some(verdict) = statement::verdict(word, inner)? {
            return Ok(Data::Verdict(verdict, node.span));
        }
    }
    Ok(Data::Expr(expr(node)?))
}
