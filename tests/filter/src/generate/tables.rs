//! Sets, runs of rules, and NAT.

use fordway_filter::model::{
    Counter, DataType, Element, ElementData, Expr, Family, Hook, Mangle, MapData, MetaKey, Nat,
    NatFlags, NatKind, Protocol, RelOp, Set, SetFlags, SetRef, SetType, SetUpdate, SetUpdateOp,
    Statement, Verdict,
};

use super::atoms::{compare, field, ip, num, range, set};
use super::{GenRule, GenSet, Maker, PORTS, Part, counter};

impl Maker {
    pub(super) fn concatenation(&mut self, six: bool) -> Part {
        let own = if six { Protocol::Ip6 } else { Protocol::Ip };
        let (address, port) = (field(own, "saddr"), field(Protocol::Tcp, "dport"));
        let left = Expr::Concat(vec![address.1, port.1]);
        let mut elements = Vec::new();
        let ranges = self.dice.one_in(2);
        for first in PORTS.into_iter().take(2 + self.dice.below(3)) {
            let address = ip(&self.address(six));
            let port = num(DataType::InetService, first.into());
            let port = match ranges {
                // Apart from each other, so that no two boxes overlap.
                true => range(
                    port.clone(),
                    num(DataType::InetService, u128::from(first) + 7),
                ),
                false => port,
            };
            elements.push((
                format!("{} . {}", address.0, port.0),
                Expr::Concat(vec![address.1, port.1]),
            ));
        }
        let text = format!("{} . {}", address.0, port.0);
        compare((text, left), self.equal_or_not(), set(elements))
    }

    pub(super) fn named_set(&mut self) {
        let name = format!("s{}", self.sets.len());
        let six = self.is_six();
        let (word, data_type) = if six {
            ("ipv6_addr", DataType::Ipv6Addr)
        } else {
            ("ipv4_addr", DataType::Ipv4Addr)
        };
        let kind = self.dice.below(3);
        let mut texts = Vec::new();
        let mut elements: Vec<Element> = Vec::new();
        for at in 0..self.dice.below(4) {
            let (text, expr) = ip(&self.address(six));
            if kind == 1 || elements.iter().any(|e| e.key == expr) {
                continue;
            }
            let mark = Expr::number(DataType::Mark, at as u128 + 1);
            match kind {
                2 => {
                    texts.push(format!("{text} : {:#x}", at + 1));
                    elements.push(Element::with_data(expr, ElementData::Value(mark)));
                }
                _ => {
                    texts.push(text);
                    elements.push(Element::new(expr));
                }
            }
        }
        let content = match texts.is_empty() {
            true => String::new(),
            false => format!("elements = {{ {} }}", texts.join(", ")),
        };
        let (what, flags, to) = match kind {
            1 => ("set", " flags dynamic; size 3;", ""),
            2 => ("map", "", " : mark"),
            _ => ("set", "", ""),
        };
        let text = format!("{what} {name} {{ type {word}{to};{flags} {content} }}");
        let set = Set {
            name,
            handle: 0,
            key: SetType::Type(vec![data_type]),
            data: (kind == 2).then(|| MapData::Type(SetType::Type(vec![DataType::Mark]))),
            flags: SetFlags {
                dynamic: kind == 1,
                ..SetFlags::default()
            },
            timeout_ms: None,
            gc_interval_ms: None,
            size: (kind == 1).then_some(3),
            policy_memory: false,
            auto_merge: false,
            comment: None,
            statements: Vec::new(),
            elements,
        };
        self.sets.push(GenSet { text, set });
    }

    pub(super) fn use_set(&mut self, _: bool) -> Option<Part> {
        let at = self.dice.below(self.sets.len());
        let set = self.sets[at].set.clone();
        let six = set.key.parts() == [DataType::Ipv6Addr];
        let own = if six { Protocol::Ip6 } else { Protocol::Ip };
        if six && self.family == Family::Ip || !six && self.family == Family::Ip6 {
            return None;
        }
        let left = field(own, self.dice.pick(&["saddr", "daddr"]));
        let name = format!("@{}", set.name);
        let named = SetRef::Named(set.name.clone());
        if set.data.is_some() {
            let value = Expr::Map {
                key: left.1.into(),
                map: named,
            };
            let target = Mangle::Meta(MetaKey::Mark);
            let text = format!("meta mark set {} map {name}", left.0);
            return Some((text, Statement::Mangle { target, value }));
        }
        if set.flags.dynamic && self.dice.one_in(2) {
            let (word, op) = self.dice.pick(&[
                ("add", SetUpdateOp::Add),
                ("update", SetUpdateOp::Update),
                ("delete", SetUpdateOp::Delete),
            ]);
            let text = format!("{word} {name} {{ {} }}", left.0);
            return Some((
                text,
                Statement::SetUpdate(SetUpdate {
                    op,
                    set: set.name,
                    key: left.1,
                    data: None,
                    timeout_ms: None,
                    statements: Vec::new(),
                }),
            ));
        }
        Some(compare(left, self.equal_or_not(), (name, Expr::Set(named))))
    }

