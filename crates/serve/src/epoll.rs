//! The event loop: one thread, epoll by mio.
//!
//! ```text
//!   listener ──► Service::accept ──► client: a socket and the service's connection
//!   readable ──► bytes ──► receive; what it does not take waits in `rest`, and the socket with it
//!   outputs  ──► writev ──► advance; a full socket: wait until it is writable
//!   over     ──► shutdown, then drop what still comes until the client's end or LINGER
//!   UDP      ──► Service::datagram, one in, at most one out
//!   SIGINT, SIGTERM ──► a pipe ──► the loop ends, its sockets with it
//! ```
//! Times are microseconds since the loop began. Deadlines are looked at for all clients at once,
//! at least every [`SCAN_US_MAX`] while there are any.

mod client;

use crate::Service;
use client::{Client, Fate};
use mio::net::{TcpListener, UdpSocket, UnixStream};
use mio::{Events, Interest, Poll, Token};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

/// Slices that are sent by one system call.
pub(crate) const SLICES: usize = 8;
/// Longest between two looks at the deadlines.
const SCAN_US_MAX: u64 = 1_000_000;
/// Shortest between two of them.
const SCAN_US_MIN: u64 = 50_000;
/// How long what a client still sends is dropped after the server's end.
const LINGER_US: u64 = 2_000_000;
/// Bytes read by one system call.
const READ_BYTES: usize = 65_536;
/// Rounds of reading and sending that a client has before the others have their turn.
const ROUNDS_MAX: usize = 32;
/// New clients that are taken, and datagrams that are answered, before the others have theirs.
const ACCEPTS_MAX: usize = 64;
const DATAGRAMS_MAX: usize = 64;

const LISTENER: Token = Token(usize::MAX - 1);
const DATAGRAMS: Token = Token(usize::MAX - 2);
const SIGNALS: Token = Token(usize::MAX - 3);

/// Sockets that are bound, ready for [`Loop::run`].
pub struct Loop {
    poll: Poll,
    listener: TcpListener,
    datagrams: Option<UdpSocket>,
    _signals: UnixStream,
    began: Instant,
}

