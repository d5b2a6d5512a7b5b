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
//! Each has a user of its own, which nobody else is: neither one may signal or trace another. The users follow from the cookie of the
//! domain's namespace, which no other one has before the next boot. Neither is ever root; until it has
//! confined itself (`fordway_driver::confine`) it has one right of root's, to empty its root directory. The port is a tap device of
//! the fabric's, of which each process that is started anew inherits the program's end, ready made; one at a time can have it.
//!
//! A port whose end somebody has still is made anew, and so is that of a fused stack before each next one: it may have given the end
//! to a program, which can change the device. Chains of the filter that name the port are the kernel's to have again then
//! (`Broker::port_came`), before the process is told anything: until the kernel has them, the process waits.
//!
//! The parts outlive the broker. Who they are stands in [`STACKS_FILE`], which a new broker reads: it takes the ends of the
//! link from the processes themselves (pidfd_getfd(2)), by the numbers that they have *there*. Where one of them is gone, or of
//! another version, both are started anew. A process is told its configuration when it is written down, and ends without, so that
//! no broker dies between the two and leaves one of which nobody knows. Where it cannot be written down, that is tried again, and
//! the process waits.

use crate::admin;
use crate::again::Again;
use crate::domains::boot_id;
use crate::groups::Groupable;
use crate::orders::{self, Packed, Way};
use crate::parts::{PartId, Parts, Start};
use crate::{Programs, runtime};
use fordway_abi::env as names;
use fordway_driver::config::{self, DriverConfig, Mac, Version, Wire};
use fordway_driver::orders::Ends;
use fordway_platform::fabric::{DriverPort, Lease};
use fordway_platform::launch::{Part, PartUser};
use fordway_platform::{netns, process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal,
};
use rustix::thread::{CapabilitySet, CpuSet};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Who the parts are, in the runtime directory.
pub(crate) const STACKS_FILE: &str = "stacks.json";
/// A directory for each stack, in the runtime directory.
const STACKS_DIR: &str = "stacks";
/// Where a stack listens, in its directory.
const CONTROL: &str = "control.sock";
/// Users of parts: two for each domain from here on. Nobody gives these out (systemd's "Users, Groups, UIDs and GIDs").
const UID_BASE: u32 = 0x7000_0000;
/// How long those that are ended together may take. Their memory is what takes time, and they may wait for the kernel.
const GONE_MAX: Duration = Duration::from_secs(5);
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
    /// The CPUs of stack and driver; none: where its program runs.
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
    link: Option<(OwnedFd, i32)>,
    way: Option<orders::Found>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    boot_id: String,
    /// Of the broker that wrote it, and so of the parts. None: older than versions are.
    #[serde(default)]
    version: Option<Version>,
    stacks: Vec<StackRecord>,
}

#[derive(Clone, Serialize, Deserialize)]
struct StackRecord {
    name: String,
    options: StackOptions,
    parts: Vec<PartRecord>,
}

/// A process, and the number that the link has there.
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
    fn process(&self) -> Option<OwnedFd> {
        let pidfd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // Asked when the pidfd holds the process: the number is nobody else's.
        let same = process::start_ticks(self.pid) == Some(self.start_ticks);
        (same && process::is_alive(&pidfd)).then_some(pidfd)
    }

    /// The process with its ends, if it has them.
    fn find(&self) -> Option<Found> {
        let pidfd = self.process()?;
        let get = |number: Option<i32>| {
            let get = |number| pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty());
            number.map(get).transpose()
        };
        let (link, way) = (get(self.link).ok()?, get(self.way).ok()?);
        Some(Found {
            pid: self.pid,
            link: link.zip(self.link),
            way: way.zip(self.way),
            pidfd,
        })
    }
}

/// Ends parts of an earlier broker, and waits until they are gone: their successors are not to have them beside, for two would
/// share the port.
fn end_found(parts: &[PartRecord]) -> bool {
    let pidfds: Vec<OwnedFd> = parts.iter().filter_map(PartRecord::process).collect();
    for pidfd in &pidfds {
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    }
    let until = Instant::now() + GONE_MAX;
    for pidfd in &pidfds {
        let mut left = until.saturating_duration_since(Instant::now());
        while process::is_alive(pidfd) && !left.is_zero() {
            let most = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            // Interrupted, or not: it is looked at again.
            let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&most));
            left = until.saturating_duration_since(Instant::now());
        }
        if process::is_alive(pidfd) {
            tracing::warn!("a part of an earlier broker was killed and does not end");
        }
    }
    !pidfds.is_empty()
}

