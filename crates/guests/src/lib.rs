//! What two brokers of guests of Xen agree on, whatever they run on: a Linux guest's, and the unikernel's.
//!
//! * [`addresses`](GuestAddresses): whose an address is, by dom0's word;
//! * [`meet`]: the nodes of XenStore by which they find each other;
//! * [`talk`]: the lines that they say to each other.
//!
//! What lies in the memory that they grant is `fordway_abi::shm`'s.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod addresses;
pub mod meet;
pub mod talk;

pub use addresses::{GuestAddresses, GuestAddressesError};
