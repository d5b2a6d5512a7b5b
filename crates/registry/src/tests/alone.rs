//! What only one side has rejoined.

use super::*;

const LINK: RejoinLink = RejoinLink {
    link_id: 71,
    link_key: [9; 16],
};
const CHANNEL: RejoinChannel = RejoinChannel {
    conn_id: 1,
    channel_id: 55,
    link_id: 71,
    slot: 0,
    generation: 1,
    claim: control::Claim::NONE,
};

/// A new broker's registry, with web's end of a channel, rejoined at time 0.
fn web_alone() -> (Registry, ProcessId, ProcessId) {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (db, _) = registry.add_process(DB, PathPolicy::Auto);
    assert_eq!(registry.rejoin_link(web, LINK, 0), Ok(Vec::new()));
    let actions =
        registry.rejoin_channel(web, CHANNEL, ends(0).0, 0, &mut |_, _| Ok(()), &mut none);
    assert_eq!(actions, Ok(Vec::new()));
    (registry, web, db)
}

fn peers_gone(actions: &[Action]) -> Vec<(ProcessId, u64)> {
    let gone = |action: &Action| match action {
        Action::Send {
            to,
            message: Outgoing::PeerGone(gone),
        } => Some((*to, gone.link_id)),
        _ => None,
    };
    actions.iter().filter_map(gone).collect()
}

#[test]
fn who_waits_for_an_end_that_never_comes_is_moved_to_the_kernel() {
    let (mut registry, web, _) = web_alone();
    let due_ns = registry.next_ns().expect("it waits");
    assert_eq!(registry.on_time(due_ns - 1), []);
    let actions = registry.on_time(due_ns);
    assert_eq!(downgrades(&actions), [(web, 55, Reason::Waiting)]);
    assert_eq!(registry.next_ns(), None);
    // Once it is there, the link is of no use either.
    let report = Status {
        reason: Reason::Waiting as u32,
        ..report(1, 55, status::KERNEL)
    };
    let actions = registry.status(web, report).expect("in order");
    assert_eq!(peers_gone(&actions), [(web, 71)]);
    assert!(actions.contains(&Action::LinkClosed {
        process: web,
        link_id: 71
    }));
    assert_eq!(registry.channel_count(), 0);
    // A channel of it that was still to be shown goes the same way, and is no lie.
    let late = RejoinChannel {
        conn_id: 2,
        channel_id: 56,
        slot: 1,
        ..CHANNEL
    };
    let actions =
        registry.rejoin_channel(web, late, ends(1).0, due_ns, &mut |_, _| Ok(()), &mut none);
    let actions = actions.expect("in order");
    assert_eq!(downgrades(&actions), [(web, 56, Reason::Waiting)]);
    assert_eq!(
        registry.rejoin_link(web, LINK, due_ns),
        Err(Violation::RejoinLink)
    );
}

#[test]
fn an_offer_shows_that_the_far_end_has_no_channel() {
    let (a, b) = ends(0);
    // Whichever comes first.
    let (mut registry, web, db) = web_alone();
    let actions = registry.offer(db, 4, b);
    assert_eq!(downgrades(&actions), [(web, 55, Reason::Waiting)]);
    let mut second = super::registry();
    let (web_again, _) = second.add_process(WEB, PathPolicy::Auto);
    let (db_again, _) = second.add_process(DB, PathPolicy::Auto);
    second.offer(db_again, 4, b);
    second.rejoin_link(web_again, LINK, 0).expect("link");
    let actions = second.rejoin_channel(web_again, CHANNEL, a, 0, &mut |_, _| Ok(()), &mut none);
    let told = downgrades(&actions.expect("channel"));
    assert_eq!(told, [(web_again, 55, Reason::Waiting)]);
    // Back on the kernel path it offers itself, and gets a channel over a new link.
    for (registry, web) in [(&mut registry, web), (&mut second, web_again)] {
        let report = Status {
            reason: Reason::Waiting as u32,
            ..report(1, 55, status::KERNEL)
        };
        registry.status(web, report).expect("in order");
        assert_eq!(links(&registry.offer(web, 1, a)).len(), 2);
    }
}

#[test]
fn a_strangers_mirror_image_moves_nobody() {
    let (mut registry, web, _) = web_alone();
    let (stranger, _) = registry.add_process(STRANGER, PathPolicy::Auto);
    let forged = SocketFacts {
        netns_cookie: STRANGER,
        ..ends(0).1
    };
    let actions = registry.offer(stranger, 1, forged);
    assert_eq!(downgrades(&actions), []);
    assert!(registry.channel_of(web, 1).is_some());
}

#[test]
fn who_comes_in_time_is_waited_for_no_more() {
    let (mut registry, web, db) = web_alone();
    let link = RejoinLink {
        link_id: 72,
        ..LINK
    };
    let channel = RejoinChannel {
        conn_id: 2,
        link_id: 72,
        ..CHANNEL
    };
    registry.rejoin_link(db, link, 1).expect("link");
    let actions = registry.rejoin_channel(db, channel, ends(0).1, 1, &mut |_, _| Ok(()), &mut none);
    assert_eq!(downgrades(&actions.expect("channel")), []);
    assert_eq!(registry.next_ns(), None);
    assert_eq!(registry.on_time(u64::MAX), []);
    assert!(
        registry
            .channel_of(web, 1)
            .is_some_and(|c| c.peer.is_some())
    );
}

#[test]
fn who_comes_late_but_before_the_other_has_left_is_told_as_well() {
    let (mut registry, web, db) = web_alone();
    let actions = registry.on_time(ALONE_NS_MAX);
    assert_eq!(downgrades(&actions), [(web, 55, Reason::Waiting)]);
    let link = RejoinLink {
        link_id: 72,
        ..LINK
    };
    let channel = RejoinChannel {
        conn_id: 2,
        link_id: 72,
        ..CHANNEL
    };
    registry.rejoin_link(db, link, ALONE_NS_MAX).expect("link");
    let actions = registry.rejoin_channel(
        db,
        channel,
        ends(0).1,
        ALONE_NS_MAX,
        &mut |_, _| Ok(()),
        &mut none,
    );
    let told = downgrades(&actions.expect("channel"));
    assert_eq!(told, [(db, 55, Reason::Waiting)]);
    // Both report; the link serves on.
    for (process, conn_id) in [(web, 1), (db, 2)] {
        let report = report(conn_id, 55, status::KERNEL);
        let actions = registry.status(process, report).expect("in order");
        assert_eq!(peers_gone(&actions), []);
    }
    assert_eq!((registry.channel_count(), registry.next_ns()), (0, None));
}
