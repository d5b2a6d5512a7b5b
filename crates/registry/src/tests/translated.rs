//! Pairs across NAT: what the tables say, and what may rest on it.

use super::*;

/// A connection as one table has it: its namespace, and the names of each end.
type Entry = (u64, [(&'static str, &'static str); 2]);

/// A published port: DNAT at the host.
const DNAT: Entry = (
    HOST,
    [
        ("10.77.0.4:40000", "192.0.2.1:8080"),
        ("10.77.0.3:6379", "10.77.0.4:40000"),
    ],
);
/// The client seems to be the host.
const SNAT: Entry = (
    HOST,
    [
        ("10.77.0.4:40000", "10.77.0.3:6379"),
        ("10.77.0.3:6379", "10.77.0.1:50000"),
    ],
);
/// Both at once.
const HAIRPIN: Entry = (
    HOST,
    [
        ("10.77.0.4:40000", "192.0.2.1:8080"),
        ("10.77.0.3:6379", "10.77.0.1:50000"),
    ],
);
/// By a program of the host.
const OF_HOST: Entry = (
    HOST,
    [
        ("127.0.0.1:40000", "127.0.0.1:8080"),
        ("10.77.0.3:6379", "10.77.0.1:50000"),
    ],
);
/// By a program of the host, as it is.
const DIRECT: Entry = (
    HOST,
    [
        ("10.77.0.1:50000", "10.77.0.3:6379"),
        ("10.77.0.3:6379", "10.77.0.1:50000"),
    ],
);
/// To a proxy beside the program, whatever it had asked for.
const REDIRECT: Entry = (
    WEB,
    [
        ("10.77.0.4:40000", "10.77.0.3:6379"),
        ("127.0.0.1:15001", "10.77.0.4:40000"),
    ],
);
/// To a proxy beside the server.
const INBOUND: Entry = (
    DB,
    [
        ("10.77.0.4:40000", "10.77.0.3:6379"),
        ("10.77.0.3:15006", "10.77.0.4:40000"),
    ],
);

fn end(cookie: u64, netns_cookie: u64, (local, remote): (&str, &str)) -> SocketFacts {
    facts(cookie, netns_cookie, local, remote)
}

/// The kernel of tables that have these entries.
fn kernel(entries: Vec<Entry>) -> impl FnMut(&Question) -> Option<FarEnd> {
    let name = |text: &str| text.parse().expect("an address");
    move |question| {
        let names = (question.facts.local, question.facts.remote);
        let may = |table: u64| question.tables.contains(&Some(table));
        let answers = entries.iter().filter(|(table, _)| may(*table));
        let answers = answers.flat_map(|(table, [a, b])| [(table, a, b), (table, b, a)]);
        let mut answers = answers.filter(|(_, near, _)| (name(near.0), name(near.1)) == names);
        answers.next().map(|(table, _, far)| FarEnd {
            table: *table,
            local: name(far.0),
            remote: name(far.1),
        })
    }
}

/// Channels after both ends were offered, in either order, on a host and in a guest of Xen, whose own address is known.
#[track_caller]
fn offered(entries: &[Entry], ends: [SocketFacts; 2]) -> usize {
    let orders = [ends, [ends[1], ends[0]]];
    let own = [None, Some(Ipv4Addr::new(192, 0, 2, 1))];
    let cases = own.map(|own| orders.map(|ends| (own, ends)));
    let counts = cases.as_flattened().iter().map(|&(own, ends)| {
        let mut registry = registry();
        registry.set_guests(own.map(GuestAddresses::from), std::iter::empty());
        for (number, end) in ends.into_iter().enumerate() {
            let (process, _) = registry.add_process(end.netns_cookie, PathPolicy::Auto);
            let mut kernel = kernel(entries.to_vec());
            let conn_id = number as u64;
            registry.offer_through(
                process,
                conn_id,
                end,
                &mut |_, _| Ok(()),
                &mut |_, _, _| None,
                &mut kernel,
            );
        }
        registry.channel_count()
    });
    let counts: Vec<usize> = counts.collect();
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    counts[0]
}

