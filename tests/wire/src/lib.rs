//! Scripts that say what goes over the wire, packet by packet, and what a program's calls give:
//! after packetdrill's idea (Cardwell and others, 2013), in a language of our own.
//!
//! ```text
//!             script ──► player ──┬── Stack: the network stack, in a time that jumps
//!                                 └── Linux: a kernel's own sockets behind a tap device in a namespace
//! ```
//! The stack is set up as its crate does by itself, or as the unikernel does it ([`Setup`]).
//!
//! One script is played against both. Linux is the judge of the script: where it differs, the
//! script is wrong. Where the stack differs, the stack is, unless `known.txt` has a reason; a
//! line there that is no longer needed fails too.
//!
//! **The language.** One line is a time, a direction and what happens:
//!
//! ```text
//! # Three packets, and a call that is ready.
//! .            listen s 80
//! .            < tcp S seq 0 win 65535 <mss 1460,sackOK,wscale 7>
//! .            > tcp SA seq 0 ack 1 <mss 1460,sackOK,wscale *>
//! .            < tcp A seq 1 ack 1 win 512
//! .            accept s c
//! .            send c 5 = 5
//! 0..300ms     > tcp PA seq 1 ack 1 len 5
//! 150ms..2s    > tcp PA seq 1 ack 1 len 5
//! 100ms        nothing
//! ```
//! * `<` is a packet that arrives, `>` one that must come out next, `may` one that may, before
//!   the next; `nothing` is silence for so long; anything else is a call. The time of `>` is a range after the line before; of `<` and
//!   calls it is a wait; `.` is "soon" (at most 300 ms) or "at once".
//! * Ports: `p=40000` is the peer's, `o=80` ours; both stay until they are said again. Sequence
//!   numbers count from each side's SYN. What a `>` does not say is not compared, but flags,
//!   protocol and length are. `*` is any.
//! * `tcp FLAGS [seq N] [ack N] [win N] [urg N] [<options>] [len N | "bytes"]`, options `mss N`,
//!   `sackOK`, `wscale N`, `ts N` (the echo is what was last seen), `sack N:M ...`.
//! * `udp [len N | "bytes"]`; `icmp TYPE CODE [id N] [seq N] [mtu N] [quote] ["bytes"]`, where
//!   `quote` is the packet that came out last; `frag OFFSET LEN [more]` is a fragment that comes out.
//! * Of any packet: `ttl N`, `tos N`, `df`, `id N`; of one that arrives `bad ip` or `bad sum`, and
//!   `frag FROM..TO`: only these bytes of its payload, as a fragment.
//! * `%begin passive` (a listener `s` at port 80, its connection `c`), `%begin active` (`c`, to the
//!   peer's port 9000); `%family 6`; `%option NAME=VALUE` of sockets; `%linux SYSCTL=VALUE`; `%stack NAME=VALUE`.
//! * Calls: `call.rs` has the list. `= X` is the result: `ok` if absent, a number, `"bytes"`,
//!   `eof`, or an errno's name.
//!
//! **Time.** The stack's clock jumps, so its ranges are exact. Linux gets two seconds more, and
//! half of each lower bound, as we see its packets late. Questions about neighbors are answered
//! by the player and not seen by scripts, nor are Linux's own group reports.
#![forbid(unsafe_code)]

mod call;
mod linux;
mod packet;
mod player;
mod script;
mod stack;

pub use linux::Linux;
pub use player::play;
pub use script::{Script, scripts};
pub use stack::{Setup, StackSide};

use std::net::IpAddr;

/// Ethernet addresses: ours, the peer's.
pub const OWN_MAC: [u8; 6] = [2, 0xf0, 0, 0, 0, 0x57];
pub(crate) const PEER_MAC: [u8; 6] = [2, 0xf0, 0, 0, 0, 0x58];

/// Addresses of the side that is tried, and of the peer that the script plays.
pub fn address(is_ipv6: bool, is_own: bool) -> IpAddr {
    let host = if is_own { 1 } else { 2 };
    if is_ipv6 {
        IpAddr::from([0xfd88u16, 0, 0, 0, 0, 0, 0, host])
    } else {
        IpAddr::from([10, 88, 0, host as u8])
    }
}

/// What a script is played against. Times are microseconds of its own clock.
pub trait Side {
    fn name(&self) -> &'static str;
    fn now(&self) -> u64;
    /// Nothing happens until then but what comes by itself.
    fn wait(&mut self, until: u64);
    /// An Ethernet frame arrives.
    fn arrives(&mut self, frame: &[u8]);
    /// The next frame that goes out until then, and when.
    fn leaves(&mut self, until: u64) -> Option<(u64, Vec<u8>)>;
    /// A call of the program.
    fn call(&mut self, call: &call::Call) -> call::Answer;
    /// How much later than it should be something may be; and of how much of a least time all
    /// must be gone (per cent).
    fn leeway(&self) -> (u64, u64);
}
