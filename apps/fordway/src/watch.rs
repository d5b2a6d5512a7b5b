//! `fordway watch`: registers the containers of an engine as domains, and no longer than they
//! live.
//!
//! A round asks for events, then lists the running containers, then follows the events. An
//! event only says which container to look at; what is done follows from what it is now
//! ([`Watch::settle`]). So an event that comes late, twice or for a container that has gone
//! does no harm. A round ends when the engine or the broker does; the next one begins a second
//! later, and lists anew.
//!
//! - A container is a *member* if its first process sees the broker's control directory at its
//!   place, by the device or by hand. The kernel says so (/proc/PID/mountinfo); engines differ in
//!   what they tell of devices.
//! - The engine says which address is whose; the kernel has to agree that the namespace has it.
//! - A namespace has one domain, with one address of each family. Of members that share one (a pod,
//!   `--network container:`) one is registered; when it goes, another takes its place.
//! - When the watch ends, by a signal, registrations stay: containers go on, and so do their
//!   rings. The next watch finds them again, as attaching twice is no error.

use crate::broker::Broker;
use crate::cli;
use crate::engine::Engine;
use crate::exit::{Exit, Failure, Outcome};
use crate::show;
use fordwayd::admin::{CONTROL_DIR, Domain, Request};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

const DOCKER_SOCKET: &str = "/run/docker.sock";
const PODMAN_SOCKET: &str = "/run/podman/podman.sock";
/// Between two rounds.
const PAUSE: Duration = Duration::from_secs(1);
/// Events after which a container may be another one than before; `cleanup` is Podman's, after
/// `die`, which may come while its record still says that it runs.
const TELLING: [&str; 4] = ["start", "die", "died", "cleanup"];

/// A container that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    /// Of the domain.
    name: String,
    ip: Ipv4Addr,
    /// In the same network.
    ip6: Option<Ipv6Addr>,
    pid: i32,
    /// Inode of its network namespace.
    netns: u64,
}

struct Watch<'a> {
    broker: &'a Broker,
    engine: Engine,
    /// By the container's number.
    members: BTreeMap<String, Member>,
    /// Those that are domains.
    registered: BTreeMap<String, Member>,
}

/// `fordway watch`: until a signal.
pub fn watch(broker: &Broker, options: &cli::Watch) -> Outcome {
    let default = match options.podman {
        true => PODMAN_SOCKET,
        false => DOCKER_SOCKET,
    };
    let socket = options.socket.as_deref();
    let mut watch = Watch {
        broker,
        engine: Engine::at(socket.unwrap_or(default.as_ref())),
        members: BTreeMap::new(),
        registered: BTreeMap::new(),
    };
    let mut said = String::new();
    loop {
        let begun = watch.begin();
        match begun.and_then(|followed| watch.follow(followed)) {
            Ok(_) => said.clear(),
            Err(failure) if failure.exit == Exit::Privilege => return Err(failure),
            Err(failure) if failure.message != said => {
                show::say(&format!("{}; trying again each second", failure.message));
                said = failure.message;
            }
            Err(_) => {}
        }
        std::thread::sleep(PAUSE);
    }
}

