//! IPv6 of the stack by itself: addresses asked for before they are used, groups reported, routers heard.
//!
//! ```text
//!   configured address ── asked for (or not) ──► ours
//!                             └── somebody else has it ──► never used; a line in the log, a count
//!   router's word ── default way, networks on the link, MTU, hop limit ── and addresses, at a port of a network of others
//! ```
//! What is done by itself follows from the port, unless the configuration says otherwise. By a packet socket the stack is one more host in a
//! network of others, and does as a Linux host there would. The fabric's bridge lets nobody but a domain speak for the domain's address, nor anybody
//! for a router: there is nothing to ask for, and nobody to hear.
//!
//! Nothing waits for a question: sockets are there at once, and IPv4. An address that is being asked for cannot be bound yet, as on Linux.

use crate::config::{Config, PortConfig};
use crate::server::Server;
use anyhow::Result;
use fordway_driver::tell;
use fordway_netstack::{AddressState, Cidr, Ipv6Options, Stack};
use std::net::IpAddr;

/// Duplicates that have a line each; of more, only some have.
const LINES_MAX: u64 = 16;

impl Config {
    /// How IPv6 begins, if programs are to have it.
    fn ipv6_options(&self) -> Option<Ipv6Options> {
        let is_among_others = matches!(self.port, PortConfig::Packet(_));
        self.serves("ipv6").then(|| Ipv6Options {
            detects_duplicates: self.detects_duplicates.unwrap_or(is_among_others),
            asks_routers: self.router_advertisements.unwrap_or(is_among_others),
            // What comes from an address that the broker has not given gets no farther than driver and bridge.
            makes_addresses: is_among_others,
        })
    }
}

/// Gives a stack its addresses.
pub(crate) fn begin(stack: &mut Stack, config: &Config, now: u64) -> Result<()> {
    let addresses = config.addresses()?;
    let Some(options) = config.ipv6_options() else {
        stack.set_addresses(&addresses);
        return Ok(());
    };
    let is_asked = |own: &Cidr| options.detects_duplicates && own.address.is_ipv6();
    let (asked, at_once): (Vec<_>, Vec<_>) = addresses.into_iter().partition(is_asked);
    stack.set_addresses(&at_once);
    stack.ipv6_start(now, options);
    for own in asked {
        // One that stands there twice, as that of the link may, is asked for already.
        let _ = stack.ipv6_add(now, own);
    }
    Ok(())
}

impl Server {
    /// An address has become ours, or is somebody else's.
    pub(crate) fn heed_addresses(&mut self) {
        let is_taken = |(_, state): &(Cidr, AddressState)| *state == AddressState::Duplicate;
        let taken = self.stack.ipv6_addresses().filter(is_taken);
        let taken: Vec<IpAddr> = taken.map(|(own, _)| own.address).collect();
        let known = std::mem::replace(&mut self.taken_addresses, taken);
        let count = self.stack.counters().duplicate_addresses;
        for address in &self.taken_addresses {
            // Whoever can say what is on the link is not to fill the log.
            if !known.contains(address) && (count <= LINES_MAX || count.is_power_of_two()) {
                tell(&format!(
                    "fordway-stackd: {address}: another host has this address, so it is not used (duplicate {count})\n"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(more: &str) -> Option<Ipv6Options> {
        let text = format!(
            r#"{{"control_socket": "/run/s", "netns_cookie": 7, "mac": "02:00:00:00:00:05", "addresses": [], {more}}}"#
        );
        let config: Config = serde_json::from_str(&text).expect("a configuration");
        config.ipv6_options()
    }

    #[test]
    fn the_port_says_what_a_stack_does_by_itself() {
        let all = |detects_duplicates, asks_routers, makes_addresses| {
            Some(Ipv6Options {
                detects_duplicates,
                asks_routers,
                makes_addresses,
            })
        };
        let (packet, tap) = (r#""port": {"packet": "eth0"}"#, r#""port": {"tap": 7}"#);
        let queue = r#""port": {"queue": {"link": 7}}"#;
        assert_eq!(options(packet), all(true, true, true));
        assert_eq!(options(tap), all(false, false, false));
        assert_eq!(options(queue), all(false, false, false));
        // Whatever is asked for: no address that bridge and driver would not let pass.
        let asked = r#", "detects_duplicates": true, "router_advertisements": true"#;
        assert_eq!(options(&(queue.to_owned() + asked)), all(true, true, false));
        let refused = r#", "detects_duplicates": false, "router_advertisements": false"#;
        assert_eq!(
            options(&(packet.to_owned() + refused)),
            all(false, false, true)
        );
        let four = r#", "protocols": ["tcp"]"#;
        assert_eq!(options(&(packet.to_owned() + four)), None);
    }
}
