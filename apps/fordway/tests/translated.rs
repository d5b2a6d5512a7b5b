//! Connections whose addresses the kernel translates, and those of AF_VSOCK with the host and with containers, by
//! unmodified programs: their bytes go through rings. Needs root and a built shim; says so otherwise.

mod support;

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};
use support::place::Place;
use support::program::{Program, say};
use support::stage::{CONTAINER, HOST, Stage};
use support::{Ran, built_shim, is_root};

/// Which of the two programs this process is to be, and the address that is meant.
const ROLE: &str = "FORDWAY_TEST_ROLE";
const ROUND_TRIPS: usize = 100;
const MESSAGE: [u8; 64] = [7; 64];
/// What the kernel path may have carried first, and more than that.
const LEAST: u64 = (ROUND_TRIPS * MESSAGE.len()) as u64;

/// Not a test of its own: the domains run it as an ordinary program.
#[test]
fn role() {
    let role = std::env::var(ROLE).unwrap_or_default();
    match role.split_once(' ') {
        Some(("server", at)) => serve(at),
        Some(("client", to)) => call(to),
        _ => {}
    }
}

/// Until it is killed.
fn serve(at: &str) {
    let listener = TcpListener::bind(at).expect("bind");
    say("listening");
    loop {
        let (mut stream, _) = listener.accept().expect("accept");
        let mut message = MESSAGE;
        while stream.read_exact(&mut message).is_ok() {
            stream.write_all(&message).expect("write");
        }
    }
}

/// Exchanges messages, once for each line that it is given.
fn call(to: &str) {
    let mut stream = TcpStream::connect(to).expect("connect");
    while std::io::stdin()
        .read_line(&mut String::new())
        .expect("read")
        > 0
    {
        for _ in 0..ROUND_TRIPS {
            let mut answer = [0; MESSAGE.len()];
            stream.write_all(&MESSAGE).expect("write");
            stream.read_exact(&mut answer).expect("read");
            assert_eq!(answer, MESSAGE);
        }
        say("exchanged");
    }
}

/// The same roles in AF_VSOCK, of which std has nothing: a server of streams at a port and one of records at the next,
/// and a client of the kind that it is given.
const VSOCK: &str = r#"
import os, socket, sys, threading
role, *words = os.environ["FORDWAY_TEST_ROLE"].split()
ANY, MESSAGE = 0xffffffff, b"7" * 64
def whole(connection):
    data = connection.recv(64)
    while 0 < len(data) < 64 and connection.type == socket.SOCK_STREAM:
        data += connection.recv(64 - len(data))
    return data
def echo(connection):
    while message := whole(connection):
        connection.sendall(message)
def serve(kind, port):
    listener = socket.socket(socket.AF_VSOCK, kind)
    listener.bind((ANY, port))
    listener.listen()
    def accept():
        while True:
            threading.Thread(target=echo, args=listener.accept()[:1]).start()
    return threading.Thread(target=accept)
if role == "vsock-server":
    port = int(words[0])
    both = [serve(socket.SOCK_STREAM, port), serve(socket.SOCK_SEQPACKET, port + 1)]
    for thread in both:
        thread.start()
    print("SAID listening", flush=True)
else:
    kind, cid, port = socket.SocketKind[words[0]], int(words[1]), int(words[2])
    near = socket.socket(socket.AF_VSOCK, kind)
    near.connect((cid, port))
    assert near.getpeername() == (cid, port) and near.getsockname()[0] == int(words[3])
    for _ in sys.stdin:
        for _ in range(100):
            near.sendall(MESSAGE)
            assert whole(near) == MESSAGE
        print("SAID exchanged", flush=True)
"#;

/// Which program plays a role.
fn program(role: &str) -> Vec<String> {
    let own = std::env::current_exe().expect("path");
    let own = own.to_str().expect("a name");
    let words = match role.starts_with("vsock") {
        true => vec!["/usr/bin/python3", "-c", VSOCK],
        false => vec![own, "--exact", "role", "--nocapture"],
    };
    words.into_iter().map(str::to_owned).collect()
}

