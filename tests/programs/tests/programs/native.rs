//! The native API between domains: cases of our own in C, with rings and by the kernel, and the examples in its
//! three languages.

use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, CLIENT, CLIENT_LIMIT, PROXY, SERVER, Spawn, Stdin};
use fordway_test_programs::{files, script};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const PORT: u16 = 7100;
const ASK_PORT: u16 = 7120;
const COPY_PORT: u16 = 7130;
const CHAT_PORT: u16 = 7140;
/// Debian's own.
const PYTHON: &str = "/usr/bin/python3";
const FILE_BYTES: u64 = 100_000_000;
const CASES: usize = 13;
const LOANS_PORT: u16 = 7150;
const LOANS_CASES: usize = 4;
/// Half of what they send one way.
const LOANS_BYTES: u64 = 3_000_000;
/// Half of what the first cases send, and get back.
const CASES_BYTES: u64 = 30_000_000;

/// Below the tree.
fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// Makes `./x native` of what is there, once.
fn built() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let made = Command::new(cargo)
        .args(["xtask", "native", "--examples"])
        .current_dir(tree(""))
        .status()?;
    ensure!(made.success(), "./x native");
    Ok(tree("target/native").canonicalize()?)
}

/// Compiles a program of C as a user would, by pkg-config's words.
fn compiled(native: &Path, source: &str, target: &Path) -> Result<String> {
    let lib = native.join("lib");
    let asked = Command::new("pkg-config")
        .args(["--cflags", "--libs", "fordway-native"])
        .env("PKG_CONFIG_PATH", lib.join("pkgconfig"))
        .output()?;
    ensure!(asked.status.success(), "pkg-config");
    let words = String::from_utf8(asked.stdout)?;
    let made = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(target)
        .arg(source)
        .args(words.split_whitespace())
        .arg(format!("-Wl,-rpath,{}", lib.display()))
        .status()?;
    ensure!(made.success(), "{source}");
    Ok(target.to_string_lossy().into_owned())
}

#[test]
fn native() -> Result<()> {
    let Some(bed) = Bed::start("native", &["cc", "pkg-config"])? else {
        return Ok(());
    };
    let native = built()?;
    let program = compiled(&native, &script("native.c"), &bed.dir().join("native"))?;
    let port = PORT.to_string();
    let rings = |spawn: Spawn| spawn;
    let at_once = |spawn: Spawn| spawn.env("FORDWAY_OFFER_AFTER", "0");
    let by_kernel = |spawn: Spawn| spawn.env("FORDWAY_OFFER_AFTER", "4000000000");
    let mut lines = Vec::new();
    let ways: [(&str, &dyn Fn(Spawn) -> Spawn); 3] =
        [("rings", &rings), ("rings", &at_once), ("", &by_kernel)];
    for (word, way) in ways {
        let server = bed.serve(SERVER, PORT, way(Spawn::new([&program, "serve", &port])))?;
        let watch = bed.watch()?;
        let cases = way(Spawn::new([&program, "cases", SERVER, &port, word]));
        let text = bed.run(cases)?.text();
        let good = text.lines().filter(|line| line.starts_with("ok ")).count();
        ensure!(good == CASES, "{text}");
        let carried = watch.end(&bed)?;
        if !word.is_empty() {
            let ends = [SERVER, CLIENT];
            lines.push(carried.rings_at_both_ends(ends, PORT, CASES_BYTES)?);
            carried.rings_at_both_ends(ends, PORT + 1, CASES_BYTES)?;
        }
        bed.stop(server)?;
    }
    let line = lines.pop().context("a way with rings")?;
    bed.finish(&format!("{CASES} cases; {line}"))
}

/// An example by its name, in each language: the words that it is started by.
fn example(bed: &Bed, native: &Path, name: &str) -> Result<Vec<Vec<String>>> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let rust = |name: &str| text(tree(&format!("target/release/examples/native-{name}")));
    let source = text(tree(&format!("examples/native/{name}.c")));
    let c = compiled(native, &source, &bed.dir().join(name))?;
    let script = text(tree(&format!("examples/native/{name}.py")));
    let mut all = vec![vec![rust(name)], vec![c], vec![PYTHON.to_owned(), script]];
    if name == "ask" {
        all.push(vec![rust("await")]);
    }
    Ok(all)
}

/// The module of the wheel, as pip lays it.
fn unpacked(bed: &Bed, native: &Path) -> Result<String> {
    let mut wheels = fs::read_dir(native)?.filter_map(|file| Some(file.ok()?.path()));
    let wheel = wheels.find(|file| file.extension().is_some_and(|kind| kind == "whl"));
    let modules = bed.dir().join("modules");
    let unpack = Command::new(PYTHON)
        .args(["-m", "zipfile", "-e"])
        .args([&wheel.context("no wheel")?, &modules])
        .status()?;
    ensure!(unpack.success(), "the wheel");
    Ok(modules.to_string_lossy().into_owned())
}

