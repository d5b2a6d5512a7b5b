//! A plain client of memcached: one get in flight on each of some sockets, all
//! waited for by epoll (mio). Every answer is compared.
//!
//! By UDP a request is a datagram, and so is an answer of this size; each begins with a frame (memcached's
//! doc/protocol.txt, "UDP protocol").

use super::end::{Figures, Times};
use super::measure::{Measure, Measured};
use anyhow::{Context, Result, ensure};
use mio::net::{TcpStream, UdpSocket};
use mio::{Events, Interest, Poll, Token};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 100;
const REQUEST: &[u8] = b"get fordway\r\n";
/// Number of the request, of the datagram, how many there are, nothing: the same in the answer.
const FRAME: &[u8] = &[0, 1, 0, 0, 0, 1, 0, 0];
/// Requests of each connection before anything is counted.
const WARM_UP_ROUNDS: u64 = 20;
/// How long memcached may take to start.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long a first answer by UDP may take.
const COMES_LIMIT: Duration = Duration::from_millis(250);

/// What a connection, or a socket of datagrams, does.
enum Link {
    Stream(TcpStream),
    Datagrams(UdpSocket),
}

/// A link and what has come of the answer.
struct Asker {
    link: Link,
    answer: Vec<u8>,
    asked_at: Instant,
}

/// Asks for so long.
pub fn drive(at: &str, links: usize, datagrams: bool, measure: &Measure) -> Result<Figures> {
    let address: SocketAddr = at.parse().context("an address and a port")?;
    let frame = if datagrams { FRAME } else { &[] };
    let value = "v".repeat(VALUE_BYTES);
    let store = format!("set fordway 0 0 {VALUE_BYTES}\r\n{value}\r\n");
    let store = [frame, store.as_bytes()].concat();
    let mut stored = [frame, &b"STORED\r\n"[..]].concat();
    let wanted = stored.clone();
    match datagrams {
        true => store_by_datagrams(address, &store, &mut stored)?,
        false => {
            let mut stream = std::net::TcpStream::connect(address)?;
            stream.write_all(&store)?;
            stream.read_exact(&mut stored)?;
        }
    }
    ensure!(stored == wanted, "memcached does not store");
    let request = [frame, REQUEST].concat();
    let expected = format!("VALUE fordway 0 {VALUE_BYTES}\r\n{value}\r\nEND\r\n");
    let expected = [frame, expected.as_bytes()].concat();
    let mut poll = Poll::new()?;
    let mut askers = Vec::new();
    for number in 0..links {
        let mut link = Link::reach(address, datagrams)?;
        link.register(&poll, Token(number))?;
        let mut asker = Asker {
            link,
            answer: Vec::with_capacity(expected.len()),
            asked_at: Instant::now(),
        };
        asker.ask(&request)?;
        askers.push(asker);
    }
    let mut events = Events::with_capacity(links);
    let mut times = Times::new()?;
    let (mut rounds, warm_up) = (0u64, WARM_UP_ROUNDS * links as u64);
    let mut measured: Option<Measured> = None;
    while measured.as_ref().is_none_or(Measured::goes_on) {
        match poll.poll(&mut events, Some(Duration::from_secs(10))) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        }
        ensure!(!events.is_empty(), "memcached does not answer");
        for event in &events {
            let asker = &mut askers[event.token().0];
            while asker.has_answer(&expected)? {
                rounds += 1;
                if rounds == warm_up {
                    measured = Some(measure.begin()?);
                } else if rounds > warm_up {
                    times.add(asker.asked_at.elapsed().as_nanos() as u64);
                }
                asker.ask(&request)?;
            }
        }
    }
    let measured = measured.context("no rounds")?;
    measured.end(times.figures(VALUE_BYTES))
}

/// Until it is there, and answers.
fn store_by_datagrams(address: SocketAddr, store: &[u8], stored: &mut [u8]) -> Result<()> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(COMES_LIMIT))?;
    let until = Instant::now() + START_LIMIT;
    loop {
        let answer = socket.send(store).and_then(|_| socket.recv(stored));
        match answer {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > until => return Err(error).context("reach memcached"),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

impl Link {
    fn reach(address: SocketAddr, datagrams: bool) -> Result<Link> {
        Ok(if datagrams {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
            socket.connect(address)?;
            Link::Datagrams(socket)
        } else {
            let stream = std::net::TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Link::Stream(TcpStream::from_std(stream))
        })
    }

    fn register(&mut self, poll: &Poll, token: Token) -> io::Result<()> {
        let registry = poll.registry();
        match self {
            Link::Stream(stream) => registry.register(stream, token, Interest::READABLE),
            Link::Datagrams(socket) => registry.register(socket, token, Interest::READABLE),
        }
    }
}

impl Asker {
    fn ask(&mut self, request: &[u8]) -> Result<()> {
        self.answer.clear();
        self.asked_at = Instant::now();
        match &mut self.link {
            Link::Stream(stream) => stream.write_all(request)?,
            Link::Datagrams(socket) => drop(socket.send(request)?),
        }
        Ok(())
    }

    /// Reads what is there; true once the answer is whole.
    fn has_answer(&mut self, expected: &[u8]) -> Result<bool> {
        let mut buffer = [0u8; 512];
        loop {
            let read = match &mut self.link {
                Link::Stream(stream) => stream.read(&mut buffer),
                Link::Datagrams(socket) => socket.recv(&mut buffer),
            };
            match read {
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
