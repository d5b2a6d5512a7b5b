//! Holds the tables of docs/abi.md against `layout.txt`, which the test beside this one holds
//! against the code: each word with its place and size, each message with its fields, each state.
#![cfg(not(loom))]

use std::collections::{BTreeMap, BTreeSet};

const LAYOUT: &str = include_str!("../layout.txt");
const DOCUMENT: &str = include_str!("../../../docs/abi.md");

/// A word of a structure: offset and bytes.
type Words = BTreeMap<String, (usize, usize)>;

#[test]
fn the_document_is_of_this_version() {
    let first = DOCUMENT
        .lines()
        .find(|line| line.starts_with("This describes"));
    // Its successor, which is built for a test of upgrades, has no document.
    let version = fordway_abi::ABI_VERSION - u32::from(cfg!(fordway_abi_next));
    let said = first.is_some_and(|line| line.contains(&format!(", version **{version}**")));
    assert!(said, "version {version}: {first:?}");
}

/// What `layout.txt` says of one structure.
#[derive(Default)]
struct Structure {
    bytes: usize,
    words: Words,
    /// Of a message: its kind, and the least number of descriptors.
    message: Option<(usize, usize)>,
}

fn number(text: &str) -> usize {
    let digits = text.trim().split(|c: char| !c.is_ascii_digit()).next();
    digits.unwrap().parse().unwrap()
}

fn structures() -> BTreeMap<String, Structure> {
    let mut all = BTreeMap::new();
    for part in LAYOUT.split("\n\n") {
        let Some((name, rest)) = part.trim().split_once(": ") else {
            continue;
        };
        let mut structure = Structure::default();
        for (index, line) in rest.lines().enumerate() {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                _ if index == 0 => structure.bytes = number(line),
                ["kind", kind, "descriptors", range] => {
                    structure.message = Some((number(kind), number(range)));
                }
                [offset, bytes, word] => {
                    let place = (number(offset), number(bytes));
                    structure.words.insert(word.to_owned(), place);
                }
                _ => panic!("{line}"),
            }
        }
        all.insert(name.to_owned(), structure);
    }
    all
}

/// The cells of the rows under this head.
fn rows(head: &str) -> Vec<Vec<String>> {
    let (_, table) = DOCUMENT.split_once(&format!("\n{head}\n")).expect(head);
    let rows = table.lines().skip(1).take_while(|row| row.starts_with('|'));
    let cells = |row: &str| {
        let inner = row.trim_matches('|').replace(r"\|", "/");
        inner
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    rows.map(cells).collect()
}

/// Bytes of a type, if the document's word for it says so.
fn bytes_of(kind: &str) -> Option<usize> {
    Some(match kind {
        "u64" => 8,
        "u32" => 4,
        "u16" => 2,
        _ => kind.strip_suffix(" bytes")?.parse().ok()?,
    })
}

/// Each row is a word at its place, and each word has a row.
fn compare(table: &[Vec<String>], words: &Words) {
    let mut left: BTreeSet<_> = words.keys().map(String::as_str).collect();
    for row in table {
        let offset = number(&row[0]);
        let named = row[1].split('`').nth(1).expect("a word");
        let name = named.split('[').next().unwrap();
        let found = words.iter().find(|(word, (from, bytes))| {
            let word = word.rsplit('.').next().unwrap();
            word == name && (*from..from + bytes).contains(&offset)
        });
        let (word, (from, bytes)) = found.unwrap_or_else(|| panic!("no {named} at {offset}"));
        if named == name {
            assert_eq!(offset, *from, "{named}");
            if let Some(told) = bytes_of(&row[2]) {
                assert_eq!(told, *bytes, "{named}");
            }
        }
        left.remove(word.as_str());
    }
    assert!(left.is_empty(), "without a row: {left:?}");
}

#[test]
fn each_word_of_an_endpoint_stands_where_the_document_says() {
    let all = structures();
    let lines = [
        ("tx", "TxLine"),
        ("rx", "RxLine"),
        ("wait", "WaitLine"),
        ("cold", "ColdLine"),
        ("tx_own", "TxOwnLine"),
        ("rx_own", "RxOwnLine"),
        ("moments", "MomentLine"),
    ];
    assert_eq!(all["Endpoint"].words.len(), lines.len());
    let mut words = Words::new();
    for (line, name) in lines {
        let (base, _) = all["Endpoint"].words[line];
        for (word, (offset, bytes)) in &all[name].words {
            words.insert(format!("{line}.{word}"), (base + offset, *bytes));
        }
    }
    let table = rows("| offset | word | type | read by the peer | meaning |");
    compare(&table, &words);
    compare(
        &rows("| offset | word | type | meaning |"),
        &all["Claim"].words,
    );
}

#[test]
fn each_message_has_the_fields_of_the_document() {
    let all = structures();
    let mut left: BTreeSet<_> = all
        .iter()
        .filter(|(_, one)| one.message.is_some())
        .collect::<Vec<_>>()
        .into_iter()
        .map(|(name, _)| name.as_str())
        .collect();
    for row in rows("| kind | message | from | body bytes | descriptors | fields |") {
        let [kind, name, _, bytes, descriptors, fields] = &row[..] else {
            panic!("{row:?}");
        };
        let structure = &all[name];
        let told = (number(kind), number(descriptors));
        assert_eq!(
            Some(told),
            structure.message,
            "{name}: kind and descriptors"
        );
        assert_eq!(number(bytes), structure.bytes, "{name}: bytes");
        let words: BTreeSet<_> = fields
            .split(|c: char| c != '_' && !c.is_alphanumeric())
            .collect();
        let missing: Vec<_> = structure
            .words
            .keys()
            .filter(|word| !words.contains(word.as_str()))
            .collect();
        assert!(missing.is_empty(), "{name} without {missing:?}");
        assert!(left.remove(name.as_str()), "{name} twice");
    }
    assert!(left.is_empty(), "without a row: {left:?}");
}

#[test]
fn each_state_has_the_number_of_the_document() {
    for (word, head) in [
        (
            "tx_state",
            "| `tx_state` | number | what the consumer does |",
        ),
        (
            "rx_state",
            "| `rx_state` | number | what the producer does |",
        ),
    ] {
        let table = rows(head);
        let prefix = format!("shm::{word}::");
        let states = LAYOUT
            .lines()
            .filter(|line| line.trim().starts_with(&prefix));
        assert_eq!(states.count(), table.len(), "{word}");
        for row in table {
            let line = format!("  {prefix}{} = {}\n", row[0], row[1]);
            assert!(LAYOUT.contains(&line), "{line}");
        }
    }
}
