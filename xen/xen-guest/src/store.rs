//! XenStore: the tree of names through which domains find each other.
//!
//! Spoken directly over its ring of 1 KB each way, without a bus layer on top. One request is
//! under way at a time; its answer is waited for by sleeping on XenStore's own channel alone, so that the
//! other channels keep their bits. What fires a watch arrives between answers and is
//! kept, in order, until [`Store::next_event`] takes it.
//!
//! ```text
//!   request:  type | request id | transaction | length | path \0 value
//!      ring  ──────────────────────────────────────────────► xenstored
//!   answer:   same type and id, or type Error with a name such as ENOENT
//!      ring  ◄────────────────────────────────────────────── xenstored
//!   watch:    type WatchEvent, id 0, path \0 token \0, at any moment
//! ```

use crate::events::{self, Bits};
use crate::shared::SharedPage;
use crate::time::Clock;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
pub use fordway_xen_abi::store::wire::Fired;
use fordway_xen_abi::store::wire::{self, Assembly, Header, Waiting, text};
use fordway_xen_abi::store::{Kind, RING_SIZE, offset};

/// How long an answer is waited for.
const PATIENCE_NS: u64 = 10_000_000_000;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The store's own word: `ENOENT`, `EACCES`, `EAGAIN`, ...
    Refused(String),
    /// No answer, or one that is not of the protocol.
    Silent,
    /// Longer than a message may be.
    TooLong,
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Error::Refused(name) => write!(f, "XenStore says {name}"),
            Error::Silent => write!(f, "XenStore does not answer"),
            Error::TooLong => write!(f, "too long for XenStore"),
        }
    }
}

/// The id of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction(u32);

impl Transaction {
    /// Outside of any transaction.
    pub const NONE: Transaction = Transaction(0);
}

/// The connection to XenStore.
pub struct Store {
    page: SharedPage,
    port: u32,
    events: Bits,
    clock: Clock,
    next_request: u32,
    assembly: Assembly,
    fired: Waiting,
    broken: bool,
}

impl Store {
    pub fn new(page: SharedPage, port: u32, events: Bits, clock: Clock) -> Self {
        Store {
            page,
            port,
            events,
            clock,
            next_request: 1,
            assembly: Assembly::default(),
            fired: Waiting::default(),
            broken: false,
        }
    }

    /// After a suspend. In a new domain nothing that was in the ring means anything, and all
    /// watches are gone.
    pub(crate) fn restart(&mut self, port: u32, is_new: bool) {
        self.port = port;
        if is_new {
            let produced = self
                .page
                .load_u32(offset::RESPONSE_PRODUCER, Ordering::Acquire);
            self.page
                .store_u32(offset::RESPONSE_CONSUMER, produced, Ordering::Release);
            self.assembly = Assembly::default();
            self.fired = Waiting::default();
            self.broken = false;
        }
    }

    /// The channel that tells when there is something to read.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// The value at `path`; a path without a leading slash begins at the domain's own directory.
    pub fn read(&mut self, transaction: Transaction, path: &str) -> Result<String, Error> {
        self.call(Kind::Read, transaction, &[path.as_bytes()])
            .map(|value| text(&value))
    }

    pub fn write(
        &mut self,
        transaction: Transaction,
        path: &str,
        value: &str,
    ) -> Result<(), Error> {
        self.call(
            Kind::Write,
            transaction,
            &[path.as_bytes(), value.as_bytes()],
        )
        .map(drop)
    }

    /// The names below `path`.
    pub fn list(&mut self, transaction: Transaction, path: &str) -> Result<Vec<String>, Error> {
        let payload = self.call(Kind::Directory, transaction, &[path.as_bytes()])?;
        Ok(wire::strings(&payload).map(text).collect())
    }

    pub fn make_directory(&mut self, transaction: Transaction, path: &str) -> Result<(), Error> {
        self.call(Kind::MakeDirectory, transaction, &[path.as_bytes()])
            .map(drop)
    }

    pub fn remove(&mut self, transaction: Transaction, path: &str) -> Result<(), Error> {
        self.call(Kind::Remove, transaction, &[path.as_bytes()])
            .map(drop)
    }

    /// Who may read and write `path`: `n0` no one but the owner 0, `r5` domain 5 may read, ...
    pub fn set_permissions(&mut self, path: &str, entries: &[&str]) -> Result<(), Error> {
        let mut parts = Vec::from([path.as_bytes()]);
        parts.extend(entries.iter().map(|entry| entry.as_bytes()));
        self.call(Kind::SetPermissions, Transaction::NONE, &parts)
            .map(drop)
    }

    /// Fires once at once and then at each change at or below `path`. `@releaseDomain` is
    /// a path, too.
    pub fn watch(&mut self, path: &str, token: &str) -> Result<(), Error> {
        self.call(
            Kind::Watch,
            Transaction::NONE,
            &[path.as_bytes(), token.as_bytes()],
        )
        .map(drop)
    }

    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<(), Error> {
        self.call(
            Kind::Unwatch,
            Transaction::NONE,
            &[path.as_bytes(), token.as_bytes()],
        )
        .map(drop)
    }

