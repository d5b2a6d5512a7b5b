//! Completion: what may stand at the cursor of a shell.
//!
//! ```text
//!   shell ── fordway complete -- WORDS... ──► a line that says what, then candidates
//! ```
//! The scripts of `fordway completions` know nothing of the command line: they hand over the words up
//! to the cursor, and show what comes back. So its definition is the only one, and names of domains and
//! numbers of connections are the broker's of this moment. Whatever goes wrong is silence.
//!
//! The first line is one of `words` (a candidate a line, and behind a tab what it means), `files`,
//! `dirs`, and `program N`: word N is a program, whose completion the shell has.

use crate::broker::Broker;
use crate::cli::{Cli, Shell};
use crate::exit::Outcome;
use crate::show::print;
use crate::{config, places};
use clap::{Arg, CommandFactory, ValueHint};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Longest that a person waits for what may be known.
const PATIENCE: Duration = Duration::from_millis(500);

impl Shell {
    /// What the shell reads.
    pub fn script(self) -> &'static str {
        match self {
            Shell::Bash => include_str!("completions/fordway.bash"),
            Shell::Zsh => include_str!("completions/fordway.zsh"),
            Shell::Fish => include_str!("completions/fordway.fish"),
        }
    }
}

/// What the broker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Domains,
    Connections,
}

/// Arguments whose values the broker knows: command, id, what.
const KNOWN: [(&str, &str, Known); 9] = [
    ("run", "domain", Known::Domains),
    ("try", "domain", Known::Domains),
    ("ss", "domain", Known::Domains),
    ("top", "domain", Known::Domains),
    ("domain show", "name", Known::Domains),
    ("domain rm", "name", Known::Domains),
    ("filter trace", "from", Known::Domains),
    ("filter trace", "to", Known::Domains),
    ("downgrade", "channel", Known::Connections),
];

/// Candidates, and what they mean.
type Candidates = Vec<(String, String)>;

/// `fordway complete`.
pub fn complete(words: &[OsString]) -> Outcome {
    let words: Vec<String> = words
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    print(&answer(&words, ask))
}

/// Asks the broker.
fn ask(what: Known, runtime_dir: Option<PathBuf>) -> Candidates {
    let dir = runtime_dir.or_else(config::runtime_dir);
    let Ok(dir) = places::listed_dir(dir.as_deref()) else {
        return Vec::new();
    };
    let broker = Broker::at(&dir).within(PATIENCE);
    match what {
        Known::Domains => {
            let domains = broker.domains().unwrap_or_default().into_iter();
            let address = |ip: Option<_>| ip.map_or_else(String::new, |ip| format!("{ip}"));
            domains
                .map(|domain| (domain.name, address(domain.ip)))
                .collect()
        }
        Known::Connections => {
            let connections = broker.connections().unwrap_or_default().into_iter();
            let fast = connections.filter(|one| one.path == "fast");
            // Both ends have the number; one is shown.
            let ends: BTreeMap<u64, String> = fast
                .filter_map(|one| Some((one.channel?, format!("{} {}", one.local, one.remote))))
                .collect();
            ends.into_iter()
                .map(|(number, ends)| (number.to_string(), ends))
                .collect()
        }
    }
}

/// The words of a shell, and where each begins in what the shell has handed over: bash splits
/// `--domain=web` into three. True if the last word is such a part of one.
fn joined(words: &[String]) -> (Vec<(usize, String)>, bool) {
    let mut joined: Vec<(usize, String)> = Vec::new();
    let mut glue = false;
    let mut is_part = false;
    for (at, word) in words.iter().enumerate() {
        let last = joined.last_mut();
        let is_option =
            |word: &str| word.len() > 2 && word.starts_with("--") && !word.contains('=');
        is_part = false;
        match last {
            Some((_, last)) if word == "=" && is_option(last) => {
                last.push('=');
                (glue, is_part) = (true, true);
            }
            Some((_, last)) if glue => {
                last.push_str(word);
                (glue, is_part) = (false, true);
            }
            _ => joined.push((at, word.clone())),
        }
    }
    (joined, is_part)
}

/// What may stand in place of the last word.
fn answer(words: &[String], known: impl Fn(Known, Option<PathBuf>) -> Candidates) -> String {
    let (words, is_part) = joined(words);
    let Some(((at, current), before)) = words.split_last() else {
        return String::new();
    };
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut command = &root;
    let mut name: Vec<&str> = Vec::new();
    let mut position = 1;
    let mut waiting: Option<&Arg> = None;
    let mut escaped = false;
    let mut runtime_dir = None;
    for (at, word) in before {
        let mut value_of = |arg: &Arg, value: &str| {
            if arg.get_id() == "runtime_dir" {
                runtime_dir = Some(PathBuf::from(value));
            }
        };
        if let Some(arg) = waiting.take() {
            value_of(arg, word);
        } else if !escaped && word == "--" {
            escaped = true;
        } else if !escaped && word.starts_with('-') {
            match word.split_once('=') {
                Some((option, value)) => {
                    option_of(command, option).inspect(|arg| value_of(arg, value));
                }
                None => waiting = option_of(command, word),
            }
        } else if !escaped && let Some(next) = command.find_subcommand(word) {
            command = next;
            name.push(next.get_name());
            position = 1;
        } else if positional(command, position).is_some_and(Arg::is_trailing_var_arg_set) {
            return program(*at);
        } else {
            position += 1;
        }
    }
    let values = |arg: &Arg, typed: &str, kept: &str| {
        let name = name.join(" ");
        let mut rows = KNOWN.iter();
        let row = rows.find(|(command, id, _)| *command == name && arg.get_id() == *id);
        let candidates = match row {
            Some((_, _, what)) => known(*what, runtime_dir.clone()),
            None => arg
                .get_possible_values()
                .iter()
                .map(|value| (value.get_name().to_owned(), first_line(value.get_help())))
                .collect(),
        };
        match arg.get_value_hint() {
            ValueHint::AnyPath | ValueHint::FilePath => "files\n".to_owned(),
            ValueHint::DirPath => "dirs\n".to_owned(),
            _ => listed(candidates, typed, kept),
        }
    };
    if let Some(arg) = waiting {
        return values(arg, current, "");
    }
    if let Some((option, typed)) = current.split_once('=')
        && let Some(arg) = option_of(command, option)
        && !escaped
    {
        let kept = format!("{option}=");
        return values(arg, typed, if is_part { "" } else { &kept });
    }
    let options = || {
        let options = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let options = options
            .filter_map(|arg| Some((format!("--{}", arg.get_long()?), first_line(arg.get_help()))));
        listed(options.collect(), current, "")
    };
    if !escaped && current.starts_with('-') {
        return options();
    }
    if command.has_subcommands() {
        let commands = command.get_subcommands().filter(|one| !one.is_hide_set());
        let commands = commands.map(|one| (one.get_name().to_owned(), first_line(one.get_about())));
        return listed(commands.collect(), current, "");
    }
    match positional(command, position) {
        Some(arg) if arg.is_trailing_var_arg_set() => program(*at),
        Some(arg) => values(arg, current, ""),
        None => options(),
    }
}