fn of(entry: Entry, places: [u64; 2]) -> [SocketFacts; 2] {
    [0, 1].map(|at| end(at as u64 + 1, places[at], entry.1[at]))
}

#[test]
fn what_the_kernel_has_translated_is_one_connection() {
    for (entry, places) in [
        (DNAT, [WEB, DB]),
        (SNAT, [WEB, DB]),
        (HAIRPIN, [WEB, DB]),
        (OF_HOST, [HOST, DB]),
        (DIRECT, [HOST, DB]),
        (REDIRECT, [WEB, WEB]),
        (INBOUND, [WEB, DB]),
    ] {
        assert_eq!(offered(&[entry], of(entry, places)), 1, "{entry:?}");
        assert_eq!(offered(&[], of(entry, places)), 0, "{entry:?}");
    }
    // A domain that is connected to what it has published itself.
    let own = (
        HOST,
        [
            ("10.77.0.3:40000", "192.0.2.1:8080"),
            ("10.77.0.3:6379", "10.77.0.1:50000"),
        ],
    );
    assert_eq!(offered(&[own], of(own, [DB, DB])), 1);
    // And a namespace that is nobody's domain, in itself.
    assert_eq!(
        offered(
            &[(PRIVATE, DNAT.1)],
            of((PRIVATE, OF_HOST.1), [PRIVATE, PRIVATE])
        ),
        0
    );
    let inside = (
        PRIVATE,
        [
            ("192.168.1.2:40000", "192.0.2.1:80"),
            ("127.0.0.1:15001", "192.168.1.2:40000"),
        ],
    );
    assert_eq!(offered(&[inside], of(inside, [PRIVATE, PRIVATE])), 1);
}

#[test]
fn a_table_says_nothing_of_what_its_namespace_may_not_do() {
    // Between others, in a table of one of the ends or of a stranger.
    for table in [WEB, DB, STRANGER] {
        for entry in [DNAT, SNAT, HAIRPIN] {
            let entry = (table, entry.1);
            assert_eq!(offered(&[entry], of(entry, [WEB, DB])), 0, "{entry:?}");
        }
    }
    // Under another's address, in whichever table.
    for table in [HOST, WEB, DB, STRANGER] {
        for places in [[STRANGER, DB], [WEB, STRANGER], [STRANGER; 2]] {
            for entry in [DNAT, SNAT, HAIRPIN, INBOUND, REDIRECT] {
                let entry = (table, entry.1);
                assert_eq!(
                    offered(&[entry], of(entry, places)),
                    0,
                    "{entry:?} {places:?}"
                );
            }
        }
    }
    // Who is connected to a domain's address talks to that domain, whatever the host's table says.
    let elsewhere = (
        HOST,
        [
            ("10.77.0.4:40000", "10.77.0.3:6379"),
            ("10.77.0.9:6379", "10.77.0.4:40000"),
        ],
    );
    let mut registry_with_third = registry();
    let assigned = Assigned {
        ip: Ipv4Addr::new(10, 77, 0, 9),
        ip6: None,
        cid: None,
        netns_cookie: STRANGER,
    };
    registry_with_third
        .add_domain("third", assigned)
        .expect("domain");
    let [a, b] = of(elsewhere, [WEB, STRANGER]);
    assert!(!registry_with_third.translation_holds(&a, &b, HOST));
    // It is held to what is its own: not another source, not another's address.
    for inbound in [
        [
            ("10.77.0.4:40000", "10.77.0.3:6379"),
            ("10.77.0.3:15006", "10.77.0.4:40001"),
        ],
        [
            ("10.77.0.4:40000", "192.0.2.1:6379"),
            ("10.77.0.3:15006", "10.77.0.4:40000"),
        ],
        [
            ("10.77.0.4:40000", "10.77.0.3:6379"),
            ("10.77.0.4:15006", "10.77.0.4:40000"),
        ],
    ] {
        let entry = (DB, inbound);
        assert_eq!(offered(&[entry], of(entry, [WEB, DB])), 0, "{inbound:?}");
    }
    // The rule holds by itself, whatever is asked.
    let [a, b] = of(DNAT, [STRANGER; 2]);
    assert!(!registry().translation_holds(&a, &b, STRANGER));
    let [a, b] = of(DNAT, [WEB, DB]);
    assert!(!registry().translation_holds(&a, &b, STRANGER));
    assert!(registry().translation_holds(&a, &b, HOST));
    // One address of a private namespace belongs to the host as little.
    assert_eq!(offered(&[OF_HOST], of(OF_HOST, [PRIVATE, DB])), 0);
    // Who has the host's address is not the host, nor has he its table.
    for table in [HOST, WEB, DB, STRANGER] {
        for places in [[STRANGER, DB], [WEB, DB], [PRIVATE, DB], [HOST, STRANGER]] {
            let entry = (table, DIRECT.1);
            assert_eq!(offered(&[entry], of(entry, places)), 0, "{places:?}");
        }
    }
}

