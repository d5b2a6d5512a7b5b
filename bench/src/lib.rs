//! Lab, bench suites and the demo.
//!
//! - [`lab`]: a broker, domains and real programs, brought up and taken down; built on
//!   `program` (a tree of processes), [`proc`] (what /proc says) and [`interrupt`].
#![forbid(unsafe_code)]

pub mod interrupt;
pub mod lab;
pub mod proc;
mod program;
