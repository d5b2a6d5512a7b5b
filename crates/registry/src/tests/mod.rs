//! Tests by example (of rejoining in `rejoin` and `alone`, of the gate in `policy`, of UDP in `datagrams`, of guests in `guests`); `random` holds what must be true after any sequence of events.

mod alone;
mod cut_through;
mod datagrams;
mod guests;
mod policy;
mod random;
mod rejoin;
mod translated;

use crate::*;
use fordway_abi::control::{PathPolicy, Protocol, RejoinChannel, RejoinLink, Status, status};
use fordway_abi::reason::Reason;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const HOST: u64 = 3;
/// A namespace that is no domain's.
const PRIVATE: u64 = 9;
pub(crate) const DB: u64 = 100;
pub(crate) const WEB: u64 = 101;
pub(crate) const STRANGER: u64 = 102;
pub(crate) const DB_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
pub(crate) const WEB_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 4);

/// A registry with the domains host, db and web.
pub(crate) fn registry() -> Registry {
    let network = Network::new(DB_IP, 24).expect("network");
    let mut count = 0u128;
    let keys = move || {
        count += 1;
        count.to_ne_bytes()
    };
    let mut registry = Registry::new(network, 7, Box::new(keys));
    registry.set_host("host", HOST, None);
    for (name, ip, netns_cookie) in [("db", DB_IP, DB), ("web", WEB_IP, WEB)] {
        let assigned = Assigned {
            ip,
            ip6: Some(six(ip)),
            cid: None,
            netns_cookie,
        };
        registry.add_domain(name, assigned).expect("domain");
    }
    registry
}

/// The IPv6 address of who has this one.
fn six(ip: Ipv4Addr) -> Ipv6Addr {
    let network = Network6::new(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0), 64);
    network.expect("network").address_of(ip)
}

fn facts(cookie: u64, netns_cookie: u64, local: &str, remote: &str) -> SocketFacts {
    SocketFacts {
        protocol: Protocol::Tcp,
        cookie,
        netns_cookie,
        local: local.parse().expect("address"),
        remote: remote.parse().expect("address"),
        shown: Shown::default(),
    }
}

/// web's and db's end of one connection.
fn ends(number: u64) -> (SocketFacts, SocketFacts) {
    let web = format!("10.77.0.4:{}", 40_000 + number);
    let db = "10.77.0.3:6379";
    (
        facts(number * 2 + 1_000, WEB, &web, db),
        facts(number * 2 + 1_001, DB, db, &web),
    )
}

/// Nothing is translated.
pub(crate) fn none(_: &Question) -> Option<FarEnd> {
    None
}

fn pairs(actions: &[Action]) -> Vec<(ProcessId, control::Pair)> {
    let pair = |action: &Action| match action {
        Action::Send {
            to,
            message: Outgoing::Pair(pair),
        } => Some((*to, *pair)),
        _ => None,
    };
    actions.iter().filter_map(pair).collect()
}

fn links(actions: &[Action]) -> Vec<(ProcessId, control::Link)> {
    let link = |action: &Action| match action {
        Action::Send {
            to,
            message: Outgoing::Link(link),
        } => Some((*to, *link)),
        _ => None,
    };
    actions.iter().filter_map(link).collect()
}

fn rejects(actions: &[Action]) -> Vec<(ProcessId, Reason, u32)> {
    let reject = |action: &Action| match action {
        Action::Send {
            to,
            message: Outgoing::Reject(reject),
        } => Some((*to, Reason::from_u32(reject.reason)?, reject.pending)),
        _ => None,
    };
    actions.iter().filter_map(reject).collect()
}

fn downgrades(actions: &[Action]) -> Vec<(ProcessId, u64, Reason)> {
    let downgrade = |action: &Action| match action {
        Action::Send {
            to,
            message: Outgoing::Downgrade(d),
        } => Some((*to, d.channel_id, Reason::from_u32(d.reason)?)),
        _ => None,
    };
    actions.iter().filter_map(downgrade).collect()
}

fn report(conn_id: u64, channel_id: u64, status: u32) -> Status {
    Status {
        conn_id,
        channel_id,
        status,
        reason: Reason::Asked as u32,
        ring_bytes_tx: 10,
        ring_bytes_rx: 20,
    }
}