/// Who wants rings or nothing is not kept waiting by an entry that leads to the outside.
#[test]
fn a_connection_of_the_host_to_elsewhere_leads_nowhere() {
    let outside = (
        HOST,
        [
            ("192.0.2.1:50000", "192.0.2.9:443"),
            ("192.0.2.9:443", "192.0.2.1:50000"),
        ],
    );
    for (entry, is_led_on) in [(outside, false), (DIRECT, true)] {
        let registry = registry();
        let [program, _] = of(entry, [HOST, DB]);
        let led_on = registry.is_led_on(&program, &mut kernel(vec![entry]));
        assert_eq!(led_on, is_led_on, "{entry:?}");
    }
}

/// Both ends' own questions have to lead to each other.
#[test]
fn an_entry_of_one_end_alone_joins_nothing() {
    let [a, b] = of(HAIRPIN, [WEB, DB]);
    let mut registry = registry();
    let mut whole = kernel(vec![HAIRPIN]);
    let mut half = |question: &Question| match question.facts.cookie == b.cookie {
        true => whole(question),
        false => None,
    };
    for end in [a, b] {
        let (process, _) = registry.add_process(end.netns_cookie, PathPolicy::Auto);
        let witness = &mut |_, _: &_| Ok(());
        let gate = &mut |_: &_, _: &_, _| None;
        registry.offer_through(process, 1, end, witness, gate, &mut half);
    }
    assert_eq!(registry.channel_count(), 0);
}

#[test]
fn names_that_mirror_each_other_are_asked_about_in_no_table() {
    let mut registry = registry();
    let (a, b) = ends(0);
    let mut asked = Vec::new();
    for end in [a, b] {
        let (process, _) = registry.add_process(end.netns_cookie, PathPolicy::Auto);
        let witness = &mut |_, _: &_| Ok(());
        let gate = &mut |_: &_, _: &_, table| {
            assert_eq!(table, None);
            None
        };
        registry.offer_through(process, 1, end, witness, gate, &mut |question| {
            asked.push((question.facts.cookie, question.mirrored_in));
            None
        });
    }
    assert_eq!(registry.channel_count(), 1);
    // Who waits alone has nobody to be led to.
    assert_eq!(asked, []);
    let (c, d) = ends(1);
    for end in [c, d] {
        let (process, _) = registry.add_process(end.netns_cookie, PathPolicy::Auto);
        let lonely = facts(9, PRIVATE, "10.9.9.9:1", "10.9.9.8:2");
        registry.offer(process, 1, lonely);
        registry.offer_through(
            process,
            2,
            end,
            &mut |_, _| Ok(()),
            &mut |_, _, _| None,
            &mut |question| {
                asked.push((question.facts.cookie, question.mirrored_in));
                None
            },
        );
    }
    // The first could not know.
    assert_eq!(asked, [(c.cookie, [None, Some(DB)])]);
}

