//! Fuzz targets (`fuzz/`, cargo-fuzz), two at a time, each for a bounded time.
//!
//! They need a nightly compiler and cargo-fuzz; `./x test` runs them where both are there.
//! What a target does is `tests/fuzz`, which the stable compiler builds and whose tests
//! play the corpus.

use crate::{Outcome, program, run as run_one};
use std::process::{Command, Stdio};

/// The targets of `fuzz/Cargo.toml`.
const TARGETS: [&str; 12] = [
    "control",
    "driver",
    "http",
    "machine",
    "netfront",
    "netstack",
    "packet",
    "queue",
    "resp",
    "ring_consumer",
    "ring_producer",
    "rules",
];
const SECONDS: &str = "60";
/// Longest that one input may take.
const INPUT_SECONDS_MAX: &str = "60";

/// `./x fuzz [TARGET] [--seconds N]`.
pub fn run(arguments: &[String]) -> Outcome {
    let mut seconds = SECONDS;
    let mut targets = Vec::new();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--seconds" => seconds = rest.next().ok_or("--seconds needs a number")?,
            name if TARGETS.contains(&name) => targets.push(name),
            name => {
                return Err(format!(
                    "no target {name:?}; there are {}",
                    TARGETS.join(", ")
                ));
            }
        }
    }
    if targets.is_empty() {
        targets = TARGETS.to_vec();
    }
    if !is_there() {
        return Err(
            "fuzzing needs a nightly and cargo-fuzz: rustup toolchain install nightly; cargo install cargo-fuzz"
                .to_owned(),
        );
    }
    run_one(script(&targets, seconds))
}

/// Whether it can be done here.
pub fn is_there() -> bool {
    let asked = Command::new("cargo")
        .args(["+nightly", "fuzz", "--version"])
        // Set by the cargo that runs us; rustup would take its toolchain.
        .env_remove("RUSTUP_TOOLCHAIN")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    asked.is_ok_and(|status| status.success())
}

/// What belongs to the tests: all of them.
pub fn tested() -> Command {
    script(&TARGETS, SECONDS)
}

/// Builds once, then runs two at a time; fails if one does. What libFuzzer finds goes into
/// `fuzz/artifacts`, its corpus of this run into `target/fuzz-corpus`. The machine runs
/// without AddressSanitizer, which takes the stacks of simulated threads that were killed for
/// leaks and overflows.
fn script(targets: &[&str], seconds: &str) -> Command {
    let text = format!(
        "set -e; cd fuzz; plain='-s none --target-dir ../target/fuzz-plain'
         cargo +nightly fuzz build 2>&1
         for t in {names}; do
             mkdir -p ../target/fuzz-corpus/$t
             [ $t != machine ] || cargo +nightly fuzz build $plain machine 2>&1
         done
         export plain
         printf '%s\\n' {names} | xargs -P 2 -I T sh -c '[ T = machine ] || plain=
             cargo +nightly fuzz run $plain T \
             ../target/fuzz-corpus/T corpus/T -- -max_total_time={seconds} -timeout={INPUT_SECONDS_MAX} \
             -print_final_stats=1 >../target/fuzz-T.log 2>&1 \
             && echo \"T: $(grep -o \"number_of_executed_units: [0-9]*\" ../target/fuzz-T.log), nothing found\" \
             || {{ tail -n 40 ../target/fuzz-T.log; exit 1; }}'",
        names = targets.join(" "),
    );
    let mut command = program(&["sh", "-c", &text]);
    command.env_remove("RUSTUP_TOOLCHAIN");
    command
}
