//! An HTTP/1.1 server for files, as a state machine and as a program.
#![no_std]
#![forbid(unsafe_code)]
