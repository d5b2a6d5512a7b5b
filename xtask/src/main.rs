//! The tasks behind `./x`: everything that a person does more than once.
//!
//! One table, [`TASKS`], is the help and the dispatch. A task that ends in a program
//! of ours (`demo`, `bench`) becomes that program by exec, so that a terminal's
//! Ctrl-C reaches it alone and it can clean up. `test` runs every step even when one
//! has failed, reads the figures of all test runners, and ends with their sum.
#![forbid(unsafe_code)]

mod bill;
mod features;
mod fuzz;
mod house;
mod native;
mod package;
mod release;
mod unikernel;
mod xen;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

pub(crate) type Outcome = Result<(), String>;

struct Task {
    name: &'static str,
    what: &'static str,
    run: fn(&[String]) -> Outcome,
}

const TASKS: [Task; 28] = [
    Task {
        name: "help",
        what: "this list",
        run: help,
    },
    Task {
        name: "demo",
        what: "real programs on both paths, a filter that cuts, a broker that is killed ([--quick] ...)",
        run: demo,
    },
    Task {
        name: "test",
        what: "all tests: style, units, models, real programs ([--all]: none may be skipped)",
        run: test,
    },
    Task {
        name: "conformance",
        what: "the table of all cases, the kernel beside the fast path ([--musl] [--between] [--stack] [WORD...])",
        run: conformance,
    },
    Task {
        name: "filter",
        what: "the filter beside the kernel's nf_tables, as root ([RULESETS [PACKETS [SEED]]])",
        run: filter,
    },
    Task {
        name: "suites",
        what: "the table of others' test suites, without Fordway and with ([--short] [WORD...])",
        run: suites,
    },
    Task {
        name: "storm",
        what: "many connections, threads, deaths and shortages, whole, with figures ([NAME]; day [--minutes N]; stack [--kills N])",
        run: storm,
    },
    Task {
        name: "xen-test",
        what: "the unikernel on the real Xen, under emulation ([--short] [WORD...])",
        run: xen::test,
    },
    Task {
        name: "xen-bench",
        what: "its figures beside a Linux guest's, into bench-report/ ([WORD...])",
        run: xen::bench,
    },
    Task {
        name: "stack-count",
        what: "instructions of a request on a stack of a domain's own beside Linux's, under emulation ([--json FILE] ...)",
        run: xen::stack_count,
    },
    Task {
        name: "fuzz",
        what: "each fuzz target for 60 s, with a nightly and cargo-fuzz ([TARGET] [--seconds N])",
        run: fuzz::run,
    },
    Task {
        name: "features",
        what: "the network stack's protocols: what must not be combined, and the size of each set ([--refused]: without sizes)",
        run: features::run,
    },
    Task {
        name: "simulate",
        what: "connections under simulation: a million seeds, or one again ([--seeds N] [--seed S])",
        run: simulate,
    },
    Task {
        name: "bench",
        what: "figures against the rivals: all suites into bench-report/ ([--quick]), or one ([SUITE] ...)",
        run: bench,
    },
    Task {
        name: "build",
        what: "fordway, libfordway.so, libfordway_native.so, fordway-driver, -stackd, -stackd-udp, -nri, -demo, -bench and -xen into target/release",
        run: build,
    },
    Task {
        name: "unikernel",
        what: "images for Xen into target/xen ([httpd|kv|httpd-filter|kv-filter ...])",
        run: unikernel::build,
    },
    Task {
        name: "check",
        what: "formatting and clippy only",
        run: check,
    },
    Task {
        name: "doc",
        what: "the crates' documentation into target/doc, the native API's into target/doc-native",
        run: doc,
    },
    Task {
        name: "house",
        what: "the picture of the crates in docs/architecture.md, from Cargo's graph",
        run: house::house,
    },
    Task {
        name: "native",
        what: "the native API's library, header and wheel into target/native ([--examples])",
        run: native::native,
    },
    Task {
        name: "header",
        what: "the native API's header, from its code",
        run: native::header,
    },
    Task {
        name: "man",
        what: "manual pages and completions into target/man",
        run: man,
    },
    Task {
        name: "package",
        what: "the Debian package into target/package",
        run: package::package,
    },
    Task {
        name: "package-test",
        what: "its life, from installation to purge ([--all], or overlay, abi, bookworm, trixie, booted)",
        run: package::test,
    },
    Task {
        name: "nri-test",
        what: "fordway-nri with containerd, which Go builds from its module proxy",
        run: nri_test,
    },
    Task {
        name: "release",
        what: "archives, package, bill of materials, sums into target/dist ([--dirty] [--verify])",
        run: release::release,
    },
    Task {
        name: "deny",
        what: "licences and advisories of what we depend on",
        run: deny,
    },
    Task {
        name: "clean",
        what: "remove what was built",
        run: clean,
    },
];

