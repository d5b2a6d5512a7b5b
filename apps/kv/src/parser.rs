//! Commands out of bytes: arrays of bulk strings, and inline commands (a line of words).
//!
//! A parser is given the bytes from the beginning of one command on, again and longer each time
//! until the command is whole, and goes on where it stopped. Error texts are Redis' own.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

/// Longest line: an inline command, or the head of an array or a string.
const LINE_BYTES_MAX: usize = 65_536;

/// Bytes given at a time while it is not known how many are missing.
const LOOK_BYTES: usize = 256;

/// What the parser is held to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub arguments_max: usize,
    pub argument_bytes_max: usize,
    pub command_bytes_max: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// More bytes are needed.
    Partial,
    /// A command of this many bytes is whole.
    Command(usize),
    /// The client has to be told this, and closed.
    Broken(Fault),
}

/// How the protocol was broken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Is(&'static str),
    /// This stands where a bulk string begins.
    NoBulk(u8),
}

impl Fault {
    /// Redis' error for it.
    pub fn text(&self) -> String {
        let what = match self {
            Fault::Is(what) => String::from(*what),
            Fault::NoBulk(got) => format!("expected '$', got '{}'", char::from(*got)),
        };
        format!("ERR Protocol error: {what}")
    }
}

#[derive(Default)]
pub(crate) struct Parser {
    arguments: Vec<Range<usize>>,
    /// Arguments still to come.
    left: usize,
    /// Where to go on.
    at: usize,
    /// Length that the command has at least, as far as is known.
    known: usize,
    is_array: bool,
    /// The words of an inline command, which may have been quoted.
    words: Vec<u8>,
}

/// The arguments of a command; the first is its name.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'a> {
    bytes: &'a [u8],
    ranges: &'a [Range<usize>],
}

impl<'a> Arguments<'a> {
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// One of those that are there.
    pub fn at(&self, at: usize) -> &'a [u8] {
        &self.bytes[self.ranges[at].clone()]
    }

    pub fn from(self, at: usize) -> impl Iterator<Item = &'a [u8]> + Clone {
        let bytes = self.bytes;
        self.ranges[at..].iter().map(|range| &bytes[range.clone()])
    }
}

impl Parser {
    /// Begins the next command.
    pub fn clear(&mut self) {
        self.arguments.clear();
        (self.left, self.at, self.known, self.is_array) = (0, 0, 0, false);
    }

    /// What it takes.
    pub fn capacity_bytes(&self) -> usize {
        self.arguments.capacity() * size_of::<Range<usize>>() + self.words.capacity()
    }

    /// Between commands: gives back what few need.
    pub fn tidy(&mut self, bytes_kept: usize) {
        if self.arguments.is_empty() && self.capacity_bytes() > bytes_kept {
            (self.arguments, self.words) = (Vec::new(), Vec::new());
        }
    }

    /// Length of the whole command, as far as is known.
    pub fn known(&self) -> usize {
        self.known
    }

    /// How many more bytes to give, at least one, after `given` were not enough.
    pub fn wanted(&self, given: usize) -> usize {
        self.known.saturating_sub(given).max(LOOK_BYTES)
    }

    /// The arguments of the command that is whole in `bytes`; none for an empty line.
    pub fn arguments<'a>(&'a self, bytes: &'a [u8]) -> Arguments<'a> {
        Arguments {
            bytes: if self.is_array { bytes } else { &self.words },
            ranges: &self.arguments,
        }
    }