    pub fn begin(&mut self) -> Result<Transaction, Error> {
        let id = self
            .call(Kind::TransactionStart, Transaction::NONE, &[b""])
            .map(|id| text(&id))?;
        id.parse().map(Transaction).map_err(|_| Error::Silent)
    }

    /// Ends a transaction. `Ok(false)`: somebody else changed what it read, begin again.
    pub fn end(&mut self, transaction: Transaction, commit: bool) -> Result<bool, Error> {
        let word: &[u8] = if commit { b"T" } else { b"F" };
        match self.call(Kind::TransactionEnd, transaction, &[word]) {
            Ok(_) => Ok(true),
            Err(Error::Refused(name)) if name == "EAGAIN" => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a watch has fired, or may have.
    pub fn next_event(&mut self) -> Option<Fired> {
        while let Some((header, payload)) = self.receive() {
            self.fired.keep(header, &payload);
        }
        self.fired.take()
    }

    fn call(
        &mut self,
        kind: Kind,
        transaction: Transaction,
        parts: &[&[u8]],
    ) -> Result<Vec<u8>, Error> {
        let id = self.next_request;
        self.next_request = self.next_request.wrapping_add(1).max(1);
        let bytes = wire::request(kind, id, transaction.0, parts).ok_or(Error::TooLong)?;
        let deadline_ns = self.clock.now_ns() + PATIENCE_NS;
        self.send(&bytes, deadline_ns)?;
        loop {
            self.events.clear(self.port);
            while let Some((header, payload)) = self.receive() {
                if header.kind == Kind::WatchEvent as u32 {
                    self.fired.keep(header, &payload);
                } else if header.request == id && header.kind == Kind::Error as u32 {
                    return Err(Error::Refused(text(
                        wire::strings(&payload).next().unwrap_or_default(),
                    )));
                } else if header.request == id && header.kind == kind as u32 {
                    return Ok(payload);
                }
                // Anything else answers a request that was given up.
            }
            if self.broken || self.clock.now_ns() >= deadline_ns {
                return Err(Error::Silent);
            }
            events::sleep_on(self.port, deadline_ns);
        }
    }

    /// Puts a whole request into the ring, waiting for room.
    fn send(&mut self, mut bytes: &[u8], deadline_ns: u64) -> Result<(), Error> {
        while !bytes.is_empty() {
            self.events.clear(self.port);
            let consumed = self
                .page
                .load_u32(offset::REQUEST_CONSUMER, Ordering::Acquire);
            let produced = self
                .page
                .load_u32(offset::REQUEST_PRODUCER, Ordering::Relaxed);
            let fill = (produced.wrapping_sub(consumed) as usize).min(RING_SIZE);
            let at = produced as usize % RING_SIZE;
            let count = bytes.len().min(RING_SIZE - fill).min(RING_SIZE - at);
            if count == 0 {
                if self.clock.now_ns() >= deadline_ns {
                    return Err(Error::Silent);
                }
                events::sleep_on(self.port, deadline_ns);
                continue;
            }
            self.page.write(offset::REQUESTS + at, &bytes[..count]);
            bytes = &bytes[count..];
            let produced = produced.wrapping_add(count as u32);
            self.page
                .store_u32(offset::REQUEST_PRODUCER, produced, Ordering::Release);
            fence(Ordering::SeqCst);
            events::notify(self.port).map_err(|_| Error::Silent)?;
        }
        Ok(())
    }

    /// The next message out of the ring, if it is whole.
    fn receive(&mut self) -> Option<(Header, Vec<u8>)> {
        loop {
            if let Some(message) = self.assembly.take() {
                return Some(message);
            }
            let Ok(wanted) = self.assembly.wanted() else {
                self.broken = true;
                return None;
            };
            let consumed = self
                .page
                .load_u32(offset::RESPONSE_CONSUMER, Ordering::Relaxed);
            let produced = self
                .page
                .load_u32(offset::RESPONSE_PRODUCER, Ordering::Acquire);
            let fill = (produced.wrapping_sub(consumed) as usize).min(RING_SIZE);
            let at = consumed as usize % RING_SIZE;
            let count = wanted.min(fill).min(RING_SIZE - at);
            if count == 0 {
                return None;
            }
            let mut piece = [0; RING_SIZE];
            self.page.read(offset::RESPONSES + at, &mut piece[..count]);
            self.assembly.push(&piece[..count]);
            let consumed = consumed.wrapping_add(count as u32);
            self.page
                .store_u32(offset::RESPONSE_CONSUMER, consumed, Ordering::Release);
            fence(Ordering::SeqCst);
            let _ = events::notify(self.port);
        }
    }
}