fn program(at: usize) -> String {
    format!("program {at}\n")
}

/// Those that begin as what is typed, behind what stays of the word.
fn listed(candidates: Candidates, typed: &str, kept: &str) -> String {
    let mut text = "words\n".to_owned();
    for (word, meaning) in candidates {
        if word.starts_with(typed) {
            text += &format!("{kept}{word}\t{meaning}\n");
        }
    }
    text
}

fn first_line(help: Option<&clap::builder::StyledStr>) -> String {
    let help = help.map(ToString::to_string).unwrap_or_default();
    help.lines().next().unwrap_or_default().to_owned()
}

/// The option of this name that takes a value.
fn option_of<'c>(command: &'c clap::Command, word: &str) -> Option<&'c Arg> {
    let is_named = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg
            .get_short()
            .is_some_and(|short| word == format!("-{short}")),
    };
    let mut options = command.get_arguments().filter(is_named);
    options.find(|arg| arg.get_action().takes_values())
}

fn positional(command: &clap::Command, position: usize) -> Option<&Arg> {
    let mut arguments = command.get_positionals();
    arguments.find(|arg| arg.get_index() == Some(position))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        answer(&words, |what, dir| {
            let dir = dir.map_or_else(String::new, |dir| dir.display().to_string());
            match what {
                Known::Domains => vec![("db".into(), dir.clone()), ("web".into(), dir)],
                Known::Connections => vec![("7".into(), dir)],
            }
        })
    }

    #[test]
    fn every_row_names_an_argument() {
        let mut root = Cli::command();
        root.build();
        for (name, id, _) in KNOWN {
            let command = name.split(' ').fold(&root, |command, name| {
                command.find_subcommand(name).expect(name)
            });
            let mut arguments = command.get_arguments();
            assert!(arguments.any(|arg| arg.get_id() == id), "{name} {id}");
        }
    }

    #[test]
    fn what_the_broker_knows_is_offered_in_every_form() {
        let both = "words\ndb\t\nweb\t\n";
        for line in [
            "run --domain ",
            "try --domain ",
            "ss --json --domain ",
            "top --domain db --domain ",
            "domain show ",
            "domain rm --force ",
            "filter trace --from ",
            // As bash splits it.
            "run --domain =",
            "run --domain = ",
        ] {
            assert_eq!(said(line), both, "{line}");
        }
        assert_eq!(said("run --domain = w"), "words\nweb\t\n");
        assert_eq!(said("run --domain=w"), "words\n--domain=web\t\n");
        assert_eq!(said("--runtime-dir /x downgrade "), "words\n7\t/x\n");
        assert_eq!(said("--runtime-dir=/x downgrade "), "words\n7\t/x\n");
        assert_eq!(said("domain add "), "words\n");
    }

    #[test]
    fn commands_options_and_values_are_those_of_the_definition() {
        let begins = |line: &str, with: &str| {
            let said = said(line);
            assert!(
                said.lines().any(|line| line.starts_with(with)),
                "{line}: {said}"
            );
            assert!(!said.contains("complete\t"), "{line}: {said}");
        };
        begins("", "words");
        begins("", "domain\tMake, list");
        begins("do", "downgrade\tMove");
        begins("domain ", "attach\t");
        begins("run --req", "--require-fast\t");
        begins("run --domain web --path ", "kernel\t");
        begins("ss --reason no", "no-peer\t");
        begins("completions ", "fish\t");
        assert_eq!(said("filter load --add ru"), "files\n");
        assert_eq!(said("filter load -I "), "dirs\n");
        assert_eq!(said("up --config "), "files\n");
        assert_eq!(said("--runtime-dir "), "dirs\n");
        assert_eq!(said("up --network "), "words\n");
    }

    #[test]
    fn a_program_has_its_own_completion() {
        assert_eq!(said("run --here "), "program 2\n");
        assert_eq!(said("run --domain web -- redis-s"), "program 4\n");
        assert_eq!(
            said("run --domain = web -- redis-server --po"),
            "program 5\n"
        );
        assert_eq!(said("--runtime-dir /x try redis-cli -h "), "program 3\n");
    }
}
