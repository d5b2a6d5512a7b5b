//! Bench suites, the comparison of builds and the demo, on `fordway-lab`. Lowest first:
//!
//! - [`exit`]: how a program of the bench ends
//! - [`distance`]: how far apart two CPUs are
//! - [`placement`]: on which CPUs, in which domains; [`pace`]: how long a run may take
//! - [`work`]: real servers and clients, and how to read their figures; [`pairs`]: how sure a ratio is; [`report`]: tables and JSON; [`marks`]: what they shall reach; [`document`]: Markdown, HTML and plots; [`publish`]: what the documentation shows of them
//! - [`alternate`]: two contenders in turns, and the row that they give
//! - [`micro`]: suites of plain programs
//! - [`filter`]: what rules cost packets and the fast path
//! - [`reach`]: where rings reach: behind published ports and proxies, into musl; [`stack`]: stacks of domains' own; [`wide`]: what grows with domains and busy connections
//! - [`compare`]: two builds in alternation; [`instructions`]: what a small message costs, counted; [`count`]: what a request costs on a stack, counted in an emulated machine
//! - [`apps`]: the suite of real programs; [`cli`]: the suites' arguments
//! - [`demo`]: real programs for people, a program of its own
#![forbid(unsafe_code)]

pub mod alternate;
pub mod apps;
pub mod cli;
pub mod compare;
pub mod count;
pub mod demo;
pub mod distance;
pub mod document;
pub mod exit;
pub mod filter;
pub mod instructions;
pub mod marks;
pub mod micro;
pub mod pace;
pub mod pairs;
pub mod placement;
pub mod publish;
pub mod reach;
pub mod report;
pub mod stack;
pub mod wide;
pub mod work;
