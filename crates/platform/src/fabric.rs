//! The fabric: what the kernel path between domains runs over, laid wholly outside
//! the host's network namespace.
//!
//! ```text
//!   <runtime>/netns/.fabric            bridge fw0 ── nft table bridge fordway (who may send what)
//!        │ p-0a4d0003   │ p-0a4d0004   │ uplink (opt-in)
//!        │ veth         │ veth         │ veth
//!   <runtime>/netns/db  netns/web      the host: fordway0
//!        eth0 10.77.0.3 eth0 10.77.0.4         10.77.0.1
//!        fd..::a4d:3    fd..::a4d:4
//! ```
//!
//! Each veth pair is created inside the fabric with its far end born in the domain,
//! so the host never sees a device. A domain with a network stack of its own has loopback only; its port is a tap device, of
//! which a driver has the program's end ([`DriverPort`]). A switch port is named after the address that
//! was assigned to it, and its alias is `NAME/PREFIX` or, with IPv6, `NAME/PREFIX/ADDRESS/PREFIX`: the
//! kernel's own list of ports is the only record of what exists, and it lies where no domain can change it. A
//! broker that starts again reads it ([`Fabric::existing`]).
//!
//! Anti-spoofing is what makes "this address belongs to that namespace" true: a frame
//! passes the bridge only if port, source MAC and source address (or ARP sender) are the
//! assigned three; of IPv6 the address that was assigned and the link-local one of the MAC. All else
//! from a port is dropped and counted, before the bridge learns anything from it. The uplink's port
//! may send what comes from outside the domains' network as well (`uplink`); of IPv6 it carries AF_VSOCK only, and so does
//! the port of a namespace that others made (`joined`).
//!
//! By IPv6 domains send to one MAC for all of them, which the bridge exchanges for that of whoever has the
//! address (`filter`), so that IPv6 needs no more of rules than IPv4 does, and a domain nothing of the
//! others: to make one costs the same however many there are.
//!
//! The work is done by `ip -batch` and `nft -f` in a helper thread inside the fabric.
//! Calls come from one broker at a time; nothing here locks.

mod filter;
pub mod hosts;
mod joined;
mod leader;
mod places;
mod rules;
mod tool;
mod uplink;

pub use rules::{
    OWN_TABLE, RULES_DEVICE, handshake_has_passed, keep_connections, port_of, port_of_cid,
};
pub use tool::find_tool;
pub(crate) use tool::output_in;
pub use uplink::Publication;

use crate::launch::HOSTS;
use crate::{netns, tap};
use filter::{LEADER, RULES, elements, joined_port_name, leads, link_local_of, mac_of, port_name};
use fordway_abi::vsock;
use joined::Joined;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use tool::{ip_batch, run_in};

const BRIDGE: &str = "fw0";
/// Holds the fabric's own namespace, beside the domains'.
pub(crate) const FABRIC_FILE: &str = ".fabric";
const DOMAIN_DEVICE: &str = "eth0";
/// Before a domain's name: a file beside its namespace, which says that its port is a driver's. It is empty but while the port
/// is made anew; then it says which, for whoever has to finish that: the next broker, or whoever opens the port next.
const DRIVER_PREFIX: &str = ".port.";
/// Frames that wait for a driver, each up to a train of 64 KB.
const DRIVER_FRAMES: u32 = 1000;
/// The domains' /etc/hosts, one for all. No domain's name begins with a dot.
const HOSTS_FILE: &str = ".domains";
/// The switch port of the uplink, and its far end in the host.
pub const UPLINK_PORT: &str = "uplink";
const UPLINK_DEVICE: &str = "fordway0";

/// Why the fabric could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// A tool is not installed.
    #[error("{program} is missing; install it with: apt-get install {package}")]
    MissingProgram {
        /// Its name.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The kernel says EPERM.
    #[error("{what}: not permitted; domains need root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")]
    Privilege {
        /// What was tried.
        what: String,
    },
    /// A name that cannot be a file's.
    #[error("\"{0}\" cannot be the name of a domain")]
    BadName(String),
    /// A domain of that name or address is there.
    #[error("{0}")]
    Taken(String),
    /// No such domain.
    #[error("there is no domain \"{0}\"")]
    NotFound(String),
    /// The kernel lacks something.
    #[error("{0}")]
    Unsupported(String),
    /// `ip` or `nft` failed.
    #[error("{program} failed: {output}")]
    Tool {
        /// Its name.
        program: &'static str,
        /// The first line it said.
        output: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, FabricError>;

/// How a domain of the fabric is entered and known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainPaths {
    /// nsfs mount of its network namespace.
    pub netns_path: PathBuf,
    /// What its /etc/hosts is, that of all domains.
    pub hosts_path: PathBuf,
    /// SO_NETNS_COOKIE of its namespace.
    pub netns_cookie: u64,
    /// Its port is a driver's, and its namespace has loopback only.
    pub has_driver: bool,
}

/// The addresses of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The IPv4 address, after which the port is named.
    pub ip: Ipv4Addr,
    /// Prefix length of its network; 0: the address is of another network than the domains', which does not
    /// cross the fabric, and stands for the port alone.
    pub prefix: u8,
    /// The IPv6 address, which ends in the IPv4 address, and its network's prefix length.
    pub six: Option<(Ipv6Addr, u8)>,
    /// Whether it has an address for AF_VSOCK too.
    pub vsock: bool,
}

