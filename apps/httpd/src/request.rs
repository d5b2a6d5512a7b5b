//! A request's head, read where it lies: what the server needs of it, as slices.
//!
//! `httparse` knows the grammar (no folded lines, no space before a colon); here are the rules
//! about what the lines mean together (RFC 9112 sections 3 and 6): one Host, one length, no
//! coding. What two servers might read differently is refused, never guessed.

use crate::Status;
use crate::range::number;
use httparse::{Error, Header};

/// Lines in a head.
const HEADERS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    /// Known, and not for files.
    Known,
    Unknown,
}

#[derive(Debug)]
pub(crate) struct Request<'r> {
    pub method: Method,
    /// Path and query.
    pub target: &'r [u8],
    /// Whom the client means, with a port perhaps.
    pub host: Option<&'r [u8]>,
    pub is_http_1_0: bool,
    pub keep_alive: bool,
    /// Of the body that follows; nobody wants it.
    pub body_bytes: usize,
    /// Whether the body's end can be told only by decoding it.
    pub has_coding: bool,
    pub range: Option<&'r [u8]>,
    pub if_range: Option<&'r [u8]>,
    pub if_match: Option<&'r [u8]>,
    pub if_none_match: Option<&'r [u8]>,
    pub if_modified_since: Option<&'r [u8]>,
    pub if_unmodified_since: Option<&'r [u8]>,
}

pub(crate) enum Parsed<'r> {
    /// The head is not whole.
    Partial,
    Refused(Status),
    /// The request, and the length of its head.
    Whole(Request<'r>, usize),
}

pub(crate) fn parse(bytes: &[u8]) -> Parsed<'_> {
    let mut lines = [const { core::mem::MaybeUninit::uninit() }; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut []);
    let length = match head.parse_with_uninit_headers(bytes, &mut lines) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Parsed::Partial,
        Err(Error::TooManyHeaders) => return Parsed::Refused(Status::HeaderFieldsTooLarge),
        Err(Error::Version) if names_a_version(bytes) => {
            return Parsed::Refused(Status::VersionNotSupported);
        }
        Err(_) => return Parsed::Refused(Status::BadRequest),
    };
    let (Some(method), Some(path), Some(minor)) = (head.method, head.path, head.version) else {
        return Parsed::Refused(Status::BadRequest);
    };
    match meaning(method, path, minor, head.headers) {
        Ok(request) => Parsed::Whole(request, length),
        Err(status) => Parsed::Refused(status),
    }
}

fn meaning<'r>(
    method: &str,
    path: &'r str,
    minor: u8,
    lines: &[Header<'r>],
) -> Result<Request<'r>, Status> {
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS" | "TRACE" | "CONNECT" => Method::Known,
        _ => Method::Unknown,
    };
    let mut request = Request {
        method,
        target: target(path, method)?,
        host: None,
        is_http_1_0: minor == 0,
        keep_alive: minor == 1,
        body_bytes: 0,
        has_coding: false,
        range: None,
        if_range: None,
        if_match: None,
        if_none_match: None,
        if_modified_since: None,
        if_unmodified_since: None,
    };
    let (mut hosts, mut length) = (0, None);
    for line in lines {
        let (name, value) = (line.name.as_bytes(), line.value);
        // The length of a name tells most of them apart.
        match name.len() {
            4 if is_word(name, b"host") => {
                request.host = Some(value);
                hosts += 1;
            }
            5 if is_word(name, b"range") => request.range = Some(value),
            8 if is_word(name, b"if-range") => request.if_range = Some(value),
            8 if is_word(name, b"if-match") => request.if_match = Some(value),
            10 if is_word(name, b"connection") => {
                for word in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    if is_word(word, b"close") {
                        request.keep_alive = false;
                        break;
                    }
                    request.keep_alive |= is_word(word, b"keep-alive");
                }
            }
            13 if is_word(name, b"if-none-match") => request.if_none_match = Some(value),
            14 if is_word(name, b"content-length") => {
                let bytes = number(value).ok_or(Status::BadRequest)?;
                if length.replace(bytes).is_some_and(|before| before != bytes) {
                    return Err(Status::BadRequest);
                }
            }
            17 if is_word(name, b"if-modified-since") => request.if_modified_since = Some(value),
            17 if is_word(name, b"transfer-encoding") => request.has_coding = true,
            19 if is_word(name, b"if-unmodified-since") => {
                request.if_unmodified_since = Some(value)
            }
            _ => {}
        }
    }
    if hosts > 1 || (hosts == 0 && minor == 1) || (request.has_coding && length.is_some()) {
        return Err(Status::BadRequest);
    }
    request.body_bytes = length.unwrap_or(0);
    Ok(request)
}

/// Whether `text` is this word of small letters and hyphens in whatever letters: the bit that is
/// set here makes a capital small, and a hyphen else only of a carriage return, which no line has.
#[inline]
fn is_word<const LEN: usize>(text: &[u8], word: &[u8; LEN]) -> bool {
    let Ok(text) = <&[u8; LEN]>::try_from(text) else {
        return false;
    };
    // All bytes, with no way out before: that needs no loop.
    let other = text.iter().zip(word).map(|(a, b)| (a | 0x20) ^ b);
    other.fold(0, |all, one| all | one) == 0
}

/// Path and query, of `/path`, `http://host/path`, or `*` and `host:port` for other methods.
fn target(path: &str, method: Method) -> Result<&[u8], Status> {
    if path.starts_with('/') {
        return Ok(path.as_bytes());
    }
    if let Some((scheme, rest)) = path.split_once("://")
        && (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https"))
    {
        let slash = rest.find('/').map_or("/", |at| &rest[at..]);
        return Ok(slash.as_bytes());
    }
    match method {
        Method::Get | Method::Head => Err(Status::BadRequest),
        Method::Known | Method::Unknown => Ok(path.as_bytes()),
    }
}

/// Whether the first line ends in `HTTP/digit.digit`, of whatever version.
fn names_a_version(bytes: &[u8]) -> bool {
    let line = bytes.trim_ascii_start();
    let line = line
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or(line)
        .trim_ascii_end();
    let word = line.rsplit(|byte| *byte == b' ').next().unwrap_or(line);
    matches!(word, [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', rest @ ..]
        if matches!(rest, [] | [b'.', b'0'..=b'9']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_known_in_whatever_letters_and_others_are_not() {
        for word in [
            &b"keep-alive"[..],
            b"KEEP-ALIVE",
            b"Keep-Alive",
            b"kEEp-aLIVe",
        ] {
            assert!(is_word(word, b"keep-alive"));
        }
        for word in [
            &b"keep-aliv"[..],
            b"keep-alives",
            b"keep_alive",
            b"Leep-alive",
            b"keep-alivf",
            b"+eep-alive",
            b"",
        ] {
            assert!(!is_word(word, b"keep-alive"));
        }
    }
}
