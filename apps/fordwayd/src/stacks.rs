//! Domains with a network stack of their own: a driver, which has the domain's port, and a stack, which serves its programs.
//!
//! ```text
//!   programs ── <runtime>/stacks/NAME/control.sock ── fordway-stackd ══ link, queues ══ fordway-driver ── tap, port of the fabric
//!   (loopback only)                                  (no network)                       (no network)
//! ```
//! Both are parts ([`crate::parts`]): the broker starts them, watches them and starts them again. It keeps both ends of the
//! link between them, so that a new process finds the old one by it. With `fuse` there is one process, the stack, which has the
//! tap.
//!
//! A stack takes orders of the broker ([`fordway_driver::orders`]): `orders` in this directory.
//!
//! Each has a user of its own, which nobody else is: neither one may signal or trace another. Neither is ever root; until it has
//! confined itself (`fordway_driver::confine`) it has one right of root's, to empty its root directory. The port is a tap device of
//! the fabric's, of which each process that is started anew inherits the program's end, ready made; one at a time can have it.
//!
//! The parts outlive the broker. Who they are stands in [`STACKS_FILE`], which a new broker reads: it takes the ends of the
//! link from the processes themselves (pidfd_getfd(2)). Where one of them is gone, both are started anew.

use crate::admin;
use crate::domains::boot_id;
use crate::orders::{self, Packed, Way};
use crate::parts::{PartId, Parts, Start};
use crate::{Programs, runtime};
use fordway_abi::env as names;
use fordway_driver::config::{DriverConfig, Mac, Wire};
use fordway_driver::orders::Ends;
use fordway_platform::fabric::{DriverPort, Lease};
use fordway_platform::launch::{Part, PartUser};
use fordway_platform::{netns, process};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal,
};
use rustix::thread::{CapabilitySet, CpuSet};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Who the parts are, in the runtime directory.
pub(crate) const STACKS_FILE: &str = "stacks.json";
/// A directory for each stack, in the runtime directory.
const STACKS_DIR: &str = "stacks";
/// Where a stack listens, in its directory.
const CONTROL: &str = "control.sock";
/// Users of parts: two for each domain from here on. Nobody gives these out (systemd's "Users, Groups, UIDs and GIDs").
const UID_BASE: u32 = 0x7000_0000;
const UID_BITS: u32 = 27;
/// Of the fabric's devices.
const MTU_BYTES: usize = 1500;
/// Sockets of one domain.
const SOCKETS_MAX: usize = 16_384;

/// Programs that have less than `fordway-stackd`, beside it: for who asks for no more.
const SMALLER: [(&str, &[&str]); 1] = [("fordway-stackd-udp", &["udp", "icmp", "ipv6"])];

/// The program of a stack: the smallest that is installed and has what is asked for. The one with everything lies at `all`.
fn program(all: &Path, options: &StackOptions) -> PathBuf {
    let suffices = |has: &[&str]| {
        let mut asked = options.protocols.iter();
        !options.protocols.is_empty() && asked.all(|one| has.contains(&one.as_str()))
    };
    let smaller = SMALLER.iter().filter(|(_, has)| suffices(has));
    let mut smaller = smaller.map(|(name, _)| all.with_file_name(name));
    smaller
        .find(|file| file.is_file())
        .unwrap_or_else(|| all.to_owned())
}

/// What a stack is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackOptions {
    /// `tcp`, `udp`, `icmp`, `ipv6`.
    pub protocols: Vec<String>,
    /// Stack and driver are one process.
    #[serde(default)]
    pub fuse: bool,
    /// The CPUs of stack and driver; none: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<usize>,
}

impl StackOptions {
    /// Whether a program that asks for this finds it in a stack of `has`. On which CPUs that runs is its own.
    pub(crate) fn is_met_by(&self, has: &StackOptions) -> bool {
        (&self.protocols, self.fuse) == (&has.protocols, has.fuse)
    }

    /// A CPU that cannot be.
    pub(crate) fn wrong_cpu(&self) -> Option<usize> {
        let mut cpus = self.cpus.iter().copied();
        cpus.find(|cpu| *cpu >= CpuSet::MAX_CPU)
    }
}

impl Default for StackOptions {
    fn default() -> Self {
        Self {
            protocols: ["tcp", "udp", "icmp", "ipv6"].map(str::to_owned).into(),
            fuse: false,
            cpus: Vec::new(),
        }
    }
}

