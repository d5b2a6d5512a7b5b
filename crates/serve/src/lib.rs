//! Servers that are state machines ([`Service`]): bytes and times in, slices out. Whoever runs one
//! brings the sockets: [`Loop`] on Linux, the tasks of the unikernel on its own stack.
#![cfg_attr(not(feature = "epoll"), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(feature = "epoll")]
mod epoll;

use alloc::vec::Vec;
use core::time::Duration;
#[cfg(feature = "epoll")]
pub use epoll::Loop;

/// A server without I/O. Times are microseconds of a clock that only goes forward.
pub trait Service {
    /// A client's connection.
    type Conn;
    /// What a client is told for whom there is no room.
    const REFUSAL: &'static [u8];

    /// A new connection; `None`: there are too many.
    fn accept(&mut self, now_us: u64) -> Option<Self::Conn>;
    /// Takes bytes of the client; says how many.
    fn receive(&mut self, conn: &mut Self::Conn, now_us: u64, bytes: &[u8]) -> usize;
    /// The client sends no more.
    fn end(&mut self, conn: &mut Self::Conn);
    /// All that is to be sent, slice by slice.
    fn outputs<'c>(&self, conn: &'c Self::Conn) -> impl Iterator<Item = &'c [u8]>;
    /// The first of these slices; empty if there is nothing to be sent.
    fn output<'c>(&self, conn: &'c Self::Conn) -> &'c [u8] {
        self.outputs(conn).next().unwrap_or_default()
    }
    /// `bytes` of the output were taken.
    fn advance(&mut self, conn: &mut Self::Conn, now_us: u64, bytes: usize);
    /// Whether all is sent and the connection is to be closed.
    fn is_over(&self, conn: &Self::Conn) -> bool;
    /// When [`Service::expire`] is to be called.
    fn deadline(&self, conn: &Self::Conn) -> u64;
    /// The deadline has come.
    fn expire(&mut self, conn: &mut Self::Conn, now_us: u64);
    /// The connection is closed.
    fn closed(&mut self, conn: Self::Conn);
    /// Housekeeping, `wall` after 1970; says when to call again, if not once a second anyway.
    fn tick(&mut self, _now_us: u64, _wall: Duration) -> u64 {
        u64::MAX
    }
    /// Answers a datagram; an empty answer is none.
    fn datagram(&mut self, _now_us: u64, _bytes: &[u8], _out: &mut Vec<u8>) {}
}
