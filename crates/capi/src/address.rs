//! Who a domain is: a number or a name, and the address of IPv4 that stands for it.
//!
//! A domain's number is its CID of AF_VSOCK (`fordway_abi::vsock`), whether or not the broker gives out CIDs: one more than
//! the host's part of its address. The network is that of the process's own device: `fordway0` on a host with an
//! uplink, the first one that is not loopback elsewhere. From [`FIRST_ADDRESS`] on, a number is an address of IPv4
//! itself, so that every peer has a number, also one outside the domains' network. Names are the resolver's matter.

use crate::c;
use fordway_abi::vsock;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs, UdpSocket};
use std::sync::OnceLock;

/// The own domain, by loopback.
pub const LOCAL: u32 = c::FORDWAY_LOCAL;
/// The host, at the far end of an uplink.
pub const HOST: u32 = c::FORDWAY_HOST;
/// All domains of the network; datagrams only.
pub const BROADCAST: u32 = c::FORDWAY_BROADCAST;
/// To bind to: each address of the own domain.
pub const ANY: u32 = c::FORDWAY_ANY;
/// The least number that is an address of IPv4.
const FIRST_ADDRESS: u32 = 1 << 24;

/// The end of a socket.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The domain's number.
    pub domain: u32,
    /// The port.
    pub port: u16,
}

/// What can be looked up: an address, a number and a port, a name and a port.
pub trait ToAddress {
    /// EHOSTUNREACH: there is no such domain.
    fn to_address(&self) -> io::Result<Address>;
}

impl ToAddress for Address {
    fn to_address(&self) -> io::Result<Address> {
        Ok(*self)
    }
}

impl ToAddress for (u32, u16) {
    fn to_address(&self) -> io::Result<Address> {
        let (domain, port) = *self;
        Ok(Address { domain, port })
    }
}

impl ToAddress for (&str, u16) {
    fn to_address(&self) -> io::Result<Address> {
        let (name, port) = *self;
        Ok(Address {
            domain: domain_of(name)?,
            port,
        })
    }
}

pub(crate) fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// The number of a domain by its name, or by its number in digits.
pub fn domain_of(name: &str) -> io::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = (name, 0).to_socket_addrs();
    let found = found.map_err(|_| error(libc::EHOSTUNREACH))?;
    let four = |address| match address {
        SocketAddr::V4(four) => Some(*four.ip()),
        SocketAddr::V6(_) => None,
    };
    let found = found.into_iter().find_map(four);
    found.map(number_of).ok_or(error(libc::EHOSTUNREACH))
}

/// The number of the process's own domain.
pub fn own_domain() -> io::Result<u32> {
    let network = network().ok_or(error(libc::ENETUNREACH))?;
    // What the kernel would send from there; nothing is sent.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((Ipv4Addr::from_bits(network.base + 1), 1))?;
    match socket.local_addr()? {
        SocketAddr::V4(own) => Ok(number_of(*own.ip())),
        SocketAddr::V6(_) => Err(error(libc::ENETUNREACH)),
    }
}

impl Address {
    pub(crate) fn kernels(self) -> io::Result<SocketAddrV4> {
        let unreachable = || error(libc::EHOSTUNREACH);
        let ip = match self.domain {
            ANY => Ipv4Addr::UNSPECIFIED,
            LOCAL => Ipv4Addr::LOCALHOST,
            BROADCAST => Ipv4Addr::from_bits(network().ok_or_else(unreachable)?.last()),
            FIRST_ADDRESS.. => Ipv4Addr::from_bits(self.domain),
            cid => {
                let network = network().ok_or_else(unreachable)?;
                let number = cid.checked_sub(vsock::cid_of_host(0));
                let ip = network.base + number.ok_or_else(unreachable)?;
                if !network.has(ip) {
                    return Err(unreachable());
                }
                Ipv4Addr::from_bits(ip)
            }
        };
        Ok(SocketAddrV4::new(ip, self.port))
    }