/// A domain that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingDomain {
    /// Its name.
    pub name: String,
    /// The addresses assigned to it.
    pub lease: Lease,
    /// How it is entered.
    pub paths: DomainPaths,
    /// Why its port, which was being made anew, is not whole: [`DriverPort::remake`] is to be tried again.
    pub unfinished: Option<String>,
}

/// A switch port of a domain, as the kernel lists it.
#[derive(Debug, PartialEq, Eq)]
struct Port {
    name: String,
    lease: Lease,
}

/// The fabric of one runtime directory.
#[derive(Debug)]
pub struct Fabric {
    netns_dir: PathBuf,
    hosts_dir: PathBuf,
    namespace: OwnedFd,
    joined: RefCell<Vec<Joined>>,
}

impl Fabric {
    /// Opens the fabric below `runtime_dir`, or lays it (bridge and filter, no ports).
    pub fn ensure(runtime_dir: &Path) -> Result<Fabric> {
        let [netns_dir, hosts_dir] = directories(runtime_dir);
        netns::private_dir(&netns_dir).map_err(doing("making the namespace directory"))?;
        fs::create_dir_all(&hosts_dir).map_err(doing("making the hosts directory"))?;
        if let Some(fabric) = Fabric::open(runtime_dir)? {
            return Ok(fabric);
        }
        let file = netns_dir.join(FABRIC_FILE);
        netns::remove(&file).map_err(doing("removing an unfinished fabric"))?;
        netns::create(&file).map_err(doing("making the fabric's network namespace"))?;
        let laid = Fabric::look(runtime_dir).and_then(|fabric| {
            let fabric = fabric.ok_or_else(|| FabricError::NotFound(FABRIC_FILE.into()))?;
            fabric.lay()?;
            fabric.ensure_leader()?;
            Ok(fabric)
        });
        if laid.is_err() {
            let _ = Fabric::remove(runtime_dir);
        }
        laid
    }

    /// Opens the fabric below `runtime_dir` if there is one. One without a bridge was
    /// left by a broker that died while it laid it, and counts as none.
    pub fn open(runtime_dir: &Path) -> Result<Option<Fabric>> {
        let found = Fabric::look(runtime_dir)?;
        Ok(found.filter(|fabric| fabric.has_device(BRIDGE)))
    }

    fn look(runtime_dir: &Path) -> Result<Option<Fabric>> {
        let [netns_dir, hosts_dir] = directories(runtime_dir);
        let file = netns_dir.join(FABRIC_FILE);
        let namespace = netns::open(&file).map_err(doing("opening the fabric"))?;
        Ok(namespace.map(|namespace| Fabric {
            netns_dir,
            hosts_dir,
            namespace,
            joined: RefCell::default(),
        }))
    }

