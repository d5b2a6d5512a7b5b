//! The filter by itself: what it says about connections, hostile bytes, changes.

use fordway_filter::rules::{Family, Hook};
use fordway_filter::{
    Config, Crossing, Decision, EachPacket, Filter, Iface, Layer, Meta, Packet, Phase, Question,
    Reject, RuleId, Tuple, Verdict,
};
use fordway_test_filter::Nft;
use fordway_test_filter::generate::{self, Dice, Kind};
use fordway_test_filter::packets::{Ip, address};
use fordway_test_filter::router::Nothing;

const WEB: &str = "10.0.0.2";
const GUEST: &str = "10.0.0.3";
const REDIS: &str = "10.0.0.9";

const HOOKS: [Hook; 7] = [
    Hook::Prerouting,
    Hook::Input,
    Hook::Forward,
    Hook::Output,
    Hook::Postrouting,
    Hook::Ingress,
    Hook::Egress,
];
const LAYERS: [Layer; 5] = [
    Layer::Netdev,
    Layer::Bridge,
    Layer::Ip,
    Layer::Ip6,
    Layer::Arp,
];

/// nft, or nothing for who is not root.
fn nft() -> Option<Nft> {
    if !rustix::process::geteuid().is_root() {
        fordway_test_skip::skipped("network namespaces need root");
        return None;
    }
    Some(Nft::new().expect("a namespace"))
}

fn tuple(from: &str) -> Tuple {
    let number = |text| match address(text) {
        std::net::IpAddr::V4(a) => u32::from(a).into(),
        std::net::IpAddr::V6(a) => u128::from(a),
    };
    Tuple {
        source: number(from),
        destination: number(REDIS),
        source_port: 40_000,
        destination_port: 6379,
        protocol: 6,
        six: false,
    }
}

fn crossing(hook: Hook, iif: Option<Iface>, oif: Option<Iface>) -> Crossing {
    Crossing {
        layer: None,
        hook,
        iif,
        oif,
    }
}

fn decide(filter: &Filter, from: &str, phase: Phase) -> fordway_filter::Answer {
    let (a, b) = (Some(Iface::new(2, "veth-a")), Some(Iface::new(3, "veth-b")));
    let question = Question {
        tuple: tuple(from),
        phase,
        forward: &[crossing(Hook::Forward, a, b)],
        backward: &[crossing(Hook::Forward, b, a)],
        mark: 0,
        ct_mark: 0,
        skuid: None,
    };
    filter.ask(&question, 1, &mut Nothing::default())
}

fn text_of(rules: &[&str]) -> String {
    let rules = rules.join("\n    ");
    format!(
        "table inet t {{\n  chain forward {{ type filter hook forward priority 0; policy drop;\n    {rules}\n  }}\n}}\n"
    )
}

/// Rules of a chain that drops what they let by.
fn in_force(nft: &Nft, rules: &[&str]) -> Filter {
    nft.filter(&text_of(rules), Config::default())
        .expect("rules")
}

#[test]
fn redis_is_for_web_and_not_for_guests() {
    let Some(nft) = nft() else { return };
    let mut filter = in_force(
        &nft,
        &[
            "ct state established counter accept",
            "ip saddr 10.0.0.2 tcp dport 6379 accept",
            "reject with tcp reset",
        ],
    );
    assert!(decide(&filter, WEB, Phase::New).is_allowed());
    match decide(&filter, GUEST, Phase::New).decision {
        Decision::Refused {
            reject: Some(Reject::TcpReset),
            rule,
        } => assert_eq!(rule.rule, Some(2)),
        other => panic!("{other:?}"),
    }
    // What is established stays, as in the kernel, and is counted.
    let answer = decide(&filter, GUEST, Phase::Established);
    assert!(answer.is_allowed());
    assert!(filter.credit(&answer, (3, 300), (2, 2_000)));
    let id = RuleId {
        table: 0,
        chain: 0,
        rule: Some(0),
    };
    let counted = filter.counts(id).next().expect("a counter");
    assert_eq!((counted.packets, counted.bytes), (5, 2_300));
    // After a change the answer is stale.
    filter.replace(nft.rules(&text_of(&[])).expect("rules"), 2, 2);
    assert!(!filter.credit(&answer, (1, 1), (1, 1)));
    assert!(matches!(
        decide(&filter, WEB, Phase::Established).decision,
        Decision::Refused { reject: None, rule } if rule.rule.is_none()
    ));
}

