//! The fabric: what the kernel path between domains runs over, laid wholly outside
//! the host's network namespace.
//!
//! ```text
//!   <runtime>/netns/.fabric            bridge fw0 ── nft table bridge fordway (who may send what)
//!        │ p-0a4d0003   │ p-0a4d0004   │ uplink (opt-in)
//!        │ veth         │ veth         │ veth
//!   <runtime>/netns/db  netns/web      the host: fordway0
//!        eth0 10.77.0.3 eth0 10.77.0.4         10.77.0.1
//! ```
//!
//! Each veth pair is created inside the fabric with its far end born in the domain,
//! so the host never sees a device. A switch port is named after the address that
//! was assigned to it, and its alias is `NAME/PREFIX`: the kernel's own list of ports
//! is the only record of what exists, and it lies where no domain can change it. A
//! broker that starts again reads it ([`Fabric::existing`]).
//!
//! Anti-spoofing is what makes "this address belongs to that namespace" true: a frame
//! passes the bridge only if port, source MAC and IPv4 source (or ARP sender) are the
//! assigned three. All else from a port is dropped and counted, before the bridge
//! learns anything from it; IPv6 is not carried. The uplink's port may send what comes
//! from outside the domains' network as well (`uplink`).
//!
//! The work is done by `ip -batch` and `nft -f` in a helper thread inside the fabric.
//! Calls come from one broker at a time; nothing here locks.

mod filter;
pub mod hosts;
mod rules;
mod tool;
mod uplink;

pub use rules::{OWN_TABLE, RULES_DEVICE, handshake_has_passed, keep_connections, port_of};
pub use tool::find_tool;
pub use uplink::Publication;

use crate::launch::HOSTS;
use crate::netns;
use filter::{RULES, elements, mac_of, port_name};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use tool::{ip_batch, run_in};

const BRIDGE: &str = "fw0";
/// Holds the fabric's own namespace, beside the domains'.
pub(crate) const FABRIC_FILE: &str = ".fabric";
const DOMAIN_DEVICE: &str = "eth0";
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
    /// Its /etc/hosts.
    pub hosts_path: PathBuf,
    /// SO_NETNS_COOKIE of its namespace.
    pub netns_cookie: u64,
}

/// A domain that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingDomain {
    /// Its name.
    pub name: String,
    /// The address assigned to it.
    pub ip: Ipv4Addr,
    /// Prefix length of the network.
    pub prefix: u8,
    /// How it is entered.
    pub paths: DomainPaths,
}

/// A switch port of a domain, as the kernel lists it.
#[derive(Debug, PartialEq, Eq)]
struct Port {
    ip: Ipv4Addr,
    name: String,
    prefix: u8,
}