/// What has a lock file of its own.
const WORKSPACES: [&str; 3] = [".", "fuzz", "apps/unikernel"];
/// The crate whose tests run real programs: as root, one at a time, on release builds.
const PROGRAM_TESTS: &str = "fordway-test-programs";
/// The crate of the cases that every backend must pass.
const CONFORMANCE: &str = "fordway-test-conformance";
/// The crate that plays the test suites of others.
const SUITES: &str = "fordway-test-suites";
/// The crate that plays packets.
const WIRE: &str = "fordway-test-wire";
/// The crate of the storms.
const STORM: &str = "fordway-test-storm";
/// Preemptions that loom explores in each interleaving.
const LOOM_PREEMPTIONS_MAX: &str = "2";
const FORDWAY: &str = "target/release/fordway";
const BENCH: &str = "target/release/fordway-bench";
/// What may be skipped in CI, and why.
const SKIPS: &str = "contrib/skips.txt";
/// How a test that is not played says so (`MARK` of tests/skip).
const SKIP_MARK: &str = "skipped: ";
/// Steps whose times end the output of `test`.
const SLOWEST_SHOWN: usize = 10;
/// How long CI lets the tests of one file run: a test that hangs is a failure with a name, and the other
/// files are still played. Cargo starts each file's program under what this variable names.
const RUNNER: &str = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER";
const BOUNDED: &str = "timeout --verbose --kill-after=10 900";
/// Lines that the end of the output repeats of what failed: so many behind each failure, and in all.
const AFTER_FAILURE: usize = 12;
const FAILURES_SHOWN: usize = 120;
/// That it runs, not what it says: figures of a busy machine prove nothing.
const SHORT_BENCH: [&str; 4] = [BENCH, "all", "--quick", "target/bench-report"];