    /// Reads on. `bytes` begins where the command does.
    pub fn feed(&mut self, bytes: &[u8], bounds: &Bounds) -> Step {
        if self.at == 0 {
            match bytes.first() {
                None => return Step::Partial,
                Some(b'*') => {}
                Some(_) => return self.inline(bytes),
            }
            match number(&bytes[1..]) {
                Number::Partial if bytes.len() > LINE_BYTES_MAX => {
                    return broken("too big mbulk count string");
                }
                Number::Partial => return Step::Partial,
                Number::Is(count, used) if count <= bounds.arguments_max as i64 => {
                    self.at = 1 + used;
                    self.is_array = true;
                    self.left = count.max(0) as usize;
                }
                Number::Is(..) | Number::None => return broken("invalid multibulk length"),
            }
        }
        while self.left > 0 {
            let rest = &bytes[self.at..];
            match rest.first() {
                None => return Step::Partial,
                Some(b'$') => {}
                Some(other) => return Step::Broken(Fault::NoBulk(*other)),
            }
            let (length, used) = match number(&rest[1..]) {
                Number::Partial if rest.len() > LINE_BYTES_MAX => {
                    return broken("too big bulk count string");
                }
                Number::Partial => return Step::Partial,
                Number::Is(length, used) => (length, used),
                Number::None => return broken("invalid bulk length"),
            };
            let fits = (0..=bounds.argument_bytes_max as i64).contains(&length);
            let start = self.at + 1 + used;
            let end = start.saturating_add(length.max(0) as usize);
            if !fits || end > bounds.command_bytes_max {
                return broken("invalid bulk length");
            }
            if bytes.len() < end + 2 {
                self.known = end + 2;
                return Step::Partial;
            }
            self.arguments.push(start..end);
            self.at = end + 2;
            self.left -= 1;
        }
        Step::Command(self.at)
    }

    fn inline(&mut self, bytes: &[u8]) -> Step {
        let within = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
        let Some(end) = within.iter().position(|byte| *byte == b'\n') else {
            return match within.len() {
                LINE_BYTES_MAX => broken("too big inline request"),
                _ => Step::Partial,
            };
        };
        self.words.clear();
        let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
        match self.split(line) {
            Some(()) => Step::Command(end + 1),
            None => broken("unbalanced quotes in request"),
        }
    }

    /// The words of a line, with quotes and escapes as redis-cli has them.
    fn split(&mut self, line: &[u8]) -> Option<()> {
        let mut rest = line;
        loop {
            rest = rest.trim_ascii_start();
            if rest.is_empty() {
                return Some(());
            }
            let start = self.words.len();
            let mut quote = None;
            loop {
                let (&byte, after) = match rest.split_first() {
                    Some(split) => split,
                    None if quote.is_none() => break,
                    None => return None,
                };
                rest = after;
                match (quote, byte) {
                    (None, b' ' | b'\t' | b'\r' | b'\n' | 0) => break,
                    (None, b'"' | b'\'') => quote = Some(byte),
                    (Some(open), close) if open == close => {
                        // Nothing may stand right behind a closing quote.
                        if rest.first().is_some_and(|next| !next.is_ascii_whitespace()) {
                            return None;
                        }
                        break;
                    }
                    (Some(b'"'), b'\\') => rest = unescape(rest, &mut self.words),
                    (Some(b'\''), b'\\') if rest.first() == Some(&b'\'') => {
                        self.words.push(b'\'');
                        rest = &rest[1..];
                    }
                    _ => self.words.push(byte),
                }
            }
            self.arguments.push(start..self.words.len());
        }
    }
}

/// What stands behind a backslash in double quotes; gives the rest.
fn unescape<'a>(rest: &'a [u8], words: &mut Vec<u8>) -> &'a [u8] {
    let digit = |at: usize| rest.get(at).and_then(|d| char::from(*d).to_digit(16));
    if rest.first() == Some(&b'x')
        && let (Some(high), Some(low)) = (digit(1), digit(2))
    {
        words.push((high * 16 + low) as u8);
        return &rest[3..];
    }
    let Some((&byte, after)) = rest.split_first() else {
        words.push(b'\\');
        return rest;
    };
    words.push(match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    });
    after
}

fn broken(what: &'static str) -> Step {
    Step::Broken(Fault::Is(what))
}

enum Number {
    Partial,
    None,
    /// The number, and the length of its line.
    Is(i64, usize),
}

/// A decimal number up to an end of line.
#[inline]
fn number(bytes: &[u8]) -> Number {
    // Nearly all have one digit or two.
    match *bytes {
        [ones @ b'0'..=b'9', b'\r', _, ..] => Number::Is(i64::from(ones - b'0'), 3),
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9', b'\r', _, ..] => {
            Number::Is(i64::from((tens - b'0') * 10 + (ones - b'0')), 4)
        }
        _ => any_number(bytes),
    }
}

