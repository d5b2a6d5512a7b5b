//! What the broker does with programs that do not keep to the protocol: they lose
//! their connection, and nobody else notices.

mod common;

use common::*;
use fordway_abi::control::{self as wire, Header, PACKET_BYTES_MAX, kind};
use fordway_abi::reason::Reason;
use fordway_abi::{ABI_VERSION, shm};
use fordway_platform::memfd;
use fordwayd::admin::{Reply, Request};
use rustix::fs::SealFlags;
use rustix::process::Signal;
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use zerocopy::IntoBytes;

#[test]
fn broker_process() {
    common::broker_process();
}

/// That the broker still serves, by pairing a connection.
fn still_serves(broker: &Broker) {
    let [a, b] = [Shim::join(&broker.dir), Shim::join(&broker.dir)];
    let (x, y) = tcp_pair();
    link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);
}

fn protocol_errors(broker: &Broker) -> u64 {
    match broker.ask(&Request::Info) {
        Reply::Info(info) => info.protocol_errors,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_wrong_length_ends_the_connection() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let (socket, _other) = tcp_pair();
    let mut dropped = 0;
    for kind in [
        kind::Offer,
        kind::Region,
        kind::Door,
        kind::Status,
        kind::RejoinLink,
        kind::RejoinChannel,
        kind::LetGo,
    ] {
        let (body, fds) = wire::shape(kind).expect("kind");
        for length in 1..=PACKET_BYTES_MAX + 1 {
            if length == size_of::<Header>() + body {
                continue;
            }
            let shim = Shim::join(dir.path());
            let header = Header {
                kind,
                length_bytes: length as u32,
            };
            let mut packet = header.as_bytes().to_vec();
            packet.resize(length, 0);
            let fds = vec![socket.as_fd(); *fds.start()];
            shim.send_raw(&packet, &fds);
            shim.expect_end();
            dropped += 1;
        }
    }
    for length in (1..=PACKET_BYTES_MAX + 1).filter(|length| *length != 24) {
        let shim = Shim::connect(dir.path());
        let mut packet = packet_of(&hello(ABI_VERSION));
        packet.resize(length, 0);
        shim.send_raw(&packet, &[shim.page.as_fd()]);
        shim.expect_end();
        dropped += 1;
    }
    assert_eq!(protocol_errors(&broker), dropped);
    assert_eq!(
        broker.log_count("broke the control protocol"),
        1,
        "once for each process"
    );
    still_serves(&broker);
}

#[test]
fn a_header_that_lies_ends_the_connection() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    for lie in [0, 7, 8, 15, 17, u32::MAX] {
        let shim = Shim::join(dir.path());
        let mut packet = packet_of(&empty_offer());
        packet[4..8].copy_from_slice(&lie.to_ne_bytes());
        shim.send_raw(&packet, &[]);
        shim.expect_end();
    }
    still_serves(&broker);
}

#[test]
fn messages_that_are_not_a_shims_end_the_connection() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let everything = (0..40).chain([u32::MAX]);
    let allowed = [
        kind::Offer,
        kind::Region,
        kind::Door,
        kind::Status,
        kind::RejoinLink,
        kind::RejoinChannel,
        kind::LetGo,
    ];
    for kind in everything.filter(|kind| !allowed.contains(kind)) {
        let (body, fds) = wire::shape(kind).unwrap_or((8, 0..=0));
        let length = size_of::<Header>() + body;
        let shim = Shim::join(dir.path());
        let mut packet = Header {
            kind,
            length_bytes: length as u32,
        }
        .as_bytes()
        .to_vec();
        packet.resize(length, 0);
        let fds = vec![shim.page.as_fd(); *fds.start()];
        shim.send_raw(&packet, &fds);
        shim.expect_end();
    }
    // And anything at all before Hello.
    for kind in allowed {
        let shim = Shim::connect(dir.path());
        let (body, fds) = wire::shape(kind).expect("kind");
        let length = size_of::<Header>() + body;
        let mut packet = Header {
            kind,
            length_bytes: length as u32,
        }
        .as_bytes()
        .to_vec();
        packet.resize(length, 0);
        shim.send_raw(&packet, &vec![shim.page.as_fd(); *fds.start()]);
        shim.expect_end();
    }
    still_serves(&broker);
}

