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
use crate::audit::{Event, Record};
use crate::broker::{Broker, Ending};
use crate::stacks::{Site, StackOptions};
use crate::{BrokerError, Config, runtime};
use fordway_abi::vsock;
use fordway_platform::fabric::hosts::{self, HOST_NAME};
use fordway_platform::fabric::{DomainPaths, Fabric, FabricError, Lease, Publication, has_ipv6};
use fordway_platform::launch::HOSTS;
use fordway_platform::process::{NamespaceInode, Populations};
use fordway_platform::{diag, netns};
use fordway_registry::{Assigned, Domain, DomainError, HOST_DOMAIN, Network, Network6, Registry};
use serde::{Deserialize, Serialize};
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Domains that others made, in the runtime directory.
pub(crate) const ATTACHED_FILE: &str = "attached.json";

/// Why something is not done.
type Refusal = (ErrorKind, String);

/// A namespace that others made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Attached {
    name: String,
    ip: Ipv4Addr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ip6: Option<Ipv6Addr>,
    netns_cookie: u64,
    /// A process that was in it when it was attached.
    pid: i32,
    /// A [`NamespaceInode`].
    inode: (u64, u64),
}

impl Attached {
    /// Whether a process is in it. One that only a mount holds counts as left.
    fn is_inhabited(&self, populations: &Populations) -> bool {
        let (device, inode) = self.inode;
        populations.of(NamespaceInode(device, inode)) > 0
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
    /// What new domains have an address of beside that of the registry's network.
    network6: Option<Network6>,
    /// New domains have a CID.
    vsock: bool,
    /// Of the domains of the fabric, by number.
    paths: BTreeMap<u32, DomainPaths>,
    attached: BTreeMap<u32, Attached>,
    /// The host's address in the domains' network, if it is joined.
    uplink: Option<Ipv4Addr>,
    /// What the kernel has of published ports, with the address that each leads to.
    published: Vec<(Publication, Ipv4Addr)>,
    /// Domains of an earlier broker that have a stack of their own.
    found_stacks: Vec<Site>,
}

impl Domains {
    /// Finds again what an earlier broker left.
    pub(crate) fn start(config: &Config, registry: &mut Registry) -> Result<Self, BrokerError> {
        let own = diag::own_netns_cookie().map_err(crate::doing("SO_NETNS_COOKIE"))?;
        let network6 = config.network6.filter(|_| has_ipv6());
        let vsock = config.vsock && network6.is_some();
        let cid = (config.uplink && vsock).then_some(vsock::CID_HOST);
        registry.set_host(HOST_NAME, own, cid);
        let mut domains = Self {
            runtime_dir: config.runtime_dir.clone(),
            fabric: None,
            network6,
            vsock,
            paths: BTreeMap::new(),
            attached: BTreeMap::new(),
            uplink: None,
            published: Vec::new(),
            found_stacks: Vec::new(),
        };
        if domains.possible() {
            if network6 != config.network6 {
                tracing::warn!(
                    "the kernel has no IPv6, or has it off: domains get IPv4 addresses only"
                );
            }
            if config.vsock && !domains.vsock {
                tracing::warn!("domains without IPv6 addresses get no CIDs of AF_VSOCK");
            }
            domains.fabric = Fabric::open(&config.runtime_dir)?;
            domains.adopt(registry)?;
        }
        domains.adopt_attached(registry);
        domains.settle_uplink(config)?;
        if let Some(fabric) = &domains.fabric {
            fabric.part_others()?;
        }
        domains.tell_of_domains(registry);
        Ok(domains)
    }

