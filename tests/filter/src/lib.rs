//! The packet filter beside the kernel's.
//!
//! A generator makes rulesets and packets from a seed ([`generate`]). The ruleset goes to
//! the kernel as text (`nft -f`) and to the filter as data; the packets go through a
//! namespace that routes or bridges ([`kernel`]), and through a small router of our own
//! around the filter ([`router`]). What came out, with which bytes, and what every counter
//! says must be the same ([`compare`]). A difference is shrunk to the smallest ruleset and
//! the fewest packets that still show it.

pub mod compare;
pub mod generate;
pub mod kernel;
pub mod packets;
pub mod router;
