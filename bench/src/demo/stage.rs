//! Where the demo plays: domains of its own, in a network that the host does not use.
//!
//! The broker's bridge lies in a network namespace of its own, so nothing could be disturbed. But
//! who reads an address on the screen shall not take it for one of the host's, or of the broker
//! that runs there.

use crate::work::ServerKind;
use anyhow::{Result, anyhow};
use fordway_lab::Place;
use std::net::Ipv4Addr;

/// Servers, each with its domain and the last byte of its address.
pub const SERVERS: [(ServerKind, &str, u8); 3] = [
    (ServerKind::Redis, DB, 3),
    (ServerKind::Nginx, "www", 4),
    (ServerKind::Iperf3, "store", 5),
];
/// The domain of redis.
pub const DB: &str = "db";
/// The domain of the clients.
pub const WEB: &str = "web";
/// The last byte of its address.
pub const WEB_HOST: u8 = 6;
/// Second bytes of networks 10.N.0.0/24; 77 is every broker's by default.
const CANDIDATES: std::ops::RangeInclusive<u8> = 78..=127;
/// For measuring, and no host's (RFC 2544, appendix C.2.2): where all of 10.0.0.0/8 is taken.
const LAST: [u8; 2] = [198, 18];

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    network: [u8; 2],
}

impl Stage {
    /// In a free network.
    pub fn find() -> Result<Stage> {
        let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
        let mut networks = CANDIDATES.map(|second| [10, second]).chain([LAST]);
        let network = networks.find(|network| !is_routed(&routes, network_of(*network)));
        let network = network.ok_or_else(|| {
            anyhow!("the host has routes to every network that the demo would use")
        })?;
        Ok(Stage { network })
    }

    /// In CIDR form.
    pub fn network(self) -> String {
        format!("{}/24", network_of(self.network))
    }

    /// The domain of a kind of servers.
    pub fn of(self, kind: ServerKind) -> Place {
        let server = SERVERS.iter().find(|server| server.0 == kind);
        let &(_, domain, host) = server.expect("the demo's works have these servers");
        self.place(domain, host)
    }

    /// The domain of the clients.
    pub fn client(self) -> Place {
        self.place(WEB, WEB_HOST)
    }

    fn place(self, domain: &str, host: u8) -> Place {
        let [first, second] = self.network;
        Place::domain(domain, [first, second, 0, host])
    }
}

fn network_of([first, second]: [u8; 2]) -> Ipv4Addr {
    Ipv4Addr::new(first, second, 0, 0)
}

/// Whether a route but the default one leads into `network`/24: lines of /proc/net/route, whose
/// fields 1 and 7 are address and mask, as the machine has them in memory (proc_pid_net(5)).
fn is_routed(routes: &str, network: Ipv4Addr) -> bool {
    let ours = u32::MAX << 8;
    routes.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| {
            let number = u32::from_str_radix(fields.get(index)?, 16).ok()?;
            Some(u32::from_be_bytes(number.to_le_bytes()))
        };
        let (Some(address), Some(mask)) = (number(1), number(7)) else {
            return false;
        };
        mask != 0 && (address ^ network.to_bits()) & mask & ours == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_with_a_route_is_not_taken() {
        let heading =
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
        let line = |destination: &str, mask: &str| {
            format!("{heading}eth0\t{destination}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n")
        };
        let network = Ipv4Addr::new(10, 78, 0, 0);
        let is_routed = |destination, mask| is_routed(&line(destination, mask), network);
        assert!(!is_routed("00000000", "00000000"), "the default route");
        assert!(is_routed("00004E0A", "00FFFFFF"), "10.78.0.0/24");
        assert!(is_routed("0000000A", "000000FF"), "10.0.0.0/8");
        assert!(is_routed("09004E0A", "FFFFFFFF"), "10.78.0.9/32");
        assert!(!is_routed("00004F0A", "00FFFFFF"), "10.79.0.0/24");
    }
}
