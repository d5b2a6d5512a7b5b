//! Domains: the registry's names and addresses beside the kernel's namespaces.
//!
//! A domain that the broker makes lies in the fabric, whose own ports are the record
//! of what exists: a broker that starts again reads them. A domain that someone else
//! made and an administrator vouched for (`DomainAttach`) has no such record, so it
//! is written to [`ATTACHED_FILE`]; a namespace is known by its SO_NETNS_COOKIE, which
//! means something only until the next boot, hence the boot's id beside it. The broker
//! holds no descriptor of an attached namespace, which would keep it alive.

use crate::admin::{self, ErrorKind, Reply};
use crate::admin_socket::error;
use crate::broker::{Broker, Ending};
use crate::{BrokerError, Config, runtime};
use fordway_platform::fabric::{DomainPaths, Fabric, FabricError};
use fordway_platform::process::NamespaceInode;
use fordway_platform::{diag, netns};
use fordway_registry::{Assigned, Domain, DomainError, HOST_DOMAIN, Registry};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Domains that others made, in the runtime directory.
const ATTACHED_FILE: &str = "attached.json";
/// What the broker's own namespace is called.
const HOST_NAME: &str = "host";

/// A namespace that others made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Attached {
    name: String,
    ip: Ipv4Addr,
    netns_cookie: u64,
    /// A process that was in it when it was attached.
    pid: i32,
    /// A [`NamespaceInode`].
    inode: (u64, u64),
}

