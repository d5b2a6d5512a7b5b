//! Pairs of UDP sockets.

use super::*;

const DB_NAME: &str = "10.77.0.3:53";

fn udp(cookie: u64, netns_cookie: u64, local: &str, remote: &str) -> SocketFacts {
    SocketFacts {
        protocol: Protocol::Udp,
        ..facts(cookie, netns_cookie, local, remote)
    }
}

/// web's end of a pair with db's one socket, and db's.
fn pair(number: u64) -> (SocketFacts, SocketFacts) {
    let web = format!("10.77.0.4:{}", 40_000 + number);
    (
        udp(1_000 + number, WEB, &web, DB_NAME),
        udp(7, DB, DB_NAME, &web),
    )
}

/// Two processes with a link, and pair 0 as connection 1 of web and 2 of db.
fn linked() -> Paired {
    let mut p = paired();
    let (a, b) = pair(0);
    assert_eq!(p.registry.offer(p.web, 10, a), []);
    let made = pairs(&p.registry.offer(p.db, 20, b));
    assert_eq!(made.len(), 2);
    p.pair = made[0].1;
    p
}

fn live(p: &Paired) -> Vec<u64> {
    let live = p.registry.live_channels_of(p.db);
    live.iter().map(|channel| channel.id).collect()
}

#[test]
fn one_socket_is_in_many_pairs() {
    let mut p = linked();
    for number in 1..4 {
        let (a, b) = pair(number);
        assert_eq!(p.registry.offer(p.db, 20 + number, b), []);
        let made = pairs(&p.registry.offer(p.web, 10 + number, a));
        let ids: Vec<u64> = made.iter().map(|(_, pair)| pair.conn_id).collect();
        assert_eq!(ids.len(), 2);
        assert!([10, 20].iter().all(|base| ids.contains(&(base + number))));
    }
    // Their own connection, and four pairs; each has the far end that it was offered with.
    assert_eq!(live(&p).len(), 5);
    let ends = p.registry.other_ends();
    assert_eq!(ends.len(), 8);
    for end in ends {
        let peer = p.registry.peer_of(&end.facts).expect("a far end");
        assert_eq!(
            (peer.local, peer.remote),
            (end.facts.remote, end.facts.local)
        );
    }
    // Again, and under another number: it has its channel.
    let (_, b) = pair(2);
    assert_eq!(p.registry.offer(p.db, 22, b), []);
    let told = rejects(&p.registry.offer(p.db, 30, b));
    assert_eq!(told, [(p.db, Reason::Shared, 0)]);
}

#[test]
fn the_same_names_in_tcp_are_another_ones() {
    let mut p = linked();
    let (a, b) = pair(1);
    let tcp = |end: SocketFacts, cookie| SocketFacts {
        protocol: Protocol::Tcp,
        cookie,
        ..end
    };
    assert_eq!(p.registry.offer(p.web, 11, a), []);
    assert_eq!(p.registry.offer(p.db, 21, tcp(b, 5_001)), []);
    assert_eq!(p.registry.offer(p.web, 31, tcp(a, 5_000)).len(), 2);
    assert_eq!(pairs(&p.registry.offer(p.db, 22, b)).len(), 2);
    let (end, far) = (tcp(a, 5_000), tcp(b, 5_001));
    assert_eq!(p.registry.peer_of(&end), Some(far));
    assert_eq!(p.registry.peer_of(&a), Some(b));
    assert!(!p.registry.may_be_joined(&a, &far, None));
}

