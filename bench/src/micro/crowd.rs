//! One busy connection among many idle ones. The serving end waits for all of them by
//! epoll (mio), as servers do; the driving end opens them one by one, and each talks
//! until it has had its chance of rings, so that idle means idle on the fast path.

use super::wire::{Conn, Talker, Wire};
use anyhow::{Context, Result, bail, ensure};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};

/// Round trips of a connection before it is left alone.
const ROUNDS: usize = 8;
const LISTENER: Token = Token(usize::MAX - 1);
/// Descriptors that each process needs besides its connections.
const DESCRIPTORS_BESIDE: u64 = 256;

/// Sends back messages of `size` bytes on any number of connections.
pub fn serve(at: &str, size: usize) -> Result<()> {
    raise_limit(u64::MAX)?;
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::bind(at.parse().context("an address and a port")?)?;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut streams: BTreeMap<Token, TcpStream> = BTreeMap::new();
    let mut events = Events::with_capacity(1024);
    let mut buffer = vec![0u8; size];
    let mut next = 0;
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        }
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    let token = Token(next);
                    next += 1;
                    poll.registry()
                        .register(&mut stream, token, Interest::READABLE)?;
                    streams.insert(token, stream);
                }
            } else if let Some(stream) = streams.get_mut(&event.token())
                && !answer(stream, &mut buffer)?
            {
                streams.remove(&event.token());
            }
        }
    }
}

/// Answers until nothing is left to read; false at the end. Messages are small enough
/// to come and go whole.
fn answer(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<bool> {
    loop {
        match stream.read(buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => stream.write_all(&buffer[..count])?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens `count` connections that have talked.
pub fn idle(wire: Wire, at: &str, size: usize, count: usize) -> Result<Vec<Conn>> {
    raise_limit(count as u64 + DESCRIPTORS_BESIDE)?;
    let mut message = vec![7u8; size];
    let mut open = || -> Result<Conn> {
        let mut conn = wire.reach(at)?;
        for _ in 0..ROUNDS {
            conn.send(&message)?;
            ensure!(conn.receive(&mut message)?, "the serving end is gone");
        }
        Ok(conn)
    };
    (0..count).map(|_| open()).collect()
}

/// Raises the limit of descriptors to `wanted`, or to what is allowed.
fn raise_limit(wanted: u64) -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    let wanted = wanted.min(maximum);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            maximum: limit.maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            bail!("raise the limit of descriptors to {wanted}: {error}");
        }
    }
    Ok(())
}
