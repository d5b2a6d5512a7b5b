//! The host's files, for `include`.
use crate::prelude::*;
use crate::source::{FileError, Files, SOURCE_BYTES_MAX};
use std::{
    io,
    path::{Path, PathBuf},
};

/// The file system. As with nft, `./NAME` and `/NAME` stand for themselves and any other name
/// is looked for in the directories of the search path.
pub struct FileSystem {
    /// What `nft -I` gives; `/etc` unless told otherwise.
    pub search: Vec<PathBuf>,
}

impl Default for FileSystem {
    fn default() -> FileSystem {
        FileSystem {
            search: vec![PathBuf::from("/etc")],
        }
    }
}

impl Files for FileSystem {
    fn read(&self, pattern: &str) -> Result<Vec<(String, String)>, FileError> {
        self.find(pattern).map_err(|error| error.to_string())
    }
}

impl FileSystem {
    fn find(&self, pattern: &str) -> io::Result<Vec<(String, String)>> {
        let own = pattern.starts_with('/') || pattern.starts_with("./");
        let places: Vec<PathBuf> = if own {
            vec![PathBuf::from(pattern)]
        } else {
            self.search.iter().map(|dir| dir.join(pattern)).collect()
        };
        let wild = pattern.contains(['*', '?', '[']);
        for place in &places {
            let found = if wild {
                matching(place)?
            } else if place.is_file() {
                vec![place.clone()]
            } else {
                Vec::new()
            };
            if !found.is_empty() {
                return found
                    .iter()
                    .map(|path| Ok((path.display().to_string(), read_text(path)?)))
                    .collect();
            }
        }
        if wild {
            Ok(Vec::new())
        } else {
            Err(io::Error::new(io::ErrorKind::NotFound, "no such file"))
        }
    }
}

/// Names in order; those that begin with a dot are not matched by `*` (nft(8), "INCLUDE FILES").
fn matching(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let options = glob::MatchOptions {
        require_literal_leading_dot: true,
        require_literal_separator: true,
        ..Default::default()
    };
    let paths = glob::glob_with(&pattern.to_string_lossy(), options)
        .map_err(|bad| io::Error::new(io::ErrorKind::InvalidInput, bad.msg))?;
    Ok(paths
        .filter_map(Result::ok)
        .filter(|path| path.is_file())
        .collect())
}

/// A file as text, not longer than a ruleset may be.
pub fn read_text(path: &Path) -> io::Result<String> {
    use io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(SOURCE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() > SOURCE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("longer than {SOURCE_BYTES_MAX} bytes"),
        ));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))
}
