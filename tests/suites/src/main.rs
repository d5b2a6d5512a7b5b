//! `./x suites [--short] [WORD...]`: the table of the suites whose names contain a word.
#![forbid(unsafe_code)]

use anyhow::Result;
use fordway_test_suites::{Form, table};
use std::process::ExitCode;

fn main() -> Result<ExitCode> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let all = words.len();
    words.retain(|word| word != "--short");
    let form = match words.len() == all {
        true => Form::Whole,
        false => Form::Short,
    };
    let all_hold = table(form, |suite| {
        words.is_empty() || words.iter().any(|word| suite.name.contains(word.as_str()))
    })?;
    Ok(match all_hold {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
