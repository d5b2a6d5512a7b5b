//! The fuzzers' bodies: each takes bytes, does with them what the product would, and panics
//! if something that must hold does not. `fuzz/` makes fuzz targets of them, for which a
//! nightly compiler is needed; the test in this crate runs the corpus through the same code.
//!
//! * [`control`]: what a shim may say to the broker. Bytes become packets, these are parsed,
//!   and the registry is told of them as the broker tells it. Whatever the registry answers
//!   is parsed as a shim parses it.
//! * [`ring_consumer`], [`ring_producer`]: one half of a channel whose peer writes anything
//!   into its own memory between (and, by what it leaves there, within) our calls.
//! * [`rules`], [`packet`]: the packet filter's rules and frames.
//! * [`netfront`]: a Xen backend, its toolstack and the driver's user do anything in any order.
//! * [`queue`]: the packet queue and its ends against a liar at the other one.
//! * [`driver`]: what a stack may have its driver send.
//! * [`netstack`]: what a hostile network sends to a program's own TCP/IP stack.
//! * [`http`], [`resp`]: a client's bytes to the servers of files and of keys, cut anywhere.
//! * [`machine`]: the bytes are the schedule of a simulated run of honest ends.

mod control;
mod driver;
mod filter;
#[path = "../../../crates/ring/tests/memory/mod.rs"]
mod memory;
mod queue;
mod ring;
mod servers;
mod stack;
#[path = "../../../crates/ring/tests/hostile/victim.rs"]
#[allow(dead_code)]
mod victim;
#[path = "../../../crates/ring/tests/queue/whole.rs"]
#[allow(dead_code)]
mod whole;

pub use control::control;
pub use driver::driver;
pub use filter::{packet, rules};
pub use fordway_test_netfront::chaos as netfront;
pub use queue::queue;
pub use ring::{ring_consumer, ring_producer};
pub use servers::{http, resp};
pub use stack::netstack;

/// A fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// All of them, by the names of their corpora.
pub const TARGETS: [Target; 12] = [
    ("control", control),
    ("ring_consumer", ring_consumer),
    ("ring_producer", ring_producer),
    ("queue", queue),
    ("driver", driver),
    ("rules", rules),
    ("netfront", netfront),
    ("netstack", netstack),
    ("packet", packet),
    ("http", http),
    ("resp", resp),
    ("machine", machine),
];

/// A schedule must bring every stream to its end.
pub fn machine(bytes: &[u8]) {
    let outcome = fordway_test_simulation::run_bytes(bytes, false);
    if let Some(failure) = outcome.failure {
        panic!("{failure}");
    }
}

/// Takes numbers from a fuzzer's bytes; zeros when they are used up.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, left) = self.0.split_at(count.min(self.0.len()));
        self.0 = left;
        taken
    }

    fn number(&mut self, bytes: usize) -> u64 {
        let taken = self.take(bytes);
        taken
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    fn byte(&mut self) -> u8 {
        self.number(1) as u8
    }
}
