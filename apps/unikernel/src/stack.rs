//! How the network stack is set up: its bounds, its addresses, how connections behave. Nothing here is Xen's, so that
//! `tests/wire/tests/unikernel.rs` has this file, too, and plays its scripts against what an image has.

use core::net::{IpAddr, Ipv4Addr};
use fordway_netstack::{Cidr, Congestion, Keepalive, Limits, TcpOptions};

/// Connections and a few tasks of our own.
const TASKS_PER_MEGABYTE: usize = 16;
const TASKS_MIN: usize = 48;
const TASKS_MAX: usize = 10_016;

/// Silence after which a client is asked whether it is there; as Redis' tcp-keepalive.
const KEEPALIVE_US: u64 = 300_000_000;

/// The largest frame that a backend takes, with its Ethernet header: lengths have 16 bits.
pub const FRAME_BYTES_MAX: usize = 65_535;
/// The largest TCP segment in it, behind headers of Ethernet, IPv4 and TCP.
const SEGMENT_BYTES_MAX: usize = FRAME_BYTES_MAX - 14 - 20 - 20;
/// The send buffer holds this many of the largest segments: a segment ends where the buffer
/// does, so each time around it an odd rest would be one of its own.
const SEND_SEGMENTS: usize = 4;

/// If nobody says otherwise.
pub const CONGESTION: Congestion = Congestion::UntilLoss;

/// Small domains get small buffers.
pub fn is_small(memory_bytes: usize) -> bool {
    memory_bytes < 32 << 20
}

/// Connections that a domain with so much memory serves at one time, and tasks.
pub fn tasks(memory_bytes: usize) -> usize {
    let tasks = (memory_bytes >> 20) * TASKS_PER_MEGABYTE;
    tasks.clamp(TASKS_MIN, TASKS_MAX)
}

/// The key-value server's values take three eighths of all memory, its clients' buffers a twelfth, or
/// an eighth while they grow.
pub fn limits(tasks: usize, free_bytes: usize, is_kv: bool) -> Limits {
    Limits {
        flows_max: tasks,
        tcp_buffer_bytes_max: free_bytes / if is_kv { 4 } else { 2 },
        ..Limits::for_memory(free_bytes)
    }
}

/// Buffers of a connection, if nobody says otherwise: to send, to receive.
pub fn buffers(memory_bytes: usize) -> (usize, usize) {
    match is_small(memory_bytes) {
        true => (32 << 10, 8 << 10),
        false => (SEND_SEGMENTS * SEGMENT_BYTES_MAX, 32 << 10),
    }
}

/// Clients of the key-value server may be silent for as long as they like, and nobody else would
/// notice that one is gone for good.
pub fn tcp_options(
    (send_bytes, receive_bytes): (usize, usize),
    congestion: Congestion,
    is_kv: bool,
) -> TcpOptions {
    TcpOptions {
        receive_bytes,
        send_bytes,
        is_nagle: false,
        congestion,
        keepalive: is_kv.then_some(Keepalive::each(KEEPALIVE_US)),
        ..TcpOptions::default()
    }
}

/// The loop's, beside the link's if there is one yet.
pub fn addresses(own: Option<Cidr>) -> impl Iterator<Item = Cidr> {
    let loopback = Cidr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8);
    own.into_iter().chain([loopback])
}
