//! One client: its socket, and how far its bytes go.

use super::{LINGER_US, ROUNDS_MAX, SLICES};
use crate::Service;
use mio::net::TcpStream;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;

pub(crate) struct Client<C> {
    socket: TcpStream,
    pub conn: C,
    /// Read, and not taken by the service yet. While there is some nothing is read.
    rest: Vec<u8>,
    /// Whether the socket may have more; events say so once.
    pub is_readable: bool,
    /// In the list of those who have more to do.
    pub has_more: bool,
    has_ended: bool,
    /// We have ended; until then, what comes is dropped.
    lingers_until_us: Option<u64>,
}

pub(crate) enum Fate {
    /// For an event or its deadline.
    Waits,
    /// It has had its turn.
    HasMore,
    Over,
}

impl<C> Client<C> {
    pub fn new(socket: TcpStream, conn: C) -> Client<C> {
        Client {
            socket,
            conn,
            rest: Vec::new(),
            is_readable: true,
            has_more: false,
            has_ended: false,
            lingers_until_us: None,
        }
    }

    pub fn deadline<S: Service<Conn = C>>(&self, service: &S) -> u64 {
        self.lingers_until_us
            .unwrap_or_else(|| service.deadline(&self.conn))
    }

    pub fn expire<S: Service<Conn = C>>(&mut self, service: &mut S, now_us: u64) {
        match self.lingers_until_us {
            Some(_) => self.has_ended = true,
            None => service.expire(&mut self.conn, now_us),
        }
    }

    pub fn drive<S: Service<Conn = C>>(
        &mut self,
        service: &mut S,
        now_us: u64,
        buffer: &mut [u8],
    ) -> Fate {
        for _ in 0..ROUNDS_MAX {
            if self.lingers_until_us.is_none() {
                match self.send(service, now_us) {
                    Ok(()) => {}
                    Err(ErrorKind::WouldBlock) => return Fate::Waits,
                    Err(_) => return Fate::Over,
                }
                if service.is_over(&self.conn) {
                    if self.socket.shutdown(Shutdown::Write).is_err() {
                        return Fate::Over;
                    }
                    self.lingers_until_us = Some(now_us + LINGER_US);
                }
            }
            if self.lingers_until_us.is_some() {
                if self.has_ended {
                    return Fate::Over;
                }
                self.rest.clear();
            }
            if !self.rest.is_empty() {
                let taken = service.receive(&mut self.conn, now_us, &self.rest);
                self.rest.drain(..taken);
                continue;
            }
            if !self.is_readable {
                return Fate::Waits;
            }
            match self.socket.read(buffer) {
                Ok(0) => {
                    (self.has_ended, self.is_readable) = (true, false);
                    service.end(&mut self.conn);
                }
                Ok(_) if self.lingers_until_us.is_some() => {}
                Ok(bytes) => {
                    let taken = service.receive(&mut self.conn, now_us, &buffer[..bytes]);
                    self.rest.extend_from_slice(&buffer[taken..bytes]);
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => self.is_readable = false,
                    ErrorKind::Interrupted => {}
                    _ => return Fate::Over,
                },
            }
        }
        Fate::HasMore
    }

    /// Sends all there is; an error when the socket takes no more.
    fn send<S: Service<Conn = C>>(
        &mut self,
        service: &mut S,
        now_us: u64,
    ) -> Result<(), ErrorKind> {
        loop {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let filled = slices.iter_mut().zip(service.outputs(&self.conn));
            let count = filled
                .map(|(place, slice)| *place = IoSlice::new(slice))
                .count();
            if count == 0 {
                return Ok(());
            }
            match self.socket.write_vectored(&slices[..count]) {
                Ok(bytes) => service.advance(&mut self.conn, now_us, bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.kind()),
            }
        }
    }
}
