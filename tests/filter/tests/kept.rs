//! Rules and packets about which the filter and the kernel did not agree once, as small as
//! they could be made; and what stands beside them in the kernel's table of TCP states.

use fordway_test_filter::compare::written;
use fordway_test_filter::generate::Side;
use fordway_test_filter::packets::{Body, Ip};

const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
const FIN: u8 = 1;

/// Everything that rules see of a connection's state, before and behind the routing.
const STATES: &str = "
table ip t {
  chain before { type filter hook prerouting priority 0; policy accept;
    ct state new counter
    ct state established counter
    ct state invalid counter
    ct status seen-reply counter
    ct status assured counter
    ct direction reply counter
    ct original packets 1 counter
    ct original packets 2 counter
    ct reply packets 1 counter
    ct reply packets 2 counter
    ct reply packets 3 counter
  }
  chain behind { type filter hook postrouting priority 0; policy accept;
    ct state new counter
    ct state != new counter
    ct status confirmed counter
    ct status dying counter
  }
}
";

/// The same names may stand for another connection only if an address shows it.
const MOVED: &str = "
table ip t {
  chain d { type nat hook prerouting priority -100; policy accept;
    counter
    ip daddr 10.201.0.1 dnat to 10.201.1.1
  }
}
";

/// Rules and packets of which the two sides make the same.
fn same(what: &str, rules: &str, packets: &[(Side, Ip, Vec<u16>)]) {
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !is_root {
        eprintln!("{what}: not root: nf_tables was not asked");
        return;
    }
    let difference = written(rules, packets).unwrap_or_else(|e| panic!("{what}: {e:#}"));
    assert_eq!(difference, None, "{what}\n{rules}");
}

/// Segments of one connection by their flags; those from the right answer.
fn agree(what: &str, segments: &[(Side, u8)]) {
    let packet = |(number, (side, flags)): (usize, &(Side, u8))| {
        let (left, right) = (("10.1.0.1", 40_000), ("10.201.0.1", 80));
        let (from, to) = match side {
            Side::Left => (left, right),
            Side::Right => (right, left),
        };
        let mut ip = Ip::tcp(from.0, to.0, from.1, to.1, *flags);
        ip.id = number as u16 + 1;
        (*side, ip, Vec::new())
    };
    let packets: Vec<_> = segments.iter().enumerate().map(packet).collect();
    for rules in [STATES, MOVED] {
        same(what, rules, &packets);
    }
}

use Side::{Left, Right};

#[test]
fn a_reset_before_an_answer_ends_the_connection_at_once() {
    agree(
        "by the end that asked",
        &[(Left, SYN), (Left, RST), (Left, RST)],
    );
    let refused = [(Right, SYN), (Left, RST), (Left, SYN), (Left, SYN)];
    agree("by the end that was asked", &refused);
    let late = [(Right, ACK | PSH), (Left, RST), (Left, ACK | PSH)];
    agree("in the middle", &late);
}

#[test]
fn a_segment_that_is_ignored_proves_nothing() {
    let picked_up = [(Left, ACK), (Right, SYN | ACK), (Left, ACK), (Right, ACK)];
    agree("SYN and ACK of a connection that was picked up", &picked_up);
    let again = [
        (Left, SYN),
        (Left, SYN),
        (Right, SYN | ACK),
        (Right, SYN | ACK),
    ];
    agree("segments sent twice", &again);
}

#[test]
fn an_answer_to_a_connection_that_was_picked_up_assures_it_the_second_time() {
    agree(
        "both ways",
        &[(Left, ACK), (Right, ACK), (Right, ACK), (Left, ACK)],
    );
}

#[test]
fn names_of_a_reset_connection_begin_anew_only_for_the_end_that_reset_it() {
    let open = [(Left, SYN), (Right, SYN | ACK), (Left, ACK)];
    for by in [Left, Right] {
        let then = [(by, RST), (Left, SYN), (Right, SYN | ACK), (Left, SYN)];
        agree("reset and begun again", &[&open[..], &then].concat());
    }
}

