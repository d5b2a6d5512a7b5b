//! The bill of materials: every crate that takes part in the product, in the form of CycloneDX 1.5
//! (<https://cyclonedx.org/docs/1.5/json/>). Which crates, and who uses whom, is `cargo tree`'s word;
//! what their sources' hashes are, Cargo.lock's. The same tree gives the same bytes.
//!
//! [`judge`] holds a bill against the programs themselves: a panic's message names the source file,
//! so a program's bytes tell which crates are in it, whatever Cargo says.

use crate::{cargo, output};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Sources that the standard library was built from; it is the toolchain's.
const OF_THE_TOOLCHAIN: &[u8] = b"/rust/deps/";

/// A crate, by `name@version`.
#[derive(Default)]
struct Crate {
    name: String,
    version: String,
    licence: String,
    is_ours: bool,
    uses: BTreeSet<String>,
}

type Graph = BTreeMap<String, Crate>;

/// What the workspace has: of each member its name, its place, its targets' files.
pub(crate) struct Member {
    pub name: String,
    dir: String,
    files: Vec<String>,
}

/// The members, and those of them whose programs are in the package.
pub(crate) struct Members {
    pub all: Vec<Member>,
    pub product: Vec<String>,
}

/// Asks Cargo. The package's files have one home: `package.metadata.deb` of apps/fordway.
pub(crate) fn members() -> Result<Members, String> {
    let words = ["metadata", "--no-deps", "--locked", "--format-version=1"];
    let said: Value = parsed(&output(cargo(&words))?)?;
    let root = text(&said["workspace_root"]);
    let all: Vec<Member> = list(&said["packages"])
        .iter()
        .map(|package| Member {
            name: text(&package["name"]),
            dir: text(&package["manifest_path"])
                .trim_start_matches(&format!("{root}/"))
                .trim_end_matches("/Cargo.toml")
                .to_owned(),
            files: list(&package["targets"]).iter().filter_map(file).collect(),
        })
        .collect();
    let packages = list(&said["packages"]).iter();
    let assets = packages.flat_map(|package| list(&package["metadata"]["deb"]["assets"]));
    let programs: Vec<String> = assets
        .filter_map(|asset| Some(text(&asset[0]).strip_prefix("target/release/")?.to_owned()))
        .collect();
    let product = programs.iter().map(|program| {
        let made = all.iter().find(|member| member.files.contains(program));
        made.map(|member| member.name.clone())
            .ok_or(format!("no crate makes {program} of the package's assets"))
    });
    // One crate may make two programs.
    let product: BTreeSet<String> = product.collect::<Result<_, _>>()?;
    let product = product.into_iter().collect();
    Ok(Members { all, product })
}

/// What Cargo makes of a target that can be installed.
fn file(target: &Value) -> Option<String> {
    let name = text(&target["name"]);
    match list(&target["kind"]).first()?.as_str()? {
        "bin" => Some(name),
        "cdylib" => Some(format!("lib{name}.so")),
        _ => None,
    }
}

/// The bill of what these members are made of.
pub(crate) fn bill(product: &[String], time: &str) -> Result<String, String> {
    let graph = graph(product)?;
    let hashes = hashes()?;
    let components: Vec<Value> = graph.iter().map(|one| component(one, &hashes)).collect();
    let version = env!("CARGO_PKG_VERSION");
    let whole = format!("fordway-{version}");
    let roots = graph
        .iter()
        .filter(|(_, one)| product.contains(&one.name))
        .map(|(id, _)| id);
    let mut edges = vec![json!({ "ref": whole, "dependsOn": roots.collect::<Vec<_>>() })];
    edges.extend(
        graph
            .iter()
            .map(|(id, one)| json!({ "ref": id, "dependsOn": one.uses })),
    );
    let rustc = output(crate::program(&["rustc", "--version"]))?;
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "tools": { "components": [
                { "type": "application", "name": "xtask", "version": version },
                { "type": "application", "name": "rustc", "version": rustc.split(' ').nth(1) },
            ] },
            "component": {
                "type": "application",
                "bom-ref": whole,
                "name": "fordway",
                "version": version,
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            },
        },
        "components": components,
        "dependencies": edges,
    });
    let text = serde_json::to_string_pretty(&bill).map_err(|error| error.to_string())?;
    Ok(text + "\n")
}