/// Two processes with a link that is ready, and the channel of connection 0.
struct Paired {
    registry: Registry,
    web: ProcessId,
    db: ProcessId,
    pair: control::Pair,
}

fn paired() -> Paired {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (db, _) = registry.add_process(DB, PathPolicy::Auto);
    let (a, b) = ends(0);
    assert_eq!(registry.offer(web, 1, a), []);
    let actions = registry.offer(db, 2, b);
    let made = links(&actions);
    assert_eq!((made.len(), pairs(&actions).len()), (2, 0));
    assert_eq!(made[0].1.link_key, made[1].1.link_key);
    assert_ne!(made[0].1.link_id, made[1].1.link_id);
    let (wanted, actions) = registry
        .region(made[0].0, made[0].1.link_id)
        .expect("region");
    assert_eq!((wanted, actions), (true, vec![]));
    let (_, actions) = registry
        .region(made[1].0, made[1].1.link_id)
        .expect("region");
    assert!(matches!(
        actions[..2],
        [Action::Peer { .. }, Action::Peer { .. }]
    ));
    let pairs = pairs(&actions);
    assert_eq!(pairs.len(), 2);
    let (x, y) = (pairs[0].1, pairs[1].1);
    assert_eq!(
        (x.channel_id, x.slot, x.generation),
        (y.channel_id, y.slot, y.generation)
    );
    Paired {
        registry,
        web,
        db,
        pair: x,
    }
}

#[test]
fn two_domains_get_a_channel_and_the_link_serves_again() {
    let mut p = paired();
    assert_eq!((p.pair.slot, p.pair.generation), (0, 1));
    let (a, b) = ends(1);
    p.registry.offer(p.web, 3, a);
    let actions = p.registry.offer(p.db, 4, b);
    assert_eq!((links(&actions).len(), pairs(&actions).len()), (0, 2));
    assert_eq!(pairs(&actions)[0].1.slot, 1);
}

#[test]
fn a_process_learns_its_domain() {
    let mut registry = registry();
    assert_eq!(registry.add_process(DB, PathPolicy::Auto).1, 1);
    assert_eq!(registry.add_process(HOST, PathPolicy::Auto).1, HOST_DOMAIN);
    assert_eq!(
        registry.add_process(STRANGER, PathPolicy::Auto).1,
        UNKNOWN_DOMAIN
    );
    assert_eq!(registry.name_of_netns(STRANGER), "netns-102");
}

#[test]
fn both_ends_in_one_process_get_two_sides() {
    let mut registry = registry();
    let (own, _) = registry.add_process(HOST, PathPolicy::Auto);
    registry.offer(own, 1, facts(1, HOST, "127.0.0.1:1", "127.0.0.1:2"));
    let actions = registry.offer(own, 2, facts(2, HOST, "127.0.0.1:2", "127.0.0.1:1"));
    let made = links(&actions);
    assert_eq!((made.len(), made[0].0, made[1].0), (2, own, own));
    registry.region(own, made[1].1.link_id).expect("region");
    let (_, actions) = registry.region(own, made[0].1.link_id).expect("region");
    let pairs = pairs(&actions);
    assert_eq!(pairs.len(), 2);
    assert_ne!(pairs[0].1.conn_id, pairs[1].1.conn_id);
    assert_ne!(pairs[0].1.link_id, pairs[1].1.link_id);
    let peers: Vec<_> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Peer {
                link_id,
                peer_link_id,
                ..
            } => Some((*link_id, *peer_link_id)),
            _ => None,
        })
        .collect();
    assert_eq!(peers[0], (peers[1].1, peers[1].0));
    assert!(
        registry
            .process_gone(own)
            .iter()
            .all(|action| matches!(action, Action::LinkClosed { .. }))
    );
    assert_eq!(registry.channel_count(), 0);
}