    /// Removes every domain, the fabric and its directories; says whether there was
    /// anything.
    pub fn remove(runtime_dir: &Path) -> Result<bool> {
        let [netns_dir, hosts_dir] = directories(runtime_dir);
        if let Some(fabric) = Fabric::look(runtime_dir)? {
            // Explicitly, because the end of a namespace is asynchronous and this is
            // the host's.
            fabric.remove_uplink()?;
        }
        let _ = hosts::forget(Path::new(HOSTS));
        let _ = fs::remove_file(runtime_dir.join(hosts::SHARED_FILE));
        let Ok(entries) = fs::read_dir(&netns_dir) else {
            return Ok(false);
        };
        for file in entries.flatten() {
            netns::remove(&file.path()).map_err(doing("removing a network namespace"))?;
        }
        netns::remove_private_dir(&netns_dir).map_err(doing("removing the namespace directory"))?;
        match fs::remove_dir_all(&hosts_dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(doing("removing the hosts directory")(error))
            }
            _ => Ok(true),
        }
    }

    /// Tries in a namespace that vanishes afterwards whether a fabric can be laid.
    pub fn probe() -> Result<()> {
        let namespace = netns::anonymous().map_err(doing("making a network namespace"))?;
        let nowhere = PathBuf::new();
        let fabric = Fabric {
            netns_dir: nowhere.clone(),
            hosts_dir: nowhere,
            namespace,
            joined: RefCell::default(),
        };
        fabric.lay()
    }

    /// Makes a domain: namespace, veth pair, switch port, filter.
    pub fn add_domain(&self, name: &str, lease: &Lease) -> Result<DomainPaths> {
        self.make_domain(name, lease, false)
    }

    /// Makes a domain whose own namespace has loopback only: its port is a tap device, for a driver ([`DriverPort`]).
    pub fn add_domain_with_driver(&self, name: &str, lease: &Lease) -> Result<DomainPaths> {
        self.make_domain(name, lease, true)
    }

    fn make_domain(&self, name: &str, lease: &Lease, for_driver: bool) -> Result<DomainPaths> {
        check_file_name(name)?;
        let ip = lease.ip;
        let file = self.netns_dir.join(name);
        // Only who finds something asks for all of it.
        let found = file.exists() || self.has_in_namespace(&port_name(ip))?;
        for port in if found { self.ports()? } else { Vec::new() } {
            if port.name == name {
                return Err(FabricError::Taken(format!("the domain \"{name}\" exists")));
            }
            if port.lease.ip == ip {
                let holder = &port.name;
                let text = format!("the address {ip} belongs to the domain \"{holder}\"");
                return Err(FabricError::Taken(text));
            }
        }
        // Where that cannot be, `fordway run` says that names are missing.
        let _ = hosts::ensure(Path::new(HOSTS));
        netns::remove(&file).map_err(doing("removing an unfinished domain"))?;
        netns::create(&file).map_err(doing("making a network namespace"))?;
        let made = self.furnish(name, &file, lease, for_driver);
        if made.is_err() {
            let _ = self.remove_domain(name, ip);
        }
        made
    }

    fn has_in_namespace(&self, device: &str) -> Result<bool> {
        places::is_there(self.namespace.as_fd(), device).map_err(doing("looking for a port"))
    }

    /// Removes a domain that has this address. Programs in it keep their namespace, without a network.
    pub fn remove_domain(&self, name: &str, ip: Ipv4Addr) -> Result<()> {
        check_file_name(name)?;
        let device = port_name(ip);
        let line = match self.has_in_namespace(&device)? {
            true => self.ip_in_fabric(&["-o", "link", "show", "dev", &device])?,
            false => String::new(),
        };
        let port = parse_port(&line).filter(|port| port.name == name);
        let port = port.or_else(|| self.unfinished_port(name));
        let file = self.netns_dir.join(name);
        if port.is_none() && !file.exists() {
            return Err(FabricError::NotFound(name.into()));
        }
        if let Some(port) = port {
            self.unpublish(port.lease.ip)?;
            self.unplug(&port.lease.port_name(), &port.lease)?;
        }
        netns::remove(&file).map_err(doing("removing a network namespace"))?;
        netns::remove(&self.driver_file(name)).map_err(doing("removing a driver's port"))?;
        match fs::remove_file(self.hosts_dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(doing("removing a hosts file")(error))
            }
            _ => Ok(()),
        }
    }

    /// Makes of a fabric that an earlier version laid one of this version. Domains that it made
    /// find new ones by neighbour discovery, and keep hosts files of their own.
    pub fn renew(&self) -> Result<()> {
        let ports = self.ports()?;
        let leads: String = ports.iter().map(|port| leads("add", &port.lease)).collect();
        self.nft_in_fabric(&["-f", "-"], &(RULES.to_owned() + &leads))?;
        self.ensure_leader()
    }

    /// The domains that are whole, in order of their addresses; what an earlier
    /// broker left half made (or a domain broke) is cleared away. A domain whose port cannot be made anew stays.
    pub fn existing(&self) -> Result<Vec<ExistingDomain>> {
        let mut whole = self.finish_remaking()?;
        let unfinished: Vec<String> = whole.iter().map(|one| one.lease.port_name()).collect();
        let is_unfinished = |lease: &Lease| unfinished.contains(&lease.port_name());
        for device in self.ip_in_fabric(&["-o", "link", "show"])?.lines() {
            if let (Some(lease), None) = (parse_device(device), parse_port(device))
                && !is_unfinished(&lease)
            {
                // What was laid of its IPv6 stays, for the next port of this name: the address that ends
                // in the port's own is nobody else's in any network.
                self.unplug(&lease.port_name(), &lease)?;
            }
        }
        let ports = self.ports()?.into_iter();
        let ports = ports.filter(|port| port.lease.is_of_network() && !is_unfinished(&port.lease));
        for Port { name, lease } in ports {
            if let Some(paths) = self.paths(&name)? {
                whole.push(ExistingDomain {
                    name,
                    lease,
                    paths,
                    unfinished: None,
                });
            } else {
                self.unplug(&lease.port_name(), &lease)?;
            }
        }
        whole.sort_by_key(|domain| domain.lease.ip);
        let entries = fs::read_dir(&self.netns_dir).map_err(doing("listing the namespaces"))?;
        for file in entries.flatten() {
            let name = file.file_name();
            let own = name == FABRIC_FILE || name == leader::FILE;
            let is_of = |domain: &ExistingDomain| {
                let domain = domain.name.as_str();
                name.to_str()
                    .is_some_and(|name| name.strip_prefix(DRIVER_PREFIX).unwrap_or(name) == domain)
            };
            if !own && !whole.iter().any(is_of) {
                netns::remove(&file.path()).map_err(doing("removing an unfinished domain"))?;
                let _ = fs::remove_file(self.hosts_dir.join(name));
            }
        }
        Ok(whole)
    }

    /// Writes the names into the domains' hosts file, and into those that an earlier version made, one for each
    /// domain; `host` is the uplink's address.
    pub fn write_hosts(&self, domains: &[(&str, IpAddr)], host: Option<Ipv4Addr>) -> Result<()> {
        let text = hosts::text(domains, host);
        let write =
            |file: &Path| hosts::write_in_place(file, &text).map_err(doing("writing a hosts file"));
        let shared = self.hosts_dir.join(HOSTS_FILE);
        write(&shared)?;
        let entries = fs::read_dir(&self.hosts_dir).map_err(doing("listing the hosts files"))?;
        let own = entries.flatten().map(|entry| entry.path());
        own.filter(|file| *file != shared)
            .try_for_each(|file| write(&file))
    }

    /// Frames from a port ([`port_of`] or [`UPLINK_PORT`]) that were dropped because their
    /// source was none that it may send.
    pub fn spoofed_frames(&self, port: &str) -> Result<u64> {
        let text = self.nft_in_fabric(&["list", "counter", "bridge", "fordway", port], "")?;
        let mut words = text.split_whitespace();
        let count = words
            .by_ref()
            .find(|word| *word == "packets")
            .and_then(|_| words.next());
        count
            .and_then(|count| count.parse().ok())
            .ok_or_else(|| FabricError::Tool {
                program: "nft",
                output: format!("unexpected listing of counter {port}"),
            })
    }

    /// Whether a device of this name is there.
    pub fn has_device(&self, name: &str) -> bool {
        let shown = self.ip_in_fabric(&["link", "show", "dev", name]);
        !matches!(shown, Err(FabricError::Tool { .. }))
    }

    /// Ends the fabric and everything in it.
    pub fn teardown(self) -> Result<()> {
        Fabric::remove(self.runtime_dir()).map(drop)
    }

    fn runtime_dir(&self) -> &Path {
        self.netns_dir.parent().unwrap_or(Path::new("/"))
    }

    fn lay(&self) -> Result<()> {
        self.nft_in_fabric(&["-f", "-"], RULES)?;
        let mut batch = String::from("link set lo up\n");
        let _ = writeln!(batch, "link add {BRIDGE} type bridge mcast_snooping 0");
        no_ipv6_address(&mut batch, BRIDGE);
        let _ = writeln!(batch, "link set {BRIDGE} up");
        ip_batch(self.namespace.as_fd(), &batch)
    }

    fn furnish(
        &self,
        name: &str,
        file: &Path,
        lease: &Lease,
        for_driver: bool,
    ) -> Result<DomainPaths> {
        let open = |file: &Path| -> Result<OwnedFd> {
            netns::open(file)
                .map_err(doing("opening a network namespace"))?
                .ok_or_else(|| FabricError::NotFound(name.into()))
        };
        let namespace = open(file)?;
        ip_batch(namespace.as_fd(), "link set lo up\n")?;
        let driver_file = self.driver_file(name);
        netns::remove(&driver_file).map_err(doing("removing an unfinished domain"))?;
        let (port, alias) = (&lease.port_name(), &alias(name, lease));
        if for_driver {
            fs::write(&driver_file, "").map_err(doing("noting whose a port is"))?;
            self.plug_driver(port, alias, lease)?;
        } else {
            self.plug(&Plug {
                port,
                alias,
                device: DOMAIN_DEVICE,
                namespace: namespace.as_fd(),
                namespace_path: file,
                lease,
            })?;
        }
        if let Some(host) = self.uplink_address() {
            self.route_by_uplink(name, host)?;
        }
        self.paths(name)?
            .ok_or_else(|| FabricError::NotFound(name.into()))
    }

    /// A veth pair from the bridge to a namespace. The alias comes last: a port with
    /// an alias is whole.
    fn plug(&self, plug: &Plug<'_>) -> Result<()> {
        let &Plug {
            port,
            device,
            namespace,
            namespace_path,
            lease,
            alias,
        } = plug;
        let &Lease {
            ip, prefix, six, ..
        } = lease;
        let mac = mac_of(ip);
        self.nft_in_fabric(&["-f", "-"], &elements("add", port, lease))?;
        let namespace_path = namespace_path.display();
        let mut batch = format!(
            "link add {port} type veth peer name {device} address {mac} netns {namespace_path}\n"
        );
        no_ipv6_address(&mut batch, port);
        ip_batch(self.namespace.as_fd(), &batch)?;

        batch.clear();
        no_ipv6_address(&mut batch, device);
        if lease.is_of_network() {
            let _ = writeln!(batch, "addr add {ip}/{prefix} brd + dev {device}");
        }
        if six.is_some() {
            // Probes of neighbours that are known come from it.
            let link_local = link_local_of(ip);
            let _ = writeln!(batch, "addr add {link_local}/64 dev {device} nodad");
        }
        if lease.vsock {
            if device == UPLINK_DEVICE {
                // Whoever made the namespace may have switched it off.
                joined::switch_ipv6(namespace, true)?;
            }
            joined::have_local(namespace, true);
        }
        batch += &lease.led_addresses(device);
        let _ = writeln!(batch, "link set {device} up");
        batch += &lease.led_routes(device);
        ip_batch(namespace, &batch)?;
        self.join_bridge(String::new(), port, alias, lease)
    }

    /// A port that a driver has: a tap device of the bridge's own namespace. The device stays when the driver ends.
    fn plug_driver(&self, port: &str, alias: &str, lease: &Lease) -> Result<()> {
        self.nft_in_fabric(&["-f", "-"], &elements("add", port, lease))?;
        self.make_tap(port, alias, lease)
    }

    fn make_tap(&self, port: &str, alias: &str, lease: &Lease) -> Result<()> {
        netns::within(self.namespace.as_fd(), || tap::make(port))
            .and_then(|made| made)
            .map_err(no_tap)?;
        let mut batch = format!("link set {port} txqueuelen {DRIVER_FRAMES}\n");
        no_ipv6_address(&mut batch, port);
        self.join_bridge(batch, port, alias, lease)
    }

    /// The port of a domain that has a driver.
    pub fn driver_port(&self, name: &str, lease: &Lease) -> DriverPort {
        DriverPort {
            netns_dir: self.netns_dir.clone(),
            name: name.to_owned(),
            lease: *lease,
        }
    }

    /// Deletes the tap device of a port, whoever has its end, and makes one of the same name. What the bridge's filter knows of it
    /// stays. Who dies meanwhile leaves in the driver's file what the next broker finishes.
    fn remake(&self, name: &str, lease: &Lease) -> Result<()> {
        let (file, port, alias) = (
            self.driver_file(name),
            lease.port_name(),
            alias(name, lease),
        );
        let noted = format!("0: {port}: alias {alias}");
        // A write that fails would leave nothing of a note that is there.
        if !fs::read_to_string(&file).is_ok_and(|earlier| earlier == noted) {
            fs::write(&file, noted).map_err(doing("noting that a port is made anew"))?;
        }
        let deleted = self.ip_in_fabric(&["link", "del", "dev", &port]);
        if deleted.is_err() && self.has_device(&port) {
            return deleted.map(drop);
        }
        self.make_tap(&port, &alias, lease)?;
        fs::write(&file, "").map_err(doing("noting that a port is whole"))
    }

    /// Makes the ports whole that a broker was making anew when it died. The domains of those that cannot be.
    fn finish_remaking(&self) -> Result<Vec<ExistingDomain>> {
        let mut unfinished = Vec::new();
        let entries = fs::read_dir(&self.netns_dir).map_err(doing("listing the namespaces"))?;
        for file in entries.flatten() {
            let name = file.file_name();
            if let Some(name) = name
                .to_str()
                .and_then(|name| name.strip_prefix(DRIVER_PREFIX))
                && let Some(Port { name, lease }) = self.unfinished_port(name)
                && let Some(paths) = self.paths(&name)?
                && let Err(reason) = self.remake(&name, &lease)
            {
                unfinished.push(ExistingDomain {
                    name,
                    lease,
                    paths,
                    unfinished: Some(reason.to_string()),
                });
            }
        }
        Ok(unfinished)
    }

    /// The port of a domain that was being made anew.
    fn unfinished_port(&self, name: &str) -> Option<Port> {
        let noted = fs::read_to_string(self.driver_file(name)).ok()?;
        parse_port(&noted).filter(|port| port.name == name)
    }

    /// The port joins the bridge when both ends are up, so that it forwards at once. What comes before stands in the batch.
    fn join_bridge(&self, mut batch: String, port: &str, alias: &str, lease: &Lease) -> Result<()> {
        let _ = writeln!(batch, "link set {port} up");
        let _ = writeln!(batch, "link set {port} master {BRIDGE}");
        if !alias.is_empty() {
            let _ = writeln!(batch, "link set {port} alias {alias}");
        }
        ip_batch(self.namespace.as_fd(), &batch)?;
        places::place(self.namespace.as_fd(), port, lease.ip)
            .map_err(doing("telling the bridge of a port"))
    }

    fn unplug(&self, port: &str, lease: &Lease) -> Result<()> {
        // The device goes by itself when its far end's namespace ends.
        let deleted = self.ip_in_fabric(&["link", "del", "dev", port]);
        if deleted.is_err() && self.has_device(port) {
            return deleted.map(drop);
        }
        // Added once more, so that the deletion is right also when nothing was there.
        let elements = elements("add", port, lease) + &elements("delete", port, lease);
        self.nft_in_fabric(&["-f", "-"], &elements).map(drop)
    }

    /// The paths of a domain, if its namespace is there.
    fn paths(&self, name: &str) -> Result<Option<DomainPaths>> {
        let netns_path = self.netns_dir.join(name);
        let Some(namespace) = netns::open(&netns_path).map_err(doing("opening a domain"))? else {
            return Ok(None);
        };
        let netns_cookie =
            netns::cookie(namespace.as_fd()).map_err(doing("reading SO_NETNS_COOKIE"))?;
        let hosts_path = self.hosts_dir.join(HOSTS_FILE);
        Ok(Some(DomainPaths {
            netns_path,
            hosts_path,
            netns_cookie,
            has_driver: self.driver_file(name).exists(),
        }))
    }

    /// Is there if a driver has a domain's port.
    fn driver_file(&self, name: &str) -> PathBuf {
        driver_file(&self.netns_dir, name)
    }

    /// The directory of all of them, which nobody outside is to have a copy of.
    pub fn netns_dir(&self) -> &Path {
        &self.netns_dir
    }

    fn ports(&self) -> Result<Vec<Port>> {
        let listing = self.ip_in_fabric(&["-o", "link", "show", "master", BRIDGE])?;
        Ok(listing.lines().filter_map(parse_port).collect())
    }

    fn ip_in_fabric(&self, args: &[&str]) -> Result<String> {
        run_in(self.namespace.as_fd(), "ip", args, "")
    }

    fn nft_in_fabric(&self, args: &[&str], input: &str) -> Result<String> {
        run_in(self.namespace.as_fd(), "nft", args, input)
    }
}

