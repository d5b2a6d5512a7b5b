//! XenStore's messages as bytes: building requests, and cutting responses out of a stream.

use super::{HEADER_SIZE, Kind, PAYLOAD_MAX};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: u32,
    pub request: u32,
    pub transaction: u32,
    pub len: usize,
}

/// A request of these parts: each part is followed by a zero byte, but for the last of a
/// write, which is the bare value. `None` if it is longer than XenStore takes.
pub fn request(kind: Kind, request: u32, transaction: u32, parts: &[&[u8]]) -> Option<Vec<u8>> {
    let terminated = if kind == Kind::Write {
        parts.len() - 1
    } else {
        parts.len()
    };
    let len = parts.iter().map(|part| part.len()).sum::<usize>() + terminated;
    if len > PAYLOAD_MAX {
        return None;
    }
    let mut bytes = Vec::with_capacity(HEADER_SIZE + len);
    for word in [kind as u32, request, transaction, len as u32] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    for (i, part) in parts.iter().enumerate() {
        bytes.extend_from_slice(part);
        if i < terminated {
            bytes.push(0);
        }
    }
    Some(bytes)
}

/// Bytes as they come out of the ring, until they are a message.
#[derive(Default)]
pub struct Assembly {
    bytes: Vec<u8>,
}

/// The stream has a message that is longer than the protocol allows: nothing behind it
/// can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl Assembly {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes that may still come before there is a message to take.
    pub fn wanted(&self) -> Result<usize, Broken> {
        match self.header() {
            None => Ok(HEADER_SIZE - self.bytes.len()),
            Some(header) if header.len > PAYLOAD_MAX => Err(Broken),
            Some(header) => Ok(HEADER_SIZE + header.len - self.bytes.len()),
        }
    }

    /// The message, once it is whole.
    pub fn take(&mut self) -> Option<(Header, Vec<u8>)> {
        let header = self.header()?;
        if self.bytes.len() < HEADER_SIZE + header.len {
            return None;
        }
        let rest = self.bytes.split_off(HEADER_SIZE + header.len);
        let message = core::mem::replace(&mut self.bytes, rest);
        Some((header, message[HEADER_SIZE..].to_vec()))
    }

    fn header(&self) -> Option<Header> {
        let bytes = self.bytes.get(..HEADER_SIZE)?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        Some(Header {
            kind: word(0),
            request: word(4),
            transaction: word(8),
            len: word(12) as usize,
        })
    }
}

/// A watch that fired: what changed, and the token the watch was made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    pub path: String,
    pub token: String,
}

impl Fired {
    /// What a message of kind [`Kind::WatchEvent`] says.
    pub fn from_payload(payload: &[u8]) -> Option<Self> {
        let mut parts = strings(payload);
        let (path, token) = (parts.next()?, parts.next()?);
        Some(Self {
            path: text(path),
            token: text(token),
        })
    }
}

/// Fired watches that are kept.
const WAITING_MAX: usize = 256;

/// Fired watches that wait to be taken, in order. Of too many the oldest of a watch that has fired again since is dropped, of the same
/// watch first: its watcher reads the tree again anyway, and who changes what one watch sees cannot push out the only word of another.
#[derive(Debug, Default)]
pub struct Waiting(VecDeque<Fired>);

impl Waiting {
    /// Keeps what a message says, if it is of a watch.
    pub fn keep(&mut self, header: Header, payload: &[u8]) {
        if header.kind != Kind::WatchEvent as u32 {
            return;
        }
        let Some(fired) = Fired::from_payload(payload) else {
            return;
        };
        if self.0.len() == WAITING_MAX {
            let has = |from: usize, token: &str| {
                self.0.iter().skip(from).any(|other| other.token == token)
            };
            let same = self.0.iter().position(|other| other.token == fired.token);
            let again = || (0..self.0.len()).find(|&at| has(at + 1, &self.0[at].token));
            let dropped = same.or_else(again).unwrap_or(0);
            self.0.remove(dropped);
        }
        self.0.push_back(fired);
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next one.
    pub fn take(&mut self) -> Option<Fired> {
        self.0.pop_front()
    }
}

/// Bytes of the store as text. Names and values are ASCII by the protocol; what is not UTF-8 is
/// replaced.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The strings of a payload, each ended by a zero byte (the last one may lack it).
pub fn strings(payload: &[u8]) -> impl Iterator<Item = &[u8]> {
    payload
        .split(|&byte| byte == 0)
        .filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_header_and_its_zero_bytes() {
        let bytes = request(Kind::Write, 7, 9, &[b"device/vif", b"4"]).unwrap();
        assert_eq!(
            bytes[..16],
            [11, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 12, 0, 0, 0]
        );
        assert_eq!(&bytes[16..], b"device/vif\x004");
        assert_eq!(
            &request(Kind::Read, 1, 0, &[b"name"]).unwrap()[16..],
            b"name\0"
        );
        assert_eq!(
            &request(Kind::Watch, 1, 0, &[b"a", b"b"]).unwrap()[16..],
            b"a\0b\0"
        );
        assert_eq!(request(Kind::Write, 1, 0, &[b"a", &[0; PAYLOAD_MAX]]), None);
    }

    #[test]
    fn messages_come_out_whole_however_they_are_cut() {
        let mut stream = request(Kind::Read, 1, 0, &[b"abc"]).unwrap();
        stream.extend(request(Kind::WatchEvent, 0, 0, &[b"path", b"token"]).unwrap());
        for cut in 1..stream.len() {
            let (mut assembly, mut kinds) = (Assembly::default(), Vec::new());
            for piece in stream.chunks(cut) {
                assembly.push(piece);
                while let Some((header, payload)) = assembly.take() {
                    assert_eq!(header.len, payload.len());
                    kinds.push((header.kind, strings(&payload).count()));
                }
            }
            assert_eq!(kinds, [(2, 1), (15, 2)]);
            assert_eq!(assembly.wanted(), Ok(16));
        }
    }

    #[test]
    fn a_watch_that_fires_much_pushes_no_other_out() {
        let mut waiting = Waiting::default();
        let mut keep = |path: &[u8], token: &[u8]| {
            let bytes = request(Kind::WatchEvent, 0, 0, &[path, token]).unwrap();
            let mut assembly = Assembly::default();
            assembly.push(&bytes);
            let (header, payload) = assembly.take().unwrap();
            waiting.keep(header, &payload);
        };
        keep(b"gone", b"life");
        for _ in 0..2 * WAITING_MAX {
            keep(b"a/b", b"noise");
        }
        keep(b"c", b"third");
        assert_eq!(waiting.take().unwrap().token, "life");
        let left = core::iter::from_fn(|| waiting.take()).count();
        assert_eq!(left, WAITING_MAX - 1);
    }

    #[test]
    fn a_message_that_is_too_long_ends_the_conversation() {
        let mut assembly = Assembly::default();
        assembly.push(&[2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 16, 0, 0]);
        assert_eq!(assembly.wanted(), Err(Broken));
    }
}
