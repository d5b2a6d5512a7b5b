//! `fordway filter trace`: which rules decide about a connection, or about packets of a
//! capture. Done here, on a copy of the rules in force: nobody waits for it, and nothing is
//! counted.

use crate::broker::Broker;
use crate::exit::{Exit, Failure, Outcome};
use crate::filter::{faulty, read, rules};
use crate::frames::{self, Frame};
use crate::show::print;
use fordway_filter::model::{Hook, Ruleset};
use fordway_filter::{
    AskedStep, Config, Crossing, Decision, Filter, Layer, Meta, Packet, Phase, RuleId, TraceStep,
    Verdict,
};
use fordway_nft::{Env, FileSystem, list, load};
use fordwayd::filter::crossing::{self, Surroundings};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Carries it out.
pub fn trace(
    capture: Option<&Path>,
    from: Option<&str>,
    to: Option<&str>,
    file: Option<&Path>,
    broker: impl Fn() -> Result<Broker, Failure>,
) -> Outcome {
    let env = Env::system();
    let (name, text) = match file {
        Some(file) => (file.display().to_string(), read(file)?),
        None => ("the rules in force".to_owned(), rules(&broker()?)?.text),
    };
    let ruleset = match load(
        &Ruleset::default(),
        &env,
        &FileSystem::default(),
        &name,
        &text,
    ) {
        Ok(loaded) => loaded.ruleset,
        Err(faults) => return Ok(faulty(&faults)),
    };
    // Sums of captured packets are often not there yet: the card would have made them.
    let config = Config {
        verify_checksums: false,
        ..Config::default()
    };
    let mut filter = Filter::new(config, 0);
    filter
        .replace(ruleset, 0)
        .map_err(|fault| Failure::new(Exit::Rules, fault))?;
    let teller = Teller::new(&filter, &env);
    let text = match (capture, from, to) {
        (Some(capture), _, _) => packets(&mut filter, &teller, capture)?,
        (None, Some(from), Some(to)) => {
            let address = |name: &str| address_of(name, &broker);
            connection(
                &filter,
                &teller,
                (end(from, 40_000, address)?, end(to, 0, address)?),
            )
        }
        _ => return Err(Failure::new(Exit::Usage, "--from and --to, or a capture")),
    };
    print(&text)
}

/// Reads `NAME`, `NAME:PORT` or an address with or without a port.
fn end(
    word: &str,
    port: u16,
    address: impl Fn(&str) -> Result<IpAddr, Failure>,
) -> Result<SocketAddr, Failure> {
    if let Ok(whole) = word.parse() {
        return Ok(whole);
    }
    if let Ok(ip) = word.parse() {
        return Ok(SocketAddr::new(ip, port));
    }
    let (name, port) = match word.rsplit_once(':') {
        Some((name, digits)) => {
            let bad = || Failure::new(Exit::Usage, format!("{digits} is no port"));
            (name, digits.parse().map_err(|_| bad())?)
        }
        None => (word, port),
    };
    Ok(SocketAddr::new(address(name)?, port))
}

fn address_of(
    name: &str,
    broker: &impl Fn() -> Result<Broker, Failure>,
) -> Result<IpAddr, Failure> {
    let domains = broker()?.domains()?;
    let found = domains.into_iter().find(|domain| domain.name == name);
    let ip = found.and_then(|domain| domain.ip);
    ip.map(IpAddr::V4)
        .ok_or_else(|| Failure::new(Exit::NotFound, format!("there is no domain \"{name}\"")))
}

/// Says rules by their text.
struct Teller {
    /// Each table's family and name, and its chains.
    tables: Vec<(String, Vec<NamedChain>)>,
}

/// Name and rules.
type NamedChain = (String, Vec<String>);

impl Teller {
    fn new(filter: &Filter, env: &Env) -> Teller {
        let tables = filter.ruleset().tables.iter().map(|table| {
            let chains = table.chains.iter().map(|chain| {
                let rules = chain.rules.iter().map(|rule| list::rule(rule, env));
                (chain.name.clone(), rules.collect())
            });
            (format!("{} {}", table.family, table.name), chains.collect())
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

fn connection(filter: &Filter, teller: &Teller, ends: (SocketAddr, SocketAddr)) -> String {
    let mut out = format!("connection from {} to {}\n", ends.0, ends.1);
    let ask = |phase| {
        crossing::with_question(ends, phase, |question| {
            filter.ask_traced(question, 0, &mut Surroundings)
        })
    };
    let (whole, steps) = ask(Phase::New);
    teller.ways(&mut out, steps);
    let verdict = match whole.decision {
        Decision::Allowed => "allowed, over rings".to_owned(),
        Decision::Refused { rule, reject } => {
            let how = match reject {
                Some(_) => "rejected",
                None => "dropped",
            };
            format!("{how} by {}", teller.rule(rule))
        }
        Decision::EachPacket { rule, why } => {
            let (later, _) = ask(Phase::Established);
            let path = match later.is_allowed() {
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

fn packets(filter: &mut Filter, teller: &Teller, capture: &Path) -> Result<String, Failure> {
    let frames = frames::read(capture)
        .map_err(|why| Failure::new(Exit::NotFound, format!("{}: {why}", capture.display())))?;
    filter.set_trace(true);
    let mut out = String::new();
    for (number, frame) in (1..).zip(frames) {
        let (from, to) = frame.addresses();
        let name = |ip: Option<IpAddr>| ip.map_or_else(|| "?".into(), |ip| ip.to_string());
        let _ = writeln!(out, "packet {number}: {} to {}", name(from), name(to));
        let way = match (from, to) {
            (Some(from), Some(to)) => crossing::crossings(from, to),
            _ => crossing::crossings(UNKNOWN, UNKNOWN),
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
        match outcome.verdict {
            Verdict::Accept => {}
            Verdict::Drop => return format!("dropped by {decided}"),
            Verdict::Reject(_) => return format!("rejected by {decided}"),
        }
    }
    "passes".into()
}
