//! What a packet costs in the filter: one hook, a 64-byte UDP packet, and
//!
//! - `linear/N`: N rules that cannot be joined (each only counts), none of which matches;
//! - `mixed/1000`: the same, each asking for something else than its neighbours;
//! - `one`, `differ/1000`: one rule, and 1,000 that differ in address and port only;
//! - `set`, `ranges`, `boxes`: one rule that looks the packet up in a named set (hash, ranges
//!   of addresses, ranges of addresses joined with ranges of ports), not found and found;
//! - `established`: `ct state established accept` on a flow among 10,000.
//!
//! `cargo bench -p fordway-filter` prints them; the kernel's figures for the same are taken
//! in the same state of the machine or not compared.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion};
use fordway_filter::model::{
    BaseChain, Chain, ChainKind, Counter, CtKey, DataType, Element, Expr, Family, Field, Hook, Op,
    Policy, Position, Protocol, Rule, Set, SetFlags, SetRef, SetType, Statement, TableId, Verdict,
};
use fordway_filter::{Config, Environment, Filter, Layer, Meta, Packet};

struct Nothing;

impl Environment for Nothing {
    fn random(&mut self) -> u32 {
        4
    }
}

fn table() -> TableId {
    TableId {
        family: Family::Ip,
        name: "t".into(),
    }
}

fn filter(set: Option<Set>, rules: Vec<Vec<Statement>>) -> Filter {
    let base = BaseChain {
        kind: ChainKind::Filter,
        hook: Hook::Forward,
        priority: 0,
        policy: Policy::Accept,
        devices: Vec::new(),
    };
    let mut ops = vec![Op::AddTable {
        table: table(),
        dormant: false,
        comment: None,
        exclusive: false,
    }];
    ops.extend(set.map(|set| Op::AddSet {
        table: table(),
        set,
        exclusive: false,
    }));
    let chain = Chain::new("c", Some(base));
    ops.push(Op::AddChain {
        table: table(),
        chain,
        exclusive: false,
    });
    ops.extend(rules.into_iter().map(|statements| Op::AddRule {
        table: table(),
        chain: "c".into(),
        position: Position::Last,
        rule: Rule {
            handle: 0,
            comment: None,
            statements,
        },
    }));
    let mut filter = Filter::new(Config::default(), 7);
    filter.apply(&ops, 0).expect("the rules are sound");
    filter
}

fn field(protocol: Protocol, name: &str) -> Expr {
    Expr::Payload(Field::by_name(protocol, name).expect("the field is there"))
}

fn address(number: u32) -> Expr {
    Expr::number(DataType::Ipv4Addr, number.into())
}

fn port(number: u32) -> Expr {
    Expr::number(DataType::InetService, number.into())
}

fn source_is(value: Expr) -> Statement {
    Statement::is(field(Protocol::Ip, "saddr"), value)
}

/// 64 bytes of UDP from 10.0.0.1:40000 to 10.0.0.2:80.
fn packet(from: u32, from_port: u16) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 64, 0, 1, 0, 0, 64, 17, 0, 0];
    bytes.extend(from.to_be_bytes());
    bytes.extend([10, 0, 0, 2]);
    bytes.extend(from_port.to_be_bytes());
    bytes.extend([0, 80, 0, 44, 0, 0]);
    bytes.resize(64, 0);
    bytes
}

const SOURCE: u32 = 0x0a00_0001;

fn measure(c: &mut Criterion, id: BenchmarkId, filter: &mut Filter, from: u32) {
    let mut bytes = packet(from, 40_000);
    c.bench_with_input(id, &(), |b, ()| {
        b.iter(|| {
            let mut packet = Packet::ip(&mut bytes, Meta::default()).expect("it is IP");
            black_box(filter.hook(Layer::Ip, Hook::Forward, &mut packet, 1, &mut Nothing))
        });
    });
}

fn set(parts: Vec<DataType>, interval: bool, elements: Vec<Expr>) -> Set {
    Set {
        name: "s".into(),
        handle: 0,
        key: SetType::Type(parts),
        data: None,
        flags: SetFlags {
            interval,
            ..SetFlags::default()
        },
        timeout_ms: None,
        gc_interval_ms: None,
        size: None,
        policy_memory: false,
        auto_merge: false,
        comment: None,
        statements: Vec::new(),
        elements: elements.into_iter().map(Element::new).collect(),
    }
}

fn in_set(key: Expr) -> Vec<Vec<Statement>> {
    let named = Expr::Set(SetRef::Named("s".into()));
    vec![vec![
        Statement::is(key, named),
        Statement::Verdict(Verdict::Drop),
    ]]
}

/// Spread over all addresses, without a pattern.
fn scatter(n: u32) -> u32 {
    n.wrapping_mul(2_654_435_761)
}

fn range(low: Expr, high: Expr) -> Expr {
    Expr::Range(low.into(), high.into())
}