    /// Rules that differ in numbers only.
    pub(super) fn run_of_rules(&mut self) -> Vec<GenRule> {
        let six = self.is_six();
        let own = if six { Protocol::Ip6 } else { Protocol::Ip };
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
                    let value = self.of_run(six);
                    parts.push(compare(field(own, "saddr"), RelOp::Implicit, value));
                }
                if with_port {
                    let port = self.port_of_run(with_address);
                    let dport = field(Protocol::Tcp, "dport");
                    parts.push(compare(dport, RelOp::Implicit, port));
                }
                parts.push(("counter".into(), Statement::Counter(Counter::default())));
                if ends {
                    let (text, verdict) = match self.dice.below(5) {
                        0 => ("return", Verdict::Return),
                        1..3 => ("accept", Verdict::Accept),
                        _ => ("drop", Verdict::Drop),
                    };
                    parts.push((text.into(), Statement::Verdict(verdict)));
                }
                GenRule(parts)
            })
            .collect()
    }

    /// An address, a prefix or a range.
    fn of_run(&mut self, six: bool) -> (String, Expr) {
        if self.dice.one_in(3) {
            return ip(&self.address(six));
        }
        loop {
            let value = self.addresses(six);
            if !matches!(value.1, Expr::Set(_)) {
                return value;
            }
        }
    }

    /// A port, or where nothing else tells rules apart, now and then a range.
    fn port_of_run(&mut self, with_address: bool) -> (String, Expr) {
        let port = u128::from(self.dice.pick(&PORTS));
        let (low, at_low) = num(DataType::InetService, port);
        if with_address || !self.dice.one_in(4) {
            return (low, at_low);
        }
        let (high, at_high) = num(DataType::InetService, port + 30);
        let range = Expr::Range(Box::new(at_low), Box::new(at_high));
        (format!("{low}-{high}"), range)
    }

    /// From one address to one, from one port to one: two flows never want the same names,
    /// for then either side takes a port at random.
    pub(super) fn nat_rule(&mut self, hook: Option<Hook>) -> GenRule {
        let six = self.is_six();
        let own = if six { Protocol::Ip6 } else { Protocol::Ip };
        let (a, b) = self.net;
        let host = 1 + self.dice.below(4);
        let is_dnat = hook == Some(Hook::Prerouting);
        let (word, kind, end) = match is_dnat {
            true => ("dnat", NatKind::Dnat, "daddr"),
            false => ("snat", NatKind::Snat, "saddr"),
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
        let mut parts = vec![compare(field(own, end), RelOp::Implicit, ip(&from))];
        let mut port = None;
        if is_dnat && self.dice.one_in(2) {
            let protocol = self.dice.pick(&[Protocol::Tcp, Protocol::Udp]);
            let wanted = self.dice.pick(&PORTS);
            let right = num(DataType::InetService, wanted.into());
            parts.push(compare(field(protocol, "dport"), RelOp::Implicit, right));
            port = Some(num(DataType::InetService, u128::from(wanted) + 8000));
        }
        parts.push(counter());
        let family = match self.family {
            Family::Inet if six => Some(Family::Ip6),
            Family::Inet => Some(Family::Ip),
            _ => None,
        };
        let name = family.map_or(String::new(), |f| format!("{f} "));
        let (address_text, address) = ip(&to);
        let bracketed = if six && port.is_some() {
            format!("[{address_text}]")
        } else {
            address_text
        };
        let port_text = port.as_ref().map_or(String::new(), |p| format!(":{}", p.0));
        let nat = Nat {
            kind,
            family,
            address: Some(address),
            port: port.map(|p| p.1),
            flags: NatFlags::default(),
        };
        parts.push((
            format!("{word} {name}to {bracketed}{port_text}"),
            Statement::Nat(nat),
        ));
        GenRule(parts)
    }
}
