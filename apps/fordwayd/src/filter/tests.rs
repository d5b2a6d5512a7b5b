//! What the broker is told about connections, by rules alone.

use super::*;
use fordway_filter::RuleId;

/// Whether nft can be asked.
fn is_root() -> bool {
    let is_root = fordway_platform::nftables::Scratch::new().is_ok();
    if !is_root {
        fordway_test_skip::skipped("network namespaces need root");
    }
    is_root
}

/// Rules as nft and the kernel make them.
fn rules(text: &str) -> Rules {
    let network = Network::new(Ipv4Addr::new(10, 77, 0, 0), 24).expect("a network");
    let mut rules = Rules::none(PathBuf::new(), network);
    // A block ends with its line.
    let text = text.replace("} }", "}\n}");
    rules.put_in_force(Made::of(&text).expect("rules"), 1);
    rules
}

/// What the first counter of the first chain has.
fn counted(rules: &Rules) -> (u64, u64) {
    let id = RuleId {
        table: 0,
        chain: 0,
        rule: Some(0),
    };
    let counter = rules.filter.counts(id).next().expect("a counter");
    (counter.packets, counter.bytes)
}

/// Two ends, in namespaces of these cookies.
fn ends(from: &str, to: &str, namespaces: [u64; 2]) -> [SocketFacts; 2] {
    let [from, to] = [from, to].map(|name| name.parse().expect("name"));
    let facts = |cookie: u64, local, remote| SocketFacts {
        protocol: Protocol::Tcp,
        cookie,
        netns_cookie: namespaces[cookie as usize],
        local,
        remote,
        shown: fordway_registry::Shown::default(),
    };
    [facts(0, from, to), facts(1, to, from)]
}

fn gate(rules: &Rules, from: &str, to: &str) -> Option<Reason> {
    let [a, b] = ends(from, to, [7, 8]);
    let said = rules.gate([&a, &b], None);
    assert_eq!(said, rules.gate([&b, &a], None), "whoever offers last");
    said
}

const WEB: &str = "10.77.0.4:40000";
const GUEST: &str = "10.77.0.5:40000";
const DB: &str = "10.77.0.3:6379";

/// Of TCP over IPv4.
const HEADER_BYTES: u64 = 52;
const SEGMENT_BYTES: u64 = PACKET_BYTES - HEADER_BYTES;

#[test]
fn every_hook_between_two_domains_has_its_say() {
    if !is_root() {
        return;
    }
    for (family, hook) in [
        ("ip", "prerouting"),
        ("inet", "output"),
        ("inet", "forward"),
        ("ip", "input"),
        ("inet", "postrouting"),
        ("bridge", "prerouting"),
        ("bridge", "forward"),
        ("bridge", "postrouting"),
    ] {
        let rules = rules(&format!(
            "table {family} t {{ chain c {{ type filter hook {hook} priority 0; ip saddr 10.77.0.5 drop; }} }}"
        ));
        assert_eq!(gate(&rules, WEB, DB), None, "{family} {hook}");
        let said = gate(&rules, GUEST, DB);
        assert_eq!(said, Some(Reason::Filter), "{family} {hook}");
    }
}

#[test]
fn interfaces_are_those_of_the_fabric() {
    if !is_root() {
        return;
    }
    let chain = "chain c { type filter hook forward priority 0; policy drop;";
    for rule in [
        "table inet t { CHAIN iifname \"fw0\" oifname \"fw0\" accept; } }",
        "table bridge t { CHAIN iifname \"p-0a4d0004\" oifname \"p-0a4d0003\" accept;
            iifname \"p-0a4d0003\" oifname \"p-0a4d0004\" accept; } }",
    ] {
        let rules = rules(&rule.replace("CHAIN", chain));
        assert_eq!(gate(&rules, WEB, DB), None, "{rule}");
    }
}

