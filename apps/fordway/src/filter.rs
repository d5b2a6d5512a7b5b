//! `fordway filter`: rules of the packet filter.
//!
//! What rules mean, nft says: each command loads them into a network namespace of its own first, with
//! what they include, in the user's own name and with the user's own files. `check` is no more than
//! that, and needs no broker and no privilege. `load` sends what nft lists there: the broker opens no
//! file in anybody's name.
//!
//! A file may call domains by their names (`$web`): each is a variable as far as a broker answers. What
//! is loaded has the address in the name's place, so a domain that comes back elsewhere is not meant.

use crate::broker::{Broker, unexpected};
use crate::cli::FilterCommand;
use crate::exit::{Exit, Failure, Outcome};
use crate::show::print;
use crate::table::folded;
use crate::trace;
use fordway_abi::control::Protocol;
use fordway_abi::vsock;
use fordway_platform::fabric::FabricError;
use fordway_platform::nftables::{LoadError, Name, Scratch, Source, own_user_namespace};
use fordwayd::admin::{FilterChange, FilterRules, Reply, Request, SCHEMA};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Times that rules are added anew because somebody else was quicker.
const ATTEMPTS_MAX: usize = 10;
/// How long the broker may take for a load: one that waits behind others has to wait for nft and for stacks of each.
const LOAD_LIMIT: Duration = Duration::from_secs(600);

/// Carries out a subcommand.
pub fn filter(command: &FilterCommand, broker: impl Fn() -> Result<Broker, Failure>) -> Outcome {
    match command {
        FilterCommand::Check {
            file,
            include,
            list,
            json,
        } => check(file, include, &names(broker()), *list, *json),
        FilterCommand::Load {
            file,
            add,
            include,
            json,
        } => load_rules(&broker()?, file, *add, include, json.json),
        FilterCommand::List { json } => {
            let rules = rules(&broker()?)?;
            match json {
                true => {
                    let scratch = scratch()?;
                    load(&scratch, Source::text(&rules.text))?;
                    print(&scratch.list_json().map_err(failure)?)
                }
                false => print(&fitted(&rules.text)),
            }
        }
        FilterCommand::Compile { file, include, out } => {
            compile(file, include, &names(broker()), out)
        }
        FilterCommand::Monitor(json) => monitor(&broker()?, json.json),
        FilterCommand::Trace {
            capture,
            from,
            to,
            udp,
            rules,
        } => trace::trace(
            capture.as_deref(),
            from.as_deref(),
            to.as_deref(),
            if *udp { Protocol::Udp } else { Protocol::Tcp },
            rules.as_deref(),
            broker,
        ),
    }
}

/// Rules as wide as the terminal, which nft reads back: a line goes on behind a backslash, but for
/// a comment, which ends with its line.
fn fitted(rules: &str) -> String {
    let line = |line: &str| match line.trim_start().starts_with('#') {
        true => folded(line, "#   ", ""),
        false => folded(line, "    ", " \\"),
    };
    rules.split_inclusive('\n').map(line).collect()
}

/// Where rules are loaded to see what they become.
pub fn scratch() -> Result<Scratch, Failure> {
    let may = own_user_namespace().map_err(LoadError::from);
    may.and_then(|()| Scratch::new()).map_err(failure)
}

/// Carries `source` out there.
pub fn load(scratch: &Scratch, source: Source<'_>) -> Result<(), Failure> {
    scratch.load(source).map_err(failure)
}

/// Carries a file out there, with names as variables.
pub fn load_file(
    scratch: &Scratch,
    file: &Path,
    include: &[PathBuf],
    names: &[Name],
) -> Result<(), Failure> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::io(format!("cannot read {name}"), &error))?;
    let source = Source {
        text: &text,
        name: &name,
        include,
        names,
    };
    load(scratch, source).map_err(|mut refused| {
        if refused.message.contains("unknown identifier") {
            let known: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
            let known = match known.is_empty() {
                true => "none".to_owned(),
                false => known.join(", "),
            };
            refused.message +=
                &format!("\nEach domain's name is a variable while its broker runs; now: {known}");
        }
        refused
    })
}

