//! What is shown of domains: a table for people, or a JSON document in the words of the
//! administrator's protocol.

use crate::broker::{Broker, unexpected};
use crate::cli;
use crate::exit::{Exit, Failure, Outcome};
use crate::table::{Table, bytes};
use fordway_platform::fabric::{Fabric, UPLINK_PORT, port_of};
use fordwayd::admin::{Domain, Reply, Request, SCHEMA};
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};

/// `fordway domain ...`.
pub fn domain(broker: &Broker, command: &cli::Domain) -> Outcome {
    match command {
        cli::Domain::Add {
            name,
            ip,
            publish,
            json,
        } => {
            let request = Request::DomainAdd {
                name: name.clone(),
                ip: *ip,
                publish: publish.iter().map(ToString::to_string).collect(),
            };
            one(&ask_domain(broker, &request)?, None, json.json)
        }
        cli::Domain::Attach {
            name,
            ip,
            ip6,
            pid,
            json,
        } => {
            let request = Request::DomainAttach {
                name: name.clone(),
                ip: *ip,
                ip6: *ip6,
                pid: *pid,
            };
            one(&ask_domain(broker, &request)?, None, json.json)
        }
        cli::Domain::List(json) => list(&broker.domains()?, json.json),
        cli::Domain::Show { name, json } => {
            let found = broker
                .domains()?
                .into_iter()
                .find(|domain| domain.name == *name);
            let domain = found.ok_or_else(|| {
                let text = format!("there is no domain \"{name}\"; see: fordway domain list");
                Failure::new(Exit::NotFound, text)
            })?;
            one(&domain, dropped_frames(broker, &domain), json.json)
        }
        cli::Domain::Rm { name, force, json } => {
            broker.ask(&Request::DomainRemove {
                name: name.clone(),
                force: *force,
            })?;
            if json.json {
                return document(&json!({ "schema": SCHEMA, "removed": name }));
            }
            Ok(Exit::Done)
        }
    }
}

/// `fordway downgrade`.
pub fn downgrade(broker: &Broker, downgrade: &cli::Downgrade) -> Outcome {
    let channel = downgrade.channel;
    broker.ask(&Request::Downgrade { channel })?;
    Ok(Exit::Done)
}

/// `fordway log`.
pub fn log(broker: &Broker, level: Option<&str>) -> Outcome {
    let request = Request::Log {
        level: level.map(str::to_owned),
    };
    match (broker.ask(&request)?, level) {
        (Reply::Log { level }, None) => print(&(level + "\n")),
        (Reply::Log { .. }, Some(_)) => Ok(Exit::Done),
        (other, _) => Err(unexpected(&other)),
    }
}

fn ask_domain(broker: &Broker, request: &Request) -> Result<Domain, Failure> {
    match broker.ask(request)? {
        Reply::Domain(domain) => Ok(domain),
        other => Err(unexpected(&other)),
    }
}

fn list(domains: &[Domain], json: bool) -> Outcome {
    if json {
        return document(&json!({ "schema": SCHEMA, "domains": domains }));
    }
    let headings = ["NAME", "ID", "ADDRESS", "IPV6", "CID", "PROCESSES"];
    let mut table = Table::new(&headings, &[1, 4, 5]);
    for domain in domains {
        let counts = [domain.id, domain.processes].map(|count| count.to_string());
        let [id, processes] = counts;
        let (four, six) = (address(domain), address6(domain));
        let name = domain.name.clone();
        table.row([name, id, four, six, cid(domain), processes]);
    }
    print(&table.render_cut(&[0]))
}

fn one(domain: &Domain, dropped_frames: Option<u64>, json: bool) -> Outcome {
    if json {
        let mut value = json!({ "schema": SCHEMA, "domain": domain });
        if let Some(count) = dropped_frames {
            value["dropped_frames"] = count.into();
        }
        return document(&value);
    }
    let mut table = Table::new(&["name", &domain.name], &[]);
    let mut line = |name: &str, value: String| table.row([name.to_owned(), value]);
    line("id", domain.id.to_string());
    line("address", address(domain));
    line("IPv6 address", address6(domain));
    line("CID of AF_VSOCK", cid(domain));
    line("netns cookie", domain.netns_cookie.to_string());
    line("netns file", domain.netns_path.clone().unwrap_or_else(dash));
    line("hosts file", domain.hosts_path.clone().unwrap_or_else(dash));
    if !domain.published.is_empty() {
        line("published", domain.published.join(", "));
    }
    if let Some(stack) = &domain.stack {
        let pids = stack.pids.iter().map(i32::to_string);
        let pids = pids.collect::<Vec<_>>().join(", ");
        line("own stack", stack.options.protocols.join(", "));
        line(
            "its processes",
            format!("{pids} (started again: {})", stack.restarts),
        );
    }
    line("processes", domain.processes.to_string());
    let [taken, most] = [domain.ring_memory_bytes, domain.ring_memory_bytes_max].map(bytes);
    line("ring memory", format!("{taken} of at most {most}"));
    if let Some(count) = dropped_frames {
        line("dropped frames", count.to_string());
    }
    print(&table.render_cut(&[1]))
}

/// Frames that the domain (or by the uplink the host) sent under an address that is not its own;
/// read from its switch port, which only root can.
fn dropped_frames(broker: &Broker, domain: &Domain) -> Option<u64> {
    let port = match &domain.netns_path {
        Some(_) => port_of(domain.ip?),
        None if domain.id == 0 && domain.ip.is_some() => UPLINK_PORT.to_owned(),
        None => return None,
    };
    let fabric = Fabric::open(broker.runtime_dir()).ok()??;
    fabric.spoofed_frames(&port).ok()
}

fn address(domain: &Domain) -> String {
    domain
        .ip
        .map_or_else(dash, |ip| format!("{ip}/{}", domain.prefix))
}

fn address6(domain: &Domain) -> String {
    domain.ip6.map_or_else(dash, |ip| ip.to_string())
}

fn cid(domain: &Domain) -> String {
    domain.cid.map_or_else(dash, |cid| cid.to_string())
}

fn dash() -> String {
    "-".to_owned()
}

/// Prints a JSON document.
pub fn document(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(value).map_err(Failure::internal)?;
    print(&(text + "\n"))
}

/// Prints. A reader that has gone away (`| head`) ends the command, and is no error.
pub fn print(text: &str) -> Outcome {
    let mut out = io::stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Ok(()) => Ok(Exit::Done),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent(Exit::Done)),
        Err(error) => Err(Failure::io("writing to the standard output", &error)),
    }
}

/// Says one line on stderr; who has closed it wants to hear nothing.
pub fn say(text: &str) {
    let _ = io::stderr().write_all(format!("fordway: {text}\n").as_bytes());
}

/// Says what is no error.
pub fn note(text: &str) {
    say(&format!("note: {text}"));
}
