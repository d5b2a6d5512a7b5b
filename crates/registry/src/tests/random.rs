//! Random events, with what must hold after each of them.
//!
//! The world beside the registry knows the truth: which sockets are the two ends of
//! one connection and which were forged. Ports come from a small range, so that names
//! collide all the time.

use super::*;
use crate::processes::ConnState;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// How many sockets there are in the world.
const SOCKETS: usize = 55;
const NAMESPACES: [u64; 4] = [HOST, DB, WEB, STRANGER];

#[derive(Clone, Debug)]
enum Event {
    Join {
        netns: usize,
        fast: bool,
    },
    /// Offers end `end` of connection or forgery `socket` from process number `process`.
    Offer {
        process: usize,
        conn_id: u64,
        socket: usize,
    },
    Region {
        process: usize,
        link: usize,
    },
    Report {
        process: usize,
        conn_id: u64,
        channel: Option<usize>,
        status: u32,
    },
    Door {
        process: usize,
        door: u64,
    },
    Downgrade {
        channel: Option<usize>,
    },
    Gone {
        process: usize,
    },
    RejoinLink {
        process: usize,
        link_id: u64,
        key: u8,
    },
    RejoinChannel {
        process: usize,
        conn_id: u64,
        link_id: u64,
        slot: u32,
        generation: u32,
        channel_id: u64,
        socket: usize,
    },
    RemoveDomain {
        id: u32,
    },
    Time {
        passes_ns: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let process = 0..6usize;
    prop_oneof![
        2 => (0..4usize, any::<bool>()).prop_map(|(netns, fast)| Event::Join { netns, fast }),
        12 => (process.clone(), 0..8u64, 0..SOCKETS)
            .prop_map(|(process, conn_id, socket)| Event::Offer { process, conn_id, socket }),
        8 => (process.clone(), 0..12usize).prop_map(|(process, link)| Event::Region { process, link }),
        6 => (process.clone(), 0..8u64, proptest::option::of(0..8usize), 1..=3u32)
            .prop_map(|(process, conn_id, channel, status)| Event::Report { process, conn_id, channel, status }),
        2 => (process.clone(), 0..66u64).prop_map(|(process, door)| Event::Door { process, door }),
        1 => proptest::option::of(0..8usize).prop_map(|channel| Event::Downgrade { channel }),
        1 => process.clone().prop_map(|process| Event::Gone { process }),
        2 => (process.clone(), 0..6u64, 0..3u8)
            .prop_map(|(process, link_id, key)| Event::RejoinLink { process, link_id, key }),
        3 => (process, 0..8u64, 0..6u64, 0..3u32, 1..3u32, 0..3u64, 0..SOCKETS).prop_map(
            |(process, conn_id, link_id, slot, generation, channel_id, socket)| Event::RejoinChannel {
                process, conn_id, link_id, slot, generation, channel_id, socket,
            }
        ),
        1 => (1..3u32).prop_map(|id| Event::RemoveDomain { id }),
        2 => (0..ALONE_NS_MAX).prop_map(|passes_ns| Event::Time { passes_ns }),
    ]
}

/// Every socket of the world, a UDP socket once for each far end; two neighbours in the list with the
/// same number of connection are the ends of one.
fn sockets() -> Vec<(SocketFacts, Option<usize>)> {
    let mut list = Vec::new();
    let mut cookie = 1;
    let mut add = |netns_cookie, local: SocketAddr, remote: SocketAddr, connection| {
        let facts = SocketFacts {
            protocol: Protocol::Tcp,
            cookie,
            netns_cookie,
            local,
            remote,
            shown: Shown::default(),
        };
        cookie += 1;
        list.push((facts, connection));
    };
    let db = SocketAddr::from((DB_IP, 80));
    for n in 0..5 {
        let web = SocketAddr::from((WEB_IP, 1000 + n));
        add(WEB, web, db, Some(usize::from(n)));
        add(DB, db, web, Some(usize::from(n)));
        // The same names, forged elsewhere: both ends, so that the forger may pair them
        // with each other but with nobody else.
        add(STRANGER, web, db, Some(100 + usize::from(n)));
        add(STRANGER, db, web, Some(100 + usize::from(n)));
        // A domain that speaks with the other's address.
        add(WEB, db, web, None);
        let [a, b] = [1u16, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port + n)));
        let netns = NAMESPACES[usize::from(n) % 4];
        add(netns, a, b, Some(200 + usize::from(n)));
        add(netns, b, a, Some(200 + usize::from(n)));
        add(HOST, a, a, None);
    }
    let mut add = |cookie, netns_cookie, local: SocketAddr, remote: SocketAddr, connection| {
        let facts = SocketFacts {
            protocol: Protocol::Udp,
            cookie,
            netns_cookie,
            local,
            remote,
            shown: Shown::default(),
        };
        list.push((facts, connection));
    };
    // Under the names of the TCP connections: db's one socket with each of web's, the same forged
    // elsewhere, and a namespace that says it has db's address.
    for n in 0..3 {
        let web = SocketAddr::from((WEB_IP, 1000 + n));
        let (own, cookie) = (usize::from(n), 1000 + u64::from(n));
        add(cookie, WEB, web, db, Some(300 + own));
        add(2000, DB, db, web, Some(300 + own));
        add(cookie + 3000, STRANGER, web, db, None);
        add(5000, STRANGER, db, web, None);
        add(6000, WEB, db, web, None);
    }
    assert_eq!(list.len(), SOCKETS);
    list
}

