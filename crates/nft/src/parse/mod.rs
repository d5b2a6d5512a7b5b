//! Tokens to commands: nft's grammar by recursive descent.
//!
//! winnow cuts the text into tokens ([`crate::lex`]); the grammar above them is written out by
//! hand, because three things of nft's language do not sit well in combinators: `include`
//! pushes another file in the middle of a block, `$name` puts an expression in place of itself
//! with the scope of the block it stands in, and each error has to name what was expected just
//! there.
//!
//! After a fault the parser goes on behind the end of the line, so that one run tells more than
//! one; but then no commands come out. Everything is bounded: nesting of expressions and blocks
//! ([`DEPTH_MAX`]), includes ([`crate::source`]), faults told.
use crate::prelude::*;
mod block;
mod command;
mod cursor;
mod element;
mod expr;
mod nat;
mod object;
mod primary;
mod statement;

use crate::{
    ast::{Command, Expr, ExprKind},
    error::{FAULTS_MAX, Fault},
    lex::{self, Spanned, Token},
    source::{FILES_MAX, Files, INCLUDE_DEPTH_MAX, SOURCE_BYTES_MAX, SourceMap, Span},
};
use alloc::rc::Rc;
use hashbrown::HashMap;

/// Brackets in brackets, blocks in blocks.
pub const DEPTH_MAX: usize = 32;

/// What names stand for, and how deep variables in variables go.
pub(crate) type Variables = HashMap<String, (Rc<Expr>, usize)>;

pub(crate) use primary::{MetaWord, exists};
pub(crate) use statement::{mangle_target, time_unit};

pub(crate) type Parsed<T> = Result<T, Fault>;

/// Reads one text and what it includes.
pub struct Parser<'a> {
    files: &'a dyn Files,
    sources: &'a mut SourceMap,
    /// Files that are being read, the innermost last, each with its place.
    stack: Vec<(Rc<Vec<Spanned>>, usize)>,
    /// Definitions: of the file, of the block, of the inner block.
    scopes: Vec<Variables>,
    /// How deep the variables go that the present definition names.
    variable_depth: usize,
    faults: Vec<Fault>,
    commands: Vec<Command>,
    depth: usize,
}

/// Reads the text that `sources` got as number `file`.
pub fn parse(
    files: &dyn Files,
    sources: &mut SourceMap,
    file: u16,
    defines: &[(String, String)],
) -> Result<Vec<Command>, Vec<Fault>> {
    let tokens = lex::tokens(file, sources.text(file)).map_err(|fault| vec![fault])?;
    let mut parser = Parser {
        files,
        sources,
        stack: vec![(Rc::new(tokens), 0)],
        scopes: vec![HashMap::new()],
        faults: Vec::new(),
        commands: Vec::new(),
        depth: 0,
        variable_depth: 0,
    };
    for (name, value) in defines {
        let value = ExprKind::Word(value.clone());
        let value = Rc::new(Expr::new(value, Span::default()));
        parser.scopes[0].insert(name.clone(), (value, 1));
    }
    parser.whole();
    if parser.faults.is_empty() {
        Ok(parser.commands)
    } else {
        Err(parser.faults)
    }
}

