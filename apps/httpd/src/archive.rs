//! A ustar archive (POSIX.1-1988 `tar`), read where it lies: names and slices of contents.
//!
//! `tar --format=ustar -cf site.tar -C DIR .` makes one. GNU's long names (type `L`) and the
//! `path` of pax headers (type `x`) are understood, so that what tar makes by itself serves too.
//! Links, devices and sparse files are passed over. An archive whose lengths do not fit its size,
//! or whose checksums are wrong, is refused as a whole when it is opened.

use alloc::string::String;
use core::fmt;

const BLOCK: usize = 512;

/// Why an archive cannot be used, and at which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveError {
    /// A header's checksum is wrong: no archive, or a broken one.
    Checksum(usize),
    /// A number in a header is none.
    Number(usize),
    /// The contents go on behind the archive's end.
    Truncated(usize),
    /// A name is no UTF-8.
    Name(usize),
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArchiveError::Checksum(at) => write!(f, "byte {at}: no ustar header"),
            ArchiveError::Number(at) => write!(f, "byte {at}: a number that is none"),
            ArchiveError::Truncated(at) => write!(f, "byte {at}: the archive ends within a file"),
            ArchiveError::Name(at) => write!(f, "byte {at}: a name that is no UTF-8"),
        }
    }
}

impl core::error::Error for ArchiveError {}

/// A regular file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// As in the archive, without `./` in front.
    pub name: String,
    /// Seconds since 1970.
    pub modified_s: u64,
    /// The contents, where they lie.
    pub body: &'a [u8],
}

/// The files of an archive, one after the other; ends at the first error.
pub struct Archive<'a> {
    bytes: &'a [u8],
    at: usize,
    long_name: Option<&'a [u8]>,
}

impl<'a> Archive<'a> {
    /// Reads from the beginning of `bytes`; what follows the archive's end mark is not looked at.
    pub fn new(bytes: &'a [u8]) -> Archive<'a> {
        Archive {
            bytes,
            at: 0,
            long_name: None,
        }
    }

    fn step(&mut self) -> Result<Option<Entry<'a>>, ArchiveError> {
        while let Some(header) = self.bytes.get(self.at..self.at + BLOCK) {
            let here = self.at;
            if header.iter().all(|byte| *byte == 0) {
                self.at = self.bytes.len();
                return Ok(None);
            }
            if number(&header[148..156]) != Some(checksum(header)) {
                return Err(ArchiveError::Checksum(here));
            }
            let size = number(&header[124..136]).ok_or(ArchiveError::Number(here))?;
            let size = usize::try_from(size).map_err(|_| ArchiveError::Truncated(here))?;
            let start = here + BLOCK;
            let end = start
                .checked_add(size)
                .filter(|end| *end <= self.bytes.len());
            let end = end.ok_or(ArchiveError::Truncated(here))?;
            // The last file's padding may be missing.
            self.at = end.next_multiple_of(BLOCK).min(self.bytes.len());
            let body = &self.bytes[start..end];
            match header[156] {
                b'L' => self.long_name = Some(until_zero(body)),
                b'x' => self.long_name = pax_path(body).or(self.long_name),
                b'g' => {}
                b'0' | 0 | b'7' => {
                    let modified_s = number(&header[136..148]).ok_or(ArchiveError::Number(here))?;
                    let name = self.name(header).map_err(|_| ArchiveError::Name(here))?;
                    return Ok(Some(Entry {
                        name,
                        modified_s,
                        body,
                    }));
                }
                _ => self.long_name = None,
            }
        }
        if self.at < self.bytes.len() {
            return Err(ArchiveError::Truncated(self.at));
        }
        Ok(None)
    }

    fn name(&mut self, header: &[u8]) -> Result<String, core::str::Utf8Error> {
        let mut name = String::new();
        match self.long_name.take() {
            Some(long) => name.push_str(core::str::from_utf8(long)?),
            None => {
                let prefix = until_zero(&header[345..500]);
                if header[257..262] == *b"ustar" && header[262] == 0 && !prefix.is_empty() {
                    name.push_str(core::str::from_utf8(prefix)?);
                    name.push('/');
                }
                name.push_str(core::str::from_utf8(until_zero(&header[..100]))?);
            }
        }
        let plain = name.trim_start_matches("./").trim_start_matches('/').len();
        name.drain(..name.len() - plain);
        Ok(name)
    }
}

