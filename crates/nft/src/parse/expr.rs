//! Expressions. nft has three grammars for them, told apart here by [`Side`]: what a match
//! looks at, what it is compared with, and what a statement is given.
use super::{Parsed, Parser};
use crate::prelude::*;
use crate::{
    ast::{Expr, ExprKind},
    error::Fault,
    lex::Token,
};
use fordway_filter::model::BinaryOp;

/// Where an expression stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Left of a match, keys: fields of the packet.
    Left,
    /// Right of a match, elements: values.
    Right,
    /// Behind `set`, `to`: both.
    Given,
}

/// Operators by how tightly they hold, the loosest first.
const LEVELS: [&[(&str, BinaryOp)]; 4] = [
    &[("|", BinaryOp::Or)],
    &[("^", BinaryOp::Xor)],
    &[("&", BinaryOp::And)],
    &[("<<", BinaryOp::ShiftLeft), (">>", BinaryOp::ShiftRight)],
];

impl Parser<'_> {
    /// Bitwise operators.
    pub(super) fn basic(&mut self, side: Side) -> Parsed<Expr> {
        self.binary(side, 0)
    }

    fn binary(&mut self, side: Side, level: usize) -> Parsed<Expr> {
        let Some(operators) = LEVELS.get(level) else {
            return self.primary(side);
        };
        let mut left = self.binary(side, level + 1)?;
        // The right operand of a match's left side is a value.
        let right_side = if side == Side::Left {
            Side::Right
        } else {
            side
        };
        let mut steps = 0;
        loop {
            let Some((_, op)) = operators.iter().find(|(sign, _)| self.at_sign(sign)) else {
                return Ok(left);
            };
            self.next();
            steps += 1;
            if steps > super::DEPTH_MAX {
                return Err(Fault::wrong(
                    self.span(),
                    format!("more than {} operators in a row", super::DEPTH_MAX),
                ));
            }
            let right = self.binary(right_side, level + 1)?;
            let span = left.span.to(right.span);
            let kind = ExprKind::Binary(*op, Box::new(left), Box::new(right));
            left = Expr::new(kind, span);
        }
    }

    /// `a . b . c` on the left side.
    pub(super) fn concat(&mut self) -> Parsed<Expr> {
        let first = self.basic(Side::Left)?;
        self.concat_from(first, |parser| parser.basic(Side::Left))
    }

    /// `a . b` on the right side; each part may be a range or a prefix.
    pub(super) fn rhs_concat(&mut self) -> Parsed<Expr> {
        let first = self.rhs_part()?;
        self.concat_from(first, Parser::rhs_part)
    }

    fn concat_from(
        &mut self,
        first: Expr,
        mut part: impl FnMut(&mut Self) -> Parsed<Expr>,
    ) -> Parsed<Expr> {
        if !self.at_sign(".") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.eat_sign(".") {
            parts.push(part(self)?);
            if parts.len() > super::DEPTH_MAX {
                return Err(Fault::wrong(self.span(), "too many parts joined with dots"));
            }
        }
        let span = parts[0].span.to(self.span_before());
        Ok(Expr::new(ExprKind::Concat(parts), span))
    }

    fn rhs_part(&mut self) -> Parsed<Expr> {
        let value = self.basic(Side::Right)?;
        self.multiton(value, Side::Right)
    }

    /// A range or prefix, if one follows.
    fn multiton(&mut self, value: Expr, side: Side) -> Parsed<Expr> {
        if self.at_sign("/") && matches!(self.peek_at(1), Token::Number(_)) {
            self.next();
            let bits = self.number("a number of bits")?;
            let span = value.span.to(self.span_before());
            return Ok(Expr::new(ExprKind::Prefix(Box::new(value), bits), span));
        }
        if self.eat_sign("-") {
            let high = self.basic(side)?;
            let span = value.span.to(high.span);
            let kind = ExprKind::Range(Box::new(value), Box::new(high));
            return Ok(Expr::new(kind, span));
        }
        Ok(value)
    }

    /// The right side of a match: a set, a set by name, or values joined by commas.
    pub(super) fn rhs_list(&mut self) -> Parsed<Expr> {
        if self.at_sign("{") {
            return self.set_literal();
        }
        if self.at_sign("@") {
            return self.set_name();
        }
        let first = self.rhs_concat()?;
        if !self.at_sign(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.eat_sign(",") {
            items.push(self.basic(Side::Right)?);
        }
        let span = items[0].span.to(self.span_before());
        Ok(Expr::new(ExprKind::List(items), span))
    }

    /// `@name`.
    pub(super) fn set_name(&mut self) -> Parsed<Expr> {
        let start = self.span();
        self.need_sign("@")?;
        let name = self.identifier("the name of a set")?;
        let span = start.to(self.span_before());
        Ok(Expr::new(ExprKind::SetRef(name), span))
    }

    /// `@name`, `{ ... }` or a variable: what a map or vmap looks in.
    pub(super) fn map_source(&mut self) -> Parsed<Expr> {
        let start = self.span();
        if self.at_sign("{") {
            self.set_literal()
        } else if self.eat_sign("$") {
            self.variable(start)
        } else {
            self.set_name()
        }
    }

    /// What a statement is given: an expression, a map, a range, a prefix.
    pub(super) fn given(&mut self) -> Parsed<Expr> {
        let first = self.basic(Side::Given)?;
        if self.at_sign("-") || self.at_sign("/") {
            return self.multiton(first, Side::Given);
        }
        let key = self.concat_from(first, |parser| parser.primary(Side::Given))?;
        if !self.eat_word("map") {
            return Ok(key);
        }
        let map = self.map_source()?;
        let span = key.span.to(self.span_before());
        let kind = ExprKind::Map(Box::new(key), Box::new(map));
        Ok(Expr::new(kind, span))
    }
}