fn driver_file(netns_dir: &Path, name: &str) -> PathBuf {
    netns_dir.join(format!("{DRIVER_PREFIX}{name}"))
}

/// A veth pair to be laid.
struct Plug<'a> {
    port: &'a str,
    alias: &'a str,
    device: &'a str,
    namespace: BorrowedFd<'a>,
    namespace_path: &'a Path,
    lease: &'a Lease,
}

/// A port that is a tap device of the fabric's.
#[derive(Clone, Debug)]
pub struct DriverPort {
    netns_dir: PathBuf,
    name: String,
    lease: Lease,
}

impl DriverPort {
    /// The end for a driver; nobody else has it then. `EBUSY`: somebody has it.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let fabric = netns::open(&self.netns_dir.join(FABRIC_FILE))?;
        let fabric = fabric.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let port = self.lease.port_name();
        netns::within(fabric.as_fd(), || tap::end_of(&port))?
    }

    /// Makes the device anew: who has its end has nothing any more, and what he has changed is undone.
    pub fn remake(&self) -> Result<()> {
        let fabric = Fabric::look(self.netns_dir.parent().unwrap_or(Path::new("/")))?;
        let fabric = fabric.ok_or_else(|| FabricError::NotFound(FABRIC_FILE.into()))?;
        fabric.remake(&self.name, &self.lease)
    }

    /// Whether somebody began to make it anew and did not finish that: the device may be there and not be whole.
    pub fn is_unfinished(&self) -> bool {
        fs::metadata(driver_file(&self.netns_dir, &self.name)).is_ok_and(|file| file.len() > 0)
    }

    /// The address after which it is named.
    pub fn ip(&self) -> Ipv4Addr {
        self.lease.ip
    }
}