fn component((id, one): (&String, &Crate), hashes: &BTreeMap<String, String>) -> Value {
    let purl = match one.is_ours {
        // No registry has it: purl-spec's qualifier for where it comes from.
        true => format!("pkg:cargo/{id}?download_url=file://."),
        false => format!("pkg:cargo/{id}"),
    };
    let mut component = json!({
        "type": "library",
        "bom-ref": id,
        "name": one.name,
        "version": one.version,
        "purl": purl,
        // Cargo's older form of `OR` is none of SPDX's.
        "licenses": [{ "expression": one.licence.replace('/', " OR ") }],
    });
    if let Some(hash) = hashes.get(id) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": hash }]);
    }
    component
}

fn graph(product: &[String]) -> Result<Graph, String> {
    let mut words = vec!["tree", "--locked", "--edges=normal,build", "--prefix=depth"];
    words.extend(["--target", TARGET, "--format={p}|{l}"]);
    words.extend(product.iter().flat_map(|name| ["-p", name]));
    read_tree(&output(cargo(&words))?)
}

/// Lines of `cargo tree`: `2clap_derive v4.6.7 (proc-macro)|MIT OR Apache-2.0 (*)`.
fn read_tree(lines: &str) -> Result<Graph, String> {
    let mut graph = Graph::new();
    // The ways from a root down to the line before.
    let mut above: Vec<String> = Vec::new();
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let wrong = || format!("cargo tree says {line:?}");
        let digits = line.chars().take_while(char::is_ascii_digit).count();
        let depth: usize = line[..digits].parse().map_err(|_| wrong())?;
        let line = line.trim_end_matches(" (*)");
        let (whole, licence) = line[digits..].split_once('|').ok_or_else(wrong)?;
        let mut words = whole.split(' ');
        let (name, version) = words.next().zip(words.next()).ok_or_else(wrong)?;
        let version = version.strip_prefix('v').ok_or_else(wrong)?;
        let id = format!("{name}@{version}");
        above.truncate(depth);
        if let Some(user) = above.last().and_then(|user| graph.get_mut(user)) {
            user.uses.insert(id.clone());
        }
        above.push(id.clone());
        graph.entry(id).or_insert_with(|| Crate {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: licence.to_owned(),
            is_ours: whole.contains("(/"),
            uses: BTreeSet::new(),
        });
    }
    Ok(graph)
}

/// SHA-256 of each crate's source as the registry gives it.
fn hashes() -> Result<BTreeMap<String, String>, String> {
    let lock = std::fs::read_to_string("Cargo.lock").map_err(|error| error.to_string())?;
    let packages = lock.split("[[package]]").skip(1);
    Ok(packages
        .filter_map(|package| {
            let value = |key: &str| {
                let key = format!("{key} = \"");
                let line = package.lines().find_map(|line| line.strip_prefix(&key))?;
                line.strip_suffix('"')
            };
            let id = format!("{}@{}", value("name")?, value("version")?);
            Some((id, value("checksum")?.to_owned()))
        })
        .collect())
}

/// What is wrong with a bill, by itself and beside the programs that it is of.
pub(crate) fn judge(bill: &str, members: &Members, programs: &[Vec<u8>]) -> Result<(), String> {
    let bill: Value = parsed(bill)?;
    if bill["bomFormat"] != "CycloneDX" || bill["specVersion"] != "1.5" || bill["version"] != 1 {
        return Err("the bill is not one of CycloneDX 1.5".to_owned());
    }
    let mut ids = BTreeSet::new();
    for component in list(&bill["components"]) {
        let id = text(&component["bom-ref"]);
        for key in ["type", "name", "version", "purl"] {
            if text(&component[key]).is_empty() {
                return Err(format!("the bill has no {key} of {id}"));
            }
        }
        if text(&component["licenses"][0]["expression"]).is_empty() {
            return Err(format!("the bill has no licence of {id}"));
        }
        let is_ours = members.all.iter().any(|one| component["name"] == one.name);
        if !is_ours && text(&component["hashes"][0]["content"]).len() != 64 {
            return Err(format!("the bill has no hash of {id}"));
        }
        if !ids.insert(id.clone()) {
            return Err(format!("the bill names {id} twice"));
        }
    }
    let edges = list(&bill["dependencies"]);
    let used = edges.iter().flat_map(|edge| list(&edge["dependsOn"]));
    if let Some(unknown) = used.map(text).find(|id| !ids.contains(id)) {
        return Err(format!(
            "the bill says that {unknown} is used, and no more of it"
        ));
    }
    let found: BTreeSet<String> = programs
        .iter()
        .flat_map(|program| crates_in(program, members))
        .collect();
    // Of what is in every program of ours; or the look at the programs is blind.
    if !found.iter().any(|id| id.starts_with("clap_builder@")) || found.len() < 10 {
        return Err(format!("too little was found in the programs: {found:?}"));
    }
    let missing: Vec<_> = found.difference(&ids).cloned().collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "in the programs, and not in the bill: {}",
            missing.join(", ")
        )),
    }
}

