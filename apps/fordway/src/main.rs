//! The `fordway` command: launcher, administrator's tool and the broker's start.
//!
//! Every command gives back an [`exit::Outcome`]; here it becomes one line on stderr
//! and an exit status. Nothing below prints an error or exits by itself.
#![forbid(unsafe_code)]

mod broker;
mod cli;
mod config;
mod container;
mod doctor;
mod exit;
mod filter;
mod frames;
mod manual;
mod places;
mod run;
mod show;
mod ss;
mod table;
mod trace;
mod try_out;
mod up;

use broker::Broker;
use clap::Parser;
use clap::error::ErrorKind;
use cli::{Cli, Command};
use exit::{Exit, Failure, Outcome};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match Cli::try_parse() {
        Ok(cli) => dispatch(&cli),
        Err(error) => usage(&error),
    };
    match outcome {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(failure) => {
            eprintln!("fordway: {}", failure.message);
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn dispatch(cli: &Cli) -> Outcome {
    let runtime_dir = cli.runtime_dir.as_deref();
    let broker = || {
        let configured = config::runtime_dir();
        let dir = runtime_dir.or(configured.as_deref());
        places::runtime_dir(dir).map(|dir| Broker::at(&dir))
    };
    match &cli.command {
        Command::Up(up) => up::up(up, runtime_dir),
        Command::Run(run) => run::run(run, broker()),
        Command::Try(options) => try_out::try_out(&broker()?, options),
        Command::Ss(ss) => ss::ss(&broker()?, ss),
        Command::Domain(command) => show::domain(&broker()?, command),
        Command::Filter(command) => filter::filter(command, broker),
        Command::Downgrade(downgrade) => show::downgrade(&broker()?, downgrade),
        Command::Doctor(json) => doctor::doctor(&broker()?, json.json),
        Command::Env(json) => container::environment(&broker()?, json.json),
        Command::Down(down) => up::down(down, &broker()?),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man { dir } => manual::pages(dir),
    }
}

/// Help and versions as clap prints them; errors in one line.
fn usage(error: &clap::Error) -> Outcome {
    if !error.use_stderr() {
        return show::print(&error.render().to_string());
    }
    let text = error.render().to_string();
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
    let exit = if names_run(std::env::args_os().skip(1)) {
        Exit::Launcher
    } else {
        Exit::Usage
    };
    Err(Failure::new(exit, format!("{line}; see: fordway --help")))
}

/// Whether a command line that clap refuses is one of `fordway run`.
fn names_run(mut args: impl Iterator<Item = OsString>) -> bool {
    while let Some(word) = args.next() {
        match word.to_str() {
            Some("--runtime-dir") => drop(args.next()),
            Some(option) if option.starts_with('-') => {}
            command => return command == Some("run"),
        }
    }
    false
}
