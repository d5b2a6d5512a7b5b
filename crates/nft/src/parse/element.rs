//! `{ ... }`: elements of sets and maps.
use super::{Parsed, Parser, block::set_once};
use crate::prelude::*;
use crate::{
    ast::{Data, Element, Expr, ExprKind},
    error::Fault,
    lex::Token,
};
use alloc::rc::Rc;

impl Parser<'_> {
    /// `{ ... }` or a variable that holds one.
    pub(super) fn element_block(&mut self) -> Parsed<Expr> {
        let span = self.span();
        if self.eat_sign("$") {
            return self.variable(span);
        }
        self.set_literal()
    }

    /// `{ a, b : c, ... }`.
    pub(super) fn set_literal(&mut self) -> Parsed<Expr> {
        let start = self.span();
        self.need_sign("{")?;
        self.sink()?;
        let mut elements = Vec::new();
        loop {
            self.eat_newline();
            if self.at_sign("}") && !elements.is_empty() {
                break;
            }
            elements.push(self.element()?);
            self.eat_newline();
            if !self.eat_sign(",") {
                break;
            }
        }
        self.need_sign("}")?;
        self.rise();
        let span = start.to(self.span_before());
        Ok(Expr::new(ExprKind::Set(Rc::new(elements)), span))
    }

    fn element(&mut self) -> Parsed<Element> {
        let span = self.span();
        let key = if self.eat_sign("*") {
            Expr::new(ExprKind::Star, span)
        } else if self.at_sign("{") {
            // A set inside a set, as a variable brings it in; nft takes it in place too.
            self.set_literal()?
        } else {
            self.rhs_concat()?
        };
        let mut element = Element {
            key,
            data: None,
            timeout_ms: None,
            expires_ms: None,
            comment: None,
            statements: Vec::new(),
        };
        self.element_tail(&mut element)?;
        if self.eat_sign(":") {
            element.data = Some(self.element_data()?);
        }
        Ok(element)
    }

    /// Statements and options of an element, behind its key.
    pub(super) fn element_tail(&mut self, element: &mut Element) -> Parsed<()> {
        while self.at_any(&["counter", "limit", "quota", "ct"]) {
            let statement = self.stateful()?;
            element.statements.push(statement);
        }
        loop {
            let span = self.span();
            if self.eat_word("timeout") {
                set_once(&mut element.timeout_ms, self.time_ms()?, "timeout", span)?;
            } else if self.eat_word("expires") {
                set_once(&mut element.expires_ms, self.time_ms()?, "expires", span)?;
            } else if self.eat_word("comment") {
                set_once(&mut element.comment, self.comment()?, "comment", span)?;
            } else {
                return Ok(());
            }
        }
    }

    fn element_data(&mut self) -> Parsed<Data> {
        let span = self.span();
        if let Some(verdict) = self.verdict()? {
            return Ok(Data::Verdict(verdict, span));
        }
        if matches!(self.peek(), Token::Newline) {
            return Err(Fault::wrong(span, "expected a value behind the colon"));
        }
        Ok(Data::Expr(self.rhs_concat()?))
    }
}
