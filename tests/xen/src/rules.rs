//! Rules for guests: nft's text, as `fordway filter compile` packs it on the host.

use anyhow::{Context, Result, ensure};
use fordway_xen_testbed::{Job, Source};
use std::io::Write;
use std::process::{Command, Stdio};

/// What scripts name behind /job.
const RULES: &[(&str, &str)] = &[
    ("closed.fwnf", include_str!("../rules/closed.nft")),
    ("refused.fwnf", include_str!("../rules/refused.nft")),
    ("open.fwnf", include_str!("../rules/open.nft")),
    ("past.fwnf", include_str!("../rules/past.nft")),
    ("hundred.fwnf", include_str!("../rules/hundred.nft")),
];

/// The compiled rules that the job's scripts name.
pub fn add_to(job: &mut Job) -> Result<()> {
    for (name, text) in RULES {
        if job.cases.iter().any(|case| case.script.contains(name)) {
            let source = Source::Bytes(compiled(text)?);
            job.files.push(((*name).to_owned(), source));
        }
    }
    Ok(())
}

fn compiled(text: &str) -> Result<Vec<u8>> {
    let fordway = fordway_lab::find_fordway()?;
    let mut child = Command::new(&fordway)
        .args(["filter", "compile", "/dev/stdin", "--out", "/dev/stdout"])
        // nft reads times as the zone's.
        .env("TZ", "UTC")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} does not start", fordway.display()))?;
    let mut stdin = child.stdin.take().context("it is piped")?;
    stdin.write_all(text.as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "fordway filter compile has failed");
    Ok(output.stdout)
}