impl Loop {
    /// Listens on an address for streams, and if `with_datagrams` for datagrams too. SIGINT and
    /// SIGTERM end the loop from now on.
    pub fn new(address: SocketAddr, with_datagrams: bool) -> io::Result<Loop> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(address)?;
        let registry = poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        let mut datagrams = None;
        if with_datagrams {
            // The same port, also where the system chose it.
            let socket = datagrams.insert(UdpSocket::bind(listener.local_addr()?)?);
            registry.register(socket, DATAGRAMS, Interest::READABLE)?;
        }
        let (signals, told) = std::os::unix::net::UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::low_level::pipe::register(signal, told.try_clone()?)?;
        }
        signals.set_nonblocking(true)?;
        let mut signals = UnixStream::from_std(signals);
        registry.register(&mut signals, SIGNALS, Interest::READABLE)?;
        Ok(Loop {
            poll,
            listener,
            datagrams,
            _signals: signals,
            began: Instant::now(),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until a signal ends it.
    pub fn run(mut self, service: &mut impl Service) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut clients = Clients::default();
        let mut buffer = vec![0; READ_BYTES];
        let (mut scan_us, mut tick_us) = (u64::MAX, 0);
        // Whether there may be more of them; events say so once.
        let (mut are_coming, mut has_datagrams) = (false, false);
        loop {
            let now_us = self.now_us();
            if now_us >= tick_us {
                let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                tick_us = service.tick(now_us, wall.unwrap_or_default());
            }
            if now_us >= scan_us {
                scan_us = clients.scan(service, now_us, &mut buffer);
            }
            // Datagrams and new clients may bring what a tick or a scan is for.
            let wake_us = scan_us.min(tick_us).min(now_us + SCAN_US_MAX);
            let patience = match are_coming || has_datagrams || clients.are_waiting() {
                true => Duration::ZERO,
                false => Duration::from_micros(wake_us - now_us),
            };
            match self.poll.poll(&mut events, Some(patience)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            let now_us = self.now_us();
            clients.go_on(service, now_us, &mut buffer);
            for event in &events {
                match event.token() {
                    SIGNALS => return Ok(()),
                    LISTENER => are_coming = true,
                    DATAGRAMS => has_datagrams = true,
                    Token(at) => {
                        clients.readable(at, event.is_readable() || event.is_read_closed());
                        clients.drive(at, service, now_us, &mut buffer);
                    }
                }
            }
            if are_coming {
                are_coming = self.accept(service, &mut clients, now_us, &mut buffer);
            }
            if has_datagrams {
                has_datagrams = self.answer(service, now_us, &mut buffer);
            }
            if clients.count > 0 {
                scan_us = scan_us.min(now_us + SCAN_US_MAX);
            }
            tick_us = tick_us.min(now_us + SCAN_US_MAX);
        }
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Takes new clients; whether more may be there.
    fn accept<S: Service>(
        &self,
        service: &mut S,
        clients: &mut Clients<S::Conn>,
        now_us: u64,
        buffer: &mut [u8],
    ) -> bool {
        for _ in 0..ACCEPTS_MAX {
            let mut socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return false,
                    // The client has gone again.
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => continue,
                    // No descriptors left, or the like: those who are served matter more. Whoever
                    // waits is taken when another one comes.
                    _ => {
                        eprintln!("accept: {error}");
                        return false;
                    }
                },
            };
            // Without it a reply of two segments waits for the client's delayed acknowledgement.
            let _ = socket.set_nodelay(true);
            match service.accept(now_us) {
                None => {
                    let _ = socket.write(S::REFUSAL);
                }
                Some(conn) => {
                    let at = clients.place();
                    let all = Interest::READABLE | Interest::WRITABLE;
                    let registry = self.poll.registry();
                    if let Err(error) = registry.register(&mut socket, Token(at), all) {
                        eprintln!("accept: {error}");
                        service.closed(conn);
                        clients.free.push(at);
                        continue;
                    }
                    clients.enter(at, Client::new(socket, conn));
                    clients.drive(at, service, now_us, buffer);
                }
            }
        }
        true
    }

    /// Answers datagrams; whether more may be there.
    fn answer(&self, service: &mut impl Service, now_us: u64, buffer: &mut [u8]) -> bool {
        let Some(socket) = &self.datagrams else {
            return false;
        };
        let mut out = Vec::new();
        for _ in 0..DATAGRAMS_MAX {
            match socket.recv_from(buffer) {
                Ok((bytes, from)) => {
                    out.clear();
                    service.datagram(now_us, &buffer[..bytes], &mut out);
                    if !out.is_empty()
                        && let Err(error) = socket.send_to(&out, from)
                        && error.kind() != ErrorKind::WouldBlock
                    {
                        eprintln!("answer to {from}: {error}");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                // What a client's host said of an earlier answer.
                Err(_) => {}
            }
        }
        true
    }
}

/// The clients, by the places that are their tokens.
struct Clients<C> {
    all: Vec<Option<Client<C>>>,
    free: Vec<usize>,
    /// Those who have had their turn and have more to do.
    waiting: Vec<usize>,
    count: usize,
}

impl<C> Default for Clients<C> {
    fn default() -> Self {
        Clients {
            all: Vec::new(),
            free: Vec::new(),
            waiting: Vec::new(),
            count: 0,
        }
    }
}

impl<C> Clients<C> {
    fn place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        })
    }

    fn enter(&mut self, at: usize, client: Client<C>) {
        self.all[at] = Some(client);
        self.count += 1;
    }

    fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn readable(&mut self, at: usize, is_readable: bool) {
        if let Some(Some(client)) = self.all.get_mut(at) {
            client.is_readable |= is_readable;
        }
    }

    /// Moves a client's bytes as far as they go.
    fn drive<S: Service<Conn = C>>(
        &mut self,
        at: usize,
        service: &mut S,
        now_us: u64,
        buffer: &mut [u8],
    ) {
        let Some(Some(client)) = self.all.get_mut(at) else {
            return;
        };
        match client.drive(service, now_us, buffer) {
            Fate::Waits => {}
            Fate::HasMore => {
                if !std::mem::replace(&mut client.has_more, true) {
                    self.waiting.push(at);
                }
            }
            Fate::Over => {
                if let Some(client) = self.all[at].take() {
                    service.closed(client.conn);
                }
                self.count -= 1;
                self.free.push(at);
            }
        }
    }

    fn go_on<S: Service<Conn = C>>(&mut self, service: &mut S, now_us: u64, buffer: &mut [u8]) {
        for at in std::mem::take(&mut self.waiting) {
            // Its place may be another's by now, who does not mind.
            if let Some(Some(client)) = self.all.get_mut(at) {
                client.has_more = false;
            }
            self.drive(at, service, now_us, buffer);
        }
    }

    /// Ends whose time has come; says when to look again.
    fn scan<S: Service<Conn = C>>(
        &mut self,
        service: &mut S,
        now_us: u64,
        buffer: &mut [u8],
    ) -> u64 {
        let mut next_us = u64::MAX;
        for at in 0..self.all.len() {
            if let Some(client) = &mut self.all[at]
                && client.deadline(service) <= now_us
            {
                client.expire(service, now_us);
                self.drive(at, service, now_us, buffer);
            }
            if let Some(client) = &self.all[at] {
                next_us = next_us.min(client.deadline(service));
            }
        }
        match self.count {
            0 => u64::MAX,
            _ => next_us.clamp(now_us + SCAN_US_MIN, now_us + SCAN_US_MAX),
        }
    }
}
