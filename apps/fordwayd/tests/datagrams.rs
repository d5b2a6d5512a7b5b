//! Pairs of UDP sockets, offered to a real broker.

mod common;

use common::*;
use fordway_abi::control::{self as wire, protocol, status};
use fordway_abi::reason::Reason;
use fordway_platform::netns;
use fordwayd::admin::{Domain, Looked, Reply, Request};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

#[test]
fn broker_process() {
    common::broker_process();
}

/// A UDP socket of this name; others may have it as well.
fn udp(ip: Ipv4Addr, port: u16) -> UdpSocket {
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None).expect("socket");
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).expect("reuse");
    rustix::net::bind(&socket, &SocketAddr::from((ip, port))).expect("bind");
    socket.into()
}

fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().expect("name").port()
}

fn name(ip: Ipv4Addr, socket: &UdpSocket) -> SocketAddr {
    (ip, port(socket)).into()
}

/// The channel that a process is to leave, and why.
fn left(shim: &Shim) -> (u64, Option<Reason>) {
    let message: wire::Downgrade = shim.expect();
    (message.channel_id, Reason::from_u32(message.reason))
}

/// What an offer that waits is told.
fn waits(shim: &Shim) -> Option<Reason> {
    let reject: wire::Reject = shim.expect();
    assert_eq!(reject.pending, 1);
    Reason::from_u32(reject.reason)
}

#[test]
fn one_socket_is_paired_with_each_far_end_and_listed() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let server = udp(ANY, 0);
    let service = name(HERE, &server);
    let clients = [udp(HERE, 0), udp(ANY, 0)];
    clients[0].connect(service).expect("connect");
    let [first, second] = [&clients[0], &clients[1]].map(|client| name(HERE, client));
    a.claim(1, udp_claim(&clients[0], first, service));
    a.expect_silence();
    b.claim(1, udp_claim(&server, service, first));
    let link = linked(&a, &b, [1, 1]);
    a.claim(2, udp_claim(&clients[1], second, service));
    b.claim(2, udp_claim(&server, service, second));
    let pairs = [a.expect::<wire::Pair>(), b.expect()];
    assert_eq!(pairs.map(|pair| pair.conn_id), [2, 2]);

    let Reply::Connections { connections } = broker.ask(&Request::Connections) else {
        panic!("no connections")
    };
    let rows = connections.iter().filter(|row| row.protocol == "udp");
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 4);
    for row in &rows {
        let is = (row.path.as_str(), row.state.as_str(), row.joined, row.pid);
        assert_eq!(is, ("fast", "ESTAB", true, Some(std::process::id() as i32)));
    }
    let row = rows.iter().find(|row| row.local == first.to_string());
    let row = row.expect("its end");
    assert_eq!(row.remote, service.to_string());
    let asked = broker.ask(&Request::Downgrade {
        channel: row.channel,
    });
    assert!(!matches!(asked, Reply::Error { .. }), "{asked:?}");
    for shim in [&a, &b] {
        assert_eq!(left(shim), (link.a.channel_id, Some(Reason::Asked)));
    }
    // The other one stays.
    for shim in [&a, &b] {
        shim.expect_silence();
    }
}

#[test]
fn what_is_not_true_of_a_udp_socket_is_refused() {
    let dir = TempDir::new();
    let _broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let (server, client) = (udp(ANY, 0), udp(HERE, 0));
    let (service, far) = (name(HERE, &server), name(HERE, &client));
    let mapped = |ip: Ipv4Addr| ip.to_ipv6_mapped().octets();
    let of_server = udp_claim(&server, service, far);
    let of_client = udp_claim(&client, far, service);
    let also_here = mapped(Ipv4Addr::new(127, 0, 0, 2));
    let wrong = |change: &dyn Fn(&mut wire::Claim), of: wire::Claim| {
        let mut claim = of;
        change(&mut claim);
        a.claim(1, claim);
        refusal(&a).expect("a reason")
    };
    let of_other = of_client;
    let said = [
        wrong(&|claim| claim.cookie = of_other.cookie, of_server),
        wrong(&|claim| claim.cookie = u64::MAX, of_server),
        wrong(&|claim| claim.local_port = of_other.local_port, of_server),
        wrong(&|claim| claim.local_ip = also_here, of_client),
        wrong(&|claim| claim.protocol = protocol::TCP, of_server),
    ];
    assert_eq!(said, [Reason::NoPeer; 5]);
    let said = wrong(&|claim| claim.fd = of_other.fd, of_server);
    assert_eq!(said, Reason::Unproven);
    let multicast = mapped(Ipv4Addr::new(224, 0, 0, 1));
    let said = [
        wrong(&|claim| claim.protocol = 1, of_server),
        wrong(&|claim| claim.protocol = 0, of_server),
        wrong(&|claim| claim.remote_ip = multicast, of_server),
    ];
    assert_eq!(said, [Reason::Unsupported; 3]);
    // The kernel names the socket that is bound to any address, whatever address is asked about.
    let nobodys = mapped(Ipv4Addr::new(192, 0, 2, 1));
    for (shim, claim) in [
        (
            &a,
            wire::Claim {
                local_ip: nobodys,
                ..of_server
            },
        ),
        (
            &b,
            wire::Claim {
                remote_ip: nobodys,
                ..of_client
            },
        ),
    ] {
        shim.claim(2, claim);
        assert_eq!(waits(shim), Some(Reason::Unassigned));
    }
    a.expect_silence();
    b.expect_silence();

    // Another process has it under this number, and this one has it no more.
    let mut child = Command::new("cat")
        .stdin(OwnedFd::from(server))
        .stdout(Stdio::null())
        .spawn()
        .expect("cat");
    b.claim(1, of_client);
    for thread in [0, child.id()] {
        let said = wrong(&|claim| (claim.fd, claim.thread) = (0, thread), of_server);
        assert_eq!(said, Reason::Unproven);
    }
    b.expect_silence();
    child.kill().expect("kill");
    child.wait().expect("wait");
}