#[test]
fn wrong_descriptor_counts_end_the_connection() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    for count in [1, 2, 3, 16] {
        let shim = Shim::join(dir.path());
        let (socket, _other) = tcp_pair();
        shim.send(&empty_offer(), &vec![socket.as_fd(); count]);
        shim.expect_end();
    }
    // As many as the kernel lets pass at once (SCM_MAX_FD).
    let shim = Shim::join(dir.path());
    send_many(&shim, &vec![shim.page.as_fd(); 253]);
    shim.expect_end();
    still_serves(&broker);
}

/// Of nothing.
fn empty_offer() -> wire::Offer {
    wire::Offer {
        conn_id: 1,
        declined: 0,
        to_all: 0,
        claim: wire::Claim::NONE,
    }
}

/// An offer with as many descriptors as the kernel lets pass.
fn send_many(shim: &Shim, fds: &[BorrowedFd<'_>]) {
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(fds)));
    let packet = packet_of(&empty_offer());
    let iov = [std::io::IoSlice::new(&packet)];
    let flags = rustix::net::SendFlags::empty();
    rustix::net::sendmsg(&shim.socket, &iov, &mut control, flags).expect("sendmsg");
}

/// Descriptors that pretend to be shared memory of `bytes` bytes.
fn false_memory(bytes: usize) -> Vec<OwnedFd> {
    let with = |bytes, seals| {
        let fd = memfd::create("false", bytes).expect("memfd");
        rustix::fs::fcntl_add_seals(&fd, seals).expect("seal");
        fd
    };
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::FUTURE_WRITE;
    let mut list = vec![
        memfd::create("bare", bytes).expect("memfd"),
        with(bytes, all - SealFlags::SHRINK),
        with(bytes, all - SealFlags::GROW),
        with(bytes, all - SealFlags::SEAL),
        with(bytes, all - SealFlags::FUTURE_WRITE),
        with(bytes + 4096, all),
        with(bytes - 4096, all),
        std::fs::File::open("/proc/self/exe").expect("file").into(),
        new_eventfd(),
        tcp_pair().0.into(),
    ];
    // A huge page would do for the size, but could fail to be there when it is touched.
    let huge = rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::ALLOW_SEALING;
    if let Ok(fd) = rustix::fs::memfd_create("huge", huge)
        && rustix::fs::ftruncate(&fd, bytes as u64).is_ok()
        && rustix::fs::fcntl_add_seals(&fd, all).is_ok()
    {
        list.push(fd);
    }
    list
}

#[test]
fn a_wait_page_that_is_none_ends_the_connection() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    for page in false_memory(shm::WAIT_PAGE_BYTES) {
        let shim = Shim::connect(dir.path());
        shim.send(&hello(ABI_VERSION), &[page.as_fd()]);
        shim.expect_end();
    }
    still_serves(&broker);
}

#[test]
fn a_door_that_cannot_be_ends_the_connection() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    for index in [0, 64, u64::MAX] {
        let shim = Shim::join(dir.path());
        shim.send(&wire::Door { door: index }, &[]);
        shim.expect_end();
    }
    still_serves(&broker);
}

#[test]
fn a_region_that_is_none_ends_the_connection_and_the_peer_stays() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let honest = Shim::join(dir.path());
    for region in false_memory(shm::REGION_BYTES) {
        let shim = Shim::join(dir.path());
        let (x, y) = tcp_pair();
        shim.offer(1, &x);
        honest.offer(1, &y);
        let link_id = shim.expect::<wire::Link>().link_id;
        let own = honest.expect::<wire::Link>().link_id;
        shim.send(&wire::Region { link_id }, &[region.as_fd()]);
        shim.expect_end();
        let mut kinds = [honest.receive().kind, honest.receive().kind];
        kinds.sort_unstable();
        assert_eq!(kinds, [kind::Reject, kind::PeerGone]);
        // Its own region was on the way already: that is no offence.
        let late = sealed(shm::REGION_BYTES);
        honest.send(&wire::Region { link_id: own }, &[late.as_fd()]);
        honest.expect_silence();
    }
    still_serves(&broker);
}