/// Whether a pair of UDP sockets is let pass by a rule on hook forward.
fn datagrams(rule: &str, from: &str, to: &str) -> Option<Reason> {
    let rules = rules(&format!(
        "table inet t {{ chain c {{ type filter hook forward priority 0; {rule}; }} }}"
    ));
    let ends = ends(from, to, [7, 8]);
    let [a, b] = ends.map(|end| SocketFacts {
        protocol: Protocol::Udp,
        ..end
    });
    let said = rules.gate([&a, &b], None);
    assert_eq!(said, rules.gate([&b, &a], None), "whoever offers last");
    said
}

#[test]
fn pairs_of_udp_are_under_the_rules_about_udp() {
    if !is_root() {
        return;
    }
    let said = |rule| datagrams(rule, "10.77.0.4:40000", "10.77.0.3:53");
    for rule in [
        "udp dport 53 drop",
        "meta l4proto udp drop",
        "ip protocol udp drop",
        "th dport 53 drop",
        "policy drop; tcp dport 53 accept; ct state established accept",
        // Only one of the two ways.
        "policy drop; udp dport 53 accept",
        // Neither end may send first.
        "policy drop; ct state established accept",
        // Each datagram has to be asked about, ...
        "udp dport 53 limit rate 10/second accept",
        "udp dport 53 log",
        "udp length > 100 drop",
        // ... which may come in fragments.
        "ip frag-off & 0x1fff != 0 drop",
    ] {
        assert_eq!(said(rule), Some(Reason::Filter), "{rule}");
    }
    for rule in [
        "tcp dport 53 drop",
        "ip protocol tcp drop",
        "tcp flags syn drop",
        "udp dport 54 drop",
        "policy drop; udp dport 53 accept; udp sport 53 accept",
        "policy drop; ct state established accept; udp dport 53 ct state new accept",
    ] {
        assert_eq!(said(rule), None, "{rule}");
    }
    // The first one might be led elsewhere.
    let nat = "policy accept; }; chain n { type nat hook prerouting priority 0; udp dport 5 dnat ip to 10.77.0.9";
    assert_eq!(said(nat), Some(Reason::Filter));
    let said = |rule| datagrams(rule, "[fd00::4]:40000", "[fd00::3]:53");
    for rule in [
        "udp dport 53 drop",
        "ip6 nexthdr udp drop",
        "exthdr frag exists drop",
    ] {
        assert_eq!(said(rule), Some(Reason::Filter), "{rule}");
    }
    for rule in ["ip6 nexthdr tcp drop", "ip protocol udp drop"] {
        assert_eq!(said(rule), None, "{rule}");
    }
}

/// Of `inet` as well, whose chains there see frames.
#[test]
fn chains_of_a_port_have_their_say() {
    if !is_root() {
        return;
    }
    for (family, hook, port) in [
        ("netdev", "ingress", "p-0a4d0005"),
        ("netdev", "egress", "p-0a4d0003"),
        ("inet", "ingress", "p-0a4d0005"),
    ] {
        let rules = rules(&format!(
            "table {family} t {{ chain c {{ type filter hook {hook} device {port} priority 0; ip saddr 10.77.0.5 drop; }} }}"
        ));
        assert_eq!(gate(&rules, WEB, DB), None, "{family} {hook}");
        let said = gate(&rules, GUEST, DB);
        assert_eq!(said, Some(Reason::Filter), "{family} {hook}");
    }
}

/// Before tracking there is no state: the kernel takes the packet for an invalid one.
#[test]
fn nothing_is_established_before_tracking() {
    if !is_root() {
        return;
    }
    let chain = |priority: &str| {
        rules(&format!(
            "table inet t {{ chain c {{ type filter hook prerouting priority {priority}; policy drop; ct state established accept; }} }}"
        ))
    };
    assert_eq!(gate(&chain("raw"), WEB, DB), Some(Reason::Filter));
    let answer = |rules: &Rules| {
        let [a, b] = ends(WEB, DB, [7, 8]);
        let (answer, _) = rules
            .ask([&a, &b], None, Phase::Established)
            .pop()
            .expect("asked");
        answer.is_allowed()
    };
    assert!(!answer(&chain("raw")));
    assert!(answer(&chain("mangle")));
}

