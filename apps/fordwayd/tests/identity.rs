//! Who is who across namespaces, processes and users. Needs root; as an ordinary user
//! these tests say so and do nothing.

mod common;

use common::*;
use fordway_abi::control as wire;
use fordway_abi::reason::Reason;
use fordway_platform::netns;
use fordwayd::admin::{Domain, ErrorKind, Reply, Request};
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn broker_process() {
    common::broker_process();
}

/// An ordinary user.
const NOBODY: u32 = 65_534;

/// Works as this user, in a thread of its own.
fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    let uid = rustix::process::Uid::from_raw(uid);
    let work = move || {
        // The system call, unlike libc's function, leaves the other threads as they are.
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid");
        work()
    };
    std::thread::scope(|scope| scope.spawn(work).join()).expect("as another user")
}

/// web connects to db's port 6379.
fn across(web: &Domain, db: &Domain) -> (TcpStream, TcpStream) {
    let name = SocketAddr::from((db.ip.expect("ip"), 6379));
    across_to(web, db, name, name)
}

/// web connects to `name`, where db listens as `bound`.
fn across_to(
    web: &Domain,
    db: &Domain,
    name: SocketAddr,
    bound: SocketAddr,
) -> (TcpStream, TcpStream) {
    let [web_ns, db_ns] = [open(web), open(db)];
    let listener = netns::within(db_ns.as_fd(), || TcpListener::bind(bound)).expect("enter");
    let listener = listener.expect("bind");
    let a = netns::within(web_ns.as_fd(), || TcpStream::connect(name)).expect("enter");
    let (b, _) = listener.accept().expect("accept");
    (a.expect("connect"), b)
}

#[test]
fn two_domains_are_paired_and_listed() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let domains = Domains(&broker);
    let db = domains.add("db", Some(Ipv4Addr::new(10, 77, 0, 3)));
    let web = domains.add("web", None);
    assert_eq!(web.ip, Some(Ipv4Addr::new(10, 77, 0, 2)));
    let again = domains.add("db", None);
    assert_eq!((again.id, again.netns_cookie), (db.id, db.netns_cookie));
    for (name, ip) in [
        ("db", Ipv4Addr::new(10, 77, 0, 9)),
        ("other", Ipv4Addr::new(10, 77, 0, 3)),
    ] {
        let request = Request::DomainAdd {
            name: name.into(),
            ip: Some(ip),
            publish: Vec::new(),
        };
        assert!(matches!(
            broker.ask(&request),
            Reply::Error {
                kind: ErrorKind::Taken,
                ..
            }
        ));
    }

    // The processes run here; it is the sockets' namespaces that count.
    let (x, y) = across(&web, &db);
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);
    let Reply::Connections { connections } = broker.ask(&Request::Connections) else {
        panic!("no connections")
    };
    let own = x.local_addr().expect("name").to_string();
    let row = connections
        .iter()
        .find(|row| row.local == own)
        .expect("row");
    assert_eq!(
        (row.domain.as_str(), row.peer_domain.as_deref()),
        ("web", Some("db"))
    );
    assert_eq!(row.channel, Some(1));

    // A domain whose programs still run is not removed without force; then its channels go.
    let mut sleeper = netns::within(open(&db).as_fd(), || {
        Command::new("sleep").arg("60").spawn().expect("sleep")
    })
    .expect("enter");
    let remove = |force| Request::DomainRemove {
        name: "db".into(),
        force,
    };
    assert!(matches!(
        broker.ask(&remove(false)),
        Reply::Error {
            kind: ErrorKind::Busy,
            ..
        }
    ));
    assert!(matches!(broker.ask(&remove(true)), Reply::Done));
    sleeper.kill().expect("kill");
    sleeper.wait().expect("wait");
    for shim in [&a, &b] {
        let message: wire::Downgrade = shim.expect();
        assert_eq!(Reason::from_u32(message.reason), Some(Reason::Unassigned));
    }
}

