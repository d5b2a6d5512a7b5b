//! `./x native`: what programs of the native API (docs/native-api.md) need, in target/native: the library of C with its
//! header and pkg-config's file, and the wheel of Python. Crates of Rust name crates/native.

use crate::{Outcome, cargo, output, program, run};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

const OUT: &str = "target/native";
/// The header is checked in: only who changes the ABI needs the program that makes it.
const HEADER: &str = "crates/capi/include/fordway.h";
const TOOL: &str = "target/tools/bin/cbindgen";
const TOOL_VERSION: &str = "0.29.4";

/// `./x native [--examples]`.
pub(crate) fn native(words: &[String]) -> Outcome {
    let mut build = cargo(&["build", "--release"]);
    build.args(["-p", "fordway-capi-library", "-p", "fordway-python"]);
    run(build)?;
    if words.contains(&"--examples".to_owned()) {
        // By themselves: their features are none of the library's.
        let mut examples = cargo(&["build", "--release", "-p", "fordway-native"]);
        examples.args(["--features", "fordway-native/tokio", "--examples"]);
        run(examples)?;
    }
    let links = [
        (
            "lib/libfordway-native.so",
            "target/release/libfordway_native.so",
        ),
        (
            "lib/pkgconfig/fordway-native.pc",
            "contrib/native/fordway-native.pc",
        ),
        ("include/fordway.h", HEADER),
    ];
    for (name, file) in links {
        let name = Path::new(OUT).join(name);
        let laid = fs::create_dir_all(name.parent().unwrap_or(Path::new(OUT)))
            .and_then(|()| {
                if name.is_symlink() {
                    fs::remove_file(&name)
                } else {
                    Ok(())
                }
            })
            .and_then(|()| symlink(std::path::absolute(file)?, &name));
        laid.map_err(|error| format!("{}: {error}", name.display()))?;
    }
    let module = "target/release/libfordway_python.so";
    let version = env!("CARGO_PKG_VERSION");
    let packed = program(&["python3", "contrib/native/wheel.py", module, version, OUT]);
    println!("{}", output(packed)?);
    Ok(())
}

/// `./x header`.
pub(crate) fn header(_: &[String]) -> Outcome {
    if !Path::new(TOOL).exists() {
        let words = [
            "install",
            "--locked",
            "--quiet",
            "cbindgen",
            "--version",
            TOOL_VERSION,
        ];
        let mut install = cargo(&words);
        install.args(["--root", "target/tools"]);
        run(install)?;
    }
    run(program(&[
        TOOL,
        "--quiet",
        "--config",
        "crates/capi/cbindgen.toml",
        "--output",
        HEADER,
        "crates/capi",
    ]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Functions that are declared behind `before`, with their arguments' names.
    fn functions(text: &str, before: &str, argument: fn(&str) -> &str) -> BTreeSet<String> {
        let lines = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let code: String = lines.flat_map(|line| [line, " "]).collect();
        let declared = code.split(before).skip(1).filter_map(|rest| {
            let (name, arguments) = rest.split_once(')')?.0.split_once('(')?;
            let arguments = arguments.split(',').map(|one| argument(one.trim()));
            let arguments: Vec<_> = arguments.filter(|one| !one.is_empty()).collect();
            (!name.contains(' ')).then(|| format!("{name}({})", arguments.join(", ")))
        });
        declared.collect()
    }

    #[test]
    fn the_header_has_each_function_with_its_arguments() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let read = |file| std::fs::read_to_string(root.join(file)).unwrap();
        let header = read(super::HEADER).replace("struct fordway_", "struct ");
        let header = functions(&header, "fordway_", |one| {
            one.rsplit([' ', '*']).next().unwrap()
        });
        let before = "extern \"C\" fn fordway_";
        let code = functions(&read("crates/capi/src/c.rs"), before, |one| {
            one.split(':').next().unwrap()
        });
        assert!(
            code.len() > 20 && header == code,
            "./x header: {header:#?} {code:#?}"
        );
    }
}