/// Of a socket that is bound to any address the kernel says that it gets what is sent to any.
#[test]
fn a_local_address_is_loopback_or_the_namespaces_own() {
    let mut registry = registry();
    let processes = [HOST, DB, WEB].map(|netns| registry.add_process(netns, PathPolicy::Auto).0);
    let mut number = 0;
    let mut told = |netns: u64, near: &str, far: &str| {
        let process = processes[[HOST, DB, WEB]
            .iter()
            .position(|one| *one == netns)
            .expect("one")];
        let mut actions = Vec::new();
        for (local, remote) in [(near, far), (far, near)] {
            number += 1;
            actions.extend(registry.offer(process, number, udp(number, netns, local, remote)));
        }
        assert_eq!(links(&actions).is_empty(), !rejects(&actions).is_empty());
        rejects(&actions)
            .first()
            .map(|(_, reason, pending)| (*reason, *pending))
    };
    let (unassigned, unsupported) = (
        Some((Reason::Unassigned, 1)),
        Some((Reason::Unsupported, 0)),
    );
    assert_eq!(told(HOST, "127.0.0.1:1", "127.0.0.2:2"), None);
    assert_eq!(told(DB, "10.77.0.3:1", "127.0.0.1:2"), None);
    assert_eq!(told(WEB, "[::1]:1", "[::1]:2"), None);
    for (netns, near, far) in [
        (HOST, "192.0.2.1:1", "192.0.2.1:2"),
        (HOST, "127.0.0.1:3", "192.0.2.1:4"),
        (DB, "10.77.0.9:1", "10.77.0.3:2"),
        (DB, "10.77.0.4:1", "10.77.0.4:2"),
        (WEB, "10.77.0.3:1", "127.0.0.1:2"),
    ] {
        assert_eq!(told(netns, near, far), unassigned, "{near} {far}");
    }
    for (near, far) in [
        ("127.0.0.1:1", "224.0.0.1:2"),
        ("127.0.0.1:1", "255.255.255.255:2"),
        ("127.0.0.1:1", "127.255.255.255:2"),
        ("127.0.0.1:1", "0.0.0.0:2"),
        ("[::1]:1", "[ff02::1]:2"),
        ("[::1]:1", "[::]:2"),
        ("[::1]:1", "127.0.0.1:2"),
        ("127.0.0.1:1", "127.0.0.1:1"),
    ] {
        assert_eq!(told(HOST, near, far), unsupported, "{near} {far}");
    }
}

/// Nor does anybody refuse it: its datagrams may go by the kernel. It is told after a while.
#[test]
fn a_program_that_requires_rings_waits_as_any_other() {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Fast);
    let outside = udp(1, WEB, "10.77.0.4:1", "192.0.2.1:53");
    let told = rejects(&registry.offer(web, 1, outside));
    assert_eq!(told, [(web, Reason::Unassigned, 1)]);
    let (a, b) = pair(0);
    registry.offer(web, 2, a);
    registry.insists(web, 2, 5);
    assert_eq!(registry.next_ns(), Some(5 + INSIST_NS_MAX));
    assert_eq!(registry.on_time(5 + INSIST_NS_MAX - 1), []);
    let told = rejects(&registry.on_time(5 + INSIST_NS_MAX));
    assert_eq!(told, [(web, Reason::NoPeer, 1)]);
    assert_eq!(registry.next_ns(), None);
    let (db, _) = registry.add_process(DB, PathPolicy::Fast);
    let closed = &mut |_: &SocketFacts, _: &SocketFacts, _: Option<u64>| Some(Reason::Filter);
    let actions = registry.offer_through(db, 1, b, &mut |_, _| Ok(()), closed, &mut none);
    assert!(
        rejects(&actions)
            .iter()
            .all(|told| (told.1, told.2) == (Reason::Filter, 1))
    );
    assert_eq!(rejects(&actions).len(), 2);
}

#[test]
fn one_pair_ends_and_the_sockets_others_stay() {
    let mut p = linked();
    let (a, b) = pair(1);
    p.registry.offer(p.web, 11, a);
    let other = pairs(&p.registry.offer(p.db, 21, b))[0].1;
    // One end leaves without a word to the other.
    let told = p.registry.status(p.db, report(20, 0, status::CLOSED));
    let told = downgrades(&told.expect("no offence"));
    assert_eq!(told, [(p.web, p.pair.channel_id, Reason::Asked)]);
    assert!(live(&p).contains(&other.channel_id));
    p.registry
        .status(p.web, report(10, p.pair.channel_id, status::KERNEL))
        .expect("no offence");
    // It may be offered again.
    let (a, b) = pair(0);
    p.registry.offer(p.db, 20, b);
    let again = pairs(&p.registry.offer(p.web, 10, a));
    assert_eq!(again.len(), 2);
    // The administrator asks for one of them.
    let asked = p.registry.downgrade(Some(other.channel_id), Reason::Asked);
    assert_eq!(downgrades(&asked.expect("there")).len(), 2);
    p.registry.process_gone(p.web);
    p.registry.process_gone(p.db);
    assert_eq!(p.registry.other_ends(), []);
    assert!(!p.registry.has_datagrams());
}

