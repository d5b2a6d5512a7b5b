//! Rules between two stacks: what they let through, refuse and count, and that they can be
//! replaced under a connection.
#![cfg(feature = "filter")]

mod common;

use common::{Conditions, World, at};
use fordway_netstack::fordway_filter::rules::read;
use fordway_netstack::{Error, TcpOptions, TcpState};
use fordway_platform::nftables::{Scratch, Source};

/// Whether nft can be asked.
fn is_root() -> bool {
    let is_root = Scratch::new().is_ok();
    if !is_root {
        fordway_test_skip::skipped("network namespaces need root");
    }
    is_root
}

/// Puts nft's text in force on side 1.
fn rules(world: &mut World, text: &str) {
    let now = world.now;
    let scratch = Scratch::new().expect("a namespace");
    scratch.load(Source::text(text)).expect("nft takes them");
    let dump = scratch.dump().expect("dumped");
    let rules = read(&dump).expect("read");
    world.sides[1].set_rules(now, rules).expect("all is known");
}

fn connects(world: &mut World, port: u16) -> Result<(), Error> {
    let now = world.now;
    let id = world.sides[0].tcp_connect(now, at(1, port), None, TcpOptions::default())?;
    world.run(3_000_000);
    let answer = world.sides[0].tcp_receive(id, &mut [0; 8]);
    let _ = world.sides[0].tcp_abort(id);
    world.run(10_000);
    match answer {
        Err(Error::WouldBlock) if world.sides[0].tcp_counts().0 == 0 => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

#[test]
fn rules_decide_and_can_be_replaced() {
    if !is_root() {
        return;
    }
    let mut world = World::new(Conditions::default());
    for port in [80, 81, 82] {
        world.sides[1]
            .tcp_listen(None, port, 16, TcpOptions::default())
            .expect("listens");
    }
    assert_eq!(connects(&mut world, 80), Ok(()));
    rules(
        &mut world,
        "table inet fw {
            chain input {
                type filter hook input priority filter; policy drop;
                ct state established,related accept
                tcp dport 80 counter accept
                tcp dport 81 reject with tcp reset
                meta l4proto icmp reject with icmp type admin-prohibited
            }
        }",
    );
    assert_eq!(connects(&mut world, 80), Ok(()));
    assert_eq!(connects(&mut world, 81), Err(Error::Refused));
    let dropped = world.sides[1].counters().drops[fordway_netstack::Drop::Filter as usize];
    let now = world.now;
    let silent = world.sides[0].tcp_connect(now, at(1, 82), None, TcpOptions::default());
    let silent = silent.expect("begins");
    world.run(2_500_000);
    assert_eq!(
        world.sides[0].tcp_receive(silent, &mut [0; 8]),
        Err(Error::WouldBlock)
    );
    assert!(world.sides[1].counters().drops[fordway_netstack::Drop::Filter as usize] > dropped);
    // The rules go, the SYN that comes again is let in.
    rules(&mut world, "");
    world.run(10_000_000);
    let ready = world.events(0);
    assert!(
        format!("{ready:?}").contains("is_connected: true"),
        "{ready:?}"
    );
}

#[test]
fn what_is_not_known_is_refused_and_changes_nothing() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new().expect("a namespace");
    let text = "table inet fw {
        chain input { type filter hook input priority 0; tcp dport 80 meta iifkind \"bridge\"
        }
    }";
    scratch.load(Source::text(text)).expect("nft takes them");
    let rules = read(&scratch.dump().expect("dumped")).expect("read");
    let mut world = World::new(Conditions::default());
    let said = world.sides[1].set_rules(0, rules).expect_err("refused");
    assert_eq!(
        said,
        "rule 1 of chain inet fw input: an expression that is used in a way that is not known"
    );
}

#[test]
fn output_rules_hold_our_own_packets() {
    if !is_root() {
        return;
    }
    let mut world = World::new(Conditions::default());
    rules(
        &mut world,
        "table inet fw {
            chain out {
                type filter hook output priority filter;
                udp dport 53 drop
                tcp dport 80 reject with tcp reset
            }
        }",
    );
    let server = world.sides[0].udp_bind(None, 53).expect("binds");
    let client = world.sides[1].udp_bind(None, 0).expect("binds");
    world.sides[1]
        .udp_send(client, at(0, 53), b"x")
        .expect("goes to the filter");
    let now = world.now;
    let id = world.sides[1]
        .tcp_connect(now, at(0, 80), None, TcpOptions::default())
        .expect("begins");
    world.run(100_000);
    assert!(world.sides[0].udp_receive(server, &mut [0; 8]).is_err());
    assert_eq!(
        world.sides[1].tcp_receive(id, &mut [0; 8]),
        Err(Error::Refused)
    );
}