/// The fabric of one runtime directory.
#[derive(Debug)]
pub struct Fabric {
    netns_dir: PathBuf,
    hosts_dir: PathBuf,
    namespace: OwnedFd,
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
        };
        fabric.lay()
    }

    /// Makes a domain: namespace, veth pair, switch port, filter, hosts file.
    pub fn add_domain(&self, name: &str, ip: Ipv4Addr, prefix: u8) -> Result<DomainPaths> {
        check_file_name(name)?;
        for port in self.ports()? {
            if port.name == name {
                return Err(FabricError::Taken(format!("the domain \"{name}\" exists")));
            }
            if port.ip == ip {
                let holder = port.name;
                let text = format!("the address {ip} belongs to the domain \"{holder}\"");
                return Err(FabricError::Taken(text));
            }
        }
        // Where that cannot be, `fordway run` says that names are missing.
        let _ = hosts::ensure(Path::new(HOSTS));
        let file = self.netns_dir.join(name);
        netns::remove(&file).map_err(doing("removing an unfinished domain"))?;
        netns::create(&file).map_err(doing("making a network namespace"))?;
        let made = self.furnish(name, &file, ip, prefix);
        if made.is_err() {
            let _ = self.remove_domain(name);
        }
        made
    }

    /// Removes a domain. Programs in it keep their namespace, without a network.
    pub fn remove_domain(&self, name: &str) -> Result<()> {
        check_file_name(name)?;
        let ports = self.ports()?;
        let port = ports.iter().find(|port| port.name == name);
        let file = self.netns_dir.join(name);
        if port.is_none() && !file.exists() {
            return Err(FabricError::NotFound(name.into()));
        }
        if let Some(port) = port {
            self.unpublish(port.ip)?;
            self.unplug(&port_name(port.ip), port.ip)?;
        }
        netns::remove(&file).map_err(doing("removing a network namespace"))?;
        match fs::remove_file(self.hosts_dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(doing("removing a hosts file")(error))
            }
            _ => Ok(()),
        }
    }

    /// The domains that are whole, in order of their addresses; what an earlier
    /// broker left half made (or a domain broke) is cleared away.
    pub fn existing(&self) -> Result<Vec<ExistingDomain>> {
        let mut whole = Vec::new();
        for device in self.ip_in_fabric(&["-o", "link", "show"])?.lines() {
            if let (Some(ip), None) = (parse_device(device), parse_port(device)) {
                self.unplug(&port_name(ip), ip)?;
            }
        }
        for Port { ip, name, prefix } in self.ports()? {
            if let Some(paths) = self.paths(&name)? {
                whole.push(ExistingDomain {
                    name,
                    ip,
                    prefix,
                    paths,
                });
            } else {
                self.unplug(&port_name(ip), ip)?;
            }
        }
        whole.sort_by_key(|domain| domain.ip);
        let entries = fs::read_dir(&self.netns_dir).map_err(doing("listing the namespaces"))?;
        for file in entries.flatten() {
            let name = file.file_name();
            if name != FABRIC_FILE && !whole.iter().any(|domain| name == *domain.name) {
                netns::remove(&file.path()).map_err(doing("removing an unfinished domain"))?;
                let _ = fs::remove_file(self.hosts_dir.join(name));
            }
        }
        Ok(whole)
    }

    /// Writes the names into each domain's hosts file; `host` is the uplink's address.
    pub fn write_hosts(&self, domains: &[(&str, Ipv4Addr)], host: Option<Ipv4Addr>) -> Result<()> {
        let text = hosts::text(domains, host);
        let entries = fs::read_dir(&self.hosts_dir).map_err(doing("listing the hosts files"))?;
        for file in entries.flatten() {
            hosts::write_in_place(&file.path(), &text).map_err(doing("writing a hosts file"))?;
        }
        Ok(())
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
        self.ip_in_fabric(&["link", "show", "dev", name]).is_ok()
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

    fn furnish(&self, name: &str, file: &Path, ip: Ipv4Addr, prefix: u8) -> Result<DomainPaths> {
        let namespace = netns::open(file)
            .map_err(doing("opening a network namespace"))?
            .ok_or_else(|| FabricError::NotFound(name.into()))?;
        ip_batch(namespace.as_fd(), "link set lo up\n")?;
        self.plug(&Plug {
            port: &port_name(ip),
            alias: &format!("{name}/{prefix}"),
            device: DOMAIN_DEVICE,
            namespace: namespace.as_fd(),
            namespace_path: file,
            ip,
            prefix,
        })?;
        if let Some(host) = self.uplink_address() {
            self.route_by_uplink(name, host)?;
        }
        let hosts_path = self.hosts_dir.join(name);
        hosts::write_in_place(&hosts_path, &hosts::text(&[(name, ip)], None))
            .map_err(doing("writing a hosts file"))?;
        self.paths(name)?
            .ok_or_else(|| FabricError::NotFound(name.into()))
    }

    /// A veth pair from the bridge to a namespace. The alias comes last: a port with
    /// an alias is whole.
    fn plug(&self, plug: &Plug<'_>) -> Result<()> {
        let &Plug {
            port,
            alias,
            device,
            namespace,
            namespace_path,
            ip,
            prefix,
        } = plug;
        let mac = mac_of(ip);
        self.nft_in_fabric(&["-f", "-"], &elements("add", port, ip))?;
        let namespace_path = namespace_path.display();
        let mut batch = format!(
            "link add {port} type veth peer name {device} address {mac} netns {namespace_path}\n"
        );
        no_ipv6_address(&mut batch, port);
        ip_batch(self.namespace.as_fd(), &batch)?;

        batch.clear();
        no_ipv6_address(&mut batch, device);
        let _ = writeln!(batch, "addr add {ip}/{prefix} brd + dev {device}");
        let _ = writeln!(batch, "link set {device} up");
        ip_batch(namespace, &batch)?;

        // The port joins the bridge when both ends are up, so that it forwards at once.
        batch.clear();
        let _ = writeln!(batch, "link set {port} up");
        let _ = writeln!(batch, "link set {port} master {BRIDGE}");
        if !alias.is_empty() {
            let _ = writeln!(batch, "link set {port} alias {alias}");
        }
        ip_batch(self.namespace.as_fd(), &batch)
    }

    fn unplug(&self, port: &str, ip: Ipv4Addr) -> Result<()> {
        // The device goes by itself when its far end's namespace ends.
        let deleted = self.ip_in_fabric(&["link", "del", "dev", port]);
        if deleted.is_err() && self.has_device(port) {
            return deleted.map(drop);
        }
        // Added once more, so that the deletion is right also when nothing was there.
        let elements = elements("add", port, ip) + &elements("delete", port, ip);
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
        let hosts_path = self.hosts_dir.join(name);
        Ok(Some(DomainPaths {
            netns_path,
            hosts_path,
            netns_cookie,
        }))
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

/// A veth pair to be laid.
struct Plug<'a> {
    port: &'a str,
    alias: &'a str,
    device: &'a str,
    namespace: BorrowedFd<'a>,
    namespace_path: &'a Path,
    ip: Ipv4Addr,
    prefix: u8,
}

/// Reads one line of `ip -o link show`: `3: p-0a4d0003@if2: <...> ...\    alias db/24`.
fn parse_port(line: &str) -> Option<Port> {
    let ip = parse_device(line)?;
    let mut words = line.split_whitespace();
    let alias = words
        .by_ref()
        .find(|word| *word == "alias")
        .and_then(|_| words.next())?;
    let (name, prefix) = alias.rsplit_once('/')?;
    Some(Port {
        ip,
        name: name.into(),
        prefix: prefix.parse().ok()?,
    })
}

/// The address in a port's name.
fn parse_device(line: &str) -> Option<Ipv4Addr> {
    let device = line.split_whitespace().nth(1)?.trim_end_matches(':');
    let hex = device.split('@').next()?.strip_prefix("p-")?;
    Some(u32::from_str_radix(hex, 16).ok()?.into())
}

/// Keeps IPv6 silent on a device that does not carry it, where the kernel has IPv6.
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
        assert_eq!(port.ip, Ipv4Addr::new(10, 77, 0, 3));
        assert_eq!((port.name.as_str(), port.prefix), ("db", 24));
        assert_eq!(port_name(port.ip), "p-0a4d0003");
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