/// What `fordway-stackd` is told.
#[derive(Clone, Serialize)]
struct StackConfig {
    control_socket: PathBuf,
    netns_cookie: u64,
    port: Option<StackPort>,
    mac: Mac,
    mtu_bytes: usize,
    addresses: Vec<String>,
    routes: Vec<StackRoute>,
    sockets_max: usize,
    uid: u32,
    protocols: Vec<String>,
    orders: Option<Ends>,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
enum StackPort {
    Tap(i32),
    Queue { link: i32 },
}

#[derive(Clone, Serialize)]
struct StackRoute {
    to: String,
    via: IpAddr,
}

/// Where a domain lies.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) lease: Lease,
    /// Of the namespace that the domain's programs lie in.
    pub(crate) netns_cookie: u64,
    /// That namespace.
    pub(crate) netns_path: PathBuf,
    pub(crate) port: DriverPort,
    /// The way out, if there is one.
    pub(crate) gateway: Option<Ipv4Addr>,
}

/// A part that was found, with its end of the link, and the end of the way to it.
struct Found {
    pid: i32,
    pidfd: OwnedFd,
    link: Option<OwnedFd>,
    way: Option<orders::Found>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    boot_id: String,
    stacks: Vec<StackRecord>,
}

#[derive(Clone, Serialize, Deserialize)]
struct StackRecord {
    name: String,
    options: StackOptions,
    parts: Vec<PartRecord>,
}

/// A process, and the number that the link has in it.
#[derive(Clone, Serialize, Deserialize)]
struct PartRecord {
    pid: i32,
    start_ticks: u64,
    link: Option<i32>,
    /// Of a stack: the number that the broker's end of the way to it has there.
    #[serde(default)]
    way: Option<i32>,
}

impl PartRecord {
    /// The process, if it is the one that was written down.
    fn find(&self) -> Option<Found> {
        let pidfd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // Asked when the pidfd holds the process: the number is nobody else's.
        if process::start_ticks(self.pid) != Some(self.start_ticks) || !process::is_alive(&pidfd) {
            return None;
        }
        let get = |number: Option<i32>| {
            let get = |number| pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty());
            number.map(get).transpose()
        };
        let (Ok(link), Ok(way)) = (get(self.link), get(self.way)) else {
            // Its successor is not to have it beside: two would share the port. It may have ended meanwhile.
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            return None;
        };
        Some(Found {
            pid: self.pid,
            link,
            way: way.zip(self.way),
            pidfd,
        })
    }
}

struct Stack {
    site: Site,
    options: StackOptions,
    /// The driver first, if there is one; each with its end of the link.
    parts: Vec<(PartId, Option<Arc<OwnedFd>>)>,
    way: Rc<Way>,
}

/// What a broker of this boot has written down.
fn written(runtime_dir: &Path) -> Vec<StackRecord> {
    let text = std::fs::read_to_string(runtime_dir.join(STACKS_FILE));
    let record = text
        .ok()
        .and_then(|text| serde_json::from_str::<Record>(&text).ok());
    let record = record.filter(|record| record.boot_id == boot_id());
    record.map(|record| record.stacks).unwrap_or_default()
}

/// Ends what a broker that is no more has left running, and removes its files. Says whether there was anything.
pub(crate) fn clear(runtime_dir: &Path) -> io::Result<bool> {
    let stacks = written(runtime_dir);
    let parts = stacks.iter().flat_map(|stack| &stack.parts);
    let found: Vec<Found> = parts.filter_map(PartRecord::find).collect();
    for part in &found {
        let _ = pidfd_send_signal(&part.pidfd, Signal::KILL);
    }
    let had_file = match std::fs::remove_file(runtime_dir.join(STACKS_FILE)) {
        Err(reason) if reason.kind() == io::ErrorKind::NotFound => false,
        removed => removed.map(|()| true)?,
    };
    match std::fs::remove_dir_all(runtime_dir.join(STACKS_DIR)) {
        Err(reason) if reason.kind() != io::ErrorKind::NotFound => Err(reason),
        // An empty one may be left of a broker that has removed all.
        _ => Ok(had_file),
    }
}

/// The stacks of the broker's domains.
pub(crate) struct Stacks {
    runtime_dir: PathBuf,
    control_socket: PathBuf,
    programs: Programs,
    stacks: BTreeMap<u32, Stack>,
    /// In force, for processes that are started from now on.
    rules: Rc<RefCell<Rc<Packed>>>,
    /// What an earlier broker has written, until it is asked for.
    before: BTreeMap<String, StackRecord>,
}

