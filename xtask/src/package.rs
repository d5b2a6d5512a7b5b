//! `./x package`: the Debian package, by cargo-deb from what apps/fordway/Cargo.toml says; and its
//! life, from installation to purge, in roots of their own (contrib/package/life), and in a
//! container that systemd boots (contrib/package/booted).

use crate::{FORDWAY, Outcome, build, cargo, man, program, run};
use std::path::Path;
use std::process::Command;

/// The version of cargo-deb that is used, and where it is kept.
const CARGO_DEB: &str = "3.8.0";
const TOOLS: &str = "target/tools";
/// Where packages go; of target/debian cargo-deb removes what is older.
const OUT: &str = "target/package";
/// Two revisions of one version: what an upgrade needs.
const REVISIONS: [&str; 2] = ["1", "2"];
/// A copy of this system, that is thrown away; quick, and without a download.
const OVERLAY: &str = "overlay";
/// Bare roots of these releases of Debian.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];
/// A bare root of Debian 12 that systemd boots.
const BOOTED: &str = "booted";

/// `./x package`.
pub(crate) fn package(_: &[String]) -> Outcome {
    man(&[])?;
    let made = make(REVISIONS[0])?;
    println!("{made}");
    Ok(())
}

/// `./x package-test [ROOT...]`.
pub(crate) fn test(roots: &[String]) -> Outcome {
    man(&[])?;
    judge()?;
    let roots: Vec<&str> = match roots {
        [] => vec![OVERLAY],
        [all] if all == "--all" => [&[OVERLAY, BOOTED][..], &RELEASES].concat(),
        some => some.iter().map(String::as_str).collect(),
    };
    let [old, new] = [make(REVISIONS[0])?, make(REVISIONS[1])?];
    run(program(&["lintian", "--fail-on", "error", &old]))?;
    for root in roots {
        println!("in {root}:");
        run(match root {
            BOOTED => program(&["contrib/package/booted", &old, &new]),
            _ => program(&["contrib/package/life", root, &old, &new]),
        })?;
    }
    Ok(())
}

/// The step of `./x test`.
pub(crate) fn tested(all: bool) -> Command {
    let mut test = cargo(&["xtask", "package-test"]);
    test.args(all.then_some("--all"));
    test
}

/// Manual pages and units as their readers judge them.
fn judge() -> Outcome {
    let pages = std::fs::read_dir("target/man").map_err(|error| error.to_string())?;
    let pages = pages.filter_map(|page| Some(page.ok()?.path()));
    let mut lint = program(&["mandoc", "-T", "lint", "-W", "error"]);
    lint.args(pages.filter(|page| page.extension().is_some_and(|kind| kind == "1")));
    run(lint)
}

/// Builds a revision from what `./x build` and `./x man` have made.
fn make(revision: &str) -> Result<String, String> {
    if !Path::new(FORDWAY).exists() {
        build(&[])?;
    }
    let tool = format!("{TOOLS}/bin/cargo-deb");
    if !Path::new(&tool).exists() {
        let version = ["--version", CARGO_DEB, "--root", TOOLS];
        run(cargo(
            &[
                &["install", "--locked", "--quiet", "cargo-deb"],
                &version[..],
            ]
            .concat(),
        ))?;
    }
    let version = format!("{}-{revision}", env!("CARGO_PKG_VERSION"));
    let file = format!("{OUT}/fordway_{version}_amd64.deb");
    std::fs::create_dir_all(OUT).map_err(|error| format!("{OUT}: {error}"))?;
    let mut command = program(&[&tool, "--quiet", "--no-build", "--strip", "-p", "fordway"]);
    command.args(["--deb-version", &version, "--output", &file]);
    run(command)?;
    Ok(file)
}