/// The least of Ethernet is longer than a short packet. What fills it up is none of the packet, whatever a rule writes to the header.
#[test]
fn padding_is_no_part_of_a_packet_that_a_rule_makes_longer() {
    if !is_root() {
        return;
    }
    const LEAST: usize = 60;
    let mut world = World::new(Conditions::default());
    let server = world.sides[1].udp_bind(None, 53).expect("binds");
    let client = world.sides[0].udp_bind(None, 0).expect("binds");
    world.keeps_sent = true;
    let came = |world: &mut World| {
        let got = world.sides[1].udp_receive(server, &mut [0; 64]);
        got.map(|got| got.0)
    };
    let sent = world.sides[0].udp_send(client, at(1, 53), b"abc");
    sent.expect("goes");
    world.run(100_000);
    assert_eq!(came(&mut world), Ok(3));
    let (.., mut frame, _) = world.sent.pop().expect("a frame");
    assert!(frame.len() < LEAST);
    frame.resize(LEAST, 7);
    world.inject(1, &frame);
    assert_eq!(came(&mut world), Ok(3));
    rules(
        &mut world,
        "table inet fw {
            chain input {
                type filter hook input priority filter;
                ip length 31 ip length set 46
            }
        }",
    );
    world.inject(1, &frame);
    assert_eq!(came(&mut world), Err(Error::WouldBlock));
    let malformed = fordway_netstack::Drop::Malformed as usize;
    assert_eq!(world.sides[1].counters().drops[malformed], 1);
}

/// As [`rules`], those of a bridge between the two.
fn rules_beside(world: &mut World, text: &str) {
    let now = world.now;
    let scratch = Scratch::new().expect("a namespace");
    // nft wants an end of line between.
    let text = text.replace("} }", "}\n}").replace("} }", "}\n}");
    let loaded = scratch.load(Source::text(&text));
    loaded.expect("nft takes them");
    let rules = read(&scratch.dump().expect("dumped")).expect("read");
    world.sides[1].set_rules_beside(now, rules, 7, "fw0");
}

/// Which counters have counted how many packets since the last call.
fn counted(world: &mut World) -> Vec<(u32, u64)> {
    let filter = world.sides[1].filter_mut().expect("a filter");
    let counts = filter.take_counts().into_iter();
    counts.map(|(at, count)| (at, count.packets)).collect()
}

/// What side 1 says of a connection to a port of side 0.
fn reaches(world: &mut World, port: u16) -> Result<(), Error> {
    let now = world.now;
    let id = world.sides[1]
        .tcp_connect(now, at(0, port), None, TcpOptions::default())
        .expect("begins");
    world.run(500_000);
    let answer = match world.sides[1].tcp_state(id) {
        Ok(TcpState::Established) => Ok(()),
        _ => world.sides[1].tcp_receive(id, &mut [0; 8]).map(|_| ()),
    };
    let _ = world.sides[1].tcp_abort(id);
    world.run(10_000);
    answer
}

#[test]
fn rules_of_a_bridge_hold_for_both_ways_of_its_packets() {
    if !is_root() {
        return;
    }
    let mut world = World::new(Conditions::default());
    for port in [80, 81, 82, 83] {
        let listens = world.sides[0].tcp_listen(None, port, 16, TcpOptions::default());
        listens.expect("listens");
    }
    rules_beside(
        &mut world,
        "table inet fw {
            chain forward {
                type filter hook forward priority filter; policy accept;
                iifname != \"fw0\" drop
                udp sport 53 counter drop
                udp dport 54 counter reject
                ct state established accept
                tcp dport 80 counter accept
                tcp dport 81 counter reject with tcp reset
                tcp dport 82 counter reject with icmp type host-prohibited
                tcp dport 83 counter drop
            }
        }",
    );
    assert_eq!(reaches(&mut world, 80), Ok(()));
    // The bridge counts what passes there.
    assert_eq!(counted(&mut world), []);
    assert_eq!(reaches(&mut world, 81), Err(Error::Refused));
    assert_eq!(reaches(&mut world, 82), Err(Error::HostUnreachable));
    assert_eq!(counted(&mut world), [(3, 1), (4, 1)]);
    assert_eq!(reaches(&mut world, 83), Err(Error::WouldBlock));
    assert_eq!(counted(&mut world), [(5, 1)]);
    // What comes has been counted there, too.
    let server = world.sides[0].udp_bind(None, 53).expect("binds");
    let own = world.sides[1].udp_bind(None, 4000).expect("binds");
    let sent = world.sides[0].udp_send(server, at(1, 4000), b"x");
    sent.expect("sent");
    world.run(10_000);
    assert!(world.sides[1].udp_receive(own, &mut [0; 8]).is_err());
    assert_eq!(counted(&mut world), []);
    let asks = world.sides[1].udp_bind(None, 0).expect("binds");
    let connected = world.sides[1].udp_connect(asks, Some(at(0, 54)));
    connected.expect("connected");
    let sent = world.sides[1].udp_send(asks, at(0, 54), b"x");
    sent.expect("sent");
    world.run(10_000);
    let said = world.sides[1].udp_receive(asks, &mut [0; 8]);
    assert_eq!(said.err(), Some(Error::Refused));
    assert_eq!(counted(&mut world), [(1, 1)]);
}

