//! Suites of plain programs: round trips, streams, connections, crowds, memory.
//!
//! For each job, rounds are played in which every contender takes one sample, one after
//! the other. The ratio of a rival is the median over the rounds of fast against rival;
//! only samples of one regime (distance of the CPUs) are compared, and the regime with
//! the most rounds is reported.
//!
//! - [`wire`]: what can be talked over; [`end`]: the two programs; `crowd`: one among many; `memcached`: its client
//! - `job`: what is measured; `sample`: one sample; `suite`: rounds and rows; `memory`: bytes of ring memory

mod crowd;
pub mod end;
pub mod job;
mod memcached;
mod memory;
pub mod sample;
pub mod suite;
pub mod wire;
