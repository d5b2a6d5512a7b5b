//! Sets, runs of rules, and NAT.

use fordway_filter::rules::{Family, Hook};

use super::atoms::{own, set};
use super::{COUNTER, GenRule, GenSet, Maker, PORTS, SetKind};

impl Maker {
    pub(super) fn concatenation(&mut self, six: bool) -> String {
        let mut elements = Vec::new();
        let ranges = self.dice.one_in(2);
        for first in PORTS.into_iter().take(2 + self.dice.below(3)) {
            let address = self.address(six);
            elements.push(match ranges {
                // Apart from each other, so that no two boxes overlap.
                true => format!("{address} . {first}-{}", first + 7),
                false => format!("{address} . {first}"),
            });
        }
        format!(
            "{} saddr . tcp dport {}{}",
            own(six),
            self.equal_or_not(),
            set(&elements)
        )
    }

    pub(super) fn named_set(&mut self) {
        let name = format!("s{}", self.sets.len());
        let six = self.is_six();
        let kind = self
            .dice
            .pick(&[SetKind::Plain, SetKind::Dynamic, SetKind::Marks]);
        let mut elements: Vec<String> = Vec::new();
        let mut seen = Vec::new();
        for at in 0..self.dice.below(4) {
            let address = self.address(six);
            if kind == SetKind::Dynamic || seen.contains(&address) {
                continue;
            }
            elements.push(match kind {
                SetKind::Marks => format!("{address} : {:#x}", at + 1),
                _ => address.clone(),
            });
            seen.push(address);
        }
        let content = match elements.is_empty() {
            true => String::new(),
            false => format!("elements = {}", set(&elements)),
        };
        let (what, flags, to) = match kind {
            SetKind::Dynamic => ("set", " flags dynamic; size 3;", ""),
            SetKind::Marks => ("map", "", " : mark"),
            SetKind::Plain => ("set", "", ""),
        };
        let word = if six { "ipv6_addr" } else { "ipv4_addr" };
        let text = format!("{what} {name} {{ type {word}{to};{flags} {content} }}");
        self.sets.push(GenSet {
            text,
            name,
            kind,
            six,
        });
    }

    pub(super) fn use_set(&mut self) -> Option<String> {
        let GenSet {
            name, kind, six, ..
        } = self.sets[self.dice.below(self.sets.len())].clone();
        if six && self.family == Family::Ip || !six && self.family == Family::Ip6 {
            return None;
        }
        let left = format!("{} {}", own(six), self.dice.pick(&["saddr", "daddr"]));
        Some(match kind {
            SetKind::Marks => format!("meta mark set {left} map @{name}"),
            SetKind::Dynamic if self.dice.one_in(2) => {
                let word = self.dice.pick(&["add", "update", "delete"]);
                format!("{word} @{name} {{ {left} }}")
            }
            _ => format!("{left} {}@{name}", self.equal_or_not()),
        })
    }

    /// Rules that differ in numbers only.
    pub(super) fn run_of_rules(&mut self) -> Vec<GenRule> {
        let six = self.is_six();
        let (with_address, with_port) =
            self.dice
                .pick(&[(true, false), (true, true), (false, true)]);
        // Some only count.
        let ends = !self.dice.one_in(4);
        let count = 4 + self.dice.below(5);
        (0..count)
            .map(|_| {
                let mut parts = Vec::new();
                if with_address {
                    parts.push(format!("{} saddr {}", own(six), self.of_run(six)));
                }
                if with_port {
                    parts.push(format!("tcp dport {}", self.port_of_run(with_address)));
                }
                parts.push(COUNTER.into());
                if ends {
                    let verdicts = ["return", "accept", "accept", "drop", "drop"];
                    parts.push(self.dice.pick(&verdicts).into());
                }
                GenRule(parts)
            })
            .collect()
    }

    /// An address, a prefix or a range.
    fn of_run(&mut self, six: bool) -> String {
        if self.dice.one_in(3) {
            return self.address(six);
        }
        loop {
            let value = self.addresses(six);
            if !value.starts_with('{') {
                return value;
            }
        }
    }

    /// A port, or where nothing else tells rules apart, now and then a range.
    fn port_of_run(&mut self, with_address: bool) -> String {
        let port = self.dice.pick(&PORTS);
        match with_address || !self.dice.one_in(4) {
            true => port.to_string(),
            false => format!("{port}-{}", port + 30),
        }
    }

    /// From one address to one, from one port to one: two flows never want the same names,
    /// for then either side takes a port at random.
    pub(super) fn nat_rule(&mut self, hook: Option<Hook>) -> GenRule {
        let six = self.is_six();
        let (a, b) = self.net;
        let host = 1 + self.dice.below(4);
        let is_dnat = hook == Some(Hook::Prerouting);
        let (word, end) = match is_dnat {
            true => ("dnat", "daddr"),
            false => ("snat", "saddr"),
        };
        let (from, to) = match (is_dnat, six) {
            (true, false) => (format!("10.201.0.{host}"), format!("10.201.1.{host}")),
            (true, true) => (format!("fd01::{host}"), format!("fd01::1:{host}")),
            (false, false) => (format!("10.{a}.{b}.{host}"), format!("10.{a}.{b}.7{host}")),
            (false, true) => {
                let net = format!("fd00:0:{a:x}:{b:x}:");
                (format!("{net}:{host}"), format!("{net}:7{host}"))
            }
        };
        let mut parts = vec![format!("{} {end} {from}", own(six))];
        let mut to = to;
        if is_dnat && self.dice.one_in(2) {
            let protocol = self.dice.pick(&["tcp", "udp"]);
            let wanted = self.dice.pick(&PORTS);
            parts.push(format!("{protocol} dport {wanted}"));
            let port = wanted + 8000;
            to = if six {
                format!("[{to}]:{port}")
            } else {
                format!("{to}:{port}")
            };
        }
        parts.push(COUNTER.into());
        let family = match self.family {
            Family::Inet => format!("{} ", own(six)),
            _ => String::new(),
        };
        parts.push(format!("{word} {family}to {to}"));
        GenRule(parts)
    }
}