#[test]
fn regions_that_nobody_asked_for_end_the_connection() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let shim = Shim::join(dir.path());
    let region = sealed(shm::REGION_BYTES);
    shim.send(&wire::Region { link_id: 5 }, &[region.as_fd()]);
    shim.expect_end();
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let (x, y) = tcp_pair();
    let linked = link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);
    // The peer's number for the link, and one's own a second time.
    for link_id in [linked.b.link_id, linked.a.link_id] {
        a.send(&wire::Region { link_id }, &[region.as_fd()]);
    }
    a.expect_end();
    // Whoever has a channel with him is to reset it.
    let reset: wire::Downgrade = b.expect();
    assert_eq!(reset.channel_id, linked.b.channel_id);
    assert_eq!(Reason::from_u32(reset.reason), Some(Reason::Protocol));
    assert_eq!(b.expect::<wire::PeerGone>().link_id, linked.b.link_id);
    still_serves(&broker);
}

#[test]
fn a_claim_that_is_not_true_is_refused_without_harm() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let shim = Shim::join(dir.path());
    let (x, y) = tcp_pair();
    let (true_x, true_y) = (claim(&x), claim(&y));
    // What is no connection. It may have been one when it was offered.
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("udp");
    udp.connect(udp.local_addr().expect("name"))
        .expect("connect");
    let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("unix");
    let file = std::fs::File::open("/proc/self/exe").expect("file");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let (closed, _far) = tcp_pair();
    let gone = claim(&closed);
    drop(closed);
    let nothing = wire::Claim {
        netns_cookie: true_x.netns_cookie,
        protocol: wire::protocol::TCP,
        ..wire::Claim::NONE
    };
    let mut claims = vec![nothing, gone];
    claims.extend([claim(&udp), claim(&unix), claim(&listener)]);
    claims.push(wire::Claim {
        fd: claim(&file).fd,
        ..nothing
    });
    // The names, the cookie or the namespace of another one, or of none.
    claims.push(wire::Claim {
        cookie: true_y.cookie,
        ..true_x
    });
    claims.push(wire::Claim {
        cookie: u64::MAX,
        ..true_x
    });
    claims.push(wire::Claim {
        local_port: true_x.remote_port,
        remote_port: true_x.local_port,
        ..true_x
    });
    for claim in claims {
        shim.claim(1, claim);
        assert_eq!(refusal(&shim), Some(Reason::NoPeer), "{claim:?}");
    }
    // It is there, but not where he says.
    let file_fd = claim(&file).fd;
    for fd in [true_y.fd, file_fd, 77_777, u32::MAX] {
        for thread in [0, true_x.thread, 1, u32::MAX] {
            shim.claim(
                1,
                wire::Claim {
                    fd,
                    thread,
                    ..true_x
                },
            );
            assert_eq!(refusal(&shim), Some(Reason::Unproven), "{fd} {thread}");
        }
    }
    shim.claim(
        1,
        wire::Claim {
            netns_cookie: u64::MAX,
            ..true_x
        },
    );
    assert_eq!(refusal(&shim), Some(Reason::Unproven));
    // His own ones are his own all the same.
    shim.claim(
        1,
        wire::Claim {
            thread: 0,
            ..true_x
        },
    );
    shim.expect_silence();
    shim.offer(2, &y);
    shim.expect::<wire::Link>();
    assert_eq!(protocol_errors(&broker), 0);
    still_serves(&broker);
}

