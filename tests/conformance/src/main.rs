//! `./x conformance [--musl] [--between] [WORD...]`: the table of all cases on all backends, or of those
//! whose `PROGRAM NAME` contains one of the words; of the programs that are linked to musl; of those that
//! can be played between two domains, over IPv4 and over IPv6. Exit status 1 if one differs.
#![forbid(unsafe_code)]

use fordway_test_conformance::{Between, suite};
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut is_given = |option: &str| {
        let given = words.iter().any(|word| word == option);
        words.retain(|word| word != option);
        given
    };
    let programs = suite::programs(is_given("--musl"));
    let families = match is_given("--between") {
        true => vec![Some(Between::Four), Some(Between::Six)],
        false => vec![None],
    };
    let mut failed = 0;
    for family in families {
        if let Some(family) = family {
            println!("== between domains: {family:?}");
        }
        let tally = suite::table(&programs, family, |case| {
            let label = case.to_string();
            words.is_empty() || words.iter().any(|word| label.contains(word.as_str()))
        })?;
        println!("{} passed, {} failed", tally.passed, tally.failed);
        failed += tally.failed;
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}
