//! The broker: who is who, rendezvous, death.
//!
//! One epoll loop around [`fordway_registry`], which decides; this
//! crate asks the kernel for facts, moves descriptors, and keeps what belongs to a
//! process only as long as the process does.
//!
//! ```text
//!   shims ── control.sock (packets) ──► connection ──► Registry ──► actions ──► connection ──► shims
//!                                             ▲
//!   pidfds ── death ──────────────────────────┘
//!   administrators ── admin.sock (JSON lines) ──► admin_socket ──► domains, listing
//!   who only reads ── read.sock (the same) ──────────┘
//! ```
//!
//! - `runtime`: the runtime directory, its lock, its sockets.
//! - `broker`: the loop; `actions`: what the registry decided, carried out.
//! - `connection`: one connection of a shim; `messages`: what a shim may say.
//! - `proof`: whose socket an offer is, by the kernel's word.
//! - `memory`: regions that are mapped, read-only, for listings.
//! - `admin_socket`, `domains`, `listing`: what administrators may ask; `numbers`: how listings name channels.
//! - `guests`: other guests of Xen, whose programs ours have rings with.
//! - `carried`: bytes through rings, by domain.
//! - `filter`: the rules in force, and which connections they let have rings.
//! - `limits`, `shares`: how much is kept for all, and for one user or namespace.
//! - `parts`: the supervisor of Fordway's other processes; `stacks`: which of them a domain with a stack of its own has;
//!   `orders`: what such a stack is told and asked.
//! - `again`: what failed and is tried again.
//! - `log`: where events go, and from which level on; `audit`: those that say who changed what.
//! - `reaper`: closing descriptors of strangers where it may block.
//!
//! # What holds whatever a program does
//! - Nothing of a `Hello` with an unlike ABI_VERSION is looked at, least of all mapped.
//! - A descriptor is checked before anything else is done with it. No socket is passed: a
//!   duplicate would hide its end.
//! - No call on a stranger's descriptor can block the loop.
//! - Queues, turns, connections and numbers of descriptors are bounded. A process that
//!   breaks the protocol or does not read what it is sent loses its connection to the
//!   broker; its channels then look to its peers as after its death.
//! - Without the broker everything that is established goes on: it is not on the way
//!   of any byte.
#![forbid(unsafe_code)]

mod actions;
pub mod admin;
mod admin_socket;
mod again;
pub mod audit;
mod broker;
mod carried;
mod connection;
mod datagrams;
mod domains;
mod doorbell;
mod dump;
mod everybody;
pub mod filter;
mod groups;
mod guests;
mod limits;
mod listing;
pub mod log;
mod memory;
mod messages;
mod notify;
mod numbers;
mod orders;
mod parts;
mod proof;
mod purses;
mod reaper;
mod runtime;
mod shares;
mod stacks;
mod unlike;

pub use broker::run;
pub use fordway_registry::{GuestAddresses, Network, Network6};
pub use runtime::{clear, readers};
pub use stacks::StackOptions;

use fordway_platform::launch::{self, PartUser};
use rustix::thread::CapabilitySet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// How a broker is to run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of its sockets; made if it does not exist.
    pub runtime_dir: PathBuf,
    /// From which addresses of domains are leased.
    pub network: Network,
    /// The IPv6 network beside it; `None`: domains have IPv4 only.
    pub network6: Option<Network6>,
    /// Join the broker's own namespace to the domains' network, as its first address: their way
    /// out and in. One that an earlier broker laid goes if this is false.
    pub uplink: bool,
    /// New domains have a CID of AF_VSOCK, and the IPv6 address that stands for it.
    pub vsock: bool,
    /// Most ring memory of one domain, in bytes.
    pub ring_bytes_max: u64,
    /// What it starts for domains with a stack of their own.
    pub programs: Programs,
    /// What runs beside it.
    pub helpers: Vec<Helper>,
}

/// A program that reads what the broker knows. The broker starts it, starts it again, and ends it; root's runs as
/// [`admin::READER`].
#[derive(Clone, Debug)]
pub struct Helper {
    /// In the log.
    pub name: String,
    /// Its file.
    pub program: PathBuf,
    /// What it is given.
    pub arguments: Vec<OsString>,
}

impl Helper {
    /// `readers`: of root's broker, the group that may read.
    fn start(&self, readers: Option<u32>) -> parts::Start {
        let helper = self.clone();
        let user = readers.map(|gid| PartUser {
            uid: admin::READER,
            gid,
            // To empty its root.
            capabilities: CapabilitySet::SYS_ADMIN,
        });
        Box::new(move || {
            let mut command = Command::new(&helper.program);
            command.args(&helper.arguments).env_clear().current_dir("/");
            command.stdin(Stdio::null()).stdout(Stdio::null());
            launch::start_beside(&mut command, user)
        })
    }
}

/// Files of Fordway's other programs. They need not be there until they are asked for.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// `fordway-driver`.
    pub driver: PathBuf,
    /// `fordway-stackd`.
    pub stack: PathBuf,
    /// The library, with which the stack is run.
    pub library: PathBuf,
}

/// Why a broker did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// Another one has the directory.
    #[error("a broker already runs in {}{}", dir.display(), pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Taken {
        /// The runtime directory.
        dir: PathBuf,
        /// The other one.
        pid: Option<i32>,
    },
    /// The directory cannot be trusted.
    #[error("{}: {what}", dir.display())]
    Directory {
        /// The runtime directory.
        dir: PathBuf,
        /// What is wrong and what to do.
        what: String,
    },
    /// Somebody else has the network or the uplink.
    #[error("{0}")]
    InUse(String),
    /// A privilege is missing.
    #[error("{0}")]
    Privilege(String),
    /// A program or kernel feature is missing.
    #[error("{0}")]
    Missing(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// For `map_err`: names what was tried.
fn doing(what: impl Into<String>) -> impl FnOnce(io::Error) -> BrokerError {
    let what = what.into();
    move |source| BrokerError::System { what, source }
}