struct World {
    registry: Registry,
    now_ns: u64,
    sockets: Vec<(SocketFacts, Option<usize>)>,
    processes: Vec<ProcessId>,
    links_told: BTreeMap<ProcessId, BTreeSet<u64>>,
    peers_told: BTreeMap<ProcessId, BTreeSet<u64>>,
    channels_told: Vec<u64>,
    ids: BTreeSet<u64>,
}

impl World {
    fn process(&self, index: usize) -> ProcessId {
        let unknown = ProcessId(0);
        self.processes.get(index).copied().unwrap_or(unknown)
    }

    /// A process that broke the rules is dropped, as the broker does.
    fn settle(&mut self, process: ProcessId, result: Result<Vec<Action>, Violation>) {
        match result {
            Ok(actions) => self.watch(&actions),
            Err(_) => self.gone(process),
        }
    }

    fn gone(&mut self, process: ProcessId) {
        let actions = self.registry.process_gone(process);
        self.processes.retain(|other| *other != process);
        self.watch(&actions);
    }

    /// What is sent must make sense to the one it is sent to.
    fn watch(&mut self, actions: &[Action]) {
        for action in actions {
            match *action {
                Action::Send { to, message } => {
                    assert!(self.processes.contains(&to), "{message:?} to the dead");
                    match message {
                        Outgoing::Link(link) => {
                            assert!(self.ids.insert(link.link_id), "a link id was used twice");
                            self.links_told.entry(to).or_default().insert(link.link_id);
                        }
                        Outgoing::Pair(pair) => {
                            let told = self.peers_told.get(&to);
                            assert!(told.is_some_and(|told| told.contains(&pair.link_id)));
                            self.channels_told.push(pair.channel_id);
                        }
                        _ => {}
                    }
                }
                Action::Peer { to, link_id, .. } => {
                    assert!(self.links_told[&to].contains(&link_id));
                    self.peers_told.entry(to).or_default().insert(link_id);
                }
                Action::Doorbell {
                    sleeper, knocker, ..
                } => {
                    assert!(self.processes.contains(&sleeper) && self.processes.contains(&knocker));
                }
                Action::LinkClosed { .. } => {}
            }
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Join { netns, fast } => {
                if self.processes.len() < 6 {
                    let policy = if fast {
                        PathPolicy::Fast
                    } else {
                        PathPolicy::Auto
                    };
                    let (id, _) = self.registry.add_process(NAMESPACES[netns], policy);
                    assert!(self.ids.insert(id.0));
                    self.processes.push(id);
                }
            }
            Event::Offer {
                process,
                conn_id,
                socket,
            } => {
                let process = self.process(process);
                let actions = self
                    .registry
                    .offer(process, conn_id, self.sockets[socket].0);
                self.watch(&actions);
            }
            Event::Region { process, link } => {
                let process = self.process(process);
                let told = self.links_told.get(&process);
                let Some(link_id) = told.and_then(|told| told.iter().nth(link)).copied() else {
                    return;
                };
                let result = self.registry.region(process, link_id);
                self.settle(process, result.map(|(_, actions)| actions));
            }
            Event::Report {
                process,
                conn_id,
                channel,
                status,
            } => {
                let process = self.process(process);
                let told = channel.and_then(|n| self.channels_told.iter().rev().nth(n));
                let channel_id = told.copied().unwrap_or(0);
                let result = self
                    .registry
                    .status(process, report(conn_id, channel_id, status));
                self.settle(process, result);
            }
            Event::Door { process, door } => {
                let process = self.process(process);
                let result = self.registry.door(process, door);
                self.settle(process, result);
            }
            Event::Downgrade { channel } => {
                let channel = channel.and_then(|n| self.channels_told.get(n)).copied();
                let actions = self.registry.downgrade(channel, Reason::Asked);
                self.watch(&actions.unwrap_or_default());
            }
            Event::Gone { process } => self.gone(self.process(process)),
            Event::RejoinLink {
                process,
                link_id,
                key,
            } => {
                let process = self.process(process);
                let link_key = [key; 16];
                let shown = RejoinLink { link_id, link_key };
                let result = self.registry.rejoin_link(process, shown, self.now_ns);
                self.settle(process, result);
            }
            Event::RejoinChannel {
                process,
                conn_id,
                link_id,
                slot,
                generation,
                channel_id,
                socket,
            } => {
                let process = self.process(process);
                let shown = RejoinChannel {
                    conn_id,
                    channel_id,
                    link_id,
                    slot,
                    generation,
                    claim: control::Claim::NONE,
                };
                let facts = self.sockets[socket].0;
                let registry = &mut self.registry;
                let result = registry.rejoin_channel(
                    process,
                    shown,
                    facts,
                    self.now_ns,
                    &mut |_, _| Ok(()),
                    &mut none,
                );
                self.settle(process, result);
            }
            Event::RemoveDomain { id } => {
                let actions = self.registry.remove_domain(id);
                self.watch(&actions);
            }
            Event::Time { passes_ns } => {
                self.now_ns += passes_ns;
                let actions = self.registry.on_time(self.now_ns);
                self.watch(&actions);
                let next_ns = self.registry.next_ns();
                assert!(next_ns.is_none_or(|at| at > self.now_ns));
            }
        }
    }

