//! `./x package`: the Debian package, by cargo-deb from what apps/fordway/Cargo.toml says; and its
//! life, from installation to purge, in roots of their own (contrib/package/life), and in a
//! container that systemd boots (contrib/package/booted).

use crate::{FORDWAY, Outcome, bill, build, cargo, man, output, program, run};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// The version of cargo-deb that is used, and where it is kept.
const CARGO_DEB: &str = "3.8.0";
const TOOLS: &str = "target/tools";
/// Where packages go; of target/debian cargo-deb removes what is older.
const OUT: &str = "target/package";
/// Two revisions of one version: what an upgrade needs.
const REVISIONS: [&str; 2] = ["1", "2"];
/// A copy of this system, that is thrown away; quick, and without a download.
const OVERLAY: &str = "overlay";
/// The same, with an upgrade to another ABI version and back; what that is built in, for long.
const ABI: &str = "abi";
const NEXT: &str = "target/abi-next";
const NEXT_VERSION: &str = "0.2.0~abi";
/// Bare roots of these releases of Debian.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];
/// A bare root of Debian 12 that systemd boots.
const BOOTED: &str = "booted";

/// `./x package`.
pub(crate) fn package(_: &[String]) -> Outcome {
    man(&[])?;
    println!("{}", make(&Plan::default())?);
    Ok(())
}

/// `./x package-test [ROOT...]`.
pub(crate) fn test(roots: &[String]) -> Outcome {
    man(&[])?;
    judge()?;
    let roots: Vec<&str> = match roots {
        [] => vec![OVERLAY],
        [all] if all == "--all" => [&[ABI, BOOTED][..], &RELEASES].concat(),
        some => some.iter().map(String::as_str).collect(),
    };
    let [old, new] = REVISIONS.map(|revision| {
        make(&Plan {
            revision,
            ..Plan::default()
        })
    });
    let (old, new) = (old?, new?);
    run(program(&["lintian", "--fail-on", "error", &old]))?;
    for root in roots {
        println!("in {root}:");
        run(match root {
            BOOTED => program(&["contrib/package/booted", &old, &new]),
            ABI => program(&["contrib/package/life", OVERLAY, &old, &new, &next()?]),
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

/// The unit of the broker, and most that systemd-analyze(1) may find exposed, in tenths.
const UNIT: &str = "contrib/package/fordway.service";
const EXPOSURE_MAX: &str = "--threshold=65";

/// Manual pages and the unit as their readers judge them.
fn judge() -> Outcome {
    let analyze = ["systemd-analyze", "security", "--offline=true"];
    let mut listed = program(&analyze);
    listed.args(["--json=short", UNIT]);
    let unit = std::fs::read_to_string(UNIT).map_err(|error| format!("{UNIT}: {error}"))?;
    let unexplained = unexplained(&output(listed)?, &unit)?;
    if !unexplained.is_empty() {
        let list = unexplained.join(", ");
        return Err(format!("{UNIT} does not say why it has no {list}"));
    }
    let mut threshold = program(&analyze);
    threshold.args([EXPOSURE_MAX, UNIT]).stdout(Stdio::null());
    run(threshold)?;
    let pages = std::fs::read_dir("target/man").map_err(|error| error.to_string())?;
    let pages = pages.filter_map(|page| Some(page.ok()?.path()));
    let mut lint = program(&["mandoc", "-T", "lint", "-W", "error"]);
    lint.args(pages.filter(|page| page.extension().is_some_and(|kind| kind == "1")));
    run(lint)
}

/// What of systemd-analyze's list counts against the unit, and stands in none of its comments:
/// there a word ends with `=`, or with `*` for all that begin so.
fn unexplained(listed: &str, unit: &str) -> Result<Vec<String>, String> {
    let comments = unit.lines().filter_map(|line| line.strip_prefix('#'));
    let words: Vec<&str> = comments
        .flat_map(|line| line.split([' ', ',', ':']))
        .collect();
    let is_explained = |name: &str| {
        words.iter().any(|word| match word.strip_suffix('*') {
            Some(start) => !start.is_empty() && name.starts_with(start),
            None => word.strip_suffix('=') == Some(name),
        })
    };
    let listed: Value = serde_json::from_str(listed).map_err(|error| error.to_string())?;
    let mut names: Vec<String> = listed
        .as_array()
        .into_iter()
        .flatten()
        .filter(|one| one["set"] != true && one["exposure"].is_string())
        .filter_map(|one| Some(one["name"].as_str()?.split('=').next()?.to_owned()))
        .filter(|name| !is_explained(name))
        .collect();
    names.dedup();
    Ok(names)
}

/// A package to be made.
pub(crate) struct Plan<'p> {
    pub version: &'p str,
    pub revision: &'p str,
    /// Cargo's directory in which its programs were built.
    pub built: &'p str,
    /// Where it goes.
    pub out: &'p str,
}

impl Default for Plan<'_> {
    fn default() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            revision: REVISIONS[0],
            built: "target",
            out: OUT,
        }
    }
}

