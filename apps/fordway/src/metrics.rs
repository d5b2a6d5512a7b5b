//! What a broker knows, in Prometheus' text form (exposition format 0.0.4): one table of families, and a snapshot written by it.
//!
//! No label tells connections apart: their number has no bound. Ends are counted as `fordway ss` counts them.

use crate::broker::{Broker, unexpected};
use crate::exit::Failure;
use fordway_abi::reason::Reason;
use fordwayd::admin::{Carried, Connection, CountedBy, Domain, FilterCount, Info, Reply, Request};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Stands for programs that are in no domain; it is no domain's name.
const NO_DOMAIN: &str = "_other";

/// Name, labels, what. What ends with `_total` is a counter: while a broker lives, it never goes down. Others are gauges.
type Family = (&'static str, &'static [&'static str], &'static str);

/// Every family. docs/metrics.md shows them.
pub const FAMILIES: &[Family] = &[
    (
        "fordway_up",
        &[],
        "1 if the broker has answered, else 0, and nothing else is told",
    ),
    (
        "fordway_build_info",
        &["version"],
        "1; the label says which broker it is",
    ),
    (
        "fordway_abi_version",
        &[],
        "version of its shared memory and control messages",
    ),
    (
        "fordway_processes",
        &[],
        "processes that speak to the broker",
    ),
    (
        "fordway_domains",
        &[],
        "domains, the host's own namespace among them",
    ),
    (
        "fordway_domain_processes",
        &["domain"],
        "processes in a domain",
    ),
    ("fordway_channels", &[], "live channels"),
    (
        "fordway_connections",
        &["path", "reason"],
        "ends of connections that programs with the library hold, by path, and by reason on the kernel's, as fordway ss counts them",
    ),
    (
        "fordway_connections_outside",
        &[],
        "other ends, which fordway ss --all shows",
    ),
    (
        "fordway_connections_paired_total",
        &[],
        "connections that were given a channel",
    ),
    (
        "fordway_connections_eligible_total",
        &[],
        "those of them that carried bytes through rings, or should have",
    ),
    (
        "fordway_connections_carried_total",
        &[],
        "those of them that did",
    ),
    (
        "fordway_ring_bytes_total",
        &["domain", "direction"],
        "bytes that programs of a domain sent (tx) and received (rx) through rings",
    ),
    (
        "fordway_ring_memory_bytes",
        &["domain"],
        "ring memory that the programs of a domain have taken",
    ),
    (
        "fordway_ring_memory_max_bytes",
        &["domain"],
        "the most that they may take",
    ),
    (
        "fordway_stack_processes",
        &["domain"],
        "processes of a domain's own network stack",
    ),
    (
        "fordway_stack_restarts_total",
        &["domain"],
        "how often one of them was started again",
    ),
    (
        "fordway_protocol_errors_total",
        &[],
        "programs that broke the control protocol",
    ),
    (
        "fordway_channel_errors_total",
        &[],
        "programs that said that their peer broke the protocol of a channel",
    ),
    (
        "fordway_filter_packets_total",
        &["verdict"],
        "packets, on both paths, that rules with a counter have counted, by what such a rule does with them",
    ),
    ("fordway_filter_bytes_total", &["verdict"], "their bytes"),
    (
        "fordway_filter_epoch",
        &[],
        "goes up with each change of the rules",
    ),
];

/// What a broker has answered.
pub struct Snapshot {
    info: Info,
    domains: Vec<Domain>,
    connections: Vec<Connection>,
    /// `None`: the broker cannot say.
    filter: Option<(u64, Vec<FilterCount>)>,
}

impl Snapshot {
    /// Asks a broker.
    pub fn take(broker: &Broker) -> Result<Snapshot, Failure> {
        Ok(Snapshot {
            info: broker.info()?,
            domains: broker.domains()?,
            connections: broker.connections()?,
            // It may be unable to read the rules, and be well otherwise.
            filter: match broker.ask(&Request::FilterCounts) {
                Ok(Reply::FilterCounts { epoch, counts }) => Some((epoch, counts)),
                Ok(other) => return Err(unexpected(&other)),
                Err(_) => None,
            },
        })
    }
}

/// Values of a family's labels, and its value under them.
type Sample<'s> = (Vec<&'s str>, u64);

/// The page; without a snapshot, that of a broker that does not answer.
pub fn text(snapshot: Option<&Snapshot>) -> String {
    let mut text = String::new();
    for family in FAMILIES {
        let samples = match snapshot {
            Some(snapshot) => snapshot.samples(family.0),
            None if family.0 == "fordway_up" => one(0),
            None => continue,
        };
        write_family(&mut text, family, &samples);
    }
    text
}

fn one(value: u64) -> Vec<Sample<'static>> {
    vec![(Vec::new(), value)]
}

