//! The administrator's rules in the fabric: nf_tables for what goes over the kernel path.
//!
//! The domains are joined by a bridge, so their packets cross the hooks of families ip and
//! inet only where the kernel hands bridged packets to them (br_netfilter). There every
//! packet between domains comes in by the bridge and leaves by it ([`BRIDGE`]); family
//! bridge sees the switch ports. No domain's root can reach this namespace: it owns its
//! own, and this one is the broker's.
//!
//! A change is one transaction of nft: all or nothing. [`OWN_TABLE`] is not the
//! administrator's and stays.

use super::{BRIDGE, Fabric, FabricError, Result, directories, doing};
use crate::{conntrack, netns};
use fordway_abi::control::Protocol;
use fordway_abi::vsock;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The table of family bridge that says who may send what.
pub const OWN_TABLE: &str = "fordway";

/// The interface that families ip and inet see, both ways.
pub const RULES_DEVICE: &str = BRIDGE;

/// The switch port of an address: the interface that families bridge and netdev see.
pub fn port_of(ip: impl Into<IpAddr>) -> String {
    super::filter::port_name(super::filter::four_of(ip.into()))
}

/// The same of a CID, where the domains have this network.
pub fn port_of_cid(cid: u32, (base, prefix): (Ipv4Addr, u8)) -> String {
    let host = cid.saturating_sub(vsock::cid_of_host(0));
    let host_bits = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    match cid {
        vsock::CID_HOST => super::UPLINK_PORT.to_owned(),
        _ if host <= host_bits => {
            super::filter::port_name((base.to_bits() & !host_bits | host).into())
        }
        _ => super::filter::joined_port_name(host.into()),
    }
}

/// Whether the kernel of the fabric below `runtime_dir` has let the handshake of the
/// connection between these two names pass. False where it does not track connections.
pub fn handshake_has_passed(runtime_dir: &Path, names: (SocketAddr, SocketAddr)) -> Result<bool> {
    let what = "asking the fabric about a connection";
    match fabric_below(runtime_dir).map_err(doing(what))? {
        None => Ok(false),
        Some(namespace) => {
            conntrack::handshake_has_passed(namespace.as_fd(), names).map_err(doing(what))
        }
    }
}

/// Has the kernel of the fabric know these connections for so many seconds more; how many it
/// knows. It tracks only where a rule in force looks at connections.
pub fn keep_connections(
    runtime_dir: &Path,
    protocol: Protocol,
    connections: &[(SocketAddr, SocketAddr)],
    seconds: u32,
) -> Result<usize> {
    let what = "keeping connections in the fabric";
    match fabric_below(runtime_dir).map_err(doing(what))? {
        None => Ok(0),
        Some(namespace) => {
            conntrack::keep(namespace.as_fd(), protocol, connections, seconds).map_err(doing(what))
        }
    }
}

fn fabric_below(runtime_dir: &Path) -> std::io::Result<Option<OwnedFd>> {
    let [netns_dir, _] = directories(runtime_dir);
    netns::open(&netns_dir.join(super::FABRIC_FILE))
}

impl Fabric {
    /// Puts `rules` (nft's text of whole tables) in place of all tables but our own, or
    /// leaves everything as it is. `sees_ip`: there are base chains of families ip or inet.
    pub fn load_rules(&self, rules: &str, sees_ip: bool) -> Result<()> {
        if sees_ip {
            self.show_bridged_packets()?;
        }
        let mut batch = String::new();
        for table in self.foreign_tables()? {
            let _ = writeln!(batch, "delete table {table}");
        }
        batch.push_str(rules);
        if batch.is_empty() {
            return Ok(());
        }
        self.nft_in_fabric(&["-f", "-"], &batch).map(drop)
    }

    /// What the kernel has of the rules, with its counts, as nft's text.
    pub fn list_rules(&self) -> Result<String> {
        let mut text = String::new();
        for table in self.foreign_tables()? {
            let words: Vec<&str> = ["list", "table"]
                .into_iter()
                .chain(table.split(' '))
                .collect();
            text += &self.nft_in_fabric(&words, "")?;
        }
        Ok(text)
    }

    /// What the kernel has of all tables, [`OWN_TABLE`] as well, as its own messages.
    pub fn dump_rules(&self) -> Result<Vec<u8>> {
        crate::rules::dump(self.namespace.as_fd()).map_err(doing("reading the fabric's rules"))
    }

    /// `FAMILY NAME` of each table that is not ours.
    fn foreign_tables(&self) -> Result<Vec<String>> {
        let own = format!("bridge {OWN_TABLE}");
        let listing = self.nft_in_fabric(&["list", "tables"], "")?;
        let names = listing
            .lines()
            .filter_map(|line| line.trim().strip_prefix("table "));
        Ok(names
            .filter(|name| *name != own)
            .map(str::to_owned)
            .collect())
    }

    /// Has the kernel hand bridged packets to families ip and inet, and gives it the route
    /// by which a rejecting rule answers. Nothing is forwarded by it.
    fn show_bridged_packets(&self) -> Result<()> {
        // Whatever the network: what comes by the uplink may be rejected, too.
        self.ip_in_fabric(&["route", "replace", "default", "dev", BRIDGE])?;
        self.set("net/ipv4/ip_forward", "0")?;
        if super::has_ipv6() {
            self.ip_in_fabric(&["-6", "route", "replace", "default", "dev", BRIDGE])?;
        }
        let show = || {
            self.set("net/bridge/bridge-nf-call-iptables", "1")?;
            self.set("net/bridge/bridge-nf-call-ip6tables", "1")
        };
        if show().is_ok() {
            return Ok(());
        }
        let _ = std::process::Command::new("modprobe")
            .arg("br_netfilter")
            .stderr(std::process::Stdio::null())
            .status();
        show().map_err(|_| {
            let what = "the kernel does not show bridged packets to families ip and inet: \
                            load the module br_netfilter, or write the rules in family bridge";
            FabricError::Unsupported(what.into())
        })
    }

    /// Sets a variable of sysctl(8) in the fabric's namespace; /proc/sys/net shows that of
    /// the thread that looks.
    fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{name}");
        let written = netns::within(self.namespace.as_fd(), || std::fs::write(&path, value));
        written
            .flatten()
            .map_err(doing("setting a variable of the fabric"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cid_tells_its_port() {
        let network = (Ipv4Addr::new(10, 77, 0, 0), 24);
        for (cid, port) in [
            (2, "uplink"),
            (3, "p-0a4d0002"),
            (256, "p-0a4d00ff"),
            (0x0a58_0006, "v-0a580005"),
        ] {
            assert_eq!(port_of_cid(cid, network), port);
        }
    }
}
