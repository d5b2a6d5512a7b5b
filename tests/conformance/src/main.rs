//! `./x conformance [--musl] [--between] [--stack] [WORD...]`: the table of all cases on all backends, or of those
//! whose `PROGRAM NAME` contains one of the words; of the programs that are linked to musl; of those that
//! can be played between two domains, over IPv4 and over IPv6; of a stack of the program's own. Exit status 1 if one differs.
#![forbid(unsafe_code)]

use fordway_test_conformance::Between;
use fordway_test_conformance::suite::{self, Against};
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut is_given = |option: &str| {
        let given = words.iter().any(|word| word == option);
        words.retain(|word| word != option);
        given
    };
    let programs = suite::programs(is_given("--musl"));
    let all = match (is_given("--between"), is_given("--stack")) {
        (true, _) => [Between::Four, Between::Six].map(Against::Between).to_vec(),
        (false, true) => vec![Against::Stack],
        (false, false) => vec![Against::FastPath],
    };
    let wanted = |case: &suite::Case| {
        let label = case.to_string();
        words.is_empty() || words.iter().any(|word| label.contains(word.as_str()))
    };
    let mut failed = 0;
    for against in all {
        if against != Against::FastPath {
            println!("== {against:?}");
        }
        let tally = suite::table(&programs, against, wanted)?;
        println!("{} passed, {} failed", tally.passed, tally.failed);
        failed += tally.failed;
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}
