//! Xen's public interface as types: hypercalls, start_info, grants, event channels, rings.
#![no_std]
#![forbid(unsafe_code)]

pub mod netif;
