//! Rulesets and packets from a seed.
//!
//! Rules are made as nft's text. Values come from small pools, so that rules and packets meet. What two
//! runs of the kernel itself would not do alike (random NAT ranges, the clock) is left out.

mod atoms;
mod tables;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use fordway_filter::rules::{Family, Hook};

use crate::packets::{Body, Ip};

/// Numbers that look random and follow from a seed.
#[derive(Clone, Debug)]
pub struct Dice(fastrand::Rng);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(fastrand::Rng::with_seed(seed))
    }

    pub fn roll(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.usize(..bound.max(1))
    }

    pub fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Which end of the lab a packet is put in at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    Left,
    Right,
}

/// Statements.
#[derive(Clone, Debug)]
pub struct GenRule(pub Vec<String>);

#[derive(Clone, Debug)]
pub struct GenChain {
    pub name: String,
    pub base: Option<GenBase>,
    pub rules: Vec<GenRule>,
}

#[derive(Clone, Debug)]
pub struct GenBase {
    pub is_nat: bool,
    pub hook: Hook,
    pub priority: i32,
    pub drops: bool,
    pub device: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    Plain,
    Dynamic,
    /// A map to marks.
    Marks,
}

#[derive(Clone, Debug)]
pub struct GenSet {
    pub text: String,
    pub name: String,
    pub kind: SetKind,
    /// Of addresses of IPv6.
    pub six: bool,
}

/// What a case needs around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Routed,
    /// Routed, and rules may track connections.
    Tracked,
    Bridged,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub kind: Kind,
    pub family: Family,
    pub sets: Vec<GenSet>,
    pub chains: Vec<GenChain>,
    pub packets: Vec<(Side, Ip, Vec<u16>)>,
}

impl Case {
    /// For `nft -f`.
    pub fn text(&self) -> String {
        let mut text = format!("table {} t {{\n", self.family);
        for set in &self.sets {
            let _ = writeln!(text, "  {}", set.text);
        }
        // Chains first: rules may jump to any of them.
        for chain in &self.chains {
            let _ = write!(text, "  chain {} {{", chain.name);
            if let Some(base) = &chain.base {
                let kind = if base.is_nat { "nat" } else { "filter" };
                let policy = if base.drops { "drop" } else { "accept" };
                let device = base.device.map(|device| format!(" device \"{device}\""));
                let _ = write!(
                    text,
                    " type {kind} hook {}{} priority {}; policy {policy};",
                    base.hook.name(),
                    device.unwrap_or_default(),
                    base.priority,
                );
            }
            text.push_str(" }\n");
        }
        for chain in &self.chains {
            let _ = writeln!(text, "  chain {} {{", chain.name);
            for rule in &chain.rules {
                let _ = writeln!(text, "    {}", rule.0.join(" "));
            }
            text.push_str("  }\n");
        }
        text + "}\n"
    }
}

/// What a generator may draw from.
pub(crate) struct Maker {
    pub dice: Dice,
    pub family: Family,
    /// Of this case alone, so that flows of earlier cases do not matter.
    pub net: (u8, u8),
    pub with_ct: bool,
    pub sets: Vec<GenSet>,
    pub chain_names: Vec<String>,
}

const PRIORITIES: [i32; 6] = [-150, -50, -10, 0, 10, 50];
pub const PORTS: [u16; 6] = [22, 53, 80, 443, 1024, 6379];
pub const COUNTER: &str = "counter";

