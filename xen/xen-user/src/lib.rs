//! What a program in a Linux guest has of Xen, by the kernel's devices, and a channel over it.
//!
//! ```text
//!   Channel ── OwnRegion ── Granted ───────── /dev/xen/gntalloc   our pages, a peer may read them
//!      │  └─── PeerRegion ─ Mapped ────────── /dev/xen/gntdev     the peer's pages, we may read them
//!      └────── Doorbell ─── EventChannel ──── /dev/xen/evtchn     rings that are worth a system call
//!   Store ─────────────────────────────────── /dev/xen/xenbus     names, for finding each other
//! ```
//!
//! **Each device is opened once for each thing.** A descriptor of gntalloc or gntdev can do whatever its
//! guest can, so none is shared: one region, one descriptor, and closing it takes the whole region back.
//!
//! **Who may write what.** A page is granted for reading only. That stands in for the seal of a memfd
//! (docs/abi.md): Xen refuses a mapping for writing, whatever the peer's kernel wants. What a peer's
//! page says is loaded by `fordway_ring`'s atomics, once, and checked. No reference but to atomics is made to its bytes.
//!
//! **Death.** Linux takes back what a process had, however it ends, and does what was asked for that
//! moment (UNMAP_NOTIFY): it clears a byte of the region and rings the peer. A forked child that has not executed has the same
//! pages, so that nothing is taken back, and nobody told, while it lives.
//!
//! **Not used**: /dev/xen/privcmd, which can make any hypercall and is closed to guests since XSA-482.
//!
//! The kernel's interfaces are those of include/uapi/xen (gntalloc.h, gntdev.h, evtchn.h).

mod channel;
mod doorbell;
mod events;
mod grants;
mod mappings;
mod region;
mod store;
mod sys;

pub use channel::Channel;
pub use doorbell::Doorbell;
pub use events::EventChannel;
pub use fordway_xen_abi::PAGE_SIZE;
pub use grants::{Access, Allotted, Granted};
pub use mappings::{Mapped, Reference, Wanted};
pub use region::{OwnRegion, PAGES_MAX, PeerRegion};
pub use store::{Fired, Store};

use std::io;

/// Number of a domain, as Xen has it.
pub type Domain = u16;

/// Why something of Xen's cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// gntalloc's limit.
    #[error(
        "this guest's grants are used up; /sys/module/xen_gntalloc/parameters/limit says how many pages it has"
    )]
    GrantsUsedUp,
    /// Linux says EINVAL for each of these, so they cannot be told apart.
    #[error("the peer has not granted these pages to us, or not for this, or no more")]
    NotGranted,
    /// What stands in a peer's region cannot be.
    #[error("the peer's region is malformed")]
    Malformed,
    /// A region of our own would be smaller than one ring, or larger than its directory can name.
    #[error("a region has room for one ring of 64 KB at least, and is of 1,020 pages at most")]
    NoSuchSize,
    /// The peer's process has ended, has taken its region back, or was silent for longer than it was waited for; and whatever is
    /// asked of a channel once an error has ended it.
    #[error("the peer is gone")]
    PeerGone,
    /// The peer broke the ring's protocol.
    #[error("the peer broke the protocol of the ring: {0:?}")]
    Violation(fordway_ring::Violation),
    /// XenStore's own word: `ENOENT`, `EACCES`, ...
    #[error("XenStore says {0}")]
    Refused(String),
    /// XenStore gave no answer in time, or one that is not of the protocol.
    #[error("XenStore does not answer")]
    Silent,
    /// Longer than XenStore takes.
    #[error("too long for XenStore")]
    TooLong,
    /// Anything else that the kernel said.
    #[error("{0}: {1}")]
    Device(&'static str, io::Error),
}

impl From<fordway_ring::Violation> for Error {
    fn from(violation: fordway_ring::Violation) -> Self {
        Error::Violation(violation)
    }
}
