//! Rules and their statements.
use super::{Parsed, Parser, expr::Side};
use crate::prelude::*;
use crate::{
    ast::{Element, Expr, ExprKind, RejectWith, Rule, Statement, StatementKind},
    error::Fault,
    lex::Token,
    names,
    source::Span,
    support::Refused,
};
use fordway_filter::model::{
    self, BinaryOp, Counter, Limit, LimitUnit, Log, Mangle, NatKind, ObjectKind, Quota, RelOp,
    SetUpdateOp, Verdict,
};

/// More statements than this in one rule are refused.
const STATEMENTS_MAX: usize = 128;

impl Parser<'_> {
    /// Statements and a comment.
    pub(super) fn rule(&mut self) -> Parsed<Rule> {
        let mut statements = Vec::new();
        let mut comment = None;
        loop {
            if self.at_word("comment") && !statements.is_empty() {
                self.next();
                comment = Some(self.comment()?);
                break;
            }
            if !statements.is_empty()
                && (matches!(self.peek(), Token::Newline | Token::End)
                    || self.at_sign(";")
                    || self.at_sign("}"))
            {
                break;
            }
            if statements.len() >= STATEMENTS_MAX {
                return Err(Fault::wrong(
                    self.span(),
                    format!("a rule has at most {STATEMENTS_MAX} statements"),
                ));
            }
            statements.push(self.statement()?);
        }
        Ok(Rule {
            statements,
            comment,
        })
    }

    fn statement(&mut self) -> Parsed<Statement> {
        let start = self.span();
        let kind = self.statement_kind(start)?;
        Ok(Statement {
            kind,
            span: start.to(self.span_before()),
        })
    }

    fn statement_kind(&mut self, start: Span) -> Parsed<StatementKind> {
        if let Some(verdict) = self.verdict()? {
            return Ok(StatementKind::Verdict(verdict));
        }
        let Token::Word(word) = self.peek().clone() else {
            return self.match_or_mangle();
        };
        let refused = |what| Err(Fault::refused(start, what));
        match word.as_str() {
            "counter" | "limit" | "quota" => return self.stateful_kind(),
            "ct" => match self.peek_at(1) {
                Token::Word(key) if key == "count" => return self.stateful_kind(),
                Token::Word(key) if key == "helper" && self.word_at(2, "set") => {
                    return refused(Refused::CtHelper);
                }
                _ => {}
            },
            "log" => {
                self.next();
                return self.log().map(StatementKind::Log);
            }
            "reject" => {
                self.next();
                return self.reject().map(StatementKind::Reject);
            }
            "snat" | "dnat" => {
                self.next();
                let kind = if word == "snat" {
                    NatKind::Snat
                } else {
                    NatKind::Dnat
                };
                return self.nat(kind).map(StatementKind::Nat);
            }
            "masquerade" | "redirect" => {
                self.next();
                let kind = if word == "redirect" {
                    NatKind::Redirect
                } else {
                    NatKind::Masquerade
                };
                return self.nat_port(kind).map(StatementKind::Nat);
            }
            "notrack" => {
                self.next();
                return Ok(StatementKind::Notrack);
            }
            "add" | "update" | "delete" => {
                self.next();
                return self.set_update(&word);
            }
            "set" => {
                self.next();
                return self.set_update_old();
            }
            "queue" => return refused(Refused::Queue),
            "tproxy" => return refused(Refused::Tproxy),
            "synproxy" => return refused(Refused::Synproxy),
            "dup" => return refused(Refused::Dup),
            "fwd" => return refused(Refused::Fwd),
            "xt" => return refused(Refused::Xt),
            "meter" => return refused(Refused::Meter),
            "flow" => {
                return refused(if self.word_at(1, "table") {
                    Refused::Meter
                } else {
                    Refused::Flowtable
                });
            }
            "reset" => return refused(Refused::TcpOptionReset),
            _ => {}
        }
        self.match_or_mangle()
    }

    /// A verdict, if one stands here.
    pub(super) fn verdict(&mut self) -> Parsed<Option<Verdict>> {
        let Token::Word(word) = self.peek() else {
            return Ok(None);
        };
        let verdict = match word.as_str() {
            "accept" => Verdict::Accept,
            "drop" => Verdict::Drop,
            "continue" => Verdict::Continue,
            "return" => Verdict::Return,
            "jump" | "goto" => {
                let jump = word == "jump";
                self.next();
                let span = self.span();
                if self.at_sign("{") {
                    return Err(Fault::refused(span, Refused::AnonymousChain));
                }
                let target = if self.at_sign("$") {
                    self.word_or_variable("the name of a chain")?
                } else {
                    self.identifier("the name of a chain")?
                };
                return Ok(Some(if jump {
                    Verdict::Jump(target)
                } else {
                    Verdict::Goto(target)
                }));
            }
            _ => return Ok(None),
        };
        self.next();
        Ok(Some(verdict))
    }

    fn match_or_mangle(&mut self) -> Parsed<StatementKind> {
        let left = self.concat()?;
        if self.eat_word("vmap") {
            let map = self.map_source()?;
            return Ok(StatementKind::VerdictMap { key: left, map });
        }
        if self.at_word("set") {
            let target = mangle_target(&left)?;
            self.next();
            let value = self.given()?;
            return Ok(StatementKind::Mangle { target, value });
        }
        let left = if self.eat_word("map") {
            let map = self.map_source()?;
            let span = left.span.to(self.span_before());
            Expr::new(ExprKind::Map(Box::new(left), Box::new(map)), span)
        } else {
            left
        };
        let op = self.relation();
        let right = self.rhs_list()?;
        if self.at_sign("/") {
            return self.flags_and_mask(op, left, right);
        }
        Ok(StatementKind::Match { op, left, right })
    }

    fn relation(&mut self) -> RelOp {
        let op = match self.peek() {
            Token::Sign(sign) => names::relation(sign),
            _ => None,
        };
        let Some(op) = op else {
            return RelOp::Implicit;
        };
        self.next();
        op
    }

    /// `tcp flags syn / syn,ack`: of the flags behind the slash, just those before it.
    fn flags_and_mask(&mut self, op: RelOp, left: Expr, right: Expr) -> Parsed<StatementKind> {
        self.need_sign("/")?;
        let mask = self.rhs_list()?;
        let span = left.span.to(mask.span);
        let op = match op {
            RelOp::Implicit | RelOp::Eq => RelOp::Eq,
            RelOp::Ne => RelOp::Ne,
            _ => {
                return Err(Fault::wrong(
                    span,
                    "flags with a mask are compared with == or !=",
                ));
            }
        };
        let kind = ExprKind::Binary(BinaryOp::And, Box::new(left), Box::new(mask));
        Ok(StatementKind::Match {
            op,
            left: Expr::new(kind, span),
            right,
        })
    }

    /// `counter`, `limit`, `quota`, `ct count`: what sets may keep for each element.
    pub(super) fn stateful(&mut self) -> Parsed<Statement> {
        let start = self.span();
        let kind = self.stateful_kind()?;
        Ok(Statement {
            kind,
            span: start.to(self.span_before()),
        })
    }

    fn stateful_kind(&mut self) -> Parsed<StatementKind> {
        if self.eat_word("ct") {
            self.need_word("count")?;
            let over = self.eat_word("over");
            let count = self.number_u32("a number of connections")?;
            return Ok(StatementKind::ConnLimit { count, over });
        }
        let Some(kind) = self.eat_object_kind() else {
            return Err(self.expected("counter, limit, quota or ct count"));
        };
        if self.eat_word("name") {
            let name = self.given()?;
            return Ok(StatementKind::Object(kind, name));
        }
        match kind {
            ObjectKind::Counter => {
                let mut counter = Counter::default();
                loop {
                    if self.eat_word("packets") {
                        counter.packets = self.number("a number of packets")?;
                    } else if self.eat_word("bytes") {
                        counter.bytes = self.number("a number of bytes")?;
                    } else {
                        return Ok(StatementKind::Counter(counter));
                    }
                }
            }
            ObjectKind::Quota => self.quota().map(StatementKind::Quota),
            ObjectKind::Limit => {
                self.need_word("rate")?;
                self.limit().map(StatementKind::Limit)
            }
        }
    }

    /// Behind `limit rate`.
    pub(super) fn limit(&mut self) -> Parsed<Limit> {
        let over = self.eat_word("over");
        let span = self.span();
        let rate = self.number("a rate")?;
        if let Some((scale, unit)) = self.byte_rate()? {
            let burst = if self.eat_word("burst") {
                self.bytes("a number of bytes")?
            } else {
                0
            };
            return Ok(Limit {
                rate: rate
                    .checked_mul(scale)
                    .ok_or_else(|| Fault::wrong(span, "the rate is too large"))?,
                unit,
                burst: u32::try_from(burst)
                    .map_err(|_| Fault::wrong(span, "the burst is too large"))?,
                over,
                bytes: true,
            });
        }
        self.need_sign("/")?;
        let unit = self.time_unit()?;
        let burst = if self.eat_word("burst") {
            let at = self.span();
            let burst = self.number_u32("a number of packets")?;
            self.need_word("packets")?;
            if burst == 0 {
                return Err(Fault::wrong(at, "a burst of packets is not 0"));
            }
            burst
        } else {
            5
        };
        Ok(Limit {
            rate,
            unit,
            burst,
            over,
            bytes: false,
        })
    }

    /// `bytes/second`, `kbytes / minute`: the factor and the unit of time.
    fn byte_rate(&mut self) -> Parsed<Option<(u64, LimitUnit)>> {
        let Token::Word(word) = self.peek().clone() else {
            return Ok(None);
        };
        let span = self.span();
        let (scale, unit) = match word.split_once('/') {
            Some((scale, unit)) => (scale, Some(unit)),
            None => (word.as_str(), None),
        };
        let scale = byte_scale(scale).ok_or_else(|| {
            Fault::wrong(span, format!("'{word}' is not bytes, kbytes or mbytes"))
        })?;
        self.next();
        let unit = match unit {
            Some(name) => time_unit(name)
                .ok_or_else(|| Fault::wrong(span, format!("'{name}' is not a unit of time")))?,
            None => {
                self.need_sign("/")?;
                self.time_unit()?
            }
        };
        Ok(Some((scale, unit)))
    }

    fn time_unit(&mut self) -> Parsed<LimitUnit> {
        let unit = match self.peek() {
            Token::Word(word) => time_unit(word),
            _ => None,
        };
        let Some(unit) = unit else {
            return Err(self.expected("second, minute, hour, day or week"));
        };
        self.next();
        Ok(unit)
    }

    fn bytes(&mut self, what: &str) -> Parsed<u64> {
        let span = self.span();
        let number = self.number(what)?;
        let scale = match self.peek() {
            Token::Word(word) => byte_scale(word),
            _ => None,
        };
        let Some(scale) = scale else {
            return Err(self.expected("bytes, kbytes or mbytes"));
        };
        self.next();
        number
            .checked_mul(scale)
            .ok_or_else(|| Fault::wrong(span, "the number of bytes is too large"))
    }

    fn over(&mut self) -> bool {
        if self.eat_word("over") {
            return true;
        }
        self.eat_word("until");
        false
    }

    /// Behind `quota`.
    pub(super) fn quota(&mut self) -> Parsed<Quota> {
        let over = self.over();
        let bytes = self.bytes("a number of bytes")?;
        let used = if self.eat_word("used") {
            self.bytes("a number of bytes")?
        } else {
            0
        };
        Ok(Quota { bytes, used, over })
    }

    fn log(&mut self) -> Parsed<Log> {
        let mut log = Log::default();
        loop {
            let span = self.span();
            if self.eat_word("prefix") {
                let text = self.string("a prefix")?;
                log.prefix = Some(self.fill_in(&text, span)?);
            } else if self.eat_word("group") {
                log.group = Some(self.number_u16("a group")?);
            } else if self.eat_word("snaplen") {
                log.snaplen = Some(self.number_u32("a length")?);
            } else if self.eat_word("queue-threshold") {
                log.queue_threshold = Some(self.number_u16("a threshold")?);
            } else if self.eat_word("level") {
                let word = self.word_or_variable("a level")?;
                log.level =
                    Some(crate::symbols::log_level(&word).ok_or_else(|| {
                        Fault::wrong(span, format!("there is no level '{word}'"))
                    })?);
            } else if self.eat_word("flags") {
                self.log_flags(&mut log)?;
            } else {
                return Ok(log);
            }
        }
    }

    fn number_u16(&mut self, what: &str) -> Parsed<u16> {
        let span = self.span();
        u16::try_from(self.number(what)?)
            .map_err(|_| Fault::wrong(span, format!("{what} has 16 bits")))
    }

    fn log_flags(&mut self, log: &mut Log) -> Parsed<()> {
        if self.eat_word("tcp") {
            loop {
                if self.eat_word("sequence") {
                    log.flags.tcp_sequence = true;
                } else if self.eat_word("options") {
                    log.flags.tcp_options = true;
                } else {
                    return Err(self.expected("sequence or options"));
                }
                if !self.eat_sign(",") {
                    return Ok(());
                }
            }
        }
        if self.eat_word("ip") {
            self.need_word("options")?;
            log.flags.ip_options = true;
        } else if self.eat_word("skuid") {
            log.flags.skuid = true;
        } else if self.eat_word("ether") {
            log.flags.ether = true;
        } else if self.eat_word("all") {
            log.flags = model::LogFlags {
                tcp_sequence: true,
                tcp_options: true,
                ip_options: true,
                skuid: true,
                ether: true,
            };
        } else {
            return Err(self.expected("tcp, ip, skuid, ether or all"));
        }
        Ok(())
    }

    /// Variables inside a prefix: `"blocked $zone: "`.
    fn fill_in(&mut self, text: &str, span: Span) -> Parsed<String> {
        let mut parts = text.split('$');
        let mut out = parts.next().unwrap_or("").to_string();
        for part in parts {
            let end = part
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(part.len());
            let name = &part[..end];
            let value = self
                .scopes
                .iter()
                .rev()
                .find_map(|scope| scope.get(name))
                .ok_or_else(|| Fault::wrong(span, format!("${name} is not defined")))?;
            match value.0.resolved() {
                ExprKind::Word(text) | ExprKind::Quoted(text) => out.push_str(text),
                ExprKind::Number(number) => out.push_str(&number.to_string()),
                _ => return Err(Fault::wrong(span, format!("${name} is not a text"))),
            }
            out.push_str(&part[end..]);
        }
        Ok(out)
    }

    fn reject(&mut self) -> Parsed<RejectWith> {
        if !self.eat_word("with") {
            return Ok(RejectWith::Default);
        }
        if self.eat_word("tcp") {
            self.need_word("reset")?;
            return Ok(RejectWith::TcpReset);
        }
        let make: fn(Expr) -> RejectWith = if self.eat_word("icmp") {
            RejectWith::Icmp
        } else if self.eat_word("icmpv6") {
            RejectWith::Icmpv6
        } else if self.eat_word("icmpx") {
            RejectWith::Icmpx
        } else {
            return Err(self.expected("icmp, icmpv6, icmpx or tcp reset"));
        };
        // `type` may be left out.
        self.eat_word("type");
        Ok(make(self.primary(Side::Right)?))
    }

    /// `add @set { ... }`, behind the verb.
    fn set_update(&mut self, verb: &str) -> Parsed<StatementKind> {
        let op = match verb {
            "add" => SetUpdateOp::Add,
            "update" => SetUpdateOp::Update,
            _ => SetUpdateOp::Delete,
        };
        self.need_sign("@")?;
        let set = self.identifier("the name of a set")?;
        self.need_sign("{")?;
        let mut element = self.updated()?;
        while self.at_any(&["counter", "limit", "quota", "ct"]) {
            let statement = self.stateful()?;
            element.statements.push(statement);
        }
        if self.eat_sign(":") {
            element.data = Some(crate::ast::Data::Expr(self.concat()?));
        }
        self.need_sign("}")?;
        Ok(StatementKind::SetUpdate {
            op,
            set,
            element: Box::new(element),
        })
    }

    /// `set add ip saddr @set`, behind `set`.
    fn set_update_old(&mut self) -> Parsed<StatementKind> {
        let op = if self.eat_word("add") {
            SetUpdateOp::Add
        } else if self.eat_word("update") {
            SetUpdateOp::Update
        } else if self.eat_word("delete") {
            SetUpdateOp::Delete
        } else {
            return Err(self.expected("add, update or delete"));
        };
        let element = Box::new(self.updated()?);
        self.need_sign("@")?;
        let set = self.identifier("the name of a set")?;
        Ok(StatementKind::SetUpdate { op, set, element })
    }

    fn updated(&mut self) -> Parsed<Element> {
        let mut element = Element {
            key: self.concat()?,
            data: None,
            timeout_ms: None,
            expires_ms: None,
            comment: None,
            statements: Vec::new(),
        };
        if self.at_any(&["timeout", "expires", "comment"]) {
            self.element_tail(&mut element)?;
        }
        Ok(element)
    }
}

