//! What is served: each file of the archive with a head made ready, found by its path.
//!
//! A ready head is the whole 200 reply of a GET that keeps its connection: status line, a line
//! for the date (at a fixed place, written over in the copy), the lines about the file, an empty
//! line and, for a small file, the body behind it. Other replies take parts of it.

use crate::archive::{Archive, ArchiveError};
use crate::date::{self, DATE_BYTES};
use crate::status::Status;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::ops::Range;
use hashbrown::HashMap;

/// Bodies up to this size stand behind their head too: one more copy of so few bytes costs less
/// than a second slice.
const SMALL_BYTES_MAX: usize = 1024;

pub(crate) const DATE_AT: usize = Status::Ok.line().len() + "Date: ".len();
const DATE_LINE: Range<usize> = Status::Ok.line().len()..DATE_AT + DATE_BYTES + 2;
const INDEX: &str = "index.html";
pub(crate) const SERVER_LINE: &str = "Server: Fordway\r\n";

pub(crate) struct File<'a> {
    pub body: &'a [u8],
    pub modified_s: u64,
    ready: Vec<u8>,
    /// In `ready`: what every reply about the file says.
    common: Range<usize>,
    /// In `ready`: the entity tag, with its quotes, in the common lines.
    tag: Range<usize>,
    /// In `ready`: the line of the type, without the end of line.
    kind: Range<usize>,
    /// In `ready`: the end of the lines, before the empty one.
    lines_end: usize,
}

impl<'a> File<'a> {
    fn new(name: &str, modified_s: u64, body: &'a [u8]) -> File<'a> {
        let mut ready = Vec::new();
        let mut push = |texts: &[&[u8]]| {
            let start = ready.len();
            texts.iter().for_each(|text| ready.extend_from_slice(text));
            start..ready.len()
        };
        push(&[
            Status::Ok.line().as_bytes(),
            b"Date: ",
            &[b' '; DATE_BYTES],
            b"\r\n",
        ]);
        let modified = date::write(modified_s);
        let common = push(&[
            SERVER_LINE.as_bytes(),
            b"Accept-Ranges: bytes\r\nLast-Modified: ",
            &modified,
            b"\r\nETag: ",
        ]);
        let tag = alloc::format!("\"{modified_s:x}-{:x}\"", body.len());
        let tag = push(&[tag.as_bytes()]);
        let common = common.start..push(&[b"\r\n"]).end;
        let kind = push(&[b"Content-Type: ", content_type(name).as_bytes()]);
        let length = body.len().to_string();
        let lines = push(&[b"\r\nContent-Length: ", length.as_bytes(), b"\r\n"]);
        let lines_end = lines.end;
        push(&[b"\r\n"]);
        if body.len() <= SMALL_BYTES_MAX {
            push(&[body]);
        }
        ready.shrink_to_fit();
        File {
            body,
            modified_s,
            ready,
            common,
            tag,
            kind,
            lines_end,
        }
    }

    /// The ready reply with its date line, or its two parts without it.
    pub fn ready(&self) -> &[u8] {
        &self.ready
    }

    /// The end of the head in [`File::ready`].
    pub fn head_end(&self) -> usize {
        self.lines_end + 2
    }

    /// The lines of the ready head behind the date, without the empty one.
    pub fn lines(&self) -> &[u8] {
        &self.ready[DATE_LINE.end..self.lines_end]
    }

    /// Whether the body stands behind the head.
    pub fn is_small(&self) -> bool {
        self.ready.len() - self.head_end() == self.body.len()
    }

    pub fn tag(&self) -> &[u8] {
        &self.ready[self.tag.clone()]
    }

    /// What every reply about the file says.
    pub fn common_lines(&self) -> &[u8] {
        &self.ready[self.common.clone()]
    }

    /// The line of the type, without the end of line.
    pub fn type_line(&self) -> &[u8] {
        &self.ready[self.kind.clone()]
    }
}

pub(crate) enum Place {
    File(usize),
    /// A directory without its slash: go where the slash is.
    Directory,
}

pub(crate) struct Site<'a> {
    pub files: Vec<File<'a>>,
    /// By path, beginning with a slash.
    places: Places,
    /// The same for paths that a client has to write otherwise, because they have signs with a
    /// meaning of their own in a target.
    odd_places: Places,
}

/// No client adds to it, so its hashes need no secret.
type Places = HashMap<Vec<u8>, Place, foldhash::fast::FixedState>;

/// Whether a byte means something in a target.
pub(crate) fn is_sign(byte: &u8) -> bool {
    matches!(byte, b'?' | b'#' | b'%')
}

impl<'a> Site<'a> {
    pub fn new(archive: &'a [u8]) -> Result<Site<'a>, ArchiveError> {
        let mut site = Site {
            files: Vec::new(),
            places: HashMap::default(),
            odd_places: HashMap::default(),
        };
        for entry in Archive::new(archive) {
            let entry = entry?;
            let at = site.files.len();
            site.files
                .push(File::new(&entry.name, entry.modified_s, entry.body));
            let path = alloc::format!("/{}", entry.name);
            if let Some(directory) = path.strip_suffix(INDEX).filter(|d| d.ends_with('/')) {
                site.put(directory, Place::File(at));
                let without_slash = &directory[..directory.len() - 1];
                // A file of the same name goes first; the root has a slash always.
                if !without_slash.is_empty()
                    && site.find_decoded(without_slash.as_bytes()).is_none()
                {
                    site.put(without_slash, Place::Directory);
                }
            }
            site.put(&path, Place::File(at));
        }
        Ok(site)
    }

    fn put(&mut self, path: &str, place: Place) {
        let places = match path.as_bytes().iter().any(is_sign) {
            true => &mut self.odd_places,
            false => &mut self.places,
        };
        places.insert(path.into(), place);
    }

    /// What lies at a target that may have signs in it: nothing then.
    pub fn find(&self, target: &[u8]) -> Option<&Place> {
        self.places.get(target)
    }

    /// What lies at a path in which no sign has a meaning any more.
    pub fn find_decoded(&self, path: &[u8]) -> Option<&Place> {
        self.places.get(path).or_else(|| self.odd_places.get(path))
    }
}

/// By the last part of the name.
fn content_type(name: &str) -> &'static str {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension {
        "html" | "htm" => "text/html; charset=utf-8",
        "txt" | "md" | "log" => "text/plain; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "json" => "application/json",
        "xml" => "application/xml",
        "pdf" => "application/pdf",
        "wasm" => "application/wasm",
        "gz" | "tgz" => "application/gzip",
        "tar" => "application/x-tar",
        "zip" => "application/zip",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "mp4" => "video/mp4",
        _ => "application/octet-stream",
    }
}
