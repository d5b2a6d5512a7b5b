//! Tasks on Xen's test bed: the unikernel's images, then `fordway-test-xen`.

use crate::{BENCH, Outcome, build, cargo, program, run, unikernel};
use std::process::Command;

const PACKAGE: &str = "fordway-test-xen";
const PROGRAM: &str = "target/release/fordway-test-xen";
/// What two Linux guests run, and where the cases look for it.
const OF_GUESTS: [[&str; 2]; 4] = [
    ["target/release/examples/pair", "target/xen/pair"],
    ["target/release/examples/hostile", "target/xen/hostile"],
    // Where the command is, there is the library.
    ["target/release/libfordway.so", "target/xen/libfordway.so"],
    ["target/release/fordway", "target/xen/fordway"],
];

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
    program(&[PROGRAM, "--short"])
}

/// What the cases need beside the unikernel's images.
pub(crate) fn build_program() -> Outcome {
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
    let examples = ["-p", "fordway-xen-user", "--examples"];
    run(cargo(
        &[&["build", "--quiet", "--release"], &examples[..]].concat(),
    ))?;
    // What helps a debugger is most of them, and would lie in the emulated memory several times.
    OF_GUESTS
        .iter()
        .try_for_each(|[from, to]| run(program(&["strip", "--strip-debug", "-o", to, from])))
}