impl Stacks {
    pub(crate) fn new(
        runtime_dir: &Path,
        control_socket: &Path,
        programs: &Programs,
        rules: Packed,
    ) -> Self {
        let before = written(runtime_dir).into_iter();
        Self {
            runtime_dir: runtime_dir.to_owned(),
            control_socket: control_socket.to_owned(),
            programs: programs.clone(),
            stacks: BTreeMap::new(),
            rules: Rc::new(RefCell::new(Rc::new(rules))),
            before: before.map(|one| (one.name.clone(), one)).collect(),
        }
    }

    /// Whether what a stack needs is installed; else what is missing.
    pub(crate) fn lacks(&self, options: &StackOptions) -> Option<String> {
        let Programs {
            driver,
            stack,
            library,
        } = &self.programs;
        let driver = (!options.fuse).then_some(driver);
        let needed = driver.into_iter().chain([stack, library]);
        let missing = needed
            .filter(|file| !file.is_file())
            .map(|file| file.display().to_string());
        missing.reduce(|all, one| format!("{all}, {one}"))
    }

    /// Starts the stack of a domain.
    pub(crate) fn raise(
        &mut self,
        parts: &mut Parts,
        site: Site,
        options: StackOptions,
    ) -> io::Result<()> {
        if let Some(cpu) = options.wrong_cpu() {
            return Err(io::Error::other(format!("there is no CPU {cpu}")));
        }
        self.start(parts, site, options, Vec::new())?;
        self.save(parts);
        Ok(())
    }

    /// Takes over the stack of a domain that an earlier broker had, or starts it anew.
    pub(crate) fn adopt(&mut self, parts: &mut Parts, site: Site) -> io::Result<()> {
        let record = self.before.remove(&site.name);
        let options = record
            .as_ref()
            .map_or_else(StackOptions::default, |record| record.options.clone());
        let written = record.map(|record| record.parts).unwrap_or_default();
        let mut found: Vec<Found> = written.iter().filter_map(PartRecord::find).collect();
        // One that takes no orders is of another version.
        let takes_orders = found.last().is_some_and(|stack| stack.way.is_some());
        if !takes_orders || found.len() != if options.fuse { 1 } else { 2 } {
            for part in found.drain(..) {
                let _ = pidfd_send_signal(&part.pidfd, Signal::KILL);
            }
        }
        self.start(parts, site, options, found)?;
        self.save(parts);
        Ok(())
    }

    fn start(
        &mut self,
        parts: &mut Parts,
        site: Site,
        options: StackOptions,
        found: Vec<Found>,
    ) -> io::Result<()> {
        let [driver_uid, stack_uid] = uids(site.id);
        let dir = self.dir_of(&site.name);
        std::fs::create_dir_all(&dir)?;
        std::os::unix::fs::chown(&dir, Some(stack_uid), Some(stack_uid))?;
        let mut links = Vec::new();
        let mut running = Vec::new();
        let mut way = None;
        for one in found {
            way = one.way;
            links.extend(one.link);
            running.push((one.pid, one.pidfd));
        }
        if links.is_empty() && !options.fuse {
            let (a, b) = socketpair(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )?;
            links = vec![a, b];
        }
        let mut links = links.into_iter().map(Arc::new);
        let mut running = running.into_iter();
        let mut ids = Vec::new();
        if !options.fuse
            && let Some(link) = links.next()
        {
            let start = self.driver(&site, driver_uid, &options, link.clone());
            let id = parts.add(
                format!("the driver of {}", site.name),
                start,
                running.next(),
            );
            ids.push((id, Some(link)));
        }
        let link = links.next();
        let way = Rc::new(Way::new(way));
        let start = self.stack(&site, stack_uid, &options, link.clone(), way.clone());
        let id = parts.add(format!("the stack of {}", site.name), start, running.next());
        ids.push((id, link));
        let stack = Stack {
            site,
            options,
            parts: ids,
            way,
        };
        self.stacks.insert(stack.site.id, stack);
        Ok(())
    }

    fn driver(&self, site: &Site, uid: u32, options: &StackOptions, link: Arc<OwnedFd>) -> Start {
        let lease = &site.lease;
        let six = lease.six.map(|(six, _)| [six, lease.link_local()]);
        let six = six.into_iter().flatten().map(IpAddr::V6);
        let mac = Mac(lease.mac());
        let addresses: Vec<_> = [IpAddr::V4(lease.ip)].into_iter().chain(six).collect();
        let (program, port) = (self.programs.driver.clone(), site.port.clone());
        let cpus = options.cpus.clone();
        Box::new(move || {
            let tap = port.open()?;
            let config = serde_json::to_vec(&DriverConfig {
                wire: Wire::Tap(tap.as_raw_fd()),
                link: link.as_raw_fd(),
                mac,
                addresses: addresses.clone(),
                uid,
            })?;
            let namespace = netns::anonymous()?;
            let capabilities = CapabilitySet::SYS_ADMIN;
            Part {
                program: &program,
                config: &config,
                inherits: &[link.as_fd(), tap.as_fd()],
                netns: namespace.as_fd(),
                variables: &[],
                user: Some(PartUser { uid, capabilities }),
                gives_way: false,
                cpus: &cpus,
            }
            .start()
        })
    }

