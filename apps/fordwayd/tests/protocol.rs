//! What the broker says to shims that keep to the protocol.

mod common;

use common::*;
use fordway_abi::control as wire;
use fordway_abi::reason::Reason;
use fordway_abi::{ABI_VERSION, shm};
use fordwayd::admin::{ErrorKind, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd};

#[test]
fn broker_process() {
    common::broker_process();
}

fn connections(broker: &Broker) -> Vec<fordwayd::admin::Connection> {
    match broker.ask(&Request::Connections) {
        Reply::Connections { connections } => connections,
        other => panic!("{other:?}"),
    }
}

#[test]
fn hello_is_answered_with_number_domain_and_mailbox() {
    let dir = TempDir::new();
    let _broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let [x, y] = [&a, &b].map(|shim| shim.welcome.expect("welcome"));
    assert_eq!((x.abi_version, x.domain_id), (ABI_VERSION, 0));
    assert_ne!(x.process_id, y.process_id);
    assert_ne!(x.process_id, 0);
    let mailbox = a.mailbox.as_ref().expect("mailbox");
    // One for the welcome, one for the next packet, each after it was sent.
    a.expect_silence();
    while mailbox.load_u32(0) != Some(2) {
        std::thread::yield_now();
    }
}

#[test]
fn a_word_about_a_link_of_another_broker_is_no_fault() {
    let dir = TempDir::new();
    let _broker = Broker::start(dir.path());
    let shim = Shim::join(dir.path());
    for link_id in [0, 7, u64::MAX] {
        shim.send(&wire::LetGo { link_id }, &[]);
    }
    // It is served as before.
    shim.expect_silence();
}

#[test]
fn an_unlike_version_is_refused_and_both_are_named() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let shim = Shim::connect(dir.path());
    shim.send(&hello(ABI_VERSION + 41), &[shim.page.as_fd()]);
    let refuse: wire::Refuse = shim.expect();
    assert_eq!(refuse.abi_version, ABI_VERSION);
    assert_eq!(Reason::from_u32(refuse.reason), Some(Reason::Version));
    shim.expect_end();
    let versions = [(ABI_VERSION + 41).to_string(), ABI_VERSION.to_string()];
    broker.logged(&["refused", &versions[0], &versions[1]]);

    // Its connections are listed, and it does not have to be there for that.
    let (x, _y) = tcp_pair();
    let name = x.local_addr().expect("a name").to_string();
    let rows = connections(&broker);
    let row = rows.iter().find(|row| row.local == name).expect("a row");
    assert_eq!(row.reason.as_deref(), Some(Reason::Version.word()));
    assert!(
        row.joined && row.pid == Some(std::process::id() as i32),
        "{row:?}"
    );

    // A longer Hello of a version to come, with descriptors that we would not map.
    let shim = Shim::connect(dir.path());
    let mut packet = packet_of(&hello(ABI_VERSION + 1));
    packet.extend([0; 24]);
    packet[4..8].copy_from_slice(&48u32.to_ne_bytes());
    shim.send_raw(&packet, &[shim.page.as_fd(); 3]);
    assert_eq!(shim.expect::<wire::Refuse>().abi_version, ABI_VERSION);
    shim.expect_end();
}

#[test]
fn two_processes_get_a_link_and_channels() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let (x, y) = tcp_pair();
    let linked = link(&a, &b, [11, 22], [x.as_fd(), y.as_fd()]);
    assert_eq!((linked.a.slot, linked.a.generation), (0, 1));

    // The second connection needs no link.
    let (v, w) = tcp_pair();
    b.offer(33, &w);
    a.offer(44, &v);
    assert_eq!(a.expect::<wire::Pair>().slot, 1);
    assert_eq!(b.expect::<wire::Pair>().slot, 1);

    let rows = connections(&broker);
    let own = x.local_addr().expect("name").to_string();
    let row = rows.iter().find(|row| row.local == own).expect("row");
    assert_eq!((row.path.as_str(), row.reason.as_deref()), ("fast", None));
    // Short, and the same at both ends.
    assert!(matches!(row.channel, Some(1 | 2)), "{row:?}");
    let same = rows.iter().filter(|other| other.channel == row.channel);
    assert_eq!(same.count(), 2);
    assert_eq!(
        (row.domain.as_str(), row.peer_domain.as_deref()),
        ("host", Some("host"))
    );
    assert_eq!(row.pid, Some(std::process::id() as i32));
    assert_eq!(row.state, "ESTAB");
    a.expect_silence();
}

