//! The server as whoever has the sockets runs it.

use crate::{Conn, Refused, Server};
use core::time::Duration;
use fordway_serve::Service;

impl<'a> Service for Server<'a> {
    type Conn = Conn<'a>;
    const REFUSAL: &'static [u8] = Refused::REPLY;

    fn accept(&mut self, now_us: u64) -> Option<Conn<'a>> {
        self.accept(now_us).ok()
    }

    fn receive(&mut self, conn: &mut Conn<'a>, now_us: u64, bytes: &[u8]) -> usize {
        conn.receive(self, now_us, bytes)
    }

    fn end(&mut self, conn: &mut Conn<'a>) {
        conn.end();
    }

    fn outputs<'c>(&self, conn: &'c Conn<'a>) -> impl Iterator<Item = &'c [u8]> {
        conn.outputs()
    }

    fn advance(&mut self, conn: &mut Conn<'a>, now_us: u64, bytes: usize) {
        conn.advance(now_us, bytes);
    }

    fn is_over(&self, conn: &Conn<'a>) -> bool {
        conn.is_over()
    }

    fn deadline(&self, conn: &Conn<'a>) -> u64 {
        conn.deadline()
    }

    fn expire(&mut self, conn: &mut Conn<'a>, now_us: u64) {
        conn.expire(self, now_us);
    }

    fn closed(&mut self, conn: Conn<'a>) {
        self.closed(conn);
    }

    fn tick(&mut self, now_us: u64, wall: Duration) -> u64 {
        self.set_wall_time(wall.as_secs());
        // When the next second begins.
        now_us + 1_000_000 - u64::from(wall.subsec_micros())
    }
}