/// The host, what is laid on it, and the shim.
struct Bed {
    stage: Stage,
    shim: std::path::PathBuf,
}

impl Bed {
    fn new() -> Option<Bed> {
        Bed::with("up --detach --uplink")
    }

    fn with(up: &str) -> Option<Bed> {
        if !is_root() {
            return None;
        }
        let shim = built_shim()?;
        let stage = Stage::new();
        stage.say(up).check(0);
        Some(Bed { stage, shim })
    }

    /// `fordway run WHERE -- this program` in that role, on the host.
    fn run(&self, place: &str, role: &str) -> Program {
        let mut words = vec!["run".to_owned()];
        words.extend(place.split(' ').map(str::to_owned));
        words.push("--".into());
        words.extend(program(role));
        let mut command = self.stage.runtime.command(words);
        command.env("FORDWAY_LIB", &self.shim);
        let mut command = self.stage.command(&command);
        command.env(ROLE, role);
        Program::start(command)
    }

    /// This program in that role in a container, which has joined by the variables of `fordway env`.
    fn contain(&self, container: &Place, role: &str) -> Program {
        let mut env = self.stage.runtime.command(["env", "--json"]);
        env.env("FORDWAY_LIB", &self.shim);
        let ran = Ran::new(&mut self.stage.command(&env)).check(0);
        let env: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        let mut command = Command::new("nsenter");
        command.args(["-t", &container.pid().to_string(), "--net", "env"]);
        for (name, value) in env["variables"].as_object().expect("variables") {
            command.arg(format!("{name}={}", value.as_str().expect("a string")));
        }
        command.args(program(role));
        command.env(ROLE, role);
        Program::start(command)
    }

    fn serve(&self, place: &str, at: &str) -> Program {
        self.serves(place, &format!("server {at}"))
    }

    fn serves(&self, place: &str, role: &str) -> Program {
        let mut server = self.run(place, role);
        server.hear("listening");
        server
    }

    fn cid(&self, domain: &str) -> Value {
        self.stage.json(&format!("domain show {domain}"))["domain"]["cid"].clone()
    }

    /// Has a client exchange messages until both ends of its connection show that they moved them
    /// through rings; `ss` says in which domains the ends are.
    #[track_caller]
    fn by_rings(&self, mut client: Program, domains: [&str; 2]) {
        self.moves_by_rings(&mut client, domains);
    }

    #[track_caller]
    fn moves_by_rings(&self, client: &mut Program, domains: [&str; 2]) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            client.go_on();
            client.hear("exchanged");
            let document = self.stage.json("ss --all");
            let rows = document["connections"].as_array().expect("connections");
            let moved = |row: &&Value| {
                let count = |name: &str| row[name].as_u64().expect("a count");
                row["path"] == "fast" && count("ring_bytes_tx").min(count("ring_bytes_rx")) > LEAST
            };
            let moved: Vec<&Value> = rows.iter().filter(moved).collect();
            if let [one, other] = moved[..]
                && one["channel"] == other["channel"]
            {
                let [near, far] = domains.map(Value::from);
                let said = [one, other].map(|row| [&row["domain"], &row["peer_domain"]]);
                let meant = [[&near, &far], [&far, &near]];
                assert!(said == meant || said == [meant[1], meant[0]], "{document}");
                return;
            }
            assert!(Instant::now() < deadline, "no rings: {document}");
        }
    }
}

