//! The uplink as a user sees it: out of a domain, into it, by names, and nothing left behind.

mod support;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;
use support::place::Place;
use support::stage::{CONTAINER, HOST, OWN_HOSTS, Stage, WORLD};
use support::{Ran, Runtime, is_root};

/// A dropped packet is known by silence alone.
const SILENCE: Duration = Duration::from_millis(700);
/// Something that answers has answered by then.
const ANSWER: Duration = Duration::from_secs(20);

fn listen(port: u16) -> TcpListener {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).expect("bind")
}

/// What the server at the far end says; `None` where nobody answers.
fn ask(to: &str, limit: Duration) -> Option<String> {
    let to: SocketAddr = to.parse().expect("an address");
    let mut stream = match TcpStream::connect_timeout(&to, limit) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            return Some("refused".into());
        }
        Err(_) => return None,
    };
    stream.set_read_timeout(Some(ANSWER)).expect("limit");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("read");
    Some(said)
}

fn answer(to: &str) -> String {
    ask(to, ANSWER).unwrap_or_else(|| panic!("no answer from {to}"))
}

#[test]
fn domains_reach_the_world_and_the_world_what_is_published() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    stage.say("up --detach").check(0);
    stage.say("domain add early --ip 10.77.0.9").check(0);
    stage.say("down --keep-domains").check(0);
    stage.is_untouched();
    stage.say("up --detach --uplink").check(0);
    let add = "domain add db --ip 10.77.0.3 --publish 8080:7000 --publish 127.0.0.1:8081:7000";
    stage.say(add).check(0);
    let listener = stage.domain("db", || listen(7000));
    stage.serve(listener);
    let listener = stage.world.within(|| listen(90));
    stage.serve(listener);

    // In: from outside, from the host by any of its addresses, from a domain by the host.
    let published = format!("{HOST}:8080");
    assert_eq!(stage.world.within(|| answer(&published)), WORLD);
    for (to, seen) in [
        (published.as_str(), HOST),
        ("127.0.0.1:8080", "10.77.0.1"),
        ("127.0.0.1:8081", "10.77.0.1"),
        ("10.77.0.1:8080", "10.77.0.1"),
        ("10.77.0.3:7000", "10.77.0.1"),
    ] {
        assert_eq!(stage.host.within(|| answer(to)), seen, "{to}");
    }
    let refused = format!("{HOST}:8081");
    assert_eq!(stage.host.within(|| answer(&refused)), "refused");
    assert_eq!(stage.domain("early", || answer(&published)), "10.77.0.1");

    // Out: under the host's address, from a domain made before the uplink and one made after.
    for domain in ["early", "db"] {
        let world = format!("{WORLD}:90");
        assert_eq!(stage.domain(domain, || answer(&world)), HOST);
    }
    // Nothing else gets in, whoever has a route; nor does a domain get by the host to another,
    // or to what listens on the host's loopback.
    stage
        .world
        .ip(&format!("route add 10.77.0.0/24 via {HOST}"));
    assert_eq!(stage.world.within(|| ask("10.77.0.3:7000", SILENCE)), None);
    let bind = || UdpSocket::bind("127.0.0.1:95").expect("bind");
    let loopback = stage.host.within(bind);
    let by_host = "ip addr flush dev lo && sysctl -qw net.ipv4.conf.all.route_localnet=1 \
        && ip route add 127.0.0.1 via 10.77.0.1 src 10.77.0.9 && ip route add 10.77.0.3 via 10.77.0.1";
    let line = [
        "run", "--domain", "early", "--path", "kernel", "--", "sh", "-c", by_host,
    ];
    Ran::new(&mut stage.command(&stage.runtime.command(line))).check(0);
    let to_db = stage.domain("early", || ask("10.77.0.3:7000", SILENCE));
    assert_eq!(to_db, None);
    stage.domain("early", || {
        let socket = UdpSocket::bind("10.77.0.9:0").expect("bind");
        socket.send_to(b"in", "127.0.0.1:95").expect("send");
    });
    loopback.set_read_timeout(Some(SILENCE)).expect("limit");
    let heard = loopback.recv(&mut [0; 8]);
    assert!(heard.is_err(), "the host's loopback was reached");

    // UDP as well, and by the first run.
    let run = "run --domain dns --publish 8080:53/udp --path kernel -- true";
    stage.say(run).check(0);
    let shown = stage.json("domain show dns");
    assert_eq!(
        shown["domain"]["published"],
        serde_json::json!(["8080:53/udp"])
    );
    let server = stage.domain("dns", || UdpSocket::bind("0.0.0.0:53").expect("bind"));
    let client = stage
        .world
        .within(|| UdpSocket::bind("0.0.0.0:0").expect("bind"));
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(ANSWER)).expect("limit");
    }
    let mut buffer = [0; 8];
    client.send_to(b"who?", &published).expect("send");
    let (_, from) = server.recv_from(&mut buffer).expect("receive");
    assert_eq!(from.ip().to_string(), WORLD);
    server.send_to(b"I", from).expect("send");
    let (_, from) = client.recv_from(&mut buffer).expect("receive");
    assert_eq!(from.to_string(), published);

    // What is published is listed, has one owner, and outlives the broker.
    let shown = stage.json("domain show db");
    let both = serde_json::json!(["8080:7000", "127.0.0.1:8081:7000"]);
    assert_eq!(shown["domain"]["published"], both);
    let text = stage.say("domain show db").check(0).stdout;
    assert!(text.contains("8080:7000, 127.0.0.1:8081:7000"), "{text}");
    stage.say(add).check(0);
    for port in ["8080:1", "127.0.0.1:8080:7000", "8081:1"] {
        let ran = stage.say(&format!("domain add other --publish {port}"));
        ran.fails(6, "domain \"db\"");
    }
    stage
        .say("run --domain other --publish 8080:1 -- true")
        .fails(125, "domain \"db\"");
    stage.say("domain show other").fails(7, "other");
    let taken = stage.host.within(|| listen(8082));
    stage
        .say("domain add other --publish 8082:1")
        .fails(6, "a program of the host");
    drop(taken);
    stage
        .say("domain add other --publish 198.51.100.1:9:9")
        .fails(2, "198.51.100.1:9:9");

    let pid = stage.runtime.broker_pid();
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
    let pidfd = pidfd.expect("pidfd");
    let mut fds = [rustix::event::PollFd::new(
        &pidfd,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut fds, None).expect("poll");
    assert_eq!(stage.world.within(|| answer(&published)), WORLD);
    stage.say("up --detach --uplink").check(0);
    assert_eq!(stage.json("domain show db")["domain"]["published"], both);
    assert_eq!(stage.world.within(|| answer(&published)), WORLD);
    assert_eq!(
        stage
            .host("nft list table ip fordway")
            .matches("masquerade")
            .count(),
        2
    );

    stage.say("domain rm db --force").check(0);
    assert_eq!(stage.host.within(|| answer(&published)), "refused");

    // An uplink that is wanted no more goes, with all that came with it.
    stage.say("down --keep-domains").check(0);
    assert!(stage.forwards());
    stage.say("up --detach").check(0);
    stage.is_untouched();
    let ran = stage.inside("early", "ip route show default").check(0);
    assert_eq!(ran.stdout, "");
    stage
        .say("domain add other --publish 80:80")
        .fails(5, "fordway up --uplink");
    stage
        .say("run --domain other --publish 80:80 -- true")
        .fails(125, "fordway up --uplink");
    stage.say("down --keep-domains").check(0);
    stage.say("up --detach --uplink").check(0);
    stage.close();
}

