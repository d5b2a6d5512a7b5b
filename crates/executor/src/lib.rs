//! A cooperative executor with timers.
#![no_std]
#![forbid(unsafe_code)]
