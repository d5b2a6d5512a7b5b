//! What all connections share: the site, pages made on demand, limits, counts, the date.

use crate::archive::ArchiveError;
use crate::conn::Conn;
use crate::date::{self, Date};
use crate::site::{Place, Site};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

/// How much a client may ask of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time; more are refused with 503.
    pub connections_max: usize,
    /// Of a request's head; 431 (414 if its first line alone is longer).
    pub head_bytes_max: usize,
    /// Of replies' heads and pages that wait to be taken, before requests have to wait; one reply
    /// may exceed it.
    pub queued_bytes_max: usize,
    /// Of a body that nobody wants, to keep the connection; with a longer one it is closed.
    pub body_bytes_max: usize,
    /// From a request's first byte to its last; 408.
    pub request_us_max: u64,
    /// Between requests; the connection is closed.
    pub idle_us_max: u64,
    /// In which a client takes some of what is sent to it; the connection is closed.
    pub send_us_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 1024,
            head_bytes_max: 8192,
            queued_bytes_max: 65_536,
            body_bytes_max: 65_536,
            request_us_max: 10_000_000,
            idle_us_max: 60_000_000,
            send_us_max: 30_000_000,
        }
    }
}

/// A page made on demand.
#[derive(Clone, Debug)]
pub struct Page {
    /// As in Content-Type.
    pub content_type: &'static str,
    /// All of it.
    pub body: Vec<u8>,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused, because there were too many.
    pub refused: u64,
    /// Requests answered.
    pub requests: u64,
    /// Those of them answered with an error (400 and above).
    pub errors: u64,
    /// Connections ended because their client was slow or silent.
    pub expired: u64,
}

/// No room for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl Refused {
    /// What to tell the client before closing.
    pub const REPLY: &'static [u8] = b"HTTP/1.1 503 Service Unavailable\r\nServer: Fordway\r\n\
        Retry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
}

type MakePage<'a> = Box<dyn FnMut(&str) -> Page + 'a>;
type IsOwnName<'a> = Box<dyn Fn(&[u8]) -> bool + 'a>;

/// See the crate's description.
pub struct Server<'a> {
    pub(crate) site: Site<'a>,
    pages: Vec<(String, MakePage<'a>)>,
    /// `None`: whatever name leads here is the server's.
    is_own_name: Option<IsOwnName<'a>>,
    pub(crate) limits: Limits,
    pub(crate) date: Option<Date>,
    date_s: u64,
    pub(crate) stats: Stats,
    open: usize,
    /// Connections that ended, whose buffers the next ones use.
    spare: Vec<Conn<'a>>,
    /// For paths that are not as the client wrote them.
    decoded: Vec<u8>,
}

/// Ended connections that are kept for their buffers.
const SPARE_MAX: usize = 64;

pub(crate) enum Found {
    File(usize),
    Directory,
    Page(Page),
    Nothing,
    /// A path that is none.
    Bad,
}

impl<'a> Server<'a> {
    /// Serves the files of a ustar archive, where they lie.
    pub fn new(archive: &'a [u8], limits: Limits) -> Result<Server<'a>, ArchiveError> {
        Ok(Server {
            site: Site::new(archive)?,
            pages: Vec::new(),
            is_own_name: None,
            limits,
            date: None,
            date_s: 0,
            stats: Stats::default(),
            open: 0,
            spare: Vec::new(),
            decoded: Vec::new(),
        })
    }

    /// Adds a page made at each request; `make` is given the query (without `?`). A file of the
    /// same path goes first.
    pub fn add_page(&mut self, path: &str, make: impl FnMut(&str) -> Page + 'a) {
        self.pages.push((path.into(), Box::new(make)));
    }

    /// Answers only requests to such hosts (as in the Host line, with a port perhaps): of another name's owner, who has
    /// it lead here, the pages are none of the business (RFC 9110, 15.5.20).
    pub fn answer_only(&mut self, is_own_name: impl Fn(&[u8]) -> bool + 'a) {
        self.is_own_name = Some(Box::new(is_own_name));
    }

    pub(crate) fn is_meant(&self, host: Option<&[u8]>) -> bool {
        let is_own = self.is_own_name.as_ref();
        is_own.is_none_or(|is_own| host.is_none_or(is_own))
    }

    /// The time of day for the Date line, seconds since 1970; cheap to call often. Without it
    /// replies carry none, as RFC 9110 section 6.6.1 asks of servers without a clock.
    pub fn set_wall_time(&mut self, seconds: u64) {
        if self.date.is_none() || self.date_s != seconds {
            self.date = Some(date::write(seconds));
            self.date_s = seconds;
        }
    }

    /// A new connection, unless there are too many: then send [`Refused::REPLY`] and close.
    pub fn accept(&mut self, now_us: u64) -> Result<Conn<'a>, Refused> {
        if self.open >= self.limits.connections_max {
            self.stats.refused += 1;
            return Err(Refused);
        }
        self.open += 1;
        self.stats.accepted += 1;
        Ok(match self.spare.pop() {
            Some(spare) => spare.renew(now_us),
            None => Conn::new(self.limits, now_us),
        })
    }

    /// Takes a connection back, however it ended.
    pub fn closed(&mut self, conn: Conn<'a>) {
        self.open -= 1;
        if self.spare.len() < SPARE_MAX {
            self.spare.push(conn);
        }
    }

    /// Connections open now.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Number of files served.
    pub fn files(&self) -> usize {
        self.site.files.len()
    }

    /// What has happened so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// What lies at a target as the client wrote it.
    pub(crate) fn find(&mut self, target: &[u8]) -> Found {
        match self.site.find(target) {
            Some(Place::File(at)) => Found::File(*at),
            Some(Place::Directory) => Found::Directory,
            None => self.find_written(target),
        }
    }

    /// The same for a target with a query, a fragment or escapes, or of a page.
    fn find_written(&mut self, target: &[u8]) -> Found {
        let mark = target.iter().position(|byte| matches!(byte, b'?' | b'#'));
        let (mut path, rest) = target.split_at(mark.unwrap_or(target.len()));
        let query = match rest {
            [b'?', query @ ..] => query,
            _ => &[],
        };
        if path.contains(&b'%') {
            self.decoded.clear();
            if !decode(path, &mut self.decoded) {
                return Found::Bad;
            }
            path = &self.decoded;
        }
        match self.site.find_decoded(path) {
            Some(Place::File(at)) => return Found::File(*at),
            Some(Place::Directory) => return Found::Directory,
            None => {}
        }
        let mut pages = self.pages.iter_mut();
        match pages.find(|(page, _)| page.as_bytes() == path) {
            Some((_, make)) => Found::Page(make(core::str::from_utf8(query).unwrap_or(""))),
            None => Found::Nothing,
        }
    }
}

/// Puts bytes in the place of `%XX`; false if one is no such thing, or is the zero byte.
fn decode(path: &[u8], into: &mut Vec<u8>) -> bool {
    let mut rest = path.iter();
    while let Some(&byte) = rest.next() {
        if byte != b'%' {
            into.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|d| char::from(*d).to_digit(16));
        match (digit(), digit()) {
            (Some(0), Some(0)) | (None, _) | (_, None) => return false,
            (Some(high), Some(low)) => into.push((high * 16 + low) as u8),
        }
    }
    true
}