#[test]
fn what_needs_each_packet_is_named_with_its_rule() {
    let Some(nft) = nft() else { return };
    for (statement, why) in [
        ("limit rate 9/second", EachPacket::Limit),
        ("log", EachPacket::Log),
        ("meta length > 1000", EachPacket::Length),
        // Not known to the filter at all.
        ("meta iifkind \"veth\"", EachPacket::Unknown),
        ("osf name \"Linux\"", EachPacket::Unknown),
    ] {
        let rule = format!("tcp dport 6379 {statement}");
        let filter = in_force(&nft, &["ip saddr 10.0.0.3 drop", &rule, "accept"]);
        match decide(&filter, WEB, Phase::Established).decision {
            Decision::EachPacket { rule, why: said } => {
                assert_eq!((rule.rule, said), (Some(1), why), "{statement}");
            }
            other => panic!("{statement}: {other:?}"),
        }
        // Who never comes to that rule does not pay for it.
        assert!(matches!(
            decide(&filter, GUEST, Phase::Established).decision,
            Decision::Refused { .. }
        ));
    }
}

#[test]
fn of_an_established_connection_syn_is_known_and_fin_is_not() {
    let Some(nft) = nft() else { return };
    let with = |flag: &str| in_force(&nft, &[&format!("tcp flags {flag} drop"), "accept"]);
    assert!(decide(&with("syn"), WEB, Phase::Established).is_allowed());
    for unknown in ["fin", "rst", "psh"] {
        assert!(matches!(
            decide(&with(unknown), WEB, Phase::Established).decision,
            Decision::EachPacket {
                why: EachPacket::Payload,
                ..
            }
        ));
    }
}

/// Whatever rules say about a connection once and for all, they say about each of its
/// packets.
#[test]
fn answers_about_connections_hold_for_their_packets() {
    let Some(nft) = nft() else { return };
    let mut decided = 0;
    for number in 0..600 {
        let case = generate::case(9, number, 1);
        if case.kind != Kind::Routed || case.family == Family::Netdev {
            continue;
        }
        let Ok(mut filter) = nft.filter(&case.text(), Config::default()) else {
            continue;
        };
        let (side_in, side_out) = (Some(Iface::new(3, "b0")), Some(Iface::new(5, "c0")));
        let forward = [
            crossing(Hook::Prerouting, side_in, None),
            crossing(Hook::Forward, side_in, side_out),
            crossing(Hook::Postrouting, side_in, side_out),
        ];
        let mut dice = Dice::new(number);
        let source = format!(
            "10.{}.{}.{}",
            number / 250 + 1,
            number % 250,
            1 + dice.below(4)
        );
        let destination = format!("10.201.0.{}", 1 + dice.below(4));
        let port = dice.pick(&generate::PORTS);
        let mut tuple = tuple(&source);
        (tuple.source_port, tuple.destination_port) = (22, port);
        let std::net::IpAddr::V4(to) = address(&destination) else {
            panic!()
        };
        tuple.destination = u32::from(to).into();
        let question = Question {
            tuple,
            phase: Phase::Established,
            forward: &forward,
            backward: &[],
            mark: 0,
            ct_mark: 0,
            skuid: None,
        };
        let answer = filter.ask(&question, 1, &mut Nothing::default());
        if matches!(answer.decision, Decision::EachPacket { .. }) {
            continue;
        }
        decided += 1;
        for _ in 0..20 {
            let flags = 0x10 | dice.pick(&[0, 8, 1, 9, 4]);
            let mut ip = Ip::tcp(&source, &destination, 22, port, flags);
            ip.payload = dice.below(800);
            ip.ttl = dice.pick(&[64, 63, 33]);
            ip.tos = dice.pick(&[0, 0x10, 0x28]);
            let mut bytes = ip.bytes();
            let mut packet = Packet::ip(&mut bytes, Meta::default()).unwrap();
            let passes = forward.iter().all(|crossing| {
                (packet.meta.iif, packet.meta.oif) = (crossing.iif, crossing.oif);
                let hook = crossing.hook;
                let outcome = filter.hook(Layer::Ip, hook, &mut packet, 1, &mut Nothing::default());
                outcome.verdict == Verdict::Accept
            });
            assert_eq!(
                passes,
                answer.is_allowed(),
                "case {number}:\n{}\n{ip:?}",
                case.text()
            );
        }
    }
    assert!(decided > 50, "hardly anything was decided: {decided}");
}

