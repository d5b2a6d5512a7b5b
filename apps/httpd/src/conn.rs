//! One connection: requests out of its bytes, replies as pieces. States: see the crate.

use crate::date::{self, DATE_BYTES, Date};
use crate::range::{self, Ranges};
use crate::request::{self, Method, Parsed, Request};
use crate::server::{Found, Limits, Page, Server};
use crate::site::{DATE_AT, File, SERVER_LINE};
use crate::status::Status;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

/// Pieces that may be queued before requests have to wait.
const PIECES_MAX: usize = 64;
/// What a client has to take within `send_us_max`.
const PROGRESS_BYTES: usize = 4096;
/// Between the parts of a reply of several ranges: in no text, and in no image by much bad luck.
const BOUNDARY: &str = "fordway-6d0c47c2a1f0e7b3";

/// A client's connection. The caller moves the bytes:
///
/// 1. what arrives to [`Conn::receive`]; what it does not take stays with the caller, and is
///    given again after [`Conn::advance`];
/// 2. [`Conn::output`] to the socket, and what the socket took to [`Conn::advance`], until the
///    output is empty or the socket full;
/// 3. when [`Conn::is_over`]: an end of its own (shutdown), then drop what arrives until the
///    client's end or a short time, then [`Server::closed`];
/// 4. when [`Conn::deadline`] has come: [`Conn::expire`], then as after 1.
pub struct Conn<'a> {
    limits: Limits,
    reading: Reading,
    /// A head that is not whole.
    partial: Vec<u8>,
    /// Bytes of heads and pages, taken by `Piece::Own` from `own_taken` on.
    own: Vec<u8>,
    own_taken: usize,
    pieces: VecDeque<Piece<'a>>,
    /// When the state began that a deadline counts from.
    since_us: u64,
    /// Taken by the client since then.
    progress: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// The next byte belongs to a head.
    Head,
    /// So many bytes of a body are still to be dropped.
    Body(usize),
    /// No request is read any more.
    Over,
}

enum Piece<'a> {
    /// Up to this place in `own`.
    Own(usize),
    File(&'a [u8]),
}

