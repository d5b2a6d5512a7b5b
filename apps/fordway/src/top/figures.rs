//! What one look at the broker shows, with what has moved since the look before.

use crate::broker::Broker;
use crate::cli::{Sort, Top};
use crate::exit::Failure;
use crate::rates::{Counted, Moved, Rates, key};
use crate::ss::{are_there, marked, named, sort};
use crate::table::bytes;
use crate::why::name_of;
use fordwayd::admin::{Connection, Domain, Info};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// What the broker says at one moment.
#[derive(Debug)]
pub struct Look {
    pub at: Instant,
    pub info: Info,
    pub domains: Vec<Domain>,
    pub connections: Vec<Connection>,
    /// Of the processes that have connections.
    pub names: HashMap<i32, String>,
}

/// One end of a connection, as it is shown.
#[derive(Clone, Debug)]
pub struct End {
    pub key: String,
    pub connection: Connection,
    pub local: String,
    pub remote: String,
    /// PID and name.
    pub process: String,
    pub rates: Rates,
    /// Bytes that it has put into its ring and the far end has not taken yet; of a far end that is listed.
    pub fill_bytes: Option<u64>,
}

/// Ends and what they move in a second, by path.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sums {
    pub fast_ends: u64,
    pub kernel_ends: u64,
    pub stack_ends: u64,
    pub rings: Moved,
    pub kernel: Moved,
    pub stack: Moved,
}

impl Sums {
    fn add(&mut self, end: &End) {
        self.rings = self.rings.plus(end.rates.rings.unwrap_or_default());
        let moved = end.rates.kernel.unwrap_or_default();
        let (ends, sum) = match &*end.connection.path {
            "stack" => (&mut self.stack_ends, &mut self.stack),
            "fast" => (&mut self.fast_ends, &mut self.kernel),
            _ => (&mut self.kernel_ends, &mut self.kernel),
        };
        *ends += 1;
        *sum = sum.plus(moved);
    }

    fn text(&self) -> String {
        let per_second = |name: &str, Moved { tx, rx }: Moved| {
            format!("; {name} tx {}/s rx {}/s", bytes(tx), bytes(rx))
        };
        let (fast, kernel) = (self.fast_ends, self.kernel_ends);
        let mut text = format!("ends: {fast} fast, {kernel} kernel");
        if self.stack_ends != 0 {
            text += &format!(", {} stack", self.stack_ends);
        }
        text += &per_second("rings", self.rings);
        text += &per_second("kernel", self.kernel);
        if self.stack_ends != 0 {
            text += &per_second("stacks", self.stack);
        }
        text
    }
}

/// A domain, as it is shown.
#[derive(Clone, Debug)]
pub struct DomainFigures {
    pub domain: Domain,
    pub sums: Sums,
}

/// Everything that is shown.
#[derive(Clone, Debug)]
pub struct Figures {
    pub info: Info,
    pub domains: Vec<DomainFigures>,
    /// By domain and addresses.
    pub ends: Vec<End>,
    /// Of the ends that are wanted.
    pub totals: Sums,
    /// Since the look before, if it was at the same broker.
    pub seconds: Option<f64>,
    /// Names of the domains that the user wants; none: all.
    wanted: Vec<String>,
}

impl Figures {
    /// `before` is what the look before has counted.
    pub fn new(look: Look, before: Option<&Counted>, wanted: &[String]) -> Figures {
        let Look {
            at,
            info,
            domains,
            mut connections,
            names,
        } = look;
        sort(&mut connections, Sort::Domain);
        let fills = fills(&connections);
        let ends = connections.into_iter().zip(fills);
        let ends = ends.map(|(one, fill_bytes)| End {
            key: key(&one),
            local: marked(&one, named(&domains, &one.local, Some(&one.domain))),
            remote: named(&domains, &one.remote, one.peer_domain.as_ref()),
            process: match one.pid {
                None => "-".to_owned(),
                Some(pid) => match names.get(&pid) {
                    Some(name) => format!("{pid}/{name}"),
                    None => pid.to_string(),
                },
            },
            rates: before.map_or_else(Rates::default, |before| before.rates(&one, at)),
            fill_bytes,
            connection: one,
        });
        let ends: Vec<End> = ends.collect();
        let domains = domains.into_iter().map(|domain| DomainFigures {
            domain,
            sums: Sums::default(),
        });
        let mut figures = Figures {
            domains: domains.collect(),
            totals: Sums::default(),
            info,
            ends,
            seconds: before.map(|before| before.seconds(at)),
            wanted: wanted.to_vec(),
        };
        figures.sum();
        figures
    }

    /// Whether a domain is one that the user wants.
    pub fn is_wanted(&self, domain: &String) -> bool {
        self.wanted.is_empty() || self.wanted.contains(domain)
    }

    /// Whether an end is listed, without `all` if it is a program's with the library.
    pub fn is_shown(&self, end: &End, all: bool) -> bool {
        (all || end.connection.joined) && self.is_wanted(&end.connection.domain)
    }

