//! Words that stand for something everywhere: keywords, times, priorities.
use crate::prelude::*;
use fordway_filter::model::{Family, Hook};

/// Words that nft 1.0.6 does not take as the name of a table, chain, set or variable.
const RESERVED: &[&str] = &[
    "accept",
    "add",
    "ah",
    "all",
    "and",
    "arp",
    "auto-merge",
    "bridge",
    "cgroup",
    "chain",
    "comment",
    "comp",
    "constant",
    "continue",
    "counter",
    "cpu",
    "create",
    "ct",
    "day",
    "dccp",
    "define",
    "delete",
    "describe",
    "device",
    "devices",
    "dnat",
    "drop",
    "dst",
    "dup",
    "dynamic",
    "ecn",
    "element",
    "elements",
    "eq",
    "esp",
    "ether",
    "exists",
    "expires",
    "export",
    "exthdr",
    "fib",
    "flags",
    "flow",
    "flowtable",
    "flush",
    "frag",
    "fwd",
    "gc-interval",
    "ge",
    "get",
    "goto",
    "gt",
    "handle",
    "hbh",
    "hook",
    "hour",
    "ibriport",
    "ibrname",
    "icmp",
    "icmpv6",
    "igmp",
    "iif",
    "iifgroup",
    "iifname",
    "iiftype",
    "import",
    "include",
    "index",
    "inet",
    "insert",
    "interval",
    "ip",
    "ip6",
    "ipsec",
    "jhash",
    "jump",
    "le",
    "limit",
    "list",
    "log",
    "lshift",
    "lt",
    "map",
    "mark",
    "masquerade",
    "meta",
    "meter",
    "mh",
    "missing",
    "monitor",
    "ne",
    "netdev",
    "nftrace",
    "not",
    "notrack",
    "numgen",
    "obriport",
    "obrname",
    "offload",
    "oif",
    "oifgroup",
    "oifname",
    "oiftype",
    "or",
    "osf",
    "pkttype",
    "policy",
    "position",
    "priority",
    "queue",
    "quota",
    "random",
    "redefine",
    "redirect",
    "reject",
    "rename",
    "replace",
    "reset",
    "return",
    "rshift",
    "rt",
    "rt0",
    "rt2",
    "rtclassid",
    "rule",
    "ruleset",
    "sctp",
    "secmark",
    "set",
    "size",
    "skgid",
    "skuid",
    "snat",
    "socket",
    "srh",
    "symhash",
    "synproxy",
    "table",
    "tcp",
    "th",
    "time",
    "timeout",
    "tproxy",
    "type",
    "typeof",
    "udp",
    "udplite",
    "undefine",
    "update",
    "vlan",
    "vmap",
    "xor",
    "xt",
];

/// A keyword wherever it stands.
pub fn is_reserved(word: &str) -> bool {
    RESERVED.contains(&word)
}

/// Longest name (linux/netfilter/nf_tables.h: NFT_NAME_MAXLEN, with its zero byte).
pub const NAME_BYTES_MAX: usize = 255;

/// Whether nft's text takes this as a name: what JSON brings in must be listable as text.
pub fn is_name(word: &str) -> bool {
    let mut letters = word.chars();
    letters
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || matches!(c, '_' | '.'))
        && letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.'))
        && word != "."
        && word.len() <= NAME_BYTES_MAX
        && !is_reserved(word)
}

/// `1d2h3m4s5ms` in milliseconds; a bare number counts seconds.
pub fn parse_time_ms(text: &str) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut rest = text;
    let mut sum = 0u64;
    // Each unit once, the larger one first, as nft's scanner wants it.
    let mut allowed: &[(&str, u64)] = &[
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
        ("ms", 1),
    ];
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit = &rest[..letters];
        if unit.is_empty() && sum == 0 && rest.is_empty() {
            return number.checked_mul(1000);
        }
        let at = allowed.iter().position(|(name, _)| *name == unit)?;
        sum = sum.checked_add(number.checked_mul(allowed[at].1)?)?;
        allowed = &allowed[at + 1..];
        rest = &rest[letters..];
    }
    Some(sum)
}

/// Milliseconds as nft writes them: `1d2h3m4s500ms`.
pub fn write_time_ms(ms: u64) -> String {
    use core::fmt::Write;
    let mut out = String::new();
    let mut rest = ms;
    for (unit, size) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
    ] {
        if rest >= size {
            let _ = write!(out, "{}{unit}", rest / size);
            rest %= size;
        }
    }
    if rest > 0 {
        let _ = write!(out, "{rest}ms");
    }
    if out.is_empty() {
        out.push_str("0s");
    }
    out
}

/// The names of priorities that a family knows, with their numbers (nft(8), tables 6 and 7).
fn priorities(family: Family) -> &'static [(&'static str, i32)] {
    match family {
        Family::Bridge => &[
            ("dstnat", -300),
            ("filter", -200),
            ("out", 100),
            ("srcnat", 300),
        ],
        Family::Arp | Family::Netdev => &[("filter", 0)],
        Family::Ip | Family::Ip6 | Family::Inet => &[
            ("raw", -300),
            ("mangle", -150),
            ("dstnat", -100),
            ("filter", 0),
            ("security", 50),
            ("srcnat", 100),
        ],
    }
}

/// Whether a priority's name may be used at a hook.
fn fits(name: &str, family: Family, hook: Hook) -> bool {
    match name {
        "dstnat" => hook == Hook::Prerouting,
        "srcnat" => hook == Hook::Postrouting,
        "out" => family == Family::Bridge && hook == Hook::Output,
        _ => true,
    }
}

/// The number behind a name; `Err` says whether the name is unknown or only out of place.
pub fn priority_by_name(name: &str, family: Family, hook: Hook) -> Option<i32> {
    priorities(family)
        .iter()
        .find(|(known, _)| *known == name && fits(name, family, hook))
        .map(|(_, number)| *number)
}

/// A priority as nft lists it: with a name if it is at most 10 away from one.
pub fn write_priority(priority: i32, family: Family, hook: Hook) -> String {
    for (name, number) in priorities(family) {
        let away = i64::from(priority) - i64::from(*number);
        if away.abs() <= 10 && fits(name, family, hook) {
            return match away {
                0 => (*name).to_string(),
                1.. => format!("{name} + {away}"),
                _ => format!("{name} - {}", -away),
            };
        }
    }
    priority.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        for (text, ms) in [
            ("1d2h3m4s", 93_784_000),
            ("5ms", 5),
            ("30s", 30_000),
            ("1m500ms", 60_500),
        ] {
            assert_eq!(parse_time_ms(text), Some(ms));
            assert_eq!(write_time_ms(ms), text);
        }
        assert_eq!(parse_time_ms("90"), Some(90_000));
        for bad in ["", "s", "1s2d", "1x", "99999999999999999999s"] {
            assert_eq!(parse_time_ms(bad), None, "{bad}");
        }
    }
}