#[test]
fn a_pair_ends_when_the_kernel_chooses_another_socket() {
    let dir = TempDir::new();
    let _broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let mut conn_id = 0;
    let mut first = None;
    let mut ends = |change: &mut dyn FnMut(UdpSocket, &UdpSocket) -> Vec<UdpSocket>| {
        let (server, client) = (udp(ANY, 0), udp(HERE, 0));
        let (service, far) = (name(HERE, &server), name(HERE, &client));
        conn_id += 1;
        a.claim(conn_id, udp_claim(&client, far, service));
        b.claim(conn_id, udp_claim(&server, service, far));
        let channel = match first {
            None => {
                let link = linked(&a, &b, [conn_id; 2]);
                first.insert(link).a.channel_id
            }
            Some(_) => {
                let pairs = [a.expect::<wire::Pair>(), b.expect()];
                assert_eq!(pairs.map(|pair| pair.conn_id), [conn_id; 2]);
                pairs[0].channel_id
            }
        };
        let _kept = change(server, &client);
        let told = [left(&a), left(&b)];
        assert_eq!(told.map(|told| told.0), [channel; 2]);
        assert_eq!(told[0].1, told[1].1);
        told[0].1.expect("a reason")
    };
    let closer = ends(&mut |server, _| {
        let closer = udp(HERE, port(&server));
        vec![server, closer]
    });
    let elsewhere = ends(&mut |server, client| {
        client.connect((HERE, 9)).expect("connect");
        vec![server]
    });
    let closed = ends(&mut |_, _| Vec::new());
    assert_eq!([closer, elsewhere, closed], [Reason::NoPeer; 3]);
    // It is there, and not where the process said.
    let moved = ends(&mut |server, _| vec![server.try_clone().expect("dup")]);
    assert_eq!(moved, Reason::Unproven);
}

/// A socket in a domain.
fn inside(domain: &Domain, port: u16) -> UdpSocket {
    let socket = netns::within(open(domain).as_fd(), || udp(ANY, port));
    socket.expect("enter")
}