impl Snapshot {
    /// Of a family of the table.
    fn samples(&self, family: &str) -> Vec<Sample<'_>> {
        let info = &self.info;
        match family {
            "fordway_up" => one(1),
            "fordway_build_info" => vec![(vec![info.version.as_str()], 1)],
            "fordway_abi_version" => one(info.abi_version.into()),
            "fordway_processes" => one(info.processes.into()),
            "fordway_domains" => one(self.domains.len() as u64),
            "fordway_domain_processes" => self.by_domain(|domain| Some(domain.processes.into())),
            "fordway_channels" => one(info.channels.into()),
            "fordway_connections" => self.by_path(),
            "fordway_connections_outside" => {
                let outside = self.connections.iter().filter(|one| !one.joined);
                one(outside.count() as u64)
            }
            "fordway_connections_paired_total" => one(info.paired_total),
            "fordway_connections_eligible_total" => one(info.eligible_total),
            "fordway_connections_carried_total" => one(info.carried_total),
            "fordway_ring_bytes_total" => {
                let samples = info.carried.iter().flat_map(|carried| {
                    let Carried {
                        domain,
                        tx_bytes,
                        rx_bytes,
                    } = carried;
                    let domain = domain.as_deref().unwrap_or(NO_DOMAIN);
                    [
                        (vec![domain, "tx"], *tx_bytes),
                        (vec![domain, "rx"], *rx_bytes),
                    ]
                });
                samples.collect()
            }
            "fordway_ring_memory_bytes" => {
                let mut samples = self.by_domain(|domain| Some(domain.ring_memory_bytes));
                let inside = samples
                    .iter()
                    .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
                // The sum was asked for a moment before.
                let outside = info.ring_memory_bytes.saturating_sub(inside);
                samples.push((vec![NO_DOMAIN], outside));
                samples
            }
            "fordway_ring_memory_max_bytes" => {
                self.by_domain(|domain| Some(domain.ring_memory_bytes_max))
            }
            "fordway_stack_processes" => {
                self.by_domain(|domain| Some(domain.stack.as_ref()?.pids.len() as u64))
            }
            "fordway_stack_restarts_total" => {
                self.by_domain(|domain| Some(domain.stack.as_ref()?.restarts))
            }
            "fordway_protocol_errors_total" => one(info.protocol_errors),
            "fordway_channel_errors_total" => one(info.channel_errors),
            "fordway_filter_packets_total" => self.by_verdict(|count| count.packets),
            "fordway_filter_bytes_total" => self.by_verdict(|count| count.bytes),
            "fordway_filter_epoch" => {
                let epoch = self.filter.iter().flat_map(|(epoch, _)| one(*epoch));
                epoch.collect()
            }
            _ => Vec::new(),
        }
    }

    fn by_domain(&self, value: impl Fn(&Domain) -> Option<u64>) -> Vec<Sample<'_>> {
        let samples = self.domains.iter();
        samples
            .filter_map(|domain| Some((vec![domain.name.as_str()], value(domain)?)))
            .collect()
    }

    fn by_verdict(&self, value: impl Fn(&FilterCount) -> u64) -> Vec<Sample<'_>> {
        let samples = self.filter.iter().flat_map(|(_, counts)| counts);
        samples
            .map(|count| (vec![CountedBy::word(count.verdict)], value(count)))
            .collect()
    }

    /// Paths and reasons without any end have their sample, too: a curve then does not break off.
    fn by_path(&self) -> Vec<Sample<'_>> {
        let reasons = Reason::ALL.iter().map(|reason| ("kernel", reason.word()));
        let known = [("fast", ""), ("stack", "")].into_iter().chain(reasons);
        let mut ends: BTreeMap<(&str, &str), u64> = known.map(|kind| (kind, 0)).collect();
        for end in self.connections.iter().filter(|end| end.joined) {
            let reason = end.reason.as_deref().unwrap_or_default();
            *ends.entry((end.path.as_str(), reason)).or_default() += 1;
        }
        let samples = ends.into_iter();
        samples
            .map(|((path, reason), count)| (vec![path, reason], count))
            .collect()
    }
}

