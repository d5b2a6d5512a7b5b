//! Sockets of unmodified programs under a stack of their own, with Linux as the oracle: one script of cases is played on both,
//! and what differs has a reason here.

mod common;

use common::{Bed, Stack};

/// Lines of `cases.py` that differ from Linux's, and why.
const DIFFERENCES: &[(&str, &str)] = &[];

#[test]
fn sockets_do_what_linux_says() {
    let (Some(mut own), Some(mut kernels)) = (Bed::start(Stack::Own), Bed::start(Stack::Kernels))
    else {
        return;
    };
    let words = std::env::var("FORDWAY_CASES").unwrap_or_default();
    let words: Vec<_> = words.split_whitespace().collect();
    let wanted = kernels.play_cases(&words);
    let shown = own.play_cases(&words);
    assert!(own.stack_lives());
    let name = |line: &String| line.split_once(':').map(|(name, _)| name.to_owned());
    let mut wrong = Vec::new();
    for line in &wanted {
        let ours = shown.iter().find(|other| name(other) == name(line));
        let is_known = DIFFERENCES
            .iter()
            .any(|(known, _)| Some(*known) == name(line).as_deref());
        if ours != Some(line) && !is_known {
            wrong.push(format!(
                "linux: {line}\nours:  {}",
                ours.map_or("-", |line| line)
            ));
        }
        if ours == Some(line) && is_known {
            wrong.push(format!("no longer a difference: {line}"));
        }
    }
    for line in &shown {
        if !wanted.iter().any(|other| name(other) == name(line)) {
            wrong.push(format!("ours alone: {line}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}\n{}",
        wrong.len(),
        wanted.len(),
        wrong.join("\n")
    );
    assert!(
        wanted.len() > 100 || !words.is_empty(),
        "{} lines",
        wanted.len()
    );
}