/// Puts one rule in force between domains.
fn load(broker: &Broker, rule: &str) -> Looked {
    let chain = "type filter hook forward priority 0;";
    let text = format!("table inet t {{\nchain c {{\n{chain}\n{rule}\n}}\n}}\n");
    match broker.ask(&Request::FilterLoad { text, epoch: None }) {
        Reply::FilterChange(change) => change.channels,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pairs_across_domains_are_under_rule_and_rules() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let domains = Domains(&broker);
    let [db, web] = ["db", "web"].map(|name| domains.add(name, None));
    let (server, client) = (inside(&db, 5353), inside(&web, 0));
    let [db_ip, web_ip] = [&db, &web].map(|domain| domain.ip.expect("ip"));
    let (service, far) = (name(db_ip, &server), name(web_ip, &client));
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let offer = || {
        a.claim(1, udp_claim(&client, far, service));
        b.claim(1, udp_claim(&server, service, far));
    };
    // Each with the other's address, and with one that is nobody's.
    let nobodys = Ipv4Addr::new(10, 77, 0, 200);
    for (shim, socket, local, remote) in [
        (&a, &client, service.ip(), far),
        (&b, &server, far.ip(), service),
        (&b, &server, nobodys.into(), far),
    ] {
        let local = SocketAddr::new(local, port(socket));
        shim.claim(7, udp_claim(socket, local, remote));
        assert_eq!(waits(shim), Some(Reason::Unassigned));
    }
    // The same names in a namespace of the thief's own.
    let private = PrivateNamespace::new(dir.path(), &[db_ip]);
    let forged = private.within(|| udp(ANY, 5353));
    let thief = private.within(|| Shim::join(dir.path()));
    a.claim(1, udp_claim(&client, far, service));
    thief.claim(1, udp_claim(&forged, service, far));
    assert_eq!(waits(&thief), Some(Reason::Unassigned));
    a.expect_silence();
    offer();
    let link = linked(&a, &b, [1, 1]);

    let load = |rule| load(&broker, rule);
    assert_eq!(load("tcp dport 5353 drop").stay, 1);
    let looked = load("udp dport 5353 drop");
    assert_eq!((looked.stay, looked.moved, looked.cut), (0, 1, 0));
    for shim in [&a, &b] {
        let (channel_id, reason) = left(shim);
        assert_eq!(
            (channel_id, reason),
            (link.a.channel_id, Some(Reason::Filter))
        );
        let report = wire::Status {
            conn_id: 1,
            channel_id,
            status: status::KERNEL,
            reason: Reason::Filter as u32,
            ring_bytes_tx: 0,
            ring_bytes_rx: 0,
        };
        shim.send(&report, &[]);
    }
    // Offered again, they wait for other rules.
    for shim in [&a, &b] {
        shim.expect_silence();
    }
    offer();
    assert_eq!([waits(&a), waits(&b)], [Some(Reason::Filter); 2]);
    assert_eq!(
        load("udp dport 5353 ct state established,new accept").paired,
        1
    );
    let pairs = [a.expect::<wire::Pair>(), b.expect()];
    assert_eq!(pairs.map(|pair| pair.conn_id), [1, 1]);

    let removed = broker.ask(&Request::DomainRemove {
        name: "db".into(),
        force: true,
    });
    assert!(matches!(removed, Reply::Done), "{removed:?}");
    for shim in [&a, &b] {
        assert_eq!(left(shim), (pairs[0].channel_id, Some(Reason::Unassigned)));
    }
}

/// Who receives, and whether the sender does; or why the kernel is to know.
fn everybody(shim: &Shim) -> Result<(Vec<Ipv4Addr>, u32), Option<Reason>> {
    let told: wire::Everybody = shim.expect();
    let (ips, behind) = told.ips.split_at(told.count as usize);
    assert_eq!(told.conn_id, 1);
    assert!(behind.iter().all(|ip| *ip == [0; 4]), "{told:?}");
    match told.reason {
        0 => Ok((ips.iter().map(|ip| (*ip).into()).collect(), told.own)),
        reason => Err(Reason::from_u32(reason)),
    }
}

#[test]
fn a_sender_is_told_of_all_who_hear_its_broadcasts_or_of_none() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let domains = Domains(&broker);
    let [one, two, three] = ["one", "two", "three"].map(|name| domains.add(name, None));
    let [ip1, ip2, ip3] = [&one, &two, &three].map(|domain| domain.ip.expect("ip"));
    let all = SocketAddr::from((Ipv4Addr::new(10, 77, 0, 255), 7000));
    let shim = Shim::join(dir.path());
    let offer = |claim| {
        shim.send(
            &wire::Offer {
                conn_id: 1,
                declined: 0,
                to_all: 1,
                claim,
            },
            &[],
        );
    };
    let sender = inside(&one, 0);
    let claim = udp_claim(&sender, name(ip1, &sender), all);
    // Of no network of domains, by an address of somebody else's, and by a socket that is not there.
    for (ip, remote, cookie, reason) in [
        (ip1, (ip2, 7000).into(), claim.cookie, Reason::Unsupported),
        (ip2, all, claim.cookie, Reason::Unassigned),
        (ip1, all, claim.cookie + 1, Reason::NoPeer),
    ] {
        let named = udp_claim(&sender, name(ip, &sender), remote);
        offer(wire::Claim { cookie, ..named });
        assert_eq!(refusal(&shim), Some(reason));
    }

    offer(claim);
    let no_peer = Err(Some(Reason::NoPeer));
    assert_eq!(everybody(&shim), no_peer);
    let second = inside(&two, 7000);
    assert_eq!(everybody(&shim), Ok((vec![ip2], 0)));
    let third = inside(&three, 7000);
    assert_eq!(everybody(&shim), Ok((vec![ip2, ip3], 0)));
    let beside = inside(&two, 7000);
    assert_eq!(everybody(&shim), no_peer, "who of the two has a datagram?");
    drop(beside);
    assert_eq!(everybody(&shim), Ok((vec![ip2, ip3], 0)));
    let plain = netns::within(open(&one).as_fd(), || {
        udp(all.ip().to_string().parse().expect("ip"), 7000)
    });
    assert_eq!(
        everybody(&shim),
        no_peer,
        "one is bound to the broadcast address"
    );
    drop(plain);
    assert_eq!(everybody(&shim), Ok((vec![ip2, ip3], 0)));
    drop(third);
    assert_eq!(everybody(&shim), Ok((vec![ip2], 0)));

    // With new rules the kernel has them until the next look.
    let third = inside(&three, 7000);
    assert_eq!(everybody(&shim), Ok((vec![ip2, ip3], 0)));
    let filtered = Err(Some(Reason::Filter));
    load(&broker, "udp dport 53 drop");
    assert_eq!(everybody(&shim), filtered);
    assert_eq!(everybody(&shim), Ok((vec![ip2, ip3], 0)));
    // A broadcast's destination is no receiver's, but a record's is.
    load(&broker, &format!("ip daddr {ip3} udp dport 7000 drop"));
    assert_eq!(everybody(&shim), filtered);
    load(&broker, "udp dport 7000 drop");
    assert_eq!(everybody(&shim), no_peer, "nobody has it");
    load(&broker, "ip daddr 10.77.0.255 limit rate 1/second accept");
    assert_eq!(everybody(&shim), filtered);
    load(&broker, "udp dport 53 drop");
    assert_eq!(everybody(&shim), Ok((vec![ip2, ip3], 0)));

    // So many of one process; one that is refused may come again.
    let far = (0..9).map(|n| SocketAddr::from((all.ip(), 7001 + n)));
    let claims = far.map(|all| udp_claim(&sender, name(ip1, &sender), all));
    let answers = claims.enumerate().map(|(n, claim)| {
        let (conn_id, declined) = (2 + n as u64, 0);
        let to_all = 1;
        shim.send(
            &wire::Offer {
                conn_id,
                declined,
                to_all,
                claim,
            },
            &[],
        );
        let answer = shim.receive();
        (answer.kind == wire::kind::Reject, conn_id)
    });
    let refused: Vec<u64> = answers.filter(|(is, _)| *is).map(|(_, id)| id).collect();
    assert_eq!(refused, [9, 10]);

    // One that hears itself.
    let withdrawn = wire::Status {
        conn_id: 1,
        channel_id: 0,
        status: status::WITHDRAWN,
        reason: 0,
        ring_bytes_tx: 0,
        ring_bytes_rx: 0,
    };
    shim.send(&withdrawn, &[]);
    drop(second);
    shim.expect_silence();
    let own = inside(&one, 7000);
    offer(udp_claim(&own, name(ip1, &own), all));
    assert_eq!(everybody(&shim), Ok((vec![ip3], 1)));
    drop((sender, third));
    assert_eq!(everybody(&shim), no_peer, "nobody else");
}