fn main() -> ExitCode {
    let root = workspace(std::env::var_os("CARGO_MANIFEST_DIR"));
    if let Err(error) = std::env::set_current_dir(&root) {
        eprintln!("xtask: {}: {error}", root.display());
        return ExitCode::FAILURE;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = match arguments.split_first() {
        Some((name, rest)) => (name.as_str(), rest),
        None => ("help", &[][..]),
    };
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        eprintln!("there is no task {name:?}; ./x help lists them");
        return ExitCode::from(2);
    };
    match (task.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn help(_: &[String]) -> Outcome {
    println!("./x TASK\n");
    for task in &TASKS {
        println!("  {:<12} {}", task.name, task.what);
    }
    Ok(())
}

fn build(_: &[String]) -> Outcome {
    run(built())?;
    run(smaller_stack())
}

/// The stack without TCP. By itself: built with the other one, it would have what that one has.
pub(crate) fn smaller_stack() -> Command {
    let words = [
        "build",
        "--release",
        "-p",
        "fordway-stackd",
        "--bin",
        "fordway-stackd-udp",
        "--no-default-features",
        "--features",
        "without-tcp",
    ];
    cargo(&words)
}

/// The programs are the release's: containers load the library from where it was built.
fn nri_test(_: &[String]) -> Outcome {
    run(built())?;
    run(program(&["contrib/kubernetes/nri-test"]))
}

/// The shim and the command that starts programs with it belong together; the bench and the demo
/// stand on them. The Xen test bed comes along for those who have `./x build`.
fn built() -> Command {
    let packages = [
        "fordway",
        "fordway-preload",
        "fordway-capi-library",
        "fordway-driver",
        "fordway-stackd",
        "fordway-nri",
        "fordway-bench",
        "fordway-xen-testbed",
    ];
    let named = packages.into_iter().flat_map(|package| ["-p", package]);
    let words: Vec<&str> = ["build", "--release"].into_iter().chain(named).collect();
    cargo(&words)
}

/// The tree in which cargo runs this program: a copied tree may have it built from another one.
/// Without cargo, the tree that it was built from.
fn workspace(run_for: Option<OsString>) -> PathBuf {
    let own = run_for.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let parent = Path::new(&own).parent();
    parent.expect("xtask lies in the workspace").to_owned()
}

fn demo(arguments: &[String]) -> Outcome {
    build(&[])?;
    become_program(Command::new(FORDWAY).arg("demo").args(arguments))
}

fn conformance(arguments: &[String]) -> Outcome {
    build(&[])?;
    let mut suite = cargo(&["run", "--quiet", "-p", CONFORMANCE, "--"]);
    suite.args(arguments);
    run(suite)
}

fn suites(arguments: &[String]) -> Outcome {
    build(&[])?;
    let mut suites = cargo(&["run", "--quiet", "-p", SUITES, "--"]);
    suites.args(arguments);
    run(suites)
}

fn storm(arguments: &[String]) -> Outcome {
    build(&[])?;
    let mut storm = cargo(&["run", "--quiet", "--release", "-p", STORM, "--", "storm"]);
    storm.args(arguments);
    // A day looks for what grows. The allocator's own caches fill for hours, and look the same (malloc_stats(3)).
    if arguments.first().is_some_and(|name| name == "day") {
        storm.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    }
    run(storm)
}

fn filter(arguments: &[String]) -> Outcome {
    let mut compared = cargo(&[
        "run",
        "--quiet",
        "--release",
        "-p",
        "fordway-test-filter",
        "--",
    ]);
    compared.args(arguments);
    run(compared)
}

fn simulate(arguments: &[String]) -> Outcome {
    let package = ["-p", "fordway-test-simulation"];
    run(cargo(&[&["build", "--release"], &package[..]].concat()))?;
    become_program(Command::new("target/release/simulate").args(arguments))
}

fn bench(arguments: &[String]) -> Outcome {
    build(&[])?;
    // Of its own, or its features would be those of the shim's crates, too.
    run(cargo(&[
        "build",
        "--release",
        "-p",
        "fordway-bench-iceoryx2",
    ]))?;
    let suite: &[&str] = if arguments
        .first()
        .is_some_and(|first| !first.starts_with('-'))
    {
        &[]
    } else {
        &["all"]
    };
    become_program(Command::new(BENCH).args(suite).args(arguments))
}

fn check(_: &[String]) -> Outcome {
    run(formatting())?;
    run(clippy())?;
    let unikernel = unikernel::checks();
    unikernel.into_iter().try_for_each(|(_, check)| run(check))
}

fn doc(_: &[String]) -> Outcome {
    // Of two crates by one name the other's pages would be overwritten: the shim is called so, too.
    let private = [
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
    ];
    run(cargo(
        &[&private[..], &["--exclude", "fordway-native"]].concat(),
    ))?;
    let native = [
        "-p",
        "fordway-native",
        "-p",
        "fordway-capi",
        "--features",
        "fordway-native/tokio",
    ];
    run(cargo(
        &[
            &["doc", "--no-deps", "--target-dir", "target/doc-native"][..],
            &native,
        ]
        .concat(),
    ))
}

fn man(_: &[String]) -> Outcome {
    build(&[])?;
    man_pages()
}

/// Of the command that is built.
pub(crate) fn man_pages() -> Outcome {
    run(program(&[FORDWAY, "man", "target/man"]))?;
    for shell in ["bash", "zsh", "fish"] {
        let script = Command::new(FORDWAY)
            .args(["completions", shell])
            .output()
            .map_err(|error| error.to_string())?;
        let file = format!("target/man/fordway.{shell}");
        std::fs::write(&file, script.stdout).map_err(|error| format!("{file}: {error}"))?;
    }
    println!("manual pages and completions are in target/man");
    Ok(())
}

fn deny(_: &[String]) -> Outcome {
    let present = Command::new("cargo")
        .args(["deny", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !present.is_ok_and(|status| status.success()) {
        run(cargo(&["install", "--locked", "cargo-deny"]))?;
    }
    run(cargo(&["deny", "check"]))
}

fn clean(_: &[String]) -> Outcome {
    run(cargo(&["clean"]))
}

fn test(arguments: &[String]) -> Outcome {
    let all_roots = !arguments.is_empty();
    let strict = match arguments {
        [] => is_ci(),
        [all] if all == "--all" => true,
        _ => return Err("test takes --all and nothing else".to_owned()),
    };
    let excused = excused()?;
    let mut sum = Sum::default();
    sum.step("formatting", formatting());
    for workspace in WORKSPACES {
        sum.step(&format!("lock file of {workspace}"), locked(workspace));
    }
    sum.step("clippy", clippy());
    sum.step("features that must not be combined", features::refused()?);
    for (name, check) in unikernel::checks() {
        sum.step(&name, check);
    }
    // Before the tests: those of the shim and of real programs use the release build.
    sum.step("build", built());
    sum.step("the stack without TCP", smaller_stack());
    let mut units = cargo(&[
        "test",
        "--workspace",
        "--exclude",
        PROGRAM_TESTS,
        "--no-fail-fast",
    ]);
    if strict {
        units.env(RUNNER, BOUNDED);
    }
    sum.step("units", units);
    // Of its own: with the others of the workspace it has all features.
    let wire = ["test", "-p", WIRE, "--no-default-features"];
    let wire = cargo(&[&wire[..], &["--test", "unikernel"]].concat());
    sum.step("the unikernel's stack beside Linux", wire);
    sum.step("models (loom)", loom());
    let mut programs = cargo(&["test", "-p", PROGRAM_TESTS, "--no-fail-fast", "--"]);
    programs.arg("--test-threads=1");
    if strict {
        programs.env(RUNNER, BOUNDED);
    }
    if all_roots {
        // Those that are built first.
        programs.arg("--include-ignored");
    }
    sum.step("real programs", programs);
    if all_roots {
        let cases = ["run", "--quiet", "-p", CONFORMANCE, "--", "--musl"];
        sum.step("all cases, with musl", cargo(&cases));
        let cases = ["run", "--quiet", "-p", CONFORMANCE, "--", "--stack"];
        sum.step("all cases, under a stack", cargo(&cases));
    }
    if fuzz::is_there() {
        sum.step("fuzz targets, 60 s each", fuzz::tested());
    } else {
        sum.skip("fuzz targets: no nightly with cargo-fuzz here; their corpus was played above");
    }
    match unikernel::build(&[]).and_then(|()| xen::build_program()) {
        Ok(()) => sum.step("Xen, short form", xen::short()),
        Err(error) => {
            println!("== Xen: {error}");
            sum.step("images and programs for Xen", program(&["false"]));
        }
    }
    sum.step("the package's life", package::tested(all_roots));
    sum.step("the release", release::tested(all_roots));
    sum.step("bench, short form", program(&SHORT_BENCH));
    sum.times.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    for (time, step) in sum.times.iter().take(SLOWEST_SHOWN) {
        println!("took {:>4} s: {step}", time.as_secs());
    }
    for skip in &sum.skips {
        let known = excused.iter().any(|words| skip.contains(words.as_str()));
        println!("skipped{}: {skip}", if known { " (excused)" } else { "" });
        if strict && !known {
            sum.failed += 1;
            let list = SKIPS;
            sum.failed_steps
                .push(format!("skipped, and not in {list}: {skip}"));
        }
    }
    if sum.failed != 0 {
        for line in &sum.failures {
            println!("failure: {line}");
        }
    }
    for step in &sum.failed_steps {
        println!("failed: {step}");
    }
    let skipped = sum.skips.len();
    println!(
        "{} passed, {} failed, {skipped} skipped",
        sum.passed, sum.failed
    );
    if sum.failed == 0 {
        Ok(())
    } else {
        Err("see above".to_owned())
    }
}

/// What may be skipped where nothing else may: words of a line each.
fn excused() -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(SKIPS).map_err(|error| format!("{SKIPS}: {error}"))?;
    let lines = text.lines().map(str::trim);
    Ok(lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect())
}

fn formatting() -> Command {
    cargo(&["fmt", "--all", "--check"])
}

/// A lock file that is behind would be changed by whoever builds next.
fn locked(workspace: &str) -> Command {
    let manifest = format!("{workspace}/Cargo.toml");
    let mut command = cargo(&["fetch", "--locked", "--quiet"]);
    // What other systems would need is not fetched.
    command.args(["--target", "x86_64-unknown-linux-gnu"]);
    command.args(["--manifest-path", &manifest]);
    command
}

fn clippy() -> Command {
    cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ])
}

/// The ring's protocol under all interleavings. A target directory of its own: the
/// flag changes every crate, and would have all be built anew twice.
fn loom() -> Command {
    let mut command = cargo(&[
        "test",
        "-p",
        "fordway-ring",
        "--release",
        "--tests",
        "--target-dir",
        "target/loom",
    ]);
    command
        .env("RUSTFLAGS", "--cfg loom")
        .env("LOOM_MAX_PREEMPTIONS", LOOM_PREEMPTIONS_MAX);
    command
}

/// What the steps of `test` have come to.
#[derive(Default)]
struct Sum {
    passed: u64,
    failed: u64,
    failed_steps: Vec<String>,
    /// Tests that were not played, with their reasons (`tests/skip`).
    skips: Vec<String>,
    /// What the runners wrote of failures, for the end of the output.
    failures: Vec<String>,
    /// Lines that still belong to the last failure.
    failure_left: usize,
    /// How long each step took.
    times: Vec<(Duration, String)>,
}

impl Sum {
    /// Runs a step, shows its output, and adds the figures of the test runners in it.
    /// A step that fails without a failed test counts as one.
    fn step(&mut self, name: &str, mut command: Command) {
        println!("== {name}");
        let failed_before = self.failed;
        let start = Instant::now();
        let succeeded = self.watch(&mut command).unwrap_or_else(|error| {
            eprintln!("{error}");
            false
        });
        if !succeeded {
            self.failed += u64::from(self.failed == failed_before);
            self.failed_steps.push(name.to_owned());
        }
        self.times.push((start.elapsed(), name.to_owned()));
    }

    fn skip(&mut self, what: &str) {
        println!("== {what}");
        self.skips.push(what.to_owned());
    }

    fn watch(&mut self, command: &mut Command) -> Result<bool, String> {
        let text = describe(command);
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{text}: {error}"))?;
        let output = child.stdout.take().expect("it is piped");
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map_err(|error| format!("{text}: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            self.read(&line);
            self.keep_failure(&line);
            println!("{line}");
        }
        child
            .wait()
            .map(|status| status.success())
            .map_err(|error| format!("{text}: {error}"))
    }

    /// Who reads the end of a long output sees what failed.
    fn keep_failure(&mut self, line: &str) {
        // Of a test that fails, its runner tells the name at once, and the words in a part of their own at the end.
        let words = line.starts_with("---- ") && line.ends_with(" ----");
        if words || line.contains("FAILED") || line.starts_with("Error: ") {
            self.failure_left = AFTER_FAILURE;
        }
        let of_stack = line
            .trim_start()
            .starts_with(|first: char| first.is_ascii_digit())
            || line.trim_start().starts_with("at ");
        let says_something = !line.trim().is_empty() && !line.contains("... ") && !of_stack;
        if self.failure_left != 0 && says_something && self.failures.len() < FAILURES_SHOWN {
            self.failures.push(line.to_owned());
        }
        self.failure_left = self.failure_left.saturating_sub(1);
    }

    /// `test result: ok. 13 passed; 0 failed; 0 ignored; ...`, and the last line of the
    /// runner that is no `cargo test`: `13 passed, 0 failed`.
    fn read(&mut self, line: &str) {
        if let Some(skip) = line.strip_prefix(SKIP_MARK) {
            self.skips.push(skip.to_owned());
            return;
        }
        let figures = match line.trim_start().strip_prefix("test result: ") {
            Some(result) => result.split_once(". ").map_or("", |(_, figures)| figures),
            None if line.ends_with(" failed") => line,
            None => return,
        };
        for figure in figures.split([';', ',']) {
            match figure.trim().split_once(' ') {
                Some((count, "passed")) => self.passed += count.parse().unwrap_or(0),
                Some((count, "failed")) => self.failed += count.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
}

fn cargo(arguments: &[&str]) -> Command {
    // The cargo that runs us, so that the whole run uses one toolchain.
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    if is_ci() {
        // Nothing is built twice there, and what a second time would need is a third of what is written.
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

pub(crate) fn program(argv: &[&str]) -> Command {
    let mut command = Command::new(argv[0]);
    command.args(&argv[1..]);
    command
}

pub(crate) fn run(mut command: Command) -> Outcome {
    let text = describe(&command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{text}: {status}")),
        Err(error) => Err(format!("{text}: {error}")),
    }
}

/// What a program prints, without the last line's end.
pub(crate) fn output(mut command: Command) -> Result<String, String> {
    let text = describe(&command);
    let done = command.stderr(Stdio::inherit()).output();
    let done = done.map_err(|error| format!("{text}: {error}"))?;
    if !done.status.success() {
        return Err(format!("{text}: {}", done.status));
    }
    let said = String::from_utf8_lossy(&done.stdout);
    Ok(said.trim_end_matches('\n').to_owned())
}

fn become_program(command: &mut Command) -> Outcome {
    let text = describe(command);
    Err(format!("{text}: {}", command.exec()))
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_the_one_that_cargo_runs_it_for() {
        let copied = Some(OsString::from("/somewhere/else/xtask"));
        assert_eq!(workspace(copied), Path::new("/somewhere/else"));
        assert!(workspace(None).join("xtask/Cargo.toml").exists());
    }

    #[test]
    fn sums_the_figures_of_all_runners() {
        let mut sum = Sum::default();
        sum.read("test result: ok. 13 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.32s");
        sum.read("test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out");
        sum.read("test a::b ... ok");
        sum.read("4 passed, 1 failed");
        assert_eq!((sum.passed, sum.failed), (19, 4));
    }

    #[test]
    fn a_step_that_fails_without_tests_counts_as_one_failure() {
        let mut sum = Sum::default();
        sum.step("false", Command::new("false"));
        sum.step("missing", Command::new("/nonexistent"));
        sum.step(
            "tests",
            program(&[
                "sh",
                "-c",
                "echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored'; exit 1",
            ]),
        );
        assert_eq!((sum.passed, sum.failed, sum.failed_steps.len()), (1, 4, 3));
    }
}
