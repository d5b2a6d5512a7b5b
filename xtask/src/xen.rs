//! Tasks on Xen's test bed: the unikernel's images, then `fordway-test-xen`.

use crate::{BENCH, Outcome, build, cargo, program, run, unikernel};
use std::process::Command;

const PACKAGE: &str = "fordway-test-xen";
const PROGRAM: &str = "target/release/fordway-test-xen";
/// What two Linux guests run, and where the cases look for it.
const PAIR: [&str; 2] = ["target/release/examples/pair", "target/xen/pair"];

/// `xen-test`.
pub(crate) fn test(arguments: &[String]) -> Outcome {
    unikernel::build(&[])?;
    build_program()?;
    let mut tests = program(&[PROGRAM]);
    tests.args(arguments);
    run(tests)
}

/// `xen-bench`.
pub(crate) fn bench(arguments: &[String]) -> Outcome {
    unikernel::build(&[])?;
    build_program()?;
    let mut bench = program(&[PROGRAM, "--bench", "bench-report"]);
    bench.args(arguments);
    run(bench)
}

/// `stack-count`: of the build, in the same emulation without Xen.
pub(crate) fn stack_count(arguments: &[String]) -> Outcome {
    build(&[])?;
    let mut count = program(&[BENCH, "stack-count"]);
    count.args(arguments);
    run(count)
}

/// The short form, as a step of `test`.
pub(crate) fn short() -> Command {
    cargo(&[
        "run",
        "--quiet",
        "--release",
        "-p",
        PACKAGE,
        "--",
        "--short",
    ])
}

fn build_program() -> Outcome {
    // fordway compiles rules for guests, and runs in them.
    run(cargo(&[
        "build",
        "--quiet",
        "--release",
        "-p",
        PACKAGE,
        "-p",
        "fordway",
        "-p",
        "fordway-preload",
    ]))?;
    let example = ["-p", "fordway-xen-user", "--example", "pair"];
    run(cargo(
        &[&["build", "--quiet", "--release"], &example[..]].concat(),
    ))?;
    let [from, to] = PAIR;
    std::fs::copy(from, to).map_err(|error| format!("{from}: {error}"))?;
    Ok(())
}