/// The case of this number in the series of this seed.
pub fn case(seed: u64, number: u64, packets: usize) -> Case {
    let mut dice = Dice::new(seed.wrapping_mul(1_000_003).wrapping_add(number));
    let family = dice.pick(&[
        Family::Inet,
        Family::Inet,
        Family::Inet,
        Family::Ip,
        Family::Ip6,
        Family::Netdev,
        Family::Bridge,
    ]);
    let is_routed = matches!(family, Family::Inet | Family::Ip | Family::Ip6);
    let mut maker = Maker {
        with_ct: is_routed && dice.one_in(2),
        dice,
        family,
        net: ((number / 250 % 120 + 1) as u8, (number % 250) as u8),
        sets: Vec::new(),
        chain_names: Vec::new(),
    };
    let mut chains = maker.chains();
    for _ in 0..maker.dice.below(3) {
        maker.named_set();
    }
    for at in 0..chains.len() {
        let is_nat = chains[at].base.as_ref().is_some_and(|base| base.is_nat);
        let hook = chains[at].base.as_ref().map(|b| b.hook);
        for _ in 0..1 + maker.dice.below(if is_nat { 2 } else { 5 }) {
            // Chains only lead to later ones, so that there are no circles.
            let later: Vec<String> = chains[at + 1..]
                .iter()
                .filter(|c| c.base.is_none())
                .map(|c| c.name.clone())
                .collect();
            maker.chain_names = later;
            let rules = if is_nat {
                vec![maker.nat_rule(hook)]
            } else {
                maker.rules(hook)
            };
            chains[at].rules.extend(rules);
        }
    }
    let mut packets: Vec<_> = (1..=packets).map(|id| maker.packet(id as u16)).collect();
    let sets_address = |rule: &GenRule| rule.0.iter().any(|text| text.contains("addr set"));
    if chains.iter().flat_map(|c| &c.rules).any(sets_address) {
        // Where the transport's sum is cut off, the kernel changes the sum of the IP header
        // and not the address; the filter changes neither.
        packets.iter_mut().for_each(|(_, ip, _)| ip.cut = 0);
    }
    for set in &mut maker.sets {
        let deletes = format!("delete @{} ", set.name);
        let rules = chains.iter().flat_map(|c| &c.rules);
        let parts = rules.flat_map(|rule| &rule.0);
        let deletions = parts.filter(|text| text.starts_with(&deletes)).count();
        if let Some(count) = SAME_KEY_MAX.checked_div(deletions) {
            // What a packet deletes keeps its place in the kernel until the collector comes,
            // some time within a second.
            set.text = set.text.replace("size 3", "size 65535");
            packets = few_of_each(packets, count);
        }
    }
    let kind = match (family, maker.with_ct) {
        (Family::Bridge, _) => Kind::Bridged,
        (_, true) => Kind::Tracked,
        _ => Kind::Routed,
    };
    Case {
        kind,
        family,
        sets: maker.sets,
        chains,
        packets,
    }
}

/// Deleted elements of one key that wait for the kernel's collector, so that it still takes the
/// key: its hash table follows a chain for sixteen (RHT_ELASTICITY) and then refuses.
const SAME_KEY_MAX: usize = 15;

/// The first packets of each address.
fn few_of_each(mut packets: Vec<(Side, Ip, Vec<u16>)>, count: usize) -> Vec<(Side, Ip, Vec<u16>)> {
    let mut seen: BTreeMap<IpAddr, usize> = BTreeMap::new();
    packets.retain(|(_, ip, _)| {
        let mut is_new = |address| {
            let seen = seen.entry(address).or_default();
            *seen += 1;
            *seen <= count
        };
        is_new(ip.source) & is_new(ip.destination)
    });
    packets
}

impl Maker {
    fn chains(&mut self) -> Vec<GenChain> {
        let hooks: &[Hook] = match self.family {
            Family::Netdev => &[Hook::Ingress],
            Family::Bridge => &[Hook::Prerouting, Hook::Forward, Hook::Postrouting],
            _ => &[
                Hook::Prerouting,
                Hook::Forward,
                Hook::Input,
                Hook::Postrouting,
            ],
        };
        let mut chains = Vec::new();
        let mut priorities = PRIORITIES.to_vec();
        for number in 0..1 + self.dice.below(3) {
            let priority = priorities.swap_remove(self.dice.below(priorities.len()));
            let hook = self.dice.pick(hooks);
            let base = GenBase {
                is_nat: false,
                hook,
                priority,
                drops: self.dice.one_in(4),
                device: (self.family == Family::Netdev).then_some("b0"),
            };
            chains.push(GenChain {
                name: format!("base{number}"),
                base: Some(base),
                rules: vec![],
            });
        }
        if self.with_ct && self.dice.one_in(2) {
            for (name, hook, priority) in [
                ("nat1", Hook::Prerouting, -100),
                ("nat2", Hook::Postrouting, 100),
            ] {
                if self.dice.one_in(3) {
                    continue;
                }
                let base = GenBase {
                    is_nat: true,
                    hook,
                    priority,
                    drops: false,
                    device: None,
                };
                chains.push(GenChain {
                    name: name.into(),
                    base: Some(base),
                    rules: Vec::new(),
                });
            }
        }
        for number in 0..self.dice.below(3) {
            chains.push(GenChain {
                name: format!("sub{number}"),
                base: None,
                rules: Vec::new(),
            });
        }
        chains
    }

    /// One rule, or a run of rules that differ in numbers only.
    fn rules(&mut self, hook: Option<Hook>) -> Vec<GenRule> {
        if self.dice.one_in(5) {
            return self.run_of_rules();
        }
        let mut parts = Vec::new();
        for _ in 0..self.dice.below(4) {
            if let Some(part) = self.atom(hook, &parts) {
                parts.push(part);
            }
            if self.dice.one_in(6) {
                parts.push(COUNTER.into());
            }
        }
        parts.push(COUNTER.into());
        parts.extend(self.ending(hook));
        vec![GenRule(parts)]
    }