/// The crates whose source files a program names.
fn crates_in(program: &[u8], members: &Members) -> BTreeSet<String> {
    let version = env!("CARGO_PKG_VERSION");
    let part_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(byte);
    let mut found = BTreeSet::new();
    for end in places(program, b"/src/") {
        let path = &program[..end];
        // Ours are named by their place in the tree.
        let ours = members.all.iter();
        let ours = ours.filter(|member| path.ends_with(member.dir.as_bytes()));
        found.extend(ours.map(|member| format!("{}@{version}", member.name)));
        let length = path.iter().rev().take_while(|byte| part_of_name(byte));
        let (before, dir) = path.split_at(end - length.count());
        let dir = String::from_utf8_lossy(dir);
        // Where a version begins.
        let split = dir.match_indices('-').find(|(at, _)| {
            dir.as_bytes().get(at + 1).is_some_and(u8::is_ascii_digit) && dir[*at..].contains('.')
        });
        if let Some((at, _)) = split
            && before.ends_with(b"/")
            && !before.ends_with(OF_THE_TOOLCHAIN)
        {
            found.insert(format!("{}@{}", &dir[..at], &dir[at + 1..]));
        }
    }
    found
}

fn places<'b>(bytes: &'b [u8], what: &'b [u8]) -> impl Iterator<Item = usize> + 'b {
    let windows = bytes.windows(what.len()).enumerate();
    windows
        .filter(move |(_, window)| *window == what)
        .map(|(at, _)| at)
}

/// The programs below a directory: what is of the format ELF.
pub(crate) fn programs(dir: &Path) -> Result<Vec<Vec<u8>>, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let kind = entry.file_type().map_err(wrong)?;
        if kind.is_dir() {
            found.extend(programs(&entry.path())?);
        } else if kind.is_file() {
            let bytes = std::fs::read(entry.path()).map_err(wrong)?;
            found.extend(bytes.starts_with(b"\x7fELF").then_some(bytes));
        }
    }
    Ok(found)
}

fn parsed(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_read_with_who_uses_whom() {
        let lines = "0a v0.1.0 (/tree/a)|MIT\n1b v1.0.0-rc.1|MIT/Apache-2.0\n2c v2.0.0 (proc-macro)|ISC\n\
                     1c v2.0.0 (proc-macro)|ISC (*)\n\n0d v0.1.0 (/tree/d)|MIT\n1b v1.0.0-rc.1|MIT/Apache-2.0 (*)\n";
        let graph = read_tree(lines).expect("it is one");
        let uses = |id: &str| graph[id].uses.iter().cloned().collect::<Vec<_>>();
        assert_eq!(graph.len(), 4);
        assert_eq!(uses("a@0.1.0"), ["b@1.0.0-rc.1", "c@2.0.0"]);
        assert_eq!(uses("b@1.0.0-rc.1"), ["c@2.0.0"]);
        assert_eq!(uses("d@0.1.0"), ["b@1.0.0-rc.1"]);
        assert!(graph["d@0.1.0"].is_ours && !graph["c@2.0.0"].is_ours);
    }

    #[test]
    fn what_is_in_a_program_has_to_be_in_its_bill() {
        let members = Members {
            all: vec![Member {
                name: "fordway-bench".to_owned(),
                dir: "bench".to_owned(),
                files: Vec::new(),
            }],
            product: Vec::new(),
        };
        let program = b"x/rust/deps/hashbrown-0.1.0/src/a.rs/home/x/plotters-svg-0.3.7/src/b.rsbench/src/main.rs";
        let found: Vec<_> = crates_in(program, &members).into_iter().collect();
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            found,
            [
                format!("fordway-bench@{version}"),
                "plotters-svg@0.3.7".to_owned()
            ]
        );
    }

    /// The bench, the demo on it, and the Xen test bed are programs of their own.
    #[test]
    fn command_and_library_have_neither_bench_nor_test_bed() {
        let members = members().expect("Cargo's word");
        let own = ["fordway", "fordway-preload"].map(str::to_owned);
        assert!(own.iter().all(|name| members.product.contains(name)));
        let graph = graph(&own).expect("Cargo's tree");
        for foreign in [
            "fordway-bench",
            "fordway-xen-testbed",
            "fordway-lab",
            "plotters",
        ] {
            assert!(!graph.values().any(|one| one.name == foreign), "{foreign}");
        }
    }
}
