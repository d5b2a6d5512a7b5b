//! What is told of a change: lines of the listing that came and went, each with the table
//! and the chain or set that it stands in.

use std::collections::BTreeMap;

/// Lines that are told of one change; what is beyond is one line that says how many.
const LINES_MAX: usize = 1000;

/// `- inet fw chain forward: tcp dport 6379 accept`, then the `+` lines.
pub(super) fn changes(before: &str, after: &str) -> Vec<String> {
    let (before, after) = (placed(before), placed(after));
    let mut count: BTreeMap<&str, i64> = BTreeMap::new();
    for line in &before {
        *count.entry(line).or_default() -= 1;
    }
    for line in &after {
        *count.entry(line).or_default() += 1;
    }
    let mut left = |lines: &[String], sign: char, step: i64| {
        let mut out = Vec::new();
        for line in lines {
            let Some(count) = count.get_mut(line.as_str()) else {
                continue;
            };
            if *count * step > 0 {
                *count -= step;
                out.push(format!("{sign} {line}"));
            }
        }
        out
    };
    let mut told = left(&before, '-', -1);
    told.extend(left(&after, '+', 1));
    if told.len() > LINES_MAX {
        let more = told.len() - LINES_MAX;
        told.truncate(LINES_MAX);
        told.push(format!("... and {more} more"));
    }
    told
}

/// A line without what was counted, and without how long elements stay: that is no change.
fn without_counts(line: &str) -> String {
    let mut words = line.split(' ').peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let skipped = match (word, words.peek()) {
            ("packets", Some(count)) if is_number(count) => 3,
            ("expires", Some(_)) => 1,
            _ => {
                kept.push(word);
                continue;
            }
        };
        for _ in 0..skipped {
            words.next();
        }
    }
    kept.join(" ")
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Each line that says something, with its place before it.
fn placed(listing: &str) -> Vec<String> {
    let mut place: Vec<&str> = Vec::new();
    let mut out = Vec::new();
    for line in listing.lines().map(str::trim).filter(|l| !l.is_empty()) {
        if line == "}" {
            place.pop();
        } else if let Some(block) = line.strip_suffix(" {")
            && place.len() < 2
        {
            place.push(block.strip_prefix("table ").unwrap_or(block));
            out.push(place.join(" "));
        } else {
            out.push(format!("{}: {}", place.join(" "), without_counts(line)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::changes;

    #[test]
    fn lines_that_came_and_went_are_told_with_their_place() {
        let before =
            "table inet t {\n\tchain f {\n\t\ttcp dport 1 accept\n\t\ttcp dport 1 accept\n\t}\n}\n";
        let after = "table inet t {\n\tchain f {\n\t\ttcp dport 1 accept\n\t\ttcp dport 2 drop\n\t}\n\n\tset s {\n\t\telements = { 1 }\n\t}\n}\n";
        assert_eq!(
            changes(before, after),
            [
                "- inet t chain f: tcp dport 1 accept",
                "+ inet t chain f: tcp dport 2 drop",
                "+ inet t set s",
                "+ inet t set s: elements = { 1 }",
            ]
        );
        assert!(changes(after, after).is_empty());
        let rule = |count| {
            let text =
                "table ip t {\n\tchain f {\n\t\tcounter packets COUNT bytes 9 accept\n\t}\n}\n";
            text.replace("COUNT", count)
        };
        assert!(changes(&rule("1"), &rule("2")).is_empty());
    }
}