/// Makes a package of programs that are built, and of the pages of `./x man`.
pub(crate) fn make(plan: &Plan<'_>) -> Result<String, String> {
    let Plan { out, built, .. } = plan;
    if !Path::new(FORDWAY).exists() {
        build(&[])?;
    }
    install_tool()?;
    let version = format!("{}-{}", plan.version, plan.revision);
    let file = format!("{out}/fordway_{version}_amd64.deb");
    std::fs::create_dir_all(out).map_err(|error| format!("{out}: {error}"))?;
    let tool = format!("{TOOLS}/bin/cargo-deb");
    let mut command = program(&[&tool, "--quiet", "--no-build", "--strip", "-p", "fordway"]);
    command.args(["--deb-version", &version, "--output", &file]);
    command.env("CARGO_TARGET_DIR", built);
    command.env("SOURCE_DATE_EPOCH", time());
    run(command)?;
    Ok(file)
}

/// A package whose library and broker have the next ABI version.
fn next() -> Result<String, String> {
    let mut build = cargo(&["build", "--release", "--target-dir", NEXT]);
    build.args(
        bill::members()?
            .product
            .iter()
            .flat_map(|name| ["-p", name]),
    );
    build.env("RUSTFLAGS", "--cfg fordway_abi_next");
    run(build)?;
    make(&Plan {
        version: NEXT_VERSION,
        built: NEXT,
        ..Plan::default()
    })
}

fn install_tool() -> Outcome {
    if Path::new(TOOLS).join("bin/cargo-deb").exists() {
        return Ok(());
    }
    let mut install = cargo(&["install", "--locked", "--quiet", "cargo-deb"]);
    install.args(["--version", CARGO_DEB, "--root", TOOLS]);
    run(install)
}

/// Lets another tree use this one's tools.
pub(crate) fn share_tools(tree: &Path) -> Outcome {
    install_tool()?;
    let wrong = |error: std::io::Error| format!("{TOOLS}: {error}");
    let there = tree.join(TOOLS);
    std::fs::create_dir_all(there.parent().unwrap_or(tree)).map_err(wrong)?;
    let tools = std::path::absolute(TOOLS).map_err(wrong)?;
    std::os::unix::fs::symlink(tools, there).map_err(wrong)
}

/// The time of a package's files, in seconds: the last commit's, so that the bytes follow from it
/// (<https://reproducible-builds.org/specs/source-date-epoch/>). Without git, the beginning of time.
pub(crate) fn time() -> String {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    given.unwrap_or_else(|| {
        output(program(&["git", "log", "-1", "--format=%ct"])).unwrap_or("0".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_unit_lacks_has_its_reason() {
        let one = |name: &str, set: bool, exposure: &str| {
            format!(r#"{{"set":{set},"name":"{name}","exposure":{exposure}}}"#)
        };
        let listed = [
            one("User=/DynamicUser=", false, "\"0.4\""),
            one("ProtectHome=", false, "\"0.2\""),
            one("UMask=", false, "\"0.1\""),
            one("Delegate=", true, "null"),
            one("PrivateIPC=", false, "null"),
        ];
        let listed = format!("[{}]", listed.join(","));
        let unit = "# no Protect*, User= or such\n[Service]\nUMask=0077\n";
        assert_eq!(unexplained(&listed, unit), Ok(vec!["UMask".to_owned()]));
    }
}