/// Another process's socket, by names, cookie and even number.
#[test]
fn a_socket_of_another_process_is_not_ones_own() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let (x, y) = tcp_pair();
    let true_y = claim(&y);
    // The child has x under the number 0, and nothing else.
    let mut child = std::process::Command::new("cat")
        .stdin(OwnedFd::from(x.try_clone().expect("dup")))
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("cat");
    let claims = [0, child.id()].map(|thread| wire::Claim {
        fd: 0,
        thread,
        ..claim(&x)
    });
    drop(x);
    let shim = Shim::join(dir.path());
    shim.claim(1, true_y);
    for claim in claims {
        shim.claim(2, claim);
        assert_eq!(refusal(&shim), Some(Reason::Unproven));
    }
    shim.expect_silence();
    drop(y);
    child.wait().expect("wait");
    still_serves(&broker);
}

/// What a process offers is its own when it says so, and may be closed before the broker looks,
/// or while it does.
#[test]
fn who_closes_what_it_has_offered_is_no_liar() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let shim = Shim::join(dir.path());
    let mut refused = 0;
    for _ in 0..100 {
        let sockets: Vec<_> = (0..50).map(|_| tcp_pair()).collect();
        for (number, (x, _)) in sockets.into_iter().enumerate() {
            shim.offer(number as u64 + 1, &x);
        }
        refused += shim.refusals();
    }
    assert_ne!(refused, 0);
    // Nothing was held against it: the first misdeed is warned of.
    shim.send_raw(&[0; 8], &[]);
    broker.logged(&["WARN", "broke the control protocol"]);
    assert_eq!(broker.log_count("WARN"), 1);
}

/// Who inherited a control connection does not speak for the process that it is of.
#[test]
fn an_heir_of_the_connection_offers_nothing() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let shim = Shim::join(dir.path());
    let (x, _y) = tcp_pair();
    let offer = packet_of(&wire::Offer {
        conn_id: 1,
        declined: 0,
        to_all: 0,
        claim: claim(&x),
    });
    let mut heir = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .stdout(rustix::io::dup(&shim.socket).expect("dup"))
        .spawn()
        .expect("cat");
    let mut input = heir.stdin.take().expect("stdin");
    input.write_all(&offer).expect("write");
    assert_eq!(refusal(&shim), Some(Reason::Shared));
    drop(input);
    heir.wait().expect("wait");
    shim.offer(1, &x);
    shim.expect_silence();
    still_serves(&broker);
}

/// The attacker connects, offers and resets; somebody else gets the port, and the service
/// offers its end of that connection. It is not the attacker's.
#[test]
fn an_offer_ends_with_its_socket() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let [attacker, service, victim] = [(); 3].map(|()| Shim::join(dir.path()));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let name = listener.local_addr().expect("name");
    let connect = |from: std::net::SocketAddr| {
        let (family, kind) = (
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
        );
        // A broker that another test starts would keep it open, and its port taken.
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, kind, flags, None).expect("socket");
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true).expect("reuse");
        rustix::net::bind(&socket, &from).expect("bind");
        rustix::net::connect(&socket, &name).expect("connect");
        (
            TcpStream::from(socket),
            listener.accept().expect("accept").0,
        )
    };
    for is_inside in [false, true] {
        let (planted, served) = connect("127.0.0.1:0".parse().expect("name"));
        let port = planted.local_addr().expect("name");
        attacker.offer(1, &planted);
        attacker.expect_silence();
        let linger = Some(Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&planted, linger).expect("linger");
        drop((planted, served));
        let (x, y) = connect(port);
        service.offer(1, &y);
        service.expect_silence();
        // He is told: his offer is void.
        assert_eq!(refusal(&attacker), Some(Reason::NoPeer));
        attacker.expect_silence();
        if is_inside {
            victim.offer(1, &x);
            victim.expect::<wire::Link>();
            service.expect::<wire::Link>();
            attacker.expect_silence();
        }
    }
    still_serves(&broker);
}

