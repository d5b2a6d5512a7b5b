//! Namespaces that others made, in the domains' network for AF_VSOCK alone: the host (`uplink`) and attached domains.
//!
//! ```text
//!   bridge fw0 ── v-0a580005 ═══ fordway0 of the container 10.88.0.5    CID 10.88.0.5 + 1
//!             ── uplink     ═══ fordway0 of the host                   CID 2
//! ```
//! Such a port may send from the address that stands for its CID, and from nothing else; the uplink's may also send what `uplink` says. The
//! container has its own network beside it, of which nothing is changed. As with domains, the kernel's list of ports is the
//! record. So that what was laid can be taken back, the fabric keeps in mind by which paths the namespaces were found.
//! It holds none: a namespace ends with its last process, and its port with it.

use super::filter::{LEADER, link_local_of};
use super::tool::{ip_batch, run_in};
use super::{Fabric, Lease, Plug, Port, Result, UPLINK_DEVICE, alias, doing};
use crate::netns;
use fordway_abi::vsock;
use std::fs;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What such a namespace takes, and from where: what a domain sends to its MAC goes no further than to its CID's address,
/// and what is bound to CID 1 is reached by its loopback device alone, although Linux takes what is for any of its addresses by each device.
const RULES: &str = "
add table ip6 fordway
flush table ip6 fordway
table ip6 fordway {
	chain vsock_only {
		type filter hook prerouting priority raw; policy accept;
		iifname DEVICE ip6 saddr CIDS ip6 daddr OWN accept
		iifname DEVICE ip6 saddr LEADER ip6 daddr OWN icmpv6 type destination-unreachable accept
		iifname lo accept
		iifname DEVICE drop
		ip6 saddr CIDS drop
		ip6 daddr CIDS drop
	}
}
";

/// Puts these rules in force, before the device is there.
pub(super) fn keep_to_vsock(namespace: BorrowedFd<'_>, own: Ipv6Addr) -> Result<()> {
    let cids = format!("{}/{}", vsock::address_of(0), vsock::PREFIX_BITS);
    let rules = RULES
        .replace("DEVICE", UPLINK_DEVICE)
        .replace("CIDS", &cids)
        .replace("LEADER", &link_local_of(LEADER).to_string())
        .replace("OWN", &own.to_string());
    run_in(namespace, "nft", &["-f", "-"], &rules).map(drop)
}

/// Takes them back, and the address of CID 1. A kernel without IPv6 has none.
pub(super) fn keep_no_more(namespace: BorrowedFd<'_>) {
    have_local(namespace, false);
    let gone = "add table ip6 fordway\ndelete table ip6 fordway\n";
    let _ = run_in(namespace, "nft", &["-f", "-"], gone);
}

/// A namespace that has joined.
#[derive(Debug)]
pub(super) struct Joined {
    path: PathBuf,
    /// Shows that the path still leads there.
    cookie: u64,
    lease: Lease,
}

impl Joined {
    fn open(&self) -> Option<OwnedFd> {
        let namespace: OwnedFd = fs::File::open(&self.path).ok()?.into();
        let is_it = netns::cookie(namespace.as_fd()).is_ok_and(|cookie| cookie == self.cookie);
        is_it.then_some(namespace)
    }
}

/// Switches IPv6 of `fordway0` on or off.
pub(super) fn switch_ipv6(namespace: BorrowedFd<'_>, on: bool) -> Result<()> {
    let variable = format!("/proc/sys/net/ipv6/conf/{UPLINK_DEVICE}/disable_ipv6");
    let value = if on { "0" } else { "1" };
    // The thread that looks sees its own namespace's.
    let switched = netns::within(namespace, || match fs::read_to_string(&variable) {
        Ok(is) if is.trim() == value => Ok(()),
        _ => fs::write(&variable, value),
    });
    switched
        .flatten()
        .map_err(doing("switching IPv6 of a device"))
}

/// Has a namespace have the address that stands for CID 1, or no more: by its loopback device, and deprecated, so
/// that nothing else has it for its source (RFC 6724, 5). Whoever has IPv6 off there does without.
pub(super) fn have_local(namespace: BorrowedFd<'_>, has_it: bool) {
    let local = vsock::address_of(vsock::CID_LOCAL);
    let command = match has_it {
        true => format!("addr replace {local}/128 dev lo nodad preferred_lft 0\n"),
        false => format!("addr del {local}/128 dev lo\n"),
    };
    let _ = ip_batch(namespace, &command);
}

impl Fabric {
    /// Gives the namespace of this process a CID: that of its address, by a device of its own. One that has it
    /// since an earlier broker keeps it.
    pub fn join(&self, name: &str, lease: &Lease, pid: i32) -> Result<()> {
        let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
        let namespace = netns::of_process(pid).map_err(doing("opening a network namespace"))?;
        let is_there = |port: &Port| port.lease == *lease && port.name == name;
        if !self.ports()?.iter().any(is_there) {
            let port = lease.port_name();
            // What one of this address has left.
            self.unplug(&port, lease)?;
            if let Some(own) = lease.vsock_address() {
                keep_to_vsock(namespace.as_fd(), own)?;
            }
            let laid = self.plug(&Plug {
                port: &port,
                alias: &alias(name, lease),
                device: UPLINK_DEVICE,
                namespace: namespace.as_fd(),
                namespace_path: &path,
                lease,
            });
            if let Err(reason) = laid {
                let _ = self.unplug(&port, lease);
                keep_no_more(namespace.as_fd());
                return Err(reason);
            }
        }
        self.note_joined(namespace.as_fd(), &path, lease)
    }

    /// Takes it back, if it is there.
    pub fn part(&self, lease: &Lease) -> Result<()> {
        let joined = self.joined.borrow();
        let found = joined.iter().find(|one| one.lease.ip == lease.ip);
        let namespace = found.and_then(Joined::open);
        drop(joined);
        self.unplug(&lease.port_name(), lease)?;
        if let Some(namespace) = namespace {
            keep_no_more(namespace.as_fd());
        }
        self.forget_joined(lease);
        Ok(())
    }

    /// Takes back what an earlier broker has joined and this one has not.
    pub fn part_others(&self) -> Result<()> {
        let is_known = |lease: &Lease| self.joined.borrow().iter().any(|one| one.lease == *lease);
        for port in self.ports()? {
            if !port.lease.is_of_network() && !is_known(&port.lease) {
                self.part(&port.lease)?;
            }
        }
        Ok(())
    }

    /// Keeps in mind where it is.
    pub(super) fn note_joined(
        &self,
        namespace: BorrowedFd<'_>,
        path: &Path,
        lease: &Lease,
    ) -> Result<()> {
        let cookie = netns::cookie(namespace).map_err(doing("reading SO_NETNS_COOKIE"))?;
        self.forget_joined(lease);
        self.joined.borrow_mut().push(Joined {
            path: path.to_owned(),
            cookie,
            lease: *lease,
        });
        Ok(())
    }

    pub(super) fn forget_joined(&self, lease: &Lease) {
        self.joined
            .borrow_mut()
            .retain(|one| one.lease.ip != lease.ip);
    }
}
