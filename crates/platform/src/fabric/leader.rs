//! The leader: whom domains take for their way to each other by IPv6, in a namespace of its own beside
//! theirs, in which no program runs.
//!
//! ```text
//!   domain ── frame to the leader's MAC ──► bridge ──(map `leads6`)──► whoever has the address
//!                                             └──(nobody has it)────► leader: address unreachable
//! ```
//! Its port is one like all: it may send from its own MAC and link-local address only. Its default route is by an
//! invented neighbour with its own MAC ([`BY`]), so that an answer is led as any frame. The port has no alias, by
//! which it would be taken for a domain's.

use super::filter::{LEADER, link_local_of, mac_of};
use super::tool::{ip_batch, run_in};
use super::{BRIDGE, DOMAIN_DEVICE, Fabric, FabricError, Result, doing, has_ipv6, places};
use crate::netns;
use std::os::fd::AsFd;
use std::path::Path;

/// Holds its namespace, beside the domains'.
pub(super) const FILE: &str = ".leader";
const PORT: &str = "leader";
/// By whose entry it reaches domains: its own MAC, under another address.
const BY: &str = "fe80::1";

/// Whatever comes is for nobody. Errors about errors are none (RFC 4443, 2.4), and the kernel keeps to that.
const RULES: &str = "
table ip6 leader {
	chain nobody {
		type filter hook prerouting priority 0; policy drop;
		reject with icmpv6 type addr-unreachable
	}
}
";

impl Fabric {
    /// Lays it, unless it is there or the kernel has no IPv6.
    pub(super) fn ensure_leader(&self) -> Result<()> {
        if !has_ipv6() || self.has_in_namespace(PORT)? {
            return Ok(());
        }
        let file = self.netns_dir.join(FILE);
        netns::remove(&file).map_err(doing("removing an unfinished leader"))?;
        netns::create(&file).map_err(doing("making the leader's network namespace"))?;
        let laid = self.lay_leader(&file);
        if laid.is_err() {
            // The port goes with it.
            let _ = netns::remove(&file);
        }
        laid
    }

    fn lay_leader(&self, file: &Path) -> Result<()> {
        let namespace = netns::open(file)
            .map_err(doing("opening the leader"))?
            .ok_or_else(|| FabricError::NotFound(FILE.into()))?;
        run_in(namespace.as_fd(), "nft", &["-f", "-"], RULES)?;
        let (mac, own, path) = (mac_of(LEADER), link_local_of(LEADER), file.display());
        let elements = format!(
            "add element bridge fordway ports6 {{ \"{PORT}\" }}\n\
             add element bridge fordway assigned6 {{ \"{PORT}\" . {mac} . {own} }}\n"
        );
        self.nft_in_fabric(&["-f", "-"], &elements)?;
        let laid = format!(
            "link add {PORT} type veth peer name {DOMAIN_DEVICE} address {mac} netns {path}\n\
             link set {PORT} addrgenmode none\n"
        );
        ip_batch(self.namespace.as_fd(), &laid)?;
        let inside = format!(
            "link set {DOMAIN_DEVICE} addrgenmode none\n\
             addr add {own}/64 dev {DOMAIN_DEVICE} nodad\n\
             link set {DOMAIN_DEVICE} up\n\
             neigh replace {BY} lladdr {mac} nud permanent dev {DOMAIN_DEVICE}\n\
             route add default via {BY} dev {DOMAIN_DEVICE}\n"
        );
        ip_batch(namespace.as_fd(), &inside)?;
        let joined = format!("link set {PORT} up\nlink set {PORT} master {BRIDGE}\n");
        ip_batch(self.namespace.as_fd(), &joined)?;
        places::place(self.namespace.as_fd(), PORT, LEADER).map_err(doing("placing the leader"))
    }
}
