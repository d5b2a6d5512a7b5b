//! Pairs across NAT, and what must be none. Needs root; as an ordinary user these tests say so and
//! do nothing.
//!
//! ```text
//!   web 10.1.0.2 ── veth ── 10.1.0.1 the host (broker) 10.2.0.1 ── veth ── 10.2.0.2 db
//!                                    192.0.2.1
//! ```
//! The host is a namespace that the test makes, and so are the domains: as containers on two bridges.

mod common;

use common::*;
use fordway_abi::control::{self as wire, Message, Protocol};
use fordway_platform::{conntrack, sockinfo};
use fordwayd::admin::{Reply, Request};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

#[test]
fn broker_process() {
    common::broker_process();
}

/// An address of the host that no domain has.
const HOST: &str = "192.0.2.1";
const WEB: &str = "10.1.0.2";
const DB: &str = "10.2.0.2";
const THIEF: &str = "10.3.0.2";

/// What a host with published ports does; ports tell what is to become of a connection.
const RULES: &str = "
table ip nat {
	chain in {
		type nat hook prerouting priority dstnat;
		ip daddr 192.0.2.1 tcp dport { 8080, 8081, 8082 } dnat to 10.2.0.2:6379
		ip daddr 192.0.2.1 tcp dport 8090 redirect to :90
	}
	chain own {
		type nat hook output priority -100;
		ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.2.0.2:6379
		ip daddr 192.0.2.1 tcp dport 8090 redirect to :90
	}
	chain out {
		type nat hook postrouting priority srcnat;
		meta l4proto tcp ct original proto-dst 8081 masquerade
		meta l4proto tcp ct original proto-dst 8082 snat to 192.0.2.1:20000-20999
		tcp dport 7001 masquerade
		ip saddr 10.2.0.2 ip daddr 10.2.0.2 masquerade
	}
}";

/// The same of IPv6, in which each address of 10.N.0.0/24 has one of fd00:N::/64 beside it.
const RULES6: &str = "
table ip6 nat {
	chain in {
		type nat hook prerouting priority dstnat;
		ip6 daddr fd00:192::1 tcp dport { 8080, 8081 } dnat to [fd00:2::2]:6379
		ip6 daddr fd00:192::1 tcp dport 8090 redirect to :90
	}
	chain own {
		type nat hook output priority -100;
		ip6 daddr fd00:192::1 tcp dport 8080 dnat to [fd00:2::2]:6379
	}
	chain out {
		type nat hook postrouting priority srcnat;
		meta l4proto tcp ct original proto-dst 8081 masquerade
		ip6 saddr fd00:2::2 ip6 daddr fd00:2::2 masquerade
	}
}";

/// A namespace with an address, and a process in it, as a container has.
struct Place {
    // Dropped before the directory that its file lies in.
    namespace: PrivateNamespace,
    _dir: TempDir,
    init: Child,
}

impl Place {
    fn new() -> Self {
        let dir = TempDir::new();
        let namespace = PrivateNamespace::new(dir.path(), &[]);
        let init = namespace.within(|| Command::new("sleep").arg("600").spawn().expect("sleep"));
        Self {
            namespace,
            _dir: dir,
            init,
        }
    }

    fn ip(&self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        self.namespace.ip(&words);
    }