#[test]
fn forwarding_that_was_on_stays_on() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    stage.host("sysctl -qw net.ipv4.ip_forward=1");
    stage.say("up --detach --uplink").check(0);
    stage.say("down").check(0);
    assert!(stage.forwards());
    // Also one that no broker ends.
    stage.host("sysctl -qw net.ipv4.ip_forward=0");
    stage.say("up --detach --uplink").check(0);
    rustix::process::kill_process(stage.runtime.broker_pid(), rustix::process::Signal::KILL)
        .expect("kill");
    stage.close();
}

#[test]
fn names_are_known_on_both_sides() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    stage.say("up --detach --uplink").check(0);
    stage.say("domain add db --ip 10.77.0.3").check(0);
    let said = stage.host("getent hosts db world");
    assert!(said.contains("10.77.0.3") && said.contains(WORLD), "{said}");
    assert!(!said.contains("fdbb:"), "it does not lead there: {said}");
    let ran = stage.inside("web", "getent ahosts host").check(0);
    let all = stage.inside("web", "getent ahosts db").check(0);
    let ran = ran.stdout + &all.stdout;
    for ip in ["10.77.0.1", "10.77.0.3", "fdbb:bad8:6eca::a4d:3"] {
        assert!(ran.contains(ip), "{ran}");
    }
    // Containers have the same names, in a file that they may mount.
    let env = stage.json("env");
    let mount = &env["mounts"][2];
    assert_eq!(mount["target"], "/etc/hosts");
    let names = stage.host(&format!(
        "cat {}",
        mount["source"].as_str().expect("a path")
    ));
    for line in ["10.77.0.1 host\n", "10.77.0.3 db\n", "10.77.0.2 web\n"] {
        assert!(names.contains(line), "{names}");
    }
    stage.say("domain rm db").check(0);
    assert!(!stage.hosts().contains(" db\n"), "{}", stage.hosts());
    // Somebody adds a line; a broker that is killed leaves its own, and the next replaces them.
    let file = stage.runtime.dir.join("hosts-of-host");
    let mut hosts = fs::File::options().append(true).open(&file).expect("open");
    hosts.write_all(b"198.51.100.7 mine").expect("write");
    rustix::process::kill_process(stage.runtime.broker_pid(), rustix::process::Signal::KILL)
        .expect("kill");
    stage.say("up --detach --uplink").check(0);
    let hosts = stage.hosts();
    let lines = |text: &str| hosts.lines().filter(|line| line.contains(text)).count();
    assert_eq!(
        (lines(" web"), lines("mine"), lines("fordway")),
        (1, 1, 2),
        "{hosts}"
    );
    stage.say("down").check(0);
    assert_eq!(stage.hosts(), format!("{OWN_HOSTS}\n198.51.100.7 mine\n"));
    fs::write(&file, OWN_HOSTS).expect("write");
    stage.is_untouched();
}