impl Watch<'_> {
    /// Brings the broker up to what runs now.
    fn begin(&mut self) -> Result<Followed, Failure> {
        let broker = self.broker.info()?;
        let pid = Pid::from_raw(broker.pid).ok_or_else(|| Failure::internal("no broker"))?;
        let broker = pidfd_open(pid, PidfdFlags::empty()).map_err(Failure::internal)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let since = now.map_or(0, |now| now.as_secs());
        let events = self.engine.events(since);
        let events = events.map_err(|error| self.silent(&error))?;
        let running = self.running()?;
        for (id, member) in self.registered.clone() {
            if self.look(&id)?.as_ref() != Some(&member) {
                self.detach(&member)?;
                self.registered.remove(&id);
            }
        }
        // The broker may be another one, which knows of none.
        self.registered.clear();
        self.members.clear();
        for id in &running {
            self.settle(id)?;
        }
        show::print(&format!(
            "watching {}; containers that are attached: {}\n",
            self.engine.socket().display(),
            self.registered.len()
        ))?;
        Ok(Followed { events, broker })
    }

    /// Until the engine or the broker ends.
    fn follow(&mut self, mut followed: Followed) -> Result<Exit, Failure> {
        loop {
            let event = followed.events.next(&followed.broker);
            let Some(event) = event.map_err(|error| self.silent(&error))? else {
                return Ok(Exit::Done);
            };
            let is_telling = event["Action"]
                .as_str()
                .is_some_and(|action| TELLING.contains(&action));
            if let Some(id) = event["Actor"]["ID"].as_str().filter(|_| is_telling) {
                self.settle(id)?;
            }
        }
    }

    /// Has the broker know of a container what is so now.
    fn settle(&mut self, id: &str) -> Result<(), Failure> {
        let found = self.look(id)?;
        let before = match &found {
            Some(found) => self.members.insert(id.to_owned(), found.clone()),
            None => self.members.remove(id),
        };
        if before == found && self.registered.contains_key(id) {
            return Ok(());
        }
        if let Some(left) = self.registered.remove(id) {
            self.detach(&left)?;
            self.register(left.netns)?;
        }
        match found {
            Some(found) => self.register(found.netns),
            None => Ok(()),
        }
    }

    /// Sees to it that this namespace is a domain, by the first of its members that can be one.
    fn register(&mut self, netns: u64) -> Result<(), Failure> {
        if self.registered.values().any(|other| other.netns == netns) {
            return Ok(());
        }
        for (id, member) in &self.members {
            let has = |ip| has_address(member.pid, ip);
            if member.netns != netns || !has(member.ip.into()) {
                continue;
            }
            let ip6 = member.ip6.filter(|ip6| has((*ip6).into()));
            let request = Request::DomainAttach {
                name: member.name.clone(),
                ip: member.ip,
                ip6,
                pid: member.pid,
            };
            match self.broker.ask(&request) {
                Ok(_) => {
                    self.registered.insert(id.clone(), member.clone());
                    let six = ip6.map_or_else(String::new, |ip6| format!(", {ip6}"));
                    show::print(&format!(
                        "{} ({}{six}) is attached\n",
                        member.name, member.ip
                    ))?;
                    return Ok(());
                }
                // It has ended meanwhile: an event says so.
                Err(failure) if failure.exit == Exit::NotFound => {}
                Err(failure) if matches!(failure.exit, Exit::Taken | Exit::Usage) => {
                    let why = failure.message;
                    show::say(&format!("{} is not attached: {why}", member.name));
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Its address is no longer the container's. A domain that somebody has made since under its name
    /// is not touched.
    fn detach(&self, member: &Member) -> Result<(), Failure> {
        let name = member.name.clone();
        let is_its = |domain: &Domain| {
            domain.name == name && domain.ip == Some(member.ip) && domain.netns_path.is_none()
        };
        if self.broker.domains()?.iter().any(is_its) {
            let remove = Request::DomainRemove { name, force: true };
            match self.broker.ask(&remove) {
                Err(failure) if failure.exit != Exit::NotFound => return Err(failure),
                _ => {}
            }
        }
        show::print(&format!("{} is detached\n", member.name)).map(drop)
    }

    /// What a container is now; `None` if it takes no part.
    fn look(&self, id: &str) -> Result<Option<Member>, Failure> {
        let container = match self.get(&format!("/containers/{id}/json")) {
            // Of one that it is removing Podman has no answer but status 500.
            Err(_) if !self.running()?.iter().any(|running| running == id) => None,
            container => container?,
        };
        let Some(container) = container else {
            return Ok(None);
        };
        let name = container["Name"].as_str().map(domain_name);
        let pid = container["State"]["Pid"].as_i64();
        let pid = pid
            .and_then(|pid| i32::try_from(pid).ok())
            .filter(|pid| *pid > 0);
        let (Some(name), Some(pid)) = (name, pid) else {
            return Ok(None);
        };
        // None of it is there any more if the process has ended.
        let netns = fs::metadata(format!("/proc/{pid}/ns/net"));
        let netns = netns.ok().filter(|_| self.sees_broker(pid));
        let addresses = addresses(&container["NetworkSettings"]);
        let (Some(netns), Some((ip, ip6))) = (netns, addresses.first().copied()) else {
            return Ok(None);
        };
        if let [_, others @ ..] = &addresses[..]
            && !others.is_empty()
            && !self.members.contains_key(id)
        {
            let others = Vec::from_iter(others.iter().map(|(ip, _)| ip.to_string())).join(", ");
            show::note(&format!(
                "{name}: a domain is in one network, by {ip}; connections by {others} stay on the kernel path"
            ));
        }
        Ok(Some(Member {
            name,
            ip,
            ip6,
            pid,
            netns: netns.ino(),
        }))
    }

    /// Whether something is mounted for a process where the control directory is (proc(5)).
    fn sees_broker(&self, pid: i32) -> bool {
        let control = self.broker.runtime_dir().join(CONTROL_DIR);
        let control = control.display().to_string().replace(' ', "\\040");
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let mut mounts = mounts.lines();
        mounts.any(|line| line.split(' ').nth(4) == Some(&*control))
    }

    /// Numbers of the containers that run.
    fn running(&self) -> Result<Vec<String>, Failure> {
        let list = self.get("/containers/json")?.unwrap_or_default();
        let running = list.as_array().into_iter().flatten();
        let running = running.filter_map(|one| one["Id"].as_str().map(str::to_owned));
        Ok(running.collect())
    }

    fn get(&self, path: &str) -> Result<Option<Value>, Failure> {
        self.engine.get(path).map_err(|error| self.silent(&error))
    }

    fn silent(&self, error: &io::Error) -> Failure {
        let socket = self.engine.socket().display();
        Failure::io(format!("no answer of the engine at {socket}"), error)
    }
}

/// What ends a round, and what moves it.
struct Followed {
    events: crate::engine::Events,
    broker: std::os::fd::OwnedFd,
}

/// Whether an address is one of a process' namespace (proc(5), /proc/PID/net/fib_trie and if_inet6). An
/// engine may have given it to another one meanwhile.
fn has_address(pid: i32, ip: IpAddr) -> bool {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/net/{file}"));
    match ip {
        IpAddr::V4(ip) => {
            let trie = read("fib_trie").unwrap_or_default();
            let mut is_its = false;
            trie.lines().map(str::trim_start).any(|line| {
                if let Some(leaf) = line.strip_prefix("|-- ") {
                    is_its = leaf.parse() == Ok(ip);
                }
                is_its && line == "/32 host LOCAL"
            })
        }
        IpAddr::V6(ip) => {
            let its = format!("{:032x} ", u128::from(ip));
            let all = read("if_inet6").unwrap_or_default();
            all.lines().any(|line| line.starts_with(&its))
        }
    }
}

/// A container's name in the letters that a domain's may have.
fn domain_name(name: &str) -> String {
    let name = name.trim_start_matches('/').to_ascii_lowercase();
    name.replace(['_', '.'], "-").trim_matches('-').to_owned()
}

/// Of the networks that a container is in: first the engine's default one.
fn addresses(settings: &Value) -> Vec<(Ipv4Addr, Option<Ipv6Addr>)> {
    let networks = settings["Networks"].as_object().into_iter().flatten();
    let networks = networks.map(|(_, network)| network);
    let mut found: Vec<(Ipv4Addr, Option<Ipv6Addr>)> = Vec::new();
    for network in [settings].into_iter().chain(networks) {
        let text = |field: &str| network[field].as_str();
        let ip = text("IPAddress").and_then(|ip| ip.parse().ok());
        let ip6 = text("GlobalIPv6Address").and_then(|ip6| ip6.parse().ok());
        let is_new = |ip: &Ipv4Addr| found.iter().all(|(other, _)| other != ip);
        found.extend(ip.filter(is_new).map(|ip| (ip, ip6)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_and_addresses_are_read_as_engines_write_them() {
        assert_eq!(domain_name("/happy_Turing.1"), "happy-turing-1");
        let both = json!({ "IPAddress": "10.88.0.2", "GlobalIPv6Address": "", "Networks": {
            "a": { "IPAddress": "10.89.0.7", "GlobalIPv6Address": "fd00::7" },
            "podman": { "IPAddress": "10.88.0.2" } } });
        let expected = [
            ([10, 88, 0, 2].into(), None),
            ([10, 89, 0, 7].into(), "fd00::7".parse().ok()),
        ];
        assert_eq!(addresses(&both), expected);
        let own = std::process::id() as i32;
        assert!(has_address(own, Ipv4Addr::LOCALHOST.into()));
        assert!(!has_address(own, Ipv4Addr::new(192, 0, 2, 77).into()));
        assert!(!has_address(own, Ipv6Addr::UNSPECIFIED.into()));
        for none in [
            json!({ "IPAddress": "", "Networks": {} }),
            json!({ "Networks": null }),
            Value::Null,
        ] {
            assert!(addresses(&none).is_empty(), "{none}");
        }
    }
}
