//! The programs of cases that have most to do with libc, linked to musl: a short form. All of them
//! are played by `./x conformance --musl`, and by `./x test --all`.

use anyhow::{Result, ensure};
use fordway_test_conformance::Bed;
use fordway_test_conformance::suite::{MUSL_END, PROGRAMS, hold_some};

/// Plays a program's cases that begin with one of these, if there is a musl.
fn hold_with_musl(name: &str, begins: &[&str]) -> Result<()> {
    ensure!(PROGRAMS.contains(&name), "{name} is no program of cases");
    let program = format!("{name}{MUSL_END}");
    if !Bed::program(&program).exists() {
        fordway_test_skip::skipped(
            "musl-gcc was not there when the tests were built (apt install musl-tools)",
        );
        return Ok(());
    }
    hold_some(&program, begins)
}

macro_rules! programs {
    ($($name:ident $begins:tt)*) => {
        $(#[test]
        fn $name() -> Result<()> {
            hold_with_musl(stringify!($name), &$begins)
        })*
    };
}

programs! {
    actions [""]
    aliases [""]
    buffers ["padding"]
    cancel [""]
    down ["passed", "stdio"]
    exec [""]
    exports [""]
    fork ["child"]
    handlers ["jump"]
    kept [""]
    pointers [""]
    signals [""]
    udp_bad [""]
    udp_plain ["at_offset"]
    unseen [""]
}