    fn stack(
        &self,
        site: &Site,
        uid: u32,
        options: &StackOptions,
        link: Option<Arc<OwnedFd>>,
        way: Rc<Way>,
    ) -> Start {
        let lease = &site.lease;
        let six = lease.six.map(|(six, prefix)| {
            [
                format!("{six}/{prefix}"),
                format!("{}/64", lease.link_local()),
            ]
        });
        let four = format!("{}/{}", lease.ip, lease.prefix);
        let way_out = site.gateway.map(|gateway| StackRoute {
            to: "0.0.0.0/0".to_owned(),
            via: gateway.into(),
        });
        let config = StackConfig {
            control_socket: self.control_of(&site.name),
            netns_cookie: site.netns_cookie,
            port: None,
            mac: Mac(lease.mac()),
            mtu_bytes: MTU_BYTES,
            addresses: [four]
                .into_iter()
                .chain(six.into_iter().flatten())
                .collect(),
            routes: way_out.into_iter().collect(),
            sockets_max: SOCKETS_MAX,
            uid,
            protocols: options.protocols.clone(),
            orders: None,
        };
        let rules = self.rules.clone();
        let variables: [(&str, OsString); 2] = [
            ("LD_PRELOAD", self.programs.library.clone().into()),
            (names::SOCKET, self.control_socket.clone().into()),
        ];
        let program = program(&self.programs.stack, options);
        let (own_port, cpus) = (site.port.clone(), options.cpus.clone());
        Box::new(move || {
            let laid = Way::lay(&rules.borrow())?;
            let tap;
            let (fd, port) = match &link {
                Some(link) => {
                    let fd = link.as_fd();
                    let link = fd.as_raw_fd();
                    (fd, StackPort::Queue { link })
                }
                None => {
                    tap = own_port.open()?;
                    (tap.as_fd(), StackPort::Tap(tap.as_raw_fd()))
                }
            };
            let config = serde_json::to_vec(&StackConfig {
                orders: Some(laid.ends()),
                port: Some(port),
                ..config.clone()
            })?;
            let namespace = netns::anonymous()?;
            let capabilities = CapabilitySet::SYS_ADMIN;
            let inherits: Vec<_> = [fd].into_iter().chain(laid.fds()).collect();
            let started = Part {
                program: &program,
                config: &config,
                inherits: &inherits,
                netns: namespace.as_fd(),
                variables: &variables,
                user: Some(PartUser { uid, capabilities }),
                // Frames wake its driver, which takes the CPU at once. Fused, nobody else would take them.
                gives_way: link.is_some(),
                cpus: &cpus,
            }
            .start()?;
            way.take(laid);
            Ok(started)
        })
    }

    /// Ends the stack of a domain, if it has one.
    pub(crate) fn end(&mut self, parts: &mut Parts, id: u32) {
        if let Some(stack) = self.stacks.remove(&id) {
            for (part, _) in &stack.parts {
                parts.end(*part);
            }
            let _ = std::fs::remove_dir_all(self.dir_of(&stack.site.name));
            self.save(parts);
        }
    }

    /// Ends those whose domains are gone.
    pub(crate) fn end_gone(&mut self, parts: &mut Parts) {
        let gone = |stack: &&Stack| !stack.site.netns_path.exists();
        let gone: Vec<u32> = self
            .stacks
            .values()
            .filter(gone)
            .map(|stack| stack.site.id)
            .collect();
        gone.into_iter().for_each(|id| self.end(parts, id));
    }

    /// The ways to all stacks, by their domains' numbers.
    pub(crate) fn ways(&self) -> impl Iterator<Item = (u32, &Way)> {
        self.stacks.iter().map(|(id, stack)| (*id, &*stack.way))
    }

    pub(crate) fn way(&self, id: u32) -> Option<&Way> {
        self.stacks.get(&id).map(|stack| &*stack.way)
    }

    /// The part that is the stack of a domain.
    pub(crate) fn stack_part(&self, id: u32) -> Option<PartId> {
        let (part, _) = self.stacks.get(&id)?.parts.last()?;
        Some(*part)
    }

