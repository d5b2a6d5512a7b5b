//! The rules in the runtime directory: a broker that starts again has them before it
//! serves anybody. They live as long as the fabric does.

use crate::runtime;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where they lie.
pub(crate) const FILE: &str = "filter.json";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    pub(super) epoch: u64,
    pub(super) rules: String,
    /// What the counts of these rules have of each end of a channel: the channel's number, the
    /// cookie of the end's socket, bytes.
    #[serde(default)]
    pub(super) credited: Vec<(u64, u64, u64)>,
}

/// A file that lies beside the one in force and is not yet it.
#[derive(Debug)]
pub(super) struct Prepared {
    new: PathBuf,
    file: PathBuf,
}

/// What was in force when the last broker ended.
pub(super) fn read(runtime_dir: &Path) -> io::Result<Option<Stored>> {
    match std::fs::read(runtime_dir.join(FILE)) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn prepare(runtime_dir: &Path, stored: &Stored) -> io::Result<Prepared> {
    let file = runtime_dir.join(FILE);
    let new = file.with_extension("new");
    let mut writer = runtime::private_file(&new)?;
    writer.write_all(&serde_json::to_vec(stored)?)?;
    writer.sync_all()?;
    Ok(Prepared { new, file })
}

impl Prepared {
    pub(super) fn take_place(self) -> io::Result<()> {
        std::fs::rename(&self.new, &self.file)
    }

    pub(super) fn discard(self) {
        let _ = std::fs::remove_file(&self.new);
    }
}

pub(super) fn forget(runtime_dir: &Path) {
    let _ = std::fs::remove_file(runtime_dir.join(FILE));
}