#[test]
fn native_examples() -> Result<()> {
    let Some(bed) = Bed::start("native_examples", &["cc", "pkg-config", "python3"])? else {
        return Ok(());
    };
    let native = built()?;
    let modules = unpacked(&bed, &native)?;
    let start = |words: &[String], arguments: &[&str]| {
        let words = words
            .iter()
            .map(String::as_str)
            .chain(arguments.iter().copied());
        let spawn = Spawn::new(words).env("PYTHONPATH", &modules);
        spawn.env("FORDWAY_OFFER_AFTER", "0")
    };

    // A question has many words, so that the kernel's part is the smaller one.
    let words: Vec<String> = (0..4000).map(|word| format!("word-{word:0100}")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let answers = words.join("\n").to_uppercase() + "\n";
    let ask = example(&bed, &native, "ask")?;
    for (port, service) in (ASK_PORT..).zip(&ask) {
        let digits = port.to_string();
        let server = bed.serve(SERVER, port, start(service, &["serve", &digits]))?;
        let play = || {
            for asker in &ask {
                let asked = [&[SERVER, &digits], &words[..]].concat();
                let output = bed.run(start(asker, &asked))?;
                ensure!(output.text() == answers, "{service:?} and {asker:?}");
            }
            Ok(())
        };
        let bytes = answers.len() as u64 * ask.len() as u64;
        bed.seen(play, |carried| {
            carried.rings_at_both_ends([SERVER, CLIENT], port, bytes)
        })?;
        bed.stop(server)?;
    }

    let copy = example(&bed, &native, "copy")?;
    let (file, got) = (bed.dir().join("file"), bed.dir().join("got"));
    files::random(&file, FILE_BYTES)?;
    let to = got.to_string_lossy();
    let mut line = String::new();
    for (port, (taker, sender)) in (COPY_PORT..).zip(copy.iter().zip(copy.iter().cycle().skip(1))) {
        let digits = port.to_string();
        let server = bed.serve(SERVER, port, start(taker, &["take", &digits, &to]))?;
        let watch = bed.watch()?;
        let send = start(sender, &[SERVER, &digits, "/dev/stdin"]);
        bed.run_fed(send, fs::read(&file)?, || {
            watch.until_rings(&bed, [SERVER, CLIENT], port)
        })?;
        bed.end_of(server, CLIENT_LIMIT, "copy take")?.ok()?;
        files::same(&got, &file).with_context(|| format!("{sender:?} to {taker:?}"))?;
        let carried = watch.end(&bed)?;
        line = carried.rings_at_both_ends([SERVER, CLIENT], port, FILE_BYTES / 2)?;
    }

    let cases = vec![PYTHON.to_owned(), script("native_loans.py")];
    let digits = LOANS_PORT.to_string();
    let server = bed.serve(SERVER, LOANS_PORT, start(&cases, &["serve", &digits]))?;
    let watch = bed.watch()?;
    let text = bed.run(start(&cases, &[SERVER, &digits]))?.text();
    let good = text.lines().filter(|line| line.starts_with("ok ")).count();
    ensure!(good == LOANS_CASES, "{text}");
    let carried = watch.end(&bed)?;
    carried.rings_at_both_ends([SERVER, CLIENT], LOANS_PORT, LOANS_BYTES)?;
    bed.stop(server)?;

    let mut chatters = Vec::new();
    let digits = CHAT_PORT.to_string();
    for (domain, words) in [SERVER, CLIENT, PROXY]
        .into_iter()
        .zip(example(&bed, &native, "chat")?)
    {
        let spawn = start(&words, &[&digits, domain]).stdin(Stdin::Pipe);
        let mut chatter = bed.serve_datagrams(domain, CHAT_PORT, spawn)?;
        let says = chatter.take_stdin().context("no input")?;
        chatters.push((domain, chatter, says));
    }
    for (domain, _, says) in &mut chatters {
        writeln!(says, "hello from {domain}")?;
        says.flush()?;
    }
    for (domain, chatter, _) in &chatters {
        for (other, _, _) in chatters.iter().filter(|(other, _, _)| other != domain) {
            chatter.wait_for_output(&format!("{other}: hello from {other}\n"))?;
        }
    }
    for (domain, chatter, says) in chatters {
        drop(says);
        let said = bed.end_of(chatter, CLIENT_LIMIT, "chat")?.ok()?.text();
        ensure!(said.lines().count() == 2, "{domain} heard: {said}");
    }
    bed.finish(&format!("ask, copy and chat in three languages; {line}"))
}

#[test]
fn native_api_is_documented_by_what_is_tested() -> Result<()> {
    let document = fs::read_to_string(tree("docs/native-api.md"))?;
    for file in [
        "crates/native/examples/native-ask.rs",
        "examples/native/ask.c",
        "examples/native/ask.py",
    ] {
        let example = fs::read_to_string(tree(file))?;
        ensure!(
            document.contains(&example),
            "the document has another {file}"
        );
    }
    Ok(())
}
