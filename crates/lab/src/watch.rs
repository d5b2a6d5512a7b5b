//! Which connections there were: a thread that lists the broker's connections every few
//! milliseconds, because a connection's row goes when the connection goes.

use crate::{Lab, ask};
use fordwayd::admin::{Connection, Reply, Request};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(10);

/// Domain, local and remote name, channel.
type End = (String, String, String, Option<u64>);

/// The last row of each, with the most bytes that any had.
type Rows = BTreeMap<End, Connection>;

/// A running watch.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    over: AtomicBool,
    rows: Mutex<Rows>,
}

impl Watch {
    /// Begins; looks no more once a row is `enough`, so that a broker that is measured is left alone.
    pub fn start(lab: &Lab, enough: fn(&Connection) -> bool) -> Watch {
        let shared = Arc::new(Shared::default());
        let (for_thread, dir) = (Arc::clone(&shared), lab.runtime_dir());
        let thread = std::thread::spawn(move || watch(&dir, &for_thread, enough));
        Watch {
            shared,
            thread: Some(thread),
        }
    }

    /// What it saw so far: the last row of each channel and each end, with the most bytes that any had.
    pub fn rows(&self) -> Vec<Connection> {
        let rows = self.shared.rows.lock();
        let rows = rows.unwrap_or_else(PoisonError::into_inner);
        rows.values().cloned().collect()
    }

    /// Ends it: the same, at the end.
    pub fn end(mut self) -> Vec<Connection> {
        self.join();
        self.rows()
    }

    fn join(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there is told by what is missing.
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.join();
    }
}

fn watch(dir: &Path, shared: &Shared, enough: fn(&Connection) -> bool) {
    let mut known = false;
    while !known && !shared.over.load(Ordering::Relaxed) {
        if let Ok(Reply::Connections { connections }) = ask(dir, &Request::Connections) {
            known = connections.iter().any(enough);
            let rows = shared.rows.lock();
            let mut rows = rows.unwrap_or_else(PoisonError::into_inner);
            for row in connections {
                keep(&mut rows, row);
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// A connection's later row takes the place of the earlier one. Whose it was stays, when its program has closed
/// it and the kernel still sends what is left; so does each number of bytes that was larger, since a row whose
/// rings are about to go may come without.
fn keep(rows: &mut Rows, mut row: Connection) {
    let (domain, local) = (row.domain.clone(), row.local.clone());
    let end = (domain, local, row.remote.clone(), row.channel);
    if let Some(earlier) = rows.get(&end) {
        row.pid = row.pid.or(earlier.pid);
        for (now, then) in [
            (&mut row.ring_bytes_tx, earlier.ring_bytes_tx),
            (&mut row.ring_bytes_rx, earlier.ring_bytes_rx),
            (&mut row.kernel_bytes_tx, earlier.kernel_bytes_tx),
            (&mut row.kernel_bytes_rx, earlier.kernel_bytes_rx),
        ] {
            *now = then.max(*now);
        }
    }
    rows.insert(end, row);
}
