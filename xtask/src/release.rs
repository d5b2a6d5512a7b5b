//! `./x release`: what a release consists of, into target/dist. The programs as an archive, the
//! Debian package, the source, the bill of materials ([`crate::bill`]), and the sums of all.
//!
//! The bytes follow from the commit alone. The source archive is made first, and everything else is
//! built from what is unpacked from it, so that nothing uncommitted gets in; directories' names are
//! mapped away, times are the commit's, owners are nobody. `--verify` shows it: two builds in
//! two directories give the same sums. `--short`, a step of `./x test`, packs twice what `./x build`
//! has made, and judges it like a release.
//!
//! The archive of the programs is the package's content, so the list of files has one home
//! (apps/fordway/Cargo.toml).

use crate::{Outcome, bill, cargo, man_pages, output, package, program, run, smaller_stack};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const OUT: &str = "target/dist";
/// What the short form packs, twice.
const SHORT: [&str; 2] = ["target/dist-short/1", "target/dist-short/2"];
/// Where a release is built, and once more.
const BUILT: &str = "target/dist-build";
const SUMS: &str = "SHA256SUMS";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `./x release [--dirty] [--verify]`.
pub(crate) fn release(words: &[String]) -> Outcome {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["--short"] => return short(),
        // In the unpacked source, for the two below.
        ["--pack", out] => return pack_built(Path::new(out)),
        _ => {}
    }
    let known = ["--dirty", "--verify"];
    if let Some(word) = words.iter().find(|word| !known.contains(word)) {
        return Err(format!(
            "release takes {}, not {word:?}",
            known.join(" and ")
        ));
    }
    let commit = commit(words.contains(&"--dirty"))?;
    let out = std::path::absolute(OUT).map_err(|error| error.to_string())?;
    make(&commit, Path::new(BUILT), &out)?;
    judge(&out)?;
    if words.contains(&"--verify") {
        let elsewhere =
            std::env::temp_dir().join(format!("fordway-release-{}", std::process::id()));
        let again = elsewhere.join("another/place");
        let same = make(&commit, &again.join("built"), &again.join("out"))
            .and_then(|()| compare(&out, &again.join("out")));
        let removed = fs::remove_dir_all(&elsewhere);
        same?;
        removed.map_err(|error| format!("{}: {error}", elsewhere.display()))?;
        println!("the same bytes from two directories");
    }
    for file in files(&out)? {
        println!("{OUT}/{file}");
    }
    Ok(())
}

/// The step of `./x test`.
pub(crate) fn tested(all: bool) -> Command {
    let form = if all { "--verify" } else { "--short" };
    let mut test = cargo(&["xtask", "release", form]);
    // What was changed and not committed is tried, too.
    test.args(all.then_some("--dirty"));
    test
}

/// The commit that is released; of a tree with changes, one that has them and that no branch knows.
fn commit(may_be_dirty: bool) -> Result<String, String> {
    let changed = output(program(&["git", "status", "--porcelain"]))?;
    if changed.is_empty() {
        return output(program(&["git", "rev-parse", "HEAD"]));
    }
    if !may_be_dirty {
        let text =
            "the tree has changes that are not committed; commit them, or: ./x release --dirty";
        return Err(text.to_owned());
    }
    // New files are in it once git knows them (git add).
    let made = output(program(&["git", "stash", "create"]))?;
    match made.is_empty() {
        true => output(program(&["git", "rev-parse", "HEAD"])),
        false => Ok(made),
    }
}

/// Builds a commit below `built`; a release is in `out` afterwards, and nothing else.
fn make(commit: &str, built: &Path, out: &Path) -> Outcome {
    for dir in [built, out] {
        anew(dir)?;
    }
    let source = out.join(format!("fordway-{VERSION}.tar"));
    let mut archive = program(&["git", "-c", "tar.umask=0022", "archive", "--format=tar"]);
    archive.arg(format!("--prefix=fordway-{VERSION}/"));
    run(append(archive, &["-o", &shown(&source), commit]))?;
    run(append(
        program(&["tar", "-x", "-C"]),
        &[&shown(built), "-f", &shown(&source)],
    ))?;
    run(gzip(&source))?;
    let tree = built.join(format!("fordway-{VERSION}"));
    let tree = std::path::absolute(tree).map_err(|error| error.to_string())?;
    package::share_tools(&tree)?;
    run(cargo(&["fetch", "--locked", "--quiet"]))?;
    let mut inside = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
    inside.args(["release", "--pack"]).arg(out);
    inside
        // Where `main` finds the tree.
        .env("CARGO_MANIFEST_DIR", tree.join("xtask"))
        .env("CARGO_ENCODED_RUSTFLAGS", mapped(&tree)?)
        .env_remove("CARGO_TARGET_DIR")
        .env("SOURCE_DATE_EPOCH", time_of(commit)?);
    run(inside)
}

/// Directories that a program shall not name: the tree's, and those of the crates' sources, whose
/// names depend on the registry's address.
fn mapped(tree: &Path) -> Result<String, String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let sources = home
        .ok_or("no CARGO_HOME and no HOME")?
        .join("registry/src");
    let registries =
        fs::read_dir(&sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    let mut flags = vec![format!("--remap-path-prefix={}=/fordway", tree.display())];
    for registry in registries.filter_map(Result::ok) {
        flags.push(format!(
            "--remap-path-prefix={}=/registry",
            registry.path().display()
        ));
    }
    Ok(flags.join("\x1f"))
}

