//! What the brokers of two guests say to each other: lines of JSON over a channel of granted pages.
//!
//! The guest with the lower domain id is the *senior*: its registry pairs, and gives numbers, slots and generations. The
//! other one, the *junior*, tells of its own processes by the numbers that its own registry has for them, and hands on what
//! comes back.
//!
//! ```text
//!   junior                                     senior
//!   Join, Offer ──────────────────────────────► pairs with an offer of a process of its own
//!   pages for its process  ◄───────────── Link
//!   Region (grants) ──────────────────────────►
//!                          ◄───── Peer (grants)
//!                          ◄── Bell, then Pair  ports that the senior made, one for a door and a link
//!   Status, Door, Gone ───────────────────────►
//!                          ◄── Downgrade, PeerGone, DoorAck, Ask
//!   Answer ───────────────────────────────────►  all up to the Ask has been handed on
//!   LetGo ────────────────────────────────────►
//!                          ◄───────────── LetGo  of the other one's grants: by whoever was told of them, once
//! ```
//! Each believes of the other what it says of its own processes, and nothing else: a process is looked up among those of the
//! guest that speaks, an address must be the guest's own. A line that cannot be read ends the conversation.

use alloc::vec::Vec;
use core::net::SocketAddr;
use serde::{Deserialize, Serialize};

/// Longest line: a region's grants, ten digits and a comma for each.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What has come of lines, as it came.
#[derive(Debug, Default)]
pub struct Lines(Vec<u8>);

impl Lines {
    /// Whether what has come is to be looked at before more is taken.
    pub fn is_full(&self) -> bool {
        self.0.len() > LINE_BYTES_MAX
    }

    /// More has come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Whether there is a whole line.
    pub fn has_line(&self) -> bool {
        self.0.contains(&b'\n')
    }

    /// Whether no line is so long.
    pub fn is_nonsense(&self) -> bool {
        self.is_full() && !self.has_line()
    }

    /// So many lines at most, without their ends.
    pub fn take(&mut self, count_max: usize) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        let mut taken = 0;
        for line in self
            .0
            .split_inclusive(|byte| *byte == b'\n')
            .take(count_max)
        {
            let Some(text) = line.strip_suffix(b"\n") else {
                break;
            };
            lines.push(text.to_vec());
            taken += line.len();
        }
        self.0.drain(..taken);
        lines
    }
}

/// A message as a line.
pub fn line(message: &impl Serialize) -> Option<Vec<u8>> {
    let mut line = serde_json::to_vec(message).ok()?;
    line.push(b'\n');
    Some(line)
}

/// What a line says; nothing, if it cannot be read.
pub fn read<'l, T: Deserialize<'l>>(line: &'l [u8]) -> Option<T> {
    serde_json::from_slice(line).ok()
}

/// What the junior says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Up {
    /// A process that is going to offer something, with its doors as bits.
    Join {
        process: u64,
        doors: u64,
    },
    /// A connection of TCP, as the kernel has shown it.
    Offer {
        process: u64,
        conn: u64,
        cookie: u64,
        local: SocketAddr,
        remote: SocketAddr,
    },
    /// The pages of its side of a link.
    Region {
        process: u64,
        link: u64,
        grants: Vec<u32>,
    },
    /// It cannot be had.
    NoRegion {
        process: u64,
        link: u64,
    },
    Door {
        process: u64,
        door: u64,
    },
    Status {
        process: u64,
        conn: u64,
        channel: u64,
        status: u32,
        reason: u32,
        tx: u64,
        rx: u64,
    },
    Gone {
        process: u64,
    },
    Answer {
        process: u64,
        door: u64,
    },
    /// Its side of a link has nothing mapped of what the senior has granted for it, and will not.
    LetGo {
        process: u64,
        link: u64,
    },
}

/// What the senior says. Processes are the junior's.
#[derive(Debug, Serialize, Deserialize)]
pub enum Down {
    Reject {
        process: u64,
        conn: u64,
        reason: u32,
        pending: u32,
    },
    Link {
        process: u64,
        link: u64,
    },
    Peer {
        process: u64,
        link: u64,
        grants: Vec<u32>,
    },
    /// A doorbell of the link: the process sleeps behind it, or it knocks there.
    Bell {
        process: u64,
        link: u64,
        door: u64,
        port: u32,
        sleeps: bool,
    },
    Pair {
        process: u64,
        conn: u64,
        channel: u64,
        link: u64,
        slot: u32,
        generation: u32,
    },
    DoorAck {
        process: u64,
        door: u64,
    },
    Downgrade {
        process: u64,
        channel: u64,
        reason: u32,
    },
    PeerGone {
        process: u64,
        link: u64,
    },
    /// Answered at once, with the same words, which are the senior's own.
    Ask {
        process: u64,
        door: u64,
    },
    /// The other side of a link has nothing mapped of what the junior has granted for it, and will not.
    LetGo {
        process: u64,
        link: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_whole_and_in_order_however_they_come() {
        let up = |door| line(&Up::Door { process: 7, door }).unwrap();
        let all: Vec<u8> = (0..10).flat_map(up).collect();
        for piece_bytes in [1, 3, 64, 1000] {
            let (mut lines, mut doors) = (Lines::default(), Vec::new());
            for piece in all.chunks(piece_bytes) {
                lines.push(piece);
                for text in lines.take(2) {
                    match read(&text) {
                        Some(Up::Door { process: 7, door }) => doors.push(door),
                        other => panic!("{other:?}"),
                    }
                }
            }
            while lines.has_line() {
                let text = &lines.take(1)[0];
                let Some(Up::Door { door, .. }) = read(text) else {
                    panic!("another line");
                };
                doors.push(door);
            }
            assert!((0..10).eq(doors), "{piece_bytes}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_nonsense() {
        let mut lines = Lines::default();
        while !lines.is_full() {
            assert!(!lines.is_nonsense());
            lines.push(&[b'x'; 1000]);
        }
        assert!(lines.is_nonsense() && lines.take(1).is_empty());
        lines.push(b"\n");
        assert!(!lines.is_nonsense());
        assert_eq!(lines.take(9).len(), 1);
        assert!(!lines.is_full());
    }

    #[test]
    fn names_of_sockets_are_written_as_ever() {
        let offer = Up::Offer {
            process: 1,
            conn: 2,
            cookie: 3,
            local: "10.0.0.9:80".parse().unwrap(),
            remote: "10.0.0.8:4000".parse().unwrap(),
        };
        let expected = br#"{"Offer":{"process":1,"conn":2,"cookie":3,"local":"10.0.0.9:80","remote":"10.0.0.8:4000"}}"#;
        assert_eq!(line(&offer).unwrap().strip_suffix(b"\n").unwrap(), expected);
    }
}
