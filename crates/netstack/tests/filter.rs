//! Rules between two stacks: what they let through, refuse and count, and that they can be
//! replaced under a connection.
#![cfg(feature = "filter")]

mod common;

use common::{Conditions, World, at};
use fordway_netstack::fordway_filter::rules::read;
use fordway_netstack::{Error, TcpOptions};
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
