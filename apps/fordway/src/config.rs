//! The configuration file and what the command line puts over it.

use crate::cli::Up;
use crate::exit::{Exit, Failure};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Read if it exists and `--config` is not given.
const DEFAULT_FILE: &str = "/etc/fordway/fordway.toml";

/// The file's keys; others are refused.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Network of the domains, in CIDR form.
    pub network: Option<String>,
    /// As `--runtime-dir`.
    pub runtime_dir: Option<PathBuf>,
    /// As `--uplink`.
    pub uplink: Option<bool>,
    /// What the broker logs: error, warn, info, debug, trace, or a tracing filter.
    pub log: Option<String>,
}

/// Reads the file that `up` names, or the default one.
pub fn read(up: &Up) -> Result<File, Failure> {
    match &up.config {
        Some(file) => read_file(file),
        None if Path::new(DEFAULT_FILE).exists() => read_file(Path::new(DEFAULT_FILE)),
        None => Ok(File::default()),
    }
}

fn read_file(file: &Path) -> Result<File, Failure> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(Exit::Config, format!("{shown}: {error}")))?;
    toml::from_str(&text).map_err(|error: toml::de::Error| {
        let before = &text[..error.span().map_or(0, |span| span.start.min(text.len()))];
        let line = before.lines().count().max(1) + usize::from(before.ends_with('\n'));
        let what = error.message();
        Failure::new(Exit::Config, format!("{shown}, line {line}: {what}"))
    })
}
