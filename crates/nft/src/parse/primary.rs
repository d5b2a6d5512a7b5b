//! The smallest expressions: values, and what is read from a packet.
use super::{Parsed, Parser, expr::Side};
use crate::prelude::*;
use crate::{
    ast::{self, Expr, ExprKind},
    error::Fault,
    lex::Token,
    names::{exthdr_kind, is_known_meta, meta_key, protocol},
    support::Refused,
    words::is_reserved,
};
use fordway_filter::model::{
    self, CtDirection, CtKey, ExthdrField, ExthdrKind, FibFlags, FibResult, Field, MetaKey,
    NumgenMode, PayloadBase, Protocol,
};

/// Keywords that are values where values stand.
const KEYWORD_VALUES: &[&str] = &[
    "ether", "ip", "ip6", "vlan", "arp", "dnat", "snat", "ecn", "reset", "original", "reply",
    "label", "tcp", "udp", "udplite", "esp", "ah", "icmp", "igmp", "icmpv6", "comp", "dccp",
    "sctp", "redirect",
];

impl Parser<'_> {
    pub(super) fn primary(&mut self, side: Side) -> Parsed<Expr> {
        let span = self.span();
        if self.eat_sign("(") {
            self.sink()?;
            let inner = self.basic(side)?;
            self.need_sign(")")?;
            self.rise();
            return Ok(inner);
        }
        if self.eat_sign("$") {
            return self.variable(span);
        }
        if side != Side::Right
            && let Some(kind) = self.leaf()?
        {
            let span = span.to(self.span_before());
            return Ok(Expr::new(kind, span));
        }
        let kind = match self.peek().clone() {
            Token::Number(number) => ExprKind::Number(number),
            Token::Quoted(text) => ExprKind::Quoted(text),
            Token::Wild(text) => ExprKind::Wild(text),
            Token::LongNumber(text) => ExprKind::Word(text),
            Token::Word(word) => match word.as_str() {
                "exists" => ExprKind::Bool(true),
                "missing" => ExprKind::Bool(false),
                other if is_reserved(other) && !KEYWORD_VALUES.contains(&other) => {
                    return Err(self.expected(if side == Side::Right {
                        "a value"
                    } else {
                        "an expression or a statement"
                    }));
                }
                _ => ExprKind::Word(word),
            },
            _ => {
                return Err(self.expected(match side {
                    Side::Left => "a statement",
                    Side::Right => "a value",
                    Side::Given => "an expression",
                }));
            }
        };
        self.next();
        Ok(Expr::new(kind, span))
    }

    /// What is read from the packet, if such a thing begins here.
    fn leaf(&mut self) -> Parsed<Option<ExprKind>> {
        if self.at_sign("@") {
            return self.raw_payload().map(Some);
        }
        let Token::Word(word) = self.peek().clone() else {
            return Ok(None);
        };
        let span = self.span();
        match word.as_str() {
            "meta" => {
                self.next();
                self.meta().map(Some)
            }
            "ct" => {
                self.next();
                self.ct().map(Some)
            }
            "fib" => {
                self.next();
                self.fib().map(Some)
            }
            "numgen" => {
                self.next();
                self.numgen().map(Some)
            }
            "jhash" => {
                self.next();
                self.jhash().map(Some)
            }
            "symhash" => Err(Fault::refused(span, Refused::Symhash)),
            "socket" => Err(Fault::refused(span, Refused::Socket)),
            "osf" => Err(Fault::refused(span, Refused::Osf)),
            "ipsec" => Err(Fault::refused(span, Refused::Ipsec)),
            "rt0" | "rt2" | "srh" => Err(Fault::refused(span, Refused::ExthdrField)),
            "exthdr" => {
                self.next();
                let kind = self.exthdr_name()?;
                Ok(Some(exists(kind)))
            }
            "rt" | "hbh" | "frag" | "dst" | "mh" => self.exthdr(&word).map(Some),
            other => {
                if let Some(key) = meta_key(other)
                    && key.is_unqualified_word()
                {
                    self.next();
                    return Ok(Some(ExprKind::Leaf(model::Expr::Meta(key.key()))));
                }
                match protocol(other) {
                    Some(protocol) => self.payload(protocol),
                    None => Ok(None),
                }
            }
        }
    }

    fn meta(&mut self) -> Parsed<ExprKind> {
        let Token::Word(word) = self.peek().clone() else {
            return Err(self.expected("a meta key"));
        };
        let span = self.span();
        let Some(key) = meta_key(&word) else {
            return Err(match word.as_str() {
                "secmark" => Fault::refused(span, Refused::Secmark),
                "ipsec" | "secpath" => Fault::refused(span, Refused::Ipsec),
                other if is_known_meta(other) => Fault::refused(span, Refused::MetaKey),
                _ => self.expected("a meta key"),
            });
        };
        self.next();
        Ok(ExprKind::Leaf(model::Expr::Meta(key.key())))
    }

    fn ct(&mut self) -> Parsed<ExprKind> {
        let direction = if self.eat_word("original") {
            Some(CtDirection::Original)
        } else if self.eat_word("reply") {
            Some(CtDirection::Reply)
        } else {
            None
        };
        let span = self.span();
        let Token::Word(first) = self.peek().clone() else {
            return Err(self.expected("a ct key"));
        };
        let key = match (first.as_str(), self.peek_at(1)) {
            ("ip" | "ip6", Token::Word(second)) => {
                let key = CtKey::by_name(&format!("{first} {second}"));
                if key.is_some() {
                    self.next();
                }
                key
            }
            ("event", _) => return Err(Fault::refused(span, Refused::CtEvent)),
            ("secmark", _) => return Err(Fault::refused(span, Refused::Secmark)),
            ("timeout", _) => return Err(Fault::refused(span, Refused::CtTimeout)),
            ("expectation", _) => return Err(Fault::refused(span, Refused::CtExpectation)),
            _ => CtKey::by_name(&first),
        };
        let Some(key) = key else {
            return Err(self.expected("a ct key"));
        };
        if direction.is_some() && !ast::takes_direction(key) {
            return Err(Fault::wrong(
                span,
                format!("ct {} has no direction", key.name()),
            ));
        }
        if direction.is_none()
            && matches!(
                key,
                CtKey::IpSaddr | CtKey::IpDaddr | CtKey::Ip6Saddr | CtKey::Ip6Daddr
            )
        {
            return Err(Fault::wrong(
                span,
                format!("ct {} needs original or reply before it", key.name()),
            ));
        }
        self.next();
        Ok(ast::ct(key, direction))
    }

    fn fib(&mut self) -> Parsed<ExprKind> {
        let start = self.span();
        let mut flags = FibFlags::default();
        loop {
            match self.peek() {
                Token::Word(word) => match word.as_str() {
                    "saddr" => flags.saddr = true,
                    "daddr" => flags.daddr = true,
                    "mark" => flags.mark = true,
                    "iif" => flags.iif = true,
                    "oif" => flags.oif = true,
                    _ => return Err(self.expected("saddr, daddr, mark, iif or oif")),
                },
                _ => return Err(self.expected("saddr, daddr, mark, iif or oif")),
            }
            self.next();
            if !self.eat_sign(".") {
                break;
            }
        }
        let result = match self.peek() {
            Token::Word(word) => match word.as_str() {
                "oif" => FibResult::Oif,
                "oifname" => FibResult::Oifname,
                "type" => FibResult::Type,
                _ => return Err(self.expected("oif, oifname or type")),
            },
            _ => return Err(self.expected("oif, oifname or type")),
        };
        if flags.saddr == flags.daddr {
            return Err(Fault::wrong(start, "fib needs one of saddr and daddr"));
        }
        if flags.iif && flags.oif {
            return Err(Fault::wrong(start, "fib takes one of iif and oif"));
        }
        self.next();
        Ok(ExprKind::Leaf(model::Expr::Fib { flags, result }))
    }

    fn numgen(&mut self) -> Parsed<ExprKind> {
        let mode = if self.eat_word("inc") {
            NumgenMode::Inc
        } else if self.eat_word("random") {
            NumgenMode::Random
        } else {
            return Err(self.expected("inc or random"));
        };
        self.need_word("mod")?;
        let modulus = self.modulus()?;
        let offset = self.offset()?;
        Ok(ExprKind::Leaf(model::Expr::Numgen {
            mode,
            modulus,
            offset,
        }))
    }

    fn jhash(&mut self) -> Parsed<ExprKind> {
        let input = Box::new(self.concat()?);
        self.need_word("mod")?;
        let modulus = self.modulus()?;
        let seed = if self.eat_word("seed") {
            Some(self.number_u32("a seed")?)
        } else {
            None
        };
        let offset = self.offset()?;
        Ok(ExprKind::Jhash {
            input,
            modulus,
            seed,
            offset,
        })
    }

    fn modulus(&mut self) -> Parsed<u32> {
        let span = self.span();
        match self.number_u32("a modulus")? {
            0 => Err(Fault::wrong(span, "the modulus is 0")),
            modulus => Ok(modulus),
        }
    }

    fn offset(&mut self) -> Parsed<u32> {
        if self.eat_word("offset") {
            self.number_u32("an offset")
        } else {
            Ok(0)
        }
    }

    fn raw_payload(&mut self) -> Parsed<ExprKind> {
        let start = self.span();
        self.need_sign("@")?;
        let base = match self.peek() {
            Token::Word(word) => match word.as_str() {
                "ll" => PayloadBase::Link,
                "nh" => PayloadBase::Network,
                "th" => PayloadBase::Transport,
                "ih" => return Err(Fault::refused(start, Refused::InnerHeader)),
                _ => return Err(self.expected("ll, nh or th")),
            },
            _ => return Err(self.expected("ll, nh or th")),
        };
        self.next();
        self.need_sign(",")?;
        let offset = self.number("an offset in bits")?;
        self.need_sign(",")?;
        let bits = self.number("a length in bits")?;
        let (Ok(offset_bits), Ok(bits)) = (u16::try_from(offset), u16::try_from(bits)) else {
            return Err(Fault::wrong(start, "the raw payload lies too far away"));
        };
        if bits == 0 || bits > 128 {
            return Err(Fault::wrong(
                start,
                "a raw payload expression has 1 to 128 bits",
            ));
        }
        Ok(ExprKind::Leaf(model::Expr::PayloadRaw {
            base,
            offset_bits,
            bits,
        }))
    }

    /// `tcp dport` and the like. Only a protocol's name is a value: `meta protocol set ip`.
    fn payload(&mut self, protocol: Protocol) -> Parsed<Option<ExprKind>> {
        let span = self.span();
        let Token::Word(first) = self.peek_at(1).clone() else {
            return Ok(None);
        };
        if first == "option" && protocol == Protocol::Tcp {
            self.next();
            self.next();
            return self.tcp_option().map(Some);
        }
        if first == "option" && protocol == Protocol::Ip {
            return Err(Fault::refused(span, Refused::IpOption));
        }
        if first == "chunk" && protocol == Protocol::Sctp {
            return Err(Fault::refused(span, Refused::SctpChunk));
        }
        if let Token::Word(second) = self.peek_at(2)
            && let Some(field) = Field::by_name(protocol, &format!("{first} {second}"))
        {
            self.next();
            self.next();
            self.next();
            return Ok(Some(ExprKind::Leaf(model::Expr::Payload(field))));
        }
        match Field::by_name(protocol, &first) {
            Some(field) => {
                self.next();
                self.next();
                Ok(Some(ExprKind::Leaf(model::Expr::Payload(field))))
            }
            None => {
                self.next();
                Err(self.expected(&format!("a field of the {} header", protocol.name())))
            }
        }
    }

    fn tcp_option(&mut self) -> Parsed<ExprKind> {
        let span = self.span();
        let Token::Word(word) = self.peek().clone() else {
            return Err(match self.peek() {
                Token::Number(_) | Token::Sign("@") => Fault::refused(span, Refused::RawTcpOption),
                _ => self.expected("the name of a TCP option"),
            });
        };
        let Some(kind) = exthdr_kind(&word, true) else {
            return Err(match word.as_str() {
                "sack0" | "sack1" | "sack2" | "sack3" | "echo" | "fastopen" | "md5sig"
                | "mptcp" => Fault::refused(span, Refused::RawTcpOption),
                _ => self.expected("the name of a TCP option"),
            });
        };
        self.next();
        if let Token::Word(field) = self.peek().clone()
            // `kind` alone is no field of nft's grammar.
            && field != "kind"
            && let Some(field) = ExthdrField::by_name(kind, &field)
        {
            self.next();
            return Ok(ExprKind::Leaf(model::Expr::Exthdr(field)));
        }
        Ok(exists(kind))
    }

    fn exthdr_name(&mut self) -> Parsed<ExthdrKind> {
        let kind = match self.peek() {
            Token::Word(word) => exthdr_kind(word, false),
            _ => None,
        };
        let Some(kind) = kind else {
            return Err(self.expected("hbh, rt, frag, dst or mh"));
        };
        self.next();
        Ok(kind)
    }

    fn exthdr(&mut self, word: &str) -> Parsed<ExprKind> {
        let span = self.span();
        self.next();
        let Some(kind) = exthdr_kind(word, false) else {
            return Err(self.expected("an extension header"));
        };
        let Token::Word(field) = self.peek().clone() else {
            return Err(self.expected(&format!("a field of the {word} header")));
        };
        match ExthdrField::by_name(kind, &field) {
            Some(field) => {
                self.next();
                Ok(ExprKind::Leaf(model::Expr::Exthdr(field)))
            }
            None if kind == ExthdrKind::Rt => match field.as_str() {
                "classid" | "nexthop" | "mtu" | "ipsec" | "ip" | "ip6" => {
                    Err(Fault::refused(span, Refused::Rt))
                }
                _ => Err(self.expected("a field of the rt header")),
            },
            None => Err(self.expected(&format!("a field of the {word} header"))),
        }
    }
}

/// The test whether a header or option is there.
pub(crate) fn exists(kind: ExthdrKind) -> ExprKind {
    ExprKind::Leaf(model::Expr::ExthdrExists(ExthdrField::first(kind)))
}

/// How a meta key may be written.
pub(crate) struct MetaWord {
    key: MetaKey,
    unqualified: bool,
}

impl MetaWord {
    pub(crate) fn new(key: MetaKey, unqualified: bool) -> MetaWord {
        MetaWord { key, unqualified }
    }

    pub(crate) fn key(&self) -> MetaKey {
        self.key
    }

    fn is_unqualified_word(&self) -> bool {
        self.unqualified
    }
}
