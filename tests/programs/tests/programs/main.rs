//! Real programs, one module each; see the library for what is asserted of all.

mod capture;
mod chrony;
mod datagrams;
mod dns;
mod everybody;
mod haproxy;
mod iperf3;
mod java;
mod memcached;
mod musl;
mod native;
mod nginx;
mod node;
mod postgresql;
mod python;
mod quic;
mod redis;
mod socat;
mod ssh;
mod stack;
mod stack_table;
mod statsd;
mod syslog;
mod udp;
mod vsock;
