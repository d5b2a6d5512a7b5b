//! The key-value server of this image, over TCP and UDP.

use crate::net::Net;
use crate::serve::{Service, Serving};
use alloc::vec;
use alloc::vec::Vec;
use fordway_kv::{Config, Conn, Refused, Server};
use fordway_netstack::Error;

pub const PORT: u16 = 6379;

pub struct Kv(Server);

impl Kv {
    pub fn new(config: Config, now_us: u64) -> Kv {
        Kv(Server::new(config, now_us))
    }
}

impl Service for Kv {
    type Conn = Conn;
    const REFUSAL: &'static [u8] = Refused::REPLY;

    fn accept(&mut self, now_us: u64) -> Option<Conn> {
        self.0.accept(now_us).ok()
    }

    fn closed(&mut self, conn: Conn) {
        self.0.closed(conn);
    }

    fn receive(&mut self, conn: &mut Conn, now_us: u64, bytes: &[u8]) -> usize {
        conn.receive(&mut self.0, now_us, bytes)
    }

    fn output<'a>(&self, conn: &'a Conn) -> &'a [u8] {
        conn.output()
    }

    fn advance(&self, conn: &mut Conn, now_us: u64, bytes: usize) {
        conn.advance(now_us, bytes);
    }

    fn end(&self, conn: &mut Conn) {
        conn.end();
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

    fn tick(&mut self, now_us: u64, wall_ns: u64) {
        self.0.set_wall_time(now_us, wall_ns / 1_000_000);
        self.0.tick(now_us);
    }
}

/// One command in each datagram, one reply to each.
pub async fn datagrams(serving: Serving<Kv>, port: u16) -> Result<(), Error> {
    let (id, signal) = Net::bind(&serving.net, port)?;
    let mut request = vec![0; 65_507];
    let mut reply = Vec::new();
    loop {
        let received = serving.net.stack().udp_receive(id, &mut request);
        match received {
            Ok((len, _, from, to)) => {
                reply.clear();
                let mut server = serving.server.borrow_mut();
                server
                    .0
                    .datagram(serving.timers.now_us(), &request[..len], &mut reply);
                if !reply.is_empty() {
                    let mut stack = serving.net.stack();
                    let _ = stack.udp_send_from(id, Some(to), from, &reply);
                }
            }
            Err(Error::WouldBlock) => signal.wait().await,
            Err(error) => return Err(error),
        }
    }
}