#[test]
fn other_names_are_asked_of_servers_that_a_domain_can_reach() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let stub = stage.runtime.dir.join("resolv.conf");
    fs::write(&stub, "nameserver 127.0.0.53\n").expect("write");
    stage.host(&format!("mount --bind {} /etc/resolv.conf", stub.display()));
    stage.host("mount -t tmpfs run /run");
    stage.say("up --detach --uplink").check(0);
    let asked = || stage.inside("web", "cat /etc/resolv.conf").check(0).stdout;
    assert_eq!(asked(), "nameserver 127.0.0.53\n");
    let servers = stage.runtime.dir.join("servers");
    fs::write(&servers, format!("nameserver {WORLD}\n")).expect("write");
    stage.host("mkdir -p /run/systemd/resolve");
    stage.host(&format!(
        "cp {} /run/systemd/resolve/resolv.conf",
        servers.display()
    ));
    assert_eq!(asked(), format!("nameserver {WORLD}\n"));
    stage.close();
}

/// As debootstrap leaves it: a broker makes a file to mount over, and takes it away.
#[test]
fn names_work_where_there_is_no_hosts_file() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    stage.host("umount /etc/hosts");
    let dir = stage.runtime.dir.join("etc");
    fs::create_dir(&dir).expect("mkdir");
    let dir = dir.display();
    stage.host(&format!("mount -t tmpfs etc {dir}"));
    stage.host(&format!("mkdir {dir}/upper {dir}/work"));
    let overlay = format!("lowerdir=/etc,upperdir={dir}/upper,workdir={dir}/work");
    stage.host(&format!("mount -t overlay -o {overlay} etc /etc"));
    stage.host("rm /etc/hosts");
    let has_file = || stage.host("ls /etc").lines().any(|name| name == "hosts");
    for up in ["up --detach", "up --detach --uplink"] {
        stage.say(up).check(0);
        stage.say("domain add db --ip 10.77.0.3").check(0);
        let ran = stage.inside("web", "getent ahostsv4 db").check(0);
        assert!(
            ran.stdout.contains("10.77.0.3") && ran.stderr.is_empty(),
            "{ran:?}"
        );
        assert!(has_file());
        stage.say("down").check(0);
        assert!(!has_file());
    }
}