#[test]
fn a_mirrored_tuple_in_a_private_namespace_gets_nothing() {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (db, _) = registry.add_process(DB, PathPolicy::Auto);
    let (thief, _) = registry.add_process(STRANGER, PathPolicy::Auto);
    let (a, b) = ends(0);
    registry.offer(web, 1, a);
    let forged = SocketFacts {
        cookie: 9,
        netns_cookie: STRANGER,
        ..b
    };
    let told = rejects(&registry.offer(thief, 1, forged));
    // By his own words: db's address is not his.
    assert_eq!(told, [(thief, Reason::Unassigned, 1)]);
    // The true end comes later and is not disturbed.
    let actions = registry.offer(db, 1, b);
    let sides: Vec<ProcessId> = links(&actions).iter().map(|(to, _)| *to).collect();
    assert_eq!(sides, [db, web]);
}

#[test]
fn a_domain_cannot_speak_for_another_ones_address() {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (db, _) = registry.add_process(DB, PathPolicy::Auto);
    // web forges a socket with db's name against its own.
    registry.offer(db, 1, facts(1, DB, "10.77.0.3:6379", "10.77.0.99:5"));
    let forged = facts(2, WEB, "10.77.0.99:5", "10.77.0.3:6379");
    assert_eq!(links(&registry.offer(web, 1, forged)), []);
}

#[test]
fn loopback_pairs_within_its_namespace_only() {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (db, _) = registry.add_process(DB, PathPolicy::Auto);
    registry.offer(web, 1, facts(1, WEB, "127.0.0.1:1", "127.0.0.1:2"));
    let actions = registry.offer(db, 1, facts(2, DB, "127.0.0.1:2", "127.0.0.1:1"));
    assert_eq!(actions, []);
    let actions = registry.offer(db, 2, facts(3, DB, "127.0.0.1:1", "127.0.0.1:2"));
    assert_eq!(links(&actions).len(), 2);
}

#[test]
fn the_sockets_namespace_counts_not_the_processs() {
    let mut registry = registry();
    // A process of the host holds a socket that was made in db.
    let (host, _) = registry.add_process(HOST, PathPolicy::Auto);
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (a, b) = ends(0);
    registry.offer(web, 1, a);
    assert_eq!(links(&registry.offer(host, 1, b)).len(), 2);
}

#[test]
fn a_socket_has_one_holder() {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (child, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (a, _) = ends(0);
    registry.offer(web, 1, a);
    assert_eq!(
        rejects(&registry.offer(child, 1, a)),
        [(child, Reason::Shared, 0)]
    );
    assert_eq!(
        registry.offer(web, 1, a),
        [],
        "offering again changes nothing"
    );
    registry.process_gone(web);
    assert_eq!(registry.offer(child, 1, a), []);
}

/// It has passed the socket on, and another process offers it.
#[test]
fn a_holder_that_has_left_the_socket_makes_way() {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (heir, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (a, _) = ends(0);
    registry.offer(web, 1, a);
    let mut witness = |process, shown: &SocketFacts| {
        assert_eq!((process, shown.cookie), (web, a.cookie));
        Err(Reason::Unproven)
    };
    let actions = registry.offer_through(heir, 1, a, &mut witness, &mut |_, _, _| None, &mut none);
    assert_eq!(rejects(&actions), [(web, Reason::Unproven, 0)]);
    let holder = registry.connection(a.cookie).map(|view| view.process);
    assert_eq!(holder, Some(heir));
}

#[test]
fn self_connected_and_link_local_sockets_are_turned_down() {
    let mut registry = registry();
    let (own, _) = registry.add_process(HOST, PathPolicy::Auto);
    let to_itself = facts(1, HOST, "127.0.0.1:1", "127.0.0.1:1");
    assert_eq!(
        rejects(&registry.offer(own, 1, to_itself)),
        [(own, Reason::Unsupported, 0)]
    );
    let link_local = facts(2, HOST, "[fe80::1]:1", "[fe80::2]:2");
    assert_eq!(
        rejects(&registry.offer(own, 2, link_local)),
        [(own, Reason::NoPeer, 0)]
    );
}

#[test]
fn fast_or_nothing_is_told_at_once_where_nothing_can_come() {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Fast);
    let outside = facts(1, WEB, "10.77.0.4:1", "192.0.2.1:443");
    assert_eq!(
        rejects(&registry.offer(web, 1, outside)),
        [(web, Reason::NoPeer, 0)]
    );
    let (a, _) = ends(0);
    assert_eq!(registry.offer(web, 2, a), [], "db may offer later");
    let local = facts(2, WEB, "127.0.0.1:1", "127.0.0.1:2");
    assert_eq!(registry.offer(web, 3, local), []);
}

#[test]
fn fast_or_nothing_waits_for_a_while_only() {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Fast);
    let (db, _) = registry.add_process(DB, PathPolicy::Auto);
    let (a, b) = ends(0);
    let (early, late) = ends(1);
    for (conn_id, facts) in [(1, a), (2, early)] {
        registry.offer(web, conn_id, facts);
        registry.insists(web, conn_id, 5);
    }
    registry.offer(db, 3, late);
    registry.insists(db, 3, 5);
    assert_eq!(registry.channel_count(), 1);
    let due_ns = 5 + INSIST_NS_MAX;
    assert_eq!(registry.next_ns(), Some(due_ns));
    assert_eq!(registry.on_time(due_ns - 1), []);
    let refused = registry.on_time(due_ns);
    assert_eq!(rejects(&refused), [(web, Reason::NoPeer, 0)]);
    assert_eq!(registry.next_ns(), None);
    // Who does not insist goes on waiting.
    assert_eq!(registry.offer(db, 4, b), []);
    registry.insists(db, 4, 5);
    assert_eq!(registry.next_ns(), None);
}

