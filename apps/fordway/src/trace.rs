//! `fordway filter trace`: which rules decide about a connection, about datagrams between two ends, or
//! about packets of a capture. Done here, on a copy of the rules in force: nobody waits for it, and nothing is
//! counted.

use crate::broker::Broker;
use crate::config;
use crate::exit::{Exit, Failure, Outcome};
use crate::filter::{failure, load, load_file, names, rules, scratch};
use crate::frames::{self, Frame};
use crate::show::print;
use crate::table::folded;
use fordway_abi::control::Protocol;
use fordway_filter::rules::{self as kept, Hook};
use fordway_filter::{
    AskedStep, Config, Crossing, Decision, Filter, Layer, Meta, Packet, Phase, RuleId, TraceStep,
    Traced, Verdict,
};
use fordway_platform::nftables::Source;
use fordwayd::Network;
use fordwayd::filter::crossing::{self, Surroundings};
use fordwayd::filter::listing::{Line, lines};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// The name of the host, which has an address where it has an uplink.
const HOST: &str = "host";

/// Carries it out.
pub fn trace(
    capture: Option<&Path>,
    from: Option<&str>,
    to: Option<&str>,
    protocol: Protocol,
    file: Option<&Path>,
    broker: impl Fn() -> Result<Broker, Failure>,
) -> Outcome {
    let parsed = |end: Option<&str>, port| end.map(|word| End::parse(word, port)).transpose();
    let ends = parsed(from, 40_000)?.zip(parsed(to, 0)?);
    if ends.as_ref().is_some_and(|(_, to)| to.port() == 0) {
        let text = format!(
            "{} has no port; give one, as db:6379",
            to.unwrap_or_default()
        );
        return Err(Failure::new(Exit::Usage, text));
    }
    // The broker is asked before this process moves to a namespace of its own.
    let (in_force, names) = match file {
        Some(_) => (None, names(broker())),
        None => (Some(rules(&broker()?)?.text), names(broker())),
    };
    let of_broker = broker().and_then(|broker| broker.info());
    let network = config::network_of(of_broker.ok().map(|info| info.network).as_deref());
    let ends = match ends {
        Some((from, to)) => {
            let six = [&from, &to].iter().any(|end| end.is_ipv6());
            Some((from.address(&broker, six)?, to.address(&broker, six)?))
        }
        None => None,
    };
    if ends.is_some_and(|(from, to)| from.ip() == to.ip()) {
        return print("=> allowed, over rings: what stays in one domain crosses no rules\n");
    }
    let host = names.iter().find(|(name, _)| name == HOST);
    let with_host = ends
        .zip(host)
        .is_some_and(|((from, to), (_, host))| [from, to].iter().any(|end| end.ip() == *host));
    let scratch = scratch()?;
    match (file, &in_force) {
        (Some(file), _) => load_file(&scratch, file, &[], &names)?,
        (None, text) => load(&scratch, Source::text(text.as_deref().unwrap_or("")))?,
    }
    let listing = scratch.list().map_err(failure)?;
    let dump = scratch.dump().map_err(failure)?;
    let ruleset = kept::read(&dump).map_err(Failure::internal)?;
    // Sums of captured packets are often not there yet: the card would have made them.
    let config = Config {
        verify_checksums: false,
        ..Config::default()
    };
    let mut filter = Filter::new(config, 0);
    filter.replace(ruleset, 0, 0);
    let teller = Teller::new(&filter, &listing);
    let text = match (capture, ends) {
        (Some(capture), _) => packets(&mut filter, &teller, network, capture)?,
        (None, Some(ends)) => connection(&filter, &teller, network, protocol, ends),
        _ => return Err(Failure::new(Exit::Usage, "--from and --to, or a capture")),
    };
    let text = match with_host {
        true => text + "What goes to the host stays on the kernel path in any case.\n",
        false => text,
    };
    print(&folded(&text, "      ", ""))
}

/// An end as it is given: an address or a domain's name.
pub enum End {
    /// An address, with the port.
    Address(SocketAddr),
    /// A domain's name, with the port.
    Domain(String, u16),
}

