//! IPv6 that a stack does by itself, with Linux as all the others on the link: a bridge that looks for reports of groups, a router, and a
//! host that has the stack's address already.
#![cfg(feature = "ipv6")]

mod common;

use common::{Bed, said, said_soon};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Longest that anything takes to come to pass.
const PATIENCE: Duration = Duration::from_secs(40);
const OWN: &str = "fd70::5";
/// Made of a prefix and the stack's Ethernet address (RFC 4291, appendix A).
const MADE: &str = "2001:db8:70:0:70:ff:fe00:5";

/// Waits for what other processes do.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// Of binding to an address: 0, or the errno.
fn bind(bed: &Bed, address: &str) -> String {
    let text = format!(
        "import socket
try: socket.socket(socket.AF_INET6).bind(('{address}', 0)); print(0)
except OSError as e: print(e.errno)"
    );
    said(bed.near(&["python3", "-c", &text])).trim().to_owned()
}

fn ping(bed: &Bed, to: &str) -> String {
    let text = said_soon(|| bed.far(&["ping", "-6", "-c", "1", "-W", "5", to]));
    assert!(text.contains(" 0% packet loss"), "{text}");
    text
}

#[test]
fn a_bridge_that_wants_reports_passes_questions_on() {
    let Some(mut bed) = Bed::start_whole(&[]) else {
        return;
    };
    // An address is not ours before it was asked for. How long that takes: one second, and up to one before it.
    let first = bind(&bed, OWN);
    assert!(["0", "99"].contains(&first.as_str()), "{first}");
    until("the address is there", || bind(&bed, OWN) == "0");
    // Reported: the group in which both addresses are asked for, as they end alike.
    let shown = || said(bed.far(&["bridge", "mdb", "show", "dev", "br0"]));
    until("a report", || {
        shown().contains("port f0 grp ff02::1:ff00:5")
    });
    // The bridge forgets after three seconds who is in a group, unless its question is answered. A report is sent twice: the rest are answers.
    let mut left = 0.0;
    let mut rises = 0;
    until("answers to questions", || {
        let text = said(bed.far(&["bridge", "-s", "mdb", "show", "dev", "br0"]));
        let line = text.lines().find(|line| line.contains("ff02::1:ff00:5"));
        let now: f64 = line
            .and_then(|line| line.split_whitespace().last()?.parse().ok())
            .unwrap_or(0.0);
        rises += u32::from(now > left);
        left = now;
        rises > 2
    });
    for to in [OWN, "fe80::70:ff:fe00:5%br0"] {
        said(bed.far(&["ip", "neigh", "flush", "dev", "br0"]));
        ping(&bed, to);
    }
    // Its port takes what is for groups, whichever ones the port's own host is in.
    let port = said(bed.wire(&["ip", "-d", "link", "show", "dev", "w0"]));
    assert!(port.contains("allmulti 1"), "{port}");
    assert!(bed.stack_lives());
    assert_eq!(bed.log(), "");
}