/// As before, but the socket lives on with somebody to whom it was passed.
#[test]
fn an_offer_ends_when_its_process_has_left_the_socket() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let [one, other] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let (x, y) = tcp_pair();
    one.offer(1, &x);
    one.expect_silence();
    let passed = rustix::io::fcntl_dupfd_cloexec(&x, 200).expect("dup");
    drop(x);
    other.offer(1, &y);
    other.expect_silence();
    assert_eq!(refusal(&one), Some(Reason::Unproven));
    // Whoever has it now may offer it.
    one.offer(2, &passed);
    one.expect::<wire::Link>();
    other.expect::<wire::Link>();
    still_serves(&broker);
}

/// A broker that has not read the offer yet has nothing of the socket.
#[test]
fn a_close_behind_an_offer_is_seen_at_once() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let pid = rustix::process::Pid::from_child(&broker.child);
    let shim = Shim::join(dir.path());
    let sockets: Vec<_> = (0..100).map(|_| tcp_pair()).collect();
    stop_process(pid);
    for (number, (x, mut y)) in sockets.into_iter().enumerate() {
        shim.offer(number as u64, &x);
        drop(x);
        let patience = Some(Duration::from_secs(30));
        y.set_read_timeout(patience).expect("time-out");
        let end = std::io::Read::read(&mut y, &mut [0; 1]);
        assert_eq!(end.expect("the end of the stream"), 0);
    }
    rustix::process::kill_process(pid, Signal::CONT).expect("kill");
    for _ in 0..100 {
        assert_eq!(refusal(&shim), Some(Reason::NoPeer));
    }
    still_serves(&broker);
}

#[test]
fn no_descriptor_stays_behind() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let (x, y) = tcp_pair();
    link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);
    a.expect_silence();
    b.expect_silence();
    let before = broker.descriptors();
    for n in 0..500 {
        let (x, y) = tcp_pair();
        a.offer(10 + n, &x);
        b.offer(10 + n, &y);
        let pair = a.expect::<wire::Pair>();
        b.expect::<wire::Pair>();
        for shim in [&a, &b] {
            shim.send(
                &wire::Status {
                    conn_id: 10 + n,
                    channel_id: pair.channel_id,
                    status: wire::status::CLOSED,
                    reason: 0,
                    ring_bytes_tx: 0,
                    ring_bytes_rx: 0,
                },
                &[],
            );
        }
        // Nothing of the broker's keeps them open.
        drop(x);
        y.set_read_timeout(Some(Duration::from_secs(30)))
            .expect("time-out");
        let mut y = y;
        assert_eq!(std::io::Read::read(&mut y, &mut [0; 1]).expect("read"), 0);
    }
    for _ in 0..100 {
        let shim = Shim::join(dir.path());
        shim.send(&wire::Door { door: 99 }, &[]);
        shim.expect_end();
    }
    b.expect_silence();
    // What came with a breach of the protocol is closed by a thread.
    let patience = std::time::Instant::now() + Duration::from_secs(30);
    while broker.descriptors() != before && std::time::Instant::now() < patience {
        std::thread::yield_now();
    }
    assert_eq!(broker.descriptors(), before);
}

#[test]
fn a_flood_does_not_starve_others() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let flooder = Shim::join(dir.path());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let nothing = wire::Status {
                conn_id: 77,
                channel_id: 0,
                status: wire::status::WITHDRAWN,
                reason: 0,
                ring_bytes_tx: 0,
                ring_bytes_rx: 0,
            };
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                flooder.send(&nothing, &[]);
            }
        });
        for _ in 0..20 {
            still_serves(&broker);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn who_does_not_read_is_given_up() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let sleeper = Shim::join(dir.path());
    // Each doorbell is acknowledged, and the acknowledgements are not read.
    for _ in 0..20_000 {
        sleeper.send(&wire::Door { door: 1 }, &[]);
    }
    broker.logged(&["dropped", "does not read"]);
    still_serves(&broker);
}

