//! The gate of rules from outside.

use super::*;

const FILTER: Reason = Reason::Filter;

fn closed(_: &SocketFacts, _: &SocketFacts, _: Option<u64>) -> Option<Reason> {
    Some(FILTER)
}

fn open(_: &SocketFacts, _: &SocketFacts, _: Option<u64>) -> Option<Reason> {
    None
}

#[test]
fn what_is_held_back_is_told_once_and_paired_when_the_gate_opens() {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
    let (db, _) = registry.add_process(DB, PathPolicy::Auto);
    let (a, b) = ends(0);
    assert_eq!(
        registry.offer_through(web, 1, a, &mut |_, _| Ok(()), &mut closed, &mut none),
        []
    );
    let actions = registry.offer_through(db, 2, b, &mut |_, _| Ok(()), &mut closed, &mut none);
    let mut told = rejects(&actions);
    told.sort_by_key(|told| told.0);
    assert_eq!(told, [(web, FILTER, 1), (db, FILTER, 1)]);
    assert_eq!(registry.channel_count(), 0);
    let kept = registry.connection(a.cookie).map(|view| view.path);
    assert!(matches!(kept, Some(Path::Kernel { reason: FILTER, .. })));
    assert_eq!(
        registry.retry_held_back(FILTER, &mut |_, _| Ok(()), &mut closed, &mut none),
        []
    );
    let made = links(&registry.retry_held_back(FILTER, &mut |_, _| Ok(()), &mut open, &mut none));
    assert_eq!((made.len(), registry.channel_count()), (2, 1));
    assert_eq!(
        registry.retry_held_back(FILTER, &mut |_, _| Ok(()), &mut open, &mut none),
        []
    );
}

/// Both offers are old when the gate opens: each is shown anew, and one that is not true any more ends.
#[test]
fn what_was_held_back_is_proved_again() {
    for gone in [0, 1] {
        let mut registry = registry();
        let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
        let (db, _) = registry.add_process(DB, PathPolicy::Auto);
        let (a, b) = ends(0);
        registry.offer_through(web, 1, a, &mut |_, _| Ok(()), &mut closed, &mut none);
        registry.offer_through(db, 2, b, &mut |_, _| Ok(()), &mut closed, &mut none);
        let (process, cookie) = [(web, a.cookie), (db, b.cookie)][gone];
        let mut witness = |_, shown: &SocketFacts| match shown.cookie == cookie {
            true => Err(Reason::NoPeer),
            false => Ok(()),
        };
        let actions = registry.retry_held_back(FILTER, &mut witness, &mut open, &mut none);
        assert_eq!(rejects(&actions), [(process, Reason::NoPeer, 0)]);
        assert_eq!((links(&actions), registry.channel_count()), (vec![], 0));
    }
}

#[test]
fn who_wants_rings_or_nothing_is_turned_down_for_good() {
    let mut registry = registry();
    let (web, _) = registry.add_process(WEB, PathPolicy::Fast);
    let (db, _) = registry.add_process(DB, PathPolicy::Auto);
    let (a, b) = ends(0);
    registry.offer_through(web, 1, a, &mut |_, _| Ok(()), &mut closed, &mut none);
    let actions = registry.offer_through(db, 2, b, &mut |_, _| Ok(()), &mut closed, &mut none);
    assert!(rejects(&actions).contains(&(web, FILTER, 0)));
    assert_eq!(
        registry.retry_held_back(FILTER, &mut |_, _| Ok(()), &mut open, &mut none),
        []
    );
}

#[test]
fn channels_are_shown_with_both_ends_and_moved() {
    let mut p = paired();
    let channels: Vec<BothEnds> = p.registry.channels_with_both_ends().collect();
    let [channel] = channels[..] else {
        panic!("{} channels", channels.len());
    };
    let (a, b) = ends(0);
    assert!(channel.facts == [a, b] || channel.facts == [b, a]);
    assert_eq!(channel.id, p.pair.channel_id);
    assert_eq!(p.registry.both_ends_in(p.web).len(), 1);
    let actions = p.registry.downgrade_these(&channels, FILTER);
    let id = p.pair.channel_id;
    let told = downgrades(&actions);
    assert!(told.contains(&(p.web, id, FILTER)) && told.contains(&(p.db, id, FILTER)));
    p.registry
        .status(p.db, report(2, id, status::KERNEL))
        .expect("status");
    assert_eq!(p.registry.channels_with_both_ends().count(), 0);
}

type Asking = fn(&mut Registry) -> Vec<Action>;

/// Rules may change, or the administrator ask, between the offers and the regions: then the
/// pair is followed by its end.
#[test]
fn a_channel_that_is_not_announced_yet_is_moved_behind_its_pair() {
    let by_rules: Asking = |registry| {
        let channels: Vec<BothEnds> = registry.channels_with_both_ends().collect();
        registry.downgrade_these(&channels, FILTER)
    };
    let by_wish: Asking = |registry| registry.downgrade(None, Reason::Asked).expect("all");
    for ask in [by_rules, by_wish] {
        let mut registry = registry();
        let (web, _) = registry.add_process(WEB, PathPolicy::Auto);
        let (db, _) = registry.add_process(DB, PathPolicy::Auto);
        let (a, b) = ends(0);
        registry.offer(web, 1, a);
        let made = links(&registry.offer(db, 2, b));
        assert_eq!(ask(&mut registry), []);
        registry.region(made[0].0, made[0].1.link_id).expect("one");
        let (_, actions) = registry.region(made[1].0, made[1].1.link_id).expect("two");
        assert_eq!((pairs(&actions).len(), downgrades(&actions).len()), (2, 2));
        for process in [web, db] {
            let place = |wanted: fn(&Outgoing) -> bool| {
                actions.iter().position(|action| match action {
                    Action::Send { to, message } => *to == process && wanted(message),
                    _ => false,
                })
            };
            let pair = place(|message| matches!(message, Outgoing::Pair(_)));
            let end = place(|message| matches!(message, Outgoing::Downgrade(_)));
            assert!(pair < end && pair.is_some(), "{actions:?}");
        }
    }
}
