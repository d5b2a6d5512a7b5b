//! `fordway-demo`: real programs on the kernel path and on the fast path, rules that change, a
//! broker that is killed. `fordway demo` becomes this program, so that the command stays small.
//!
//! Exit status: 0 all was shown, 1 a failure, 2 the command line, 4 not root, 5 a program is
//! missing, 130 interrupted, after what was made has been removed.
#![forbid(unsafe_code)]

use clap::Parser;
use fordway_bench::demo::{self, options::DemoArgs};
use fordway_bench::exit;
use std::process::ExitCode;

/// Shows the fast path beside the kernel path on real programs, a filter that cuts, and a broker
/// that is killed; removes everything that it made.
#[derive(Debug, Parser)]
#[command(name = "fordway-demo", version)]
struct Cli {
    #[command(flatten)]
    args: DemoArgs,
}

fn main() -> ExitCode {
    exit::finish("fordway demo", demo::run(&Cli::parse().args))
}
