//! A network stack for one program, as a process: the program's library asks it for sockets, and it speaks TCP, UDP
//! and ICMP for them by a port of a network.
//!
//! ```text
//!   program ── pair for each socket ──► sockets ── crates/netstack ── port ──► frames
//!      └────── control connections ───► control
//!   broker ── rules, questions ────────► orders
//! ```
//! One thread, one epoll instance. What a program can say is `fordway_abi::stack`; a socket here is the other end of its pair of
//! AF_UNIX sockets, and what `crates/netstack` has for it.
//!
//! **Bytes** are copied once each way: from the pair's queue into the connection's buffer, and from there into the pair.
//! Nothing is taken from a pair that the connection has no room for, so that TCP's window holds a sender back, and the
//! pair's room a receiver.
//!
//! **Who wakes whom.** The pairs, the control connections and the port are edges in one epoll instance. Whoever has had its
//! share of a round and has more to do stands in the list `unfinished`, and the loop does not sleep while that has entries.
//! After each round the stack writes what it has to send.
//!
//! **Ends.** The program's close or shutdown is the end of its pair's stream. A connection's end is a shutdown of our end; its
//! failure a close of it, with an errno kept for the library (`TakeError`).
//!
//! **Limits.** Sockets, control connections, requests of a round, options kept, sockets that are over and may still be asked
//! about: each has a bound, and what is beyond is refused. Of sockets and control connections no process gets all (`shares`). What
//! could not be taken for want of a descriptor is not lost: it is tried again ([`Server::short`]). A program that breaks the
//! protocol loses its control connection.
#![forbid(unsafe_code)]
// What only a protocol that is left out uses is left out by the linker.
#![cfg_attr(
    not(all(feature = "tcp", feature = "udp", feature = "ipv6")),
    allow(dead_code, unused_imports, unused_variables, unused_mut)
)]

mod bound;
pub mod config;
pub mod confine;
mod control;
#[cfg(feature = "udp")]
mod datagram;
#[cfg(feature = "udp")]
mod groups;
mod names;
mod options;
mod orders;
mod pair;
pub mod port;
mod server;
mod shares;
#[cfg(feature = "ipv6")]
mod six;
#[cfg(feature = "tcp")]
mod stream;
mod table;
#[cfg(feature = "tcp")]
mod tcp_info;

pub use server::Server;

use anyhow::{Context, Result};

/// `fordway-stackd CONFIG_FD`: reads its configuration from the inherited descriptor CONFIG_FD, and serves until it is ended.
pub fn main() -> Result<()> {
    let argument = std::env::args().nth(1);
    let fd: i32 = argument
        .and_then(|number| number.parse().ok())
        .context("usage: fordway-stackd CONFIG_FD")?;
    let config: config::Config = fordway_driver::config::read(fd).context("the configuration")?;
    let port = port::open(&config.port)?;
    let server = Server::new(&config, port)?;
    confine::confine(&config)?;
    server.run()
}