    /// Lays the uplink or removes it, as the configuration says, whatever an earlier broker had.
    fn settle_uplink(&mut self, config: &Config) -> Result<(), FabricError> {
        if !config.uplink {
            let laid = self.fabric.as_ref().filter(|fabric| fabric.has_uplink());
            let Some(fabric) = laid else { return Ok(()) };
            let closed = fabric.published().unwrap_or_default();
            let closed: Vec<String> = closed.iter().map(|(port, _)| port.to_string()).collect();
            let closed = match closed.is_empty() {
                true => "no port was published".to_owned(),
                false => format!("published ports are closed: {}", closed.join(", ")),
            };
            tracing::warn!("started without --uplink: that of the broker before goes; {closed}");
            return fabric.remove_uplink();
        }
        let is_new = self.fabric.is_none();
        let ip = config.network.uplink_address();
        let vsock = self.vsock;
        let laid = self
            .fabric()
            .and_then(|fabric| fabric.add_uplink(ip, config.network.prefix(), vsock));
        if laid.is_err() && is_new {
            let _ = Fabric::remove(&self.runtime_dir);
        }
        laid?;
        self.uplink = Some(ip);
        self.read_published();
        Ok(())
    }

    /// Asks the kernel what is published.
    fn read_published(&mut self) {
        if let Some(fabric) = self.fabric.as_ref().filter(|_| self.uplink.is_some()) {
            match fabric.published() {
                Ok(published) => self.published = published,
                Err(reason) => tracing::warn!("asking for the published ports: {reason}"),
            }
        }
    }

    /// The IPv6 network of new domains.
    pub(crate) fn network6(&self) -> Option<Network6> {
        self.network6
    }

    /// The addresses of a new domain.
    fn lease(&self, ip: Ipv4Addr, network: Network) -> Lease {
        let six = |network: Network6| (network.address_of(ip), network.prefix());
        Lease {
            ip,
            prefix: network.prefix(),
            six: self.network6.map(six),
            vsock: self.vsock,
        }
    }

    /// Where the stack of a domain lies, if it has one of its own.
    fn site(&self, domain: &Domain, lease: &Lease, paths: &DomainPaths) -> Option<Site> {
        let fabric = self.fabric.as_ref().filter(|_| paths.has_driver)?;
        Some(Site {
            id: domain.id,
            name: domain.name.clone(),
            lease: *lease,
            netns_cookie: domain.netns_cookie,
            netns_path: paths.netns_path.clone(),
            port: fabric.driver_port(&domain.name, lease),
            gateway: self.uplink,
        })
    }

