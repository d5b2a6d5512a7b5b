//! The uplink: the host joined to the domains' network, as their way out and in.
//!
//! ```text
//!   fabric                         the host
//!   bridge fw0 ── uplink ═══ fordway0 10.77.0.1 ── route, table ip fordway ── its other devices
//! ```
//! Domains have a default route by the host's address. Table `ip fordway` of the host lets
//! them out under the host's addresses (masquerade) and lets in what it published: map
//! `published` leads a port of the host to one of a domain, and nothing else from outside
//! gets to a domain. The host's own packets, what is an answer, and attached domains (set
//! `attached`) pass. These and the domains see each other's own addresses: a connection between
//! them has two names that mirror each other, and so may have rings.
//!
//! The kernel's objects are the record, and whoever comes next goes by them:
//!
//! | object | says |
//! |---|---|
//! | port `uplink` of the bridge | there is an uplink |
//! | alias of `fordway0` | the runtime directory of the broker that made it |
//! | elements of map `published` | what is published; the address tells the domain |
//! | chain `forwarding_was_off` | who removes the uplink switches IPv4 forwarding off again |
//!
//! The port comes first and goes last. Laying is done anew by each broker that starts
//! with an uplink; the text of the tables is such that a second time changes nothing.
//!
//! All of this is IPv4, but for AF_VSOCK: where domains have CIDs, `fordway0` has the address that stands for CID 2
//! (linux/vm_sockets.h: VMADDR_CID_HOST), and table `ip6 fordway` of the host lets packets between that one and CIDs
//! through the device, and nothing else. To forward IPv6 the host would have to be a router for all its devices, and a
//! router takes no addresses and no default route from other routers' advertisements any more (linux:
//! ip-sysctl, accept_ra): a host could lose its own way out by it.
//!
//! An address of the domains' network still belongs to one port: from the port `uplink`
//! the bridge takes what has the host's address there, or a source outside the network
//! ([`super::filter`]). So neither the host nor who sends through it can speak as a domain.
//! From one domain by the host to another goes only what was published.

use super::filter::{RULES, UPLINK_ELEMENTS, elements, mac_of};
use super::tool::{ip_batch, run_in};
use super::{
    DOMAIN_DEVICE, Fabric, FabricError, Lease, Plug, Result, UPLINK_DEVICE, UPLINK_PORT, doing,
    has_ipv6, hosts, joined,
};
use crate::launch::HOSTS;
use crate::netns;
use std::fmt::{self, Write as _};
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::str::FromStr;

const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
/// So that what 127.0.0.1 sends to a published port may leave by `fordway0`, and the answer come
/// back; chain `not_by_detours` shuts out what a domain would send there.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/fordway0/route_localnet";
const WAS_OFF: &str = "forwarding_was_off";
/// A route this short is a way out, and no network that somebody has.
const PREFIX_MIN: u8 = 8;

/// The table of the host; what is not a rule stays through it.
const TABLE: &str = "
add table ip fordway
flush table ip fordway
table ip fordway {
	map published {
		type inet_proto . ipv4_addr . inet_service : ipv4_addr . inet_service
		flags interval
	}
	set attached {
		type ipv4_addr
	}
	chain not_by_detours {
		type filter hook prerouting priority raw; policy accept;
		iifname DEVICE ip daddr 127.0.0.0/8 drop
		ip saddr @attached ip daddr NETWORK fib saddr . iif oif missing drop
	}
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		fib daddr type local meta l4proto { tcp, udp } dnat ip to meta l4proto . ip daddr . th dport map @published
	}
	chain output {
		type nat hook output priority -100; policy accept;
		fib daddr type local meta l4proto { tcp, udp } dnat ip to meta l4proto . ip daddr . th dport map @published
	}
	chain forward {
		type filter hook forward priority filter; policy accept;
		oifname DEVICE ct state established,related accept
		oifname DEVICE ct status dnat accept
		oifname DEVICE ip saddr @attached accept
		oifname DEVICE drop
	}
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr NETWORK ip daddr @attached accept
		ip saddr NETWORK ip daddr != NETWORK masquerade
		oifname DEVICE ip saddr { NETWORK, 127.0.0.0/8 } masquerade
	}
}
";

