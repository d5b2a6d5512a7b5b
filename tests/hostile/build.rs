//! Compiles the victim, its neighbours, and who holds a lock: programs like any other, linked to libc.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=programs");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    for name in ["echo", "ping", "holder", "datagrams"] {
        let options = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];
        let status = Command::new("cc")
            .args(options)
            .arg(format!("{out}/{name}"))
            .arg(format!("programs/{name}.c"))
            .status();
        assert!(status.is_ok_and(|status| status.success()), "cc {name}.c");
    }
}
