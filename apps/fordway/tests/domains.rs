//! Domains as a user makes and uses them: real namespaces, by the kernel path.

mod support;

use fordway_platform::netns;
use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;
use support::place::Place;
use support::{Runtime, host_devices, is_root, within};

/// Which namespaces of a mountinfo are mounted: the root of such a mount names it (man 5 proc).
fn namespaces(mounts: &str) -> HashSet<&str> {
    let named = mounts.lines().filter(|line| line.contains(" - nsfs "));
    named.filter_map(|line| line.split(' ').nth(3)).collect()
}

#[test]
fn domains_reach_each_other_by_name_and_the_host_stays_as_it_is() {
    if !is_root() {
        return;
    }
    let before = host_devices();
    let runtime = Runtime::up();
    runtime.say("domain add db --ip 10.77.0.3").check(0);
    let own_hosts = fs::read("/etc/hosts").expect("hosts");

    let netns = runtime.run_dir().join("netns/db");
    let listener = within(&netns, || {
        TcpListener::bind(("10.77.0.3", 7000)).expect("bind")
    });
    let server = std::thread::spawn(move || {
        let (mut stream, from) = listener.accept().expect("accept");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("read");
        stream
            .write_all(line.to_uppercase().as_bytes())
            .expect("write");
        from.ip().to_string()
    });
    let script = "exec 3<>/dev/tcp/db/7000; echo hello >&3; head -1 <&3";
    let run = "run --domain web --ip 10.77.0.4 --path kernel -- bash -c";
    let ran = runtime.fordway(run.split(' ').chain([script])).check(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("HELLO\n", ""));
    assert_eq!(server.join().expect("server"), "10.77.0.4");

    let ran = runtime
        .inside("web", &["getent", "ahostsv4", "db"])
        .check(0);
    assert!(ran.stdout.contains("10.77.0.3"), "{ran:?}");
    let ran = runtime.inside("db", &["ip", "-o", "-4", "addr"]).check(0);
    assert!(
        ran.stdout.contains("10.77.0.3/24") && ran.stdout.contains("127.0.0.1/8"),
        "{ran:?}"
    );
    // A program's namespace holds no way into another domain's: of named ones only the host's own.
    let ran = runtime
        .inside("web", &["cat", "/proc/self/mountinfo"])
        .check(0);
    let host = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(
        namespaces(&ran.stdout).is_subset(&namespaces(&host)),
        "{ran:?}"
    );

    assert_eq!(own_hosts, fs::read("/etc/hosts").expect("hosts"));
    assert_eq!(before, host_devices(), "the host's namespace changed");
    runtime.close();
    assert_eq!(before, host_devices(), "the host's namespace changed");
}