#[test]
fn a_rule_that_needs_each_packet_keeps_a_connection_off_rings() {
    if !is_root() {
        return;
    }
    for rule in [
        "limit rate 10/second accept",
        "log",
        "meta length 100 accept",
        "ip ttl 3 drop",
        "ip saddr @seen drop",
        // Numbers of interfaces are the fabric's, which rules are not asked with.
        "iif 2 drop",
    ] {
        let rules = rules(&format!(
            "table inet t {{ set seen {{ type ipv4_addr; flags dynamic; }}
             chain c {{ type filter hook forward priority 0; tcp dport 6379 {rule}; }}
             chain d {{ type filter hook forward priority 1; tcp dport 1 update @seen {{ ip saddr }}; }} }}"
        ));
        assert_eq!(gate(&rules, WEB, DB), Some(Reason::Filter), "{rule}");
        assert_eq!(gate(&rules, WEB, "10.77.0.3:80"), None, "{rule}");
    }
}

#[test]
fn a_rule_about_who_connected_keeps_a_connection_off_rings() {
    if !is_root() {
        return;
    }
    for rule in [
        "ct direction reply drop",
        "ct original ip saddr 10.77.0.4 drop",
        "ct original proto-dst 6379 drop",
    ] {
        let rules = rules(&format!(
            "table inet t {{ chain c {{ type filter hook forward priority 0; tcp dport 6379 {rule}; }} }}"
        ));
        // Whichever ports they chose.
        for from in [WEB, "10.77.0.4:100"] {
            assert_eq!(gate(&rules, from, DB), Some(Reason::Filter), "{rule}");
            let [a, b] = ends(from, DB, [7, 8]);
            let (answer, _) = rules
                .ask([&a, &b], None, Phase::Established)
                .pop()
                .expect("asked");
            let is_moved = matches!(answer.decision, Decision::EachPacket { .. });
            assert!(is_moved, "{rule}, {from}: {answer:?}");
        }
    }
    let alike = rules(
        "table inet t { chain c { type filter hook forward priority 0; policy drop;
         ct direction original accept
         ct direction reply accept; } }",
    );
    assert_eq!(gate(&alike, WEB, DB), None);
}

#[test]
fn nothing_is_asked_about_within_one_namespace() {
    if !is_root() {
        return;
    }
    let rules =
        rules("table inet t { chain c { type filter hook input priority 0; policy drop; } }");
    let [a, b] = ends("127.0.0.1:40000", "127.0.0.1:80", [7, 7]);
    assert_eq!(rules.gate([&a, &b], None), None);
    assert_eq!(gate(&rules, WEB, DB), Some(Reason::Filter));
}

#[test]
fn elements_with_a_timeout_are_looked_at_when_it_is_over() {
    if !is_root() {
        return;
    }
    let set = "table inet t { set s { type ipv4_addr; flags timeout; elements = { 10.77.0.4 TIME } }
        chain c { type filter hook forward priority 0; ip saddr @s accept; ip saddr 10.77.0.4 drop; } }";
    assert_eq!(rules(&set.replace("TIME", "")).expiry_ns, None);
    let patience = rules(&set.replace("TIME", "timeout 5s")).patience_ns();
    assert!((1..=5_001_000_000).contains(&patience), "{patience}");
    let soon = rules(&set.replace("TIME", "timeout 1ms"));
    // It may be over between any two questions.
    let [a, b] = ends(WEB, DB, [7, 8]);
    let begin = Instant::now();
    let said = std::iter::repeat_with(|| soon.gate([&a, &b], None))
        .take_while(|_| begin.elapsed().as_secs() < 30)
        .flatten()
        .next();
    assert_eq!(said, Some(Reason::Filter));
}

