//! The network frontend: Xen netif rings as a driver without unsafe code.
#![no_std]
#![forbid(unsafe_code)]