    pub(crate) fn of(name: SocketAddrV4) -> Self {
        Self {
            domain: number_of(*name.ip()),
            port: name.port(),
        }
    }
}

fn number_of(ip: Ipv4Addr) -> u32 {
    let bits = ip.to_bits();
    match network() {
        _ if ip.is_unspecified() => ANY,
        _ if ip.is_loopback() => LOCAL,
        Some(network) if network.has(bits) => vsock::cid_of_host(bits - network.base),
        Some(network) if network.last() == bits => BROADCAST,
        _ => bits,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    base: u32,
    mask: u32,
}

impl Network {
    fn last(self) -> u32 {
        self.base | !self.mask
    }

    /// Whether a host can have it.
    fn has(self, ip: u32) -> bool {
        ip & self.mask == self.base && ip != self.base && ip != self.last()
    }
}

/// That of the process's own device, once there is one.
fn network() -> Option<Network> {
    static KNOWN: OnceLock<Network> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Some(*known);
    }
    let routes = std::fs::read_to_string("/proc/thread-self/net/route").ok()?;
    let found = network_of(&routes)?;
    Some(*KNOWN.get_or_init(|| found))
}

/// By the kernel's routes (proc_pid_net(5)): device, destination, gateway, flags, three counts, mask.
fn network_of(routes: &str) -> Option<Network> {
    let networks = routes.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // In the order of bytes of the network, as this machine reads a word of them.
        let word = |index: usize| u32::from_str_radix(words.get(index)?, 16).ok();
        let (base, gateway, mask) = (word(1)?, word(2)?, u32::from_be(word(7)?));
        // With a shorter prefix a number could not be told from an address.
        let fits = gateway == 0 && (8..=30).contains(&mask.leading_ones());
        let base = u32::from_be(base);
        fits.then_some((words[0] == "fordway0", Network { base, mask }))
    });
    let mut networks: Vec<_> = networks.collect();
    networks.sort_by_key(|(is_uplink, _)| !is_uplink);
    networks.first().map(|(_, network)| *network)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n";
    const ETHERNET: &str = "eth0 0000A8C0 00000000 0001 0 0 0 0000FFFF 0 0 0\n";
    const BY_GATEWAY: &str = "eth0 00000000 0100A8C0 0003 0 0 0 00000000 0 0 0\n";
    const UPLINK: &str = "fordway0 00004D0A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";

    #[test]
    fn the_network_is_the_uplinks_or_else_the_first() {
        let network = |lines: &[&str]| {
            let found = network_of(&[&[HEAD], lines].concat().concat())?;
            Some((Ipv4Addr::from_bits(found.base), found.mask.leading_ones()))
        };
        let ethernet = (Ipv4Addr::new(192, 168, 0, 0), 16);
        let uplink = (Ipv4Addr::new(10, 77, 0, 0), 24);
        assert_eq!(network(&[]), None);
        assert_eq!(network(&[BY_GATEWAY]), None);
        assert_eq!(network(&[BY_GATEWAY, ETHERNET]), Some(ethernet));
        assert_eq!(network(&[ETHERNET, UPLINK]), Some(uplink));
    }

    #[test]
    fn a_number_and_an_address_say_each_other() {
        for ip in [
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::LOCALHOST,
            Ipv4Addr::new(203, 0, 113, 7),
        ] {
            let name = SocketAddrV4::new(ip, 7);
            assert_eq!(Address::of(name).kernels().ok(), Some(name));
        }
        let network = Network {
            base: 0x0a4d_0000,
            mask: 0xffff_ff00,
        };
        assert!(network.has(0x0a4d_0001) && network.has(0x0a4d_00fe));
        assert!(!network.has(0x0a4d_0000) && !network.has(0x0a4d_00ff));
        assert!(!network.has(0x0a4d_0101));
        assert_eq!(domain_of("17").ok(), Some(17));
        let nobody = domain_of("no-such-domain.invalid").map_err(|error| error.raw_os_error());
        assert_eq!(nobody, Err(Some(libc::EHOSTUNREACH)));
    }
}