#[test]
fn one_process_can_hold_both_ends() {
    let dir = TempDir::new();
    let _broker = Broker::start(dir.path());
    let shim = Shim::join(dir.path());
    let (x, y) = tcp_pair();
    shim.offer(1, &x);
    shim.offer(2, &y);
    let links = [shim.expect::<wire::Link>(), shim.expect::<wire::Link>()];
    assert_ne!(links[0].link_id, links[1].link_id);
    assert_eq!(links[0].link_key, links[1].link_key);
    let regions = links.map(|link| {
        let region = sealed(shm::REGION_BYTES);
        let link_id = link.link_id;
        shim.send(&wire::Region { link_id }, &[region.as_fd()]);
        (link_id, region)
    });
    for _ in 0..2 {
        let packet = shim.receive();
        let peer: wire::Peer = packet.body();
        let (_, other) = regions
            .iter()
            .find(|(id, _)| *id != peer.link_id)
            .expect("side");
        assert_eq!(identity(&packet.fds[0]), identity(other));
    }
    let (bells, first) = bells_and_pair(&shim);
    assert_eq!((bells.shows.len(), bells.knocks.len()), (1, 1));
    let pairs = [first, shim.expect::<wire::Pair>()];
    assert_eq!(pairs[0].channel_id, pairs[1].channel_id);
    assert_ne!(pairs[0].conn_id, pairs[1].conn_id);
    assert_ne!(pairs[0].link_id, pairs[1].link_id);
}

#[test]
fn a_new_doorbell_reaches_the_peer_before_it_is_acknowledged() {
    let dir = TempDir::new();
    let _broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let (x, y) = tcp_pair();
    let linked = link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);
    a.send(&wire::Door { door: 7 }, &[]);
    let own = a.receive();
    let message: wire::OwnDoor = own.body();
    assert_eq!((message.link_id, message.door), (linked.a.link_id, 7));
    assert_eq!(a.expect::<wire::DoorAck>().door, 7);
    let packet = b.receive();
    let message: wire::PeerDoor = packet.body();
    assert_eq!((message.link_id, message.door), (linked.b.link_id, 7));
    assert!(!shows(&own.fds[0]));
    rustix::io::write(&packet.fds[0], &1u64.to_ne_bytes()).expect("ring");
    assert!(shows(&own.fds[0]));
    // Who sleeps can take nothing away from who knocks.
    let mut count = [0; 8];
    assert!(rustix::io::read(&own.fds[0], &mut count).is_err());
    assert!(rustix::io::write(&own.fds[0], &count).is_err());
    assert_eq!(rustix::io::read(&packet.fds[0], &mut count), Ok(8));
    // A second time is no news for others.
    a.send(&wire::Door { door: 7 }, &[]);
    assert_eq!(a.expect::<wire::DoorAck>().door, 7);
    b.expect_silence();

    // A later peer gets it with the link.
    let c = Shim::join(dir.path());
    let (x, y) = tcp_pair();
    a.offer(3, &x);
    c.offer(4, &y);
    for shim in [&a, &c] {
        let link_id = shim.expect::<wire::Link>().link_id;
        let region = sealed(shm::REGION_BYTES);
        shim.send(&wire::Region { link_id }, &[region.as_fd()]);
    }
    c.expect::<wire::Peer>();
    let (bells, _) = bells_and_pair(&c);
    assert!(bells.knocks.keys().eq(&[0, 7]) && bells.shows.keys().eq(&[0]));
}

