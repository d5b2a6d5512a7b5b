//! Where text comes from: files and what they include, and how a place in them is said.
//!
//! A [`Span`] is a file number and two byte offsets; line and column are counted only when
//! somebody is told about them. Files are read through [`Files`], so that tests and fuzzing
//! need no file system, and a caller can keep a ruleset from reading what it likes.
use std::{
    io,
    path::{Path, PathBuf},
};

/// At most this many files are read for one ruleset, however they include each other.
pub const FILES_MAX: usize = 256;
/// nft's own bound for includes inside includes.
pub const INCLUDE_DEPTH_MAX: usize = 16;
/// Text of all files together.
pub const SOURCE_BYTES_MAX: usize = 64 << 20;

/// A piece of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Number of the file, in the order of reading.
    pub file: u16,
    /// First byte.
    pub start: u32,
    /// After the last byte.
    pub end: u32,
}

impl Span {
    /// From the beginning of one to the end of another; a span never crosses files.
    pub fn to(self, other: Span) -> Span {
        if self.file != other.file || other.end < self.start {
            return self;
        }
        Span {
            end: other.end,
            ..self
        }
    }
}

/// How `include` finds files.
pub trait Files {
    /// The files that a pattern means, in order of names. None for a pattern with wildcards is
    /// fine; none for a plain name is an error.
    fn read(&self, pattern: &str) -> io::Result<Vec<(String, String)>>;
}

/// Refuses each include.
pub struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _: &str) -> io::Result<Vec<(String, String)>> {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "there are no files to include here",
        ))
    }
}

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
    fn read(&self, pattern: &str) -> io::Result<Vec<(String, String)>> {
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

/// What has been read, for telling places.
#[derive(Debug, Default)]
pub struct SourceMap {
    files: Vec<(String, String)>,
}

impl SourceMap {
    /// Takes a file in; its number.
    pub fn add(&mut self, name: String, text: String) -> u16 {
        self.files.push((name, text));
        u16::try_from(self.files.len() - 1).unwrap_or(u16::MAX)
    }

    /// How many files there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Nothing was read.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> usize {
        self.files.iter().map(|(_, text)| text.len()).sum()
    }

    /// Text of a file.
    pub fn text(&self, file: u16) -> &str {
        self.files
            .get(usize::from(file))
            .map_or("", |(_, text)| text)
    }

    /// Name of a file.
    pub fn name(&self, file: u16) -> &str {
        self.files
            .get(usize::from(file))
            .map_or("", |(name, _)| name)
    }

    /// Line and column of a span's beginning, both from 1; columns count characters.
    pub fn line_and_column(&self, span: Span) -> (usize, usize) {
        let text = self.text(span.file);
        let before = text.get(..span.start as usize).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (
            before.matches('\n').count() + 1,
            before[line_start..].chars().count() + 1,
        )
    }
}
