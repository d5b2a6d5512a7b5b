//! All suites, as `./x suites` plays them.

use anyhow::{Result, ensure};

#[test]
fn every_suite_of_others_ends_as_without_fordway() -> Result<()> {
    ensure!(
        fordway_test_suites::table(|_| true)?,
        "see the table above: a suite differs, or too few connections used rings"
    );
    Ok(())
}
