//! Sets, maps and named objects: what stands between their braces.
use super::{Parsed, Parser, block::set_once};
use crate::prelude::*;
use crate::{
    ast::{DataSpec, Expr, SetSpec, TypeSpec},
    error::Fault,
    lex::Token,
    support::Refused,
};
use fordway_filter::model::{Counter, Limit, LimitUnit, Object, ObjectKind, ObjectState, Quota};

impl Parser<'_> {
    /// A set or map, behind its name.
    pub(super) fn set_block(&mut self, name: String, is_map: bool) -> Parsed<SetSpec> {
        let mut set = SetSpec {
            name,
            key: None,
            data: None,
            is_map,
            flags: Default::default(),
            timeout_ms: None,
            gc_interval_ms: None,
            size: None,
            policy_memory: false,
            auto_merge: false,
            comment: None,
            statements: Vec::new(),
            elements: None,
        };
        self.need_sign("{")?;
        self.sink()?;
        self.scopes.push(Default::default());
        while !self.at_sign("}") {
            if *self.peek() == Token::End {
                return Err(self.expected("'}' at the end of the set"));
            }
            if self.separator() || self.common()? {
                continue;
            }
            self.set_item(&mut set)?;
        }
        self.next();
        self.scopes.pop();
        self.rise();
        Ok(set)
    }

    fn set_item(&mut self, set: &mut SetSpec) -> Parsed<()> {
        let span = self.span();
        let word = match self.peek() {
            Token::Word(word) => word.clone(),
            _ => return Err(self.expected("a property of the set")),
        };
        match word.as_str() {
            "type" | "typeof" => {
                self.next();
                set.key = Some(self.type_spec(word == "typeof")?);
                if set.is_map {
                    self.need_sign(":")?;
                    set.data = Some(self.data_spec(word == "typeof")?);
                }
            }
            "flags" => {
                self.next();
                self.set_flags(set)?;
            }
            "timeout" => {
                self.next();
                set.timeout_ms = Some(self.time_ms()?);
            }
            "gc-interval" => {
                self.next();
                set.gc_interval_ms = Some(self.time_ms()?);
            }
            "size" => {
                self.next();
                set.size = Some(self.number_u32("a size")?);
            }
            "policy" => {
                self.next();
                set.policy_memory = match self.peek() {
                    Token::Word(word) if word == "memory" => true,
                    Token::Word(word) if word == "performance" => false,
                    _ => return Err(self.expected("performance or memory")),
                };
                self.next();
            }
            "auto-merge" => {
                self.next();
                set.auto_merge = true;
            }
            "comment" => {
                self.next();
                set_once(&mut set.comment, self.comment()?, "comment", span)?;
            }
            "elements" => {
                self.next();
                self.need_sign("=")?;
                set.elements = Some(self.element_block()?);
                // nft wants no separator behind the elements.
                return Ok(());
            }
            "counter" | "limit" | "quota" | "ct" => {
                while self.at_any(&["counter", "limit", "quota", "ct"]) {
                    let statement = self.stateful()?;
                    set.statements.push(statement);
                }
            }
            _ => return Err(self.expected("a property of the set")),
        }
        self.need_separator()
    }

    fn set_flags(&mut self, set: &mut SetSpec) -> Parsed<()> {
        loop {
            match self.peek() {
                Token::Word(word) => match word.as_str() {
                    "constant" => set.flags.constant = true,
                    "interval" => set.flags.interval = true,
                    "timeout" => set.flags.timeout = true,
                    "dynamic" => set.flags.dynamic = true,
                    _ => return Err(self.expected("constant, interval, timeout or dynamic")),
                },
                _ => return Err(self.expected("constant, interval, timeout or dynamic")),
            }
            self.next();
            if !self.eat_sign(",") {
                return Ok(());
            }
        }
    }

    fn type_spec(&mut self, of: bool) -> Parsed<TypeSpec> {
        if of {
            let Expr { kind, span } = self.concat()?;
            return Ok(TypeSpec::Typeof(match kind {
                crate::ast::ExprKind::Concat(parts) => parts,
                kind => vec![Expr::new(kind, span)],
            }));
        }
        let mut names = Vec::new();
        loop {
            let span = self.span();
            match self.peek().clone() {
                Token::Word(word) => names.push((word, span)),
                _ => return Err(self.expected("the name of a type")),
            }
            self.next();
            if !self.eat_sign(".") {
                return Ok(TypeSpec::Names(names));
            }
        }
    }

    fn data_spec(&mut self, of: bool) -> Parsed<DataSpec> {
        let span = self.span();
        if self.eat_word("interval") {
            return Ok(DataSpec::Values(self.type_spec(of)?, true));
        }
        if let Some(kind) = self.eat_object_kind() {
            return Ok(DataSpec::Object(kind));
        }
        if self.at_word("secmark") {
            return Err(Fault::refused(span, Refused::Secmark));
        }
        if self.at_word("synproxy") {
            return Err(Fault::refused(span, Refused::Synproxy));
        }
        if self.eat_word("verdict") {
            return Ok(DataSpec::Verdict);
        }
        Ok(DataSpec::Values(self.type_spec(of)?, false))
    }

    /// A counter, quota or limit, behind its name.
    pub(super) fn object(&mut self, kind: ObjectKind, name: String) -> Parsed<Object> {
        let mut object = Object {
            name,
            handle: 0,
            comment: None,
            state: match kind {
                ObjectKind::Counter => ObjectState::Counter(Counter::default()),
                ObjectKind::Quota => ObjectState::Quota(Quota {
                    bytes: 0,
                    used: 0,
                    over: false,
                }),
                ObjectKind::Limit => ObjectState::Limit(Limit {
                    rate: 0,
                    unit: LimitUnit::Second,
                    burst: 0,
                    over: false,
                    bytes: false,
                }),
            },
        };
        let start = self.span();
        let mut said = false;
        if self.eat_sign("{") {
            self.sink()?;
            while !self.at_sign("}") {
                if *self.peek() == Token::End {
                    return Err(self.expected("'}'"));
                }
                if self.separator() || self.common()? {
                    continue;
                }
                let span = self.span();
                if self.eat_word("comment") {
                    set_once(&mut object.comment, self.comment()?, "comment", span)?;
                } else {
                    object.state = self.object_state(kind)?;
                    said = true;
                }
            }
            self.next();
            self.rise();
        } else if kind != ObjectKind::Counter
            || matches!(self.peek(), Token::Word(word) if word == "packets")
        {
            object.state = self.object_state(kind)?;
            said = true;
        }
        if !said && kind == ObjectKind::Limit {
            return Err(Fault::wrong(start, "a limit needs a rate"));
        }
        Ok(object)
    }

    fn object_state(&mut self, kind: ObjectKind) -> Parsed<ObjectState> {
        match kind {
            ObjectKind::Counter => {
                self.need_word("packets")?;
                let packets = self.number("a number of packets")?;
                self.need_word("bytes")?;
                let bytes = self.number("a number of bytes")?;
                Ok(ObjectState::Counter(Counter { packets, bytes }))
            }
            ObjectKind::Quota => Ok(ObjectState::Quota(self.quota()?)),
            ObjectKind::Limit => {
                self.need_word("rate")?;
                Ok(ObjectState::Limit(self.limit()?))
            }
        }
    }
}
