//! Layouts that two parties must agree on: shared memory ([`shm`], [`queue`]), control
//! messages between the shim and the broker ([`control`]), addresses of AF_VSOCK ([`vsock`]), records on a
//! stream ([`record`]), what the native library asks of the shim ([`loans`]), sockets of a program's own stack ([`stack`]), and the closed lists of reasons and environment names. Types only; nothing here acts.
//!
//! Whoever changes a layout in this crate raises [`ABI_VERSION`]: the broker
//! refuses an unlike version before anything is mapped.
#![cfg_attr(not(loom), no_std)]
#![forbid(unsafe_code)]

pub mod control;
pub mod loans;
pub mod queue;
pub mod reason;
pub mod record;
pub mod shm;
pub mod stack;
pub mod vsock;

/// Version of everything in this crate, compared for equality in `Hello`.
pub const ABI_VERSION: u32 = 19 + NEXT;

/// With `--cfg fordway_abi_next`, this code is its own successor: what an upgrade between unlike
/// versions is tried with (`./x package-test abi`).
const NEXT: u32 = cfg!(fordway_abi_next) as u32;

/// Name of a file beside the broker's control socket, of one byte ([`insisted`]): whether some program
/// requires the fast path, so that the programs at the other ends offer their connections at once.
pub const INSISTED_FILE: &str = "insisted";

/// What the byte of [`INSISTED_FILE`] says. An empty file is an older broker's, and says `YES`.
pub mod insisted {
    /// No program requires the fast path.
    pub const NO: u8 = 0;
    /// Some program does.
    pub const YES: u8 = 1;
    /// The broker has ended: the file is looked for by name again.
    pub const OVER: u8 = 2;
}

/// Names of the environment variables by which the launcher speaks to the shim.
/// The shim reads them once, in its constructor.
pub mod env {
    /// Path of the broker's control socket; absent: the shim stays passive.
    pub const SOCKET: &str = "FORDWAY_SOCKET";
    /// `auto`, `kernel` or `fast` (see [`crate::control::PathPolicy`]).
    pub const PATH: &str = "FORDWAY_PATH";
    /// Operations on a connection before it is offered (decimal; default 4).
    pub const OFFER_AFTER: &str = "FORDWAY_OFFER_AFTER";
    /// Longest spin before a sleep, in microseconds (decimal; default 20; 0: never).
    pub const SPIN_US: &str = "FORDWAY_SPIN_US";
    /// Path of the control socket of the domain's own stack; absent: the kernel's stack serves the program.
    pub const STACK: &str = "FORDWAY_STACK";
    /// `0`: UDP sockets use no rings.
    pub const DATAGRAMS: &str = "FORDWAY_DATAGRAMS";
}

#[cfg(not(loom))]
pub mod atomic {
    //! The atomics of the layouts: the processor's.
    pub use core::sync::atomic::{AtomicU32, AtomicU64};
}
#[cfg(loom)]
pub mod atomic {
    //! The atomics of the layouts: loom's, when the protocol is model-checked.
    pub use loom::sync::atomic::{AtomicU32, AtomicU64};
}