impl<'a> Conn<'a> {
    pub(crate) fn new(limits: Limits, now_us: u64) -> Conn<'a> {
        Conn {
            limits,
            reading: Reading::Head,
            partial: Vec::new(),
            own: Vec::new(),
            own_taken: 0,
            pieces: VecDeque::new(),
            since_us: now_us,
            progress: 0,
        }
    }

    /// A new connection in the buffers of an old one.
    pub(crate) fn renew(mut self, now_us: u64) -> Conn<'a> {
        self.abandon();
        self.reading = Reading::Head;
        self.since_us = now_us;
        self
    }

    /// Drops all that is queued; no request is read any more.
    fn abandon(&mut self) {
        self.reading = Reading::Over;
        self.partial.clear();
        self.own.clear();
        self.own_taken = 0;
        self.pieces.clear();
        self.progress = 0;
    }

    /// Takes bytes of the client; says how many. The rest is to be given again after
    /// [`Conn::advance`].
    pub fn receive(&mut self, server: &mut Server<'a>, now_us: u64, bytes: &[u8]) -> usize {
        let was_idle = self.pieces.is_empty();
        let mut taken = 0;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            match self.reading {
                Reading::Over => return bytes.len(),
                Reading::Body(left) => {
                    let dropped = left.min(rest.len());
                    taken += dropped;
                    self.reading = match left - dropped {
                        0 => Reading::Head,
                        left => Reading::Body(left),
                    };
                }
                Reading::Head if self.is_full() => break,
                Reading::Head => taken += self.read_head(server, now_us, rest),
            }
        }
        if was_idle && !self.pieces.is_empty() {
            (self.since_us, self.progress) = (now_us, 0);
        }
        taken
    }

    fn is_full(&self) -> bool {
        self.pieces.len() >= PIECES_MAX || self.own.len() >= self.limits.queued_bytes_max
    }

    /// Reads on in a head; gives the number of bytes of it in `rest`.
    fn read_head(&mut self, server: &mut Server<'a>, now_us: u64, rest: &[u8]) -> usize {
        if !self.partial.is_empty() {
            return self.read_on(server, rest);
        }
        // Empty lines before a request are none of it (RFC 9112 section 2.2).
        let is_end_of_line = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let skipped = rest.iter().take_while(|byte| is_end_of_line(byte)).count();
        let rest = &rest[skipped..];
        if rest.is_empty() {
            return skipped;
        }
        let within = rest.len().min(self.limits.head_bytes_max);
        skipped
            + match request::parse(&rest[..within]) {
                Parsed::Whole(request, head_bytes) => {
                    self.answer(server, &request);
                    head_bytes
                }
                Parsed::Refused(status) => {
                    self.refuse(server, status);
                    rest.len()
                }
                Parsed::Partial if within < rest.len() || within == self.limits.head_bytes_max => {
                    self.refuse(server, too_large(&rest[..within]));
                    rest.len()
                }
                Parsed::Partial => {
                    self.partial.extend_from_slice(rest);
                    self.since_us = now_us;
                    rest.len()
                }
            }
    }

    /// Reads on in a head whose beginning is in `partial`.
    fn read_on(&mut self, server: &mut Server<'a>, rest: &[u8]) -> usize {
        let mut head = core::mem::take(&mut self.partial);
        let before = head.len();
        let room = self.limits.head_bytes_max.saturating_sub(before);
        let added = &rest[..rest.len().min(room)];
        head.extend_from_slice(added);
        // Without an end of line there is no end of the head: a byte at a time costs no parse.
        let parsed = match added.contains(&b'\n') {
            true => request::parse(&head),
            false => Parsed::Partial,
        };
        let taken = match parsed {
            Parsed::Whole(request, head_bytes) => {
                self.answer(server, &request);
                head_bytes - before
            }
            Parsed::Refused(status) => {
                self.refuse(server, status);
                rest.len()
            }
            Parsed::Partial if added.len() == room => {
                self.refuse(server, too_large(&head));
                rest.len()
            }
            Parsed::Partial => {
                self.partial = head;
                return rest.len();
            }
        };
        head.clear();
        self.partial = head;
        taken
    }

    /// The client sends no more.
    pub fn end(&mut self) {
        self.reading = Reading::Over;
        self.partial.clear();
    }

    /// What is to be sent next; empty if there is nothing.
    pub fn output(&self) -> &[u8] {
        match self.pieces.front() {
            None => &[],
            Some(Piece::Own(end)) => &self.own[self.own_taken..*end],
            Some(Piece::File(slice)) => slice,
        }
    }

    /// All that is to be sent, slice by slice, for those who can send several at once.
    pub fn outputs(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = self.own_taken;
        self.pieces.iter().map(move |piece| match piece {
            Piece::Own(end) => &self.own[core::mem::replace(&mut start, *end)..*end],
            Piece::File(slice) => *slice,
        })
    }

    /// `bytes` of the output were taken.
    pub fn advance(&mut self, now_us: u64, bytes: usize) {
        let mut left = bytes;
        while let Some(piece) = self.pieces.front_mut() {
            let piece_bytes = match piece {
                Piece::Own(end) => *end - self.own_taken,
                Piece::File(slice) => slice.len(),
            };
            let taken = left.min(piece_bytes);
            match piece {
                Piece::Own(_) => self.own_taken += taken,
                Piece::File(slice) => *slice = &slice[taken..],
            }
            if taken < piece_bytes {
                break;
            }
            left -= taken;
            self.pieces.pop_front();
        }
        self.progress += bytes;
        if self.pieces.is_empty() {
            self.own.clear();
            self.own_taken = 0;
        }
        if self.pieces.is_empty() || self.progress >= PROGRESS_BYTES {
            (self.since_us, self.progress) = (now_us, 0);
        }
    }

    /// Whether all is sent and the connection is to be closed.
    pub fn is_over(&self) -> bool {
        self.reading == Reading::Over && self.pieces.is_empty()
    }

    /// When the client's patience with us, or ours with it, ends.
    pub fn deadline(&self) -> u64 {
        let limits = &self.limits;
        let patience_us = match self.reading {
            _ if !self.pieces.is_empty() => limits.send_us_max,
            Reading::Head if self.partial.is_empty() => limits.idle_us_max,
            Reading::Head | Reading::Body(_) => limits.request_us_max,
            Reading::Over => return u64::MAX,
        };
        self.since_us.saturating_add(patience_us)
    }

    /// Does what the deadline asks for, if it has come. The connection is over then, perhaps
    /// after a last reply.
    pub fn expire(&mut self, server: &mut Server<'a>, now_us: u64) {
        if now_us < self.deadline() {
            return;
        }
        server.stats.expired += 1;
        let in_request = !self.partial.is_empty() || matches!(self.reading, Reading::Body(_));
        if self.pieces.is_empty() && in_request {
            self.refuse(server, Status::RequestTimeout);
            self.since_us = now_us;
            return;
        }
        self.abandon();
    }

    /// An error after which nothing more is read.
    fn refuse(&mut self, server: &mut Server<'a>, status: Status) {
        server.stats.requests += 1;
        server.stats.errors += 1;
        self.end();
        let reply = Reply {
            date: server.date.as_ref(),
            is_head: false,
            connection: b"Connection: close\r\n",
        };
        reply.error(self, status, &[]);
    }

    fn answer(&mut self, server: &mut Server<'a>, request: &Request<'_>) {
        server.stats.requests += 1;
        let mut keep_alive = request.keep_alive;
        if request.has_coding || request.body_bytes > self.limits.body_bytes_max {
            keep_alive = false;
        }
        self.reading = match request.body_bytes {
            _ if !keep_alive => Reading::Over,
            0 => Reading::Head,
            left => Reading::Body(left),
        };
        let found = match request.method {
            Method::Get | Method::Head if request.has_coding => Err(Status::NotImplemented),
            Method::Get | Method::Head if !server.is_meant(request.host) => {
                Err(Status::MisdirectedRequest)
            }
            Method::Get | Method::Head => match server.find(request.target) {
                Found::Bad => Err(Status::BadRequest),
                Found::Nothing => Err(Status::NotFound),
                found => Ok(found),
            },
            Method::Known => Err(Status::MethodNotAllowed),
            Method::Unknown => Err(Status::NotImplemented),
        };
        let reply = Reply {
            date: server.date.as_ref(),
            is_head: request.method == Method::Head,
            connection: match (keep_alive, request.is_http_1_0) {
                (true, false) => b"",
                (true, true) => b"Connection: keep-alive\r\n",
                (false, _) => b"Connection: close\r\n",
            },
        };
        let result = match found {
            Ok(Found::File(at)) => reply.file(self, &server.site.files[at], request),
            Ok(Found::Directory) => {
                let path = request.target.split(|b| matches!(b, b'?' | b'#')).next();
                let location = [b"Location: ", path.unwrap_or(&[]), b"/\r\n"];
                reply.error(self, Status::MovedPermanently, &location);
                Ok(())
            }
            Ok(Found::Page(page)) => {
                reply.page(self, &page);
                Ok(())
            }
            Ok(Found::Bad | Found::Nothing) => Err(Status::NotFound),
            Err(status) => Err(status),
        };
        if let Err(status) = result {
            server.stats.errors += 1;
            let allow: &[&[u8]] = match status {
                Status::MethodNotAllowed => &[b"Allow: GET, HEAD\r\n"],
                _ => &[],
            };
            reply.error(self, status, allow);
        }
    }

    fn push(&mut self, texts: &[&[u8]]) {
        texts
            .iter()
            .for_each(|text| self.own.extend_from_slice(text));
        match self.pieces.back_mut() {
            Some(Piece::Own(end)) => *end = self.own.len(),
            _ => self.pieces.push_back(Piece::Own(self.own.len())),
        }
    }

    fn push_file(&mut self, slice: &'a [u8]) {
        if !slice.is_empty() {
            self.pieces.push_back(Piece::File(slice));
        }
    }
}

