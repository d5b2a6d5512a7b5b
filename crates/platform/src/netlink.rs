//! Netlink (netlink(7)): a request, what comes back, and attributes.
//!
//! A netlink socket speaks of the namespace it was made in. The kernel does the work within send, so a
//! single answer is there when send returns; a dump comes in as many receives as it needs.

use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

// linux/netlink.h
pub(crate) const ERROR: u16 = 2;
const DONE: u16 = 3;
pub(crate) const REQUEST: u16 = 0x001;
pub(crate) const ACK: u16 = 0x004;
pub(crate) const DUMP: u16 = 0x300;
/// The dump is not of one moment.
const DUMP_INTERRUPTED: u16 = 0x10;
const NESTED: u16 = 1 << 15;
const HEADER_BYTES: usize = 16;
const ANSWER_BYTES_MAX: usize = 4096;
/// A dump's skb is at most 32 KB (net/netlink/af_netlink.c); this leaves room.
const RECEIVE_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

/// One message of those received.
pub(crate) struct Message<'a> {
    pub kind: u16,
    flags: u16,
    /// Header and body.
    pub whole: &'a [u8],
    pub body: &'a [u8],
}

/// What answers a request that is no dump.
pub(crate) struct Answer(Vec<u8>);

impl Socket {
    /// For the calling thread's namespace; without a protocol, of rtnetlink(7), which is 0.
    pub fn open(protocol: impl Into<Option<Protocol>>) -> io::Result<Self> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, kind, flags, protocol.into())?;
        Ok(Self(socket))
    }

    pub fn ask(&self, request: &[u8]) -> io::Result<Answer> {
        rustix::net::send(&self.0, request, SendFlags::empty())?;
        let mut buffer = vec![0; ANSWER_BYTES_MAX];
        let (_, length) = rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT)?;
        buffer.truncate(length);
        Ok(Answer(buffer))
    }

    /// Shows each message of a dump. False: a change came across.
    pub fn dump(&self, request: &[u8], mut show: impl FnMut(&Message<'_>)) -> io::Result<bool> {
        rustix::net::send(&self.0, request, SendFlags::empty())?;
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut is_whole = true;
        loop {
            let (_, length) = rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::TRUNC)?;
            for message in messages(buffer.get(..length).ok_or_else(invalid)?) {
                is_whole &= message.flags & DUMP_INTERRUPTED == 0;
                match message.kind {
                    DONE | ERROR => return message.outcome().map(|()| is_whole),
                    _ => show(&message),
                }
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Answer {
    #[cfg(test)]
    pub fn of(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    pub fn message(&self) -> io::Result<Message<'_>> {
        messages(&self.0).next().ok_or_else(invalid)
    }
}

impl Message<'_> {
    /// Of the end of a dump, or of an answer that is an error or an acknowledgement.
    pub fn outcome(&self) -> io::Result<()> {
        match read_u32(self.body, 0).ok_or_else(invalid)? as i32 {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
        }
    }
}

/// The messages of some bytes, up to one that is none.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let whole = bytes.get(..read_u32(bytes, 0)? as usize)?;
        let message = Message {
            kind: read_u16(whole, 4)?,
            flags: read_u16(whole, 6)?,
            body: whole.get(HEADER_BYTES..)?,
            whole,
        };
        let next = bytes.get(whole.len().next_multiple_of(4)..);
        bytes = next.unwrap_or(&[]);
        Some(message)
    })
}

/// A message of this type.
pub(crate) fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = HEADER_BYTES + body.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

/// An attribute (struct nlattr) with its payload, filled up to four bytes.
pub(crate) fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = 4 + payload.len();
    let mut bytes = (length as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

/// An attribute of attributes.
pub(crate) fn nested(kind: u16, attributes: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, attributes)
}

/// The payload of the first attribute of this type.
pub(crate) fn find_attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(read_u16(bytes, 0)?);
        let payload = bytes.get(4..length)?;
        if read_u16(bytes, 2)? & !NESTED == wanted {
            return Some(payload);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

pub(crate) fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn read_u16(bytes: &[u8], offset: usize) -> Option<u16> {
    let word = bytes.get(offset..offset + 2)?;
    Some(u16::from_ne_bytes(word.try_into().ok()?))
}

pub(crate) fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    let word = bytes.get(offset..offset + 4)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}

pub(crate) fn read_u64(bytes: &[u8], offset: usize) -> Option<u64> {
    let word = bytes.get(offset..offset + 8)?;
    Some(u64::from_ne_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_messages_are_none() {
        for bytes in [
            &[][..],
            &[255; 16],
            &[8, 0, 0, 0, 0, 0, 0, 0],
            &[16, 0, 0, 0],
        ] {
            assert!(messages(bytes).next().is_none());
        }
        assert!(find_attribute(&[0, 0, 0, 0], 2).is_none());
    }

    #[test]
    fn messages_and_attributes_come_back() {
        let body = [attribute(1, b"one"), attribute(2, b"2")].concat();
        let bytes = [request(7, ACK, &body), request(8, 0, &[])].concat();
        let found: Vec<_> = messages(&bytes).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].kind, found[0].flags, found[1].kind), (7, ACK, 8));
        assert_eq!(find_attribute(found[0].body, 2), Some(&b"2"[..]));
        assert_eq!(find_attribute(found[0].body, 3), None);
    }
}
