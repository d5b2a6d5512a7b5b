//! Replies as bytes, in RESP2 or RESP3.

use alloc::vec::Vec;

/// Appends replies to a client's output.
pub(crate) struct Reply<'o> {
    pub out: &'o mut Vec<u8>,
    pub is_resp3: bool,
}

impl Reply<'_> {
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
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
        self.out.push(b':');
        push_decimal(self.out, value);
        self.out.extend_from_slice(b"\r\n");
    }

    pub fn bulk(&mut self, bytes: &[u8]) {
        self.count(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    pub fn null(&mut self) {
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
        if count < 10 {
            let line = [kind, b'0' + count as u8, b'\r', b'\n'];
            return self.out.extend_from_slice(&line);
        }
        self.out.push(kind);
        push_decimal(self.out, count as i64);
        self.out.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
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