impl End {
    /// Reads `NAME`, `NAME:PORT` or an address with or without a port.
    pub fn parse(word: &str, port: u16) -> Result<End, Failure> {
        if let Ok(whole) = word.parse() {
            return Ok(End::Address(whole));
        }
        if let Ok(ip) = word.parse() {
            return Ok(End::Address(SocketAddr::new(ip, port)));
        }
        let (name, port) = match word.rsplit_once(':') {
            Some((name, digits)) => {
                let bad = || Failure::new(Exit::Usage, format!("{digits} is no port"));
                (name, digits.parse().map_err(|_| bad())?)
            }
            None => (word, port),
        };
        Ok(match name.parse() {
            Ok(ip) => End::Address(SocketAddr::new(ip, port)),
            Err(_) => End::Domain(name.to_owned(), port),
        })
    }

    /// Its port, or 0.
    pub fn port(&self) -> u16 {
        match self {
            End::Address(address) => address.port(),
            End::Domain(_, port) => *port,
        }
    }

    fn is_ipv6(&self) -> bool {
        matches!(self, End::Address(SocketAddr::V6(_)))
    }

    /// Its address; that of IPv6 if the other end is given by one. The broker is asked only for a
    /// domain's.
    fn address(
        &self,
        broker: &impl Fn() -> Result<Broker, Failure>,
        six: bool,
    ) -> Result<SocketAddr, Failure> {
        let (name, port) = match self {
            End::Address(address) => return Ok(*address),
            End::Domain(name, port) => (name, *port),
        };
        let mut domains = broker()?.domains()?.into_iter();
        let found = domains.find(|domain| domain.name == *name);
        let ip = found.and_then(|domain| match six {
            true => domain.ip6.map(IpAddr::V6),
            false => domain.ip.map(IpAddr::V4),
        });
        let kind = if six { "domain with IPv6" } else { "domain" };
        let missing = || Failure::new(Exit::NotFound, format!("there is no {kind} \"{name}\""));
        Ok((ip.ok_or_else(missing)?, port).into())
    }
}

/// Says rules by their text.
struct Teller {
    /// Each table's family and name, and its chains.
    tables: Vec<(String, Vec<NamedChain>)>,
}

/// Name and rules.
type NamedChain = (String, Vec<String>);

impl Teller {
    fn new(filter: &Filter, listing: &str) -> Teller {
        let mut rules: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        for (line, what) in lines(listing) {
            if let Line::Rule { chain, .. } = what {
                let of_chain = rules.entry((chain.table, chain.name)).or_default();
                of_chain.push(line.trim().to_owned());
            }
        }
        let tables = filter.rules().tables.iter().map(|table| {
            let name = format!("{} {}", table.family, table.name);
            let chains = table.chains.iter().map(|chain| {
                let of_chain = rules.get(&(name.as_str(), chain.name.as_str()));
                (chain.name.clone(), of_chain.cloned().unwrap_or_default())
            });
            let chains = chains.collect();
            (name, chains)
        });
        Teller {
            tables: tables.collect(),
        }
    }

    /// `inet fw forward: tcp dport 6379 accept`, or `inet fw forward: policy`.
    fn rule(&self, id: RuleId) -> String {
        let table = self.tables.get(usize::from(id.table));
        let chain = table.and_then(|(_, chains)| chains.get(usize::from(id.chain)));
        let (Some((table, _)), Some((chain, rules))) = (table, chain) else {
            return "a rule that is gone".into();
        };
        let rule = match id.rule {
            Some(at) => rules
                .get(at as usize)
                .map_or("a rule that is gone", String::as_str),
            None => "policy",
        };
        format!("{table} {chain}: {rule}")
    }

    /// The rules that matched, by the packets that met them.
    fn ways(&self, out: &mut String, steps: Vec<AskedStep>) {
        let mut last = None;
        for asked in steps {
            let way = (asked.opens, asked.reply);
            if last.replace(way) != Some(way) {
                let way = match way {
                    (true, false) => "first packet",
                    (true, true) => "the answer to the first packet",
                    (false, false) => "packets of the connecting end",
                    (false, true) => "packets to the connecting end",
                };
                let _ = writeln!(out, " {way}");
            }
            self.step(out, asked.hook, &asked.step);
        }
    }

    fn step(&self, out: &mut String, hook: Hook, step: &TraceStep) {
        let (hook, what) = (hook.name(), step.what.name());
        let rule = self.rule(step.rule);
        let _ = writeln!(out, "  {hook:<11} {what:<17} {rule}");
    }
}

