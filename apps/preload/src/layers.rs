//! The layers of the library's modules, held against what they import.
//!
//! A module uses those of its own layer and of the layers below. What calls up stands in [`UP`], with
//! why: who waits reads mail, mail moves connections, and a connection that is moved wakes those who
//! wait. [`crate::process`] belongs to none: it names what each module knows of the process, and each
//! module uses that.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Lowest first.
const LAYERS: [&[&str]; 7] = [
    // The kernel, libc, and what a user has said.
    &["claim", "config", "libcs", "memory", "packet", "sys"],
    // Threads: their locks, signals and faults; whose memory this is.
    &["faults", "identity", "lock", "signals", "thread"],
    // What is known: of descriptors and connections, of memory, of time.
    &[
        "aside", "cork", "deadline", "headroom", "hidden", "insisted", "pace", "purse", "spin",
        "state",
    ],
    // Other processes: peers, relatives, the broker; doorbells.
    &[
        "broker",
        "fork",
        "guest",
        "late",
        "link",
        "shared_bell",
        "stay",
        "wait",
    ],
    // A connection's way up and down, its bytes, and who waits for them by epoll.
    &["datagram", "end", "epoll", "stack", "transfer", "upgrade"],
    // Those who wait for several at once.
    &["poll", "select"],
    // What the program calls.
    &[
        "hooks_fd",
        "hooks_io",
        "hooks_many",
        "hooks_options",
        "hooks_proc",
        "hooks_records",
        "hooks_stack",
        "hooks_syscall",
        "hooks_unseen",
        "hooks_vsock",
        "hooks_wait",
        "loan",
        "names",
        "stdio",
    ],
];

/// Who calls up.
const UP: [(&str, &str); 11] = [
    // Mail moves connections, and flows of datagrams.
    ("broker", "datagram"),
    ("broker", "end"),
    ("broker", "upgrade"),
    // A child gives its parent's instances up.
    ("fork", "epoll"),
    // UDP sockets are relatives' from the fork on.
    ("fork", "datagram"),
    // A link that is of no use any more takes its connections down.
    ("link", "upgrade"),
    // A handler that ran ends the sleep that it came before.
    ("signals", "wait"),
    // What was learnt of waiting belongs to a peer.
    ("spin", "link"),
    // The last descriptor is closed.
    ("stay", "upgrade"),
    // Options that rings do not know keep a connection from them.
    ("upgrade", "hooks_options"),
    // Who wakes serves the connections that owe something.
    ("wait", "upgrade"),
];

/// Modules of the crate that some source names, but for its tests.
fn named(source: &str) -> BTreeSet<String> {
    let code = source
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    let lines = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    let code: String = lines.flat_map(|line| [line, " "]).collect();
    let mut names = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        // One path, or several in braces, in which deeper braces belong to one of them.
        let list = match rest.strip_prefix('{') {
            Some(list) => list,
            None => {
                names.insert(first_word(rest));
                continue;
            }
        };
        let (mut depth, mut is_first) = (0, true);
        for (at, letter) in list.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => is_first = true,
                ' ' => {}
                _ => {
                    if is_first && depth == 0 {
                        names.insert(first_word(&list[at..]));
                    }
                    is_first = false;
                }
            }
        }
    }
    names
}

fn first_word(text: &str) -> String {
    let is_part = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '_';
    text.chars().take_while(is_part).collect()
}

/// The sources of a module: its file, or those of its directory.
fn sources(path: &Path) -> String {
    let files = match path.is_dir() {
        false => vec![path.to_owned()],
        true => {
            let entries = fs::read_dir(path).expect("a directory");
            entries
                .map(|entry| entry.expect("an entry").path())
                .collect()
        }
    };
    let sources = files.iter().filter(|file| !file.ends_with("tests.rs"));
    sources
        .map(|file| fs::read_to_string(file).expect("a source") + "\n")
        .collect()
}

#[test]
fn modules_use_their_layer_and_those_below() {
    let layer = |name: &str| LAYERS.iter().position(|layer| layer.contains(&name));
    let mut up = BTreeSet::new();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in fs::read_dir(src).expect("sources") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if ["lib", "process", "layers", "testing"].contains(&&*name) {
            continue;
        }
        let own = layer(&name).unwrap_or_else(|| panic!("{name} is in no layer"));
        let used = named(&sources(&path));
        let above = used
            .into_iter()
            .filter(|used| layer(used).is_some_and(|at| at > own));
        up.extend(above.map(|used| (name.clone(), used)));
    }
    let expected = UP.map(|(one, other)| (one.to_owned(), other.to_owned()));
    assert_eq!(up, expected.into());
}
