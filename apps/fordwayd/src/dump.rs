//! The kernel's list of a namespace's sockets, without being held up by one of them.
//!
//! For the bytes of a socket the kernel takes its lock, which a program can hold for as long as it
//! likes: it is in send(2), and the kernel copies its bytes from userfaultfd(2) or FUSE. Who waits for
//! the lock cannot be interrupted, nor killed. So a thread asks, and is left behind when it does not answer
//! in time; then the list comes without bytes, for which no lock is taken.

use fordway_platform::diag::{self, Detail, Row};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// The kernel lists some hundred thousand sockets in this time.
const PATIENCE: Duration = Duration::from_millis(300);
/// Most threads that may be left behind; while there are so many, no bytes are asked for.
const BEHIND_MAX: usize = 8;

/// Who asks.
#[derive(Debug, Default)]
pub(crate) struct Dumps {
    /// Each thread that asks has one more of these.
    threads: Arc<()>,
}

/// One listing of several namespaces: it waits in vain once.
#[derive(Debug)]
pub(crate) struct Listing<'d> {
    dumps: &'d Dumps,
    is_held_up: bool,
}

impl Dumps {
    pub(crate) fn begin(&self) -> Listing<'_> {
        Listing {
            dumps: self,
            is_held_up: false,
        }
    }
}

impl Listing<'_> {
    /// The connected sockets of a namespace; without one, of our own.
    pub(crate) fn rows(&mut self, namespace: Option<OwnedFd>, cookie: u64) -> io::Result<Vec<Row>> {
        let behind = Arc::strong_count(&self.dumps.threads) - 1;
        if !self.is_held_up && behind < BEHIND_MAX {
            let copy = namespace.as_ref().map(OwnedFd::try_clone).transpose()?;
            let (sender, rows) = channel();
            let alive = Arc::clone(&self.dumps.threads);
            let ask = move || {
                // Nobody may be waiting any more.
                let _ = sender.send(dump(copy, cookie, Detail::Bytes));
                drop(alive);
            };
            std::thread::Builder::new().name("dump".into()).spawn(ask)?;
            if let Ok(rows) = rows.recv_timeout(PATIENCE) {
                return rows;
            }
            self.is_held_up = true;
        }
        dump(namespace, cookie, Detail::Names)
    }
}

fn dump(namespace: Option<OwnedFd>, cookie: u64, detail: Detail) -> io::Result<Vec<Row>> {
    match namespace {
        None => diag::connected(detail),
        Some(namespace) => diag::connected_in(namespace, cookie, detail),
    }
}
