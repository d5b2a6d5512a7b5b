//! What the bench, the demo and the tests of programs stand on, so that all try the same thing.
//! Lowest first:
//!
//! - [`proc`]: what /proc says of processes; [`broker_state`]: what a broker holds on to;
//!   [`interrupt`]: Ctrl-C as a flag
//! - `program`: a tree of processes; [`packages`]: the programs that must be there
//! - `lab`: a broker, domains and programs, brought up and taken down; [`watch`]: which
//!   connections there were
#![forbid(unsafe_code)]

pub mod broker_state;
pub mod interrupt;
mod lab;
pub mod packages;
pub mod proc;
mod program;
pub mod watch;

pub use lab::*;