/// Anybody can build mirrored names in a namespace of his own.
#[test]
fn a_strangers_mirror_image_turns_nobody_down() {
    let mut registry = registry();
    let (fast, _) = registry.add_process(HOST, PathPolicy::Fast);
    let (stranger, _) = registry.add_process(PRIVATE, PathPolicy::Auto);
    let (peer, _) = registry.add_process(HOST, PathPolicy::Auto);
    for (before, near, far) in [
        (false, "192.0.2.1:1", "192.0.2.1:2"),
        (true, "192.0.2.1:3", "192.0.2.1:4"),
    ] {
        let cookie = |n| n + 10 * u64::from(before);
        let mut actions = Vec::new();
        let mut offer = |process, number, netns, local, remote| {
            let offered = facts(cookie(number), netns, local, remote);
            actions.extend(registry.offer(process, cookie(number), offered));
        };
        if before {
            offer(stranger, 2, PRIVATE, far, near);
        }
        offer(fast, 1, HOST, near, far);
        if !before {
            offer(stranger, 2, PRIVATE, far, near);
        }
        assert_eq!(rejects(&actions), []);
        let made = registry.offer(peer, cookie(3), facts(cookie(3), HOST, far, near));
        assert_eq!(rejects(&made), []);
        assert_eq!(registry.channel_count(), 1 + usize::from(before));
    }
}

/// Who builds the names of others' connections in a namespace of his own learns nothing of them,
/// and they hear nothing of him.
#[test]
fn an_answer_does_not_show_whether_a_connection_exists() {
    let (web, db) = ends(0);
    let host = facts(1, HOST, "192.0.2.1:1", "192.0.2.1:2");
    let local = facts(1, HOST, "127.0.0.1:1", "127.0.0.1:2");
    for (netns, existing) in [(HOST, host), (HOST, local), (WEB, web), (DB, db)] {
        let mirror = |netns_cookie| SocketFacts {
            protocol: Protocol::Tcp,
            cookie: 99,
            netns_cookie,
            local: existing.remote,
            remote: existing.local,
            shown: Shown::default(),
        };
        for (place, policy) in [PRIVATE, STRANGER, WEB, DB]
            .into_iter()
            .flat_map(|place| [PathPolicy::Auto, PathPolicy::Fast].map(|policy| (place, policy)))
        {
            // Not the other end itself.
            if place == netns || (netns, place) == (WEB, DB) || (netns, place) == (DB, WEB) {
                continue;
            }
            let told = |exists: bool| {
                let mut registry = registry();
                let (owner, _) = registry.add_process(netns, PathPolicy::Auto);
                let (asker, _) = registry.add_process(place, policy);
                if exists {
                    assert_eq!(registry.offer(owner, 1, existing), []);
                }
                let actions = registry.offer(asker, 1, mirror(place));
                let all = rejects(&actions);
                assert_eq!(all.len(), actions.len());
                let own = all.into_iter().filter(|told| told.0 == asker).collect();
                assert_eq!(actions.len(), Vec::len(&own), "the owner was told");
                own
            };
            assert_eq!(told(true), told(false), "{netns} {existing:?} {place}");
        }
    }
}