    pub(crate) fn address(&mut self, six: bool) -> String {
        let (a, b) = self.net;
        let host = 1 + self.dice.below(4);
        let kind = self.dice.below(8);
        match (six, kind) {
            (false, 0..4) => format!("10.{a}.{b}.{host}"),
            (false, 4..7) => format!("10.201.0.{host}"),
            (false, _) => "10.200.0.1".into(),
            (true, 0..4) => format!("fd00:0:{a:x}:{b:x}::{host}"),
            (true, 4..7) => format!("fd01::{host}"),
            (true, _) => "fd02::1".into(),
        }
    }

    fn packet(&mut self, id: u16) -> (Side, Ip, Vec<u16>) {
        let six = match self.family {
            Family::Ip => self.dice.one_in(8),
            Family::Ip6 => !self.dice.one_in(8),
            _ => self.dice.one_in(3),
        };
        let (a, b) = self.net;
        let dice = &mut self.dice;
        let near = format!("10.{a}.{b}.{}", 1 + dice.below(4));
        let near6 = format!("fd00:0:{a:x}:{b:x}::{}", 1 + dice.below(4));
        let far = format!("10.201.0.{}", 1 + dice.below(4));
        let far6 = format!("fd01::{}", 1 + dice.below(4));
        let (mut near, mut far) = if six { (near6, far6) } else { (near, far) };
        let side = if dice.one_in(3) {
            Side::Right
        } else {
            Side::Left
        };
        if self.family != Family::Bridge && side == Side::Left && dice.one_in(4) {
            far = if six {
                "fd02::1".into()
            } else {
                "10.200.0.1".into()
            };
        }
        if side == Side::Right {
            std::mem::swap(&mut near, &mut far);
        }
        let (source, destination) = (
            crate::packets::address(&near),
            crate::packets::address(&far),
        );
        let body = packet_body(dice, six);
        let mut ip = Ip::new(source, destination, body);
        ip.id = id;
        ip.ttl = dice.pick(&[64, 64, 64, 63, 2, 255]);
        ip.tos = dice.pick(&[0, 0, 0x10, 0xb8, 0x03]);
        ip.payload = dice.pick(&[0, 8, 8, 37, 100, 600]);
        ip.options = dice.one_in(12);
        // The namespace puts fragments together before it takes them itself.
        if !self.with_ct && dice.one_in(10) && far != "10.200.0.1" {
            // Of IPv6 the kernel then takes the IP header for the ports.
            let offset = if six { 0 } else { dice.pick(&[0, 0, 3, 185]) };
            ip.fragment = Some((offset, dice.one_in(2)));
        }
        if ip.fragment.is_some_and(|(offset, _)| offset > 0) {
            // Of a later fragment the kernel takes aligned loads of up to four bytes for
            // ports all the same (seen with 6.18); the filter never does. Without bytes
            // there is nothing to take.
            ip.body = Body::Other(dice.pick(&[6, 17]));
            ip.payload = 0;
        }
        if dice.one_in(14) {
            ip.cut = dice.below(12);
        }
        let tags = match self.family {
            Family::Bridge | Family::Netdev if dice.one_in(4) => (0..1 + dice.below(2))
                .map(|_| dice.pick(&[5, 7, 0x2005]))
                .collect(),
            _ => Vec::new(),
        };
        (side, ip, tags)
    }
}

fn packet_body(dice: &mut Dice, six: bool) -> Body {
    let (low, high) = (dice.pick(&[40_000, 40_001, 22]), dice.pick(&PORTS));
    let (source, destination) = if dice.one_in(3) {
        (high, low)
    } else {
        (low, high)
    };
    match dice.below(9) {
        0..4 => Body::Tcp {
            source,
            destination,
            flags: dice.pick(&[
                0x02, 0x02, 0x10, 0x12, 0x18, 0x11, 0x04, 0x00, 0x29, 0x03, 0xc2,
            ]),
            options: match dice.below(5) {
                0 => vec![2, 4, 5, 0xb4],
                1 => vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
                2 => vec![2, 4, 5, 0xb4, 4, 2, 3, 0],
                _ => vec![],
            },
        },
        4..7 => Body::Udp {
            source,
            destination,
            no_checksum: !six && dice.one_in(6),
        },
        7 => {
            let kind = if six {
                dice.pick(&[128, 129, 128])
            } else {
                dice.pick(&[8, 0, 8, 13])
            };
            Body::Icmp {
                kind,
                code: 0,
                id: dice.pick(&[7, 8]),
            }
        }
        _ => Body::Other(dice.pick(&[50, 103])),
    }
}
