//! `./x house`: the picture of the crates in docs/architecture.md, made from Cargo's own graph.
//!
//! Each crate stands there once, with what its Cargo.toml says of it; all of tests/ is one. An arrow
//! points at what a crate uses, unless another way leads there as well (the graph's transitive
//! reduction: Aho, Garey, Ullman 1972). Tests hold the document against the graph, and the stops on
//! the way of a byte against the functions.

use crate::{Outcome, cargo};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const DOCUMENT: &str = "docs/architecture.md";
const BEGIN: &str = "<!-- house: begin (./x house) -->\n";
const END: &str = "<!-- house: end -->";
/// The unikernel is built for another target, in a workspace of its own.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "apps/unikernel/Cargo.toml"];
/// Stands for all that lies below it.
const TESTS: &str = "tests";

/// What each crate uses, by their paths in the tree.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// `house`.
pub(crate) fn house(_: &[String]) -> Outcome {
    let text = read(DOCUMENT)?;
    let new = replaced(&text, &picture(&graph()?)?)?;
    std::fs::write(DOCUMENT, new).map_err(|error| format!("{DOCUMENT}: {error}"))
}

fn read(file: &str) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))
}

fn replaced(text: &str, picture: &str) -> Result<String, String> {
    let marks = || {
        let (before, rest) = text.split_once(BEGIN)?;
        Some((before, rest.split_once(END)?.1))
    };
    let (before, after) = marks().ok_or(format!("{DOCUMENT} has no marks of the house"))?;
    Ok(format!("{before}{BEGIN}{picture}{END}{after}"))
}

fn graph() -> Result<Graph, String> {
    let mut graph = Graph::new();
    for manifest in MANIFESTS {
        let output = cargo(&[
            "tree",
            "--locked",
            "--workspace",
            "--all-features",
            "--no-dedupe",
            "--edges=normal",
            "--depth=1",
            "--prefix=depth",
            "--format={p}",
            "--manifest-path",
            manifest,
        ])
        .output()
        .map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        add(&mut graph, &String::from_utf8_lossy(&output.stdout))?;
    }
    Ok(graph)
}

/// Lines of `cargo tree`: the depth, the crate, and where it lies if it is ours.
fn add(graph: &mut Graph, lines: &str) -> Outcome {
    let root = std::env::current_dir().map_err(|error| error.to_string())?;
    let mut user = None;
    for line in lines.lines() {
        let ours = line.rsplit_once(" (").and_then(|(_, path)| {
            let path = Path::new(path.strip_suffix(')')?)
                .strip_prefix(&root)
                .ok()?;
            Some(path.to_str()?.to_owned())
        });
        let Some(path) = ours else { continue };
        let path = match path.split_once('/') {
            Some((TESTS, _)) => TESTS.to_owned(),
            _ => path,
        };
        if line.starts_with('0') {
            graph.entry(path.clone()).or_default();
            user = Some(path);
        } else if let Some(user) = user.as_ref().filter(|user| **user != path) {
            graph.entry(user.clone()).or_default().insert(path);
        }
    }
    Ok(())
}

/// All that a crate uses, by whatever ways.
fn reached<'g>(graph: &'g Graph, from: &str, found: &mut BTreeSet<&'g str>) {
    for used in graph.get(from).into_iter().flatten() {
        if found.insert(used) {
            reached(graph, used, found);
        }
    }
}

fn picture(graph: &Graph) -> Result<String, String> {
    let id = |path: &str| path.replace(['/', '-'], "_");
    let mut text = "```mermaid\nflowchart TD\n".to_owned();
    for path in graph.keys() {
        let what = match path.as_str() {
            TESTS => "tests of all of it".to_owned(),
            _ => described(path)?,
        };
        text += &format!("  {}[\"{path}<br>{what}\"]\n", id(path));
    }
    for (path, used) in graph {
        let mut by_others = BTreeSet::new();
        for one in used {
            reached(graph, one, &mut by_others);
        }
        for one in used.iter().filter(|one| !by_others.contains(one.as_str())) {
            text += &format!("  {} --> {}\n", id(path), id(one));
        }
    }
    Ok(text + "```\n")
}

fn described(path: &str) -> Result<String, String> {
    let file = format!("{path}/Cargo.toml");
    let text = read(&file)?;
    let mut lines = text.lines();
    let what = lines.find_map(|line| line.strip_prefix("description = \""));
    let what = what.and_then(|rest| rest.strip_suffix('"'));
    what.map(str::to_owned)
        .ok_or(format!("{file} has no description"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_in_the_docs_is_cargos_graph() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        std::env::set_current_dir(root).unwrap();
        let text = read(DOCUMENT).unwrap();
        let now = replaced(&text, &picture(&graph().unwrap()).unwrap()).unwrap();
        assert!(now == text, "{DOCUMENT} shows another house: ./x house");
    }

    /// Stops on the way of a byte, at most.
    const STOPS_MAX: usize = 12;

    #[test]
    fn each_stop_on_the_way_of_a_byte_is_a_function() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = std::fs::read_to_string(root.join(DOCUMENT)).unwrap();
        let (_, way) = text.split_once("## The way of a byte\n").unwrap();
        let stops = way.lines().skip_while(|line| !line.starts_with("| 1 |"));
        let stops: Vec<_> = stops.take_while(|line| line.starts_with('|')).collect();
        assert!((1..=STOPS_MAX).contains(&stops.len()), "{stops:#?}");
        for stop in stops {
            let named = stop.split('`').nth(1).unwrap();
            let (_, file) = stop.split_once(" (").unwrap();
            let (file, _) = file.split_once(')').unwrap();
            let code = std::fs::read_to_string(root.join(file)).unwrap();
            let is_there =
                code.contains(&format!("fn {named}(")) || code.contains(&format!("fn {named}<"));
            assert!(is_there, "no `{named}` in {file}");
        }
    }

    #[test]
    fn an_arrow_that_another_way_implies_is_left_out() {
        let uses = |used: &[&str]| used.iter().map(|&one| one.to_owned()).collect();
        let graph = Graph::from([
            ("xtask".to_owned(), uses(&["crates/abi", "crates/ring"])),
            ("crates/ring".to_owned(), uses(&["crates/abi"])),
            ("crates/abi".to_owned(), uses(&[])),
        ]);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        std::env::set_current_dir(root).unwrap();
        let text = picture(&graph).unwrap();
        assert!(text.contains("xtask --> crates_ring\n"), "{text}");
        assert!(!text.contains("xtask --> crates_abi"), "{text}");
    }
}
