//! The server as whoever has the sockets runs it.

use crate::{Conn, Refused, Server};
use alloc::vec::Vec;
use core::time::Duration;
use fordway_serve::Service;

impl Service for Server {
    type Conn = Conn;
    const REFUSAL: &'static [u8] = Refused::REPLY;

    fn accept(&mut self, now_us: u64) -> Option<Conn> {
        self.accept(now_us).ok()
    }

    fn receive(&mut self, conn: &mut Conn, now_us: u64, bytes: &[u8]) -> usize {
        conn.receive(self, now_us, bytes)
    }

    fn end(&mut self, conn: &mut Conn) {
        conn.end();
    }

    fn outputs<'c>(&self, conn: &'c Conn) -> impl Iterator<Item = &'c [u8]> {
        Some(conn.output())
            .into_iter()
            .filter(|slice| !slice.is_empty())
    }

    fn advance(&mut self, conn: &mut Conn, now_us: u64, bytes: usize) {
        conn.advance(now_us, bytes);
    }

    fn is_over(&self, conn: &Conn) -> bool {
        conn.is_over()
    }

    fn deadline(&self, conn: &Conn) -> u64 {
        conn.deadline()
    }

    fn expire(&mut self, conn: &mut Conn, now_us: u64) {
        conn.expire(now_us);
    }

    fn closed(&mut self, conn: Conn) {
        self.closed(conn);
    }

    fn tick(&mut self, now_us: u64, wall: Duration) -> u64 {
        self.set_wall_time(now_us, wall.as_millis() as u64);
        self.tick(now_us)
    }

    fn datagram(&mut self, now_us: u64, bytes: &[u8], out: &mut Vec<u8>) {
        self.datagram(now_us, bytes, out);
    }
}