    /// Whether this broker may make domains.
    pub(crate) fn possible(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    fn adopt(&mut self, registry: &mut Registry) -> Result<(), BrokerError> {
        let Some(fabric) = &self.fabric else {
            return Ok(());
        };
        fabric.renew()?;
        for found in fabric.existing()? {
            if let Some(reason) = &found.unfinished {
                let name = &found.name;
                tracing::warn!(
                    "the port of domain {name} cannot be made anew: {reason}; that is tried again"
                );
            }
            let network = registry.network();
            let lease = found.lease;
            let Lease {
                ip, prefix, six, ..
            } = lease;
            let fits = prefix == network.prefix() && network.has_host(ip);
            let fits6 = match (six, self.network6) {
                (Some(six), Some(of)) => six == (of.address_of(ip), of.prefix()),
                // It stays as it was made.
                _ => true,
            };
            if !fits || !fits6 {
                // Of two networks, programs in one would not reach those in the other.
                let name = &found.name;
                let (has, other, its, option) = match (six, self.network6) {
                    (Some((six, prefix)), Some(other)) if fits => {
                        let its = Network6::new(six, prefix).map(|its| its.to_string());
                        (
                            format!("{six}/{prefix}"),
                            other.to_string(),
                            its,
                            "--network6",
                        )
                    }
                    _ => {
                        let its = Network::new(ip, prefix).map(|its| its.to_string());
                        (
                            format!("{ip}/{prefix}"),
                            network.to_string(),
                            its,
                            "--network",
                        )
                    }
                };
                let its = its.unwrap_or_default();
                return Err(BrokerError::Directory {
                    dir: self.runtime_dir.clone(),
                    what: format!(
                        "holds domain \"{name}\" ({has}), which is not of the network {other}; \
                         give {option} {its}, or end the domains with: fordway down"
                    ),
                });
            }
            let assigned = Assigned {
                ip,
                ip6: six.map(|(six, _)| six),
                cid: lease.cid(),
                netns_cookie: found.paths.netns_cookie,
            };
            match registry.add_domain(&found.name, assigned) {
                Ok(domain) => {
                    tracing::info!("domain {} ({ip}) is there already", domain.name);
                    let site = self.site(&domain, &lease, &found.paths);
                    self.found_stacks.extend(site);
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

    /// What others go by when the domains have changed: hosts files, and who may come by the uplink.
    fn tell_of_domains(&self, registry: &Registry) {
        // The fabric's IPv6 ends where the fabric does: an address that does not lead anywhere would only be
        // tried, and for long where a route to everything swallows it.
        let names = |inside: bool| -> Vec<(&str, IpAddr)> {
            let addresses = |domain: &'_ Domain| {
                let reaches = self.paths.contains_key(&domain.id) == inside;
                domain.addresses().filter(move |ip| ip.is_ipv4() || reaches)
            };
            let of = |domain| addresses(domain).map(|ip| (domain.name.as_str(), ip));
            registry.domains().flat_map(of).collect()
        };
        let (names, outside) = (names(true), names(false));
        let warn = |what: &str, reason: &dyn std::fmt::Display| tracing::warn!("{what}: {reason}");
        if let Some(fabric) = &self.fabric
            && let Err(reason) = fabric.write_hosts(&names, self.uplink)
        {
            warn("names of domains", &reason);
        }
        if let Err(reason) = hosts::write_shared(&self.runtime_dir, &outside, self.uplink) {
            warn("names of domains for containers", &reason);
        }
        if self.uplink.is_some()
            && let Err(reason) = hosts::write_block(Path::new(HOSTS), &self.runtime_dir, &outside)
        {
            warn(HOSTS, &reason);
        }
        let attached: Vec<Ipv4Addr> = self.attached.values().map(|one| one.ip).collect();
        if let Some(fabric) = self.fabric.as_ref().filter(|_| self.uplink.is_some())
            && let Err(reason) = fabric.let_attached(&attached)
        {
            warn("attached domains at the uplink", &reason);
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
                ip6: attached.ip6,
                cid: self.join(
                    &attached.name,
                    attached.ip,
                    attached.pid,
                    attached.netns_cookie,
                ),
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

    /// Gives an attached domain a CID, if domains have some: which. One that cannot get it does without.
    fn join(&mut self, name: &str, ip: Ipv4Addr, pid: i32, netns_cookie: u64) -> Option<u32> {
        if !self.vsock || !self.possible() {
            return None;
        }
        let lease = Lease::joined(ip);
        let is_there = netns::of_process(pid)
            .and_then(|namespace| netns::cookie(namespace.as_fd()))
            .is_ok_and(|cookie| cookie == netns_cookie);
        let joined = match is_there {
            true => self
                .fabric()
                .and_then(|fabric| fabric.join(name, &lease, pid)),
            false => Err(FabricError::NotFound(name.to_owned())),
        };
        match joined {
            Ok(()) => lease.cid(),
            Err(reason) => {
                tracing::warn!("domain {name} gets no CID of AF_VSOCK: {reason}");
                None
            }
        }
    }

    /// Takes its CID from a domain that is attached no more.
    fn part(&self, attached: &Attached) {
        let lease = Lease::joined(attached.ip);
        if let Some(fabric) = &self.fabric
            && let Err(reason) = fabric.part(&lease)
        {
            tracing::warn!("the CID of domain {}: {reason}", attached.name);
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
        if let Err(reason) = Fabric::remove(&self.runtime_dir) {
            tracing::warn!("removing the domains: {reason}");
        }
        false
    }

    /// Removes the domains of the fabric in which nothing runs; returns how many stay.
    fn remove_empty(&mut self, registry: &mut Registry) -> usize {
        let Some(fabric) = &self.fabric else {
            return 0;
        };
        let populations = Populations::look();
        self.paths.retain(|id, paths| {
            let in_use = processes_in(paths, &populations) > 0;
            if !in_use
                && let Some(domain) = registry.domains().find(|domain| domain.id == *id)
                && let Some(ip) = domain.ip
                && let Err(reason) = fabric.remove_domain(&domain.name, ip)
            {
                tracing::warn!("removing domain {}: {reason}", domain.name);
            }
            in_use
        });
        self.paths.len()
    }

    /// Whether a domain has a port of the fabric's bridge.
    pub(crate) fn is_on_fabric(&self, domain: &Domain) -> bool {
        self.paths.contains_key(&domain.id)
    }

    /// Whether the host has one.
    pub(crate) fn has_uplink(&self) -> bool {
        self.uplink.is_some()
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
    /// Finds the stacks that an earlier broker left, for the domains that it left.
    pub(crate) fn adopt_stacks(&mut self) {
        for mut site in std::mem::take(&mut self.domains.found_stacks) {
            let name = site.name.clone();
            site.gateway = self.domains.uplink;
            if let Err(reason) = self.stacks.adopt(&mut self.parts, site) {
                tracing::warn!("the stack of domain {name}: {reason}");
            }
        }
        self.stacks.end_unclaimed();
        self.settle_stacks();
        self.give_rules_to_found();
    }

    /// Parts were started, or what held them back may be over. Each is told to begin once it is written down who they are and the
    /// fabric has the chains of its port. What fails of that is tried again, and comes here again.
    pub(crate) fn settle_stacks(&mut self) {
        for ip in self.stacks.take_remade() {
            self.port_came(ip);
        }
        if self.stacks.save(&self.parts) {
            let (stacks, rules) = (&self.stacks, &self.rules);
            self.parts.tell_started(|part| {
                let port = stacks.port_of_part(part);
                port.is_none_or(|ip| rules.has_chains_of(ip))
            });
        }
    }

    /// Whether a domain has a stack as is asked for, or none.
    fn has_such_stack(&self, domain: u32, asked: Option<&StackOptions>) -> bool {
        match (self.stacks.options(domain), asked) {
            (Some(has), Some(asked)) => asked.is_met_by(has),
            (has, asked) => has.is_none() && asked.is_none(),
        }
    }

    pub(crate) fn domain_add(
        &mut self,
        name: &str,
        ip: Option<Ipv4Addr>,
        publish: &[String],
        stack: Option<StackOptions>,
    ) -> Reply {
        if let Some(existing) = self.registry.domain_by_name(name).cloned() {
            return match (ip, existing.ip) {
                (Some(wanted), Some(has)) if wanted != has => error(
                    ErrorKind::Taken,
                    format_args!("domain \"{name}\" exists with address {has}, not {wanted}"),
                ),
                (_, None) => error(
                    ErrorKind::Taken,
                    format_args!("\"{name}\" is the broker's own network namespace"),
                ),
                _ if !self.has_such_stack(existing.id, stack.as_ref()) => error(
                    ErrorKind::Taken,
                    match self.stacks.options(existing.id) {
                        Some(has) => format!(
                            "domain \"{name}\" has a stack of its own; run programs in it with: --path stack{} --stack {}",
                            if has.fuse { " --fuse" } else { "" },
                            has.protocols.join(",")
                        ),
                        None => format!("domain \"{name}\" exists without a stack of its own"),
                    },
                ),
                (_, Some(ip)) => match self.publish(&existing, ip, publish) {
                    Ok(()) => Reply::Domain(self.describe(&existing)),
                    Err((kind, what)) => error(kind, what),
                },
            };
        }
        let ip = match self.registry.check_domain(name, ip, self.domains.network6) {
            Ok(ip) => ip,
            Err(reason) => return refused(&reason),
        };
        if !self.domains.possible() {
            return error(
                ErrorKind::Privilege,
                "this broker cannot make domains: start it as root (fordway up)",
            );
        }
        if let Err((kind, what)) = self.to_publish(ip, publish) {
            return error(kind, what);
        }
        if let Some(missing) = stack.as_ref().and_then(|stack| self.stacks.lacks(stack)) {
            let what = format!("a stack needs files that are not installed: {missing}");
            return error(ErrorKind::Missing, what);
        }
        if let Some(dir) = self.stacks.closed_directory().filter(|_| stack.is_some()) {
            let dir = dir.display();
            return error(
                ErrorKind::Privilege,
                format_args!(
                    "a stack is a user of its own, which cannot pass {dir}; let it: chmod o+x {dir}"
                ),
            );
        }
        let mut lease = self.domains.lease(ip, self.registry.network());
        // AF_VSOCK is the library's, and its datagrams need the kernel's UDP in the domain.
        lease.vsock &= stack.is_none();
        if let Some(options) = &stack {
            self.stacks.promise(&self.parts, name, options);
        }
        let made = self.domains.fabric().and_then(|fabric| match stack {
            Some(_) => fabric.add_domain_with_driver(name, &lease),
            None => fabric.add_domain(name, &lease),
        });
        let paths = match made {
            Ok(paths) => paths,
            Err(reason) => {
                self.stacks.forget(&self.parts, name);
                return error(kind_of(&reason), &reason);
            }
        };
        let assigned = Assigned {
            ip,
            ip6: lease.six.map(|(six, _)| six),
            cid: lease.cid(),
            netns_cookie: paths.netns_cookie,
        };
        match self.registry.add_domain(name, assigned) {
            Ok(domain) => {
                let what = Record::of_domain(Event::DomainAdd, name, paths.netns_cookie);
                self.audit(what, format_args!("domain {name} ({ip}) was made"));
                let site = self.domains.site(&domain, &lease, &paths);
                self.domains.paths.insert(domain.id, paths);
                self.domains.tell_of_domains(&self.registry);
                self.port_came(ip);
                if let Some((site, options)) = site.zip(stack)
                    && let Err(reason) = self.stacks.raise(&mut self.parts, site, options)
                {
                    self.stacks.forget(&self.parts, name);
                    self.domain_remove(name, true);
                    return error(ErrorKind::Internal, format_args!("its stack: {reason}"));
                }
                self.settle_stacks();
                match self.publish(&domain, ip, publish) {
                    Ok(()) => Reply::Domain(self.describe(&domain)),
                    Err((kind, what)) => {
                        self.domain_remove(name, true);
                        error(kind, what)
                    }
                }
            }
            Err(reason) => {
                if let Ok(fabric) = self.domains.fabric() {
                    let _ = fabric.remove_domain(name, ip);
                }
                self.stacks.forget(&self.parts, name);
                refused(&reason)
            }
        }
    }

    /// What of these ports is not published for this address yet; none of it may be another's.
    fn to_publish(&self, ip: Ipv4Addr, ports: &[String]) -> Result<Vec<Publication>, Refusal> {
        let mut new: Vec<Publication> = Vec::new();
        for text in ports {
            let port: Publication = text
                .parse()
                .map_err(|reason| (ErrorKind::BadInput, format!("\"{text}\": {reason}")))?;
            if self.domains.uplink.is_none() {
                let what =
                    "publishing ports needs the uplink; start the broker with: fordway up --uplink";
                return Err((ErrorKind::Missing, what.into()));
            }
            let published = self.domains.published.iter().copied();
            let mut known = published.chain(new.iter().map(|one| (*one, ip)));
            if known.clone().any(|one| one == (port, ip)) {
                continue;
            }
            if let Some((other, of)) = known.find(|(other, _)| other.meets(&port)) {
                let owner = self.registry.domains().find(|domain| domain.ip == Some(of));
                let owner = owner.map_or_else(
                    // This one is not made yet.
                    || "the same domain".to_owned(),
                    |domain| format!("domain \"{}\"", domain.name),
                );
                let what = format!("cannot publish {port}: {owner} has {other}");
                return Err((ErrorKind::Taken, what));
            }
            port.try_bind().map_err(|reason| match reason.kind() {
                std::io::ErrorKind::AddrInUse => {
                    let what =
                        format!("cannot publish {port}: a program of the host has that port");
                    (ErrorKind::Taken, what)
                }
                _ => {
                    let what =
                        format!("cannot publish {port}: {reason}; is the address the host's?");
                    (ErrorKind::BadInput, what)
                }
            })?;
            new.push(port);
        }
        Ok(new)
    }

    fn publish(&mut self, domain: &Domain, ip: Ipv4Addr, ports: &[String]) -> Result<(), Refusal> {
        let new = self.to_publish(ip, ports)?;
        if new.is_empty() {
            return Ok(());
        }
        if !self.domains.paths.contains_key(&domain.id) {
            let name = &domain.name;
            let what = format!(
                "domain \"{name}\" was attached: whoever made its network publishes its ports"
            );
            return Err((ErrorKind::BadInput, what));
        }
        let fabric = self.domains.fabric();
        let published = fabric.and_then(|fabric| fabric.publish(ip, &new));
        self.domains.read_published();
        published.map_err(|reason| (kind_of(&reason), reason.to_string()))
    }

    pub(crate) fn domain_attach(
        &mut self,
        name: &str,
        (ip, ip6): (Ipv4Addr, Option<Ipv6Addr>),
        pid: i32,
    ) -> Reply {
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
            && (existing.ip, existing.ip6) == (Some(ip), ip6)
        {
            return Reply::Domain(self.describe(&existing.clone()));
        }
        self.drop_left_behind(name, (ip, ip6));
        // Asked before a device is made: who is refused has none.
        if let Err(reason) = self.registry.check_attached(name, (ip, ip6), netns_cookie) {
            return refused(&reason);
        }
        let assigned = Assigned {
            ip,
            ip6,
            cid: self.domains.join(name, ip, pid, netns_cookie),
            netns_cookie,
        };
        // What its programs carried before is not the domain's.
        self.count_carried();
        match self.registry.add_domain(name, assigned) {
            Ok(domain) => {
                let what = Record::of_domain(Event::DomainAttach, name, netns_cookie);
                self.audit(what, format_args!("domain {name} ({ip}) was attached"));
                let attached = Attached {
                    name: name.to_owned(),
                    ip,
                    ip6,
                    netns_cookie,
                    pid,
                    inode: (inode.0, inode.1),
                };
                self.domains.attached.insert(domain.id, attached);
                self.domains.save_attached();
                self.domains.tell_of_domains(&self.registry);
                Reply::Domain(self.describe(&domain))
            }
            Err(reason) => refused(&reason),
        }
    }

    /// Makes way for a container that was started again: an attached domain of this
    /// name or address in whose namespace nobody is any more.
    fn drop_left_behind(&mut self, name: &str, (ip, ip6): (Ipv4Addr, Option<Ipv6Addr>)) {
        let same6 = |attached: &Attached| ip6.is_some() && attached.ip6 == ip6;
        let same =
            |attached: &Attached| attached.name == name || attached.ip == ip || same6(attached);
        let populations = LazyCell::new(Populations::look);
        let left: Vec<u32> = self
            .domains
            .attached
            .iter()
            .filter(|(_, attached)| same(attached) && !attached.is_inhabited(&populations))
            .map(|(id, _)| *id)
            .collect();
        for id in left {
            if let Some(attached) = self.domains.attached.remove(&id) {
                self.domains.part(&attached);
                let Attached {
                    name, netns_cookie, ..
                } = &attached;
                let what = Record::of_domain(Event::DomainRemove, name, *netns_cookie);
                let why = format_args!("domain {name} was removed: nobody is in its namespace");
                self.audit(what, why);
            }
            self.forget_domain(id);
        }
    }

    fn forget_domain(&mut self, id: u32) {
        self.count_carried();
        self.carried.forget(id);
        let actions = self.registry.remove_domain(id);
        self.carry_out(actions);
        self.look_at_relayed();
    }

    pub(crate) fn domain_list(&self) -> Vec<admin::Domain> {
        let populations: LazyCell<Populations> = LazyCell::new(Populations::look);
        let domains = self.registry.domains();
        domains
            .map(|domain| self.describe_among(domain, &populations))
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
            Some(paths) => processes_in(paths, &Populations::look()),
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
        if self.stacks.options(domain.id).is_some() {
            self.collect_counts();
        }
        self.stacks.end(&mut self.parts, domain.id);
        if let Some(ip) = domain.ip
            && self.domains.paths.contains_key(&domain.id)
        {
            let removed = self
                .domains
                .fabric()
                .and_then(|fabric| fabric.remove_domain(name, ip));
            if let Err(reason) = removed {
                return error(kind_of(&reason), &reason);
            }
            self.domains.paths.remove(&domain.id);
            self.domains.read_published();
            // Chains of its port are gone from the kernel, or may be.
            self.rules.given += 1;
        }
        if let Some(attached) = self.domains.attached.remove(&domain.id) {
            self.domains.part(&attached);
            self.domains.save_attached();
        }
        self.places.close(domain.netns_cookie);
        self.forget_domain(domain.id);
        self.domains.tell_of_domains(&self.registry);
        let what = Record::of_domain(Event::DomainRemove, name, domain.netns_cookie);
        self.audit(what, format_args!("domain {name} was removed"));
        Reply::Done
    }

    fn describe(&self, domain: &Domain) -> admin::Domain {
        self.describe_among(domain, &LazyCell::new(Populations::look))
    }

    fn describe_among(
        &self,
        domain: &Domain,
        populations: &LazyCell<Populations>,
    ) -> admin::Domain {
        let paths = self.domains.paths.get(&domain.id);
        let is_host = domain.id == HOST_DOMAIN;
        let published = self.domains.published.iter();
        let published = published.filter(|(_, of)| Some(*of) == domain.ip);
        admin::Domain {
            stack: self.stacks.describe(&self.parts, domain.id),
            name: domain.name.clone(),
            id: domain.id,
            // The registry pairs by addresses, and the host's is none that one party alone has.
            ip: domain.ip.or(self.domains.uplink.filter(|_| is_host)),
            prefix: self.registry.network().prefix(),
            ip6: domain.ip6,
            cid: domain.cid,
            netns_cookie: domain.netns_cookie,
            netns_path: paths.map(|paths| paths.netns_path.display().to_string()),
            hosts_path: paths.map(|paths| paths.hosts_path.display().to_string()),
            published: published.map(|(port, _)| port.to_string()).collect(),
            processes: match paths {
                Some(paths) => processes_in(paths, populations) as u32,
                None => self.registry.processes_in(domain.netns_cookie) as u32,
            },
            ring_memory_bytes: self.purses.bytes_taken_in(domain.netns_cookie),
            ring_memory_bytes_max: self.purses.bytes_max(),
        }
    }
}

/// How many processes are in a domain of the fabric.
fn processes_in(paths: &DomainPaths, populations: &Populations) -> usize {
    NamespaceInode::of_file(&paths.netns_path).map_or(0, |inode| populations.of(inode))
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
            ErrorKind::Taken => BrokerError::InUse(reason.to_string()),
            _ => BrokerError::System {
                what: "the fabric".into(),
                source: std::io::Error::other(reason),
            },
        }
    }
}

/// Which boot this is: proc(5), /proc/sys/kernel/random/boot_id.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
