//! The filter by itself: what it says about connections, hostile bytes, changes.

use fordway_filter::model::{
    ApplyErrorKind, Chain, CtKey, DataType, Expr, Family, Field, Hook, Limit, LimitUnit, MetaKey,
    ObjectKind, Op, Policy, Position, Protocol, Rule, Statement, TableId, Verdict as To,
};
use fordway_filter::{
    Config, Crossing, Decision, EachPacket, Filter, FilterError, Iface, Layer, Meta, Packet, Phase,
    Question, Reject, Tuple, Verdict,
};
use fordway_test_filter::generate::{self, Dice, Kind};
use fordway_test_filter::packets::{Ip, address};
use fordway_test_filter::router::Nothing;

fn table() -> TableId {
    TableId {
        family: Family::Inet,
        name: "t".into(),
    }
}

fn chain(name: &str, hook: Option<Hook>, policy: Policy) -> Op {
    let base = hook.map(|hook| fordway_filter::model::BaseChain {
        kind: fordway_filter::model::ChainKind::Filter,
        hook,
        priority: 0,
        policy,
        devices: Vec::new(),
    });
    Op::AddChain {
        table: table(),
        chain: Chain::new(name, base),
        exclusive: false,
    }
}

fn rule(chain: &str, statements: Vec<Statement>) -> Op {
    let rule = Rule {
        handle: 0,
        comment: None,
        statements,
    };
    Op::AddRule {
        table: table(),
        chain: chain.into(),
        position: Position::Last,
        rule,
    }
}

fn new_table() -> Op {
    Op::AddTable {
        table: table(),
        dormant: false,
        comment: None,
        exclusive: false,
    }
}

fn source_is(text: &str) -> Statement {
    let field = Field::by_name(Protocol::Ip, "saddr").unwrap();
    let std::net::IpAddr::V4(value) = address(text) else {
        panic!("not IPv4")
    };
    Statement::is(
        Expr::Payload(field),
        Expr::number(DataType::Ipv4Addr, u32::from(value).into()),
    )
}

fn port_is(port: u16) -> Statement {
    let field = Field::by_name(Protocol::Tcp, "dport").unwrap();
    Statement::is(
        Expr::Payload(field),
        Expr::number(DataType::InetService, port.into()),
    )
}

fn state_is(bits: u128) -> Statement {
    let state = Expr::Ct {
        key: CtKey::State,
        direction: None,
    };
    Statement::is(state, Expr::number(DataType::CtState, bits))
}

fn to(verdict: To) -> Statement {
    Statement::Verdict(verdict)
}

const WEB: &str = "10.0.0.2";
const GUEST: &str = "10.0.0.3";
const REDIS: &str = "10.0.0.9";

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