/// Names lead to both addresses. A program that takes the first one only gets IPv4, on which every server listens.
#[test]
fn names_have_addresses_of_both_families() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    runtime.say("domain add db --ip 10.77.0.3").check(0);
    let domain = &runtime.json("domain show db")["domain"];
    let Some(six) = domain["ip6"].as_str() else {
        fordway_test_skip::skipped("the kernel has IPv6 off");
        return;
    };
    // It ends in the IPv4 address.
    assert_eq!(six, "fdbb:bad8:6eca::a4d:3");
    let netns = runtime.run_dir().join("netns/db");
    let listener = within(&netns, || TcpListener::bind("[::]:7000").expect("bind"));
    let server = std::thread::spawn(move || {
        let from = [(); 2].map(|()| listener.accept().expect("accept").1.ip());
        from.map(|ip| ip.to_canonical().to_string())
    });
    for name in ["db", six] {
        let script = format!("exec 3<>/dev/tcp/{name}/7000; read -u 3 || true");
        let run = "run --domain web --ip 10.77.0.4 --path kernel -- bash -c";
        runtime.fordway(run.split(' ').chain([&*script])).check(0);
    }
    let from = server.join().expect("server");
    assert_eq!(from, ["10.77.0.4", "fdbb:bad8:6eca::a4d:4"]);
    let all = runtime.inside("web", &["getent", "ahosts", "db"]).check(0);
    let streams = all.stdout.lines().filter(|line| line.contains(" STREAM"));
    let addresses: Vec<_> = streams
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(addresses, ["10.77.0.3", six]);

    // One file serves all domains, so that none may write it.
    let script = "(echo 10.77.0.66 db >> /etc/hosts) 2>&1 | grep Read-only";
    runtime.inside("web", &["sh", "-c", script]).check(0);

    // What others made has what it was given, and the name of it.
    let place = Place::new();
    let pid = place.pid();
    let attach = format!("domain attach box --ip 192.0.2.9 --ip6 2001:db8::9 --pid {pid}");
    runtime.say(&attach).check(0);
    let taken = format!(
        "domain attach other --ip 192.0.2.8 --ip6 2001:db8::9 --pid {}",
        std::process::id()
    );
    runtime.say(&taken).fails(6, "2001:db8::9");
    // Each is named where it leads: inside the fabric, and outside.
    for (file, six, other) in [
        (
            "hosts/.domains",
            "fdbb:bad8:6eca::a4d:3 db",
            "2001:db8::9 box",
        ),
        (
            "control/hosts",
            "2001:db8::9 box",
            "fdbb:bad8:6eca::a4d:3 db",
        ),
    ] {
        let text = fs::read_to_string(runtime.run_dir().join(file)).expect("hosts");
        let has = |line: &str| text.lines().any(|one| one == line);
        assert!(
            has("10.77.0.3 db") && has("192.0.2.9 box"),
            "{file}: {text}"
        );
        assert!(has(six) && !has(other), "{file}: {text}");
    }
    runtime.say("domain rm box").check(0);
    drop(place);

    // It may be left out, and another network given.
    runtime.say("down").check(0);
    runtime.say("up --detach --network6 none").check(0);
    runtime.say("domain add db").check(0);
    assert!(runtime.json("domain show db")["domain"]["ip6"].is_null());
    runtime.say("down --keep-domains").check(0);
    runtime.say("up --detach --network6 fd00:1:2::/48").check(0);
    runtime.say("domain add web").check(0);
    let addresses = ["db", "web"].map(|name| {
        let document = runtime.json(&format!("domain show {name}"));
        document["domain"]["ip6"].clone()
    });
    // One stays as it was made.
    assert_eq!(addresses[0], serde_json::Value::Null);
    assert_eq!(addresses[1], "fd00:1:2::a4d:3");
    runtime.close();
}

/// Where the kernel has no IPv6 there is one line about it, and all is as it was without.
#[test]
fn without_ipv6_there_is_a_fabric_of_ipv4() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::new();
    let off =
        "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 && ip link set lo up && exec \"$@\"";
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["-n", "sh", "-c", off, "sh"]);
    let up = runtime.command(["up", "--detach"]);
    unshare.arg(up.get_program()).args(up.get_args());
    support::Ran::new(&mut unshare).check(0);
    runtime.say("domain add db --ip 10.77.0.3").check(0);
    runtime.say("domain add web").check(0);
    assert!(runtime.json("domain show db")["domain"]["ip6"].is_null());
    let log = fs::read_to_string(runtime.run_dir().join("broker.log")).expect("log");
    assert_eq!(log.matches("IPv6").count(), 1, "{log}");
    let addresses = runtime.inside("db", &["ip", "-6", "addr", "show", "dev", "eth0"]);
    assert_eq!(addresses.check(0).stdout, "");
    let hosts = fs::read_to_string(runtime.run_dir().join("hosts/.domains")).expect("hosts");
    assert_eq!(hosts.matches(" db\n").count(), 1, "{hosts}");
    let script = "bash -c 'exec 3<>/dev/tcp/db/9' 2>&1 | grep refused";
    runtime.inside("web", &["bash", "-c", script]).check(0);
    runtime.close();
}