fn too_large(head: &[u8]) -> Status {
    match head.contains(&b'\n') {
        true => Status::HeaderFieldsTooLarge,
        false => Status::UriTooLong,
    }
}

/// How a request is to be answered, whatever the answer.
struct Reply<'s> {
    date: Option<&'s Date>,
    is_head: bool,
    connection: &'static [u8],
}

impl Reply<'_> {
    fn file<'a>(
        &self,
        conn: &mut Conn<'a>,
        file: &File<'a>,
        request: &Request<'_>,
    ) -> Result<(), Status> {
        match condition(file, request) {
            Condition::None => {}
            Condition::Failed => return Err(Status::PreconditionFailed),
            Condition::NotModified => {
                self.begin(conn, Status::NotModified);
                conn.push(&[file.common_lines(), self.connection, b"\r\n"]);
                return Ok(());
            }
        }
        let range = request
            .range
            .filter(|_| !self.is_head && is_in_range(file, request));
        match range.map_or(Ranges::Whole, |text| range::read(text, file.body.len())) {
            Ranges::Whole => self.whole(conn, file),
            Ranges::One(range) => self.part(conn, file, range),
            Ranges::Many(ranges) => self.parts(conn, file, &ranges),
            Ranges::Unsatisfiable => {
                let length = Decimal::new(file.body.len());
                let lines = [b"Content-Range: bytes */", length.text(), b"\r\n"];
                self.error(conn, Status::RangeNotSatisfiable, &lines);
            }
        }
        Ok(())
    }

    fn whole<'a>(&self, conn: &mut Conn<'a>, file: &File<'a>) {
        let ready = match self.is_head {
            true => &file.ready()[..file.head_end()],
            false => file.ready(),
        };
        match (self.date, self.connection) {
            (Some(date), b"") => {
                let at = conn.own.len() + DATE_AT;
                conn.push(&[ready]);
                conn.own[at..at + DATE_BYTES].copy_from_slice(date);
            }
            _ => {
                self.begin(conn, Status::Ok);
                let behind = &ready[file.head_end() - 2..];
                conn.push(&[file.lines(), self.connection, behind]);
            }
        }
        if !self.is_head && !file.is_small() {
            conn.push_file(file.body);
        }
    }

    fn part<'a>(&self, conn: &mut Conn<'a>, file: &File<'a>, range: Range<usize>) {
        self.begin(conn, Status::PartialContent);
        let length = Decimal::new(range.len());
        conn.push(&[file.common_lines(), file.type_line()]);
        content_range(conn, file, &range);
        conn.push(&[b"\r\nContent-Length: ", length.text(), b"\r\n"]);
        conn.push(&[self.connection, b"\r\n"]);
        conn.push_file(&file.body[range]);
    }

    /// Several ranges as one body of several parts (RFC 9110 section 14.6).
    fn parts<'a>(&self, conn: &mut Conn<'a>, file: &File<'a>, ranges: &[Range<usize>]) {
        // The heads of the parts are written first, to know their length, and moved behind.
        let mut heads = Conn::new(conn.limits, 0);
        let mut ends = Vec::with_capacity(ranges.len());
        let mut body_bytes = 0;
        for range in ranges {
            heads.push(&[b"\r\n--", BOUNDARY.as_bytes(), b"\r\n", file.type_line()]);
            content_range(&mut heads, file, range);
            heads.push(&[b"\r\n\r\n"]);
            ends.push(heads.own.len());
            body_bytes += range.len();
        }
        let last: [&[u8]; 3] = [b"\r\n--", BOUNDARY.as_bytes(), b"--\r\n"];
        body_bytes += heads.own.len() + last.iter().map(|text| text.len()).sum::<usize>();

        self.begin(conn, Status::PartialContent);
        let length = Decimal::new(body_bytes);
        conn.push(&[
            file.common_lines(),
            b"Content-Type: multipart/byteranges; boundary=",
            BOUNDARY.as_bytes(),
            b"\r\nContent-Length: ",
            length.text(),
            b"\r\n",
            self.connection,
            b"\r\n",
        ]);
        let mut start = 0;
        for (range, end) in ranges.iter().zip(ends) {
            conn.push(&[&heads.own[start..end]]);
            conn.push_file(&file.body[range.clone()]);
            start = end;
        }
        conn.push(&last);
    }

    fn page(&self, conn: &mut Conn<'_>, page: &Page) {
        self.begin(conn, Status::Ok);
        let length = Decimal::new(page.body.len());
        conn.push(&[
            SERVER_LINE.as_bytes(),
            b"Cache-Control: no-store\r\nContent-Type: ",
            page.content_type.as_bytes(),
            b"\r\nContent-Length: ",
            length.text(),
            b"\r\n",
            self.connection,
            b"\r\n",
            if self.is_head { &[] } else { &page.body },
        ]);
    }

    /// A status with lines of its own and a word for people.
    fn error(&self, conn: &mut Conn<'_>, status: Status, lines: &[&[u8]]) {
        self.begin(conn, status);
        conn.push(&[SERVER_LINE.as_bytes()]);
        conn.push(lines);
        let text = status.text();
        let length = Decimal::new(text.len() + 1);
        conn.push(&[
            b"Content-Type: text/plain\r\nContent-Length: ",
            length.text(),
            b"\r\n",
            self.connection,
            b"\r\n",
        ]);
        if !self.is_head {
            conn.push(&[text.as_bytes(), b"\n"]);
        }
    }

    /// Status line and date.
    fn begin(&self, conn: &mut Conn<'_>, status: Status) {
        conn.push(&[status.line().as_bytes()]);
        if let Some(date) = self.date {
            conn.push(&[b"Date: ", date, b"\r\n"]);
        }
    }
}

