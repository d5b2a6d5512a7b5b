//! The short form, as `./x suites --short` plays it.

use anyhow::{Result, ensure};
use fordway_test_suites::{Form, table};

#[test]
fn every_suite_of_others_ends_as_without_fordway() -> Result<()> {
    ensure!(
        table(Form::Short, |_| true)?,
        "see the table above: a suite differs, or too few connections used rings"
    );
    Ok(())
}
