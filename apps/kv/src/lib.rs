//! A key-value server that speaks the Redis protocol, as a state machine and as a program.
#![no_std]
#![forbid(unsafe_code)]
