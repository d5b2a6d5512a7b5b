//! Compiles the programs that the tests run: those of cases with the framework, also with musl if
//! it is there; those that must do without the shim also statically.

use std::path::Path;
use std::process::Command;

/// Programs of cases, the same list as in `src/suite.rs`, and those of other tests.
const CASES: &[&str] = &include!("programs/list.in");
const OTHERS: [&str; 2] = ["steady", "shown"];

/// What musl lacks; the kernel's headers, which Debian keeps among glibc's.
const MUSL: &[&str] = &[
    "-include",
    "programs/musl.h",
    "-idirafter",
    "/usr/include",
    "-idirafter",
    "/usr/include/x86_64-linux-gnu",
];

fn main() {
    println!("cargo::rerun-if-changed=programs");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    for name in CASES.iter().chain(&OTHERS) {
        let target = format!("{out}/{name}");
        compile("cc", name, &["try"], &["-lpthread"], &target);
        compile("musl-gcc", name, &["try"], MUSL, &format!("{target}-musl"));
    }
    let sanitized = format!("{out}/client-asan");
    compile("cc", "client", &[], &["-fsanitize=address"], &sanitized);
    compile("cc", "short", &[], &[], &format!("{out}/short"));
    for name in ["plain", "client"] {
        compile("cc", name, &[], &[], &format!("{out}/{name}"));
        compile(
            "cc",
            name,
            &[],
            &["-static"],
            &format!("{out}/{name}-static"),
        );
        compile("musl-gcc", name, &[], &[], &format!("{out}/{name}-musl"));
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
        // Nobody needs to have musl; its tests say that they were skipped.
        Err(_) if compiler != "cc" => {}
        other => panic!("{compiler} {}: {other:?}", Path::new(target).display()),
    }
}