/// One end of the link between driver and stack.
struct Link {
    end: OwnedFd,
    /// The number that it has in the part that runs.
    there: Cell<i32>,
}

impl Link {
    /// A part that is about to be started inherits it under the number that it has here.
    fn inherit(&self) -> (BorrowedFd<'_>, i32) {
        self.there.set(self.end.as_raw_fd());
        (self.end.as_fd(), self.there.get())
    }
}

/// A process of a stack's.
struct Member {
    id: PartId,
    link: Option<Rc<Link>>,
}

struct Stack {
    site: Site,
    options: StackOptions,
    /// The driver first, if there is one.
    members: Vec<Member>,
    way: Rc<Way>,
}

/// What a broker of this boot has written down.
fn written(runtime_dir: &Path) -> Option<Record> {
    let text = std::fs::read_to_string(runtime_dir.join(STACKS_FILE));
    let record = serde_json::from_str::<Record>(&text.ok()?).ok()?;
    (record.boot_id == boot_id()).then_some(record)
}

/// Ends what a broker that is no more has left running, and removes its files. Says whether there was anything.
pub(crate) fn clear(runtime_dir: &Path) -> io::Result<bool> {
    for stack in written(runtime_dir)
        .iter()
        .flat_map(|record| &record.stacks)
    {
        end_found(&stack.parts);
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

/// The program's end of a domain's port, which nobody has: if somebody has it still, or the device is gone or not whole, of another
/// device. The address of a port that was made anew is noted in `remade`.
fn end_of(
    port: &DriverPort,
    must_remake: bool,
    remade: &RefCell<Vec<Ipv4Addr>>,
) -> io::Result<OwnedFd> {
    const BUSY: Option<i32> = Some(rustix::io::Errno::BUSY.raw_os_error());
    const GONE: Option<i32> = Some(rustix::io::Errno::NODEV.raw_os_error());
    if !must_remake && !port.is_unfinished() {
        match port.open() {
            Err(reason) if [BUSY, GONE].contains(&reason.raw_os_error()) => {
                tracing::warn!("port of {}: {reason}; it is made anew", port.ip());
            }
            opened => return opened,
        }
    }
    // Until it is whole, whoever opens it makes it anew.
    port.remake().map_err(io::Error::other)?;
    remade.borrow_mut().push(port.ip());
    port.open()
}

/// The stacks of the broker's domains.
pub(crate) struct Stacks {
    runtime_dir: PathBuf,
    control_socket: PathBuf,
    programs: Programs,
    stacks: BTreeMap<u32, Stack>,
    /// In force, for processes that are started from now on.
    rules: Rc<RefCell<Rc<Packed>>>,
    /// What an earlier broker has written, until it is asked for; and stacks whose domains are just being made.
    before: BTreeMap<String, StackRecord>,
    /// The parts of that broker are of this version.
    are_alike: bool,
    /// Ports that were made anew.
    remade: Rc<RefCell<Vec<Ipv4Addr>>>,
    /// How [`STACKS_FILE`] could be written.
    record: Again,
}

impl Stacks {
    pub(crate) fn new(
        runtime_dir: &Path,
        control_socket: &Path,
        programs: &Programs,
        rules: Packed,
    ) -> Self {
        let record = written(runtime_dir);
        let are_alike = record
            .as_ref()
            .is_some_and(|record| record.version == Some(Version::OWN));
        let before = record.into_iter().flat_map(|record| record.stacks);
        Self {
            runtime_dir: runtime_dir.to_owned(),
            control_socket: control_socket.to_owned(),
            programs: programs.clone(),
            stacks: BTreeMap::new(),
            rules: Rc::new(RefCell::new(Rc::new(rules))),
            before: before.map(|one| (one.name.clone(), one)).collect(),
            are_alike,
            remade: Rc::default(),
            record: Again::default(),
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

    /// A directory that stacks, which are users of their own, could not pass on their way to the sockets.
    pub(crate) fn closed_directory(&self) -> Option<&Path> {
        let may_pass = |dir: &Path| std::fs::metadata(dir).is_ok_and(|of| of.mode() & 1 != 0);
        let mut dirs = self.runtime_dir.ancestors();
        dirs.find(|dir| !dir.as_os_str().is_empty() && !may_pass(dir))
    }

    /// Writes down what the stack of a domain is to be that is about to be made: a broker that dies meanwhile leaves that to the
    /// next one. Then [`Stacks::raise`] or [`Stacks::forget`].
    pub(crate) fn promise(&mut self, parts: &Parts, name: &str, options: &StackOptions) {
        let record = StackRecord {
            name: name.to_owned(),
            options: options.clone(),
            parts: Vec::new(),
        };
        self.before.insert(name.to_owned(), record);
        self.save(parts);
    }

    /// There is no such domain.
    pub(crate) fn forget(&mut self, parts: &Parts, name: &str) {
        if self.before.remove(name).is_some() {
            self.save(parts);
        }
    }

    /// Starts the stack of a domain. To be saved.
    pub(crate) fn raise(
        &mut self,
        parts: &mut Parts,
        site: Site,
        options: StackOptions,
    ) -> io::Result<()> {
        if let Some(cpu) = options.wrong_cpu() {
            return Err(io::Error::other(format!("there is no CPU {cpu}")));
        }
        let name = site.name.clone();
        self.start(parts, site, options, Vec::new(), true)?;
        self.before.remove(&name);
        Ok(())
    }

    /// Takes over the stack of a domain that an earlier broker had, or starts it anew. To be saved.
    pub(crate) fn adopt(&mut self, parts: &mut Parts, site: Site) -> io::Result<()> {
        let record = self.before.remove(&site.name);
        let options = record
            .as_ref()
            .map_or_else(StackOptions::default, |record| record.options.clone());
        let written = record.map(|record| record.parts).unwrap_or_default();
        let mut found: Vec<Found> = match self.are_alike {
            true => written.iter().filter_map(PartRecord::find).collect(),
            false => Vec::new(),
        };
        let takes_orders = found.last().is_some_and(|stack| stack.way.is_some());
        if !takes_orders || found.len() != if options.fuse { 1 } else { 2 } {
            end_found(&written);
            found.clear();
        }
        let started = self.start(parts, site, options, found, false);
        if started.is_err() {
            end_found(&written);
        }
        started
    }

    /// Ends what an earlier broker had for domains that are no more.
    pub(crate) fn end_unclaimed(&mut self) {
        for (name, record) in std::mem::take(&mut self.before) {
            if end_found(&record.parts) {
                tracing::warn!("the stack of {name}, a domain that is no more, was ended");
            }
        }
    }

    /// Ports that were made anew since the last time.
    pub(crate) fn take_remade(&self) -> Vec<Ipv4Addr> {
        self.remade.take()
    }

    /// `is_new`: nobody has had the port.
    fn start(
        &mut self,
        parts: &mut Parts,
        site: Site,
        options: StackOptions,
        found: Vec<Found>,
        is_new: bool,
    ) -> io::Result<()> {
        let users @ [driver_uid, stack_uid] = uids(site.netns_cookie);
        let mut others = self.stacks.values();
        if let Some(other) = others.find(|other| uids(other.site.netns_cookie) == users) {
            return Err(io::Error::other(format!(
                "its users would be those of domain {}; make it once more",
                other.site.name
            )));
        }
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
            links = [a, b].map(|end| (end, -1)).into();
        }
        let mut links = links.into_iter().map(|(end, there)| {
            let there = Cell::new(there);
            Rc::new(Link { end, there })
        });
        let mut running = running.into_iter();
        let mut members = Vec::new();
        if !options.fuse
            && let Some(link) = links.next()
        {
            let start = self.driver(&site, driver_uid, &options, link.clone());
            let name = format!("the driver of {}", site.name);
            let id = parts.add(name, start, running.next());
            let link = Some(link);
            members.push(Member { id, link });
        }
        let link = links.next();
        let way = Rc::new(Way::new(way));
        let start = self.stack(
            &site,
            stack_uid,
            &options,
            link.clone(),
            way.clone(),
            is_new,
        );
        let id = parts.add(format!("the stack of {}", site.name), start, running.next());
        members.push(Member { id, link });
        let stack = Stack {
            site,
            options,
            members,
            way,
        };
        self.stacks.insert(stack.site.id, stack);
        Ok(())
    }

    fn driver(&self, site: &Site, uid: u32, options: &StackOptions, link: Rc<Link>) -> Start {
        let lease = &site.lease;
        let six = lease.six.map(|(six, _)| [six, lease.link_local()]);
        let six = six.into_iter().flatten().map(IpAddr::V6);
        let mac = Mac(lease.mac());
        let addresses: Vec<_> = [IpAddr::V4(lease.ip)].into_iter().chain(six).collect();
        let (program, port) = (self.programs.driver.clone(), site.port.clone());
        let (cpus, remade) = (options.cpus.clone(), self.remade.clone());
        Box::new(move || {
            let tap = end_of(&port, false, &remade)?;
            let (link, number) = link.inherit();
            let config = config::written(&DriverConfig {
                wire: Wire::Tap(tap.as_raw_fd()),
                link: number,
                mac,
                addresses: addresses.clone(),
                uid,
            })?;
            let namespace = netns::anonymous()?;
            let capabilities = CapabilitySet::SYS_ADMIN;
            Part {
                program: &program,
                config: &config,
                inherits: &[link, tap.as_fd()],
                netns: namespace.as_fd(),
                variables: &[],
                user: Some(PartUser {
                    uid,
                    gid: uid,
                    capabilities,
                }),
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
        link: Option<Rc<Link>>,
        way: Rc<Way>,
        is_new: bool,
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
        let (remade, is_new) = (self.remade.clone(), Cell::new(is_new));
        Box::new(move || {
            let laid = Way::lay(&rules.borrow())?;
            let tap;
            let (fd, port) = match &link {
                Some(link) => {
                    let (fd, link) = link.inherit();
                    (fd, StackPort::Queue { link })
                }
                None => {
                    tap = end_of(&own_port, !is_new.get(), &remade)?;
                    is_new.set(false);
                    (tap.as_fd(), StackPort::Tap(tap.as_raw_fd()))
                }
            };
            let config = config::written(&StackConfig {
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
                user: Some(PartUser {
                    uid,
                    gid: uid,
                    capabilities,
                }),
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
            for member in &stack.members {
                parts.end(member.id);
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
        Some(self.stacks.get(&id)?.members.last()?.id)
    }

    /// The address of the port that a part has, if it has one.
    pub(crate) fn port_of_part(&self, part: PartId) -> Option<Ipv4Addr> {
        let has = |stack: &&Stack| stack.members.first().is_some_and(|first| first.id == part);
        Some(self.stacks.values().find(has)?.site.port.ip())
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
        parts.pid(self.stacks.get(&id)?.members.last()?.id)
    }

    /// The domain of which a process is the stack.
    pub(crate) fn served_by(&self, parts: &Parts, pid: i32) -> Option<u32> {
        let mut ids = self.stacks.keys().copied();
        ids.find(|id| self.process_of(parts, *id) == Some(pid))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// Those that were not given CPUs.
    pub(crate) fn groupable(&self, parts: &Parts) -> impl Iterator<Item = Groupable> {
        let free = self.stacks.iter();
        let free = free.filter(|(_, stack)| stack.options.cpus.is_empty());
        free.map(|(id, stack)| Groupable {
            id: *id,
            netns_cookie: stack.site.netns_cookie,
            pids: (stack.members.iter())
                .filter_map(|member| parts.live_pid(member.id))
                .collect(),
        })
    }

    /// The stack of a domain, as listings have it.
    pub(crate) fn describe(&self, parts: &Parts, id: u32) -> Option<admin::Stack> {
        let stack = self.stacks.get(&id)?;
        let ids = || stack.members.iter().map(|member| member.id);
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

    /// Writes [`STACKS_FILE`] anew; a reader sees the old one or the new one. Whether that could be done; if not, it is due again
    /// later.
    pub(crate) fn save(&mut self, parts: &Parts) -> bool {
        let path = self.runtime_dir.join(STACKS_FILE);
        let path = path.display();
        match self.write_down(parts) {
            Ok(()) => {
                if self.record.worked() {
                    tracing::info!("{path} is written again");
                }
                true
            }
            Err(reason) => {
                if self.record.failed() {
                    tracing::warn!(
                        "{path}: {reason}; that is tried again, and no part of a stack begins before"
                    );
                }
                false
            }
        }
    }

    /// Whether the last one failed.
    pub(crate) fn is_save_failing(&self) -> bool {
        self.record.is_failing()
    }

    /// Whether [`Stacks::save`] is to be tried again now.
    pub(crate) fn is_save_due(&self) -> bool {
        self.record.is_due()
    }

    /// Until then.
    pub(crate) fn patience_ns(&self) -> Option<u64> {
        self.record.patience_ns()
    }

    fn write_down(&self, parts: &Parts) -> io::Result<()> {
        let members = self.stacks.values().flat_map(|stack| &stack.members);
        let mut new = members.filter(|member| parts.is_untold(member.id));
        let is_unknown = |pid| process::start_ticks(pid).is_none();
        if new.any(|member| parts.pid(member.id).is_some_and(is_unknown)) {
            return Err(io::Error::other("/proc does not tell when a part began"));
        }
        let part = |member: &Member| {
            let pid = parts.pid(member.id)?;
            Some(PartRecord {
                pid,
                start_ticks: process::start_ticks(pid)?,
                link: member.link.as_ref().map(|link| link.there.get()),
                way: None,
            })
        };
        let stacks = self.stacks.values().map(|stack| {
            let mut records: Vec<_> = stack.members.iter().filter_map(part).collect();
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
            version: Some(Version::OWN),
            stacks: stacks.chain(self.before.values().cloned()).collect(),
        };
        let path = self.runtime_dir.join(STACKS_FILE);
        match record.stacks.is_empty() {
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
        }
    }
}

/// The users of the driver and the stack of the domain that has this namespace.
fn uids(netns_cookie: u64) -> [u32; 2] {
    let first = UID_BASE + (netns_cookie % (1 << (UID_BITS - 1))) as u32 * 2;
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

    /// The first process of a PID namespace ends when all others of it were waited for: here when their parent, who is outside and
    /// stopped, goes on.
    #[test]
    fn who_was_found_is_gone_when_it_was_ended() {
        if !rustix::process::geteuid().is_root() {
            fordway_test_skip::skipped("needs root");
            return;
        }
        let child_of = |parent: u32| -> i32 {
            let file = format!("/proc/{parent}/task/{parent}/children");
            let until = Instant::now() + Duration::from_secs(30);
            loop {
                let children = std::fs::read_to_string(&file).expect("children");
                if let Some(child) = children.split_whitespace().next() {
                    return child.parse().expect("a number");
                }
                assert!(Instant::now() < until, "no child of {parent}");
                std::thread::yield_now();
            }
        };
        let spawn = |words: &[&str]| {
            let mut command = std::process::Command::new(words[0]);
            command
                .args(&words[1..])
                .stderr(std::process::Stdio::null());
            command.spawn().expect("util-linux")
        };
        let mut outer = spawn(&["unshare", "--pid", "--fork", "sleep", "100"]);
        let first = child_of(outer.id());
        let target = first.to_string();
        let mut parent = spawn(&["nsenter", "--target", &target, "--pid", "sleep", "100"]);
        child_of(parent.id());
        let signal = |child: &std::process::Child, signal| {
            let _ = rustix::process::kill_process(Pid::from_child(child), signal);
        };
        signal(&parent, Signal::STOP);
        let record = PartRecord {
            pid: first,
            start_ticks: process::start_ticks(first).expect("it runs"),
            link: None,
            way: None,
        };
        let pidfd = record.process().expect("it runs");
        let is_gone = std::thread::scope(|scope| {
            scope.spawn(|| {
                // It takes its time to end.
                std::thread::sleep(Duration::from_millis(500));
                signal(&parent, Signal::CONT);
            });
            assert!(end_found(&[record]));
            !process::is_alive(&pidfd)
        });
        for child in [&mut parent, &mut outer] {
            let _ = child.kill();
            let _ = child.wait();
        }
        assert!(is_gone);
    }

    #[test]
    fn each_namespace_has_users_of_its_own() {
        let all: Vec<u32> = (1..1000).flat_map(uids).collect();
        let some: std::collections::BTreeSet<u32> = all.iter().copied().collect();
        assert_eq!(some.len(), all.len());
        // However large the number is, they are the parts' and neither anybody's nor nobody's.
        let last = uids(u64::MAX)[1];
        assert!(
            all.into_iter()
                .chain([last])
                .all(|uid| uid >> UID_BITS == UID_BASE >> UID_BITS)
        );
    }
}
