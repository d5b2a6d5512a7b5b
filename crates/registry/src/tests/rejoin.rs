//! A new broker and what an earlier one left.

use super::*;

fn rejoin(p: &Paired, web_link: u64, db_link: u64, registry: &mut Registry) -> [ProcessId; 2] {
    let key = [9; 16];
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (db, _) = registry.add_process(DB, PathPolicy::Auto);
    let (a, b) = ends(0);
    for (process, conn_id, link_id, facts) in [(web, 1, web_link, a), (db, 2, db_link, b)] {
        let link = RejoinLink {
            link_id,
            link_key: key,
        };
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
            .rejoin_channel(process, channel, facts, 0, &mut |_, _| Ok(()), &mut none)
            .expect("channel");
        assert_eq!(downgrades(&actions), []);
    }
    [web, db]
}

#[test]
fn a_new_broker_knows_old_channels_again() {
    let p = paired();
    let mut registry = registry();
    let [web, db] = rejoin(&p, 71, 72, &mut registry);
    assert_eq!(registry.channel_count(), 1);
    let view = registry.connection(ends(0).0.cookie).expect("known");
    let Path::Channel(channel) = view.path else {
        panic!("{view:?}")
    };
    assert_eq!((channel.id, channel.slot), (p.pair.channel_id, 0));
    assert_eq!(
        channel.peer,
        Some(LinkSide {
            process: db,
            link_id: 72
        })
    );
    // A new connection of the same two gets a link of its own.
    let (a, b) = ends(1);
    registry.offer(web, 3, a);
    assert_eq!(links(&registry.offer(db, 4, b)).len(), 2);
    // New doorbells pass over the old link, downgrades too.
    let actions = registry.door(web, 3).expect("door");
    assert!(actions.iter().any(|action| matches!(
        action,
        Action::Doorbell {
            knocker_link_id: 72,
            ..
        }
    )));
    let actions = registry.downgrade(Some(p.pair.channel_id), Reason::Asked);
    assert_eq!(downgrades(&actions.expect("there")).len(), 2);
    let actions = registry.process_gone(web);
    assert!(actions.iter().any(|action| matches!(action, Action::Send { message: Outgoing::PeerGone(gone), .. } if gone.link_id == 72)));
}

#[test]
fn doors_made_before_the_peer_came_back_are_passed_on() {
    let p = paired();
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (db, _) = registry.add_process(DB, PathPolicy::Auto);
    let link = |link_id| RejoinLink {
        link_id,
        link_key: [9; 16],
    };
    registry.rejoin_link(web, link(71), 0).expect("link");
    registry.door(web, 4).expect("door");
    let actions = registry.rejoin_link(db, link(72), 0).expect("link");
    let bells: Vec<_> = actions
        .iter()
        .map(|action| match action {
            Action::Doorbell {
                sleeper,
                sleeper_link_id,
                knocker,
                knocker_link_id,
                door,
            } => (
                *sleeper,
                *sleeper_link_id,
                *knocker,
                *knocker_link_id,
                *door,
            ),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        bells,
        [
            (web, 71, db, 72, 0),
            (web, 71, db, 72, 4),
            (db, 72, web, 71, 0)
        ]
    );
    drop(p);
}

#[test]
fn rejoining_with_foreign_sockets_is_refused() {
    let p = paired();
    let mut registry = registry();
    let [_, db] = {
        let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
        let (db, _) = registry.add_process(DB, PathPolicy::Auto);
        [web, db]
    };
    let (thief, _) = registry.add_process(STRANGER, PathPolicy::Auto);
    let (a, b) = ends(0);
    let forged = SocketFacts {
        netns_cookie: STRANGER,
        ..a
    };
    for (process, link_id, facts) in [(thief, 1, forged), (db, 2, b)] {
        let link = RejoinLink {
            link_id,
            link_key: [9; 16],
        };
        registry.rejoin_link(process, link, 0).expect("link");
        let channel = RejoinChannel {
            conn_id: 1,
            channel_id: p.pair.channel_id,
            link_id,
            slot: 0,
            generation: 1,
            claim: control::Claim::NONE,
        };
        let actions = registry
            .rejoin_channel(process, channel, facts, 0, &mut |_, _| Ok(()), &mut none)
            .expect("channel");
        let expected = if process == db { 2 } else { 0 };
        assert_eq!(downgrades(&actions).len(), expected);
        assert_eq!(
            registry.rejoin_channel(process, channel, facts, 0, &mut |_, _| Ok(()), &mut none),
            Err(Violation::RejoinChannel)
        );
        assert_eq!(
            registry.rejoin_link(process, link, 0),
            Err(Violation::RejoinLink)
        );
    }
}

/// The end that came first may have lost its socket before the other one comes.
#[test]
fn an_end_that_came_first_is_proved_again() {
    let p = paired();
    let mut registry = registry();
    let (a, b) = ends(0);
    let mut told = Vec::new();
    for (place, conn_id, link_id, facts) in [(WEB, 1, 71, a), (DB, 2, 72, b)] {
        let (process, _) = registry.add_process(place, PathPolicy::Auto);
        let link = RejoinLink {
            link_id,
            link_key: [9; 16],
        };
        registry.rejoin_link(process, link, 0).expect("link");
        let channel = RejoinChannel {
            conn_id,
            channel_id: p.pair.channel_id,
            link_id,
            slot: p.pair.slot,
            generation: p.pair.generation,
            claim: control::Claim::NONE,
        };
        let mut witness = |_, shown: &SocketFacts| {
            assert_eq!(shown.cookie, a.cookie);
            Err(Reason::NoPeer)
        };
        let actions = registry.rejoin_channel(process, channel, facts, 0, &mut witness, &mut none);
        told.extend(downgrades(&actions.expect("in order")));
    }
    let reasons: Vec<Reason> = told.iter().map(|told| told.2).collect();
    assert_eq!(reasons, [Reason::NoPeer; 2]);
}