fn write_family(text: &mut String, (name, labels, what): &Family, samples: &[Sample<'_>]) {
    let kind = match name.ends_with("_total") {
        true => "counter",
        false => "gauge",
    };
    // Nothing that is written to a string fails.
    let _ = writeln!(text, "# HELP {name} {what}\n# TYPE {name} {kind}");
    for (values, value) in samples {
        text.push_str(name);
        for (at, (label, of_label)) in labels.iter().zip(values).enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(text, "{before}{label}=\"{}\"", escaped(of_label));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(text, "{end} {value}");
    }
}

/// A label's value as it stands between quotes.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ss::tests::end;
    use fordwayd::admin::SCHEMA;
    use std::collections::BTreeSet;
    use std::fs;

    fn connection(path: &str, reason: Option<&str>, joined: bool) -> Connection {
        Connection {
            joined,
            ..end("web", 40_000, path, reason)
        }
    }

    /// A broker with a domain that has a stack.
    fn snapshot() -> Snapshot {
        let info = serde_json::json!({
            "schema": SCHEMA, "version": "1.\"2\\", "abi_version": 17, "pid": 1, "uid": 0, "domains": true,
            "network": "10.77.0.0/24", "processes": 2, "channels": 1, "protocol_errors": 3,
            "ring_memory_bytes": 500,
            "carried": [
                { "domain": "web", "tx_bytes": 7, "rx_bytes": u64::MAX },
                { "domain": null, "tx_bytes": 1, "rx_bytes": 0 },
            ],
        });
        let web = serde_json::json!({
            "name": "web", "id": 1, "ip": null, "prefix": 24, "netns_cookie": 5, "netns_path": null,
            "hosts_path": null, "processes": 4, "ring_memory_bytes": 300, "ring_memory_bytes_max": 1000,
            "stack": { "protocols": [], "control_path": "", "pids": [8, 9], "restarts": 6 },
        });
        let counts = CountedBy::ALL.map(|verdict| FilterCount {
            verdict,
            packets: verdict as u64,
            bytes: 100,
        });
        Snapshot {
            info: serde_json::from_value(info).expect("info"),
            domains: vec![serde_json::from_value(web).expect("a domain")],
            connections: vec![
                connection("fast", None, true),
                connection("fast", None, true),
                connection("kernel", Some("asked"), true),
                connection("kernel", Some("no-peer"), false),
            ],
            filter: Some((9, counts.into())),
        }
    }

    #[test]
    fn every_family_has_its_samples() {
        let text = text(Some(&snapshot()));
        for (name, ..) in FAMILIES {
            assert!(text.contains(&format!("# TYPE {name} ")), "{name}");
            let has_sample = text
                .lines()
                .any(|line| line.split([' ', '{']).next() == Some(name));
            assert!(has_sample, "{name}: {text}");
        }
        for line in [
            "fordway_up 1",
            r#"fordway_build_info{version="1.\"2\\"} 1"#,
            r#"fordway_connections{path="fast",reason=""} 2"#,
            r#"fordway_connections{path="stack",reason=""} 0"#,
            r#"fordway_connections{path="kernel",reason="asked"} 1"#,
            r#"fordway_connections{path="kernel",reason="no-peer"} 0"#,
            "fordway_connections_outside 1",
            r#"fordway_ring_bytes_total{domain="web",direction="tx"} 7"#,
            r#"fordway_ring_bytes_total{domain="web",direction="rx"} 18446744073709551615"#,
            r#"fordway_ring_bytes_total{domain="_other",direction="tx"} 1"#,
            r#"fordway_ring_memory_bytes{domain="_other"} 200"#,
            r#"fordway_stack_restarts_total{domain="web"} 6"#,
            r#"fordway_filter_packets_total{verdict="reject"} 2"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
    }

    #[test]
    fn of_a_broker_that_does_not_answer_nothing_is_told_but_that() {
        let text = text(None);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples, ["fordway_up 0"]);
    }

    const BEGIN: &str = "<!-- printed by the command's tests: begin -->\n";
    const END: &str = "<!-- printed by the command's tests: end -->";

    #[test]
    fn the_page_has_every_family() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let old = fs::read_to_string(page).expect("docs/metrics.md");
        let (head, rest) = old.split_once(BEGIN).expect("where the table begins");
        let (_, tail) = rest.split_once(END).expect("where the table ends");
        let mut table = "| name | labels | what |\n|---|---|---|\n".to_owned();
        for (name, labels, what) in FAMILIES {
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            table += &format!("| `{name}` | {} | {what} |\n", labels.join(", "));
        }
        let right = format!("{head}{BEGIN}{table}{END}{tail}");
        if std::env::var_os("FORDWAY_BLESS").is_some() {
            fs::write(page, &right).expect("write");
        }
        let is_right = fs::read_to_string(page).expect("docs/metrics.md") == right;
        assert!(
            is_right,
            "docs/metrics.md differs: FORDWAY_BLESS=1 cargo test -p fordway metrics"
        );
    }

    /// What lies in contrib/prometheus asks for nothing that is not there, and for everything that one may be alarmed by.
    #[test]
    fn dashboard_and_alerts_ask_for_what_there_is() {
        let known: BTreeSet<&str> = FAMILIES.iter().map(|(name, ..)| *name).collect();
        for file in ["dashboard.json", "alerts.yml", "alerts-test.yml"] {
            let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/prometheus");
            let text = fs::read_to_string(format!("{dir}/{file}")).expect(file);
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let words = text.split(|c: char| !is_word(c));
            let asked: BTreeSet<&str> = words.filter(|word| word.starts_with("fordway_")).collect();
            let unknown: Vec<_> = asked.difference(&known).collect();
            assert!(
                unknown.is_empty() && !asked.is_empty(),
                "{file}: {unknown:?}"
            );
        }
    }
}
