//! `fordway demo`: becomes `fordway-demo`, a program of its own. The bench, on which the demo stands,
//! is no part of this command.

use crate::exit::{Exit, Failure, Outcome};
use crate::places;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What it takes: one definition, of which this command has the help and the checks.
#[path = "../../../bench/src/demo/options.rs"]
pub mod options;

/// File name of the demo.
const DEMO: &str = "fordway-demo";
/// Names the command that the demo uses.
const BIN_VARIABLE: &str = "FORDWAY_BIN";

/// `fordway demo`; returns only if it cannot be executed. The demo has the words behind `demo` as
/// they were given.
pub fn demo(with_runtime_dir: bool) -> Outcome {
    if with_runtime_dir {
        let text = "demo takes no --runtime-dir: it starts a broker of its own";
        return Err(Failure::new(Exit::Usage, text));
    }
    let own = std::env::current_exe().map_err(Failure::internal)?;
    let candidates = places::candidates(DEMO);
    let Some(found) = candidates.iter().find(|file| file.is_file()) else {
        let text = format!(
            "{DEMO} is not at {}; install the package fordway, or build it: ./x build",
            places::listed(&candidates)
        );
        return Err(Failure::new(Exit::Missing, text));
    };
    let mut command = Command::new(found);
    command.args(std::env::args_os().skip(2));
    let error = command.env(BIN_VARIABLE, own).exec();
    let text = format!("{}: {error}; install it anew", found.display());
    Err(Failure::new(Exit::Missing, text))
}
