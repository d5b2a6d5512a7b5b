//! Which connections there were: a thread that lists the broker's connections every few
//! milliseconds, because a connection's row goes when the connection goes.

use crate::{Lab, ask};
use fordwayd::admin::{Connection, Reply, Request};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(10);

/// A running watch.
#[derive(Debug)]
pub struct Watch {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Connection>>>,
}

impl Watch {
    /// Begins; looks no more once a row is `enough`, so that a broker that is measured is left alone.
    pub fn start(lab: &Lab, enough: fn(&Connection) -> bool) -> Watch {
        let over = Arc::new(AtomicBool::new(false));
        let (flag, dir) = (Arc::clone(&over), lab.runtime_dir());
        let thread = std::thread::spawn(move || watch(&dir, &flag, enough));
        Watch {
            over,
            thread: Some(thread),
        }
    }

    /// Ends it: the last (largest) row of each channel and each end.
    pub fn end(mut self) -> Vec<Connection> {
        self.join()
    }

    fn join(&mut self) -> Vec<Connection> {
        self.over.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.join();
    }
}

fn watch(dir: &Path, over: &AtomicBool, enough: fn(&Connection) -> bool) -> Vec<Connection> {
    let mut rows = BTreeMap::new();
    let mut known = false;
    while !known && !over.load(Ordering::Relaxed) {
        if let Ok(Reply::Connections { connections }) = ask(dir, &Request::Connections) {
            known = connections.iter().any(enough);
            rows.extend(connections.into_iter().map(|row| {
                let (domain, local) = (row.domain.clone(), row.local.clone());
                ((domain, local, row.remote.clone(), row.channel), row)
            }));
        }
        std::thread::sleep(INTERVAL);
    }
    rows.into_values().collect()
}
