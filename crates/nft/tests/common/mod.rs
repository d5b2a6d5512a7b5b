//! The corpus: entries with marks, and the installed nft to hold them against.
//! See tests/corpus/README.md for what the marks mean.
#![allow(dead_code)]

use fordway_nft::{Env, FileSystem, Outcome, load_text};
use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Taken,
    Wrong,
    WrongWhenLoaded,
    Refused,
}

pub struct Entry {
    pub mark: Mark,
    /// For [`Mark::Refused`]: the name of the construct.
    pub refused: String,
    /// Where it stands, for messages.
    pub place: String,
    /// The rule as it is written.
    pub rule: String,
    /// A whole file with the rule in its place.
    pub text: String,
}

pub fn corpus() -> Vec<Entry> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<PathBuf> = fs::read_dir(&dir)
        .expect("corpus")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "rules"))
        .collect();
    files.sort();
    files.iter().flat_map(|file| read(file)).collect()
}

fn read(path: &Path) -> Vec<Entry> {
    let text = fs::read_to_string(path).expect("corpus file");
    let name = path
        .file_name()
        .expect("name")
        .to_string_lossy()
        .to_string();
    let mut lines = text.lines().enumerate();
    let mut out = Vec::new();
    let mut head = String::new();
    let mut preamble = String::new();
    while let Some((number, line)) = lines.next() {
        let place = format!("{name}:{}", number + 1);
        let Some((mark, rest)) = line.split_once(' ') else {
            assert!(line.is_empty(), "{place}: {line}");
            continue;
        };
        let (mark, refused, rest) = match mark {
            "#" => continue,
            "@" => {
                rest.clone_into(&mut head);
                preamble.clear();
                continue;
            }
            "|" => {
                let _ = writeln!(preamble, "\t{rest}");
                continue;
            }
            "+" => (Mark::Taken, "", rest),
            "-" => (Mark::Wrong, "", rest),
            "~" => (Mark::WrongWhenLoaded, "", rest),
            "!" => {
                let (refused, rest) = rest.split_once(": ").expect("NAME: RULE");
                (Mark::Refused, refused, rest)
            }
            _ => panic!("{place}: {line}"),
        };
        let text = if rest == "<<<" {
            let mut file = String::new();
            for (_, line) in lines.by_ref() {
                if line == ">>>" {
                    break;
                }
                file.push_str(line);
                file.push('\n');
            }
            file
        } else {
            around(&head, &preamble, rest)
        };
        out.push(Entry {
            mark,
            refused: refused.to_string(),
            place,
            rule: rest.to_string(),
            text,
        });
    }
    out
}

fn around(head: &str, preamble: &str, rule: &str) -> String {
    let words: Vec<&str> = head.split(' ').collect();
    let [family, kind, hook] = words[..] else {
        panic!("@ FAMILY TYPE HOOK, not {head}");
    };
    let device = if hook == "ingress" { " device lo" } else { "" };
    let priority = if kind == "nat" { 100 } else { 0 };
    format!(
        "table {family} t {{\n{preamble}\tchain c {{\n\t\ttype {kind} hook {hook}{device} priority {priority};\n\t\t{rule}\n\t}}\n}}\n"
    )
}

/// What the empty namespace has.
pub fn env() -> Env {
    let mut env = Env::system();
    env.interfaces = vec![("lo".to_string(), 1)];
    env
}

pub fn ours(text: &str) -> Result<Outcome, fordway_nft::Faults> {
    load_text(
        &Default::default(),
        &env(),
        &FileSystem::default(),
        "input",
        text,
        &[],
    )
}

/// What the installed nft says of a file.
pub struct Verdict {
    /// `nft -c -f`.
    pub checks: bool,
    /// `nft -f`.
    pub loads: bool,
    /// `nft list ruleset` behind it.
    pub listing: String,
    /// What it complained about.
    pub complaint: String,
}

/// Asks nft about files, each in an empty ruleset of a namespace that ends with the call.
/// `None` where that is not possible.
pub fn real_nft(texts: &[String], json: bool) -> Option<Vec<Verdict>> {
    let can = Command::new("unshare")
        .args(["-n", "nft", "list", "ruleset"])
        .output()
        .is_ok_and(|out| out.status.success());
    if !can {
        fordway_test_skip::skipped("needs root and nft");
        return None;
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let dir = std::env::temp_dir().join(format!(
        "fordway-nft-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    ));
    fs::create_dir_all(&dir).expect("directory");
    for (at, text) in texts.iter().enumerate() {
        fs::write(dir.join(format!("{at}")), text).expect("file");
    }
    // One shell for all: a namespace for each would take longer than nft.
    let flag = if json { "-j" } else { "" };
    let script = format!(
        "cd {} && for i in $(seq 0 {}); do
            timeout 10 nft {flag} -c -f $i >$i.out 2>&1 && touch $i.checks
            if timeout 10 nft {flag} -f $i >$i.out2 2>&1; then touch $i.loads; fi
            nft list ruleset >$i.listing; nft flush ruleset
        done",
        dir.display(),
        texts.len() - 1
    );
    let done = Command::new("unshare")
        .args(["-n", "sh", "-c", &script])
        .status()
        .expect("unshare");
    assert!(done.success());
    let text = |name: String| fs::read_to_string(dir.join(name)).unwrap_or_default();
    let verdicts = (0..texts.len())
        .map(|at| Verdict {
            checks: dir.join(format!("{at}.checks")).exists(),
            loads: dir.join(format!("{at}.loads")).exists(),
            listing: text(format!("{at}.listing")),
            complaint: text(format!("{at}.out")) + &text(format!("{at}.out2")),
        })
        .collect();
    fs::remove_dir_all(&dir).expect("directory");
    Some(verdicts)
}