#[test]
fn offers_are_bounded() {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let own = |n: u64| {
        let port = 1 + (n % 60_000) as u16;
        let far = SocketAddr::from(([10, 1, (n / 60_000) as u8, 1], 80));
        SocketFacts {
            protocol: Protocol::Tcp,
            cookie: n + 1,
            netns_cookie: WEB,
            local: SocketAddr::from((WEB_IP, port)),
            remote: far,
            shown: Shown::default(),
        }
    };
    for n in 0..OFFERS_MAX as u64 {
        assert_eq!(registry.offer(web, n, own(n)), []);
    }
    let n = OFFERS_MAX as u64;
    assert_eq!(
        rejects(&registry.offer(web, n, own(n))),
        [(web, Reason::NoMemory, 0)]
    );
}

#[test]
fn slots_come_back_when_both_ends_are_done() {
    let mut p = paired();
    let channel = p.pair.channel_id;
    let (a, b) = ends(1);
    p.registry
        .status(p.web, report(1, channel, status::CLOSED))
        .expect("status");
    p.registry.offer(p.web, 3, a);
    let second = pairs(&p.registry.offer(p.db, 4, b))[0].1;
    assert_eq!(second.slot, 1, "db still uses slot 0");
    p.registry
        .status(p.db, report(2, channel, status::CLOSED))
        .expect("status");
    let (a, b) = ends(2);
    p.registry.offer(p.web, 5, a);
    let third = pairs(&p.registry.offer(p.db, 6, b))[0].1;
    assert_eq!((third.slot, third.generation), (0, 2));
}

#[test]
fn a_downgraded_connection_may_come_again() {
    let mut p = paired();
    let channel = p.pair.channel_id;
    let asked = p
        .registry
        .downgrade(Some(channel), Reason::Asked)
        .expect("there");
    assert_eq!(
        downgrades(&asked),
        [
            (p.db, channel, Reason::Asked),
            (p.web, channel, Reason::Asked)
        ]
    );
    assert_eq!(p.registry.downgrade(Some(1), Reason::Asked), None);
    let (a, b) = ends(0);
    p.registry
        .status(p.web, report(1, channel, status::KERNEL))
        .expect("status");
    let view = p.registry.connection(a.cookie).expect("known");
    assert!(matches!(
        view.path,
        Path::Kernel { reason: Reason::Asked, channel_id: Some(id), ring_bytes_tx: 10, .. } if id == channel
    ));
    assert_eq!(p.registry.offer(p.web, 1, a), [], "waits for db");
    p.registry
        .status(p.db, report(2, channel, status::KERNEL))
        .expect("status");
    let again = pairs(&p.registry.offer(p.db, 2, b))[0].1;
    assert_ne!(again.channel_id, channel);
    // A late report of the first channel does not touch the second.
    p.registry
        .status(p.db, report(2, channel, status::KERNEL))
        .expect("status");
    assert_eq!(p.registry.channel_count(), 1);
}

#[test]
fn giving_up_before_the_pair_arrives_frees_the_other_end() {
    let mut p = paired();
    let withdrawn = report(1, 0, status::WITHDRAWN);
    let actions = p.registry.status(p.web, withdrawn).expect("status");
    assert_eq!(
        downgrades(&actions),
        [(p.db, p.pair.channel_id, Reason::Asked)]
    );
}

#[test]
fn death_takes_links_and_tells_peers() {
    let mut p = paired();
    let actions = p.registry.process_gone(p.web);
    let gone: Vec<_> = actions
        .iter()
        .filter(|action| matches!(action, Action::Send { to, message: Outgoing::PeerGone(_) } if *to == p.db))
        .collect();
    assert_eq!((gone.len(), actions.len()), (1, 1));
    let actions = p
        .registry
        .status(p.db, report(2, p.pair.channel_id, status::CLOSED))
        .expect("status");
    assert!(
        matches!(
            actions[..],
            [Action::LinkClosed { .. }, Action::LinkClosed { .. }]
        ),
        "{actions:?}"
    );
}

