//! The `fordway` command: launcher, administrator's tool and the broker's start.
//!
//! Every command gives back an [`exit::Outcome`]; here it becomes one line on stderr
//! and an exit status. Nothing below prints an error or exits by itself.
#![forbid(unsafe_code)]

mod broker;
mod bug_report;
mod cdi;
mod cli;
mod complete;
mod config;
mod container;
mod demo;
mod doctor;
mod engine;
mod exit;
mod filter;
mod frames;
mod guests;
mod manual;
mod metrics;
mod pages;
mod places;
mod rates;
mod run;
mod serve;
mod show;
mod ss;
mod table;
mod top;
mod trace;
mod try_out;
mod up;
mod watch;
mod why;

use broker::Broker;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use exit::{Exit, Failure, Outcome};
use std::ffi::OsString;
use std::process::ExitCode;

/// Letters of a list that is short enough for an error's line.
const VALUES_SHOWN: usize = 60;

fn main() -> ExitCode {
    let outcome = match Cli::try_parse() {
        Ok(cli) => dispatch(&cli),
        Err(error) => usage(&error),
    };
    match outcome {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(failure) => {
            if !failure.message.is_empty() {
                show::say(&failure.message);
            }
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn dispatch(cli: &Cli) -> Outcome {
    let given = cli.runtime_dir.clone();
    let configured = || given.clone().or_else(config::runtime_dir);
    let broker = || places::runtime_dir(configured().as_deref()).map(|dir| Broker::at(&dir));
    // For what members of the group may ask.
    let listed = || places::listed_dir(configured().as_deref()).map(|dir| Broker::at(&dir));
    match &cli.command {
        Command::Up(up) => up::up(up, given.as_deref()),
        Command::Run(run) => run::run(run, broker()),
        Command::Try(options) => try_out::try_out(&broker()?, options),
        Command::Demo(_) => demo::demo(given.is_some()),
        Command::Ss(ss) => ss::ss(&listed()?, ss),
        Command::Top(options) => top::top(listed()?, options),
        Command::Why(options) => why::why(&listed()?, options),
        Command::Domain(command @ (cli::Domain::List(_) | cli::Domain::Show { .. })) => {
            show::domain(&listed()?, command)
        }
        Command::Domain(command) => show::domain(&broker()?, command),
        Command::Filter(command) => filter::filter(command, broker),
        Command::Guests(command) => guests::guests(command),
        Command::Downgrade(downgrade) => show::downgrade(&broker()?, downgrade),
        Command::Doctor(json) => doctor::doctor(broker(), json.json),
        Command::BugReport(options) => bug_report::bug_report(options, listed()?.runtime_dir()),
        Command::Env(json) => container::environment(&broker()?, json.json),
        Command::Cdi(command) => cdi::cdi(command, broker),
        Command::Watch(options) => watch::watch(&broker()?, options),
        Command::Serve(options) => serve::serve(options, given.as_deref()),
        Command::Log { level } => show::log(&broker()?, level.as_deref()),
        Command::Down(down) => up::down(down, &broker()?),
        Command::Completions { shell } => show::print(shell.script()),
        Command::Complete { words } => complete::complete(words),
        Command::Man { dir } => manual::write(dir),
    }
}

/// Help and versions as clap prints them; errors in one line.
fn usage(error: &clap::Error) -> Outcome {
    let text = error.render().to_string();
    if !error.use_stderr() {
        return show::print(&text);
    }
    // The first paragraph is the error; tips, such as a similar name, and the usage follow.
    let lines = || text.lines().map(str::trim);
    let paragraph: Vec<&str> = lines().take_while(|line| !line.is_empty()).collect();
    let tips = lines().filter_map(|line| line.strip_prefix("tip: "));
    let tips: Vec<&str> = tips.collect();
    let line = [&[paragraph.join(" ").as_str()][..], &tips]
        .concat()
        .join("; ");
    let line = match error.kind() {
        // clap would print the whole help, or every name.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            "a command is missing"
        }
        _ => line.strip_prefix("error: ").unwrap_or(&line),
    };
    let line = without_many_values(line);
    let names = named(std::env::args_os().skip(1));
    let exit = match names.get(1).map(String::as_str) {
        Some("run") => Exit::Launcher,
        _ => Exit::Usage,
    };
    let names = names.join(" ");
    Err(Failure::new(exit, format!("{line}; see: {names} --help")))
}

/// An error without the list of the values that are possible, if they are many.
fn without_many_values(line: &str) -> String {
    let list = line.split_once(" [possible values: ");
    let list = list.and_then(|(head, list)| Some((head, list.split_once(']')?)));
    match list {
        Some((head, (values, tail))) if values.len() > VALUES_SHOWN => format!("{head}{tail}"),
        _ => line.to_owned(),
    }
}

/// The command that a command line names, from `fordway` on, also if clap refuses the rest of it.
fn named(mut args: impl Iterator<Item = OsString>) -> Vec<String> {
    let mut at = Cli::command();
    let mut names = vec!["fordway".to_owned()];
    while let Some(word) = args.next() {
        match word.to_str() {
            Some("--runtime-dir") => drop(args.next()),
            Some(option) if option.starts_with('-') => {}
            name => match name.and_then(|name| at.find_subcommand(name)).cloned() {
                Some(command) => {
                    names.push(command.get_name().to_owned());
                    at = command;
                }
                None => break,
            },
        }
    }
    names
}