/// A process that has many links has that many doorbells made with each new door.
#[test]
fn who_has_many_doors_made_does_not_hold_others_up() {
    const LINKS: u64 = 70;
    const DOORS: u64 = 40;
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let pid = rustix::process::Pid::from_child(&broker.child);
    let [sleeper, other, witness] = [(); 3].map(|()| Shim::join(dir.path()));
    let peers: Vec<Shim> = (0..LINKS).map(|_| Shim::join(dir.path())).collect();
    for (n, peer) in peers.iter().enumerate() {
        let (x, y) = tcp_pair();
        link(&sleeper, peer, [n as u64, 1], [x.as_fd(), y.as_fd()]);
    }
    let mut link_ids = Vec::new();
    for (n, shim) in [&sleeper, &other].into_iter().enumerate() {
        let (x, y) = tcp_pair();
        let ids = [LINKS, n as u64];
        link_ids.push(link(shim, &witness, ids, [x.as_fd(), y.as_fd()]).b.link_id);
    }
    // Nothing is read before all is there.
    stop_process(pid);
    for shim in [&sleeper, &other] {
        for door in 1..=DOORS {
            shim.send(&wire::Door { door }, &[]);
        }
    }
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("SIGCONT");
    // In the order in which the broker had them made.
    let mut before = 0;
    loop {
        match witness.expect::<wire::PeerDoor>() {
            bell if bell.link_id == link_ids[0] => before += 1,
            bell if bell.door == DOORS => break,
            _ => {}
        }
    }
    assert!(
        before <= 2,
        "{before} doors for all came before those of one"
    );
    still_serves(&broker);
}

#[test]
fn strangers_who_say_nothing_make_way() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let silent: Vec<Shim> = (0..300).map(|_| Shim::connect(dir.path())).collect();
    still_serves(&broker);
    silent[0].expect_end();
}

/// A socket of which the last close waits for a minute, and its far end, at which nobody reads.
fn lingering() -> (TcpStream, TcpStream) {
    let (mut x, y) = tcp_pair();
    x.set_nonblocking(true).expect("non-blocking");
    while x.write(&[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&x, Some(Duration::from_secs(60))).expect("linger");
    (x, y)
}

/// More than may hang at once. The broker has nothing else to do: none waits for its next turn.
#[test]
fn lingering_sockets_are_closed_by_an_idle_broker() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let pid = rustix::process::Pid::from_child(&broker.child);
    let shims: Vec<Shim> = (0..24).map(|_| Shim::join(dir.path())).collect();
    stop_process(pid);
    let mut far = Vec::new();
    for shim in &shims {
        let (x, y) = lingering();
        shim.send(&empty_offer(), &[x.as_fd()]);
        // The last reference is in the packet now.
        drop(x);
        far.push(y);
    }
    rustix::process::kill_process(pid, Signal::CONT).expect("kill");
    shims.iter().for_each(Shim::expect_end);
    still_serves(&broker);
    let readers: Vec<_> = far
        .into_iter()
        .map(|mut y| {
            let patience = Some(Duration::from_secs(30));
            y.set_read_timeout(patience).expect("time-out");
            std::thread::spawn(move || std::io::copy(&mut y, &mut std::io::sink()))
        })
        .collect();
    for reader in readers {
        reader.join().expect("join").expect("the end of the stream");
    }
}

/// Whoever closes a control connection closes what lies in packets that nobody has read.
#[test]
fn packets_behind_a_violation_do_not_hold_the_broker_up() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let pid = rustix::process::Pid::from_child(&broker.child);
    let shim = Shim::join(dir.path());
    // Nothing is read before all is there.
    stop_process(pid);
    shim.send(&wire::Door { door: 99 }, &[]);
    let (x, _y) = lingering();
    shim.send(&empty_offer(), &[x.as_fd()]);
    // The last reference is in the packet now.
    drop(x);
    rustix::process::kill_process(pid, Signal::CONT).expect("kill");
    shim.expect_end();
    still_serves(&broker);
}

/// The kernel closes those for which the receiver has no room.
#[test]
fn more_descriptors_than_any_packet_has_do_not_hold_the_broker_up() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let shim = Shim::join(dir.path());
    let (x, y) = lingering();
    let mut fds: Vec<BorrowedFd<'_>> = vec![shim.page.as_fd(); 252];
    fds.push(x.as_fd());
    send_many(&shim, &fds);
    let closing = std::thread::spawn(move || drop(x));
    shim.expect_end();
    still_serves(&broker);
    drop(y);
    closing.join().expect("close");
}