    fn add_ip6(&self, ip: &str, prefix: u8, device: &str) {
        let ip = ip.parse().expect("an address");
        self.namespace.add_ip6(ip, prefix, device);
    }

    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.namespace.within(work)
    }

    fn listen(&self, at: &str) -> TcpListener {
        self.within(|| TcpListener::bind(at).expect("bind"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.init.kill();
        let _ = self.init.wait();
    }
}

/// Host and domains; the broker ends first.
struct Stage {
    broker: Broker,
    dir: TempDir,
    web: Place,
    db: Place,
    thief: Place,
    host: Place,
}

impl Stage {
    /// `None` where it cannot be, which is said.
    fn new() -> Option<Self> {
        Self::of(RULES, false)
    }

    /// With addresses of IPv6, and only its translation.
    fn of_ipv6() -> Option<Self> {
        if !fordway_platform::fabric::has_ipv6() {
            fordway_test_skip::skipped("the kernel has IPv6 off");
            return None;
        }
        Self::of(RULES6, true)
    }

    fn of(rules: &str, has_six: bool) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            fordway_test_skip::skipped("needs root");
            return None;
        }
        let host = Place::new();
        let translates = host.within(|| Command::new("nft").arg(rules).status());
        if !translates.is_ok_and(|status| status.success()) {
            fordway_test_skip::skipped("no address translation here");
            return None;
        }
        host.ip(&format!("address add {HOST}/32 dev lo"));
        host.within(|| {
            for name in ["ip_forward", "conf/all/route_localnet"] {
                std::fs::write(format!("/proc/sys/net/ipv4/{name}"), "1").expect("sysctl");
            }
        });
        if has_six {
            host.add_ip6("fd00:192::1", 128, "lo");
            let forwarding = "/proc/sys/net/ipv6/conf/all/forwarding";
            host.within(|| std::fs::write(forwarding, "1").expect("sysctl"));
        }
        let dir = TempDir::new();
        let broker = host.within(|| Broker::start(dir.path()));
        let domain = |name: &str, ip: &str| {
            let place = Place::new();
            let gateway = format!("{}.1", ip.rsplit_once('.').expect("an address").0);
            let file = format!("/proc/{}/ns/net", place.init.id());
            host.ip(&format!(
                "link add {name} type veth peer name eth0 netns {file}"
            ));
            host.ip(&format!("address add {gateway}/24 dev {name}"));
            host.ip(&format!("link set {name} up"));
            place.ip(&format!("address add {ip}/24 dev eth0"));
            place.ip("link set eth0 up");
            place.ip(&format!("route add default via {gateway}"));
            let number = ip.split('.').nth(1).expect("an address");
            if has_six {
                host.add_ip6(&format!("fd00:{number}::1"), 64, name);
                place.add_ip6(&format!("fd00:{number}::2"), 64, "eth0");
                place.ip(&format!("route add default via fd00:{number}::1"));
            }
            let ip6 = format!("fd00:{number}::2").parse().expect("an address");
            let attached = broker.ask(&Request::DomainAttach {
                name: name.into(),
                ip: ip.parse::<Ipv4Addr>().expect("an address"),
                ip6: has_six.then_some(ip6),
                pid: place.init.id() as i32,
            });
            assert!(matches!(attached, Reply::Domain(_)), "{attached:?}");
            place
        };
        let (web, db, thief) = (domain("web", WEB), domain("db", DB), domain("thief", THIEF));
        Some(Self {
            broker,
            dir,
            web,
            db,
            thief,
            host,
        })
    }

    /// Root of the host, who has sockets anywhere.
    fn shim(&self) -> Shim {
        self.host.within(|| Shim::join(self.dir.path()))
    }

    /// Offers both ends, in this order; whether they became a pair.
    #[track_caller]
    fn pairs(&self, x: &TcpStream, y: &TcpStream) -> bool {
        let [a, b] = [self.shim(), self.shim()];
        a.offer(1, x);
        a.expect_silence();
        b.offer(2, y);
        b.send(&wire::Door { door: 63 }, &[]);
        let packet = b.receive();
        if packet.kind == wire::DoorAck::KIND {
            a.expect_silence();
            return false;
        }
        packet.body::<wire::Link>();
        a.expect::<wire::Link>();
        true
    }

    /// As `ss` shows the socket of this name.
    fn row(&self, socket: &TcpStream) -> fordwayd::admin::Connection {
        let Reply::Connections { connections } = self.broker.ask(&Request::Connections) else {
            panic!("no connections")
        };
        let name = socket.local_addr().expect("name").to_string();
        let mut rows = connections.into_iter();
        rows.find(|row| row.local == name).expect("row")
    }
}

/// A connection from a place to an address that leads to a listener.
fn connect(from: &Place, to: &str, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut x = from.within(|| TcpStream::connect(to).expect(to));
    let (mut y, _) = listener.accept().expect("accept");
    // The third packet of the handshake has gone, and come.
    x.write_all(b"x").expect("sent");
    y.read_exact(&mut [0]).expect("received");
    // Nor is anything of it on its way when a test takes its entry away: a late acknowledgement would reach
    // the host itself then, and be answered by a reset.
    rustix::net::sockopt::set_tcp_quickack(&y, true).expect("acknowledged");
    let is_quiet = |_| sockinfo::queued_memory(&x).expect("SIOCOUTQ") == 0;
    assert!(
        (0..1_000_000)
            .map(|_| std::thread::yield_now())
            .any(is_quiet)
    );
    (x, y)
}

fn mirror_each_other(x: &TcpStream, y: &TcpStream) -> bool {
    let (local, remote) = names(x);
    names(y) == (remote, local)
}

