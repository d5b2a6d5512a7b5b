//! `snat`, `dnat`, `masquerade`, `redirect`.
use super::{Parsed, Parser};
use crate::{ast::Nat, lex::Token};
use fordway_filter::model::{Family, NatKind};

impl Parser<'_> {
    pub(super) fn nat(&mut self, kind: NatKind) -> Parsed<Nat> {
        let mut nat = Nat::new(kind);
        let to_follows = |parser: &Self, at| {
            ["to", "addr", "interval", "prefix"]
                .iter()
                .any(|word| parser.word_at(at, word))
        };
        if self.at_word("ip") && to_follows(self, 1) {
            nat.family = Some(Family::Ip);
            self.next();
        } else if self.at_word("ip6") && to_follows(self, 1) {
            nat.family = Some(Family::Ip6);
            self.next();
        }
        if nat.family.is_some() && self.eat_word("addr") {
            self.need_sign(".")?;
            self.need_word("port")?;
            self.need_word("to")?;
            nat.joined = true;
            nat.address = Some(self.given()?);
            return self.nat_flags(nat);
        }
        if self.at_word("interval") && self.word_at(1, "to") {
            self.next();
        } else if self.at_word("prefix") && self.word_at(1, "to") {
            self.next();
            nat.flags.netmap = true;
        }
        self.eat_word("to");
        if !self.at_sign(":") {
            nat.address = Some(self.given()?);
        }
        if self.eat_sign(":") {
            nat.port = Some(self.given()?);
        }
        self.nat_flags(nat)
    }

    pub(super) fn nat_port(&mut self, kind: NatKind) -> Parsed<Nat> {
        let mut nat = Nat::new(kind);
        if self.eat_word("to") {
            if !self.eat_sign(":") && kind == NatKind::Masquerade {
                return Err(self.expected("':' and a port"));
            }
            nat.port = Some(self.given()?);
        }
        self.nat_flags(nat)
    }

    fn nat_flags(&mut self, mut nat: Nat) -> Parsed<Nat> {
        if !self.at_any(&["random", "fully-random", "persistent"]) {
            return Ok(nat);
        }
        loop {
            match self.peek() {
                Token::Word(word) => match word.as_str() {
                    "random" => nat.flags.random = true,
                    "fully-random" => nat.flags.fully_random = true,
                    "persistent" => nat.flags.persistent = true,
                    _ => return Err(self.expected("random, fully-random or persistent")),
                },
                _ => return Err(self.expected("random, fully-random or persistent")),
            }
            self.next();
            if !self.eat_sign(",") {
                return Ok(nat);
            }
        }
    }
}