#[test]
fn the_kernel_is_told_each_hour_which_connections_go_on() {
    if !is_root() {
        return;
    }
    let mut rules = rules("table inet t { }");
    let begin_ns = rules.now_ns();
    let patience = rules.patience_ns();
    assert!((1..=KEEP_EVERY_NS).contains(&patience), "{patience}");
    let mut told = 0;
    // A look each minute, for ten hours; known for longer than it takes to be told again.
    for minute in 1..=600 {
        told += u64::from(rules.must_keep(begin_ns + minute * KEEP_EVERY_NS / 60));
    }
    assert_eq!(told, 10);
    assert!(u64::from(KEEP_S) * 1_000_000_000 > 2 * KEEP_EVERY_NS);
}

/// The ends of a connection of web to a published port of db, in namespaces of these cookies.
fn across_nat(namespaces: [u64; 2]) -> [SocketFacts; 2] {
    let [a, _] = ends(WEB, "192.0.2.1:8080", namespaces);
    let [_, b] = ends("10.77.0.1:50000", DB, namespaces);
    [a, b]
}

#[test]
fn each_crossing_of_what_the_host_translates_is_under_the_rules() {
    if !is_root() {
        return;
    }
    let said = |text: &str| {
        let rules = rules(&format!("table inet t {{ chain c {{ {text}; }} }}"));
        let [a, b] = across_nat([7, 8]);
        let host = Some(rules.host);
        assert_eq!(rules.gate([&a, &b], host), rules.gate([&b, &a], host));
        rules.gate([&a, &b], host)
    };
    let forward = "type filter hook forward priority 0;";
    for rule in [
        "ip saddr 10.77.0.4 tcp dport 8080 drop",
        "ip daddr 192.0.2.1 limit rate 10/second accept",
        "ip saddr 10.77.0.1 tcp dport 6379 drop",
        "ip saddr 10.77.0.3 drop",
        "policy drop; ip daddr 10.77.0.3 tcp dport 6379 accept; ip saddr 10.77.0.3 accept",
    ] {
        assert_eq!(
            said(&format!("{forward} {rule}")),
            Some(Reason::Filter),
            "{rule}"
        );
    }
    for rule in [
        "tcp dport 80 drop",
        // No packet has both names.
        "ip saddr 10.77.0.4 ip daddr 10.77.0.3 drop",
        "ip saddr 10.77.0.3 ip daddr 10.77.0.4 drop",
        "policy drop; ip daddr 192.0.2.1 tcp dport 8080 accept; tcp dport 6379 accept; ct state established accept",
    ] {
        assert_eq!(said(&format!("{forward} {rule}")), None, "{rule}");
    }
    let ports = |rule: &str| {
        let text = "type filter hook forward priority 0;";
        let rules = rules(&format!(
            "table bridge t {{ chain c {{ {text} {rule}; }} }}"
        ));
        let [a, b] = across_nat([7, 8]);
        rules.gate([&a, &b], Some(rules.host))
    };
    for rule in [
        "iifname p-0a4d0004 oifname uplink drop",
        "iifname uplink oifname p-0a4d0003 drop",
    ] {
        assert_eq!(ports(rule), Some(Reason::Filter), "{rule}");
    }
    assert_eq!(ports("iifname p-0a4d0004 oifname p-0a4d0003 drop"), None);
}

#[test]
fn what_a_namespace_leads_to_itself_crosses_the_fabric_under_its_clients_names() {
    if !is_root() {
        return;
    }
    let rules = |rule| {
        rules(&format!(
            "table inet t {{ chain c {{ type filter hook forward priority 0; {rule}; }} }}"
        ))
    };
    let [a, _] = ends(WEB, "10.77.0.3:80", [7, 8]);
    let [_, b] = ends(WEB, "10.77.0.3:15006", [7, 8]);
    for (rule, reason) in [
        ("tcp dport 80 drop", Some(Reason::Filter)),
        ("tcp dport 15006 drop", None),
    ] {
        assert_eq!(rules(rule).gate([&a, &b], Some(8)), reason, "{rule}");
        assert_eq!(rules(rule).gate([&b, &a], Some(8)), reason, "{rule}");
    }
    // Rules that translate are known as such.
    let redirects = "table ip n { chain p { type nat hook prerouting priority 0; tcp dport 80 redirect to :81; }; }";
    assert!(super::tests::rules(redirects).translate() && !rules("drop").translate());
    // Within it, nothing crosses.
    let [a, b] = across_nat([7, 7]);
    assert_eq!(rules("drop").gate([&a, &b], Some(7)), None);
}