#[test]
fn a_running_program_hears_of_new_names() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    let script = "echo started; read line; getent ahostsv4 later";
    let run = [
        "run", "--domain", "early", "--path", "kernel", "--", "bash", "-c", script,
    ];
    let mut command = runtime.command(run);
    let mut program = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut stdout = BufReader::new(program.stdout.take().expect("stdout"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("read");
    runtime.say("domain add later --ip 10.77.0.77").check(0);
    program
        .stdin
        .take()
        .expect("stdin")
        .write_all(b"go\n")
        .expect("write");
    line.clear();
    stdout.read_to_string(&mut line).expect("read");
    assert!(program.wait().expect("wait").success());
    assert!(line.contains("10.77.0.77"), "{line}");
    runtime.close();
}

#[test]
fn a_spoofed_source_is_dropped_and_counted() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    runtime.say("domain add db --ip 10.77.0.3").check(0);
    let script = "ip addr add 10.77.0.66/24 dev eth0 && ip route replace 10.77.0.3 dev eth0 src 10.77.0.66 \
                  && { timeout 1 bash -c 'exec 3<>/dev/tcp/10.77.0.3/9'; test $? = 124; }";
    // Silence is all that a dropped frame can be known by here: another error is none.
    runtime.inside("liar", &["bash", "-c", script]).check(0);
    // From the assigned address the answer comes: nobody listens.
    let script = "bash -c 'exec 3<>/dev/tcp/10.77.0.3/9' 2>&1 | grep refused";
    runtime.inside("honest", &["bash", "-c", script]).check(0);
    let dropped = |name: &str| {
        let document = runtime.json(&format!("domain show {name}"));
        document["dropped_frames"].as_u64().expect("a count")
    };
    // On a busy machine the shell above may not have come as far as its SYN.
    for _ in 0..20 {
        if dropped("liar") == 0 {
            let send = "echo lie > /dev/udp/10.77.0.3/9";
            runtime.inside("liar", &["bash", "-c", send]);
        }
    }
    assert!(dropped("liar") > 0);
    assert_eq!(dropped("honest"), 0);
    runtime.close();
}

#[test]
fn names_and_addresses_have_one_owner() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    runtime.say("domain add db --ip 10.77.0.3").check(0);
    runtime.say("domain add db").check(0);
    runtime
        .say("domain add db --ip 10.77.0.4")
        .fails(6, "10.77.0.3");
    runtime
        .say("domain add other --ip 10.77.0.3")
        .fails(6, "10.77.0.3");
    runtime
        .say("run --domain other --ip 10.77.0.3 -- true")
        .fails(125, "10.77.0.3");
    for bad in ["-a", "a_b", "a/b", "../x", "", &"x".repeat(64)] {
        let ran = runtime.fordway(["domain", "add", "--", bad]);
        ran.fails(2, "name");
    }
    runtime
        .say("domain add x --ip 10.77.0.0")
        .fails(2, "10.77.0.0");
    runtime
        .say("domain add x --ip 192.168.1.1")
        .fails(2, "192.168.1.1");
    runtime.say("domain add x --ip 10.77.0").fails(2, "10.77.0");
    runtime.say("domain show nobody").fails(7, "nobody");
    runtime.say("domain rm nobody").fails(7, "nobody");
    runtime
        .say("downgrade 12345")
        .fails(7, "no connection 12345");
    runtime.close();
}

#[test]
fn a_domain_in_use_is_removed_by_force_only() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    let run = [
        "run",
        "--domain",
        "busy",
        "--path",
        "kernel",
        "--",
        "sh",
        "-c",
        "echo up; read x",
    ];
    let mut program = runtime.command(run);
    let mut program = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut line = String::new();
    let mut stdout = BufReader::new(program.stdout.take().expect("stdout"));
    stdout.read_line(&mut line).expect("read");
    runtime.say("domain rm busy").fails(9, "--force");
    runtime.say("domain rm busy --force").check(0);
    drop(program.stdin.take());
    program.wait().expect("wait");
    runtime.close();
}

