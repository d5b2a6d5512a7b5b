//! `fordway filter`: rules of the packet filter.
//!
//! `check` needs no broker and no privilege: it reads a file as the broker would, against an
//! empty ruleset, and says each fault with file, line and column. `load` sends the text with
//! all that it includes: the broker opens no file in anybody's name.

use crate::broker::{Broker, unexpected};
use crate::cli::FilterCommand;
use crate::exit::{Exit, Failure, Outcome};
use crate::show::print;
use crate::trace;
use fordway_nft::{Env, FileError, FileSystem, Files, list, load, read_text};
use fordwayd::admin::{FilterChange, FilterRules, Include, Reply, Request, SCHEMA};
use serde_json::json;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// Carries out a subcommand.
pub fn filter(command: &FilterCommand, broker: impl Fn() -> Result<Broker, Failure>) -> Outcome {
    match command {
        FilterCommand::Check {
            file,
            include,
            list,
            json,
        } => check(file, include, *list, *json),
        FilterCommand::Load {
            file,
            add,
            include,
            json,
        } => load_rules(&broker()?, file, *add, include, json.json),
        FilterCommand::List { json } => {
            let rules = rules(&broker()?)?;
            match json {
                true => print(&format!("{}\n", rules.nftables)),
                false => print(&rules.text),
            }
        }
        FilterCommand::Monitor(json) => monitor(&broker()?, json.json),
        FilterCommand::Trace {
            capture,
            from,
            to,
            rules,
        } => trace::trace(
            capture.as_deref(),
            from.as_deref(),
            to.as_deref(),
            rules.as_deref(),
            broker,
        ),
    }
}

fn check(file: &Path, include: &[PathBuf], list: bool, json: bool) -> Outcome {
    let env = Env::system();
    let text = read(file)?;
    let name = file.display().to_string();
    let loaded = match load(
        &Default::default(),
        &env,
        &file_system(include),
        &name,
        &text,
    ) {
        Ok(loaded) => loaded,
        Err(faults) => return Ok(faulty(&faults)),
    };
    print(&match (list, json) {
        (false, false) => String::new(),
        (_, true) => format!("{}\n", list::json(&loaded.ruleset, &env)),
        (true, false) => list::text(&loaded.ruleset, &env, list::Style::default()),
    })
}

/// A line for each: they are meant to be jumped to.
pub fn faulty(faults: &fordway_nft::Faults) -> Exit {
    eprintln!("{faults}");
    Exit::Rules
}

/// The text of a file.
pub fn read(file: &Path) -> Result<String, Failure> {
    let name = file.display();
    read_text(file)
        .map_err(|why| Failure::new(Exit::NotFound, format!("cannot read {name}: {why}")))
}

fn file_system(include: &[PathBuf]) -> FileSystem {
    let mut files = FileSystem::default();
    if !include.is_empty() {
        files.search = include.to_vec();
    }
    files
}

/// Notes what is included.
struct Noted {
    files: FileSystem,
    includes: RefCell<Vec<Include>>,
}

impl Files for Noted {
    fn read(&self, pattern: &str) -> Result<Vec<(String, String)>, FileError> {
        let files = self.files.read(pattern)?;
        self.includes.borrow_mut().push(Include {
            pattern: pattern.to_owned(),
            files: files.clone(),
        });
        Ok(files)
    }
}

fn load_rules(broker: &Broker, file: &Path, add: bool, include: &[PathBuf], json: bool) -> Outcome {
    let text = read(file)?;
    let name = file.display().to_string();
    let noted = Noted {
        files: file_system(include),
        includes: RefCell::default(),
    };
    // What stands alone is checked here, so that each fault gets its line; what is added
    // means something on the rules in force only, which the broker has.
    let alone = load(&Default::default(), &Env::system(), &noted, &name, &text);
    if let (false, Err(faults)) = (add, &alone) {
        return Ok(faulty(faults));
    }
    let request = Request::FilterLoad {
        name,
        text,
        includes: noted.includes.into_inner(),
        add,
    };
    match broker.ask(&request)? {
        Reply::FilterChange(change) if json => document(&change),
        Reply::FilterChange(change) => print(&format!("{}\n", summary(&change))),
        other => Err(unexpected(&other)),
    }
}

fn document(change: &FilterChange) -> Outcome {
    print(&format!(
        "{}\n",
        json!({ "schema": SCHEMA, "change": change })
    ))
}

/// One line.
fn summary(change: &FilterChange) -> String {
    let FilterChange {
        epoch,
        channels,
        look_us,
        ..
    } = change;
    format!(
        "epoch {epoch}: of the live connections with rings {} stay, {} go to the kernel path, {} are cut; {} get rings ({:.1} ms)",
        channels.stay,
        channels.moved,
        channels.cut,
        channels.paired,
        *look_us as f64 / 1000.0
    )
}

/// The rules in force.
pub fn rules(broker: &Broker) -> Result<FilterRules, Failure> {
    match broker.ask(&Request::FilterList)? {
        Reply::Filter(rules) => Ok(rules),
        other => Err(unexpected(&other)),
    }
}

fn monitor(broker: &Broker, json: bool) -> Outcome {
    broker.listen(&Request::FilterMonitor, |reply| {
        match reply {
            Reply::Filter(_) => {}
            Reply::FilterChange(change) if json => drop(document(&change)?),
            Reply::FilterChange(change) => {
                let mut text = format!("# {}\n", summary(&change));
                for line in &change.changes {
                    text += line;
                    text.push('\n');
                }
                print(&text)?;
            }
            other => return Err(unexpected(&other)),
        }
        Ok(())
    })?;
    Ok(Exit::Done)
}