    /// Nothing is known any more of what moves.
    pub fn forget_rates(&mut self) {
        for end in &mut self.ends {
            (end.rates, end.fill_bytes) = (Rates::default(), None);
        }
        self.sum();
    }

    /// Ends that no program with the library holds are not Fordway's.
    fn sum(&mut self) {
        let mut by_domain: HashMap<&str, Sums> = HashMap::new();
        self.totals = Sums::default();
        for end in self.ends.iter().filter(|end| end.connection.joined) {
            let name = &end.connection.domain;
            by_domain.entry(name).or_default().add(end);
            if self.wanted.is_empty() || self.wanted.contains(name) {
                self.totals.add(end);
            }
        }
        for row in &mut self.domains {
            row.sums = by_domain
                .get(&*row.domain.name)
                .copied()
                .unwrap_or_default();
        }
    }

    /// What the broker says of itself, the totals, and what it has counted so far.
    pub fn headings(&self) -> [String; 3] {
        let Info {
            version,
            pid,
            processes,
            channels,
            paired_total,
            carried_total,
            ring_bytes_total,
            ring_memory_bytes,
            protocol_errors,
            channel_errors,
            ..
        } = &self.info;
        let [memory, moved] = [*ring_memory_bytes, *ring_bytes_total].map(bytes);
        let broker = format!(
            "fordway {version}, broker {pid}; processes {processes}, channels {channels}, ring memory {memory}"
        );
        let errors = protocol_errors.saturating_add(*channel_errors);
        let so_far = format!(
            "so far: pairs {paired_total}, of them used {carried_total}, bytes by rings {moved}, errors {errors}"
        );
        [broker, self.totals.text(), so_far]
    }

    /// The document of `--json`.
    pub fn document(&self, all: bool) -> Value {
        let Info {
            version,
            pid,
            processes,
            channels,
            paired_total,
            eligible_total,
            carried_total,
            ring_bytes_total,
            ring_memory_bytes,
            protocol_errors,
            channel_errors,
            ..
        } = &self.info;
        let domain = |DomainFigures { domain, sums }: &DomainFigures| {
            json!({
                "name": domain.name, "ip": domain.ip, "processes": domain.processes,
                "ring_memory_bytes": domain.ring_memory_bytes, "totals": sums,
            })
        };
        let end = |end: &End| {
            let (rates, fill_bytes) = (end.rates, end.fill_bytes);
            json!({ "connection": end.connection, "rates": rates, "fill_bytes": fill_bytes })
        };
        let domains = self.domains.iter();
        let domains = domains.filter(|row| self.is_wanted(&row.domain.name));
        let domains: Vec<Value> = domains.map(domain).collect();
        let is_shown = |end: &&End| self.is_shown(end, all);
        let ends: Vec<Value> = self.ends.iter().filter(is_shown).map(end).collect();
        json!({
            "schema": fordwayd::admin::SCHEMA,
            "seconds": self.seconds,
            "broker": {
                "version": version, "pid": pid, "processes": processes, "channels": channels,
                "paired_total": paired_total, "eligible_total": eligible_total,
                "carried_total": carried_total, "ring_bytes_total": ring_bytes_total,
                "ring_memory_bytes": ring_memory_bytes, "protocol_errors": protocol_errors,
                "channel_errors": channel_errors,
            },
            "totals": self.totals,
            "domains": domains,
            "connections": ends,
        })
    }
}

/// What lies in each end's ring: where both ends of a channel are listed, what one has sent and the other
/// not received.
fn fills(connections: &[Connection]) -> Vec<Option<u64>> {
    let mut ends: HashMap<u64, Vec<usize>> = HashMap::new();
    for (at, one) in connections.iter().enumerate() {
        if let Some(channel) = one.channel.filter(|_| one.path == "fast") {
            ends.entry(channel).or_default().push(at);
        }
    }
    let mut fills = vec![None; connections.len()];
    for ends in ends.into_values() {
        if let [one, other] = ends[..] {
            for (near, far) in [(one, other), (other, one)] {
                let (sent, taken) = (&connections[near], &connections[far]);
                // The listing has read one after the other.
                fills[near] = Some(sent.ring_bytes_tx.saturating_sub(taken.ring_bytes_rx));
            }
        }
    }
    fills
}

/// Looks at the broker, again and again.
#[derive(Debug)]
pub struct Looker {
    broker: Broker,
    wanted: Vec<String>,
    /// The broker of the last look, and what it has counted.
    before: Option<(i32, Counted)>,
}

impl Looker {
    /// Of the domains that the user wants.
    pub fn new(broker: Broker, options: &Top) -> Looker {
        Looker {
            broker,
            wanted: options.domain.clone(),
            before: None,
        }
    }

