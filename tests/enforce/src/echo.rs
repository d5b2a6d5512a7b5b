//! An echo for thousands of connections in one thread, edge-triggered (mio calls the C
//! library, as programs do).

use anyhow::Result;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv6Addr;

const LISTENER: Token = Token(0);

/// Until it is ended.
pub fn run(port: u16) -> Result<()> {
    fordway_platform::process::raise_descriptor_limit();
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port).into())?;
    let registry = poll.registry().try_clone()?;
    registry.register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut connections: HashMap<Token, TcpStream> = HashMap::new();
    let mut next = 1;
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        }
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    let token = Token(next);
                    next += 1;
                    registry.register(&mut stream, token, Interest::READABLE)?;
                    connections.insert(token, stream);
                }
            } else if let Some(stream) = connections.get_mut(&event.token())
                && !answer(stream)
            {
                connections.remove(&event.token());
            }
        }
    }
}

/// Until nothing moves any more; false: it is over. Messages are small: there is room.
fn answer(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => {
                if stream.write_all(&buffer[..count]).is_err() {
                    return false;
                }
            }
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}
