//! `fordway-bench`: the suites, the comparison of two builds and the demo.
//!
//! Exit status: 0 done, 1 a failure, 2 the command line, 4 not root, 130 interrupted, after what
//! was made has been removed.
#![forbid(unsafe_code)]

use clap::Parser;
use fordway_bench::cli::{self, Command};
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
    if needs_root(&command) && !fordway_platform::launch::has_sys_admin() {
        eprintln!("fordway-bench: measuring makes domains, which needs root (CAP_SYS_ADMIN)");
        return ExitCode::from(4);
    }
    match cli::run(&command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The alternate form names the causes too.
            eprintln!("fordway-bench: {error:#}");
            ExitCode::from(if fordway_lab::interrupt::seen() {
                130
            } else {
                1
            })
        }
    }
}

/// One end of a conversation runs as whoever the launcher makes it; the others read files.
fn needs_root(command: &Command) -> bool {
    let reads = matches!(command, Command::Report { .. } | Command::Publish { .. });
    let plain = matches!(command, Command::End(_) | Command::Stepped(_));
    !reads && !plain
}
