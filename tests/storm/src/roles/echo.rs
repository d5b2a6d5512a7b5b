//! An echo for thousands of connections in one thread, edge-triggered (mio).

use super::say;
use anyhow::Result;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;

const LISTENER: Token = Token(0);
const BUFFER_BYTES: usize = 64 * 1024;

struct Connection {
    stream: TcpStream,
    /// Read and not yet sent back.
    pending: Vec<u8>,
}

pub fn run(ip: Ipv4Addr, port: u16) -> Result<()> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut listener = TcpListener::bind((ip, port).into())?;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    say(format_args!("listening {}", listener.local_addr()?.port()))?;
    let mut connections = HashMap::new();
    let mut next = 1;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        }
        for event in &events {
            if event.token() == LISTENER {
                while let Some(mut stream) = accept(&listener)? {
                    let token = Token(next);
                    next += 1;
                    let both = Interest::READABLE | Interest::WRITABLE;
                    poll.registry().register(&mut stream, token, both)?;
                    let pending = Vec::new();
                    connections.insert(token, Connection { stream, pending });
                }
            } else if let Some(connection) = connections.get_mut(&event.token())
                && !connection.go_on(&mut buffer)
            {
                connections.remove(&event.token());
            }
        }
    }
}

fn accept(listener: &TcpListener) -> Result<Option<TcpStream>> {
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Connection {
    /// Until nothing moves any more; false: it is over.
    fn go_on(&mut self, buffer: &mut [u8]) -> bool {
        loop {
            while !self.pending.is_empty() {
                match self.stream.write(&self.pending) {
                    Ok(count) => drop(self.pending.drain(..count)),
                    Err(error) => return error.kind() == ErrorKind::WouldBlock,
                }
            }
            match self.stream.read(buffer) {
                Ok(0) => return false,
                Ok(count) => self.pending.extend_from_slice(&buffer[..count]),
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }
}