#[test]
fn a_pair_that_the_administrator_has_downgraded_is_offered_in_vain() {
    let mut p = linked();
    let id = p.pair.channel_id;
    p.registry.downgrade(Some(id), Reason::Asked);
    for (process, conn_id) in [(p.web, 10), (p.db, 20)] {
        let told = p
            .registry
            .status(process, report(conn_id, id, status::KERNEL));
        told.expect("no offence");
    }
    let (a, b) = pair(0);
    // Also under other numbers.
    for (process, conn_id, end) in [(p.web, 10, a), (p.db, 20, b), (p.web, 11, a), (p.db, 21, b)] {
        let told = rejects(&p.registry.offer(process, conn_id, end));
        assert_eq!(told, [(process, Reason::Asked, 0)]);
    }
    assert!(!p.registry.has_datagrams());
    // Of another address the pair is another one, and so it is when the far end is gone.
    let (mut c, mut d) = (a, b);
    (c.local, d.remote) = (
        "10.77.0.4:50000".parse().expect("a name"),
        "10.77.0.4:50000".parse().expect("a name"),
    );
    p.registry.offer(p.web, 12, c);
    assert_eq!(pairs(&p.registry.offer(p.db, 22, d)).len(), 2);
    p.registry.process_gone(p.web);
    assert_eq!(p.registry.offer(p.db, 23, b), []);
}

/// A server's one socket sees clients come and go: nothing is kept of those that are gone, in whichever
/// order the two ends say so, and whyever they left.
#[test]
fn nothing_is_kept_of_pairs_whose_far_end_is_gone() {
    let mut p = linked();
    let kept = |p: &Paired| {
        let of_db = p.registry.connection_count(p.db);
        (of_db, p.registry.other_ends().len())
    };
    let before = kept(&p);
    for number in 1..200 {
        let (client, _) = p.registry.add_process(WEB, PathPolicy::Auto);
        let (a, b) = pair(number);
        p.registry.offer(client, 1, a);
        let actions = p.registry.offer(p.db, 20 + number, b);
        let Some((link_of_client, link_of_db)) = links(&actions)
            .iter()
            .find(|(to, _)| *to == client)
            .zip(links(&actions).iter().find(|(to, _)| *to == p.db))
            .map(|(a, b)| (a.1.link_id, b.1.link_id))
        else {
            panic!("a link");
        };
        let mut id = 0;
        if number % 5 != 0 {
            p.registry.region(client, link_of_client).expect("asked");
            let (_, made) = p.registry.region(p.db, link_of_db).expect("asked");
            id = pairs(&made)[0].1.channel_id;
        }
        let mut status = |process, conn_id, word| {
            let told = p.registry.status(process, report(conn_id, id, word));
            told.expect("no offence")
        };
        match number % 5 {
            // The client's link is never made.
            0 => {}
            1 => {
                status(client, 1, status::CLOSED);
                status(p.db, 20 + number, status::KERNEL);
            }
            2 => {
                status(p.db, 20 + number, status::KERNEL);
                status(client, 1, status::CLOSED);
            }
            // Both go to the kernel path, and then one of them is gone.
            3 => {
                status(p.db, 20 + number, status::KERNEL);
                status(client, 1, status::KERNEL);
            }
            _ => {
                p.registry.process_gone(client);
                p.registry
                    .status(p.db, report(20 + number, id, status::KERNEL))
                    .expect("no offence");
            }
        }
        p.registry.process_gone(client);
        assert_eq!(kept(&p), before, "{number}");
    }
}

/// The claim is of another address now: the pair is another one.
#[test]
fn another_local_name_is_another_pair() {
    let mut registry = registry();
    let (own, _) = registry.add_process(HOST, PathPolicy::Auto);
    let far = "127.0.0.1:9";
    assert_eq!(registry.offer(own, 1, udp(1, HOST, "127.0.0.1:1", far)), []);
    assert_eq!(registry.offer(own, 1, udp(1, HOST, "127.0.0.2:1", far)), []);
    let first = registry.offer(own, 2, udp(2, HOST, far, "127.0.0.1:1"));
    assert_eq!(first, []);
    let second = registry.offer(own, 3, udp(2, HOST, far, "127.0.0.2:1"));
    assert_eq!(links(&second).len(), 2);
}