/// `Content-Range: bytes FIRST-LAST/LENGTH` behind a line without its end.
fn content_range(conn: &mut Conn<'_>, file: &File<'_>, range: &Range<usize>) {
    let (first, last) = (Decimal::new(range.start), Decimal::new(range.end - 1));
    let length = Decimal::new(file.body.len());
    conn.push(&[
        b"\r\nContent-Range: bytes ",
        first.text(),
        b"-",
        last.text(),
        b"/",
        length.text(),
    ]);
}

enum Condition {
    None,
    NotModified,
    Failed,
}

/// In the order of RFC 9110 section 13.2.2.
fn condition(file: &File<'_>, request: &Request<'_>) -> Condition {
    if let Some(tags) = request.if_match {
        if !names_tag(tags, file.tag()) {
            return Condition::Failed;
        }
    } else if let Some(text) = request.if_unmodified_since
        && date::read(text).is_some_and(|seconds| file.modified_s > seconds)
    {
        return Condition::Failed;
    }
    if let Some(tags) = request.if_none_match {
        if names_tag(tags, file.tag()) {
            return Condition::NotModified;
        }
    } else if let Some(text) = request.if_modified_since
        && date::read(text).is_some_and(|seconds| file.modified_s <= seconds)
    {
        return Condition::NotModified;
    }
    Condition::None
}

/// Whether a list of entity tags, or `*`, names this one. Weak ones name it too: the tags here
/// come from time and length, and are compared for caches only.
fn names_tag(list: &[u8], tag: &[u8]) -> bool {
    list.split(|byte| *byte == b',').any(|one| {
        let one = one.trim_ascii();
        one == b"*" || one.strip_prefix(b"W/").unwrap_or(one) == tag
    })
}

/// Whether If-Range lets the range stand: the client's part is of this very file.
fn is_in_range(file: &File<'_>, request: &Request<'_>) -> bool {
    match request.if_range {
        None => true,
        Some(tag) if tag.starts_with(b"\"") => tag == file.tag(),
        Some(text) => date::read(text) == Some(file.modified_s),
    }
}

/// A number as text, without allocation.
struct Decimal {
    digits: [u8; 20],
    start: usize,
}

impl Decimal {
    fn new(value: usize) -> Decimal {
        let mut decimal = Decimal {
            digits: [0; 20],
            start: 20,
        };
        let mut left = value;
        loop {
            decimal.start -= 1;
            decimal.digits[decimal.start] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                return decimal;
            }
        }
    }

    fn text(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}