fn time_of(commit: &str) -> Result<String, String> {
    output(program(&["git", "log", "-1", "--format=%ct", commit]))
}

/// In the unpacked source: builds the product alone, and packs it.
fn pack_built(out: &Path) -> Outcome {
    let members = bill::members()?;
    let mut build = cargo(&["build", "--release", "--locked", "--quiet"]);
    build.args(members.product.iter().flat_map(|name| ["-p", name]));
    run(build)?;
    run(smaller_stack())?;
    pack(out)
}

/// Packs what is built in target/release.
fn pack(out: &Path) -> Outcome {
    man_pages()?;
    let made = package::make(&package::Plan {
        out: &shown(out),
        ..package::Plan::default()
    })?;
    let time = package::time();
    let name = format!("fordway-{VERSION}-x86_64-linux");
    let stage = out.join("stage");
    let root = stage.join(&name);
    fs::create_dir_all(&root).map_err(|error| error.to_string())?;
    run(program(&["dpkg-deb", "-x", &made, &shown(&root)]))?;
    // `bin`, `lib`, `share`: the command finds the library wherever the two lie side by side.
    let usr = root.join("usr");
    for entry in fs::read_dir(&usr).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        fs::rename(entry.path(), root.join(entry.file_name()))
            .map_err(|error| error.to_string())?;
    }
    fs::remove_dir(&usr).map_err(|error| error.to_string())?;
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        fs::copy(licence, root.join(licence)).map_err(|error| format!("{licence}: {error}"))?;
    }
    let archive = out.join(format!("{name}.tar"));
    let mut tar = program(&["tar", "--sort=name", "--format=gnu", "--numeric-owner"]);
    tar.args(["--owner=0", "--group=0", "--mode=u+rw,go=rX"]);
    tar.arg(format!("--mtime=@{time}"));
    run(append(
        tar,
        &["-C", &shown(&stage), "-cf", &shown(&archive), &name],
    ))?;
    run(gzip(&archive))?;
    fs::remove_dir_all(&stage).map_err(|error| error.to_string())?;
    let at = output(program(&[
        "date",
        "-u",
        "-d",
        &format!("@{time}"),
        "+%Y-%m-%dT%H:%M:%SZ",
    ]))?;
    let bill = bill::bill(&bill::members()?.product, &at)?;
    fs::write(bill_of(out), bill).map_err(|error| error.to_string())?;
    let mut sums = program(&["sha256sum", "--"]);
    sums.current_dir(out).args(files(out)?);
    fs::write(out.join(SUMS), output(sums)? + "\n").map_err(|error| error.to_string())
}

/// Whether what is to be published is whole, and says of itself what is true.
fn judge(out: &Path) -> Outcome {
    let mut sums = program(&["sha256sum", "--check", "--strict", "--quiet", SUMS]);
    sums.current_dir(out);
    run(sums)?;
    let summed = fs::read_to_string(out.join(SUMS)).map_err(|error| error.to_string())?;
    for file in files(out)?.iter().filter(|file| *file != SUMS) {
        if !summed
            .lines()
            .any(|line| line.ends_with(&format!("  {file}")))
        {
            return Err(format!("{SUMS} lacks {file}"));
        }
    }
    let unpacked = out.join("judged");
    anew(&unpacked)?;
    let archive = out.join(format!("fordway-{VERSION}-x86_64-linux.tar.gz"));
    run(append(
        program(&["tar", "-x", "-C"]),
        &[&shown(&unpacked), "-f", &shown(&archive)],
    ))?;
    let programs = bill::programs(&unpacked);
    fs::remove_dir_all(&unpacked).map_err(|error| error.to_string())?;
    let bill = fs::read_to_string(bill_of(out)).map_err(|error| error.to_string())?;
    bill::judge(&bill, &bill::members()?, &programs?)
}

fn short() -> Outcome {
    for out in SHORT.map(Path::new) {
        anew(out)?;
        pack(out)?;
    }
    let [one, two] = SHORT.map(Path::new);
    compare(one, two)?;
    judge(one)?;
    println!("packed twice: the same bytes; the bill fits the programs");
    Ok(())
}

fn compare(one: &Path, two: &Path) -> Outcome {
    let [one, two] = [one, two].map(|dir| fs::read_to_string(dir.join(SUMS)).unwrap_or_default());
    let differs = one
        .lines()
        .find(|line| !two.lines().any(|other| other == *line));
    match differs {
        Some(line) => Err(format!("not the same bytes the second time: {line}")),
        None if one.is_empty() || one != two => {
            Err("not the same files the second time".to_owned())
        }
        None => Ok(()),
    }
}

fn bill_of(out: &Path) -> PathBuf {
    out.join(format!("fordway-{VERSION}.cdx.json"))
}

/// Names of the files of a directory.
fn files(dir: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let entries = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_file());
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

fn anew(dir: &Path) -> Outcome {
    let wrong = |error: std::io::Error| format!("{}: {error}", dir.display());
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(wrong)?;
    }
    fs::create_dir_all(dir).map_err(wrong)
}

fn gzip(file: &Path) -> Command {
    program(&["gzip", "-9", "-n", "-f", &shown(file)])
}

fn append(mut command: Command, words: &[&str]) -> Command {
    command.args(words);
    command
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
