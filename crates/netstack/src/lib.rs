//! A TCP/IP stack for one program, without I/O: frames and time go in, frames and readiness
//! come out.
//!
//! ```text
//!   receive(now, frame)                                              transmit(now, buffer)
//!        │                                                                   ▲
//!        ▼                                                                   │
//!   Ethernet ── ARP, ND ◄──────────── neighbors ──────────────► replies, datagrams (outbox)
//!        │       └── autoconf: addresses, routers; reports of groups         │
//!       IP ── fragments ── filter ──┬── ICMP: echo, errors, ping ──► path MTUs
//!                                   ├── UDP: both names or port, groups ► queue  filter
//!                                   └── TCP: 5-tuple ──hash──► one flow ── dirty flows only
//!                                             │              half-open · TIME_WAIT
//!                                             └── listeners ──► accept queue
//!   event() ◄── flows, listeners and ports on which something happened, each once
//! ```
//! A hash table leads from a segment to its one flow; only flows with something to send or with
//! a timer that is due are looked at, so that many idle ones cost nothing.
//!
//! **Who wakes whom.** The caller gives each arriving frame to [`Stack::receive`], then drains
//! [`Stack::event`], then calls [`Stack::transmit`] until it answers `None`, then sleeps until a
//! frame arrives or [`Stack::poll_at`] has come. Sending only marks a flow; frames leave in
//! `transmit`.
//!
//! **Limits.** Everything that a foreign host can make grow is bounded by [`Limits`]: neighbors,
//! half-open connections (then SYN cookies), accept queues, flows, TIME_WAIT, reassembly, queued
//! datagrams, frames to be sent, path MTUs, what routers advertise, ICMP errors per second; and
//! groups that our own sockets join.
#![no_std]
#![forbid(unsafe_code)]
// What only a protocol that is left out uses is left out by the linker.
#![cfg_attr(
    not(all(
        feature = "tcp",
        feature = "udp",
        feature = "icmp",
        feature = "autoconf"
    )),
    allow(dead_code, unused_imports)
)]

extern crate alloc;

#[cfg(not(any(feature = "tcp", feature = "udp", feature = "icmp")))]
compile_error!("a stack without tcp, udp and icmp does nothing: enable one of them");
#[cfg(all(feature = "ipv6", not(feature = "icmp")))]
compile_error!("ipv6 finds its neighbors by ICMPv6: enable icmp too");
#[cfg(all(feature = "autoconf", not(feature = "ipv6")))]
compile_error!("autoconf makes addresses of IPv6: enable ipv6 too");
#[cfg(all(feature = "dhcp", not(feature = "udp")))]
compile_error!("dhcp is spoken over UDP: enable udp too");
#[cfg(all(feature = "dns", not(feature = "udp")))]
compile_error!("dns is asked over UDP: enable udp too");
#[cfg(all(feature = "fragments", not(any(feature = "udp", feature = "icmp"))))]
compile_error!("TCP never sends fragments: fragments needs udp or icmp");

/// Whether this build has TCP: who counts on none says so where it is compiled.
pub const HAS_TCP: bool = cfg!(feature = "tcp");

#[cfg(feature = "autoconf")]
mod advertised;
#[cfg(feature = "autoconf")]
mod autoconf;
mod checksum;
mod config;
mod counters;
#[cfg(feature = "dhcp")]
mod dhcp;
#[cfg(feature = "dns")]
mod dns;
#[cfg(feature = "icmp")]
mod errors;
#[cfg(feature = "filter")]
mod filter;
#[cfg(feature = "fragments")]
mod fragments;
mod frame;
#[cfg(feature = "udp")]
mod groups;
mod hash;
#[cfg(feature = "icmp")]
mod icmp;
#[cfg(feature = "udp")]
mod igmp;
mod ip;
#[cfg(feature = "autoconf")]
mod mld;
#[cfg(feature = "ipv6")]
mod ndp;
mod neighbor;
mod outbox;
mod packet;
mod path;
#[cfg(any(feature = "udp", feature = "autoconf"))]
mod reports;
mod route;
mod stack;
#[cfg(feature = "tcp")]
mod tcp;
#[cfg(feature = "udp")]
mod udp;

#[cfg(feature = "autoconf")]
pub use autoconf::{AddressState, Ipv6Options};
#[cfg(feature = "udp")]
pub use config::UdpOptions;
pub use config::{Config, Limits, Link, Offloads};
#[cfg(feature = "tcp")]
pub use config::{Congestion, Keepalive, TcpOptions};
pub use counters::{Counters, Drop};
#[cfg(feature = "dhcp")]
pub use dhcp::Lease;
#[cfg(feature = "dns")]
pub use dns::{DnsError, DnsId};
#[cfg(feature = "filter")]
pub use fordway_filter;
pub use frame::{Behind, ChecksumRequest, HEAD_BYTES_MIN, RxChecksum, RxFrame, TxFrame};
#[cfg(feature = "udp")]
pub use groups::Membership;
#[cfg(feature = "icmp")]
pub use icmp::PingReply;
pub use route::{Cidr, Route};
pub use stack::{Error, Event, Stack};
#[cfg(feature = "tcp")]
pub use tcp::{ListenerId, Ready, TcpCounts, TcpId, TcpInfo, TcpState};
#[cfg(feature = "udp")]
pub use udp::{Arrival, UdpId};

/// Microseconds of a clock that only goes forward.
pub type Micros = u64;
/// An Ethernet address.
pub type Mac = [u8; 6];

pub(crate) const SECOND_US: Micros = 1_000_000;