impl Attached {
    /// Whether a process is in it. One that only a mount holds counts as left.
    fn is_inhabited(&self) -> bool {
        let (device, inode) = self.inode;
        !NamespaceInode(device, inode).processes().is_empty()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AttachedFile {
    boot_id: String,
    domains: Vec<Attached>,
}

/// What the kernel has of the registry's domains.
#[derive(Debug)]
pub(crate) struct Domains {
    runtime_dir: PathBuf,
    fabric: Option<Fabric>,
    /// Of the domains of the fabric, by number.
    paths: BTreeMap<u32, DomainPaths>,
    attached: BTreeMap<u32, Attached>,
}

impl Domains {
    /// Finds again what an earlier broker left.
    pub(crate) fn start(config: &Config, registry: &mut Registry) -> Result<Self, BrokerError> {
        let own = diag::own_netns_cookie().map_err(crate::doing("SO_NETNS_COOKIE"))?;
        registry.set_host(HOST_NAME, own);
        let mut domains = Self {
            runtime_dir: config.runtime_dir.clone(),
            fabric: None,
            paths: BTreeMap::new(),
            attached: BTreeMap::new(),
        };
        if domains.possible() {
            domains.fabric = Fabric::open(&config.runtime_dir)?;
            domains.adopt(registry)?;
        }
        domains.adopt_attached(registry);
        if config.uplink {
            let network = config.network;
            domains
                .fabric()?
                .add_uplink(network.uplink_address(), network.prefix())?;
        }
        Ok(domains)
    }

    /// Whether this broker may make domains.
    pub(crate) fn possible(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    fn adopt(&mut self, registry: &mut Registry) -> Result<(), BrokerError> {
        let Some(fabric) = &self.fabric else {
            return Ok(());
        };
        for found in fabric.existing()? {
            let network = registry.network();
            if found.prefix != network.prefix() || !network.has_host(found.ip) {
                // Of two networks, programs in one would not reach those in the other.
                let (name, ip, prefix) = (&found.name, found.ip, found.prefix);
                return Err(BrokerError::Directory {
                    dir: self.runtime_dir.clone(),
                    what: format!(
                        "holds domain \"{name}\" ({ip}/{prefix}), which is not of the network {network}; \
                         give --network {ip}/{prefix}, or end the domains with: fordway down"
                    ),
                });
            }
            let assigned = Assigned {
                ip: found.ip,
                netns_cookie: found.paths.netns_cookie,
            };
            match registry.add_domain(&found.name, assigned) {
                Ok(domain) => {
                    tracing::info!("domain {} ({}) is there already", domain.name, found.ip);
                    self.paths.insert(domain.id, found.paths);
                }
                Err(reason) => {
                    tracing::warn!("domain {} is not taken over: {reason}", found.name);
                }
            }
        }
        Ok(())
    }

    /// The fabric, laid when it is first needed.
    pub(crate) fn fabric(&mut self) -> Result<&Fabric, FabricError> {
        let fabric = match self.fabric.take() {
            Some(fabric) => fabric,
            None => Fabric::ensure(&self.runtime_dir)?,
        };
        Ok(self.fabric.insert(fabric))
    }

    /// The fabric, if it is laid.
    pub(crate) fn existing_fabric(&self) -> Option<&Fabric> {
        self.fabric.as_ref()
    }

    fn write_hosts(&self, registry: &Registry) {
        let Some(fabric) = &self.fabric else { return };
        let names: Vec<(&str, Ipv4Addr)> = registry
            .domains()
            .filter_map(|domain| Some((domain.name.as_str(), domain.ip?)))
            .collect();
        if let Err(reason) = fabric.write_hosts(&names) {
            tracing::warn!("{reason}");
        }
    }

    fn adopt_attached(&mut self, registry: &mut Registry) {
        let path = self.runtime_dir.join(ATTACHED_FILE);
        let Ok(text) = std::fs::read_to_string(&path) else {
            return;
        };
        let file: AttachedFile = match serde_json::from_str(&text) {
            Ok(file) => file,
            Err(reason) => {
                tracing::warn!("{} is ignored: {reason}", path.display());
                return;
            }
        };
        if file.boot_id != boot_id() {
            return;
        }
        for attached in file.domains {
            let assigned = Assigned {
                ip: attached.ip,
                netns_cookie: attached.netns_cookie,
            };
            match registry.add_domain(&attached.name, assigned) {
                Ok(domain) => {
                    self.attached.insert(domain.id, attached);
                }
                Err(reason) => {
                    tracing::warn!("domain {} is not taken over: {reason}", attached.name);
                }
            }
        }
    }

    /// Writes [`ATTACHED_FILE`] anew; a reader sees the old one or the new one.
    fn save_attached(&self) {
        let path = self.runtime_dir.join(ATTACHED_FILE);
        let file = AttachedFile {
            boot_id: boot_id(),
            domains: self.attached.values().cloned().collect(),
        };
        let written = match file.domains.is_empty() {
            true => match std::fs::remove_file(&path) {
                Err(reason) if reason.kind() != std::io::ErrorKind::NotFound => Err(reason),
                _ => Ok(()),
            },
            false => serde_json::to_vec(&file)
                .map_err(std::io::Error::from)
                .and_then(|text| {
                    let new = path.with_extension("new");
                    runtime::private_file(&new)?.write_all(&text)?;
                    std::fs::rename(new, &path)
                }),
        };
        if let Err(reason) = written {
            tracing::warn!("{}: {reason}", path.display());
        }
    }

    /// What of the domains is to go when the broker ends.
    /// True if the fabric stays.
    pub(crate) fn end(mut self, ending: Ending, registry: &mut Registry) -> bool {
        let keep: bool = match ending {
            Ending::Asked { keep_domains } => keep_domains,
            Ending::Terminated => true,
            Ending::Interrupted => self.remove_empty(registry) > 0,
        };
        if keep {
            if !self.paths.is_empty() {
                let count = self.paths.len();
                tracing::info!("domains that stay: {count}; fordway down removes them");
            }
            return true;
        }
        self.attached.clear();
        self.save_attached();
        if let Some(fabric) = self.fabric.take()
            && let Err(reason) = fabric.teardown()
        {
            tracing::warn!("removing the domains: {reason}");
        }
        false
    }

    /// Removes the domains of the fabric in which nothing runs; returns how many stay.
    fn remove_empty(&mut self, registry: &mut Registry) -> usize {
        let Some(fabric) = &self.fabric else {
            return 0;
        };
        self.paths.retain(|id, paths| {
            let in_use = processes_in(paths) > 0;
            if !in_use
                && let Some(domain) = registry.domains().find(|domain| domain.id == *id)
                && let Err(reason) = fabric.remove_domain(&domain.name)
            {
                tracing::warn!("removing domain {}: {reason}", domain.name);
            }
            in_use
        });
        self.paths.len()
    }

    /// A way into a domain's namespace, if the kernel has one for us.
    pub(crate) fn open(&self, domain: &Domain) -> Option<std::os::fd::OwnedFd> {
        if let Some(paths) = self.paths.get(&domain.id) {
            return netns::open(&paths.netns_path).ok().flatten();
        }
        netns::of_process(self.attached.get(&domain.id)?.pid).ok()
    }
}

impl Broker {
    pub(crate) fn domain_add(&mut self, name: &str, ip: Option<Ipv4Addr>) -> Reply {
        if let Some(existing) = self.registry.domain_by_name(name) {
            return match (ip, existing.ip) {
                (Some(wanted), Some(has)) if wanted != has => error(
                    ErrorKind::Taken,
                    format_args!("domain \"{name}\" exists with address {has}, not {wanted}"),
                ),
                (_, None) => error(
                    ErrorKind::Taken,
                    format_args!("\"{name}\" is the broker's own network namespace"),
                ),
                _ => Reply::Domain(self.describe(&existing.clone())),
            };
        }
        let ip = match self.registry.check_domain(name, ip) {
            Ok(ip) => ip,
            Err(reason) => return refused(&reason),
        };
        if !self.domains.possible() {
            return error(
                ErrorKind::Privilege,
                "this broker cannot make domains: start it as root (fordway up)",
            );
        }
        let prefix = self.registry.network().prefix();
        let made = self
            .domains
            .fabric()
            .and_then(|fabric| fabric.add_domain(name, ip, prefix));
        let paths = match made {
            Ok(paths) => paths,
            Err(reason) => return error(kind_of(&reason), &reason),
        };
        let assigned = Assigned {
            ip,
            netns_cookie: paths.netns_cookie,
        };
        match self.registry.add_domain(name, assigned) {
            Ok(domain) => {
                tracing::info!("domain {name} ({ip}) was made");
                self.domains.paths.insert(domain.id, paths);
                self.domains.write_hosts(&self.registry);
                self.port_came(ip);
                Reply::Domain(self.describe(&domain))
            }
            Err(reason) => {
                if let Ok(fabric) = self.domains.fabric() {
                    let _ = fabric.remove_domain(name);
                }
                refused(&reason)
            }
        }
    }

    pub(crate) fn domain_attach(&mut self, name: &str, ip: Ipv4Addr, pid: i32) -> Reply {
        let identity = netns::of_process(pid)
            .and_then(|namespace| netns::cookie(namespace.as_fd()))
            .and_then(|cookie| Ok((cookie, NamespaceInode::of_process(pid)?)));
        let (netns_cookie, inode) = match identity {
            Ok(identity) => identity,
            Err(reason) if reason.kind() == std::io::ErrorKind::NotFound => {
                return error(
                    ErrorKind::NotFound,
                    format_args!("there is no process {pid}"),
                );
            }
            Err(reason) => {
                return error(
                    ErrorKind::Privilege,
                    format_args!("the network namespace of process {pid}: {reason}"),
                );
            }
        };
        if let Some(existing) = self.registry.domain_by_name(name)
            && existing.netns_cookie == netns_cookie
            && existing.ip == Some(ip)
        {
            return Reply::Domain(self.describe(&existing.clone()));
        }
        self.drop_left_behind(name, ip);
        match self
            .registry
            .add_domain(name, Assigned { ip, netns_cookie })
        {
            Ok(domain) => {
                tracing::info!("domain {name} ({ip}) was attached");
                let attached = Attached {
                    name: name.to_owned(),
                    ip,
                    netns_cookie,
                    pid,
                    inode: (inode.0, inode.1),
                };
                self.domains.attached.insert(domain.id, attached);
                self.domains.save_attached();
                self.domains.write_hosts(&self.registry);
                Reply::Domain(self.describe(&domain))
            }
            Err(reason) => refused(&reason),
        }
    }

    /// Makes way for a container that was started again: an attached domain of this
    /// name or address in whose namespace nobody is any more.
    fn drop_left_behind(&mut self, name: &str, ip: Ipv4Addr) {
        let same = |attached: &Attached| attached.name == name || attached.ip == ip;
        let left: Vec<u32> = self
            .domains
            .attached
            .iter()
            .filter(|(_, attached)| same(attached) && !attached.is_inhabited())
            .map(|(id, _)| *id)
            .collect();
        for id in left {
            self.domains.attached.remove(&id);
            let actions = self.registry.remove_domain(id);
            self.carry_out(actions);
        }
    }

    pub(crate) fn domain_list(&self) -> Vec<admin::Domain> {
        self.registry
            .domains()
            .map(|domain| self.describe(domain))
            .collect()
    }

    pub(crate) fn domain_remove(&mut self, name: &str, force: bool) -> Reply {
        let Some(domain) = self.registry.domain_by_name(name).cloned() else {
            return error(
                ErrorKind::NotFound,
                format_args!("there is no domain \"{name}\""),
            );
        };
        if domain.id == HOST_DOMAIN {
            return error(
                ErrorKind::BadInput,
                format_args!("\"{name}\" is the broker's own network namespace"),
            );
        }
        let running = match self.domains.paths.get(&domain.id) {
            Some(paths) => processes_in(paths),
            None => self.registry.processes_in(domain.netns_cookie),
        };
        if running > 0 && !force {
            return error(
                ErrorKind::Busy,
                format_args!(
                    "domain \"{name}\" is in use (processes: {running}); --force removes it"
                ),
            );
        }
        if self.domains.paths.contains_key(&domain.id) {
            let removed = self
                .domains
                .fabric()
                .and_then(|fabric| fabric.remove_domain(name));
            if let Err(reason) = removed {
                return error(kind_of(&reason), &reason);
            }
            self.domains.paths.remove(&domain.id);
        }
        if self.domains.attached.remove(&domain.id).is_some() {
            self.domains.save_attached();
        }
        self.places.close(domain.netns_cookie);
        let actions = self.registry.remove_domain(domain.id);
        self.carry_out(actions);
        self.domains.write_hosts(&self.registry);
        tracing::info!("domain {name} was removed");
        Reply::Done
    }

    fn describe(&self, domain: &Domain) -> admin::Domain {
        let paths = self.domains.paths.get(&domain.id);
        admin::Domain {
            name: domain.name.clone(),
            id: domain.id,
            ip: domain.ip,
            prefix: self.registry.network().prefix(),
            netns_cookie: domain.netns_cookie,
            netns_path: paths.map(|paths| paths.netns_path.display().to_string()),
            hosts_path: paths.map(|paths| paths.hosts_path.display().to_string()),
            processes: match paths {
                Some(paths) => processes_in(paths) as u32,
                None => self.registry.processes_in(domain.netns_cookie) as u32,
            },
            ring_memory_bytes: self.purses.bytes_taken_in(domain.netns_cookie),
            ring_memory_bytes_max: self.purses.bytes_max(),
        }
    }
}

/// How many processes are in a domain of the fabric.
fn processes_in(paths: &DomainPaths) -> usize {
    NamespaceInode::of_file(&paths.netns_path).map_or(0, |inode| inode.processes().len())
}

fn refused(reason: &DomainError) -> Reply {
    let kind = match reason {
        DomainError::Name(_)
        | DomainError::NameReserved(_)
        | DomainError::Address(..)
        | DomainError::Special(_) => ErrorKind::BadInput,
        DomainError::NameTaken(_)
        | DomainError::AddressTaken(..)
        | DomainError::NamespaceTaken(_)
        | DomainError::Full(_) => ErrorKind::Taken,
    };
    error(kind, reason)
}

pub(crate) fn kind_of(reason: &FabricError) -> ErrorKind {
    match reason {
        FabricError::MissingProgram { .. } | FabricError::Unsupported(_) => ErrorKind::Missing,
        FabricError::Privilege { .. } => ErrorKind::Privilege,
        FabricError::BadName(_) => ErrorKind::BadInput,
        FabricError::Taken(_) => ErrorKind::Taken,
        FabricError::NotFound(_) => ErrorKind::NotFound,
        FabricError::Tool { .. } | FabricError::Io { .. } => ErrorKind::Internal,
    }
}

impl From<FabricError> for BrokerError {
    fn from(reason: FabricError) -> Self {
        match kind_of(&reason) {
            ErrorKind::Missing => BrokerError::Missing(reason.to_string()),
            ErrorKind::Privilege => BrokerError::Privilege(reason.to_string()),
            _ => BrokerError::System {
                what: "the fabric".into(),
                source: std::io::Error::other(reason),
            },
        }
    }
}

/// Which boot this is: proc(5), /proc/sys/kernel/random/boot_id.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
