//! Linux, as Fordway's ordinary processes (broker, command line, launcher) see it:
//! one module for each kind of kernel object. The shim does not use this crate: it
//! lives inside foreign programs and has rules of its own.
//!
//! Calls go through rustix where it has them. What it has not (SO_PEERPIDFD,
//! SO_NETNS_COOKIE, netlink, setns in a helper thread) is written here with libc,
//! each call once.

mod bpf;
pub mod conntrack;
pub mod diag;
pub mod elf;
pub mod fabric;
pub mod frames;
pub mod ipc;
pub mod launch;
pub mod memfd;
pub mod messages;
mod netlink;
pub mod netns;
pub mod nftables;
pub mod packet;
pub mod probe;
pub mod process;
pub mod queue;
mod rules;
pub mod sockinfo;
pub mod sockmap;
pub mod tap;
pub mod trace;
pub mod xdp;