/// What a `set` statement may write to.
pub(crate) fn mangle_target(left: &Expr) -> Parsed<Mangle> {
    match &left.kind {
        ExprKind::Leaf(model::Expr::Meta(key)) => Ok(Mangle::Meta(*key)),
        ExprKind::Leaf(model::Expr::Ct { key, direction }) => Ok(Mangle::Ct {
            key: *key,
            direction: *direction,
        }),
        ExprKind::Leaf(model::Expr::Payload(field)) => Ok(Mangle::Payload(*field)),
        ExprKind::Leaf(model::Expr::PayloadRaw {
            base,
            offset_bits,
            bits,
        }) => Ok(Mangle::PayloadRaw {
            base: *base,
            offset_bits: *offset_bits,
            bits: *bits,
        }),
        ExprKind::Leaf(model::Expr::Exthdr(_)) => {
            Err(Fault::refused(left.span, Refused::WriteExthdr))
        }
        _ => Err(Fault::wrong(left.span, "this cannot be set")),
    }
}

fn byte_scale(word: &str) -> Option<u64> {
    Some(match word {
        "bytes" => 1,
        "kbytes" => 1024,
        "mbytes" => 1024 * 1024,
        _ => return None,
    })
}

/// A unit of time by its name.
pub(crate) fn time_unit(word: &str) -> Option<LimitUnit> {
    LimitUnit::ALL.into_iter().find(|unit| unit.name() == word)
}
