//! `./x conformance [--musl] [WORD...]`: the table of all cases on all backends, or of those whose
//! `PROGRAM NAME` contains one of the words; of the programs that are linked to musl. Exit status 1
//! if one differs.
#![forbid(unsafe_code)]

use fordway_test_conformance::suite;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let musl = words.iter().any(|word| word == "--musl");
    words.retain(|word| word != "--musl");
    let tally = suite::table(&suite::programs(musl), |case| {
        let label = case.to_string();
        words.is_empty() || words.iter().any(|word| label.contains(word.as_str()))
    })?;
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(ExitCode::from(u8::from(tally.failed > 0)))
}