    fn true_connection(&self, end: &SocketFacts) -> Option<usize> {
        self.sockets.iter().find(|(facts, _)| facts == end)?.1
    }

    fn check(&self) {
        let registry = &self.registry;
        let mut offered = 0;
        let mut live = BTreeSet::new();
        for (id, process) in &registry.processes {
            for (conn_id, conn) in &process.conns {
                let key = (*id, *conn_id);
                let (names, end) = (crate::pairing::names(&conn.facts), conn.facts.end_id());
                let on_kernel = matches!(conn.state, ConnState::Kernel(_));
                assert_eq!(process.on_kernel.contains(conn_id), on_kernel);
                if !on_kernel {
                    assert!(live.insert(end), "an end is live twice");
                    assert_eq!(registry.by_end.get(&end), Some(&key));
                }
                match conn.state {
                    ConnState::Offered { .. } => {
                        offered += 1;
                        assert_eq!(registry.offers.get(&names), Some(&key));
                    }
                    ConnState::Channel { channel, side } => {
                        let end = registry.channels[&channel].ends[side].expect("end");
                        assert_eq!((end.process, end.conn_id, end.over), (*id, *conn_id, false));
                        let is_udp = conn.facts.protocol == Protocol::Udp;
                        assert!(!is_udp || registry.has_datagrams());
                    }
                    ConnState::Kernel(_) => {}
                }
            }
        }
        assert_eq!(registry.offers.len(), offered);
        registry.check_alone();
        for (channel_ref, channel) in &registry.channels {
            let link = &registry.links[&channel.link];
            assert_eq!(link.channels.get(&channel.slot), Some(channel_ref));
            assert!(channel.ends.iter().flatten().any(|end| !end.over));
            self.check_truth(channel);
        }
        for (link_ref, link) in &registry.links {
            assert!(
                !((link.dead() || link.overdue) && link.channels.is_empty()),
                "a link outlived its use"
            );
            for (slot, channel) in &link.channels {
                let channel = &registry.channels[channel];
                assert_eq!((channel.link, channel.slot), (*link_ref, *slot));
            }
            for (side, member) in link.sides.iter().enumerate() {
                let Some(member) = member.filter(|member| !member.gone) else {
                    continue;
                };
                let owner = &registry.processes[&member.process];
                assert_eq!(owner.links.get(&member.link_id), Some(&(*link_ref, side)));
            }
        }
    }

    /// Two live ends of a channel are the ends of one true connection, unless a cheat
    /// was noticed and both were told to leave it.
    fn check_truth(&self, channel: &crate::links::Channel) {
        let [Some(a), Some(b)] = channel.ends else {
            return;
        };
        if a.over || b.over || channel.downgrading.is_some() {
            return;
        }
        let [a, b] = [a, b].map(|end| {
            let conn = self.registry.conn((end.process, end.conn_id));
            conn.expect("conn").facts
        });
        // When nobody owns an address any more, a namespace may cheat itself with it.
        if a.netns_cookie == b.netns_cookie && self.registry.domains().count() < 3 {
            return;
        }
        let connections = [&a, &b].map(|end| self.true_connection(end));
        assert_ne!(a.cookie, b.cookie);
        assert!(connections[0].is_some(), "a forged socket has a channel");
        assert_eq!(
            connections[0], connections[1],
            "two strangers share a channel"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_breaks_whatever_comes(events in proptest::collection::vec(event(), 1..150)) {
        let mut world = World {
            registry: registry(),
            now_ns: 0,
            sockets: sockets(),
            processes: Vec::new(),
            links_told: BTreeMap::new(),
            peers_told: BTreeMap::new(),
            channels_told: Vec::new(),
            ids: BTreeSet::new(),
        };
        for netns in 0..4 {
            world.apply(Event::Join { netns, fast: false });
        }
        for event in events {
            world.apply(event);
            world.check();
        }
        while let Some(process) = world.processes.first().copied() {
            world.gone(process);
            world.check();
        }
        prop_assert_eq!(world.registry.channels.len(), 0);
        prop_assert_eq!(world.registry.links.len(), 0);
        prop_assert_eq!(world.registry.offers.len(), 0);
        prop_assert_eq!(world.registry.by_end.len(), 0);
        prop_assert!(!world.registry.has_datagrams());
        prop_assert_eq!(world.registry.links_between.len(), 0);
        prop_assert_eq!(world.registry.links_by_key.len(), 0);
        prop_assert_eq!(world.registry.next_ns(), None);
    }
}
