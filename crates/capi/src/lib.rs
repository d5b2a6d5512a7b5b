//! The native API: sockets between domains, by the number or the name of a domain.
//!
//! ```text
//!   fordway (crates/native)   libfordway-native.so    module fordway of Python
//!            └───────────────┐      c     ┌──────────────┘
//!                            │      │     │
//!                  socket: kinds, messages, loans ── address: numbers, names
//!                                   │
//!                 libc's sockets, which the shim sees ── lent: the shim's loans
//! ```
//! The sockets are ordinary ones, of TCP and UDP. A program that was started by `fordway run` has the shim, which
//! moves them to rings as those of any program; without it, everything here goes by the kernel. All calls
//! go by the C library, for the shim stands in front of that (rustix would make bare system calls).
//!
//! What it gives to programs is documented in docs/native-api.md.

mod address;
#[cfg(feature = "tokio")]
pub mod awaited;
pub mod c;
mod lent;
mod socket;

pub use address::{ANY, Address, BROADCAST, HOST, LOCAL, ToAddress, domain_of, own_domain};
pub use socket::{Kind, MESSAGE_BYTES_MAX, Peeked, Received, Reserved, Socket, poll};