    /// What stacks are started with.
    pub(crate) fn rules(&self) -> Rc<Packed> {
        self.rules.borrow().clone()
    }

    /// Stacks that are started from now on have these.
    pub(crate) fn set_rules(&mut self, rules: Packed) -> Rc<Packed> {
        let rules = Rc::new(rules);
        self.rules.replace(rules.clone());
        rules
    }

    /// What the stack of a domain is.
    pub(crate) fn options(&self, id: u32) -> Option<&StackOptions> {
        Some(&self.stacks.get(&id)?.options)
    }

    /// The process that is the stack of a domain, while it runs.
    pub(crate) fn process_of(&self, parts: &Parts, id: u32) -> Option<i32> {
        // The driver stands before it.
        parts.pid(self.stacks.get(&id)?.parts.last()?.0)
    }

    /// The domain of which a process is the stack.
    pub(crate) fn served_by(&self, parts: &Parts, pid: i32) -> Option<u32> {
        let mut ids = self.stacks.keys().copied();
        ids.find(|id| self.process_of(parts, *id) == Some(pid))
    }

    /// The stack of a domain, as listings have it.
    pub(crate) fn describe(&self, parts: &Parts, id: u32) -> Option<admin::Stack> {
        let stack = self.stacks.get(&id)?;
        let ids = || stack.parts.iter().map(|(id, _)| *id);
        Some(admin::Stack {
            options: stack.options.clone(),
            control_path: self.control_of(&stack.site.name).display().to_string(),
            pids: ids().filter_map(|id| parts.pid(id)).collect(),
            restarts: ids().map(|id| parts.restarts(id)).sum(),
        })
    }

    fn dir_of(&self, name: &str) -> PathBuf {
        self.runtime_dir.join(STACKS_DIR).join(name)
    }

    fn control_of(&self, name: &str) -> PathBuf {
        self.dir_of(name).join(CONTROL)
    }

    /// Writes [`STACKS_FILE`] anew; a reader sees the old one or the new one.
    pub(crate) fn save(&self, parts: &Parts) {
        let part = |(id, link): &(PartId, Option<Arc<OwnedFd>>)| {
            let pid = parts.pid(*id)?;
            Some(PartRecord {
                pid,
                start_ticks: process::start_ticks(pid)?,
                link: link.as_ref().map(AsRawFd::as_raw_fd),
                way: None,
            })
        };
        let stacks = self.stacks.values().map(|stack| {
            let mut records: Vec<_> = stack.parts.iter().filter_map(part).collect();
            if let Some(record) = records.last_mut() {
                record.way = stack.way.number();
            }
            StackRecord {
                name: stack.site.name.clone(),
                options: stack.options.clone(),
                parts: records,
            }
        });
        let record = Record {
            boot_id: boot_id(),
            stacks: stacks.collect(),
        };
        let path = self.runtime_dir.join(STACKS_FILE);
        let written = match record.stacks.is_empty() {
            true => match std::fs::remove_file(&path) {
                Err(reason) if reason.kind() != io::ErrorKind::NotFound => Err(reason),
                _ => Ok(()),
            },
            false => serde_json::to_vec(&record)
                .map_err(io::Error::from)
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
}

/// The users of a domain's driver and stack.
fn uids(id: u32) -> [u32; 2] {
    let first = UID_BASE + (id % (1 << (UID_BITS - 1))) * 2;
    [first, first + 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_no_tcp_gets_the_stack_without_it_where_it_is() {
        let dir = std::env::temp_dir().join(format!("fordway-stacks-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        let all = dir.join("fordway-stackd");
        let chosen = |protocols: &[&str]| {
            let options = StackOptions {
                protocols: protocols.iter().map(|one| (*one).to_owned()).collect(),
                ..StackOptions::default()
            };
            let file = program(&all, &options);
            file.file_name()
                .and_then(|name| name.to_str())
                .map(str::to_owned)
        };
        let (whole, udp) = (Some("fordway-stackd"), Some("fordway-stackd-udp"));
        assert_eq!(chosen(&["udp"]).as_deref(), whole);
        std::fs::write(dir.join("fordway-stackd-udp"), "").expect("a file");
        assert_eq!(chosen(&["udp"]).as_deref(), udp);
        assert_eq!(chosen(&["ipv6", "udp", "icmp"]).as_deref(), udp);
        assert_eq!(chosen(&["tcp", "udp"]).as_deref(), whole);
        assert_eq!(chosen(&[]).as_deref(), whole);
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