#[test]
fn a_mirrored_tuple_from_another_namespace_is_refused() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let domains = Domains(&broker);
    let db = domains.add("db", None);
    let web = domains.add("web", None);
    let (x, y) = across(&web, &db);
    // The very same four numbers, both ends, in a namespace of the thief's own.
    let names = [&x, &y].map(|stream| stream.local_addr().expect("name"));
    let ips = [web.ip, db.ip].map(|ip| ip.expect("ip"));
    let private = PrivateNamespace::new(dir.path(), &ips);
    let (false_x, false_y) = private.within(|| connect_as(names[0], names[1]));
    let [a, b] = [(); 2].map(|()| Shim::join(dir.path()));
    let thief = private.within(|| Shim::join(dir.path()));

    // First come: the thief, as the far end of each.
    thief.offer(1, &false_y);
    // What he is told follows from his own names, and the other one hears nothing of him.
    a.offer(1, &x);
    a.expect_silence();
    let reject: wire::Reject = thief.expect();
    let reason = Reason::from_u32(reject.reason);
    assert_eq!(
        (reject.conn_id, reason, reject.pending),
        (1, Some(Reason::Unassigned), 1)
    );
    // Not even with himself: the addresses are others'.
    thief.offer(2, &false_x);
    assert_eq!(thief.expect::<wire::Reject>().conn_id, 2);
    thief.expect_silence();
    a.expect_silence();
    // The true end is not kept from its partner.
    b.offer(1, &y);
    a.expect::<wire::Link>();
    b.expect::<wire::Link>();
    thief.expect_silence();

    // Over loopback, names are worth nothing outside their namespace.
    let (x, y) = tcp_pair();
    let names = [&x, &y].map(|stream| stream.local_addr().expect("name"));
    let (_, false_y) = private.within(|| connect_as(names[0], names[1]));
    a.offer(5, &x);
    thief.offer(5, &false_y);
    thief.expect_silence();
    a.expect_silence();
}

/// Over IPv6; from an IPv4 socket to one of both families, which the server's end names in IPv6
/// (RFC 4291, 2.5.5.2); and the same names from where they are not.
#[test]
fn ends_of_either_family_are_paired_by_whose_address_it_is() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let domains = Domains(&broker);
    let db = domains.add("db", None);
    let web = domains.add("web", None);
    let (Some(six), Some(four)) = (db.ip6, db.ip) else {
        fordway_test_skip::skipped("the kernel has IPv6 off");
        return;
    };
    assert_eq!(six.to_string(), "fd00::a4d:2");
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 6379));
    let [a, b] = [Shim::join(dir.path()), Shim::join(dir.path())];
    let (x, y) = across_to(&web, &db, (six, 6379).into(), any);
    assert_eq!(y.local_addr().expect("name").ip(), six);
    link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);

    let names = [&x, &y].map(|stream| stream.local_addr().expect("name"));
    let ips = [&web, &db].map(|domain| domain.ip.expect("ip"));
    let private = PrivateNamespace::new(dir.path(), &ips);
    for name in names {
        let IpAddr::V6(ip) = name.ip() else {
            panic!("{name} is of IPv4");
        };
        private.add_ip6(ip, 128, "lo");
    }
    let (false_x, false_y) = private.within(|| connect_as(names[0], names[1]));
    let thief = private.within(|| Shim::join(dir.path()));
    for (number, end) in [(1, &false_x), (2, &false_y)] {
        thief.offer(number, end);
        let reject: wire::Reject = thief.expect();
        let reason = Reason::from_u32(reject.reason);
        assert_eq!((reject.conn_id, reason), (number, Some(Reason::Unassigned)));
    }
    thief.expect_silence();

    let (x, y) = across_to(&web, &db, (four, 6379).into(), any);
    let mapped = y.local_addr().expect("name").ip();
    assert_eq!(mapped, four.to_ipv6_mapped());
    a.offer(3, &x);
    b.offer(4, &y);
    let pairs = [a.expect::<wire::Pair>(), b.expect()];
    assert_eq!(pairs.map(|pair| pair.conn_id), [3, 4]);
}

/// Where a socket lies decides what may be paired with it, so the kernel is asked there.
#[test]
fn a_socket_is_looked_for_in_the_namespace_that_is_named() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let domains = Domains(&broker);
    let db = domains.add("db", None);
    let web = domains.add("web", None);
    let (x, y) = across(&web, &db);
    let (own, _far) = tcp_pair();
    let shim = Shim::join(dir.path());
    let here = claim(&own).netns_cookie;
    for (socket, place) in [
        (&own, db.netns_cookie),
        (&x, here),
        (&x, db.netns_cookie),
        (&y, web.netns_cookie),
    ] {
        let false_claim = wire::Claim {
            netns_cookie: place,
            ..claim(socket)
        };
        shim.claim(1, false_claim);
        assert_eq!(refusal(&shim), Some(Reason::NoPeer));
    }
    // They are true where they are.
    shim.offer(1, &x);
    shim.expect_silence();
    shim.offer(2, &y);
    shim.expect::<wire::Link>();
}