impl Parser<'_> {
    fn whole(&mut self) {
        while *self.peek() != Token::End && self.faults.len() < FAULTS_MAX {
            let here = self.place();
            if let Err(fault) = self.line() {
                self.recover(fault, here);
            }
        }
    }

    /// A command or a definition, with the end of its line.
    fn line(&mut self) -> Parsed<()> {
        if self.separator() || self.common()? {
            return Ok(());
        }
        self.command()?;
        self.need_separator()
    }

    /// `include`, `define`, `redefine`, `undefine`: what may stand in every block.
    fn common(&mut self) -> Parsed<bool> {
        let span = self.span();
        if self.eat_word("include") {
            let Token::Quoted(pattern) = self.peek().clone() else {
                return Err(self.expected("the name of a file in quotes"));
            };
            self.next();
            self.need_separator()?;
            self.include(&pattern, span)?;
        } else if self.eat_word("define") {
            let (name, value) = self.definition()?;
            // In no block around it either.
            if self.scopes.iter().any(|scope| scope.contains_key(&name)) {
                return Err(Fault::wrong(
                    span,
                    format!("${name} is defined already; use redefine"),
                ));
            }
            self.bind(name, value, span)?;
        } else if self.eat_word("redefine") {
            let (name, value) = self.definition()?;
            self.bind(name, value, span)?;
        } else if self.eat_word("undefine") {
            let name = self.identifier("the name of a variable")?;
            self.need_separator()?;
            if self.scope().remove(&name).is_none() {
                return Err(Fault::wrong(span, format!("${name} is not defined here")));
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn definition(&mut self) -> Parsed<(String, Expr)> {
        let name = self.identifier("the name of a variable")?;
        self.need_sign("=")?;
        self.variable_depth = 0;
        let value = self.initializer()?;
        self.need_separator()?;
        Ok((name, value))
    }

    /// `{}` and negative numbers may stand here and nowhere else.
    fn initializer(&mut self) -> Parsed<Expr> {
        let start = self.span();
        if self.at_sign("-") {
            self.next();
            let number = self.number("a number")?;
            return Ok(Expr::new(ExprKind::Word(format!("-{number}")), start));
        }
        if self.at_sign("{") && self.peek_at(1) == &Token::Sign("}") {
            self.next();
            self.next();
            return Ok(Expr::new(ExprKind::Set(Rc::new(Vec::new())), start));
        }
        self.rhs_list()
    }

    /// Variables in variables are followed by recursion, so they are bounded.
    fn bind(&mut self, name: String, value: Expr, span: Span) -> Parsed<()> {
        let depth = self.variable_depth + 1;
        if depth > DEPTH_MAX {
            return Err(Fault::wrong(
                span,
                format!("variables name each other more than {DEPTH_MAX} deep"),
            ));
        }
        self.scope().insert(name, (Rc::new(value), depth));
        Ok(())
    }

    fn scope(&mut self) -> &mut Variables {
        if self.scopes.is_empty() {
            self.scopes.push(HashMap::new());
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    /// `$name`, behind the dollar sign.
    fn variable(&mut self, dollar: Span) -> Parsed<Expr> {
        let span = dollar.to(self.span());
        let name = self.identifier("the name of a variable")?;
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(&name));
        if let Some((value, depth)) = found {
            let value = Expr::new(ExprKind::Variable(Rc::clone(value)), span);
            self.variable_depth = self.variable_depth.max(*depth);
            return Ok(value);
        }
        Err(Fault::wrong(span, format!("${name} is not defined")))
    }

    fn include(&mut self, pattern: &str, span: Span) -> Parsed<()> {
        if self.stack.len() > INCLUDE_DEPTH_MAX {
            return Err(Fault::wrong(
                span,
                format!("files include each other more than {INCLUDE_DEPTH_MAX} deep"),
            ));
        }
        let found = self
            .files
            .read(pattern)
            .map_err(|why| Fault::wrong(span, format!("cannot include \"{pattern}\": {why}")))?;
        // The last file that is pushed is read first.
        for (name, text) in found.into_iter().rev() {
            if self.sources.len() >= FILES_MAX
                || self.sources.bytes() + text.len() > SOURCE_BYTES_MAX
            {
                return Err(Fault::wrong(
                    span,
                    format!("more than {FILES_MAX} files or {SOURCE_BYTES_MAX} bytes are included"),
                ));
            }
            let tokens = lex::tokens(u16::try_from(self.sources.len()).unwrap_or(u16::MAX), &text);
            self.sources.add(name, text);
            let mut tokens = tokens?;
            // A file may end without a newline, and its last line still ends with it.
            if let Some(end) = tokens.last_mut() {
                end.token = Token::Newline;
            }
            self.stack.push((Rc::new(tokens), 0));
        }
        Ok(())
    }

    fn fault(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }

    /// One bracket or block deeper; [`Parser::rise`] is the way back.
    fn sink(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Fault::wrong(
                self.span(),
                format!("nested more than {DEPTH_MAX} deep"),
            ));
        }
        Ok(())
    }

    fn rise(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}
