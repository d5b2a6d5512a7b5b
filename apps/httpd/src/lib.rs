//! An HTTP/1.1 server for files (RFC 9110, RFC 9112), without I/O: bytes and times in, slices out.
//!
//! ```text
//!   archive (ustar, linked in or a ramdisk) ──► Server: path ─► head made ready, body where it lies
//!   bytes of the client ──► Conn::receive ──► request ──► pieces: own bytes, slices of the archive
//!   Conn::output ──► one slice for the socket, Conn::advance(what it took) ──► the next
//!   time ──► Conn::deadline; when it has come: Conn::expire ──► 408, or the end
//! ```
//! A connection is in one of these states ([`Conn`]):
//!
//! | state | bytes | ends by |
//! |---|---|---|
//! | between requests | begin one | the client's end, `idle_us_max` |
//! | in a head | kept until it is whole | 431 at `head_bytes_max`, 408 at `request_us_max` |
//! | in a body nobody wants | dropped | 408 at `request_us_max` |
//! | sending | wait in the caller's buffer once `PIECES_MAX` replies are queued | no progress in `send_us_max` |
//! | over | dropped | the caller closes when the output is empty ([`Conn::is_over`]) |
//!
//! Files are never copied here: the output is a slice of the archive. Their heads are made once;
//! a reply copies one and puts the date in. Requests may be pipelined; replies come in order.
//! Nothing a client sends makes it panic, and every buffer has a limit ([`Limits`]).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod archive;
mod conn;
mod date;
mod range;
mod request;
mod server;
mod service;
mod site;
mod status;

pub use archive::{Archive, ArchiveError, Entry};
pub use conn::Conn;
pub use server::{Limits, Page, Refused, Server, Stats};
pub use status::Status;
