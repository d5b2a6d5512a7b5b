//! Rules are denied to a packet by one number: where that must not be the wrong one.

use fordway_filter::rules::Hook;
use fordway_filter::{
    Config, Crossing, Decision, EachPacket, Filter, Layer, Meta, Packet, Phase, Question, Tuple,
};
use fordway_test_filter::Nft;
use fordway_test_filter::packets::{Body, Ip, address};
use fordway_test_filter::router::Nothing;

/// Whether nft can be asked.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        fordway_test_skip::skipped("network namespaces need root");
    }
    is_root
}

/// Rules of a chain on hook forward, each with a counter behind it.
fn filter(rules: &[String]) -> Filter {
    let mut text = String::from("table inet t {\n");
    for n in 0..rules.len() {
        text += &format!("counter c{n} {{ }}\n");
    }
    text += "chain c { type filter hook forward priority 0; policy accept;\n";
    for (n, rule) in rules.iter().enumerate() {
        text += &format!("{rule} counter name c{n}\n");
    }
    text += "}\n}\n";
    let nft = Nft::new().expect("a namespace");
    nft.filter(&text, Config::default()).expect("rules")
}

/// How often each rule was carried out, after one packet.
fn counts(filter: &mut Filter, ip: &Ip) -> Vec<u64> {
    let mut bytes = ip.bytes();
    let mut packet = Packet::ip(&mut bytes, Meta::default()).unwrap();
    let layer = if ip.is_six() { Layer::Ip6 } else { Layer::Ip };
    filter.hook(
        layer,
        Hook::Forward,
        &mut packet,
        1,
        &mut Nothing::default(),
    );
    let objects = &filter.rules().tables[0].objects;
    let mut counts = vec![0; objects.len()];
    for (_, at, counter) in filter.object_counts() {
        let name = &objects[at as usize].name;
        let number: usize = name[1..].parse().expect("c and a number");
        counts[number] = counter.packets;
    }
    counts
}

fn strings(rules: &[&str]) -> Vec<String> {
    rules.iter().map(|rule| (*rule).to_owned()).collect()
}

#[test]
fn what_a_rule_has_written_the_next_one_reads() {
    if !is_root() {
        return;
    }
    let mut filter = filter(&strings(&[
        "ip ttl 64 udp dport 80",
        "meta mark 7",
        "ip ttl 64 ip ttl set 9",
        "ip ttl 64 udp dport 80",
        "ip ttl 9",
        "meta mark set 7",
        "meta mark 7",
        "ct state untracked",
        "notrack",
        "ct state untracked",
    ]));
    let ip = Ip::udp("10.0.0.1", "10.0.0.2", 1000, 80);
    assert_eq!(counts(&mut filter, &ip), [1, 0, 1, 0, 1, 1, 1, 0, 1, 1]);
}

#[test]
fn more_questions_than_facts_are_kept() {
    if !is_root() {
        return;
    }
    let ip = Ip::udp("10.1.2.3", "10.4.5.6", 0x1234, 0x5678);
    let bytes = ip.bytes();
    let ask = |at: usize, off: u8| format!("@nh,{},8 {}", at * 8, bytes[at] ^ off);
    let mut rules = Vec::new();
    // Twice: what was read first is asked for again after all others.
    for at in (0..bytes.len()).chain(0..bytes.len()) {
        rules.extend([ask(at, 0), ask(at, 1), format!("@nh,{},8 {}", 1000, at)]);
    }
    let counts = counts(&mut filter(&rules), &ip);
    for (at, three) in counts.chunks(3).enumerate() {
        assert_eq!(three, [1, 0, 0], "question {at}");
    }
}

/// A wide field is compared by 32 bits first: others may have the same.
#[test]
fn addresses_that_fold_alike_are_told_apart() {
    if !is_root() {
        return;
    }
    let source = "2001:db8::1:0:0:5";
    let mut filter = filter(&strings(&[
        "ip6 saddr 2001:db8::1:0:0:5",
        "ip6 saddr 2001:db8:1:0::5",
        "ip6 saddr 2001:db8::/32",
        "ip6 saddr 2001:db8:1:0::/64",
        "ip6 saddr 2001:db8::1:0:0:0-2001:db8::1:0:0:4",
        "ip6 saddr 2001:db8::1:0:0:4-2001:db8::1:0:0:6",
        "ip saddr 10.0.0.1",
    ]));
    let body = Body::Udp {
        source: 1,
        destination: 2,
        no_checksum: false,
    };
    let ip = Ip::new(address(source), address("2001:db8::2"), body);
    assert_eq!(counts(&mut filter, &ip), [1, 0, 1, 0, 0, 1, 0]);
}

#[test]
fn ranges_and_masks_hold_to_their_ends() {
    if !is_root() {
        return;
    }
    let rules = strings(&[
        "udp dport 80-90",
        "udp dport 79-80",
        "udp dport 81-90",
        "udp dport < 80",
        "udp dport >= 80",
        "udp dport 0-65535",
        "tcp dport 80",
        "th dport & 0xf0 == 0x50",
        "th dport & 0xff != 0",
        "th dport & 0xaf != 0",
        "udp dport != 80",
    ]);
    let ip = Ip::udp("10.0.0.1", "10.0.0.2", 1000, 80);
    let counts = counts(&mut filter(&rules), &ip);
    assert_eq!(counts, [1, 1, 0, 0, 1, 1, 0, 1, 1, 0, 0]);
}

/// Ports of a later fragment and of a packet that is cut are not there.
#[test]
fn what_is_absent_matches_nothing() {
    if !is_root() {
        return;
    }
    let rules = strings(&["udp dport 0-65535", "th dport 0", "meta l4proto udp"]);
    let mut ip = Ip::udp("10.0.0.1", "10.0.0.2", 1000, 0);
    assert_eq!(counts(&mut filter(&rules), &ip), [1, 1, 1]);
    ip.fragment = Some((3, false));
    assert_eq!(counts(&mut filter(&rules), &ip), [0, 0, 1]);
}

/// Of a connection some bits are not known: a rule that asks for them first is named, though
/// its second question would deny; one that asks for what is known first is not.
#[test]
fn of_a_connection_questions_count_in_their_order() {
    if !is_root() {
        return;
    }
    let crossing = Crossing {
        layer: None,
        hook: Hook::Forward,
        iif: None,
        oif: None,
    };
    let question = Question {
        tuple: Tuple {
            source: 0x0a00_0001,
            destination: 0x0a00_0002,
            source_port: 40_000,
            destination_port: 80,
            protocol: 6,
            six: false,
        },
        phase: Phase::New,
        forward: &[crossing],
        backward: &[],
        mark: 0,
        ct_mark: 0,
        skuid: None,
    };
    let decide = |rules: &[&str]| {
        let filter = filter(&strings(rules));
        filter.ask(&question, 1, &mut Nothing::default()).decision
    };
    let unknown_first = decide(&["ip ttl 5 tcp dport 81"]);
    assert!(
        matches!(
            unknown_first,
            Decision::EachPacket {
                why: EachPacket::Payload,
                ..
            }
        ),
        "{unknown_first:?}"
    );
    for rules in [
        ["tcp dport 81 ip ttl 5"],
        ["meta l4proto udp ip ttl 5"],
        // Of an established connection SYN alone is known.
        ["tcp flags & (fin | syn) == (fin | syn) ip ttl 5"],
    ] {
        assert_eq!(decide(&rules), Decision::Allowed, "{rules:?}");
    }
}