fn any_number(bytes: &[u8]) -> Number {
    let negative = bytes.first() == Some(&b'-');
    let start = usize::from(negative);
    let mut value = 0i64;
    for (at, byte) in bytes[start..].iter().enumerate() {
        match byte {
            // Far above every bound, far below an overflow.
            b'0'..=b'9' if value < i64::MAX / 100 => value = value * 10 + i64::from(byte - b'0'),
            b'\r' if at > 0 => {
                return match bytes.get(start + at + 1) {
                    None => Number::Partial,
                    Some(_) => Number::Is(if negative { -value } else { value }, start + at + 2),
                };
            }
            _ => return Number::None,
        }
    }
    Number::Partial
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const BOUNDS: Bounds = Bounds {
        arguments_max: 10,
        argument_bytes_max: 100,
        command_bytes_max: 300,
    };

    fn whole(bytes: &[u8]) -> Result<(Vec<Vec<u8>>, usize), String> {
        let mut parser = Parser::default();
        match parser.feed(bytes, &BOUNDS) {
            Step::Partial => Err("partial".into()),
            Step::Broken(fault) => Err(fault.text()),
            Step::Command(length) => {
                let arguments = parser.arguments(bytes);
                Ok((arguments.from(0).map(<[u8]>::to_vec).collect(), length))
            }
        }
    }

    #[test]
    fn arrays_whole_and_in_pieces() {
        let text = b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\na\r\nb\r\n*1";
        let expected = vec![b"SET".to_vec(), vec![], b"a\r\nb".to_vec()];
        assert_eq!(whole(text), Ok((expected.clone(), text.len() - 2)));
        let mut parser = Parser::default();
        for end in 0..text.len() - 2 {
            assert_eq!(parser.feed(&text[..end], &BOUNDS), Step::Partial, "{end}");
        }
        assert_eq!(parser.feed(text, &BOUNDS), Step::Command(text.len() - 2));
        let found: Vec<_> = parser.arguments(text).from(0).map(<[u8]>::to_vec).collect();
        assert_eq!(found, expected);
        assert_eq!(whole(b"*0\r\n"), Ok((vec![], 4)));
        assert_eq!(whole(b"*-1\r\n"), Ok((vec![], 5)));
    }

    #[test]
    fn lines_of_words() {
        for (line, words) in [
            ("PING\r\n", &["PING"][..]),
            ("  set a\t1 \n", &["set", "a", "1"]),
            ("\r\n", &[]),
            (r#"set "a b" 'it''s' x"#, &[]),
            (
                "set \"a \\x41\\n\\q\" 'it\\'s' \"\"\r\n",
                &["set", "a A\nq", "it's", ""],
            ),
        ] {
            match whole(line.as_bytes()) {
                Ok((found, length)) => {
                    let expected: Vec<_> = words.iter().map(|w| w.as_bytes().to_vec()).collect();
                    assert_eq!((found, length), (expected, line.len()));
                }
                Err(text) => assert_eq!((text.as_str(), words.len()), ("partial", 0)),
            }
        }
        for line in ["set \"a\n", "set 'a\"\n", "set \"a\"b\n"] {
            let error = "ERR Protocol error: unbalanced quotes in request";
            assert_eq!(whole(line.as_bytes()), Err(error.into()));
        }
    }

    #[test]
    fn what_breaks_the_protocol() {
        for (text, error) in [
            ("*11\r\n", "invalid multibulk length"),
            ("*x\r\n", "invalid multibulk length"),
            ("*99999999999999999999\r\n", "invalid multibulk length"),
            ("*1\r\n:1\r\n", "expected '$', got ':'"),
            ("*1\r\n$-1\r\n", "invalid bulk length"),
            ("*1\r\n$101\r\n", "invalid bulk length"),
            ("*1\r\n$a\r\n", "invalid bulk length"),
        ] {
            let error = format!("ERR Protocol error: {error}");
            assert_eq!(whole(text.as_bytes()), Err(error), "{text}");
        }
        let long = vec![b'a'; LINE_BYTES_MAX + 1];
        let error = "ERR Protocol error: too big inline request";
        assert_eq!(whole(&long), Err(error.into()));
    }
}
