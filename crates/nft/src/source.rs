//! Where text comes from: files and what they include, and how a place in them is said.
//!
//! A [`Span`] is a file number and two byte offsets; line and column are counted only when
//! somebody is told about them. Files are read through [`Files`], so that tests and fuzzing
//! need no file system, and a caller can keep a ruleset from reading what it likes.
use crate::prelude::*;

/// Why a file could not be read: one line for people.
pub type FileError = String;

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
    fn read(&self, pattern: &str) -> Result<Vec<(String, String)>, FileError>;
}

/// Refuses each include.
pub struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _: &str) -> Result<Vec<(String, String)>, FileError> {
        Err("there are no files to include here".to_string())
    }
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