/// Whether an epoll instance is readable.
fn shows(view: &std::os::fd::OwnedFd) -> bool {
    let mut entries = [PollFd::new(view, PollFlags::IN)];
    poll(&mut entries, Some(&Timespec::default())).expect("poll") == 1
}

#[test]
fn the_end_of_a_connection_is_told_to_peers() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let (x, y) = tcp_pair();
    let linked = link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);
    drop(a);
    assert_eq!(b.expect::<wire::PeerGone>().link_id, linked.b.link_id);
    b.send(
        &wire::Status {
            conn_id: 2,
            channel_id: linked.b.channel_id,
            status: wire::status::CLOSED,
            reason: 0,
            ring_bytes_tx: 5,
            ring_bytes_rx: 6,
        },
        &[],
    );
    b.expect_silence();
    let Reply::Info(info) = broker.ask(&Request::Info) else {
        panic!("no info")
    };
    assert_eq!(
        (info.processes, info.channels, info.ring_bytes_total),
        (1, 0, 5)
    );
    assert_eq!(info.protocol_errors, 0);
}

#[test]
fn an_administrator_can_ask_for_the_kernel_path() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let (x, y) = tcp_pair();
    let linked = link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);
    // Nobody has seen a number yet.
    let channel = Some(1);
    assert!(matches!(
        broker.ask(&Request::Downgrade { channel }),
        Reply::Error { .. }
    ));
    connections(&broker);
    assert!(matches!(
        broker.ask(&Request::Downgrade { channel }),
        Reply::Done
    ));
    for shim in [&a, &b] {
        let message: wire::Downgrade = shim.expect();
        assert_eq!(message.channel_id, linked.a.channel_id);
        assert_eq!(Reason::from_u32(message.reason), Some(Reason::Asked));
    }
    for (shim, conn_id) in [(&a, 1), (&b, 2)] {
        shim.send(
            &wire::Status {
                conn_id,
                channel_id: linked.a.channel_id,
                status: wire::status::KERNEL,
                reason: Reason::Asked as u32,
                ring_bytes_tx: 100,
                ring_bytes_rx: 200,
            },
            &[],
        );
        shim.expect_silence();
    }
    let rows = connections(&broker);
    let own = x.local_addr().expect("name").to_string();
    let row = rows.iter().find(|row| row.local == own).expect("row");
    assert_eq!(
        (row.path.as_str(), row.reason.as_deref()),
        ("kernel", Some("asked"))
    );
    assert_eq!((row.ring_bytes_tx, row.ring_bytes_rx), (100, 200));
    let unknown = Request::Downgrade { channel };
    assert!(matches!(
        broker.ask(&unknown),
        Reply::Error {
            kind: ErrorKind::NotFound,
            ..
        }
    ));
}

#[test]
fn reasons_are_shown_for_what_is_on_the_kernel_path() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let shim = Shim::join(dir.path());
    let (x, y) = tcp_pair();
    let (v, _w) = tcp_pair();
    shim.offer(1, &x);
    shim.expect_silence();
    let rows = connections(&broker);
    let reason = |stream: &std::net::TcpStream| {
        let name = stream.local_addr().expect("name").to_string();
        let row = rows.iter().find(|row| row.local == name).expect("row");
        row.reason.clone().expect("reason")
    };
    // All four sockets are held by this process, which speaks to the broker.
    assert_eq!(
        [reason(&x), reason(&y), reason(&v)],
        ["waiting", "young", "young"]
    );
}

fn shown(broker: &Broker, stream: &std::net::TcpStream) -> (String, Option<String>) {
    let name = stream.local_addr().expect("name").to_string();
    let rows = connections(broker);
    let row = rows.into_iter().find(|row| row.local == name).expect("row");
    (row.path, row.reason)
}

