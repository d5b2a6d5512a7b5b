//! One client: commands out of its bytes, replies into its output.

use crate::commands;
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
    idle_us_max: u64,
    since_us: u64,
}

impl Conn {
    pub(crate) fn new(id: u64, idle_us_max: u64, now_us: u64) -> Conn {
        Conn {
            session: Session {
                id,
                ..Session::of_datagram()
            },
            parser: Parser::default(),
            partial: Vec::new(),
            out: Vec::new(),
            out_taken: 0,
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
            if self.out.len() - self.out_taken >= OUTPUT_BYTES_MAX {
                return taken;
            }
            let rest = &bytes[taken..];
            if !self.partial.is_empty() {
                taken += self.read_on(server, now_ms, rest);
                continue;
            }
            match self.step(server, now_ms, rest) {
                Some(length) => taken += length,
                None => {
                    self.partial.extend_from_slice(rest);
                    return bytes.len();
                }
            }
        }
        bytes.len()
    }

    /// Carries out the command at the beginning of `bytes` if it is whole; gives its length.
    fn step(&mut self, server: &mut Server, now_ms: u64, bytes: &[u8]) -> Option<usize> {
        match self.parser.feed(bytes, &server.bounds) {
            Step::Partial => None,
            Step::Command(length) => {
                let arguments = self.parser.arguments(bytes);
                commands::run(server, &mut self.session, now_ms, arguments, &mut self.out);
                self.parser.clear();
                Some(length)
            }
            Step::Broken(fault) => {
                server.stats.errors += 1;
                let mut reply = Reply {
                    out: &mut self.out,
                    is_resp3: false,
                };
                reply.error(&fault.text());
                self.session.is_closing = true;
                Some(bytes.len())
            }
        }
    }

    /// Reads on in a command whose beginning is in `partial`; gives how many bytes of `rest` are
    /// its own.
    fn read_on(&mut self, server: &mut Server, now_ms: u64, rest: &[u8]) -> usize {
        let mut command = core::mem::take(&mut self.partial);
        let before = command.len();
        // No more than is needed to see the end of a short command: what follows is read where
        // it lies.
        let wanted = self.parser.wanted(before).min(rest.len());
        command.extend_from_slice(&rest[..wanted]);
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
            self.out.clear();
            self.out_taken = 0;
        }
    }
}
