//! The bytes of an NRI connection, without I/O of their own.
//!
//! The runtime calls the plugin, and the plugin the runtime, over one UNIX socket. What goes over it is, from
//! the outside in (all numbers big-endian):
//!
//! - *frames* of a connection's number (32 bits), a length (32 bits) and that many bytes. Calls of the plugin
//!   and their answers have connection 1, those of the runtime 2 (containerd/nri, pkg/net/multiplex);
//! - in the bytes of a connection, *messages* of ttrpc: a length, the call's number (32 bits each), type and
//!   flags (8 bits each), and that many bytes (containerd/ttrpc, PROTOCOL.md). A message may lie in many frames.
//!
//! The runtime is trusted with the whole node. All the same nothing that it sends makes us keep more than one
//! message and one frame of each connection, and a length beyond the protocol's ends the connection.

use std::io::{self, Read};

/// Calls of the plugin by the runtime.
pub const PLUGIN: u32 = 1;
/// Calls of the runtime by the plugin.
pub const RUNTIME: u32 = 2;
/// Type of a call.
pub const REQUEST: u8 = 1;
/// Type of an answer.
pub const RESPONSE: u8 = 2;

const FRAME_HEADER: usize = 8;
const HEADER: usize = 10;
/// ttrpc's limit of a message.
const MESSAGE_MAX: usize = 4 << 20;
const FRAME_MAX: usize = HEADER + MESSAGE_MAX;
/// The runtime reads frames into a buffer of this size, and ends the connection at a larger one.
const FRAME_SENT_MAX: usize = 4096;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// [`PLUGIN`] or [`RUNTIME`].
    pub connection: u32,
    /// The call, odd; its answer has the same.
    pub stream: u32,
    /// [`REQUEST`] or [`RESPONSE`].
    pub kind: u8,
    /// A request or a response in Protocol Buffers.
    pub payload: Vec<u8>,
}

impl Message {
    /// What is to be written to the socket.
    pub fn bytes(&self) -> Vec<u8> {
        let length = self.payload.len() as u32;
        let header = [length.to_be_bytes(), self.stream.to_be_bytes()].concat();
        let message = [&header[..], &[self.kind, 0], &self.payload].concat();
        let frame = |part: &[u8]| {
            let length = part.len() as u32;
            [&self.connection.to_be_bytes(), &length.to_be_bytes(), part].concat()
        };
        message.chunks(FRAME_SENT_MAX).flat_map(frame).collect()
    }
}

/// Messages out of a socket.
#[derive(Debug)]
pub struct Messages<R> {
    socket: R,
    /// What has come and is no whole message yet, of [`PLUGIN`] and of [`RUNTIME`].
    begun: [Vec<u8>; 2],
}

impl<R: Read> Messages<R> {
    /// Of this socket.
    pub fn of(socket: R) -> Self {
        let begun = [Vec::new(), Vec::new()];
        Self { socket, begun }
    }

