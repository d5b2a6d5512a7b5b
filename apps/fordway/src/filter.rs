//! `fordway filter`: rules of the packet filter.
//!
//! `check` needs no broker and no privilege: it reads a file as the broker would, against an
//! empty ruleset, and says each fault with file, line and column.

use crate::cli::FilterCommand;
use crate::exit::{Exit, Failure, Outcome};
use fordway_nft::{Env, FileSystem, list, load, read_text};
use std::io::Write;
use std::path::Path;

/// Carries out a subcommand.
pub fn filter(command: &FilterCommand) -> Outcome {
    match command {
        FilterCommand::Check {
            file,
            include,
            list,
            json,
        } => check(file, include, *list, *json),
    }
}

fn check(file: &Path, include: &[std::path::PathBuf], list: bool, json: bool) -> Outcome {
    let name = file.display().to_string();
    let text = read_text(file)
        .map_err(|why| Failure::new(Exit::NotFound, format!("cannot read {name}: {why}")))?;
    let env = Env::system();
    let mut files = FileSystem::default();
    if !include.is_empty() {
        files.search = include.to_vec();
    }
    let loaded = match load(&Default::default(), &env, &files, &name, &text) {
        Ok(loaded) => loaded,
        Err(faults) => {
            // A line for each: they are meant to be jumped to.
            eprintln!("{faults}");
            return Ok(Exit::Rules);
        }
    };
    let out = match (list, json) {
        (false, false) => String::new(),
        (_, true) => format!("{}\n", list::json(&loaded.ruleset, &env)),
        (true, false) => list::text(&loaded.ruleset, &env, list::Style::default()),
    };
    std::io::stdout()
        .write_all(out.as_bytes())
        .map_err(Failure::internal)?;
    Ok(Exit::Done)
}
