//! `./x conformance [WORD...]`: the table of all cases on all backends, or of those whose
//! `PROGRAM NAME` contains one of the words. Exit status 1 if one differs.
#![forbid(unsafe_code)]

use fordway_test_conformance::suite;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let tally = suite::table(|case| {
        let label = case.to_string();
        words.is_empty() || words.iter().any(|word| label.contains(word.as_str()))
    })?;
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(ExitCode::from(u8::from(tally.failed > 0)))
}
