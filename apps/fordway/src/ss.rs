//! `fordway ss`: the connections, for people in 80 columns, or as the JSON document.
//!
//! A row is one end, as in ss(8): a connection between two programs with the library has two, under
//! one number. Ends that no program with the library holds are counted in the last line, and shown
//! with `--all`. Where an address is a domain's own, its name stands for it; a long name is cut in
//! its middle on a terminal, never in a pipe.

use crate::broker::Broker;
use crate::cli::{PathShown, Sort, Ss};
use crate::exit::{Exit, Failure, Outcome};
use crate::rates::{Counted, Moved};
use crate::show::{document, print};
use crate::table::{Table, bytes};
use fordway_abi::control::Protocol;
use fordway_abi::vsock;
use fordwayd::admin::{Connection, Domain, SCHEMA};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// How often `-w` looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Cursor to the first cell, and all after it away (ECMA-48: CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[J";
/// Columns of the table that may be cut: the two addresses.
const NAMES: [usize; 2] = [1, 2];

/// `fordway ss`.
pub fn ss(broker: &Broker, ss: &Ss) -> Outcome {
    if ss.watch {
        return watch(broker, ss);
    }
    let listing = Listing::ask(broker, ss)?;
    if ss.json.json {
        return document(&json!({ "schema": SCHEMA, "connections": listing.shown }));
    }
    let moved = listing.shown.iter().map(moved);
    print(&listing.text(["RINGS", "KERNEL"], moved.collect()))
}

/// What an end has moved through rings, and through the kernel.
fn moved(one: &Connection) -> [u64; 2] {
    [Moved::by_rings(one), Moved::by_kernel(one)].map(Moved::total)
}

/// What each end moves in a second, until interrupted.
fn watch(broker: &Broker, ss: &Ss) -> Outcome {
    let terminal = std::io::stdout().is_terminal();
    let mut before: Option<Counted> = None;
    loop {
        let mut listing = Listing::ask(broker, ss)?;
        let now = Instant::now();
        if let Some(before) = before.replace(Counted::new(now, &listing.shown)) {
            let rates = |one: &Connection| {
                let rates = before.rates(one, now);
                [rates.rings, rates.kernel].map(|moved| moved.unwrap_or_default().total())
            };
            if ss.sort == Sort::Bytes {
                let ends = &mut listing.shown;
                ends.sort_by_cached_key(|one| Reverse(sum(rates(one))));
            }
            let moved = listing.shown.iter().map(rates).collect();
            let text = listing.text(["RINGS/s", "KERNEL/s"], moved);
            print(&match terminal {
                true => format!("{CLEAR}{text}"),
                false => format!("{text}\n"),
            })?;
        }
        std::thread::sleep(INTERVAL);
    }
}

fn sum([rings, kernel]: [u64; 2]) -> u64 {
    rings.saturating_add(kernel)
}

/// What is asked for, of what the broker lists.
struct Listing {
    shown: Vec<Connection>,
    /// Ends that are left out because no program with the library holds them.
    strangers: usize,
    domains: Vec<Domain>,
}

impl Listing {
    fn ask(broker: &Broker, ss: &Ss) -> Result<Listing, Failure> {
        let connections = broker.connections()?;
        let domains = broker.domains()?;
        are_there(ss.domain.as_slice(), &domains, &connections)?;
        let wanted = |one: &Connection| {
            let path = ss.path.is_none_or(|path| one.path == path.word());
            let domain = ss.domain.as_ref().is_none_or(|name| one.domain == *name);
            let reason = ss.reason.is_none() || one.reason == ss.reason;
            path && domain && reason
        };
        let (mut shown, others): (Vec<_>, Vec<_>) = connections
            .into_iter()
            .filter(wanted)
            .partition(|one| one.joined || ss.all);
        sort(&mut shown, ss.sort);
        Ok(Listing {
            shown,
            strangers: others.len(),
            domains,
        })
    }

