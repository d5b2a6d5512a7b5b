//! Compiles the program of the storm of threads: its threads close each other's
//! descriptors, which safe Rust does not do.

use std::process::Command;

const SOURCES: [&str; 3] = [
    "programs/threads.c",
    "programs/server.c",
    "programs/client.c",
];

fn main() {
    println!("cargo::rerun-if-changed=programs");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let status = Command::new("cc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(SOURCES)
        .args(["-o", &format!("{out}/threads"), "-lpthread"])
        .status();
    match status {
        Ok(status) if status.success() => {}
        other => panic!("cc {SOURCES:?}: {other:?}"),
    }
}
