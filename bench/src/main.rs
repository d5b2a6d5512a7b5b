//! `fordway-bench`: the suites and the comparison of two builds.
//!
//! Exit status: 0 done, 1 a failure, 2 the command line, 4 not root, 130 interrupted, after what
//! was made has been removed.
#![forbid(unsafe_code)]

use clap::Parser;
use fordway_bench::cli::{self, Command};
use fordway_bench::exit;
use std::process::ExitCode;

/// Measures Fordway's fast path beside the kernel path and others, in alternation.
#[derive(Debug, Parser)]
#[command(name = "fordway-bench", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let may = match needs_root(&command) {
        true => exit::ensure_root("measuring"),
        false => Ok(()),
    };
    exit::finish("fordway-bench", may.and_then(|()| cli::run(&command)))
}

/// One end of a conversation runs as whoever the launcher makes it; the others read files, or
/// have a machine of their own.
fn needs_root(command: &Command) -> bool {
    let reads = matches!(command, Command::Report { .. } | Command::Publish { .. });
    let plain = matches!(
        command,
        Command::End(_) | Command::Stepped(_) | Command::Counted(_)
    );
    let emulated = matches!(command, Command::StackCount(_));
    !reads && !plain && !emulated
}