#[test]
fn documents_have_a_schema_version() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    let added = runtime.json("domain add db --ip 10.77.0.3");
    assert_eq!(
        (&added["schema"], &added["domain"]["name"]),
        (&1.into(), &"db".into())
    );
    let listed = runtime.json("domain list");
    assert_eq!(listed["schema"], 1);
    let names: Vec<_> = listed["domains"]
        .as_array()
        .expect("domains")
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert!(names.contains(&&"db".into()), "{listed}");
    let connections = runtime.json("ss --all");
    assert!(connections["schema"] == 1 && connections["connections"].is_array());
    assert_eq!(runtime.json("domain rm db")["removed"], "db");
    let env = runtime.json("env");
    assert_eq!(env["schema"], 1);
    assert!(
        env["variables"]["FORDWAY_SOCKET"]
            .as_str()
            .expect("socket")
            .starts_with('/')
    );
    runtime.close();
}

#[test]
fn ss_shows_a_connection_and_why_it_is_on_the_kernel_path() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    runtime.say("domain add db --ip 10.77.0.3").check(0);
    let netns = runtime.run_dir().join("netns/db");
    let listener = within(&netns, || {
        TcpListener::bind(("10.77.0.3", 7000)).expect("bind")
    });
    let script = "exec 3<>/dev/tcp/db/7000; echo up; read x";
    let run = [
        "run", "--domain", "web", "--path", "kernel", "--", "bash", "-c", script,
    ];
    let mut program = runtime.command(run);
    let mut program = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut line = String::new();
    BufReader::new(program.stdout.take().expect("stdout"))
        .read_line(&mut line)
        .expect("read");
    let (_accepted, _) = listener.accept().expect("accept");

    let document = runtime.json("ss --all");
    let rows = document["connections"].as_array().expect("connections");
    let row = rows
        .iter()
        .find(|row| row["domain"] == "web")
        .expect("the client's row");
    assert_eq!(
        (&row["remote"], &row["state"]),
        (&"10.77.0.3:7000".into(), &"ESTAB".into())
    );
    assert_eq!(
        (&row["path"], &row["peer_domain"]),
        (&"kernel".into(), &"db".into())
    );
    assert_eq!(row["reason"], "no-peer");
    assert_eq!(row["joined"], false);
    let text = runtime.say("ss --all --domain web").check(0).stdout;
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(
        words[..7],
        [
            "CONN", "LOCAL", "REMOTE", "PATH", "REASON", "RINGS", "KERNEL"
        ]
    );
    assert_eq!((words[7], words[9]), ("-", "db:7000"), "{text}");
    assert!(words[8].starts_with("web:"), "{text}");
    assert_eq!(words[10..12], ["kernel", "no-peer"], "{text}");
    assert!(
        text.ends_with("1 end: 0 fast, 1 kernel (1 no-peer)\n"),
        "{text}"
    );
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    let left_out = runtime.say("ss").check(0).stdout;
    // Others of the machine may have connections, too.
    assert!(
        left_out.starts_with("0 ends: 0 fast, 0 kernel; ")
            && left_out.ends_with(" outside Fordway (--all)\n"),
        "{left_out}"
    );
    let none = runtime.json("ss --all --path fast");
    assert_eq!(none["connections"], serde_json::json!([]));
    runtime
        .say("ss --domain wbe")
        .fails(7, "fordway domain list");
    runtime.say("ss --reason no-pear").fails(2, "'no-peer'");
    drop(program.stdin.take());
    program.wait().expect("wait");
    runtime.close();
}