    /// The table, with what `moved` says of each end, and one line that counts.
    fn text(&self, units: [&str; 2], moved: Vec<[u64; 2]>) -> String {
        let headings = ["CONN", "LOCAL", "REMOTE", "PATH", "REASON"];
        let headings: Vec<&str> = headings.into_iter().chain(units).collect();
        let mut table = Table::new(&headings, &[0, 5, 6]);
        let dash = || "-".to_owned();
        for (one, [rings, kernel]) in self.shown.iter().zip(moved) {
            table.row([
                one.channel.map_or_else(dash, |number| number.to_string()),
                marked(one, named(&self.domains, &one.local, Some(&one.domain))),
                named(&self.domains, &one.remote, one.peer_domain.as_ref()),
                one.path.clone(),
                one.reason.clone().unwrap_or_else(dash),
                bytes(rings),
                bytes(kernel),
            ]);
        }
        let table = match self.shown.is_empty() {
            true => String::new(),
            false => table.render_cut(&NAMES),
        };
        table + &self.summary()
    }

    fn summary(&self) -> String {
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for word in self.shown.iter().filter_map(|one| one.reason.as_deref()) {
            *reasons.entry(word).or_default() += 1;
        }
        let count = |path: &str| self.shown.iter().filter(|one| one.path == path).count();
        let [fast, kernel, stack] = ["fast", "kernel", "stack"].map(count);
        let mut text = match self.shown.len() {
            1 => format!("1 end: {fast} fast, {kernel} kernel"),
            ends => format!("{ends} ends: {fast} fast, {kernel} kernel"),
        };
        if stack != 0 {
            text += &format!(", {stack} stack");
        }
        if !reasons.is_empty() {
            let words = reasons
                .iter()
                .map(|(word, count)| format!("{count} {word}"));
            text += &format!(" ({})", words.collect::<Vec<_>>().join(", "));
        }
        if self.strangers != 0 {
            text += &format!("; {} outside Fordway (--all)", self.strangers);
        }
        crate::table::wrap(&text, "") + "\n"
    }
}

/// Refuses a name that no domain has.
pub fn are_there(
    names: &[String],
    domains: &[Domain],
    connections: &[Connection],
) -> Result<(), Failure> {
    let is_there = |name: &String| {
        domains.iter().any(|domain| domain.name == *name)
            || connections.iter().any(|one| one.domain == *name)
    };
    match names.iter().find(|name| !is_there(name)) {
        None => Ok(()),
        Some(name) => {
            let text = format!("there is no domain \"{name}\"; see: fordway domain list");
            Err(Failure::new(Exit::NotFound, text))
        }
    }
}

/// An end's address: by the domain's name where the address is its own, behind the name where
/// it is not (a loopback address, say), and alone outside of domains.
pub fn named(domains: &[Domain], address: &str, domain: Option<&String>) -> String {
    let Some(name) = domain else {
        return address.to_owned();
    };
    let domain = domains.iter().find(|domain| domain.name == *name);
    let parsed: Option<SocketAddr> = address.parse().ok();
    if let Some((ip, port)) = parsed.map(|parsed| (parsed.ip(), parsed.port()))
        && let IpAddr::V6(ip) = ip
        && let Some(cid) = vsock::cid_of(ip)
    {
        return match domain.and_then(|domain| domain.cid) == Some(cid) {
            true => format!("{name}:vsock:{port}"),
            false => format!("{name}/vsock:{cid}:{port}"),
        };
    }
    let own = |ip: IpAddr| {
        domain.is_some_and(|domain| match ip {
            IpAddr::V4(ip) => domain.ip == Some(ip),
            IpAddr::V6(ip) => domain.ip6 == Some(ip),
        })
    };
    match parsed {
        Some(parsed) if own(parsed.ip()) => format!("{name}:{}", parsed.port()),
        _ if domain.is_some_and(|domain| domain.id == 0) => address.to_owned(),
        _ => format!("{name}/{address}"),
    }
}

/// An end's own address, with the protocol if it is not the usual one.
pub fn marked(one: &Connection, address: String) -> String {
    match one.protocol == Protocol::Tcp.word() {
        true => address,
        false => format!("{}:{address}", one.protocol),
    }
}

/// Sorts a listing.
pub fn sort(connections: &mut [Connection], by: Sort) {
    let address = |text: &str| text.parse::<SocketAddr>().ok();
    let place = |one: &Connection| {
        (
            one.domain.clone(),
            address(&one.local),
            address(&one.remote),
        )
    };
    connections.sort_by_cached_key(place);
    match by {
        Sort::Domain => {}
        Sort::Number => connections.sort_by_key(|one| one.channel.unwrap_or(u64::MAX)),
        Sort::Path => connections.sort_by_cached_key(|one| (one.path.clone(), one.reason.clone())),
        Sort::Bytes => connections.sort_by_key(|one| Reverse(sum(moved(one)))),
    }
}