#[test]
fn what_crosses_twice_is_counted_twice() {
    if !is_root() {
        return;
    }
    let mut rules = rules(
        "table inet t { chain c { type filter hook forward priority 0; tcp flags ack counter accept; } }",
    );
    let both = across_nat([7, 8]);
    rules.credit_pair(1, &both, Some(rules.host), [Some(SEGMENT_BYTES), None]);
    assert_eq!(counted(&rules).0, 2);
    rules.credit_pair(2, &both, None, [Some(SEGMENT_BYTES), None]);
    assert_eq!(counted(&rules).0, 3);
}

#[test]
fn what_rings_carried_is_counted_as_segments() {
    if !is_root() {
        return;
    }
    let mut rules = rules(
        "table inet t { chain c { type filter hook forward priority 0;
         ip daddr 10.77.0.3 tcp dport 6379 counter accept; } }",
    );
    assert!(rules.counts);
    let [a, b] = ends(WEB, DB, [7, 8]);
    let (answer, connecting) = rules
        .ask([&b, &a], None, Phase::Established)
        .pop()
        .expect("asked");
    assert_eq!(connecting, 1, "the end at the higher port");
    assert!(rules.filter.credit(&answer, (3, 3000), (9, 9)));
    assert_eq!(counted(&rules), (3, 3000));
}

#[test]
fn what_rings_carried_is_counted_once() {
    if !is_root() {
        return;
    }
    let mut rules = rules(
        "table inet t { chain c { type filter hook forward priority 0;
         ip daddr 10.77.0.3 tcp dport 6379 counter accept; } }",
    );
    let both = ends(WEB, DB, [7, 8]);
    // What an end shows of itself may also go back: it is its own to write.
    for segments in [1, 1, 3, 2, 3] {
        rules.credit_pair(1, &both, None, [Some(segments * SEGMENT_BYTES), None]);
    }
    assert_eq!(counted(&rules), (3, 3 * (SEGMENT_BYTES + HEADER_BYTES)));
}

#[test]
fn what_rings_carried_of_udp_is_counted_with_its_own_headers() {
    if !is_root() {
        return;
    }
    let mut rules = rules(
        "table inet t { chain c { type filter hook forward priority 0; udp dport 53 counter accept; } }",
    );
    let both = |names: [&str; 2]| {
        let [a, b] = names.map(|name| name.parse().expect("a name"));
        let end = |cookie, local, remote| SocketFacts {
            protocol: Protocol::Udp,
            local,
            remote,
            ..ends(WEB, DB, [7, 8])[cookie]
        };
        [end(0, a, b), end(1, b, a)]
    };
    let four = both(["10.77.0.4:40000", "10.77.0.3:53"]);
    rules.credit_pair(1, &four, None, [Some(3 * 1472), None]);
    assert_eq!(counted(&rules), (3, 3 * 1500));
    let six = both(["[fd00::4]:40000", "[fd00::3]:53"]);
    rules.credit_pair(2, &six, None, [Some(2 * 1452), None]);
    assert_eq!(counted(&rules), (5, 5 * 1500));
}

#[test]
fn no_end_can_turn_the_counters_of_others_back() {
    if !is_root() {
        return;
    }
    let mut rules = rules(
        "table inet t { chain c { type filter hook forward priority 0;
         ip daddr 10.77.0.3 tcp dport 6379 counter accept; } }",
    );
    let honest = ends(WEB, DB, [7, 8]);
    rules.credit_pair(1, &honest, None, [Some(100 * SEGMENT_BYTES), None]);
    // With segments and headers the sums would wrap.
    for (key, bytes) in [(2, u64::MAX), (3, u64::MAX - 1_000_000), (4, u64::MAX / 2)] {
        rules.credit_pair(key, &honest, None, [Some(bytes), None]);
    }
    assert_eq!(counted(&rules).1, u64::MAX);
}

