//! Lab, bench suites and the demo. Lowest first:
//!
//! - [`proc`]: what /proc says of processes; [`broker_state`]: what a broker holds on to; [`interrupt`]: Ctrl-C as a flag
//! - `program`: a tree of processes; [`lab`]: a broker, domains and programs, brought up and taken down
//! - [`packages`]: the programs that must be there; [`distance`]: how far apart two CPUs are
//! - [`placement`]: on which CPUs, in which domains; [`pace`]: how long a run may take
//! - [`work`]: real servers and clients, and how to read their figures; [`report`]: tables and JSON; [`marks`]: what they shall reach; [`document`]: Markdown, HTML and plots
//! - [`micro`]: suites of plain programs
//! - [`filter`]: what rules cost packets and the fast path
//! - [`compare`]: two builds in alternation
//! - [`apps`]: the suite of real programs; [`demo`]: the same for people; [`cli`]: their arguments
#![forbid(unsafe_code)]

pub mod apps;
pub mod broker_state;
pub mod cli;
pub mod compare;
pub mod demo;
pub mod distance;
pub mod document;
pub mod filter;
pub mod interrupt;
pub mod lab;
pub mod marks;
pub mod micro;
pub mod pace;
pub mod packages;
pub mod placement;
pub mod proc;
mod program;
pub mod report;
pub mod work;