/// Its connection tracking would forget a pair without packets within half a minute.
#[test]
fn the_fabric_is_told_that_a_pair_goes_on() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let domains = Domains(&broker);
    let [db, web] = ["db", "web"].map(|name| domains.add(name, None));
    load(&broker, "ct state new,established accept");
    let (server, client) = (inside(&db, 5353), inside(&web, 0));
    let [db_ip, web_ip] = [&db, &web].map(|domain| domain.ip.expect("ip"));
    let (service, far) = (name(db_ip, &server), name(web_ip, &client));
    client.send_to(b"x", service).expect("sent");
    let (_, from) = server.recv_from(&mut [0]).expect("received");
    assert_eq!(from, far);

    let fabric = Path::new(db.netns_path.as_ref().expect("path")).with_file_name(".fabric");
    let fabric = netns::open(&fabric).expect("open").expect("the fabric");
    // How long each entry of UDP is known, in seconds: its fifth word.
    let known_s = || {
        let read = || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack");
        let entries = netns::within(fabric.as_fd(), read).expect("enter").ok()?;
        let entries = entries.lines().filter(|entry| entry.contains(" udp "));
        let words = entries.filter_map(|entry| entry.split_whitespace().nth(4));
        Some(
            words
                .map(|word| word.parse().expect("seconds"))
                .collect::<Vec<u64>>(),
        )
    };
    let Some(before) = known_s() else {
        fordway_test_skip::skipped("the kernel does not list its connection tracking");
        return;
    };
    assert!(matches!(before[..], [0..=30]), "{before:?}");
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    a.claim(1, udp_claim(&client, far, service));
    b.claim(1, udp_claim(&server, service, far));
    linked(&a, &b, [1, 1]);
    let until = Instant::now() + Duration::from_secs(10);
    while !matches!(known_s().as_deref(), Some([31..=60])) {
        assert!(Instant::now() < until, "{:?}", known_s());
    }
}