#[test]
fn an_end_has_sent_no_more_than_its_peer_could_take() {
    if !is_root() {
        return;
    }
    let progress = |ring_bytes_tx, ring_bytes_rx| {
        Some(Progress {
            ring_bytes_tx,
            ring_bytes_rx,
            back: false,
            stopped: false,
            left_for: None,
            calls: 0,
            lost: 0,
        })
    };
    let day = 86_400_000_000_000 * BYTES_PER_NS_MAX;
    let sent = |own, peer| sent(own, peer, day);
    assert_eq!(
        sent(progress(u64::MAX, 0), progress(0, 1000)),
        Some(1000 + IN_RINGS_MAX)
    );
    assert_eq!(sent(progress(1500, 0), progress(0, 1000)), Some(1500));
    assert_eq!(sent(progress(5, 0), progress(0, u64::MAX)), Some(day));
    assert_eq!(sent(progress(5, 0), None), Some(5));
    assert_eq!(sent(None, None), None);
}

#[test]
fn an_end_has_sent_no_less_than_its_peer_has_taken() {
    if !is_root() {
        return;
    }
    let mut rules = rules(
        "table inet t { chain c { type filter hook forward priority 0;
         ip daddr 10.77.0.3 tcp dport 6379 counter accept; } }",
    );
    let progress = |ring_bytes_tx, ring_bytes_rx| {
        Some(Progress {
            ring_bytes_tx,
            ring_bytes_rx,
            back: false,
            stopped: false,
            left_for: None,
            calls: 0,
            lost: 0,
        })
    };
    let both = ends(WEB, DB, [7, 8]);
    rules.begins(1);
    let at = rules.now_ns();
    while rules.now_ns() < at + 1_000_000 {}
    // Ten megabytes, of which the sender's last word is nine hundred bytes, or none at all.
    let taken = 10_000_000;
    for own in [progress(900, 0), None] {
        let sent = sent(own, progress(0, taken), rules.possible(1));
        assert_eq!(sent, Some(taken));
        rules.credit_pair(1, &both, None, [sent, None]);
    }
    let segments = taken.div_ceil(SEGMENT_BYTES);
    assert_eq!(counted(&rules).1, taken + segments * HEADER_BYTES);
    // A peer that says it has taken what nobody can have sent yet is not believed.
    let most = sent(progress(5, 0), progress(0, u64::MAX), rules.possible(1));
    assert!(most < Some(u64::MAX / 1_000_000), "{most:?}");
}

fn for_kernel(text: &str) -> Result<Made, Fault> {
    Made::of(&text.replace("} }", "}\n}"))
}

#[test]
fn hooks_of_the_ends_lie_around_forward() {
    if !is_root() {
        return;
    }
    let rules = "table inet t {
        chain out { type filter hook output priority raw; tcp dport 1 drop; }
        chain in { type filter hook input priority filter; policy drop; counter packets 3 bytes 4; }
        chain pre { type filter hook prerouting priority raw; notrack; } }";
    let made = for_kernel(rules).expect("made");
    let text = &made.for_kernel.text;
    let lines = [
        "hook forward priority -1048876; policy accept;",
        "hook forward priority 1048576; policy drop;",
        "hook prerouting priority raw; policy accept;",
        // The kernel counts on.
        "counter packets 3 bytes 4",
    ];
    for line in lines {
        assert!(text.contains(line), "{line}: {text}");
    }
    let mut filter = new_filter();
    filter.replace(made.rules, 1, 0);
    let listed = kernel::listed(text, &made.for_kernel.moved, Some(&filter));
    assert_eq!(listed, made.listing);
}

#[test]
fn what_cannot_be_in_force_between_domains_is_refused() {
    if !is_root() {
        return;
    }
    for (rules, why) in [
        ("table bridge fordway { }", "another name"),
        (
            "table ip t { chain o { type nat hook output priority 0; } }",
            "type nat on hook output",
        ),
        (
            "table ip t { chain o { type filter hook output priority 0; notrack; } }",
            "notrack",
        ),
    ] {
        let fault = for_kernel(rules).expect_err("refused").to_string();
        assert!(fault.contains(why), "{fault}");
    }
}

