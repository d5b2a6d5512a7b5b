//! Live pairs of UDP sockets. The kernel says of nobody that another socket gets its datagrams from now
//! on, so it is asked about both ends of each pair again and again; and it is told that they go on, for its
//! connection tracking sees no datagram of theirs. While there are none, nothing wakes the loop for them.

use crate::broker::Broker;
use crate::filter::{KEEP_DATAGRAMS_EVERY_NS, KEEP_DATAGRAMS_S};
use crate::proof::Witness;
use fordway_abi::control::Protocol;

/// How often some pairs are looked at.
const LOOK_EVERY_NS: u64 = 100_000_000;
/// How many at once: each has two ends, which take some eight microseconds each, half of them for sock_diag. Its
/// dump of all sockets would take half a microsecond for each, and does not say which one the kernel chooses.
const LOOKED_AT_MAX: usize = 128;

/// When what is due.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    look_at_ns: u64,
    keep_at_ns: u64,
}

impl Broker {
    /// How long the loop may sleep, in nanoseconds, if it is not as long as it likes.
    pub(crate) fn datagrams_patience_ns(&self) -> Option<u64> {
        let due = self.datagrams.look_at_ns;
        let is_due = self.registry.has_datagrams() || !self.everybody.is_empty();
        is_due.then(|| due.saturating_sub(self.now_ns()))
    }

    /// Looks are due now.
    pub(crate) fn hurry_datagrams(&mut self) {
        self.datagrams.look_at_ns = 0;
    }

    /// Moves pairs to the kernel path whose datagrams are another socket's by now.
    pub(crate) fn look_at_datagrams(&mut self) {
        if self.datagrams_patience_ns() != Some(0) {
            return;
        }
        let now_ns = self.now_ns();
        self.datagrams.look_at_ns = now_ns + LOOK_EVERY_NS;
        let older = Witness::new(&mut self.places, &self.connections, &self.by_process);
        let witness = &mut |process, facts: &_| older.still_true(process, facts);
        let actions = self.registry.look_at_datagrams(LOOKED_AT_MAX, witness);
        self.carry_out(actions);
        self.look_at_everybody();
        if self.datagrams.keep_at_ns <= now_ns {
            self.datagrams.keep_at_ns = now_ns + KEEP_DATAGRAMS_EVERY_NS;
            self.keep_connections(Protocol::Udp, KEEP_DATAGRAMS_S);
        }
    }
}
