//! Processes whose library has another ABI version. They are not served; they are remembered, so that
//! a listing says why their connections stay on the kernel path (reason `version`).
//!
//! A library that is refused hangs up, so only the process itself tells when it is over: its number
//! and when it began are looked at again before they are believed.

use fordway_platform::process::{self, Peer};
use std::collections::BTreeMap;

/// Most that are remembered; connections of others seem to be held by nobody.
const UNLIKE_MAX: usize = 1024;

struct Refused {
    start_ticks: u64,
    netns_cookie: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Unlike {
    by_pid: BTreeMap<i32, Refused>,
}

impl Unlike {
    /// This process was refused.
    pub(crate) fn remember(&mut self, peer: &Peer) {
        if self.by_pid.len() >= UNLIKE_MAX {
            self.by_pid.retain(|pid, refused| refused.is_still(*pid));
        }
        if let Some(start_ticks) = process::start_ticks(peer.pid)
            && (self.by_pid.len() < UNLIKE_MAX || self.by_pid.contains_key(&peer.pid))
        {
            let netns_cookie = peer.netns_cookie;
            let refused = Refused {
                start_ticks,
                netns_cookie,
            };
            self.by_pid.insert(peer.pid, refused);
        }
    }

    /// This process is served, after all: it executes another program.
    pub(crate) fn forget(&mut self, pid: i32) {
        self.by_pid.remove(&pid);
    }

    /// The processes that are there, and their namespaces.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (i32, u64)> {
        let still = self.by_pid.iter();
        let still = still.filter(|(pid, refused)| refused.is_still(**pid));
        still.map(|(pid, refused)| (*pid, refused.netns_cookie))
    }
}

impl Refused {
    fn is_still(&self, pid: i32) -> bool {
        process::start_ticks(pid) == Some(self.start_ticks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_with_the_number_of_one_is_not_it() {
        let own = std::process::id() as i32;
        let mut unlike = Unlike::default();
        unlike.remember(&Peer {
            pid: own,
            uid: 0,
            pidfd: None,
            netns_cookie: 7,
        });
        assert_eq!(unlike.processes().collect::<Vec<_>>(), [(own, 7)]);
        let refused = unlike.by_pid.get_mut(&own).expect("it is remembered");
        refused.start_ticks += 1;
        assert_eq!(unlike.processes().count(), 0);
    }
}