/// What a broker leaves that is killed, or told to leave all, goes by one word of the administrator.
#[test]
fn a_down_without_a_broker_leaves_nothing_to_the_next_one() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    let container = Place::new();
    let rules = runtime.dir.join("rules.nft");
    let text = "table ip t {\nchain c {\ntype filter hook forward priority 0; policy drop;\n}\n}\n";
    fs::write(&rules, text).expect("write");
    runtime.say("domain add db --ip 10.77.0.3").check(0);
    let pid = container.pid();
    runtime
        .say(&format!("domain attach shop --ip 10.77.0.9 --pid {pid}"))
        .check(0);
    runtime
        .say(&format!("filter load {}", rules.display()))
        .check(0);
    runtime.say("down --keep-domains").check(0);
    // Who has the lock is there, also if it does not answer.
    let lock = fs::File::open(runtime.run_dir().join("broker.lock")).expect("lock");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("flock");
    runtime.say("down").fails(8, "kill -9");
    drop(lock);
    assert!(runtime.run_dir().join("netns/db").exists());
    let left = runtime.say("down").check(0);
    assert!(left.stderr.contains("no broker was running"), "{left:?}");
    runtime.say("down").fails(8, "nothing to remove");
    runtime.say("up --detach").check(0);
    assert_eq!(runtime.say("filter list").check(0).stdout, "");
    let domains = runtime.json("domain list");
    assert_eq!(
        domains["domains"].as_array().map(Vec::len),
        Some(1),
        "{domains}"
    );
    runtime.close();
}

/// Two containers: namespaces and a veth pair made by hand, outside any fabric.
#[test]
fn hand_made_namespaces_are_attached() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    let (box1, box2) = (Place::new(), Place::new());
    let (pid1, pid2) = (box1.pid(), box2.pid());
    box1.ip(&format!(
        "link add eth0 type veth peer name eth0 netns {pid2}"
    ));
    for (container, address) in [(&box1, "10.77.0.201/24"), (&box2, "10.77.0.202/24")] {
        container.ip(&format!("addr add {address} dev eth0"));
        container.ip("link set eth0 up");
    }
    runtime
        .say(&format!("domain attach box1 --ip 10.77.0.201 --pid {pid1}"))
        .check(0);
    runtime
        .say(&format!("domain attach box1 --ip 10.77.0.201 --pid {pid1}"))
        .check(0);
    runtime
        .say(&format!("domain attach box2 --ip 10.77.0.202 --pid {pid2}"))
        .check(0);
    runtime
        .say(&format!(
            "domain attach other --ip 10.77.0.201 --pid {pid1}"
        ))
        .check(6);
    runtime
        .say("domain attach gone --ip 10.77.0.203 --pid 999999999")
        .check(7);
    runtime
        .say("domain add thief --ip 10.77.0.201")
        .fails(6, "10.77.0.201");
    runtime
        .say("run --domain box1 --path kernel -- true")
        .fails(125, "attached");
    let namespace = netns::of_process(pid1 as i32).expect("namespace");
    let cookie = netns::cookie(namespace.as_fd()).expect("cookie");
    let shown = runtime.json("domain show box1");
    assert_eq!(shown["domain"]["netns_cookie"], cookie);

    let listener = box1.within(|| TcpListener::bind(("10.77.0.201", 7000)).expect("bind"));
    let _client = box2.within(|| TcpStream::connect(("10.77.0.201", 7000)).expect("connect"));
    let _accepted = listener.accept().expect("accept");
    let document = runtime.json("ss --all");
    let rows = document["connections"].as_array().expect("connections");
    let row = rows
        .iter()
        .find(|row| row["domain"] == "box2")
        .expect("the client's row");
    assert_eq!(
        (&row["peer_domain"], &row["remote"]),
        (&"box1".into(), &"10.77.0.201:7000".into())
    );

    // Its name resolves in the domains that Fordway made.
    let ran = runtime.inside("web", &["getent", "hosts", "box1"]).check(0);
    assert!(ran.stdout.contains("10.77.0.201"), "{ran:?}");
    let env = runtime.say("env").check(0).stdout;
    for line in env.lines().filter_map(|line| line.strip_prefix("# mount ")) {
        assert!(
            Path::new(line.split(' ').next().expect("a path")).exists(),
            "{line}"
        );
    }
    runtime.say("domain rm box1").check(0);
    runtime.close();
}
