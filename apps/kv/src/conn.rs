//! One client: commands out of its bytes, replies into its output.

use crate::commands;
use crate::held::Part;
use crate::parser::{Parser, Step};
use crate::reply::Reply;
use crate::server::{Server, US_PER_MS};
use alloc::string::String;
use alloc::vec::Vec;

/// Output that may be queued before commands have to wait.
const OUTPUT_BYTES_MAX: usize = 262_144;
/// Buffers larger than this are given back when they are empty.
const BUFFER_BYTES_KEPT: usize = 65_536;

/// What a client has agreed on with the server.
pub(crate) struct Session {
    pub id: u64,
    pub is_resp3: bool,
    pub name: String,
    /// After the reply of this command.
    pub is_closing: bool,
}

impl Session {
    pub fn of_datagram() -> Session {
        Session {
            id: 0,
            is_resp3: false,
            name: String::new(),
            is_closing: false,
        }
    }
}

/// A client's connection. The caller moves the bytes:
///
/// 1. what arrives to [`Conn::receive`]; what it does not take stays with the caller, and is
///    given again after [`Conn::advance`];
/// 2. [`Conn::output`] to the socket, and what the socket took to [`Conn::advance`];
/// 3. when [`Conn::is_over`]: close, and [`Server::closed`];
/// 4. when [`Conn::deadline`] has come: [`Conn::expire`], then as after 1.
pub struct Conn {
    session: Session,
    parser: Parser,
    /// A command that is not whole.
    partial: Vec<u8>,
    out: Vec<u8>,
    out_taken: usize,
    /// What these buffers take.
    held: Part,
    idle_us_max: u64,
    since_us: u64,
}

impl Conn {
    pub(crate) fn new(id: u64, held: Part, idle_us_max: u64, now_us: u64) -> Conn {
        Conn {
            session: Session {
                id,
                ..Session::of_datagram()
            },
            parser: Parser::default(),
            partial: Vec::new(),
            out: Vec::new(),
            out_taken: 0,
            held,
            idle_us_max,
            since_us: now_us,
        }
    }

    /// Takes bytes of the client; says how many. The rest is to be given again after
    /// [`Conn::advance`].
    pub fn receive(&mut self, server: &mut Server, now_us: u64, bytes: &[u8]) -> usize {
        self.since_us = now_us;
        let now_ms = now_us / US_PER_MS;
        let mut taken = 0;
        while taken < bytes.len() && !self.session.is_closing {
            let waiting = self.output().len();
            if waiting != 0 && waiting >= OUTPUT_BYTES_MAX.min(self.held.allowed() / 2) {
                return taken;
            }
            let rest = &bytes[taken..];
            taken += match self.partial.is_empty() {
                false => self.read_on(server, now_ms, rest),
                true => self.step(server, now_ms, rest).unwrap_or_else(|| {
                    self.keep(rest);
                    rest.len()
                }),
            };
            self.parser.tidy(BUFFER_BYTES_KEPT);
            self.count();
            // Of its replies each was bounded when it was made.
            if self.held.own() - self.out.capacity() > self.held.allowed() {
                self.give_up(server);
            }
        }
        bytes.len()
    }

    /// Keeps bytes of a command that is not whole.
    fn keep(&mut self, bytes: &[u8]) {
        let known = self.parser.known();
        // One large argument: growing by doubling would copy it several times.
        if known > 2 * self.partial.capacity() && known <= self.held.allowed() {
            self.partial.reserve_exact(known - self.partial.len());
        }
        self.partial.extend_from_slice(bytes);
    }

    fn count(&mut self) {
        let buffers = self.partial.capacity() + self.out.capacity();
        self.held.set(buffers + self.parser.capacity_bytes());
    }

    /// The command that is coming is more than its part.
    fn give_up(&mut self, server: &mut Server) {
        server.stats.errors += 1;
        (self.partial, self.parser) = (Vec::new(), Parser::default());
        let mut reply = Reply::new(&mut self.out, false, 0);
        reply.error("OOM the clients' buffers are full");
        self.session.is_closing = true;
        self.count();
    }

    /// Carries out the command at the beginning of `bytes` if it is whole; gives its length.
    fn step(&mut self, server: &mut Server, now_ms: u64, bytes: &[u8]) -> Option<usize> {
        match self.parser.feed(bytes, &server.bounds) {
            Step::Partial => None,
            Step::Command(length) => {
                let arguments = self.parser.arguments(bytes);
                let out = &mut self.out;
                let room = self.held.allowed().saturating_sub(out.len());
                commands::run(server, &mut self.session, now_ms, arguments, out, room);
                self.parser.clear();
                Some(length)
            }
            Step::Broken(fault) => {
                server.stats.errors += 1;
                let mut reply = Reply::new(&mut self.out, false, 0);
                reply.error(&fault.text());
                self.session.is_closing = true;
                Some(bytes.len())
            }
        }
    }

    /// Reads on in a command whose beginning is in `partial`; gives how many bytes of `rest` are
    /// its own.
    fn read_on(&mut self, server: &mut Server, now_ms: u64, rest: &[u8]) -> usize {
        let before = self.partial.len();
        // No more than is needed to see the end of a short command: what follows is read where
        // it lies.
        let wanted = self.parser.wanted(before).min(rest.len());
        self.keep(&rest[..wanted]);
        let mut command = core::mem::take(&mut self.partial);
        match self.step(server, now_ms, &command) {
            None => {
                self.partial = command;
                wanted
            }
            Some(length) => {
                command.clear();
                if command.capacity() <= BUFFER_BYTES_KEPT {
                    self.partial = command;
                }
                length - before
            }
        }
    }

    /// The client sends no more.
    pub fn end(&mut self) {
        self.session.is_closing = true;
    }

    /// What is to be sent next; empty if there is nothing.
    pub fn output(&self) -> &[u8] {
        &self.out[self.out_taken..]
    }

    /// `bytes` of the output were taken.
    pub fn advance(&mut self, now_us: u64, bytes: usize) {
        self.since_us = now_us;
        self.out_taken += bytes;
        if self.out_taken >= self.out.len() {
            self.out_taken = 0;
            self.out.clear();
            if self.out.capacity() > BUFFER_BYTES_KEPT {
                self.out = Vec::new();
            }
            self.count();
        }
    }

    /// Whether all is sent and the connection is to be closed.
    pub fn is_over(&self) -> bool {
        self.session.is_closing && self.output().is_empty()
    }

    /// When the server's patience with a silent client ends; `u64::MAX`: never.
    pub fn deadline(&self) -> u64 {
        match self.idle_us_max {
            0 => u64::MAX,
            idle_us_max => self.since_us.saturating_add(idle_us_max),
        }
    }

    /// Ends the connection if the deadline has come.
    pub fn expire(&mut self, now_us: u64) {
        if now_us >= self.deadline() {
            self.session.is_closing = true;
            self.out = Vec::new();
            self.out_taken = 0;
            self.count();
        }
    }
}