#[test]
fn groups_of_sockets_are_reported_to_the_bridge() {
    let Some(mut bed) = Bed::start_whole(&[]) else {
        return;
    };
    let client = "import socket, struct, sys
four, six = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
four.setsockopt(0, 35, socket.inet_aton('239.70.1.2') + socket.inet_aton('0.0.0.0'))
six.setsockopt(41, 26, 1)
six.setsockopt(41, 20, socket.inet_pton(socket.AF_INET6, 'ff05::70:2') + struct.pack('I', 0))
for sock in (four, six): sock.bind(('', 7150)); sock.settimeout(60)
print('there', flush=True)
for sock in (four, six): print(sock.recv(100).decode(), flush=True)
sys.stdin.read()";
    let mut client = bed.near(&["python3", "-c", client]);
    client.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = client.spawn().expect("python3");
    let lines = client.stdout.take().expect("its output");
    let mut lines = BufReader::new(lines).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("there"));
    let shown = |group: &str| {
        said(bed.far(&["bridge", "mdb", "show", "dev", "br0"]))
            .contains(&format!("port f0 grp {group} "))
    };
    for (group, what) in [("239.70.1.2", "four"), ("ff05::70:2", "six")] {
        until("a report", || shown(group));
        let kind = if what == "four" {
            "AF_INET"
        } else {
            "AF_INET6"
        };
        let send = format!(
            "import socket; s = socket.socket(socket.{kind}, socket.SOCK_DGRAM)
if s.family == socket.AF_INET: s.setsockopt(0, 32, socket.inet_aton('10.70.0.1'))
else: s.setsockopt(41, 17, socket.if_nametoindex('br0'))
s.sendto(b'{what}', ('{group}', 7150))"
        );
        said(bed.far(&["python3", "-c", &send]));
        assert_eq!(lines.next().as_deref(), Some(what));
    }
    // A socket that is gone is in no group, and the bridge is told so.
    drop(client.stdin.take());
    assert!(client.wait().expect("its end").success());
    for group in ["239.70.1.2", "ff05::70:2"] {
        until("the group is left", || !shown(group));
    }
    assert!(bed.stack_lives());
}

#[test]
fn an_address_that_another_host_has_is_not_used() {
    let Some(mut bed) = Bed::start_whole(&["ip addr add fd70::5/64 dev br0 nodad"]) else {
        return;
    };
    let line = "fordway-stackd: fd70::5: another host has this address";
    until("a line in the log", || bed.log().contains(line));
    assert_eq!(bed.log().lines().count(), 1, "{}", bed.log());
    // What is left: the address of the link, and IPv4.
    until("the other address", || {
        bind(&bed, "fe80::70:ff:fe00:5") == "0"
    });
    assert_eq!(bind(&bed, OWN), "99");
    ping(&bed, "fe80::70:ff:fe00:5%br0");
    said(bed.far(&["ping", "-c", "1", "-W", "5", common::OWN]));
    assert!(bed.stack_lives());
}

#[test]
fn a_router_is_heard() {
    if std::process::Command::new("radvd")
        .arg("--version")
        .output()
        .is_err()
    {
        return fordway_test_skip::skipped("radvd is not installed");
    }
    let far = [
        "sysctl -qw net.ipv6.conf.all.forwarding=1",
        "ip addr add 2001:db8:70::1/64 dev br0 nodad",
        "ip addr add 2001:db8:71::1/128 dev lo",
    ];
    let Some(mut bed) = Bed::start_whole(&far) else {
        return;
    };
    let config = "interface br0 { AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; AdvCurHopLimit 50;
        prefix 2001:db8:70::/64 { AdvOnLink on; AdvAutonomous on; }; };";
    std::fs::write(bed.dir.join("radvd.conf"), config).expect("a file");
    let radvd = [
        "radvd",
        "-n",
        "-m",
        "stderr",
        "-C",
        "radvd.conf",
        "-p",
        "radvd.pid",
    ];
    let radvd = bed.far(&radvd);
    bed.keep(radvd);
    until("an address is made", || bind(&bed, MADE) == "0");
    ping(&bed, MADE);
    // Behind the router: from the address that was made, with the router's hop limit.
    let server = "import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.bind(('2001:db8:71::1', 7))
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
while True:
    _, hops, _, whence = s.recvmsg(100, 100)
    s.sendto(b'%s %d' % (whence[0].encode(), int.from_bytes(hops[0][2], 'little')), whence)";
    let server = bed.far(&["python3", "-c", server]);
    bed.keep(server);
    let client = "import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.settimeout(1)
s.sendto(b'x', ('2001:db8:71::1', 7)); print(s.recv(100).decode())";
    let answer = said_soon(|| bed.near(&["python3", "-c", client]));
    assert_eq!(answer.trim(), format!("{MADE} 50"));
    assert!(bed.stack_lives());
}