/// An inode's number comes again after all others: whose namespace it is counts as well.
#[test]
fn only_root_of_the_brokers_namespace_has_sockets_of_others() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let domains = Domains(&broker);
    let db = domains.add("db", None);
    let inside =
        |user| netns::within(open(&db).as_fd(), || as_user(user, tcp_pair)).expect("enter");
    for user in [0, NOBODY] {
        let root = Shim::join(dir.path());
        let (x, y) = inside(user);
        // The broker has asked there already.
        root.offer(1, &y);
        root.expect_silence();
        let elsewhere = PrivateNamespace::new(dir.path(), &[]);
        let join = || as_user(user, || Shim::join(dir.path()));
        let mut strangers = vec![elsewhere.within(join)];
        if user != 0 {
            strangers.push(join());
        }
        for stranger in strangers {
            stranger.offer(1, &x);
            assert_eq!(refusal(&stranger), Some(Reason::Unproven));
            root.expect_silence();
        }
        let at_home = netns::within(open(&db).as_fd(), join).expect("enter");
        at_home.offer(1, &x);
        at_home.expect::<wire::Link>();
        root.expect::<wire::Link>();
    }
}

#[test]
fn a_user_has_no_socket_that_another_one_made() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let _broker = Broker::start(dir.path());
    let (of_root, far) = tcp_pair();
    let (own, own_far) = as_user(NOBODY, tcp_pair);
    let root = Shim::join(dir.path());
    let user = as_user(NOBODY, || Shim::join(dir.path()));
    root.offer(1, &far);
    user.offer(1, &of_root);
    assert_eq!(refusal(&user), Some(Reason::Unproven));
    root.expect_silence();
    // His own are his; root has whose it likes.
    user.offer(2, &own);
    user.expect_silence();
    root.offer(2, &own_far);
    user.expect::<wire::Link>();
    root.expect::<wire::Link>();
}

#[test]
fn a_namespace_made_by_others_joins_when_it_is_attached() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let ip = Ipv4Addr::new(192, 168, 55, 2);
    let private = PrivateNamespace::new(dir.path(), &[ip]);
    let mut inside = private.within(|| Command::new("sleep").arg("60").spawn().expect("sleep"));
    let ip6 = "2001:db8::2".parse().ok();
    let attach = Request::DomainAttach {
        name: "box".into(),
        ip,
        ip6,
        pid: inside.id() as i32,
    };
    let Reply::Domain(attached) = broker.ask(&attach) else {
        panic!("not attached")
    };
    assert_eq!(
        (attached.ip, attached.ip6, attached.netns_path),
        (Some(ip), ip6, None)
    );
    // A broker that is started again knows it.
    broker.kill();
    let broker = Broker::start(dir.path());
    let Reply::Domains { domains } = broker.ask(&Request::DomainList) else {
        panic!("no list")
    };
    let again = domains
        .iter()
        .find(|domain| domain.name == "box")
        .expect("box");
    assert_eq!(
        (again.netns_cookie, again.ip6),
        (attached.netns_cookie, ip6)
    );
    let none = Request::DomainAttach {
        name: "none".into(),
        ip: Ipv4Addr::new(192, 168, 55, 3),
        ip6: None,
        pid: i32::MAX,
    };
    assert!(matches!(
        broker.ask(&none),
        Reply::Error {
            kind: ErrorKind::NotFound,
            ..
        }
    ));
    // The same container, started again in a new namespace.
    let moved = Request::DomainAttach {
        name: "box".into(),
        ip,
        ip6: None,
        pid: std::process::id() as i32,
    };
    assert!(matches!(
        broker.ask(&moved),
        Reply::Error {
            kind: ErrorKind::Taken,
            ..
        }
    ));
    inside.kill().expect("kill");
    inside.wait().expect("wait");
    let second = TempDir::new();
    let anew = PrivateNamespace::new(second.path(), &[ip]);
    let mut inside = anew.within(|| Command::new("sleep").arg("60").spawn().expect("sleep"));
    let attach = Request::DomainAttach {
        name: "box".into(),
        ip,
        ip6: None,
        pid: inside.id() as i32,
    };
    let Reply::Domain(second) = broker.ask(&attach) else {
        panic!("not attached")
    };
    assert_ne!(second.id, again.id);
    inside.kill().expect("kill");
    inside.wait().expect("wait");
    let remove = Request::DomainRemove {
        name: "box".into(),
        force: false,
    };
    assert!(matches!(broker.ask(&remove), Reply::Done));
}