#[test]
fn what_is_published_goes_through_rings() {
    let Some(bed) = Bed::new() else { return };
    let stage = &bed.stage;
    let publish = "domain add db --ip 10.77.0.3 --publish 8080:7000";
    stage.say(publish).check(0);
    let server = bed.serve("--domain db", "0.0.0.0:7000");
    let published = format!("client {HOST}:8080");
    // Destination and source are translated: from another domain, and from the same one.
    bed.by_rings(bed.run("--domain web", &published), ["web", "db"]);
    bed.by_rings(bed.run("--domain db", &published), ["db", "db"]);
    // Who wants rings or nothing gets them.
    let insisting = bed.run("--domain web --require-fast", &published);
    bed.by_rings(insisting, ["web", "db"]);
    // The next broker finds them again.
    let mut client = bed.run("--domain web", &published);
    bed.moves_by_rings(&mut client, ["web", "db"]);
    stage.say("down --keep-domains").check(0);
    stage.say("up --detach --uplink").check(0);
    bed.moves_by_rings(&mut client, ["web", "db"]);
    drop(client);
    // From the host: the destination alone, and both.
    bed.by_rings(bed.run("--here", &published), ["host", "db"]);
    bed.by_rings(bed.run("--here", "client 127.0.0.1:8080"), ["host", "db"]);
    // And nothing of either, which the host's table shows as well.
    let direct = "client 10.77.0.3:7000";
    bed.by_rings(bed.run("--here", direct), ["host", "db"]);
    let of_host = bed.serve("--here", "0.0.0.0:7001");
    bed.by_rings(
        bed.run("--domain web", "client 10.77.0.1:7001"),
        ["web", "host"],
    );

    // A container that comes under the host's address, and one that comes under its own.
    let container = stage.container();
    let pid = container.pid();
    let attach = format!("domain attach shop --ip {CONTAINER} --pid {pid}");
    stage.say(&attach).check(0);
    bed.by_rings(bed.contain(&container, &published), ["shop", "db"]);
    bed.by_rings(
        bed.contain(&container, "client 172.30.0.1:7001"),
        ["shop", "host"],
    );
    drop(of_host);
    let masquerade = "table ip docker { chain p { type nat hook postrouting priority 90; \
        ip saddr 172.30.0.0/24 oifname != docker0 masquerade; }; }";
    nft(stage.host.pid(), masquerade);
    bed.by_rings(bed.contain(&container, direct), ["shop", "db"]);
    drop(server);
    stage.host("nft delete table ip docker");
    stage.say("domain rm shop --force").check(0);
    stage.host("ip link del docker0");
    bed.stage.close();
}

/// The host is CID 2, and an attached container has the CID of its address.
#[test]
fn the_host_and_containers_have_cids() {
    let up = "up --detach --uplink --vsock";
    let Some(bed) = Bed::with(up) else { return };
    let stage = &bed.stage;
    stage.say("domain add db").check(0);
    stage.say("domain add web").check(0);
    let container = stage.container();
    let attach = format!(
        "domain attach shop --ip {CONTAINER} --pid {}",
        container.pid()
    );
    stage.say(&attach).check(0);
    let [host, db, web, shop] = ["host", "db", "web", "shop"].map(|name| bed.cid(name));
    assert_eq!(host, 2);
    let of_address = 1 + CONTAINER
        .parse::<std::net::Ipv4Addr>()
        .expect("IPv4")
        .to_bits();
    assert_eq!(shop, of_address);
    let client = |kind: &str, to: &Value, port: u16, own: &Value| {
        format!("vsock-client {kind} {to} {port} {own}")
    };
    let (stream, record) = ("SOCK_STREAM", "SOCK_SEQPACKET");
    let of_host = bed.serves("--here", "vsock-server 7001");
    let of_db = bed.serves("--domain db", "vsock-server 7001");
    let mut of_shop = bed.contain(&container, "vsock-server 7001");
    of_shop.hear("listening");
    for (kind, port) in [(stream, 7001), (record, 7002)] {
        let to_host = bed.run("--domain web", &client(kind, &host, port, &web));
        bed.by_rings(to_host, ["web", "host"]);
        let of_host = bed.run("--here", &client(kind, &db, port, &host));
        bed.by_rings(of_host, ["host", "db"]);
        let to_shop = bed.run("--domain web", &client(kind, &shop, port, &web));
        bed.by_rings(to_shop, ["web", "shop"]);
        let of_shop = bed.contain(&container, &client(kind, &host, port, &shop));
        bed.by_rings(of_shop, ["shop", "host"]);
    }
    // The next broker finds them again.
    let mut going_on = bed.run("--domain web", &client(record, &shop, 7002, &web));
    bed.moves_by_rings(&mut going_on, ["web", "shop"]);
    stage.say("down --keep-domains").check(0);
    stage.say(up).check(0);
    assert_eq!([bed.cid("host"), bed.cid("shop")], [host.clone(), shop]);
    bed.moves_by_rings(&mut going_on, ["web", "shop"]);
    drop((going_on, of_shop));
    stage.say("domain rm shop --force").check(0);
    let links = container.within(|| Command::new("ip").args(["-o", "addr"]).output());
    let links = String::from_utf8(links.expect("ip").stdout).expect("text");
    assert!(
        !links.contains("fordway0") && !links.contains("fd56:"),
        "{links}"
    );
    drop(of_host);
    // What begins without CIDs takes the host's away, and leaves those that domains have.
    stage.say("down --keep-domains").check(0);
    stage.say("up --detach --uplink").check(0);
    assert_eq!([bed.cid("host"), bed.cid("db")], [Value::Null, db]);
    let addresses = stage.host("ip -o addr show dev fordway0");
    assert!(!addresses.contains("inet6"), "{addresses}");
    drop(of_db);
    // Without it the container's end goes, too, and the other way round it would go some time later.
    stage.host("ip link del docker0");
    drop(container);
    bed.stage.close();
}

