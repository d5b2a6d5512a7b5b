//! Where the parser stands: looking at tokens, eating them, saying what was expected.
use super::{Parsed, Parser};
use crate::prelude::*;
use crate::{
    error::Fault,
    lex::Token,
    source::Span,
    words::{NAME_BYTES_MAX, is_reserved, parse_time_ms},
};

const END: Token = Token::End;

/// A place that the parser was at.
#[derive(Clone, Copy)]
pub(super) struct Place {
    files: usize,
    token: usize,
    depth: usize,
    scopes: usize,
}

impl Parser<'_> {
    pub(super) fn peek(&self) -> &Token {
        self.peek_at(0)
    }

    /// Looks ahead, inside the innermost file only.
    pub(super) fn peek_at(&self, ahead: usize) -> &Token {
        self.stack
            .last()
            .and_then(|(tokens, at)| tokens.get(at + ahead))
            .map_or(&END, |spanned| &spanned.token)
    }

    pub(super) fn span(&self) -> Span {
        self.stack
            .last()
            .and_then(|(tokens, at)| tokens.get(*at).or_else(|| tokens.last()))
            .map_or(Span::default(), |spanned| spanned.span)
    }

    /// The place of the token before.
    pub(super) fn span_before(&self) -> Span {
        self.stack
            .last()
            .and_then(|(tokens, at)| tokens.get(at.saturating_sub(1)))
            .map_or(Span::default(), |spanned| spanned.span)
    }

    pub(super) fn next(&mut self) {
        let Some((tokens, at)) = self.stack.last_mut() else {
            return;
        };
        if *at + 1 < tokens.len() {
            *at += 1;
        } else if self.stack.len() > 1 {
            self.stack.pop();
        }
    }

    /// Where the parser stands, for coming back to it.
    pub(super) fn place(&self) -> Place {
        Place {
            files: self.stack.len(),
            token: self.stack.last().map_or(0, |(_, at)| *at),
            depth: self.depth,
            scopes: self.scopes.len(),
        }
    }

    /// Keeps a fault and goes on behind the item that it is in, which began at `here`.
    pub(super) fn recover(&mut self, fault: Fault, here: Place) {
        self.fault(fault);
        self.depth = here.depth;
        self.scopes.truncate(here.scopes);
        // From its beginning, so that braces are counted from there.
        if here.files == self.stack.len()
            && let Some((_, at)) = self.stack.last_mut()
        {
            *at = here.token;
        }
        self.skip_line();
    }

    pub(super) fn at_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Word(here) if here == word)
    }

    pub(super) fn word_at(&self, ahead: usize, word: &str) -> bool {
        matches!(self.peek_at(ahead), Token::Word(here) if here == word)
    }

    pub(super) fn at_any(&self, words: &[&str]) -> bool {
        matches!(self.peek(), Token::Word(here) if words.contains(&here.as_str()))
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let there = self.at_word(word);
        if there {
            self.next();
        }
        there
    }

    pub(super) fn need_word(&mut self, word: &str) -> Parsed<()> {
        if self.eat_word(word) {
            Ok(())
        } else {
            Err(self.expected(&format!("'{word}'")))
        }
    }

    pub(super) fn at_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(here) if *here == sign)
    }

    pub(super) fn eat_sign(&mut self, sign: &str) -> bool {
        let there = self.at_sign(sign);
        if there {
            self.next();
        }
        there
    }

    pub(super) fn need_sign(&mut self, sign: &str) -> Parsed<()> {
        if self.eat_sign(sign) {
            Ok(())
        } else {
            Err(self.expected(&format!("'{sign}'")))
        }
    }

    pub(super) fn eat_newline(&mut self) {
        if *self.peek() == Token::Newline {
            self.next();
        }
    }

    /// A semicolon or the end of a line.
    pub(super) fn separator(&mut self) -> bool {
        let there = *self.peek() == Token::Newline || self.at_sign(";");
        if there {
            self.next();
        }
        there
    }

    pub(super) fn need_separator(&mut self) -> Parsed<()> {
        if self.separator() || (*self.peek() == Token::End && self.depth == 0) {
            Ok(())
        } else {
            Err(self.expected("a semicolon or the end of the line"))
        }
    }

    pub(super) fn expected(&self, what: &str) -> Fault {
        Fault::wrong(
            self.span(),
            format!("expected {what}, found {}", self.peek().told()),
        )
    }

    /// Goes on behind the end of the line, or before a bracket that closes the block.
    pub(super) fn skip_line(&mut self) {
        let mut open = 0usize;
        loop {
            match self.peek() {
                Token::End => return,
                Token::Sign("{") => open += 1,
                Token::Sign("}") if open == 0 && self.depth > 0 => return,
                Token::Sign("}") => open = open.saturating_sub(1),
                Token::Newline | Token::Sign(";") if open == 0 => {
                    self.next();
                    return;
                }
                _ => {}
            }
            self.next();
        }
    }

    /// A name that is not a keyword of nft's.
    pub(super) fn identifier(&mut self, what: &str) -> Parsed<String> {
        match self.peek() {
            Token::Word(word) if is_reserved(word) => Err(Fault::wrong(
                self.span(),
                format!("'{word}' is a keyword and cannot be {what}"),
            )),
            Token::Word(word) if word.len() > NAME_BYTES_MAX => Err(Fault::wrong(
                self.span(),
                format!("{what} has at most {NAME_BYTES_MAX} characters"),
            )),
            Token::Word(word) => {
                let word = word.clone();
                self.next();
                Ok(word)
            }
            _ => Err(self.expected(what)),
        }
    }

    /// A word or a quoted text.
    pub(super) fn string(&mut self, what: &str) -> Parsed<String> {
        match self.peek().clone() {
            Token::Word(word) if is_reserved(&word) => Err(Fault::wrong(
                self.span(),
                format!("'{word}' is a keyword; put {what} in quotes"),
            )),
            Token::Word(text) | Token::Quoted(text) | Token::Wild(text) => {
                self.next();
                Ok(text)
            }
            _ => Err(self.expected(what)),
        }
    }

    pub(super) fn number(&mut self, what: &str) -> Parsed<u64> {
        match self.peek() {
            Token::Number(number) => {
                let number = *number;
                self.next();
                Ok(number)
            }
            _ => Err(self.expected(what)),
        }
    }

    pub(super) fn number_u32(&mut self, what: &str) -> Parsed<u32> {
        let span = self.span();
        let number = self.number(what)?;
        u32::try_from(number)
            .map_err(|_| Fault::wrong(span, format!("{what} {number} is too large")))
    }

    /// `1d2h`, `30s`, and a bare number of seconds.
    pub(super) fn time_ms(&mut self) -> Parsed<u64> {
        let span = self.span();
        let parsed = match self.peek() {
            Token::Word(word) | Token::Quoted(word) => parse_time_ms(word),
            // A bare number is a syntax error to nft in these places.
            _ => None,
        };
        match parsed {
            Some(ms) => {
                self.next();
                Ok(ms)
            }
            None => {
                let _ = span;
                Err(self.expected("a time such as 1d2h3m4s"))
            }
        }
    }

    /// `comment "text"`, behind `comment`.
    pub(super) fn comment(&mut self) -> Parsed<String> {
        let span = self.span();
        let text = self.string("a comment")?;
        // NFTNL_UDATA_COMMENT_MAXLEN
        if text.len() > 128 {
            return Err(Fault::wrong(
                span,
                "a comment has at most 128 bytes".to_string(),
            ));
        }
        Ok(text)
    }
}