/// The domains' names and addresses, then those of IPv6 with `_6` behind the name, which no domain's
/// has, and those that stand for CIDs with `_vsock`; none where no broker answers.
pub fn names(broker: Result<Broker, Failure>) -> Vec<Name> {
    let domains = broker.and_then(|broker| broker.domains());
    let domains = domains.unwrap_or_default();
    let four = domains
        .iter()
        .filter_map(|domain| Some((domain.name.clone(), domain.ip?.into())));
    let six = domains
        .iter()
        .filter_map(|domain| Some((format!("{}_6", domain.name), domain.ip6?.into())));
    let vsock = domains.iter().filter_map(|domain| {
        let address = vsock::address_of(domain.cid?);
        Some((format!("{}_vsock", domain.name), address.into()))
    });
    four.chain(six).chain(vsock).collect()
}

/// What nft says about faults is meant to be jumped to, and printed as it is.
pub fn failure(error: LoadError) -> Failure {
    match error {
        LoadError::Refused(said) => Failure {
            exit: Exit::Rules,
            message: format!("nft refuses the rules:\n{said}"),
        },
        LoadError::Tool(reason @ FabricError::MissingProgram { .. }) => {
            Failure::new(Exit::Missing, reason)
        }
        LoadError::Tool(reason) => Failure::new(Exit::Internal, reason),
        LoadError::Io(reason) => Failure::new(Exit::Internal, reason),
    }
}

fn check(file: &Path, include: &[PathBuf], names: &[Name], list: bool, json: bool) -> Outcome {
    let scratch = scratch()?;
    load_file(&scratch, file, include, names)?;
    print(&match (list, json) {
        (false, false) => String::new(),
        (_, true) => scratch.list_json().map_err(failure)?,
        (true, false) => scratch.list().map_err(failure)?,
    })
}

fn compile(file: &Path, include: &[PathBuf], names: &[Name], out: &Path) -> Outcome {
    let scratch = scratch()?;
    // What a guest calls its interfaces.
    scratch.add_device("eth0", Some(2)).map_err(failure)?;
    load_file(&scratch, file, include, names)?;
    let compiled = fordway_filter::rules::packed(&scratch.dump().map_err(failure)?);
    std::fs::write(out, compiled).map_err(|error| {
        // A part of it is worth nothing.
        if out.is_file() {
            let _ = std::fs::remove_file(out);
        }
        Failure::io(format!("cannot write {}", out.display()), &error)
    })?;
    Ok(Exit::Done)
}

fn load_rules(broker: &Broker, file: &Path, add: bool, include: &[PathBuf], json: bool) -> Outcome {
    let names = names(Ok(Broker::at(broker.runtime_dir())));
    // Others' loads may come first.
    let patient = Broker::at(broker.runtime_dir()).within(LOAD_LIMIT);
    for attempts_left in (0..ATTEMPTS_MAX).rev() {
        let scratch = scratch()?;
        let mut epoch = None;
        if add {
            let rules = rules(broker)?;
            let in_force = Source {
                name: "rules in force",
                ..Source::text(&rules.text)
            };
            load(&scratch, in_force)?;
            epoch = Some(rules.epoch);
        }
        load_file(&scratch, file, include, &names)?;
        let text = scratch.list().map_err(failure)?;
        match patient.ask(&Request::FilterLoad { text, epoch }) {
            Ok(Reply::FilterChange(change)) if json => return document(&change),
            Ok(Reply::FilterChange(change)) => {
                return print(&folded(&format!("{}\n", summary(&change)), "  ", ""));
            }
            Ok(other) => return Err(unexpected(&other)),
            // The rules in force are others by now.
            Err(failure) if failure.exit == Exit::Busy && epoch.is_some() && attempts_left != 0 => {
            }
            Err(failure) => return Err(failure),
        }
    }
    unreachable!("the last attempt returns")
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
        stacks,
        look_us,
        ..
    } = change;
    let stacks = match (stacks.changed, stacks.restarted) {
        (0, 0) => String::new(),
        (changed, 0) => format!("; stacks: {changed}"),
        (changed, restarted) => format!("; stacks: {changed}, started again: {restarted}"),
    };
    format!(
        "epoch {epoch}: of the live connections with rings {} stay, {} go to the kernel path, {} are cut; {} get rings{stacks} ({:.1} ms)",
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
            Reply::FilterChange(change) if json => {
                document(&change)?;
            }
            Reply::FilterChange(change) => {
                let mut text = folded(&format!("# {}\n", summary(&change)), "#   ", "");
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