/// Limits and logs act on the packets of all, marks and times are the bridge's, and where it translates it sees other names.
#[test]
fn what_only_the_bridge_can_decide_passes() {
    if !is_root() {
        return;
    }
    let chain = |hook: &str, rules: &str| {
        format!("table inet fw {{ chain c {{ type filter hook {hook} priority 0; {rules}\n }} }}")
    };
    for text in [
        chain(
            "forward",
            "tcp dport 80 limit rate over 1/hour burst 1 packets drop",
        ),
        chain("forward", "tcp dport 80 counter log prefix \"x\" drop"),
        chain("output", "meta mark 0 drop"),
        chain(
            "input",
            "meta day \"Monday\" drop; meta day != \"Monday\" drop",
        ),
        chain("forward", "ct state invalid drop; quota over 1 bytes drop"),
        chain("forward", "ct mark 0 drop"),
        // What a chain of the bridge does with a packet, it does before one of IP refuses it.
        chain("forward", "tcp dport 80 drop")
            + "\ntable bridge b { chain c { type filter hook forward priority 0; counter\n} }",
        chain("forward", "ip dscp set cs1; ip dscp != cs1 drop"),
        chain("forward", "numgen random mod 2 vmap { 0 : drop, 1 : drop }"),
        "table ip t { set s { type ipv4_addr; timeout 1h; elements = { 10.0.0.1, 10.0.0.2 }
           }
           chain c { type filter hook forward priority 0; ip daddr @s drop
           ip daddr != @s drop
        } }"
        .to_owned(),
        "table ip n { chain p { type nat hook prerouting priority dstnat; tcp dport 9 redirect
        } }
        table ip t { chain c { type filter hook forward priority 0; drop
        } }"
        .to_owned(),
    ] {
        let mut world = World::new(Conditions::default());
        let listens = world.sides[0].tcp_listen(None, 80, 16, TcpOptions::default());
        listens.expect("listens");
        rules_beside(&mut world, &text);
        assert_eq!(reaches(&mut world, 80), Ok(()), "{text}");
        assert_eq!(counted(&mut world), [], "{text}");
    }
}

/// The bridge has seen pieces, to which the names of ports are not known; so what it lets pass comes in whole.
#[test]
fn a_datagram_that_came_in_pieces_passes() {
    if !is_root() {
        return;
    }
    let mut world = World::new(Conditions::default());
    rules_beside(
        &mut world,
        "table inet fw { chain c { type filter hook forward priority 0; udp dport 4000 drop
        } }",
    );
    let far = world.sides[0].udp_bind(None, 53).expect("binds");
    let own = world.sides[1].udp_bind(None, 4000).expect("binds");
    let mut comes = |bytes: usize| {
        let sent = world.sides[0].udp_send(far, at(1, 4000), &vec![7; bytes]);
        sent.expect("sent");
        world.run(10_000);
        let got = world.sides[1].udp_receive(own, &mut vec![0; bytes]);
        got.map(|got| got.0).ok()
    };
    assert_eq!([100, 4000].map(&mut comes), [None, Some(4000)]);
}

/// Rules come while a connection lives that they would let begin no more.
#[test]
fn only_what_has_been_seen_to_begin_has_a_state() {
    if !is_root() {
        return;
    }
    const RULES: &str =
        "table inet fw { chain c { type filter hook forward priority 0; policy drop;
        ct state established counter accept
        tcp dport 80 ct state new accept
    } }";
    let mut world = World::new(Conditions::default());
    for port in [80, 81] {
        let listens = world.sides[0].tcp_listen(None, port, 16, TcpOptions::default());
        listens.expect("listens");
    }
    let connect = |world: &mut World, port| {
        let now = world.now;
        let id = world.sides[1]
            .tcp_connect(now, at(0, port), None, TcpOptions::default())
            .expect("begins");
        world.run(100_000);
        id
    };
    let sends = |world: &mut World, id| {
        let before = world.sides[0].counters().rx_frames;
        world.sides[1].tcp_send(id, b"abc").expect("sent");
        world.run(100_000);
        world.sides[0].counters().rx_frames > before
    };
    // Of this one the bridge may know more.
    let older = connect(&mut world, 81);
    rules_beside(&mut world, RULES);
    assert!(sends(&mut world, older));
    let newer = connect(&mut world, 80);
    assert!(sends(&mut world, newer));
    // The same rules again, and others: what is followed goes on.
    rules_beside(&mut world, RULES);
    assert!(sends(&mut world, newer));
    rules_beside(&mut world, &RULES.replace("established", "related"));
    assert!(!sends(&mut world, newer));
    assert!(sends(&mut world, older));
    rules_beside(
        &mut world,
        "table inet fw { chain c { type filter hook forward priority 0; tcp dport 81 reject with tcp reset
        } }",
    );
    sends(&mut world, older);
    let said = world.sides[1].tcp_receive(older, &mut [0; 8]);
    assert_eq!(said, Err(Error::Reset));
}