#[test]
fn death_before_the_regions_turns_the_other_end_down() {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (db, _) = registry.add_process(DB, PathPolicy::Auto);
    let (a, b) = ends(0);
    registry.offer(web, 1, a);
    let link = links(&registry.offer(db, 2, b))[0].1;
    let actions = registry.process_gone(web);
    assert_eq!(rejects(&actions), [(db, Reason::NoPeer, 0)]);
    // A server that lives on would have more and more of them.
    assert!(registry.connection(b.cookie).is_none());
    // db's region is on its way already; another one would not be.
    assert_eq!(registry.region(db, link.link_id), Ok((false, vec![])));
    assert_eq!(registry.region(db, link.link_id), Err(Violation::Region));
}

#[test]
fn doors_go_to_every_peer_and_are_acknowledged() {
    let mut p = paired();
    let actions = p.registry.door(p.web, 5).expect("door");
    assert!(matches!(actions[..], [
        Action::Doorbell { sleeper, knocker, door: 5, .. },
        Action::Send { to: web, message: Outgoing::DoorAck(_) },
    ] if knocker == p.db && sleeper == p.web && web == p.web));
    // Again: it may ask as often as it likes, and no peer hears of it.
    let actions = p.registry.door(p.web, 5).expect("door");
    assert!(matches!(actions[..], [Action::Send { to: web, .. }] if web == p.web));
    assert_eq!(p.registry.door(p.web, 0), Err(Violation::Door(0)));
    assert_eq!(p.registry.door(p.web, 64), Err(Violation::Door(64)));
}

#[test]
fn removing_a_domain_downgrades_what_rested_on_it() {
    let mut p = paired();
    let actions = p.registry.remove_domain(1);
    assert_eq!(downgrades(&actions).len(), 2);
    let (a, b) = ends(1);
    p.registry.offer(p.web, 3, a);
    assert_eq!(pairs(&p.registry.offer(p.db, 4, b)), []);
}

#[test]
fn names_and_addresses_of_domains_are_unique() {
    let mut registry = registry();
    let free = Assigned {
        ip: Ipv4Addr::new(10, 77, 0, 9),
        ip6: None,
        cid: None,
        netns_cookie: 500,
    };
    let taken_ip = Assigned { ip: DB_IP, ..free };
    let taken_netns = Assigned {
        netns_cookie: DB,
        ..free
    };
    assert!(matches!(
        registry.add_domain("db", free),
        Err(DomainError::NameTaken(_))
    ));
    assert!(matches!(
        registry.add_domain("x", taken_ip),
        Err(DomainError::AddressTaken(..))
    ));
    assert!(matches!(
        registry.add_domain("x", taken_netns),
        Err(DomainError::NamespaceTaken(_))
    ));
    for name in [
        "",
        "-a",
        "a-",
        "a b",
        "a/b",
        "..",
        "Web",
        "10",
        "0x7f",
        "0xdeadbeef",
        &"a".repeat(64),
    ] {
        assert!(
            matches!(registry.add_domain(name, free), Err(DomainError::Name(_))),
            "{name}"
        );
    }
    for name in ["localhost", "ip6-loopback", "netns-5"] {
        let refused = registry.add_domain(name, free);
        assert_eq!(refused, Err(DomainError::NameReserved(name.to_owned())));
    }
    for name in ["beef", "1a", "0x7g", "x"] {
        assert!(registry.check_domain(name, None, None).is_ok(), "{name}");
    }
    assert_eq!(
        registry.check_domain("x", None, None),
        Ok(Ipv4Addr::new(10, 77, 0, 2))
    );
    let outside = Some(Ipv4Addr::new(10, 78, 0, 5));
    assert!(matches!(
        registry.check_domain("x", outside, None),
        Err(DomainError::Address(..))
    ));
    let uplink = Some(Ipv4Addr::new(10, 77, 0, 1));
    assert!(registry.check_domain("x", uplink, None).is_err());
    let removed = registry
        .domain_by_name("web")
        .map(|domain| domain.id)
        .expect("web");
    registry.remove_domain(removed);
    let again = registry.add_domain("web", free).expect("domain");
    assert_ne!(again.id, removed);
}

