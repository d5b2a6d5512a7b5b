//! What all clients share: the store, limits, counts, the clock.

use crate::commands;
use crate::conn::{Conn, Session};
use crate::held::Held;
use crate::parser::{Bounds, Parser, Step};
use crate::reply::Reply;
use crate::store::Store;
use alloc::vec::Vec;

/// How the server is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// What keys and values may take; the least recently used go first.
    pub memory_bytes_max: usize,
    /// Clients at a time.
    pub clients_max: usize,
    /// Arguments of one command.
    pub arguments_max: usize,
    /// Bytes of one argument.
    pub argument_bytes_max: usize,
    /// Bytes of one command in all.
    pub command_bytes_max: usize,
    /// Bytes of one reply; a command that would give more is refused.
    pub reply_bytes_max: usize,
    /// Buffers of all clients together; one may have half of what the others leave.
    pub client_bytes_max: usize,
    /// A client that neither sends nor takes anything for so long is closed; 0: never.
    pub idle_us_max: u64,
    /// Keys the hashes. Has to be random, and a secret: clients choose the keys.
    pub hash_seed: [u64; 2],
}

impl Default for Config {
    fn default() -> Config {
        Config {
            memory_bytes_max: 64 << 20,
            clients_max: 10_000,
            arguments_max: 1 << 20,
            argument_bytes_max: 16 << 20,
            command_bytes_max: 64 << 20,
            reply_bytes_max: 64 << 20,
            client_bytes_max: 256 << 20,
            idle_us_max: 0,
            hash_seed: [0; 2],
        }
    }
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Clients accepted.
    pub accepted: u64,
    /// Clients refused, because there were too many.
    pub refused: u64,
    /// Commands carried out, also with an error.
    pub commands: u64,
    /// Errors told to clients.
    pub errors: u64,
    /// Reads that found their key.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
}

/// No room for another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl Refused {
    /// What to tell the client before closing.
    pub const REPLY: &'static [u8] = b"-ERR max number of clients reached\r\n";
}

/// See the crate's description.
pub struct Server {
    pub(crate) config: Config,
    pub(crate) bounds: Bounds,
    pub(crate) store: Store,
    pub(crate) stats: Stats,
    pub(crate) clients: usize,
    held: Held,
    pub(crate) started_ms: u64,
    /// Added to the caller's clock it is the time of day, in milliseconds since 1970.
    pub(crate) wall_offset_ms: u64,
    next_client: u64,
    ticked_us: u64,
    /// For datagrams.
    parser: Parser,
}

/// Of a UDP datagram over IPv4 (RFC 768).
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// How often a tick is wanted while keys have times.
const TICK_US: u64 = 10_000;
/// Entries looked at for each such time that has passed, and at most by one tick.
const TICK_ENTRIES: u64 = 64;
const TICK_ENTRIES_MAX: u64 = 8192;
pub(crate) const US_PER_MS: u64 = 1000;

impl Server {
    /// An empty store. Times are microseconds of a clock that only goes forward.
    pub fn new(config: Config, now_us: u64) -> Server {
        Server {
            bounds: Bounds {
                arguments_max: config.arguments_max,
                argument_bytes_max: config.argument_bytes_max,
                command_bytes_max: config.command_bytes_max,
            },
            store: Store::new(config.memory_bytes_max, config.hash_seed),
            stats: Stats::default(),
            clients: 0,
            held: Held::new(config.client_bytes_max),
            started_ms: now_us / US_PER_MS,
            wall_offset_ms: 0,
            next_client: 0,
            ticked_us: now_us,
            parser: Parser::default(),
            config,
        }
    }

    /// Tells the time of day, for EXPIREAT and its like: milliseconds since 1970 at `now_us`.
    pub fn set_wall_time(&mut self, now_us: u64, unix_ms: u64) {
        self.wall_offset_ms = unix_ms.saturating_sub(now_us / US_PER_MS);
    }

    /// A new client, unless there are too many: then send [`Refused::REPLY`] and close.
    pub fn accept(&mut self, now_us: u64) -> Result<Conn, Refused> {
        if self.clients >= self.config.clients_max {
            self.stats.refused += 1;
            return Err(Refused);
        }
        self.clients += 1;
        self.stats.accepted += 1;
        self.next_client += 1;
        let idle_us_max = self.config.idle_us_max;
        Ok(Conn::new(
            self.next_client,
            self.held.part(),
            idle_us_max,
            now_us,
        ))
    }

    /// Takes a client back, however it ended.
    pub fn closed(&mut self, conn: Conn) {
        self.clients -= 1;
        drop(conn);
    }

    /// Clients connected now.
    pub fn clients(&self) -> usize {
        self.clients
    }

    /// What has happened so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Keys, those whose time is over and that nobody has asked for since included.
    pub fn keys(&self) -> usize {
        self.store.len()
    }

    /// What keys and values take now.
    pub fn memory_bytes(&self) -> usize {
        self.store.bytes()
    }

    /// What the buffers of all clients take now.
    pub fn client_bytes(&self) -> usize {
        self.held.bytes()
    }

    /// Carries out the one command of a datagram and appends its reply. A command that is not
    /// whole gets an error; what follows the first is not looked at. An empty one, no reply.
    pub fn datagram(&mut self, now_us: u64, bytes: &[u8], out: &mut Vec<u8>) {
        let mut parser = core::mem::take(&mut self.parser);
        parser.clear();
        let mut session = Session::of_datagram();
        match parser.feed(bytes, &self.bounds) {
            Step::Command(_) => {
                let arguments = parser.arguments(bytes);
                let now_ms = now_us / US_PER_MS;
                commands::run(
                    self,
                    &mut session,
                    now_ms,
                    arguments,
                    out,
                    DATAGRAM_BYTES_MAX,
                );
            }
            Step::Partial if bytes.is_empty() => {}
            step => {
                self.stats.errors += 1;
                let mut reply = Reply::new(out, false, DATAGRAM_BYTES_MAX);
                match step {
                    Step::Broken(fault) => reply.error(&fault.text()),
                    _ => reply.error("ERR Protocol error: a datagram holds one whole command"),
                }
            }
        }
        self.parser = parser;
    }

    /// Drops some keys whose time is over, and says when to call again; `u64::MAX` when no key
    /// has a time. Nothing depends on it but the memory.
    pub fn tick(&mut self, now_us: u64) -> u64 {
        let passed = now_us.saturating_sub(self.ticked_us) / TICK_US;
        let count = (passed.max(1).saturating_mul(TICK_ENTRIES)).min(TICK_ENTRIES_MAX);
        self.ticked_us = now_us;
        self.store.expire_some(now_us / US_PER_MS, count as usize);
        match self.store.volatile() {
            0 => u64::MAX,
            _ => now_us.saturating_add(TICK_US),
        }
    }
}