/// The fabric's listing is all that is left when a broker was killed while it loaded its first rules.
#[test]
fn hook_lines_are_known_from_the_fabrics_listing() {
    if !is_root() {
        return;
    }
    let made = for_kernel(
        "table inet t {
        chain out { type filter hook output priority raw; tcp dport 1 drop; }
        chain in { type filter hook input priority 5; policy drop; tcp dport 1 accept; }
        chain over { type filter hook forward priority -300; tcp dport 1 drop; } }",
    )
    .expect("made");
    let scratch = Scratch::new().expect("root");
    let text = &made.for_kernel.text;
    scratch.load(Source::text(text)).expect("loaded");
    let fabric = scratch.list().expect("listed");
    let written = kernel::written(&fabric);
    assert_eq!(written.len(), 2);
    let listed = kernel::listed(&fabric, &written, None);
    assert_eq!(Made::of(&listed).expect("made").listing, made.listing);
}

#[test]
fn chains_name_no_device_that_is_not_there() {
    if !is_root() {
        return;
    }
    let mut made = for_kernel(
        "table netdev t {
        chain a { type filter hook ingress device p-0a4d0004 priority 0; tcp dport 1 drop; }
        chain b { type filter hook ingress devices = { p-0a4d0003, p-0a4d0004 } priority 1; policy drop; tcp dport 2 drop; }
        chain c { type filter hook egress device p-0a4d0003 priority 0; tcp dport 3 drop; } }",
    )
    .expect("made");
    let waiting = made
        .for_kernel
        .without_absent(&made.rules, |device| device == "p-0a4d0003");
    assert_eq!(waiting, ["netdev t a", "netdev t b"]);
    let text = &made.for_kernel.text;
    for line in [
        "ingress devices = { lo } priority 0; policy accept;",
        "ingress devices = { p-0a4d0003 } priority 1; policy drop;",
        "egress device \"p-0a4d0003\"",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("p-0a4d0004"), "{text}");
    assert_eq!(
        kernel::listed(text, &made.for_kernel.moved, None),
        made.listing
    );
    Made::of(text).expect("nft takes it");
}

#[test]
fn a_comment_of_several_lines_is_no_chain() {
    if !is_root() {
        return;
    }
    let made = for_kernel(
        "table ip t { comment \"a {\n\tchain x {\n\t\ttype filter hook input priority 0;\n}\"
        chain o { type filter hook output priority 0; policy drop; } }",
    )
    .expect("made");
    let text = &made.for_kernel.text;
    assert!(
        text.contains("hook forward priority -1048576; policy drop;"),
        "{text}"
    );
    assert!(text.contains("hook input priority 0;"), "{text}");
    assert_eq!(made.for_kernel.moved.len(), 1);
    assert_eq!(
        kernel::listed(text, &made.for_kernel.moved, None),
        made.listing
    );
}

/// What differs from load to load, and as packets come, makes no other rules of them.
#[test]
fn the_same_rules_are_known_again() {
    if !is_root() {
        return;
    }
    let set = |elements: &str| {
        format!("set s {{ type ipv4_addr; flags timeout; elements = {{ {elements} }}; }}")
    };
    let rules = |set: &str, used: &str, more: &str| {
        for_kernel(&format!(
            "table inet t {{ {set}
             chain c {{ type filter hook forward priority 0;
             ip saddr @s counter accept
             tcp dport 1 jump {{ counter packets 3 bytes 9 drop; }}
             tcp dport 6379 quota over 1000 bytes {used} drop
             {more}
             }}
             }}"
        ))
        .expect("rules")
        .rules
    };
    let all = "10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5 timeout 1h";
    let first = rules(&set(all), "", "");
    assert!(first.is_alike(&rules(&set(all), "used 500 bytes", "")));
    assert!(first.is_alike(&rules(&set("10.0.0.1, 10.0.0.2"), "", "")));
    assert!(!first.is_alike(&rules(&set(all), "", "tcp dport 2 accept")));
    assert!(!first.is_alike(&for_kernel("").expect("none").rules));
}

