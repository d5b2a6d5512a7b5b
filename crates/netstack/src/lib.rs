//! A TCP/IP stack for one program: smoltcp with a flow table, listeners and UDP demux.
#![no_std]
#![forbid(unsafe_code)]
