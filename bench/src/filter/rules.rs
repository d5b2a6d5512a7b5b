//! The rules, as nft's text, and the packets that meet them.
//!
//! Packets come from [`SENDERS`] addresses, so that caches do not answer for the tables. No
//! rule drops: a packet goes the same way whatever the rules are.

use super::RULES_MANY;
use std::fmt::Write;

/// Rules of a connection that is asked about.
pub const RULES_ASKED: u32 = RULES_MANY;
/// Different packets.
pub const SENDERS: u32 = 1_024;
/// Elements of a large set.
const ELEMENTS: u32 = 100_000;
/// Flows beside those of the packets.
const FLOWS: u32 = 10_000;

/// A ruleset.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Name of the row.
    pub name: String,
    /// For `nft -f`.
    pub text: String,
    /// Whether there are flows, which the packets' senders have answers to.
    pub tracks: bool,
}

/// Addresses in 10.0.0.0/8 without a pattern; none comes twice.
pub fn sender(number: u32) -> u32 {
    0x0a00_0000 | number.wrapping_mul(0x9e_3779) & 0x00ff_ffff
}

/// 64 bytes of UDP.
pub fn udp(from: u32, from_port: u16, to: u32, to_port: u16) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 64, 0, 1, 0, 0, 64, 17, 0, 0];
    bytes.extend(from.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    let words = bytes
        .chunks(2)
        .map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(from_port.to_be_bytes());
    bytes.extend(to_port.to_be_bytes());
    // No checksum: it may be absent over IPv4 (RFC 768).
    bytes.extend([0, 44, 0, 0]);
    bytes.resize(64, 0);
    bytes
}

const SERVER: u32 = 0xac10_0001;
const SERVER_PORT: u16 = 80;
const SENDER_PORT: u16 = 40_000;

/// The packets, IP header first.
pub fn packets() -> Vec<Vec<u8>> {
    let one = |n| udp(sender(n), SENDER_PORT, SERVER, SERVER_PORT);
    (0..SENDERS).map(one).collect()
}

/// Packets that come before, if rules track: flows of others, then the answers.
pub fn flows() -> Vec<Vec<u8>> {
    let others = (0..FLOWS).map(|n| udp(sender(SENDERS + n), SENDER_PORT, SERVER, SERVER_PORT));
    let answers = (0..SENDERS).map(|n| udp(SERVER, SERVER_PORT, sender(n), SENDER_PORT));
    others.chain(packets()).chain(answers).collect()
}

fn address(number: u32) -> std::net::Ipv4Addr {
    number.into()
}

impl Rules {
    /// No table at all.
    pub fn none() -> Rules {
        Rules {
            name: "none".to_owned(),
            text: String::new(),
            tracks: false,
        }
    }

    fn new(name: String, set: &str, rules: &str) -> Rules {
        let text = format!(
            "table ip t {{\n{set}chain c {{\ntype filter hook forward priority 0; policy accept;\n{rules}}}\n}}\n"
        );
        Rules {
            name,
            text,
            tracks: false,
        }
    }

    /// Rules that cannot be joined, because each only counts; none matches.
    fn linear(count: u32) -> Rules {
        let mut rules = String::new();
        for n in 0..count {
            let _ = writeln!(rules, "ip saddr {} counter", address(0xac11_0000 + n));
        }
        Rules::new(format!("filter-rules-{count}"), "", &rules)
    }

    /// The same, each asking for something else than its neighbours.
    pub fn mixed(count: u32) -> Rules {
        let mut rules = String::new();
        for n in 0..count {
            let other = address(0xac11_0000 + n);
            let _ = match n % 3 {
                0 => writeln!(rules, "ip saddr {other} counter"),
                1 => writeln!(rules, "ip daddr {other} counter"),
                _ => writeln!(rules, "udp dport {} counter", 1_000 + n),
            };
        }
        Rules::new(format!("filter-mixed-{count}"), "", &rules)
    }

    /// Rules that differ in address and port only. Half of the packets meet theirs.
    pub fn differ(count: u32) -> Rules {
        let mut rules = String::new();
        for n in 0..count {
            let from = address(sender(n * 2));
            let port = SERVER_PORT;
            let _ = writeln!(rules, "ip saddr {from} udp dport {port} counter accept");
        }
        Rules::new(format!("filter-differ-{count}"), "", &rules)
    }

    /// The same for connections.
    pub fn about_tcp(mut self) -> Rules {
        self.text = self.text.replace("udp dport", "tcp dport");
        self
    }

    fn set(word: &str, flags: &str, elements: &[String]) -> Rules {
        let elements = elements.join(", ");
        let set = format!("set s {{\ntype ipv4_addr; {flags}\nelements = {{ {elements} }}\n}}\n");
        let name = format!("filter-{word}-{ELEMENTS}");
        Rules::new(name, &set, "ip saddr @s counter\n")
    }

    /// What is measured.
    pub fn all() -> Vec<Rules> {
        let hash: Vec<String> = (0..ELEMENTS)
            .map(|n| address(sender(n)).to_string())
            .collect();
        // Ranges over all of 10.0.0.0/8, half of it inside.
        let step = (1 << 24) / ELEMENTS;
        let range = |n| {
            let low = 0x0a00_0000 + n * step;
            format!("{}-{}", address(low), address(low + step / 2))
        };
        let ranges: Vec<String> = (0..ELEMENTS).map(range).collect();
        let established = Rules {
            tracks: true,
            ..Rules::new(
                "filter-established".to_owned(),
                "",
                "ct state established accept\n",
            )
        };
        let mut all: Vec<Rules> = [0, 10, 100, RULES_MANY].map(Rules::linear).into();
        all.push(Rules::mixed(RULES_MANY));
        all.extend([1, RULES_MANY].map(Rules::differ));
        all.push(Rules::set("hash", "", &hash));
        all.push(Rules::set("interval", "flags interval;", &ranges));
        all.push(established);
        all
    }
}