impl Lease {
    /// The MAC that its port may send from.
    pub fn mac(&self) -> [u8; 6] {
        filter::mac_bytes_of(self.ip)
    }

    /// The link-local address of who has that MAC.
    pub fn link_local(&self) -> Ipv6Addr {
        link_local_of(self.ip)
    }

    /// Its CID of AF_VSOCK.
    pub fn cid(&self) -> Option<u32> {
        let host_bits = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
        let cid = || vsock::cid_of_host(self.ip.to_bits() & host_bits);
        self.vsock.then(cid)
    }

    /// Of a namespace that others made, which has this address elsewhere and a CID here.
    pub fn joined(ip: Ipv4Addr) -> Lease {
        Lease {
            prefix: 0,
            vsock: true,
            ..Lease::of(ip)
        }
    }

    fn is_of_network(&self) -> bool {
        self.prefix != 0
    }

    fn port_name(&self) -> String {
        match self.is_of_network() {
            true => port_name(self.ip),
            false => joined_port_name(self.ip),
        }
    }

    /// The address that stands for it.
    fn vsock_address(&self) -> Option<Ipv6Addr> {
        self.cid().map(vsock::address_of)
    }

    /// The addresses by which others send to it by the leader, with the prefix lengths of their networks.
    fn led6(&self) -> impl Iterator<Item = (Ipv6Addr, u8)> {
        let vsock = self.vsock_address();
        let vsock = vsock.map(|address| (address, vsock::PREFIX_BITS));
        self.six.into_iter().chain(vsock)
    }

