//! `fordway why`: why connections are not on the fast path, in words, and what would change that.
//!
//! The broker's listing says which ends there are and why each is where it is; /proc says of a process whether it has
//! the library, and its program's file whether it could have it. Nothing is asked of the programs, and nothing changes.
//!
//! A connection whose ends are both listed is told once. Ends belong together that have one channel, or each other's
//! addresses and domains; behind a translation without a channel each is told by itself.

use crate::broker::Broker;
use crate::cli::Why;
use crate::exit::{Exit, Failure, Outcome};
use crate::places;
use crate::rates::{Moved, key};
use crate::show::{document, print};
use crate::ss::{marked, named};
use crate::table::{bytes, folded};
use crate::trace::End;
use fordway_abi::control::Protocol;
use fordway_abi::reason::Reason;
use fordway_platform::elf;
use fordwayd::admin::{Connection, Domain, SCHEMA};
use serde::Serialize;
use serde_json::json;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// `fordway why`.
pub fn why(broker: &Broker, why: &Why) -> Outcome {
    let connections = broker.connections()?;
    let domains = broker.domains()?;
    // An end as fordway ss shows it, too, whatever else the word could be.
    let asked = Asked::parse(&why.what);
    let told = pairs(connections, |one| {
        is_shown_as(one, &why.what, &domains) || asked.as_ref().is_ok_and(|asked| asked.means(one))
    });
    let mut process = None;
    if told.is_empty() {
        let asked = asked?;
        // A number that connections have is not asked about as a process's.
        if let Asked::Number(number) = asked {
            process = Process::look(number);
        }
        if process.is_none() {
            return Err(Failure::new(Exit::NotFound, asked.missing(&why.what)));
        }
    }
    if why.json.json {
        return document(&json!({ "schema": SCHEMA, "connections": told, "process": process }));
    }
    let text = match process {
        Some(process) => process.text(),
        None => told.iter().map(|one| one.text(&domains)).collect(),
    };
    print(&folded(&text, "  ", ""))
}

/// What is asked about.
enum Asked {
    /// A connection's number, or a process's.
    Number(u64),
    /// One end, whichever of the two.
    End(End),
}

impl Asked {
    fn parse(word: &str) -> Result<Asked, Failure> {
        if let Ok(number) = word.parse() {
            return Ok(Asked::Number(number));
        }
        let end = End::parse(word, 0)?;
        if end.port() == 0 {
            let text = format!("{word} has no port; give one, as db:6379");
            return Err(Failure::new(Exit::Usage, text));
        }
        Ok(Asked::End(end))
    }

    /// Whether one of the ends is meant.
    fn means(&self, one: &Connection) -> bool {
        let local = Some(&one.domain);
        match self {
            Asked::Number(number) => {
                let pid = one.pid.and_then(|pid| u64::try_from(pid).ok());
                one.channel == Some(*number) || pid == Some(*number)
            }
            Asked::End(end) => {
                is_at(end, &one.local, local) || is_at(end, &one.remote, one.peer_domain.as_ref())
            }
        }
    }

    fn missing(&self, word: &str) -> String {
        match self {
            Asked::Number(_) => {
                format!("there is neither a connection nor a process {word}; see: fordway ss")
            }
            Asked::End(_) => format!("there is no connection of {word}; see: fordway ss --all"),
        }
    }
}

fn is_shown_as(one: &Connection, word: &str, domains: &[Domain]) -> bool {
    let near = marked(one, named(domains, &one.local, Some(&one.domain)));
    near == word || named(domains, &one.remote, one.peer_domain.as_ref()) == word
}

/// Whether an end that is listed so is the one that was given.
fn is_at(end: &End, address: &str, domain: Option<&String>) -> bool {
    let Ok(address) = address.parse::<SocketAddr>() else {
        return false;
    };
    match end {
        End::Address(given) => *given == address,
        End::Domain(name, port) => domain == Some(name) && *port == address.port(),
    }
}

/// What is told of one connection.
#[derive(Debug, Serialize)]
struct Told {
    /// One or both.
    ends: Vec<Connection>,
    /// Why it is not on the fast path; none if it is.
    reasons: Vec<Because>,
}

/// One reason.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Because {
    word: String,
    text: &'static str,
    advice: &'static str,
}

/// The connections with an end that is wanted: first those that are not on the fast path, else in the order of the listing.
fn pairs(connections: Vec<Connection>, wanted: impl Fn(&Connection) -> bool) -> Vec<Told> {
    let mut left: Vec<Option<Connection>> = connections.into_iter().map(Some).collect();
    let mut told = Vec::new();
    for at in 0..left.len() {
        let Some(one) = left[at].take_if(|one| wanted(one)) else {
            continue;
        };
        let far = left
            .iter_mut()
            .find_map(|other| other.take_if(|other| belongs_to(&one, other)));
        told.push(Told::of([Some(one), far].into_iter().flatten().collect()));
    }
    told.sort_by_key(|one| one.reasons.is_empty());
    told
}