#[test]
fn an_ipv6_address_has_one_owner_too() {
    let mut registry = registry();
    let [db, web] = [DB_IP, WEB_IP].map(six);
    assert_eq!(db.to_string(), "fd00::a4d:3");
    let [db_name, web_name] = [format!("[{db}]:6379"), format!("[{web}]:40000")];
    let web_end = facts(1, WEB, &web_name, &db_name);
    let db_end = facts(2, DB, &db_name, &web_name);
    assert!(registry.rule_holds(&web_end, &db_end));
    // The same names in a namespace that has not the address, alone or at both ends.
    let false_end = facts(3, STRANGER, &db_name, &web_name);
    let false_other = facts(4, STRANGER, &web_name, &db_name);
    assert!(!registry.rule_holds(&web_end, &false_end));
    assert!(!registry.rule_holds(&false_other, &false_end));
    assert!(!registry.rule_holds(
        &facts(5, WEB, &db_name, &web_name),
        &facts(6, WEB, &web_name, &db_name)
    ));

    let taken = Assigned {
        ip: Ipv4Addr::new(192, 168, 0, 2),
        ip6: Some(db),
        cid: None,
        netns_cookie: 500,
    };
    assert!(matches!(
        registry.add_domain("x", taken),
        Err(DomainError::AddressTaken(IpAddr::V6(ip), name)) if ip == db && name == "db"
    ));
    for special in ["::1", "::", "ff02::1", "fe80::1", "::ffff:10.77.0.9"] {
        let ip6 = Some(special.parse().expect("an address"));
        let refused = registry.add_domain("x", Assigned { ip6, ..taken });
        assert!(matches!(refused, Err(DomainError::Special(_))), "{special}");
    }
    // An address whose other one is somebody's is not leased.
    let ip6 = Some(six(Ipv4Addr::new(10, 77, 0, 2)));
    registry
        .add_domain("x", Assigned { ip6, ..taken })
        .expect("domain");
    let network = Network6::new(db, 64);
    assert_eq!(
        registry.check_domain("y", None, network),
        Ok(Ipv4Addr::new(10, 77, 0, 5))
    );
    let removed = registry.domain_by_name("db").map(|domain| domain.id);
    registry.remove_domain(removed.expect("db"));
    assert!(!registry.rule_holds(&web_end, &db_end));

    for (base, prefix) in [
        ("fe80::", 64),
        ("ff02::", 64),
        ("::ffff:0:0", 96),
        ("fd00::", 97),
        ("fd00::", 15),
        ("64:ff9b::", 96),
    ] {
        assert_eq!(
            Network6::new(base.parse().expect("an address"), prefix),
            None,
            "{base}"
        );
    }
    let network = Network6::new("2001:db8:1:2:3::9".parse().expect("an address"), 64);
    assert_eq!(
        network.map(|network| network.to_string()).as_deref(),
        Some("2001:db8:1:2::/64")
    );
}

#[test]
fn counts_what_could_use_rings_and_what_did() {
    let mut p = paired();
    let end = |p: &Paired, process, conn_id| {
        let channel = p.registry.channel_of(process, conn_id);
        channel.expect("it has a channel")
    };
    let usage = |calls, carried| Usage { carried, calls };
    let counts = |paired, eligible, carried| Counts {
        paired,
        eligible,
        carried,
    };
    let (web, db) = (end(&p, p.web, 1), end(&p, p.db, 2));
    assert_eq!(p.registry.counts(), counts(1, 0, 0));
    p.registry.note_usage(&web, usage(ENOUGH_CALLS, false));
    p.registry.note_usage(&db, usage(ENOUGH_CALLS - 1, false));
    assert_eq!(p.registry.counts(), counts(1, 0, 0));
    p.registry.note_usage(&db, usage(ENOUGH_CALLS, false));
    assert_eq!(p.registry.counts(), counts(1, 1, 0));
    p.registry.note_usage(&web, usage(ENOUGH_CALLS, true));
    p.registry.note_usage(&db, usage(ENOUGH_CALLS, true));
    assert_eq!(p.registry.counts(), counts(1, 1, 1));
    assert_eq!(p.registry.channel_of(p.web, 7), None);
}