#[test]
fn both_ends_may_open() {
    let crossing = [(Left, SYN), (Right, SYN), (Right, SYN | ACK), (Right, ACK)];
    agree("answered by one", &crossing);
    agree(
        "then closed",
        &[&crossing[..], &[(Left, FIN | ACK), (Left, SYN)]].concat(),
    );
    agree(
        "answered by both",
        &[(Left, SYN), (Right, SYN), (Left, SYN | ACK), (Right, ACK)],
    );
}

#[test]
fn an_ack_that_asks_about_a_syn_is_not_the_last_one() {
    let closed = [
        (Left, ACK),
        (Right, ACK),
        (Left, FIN | ACK),
        (Right, FIN | ACK),
    ];
    let asked = [
        (Left, SYN),
        (Right, ACK),
        (Left, SYN),
        (Right, ACK),
        (Left, SYN),
    ];
    agree("a challenge", &[&closed[..], &asked].concat());
    let over = [(Left, ACK), (Left, SYN), (Right, SYN | ACK)];
    agree("begun again", &[&closed[..], &over].concat());
    agree(
        "begun by the other end",
        &[&closed[..], &[(Left, ACK), (Right, SYN)]].concat(),
    );
}

#[test]
fn a_rule_that_writes_leaves_no_checksum_of_zero() {
    let rules = "table ip t {
      chain c { type filter hook postrouting priority 0; policy accept;
        ip dscp set 10
      }
    }
    ";
    // With the number 697 the header sums up to zero.
    let packet = |id| {
        let options = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        let mut ip = Ip::tcp("10.20.99.1", "10.201.0.3", 22, 22, SYN | ACK);
        if let Body::Tcp { options: place, .. } = &mut ip.body {
            *place = options;
        }
        (ip.id, ip.ttl, ip.tos, ip.payload) = (id, 65, 3, 0);
        (Left, ip, Vec::new())
    };
    let packets: Vec<_> = (690..700).map(packet).collect();
    same("a header's sum", rules, &packets);
}

#[test]
fn a_packet_adds_what_packets_deleted() {
    let rules = "table ip t {
      set s { type ipv4_addr; flags dynamic; size 65535; }
      chain c { type filter hook prerouting priority 0; policy accept;
        delete @s { ip daddr } update @s { ip daddr } counter
      }
    }
    ";
    // From the seventeenth on the kernel refuses until its collector has come (docs/filter.md).
    let packet = |id| {
        let mut ip = Ip::tcp("10.1.0.1", "10.201.0.1", 40_000, 80, SYN);
        ip.id = id;
        (Left, ip, Vec::new())
    };
    let packets: Vec<_> = (1..=15).map(packet).collect();
    same("a set that packets empty", rules, &packets);
    let many: Vec<_> = (1..=100).map(packet).collect();
    println!("a hundred packets: {:?}", written(rules, &many));
}

#[test]
fn statements_behind_continue_are_carried_out() {
    let rules = "table ip t {
      chain c { type filter hook prerouting priority 0; policy accept;
        ip saddr 10.1.0.1 continue drop
      }
    }
    ";
    let ip = Ip::tcp("10.1.0.1", "10.201.0.1", 40_000, 80, SYN);
    same("continue", rules, &[(Left, ip, Vec::new())]);
}

#[test]
fn a_rule_that_is_met_again_looks_up_anew() {
    let rules = "table ip t {
      chain up { meta mark set meta mark map { 0 : 1, 1 : 2 }
      }
      chain c { type filter hook prerouting priority 0; policy accept;
        jump up
        jump up
        meta mark 2 drop
      }
    }
    ";
    let ip = Ip::tcp("10.1.0.1", "10.201.0.1", 40_000, 80, SYN);
    same(
        "a map that is asked twice",
        rules,
        &[(Left, ip, Vec::new())],
    );
}

#[test]
fn what_an_element_counts_of_connections_is_tracked() {
    let rules = "table ip t {
      set s { type ipv4_addr; flags dynamic; size 65535; }
      chain c { type filter hook prerouting priority 0; policy accept;
        tcp dport 80 add @s { ip saddr ct count over 2 } drop
      }
    }
    ";
    let packet = |id: u16| {
        let mut ip = Ip::tcp("10.1.0.1", "10.201.0.1", 40_000 + id, 80, SYN);
        ip.id = id;
        (Left, ip, Vec::new())
    };
    let packets: Vec<_> = (1..=6).map(packet).collect();
    same("connections by element", rules, &packets);
}
