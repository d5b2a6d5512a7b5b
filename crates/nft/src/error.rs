//! What is wrong with a ruleset: where, in one line, and of which kind.
use crate::prelude::*;
use crate::{
    source::{SourceMap, Span},
    support::Refused,
};
use core::fmt;

/// No more than this many faults of one ruleset are told.
pub const FAULTS_MAX: usize = 20;

/// Which kind of fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// nft would not take it either.
    Wrong,
    /// nft would take it; Fordway does not do this.
    Refused(Refused),
}

/// A fault with its place in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub span: Span,
    /// What, one line.
    pub text: String,
    /// Wrong, or not supported.
    pub kind: Kind,
}

impl Fault {
    /// Something that nft refuses too.
    pub fn wrong(span: Span, text: impl Into<String>) -> Fault {
        Fault {
            span,
            text: text.into(),
            kind: Kind::Wrong,
        }
    }

    /// A construct that is not supported; the message says what to write instead.
    pub fn refused(span: Span, what: Refused) -> Fault {
        Fault {
            span,
            text: format!("{} is not supported; {}", what.construct(), what.instead()),
            kind: Kind::Refused(what),
        }
    }
}

/// The faults of a ruleset; nothing of it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<Located>);

/// A fault as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Name of the file.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// One line.
    pub text: String,
    /// Wrong, or not supported.
    pub kind: Kind,
}

impl Faults {
    /// Gives faults their places.
    pub fn locate(faults: Vec<Fault>, sources: &SourceMap) -> Faults {
        let mut told: Vec<Located> = Vec::new();
        for fault in faults {
            let (line, column) = sources.line_and_column(fault.span);
            let located = Located {
                file: sources.name(fault.span.file).to_string(),
                line,
                column,
                text: fault.text,
                kind: fault.kind,
            };
            if told.len() < FAULTS_MAX && !told.contains(&located) {
                told.push(located);
            }
        }
        Faults(told)
    }

    /// One that has no place of its own, such as a file that cannot be read.
    pub fn of_file(file: &str, text: impl Into<String>) -> Faults {
        Faults(vec![Located {
            file: file.to_string(),
            line: 1,
            column: 1,
            text: text.into(),
            kind: Kind::Wrong,
        }])
    }

    /// All of them, in the order of finding.
    pub fn all(&self) -> &[Located] {
        &self.0
    }

    /// The first construct that is not supported, if that is all there is to complain about.
    pub fn only_refused(&self) -> Option<Refused> {
        let mut first = None;
        for fault in &self.0 {
            match fault.kind {
                Kind::Wrong => return None,
                Kind::Refused(what) => first = first.or(Some(what)),
            }
        }
        first
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(
                f,
                "{}:{}:{}: {}",
                fault.file, fault.line, fault.column, fault.text
            )?;
        }
        Ok(())
    }
}

impl core::error::Error for Faults {}