impl PathShown {
    fn word(self) -> &'static str {
        match self {
            PathShown::Fast => "fast",
            PathShown::Kernel => "kernel",
            PathShown::Stack => "stack",
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn end(domain: &str, port: u16, path: &str, reason: Option<&str>) -> Connection {
        Connection {
            protocol: "tcp".into(),
            domain: domain.into(),
            peer_domain: Some("db".into()),
            local: format!("10.77.0.4:{port}"),
            remote: "10.77.0.3:6379".into(),
            state: "ESTAB".into(),
            path: path.into(),
            reason: reason.map(Into::into),
            pid: Some(1),
            joined: true,
            cookie: port.to_string(),
            channel: Some(u64::from(port)),
            ring_bytes_tx: u64::from(port),
            ring_bytes_rx: 0,
            lost_tx: 0,
            kernel_bytes_tx: 0,
            kernel_bytes_rx: 0,
        }
    }

    pub fn domain(name: &str, ip: [u8; 4]) -> Domain {
        Domain {
            name: name.into(),
            id: 1,
            ip: Some(ip.into()),
            prefix: 24,
            ip6: Some(format!("fd00::{}", ip[3]).parse().expect("an address")),
            cid: Some(u32::from(ip[3]) + 1),
            netns_cookie: 1,
            netns_path: None,
            hosts_path: None,
            stack: None,
            published: Vec::new(),
            processes: 1,
            ring_memory_bytes: 0,
            ring_memory_bytes_max: 0,
        }
    }

    #[test]
    fn names_stand_for_addresses_and_the_last_line_counts() {
        let mut shown = vec![
            end("web", 40_000, "kernel", Some("asked")),
            end("web", 39_000, "fast", None),
        ];
        sort(&mut shown, Sort::Domain);
        let listing = Listing {
            shown,
            strangers: 3,
            domains: vec![domain("db", [10, 77, 0, 3]), domain("web", [10, 77, 0, 4])],
        };
        let own = named(&listing.domains, "127.0.0.1:80", Some(&"db".into()));
        assert_eq!(
            (
                own.as_str(),
                named(&listing.domains, "1.2.3.4:5", None).as_str()
            ),
            ("db/127.0.0.1:80", "1.2.3.4:5")
        );
        let six = |text: &str| named(&listing.domains, text, Some(&"db".into()));
        assert_eq!(six("[fd00::3]:80"), "db:80");
        assert_eq!(six("[fd00::4]:80"), "db/[fd00::4]:80");
        let moved = listing.shown.iter().map(moved).collect();
        let text = listing.text(["RINGS", "KERNEL"], moved);
        let expected = "\x20CONN  LOCAL      REMOTE   PATH    REASON  RINGS  KERNEL
39000  web:39000  db:6379  fast    -       39.0K       0
40000  web:40000  db:6379  kernel  asked   40.0K       0
2 ends: 1 fast, 1 kernel (1 asked); 3 outside Fordway (--all)
";
        assert_eq!(text, expected);
        let udp = Connection {
            protocol: "udp".into(),
            ..end("web", 53, "fast", None)
        };
        assert_eq!(marked(&udp, "web:53".into()), "udp:web:53");
    }

    #[test]
    fn the_sort_is_what_was_asked_for() {
        let mut shown = vec![
            end("b", 1, "kernel", Some("nat")),
            end("a", 3, "kernel", Some("asked")),
            end("a", 2, "fast", None),
        ];
        let mut ports = |by| {
            sort(&mut shown, by);
            shown
                .iter()
                .map(|one| one.channel.unwrap_or(0))
                .collect::<Vec<_>>()
        };
        assert_eq!(ports(Sort::Domain), [2, 3, 1]);
        assert_eq!(ports(Sort::Number), [1, 2, 3]);
        assert_eq!(ports(Sort::Path), [2, 3, 1]);
        assert_eq!(ports(Sort::Bytes), [3, 2, 1]);
    }
}