/// What a port carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        })
    }
}

/// A port of the host that leads to one of a domain: `[ADDRESS:]PORT:PORT[/udp]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publication {
    protocol: Protocol,
    /// Of the host; `None` for all that it has.
    address: Option<Ipv4Addr>,
    host_port: u16,
    port: u16,
}

impl Publication {
    /// Whether some packet is meant by both.
    pub fn meets(&self, other: &Publication) -> bool {
        let apart = matches!((self.address, other.address), (Some(one), Some(two)) if one != two);
        self.protocol == other.protocol && self.host_port == other.host_port && !apart
    }

    /// Whether the host can be asked for this port: it has the address, and no program has it.
    pub fn try_bind(&self) -> std::io::Result<()> {
        let at = (
            self.address.unwrap_or(Ipv4Addr::UNSPECIFIED),
            self.host_port,
        );
        match self.protocol {
            Protocol::Tcp => std::net::TcpListener::bind(at).map(drop),
            Protocol::Udp => std::net::UdpSocket::bind(at).map(drop),
        }
    }

    /// As nft writes the key of its element.
    fn key(&self) -> String {
        let address = match self.address {
            Some(address) => address.to_string(),
            None => "0.0.0.0/0".into(),
        };
        format!("{} . {address} . {}", self.protocol, self.host_port)
    }
}

impl fmt::Display for Publication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.address {
            write!(f, "{address}:")?;
        }
        write!(f, "{}:{}", self.host_port, self.port)?;
        match self.protocol {
            Protocol::Tcp => Ok(()),
            Protocol::Udp => f.write_str("/udp"),
        }
    }
}

impl FromStr for Publication {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (ports, protocol) = match text.split_once('/') {
            Some((ports, "udp")) => (ports, Some(Protocol::Udp)),
            Some((ports, "tcp")) => (ports, Some(Protocol::Tcp)),
            Some(_) => (text, None),
            None => (text, Some(Protocol::Tcp)),
        };
        let number = |word: &str| word.parse().ok().filter(|port: &u16| *port != 0);
        let words: Vec<&str> = ports.split(':').collect();
        let read = match words[..] {
            [host_port, port] => Some((None, number(host_port), number(port))),
            [address, host_port, port] => address
                .parse()
                .ok()
                .map(|address| (Some(address), number(host_port), number(port))),
            _ => None,
        };
        let (Some((address, Some(host_port), Some(port))), Some(protocol)) = (read, protocol)
        else {
            return Err(
                "give a port of the host and one of the domain, as 8080:80, 127.0.0.1:8080:80 or 53:53/udp"
                    .into(),
            );
        };
        Ok(Publication {
            protocol,
            address: address.filter(|address: &Ipv4Addr| !address.is_unspecified()),
            host_port,
            port,
        })
    }
}

/// Reads the elements of map `published` in nft's listing: `tcp . 0.0.0.0/0 . 8080 : 10.77.0.3 . 80`.
fn parse_published(listing: &str) -> Vec<(Publication, Ipv4Addr)> {
    let elements = listing
        .split_once("elements = {")
        .map_or("", |(_, rest)| rest);
    let elements = elements.split('}').next().unwrap_or("");
    let element = |text: &str| {
        let (key, target) = text.split_once(" : ")?;
        let (address, port) = target.trim().split_once(" . ")?;
        let words: Vec<&str> = key.trim().split(" . ").collect();
        let &[protocol, host, host_port] = &words[..] else {
            return None;
        };
        let publication = format!(
            "{}:{host_port}:{port}/{protocol}",
            host.trim_end_matches("/0")
        );
        Some((publication.parse().ok()?, address.parse().ok()?))
    };
    elements.split(',').filter_map(element).collect()
}

