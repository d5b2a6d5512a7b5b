//! Suites of plain programs: round trips, streams, connections, crowds, memory.
//!
//! For each job, rounds are played in which every rival takes one sample, each beside one of the
//! fast path, and each second round in reverse. The ratio of a rival is the median of these pairs
//! (see [`crate::pairs`]); only samples of one regime (distance of the CPUs) are paired, and the
//! regime with the most pairs is reported.
//!
//! - [`wire`]: what can be talked over; [`end`]: the two programs; [`measure`]: how long, and what they read meanwhile;
//!   `crowd`: one among many; `memcached`: its client
//! - `job`: what is measured; `sample`: one sample; `suite`: rounds and rows; `memory`: bytes of ring memory;
//!   `idle`: wake-ups of a receiver; `everybody`: broadcasts; `rtt.py`: the two programs, there and back by UDP, in Python

mod crowd;
pub mod end;
mod everybody;
mod idle;
pub mod job;
pub mod measure;
mod memcached;
mod memory;
pub mod sample;
pub mod suite;
pub mod wire;