fn decide(filter: &Filter, from: &str, phase: Phase) -> fordway_filter::Answer {
    let crossing = |hook, iif, oif| Crossing {
        layer: None,
        hook,
        iif,
        oif,
    };
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

fn in_force(rules: Vec<Vec<Statement>>) -> Filter {
    let mut ops = vec![
        new_table(),
        chain("forward", Some(Hook::Forward), Policy::Drop),
    ];
    ops.extend(
        rules
            .into_iter()
            .map(|statements| rule("forward", statements)),
    );
    let mut filter = Filter::new(Config::default(), 1);
    filter.apply(&ops, 0).unwrap();
    filter
}

#[test]
fn redis_is_for_web_and_not_for_guests() {
    let counter = || Statement::Counter(Default::default());
    let mut filter = in_force(vec![
        vec![state_is(2), counter(), to(To::Accept)],
        vec![source_is(WEB), port_is(6379), to(To::Accept)],
        vec![Statement::Reject(
            fordway_filter::model::RejectKind::TcpReset,
        )],
    ]);
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
    let listing = filter.listing(1);
    let Statement::Counter(counted) = listing.tables[0].chains[0].rules[0].statements[1] else {
        panic!("{listing:?}")
    };
    assert_eq!((counted.packets, counted.bytes), (5, 2_300));
    // After a change the answer is stale.
    filter
        .apply(&[Op::FlushTable { table: table() }], 2)
        .unwrap();
    assert!(!filter.credit(&answer, (1, 1), (1, 1)));
    assert!(matches!(
        decide(&filter, WEB, Phase::Established).decision,
        Decision::Refused { reject: None, rule } if rule.rule.is_none()
    ));
}

#[test]
fn what_needs_each_packet_is_named_with_its_rule() {
    let limit = Limit {
        rate: 9,
        unit: LimitUnit::Second,
        burst: 5,
        over: false,
        bytes: false,
    };
    let long = Statement::Match {
        op: fordway_filter::model::RelOp::Gt,
        left: Expr::Meta(MetaKey::Length),
        right: Expr::number(DataType::Integer(32), 1_000),
    };
    for (statement, why) in [
        (Statement::Limit(limit), EachPacket::Limit),
        (Statement::Log(Default::default()), EachPacket::Log),
        (long, EachPacket::Length),
    ] {
        let filter = in_force(vec![
            vec![source_is(GUEST), to(To::Drop)],
            vec![port_is(6379), statement, to(To::Accept)],
        ]);
        match decide(&filter, WEB, Phase::Established).decision {
            Decision::EachPacket { rule, why: said } => {
                assert_eq!((rule.rule, said), (Some(1), why));
            }
            other => panic!("{other:?}"),
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
    let flag = |bit| {
        let flags = Expr::Payload(Field::by_name(Protocol::Tcp, "flags").unwrap());
        Statement::is(flags, Expr::number(DataType::TcpFlag, bit))
    };
    let with = |bit| in_force(vec![vec![flag(bit), to(To::Drop)], vec![to(To::Accept)]]);
    assert!(decide(&with(2), WEB, Phase::Established).is_allowed());
    for unknown in [1, 4, 8] {
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
    let mut decided = 0;
    for number in 0..600 {
        let case = generate::case(9, number, 1);
        if case.kind != Kind::Routed || case.family == Family::Netdev {
            continue;
        }
        let mut filter = Filter::new(Config::default(), 1);
        if filter.apply(&case.ops(), 1).is_err() {
            continue;
        }
        let (side_in, side_out) = (Some(Iface::new(3, "b0")), Some(Iface::new(5, "c0")));
        let crossing = |hook, iif, oif| Crossing {
            layer: None,
            hook,
            iif,
            oif,
        };
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
    let mut dice = Dice::new(77);
    for number in 0..150 {
        let case = generate::case(5, number, 40);
        let mut filter = Filter::new(
            Config {
                flows_max: 16,
                ..Config::default()
            },
            1,
        );
        if filter.apply(&case.ops(), 1).is_err() {
            continue;
        }
        for (_, ip, tags) in &case.packets {
            let mut frame = ip.frame([2; 6], [4; 6], tags);
            for _ in 0..dice.below(6) {
                let at = dice.below(frame.len());
                frame[at] = dice.roll() as u8;
            }
            frame.truncate(frame.len() - dice.below(frame.len()));
            for layer in [
                Layer::Netdev,
                Layer::Bridge,
                Layer::Ip,
                Layer::Ip6,
                Layer::Arp,
            ] {
                for hook in Hook::ALL {
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

#[test]
fn a_change_is_taken_whole_or_not_at_all() {
    let mut filter = in_force(vec![vec![to(To::Accept)]]);
    let before = filter.ruleset().clone();
    let missing = Op::DeleteObject {
        table: table(),
        kind: ObjectKind::Counter,
        name: "x".into(),
        missing_ok: false,
    };
    match filter.apply(&[Op::FlushTable { table: table() }, missing], 1) {
        Err(FilterError::Apply(error)) => {
            assert_eq!((error.index, error.kind), (1, ApplyErrorKind::NoSuchObject));
            assert_eq!(error.object, "counter inet t x");
        }
        other => panic!("{other:?}"),
    }
    // Rules that cannot be compiled change nothing either.
    let contradiction = rule(
        "forward",
        vec![
            source_is(WEB),
            Statement::is(
                Expr::Payload(Field::by_name(Protocol::Ip6, "hoplimit").unwrap()),
                Expr::number(DataType::Integer(8), 1),
            ),
        ],
    );
    assert!(matches!(
        filter.apply(&[contradiction], 1),
        Err(FilterError::Compile(_))
    ));
    assert_eq!(*filter.ruleset(), before);
}

#[test]
fn circles_and_depth_of_jumps_are_refused() {
    let jump = |from: &str, name: String| rule(from, vec![to(To::Jump(name))]);
    let mut filter = Filter::new(Config::default(), 1);
    let mut ops = vec![new_table()];
    ops.extend((0..17).map(|n| chain(&format!("c{n}"), None, Policy::Accept)));
    ops.extend((0..15).map(|n| jump(&format!("c{n}"), format!("c{}", n + 1))));
    filter.apply(&ops, 1).unwrap();
    let kind = |result: Result<(), FilterError>| match result {
        Err(FilterError::Apply(error)) => error.kind,
        other => panic!("{other:?}"),
    };
    let circle = jump("c15", "c3".into());
    assert_eq!(kind(filter.apply(&[circle], 1)), ApplyErrorKind::JumpLoop);
    let deeper = jump("c15", "c16".into());
    assert_eq!(
        kind(filter.apply(&[deeper], 1)),
        ApplyErrorKind::JumpTooDeep
    );
}

/// Where only what a rule names may pass, a fragment passes only if it shows that it is
/// what the rule names.
#[test]
fn fragments_do_not_get_past_a_list_of_what_is_allowed() {
    let is_tcp = Statement::is(
        Expr::Meta(MetaKey::L4proto),
        Expr::number(DataType::InetProto, 6),
    );
    let mut filter = in_force(vec![vec![is_tcp, port_is(6379), to(To::Accept)]]);
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
