//! Compiles the programs that the tests run: each with the framework, for glibc;
//! those that must do without the shim also statically, and with musl if it is there.

use std::path::Path;
use std::process::Command;

/// Programs of scenarios: `programs/NAME.c` and the framework.
const SCENARIOS: [&str; 8] = [
    "stream", "wait", "close", "down", "fork", "fds", "signals", "threads",
];

fn main() {
    println!("cargo::rerun-if-changed=programs");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    compile("cc", "plain", &[], &[], &format!("{out}/plain"));
    compile(
        "cc",
        "plain",
        &[],
        &["-static"],
        &format!("{out}/plain-static"),
    );
    for name in SCENARIOS {
        compile(
            "cc",
            name,
            &["try"],
            &["-lpthread"],
            &format!("{out}/{name}"),
        );
    }
}

fn compile(compiler: &str, name: &str, more: &[&str], options: &[&str], target: &str) {
    let sources = [name].into_iter().chain(more.iter().copied());
    let sources = sources.map(|name| format!("programs/{name}.c"));
    let status = Command::new(compiler)
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o", target])
        .args(sources)
        .args(options)
        .status();
    match status {
        Ok(status) if status.success() => {}
        // Nobody has musl by necessity; its test says that it was skipped.
        Err(_) if compiler != "cc" => {}
        other => panic!("{compiler} {}: {other:?}", Path::new(target).display()),
    }
}