#[test]
fn what_the_host_translates_is_a_pair() {
    let Some(stage) = Stage::new() else { return };
    let server = stage.db.listen("0.0.0.0:6379");
    let masqueraded = stage.db.listen("0.0.0.0:7001");
    let of_host = stage.host.listen("0.0.0.0:90");
    let published = format!("{HOST}:8080");
    for (from, to, listener, what) in [
        (&stage.web, published.as_str(), &server, "DNAT"),
        (&stage.web, "192.0.2.1:8081", &server, "DNAT and masquerade"),
        (&stage.web, "192.0.2.1:8082", &server, "DNAT and SNAT"),
        (&stage.web, "10.2.0.2:7001", &masqueraded, "masquerade"),
        (&stage.db, &published, &server, "hairpin"),
        (&stage.host, &published, &server, "by the host"),
        (
            &stage.web,
            "192.0.2.1:8090",
            &of_host,
            "REDIRECT to the host",
        ),
        (
            &stage.host,
            "192.0.2.1:8090",
            &of_host,
            "REDIRECT within the host",
        ),
    ] {
        for turned in [false, true] {
            let (x, y) = connect(from, to, listener);
            assert!(!mirror_each_other(&x, &y), "{what}");
            let paired = match turned {
                false => stage.pairs(&x, &y),
                true => stage.pairs(&y, &x),
            };
            assert!(paired, "{what}");
        }
    }
    // What it does not translate is one as ever.
    let (x, y) = connect(&stage.web, "10.2.0.2:6379", &server);
    assert!(mirror_each_other(&x, &y) && stage.pairs(&x, &y));
}

#[test]
fn what_the_host_translates_of_ipv6_is_a_pair() {
    let Some(stage) = Stage::of_ipv6() else {
        return;
    };
    let server = stage.db.listen("[::]:6379");
    let of_host = stage.host.listen("[::]:90");
    for (from, to, listener, what) in [
        (&stage.web, "[fd00:192::1]:8080", &server, "DNAT"),
        (
            &stage.web,
            "[fd00:192::1]:8081",
            &server,
            "DNAT and masquerade",
        ),
        (&stage.db, "[fd00:192::1]:8080", &server, "hairpin"),
        (&stage.host, "[fd00:192::1]:8080", &server, "by the host"),
        (
            &stage.web,
            "[fd00:192::1]:8090",
            &of_host,
            "REDIRECT to the host",
        ),
        (
            &stage.host,
            "[fd00:2::2]:6379",
            &server,
            "the host's own, as it is",
        ),
        (
            &stage.web,
            "[fd00:1::1]:90",
            &of_host,
            "to the host, as it is",
        ),
        (
            &stage.web,
            "[fd00:2::2]:6379",
            &server,
            "two domains, as it is",
        ),
    ] {
        for turned in [false, true] {
            let (x, y) = connect(from, to, listener);
            let as_it_is = what.ends_with("as it is");
            assert_eq!(mirror_each_other(&x, &y), as_it_is, "{what}");
            let paired = match turned {
                false => stage.pairs(&x, &y),
                true => stage.pairs(&y, &x),
            };
            assert!(paired, "{what}");
        }
    }
}

/// A program of the host and one of a domain, without a translation: the host's table shows that
/// the connection is theirs.
#[test]
fn the_host_and_a_domain_are_a_pair() {
    let Some(stage) = Stage::new() else { return };
    let of_db = stage.db.listen("0.0.0.0:6379");
    let of_host = stage.host.listen("0.0.0.0:90");
    for turned in [false, true] {
        for (from, to, listener, what) in [
            (&stage.host, "10.2.0.2:6379", &of_db, "to the domain"),
            (&stage.web, "10.1.0.1:90", &of_host, "to the host"),
            (
                &stage.web,
                "192.0.2.1:90",
                &of_host,
                "to the host's other address",
            ),
        ] {
            let (x, y) = connect(from, to, listener);
            assert!(mirror_each_other(&x, &y), "{what}");
            let paired = match turned {
                false => stage.pairs(&x, &y),
                true => stage.pairs(&y, &x),
            };
            assert!(paired, "{what}");
        }
    }
    // Listed on either side, with who it is.
    let (x, y) = connect(&stage.host, "10.2.0.2:6379", &of_db);
    let [a, b] = [stage.shim(), stage.shim()];
    use std::os::fd::AsFd;
    let _linked = link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);
    for (socket, domains) in [(&x, ["host", "db"]), (&y, ["db", "host"])] {
        let row = stage.row(socket);
        let peer = row.peer_domain.as_deref().unwrap_or("");
        assert_eq!(
            ([row.domain.as_str(), peer], row.path.as_str()),
            (domains, "fast")
        );
    }
    // One waits for the other, which can come; across a translation, too.
    for (from, to) in [
        (&stage.host, "10.2.0.2:6379"),
        (&stage.web, "192.0.2.1:8081"),
    ] {
        let (x, _y) = connect(from, to, &of_db);
        a.offer(5, &x);
        a.expect_silence();
        assert_eq!(stage.row(&x).reason.as_deref(), Some("waiting"), "{to}");
    }
    // An entry is proof only while it is there.
    let (x, y) = connect(&stage.host, "10.2.0.2:6379", &of_db);
    stage.host.within(|| {
        let asker = conntrack::Asker::new().expect("netlink").expect("loaded");
        assert_eq!(
            asker.keep(Protocol::Tcp, &[names(&x)], 0).expect("expired"),
            1
        );
    });
    a.offer(3, &x);
    let told: wire::Reject = a.expect();
    assert_eq!((told.conn_id, told.pending), (3, 1));
    b.offer(4, &y);
    b.expect_silence();
    a.expect_silence();
}

