//! ICMP errors that arrive (RFC 792, RFC 4443 section 3): what they say, and to whom.
//!
//! ```text
//!   error ── quoted packet ──► ours? ──┬── TCP: sequence number in flight?
//!                                      └── UDP: a socket with these names?  ──► error, path MTU
//! ```
//! Nothing is believed that the quote does not prove (RFC 5927): its source must be an address
//! of ours, its names those of a socket; for "packet too big" it must be larger than what the
//! router claims to take. All else is dropped as [`Drop::Stray`]. What an error means follows
//! Linux's tables `icmp_err_convert` and `tab_unreach`: a hard one ends a connection attempt and
//! is told to a connected UDP socket once; a soft one says nothing to UDP.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::counters::Drop;
use crate::packet::{self, be16};
use crate::stack::{Error, Stack};

/// What an error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub error: Error,
    /// It will not pass by itself.
    pub is_hard: bool,
    /// The packet was too big for the next link, which takes so much.
    pub mtu_bytes: Option<usize>,
}

impl Said {
    fn new(error: Error, is_hard: bool) -> Said {
        Said {
            error,
            is_hard,
            mtu_bytes: None,
        }
    }

    fn too_big(mtu_bytes: usize) -> Said {
        Said {
            mtu_bytes: Some(mtu_bytes),
            ..Said::new(Error::TooLong, true)
        }
    }

    /// Of a message from its type on; `None` if it is no error.
    pub(crate) fn of_v4(message: &[u8; 8]) -> Option<Said> {
        let [kind, code, .., mtu_high, mtu_low] = *message;
        Some(match (kind, code) {
            (3, 0 | 11) => Said::new(Error::Unreachable, false),
            (3, 1 | 5 | 12) => Said::new(Error::HostUnreachable, false),
            (3, 2) => Said::new(Error::Protocol, true),
            (3, 3) => Said::new(Error::Refused, true),
            (3, 4) => Said::too_big(usize::from(u16::from_be_bytes([mtu_high, mtu_low]))),
            (3, 6 | 9) => Said::new(Error::Unreachable, true),
            (3, 7 | 8 | 10 | 13..=15) => Said::new(Error::HostUnreachable, true),
            (11, 0 | 1) => Said::new(Error::HostUnreachable, false),
            (12, 0..=2) => Said::new(Error::Protocol, true),
            _ => return None,
        })
    }

    #[cfg(feature = "ipv6")]
    pub(crate) fn of_v6(message: &[u8; 8]) -> Option<Said> {
        let [kind, code, _, _, a, b, c, d] = *message;
        Some(match (kind, code) {
            (1, 0) => Said::new(Error::Unreachable, false),
            (1, 1 | 5 | 6) => Said::new(Error::Denied, true),
            (1, 2 | 3) => Said::new(Error::HostUnreachable, false),
            (1, 4) => Said::new(Error::Refused, true),
            (2, _) => Said::too_big(u32::from_be_bytes([a, b, c, d]) as usize),
            (3, 0 | 1) => Said::new(Error::HostUnreachable, false),
            (4, 0..=2) => Said::new(Error::Protocol, true),
            _ => return None,
        })
    }
}

/// A packet of ours as an error quotes it: at least the ports of the first fragment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quote {
    pub protocol: u8,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// How long it was when it was sent.
    pub len_bytes: usize,
}

impl Quote {
    /// The quote is cut short: its lengths are not held against it.
    fn parse(quote: &[u8]) -> Option<Quote> {
        let (src, dst, protocol, at, len_bytes) = match quote.first()? >> 4 {
            4 => {
                let address = |at| Some(IpAddr::V4(Ipv4Addr::from_bits(packet::be32(quote, at)?)));
                let at = usize::from(quote[0] & 15) * 4;
                let is_first = be16(quote, 6)? & 0x1fff == 0;
                let protocol = is_first.then_some(*quote.get(9)?)?;
                let len = be16(quote, 2)?.into();
                (address(12)?, address(16)?, protocol, at, len)
            }
            #[cfg(feature = "ipv6")]
            6 => {
                let address = |at: usize| -> Option<IpAddr> {
                    let octets: [u8; 16] = quote.get(at..at + 16)?.try_into().ok()?;
                    Some(core::net::Ipv6Addr::from(octets).into())
                };
                let len = packet::IPV6 + usize::from(be16(quote, 4)?);
                // We send no header between but that of a fragment.
                let (protocol, at) = match *quote.get(6)? {
                    44 if be16(quote, packet::IPV6 + 2)? & 0xfff8 == 0 => {
                        (*quote.get(packet::IPV6)?, packet::IPV6 + 8)
                    }
                    other => (other, packet::IPV6),
                };
                (address(8)?, address(24)?, protocol, at, len)
            }
            _ => return None,
        };
        Some(Quote {
            protocol,
            local: SocketAddr::new(src, be16(quote, at)?),
            remote: SocketAddr::new(dst, be16(quote, at + 2)?),
            len_bytes,
        })
    }
}

impl Stack {
    /// `quote` is what follows the first eight bytes of the message.
    pub(crate) fn icmp_error_input(&mut self, quote: &[u8], said: Said) -> Result<(), Drop> {
        let quoted = Quote::parse(quote).ok_or(Drop::Malformed)?;
        let is_small = said.mtu_bytes.is_some_and(|mtu| quoted.len_bytes <= mtu);
        if !self.routing.is_own(&quoted.local.ip()) || is_small {
            return Err(Drop::Stray);
        }
        match quoted.protocol {
            #[cfg(feature = "tcp")]
            packet::TCP => {
                self.tcp_icmp_error(quote, &said);
                Ok(())
            }
            #[cfg(feature = "udp")]
            packet::UDP => self.udp_icmp_error(&quoted, &said),
            _ => Err(Drop::Stray),
        }
    }
}