impl<'a> Iterator for Archive<'a> {
    type Item = Result<Entry<'a>, ArchiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.at = self.bytes.len();
        }
        step.transpose()
    }
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

/// Octal, ended by a space or zero; or, with the first bit set, binary (GNU, for large files).
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at(field.len() - 8);
        let is_small = high[0] == 0x80 && high[1..].iter().all(|byte| *byte == 0);
        return is_small.then(|| u64::from_be_bytes(low.try_into().unwrap_or_default()));
    }
    let mut value = 0u64;
    for byte in field.iter().skip_while(|byte| **byte == b' ') {
        match byte {
            b'0'..=b'7' => value = value.checked_mul(8)? | u64::from(byte - b'0'),
            b' ' | 0 => break,
            _ => return None,
        }
    }
    Some(value)
}

/// The sum of the header's bytes, with spaces in place of the sum itself.
fn checksum(header: &[u8]) -> u64 {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    sum(&header[..148]) + 8 * u64::from(b' ') + sum(&header[156..])
}

/// The value of `path` in pax's records: "LENGTH KEY=VALUE\n", LENGTH of the whole record.
fn pax_path(mut records: &[u8]) -> Option<&[u8]> {
    let mut path = None;
    while let Some(space) = records.iter().position(|byte| *byte == b' ') {
        let length = core::str::from_utf8(&records[..space]).ok()?;
        let length: usize = length.parse().ok()?;
        let record = records.get(space + 1..length)?;
        path = record.strip_prefix(b"path=").or(path);
        records = &records[length..];
    }
    path?.strip_suffix(b"\n")
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn header(name: &str, kind: u8, size: usize) -> Vec<u8> {
        let mut header = std::vec![0; BLOCK];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..136].copy_from_slice(std::format!("{size:011o} ").as_bytes());
        header[136..148].copy_from_slice(b"00000000012 ");
        header[156] = kind;
        header[257..263].copy_from_slice(b"ustar\0");
        let sum = checksum(&header);
        header[148..156].copy_from_slice(std::format!("{sum:06o}\0 ").as_bytes());
        header
    }

    fn file(name: &str, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut file = header(name, kind, body.len());
        file.extend(body);
        file.resize(file.len().next_multiple_of(BLOCK), 0);
        file
    }

    fn names(bytes: &[u8]) -> Result<Vec<(String, &[u8])>, ArchiveError> {
        Archive::new(bytes)
            .map(|entry| entry.map(|e| (e.name, e.body)))
            .collect()
    }

    #[test]
    fn files_are_slices_of_the_archive() {
        let mut tar = file("./a.txt", b'0', b"one");
        tar.extend(file("dir/", b'5', b""));
        tar.extend(file("././@LongLink", b'L', b"dir/long\0"));
        tar.extend(file("short", b'0', &[7; 513]));
        tar.extend(file(
            "PaxHeaders/x",
            b'x',
            b"11 mtime=1\n19 path=dir/\xc3\xa4.txt\n",
        ));
        tar.extend(file("y", b'0', b""));
        tar.extend([0; 2 * BLOCK]);
        tar.extend(b"behind the end");
        let found = names(&tar).unwrap();
        let expected: [(&str, &[u8]); 3] = [
            ("a.txt", b"one"),
            ("dir/long", &[7; 513]),
            ("dir/ä.txt", b""),
        ];
        assert_eq!(found.len(), 3);
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!((found.0.as_str(), found.1), expected);
            assert!(tar.as_ptr_range().contains(&found.1.as_ptr()));
        }
    }

    #[test]
    fn what_is_broken_is_refused() {
        let whole = file("a", b'0', b"text");
        let mut wrong = whole.clone();
        wrong[0] = b'b';
        assert_eq!(names(&wrong), Err(ArchiveError::Checksum(0)));
        assert_eq!(names(&whole[..515]), Err(ArchiveError::Truncated(0)));
        let mut two = whole.clone();
        two.extend(&whole[..100]);
        assert_eq!(names(&two), Err(ArchiveError::Truncated(1024)));
        assert_eq!(names(&whole[..516]).unwrap().len(), 1);
        assert_eq!(names(&[]).unwrap().len(), 0);
        let huge = header("a", b'0', 0o77777777777);
        assert_eq!(names(&huge), Err(ArchiveError::Truncated(0)));
    }
}