/// A container, as seen from here: a namespace behind another device of the host.
#[test]
fn attached_domains_and_others_see_each_others_own_addresses() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    stage.say("up --detach --uplink").check(0);
    stage.say("domain add db --ip 10.77.0.3").check(0);
    let container = stage.container();
    let pid = container.pid();
    let listener = stage.domain("db", || listen(7000));
    stage.serve(listener);
    let listener = container.within(|| listen(90));
    stage.serve(listener);
    let in_by = |limit| container.within(|| ask("10.77.0.3:7000", limit));
    let out_to = format!("{CONTAINER}:90");

    assert_eq!(in_by(SILENCE), None, "before it is attached");
    assert_eq!(stage.domain("db", || answer(&out_to)), "172.30.0.1");
    let attach = format!("domain attach shop --ip {CONTAINER} --pid {pid}");
    stage.say(&attach).check(0);
    assert_eq!(in_by(ANSWER).as_deref(), Some(CONTAINER));
    assert_eq!(stage.domain("db", || answer(&out_to)), "10.77.0.3");
    // The world may say that it has this address; the host knows where that is.
    stage
        .world
        .ip(&format!("route add 10.77.0.0/24 via {HOST}"));
    stage.world.ip(&format!("addr add {CONTAINER}/32 dev lo"));
    let db = stage.domain("db", || UdpSocket::bind("10.77.0.3:9").expect("bind"));
    db.set_read_timeout(Some(SILENCE)).expect("limit");
    let send = |place: &Place| {
        place.within(|| {
            let socket = UdpSocket::bind((CONTAINER, 0)).expect("bind");
            socket.send_to(b"in", "10.77.0.3:9").expect("send");
        });
    };
    send(&stage.world);
    assert!(
        db.recv(&mut [0; 8]).is_err(),
        "the world came as the container"
    );
    db.set_read_timeout(Some(ANSWER)).expect("limit");
    send(&container);
    assert_eq!(db.recv(&mut [0; 8]).expect("receive"), 2);

    stage.say("domain rm shop --force").check(0);
    assert_eq!(in_by(SILENCE), None, "when it is attached no more");
    stage.host("ip link del docker0");
    stage.close();
}

