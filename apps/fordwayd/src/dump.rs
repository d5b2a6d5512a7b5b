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
use std::sync::mpsc::{Receiver, Sender, channel};
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

/// One listing of several namespaces: it waits in vain once. A single thread asks in one namespace
/// after the other.
#[derive(Debug)]
pub(crate) struct Listing<'d> {
    dumps: &'d Dumps,
    asker: Option<Asker>,
    is_held_up: bool,
}

/// The far ends of a thread's channels.
#[derive(Debug)]
struct Asker {
    namespaces: Sender<(OwnedFd, u64)>,
    rows: Receiver<io::Result<Vec<Row>>>,
}

impl Dumps {
    pub(crate) fn begin(&self) -> Listing<'_> {
        Listing {
            dumps: self,
            asker: None,
            is_held_up: Arc::strong_count(&self.threads) > BEHIND_MAX,
        }
    }

    /// A thread that lists namespaces until nobody asks it any more.
    fn asker(&self) -> io::Result<Asker> {
        let (namespaces, asked) = channel::<(OwnedFd, u64)>();
        let (sender, rows) = channel();
        let alive = Arc::clone(&self.threads);
        let ask = move || {
            for (namespace, cookie) in asked {
                let found = diag::connected_after_entering(&namespace, cookie, Detail::Bytes);
                // Nobody may be waiting any more.
                if sender.send(found).is_err() {
                    break;
                }
            }
            drop(alive);
        };
        std::thread::Builder::new().name("dump".into()).spawn(ask)?;
        Ok(Asker { namespaces, rows })
    }
}

impl Listing<'_> {
    /// The connected sockets of a namespace.
    pub(crate) fn rows(&mut self, namespace: &OwnedFd, cookie: u64) -> io::Result<Vec<Row>> {
        if !self.is_held_up {
            let asker = match self.asker.take() {
                Some(asker) => asker,
                None => self.dumps.asker()?,
            };
            let asked = asker.namespaces.send((namespace.try_clone()?, cookie));
            if asked.is_ok()
                && let Ok(rows) = asker.rows.recv_timeout(PATIENCE)
            {
                self.asker = Some(asker);
                return rows;
            }
            self.is_held_up = true;
        }
        diag::connected_in(namespace, cookie, Detail::Names)
    }
}
