//! nftables' two languages, its text and libnftables' JSON, read into the filter's rules and
//! listed back.
//!
//! ```text
//!   text ── lex ──► tokens ── parse ──┐
//!                                     ├──► ast ── check ──► model::Op, Ruleset ──► list::text
//!   JSON ──────────── json::read ─────┘                                       └──► list::json
//! ```
//! A file is taken whole or not at all: [`load_text`] and [`load_json`] give the changes and the
//! ruleset that they lead to, or every fault with file, line and column. Nothing here keeps
//! anything, opens sockets or asks the kernel; names that only the host knows come in with
//! [`Env`], included files through [`Files`].
//!
//! What nft takes and Fordway does not is one list, [`Refused`]; its messages say what to write
//! instead, and docs/filter.md is tested against it.
//!
//! Without the feature `std` (a unikernel) there are no files and no names of a host.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

/// What `std` would put into every module.
mod prelude {
    pub use alloc::boxed::Box;
    pub use alloc::format;
    pub use alloc::string::{String, ToString};
    pub use alloc::vec;
    pub use alloc::vec::Vec;
}
use prelude::*;

mod ast;
mod check;
mod clock;
pub mod compact;
mod env;
mod error;
#[cfg(feature = "std")]
mod files;
mod json;
mod lex;
pub mod list;
mod names;
mod parse;
mod source;
mod support;
mod symbols;
mod words;

pub use ast::{Listed, Listing};
pub use check::Outcome;
pub use env::Env;
pub use error::{Faults, Kind, Located};
#[cfg(feature = "std")]
pub use files::{FileSystem, read_text};
pub use source::{FileError, Files, NoFiles};
pub use support::Refused;

use fordway_filter::model::Ruleset;
use source::SourceMap;

/// Reads nft's text and checks it against the ruleset that is in force.
///
/// `defines` are variables, as `nft -D` gives them.
pub fn load_text(
    base: &Ruleset,
    env: &Env,
    files: &dyn Files,
    name: &str,
    text: &str,
    defines: &[(String, String)],
) -> Result<Outcome, Faults> {
    let mut sources = SourceMap::default();
    let file = sources.add(name.to_string(), text.to_string());
    parse::parse(files, &mut sources, file, defines)
        .and_then(|commands| check::check(base, env, commands))
        .map_err(|faults| Faults::locate(faults, &sources))
}

/// Reads libnftables' JSON and checks it against the ruleset that is in force.
pub fn load_json(base: &Ruleset, env: &Env, name: &str, text: &str) -> Result<Outcome, Faults> {
    let mut sources = SourceMap::default();
    let file = sources.add(name.to_string(), text.to_string());
    json::parse(file, text)
        .and_then(|commands| check::check(base, env, commands))
        .map_err(|faults| Faults::locate(faults, &sources))
}

/// Reads either, told apart by how the text begins: no text of nft's begins with a brace.
pub fn load(
    base: &Ruleset,
    env: &Env,
    files: &dyn Files,
    name: &str,
    text: &str,
) -> Result<Outcome, Faults> {
    if text.trim_start().starts_with('{') {
        load_json(base, env, name, text)
    } else {
        load_text(base, env, files, name, text, &[])
    }
}
