//! A plain client of memcached: one get in flight on each of some connections, all
//! waited for by epoll (mio). Every answer is compared.

use super::end::{Figures, Times};
use anyhow::{Context, Result, ensure};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 100;
const REQUEST: &[u8] = b"get fordway\r\n";
/// Requests of each connection before anything is counted.
const WARM_UP_ROUNDS: u64 = 20;

/// A connection and what has come of the answer.
struct Asker {
    stream: TcpStream,
    answer: Vec<u8>,
    asked_at: Instant,
}

/// Asks for so long.
pub fn drive(at: &str, connections: usize, length: Duration) -> Result<Figures> {
    let address: SocketAddr = at.parse().context("an address and a port")?;
    let value = "v".repeat(VALUE_BYTES);
    store(address, &value)?;
    let expected = format!("VALUE fordway 0 {VALUE_BYTES}\r\n{value}\r\nEND\r\n").into_bytes();
    let mut poll = Poll::new()?;
    let mut askers = Vec::new();
    for number in 0..connections {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        poll.registry()
            .register(&mut stream, Token(number), Interest::READABLE)?;
        let mut asker = Asker {
            stream,
            answer: Vec::with_capacity(expected.len()),
            asked_at: Instant::now(),
        };
        asker.ask()?;
        askers.push(asker);
    }
    let mut events = Events::with_capacity(connections);
    let mut times = Times::new()?;
    let (mut rounds, mut start) = (0u64, Instant::now());
    while rounds < WARM_UP_ROUNDS * connections as u64 || start.elapsed() < length {
        match poll.poll(&mut events, Some(Duration::from_secs(10))) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        }
        ensure!(!events.is_empty(), "memcached does not answer");
        for event in &events {
            let asker = &mut askers[event.token().0];
            while asker.has_answer(&expected)? {
                rounds += 1;
                if rounds == WARM_UP_ROUNDS * connections as u64 {
                    start = Instant::now();
                } else if rounds > WARM_UP_ROUNDS * connections as u64 {
                    times.add(asker.asked_at.elapsed().as_nanos() as u64);
                }
                asker.ask()?;
            }
        }
    }
    Ok(Figures {
        seconds: start.elapsed().as_secs_f64(),
        ..times.figures(VALUE_BYTES)
    })
}

fn store(address: SocketAddr, value: &str) -> Result<()> {
    let mut stream = std::net::TcpStream::connect(address)?;
    let request = format!("set fordway 0 0 {VALUE_BYTES}\r\n{value}\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = [0u8; 8];
    stream.read_exact(&mut answer)?;
    ensure!(&answer == b"STORED\r\n", "memcached does not store");
    Ok(())
}

impl Asker {
    fn ask(&mut self) -> Result<()> {
        self.answer.clear();
        self.asked_at = Instant::now();
        Ok(self.stream.write_all(REQUEST)?)
    }

    /// Reads what is there; true once the answer is whole.
    fn has_answer(&mut self, expected: &[u8]) -> Result<bool> {
        let mut buffer = [0u8; 512];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => anyhow::bail!("memcached closed a connection"),
                Ok(count) => self.answer.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            if self.answer.len() >= expected.len() {
                ensure!(self.answer == expected, "memcached answers something else");
                return Ok(true);
            }
        }
    }
}