    /// One look.
    pub fn look(&mut self) -> Result<Figures, Failure> {
        let info = self.broker.info()?;
        let connections = self.broker.connections()?;
        let at = Instant::now();
        let domains = self.broker.domains()?;
        are_there(&self.wanted, &domains, &connections)?;
        let pids: BTreeSet<i32> = connections.iter().filter_map(|one| one.pid).collect();
        let names = pids
            .into_iter()
            .filter_map(|pid| Some((pid, name_of(pid)?)));
        let now = (info.pid, Counted::new(at, &connections));
        let look = Look {
            at,
            names: names.collect(),
            info,
            domains,
            connections,
        };
        // Another broker counts anew.
        let before = self.before.replace(now);
        let before = before.filter(|(pid, _)| *pid == look.info.pid);
        let before = before.as_ref().map(|(_, counted)| counted);
        Ok(Figures::new(look, before, &self.wanted))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::ss::tests::{domain, end};
    use std::time::Duration;

    pub fn look(at: Instant, connections: Vec<Connection>) -> Look {
        let info = json!({
            "schema": 1, "version": "1.2.3", "abi_version": 1, "pid": 42, "uid": 0, "domains": true,
            "network": "10.77.0.0/24", "processes": 2, "channels": 1, "protocol_errors": 0,
        });
        Look {
            at,
            info: serde_json::from_value(info).expect("the broker's words"),
            domains: vec![domain("db", [10, 77, 0, 3]), domain("web", [10, 77, 0, 4])],
            connections,
            names: HashMap::from([(1, "redis".to_owned())]),
        }
    }

    /// The far end of a connection of `web`.
    pub fn far(near: &Connection) -> Connection {
        Connection {
            domain: "db".into(),
            peer_domain: Some("web".into()),
            local: near.remote.clone(),
            remote: near.local.clone(),
            cookie: format!("{}0", near.cookie),
            ring_bytes_tx: 0,
            ring_bytes_rx: 0,
            ..near.clone()
        }
    }

    /// Two ends of a fast connection that moves 1 MB/s, and one of the kernel's that moves 500 B/s.
    pub fn figures() -> Figures {
        let then = Instant::now();
        let near = end("web", 40_000, "fast", None);
        let before = vec![
            near.clone(),
            far(&near),
            Connection {
                channel: None,
                ring_bytes_tx: 0,
                kernel_bytes_rx: 1,
                ..end("web", 39_000, "kernel", Some("no-peer"))
            },
        ];
        let counted = Counted::new(then, &before);
        let mut now = before;
        now[0].ring_bytes_tx += 2_000_000;
        now[1].ring_bytes_rx += 1_990_000;
        now[2].kernel_bytes_rx += 1000;
        let look = look(then + Duration::from_secs(2), now);
        Figures::new(look, Some(&counted), &[])
    }

    #[test]
    fn figures_are_summed_by_domain_and_path() {
        let figures = figures();
        let locals: Vec<&str> = figures.ends.iter().map(|end| &*end.local).collect();
        assert_eq!(locals, ["db:6379", "web:39000", "web:40000"]);
        assert_eq!(figures.ends[2].process, "1/redis");
        // 40,000 B lay there before.
        assert_eq!(figures.ends[2].fill_bytes, Some(50_000));
        assert_eq!(figures.ends[0].fill_bytes, Some(0));
        assert_eq!(figures.ends[1].fill_bytes, None);
        let web = figures.domains[1].sums;
        assert_eq!((web.fast_ends, web.kernel_ends), (1, 1));
        assert_eq!((web.rings.tx, web.kernel.rx), (1_000_000, 500));
        let [broker, totals, so_far] = figures.headings();
        assert_eq!(
            totals,
            "ends: 2 fast, 1 kernel; rings tx 1.0M/s rx 995K/s; kernel tx 0/s rx 500/s"
        );
        assert!(broker.starts_with("fordway 1.2.3, broker 42; processes 2"));
        assert!(so_far.ends_with("errors 0"), "{so_far}");
    }

    #[test]
    fn only_rings_that_are_in_use_are_filled() {
        let near = end("web", 40_000, "kernel", Some("asked"));
        assert_eq!(fills(&[far(&near), near]), [None, None]);
    }

    #[test]
    fn without_a_broker_nothing_is_said_to_move() {
        let mut figures = figures();
        figures.forget_rates();
        let rates = figures.ends.iter().map(|end| end.rates);
        assert!(rates.clone().all(|rates| rates == Rates::default()));
        assert_eq!((figures.totals.fast_ends, figures.totals.rings.tx), (2, 0));
        assert_eq!(figures.domains[1].sums.kernel.rx, 0);
    }

    #[test]
    fn a_domain_that_is_not_wanted_is_left_out() {
        let near = end("web", 40_000, "fast", None);
        let look = look(Instant::now(), vec![far(&near), near]);
        let figures = Figures::new(look, None, &["web".to_owned()]);
        let document = figures.document(false);
        let count = |of: &str| document[of].as_array().map(Vec::len);
        assert_eq!((count("domains"), count("connections")), (Some(1), Some(1)));
        assert_eq!(figures.totals.fast_ends, 1);
        // The far end is known all the same; a first look has no rates.
        let end = &document["connections"][0];
        assert_eq!(
            (&end["fill_bytes"], &end["rates"]["rings"]),
            (&json!(40_000), &Value::Null)
        );
        assert_eq!(document["seconds"], Value::Null);
    }
}