#[test]
fn an_address_of_the_domains_network_has_one_port() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    stage.say("up --detach --uplink").check(0);
    stage.say("domain add db --ip 10.77.0.3").check(0);
    stage.say("domain add web --ip 10.77.0.4").check(0);
    let db = stage.domain("db", || UdpSocket::bind("10.77.0.3:9").expect("bind"));
    db.set_read_timeout(Some(ANSWER)).expect("limit");
    let dropped = || {
        let count = stage.json("domain show host")["dropped_frames"].as_u64();
        count.expect("a count")
    };
    // As the domain web, and as nobody of the network; the host's root has taken away what would
    // masquerade that. The neighbour is asked for by an honest packet.
    stage.host("nft flush chain ip fordway postrouting");
    stage.host("ip addr add 10.77.0.4/32 dev lo");
    stage.host("ip addr add 10.77.0.99/32 dev lo");
    let send = |from: &str| {
        let from = format!("{from}:0");
        stage.host.within(|| {
            let socket = UdpSocket::bind(from.as_str()).expect("bind");
            socket
                .send_to(from.as_bytes(), "10.77.0.3:9")
                .expect("send");
        });
    };
    let receive = || {
        let mut buffer = [0; 64];
        let (_, from) = db.recv_from(&mut buffer).expect("receive");
        from.ip().to_string()
    };
    send("10.77.0.1");
    assert_eq!(receive(), "10.77.0.1");
    assert_eq!(dropped(), 0);
    for (count, from) in [(1, "10.77.0.4"), (2, "10.77.0.99")] {
        send(from);
        // The frame may be on its way still.
        let seen = (0..100).map(|_| dropped()).find(|seen| *seen == count);
        assert_eq!(seen, Some(count));
    }
    // What is routed, from no address of the network, arrives; and is all that does.
    send(HOST);
    assert_eq!(receive(), HOST);
    assert_eq!(dropped(), 2);
    stage.close();
}

#[test]
fn rules_hold_for_what_comes_by_the_uplink() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    stage.say("up --detach --uplink").check(0);
    stage
        .say("domain add db --ip 10.77.0.3 --publish 8080:7000")
        .check(0);
    let listener = stage.domain("db", || listen(7000));
    stage.serve(listener);
    let rules = stage.runtime.dir.join("rules.nft");
    let text = format!(
        "table inet t {{\n chain c {{\n type filter hook forward priority 0;\n \
         ip saddr {WORLD} ip daddr $db reject with tcp reset\n \
         ip saddr $host ip daddr $db counter accept\n }}\n}}\n"
    );
    fs::write(&rules, text).expect("write");
    stage
        .say(&format!("filter load {}", rules.display()))
        .check(0);
    let published = format!("{HOST}:8080");
    assert_eq!(stage.world.within(|| answer(&published)), "refused");
    assert_eq!(stage.host.within(|| answer("127.0.0.1:8080")), "10.77.0.1");
    stage.close();
}

#[test]
fn a_host_has_one_uplink_and_keeps_its_own_networks() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let up = "up --detach --uplink --network";
    stage
        .say(&format!("{up} 192.0.2.0/28"))
        .fails(6, "--network");
    stage.host("ip route add 172.16.0.0/12 via 192.0.2.2");
    stage
        .say(&format!("{up} 172.20.0.0/24"))
        .fails(6, "172.16.0.0/12");
    assert!(!stage.runtime.run_dir().join("netns").exists());
    stage.is_untouched();
    stage.say("up --detach --uplink").check(0);

    let other = Runtime::new();
    let say = |line: &str| Ran::new(&mut stage.command(&other.command(line.split(' '))));
    let dir = stage.runtime.run_dir();
    for network in ["", " --network 10.78.0.0/24"] {
        let ran = say(&format!("up --detach --uplink{network}"));
        ran.fails(6, dir.to_str().expect("path"));
    }
    // Without an uplink the same network harms nobody.
    say("up --detach").check(0);
    say("domain add db").check(0);
    say("down").check(0);
    assert!(stage.host("ip -o link").contains("fordway0"));
    stage.close();
}

#[test]
fn malformed_ports_are_wrong_use() {
    let runtime = Runtime::new();
    for bad in ["80", "0:80", "80:80/sctp", "name:80:80"] {
        runtime
            .say(&format!("domain add db --publish {bad}"))
            .fails(2, "8080:80");
        let run = format!("run --domain db --publish {bad} -- true");
        runtime.say(&run).fails(125, "8080:80");
    }
    runtime
        .say("run --here --publish 80:80 -- true")
        .fails(125, "--publish");
}