/// The same of one end of a listing.
pub fn text_of<'l>(
    one: &Connection,
    mut listed: impl Iterator<Item = &'l Connection>,
    domains: &[Domain],
) -> String {
    let far = listed.find(|other| key(one) != key(other) && belongs_to(one, other));
    let ends = [Some(one), far].into_iter().flatten().cloned();
    Told::of(ends.collect()).text(domains)
}

fn belongs_to(one: &Connection, other: &Connection) -> bool {
    let has_channel = one.channel.is_some() && one.channel == other.channel;
    let faces = |one: &Connection, other: &Connection| {
        one.remote == other.local && one.peer_domain.as_ref() == Some(&other.domain)
    };
    one.protocol == other.protocol && (has_channel || faces(one, other) && faces(other, one))
}

impl Told {
    fn of(ends: Vec<Connection>) -> Told {
        let mut reasons: Vec<Because> = Vec::new();
        let words = ends.iter().filter_map(|end| end.reason.as_deref());
        for word in words {
            let known = Reason::from_word(word).map(|reason| (reason.text(), reason.advice()));
            let (text, advice) = known.unwrap_or(UNKNOWN);
            let one = Because {
                word: word.to_owned(),
                text,
                advice,
            };
            if !reasons.contains(&one) {
                reasons.push(one);
            }
        }
        Told { ends, reasons }
    }

    fn text(&self, domains: &[Domain]) -> String {
        let Some(first) = self.ends.first() else {
            return String::new();
        };
        let near = named(domains, &first.local, Some(&first.domain));
        let far = named(domains, &first.remote, first.peer_domain.as_ref());
        let slow = self.ends.iter().find(|end| end.path != "fast");
        let path = &slow.unwrap_or(first).path;
        let number = first.channel;
        let number = number.map_or_else(String::new, |number| format!(", connection {number}"));
        let near_marked = marked(first, near.clone());
        let mut text = format!("{near_marked} -- {far}: {path}{number}\n");
        let names = [(&near, Some(first)), (&far, self.ends.get(1))];
        for (name, end) in names {
            let holder = end.map_or_else(|| NOT_LISTED.to_owned(), holder);
            let _ = writeln!(text, "  {name}: {holder}");
        }
        let moved = [Moved::by_rings(first), Moved::by_kernel(first)].map(Moved::total);
        let [rings, kernel] = moved.map(bytes);
        // Of UDP the kernel counts none.
        let by_kernel = match first.protocol == Protocol::Udp.word() {
            true => String::new(),
            false => format!(", {kernel} by the kernel"),
        };
        let _ = writeln!(text, "  bytes: {rings} by rings{by_kernel}");
        if path == "stack" {
            text += "  its bytes go by the network stack of its domain's own\n";
        }
        for Because {
            word,
            text: what,
            advice,
        } in &self.reasons
        {
            let _ = writeln!(text, "  why: {what} ({word})\n  what changes it: {advice}");
        }
        text
    }
}

/// Of a broker of another release.
const UNKNOWN: (&str, &str) = (
    "a reason that this release does not know",
    "look into the manual of the broker's release",
);
/// Of a far end without a row: behind a translation, or in a namespace that the broker does not see.
const NOT_LISTED: &str = "not listed";
/// Who holds an end that is not listed as a program's with the library.
const NO_PROGRAM: &str = "no program with the library";

fn holder(end: &Connection) -> String {
    match (end.joined, end.pid) {
        (true, Some(pid)) => {
            let name = name_of(pid).map_or_else(String::new, |name| format!(" ({name})"));
            format!("process {pid}{name}")
        }
        (true, None) => "a program with the library".to_owned(),
        (false, _) => NO_PROGRAM.to_owned(),
    }
}

/// A process's own word, as a terminal may have it.
pub fn name_of(pid: i32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(shown(String::from_utf8_lossy(&name).trim_end()))
}

/// Words of a program's own, for a terminal: what would move its cursor is replaced.
fn shown(word: &str) -> String {
    word.replace(char::is_control, "?")
}

/// What /proc says of a process.
#[derive(Debug, Serialize)]
struct Process {
    pid: i32,
    name: String,
    /// Null where this user is not shown what it has mapped.
    has_library: Option<bool>,
    /// Why it could not have the library, if so.
    obstacle: Option<String>,
}

