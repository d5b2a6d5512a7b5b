//! A key-value server that speaks the Redis protocol (RESP2, RESP3, inline), without I/O.
//!
//! ```text
//!   bytes of a client ──► Conn::receive ──► Parser: arguments as ranges ──► command table ──► Store
//!                                                                        └─► reply appended to
//!   Conn::output ──► socket, Conn::advance(what it took)  ◄────────────────── the output
//!   datagram ──► Server::datagram ──► one command, one reply, no session
//!   time ──► every call; Server::tick drops keys whose time is over, a few at a time
//! ```
//! - Parsing copies and allocates nothing while a command is whole in the bytes that arrive;
//!   what is cut is kept, and read on where reading stopped, so that no byte is read twice.
//! - The store ([`store`]) keeps keys in order of use, exactly, and drops the least recently used
//!   when the next value does not fit ([`Config::memory_bytes_max`]).
//! - Hashes are keyed by [`Config::hash_seed`], which has to be random: clients choose the keys.
//! - Commands are one table ([`commands`]): names, arity, flags, functions. What they answer is
//!   what Redis 7.0 answers; docs/httpd-and-kv.md has the list and the differences.
//! - Limits: arguments, lengths and replies have bounds ([`Config`]), and so have the buffers of
//!   all clients together ([`held`]); a client that breaks the protocol gets Redis' error and is
//!   closed; one that does not read is not read from.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod commands;
mod conn;
mod held;
mod parser;
mod reply;
mod server;
mod service;
mod store;

pub use conn::Conn;
pub use server::{Config, Refused, Server, Stats};