/// The network of an address.
fn network(ip: Ipv4Addr, prefix: u8) -> String {
    format!("{}/{prefix}", masked(ip, prefix))
}

fn masked(ip: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    Ipv4Addr::from_bits(ip.to_bits() & mask)
}

/// The first destination in a listing of `ip -o route` or `ip -o addr` that shares an address with
/// the network, and is not the uplink's own.
fn overlap(listing: &str, ip: Ipv4Addr, prefix: u8) -> Option<&str> {
    listing
        .lines()
        .filter(|line| !line.split(' ').any(|word| word == UPLINK_DEVICE))
        .find(|line| {
            let destination = line.split_whitespace().find_map(|word| {
                let (address, length) = word.split_once('/').unwrap_or((word, "32"));
                Some((address.parse::<Ipv4Addr>().ok()?, length.parse().ok()?))
            });
            destination.is_some_and(|(address, length): (Ipv4Addr, u8)| {
                let common = length.min(prefix);
                length >= PREFIX_MIN && masked(address, common) == masked(ip, common)
            })
        })
        .map(str::trim)
}

/// The first words of such a line: what, where.
fn shortened(line: &str) -> String {
    line.split_whitespace()
        .take(4)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The network namespace that the caller is in.
fn host() -> Result<OwnedFd> {
    netns::of_process(std::process::id() as i32)
        .map_err(doing("opening the host's network namespace"))
}

fn in_host(program: &'static str, args: &[&str], input: &str) -> Result<String> {
    run_in(host()?.as_fd(), program, args, input)
}

/// Whether a variable of sysctl(8) of the host has this value.
fn is_set(path: &str, value: &str) -> Result<bool> {
    let text = fs::read_to_string(path).map_err(doing("reading a variable of sysctl"))?;
    Ok(text.trim() == value)
}

/// Sets one, unless it is set: that may be not permitted.
fn set(path: &str, value: &str) -> Result<()> {
    match is_set(path, value)? {
        true => Ok(()),
        false => fs::write(path, value).map_err(doing("setting a variable of sysctl")),
    }
}

/// Of the device `fordway0` of the host, if it is there.
fn device_address() -> Option<Ipv4Addr> {
    let listing = in_host(
        "ip",
        &["-o", "-4", "addr", "show", "dev", UPLINK_DEVICE],
        "",
    )
    .ok()?;
    let mut words = listing.split_whitespace();
    words.find(|word| *word == "inet")?;
    words.next()?.split('/').next()?.parse().ok()
}

/// Refuses what would take somebody's network away.
fn check_free(ip: Ipv4Addr, prefix: u8) -> Result<()> {
    if let Ok(link) = in_host("ip", &["-o", "link", "show", "dev", UPLINK_DEVICE], "") {
        let owner = link.split_once("alias ").map(|(_, owner)| owner.trim());
        return Err(FabricError::Taken(match owner {
            Some(owner) => format!(
                "the host has an uplink of another broker, that of {owner}: end it with \
                 fordway --runtime-dir {owner} down, or start this one without an uplink"
            ),
            None => format!(
                "the host has a device {UPLINK_DEVICE} of unknown origin: remove it with ip link del {UPLINK_DEVICE}"
            ),
        }));
    }
    for args in [["-o", "-4", "addr"], ["-o", "-4", "route"]] {
        let listing = in_host("ip", &args, "")?;
        if let Some(other) = overlap(&listing, ip, prefix) {
            let (network, other) = (network(ip, prefix), shortened(other));
            return Err(FabricError::Taken(format!(
                "the host's own network has addresses of {network} ({other}); give the domains another with --network"
            )));
        }
    }
    Ok(())
}

impl Fabric {
    /// Joins the host to the bridge as `ip`, by a veth whose end `fordway0` lies in
    /// the caller's network namespace, and gives the domains their way out. What is there
    /// already is made whole.
    /// `vsock`: with a CID.
    pub fn add_uplink(&self, ip: Ipv4Addr, prefix: u8, vsock: bool) -> Result<()> {
        if self.has_uplink() && device_address() != Some(ip) {
            self.remove_uplink()?;
        }
        if !self.has_uplink() {
            check_free(ip, prefix)?;
        }
        let lease = Lease {
            prefix,
            vsock,
            ..Lease::of(ip)
        };
        let laid = self.lay_uplink(&lease);
        if laid.is_err() {
            let _ = self.remove_uplink();
        }
        laid
    }

    fn lay_uplink(&self, lease: &Lease) -> Result<()> {
        let &Lease { ip, prefix, .. } = lease;
        let host = host()?;
        // Before there is anything to be reached.
        if let Some(own) = lease.vsock_address() {
            joined::keep_to_vsock(host.as_fd(), own)?;
        }
        if !self.has_uplink() {
            let path = format!("/proc/{}/ns/net", std::process::id());
            self.plug(&Plug {
                port: UPLINK_PORT,
                alias: "",
                device: UPLINK_DEVICE,
                namespace: host.as_fd(),
                namespace_path: Path::new(&path),
                lease,
            })?;
        }
        match lease.vsock_address() {
            Some(_) => self.lay_vsock(host.as_fd(), lease)?,
            None if has_ipv6() => joined::switch_ipv6(host.as_fd(), false)?,
            None => {}
        }
        let owner = self.runtime_dir().display().to_string();
        in_host(
            "ip",
            &["link", "set", "dev", UPLINK_DEVICE, "alias", &owner],
            "",
        )?;
        let network = network(ip, prefix);
        let own = UPLINK_ELEMENTS
            .replace("MAC", &mac_of(ip))
            .replace("NETWORK", &network);
        self.nft_in_fabric(&["-f", "-"], &(RULES.to_owned() + &own))?;

        let mut table = TABLE
            .replace("DEVICE", UPLINK_DEVICE)
            .replace("NETWORK", &network);
        if !is_set(FORWARDING, "1")? {
            let _ = writeln!(table, "add chain ip fordway {WAS_OFF}");
        }
        in_host("nft", &["-f", "-"], &table)?;
        set(FORWARDING, "1")?;
        set(ROUTE_LOCALNET, "1")?;

        let domains = self.existing()?;
        for domain in &domains {
            self.route_by_uplink(&domain.name, ip)?;
        }
        let is_left = |ip: &Ipv4Addr| !domains.iter().any(|domain| domain.lease.ip == *ip);
        let published = self.published()?;
        for (_, ip) in published.iter().filter(|(_, ip)| is_left(ip)) {
            self.unpublish(*ip)?;
        }
        Ok(())
    }

    /// What makes of the host's end CID 2, also of one that a broker without CIDs has laid.
    fn lay_vsock(&self, host: BorrowedFd<'_>, lease: &Lease) -> Result<()> {
        self.nft_in_fabric(&["-f", "-"], &elements("add", UPLINK_PORT, lease))?;
        joined::switch_ipv6(host, true)?;
        let words = lease.led_addresses(UPLINK_DEVICE) + &lease.led_routes(UPLINK_DEVICE);
        ip_batch(host, &words)?;
        joined::have_local(host, true);
        let path = format!("/proc/{}/ns/net", std::process::id());
        self.note_joined(host, Path::new(&path), lease)
    }

    /// Takes the host from the bridge, with all that was laid for it; nothing if it is not joined.
    pub fn remove_uplink(&self) -> Result<()> {
        if !self.has_uplink() {
            return Ok(());
        }
        hosts::remove_block(Path::new(HOSTS), self.runtime_dir())
            .map_err(doing("removing names from /etc/hosts"))?;
        let address = device_address();
        if let Some(ip) = address {
            if in_host("nft", &["list", "chain", "ip", "fordway", WAS_OFF], "").is_ok() {
                set(FORWARDING, "0")?;
            }
            let lease = Lease {
                // Whatever it was: the first number of any network ends in this bit.
                prefix: 31,
                // Also what an earlier broker may have laid of it.
                vsock: true,
                ..Lease::of(ip)
            };
            // First: without the tables, domains would reach what is the host's alone.
            self.unplug(UPLINK_PORT, &lease)?;
            self.forget_joined(&lease);
            in_host(
                "nft",
                &["-f", "-"],
                "add table ip fordway\ndelete table ip fordway\n",
            )?;
            joined::keep_no_more(host()?.as_fd());
            for domain in self.existing()? {
                // It may have taken the route away itself.
                let _ = self.default_route("del", &domain.name, ip);
            }
        } else {
            // Its far end is in some other namespace, and goes from there.
            self.ip_in_fabric(&["link", "del", "dev", UPLINK_PORT])?;
        }
        let flush = "flush set bridge fordway routers\nflush set bridge fordway never_routed\n";
        // A table of an older broker has no such sets.
        let _ = self.nft_in_fabric(&["-f", "-"], flush);
        Ok(())
    }

    /// Whether the host is joined.
    pub fn has_uplink(&self) -> bool {
        self.has_device(UPLINK_PORT)
    }

    /// The domain's way out; one that it has of its own stays.
    pub(super) fn route_by_uplink(&self, name: &str, ip: Ipv4Addr) -> Result<()> {
        if self.driver_file(name).exists() {
            // Its stack has routes of its own.
            return Ok(());
        }
        let there = self.ip_in_domain(name, &["route", "show", "default"])?;
        match there.trim().is_empty() {
            true => self.default_route("add", name, ip),
            false => Ok(()),
        }
    }

    fn default_route(&self, verb: &str, name: &str, ip: Ipv4Addr) -> Result<()> {
        let ip = ip.to_string();
        let args = ["route", verb, "default", "via", &ip, "dev", DOMAIN_DEVICE];
        self.ip_in_domain(name, &args).map(drop)
    }

    /// The uplink's address, if there is one.
    pub(super) fn uplink_address(&self) -> Option<Ipv4Addr> {
        self.has_uplink().then(device_address).flatten()
    }

    /// Lets domains that others made, such as containers, come and be reached under their own
    /// addresses; others no more.
    pub fn let_attached(&self, addresses: &[Ipv4Addr]) -> Result<()> {
        let mut batch = String::from("flush set ip fordway attached\n");
        for ip in addresses {
            let _ = writeln!(batch, "add element ip fordway attached {{ {ip} }}");
        }
        in_host("nft", &["-f", "-"], &batch).map(drop)
    }

    /// Publishes ports of the domain that has this address. That none of them meets another, the
    /// caller has seen to.
    pub fn publish(&self, ip: Ipv4Addr, publications: &[Publication]) -> Result<()> {
        self.change_published(
            "add",
            &publications
                .iter()
                .map(|one| (*one, ip))
                .collect::<Vec<_>>(),
        )
    }

    /// Takes back what was published of the domain that has this address.
    pub fn unpublish(&self, ip: Ipv4Addr) -> Result<()> {
        let mut published = self.published()?;
        published.retain(|(_, of)| *of == ip);
        self.change_published("delete", &published)
    }

    fn change_published(&self, verb: &str, elements: &[(Publication, Ipv4Addr)]) -> Result<()> {
        let mut batch = String::new();
        for (one, ip) in elements {
            let key = one.key();
            let port = one.port;
            let _ = writeln!(
                batch,
                "{verb} element ip fordway published {{ {key} : {ip} . {port} }}"
            );
        }
        match batch.is_empty() {
            true => Ok(()),
            false => in_host("nft", &["-f", "-"], &batch).map(drop),
        }
    }

    /// What is published, with the address of its domain; by the kernel's own list.
    pub fn published(&self) -> Result<Vec<(Publication, Ipv4Addr)>> {
        if !self.has_uplink() {
            return Ok(Vec::new());
        }
        let listing = in_host("nft", &["list", "map", "ip", "fordway", "published"], "")?;
        Ok(parse_published(&listing))
    }

    fn ip_in_domain(&self, name: &str, args: &[&str]) -> Result<String> {
        let namespace = netns::open(&self.netns_dir.join(name))
            .map_err(doing("opening a domain"))?
            .ok_or_else(|| FabricError::NotFound(name.into()))?;
        run_in(namespace.as_fd(), "ip", args, "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publications_are_read_and_written() {
        for (text, again) in [
            ("8080:80", "8080:80"),
            ("8080:80/tcp", "8080:80"),
            ("0.0.0.0:8080:80", "8080:80"),
            ("127.0.0.1:53:5353/udp", "127.0.0.1:53:5353/udp"),
        ] {
            let read: Publication = text.parse().expect(text);
            assert_eq!(read.to_string(), again);
        }
        for bad in [
            "",
            "80",
            "80:",
            ":80",
            "0:80",
            "80:0",
            "65536:80",
            "80:80/sctp",
            "host:80:80",
            "1:2:3:4",
            "::1:80:80",
            "80:80/",
            "-1:80",
        ] {
            assert!(bad.parse::<Publication>().is_err(), "{bad}");
        }
        let meets = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|text| text.parse::<Publication>().expect(text));
            assert_eq!(one.meets(&other), other.meets(&one));
            one.meets(&other)
        };
        assert!(meets("80:1", "80:2") && meets("80:1", "127.0.0.1:80:1"));
        assert!(!meets("80:1", "81:1") && !meets("80:1", "80:1/udp"));
        assert!(!meets("127.0.0.2:80:1", "127.0.0.1:80:1"));
    }

    #[test]
    fn what_is_published_is_read_back_from_the_kernels_listing() {
        let listing = "table ip fordway {\n\tmap published {\n\t\ttype inet_proto . ipv4_addr . inet_service : ipv4_addr . inet_service\n\t\tflags interval\n\
            \t\telements = { tcp . 0.0.0.0/0 . 8080 : 10.77.0.3 . 80,\n\t\t\t     udp . 127.0.0.1 . 53 : 10.77.0.4 . 5353 }\n\t}\n}\n";
        let read = parse_published(listing);
        let read: Vec<String> = read.iter().map(|(one, ip)| format!("{one} {ip}")).collect();
        assert_eq!(
            read,
            ["8080:80 10.77.0.3", "127.0.0.1:53:5353/udp 10.77.0.4"]
        );
        assert!(parse_published("table ip fordway {\n\tmap published {\n\t}\n}\n").is_empty());
    }

    #[test]
    fn networks_of_the_host_are_found_that_the_domains_would_take() {
        let taken = |listing: &str| overlap(listing, Ipv4Addr::new(10, 77, 0, 1), 24).is_some();
        for listing in [
            "2: eth0    inet 10.77.0.9/24 brd 10.77.0.255 scope global eth0",
            "10.0.0.0/8 via 192.0.2.1 dev tun0",
            "10.77.0.77 dev wg0 scope link",
            "unreachable 10.77.0.128/25",
        ] {
            assert!(taken(listing), "{listing}");
        }
        for listing in [
            "default via 192.0.2.1 dev eth0",
            "0.0.0.0/1 via 192.0.2.1 dev tun0",
            "10.77.1.0/24 dev eth1 proto kernel scope link src 10.77.1.1",
            "10.77.0.0/24 dev fordway0 proto kernel scope link src 10.77.0.1",
            "7: fordway0    inet 10.77.0.1/24 brd 10.77.0.255 scope global fordway0",
        ] {
            assert!(!taken(listing), "{listing}");
        }
    }
}