    /// The next one; `None` where the socket ends between two frames.
    pub fn receive(&mut self) -> io::Result<Option<Message>> {
        loop {
            for (begun, connection) in self.begun.iter_mut().zip([PLUGIN, RUNTIME]) {
                if let Some(message) = take(begun, connection)? {
                    return Ok(Some(message));
                }
            }
            let mut header = [0; FRAME_HEADER];
            match self.socket.read(&mut header)? {
                0 => return Ok(None),
                some => self.socket.read_exact(&mut header[some..])?,
            }
            let (connection, length) = (word(&header), word(&header[4..]) as usize);
            if length > FRAME_MAX {
                return Err(too_long("frame", length));
            }
            let mut other = Vec::new();
            let into = match connection {
                PLUGIN => &mut self.begun[0],
                RUNTIME => &mut self.begun[1],
                _ => &mut other,
            };
            // Memory is taken as bytes come, not as a header promises.
            let taken = (&mut self.socket).take(length as u64).read_to_end(into)?;
            if taken < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// The first message of what has come, if it is whole.
fn take(begun: &mut Vec<u8>, connection: u32) -> io::Result<Option<Message>> {
    let Some((header, rest)) = begun.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let (length, stream, kind) = (word(header) as usize, word(&header[4..]), header[8]);
    if length > MESSAGE_MAX {
        return Err(too_long("message", length));
    }
    let Some(payload) = rest.get(..length).map(<[u8]>::to_vec) else {
        return Ok(None);
    };
    begun.drain(..HEADER + length);
    Ok(Some(Message {
        connection,
        stream,
        kind,
        payload,
    }))
}

fn word(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .take(4)
        .fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn too_long(what: &str, length: usize) -> io::Error {
    let text =
        format!("the runtime announces a {what} of {length} bytes, which NRI does not allow");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(connection: u32, stream: u32, length: usize) -> Message {
        let payload = (0..length).map(|at| at as u8).collect();
        Message {
            connection,
            stream,
            kind: REQUEST,
            payload,
        }
    }

    /// Gives back at most so many bytes in one read.
    struct Slow<'b>(&'b [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let most = self.1.min(into.len());
            self.0.read(&mut into[..most])
        }
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        let sent = [
            message(PLUGIN, 1, 0),
            message(RUNTIME, 3, FRAME_SENT_MAX - HEADER),
            message(PLUGIN, 5, 3 * FRAME_SENT_MAX),
        ];
        let bytes: Vec<u8> = sent.iter().flat_map(Message::bytes).collect();
        for most in [1, 7, bytes.len()] {
            let mut messages = Messages::of(Slow(&bytes, most));
            for one in &sent {
                assert_eq!(messages.receive().expect("read").as_ref(), Some(one));
            }
            assert_eq!(messages.receive().expect("read"), None);
        }
    }

    #[test]
    fn two_messages_may_share_a_frame_and_connections_may_alternate() {
        let frame = |connection: u32, part: &[u8]| {
            let length = part.len() as u32;
            [&connection.to_be_bytes(), &length.to_be_bytes(), part].concat()
        };
        let [one, two] = [message(PLUGIN, 1, 3), message(PLUGIN, 3, 4)];
        let other = message(RUNTIME, 1, 5);
        let inner = |message: &Message| message.bytes()[FRAME_HEADER..].to_vec();
        let (shared, other_bytes) = ([inner(&one), inner(&two)].concat(), inner(&other));
        let bytes = [
            frame(RUNTIME, &other_bytes[..4]),
            frame(7, b"nobody's"),
            frame(PLUGIN, &shared),
            frame(RUNTIME, &other_bytes[4..]),
        ]
        .concat();
        let mut messages = Messages::of(&*bytes);
        for expected in [Some(one), Some(two), Some(other), None] {
            assert_eq!(messages.receive().expect("read"), expected);
        }
    }

    #[test]
    fn the_frames_that_are_sent_fit_the_runtimes_buffer() {
        let bytes = message(PLUGIN, 1, 10_000).bytes();
        let mut rest = &*bytes;
        while let Some((header, behind)) = rest.split_first_chunk::<FRAME_HEADER>() {
            let length = word(&header[4..]) as usize;
            assert!(length <= FRAME_SENT_MAX);
            rest = &behind[length..];
        }
    }

    #[test]
    fn lengths_beyond_the_protocol_end_the_connection() {
        let frame = [&PLUGIN.to_be_bytes()[..], &u32::MAX.to_be_bytes()].concat();
        let mut header = message(PLUGIN, 1, 0).bytes();
        header[FRAME_HEADER..FRAME_HEADER + 4].copy_from_slice(&u32::MAX.to_be_bytes());
        for bytes in [frame, header] {
            let refused = Messages::of(&*bytes)
                .receive()
                .map_err(|error| error.kind());
            assert_eq!(refused, Err(io::ErrorKind::InvalidData));
        }
    }

    #[test]
    fn an_end_in_the_middle_is_an_error() {
        let bytes = message(PLUGIN, 1, 20).bytes();
        for length in 1..bytes.len() {
            let refused = Messages::of(&bytes[..length]).receive();
            let refused = refused.map_err(|error| error.kind());
            assert_eq!(refused, Err(io::ErrorKind::UnexpectedEof), "{length}");
        }
    }

    proptest! {
        #[test]
        fn what_is_kept_is_bounded_whatever_comes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut messages = Messages::of(&*bytes);
            while let Ok(Some(_)) = messages.receive() {}
            for begun in &messages.begun {
                prop_assert!(begun.capacity() <= bytes.len().max(64) * 2);
            }
        }
    }
}