/// Bytes of any kind, whole packets that are cut or changed in places, on every hook.
#[test]
fn no_bytes_make_it_panic() {
    let Some(nft) = nft() else { return };
    let mut dice = Dice::new(77);
    for number in 0..150 {
        let case = generate::case(5, number, 40);
        let config = Config {
            flows_max: 16,
            ..Config::default()
        };
        let Ok(mut filter) = nft.filter(&case.text(), config) else {
            continue;
        };
        for (_, ip, tags) in &case.packets {
            let mut frame = ip.frame([2; 6], [4; 6], tags);
            for _ in 0..dice.below(6) {
                let at = dice.below(frame.len());
                frame[at] = dice.roll() as u8;
            }
            frame.truncate(frame.len() - dice.below(frame.len()));
            for layer in LAYERS {
                for hook in HOOKS {
                    let mut bytes = frame.clone();
                    let meta = Meta {
                        iif: Some(Iface::new(1, "b0")),
                        ..Meta::default()
                    };
                    if let Some(mut packet) = Packet::ethernet(&mut bytes, meta) {
                        filter.hook(layer, hook, &mut packet, number, &mut Nothing::default());
                    }
                    let mut bytes = frame.clone();
                    if let Some(mut packet) = Packet::ip(&mut bytes, meta) {
                        filter.hook(layer, hook, &mut packet, number, &mut Nothing::default());
                    }
                }
            }
        }
        assert!(filter.conntrack().len() <= 16);
    }
}

/// Where only what a rule names may pass, a fragment passes only if it shows that it is
/// what the rule names.
#[test]
fn fragments_do_not_get_past_a_list_of_what_is_allowed() {
    let Some(nft) = nft() else { return };
    let mut filter = in_force(&nft, &["meta l4proto tcp tcp dport 6379 accept"]);
    let mut verdict = |fragment, cut| {
        let mut ip = Ip::tcp(WEB, REDIS, 40_000, 6379, 2);
        // Bytes that would be the ports of a later fragment, if it had any.
        (ip.fragment, ip.cut) = (fragment, cut);
        let mut bytes = ip.bytes();
        let mut packet = Packet::ip(&mut bytes, Meta::default()).unwrap();
        filter
            .hook(
                Layer::Ip,
                Hook::Forward,
                &mut packet,
                1,
                &mut Nothing::default(),
            )
            .verdict
    };
    assert_eq!(verdict(None, 0), Verdict::Accept, "whole");
    assert_eq!(verdict(Some((0, true)), 0), Verdict::Accept, "the first");
    assert_eq!(
        verdict(Some((0, true)), 26),
        Verdict::Drop,
        "without a port"
    );
    assert_eq!(
        verdict(Some((1, true)), 0),
        Verdict::Drop,
        "over the header"
    );
    assert_eq!(verdict(Some((185, false)), 0), Verdict::Drop, "a later one");
}

#[test]
fn what_a_question_cannot_know_is_left_to_the_kernel() {
    let Some(nft) = nft() else { return };
    // A set that a rule changes, of which not all is known.
    let text = "table inet t {
              set bad { type ipv4_addr; flags dynamic; size 100; }
              chain forward { type filter hook forward priority 0; policy accept;
                ip saddr @bad drop
                tcp dport 23 meta iifkind \"veth\" add @bad { ip saddr } drop
              }
            }";
    let filter = nft.filter(text, Config::default()).expect("rules");
    let decision = decide(&filter, WEB, Phase::Established).decision;
    let is_left = matches!(decision, Decision::EachPacket { .. });
    assert!(is_left, "{decision:?}");
}