/// One end has left for a reason that stands; the other one offers itself again, and in vain.
#[test]
fn who_waits_for_an_end_that_will_not_come_shows_why() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let (x, y) = tcp_pair();
    let linked = link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);
    connections(&broker);
    let channel = Some(1);
    assert!(matches!(
        broker.ask(&Request::Downgrade { channel }),
        Reply::Done
    ));
    for (shim, conn_id, reason) in [(&a, 1, Reason::Asked as u32), (&b, 2, 0)] {
        shim.expect::<wire::Downgrade>();
        let report = wire::Status {
            conn_id,
            channel_id: linked.a.channel_id,
            status: wire::status::KERNEL,
            reason,
            ring_bytes_tx: 0,
            ring_bytes_rx: 0,
        };
        shim.send(&report, &[]);
        shim.expect_silence();
    }
    let asked = ("kernel".to_owned(), Some("asked".to_owned()));
    assert_eq!(
        [shown(&broker, &x), shown(&broker, &y)],
        [asked.clone(), asked.clone()]
    );
    b.offer(2, &y);
    b.expect_silence();
    assert_eq!(
        [shown(&broker, &x), shown(&broker, &y)],
        [asked.clone(), asked]
    );
}

/// What a program knows of a connection that it never offers is listed, at both ends; it is its
/// own socket, or nothing.
#[test]
fn what_is_never_offered_is_listed_with_its_reason() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let (x, y) = tcp_pair();
    b.offer(2, &y);
    b.expect_silence();
    a.decline(1, &x, Reason::Forked);
    a.expect_silence();
    let forked = ("kernel".to_owned(), Some("forked".to_owned()));
    assert_eq!(
        [shown(&broker, &x), shown(&broker, &y)],
        [forked.clone(), forked]
    );
    // What another process has offered is not for it to say, nor what is no socket of anybody's.
    a.decline(3, &y, Reason::Oob);
    let gone = tcp_pair().0;
    a.decline(4, &gone, Reason::Oob);
    drop(gone);
    a.expect_silence();
    b.expect_silence();
    assert_ne!(shown(&broker, &y).1.as_deref(), Some("oob"));
    // It may come to be offered after all.
    a.offer(1, &x);
    a.expect::<wire::Link>();
    b.expect::<wire::Link>();
}

#[test]
fn a_killed_broker_is_followed_by_one_that_knows_the_channels() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let (x, y) = tcp_pair();
    let linked = link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);
    let first = [&a, &b].map(|shim| shim.welcome.expect("welcome").process_id);
    broker.kill();
    a.expect_end();
    b.expect_end();

    let broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    for shim in [&a, &b] {
        assert!(!first.contains(&shim.welcome.expect("welcome").process_id));
    }
    let sides: [(&Shim, wire::Pair, BorrowedFd<'_>, BorrowedFd<'_>); 2] = [
        (&a, linked.a, linked.regions[0].as_fd(), x.as_fd()),
        (&b, linked.b, linked.regions[1].as_fd(), y.as_fd()),
    ];
    for (shim, pair, region, socket) in sides {
        let link = wire::RejoinLink {
            link_id: pair.link_id,
            link_key: linked.key,
        };
        shim.send(&link, &[region]);
        let channel = wire::RejoinChannel {
            conn_id: pair.conn_id,
            channel_id: pair.channel_id,
            link_id: pair.link_id,
            slot: pair.slot,
            generation: pair.generation,
            claim: claim(socket),
        };
        shim.send(&channel, &[]);
        shim.send(&wire::Door { door: 2 }, &[]);
    }
    // Each gets the doorbells of both anew, whoever came back first.
    for (shim, pair) in [(&a, linked.a), (&b, linked.b)] {
        let mut rings = Vec::new();
        let mut shows = Vec::new();
        for _ in 0..5 {
            let packet = shim.receive();
            let link_id = match packet.kind {
                wire::kind::PeerDoor => {
                    let message: wire::PeerDoor = packet.body();
                    rings.push(message.door);
                    message.link_id
                }
                wire::kind::OwnDoor => {
                    let message: wire::OwnDoor = packet.body();
                    shows.push(message.door);
                    message.link_id
                }
                _ => {
                    assert_eq!(packet.body::<wire::DoorAck>().door, 2);
                    continue;
                }
            };
            assert_eq!(link_id, pair.link_id);
        }
        rings.sort_unstable();
        shows.sort_unstable();
        assert_eq!((rings, shows), (vec![0, 2], vec![0, 2]));
    }
    let rows = connections(&broker);
    let own = x.local_addr().expect("name").to_string();
    let row = rows.iter().find(|row| row.local == own).expect("row");
    assert_eq!((row.path.as_str(), row.channel), ("fast", Some(1)));

    // A new connection does not come near the old slots: it gets a link of its own.
    let (v, w) = tcp_pair();
    let second = link(&a, &b, [3, 4], [v.as_fd(), w.as_fd()]);
    assert_ne!(second.a.link_id, linked.a.link_id);
    assert_ne!(second.a.channel_id, linked.a.channel_id);
    let channel = Some(1);
    assert!(matches!(
        broker.ask(&Request::Downgrade { channel }),
        Reply::Done
    ));
    assert_eq!(
        b.expect::<wire::Downgrade>().channel_id,
        linked.a.channel_id
    );
}

