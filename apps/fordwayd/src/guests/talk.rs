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
//! ```
//! Each believes of the other what it says of its own processes, and nothing else: a process is looked up among those of the
//! guest that speaks, an address must be the guest's own. A line that cannot be read ends the conversation.

use fordway_abi::control as wire;
use fordway_registry::Outgoing;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Longest line: a region's grants, ten digits and a comma for each.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// What the junior says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Up {
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
}

/// What the senior says. Processes are the junior's.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Down {
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
}

impl Down {
    /// What the registry wants a process of the junior's to be told.
    pub(super) fn of(process: u64, message: &Outgoing) -> Self {
        match *message {
            Outgoing::Reject(wire::Reject {
                conn_id,
                reason,
                pending,
            }) => Self::Reject {
                process,
                conn: conn_id,
                reason,
                pending,
            },
            Outgoing::Link(wire::Link { link_id, .. }) => Self::Link {
                process,
                link: link_id,
            },
            Outgoing::Pair(pair) => Self::Pair {
                process,
                conn: pair.conn_id,
                channel: pair.channel_id,
                link: pair.link_id,
                slot: pair.slot,
                generation: pair.generation,
            },
            Outgoing::DoorAck(wire::DoorAck { door }) => Self::DoorAck { process, door },
            Outgoing::Downgrade(wire::Downgrade {
                channel_id, reason, ..
            }) => Self::Downgrade {
                process,
                channel: channel_id,
                reason,
            },
            Outgoing::PeerGone(wire::PeerGone { link_id }) => Self::PeerGone {
                process,
                link: link_id,
            },
        }
    }
}
