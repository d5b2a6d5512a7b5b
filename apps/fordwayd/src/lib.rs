//! The broker: who is who, rendezvous, death.
#![forbid(unsafe_code)]

pub mod admin;
