//! The functions of `fordway_capi::c` as a shared library for programs of C. A crate of its own: Rust's programs link the
//! code itself, and a library for both would be built twice under one name where their features differ.
#![forbid(unsafe_code)]

extern crate fordway_capi as _;
