//! How the server's bytes go over a connection that may have rings.

use super::Conn;
use crate::serve::{self, Serving, Way};
use alloc::vec::Vec;
use core::cell::RefMut;
use fordway_netstack::Error;
use fordway_serve::Service;
use fordway_sockets::ready::Want;

/// By rings, while there are some.
struct Ringed<'a> {
    conn: &'a Conn,
    scratch: RefMut<'a, Vec<u8>>,
}

impl Way for Ringed<'_> {
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        self.conn.send(bytes)
    }

    fn receive(&mut self, read: impl FnOnce(&[u8]) -> usize) -> Result<usize, Error> {
        self.conn.receive(&mut self.scratch, read)
    }

    fn close(&mut self) -> bool {
        self.conn.close()
    }

    fn abort(&mut self) {
        self.conn.abort();
    }
}

/// As [`serve::drive`], with what rings need besides.
pub fn drive<S: Service>(serving: &Serving<S>, conn: &Conn, client: &mut S::Conn) -> bool {
    if conn.begin_turn().is_err() {
        conn.abort();
        return false;
    }
    let scratch = serving.guests.scratch();
    let goes_on = serve::drive(serving, &mut Ringed { conn, scratch }, client);
    if goes_on {
        let is_full = !serving.server.borrow().output(client).is_empty();
        conn.end_turn(if is_full { Want::Room } else { Want::Bytes });
    }
    goes_on
}