/// Who builds the host's end in a namespace of his own, tracked there as well, gets nothing of it.
#[test]
fn who_has_the_hosts_address_is_not_the_host() {
    let Some(stage) = Stage::new() else { return };
    let server = stage.db.listen("0.0.0.0:6379");
    let (x, y) = connect(&stage.host, "10.2.0.2:6379", &server);
    let thief = &stage.thief;
    for ip in [DB, "10.2.0.1"] {
        thief.ip(&format!("address add {ip}/32 dev lo"));
    }
    thief.namespace.nft(
        "table ip nat { chain o { type nat hook output priority -100; tcp dport 1 accept; }; }",
    );
    let false_server = thief.listen("10.2.0.2:6379");
    let false_x = thief.within(|| connect_from(names(&x).0, names(&x).1));
    let (false_y, _) = false_server.accept().expect("accept");
    assert_eq!((names(&false_x), names(&false_y)), (names(&x), names(&y)));
    let robber = thief.within(|| Shim::join(stage.dir.path()));
    robber.offer(1, &false_x);
    robber.offer(2, &false_y);
    let [a, b] = [stage.shim(), stage.shim()];
    a.offer(1, &x);
    a.expect_silence();
    b.offer(2, &y);
    a.expect::<wire::Link>();
    b.expect::<wire::Link>();
    for number in [1, 2] {
        let told: wire::Reject = robber.expect();
        assert_eq!(told.conn_id, number);
    }
    robber.expect_silence();
}

#[test]
fn a_pair_across_nat_is_listed_and_found_again() {
    let Some(stage) = Stage::new() else { return };
    let server = stage.db.listen("0.0.0.0:6379");
    let (x, y) = connect(&stage.web, "192.0.2.1:8081", &server);
    let [a, b] = [stage.shim(), stage.shim()];
    use std::os::fd::AsFd;
    let _linked = link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);
    for (socket, domains) in [(&x, ["web", "db"]), (&y, ["db", "web"])] {
        let row = stage.row(socket);
        let said = [
            row.domain.as_str(),
            row.peer_domain.as_deref().unwrap_or(""),
        ];
        assert_eq!((said, row.path.as_str()), (domains, "fast"));
    }
    // With its domain goes the ground that it stands on.
    let remove = Request::DomainRemove {
        name: "db".into(),
        force: true,
    };
    assert!(matches!(stage.broker.ask(&remove), Reply::Done));
    for shim in [&a, &b] {
        shim.expect::<wire::Downgrade>();
    }
}

/// A proxy beside the program, or beside the server, as in a pod.
#[test]
fn what_a_namespace_leads_to_its_own_proxy_is_a_pair() {
    let Some(stage) = Stage::new() else { return };
    stage.web.namespace.nft(
        "table ip nat { chain o { type nat hook output priority -100; tcp dport 6379 redirect to :15001; }; }",
    );
    stage.db.namespace.nft(
        "table ip nat { chain i { type nat hook prerouting priority dstnat; tcp dport 7000 redirect to :15006; }; }",
    );
    let proxy = stage.web.listen("127.0.0.1:15001");
    let inbound = stage.db.listen("0.0.0.0:15006");
    for (to, listener) in [("10.2.0.2:6379", &proxy), ("10.2.0.2:7000", &inbound)] {
        let (x, y) = connect(&stage.web, to, listener);
        assert!(!mirror_each_other(&x, &y) && stage.pairs(&x, &y), "{to}");
        let (x, y) = connect(&stage.web, to, listener);
        assert!(stage.pairs(&y, &x), "{to}");
    }
}