#[test]
fn pairs_are_looked_at_in_turn_and_leave_when_an_end_is_lost() {
    let mut p = linked();
    for number in 1..5 {
        let (a, b) = pair(number);
        p.registry.offer(p.web, 10 + number, a);
        assert_eq!(pairs(&p.registry.offer(p.db, 20 + number, b)).len(), 2);
    }
    assert!(p.registry.has_datagrams());
    let mut seen = Vec::new();
    for _ in 0..5 {
        let mut asked = Vec::new();
        let actions = p.registry.look_at_datagrams(2, &mut |process, end| {
            assert_eq!(end.protocol, Protocol::Udp);
            asked.push((process, end.local.port().max(end.remote.port())));
            Ok(())
        });
        assert_eq!((actions, asked.len()), (vec![], 4));
        seen.extend(asked);
    }
    // Each end twice, none more often.
    for port in 40_000..40_005 {
        for process in [p.web, p.db] {
            let count = seen.iter().filter(|one| **one == (process, port)).count();
            assert_eq!(count, 2, "{port}");
        }
    }
    let lost = |process: ProcessId, end: &SocketFacts| match (process, end.remote.port()) {
        (process, 40_003) if process == p.db => Err(Reason::NoPeer),
        _ => Ok(()),
    };
    let told = downgrades(&p.registry.look_at_datagrams(100, &mut { lost }));
    assert_eq!(told.len(), 2);
    assert!(
        told.iter()
            .all(|(_, id, reason)| (*id, *reason) == (told[0].1, Reason::NoPeer))
    );
    assert_eq!(p.registry.look_at_datagrams(100, &mut { lost }), []);
    // Nothing is left to look at, once all are on their way.
    p.registry.downgrade(None, Reason::Asked);
    p.registry.look_at_datagrams(100, &mut |_, _| Ok(()));
    assert!(!p.registry.has_datagrams());
}

#[test]
fn an_earlier_brokers_pairs_are_looked_at_as_well() {
    let p = linked();
    let mut registry = registry();
    let (a, b) = pair(0);
    for (netns, conn_id, link_id, end) in [(WEB, 10, 71, a), (DB, 20, 72, b)] {
        let (process, _) = registry.add_process(netns, PathPolicy::Auto);
        let link_key = [9; 16];
        let link = RejoinLink { link_id, link_key };
        registry.rejoin_link(process, link, 0).expect("link");
        let channel = RejoinChannel {
            conn_id,
            channel_id: p.pair.channel_id,
            link_id,
            slot: p.pair.slot,
            generation: p.pair.generation,
            claim: control::Claim::NONE,
        };
        let actions = registry
            .rejoin_channel(process, channel, end, 0, &mut |_, _| Ok(()), &mut none)
            .expect("channel");
        assert_eq!(downgrades(&actions), []);
    }
    assert_eq!(registry.peer_of(&a), Some(b));
    let lost = registry.look_at_datagrams(1, &mut |_, _| Err(Reason::Unproven));
    assert_eq!(downgrades(&lost).len(), 2);
}

/// A program's end of a pair with its own stack, and the stack's: both were made where the stack lies.
#[test]
fn the_ends_of_a_pair_of_af_unix_sockets_are_joined_by_what_the_kernel_says_of_both() {
    let mut p = paired();
    let end = |cookie, netns_cookie, near, far| SocketFacts {
        protocol: Protocol::Unix,
        local: of_inode(near),
        remote: of_inode(far),
        ..udp(cookie, netns_cookie, DB_NAME, DB_NAME)
    };
    const OF_STACK: u64 = 77_777;
    assert_eq!(inode_of(of_inode(u32::MAX)), u32::MAX);
    // Another pair, and the same inodes in another namespace.
    assert_eq!(p.registry.offer(p.db, 40, end(800, OF_STACK, 11, 12)), []);
    assert_eq!(p.registry.offer(p.db, 41, end(801, OF_STACK + 1, 2, 1)), []);
    assert_eq!(p.registry.offer(p.web, 50, end(802, OF_STACK, 1, 2)), []);
    let made = pairs(&p.registry.offer(p.db, 42, end(803, OF_STACK, 2, 1)));
    let ids: Vec<u64> = made.iter().map(|(_, pair)| pair.conn_id).collect();
    assert!(
        ids.len() == 2 && ids.contains(&42) && ids.contains(&50),
        "{ids:?}"
    );
    assert_eq!(p.registry.other_ends().len(), 4);
}