impl Process {
    fn look(number: u64) -> Option<Process> {
        let pid = i32::try_from(number).ok().filter(|pid| *pid > 0)?;
        let name = name_of(pid)?;
        let maps = fs::read(format!("/proc/{pid}/maps")).ok();
        let maps = maps.map(|maps| String::from_utf8_lossy(&maps).into_owned());
        let is_empty = maps.as_ref().is_some_and(String::is_empty);
        let has_library = maps.map(|maps| maps.contains(places::SHIM));
        let file = format!("/proc/{pid}/exe");
        let image = elf::inspect(Path::new(&file)).ok();
        let obstacle = image.and_then(|image| image.obstacle);
        let program = fs::read_link(&file).ok();
        let obstacle = obstacle.zip(program).map(|(obstacle, program)| {
            let program = shown(&program.to_string_lossy());
            format!("{program} {}", obstacle.text())
        });
        let obstacle = match is_empty {
            true => Some("it has no memory: a thread of the kernel's, or ended".to_owned()),
            false => obstacle,
        };
        Some(Process {
            pid,
            name,
            has_library,
            obstacle,
        })
    }

    /// Of one that no connection was found of.
    fn text(&self) -> String {
        let Process { pid, name, .. } = self;
        let said = match (self.has_library, &self.obstacle) {
            (Some(true), _) => "has the library, and no connection that is listed".to_owned(),
            (Some(false), Some(obstacle)) => {
                format!("cannot have the library, for {obstacle}: it stays on the kernel path")
            }
            (Some(false), None) => {
                "runs without the library; what changes it: start it by fordway run".to_owned()
            }
            (None, _) => "may not be looked at by this user; ask as root".to_owned(),
        };
        format!("process {pid} ({name}) {said}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ss::tests::{domain, end};

    fn listing() -> Vec<Connection> {
        let near = end("web", 40_000, "kernel", Some("asked"));
        let far = Connection {
            domain: "db".into(),
            peer_domain: Some("web".into()),
            local: near.remote.clone(),
            remote: near.local.clone(),
            pid: Some(77),
            ..near.clone()
        };
        let alone = Connection {
            channel: None,
            pid: Some(99),
            ..end("web", 39_000, "kernel", Some("no-peer"))
        };
        vec![alone, near, far]
    }

    #[test]
    fn both_ends_of_a_connection_are_told_once() {
        for word in ["40000", "77", "web:40000", "10.77.0.4:40000"] {
            let asked = Asked::parse(word).expect("what is asked");
            let told = pairs(listing(), |one| asked.means(one));
            assert_eq!(told.len(), 1, "{word}");
            assert_eq!((told[0].ends.len(), told[0].reasons.len()), (2, 1));
        }
        let asked = Asked::parse("db:6379").expect("an end");
        let told = pairs(listing(), |one| asked.means(one));
        let ends: Vec<usize> = told.iter().map(|one| one.ends.len()).collect();
        assert_eq!(ends, [1, 2]);
        assert!(Asked::parse("db").is_err());
    }

    #[test]
    fn what_is_not_fast_comes_first() {
        let fast = Connection {
            channel: Some(5),
            ..end("web", 38_000, "fast", None)
        };
        let listed = [vec![fast], listing()].concat();
        let told = pairs(listed, |_| true);
        let fast: Vec<bool> = told.iter().map(|one| one.reasons.is_empty()).collect();
        assert_eq!(fast, [false, false, true]);
    }

    #[test]
    fn an_end_is_asked_about_as_it_is_shown() {
        let domains = [domain("db", [10, 77, 0, 3]), domain("web", [10, 77, 0, 4])];
        let udp = Connection {
            protocol: "udp".into(),
            local: "127.0.0.1:53".into(),
            ..end("web", 53, "kernel", Some("of-tomorrow"))
        };
        let word = "udp:web/127.0.0.1:53";
        assert!(is_shown_as(&udp, word, &domains) && !is_shown_as(&udp, "web:53", &domains));
        let text = Told::of(vec![udp]).text(&domains);
        let by_kernel = text.contains("by the kernel");
        assert!(!by_kernel && text.contains("(of-tomorrow)"), "{text}");
        assert_eq!(shown("a\x1b[2J\nb"), "a?[2J?b");
    }

    #[test]
    fn a_reason_comes_with_what_changes_it() {
        let asked = Asked::parse("web:39000").expect("an end");
        let told = pairs(listing(), |one| asked.means(one));
        let domains = [domain("db", [10, 77, 0, 3]), domain("web", [10, 77, 0, 4])];
        let text = told[0].text(&domains);
        let no_peer = Reason::NoPeer;
        let expected = format!(
            "web:39000 -- db:6379: kernel
  web:39000: {}
  db:6379: not listed
  bytes: 39.0K by rings, 0 by the kernel
  why: {} (no-peer)
  what changes it: {}
",
            holder(&told[0].ends[0]),
            no_peer.text(),
            no_peer.advice()
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_process_without_the_library_is_told_of() {
        let own = Process::look(u64::from(std::process::id())).expect("this process");
        assert_eq!((own.has_library, &own.obstacle), (Some(false), &None));
        let text = own.text();
        assert!(text.ends_with("start it by fordway run\n"), "{text}");
        assert!(Process::look(0).is_none());
    }
}
