//! Sockets between domains, by the number or the name of a domain.
//!
//! ```no_run
//! use fordway::{ANY, Kind, Socket};
//!
//! # fn main() -> std::io::Result<()> {
//! // In domain `db`.
//! let server = Socket::new(Kind::SeqPacket)?;
//! server.bind((ANY, 7000))?;
//! server.listen(16)?;
//! let (connection, who) = server.accept()?;
//! let mut question = [0; 1000];
//! let length = connection.recv(&mut question)?;
//! println!("domain {} asks {:?}", who.domain, &question[..length]);
//!
//! // In domain `web`.
//! let client = Socket::new(Kind::SeqPacket)?;
//! client.connect(("db", 7000))?;
//! client.send(b"how many?")?;
//! # Ok(())
//! # }
//! ```
//! docs/native-api.md is the reference, also of the same calls in C and Python.
#![forbid(unsafe_code)]

pub use fordway_capi::{ANY, BROADCAST, HOST, LOCAL, MESSAGE_BYTES_MAX};
pub use fordway_capi::{Address, ToAddress, domain_of, own_domain};
pub use fordway_capi::{Kind, Peeked, Received, Reserved, Socket, poll};

#[cfg(feature = "tokio")]
pub use fordway_capi::awaited;