    /// Has a device have these addresses, in the words of ip(8).
    ///
    /// Nobody else can have them, so that none waits for the answer (RFC 4862, 5.4). They are deprecated from the
    /// start, which holds nothing back (RFC 4862, 5.5.4) but puts IPv4 first where a name has both: getaddrinfo avoids
    /// what would be sent from such an address (RFC 6724, 6, rule 3). By its own table the GNU library prefers unique
    /// local addresses to IPv4; musl, Go and c-ares do not. A program that tries one address only would be refused by
    /// a server that is bound to 0.0.0.0, as most are by default. The address for AF_VSOCK is to be nobody's source
    /// but by its own name, too.
    fn led_addresses(&self, device: &str) -> String {
        let word = |(own, prefix)| {
            format!(
                "addr replace {own}/{prefix} dev {device} nodad preferred_lft 0 noprefixroute\n"
            )
        };
        self.led6().map(word).collect()
    }

    /// Has it send to those of others by the leader, once it is up.
    fn led_routes(&self, device: &str) -> String {
        let (leader, mac) = (link_local_of(LEADER), mac_of(LEADER));
        let mut words = String::new();
        for (own, prefix) in self.led6() {
            let _ = writeln!(
                words,
                "neigh replace {leader} lladdr {mac} nud permanent dev {device}\n\
                 route replace {own}/{prefix} via {leader} dev {device}"
            );
        }
        words
    }