fn connection(
    filter: &Filter,
    teller: &Teller,
    network: Network,
    protocol: Protocol,
    ends: (SocketAddr, SocketAddr),
) -> String {
    let what = match protocol {
        Protocol::Tcp => "connection",
        Protocol::Udp => "datagrams",
        Protocol::Unix => "bytes",
    };
    let mut out = format!("{what} from {} to {}\n", ends.0, ends.1);
    let ask = |phase| {
        crossing::with_question(network, protocol, ends, phase, |question| {
            filter.ask_traced(question, 0, &mut Surroundings)
        })
    };
    let (whole, steps) = ask(Phase::New);
    teller.ways(&mut out, steps);
    let by_kernel = protocol == Protocol::Udp && crossing::translate(filter.rules());
    let verdict = match whole.decision {
        Decision::Allowed if by_kernel => {
            "allowed, kernel path, reason filter (a chain of type nat)".to_owned()
        }
        Decision::Allowed => "allowed, over rings".to_owned(),
        Decision::Refused { rule, reject } => {
            let how = match reject {
                Some(_) => "rejected",
                None => "dropped",
            };
            format!("{how} by {}", teller.rule(rule))
        }
        Decision::EachPacket { rule, why } => {
            // Of UDP the kernel's word is not asked for: an entry is there with the first datagram.
            let is_tcp = protocol == Protocol::Tcp;
            let path = match is_tcp && ask(Phase::Established).0.is_allowed() {
                // Only its opening needs each packet.
                true => "rings once the kernel has let its handshake pass",
                false => "kernel path, reason filter",
            };
            format!("{path} ({}): {}", why.name(), teller.rule(rule))
        }
    };
    let _ = writeln!(out, " => {verdict}");
    out
}

fn packets(
    filter: &mut Filter,
    teller: &Teller,
    network: Network,
    capture: &Path,
) -> Result<String, Failure> {
    let frames = frames::read(capture).map_err(|error| Failure::io(capture.display(), &error))?;
    filter.set_trace(true);
    let mut out = String::new();
    for (number, frame) in (1..).zip(frames) {
        let (from, to) = frame.addresses();
        let name = |ip: Option<IpAddr>| ip.map_or_else(|| "?".into(), |ip| ip.to_string());
        let _ = writeln!(out, "packet {number}: {} to {}", name(from), name(to));
        let way = match (from, to) {
            (Some(from), Some(to)) => crossing::crossings(network, from, to),
            _ => crossing::crossings(network, UNKNOWN, UNKNOWN),
        };
        let verdict = cross(filter, teller, &mut out, frame, &way);
        let _ = writeln!(out, " => {verdict}");
    }
    Ok(out)
}

const UNKNOWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

/// Takes one packet through all hooks, or as far as it comes.
fn cross(
    filter: &mut Filter,
    teller: &Teller,
    out: &mut String,
    mut frame: Frame,
    way: &[Crossing],
) -> String {
    let at_ns = frame.at_ns;
    let Some(mut packet) = Packet::ethernet(&mut frame.bytes, Meta::default()) else {
        return "too short for an Ethernet header".into();
    };
    for crossing in way {
        let layer = match crossing.layer {
            Some(layer) => layer,
            None => match packet.ip_layer() {
                Some(layer @ (Layer::Ip | Layer::Ip6)) => layer,
                _ => continue,
            },
        };
        (packet.meta.iif, packet.meta.oif) = (crossing.iif, crossing.oif);
        let outcome = filter.hook(layer, crossing.hook, &mut packet, at_ns, &mut Surroundings);
        for step in &outcome.trace {
            teller.step(out, crossing.hook, step);
        }
        let decided = outcome.decided_by.map_or_else(
            || "the filter itself (no place for its flow)".to_owned(),
            |rule| teller.rule(rule),
        );
        let asks = |step: &TraceStep| step.what == Traced::EachPacket;
        match outcome.verdict {
            _ if outcome.trace.last().is_some_and(asks) => {
                return format!("the kernel alone decides: {decided}");
            }
            Verdict::Accept => {}
            Verdict::Drop => return format!("dropped by {decided}"),
            Verdict::Reject(_) => return format!("rejected by {decided}"),
        }
    }
    "passes".into()
}