#[test]
fn domains_outlive_a_killed_broker() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let first = {
        let db = Domains(&broker);
        let domain = db.add("db", None);
        std::mem::forget(db);
        domain
    };
    broker.kill();
    let broker = Broker::start(dir.path());
    let domains = Domains(&broker);
    let again = domains.add("db", None);
    assert_eq!(
        (again.ip, again.netns_cookie),
        (first.ip, first.netns_cookie)
    );
}

/// Connects, says hello, has a child that keeps the control socket, and waits.
#[test]
fn process_with_a_heir() {
    let Some(dir) = std::env::var_os("FORDWAYD_TEST_HEIR") else {
        return;
    };
    let shim = Shim::join(Path::new(&dir));
    let (x, y) = tcp_pair();
    shim.offer(1, &x);
    shim.offer(2, &y);
    let inherited = rustix::io::dup(&shim.socket).expect("dup");
    let mut heir = Command::new("sleep")
        .arg("60")
        .stdout(Stdio::null())
        .spawn()
        .expect("sleep");
    println!("\nheir {}", heir.id());
    // Killed from outside; the heir keeps `inherited`.
    heir.wait().expect("wait");
    drop(inherited);
}

#[test]
fn death_is_seen_even_if_a_child_holds_the_connection() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let mut process = Command::new("/proc/self/exe")
        .args(["--exact", "process_with_a_heir", "--nocapture"])
        .env("FORDWAYD_TEST_HEIR", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("process");
    let heir: i32 = says(&mut process, "heir ").parse().expect("heir");
    let processes = || match broker.ask(&Request::Info) {
        Reply::Info(info) => info.processes,
        other => panic!("{other:?}"),
    };
    assert_eq!(processes(), 1);
    process.kill().expect("kill");
    process.wait().expect("wait");
    while processes() != 0 {
        std::thread::yield_now();
    }
    let heir = rustix::process::Pid::from_raw(heir).expect("pid");
    rustix::process::kill_process(heir, rustix::process::Signal::KILL).expect("kill");
}

/// What a process says behind `word`.
fn says(process: &mut std::process::Child, word: &str) -> String {
    let lines = BufReader::new(process.stdout.take().expect("stdout")).lines();
    let mut said = lines.map_while(Result::ok);
    said.find_map(|line| line.strip_prefix(word).map(str::to_owned))
        .expect(word)
}

/// Has both ends of a channel, until its input ends.
#[test]
fn process_with_a_channel() {
    let Some(dir) = std::env::var_os("FORDWAYD_TEST_CHANNEL") else {
        return;
    };
    let dir = Path::new(&dir);
    let [a, b] = [Shim::join(dir), Shim::join(dir)];
    let (x, y) = tcp_pair();
    let _linked = link(&a, &b, [1, 2], [x.as_fd(), y.as_fd()]);
    println!("\nlinked {}", x.local_addr().expect("name"));
    std::io::stdin().read_to_end(&mut Vec::new()).expect("end");
}

/// An AF_UNIX pair has rings between a program and its own stack only, whoever holds its ends.
#[test]
fn a_pair_without_a_stack_gets_no_rings() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let domains = Domains(&broker);
    let [web, db] = ["web", "db"].map(|name| domains.add(name, None));
    let of_pair = |socket: &UnixStream| wire::Claim {
        protocol: wire::protocol::UNIX,
        ..claim_named(socket, [None, None])
    };
    let pair = || UnixStream::pair().expect("a pair");
    let (here, within_one) = (
        pair(),
        netns::within(open(&web).as_fd(), pair).expect("enter"),
    );
    for (x, y) in [here, within_one] {
        // Of the host, of the domain that the pair was made in, and of another one.
        for place in [None, Some(&web), Some(&db)] {
            let join = || Shim::join(dir.path());
            let shim = match place {
                None => join(),
                Some(domain) => netns::within(open(domain).as_fd(), join).expect("enter"),
            };
            for (conn_id, end) in [(1, &x), (2, &y)] {
                shim.claim(conn_id, of_pair(end));
                assert_eq!(refusal(&shim), Some(Reason::Unproven), "{place:?}");
            }
        }
    }
}

