//! XenStore, by the kernel's connection to it: /dev/xen/xenbus, or /proc/xen/xenbus.
//!
//! The same messages as over the ring of a guest without a kernel (`fordway_xen_abi::store`): a request is written
//! whole, the answer is read. What fires a watch comes between answers and is kept in order.

use crate::Error;
use crate::sys::{self, told};
use fordway_xen_abi::store::wire::{self, Assembly, Header, Waiting, text};
use fordway_xen_abi::store::{HEADER_SIZE, Kind, PAYLOAD_MAX};
use rustix::fs::OFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

pub use fordway_xen_abi::store::wire::Fired;

const DEVICE: &str = "/dev/xen/xenbus";
const DEVICE_OF_XENFS: &str = "/proc/xen/xenbus";
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection. Closing it ends its watches.
pub struct Store {
    device: OwnedFd,
    next_request: u32,
    assembly: Assembly,
    fired: Waiting,
}

impl Store {
    /// A new one.
    pub fn open() -> Result<Self, Error> {
        let device = match sys::open(DEVICE, OFlags::RDWR) {
            Err(Error::Device(_, error)) if error.kind() == io::ErrorKind::NotFound => {
                sys::open(DEVICE_OF_XENFS, OFlags::RDWR)
            }
            opened => opened,
        }?;
        Ok(Self {
            device,
            next_request: 1,
            assembly: Assembly::default(),
            fired: Waiting::default(),
        })
    }

    /// For an event loop: readable when a watch may have fired.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// The value at `path`; a path without a leading slash begins at the domain's own directory.
    pub fn read(&mut self, path: &str) -> Result<String, Error> {
        let value = self.call(Kind::Read, &[path.as_bytes()])?;
        Ok(text(&value))
    }

    /// Sets it, and makes the nodes above.
    pub fn write(&mut self, path: &str, value: &str) -> Result<(), Error> {
        self.call(Kind::Write, &[path.as_bytes(), value.as_bytes()])
            .map(drop)
    }

    /// The names below `path`.
    pub fn directory(&mut self, path: &str) -> Result<Vec<String>, Error> {
        let names = self.call(Kind::Directory, &[path.as_bytes()])?;
        Ok(wire::strings(&names).map(text).collect())
    }

    /// Removes it with all below.
    pub fn remove(&mut self, path: &str) -> Result<(), Error> {
        self.call(Kind::Remove, &[path.as_bytes()]).map(drop)
    }

    /// Who may read and write `path`: `n3` no one but the owner 3, `r5` domain 5 may read, ...
    pub fn set_permissions(&mut self, path: &str, entries: &[&str]) -> Result<(), Error> {
        let mut parts = vec![path.as_bytes()];
        parts.extend(entries.iter().map(|entry| entry.as_bytes()));
        self.call(Kind::SetPermissions, &parts).map(drop)
    }

    /// Fires once at once and then at each change at or below `path`.
    pub fn watch(&mut self, path: &str, token: &str) -> Result<(), Error> {
        self.call(Kind::Watch, &[path.as_bytes(), token.as_bytes()])
            .map(drop)
    }

    /// Ends a watch.
    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<(), Error> {
        self.call(Kind::Unwatch, &[path.as_bytes(), token.as_bytes()])
            .map(drop)
    }

    /// Whether a watch has fired that came before an answer: the descriptor does not show it.
    pub fn has_fired(&self) -> bool {
        !self.fired.is_empty()
    }

    /// The next watch that fired; `None` if none does for so long.
    pub fn next_event(&mut self, patience: Duration) -> Result<Option<Fired>, Error> {
        let until = Instant::now() + patience;
        loop {
            if let Some(fired) = self.fired.take() {
                return Ok(Some(fired));
            }
            match self.receive(until)? {
                None => return Ok(None),
                Some((header, payload)) => self.fired.keep(header, &payload),
            }
        }
    }

    fn call(&mut self, kind: Kind, parts: &[&[u8]]) -> Result<Vec<u8>, Error> {
        let id = self.next_request;
        self.next_request = self.next_request.wrapping_add(1).max(1);
        let mut bytes = &wire::request(kind, id, 0, parts).ok_or(Error::TooLong)?[..];
        while !bytes.is_empty() {
            let count = rustix::io::write(&self.device, bytes).map_err(told(DEVICE))?;
            bytes = &bytes[count..];
        }
        let until = Instant::now() + PATIENCE;
        while let Some((header, payload)) = self.receive(until)? {
            if header.kind == Kind::WatchEvent as u32 {
                self.fired.keep(header, &payload);
                if Instant::now() >= until {
                    break;
                }
            } else if header.request == id && header.kind == Kind::Error as u32 {
                let name = wire::strings(&payload).next().unwrap_or_default();
                return Err(Error::Refused(text(name)));
            } else if header.request == id && header.kind == kind as u32 {
                return Ok(payload);
            }
            // Anything else answers a request that was given up.
        }
        Err(Error::Silent)
    }

    /// The next message, if one comes in time.
    fn receive(&mut self, until: Instant) -> Result<Option<(Header, Vec<u8>)>, Error> {
        loop {
            if let Some(message) = self.assembly.take() {
                return Ok(Some(message));
            }
            let left = until.saturating_duration_since(Instant::now());
            let ready = sys::readable(&self.device, Some(left));
            if !ready.map_err(|error| Error::Device(DEVICE, error))? {
                return Ok(None);
            }
            let wanted = self.assembly.wanted().map_err(|_| Error::Silent)?;
            let mut piece = [0; HEADER_SIZE + PAYLOAD_MAX];
            let count =
                rustix::io::read(&self.device, &mut piece[..wanted]).map_err(told(DEVICE))?;
            self.assembly.push(&piece[..count]);
        }
    }
}