/// The thief owns his namespace: its table has whatever he likes.
#[test]
fn what_a_domains_root_writes_into_his_table_proves_nothing_about_others() {
    let Some(stage) = Stage::new() else { return };
    let server = stage.db.listen("0.0.0.0:6379");
    let (x, y) = connect(&stage.web, "192.0.2.1:8081", &server);
    let ((web, published), (_, masqueraded)) = (names(&x), names(&y));
    let thief = &stage.thief;
    // Everybody's addresses, and the host's very translation, in a namespace of his own.
    for ip in [WEB, DB, HOST, "10.2.0.1"] {
        thief.ip(&format!("address add {ip}/32 dev lo"));
    }
    thief.namespace.nft(&format!(
        "table ip nat {{
            chain o {{ type nat hook output priority -100; ip daddr 192.0.2.1 tcp dport 8081 dnat to 10.2.0.2:6379; }}
            chain p {{ type nat hook postrouting priority srcnat; ip daddr 10.2.0.2 tcp dport 6379 snat to {masqueraded}; }}
        }}"
    ));
    let false_server = thief.listen("10.2.0.2:6379");
    let false_x = thief.within(|| connect_from(web, published));
    let (false_y, _) = false_server.accept().expect("accept");
    assert_eq!((names(&false_x), names(&false_y)), (names(&x), names(&y)));
    // Neither as the far end of a true one, nor with himself: the addresses are others'.
    let robber = thief.within(|| Shim::join(stage.dir.path()));
    let victim = stage.shim();
    for (number, (own, of_thief)) in [(&x, &false_y), (&y, &false_x)].into_iter().enumerate() {
        let number = number as u64;
        robber.offer(number, of_thief);
        let told: wire::Reject = robber.expect();
        assert_eq!((told.conn_id, told.pending), (number, 1));
        victim.offer(number, own);
        // The first waits; the second finds its own true partner.
        match number {
            0 => victim.expect_silence(),
            _ => drop(victim.expect::<wire::Link>()),
        }
        robber.expect_silence();
    }
}

/// Live entries, true sockets, and no pair: they are not of one connection.
#[test]
fn an_entry_joins_the_two_ends_of_its_connection_and_no_others() {
    let Some(stage) = Stage::new() else { return };
    let server = stage.db.listen("0.0.0.0:6379");
    let pair = || connect(&stage.web, "192.0.2.1:8081", &server);
    let [(x, y), (other_x, other_y)] = [pair(), pair()];
    assert!(!stage.pairs(&x, &other_y) && !stage.pairs(&other_x, &y));
    assert!(stage.pairs(&x, &y));

    // The entry is gone, as by conntrack(8) -D, with the connection as it was.
    let (x, y) = pair();
    stage.host.within(|| {
        let asker = conntrack::Asker::new().expect("netlink").expect("loaded");
        let names = names(&x);
        assert_eq!(asker.keep(Protocol::Tcp, &[names], 0).expect("expired"), 1);
    });
    assert!(!stage.pairs(&x, &y) && !stage.pairs(&y, &x));

    // One end has closed, and the other not yet.
    let (x, y) = pair();
    x.shutdown(std::net::Shutdown::Write).expect("shutdown");
    (&y).read_to_end(&mut Vec::new()).expect("end");
    assert!(!stage.pairs(&x, &y));

    // The entry outlives its connection, and another one within web has its names.
    let (x, y) = pair();
    let (client, published) = names(&x);
    stage.web.ip("link set eth0 down");
    let at_once = Some(std::time::Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&x, at_once).expect("linger");
    drop(x);
    stage.web.ip(&format!("address add {HOST}/32 dev lo"));
    let (x, inner) = stage.web.within(|| connect_as(client, published));
    stage.host.within(|| {
        let asker = conntrack::Asker::new().expect("netlink").expect("loaded");
        let far = asker.far_end(client, published).expect("asked");
        let far = far.expect("the host knows it as it was");
        assert!(far.is_established && far.names == names(&y));
    });
    assert!(!stage.pairs(&x, &y) && !stage.pairs(&y, &x));
    assert!(stage.pairs(&x, &inner));
}