#[test]
fn an_ordinary_user_has_a_broker_of_his_own() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
    let options = Options {
        uid: Some(NOBODY),
        ..Options::default()
    };
    let broker = Broker::try_start(dir.path(), options).expect("broker");
    let Reply::Info(info) = broker.ask(&Request::Info) else {
        panic!("no info")
    };
    assert_eq!((info.uid, info.domains), (NOBODY, false));
    // Programs of others are none of his business: he may not see what they have open.
    let (x, _y) = tcp_pair();
    let other = Shim::join(dir.path());
    other.offer(1, &x);
    assert_eq!(refusal(&other), Some(Reason::Unproven));
    // Through /proc, for he may not enter the build directory.
    let program = std::fs::File::open("/proc/self/exe").expect("own image");
    let program = rustix::io::fcntl_dupfd_cloexec(&program, 100).expect("dup");
    let number = std::os::fd::AsRawFd::as_raw_fd(&program);
    let mut process = Command::new(format!("/proc/self/fd/{number}"))
        .args(["--exact", "process_with_a_channel", "--nocapture"])
        .env("FORDWAYD_TEST_CHANNEL", dir.path())
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("process");
    let own = says(&mut process, "linked ");
    let Reply::Connections { connections } = broker.ask(&Request::Connections) else {
        panic!("no connections")
    };
    let row = connections
        .iter()
        .find(|row| row.local == own)
        .expect("row");
    assert_eq!(row.path, "fast");
    drop(process.stdin.take());
    process.wait().expect("wait");
    let add = Request::DomainAdd {
        name: "db".into(),
        ip: None,
        publish: Vec::new(),
    };
    assert!(matches!(
        broker.ask(&add),
        Reply::Error {
            kind: ErrorKind::Privilege,
            ..
        }
    ));
}

#[test]
fn a_directory_of_others_is_refused() {
    if !is_root() {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new();
    std::os::unix::fs::chown(dir.path(), Some(1), None).expect("chown");
    let error = Broker::try_start(dir.path(), Options::default())
        .err()
        .expect("refused");
    assert!(error.contains("belongs to user 1"), "{error}");
    std::os::unix::fs::chown(dir.path(), Some(0), None).expect("chown");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).expect("chmod");
    let error = Broker::try_start(dir.path(), Options::default())
        .err()
        .expect("refused");
    assert!(error.contains("others can write"), "{error}");
}

#[test]
fn a_signal_from_the_keyboard_clears_what_nothing_runs_in() {
    if !is_root() {
        return;
    }
    use rustix::process::{Pid, Signal, kill_process};
    let dir = TempDir::new();
    let signal = |broker: &mut Broker, signal| {
        let pid = Pid::from_raw(broker.child.id() as i32).expect("pid");
        kill_process(pid, signal).expect("kill");
        assert!(broker.child.wait().expect("wait").success());
        assert!(!dir.path().join(fordwayd::admin::ADMIN_SOCKET).exists());
    };
    // The test harness has threads of its own, which must not be hit.
    let start = || {
        let options = Options {
            prefix: &["env", "--block-signal=INT", "--block-signal=TERM"],
            ..Options::default()
        };
        Broker::try_start(dir.path(), options).expect("broker")
    };
    let mut broker = start();
    let add = |broker: &Broker, name: &str| match broker.ask(&Request::DomainAdd {
        name: name.into(),
        ip: None,
        publish: Vec::new(),
    }) {
        Reply::Domain(domain) => domain,
        other => panic!("{other:?}"),
    };
    let [used, unused] = ["used", "unused"].map(|name| add(&broker, name));
    let mut inside = netns::within(open(&used).as_fd(), || {
        Command::new("sleep").arg("60").spawn().expect("sleep")
    })
    .expect("enter");
    // A service manager's signal leaves everything, ...
    signal(&mut broker, Signal::TERM);
    let mut broker = start();
    let names = |broker: &Broker| match broker.ask(&Request::DomainList) {
        Reply::Domains { domains } => domains.into_iter().map(|d| d.name).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(names(&broker).len(), 3);
    // ... one from the keyboard what is in use.
    signal(&mut broker, Signal::INT);
    assert!(!Path::new(unused.netns_path.as_ref().expect("path")).exists());
    let mut broker = start();
    assert_eq!(names(&broker), ["host", "used"]);
    inside.kill().expect("kill");
    inside.wait().expect("wait");
    signal(&mut broker, Signal::INT);
    assert!(!Path::new(used.netns_path.as_ref().expect("path")).exists());
}
