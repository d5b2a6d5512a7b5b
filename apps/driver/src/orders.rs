//! What a broker and a stack say to each other, by a pair of sockets that no program has an end of.
//!
//! ```text
//!   broker ── Order, with rules beside ──► stack
//!   broker ◄────── Report, in parts ────── stack
//! ```
//! One packet (SOCK_SEQPACKET) is one message, in JSON. Each order has a number, and its reports bear it; the last one says that it is. The stack
//! answers in order, and at once. It never waits for room: a broker that asks reads. Of a listing that finds none the rest comes when there is some.
//!
//! The first order lies in the stack's queue before the stack is started: the rules in force. The stack holds the broker's end open,
//! beside its own, and never uses it: a broker that was started again takes it from there.

use fordway_platform::ipc::{self, ReceiveError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Goes up with each change of what is said here, by the link between the parts, or in a part's configuration.
pub const VERSION: u32 = 1;
/// Longest message.
pub const BYTES_MAX: usize = 32 << 10;
/// Counts of a report, and connections: so many fit, whatever their numbers.
pub const COUNTS_MAX: usize = 400;
/// See [`COUNTS_MAX`].
pub const CONNECTIONS_MAX: usize = 100;

/// The two ends, by their numbers in the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ends {
    /// The stack's.
    pub own: i32,
    /// The broker's, which the stack keeps for the next broker.
    pub brokers: i32,
}

/// To a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Reports bear it.
    pub number: u64,
    /// What is to be done.
    pub what: What,
}

/// What a stack is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Put rules in force. They lie in the memfd beside, in the form that `fordway filter compile` writes.
    Rules {
        /// Number of the change that they came with.
        epoch: u64,
        /// Their length.
        bytes: usize,
    },
    /// Tell what rules have counted, and begin anew.
    Counts,
    /// Tell of the connections.
    Connections,
}

/// From a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Of the order.
    pub number: u64,
    /// No other one follows.
    pub is_last: bool,
    /// What is told.
    pub said: Said,
}

/// What a stack tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// The rules are in force for each packet from now on.
    InForce,
    /// They are not, and why.
    Refused(String),
    /// What was counted since the last such report.
    Counts {
        /// Of the rules that have counted.
        epoch: u64,
        /// How many counters these have.
        counters: usize,
        /// Number of a counter, packets, bytes.
        of: Vec<(u32, u64, u64)>,
    },
    /// Connections.
    Connections(Vec<Connection>),
}

/// A connected socket of a stack's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Its own name.
    pub local: SocketAddr,
    /// The far end's.
    pub remote: SocketAddr,
    /// SO_COOKIE of the stack's end of the socket's pair.
    pub cookie: u64,
    /// As `ss` names it.
    pub state: String,
    /// Bytes that the far end has acknowledged.
    pub bytes_tx: u64,
    /// Bytes that have come.
    pub bytes_rx: u64,
}

/// Sends a message; `WouldBlock` if there is no room.
pub fn send<M: Serialize>(
    socket: impl AsFd,
    message: &M,
    beside: &[BorrowedFd<'_>],
) -> io::Result<()> {
    ipc::send(socket, &serde_json::to_vec(message)?, beside)
}

/// The next message, and the descriptors beside it.
pub fn receive<M: DeserializeOwned>(socket: impl AsFd) -> Result<(M, Vec<OwnedFd>), ReceiveError> {
    let mut bytes = vec![0; BYTES_MAX];
    let packet = ipc::receive(socket, &mut bytes, 1)?;
    let message = serde_json::from_slice(&bytes[..packet.len]);
    match message {
        Ok(message) => Ok((message, packet.fds)),
        Err(_) => Err(ReceiveError::Malformed("no message", packet.fds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_messages_fit() {
        let of = vec![(u32::MAX, u64::MAX, u64::MAX); COUNTS_MAX];
        let name = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
        let name: SocketAddr = name.parse().expect("a name");
        let connection = Connection {
            protocol: "tcp".into(),
            local: name,
            remote: name,
            cookie: u64::MAX,
            state: "CLOSE-WAIT".into(),
            bytes_tx: u64::MAX,
            bytes_rx: u64::MAX,
        };
        for said in [
            Said::Counts {
                epoch: u64::MAX,
                counters: usize::MAX,
                of,
            },
            Said::Connections(vec![connection; CONNECTIONS_MAX]),
        ] {
            let report = Report {
                number: u64::MAX,
                is_last: false,
                said,
            };
            let bytes = serde_json::to_vec(&report).expect("JSON");
            assert!(bytes.len() <= BYTES_MAX, "{}", bytes.len());
        }
    }
}
