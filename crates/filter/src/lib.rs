//! The packet filter in nftables' semantics, without I/O.
//!
//! ```text
//!   the kernel's dump ──(rules)──► Rules ──► Filter::replace ──► program + state
//!   frame from switch, stack ──► Packet ──► Filter::hook ──► verdict, changed bytes, counts
//!   the same, where another enforcer sees it as well ──► Filter::beside ──► verdict
//!   connection from the broker ──► Question ──► Filter::ask ──► allowed, refused, each packet
//! ```
//! - [`rules`]: rules as the kernel keeps them, read from its own messages.
//! - `compile`: rules to a flat program; runs of rules that differ in numbers become one lookup.
//! - `guard`: what denies a rule to most packets, in one comparison.
//! - `exec`: carries a program out; for a packet (`live`) or a connection (`question`).
//! - `sets`: hash tables, ranges, ranges of concatenations. `conntrack`: flows and NAT.
//!
//! No clock, no randomness, no descriptors: time comes in as nanoseconds of a clock that
//! only goes forward, everything else by [`Environment`]. Nothing in a packet makes it
//! panic, and every loop over a packet's bytes ends with them.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod checksum;
mod compile;
mod conntrack;
mod environment;
mod exec;
mod filter;
mod guard;
mod hash;
mod limits;
mod live;
mod packet;
mod program;
mod question;
pub mod rules;
mod sets;
mod state;

pub use conntrack::{Config, Conntrack, Tuple};
pub use environment::{Environment, FibAnswer, FibQuery};
pub use exec::EachPacket;
pub use filter::{Filter, Outcome, Verdict, unknown_in};
pub use live::{Beside, Logged, TraceStep, Traced};
pub use packet::{Iface, Layer, Meta, Packet};
pub use program::{Reject, RuleId};
pub use question::{Answer, AskedStep, Crossing, Decision, Phase, Question};
pub use state::Counter;