/// Translations of which the two ends' names or one table alone say too little, and what `ss` says.
#[test]
fn other_translations_stay_with_the_kernel() {
    let Some(stage) = Stage::new() else { return };
    stage.host.namespace.nft(
        "table ip more { chain p { type nat hook prerouting priority -101; \
            ip daddr 10.2.0.2 tcp dport 7005 dnat to 10.3.0.2:6379; }; }",
    );
    stage.db.namespace.nft(
        "table ip nat { chain i { type nat hook prerouting priority dstnat; tcp dport 7000 redirect to :6379; }; \
            chain s { type nat hook input priority 100; tcp dport 6379 snat to 10.9.9.9; }; }",
    );
    // Who is connected to db's address talks to db, whatever the host does.
    let thief = stage.thief.listen("0.0.0.0:6379");
    let (x, y) = connect(&stage.web, "10.2.0.2:7005", &thief);
    assert!(!stage.pairs(&x, &y));
    // db shows its program another client than there is.
    let server = stage.db.listen("0.0.0.0:6379");
    let (x, y) = connect(&stage.web, "10.2.0.2:7000", &server);
    assert_eq!(y.peer_addr().expect("name").ip().to_string(), "10.9.9.9");
    assert!(!stage.pairs(&x, &y));
    let [a, b] = [stage.shim(), stage.shim()];
    a.offer(1, &x);
    b.offer(2, &y);
    a.expect_silence();
    b.expect_silence();
    for socket in [&x, &y] {
        assert_eq!(stage.row(socket).reason.as_deref(), Some("nat"));
    }
    // Nobody's translation: the far end is gone, and did not say so.
    let quiet = stage.thief.listen("0.0.0.0:7777");
    let (x, y) = connect(&stage.web, "10.3.0.2:7777", &quiet);
    a.offer(3, &x);
    a.expect_silence();
    stage.thief.ip("link set eth0 down");
    let at_once = Some(std::time::Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&y, at_once).expect("linger");
    drop(y);
    assert_eq!(stage.row(&x).reason.as_deref(), Some("no-peer"));
}

/// Takes one connection, makes another one for it, and keeps both until its input ends.
#[test]
fn process_that_is_a_proxy() {
    if std::env::var_os("FORDWAYD_TEST_PROXY").is_none() {
        return;
    }
    let proxy = TcpListener::bind("192.0.2.1:8085").expect("bind");
    println!("\nlistens");
    let taken = proxy.accept().expect("accept");
    let passed_on = TcpStream::connect("10.2.0.2:6380").expect("connect");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("end");
    drop((taken, passed_on));
}

/// As Docker's does where it translates nothing: two connections, of which a program of the
/// host's has two ends.
#[test]
fn a_proxy_in_between_is_two_connections() {
    let Some(stage) = Stage::new() else { return };
    let server = stage.db.listen("0.0.0.0:6380");
    let mut proxy = stage.host.within(|| {
        let mut command = Command::new("/proc/self/exe");
        command.args(["--exact", "process_that_is_a_proxy", "--nocapture"]);
        command.env("FORDWAYD_TEST_PROXY", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("proxy")
    });
    let said = BufReader::new(proxy.stdout.take().expect("stdout")).lines();
    let mut said = said.map_while(Result::ok);
    said.find(|line| line == "listens").expect("a proxy");
    let to = "192.0.2.1:8085";
    let x = stage.web.within(|| TcpStream::connect(to).expect(to));
    let (y, _) = server.accept().expect("accept");
    let [a, b] = [stage.shim(), stage.shim()];
    a.offer(1, &x);
    b.offer(2, &y);
    for (shim, socket) in [(&a, &x), (&b, &y)] {
        shim.expect_silence();
        assert_eq!(stage.row(socket).reason.as_deref(), Some("no-peer"));
    }
    drop(proxy.stdin.take());
    proxy.wait().expect("wait");
}

fn names(socket: &TcpStream) -> (SocketAddr, SocketAddr) {
    let local = socket.local_addr().expect("name");
    (local, socket.peer_addr().expect("name"))
}

/// A client whose name is chosen.
fn connect_from(client: SocketAddr, server: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, sockopt};
    let socket =
        rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
    sockopt::set_socket_reuseaddr(&socket, true).expect("reuse");
    rustix::net::bind(&socket, &client).expect("bind client");
    rustix::net::connect(&socket, &server).expect("connect");
    socket.into()
}