fn main() {
    let mut c = Criterion::default().configure_from_args();
    for count in [0, 10, 100, 1_000] {
        let counts = |n| {
            vec![
                source_is(address(SOURCE + 1 + n)),
                Statement::Counter(Counter::default()),
            ]
        };
        let mut linear = filter(None, (0..count).map(counts).collect());
        measure(
            &mut c,
            BenchmarkId::new("linear", count),
            &mut linear,
            SOURCE,
        );
    }
    let mixed = |n: u32| {
        let asked = match n % 3 {
            0 => source_is(address(SOURCE + 1 + n)),
            1 => Statement::is(field(Protocol::Ip, "daddr"), address(SOURCE + 10 + n)),
            _ => Statement::is(field(Protocol::Udp, "dport"), port(n + 1_000)),
        };
        vec![asked, Statement::Counter(Counter::default())]
    };
    let mut rules = filter(None, (0..1_000).map(mixed).collect());
    measure(&mut c, BenchmarkId::new("mixed", 1_000), &mut rules, SOURCE);
    let differ = |n: u32| {
        vec![
            source_is(address(SOURCE + 1 + n)),
            Statement::is(field(Protocol::Udp, "dport"), port(n % 1_000 + 1)),
            Statement::Counter(Counter::default()),
            Statement::Verdict(Verdict::Drop),
        ]
    };
    for (name, count) in [("one", 1), ("differ", 1_000)] {
        let mut rules = filter(None, (0..count).map(differ).collect());
        measure(&mut c, BenchmarkId::new(name, count), &mut rules, SOURCE);
        // Passes the address, so that the port is looked at too.
        measure(
            &mut c,
            BenchmarkId::new(format!("{name}/found"), count),
            &mut rules,
            SOURCE + 80,
        );
    }
    let source = || field(Protocol::Ip, "saddr");
    for count in [10, 100_000] {
        let elements = (1..=count).map(|n| address(scatter(n))).collect();
        let mut rules = filter(
            Some(set(vec![DataType::Ipv4Addr], false, elements)),
            in_set(source()),
        );
        measure(&mut c, BenchmarkId::new("set", count), &mut rules, SOURCE);
        measure(
            &mut c,
            BenchmarkId::new("set/found", count),
            &mut rules,
            scatter(9),
        );
    }
    for count in [1_000, 100_000] {
        let step = u32::MAX / count;
        let wide = |n: u32| range(address(n * step), address(n * step + step / 2));
        let elements = (0..count).map(wide).collect();
        let mut rules = filter(
            Some(set(vec![DataType::Ipv4Addr], true, elements)),
            in_set(source()),
        );
        measure(
            &mut c,
            BenchmarkId::new("ranges", count),
            &mut rules,
            SOURCE,
        );
        measure(
            &mut c,
            BenchmarkId::new("ranges/found", count),
            &mut rules,
            77 * step + 1,
        );
        let both = |n: u32| {
            let ports = range(port(n % 60_000), port(n % 60_000 + 100));
            Expr::Concat(vec![wide(n), ports])
        };
        let elements = (0..count).map(both).collect();
        let parts = vec![DataType::Ipv4Addr, DataType::InetService];
        let key = Expr::Concat(vec![source(), field(Protocol::Udp, "dport")]);
        let mut rules = filter(Some(set(parts, true, elements)), in_set(key));
        measure(
            &mut c,
            BenchmarkId::new("boxes", count),
            &mut rules,
            500 * step + 1,
        );
        measure(
            &mut c,
            BenchmarkId::new("boxes/found", count),
            &mut rules,
            77 * step + 1,
        );
    }
    established(&mut c);
    c.final_summary();
}

fn established(c: &mut Criterion) {
    let state = Expr::Ct {
        key: CtKey::State,
        direction: None,
    };
    let accept = vec![
        Statement::is(state, Expr::number(DataType::CtState, 2)),
        Statement::Verdict(Verdict::Accept),
    ];
    let mut rules = filter(None, vec![accept]);
    let hooks = [Hook::Prerouting, Hook::Forward, Hook::Postrouting];
    let mut pass = |bytes: &mut [u8]| {
        let mut packet = Packet::ip(bytes, Meta::default()).expect("it is IP");
        for hook in hooks {
            black_box(rules.hook(Layer::Ip, hook, &mut packet, 1, &mut Nothing));
        }
    };
    for n in 0..10_000 {
        pass(&mut packet(SOURCE + n, 40_000));
    }
    let mut bytes = packet(SOURCE + 5_000, 40_000);
    let mut answer = bytes.clone();
    answer[12..16].copy_from_slice(&bytes[16..20]);
    answer[16..20].copy_from_slice(&bytes[12..16]);
    answer[20..22].copy_from_slice(&bytes[22..24]);
    answer[22..24].copy_from_slice(&bytes[20..22]);
    pass(&mut answer);
    // Three hooks, and the way through connection tracking.
    c.bench_function("established/10000", |b| b.iter(|| pass(&mut bytes)));
}