#[test]
fn a_directory_has_one_broker() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let error = Broker::try_start(dir.path(), Options::default())
        .err()
        .expect("refused");
    let pid = broker.child.id().to_string();
    assert!(
        error.contains("already runs") && error.contains(&pid),
        "{error}"
    );
    assert!(matches!(broker.ask(&Request::Info), Reply::Info(_)));
    // The sockets of a killed one are replaced.
    broker.kill();
    let broker = Broker::start(dir.path());
    broker.down();
}

#[test]
fn down_ends_the_broker_and_its_sockets() {
    let dir = TempDir::new();
    let mut broker = Broker::start(dir.path());
    broker.down();
    assert!(broker.child.wait().expect("wait").success());
    assert!(!dir.path().join(fordwayd::admin::ADMIN_SOCKET).exists());
    assert!(!dir.path().join(fordwayd::admin::CONTROL_SOCKET).exists());
}

#[test]
fn an_administrator_who_asks_nonsense_is_told_so() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    for line in [
        "",
        "{}",
        "[1]",
        r#"{"op":"fly"}"#,
        r#"{"op":"down"}"#,
        &"x".repeat(100_000),
    ] {
        assert!(matches!(
            broker.ask_raw(line),
            Reply::Error {
                kind: ErrorKind::BadInput,
                ..
            }
        ));
    }
    let name = "a/b".to_owned();
    assert!(matches!(
        broker.ask(&Request::DomainAdd {
            name,
            ip: None,
            publish: Vec::new()
        }),
        Reply::Error {
            kind: ErrorKind::BadInput,
            ..
        }
    ));
    let remove = Request::DomainRemove {
        name: "host".into(),
        force: true,
    };
    assert!(matches!(
        broker.ask(&remove),
        Reply::Error {
            kind: ErrorKind::BadInput,
            ..
        }
    ));
    let remove = Request::DomainRemove {
        name: "none".into(),
        force: true,
    };
    assert!(matches!(
        broker.ask(&remove),
        Reply::Error {
            kind: ErrorKind::NotFound,
            ..
        }
    ));
}

#[test]
fn the_service_manager_is_told() {
    let dir = TempDir::new();
    let path = dir.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).expect("bind");
    let options = Options {
        notify_socket: Some(path),
        ..Options::default()
    };
    let broker = Broker::try_start(&dir.path().join("run"), options).expect("broker");
    let hear = || {
        let mut buffer = [0; 64];
        let count = manager.recv(&mut buffer).expect("receive");
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    };
    assert_eq!(hear(), "READY=1");
    broker.down();
    assert_eq!(hear(), "STOPPING=1");
}