    /// Of a port of which no more than its name is known.
    fn of(ip: Ipv4Addr) -> Lease {
        Lease {
            ip,
            prefix: 32,
            six: None,
            vsock: false,
        }
    }
}

/// The last word of a port whose domain has a CID.
const VSOCK: &str = "/vsock";

/// What is written to a port. [`parse_port`] reads it.
fn alias(name: &str, lease: &Lease) -> String {
    let six = lease.six.map(|(six, prefix)| format!("/{six}/{prefix}"));
    let vsock = if lease.cid().is_some() { VSOCK } else { "" };
    format!("{name}/{}{}{vsock}", lease.prefix, six.unwrap_or_default())
}

/// Reads one line of `ip -o link show`: `3: p-0a4d0003@if2: <...> ...\    alias db/24`.
fn parse_port(line: &str) -> Option<Port> {
    let Lease { ip, .. } = parse_device(line)?;
    let mut words = line.split_whitespace();
    let alias = words
        .by_ref()
        .find(|word| *word == "alias")
        .and_then(|_| words.next())?;
    let with_vsock = alias.strip_suffix(VSOCK);
    let words: Vec<&str> = with_vsock.unwrap_or(alias).split('/').collect();
    let (name, prefix, six) = match words[..] {
        [name, prefix] => (name, prefix, None),
        [name, prefix, six, prefix6] => {
            let six = (six.parse().ok()?, prefix6.parse().ok()?);
            (name, prefix, Some(six))
        }
        _ => return None,
    };
    Some(Port {
        name: name.into(),
        lease: Lease {
            ip,
            prefix: prefix.parse().ok()?,
            six,
            vsock: with_vsock.is_some(),
        },
    })
}

