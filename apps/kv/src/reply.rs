//! Replies as bytes, in RESP2 or RESP3.

use alloc::vec::Vec;

/// What stands around the bytes of one item, at most.
const AROUND_BYTES_MAX: usize = 32;
/// From here on the output grows by what is needed.
const EXACT_BYTES_MIN: usize = 4096;

/// Appends replies to a client's output.
pub(crate) struct Reply<'o> {
    pub out: &'o mut Vec<u8>,
    pub is_resp3: bool,
    /// How long `out` may become; errors may exceed it.
    pub end: usize,
    /// There was more to say.
    pub is_cut: bool,
}

impl<'o> Reply<'o> {
    pub fn new(out: &'o mut Vec<u8>, is_resp3: bool, room: usize) -> Reply<'o> {
        Reply {
            end: out.len().saturating_add(room),
            out,
            is_resp3,
            is_cut: false,
        }
    }

    /// What still fits.
    pub fn room(&self) -> usize {
        self.end.saturating_sub(self.out.len())
    }

    /// Whether so many bytes more fit, with what stands around them; if not, none are appended.
    #[inline(always)]
    fn fits(&mut self, bytes: usize) -> bool {
        self.is_cut |= self.room() < bytes + AROUND_BYTES_MAX;
        !self.is_cut
    }

    pub fn ok(&mut self) {
        self.simple("OK");
    }

    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// `text` begins with the error's code. Line ends within become spaces.
    pub fn error(&mut self, text: &str) {
        self.error_bytes(text.as_bytes());
    }

    pub fn error_bytes(&mut self, text: &[u8]) {
        self.out.push(b'-');
        // Redis cuts line ends off the end, and makes spaces of others.
        let end = text.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n'));
        let text = &text[..end.map_or(0, |last| last + 1)];
        let plain = |byte: &u8| {
            if matches!(byte, b'\r' | b'\n') {
                b' '
            } else {
                *byte
            }
        };
        self.out.extend(text.iter().map(plain));
        self.out.extend_from_slice(b"\r\n");
    }

    pub fn integer(&mut self, value: i64) {
        if !self.fits(0) {
            return;
        }
        self.out.push(b':');
        push_decimal(self.out, value);
        self.out.extend_from_slice(b"\r\n");
    }

    pub fn bulk(&mut self, bytes: &[u8]) {
        if !self.fits(bytes.len()) {
            return;
        }
        if bytes.len() > EXACT_BYTES_MIN.max(self.out.len()) {
            // Growing by doubling may take twice as much.
            self.out.reserve_exact(bytes.len() + AROUND_BYTES_MAX);
        }
        self.head(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    pub fn null(&mut self) {
        if !self.fits(0) {
            return;
        }
        let text: &[u8] = if self.is_resp3 { b"_\r\n" } else { b"$-1\r\n" };
        self.out.extend_from_slice(text);
    }

    pub fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// Text for people.
    pub fn verbatim(&mut self, text: &[u8]) {
        if !self.is_resp3 {
            return self.bulk(text);
        }
        if !self.fits(text.len()) {
            return;
        }
        self.count(b'=', text.len() + 4);
        self.out.extend_from_slice(b"txt:");
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    /// The head of an array; its elements follow.
    pub fn array(&mut self, length: usize) {
        self.count(b'*', length);
    }

    /// The head of a map; its keys and values follow in turn.
    pub fn map(&mut self, pairs: usize) {
        match self.is_resp3 {
            true => self.count(b'%', pairs),
            false => self.count(b'*', 2 * pairs),
        }
    }

    fn count(&mut self, kind: u8, count: usize) {
        if self.fits(0) {
            self.head(kind, count);
        }
    }

    #[inline(always)]
    fn head(&mut self, kind: u8, count: usize) {
        if count < 10 {
            let line = [kind, b'0' + count as u8, b'\r', b'\n'];
            return self.out.extend_from_slice(&line);
        }
        self.out.push(kind);
        push_decimal(self.out, count as i64);
        self.out.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        if !self.fits(text.len()) {
            return;
        }
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}

/// A number's digits.
pub(crate) fn push_decimal(out: &mut Vec<u8>, value: i64) {
    if (0..10).contains(&value) {
        out.push(b'0' + value as u8);
        return;
    }
    let mut digits = [0; 20];
    let (mut start, mut left) = (digits.len(), value.unsigned_abs());
    loop {
        start -= 1;
        digits[start] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if value < 0 {
        start -= 1;
        digits[start] = b'-';
    }
    out.extend_from_slice(&digits[start..]);
}
