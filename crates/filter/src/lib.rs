//! The packet filter in nftables' semantics: rules as data ([`model`]).
//!
//! Whoever reads rules (text, JSON) builds [`model::Op`]s and applies them to a
//! [`model::Ruleset`]; whoever lists rules walks the ruleset. No clock, no randomness,
//! no descriptors: everything comes in as an argument.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod hash;
pub mod model;