/// A third of a default limit.
const FEW_DESCRIPTORS: &[&str] = &["sh", "-c", "ulimit -n 720; exec \"$0\" \"$@\""];

#[test]
fn half_of_the_broker_is_left_to_others() {
    if !rustix::process::geteuid().is_root() {
        fordway_test_skip::skipped("needs root, for a namespace");
        return;
    }
    let dir = TempDir::new();
    let options = Options {
        prefix: FEW_DESCRIPTORS,
        ..Options::default()
    };
    let broker = Broker::try_start(dir.path(), options).expect("broker");
    let private = PrivateNamespace::new(dir.path(), &[]);
    let hoarders: Vec<Shim> = private.within(|| {
        let join = |_| {
            let shim = Shim::connect(dir.path());
            shim.send(&hello(ABI_VERSION), &[shim.page.as_fd()]);
            shim.next().map(|_| shim)
        };
        (0..200).map_while(join).collect()
    });
    broker.logged(&["was turned away"]);
    println!("{} connections of one namespace", hoarders.len());
    let others: Vec<Shim> = (0..30).map(|_| Shim::join(dir.path())).collect();
    still_serves(&broker);
    drop((hoarders, others));
    // They may come again when they have gone.
    while broker.descriptors() > 50 {
        std::thread::yield_now();
    }
    private.within(|| drop(Shim::join(dir.path())));
}

#[test]
fn descriptors_of_the_broker_cannot_be_used_up() {
    let dir = TempDir::new();
    let options = Options {
        prefix: FEW_DESCRIPTORS,
        ..Options::default()
    };
    let broker = Broker::try_start(dir.path(), options).expect("broker");
    // Thirty processes, each linked with each, and of each link one region is withheld:
    // the other one waits with the broker.
    let hoarders: Vec<Shim> = (0..30).map(|_| Shim::join(dir.path())).collect();
    let mut sockets = Vec::new();
    let pairs = (0..hoarders.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
    for (one, other) in pairs {
        let (x, y) = tcp_pair();
        hoarders[one].offer(other as u64, &x);
        hoarders[other].offer(one as u64, &y);
        sockets.extend([x, y]);
        let region = sealed(shm::REGION_BYTES);
        // The end, for who wanted more than there is.
        let Some(packet) = hoarders[one].next() else {
            break;
        };
        let link_id = packet.body::<wire::Link>().link_id;
        hoarders[one].send(&wire::Region { link_id }, &[region.as_fd()]);
    }
    broker.logged(&["no descriptor is left"]);
    assert!(broker.descriptors() < 720);
    // An administrator still gets an answer, and the first comers keep what they have.
    assert_eq!(protocol_errors(&broker), 0);
    drop(hoarders);
    while broker.descriptors() > 100 {
        std::thread::yield_now();
    }
    still_serves(&broker);
}

#[test]
fn random_packets_do_no_harm() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    // The same packets in every run.
    let mut random = fastrand::Rng::with_seed(1);
    let (x, _y) = tcp_pair();
    let region = sealed(shm::REGION_BYTES);
    for _ in 0..300 {
        let shim = Shim::join(dir.path());
        for _ in 0..20 {
            let kind = random.u32(..19);
            let Some((body, fds)) = wire::shape(kind) else {
                continue;
            };
            let length = size_of::<Header>() + body;
            let header = Header {
                kind,
                length_bytes: length as u32,
            };
            let mut packet = header.as_bytes().to_vec();
            packet.extend((0..body).map(|at| match at % 8 {
                0 => random.u8(..6),
                _ => u8::from(random.u8(..16) == 0),
            }));
            let given = match random.u8(..4) {
                0 => x.as_fd(),
                1 => region.as_fd(),
                2 => shim.page.as_fd(),
                _ => x.as_fd(),
            };
            shim.send_raw(&packet, &vec![given; *fds.start()]);
        }
    }
    still_serves(&broker);
}