/// What a port's name says.
fn parse_device(line: &str) -> Option<Lease> {
    let device = line.split_whitespace().nth(1)?.trim_end_matches(':');
    let (kind, hex) = device.split('@').next()?.split_once('-')?;
    let ip = u32::from_str_radix(hex, 16).ok()?.into();
    match kind {
        "p" => Some(Lease::of(ip)),
        "v" => Some(Lease::joined(ip)),
        _ => None,
    }
}

/// Whether the kernel speaks IPv6: the module is there, and the namespace of the caller has it on.
pub fn has_ipv6() -> bool {
    let off = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    off.is_ok_and(|text| text.trim() == "0")
}

/// Keeps IPv6 from giving itself addresses, where the kernel has it.
fn no_ipv6_address(batch: &mut String, device: &str) {
    if Path::new("/proc/sys/net/ipv6").exists() {
        let _ = writeln!(batch, "link set {device} addrgenmode none");
    }
}

fn directories(runtime_dir: &Path) -> [PathBuf; 2] {
    [runtime_dir.join("netns"), runtime_dir.join("hosts")]
}

/// The syntax of names is the registry's business; this keeps them inside the directory.
fn check_file_name(name: &str) -> Result<()> {
    let bad = name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']);
    if bad || name.contains(char::is_whitespace) {
        return Err(FabricError::BadName(name.into()));
    }
    Ok(())
}

/// Why a tap device cannot be made.
fn no_tap(source: io::Error) -> FabricError {
    match source.raw_os_error() {
        // The file is not there, or nothing is behind it.
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => FabricError::Unsupported(format!(
            "there is no {}, which a network stack of a domain's own needs; load it with: modprobe tun",
            tap::DEVICE
        )),
        _ => doing("making a tap device (/dev/net/tun)")(source),
    }
}

fn doing(what: &'static str) -> impl Fn(io::Error) -> FabricError {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => FabricError::Privilege { what: what.into() },
        _ => FabricError::Io {
            what: what.into(),
            source,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_read_back_from_the_kernels_listing() {
        let line = "4: p-0a4d0003@if2: <BROADCAST,UP> mtu 1500 qdisc noqueue master fw0 state UP \
                    \\    link/ether 4a:39:a4:d4:c6:d3 brd ff:ff:ff:ff:ff:ff link-netnsid 1\\    alias db/24";
        let port = parse_port(line).expect("a port");
        let mut lease = Lease {
            ip: Ipv4Addr::new(10, 77, 0, 3),
            prefix: 24,
            six: None,
            vsock: false,
        };
        assert_eq!((port.name.as_str(), port.lease), ("db", lease));
        assert_eq!(port_name(lease.ip), "p-0a4d0003");
        assert_eq!(link_local_of(lease.ip).to_string(), "fe80::46:aff:fe4d:3");
        lease.six = Some(("fd00::a4d:3".parse().expect("an address"), 64));
        for (vsock, cid) in [(false, None), (true, Some(4))] {
            lease.vsock = vsock;
            assert_eq!(lease.cid(), cid);
            let alias = alias("db", &lease);
            let port = parse_port(&line.replace("alias db/24", &format!("alias {alias}")));
            assert_eq!(port.map(|port| port.lease), Some(lease), "{alias}");
        }
        let joined = Lease::joined(Ipv4Addr::new(10, 88, 0, 5));
        assert_eq!(
            (joined.port_name().as_str(), joined.cid()),
            ("v-0a580005", Some(0x0a58_0006))
        );
        let line = line.replace("p-0a4d0003", "v-0a580005");
        let port = parse_port(&line.replace("alias db/24", "alias db/0/vsock"));
        assert_eq!(port.map(|port| port.lease), Some(joined));
        assert_eq!(parse_port("5: uplink@if9: <UP> mtu 1500"), None);
        assert_eq!(parse_port(&line.replace("alias db/24", "")), None);
    }

    #[test]
    fn names_stay_inside_the_directory() {
        for bad in ["", ".", "..", ".fabric", "a/b", "a b", "a\nb"] {
            assert!(check_file_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_file_name("db-1").is_ok());
    }
}