#[test]
fn what_is_held_back_across_nat_is_paired_by_the_next_rules() {
    let mut registry = registry();
    let mut kernel = kernel(vec![DNAT]);
    let mut tables = Vec::new();
    for end in of(DNAT, [WEB, DB]) {
        let (process, _) = registry.add_process(end.netns_cookie, PathPolicy::Auto);
        let witness = &mut |_, _: &_| Ok(());
        let gate = &mut |_: &_, _: &_, table| {
            tables.push(table);
            Some(Reason::Filter)
        };
        registry.offer_through(process, 1, end, witness, gate, &mut kernel);
    }
    assert_eq!((registry.channel_count(), tables), (0, vec![Some(HOST)]));
    let witness = &mut |_, _: &_| Ok(());
    let mut open = |_: &_, _: &_, _| None;
    registry.retry_held_back(Reason::Filter, witness, &mut open, &mut none);
    assert_eq!(registry.channel_count(), 0, "the entry is gone");
    registry.retry_held_back(Reason::Filter, witness, &mut open, &mut kernel);
    assert_eq!(registry.channel_count(), 1);
    let channel = registry.channels_with_both_ends().next().expect("one");
    assert_eq!(channel.table, Some(HOST));
    // An end that is a domain's no more loses it.
    let web = registry.domain_by_name("web").expect("web").id;
    registry.remove_domain(web);
    let asked = registry.live_channels_of(registry.connection(1).expect("known").process);
    assert_eq!(asked[0].downgrading, Some(Reason::Unassigned));
}

#[test]
fn a_new_broker_knows_a_channel_across_nat_again_if_the_table_does() {
    for (entries, stays) in [(vec![HAIRPIN], true), (vec![], false), (vec![DNAT], false)] {
        let mut registry = registry();
        let mut kernel = kernel(entries);
        let mut told = Vec::new();
        for (end, link_id) in of(HAIRPIN, [WEB, DB]).into_iter().zip([71, 72]) {
            let (process, _) = registry.add_process(end.netns_cookie, PathPolicy::Auto);
            let link = RejoinLink {
                link_id,
                link_key: [9; 16],
            };
            registry.rejoin_link(process, link, 0).expect("link");
            let channel = RejoinChannel {
                conn_id: 1,
                channel_id: 5,
                link_id,
                slot: 0,
                generation: 1,
                claim: control::Claim::NONE,
            };
            let witness = &mut |_, _: &_| Ok(());
            let actions = registry.rejoin_channel(process, channel, end, 0, witness, &mut kernel);
            told.extend(downgrades(&actions.expect("in order")));
        }
        assert_eq!(told.is_empty(), stays, "{told:?}");
        let table = registry
            .channels_with_both_ends()
            .next()
            .expect("one")
            .table;
        assert_eq!(table, stays.then_some(HOST));
    }
}

/// Who wants rings or nothing waits where the kernel shows a domain behind the translation.
#[test]
fn who_insists_waits_for_a_translated_far_end() {
    for (entries, refused) in [(vec![DNAT], 0), (vec![], 1)] {
        let mut registry = registry();
        let (process, _) = registry.add_process(WEB, PathPolicy::Fast);
        let [a, _] = of(DNAT, [WEB, DB]);
        let witness = &mut |_, _: &_| Ok(());
        let gate = &mut |_: &_, _: &_, _| None;
        let mut kernel = kernel(entries);
        // The last packet of the handshake has not come by yet.
        let mut new = |question: &Question| match question.even_if_new {
            true => kernel(question),
            false => None,
        };
        let actions = registry.offer_through(process, 1, a, witness, gate, &mut new);
        assert_eq!(rejects(&actions).len(), refused);
    }
}