#[test]
fn counts_of_both_paths_are_one_sum() {
    if !is_root() {
        return;
    }
    let text = "table inet t { counter c { packets 2 bytes 10; }
        chain f { type filter hook forward priority 0;
        ip daddr 10.77.0.3 tcp dport 6379 counter packets 1 bytes 100 counter name \"c\" accept; } }";
    let mut rules = rules(text);
    let both = ends(WEB, DB, [7, 8]);
    rules.credit_pair(1, &both, None, [Some(SEGMENT_BYTES), None]);
    let made = for_kernel(text).expect("made");
    let listed = kernel::listed(&made.for_kernel.text, &rules.moved, Some(&rules.filter));
    let bytes = SEGMENT_BYTES + HEADER_BYTES;
    let sums = [
        format!("counter packets 2 bytes {}", 100 + bytes),
        format!("packets 3 bytes {}", 10 + bytes),
    ];
    for sum in sums {
        assert!(listed.contains(&sum), "{sum}: {listed}");
    }
}

#[test]
fn a_stack_counts_what_there_is_and_turns_nothing_back() {
    if !is_root() {
        return;
    }
    let mut rules = rules(
        "table inet t { chain c { type filter hook forward priority 0;
         ip daddr 10.77.0.3 tcp dport 6379 counter accept; } }",
    );
    let epoch = rules.epoch();
    rules.add_counts(epoch, 1, &[(0, 2, 120)]);
    assert_eq!(counted(&rules), (2, 120));
    // Of other rules, of a program that numbers otherwise, of no counter.
    rules.add_counts(epoch + 1, 1, &[(0, 1, 1)]);
    rules.add_counts(epoch, 2, &[(0, 1, 1)]);
    rules.add_counts(epoch, 1, &[(1, 1, 1), (u32::MAX, 1, 1)]);
    assert_eq!(counted(&rules), (2, 120));
    rules.add_counts(epoch, 1, &[(0, u64::MAX, u64::MAX), (0, 1, 1)]);
    assert_eq!(counted(&rules), (u64::MAX, u64::MAX));
}

#[test]
fn counts_by_verdict_go_on_when_rules_change() {
    if !is_root() {
        return;
    }
    let text = |accepted: u64, refused: u64| {
        format!(
            "table inet t {{\n chain c {{\n type filter hook forward priority 0; policy drop;\n \
             tcp dport 1 counter packets {accepted} bytes 100 accept\n \
             tcp dport 2 counter packets {refused} bytes 0 reject\n counter\n drop\n }}\n}}\n"
        )
    };
    let made = |accepted, refused| Made::of(&text(accepted, refused)).expect("rules");
    let kernel = |accepted, refused| rules::read(&made(accepted, refused).dump).expect("rules");
    let mut rules = rules(&text(5, 0));
    let look = |rules: &mut super::Rules, there| {
        rules.tally.look(&there, &rules.filter);
        rules
            .tally
            .told()
            .iter()
            .map(|count| count.packets)
            .collect::<Vec<_>>()
    };
    assert_eq!(look(&mut rules, kernel(8, 1)), [3, 0, 1, 0]);
    // By rings.
    rules.filter.add_count(0, (2, 3000).into());
    assert_eq!(look(&mut rules, kernel(8, 1)), [5, 0, 1, 0]);
    // They come into force again, with what they have counted.
    rules.put_in_force(made(10, 1), 1);
    assert_eq!(look(&mut rules, kernel(11, 1)), [6, 0, 1, 0]);
    rules.put_in_force(made(100, 100), 2);
    assert_eq!(look(&mut rules, kernel(101, 100)), [7, 0, 1, 0]);
    // Somebody sets the kernel's counters back.
    assert_eq!(look(&mut rules, kernel(0, 0)), [7, 0, 1, 0]);
    assert_eq!(look(&mut rules, kernel(1, 0)), [8, 0, 1, 0]);
}