/// Either way over the fabric is under the rules: that to the host, and that from it.
#[test]
fn rules_hold_for_what_is_translated() {
    let Some(bed) = Bed::new() else { return };
    let stage = &bed.stage;
    let publish = "domain add db --ip 10.77.0.3 --publish 8080:7000";
    stage.say(publish).check(0);
    let server = bed.serve("--domain db", "0.0.0.0:7000");
    let published = format!("client {HOST}:8080");
    let rules = stage.runtime.dir.join("rules.nft");
    let from_host = "client 10.77.0.3:7000";
    for (domain, place, to, refused) in [
        (
            "web",
            "--domain web",
            published.as_str(),
            format!("ip daddr {HOST} tcp dport 8080"),
        ),
        (
            "web",
            "--domain web",
            &published,
            "ip daddr 10.77.0.3 tcp dport 7000".into(),
        ),
        (
            "host",
            "--here",
            from_host,
            "ip saddr 10.77.0.1 tcp dport 7000".into(),
        ),
    ] {
        let mut client = bed.run(place, to);
        bed.moves_by_rings(&mut client, [domain, "db"]);
        let text = format!(
            "table inet t {{\n chain c {{\n type filter hook forward priority 0;\n {refused} drop\n }}\n}}\n"
        );
        std::fs::write(&rules, text).expect("write");
        let load = format!("filter load {}", rules.display());
        stage.say(&load).check(0);
        client.go_on();
        let ended = client.process.wait().expect("wait");
        assert!(!ended.success(), "{refused}");
        std::fs::write(&rules, "").expect("write");
        stage.say(&load).check(0);
    }
    drop(server);
    bed.stage.close();
}

/// As in a pod with a proxy: the program's connection ends beside it, and so does one that comes in.
#[test]
fn what_is_redirected_to_a_proxy_goes_through_rings() {
    let Some(bed) = Bed::new() else { return };
    let stage = &bed.stage;
    stage.say("domain add db --ip 10.77.0.3").check(0);
    stage.say("domain add web --ip 10.77.0.4").check(0);
    let proxy = bed.serve("--domain web", "0.0.0.0:15001");
    let rules = "table ip mesh { \
        chain o { type nat hook output priority -100; tcp dport 7000 redirect to :15001; }; \
        chain i { type nat hook prerouting priority -100; tcp dport 80 redirect to :15001; }; }";
    nft(proxy.process.id(), rules);
    bed.by_rings(
        bed.run("--domain web", "client 10.77.0.3:7000"),
        ["web", "web"],
    );
    bed.by_rings(bed.run("--domain db", "client 10.77.0.4:80"), ["db", "web"]);
    drop(proxy);
    bed.stage.close();
}

/// Puts rules in force in the network of a process.
fn nft(pid: u32, rules: &str) {
    let mut command = Command::new("nsenter");
    command.args(["-t", &pid.to_string(), "--net", "nft", rules]);
    Ran::new(&mut command).check(0);
}
